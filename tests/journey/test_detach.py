"""Ctrl-C, a run taken up by another process, and two processes at the same work: nothing is paid for twice."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

import lotwise
from emulator import Emulator
from journey.clouds import MODELS, PROVIDERS, Cloud
from journey.harness import PATIENCE_S, until

TEXTS = [f"row {i}" for i in range(8)]
FRAME = pl.DataFrame({"text": TEXTS})
providers = pytest.mark.parametrize("provider", PROVIDERS)


@providers
def test_ctrl_c_detaches_and_the_command_that_is_told_finishes(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(batch_s=10_000.0)
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, options={"shard_rows": 4, "window": 1})
    work = here.start()
    until(lambda: work.passed("after poll"), "the first batch to be polled")
    work.interrupt()
    detached = work.wait()
    assert detached.error == "KeyboardInterrupt"
    told = re.search(r"lotwise resume (\w+) --ledger (\S+)", detached.log)
    assert told is not None, detached.log
    assert "open batches go on at the provider" in detached.log
    assert re.search(rf"lotwise cancel {told[1]} ", detached.log)
    assert Path(told[2]) == here.ledger_path

    emulator.set_faults(batch_s=0.1)
    emulator.advance(20_000)
    lotwise_command = str(Path(sys.executable).with_name("lotwise"))
    command = [lotwise_command, "resume", told[1], "--ledger", told[2], "--poll-s", "0.05", "-q"]
    done = subprocess.run(
        command, env=os.environ | here.env(here.api_key), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert lotwise.open_ledger(here.ledger_path).status(told[1]).state == "done"
    here.assert_each_charged_once(len(TEXTS))
    rows = here.call().rows
    assert rows["answer"].to_list() == TEXTS
    here.assert_each_charged_once(len(TEXTS))
    here.assert_clean()


def test_a_run_is_taken_up_by_its_id_in_another_process(tmp_path: Path, emulator: Emulator) -> None:
    emulator.set_faults(batch_s=1_000.0)
    here = Cloud(tmp_path / "desk", FRAME, emulator, "openai", schema={
        "type": "object",
        "properties": {"word": {"type": "string"}},
        "required": ["word"],
        "additionalProperties": False,
    })  # fmt: skip
    work = here.start()
    until(lambda: work.passed("after commit: creating to submitted"), "the batch to be made")
    work.kill()
    run = here.sql("SELECT id FROM run")["id"].item()
    emulator.advance(2_000)
    taken_up = here.call(resume=run).rows
    assert taken_up["llm_id"].n_unique() == len(TEXTS)
    assert set(taken_up["llm_state"]) == {"succeeded"}
    rows = here.call().rows
    assert_frame_equal(rows.select(taken_up.columns).sort("llm_id"), taken_up, check_dtypes=False)
    here.assert_each_charged_once(len(TEXTS))
    here.assert_clean()


@providers
def test_two_processes_with_the_same_map_are_one_charge(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(batch_s=0.3)
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, options={"shard_rows": 2, "lease_s": 30.0})
    both = [here.start(), here.start()]
    frames = [child.wait().rows for child in both]
    assert frames[0]["answer"].to_list() == TEXTS
    assert_frame_equal(*frames)
    here.assert_each_charged_once(len(TEXTS))
    here.assert_clean()


@providers
def test_a_run_is_taken_up_where_its_options_sent_it(
    tmp_path: Path, emulator: Emulator, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at the address of the environment, which would be handed the key and knows nothing of the batch."""
    emulator.set_faults(batch_s=10_000.0)
    key = f"sk-elsewhere-{provider}"
    monkeypatch.setenv(f"{provider.upper()}_API_KEY", key)
    url = emulator.openai_url if provider == "openai" else emulator.anthropic_url
    given = {"base_url": url, **({"endpoint": "responses"} if provider == "openai" else {})}
    with Emulator(tmp_path / "other", speed=0) as other:
        elsewhere = other.openai_url if provider == "openai" else other.anthropic_url
        monkeypatch.setenv(f"{provider.upper()}_BASE_URL", elsewhere)
        run = lotwise.submit(
            FRAME,
            "{text}",
            model=MODELS[provider],
            ledger=tmp_path / "ledger",
            progress=False,
            options=lotwise.Options(executor_options=given),
        )
        emulator.set_faults(batch_s=0.1)
        emulator.advance(20_000)
        lotwise.open_ledger(tmp_path / "ledger").resume(run.id, progress=False, poll_s=0.05).wait()
        assert other.calls() == {}
    assert run.status().state == "done"
    assert sorted(Counter(charge.key for charge in emulator.bill(key)).values()) == [1] * len(TEXTS)
