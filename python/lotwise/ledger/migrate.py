"""The ledger's schema, as append-only steps.

A new ledger takes all steps; an older one is copied first and then takes the steps it lacks, each in a transaction. A
newer or foreign one is refused with versions and left as it is.
"""

from __future__ import annotations

import re
import secrets
import shutil
from importlib import resources
from pathlib import Path
from typing import Any

from lotwise.errors import LedgerForeign, LedgerNewer
from lotwise.ledger.files import wal_of

_COPY = re.compile(r"^ledger\.before-v\d+\.duckdb(\.wal)?$")
_STEP = re.compile(r"^(\d{3})_\w+\.sql$")


def steps() -> dict[int, str]:
    """Return each step's number and SQL, in order."""
    found: dict[int, str] = {}
    for entry in resources.files("lotwise.ledger").joinpath("sql").iterdir():
        match = _STEP.match(entry.name)
        if match:
            found[int(match.group(1))] = entry.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


LATEST = max(steps())


def version_of(connection: Any, path: Path) -> int:
    """Return a database's schema version: 0 for an empty one. Raises when it is foreign or newer."""
    tables = {row[0] for row in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not tables:
        return 0
    if not {"meta", "request", "shard"} <= tables:
        raise LedgerForeign.not_ours(path)
    row = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    if row is None:
        raise LedgerForeign.not_ours(path)
    version = int(row[0])
    if version > LATEST:
        raise LedgerNewer.at(path, version, LATEST)
    return version


def migrate(connection: Any, path: Path) -> None:
    """Bring a connected database to the latest version, one transaction a step."""
    version = version_of(connection, path)
    for number, sql in steps().items():
        if number <= version:
            continue
        connection.execute("BEGIN")
        connection.execute(sql)
        if number == 1:
            connection.execute("INSERT INTO meta VALUES ('ledger_id', $1)", [secrets.token_hex(16)])
            connection.execute("INSERT INTO meta VALUES ('schema_version', $1)", [str(number)])
        else:
            connection.execute("UPDATE meta SET value = $1 WHERE name = 'schema_version'", [str(number)])
        connection.execute("COMMIT")


def keep_copy(database: Path, version: int) -> Path:
    """Copy a database and its WAL aside before it is migrated. Only while nothing in this process has it open."""
    copy = database.with_name(f"ledger.before-v{version + 1}.duckdb")
    shutil.copy2(database, copy)
    wal = wal_of(database)
    if wal.exists():
        shutil.copy2(wal, wal_of(copy))
    return copy


def copies(database: Path) -> list[Path]:
    """List the copies that were kept beside a database, and their WALs, by their names."""
    return sorted(path for path in database.parent.iterdir() if _COPY.match(path.name))
