"""The `vllm` executor over a scripted child, a real process that dies, holds and refuses as it is told.

What vLLM itself does is tested with the real one (tests/vllm); here is all that lotwise does around it.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from engines.scripted import PATIENCE_S, Scripted, end_engines, wait_until_gone
from lotwise.errors import (
    EngineFailed,
    EngineStopped,
    MissingExtra,
    ModelFolderMissing,
    UnknownParameter,
    UnsupportedSchema,
)
from lotwise.executors import load, vllm_engine
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.executors.vllm import VllmExecutor
from lotwise.request import REQUESTS, Shard, Spec


@pytest.fixture
def scripted(tmp_path: Path) -> Iterator[Scripted]:
    made = Scripted.under(tmp_path)
    yield made
    end_engines()
    wait_until_gone(made.everybody())


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger"


def states(out: pl.DataFrame) -> dict[str, int]:
    return dict(out["llm_state"].cast(pl.String).value_counts().iter_rows())


def count(ledger: Path, sql: str) -> int:
    found: int = lotwise.open_ledger(ledger).sql(sql).item()
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    deadline, pace = time.monotonic() + PATIENCE_S, threading.Event()
    while not condition():
        assert time.monotonic() < deadline
        pace.wait(0.05)  # looking takes the ledger's lock, which those that are looked at need


def recorded(ledger: Path, n: int) -> bool:
    return (ledger / "ledger.duckdb").exists() and count(ledger, "SELECT count(*) FROM result") >= n


# --- answers ------------------------------------------------------------------------------------------------------


def test_it_is_a_local_stream_found_by_its_name(scripted: Scripted) -> None:
    found, name = load(f"vllm:{scripted.model}")

    assert isinstance(found, StreamExecutor)
    assert not isinstance(found, BatchExecutor)
    assert (name, found.hosted, found.paid) == (str(scripted.model), False, False)


def test_each_row_gets_its_own_answer_and_its_tokens_are_recorded(scripted: Scripted, ledger: Path) -> None:
    texts = [f"row {n}" for n in range(300)]

    out = scripted.map(texts, ledger)

    assert out["answer"].to_list() == texts
    assert sorted(scripted.noted("asked")) == sorted(texts)
    sums = "SELECT sum(input_tokens), sum(output_tokens), sum(cache_read_tokens) FROM result"
    assert lotwise.open_ledger(ledger).sql(sums).row(0) == (2_100, 900, 1_200)
    assert count(ledger, "SELECT count(DISTINCT model_revision) FROM result WHERE model_revision LIKE 'tiny@%'") == 1


def test_longer_rows_are_asked_first(scripted: Scripted, ledger: Path) -> None:
    scripted.map(["a", "ccc", "bb"], ledger)
    assert scripted.noted("asked") == ["ccc", "bb", "a"]


def test_shards_and_calls_that_follow_find_the_engine_warm(scripted: Scripted, ledger: Path) -> None:
    scripted.map([f"row {n}" for n in range(30)], ledger, shard_rows=10)
    scripted.map(["another"], ledger)

    assert len(scripted.noted("starts")) == 1
    assert count(ledger, "SELECT count(*) FROM shard") == 4


def test_an_engine_with_other_arguments_takes_the_place_of_an_idle_one(scripted: Scripted, ledger: Path) -> None:
    scripted.map(["a"], ledger)
    first = scripted.everybody()

    scripted.map(["b"], ledger, executor={"engine": {"seqs": 8}})

    wait_until_gone(first)
    assert len(scripted.noted("starts")) == 2


def test_no_more_than_twice_what_the_engine_works_on_is_in_flight(scripted: Scripted, ledger: Path) -> None:
    scripted.hold()
    texts = [f"hold {n:02}" for n in range(40)]
    mapping = threading.Thread(
        target=scripted.map, args=(texts, ledger), kwargs={"executor": {"engine": {"seqs": 5}}}, daemon=True
    )
    mapping.start()
    wait_for(lambda: len(scripted.noted("asked")) >= 10)
    in_flight = len(scripted.noted("asked"))
    scripted.let_go()
    mapping.join(PATIENCE_S)

    assert in_flight == 10
    assert len(scripted.noted("asked")) == 40


# --- rows that go wrong -------------------------------------------------------------------------------------------


def test_a_row_says_what_was_wrong_with_it_and_the_others_finish(scripted: Scripted, ledger: Path) -> None:
    good = [f"row {n}" for n in range(100)]
    bad = ["long prompt", "die now", "refuse this", "cut off"]

    out = scripted.map(good + bad, ledger)

    assert out["answer"].to_list()[:100] == good
    told = out.tail(4).select(pl.col("llm_state").cast(pl.String), "llm_error").rows()
    assert told == [
        ("dead_lettered", "bad_request: context_length_exceeded"),
        ("dead_lettered", "bad_request: engine_killed"),
        ("refused", "refused"),
        ("invalid", "truncated"),
    ]
    assert len(scripted.noted("starts")) == 4  # the row that ends it was in it three times
    assert scripted.noted("asked").count("die now") == 3


def test_two_rows_that_end_the_engine_are_both_found(scripted: Scripted, ledger: Path) -> None:
    out = scripted.map([*(f"row {n}" for n in range(60)), "die one", "die two"], ledger)

    assert states(out) == {"succeeded": 60, "dead_lettered": 2}
    assert set(out.tail(2)["llm_error"]) == {"bad_request: engine_killed"}


# --- ends ---------------------------------------------------------------------------------------------------------


def test_a_child_that_is_killed_loses_only_what_was_in_flight(scripted: Scripted, ledger: Path) -> None:
    done, held = [f"row {n}" for n in range(60)], [f"hold {n}" for n in range(40)]
    scripted.hold()
    outs: list[pl.DataFrame] = []
    mapping = threading.Thread(target=lambda: outs.append(scripted.map(done + held, ledger)), daemon=True)
    mapping.start()
    wait_for(lambda: recorded(ledger, 60))
    os.kill(int(scripted.noted("starts")[0]), signal.SIGKILL)
    scripted.let_go()
    mapping.join(PATIENCE_S)

    assert outs[0]["answer"].to_list() == done + held
    assert len(scripted.noted("starts")) == 2
    asked = scripted.noted("asked")
    assert [asked.count(text) for text in done] == [1] * 60
    assert [asked.count(text) for text in held] == [2] * 40
    assert count(ledger, "SELECT max(attempts) FROM request") == 1  # to the ledger it was one asking


def test_an_idle_engine_that_was_killed_is_started_again(scripted: Scripted, ledger: Path) -> None:
    scripted.map(["a"], ledger)
    os.kill(int(scripted.noted("starts")[0]), signal.SIGKILL)

    assert states(scripted.map(["a", "b"], ledger)) == {"succeeded": 2}
    assert scripted.noted("asked") == ["a", "b"]
    wait_until_gone(scripted.everybody()[:1])


def test_a_killed_parent_takes_its_engine_along_and_a_rerun_does_only_what_is_missing(
    scripted: Scripted, ledger: Path
) -> None:
    done, held = [f"row {n}" for n in range(60)], [f"hold {n}" for n in range(40)]
    scripted.hold()
    code = (
        "import sys, json; from pathlib import Path; from engines.scripted import Scripted;"
        "Scripted(folder=Path(sys.argv[1])).map(json.loads(sys.argv[3]), Path(sys.argv[2]))"
    )
    arguments = [str(scripted.folder), str(ledger), json.dumps(done + held)]
    path = os.pathsep.join(entry for entry in sys.path if entry)
    parent = subprocess.Popen([sys.executable, "-c", code, *arguments], env={**os.environ, "PYTHONPATH": path})
    wait_for(lambda: recorded(ledger, 60))
    parent.kill()
    parent.wait()
    wait_until_gone(scripted.everybody())
    assert count(ledger, "SELECT count(*) FROM result") == 60

    before = len(scripted.noted("asked"))
    scripted.let_go()
    out = scripted.map(done + held, ledger)

    assert out["answer"].to_list() == done + held
    assert sorted(scripted.noted("asked")[before:]) == sorted(held)


def test_all_processes_of_an_engine_end_with_it_where_nobody_is_told_of_ended_children(
    scripted: Scripted, ledger: Path
) -> None:
    """As under a shell or a service that ignores SIGCHLD, which a program inherits."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert scripted.map(["a", "die"], ledger)["answer"].to_list() == ["a", None]
        vllm_engine.shut_down()
    finally:
        signal.signal(signal.SIGCHLD, before)

    wait_until_gone(scripted.everybody())


def test_an_engine_is_heard_in_a_program_with_many_open_files(scripted: Scripted, ledger: Path) -> None:
    most, allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(allowed, 4_096), allowed))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        out = scripted.map(["a"], ledger)
        vllm_engine.shut_down()
    finally:
        for each in held:
            os.close(each)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, allowed))

    assert out["answer"].to_list() == ["a"]


def test_all_processes_of_an_engine_end_with_it(scripted: Scripted, ledger: Path) -> None:
    scripted.map(["a"], ledger)
    assert len(scripted.everybody()) == 2

    vllm_engine.shut_down()

    wait_until_gone(scripted.everybody())


def test_an_engine_that_takes_no_step_is_ended_and_started_again(scripted: Scripted, ledger: Path) -> None:
    out = scripted.map(["row", "stall"], ledger, executor={"stall_s": 0.5})

    assert out["answer"].to_list() == ["row", None]
    assert out["llm_error"].to_list() == [None, "bad_request: engine_killed"]
    assert len(scripted.noted("starts")) == 3


def test_an_engine_that_ends_too_often_stops_the_run(scripted: Scripted, ledger: Path) -> None:
    texts = [f"die {n}" for n in range(30)]

    with pytest.raises(EngineStopped, match="ended 4 times") as caught:
        scripted.map(texts, ledger, executor={"restarts": 3})

    assert set(states(caught.value.partial())) == {"pending", "dead_lettered"}
    assert count(ledger, "SELECT count(*) FROM shard WHERE state <> 'collected'") == 0


# --- starting -----------------------------------------------------------------------------------------------------


def test_an_engine_that_does_not_start_says_why_and_no_secret(
    scripted: Scripted, ledger: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_TOKEN", "s3cr3t-value")

    with pytest.raises(EngineStopped, match="did not start: ValueError: no such quantization") as caught:
        scripted.map(["a"], ledger, executor={"engine": {"fails": "no such quantization"}})

    assert "s3cr3t" not in str(caught.value)
    assert "<SCRIPT_TOKEN>" in str(caught.value)
    assert states(caught.value.partial()) == {"pending": 1}
    assert states(scripted.map(["a"], ledger)) == {"succeeded": 1}


def test_an_engine_that_dies_while_it_starts_says_so(scripted: Scripted, ledger: Path) -> None:
    with pytest.raises(EngineStopped, match="did not start: SIGKILL"):
        scripted.map(["a"], ledger, executor={"engine": {"dies": True}})


def test_what_the_engine_writes_about_rows_goes_nowhere(
    scripted: Scripted, ledger: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)

    with pytest.raises(EngineStopped) as caught:
        scripted.map(["confidential", "die confidential"], ledger, executor={"restarts": 1})

    told = [str(caught.value), caplog.text, *capfd.readouterr()]
    assert not any("confidential" in text for text in told)


# --- giving up ----------------------------------------------------------------------------------------------------


def requests(contents: list[str]) -> pl.DataFrame:
    keys = [f"{number:040x}" for number in range(len(contents))]
    ids = [f"{'5' * 16}-{key}" for key in keys]
    rows = {"key": keys, "custom_id": ids, "content": contents, "variant": [None] * len(contents)}
    return pl.DataFrame(rows, schema=REQUESTS)


def lines_of(executor: VllmExecutor, contents: list[str]) -> Iterator[list[bytes]]:
    shard = Shard(id="5" * 16, run_id="run", n_requests=len(contents), created_at=datetime.now(UTC))
    spec = Spec(provider="vllm", model="tiny", model_digest="ab")
    return executor.answer(shard, spec, requests(contents))


def test_rows_that_were_given_up_do_not_come_back_later(scripted: Scripted) -> None:
    executor = VllmExecutor(model=str(scripted.model), options={"python": str(scripted.python)})
    scripted.hold()
    answers = lines_of(executor, ["hold 1", "hold 2", "row"])
    while not next(answers):
        pass
    answers.close()  # type: ignore[attr-defined]
    scripted.let_go()

    lines = [line for lines in lines_of(executor, ["next"]) for line in lines]

    assert [json.loads(line)["response"]["body"]["choices"][0]["message"]["content"] for line in lines] == ["next"]
    assert len(scripted.noted("aborts")) == 1  # whether the held rows were answered before it or not
    assert len(scripted.noted("starts")) == 1


def test_whoever_waits_for_the_engine_is_heard_of_meanwhile(scripted: Scripted) -> None:
    executor = VllmExecutor(model=str(scripted.model), options={"python": str(scripted.python)})
    first = lines_of(executor, ["a", "b"])
    while not next(first):
        pass

    second = lines_of(executor, ["c"])
    assert next(second) == []
    first.close()  # type: ignore[attr-defined]
    assert len([line for lines in second for line in lines]) == 1


# --- what is told beforehand --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpus": 1}, "engine"),
        ({"engine": 3}, "a dict for engine"),
        ({"engine": {"model": "x"}}, "model= names it"),
        ({"window": 0}, "a positive integer for window"),
        ({"window": 1.5}, "a positive integer for window"),
        ({"stall_s": -1}, "a positive number for stall_s"),
    ],
)
def test_a_wrong_option_is_told(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnknownParameter, match=message):
        VllmExecutor(model="m", options=options)


def test_a_model_that_is_not_here_is_told_with_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelFolderMissing, match="models--owner--name"):
        VllmExecutor(model="owner/name").model_digest()
    with pytest.raises(ModelFolderMissing, match="no model is named"):
        VllmExecutor().model_digest()


def test_a_name_of_the_hub_is_its_snapshot_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    kept = tmp_path / "models--owner--name"
    for commit in ("c0ffee", "decade"):
        (kept / "snapshots" / commit).mkdir(parents=True)
        (kept / "snapshots" / commit / "config.json").write_text(commit)
    (kept / "refs").mkdir()
    (kept / "refs" / "main").write_text("c0ffee")

    assert VllmExecutor(model="owner/name").folder.name == "c0ffee"
    pinned = VllmExecutor(model="owner/name", options={"engine": {"revision": "decade"}})
    assert pinned.folder.name == "decade"
    assert pinned.model_digest() != VllmExecutor(model="owner/name").model_digest()


def test_the_digest_is_of_what_can_change_an_answer(scripted: Scripted, tmp_path: Path) -> None:
    def digest(**engine: Any) -> str:
        return VllmExecutor(model=str(scripted.model), options={"engine": engine}).model_digest()

    plain = digest()
    assert digest(gpu_memory_utilization=0.5, max_num_seqs=4) == plain
    assert digest(dtype="float32") != plain
    (scripted.model / "README.md").write_text("a note")
    assert digest() == plain
    (scripted.model / "model.safetensors").write_bytes(b"others!")
    changed = digest()
    assert changed != plain
    scripted.model.rename(tmp_path / "elsewhere")
    assert VllmExecutor(model=str(tmp_path / "elsewhere")).model_digest() == changed


def check(scripted: Scripted, params: dict[str, Any], **options: Any) -> None:
    made = VllmExecutor(model=str(scripted.model), options={"python": str(scripted.python), **options})
    made.check(Spec(provider="vllm", model=str(scripted.model), params=params))


def test_parameters_are_checked_by_name_and_value(scripted: Scripted) -> None:
    check(scripted, {"temperature": 0, "top_k": -1, "chat_template_kwargs": {"enable_thinking": False}})
    with pytest.raises(UnknownParameter, match="temperature"):
        check(scripted, {"temprature": 0})
    with pytest.raises(UnknownParameter, match="a number from 0 to 1"):
        check(scripted, {"top_p": 2})


def test_an_interpreter_without_vllm_is_told(scripted: Scripted, tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match=r"lotwise\[vllm\]"):
        check(scripted, {}, python=sys.executable)
    with pytest.raises(MissingExtra):
        check(scripted, {}, python=str(tmp_path / "nothing"))


def test_a_schema_that_no_grammar_holds_is_refused(scripted: Scripted) -> None:
    executor = VllmExecutor(model=str(scripted.model))
    text, left = executor.wire_schema('{"type":"object","properties":{"n":{"type":"integer","multipleOf":2}}}')
    assert "multipleOf" not in text
    assert left == ("/properties/n/multipleOf",)
    with pytest.raises(UnsupportedSchema):
        executor.wire_schema('{"type":"array","items":{"type":"string"}}')


def test_a_call_without_the_model_is_refused_before_anything_is_written(tmp_path: Path, ledger: Path) -> None:
    with pytest.raises(ModelFolderMissing):
        lotwise.map(pl.DataFrame({"a": ["x"]}), "{a}", model=f"vllm:{tmp_path / 'none'}", ledger=ledger)
    assert not ledger.exists()


def test_the_reason_names_the_model_and_how_it_ended() -> None:
    fault = EngineFailed.after_deaths("vllm:tiny", 4, "SIGKILL, as when memory runs out")
    assert (fault.model, str(fault)) == ("vllm:tiny", fault.why)


def test_an_interpreter_that_is_gone_when_the_engine_is_wanted_is_told(scripted: Scripted) -> None:
    executor = VllmExecutor(model=str(scripted.model), options={"python": str(scripted.python)})
    scripted.python.unlink()
    with pytest.raises(EngineFailed, match="No such file"):
        list(lines_of(executor, ["a"]))


def test_engine_and_interpreter_are_kept_and_no_token() -> None:
    options = {
        "engine": {"max_model_len": 512, "hf_token": "planted"},
        "python": Path("there/python"),
        "env": {"A": "b"},
    }
    kept = VllmExecutor(model="m", options=options).kept_options()
    assert kept == {"engine": {"max_model_len": 512}, "python": str(Path("there/python"))}
    assert VllmExecutor(model="m").kept_options() == {}
