"""What the ledger knows of changed retries: what a run's answers have cost, and what asking again is expected to cost.

Read outside of a transaction to plan by, and once more inside the one that writes a shard's intent, so that two
processes cannot spend the same room.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING

import polars as pl

from lotwise.ledger.transaction import Transaction
from lotwise.lifecycle import Policy, Retries, RetrySpend, within_retry_spend

if TYPE_CHECKING:
    from lotwise.ledger.store import Ledger


def choose(ledger: Ledger, run: str, keys: pl.Series, policy: Policy) -> Retries:
    """Say which of a run's changed retries may be sent now, which wait, and which are over."""
    with ledger.reading("retry spend") as tx:
        return choose_in(tx, run, pl.DataFrame({"key": keys}), policy)


def choose_in(tx: Transaction, run: str, changed: pl.DataFrame, policy: Policy) -> Retries:
    """Do the same inside a transaction, for a frame with `key`."""
    due = tx.frame("retry_costs", frames={"k": changed})
    return within_retry_spend(due, _spent(tx, run), policy)


def _spent(tx: Transaction, run: str) -> RetrySpend:
    n_first, first, first_unknown, n_changed, changed, changed_unknown = tx.rows("retry_spend", run=run)[0]
    out = tx.frame("changed_out", run=run)
    expected = tx.frame("retry_costs", frames={"k": out})["expected_usd"]
    known = not changed_unknown and not expected.has_nulls()
    return RetrySpend(
        n_first=int(n_first),
        first_usd=None if first_unknown else Decimal(first),
        n_changed=int(n_changed) + out.height,
        changed_usd=Decimal(changed) + Decimal(expected.sum() or 0) if known else None,
        n_open=int(tx.rows("first_asks_open", run=run)[0][0]) + out.height,
    )
