"""One transaction on the ledger: named statements with named parameters, and frames in and out.

The statements stand in sql/queries.sql and sql/evidence.sql, and the checks of `ledger verify` in sql/checks.sql. A
failing one reports its name, never its parameters: they hold row content.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any

import duckdb
import polars as pl

from lotwise.errors import LedgerDamaged, LedgerDiskFull, LedgerStatementFailed

_parsed: dict[str, duckdb.Statement] = {}
"""Statements by name, parsed on first use: it is a good part of what a small one costs. They need no connection."""


@cache
def queries() -> dict[str, str]:
    """Return every named statement."""
    found: dict[str, str] = {}
    for file in ("queries.sql", "retries.sql", "evidence.sql", "golden.sql", "borrowed.sql", "checks.sql"):
        text = resources.files("lotwise.ledger").joinpath("sql", file).read_text(encoding="utf-8")
        for block in text.split("-- name: ")[1:]:
            name, body = block.split("\n", 1)
            found[name.strip()] = body.strip()
    return found


class Transaction:
    """A connection between BEGIN and COMMIT, that speaks in named statements."""

    def __init__(self, connection: Any, path: object) -> None:
        self._connection, self._path = connection, path

    def run(self, name: str, /, *, frames: Mapping[str, pl.DataFrame] | None = None, **params: object) -> int:
        """Run a statement that changes rows, and return how many."""
        row = self._execute(name, frames, params).fetchone()
        return int(row[0]) if row else 0

    def rows(self, name: str, /, *, frames: Mapping[str, pl.DataFrame] | None = None, **params: object) -> list[Any]:
        """Run a statement and return its rows as tuples."""
        rows: list[Any] = self._execute(name, frames, params).fetchall()
        return rows

    def records(self, name: str, /, **params: object) -> list[dict[str, Any]]:
        """Run a statement and return its rows as dictionaries."""
        cursor = self._execute(name, None, params)
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def frame(
        self, name: str, /, *, frames: Mapping[str, pl.DataFrame] | None = None, **params: object
    ) -> pl.DataFrame:
        """Run a statement and return its rows as a Polars frame."""
        statement, used = self._bind(name, params)
        with _Registered(self._connection, frames or {}):
            try:
                result: pl.DataFrame = self._connection.sql(statement, params=used).pl()
                return result
            except (duckdb.Error, RuntimeError) as error:
                fault = self._translate(name, error)
            raise fault  # outside, so that DuckDB's own error, which may quote content, is not in its chain

    def sample(
        self, name: str, /, n: int, *, frames: Mapping[str, pl.DataFrame] | None = None
    ) -> tuple[int, tuple[str, ...]]:
        """Run a statement that returns a column `id`, and return how many there are and the `n` first of them."""
        with _Registered(self._connection, frames or {}):
            sql = f"SELECT count(*), min(id::VARCHAR, {n:d}) FROM ({queries()[name]}\n)"
            try:
                ((count, first),) = self._connection.execute(sql).fetchall()
                return int(count), tuple(first or ())
            except (duckdb.Error, RuntimeError) as error:
                fault = self._translate(name, error)
            raise fault  # outside, so that DuckDB's own error, which may quote content, is not in its chain

    def read_through(self, table: str, *, step: int) -> Iterator[int]:
        """Read every column of a table, `step` rows at a time, and yield how many rows each step had.

        Hashing the whole row makes DuckDB unpack each of its blocks; a mere count would not.
        """
        quoted = '"' + table.replace('"', '""') + '"'
        try:
            start = 0
            while True:
                ahead = f"SELECT min(rowid) FROM {quoted} WHERE rowid >= $a"
                ((first,),) = self._connection.execute(ahead, {"a": start}).fetchall()
                if first is None:
                    return
                start = int(first) + step
                read = f"SELECT count(*), bit_xor(hash(t)) FROM {quoted} t WHERE rowid >= $a AND rowid < $b"
                yield int(self._connection.execute(read, {"a": first, "b": start}).fetchall()[0][0])
        except (duckdb.Error, RuntimeError) as error:
            raise self._translate(table, error) from None

    def _execute(self, name: str, frames: Mapping[str, pl.DataFrame] | None, params: Mapping[str, object]) -> Any:
        statement, used = self._bind(name, params)
        with _Registered(self._connection, frames or {}):
            try:
                return self._connection.execute(statement, used)
            except (duckdb.Error, RuntimeError) as error:
                fault = self._translate(name, error)
            raise fault  # outside, so that DuckDB's own error, which may quote content, is not in its chain

    def _bind(self, name: str, params: Mapping[str, object]) -> tuple[duckdb.Statement, dict[str, object]]:
        statement = _parsed.get(name)
        if statement is None:
            (statement,) = self._connection.extract_statements(queries()[name])
            _parsed[name] = statement
        return statement, {used: params[used] for used in statement.named_parameters}

    def _translate(self, name: str, error: BaseException) -> BaseException:
        text = str(error)
        if isinstance(error, duckdb.InterruptException) or "Query interrupted" in text:
            return KeyboardInterrupt()
        if "No space left" in text:
            return LedgerDiskFull.at(self._path)
        if "Corrupt database" in text or "checksum" in text or "Could not read" in text:
            return LedgerDamaged.at(self._path, type(error).__name__)
        return LedgerStatementFailed.of(name, type(error).__name__)


class _Registered:
    """Frames that a statement can name, for as long as it runs."""

    def __init__(self, connection: Any, frames: Mapping[str, pl.DataFrame]) -> None:
        self._connection, self._frames = connection, frames

    def __enter__(self) -> None:
        for name, frame in self._frames.items():
            self._connection.register(name, frame.to_arrow(compat_level=pl.CompatLevel.newest()))

    def __exit__(self, failed: object, *_: object) -> None:
        if failed is not None:
            return  # the transaction is aborted and can only be rolled back; the names go with its connection
        for name in self._frames:
            self._connection.unregister(name)
