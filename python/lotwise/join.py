"""Joining answers back to the frame, by key and by nothing else.

The frame keeps its height, its order and its columns; dtypes always come from the schema. A row whose request has no
valid answer shows nulls, its state, and why.
"""

from __future__ import annotations

import json

import polars as pl

from lotwise.call import BOOKKEEPING, Call
from lotwise.evidence import NOT_LOOKED
from lotwise.lifecycle import ROW_STATES, RowState
from lotwise.lots import Shown


def attach(frame: pl.DataFrame, keys: pl.Series, answers: pl.DataFrame, call: Call, lots: Shown) -> pl.DataFrame:
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
    lots
        The lots that the rows belong to, and what is known of them.
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
    bookkeeping = rows.select(
        llm_id="key",
        llm_state=pl.col("state").cast(ROW_STATES),
        llm_error="error",
        llm_attempts=pl.col("attempts").fill_null(0).cast(pl.Int32),
    )
    bookkeeping = pl.concat([bookkeeping, _evidence(keys, lots)], how="horizontal").cast(BOOKKEEPING)
    bookkeeping = bookkeeping.rename({n: call.prefix + n for n in bookkeeping.columns})
    return pl.concat([frame, rows.select(list(call.answer_columns)), bookkeeping], how="horizontal")


_UNKNOWN = {"llm_inspected": 0, "llm_decision": "continue", "llm_reason": NOT_LOOKED}
"""What is said of a lot that there is no evidence of."""


def _evidence(keys: pl.Series, lots: Shown) -> pl.DataFrame:
    """Return each row's lot and what is known of it; null for a row that asks for nothing."""
    asked = pl.lit(keys.is_not_null())
    if isinstance(lots.lot, str):
        known = lots.columns.filter(llm_lot=lots.lot).row(0, named=True) if lots.columns.height else {}
        said = {**dict.fromkeys(lots.columns.columns), **_UNKNOWN, **known, "llm_lot": lots.lot}
        told = [pl.lit(said[name], dtype) for name, dtype in lots.columns.schema.items()]
        return pl.select(pl.when(asked).then(one).alias(name) for name, one in zip(said, told, strict=True))
    rows = pl.DataFrame({"llm_lot": lots.lot}).join(lots.columns, on="llm_lot", how="left", maintain_order="left")
    rows = rows.with_columns(pl.col(name).fill_null(pl.lit(word)) for name, word in _UNKNOWN.items())
    return rows.select(pl.when(asked).then(pl.col(name)).alias(name) for name in lots.columns.columns)


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
