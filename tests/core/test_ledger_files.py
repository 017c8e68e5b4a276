"""The ledger's folder: private, found where it should be, and never harmed by what is not ours."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest

from lotwise.errors import LedgerDamaged, LedgerError, LedgerForeign, LedgerNewer, LedgerNotFound, LedgerUnwritable
from lotwise.ledger import migrate, parts
from lotwise.ledger import requests as request_book
from lotwise.ledger import runs as run_book
from lotwise.ledger.files import LOCK, Folder, locate, wal_of
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify
from runs import Bench

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask 000", "umask 022", "umask 077"])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_folder_and_files_are_their_owners_alone(tmp_path: Path, umask: int) -> None:
    bench = Bench(folder=tmp_path)
    bench.begin(["a"])
    folder = tmp_path / "ledger"
    with bench.ledger.connections.session("look") as connection:
        connection.execute("CREATE TABLE t AS SELECT 1")
        modes = {path.name: _mode(path) for path in folder.rglob("*") if path.is_file()}

    assert _mode(folder) == _mode(folder / "parts") == 0o700
    assert {name for name in modes if not name.endswith(".parquet")} == {
        "ledger.duckdb", "ledger.duckdb.wal", LOCK, ".gitignore",
    }  # fmt: skip
    assert set(modes.values()) == {0o600}
    assert os.umask(umask) == umask


def test_git_ignores_the_folder(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "ledger")

    assert (tmp_path / "ledger" / ".gitignore").read_text() == "*\n"


# --- what is not ours ---------------------------------------------------------------------------------------------


def _other_duckdb(path: Path) -> None:
    duckdb.connect(str(path)).execute("CREATE TABLE mine AS SELECT 1 AS a")


def _look_alike(path: Path) -> None:
    duckdb.connect(str(path)).execute("CREATE TABLE meta (a INT); CREATE TABLE request (a INT)")


def _newer(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        migrate.migrate(connection, path)
        connection.execute("UPDATE meta SET value = '999' WHERE name = 'schema_version'")


def _sqlite(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE t (a)")
    connection.commit()
    connection.close()


def _truncated(path: Path) -> None:
    with duckdb.connect(str(path)) as connection:
        migrate.migrate(connection, path)
    path.write_bytes(path.read_bytes()[:5_000])


NOT_OURS: dict[str, tuple[Callable[[Path], object], type[LedgerError]]] = {
    "an empty file": (lambda path: path.write_bytes(b""), LedgerForeign),
    "a text": (lambda path: path.write_text("dear diary " * 10_000), LedgerForeign),
    "an SQLite file": (_sqlite, LedgerForeign),
    "a DuckDB file of somebody's": (_other_duckdb, LedgerForeign),
    "a DuckDB file with tables of our names": (_look_alike, LedgerForeign),
    "a ledger of a newer lotwise": (_newer, LedgerNewer),
    "a truncated ledger": (_truncated, LedgerDamaged),
}


@pytest.mark.parametrize(("make", "error"), NOT_OURS.values(), ids=NOT_OURS.keys())
def test_file_is_refused_and_left_as_it_is(
    tmp_path: Path, make: Callable[[Path], object], error: type[LedgerError]
) -> None:
    path = tmp_path / "ledger.duckdb"
    make(path)
    before = path.read_bytes()

    with pytest.raises(error) as refused:
        Ledger.open(tmp_path)

    assert path.read_bytes() == before
    assert str(path) in str(refused.value)
    assert not list(tmp_path.glob("*.before-*"))


def test_newer_ledger_is_refused_with_both_versions(tmp_path: Path) -> None:
    _newer(tmp_path / "ledger.duckdb")

    with pytest.raises(LedgerNewer) as refused:
        Ledger.open(tmp_path)

    assert (refused.value.found, refused.value.known) == (999, migrate.LATEST)


def test_damage_inside_is_told_and_the_file_kept(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path)
    bench.run([f"{i} " + os.urandom(400).hex() for i in range(300)])
    path = tmp_path / "ledger" / "ledger.duckdb"
    data = bytearray(path.read_bytes())
    for place in range(3 * 4096 + 100, len(data), 262_144):  # a byte in each block after the headers
        data[place] ^= 0xFF
    path.write_bytes(bytes(data))

    try:
        report = verify(bench.ledger)
    except LedgerDamaged:
        pass
    else:
        assert "readable" in {finding.check for finding in report.findings}
    assert path.read_bytes() == bytes(data)


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(LedgerUnwritable):
        Ledger.open(tmp_path / "file" / "ledger")


def test_nothing_is_made_where_a_ledger_is_expected(tmp_path: Path) -> None:
    with pytest.raises(LedgerNotFound):
        Ledger.open(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


# --- finding the folder -------------------------------------------------------------------------------------------


def test_given_folder_comes_before_the_environment(tmp_path: Path) -> None:
    assert locate(tmp_path / "a", environ={"LOTWISE_LEDGER": str(tmp_path / "b")}) == tmp_path / "a"
    assert locate(None, environ={"LOTWISE_LEDGER": str(tmp_path / "b")}) == tmp_path / "b"


def test_ledger_is_found_upwards_and_else_made_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert locate(None, environ={}) == inner / ".lotwise"

    Ledger.open(tmp_path / ".lotwise")
    assert locate(None, environ={}) == tmp_path / ".lotwise"

    (tmp_path / "a" / "lotwise.toml").write_text('ledger = "elsewhere"\n')
    assert locate(None, environ={}) == tmp_path / "a" / "elsewhere"


# --- one writer ---------------------------------------------------------------------------------------------------


def test_transaction_inside_a_transaction_is_refused(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)

    with ledger.transaction("outer"), pytest.raises(RuntimeError, match="inside another"):
        run_book.all_runs(ledger)
    assert run_book.all_runs(ledger).is_empty()


def test_threads_of_one_process_take_turns(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path)
    faults: list[BaseException] = []

    def enroll(name: str) -> None:
        try:
            for i in range(4):
                bench.begin([f"{name}{i}"])
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=enroll, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert faults == []
    assert bench.ledger.sql("SELECT count(*) AS n FROM run")["n"][0] == 12
    assert verify(bench.ledger).clean


def test_transaction_that_raises_leaves_nothing(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path)

    def interrupted() -> None:
        with ledger.transaction("test") as tx:
            tx.run("insert_spec", digest="d", model="m", body="b", key_version=1, now=NOW)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert ledger.sql("SELECT * FROM spec").is_empty()


# --- migrations ---------------------------------------------------------------------------------------------------


def test_steps_are_numbered_without_gaps() -> None:
    assert list(migrate.steps()) == list(range(1, migrate.LATEST + 1))
    files = [entry.name for entry in Path(migrate.__file__).with_name("sql").glob("[0-9]*.sql")]
    assert len(files) == migrate.LATEST, f"two steps have one number, and one of them is never taken: {sorted(files)}"


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    first = Ledger.open(tmp_path).sql("SELECT * FROM meta ORDER BY name")
    second = Ledger.open(tmp_path).sql("SELECT * FROM meta ORDER BY name")

    assert first.equals(second)


def test_ledger_of_an_older_version_is_copied_and_then_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(folder=tmp_path)
    job = bench.run(["a", "b"])
    steps = migrate.steps()
    later = {**steps, max(steps) + 1: "ALTER TABLE run ADD COLUMN note VARCHAR;"}
    monkeypatch.setattr(migrate, "steps", lambda: later)
    monkeypatch.setattr(migrate, "LATEST", max(later))

    ledger = Ledger.open(tmp_path / "ledger")

    assert run_book.row(ledger, job.run_id)["note"] is None  # type: ignore[index]
    assert run_book.counts(ledger, job.run_id, job.validator_digest) == {"succeeded": (2, 2)}
    (copy,) = migrate.copies(tmp_path / "ledger" / "ledger.duckdb")
    assert _mode(copy) == 0o600
    with duckdb.connect(str(copy), read_only=True) as connection:
        assert "note" not in connection.sql("SELECT * FROM run").columns


def test_step_that_fails_leaves_the_version_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger.open(tmp_path)
    steps = migrate.steps()
    broken = {**steps, max(steps) + 1: "CREATE TABLE extra (a INT); SELECT error('no');"}
    monkeypatch.setattr(migrate, "steps", lambda: broken)
    monkeypatch.setattr(migrate, "LATEST", max(broken))

    with pytest.raises(duckdb.Error):
        Ledger.open(tmp_path)

    monkeypatch.undo()
    ledger = Ledger.open(tmp_path)
    assert ledger.sql("SELECT * FROM duckdb_tables() WHERE table_name = 'extra'").is_empty()


def test_wal_left_by_a_kill_is_kept_with_the_copy(tmp_path: Path) -> None:
    database = tmp_path / "ledger.duckdb"
    database.write_bytes(b"database")
    wal_of(database).write_bytes(b"wal")

    copy = migrate.keep_copy(database, 1)

    assert copy.read_bytes() == b"database"
    assert wal_of(copy).read_bytes() == b"wal"


# --- parts --------------------------------------------------------------------------------------------------------


def test_only_files_of_our_own_names_are_ours(tmp_path: Path) -> None:
    for name in (
        "0123456789abcdef.parquet",
        "0123456789abcdef.tmp",
        "mine.parquet",
        "0123456789abcdeg.parquet",
        "a.tmp",
    ):
        (tmp_path / name).write_text("")

    assert [path.name for path in parts.ours(tmp_path)] == ["0123456789abcdef.parquet", "0123456789abcdef.tmp"]


@pytest.mark.parametrize("harm", ["missing", "cut short"])
def test_part_that_cannot_be_read_is_damage(tmp_path: Path, harm: str) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job = bench.begin(["a" * 1_000])
    (part,) = parts.ours(tmp_path / "parts")
    part.write_bytes(part.read_bytes()[:50])
    if harm == "missing":
        part.unlink()

    with pytest.raises(LedgerDamaged):
        request_book.contents(bench.ledger, request_book.pending(bench.ledger, job.run_id))


def test_folder_knows_what_it_holds(tmp_path: Path) -> None:
    folder = Folder(path=tmp_path / "ledger")

    assert not folder.exists
    Ledger.open(tmp_path / "ledger")
    assert folder.exists
