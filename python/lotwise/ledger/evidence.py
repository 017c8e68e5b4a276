"""What the ledger keeps of lots: who belongs to one, what was drawn from it and by which plan, and what was seen.

Everything here is appended and nothing changed: a lot that is drawn anew gets another draw, and a verdict that is taken
back is followed by another.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import polars as pl

from lotwise.ledger import parts
from lotwise.ledger.runs import MANIFEST_STEP
from lotwise.ledger.store import Ledger


def name_lots(
    ledger: Ledger, lots: pl.DataFrame, about: Mapping[str, Any], now: datetime, members: pl.DataFrame | None = None
) -> None:
    """Write down lots that the ledger does not have yet, their members first, so that a lot is there whole.

    Parameters
    ----------
    lots
        `id` and `label`.
    about
        What they have in common: `family`, `job`, `validator`, `run`, `scheme`, `by_column`.
    members
        `lot`, `key`, `multiplicity`, for lots whose members no manifest or attempt tells.
    """
    with ledger.reading("lots") as tx:
        known = tx.frame("lots_by_id", frames={"k": lots.select("id")})
    new = lots.join(known.select("id"), on="id", how="anti", maintain_order="left")
    if new.is_empty():
        return
    if members is not None:
        theirs = members.join(new.select(lot="id"), on="lot", how="semi")
        for start in range(0, theirs.height, MANIFEST_STEP):
            with ledger.transaction("lot members") as tx:
                tx.run("insert_lot_members", frames={"k": theirs.slice(start, MANIFEST_STEP)})
    with ledger.transaction("lots") as tx:
        tx.run("insert_lots", frames={"k": new}, **about, now=now)


def lots(ledger: Ledger, ids: list[str]) -> pl.DataFrame:
    """Return those of the lots that the ledger has, as stored."""
    with ledger.reading("lots") as tx:
        return tx.frame("lots_by_id", frames={"k": _ids(ids)})


def lots_of(ledger: Ledger, family: str) -> pl.DataFrame:
    """Return a family's lots, by label."""
    with ledger.reading("lots") as tx:
        return tx.frame("lots_of_family", family=family)


def known_lots(ledger: Ledger) -> list[str]:
    """Return the ids of all lots."""
    with ledger.reading("lots") as tx:
        return [str(row[0]) for row in tx.rows("all_lots")]


def answers_of(ledger: Ledger, *, scheme: str, run: str, family: str, validator: str) -> pl.DataFrame:
    """Return every request of a family's lots: `label`, `key`, `multiplicity`, `is_open`, and as `stratum` the shard of
    its valid answer, null where it has none."""
    with ledger.reading("lot answers") as tx:
        return tx.frame("lot_answers", scheme=scheme, run=run, family=family, validator=validator)


def first_shards(ledger: Ledger, run: str) -> pl.DataFrame:
    """Return `key` and `shard`: where each request of a run was sent first."""
    with ledger.reading("first shards") as tx:
        return tx.frame("first_shards", run=run)


def drawn(ledger: Ledger, family: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return a family's lots, and each drawn one's latest draw: its rule, and how many verdicts there are since."""
    with ledger.reading("draws") as tx:
        return tx.frame("lots_of_family", family=family), tx.frame("draws_of_family", family=family)


def record_draws(ledger: Ledger, draws: pl.DataFrame, sample: pl.DataFrame, now: datetime) -> None:
    """Write plans down, each in one transaction with its sample. A lot that another process has drawn keeps that.

    Very many lots take several transactions, so that nobody waits long; what is not written yet can be drawn again.
    """
    for step in _steps(draws):
        with ledger.transaction("draw") as tx:
            tx.run("insert_draws", frames={"k": step}, now=now)
            tx.run("insert_sample", frames={"k": sample.join(step.select("lot_id"), on="lot_id", how="semi")})


def _steps(draws: pl.DataFrame) -> list[pl.DataFrame]:
    """Part draws so that each part has about as many sampled answers as one transaction may write."""
    step = (pl.col("plan_n") + 1).cum_sum() // MANIFEST_STEP
    return [part.drop("step") for part in draws.with_columns(step=step).partition_by("step", maintain_order=True)]


def evidence(ledger: Ledger, ids: list[str]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the latest draws of lots, their samples, and what people said since."""
    keyed = {"k": _ids(ids)}
    with ledger.reading("evidence") as tx:
        draws = tx.frame("draws", frames=keyed)
        if draws.is_empty():
            keyed = {"k": _ids([])}
        return draws, tx.frame("sample", frames=keyed), tx.frame("inspections", frames=keyed)


def belonging(ledger: Ledger, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return those of the pairs `lot_id` and `key` where the key is a request of the lot."""
    with ledger.reading("lot keys") as tx:
        return tx.frame("lot_keys", frames={"k": pairs.select("lot_id", "key").unique()})


def values(ledger: Ledger, keys: pl.Series, validator: str) -> pl.DataFrame:
    """Return `key` and `value`: the answer that each key's row shows, null where it was purged."""
    with ledger.reading("values") as tx:
        return tx.frame("answers_of_keys", frames={"k": pl.DataFrame({"key": keys})}, validator=validator)


def contents(ledger: Ledger, keys: pl.Series) -> pl.DataFrame:
    """Return `key` and `content`: what was asked, as it was rendered; null where it was purged."""
    wanted = pl.DataFrame({"key": keys})
    with ledger.reading("parts") as tx:
        held = tx.frame("parts_of_keys", frames={"k": wanted})
    names = held.filter(pl.col("part") != "")["part"].unique().to_list()
    texts = parts.read(ledger.parts_folder, names, keys)
    return wanted.join(texts, on="key", how="left", maintain_order="left")


def record_inspections(ledger: Ledger, verdicts: pl.DataFrame, now: datetime) -> int:
    """Append verdicts, and return how many."""
    with ledger.transaction("inspections") as tx:
        return tx.run("insert_inspections", frames={"k": verdicts}, now=now)


def _ids(ids: list[str]) -> pl.DataFrame:
    return pl.DataFrame({"id": ids}, schema={"id": pl.String})
