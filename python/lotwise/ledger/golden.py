"""What the ledger keeps of golden rows, gates, and what was noticed of shards. Nothing here is ever changed or deleted;
a gate whose pass is withdrawn gets another row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import polars as pl

from lotwise.canary import Canary, Quality, Verdict
from lotwise.ledger import requests as request_book
from lotwise.ledger.store import Ledger


def write_canary(ledger: Ledger, canary: Canary, run: str) -> None:
    """Write down what a run must pass, and its golden set's answers. Before the run itself, so that none lacks it."""
    golden = canary.golden
    with ledger.transaction("canary") as tx:
        tx.run(
            "insert_canary",
            run=run,
            spec=canary.spec,
            set_digest=canary.subject,
            threshold=canary.threshold,
            bad_limit=canary.bad_limit,
            n_frame=canary.n_frame,
            mode=canary.mode,
            answers=None if golden is None else json.dumps(list(golden.dtypes)),
            exact=golden is None or golden.match is None,
        )
        if golden is not None:
            tx.run("insert_golden", frames={"k": golden.rows.select("row", "answer")}, set_digest=canary.subject)


def canary_of(ledger: Ledger, run: str) -> tuple[dict[str, Any], pl.DataFrame] | None:
    """Return what a run must pass, as stored, and its golden rows: `row`, `answer`, `key`, `part`; None for nothing."""
    with ledger.reading("canary") as tx:
        found = tx.records("canary_of_run", run=run)
        if not found:
            return None
        row = found[0]
        return row, tx.frame("golden_rows", spec=row["spec"], set_digest=row["set_digest"])


def ask(ledger: Ledger, canary: Canary, spec: Mapping[str, Any], asks: pl.DataFrame, now: datetime) -> None:
    """Write down golden rows to be asked: requests like any other, in no run's manifest.

    Parameters
    ----------
    spec
        The row of the golden spec: `digest`, `model`, `body`, `key_version`.
    asks
        `key`, `content`, `content_bytes`, `row`, `round`.
    """
    request_book.enroll(ledger, str(spec["digest"]), asks.select("key", "content", "content_bytes"), now)
    with ledger.transaction("golden asks") as tx:
        tx.run("insert_spec", **spec, now=now)
        tx.run(
            "insert_asks",
            frames={"k": asks.select("key", "row", "round")},
            spec=canary.spec,
            set_digest=canary.subject,
        )


def next_rounds(ledger: Ledger, canary: Canary) -> pl.DataFrame:
    """Return `row` and `round`: when each golden row would be asked next, those that were asked least first."""
    with ledger.reading("golden rounds") as tx:
        return tx.frame("next_rounds", spec=canary.spec, set_digest=canary.subject)


def pending(ledger: Ledger, canary: Canary, *, first: bool = False) -> pl.DataFrame:
    """Return the golden rows of a set that wait to be asked, as `Ledger.pending` does.

    With `first`, those alone that go before the gate: gates that differ in the threshold share a set's askings.
    """
    with ledger.reading("pending golden rows") as tx:
        return tx.frame("pending_golden", spec=canary.spec, set_digest=canary.subject, first=first)


def results(ledger: Ledger, canary: Canary, validator: str, known: pl.Series) -> pl.DataFrame:
    """Return the set's askings but for the known keys: `key`, `row`, `round`, `state`, and of the first charged answer
    `shard`, `intended_at`, `code`, `ok`, `value`, `fault`."""
    with ledger.reading("golden results") as tx:
        return tx.frame(
            "golden_results",
            frames={"k": pl.DataFrame({"key": known}, schema={"key": pl.String})},
            spec=canary.spec,
            set_digest=canary.subject,
            validator=validator,
        )


def frame_results(ledger: Ledger, canary: Canary, run: str, validator: str) -> pl.DataFrame:
    """Return the canary's frame rows: `key`, `state`, and of the first charged answer `code` and `ok`."""
    with ledger.reading("canary results") as tx:
        return tx.frame("canary_results", run=run, n_frame=canary.n_frame, validator=validator)


def gate(ledger: Ledger, canary: Canary) -> dict[str, Any] | None:
    """Return the gate as it stands, or None while it is not decided."""
    with ledger.reading("gate") as tx:
        found = tx.records("gate", spec=canary.spec, set_digest=canary.subject, threshold=canary.threshold)
    return found[0] if found else None


def decide(
    ledger: Ledger, canary: Canary, verdict: Verdict, *, run: str, now: datetime, withdraw: bool = False
) -> None:
    """Write a gate's verdict down, unless another process was first. With `withdraw` it takes a pass back."""
    with ledger.transaction("gate") as tx:
        tx.run(
            "insert_gate",
            spec=canary.spec,
            set_digest=canary.subject,
            threshold=canary.threshold,
            state="passed" if verdict.passed else "failed",
            n=verdict.n,
            agreed=verdict.agreed,
            lower=verdict.lower,
            invalid_rate=verdict.n_invalid / verdict.n_frame if verdict.n_frame else None,
            run=run,
            now=now,
            n_frame=verdict.n_frame,
            n_invalid=verdict.n_invalid,
            upper=verdict.upper,
            reason=verdict.reason,
            origin="passed" if withdraw else "open",
        )


def qualities(ledger: Ledger, job: str, validator: str) -> list[Quality]:
    """Return what a job's collected shards brought, in the order of sending."""
    with ledger.reading("shard quality") as tx:
        return [
            Quality(shard=shard, n_answered=answered, n_bad=bad, revisions=tuple(revisions))
            for shard, answered, bad, revisions in tx.rows("qualities", job=job, validator=validator)
        ]


def notice(ledger: Ledger, *, run: str, job: str, kind: str, shard: str | None, text: str, now: datetime) -> bool:
    """Write down what a run is told of. False where the job was told the same before."""
    with ledger.transaction("notice") as tx:
        return tx.run("insert_notice", run=run, job=job, kind=kind, shard=shard, text=text, now=now) == 1


def notices(ledger: Ledger, job: str) -> list[dict[str, Any]]:
    """Return what a job was told of, oldest first."""
    with ledger.reading("notices") as tx:
        return tx.records("notices", job=job)


def n_sent(ledger: Ledger, run: str, *, unsent: str) -> int:
    """Return how many golden rows a run's own shards asked; `unsent` is the detail of a call that never left."""
    with ledger.reading("golden sent") as tx:
        return int(tx.rows("golden_sent", run=run, unsent=unsent)[0][0])
