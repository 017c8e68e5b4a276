"""The price of deciding about very many lots in one call, against scipy's tails on the same arrays.

A plain inversion bisects over the lot: ceil(log2 N) tails on each side. That is the yardstick: scipy's
`hypergeom.cdf` and `sf` on the same 100,000 lots, each called that often. Both sides are timed in one run, in pairs,
and the median of the ratios counts, so that a busy machine slows both. All calls of the yardstick are the same work,
so TIMED_CALLS of them are timed and multiplied; set it to None to time every one.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable

import numpy as np
from scipy.stats import hypergeom

from lotwise import stats

LOTS, LARGEST, PAIRS = 100_000, 1_000_000, 3
TIMED_CALLS: int | None = 1


def seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def test_100_000_lots_cost_at_most_three_bisections_of_scipy() -> None:
    dice = np.random.default_rng(20_260_115)
    # scipy is ten times slower under 105,000 rows, where it factors: lots above that are the harder comparison.
    population = dice.integers(110_000, LARGEST, LOTS, endpoint=True)
    looked = np.minimum(dice.integers(59, 400, LOTS), population)
    truth = (population * dice.beta(1, 25, LOTS)).astype(np.int64)
    bad = dice.hypergeometric(truth, population - truth, looked)
    calls = math.ceil(math.log2(LARGEST))
    timed = TIMED_CALLS or calls

    def scipy_tails() -> None:
        for _ in range(timed):
            hypergeom.cdf(bad, population, truth, looked)
            hypergeom.sf(bad, population, truth, looked)

    def all_lots() -> None:
        stats.bad_rate_intervals(bad, looked, population=population)
        stats.decide_many(bad, looked, population=population)

    ratios = [seconds(all_lots) / (seconds(scipy_tails) * calls / timed) for _ in range(PAIRS)]

    print(f"median ratio {statistics.median(ratios):.2f} of {[round(r, 2) for r in ratios]}")
    assert statistics.median(ratios) <= 3.0
