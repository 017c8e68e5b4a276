"""Plans that may stop early: a second sample only where the first leaves doubt, and row by row.

Both are exact here, by recursion over the counts, including the mean number of rows read. They need reading in a
fixed random order, and no plain interval may be quoted after an early stop: use the peeking-safe set instead.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Floats, Rate, binomial_lower, binomial_pmf, proportion
from lotwise.stats.hypergeometric import check_counts, lower, pmf


@dataclass(frozen=True, kw_only=True, slots=True)
class DoublePlan:
    """Accept at `c1` bad or fewer among `n1`, refuse at `r1` or more, else look at `n2` more and accept at `c2`."""

    n1: int
    c1: int
    r1: int
    n2: int
    c2: int

    def __post_init__(self) -> None:
        if not 0 <= self.c1 < self.r1 or min(self.n1, self.n2) < 1:
            raise StatisticsRefused.because(
                "impossible_plan", "need 0 <= c1 < r1 and two samples", c1=self.c1, r1=self.r1
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class DoubleOutcome:
    """Exact chances of a double plan at one quality, and the mean number of rows read."""

    p_accept: float
    p_accept_first: float
    p_reject_first: float
    asn: float


def double_outcome(
    plan: DoublePlan, *, rate: Rate | None = None, population: int | None = None, bad_in_lot: int | None = None
) -> DoubleOutcome:
    """Compute what a double plan does: binomial at a `rate`, or in a lot with `bad_in_lot` bad rows.

    Notes: no curtailment; a second sample that has begun is read to its end.
    """
    x = np.arange(plan.n1 + 1)
    doubt = x[(x > plan.c1) & (x < plan.r1)]
    if population is None or bad_in_lot is None:
        if rate is None:
            raise StatisticsRefused.because("lot_unknown", "give rate=, or population= and bad_in_lot=")
        p = float(proportion(rate, "rate"))
        first = binomial_pmf(x, plan.n1, p)
        second = np.asarray(binomial_lower(plan.c2 - doubt, plan.n2, p), np.float64)
    else:
        check_counts(0, plan.n1 + plan.n2, population)
        check_counts(bad_in_lot, population, population)
        first = pmf(x, plan.n1, population, bad_in_lot)
        left = np.clip(bad_in_lot - doubt, 0, population - plan.n1)
        second = lower(plan.c2 - doubt, plan.n2, population - plan.n1, left)
    accept, reject = float(first[x <= plan.c1].sum()), float(first[x >= plan.r1].sum())
    return DoubleOutcome(
        p_accept=accept + float((first[doubt] * second).sum()),
        p_accept_first=accept,
        p_reject_first=reject,
        asn=plan.n1 + plan.n2 * float(first[doubt].sum()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SequentialPlan:
    """Wald's sequential test between an acceptable rate and a limit, as two parallel lines.

    Accept at the first n with `bad <= slope * n - h_accept`; refuse when `bad >= slope * n + h_reject`.
    """

    slope: float
    h_accept: float
    h_reject: float
    acceptable: float
    limit: float
    alpha: float
    beta: float

    @property
    def n_min_accept(self) -> int:
        """Rows after which a spotless sample is accepted."""
        return math.ceil(self.h_accept / self.slope)

    @property
    def asn_acceptable(self) -> float:
        """Wald's approximate mean rows at the acceptable rate; infinite where the test never ends there."""
        drift = self.slope - self.acceptable
        return ((1 - self.alpha) * self.h_accept - self.alpha * self.h_reject) / drift

    @property
    def asn_limit(self) -> float:
        """Wald's approximate mean rows at the limit."""
        return ((1 - self.beta) * self.h_reject - self.beta * self.h_accept) / (self.limit - self.slope)

    @property
    def asn_slope(self) -> float:
        """Wald's approximate mean rows at the rate between the two, where reading takes longest."""
        return self.h_accept * self.h_reject / (self.slope * (1 - self.slope))


def sequential_plan(
    *, acceptable: Rate = 0.01, limit: Rate = 0.05, alpha: Rate = 0.05, beta: Rate = 0.10
) -> SequentialPlan:
    """Make Wald's plan (Sequential Analysis, 1947).

    Raises
    ------
    StatisticsRefused
        `unattainable` when the acceptable rate does not lie below the limit.
    """
    p0, p1 = (float(proportion(p, "rate", inside=True)) for p in (acceptable, limit))
    a, b = (float(proportion(p, "risk", inside=True)) for p in (alpha, beta))
    if p0 >= p1:
        raise StatisticsRefused.because(
            "unattainable", "the acceptable rate lies below the limit", acceptable=p0, limit=p1
        )
    k = math.log(p1 * (1 - p0) / (p0 * (1 - p1)))
    return SequentialPlan(
        slope=math.log((1 - p0) / (1 - p1)) / k,
        h_accept=math.log((1 - a) / b) / k,
        h_reject=math.log((1 - b) / a) / k,
        acceptable=p0,
        limit=p1,
        alpha=a,
        beta=b,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class SequentialDecision:
    """Where a sequential reading stands, and the row that decided it."""

    decision: Literal["accept", "reject", "continue"]
    n: int | None


def sequential_decision(plan: SequentialPlan, bad: Sequence[bool | int]) -> SequentialDecision:
    """Decide from verdicts in the order of drawing; nothing after the deciding row counts."""
    seen = 0
    for n, verdict in enumerate(bad, start=1):
        seen += bool(verdict)
        if seen <= plan.slope * n - plan.h_accept:
            return SequentialDecision(decision="accept", n=n)
        if seen >= plan.slope * n + plan.h_reject:
            return SequentialDecision(decision="reject", n=n)
    return SequentialDecision(decision="continue", n=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequentialOutcome:
    """Exact chances of a sequential plan that stops after `n_max` rows at the latest, undecided then."""

    p_accept: float
    p_reject: float
    p_undecided: float
    asn: float


def sequential_outcome(plan: SequentialPlan, *, rate: Rate, n_max: int) -> SequentialOutcome:
    """Compute what a truncated sequential plan does at a true rate, looking after every row.

    Notes
    -----
    Exact recursion over the number of bad rows still undecided; n_max times the band's width in operations.
    Undecided at `n_max` means `continue`, not release.
    """
    p = float(proportion(rate, "rate"))
    live: Floats = np.array([1.0])
    counts = np.arange(1, dtype=np.int64)
    accept = reject = asn = 0.0
    for n in range(1, n_max + 1):
        asn += float(live.sum())
        step = np.zeros(len(live) + 1, np.float64)
        step[:-1] += live * (1 - p)
        step[1:] += live * p
        counts = np.append(counts, counts[-1] + 1) if counts.size else counts
        out_low, out_high = counts <= plan.slope * n - plan.h_accept, counts >= plan.slope * n + plan.h_reject
        accept, reject = accept + float(step[out_low].sum()), reject + float(step[out_high].sum())
        stays = ~(out_low | out_high)
        live, counts = step[stays], counts[stays]
        if not live.size:
            break
    return SequentialOutcome(p_accept=accept, p_reject=reject, p_undecided=float(live.sum()), asn=asn)
