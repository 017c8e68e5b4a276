"""Kills of a run at a scripted provider: wherever they come, each request is charged once and the frame is the same."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from journey.harness import Desk, kill_points, may_be_missed
from journey.worker import Stop
from lotwise.testing import ScriptedExecutor

TEXTS = [f"row {i}" for i in range(7)] + ["row 0", None, 'ends\u2028in "odd" ways\n']
FRAME = pl.DataFrame({"text": TEXTS})
N_REQUESTS = 8

# Every step of a shard's way, in its order. Each process is killed at its first arrival there.
STEPS = (
    "before commit: begin run",
    "before commit: intend",
    "after commit: intend",
    "before prepare",
    "after commit: intended to creating",
    "after create",
    "after commit: creating to submitted",
    "during fetch",
    "before commit: record",
    "after commit: record",
    "after commit: settle",
    "before commit: finish",
)


def desk(folder: Path) -> Desk:
    """Two shards, at a provider whose side is a folder."""
    return Desk(
        folder,
        FRAME,
        prompt="Say it: {text}",
        arguments={"poll_s": 0.05, "progress": False},
        options={
            "executor_options": {"folder": str(folder / "provider"), "duration_s": 0.01},
            "shard_rows": 5,
            "create_timeout_s": 0.3,
            "absence_margin_s": 0.3,
            "lease_s": 2,
        },
    )


def finish_and_judge(desk: Desk, undisturbed: pl.DataFrame) -> None:
    rows = desk.call().rows
    shown = [name for name in undisturbed.columns if name != "llm_lot"]
    assert_frame_equal(rows.select(shown), undisturbed.select(shown))
    charges = Counter(ScriptedExecutor(desk.folder / "provider").bill()["key"])
    assert len(charges) == N_REQUESTS
    assert set(charges.values()) == {1}
    desk.assert_clean()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> pl.DataFrame:
    rows = desk(tmp_path_factory.mktemp("undisturbed")).call().rows
    assert rows["answer"].to_list() == [None if text is None else f"Say it: {text}" for text in TEXTS]
    return rows


def test_kills_at_every_step_one_after_the_other_cost_nothing(tmp_path: Path, undisturbed: pl.DataFrame) -> None:
    here = desk(tmp_path)
    for step in STEPS:
        ended = here.call(Stop(at=step))
        assert ended.signal == signal.SIGKILL, (step, ended.error, ended.message, ended.boundaries)
    finish_and_judge(here, undisturbed)


@pytest.mark.soak
def test_a_kill_at_every_boundary_costs_nothing_and_changes_nothing(tmp_path: Path, undisturbed: pl.DataFrame) -> None:
    stops = kill_points(desk(tmp_path / "whole").call().boundaries)
    assert set(STEPS) <= {stop.at for stop in stops}
    for n, stop in enumerate(stops):
        here = desk(tmp_path / f"killed-{n}")
        ended = here.call(stop)
        assert ended.signal == signal.SIGKILL or may_be_missed(stop), stop
        finish_and_judge(here, undisturbed)


@pytest.mark.parametrize(("n", "kills"), [(1, 3), pytest.param(100, 2, marks=pytest.mark.soak)])
def test_kills_at_random_moments_cost_nothing_and_change_nothing(
    tmp_path: Path, undisturbed: pl.DataFrame, n: int, kills: int
) -> None:
    chance = random.Random(n)
    began = time.monotonic()
    desk(tmp_path / "timed").call()
    usual = time.monotonic() - began
    for i in range(n):
        here = desk(tmp_path / f"killed-{i}")
        for _ in range(kills):
            here.start().kill_after(chance.uniform(0.05, 0.9) * usual)
        finish_and_judge(here, undisturbed)
