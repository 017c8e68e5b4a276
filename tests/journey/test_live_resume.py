"""Taking up a run at a server of one's own with nothing but its id, as the command that an interrupt prints does."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from busy_server import Busy, busy
from journey.harness import until
from lotwise import errors
from lotwise.executors.online import BASE_URL_VARIABLE
from lotwise.ledger.files import Folder

N, AT_ONCE = 240, 6

HEARING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
from lotwise.cli import main
main()
"""


@dataclass
class Shell:
    """A working folder with an input, where commands are run that find no server in their environment."""

    folder: Path

    @property
    def env(self) -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name not in (BASE_URL_VARIABLE, "LOTWISE_LEDGER")}

    def start(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", HEARING, *words]
        return subprocess.Popen(
            command, cwd=self.folder, env=self.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, *words: str) -> tuple[int, str, str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def interrupted(self, server: Busy, how: signal.Signals, *options: str, more: tuple[str, ...] = ()) -> str:
        """Start a map, end it when a sixth is asked, and return what it said."""
        given = (f"base_url={server.url}", f"max_concurrency={AT_ONCE}", *options)
        words = [word for option in given for word in ("--executor-option", option)]
        process = self.start("map", "in.csv", "out.csv", "-p", "{text}", "-m", "online:served", *words, *more)
        until(lambda: server.account()["n_calls"] > N // 6, "a sixth to be asked")
        process.send_signal(how)
        _, err = process.communicate(timeout=120)
        assert server.account()["n_calls"] < N
        return err

    @property
    def run_id(self) -> str:
        (run,) = lotwise.runs(self.folder / ".lotwise")["id"]
        return str(run)

    def rows(self) -> dict[str, list[Any]]:
        """Return all that the ledger says of the work."""
        folder = Folder(path=self.folder / ".lotwise")
        with folder.session("look", read_only=True) as connection:
            names = [row[0] for row in connection.execute("SHOW TABLES").fetchall()]
            assert set(names) >= {"run", "request", "shard", "attempt", "result"}
            return {name: connection.execute(f'SELECT * FROM "{name}" ORDER BY ALL').fetchall() for name in names}


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    pl.DataFrame({"text": [f"row {i}" for i in range(N)]}).write_csv(tmp_path / "in.csv")
    return Shell(tmp_path)


@pytest.fixture
def server() -> Iterator[Busy]:
    with busy(latency_s=0.05) as started:
        yield started


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("paid", [False, True], ids=["unpaid", "paid"])
def test_run_is_taken_up_by_its_id_alone(shell: Shell, server: Busy, how: signal.Signals, paid: bool) -> None:
    said = shell.interrupted(server, how, *(["paid=true"] if paid else []))
    words = ["lotwise", "resume", shell.run_id, "--ledger", str(shell.folder / ".lotwise")]
    if how is signal.SIGINT:
        assert shlex.join(words) in said
        assert "provider" not in said
        most = f"calls under way, {AT_ONCE} at most, may be charged without an answer and are asked again"
        assert (most if paid else "what was being answered is asked again") in said

    code, out, err = shell.run(*words[1:])

    assert code == 0, err
    told = lotwise.open_ledger(shell.folder / ".lotwise").status(shell.run_id)
    assert (told.state, told.requests, told.paid) == ("done", {"succeeded": N}, paid)
    charged = server.account()["charges"]
    assert len(charged) == N
    if paid:
        assert told.n_uncertain <= AT_ONCE
        assert sum(charged.values()) - N <= told.n_uncertain
    else:
        assert told.n_uncertain == 0
        assert told.cost_usd == 0
        assert "unknown" not in out
        assert "charged" not in out


def test_resume_that_finds_nobody_changes_no_row_and_cancel_needs_nobody(shell: Shell) -> None:
    with busy(latency_s=0.05) as gone:
        shell.interrupted(gone, signal.SIGKILL)
    before = shell.rows()

    code, _, err = shell.run("resume", shell.run_id)

    assert code == 1
    assert f"no server answers at {gone.url}; is it running" in err
    assert shell.rows() == before
    with pytest.raises(errors.SilentServer):
        lotwise.open_ledger(shell.folder / ".lotwise").resume(shell.run_id, progress=False)
    assert shell.rows() == before
    code, out, err = shell.run("cancel", shell.run_id)
    assert code == 0, err
    assert "canceled" in out


def test_run_of_a_server_from_the_environment_says_what_is_missing(
    shell: Shell, server: Busy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BASE_URL_VARIABLE, server.url)
    run = lotwise.submit(
        pl.DataFrame({"text": ["one"]}),
        "{text}",
        model="online:served",
        ledger=shell.folder / ".lotwise",
        progress=False,
    ).wait()
    before = shell.rows()

    code, _, err = shell.run("resume", run.id)

    assert code == 2
    assert "give --executor-option base_url=http://127.0.0.1:8000/v1 or set LOTWISE_ONLINE_BASE_URL" in err
    assert shell.rows() == before


def test_what_the_caller_says_goes_before_what_is_kept(shell: Shell, server: Busy) -> None:
    with busy(latency_s=0.05) as gone:
        shell.interrupted(gone, signal.SIGKILL)

    code, _, err = shell.run("resume", shell.run_id, "--executor-option", f"base_url={server.url}")

    assert code == 0, err
    assert server.account()["n_calls"] > 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_budget_holds_for_the_process_that_takes_the_run_up(shell: Shell, server: Busy, how: signal.Signals) -> None:
    each = 0.012  # 9 tokens in and 3 out
    prices = ("--price", "input_mtok=1000", "--price", "output_mtok=1000")
    budget = ("--budget", "1.20", "--param", "max_tokens=10", *prices)
    shell.interrupted(server, how, more=budget)

    code, _, err = shell.run("resume", shell.run_id)

    assert code == 3, err
    assert "budget" in err
    assert server.account()["n_calls"] * each <= 1.20
    told = lotwise.open_ledger(shell.folder / ".lotwise").status(shell.run_id)
    assert told.paid
    assert told.cost_usd is not None
