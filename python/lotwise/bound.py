"""The most that requests can cost: their encoded bytes counted as tokens, and every answer at its full length.

The same bound is reserved before a shard is sent, and kept for what may have been charged without our seeing it.
"""

from __future__ import annotations

from decimal import Decimal

import polars as pl

from lotwise.job import Job, Lane

VARIANT_BYTES = 256
"""What a changed retry adds around its variant, at most."""


def sized(job: Job, lane: Lane, requests: pl.DataFrame) -> pl.DataFrame:
    """Return requests (with `content_bytes` and `variant`) with the most `bytes` that each has when it is encoded."""
    # A changed retry tells the model what was wrong: a few dozen bytes a fault beside the variant's own.
    told = pl.col("variant").str.len_bytes().fill_null(0).cast(pl.Int64)
    plain = lane.executor.sizes(job.spec, requests["content_bytes"])
    return requests.with_columns(bytes=plain).with_columns(
        pl.col("bytes") + pl.when(told > 0).then(2 * told + VARIANT_BYTES).otherwise(0)
    )


def allowed_tokens(job: Job, requests: pl.DataFrame) -> pl.Series:
    """Return the output tokens that each request may use, a changed retry's larger limit included."""
    changed = requests["variant"].str.extract(r'"max_tokens":\s*(\d+)').cast(pl.Int64)
    return changed.fill_null(job.spec.max_tokens)


def upper_bound(job: Job, lane: Lane, requests: pl.DataFrame) -> Decimal | None:
    """Return the most that `sized` requests can cost together, in dollars; None where no price is known."""
    if lane.prices is None:
        return None
    return lane.prices.upper_bound(
        input_bytes=int(requests["bytes"].sum()),
        output_tokens=int(allowed_tokens(job, requests).sum()),
        requests=requests.height,
    )
