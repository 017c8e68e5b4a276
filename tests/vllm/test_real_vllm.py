"""The `vllm` executor against the real vLLM: every row accounted for, whatever is killed in the middle.

The model's words are never asserted, only what holds whatever it writes: the schema, the counters, who asked whom.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pytest
from planted_child import POISON
from pydantic import BaseModel
from warm_engine import ENGINE, options

import lotwise
from lotwise.errors import EngineStopped
from lotwise.executors import vllm_engine

PROMPT = "Is this review positive or negative?\n\n{text}"
PATIENCE_S = 300.0


class Mood(BaseModel):
    """What is asked of a review."""

    mood: Literal["positive", "negative"]


ARGUMENTS: dict[str, Any] = {"params": {"max_tokens": 48, "temperature": 0}, "progress": False}


def ask(frame: pl.DataFrame, model: Path, ledger: Path, **more: Any) -> pl.DataFrame:
    arguments = ARGUMENTS | {"options": options()} | more
    return lotwise.map(frame, PROMPT, Mood, model=f"vllm:{model}", ledger=ledger, **arguments)


def sql(ledger: Path, query: str) -> Any:
    return lotwise.open_ledger(ledger).sql(query).item()


def states(out: pl.DataFrame) -> dict[str, int]:
    return dict(out["llm_state"].cast(pl.String).value_counts().iter_rows())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline, pace = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pace.wait(0.05)  # looking takes the ledger's lock, which those that are looked at need


def recorded(ledger: Path, n: int) -> bool:
    return (ledger / "ledger.duckdb").exists() and sql(ledger, "SELECT count(*) FROM result") >= n


def group_of(leader: int) -> list[int]:
    """Return the processes of a group that still run."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[2]) == leader and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


def wait_until_gone(pids: list[int]) -> None:
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], PATIENCE_S)[0], f"process {pid} is still there"
        finally:
            os.close(handle)


def test_two_hundred_reviews_are_answered_by_the_schema_each_on_its_own_row(
    reviews: pl.DataFrame, model: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    out = ask(reviews, model, tmp_path)

    assert out["text"].equals(reviews["text"])
    assert states(out) == {"succeeded": 200}
    assert set(out["mood"]) <= {"positive", "negative"}
    assert out["llm_attempts"].to_list() == [1] * 200
    results = lotwise.open_ledger(tmp_path).sql(
        "SELECT key, input_tokens, output_tokens, cache_read_tokens, model_revision FROM result"
    )
    assert (results["output_tokens"] > 0).all()
    assert results["cache_read_tokens"].sum() > 0  # the prompt's beginning is the same in all
    assert results["model_revision"].n_unique() == 1
    # What the engine read is what the model's own chat template makes of each row, so each answer is its own row's.
    tokenizer = AutoTokenizer.from_pretrained(model)
    read = dict(results.select("key", "input_tokens").iter_rows())
    for text, key in out.select("text", "llm_id").iter_rows():
        messages = [{"role": "user", "content": PROMPT.format(text=text)}]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert read[key] == len(tokenizer(rendered, add_special_tokens=False)["input_ids"])

    starts = sum(engine.n_starts for engine in vllm_engine.engines())
    again = ask(reviews, model, tmp_path)
    assert again.equals(out)
    assert sql(tmp_path, "SELECT count(*) FROM result") == 200
    assert sum(engine.n_starts for engine in vllm_engine.engines()) == starts


def test_an_over_long_prompt_and_a_cut_answer_are_their_own_rows_faults(
    reviews: pl.DataFrame, model: Path, tmp_path: Path
) -> None:
    frame = pl.concat([reviews.head(10), pl.DataFrame({"text": ["much too long " * 2_000]})])

    out = ask(frame, model, tmp_path)

    assert states(out.head(10)) == {"succeeded": 10}
    assert out["llm_error"][10] == "bad_request: context_length_exceeded"
    assert states(out.tail(1)) == {"dead_lettered": 1}

    short = ask(reviews.head(3), model, tmp_path, params={"max_tokens": 2, "temperature": 0}, retry=None)
    assert set(short["llm_state"].cast(pl.String)) == {"invalid"}
    assert {error.partition(":")[0] for error in short["llm_error"]} == {"truncated"}


def test_a_child_that_is_killed_in_the_middle_loses_only_what_was_in_flight(
    reviews: pl.DataFrame, model: Path, tmp_path: Path
) -> None:
    window = 16
    outs: list[pl.DataFrame] = []
    mapping = threading.Thread(
        target=lambda: outs.append(ask(reviews, model, tmp_path, options=options(window=window))), daemon=True
    )
    mapping.start()
    wait_for(lambda: recorded(tmp_path, 40))
    (engine,) = [engine for engine in vllm_engine.engines() if engine.pid is not None]
    assert engine.pid is not None
    before, children = engine.n_starts, group_of(engine.pid)
    os.kill(engine.pid, signal.SIGKILL)
    mapping.join(PATIENCE_S)

    assert states(outs[0]) == {"succeeded": 200}
    assert engine.n_starts == before + 1
    assert len(children) > 1
    wait_until_gone(children)
    assert sql(tmp_path, "SELECT max(attempts) FROM request") == 1


PARENT = """
import sys
from pathlib import Path
import polars as pl
sys.path[:0] = sys.argv[4:6]
from warm_engine import options
from test_real_vllm import ask
if __name__ == "__main__":
    ask(pl.read_parquet(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), options=options(window=16))
"""


def test_a_killed_parent_takes_the_engine_along_and_a_rerun_does_only_what_is_missing(
    reviews: pl.DataFrame, model: Path, tmp_path: Path
) -> None:
    vllm_engine.shut_down()  # two engines at once are too many for a small machine
    ledger, source = tmp_path / "ledger", tmp_path / "reviews.parquet"
    reviews.write_parquet(source)
    here = Path(__file__).parent
    arguments = [str(source), str(model), str(ledger), str(here), str(here.parent)]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *arguments])
    wait_for(lambda: recorded(ledger, 60) or parent.poll() is not None)
    leader = next(
        int(stat.parent.name)
        for stat in Path("/proc").glob("[0-9]*/stat")
        if stat.exists() and int(stat.read_text().rsplit(")", 1)[1].split()[1]) == parent.pid
    )
    children = group_of(leader)
    parent.kill()
    parent.wait()
    assert len(children) > 1
    wait_until_gone(children)
    kept = sql(ledger, "SELECT count(*) FROM result")
    assert 60 <= kept < 200

    out = ask(reviews, model, ledger)

    assert states(out) == {"succeeded": 200}
    assert sql(ledger, "SELECT count(*) FROM result") == 200  # not one that was kept was asked again
    assert sql(ledger, "SELECT count(*) FROM (SELECT key FROM result GROUP BY key HAVING count(*) > 1)") == 0


def test_a_row_that_ends_the_engine_is_found_and_the_others_finish(
    reviews: pl.DataFrame, model: Path, tmp_path: Path
) -> None:
    vllm_engine.shut_down()
    notes, python = tmp_path / "asked", tmp_path / "python"
    program = Path(__file__).with_name("planted_child.py")
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{program}" "{notes}" "$@"\n')
    python.chmod(0o700)
    frame = pl.concat([reviews.head(3), pl.DataFrame({"text": [POISON]})])

    out = ask(frame, model, tmp_path / "ledger", options=options(python=str(python)))

    assert states(out.head(3)) == {"succeeded": 3}
    assert out["llm_error"][3] == "bad_request: engine_killed"
    asked = notes.read_text().splitlines()
    assert sum(POISON in line for line in asked) == 2


def test_an_engine_that_cannot_start_says_why(reviews: pl.DataFrame, model: Path, tmp_path: Path) -> None:
    vllm_engine.shut_down()
    wrong = lotwise.Options(executor_options={"engine": {**ENGINE, "max_model_len": 10_000_000}})

    with pytest.raises(EngineStopped, match="did not start") as caught:
        ask(reviews.head(1), model, tmp_path, options=wrong)

    assert "max_model_len" in str(caught.value)
    assert states(caught.value.partial()) == {"pending": 1}
