"""Seeds of the simulation: a short range holds, each replays exactly, and each planted fault is found."""

from __future__ import annotations

import pytest

from simulation.plants import PLANTS
from simulation.seeds import run_one, run_seed

SHORT = range(12)
"""Seeds of the suite; `make simulate` runs thousands."""

FOUND_BY = {
    "budget checked after": 0,
    "duplicate counted twice": 1,
    "error file unread": 2,
    "intent after submit": 85,
    "join by position": 0,
    "lease ignored": 2,
    "retry on ambiguous create": 1,
}
"""A planted fault, and a seed that finds it. When the world's rules change, look for new ones with --plant."""


@pytest.mark.parametrize("seed", SHORT)
def test_seed_keeps_the_promises(seed: int) -> None:
    result = run_seed(seed)

    assert not result.faults, "\n".join([result.history, *result.faults])


@pytest.mark.parametrize("seed", [2, 10])
def test_seed_replays_exactly(seed: int) -> None:
    assert run_seed(seed).history == run_seed(seed).history


def test_each_planted_fault_has_a_seed() -> None:
    assert FOUND_BY.keys() == PLANTS.keys()


@pytest.mark.parametrize("plant", FOUND_BY)
def test_planted_fault_is_found(plant: str) -> None:
    seed = FOUND_BY[plant]

    assert run_one((seed, plant)).faults
    assert not run_seed(seed).faults
