"""Ctrl-C while the ledger's database is at work: it is heard, as a KeyboardInterrupt, whatever DuckDB makes of it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from lotwise import signals
from lotwise.ledger.files import Folder
from lotwise.ledger.store import Ledger

LONG = "SELECT count(*) FROM range(100_000) a, range(4_000) b WHERE a.range + b.range = 1"
"""A second or so of work: long enough to be interrupted, and where DuckDB loses the signal the end comes soon."""


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


def swallowed(folder: Folder, reached: list[str]) -> None:
    with folder.session("swallowed"):
        with contextlib.suppress(KeyboardInterrupt):  # as DuckDB does while it looks for Python modules
            signal.raise_signal(signal.SIGINT)
        reached.append("the end of the block")


def test_ctrl_c_that_was_swallowed_inside_is_heard_at_the_end(folder: Folder) -> None:
    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        swallowed(folder, reached)
    assert reached


@pytest.mark.parametrize("broken", [False, True], ids=["at its end", "after an error"])
def test_a_session_leaves_the_handler_as_it_was(broken: bool, folder: Folder) -> None:
    with contextlib.suppress(ZeroDivisionError), folder.session("handler"):
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        _ = 1 / (not broken)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_is_not_touched(folder: Folder) -> None:
    def own(number: int, frame: object) -> None:
        pass

    before = signal.signal(signal.SIGINT, own)
    try:
        with folder.session("own"):
            assert signal.getsignal(signal.SIGINT) is own
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.fixture
def hearing_terminate() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signals.terminate)
    yield
    assert signal.getsignal(signal.SIGTERM) is signals.terminate
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("hearing_terminate")
def test_sigterm_that_was_swallowed_inside_is_heard_at_the_end(folder: Folder) -> None:
    with pytest.raises(signals.Terminated), folder.session("swallowed"), contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.usefixtures("hearing_terminate")
def test_sigterm_is_heard_where_ctrl_c_is_ignored(folder: Folder) -> None:
    # As under a shell's `&` in a script.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with folder.session("ignored"):
            signal.raise_signal(signal.SIGINT)
        with pytest.raises(signals.Terminated), folder.session("ignored"):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_transaction_that_sigterm_ends_is_whole_or_not_there(tmp_path: Path, hearing_terminate: None) -> None:
    ledger = Ledger.open(tmp_path / "ledger")

    def ended() -> None:
        with ledger.transaction("part") as tx:
            tx.run("insert_part", part="p", n_requests=1, bytes=1, now=datetime(2026, 1, 1, tzinfo=UTC))
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(signals.Terminated):
        ended()
    assert ledger.sql("SELECT * FROM part").is_empty()
