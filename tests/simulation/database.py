"""The one open database of a group of seeds, as each simulated process sees it: every transaction has boundaries."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import polars as pl

from lotwise.ledger import migrate
from lotwise.ledger.transaction import queries
from simulation.world import World

if TYPE_CHECKING:
    from simulation.story import Story


class OneConnection:
    """The seed's one open database, as one process sees it: every transaction has boundaries, and dies with it."""

    def __init__(self, story: Story) -> None:
        self._story, self._world, self._database = story, story.world, story.database

    @contextlib.contextmanager
    def session(self, purpose: str, *, read_only: bool = False) -> Iterator[Any]:
        """Yield the connection; what its process leaves open is rolled back."""
        self._world.step(f"before {purpose!r}")
        watched = _Watched(self._world, self._database, purpose, self._story)
        try:
            yield watched
        finally:
            if watched.is_open:
                self._database.execute("ROLLBACK")


class _Watched:
    """A connection whose COMMIT is a boundary on both sides."""

    def __init__(self, world: World, database: duckdb.DuckDBPyConnection, purpose: str, story: Story) -> None:
        self._world, self._database, self._purpose, self._story = world, database, purpose, story
        self.is_open = False

    def execute(self, statement: str | duckdb.Statement, parameters: object = None) -> Any:
        match statement:
            case "BEGIN":
                self._database.execute("BEGIN")
                self.is_open = True
            case "COMMIT":
                if self._world.chance("crash_in_transaction"):
                    self._world.end_here(f"before the commit of {self._purpose!r}")
                self._database.execute("COMMIT")
                self.is_open = False
                self._world.step(f"after the commit of {self._purpose!r}")
            case "ROLLBACK":
                if self.is_open:
                    self._database.execute("ROLLBACK")
                    self.is_open = False
            case _:
                if isinstance(parameters, dict) and {"shard", "owner"} <= parameters.keys():
                    self._witness(parameters)
                if not parameters and statement.query == queries()["all_open_shards"]:
                    return self._database.execute("EXECUTE all_open_shards")  # the most frequent one, planned once
                return self._database.execute(statement, parameters)
        return self._database

    def _witness(self, parameters: dict[str, Any]) -> None:
        """Note who acts on a shard, and whoever takes one that a living process holds by its lease."""
        story, shard, taker = self._story, parameters["shard"], parameters["owner"]
        story.takers.setdefault(shard, set()).add(taker)
        if "gone" not in parameters:
            return
        if parameters["gone"] is None:
            return
        look = "SELECT owner, lease_until FROM shard WHERE id = $id AND state = $state"
        held = self._database.execute(look, {"id": shard, "state": parameters["state"]}).fetchone()
        if held is None or held[1] is None or held[0] == taker or held[1] <= self._world.now:
            return
        holder = story.process(held[0])
        if holder is not None and not holder.known_gone and parameters["gone"] == held[0]:
            story.trespasses.append(f"{taker} takes shard {shard}, which {held[0]} holds until {held[1]}")

    def sql(self, statement: duckdb.Statement, params: object = None) -> _Rows:
        return _Rows(self.execute(statement, params))

    def extract_statements(self, text: str) -> list[duckdb.Statement]:
        return self._database.extract_statements(text)

    def register(self, name: str, frame: object) -> None:
        self._database.register(name, frame)

    def unregister(self, name: str) -> None:
        self._database.unregister(name)


class _Rows:
    """A result that becomes a frame; DuckDB's own relation plans a statement twice, which costs more than rows."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def pl(self) -> pl.DataFrame:
        schema = {name: _DTYPES[str(kind)] for name, kind, *_ in self._cursor.description}
        return pl.DataFrame(self._cursor.fetchall(), schema=schema, orient="row")


_DTYPES: dict[str, pl.DataType | type[pl.DataType]] = {
    "VARCHAR": pl.String,
    "BLOB": pl.Binary,
    "BOOLEAN": pl.Boolean,
    "INTEGER": pl.Int32,
    "BIGINT": pl.Int64,
    "HUGEINT": pl.Int128,
    "DOUBLE": pl.Float64,
    "DECIMAL(18,9)": pl.Decimal(18, 9),
    "DECIMAL(38,9)": pl.Decimal(38, 9),
    "TIMESTAMP WITH TIME ZONE": pl.Datetime("us", "UTC"),
}
"""What DuckDB's types are as frames; what the simulation does not come to is not here."""


class Onlooker:
    """The database without boundaries, for checks after the end."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database

    @contextlib.contextmanager
    def session(self, purpose: str, *, read_only: bool = False) -> Iterator[Any]:
        yield self._database


def fresh_database() -> duckdb.DuckDBPyConnection:
    """Open an empty ledger in memory."""
    database = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "256MB"})
    database.execute("SET TimeZone = 'UTC'")
    database.execute("PRAGMA disable_optimizer")  # a few dozen rows: planning costs more than any plan can save
    # Small blocks and row groups: each column of each new table takes a block, however few its rows are.
    database.execute("ATTACH ':memory:' AS ledger (BLOCK_SIZE 16384, ROW_GROUP_SIZE 2048)")
    database.execute("USE ledger")
    migrate.migrate(database, Path(":memory:"))
    database.execute(f"PREPARE all_open_shards AS {queries()['all_open_shards']}")
    return database


@contextlib.contextmanager
def parts_folder() -> Iterator[Path]:
    """Yield a folder for parts, in memory where the machine has such a file system."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="lotwise-sim-", dir=shared if shared.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
