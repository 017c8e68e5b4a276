"""What a sample says about the rate of bad rows: one estimate, two limits, and the name of the method.

The default is the exact interval of a finite lot: every number of bad rows that the sample does not speak
against, found by inverting hypergeometric tails. It never covers less than it promises, is zero-wide at a census
and [0, 1] before the first look. The others are there to compare with, or for a population without an end.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import (
    Bools,
    Counts,
    Floats,
    Ints,
    Rate,
    beta_quantile,
    complement,
    exact,
    z_two_sided,
)
from lotwise.stats.hypergeometric import check_counts, least_bad, most_bad


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """An estimate with its limits. What could not be said is None, with the reason beside it."""

    estimate: float | None
    low: float | None
    high: float | None
    confidence: float
    """Two-sided, unless `method` says upper: then one-sided, and `low` is 0."""
    n: int
    """Rows that a person looked at."""
    method: str
    se: float | None = None
    reason: str | None = None
    assumptions: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class LotInterval(Interval):
    """An interval for the bad rows of one closed lot, also as counts."""

    population: int
    bad_low: int
    bad_high: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LotIntervals:
    """The same for many lots: one array element a lot; a rate is NaN where nothing was looked at."""

    estimate: Floats
    low: Floats
    high: Floats
    bad_low: Ints
    bad_high: Ints
    upper_one_sided: Floats
    """The bound that decides: at this confidence on its own, so at or below `high`."""
    n: Ints
    population: Ints
    confidence: float
    method: str = "exact_finite"


class FpcUndercovers(UserWarning):
    """Wilson's interval with a finite-population correction covers less than it promises for rare bad rows."""


def bad_rate_interval(
    bad: int,
    looked: int,
    *,
    population: int | None = None,
    confidence: Rate = 0.95,
    method: str | None = None,
    unsure: int = 0,
) -> Interval:
    """Estimate the rate of bad rows from a simple random sample.

    Parameters
    ----------
    bad, looked
        Bad rows among the rows looked at.
    population
        Rows in the closed lot the sample was drawn from, without replacement. None for a population without an
        end, such as the future rows of a prompt.
    method
        `exact_finite` (default with a population), `clopper_pearson` (default without), `wilson`, `jeffreys`, or
        `wilson_fpc`, which warns.
    unsure
        Looked rows without a verdict: bad for the upper limit, good for the lower limit, never dropped. The
        estimate counts them as good.

    Returns
    -------
    Interval, a LotInterval for `exact_finite`. With nothing looked at: no estimate, [0, 1], `no_inspection`.
    Limits of a lot are whole rows and the estimate is not, so it may lie outside by less than one row of the lot.

    Raises
    ------
    StatisticsRefused
        `impossible_counts`, `rate_out_of_range`, `unknown_method`, `population_needed`.
    """
    chosen = method or ("clopper_pearson" if population is None else "exact_finite")
    if chosen not in METHODS:
        raise StatisticsRefused.from_name("method", chosen, METHODS)
    check_counts(bad + unsure, looked, looked if population is None else population)
    if min(bad, unsure) < 0:
        check_counts(min(bad, unsure), looked, looked)
    alpha = complement(confidence)
    estimate, reason = (bad / looked, None) if looked else (None, "no_inspection")
    if chosen in ("exact_finite", "wilson_fpc") and population is None:
        raise StatisticsRefused.because("population_needed", f"{chosen} is for a closed lot; give population=")
    if chosen == "exact_finite":
        assert population is not None
        bad_low = int(least_bad(bad, looked, population, alpha / 2))
        bad_high = int(most_bad(bad + unsure, looked, population, alpha / 2))
        return LotInterval(
            estimate=estimate,
            low=bad_low / population if population else 0.0,
            high=bad_high / population if population else 1.0,
            confidence=float(exact(confidence)),
            n=looked,
            method=chosen,
            reason=reason,
            population=population,
            bad_low=bad_low,
            bad_high=bad_high,
        )
    if chosen == "wilson_fpc":
        hint = "use method='exact_finite': wilson_fpc falls to 80 % coverage at 95 % where one or two rows are bad"
        warnings.warn(hint, FpcUndercovers, stacklevel=2)
    limits = METHODS[chosen]
    low = limits(bad, looked, population, confidence)[0] if looked else 0.0
    high = limits(bad + unsure, looked, population, confidence)[1] if looked else 1.0
    return Interval(
        estimate=estimate,
        low=low,
        high=high,
        confidence=float(exact(confidence)),
        n=looked,
        method=chosen,
        reason=reason,
    )


def upper_bound(bad: int, looked: int, *, population: int, confidence: Rate = 0.95, unsure: int = 0) -> LotInterval:
    """Bound the rate of bad rows in a lot from above, with all of the error on that side.

    Returns
    -------
    LotInterval whose `high` is the greatest rate D/population with P(X <= bad + unsure | D) > 1 - confidence.
    A lot is released exactly when it lies below the limit.
    """
    check_counts(bad + unsure, looked, population)
    bad_high = int(most_bad(bad + unsure, looked, population, complement(confidence)))
    return LotInterval(
        estimate=bad / looked if looked else None,
        low=0.0,
        high=bad_high / population if population else 1.0,
        confidence=float(exact(confidence)),
        n=looked,
        method="exact_finite_upper",
        reason=None if looked else "no_inspection",
        population=population,
        bad_low=0,
        bad_high=bad_high,
    )


def bad_rate_intervals(
    bad: Counts, looked: Counts, *, population: Counts, confidence: Rate = 0.95, unsure: Counts = 0
) -> LotIntervals:
    """Estimate the rate of bad rows of many lots in one call, exactly, each lot by itself.

    Parameters
    ----------
    bad, looked, population, unsure
        Integers or integer arrays that broadcast, one element a lot.

    Returns
    -------
    LotIntervals of the broadcast shape. Each lot's limits are those of `bad_rate_interval`; they do not depend on
    the other lots or on their order.

    Notes
    -----
    About 15 tails a lot for the three bounds, equal lots once: less than one plain bisection with scipy's tails.
    """
    x, n, total, open_ = (np.asarray(a, np.int64) for a in np.broadcast_arrays(bad, looked, population, unsure))
    check_counts(x, n, total)
    check_counts(open_, n, total)
    check_counts(x + open_, n, total)
    alpha = complement(confidence)
    bad_low = least_bad(x, n, total, alpha / 2)
    bad_high = most_bad(x + open_, n, total, alpha / 2)
    upper = most_bad(x + open_, n, total, alpha)
    return LotIntervals(
        estimate=_divide(x, n, np.nan),
        low=_divide(bad_low, total, 0.0),
        high=_divide(bad_high, total, 1.0),
        bad_low=bad_low,
        bad_high=bad_high,
        upper_one_sided=_divide(upper, total, 1.0),
        n=n,
        population=total,
        confidence=float(exact(confidence)),
    )


def _divide(part: Ints, whole: Ints, otherwise: float) -> Floats:
    some: Bools = whole > 0
    answer: Floats = np.where(some, part / np.where(some, whole, 1), otherwise)
    return answer


def wilson_limits(bad: float, looked: float, z: float) -> tuple[float, float]:
    """Compute Wilson's score limits for counts that need not be whole.

    Notes: Wilson 1927, without continuity correction; the ends are pinned at x = 0 and x = n.
    """
    p, z2 = bad / looked, z * z
    centre = (p + z2 / (2 * looked)) / (1 + z2 / looked)
    half = z / (1 + z2 / looked) * math.sqrt(p * (1 - p) / looked + z2 / (4 * looked * looked))
    return (0.0 if bad == 0 else max(centre - half, 0.0), 1.0 if bad == looked else min(centre + half, 1.0))


def _wilson(bad: int, looked: int, population: int | None, confidence: Rate) -> tuple[float, float]:
    return wilson_limits(bad, looked, z_two_sided(confidence))


def _wilson_fpc(bad: int, looked: int, population: int | None, confidence: Rate) -> tuple[float, float]:
    assert population is not None
    if looked == population:
        return bad / looked, bad / looked
    effective = looked * (population - 1) / (population - looked)
    return wilson_limits(bad / looked * effective, effective, z_two_sided(confidence))


def clopper_pearson_limits(bad: int, looked: int, confidence: Rate) -> tuple[float, float]:
    """Compute the equal-tail binomial limits (Clopper and Pearson 1934)."""
    half = float(complement(confidence) / 2)
    low = 0.0 if bad == 0 else beta_quantile(half, bad, looked - bad + 1)
    high = 1.0 if bad == looked else beta_quantile(1 - half, bad + 1, looked - bad)
    return low, high


def _clopper_pearson(bad: int, looked: int, population: int | None, confidence: Rate) -> tuple[float, float]:
    return clopper_pearson_limits(bad, looked, confidence)


def _jeffreys(bad: int, looked: int, population: int | None, confidence: Rate) -> tuple[float, float]:
    half = float(complement(confidence) / 2)
    low = 0.0 if bad == 0 else beta_quantile(half, bad + 0.5, looked - bad + 0.5)
    high = 1.0 if bad == looked else beta_quantile(1 - half, bad + 0.5, looked - bad + 0.5)
    return low, high


def _exact_finite(bad: int, looked: int, population: int | None, confidence: Rate) -> tuple[float, float]:
    assert population is not None
    half: Fraction = complement(confidence) / 2
    return (
        int(least_bad(bad, looked, population, half)) / population,
        int(most_bad(bad, looked, population, half)) / population,
    )


METHODS: dict[str, Callable[[int, int, int | None, Rate], tuple[float, float]]] = {
    "exact_finite": _exact_finite,
    "clopper_pearson": _clopper_pearson,
    "wilson": _wilson,
    "jeffreys": _jeffreys,
    "wilson_fpc": _wilson_fpc,
}
"""Limits (bad, looked, population, confidence) -> (low, high), by name.

Buonaccorsi 1987 and Wright 1991 for exact_finite; Brown, Cai and DasGupta 2001 for jeffreys with adjusted ends.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class DedupRates:
    """The rate of bad distinct answers, and the rate of rows that carry one."""

    unique_rate: float
    row_rate: float
    row_se: float | None
    n: int
    method: str = "ratio"


def dedup_rates(unique_total: int, sample: Sequence[tuple[int, bool]]) -> DedupRates:
    """Estimate both rates from a simple random sample of distinct answers.

    Parameters
    ----------
    unique_total
        Distinct answers in the lot.
    sample
        (rows that share the answer, is it bad) for each looked answer.

    Notes
    -----
    One answer that many rows share is one fault and one look. The row rate is a ratio estimate (Cochran 1977,
    chapter 6), biased in small samples and far less certain than the other; sums are exact, so order is nothing.
    """
    n = len(sample)
    check_counts(0, n, unique_total)
    if n == 0 or any(m < 1 for m, _ in sample):
        raise StatisticsRefused.because("no_inspection", "look at one answer that at least one row has", n=n)
    rows = sum(m for m, _ in sample)
    rate = Fraction(sum(m for m, bad in sample if bad), rows)
    squares = sum((m * (bool(bad) - rate)) ** 2 for m, bad in sample)
    variance = None if n == 1 else (1 - Fraction(n, unique_total)) * squares * n / (rows**2 * (n - 1))
    return DedupRates(
        unique_rate=sum(bool(bad) for _, bad in sample) / n,
        row_rate=float(rate),
        row_se=None if variance is None else math.sqrt(variance),
        n=n,
    )
