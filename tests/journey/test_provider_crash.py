"""Kills of a run at OpenAI and Anthropic, through their real SDKs: after the rerun each request was charged once."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from emulator import Emulator, HttpFault
from journey.clouds import CREATE, DOWNLOAD, PROVIDERS, Cloud
from journey.harness import kill_points, may_be_missed, reviews, until
from journey.worker import Stop

TEXTS = [f"row {i} of \u2028 some" for i in range(9)]
SENTIMENT = {
    "type": "object",
    "properties": {"sentiment": {"enum": ["positive", "negative"]}, "reason": {"type": "string"}},
    "required": ["sentiment", "reason"],
    "additionalProperties": False,
}

# Every step of a shard's way, in its order. Each process is killed at its first arrival there.
STEPS = (
    "before commit: intend",
    "after commit: intend",
    "before prepare",
    "after prepare",
    "after commit: intended to creating",
    "after create",
    "after commit: creating to submitted",
    "during download",
    "before commit: record",
    "after commit: record",
    "before commit: settle",
    "after commit: settle",
    "before commit: finish",
)


def cloud(folder: Path, emulator: Emulator, provider: str) -> Cloud:
    """Two shards of texts that come back as they are, so that the whole frame is known beforehand."""
    return Cloud(
        folder, pl.DataFrame({"text": TEXTS}), emulator, provider, prompt="Say it: {text}", options={"shard_rows": 5}
    )


def finish_and_judge(here: Cloud) -> None:
    rows = here.call().rows
    assert rows["answer"].to_list() == [f"Say it: {text}" for text in TEXTS]
    assert set(rows["llm_state"]) == {"succeeded"}
    assert set(rows["llm_attempts"]) == {1}
    here.assert_each_charged_once(len(TEXTS))
    here.assert_clean()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_two_thousand_reviews_give_the_same_frame_in_any_order(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    frame = reviews()
    frames = []
    for shuffle in (True, False):
        emulator.set_faults(shuffle=shuffle)
        here = Cloud(
            tmp_path / f"shuffle-{shuffle}",
            frame,
            emulator,
            provider,
            prompt="Judge this review.\n\n{text}",
            schema=SENTIMENT,
            options={"shard_rows": 500, "lease_s": 30.0},
        )
        rows = here.call().rows
        assert here.shards() == {"collected": 4}
        here.assert_each_charged_once(frame["text"].n_unique())
        here.assert_rows_are_the_ledgers(rows)
        frames.append(rows)
    assert set(frames[0]["llm_state"]) == {"succeeded"}
    assert frames[0]["text"].equals(frame["text"])
    assert_frame_equal(*frames)
    here.assert_clean()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_kill_at_every_step_one_after_the_other_costs_nothing(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    here = cloud(tmp_path, emulator, provider)
    for step in STEPS:
        ended = here.call(Stop(at=step))
        assert ended.signal == signal.SIGKILL, (step, ended.error, ended.message, ended.boundaries)
    finish_and_judge(here)


@pytest.mark.soak
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_kill_at_any_boundary_costs_nothing(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    stops = kill_points(cloud(tmp_path / "whole", emulator, provider).call().boundaries)
    assert set(STEPS) <= {stop.at for stop in stops}
    for n, stop in enumerate(stops):
        here = cloud(tmp_path / f"killed-{n}", emulator, provider)
        ended = here.call(stop)
        assert ended.signal == signal.SIGKILL or may_be_missed(stop), stop
        finish_and_judge(here)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("n", "kills"), [(2, 5), pytest.param(100, 2, marks=pytest.mark.soak)])
def test_kills_at_random_moments_cost_nothing(
    tmp_path: Path, emulator: Emulator, provider: str, n: int, kills: int
) -> None:
    chance = random.Random(n)
    emulator.set_faults(batch_s=0.5)
    finish_and_judge(cloud(tmp_path / "first", emulator, provider))  # the emulator's own first time is not the usual
    began = time.monotonic()
    cloud(tmp_path / "timed", emulator, provider).call()
    usual = time.monotonic() - began
    for i in range(n):
        here = cloud(tmp_path / f"killed-{i}", emulator, provider)
        for _ in range(kills):
            here.start().kill_after(chance.uniform(0.05, 0.95) * usual)
        finish_and_judge(here)


def deaths(provider: str) -> tuple[HttpFault, ...]:
    """Return the moments at which a provider dies, each once, in the order in which they come."""
    uploads = "openai.files.create" if provider == "openai" else "anthropic.batches.list"
    return (
        HttpFault(endpoint=uploads, action="kill_before", skip=0 if provider == "openai" else 1, times=1),
        HttpFault(endpoint=CREATE, action="kill_before", times=1),
        HttpFault(endpoint=CREATE, action="kill", skip=1, times=1),  # it was accepted, and nobody was told
        HttpFault(endpoint=DOWNLOAD[provider], action="kill", after_bytes=700, times=1),
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_provider_that_dies_at_every_step_loses_and_charges_nothing(tmp_path: Path, provider: str) -> None:
    with Emulator(tmp_path / "provider", http=deaths(provider)) as emulator:
        here = cloud(tmp_path / "desk", emulator, provider)
        work = here.start()
        for _ in deaths(provider):
            until(lambda: not emulator.alive, "the provider to die")
            emulator.restart()
        ended = work.wait()
        assert ended.error is None, ended.message
        finish_and_judge(here)
