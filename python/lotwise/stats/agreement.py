"""How far two readers agree: a judge and a person, or two people.

Kappa takes chance agreement away, and falls when bad rows are rare even for a good judge; so it never stands alone
here: the counts, sensitivity and specificity with exact limits are beside it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Rate, exact, z_two_sided
from lotwise.stats.estimate import Interval, bad_rate_interval
from lotwise.stats.judge import Labels

ENOUGH_ROWS = 50
"""Doubly labelled rows under which a judge's agreement is `not_enough_rows`."""
RARE = Fraction(1, 10)
"""Share of the rarer class under which kappa says little: `prevalence_low`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Kappa:
    """Cohen's kappa with its large-sample interval, not clipped; None where chance agreement is 1."""

    observed: float
    chance: float
    kappa: float | None
    se: float | None
    low: float | None
    high: float | None
    confidence: float
    n: int
    method: str = "cohen_kappa"


def cohen_kappa(table: Sequence[Sequence[int]], *, confidence: Rate = 0.95) -> Kappa:
    """Measure agreement beyond chance from a square table, rater A in rows and B in columns.

    Notes: interval by the non-null standard error of Fleiss, Cohen and Everitt 1969.
    """
    counts = np.asarray(table, np.int64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.min(initial=0) < 0 or counts.sum() == 0:
        raise StatisticsRefused.because("impossible_counts", "give a square table with one row at least")
    n = int(counts.sum())
    p = counts / n
    rows, columns = counts.sum(axis=1), counts.sum(axis=0)
    observed = Fraction(int(np.trace(counts)), n)
    chance = sum((Fraction(int(a) * int(b), n * n) for a, b in zip(rows, columns, strict=True)), Fraction(0))
    level = float(exact(confidence))
    if chance == 1:
        return Kappa(
            observed=float(observed), chance=1.0, kappa=None, se=None, low=None, high=None, confidence=level, n=n
        )
    kappa = float((observed - chance) / (1 - chance))
    a, b, pe = rows / n, columns / n, float(chance)
    diagonal = float((np.diag(p) * (1 - (a + b) * (1 - kappa)) ** 2).sum())
    cross = p * (b[:, None] + a[None, :]) ** 2
    off = (1 - kappa) ** 2 * float(cross.sum() - np.trace(cross))
    spread = diagonal + off - (kappa - pe * (1 - kappa)) ** 2
    se = math.sqrt(max(spread, 0.0) / n) / (1 - pe) if kappa != 1 else 0.0
    z = z_two_sided(confidence)
    return Kappa(
        observed=float(observed),
        chance=pe,
        kappa=kappa,
        se=se,
        low=kappa - z * se,
        high=kappa + z * se,
        confidence=level,
        n=n,
    )


def krippendorff_nominal(units: Sequence[Sequence[Hashable | None]]) -> float | None:
    """Measure agreement of any number of raters with gaps: 1 - observed over expected disagreement.

    Parameters
    ----------
    units
        One sequence a row, one value a rater, None where a rater did not answer. Rows with fewer than two values
        are dropped.

    Returns
    -------
    alpha, or None when all values are the same and disagreement cannot be expected.

    Notes: Krippendorff 2004, from coincidences, in fractions: neither rows nor raters have an order.
    """
    pairable = [[v for v in unit if v is not None] for unit in units]
    pairable = [unit for unit in pairable if len(unit) > 1]
    totals = Counter(v for unit in pairable for v in unit)
    n = sum(totals.values())
    expected = n * n - sum(c * c for c in totals.values())
    if expected == 0:
        return None
    observed = sum(
        (Fraction(len(unit) ** 2 - sum(c * c for c in Counter(unit).values()), len(unit) - 1) for unit in pairable),
        Fraction(0),
    )
    return float(1 - (n - 1) * observed / expected)


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeAgreement:
    """A judge beside a person: counts, sensitivity and specificity with exact limits, kappa, and warnings."""

    labels: Labels
    sensitivity: Interval
    specificity: Interval
    kappa: Kappa
    youden: float | None
    warnings: tuple[str, ...]
    """`not_enough_rows` under 50 rows; `prevalence_low` when the rarer class is under a tenth."""


def judge_agreement(labels: Labels, *, confidence: Rate = 0.95) -> JudgeAgreement:
    """Compare a judge with the truth on doubly labelled rows."""
    sensitivity = bad_rate_interval(labels.n11, labels.bad, confidence=confidence)
    specificity = bad_rate_interval(labels.n00, labels.n - labels.bad, confidence=confidence)
    warnings = []
    if labels.n < ENOUGH_ROWS:
        warnings.append("not_enough_rows")
    if min(labels.bad, labels.n - labels.bad) < RARE * labels.n:
        warnings.append("prevalence_low")
    youden = None
    if sensitivity.estimate is not None and specificity.estimate is not None:
        youden = sensitivity.estimate + specificity.estimate - 1
    table = [[labels.n11, labels.n10], [labels.n01, labels.n00]]
    return JudgeAgreement(
        labels=labels,
        sensitivity=sensitivity,
        specificity=specificity,
        kappa=cohen_kappa(table, confidence=confidence),
        youden=youden,
        warnings=tuple(warnings),
    )
