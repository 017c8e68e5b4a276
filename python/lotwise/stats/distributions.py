"""Rates as exact fractions, and the few textbook distributions that the rest needs.

A rate such as 0.07 is read as the decimal that was typed, not as the nearest binary float: 7 % of 100 rows is 7
rows, while `0.07 * 100` is a little more than 7. Where a binomial tail lies so near to its level that a float could
fall on the wrong side, the comparison is settled in integers. Everything that comes from scipy enters here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped, unused-ignore]

from lotwise.errors import StatisticsRefused

Rate: TypeAlias = float | str | Decimal | Fraction
"""A rate, level or confidence in [0, 1]; text and Decimal are taken as written, floats as they print."""

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Counts: TypeAlias = int | Sequence[int] | NDArray[Any]

CLOSE = 1e-9
"""Relative distance of a float tail from its level under which the comparison is made again in integers."""


def exact(rate: Rate) -> Fraction:
    """Read a rate as the exact decimal that it shows (0.95 is 19/20)."""
    if isinstance(rate, Fraction):
        return rate
    return Fraction(str(rate)) if isinstance(rate, str | Decimal) else Fraction(repr(float(rate)))


def proportion(rate: Rate, name: str, *, inside: bool = False) -> Fraction:
    """Read a rate and refuse one outside [0, 1], or outside (0, 1) with `inside`."""
    value = exact(rate)
    if not 0 <= value <= 1 or (inside and value in (0, 1)):
        span = "strictly between 0 and 1" if inside else "from 0 to 1"
        raise StatisticsRefused.because("rate_out_of_range", f"{name} is a rate {span}, not percent", **{name: rate})
    return value


def complement(confidence: Rate) -> Fraction:
    """The error chance 1 - confidence, exactly."""
    return 1 - proportion(confidence, "confidence", inside=True)


def count_at(population: int, rate: Rate) -> tuple[int, int]:
    """Rows that a rate means in a lot: floor and ceiling of the exact product."""
    product = population * exact(rate)
    return math.floor(product), math.ceil(product)


def normal_quantile(p: float) -> float:
    """Quantile of the standard normal distribution."""
    return float(special.ndtri(p))


def z_two_sided(confidence: Rate) -> float:
    """The z of a two-sided confidence: 1.959964 at 0.95."""
    return -normal_quantile(float(complement(confidence) / 2))


def beta_quantile(p: float, a: float, b: float) -> float:
    """Quantile of Beta(a, b)."""
    return float(special.betaincinv(a, b, p))


def student_quantile(p: float, df: float) -> float:
    """Quantile of Student's t with `df` degrees of freedom."""
    return float(special.stdtrit(df, p))


def binomial_lower(bad: Any, looked: Any, rate: Any) -> Any:
    """P(X <= bad) for X ~ Bin(looked, rate); scalars or arrays that broadcast.

    Notes: written out at the edges, where the incomplete beta function is undefined.
    """
    k, n, p = np.broadcast_arrays(
        np.asarray(bad, np.float64), np.asarray(looked, np.float64), np.asarray(rate, np.float64)
    )
    inner = (k >= 0) & (k < n)
    tail = special.betaincc(np.where(inner, k + 1, 1.0), np.where(inner, n - k, 1.0), p)
    answer = np.where(inner, tail, (k >= n).astype(np.float64))
    return answer if answer.ndim else float(answer)


def binomial_upper(bad: Any, looked: Any, rate: Any) -> Any:
    """P(X >= bad) for X ~ Bin(looked, rate), without the cancellation of 1 - P(X < bad)."""
    k, n = np.asarray(bad), np.asarray(looked)
    return binomial_lower(n - k, n, 1.0 - np.asarray(rate, np.float64))


def binomial_pmf(bad: Any, looked: Any, rate: Any) -> Floats:
    """P(X = bad) for X ~ Bin(looked, rate), as an array."""
    k, n, p = np.broadcast_arrays(
        np.asarray(bad, np.float64), np.asarray(looked, np.float64), np.asarray(rate, np.float64)
    )
    choose = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    chance: Floats = np.exp(choose + special.xlogy(k, p) + special.xlog1py(n - k, -p))
    return chance


def binomial_tail_at_most(bad: int, looked: int, rate: Rate, level: Rate) -> bool:
    """Is P(X <= bad) <= level for X ~ Bin(looked, rate)? Settled in integers where floats are too close to say."""
    p, bound = exact(rate), exact(level)
    tail = float(binomial_lower(bad, looked, float(p)))
    if abs(tail - float(bound)) > CLOSE * float(bound):
        return tail <= float(bound)
    hit, miss = p.numerator, p.denominator - p.numerator
    total = sum(math.comb(looked, k) * hit**k * miss ** (looked - k) for k in range(min(bad, looked) + 1))
    return bool(total * bound.denominator <= bound.numerator * p.denominator**looked)


def binomial_upper_at_most(bad: int, looked: int, rate: Rate, level: Rate) -> bool:
    """Is P(X >= bad) <= level for X ~ Bin(looked, rate)?"""
    return binomial_tail_at_most(looked - bad, looked, 1 - exact(rate), level)
