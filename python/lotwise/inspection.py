"""Taking verdicts in: what people said of the answers of lots, from a frame or a file.

A verdict belongs to an answer, not to a row or a place: it carries the answer's digest, and counts only for that
answer. What cannot be recorded is told with its reason, and harms no other row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import polars as pl

from lotwise import evidence, lots, tables
from lotwise.clock import Clock, SystemClock
from lotwise.errors import UnknownColumn
from lotwise.ledger import evidence as store
from lotwise.ledger.store import Ledger
from lotwise.reading import TO_FILL_IN, LedgerLike, ledger_of

NEEDED = ("llm_lot", "llm_id", "answer_digest", "verdict")


@dataclass(frozen=True, kw_only=True)
class Inspected:
    """What came of a frame of verdicts.

    Attributes
    ----------
    n_recorded
        Verdicts written down.
    n_repeated
        Verdicts that the same inspector had given before.
    n_blank
        Rows without a verdict.
    n_outside
        Recorded verdicts on answers of a lot that are not in its sample: kept, and not counted.
    rejected
        `llm_lot`, `llm_id` and `why` of what was not recorded: `unknown_lot`, `lot_open`, `unknown_id`,
        `answer_changed`, `unknown_verdict`, `unreadable_time`.
    lots
        `evidence.LOTS` of the lots that the frame names, as they stand now.
    """

    n_recorded: int
    n_repeated: int
    n_blank: int
    n_outside: int
    rejected: pl.DataFrame = field(repr=False)
    lots: pl.DataFrame = field(repr=False)

    @property
    def n_rejected(self) -> Mapping[str, int]:
        """How many were not recorded, by why."""
        return dict(self.rejected.group_by("why", maintain_order=True).len().iter_rows())

    def __str__(self) -> str:
        told = [f"{self.n_recorded:,} verdicts recorded"]
        if self.n_repeated:
            told.append(f"{self.n_repeated:,} were there already")
        if self.n_blank:
            told.append(f"{self.n_blank:,} rows have none yet")
        if self.n_outside:
            told.append(f"{self.n_outside:,} are on answers outside the sample, and are not counted")
        told += [f"{n:,} not recorded: {_WHY[why]}" for why, n in self.n_rejected.items()]
        return "\n".join(told)


_WHY = {
    "unknown_lot": "the ledger has no such lot",
    "lot_open": "the lot is not closed, so nothing was drawn from it",
    "unknown_id": "the lot has no such request",
    "answer_changed": "the answer is another one now, which nobody has looked at",
    "unknown_verdict": f"a verdict is one of {', '.join(evidence.VERDICTS)}",
    "unreadable_time": "inspected_at is no time",
}


def inspect(
    verdicts: pl.DataFrame | str | os.PathLike[str],
    ledger: LedgerLike = None,
    *,
    inspector: str | None = None,
    clock: Clock | None = None,
) -> Inspected:
    """Record what people said of the answers of lots.

    Parameters
    ----------
    verdicts
        A frame, or a CSV, Parquet or NDJSON file, as `sample` gave it: `llm_lot`, `llm_id`, `answer_digest`, `verdict`
        (bad, good, unsure, or empty for what was not read), and if they are there `inspector`, `inspected_at` and
        `note`. Other columns are not looked at.
    ledger
        The ledger or its folder; None to find it as `map` does.
    inspector
        Who looked, where the column does not say.

    Returns
    -------
    An `Inspected`: how much was recorded, and what was not and why.

    Raises
    ------
    UnknownColumn, UnreadableTable

    Notes
    -----
    Sends nothing. A verdict is never overwritten: of one inspector the latest counts, and where inspectors disagree the
    most frequent does, else the answer counts as unsure. The next `peek` or `map` shows what they prove.
    """
    held = ledger_of(ledger)
    frame = verdicts if isinstance(verdicts, pl.DataFrame) else tables.read(Path(verdicts))
    done = take_in(held, frame, inspector, (clock or SystemClock()).now())
    known = frame["llm_lot"].cast(pl.String).drop_nulls().unique().sort().to_list()
    return replace(done, lots=table_of(held, known))


def take_in(ledger: Ledger, frame: pl.DataFrame, inspector: str | None, now: datetime) -> Inspected:
    """Record a frame of verdicts, as `inspect` does, without looking at what they prove."""
    if missing := [name for name in NEEDED if name not in frame.columns]:
        raise UnknownColumn.from_names(missing, frame.columns, where="verdicts")
    read = _read(frame, inspector, now)
    said = read.filter(pl.col("verdict").is_not_null())
    named = store.lots(ledger, said["lot_id"].drop_nulls().unique().to_list())
    draws, drawn, before = store.evidence(ledger, named["id"].to_list())
    judged = said.with_columns(_why(ledger, said, named, draws))
    good = judged.filter(pl.col("why").is_null()).join(draws.select("lot_id", draw="n"), on="lot_id", how="left")
    new = _new(good, before)
    if new.height:
        # Not before the plan, even where a clock was set back: the plan was there.
        store.record_inspections(ledger, new, max(now, cast(datetime, draws["drawn_at"].max())))
    return Inspected(
        n_recorded=new.height,
        n_repeated=good.height - new.height,
        n_blank=read.height - said.height,
        n_outside=new.join(drawn.select("lot_id", "key"), on=["lot_id", "key"], how="anti").height,
        rejected=judged.drop_nulls("why").select(llm_lot="lot_id", llm_id="key", why="why"),
        lots=pl.DataFrame(schema=evidence.LOTS),
    )


def _read(frame: pl.DataFrame, inspector: str | None, now: datetime) -> pl.DataFrame:
    """Bring a frame of verdicts to fixed names and dtypes; an unreadable time is null and marked."""
    absent = [pl.lit(None, dtype).alias(name) for name, dtype in TO_FILL_IN.items() if name not in frame.columns]
    whole = frame.with_columns(absent)
    times = moments(whole["inspected_at"])
    text = {name: pl.col(name).cast(pl.String).str.strip_chars() for name in (*NEEDED, "inspector", "note")}
    return whole.select(
        pl.int_range(pl.len()).alias("place"),
        lot_id=text["llm_lot"],
        key=text["llm_id"],
        answer_digest=text["answer_digest"],
        verdict=_filled(text["verdict"].str.to_lowercase()),
        inspector=_filled(text["inspector"]).fill_null(inspector or "unnamed"),
        inspected_at=times.fill_null(now),
        note=_filled(text["note"]),
        bad_time=times.is_null() & _filled(whole["inspected_at"].cast(pl.String)).is_not_null(),
    )


def _filled(text: Any) -> Any:
    """Take empty text for none."""
    return text.replace("", None)


def moments(column: pl.Series) -> pl.Series:
    """Read times as people and spreadsheets write them; without an offset they are UTC, and what is none is null."""
    if column.dtype == pl.String:
        plain = column.str.strip_chars().str.replace(r"^(\d{4}-\d\d-\d\d)$", "${1}T00:00")
        plain = plain.str.replace(r"^(\S{10})[ T](\d\d:\d\d)(:\d\d)?", "${1}T${2}${3}")
        plain = plain.str.replace(r"^(\S{10}T\d\d:\d\d)([^:\d]|$)", "${1}:00${2}")
        plain = plain.str.replace(r"([+-]\d\d)(\d\d)$", "${1}:${2}")
        offset = plain.str.contains(r"(?:[zZ]|[+-]\d\d:\d\d)$")
        whole = pl.select(pl.when(offset).then(plain).otherwise(plain + "Z")).to_series()
        return whole.str.to_datetime("%+", time_unit="us", strict=False).dt.convert_time_zone("UTC")
    if column.dtype == pl.Date:
        column = column.cast(pl.Datetime("us"))
    if isinstance(column.dtype, pl.Datetime):
        aware = column.dt.replace_time_zone("UTC") if column.dtype.time_zone is None else column
        return aware.dt.convert_time_zone("UTC").cast(pl.Datetime("us", "UTC"))
    return pl.Series([None] * column.len(), dtype=pl.Datetime("us", "UTC"))


def _why(ledger: Ledger, said: pl.DataFrame, named: pl.DataFrame, draws: pl.DataFrame) -> pl.Series:
    """Say why each verdict cannot be recorded; null for one that can."""
    belongs = store.belonging(ledger, said.drop_nulls(["lot_id", "key"])).with_columns(belongs=pl.lit(True))
    answers = [pl.DataFrame(schema={"validator": pl.String, "key": pl.String, "now": pl.String})]
    for (validator,), group in said.join(
        named.select(lot_id="id", validator="validator"), on="lot_id", how="inner"
    ).group_by("validator"):
        values = store.values(ledger, group["key"].drop_nulls().unique(), str(validator))
        now = evidence.digests(values["value"])
        answers.append(values.select(pl.lit(validator, pl.String).alias("validator"), "key", now.alias("now")))
    known = (
        said.join(named.select(lot_id="id", validator="validator"), on="lot_id", how="left", maintain_order="left")
        .join(draws.select("lot_id", drawn=pl.lit(True)), on="lot_id", how="left", maintain_order="left")
        .join(belongs, on=["lot_id", "key"], how="left", maintain_order="left")
        .join(pl.concat(answers), on=["validator", "key"], how="left", maintain_order="left")
    )
    # Where answers were purged there is nothing left to compare with.
    changed = pl.col("now").is_not_null() & pl.col("answer_digest").ne_missing(pl.col("now"))
    return known.select(
        pl.when(pl.col("validator").is_null())
        .then(pl.lit("unknown_lot"))
        .when(pl.col("drawn").is_null())
        .then(pl.lit("lot_open"))
        .when(pl.col("belongs").is_null())
        .then(pl.lit("unknown_id"))
        .when(changed)
        .then(pl.lit("answer_changed"))
        .when(~pl.col("verdict").is_in(evidence.VERDICTS))
        .then(pl.lit("unknown_verdict"))
        .when("bad_time")
        .then(pl.lit("unreadable_time"))
        .alias("why")
    ).to_series()


def _new(good: pl.DataFrame, before: pl.DataFrame) -> pl.DataFrame:
    """Leave out what the same inspector has said already: the same words at the same time, or again the last word."""
    about = ["lot_id", "key", "answer_digest", "inspector"]
    exact = [*about, "verdict", "inspected_at"]
    fresh = good.join(before.select(exact).unique(), on=exact, how="anti").unique(exact, keep="first")
    history = pl.concat(
        [
            before.select(*exact, place=pl.lit(-1, pl.Int64), old=pl.col("seq")),
            fresh.select(*exact, pl.col("place").cast(pl.Int64), old=pl.lit(2**62, pl.Int64)),
        ]
    ).sort("inspected_at", "old", "place")
    repeats = history.filter(
        (pl.col("place") >= 0) & (pl.col("verdict") == pl.col("verdict").shift(1).over(about)).fill_null(False)
    )
    return fresh.join(repeats.select(pl.col("place").cast(fresh["place"].dtype)), on="place", how="anti").sort("place")


def table_of(ledger: LedgerLike, ids: Iterable[str]) -> pl.DataFrame:
    """Return what is known of these lots: `evidence.LOTS`."""
    held = ledger_of(ledger)
    named = store.lots(held, list(ids))
    told = [
        lots.table(held, lots.Family.of_lot(group.row(0, named=True))).filter(
            pl.col("lot_id").is_in(group["id"].implode())
        )
        for _, group in named.group_by("family", maintain_order=True)
    ]
    return pl.concat([pl.DataFrame(schema=evidence.LOTS), *told])
