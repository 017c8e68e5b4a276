"""Running seeds: one at a time or a group in one database, and what came of each.

Making a ledger and verifying it cost about as much as a small story. So a group of seeds shares one database, each with
a spec of its own and thereby requests, shards and runs of its own, and `ledger verify` reads it once, at the end. What
it finds is looked for in each seed alone.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import duckdb

from lotwise.ledger.store import Ledger
from simulation import checks, golden_checks, scenario
from simulation.books import Books
from simulation.database import Onlooker, fresh_database, parts_folder
from simulation.golden_plants import GOLDEN_PLANTS
from simulation.plants import PLANTS
from simulation.play import play
from simulation.product import silent
from simulation.story import OTHER_ACCOUNT
from simulation.world import Stuck


@dataclass(frozen=True, kw_only=True)
class Result:
    """What came of one seed.

    Attributes
    ----------
    seed
        Which.
    faults
        What did not hold, in sentences; empty when all is well.
    history
        Every event, one a line.
    figures
        How much happened.
    """

    seed: int
    faults: tuple[str, ...]
    history: str = field(repr=False)
    figures: dict[str, int]


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Which worlds are run, and with what on purpose wrong with the product.

    Attributes
    ----------
    golden
        The worlds with golden rows and a canary; without it those without.
    plant
        The name of a planted fault, or None.
    """

    golden: bool = False
    plant: str | None = None


PLAIN = Setup()


@dataclass(frozen=True, kw_only=True)
class Shelf:
    """A database and a folder of parts, for the ledgers of several seeds."""

    database: duckdb.DuckDBPyConnection
    folder: Path

    def unverified(self) -> list[str]:
        """Return what `ledger verify` finds in all that is here."""
        return checks.unverified(Ledger(Onlooker(self.database), self.folder, self.folder))


@contextlib.contextmanager
def shelf() -> Iterator[Shelf]:
    """Yield an empty shelf."""
    with silent(), parts_folder() as folder, contextlib.closing(fresh_database()) as made:
        yield Shelf(database=made, folder=folder)


def run_one(seed: int, setup: Setup = PLAIN) -> Result:
    """Run one seed from nothing, and compare ledger and provider at its end."""
    with planted(setup.plant), shelf() as alone:
        result = _run_on(alone, seed, setup)
        return result if result.faults else replace(result, faults=tuple(alone.unverified()))


def run_group(job: tuple[Sequence[int], Setup]) -> list[Result]:
    """Run seeds one after the other in one database, and verify it at the end.

    Stops behind the first that fails: what it left may be in the way of the next.
    """
    seeds, setup = job
    results: list[Result] = []
    with planted(setup.plant), shelf() as shared:
        for seed in seeds:
            results.append(_run_on(shared, seed, setup))
            if results[-1].faults:
                return results
        found = shared.unverified()
    if found:
        results = [run_one(result.seed, setup) for result in results]
        if not any(result.faults for result in results):
            told = f"only together with seeds {seeds[0]} to {seeds[-1]}: {found[0]}"
            results[-1] = replace(results[-1], faults=(told,))
    return results


def planted(plant: str | None) -> contextlib.AbstractContextManager[None]:
    """Return the context in which a fault is planted; without a name, none is."""
    return (PLANTS | GOLDEN_PLANTS)[plant]() if plant is not None else contextlib.nullcontext()


def _faults(act: Callable[[], list[str] | None]) -> list[str]:
    """Do something, and return the faults that it finds or falls over."""
    try:
        return act() or []
    except Stuck as stuck:
        return [str(stuck)]
    except Exception as failure:
        where = traceback.extract_tb(failure.__traceback__)[-1]
        return [f"{type(failure).__name__}: {failure} ({where.name}, line {where.lineno})"]


def _run_on(shelf: Shelf, seed: int, setup: Setup) -> Result:
    story = scenario.tell(seed, shelf.database, shelf.folder, golden=setup.golden)
    world = story.world
    faults = _faults(lambda: play(story))
    books = Books(story)
    faults = faults or _faults(lambda: checks.violations(books) + golden_checks.violations(books))
    figures = {
        "boundaries": world.steps,
        "crashes": sum(process.crashed_at is not None for process in story.processes),
        "pauses": sum(text.startswith("STOPPED") for _, _, text in world.history),
        "batches": len(story.provider.batches),
        "requests": sum(len(batch.rows) for batch in story.provider.batches.values()) + len(story.provider.served),
        "foreign batches": len(story.provider.foreign),
        "cancels by hand": sum(text.startswith("cancels run") for _, _, text in world.history),
        "meetings with another account": sum(text == f"ends: {OTHER_ACCOUNT}" for _, _, text in world.history),
        "free worlds": int(not story.paid),
        "batches canceled": sum(text.startswith("cancels batch") for _, _, text in world.history),
        "golden requests": sum(
            row.key in books.golden for batch in story.provider.batches.values() for row in batch.rows.values()
        )
        + sum(served.row.key in books.golden for served in story.provider.served),
        "gates passed": sum(gate["state"] == "passed" for gate in books.gates),
        "gates failed": sum(gate["state"] == "failed" for gate in books.gates),
        "passes taken back": sum("agree less" in gate["reason"] for gate in books.gates),
        "canaries overridden": sum(text.startswith("canary overridden") for text in books.notices),
        "done": sum(caller.said == "done" for caller in story.callers),
        "halted": sum(caller.said != "done" for caller in story.callers),
    }
    return Result(seed=seed, faults=tuple(faults), history=world.told(), figures=figures)
