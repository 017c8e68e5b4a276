"""The rules around the formulas: defaults, refusals and warnings, each with the trap that it closes."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest

from lotwise import stats
from lotwise.errors import StatisticsRefused
from lotwise.stats import hypergeometric
from lotwise.stats.standard import LETTERS, RATES_PERCENT, SIZES


@pytest.mark.parametrize(("population", "n", "c"), [(200, 132, 3), (1_000, 278, 8), (10_000, 370, 11)])
def test_default_plan_reads_for_the_interval_and_releases_at_the_exact_number(population: int, n: int, c: int) -> None:
    plan = stats.inspection_plan(population)
    assert (plan.n, plan.c) == (n, c)
    assert stats.decide(c, n, population=population).decision == "release"
    assert stats.decide(c + 1, n, population=population).decision != "release"


@pytest.mark.parametrize("population", [1, 2, 20, 31, 50, 59, 60, 100, 384, 385, 5_000, 1_000_000])
def test_default_plan_can_always_release_a_spotless_sample(population: int) -> None:
    plan = stats.inspection_plan(population)
    assert plan.n <= population
    assert stats.decide(0, plan.n, population=population).decision == "release"


def test_plan_names_the_number_from_which_the_lot_is_re_reviewed() -> None:
    plan = stats.inspection_plan(200)
    assert plan.re_review_from is not None
    words = [stats.decide(x, plan.n, population=200).decision for x in range(plan.n + 1)]
    assert words.index("re_review") == plan.re_review_from
    assert words[plan.c] == "release"
    assert words == sorted(words, key=("release", "continue", "re_review").index)


def test_plan_is_said_in_words() -> None:
    plan = stats.single_plan(1_000)
    assert plan.in_words() == (
        "Look at 128 rows of the 1,000 drawn at random; accept with 3 bad or fewer: a lot with 1.00% bad passes "
        f"{plan.accept_at_acceptable:.1%} of the time, one with 5.00% bad {plan.accept_at_limit:.1%} of the time."
    )


def test_plan_without_room_is_refused() -> None:
    with pytest.raises(StatisticsRefused, match="unattainable"):
        stats.inspection_plan(1_000, n=20)
    with pytest.raises(StatisticsRefused, match="limits_cross"):
        stats.inspection_plan(1_000, acceptable=0.05, limit=0.05)


@pytest.mark.parametrize("population", [60, 300, 2_000])
def test_cheapest_plan_is_the_one_that_a_full_search_finds(population: int) -> None:
    plan = stats.single_plan(population)
    low, high = plan.bad_at_acceptable or 0, plan.bad_at_limit or 0

    def works(n: int, c: int) -> bool:
        passes = float(hypergeometric.lower(c, n, population, low))
        return passes >= 0.95 - 1e-12 and float(hypergeometric.lower(c, n, population, high)) <= 0.1 + 1e-12

    assert works(plan.n, plan.c)
    assert not any(works(plan.n - 1, c) for c in range(plan.n))
    assert not any(works(plan.n, c) for c in range(plan.c))


def test_operating_curve_falls_and_outgoing_rate_stays_under_its_limit() -> None:
    plan = stats.single_plan(1_000)
    rates = [Fraction(k, 200) for k in range(41)]
    chances = [chance for _, chance in plan.curve(rates)]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] == 1.0
    worst = stats.outgoing_limit(plan.n, plan.c, population=1_000)
    assert max(plan.outgoing(Fraction(d, 1_000)) for d in range(1_001)) == pytest.approx(worst.rate, abs=1e-15)
    assert plan.looks(0) == plan.n < plan.looks("0.05") < plan.looks("0.2") <= 1_000


@pytest.mark.parametrize(
    ("bad", "looked", "population", "judged", "decision", "reason"),
    [
        (0, 0, 1_000, 0, "continue", "no_inspection"),
        (0, 0, 1_000, 1_000, "continue", "no_human_labels"),
        (0, 0, 0, 0, "continue", "empty_lot"),
        (1, 20, 1_000, 0, "continue", "not_decided"),
        (5, 278, 1_000, 0, "release", "upper_bound_below_limit"),
        (30, 278, 1_000, 1_000, "re_review", "rate_above_acceptable"),
    ],
)
def test_decision_names_its_reason(
    bad: int, looked: int, population: int, judged: int, decision: str, reason: str
) -> None:
    got = stats.decide(bad, looked, population=population, judged=judged)
    assert (got.decision, got.reason) == (decision, reason)


def test_unsure_rows_count_as_bad_for_release_and_as_good_for_re_review() -> None:
    assert stats.decide(5, 278, population=1_000).decision == "release"
    assert stats.decide(5, 278, population=1_000, unsure=4).decision == "continue"
    assert stats.decide(9, 278, population=1_000).decision == "re_review"
    plain, open_ = (stats.bad_rate_interval(5, 278, population=1_000, unsure=u) for u in (0, 4))
    nine = stats.bad_rate_interval(9, 278, population=1_000)
    assert (open_.low, open_.high) == (plain.low, nine.high)


def test_census_decision_is_arithmetic() -> None:
    words = [stats.decide(x, 100, population=100).decision for x in range(8)]
    assert words == ["release"] * 5 + ["re_review"] * 3


@pytest.mark.parametrize("confidence", [0, 1, 95, -0.1])
def test_confidence_is_a_rate_and_not_percent(confidence: float) -> None:
    with pytest.raises(StatisticsRefused, match="rate_out_of_range"):
        stats.bad_rate_interval(1, 10, population=100, confidence=confidence)


def test_unknown_method_names_the_nearest() -> None:
    with pytest.raises(StatisticsRefused, match="clopper_pearson"):
        stats.bad_rate_interval(1, 10, population=100, method="clopper-pearson")


def test_nothing_looked_at_is_everything_possible_in_every_method() -> None:
    for method in ("exact_finite", "clopper_pearson", "wilson", "jeffreys"):
        interval = stats.bad_rate_interval(0, 0, population=50, method=method)
        assert (interval.estimate, interval.low, interval.high) == (None, 0.0, 1.0)
        assert interval.reason == "no_inspection"


def test_shortcut_interval_warns_and_names_the_default() -> None:
    with pytest.warns(stats.FpcUndercovers, match="exact_finite"):
        stats.bad_rate_interval(1, 10, population=50, method="wilson_fpc")


def test_judge_may_assist_only_with_enough_bad_rows_among_the_labels() -> None:
    def assisted(n11: int, n10: int, n01: int, n00: int, judged: int = 5_000) -> stats.Interval:
        labels = stats.Labels(n11=n11, n10=n10, n01=n01, n00=n00)
        return stats.assisted_interval(labels, population=5_000, judged=judged, judged_bad=judged // 10)

    assert assisted(0, 0, 0, 0).reason == "no_human_labels"
    assert assisted(25, 5, 10, 200).reason == "too_few_labels"
    assert assisted(15, 4, 10, 400).reason == "too_few_bad_rows"
    assert assisted(15, 4, 10, 400).estimate is None
    assert assisted(18, 4, 10, 400).method == "difference_fpc"
    assert assisted(18, 4, 10, 400, judged=2_000).method == "ppi++"


@pytest.mark.parametrize(
    ("calibration", "reason"),
    [
        ((28, 29, 190, 200), "too_few_calibration_rows"),
        ((20, 40, 160, 200), "judge_too_weak"),
        ((36, 40, 190, 200), None),
    ],
    ids=["29 bad rows", "J of 0.3", "good judge"],
)
def test_judge_alone_needs_calibration_and_power(calibration: tuple[int, int, int, int], reason: str | None) -> None:
    tp, positives, tn, negatives = calibration
    interval = stats.judge_only_interval(
        100, 1_000, true_positive=tp, positives=positives, true_negative=tn, negatives=negatives
    )
    assert interval.reason == reason
    assert (interval.estimate is None) == (reason is not None)
    if reason is None:
        assert interval.assumptions == ("assumes_same_judge_errors",)


def test_more_judged_rows_do_not_heal_the_judges_bias() -> None:
    # 2 % bad, sensitivity .8, specificity .97: the judge flags 4.54 % however many rows it reads.
    flagged = stats.bad_rate_interval(4_540, 100_000, method="wilson")
    assert flagged.low is not None
    assert flagged.low > 0.02
    corrected = stats.rogan_gladen("0.0454", sensitivity="0.8", specificity="0.97")
    assert corrected.raw == pytest.approx(0.02)


def test_difference_estimate_covers_in_a_seeded_run() -> None:
    dice, population, covered = np.random.default_rng(7), 2_000, 0
    truth = np.arange(population) < 200
    judge = np.where(truth, dice.random(population) < 0.85, dice.random(population) > 0.95)
    for _ in range(400):
        rows = dice.choice(population, 300, replace=False)
        t, j = truth[rows], judge[rows]
        labels = stats.Labels(
            n11=int((t & j).sum()), n10=int((t & ~j).sum()), n01=int((~t & j).sum()), n00=int((~t & ~j).sum())
        )
        interval = stats.difference_estimate(labels, population=population, judged_bad=int(judge.sum()))
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low <= 0.1 <= interval.high
    # .949 over many lots; 400 draws stray by .033 in one case of a thousand.
    assert covered / 400 > 0.95 - 0.033


def test_screened_rest_is_bounded_without_trust_in_the_judge() -> None:
    rest = stats.screened_interval(0, 120, unflagged=900, population=1_000)
    plain = stats.bad_rate_interval(0, 120, population=900)
    assert isinstance(plain, stats.LotInterval)
    assert rest.high == plain.bad_high / 1_000


def test_judge_agreement_warns_when_kappa_says_little() -> None:
    rare = stats.judge_agreement(stats.Labels(n11=2, n10=1, n01=1, n00=96))
    few = stats.judge_agreement(stats.Labels(n11=15, n10=5, n01=5, n00=15))
    assert rare.warnings == ("prevalence_low",)
    assert few.warnings == ("not_enough_rows",)
    assert rare.sensitivity.method == "clopper_pearson"
    assert (rare.kappa.kappa or 1) < 0.7 < rare.kappa.observed


def test_unseen_stratum_counts_as_anything_and_not_as_zero() -> None:
    seen, unseen = stats.Stratum(population=900, looked=100, bad=0), stats.Stratum(population=100, looked=0, bad=0)
    both = stats.stratified_exact([seen, unseen])
    alone = stats.stratified_exact([seen])
    assert both.estimate is None
    assert both.bad_high >= alone.bad_high + 100
    assert stats.stratified_interval([seen] * 6 + [unseen]).method == "stratified_exact"


@pytest.mark.parametrize("confidence", ["0.9", "0.95"])
def test_two_strata_bound_covers_every_split(confidence: str) -> None:
    sizes, reads = (9, 14), (4, 6)
    bound = np.zeros((reads[0] + 1, reads[1] + 1), np.int64)
    for x1 in range(reads[0] + 1):
        for x2 in range(reads[1] + 1):
            parts = [
                stats.Stratum(population=s, looked=n, bad=x) for s, n, x in zip(sizes, reads, (x1, x2), strict=True)
            ]
            bound[x1, x2] = stats.two_strata_upper(*parts, confidence=confidence).bad_high
    for d1 in range(sizes[0] + 1):
        for d2 in range(sizes[1] + 1):
            one = hypergeometric.pmf(np.arange(reads[0] + 1), reads[0], sizes[0], d1)
            two = hypergeometric.pmf(np.arange(reads[1] + 1), reads[1], sizes[1], d2)
            assert ((one[:, None] * two) * (bound >= d1 + d2)).sum() >= float(confidence) - 1e-12


def test_same_answer_in_many_rows_makes_two_rates() -> None:
    rates = stats.dedup_rates(500, [(1, False)] * 35 + [(7, True)] * 5)
    assert (rates.unique_rate, rates.row_rate) == (0.125, 0.5)
    assert rates.row_se is not None
    assert rates.row_se > 2 * (0.125 * 0.875 / 40) ** 0.5


def test_allocation_keeps_floors_and_never_exceeds_a_group() -> None:
    assert stats.allocate([9_000, 900, 90, 10], 300) == (270, 30, 30, 10)
    assert stats.allocate([5, 5], 5, at_least=0) == (3, 2)
    assert sum(stats.allocate([333, 333, 334], 100, at_least=0)) == 100


def test_arrows_keep_a_plan_in_every_cell_and_move_the_sample_with_it() -> None:
    for severity in ("normal", "tightened"):
        for lot_size in (2, 100, 1_000, 600_000):
            for percent in RATES_PERCENT:
                plan = stats.attribute_plan(10**9, level="II", aql_percent=percent, severity=severity)
                assert plan.n == SIZES[LETTERS.index(plan.letter_used)]
                small = stats.attribute_plan(lot_size, level="II", aql_percent=percent, severity=severity)
                assert small.n <= lot_size
                assert small.inspect_all == (SIZES[LETTERS.index(small.letter_used)] >= lot_size)


@pytest.mark.parametrize(
    ("severity", "percent", "letter", "ac"),
    [
        ("normal", "0.15", "J", 0),
        ("normal", "0.25", "H", 0),
        ("normal", "0.40", "K", 1),
        ("normal", "0.65", "J", 1),
        ("normal", "15", "J", 21),
        ("normal", "25", "H", 21),
        ("tightened", "0.25", "J", 0),
        ("tightened", "0.40", "L", 1),
        ("tightened", "0.65", "K", 1),
        ("tightened", "1.0", "J", 1),
        ("tightened", "15", "J", 18),
    ],
)
def test_row_j_of_the_published_tables_with_its_arrows(severity: str, percent: str, letter: str, ac: int) -> None:
    plan = stats.attribute_plan(1_000, aql_percent=percent, severity=severity)
    assert (plan.letter_used, plan.ac, plan.re) == (letter, ac, ac + 1)


def test_letter_s_is_reached_by_an_arrow_of_the_tightened_table_alone() -> None:
    def find(severity: str, percent: str) -> stats.AttributePlan:
        return stats.attribute_plan(10**9, level="III", aql_percent=percent, severity=severity)

    assert (find("tightened", "0.025").letter_used, find("tightened", "0.025").n) == ("S", 3_150)
    assert (find("tightened", "0.015").letter_used, find("tightened", "0.010").letter_used) == ("Q", "R")
    assert (find("normal", "0.025").letter_used, find("normal", "0.010").letter_used) == ("R", "Q")


def test_unlisted_percent_names_its_neighbours() -> None:
    with pytest.raises(StatisticsRefused, match=r"0\.65 and 1\.0 percent"):
        stats.attribute_plan(1_000, aql_percent=0.9)
    with pytest.raises(StatisticsRefused, match="unknown_severity"):
        stats.attribute_plan(1_000, aql_percent=1, severity="reduced")


def test_double_plan_reads_less_than_the_single_one_of_the_same_strength() -> None:
    two = stats.DoublePlan(n1=80, c1=1, r1=5, n2=80, c2=4)
    good = stats.double_outcome(two, population=2_000, bad_in_lot=20)
    assert 80 < good.asn < 132
    total = sum(stats.double_outcome(two, population=60 + 120, bad_in_lot=d).p_accept_first for d in range(180 + 1))
    # Summed over every truth, each first-sample count has (N+1)/(n1+1) chances: two counts accept at once.
    assert total == pytest.approx(2 * 181 / 81)


def test_sequential_reading_stops_early_on_average_and_waits_at_its_end() -> None:
    plan = stats.sequential_plan()
    outcome = stats.sequential_outcome(plan, rate="0.01", n_max=400)
    assert outcome.asn == pytest.approx(85, abs=0.5)
    assert outcome.p_accept + outcome.p_reject + outcome.p_undecided == pytest.approx(1.0)
    assert stats.sequential_decision(plan, [False] * 20).decision == "continue"


def test_sequential_outcome_agrees_with_reading_every_order() -> None:
    plan = stats.sequential_plan(acceptable="0.1", limit="0.4", alpha="0.2", beta="0.2")
    chances = {"accept": 0.0, "reject": 0.0, "continue": 0.0}
    for word in range(2**10):
        verdicts = [bool(word >> k & 1) for k in range(10)]
        chances[stats.sequential_decision(plan, verdicts).decision] += 0.25 ** sum(verdicts) * 0.75 ** (
            10 - sum(verdicts)
        )
    outcome = stats.sequential_outcome(plan, rate="0.25", n_max=10)
    assert (outcome.p_accept, outcome.p_reject, outcome.p_undecided) == pytest.approx(tuple(chances.values()))


def test_looks_must_be_in_the_order_of_drawing() -> None:
    with pytest.raises(StatisticsRefused, match="looks_out_of_order"):
        stats.peeking_path([(20, 3), (30, 2)], population=100)


def test_pairs_join_by_key_and_report_what_was_dropped() -> None:
    first = {"a": True, "b": False, "c": True, "only-a": True}
    second = {"c": False, "b": False, "a": True, "only-b": False}
    pairs = stats.Pairs.join(first, second)
    assert (pairs.a, pairs.b, pairs.c, pairs.d, pairs.dropped) == (1, 1, 0, 1, 2)
    kept = stats.Pairs.join(first, second, missing_is_bad=True)
    assert (kept.a, kept.b, kept.c, kept.d, kept.dropped) == (2, 2, 0, 1, 0)


def test_swapping_the_arms_turns_the_paired_interval_around() -> None:
    ahead, back = stats.Pairs(a=5, b=12, c=3, d=80), stats.Pairs(a=5, b=3, c=12, d=80)
    for method in (stats.tango, stats.newcombe, stats.bonett_price):
        one, other = method(ahead), method(back)
        assert (one.diff, one.low, one.high) == pytest.approx((-other.diff, -other.high, -other.low))


def test_overlapping_intervals_are_not_no_difference() -> None:
    pairs = stats.Pairs(a=20, b=3, c=14, d=163)
    arm_a, arm_b = (stats.bad_rate_interval(k, 200) for k in (23, 34))
    assert (arm_a.high or 0) > (arm_b.low or 1)
    assert stats.significant(stats.mcnemar(pairs.b, pairs.c))
    assert stats.tango(pairs).high < 0


def test_size_formula_is_short_of_rows_for_the_exact_test() -> None:
    size = stats.mcnemar_size("0.10", "0.05", power="0.8")
    powers = [stats.mcnemar_power(n, "0.10", "0.05") for n in (size.n, size.n * 11 // 10)]
    assert 0.75 < powers[0] < 0.8 < powers[1]


def test_fixed_sequence_keeps_its_promise_at_every_precision() -> None:
    # A threshold that is truly as bad as the target passes with chance at most delta, by enumeration.
    for n in (10, 59, 100, 300):
        chance = sum(
            float(stats.accept_chance(n, x, rate="0.05"))
            - (float(stats.accept_chance(n, x - 1, rate="0.05")) if x else 0)
            for x in range(n + 1)
            if stats.cascade_threshold([stats.Calibration(threshold=0.9, n=n, errors=x)]).threshold is not None
        )
        assert chance <= 0.05 + 1e-12


def test_fixed_sequence_stops_at_the_first_failure_and_59_rows_prove_5_percent() -> None:
    def level(threshold: float, n: int, errors: int, population: int | None = None) -> stats.Calibration:
        return stats.Calibration(threshold=threshold, n=n, errors=errors, population=population)

    assert stats.cascade_threshold([level(0.9, 59, 0)]).threshold == 0.9
    assert stats.cascade_threshold([level(0.9, 58, 0)]).threshold is None
    assert stats.cascade_threshold([level(0.9, 58, 0), level(0.5, 500, 0)]).threshold is None
    # Three rows all right prove nothing; in a closed lot fewer rows are enough.
    assert stats.cascade_threshold([level(0.9, 3, 0)]).threshold is None
    assert stats.cascade_threshold([level(0.9, 57, 0, 1_000)]).threshold == 0.9
    with pytest.raises(StatisticsRefused, match="thresholds_out_of_order"):
        stats.cascade_threshold([level(0.9, 59, 0), level(0.95, 59, 0), level(0.8, 59, 0)])


def test_holm_keeps_order_and_is_never_below_the_plain_value() -> None:
    dice = random.Random(3)
    p = [dice.random() for _ in range(50)]
    adjusted = stats.holm(p)
    assert all(a >= q for a, q in zip(adjusted, p, strict=True))
    assert np.array_equal(stats.holm(p[::-1]), adjusted[::-1])
    assert all(stats.benjamini_hochberg(p) <= adjusted)


def test_few_points_make_a_band_of_decoration() -> None:
    assert stats.mean_band([0.1, 0.2, 0.1]).reason == "too_few_points"
    assert stats.mean_band([0.1, 0.2] * 10).reason is None


def test_binomial_cusum_signals_after_a_shift_and_stays_quiet_before() -> None:
    dice = np.random.default_rng(11)
    looked = dice.integers(50, 200, 60)
    rates = np.where(np.arange(60) < 40, 0.02, 0.06)
    bad = dice.binomial(looked, rates)
    chart = stats.cusum_binomial(bad.tolist(), looked.tolist(), usual="0.02", worse="0.05", h=5)
    assert chart.first_signal is not None
    assert 40 < chart.first_signal <= 50


@pytest.mark.parametrize(
    "rule",
    [
        {},
        {"margin": 0.2, "acceptable": 0.02, "limit": 0.1, "confidence": 0.9},
        {"acceptable": 0, "limit": 0.001, "confidence": 0.99},
    ],
    ids=["default", "loose", "strict"],
)
def test_plans_of_many_lots_are_those_of_each_alone(rule: dict[str, float]) -> None:
    dice = random.Random(20_260_115)
    sizes = [*range(1, 130), *(dice.randrange(130, 5_000) for _ in range(60)), 1_000, 1_000, 1_000_000, 12_345_678]

    plans = stats.inspection_plans(sizes, **rule)

    alone = [stats.inspection_plan(size, **rule) for size in sizes]
    assert list(zip(plans.n, plans.c, strict=True)) == [(plan.n, plan.c) for plan in alone]
    assert plans.accept_at_acceptable == pytest.approx([plan.accept_at_acceptable for plan in alone], rel=1e-12)
    assert plans.accept_at_limit == pytest.approx([plan.accept_at_limit for plan in alone], rel=1e-12)


def test_plans_of_no_lot_are_none_and_of_an_empty_lot_refused() -> None:
    assert stats.inspection_plans([]).n.size == 0
    with pytest.raises(StatisticsRefused, match="empty_lot"):
        stats.inspection_plans([10, 0])
    with pytest.raises(StatisticsRefused, match="limits_cross"):
        stats.inspection_plans([10], acceptable=0.05, limit=0.05)
