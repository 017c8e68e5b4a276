"""One word for a lot: release, re_review or continue.

Two exact one-sided tests, fixed before the first look. Release when so few bad rows would be unlikely in a lot as
bad as the limit; else re-review when so many would be unlikely in a lot as good as the acceptable rate; else the
evidence does not decide. Release is the same statement as "the one-sided upper bound lies below the limit".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Bools, Counts, Floats, Ints, Rate, complement, count_at, exact, proportion
from lotwise.stats.hypergeometric import check_counts, lower_test, most_bad, upper_test

Word: TypeAlias = Literal["release", "re_review", "continue"]

DECISIONS: tuple[Word, Word, Word] = ("release", "re_review", "continue")
REASONS = (
    "upper_bound_below_limit",
    "rate_above_acceptable",
    "not_decided",
    "no_inspection",
    "no_human_labels",
    "empty_lot",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What may be done with a lot, why, and the numbers that it rests on."""

    decision: Word
    reason: str
    """`upper_bound_below_limit`, `rate_above_acceptable`, `not_decided`, `no_inspection`, `no_human_labels` or
    `empty_lot`."""
    upper_one_sided: float
    """Rate that the lot stays at or under, at `confidence` on its own: the bound that decides."""
    p_release: float
    """P(so few bad | lot at the limit); release when at most 1 - confidence. Feed these to `holm` across lots."""
    p_re_review: float
    """P(so many bad | lot at the acceptable rate)."""
    n: int
    bad: int
    unsure: int
    population: int
    acceptable: float
    limit: float
    confidence: float
    method: str = "exact_finite"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decisions:
    """The same for many lots: one array element a lot."""

    decision: NDArray[np.str_]
    reason: NDArray[np.str_]
    upper_one_sided: Floats
    p_release: Floats
    p_re_review: Floats
    n: Ints
    bad: Ints
    unsure: Ints
    population: Ints
    acceptable: float
    limit: float
    confidence: float
    method: str = "exact_finite"


def decide(
    bad: int,
    looked: int,
    *,
    population: int,
    acceptable: Rate = 0.01,
    limit: Rate = 0.05,
    confidence: Rate = 0.95,
    unsure: int = 0,
    judged: int = 0,
) -> Decision:
    """Decide about one closed lot from what people looked at.

    Parameters
    ----------
    bad, looked
        Rows that people called bad, among the rows that they looked at, drawn at random by a plan fixed beforehand.
    population
        Rows in the lot: distinct valid answers. Invalid rows are known and counted apart.
    acceptable, limit
        A lot at or under the first should pass; a lot at or over the second should not.
    confidence
        One-sided, of each of the two tests.
    unsure
        Looked rows without a verdict: they count as bad for release and as good for re-review.
    judged
        Rows that a model judged. They name the reason when no person looked, and never replace a look.

    Raises
    ------
    StatisticsRefused
        `impossible_counts`, `rate_out_of_range`, `limits_cross` when acceptable is not below the limit.
    """
    many = decide_many(
        [bad],
        [looked],
        population=[population],
        acceptable=acceptable,
        limit=limit,
        confidence=confidence,
        unsure=unsure,
        judged=judged,
    )
    word = next(d for d in DECISIONS if d == many.decision[0])
    return Decision(
        decision=word,
        reason=str(many.reason[0]),
        upper_one_sided=float(many.upper_one_sided[0]),
        p_release=float(many.p_release[0]),
        p_re_review=float(many.p_re_review[0]),
        n=looked,
        bad=bad,
        unsure=unsure,
        population=population,
        acceptable=many.acceptable,
        limit=many.limit,
        confidence=many.confidence,
    )


def decide_many(
    bad: Counts,
    looked: Counts,
    *,
    population: Counts,
    acceptable: Rate = 0.01,
    limit: Rate = 0.05,
    confidence: Rate = 0.95,
    unsure: Counts = 0,
    judged: Counts = 0,
) -> Decisions:
    """Decide about many lots in one call; each decision carries its own error and depends on no other lot.

    Returns
    -------
    Decisions of the broadcast shape. "All released lots are fine" is a claim about all of them at once: take
    `holm(p_release)` for it and show both counts.

    Notes
    -----
    A tail equal to its level counts as significant, settled in integers. A census decides by arithmetic.
    """
    low, high = proportion(acceptable, "acceptable"), proportion(limit, "limit")
    if low >= high:
        raise StatisticsRefused.because(
            "limits_cross", "the acceptable rate lies below the limit", acceptable=acceptable, limit=limit
        )
    alpha = complement(confidence)
    x, n, total, open_, seen = (
        np.asarray(a, np.int64) for a in np.broadcast_arrays(bad, looked, population, unsure, judged)
    )
    check_counts(x, n, total)
    check_counts(open_, n, total)
    check_counts(x + open_, n, total)
    sizes, back = np.unique(total, return_inverse=True)
    edges = np.array([(count_at(int(size), low)[0], count_at(int(size), high)[1]) for size in sizes], np.int64)
    at_acceptable, at_limit = (edges.reshape(-1, 2)[np.ravel(back), i].reshape(total.shape) for i in (0, 1))
    p_release, likely_at_limit = lower_test(x + open_, n, total, at_limit, alpha)
    p_re_review, likely_at_acceptable = upper_test(x, n, total, at_acceptable, alpha)
    release: Bools = ~likely_at_limit & (n > 0)
    re_review: Bools = ~likely_at_acceptable & (n > 0)
    # Release is looked at first: a lot can meet both tests. Numbers are places in REASONS, and the first three are also
    # the places of their words in DECISIONS.
    nothing = np.where(total == 0, 5, np.where(seen > 0, 4, 3))
    code = np.where(release, 0, np.where(re_review, 1, np.where(n > 0, 2, nothing)))
    bound = most_bad(x + open_, n, total, alpha)
    return Decisions(
        decision=np.asarray(DECISIONS)[np.minimum(code, 2)],
        reason=np.asarray(REASONS)[code],
        upper_one_sided=np.where(total > 0, bound / np.maximum(total, 1), 1.0),
        p_release=p_release,
        p_re_review=p_re_review,
        n=n,
        bad=x,
        unsure=open_,
        population=total,
        acceptable=float(low),
        limit=float(high),
        confidence=float(exact(confidence)),
    )
