"""The ledger's folder: finding it, guarding it, and opening its DuckDB file for one short transaction.

One process at a time may have a DuckDB file open for writing, and DuckDB's own lock starves whoever waits with
back-off. So a blocking OS lock on a sidecar file is taken first, the file is opened, one transaction is done, the file
is closed, and the lock is given back. Nothing slow (network, user code, rendering) ever happens inside.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import duckdb

from lotwise import signals
from lotwise.errors import (
    LedgerDamaged,
    LedgerForeign,
    LedgerLocked,
    LedgerNotFound,
    LedgerUnwritable,
)

DATABASE = "ledger.duckdb"
LOCK = "ledger.lock"
PARTS = "parts"
DEFAULT_FOLDER = ".lotwise"

# A foreign reader holds DuckDB's lock without our sidecar (somebody's own `duckdb ledger.duckdb`). Waiting longer than
# this for it would look like a hang; the error then names its process.
FOREIGN_WAIT_S = 5.0


ROW_GROUP = 30_720
"""Rows a row group. The last, partial group is written anew at every close; DuckDB's own 122,880 rows would make a
ledger that grows by 25,000 rows a transaction write each row three times (docs/decisions/0005-row-groups.md)."""


class Connections(Protocol):
    """Where a ledger's transactions get their DuckDB connection from."""

    def session(self, purpose: str, *, read_only: bool = False) -> contextlib.AbstractContextManager[Any]:
        """Yield a connection that nobody else writes through; closed, or left as it was, afterwards."""


def locate(given: str | os.PathLike[str] | None, *, environ: dict[str, str] | None = None) -> Path:
    """Say which folder is the ledger: the given one, LOTWISE_LEDGER, lotwise.toml or `.lotwise/` upwards, else here.

    Returns an absolute path; nothing is made.
    """
    env = os.environ if environ is None else environ
    if given is not None:
        return Path(given).expanduser().absolute()
    if env.get("LOTWISE_LEDGER"):
        return Path(env["LOTWISE_LEDGER"]).expanduser().absolute()
    here = Path.cwd()
    for folder in (here, *here.parents):
        settings = folder / "lotwise.toml"
        if settings.is_file():
            named = _ledger_in(settings)
            if named is not None:
                return (folder / named).absolute()
        if (folder / DEFAULT_FOLDER / DATABASE).is_file():
            return folder / DEFAULT_FOLDER
    return here / DEFAULT_FOLDER


def _ledger_in(settings: Path) -> str | None:
    import tomllib

    with settings.open("rb") as file:
        value = tomllib.load(file).get("ledger")
    return value if isinstance(value, str) else None


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A ledger's folder on a local disk, and the one way to connect to the file in it."""

    path: Path
    memory_limit: str = "1GB"
    read_only: str | None = None
    """Why it may only be read; None where it may be written."""
    _instance: _Kept = field(default_factory=lambda: _Kept(), repr=False, compare=False)

    @property
    def database(self) -> Path:
        return self.path / DATABASE

    @property
    def parts(self) -> Path:
        return self.path / PARTS

    @property
    def exists(self) -> bool:
        return self.database.exists()

    def make(self) -> None:
        """Create the folder, of mode 0700 and ignored by git. An existing folder is only checked."""
        if self.path.is_file():
            raise LedgerUnwritable.is_file(self.path)
        try:
            with _private():
                self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
                self.parts.mkdir(mode=0o700, exist_ok=True)
                ignore = self.path / ".gitignore"
                if not ignore.exists():
                    ignore.write_text("*\n", encoding="utf-8")
        except (PermissionError, NotADirectoryError, FileExistsError, OSError) as error:
            raise LedgerUnwritable.at(self.path, error.strerror or type(error).__name__) from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise LedgerUnwritable.at(self.path, "no permission to write")
        refuse_network_file_system(self.path)

    def unwritable(self) -> str | None:
        """Say why a ledger that is there cannot be written; None where it can."""
        for path in (self.path, self.database, self.path / LOCK, self.parts):
            if path.exists() and not os.access(path, os.W_OK, effective_ids=os.access in os.supports_effective_ids):
                if os.statvfs(path).f_flag & os.ST_RDONLY:
                    return "its file system is read-only"
                return "no permission to write" + ("" if path == self.path else f" {path.name}")
        return None

    def check(self) -> None:
        """Refuse a file that is not a DuckDB database, before DuckDB opens it. The file is left as it is.

        May be called only while this process has no connection to the file: closing it drops DuckDB's own lock.
        """
        if not self.exists:
            return
        with self.database.open("rb") as file:
            head = file.read(12)
        if head[8:12] != b"DUCK":
            raise LedgerForeign.not_duckdb(self.database)

    @contextlib.contextmanager
    def session(self, purpose: str, *, read_only: bool = False) -> Iterator[Any]:
        """Yield a connection under the sidecar lock, and close it before the lock is given back."""
        if read_only and not self.exists:
            raise LedgerNotFound.at(self.path)
        with (
            self.alone(purpose, to_read=read_only),
            _interruptible(),
            self._instance.attached(self, read_only=read_only) as connection,
        ):
            yield connection

    @contextlib.contextmanager
    def alone(self, purpose: str, *, to_read: bool = False) -> Iterator[None]:
        """Hold the sidecar lock with no connection open, for work on the files themselves.

        Raises
        ------
        LedgerUnwritable
            It may only be read, and this is not `to_read`.
        """
        if self.read_only is not None and not to_read:
            raise LedgerUnwritable.at(self.path, self.read_only)
        lock = self.path / LOCK
        with _sidecar(lock, purpose) if self.read_only is None else _sidecar_to_read(lock), _private():
            self.check()
            yield

    @contextlib.contextmanager
    def shut_off(self, purpose: str) -> Iterator[Any]:
        """Yield a connection, under the sidecar lock, that can read the ledger and reach no other file.

        DuckDB gives an instance no way back from that, so it is one of its own.
        """
        if not self.exists:
            raise LedgerNotFound.at(self.path)
        with (
            self.alone(purpose, to_read=True),
            _interruptible(),
            self.connect(self.database, read_only=True) as connection,
        ):
            connection.execute("SET enable_external_access = false")
            connection.execute("SET lock_configuration = true")
            yield connection

    @contextlib.contextmanager
    def connect(self, database: Path, *, read_only: bool = False) -> Iterator[Any]:
        """Yield a connection to a DuckDB file while the lock is held, and close it afterwards."""
        connection = _instance(database, self.memory_limit)
        try:
            _attach(connection, database, read_only=read_only)
            yield connection
        finally:
            connection.close()


class _Kept:
    """A DuckDB instance in memory, to which the ledger's file is attached for each transaction.

    Making an instance costs ten times what attaching a file does (docs/decisions/0005-row-groups.md). Between two
    transactions it holds no file and no lock. One that has met an error that it may not survive is dropped.
    """

    def __init__(self) -> None:
        self._connection: Any = None
        self._pid = 0

    @contextlib.contextmanager
    def attached(self, folder: Folder, *, read_only: bool) -> Iterator[Any]:
        if self._connection is None or self._pid != os.getpid():
            self._connection, self._pid = _instance(folder.database, folder.memory_limit), os.getpid()
        connection = self._connection
        whole = False
        try:
            name = _attach(connection, folder.database, read_only=read_only)
            try:
                yield connection
            finally:
                connection.execute("USE memory")
                connection.execute(f"DETACH {name}")  # writes a checkpoint, and gives DuckDB's own lock back
            whole = True
        except Exception as error:
            whole = not isinstance(error, duckdb.Error | RuntimeError)
            raise
        finally:
            if not whole:
                self._connection = None
                connection.close()


def wal_of(database: Path) -> Path:
    """Return where DuckDB keeps a database's write-ahead log."""
    return database.with_name(database.name + ".wal")


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let Ctrl-C, and SIGTERM where it is heard, be a KeyboardInterrupt, at the end of the block at the latest.

    DuckDB makes a RuntimeError of one that comes while a statement runs, and loses one that comes while it looks for
    Python modules, at a connect or a statement's start.
    """
    in_main = threading.current_thread() is threading.main_thread()  # signals come to the main thread alone
    before = {number: signal.getsignal(number) for number in signals.heard()} if in_main else {}
    came: list[int] = []

    def heard(number: int, frame: Any) -> None:
        came.append(number)
        raise signals.interrupt(number)

    for number in before:
        signal.signal(number, heard)
    try:
        yield
    except RuntimeError as error:
        if "Query interrupted" not in str(error):
            raise
        came.append(signal.SIGINT)
    finally:
        for number, hand in before.items():
            signal.signal(number, hand)
    if came:
        raise signals.interrupt(came[0])


_in_process = threading.Lock()  # flock belongs to the open file, so threads need a lock of their own in front
_holder = threading.local()


@contextlib.contextmanager
def _sidecar(path: Path, purpose: str) -> Iterator[None]:
    with _one_a_process():
        try:
            with _private():
                handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerUnwritable.at(path.parent, error.strerror or "no permission") from None
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()} {purpose}\n".encode(), 0)
            yield
        finally:
            os.close(handle)  # gives the lock back too


@contextlib.contextmanager
def _sidecar_to_read(path: Path) -> Iterator[None]:
    """Keep writers out as far as somebody can who may only read. Where the lock cannot be opened, DuckDB's own does."""
    with _one_a_process():
        handle: int | None = None
        with contextlib.suppress(OSError):
            handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if handle is not None:
                fcntl.flock(handle, fcntl.LOCK_SH)
            yield
        finally:
            if handle is not None:
                os.close(handle)


@contextlib.contextmanager
def _one_a_process() -> Iterator[None]:
    if getattr(_holder, "busy", False):
        raise RuntimeError("a ledger transaction was opened inside another one of the same thread")
    with _in_process:
        _holder.busy = True
        try:
            yield
        finally:
            _holder.busy = False


@contextlib.contextmanager
def _private() -> Iterator[None]:
    """Make every file that is created inside readable by its owner alone, DuckDB's WAL and spill files too."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


def _instance(database: Path, memory_limit: str) -> Any:
    """Make a DuckDB instance in memory, for files in the folder of `database`."""
    # Never a download: an SQLite file, say, would make DuckDB look for an extension.
    config: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": memory_limit,
        "autoinstall_known_extensions": "false",
        "autoload_known_extensions": "false",
        "temp_directory": f"{database}.tmp",  # an instance that began in memory would spill into the working folder
    }
    connection = duckdb.connect(config=config)
    connection.execute("SET preserve_insertion_order = false")
    connection.execute("SET TimeZone = 'UTC'")
    return connection


def _attach(connection: Any, database: Path, *, read_only: bool) -> str:
    """Attach a file, make it the default, and return its name in SQL. Waits a while for a foreign reader."""
    options = f"ROW_GROUP_SIZE {ROW_GROUP}" + (", READ_ONLY" if read_only else "")
    path, name = str(database).replace("'", "''"), '"' + database.stem.replace('"', '""') + '"'
    deadline = time.monotonic() + FOREIGN_WAIT_S
    pause = 0.01
    while True:
        try:
            connection.execute(f"ATTACH '{path}' AS {name} ({options})")
        except duckdb.IOException as error:
            text = str(error)
            if "Could not set lock" in text:
                if time.monotonic() < deadline:
                    time.sleep(pause)
                    pause = min(pause * 2, 0.25)
                    continue
                raise LedgerLocked.by(database, _pid_in(text)) from None
            raise LedgerDamaged.at(database, _first_line(text)) from None
        except duckdb.Error as error:
            raise LedgerDamaged.at(database, _first_line(str(error))) from None
        connection.execute(f"USE {name}")
        return name


def _pid_in(text: str) -> int | None:
    found = re.search(r"PID (\d+)", text)
    return int(found.group(1)) if found else None


def _first_line(text: str) -> str:
    return text.splitlines()[0][:200] if text else "unknown"


_NETWORK = {
    "nfs",
    "nfs4",
    "cifs",
    "smb3",
    "smbfs",
    "sshfs",
    "fuse.sshfs",
    "afs",
    "9p",
    "glusterfs",
    "ceph",
    "lustre",
}


def refuse_network_file_system(path: Path) -> None:
    """Refuse a folder on a file system whose locks and fsync cannot be relied on (Linux: by /proc/mounts)."""
    mounts = Path("/proc/mounts")
    if not mounts.exists():
        return
    best, kind = "", ""
    target = str(path.resolve())
    for line in mounts.read_text(encoding="utf-8", errors="replace").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        point = fields[1].encode().decode("unicode_escape")
        inside = target == point or target.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, fields[2]
    if kind in _NETWORK:
        raise LedgerUnwritable.at(path, f"it is on a network file system ({kind}), whose locks cannot be trusted")
