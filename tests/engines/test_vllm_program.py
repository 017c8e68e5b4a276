"""The child's own program over a stand-in for the package `vllm`: what it makes of a row, and of ends.

Against the real vLLM the same is tested by `make test-vllm`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from engines.scripted import end_engines, wait_until_gone
from lotwise.executors import vllm_engine
from lotwise.executors.vllm import PROGRAM, VllmExecutor
from lotwise.request import REQUESTS, Shard, Spec

FAKE = Path(__file__).with_name("fake_vllm")


@pytest.fixture
def executor(tmp_path: Path) -> Iterator[VllmExecutor]:
    (tmp_path / "config.json").write_text("{}")
    options = {"python": sys.executable, "env": {"PYTHONPATH": str(FAKE)}}
    yield VllmExecutor(model=str(tmp_path), options=options)
    end_engines()


def ask(executor: VllmExecutor, contents: list[str], **changes: Any) -> pl.DataFrame:
    ids = [f"{'5' * 16}-{number:040x}" for number in range(len(contents))]
    rows = {"key": ids, "custom_id": ids, "content": contents, "variant": [None] * len(contents)}
    shard = Shard(id="5" * 16, run_id="run", n_requests=len(contents), created_at=datetime.now(UTC))
    spec = Spec(provider="vllm", model="m", model_digest="ab", **changes)
    lines = executor.answer(shard, spec, pl.DataFrame(rows, schema=REQUESTS))
    return executor.read([line for some in lines for line in some]).sort("custom_id")


def engine_pid() -> int:
    (engine,) = [engine for engine in vllm_engine.engines() if engine.pid is not None]
    assert engine.pid is not None
    return engine.pid


def group_of(leader: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def test_a_row_is_asked_after_what_all_share_and_its_tokens_are_counted(executor: VllmExecutor) -> None:
    read = ask(executor, ["How?", "Why?"], system="Be brief.", examples=(("What?", "That."),))

    shared = "system: Be brief. | user: What? | assistant: That. | user: "
    assert read["answer"].to_list() == [f"0.6 {shared}How?", f"0.6 {shared}Why?"]  # the model's own temperature
    assert read.select("code", "input_tokens", "cache_read_tokens", "output_tokens").row(0) == ("ok", 3, 1, 2)


def test_what_is_given_goes_before_the_models_own_defaults(executor: VllmExecutor) -> None:
    assert ask(executor, ["a"], params={"temperature": 0})["answer"].to_list() == ["0 user: a"]


def test_what_vllm_refuses_is_a_word_and_quotes_no_row(executor: VllmExecutor) -> None:
    read = ask(executor, ["good", "secret " * 50])

    assert read["code"].to_list() == ["ok", "bad_request"]
    assert read["detail"][1] == "context_length_exceeded"


def test_an_engine_process_that_is_killed_is_noticed_though_vllm_waits_for_ever(executor: VllmExecutor) -> None:
    read = ask(executor, ["good", "kill the engine", "better"])

    assert read["code"].to_list() == ["ok", "bad_request", "ok"]
    assert read["detail"][1] == "engine_killed"


@pytest.mark.parametrize("how", ["shut down", "killed"])
def test_no_process_of_vllm_outlives_the_engine(executor: VllmExecutor, how: str) -> None:
    ask(executor, ["a"])
    leader = engine_pid()
    group = group_of(leader)
    assert len(group) > 1

    if how == "killed":
        os.kill(leader, signal.SIGKILL)
        assert ask(executor, ["b"])["code"].to_list() == ["ok"]  # finds it dead, and clears up
    else:
        vllm_engine.shut_down()

    wait_until_gone(group)


def test_the_program_says_what_is_installed() -> None:
    done = subprocess.run([sys.executable, "-P", PROGRAM, "--about"], capture_output=True, check=True)
    assert isinstance(json.loads(done.stdout), dict)
