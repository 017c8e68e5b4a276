"""The canary's rule, and the three watches over the shards that come after it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import beta, fisher_exact

from lotwise.canary import (
    MARGIN,
    Drift,
    Quality,
    Rise,
    drift_sums,
    drifted,
    fewest_golden,
    frame_rows,
    judge,
    lower_bound,
    revision_changes,
    risen,
    upper_bound,
)


def golden(n: int, agreed: int, threshold: float = 0.9) -> bool:
    return judge(threshold=threshold, n_golden=n, agreed=agreed, bad_limit=None, n_frame=0, n_invalid=0).passed


def frame(n: int, bad: int, limit: float | None = 0.2) -> bool:
    return judge(threshold=0.0, n_golden=0, agreed=0, bad_limit=limit, n_frame=n, n_invalid=bad).passed


# --- the rule -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "agreed", "passes"),
    [
        (100, 90, True),
        (100, 89, False),
        (14, 14, True),
        (13, 13, False),  # all agree, and 80 % is not proven
        (30, 27, False),
        (30, 29, True),
        (200, 180, True),
        (200, 100, False),
    ],
)
def test_golden_rows_pass_at_the_threshold_if_it_is_proven_but_for_the_margin(
    n: int, agreed: int, passes: bool
) -> None:
    assert golden(n, agreed) is passes


@pytest.mark.parametrize(
    ("n", "bad", "passes"),
    [(500, 100, True), (500, 101, False), (100, 20, True), (100, 21, False), (20, 4, False), (100, 0, True)],
)
def test_frame_rows_pass_at_the_limit_if_it_is_proven_but_for_the_margin(n: int, bad: int, passes: bool) -> None:
    assert frame(n, bad) is passes


def test_spotless_canary_passes_a_limit_of_zero() -> None:
    assert frame(100, 0, limit=0.0)
    assert not frame(100, 1, limit=0.0)


def test_no_limit_judges_no_frame_row() -> None:
    assert frame(100, 100, limit=None)


def test_either_part_can_fail_a_canary() -> None:
    both = {"threshold": 0.9, "bad_limit": 0.2, "n_golden": 100, "n_frame": 500}

    assert judge(**both, agreed=100, n_invalid=0).passed  # type: ignore[arg-type]
    assert not judge(**both, agreed=100, n_invalid=200).passed  # type: ignore[arg-type]
    assert not judge(**both, agreed=50, n_invalid=0).passed  # type: ignore[arg-type]


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.5, 0.85, 0.9, 0.95, 1.0])
def test_fewest_golden_rows_pass_if_all_agree_and_one_row_less_never_does(threshold: float) -> None:
    fewest = fewest_golden(threshold)
    assert golden(fewest, fewest, threshold)
    assert fewest == 1 or not golden(fewest - 1, fewest - 1, threshold)


def test_threshold_as_it_is_by_itself_needs_fourteen_golden_rows() -> None:
    assert fewest_golden(0.9) == 14


@given(n=st.integers(1, 400), data=st.data(), threshold=st.floats(0.2, 1.0))
def test_pass_is_never_undone_by_one_more_agreement(n: int, data: st.DataObject, threshold: float) -> None:
    agreed = data.draw(st.integers(0, n - 1))
    assert not golden(n, agreed, threshold) or golden(n, agreed + 1, threshold)


@given(n=st.integers(1, 2_000), data=st.data())
def test_bounds_are_clopper_and_pearsons(n: int, data: st.DataObject) -> None:
    good = data.draw(st.integers(0, n))

    expected = 0.0 if good == 0 else float(beta.ppf(0.05, good, n - good + 1))
    assert lower_bound(good, n) == pytest.approx(expected, abs=1e-9)
    assert upper_bound(n - good, n) == pytest.approx(1 - expected, abs=1e-9)


@pytest.mark.parametrize(
    ("n_requests", "n_frame"), [(0, 0), (1_999, 0), (2_000, 100), (5_001, 250), (10_000, 500), (1_000_000, 500)]
)
def test_canary_has_a_twentieth_of_the_frame_and_at_most_500_rows(n_requests: int, n_frame: int) -> None:
    assert frame_rows(n_requests) == n_frame


def test_reason_gives_the_counts_and_what_is_asked_for() -> None:
    verdict = judge(threshold=0.9, n_golden=100, agreed=31, bad_limit=0.2, n_frame=500, n_invalid=4)

    assert "31 of 100 golden rows agree" in verdict.reason
    assert "90% must agree" in verdict.reason
    assert "4 of 500 first answers are invalid" in verdict.reason


# --- a rate that rises --------------------------------------------------------------------------------------------


def qualities(*counts: tuple[int | None, int | None]) -> list[Quality]:
    return [Quality(shard=f"s{i}", n_answered=n, n_bad=bad, revisions=()) for i, (n, bad) in enumerate(counts)]


def test_shard_with_more_invalid_answers_is_named_with_fishers_p() -> None:
    (rise,) = risen(qualities((1_000, 10), (1_000, 12), (1_000, 60)))

    table = [[60, 940], [22, 1_978]]
    assert rise == Rise(shard="s2", n_answered=1_000, n_bad=60, before=0.011, p_value=rise.p_value)
    assert rise.p_value == pytest.approx(fisher_exact(table, alternative="greater").pvalue, rel=1e-6)


def test_rate_that_falls_or_stays_raises_no_alarm() -> None:
    assert risen(qualities((1_000, 60), (1_000, 10), (1_000, 12))) == []


def test_shards_that_nobody_could_judge_are_passed_over() -> None:
    assert risen(qualities((None, None), (1_000, 10), (0, 0), (1_000, 80)))[0].shard == "s3"


def test_steady_run_is_falsely_alarmed_seldom_however_long_it_is() -> None:
    rng = random.Random(5)
    runs = 100
    alarmed = 0
    for _ in range(runs):
        counts = [(60, sum(rng.random() < 0.08 for _ in range(60))) for _ in range(15)]
        alarmed += bool(risen(qualities(*counts)))

    assert alarmed <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


# --- a revision that changes --------------------------------------------------------------------------------------


def answered_by(*revisions: tuple[str, ...]) -> list[Quality]:
    return [Quality(shard=f"s{i}", n_answered=1, n_bad=0, revisions=seen) for i, seen in enumerate(revisions)]


@pytest.mark.parametrize(
    ("revisions", "began"),
    [
        ([("a",), ("a",), ("a",)], []),
        ([("a",), ("a",), ("b",), ("b",)], ["s2"]),
        ([("a",), ("a", "b"), ("b",)], ["s1"]),
        ([("a", "b"), ("a",)], ["s0"]),
        ([("a",), (), ("c",), ("a",), ("b",)], ["s2", "s4"]),
    ],
    ids=["none", "between shards", "inside a shard", "inside the first", "twice"],
)
def test_change_of_revision_names_the_shard_at_which_it_began(
    revisions: list[tuple[str, ...]], began: list[str]
) -> None:
    assert [change.shard for change in revision_changes(answered_by(*revisions))] == began


# --- golden rows that drift ---------------------------------------------------------------------------------------


def series(*counts: tuple[int, int]) -> list[tuple[str, int, int]]:
    return [(f"s{i}", n, agreed) for i, (n, agreed) in enumerate(counts)]


def test_drift_names_where_it_began_and_where_it_was_certain() -> None:
    found = drifted(series((5, 5), (5, 5), (5, 4), (5, 5), (5, 5), (5, 0), (5, 1), (5, 0)), agreed_at_least=0.97)

    assert found == Drift(began="s5", certain="s6")


def test_agreement_as_proven_is_no_drift() -> None:
    assert drifted(series(*[(10, 9)] * 60), agreed_at_least=0.9) is None


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)).map(lambda p: (p[0], min(p))), min_size=1, max_size=30)
)
def test_drift_sum_is_zero_or_positive_and_falls_with_agreement(counts: list[tuple[int, int]]) -> None:
    sums = drift_sums(series(*counts), agreed_at_least=0.9)
    better = drift_sums(series(*[(n, n) for n, _ in counts]), agreed_at_least=0.9)

    assert all(a >= b >= 0 for a, b in zip(sums, better, strict=True))


@pytest.mark.parametrize("agreed_at_least", [0.5, 0.8, 0.95])
def test_steady_golden_series_drifts_seldom(agreed_at_least: float) -> None:
    rng = random.Random(11)
    runs = 200
    false = 0
    for _ in range(runs):
        counts = [(8, sum(rng.random() < agreed_at_least for _ in range(8))) for _ in range(100)]
        false += drifted(series(*counts), agreed_at_least=agreed_at_least) is not None

    assert false <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


def test_drop_by_three_margins_is_found_within_two_hundred_golden_rows() -> None:
    rng = random.Random(3)
    late = 0
    for _ in range(100):
        counts = [(10, sum(rng.random() < 0.95 - 3 * MARGIN for _ in range(10))) for _ in range(20)]
        late += drifted(series(*counts), agreed_at_least=0.95) is None

    assert late <= 5
