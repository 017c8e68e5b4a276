"""Cutting requests into shards: every request once, no limit passed, every shard a fair sample."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lotwise.plan import Pack, mix, pack
from lotwise.request import Limits

WIDE = Limits(max_requests=1_000_000)


def _requests(sizes: list[int], parts: list[str] | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "key": [f"{i * 2654435761 % 2**32:08x}" for i in range(len(sizes))],
            "part": parts or ["p"] * len(sizes),
            "bytes": sizes,
        },
        schema={"key": pl.String, "part": pl.String, "bytes": pl.Int64},
    )


def _keys(cut: Pack) -> list[str]:
    return [key for shard in cut.shards for key in shard["key"]]


COUNTS = {
    "none": (0, []),
    "one": (1, [1]),
    "full": (10, [10]),
    "one too many makes two halves": (11, [6, 5]),
    "two full": (20, [10, 10]),
    "one more than two full": (21, [7, 7, 7]),
}


@pytest.mark.parametrize(("n", "heights"), COUNTS.values(), ids=COUNTS.keys())
def test_shards_are_as_few_and_as_equal_as_the_count_allows(n: int, heights: list[int]) -> None:
    cut = pack(_requests([1] * n), WIDE, shard_rows=10)

    assert [shard.height for shard in cut.shards] == heights


EDGES = {
    "exactly full by bytes": (30, [3]),
    "a byte too few": (29, [2, 1]),
    "one a shard": (10, [1, 1, 1]),
}


@pytest.mark.parametrize(("most", "heights"), EDGES.values(), ids=EDGES.keys())
def test_bytes_cut_where_the_next_request_does_not_fit(most: int, heights: list[int]) -> None:
    cut = pack(_requests([10, 10, 10]), Limits(max_requests=100, max_bytes=most))

    assert [shard.height for shard in cut.shards] == heights


OVERSIZE = {
    "over the shard's bytes": (Limits(max_requests=9, max_bytes=50), None),
    "over the user's bytes": (WIDE, 50),
    "over the row's bytes": (Limits(max_requests=9, max_row_bytes=50), None),
    "over the row's bytes, under the shard's": (Limits(max_requests=9, max_bytes=500, max_row_bytes=50), None),
}


@pytest.mark.parametrize(("limits", "shard_bytes"), OVERSIZE.values(), ids=OVERSIZE.keys())
def test_request_that_fits_no_shard_is_set_aside_and_harms_no_other(limits: Limits, shard_bytes: int | None) -> None:
    requests = _requests([50, 51, 1])

    cut = pack(requests, limits, shard_bytes=shard_bytes)

    assert cut.oversize["key"].to_list() == [requests["key"][1]]
    assert sorted(_keys(cut)) == sorted([requests["key"][0], requests["key"][2]])


def test_the_smaller_of_two_limits_holds() -> None:
    cut = pack(_requests([1] * 10), Limits(max_requests=3), shard_rows=100)

    assert max(shard.height for shard in cut.shards) <= 3


@settings(max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 60), max_size=60),
    rows=st.integers(1, 20),
    most=st.integers(1, 200),
    n_parts=st.integers(1, 3),
)
def test_every_request_is_in_one_shard_or_set_aside(sizes: list[int], rows: int, most: int, n_parts: int) -> None:
    requests = _requests(sizes, [f"p{i % n_parts}" for i in range(len(sizes))])

    cut = pack(requests, Limits(max_requests=rows, max_bytes=most))

    assert sorted([*_keys(cut), *cut.oversize["key"]]) == sorted(requests["key"])
    assert all(shard["bytes"].sum() <= most and 0 < shard.height <= rows for shard in cut.shards)
    assert (cut.oversize["bytes"] > most).all()


@settings(max_examples=20)
@given(st.permutations(list(range(40))))
def test_cut_does_not_depend_on_the_order_of_the_requests(order: list[int]) -> None:
    requests = _requests([i % 7 + 1 for i in range(40)])

    assert _keys(pack(requests[order], WIDE, shard_rows=9)) == _keys(pack(requests, WIDE, shard_rows=9))


@settings(max_examples=20)
@given(st.lists(st.integers(1, 10_000), min_size=160, max_size=400, unique=True))
def test_every_stretch_holds_short_and_long_requests_in_equal_measure(sizes: list[int]) -> None:
    mixed = mix(_requests(sizes))
    median = sorted(sizes)[len(sizes) // 2]

    for start in range(0, mixed.height - 80, 40):
        long = (mixed["bytes"].slice(start, 80) >= median).sum()
        assert 30 <= long <= 50


def test_requests_of_one_part_stay_together() -> None:
    mixed = mix(_requests([5, 1, 9, 2, 7, 3], ["b", "a", "b", "a", "b", "a"]))

    assert mixed["part"].to_list() == ["a", "a", "a", "b", "b", "b"]


def test_requests_of_equal_length_are_shuffled() -> None:
    requests = _requests([8] * 200)
    before = requests.sort("key")["key"].to_list()

    assert mix(requests)["key"].to_list() != before
