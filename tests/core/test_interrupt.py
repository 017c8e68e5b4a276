"""Ctrl-C while the ledger's database is at work: it is heard, as a KeyboardInterrupt, whatever DuckDB makes of it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from lotwise.ledger import files
from lotwise.ledger.files import Folder

LONG = "SELECT count(*) FROM range(1_000_000) a, range(1_000_000) b WHERE a.range + b.range = 1"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(path=tmp_path / "ledger")
    made.make()
    return made


def long_statement(folder: Folder) -> None:
    with folder.session("long") as connection:
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()
        connection.execute(LONG).fetchall()


def test_ctrl_c_in_a_long_statement_is_a_keyboard_interrupt_and_the_ledger_goes_on(folder: Folder) -> None:
    with pytest.raises(KeyboardInterrupt):
        long_statement(folder)

    with folder.session("after") as connection:
        assert connection.execute("SELECT 1").fetchall() == [(1,)]


def other_error(folder: Folder) -> None:
    with folder.session("other"):
        raise RuntimeError("something else")


def test_an_error_that_is_no_interrupt_stays_what_it_is(folder: Folder) -> None:
    with pytest.raises(RuntimeError, match="something else"):
        other_error(folder)


def interrupted_within(reached: list[str]) -> None:
    with files._deferred_interrupt():
        signal.raise_signal(signal.SIGINT)
        reached.append("the end of the block")


def test_ctrl_c_while_an_instance_is_made_comes_afterwards() -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted_within(reached)
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
