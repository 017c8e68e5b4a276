"""Many questions at once: p-values adjusted so that a family of claims keeps its error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Floats


def _checked(p: Sequence[float] | Floats) -> Floats:
    values = np.asarray(p, np.float64)
    if np.any(~((values >= 0) & (values <= 1))):
        raise StatisticsRefused.because("rate_out_of_range", "p-values lie from 0 to 1")
    return values


def holm(p: Sequence[float] | Floats) -> Floats:
    """Adjust p-values so that any false claim among them is rarer than the level (Holm 1979).

    Returns
    -------
    float64 array in the order given. Needs no independence: use it for "all released lots are fine".
    """
    values = _checked(p)
    order = np.argsort(values, kind="stable")
    steps = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * steps), 1.0)
    return adjusted


def benjamini_hochberg(p: Sequence[float] | Floats) -> Floats:
    """Adjust p-values so that the share of false claims is under the level on average (1995).

    Returns
    -------
    float64 array in the order given. For screening, not for a promise about each claim.
    """
    values = _checked(p)
    order = np.argsort(values, kind="stable")[::-1]
    ranks = np.arange(len(values), 0, -1)
    adjusted = np.empty_like(values)
    adjusted[order] = np.minimum(np.minimum.accumulate(values[order] * len(values) / ranks), 1.0)
    return adjusted
