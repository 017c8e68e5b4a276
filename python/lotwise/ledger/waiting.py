"""What the ledger knows of requests that wait to be asked again: for which reason, how many, and until when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from lotwise.ledger.transaction import Transaction

if TYPE_CHECKING:
    from lotwise.ledger.store import Ledger


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """Distinct requests of a run that failed for one reason and are asked again later, `next_due_at` the first."""

    reason: str
    n: int
    next_due_at: datetime


def of(ledger: Ledger, run: str, now: datetime) -> tuple[Waiting, ...]:
    """Return what of a run waits to be asked again after `now`, the most frequent reason first."""
    with ledger.reading("waiting") as tx:
        return of_in(tx, run, now)


def of_in(tx: Transaction, run: str, now: datetime) -> tuple[Waiting, ...]:
    """Do the same inside a transaction."""
    rows = tx.rows("waiting", run=run, now=now)
    return tuple(Waiting(reason=reason, n=int(n), next_due_at=due_at) for reason, n, due_at in rows)
