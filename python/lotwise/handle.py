"""A ledger as the analyst holds it: its runs, its answers to SQL, and the way to take a run up again."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from lotwise import lots, watch
from lotwise.golden import Match
from lotwise.job import Options
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger
from lotwise.run import Run
from lotwise.status import Status, missing_of, row_of, schema_of


class LedgerHandle:
    """A ledger that exists. Made by `open_ledger`; holds no connection between calls."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def path(self) -> Path:
        """The ledger's folder."""
        return self._ledger.path

    @property
    def read_only(self) -> str | None:
        """Why the ledger can only be read here; None where it can be written."""
        return self._ledger.read_only

    def __repr__(self) -> str:
        return f"<lotwise ledger at {self.path}{'' if self.read_only is None else ', to be read only'}>"

    def runs(self) -> pl.DataFrame:
        """Return all runs, oldest first: one row a run."""
        return run_book.all_runs(self._ledger)

    def status(self, run_id: str) -> Status:
        """Return where a run stands. Sends nothing, asks no provider, and does not take the run up.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        """
        return Status.of(self._ledger, run_id)

    def missing(self, run_id: str) -> pl.DataFrame:
        """Return every request of a run without a valid answer, with its state and reason, as `Run.missing` does.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        """
        return missing_of(self._ledger, run_id)

    def lots(self, run_id: str) -> pl.DataFrame:
        """Return what is known of a run's lots, as `Run.lots` does. Sends nothing and asks no provider.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        """
        family = lots.family_of(self._ledger, run_id)
        lots.close(self._ledger, family, datetime.now(UTC))
        return lots.table(self._ledger, family)

    def golden(self, run_id: str, *, match: Match | None = None) -> pl.DataFrame:
        """Return what was expected of a run's golden rows and what was answered, as `Run.golden` does.

        Parameters
        ----------
        match
            The function by which they are compared, which is not kept: without it `agreed` is null where there was one.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        CheckFailedToRun
            The function raised or gave no verdict.
        """
        row = row_of(self._ledger, run_id)
        canary = watch.restore(self._ledger, run_id, schema_of(row))
        if match is not None and canary is not None and canary.golden is not None:
            canary = replace(canary, golden=replace(canary.golden, match=match))
        return watch.golden_answers(self._ledger, canary, row["validator"])

    def sql(self, query: str) -> pl.DataFrame:
        """Answer one read-only DuckDB query over the ledger's tables. It opens, answers and closes.

        Raises
        ------
        QueryRefused
            It is not one statement, would change something or reach another file, or DuckDB cannot run it.
        """
        return self._ledger.sql(query)

    def unfinished(self) -> pl.DataFrame:
        """Return the runs with something left to do, oldest first.

        Returns
        -------
        `id`, and `collect_only`: true for a run that has ended and still has a shard in flight, whose results are paid
        for and wait to be collected.
        """
        return run_book.unfinished(self._ledger)

    def stop(self) -> list[str]:
        """Stop every open run: no process sends anything more for it. What is in flight can still be collected.

        Returns
        -------
        The ids of the runs that were open.
        """
        return run_book.stop(self._ledger, datetime.now(UTC))

    def resume(
        self,
        run_id: str,
        *,
        options: Options | None = None,
        progress: bool | None = None,
        poll_s: float | None = None,
        collect_only: bool = False,
    ) -> Run:
        """Take a run up in this process; `wait()` on what it returns goes on with it.

        With `collect_only` what is in flight is collected and nothing is sent.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        """
        return Run.resume(
            self._ledger, run_id, options=options, progress=progress, poll_s=poll_s, collect_only=collect_only
        )


def open_ledger(path: str | os.PathLike[str] | None = None) -> LedgerHandle:
    """Open a ledger that exists. One that cannot be written is opened to be read (`LedgerHandle.read_only` says why).

    Parameters
    ----------
    path
        Its folder; None to find it as `map` does.

    Raises
    ------
    LedgerNotFound, LedgerForeign, LedgerNewer, LedgerDamaged, LedgerLocked, LedgerUnwritable
        The last for one of an older version that cannot be brought to this one. The file is left as it is in every
        case.
    """
    return LedgerHandle(Ledger.open(path, create=False))
