"""Rows of the ledger as those who move things are handed them."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import TypedDict


class ShardRow(TypedDict):
    """A shard as the ledger stores it (sql/001_initial.sql says what each column is)."""

    id: str
    run: str
    job: str
    spec: str
    provider: str
    account: str
    tier: str
    purpose: str
    state: str
    owner: str | None
    lease_until: datetime | None
    batch_id: str | None
    provider_state: str | None
    n_requests: int
    bytes: int
    n_results: int | None
    n_duplicates: int | None
    n_unknown: int | None
    n_unreadable: int | None
    reserved_usd: Decimal | None
    cost_usd: Decimal | None
    reason: str | None
    intended_at: datetime
    creating_at: datetime | None
    called_at: datetime | None
    submitted_at: datetime | None
    ended_at: datetime | None
    collected_at: datetime | None
    polled_at: datetime | None
    in_flight: int | None


class OrphanRow(TypedDict):
    """A batch that is to be found and canceled (sql/006_orphan.sql says what each column is)."""

    shard: str
    job: str
    batch_id: str | None
    state: str
    noted_at: datetime
    watch_until: datetime
    looked_at: datetime | None
