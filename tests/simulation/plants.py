"""Planted faults: each breaks one rule of the product, in the test only, and must be found by the simulation.

They show that the checks can fail. Each patches the product where a careless change would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from lotwise import reconcile
from lotwise.errors import BudgetTooSmall, CreateUncertain
from lotwise.ledger.store import Ledger
from lotwise.ledger.transaction import Transaction
from lotwise.lifecycle import ShardState
from simulation.executors import SimBatch


@contextlib.contextmanager
def _patched(owner: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, made(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def intent_after_submit() -> Iterator[None]:
    """`creating` is written down after the create call instead of before it."""

    def made(right: Any) -> Any:
        def submit(job: Any, shard: Any) -> None:
            ledger, late = job.ledger, []

            def move(shard: str, origin: ShardState, target: ShardState, **given: Any) -> None:
                if target is ShardState.CREATING:
                    late.append((shard, origin, target, given))
                    return
                catch_up()
                Ledger.move(ledger, shard, origin, target, **given)

            def release(*given: Any, **named: Any) -> int:
                catch_up()
                return Ledger.release(ledger, *given, **named)

            def catch_up() -> None:
                while late:
                    shard, origin, target, given = late.pop()
                    Ledger.move(ledger, shard, origin, target, **given)

            ledger.move, ledger.release = move, release
            try:
                right(job, shard)
            finally:
                del ledger.move, ledger.release

        return submit

    with _patched(reconcile, "submit", made):
        yield


@contextlib.contextmanager
def retry_on_ambiguous_create() -> Iterator[None]:
    """A create call whose answer was lost is made again."""

    def made(right: Any) -> Any:
        def create(self: Any, *args: Any) -> str:
            try:
                return str(right(self, *args))
            except CreateUncertain:
                return str(right(self, *args))

        return create

    with _patched(SimBatch, "create", made):
        yield


@contextlib.contextmanager
def join_by_position() -> Iterator[None]:
    """Results are matched with requests by their place in the file."""

    def made(right: Any) -> Any:
        def sort(self: Any, shard: str, lines: list[bytes], job: Any) -> Any:
            ids = [f"{shard}-{key}" for key in self._sent["key"]]
            read = job.executor.read

            def by_position(lines: list[bytes]) -> pl.DataFrame:
                found = read(lines)
                places = [ids[i] if i < len(ids) else None for i in range(found.height)]
                return found.with_columns(custom_id=pl.Series(places, dtype=pl.String))

            job.executor.read = by_position
            try:
                return right(self, shard, lines, job)
            finally:
                del job.executor.read

        return sort

    with _patched(reconcile._Tally, "sort", made):
        yield


@contextlib.contextmanager
def error_file_unread() -> Iterator[None]:
    """Only the lines of answers are read; those of errors are left where they are."""

    def made(right: Any) -> Any:
        def lines_of(job: Any, shard: Any, sent: Any) -> Iterator[list[bytes]]:
            for lines in right(job, shard, sent):
                yield [line for line in lines if b'"status_code": 200' in line]

        return lines_of

    with _patched(reconcile, "_lines", made):
        yield


@contextlib.contextmanager
def budget_checked_after() -> Iterator[None]:
    """The budget is compared after the intent is written, and what is over it is sent all the same."""

    def made(right: Any) -> Any:
        def intend(self: Ledger, intent: Any, now: Any) -> None:
            with self.reading("budget") as tx:
                spent = tx.rows("committed_usd", job=intent.job)[0][0]
            if intent.budget_usd is not None and spent > intent.budget_usd:
                raise BudgetTooSmall.of(intent.budget_usd, spent, intent.reserved_usd)
            right(self, replace(intent, budget_usd=None), now)

        return intend

    with _patched(Ledger, "intend", made):
        yield


@contextlib.contextmanager
def duplicate_counted_twice() -> Iterator[None]:
    """A second delivery of a result is a second result."""

    def sort_made(right: Any) -> Any:
        def sort(self: Any, shard: str, lines: list[bytes], job: Any) -> Any:
            results, strays = right(self, shard, lines, job)
            again = [line for i, line in enumerate(lines) if line in lines[:i]]
            if not again:
                return results, strays
            twice, _ = right(type(self)(self._sent.with_columns(recorded=False), last=True), shard, again, job)
            self.counts["n_results"] += twice.height
            return pl.concat([results, twice]), strays

        return sort

    with _patched(reconcile._Tally, "sort", sort_made):
        yield


@contextlib.contextmanager
def lease_ignored() -> Iterator[None]:
    """A shard that another process holds is taken over at once."""

    def standing_made(right: Any) -> Any:
        return lambda job, shard, now: replace(right(job, shard, now), leased=False)

    def run_made(right: Any) -> Any:
        def run(self: Transaction, name: str, /, **given: Any) -> int:
            if name == "take_lease":
                given["gone"] = self.records("shard", shard=given["shard"])[0]["owner"]
            return int(right(self, name, **given))

        return run

    with _patched(reconcile, "_standing", standing_made), _patched(Transaction, "run", run_made):
        yield


PLANTS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "intent after submit": intent_after_submit,
    "retry on ambiguous create": retry_on_ambiguous_create,
    "join by position": join_by_position,
    "error file unread": error_file_unread,
    "budget checked after": budget_checked_after,
    "duplicate counted twice": duplicate_counted_twice,
    "lease ignored": lease_ignored,
}
"""Every planted fault by its name."""
