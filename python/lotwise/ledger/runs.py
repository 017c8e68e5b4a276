"""Runs in the ledger: what each expects, where it stands, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import polars as pl

from lotwise.ledger import waiting
from lotwise.ledger.rows import OrphanRow, ShardRow
from lotwise.ledger.shards import open_in
from lotwise.ledger.store import Ledger
from lotwise.ledger.waiting import Waiting

MANIFEST_STEP = 100_000
"""Manifest rows a transaction, so that none lasts long."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """Where a run stands at one moment.

    Attributes
    ----------
    counts
        Distinct requests and rows by state, through the run's validator.
    shards
        The open shards that it waits for, oldest first.
    orphans
        Batches of its job that came or may come late for a shard that was given up, and are not dealt with.
    n_due, next_due_at
        Requests that may be sent now, and when the next of the others may be; None when there is none.
    waiting
        What may be sent later, by what went wrong with it.
    """

    counts: dict[str, tuple[int, int]]
    shards: list[ShardRow]
    orphans: list[OrphanRow]
    n_due: int
    next_due_at: datetime | None
    waiting: tuple[Waiting, ...] = ()


def begin(
    ledger: Ledger,
    run: Mapping[str, Any],
    spec: Mapping[str, Any],
    validator: Mapping[str, Any],
    manifest: pl.DataFrame,
    now: datetime,
) -> None:
    """Write down a run with all that it expects. The run's own row comes last, so a run has a whole manifest."""
    for start in range(0, manifest.height, MANIFEST_STEP):
        with ledger.transaction("manifest") as tx:
            tx.run("insert_manifest", frames={"k": manifest.slice(start, MANIFEST_STEP)}, run=run["id"])
    with ledger.transaction("begin run") as tx:
        tx.run("insert_spec", **spec, now=now)
        tx.run("insert_validator", **validator, now=now)
        tx.run("insert_run", **run, now=now)


def end(ledger: Ledger, run: str, state: str, reason: str | None, now: datetime) -> None:
    """End a run as done, stopped or canceled."""
    with ledger.transaction("end run") as tx:
        tx.run("end_run", run=run, state=state, reason=reason, now=now)


def end_job(ledger: Ledger, job: str, now: datetime) -> None:
    """End every open run of a job as done: each of its requests is final, whichever call saw to it."""
    with ledger.transaction("end job") as tx:
        tx.run("end_job", job=job, now=now)


def stop(ledger: Ledger, now: datetime) -> list[str]:
    """Stop every open run, whoever works on it, and return their ids."""
    with ledger.transaction("stop") as tx:
        stopped = [str(row[0]) for row in tx.rows("open_runs")]
        tx.run("stop_runs", now=now)
    return stopped


def reopen(ledger: Ledger, run: str) -> None:
    """Open an ended run again, to go on with it."""
    with ledger.transaction("reopen run") as tx:
        tx.run("reopen_run", run=run)


def look(ledger: Ledger, run: str, job: str, validator: str, now: datetime) -> Look:
    """Return where a run stands, in one consistent look."""
    with ledger.reading("look") as tx:
        rows = tx.rows("counts", run=run, validator=validator, now=now)
        shards = open_in(tx, run, job)
        orphans = cast(list[OrphanRow], tx.records("orphans", job=job))
        next_due_at = min((later for *_, later in rows if later is not None), default=None)
        waits = () if next_due_at is None else waiting.of_in(tx, run, now)
    return Look(
        counts={state: (int(n), int(n_rows)) for state, n, n_rows, _, _ in rows},
        shards=shards,
        orphans=orphans,
        n_due=sum(int(n_due) for _, _, _, n_due, _ in rows),
        next_due_at=next_due_at,
        waiting=waits,
    )


def counts(ledger: Ledger, run: str, validator: str) -> dict[str, tuple[int, int]]:
    """Return a run's distinct requests and rows by state, through a validator."""
    with ledger.reading("counts") as tx:
        rows = tx.rows("counts", run=run, validator=validator, now=None)
    return {state: (int(n), int(n_rows)) for state, n, n_rows, _, _ in rows}


def missing(ledger: Ledger, run: str, validator: str) -> pl.DataFrame:
    """Return every request of a run without a valid answer, with its state and reason."""
    with ledger.reading("missing") as tx:
        return tx.frame("missing", run=run, validator=validator)


def manifest(ledger: Ledger, run: str) -> pl.Series:
    """Return the distinct keys that a run expects."""
    with ledger.reading("manifest") as tx:
        return tx.frame("manifest_keys", run=run)["key"]


def row(ledger: Ledger, run: str) -> dict[str, Any] | None:
    """Return a run's row, with its spec and validator as stored, or None."""
    with ledger.reading("run") as tx:
        found = tx.records("run", run=run)
    return found[0] if found else None


def all_runs(ledger: Ledger) -> pl.DataFrame:
    """Return all runs, oldest first."""
    with ledger.reading("runs") as tx:
        return tx.frame("runs")


def unfinished(ledger: Ledger) -> pl.DataFrame:
    """Return the runs that are open, or ended with a shard in flight: `id`, `collect_only`, oldest first."""
    with ledger.reading("unfinished") as tx:
        return tx.frame("unfinished_runs")


def stop_reason(ledger: Ledger, job: str) -> tuple[str, str] | None:
    """Return the newest run that was stopped for this job, and why; None when none was."""
    with ledger.reading("stop reason") as tx:
        rows = tx.rows("stop_reason_of_job", job=job)
    return (str(rows[0][0]), str(rows[0][1])) if rows else None


def specs_of(ledger: Ledger, model: str) -> pl.DataFrame:
    """Return `digest` and `body` of the stored specs of a model."""
    with ledger.reading("specs") as tx:
        return tx.frame("similar_specs", model=model)


def answered_by(ledger: Ledger, run: str) -> dict[str, int]:
    """Return how many of a run's requests got their last answer by each tier."""
    with ledger.reading("answered by") as tx:
        return {str(tier): int(n) for tier, n in tx.rows("answered_by", run=run)}


def n_asked_with(ledger: Ledger, run: str, why: str) -> int:
    """Return how many of a run's requests have an attempt with this reason."""
    with ledger.reading("asked with") as tx:
        return int(tx.rows("n_asked_with", run=run, why=why)[0][0])


def cached_share(ledger: Ledger, job: str) -> float | None:
    """Return which share of a job's input tokens was read from a provider's cache; None where none is known."""
    with ledger.reading("cached share") as tx:
        (share,) = tx.rows("cached_share", job=job)[0]
    return None if share is None else float(share)
