"""Keeping the gate and watching what comes after it: which requests may be sent, which golden rows ride along, what is
told at once.

The rules are in `canary` and `golden`, pure; the ledger is asked anew each time, since another process may have decided
meanwhile. Nothing here moves a request or a shard.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Literal

import polars as pl

from lotwise import canary as rules
from lotwise.canary import Canary, Verdict
from lotwise.golden import GoldenSet, golden_keys, golden_spec, riders
from lotwise.job import Job
from lotwise.key import KEY_VERSION, spec_digest, spec_json
from lotwise.ledger import golden as book
from lotwise.ledger import requests as request_book
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import RequestState
from lotwise.plan import json_bytes
from lotwise.request import Limits
from lotwise.schema import Schema

log = logging.getLogger("lotwise")

_FINAL = [RequestState.ANSWERED.value, RequestState.REFUSED.value, RequestState.DEAD_LETTERED.value]
_JUDGED = ["ok", "truncated", "needs_continuation"]
"""Codes whose answers a validator judges."""


# --- before a run -------------------------------------------------------------------------------------------------


def begin(job: Job, canary: Canary) -> None:
    """Write down what a run must pass, and the golden rows that are asked first."""
    book.write_canary(job.ledger, canary, job.run_id)
    decided = canary.mode == "off" or book.gate(job.ledger, canary) is not None
    if canary.golden is not None and not decided:
        _ask(job, canary, canary.golden, canary.golden.rows.with_columns(round=pl.lit(0, pl.Int32)))


def restore(ledger: Ledger, run: str, schema: Schema | None) -> Canary | None:
    """Read back what a run must pass. The golden rows' content, and a function of the caller's, are not in it."""
    found = book.canary_of(ledger, run)
    if found is None:
        return None
    row, rows = found
    golden = None
    if row["answers"] is not None:
        names = pl.Series("names", [row["answers"]]).str.json_decode(pl.List(pl.String))[0].to_list()
        dtypes = pl.Schema({} if schema is None else {name: schema.dtypes[name] for name in names})
        texts = rows.filter(pl.col("part") != "")
        held = request_book.contents(ledger, texts.select("key", "part")) if texts.height == rows.height else None
        content = pl.lit(None, pl.String) if held is None else held["content"]
        golden = GoldenSet(
            rows=rows.select("row", "answer").with_columns(content=content),
            dtypes=dtypes,
            match=None if row["exact"] and schema is not None else "gone",
            threshold=row["threshold"],
        )
    return Canary(
        spec=row["spec"],
        subject=row["set_digest"],
        golden=golden,
        bad_limit=row["bad_limit"],
        n_frame=row["n_frame"],
        mode=row["mode"],
    )


def _ask(job: Job, canary: Canary, golden: GoldenSet, rows: pl.DataFrame) -> None:
    """Write down one asking of each row (`row`, `content`, `round`), under the golden spec of its round."""
    for (round_,), group in rows.group_by("round", maintain_order=True):
        spec = golden_spec(job.spec, int(str(round_)))
        asks = group.with_columns(
            key=golden_keys(job.spec, int(str(round_)), group["content"]), content_bytes=json_bytes(group["content"])
        )
        about = {
            "digest": spec_digest(spec),
            "model": spec.model_name,
            "body": spec_json(spec),
            "key_version": KEY_VERSION,
        }
        book.ask(job.ledger, canary, about, asks, job.clock.now())


# --- the gate -----------------------------------------------------------------------------------------------------


def keep_gate(job: Job) -> bool:
    """See how the gate stands, and decide it when each of the canary's requests has its first answer.

    Returns
    -------
    False where answers wait to be judged before it can be decided.
    """
    canary = job.canary
    if canary is None or canary.mode == "off":
        job.gate = "passed"
        return True
    found = book.gate(job.ledger, canary)
    if found is None:
        verdict = _verdict(job, canary)
        if not isinstance(verdict, Verdict):
            return verdict != "unjudged"
        book.decide(job.ledger, canary, verdict, run=job.run_id, now=job.clock.now())
        found = book.gate(job.ledger, canary)  # another process may have been first
        assert found is not None
        tell(job, "canary", None, f"canary {found['state']}: {found['reason']}")
    if found["state"] == "passed":
        job.gate = "passed"
    elif canary.mode == "override":
        job.gate = "passed"
        tell(job, "canary", None, f"canary overridden: {found['reason']}")
    else:
        job.gate, job.n_golden_apart = "failed", (found["n"] or 0) - (found["agreed"] or 0)
        # What is done already costs nothing and is shown.
        if not request_book.pending(job.ledger, job.run_id).is_empty():
            job.halt(f"canary:{found['reason']}")
    return True


def look_again(job: Job) -> None:
    """See whether another process has failed the gate, or taken its pass back: sending takes a while."""
    canary = job.canary
    if canary is None or canary.mode != "on" or job.gate == "failed":
        return
    found = book.gate(job.ledger, canary)
    if found is not None and found["state"] == "failed":
        keep_gate(job)


def tell(job: Job, kind: str, shard: str | None, text: str) -> None:
    """Tell whoever watches, once a job, and write it down."""
    now = job.clock.now()
    if book.notice(job.ledger, run=job.run_id, job=job.job_id, kind=kind, shard=shard, text=text, now=now):
        log.info("run %s: %s", job.run_id, text)
        job.notify(text)


def _verdict(job: Job, canary: Canary) -> Verdict | Literal["out", "unjudged"]:
    """Judge the canary, unless answers are out or wait to be judged."""
    frame = book.frame_results(job.ledger, canary, job.run_id, job.validator_digest)
    golden = _golden_results(job, canary)
    asked = golden.filter(round=0)
    out = pl.col("code").is_null() & ~pl.col("state").is_in(_FINAL)
    if frame.filter(out).height or asked.filter(out).height:
        return "out"
    if job.validator is None or (canary.golden is not None and canary.golden.match == "gone"):
        job.halt("canary:its answers can only be judged by the caller's code; repeat the call")
        return "out"
    unjudged = pl.col("code").is_in(_JUDGED) & pl.col("ok").is_null()
    if frame.filter(unjudged).height or asked.filter(unjudged).height:
        return "unjudged"
    answered = frame.filter(pl.col("code").is_not_null())
    bad = answered.filter((pl.col("code") == "bad_request") | ~pl.col("ok").fill_null(True))
    return rules.judge(
        threshold=canary.threshold,
        n_golden=asked.height,
        agreed=int(asked["agreed"].sum()),
        bad_limit=canary.bad_limit,
        n_frame=answered.height,
        n_invalid=bad.height,
    )


def unlocked(job: Job, pending: pl.DataFrame) -> pl.DataFrame:
    """Return what may be sent of a run's pending requests: all behind an open gate, else the canary's alone."""
    canary = job.canary
    if canary is None or not locked(job) or pending.is_empty():
        return pending
    frame = book.frame_results(job.ledger, canary, job.run_id, job.validator_digest)
    first = pending.join(frame.filter(pl.col("code").is_null()), on="key", how="semi")
    return pl.concat([first, book.pending(job.ledger, canary, first=True).select(pending.columns)])


def locked(job: Job) -> bool:
    """Say whether only the canary's requests may be sent."""
    return job.canary is not None and job.gate != "passed"


def undecided(job: Job) -> bool:
    """Say whether a gate is still to be decided."""
    return job.canary is not None and job.gate == "open"


# --- golden rows in later shards ----------------------------------------------------------------------------------


def room(job: Job) -> Limits:
    """Return a shard's limits without the room that golden rows take."""
    limits = job.lane.executor.limits
    if job.canary is None or job.canary.golden is None or job.gate != "passed":
        return limits
    n = riders(limits.max_requests, job.canary.golden.rows.height)
    most = limits.max_bytes
    return replace(
        limits,
        max_requests=max(limits.max_requests - n, 1),
        max_bytes=None if most is None else max(most - most // 50, 1),
    )


def with_riders(job: Job, planned: pl.DataFrame) -> pl.DataFrame:
    """Add the golden rows that ride in a shard, about one in a hundred, each under a key of its own."""
    canary = job.canary
    if canary is None or canary.golden is None or job.gate != "passed" or canary.golden.rows["content"].has_nulls():
        return planned
    n = riders(planned.height, canary.golden.rows.height)
    now = job.clock.now()
    waiting = book.pending(job.ledger, canary)
    if waiting.height < n:
        rounds = book.next_rounds(job.ledger, canary).head(n - waiting.height)
        rows = rounds.join(canary.golden.rows, on="row", how="left", maintain_order="left")
        _ask(job, canary, canary.golden, rows)
        waiting = book.pending(job.ledger, canary)
    due = waiting.filter(pl.col("due_at").is_null() | (pl.col("due_at") <= now)).head(n)
    sized = due.with_columns(bytes=job.lane.executor.sizes(job.spec, due["content_bytes"]))
    limits, total = job.lane.executor.limits, int(planned["bytes"].sum())
    left = limits.max_requests - planned.height
    fits = sized.head(left).filter(
        pl.lit(limits.max_bytes is None) | (pl.col("bytes").cum_sum() + total <= (limits.max_bytes or 0)),
        pl.lit(limits.max_row_bytes is None) | (pl.col("bytes") <= (limits.max_row_bytes or 0)),
    )
    return pl.concat([planned, fits.select(planned.columns)])


def left_over(job: Job) -> pl.Series:
    """Return the keys of golden rows that were to ride and that no shard of this run will carry any more."""
    if job.canary is None or job.canary.golden is None or job.gate != "passed":
        return pl.Series("key", [], dtype=pl.String)
    return book.pending(job.ledger, job.canary)["key"]


# --- what every shard shows ---------------------------------------------------------------------------------------


def shard_closed(job: Job) -> None:
    """Look at what a collected shard brought, and tell at once what has changed."""
    shards = book.qualities(job.ledger, job.job_id, job.validator_digest)
    for rise in rules.risen(shards):
        told = f"{rise.n_bad} of {rise.n_answered} answers of shard {rise.shard} are invalid, {rise.before:.1%} before"
        tell(job, "invalid_rate", rise.shard, told)
    for change in rules.revision_changes(shards):
        before = f" after {', '.join(change.before)}" if change.before else ""
        told = f"model revision {', '.join(change.after)} answers from shard {change.shard} on{before}"
        tell(job, "model_revision", change.shard, told)
    _watch_golden(job)


def _watch_golden(job: Job) -> None:
    canary = job.canary
    if canary is None or canary.golden is None or job.validator is None or canary.golden.match == "gone":
        return
    series = golden_series(job)
    found = book.gate(job.ledger, canary)
    proven = found["lower"] if found is not None and found["lower"] is not None else canary.threshold
    later = [(shard, n, agreed) for shard, n, agreed in series.select("shard", "n", "agreed").iter_rows()]
    drift = rules.drifted(later, agreed_at_least=proven) if later else None
    if drift is None:
        return
    counts = series.filter(pl.col("shard").is_in([drift.began, drift.certain]))
    told = f"golden rows agree less from shard {drift.began} on, certain at shard {drift.certain}"
    tell(job, "drift", drift.began, told)
    if canary.mode == "on" and job.gate == "passed":
        verdict = Verdict(
            passed=False,
            reason=told,
            n=int(counts["n"].sum()),
            agreed=int(counts["agreed"].sum()),
            lower=None,
            n_frame=0,
            n_invalid=0,
            upper=None,
        )
        book.decide(job.ledger, canary, verdict, run=job.run_id, now=job.clock.now(), withdraw=True)
        job.n_golden_apart = verdict.n - verdict.agreed
        job.halt(f"canary:{told}")


def golden_series(job: Job) -> pl.DataFrame:
    """Return how golden rows in later shards agreed: `shard`, `sent_at`, `n`, `agreed`, in order of sending."""
    empty = pl.DataFrame(
        schema={"shard": pl.String, "sent_at": pl.Datetime("us", "UTC"), "n": pl.Int64, "agreed": pl.Int64}
    )
    if job.canary is None or job.canary.golden is None:
        return empty
    rode = _golden_results(job, job.canary).filter(pl.col("round") > 0, pl.col("code").is_not_null())
    if rode.is_empty():
        return empty
    grouped = rode.group_by("shard", sent_at="intended_at").agg(
        n=pl.len().cast(pl.Int64), agreed=pl.col("agreed").sum().cast(pl.Int64)
    )
    return grouped.sort("sent_at", "shard")


GOLDEN_ANSWERS = pl.Schema(
    {
        "llm_id": pl.String(),  # the key that the golden row was asked under
        "round": pl.Int32(),  # 0 before the gate, then as it rode in later shards
        "input": pl.String(),  # what was asked; null once it was purged
        "expected": pl.String(),  # JSON of the known answer
        "answered": pl.String(),  # JSON of the same fields of a valid answer; null where there is none
        "agreed": pl.Boolean(),  # null where there is nothing to compare yet, or nothing here to compare with
        "reason": pl.String(),  # why there is no valid answer; null where there is one
    }
)
"""What is shown of golden rows, one row an asking."""


def golden_answers(ledger: Ledger, canary: Canary | None, validator: str) -> pl.DataFrame:
    """Return every asking of a golden set with what was expected and what was answered, in `GOLDEN_ANSWERS`."""
    if canary is None or canary.golden is None:
        return GOLDEN_ANSWERS.to_frame()
    golden = canary.golden
    asked = book.results(ledger, canary, validator, pl.Series("key", [], dtype=pl.String)).sort("round", "row")
    at_hand = pl.col("code").is_not_null() & ~(pl.col("ok").fill_null(False) & pl.col("value").is_null())  # not purged
    if golden.match == "gone":
        agreed = pl.Series("agreed", [None] * asked.height, dtype=pl.Boolean)
    else:
        agreed = golden.agreed(asked.select("row", "value")).alias("agreed")
    return (
        asked.with_columns(agreed=agreed, said=golden.said(asked["value"]))
        .join(golden.rows.select("row", "content", "answer"), on="row", how="left", maintain_order="left")
        .select(
            llm_id="key",
            round="round",
            input="content",
            expected="answer",
            answered=pl.when("ok").then("said"),
            agreed=pl.when(at_hand).then("agreed"),
            reason=pl.when(pl.col("ok").fill_null(False))
            .then(None)
            .otherwise(pl.coalesce("fault", pl.when(pl.col("code") != "ok").then("code"), "state")),
        )
        .cast(dict(GOLDEN_ANSWERS))  # type: ignore[arg-type]
    )


def _golden_results(job: Job, canary: Canary) -> pl.DataFrame:
    """Return every asking of the golden set with whether it agreed; what is known for good is asked for once."""
    known = job.golden_known
    keys = pl.Series("key", [], dtype=pl.String) if known is None else known["key"]
    fresh = book.results(job.ledger, canary, job.validator_digest, keys)
    if canary.golden is None or canary.golden.match == "gone":
        agreed = pl.Series("agreed", [None] * fresh.height, dtype=pl.Boolean)
    else:
        agreed = canary.golden.agreed(fresh.select("row", "value")).alias("agreed")
    fresh = fresh.with_columns(agreed)
    settled = fresh.filter(pl.col("code").is_not_null() & ~(pl.col("code").is_in(_JUDGED) & pl.col("ok").is_null()))
    job.golden_known = settled if known is None else pl.concat([known, settled])
    return fresh if known is None else pl.concat([known, fresh])
