"""Purging and exporting: no planted text is left where it should not be, whatever kills the purge on its way."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from lotwise import engine
from lotwise.errors import ExportExists, LedgerUnwritable, PurgeRefused
from lotwise.key import spec_from_json
from lotwise.ledger import migrate, parts
from lotwise.ledger import purge as purging
from lotwise.ledger import runs as run_book
from lotwise.ledger.export import export
from lotwise.ledger.files import wal_of
from lotwise.ledger.purge import purge
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify
from lotwise.request import Spec
from runs import SPEC, Bench

PLANTED = "planted-" + secrets.token_hex(16)
TEXTS = [f"{PLANTED} {i}" for i in range(6)]


def _places(folder: Path) -> set[str]:
    """Say where the planted text is: table.column for columns, the name for parts and for raw bytes."""
    places = set()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and PLANTED.encode() in path.read_bytes():
            places.add(f"bytes of {path.suffix}")
        if path.suffix == ".parquet" and pl.read_parquet(path)["content"].str.contains(PLANTED).any():
            places.add("parts")
    for database in folder.glob("*.duckdb"):
        with duckdb.connect(str(database), read_only=True) as connection:
            columns = connection.execute(
                "SELECT table_name, column_name FROM duckdb_columns() WHERE NOT internal AND database_name <> 'temp'"
            ).fetchall()
            for table, column in columns:
                held = f'SELECT count(*) FROM "{table}" WHERE contains("{column}"::VARCHAR, $1)'
                if connection.execute(held, [PLANTED]).fetchall()[0][0]:
                    places.add(f"{table}.{column}")
    return places


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path)


@pytest.fixture
def folder(bench: Bench) -> Path:
    return bench.folder / "ledger"


def test_planted_text_is_found_before_a_purge(bench: Bench, folder: Path) -> None:
    bench.run(TEXTS)

    assert _places(folder) >= {"parts", "result.raw", "validation.value"}


def test_purge_leaves_planted_text_only_in_parsed_values(bench: Bench, folder: Path) -> None:
    bench.run(TEXTS)

    purged = purge(bench.ledger, now=bench.clock.now())

    assert (purged.n_requests, purged.n_results, purged.values) == (6, 6, False)
    assert _places(folder) - {"bytes of .duckdb"} == {"validation.value"}
    assert parts.ours(folder / "parts") == []
    assert verify(bench.ledger).clean


def test_purge_of_values_leaves_planted_text_nowhere(bench: Bench, folder: Path) -> None:
    bench.spec = Spec(provider="scripted", model="echo", system=PLANTED, examples=((PLANTED, PLANTED),))
    bench.run(TEXTS)
    with bench.ledger.connections.session("a template") as connection:
        connection.execute("UPDATE run SET prompt = $1", [PLANTED])
    assert {"spec.body", "run.prompt"} <= _places(folder)

    purge(bench.ledger, values=True, now=bench.clock.now())

    assert _places(folder) == set()
    assert verify(bench.ledger).clean


def test_purge_takes_every_copy_that_is_ours_and_no_other_file(bench: Bench, folder: Path) -> None:
    bench.run(TEXTS)
    copy = migrate.keep_copy(folder / "ledger.duckdb", 0)
    wal_of(copy).write_text(PLANTED)
    (folder / "parts" / "0123456789abcdef.tmp").write_text(PLANTED)  # the rest of a crash
    spill = folder / "ledger.duckdb.tmp"
    spill.mkdir(exist_ok=True)
    (spill / "duckdb_temp_storage_DEFAULT-0.tmp").write_text(PLANTED)
    work = folder / purging.WORK
    work.write_text(PLANTED)
    wal_of(work).write_text(PLANTED)
    mine = folder / "notes.txt"
    mine.write_text("mine")

    purge(bench.ledger, values=True, now=bench.clock.now())

    assert _places(folder) == set()
    assert migrate.copies(folder / "ledger.duckdb") == []
    assert mine.read_text() == "mine"


def test_purged_requests_are_not_bought_again(bench: Bench) -> None:
    bench.run(TEXTS)
    purge(bench.ledger, values=True, now=bench.clock.now())

    again = bench.run(TEXTS)

    assert bench.executor.bill().height == 6
    assert run_book.counts(bench.ledger, again.run_id, again.validator_digest) == {"succeeded": (6, 6)}
    assert parts.ours(bench.ledger.parts_folder) == []


def test_results_after_a_purge_come_after_those_before_it(bench: Bench) -> None:
    bench.run(TEXTS)
    before = bench.ledger.sql("SELECT max(seq) AS seq FROM result")["seq"][0]
    purge(bench.ledger, now=bench.clock.now())

    bench.run(["new"])

    assert bench.ledger.sql("SELECT max(seq) AS seq FROM result")["seq"][0] == before + 1
    assert verify(bench.ledger).clean


def test_ledger_keeps_its_identity_constraints_and_mode(bench: Bench, folder: Path) -> None:
    bench.run(TEXTS)
    sql = "SELECT table_name, constraint_text FROM duckdb_constraints()"
    before = (
        sorted(bench.ledger.sql(sql).rows()),
        bench.ledger.sql("SELECT value FROM meta WHERE name IN ('ledger_id', 'schema_version') ORDER BY name").rows(),
    )

    purge(bench.ledger, now=bench.clock.now())

    after = (
        sorted(bench.ledger.sql(sql).rows()),
        bench.ledger.sql("SELECT value FROM meta WHERE name IN ('ledger_id', 'schema_version') ORDER BY name").rows(),
    )
    assert after == before
    assert stat.S_IMODE((folder / "ledger.duckdb").stat().st_mode) == 0o600


def test_purge_is_refused_while_requests_need_their_text(bench: Bench, folder: Path) -> None:
    bench.executor = bench.provider(duration_s=10)
    job = bench.begin(TEXTS)
    with pytest.raises(PurgeRefused) as pending:
        purge(bench.ledger, now=bench.clock.now())
    engine.drive(job, wait=False)
    with pytest.raises(PurgeRefused) as submitted:
        purge(bench.ledger, now=bench.clock.now())

    assert (pending.value.n_pending, pending.value.n_submitted) == (6, 0)
    assert (submitted.value.n_pending, submitted.value.n_submitted) == (0, 6)
    assert "parts" in _places(folder)

    purge(bench.ledger, force=True, now=bench.clock.now())
    assert _places(folder) == set()
    engine.drive(job)
    assert run_book.counts(bench.ledger, job.run_id, job.validator_digest) == {"succeeded": (6, 6)}


def test_request_whose_text_was_purged_is_sent_when_a_call_renders_it_again(bench: Bench) -> None:
    bench.begin(TEXTS)
    purge(bench.ledger, force=True, now=bench.clock.now())

    job = bench.run(TEXTS)

    assert bench.values(job, TEXTS[:1])[0] is not None
    assert bench.executor.bill().height == 6
    assert verify(bench.ledger).clean


def test_no_request_is_ever_made_from_a_spec_without_its_messages(bench: Bench) -> None:
    bench.run(TEXTS)
    purge(bench.ledger, values=True, now=bench.clock.now())
    (body,) = bench.ledger.sql("SELECT body FROM spec")["body"]

    with pytest.raises(ValueError, match="purged"):
        spec_from_json(body)
    assert SPEC.system is not None
    assert SPEC.system not in body


# --- killed on the way --------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a process that ends between two steps: nothing after it runs but the closing of files."""


STEPS: dict[str, tuple[Any, str]] = {
    "before the new file": (purging, "_write_new"),
    "before the swap": (os, "replace"),
    "before the parts are deleted": (purging, "_remove_text"),
}


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize(("module", "step"), STEPS.values(), ids=STEPS.keys())
def test_purge_killed_at_a_step_leaves_the_old_ledger_or_the_new_one(
    bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, done: bool
) -> None:
    job = bench.run(TEXTS)
    real: Callable[..., Any] = getattr(module, step)

    def killed(*args: Any, **kwargs: Any) -> None:
        if done:
            real(*args, **kwargs)
        raise Killed

    monkeypatch.setattr(module, step, killed)
    with pytest.raises(Killed):
        purge(bench.ledger, now=bench.clock.now())
    monkeypatch.undo()

    ledger = Ledger.open(folder)
    assert run_book.counts(ledger, job.run_id, job.validator_digest) == {"succeeded": (6, 6)}
    assert verify(ledger).clean

    purge(ledger, now=bench.clock.now())
    assert _places(folder) - {"bytes of .duckdb"} == {"validation.value"}
    assert not (folder / purging.WORK).exists()


# --- export -------------------------------------------------------------------------------------------------------


@pytest.fixture
def exported(bench: Bench) -> Path:
    bench.run(TEXTS)
    return export(bench.ledger, bench.folder / "snapshot's.duckdb")


def test_export_opens_and_attaches_without_lotwise(exported: Path) -> None:
    with duckdb.connect(str(exported), read_only=True) as alone:
        assert alone.sql("SELECT count(*) FROM result").fetchall() == [(6,)]
    with duckdb.connect() as other:
        other.execute("ATTACH '" + str(exported).replace("'", "''") + "' AS snapshot (READ_ONLY)")
        assert other.sql("SELECT count(*) FROM snapshot.request WHERE state = 'answered'").fetchall() == [(6,)]


def test_export_is_its_owners_alone_and_nothing_is_left_beside_it(exported: Path) -> None:
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    assert sorted(path.name for path in exported.parent.iterdir()) == ["ledger", "provider", "snapshot's.duckdb"]


def test_export_overwrites_nothing(bench: Bench, exported: Path) -> None:
    before = exported.read_bytes()
    for taken in (exported, bench.folder / "ledger", bench.folder / "ledger" / "ledger.duckdb"):
        with pytest.raises(ExportExists):
            export(bench.ledger, taken)

    assert exported.read_bytes() == before
    assert verify(bench.ledger).clean


def test_export_into_no_folder_is_told(bench: Bench) -> None:
    with pytest.raises(LedgerUnwritable):
        export(bench.ledger, bench.folder / "none" / "snapshot.duckdb")


def test_export_that_fails_leaves_nothing(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Ledger, database: Path) -> None:
        database.write_bytes(b"half")
        raise Killed

    monkeypatch.setattr(Ledger, "copy_to", fails)
    with pytest.raises(Killed):
        export(bench.ledger, bench.folder / "snapshot.duckdb")

    assert [path.name for path in bench.folder.iterdir() if "snapshot" in path.name] == []
