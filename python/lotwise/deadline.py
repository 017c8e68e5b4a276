"""A deadline: when batches will not make it, what is left is asked interactively, within the budget.

At the turn nothing more is sent in batches, and the open ones are canceled. A request goes interactively only after its
batch has ended and was collected, so none is paid for twice; where that is late, its row waits. Only
``Options(deadline_policy="pay_twice")`` asks what a batch still holds without waiting for its end, under a reservation
of its own beside the batch's.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import polars as pl

from lotwise import reconcile, watch
from lotwise.bound import sized, upper_bound
from lotwise.errors import BatchNotFound, Unreachable
from lotwise.job import Job
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.waiting import Waiting
from lotwise.lifecycle import ShardState
from lotwise.request import Code

log = logging.getLogger("lotwise")

CANCEL_S = 600.0
"""Seconds that a provider may take to cancel a batch: OpenAI's documentation says up to ten minutes."""

ROWS_PER_S = 10.0
"""Requests a second that an interactive endpoint is trusted with when the turn is planned; most do better."""

SHARD_ROWS = 1_000
"""Requests a shard after the turn: batches that end meanwhile are only seen between two shards."""

WHY = "deadline"
"""Why an attempt is allowed while a batch may still answer the same request."""

RETRY_S = 5.0
"""Seconds between attempts to cancel where the provider was not reached."""

_GIVEN_BACK = (Code.CANCELED.value, Code.EXPIRED.value)
_AT_ONCE = tuple(f"not_billed:{code}" for code in _GIVEN_BACK)


def keep(job: Job, n_open: int) -> None:
    """Turn when it is time, and call back what batches still hold.

    `n_open` is how many of the run's requests are not final. Costs one call to the provider an open batch.
    """
    if job.deadline is None or not n_open or (job.lane.streams and not job.turned):
        return
    now = job.clock.now()
    if not job.turned:
        if now < turns_at(job, job.deadline, n_open):
            return
        _turn(job, n_open)
    batches = [
        shard for shard in shard_book.open_of(job.ledger, job.run_id, job.job_id) if not job.lane_of(shard).streams
    ]
    _call_back(job, batches)
    if job.options.deadline_policy == "pay_twice" and now >= last_call(job, job.deadline, n_open):
        _ask_twice(job, batches)


def turns_at(job: Job, deadline: datetime, n_open: int) -> datetime:
    """Return when the work turns: early enough to cancel what is open and ask so many requests interactively."""
    return deadline - timedelta(seconds=_reserve_s(job, n_open))


def last_call(job: Job, deadline: datetime, n_open: int) -> datetime:
    """Return when requests must be asked to be in time, whether or not their batches have ended."""
    return deadline - timedelta(seconds=max(_reserve_s(job, n_open) - CANCEL_S, _reserve_s(job, n_open) / 2))


def next_moment(job: Job, n_open: int) -> datetime | None:
    """Return when `keep` has something to do that no batch's next look brings about; None for never."""
    if job.deadline is None or not n_open or job.halted is not None or (job.lane.streams and not job.turned):
        return None
    now = job.clock.now()
    if not job.turned:
        return turns_at(job, job.deadline, n_open)
    if job.unreached:
        return now + timedelta(seconds=RETRY_S)
    twice_at = last_call(job, job.deadline, n_open)
    return twice_at if job.options.deadline_policy == "pay_twice" and now < twice_at else None


def is_due(job: Job, now: datetime) -> pl.Expr:
    """Say of pending requests whether they may be sent: after the turn, what a batch gave back need not wait."""
    due = pl.col("due_at").is_null() | (pl.col("due_at") <= now)
    return due | pl.col("why").is_in(_AT_ONCE).fill_null(False) if job.turned else due


def waits(job: Job, waiting: Sequence[Waiting]) -> tuple[Waiting, ...]:
    """Return what of it has to wait indeed: after the turn, what a batch gave back need not."""
    return tuple(one for one in waiting if not (job.turned and one.reason in _GIVEN_BACK))


def asks_twice(job: Job) -> bool:
    """Say whether a batch may stay open behind this work: what it held is answered, and its end is not awaited."""
    return job.turned and job.options.deadline_policy == "pay_twice"


def shard_rows(job: Job) -> int | None:
    """Return how many requests a shard may hold at most; None for the provider's limit."""
    return min(job.options.shard_rows or SHARD_ROWS, SHARD_ROWS) if job.turned else job.options.shard_rows


def _reserve_s(job: Job, n_open: int) -> float:
    said = job.options.deadline_reserve_s
    return CANCEL_S + n_open / ROWS_PER_S if said is None else said


def _turn(job: Job, n_open: int) -> None:
    """Send what is left interactively from now on."""
    job.lane, job.turned = job.lane_at("interactive"), True
    job.queue.clear()
    watch.tell(
        job,
        "deadline",
        None,
        f"deadline {job.deadline:%Y-%m-%d %H:%M:%S} UTC: {n_open:,} requests are left, and go interactively "
        "once their batches have ended",
    )


def _call_back(job: Job, batches: list[ShardRow]) -> None:
    """Cancel the open batches, as far as what they hold can be paid for interactively."""
    room = _room_usd(job)
    job.unreached = False
    for shard in batches:
        if shard["state"] not in (ShardState.INTENDED, ShardState.SUBMITTED):
            continue  # on its way already, or it is not known yet whether there is a batch
        more = _more_usd(job, shard) if room is not None else Decimal(0)
        if room is not None and (more is None or more > room):
            watch.tell(
                job,
                "deadline",
                shard["id"],
                f"deadline: shard {shard['id']} stays a batch, the budget does not hold its requests interactively",
            )
            continue
        try:
            reconcile.cancel(job, shard)
        except (Unreachable, BatchNotFound) as fault:
            log.info("shard %s is not canceled yet: %s", shard["id"], type(fault).__name__)
            job.unreached = True
            shard_book.drop(job.ledger, shard["id"], owner=job.owner)
            continue
        if room is not None and more is not None:
            room -= max(more, Decimal(0))


def _room_usd(job: Job) -> Decimal | None:
    """Return what the budget holds beside all that is spent and reserved; None without a budget."""
    return None if job.budget_usd is None else job.budget_usd - shard_book.committed_usd(job.ledger, job.job_id)


def _more_usd(job: Job, shard: ShardRow) -> Decimal | None:
    """Return what asking a batch's requests interactively can cost beyond what is reserved for it.

    Each of them is charged by the batch or interactively, never by both, and the batch is the cheaper.
    """
    bound = upper_bound(job, job.lane, sized(job, job.lane, shard_book.live(job.ledger, shard["id"])))
    return None if bound is None else bound - (shard["reserved_usd"] or Decimal(0))


def _ask_twice(job: Job, batches: list[ShardRow]) -> None:
    """Give back what batches hold that did not end in time. Their reservations stand until they end."""
    for shard in batches:
        if shard["state"] not in (ShardState.SUBMITTED, ShardState.CANCELING, ShardState.UNCERTAIN):
            continue
        count = shard_book.ask_twice(job.ledger, shard["id"], WHY)
        if count:
            watch.tell(
                job,
                "deadline",
                shard["id"],
                f"deadline: {count:,} requests of shard {shard['id']} are asked interactively while its batch has not "
                "ended, and may be paid for twice",
            )
