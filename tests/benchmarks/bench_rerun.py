"""The same map again, with every row answered, against plan and intent of the first.

    python tests/benchmarks/bench_rerun.py FOLDER ROWS [PAIRS]

FOLDER holds rows_ROWS.parquet as floors/gen.py writes it. The answers are put into the ledger by SQL between the two,
since what is measured is not the provider.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

import lotwise
from lotwise import call as calls
from lotwise import engine, owner
from lotwise.executors import register
from lotwise.ledger.store import Ledger
from lotwise.run import Run
from lotwise.testing import ScriptedExecutor

PROMPT = "Triage this ticket.\n\n{body}"
SCHEMA = {"category": pl.Enum(["billing", "delivery"]), "urgent": bool, "summary": str}
VALUE = '{"category":"billing","urgent":false,"summary":"customer asks for a part that was lost on its way"}'

ANSWER = """
BEGIN;
INSERT INTO result (shard, key, code, raw, recorded_at) SELECT shard, key, 'ok', '{}', now() FROM attempt;
INSERT INTO validation SELECT a.shard, a.key, (SELECT validator FROM run LIMIT 1), true, '$VALUE', NULL, NULL, false
FROM attempt a;
UPDATE request SET state = 'answered', live_shard = NULL;
UPDATE shard SET state = 'collected', lease_until = NULL;
COMMIT
"""


class Sink(ScriptedExecutor):
    """Takes shards and forgets them."""

    def prepare(self, *_: Any) -> str:
        return ""

    def create(self, shard: Any, *_: Any) -> str:
        return f"batch_{shard.id}"


register("sink", lambda *_: Sink(answer=lambda content, spec: VALUE))


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def timed(work: Any) -> tuple[Any, float, float]:
    began, used = time.perf_counter(), cpu_s()
    made = work()
    return made, time.perf_counter() - began, cpu_s() - used


def pair(frame: pl.DataFrame, folder: Path) -> tuple[float, float, float, float]:
    """Return wall and CPU seconds of plan and intent, and of the same map again."""
    arguments: dict[str, Any] = {
        "model": "sink:x",
        "ledger": folder / "ledger",
        "progress": False,
        "options": lotwise.Options(window=10_000),
        "canary": False,
    }

    def first() -> Run:
        run = Run.begin(calls.prepare(frame, PROMPT, SCHEMA, **arguments), frame)
        with owner.acting() as name:
            run._job.owner = name
            engine.send(run._job)
        return run

    _, wall, spent = timed(first)
    print(f"peak after plan and intent {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB", flush=True)
    ledger = Ledger.open(folder / "ledger")
    assert ledger.sql("SELECT count(*) FROM request WHERE state = 'submitted'").item() > 0.9 * frame.height * 0.94
    with ledger.connections.session("answer") as connection:
        connection.execute(ANSWER.replace("$VALUE", VALUE))
    lotwise.map(frame, PROMPT, SCHEMA, **arguments)  # closes the lots, as the end of the first call would have
    out, again_wall, again_spent = timed(lambda: lotwise.map(frame, PROMPT, SCHEMA, **arguments))
    assert out["llm_state"].is_in(["succeeded", "skipped"]).all()
    return wall, spent, again_wall, again_spent


def main() -> None:
    folder, rows = Path(sys.argv[1]), int(sys.argv[2])
    pairs = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    frame = pl.read_parquet(folder / f"rows_{rows}.parquet", columns=["id", "body"])
    ratios = []
    for number in range(pairs):
        with tempfile.TemporaryDirectory() as name:
            wall, spent, again_wall, again_spent = pair(frame, Path(name))
        ratios.append(again_spent / spent)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"pair {number + 1}: first {wall:.1f} s ({spent:.1f} CPU), "
            f"again {again_wall:.1f} s ({again_spent:.1f} CPU), "
            f"ratio {again_wall / wall:.2f} (CPU {again_spent / spent:.2f}), peak {peak:.0f} MB",
            flush=True,
        )
    print(f"median CPU ratio {statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}], {rows:,} rows")


if __name__ == "__main__":
    main()
