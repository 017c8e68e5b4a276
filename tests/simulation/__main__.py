"""Run a range of seeds over all cores, and replay the first that fails.

python -m simulation --seeds 1000
python -m simulation --seed 17            one seed, with its history
python -m simulation --seeds 1000 --plant "lease ignored"
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections import Counter

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # before Polars is imported: the seeds are the parallel part

from simulation.plants import PLANTS
from simulation.seeds import Result, run_one


def main() -> int:
    """Run what the command line asks for; 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1_000, help="how many")
    parser.add_argument("--start", type=int, default=0, help="the first")
    parser.add_argument("--seed", type=int, help="this one alone, with its history")
    parser.add_argument("--plant", choices=sorted(PLANTS), help="break the product on purpose")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--keep-going", action="store_true", help="do not stop at the first that fails")
    asked = parser.parse_args()
    if asked.seed is not None:
        return _show(run_one((asked.seed, asked.plant)))
    seeds = range(asked.start, asked.start + asked.seeds)
    figures: Counter[str] = Counter()
    failed: list[Result] = []
    n_done, began = 0, time.monotonic()
    with multiprocessing.get_context("spawn").Pool(asked.processes) as pool:
        for result in pool.imap(run_one, ((seed, asked.plant) for seed in seeds), chunksize=1):
            n_done += 1
            figures.update(result.figures)
            if result.faults:
                failed.append(result)
                print(f"seed {result.seed}: {result.faults[0]}", flush=True)
                if not asked.keep_going:
                    break
    took = time.monotonic() - began
    print(f"{n_done:,} seeds in {took:.1f} s, {n_done / took:.1f} a second: {len(failed)} failed")
    print(", ".join(f"{count:,} {name}" for name, count in sorted(figures.items())))
    if not failed:
        return 0
    again = run_one((failed[0].seed, asked.plant))
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
