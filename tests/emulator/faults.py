"""What the emulated provider does wrong, and when: plain values that travel as JSON.

Rows, batches and HTTP calls have one kind of fault each, with selectors that are deterministic by seed.
`Faults` gathers them with the settings of the provider (durations, limits, accounts); it is replaced as a
whole or in part while the emulator runs, and what was processed before keeps its outcome.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

# What a row ends as.  Only BILLED ones are charged: the outcome table of the provider contracts.
ANSWERED = frozenset({
    "ok", "refused", "content_filter", "truncated", "context_window", "needs_continuation",
    "invalid_json", "schema_mismatch", "empty", "fenced", "prose", "wrong",
})  # fmt: skip
UNANSWERED = frozenset({
    "bad_request", "not_found", "too_large", "unprocessable", "rate_limited", "server_error", "overloaded",
    "timeout", "conflict", "request_timeout", "status_zero", "empty_body", "model_failed", "expired",
    "canceled", "insufficient_quota", "authentication", "permission", "model_not_found", "unknown_type",
})  # fmt: skip
BILLED = ANSWERED
OUTCOMES = ANSWERED | UNANSWERED
# What happens to the row's line on its way into the results.
DELIVERIES = frozenset({"missing", "duplicate", "torn", "unknown_id"})
# What the line looks like, with the same meaning.
DRESSES = frozenset({"line_separator", "flat_error"})

BATCH_KINDS = frozenset({
    "fail", "stall", "unknown_state", "null_counts", "duration", "slow_finalize", "slow_cancel", "list_lag",
    "hidden", "no_output_file", "error_file_null", "error_file_empty_id", "error_file_zero_bytes",
    "retention", "torn_downloads",
})  # fmt: skip
HTTP_ACTIONS = frozenset({"reject", "reply", "drop", "reset", "delay", "delay_reply", "cut", "kill", "kill_before"})


def unit(*parts: object) -> float:
    """Return a number in [0, 1) that depends on the parts alone."""
    text = "\x1f".join(map(str, parts)).encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "big") / 2**64


@dataclass(frozen=True, kw_only=True)
class RowFault:
    """One thing that goes wrong with rows.

    `kind` is an outcome, a delivery or a dress.  The selectors `fraction` (of keys, by hash; fractions of one
    class never overlap), `marker` (text in the row's user content) and `ids` (custom ids or their key parts)
    are joined by "or"; without any of them every row is meant.  `times` hits only the first n occurrences of
    a key at this account (None: each one), `tier` only batch or sync.  `parameter` names the field that a bad
    request complains of.
    """

    kind: str
    fraction: float | None = None
    marker: str | None = None
    ids: tuple[str, ...] = ()
    times: int | None = None
    tier: Literal["batch", "sync"] | None = None
    parameter: str | None = None

    def __post_init__(self) -> None:
        _known(self.kind, OUTCOMES | DELIVERIES | DRESSES, "row fault")

    @property
    def slot(self) -> Literal["outcome", "delivery", "dress"]:
        """The class of fault: a row has at most one of each."""
        if self.kind in OUTCOMES:
            return "outcome"
        return "delivery" if self.kind in DELIVERIES else "dress"


@dataclass(frozen=True, kw_only=True)
class BatchFault:
    """One thing that goes wrong with whole batches; `value` is its seconds, fraction, code or state.

    fail: batch error code; stall: fraction of rows done when progress stops until the window ends;
    unknown_state: the state's name, shown for as long as rows run; duration, slow_finalize, slow_cancel:
    seconds in place of the usual ones; list_lag: seconds for which list does not show the batch; hidden:
    seconds for which retrieve is 404; retention: seconds after the end for which results can be read;
    torn_downloads: first n downloads of the results whose middle line is cut in half; the others take no
    value.  `batches` are ordinals of accepted batches from 0, `fraction` is taken by hash of the ordinal;
    neither means all.
    """

    kind: str
    value: Any = None
    batches: tuple[int, ...] | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        _known(self.kind, BATCH_KINDS, "batch fault")

    def hits(self, seed: int, ordinal: int) -> bool:
        """Say whether the batch with this ordinal has the fault."""
        if self.batches is not None:
            return ordinal in self.batches
        return self.fraction is None or unit(seed, "batch", self.kind, ordinal) < self.fraction


@dataclass(frozen=True, kw_only=True)
class HttpFault:
    """One thing that goes wrong with calls of an endpoint, named as in the route tables (`*` for all).

    reject: answer `status` without doing it; reply: do it, then answer `status`; drop: do it, then keep
    silent for `seconds` and close; reset: do it, then reset the connection; delay, delay_reply: wait
    `seconds` of real time before doing it, or before answering; cut: send `after_bytes` of the answer, then
    close; kill: the emulator kills itself after `after_bytes` of the answer (0: when done, before answering);
    kill_before: before doing it.  `skip` lets the first calls pass, `times` ends the fault after n hits,
    `fraction` hits calls by hash.  With `page` the answer is not the provider's, but a web page of a gateway before it.
    """

    endpoint: str
    action: str
    status: int = 500
    code: str | None = None
    page: bool = False
    retry_after_s: float | None = None
    seconds: float = 3600.0
    after_bytes: int = 0
    skip: int = 0
    times: int | None = None
    fraction: float | None = None

    def __post_init__(self) -> None:
        _known(self.action, HTTP_ACTIONS, "HTTP fault")

    def meets(self, endpoint: str) -> bool:
        """Say whether the fault is about this endpoint, named in full or without its provider."""
        return self.endpoint in ("*", endpoint, endpoint.partition(".")[2], endpoint.partition(".")[0] + ".*")

    def hits(self, seed: int, n: int) -> bool:
        """Say whether the n-th call (from 0) that meets the fault is hit."""
        n -= self.skip
        if n < 0 or (self.times is not None and n >= self.times):
            return False
        return self.fraction is None or unit(seed, "http", self.endpoint, self.action, n) < self.fraction


@dataclass(frozen=True, kw_only=True)
class Faults:
    """Everything that can be set about the emulated provider; the defaults are a provider without faults.

    Durations are seconds of provider time, short by default so that clocks agree at speed 1.  Limits of None
    are the provider's own.  `credit_rows` is the number of charges after which a project is out of credit,
    `credit_until` the same in seconds of provider time since the first start.  `keys` are the API keys that
    exist (None: all do); `projects` maps an API key to a project: keys of one project see the same batches, a
    key without one has a project of its own.  `over_queue` and `duplicate_id` say how OpenAI tells of too
    many enqueued tokens and of a repeated custom id: `fail` the batch, or `reject` the create.
    `account_headers` says whether answers tell the caller's organisation.  `usage` of "worst" makes every
    input byte a token and fills every output cap; `cached_fraction` of the input tokens are cached reads.
    """

    seed: int = 0
    answers: Literal["schema", "echo"] = "schema"
    usage: Literal["typical", "worst"] = "typical"
    cached_fraction: float = 0.0
    shuffle: bool = True
    rows: tuple[RowFault, ...] = ()
    batches: tuple[BatchFault, ...] = ()
    http: tuple[HttpFault, ...] = ()

    validate_s: float = 0.02
    batch_s: float = 0.1
    finalize_s: float = 0.02
    cancel_s: float = 0.05
    window_s: float = 86400.0
    file_retention_s: float = 30 * 86400.0
    results_retention_s: float = 29 * 86400.0

    clock_skew_s: float = 0.0
    list_lag_s: float = 0.0

    models: tuple[str, ...] | None = None
    refused_parameters: tuple[str, ...] = ()
    max_requests: int | None = None
    max_bytes: int | None = None
    max_open_batches: int | None = None
    max_enqueued_tokens: int | None = None
    max_queued_requests: int | None = None
    over_queue: Literal["reject", "fail"] = "fail"
    duplicate_id: Literal["reject", "fail"] = "fail"

    credit_rows: int | None = None
    credit_until: float | None = None
    credit_blocks_create: bool = False

    keys: tuple[str, ...] | None = None
    account_headers: bool = True
    projects: dict[str, str] = dataclasses.field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the plain value that `from_json` reads."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Faults:
        """Build from plain values; an unknown name is an error that lists the known ones."""
        names = {field.name for field in dataclasses.fields(cls)}
        for name in value:
            _known(name, names, "fault setting")
        made: dict[str, Any] = {name: tuple(part) if isinstance(part, list) else part for name, part in value.items()}
        for name, kind in (("rows", RowFault), ("batches", BatchFault), ("http", HttpFault)):
            if name in made:
                made[name] = tuple(part if isinstance(part, kind) else kind(**_tuples(part)) for part in made[name])
        return cls(**made)

    def changed(self, value: dict[str, Any]) -> Faults:
        """Return these faults with some settings replaced."""
        return Faults.from_json({**self.to_json(), **value})

    def of_batch(self, ordinal: int) -> dict[str, Any]:
        """Return the faults of the batch with this ordinal, by kind."""
        return {fault.kind: fault.value for fault in self.batches if fault.hits(self.seed, ordinal)}


def _tuples(part: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in part.items()}


def _known(name: str, names: frozenset[str] | set[str], what: str) -> None:
    if name not in names:
        raise ValueError(f"unknown {what} {name!r}; known: {', '.join(sorted(names))}")


@dataclass(frozen=True, kw_only=True)
class RowFate:
    """What was decided for one row: its outcome, its delivery and its dress, with the fault that decided."""

    outcome: str = "ok"
    delivery: str = "once"
    dress: str | None = None
    parameter: str | None = None


class RowFates:
    """Decides the fate of rows under the faults of one moment."""

    def __init__(self, faults: Faults) -> None:
        self._seed = faults.seed
        self._spans: list[tuple[RowFault, float, float]] = []
        ends = {"outcome": 0.0, "delivery": 0.0, "dress": 0.0}
        for fault in faults.rows:
            start = ends[fault.slot]
            ends[fault.slot] = start + (fault.fraction or 0.0)
            self._spans.append((fault, start, ends[fault.slot]))
        self.counts_occurrences = any(fault.times is not None for fault in faults.rows)
        self.reads_text = any(fault.marker is not None for fault in faults.rows)

    def fate(self, *, custom_id: str, key: str, text: str, tier: str, occurrence: int) -> RowFate:
        """Return the fate of one row; the first fault of a class that selects it wins."""
        if not self._spans:
            return RowFate()
        found: dict[str, RowFault] = {}
        places: dict[str, float] = {}
        for fault, start, end in self._spans:
            slot = fault.slot
            if slot in found or (fault.tier is not None and fault.tier != tier):
                continue
            if fault.times is not None and occurrence >= fault.times:
                continue
            hit = fault.fraction is None and fault.marker is None and not fault.ids
            if fault.fraction is not None:
                if slot not in places:
                    places[slot] = unit(self._seed, slot, key)
                hit = start <= places[slot] < end
            hit = hit or (fault.marker is not None and fault.marker in text)
            if hit or custom_id in fault.ids or key in fault.ids:
                found[slot] = fault
        outcome, delivery, dress = found.get("outcome"), found.get("delivery"), found.get("dress")
        return RowFate(
            outcome=outcome.kind if outcome else "ok",
            delivery=delivery.kind if delivery else "once",
            dress=dress.kind if dress else None,
            parameter=outcome.parameter if outcome else None,
        )
