"""Shards in the ledger: what is written before one touches the network, who holds it, and each move of it.

A move is a conditional update from an expected state that says how much it moved; when that is not what was asked, the
whole transaction is rolled back and the caller is told. Two live attempts of one request cannot be written down: the
live attempt is one cell of the request's row.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Required, TypedDict, Unpack, cast

import polars as pl

from lotwise.errors import BudgetTooSmall, ClaimLost, RunEnded
from lotwise.ledger import retries
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.store import Ledger
from lotwise.ledger.transaction import Transaction
from lotwise.lifecycle import SHARD_MOVES, Policy, ShardState


@dataclass(frozen=True, kw_only=True)
class Intent:
    """All that is written down before a shard may touch the network."""

    shard: str
    run: str
    job: str
    spec: str
    provider: str
    account: str
    tier: str
    purpose: str
    owner: str
    lease_until: datetime
    bytes: int
    keys: pl.Series
    reserved_usd: Decimal | None
    budget_usd: Decimal | None
    in_flight: int | None = None
    """How many requests may be asked beyond those that are recorded, where asking may cost money unseen."""
    variants: pl.Series | None = None
    """What the attempt of each key changes, as it was planned and reserved for; None where none changes anything."""
    golden: pl.Series | None = None
    """Those of the keys that are golden rows; their attempts have that purpose."""
    retry_cap: Policy | None = None
    """By what the changed retries among the keys are bounded; None where there is nothing to bound."""


def intend(ledger: Ledger, intent: Intent, now: datetime) -> None:
    """Claim requests, reserve their upper bound and write the intent, all or nothing.

    Raises
    ------
    ClaimLost
        Some of the requests are no longer pending as they were planned, or changed retries among them no longer fit
        what they may cost: another process was faster.
    BudgetTooSmall
        The reservation does not fit what is left of the budget.
    """
    golden = pl.Series([], dtype=pl.String) if intent.golden is None else intent.golden
    variants = pl.lit(None, pl.String) if intent.variants is None else intent.variants
    keys = pl.DataFrame({"key": intent.keys}).with_columns(
        golden=pl.col("key").is_in(golden.implode()), variant=variants
    )
    with ledger.transaction("intend") as tx:
        state, why = tx.rows("run_state", run=intent.run)[0]
        if state != "open":
            raise RunEnded.of(intent.run, state, why)
        if intent.budget_usd is not None:
            total, n_open = tx.rows("committed_usd", job=intent.job)[0]
            committed, asked = Decimal(total), intent.reserved_usd or Decimal(0)
            if committed + asked > intent.budget_usd:
                raise BudgetTooSmall.of(intent.budget_usd, committed, asked, n_open=n_open)
        if intent.retry_cap is not None:
            changed = tx.frame("changed_of", frames={"k": keys})
            fit = retries.choose_in(tx, intent.run, changed, intent.retry_cap).now
            if fit.len() != changed.height:  # another process has sent some meanwhile
                raise ClaimLost("changed retries within what they may cost", changed.height, fit.len())
        tx.run(
            "insert_shard",
            shard=intent.shard,
            run=intent.run,
            job=intent.job,
            spec=intent.spec,
            provider=intent.provider,
            account=intent.account,
            tier=intent.tier,
            purpose=intent.purpose,
            owner=intent.owner,
            lease_until=intent.lease_until,
            n_requests=keys.height,
            bytes=intent.bytes,
            reserved_usd=intent.reserved_usd,
            now=now,
            in_flight=intent.in_flight,
        )
        if intent.reserved_usd is not None:
            tx.run("reserve", shard=intent.shard, job=intent.job, reserved_usd=intent.reserved_usd, now=now)
        claimed = tx.run("claim", frames={"k": keys}, shard=intent.shard)
        if claimed != keys.height:
            raise ClaimLost("requests for a shard", keys.height, claimed)
        tx.run("insert_attempts", frames={"k": keys}, shard=intent.shard, purpose=intent.purpose)
        tx.run(
            "event",
            shard=intent.shard,
            now=now,
            note=None,
            origin=ShardState.PLANNED.value,
            target=ShardState.INTENDED.value,
        )


class MoveFacts(TypedDict, total=False):
    """Who moves a shard and when, and what is written down with it; see `move_in`."""

    owner: Required[str]
    now: Required[datetime]
    lease_until: datetime | None
    batch_id: str | None
    called_at: datetime | None
    reason: str | None
    provider_state: str | None


def move(ledger: Ledger, shard: str, origin: ShardState, target: ShardState, **facts: Unpack[MoveFacts]) -> None:
    """Move a shard that we hold from one state to the next, with its event. Raises `ClaimLost` when it is not
    there any more or not ours."""
    with ledger.transaction(f"{origin} to {target}") as tx:
        move_in(tx, shard, origin, target, **facts)


def move_in(
    tx: Transaction,
    shard: str,
    origin: ShardState,
    target: ShardState,
    *,
    owner: str,
    now: datetime,
    lease_until: datetime | None = None,
    batch_id: str | None = None,
    called_at: datetime | None = None,
    reason: str | None = None,
    provider_state: str | None = None,
) -> None:
    """Make one legal move of a shard inside a transaction, and leave its event."""
    if target not in SHARD_MOVES[origin]:
        raise ValueError(f"a shard does not move from {origin} to {target}")
    moved = tx.run(
        "move_shard",
        shard=shard,
        owner=owner,
        now=now,
        lease_until=lease_until,
        batch_id=batch_id,
        called_at=called_at,
        reason=reason,
        provider_state=provider_state,
        origin=origin.value,
        target=target.value,
    )
    if moved != 1:
        raise ClaimLost(f"a shard in {origin}", 1, moved)
    tx.run("event", shard=shard, now=now, note=reason, origin=origin.value, target=target.value)


def take(
    ledger: Ledger,
    shard: ShardRow,
    *,
    owner: str,
    now: datetime,
    lease_until: datetime,
    gone: str | None = None,
) -> bool:
    """Take the lease of a shard that is free, run out, ours, or whose owner `gone` is known to be dead."""
    with ledger.transaction("take lease") as tx:
        taken = tx.run(
            "take_lease",
            shard=shard["id"],
            state=shard["state"],
            owner=owner,
            now=now,
            lease_until=lease_until,
            gone=gone,
        )
    return taken == 1


def renew(ledger: Ledger, shard: str, *, owner: str, lease_until: datetime) -> bool:
    """Lengthen our lease. False when the shard is no longer ours."""
    with ledger.transaction("renew lease") as tx:
        return tx.run("renew_lease", shard=shard, owner=owner, lease_until=lease_until) == 1


def drop(ledger: Ledger, shard: str, *, owner: str) -> None:
    """Give our lease back, so that anybody may go on with the shard."""
    with ledger.transaction("drop lease") as tx:
        tx.run("drop_lease", shard=shard, owner=owner)


def note_poll(
    ledger: Ledger, shard: str, provider_state: str, *, owner: str, now: datetime, keeps_lease: bool = False
) -> None:
    """Remember when our shard was last looked at and what its state was called, and give our lease back or keep it.

    Of a shard that is somebody else's meanwhile nothing is noted: what was seen may be older than what he knows.
    """
    with ledger.transaction("note poll") as tx:
        tx.run("note_poll", shard=shard, provider_state=provider_state, owner=owner, now=now, keeps_lease=keeps_lease)


def release(
    ledger: Ledger,
    shard: str,
    origin: ShardState,
    target: ShardState,
    *,
    owner: str,
    now: datetime,
    reason: str,
    due_at: datetime | None,
    dead: bool = False,
    watch_until: datetime | None = None,
) -> int:
    """Close a shard that nobody worked on: its requests are pending again, its reservation is settled at nothing.

    With `dead` they are dead-lettered instead: the provider refused what is in them. With `watch_until` a batch of
    it that shows up until then is an orphan, and the reservation stands until it is known that none will.
    """
    if target not in (ShardState.LOST, ShardState.REJECTED):
        raise ValueError(f"a shard is released into lost or rejected, not {target}")
    with ledger.transaction(f"release to {target}") as tx:
        keys = pl.DataFrame({"key": [row[0] for row in tx.rows("live_keys", shard=shard)]}, schema={"key": pl.String})
        tx.run("uncount_attempts", shard=shard)
        tx.run("renumber_attempts", shard=shard)
        count = tx.run("release_requests", shard=shard, reason=reason, due_at=due_at)
        if target is ShardState.LOST and origin is not ShardState.INTENDED:
            tx.run("keep_given_up", shard=shard)
        tx.run("forget_attempts", shard=shard)
        if dead:
            tx.run("dead_letter", frames={"k": keys}, reason=reason)
        move_in(tx, shard, origin, target, owner=owner, now=now, reason=reason)
        if watch_until is not None:
            tx.run("note_orphan", shard=shard, batch_id=None, state="watched", now=now, watch_until=watch_until)
        tx.run("release_reservation", shard=shard, now=now)
    return count


def ask_twice(ledger: Ledger, shard: str, why: str) -> int:
    """Give back the requests of an open shard, to be asked besides it, with the reason; return how many."""
    with ledger.transaction("ask twice") as tx:
        return tx.run("ask_twice", shard=shard, why=why)


def row(ledger: Ledger, shard: str) -> ShardRow:
    """Return a shard's row."""
    with ledger.reading("shard") as tx:
        return cast(ShardRow, tx.records("shard", shard=shard)[0])


def of_job(ledger: Ledger, job: str) -> list[ShardRow]:
    """Return all shards that were made for a job, oldest first."""
    with ledger.reading("shards") as tx:
        return cast(list[ShardRow], tx.records("shards_of_job", job=job))


def open_of(ledger: Ledger, run: str, job: str) -> list[ShardRow]:
    """Return the open shards that a run waits for, its job's and those that hold its requests, oldest first."""
    with ledger.reading("open shards") as tx:
        return open_in(tx, run, job)


def open_in(tx: Transaction, run: str, job: str) -> list[ShardRow]:
    """Do the same inside a transaction."""
    shards = cast(list[ShardRow], tx.records("all_open_shards"))
    if any(shard["job"] != job for shard in shards):  # only then is the manifest, however long, gone through
        holding = {row[0] for row in tx.rows("shards_holding", run=run)}
        shards = [shard for shard in shards if shard["job"] == job or shard["id"] in holding]
    return shards


def all_open(ledger: Ledger) -> list[ShardRow]:
    """Return every open shard of the ledger."""
    with ledger.reading("open shards") as tx:
        return cast(list[ShardRow], tx.records("all_open_shards"))


def batches(ledger: Ledger, but: str) -> set[str]:
    """Return the provider's batch ids of all shards but one: batches that are accounted for."""
    with ledger.reading("batches") as tx:
        return {str(row[0]) for row in tx.rows("batches", shard=but)}


def live(ledger: Ledger, shard: str) -> pl.DataFrame:
    """Return the requests that a shard still holds: `key`, `content_bytes`, `variant`."""
    with ledger.reading("live requests") as tx:
        return tx.frame("live_requests", shard=shard)


def committed_usd(ledger: Ledger, job: str) -> Decimal:
    """Return what a job has spent and what its open shards may still spend."""
    with ledger.reading("committed") as tx:
        return Decimal(tx.rows("committed_usd", job=job)[0][0])


def lease(now: datetime, seconds: float) -> datetime:
    """Return when a lease taken now runs out."""
    return now + timedelta(seconds=seconds)
