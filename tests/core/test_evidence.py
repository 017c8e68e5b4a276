"""Lots without a ledger: what is asked of one, which answers are drawn, and what verdicts prove."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import hypergeom  # type: ignore[import-untyped, unused-ignore]

from lotwise import stats
from lotwise.errors import BadArgument
from lotwise.evidence import (
    INSPECTIONS,
    LOTS,
    PLANNED,
    SAMPLED,
    STANDING,
    Acceptance,
    Reading,
    digests,
    draw_sample,
    draw_samples,
    family_of,
    groups_digest,
    lot_in,
    lot_table,
    row_columns,
    seed_of,
    settled,
)
from lotwise.evidence.sampling import STRATUM_LEAST, places, spread
from lotwise.inspection import moments

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def population(*sizes: int) -> pl.DataFrame:
    """Answers of shards of these sizes."""
    shards = [f"shard{h}" for h, size in enumerate(sizes) for _ in range(size)]
    keys = [f"{i:040x}" for i in range(len(shards))]
    return pl.DataFrame({"key": keys, "stratum": shards, "multiplicity": [1] * len(keys)})


# --- the rule -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [
        {"limit": 0.01, "aql": 0.05},
        {"limit": 0.05, "aql": 0.05},
        {"limit": 5},
        {"confidence": 1.0},
        {"confidence": 0.0},
        {"margin": 0.0},
        {"margin": float("nan")},
        {"lots": "column"},
        {"lots": "shard", "by": "language"},
        {"read_minutes": 0},
        {"limit": True},
        {"limit": "0.05"},
    ],
    ids=str,
)
def test_rule_that_cannot_be_kept_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadArgument):
        Acceptance(**fields)


def test_rule_survives_json() -> None:
    asked = Acceptance(limit=0.1, aql=0.02, confidence=0.9, margin=0.1, by="language", read_minutes=1)

    assert Acceptance.from_json(asked.to_json()) == asked
    assert Acceptance.from_json(None) == Acceptance()


def test_lot_belongs_to_the_work_and_to_what_says_which_answers_are_valid() -> None:
    names = [
        family_of("job", "validator"),
        family_of("another job", "validator"),
        family_of("job", "another validator"),
        family_of("job", "validator", "shard"),
        family_of("job", "validator", "by", "language", "groups"),
        family_of("job", "validator", "by", "language", "other groups"),
    ]

    assert len(set(names)) == len(names)
    assert family_of("job", "validator") == names[0]
    assert lot_in(names[0], "run", None) == names[0]
    assert lot_in(names[4], "by", "null") != lot_in(names[4], "by", None)


def test_groups_are_named_by_who_is_in_them_and_not_by_their_order() -> None:
    one = groups_digest([("de", ["a", "b"]), (None, ["c"])])

    assert groups_digest([(None, ["c"]), ("de", ["b", "a"])]) == one
    assert groups_digest([("de", ["a"]), (None, ["b", "c"])]) != one
    assert groups_digest([("de", ["a", "b"]), ("null", ["c"])]) != one


@pytest.mark.parametrize("size", [1, 2, 19, 20, 50, 1_000, 1_000_000])
def test_plan_of_a_lot_is_the_default_plan(size: int) -> None:
    plan = Acceptance().plan(size)

    assert plan == stats.inspection_plan(size)
    assert plan is not None
    assert plan.n <= size


def test_empty_lot_has_no_plan() -> None:
    assert Acceptance().plan(0) is None


def test_reading_counts_answers_and_hours_of_every_lot() -> None:
    reading = Reading.of([1_000, 1_000, 0, 50], Acceptance(read_minutes=3))

    assert reading.n_lots == 3
    assert reading.n_rows == 278 + 278 + stats.inspection_plan(50).n
    assert reading.hours == reading.n_rows * 3 / 60
    assert "278 of 1,000" in reading.words[0]
    assert "53.8 % with 3 %" in reading.words[1]


SMALL = {
    "one answer": (1, ("it is read; release with none bad", "nothing is left to chance: every bad answer is seen")),
    "a census": (5, ("all 5 are read; release with none bad", "nothing is left to chance: every bad answer is seen")),
    "too few for rates": (
        60,
        (
            "53 of 60 drawn at random; release with 1 bad or fewer",
            "released 100 % with 0 of its 60 answers truly bad, 100 % with 1, 22.1 % with 2, 3.4 % with 3",
        ),
    ),
    "enough for rates": (
        100,
        (
            "80 of 100 drawn at random; release with 1 bad or fewer",
            "released 100 % with 1 % truly bad, 36.2 % with 2 %, 10.1 % with 3 %, 2.4 % with 4 %, 0.5 % with 5 %",
        ),
    ),
}


@pytest.mark.parametrize(("size", "words"), SMALL.values(), ids=SMALL)
def test_plan_of_a_small_lot_is_told_in_answers_and_a_census_without_chances(size: int, words: tuple[str, str]) -> None:
    assert Reading.of([size], Acceptance()).words == words


# --- the draw -----------------------------------------------------------------------------------------------------


def test_draw_from_one_shard_is_the_simple_draw() -> None:
    answers = population(1_500)

    drawn = draw_sample(answers, 300, seed=5)

    assert drawn["key"].to_list() == stats.draw(answers["key"], 300, seed=5)
    assert drawn["rank"].to_list() == list(range(1, 301))
    assert drawn["weight"].unique().to_list() == [5.0]


def test_places_are_the_order_of_drawing() -> None:
    keys = population(500)["key"]

    by_place = pl.DataFrame({"key": keys, "place": places(keys, 9)}).sort("place", "key")["key"].to_list()

    assert by_place == stats.draw_order(keys, seed=9)


def test_draw_does_not_see_the_order_of_the_answers() -> None:
    answers = population(2_000, 3_000, 10, 20)

    one = draw_sample(answers, 200, seed=1)
    other = draw_sample(answers.sample(fraction=1.0, shuffle=True, seed=4), 200, seed=1)

    assert one.equals(other)
    assert not one.equals(draw_sample(answers, 200, seed=2))


def test_each_shard_gets_its_share_of_the_sample() -> None:
    drawn = draw_sample(population(10_000, 5_000, 5_000), 200, seed=3)

    assert drawn.group_by("stratum").len().sort("stratum")["len"].to_list() == [100, 50, 50]
    assert drawn["key"].n_unique() == 200


def test_small_shards_are_one_stratum_together() -> None:
    drawn = draw_sample(population(STRATUM_LEAST, STRATUM_LEAST - 1, 1, 1), 100, seed=3)

    assert set(drawn["stratum"]) == {"shard0", "small"}


def test_census_draws_every_answer_once() -> None:
    answers = population(1_200, 7, 3)

    drawn = draw_sample(answers, answers.height, seed=3)

    assert sorted(drawn["key"]) == sorted(answers["key"])
    assert drawn["weight"].unique().to_list() == [1.0]


def test_more_than_there_are_cannot_be_drawn() -> None:
    with pytest.raises(ValueError, match="11 answers"):
        draw_sample(population(10), 11, seed=0)


def test_many_lots_drawn_at_once_get_the_samples_that_each_gets_alone() -> None:
    sizes = {"one": (5_000,), "two": (3_000, 2_000), "mixed": (1_500, 1_200, 40, 3), "small": (7, 2), "single": (1,)}
    lots = {name: population(*shards) for name, shards in sizes.items()}
    wanted = pl.DataFrame({"lot_id": list(lots), "plan_n": [300, 211, 1, 0, 1], "seed": [5, 5, 77, 2**32 - 1, 0]})
    together = pl.concat([answers.with_columns(lot_id=pl.lit(name)) for name, answers in lots.items()])

    drawn = draw_samples(together.sample(fraction=1.0, shuffle=True, seed=4), wanted)

    for name, n, seed in wanted.iter_rows():
        alone = draw_sample(lots[name], n, seed=seed)
        assert drawn.filter(lot_id=name).drop("lot_id").equals(alone)
        assert alone.height == n


def test_lots_that_are_not_wanted_are_not_drawn_from() -> None:
    answers = pl.concat([population(50).with_columns(lot_id=pl.lit(name)) for name in ("a", "b")])

    drawn = draw_samples(answers, pl.DataFrame({"lot_id": ["b"], "plan_n": [3], "seed": [1]}))

    assert drawn["lot_id"].to_list() == ["b"] * 3
    with pytest.raises(ValueError, match="1 answers cannot be drawn from 0"):
        draw_samples(answers, pl.DataFrame({"lot_id": ["c"], "plan_n": [1], "seed": [1]}))


@settings(max_examples=60)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(0, 10_000), st.data())
def test_share_is_one_of_the_whole_numbers_beside_it(sizes: list[int], seed: int, data: st.DataObject) -> None:
    total = sum(sizes)
    n = data.draw(st.integers(0, total))

    shares = spread({f"s{h}": size for h, size in enumerate(sizes)}, n, seed=seed)

    assert sum(shares.values()) == n
    for h, size in enumerate(sizes):
        assert n * size // total <= shares[f"s{h}"] <= min(size, -(-n * size // total))


def test_every_answer_has_the_same_chance_to_be_drawn() -> None:
    # Shares of 2.5, 1.25 and 1.25: rounding by size would always favour the same shards.
    sizes = {"large": 50, "one": 25, "two": 25}
    times: Counter[str] = Counter()
    for seed in range(2_000):
        times.update(spread(sizes, 5, seed=seed))

    # Three standard deviations of a mean of 2,000 numbers that lie within one of each other.
    assert times["large"] / 2_000 == pytest.approx(2.5, abs=0.034)
    assert times["one"] / 2_000 == pytest.approx(1.25, abs=0.034)


@pytest.mark.parametrize("shards", [2, 5, 10])
def test_strata_change_the_chance_to_accept_by_less_than_one_in_ten_thousand(shards: int) -> None:
    # The exact chance under the spread draw with the bad answers spread evenly, which is where it varies most,
    # against the chance of the simple draw that the plan promises.
    total = shards * STRATUM_LEAST
    plan = stats.inspection_plan(total)
    looks = [plan.n // shards + (h < plan.n % shards) for h in range(shards)]
    for rate in (0.01, 0.03, 0.05):
        bad = round(rate * STRATUM_LEAST)
        spread_out = np.array([1.0])
        for n in looks:
            spread_out = np.convolve(spread_out, hypergeom.pmf(np.arange(n + 1), STRATUM_LEAST, bad, n))
        simple = stats.accept_chance(plan.n, plan.c, population=total, bad_in_lot=bad * shards)
        assert abs(float(spread_out[: plan.c + 1].sum()) - simple) < 1e-4


def test_seed_is_known_beforehand_and_changes_with_the_draw() -> None:
    assert seed_of("lot", 1) == seed_of("lot", 1)
    assert len({seed_of("lot", 1), seed_of("lot", 2), seed_of("other", 1)}) == 3


def test_digest_is_that_of_the_answers_text() -> None:
    told = digests(pl.Series(['{"a":1}', '{"a":2}', None]))

    assert told.to_list() == ["015abd7f5cc57a2d", "7e8059f495589fcd", None], "verdicts given before would be void"


# --- from what was said to one verdict ----------------------------------------------------------------------------


def said(*voices: tuple[str, str], minutes: list[int] | None = None, lot: str = "lot", key: str = "k") -> pl.DataFrame:
    """What (inspector, verdict) said of one answer, in that order unless times are given."""
    times = minutes or list(range(len(voices)))
    return pl.DataFrame(
        {
            "seq": list(range(len(voices))),
            "lot_id": [lot] * len(voices),
            "key": [key] * len(voices),
            "answer_digest": ["d"] * len(voices),
            "verdict": [verdict for _, verdict in voices],
            "inspector": [who for who, _ in voices],
            "inspected_at": [NOW + timedelta(minutes=m) for m in times],
            "recorded_at": [NOW + timedelta(days=1)] * len(voices),
        },
        schema=INSPECTIONS,
    )


@pytest.mark.parametrize(
    ("voices", "minutes", "verdict"),
    [
        pytest.param([("ana", "bad")], None, "bad", id="one person"),
        pytest.param([("ana", "bad"), ("bob", "bad")], None, "bad", id="two agree"),
        pytest.param([("ana", "bad"), ("bob", "good")], None, "unsure", id="two disagree"),
        pytest.param([("ana", "bad"), ("bob", "unsure")], None, "unsure", id="one does not know"),
        pytest.param([("ana", "bad"), ("bob", "good"), ("eva", "good")], None, "good", id="a third decides"),
        pytest.param([("ana", "bad"), ("bob", "good"), ("eva", "unsure")], None, "unsure", id="three ways"),
        pytest.param([("ana", "bad"), ("ana", "good")], None, "good", id="changed their mind"),
        pytest.param([("ana", "bad"), ("ana", "good")], [5, 1], "bad", id="recorded late"),
        pytest.param([("ana", "bad"), ("ana", "good"), ("bob", "bad")], None, "unsure", id="mind changed into a tie"),
    ],
)
def test_verdict_of(voices: list[tuple[str, str]], minutes: list[int] | None, verdict: str) -> None:
    assert settled(said(*voices, minutes=minutes))["verdict"].to_list() == [verdict]


@pytest.mark.parametrize(
    ("written", "hour"),
    [
        ("2026-01-08", 0),
        ("2026-01-08 09:00", 9),
        ("2026-01-08T09:00:00", 9),
        (" 2026-01-08T09:00:00Z ", 9),
        ("2026-01-08 09:00+02:00", 7),
        ("2026-01-08T09:00:00.000000+0000", 9),
        ("soon", None),
        ("2026-13-01", None),
        ("", None),
    ],
)
def test_time_is_read_as_people_write_it(written: str, hour: int | None) -> None:
    (moment,) = moments(pl.Series([written])).to_list()

    assert moment == (None if hour is None else datetime(2026, 1, 8, hour, tzinfo=UTC))


@pytest.mark.parametrize(
    "column",
    [
        pl.Series([datetime(2026, 1, 8, 9)]),
        pl.Series([datetime(2026, 1, 8, 9)]).dt.replace_time_zone("UTC").dt.convert_time_zone("Asia/Tokyo"),
        pl.Series([datetime(2026, 1, 8, 9)]).cast(pl.Datetime("ms")),
    ],
    ids=["without a zone", "another zone", "milliseconds"],
)
def test_time_of_a_frame_is_brought_to_utc(column: pl.Series) -> None:
    assert moments(column).to_list() == [datetime(2026, 1, 8, 9, tzinfo=UTC)]


# --- what it proves -----------------------------------------------------------------------------------------------


def lot(
    verdicts: list[str | None],
    *,
    total: int = 1_000,
    n_open: int = 0,
    valid_now: int | None = None,
    accept: Acceptance | None = None,
    name: str = "lot",
    changed: int = 0,
    multiplicity: list[int] | None = None,
) -> tuple[pl.DataFrame, ...]:
    """A lot whose sample got these verdicts in the order of drawing; the first `changed` answers are others now."""
    rule = accept or Acceptance()
    plan = rule.plan(total)
    n = 0 if plan is None else plan.n
    verdicts = (verdicts + [None] * n)[:n]
    keys = [f"{name}-{i}" for i in range(n)]
    standing = pl.DataFrame(
        {
            "lot_id": [name],
            "label": [None],
            "n_rows": [total],
            "n_unique": [total],
            "n_open": [n_open],
            "n_invalid": [0],
            "population": [total if valid_now is None else valid_now],
        },
        schema=STANDING,
    )
    planned = pl.DataFrame(
        {
            "lot_id": [name],
            "n": [1],
            "population": [total],
            "plan_kind": ["inspection"],
            "plan_n": [n],
            "plan_c": [None if plan is None else plan.c],
            "limit": [rule.limit],
            "aql": [rule.aql],
            "confidence": [rule.confidence],
            "margin": [rule.margin],
            "accept_at_aql": [None],
            "accept_at_limit": [None],
            "seed": [1],
            "drawn_at": [NOW],
        },
        schema=PLANNED,
    )
    sampled = pl.DataFrame(
        {
            "lot_id": [name] * n,
            "key": keys,
            "rank": list(range(1, n + 1)),
            "multiplicity": multiplicity or [1] * n,
            "answer_digest": ["new" if i < changed else "d" for i in range(n)],
        },
        schema=SAMPLED,
    )
    voices = pl.DataFrame({"key": keys, "verdict": verdicts}, schema={"key": pl.String, "verdict": pl.String})
    inspections = voices.drop_nulls().select(
        seq=pl.int_range(pl.len()),
        lot_id=pl.lit(name),
        key="key",
        answer_digest=pl.lit("d"),
        verdict="verdict",
        inspector=pl.lit("ana"),
        inspected_at=pl.lit(NOW),
        recorded_at=pl.lit(NOW),
    )
    return standing, planned, sampled, inspections.cast(INSPECTIONS)


def told(*args: Any, **kwargs: Any) -> dict[str, Any]:
    return lot_table(*lot(*args, **kwargs)).row(0, named=True)


def test_lot_table_has_the_columns_of_a_lot() -> None:
    assert lot_table(*lot([])).schema == LOTS


def test_read_sample_gives_interval_and_decision_of_the_plan() -> None:
    row = told(["bad"] * 5 + ["good"] * 273)

    decision = stats.decide(5, 278, population=1_000)
    interval = stats.bad_rate_interval(5, 278, population=1_000)
    assert (row["decision"], row["reason"]) == (decision.decision, decision.reason) == ("release", row["reason"])
    assert (row["low"], row["high"], row["rate"]) == (interval.low, interval.high, 5 / 278)
    assert row["upper_one_sided"] == decision.upper_one_sided
    assert (row["method"], row["n_looked"], row["x_bad"]) == ("exact_finite", 278, 5)


@pytest.mark.parametrize(
    ("n_bad", "decision"), [(0, "release"), (8, "release"), (9, "re_review"), (40, "re_review")], ids=str
)
def test_decision_turns_at_the_planned_number(n_bad: int, decision: str) -> None:
    assert told(["bad"] * n_bad + ["good"] * (278 - n_bad))["decision"] == decision


def test_nobody_looked() -> None:
    row = told([])

    assert (row["decision"], row["reason"], row["n_looked"]) == ("continue", "no_inspection", 0)
    assert (row["rate"], row["low"], row["high"], row["upper_one_sided"]) == (None, None, None, None)
    assert (row["cs_low"], row["cs_high"]) == (0.0, 1.0)


def test_part_of_the_sample_decides_nothing_and_shows_the_set_that_may_be_looked_at() -> None:
    row = told(["bad"] * 2 + ["good"] * 98)

    peeking = stats.peeking_set(2, 100, population=1_000)
    assert (row["decision"], row["reason"]) == ("continue", "partly_inspected")
    assert (row["low"], row["high"], row["upper_one_sided"], row["row_rate"]) == (None, None, None, None)
    assert (row["cs_low"], row["cs_high"]) == (peeking.low, peeking.high)
    assert row["rate"] == 0.02


def test_one_answer_short_of_the_plan_still_decides_nothing() -> None:
    assert told(["good"] * 277)["reason"] == "partly_inspected"


def test_what_is_left_out_on_the_way_counts_against_both_sides() -> None:
    left_out = told([None] * 20 + ["good"] * 80)
    unsure = stats.peeking_set(20, 100, population=1_000)

    assert left_out["cs_high"] == unsure.high
    assert left_out["cs_low"] == 0.0
    assert told(["good"] * 80)["cs_high"] < left_out["cs_high"]


def test_two_looks_hold_together_and_the_narrower_ends_are_shown() -> None:
    # 200 read in order and one far behind: the unbroken beginning says more than the reach.
    row = told(["good"] * 200 + [None] * 70 + ["good"])

    assert row["cs_high"] == stats.peeking_set(0, 200, population=1_000).high


@pytest.mark.parametrize("verdicts", [["unsure"] * 278, ["unsure"]], ids=["all read", "one read"])
def test_there_is_no_rate_where_nobody_said_bad_or_good(verdicts: list[str]) -> None:
    row = told(verdicts)

    assert (row["rate"], row["row_rate"]) == (None, None)
    assert (row["cs_low"], row["cs_high"], row["n_unsure"]) == (0.0, 1.0, len(verdicts))
    assert row["decision"] == "continue"


def test_unsure_is_bad_for_the_upper_bound_and_good_for_the_lower() -> None:
    row = told(["bad"] * 3 + ["unsure"] * 4 + ["good"] * 271)

    assert row["low"] == stats.bad_rate_interval(3, 278, population=1_000).low
    assert row["high"] == stats.bad_rate_interval(7, 278, population=1_000).high
    assert row["upper_one_sided"] == stats.upper_bound(7, 278, population=1_000).high
    assert (row["n_unsure"], row["x_bad"], row["rate"]) == (4, 3, 3 / 278)
    assert told(["bad"] * 5 + ["unsure"] * 4 + ["good"] * 269)["decision"] == "continue"


def test_changed_answer_voids_its_verdict_and_says_so() -> None:
    row = told(["good"] * 278, changed=3)

    assert (row["n_looked"], row["n_void"], row["decision"]) == (275, 3, "continue")
    assert row["reason"] == "answers_changed"


@pytest.mark.parametrize(
    ("fields", "why"), [({"n_open": 1}, "a request is open"), ({"valid_now": 1_001}, "the lot was repaired")], ids=str
)
def test_open_lot_decides_nothing_whatever_was_read(fields: dict[str, int], why: str) -> None:
    row = told(["good"] * 278, **fields)

    assert (row["decision"], row["reason"]) == ("continue", "lot_open"), why
    assert (row["low"], row["high"]) == (None, None)
    assert row["cs_high"] == stats.peeking_set(0, 278, population=1_000).high


def test_empty_lot_says_so() -> None:
    row = told([], total=0)

    assert (row["decision"], row["reason"], row["plan_n"], row["cs_high"]) == ("continue", "empty_lot", 0, 1.0)


@pytest.mark.parametrize(("verdict", "decision", "rate"), [("good", "release", 0.0), ("bad", "re_review", 1.0)])
def test_lot_of_one_answer_is_decided_by_arithmetic(verdict: str, decision: str, rate: float) -> None:
    row = told([verdict], total=1)

    assert (row["decision"], row["low"], row["high"]) == (decision, rate, rate)


def test_census_has_no_width() -> None:
    row = told(["bad"] + ["good"] * 19, total=20)

    assert (row["low"], row["high"], row["rate"]) == (0.05, 0.05, 0.05)


def test_row_rate_weighs_answers_by_the_rows_that_share_them() -> None:
    shares = [10, *([1] * 277)]
    row = told(["bad"] + ["good"] * 277, multiplicity=shares)

    rates = stats.dedup_rates(1_000, [(10, True)] + [(1, False)] * 277)
    assert row["row_rate"] == pytest.approx(rates.row_rate)
    assert row["rate"] == rates.unique_rate


def test_lots_with_rules_of_their_own_do_not_touch_each_other() -> None:
    strict = Acceptance(limit=0.02, aql=0.005, confidence=0.99)
    parts = [
        lot(["bad"] * 2 + ["good"] * 900, name="a", accept=strict),
        lot(["good"] * 278, name="b"),
        lot(["bad"] * 60 + ["good"] * 300, name="c", total=5_000),
        lot([], name="d", total=30),
    ]
    together = lot_table(*(pl.concat(frames) for frames in zip(*parts, strict=True)))

    assert together["lot_id"].to_list() == ["a", "b", "c", "d"]
    for one, row in zip(parts, together.iter_rows(named=True), strict=True):
        assert lot_table(*one).row(0, named=True) == row


def test_rows_show_the_interval_of_a_read_sample() -> None:
    shown = row_columns(lot_table(*lot(["bad"] * 5 + ["good"] * 273))).row(0, named=True)

    assert shown["llm_defect_low"] == 0.008
    assert shown["llm_defect_high"] == 0.038
    assert shown["llm_defect_upper"] == stats.upper_bound(5, 278, population=1_000).high
    assert (shown["llm_decision"], shown["llm_inspected"]) == ("release", 278)


def test_rows_show_the_peeking_set_until_then_and_no_bound_that_decides() -> None:
    shown = row_columns(lot_table(*lot(["good"] * 100))).row(0, named=True)

    assert shown["llm_defect_high"] == stats.peeking_set(0, 100, population=1_000).high
    assert shown["llm_defect_upper"] is None
    assert shown["llm_reason"] == "partly_inspected"


def test_rows_of_a_lot_that_nobody_looked_at_show_no_rate() -> None:
    shown = row_columns(lot_table(*lot([]))).row(0, named=True)

    assert {shown[f"llm_defect_{name}"] for name in ("rate", "low", "high", "upper")} == {None}


def test_leaving_the_bad_ones_for_later_hides_nothing() -> None:
    rng = random.Random(11)
    total, bad, repeats = 200, 20, 150
    keys = population(total)["key"].to_list()
    parts = []
    for seed in range(repeats):
        is_bad = set(rng.sample(keys, bad))
        drawn = stats.draw(keys, 132, seed=seed)
        parts.append(lot([None if key in is_bad else "good" for key in drawn], total=total, name=f"lot{seed}"))

    told = lot_table(*(pl.concat(frames) for frames in zip(*parts, strict=True)))

    missed = told.filter(~pl.lit(bad / total).is_between("cs_low", "cs_high")).height
    assert missed <= 15  # 150 x 5 % and three standard deviations
