"""What the rows of a frame show of their lots: looked up a lot, and handed to rows by place.

Evidence belongs to lots, of which there are few, and rows are many. So each lot is worked out once, each row knows the
place of its lot, and where a family is drawn already and nothing has come since, rows are not counted again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime

import polars as pl

from lotwise import evidence, lots
from lotwise.ledger import evidence as store
from lotwise.ledger.store import Ledger
from lotwise.lots import Family

OPEN_STATES = ("pending", "submitted", "absent")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the rows of a frame show of their lots.

    Attributes
    ----------
    lots
        `evidence.row_columns`, one row a lot.
    place
        The row of `lots` that each row of the frame shows, null for a row that is in no lot yet; None where all rows
        show the first.
    """

    lots: pl.DataFrame
    place: pl.Series | None


def shown(
    ledger: Ledger | None,
    family: Family,
    keys: pl.Series,
    labels: pl.Series | None,
    answers: pl.DataFrame,
    now: datetime,
) -> Shown:
    """Return what a frame's rows show of their lots; closes those that can be closed.

    Parameters
    ----------
    ledger
        None where there is none yet.
    keys, labels
        Each row's key, and its group where lots are groups.
    answers
        What each distinct key's row shows: `key`, `state`, `value`.
    """
    named = None if ledger is None else store.lots_of(ledger, family.id)
    if named is not None and not family.run and named.height:
        family = replace(family, run=named["run"][0])  # any run of the job has the same requests
    place = None
    if family.accept.scheme == "run":
        ids = pl.DataFrame({"label": [None], "lot": [family.id]}, schema={"label": pl.String, "lot": pl.String})
    else:
        labels = _first_shard(ledger, family, keys) if labels is None else labels
        ids = lots.ids_of(family, labels if family.accept.by else labels.drop_nulls())
        place = _places(labels, ids)
    if ledger is None or named is None or named.is_empty():
        return Shown(lots=_told(ids, None), place=place)  # such a call was never made
    draws, sample, inspections = store.evidence(ledger, ids["lot"].to_list())
    standing = _standing(family, keys, labels, answers, ids, draws)
    due = standing.join(draws.select("lot_id", drawn_from="population"), on="lot_id", how="left").filter(
        (pl.col("n_open") == 0) & pl.col("population").ne_missing(pl.col("drawn_from"))
    )
    if due.height and lots.close(ledger, family, now):
        draws, sample, inspections = store.evidence(ledger, ids["lot"].to_list())
    values = answers.select("key", "value").join(inspections.select("key").unique(), on="key", how="semi")
    table = lots.table_from(standing, draws, sample, inspections, values)
    return Shown(lots=_told(ids, evidence.row_columns(table)), place=place)


_UNKNOWN = {"llm_inspected": 0, "llm_decision": "continue", "llm_reason": evidence.NOT_LOOKED}
"""What is said of a lot that there is no evidence of."""


def _told(ids: pl.DataFrame, columns: pl.DataFrame | None) -> pl.DataFrame:
    """Return what each of the lots shows, in their order."""
    if columns is None:
        columns = evidence.row_columns(pl.DataFrame(schema=evidence.LOTS))
    told = ids.select(llm_lot="lot").join(columns, on="llm_lot", how="left", maintain_order="left")
    return told.with_columns(pl.col(name).fill_null(pl.lit(word)) for name, word in _UNKNOWN.items())


def _places(labels: pl.Series, ids: pl.DataFrame) -> pl.Series:
    numbered = ids.select("label", place=pl.int_range(pl.len(), dtype=pl.UInt32))
    return lots.with_lot(labels.alias("label").to_frame(), numbered)["place"]


# --- what lots hold, from the frame's own answers -----------------------------------------------------------------


def _standing(
    family: Family,
    keys: pl.Series,
    labels: pl.Series | None,
    answers: pl.DataFrame,
    ids: pl.DataFrame,
    draws: pl.DataFrame,
) -> pl.DataFrame:
    """Count what each lot holds: `evidence.STANDING`."""
    states = answers["state"]
    n_open, valid = int(states.is_in(OPEN_STATES).sum()), int((states == "succeeded").sum())
    if labels is None:
        held = {"n_open": n_open, "n_invalid": answers.height - n_open - valid, "population": valid}
        every = {"n_rows": keys.len() - keys.null_count(), "n_unique": answers.height}
        return pl.DataFrame([{"lot_id": family.id, "label": None, **every, **held}], schema=evidence.STANDING)
    if family.accept.by and n_open == 0 and _as_drawn(draws, ids.height, answers.height, answers.height - valid):
        stand = draws.join(ids.rename({"lot": "lot_id"}), on="lot_id").with_columns(n_open=0)
        return stand.select(list(evidence.STANDING)).cast(evidence.STANDING)
    rows = lots.with_lot(pl.DataFrame({"key": keys, "label": labels}), ids).drop_nulls(["key", "lot"])
    each = rows.group_by("lot", "label", "key").agg(multiplicity=pl.len())
    told = each.join(answers.select("key", "state"), on="key", how="left")
    return lots.standing_of(
        told.select(
            "label",
            "multiplicity",
            lot_id="lot",
            is_open=pl.col("state").is_in(OPEN_STATES),
            stratum=pl.when(pl.col("state") == "succeeded").then("state"),
        )
    )


def _as_drawn(draws: pl.DataFrame, n_lots: int, n_unique: int, n_invalid: int) -> bool:
    """Say whether groups certainly hold what was drawn from: no key is in two of them, and as many are invalid still.

    Who is in a group never changes, and an answer that is valid stays so; only invalid ones can become valid.
    """
    return (
        draws.height == n_lots
        and int(draws["n_unique"].sum()) == n_unique
        and int(draws["n_invalid"].sum()) == n_invalid
    )


def _first_shard(ledger: Ledger | None, family: Family, keys: pl.Series) -> pl.Series:
    """Return the shard that each row was first sent in; null where it was not sent."""
    if ledger is None or not family.run:
        return pl.Series("label", [None] * keys.len(), dtype=pl.String)
    sent = store.first_shards(ledger, family.run)
    rows = pl.DataFrame({"key": keys}).join(sent, on="key", how="left", maintain_order="left")
    return rows["shard"].alias("label")
