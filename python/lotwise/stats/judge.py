"""What a judge model may add to what people saw, and when it may add nothing.

A judge errs in one direction, so more judged rows make its wrong number more precise: its raw rate has no interval
worth the name. Labels by people correct it. The corrections here rest on large samples, so they come as a second
interval beside the exact one, only with enough bad rows among the labels, and never decide about a lot.

Positive means: the judge calls the row bad. Recipe that needs no trust in the judge: re-do or read every flagged
row, then take the exact interval on a sample of the unflagged ones.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Rate, exact, proportion, z_two_sided
from lotwise.stats.estimate import Interval, LotInterval, bad_rate_interval, wilson_limits
from lotwise.stats.hypergeometric import check_counts

ASSISTED_ROWS, ASSISTED_BAD = 300, 20
"""Labels, and bad rows among them, under which the assisted intervals cover too little (.85 to .93 at .95)."""
CALIBRATION_ROWS, YOUDEN = 30, 0.5
"""Rows of each true class, and sensitivity + specificity - 1, that a judge without people in the lot needs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Labels:
    """Rows that a person and the judge both saw: truth first, judge second (n10: bad, and the judge missed it)."""

    n11: int
    n10: int
    n01: int
    n00: int

    def __post_init__(self) -> None:
        if min(self.n11, self.n10, self.n01, self.n00) < 0:
            raise StatisticsRefused.because("impossible_counts", "counts are not negative", n11=self.n11, n10=self.n10)

    @property
    def n(self) -> int:
        """Rows with both verdicts."""
        return self.n11 + self.n10 + self.n01 + self.n00

    @property
    def bad(self) -> int:
        """Rows that the person called bad."""
        return self.n11 + self.n10

    @property
    def flagged(self) -> int:
        """Rows that the judge called bad."""
        return self.n11 + self.n01


@dataclass(frozen=True, kw_only=True, slots=True)
class CorrectedRate:
    """A rate corrected for the judge's errors, as the formula gives it and inside [0, 1]."""

    raw: float
    clipped: float


def _informative(sensitivity: float, specificity: float) -> float:
    youden = sensitivity + specificity - 1
    if youden <= 1e-12:
        raise StatisticsRefused.because(
            "judge_uninformative",
            "a judge no better than chance corrects nothing",
            sensitivity=sensitivity,
            specificity=specificity,
        )
    return youden


def rogan_gladen(judged_rate: Rate, *, sensitivity: Rate, specificity: Rate) -> CorrectedRate:
    """Correct a judge's rate for known error rates: (p + sp - 1) / (se + sp - 1).

    Raises
    ------
    StatisticsRefused
        `judge_uninformative` when sensitivity + specificity is 1 or less.

    Notes: Rogan and Gladen 1978.
    """
    p, se, sp = (proportion(r, "rate") for r in (judged_rate, sensitivity, specificity))
    _informative(float(se), float(sp))
    raw = float((p + sp - 1) / (se + sp - 1))
    return CorrectedRate(raw=raw, clipped=_clip(raw))


def _clip(p: float) -> float:
    return min(max(p, 0.0), 1.0)


def rogan_gladen_known(
    judged_bad: int, judged: int, *, sensitivity: Rate, specificity: Rate, confidence: Rate = 0.95
) -> Interval:
    """Correct a judge's rate for error rates known without doubt, with Wilson's limits through the same map.

    Notes: Reiczigel, Foldi and Ozsvari 2010.
    """
    check_counts(judged_bad, judged, judged)
    if judged == 0:
        raise StatisticsRefused.because("no_inspection", "let the judge see one row at least", judged=judged)
    se, sp = float(proportion(sensitivity, "sensitivity")), float(proportion(specificity, "specificity"))
    youden = _informative(se, sp)
    estimate, low, high = (
        _clip((p + sp - 1) / youden)
        for p in (judged_bad / judged, *wilson_limits(judged_bad, judged, z_two_sided(confidence)))
    )
    return Interval(
        estimate=estimate,
        low=low,
        high=high,
        confidence=float(exact(confidence)),
        n=0,
        method="rogan_gladen_known",
        assumptions=("judge_errors_known",),
    )


def rogan_gladen_estimated(
    judged_bad: int,
    judged: int,
    *,
    true_positive: int,
    positives: int,
    true_negative: int,
    negatives: int,
    confidence: Rate = 0.95,
) -> Interval:
    """Correct a judge's rate for error rates estimated on a calibration set.

    Parameters
    ----------
    true_positive, positives
        Truly bad calibration rows that the judge flagged, and all of them; the same for good rows.

    Raises
    ------
    StatisticsRefused
        `judge_uninformative`; `no_calibration` when a true class is empty.

    Notes
    -----
    Lang and Reiczigel 2014; Lee et al., arXiv 2511.21140. The formula itself: `judge_only_interval` adds the refusals.
    """
    check_counts(judged_bad, judged, judged)
    check_counts(true_positive, positives, positives)
    check_counts(true_negative, negatives, negatives)
    if min(judged, positives, negatives) == 0:
        raise StatisticsRefused.because(
            "no_calibration", "both true classes need rows", judged=judged, positives=positives, negatives=negatives
        )
    se, sp = true_positive / positives, true_negative / negatives
    youden = _informative(se, sp)
    z = z_two_sided(confidence)
    p = (judged_bad + z * z / 2) / (judged + z * z)
    q1, q0 = (true_positive + 1) / (positives + 2), (true_negative + 1) / (negatives + 2)
    v1, v0 = q1 * (1 - q1) / (positives + 2), q0 * (1 - q0) / (negatives + 2)
    j = _informative(q1, q0)
    t = (p + q0 - 1) / j
    shift = 2 * z * z * (t * v1 - (1 - t) * v0)
    se_t = math.sqrt(p * (1 - p) / (judged + z * z) + (1 - t) ** 2 * v0 + t * t * v1) / j
    return Interval(
        estimate=_clip((judged_bad / judged + sp - 1) / youden),
        low=_clip(t + shift - z * se_t),
        high=_clip(t + shift + z * se_t),
        confidence=float(exact(confidence)),
        n=0,
        method="rogan_gladen_estimated",
        assumptions=("assumes_same_judge_errors",),
    )


def judge_only_interval(
    judged_bad: int,
    judged: int,
    *,
    true_positive: int,
    positives: int,
    true_negative: int,
    negatives: int,
    confidence: Rate = 0.95,
) -> Interval:
    """Estimate a lot that no person looked at, if the judge was calibrated well enough elsewhere.

    Returns
    -------
    Interval with the assumption `assumes_same_judge_errors`; or one without numbers and the reason
    `too_few_calibration_rows` (30 of each true class) or `judge_too_weak` (Youden's J under 0.5).

    Notes: calibrate with the same prompt, model and judge version, never one calibration for two models.
    """
    check_counts(true_positive, positives, positives)
    check_counts(true_negative, negatives, negatives)
    if min(positives, negatives) < CALIBRATION_ROWS:
        reason = "too_few_calibration_rows"
    elif true_positive / positives + true_negative / negatives - 1 < YOUDEN - 1e-12:
        reason = "judge_too_weak"
    else:
        return rogan_gladen_estimated(
            judged_bad,
            judged,
            true_positive=true_positive,
            positives=positives,
            true_negative=true_negative,
            negatives=negatives,
            confidence=confidence,
        )
    return _nothing(reason, 0, "rogan_gladen_estimated", confidence)


def _nothing(reason: str, n: int, method: str, confidence: Rate) -> Interval:
    return Interval(
        estimate=None, low=None, high=None, confidence=float(exact(confidence)), n=n, method=method, reason=reason
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PowerTuned(Interval):
    """A prediction-powered interval with the weight that the judge got."""

    lam: float


def ppi_mean(
    labels: Labels,
    *,
    unlabeled: int,
    unlabeled_judged_bad: int,
    lam: float | Literal["auto"] = "auto",
    confidence: Rate = 0.95,
) -> PowerTuned:
    """Estimate a rate from labelled rows and many judged ones (PPI++), not clipped.

    Parameters
    ----------
    labels
        Rows with both verdicts, drawn at random from the same source.
    unlabeled, unlabeled_judged_bad
        Rows that only the judge saw.
    lam
        Weight of the judge: 0 ignores it, 1 is plain PPI, `auto` minimizes the variance and stays in [0, 1].

    Notes
    -----
    Angelopoulos, Duchi and Zrnic, arXiv 2311.01453; agrees with ppi-python 0.2.3, whose default alpha is 0.1.
    For an endless stream: a closed lot that the judge saw in full has `difference_estimate`.
    """
    check_counts(unlabeled_judged_bad, unlabeled, unlabeled)
    n = labels.n
    if min(n, unlabeled) == 0:
        raise StatisticsRefused.because("no_human_labels", "label and judge one row at least", n=n, unlabeled=unlabeled)
    truth, judged, rate = labels.bad / n, labels.flagged / n, unlabeled_judged_bad / unlabeled
    weight = _best_weight(labels, unlabeled, unlabeled_judged_bad) if lam == "auto" else float(lam)
    estimate = weight * rate + truth - weight * judged
    second = (labels.n11 * (1 - weight) ** 2 + labels.n10 + labels.n01 * weight**2) / n
    correction = max(second - (truth - weight * judged) ** 2, 0.0)
    se = math.sqrt(weight**2 * rate * (1 - rate) / unlabeled + correction / n)
    z = z_two_sided(confidence)
    return PowerTuned(
        estimate=estimate,
        low=estimate - z * se,
        high=estimate + z * se,
        confidence=float(exact(confidence)),
        n=n,
        method="ppi++",
        se=se,
        assumptions=("large_sample",),
        lam=weight,
    )


def _best_weight(labels: Labels, unlabeled: int, unlabeled_judged_bad: int) -> float:
    n, everything = labels.n, labels.n + unlabeled
    flagged = (labels.flagged + unlabeled_judged_bad) / everything
    spread = flagged * (1 - flagged) * everything / (everything - 1)
    if spread == 0:
        return 0.0
    covariance = labels.n11 / n - labels.bad / n * labels.flagged / n
    return _clip(covariance / ((1 + n / unlabeled) * spread))


def difference_estimate(labels: Labels, *, population: int, judged_bad: int, confidence: Rate = 0.95) -> Interval:
    """Estimate the rate of a closed lot that the judge saw in full and people in part.

    Parameters
    ----------
    labels
        Rows with both verdicts, a simple random sample of the lot.
    population, judged_bad
        Rows of the lot, and those that the judge called bad.

    Notes
    -----
    The judge's rate plus the mean of truth minus judge, with the finite-population correction (Sarndal, Swensson and
    Wretman 1992); zero-wide at a census. One label has no spread: `singleton_sample`.
    """
    n = labels.n
    check_counts(judged_bad, population, population)
    check_counts(labels.bad, n, population)
    if n == 0:
        raise StatisticsRefused.because("no_human_labels", "label one row at least", n=n)
    mean = (labels.n10 - labels.n01) / n
    estimate = judged_bad / population + mean
    method = "difference_fpc"
    if n == 1 < population:
        return Interval(
            estimate=_clip(estimate),
            low=None,
            high=None,
            confidence=float(exact(confidence)),
            n=n,
            method=method,
            reason="singleton_sample",
        )
    variance = (labels.n10 + labels.n01 - n * mean * mean) / max(n - 1, 1)
    se = math.sqrt((population - n) / population * max(variance, 0.0) / n)
    z = z_two_sided(confidence)
    return Interval(
        estimate=_clip(estimate),
        low=_clip(estimate - z * se),
        high=_clip(estimate + z * se),
        confidence=float(exact(confidence)),
        n=n,
        method=method,
        se=se,
        assumptions=("large_sample",),
    )


def assisted_interval(
    labels: Labels, *, population: int, judged: int, judged_bad: int, confidence: Rate = 0.95
) -> Interval:
    """Give the second interval, where a judge helps and enough people looked; otherwise say why not.

    Parameters
    ----------
    labels
        Rows with both verdicts, a simple random sample of the lot.
    population
        Rows of the closed lot.
    judged, judged_bad
        Rows of the lot that the judge saw, the labelled ones included, and those that it called bad.

    Returns
    -------
    The difference estimate when the judge saw the whole lot, PPI++ (clipped) when not; or no numbers and the reason
    `no_human_labels`, `too_few_labels` (300) or `too_few_bad_rows` (20).
    """
    check_counts(labels.n, judged, population)
    check_counts(judged_bad, judged, population)
    check_counts(labels.flagged, judged_bad, population)
    method = "difference_fpc" if judged == population else "ppi++"
    if labels.n == 0:
        return _nothing("no_human_labels", 0, method, confidence)
    if labels.n < ASSISTED_ROWS:
        return _nothing("too_few_labels", labels.n, method, confidence)
    if labels.bad < ASSISTED_BAD:
        return _nothing("too_few_bad_rows", labels.n, method, confidence)
    if judged == population:
        return difference_estimate(labels, population=population, judged_bad=judged_bad, confidence=confidence)
    if judged == labels.n:
        return _nothing("judge_saw_labelled_rows_only", labels.n, method, confidence)
    plain = ppi_mean(
        labels,
        unlabeled=judged - labels.n,
        unlabeled_judged_bad=judged_bad - labels.flagged,
        confidence=confidence,
    )
    estimate, low, high = (None if v is None else _clip(v) for v in (plain.estimate, plain.low, plain.high))
    return Interval(
        estimate=estimate,
        low=low,
        high=high,
        confidence=plain.confidence,
        n=plain.n,
        method=plain.method,
        se=plain.se,
        assumptions=plain.assumptions,
    )


def screened_interval(
    bad: int, looked: int, *, unflagged: int, population: int, confidence: Rate = 0.95
) -> LotInterval:
    """Bound what is left after every flagged row was re-done or read: screen, fix, sample the rest.

    Parameters
    ----------
    bad, looked
        A simple random sample of the rows that the judge did not flag.
    unflagged, population
        Rows not flagged, and rows of the lot.

    Returns
    -------
    LotInterval of the left-over rate over the whole lot. No assumption about the judge at all.
    """
    check_counts(0, unflagged, population)
    rest = bad_rate_interval(bad, looked, population=unflagged, confidence=confidence)
    assert isinstance(rest, LotInterval)
    return LotInterval(
        estimate=None if rest.estimate is None else rest.estimate * unflagged / population,
        low=rest.bad_low / population if population else 0.0,
        high=rest.bad_high / population if population else 1.0,
        confidence=rest.confidence,
        n=looked,
        method="screened_exact",
        reason=rest.reason,
        assumptions=("flagged_rows_fixed",),
        population=population,
        bad_low=rest.bad_low,
        bad_high=rest.bad_high,
    )
