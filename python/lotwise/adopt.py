"""Which batch in the provider's list is a shard's own: the question after a create call whose answer nobody has."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

from lotwise.errors import BatchNotFound, ResultsGone
from lotwise.executors.base import BatchExecutor
from lotwise.ledger.rows import ShardRow
from lotwise.request import Listed


def find(
    executor: BatchExecutor, shard: ShardRow, listed: Sequence[Listed], margin: timedelta
) -> tuple[Listed | None, bool]:
    """Return the listed batch that is this shard, and whether one that may be it cannot be told yet.

    By our own id where the provider carries it; else by window and count, confirmed by the custom ids of its results,
    which can be read once it has ended.
    """
    for batch in listed:
        if batch.shard_id == shard["id"]:
            return batch, False
    open_question = False
    # Providers tell whole seconds, cut off: a batch may be a second younger than it says.
    earliest = ((shard["creating_at"] or shard["intended_at"]) - margin).replace(microsecond=0)
    for batch in listed:
        if batch.shard_id is not None or batch.n_requests not in (None, shard["n_requests"]):
            continue
        if batch.created_at < earliest:
            continue
        confirm = getattr(executor, "first_ids", None)
        if not batch.ended or confirm is None:
            open_question = True
        else:
            try:
                ids = confirm(batch.batch_id, 50)
            except (ResultsGone, BatchNotFound):
                ids = ()
            if any(str(one).startswith(shard["id"] + "-") for one in ids):
                return batch, False
            open_question = open_question or not ids  # a batch that shows none of its ids may be ours
    return None, open_question
