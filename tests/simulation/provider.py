"""The simulated provider: what it took, what it did, what it charged, and what it handed out.

All that a batch will come to is decided when it arrives, by the seed, the batch and the key, so that nothing depends on
who asks when. Its bill is its own: it is made from what it did, never from what the client believes.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from lotwise.executors.reading import ANSWER_LOST, NOT_SENT
from lotwise.executors.variant import apply
from simulation.world import World

ENVELOPE_BYTES = 200
"""What a request's body has besides its content; the executor's bound counts the same."""

CHARGED = frozenset({"ok", "invalid", "truncated", "refused", "needs_continuation", "answer_lost"})
"""What is paid for, whatever comes of it."""


def answer(content: str) -> str:
    """Answer a request: a pure function of its content."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return json.dumps({"echo": digest[:12], "n": len(content)})


def wrong_answer(content: str) -> str:
    """Answer a request wrongly: valid, plausible, and not what is known of it."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return json.dumps({"echo": digest[12:24], "n": len(content)})


@dataclass(kw_only=True)
class Request:
    """One request as it arrived."""

    key: str
    custom_id: str
    content: str
    variant: str | None
    body: str
    """All that it says to the model: what all requests of its shard share, and its own message and settings."""


@dataclass(kw_only=True)
class Row:
    """What one request came to."""

    key: str
    custom_id: str
    code: str
    """A code of the product's, or "invalid" for an answer that fits no schema, or "answer_lost"."""
    line: bytes
    usd_nano: int
    finish_at: datetime
    flaw: str | None
    """How its line is spoiled: missing, torn, torn_once, unreadable, unreadable_once."""
    content: str = ""
    body: str = ""
    said: str = ""
    """What the answer says where nothing goes wrong with it."""

    @property
    def valid(self) -> bool:
        return self.code == "ok"


@dataclass(kw_only=True)
class Download:
    """One complete hand-out of a batch's results."""

    at: datetime
    intact: frozenset[str]


@dataclass(kw_only=True, eq=False)
class Batch:
    """A batch as the provider has it."""

    id: str
    shard: str | None
    rows: dict[str, Row]
    arrived_at: datetime
    listed_at: datetime
    ends_at: datetime
    expires_at: datetime
    rejected: str | None = None
    rejected_wait: bool = False
    canceled_at: datetime | None = None
    asked_to_cancel: bool = False
    maker: str = ""
    """The process that made it."""
    forgotten: bool = False
    deleted: bool = False
    polled: int = 0
    called_at: datetime | None = None
    """When the call that made it was taken; it may have arrived later."""
    account: str = "account-1"
    """Whose list shows it, and whose key reads it."""
    downloads: list[Download] = field(default_factory=list)

    @property
    def stopped_at(self) -> datetime:
        return min(self.expires_at, self.canceled_at or self.expires_at)

    def ended(self, now: datetime) -> bool:
        """Say whether nothing more will happen to it."""
        return now >= min(self.ends_at, self.stopped_at)

    def outcome(self, row: Row) -> str:
        """Return what a row came to, once the batch has ended."""
        if self.rejected is not None:
            return "rejected"
        if row.finish_at <= self.stopped_at:
            return row.code
        return "canceled" if self.canceled_at is not None and self.canceled_at <= self.expires_at else "expired"

    def charged_nano(self, row: Row) -> int:
        """Return what a row costs, in 1e-9 dollars; zero or more."""
        return row.usd_nano if self.outcome(row) in CHARGED else 0

    def billed(self, row: Row) -> bool:
        return self.outcome(row) in CHARGED


@dataclass(kw_only=True)
class Served:
    """A request that a synchronous endpoint answered, and to which process."""

    shard: str
    row: Row
    process: str


@dataclass(kw_only=True)
class Manner:
    """How this provider treats rows, drawn from the seed."""

    outcomes: Mapping[str, float]
    flaws: Mapping[str, float]
    usage_missing: float
    at_the_bound: float
    input_nano: int
    """Price of an input token, in 1e-12 dollars."""
    output_nano: int
    max_tokens: int
    durations_s: tuple[float, ...]
    window_s: float
    lag_s: float
    skew_s: float


@dataclass(kw_only=True)
class Astray:
    """What a provider answers wrongly, with answers that are valid: some contents always, and all of them later on."""

    contents: frozenset[str]
    always: frozenset[str]
    after: int | None
    """How many requests with these contents come before all of them are answered wrongly; None for never."""
    n_asked: int = 0

    def errs(self, content: str) -> bool:
        """Count a request, and say whether it is answered wrongly."""
        if content not in self.contents:
            return False
        self.n_asked += 1
        return content in self.always or (self.after is not None and self.n_asked > self.after)


class Provider:
    """The provider's side of one seed."""

    def __init__(self, world: World, manner: Manner, *, bare: bool) -> None:
        self.world, self.manner, self.bare = world, manner, bare
        self.batches: dict[str, Batch] = {}
        self.foreign: dict[str, Batch] = {}
        """Batches that somebody else's program made with the same key; nobody but it may touch them."""
        self.served: list[Served] = []
        self.astray: Astray | None = None

    # --- batches -----------------------------------------------------------------------------------------------

    def take(
        self,
        shard: str,
        requests: Iterable[Request],
        maker: str,
        *,
        delay_s: float = 0.0,
        account: str = "account-1",
    ) -> Batch:
        """Take a batch that arrives now or a little later; all that becomes of it is decided here."""
        world, manner = self.world, self.manner
        batch_id = f"batch_{world.seed}_{len(self.batches) + 1}"  # one database holds the ledgers of several seeds
        arrived_at = world.now + timedelta(seconds=delay_s)
        rng = random.Random(f"{world.seed}/{batch_id}")
        duration = rng.choice(manner.durations_s) * rng.uniform(0.5, 1.5)
        rows = {}
        for request in sorted(requests, key=lambda one: one.key):
            finish_at = arrived_at + timedelta(seconds=duration * rng.uniform(0.05, 1.0))
            rows[request.key] = self._row(request, rng, finish_at)
        if self.bare and all(row.flaw for row in rows.values()):
            # Such a batch is told by the ids of its results alone; one that shows none would be waited for for ever.
            next(iter(rows.values())).flaw = None
        batch = Batch(
            id=batch_id,
            shard=shard,
            rows=rows,
            arrived_at=arrived_at,
            listed_at=arrived_at + timedelta(seconds=rng.uniform(0, manner.lag_s)),
            ends_at=arrived_at + timedelta(seconds=duration),
            expires_at=arrived_at + timedelta(seconds=manner.window_s),
            maker=maker,
            called_at=world.now,
            account=account,
        )
        self.batches[batch_id] = batch
        world.say(
            "provider",
            f"takes {batch_id} of shard {shard}, {len(rows)} requests"
            + (f", arriving in {delay_s:.0f}s" if delay_s else ""),
        )
        return batch

    def take_foreign(self, n_requests: int, account: str) -> None:
        """Take somebody else's batch, which looks like one of ours as far as a list without our ids can tell."""
        world, manner = self.world, self.manner
        batch_id = f"batch_{world.seed}_foreign_{len(self.foreign) + 1}"
        rng = random.Random(f"{world.seed}/{batch_id}")
        ends_at = world.now + timedelta(seconds=rng.choice(manner.durations_s) * rng.uniform(0.5, 1.5))
        rows = {}
        for number in range(n_requests):
            name = f"row-{number}"
            line = json.dumps(_line(name, "ok", answer(name), None, rng)).encode()
            rows[name] = Row(key=name, custom_id=name, code="ok", line=line, usd_nano=0, finish_at=world.now, flaw=None)
        self.foreign[batch_id] = Batch(
            id=batch_id,
            shard=None,
            rows=rows,
            arrived_at=world.now,
            listed_at=world.now,
            ends_at=ends_at,
            expires_at=ends_at,
            account=account,
        )
        world.say("provider", f"takes {batch_id}, {n_requests} requests, of somebody else")

    def serve(self, shard: str, request: Request, process: str, *, lost: bool = False) -> Row:
        """Answer one synchronous request."""
        rng = random.Random(f"{self.world.seed}/{shard}/{request.key}/{len(self.served)}")
        row = self._row(request, rng, self.world.now, lost=lost)
        self.served.append(Served(shard=shard, row=row, process=process))
        return row

    # --- rows --------------------------------------------------------------------------------------------------

    def _row(self, request: Request, rng: random.Random, finish_at: datetime, *, lost: bool = False) -> Row:
        manner = self.manner
        code = "answer_lost" if lost else _draw(manner.outcomes, rng, "ok")
        content, settings = apply(request.content, request.variant)
        most_out = int(settings.get("max_tokens", manner.max_tokens))
        most_in = len(content.encode()) + ENVELOPE_BYTES
        used = (most_in, most_out)
        if rng.random() >= manner.at_the_bound:
            used = (rng.randint(1, most_in), rng.randint(1, most_out))
        nano = (used[0] * manner.input_nano + used[1] * manner.output_nano + 999) // 1000
        usage = None if rng.random() < manner.usage_missing else used
        astray = self.astray is not None and self.astray.errs(request.content)
        said = wrong_answer(request.content) if astray else answer(request.content)
        line = json.dumps(_line(request.custom_id, code, said, usage, rng)).encode()
        return Row(
            key=request.key,
            custom_id=request.custom_id,
            code=code,
            line=line,
            usd_nano=nano if code in CHARGED else 0,
            finish_at=finish_at,
            flaw=_draw(manner.flaws, rng, None) if not lost else None,
            content=request.content,
            body=request.body,
            said=said,
        )

    def line_of(self, batch: Batch, row: Row) -> bytes:
        """Return a row's line as the batch's files hold it."""
        outcome = batch.outcome(row)
        if outcome in ("expired", "canceled"):
            word = "batch_expired" if outcome == "expired" else "batch_cancelled"
            return json.dumps({"custom_id": row.custom_id, "response": None, "error": {"code": word}}).encode()
        return row.line


def _draw(shares: Mapping[str, float], rng: random.Random, otherwise: Any) -> Any:
    point = rng.random()
    for name, share in shares.items():
        point -= share
        if point < 0:
            return name
    return otherwise


_ERRORS = {
    "bad_request": (400, "invalid_request"),
    "rate_limited": (429, "rate_limit_exceeded"),
    "server_error": (500, "server_error"),
    "account_blocked": (429, "insufficient_quota"),
}


def _line(custom_id: str, code: str, said: str, usage: tuple[int, int] | None, rng: random.Random) -> dict[str, Any]:
    if code in _ERRORS:
        status, word = _ERRORS.get(
            code, (500, "server_error") if code == "server_error" else (429, "insufficient_quota")
        )
        response = {"status_code": status, "body": {"error": {"code": word, "type": word}}}
        return {"custom_id": custom_id, "response": response, "error": None}
    if code in ("answer_lost", "not_sent"):
        word = ANSWER_LOST if code == "answer_lost" else NOT_SENT
        return {"custom_id": custom_id, "response": None, "error": {"code": word}}
    text: str | None = said
    if code == "invalid":
        text = rng.choice(("", "no json", '{"echo": 3}', '{"echo": "x"', "{}"))
    if code == "truncated":
        text = said[: rng.randint(0, 10)]
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if code == "refused":
        message = {"role": "assistant", "content": None, "refusal": "no"}
    end = {"truncated": "length", "needs_continuation": "pause_turn"}.get(code, "stop")
    body: dict[str, Any] = {"model": "sim-1", "choices": [{"index": 0, "message": message, "finish_reason": end}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    return {"custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


def usd(nano: int) -> Decimal:
    """Return dollars."""
    return Decimal(nano) / 1_000_000_000
