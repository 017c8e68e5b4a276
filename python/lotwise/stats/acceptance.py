"""Single sampling plans: look at n rows, accept the lot when at most c of them are bad.

A plan is two numbers and a promise: how often it accepts a good lot and how often it lets a bad one through. Every
search here is over exact tails of the finite lot, so the promise holds for this lot and not for an endless stream.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from scipy import optimize  # type: ignore[import-untyped, unused-ignore]

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import (
    Bools,
    Floats,
    Ints,
    Rate,
    binomial_lower,
    binomial_pmf,
    binomial_tail_at_most,
    binomial_upper_at_most,
    complement,
    count_at,
    exact,
    proportion,
)
from lotwise.stats.estimate import LotInterval, bad_rate_interval
from lotwise.stats.hypergeometric import check_counts, lower, lower_exceeds, upper_exceeds
from lotwise.stats.sizes import quoted_z, sample_size, smallest_sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Look at `n` rows, accept at `c` bad rows or fewer."""

    n: int
    c: int
    population: int | None
    """Rows in the lot; None for an endless stream, where chances are binomial."""
    acceptable: float | None
    limit: float
    alpha: float | None
    """Largest chance asked for of not accepting a lot at the acceptable rate."""
    beta: float
    """Largest chance asked for of accepting a lot at the limit."""
    accept_at_acceptable: float | None
    accept_at_limit: float
    bad_at_acceptable: int | None
    bad_at_limit: int | None

    def accepts(self, rate: Rate) -> float:
        """Chance to accept a lot with this rate of bad rows (a part row is rounded up)."""
        if self.population is None:
            return accept_chance(self.n, self.c, rate=rate)
        return accept_chance(self.n, self.c, population=self.population, bad_in_lot=count_at(self.population, rate)[1])

    def curve(self, rates: Iterable[Rate]) -> tuple[tuple[float, float], ...]:
        """The operating curve: (rate, chance to accept) for each rate, in the order given."""
        return tuple((float(exact(rate)), self.accepts(rate)) for rate in rates)

    def outgoing(self, rate: Rate) -> float:
        """Average rate of bad rows after inspection, when refused lots are read in full and bad rows put right."""
        if self.population is None:
            return float(exact(rate)) * self.accepts(rate)
        return outgoing_rate(self.n, self.c, population=self.population, bad_in_lot=count_at(self.population, rate)[1])

    def looks(self, rate: Rate) -> float:
        """Average rows read a lot when refused lots are read in full."""
        if self.population is None:
            return math.inf if self.accepts(rate) < 1 else float(self.n)
        bad = count_at(self.population, rate)[1]
        return average_total_inspection(self.n, self.c, population=self.population, bad_in_lot=bad)

    def in_words(self) -> str:
        """Say the plan in one sentence."""
        of = "" if self.population is None else f" of the {self.population:,}"
        good = ""
        if self.accept_at_acceptable is not None and self.acceptable is not None:
            good = f"a lot with {self.acceptable:.2%} bad passes {self.accept_at_acceptable:.1%} of the time, "
        return (
            f"Look at {self.n:,} rows{of} drawn at random; accept with {self.c} bad or fewer: "
            f"{good}one with {self.limit:.2%} bad {self.accept_at_limit:.1%} of the time."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectionPlan(Plan):
    """The plan that lotwise makes when nothing is asked for: one draw for the interval and the decision."""

    re_review_from: int | None
    """Bad rows from which the decision is re_review; between c and this number it is continue."""
    buys: LotInterval
    """What n buys: the interval when 3 % of the looked rows are bad, rounded to a whole row."""


def accept_chance(
    n: int, c: int, *, rate: Rate | None = None, population: int | None = None, bad_in_lot: int | None = None
) -> float:
    """Compute P(accept) = P(X <= c), binomial for a `rate`, hypergeometric for a lot with `bad_in_lot` bad rows."""
    if population is None or bad_in_lot is None:
        if rate is None:
            raise StatisticsRefused.because("lot_unknown", "give rate=, or population= and bad_in_lot=")
        return float(binomial_lower(c, n, float(proportion(rate, "rate"))))
    check_counts(0, n, population)
    check_counts(bad_in_lot, population, population)
    return float(lower(c, n, population, bad_in_lot))


def inspection_plan(
    population: int,
    *,
    margin: Rate = 0.05,
    acceptable: Rate = 0.01,
    limit: Rate = 0.05,
    confidence: Rate = 0.95,
    n: int | None = None,
) -> InspectionPlan:
    """Make the default plan of a lot: read enough for the interval, release at the exact acceptance number.

    Parameters
    ----------
    population
        Distinct valid answers in the closed lot.
    margin, confidence
        Half-width and confidence of the interval that sizes the sample.
    acceptable, limit
        As in `decide`, at the same one-sided `confidence`.
    n
        Rows to look at, when not the default: the larger of the size for `margin` and the least number with which a
        spotless sample releases.

    Raises
    ------
    StatisticsRefused
        `unattainable` when `n` rows cannot release the lot even without a bad row; `limits_cross`; `empty_lot`.
    """
    low, high, alpha = proportion(acceptable, "acceptable"), proportion(limit, "limit"), complement(confidence)
    if low >= high:
        raise StatisticsRefused.because(
            "limits_cross", "the acceptable rate lies below the limit", acceptable=acceptable, limit=limit
        )
    if population == 0:
        raise StatisticsRefused.because("empty_lot", "a lot without valid answers has nothing to look at")
    d_low, d_high = count_at(population, low)[0], count_at(population, high)[1]
    if n is None:
        needed = smallest_sample(population, d_high, 0, alpha)
        n = min(max(sample_size(population, margin=margin, z=quoted_z(confidence)).n, needed), population)
    c = acceptance_number(population, n, limit=high, beta=alpha)
    if c is None:
        raise StatisticsRefused.because(
            "unattainable", "look at more rows: not even a spotless sample would release", population=population, n=n
        )
    x = np.arange(n + 1)
    against = np.flatnonzero(~upper_exceeds(x, n, population, d_low, alpha) & (x > c))
    buys = bad_rate_interval(round(0.03 * n), n, population=population, confidence=confidence)
    assert isinstance(buys, LotInterval)
    return InspectionPlan(
        n=n,
        c=c,
        population=population,
        acceptable=float(low),
        limit=float(high),
        alpha=float(alpha),
        beta=float(alpha),
        accept_at_acceptable=float(lower(c, n, population, d_low)),
        accept_at_limit=float(lower(c, n, population, d_high)),
        bad_at_acceptable=d_low,
        bad_at_limit=d_high,
        re_review_from=int(against[0]) if against.size else None,
        buys=buys,
    )


def acceptance_number(population: int, n: int, *, limit: Rate = 0.05, beta: Rate = 0.05) -> int | None:
    """Compute the largest c with P(X <= c | lot at the limit) <= beta; None when even c = 0 accepts too often.

    Notes: the same statement as "the one-sided exact upper bound at 1 - beta stays below the limit".
    """
    check_counts(0, n, population)
    d, level = count_at(population, proportion(limit, "limit"))[1], exact(beta)
    low, high = -1, n + 1
    while high - low > 1:
        middle = (low + high) // 2
        if lower_exceeds(middle, n, population, d, level):
            high = middle
        else:
            low = middle
    return low if low >= 0 else None


def consumer_plan(population: int, *, limit: Rate = 0.05, beta: Rate = 0.05, c: int = 0) -> Plan:
    """Find the least n that lets a lot at the limit through at most `beta` of the time, for a fixed c.

    Raises
    ------
    StatisticsRefused
        `unattainable` when the limit is c bad rows or fewer.
    """
    rate, level = proportion(limit, "limit"), exact(beta)
    d = count_at(population, rate)[1]
    n = smallest_sample(population, d, c, level)
    return Plan(
        n=n,
        c=c,
        population=population,
        acceptable=None,
        limit=float(rate),
        alpha=None,
        beta=float(level),
        accept_at_acceptable=None,
        accept_at_limit=float(lower(c, n, population, d)),
        bad_at_acceptable=None,
        bad_at_limit=d,
    )


def single_plan(
    population: int | None,
    *,
    acceptable: Rate = 0.01,
    limit: Rate = 0.05,
    alpha: Rate = 0.05,
    beta: Rate = 0.10,
    n_max: int = 20_000,
) -> Plan:
    """Find the plan with the fewest rows that keeps both risks: the cheapest way to a decision, not to an estimate.

    Parameters
    ----------
    population
        Rows in the lot; None for an endless stream (binomial chances).
    acceptable, alpha
        A lot at this rate is refused at most `alpha` of the time. In a lot the count is the floor of the product.
    limit, beta
        A lot at this rate is accepted at most `beta` of the time. In a lot the count is the ceiling.
    n_max
        Largest sample searched for an endless stream.

    Raises
    ------
    StatisticsRefused
        `unattainable` when acceptable and limit are the same number of rows, or above `n_max`.

    Notes
    -----
    Guenther 1969: for each c the consumer's risk sets a least n; the first c whose n keeps the producer's risk has
    the smallest n of all, since that least n grows with c.
    """
    low, high = proportion(acceptable, "acceptable"), proportion(limit, "limit")
    risk_a, risk_b = exact(alpha), exact(beta)
    if population is None:
        return _endless_plan(low, high, risk_a, risk_b, n_max)
    check_counts(0, 0, population)
    d_low, d_high = count_at(population, low)[0], count_at(population, high)[1]
    if d_low >= d_high:
        hint = "the two rates are the same number of rows in this lot; raise the limit"
        raise StatisticsRefused.because("unattainable", hint, D_aql=d_low, D_ltpd=d_high, population=population)
    first, width = 0, 8
    while True:
        accept: Ints = np.arange(first, min(first + width, d_low + 1), dtype=np.int64)
        n = _least_samples(accept, population, d_high, risk_b)
        good = np.flatnonzero(~upper_exceeds(accept + 1, n, population, d_low, risk_a))
        if good.size:
            best_n, best_c = int(n[good[0]]), int(accept[good[0]])
            break
        first, width = first + width, width * 2
    return Plan(
        n=best_n,
        c=best_c,
        population=population,
        acceptable=float(low),
        limit=float(high),
        alpha=float(risk_a),
        beta=float(risk_b),
        accept_at_acceptable=float(lower(best_c, best_n, population, d_low)),
        accept_at_limit=float(lower(best_c, best_n, population, d_high)),
        bad_at_acceptable=d_low,
        bad_at_limit=d_high,
    )


def _least_samples(accept: Ints, population: int, bad: int, level: Fraction) -> Ints:
    """`smallest_sample` for many acceptance numbers at once."""
    low, high = accept.copy(), np.full(accept.shape, population, np.int64)
    while np.any(high - low > 1):
        middle = (low + high) // 2
        above: Bools = lower_exceeds(accept, middle, population, bad, level)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return high


def _endless_plan(low: Fraction, high: Fraction, risk_a: Fraction, risk_b: Fraction, n_max: int) -> Plan:
    if low >= high:
        raise StatisticsRefused.because(
            "unattainable", "the acceptable rate lies below the limit", acceptable=float(low), limit=float(high)
        )
    n = 0
    for c in range(n_max):
        bottom, top = max(n, c), n_max + 1
        while top - bottom > 1:
            middle = (bottom + top) // 2
            if binomial_tail_at_most(c, middle, high, risk_b):
                top = middle
            else:
                bottom = middle
        n = top
        if n > n_max:
            break
        if binomial_upper_at_most(c + 1, n, low, risk_a):
            return Plan(
                n=n,
                c=c,
                population=None,
                acceptable=float(low),
                limit=float(high),
                alpha=float(risk_a),
                beta=float(risk_b),
                accept_at_acceptable=float(binomial_lower(c, n, float(low))),
                accept_at_limit=float(binomial_lower(c, n, float(high))),
                bad_at_acceptable=None,
                bad_at_limit=None,
            )
    raise StatisticsRefused.because("unattainable", "move the two rates apart, or raise n_max", n_max=n_max)


def average_total_inspection(n: int, c: int, *, population: int, bad_in_lot: int) -> float:
    """Average rows read a lot when refused lots are read in full (Dodge and Romig)."""
    accept = accept_chance(n, c, population=population, bad_in_lot=bad_in_lot)
    return n * accept + population * (1 - accept)


def outgoing_rate(n: int, c: int, *, population: int, bad_in_lot: int) -> float:
    """Average rate of bad rows left in the lot when found ones are put right and refused lots read in full."""
    return float(_outgoing(np.array([bad_in_lot], np.int64), n, c, population)[0])


def _outgoing(bad: Ints, n: int, c: int, population: int) -> Floats:
    """Sum over x <= c of P(x) (D - x)/N: one bad row stays unseen, and the other D - 1 decide about the lot."""
    if n >= population:
        return np.zeros(bad.shape, np.float64)
    accept = lower(c, n, population - 1, np.maximum(bad - 1, 0))
    answer: Floats = bad / population * ((population - n) / population) * accept
    return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class OutgoingLimit:
    """The worst average outgoing rate over all true rates, and where it is met."""

    rate: float
    at_bad: int | None
    at_rate: float


def outgoing_limit(n: int, c: int, *, population: int) -> OutgoingLimit:
    """Compute the AOQL of a finite lot: the largest outgoing rate over every number of bad rows.

    Notes: the curve has one hump, so ever finer grids around the best point find the first count that attains it.
    """
    check_counts(0, n, population)
    left, right = 0, population
    while True:
        step = max(1, (right - left) // 512)
        grid = np.unique(np.append(np.arange(left, right + 1, step, dtype=np.int64), right))
        curve = _outgoing(grid, n, c, population)
        best = int(np.flatnonzero(curve >= curve.max() * (1 - 1e-13))[0])
        if step == 1:
            at = int(grid[best])
            return OutgoingLimit(rate=float(curve[best]), at_bad=at, at_rate=at / population)
        left, right = int(grid[max(best - 1, 0)]), int(grid[min(best + 2, len(grid) - 1)])


def outgoing_limit_stream(n: int, c: int, *, population: int | None = None) -> OutgoingLimit:
    """Compute the AOQL for binomial draws: max over p of p P(X <= c | p), times 1 - n/N with a lot size.

    Notes: at the maximum P(X <= c) = n p P(X = c in n - 1 draws); the root is bracketed from its left.
    """
    rest = 1.0 if population is None else 1 - n / population
    if c >= n:
        return OutgoingLimit(rate=rest, at_bad=None, at_rate=1.0)

    def slope(p: float) -> float:
        return float(binomial_lower(c, n, p)) - n * p * float(binomial_pmf(c, n - 1, p))

    top = (c + 1) / n
    while slope(top) > 0 and top < 1:
        top = min(1.0, (3 * top + 1) / 4) if top > 0.5 else top * 1.25
    solve: Callable[..., Any] = optimize.brentq
    p = float(solve(slope, top * 1e-9, top, xtol=1e-14)) if slope(top) < 0 else 1.0
    return OutgoingLimit(rate=p * float(binomial_lower(c, n, p)) * rest, at_bad=None, at_rate=p)
