"""Batches that were made for a shard after it was given up: found in the provider's list, taken up again, and canceled.

A process can be stopped just before its create call for so long that others prove its shard unsent and send the
requests again. What the late call makes then is paid for twice. So whoever meets such a case first writes it down, and
every pass over the job goes on with it: look the batch up, open its shard again, cancel it. From then on it is a shard
like any other: what it answered is collected and charged, and its reservation, which stood all the while, is settled.

`watched` is a shard whose maker fell silent and may still call; nobody waits for it. `sought` is one whose maker has
called and does not know what came of it, `found` a batch that is known, `reopened` one whose shard is open again and
that is to be canceled: a run does not end before these are dealt with.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from lotwise import watch
from lotwise.adopt import find
from lotwise.errors import BatchNotFound, ClaimLost, Unreachable
from lotwise.executors.base import BatchExecutor
from lotwise.job import Job
from lotwise.ledger import orphans as book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import OrphanRow, ShardRow
from lotwise.lifecycle import OPEN_SHARDS, ShardState
from lotwise.shards import batch_id_of, lease_end, refuse_other_account

log = logging.getLogger("lotwise")

PAUSE = timedelta(seconds=30)
"""Between two looks at an orphan. What it answers meanwhile is charged, and each look is one call."""

SILENT = "owner_silent"
"""Why a shard is uncertain whose owner was not known to be gone: its create call may still be to come."""


def watch_until(job: Job, now: datetime) -> datetime:
    """Return until when a create call that is not made before `now` can still show in the provider's list."""
    return now + timedelta(seconds=job.options.create_timeout_s + job.options.absence_margin_s)


def note(job: Job, shard: str, batch_id: str | None) -> None:
    """Write down that our create call was made for a shard that has become somebody else's, and look at once.

    What cannot be done now is done in a later pass.
    """
    now = job.clock.now()
    book.note(job.ledger, shard, batch_id=batch_id, now=now, watch_until=watch_until(job, now))
    pursue(job, book.of_job(job.ledger, job.job_id))


def pursue(job: Job, orphans: Iterable[OrphanRow]) -> bool:
    """Look at each orphan that is due: open the shard of what is found again, and cancel it.

    Returns
    -------
    Whether any was due, and so whether the job stands otherwise than it did.
    """
    due = [orphan for orphan in orphans if next_look(orphan) <= job.clock.now()]
    for orphan in due:
        try:
            _pursue(job, orphan)
        except ClaimLost as lost:
            log.info("the late batch of shard %s: %s", orphan["shard"], lost)  # the next pass sees what became of it
    return bool(due)


def next_look(orphan: OrphanRow) -> datetime:
    """Return when an orphan is to be looked at again."""
    return orphan["noted_at"] if orphan["looked_at"] is None else orphan["looked_at"] + PAUSE


def holding(orphans: Iterable[OrphanRow]) -> list[OrphanRow]:
    """Return those that a run waits for: there was a create call, and what it made is not canceled yet."""
    return [orphan for orphan in orphans if orphan["state"] != "watched"]


def refuse_hopeless(job: Job, orphans: Sequence[OrphanRow]) -> None:
    """Refuse to wait for money that is kept for batches of which another account's list alone can tell.

    Raises
    ------
    AccountMismatch
        All of them are such, and late enough for that list to prove that none will come.
    """
    now = job.clock.now()
    shards = [shard_book.row(job.ledger, orphan["shard"]) for orphan in orphans if now > orphan["watch_until"]]
    if shards and len(shards) == len(orphans) and all(_is_foreign(job, shard) for shard in shards):
        refuse_other_account(job, shards[0])


def _is_foreign(job: Job, shard: ShardRow) -> bool:
    return shard["account"] != job.lane_of(shard).executor.account()


def _pursue(job: Job, orphan: OrphanRow) -> None:
    """Take an orphan as far as it goes now. A kill at any line leaves the rest to the next pass."""
    shard, now = shard_book.row(job.ledger, orphan["shard"]), job.clock.now()
    if orphan["state"] == "reopened":
        _cancel(job, orphan, shard)
        return
    if shard["batch_id"] is not None:
        book.mark(job.ledger, orphan, "adopted", now=now)  # it became the shard's own after all
        return
    if shard["state"] in OPEN_SHARDS:
        book.mark(job.ledger, orphan, orphan["state"], now=now)  # whoever has the shard looks for it as well
        return
    try:
        batch_id = orphan["batch_id"] or _find(job, shard)
    except Unreachable as fault:
        log.warning("a batch of shard %s is not looked for yet: %s", shard["id"], fault.code)
        book.mark(job.ledger, orphan, orphan["state"], now=now)
        return
    if batch_id is not None:
        _reopen(job, orphan, shard, batch_id)
    elif now <= orphan["watch_until"]:
        book.mark(job.ledger, orphan, orphan["state"], now=now)
    elif not holding([orphan]) and _is_foreign(job, shard):
        book.mark(job.ledger, orphan, orphan["state"], now=now)  # nobody waits for it, and we cannot tell
    else:
        refuse_other_account(job, shard)  # what another account's list lacks proves nothing
        book.mark(job.ledger, orphan, "absent", now=now)


def _find(job: Job, shard: ShardRow) -> str | None:
    executor = _batches(job, shard)
    margin = timedelta(seconds=job.options.absence_margin_s)
    others = shard_book.batches(job.ledger, shard["id"])
    listed = [one for one in executor.list(since=shard["intended_at"] - margin) if one.batch_id not in others]
    found, _ = find(executor, shard, listed, margin)
    return None if found is None else found.batch_id


def _reopen(job: Job, orphan: OrphanRow, shard: ShardRow, batch_id: str) -> None:
    """Open the shard again and call its batch back."""
    back = book.reopen(job.ledger, orphan, shard, batch_id, owner=job.owner, now=job.clock.now())
    again = shard["n_requests"] - back
    asked = f"; {again:,} of its {shard['n_requests']:,} requests were sent again meanwhile" if again else ""
    watch.tell(
        job,
        "late_batch",
        shard["id"],
        f"batch {batch_id} was made for shard {shard['id']} after that had been given up{asked}. It is canceled; what "
        "it answered before is collected, and charged",
    )
    _cancel(job, {**orphan, "state": "reopened", "batch_id": batch_id}, shard_book.row(job.ledger, shard["id"]))


def _cancel(job: Job, orphan: OrphanRow, shard: ShardRow) -> None:
    """Call the batch of a shard that is open again back, unless it has ended already."""
    now = job.clock.now()
    if shard["state"] == ShardState.SUBMITTED:
        try:
            _batches(job, shard).cancel(batch_id_of(shard))  # it may be called twice, so no lease is waited for
        except (Unreachable, BatchNotFound) as fault:  # a batch that was just made may not be known everywhere yet
            log.warning("batch %s is not canceled yet: %s", shard["batch_id"], type(fault).__name__)
            book.mark(job.ledger, orphan, "reopened", now=now)
            return
        until, owner = lease_end(job, job.lane_of(shard), now), shard["owner"]
        gone = owner if owner is not None and job.is_gone(owner) else None
        if not shard_book.take(job.ledger, shard, owner=job.owner, now=now, lease_until=until, gone=gone):
            book.mark(job.ledger, orphan, "reopened", now=now)  # somebody looks at it just now
            return
        origin, target = ShardState.SUBMITTED, ShardState.CANCELING
        shard_book.move(job.ledger, shard["id"], origin, target, owner=job.owner, now=now, reason="late")
        shard = {**shard, "state": target.value}
    ended = shard["state"] != ShardState.CANCELING
    book.mark(job.ledger, orphan, "uncanceled" if ended else "canceled", now=now)


def _batches(job: Job, shard: ShardRow) -> BatchExecutor:
    executor = job.lane_of(shard).executor
    assert isinstance(executor, BatchExecutor)
    return executor


def uncertain_why(job: Job, shard: ShardRow) -> str:
    """Say why a shard that was `creating` is uncertain: its owner (before us) is gone, or has only fallen silent."""
    owner = shard["owner"]
    return "owner_gone" if owner in (None, job.owner) or job.is_gone(owner) else SILENT
