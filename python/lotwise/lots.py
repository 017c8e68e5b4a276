"""Lots in the ledger: named when a run is planned, closed and drawn from when their requests are final, and read back.

A lot is closed by whoever first sees that it can be: the engine at the end of a run, or a later look. Plan and sample
are then written down at once, so that no verdict can come before them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import polars as pl

from lotwise import evidence
from lotwise.errors import BadArgument, PlanFixed, UnknownColumn, UnknownRun
from lotwise.evidence import Acceptance
from lotwise.ledger import evidence as store
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger


@dataclass(frozen=True, kw_only=True)
class Family:
    """One way of parting one job's rows into lots, and the rule that a call asks for.

    Attributes
    ----------
    id
        Its name: the lot's own where a run is one lot.
    job, validator, run
        The work, what says which of its answers are valid, and the run that asks; "" where no run does.
    accept
        The rule for lots that are not drawn yet.
    said
        Whether the call said it. Otherwise a rule that is written down stands.
    """

    id: str
    job: str
    validator: str
    run: str
    accept: Acceptance
    said: bool = False

    @classmethod
    def of(
        cls, *, job: str, validator: str, run: str, accept: Acceptance, said: bool, rows: pl.DataFrame | None = None
    ) -> Family:
        """Name a call's lots. `rows` (`key`, `label`) says who is in which group, for lots by a column."""
        groups = None
        if rows is not None:
            each = rows.drop_nulls("key").group_by("label").agg(pl.col("key").unique())
            groups = evidence.groups_digest(each.iter_rows())
        name = evidence.family_of(job, validator, accept.scheme, accept.by, groups)
        return cls(id=name, job=job, validator=validator, run=run, accept=accept, said=said)

    @classmethod
    def of_run(cls, row: Mapping[str, Any]) -> Family:
        """Read a run's lots from its stored row."""
        kept = json.loads(row["options"]).get("lots") or {}
        accept = Acceptance.from_json(kept.get("accept"))
        family = cls.of(
            job=row["job"], validator=row["validator"], run=row["id"], accept=accept, said=bool(kept.get("said"))
        )
        return replace(family, id=kept.get("family", family.id))

    @classmethod
    def of_lot(cls, row: Mapping[str, Any]) -> Family:
        """Read the family of a stored lot."""
        scheme = row["scheme"]
        accept = Acceptance(by=row["by_column"], lots="shard" if scheme == "shard" else "run")
        return cls(id=row["family"], job=row["job"], validator=row["validator"], run=row["run"], accept=accept)

    def lot(self, label: str | None) -> str:
        """Return the lot with this label."""
        return evidence.lot_in(self.id, self.accept.scheme, label)

    def to_json(self) -> dict[str, Any]:
        """Return what a run's row keeps, so that another process finds the same lots."""
        return {"family": self.id, "accept": self.accept.to_json(), "said": self.said}


def labels_of(frame: pl.DataFrame, accept: Acceptance) -> pl.Series | None:
    """Return each row's group as text where lots are groups of a column, else None.

    Raises
    ------
    UnknownColumn, BadArgument
        The frame has no such column, or its values have no plain text.
    """
    if accept.by is None:
        return None
    if accept.by not in frame.columns:
        raise UnknownColumn.from_names([accept.by], frame.columns, where="accept")
    column = frame[accept.by]
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        raise BadArgument.of("accept", f"by={accept.by!r} is a column of {column.dtype}; groups need plain values")
    return column.cast(pl.String).alias("label")


def rows_of(keys: pl.Series, labels: pl.Series | None) -> pl.DataFrame | None:
    """Pair each row's key with its group."""
    return None if labels is None else pl.DataFrame({"key": keys.alias("key"), "label": labels})


def refuse_other_rule(ledger: Ledger, family: Family) -> None:
    """Refuse another rule than the one that was written down before verdicts were.

    Raises
    ------
    PlanFixed
    """
    if not family.said:
        return
    limit, aql, confidence, margin = family.accept.rule
    _, draws = store.drawn(ledger, family.id)
    for draw in draws.iter_rows(named=True):
        kept = {name: draw[name] for name in ("limit", "aql", "confidence", "margin")}
        asked = {"limit": limit, "aql": aql, "confidence": confidence, "margin": margin}
        if draw["n_inspected"] and kept != asked:
            raise PlanFixed.of(draw["lot_id"], kept, asked)


def name(ledger: Ledger, family: Family, rows: pl.DataFrame | None, now: datetime) -> None:
    """Write a call's lots down when it is planned. Lots that are shards are named once there are shards."""
    if family.accept.scheme == "run":
        _write_names(ledger, family, [None], now)
    elif rows is not None:
        members = rows.drop_nulls("key").group_by("label", "key").agg(multiplicity=pl.len().cast(pl.Int32))
        ids = ids_of(family, members["label"])
        _write_names(
            ledger, family, ids["label"].to_list(), now, with_lot(members, ids).select("lot", "key", "multiplicity")
        )


def _write_names(
    ledger: Ledger, family: Family, labels: list[str | None], now: datetime, members: pl.DataFrame | None = None
) -> None:
    named = pl.DataFrame(
        {"id": [family.lot(label) for label in labels], "label": labels}, schema={"id": pl.String, "label": pl.String}
    )
    about = {
        "family": family.id,
        "job": family.job,
        "validator": family.validator,
        "run": family.run,
        "scheme": family.accept.scheme,
        "by_column": family.accept.by,
    }
    store.name_lots(ledger, named, about, now, members)


def ids_of(family: Family, labels: pl.Series) -> pl.DataFrame:
    """Return `label` and `lot` of the labels that occur."""
    distinct = labels.unique().sort()
    return pl.DataFrame(
        {"label": distinct, "lot": [family.lot(label) for label in distinct.to_list()]},
        schema={"label": pl.String, "lot": pl.String},
    )


def with_lot(rows: pl.DataFrame, ids: pl.DataFrame) -> pl.DataFrame:
    """Return rows that have a `label` with the `lot` that it names."""
    return rows.join(ids, on="label", how="left", nulls_equal=True, maintain_order="left")


# --- closing ------------------------------------------------------------------------------------------------------


def close(ledger: Ledger, family: Family, now: datetime, *, valid: int | None = None) -> int:
    """Plan and draw every lot of a family whose requests are all final, and return how many that were.

    `valid` may say how many requests of the run have a valid answer, when all of them are final: a run that was drawn
    from just those is not looked at again.

    A lot that is drawn already is left alone, unless it was repaired and so holds other answers than were drawn from,
    or the call asks for another rule and nobody has looked yet. Then it is drawn anew, with another seed.

    Notes
    -----
    Reads the lots' keys once. Costs about three seconds for a million answers, and one look where nothing is due.
    """
    if ledger.read_only is not None:
        return 0  # what is drawn can be read; what is not stays so
    named, draws = store.drawn(ledger, family.id)
    if family.accept.scheme == "run" and named.is_empty():
        name(ledger, family, None, now)  # a run from before there were lots
    before = draws.rename({"population": "drawn_from"})
    same = family.accept.scheme == "run" and valid is not None and before.height > 0
    if same and before.with_columns(population=pl.lit(valid)).filter(_is_due(family)).is_empty():
        return 0
    members = _members(ledger, family)
    if members.is_empty():
        return 0
    if family.accept.scheme == "shard":
        _write_names(ledger, family, members["label"].unique().to_list(), now)
    standing = standing_of(members)
    due = standing.filter(pl.col("n_open") == 0).join(before, on="lot_id", how="left", maintain_order="left")
    due = due.filter(_is_due(family))
    if due.is_empty():
        return 0
    draws = _plans(family, due)
    sample = evidence.draw_samples(
        members.drop_nulls("stratum").select("lot_id", "key", "stratum", "multiplicity"),
        draws.filter(pl.col("plan_n") > 0).select("lot_id", "plan_n", "seed"),
    ).join(draws.select("lot_id", pl.col("n").cast(pl.Int32)), on="lot_id", how="left", maintain_order="left")
    store.record_draws(ledger, draws, _with_digests(ledger, family, sample), now)
    return draws.height


_DRAWS = pl.Schema(
    {
        **{column: pl.Int64() for column in ("n", "n_rows", "n_unique", "n_invalid", "population", "plan_n", "plan_c")},
        **{column: pl.Float64() for column in ("aql", "limit", "confidence", "margin")},
        **{column: pl.Float64() for column in ("accept_at_aql", "accept_at_limit")},
        "lot_id": pl.String(),
        "plan_kind": pl.String(),
        "seed": pl.Int64(),
    }
)


def _is_due(family: Family) -> pl.Expr:
    repaired = pl.col("drawn_from") != pl.col("population")
    if not family.said:
        return pl.col("drawn_from").is_null() | repaired
    limit, aql, confidence, margin = family.accept.rule
    asked = {"limit": limit, "aql": aql, "confidence": confidence, "margin": margin}
    other = pl.any_horizontal(pl.col(column) != rate for column, rate in asked.items())
    return pl.col("drawn_from").is_null() | repaired | (other & (pl.col("n_inspected") == 0))


def _plans(family: Family, due: pl.DataFrame) -> pl.DataFrame:
    """Plan lots: by the rule that the call says, else the one that was written down, else the default."""
    said = dict(zip(_RULE, family.accept.rule, strict=True))
    rules = {name: pl.lit(rate) if family.said else pl.col(name).fill_null(rate) for name, rate in said.items()}
    lots = due.with_columns(**rules, n=1 + pl.col("n").fill_null(0))
    planned = pl.concat(
        [_by_rule(family.accept, rule, group) for rule, group in lots.group_by(_RULE, maintain_order=True)],
        how="diagonal",
    )
    seeds = [evidence.seed_of(lot, n) for lot, n in planned.select("lot_id", "n").iter_rows()]
    return planned.with_columns(seed=pl.Series(seeds, dtype=pl.Int64)).select(list(_DRAWS)).cast(_DRAWS)


_RULE = ("limit", "aql", "confidence", "margin")


def _by_rule(accept: Acceptance, rule: tuple[Any, ...], lots: pl.DataFrame) -> pl.DataFrame:
    """Plan lots that share a rule; one that holds no valid answer is written down and nothing is drawn from it."""
    some, none = lots.filter(pl.col("population") > 0), lots.filter(pl.col("population") == 0)
    plans = replace(accept, **dict(zip(_RULE, rule, strict=True))).plans(some["population"].to_list())
    planned = some.with_columns(
        plan_kind=pl.lit("inspection"),
        plan_n=pl.Series(plans.n),
        plan_c=pl.Series(plans.c),
        accept_at_aql=pl.Series(plans.accept_at_acceptable),
        accept_at_limit=pl.Series(plans.accept_at_limit),
    )
    empty = none.with_columns(plan_kind=pl.lit("none"), plan_n=pl.lit(0, pl.Int64))
    return pl.concat([planned, empty], how="diagonal")


def _with_digests(ledger: Ledger, family: Family, sample: pl.DataFrame) -> pl.DataFrame:
    values = store.values(ledger, sample["key"].unique(), family.validator)
    told = values.with_columns(evidence.digests(values["value"])).select("key", "answer_digest")
    return sample.join(told, on="key", how="left", maintain_order="left").with_columns(
        pl.col("answer_digest").fill_null("purged")
    )


# --- reading back -------------------------------------------------------------------------------------------------


def family_of(ledger: Ledger, run_id: str) -> Family:
    """Return a stored run's lots.

    Raises
    ------
    UnknownRun
    """
    row = run_book.row(ledger, run_id)
    if row is None:
        raise UnknownRun.of(run_id, run_book.all_runs(ledger)["id"].to_list())
    return Family.of_run(row)


def table(ledger: Ledger, family: Family) -> pl.DataFrame:
    """Return what is known of a family's lots: `evidence.LOTS`, one row a lot, by label."""
    members = _members(ledger, family)
    standing = standing_of(members)
    draws, sample, inspections = store.evidence(ledger, standing["lot_id"].to_list())
    values = store.values(ledger, inspections["key"].unique(), family.validator)
    return table_from(standing, draws, sample, inspections, values)


def table_from(
    standing: pl.DataFrame, draws: pl.DataFrame, sample: pl.DataFrame, inspections: pl.DataFrame, values: pl.DataFrame
) -> pl.DataFrame:
    """Put a lot table together; `values` (`key`, `value`) says what the answers that somebody has looked at are now."""
    now = values.with_columns(evidence.digests(values["value"]).alias("now")).select("key", "now")
    sampled = sample.join(now, on="key", how="left", maintain_order="left").with_columns(
        answer_digest=pl.coalesce("now", "answer_digest")
    )
    return evidence.lot_table(
        standing,
        draws.select(list(evidence.PLANNED)).cast(evidence.PLANNED),
        sampled.select(list(evidence.SAMPLED)).cast(evidence.SAMPLED),
        inspections.select(list(evidence.INSPECTIONS)).cast(evidence.INSPECTIONS),
    )


def _members(ledger: Ledger, family: Family) -> pl.DataFrame:
    """Return every request of a family's lots with its `lot_id`."""
    members = store.answers_of(
        ledger, scheme=family.accept.scheme, run=family.run, family=family.id, validator=family.validator
    )
    if family.accept.scheme == "run":
        return members.with_columns(lot_id=pl.lit(family.id))
    return with_lot(members, ids_of(family, members["label"])).rename({"lot": "lot_id"})


def standing_of(members: pl.DataFrame) -> pl.DataFrame:
    """Count what each lot holds: `evidence.STANDING`, by label."""
    valid = pl.col("stratum").is_not_null()
    counted = members.group_by("lot_id").agg(
        label=pl.col("label").first(),
        n_rows=pl.col("multiplicity").sum(),
        n_unique=pl.len(),
        n_open=pl.col("is_open").sum(),
        n_invalid=(~valid & ~pl.col("is_open")).sum(),
        population=valid.sum(),
    )
    ordered = counted.sort("label", "lot_id", nulls_last=False)
    return ordered.select(list(evidence.STANDING)).cast(evidence.STANDING)
