"""The order in which a local engine is asked: what is shared is read once, and the slowest do not come last.

An engine keeps what it has read of a prompt until the memory for it is needed, so rows that begin alike must follow
each other; and it is emptied only when its last row has ended, so the rows that may take longest go first. A group
of rows that begin alike is never torn apart; groups, and rows that share nothing, go in order of what they may take.
"""

from __future__ import annotations

import polars as pl

SHARED_CHARS = 256
"""Characters beyond what all rows share from which on two rows count as beginning alike: a few dozen tokens, which is
more than one block of an engine's memory, and blocks are what it keeps."""


def for_throughput(requests: pl.DataFrame, max_tokens: int) -> pl.DataFrame:
    """Order requests so that an engine with prefix caching answers them soonest.

    Parameters
    ----------
    requests
        At least `content` and `variant` of each request.
    max_tokens
        The limit of output tokens of a request without a variant.

    Returns
    -------
    pl.DataFrame
        The same rows. First those that were allowed more output; within that, groups that share a beginning of
        `SHARED_CHARS` or more, each whole, and single rows, by the bytes of their longest row, longest first; within a
        group in the order of the text, so that longer common beginnings stay together too.
    """
    if requests.height < 2:
        return requests
    content = requests["content"]
    # What all rows begin with is what the first and the last of them in the order of the text begin with.
    common = _common(str(content.min()), str(content.max()))
    head = pl.col("content").str.slice(0, common + SHARED_CHARS)
    alike = pl.when(head.str.len_chars() == common + SHARED_CHARS).then(head).otherwise(pl.col("content"))
    allowed = pl.col("variant").str.extract(r'"max_tokens":\s*(\d+)').cast(pl.Int64).fill_null(max_tokens)
    longest = pl.col("content").str.len_bytes().max().over("_allowed", "_alike")
    return (
        requests.with_columns(_allowed=allowed, _alike=alike)
        .with_columns(_longest=longest)
        .sort(
            "_allowed",
            "_longest",
            "_alike",
            "content",
            descending=[True, True, False, False],
            maintain_order=True,
        )
        .drop("_allowed", "_alike", "_longest")
    )


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(one), len(other)))
