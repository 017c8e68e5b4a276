"""Handing out a lot's sample to be read: what was asked, what was answered, and empty places for verdicts.

The sample is the ledger's, drawn when the lot was closed, whatever rows somebody holds in a frame. It shows nothing of
any judge, so that who reads it is not led.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from typing import Any

import polars as pl

from lotwise import evidence, lots
from lotwise.clock import SystemClock
from lotwise.errors import (
    BadArgument,
    ContentPurged,
    LotOpen,
    NothingToInspect,
    UnknownColumn,
    UnknownLot,
    UnreadableValue,
    UntranslatableSchema,
)
from lotwise.handle import LedgerHandle
from lotwise.ledger import evidence as store
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger
from lotwise.run import Run
from lotwise.status import schema_of
from lotwise.typed import typed_columns

LedgerLike = str | os.PathLike[str] | LedgerHandle | Ledger | None

TO_FILL_IN = pl.Schema(
    {
        "verdict": pl.String(),
        "inspector": pl.String(),
        "inspected_at": pl.Datetime("us", "UTC"),
        "note": pl.String(),
    }
)
"""The columns of a sample that whoever reads it fills in: bad, good or unsure; who; when; what for."""

FRONT = ("llm_lot", "llm_id", "answer_digest", "input")
BACK = ("sampled", "sample_weight", "stratum", "multiplicity")


def sample(
    ledger: LedgerLike = None, run: str | Run | None = None, *, lot: str | Iterable[str] | None = None
) -> pl.DataFrame:
    """Return the answers of a run's lots that were drawn to be read.

    Parameters
    ----------
    ledger
        The ledger or its folder; None to find it as `map` does.
    run
        The run, or its id.
    lot
        These lots only, by their id. With it `run` may be left out.

    Returns
    -------
    One row a drawn answer, in the order of reading: `llm_lot`, `llm_id`, `answer_digest`; `input`, what was asked; the
    answer's fields; `verdict`, `inspector`, `inspected_at`, `note`, empty, to fill in for `inspect`; `sampled`,
    `sample_weight` (answers of the stratum for each drawn one), `stratum`, `multiplicity` (rows that share the answer).
    A field that has the name of one of these columns is called ``answer_<name>``. It says nothing of a judge's opinion.

    Raises
    ------
    UnknownRun, UnknownLot, LotOpen, NothingToInspect, ContentPurged

    Notes
    -----
    Sends nothing. The same rows come each time, in another process too. Read them from the top: until all are read,
    what was left out on the way counts against both sides.
    """
    held = ledger_of(ledger)
    if run is None and lot is None:
        raise BadArgument.of("run", "must be said, as a run or its id, or else lot=")
    wanted = None if lot is None else [lot] if isinstance(lot, str) else list(lot)
    if run is not None:
        family = lots.family_of(held, run.id if isinstance(run, Run) else run)
        lots.close(held, family, SystemClock().now())
        every = store.lots_of(held, family.id)["id"].to_list()
        wanted = every if wanted is None else wanted
        if strange := [one for one in wanted if one not in every]:
            raise UnknownLot.of(strange, every)
    assert wanted is not None
    return _drawn(held, wanted)


def sample_of_frame(frame: pl.DataFrame, ledger: LedgerLike, prefix: str) -> pl.DataFrame:
    """Return the samples of the lots that a frame's rows belong to, whichever rows they are."""
    column = prefix + "llm_lot"
    if column not in frame.columns:
        raise UnknownColumn.from_names([column], frame.columns, where="the frame")
    return sample(ledger, lot=frame[column].drop_nulls().unique().sort().to_list())


def _drawn(ledger: Ledger, wanted: list[str]) -> pl.DataFrame:
    named = store.lots(ledger, wanted)
    if strange := set(wanted) - set(named["id"]):
        raise UnknownLot.of(sorted(strange), store.known_lots(ledger))
    frames: list[pl.DataFrame] = []
    still: list[str] = []
    for (family,), group in named.group_by("family", maintain_order=True):
        ids = group["id"].to_list()
        row = group.row(0, named=True)
        draws, drawn, _ = store.evidence(ledger, ids)
        undrawn = sorted(set(ids) - set(draws["lot_id"]))
        if undrawn and lots.close(ledger, lots.Family.of_lot(row), SystemClock().now()):
            draws, drawn, _ = store.evidence(ledger, ids)
            undrawn = sorted(set(ids) - set(draws["lot_id"]))
        still += undrawn
        frames.append(_readable(ledger, str(family), row, drawn))
    frames = [one for one in frames if one.height]
    if not frames:
        raise LotOpen.of(still) if still else NothingToInspect.of(wanted)
    return pl.concat(frames, how="diagonal")


def _readable(ledger: Ledger, family: str, row: Mapping[str, Any], drawn: pl.DataFrame) -> pl.DataFrame:
    """Put a family's sample into the shape in which it is read."""
    keys = drawn["key"].unique()
    values = store.values(ledger, keys, row["validator"])
    held = drawn.join(values, on="key", how="left", maintain_order="left").join(
        store.contents(ledger, keys), on="key", how="left", maintain_order="left"
    )
    if held.height and held["value"].is_null().all():  # a valid answer has a value until it is purged
        raise ContentPurged.answers(held["lot_id"].unique().sort())
    now = evidence.digests(held["value"])
    answers = _answers(ledger, row["run"], held["value"])
    taken = {*FRONT, *TO_FILL_IN, *BACK}
    answers.columns = [_beside(name, taken, answers.columns) for name in answers.columns]
    front = held.select(
        llm_lot="lot_id",
        llm_id="key",
        answer_digest=pl.coalesce(now, "answer_digest"),
        input="content",
    )
    empty = pl.DataFrame({name: pl.Series([None] * held.height, dtype=dtype) for name, dtype in TO_FILL_IN.items()})
    back = held.select(sampled=pl.lit(True), sample_weight="weight", stratum="stratum", multiplicity="multiplicity")
    return pl.concat([front, answers, empty, back], how="horizontal")


def _beside(name: str, taken: set[str], fields: list[str]) -> str:
    """Return what a field is called among columns whose names are taken, and where no other field is called so."""
    new = name
    while new in taken or (new != name and new in fields):
        new = f"answer_{new}"
    return new


def _answers(ledger: Ledger, run_id: str, values: pl.Series) -> pl.DataFrame:
    """Read answers into columns by their schema, else as the JSON that they are."""
    row = run_book.row(ledger, run_id) or {}
    try:
        columns, lost = typed_columns(values, schema_of(row).dtypes)
    except (UnreadableValue, UntranslatableSchema):
        return values.alias("answer").to_frame()
    if columns.is_empty() or any(bool(one.any()) for one in lost.values()):
        return values.alias("answer").to_frame()
    return columns


def ledger_of(ledger: LedgerLike) -> Ledger:
    """Open the ledger that an argument names."""
    if isinstance(ledger, Ledger):
        return ledger
    if isinstance(ledger, LedgerHandle):
        return Ledger.open(ledger.path, create=False)
    return Ledger.open(ledger, create=False)
