"""Joining answers back to the frame, by key and by nothing else.

The frame keeps its height, its order and its columns; dtypes always come from the schema. A row whose request has no
valid answer shows nulls, its state, and why.
"""

from __future__ import annotations

import json

import polars as pl

from lotwise.call import BOOKKEEPING, Call
from lotwise.lifecycle import ROW_STATES, RowState
from lotwise.shown import Shown


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
        typed = pl.select(pl.when(answers["value"].is_not_null()).then(typed.to_struct()))
    # By number until they stand beside the frame: a field may be called as a column of ours, or as a pattern of Polars.
    numbers = [str(i) for i in range(typed.width)]
    typed.columns = numbers
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
    own = rows.select(numbers)
    own.columns = list(call.answer_columns)
    return pl.concat([frame, own, bookkeeping], how="horizontal")


def _evidence(keys: pl.Series, lots: Shown) -> pl.DataFrame:
    """Return each row's lot and what is known of it; null for a row that asks for nothing."""
    if lots.place is None:
        known = lots.lots.row(0, named=True)
        asked = pl.lit(keys.is_not_null())
        literal = {name: pl.lit(known[name], dtype) for name, dtype in lots.lots.schema.items()}
        return pl.select(pl.when(asked).then(value).alias(name) for name, value in literal.items())
    place = pl.select(pl.when(keys.is_not_null()).then(lots.place)).to_series()
    return lots.lots.select(pl.all().gather(place))


def _errors(answers: pl.DataFrame) -> pl.Series:
    """Write each key's `llm_error`: a code, and for an invalid answer the first fault's path and kind.

    What ended by its own fault has the provider's word for it: one word, never a sentence, which could quote the row.
    """
    worded = pl.when(pl.col("detail").is_null() | (pl.col("detail") == pl.col("reason"))).then("reason")
    both = pl.concat_str("reason", pl.lit(": "), "detail")
    reasons, faults = answers.select(worded.otherwise(both)).to_series().alias("reason"), answers["faults"]
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
