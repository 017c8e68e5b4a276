"""A ledger as the analyst holds it: its runs, its answers to SQL, and the way to take a run up again."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from lotwise.job import Options
from lotwise.ledger.store import Ledger
from lotwise.run import Run, Status, missing_of


class LedgerHandle:
    """A ledger that exists. Made by `open_ledger`; holds no connection between calls."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @property
    def path(self) -> Path:
        """The ledger's folder."""
        return self._ledger.path

    def __repr__(self) -> str:
        return f"<lotwise ledger at {self.path}>"

    def runs(self) -> pl.DataFrame:
        """Return all runs, oldest first: one row a run."""
        return self._ledger.runs()

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
        return self._ledger.unfinished()

    def stop(self) -> list[str]:
        """Stop every open run: no process sends anything more for it. What is in flight can still be collected.

        Returns
        -------
        The ids of the runs that were open.
        """
        return self._ledger.stop(datetime.now(UTC))

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
    """Open a ledger that exists.

    Parameters
    ----------
    path
        Its folder; None to find it as `map` does.

    Raises
    ------
    LedgerNotFound, LedgerForeign, LedgerNewer, LedgerDamaged, LedgerLocked
        The file is left as it is in every case.
    """
    return LedgerHandle(Ledger.open(path, create=False))
