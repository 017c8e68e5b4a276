"""Ten thousand synchronous calls of 50 ms, against the least that the same work costs by hand (floors/fanout.py).

    python tests/benchmarks/bench_online.py [--pairs 5] [--in-flight 64 256] [--rows 10000] [--paid]

The server is floors/stub.c, one thread on loopback. The floor keeps the answers in a list; lotwise makes a whole `map`
of it on a fresh ledger: render, key, write down, ask, record, judge, join. Both run in turn, each in a process of its
own, timed without imports. Repeated rows are asked once by lotwise, so what is compared is calls a second, and rows are
told beside it. With --paid the server counts as one that costs money, of which no more than the calls in flight may be
unrecorded.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.request import urlopen

TESTS = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("LOTWISE_SHARED", TESTS.parent.parent / "shared"))
FLOORS = SHARED / "floors"
LATENCY_MS = 50


def measure(folder: Path, rows: int, port: int, in_flight: int, paid: bool) -> dict[str, Any]:
    """Map the frame once on a fresh ledger and say what it took."""
    import polars as pl
    from pydantic import BaseModel

    import lotwise

    class Answer(BaseModel):
        category: Literal["billing", "delivery", "technical", "account", "refund", "other"]
        urgent: bool
        summary: str

    frame = pl.read_parquet(folder / f"rows_{rows}.parquet", columns=["body"])
    prefix = (folder / "prefix.txt").read_text(encoding="utf-8")
    server = {"base_url": f"http://127.0.0.1:{port}/v1", "max_concurrency": in_flight, "paid": paid, "hosted": False}
    with tempfile.TemporaryDirectory() as ledger:
        began, cpu = time.perf_counter(), time.process_time()
        out = lotwise.map(
            frame,
            "{body}",
            Answer,
            model="online:stub-1",
            system=prefix,
            params={"max_tokens": 200},
            ledger=f"{ledger}/ledger",
            canary=False,
            progress=False,
            options=lotwise.Options(executor_options=server),
        )
        wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    n_rows = frame["body"].count()
    n_calls = frame["body"].drop_nulls().n_unique()
    assert out["llm_state"].value_counts().filter(llm_state="succeeded")["count"].item() == n_rows
    told = {"wall": wall, "calls_per_s": n_calls / wall, "rows_per_s": n_rows / wall, "cpu_per_1k": 1e3 * cpu / n_calls}
    return told | {"rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024}


@contextlib.contextmanager
def stub(folder: Path) -> Iterator[int]:
    """Compile and run the server, and yield its port."""
    subprocess.run(["cc", "-O2", "-w", "-o", folder / "stub", FLOORS / "stub.c"], check=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    process = subprocess.Popen([folder / "stub", str(port), str(LATENCY_MS)])
    try:
        while True:
            with contextlib.suppress(OSError):
                urlopen(f"http://127.0.0.1:{port}/v1/models").close()
                break
        yield port
    finally:
        process.kill()
        process.wait()


def run(*command: object) -> dict[str, Any]:
    """Run one measurement in a process of its own."""
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=True)
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


def main() -> None:
    """Measure in pairs and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--paid", action="store_true")
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "PORT", "IN_FLIGHT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.measure:
        folder, port, in_flight = given.measure
        print(json.dumps(measure(Path(folder), given.rows, int(port), int(in_flight), given.paid)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        subprocess.run(
            [sys.executable, FLOORS / "gen.py", folder, str(given.rows)], check=True, stdout=subprocess.DEVNULL
        )
        data, prefix = folder / f"rows_{given.rows}.parquet", folder / "prefix.txt"
        with stub(folder) as port:
            for in_flight in given.in_flight:
                ratios: dict[str, list[float]] = {"rows/s": [], "calls/s": [], "CPU s a call": []}
                for _ in range(given.pairs):
                    floor = run(FLOORS / "fanout.py", data, prefix, port, in_flight, given.rows)
                    paid = ["--paid"] if given.paid else []
                    ours = run(__file__, "--rows", given.rows, *paid, "--measure", folder, port, in_flight)
                    ratios["rows/s"].append(ours["rows_per_s"] / floor["rows_per_s"])
                    ratios["calls/s"].append(ours["calls_per_s"] / floor["rows_per_s"])
                    ratios["CPU s a call"].append(ours["cpu_per_1k"] / floor["cpu_per_1k"])
                    print(json.dumps({"in_flight": in_flight, "floor": floor, "lotwise": ours}), flush=True)
                for name, found in ratios.items():
                    median = statistics.median(found)
                    spread = f"[{min(found):.2f}-{max(found):.2f}]"
                    print(f"{in_flight} in flight, {name}: {median:.2f} of the floor {spread}")


if __name__ == "__main__":
    main()
