"""The order for throughput: beginnings together, the slowest first."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise.executors.order import SHARED_CHARS, for_throughput

LIMIT = 100


def frame(contents: list[str], variants: list[str | None] | None = None) -> pl.DataFrame:
    given = {"content": contents, "variant": variants or [None] * len(contents)}
    return pl.DataFrame(given, schema={"content": pl.String, "variant": pl.String})


def ordered(contents: list[str], variants: list[str | None] | None = None) -> list[str]:
    return for_throughput(frame(contents, variants), LIMIT)["content"].to_list()


def test_rows_that_share_nothing_go_longest_first() -> None:
    assert ordered(["bb", "a", "dddd", "ccc"]) == ["dddd", "ccc", "bb", "a"]


def test_rows_that_begin_alike_stay_together() -> None:
    beginnings = [letter * (SHARED_CHARS + 10) for letter in "xyz"]
    rows = [beginning + str(n) for n in range(4) for beginning in beginnings]

    found = ordered([*rows, "short"])

    assert [row[0] for row in found] == [*"xxxxyyyyzzzz", "s"]


def test_a_group_goes_by_its_longest_row() -> None:
    group = "g" * SHARED_CHARS
    single = "s" * (SHARED_CHARS + 50)
    assert ordered([group + "1", single, group + "2" * 90]) == [group + "1", group + "2" * 90, single]


def test_what_all_rows_begin_with_makes_no_group() -> None:
    template = "t" * (3 * SHARED_CHARS)
    assert ordered([template + "a", template + "bbb", template + "cc"]) == [
        template + "bbb",
        template + "cc",
        template + "a",
    ]


def test_rows_that_were_allowed_more_go_first() -> None:
    assert ordered(["aaa", "b"], [None, '{"max_tokens":200}']) == ["b", "aaa"]


def test_the_limit_counts_characters_and_not_bytes() -> None:
    beginning = "é" * SHARED_CHARS
    assert ordered([beginning + "1", "x" * (3 * SHARED_CHARS), beginning + "2"])[1:] == [
        beginning + "1",
        beginning + "2",
    ]


@pytest.mark.parametrize("contents", [[], ["only"], ["same", "same"]], ids=["none", "one", "twice the same"])
def test_few_rows_are_no_special_case(contents: list[str]) -> None:
    assert ordered(contents) == contents


@given(st.lists(st.text(max_size=12), max_size=30))
def test_no_row_is_lost_or_doubled(contents: list[str]) -> None:
    assert sorted(ordered(contents)) == sorted(contents)
