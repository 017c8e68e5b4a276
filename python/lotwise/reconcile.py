"""The only code that moves a shard or a request: one step with one open shard, read from top to bottom.

`step` observes (who holds the shard, what state it is in), decides (`lifecycle.next_step`, pure) and acts. Each action
is written so that a kill at any line leaves a state from which the next process goes on: the ledger says what was
certainly done, the provider's list says what may have been, and results are matched by key alone.
"""

from __future__ import annotations

import hashlib
import logging
import zlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from decimal import Decimal

import polars as pl

from lotwise import lifecycle, watch
from lotwise.bound import sized, upper_bound
from lotwise.clock import Clock
from lotwise.errors import (
    AccountMismatch,
    BatchNotFound,
    ClaimLost,
    CreateRejected,
    CreateUncertain,
    LedgerInconsistent,
    ResultsGone,
    Unreachable,
)
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.job import Job
from lotwise.ledger.store import ShardRow, lease
from lotwise.lifecycle import RequestState, ShardState, Standing, Step
from lotwise.request import BILLED, PERHAPS_BILLED, Code, Listed, Observation, Phase, Shard, custom_id

log = logging.getLogger("lotwise")

CHUNK = 25_000
"""Result lines a transaction, which keeps it well under a second."""

SUM_SHARE = 0.25
"""How much of a run may be collected between two sums over all of it. Each shard adds up by itself in any case, and
sums over a million requests after each of fifty shards would cost more than collecting them."""

CANCEL_PAUSES_S = (1.0, 5.0, 20.0, 60.0)
"""Seconds between attempts to cancel a batch that was made twice."""

OTHERS = timedelta(seconds=2)
"""How soon to see whether another process has finished with a shard that this run waits for."""

GATHER = timedelta(seconds=1)
"""How long answers of a local engine may wait to be written down together; a kill loses at most so much work."""


def step(job: Job, shard: ShardRow) -> None:
    """Do what is next with one open shard, if it is ours to do."""
    now = job.clock.now()
    match lifecycle.next_step(_standing(job, shard, now)):
        case Step.WAIT:
            return
        case _ if not _take(job, shard, now):
            return
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
        stream=job.streams,
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
    return last + timedelta(seconds=lifecycle.poll_pause(age, jitter))


def next_moment(job: Job, shard: ShardRow, now: datetime) -> datetime:
    """Return when there may be something to do with an open shard: sooner than its lease where another works on it."""
    if not _standing(job, shard, now).leased:
        return next_look(job, shard)
    until = shard["lease_until"] or now
    return min(until, now + OTHERS)


def _take(job: Job, shard: ShardRow, now: datetime) -> bool:
    owner = shard["owner"]
    gone = owner if owner is not None and job.is_gone(owner) else None
    return job.ledger.take(shard, owner=job.owner, now=now, lease_until=_lease(job, now), gone=gone)


def _lease(job: Job, now: datetime) -> datetime:
    """Return until when others leave a shard alone. One synchronous call may take longer than a lease, and its owner is
    heard of again only after it."""
    calling_s = job.options.create_timeout_s if job.streams and job.executor.paid else 0.0
    return lease(now, job.options.lease_s + calling_s)


# --- sending ------------------------------------------------------------------------------------------------------


def submit(job: Job, shard: ShardRow) -> None:
    """Carry an intent that is ours to the provider: encode, say `creating`, call once, write the id down."""
    executor, ledger = job.executor, job.ledger
    about = _about(shard)
    if isinstance(executor, StreamExecutor):
        for origin, target in (
            (ShardState.INTENDED, ShardState.CREATING),
            (ShardState.CREATING, ShardState.SUBMITTED),
        ):
            now = job.clock.now()
            ledger.move(about.id, origin, target, owner=job.owner, now=now, lease_until=_lease(job, now))
        return
    try:
        prepared = executor.prepare(about, job.spec, _requests(job, shard))
    except CreateRejected as refusal:
        _rejected(job, shard, refusal, ShardState.INTENDED)
        return
    except Unreachable as fault:
        log.info("shard %s is not sent yet: %s", about.id, fault.code)
        _pause(job, shard, fault.code)
        return
    now = job.clock.now()
    ledger.move(
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
        ledger.move(
            about.id,
            ShardState.CREATING,
            ShardState.UNCERTAIN,
            owner=job.owner,
            now=job.clock.now(),
            reason=fault.code,
        )
    else:
        _accepted(job, executor, about, batch_id)


def _accepted(job: Job, executor: BatchExecutor, about: Shard, batch_id: str) -> None:
    """Write the provider's id down; cancel the batch when the shard has become somebody else's meanwhile."""
    try:
        job.ledger.move(
            about.id,
            ShardState.CREATING,
            ShardState.SUBMITTED,
            owner=job.owner,
            now=job.clock.now(),
            batch_id=batch_id,
        )
    except ClaimLost:
        if job.ledger.shard(about.id)["batch_id"] == batch_id:
            return  # another process found this very batch in the list and adopted it
        log.warning("shard %s was taken over while its batch was made; the batch is canceled", about.id)
        _cancel_surely(job, executor, batch_id)


def _cancel_surely(job: Job, executor: BatchExecutor, batch_id: str) -> None:
    """Cancel a batch that nobody will collect, asking again for a while: what it answers would be paid for twice."""
    for pause_s in CANCEL_PAUSES_S:
        try:
            executor.cancel(batch_id)
        except (Unreachable, BatchNotFound) as fault:  # a batch that was just made may not be known everywhere yet
            log.warning("batch %s is not canceled yet: %s", batch_id, type(fault).__name__)
            job.clock.sleep(pause_s)
        else:
            return
    log.error("batch %s could not be canceled and may be charged: cancel it at the provider", batch_id)


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
    job.ledger.release(
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
    job.ledger.note_poll(shard["id"], code, owner="", now=job.clock.now())  # the lease stays ours


def _about(shard: ShardRow) -> Shard:
    return Shard(id=shard["id"], run_id=shard["run"], n_requests=shard["n_requests"], created_at=shard["intended_at"])


def _batch_id(shard: ShardRow) -> str:
    if shard["batch_id"] is None:
        raise LedgerInconsistent.of("a submitted shard has no batch id", shard=shard["id"])
    return shard["batch_id"]


def _requests(job: Job, shard: ShardRow, keys: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the frame of requests that an executor is handed, with the ids that the provider will see."""
    sent = job.ledger.shard_keys(shard["id"]) if keys is None else keys
    texts = job.ledger.contents(sent.select("key", "part", "variant"))
    return texts.select(
        "key",
        pl.concat_str(pl.lit(shard["id"] + "-"), "key").alias("custom_id"),
        "content",
        "variant",
    )


# --- after a crash ------------------------------------------------------------------------------------------------


def _release(job: Job, shard: ShardRow, target: ShardState, reason: str) -> None:
    count = job.ledger.release(
        shard["id"],
        ShardState(shard["state"]),
        target,
        owner=job.owner,
        now=job.clock.now(),
        reason=reason,
        due_at=None,
    )
    log.info("shard %s was never sent (%s); its %d requests are pending again", shard["id"], reason, count)


def _resolve(job: Job, shard: ShardRow) -> None:
    """Find out whether a create that was begun arrived: adopt the batch, prove that there is none, or wait."""
    executor, ledger, now = job.executor, job.ledger, job.clock.now()
    if not isinstance(executor, BatchExecutor):
        # A stream that died in `creating` had asked for nothing yet.
        _release(job, shard, ShardState.LOST, "never_sent")
        return
    if shard["state"] == ShardState.CREATING:
        ledger.move(
            shard["id"], ShardState.CREATING, ShardState.UNCERTAIN, owner=job.owner, now=now, reason="owner_gone"
        )
        shard = {**shard, "state": ShardState.UNCERTAIN.value}
    margin = timedelta(seconds=job.options.absence_margin_s)
    since = shard["intended_at"] - margin
    try:
        others = ledger.batches(shard["id"])
        listed = [batch for batch in executor.list(since=since) if batch.batch_id not in others]
        found, open_question = _find(executor, shard, listed, margin)
    except Unreachable as fault:
        ledger.note_poll(shard["id"], fault.code, owner=job.owner, now=now)
        return
    if found is not None:
        log.info("shard %s was taken by the provider as %s", shard["id"], found.batch_id)
        ledger.move(
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
        listed_at=now,
        create_timeout_s=job.options.create_timeout_s,
        margin_s=job.options.absence_margin_s,
        listed_back_to=since,
        intended_at=shard["intended_at"],
    )
    if unsent:
        _release(job, shard, ShardState.LOST, "absent_from_list")
        return
    ledger.note_poll(shard["id"], "uncertain", owner=job.owner, now=now)


def _find(
    executor: BatchExecutor, shard: ShardRow, listed: Sequence[Listed], margin: timedelta
) -> tuple[Listed | None, bool]:
    """Return the listed batch that is this shard, and whether one that may be it cannot be told yet.

    By our own id where the provider carries it; else by window and count, confirmed by the custom ids of its results,
    which can be read once it has ended.
    """
    for batch in listed:
        if batch.shard_id == shard["id"]:
            return batch, False
    open_question = False
    # Providers tell whole seconds, cut off: a batch may be a second younger than it says.
    earliest = ((shard["creating_at"] or shard["intended_at"]) - margin).replace(microsecond=0)
    for batch in listed:
        if batch.shard_id is not None or batch.n_requests not in (None, shard["n_requests"]):
            continue
        if batch.created_at < earliest:
            continue
        confirm = getattr(executor, "first_ids", None)
        if not batch.ended or confirm is None:
            open_question = True
        else:
            try:
                ids = confirm(batch.batch_id, 50)
            except (ResultsGone, BatchNotFound):
                ids = ()
            if any(str(one).startswith(shard["id"] + "-") for one in ids):
                return batch, False
            open_question = open_question or not ids  # a batch that shows none of its ids may be ours
    return None, open_question


def refuse_other_account(job: Job, shard: ShardRow) -> None:
    """Refuse to draw conclusions about a shard that was sent under another account than ours."""
    here = job.executor.account()
    if shard["account"] != here:
        raise AccountMismatch.of(shard["id"], shard["account"], here)


# --- waiting ------------------------------------------------------------------------------------------------------


def _poll(job: Job, shard: ShardRow) -> None:
    """Look at a batch once. An unknown state or an unreachable provider is asked again, whatever the counts say."""
    executor, ledger, now = job.executor, job.ledger, job.clock.now()
    assert isinstance(executor, BatchExecutor)
    try:
        seen = executor.poll(_batch_id(shard))
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
            ledger.move(
                shard["id"],
                state,
                ShardState.ENDED,
                owner=job.owner,
                now=now,
                lease_until=_lease(job, now),
                provider_state=seen.provider_state,
            )
            collect(job, {**shard, "state": ShardState.ENDED.value, "provider_state": seen.provider_state})
        case Phase.REJECTED:
            wait = job.policy.backoff_s if seen.wait else 0.0
            if not seen.wait:
                job.halt(f"rejected:{seen.reason}")
            ledger.release(
                shard["id"],
                state,
                ShardState.REJECTED,
                owner=job.owner,
                now=now,
                reason=seen.reason or "rejected",
                due_at=now + timedelta(seconds=wait),
            )
        case _:
            ledger.note_poll(shard["id"], seen.provider_state, owner=job.owner, now=now)


def cancel(job: Job, shard: ShardRow) -> None:
    """Ask the provider to cancel a shard that is in flight; a shard that never left is released at once."""
    executor, now = job.executor, job.clock.now()
    if not _take(job, shard, now):
        return
    match ShardState(shard["state"]):
        case ShardState.INTENDED:
            _release(job, shard, ShardState.LOST, "canceled")
        case ShardState.SUBMITTED if isinstance(executor, BatchExecutor):
            executor.cancel(_batch_id(shard))
            job.ledger.move(
                shard["id"], ShardState.SUBMITTED, ShardState.CANCELING, owner=job.owner, now=now, reason="canceled"
            )
        case _:
            job.ledger.drop(shard["id"], owner=job.owner)


# --- collecting ---------------------------------------------------------------------------------------------------


def collect(job: Job, shard: ShardRow) -> None:
    """Fetch, record, validate and settle a shard, then close it; a second collection changes nothing.

    Results are appended before anything is made of them, so that whatever goes wrong later costs no money. Results
    that cannot be read just now are read later from the start; results that stay away are given up in the end, and
    only what they would have held is asked again.
    """
    sent, held = job.ledger.sent(shard["id"])
    _settle(job, shard, sent, reread(job, held))  # recorded before a crash, not yet judged
    tally = _Tally(sent, last=job.streams)
    silence = _silence(job)
    was_there = False
    try:
        _take_in(job, shard, sent, tally)
        was_there = True
        if not job.streams and not tally.unreturned.is_empty():
            # A download may have been torn. Reading it again costs nothing; asking again what was answered would.
            tally = tally.again()
            _take_in(job, shard, sent, tally)
    except (Unreachable, ResultsGone, BatchNotFound) as fault:
        if was_there or not _given_up(job, shard, fault):
            log.info("the results of shard %s cannot be read yet: %s", shard["id"], type(fault).__name__)
            job.ledger.note_poll(shard["id"], _told(type(fault)), owner=job.owner, now=job.clock.now())
            return
        if job.streams:
            silence = Code.SERVER_ERROR  # nobody was there: what has no line was certainly not answered
    _settle_unreturned(job, shard, sent, tally, silence)
    _close(job, shard, tally, silence)


def _take_in(job: Job, shard: ShardRow, sent: pl.DataFrame, tally: _Tally) -> None:
    """Record, judge and settle what can be read of a shard's results, a chunk at a time."""
    for lines in _lines(job, shard, sent):
        results, strays = tally.sort(shard["id"], lines, job)
        job.ledger.record(shard["id"], results, strays, job.clock.now())
        _settle(job, shard, sent, results)
        job.progressed()


def _told(fault: type[Exception]) -> str:
    """Name the fault of a look at results, as the ledger keeps it in place of the provider's word."""
    return f"results:{fault.__name__}"


def _given_up(job: Job, shard: ShardRow, fault: Exception) -> bool:
    """Say whether results that are not there have been asked for long enough. One that is only slow never is."""
    if isinstance(fault, Unreachable):
        return job.streams
    refuse_other_account(job, shard)
    if shard["provider_state"] not in (_told(ResultsGone), _told(BatchNotFound)):
        return False  # one look is no proof, however long nobody has looked
    since = shard["ended_at"] or shard["polled_at"]
    return since is not None and job.clock.now() - since > timedelta(seconds=job.options.lost_after_s)


def _lines(job: Job, shard: ShardRow, sent: pl.DataFrame) -> Iterator[list[bytes]]:
    """Yield the shard's raw lines: a batch's results, or what a stream answers of what is not recorded yet."""
    executor = job.executor
    if isinstance(executor, BatchExecutor):
        if shard["provider_state"] != "not_found":
            yield from _gather(executor.fetch(_batch_id(shard)))
        return
    mine = shard["owner"] == job.owner and shard["provider_state"] is None
    if not mine:
        return  # its owner died: what it asked for and did not record is settled as unreturned
    answers = executor.answer(_about(shard), job.spec, _requests(job, shard, sent.filter("live")))
    # What a paid endpoint answered is written down at once; a local engine's answers may wait for a second of others.
    yield from answers if executor.paid else _gather(answers, clock=job.clock)


def _gather(lists: Iterable[list[bytes]], clock: Clock | None = None) -> Iterator[list[bytes]]:
    """Join an executor's lists into chunks of one transaction each; with a clock, of one second each at most."""
    held: list[bytes] = []
    began = clock.now() if clock is not None else None
    for lines in lists:
        held.extend(lines)
        while len(held) >= CHUNK:
            yield held[:CHUNK]
            held = held[CHUNK:]
        if held and clock is not None and began is not None and clock.now() - began >= GATHER:
            yield held
            held, began = [], clock.now()
    if held:
        yield held


class _Tally:
    """What has come back for a shard, by key, and what came that should not have."""

    def __init__(self, sent: pl.DataFrame, *, last: bool) -> None:
        self._last = last
        self._sent = sent.select("key")
        self._recorded = sent.filter("recorded").select("key")
        self._returned = pl.DataFrame(schema={"key": pl.String})
        self.counts = {"n_results": 0, "n_duplicates": 0, "n_unknown": 0, "n_unreadable": 0}

    def sort(self, shard: str, lines: list[bytes], job: Job) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Split lines into the first result of each key that was asked for, and strays."""
        read = job.executor.read(lines)
        if read.height != len(lines):
            raise LedgerInconsistent.of("an executor read another number of lines", lines=len(lines), read=read.height)
        texts, blobs = _verbatim(lines)
        frame = read.with_columns(
            code=pl.col("code").cast(pl.String),
            raw=texts,
            raw_blob=blobs,
            key=pl.when(pl.col("custom_id").str.starts_with(shard + "-")).then(pl.col("custom_id").str.slice(17)),
        ).with_row_index("line")
        known = frame.join(self._sent, on="key", how="semi")
        # What cannot be read may be whole in the next reading; as a result it would stand for good.
        held_back = known.filter(pl.lit(not self._last) & (pl.col("code") == Code.UNREADABLE.value))
        known = known.join(held_back, on="line", how="anti", maintain_order="left")
        first = known.unique("key", keep="first", maintain_order=True).join(self._returned, on="key", how="anti")
        why = (
            pl.when(pl.col("custom_id").is_null() | pl.col("line").is_in(held_back["line"].implode()))
            .then(pl.lit("unreadable"))
            .when(pl.col("key").is_in(known["key"].implode()))
            .then(pl.lit("duplicate"))
            .otherwise(pl.lit("unknown"))
        )
        strays = frame.join(first.select("line"), on="line", how="anti").with_columns(why=why)
        self._returned = pl.concat([self._returned, first.select("key")])
        self.counts["n_results"] += first.height
        for kind, name in (("duplicate", "n_duplicates"), ("unknown", "n_unknown"), ("unreadable", "n_unreadable")):
            self.counts[name] += strays.filter(why=kind).height
        results = first.join(self._recorded, on="key", how="anti", maintain_order="left")
        costs = job.prices.cost_usd(results) if job.prices is not None else pl.lit(None, pl.Decimal(18, 9))
        billed = pl.col("code").is_in([c.value for c in BILLED])
        results = results.with_columns(cost_usd=costs).with_columns(
            cost_usd=pl.when(billed)
            .then("cost_usd")
            .when(~pl.col("code").is_in([c.value for c in PERHAPS_BILLED]))
            .then(pl.lit(0).cast(pl.Decimal(18, 9)))
        )
        digests = pl.Series(
            "line_digest",
            [hashlib.sha256(lines[i]).hexdigest()[:32] for i in strays["line"].to_list()],
            dtype=pl.String,
        )
        return results, strays.select("why", "custom_id", digests, "raw", "raw_blob")

    def again(self) -> _Tally:
        """Return a tally for a second reading of the same results, which takes up only what the first one lacked."""
        returned = pl.concat([self._recorded, self._returned])
        taken = pl.col("key").is_in(returned["key"].implode())
        return _Tally(self._sent.with_columns(recorded=taken), last=True)

    @property
    def unreturned(self) -> pl.DataFrame:
        """Keys that were sent, and neither returned now nor recorded before."""
        return self._sent.join(self._returned, on="key", how="anti").join(self._recorded, on="key", how="anti")


def _verbatim(lines: list[bytes]) -> tuple[pl.Series, pl.Series]:
    """Return the lines as text, and those that are not UTF-8 apart as bytes."""
    raw = pl.Series("raw_blob", lines, dtype=pl.Binary)
    try:
        return raw.cast(pl.String).alias("raw"), pl.Series("raw_blob", [None] * len(lines), dtype=pl.Binary)
    except pl.exceptions.ComputeError:
        texts = pl.Series("raw", [_decoded(line) for line in lines], dtype=pl.String)
        return texts, pl.select(pl.when(texts.is_null()).then(raw)).to_series().alias("raw_blob")


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None


def reread(job: Job, held: pl.DataFrame) -> pl.DataFrame:
    """Return stored results (`raw`, `raw_blob`, ...) with the `answer` that their executor reads in them."""
    if held.is_empty():
        return held.with_columns(answer=pl.lit(None, pl.String))
    lines = [blob if text is None else text.encode() for text, blob in zip(held["raw"], held["raw_blob"], strict=True)]
    return held.with_columns(job.executor.read(lines)["answer"])


def _settle(job: Job, shard: ShardRow, sent: pl.DataFrame, results: pl.DataFrame) -> None:
    """Judge results and move their requests: valid, once more, or ended, with the reason."""
    live = results.join(sent.filter("live").drop("recorded", "live", "n"), on="key", how="inner")
    if live.is_empty():
        return
    judged = judge(job, live)
    verdicts = judged.filter(pl.col("ok").is_not_null()).with_columns(shard=pl.lit(shard["id"]))
    blocked = live.filter(code=Code.ACCOUNT_BLOCKED.value)
    if blocked.height:
        job.halt(f"account_blocked:{blocked['detail'][0] if 'detail' in blocked.columns else ''}")
    moves = lifecycle.decide(
        # An invalid golden answer is an answer too: it is not asked again until it agrees.
        judged.with_columns(
            tried_variant="variant", max_tokens=pl.lit(job.spec.max_tokens), retryable=~pl.col("golden")
        ),
        job.policy,
    )
    _write_down(job, shard, verdicts, moves)


def _write_down(job: Job, shard: ShardRow, verdicts: pl.DataFrame, moves: pl.DataFrame) -> None:
    now = job.clock.now()
    job.ledger.settle(
        shard["id"],
        job.validator_digest,
        verdicts,
        moves,
        now=now,
        owner=job.owner,
        lease_until=_lease(job, now),
    )


def judge(job: Job, results: pl.DataFrame) -> pl.DataFrame:
    """Return results with the validator's verdict: `ok`, `value`, `fault_code`, `faults_found`, `lenient`.

    What holds no answer to judge (an error, a refusal), or cannot be judged here, has a null `ok`.
    """
    empty = {
        "ok": pl.lit(None, pl.Boolean),
        "value": pl.lit(None, pl.String),
        "fault_code": pl.lit(None, pl.String),
        "fault_list": pl.lit(None, pl.String),
        "lenient": pl.lit(False),
    }
    answers = pl.col("code").is_in([Code.OK.value, Code.TRUNCATED.value, Code.NEEDS_CONTINUATION.value])
    if job.validator is None:
        return results.with_columns(**empty)
    judgeable, rest = results.filter(answers), results.filter(~answers)
    verdict = job.validator.judge(judgeable["answer"], judgeable["code"])
    judged = judgeable.with_columns(
        ok=verdict["ok"],
        value=verdict["value"],
        fault_code=verdict["code"],
        fault_list=verdict["faults"],
        lenient=verdict["lenient"],
    )
    return pl.concat([judged, rest.with_columns(**empty)])


def _silence(job: Job) -> Code:
    """Say what it means that an attempt brought no line."""
    if not job.streams:
        return Code.UNRETURNED
    # A local engine that stopped charged nothing, and asking it again costs only time.
    return Code.UNCERTAIN if job.executor.paid else Code.CANCELED


def _settle_unreturned(job: Job, shard: ShardRow, sent: pl.DataFrame, tally: _Tally, code: Code) -> None:
    """Settle what was asked and not answered: sent again with that reason, within the caps."""
    silent = sent.filter("live").join(tally.unreturned, on="key", how="semi")
    if silent.is_empty():
        return
    moves = lifecycle.decide(
        silent.with_columns(
            code=pl.lit(code.value),
            ok=pl.lit(None, pl.Boolean),
            fault_code=pl.lit(None, pl.String),
            fault_list=pl.lit(None, pl.String),
            tried_variant="variant",
            max_tokens=pl.lit(job.spec.max_tokens),
            retryable=pl.lit(True),
        ),
        job.policy,
    )
    if job.streams and not job.executor.paid:
        moves = moves.with_columns(delay_s=pl.lit(0.0), resends=silent["resends"])
    _write_down(job, shard, pl.DataFrame(schema={"key": pl.String}), moves)


def _unseen_usd(job: Job, doubtful: pl.DataFrame, silence: Code) -> Decimal | None:
    """Return what attempts of unknown cost can have cost at most; those that certainly never ran cost nothing."""
    ran = doubtful if silence in PERHAPS_BILLED else doubtful.filter("returned")
    return upper_bound(job, sized(job, ran)) if ran.height else Decimal(0)


def _close(job: Job, shard: ShardRow, tally: _Tally, silence: Code) -> None:
    """Close a collected shard, check that every row is accounted for, and see whether to go on."""
    ledger, now = job.ledger, job.clock.now()
    if shard["state"] != ShardState.ENDED:
        until = _lease(job, now)
        ledger.move(
            shard["id"], ShardState(shard["state"]), ShardState.ENDED, owner=job.owner, now=now, lease_until=until
        )
    closing = ledger.finish(
        shard["id"],
        owner=job.owner,
        now=now,
        counts=tally.counts,
        validator=job.validator_digest,
        judged=job.validator is not None,
        bound=lambda doubtful: _unseen_usd(job, doubtful, silence),
    )
    watch.shard_closed(job)
    job.n_unsummed += shard["n_requests"]
    if job.n_unsummed >= SUM_SHARE * job.n_requests:
        balance(job)
        job.n_unsummed = 0
    systemic = lifecycle.systemic(closing.n_answered, closing.n_bad, job.policy)
    if job.validator is not None and systemic and not watch.undecided(job):  # the canary's answers are the gate's
        job.halt(f"systemic:{closing.n_bad} of {closing.n_answered} answers of shard {shard['id']} are bad")
    if job.options.cleanup and isinstance(job.executor, BatchExecutor):
        try:
            job.executor.delete(_batch_id(shard))
        except (Unreachable, BatchNotFound) as fault:
            log.warning("the provider's copy of shard %s stays there: %s", shard["id"], type(fault).__name__)


def balance(job: Job) -> dict[str, tuple[int, int]]:
    """Return a run's distinct requests and rows by state, after checking that they add up."""
    counts = job.ledger.counts(job.run_id, job.validator_digest)
    add_up(job, counts)
    return counts


def add_up(job: Job, counts: dict[str, tuple[int, int]]) -> None:
    """Assert promise 3 for a run: expected = valid + invalid + refused + dead-lettered + open, over distinct keys."""
    known = {"succeeded", "invalid", "refused", "dead_lettered", *(s.value for s in RequestState)}
    strange = set(counts) - known
    total = sum(n for n, _ in counts.values())
    if strange or total != job.n_requests:
        raise LedgerInconsistent.of(
            "the requests of a run do not add up", expected=job.n_requests, found=total, states=sorted(counts)
        )


__all__ = ["balance", "collect", "custom_id", "judge", "next_look", "reread", "step", "submit"]
