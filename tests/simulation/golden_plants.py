"""Planted faults of the canary and of golden rows: each must be found in the worlds that have them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from lotwise import canary as rules
from lotwise import collect, watch
from lotwise.job import Job
from lotwise.ledger import golden as golden_book
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger
from simulation.plants import patched


@contextlib.contextmanager
def gate_ignored() -> Iterator[None]:
    """The rest is sent together with the canary."""
    with patched(watch, "locked", lambda right: lambda job: False):
        yield


@contextlib.contextmanager
def gate_of_one_run() -> Iterator[None]:
    """A gate that failed holds for the run that decided it, and for no other."""

    def made(right: Any) -> Any:
        def keep_gate(job: Job) -> bool:
            told = bool(right(job))
            found = None if job.canary is None else golden_book.gate(job.ledger, job.canary)
            if found is not None and found["state"] == "failed" and found["run"] != job.run_id:
                job.gate, job.halted = "passed", None
            return told

        return keep_gate

    with patched(watch, "keep_gate", made):
        yield


@contextlib.contextmanager
def gate_by_the_rate_alone() -> Iterator[None]:
    """Golden rows pass when enough of them agree, however few there are."""

    def made(right: Any) -> Any:
        def judge(**given: Any) -> Any:
            verdict = right(**given)
            return replace(verdict, passed=given["agreed"] >= given["threshold"] * given["n_golden"])

        return judge

    with patched(rules, "judge", made):
        yield


@contextlib.contextmanager
def drift_unnoticed() -> Iterator[None]:
    """Nobody looks at how golden rows agree in later shards."""
    with patched(watch, "_watch_golden", lambda right: lambda job: None):
        yield


@contextlib.contextmanager
def golden_rows_in_the_frame() -> Iterator[None]:
    """What a run shows holds the golden rows of its canary too."""

    def made(right: Any) -> Any:
        def manifest(ledger: Ledger, run: str) -> pl.Series:
            keys, found = right(ledger, run), golden_book.canary_of(ledger, run)
            return keys if found is None else pl.concat([keys, found[1]["key"].drop_nulls()])

        return manifest

    with patched(run_book, "manifest", made):
        yield


@contextlib.contextmanager
def golden_answer_shown() -> Iterator[None]:
    """The known answer is sent with the question."""

    def made(right: Any) -> Any:
        def ask(job: Any, canary: Any, golden: Any, rows: pl.DataFrame) -> None:
            right(job, canary, golden, rows.with_columns(content=pl.concat_str("content", pl.lit("\n"), "answer")))

        return ask

    with patched(watch, "_ask", made):
        yield


@contextlib.contextmanager
def golden_row_asked_again() -> Iterator[None]:
    """A golden row whose answer is invalid is asked again, changed, as a frame row is."""

    def made(right: Any) -> Any:
        def decide(outcomes: pl.DataFrame, policy: Any) -> pl.DataFrame:
            found: pl.DataFrame = right(outcomes.with_columns(retryable=pl.lit(True)), policy)
            return found

        return decide

    with patched(collect.lifecycle, "decide", made):
        yield


GOLDEN_PLANTS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "gate ignored": gate_ignored,
    "gate of one run": gate_of_one_run,
    "gate by the rate alone": gate_by_the_rate_alone,
    "drift unnoticed": drift_unnoticed,
    "golden rows in the frame": golden_rows_in_the_frame,
    "golden answer shown": golden_answer_shown,
    "golden row asked again": golden_row_asked_again,
}
"""Every planted fault of these worlds by its name."""
