"""vLLM's own server on loopback, asked through `online`: a real server that speaks chat completions."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Literal

import polars as pl
import pytest
from pydantic import BaseModel

import lotwise
from lotwise.executors import vllm_engine

PATIENCE_S = 600.0


class Mood(BaseModel):
    """What is asked of a review."""

    mood: Literal["positive", "negative"]


@pytest.fixture
def server(model: Path, tmp_path: Path) -> Iterator[str]:
    """Start the server and yield its address; it is ended, and all its processes."""
    vllm_engine.shut_down()  # two engines at once are too many for a small machine
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["--model", str(model), "--served-model-name", "small", "--host", "127.0.0.1", "--port", str(port)]
    engine = ["--enforce-eager", "--max-model-len", "1024", "--block-size", "32", "--enable-prompt-tokens-details"]
    quiet = {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    # Not `vllm serve`: that command is broken in the build for CPUs, which looks for the metadata of another package.
    command = [sys.executable, "-P", "-m", "vllm.entrypoints.openai.api_server", *arguments, *engine]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env={**os.environ, **quiet}, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_until_up(f"http://127.0.0.1:{port}/health", process, tmp_path / "server.log")
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(20)


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    handle = os.pidfd_open(process.pid)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            with suppress(OSError), urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
            ended = select.select([handle], [], [], 0.5)[0]
            assert not ended, f"the server ended:\n{log.read_text(errors='replace')[-4000:]}"
        raise AssertionError("the server did not come up")
    finally:
        os.close(handle)


def test_vllms_server_answers_two_hundred_rows_through_online(
    server: str, reviews: pl.DataFrame, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"

    out = lotwise.map(
        reviews,
        "Is this review positive or negative?\n\n{text}",
        Mood,
        model="online:small",
        params={"max_tokens": 48, "temperature": 0},
        data="local",
        ledger=ledger,
        options=lotwise.Options(executor_options={"base_url": server}),
        progress=False,
    )

    assert out["text"].equals(reviews["text"])
    assert set(out["llm_state"].cast(pl.String)) == {"succeeded"}
    assert set(out["mood"]) <= {"positive", "negative"}
    results = lotwise.open_ledger(ledger).sql("SELECT output_tokens, cache_read_tokens FROM result")
    assert results.height == 200
    assert (results["output_tokens"] > 0).all()
    assert results["cache_read_tokens"].sum() > 0
