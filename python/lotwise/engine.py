"""The straight line of a run: enroll what the frame asks for, then send, wait, collect and judge until nothing is open.

Read `enroll` and `drive` in order and you have followed a row from its rendered prompt to its final state. States move
in the reconciler only; this module decides what to cut and send, how long to sleep, and when to stop.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import polars as pl

from lotwise import collect, deadline, lifecycle, lots, orphans, reconcile, watch
from lotwise.bound import allowed_tokens, sized, upper_bound
from lotwise.errors import BudgetTooSmall, ClaimLost, RunEnded
from lotwise.job import Job, Snapshot
from lotwise.key import keys as content_keys
from lotwise.ledger import requests as request_book
from lotwise.ledger import results as result_book
from lotwise.ledger import retries
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import OrphanRow, ShardRow
from lotwise.ledger.shards import Intent, lease
from lotwise.ledger.store import Ledger
from lotwise.ledger.waiting import Waiting
from lotwise.lifecycle import Policy, RequestState, ShardState
from lotwise.plan import Pack, pack

log = logging.getLogger("lotwise")

ENROLL_ROWS = 50_000
"""Rows rendered, hashed and written down at a time: bounds memory and the length of a transaction."""

JUDGE_ROWS = 25_000
"""Stored answers judged again at a time."""

DEFAULT_WINDOW = 8
"""Shards in flight when neither the user nor the provider says how many."""


@dataclass(frozen=True, kw_only=True)
class Enrolled:
    """What a frame asks for.

    Attributes
    ----------
    keys
        Each row's key, in the frame's order; null for a skipped row.
    manifest
        The distinct keys with their `multiplicity`.
    n_new
        Requests that the ledger did not have.
    """

    keys: pl.Series
    manifest: pl.DataFrame
    n_new: int

    @property
    def n_skipped(self) -> int:
        """Rows that ask for nothing."""
        return int(self.keys.null_count())


def enroll(ledger: Ledger, spec_digest: str, contents: Iterable[pl.Series], now: datetime) -> Enrolled:
    """Key every rendered row and write down the requests that the ledger lacks. Nothing is sent.

    `contents` yields the frame's rendered rows in order, in slices; null is a skipped row.
    """
    keyed: list[pl.Series] = []
    n_new = 0
    for content in contents:
        keys = content_keys(spec_digest, content)
        keyed.append(keys)
        requests = (
            pl.DataFrame({"key": keys, "content": content})
            .drop_nulls("key")
            .unique("key", keep="first", maintain_order=True)
        )
        n_new += request_book.enroll(ledger, spec_digest, requests, now)
    keys = pl.concat(keyed) if keyed else pl.Series("key", [], dtype=pl.String)
    return Enrolled(keys=keys, manifest=manifest_of(keys), n_new=n_new)


def manifest_of(keys: pl.Series) -> pl.DataFrame:
    """Return the distinct keys of a frame's rows with how many rows share each, in order of the key."""
    return (
        pl.DataFrame({"key": keys}).drop_nulls().group_by("key").agg(multiplicity=pl.len().cast(pl.Int32)).sort("key")
    )


def job_digest(spec_digest: str, manifest: pl.DataFrame, *, reuse: str = "exact") -> str:
    """Name the work itself, 40 hex: the same spec over the same set of requests, whoever calls for it and when.

    Work that also takes answers to compatible requests is another: it is done when the first is not.
    """
    digest = hashlib.sha256(spec_digest.encode())
    if reuse == "compatible":
        digest.update(reuse.encode())
    for part in manifest["key"].to_list():
        digest.update(part.encode())
    return digest.hexdigest()[:40]


def new_run_id() -> str:
    """Make a run's identity: random, so that no two runs ever share one."""
    return secrets.token_hex(8)


# --- driving ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is left to do after a pass.

    Attributes
    ----------
    n_open
        Requests that are pending or submitted.
    n_waiting
        Shards that are open, and batches that are to be canceled.
    pause_s
        Seconds until something is due.
    counts
        Distinct requests and rows by state.
    phases
        Open shards by what their provider, or we, call their state.
    orphans
        Batches that came or may come late for a shard that was given up, and are not dealt with.
    waiting
        Requests that are asked again later, by what went wrong; empty once sending is halted.
    """

    n_open: int
    n_waiting: int
    orphans: Sequence[OrphanRow]
    pause_s: float
    counts: Mapping[str, tuple[int, int]]
    phases: Mapping[str, int]
    waiting: Sequence[Waiting] = ()


def drive(job: Job, *, wait: bool = True) -> Outlook:
    """Do a run's work until each request is final, or sending is halted and nothing is in flight any more.

    Without `wait` one pass is made: what can be collected is collected, what can be sent is sent.
    """
    job.started_at = job.started_at or job.clock.now()
    judge_stored(job)
    n_open = job.n_requests if job.deadline is None else look_ahead(job).n_open
    while True:
        watch.look_again(job)
        for shard in shard_book.open_of(job.ledger, job.run_id, job.job_id):
            advance(job, shard)  # adopt, poll, fetch, record, validate, settle
        if job.halted is None:
            deadline.keep(job, n_open)
            send(job)  # cut, reserve, write the intent, creating, create
        outlook = look_ahead(job)
        if orphans.pursue(job, outlook.orphans):  # batches that came late for shards that were given up: find, cancel
            outlook = look_ahead(job)
        n_open = outlook.n_open
        tell(job, outlook)
        at_rest = outlook.n_waiting == 0 or (n_open == 0 and deadline.asks_twice(job))
        finished = at_rest and (n_open == 0 or job.halted is not None)
        if finished:
            close_lots(job, outlook)
            end(job)
        if finished or not wait:
            return outlook
        if outlook.pause_s > 0:
            job.clock.sleep(outlook.pause_s)


def cancel(job: Job) -> None:
    """End a run as canceled: nothing more is sent for it, and its open batches are canceled."""
    run_book.end(job.ledger, job.run_id, "canceled", "canceled", job.clock.now())
    job.halt("canceled")
    if job.lane.streams:
        return
    for shard in shard_book.open_of(job.ledger, job.run_id, job.job_id):
        if shard["run"] == job.run_id:
            reconcile.cancel(job, shard)


def advance(job: Job, shard: ShardRow) -> None:
    """Take one step with one shard; losing a race for it is no fault, the next pass sees what the winner did."""
    try:
        reconcile.step(job, shard)
    except ClaimLost as lost:
        log.info("shard %s: %s", shard["id"], lost)


def judge_stored(job: Job) -> None:
    """Judge the stored answers to this run's requests that its validator has not seen yet. Costs nothing.

    An answer that no validator judged before is fresh: if it is invalid its retry is due. One that was judged before
    and that a changed validator rejects is invalid, and is not bought again.
    """
    if job.validator is None:
        return
    while True:
        held = result_book.unjudged(job.ledger, job.run_id, job.validator_digest, JUDGE_ROWS)
        if held.is_empty():
            return
        judged = collect.judge(job, collect.reread(job, held))
        fresh = judged.filter(~pl.col("judged_before") & ~pl.col("ok")).unique("key", keep="any")
        moves = lifecycle.decide(
            fresh.with_columns(
                faults=pl.lit(0, pl.Int32),
                resends=pl.lit(0, pl.Int32),
                tried_variant=pl.lit(None, pl.String),
                max_tokens=pl.lit(job.spec.max_tokens),
                retryable=~pl.col("golden"),
            ),
            job.policy,
        ).filter(to_state=RequestState.PENDING.value)
        most = job.policy.max_attempts
        result_book.judge_again(job.ledger, job.validator_digest, judged, moves, max_attempts=most)


# --- sending ------------------------------------------------------------------------------------------------------


def send(job: Job) -> None:
    """Send what is due, one shard after the other, while the gate is open and window and budget have room."""
    if not watch.keep_gate(job):
        judge_stored(job)  # the canary's answers, which another process recorded
        return
    room = window(job)
    job.fits_from = None
    while job.halted is None and room > 0:
        planned = next_shard(job)
        watch.look_again(job)
        if planned is None or job.halted is not None:
            return
        try:
            shard = intend(job, watch.with_riders(job, planned))
            if shard is None:
                return
            reconcile.submit(job, shard)
            if job.lane.streams:
                collect.collect(job, {**shard, "state": ShardState.SUBMITTED.value})
            else:
                room -= 1
        except RunEnded as ended:
            job.halt(ended.reason)
        except ClaimLost as lost:
            log.info("the plan is made anew: %s", lost)
            job.queue.clear()


def window(job: Job) -> int:
    """Return how many more shards may be in flight. A stream has one at a time, and answers it before the next."""
    if job.lane.streams:
        return 1
    most = min(job.options.window or DEFAULT_WINDOW, job.lane.executor.limits.max_in_flight or sys.maxsize)
    return most - len(shard_book.open_of(job.ledger, job.run_id, job.job_id))


def next_shard(job: Job) -> pl.DataFrame | None:
    """Return the next planned shard; cuts anew when the plan is used up, and is None when nothing is due."""
    if not job.queue:
        now = job.clock.now()
        pending = watch.unlocked(job, request_book.pending(job.ledger, job.run_id))
        is_due = deadline.is_due(job, now)
        due = may_be_sent(job, pending.filter(is_due))
        if due.is_empty():
            job.fits_from = pending.filter(~is_due).select(pl.col("due_at").min()).item()
            return None
        cut = cut_shards(job, due)
        if cut.oversize.height:
            request_book.give_up(job.ledger, cut.oversize["key"], RequestState.DEAD_LETTERED.value, "oversize")
        job.queue.extend(cut.shards)
    return job.queue.pop(0) if job.queue else None


def may_be_sent(job: Job, due: pl.DataFrame) -> pl.DataFrame:
    """Return what is due without the changed retries that would cost more than they may (promise 4).

    Those wait while the first answers, whose cost is what they are measured by, are still coming in; then they end.
    """
    changed = due.filter(pl.col("variant").is_not_null() & ~pl.col("golden"))["key"]
    if changed.is_empty() or retry_cap(job) is None:
        return due
    chosen = retries.choose(job.ledger, job.run_id, changed, job.policy)
    if chosen.never.len():
        request_book.give_up(job.ledger, chosen.never, RequestState.DEAD_LETTERED.value, lifecycle.RETRY_SPEND)
        watch.tell(
            job,
            lifecycle.RETRY_SPEND,
            None,
            f"asking again what was answered badly has cost what it may, {job.policy.retry_spend:.0%} of the first "
            f"answers; the rest is dead-lettered, until a retry of '{lifecycle.RETRY_SPEND}'",
        )
    kept = pl.concat([chosen.later, chosen.never])
    return due.filter(~pl.col("key").is_in(kept.implode()))


def retry_cap(job: Job) -> Policy | None:
    """Return by what changed retries are bounded; None where they cost nothing, or no cap is wanted."""
    return job.policy if job.policy.retry_spend is not None and job.lane.executor.paid else None


def cut_shards(job: Job, due: pl.DataFrame) -> Pack:
    """Cut pending requests into shards under the provider's limits and the user's."""
    return pack(
        sized(job, job.lane, due),
        watch.room(job),
        shard_rows=deadline.shard_rows(job),
        shard_bytes=job.options.shard_bytes,
    )


def intend(job: Job, planned: pl.DataFrame) -> ShardRow | None:
    """Write a shard's intent, cut to what the budget holds. None when not one request fits now."""
    now = job.clock.now()
    shard = secrets.token_hex(8)
    while True:
        bound = upper_bound(job, job.lane, planned)
        intent = Intent(
            shard=shard,
            run=job.run_id,
            job=job.job_id,
            spec=job.spec_digest,
            provider=job.spec.provider,
            tier=job.lane.tier,
            account=job.lane.executor.account(),
            purpose=job.purpose.value,
            owner=job.owner,
            lease_until=lease(now, job.options.lease_s),
            bytes=int(planned["bytes"].sum()),
            keys=planned["key"],
            variants=planned["variant"],
            golden=planned.filter("golden")["key"],
            reserved_usd=bound,
            in_flight=job.lane.in_flight,
            budget_usd=job.budget_usd,
            retry_cap=retry_cap(job) if planned["variant"].is_not_null().any() else None,
        )
        try:
            shard_book.intend(job.ledger, intent, now)
        except BudgetTooSmall as full:
            wanted = planned if watch.undecided(job) else planned.filter(~pl.col("golden"))  # riders give way
            planned = fitting(job, wanted, full.budget_usd - full.committed_usd)
            if planned.is_empty() and full.n_open == 0:
                planned = last_fitting(job, full.budget_usd - full.committed_usd)
            if planned.is_empty():
                job.queue.clear()
                return None
        else:
            return shard_book.row(job.ledger, shard)


def fitting(job: Job, planned: pl.DataFrame, room_usd: Decimal) -> pl.DataFrame:
    """Return the requests that fit together into what is left of the budget, the cheapest first."""
    prices = job.lane.prices
    if prices is None:
        return planned.clear()
    # The bound is linear in both, and a retry with more output may be dearer than a longer request.
    input_usd, output_usd = float(prices.dearest_input_mtok), float(prices.dearest_output_mtok)
    each = (
        planned.with_columns(_out=allowed_tokens(job, planned))
        .with_columns(_usd=pl.col("bytes") * input_usd + pl.col("_out") * output_usd)
        .sort("_usd", "key")
    )
    low, high = 0, each.height
    while low < high:
        middle = (low + high + 1) // 2
        bound = prices.upper_bound(
            input_bytes=int(each["bytes"].head(middle).sum()),
            output_tokens=int(each["_out"].head(middle).sum()),
            requests=middle,
        )
        low, high = (middle, high) if bound <= room_usd else (low, middle - 1)
    return each.head(low).drop("_out", "_usd")


def last_fitting(job: Job, room_usd: Decimal) -> pl.DataFrame:
    """Return what fits of all that is due, when no settlement can make more room.

    Where only what is due later fits, that is waited for; where nothing fits at all, the budget is reached.
    """
    job.queue.clear()
    pending = sized(job, job.lane, watch.unlocked(job, request_book.pending(job.ledger, job.run_id)))
    is_due = deadline.is_due(job, job.clock.now())
    fits = fitting(job, may_be_sent(job, pending.filter(is_due)), room_usd)
    if not fits.is_empty():
        return watch.with_riders(job, cut_shards(job, fits).shards[0])
    later = fitting(job, pending.filter(~is_due), room_usd)
    if later.is_empty():
        job.halt("budget")
    else:
        job.fits_from = later.select(pl.col("due_at").min()).item()
    return fits


# --- looking ahead ------------------------------------------------------------------------------------------------


def look_ahead(job: Job) -> Outlook:
    """Return what is open, and how long nothing is due."""
    now = job.clock.now()
    seen = run_book.look(job.ledger, job.run_id, job.job_id, job.validator_digest, now)
    counts, shards = seen.counts, seen.shards  # a shard may hold no request any more and still be unsettled
    collect.add_up(job, counts)
    n_open = sum(counts.get(state, (0, 0))[0] for state in ("pending", "submitted"))
    late = orphans.holding(seen.orphans)
    moments = [reconcile.next_moment(job, shard, now) for shard in shards]
    moments += [orphans.next_look(orphan) for orphan in late]
    if n_open and job.halted is None:
        n_due, later = seen.n_due, seen.next_due_at
        if watch.locked(job) or job.turned:
            pending = watch.unlocked(job, request_book.pending(job.ledger, job.run_id))
            waiting = pending.filter(~deadline.is_due(job, now))["due_at"]
            n_due, later = pending.height - waiting.len(), waiting.min()  # type: ignore[assignment]
        if n_due and not shards:
            # With shards open, what is due and was not sent waits for one of them to end; and the budget may be kept
            # for a batch that can still come late.
            kept = seen.orphans if job.budget_usd is not None and job.fits_from is None else ()
            orphans.refuse_hopeless(job, kept)
            moments.append(job.fits_from or min((orphans.next_look(orphan) for orphan in kept), default=now))
        if later is not None:
            moments.append(later)
        if (turn := deadline.next_moment(job, n_open)) is not None:
            moments.append(turn)
        if watch.undecided(job) and not moments:
            moments.append(now)  # the canary is answered
    pause = min(((moment - now).total_seconds() for moment in moments), default=0.0)
    phases = Counter(shard["provider_state"] or shard["state"] for shard in shards)
    return Outlook(
        n_open=n_open,
        n_waiting=len(shards) + len(late),
        orphans=seen.orphans,
        pause_s=max(pause, 0.0),
        counts=counts,
        phases=phases,
        waiting=deadline.waits(job, seen.waiting) if job.halted is None else (),
    )


def tell(job: Job, outlook: Outlook, note: str = "") -> None:
    """Tell whoever watches where the run stands."""
    now = job.clock.now()
    began = job.started_at or now
    waiting = outlook.waiting
    job.tell(
        Snapshot(
            counts={state: n for state, (n, _) in outlook.counts.items()},
            rows={state: rows for state, (_, rows) in outlook.counts.items()},
            phases=outlook.phases,
            elapsed_s=(now - began).total_seconds(),
            note=note,
            waiting={one.reason: one.n for one in waiting},
            next_try_s=min(((one.next_due_at - now).total_seconds() for one in waiting), default=None),
        )
    )


def close_lots(job: Job, outlook: Outlook) -> None:
    """Plan and draw the lots whose requests are all final, if answers could be judged here."""
    if job.lots is not None and job.validator is not None:
        valid = None if outlook.n_open else outlook.counts.get("succeeded", (0, 0))[0]
        lots.close(job.ledger, job.lots, job.clock.now(), valid=valid)


def end(job: Job) -> None:
    """Write down how the run ended."""
    if job.halted is None:
        if not (unasked := watch.left_over(job)).is_empty():
            request_book.give_up(job.ledger, unasked, RequestState.DEAD_LETTERED.value, "run_ended")
        run_book.end_job(job.ledger, job.job_id, job.clock.now())
    elif job.halted != "canceled":
        run_book.end(job.ledger, job.run_id, "stopped", job.halted, job.clock.now())
