"""The ledger itself: where it is opened, and the short transactions in which it is read and written.

What the journey of a row needs of it stands beside this, one module a kind of thing, each function one transaction:
`requests`, `shards`, `results` and `runs`, and apart from them `retries`, `waiting`, `borrowed`, `orphans`, `golden`,
`evidence`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import polars as pl

from lotwise.errors import ForkedLedger, LedgerNotFound, LedgerUnwritable
from lotwise.ledger import migrate
from lotwise.ledger.files import Connections, Folder, locate
from lotwise.ledger.query import answer
from lotwise.ledger.transaction import Transaction


class Ledger:
    """A lotwise ledger. Holds no connection between calls; every use is one short transaction.

    Parameters
    ----------
    connections
        Where connections come from: a `Folder`, or in simulations one that is already open.
    parts_folder
        Where rendered content lies.
    read_only
        Why it may only be read; None where it may be written.
    """

    def __init__(
        self, connections: Connections, parts_folder: Path, path: Path, *, read_only: str | None = None
    ) -> None:
        self.read_only = read_only
        self.connections = connections
        self.parts_folder = parts_folder
        self.path = path
        self._pid = os.getpid()

    @classmethod
    def open(cls, given: str | os.PathLike[str] | None = None, *, create: bool = True) -> Ledger:
        """Open the ledger in a folder, made and migrated when need be.

        Parameters
        ----------
        given
            The folder; None for LOTWISE_LEDGER, a lotwise.toml or `.lotwise/` upwards, else `.lotwise/` here.
        create
            Whether to make a ledger where there is none. One that is there and cannot be written is opened to be read
            only where this is false.

        Raises
        ------
        LedgerNotFound, LedgerUnwritable, LedgerForeign, LedgerNewer, LedgerDamaged, LedgerLocked
            The file is left as it is in every case.
        """
        path = locate(given)
        folder = Folder(path=path)
        if not folder.exists and not create and not path.is_file():
            raise LedgerNotFound.at(path)
        if folder.exists and (why := folder.unwritable()) is not None:
            if create:
                raise LedgerUnwritable.at(path, why)
            return cls._opened_to_read(replace(folder, read_only=why))
        folder.make()
        folder.check()
        if folder.exists:
            with folder.session("check") as connection:
                version = migrate.version_of(connection, folder.database)
            if 0 < version < migrate.LATEST:
                migrate.keep_copy(folder.database, version)
        with folder.session("open") as connection:
            if migrate.version_of(connection, folder.database) < migrate.LATEST:
                migrate.migrate(connection, folder.database)
        return cls(folder, folder.parts, path)

    @classmethod
    def _opened_to_read(cls, folder: Folder) -> Ledger:
        with folder.session("check", read_only=True) as connection:
            version = migrate.version_of(connection, folder.database)
        if version < migrate.LATEST:
            raise LedgerUnwritable.older(folder.path, version, migrate.LATEST)
        return cls(folder, folder.parts, folder.path, read_only=folder.read_only)

    def refuse_fork(self) -> None:
        """Raise `ForkedLedger` in a child of the process that opened this ledger."""
        if os.getpid() != self._pid:
            raise ForkedLedger.of(self._pid, os.getpid())

    @contextlib.contextmanager
    def transaction(self, purpose: str) -> Iterator[Transaction]:
        """Run one short transaction that commits at the end, or rolls back when anything is raised inside."""
        self.refuse_fork()
        with self.connections.session(purpose) as connection:
            connection.execute("BEGIN")
            try:
                yield Transaction(connection, self.path)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(Exception):  # after a failed COMMIT a ROLLBACK itself raises
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self, purpose: str) -> Iterator[Transaction]:
        """Read in one consistent snapshot; nothing is written, so closing costs no checkpoint."""
        self.refuse_fork()
        with self.connections.session(purpose, read_only=True) as connection:
            yield Transaction(connection, self.path)

    def sql(self, query: str) -> pl.DataFrame:
        """Answer one read-only query as a frame. Opens, answers and closes; others wait meanwhile."""
        self.refuse_fork()
        return answer(self.connections, query)

    def copy_to(self, database: Path) -> None:
        """Copy every table into a new DuckDB file, without the free blocks of this one."""
        self.refuse_fork()
        quoted = str(database).replace("'", "''")
        with self.connections.session("export", read_only=True) as connection:
            here = connection.execute("SELECT current_database()").fetchall()[0][0]
            connection.execute(f"ATTACH '{quoted}' AS copied (READ_WRITE)")
            connection.execute(f'COPY FROM DATABASE "{here}" TO copied')
            connection.execute("DETACH copied")
