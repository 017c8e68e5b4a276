"""The canary: a small first part of a job, by which the rest is let through or held back. Pure.

Golden rows are judged by whether they agree with what is known, frame rows by whether their answers are valid. Either
passes when the observed rate is on the right side of its limit and the exact one-sided 95 % bound is at most 0.1 past
it, so that neither luck nor a handful of rows opens a gate. After it, three watches look at every shard: has the rate
of invalid answers risen, has the model's revision changed, do golden rows agree less than they did.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from lotwise.golden import GoldenSet
from lotwise.stats import cusum_binomial
from lotwise.stats.distributions import beta_quantile
from lotwise.stats.hypergeometric import upper

MARGIN = 0.1
"""How far past its limit the bound of a rate may lie."""

CONFIDENCE = 0.95
"""One-sided, of the bounds that decide."""

FROM_REQUESTS = 2_000
"""Distinct requests of a job below which no frame rows are held to be a canary."""

FRAME_SHARE, MOST_FRAME_ROWS = 0.05, 500
"""Frame rows of a canary: this share of the job's requests, and at most so many."""

DRIFT_BOUND = math.log(100 / 0.05)
"""Bound of the drift sum: by Ville's inequality at most 5 % of series of 100 shards pass it while nothing changes."""

Mode = Literal["on", "off", "override"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Canary:
    """What must pass before the rest of a job is sent, and by what.

    Attributes
    ----------
    spec
        Digest of the spec of the frame rows.
    subject
        64 hex over all else that is judged: the golden set, the prompt, the validator and the limit. With `spec` and
        `threshold` it names the gate.
    golden
        The golden set, or None.
    bad_limit
        The rate of invalid answers of frame rows that may be, or None for no limit.
    n_frame
        Frame rows of the canary: the first so many requests in the order of their keys, which is random.
    mode
        "on"; "override" goes on past a failed gate; "off" has no gate.
    """

    spec: str
    subject: str
    golden: GoldenSet | None
    bad_limit: float | None
    n_frame: int
    mode: Mode

    @property
    def threshold(self) -> float:
        """The share of golden rows that must agree; 0 without golden rows."""
        return 0.0 if self.golden is None else self.golden.threshold


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a canary came to.

    Attributes
    ----------
    passed
        Whether the rest may be sent.
    reason
        What was seen, in counts.
    n, agreed, lower
        Golden rows, those that agree, and the exact one-sided lower bound of their share; None without golden rows.
    n_frame, n_invalid, upper
        Frame rows that were answered, those with an invalid answer, and the exact upper bound of their share.
    """

    passed: bool
    reason: str
    n: int
    agreed: int
    lower: float | None
    n_frame: int
    n_invalid: int
    upper: float | None


def subject(*, golden: GoldenSet | None, prompt: str, validator: str, bad_limit: float | None) -> str:
    """Name what a gate judges besides the spec, 64 hex."""
    parts = [None if golden is None else golden.digest(), prompt, validator, bad_limit]
    return sha256(json.dumps(parts, ensure_ascii=False).encode()).hexdigest()


def frame_rows(n_requests: int) -> int:
    """Return how many frame rows a canary of so many distinct requests has."""
    return 0 if n_requests < FROM_REQUESTS else min(MOST_FRAME_ROWS, int(n_requests * FRAME_SHARE))


def lower_bound(good: int, n: int) -> float:
    """Compute the exact one-sided lower bound of a rate (Clopper and Pearson 1934); 0 before the first look."""
    return 0.0 if good == 0 else beta_quantile(1 - CONFIDENCE, good, n - good + 1)


def upper_bound(bad: int, n: int) -> float:
    """Compute the exact one-sided upper bound of a rate; 1 before the first look."""
    return 1.0 - lower_bound(n - bad, n)


def fewest_golden(threshold: float) -> int:
    """Return how many golden rows a canary needs at least: with fewer it fails even if all of them agree."""
    n = 1
    while lower_bound(n, n) < threshold - MARGIN - 1e-12:
        n += 1
    return n


def judge(
    *,
    threshold: float,
    n_golden: int,
    agreed: int,
    bad_limit: float | None,
    n_frame: int,
    n_invalid: int,
) -> Verdict:
    """Decide whether the rest of a job may be sent.

    Parameters
    ----------
    n_golden, agreed
        Golden rows of the set, all of them, and those whose first answer is valid and agrees.
    n_frame, n_invalid
        Frame rows of the canary that were answered, and those whose first answer is invalid.

    Notes
    -----
    The bounds are binomial, not those of a finite lot: what is judged is what the prompt will do.
    """
    faults, seen = [], []
    lower = lower_bound(agreed, n_golden) if n_golden else None
    if lower is not None:
        seen.append(f"{agreed} of {n_golden} golden rows agree, at least {lower:.1%}")
        if agreed < threshold * n_golden - 1e-9:
            faults.append(f"{threshold:.0%} must agree")
        elif lower < threshold - MARGIN - 1e-12:
            faults.append(f"{threshold - MARGIN:.0%} must be proven")
    high = upper_bound(n_invalid, n_frame) if n_frame and bad_limit is not None else None
    if high is not None and bad_limit is not None:
        seen.append(f"{n_invalid} of {n_frame} first answers are invalid, at most {high:.1%}")
        if n_invalid > bad_limit * n_frame + 1e-9:
            faults.append(f"at most {bad_limit:.0%} may be")
        elif high > bad_limit + MARGIN + 1e-12:
            faults.append(f"at most {bad_limit + MARGIN:.0%} must be proven")
    return Verdict(
        passed=not faults,
        reason="; ".join([*seen, *faults]) or "nothing was answered that could be judged",
        n=n_golden,
        agreed=agreed,
        lower=lower,
        n_frame=n_frame,
        n_invalid=n_invalid,
        upper=high,
    )


# --- after the gate -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Quality:
    """What one collected shard brought, in the order of sending.

    Attributes
    ----------
    shard
        Its id.
    n_answered, n_bad
        First answers of frame rows, and the bad ones among them; None where nobody could judge them.
    revisions
        The model revisions that answered, sorted.
    """

    shard: str
    n_answered: int | None
    n_bad: int | None
    revisions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Rise:
    """A shard whose answers are invalid significantly more often than those of the shards before."""

    shard: str
    n_answered: int
    n_bad: int
    before: float
    p_value: float


@dataclass(frozen=True, kw_only=True)
class RevisionChange:
    """The first shard that a model revision answered which had answered none before."""

    shard: str
    before: tuple[str, ...]
    after: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Drift:
    """Golden rows agree less than they did: the shard at which it began, and the one at which it was certain."""

    began: str
    certain: str


def risen(shards: Sequence[Quality], *, level: float = 0.05) -> list[Rise]:
    """Find the shards whose rate of invalid answers rose against all shards before them.

    Parameters
    ----------
    shards
        In the order of sending.
    level
        The chance of one false alarm in the whole run, however long it is.

    Notes
    -----
    Fisher's exact test, one-sided, of each shard k = 2, 3, ... at level / (k (k - 1)), which sums to `level`. Only
    first attempts count: a retried answer was invalid once already.
    """
    found, bad, n, k = [], 0, 0, 0
    for one in shards:
        if not one.n_answered or one.n_bad is None:
            continue
        k += 1
        if k > 1 and one.n_bad:
            p = float(upper(one.n_bad, one.n_answered, n + one.n_answered, bad + one.n_bad))
            if p <= level / (k * (k - 1)):
                found.append(
                    Rise(shard=one.shard, n_answered=one.n_answered, n_bad=one.n_bad, before=bad / n, p_value=p)
                )
        bad, n = bad + one.n_bad, n + one.n_answered
    return found


def revision_changes(shards: Sequence[Quality]) -> list[RevisionChange]:
    """Find where a model revision first answered in mid-run. A first shard that two revisions answered counts too."""
    found: list[RevisionChange] = []
    seen: set[str] = set()
    for one in shards:
        new = set(one.revisions) - seen
        if new and (seen or len(new) > 1):
            found.append(RevisionChange(shard=one.shard, before=tuple(sorted(seen)), after=tuple(sorted(new))))
        seen |= new
    return found


def usual_rate(agreed_at_least: float) -> tuple[float, float]:
    """Return the rate of disagreement that is usual, and the worse one that drift is measured against.

    `agreed_at_least` is what the gate proved of the agreement, so the usual rate is not taken too low by luck.
    """
    usual = min(max(1.0 - agreed_at_least, 0.001), 0.8)
    return usual, usual + MARGIN


def drift_sums(series: Sequence[tuple[str, int, int]], *, agreed_at_least: float) -> tuple[float, ...]:
    """Sum the evidence, shard by shard, that golden rows (shard, n, agreed) agree less than the gate proved."""
    usual, worse = usual_rate(agreed_at_least)
    return cusum_binomial(
        [n - agreed for _, n, agreed in series], [n for _, n, _ in series], usual=usual, worse=worse, h=DRIFT_BOUND
    ).s


def drifted(series: Sequence[tuple[str, int, int]], *, agreed_at_least: float) -> Drift | None:
    """Say whether, and from which shard on, golden rows agree less than the gate proved.

    Parameters
    ----------
    series
        (shard, golden rows answered, those that agree), in the order of sending.

    Notes
    -----
    Binomial CUSUM (Page 1954). The sum since its last zero is the log likelihood ratio of a change at that shard, so
    the shard after the last zero is the likeliest beginning.
    """
    sums = drift_sums(series, agreed_at_least=agreed_at_least)
    for at, value in enumerate(sums):
        if value > DRIFT_BOUND:
            began = max((i + 1 for i in range(at) if sums[i] == 0.0), default=0)
            return Drift(began=series[began][0], certain=series[at][0])
    return None
