"""Default plans for very many lots at once: the numbers of `inspection_plan`, searched for all lots in the same steps.

A plan alone takes about ten milliseconds, nearly all of it the cost of a call and not of the arithmetic. Ten thousand
lots of different sizes share the calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Floats, Ints, Rate, complement, count_at, proportion
from lotwise.stats.hypergeometric import check_counts, lower, lower_exceeds
from lotwise.stats.sizes import quoted_z, sample_size


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectionPlans:
    """Plans, one a lot, as arrays in the lots' order: what `InspectionPlan` has under the same names."""

    n: Ints
    c: Ints
    accept_at_acceptable: Floats
    accept_at_limit: Floats


def inspection_plans(
    populations: Sequence[int],
    *,
    margin: Rate = 0.05,
    acceptable: Rate = 0.01,
    limit: Rate = 0.05,
    confidence: Rate = 0.95,
) -> InspectionPlans:
    """Make the default plan of many lots.

    Parameters
    ----------
    populations
        Distinct valid answers in each closed lot. Equal sizes are planned once.
    margin, acceptable, limit, confidence
        As in `inspection_plan`.

    Raises
    ------
    StatisticsRefused
        `limits_cross`; `empty_lot` where one is; `impossible_counts`.

    Notes
    -----
    Bisections over exact tails, about 50 calls over all lots whatever their number.
    """
    low, high, alpha = proportion(acceptable, "acceptable"), proportion(limit, "limit"), complement(confidence)
    if low >= high:
        raise StatisticsRefused.because(
            "limits_cross", "the acceptable rate lies below the limit", acceptable=acceptable, limit=limit
        )
    total, back = np.unique(np.asarray(populations, dtype=np.int64), return_inverse=True)
    check_counts(0, 0, total)
    if total.size and total[0] == 0:
        raise StatisticsRefused.because("empty_lot", "a lot without valid answers has nothing to look at")
    d_low = np.array([count_at(size, low)[0] for size in total.tolist()], dtype=np.int64)
    d_high = np.array([count_at(size, high)[1] for size in total.tolist()], dtype=np.int64)
    z = quoted_z(confidence)
    wide = np.array([sample_size(size, margin=margin, z=z).n for size in total.tolist()], dtype=np.int64)
    n = np.minimum(np.maximum(wide, _least_samples(total, d_high, alpha)), total)
    c = _acceptance_numbers(total, n, d_high, alpha)
    plans = InspectionPlans(
        n=n, c=c, accept_at_acceptable=lower(c, n, total, d_low), accept_at_limit=lower(c, n, total, d_high)
    )
    return InspectionPlans(**{name: getattr(plans, name)[back] for name in InspectionPlans.__dataclass_fields__})


def _least_samples(total: Ints, bad: Ints, level: Fraction) -> Ints:
    """Find the least n with which a spotless sample of each lot speaks against `bad` bad rows in it."""
    low, high = np.zeros_like(total), total.copy()
    while np.any(high - low > 1):
        middle = (low + high) // 2
        above = lower_exceeds(0, middle, total, bad, level)
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return high


def _acceptance_numbers(total: Ints, n: Ints, bad: Ints, level: Fraction) -> Ints:
    """Find the largest c with P(X <= c) <= level for each lot; there is one, as a spotless sample releases."""
    low, high = np.zeros_like(n), n + 1
    while np.any(high - low > 1):
        middle = (low + high) // 2
        above = lower_exceeds(middle, n, total, bad, level)
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return low
