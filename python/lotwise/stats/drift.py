"""Has the process moved? Charts over a series of lots, each with its rule for a signal.

The binomial CUSUM is the one to act on: it takes human counts of lots of unequal size. The p-chart and EWMA are to
look at, and a band of mean and k deviations means little under twenty points. A golden set tests the pipeline and
never enters a lot's own counts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Rate, proportion
from lotwise.stats.hypergeometric import check_counts

BAND_POINTS = 20
"""Points under which `mean_band` says that its limits are decoration."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChartLimits:
    """Lower and upper control limit of one point."""

    lcl: float
    ucl: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """Mean plus and minus k standard deviations of past values."""

    mean: float
    sd: float | None
    low: float | None
    high: float | None
    reason: str | None
    """`too_few_points` under twenty; None from there on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ewma:
    """Smoothed values with their limits, and the first point outside them (1-based)."""

    z: tuple[float, ...]
    lcl: tuple[float, ...]
    ucl: tuple[float, ...]
    first_signal: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Cusum:
    """Summed excursions above and below the target, and the first past the bound (1-based)."""

    c_plus: tuple[float, ...]
    c_minus: tuple[float, ...]
    first_signal: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class BinomialCusum:
    """Summed evidence for the worse rate, and the first lot past the bound (1-based)."""

    s: tuple[float, ...]
    first_signal: int | None


def _first(flags: Sequence[bool]) -> int | None:
    return next((i for i, flag in enumerate(flags, start=1) if flag), None)


def p_chart(rate: Rate, n: int, *, k: float = 3.0) -> ChartLimits:
    """Compute the limits of a lot's rate around the usual one (Shewhart), clipped to [0, 1]."""
    if n < 1:
        raise StatisticsRefused.because("no_inspection", "a point needs a looked row", n=n)
    p = float(proportion(rate, "rate"))
    half = k * math.sqrt(p * (1 - p) / n)
    return ChartLimits(lcl=max(0.0, p - half), ucl=min(1.0, p + half))


def mean_band(values: Sequence[float], *, k: float = 3.0) -> Band:
    """Compute mean and k standard deviations (n - 1); one value has no deviation."""
    if not values:
        raise StatisticsRefused.because("no_inspection", "give one value at least")
    mean = statistics.fmean(values)
    few = "too_few_points" if len(values) < BAND_POINTS else None
    if len(values) == 1:
        return Band(mean=mean, sd=None, low=None, high=None, reason=few)
    sd = statistics.stdev(values)
    return Band(mean=mean, sd=sd, low=mean - k * sd, high=mean + k * sd, reason=few)


def ewma(values: Sequence[float], *, lam: float = 0.2, width: float = 2.7, mu0: float, sigma: float) -> Ewma:
    """Smooth values and compare with limits that open from the start (Roberts 1959).

    Parameters
    ----------
    lam
        Weight of the newest value, in (0, 1].
    width
        Limits in standard deviations of the smoothed value.
    mu0, sigma
        Usual mean and standard deviation of one value.

    Notes: a signal is strictly outside; variance lam/(2-lam) (1 - (1-lam)^(2t)).
    """
    proportion(lam, "lam")
    z, lcl, ucl, level = [], [], [], mu0
    for t, x in enumerate(values, start=1):
        level = lam * x + (1 - lam) * level
        half = width * sigma * math.sqrt(lam / (2 - lam) * (1 - (1 - lam) ** (2 * t)))
        z.append(level)
        lcl.append(mu0 - half)
        ucl.append(mu0 + half)
    outside = [not a <= v <= b for v, a, b in zip(z, lcl, ucl, strict=True)]
    return Ewma(z=tuple(z), lcl=tuple(lcl), ucl=tuple(ucl), first_signal=_first(outside))


def cusum(values: Sequence[float], *, target: float, k: float, h: float) -> Cusum:
    """Sum what exceeds the target by more than k, on each side (Page 1954); signal strictly above h."""
    plus, minus, up, down = [], [], 0.0, 0.0
    for x in values:
        up, down = max(0.0, up + x - target - k), max(0.0, down + target - k - x)
        plus.append(up)
        minus.append(down)
    return Cusum(
        c_plus=tuple(plus),
        c_minus=tuple(minus),
        first_signal=_first([max(a, b) > h for a, b in zip(plus, minus, strict=True)]),
    )


def cusum_binomial(bad: Sequence[int], looked: Sequence[int], *, usual: Rate, worse: Rate, h: float) -> BinomialCusum:
    """Sum the evidence that the rate went from `usual` to `worse`, over lots of unequal size.

    Parameters
    ----------
    bad, looked
        Human counts a lot, in the order of the lots.
    h
        Bound in units of log likelihood ratio; a signal is strictly above.

    Notes: S = max(0, S + x ln(p1/p0) + (n-x) ln((1-p1)/(1-p0))) (Page 1954; Reynolds and Stoumbos 1999).
    """
    p0, p1 = (float(proportion(p, "rate", inside=True)) for p in (usual, worse))
    if p0 == p1:
        raise StatisticsRefused.because("no_difference", "give two different rates", usual=p0, worse=p1)
    sums, s = [], 0.0
    for x, n in zip(bad, looked, strict=True):
        check_counts(x, n, n)
        s = max(0.0, s + x * math.log(p1 / p0) + (n - x) * (math.log1p(-p1) - math.log1p(-p0)))
        sums.append(s)
    return BinomialCusum(s=tuple(sums), first_signal=_first([v > h for v in sums]))
