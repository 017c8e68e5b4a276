"""What `deadline=` takes, and when the work turns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lotwise import deadline
from lotwise.call import prepare
from lotwise.errors import BadArgument
from lotwise.job import Options
from lotwise.run import at
from runs import Bench

FRAME = pl.DataFrame({"text": ["a"]})
NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        pytest.param("6h", NOW + timedelta(hours=6), id="hours"),
        pytest.param("90 m", NOW + timedelta(minutes=90), id="minutes"),
        pytest.param("1.5d", NOW + timedelta(days=1.5), id="days"),
        pytest.param("2026-12-01T08:00+01:00", NOW + timedelta(hours=7), id="moment as text"),
        pytest.param(datetime(2026, 12, 1, 7, tzinfo=UTC), NOW + timedelta(hours=7), id="moment"),
        pytest.param(timedelta(hours=2), NOW + timedelta(hours=2), id="span"),
    ],
)
def test_deadline_is_a_moment_or_a_span_from_now(said: Any, meant: datetime) -> None:
    call = prepare(FRAME, "{text}", model="embedded", deadline=said)

    assert call.deadline is not None
    assert at(call.deadline, NOW) == meant


@pytest.mark.parametrize(
    ("said", "word"),
    [
        pytest.param("soon", "6h", id="no time"),
        pytest.param("2026-12-01T08:00", "time zone", id="no zone in text"),
        pytest.param(datetime(2026, 12, 1), "time zone", id="no zone"),
        pytest.param(6, "timedelta", id="a number"),
    ],
)
def test_deadline_that_says_no_moment_is_refused(said: Any, word: str) -> None:
    with pytest.raises(BadArgument, match=word):
        prepare(FRAME, "{text}", model="embedded", deadline=said)


def test_work_turns_early_enough_to_cancel_and_to_ask_each_open_request(tmp_path: Path) -> None:
    job = Bench(folder=tmp_path, in_memory=True).begin(["a"])

    assert deadline.turns_at(job, NOW, 6_000) == NOW - timedelta(seconds=deadline.CANCEL_S + 600)
    assert deadline.last_call(job, NOW, 6_000) == NOW - timedelta(seconds=600)


def test_reserve_that_was_said_is_kept(tmp_path: Path) -> None:
    job = Bench(folder=tmp_path, in_memory=True).begin(["a"], options=Options(deadline_reserve_s=100.0))

    assert deadline.turns_at(job, NOW, 6_000) == NOW - timedelta(seconds=100)
    assert deadline.last_call(job, NOW, 6_000) == NOW - timedelta(seconds=50)
