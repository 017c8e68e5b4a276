"""Joining answers back to the frame, by key and by nothing else.

The frame keeps its height, its order and its columns; dtypes always come from the schema. A row whose request has no
valid answer shows nulls, its state, and why.
"""

from __future__ import annotations

import json

import polars as pl

from lotwise.call import BOOKKEEPING, DECISIONS, Call
from lotwise.lifecycle import ROW_STATES, RowState

NO_INSPECTION = "no_inspection"


def attach(frame: pl.DataFrame, keys: pl.Series, answers: pl.DataFrame, call: Call, lot: str | None) -> pl.DataFrame:
    """Return the frame with its answers as typed columns, and the bookkeeping columns after them.

    Parameters
    ----------
    frame
        The input.
    keys
        Each row's key, in the frame's order; null for a skipped row.
    answers
        One row a distinct key: `key`, `state`, `reason`, `faults`, `attempts`, `value` (`Ledger.answers`).
    call
        Names and dtypes of the output.
    lot
        The lot that the rows belong to, or None where the ledger has none yet.
    """
    if keys.len() != frame.height:
        raise ValueError(f"{keys.len()} keys for a frame of {frame.height} rows")
    typed = call.validator.columns(answers["value"])
    if call.into is not None:
        whole = pl.struct(typed.columns) if typed.columns else pl.lit(None)
        name = call.prefix + call.into
        typed = typed.select(pl.when(answers["value"].is_not_null()).then(whole).alias(name))
    else:
        typed = typed.rename({name: call.prefix + name for name in typed.columns})
    told = pl.concat([answers.select("key", "state", "attempts"), _errors(answers).to_frame(), typed], how="horizontal")
    rows = (
        pl.DataFrame({"key": keys.alias("key")})
        .join(told, on="key", how="left", maintain_order="left", validate="m:1")
        .with_columns(pl.col("state").fill_null(pl.lit(RowState.SKIPPED.value)))
    )
    asked = pl.col("key").is_not_null()
    bookkeeping = rows.select(
        llm_id="key",
        llm_state=pl.col("state").cast(ROW_STATES),
        llm_error="error",
        llm_attempts=pl.col("attempts").fill_null(0).cast(pl.Int32),
        llm_lot=pl.when(asked).then(pl.lit(lot, pl.String)),
        llm_inspected=pl.when(asked).then(pl.lit(0, pl.Int64)),
        llm_defect_rate=pl.lit(None, pl.Float64),
        llm_defect_low=pl.lit(None, pl.Float64),
        llm_defect_high=pl.lit(None, pl.Float64),
        llm_defect_upper=pl.lit(None, pl.Float64),
        llm_decision=pl.when(asked).then(pl.lit("continue")).cast(DECISIONS),
        llm_reason=pl.when(asked).then(pl.lit(NO_INSPECTION)),
    )
    bookkeeping = bookkeeping.cast(BOOKKEEPING).rename({n: call.prefix + n for n in bookkeeping.columns})
    return pl.concat([frame, rows.select(list(call.answer_columns)), bookkeeping], how="horizontal")


def _errors(answers: pl.DataFrame) -> pl.Series:
    """Write each key's `llm_error`: a code, and for an invalid answer the first fault's path and kind."""
    reasons, faults = answers["reason"], answers["faults"]
    if faults.null_count() == faults.len():
        return reasons.alias("error")
    told = [
        reason if fault is None or reason is None else f"{reason}{_first(fault, reason)}"
        for reason, fault in zip(reasons.to_list(), faults.to_list(), strict=True)
    ]
    return pl.Series("error", told, dtype=pl.String)


def _first(faults: str, code: str) -> str:
    listed = json.loads(faults)
    if not listed:
        return ""
    path, kind = listed[0].get("path", ""), listed[0].get("kind", "")
    told = " ".join(word for word in (path, kind) if word and word != code)
    return f": {told}" if told else ""
