"""From verdicts to one word a lot: what people said of each sampled answer, and what that proves of the lot.

Until the planned number is read only the set that may be looked at any time is given; then the interval and the
decision of the plan, once. What is open, unread or changed decides nothing and says so.
"""

from __future__ import annotations

import hashlib

import numpy as np
import polars as pl

from lotwise.stats import bad_rate_intervals, decide_many
from lotwise.stats.distributions import Bools, Ints, complement
from lotwise.stats.peeking import peeking_limits

VERDICTS = ("bad", "good", "unsure")

DECISIONS = pl.Enum(["release", "re_review", "continue"])

LOT_OPEN, PARTLY, CHANGED, NOT_LOOKED, EMPTY = (
    "lot_open",
    "partly_inspected",
    "answers_changed",
    "no_inspection",
    "empty_lot",
)
"""Reasons for `continue` besides those of `stats.decide`: requests are not final, the planned number is not read,
and verdicts were void because their answers changed."""

LOTS = pl.Schema(
    {
        "lot_id": pl.String(),
        "n_rows": pl.Int64(),  # rows of the frame
        "n_unique": pl.Int64(),  # distinct requests
        "n_invalid": pl.Int64(),  # distinct requests that ended without a valid answer
        "population": pl.Int64(),  # distinct valid answers: what the rates are about
        "plan_kind": pl.String(),
        "plan_n": pl.Int64(),
        "plan_c": pl.Int64(),
        "aql": pl.Float64(),
        "limit": pl.Float64(),
        "alpha": pl.Float64(),
        "beta": pl.Float64(),
        "accept_at_aql": pl.Float64(),
        "accept_at_limit": pl.Float64(),
        "seed": pl.Int64(),
        "drawn_at": pl.Datetime("us", "UTC"),
        "n_looked": pl.Int64(),  # sampled answers with a verdict, unsure ones included
        "n_unsure": pl.Int64(),
        "x_bad": pl.Int64(),
        "rate": pl.Float64(),  # bad among the looked; null where nobody said bad or good
        "low": pl.Float64(),
        "high": pl.Float64(),
        "confidence": pl.Float64(),
        "method": pl.String(),
        "upper_one_sided": pl.Float64(),  # the bound that decides
        "decision": DECISIONS,
        "reason": pl.String(),
        "looks": pl.Int64(),  # times that verdicts were recorded
        "cs_low": pl.Float64(),  # the peeking-safe set
        "cs_high": pl.Float64(),
        "row_rate": pl.Float64(),  # bad rows among the rows of the looked answers
        "judge_rate_raw": pl.Float64(),
        "judge_sens": pl.Float64(),
        "judge_spec": pl.Float64(),
        "judge_n": pl.Int64(),
        "assisted_rate": pl.Float64(),
        "assisted_low": pl.Float64(),
        "assisted_high": pl.Float64(),
        "assisted_method": pl.String(),
        "assumptions": pl.String(),
        "label": pl.String(),  # the shard or group; null for a run
        "n_void": pl.Int64(),  # sampled answers whose verdicts are void because the answer changed
    }
)
"""One row a lot. Plan columns are null until the lot is closed."""

STANDING = pl.Schema(
    {
        "lot_id": pl.String(),
        "label": pl.String(),
        "n_rows": pl.Int64(),
        "n_unique": pl.Int64(),
        "n_open": pl.Int64(),  # requests that are not final
        "n_invalid": pl.Int64(),
        "population": pl.Int64(),
    }
)
"""What a lot holds at the moment."""

PLANNED = pl.Schema(
    {
        "lot_id": pl.String(),
        "n": pl.Int64(),
        "population": pl.Int64(),
        "plan_kind": pl.String(),
        "plan_n": pl.Int64(),
        "plan_c": pl.Int64(),
        "aql": pl.Float64(),
        "limit": pl.Float64(),
        "confidence": pl.Float64(),
        "margin": pl.Float64(),
        "accept_at_aql": pl.Float64(),
        "accept_at_limit": pl.Float64(),
        "seed": pl.Int64(),
        "drawn_at": pl.Datetime("us", "UTC"),
    }
)
"""A lot's latest draw."""

SAMPLED = pl.Schema(
    {
        "lot_id": pl.String(),
        "key": pl.String(),
        "rank": pl.Int64(),
        "multiplicity": pl.Int64(),
        "answer_digest": pl.String(),  # of the answer as it is now
    }
)

INSPECTIONS = pl.Schema(
    {
        "seq": pl.Int64(),
        "lot_id": pl.String(),
        "key": pl.String(),
        "answer_digest": pl.String(),
        "verdict": pl.String(),
        "inspector": pl.String(),
        "inspected_at": pl.Datetime("us", "UTC"),
        "recorded_at": pl.Datetime("us", "UTC"),
    }
)


def digests(values: pl.Series) -> pl.Series:
    """Return 16 hex of each value's SHA-256; null for null."""
    made = [None if value is None else hashlib.sha256(value.encode()).hexdigest()[:16] for value in values.to_list()]
    return pl.Series("answer_digest", made, dtype=pl.String)


def settled(inspections: pl.DataFrame) -> pl.DataFrame:
    """Make one verdict of all that was said of each answer.

    Parameters
    ----------
    inspections
        `INSPECTIONS`.

    Returns
    -------
    `lot_id`, `key`, `answer_digest`, `verdict`: one row an answer.

    Notes
    -----
    Of one inspector's verdicts the latest counts. Between inspectors the most frequent one does; where two are equally
    frequent, as when two people disagree and nobody else looked, nobody knows: unsure.
    """
    answer = ["lot_id", "key", "answer_digest"]
    each = inspections.sort("inspected_at", "seq").unique([*answer, "inspector"], keep="last", maintain_order=True)
    votes = each.group_by(*answer, "verdict").len("votes")
    return (
        votes.group_by(answer)
        .agg(
            verdict=pl.col("verdict").sort_by("votes").last(),
            ties=(pl.col("votes") == pl.col("votes").max()).sum(),
        )
        .select(*answer, verdict=pl.when(pl.col("ties") == 1).then("verdict").otherwise(pl.lit("unsure")))
    )


def lot_table(
    standing: pl.DataFrame, planned: pl.DataFrame, sampled: pl.DataFrame, inspections: pl.DataFrame
) -> pl.DataFrame:
    """Say what is known of each lot.

    Parameters
    ----------
    standing, planned, sampled, inspections
        `STANDING`, and of the lots' latest draws `PLANNED`, `SAMPLED` and `INSPECTIONS`.

    Returns
    -------
    `LOTS`, one row a lot of `standing`, in its order.
    """
    lots = standing.join(
        planned.rename({"population": "planned"}), on="lot_id", how="left", maintain_order="left", validate="1:1"
    ).join(_counts(sampled, inspections), on="lot_id", how="left", maintain_order="left")
    numbers = ["n_looked", "n_unsure", "x_bad", "n_void", "looks", *_LOOKS]
    lots = lots.with_columns(pl.col(numbers).fill_null(0))
    # A repaired lot holds other answers than were drawn from, until it is drawn anew.
    is_closed = (pl.col("n_open") == 0) & (pl.col("planned") == pl.col("population")).fill_null(False)
    lots = lots.with_columns(is_closed=is_closed).with_columns(
        is_read=pl.col("is_closed") & (pl.col("plan_n") > 0) & (pl.col("n_looked") == pl.col("plan_n"))
    )
    lots = lots.with_columns(*_peeking(lots), *_decided(lots))
    waiting = (
        pl.when(~pl.col("is_closed"))
        .then(pl.lit(LOT_OPEN))
        .when(pl.col("population") == 0)
        .then(pl.lit(EMPTY))
        .when(pl.col("n_void") > 0)
        .then(pl.lit(CHANGED))
        .when(pl.col("n_looked") > 0)
        .then(pl.lit(PARTLY))
        .otherwise(pl.lit(NOT_LOOKED))
    )
    some, known = pl.col("n_looked") > 0, pl.col("n_looked") > pl.col("n_unsure")  # bad or good of one at least
    told = lots.with_columns(
        alpha=(1 - pl.col("confidence")).round(12),
        beta=(1 - pl.col("confidence")).round(12),
        rate=pl.when(known).then(pl.col("x_bad") / pl.col("n_looked")),
        method=pl.when("is_read").then(pl.lit("exact_finite")).when(some).then(pl.lit("peeking_safe")),
        decision=pl.col("decision").fill_null("continue"),
        reason=pl.col("reason").fill_null(waiting),
        row_rate=pl.when(known & pl.col("is_read")).then("row_rate"),
    )
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in LOTS.items() if name not in told.columns]
    return told.with_columns(absent).select(list(LOTS)).cast(LOTS)


_LOOKS = ("prefix", "prefix_bad", "prefix_unsure", "reach", "reach_bad", "reach_unsure")


def _counts(sampled: pl.DataFrame, inspections: pl.DataFrame) -> pl.DataFrame:
    """Count per lot what was seen, over the whole sample and at two looks in the order of drawing.

    The first look is the unbroken beginning, the second reaches to the last answer that was read; what was left out
    before it counts as unsure, so that leaving hard ones for later cannot help.
    """
    voices = inspections.group_by("lot_id", "key").agg(pl.len().alias("voices"))
    told = settled(inspections)
    rows = (
        sampled.join(told, on=["lot_id", "key", "answer_digest"], how="left")
        .join(voices, on=["lot_id", "key"], how="left")
        .sort("lot_id", "rank")
    )
    looked, bad, unsure = (
        pl.col("verdict").is_not_null(),
        (pl.col("verdict") == "bad").fill_null(False),
        (pl.col("verdict") == "unsure").fill_null(False),
    )
    rows = rows.with_columns(
        unbroken=looked.cast(pl.Int8).cum_min().over("lot_id") == 1,
        reached=pl.col("rank") <= pl.when(looked).then("rank").max().over("lot_id"),
    )
    looks = inspections.group_by("lot_id").agg(looks=pl.col("recorded_at").n_unique().cast(pl.Int64))
    counted = rows.group_by("lot_id").agg(
        n_looked=looked.sum(),
        n_unsure=unsure.sum(),
        x_bad=bad.sum(),
        n_void=(pl.col("voices").is_not_null() & ~looked).sum(),
        prefix=pl.col("unbroken").sum(),
        prefix_bad=(pl.col("unbroken") & bad).sum(),
        prefix_unsure=(pl.col("unbroken") & unsure).sum(),
        reach=pl.col("reached").sum(),
        reach_bad=bad.sum(),
        reach_unsure=(pl.col("reached") & (unsure | ~looked)).sum(),
        row_rate=pl.when(looked & bad).then("multiplicity").otherwise(0).sum()
        / pl.when(looked).then("multiplicity").otherwise(0).sum(),
    )
    return counted.with_columns(pl.col(pl.UInt32).cast(pl.Int64)).join(looks, on="lot_id", how="left")


def _peeking(lots: pl.DataFrame) -> list[pl.Series]:
    """Return the peeking-safe set of each lot that has a draw, as rates: what neither of the two looks rules out."""
    low, high = np.full(lots.height, np.nan), np.full(lots.height, np.nan)
    drawn = lots["planned"].is_not_null().to_numpy()
    for level, at in _by(lots, drawn, ["confidence"]):
        total = _ints(lots, "planned", at)
        least, most = np.zeros_like(total), total.copy()
        for look in ("prefix", "reach"):
            n, bad, unsure = (_ints(lots, name, at) for name in (look, f"{look}_bad", f"{look}_unsure"))
            alpha = complement(level[0])
            least = np.maximum(least, peeking_limits(bad, n, total, alpha)[0])
            most = np.minimum(most, peeking_limits(bad + unsure, n, total, alpha)[1])
        size = np.maximum(total, 1)
        fits = least <= most  # ruled out altogether: a chance below 1 - confidence, told as no set at all
        low[at] = np.where(fits, least / size, np.nan)
        high[at] = np.where(fits, np.where(total > 0, most / size, 1.0), np.nan)
    return [pl.Series(name, ends).fill_nan(None) for name, ends in (("cs_low", low), ("cs_high", high))]


def _decided(lots: pl.DataFrame) -> list[pl.Series]:
    """Return interval, bound and decision of the lots whose planned number is read; null for the others."""
    floats = {name: np.full(lots.height, np.nan) for name in ("low", "high", "upper_one_sided")}
    words: dict[str, list[str | None]] = {"decision": [None] * lots.height, "reason": [None] * lots.height}
    for rule, at in _by(lots, lots["is_read"].to_numpy(), ["limit", "aql", "confidence"]):
        limit, aql, confidence = rule
        x, n, total, unsure = (_ints(lots, name, at) for name in ("x_bad", "n_looked", "planned", "n_unsure"))
        intervals = bad_rate_intervals(x, n, population=total, confidence=confidence, unsure=unsure)
        decisions = decide_many(
            x, n, population=total, acceptable=aql, limit=limit, confidence=confidence, unsure=unsure
        )
        for name in floats:
            floats[name][at] = getattr(intervals, name)
        for name, held in words.items():
            for i, word in zip(at, getattr(decisions, name), strict=True):
                held[i] = str(word)
    return [
        *(pl.Series(name, ends).fill_nan(None) for name, ends in floats.items()),
        *(pl.Series(name, held, dtype=pl.String) for name, held in words.items()),
    ]


def _by(lots: pl.DataFrame, chosen: Bools, names: list[str]) -> list[tuple[tuple[float, ...], Ints]]:
    """Part the chosen lots into those that share a rule; each with the places of its lots."""
    at = lots.select(*names, place=pl.int_range(pl.len())).filter(pl.Series(chosen))
    return [(rule, group["place"].to_numpy()) for rule, group in at.group_by(names, maintain_order=True)]


def _ints(lots: pl.DataFrame, name: str, at: Ints) -> Ints:
    return lots[name].gather(pl.Series(at)).cast(pl.Int64).to_numpy()


def row_columns(lots: pl.DataFrame) -> pl.DataFrame:
    """Return what the rows of each lot show, from `LOTS`.

    Returns
    -------
    `llm_lot`, `llm_inspected`, `llm_defect_rate`, `llm_defect_low`, `llm_defect_high`, `llm_defect_upper`,
    `llm_decision`, `llm_reason`: one row a lot. Until the planned number is read the limits are those of the
    peeking-safe set, and there is no bound that decides; nothing is shown of a lot that nobody looked at.
    """
    some, read = pl.col("n_looked") > 0, pl.col("method") == "exact_finite"
    return lots.select(
        llm_lot="lot_id",
        llm_inspected="n_looked",
        llm_defect_rate="rate",
        llm_defect_low=pl.when(read).then("low").when(some).then("cs_low"),
        llm_defect_high=pl.when(read).then("high").when(some).then("cs_high"),
        llm_defect_upper="upper_one_sided",
        llm_decision="decision",
        llm_reason="reason",
    )
