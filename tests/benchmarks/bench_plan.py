"""Plan and intent of a large frame against the least that the same work costs by hand (floors/prepare.py keyonly).

    python tests/benchmarks/bench_plan.py FOLDER ROWS [PAIRS] [--floor-python PYTHON]

FOLDER holds rows_ROWS.parquet and prefix.txt as floors/gen.py writes them. Floor and lotwise run in turn, each in a
process of its own; the median of the ratios of wall and of CPU seconds is what counts, since machines differ. The floor
also encodes and writes the shards; lotwise leaves that to the executor, which encodes while it uploads.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("LOTWISE_SHARED", TESTS.parent.parent / "shared"))


def measure(folder: Path, rows: int) -> dict[str, Any]:
    """Enroll a frame and write all its intents; return times, memory and the longest transactions."""
    sys.path.insert(0, str(TESTS))
    import polars as pl
    import pyarrow.parquet as pq

    from lotwise import engine
    from lotwise.job import Options
    from lotwise.ledger import files
    from lotwise.request import Spec
    from runs import PRICES, Bench

    sessions: dict[str, list[float]] = {}
    session = files.Folder.session

    @contextlib.contextmanager
    def timed(self: files.Folder, purpose: str, *, read_only: bool = False) -> Iterator[Any]:
        began = time.perf_counter()
        with session(self, purpose, read_only=read_only) as connection:
            yield connection
        sessions.setdefault(purpose, []).append(time.perf_counter() - began)

    files.Folder.session = timed  # type: ignore[method-assign]

    def slices() -> Iterator[pl.Series]:
        file = pq.ParquetFile(folder / f"rows_{rows}.parquet")
        for batch in file.iter_batches(batch_size=engine.ENROLL_ROWS, columns=["body"]):
            frame = pl.from_arrow(batch)
            assert isinstance(frame, pl.DataFrame)
            yield frame["body"]

    work = Path(tempfile.mkdtemp(dir=folder))
    try:
        system = (folder / "prefix.txt").read_text(encoding="utf-8")
        bench = Bench(folder=work, spec=Spec(provider="scripted", model="echo", system=system, max_tokens=200))
        cpu, began = _cpu(), time.perf_counter()
        options = Options(window=10_000, shard_rows=25_000)
        job = bench.begin(slices(), options=options, prices=PRICES, budget_usd=Decimal(10**6))
        enrolled = time.perf_counter()
        n_shards = 0
        while (planned := engine.next_shard(job)) is not None:
            engine.intend(job, planned)
            n_shards += 1
        wall, used = time.perf_counter() - began, _cpu() - cpu
        size = sum(path.stat().st_size for path in bench.ledger.path.rglob("*") if path.is_file())
        return {
            "requests": job.n_requests,
            "shards": n_shards,
            "wall": wall,
            "enroll_s": enrolled - began,
            "cpu": used,
            "peak_mb": int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) // 1024,
            "ledger_mb": size // 10**6,
            "longest_s": {name: round(max(times), 3) for name, times in sessions.items()},
        }
    finally:
        shutil.rmtree(work)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def floor(folder: Path, rows: int, python: str) -> dict[str, Any]:
    """Run the floor once."""
    command = [python, str(SHARED / "floors" / "prepare.py")]
    command += [str(folder / f"rows_{rows}.parquet"), str(folder / "prefix.txt"), "25000", "keyonly"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "TMPDIR": str(folder)}
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Run the pairs and print each and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("rows", type=int)
    parser.add_argument("pairs", type=int, nargs="?", default=5)
    parser.add_argument("--floor-python", default=sys.executable)
    parser.add_argument("--once", action="store_true", help="measure lotwise alone, in this process")
    given = parser.parse_args()
    if given.once:
        print(json.dumps(measure(given.folder, given.rows)))
        return
    ratios: list[tuple[float, float]] = []
    for _ in range(given.pairs):
        least = floor(given.folder, given.rows, given.floor_python)
        command = [sys.executable, __file__, str(given.folder), str(given.rows), "--once"]
        ours = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        ratios.append((ours["wall"] / least["wall"], ours["cpu"] / least["cpu"]))
        print(json.dumps({"floor": {name: least[name] for name in ("wall", "cpu", "rss_mb")}, "lotwise": ours}))
    for i, kind in enumerate(("wall", "cpu")):
        each = [ratio[i] for ratio in ratios]
        print(f"{kind}: median {statistics.median(each):.2f} of the floor [{min(each):.2f} to {max(each):.2f}]")


if __name__ == "__main__":
    main()
