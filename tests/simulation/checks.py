"""What must hold at the end of a seed: the ledger against the provider's own books.

Every check returns sentences; none means that all is well.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from lotwise.executors.variant import apply
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify
from lotwise.lifecycle import RETRY_SPEND
from simulation.books import Books, Sent
from simulation.provider import ENVELOPE_BYTES, answer, usd, wrong_answer
from simulation.story import MAX_TOKENS

_MAYBE_CHARGED = ("unreturned", "unreadable", "uncertain")


def violations(books: Books) -> list[str]:
    """Return all that does not hold."""
    found: list[str] = list(books.story.trespasses)
    for check in (_bill, _reasons, _rows, _answers, _costs, _budget, _halts, _closed, _orphans, _foreign):
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
    late = {attempt["key"] for attempt in books.attempts if attempt["why"] == "given_up"}
    besides: dict[str, list[Sent]] = defaultdict(list)
    for attempt in books.attempts:
        key = attempt["key"]
        if attempt["why"] == "given_up":
            # It was sent before the others, or besides them, and is counted since its batch came.
            besides[key] += books.sent.get((attempt["shard"], key), [])
            continue
        last, before[key] = before.get(key), attempt
        if attempt["why"] == "late" and key in late:
            continue
        if last is None:
            if attempt["why"] != "first":
                yield f"the first attempt of {key[:8]} is sent because of {attempt['why']}"
            continue
        times = books.sent.get((last["shard"], key), [])
        if attempt["why"].startswith("changed:"):
            times = [*times, *besides[key]]  # what a late batch answered may be what is asked again, changed
        if not _true(books, attempt["why"], last, times):
            came = ", ".join(one.outcome for one in times) or "never arrived"
            why = f"is sent because of {attempt['why']!r}, but the one before: {came}"
            yield f"attempt {attempt['n']} of {key[:8]} {why}"


def _true(books: Books, why: str, last: dict[str, Any], times: list[Sent]) -> bool:
    kind, _, code = why.partition(":")
    if kind == "changed":
        return any(one.outcome in ("invalid", "truncated") for one in times)
    if why == "not_billed:canceled" and not books.story.paid and books.was_away(last["shard"]):
        return True  # what a dead engine had answered cost nothing, and is asked again
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
        return books.story.shape == "stream" and books.was_away(last["shard"])
    return False


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
            # A batch that came late for a shard that was given up is the last attempt, and ends nothing that had ended.
            own = [attempt for attempt in by_key[key] if attempt["why"] != "given_up"]
            shards = dict.fromkeys(attempt["shard"] for attempt in (*own[-1:], *by_key[key][-1:]))
            last = [one for shard in shards for one in books.sent.get((shard, key), ())]
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
                else reason in ("oversize", RETRY_SPEND)
                or reason in [one.outcome for one in last]
                or (reason == "server_error" and books.story.shape == "stream" and not last)  # nobody was there
            )
            if not true:
                yield f"{key} is dead-lettered as {reason!r}, but its last attempt came to {[o.outcome for o in last]}"


def _answers(books: Books) -> Iterator[str]:
    """Each answer is the pure function's, and no whole answer that was handed out is lost."""
    astray = books.story.provider.astray
    for key, value in books.values.items():
        content = books.contents.get(key)
        if content is None:
            yield f"{key[:8]} has an answer, and nobody asked for it"
            continue
        said = [answer(content)] + [wrong_answer(content)] * (astray is not None and content in astray.contents)
        if json.loads(value) not in [json.loads(one) for one in said]:
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
        if said.startswith("rejected:") and any(b.rejected is not None for b in books.story.provider.batches.values()):
            continue  # it was taken before the quiet time, and looked at in it
        if said == "budget" and books.story.prices is not None and caller.budget_usd is not None:
            yield from _no_room(books, caller.job_id or "", caller.budget_usd, books.may_be_sent(caller))
            continue
        if said.startswith("canary:") and caller.precaution is not None:
            continue  # whether rightly, `golden_checks` says
        yield f"caller {caller.name} ended with {said!r} though nothing went wrong any more"


def _no_room(books: Books, job: str, budget: Decimal, keys: list[str]) -> Iterator[str]:
    committed = books.rows(
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
            output_tokens=int(settings.get("max_tokens", MAX_TOKENS)),
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


def _orphans(books: Books) -> Iterator[str]:
    """A batch whose shard was given up is asked to stop, unless it had ended or its maker died before it could tell."""
    for orphan in books.orphans.values():
        if orphan["state"] in ("sought", "found", "reopened"):
            yield f"the late batch of shard {orphan['shard']} is still {orphan['state']}"
    crashed = {process.name for process in books.story.processes if process.crashed_at is not None}
    for batch in books.story.provider.batches.values():
        shard = next(iter(batch.rows.values())).custom_id[:16]
        if books.shards[shard]["state"] != "lost" or batch.asked_to_cancel or batch.forgotten:
            continue
        orphan = books.orphans.get(shard)
        if orphan is None and batch.maker not in crashed:
            yield f"{batch.id} was made late for shard {shard}, and nothing is written down about it"
        if orphan is not None and orphan["state"] not in ("watched", "uncanceled") and books.story.shape == "batch":
            yield f"{batch.id} was made late for shard {shard}, and is {orphan['state']} without being canceled"


def _foreign(books: Books) -> Iterator[str]:
    """What somebody else's program made is left alone."""
    for batch in books.story.provider.foreign.values():
        if batch.asked_to_cancel or batch.deleted or batch.polled or batch.downloads:
            yield f"{batch.id} is somebody else's, and was polled, downloaded, canceled or deleted"
    ids = {shard["batch_id"] for shard in books.shards.values()} & books.story.provider.foreign.keys()
    if ids:
        yield f"somebody else's {', '.join(sorted(ids))} was taken for ours"


def unverified(ledger: Ledger) -> list[str]:
    """Return what `ledger verify` finds."""
    return [
        f"verify: {finding.holds}: {finding.count} do not ({', '.join(finding.examples[:2])})"
        for finding in verify(ledger).findings
    ]


__all__ = ["unverified", "violations"]
