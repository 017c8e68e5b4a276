"""The proof of an interval: how often it holds the truth, for every truth there can be.

A closed lot has finitely many true numbers of bad rows, and each gives finitely many samples, so coverage is a sum
and not a simulation. The same sums show why the shortcuts are not the default, and what peeking does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Floats, Ints, Rate, complement, exact, z_two_sided
from lotwise.stats.estimate import METHODS
from lotwise.stats.hypergeometric import least_bad, most_bad, pmf
from lotwise.stats.peeking import peeking_limits

_SLACK = 1e-12
"""Rounding allowed when a true rate meets a bound, or a coverage its nominal level."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """Coverage over every true number of bad rows in the lot."""

    least: float
    mean: float
    bad_at_least: int
    """The first number of bad rows at which coverage is least."""
    confidence: float

    @property
    def at_least_nominal(self) -> bool:
        """Does every truth get the coverage promised?"""
        return self.least >= self.confidence - _SLACK


def _summary(coverage: Floats, confidence: Rate) -> Coverage:
    least = float(coverage.min())
    return Coverage(
        least=least,
        mean=float(coverage.mean()),
        bad_at_least=int(np.flatnonzero(coverage <= least + _SLACK)[0]),
        confidence=float(exact(confidence)),
    )


def finite_coverage(method: str, *, population: int, looked: int, confidence: Rate = 0.95) -> Coverage:
    """Compute the coverage of an interval method at one fixed sample size, by enumeration.

    Parameters
    ----------
    method
        A name of METHODS, or `wald_fpc`, which exists here only to be shown failing.
    """
    x = np.arange(looked + 1)
    truth = np.arange(population + 1)
    if method == "exact_finite":
        low, high = _fixed_limits(x, looked, population, confidence)
        held = (truth[:, None] >= low) & (truth[:, None] <= high)
    else:
        limits = np.array([_limits(method, int(k), looked, population, confidence) for k in x])
        rate = truth[:, None] / population
        held = (rate >= limits[:, 0] - _SLACK) & (rate <= limits[:, 1] + _SLACK)
    chance = pmf(x[None, :], looked, population, truth[:, None])
    return _summary(np.asarray((chance * held).sum(axis=1)), confidence)


def _fixed_limits(x: Ints, looked: int, population: int, confidence: Rate) -> tuple[Ints, Ints]:
    half = complement(confidence) / 2
    return least_bad(x, looked, population, half), most_bad(x, looked, population, half)


def _limits(method: str, bad: int, looked: int, population: int, confidence: Rate) -> tuple[float, float]:
    if looked == 0:
        return 0.0, 1.0
    if method == "wald_fpc" and looked == population:
        return bad / looked, bad / looked
    if method == "wald_fpc":
        p = bad / looked
        se = math.sqrt(p * (1 - p) / looked * (population - looked) / (population - 1))
        return p - z_two_sided(confidence) * se, p + z_two_sided(confidence) * se
    if method not in METHODS:
        raise StatisticsRefused.from_name("method", method, [*METHODS, "wald_fpc"])
    return METHODS[method](bad, looked, population, confidence)


def peeking_coverage(method: str, *, population: int, looks: Sequence[int], confidence: Rate = 0.95) -> Coverage:
    """Compute the chance, over random orders of drawing, that the truth is inside at every look.

    Parameters
    ----------
    method
        `peeking_safe`, or `exact_finite` to see what looking does to an interval made for one look.
    looks
        Sample sizes at which one looks.

    Notes: exact recursion over the bad rows drawn so far, for all truths at once.
    """
    if method not in ("peeking_safe", "exact_finite"):
        raise StatisticsRefused.from_name("method", method, ["peeking_safe", "exact_finite"])
    truth = np.arange(population + 1)[:, None]
    alive = np.zeros((population + 1, population + 2), np.float64)
    alive[:, 0] = 1.0
    x = np.arange(population + 2)
    ends = set(looks)
    for drawn in range(max(ends, default=0)):
        bad_next = np.clip((truth - x) / (population - drawn), 0.0, 1.0)
        alive[:, 1:], alive[:, 0] = (
            alive[:, 1:] * (1 - bad_next[:, 1:]) + alive[:, :-1] * bad_next[:, :-1],
            alive[:, 0] * (1 - bad_next[:, 0]),
        )
        n = drawn + 1
        if n in ends:
            k = np.arange(n + 1)
            if method == "exact_finite":
                low, high = _fixed_limits(k, n, population, confidence)
            else:
                low, high = peeking_limits(k, n, population, complement(confidence))
            alive[:, : n + 1] *= (truth >= low) & (truth <= high)
    return _summary(np.asarray(alive.sum(axis=1)), confidence)
