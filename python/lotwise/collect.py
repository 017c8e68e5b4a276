"""Collecting a shard: fetch, record, judge, settle, close; read from top to bottom.

Results are appended before anything is made of them, so that a kill at any line loses no answer that was paid for.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal

import polars as pl

from lotwise import lifecycle, watch
from lotwise.bound import sized, upper_bound
from lotwise.clock import Clock
from lotwise.errors import BatchNotFound, EngineFailed, ExecutorError, LedgerInconsistent, ResultsGone, Unreachable
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.job import Job, Lane
from lotwise.lease import kept
from lotwise.ledger import requests as request_book
from lotwise.ledger import results as result_book
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import RequestState, ShardState
from lotwise.request import PERHAPS_BILLED, Code
from lotwise.shards import as_sent, batch_id_of, lease_end, refuse_other_account, requests_of
from lotwise.tally import Tally
from lotwise.validate import Validator

log = logging.getLogger("lotwise")

CHUNK = 25_000
"""Result lines a transaction, which keeps it well under a second."""

SUM_SHARE = 0.25
"""How much of a run may be collected between two sums over all of it. Each shard adds up by itself in any case, and
sums over a million requests after each of fifty shards would cost more than collecting them."""

GATHER = timedelta(seconds=1)
"""How long answers of a local engine may wait to be written down together; a kill loses at most so much work."""


def collect(job: Job, shard: ShardRow) -> None:
    """Fetch, record, validate and settle a shard, then close it; a second collection changes nothing.

    Results are appended before anything is made of them, so that whatever goes wrong later costs no money. Results
    that cannot be read just now are read later from the start; results that stay away are given up in the end, and
    only what they would have held is asked again.
    """
    sent, held = result_book.sent(job.ledger, shard["id"])
    _settle(job, shard, sent, reread(job, held))  # recorded before a crash, not yet judged
    lane = job.lane_of(shard)
    tally = Tally(sent, last=lane.streams)
    silence = _silence(lane, shard, sent, asks=_asks(job, shard))
    was_there = False
    try:
        _take_in(job, shard, sent, tally)
        was_there = True
        if not lane.streams and not tally.unreturned.is_empty():
            # A download may have been torn. Reading it again costs nothing; asking again what was answered would.
            tally = tally.again()
            _take_in(job, shard, sent, tally)
    except (Unreachable, ResultsGone, BatchNotFound) as fault:
        if was_there or not _given_up(job, shard, fault):
            log.info("the results of shard %s cannot be read yet: %s", shard["id"], type(fault).__name__)
            shard_book.note_poll(job.ledger, shard["id"], _told(type(fault)), owner=job.owner, now=job.clock.now())
            return
        if lane.streams:
            silence = Silence(Code.SERVER_ERROR)  # nobody was there: what has no line was certainly not answered
    except EngineFailed as fault:
        job.halt(f"engine:{fault.why}")  # what has no line is pending, for a call that finds the cause mended
    _settle_unreturned(job, shard, sent, tally, silence)
    _close(job, shard, tally, silence)


def _take_in(job: Job, shard: ShardRow, sent: pl.DataFrame, tally: Tally) -> None:
    """Record, judge and settle what can be read of a shard's results, a chunk at a time."""
    with kept(job, shard):
        for lines in _lines(job, shard, sent):
            results, strays = tally.sort(shard["id"], lines, job.lane_of(shard))
            result_book.record(job.ledger, shard["id"], results, strays, job.clock.now())
            _settle(job, shard, sent, results)
            job.progressed()


def _told(fault: type[Exception]) -> str:
    """Name the fault of a look at results, as the ledger keeps it in place of the provider's word."""
    return f"results:{fault.__name__}"


def _given_up(job: Job, shard: ShardRow, fault: Exception) -> bool:
    """Say whether results that are not there have been asked for long enough. One that is only slow never is."""
    if isinstance(fault, Unreachable):
        return job.lane_of(shard).streams
    refuse_other_account(job, shard)
    if shard["provider_state"] not in (_told(ResultsGone), _told(BatchNotFound)):
        return False  # one look is no proof, however long nobody has looked
    since = shard["ended_at"] or shard["polled_at"]
    return since is not None and job.clock.now() - since > timedelta(seconds=job.options.lost_after_s)


def _lines(job: Job, shard: ShardRow, sent: pl.DataFrame) -> Iterator[list[bytes]]:
    """Yield the shard's raw lines: a batch's results, or what a stream answers of what is not recorded yet."""
    executor = job.lane_of(shard).executor
    if isinstance(executor, BatchExecutor):
        if shard["provider_state"] != "not_found":
            yield from _gather(executor.fetch(batch_id_of(shard)))
        return
    if not _asks(job, shard):
        return  # its owner died: what it asked for and did not record is settled as unreturned
    in_order = sent.filter("live").sort("key")  # what `_silence` rests on
    answers = executor.answer(as_sent(shard), job.spec, requests_of(job, shard, in_order))
    # What a paid endpoint answered is written down at once; a local engine's answers may wait for a second of others.
    yield from answers if executor.paid else _gather(answers, clock=job.clock)


def _asks(job: Job, shard: ShardRow) -> bool:
    """Whether this process is the one that asks a stream's requests; it does so once."""
    return shard["owner"] == job.owner and shard["provider_state"] is None


def _gather(lists: Iterable[list[bytes]], clock: Clock | None = None) -> Iterator[list[bytes]]:
    """Join an executor's lists into chunks of one transaction each; with a clock, of one second each at most."""
    held: list[bytes] = []
    began = clock.now() if clock is not None else None
    try:
        for lines in lists:
            held.extend(lines)
            while len(held) >= CHUNK:
                yield held[:CHUNK]
                held = held[CHUNK:]
            if held and clock is not None and began is not None and clock.now() - began >= GATHER:
                yield held
                held, began = [], clock.now()
    except ExecutorError:
        if held:
            yield held  # what came before the fault came whole
        raise
    if held:
        yield held


def reread(job: Job, held: pl.DataFrame) -> pl.DataFrame:
    """Return stored results (`raw`, `raw_blob`, ...) with the `answer` that their executor reads in them."""
    return held.with_columns(answers_in(job.lane.executor, held))


def answers_in(executor: BatchExecutor | StreamExecutor, held: pl.DataFrame) -> pl.Series:
    """Return the `answer` that an executor reads in each stored result (`raw`, `raw_blob`)."""
    if held.is_empty():
        return pl.Series("answer", [], dtype=pl.String)
    lines = [blob if text is None else text.encode() for text, blob in zip(held["raw"], held["raw_blob"], strict=True)]
    return executor.read(lines)["answer"]


def answers(
    ledger: Ledger, keys: pl.Series, executor: BatchExecutor | StreamExecutor, validator: Validator
) -> pl.DataFrame:
    """Return what `requests.answers` does, with what these rules say of answers that only others have judged so far.

    That is what a run would find before it sends anything. Writes nothing.
    """
    known = request_book.answers(ledger, keys, validator.digest)
    asked = known.filter((pl.col("state") != "succeeded") & (pl.col("attempts") > 0))
    judged = pl.concat(
        [_verdicts_on(ledger, part["key"], executor, validator) for part in asked.iter_slices(CHUNK)]
        or [VERDICTS.to_frame()]
    ).sort("seq")
    if judged.is_empty():
        return known
    good = judged.filter("ok").unique("key", keep="first").select("key", good="value")
    bad = judged.filter(~pl.col("ok")).unique("key", keep="last").select("key", bad="code", found="faults")
    both = known.join(good, on="key", how="left", maintain_order="left").join(
        bad, on="key", how="left", maintain_order="left"
    )
    valid = pl.col("good").is_not_null()
    invalid = ~valid & pl.col("bad").is_not_null() & (pl.col("state") == "invalid")
    return both.select(
        "key",
        state=pl.when(valid).then(pl.lit("succeeded")).otherwise("state"),
        reason=pl.when(valid).then(None).when(invalid).then("bad").otherwise("reason"),
        faults=pl.when(valid).then(None).when(invalid).then("found").otherwise("faults"),
        detail="detail",
        attempts="attempts",
        value=pl.coalesce("good", "value"),
    )


VERDICTS = pl.Schema(
    {"key": pl.String, "seq": pl.Int64, "ok": pl.Boolean, "value": pl.String, "code": pl.String, "faults": pl.String}
)


def _verdicts_on(
    ledger: Ledger, keys: pl.Series, executor: BatchExecutor | StreamExecutor, validator: Validator
) -> pl.DataFrame:
    """Judge the stored answers to some requests that a validator has not seen, in `VERDICTS`."""
    held = result_book.unseen(ledger, keys, validator.digest)
    verdict = validator.judge(answers_in(executor, held), held["code"])
    return held.select("key", "seq").with_columns(verdict.select("ok", "value", "code", "faults")).cast(dict(VERDICTS))  # type: ignore[arg-type]


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
    result_book.settle(
        job.ledger,
        shard["id"],
        job.validator_digest,
        verdicts,
        moves,
        now=now,
        owner=job.owner,
        lease_until=lease_end(job, job.lane_of(shard), now),
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


@dataclass(frozen=True)
class Silence:
    """What it means that an attempt brought no line: `code`, but for requests that were certainly never begun."""

    code: Code
    unbegun: frozenset[str] = frozenset()


def _silence(lane: Lane, shard: ShardRow, sent: pl.DataFrame, *, asks: bool) -> Silence:
    """Say what it means that an attempt brings no line, from what is recorded before anything is asked.

    Only of an owner that is gone is it known what it had not begun; what this process asks itself, it begins.
    """
    if not lane.streams:
        return Silence(Code.UNRETURNED)
    if not lane.executor.paid:
        # A local engine that stopped charged nothing, and asking it again costs only time.
        return Silence(Code.CANCELED)
    if asks or shard["in_flight"] is None:
        return Silence(Code.UNCERTAIN)
    n_begun = int(sent["recorded"].sum()) + shard["in_flight"]
    return Silence(Code.UNCERTAIN, frozenset(sent["key"].sort()[n_begun:]))


def _settle_unreturned(job: Job, shard: ShardRow, sent: pl.DataFrame, tally: Tally, silence: Silence) -> None:
    """Settle what was asked and not answered: sent again with that reason, within the caps."""
    silent = sent.filter("live").join(tally.unreturned, on="key", how="semi")
    if silent.is_empty():
        return
    lane = job.lane_of(shard)
    unbegun = pl.col("key").is_in(silence.unbegun)
    # Asking again what cost nothing costs nothing, and nothing was amiss with it: it does not fall under the cap.
    free = pl.lit(lane.streams and not lane.executor.paid) | unbegun
    moves = lifecycle.decide(
        silent.with_columns(
            code=pl.when(unbegun).then(pl.lit(Code.CANCELED.value)).otherwise(pl.lit(silence.code.value)),
            ok=pl.lit(None, pl.Boolean),
            fault_code=pl.lit(None, pl.String),
            fault_list=pl.lit(None, pl.String),
            tried_variant="variant",
            max_tokens=pl.lit(job.spec.max_tokens),
            retryable=pl.lit(True),
            resends=pl.when(free).then(pl.lit(-1, pl.Int32)).otherwise("resends"),
        ),
        job.policy,
    )
    # What nobody answered because its process was killed says nothing against the endpoint: it need not wait.
    at_once = free | pl.lit(silence.code is Code.UNCERTAIN)
    moves = moves.with_columns(
        delay_s=pl.when(at_once).then(0.0).otherwise("delay_s"),
        resends=pl.when(free).then(silent["resends"]).otherwise("resends"),
    )
    if silence.code is Code.UNCERTAIN:
        _tell_uncertain(job, shard, silent.filter(~unbegun))
    _write_down(job, shard, pl.DataFrame(schema={"key": pl.String}), moves)


def _tell_uncertain(job: Job, shard: ShardRow, begun: pl.DataFrame) -> None:
    """Say at once what may be charged twice."""
    n = begun.height
    if not n:
        return
    what = "held until a retry of 'uncertain'" if job.policy.hold_uncertain else "sent again"
    job.notify(
        f"{n:,} requests of shard {shard['id']} may have been answered after the process that asked them had ended; "
        f"they are {what}. lotwise status says what that can cost at most"
    )


def _unseen_usd(job: Job, lane: Lane, doubtful: pl.DataFrame, silence: Silence) -> Decimal | None:
    """Return what attempts of unknown cost can have cost at most; those that certainly never ran cost nothing."""
    ran = doubtful if silence.code in PERHAPS_BILLED else doubtful.filter("returned")
    ran = ran.filter(pl.col("returned") | ~pl.col("key").is_in(silence.unbegun))
    return upper_bound(job, lane, sized(job, lane, ran)) if ran.height else Decimal(0)


def _close(job: Job, shard: ShardRow, tally: Tally, silence: Silence) -> None:
    """Close a collected shard, check that every row is accounted for, and see whether to go on."""
    ledger, lane, now = job.ledger, job.lane_of(shard), job.clock.now()
    if shard["state"] != ShardState.ENDED:
        until = lease_end(job, lane, now)
        shard_book.move(
            ledger,
            shard["id"],
            ShardState(shard["state"]),
            ShardState.ENDED,
            owner=job.owner,
            now=now,
            lease_until=until,
        )
    closing = result_book.finish(
        ledger,
        shard["id"],
        owner=job.owner,
        now=now,
        counts=tally.counts,
        validator=job.validator_digest,
        judged=job.validator is not None,
        bound=lambda doubtful: _unseen_usd(job, lane, doubtful, silence),
    )
    watch.shard_closed(job)
    job.n_unsummed += shard["n_requests"]
    if job.n_unsummed >= SUM_SHARE * job.n_requests:
        balance(job)
        job.n_unsummed = 0
    systemic = lifecycle.systemic(closing.n_answered, closing.n_bad, job.policy)
    if job.validator is not None and systemic and not watch.undecided(job):  # the canary's answers are the gate's
        job.halt(f"systemic:{closing.n_bad} of {closing.n_answered} answers of shard {shard['id']} are bad")
    if job.options.cleanup and isinstance(lane.executor, BatchExecutor):
        try:
            lane.executor.delete(batch_id_of(shard))
        except (Unreachable, BatchNotFound) as fault:
            log.warning("the provider's copy of shard %s stays there: %s", shard["id"], type(fault).__name__)


def balance(job: Job) -> dict[str, tuple[int, int]]:
    """Return a run's distinct requests and rows by state, after checking that they add up."""
    counts = run_book.counts(job.ledger, job.run_id, job.validator_digest)
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
