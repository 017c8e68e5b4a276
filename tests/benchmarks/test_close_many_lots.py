"""Closing very many small lots costs about what closing one large lot of the same answers does.

A lot that is planned, drawn and written one by one costs milliseconds, and there may be tens of thousands. Both are
timed in one run over the same ledger, in pairs, and the median of the ratios counts, so that a busy machine slows both.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from lotwise import lots
from lotwise.evidence import Acceptance
from lotwise.job import Options
from lotwise.ledger import evidence as store
from runs import Bench

ROWS, ROWS_A_LOT, PAIRS, MOST = 10_000, 4, 3, 10.0
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_closing_2500_lots_costs_at_most_ten_times_closing_one(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    texts = [f"row {i}" for i in range(ROWS)]
    job = bench.run(texts, options=Options(shard_rows=5_000))
    keys = store.answers_of(bench.ledger, scheme="run", run=job.run_id, family="", validator=job.validator_digest)[
        "key"
    ]
    n_lots = ROWS // ROWS_A_LOT
    rows = pl.DataFrame({"key": keys, "label": (pl.int_range(keys.len(), eager=True) % n_lots).cast(pl.String)})

    def closing(name: str, accept: Acceptance, groups: pl.DataFrame | None) -> tuple[int, float]:
        family = lots.Family.of(
            job=name, validator=job.validator_digest, run=job.run_id, accept=accept, said=True, rows=groups
        )
        lots.name(bench.ledger, family, groups, NOW)
        began = time.perf_counter()
        closed = lots.close(bench.ledger, family, NOW)
        return closed, time.perf_counter() - began

    ratios = []
    for pair in range(PAIRS):
        one, alone = closing(f"one {pair}", Acceptance(), None)
        many, together = closing(f"many {pair}", Acceptance(by="group"), rows)
        assert (one, many) == (1, n_lots)
        ratios.append(together / alone)

    print(f"{n_lots:,} lots against one: {statistics.median(ratios):.1f} of {[round(r, 1) for r in ratios]}")
    assert statistics.median(ratios) <= MOST
