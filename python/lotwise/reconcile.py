"""The only code that moves a shard or a request: one step with one open shard, read from top to bottom.

`step` observes (who holds the shard, what state it is in), decides (`lifecycle.next_step`, pure) and acts. Each action
is written so that a kill at any line leaves a state from which the next process goes on: the ledger says what was
certainly done, the provider's list says what may have been, and results are matched by key alone.
"""

from __future__ import annotations

import logging
import zlib
from datetime import datetime, timedelta

from lotwise import lifecycle, orphans
from lotwise.adopt import find
from lotwise.collect import collect
from lotwise.errors import (
    BatchNotFound,
    ClaimLost,
    CreateRejected,
    CreateUncertain,
    Unreachable,
)
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.job import Job
from lotwise.lease import kept
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.shards import lease
from lotwise.lifecycle import ShardState, Standing, Step
from lotwise.request import Observation, Phase, Shard
from lotwise.shards import as_sent, batch_id_of, lease_end, refuse_other_account, requests_of

log = logging.getLogger("lotwise")

CANCELING_S = 60.0
"""The longest pause between looks at a batch that is being canceled, in seconds."""

OTHERS = timedelta(seconds=2)
"""How soon to see whether another process has finished with a shard that this run waits for."""


def step(job: Job, shard: ShardRow) -> None:
    """Do what is next with one open shard, if it is ours to do."""
    now = job.clock.now()
    match lifecycle.next_step(_standing(job, shard, now)):
        case Step.WAIT:
            return
        case _ if not _take(job, shard, now):
            return
        case Step.SUBMIT if job.halted is not None or job.gate == "failed":  # its upload was to be tried again
            _release(job, shard, ShardState.LOST, "stopped")
        case Step.SUBMIT:
            submit(job, shard)
        case Step.RELEASE:
            _release(job, shard, ShardState.LOST, "never_sent")
        case Step.RESOLVE:
            _resolve(job, shard)
        case Step.POLL:
            _poll(job, shard)
        case Step.COLLECT:
            collect(job, shard)


# --- observing ----------------------------------------------------------------------------------------------------


def _standing(job: Job, shard: ShardRow, now: datetime) -> Standing:
    until, owner = shard["lease_until"], shard["owner"]
    mine = owner == job.owner
    return Standing(
        state=ShardState(shard["state"]),
        mine=mine,
        leased=not mine and until is not None and until > now and not job.is_gone(owner),
        stream=job.lane_of(shard).streams,
        due=next_look(job, shard) <= now,
    )


def next_look(job: Job, shard: ShardRow) -> datetime:
    """Return when a submitted or uncertain shard is to be looked at again."""
    since = shard["submitted_at"] or shard["intended_at"]
    last = shard["polled_at"]
    if last is None:
        return since
    if job.poll_s is not None:
        return last + timedelta(seconds=job.poll_s)
    age = (last - since).total_seconds()
    # The same each time that it is asked, or a look that was due might not be any more; another one for each process.
    jitter = zlib.crc32(f"{job.owner}/{shard['id']}/{last}".encode()) / 2**32
    pause_s = lifecycle.poll_pause(age, jitter)
    # Somebody waits for the end of a batch that is being canceled, however old it is.
    return last + timedelta(seconds=min(pause_s, CANCELING_S) if shard["state"] == ShardState.CANCELING else pause_s)


def next_moment(job: Job, shard: ShardRow, now: datetime) -> datetime:
    """Return when there may be something to do with an open shard: sooner than its lease where another works on it."""
    if not _standing(job, shard, now).leased:
        return next_look(job, shard)
    until = shard["lease_until"] or now
    return min(until, now + OTHERS)


def _take(job: Job, shard: ShardRow, now: datetime) -> bool:
    owner = shard["owner"]
    gone = owner if owner is not None and job.is_gone(owner) else None
    return shard_book.take(
        job.ledger, shard, owner=job.owner, now=now, lease_until=lease_end(job, job.lane_of(shard), now), gone=gone
    )


# --- sending ------------------------------------------------------------------------------------------------------


def submit(job: Job, shard: ShardRow) -> None:
    """Carry an intent that is ours to the provider: encode, say `creating`, call once, write the id down."""
    lane, ledger = job.lane_of(shard), job.ledger
    executor = lane.executor
    about = as_sent(shard)
    if isinstance(executor, StreamExecutor):
        for origin, target in (
            (ShardState.INTENDED, ShardState.CREATING),
            (ShardState.CREATING, ShardState.SUBMITTED),
        ):
            now = job.clock.now()
            shard_book.move(
                ledger, about.id, origin, target, owner=job.owner, now=now, lease_until=lease_end(job, lane, now)
            )
        return
    try:
        with kept(job, shard):
            prepared = executor.prepare(about, job.spec, requests_of(job, shard))
    except CreateRejected as refusal:
        _rejected(job, shard, refusal, ShardState.INTENDED)
        return
    except Unreachable as fault:
        log.info("shard %s is not sent yet: %s", about.id, fault.code)
        _pause(job, shard, fault.code)
        return
    now = job.clock.now()
    shard_book.move(
        ledger,
        about.id,
        ShardState.INTENDED,
        ShardState.CREATING,
        owner=job.owner,
        now=now,
        lease_until=lease(now, job.options.create_timeout_s + job.options.lease_s),
    )
    if job.clock.now() - now > timedelta(seconds=job.options.create_timeout_s):
        # This process was stopped meanwhile. A call begun so late could arrive after others have proven that none did.
        _release(job, {**shard, "state": ShardState.CREATING.value}, ShardState.LOST, "stopped_before_create")
        return
    try:
        batch_id = executor.create(about, job.spec, prepared)
    except CreateRejected as refusal:
        _rejected(job, shard, refusal, ShardState.CREATING)
    except CreateUncertain as fault:
        log.warning("shard %s may have been taken: %s", about.id, fault.code)
        _called(job, about, ShardState.UNCERTAIN, reason=fault.code)
    else:
        _called(job, about, ShardState.SUBMITTED, batch_id=batch_id)


def _called(
    job: Job, about: Shard, target: ShardState, *, batch_id: str | None = None, reason: str | None = None
) -> None:
    """Write down what the create call came to; if the shard is somebody else's meanwhile, that there was one."""
    try:
        shard_book.move(
            job.ledger,
            about.id,
            ShardState.CREATING,
            target,
            owner=job.owner,
            now=job.clock.now(),
            batch_id=batch_id,
            called_at=None if batch_id is not None else job.clock.now(),
            reason=reason,
        )
    except ClaimLost:
        log.warning("shard %s was taken over while its batch was made", about.id)
        orphans.note(job, about.id, batch_id)


def _rejected(job: Job, shard: ShardRow, refusal: CreateRejected, origin: ShardState) -> None:
    now = job.clock.now()
    wait = refusal.wait_s
    if wait is None and not refusal.blocked and not refusal.input_fault:
        wait = job.policy.backoff_s
    if refusal.blocked:
        job.halt(f"account_blocked:{refusal.code}")
    elif refusal.wait_s is None:
        job.halt(f"rejected:{refusal.code}")
    # Before `creating` nothing was begun, so there was nothing to reject.
    target = ShardState.LOST if origin is ShardState.INTENDED else ShardState.REJECTED
    shard_book.release(
        job.ledger,
        shard["id"],
        origin,
        target,
        owner=job.owner,
        now=now,
        reason=refusal.code,
        due_at=None if wait is None else now + timedelta(seconds=wait),
    )


def _pause(job: Job, shard: ShardRow, code: str) -> None:
    """Keep an intent whose upload did not get through; it is tried again at the next pass."""
    shard_book.note_poll(job.ledger, shard["id"], code, owner=job.owner, now=job.clock.now(), keeps_lease=True)


# --- after a crash ------------------------------------------------------------------------------------------------


def _release(
    job: Job, shard: ShardRow, target: ShardState, reason: str, *, watch_until: datetime | None = None
) -> None:
    count = shard_book.release(
        job.ledger,
        shard["id"],
        ShardState(shard["state"]),
        target,
        owner=job.owner,
        now=job.clock.now(),
        reason=reason,
        due_at=None,
        watch_until=watch_until,
    )
    log.info("shard %s was never sent (%s); its %d requests are pending again", shard["id"], reason, count)


def _resolve(job: Job, shard: ShardRow) -> None:
    """Find out whether a create that was begun arrived: adopt the batch, prove that there is none, or wait."""
    executor, ledger, now = job.lane_of(shard).executor, job.ledger, job.clock.now()
    if not isinstance(executor, BatchExecutor):
        # A stream that died in `creating` had asked for nothing yet.
        _release(job, shard, ShardState.LOST, "never_sent")
        return
    if shard["state"] == ShardState.CREATING:
        why = orphans.uncertain_why(job, shard)
        shard_book.move(
            ledger, shard["id"], ShardState.CREATING, ShardState.UNCERTAIN, owner=job.owner, now=now, reason=why
        )
        shard = {**shard, "state": ShardState.UNCERTAIN.value, "reason": why}
    margin = timedelta(seconds=job.options.absence_margin_s)
    since = shard["intended_at"] - margin
    try:
        others = shard_book.batches(ledger, shard["id"])
        listed = [batch for batch in executor.list(since=since) if batch.batch_id not in others]
        found, open_question = find(executor, shard, listed, margin)
    except Unreachable as fault:
        shard_book.note_poll(ledger, shard["id"], fault.code, owner=job.owner, now=now)
        return
    if found is not None:
        log.info("shard %s was taken by the provider as %s", shard["id"], found.batch_id)
        shard_book.move(
            ledger,
            shard["id"],
            ShardState.UNCERTAIN,
            ShardState.SUBMITTED,
            owner=job.owner,
            now=job.clock.now(),
            batch_id=found.batch_id,
            reason="adopted",
        )
        return
    refuse_other_account(job, shard)  # what another account's list lacks proves nothing
    unsent = not open_question and lifecycle.proven_unsent(
        creating_at=shard["creating_at"] or shard["intended_at"],
        called_at=shard["called_at"],
        listed_at=now,
        create_timeout_s=job.options.create_timeout_s,
        margin_s=job.options.absence_margin_s,
        listed_back_to=since,
        intended_at=shard["intended_at"],
    )
    if unsent:
        # An owner that only fell silent may still make its call.
        until = orphans.watch_until(job, now) if shard["reason"] == orphans.SILENT else None
        _release(job, shard, ShardState.LOST, "absent_from_list", watch_until=until)
        return
    shard_book.note_poll(ledger, shard["id"], "uncertain", owner=job.owner, now=now)


# --- waiting ------------------------------------------------------------------------------------------------------


def _poll(job: Job, shard: ShardRow) -> None:
    """Look at a batch once. An unknown state or an unreachable provider is asked again, whatever the counts say."""
    executor, ledger, now = job.lane_of(shard).executor, job.ledger, job.clock.now()
    assert isinstance(executor, BatchExecutor)
    try:
        seen = executor.poll(batch_id_of(shard))
    except Unreachable as fault:
        seen = Observation(phase=Phase.RUNNING, provider_state=f"unreachable:{fault.code}")
    except BatchNotFound:
        refuse_other_account(job, shard)
        age = now - (shard["submitted_at"] or shard["intended_at"])
        # One look is no proof, however long nobody has looked.
        given_up = shard["provider_state"] == "not_found" and age > timedelta(seconds=job.options.lost_after_s)
        seen = Observation(phase=Phase.ENDED if given_up else Phase.RUNNING, provider_state="not_found")
    state = ShardState(shard["state"])
    match seen.phase:
        case Phase.ENDED:
            shard_book.move(
                ledger,
                shard["id"],
                state,
                ShardState.ENDED,
                owner=job.owner,
                now=now,
                lease_until=lease_end(job, job.lane_of(shard), now),
                provider_state=seen.provider_state,
            )
            collect(job, {**shard, "state": ShardState.ENDED.value, "provider_state": seen.provider_state})
        case Phase.REJECTED:
            wait = job.policy.backoff_s if seen.wait else 0.0
            if not seen.wait:
                job.halt(f"rejected:{seen.reason}")
            shard_book.release(
                ledger,
                shard["id"],
                state,
                ShardState.REJECTED,
                owner=job.owner,
                now=now,
                reason=seen.reason or "rejected",
                due_at=now + timedelta(seconds=wait),
            )
        case _:
            shard_book.note_poll(ledger, shard["id"], seen.provider_state, owner=job.owner, now=now)


def cancel(job: Job, shard: ShardRow) -> None:
    """Ask the provider to cancel a shard that is in flight; a shard that never left is released at once.

    Whoever took it meanwhile goes on with it: a batch that was canceled is collected like any other.
    """
    try:
        _cancel(job, shard)
    except ClaimLost as lost:
        log.info("shard %s was taken over while it was canceled: %s", shard["id"], lost)


def _cancel(job: Job, shard: ShardRow) -> None:
    executor, now = job.lane_of(shard).executor, job.clock.now()
    if not _take(job, shard, now):
        return
    match ShardState(shard["state"]):
        case ShardState.INTENDED:
            _release(job, shard, ShardState.LOST, "canceled")
        case ShardState.SUBMITTED if isinstance(executor, BatchExecutor):
            executor.cancel(batch_id_of(shard))
            shard_book.move(
                job.ledger,
                shard["id"],
                ShardState.SUBMITTED,
                ShardState.CANCELING,
                owner=job.owner,
                now=now,
                reason="canceled",
            )
        case _:
            shard_book.drop(job.ledger, shard["id"], owner=job.owner)
