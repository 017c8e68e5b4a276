"""What must hold at the end of a seed: the ledger against the provider's own books.

Every check returns sentences; none means that all is well. The provider's side is the truth: what arrived, what it
came to, what was charged, and which lines were handed out whole.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cached_property
from typing import Any

from lotwise.executors.variant import apply
from lotwise.ledger.verify import verify
from simulation.provider import ENVELOPE_BYTES, Batch, Row, answer, usd
from simulation.scenario import SPEC, Story, validator

_MAYBE_CHARGED = ("unreturned", "unreadable", "uncertain")


@dataclass(kw_only=True)
class Sent:
    """One attempt as the provider knows it."""

    row: Row
    batch: Batch | None
    process: str | None

    @property
    def outcome(self) -> str:
        return self.row.code if self.batch is None else self.batch.outcome(self.row)

    @property
    def charged_nano(self) -> int:
        return self.row.usd_nano if self.batch is None else self.batch.charged_nano(self.row)

    @property
    def billed(self) -> bool:
        return (
            self.batch.billed(self.row)
            if self.batch is not None
            else self.outcome != "not_sent"
            and (self.outcome in ("ok", "invalid", "truncated", "refused", "needs_continuation", "answer_lost"))
        )

    @property
    def whole_downloads(self) -> int:
        """How often its line was handed out whole."""
        return sum(self.row.key in one.intact for one in self.batch.downloads) if self.batch is not None else 0


class Books:
    """Both sides of a story, side by side."""

    def __init__(self, story: Story) -> None:
        self.story = story
        self.shards = {row["id"]: row for row in self._rows("SELECT * FROM shard")}
        self.requests = {row["key"]: row for row in self._rows("SELECT * FROM request")}
        self.attempts = self._rows("SELECT * FROM attempt ORDER BY key, n")
        self.results = {(row["shard"], row["key"]): row for row in self._rows("SELECT * FROM result ORDER BY seq")}
        self.values = {
            row["key"]: row["value"]
            for row in self._rows(
                "SELECT v.key, arg_min(v.value, res.seq) AS value FROM validation v "
                "JOIN result res ON res.shard = v.shard AND res.key = v.key WHERE v.ok GROUP BY v.key"
            )
        }
        self.contents = self._contents()

    def _rows(self, sql: str) -> list[dict[str, Any]]:
        cursor = self.story.database.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _contents(self) -> dict[str, str]:
        import polars as pl

        from lotwise.key import keys, spec_digest

        texts = sorted({text for caller in self.story.callers for text in caller.texts if text is not None})
        return dict(zip(keys(spec_digest(SPEC), pl.Series(texts, dtype=pl.String)), texts, strict=True))

    @cached_property
    def sent(self) -> dict[tuple[str, str], list[Sent]]:
        """All that arrived at the provider, by shard and key."""
        found: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        for batch in self.story.provider.batches.values():
            for row in batch.rows.values():
                found[(str(row.custom_id[:16]), row.key)].append(Sent(row=row, batch=batch, process=None))
        for served in self.story.provider.served:
            found[(served.shard, served.row.key)].append(Sent(row=served.row, batch=None, process=served.process))
        return found

    def too_late(self, batch: Batch) -> bool:
        """Say whether a batch arrived longer after `creating` than a create call may take: its process was stopped
        in between, and the ledger was entitled to take the shard for never sent."""
        shard = self.shards[next(iter(batch.rows.values())).custom_id[:16]]
        began: datetime | None = shard["creating_at"]
        most = timedelta(seconds=self.story.callers[0].options.create_timeout_s)
        return began is not None and batch.arrived_at > began + most


def violations(story: Story) -> list[str]:
    """Return all that does not hold."""
    books = Books(story)
    found: list[str] = list(story.trespasses)
    for check in (_bill, _reasons, _rows, _answers, _costs, _budget, _halts, _closed, _verified):
        found += check(books)
    return found


def _bill(books: Books) -> Iterator[str]:
    """Each charge belongs to one attempt that the ledger knows of, and each attempt has one charge at most."""
    known = {(row["shard"], row["key"]) for row in books.attempts}
    for (shard, key), times in books.sent.items():
        billed = [one for one in times if one.billed and not (one.batch is not None and books.too_late(one.batch))]
        if len(billed) > 1:
            yield f"{key[:8]} is charged {len(billed)} times for one attempt in shard {shard}"
        if billed and (shard, key) not in known:
            state = books.shards[shard]["state"] if shard in books.shards else "not in the ledger"
            yield f"{key[:8]} is charged in shard {shard} ({state}), and the ledger knows of no such attempt"


def _reasons(books: Books) -> Iterator[str]:
    """Every attempt but the first has a reason, and the reason is true."""
    before: dict[str, dict[str, Any]] = {}
    for attempt in books.attempts:
        key = attempt["key"]
        last, before[key] = before.get(key), attempt
        if last is None:
            if attempt["why"] != "first":
                yield f"the first attempt of {key[:8]} is sent because of {attempt['why']}"
            continue
        times = books.sent.get((last["shard"], key), [])
        if not _true(books, attempt["why"], last, times):
            came = ", ".join(one.outcome for one in times) or "never arrived"
            why = f"is sent because of {attempt['why']!r}, but the one before: {came}"
            yield f"attempt {attempt['n']} of {key[:8]} {why}"


def _true(books: Books, why: str, last: dict[str, Any], times: list[Sent]) -> bool:
    kind, _, code = why.partition(":")
    if kind == "changed":
        return any(one.outcome in ("invalid", "truncated") for one in times)
    if kind == "not_billed":
        return not any(one.billed for one in times) and (
            not times or any(one.outcome == code for one in times) or code == "server_error"
        )
    if kind in ("unreturned", "unreadable"):
        return any(
            one.batch is not None
            and (one.batch.forgotten or (one.whole_downloads == 0 and len(one.batch.downloads) >= 2))
            for one in times
        )
    if kind == "uncertain":
        if any(one.outcome == "answer_lost" for one in times):
            return True
        return books.story.shape == "stream" and _was_away(books, last["shard"])
    return False


def _was_away(books: Books, shard: str) -> bool:
    """Say whether the process that had a shard crashed or fell silent for longer than its lease."""
    owners = books.story.takers.get(shard, set())
    processes = [process for process in books.story.processes if process.name in owners]
    return any(process.crashed_at is not None or process.silences for process in processes)


def _rows(books: Books) -> Iterator[str]:
    """Every request of every caller ends in a state that the provider's books explain."""
    by_key: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for attempt in books.attempts:
        by_key[attempt["key"]].append(attempt)
    for caller in books.story.callers:
        for key in caller.digest_keys:
            request = books.requests.get(key)
            if request is None:
                yield f"{key[:8]} is wanted and not in the ledger"
                continue
            outcomes = [one for attempt in by_key[key] for one in books.sent.get((attempt["shard"], key), ())]
            last = books.sent.get((by_key[key][-1]["shard"], key), []) if by_key[key] else []
            yield from _explained(books, caller.said, caller.policy.max_attempts, request, outcomes, last)


def _explained(
    books: Books,
    said: str | None,
    max_attempts: int,
    request: dict[str, Any],
    outcomes: list[Sent],
    last: list[Sent],
) -> Iterator[str]:
    key, reason = request["key"][:8], request["reason"]
    valid = request["key"] in books.values
    came = [one.outcome for one in outcomes]
    match request["state"]:
        case "answered" if not valid and not {"invalid", "truncated", "needs_continuation"} & set(came):
            yield f"{key} is invalid, but it came to {came}"
        case "refused" if "refused" not in came:
            yield f"{key} is refused, but it came to {came}"
        case "submitted":
            yield f"{key} is still submitted in the quiet end, in shard {request['live_shard']}"
        case "pending" if said == "done" and not valid:
            yield f"{key} is pending though its run is done"
        case "dead_lettered":
            true = (
                request["faults"] >= max_attempts
                if reason in _MAYBE_CHARGED
                else reason == "oversize" or reason in [one.outcome for one in last]
            )
            if not true:
                yield f"{key} is dead-lettered as {reason!r}, but its last attempt came to {[o.outcome for o in last]}"


def _answers(books: Books) -> Iterator[str]:
    """Each answer is the pure function's, and no whole answer that was handed out is lost."""
    for key, value in books.values.items():
        if json.loads(value) != json.loads(answer(books.contents[key])):
            yield f"{key[:8]} has the answer of another request"
    for (shard, key), times in books.sent.items():
        row = books.shards.get(shard)
        if row is None or row["state"] != "collected" or key in books.values:
            continue
        if any(one.outcome == "ok" and one.whole_downloads for one in times):
            yield f"{key[:8]} was answered in shard {shard}, its line was handed out whole, and it has no answer"


def _costs(books: Books) -> Iterator[str]:
    """What the ledger says that a result cost is what the provider charged for it."""
    if books.story.prices is None:
        return
    for (shard, key), result in books.results.items():
        charged = sum(one.charged_nano for one in books.sent.get((shard, key), ()))
        if result["cost_usd"] is not None and result["cost_usd"] != usd(charged):
            yield f"{key[:8]} cost {usd(charged)} in shard {shard}, and the ledger says {result['cost_usd']}"


def _budget(books: Books) -> Iterator[str]:
    """No job is charged more than the largest budget that was given for it."""
    spent: dict[str, int] = defaultdict(int)
    for (shard, _), times in books.sent.items():
        for one in times:
            if one.batch is None or not books.too_late(one.batch):
                spent[books.shards[shard]["job"] if shard in books.shards else ""] += one.charged_nano
    for job, nano in spent.items():
        budgets = [caller.budget_usd for caller in books.story.callers if caller.job_id == job]
        if budgets and None not in budgets and usd(nano) > max(budgets):  # type: ignore[type-var]
            yield f"job {job[:8]} was charged {usd(nano)} of a budget of {max(budgets)}"  # type: ignore[type-var]


def _halts(books: Books) -> Iterator[str]:
    """A run that stopped in the quiet time had a reason to."""
    for caller in books.story.callers:
        said = caller.said or "nothing"
        if said == "done" or said.startswith("systemic:"):
            continue
        if said.startswith("account_blocked") and any(
            one.outcome == "account_blocked" for times in books.sent.values() for one in times
        ):
            continue
        if said == "budget" and books.story.prices is not None and caller.budget_usd is not None:
            yield from _no_room(books, caller.job_id or "", caller.budget_usd, caller.digest_keys)
            continue
        yield f"caller {caller.name} ended with {said!r} though nothing went wrong any more"


def _no_room(books: Books, job: str, budget: Decimal, keys: list[str]) -> Iterator[str]:
    committed = books._rows(
        f"SELECT coalesce(sum(coalesce(settled_usd, reserved_usd)), 0) AS usd FROM reservation WHERE job = '{job}'"
    )[0]["usd"]
    prices = books.story.prices
    assert prices is not None
    for key in keys:
        request = books.requests[key]
        if request["state"] != "pending":
            continue
        content, settings = apply(books.contents[key], request["variant"])
        bound = prices.upper_bound(
            input_bytes=len(content.encode()) + ENVELOPE_BYTES + 2_000 * (request["variant"] is not None),
            output_tokens=int(settings.get("max_tokens", SPEC.max_tokens)),
        )
        if bound <= budget - committed:
            yield f"a run stopped for its budget with ${budget - committed} left, and {key[:8]} needs ${bound} at most"


def _closed(books: Books) -> Iterator[str]:
    """At the end no shard is open, and each closed one was open at the provider no more."""
    for shard in books.shards.values():
        if shard["state"] not in ("collected", "rejected", "lost"):
            yield f"shard {shard['id']} is still {shard['state']}"
        if shard["state"] == "collected" and shard["n_results"] > shard["n_requests"]:
            yield f"shard {shard['id']} counts {shard['n_results']} results of {shard['n_requests']} requests"


def _verified(books: Books) -> Iterator[str]:
    """`ledger verify` is clean."""
    for finding in verify(books.story.ledger).findings:
        yield f"verify: {finding.holds}: {finding.count} do not ({', '.join(finding.examples[:2])})"


__all__ = ["Books", "validator", "violations"]
