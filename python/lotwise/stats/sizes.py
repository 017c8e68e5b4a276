"""How many rows to look at, before any row is looked at.

Three questions with three answers: enough rows for an interval of a wanted width (the formula with the correction
for a finite lot), enough to find at least one bad row if the lot holds a given number, and how to spread the rows
over groups. All arithmetic is on exact decimals, so that a size which is a whole number is never pushed up by one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Rate, complement, exact, proportion, z_two_sided
from lotwise.stats.hypergeometric import check_counts, lower_exceeds


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleSize:
    """A number of rows to look at and what it was computed from."""

    n: int
    n_infinite: float
    """The size before the finite-lot correction, not rounded."""
    population: int | None
    margin: float
    expected_rate: float
    z: float
    method: str = "cochran_fpc"


def sample_size(
    population: int | None,
    *,
    margin: Rate = 0.05,
    expected_rate: Rate = 0.5,
    confidence: Rate | None = None,
    z: Rate | None = None,
) -> SampleSize:
    """Compute the rows needed for an interval of plus or minus `margin`.

    Parameters
    ----------
    population
        Rows in the closed lot. None means no lot at all: a process or a prompt's future rows.
    margin
        Half-width wanted, as a rate (0.05 is five points). Poor for rare faults: see the interval it really buys.
    expected_rate
        The rate planned for; 0.5 asks for the most rows and needs no guess.
    confidence, z
        Two-sided confidence, at its full normal quantile; or the quantile itself. With neither, 1.96: the number that
        everybody quotes for 95 %, and at a million rows one row more than 1.959964 asks for.

    Raises
    ------
    StatisticsRefused
        `degenerate_p` for an expected rate of 0 or 1, where the formula would answer "no row".

    Notes
    -----
    Cochran, Sampling Techniques (1977), section 4.4: n0 = z^2 p(1-p)/e^2, n = n0 / (1 + (n0-1)/N), rounded up.
    """
    p, e = proportion(expected_rate, "expected_rate"), proportion(margin, "margin")
    if p in (0, 1):
        hint = "plan with a rate between 0 and 1; to find a first bad row use discovery_size"
        raise StatisticsRefused.because("degenerate_p", hint, expected_rate=expected_rate)
    if e == 0:
        raise StatisticsRefused.because("rate_out_of_range", "a margin of 0 is a census", margin=margin)
    if population is not None:
        check_counts(0, 0, population)
    if z is None:
        z = "1.96" if confidence is None else z_two_sided(confidence)
    quantile = exact(z)
    n0 = quantile**2 * p * (1 - p) / e**2
    corrected = n0 if population is None else n0 * population / (population + n0 - 1 or 1)
    return SampleSize(
        n=math.ceil(corrected),
        n_infinite=float(n0),
        population=population,
        margin=float(e),
        expected_rate=float(p),
        z=float(quantile),
    )


def quoted_z(confidence: Rate) -> Fraction:
    """The quantile as tables print it, rounded up to three decimals: 1.96 at 95 %, 2.576 at 99 %."""
    return Fraction(math.ceil(z_two_sided(confidence) * 1000), 1000)


def discovery_size(population: int, bad_in_lot: int, *, confidence: Rate = 0.95) -> int:
    """Compute the rows needed to see at least one of `bad_in_lot` bad rows with this chance.

    Raises
    ------
    StatisticsRefused
        `unattainable` when there is nothing to find.
    """
    check_counts(0, bad_in_lot, population)
    return smallest_sample(population, bad_in_lot, 0, complement(confidence))


def smallest_sample(population: int, bad_in_lot: int, accept: int, level: Fraction) -> int:
    """Compute the least n with P(X <= accept | bad_in_lot) <= level; the chance falls as n grows.

    Raises
    ------
    StatisticsRefused
        `unattainable` when even a census finds no more than `accept` bad rows.
    """
    if bad_in_lot <= accept or bad_in_lot == 0:
        raise StatisticsRefused.because(
            "unattainable",
            "even a census would not tell; raise the limit or lower the acceptance number",
            population=population,
            D_ltpd=bad_in_lot,
            accept=accept,
        )
    low, high = accept, population
    while high - low > 1:
        middle = (low + high) // 2
        if lower_exceeds(accept, middle, population, bad_in_lot, level):
            low = middle
        else:
            high = middle
    return high


def allocate(populations: Sequence[int], n: int, *, at_least: int = 30) -> tuple[int, ...]:
    """Spread `n` looked rows over groups in proportion to their sizes, with a floor for each group.

    Parameters
    ----------
    populations
        Rows in each group.
    n
        Rows to look at in all; the floors may make it more.
    at_least
        Rows for a group that is reported by itself, or all of a smaller group.

    Returns
    -------
    One size a group, none above its population. Depends on sizes only; remainders go to the largest fractions,
    ties to the larger group and then to the earlier one.
    """
    total = sum(populations)
    check_counts(0, n, total)
    shares = [Fraction(n * size, total) if total else Fraction(0) for size in populations]
    sizes = [math.floor(share) for share in shares]
    order = sorted(range(len(sizes)), key=lambda h: (sizes[h] - shares[h], -populations[h], h))
    for h in order[: n - sum(sizes)]:
        sizes[h] += 1
    return tuple(min(size, max(k, at_least)) for size, k in zip(populations, sizes, strict=True))
