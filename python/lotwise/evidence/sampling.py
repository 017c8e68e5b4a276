"""Which answers of a closed lot are looked at: a seeded draw, spread over the shards that the answers came in.

Places are a keyed hash of each answer's key, so that sorting the frame, resuming the run or asking for more changes
no place. A shard gets its share of the sample rounded up or down by the seed and never by its size, so that each
answer of the lot has the same chance to be drawn.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

import polars as pl

from lotwise.stats import draw_order

STRATUM_LEAST = 1_000
"""Valid answers that a shard needs to be a stratum of its own; the rest are one stratum together.

A spread sample of small strata can vary more than the simple one whose exact chances the decision takes. The excess
of variance is at most 1 in the size of the smallest stratum, so from here on it moves no chance by 1 in 10,000.
"""

SMALL = "small"
"""The stratum of answers from shards below `STRATUM_LEAST`."""

SAMPLE = pl.Schema(
    {"key": pl.String, "rank": pl.Int32, "stratum": pl.String, "weight": pl.Float64, "multiplicity": pl.Int32}
)


def places(keys: pl.Series, seed: int) -> pl.Series:
    """Return each key's place as 16 bytes: the order of `stats.draw_order`, for a column of keys."""
    salt = str(seed).encode()[:64]
    digest = hashlib.blake2b
    hashed = [digest(key.encode(), digest_size=16, key=salt).digest() for key in keys.to_list()]
    return pl.Series("place", hashed, dtype=pl.Binary)


def draw_sample(answers: pl.DataFrame, n: int, *, seed: int) -> pl.DataFrame:
    """Draw `n` distinct answers of a lot.

    Parameters
    ----------
    answers
        The lot's population, one row a distinct valid answer: `key`, `stratum` (the shard that it came in) and
        `multiplicity`. The order is nothing.
    n
        How many; at most all.
    seed
        Fixes the draw.

    Returns
    -------
    `SAMPLE`, in the order of looking.
    """
    if not 0 <= n <= answers.height:
        raise ValueError(f"{n} answers cannot be drawn from {answers.height}")
    grouped = answers.with_columns(stratum=_strata(answers["stratum"]))
    sizes = {str(name): size for name, size in grouped.group_by("stratum").len().iter_rows()}
    wanted = spread(sizes, n, seed=seed)
    shares = pl.DataFrame(
        {"stratum": list(sizes), "size": list(sizes.values()), "wanted": [wanted[name] for name in sizes]},
        schema={"stratum": pl.String, "size": pl.Int64, "wanted": pl.Int64},
    )
    drawn = (
        grouped.with_columns(places(grouped["key"], seed))
        .sort("place", "key")
        .join(shares, on="stratum", how="left", maintain_order="left")
        .filter(pl.int_range(pl.len()).over("stratum") < pl.col("wanted"))
    )
    return drawn.select(
        "key",
        pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias("rank"),
        "stratum",
        (pl.col("size") / pl.col("wanted")).alias("weight"),
        pl.col("multiplicity").cast(pl.Int32),
    ).cast(SAMPLE)


def _strata(shards: pl.Series) -> pl.Series:
    """Return each answer's stratum: its shard, or `SMALL`."""
    sizes = shards.to_frame("stratum").with_columns(size=pl.len().over("stratum"))
    large = pl.when(pl.col("size") >= STRATUM_LEAST).then("stratum").otherwise(pl.lit(SMALL))
    return sizes.select(large.alias("stratum")).to_series()


def spread(sizes: dict[str, int], n: int, *, seed: int) -> dict[str, int]:
    """Spread `n` looks over strata in proportion, each share rounded up or down at random by the seed.

    Returns
    -------
    A number a stratum, never more than it holds; `n` in all.

    Notes
    -----
    Systematic sampling: the strata are laid end to end in seeded order, and every (total / n)-th answer is met from a
    random start. Each stratum gets one of the two whole numbers beside its share, and its share on average.
    """
    total = sum(sizes.values())
    if total == 0:
        return dict.fromkeys(sizes, 0)
    fraction = int.from_bytes(hashlib.sha256(f"start {seed}".encode()).digest()[:8], "big")
    start = Fraction(fraction, 2**64)
    given: dict[str, int] = {}
    before = 0
    for name in draw_order(sizes, seed=seed):
        after = before + sizes[name]
        low, high = Fraction(n * before, total) + start, Fraction(n * after, total) + start
        given[name] = high.__floor__() - low.__floor__()
        before = after
    return given
