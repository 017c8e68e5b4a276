"""Purging: take the text out of a ledger, and keep what was done and what it cost.

Deleting rows leaves their text in the file's free blocks, so the ledger is copied without the text into a new file,
which is swapped in whole. A kill at any moment leaves the old ledger or the new one; what the new one no longer names
is then deleted, or is left for the next purge, which starts over.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import rfc8785

from lotwise.errors import LedgerError, PurgeRefused
from lotwise.ledger import migrate, parts
from lotwise.ledger.files import Folder, wal_of
from lotwise.ledger.store import Ledger

WORK = "ledger.purging.duckdb"
"""The new file until it is whole."""

_ID = "'^[0-9a-f]{16}-[0-9a-f]{40}$'"

CONTENT: dict[str, dict[str, str]] = {
    "request": {"part": "NULL"},
    "result": {"raw": "NULL", "raw_blob": "NULL"},
    # An id that is none of ours may be any text.
    "stray": {
        "raw": "NULL",
        "raw_blob": "NULL",
        "custom_id": f"CASE WHEN regexp_matches(custom_id, {_ID}) THEN custom_id END",
    },
}
"""What a purge puts in place of the columns that hold what was asked and what was answered, verbatim."""

VALUES: dict[str, dict[str, str]] = {
    "validation": {"value": "NULL"},
    "run": {"prompt": "''"},
    "inspection": {"note": "NULL"},
    "lot": {"label": "CASE WHEN scheme <> 'by' THEN label END"},
    "golden": {"answer": "''"},
}
"""What a purge of values puts in place of the columns that hold parsed answers and the user's own text."""

_STILL_ASKED = """(key NOT IN (SELECT key FROM borrowed) OR key IN (
    SELECT m.key FROM manifest m JOIN run ON run.id = m.run
    ANTI JOIN borrowed b ON b.key = m.key AND b.validator = run.validator))"""
"""Leaves out requests that no run will send: each that expects one took over a compatible answer to it."""

EMPTIED = frozenset({"part"})
"""Tables that a purge leaves empty."""


@dataclass(frozen=True, kw_only=True)
class Purged:
    """What a purge took out.

    Attributes
    ----------
    values
        Whether parsed values and the text of specs and prompts went too.
    n_requests, n_results
        Requests whose rendered content, and results whose raw payload, was there before.
    n_files
        Parts and old copies that were deleted.
    bytes_before, bytes_after
        Of all that lies in the folder.
    """

    values: bool
    n_requests: int
    n_results: int
    n_files: int
    bytes_before: int
    bytes_after: int


def purge(ledger: Ledger, *, values: bool = False, force: bool = False, now: datetime) -> Purged:
    """Remove rendered content and raw payloads from a ledger; keys, states, costs and verdicts stay.

    Parameters
    ----------
    ledger
        The ledger. Nobody else can use it meanwhile.
    values
        Remove parsed answers, prompt templates, and the system messages and examples of specs too. The digests of
        specs stay, so that nothing is bought again by the same call.
    force
        Purge although requests wait to be sent or for their answers. A waiting request can then be sent only by a
        call that renders it again.
    now
        The time to write down.

    Returns
    -------
    Purged

    Raises
    ------
    PurgeRefused
        Requests are pending or submitted, and `force` was not given; or results are recorded that nobody judged yet,
        which the next call or resume of their run does.
    LedgerLocked
        Another program has the file open.

    Notes
    -----
    Answers whose raw payload is gone cannot be judged by a changed validator: their rows show `not_judged`. Exports,
    and copies that the user made, are not touched. Needs free space for a copy of what is kept.
    """
    folder = ledger.connections
    if not isinstance(folder, Folder):
        raise TypeError("only a ledger in a folder of its own can be purged")
    ledger.refuse_fork()
    before = _bytes_in(folder.path)
    with folder.alone("purge"):
        _remove_work(folder)
        with folder.connect(folder.database) as old:
            _refuse_if_needed(old, force=force)
            counts = (
                _count(old, "request WHERE part IS NOT NULL"),
                _count(old, "result WHERE raw IS NOT NULL OR raw_blob IS NOT NULL"),
            )
            old.execute("CHECKPOINT")
        _refuse_wal(folder.database)
        _write_new(folder, values=values, now=now)
        os.replace(folder.path / WORK, folder.database)
        parts.sync_folder(folder.path)
        n_files = _remove_text(folder)
    return Purged(
        values=values,
        n_requests=counts[0],
        n_results=counts[1],
        n_files=n_files,
        bytes_before=before,
        bytes_after=_bytes_in(folder.path),
    )


def _refuse_if_needed(old: Any, *, force: bool) -> None:
    pending = _count(old, f"request WHERE state = 'pending' AND {_STILL_ASKED}")
    submitted = _count(old, "request WHERE state = 'submitted'")
    unsettled = _count(old, "result JOIN request r ON r.key = result.key AND r.live_shard = result.shard")
    if unsettled or (not force and (pending or submitted)):
        raise PurgeRefused.of(pending, submitted, unsettled)


def _count(connection: Any, what: str) -> int:
    return int(connection.execute(f"SELECT count(*) FROM {what}").fetchall()[0][0])


def _refuse_wal(database: Path) -> None:
    """A WAL left beside the swapped file would be replayed into it: there must be none."""
    if wal_of(database).exists():
        raise LedgerError(f"the write-ahead log of {database} could not be emptied; nothing was purged")


def _write_new(folder: Folder, *, values: bool, now: datetime) -> None:
    """Copy the ledger without its text into a new file, closed and durable."""
    replaced = {**CONTENT, **(VALUES if values else {})}
    with folder.connect(folder.path / WORK) as new:
        new.execute(f"ATTACH {_quoted(folder.database)} AS old (READ_ONLY)")
        this = new.execute("SELECT current_database()").fetchall()[0][0]
        new.execute(f'COPY FROM DATABASE old TO "{this}" (SCHEMA)')
        tables = new.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'old'").fetchall()
        for (table,) in tables:
            if table in EMPTIED:
                continue
            if table == "spec" and values:
                _copy_specs(new)
                continue
            change = ", ".join(f"{sql} AS {column}" for column, sql in replaced.get(table, {}).items())
            columns = f"* REPLACE ({change})" if change else "*"
            new.execute(f'INSERT INTO "{table}" SELECT {columns} FROM old."{table}"')
        marks = ["content_purged_at", *(["values_purged_at"] if values else [])]
        for mark in marks:
            new.execute("INSERT OR REPLACE INTO meta VALUES ($1, $2)", [mark, now.isoformat()])
        new.execute("DETACH old")
        new.execute("CHECKPOINT")
    _refuse_wal(folder.path / WORK)
    descriptor = os.open(folder.path / WORK, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _copy_specs(new: Any) -> None:
    """Copy the specs without their messages. They are inserted as they shall be: an update would leave the text."""
    rows = new.execute("SELECT digest, model, body, key_version, created_at FROM old.spec").fetchall()
    for digest, model, body, version, created_at in rows:
        new.execute(
            "INSERT INTO spec VALUES ($1, $2, $3, $4, $5)", [digest, model, without_text(body), version, created_at]
        )


def without_text(body: str) -> str:
    """Return a spec's body without its messages, marked as `purged` so that no request is ever made from it."""
    fields = json.loads(body)
    if fields.get("purged"):
        return body
    return rfc8785.dumps({**fields, "system": None, "examples": [], "purged": True}).decode()


def _remove_work(folder: Folder) -> None:
    """Remove what a purge that was killed left of its new file."""
    work = folder.path / WORK
    for path in (work, wal_of(work)):
        path.unlink(missing_ok=True)
    _remove_spill(work)


def _remove_text(folder: Folder) -> int:
    """Delete the parts, the copies made before migrations, and what DuckDB spilled, and return how many files."""
    named = parts.ours(folder.parts) + migrate.copies(folder.database)
    for path in named:
        path.unlink()
    spilled = _remove_spill(folder.database)
    parts.sync_folder(folder.parts)
    parts.sync_folder(folder.path)
    return len(named) + spilled


def _remove_spill(database: Path) -> int:
    """Delete what DuckDB spilled beside a database and could not delete when it was killed."""
    spill = database.with_name(database.name + ".tmp")
    found = sorted(spill.glob("duckdb_temp_*")) if spill.is_dir() else []
    for path in found:
        path.unlink()
    return len(found)


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"
