"""What must hold at the end of a seed with golden rows: the gate by the provider's own book, and golden rows apart.

The provider knows when each request came, from which process, what it said and what it was answered. The ledger is
asked only for when a gate was decided, and for what is shown to the user.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from lotwise.canary import Canary
from lotwise.ledger import runs as run_book
from lotwise.progress import reporter
from lotwise.run import Run
from simulation.books import Books, Sent
from simulation.product import onlooking
from simulation.provider import Row
from simulation.story import Caller

ANSWERED = frozenset({"ok", "invalid", "truncated", "refused", "needs_continuation", "bad_request"})
"""What a request came to where it is a first answer; all else is asked again."""

MARGIN, CONFIDENCE = 0.1, 0.95
"""How far past its limit the exact one-sided bound of a rate may lie, as docs/canary.md promises."""

DRIFT_BOUND = math.log(100 / 0.05)
"""What the drift sum must pass: docs/decisions/0007-canary.md says why."""


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A request as it came to the provider, and when the call that brought it was made."""

    row: Row
    at: datetime
    shard: str
    process: str


def violations(books: Books) -> list[str]:
    """Return all that does not hold; nothing in worlds without golden rows."""
    if books.story.golden_share is None:
        return []
    found: list[str] = []
    for check in (_held_back, _decided_once, _verdicts, _stops, _drift, _riders, _askings, _apart, _not_shown):
        found += check(books)
    return found


def _arrivals(books: Books) -> Iterator[Arrival]:
    for batch in books.story.provider.batches.values():
        for row in batch.rows.values():
            assert batch.called_at is not None
            yield Arrival(row=row, at=batch.called_at, shard=row.custom_id[:16], process=batch.maker)
    for served in books.story.provider.served:
        yield Arrival(row=served.row, at=served.row.finish_at, shard=served.shard, process=served.process)


def _caller_of(books: Books, process: str) -> Caller:
    return next(caller for caller in books.story.callers if caller.name == process[0])


# --- the gate -----------------------------------------------------------------------------------------------------


def _held_back(books: Books) -> Iterator[str]:
    """Before a gate is decided only its canary goes out; after it failed nothing does, but of those who override it."""
    for one in _arrivals(books):
        canary = books.story.canaries[one.process]
        if canary is None:
            yield f"{one.process} sends without knowing of a canary"
            continue
        decisions = books.decisions(canary)
        first = decisions[0]["decided_at"] if decisions else None
        is_first = one.row.key in books.first_sent(_caller_of(books, one.process), canary)
        if not is_first and (first is None or one.at < first):
            yield f"{one.process} sends {one.row.key[:8]} at {one.at}, and its gate is decided at {first}"
        if canary.mode == "on":
            failed = [row["decided_at"] for row in decisions if row["state"] == "failed"]
            begun = books.shards[one.shard]["creating_at"]  # a shard that is under way is answered to its end
            if failed and one.at > failed[0] and (begun is None or begun > failed[0]):
                yield f"{one.process} sends {one.row.key[:8]} at {one.at}, after its gate failed at {failed[0]}"


def _decided_once(books: Books) -> Iterator[str]:
    """A gate is decided once for all processes; a pass may be taken back."""
    by_gate: dict[tuple[str, float], list[str]] = {}
    for row in books.gates:
        by_gate.setdefault((row["set_digest"], row["threshold"]), []).append(row["state"])
    for states in by_gate.values():
        if states not in (["passed"], ["failed"], ["passed", "failed"]):
            yield f"a gate was decided as {', '.join(states)}"


def _verdicts(books: Books) -> Iterator[str]:
    """The first verdict on a gate is the one that the provider's answers warrant."""
    seen = set()
    for gate in books.gates:
        name = (gate["set_digest"], gate["threshold"])
        if name in seen:
            continue
        seen.add(name)
        caller = books.story.run_callers[gate["run"]]
        canary, by = _canary_of(books, caller), gate["decided_at"]
        golden = [_agreement(books, key, canary, by) for key in books.first_sent(caller, canary) if key in books.golden]
        frame = [_badness(books, key, by) for key in sorted(caller.digest_keys)[: canary.n_frame]]
        came = [{bad is not None for bad in one} for one in frame]
        for what, counted, each in (
            ("golden rows agree", gate["agreed"], golden),
            ("first answers are invalid", gate["n_invalid"], frame),
            ("requests of the frame are answered", gate["n_frame"], came),
        ):
            least, most = sum(one == {True} for one in each), sum(True in one for one in each)
            if not least <= counted <= most:
                yield f"{counted} {what} by the gate, {least} to {most} by the provider"
        if gate["n"] != len(golden):
            yield f"a gate is decided by {gate['n']} golden rows of {len(golden)}"
        passes = (not gate["n"] or _proven(gate["agreed"], gate["n"], canary.threshold)) and (
            not gate["n_frame"]
            or canary.bad_limit is None
            or _proven(gate["n_frame"] - gate["n_invalid"], gate["n_frame"], 1 - canary.bad_limit)
        )
        if passes != (gate["state"] == "passed"):
            yield f"a gate {gate['state']} with {gate['reason']}"


def _canary_of(books: Books, caller: Caller) -> Canary:
    """Return a caller's canary; only its mode changes from life to life."""
    return next(
        canary
        for process, canary in books.story.canaries.items()
        if canary is not None and _caller_of(books, process) is caller
    )


def _proven(good: int, n: int, threshold: float) -> bool:
    """Say whether a rate reaches a threshold, and its bound, by exact enumeration, lies at most a margin below it."""
    least = threshold - MARGIN
    as_good = sum(math.comb(n, k) * least**k * (1 - least) ** (n - k) for k in range(good, n + 1))
    return good >= threshold * n - 1e-9 and as_good <= 1 - CONFIDENCE + 1e-9


def _agreement(books: Books, key: str, canary: Canary, by: datetime) -> set[bool]:
    """Return whether the first answer to a golden row agrees: both where more than one can have been the first."""
    wanted = _known(canary)[books.golden[key].text]
    found = {_agrees(one, wanted) for _, one in _answers(books, key)}
    return found if _surely_read(books, key, by) else found | {False}


def _known(canary: Canary) -> dict[str, dict[str, Any]]:
    """Return what is known of each golden row, by its content."""
    if canary.golden is None:
        return {}
    return {text: json.loads(known) for text, known in canary.golden.rows.select("content", "answer").rows()}


def _agrees(one: Sent, wanted: Mapping[str, Any]) -> bool:
    said = json.loads(one.row.said)
    return one.outcome == "ok" and all(said[name] == value for name, value in wanted.items())


def _badness(books: Books, key: str, by: datetime) -> set[bool | None]:
    """Return whether the first answer to a request is invalid; None for no answer."""
    bad = {"invalid", "truncated", "needs_continuation", "bad_request"}
    found: set[bool | None] = {one.outcome in bad for _, one in _answers(books, key)}
    return found if _surely_read(books, key, by) else found | {None}


def _answers(books: Books, key: str) -> list[tuple[str, Sent]]:
    """Return what may be the first answer to a request, with its shard."""
    return [
        (shard, one)
        for (shard, asked), times in books.sent.items()
        if asked == key
        for one in times
        if one.outcome in ANSWERED
    ]


def _surely_read(books: Books, key: str, by: datetime) -> bool:
    """Say whether an answer to a request was certainly read by a moment."""
    return any(
        (one.row.finish_at <= by and not books.was_away(shard))
        if one.batch is None
        else any(download.at <= by and key in download.intact for download in one.batch.downloads)
        for shard, one in _answers(books, key)
    )


def _stops(books: Books) -> Iterator[str]:
    """Whoever was stopped by a canary has a gate that failed, and is told what was seen."""
    for caller in books.story.callers:
        said = caller.said or ""
        if not said.startswith("canary:"):
            continue
        canary = books.story.canaries[f"{caller.name}{caller.lives}"]
        reasons = [row["reason"] for row in books.decisions(canary) if row["state"] == "failed"] if canary else []
        if canary is None or canary.mode != "on" or said.removeprefix("canary:") not in reasons:
            yield f"caller {caller.name} was stopped by {said!r}, and the gate says {reasons}"


# --- drift --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Rode:
    """What the golden rows of one later shard came to, at least and at most."""

    shard: str
    intended_at: datetime
    collected_at: datetime | None
    closed_by: str
    n: int
    n_wrong: int
    n_surely_wrong: int


def _series(books: Books, canary: Canary) -> list[_Rode]:
    known, found = _known(canary), []
    for shard in books.shards.values():
        riders = [
            (key, one)
            for (of, key), times in books.sent.items()
            if of == shard["id"] and key in books.golden and books.golden[key].round > 0
            for one in times
            if one.outcome in ANSWERED
        ]
        if not riders or shard["intended_at"] is None:
            continue
        by = shard["collected_at"] or books.story.world.now
        wrong = [key for key, one in riders if not _agrees(one, known[books.golden[key].text])]
        sure = [key for key in wrong if len(_answers(books, key)) == 1 and _surely_read(books, key, by)]
        found.append(
            _Rode(
                shard=shard["id"],
                intended_at=shard["intended_at"],
                collected_at=shard["collected_at"],
                closed_by=shard["owner"] or "",
                n=len({key for key, _ in riders}),
                n_wrong=len(wrong),
                n_surely_wrong=len(sure),
            )
        )
    return sorted(found, key=lambda one: (one.intended_at, one.shard))


def _drift(books: Books) -> Iterator[str]:
    """A pass is taken back where golden rows agree less, and only there; who has seen it sends no more."""
    done = set()
    for canary in books.story.canaries.values():
        if canary is None or canary.golden is None or (canary.subject, canary.threshold) in done:
            continue
        done.add((canary.subject, canary.threshold))
        decisions = books.decisions(canary)
        if not decisions or decisions[0]["state"] != "passed":
            continue
        usual = min(max(1.0 - decisions[0]["lower"], 0.001), 0.8)
        wrong, right = math.log((usual + MARGIN) / usual), math.log((1 - usual - MARGIN) / (1 - usual))
        series = _series(books, canary)
        if len(decisions) > 1 and wrong * sum(one.n_wrong for one in series) <= DRIFT_BOUND:
            yield f"a pass was taken back with {sum(one.n_wrong for one in series)} golden rows wrong in later shards"
        for seen in series:
            if seen.collected_at is None:
                continue
            total = 0.0
            for one in series:
                if one.collected_at is None or one.collected_at > seen.collected_at:
                    if one.intended_at <= seen.intended_at:
                        break  # whether its rows were read by then is not known
                    continue
                total = max(0.0, total + one.n_surely_wrong * wrong + (one.n - one.n_surely_wrong) * right)
                if total > DRIFT_BOUND:
                    yield from _sent_on(books, canary, seen)
                    break


def _sent_on(books: Books, canary: Canary, seen: _Rode) -> Iterator[str]:
    """Say where a process sent another shard after it had closed one by which drift was certain."""
    assert seen.collected_at is not None
    for one in _arrivals(books):
        own = books.story.canaries[one.process]
        same = own is not None and (own.subject, own.threshold) == (canary.subject, canary.threshold)
        later = books.shards[one.shard]["intended_at"] > seen.collected_at
        if same and own is not None and own.mode == "on" and one.process == seen.closed_by and later:
            yield f"{one.process} sends shard {one.shard} though drift was certain when it closed {seen.shard}"


# --- golden rows apart --------------------------------------------------------------------------------------------


def _riders(books: Books) -> Iterator[str]:
    """No more golden rows ride in a shard than its share, and none without a frame row."""
    share = books.story.golden_share
    assert share is not None
    together: dict[str, list[str]] = defaultdict(list)
    for attempt in books.attempts:
        together[attempt["shard"]].append(attempt["key"])
    for shard, keys in together.items():
        rode = sum(key in books.golden and books.golden[key].round > 0 for key in keys)
        n_frame = sum(key not in books.golden for key in keys)
        if rode > (max(1, round(n_frame * share)) if n_frame else 0):
            yield f"{rode} golden rows ride with {n_frame} requests in shard {shard}"


def _askings(books: Books) -> Iterator[str]:
    """Golden rows are asked as what they are, under keys of their own, and never again because their answer was bad."""
    for attempt in books.attempts:
        if (attempt["purpose"] == "golden") != (attempt["key"] in books.golden):
            yield f"{attempt['key'][:8]} is asked for the purpose {attempt['purpose']!r}"
        if attempt["key"] in books.golden and attempt["why"].startswith("changed"):
            yield f"golden row {attempt['key'][:8]} is asked again since {attempt['why']!r}"
    for one in _arrivals(books):
        asking = books.golden.get(one.row.key)
        if asking is not None and one.row.content != asking.text:
            yield f"golden row {one.row.key[:8]} is asked with another content"
        if one.row.key not in books.contents:
            yield f"{one.row.key[:8]} is sent, and nobody wants it"


def _apart(books: Books) -> Iterator[str]:
    """Golden rows are in no frame, in no count and not among what is missing, as the user is shown them."""
    story = books.story
    for run_id, caller in story.run_callers.items():
        if run_book.row(story.ledger, run_id) is None:
            continue  # its process was killed before it had begun
        run = Run(onlooking(story, caller, run_id), reporter=reporter(False))
        status, wanted = run.status(), sorted(caller.digest_keys)
        if sum(status.requests.values()) != len(wanted) or sum(status.rows.values()) != len(caller.texts):
            yield f"run {run_id} counts {dict(status.requests)} of {len(wanted)} requests"
        if run.collect(partial=True)["llm_id"].sort().to_list() != wanted:
            yield f"the frame of run {run_id} holds other rows than were asked for"
        if strange := set(run.missing()["llm_id"]) - set(wanted):
            yield f"{len(strange)} requests are missing to run {run_id} that nobody asked for"
        if story.shape != "stream":
            own = {
                shard["id"]
                for shard in books.shards.values()
                if shard["run"] == run_id and shard["state"] == "collected"
            }
            sent = [one for one in _arrivals(books) if one.shard in own]
            n_golden = sum(one.row.key in books.golden for one in sent)
            if (status.n_sent, status.n_golden) != (len(sent) - n_golden, n_golden):
                shown = f"{status.n_sent} requests and {status.n_golden} golden rows"
                yield f"run {run_id} shows {shown} of {len(sent)} sent, {n_golden} of them golden"


def _not_shown(books: Books) -> Iterator[str]:
    """No request says to the model what is known of a golden row."""
    secrets = {known["echo"] for canary in books.story.canaries.values() if canary for known in _known(canary).values()}
    for one in _arrivals(books):
        if any(secret in one.row.body for secret in secrets):
            yield f"{one.row.key[:8]} is sent with a golden answer in it"
