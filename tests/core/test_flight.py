"""Rows on their way through an engine that ends: the ones to blame are found, and all others get their answer."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise.executors.flight import Flight


def fly(
    n: int, *, deadly: Collection[int] = (), window: int = 64, first_ends: int = 0
) -> tuple[list[str], list[str], int]:
    """Play an engine that ends when a deadly row is in it, and `first_ends` times for no reason at all."""
    flight = Flight(f"{i}" for i in range(n))
    poison = {f"{i}" for i in deadly}
    answered: list[str] = []
    given_up: list[str] = []
    ends = 0
    while not flight.over:
        flight.take(window)
        if ends < first_ends or poison & set(flight.out):
            ends += 1
            given_up += flight.ended()
        else:
            one = flight.out[0]
            assert flight.finished(one)
            answered.append(one)
    return answered, given_up, ends


def test_a_good_engine_answers_in_order() -> None:
    assert fly(100) == ([f"{i}" for i in range(100)], [], 0)


def test_no_more_than_the_window_is_in_flight() -> None:
    flight = Flight("abcdef")
    assert list(flight.take(2)) == ["a", "b"]
    assert list(flight.take(2)) == []
    flight.finished("b")
    assert list(flight.take(2)) == ["c"]


def test_the_row_that_ends_the_engine_is_given_up_after_three_ends() -> None:
    answered, given_up, ends = fly(1_000, deadly=[300], window=512)

    assert given_up == ["300"]
    assert sorted(map(int, answered)) == [i for i in range(1_000) if i != 300]
    assert ends == 3


def test_an_end_without_a_cause_gives_no_row_up() -> None:
    answered, given_up, ends = fly(50, first_ends=1)
    assert (len(answered), given_up, ends) == (50, [], 1)


def test_a_lone_row_is_asked_twice_before_it_is_given_up() -> None:
    assert fly(1, deadly=[0]) == ([], ["0"], 2)


def test_an_answer_of_a_row_that_is_not_in_flight_is_not_taken() -> None:
    flight = Flight("a")
    assert not flight.finished("a")
    flight.take(1)
    assert flight.finished("a")
    assert not flight.finished("a")


def test_new_rows_wait_until_the_suspects_are_through() -> None:
    flight = Flight(f"{i}" for i in range(40))
    flight.take(25)
    flight.ended()

    group = flight.take(25)
    assert len(group) == 5
    assert list(flight.take(25)) == []
    for one in group:
        flight.finished(one)
    assert set(flight.take(25)).isdisjoint(group)


@pytest.mark.parametrize("window", [1, 3, 16])
@given(n=st.integers(0, 40), deadly=st.sets(st.integers(0, 39), max_size=6))
def test_each_row_ends_and_only_deadly_ones_are_given_up(window: int, n: int, deadly: set[int]) -> None:
    answered, given_up, _ = fly(n, deadly=deadly, window=window)

    assert {int(i) for i in given_up} == {i for i in deadly if i < n}
    assert sorted(int(i) for i in [*answered, *given_up]) == list(range(n))
