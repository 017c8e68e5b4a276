"""Planted faults: each breaks one rule of the product, in the test only, and must be found by the simulation.

They show that the checks can fail. Each patches the product where a careless change would.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from lotwise import collect, reconcile, tally
from lotwise.errors import BudgetTooSmall, CreateUncertain
from lotwise.ledger import shards as shard_book
from lotwise.ledger.store import Ledger
from lotwise.ledger.transaction import Transaction
from lotwise.lifecycle import ShardState
from simulation.executors import SimBatch


@contextlib.contextmanager
def patched(owner: Any, name: str, made: Callable[[Any], Any]) -> Iterator[None]:
    """Replace a part of the product by what is made of it."""
    before = getattr(owner, name)
    setattr(owner, name, made(before))
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def intent_after_submit() -> Iterator[None]:
    """`creating` is written down after the create call instead of before it."""

    late: dict[int, list[tuple[Any, ...]]] = {}  # by the ledger of the process that submits; others may be let go first

    def made_move(right: Any) -> Any:
        def move(ledger: Ledger, shard: str, origin: ShardState, target: ShardState, **given: Any) -> None:
            if target is ShardState.CREATING and id(ledger) in late:
                late[id(ledger)].append((right, ledger, shard, origin, target, given))
                return
            catch_up(ledger)
            right(ledger, shard, origin, target, **given)

        return move

    def made_release(right: Any) -> Any:
        def release(ledger: Ledger, *given: Any, **named: Any) -> Any:
            catch_up(ledger)
            return right(ledger, *given, **named)

        return release

    def catch_up(ledger: Ledger) -> None:
        while late.get(id(ledger)):
            move, *where, given = late[id(ledger)].pop()
            move(*where, **given)

    def made_submit(right: Any) -> Any:
        def submit(job: Any, shard: Any) -> None:
            late[id(job.ledger)] = []
            try:
                right(job, shard)
            finally:
                del late[id(job.ledger)]

        return submit

    with (
        patched(shard_book, "move", made_move),
        patched(shard_book, "release", made_release),
        patched(reconcile, "submit", made_submit),
    ):
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

    with patched(SimBatch, "create", made):
        yield


@contextlib.contextmanager
def join_by_position() -> Iterator[None]:
    """Results are matched with requests by their place in the file."""

    def made(right: Any) -> Any:
        def sort(self: Any, shard: str, lines: list[bytes], lane: Any) -> Any:
            ids = [f"{shard}-{key}" for key in self._sent["key"]]
            read = lane.executor.read

            def by_position(lines: list[bytes]) -> pl.DataFrame:
                found = read(lines)
                places = [ids[i] if i < len(ids) else None for i in range(found.height)]
                return found.with_columns(custom_id=pl.Series(places, dtype=pl.String))

            lane.executor.read = by_position
            try:
                return right(self, shard, lines, lane)
            finally:
                del lane.executor.read

        return sort

    with patched(tally.Tally, "sort", made):
        yield


@contextlib.contextmanager
def error_file_unread() -> Iterator[None]:
    """Only the lines of answers are read; those of errors are left where they are."""

    def made(right: Any) -> Any:
        def lines_of(job: Any, shard: Any, sent: Any) -> Iterator[list[bytes]]:
            for lines in right(job, shard, sent):
                yield [line for line in lines if b'"status_code": 200' in line]

        return lines_of

    with patched(collect, "_lines", made):
        yield


@contextlib.contextmanager
def budget_checked_after() -> Iterator[None]:
    """The budget is compared after the intent is written, and what is over it is sent all the same."""

    def made(right: Any) -> Any:
        def intend(ledger: Ledger, intent: Any, now: Any) -> None:
            with ledger.reading("budget") as tx:
                spent = tx.rows("committed_usd", job=intent.job)[0][0]
            if intent.budget_usd is not None and spent > intent.budget_usd:
                raise BudgetTooSmall.of(intent.budget_usd, spent, intent.reserved_usd)
            right(ledger, replace(intent, budget_usd=None), now)

        return intend

    with patched(shard_book, "intend", made):
        yield


@contextlib.contextmanager
def duplicate_counted_twice() -> Iterator[None]:
    """A second delivery of a result is a second result."""

    def sort_made(right: Any) -> Any:
        def sort(self: Any, shard: str, lines: list[bytes], lane: Any) -> Any:
            results, strays = right(self, shard, lines, lane)
            again = [line for i, line in enumerate(lines) if line in lines[:i]]
            if not again:
                return results, strays
            twice, _ = right(type(self)(self._sent.with_columns(recorded=False), last=True), shard, again, lane)
            self.counts["n_results"] += twice.height
            return pl.concat([results, twice]), strays

        return sort

    with patched(tally.Tally, "sort", sort_made):
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

    with patched(reconcile, "_standing", standing_made), patched(Transaction, "run", run_made):
        yield


@contextlib.contextmanager
def adopted_by_count() -> Iterator[None]:
    """A listed batch of as many requests is taken for ours, whatever its ids say."""

    def made(right: Any) -> Any:
        def find(executor: Any, shard: Any, listed: Any, margin: Any) -> Any:
            alike = (one for one in listed if one.shard_id is None and one.n_requests == shard["n_requests"])
            found = next(alike, None)
            return (found, False) if found is not None else right(executor, shard, listed, margin)

        return find

    with patched(reconcile, "find", made):
        yield


@contextlib.contextmanager
def other_account_ignored() -> Iterator[None]:
    """What the list of another account lacks is taken for never made."""

    def made(right: Any) -> Any:
        return lambda job, shard: None

    with patched(reconcile, "refuse_other_account", made), patched(collect, "refuse_other_account", made):
        yield


PLANTS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "intent after submit": intent_after_submit,
    "retry on ambiguous create": retry_on_ambiguous_create,
    "join by position": join_by_position,
    "error file unread": error_file_unread,
    "budget checked after": budget_checked_after,
    "duplicate counted twice": duplicate_counted_twice,
    "lease ignored": lease_ignored,
    "adopted by count": adopted_by_count,
    "other account ignored": other_account_ignored,
}
"""Every planted fault by its name."""
