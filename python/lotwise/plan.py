"""Cutting requests into shards: which go together, in which order, under which limits.

A shard should be a fair sample of its neighbourhood, so that its run time, its cost and its fault rate say something
about the rest: prompt lengths are mixed, never sorted. Requests whose content lies in one part of the ledger stay
together, so that encoding a shard reads one file.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from lotwise.request import Limits

DEFAULT_SHARD_ROWS = 20_000
"""Large enough that a provider's per-batch overhead vanishes, small enough that a lost batch costs minutes."""

_BUCKETS = 8


def json_bytes(content: pl.Series) -> pl.Series:
    """Return the bytes of each text as the inside of a JSON string, Int32; null stays null.

    That is what a text adds to an encoded request, exactly, and no tokenizer makes more tokens of a text than it has
    bytes; so limits and budgets are both reckoned from it.
    """
    # A struct is the only way into Polars' JSON writer; the field's name, the braces and the quotes are no content.
    written = content.alias("c").to_frame().to_struct().struct.json_encode().str.len_bytes().cast(pl.Int32)
    around = len('{"c":""}')
    return pl.select(pl.when(content.is_not_null()).then(written - around)).to_series().alias("content_bytes")


@dataclass(frozen=True, kw_only=True)
class Pack:
    """Shards cut from a frame, and the rows that fit in none.

    Attributes
    ----------
    shards
        Slices of the mixed frame, each within all limits.
    oversize
        Rows whose own bytes are over a limit; no shard can hold them.
    """

    shards: list[pl.DataFrame]
    oversize: pl.DataFrame


def mix(requests: pl.DataFrame) -> pl.DataFrame:
    """Order requests so that every stretch holds short and long ones in equal measure.

    `requests` has `key`, `part` and `bytes`. Inside a part rows are put in buckets of similar length, shuffled inside
    a bucket by their key (a hash, so the order is random and the same every time), and the buckets are interleaved.
    """
    rank = pl.col("bytes").rank("ordinal").over("part")
    bucket = ((rank - 1) * _BUCKETS // pl.len().over("part")).alias("_bucket")
    return (
        requests.sort("key")  # the ledger gives rows in any order, and equal lengths are ranked as they stand
        .with_columns(bucket)
        .with_columns(
            _place=(pl.col("key").rank("ordinal").over("part", "_bucket") - 0.5) / pl.len().over("part", "_bucket")
        )
        .sort("part", "_place", "_bucket", "key")
        .drop("_bucket", "_place")
    )


def pack(
    requests: pl.DataFrame, limits: Limits, *, shard_rows: int | None = None, shard_bytes: int | None = None
) -> Pack:
    """Cut requests into shards by count and by encoded bytes.

    Parameters
    ----------
    requests
        `key`, `part` and `bytes` (encoded upper bound) of each request.
    limits
        The provider's own caps.
    shard_rows, shard_bytes
        Smaller caps of the user's; None for `DEFAULT_SHARD_ROWS` and for the provider's limit.

    Returns
    -------
    Shards of nearly equal size (a run of 20,001 rows makes two halves, not a shard of one), and what fits nowhere.
    """
    most_rows = min(limits.max_requests, shard_rows or DEFAULT_SHARD_ROWS)
    caps = [cap for cap in (limits.max_bytes, shard_bytes) if cap is not None]
    most_bytes = min(caps) if caps else None
    row_caps = [cap for cap in (most_bytes, limits.max_row_bytes) if cap is not None]
    fits = pl.lit(True) if not row_caps else pl.col("bytes") <= min(row_caps)
    oversize = requests.filter(~fits)
    ordered = mix(requests.filter(fits))
    if ordered.is_empty():
        return Pack(shards=[], oversize=oversize)
    n_shards = -(-ordered.height // most_rows)
    rows_each = -(-ordered.height // n_shards)
    ends = ordered["bytes"].cum_sum()
    shards: list[pl.DataFrame] = []
    start = 0
    while start < ordered.height:
        end = min(start + rows_each, ordered.height)
        if most_bytes is not None:
            before = int(ends[start - 1]) if start else 0
            end = min(end, int(ends.search_sorted(before + most_bytes, side="right")))
        shards.append(ordered.slice(start, end - start))
        start = end
    return Pack(shards=shards, oversize=oversize)
