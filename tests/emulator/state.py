"""Everything the emulated provider knows, on disk: batches, rows, files, the bill, clock and faults.

One SQLite file and two folders.  What a call changes is committed in one transaction, and result files grow
only to lengths that a transaction recorded, so the process may be killed at any moment and started again on
the same folder.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Values = tuple[Any, ...]

SCHEMA = """
CREATE TABLE IF NOT EXISTS setting (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS counter (name TEXT PRIMARY KEY, n INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS file (
    ordinal INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, project TEXT NOT NULL, filename TEXT NOT NULL,
    purpose TEXT NOT NULL, bytes INTEGER NOT NULL, path TEXT NOT NULL,
    created_at REAL NOT NULL, expires_at REAL NOT NULL, expiry_shown INTEGER NOT NULL,
    torn_downloads INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS batch (
    ordinal INTEGER PRIMARY KEY, id TEXT UNIQUE NOT NULL, provider TEXT NOT NULL, project TEXT NOT NULL,
    account TEXT NOT NULL, endpoint TEXT NOT NULL, input_file_id TEXT, input_path TEXT NOT NULL,
    metadata TEXT, output_expires_s REAL, model TEXT, rows INTEGER NOT NULL,
    enqueued_tokens INTEGER NOT NULL, failure TEXT, created_at REAL NOT NULL, cancel_at REAL,
    timing TEXT NOT NULL, faults TEXT NOT NULL,
    done INTEGER NOT NULL DEFAULT 0, succeeded INTEGER NOT NULL DEFAULT 0, errored INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0, cached_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    out_bytes INTEGER NOT NULL DEFAULT 0, err_bytes INTEGER NOT NULL DEFAULT 0,
    output_file_id TEXT, error_file_id TEXT,
    settled INTEGER NOT NULL DEFAULT 0, deleted INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE IF NOT EXISTS row (
    batch INTEGER NOT NULL, rank INTEGER NOT NULL, custom_id TEXT NOT NULL, key TEXT NOT NULL,
    position INTEGER NOT NULL, length INTEGER NOT NULL,
    outcome TEXT, delivery TEXT, billed INTEGER NOT NULL DEFAULT 0, stream TEXT,
    PRIMARY KEY (batch, rank)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS row_key ON row (key);
CREATE TABLE IF NOT EXISTS sync_call (
    n INTEGER PRIMARY KEY, provider TEXT NOT NULL, project TEXT NOT NULL, digest TEXT NOT NULL,
    outcome TEXT NOT NULL, at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS sync_digest ON sync_call (digest);
CREATE TABLE IF NOT EXISTS charge (
    n INTEGER PRIMARY KEY, provider TEXT NOT NULL, account TEXT NOT NULL, project TEXT NOT NULL,
    tier TEXT NOT NULL, batch TEXT, custom_id TEXT, key TEXT NOT NULL, digest TEXT NOT NULL,
    model TEXT NOT NULL, input_tokens INTEGER NOT NULL, cached_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL, at REAL NOT NULL
);
"""
INSERT_CHARGE = (
    "INSERT INTO charge (provider, account, project, tier, batch, custom_id, key, digest, model,"
    " input_tokens, cached_tokens, output_tokens, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


class State:
    """The state in one folder; every method is safe to call from any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("uploads", "results"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        self._lock = threading.RLock()
        self._connection = sqlite3.connect(folder / "state.sqlite", check_same_thread=False, isolation_level=None)
        self._connection.row_factory = sqlite3.Row
        # A killed process loses nothing that it handed to the system, and no test cuts the power: no fsync.
        self._connection.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;" + SCHEMA)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Hold the state alone; commit at the end, or take everything back on an exception."""
        with self._lock:
            if self._connection.in_transaction:
                yield
                return
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def execute(self, sql: str, values: Values = ()) -> None:
        """Run one statement."""
        with self._lock:
            self._connection.execute(sql, values)

    def execute_many(self, sql: str, values: Iterable[Any]) -> None:
        """Run one statement for each tuple of values."""
        with self._lock:
            self._connection.executemany(sql, values)

    def rows(self, sql: str, values: Values = ()) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        with self._lock:
            return self._connection.execute(sql, values).fetchall()

    def row(self, sql: str, values: Values = ()) -> sqlite3.Row | None:
        """Return the first row of a query, or None."""
        with self._lock:
            found: sqlite3.Row | None = self._connection.execute(sql, values).fetchone()
            return found

    def number(self, sql: str, values: Values = ()) -> int:
        """Return the one number that a query gives."""
        found = self.row(sql, values)
        return 0 if found is None or found[0] is None else int(found[0])

    def insert(self, table: str, values: dict[str, Any]) -> None:
        """Insert one row given by column."""
        columns = ", ".join(values)
        self.execute(f"INSERT INTO {table} ({columns}) VALUES ({', '.join('?' * len(values))})", tuple(values.values()))

    def next(self, counter: str) -> int:
        """Return the counter's number, from 0, and move it on for good."""
        with self.transaction():
            found = self.row(
                "INSERT INTO counter VALUES (?, 1) ON CONFLICT (name) DO UPDATE SET n = n + 1 RETURNING n",
                (counter,),
            )
            assert found is not None
            return int(found[0]) - 1

    def setting(self, name: str) -> Any:
        """Return a stored setting, or None."""
        found = self.row("SELECT value FROM setting WHERE name = ?", (name,))
        return None if found is None else json.loads(found[0])

    def set(self, name: str, value: Any) -> None:
        """Store a setting."""
        self.execute("INSERT OR REPLACE INTO setting VALUES (?, ?)", (name, json.dumps(value)))
