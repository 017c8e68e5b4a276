"""Two prompts or models on the same rows: the test, the interval of the difference, and the rows needed beforehand.

The unit is the row, joined by its key. Only rows where the two differ speak: b of them bad under A alone, c under B
alone. Two intervals that overlap are not "no difference"; this is the test for that question.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import (
    Rate,
    binomial_lower,
    binomial_pmf,
    binomial_upper,
    complement,
    exact,
    normal_quantile,
    proportion,
    z_two_sided,
)
from lotwise.stats.estimate import wilson_limits

_TIE = 1 + 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class Pairs:
    """Rows by outcome: a both bad, b bad under A alone, c bad under B alone, d neither."""

    a: int
    b: int
    c: int
    d: int
    dropped: int = 0
    """Rows that only one arm has; they are in no count."""

    def __post_init__(self) -> None:
        if min(self.a, self.b, self.c, self.d, self.dropped) < 0:
            raise StatisticsRefused.because("impossible_counts", "counts are not negative", b=self.b, c=self.c)

    @property
    def n(self) -> int:
        """Rows that both arms have."""
        return self.a + self.b + self.c + self.d

    @classmethod
    def join(cls, first: Mapping[str, bool], second: Mapping[str, bool], *, missing_is_bad: bool = False) -> Pairs:
        """Join two arms by row key.

        Parameters
        ----------
        first, second
            Is the row bad, by key.
        missing_is_bad
            Count a row that an arm lacks as bad for it, instead of dropping the row. Report both when they differ.
        """
        keys = first.keys() | second.keys() if missing_is_bad else first.keys() & second.keys()
        cells = [0, 0, 0, 0]
        for key in keys:
            cells[2 * (not first.get(key, True)) + (not second.get(key, True))] += 1
        both_bad, only_first, only_second, neither = cells
        dropped = 0 if missing_is_bad else len(first.keys() ^ second.keys())
        return cls(a=both_bad, b=only_first, c=only_second, d=neither, dropped=dropped)


@dataclass(frozen=True, kw_only=True, slots=True)
class McNemar:
    """Two-sided test that neither arm is worse."""

    p_exact: float
    p_midp: float | None
    """Less conservative, without a guarantee; None for b = c, where conventions differ."""
    b: int
    c: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Rate of bad rows under A minus that under B, on the same rows."""

    diff: float
    low: float
    high: float
    confidence: float
    n: int
    method: str


def mcnemar(b: int, c: int) -> McNemar:
    """Test two arms on the same rows, exactly: min(1, 2 P(Bin(b+c, 1/2) <= min(b, c))).

    Notes: McNemar 1947; no discordant row gives p = 1.
    """
    if min(b, c) < 0:
        raise StatisticsRefused.because("impossible_counts", "counts are not negative", b=b, c=c)
    n, least = b + c, min(b, c)
    double = 2 * float(binomial_lower(least, n, 0.5))
    midp = None if b == c else double - float(binomial_pmf(least, n, 0.5))
    return McNemar(p_exact=min(1.0, double), p_midp=midp, b=b, c=c)


def _needs_rows(pairs: Pairs) -> int:
    if pairs.n == 0:
        raise StatisticsRefused.because("no_inspection", "no row has both arms", dropped=pairs.dropped)
    return pairs.n


def tango(pairs: Pairs, *, confidence: Rate = 0.95) -> Difference:
    """Bound the difference by inverting the score test: the interval to report.

    Notes: Tango, Statistics in Medicine 17 (1998). Ends -1 and 1 where the score never reaches z.
    """
    n, z = _needs_rows(pairs), z_two_sided(confidence)
    b, c, diff = pairs.b, pairs.c, (pairs.b - pairs.c) / pairs.n

    def beyond(delta: float) -> float:
        """Squared score over z squared, minus one, in a form without division."""
        middle = -b - c + (2 * n - b + c) * delta
        q = (math.sqrt(max(middle**2 + 8 * n * c * delta * (1 - delta), 0.0)) - middle) / (4 * n)
        return abs(b - c - n * delta) - z * math.sqrt(n * max(2 * q + delta * (1 - delta), 0.0))

    return Difference(
        diff=diff,
        low=_last_inside(beyond, diff, -1.0),
        high=_last_inside(beyond, diff, 1.0),
        confidence=float(exact(confidence)),
        n=n,
        method="tango",
    )


def _last_inside(beyond: Callable[[float], float], inside: float, end: float) -> float:
    """Bisect to the last point towards `end` that is not beyond z."""
    if beyond(end) <= 0:
        return end
    outside = end
    while True:
        middle = (inside + outside) / 2
        if middle in (inside, outside):
            return middle
        if beyond(middle) > 0:
            outside = middle
        else:
            inside = middle


def newcombe(pairs: Pairs, *, confidence: Rate = 0.95) -> Difference:
    """Bound the difference from the two Wilson intervals and their correlation: a check on `tango`.

    Notes: Newcombe, Statistics in Medicine 17 (1998), method 10.
    """
    n, z = _needs_rows(pairs), z_two_sided(confidence)
    in_a, in_b = pairs.a + pairs.b, pairs.a + pairs.c
    (low_a, high_a), (low_b, high_b) = wilson_limits(in_a, n, z), wilson_limits(in_b, n, z)
    margins = in_a * (n - in_a) * in_b * (n - in_b)
    cross = float(pairs.a * pairs.d - pairs.b * pairs.c)
    if cross > 0:
        cross = max(cross - n / 2, 0.0)
    phi = cross / math.sqrt(margins) if margins else 0.0
    pa, pb = in_a / n, in_b / n

    def reach(one: float, two: float) -> float:
        return math.sqrt(max(one**2 - 2 * phi * one * two + two**2, 0.0))

    diff = (pairs.b - pairs.c) / n
    return Difference(
        diff=diff,
        low=diff - reach(pa - low_a, high_b - pb),
        high=diff + reach(high_a - pa, pb - low_b),
        confidence=float(exact(confidence)),
        n=n,
        method="newcombe",
    )


def bonett_price(pairs: Pairs, *, confidence: Rate = 0.95) -> Difference:
    """Bound the difference by Wald's formula with one added row in each discordant cell, clipped to [-1, 1].

    Notes: Bonett and Price 2012. `diff` is the plain one.
    """
    n, z = _needs_rows(pairs), z_two_sided(confidence)
    p, q = (pairs.b + 1) / (n + 2), (pairs.c + 1) / (n + 2)
    half = z * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    return Difference(
        diff=(pairs.b - pairs.c) / n,
        low=max(p - q - half, -1.0),
        high=min(p - q + half, 1.0),
        confidence=float(exact(confidence)),
        n=n,
        method="bonett_price",
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedSize:
    """Rows needed to see a difference, rounded up, and before rounding."""

    n: int
    n_raw: float


def _cells(p10: Rate, p01: Rate) -> tuple[float, float]:
    one, other = proportion(p10, "p10"), proportion(p01, "p01")
    if one + other > 1:
        raise StatisticsRefused.because("rate_out_of_range", "p10 and p01 exclude each other", p10=p10, p01=p01)
    return float(one + other), float(one - other)


def mcnemar_size(p10: Rate, p01: Rate, *, alpha: Rate = 0.05, power: Rate = 0.8) -> PairedSize:
    """Compute the rows needed before two arms are run; confirm with `mcnemar_power`, since the exact test needs more.

    Parameters
    ----------
    p10, p01
        Expected shares of rows that are bad under A alone and under B alone.

    Raises
    ------
    StatisticsRefused
        `no_difference` when they are equal.
    """
    s, d = _cells(p10, p01)
    if d == 0:
        raise StatisticsRefused.because("no_difference", "no number of rows shows that equals differ", p10=p10, p01=p01)
    z_a = z_two_sided(1 - proportion(alpha, "alpha", inside=True))
    z_b = normal_quantile(float(proportion(power, "power", inside=True)))
    raw = (z_a * math.sqrt(s) + z_b * math.sqrt(s - d * d)) ** 2 / (d * d)
    return PairedSize(n=math.ceil(raw), n_raw=raw)


def mcnemar_power(n: int, p10: Rate, p01: Rate, *, alpha: Rate = 0.05) -> float:
    """Compute the exact chance that `mcnemar` finds a difference at this level, over all outcomes.

    Notes: given m discordant rows, b is binomial; the test rejects in two equal tails. n steps of vector work.
    """
    s, _ = _cells(p10, p01)
    level = float(proportion(alpha, "alpha"))
    if s == 0:
        return 1.0 if level >= 1 else 0.0
    if level >= 1:
        return 1.0
    m = np.arange(n + 1)
    share = float(proportion(p10, "p10")) / s
    low, high = np.full(n + 1, -1), (m + 1) // 2
    # The last count of the lower tail that rejects; counts at or above half of m never do below level 1.
    while np.any(high - low > 1):
        middle = (low + high) // 2
        rejects = 2 * np.asarray(binomial_lower(middle, m, 0.5)) <= level * _TIE
        rejects &= high - low > 1
        low, high = np.where(rejects, middle, low), np.where(rejects | (high - low <= 1), high, middle)
    tails = np.where(low >= 0, binomial_lower(low, m, share) + binomial_upper(m - low, m, share), 0.0)
    return float((binomial_pmf(m, n, s) * tails).sum())


def significant(test: McNemar, *, confidence: Rate = 0.95) -> bool:
    """Does the exact test reject at this confidence?"""
    return test.p_exact <= float(complement(confidence)) * _TIE
