"""Seeds of the simulation: a short range holds, each replays exactly, and each planted fault is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulation.golden_plants import GOLDEN_PLANTS
from simulation.plants import PLANTS
from simulation.seeds import PLAIN, Setup, run_group, run_one

SHORT = (*range(11), 318, 7057, 7755, 7952, 9024, 61690)
"""Seeds of the suite; `make simulate` runs thousands."""

GOLDEN = Setup(golden=True)

GOLDEN_SHORT = (0, 2, 3, 21, 33, 332, 1090, 3161, 20302)
"""The same of the worlds with golden rows: gates that fail, that pass, a pass that is taken back, and an override."""

FOUND_BY = {
    "adopted by count": 0,
    "budget checked after": 1,
    "duplicate counted twice": 0,
    "error file unread": 3,
    "intent after submit": 10,
    "join by position": 0,
    "lease ignored": 5,
    "other account ignored": 18,
    "retry on ambiguous create": 3,
}
"""A planted fault, and a seed that finds it. When the world's rules change, look for new ones with --plant."""

GOLDEN_FOUND_BY = {
    "drift unnoticed": 21,
    "gate by the rate alone": 2,
    "gate ignored": 0,
    "gate of one run": 0,
    "golden answer shown": 0,
    "golden row asked again": 3,
    "golden rows in the frame": 0,
}


@pytest.mark.parametrize("seed", SHORT)
def test_seed_keeps_the_promises(seed: int) -> None:
    result = run_one(seed)

    assert not result.faults, "\n".join([result.history, *result.faults])


@pytest.mark.parametrize("seed", [2, 10])
def test_seed_replays_exactly(seed: int) -> None:
    assert run_one(seed).history == run_one(seed).history


def test_seed_tells_the_same_story_beside_others_as_alone() -> None:
    together = run_group((range(4), PLAIN))

    assert [result.history for result in together] == [run_one(seed).history for seed in range(4)]


@pytest.mark.parametrize("seed", GOLDEN_SHORT)
def test_golden_seed_keeps_the_promises(seed: int) -> None:
    result = run_one(seed, GOLDEN)

    assert not result.faults, "\n".join([result.history, *result.faults])


def test_each_planted_fault_has_a_seed() -> None:
    assert FOUND_BY.keys() == PLANTS.keys()
    assert GOLDEN_FOUND_BY.keys() == GOLDEN_PLANTS.keys()


@pytest.mark.parametrize("plant", FOUND_BY)
def test_planted_fault_is_found(plant: str) -> None:
    seed = FOUND_BY[plant]

    assert run_one(seed, Setup(plant=plant)).faults
    assert not run_one(seed).faults


@pytest.mark.parametrize("plant", GOLDEN_FOUND_BY)
def test_planted_fault_of_the_canary_is_found(plant: str) -> None:
    seed = GOLDEN_FOUND_BY[plant]

    assert run_one(seed, replace(GOLDEN, plant=plant)).faults
    assert seed in GOLDEN_SHORT  # without the plant nothing is found in it
