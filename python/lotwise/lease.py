"""Keeping a shard while something takes long: a lease is renewed for as long as its owner is alive and at work.

An upload, an engine's start or one long answer can outlast a lease, and then another process would take for dead who
is only busy. A thread beside the work renews; a process that is stopped or dead renews nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta

from lotwise.errors import LedgerError
from lotwise.job import Job, Lane
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import ShardRow
from lotwise.shards import lease_end

log = logging.getLogger("lotwise")

LOOK_S = 1.0
"""How often the keeper looks at the clock, in seconds of the machine."""


@contextmanager
def kept(job: Job, shard: ShardRow) -> Iterator[None]:
    """Keep our lease of a shard while the block runs, however long that is.

    It is renewed whenever a third of it has passed. A shard that is no longer ours is left alone: the next move in
    the ledger finds that out and raises `ClaimLost`.
    """
    if job.options.lease_s <= 0:
        yield  # nobody is to wait for this owner
        return
    done = threading.Event()
    lane, began = job.lane_of(shard), job.clock.now()
    keeper = threading.Thread(
        target=_keep, args=(job, lane, shard["id"], job.owner, began, done), name="lotwise-lease", daemon=True
    )
    keeper.start()
    try:
        yield
    finally:
        done.set()
        keeper.join()


def _keep(job: Job, lane: Lane, shard: str, owner: str, began: datetime, done: threading.Event) -> None:
    third = timedelta(seconds=job.options.lease_s / 3)
    renewed = began
    while not done.wait(min(LOOK_S, job.options.lease_s / 6)):
        now = job.clock.now()
        if now - renewed < third:
            continue
        try:
            if not shard_book.renew(job.ledger, shard, owner=owner, lease_until=lease_end(job, lane, now)):
                return
        except LedgerError as fault:  # the work itself meets it too, and tells; here the next look tries again
            log.warning("the lease of shard %s could not be renewed: %s", shard, type(fault).__name__)
            continue
        renewed = now
