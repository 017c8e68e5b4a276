"""Running seeds: one at a time, and what came of each."""

from __future__ import annotations

import contextlib
import traceback
from dataclasses import dataclass, field

from simulation import checks, scenario
from simulation.plants import PLANTS
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


def run_seed(seed: int) -> Result:
    """Run one seed from nothing, and compare ledger and provider at its end."""
    with scenario.silent(), scenario.parts_folder() as folder:
        story = scenario.tell(seed, folder)
        world = story.world
        try:
            scenario.play(story)
            faults = checks.violations(story)
        except Stuck as stuck:
            faults = [str(stuck)]
        except Exception as failure:
            where = traceback.extract_tb(failure.__traceback__)[-1]
            faults = [f"{type(failure).__name__}: {failure} ({where.name}, line {where.lineno})"]
        finally:
            story.database.close()
    figures = {
        "boundaries": world.steps,
        "crashes": sum(process.crashed_at is not None for process in story.processes),
        "pauses": sum(text.startswith("STOPPED") for _, _, text in world.history),
        "batches": len(story.provider.batches),
        "requests": sum(len(batch.rows) for batch in story.provider.batches.values()) + len(story.provider.served),
        "done": sum(caller.said == "done" for caller in story.callers),
        "halted": sum(caller.said != "done" for caller in story.callers),
    }
    return Result(seed=seed, faults=tuple(faults), history=world.told(), figures=figures)


def run_one(job: tuple[int, str | None]) -> Result:
    """Run one seed, with a planted fault if one is named."""
    seed, plant = job
    with PLANTS[plant]() if plant is not None else contextlib.nullcontext():
        return run_seed(seed)
