"""A ledger that may only be read: whoever reads it can, and whoever would write is told why not."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import polars as pl
import pytest

import lotwise
import lotwise.testing  # makes the scripted provider known
from lotwise import cli
from lotwise.errors import LedgerUnwritable
from lotwise.ledger.files import DATABASE, LOCK
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify

FRAME = pl.DataFrame({"body": [f"row {i}" for i in range(5)]})
NOBODY = 65534


@pytest.fixture
def ledger() -> Iterator[Path]:
    """A ledger of a finished run, in a folder that everybody can reach."""
    above = Path(tempfile.mkdtemp())
    above.chmod(0o755)
    answered(above / "ledger", FRAME)
    yield above / "ledger"
    shutil.rmtree(above)


def answered(ledger: Path, frame: pl.DataFrame) -> pl.DataFrame:
    return lotwise.map(frame, "{body}", model="scripted:echo", ledger=ledger, progress=False, poll_s=0)


@contextlib.contextmanager
def without_permission(ledger: Path) -> Iterator[None]:
    """Let everybody read a ledger, and be somebody who may not write it. Root would be let past all permissions."""
    held = [ledger, *ledger.rglob("*")]
    for path in held:
        path.chmod(0o555 if path.is_dir() else 0o444)
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(me)
        for path in held:
            path.chmod(0o700)


@contextlib.contextmanager
def lock_not_to_be_opened(ledger: Path) -> Iterator[None]:
    with without_permission(ledger):
        if os.getuid() == 0:
            os.seteuid(0)
        (ledger / LOCK).chmod(0o000)
        if os.getuid() == 0:
            os.seteuid(NOBODY)
        yield


@contextlib.contextmanager
def no_lock(ledger: Path) -> Iterator[None]:
    (ledger / LOCK).unlink()
    with without_permission(ledger):
        yield


@contextlib.contextmanager
def read_only_file_system(ledger: Path) -> Iterator[None]:
    """Mount the folder onto itself, read-only, which root may where mounting is allowed."""
    if os.geteuid() != 0 or subprocess.run(["mount", "--bind", ledger, ledger], capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", ledger], check=True, capture_output=True)
        yield
    finally:
        subprocess.run(["umount", ledger], check=True, capture_output=True)


WAYS: list[Callable[[Path], AbstractContextManager[None]]] = [
    without_permission,
    lock_not_to_be_opened,
    no_lock,
    read_only_file_system,
]
ways = pytest.mark.parametrize("kept_from_writing", WAYS, ids=lambda way: way.__name__)


@ways
def test_whoever_reads_can(ledger: Path, kept_from_writing: Callable[[Path], AbstractContextManager[None]]) -> None:
    (run,) = lotwise.runs(ledger)["id"]
    with kept_from_writing(ledger):
        handle = lotwise.open_ledger(ledger)

        assert handle.read_only is not None
        assert handle.status(run).requests == {"succeeded": 5}
        assert handle.missing(run).is_empty()
        assert handle.sql("SELECT count(*) FROM result").item() == 5
        assert handle.lots(run).height == 1
        assert lotwise.sample(ledger, run).height == 5
        assert lotwise.peek(FRAME, "{body}", model="scripted:echo", ledger=ledger)["answer"].to_list() == [
            *FRAME["body"]
        ]
        plan = lotwise.plan(FRAME, "{body}", model="scripted:echo", ledger=ledger)
        assert (plan.n_done, plan.n_to_send) == (5, 0)
        assert any("can only be read here" in told for told in plan.warnings)
        assert verify(Ledger.open(ledger, create=False)).clean


@ways
def test_whoever_would_write_is_told_why_not_and_nothing_is_rendered_or_sent(
    ledger: Path, kept_from_writing: Callable[[Path], AbstractContextManager[None]]
) -> None:
    (run,) = lotwise.runs(ledger)["id"]
    before = (ledger / DATABASE).read_bytes()
    with kept_from_writing(ledger):
        handle = lotwise.open_ledger(ledger)
        for write in (
            lambda: answered(ledger, FRAME),
            lambda: handle.resume(run, progress=False),
            lambda: handle.stop(),
            lambda: lotwise.inspect(
                lotwise.sample(ledger, run).with_columns(verdict=pl.lit("good")), ledger, inspector="me"
            ),
        ):
            with pytest.raises(LedgerUnwritable, match=r"cannot be written: .*(read-only|no permission)"):
                write()
    assert (ledger / DATABASE).read_bytes() == before


@pytest.mark.parametrize(
    ("command", "found"),
    [(["status"], '"done"'), (["ledger", "verify"], '"clean": true'), (["ledger", "requests"], '"answered"')],
    ids=["status", "verify", "requests"],
)
def test_the_command_line_says_that_a_ledger_can_only_be_read(
    command: list[str], found: str, ledger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    with without_permission(ledger), pytest.raises(SystemExit) as left:
        cli.main([*command, "--ledger", str(ledger), "--json"])
    out, err = capsys.readouterr()
    assert (left.value.code, found in out) == (cli.DONE, True)
    assert err.count("can only be read here: no permission to write") == 1


def test_what_a_killed_process_left_in_the_log_is_read_too(ledger: Path) -> None:
    import duckdb

    with duckdb.connect(str(ledger / DATABASE)) as connection:
        connection.execute("SET checkpoint_threshold = '1 GB'")
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")
        connection.execute("UPDATE run SET name = 'written last'")
    assert (ledger / f"{DATABASE}.wal").stat().st_size

    with without_permission(ledger):
        assert lotwise.open_ledger(ledger).runs()["name"].to_list() == ["written last"]


def test_a_ledger_of_an_older_version_that_cannot_be_written_is_told_as_that(ledger: Path) -> None:
    import duckdb

    with duckdb.connect(str(ledger / DATABASE)) as connection:
        connection.execute("UPDATE meta SET value = '1' WHERE name = 'schema_version'")
    with without_permission(ledger), pytest.raises(LedgerUnwritable, match=r"version 1, .* copy the folder"):
        lotwise.open_ledger(ledger)
