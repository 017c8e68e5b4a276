"""Run a range of seeds over all cores, and replay the first that fails.

python -m simulation --seeds 1000
python -m simulation --seed 17            one seed, with its history
python -m simulation --seeds 1000 --plant "lease ignored"
python -m simulation --golden --seeds 1000            the worlds with golden rows; --golden --seed 17 for one of them
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
import time
from collections import Counter

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before they are imported: the seeds are the parallel part
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from simulation.golden_plants import GOLDEN_PLANTS
from simulation.plants import PLANTS
from simulation.seeds import Result, Setup, run_group, run_one

GROUP = 20
"""Seeds that share a database."""


def main() -> int:
    """Run what the command line asks for; 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first")
    parser.add_argument("--seed", type=int, help="this one alone, with its history")
    parser.add_argument("--golden", action="store_true", help="the worlds with golden rows and a canary")
    parser.add_argument("--plant", choices=sorted(PLANTS | GOLDEN_PLANTS), help="break the product on purpose")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first that fails")
    asked = parser.parse_args()
    setup = Setup(golden=asked.golden, plant=asked.plant)
    if asked.seed is not None:
        return _show(run_one(asked.seed, setup))
    seeds = range(asked.start, asked.start + asked.seeds)
    figures: Counter[str] = Counter()
    failed: list[Result] = []
    n_done, began = 0, time.monotonic()
    with multiprocessing.get_context("spawn").Pool(
        asked.processes, initializer=gc.freeze
    ) as pool:  # of the imports nothing is ever garbage
        waiting = [seeds[i : i + GROUP] for i in range(0, len(seeds), GROUP)]
        while waiting:
            cut_short: list[range] = []
            for group, results in zip(
                waiting, pool.imap(run_group, ((group, setup) for group in waiting)), strict=True
            ):
                for result in results:
                    n_done += 1
                    figures.update(result.figures)
                    if result.faults:
                        failed.append(result)
                        print(f"seed {result.seed}: {result.faults[0]}", flush=True)
                if failed and not asked.keep_going:
                    break
                if len(results) < len(group):
                    cut_short.append(group[len(results) :])
                if n_done // 1_000 > (n_done - len(results)) // 1_000:
                    rate = n_done / (time.monotonic() - began)
                    print(f"{n_done:,} seeds done, {rate:.1f} a second, {len(failed)} failed", flush=True)
            waiting = cut_short if asked.keep_going else []
    took = time.monotonic() - began
    print(f"{n_done:,} seeds in {took:.1f} s, {n_done / took:.1f} a second: {len(failed)} failed")
    print(", ".join(f"{count:,} {name}" for name, count in sorted(figures.items())))
    if not failed:
        return 0
    again = run_one(failed[0].seed, setup)
    same = again.history == failed[0].history
    print(f"seed {again.seed} replayed: {'the same history' if same else 'ANOTHER history'}")
    return _show(again)


def _show(result: Result) -> int:
    print(result.history)
    for fault in result.faults:
        print(f"seed {result.seed} FAILS: {fault}")
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
