"""How far a cheap model may be trusted: thresholds tested strictest first, each by an exact tail.

Rows for calibration are drawn at random from the rows that a threshold would keep, and labelled by the reference, a
person or a big model; the promise is about agreeing with that reference. Testing stops at the first failure, so the
chance that any passed threshold breaks its promise stays under delta, however many are listed.
Source: Angelopoulos et al., "Learn then Test" (arXiv 2110.01052), fixed sequence testing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import (
    Rate,
    binomial_lower,
    binomial_tail_at_most,
    count_at,
    exact,
    proportion,
)
from lotwise.stats.hypergeometric import check_counts, lower, lower_exceeds


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """What the reference said of a random sample of the rows that a threshold keeps."""

    threshold: float
    n: int
    errors: int
    population: int | None = None
    """Rows kept in a closed lot; None promises about rows still to come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CascadeThreshold:
    """The last threshold that passed, or None, with the p-value of each."""

    threshold: float | None
    p_values: tuple[float, ...]
    target_error: float
    delta: float
    method: str = "exact_fixed_sequence"


def cascade_threshold(
    levels: Sequence[Calibration], *, target_error: Rate = 0.05, delta: Rate = 0.05
) -> CascadeThreshold:
    """Find the loosest threshold whose error rate is proven under the target.

    Parameters
    ----------
    levels
        Strictest first, listed before the calibration was looked at.
    target_error, delta
        Largest error rate among kept rows, and the chance allowed of being wrong about it.

    Raises
    ------
    StatisticsRefused
        `thresholds_out_of_order`, `impossible_counts`.

    Notes: p = P(Bin(n, target) <= errors), hypergeometric with a population. Without errors 59 rows suffice at 5 %.
    """
    target, chance = proportion(target_error, "target_error"), proportion(delta, "delta")
    thresholds = [level.threshold for level in levels]
    # Which end is strict depends on the score, so only an order that is none is refused.
    if thresholds not in (sorted(set(thresholds)), sorted(set(thresholds), reverse=True)):
        raise StatisticsRefused.because("thresholds_out_of_order", "list them strictest first, each once")
    p_values, passed, going = [], None, True
    for level in levels:
        check_counts(level.errors, level.n, level.n if level.population is None else level.population)
        if level.population is None:
            p_values.append(float(binomial_lower(level.errors, level.n, float(target))))
            good = level.n > 0 and binomial_tail_at_most(level.errors, level.n, target, chance)
        else:
            worst = count_at(level.population, target)[1]
            counts = (level.errors, level.n, level.population, worst)
            p_values.append(float(lower(*counts)))
            good = level.n > 0 and not bool(lower_exceeds(*counts, chance))
        going = going and good
        passed = level.threshold if going else passed
    return CascadeThreshold(
        threshold=passed, p_values=tuple(p_values), target_error=float(exact(target)), delta=float(chance)
    )
