"""What the ledger keeps of answers that were taken over from compatible requests: those of another spec with the same
messages and model, whose answer is valid under this validator too.

It is only ever appended: a request takes one such answer for a validator, before it is ever sent, and keeps it.
"""

from __future__ import annotations

from datetime import datetime

import polars as pl

from lotwise.ledger.store import Ledger

BORROW_ROWS = 25_000
"""Answers taken over in one transaction."""


def candidates(ledger: Ledger, pairs: pl.DataFrame, validator: str) -> pl.DataFrame:
    """Return good answers for requests that were never sent: `key`, `of_key`, `shard`, `code`, `raw`, `raw_blob`, ...

    `pairs` has `key`, the request that may take an answer, and `of_key`, one that may have it.
    """
    with ledger.reading("borrowable") as tx:
        return tx.frame("borrowable", frames={"k": pairs}, validator=validator)


def take(ledger: Ledger, answers: pl.DataFrame, validator: str, run: str, now: datetime) -> int:
    """Write down which answers (`key`, `of_key`, `shard`, `value`, `lenient`) are taken over, and return how many.

    A request that another process sent or gave an answer meanwhile is left as it is.
    """
    count = 0
    for part in answers.iter_slices(BORROW_ROWS):
        with ledger.transaction("borrow") as tx:
            tx.run("borrow_verdicts", frames={"k": part}, validator=validator)
            count += tx.run("borrow", frames={"k": part}, validator=validator, run=run, now=now)
    return count


def taken(ledger: Ledger, keys: pl.Series, validator: str) -> pl.Series:
    """Return those of the keys that have taken an answer for a validator."""
    with ledger.reading("borrowed") as tx:
        return tx.frame("borrowed_of_keys", frames={"k": pl.DataFrame({"key": keys})}, validator=validator)["key"]


def n_of(ledger: Ledger, run: str) -> int:
    """Return how many of a run's requests show an answer that was taken over."""
    with ledger.reading("borrowed") as tx:
        return int(tx.rows("n_borrowed", run=run)[0][0])
