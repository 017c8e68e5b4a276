"""What an open shard is to those who move it: how it is told to an executor, whose it is, and until when."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from lotwise.errors import AccountMismatch, LedgerInconsistent
from lotwise.job import Job, Lane
from lotwise.ledger import requests as request_book
from lotwise.ledger import results as result_book
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.shards import lease
from lotwise.request import Shard


def lease_end(job: Job, lane: Lane, now: datetime) -> datetime:
    """Return until when others leave a shard alone. One synchronous call may take longer than a lease, and its owner is
    heard of again only after it."""
    calling_s = job.options.create_timeout_s if lane.streams and lane.executor.paid else 0.0
    return lease(now, job.options.lease_s + calling_s)


def as_sent(shard: ShardRow) -> Shard:
    """Return a shard as its executor is told of it."""
    return Shard(id=shard["id"], run_id=shard["run"], n_requests=shard["n_requests"], created_at=shard["intended_at"])


def batch_id_of(shard: ShardRow) -> str:
    """Return the provider's id of a shard that was submitted."""
    if shard["batch_id"] is None:
        raise LedgerInconsistent.of("a submitted shard has no batch id", shard=shard["id"])
    return shard["batch_id"]


def requests_of(job: Job, shard: ShardRow, keys: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return the frame of requests that an executor is handed, with the ids that the provider will see."""
    sent = result_book.sent_keys(job.ledger, shard["id"]) if keys is None else keys
    texts = request_book.contents(job.ledger, sent.select("key", "part", "variant"))
    return texts.select(
        "key",
        pl.concat_str(pl.lit(shard["id"] + "-"), "key").alias("custom_id"),
        "content",
        "variant",
    )


def refuse_other_account(job: Job, shard: ShardRow) -> None:
    """Refuse to draw conclusions about a shard that was sent under another account than ours."""
    here = job.lane_of(shard).executor.account()
    if shard["account"] != here:
        raise AccountMismatch.of(shard["id"], shard["account"], here)
