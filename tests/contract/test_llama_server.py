"""A real server of chat completions: llama.cpp's own, started on loopback, answers through `online`.

The model's words are never asserted, only what holds whatever it writes.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

import lotwise
from journey.harness import reviews
from lotwise.models import fetch_model

SERVE = """
import sys, xllamacpp
from lotwise.executors import embedded
params = xllamacpp.CommonParams()
for name, value in {**embedded.ENGINE, "n_parallel": 2, "n_ctx": 4096}.items():
    setattr(params, name, value)
params.model.path = sys.argv[1]
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.hostnames, params.port = ["127.0.0.1"], 0
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
"""
MOOD = {
    "type": "object",
    "properties": {"mood": {"enum": ["good", "bad"]}},
    "required": ["mood"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    command = [sys.executable, "-c", SERVE, str(fetch_model())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().decode().strip()
        finally:
            server.kill()


def ask(address: str, frame: pl.DataFrame, ledger: Path) -> pl.DataFrame:
    return lotwise.map(
        frame,
        "Is the mood of this review good or bad?\n\n{text}",
        MOOD,
        model="online:smollm2",
        params={"max_tokens": 24, "temperature": 0},
        data="local",
        ledger=ledger,
        progress=False,
        options=lotwise.Options(executor_options={"base_url": f"{address}/v1", "max_concurrency": 4}),
    )


def check(address: str, n: int, tmp_path: Path) -> None:
    frame = reviews(n).with_columns(pl.col("text").str.slice(0, 600))
    out = ask(address, frame, tmp_path / "ledger")
    assert out["text"].to_list() == frame["text"].to_list()
    assert out["llm_state"].unique().to_list() == ["succeeded"]
    assert out["mood"].is_in(["good", "bad"]).all()
    ledger = lotwise.open_ledger(tmp_path / "ledger")
    tokens = ledger.sql("SELECT input_tokens, cache_read_tokens, output_tokens, model_revision FROM result")
    assert tokens.height == frame["text"].n_unique()
    assert tokens.select(pl.all().null_count()).sum_horizontal().item() == 0
    assert (tokens["output_tokens"] > 0).all()
    again = ask(address, frame, tmp_path / "ledger")
    assert again.equals(out)
    assert ledger.sql("SELECT count(*) AS n FROM result")["n"].item() == tokens.height


def test_real_server_answers_real_rows_each_on_its_own_row(address: str, tmp_path: Path) -> None:
    check(address, 8, tmp_path)


@pytest.mark.soak
def test_real_server_answers_200_rows(address: str, tmp_path: Path) -> None:
    check(address, 200, tmp_path)


def test_prompt_that_is_too_long_says_so_and_the_others_finish(address: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"text": ["fine", "word " * 6_000, "poor"]})
    out = ask(address, frame, tmp_path / "ledger")
    assert out["llm_state"].to_list() == ["succeeded", "dead_lettered", "succeeded"]
    assert out["llm_error"][1].startswith("bad_request")
