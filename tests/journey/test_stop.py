"""`lotwise stop` ends the sending of every run, whoever works on it; what is in flight can still be collected."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import lotwise
from lotwise.errors import RunStopped
from lotwise.testing import ScriptedExecutor

FRAME = pl.DataFrame({"body": [f"row {i}" for i in range(6)]})


def _options(tmp_path: Path, duration_s: float) -> lotwise.Options:
    provider = {"folder": str(tmp_path / "provider"), "duration_s": duration_s}
    return lotwise.Options(executor_options=provider, shard_rows=2, window=1)


def _submit(tmp_path: Path, duration_s: float) -> lotwise.Run:
    return lotwise.submit(
        FRAME,
        "{body}",
        model="scripted:echo",
        ledger=tmp_path / "ledger",
        options=_options(tmp_path, duration_s),
        progress=False,
        poll_s=0.05,
    )


def _lotwise(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).with_name("lotwise")), *words], capture_output=True, text=True, check=False
    )


def test_stop_keeps_every_process_from_sending_more(tmp_path: Path) -> None:
    run = _submit(tmp_path, duration_s=0.0)

    said = _lotwise("stop", "--ledger", str(tmp_path / "ledger"), "--json")

    assert json.loads(said.stdout) == {"stopped": [run.id]}
    with pytest.raises(RunStopped, match="stopped by hand") as stopped:
        run.wait()
    assert stopped.value.partial()["llm_state"].value_counts(sort=True).to_dicts() == [
        {"llm_state": "pending", "count": 4},
        {"llm_state": "succeeded", "count": 2},
    ]
    assert ScriptedExecutor(tmp_path / "provider").bill().height == 2


def test_repeated_call_after_a_stop_goes_on_and_buys_nothing_twice(tmp_path: Path) -> None:
    _submit(tmp_path, duration_s=0.0)
    lotwise.open_ledger(tmp_path / "ledger").stop()

    out = _submit(tmp_path, duration_s=0.0).collect()

    assert out["answer"].to_list() == FRAME["body"].to_list()
    assert ScriptedExecutor(tmp_path / "provider").bill().height == 6


def test_resume_all_collects_what_a_stopped_run_has_in_flight_and_sends_nothing(tmp_path: Path) -> None:
    _submit(tmp_path, duration_s=0.0)
    ledger = lotwise.open_ledger(tmp_path / "ledger")
    ledger.stop()
    ((run_id, collect_only),) = ledger.unfinished().iter_rows()

    with pytest.raises(RunStopped):
        ledger.resume(
            run_id, options=_options(tmp_path, 0.0), progress=False, poll_s=0.05, collect_only=collect_only
        ).wait()

    assert ledger.unfinished().is_empty()
    assert ScriptedExecutor(tmp_path / "provider").bill().height == 2
