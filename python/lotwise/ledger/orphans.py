"""Orphans in the ledger: batches that may have been made for a shard after it was given up.

While one may still come, the shard's reservation stands. When it is known, the shard is open again with all that it
held, so that the batch is collected, charged and settled as any other is.
"""

from __future__ import annotations

from datetime import datetime
from typing import cast

from lotwise.errors import ClaimLost, LedgerInconsistent
from lotwise.ledger.rows import OrphanRow, ShardRow
from lotwise.ledger.shards import move_in
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import ShardState

WHY = "given_up"
"""Why there is an attempt of a request that had been sent, or answered, again before the batch came."""


def note(ledger: Ledger, shard: str, *, batch_id: str | None, now: datetime, watch_until: datetime) -> None:
    """Write down that a create call was made for a shard that is no longer its maker's, with the batch if it is known.

    A shard has one orphan at most: what is known of it is added to.
    """
    with ledger.transaction("note orphan") as tx:
        state = "sought" if batch_id is None else "found"
        tx.run("note_orphan", shard=shard, batch_id=batch_id, state=state, now=now, watch_until=watch_until)
        tx.run("restore_reservation", shard=shard)


def of_job(ledger: Ledger, job: str) -> list[OrphanRow]:
    """Return the orphans of a job that are not dealt with yet, oldest first."""
    with ledger.reading("orphans") as tx:
        return cast(list[OrphanRow], tx.records("orphans", job=job))


def mark(ledger: Ledger, orphan: OrphanRow, state: str, *, now: datetime) -> None:
    """Write down what a look at an orphan came to. One that was never made frees the money that was kept for it."""
    with ledger.transaction("mark orphan") as tx:
        tx.run("mark_orphan", shard=orphan["shard"], state=state, now=now, batch_id=None)
        if state == "absent":
            tx.run("release_reservation", shard=orphan["shard"], now=now)


def reopen(ledger: Ledger, orphan: OrphanRow, shard: ShardRow, batch_id: str, *, owner: str, now: datetime) -> int:
    """Open a given-up shard again, as the batch that came late for it, and return how many requests it has back.

    Those are the requests that nobody had sent again. The others keep the sending state that they have; what the batch
    answers of them is a second result.

    Raises
    ------
    ClaimLost
        Another process has opened it.
    """
    with ledger.transaction("reopen shard") as tx:
        origin, target = ShardState.LOST, ShardState.SUBMITTED
        taken = tx.run(
            "take_lease", shard=shard["id"], state=origin.value, owner=owner, now=now, lease_until=now, gone=None
        )
        if taken != 1:
            raise ClaimLost("a shard whose batch came late", 1, taken)
        move_in(tx, shard["id"], origin, target, owner=owner, now=now, batch_id=batch_id, reason="late")
        claimed = tx.run("claim_late", shard=shard["id"])
        tx.run("count_late", shard=shard["id"])
        restored = tx.run("restore_attempts", shard=shard["id"], why=WHY)
        if restored != shard["n_requests"]:
            raise LedgerInconsistent.of(
                "a shard that was given up does not have its requests back",
                shard=shard["id"],
                expected=shard["n_requests"],
                found=restored,
            )
        tx.run("forget_given_up", shard=shard["id"])
        # Nobody has tried to cancel it yet, so that is due at once.
        tx.run("mark_orphan", shard=shard["id"], state="reopened", now=None, batch_id=batch_id)
    return claimed
