"""The ledger, its runs and its files: the analyst acts, or whoever looks after the machine."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal

from lotwise.errors.base import LotwiseError, nearest


class LedgerError(LotwiseError):
    """Something is wrong with the ledger's folder or file. Nothing in it was changed."""


class LedgerNotFound(LedgerError, FileNotFoundError):
    """There is no ledger where one was expected."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object) -> LedgerNotFound:
        return cls(f"there is no ledger at {path}; a `map` makes one, or name another with ledger=", path)


class LedgerUnwritable(LedgerError, PermissionError):
    """The ledger's folder cannot be made or written."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object, why: str) -> LedgerUnwritable:
        return cls(f"the ledger at {path} cannot be written: {why}; name another folder with ledger=", path)

    @classmethod
    def older(cls, path: object, found: int, known: int) -> LedgerUnwritable:
        """Build from the schema version that is there and the one that this lotwise reads."""
        return cls(
            f"the ledger at {path} has schema version {found}, must be brought to {known} to be read, and cannot be "
            "written; copy the folder to where it can, and name the copy with ledger=",
            path,
        )

    @classmethod
    def is_file(cls, path: object) -> LedgerUnwritable:
        return cls(f"{path} is a file, and a ledger is a folder; name another folder with ledger=", path)


class LedgerForeign(LedgerError, ValueError):
    """The file is not a lotwise ledger."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def not_duckdb(cls, path: object) -> LedgerForeign:
        return cls(f"{path} is not a DuckDB file; it was left as it is. Name another folder with ledger=", path)

    @classmethod
    def not_ours(cls, path: object) -> LedgerForeign:
        return cls(
            f"{path} is a DuckDB file, but not a lotwise ledger; it was left as it is. "
            "Name another folder with ledger=",
            path,
        )


class LedgerNewer(LedgerError, RuntimeError):
    """The ledger was written by a newer lotwise."""

    def __init__(self, message: str, path: object, found: int, known: int) -> None:
        super().__init__(message)
        self.path, self.found, self.known = path, found, known

    @classmethod
    def at(cls, path: object, found: int, known: int) -> LedgerNewer:
        return cls(
            f"the ledger at {path} has schema version {found}, and this lotwise knows versions up to {known}; "
            "it was left as it is. Install a newer lotwise",
            path,
            found,
            known,
        )


class LedgerDamaged(LedgerError, RuntimeError):
    """The ledger's file or one of its parts cannot be read."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object, what: str) -> LedgerDamaged:
        return cls(
            f"the ledger at {path} is damaged ({what}); it was left as it is. Restore it and its .wal from a copy",
            path,
        )


class LedgerLocked(LedgerError, TimeoutError):
    """Another program holds the ledger's DuckDB file open without lotwise's own lock."""

    def __init__(self, message: str, path: object, pid: int | None) -> None:
        super().__init__(message)
        self.path, self.pid = path, pid

    @classmethod
    def by(cls, path: object, pid: int | None) -> LedgerLocked:
        who = f"process {pid}" if pid is not None else "another process"
        return cls(
            f"{path} is held open by {who}, which is not using lotwise's lock; close it there, or read through "
            "`lotwise ledger sql` or a `lotwise ledger export`, which hold it for moments only",
            path,
            pid,
        )


class LedgerInconsistent(LedgerError, AssertionError):
    """An invariant of the ledger does not hold: a defect of lotwise, or a ledger that was edited by hand."""

    def __init__(self, message: str, facts: dict[str, object]) -> None:
        super().__init__(message)
        self.facts = facts

    @classmethod
    def of(cls, what: str, **facts: object) -> LedgerInconsistent:
        told = ", ".join(f"{name}={value}" for name, value in facts.items())
        return cls(f"{what} ({told}); nothing was changed. Run `lotwise ledger verify`", facts)


class LedgerDiskFull(LedgerError, OSError):
    """The disk that the ledger lies on is full. What was committed is safe; the last transaction did not happen."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object) -> LedgerDiskFull:
        return cls(f"no space left for the ledger at {path}; free some and call again, nothing is lost", path)


class LedgerStatementFailed(LedgerError, RuntimeError):
    """DuckDB refused one of lotwise's own statements: a defect of lotwise."""

    def __init__(self, message: str, name: str, kind: str) -> None:
        super().__init__(message)
        self.name, self.kind = name, kind

    @classmethod
    def of(cls, name: str, kind: str) -> LedgerStatementFailed:
        return cls(f"the ledger statement {name!r} failed with {kind}; the transaction was rolled back", name, kind)


class ClaimLost(LedgerError, RuntimeError):
    """Another process took some of the same requests, or the same shard, first. Nothing was changed; look again."""

    def __init__(self, what: str, asked: int, got: int) -> None:
        super().__init__(f"{what}: asked for {asked}, {got} were still free; the transaction was rolled back")
        self.what, self.asked, self.got = what, asked, got


class ForkedLedger(LedgerError, RuntimeError):
    """A ledger that was opened before a fork was used in the child. DuckDB connections do not survive a fork."""

    def __init__(self, message: str, opened_by: int, used_by: int) -> None:
        super().__init__(message)
        self.opened_by, self.used_by = opened_by, used_by

    @classmethod
    def of(cls, opened_by: int, used_by: int) -> ForkedLedger:
        return cls(
            f"this ledger was opened by process {opened_by} and is used in {used_by} after a fork; "
            "open it again in the child, or start workers with the spawn method",
            opened_by,
            used_by,
        )


class BudgetTooSmall(LedgerError, ValueError):
    """A shard's upper bound does not fit what is left of the budget. Nothing was reserved.

    `n_open` counts the reservations that are not settled yet: what they leave over may make room.
    """

    def __init__(
        self, message: str, budget_usd: Decimal, committed_usd: Decimal, asked_usd: Decimal, n_open: int
    ) -> None:
        super().__init__(message)
        self.budget_usd, self.committed_usd, self.asked_usd = budget_usd, committed_usd, asked_usd
        self.n_open = n_open

    @classmethod
    def of(cls, budget_usd: Decimal, committed_usd: Decimal, asked_usd: Decimal, *, n_open: int = 0) -> BudgetTooSmall:
        return cls(
            f"up to ${asked_usd} more does not fit a budget of ${budget_usd}, of which ${committed_usd} is spent or "
            "reserved",
            budget_usd,
            committed_usd,
            asked_usd,
            n_open,
        )


class RunEnded(LedgerError, RuntimeError):
    """A run was ended (canceled, or stopped by another process), so nothing more is sent for it."""

    def __init__(self, message: str, run: str, reason: str) -> None:
        super().__init__(message)
        self.run, self.reason = run, reason

    @classmethod
    def of(cls, run: str, state: str, reason: str | None) -> RunEnded:
        return cls(f"run {run} is {state}; nothing more is sent for it", run, reason or state)


class UnknownRun(LotwiseError, LookupError):
    """The ledger has no such run."""

    def __init__(self, message: str, run: str) -> None:
        super().__init__(message)
        self.run = run

    @classmethod
    def of(cls, run: str, available: Iterable[str]) -> UnknownRun:
        near = nearest(run, available)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `lotwise status` lists the runs"
        return cls(f"the ledger has no run {run!r}{hint}", run)


class UnreachableAnswers(LotwiseError, RuntimeError):
    """A run was taken up by its id, and its answers are judged by code that only the caller has."""

    def __init__(self, message: str, run: str) -> None:
        super().__init__(message)
        self.run = run

    @classmethod
    def of(cls, run: str) -> UnreachableAnswers:
        return cls(
            f"run {run} is judged by a Pydantic model or a check= that lives in the caller's code; "
            "repeat its map, which costs nothing, to see the answers",
            run,
        )


class PurgeRefused(LedgerError, RuntimeError):
    """Requests still need the text that a purge would remove. Nothing was changed."""

    def __init__(self, message: str, n_pending: int, n_submitted: int, n_unsettled: int) -> None:
        super().__init__(message)
        self.n_pending, self.n_submitted, self.n_unsettled = n_pending, n_submitted, n_unsettled

    @classmethod
    def of(cls, n_pending: int, n_submitted: int, n_unsettled: int) -> PurgeRefused:
        """Build from how many requests are pending, how many submitted, and how many answers nobody judged yet."""
        if n_unsettled:
            hint = f"{n_unsettled} recorded answers are not judged yet; resume their runs first"
        else:
            hint = (
                "they could not be sent without their text; finish or cancel their runs first, "
                "or pass force to purge all the same"
            )
        return cls(
            f"{n_pending} requests are pending and {n_submitted} submitted: {hint}", n_pending, n_submitted, n_unsettled
        )


class ContentPurged(LedgerError, ValueError):
    """What is asked for was taken out of the ledger by a purge of values."""

    @classmethod
    def messages(cls) -> ContentPurged:
        """Build for a spec without its system message and examples."""
        return cls(
            "the messages of this spec were purged, and no request can be made from it; repeat the map, which has them"
        )

    @classmethod
    def answers(cls, lots: Iterable[str]) -> ContentPurged:
        """Build from the lots whose drawn answers are gone."""
        named = ", ".join(list(lots)[:3])
        return cls(
            f"the answers of {named} were purged (`lotwise ledger purge --values`), so there is nothing to read; "
            "verdicts that were given before still count. Read from a copy of the ledger made before the purge"
        )


class ExportExists(LedgerError, FileExistsError):
    """There is a file where an export should go; it was left as it is."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object) -> ExportExists:
        """Build from the path that is taken."""
        return cls(f"{path} is there already and was left as it is; name another file, or remove it", path)
