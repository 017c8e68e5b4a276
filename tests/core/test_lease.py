"""A lease is kept for as long as its owner is alive and busy, whatever it is busy with."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lotwise.clock import SystemClock
from lotwise.errors import EngineFailed
from lotwise.executors.openai_dialect import read_lines
from lotwise.job import Options
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify
from lotwise.request import Limits, Shard, Spec
from lotwise.testing import ScriptedExecutor, answer_line
from runs import SPEC, Bench

LEASE_S = 0.3
PATIENCE_S = 30.0


def only_shard(ledger: Ledger) -> ShardRow:
    (shard,) = shard_book.all_open(ledger)
    return shard


class Watched:
    """Keeps a call busy until its shard's lease was renewed, and then lets another owner ask for the shard."""

    ledger: Ledger
    renewals = 2

    def __init__(self) -> None:
        self.leases: list[datetime] = []
        self.taken: list[bool] = []

    def keep_busy(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while len(self.leases) <= self.renewals:
            assert time.monotonic() < deadline, "the lease was not renewed"
            until = only_shard(self.ledger)["lease_until"]
            assert until is not None
            if not self.leases or until != self.leases[-1]:
                self.leases.append(until)
        late = self.leases[0] + timedelta(milliseconds=1)  # the lease that it began with has run out by then
        self.taken.append(
            shard_book.take(self.ledger, only_shard(self.ledger), owner="another", now=late, lease_until=late)
        )


class SlowUpload(ScriptedExecutor):
    """A provider to which an upload takes longer than a lease."""

    def __init__(self, watched: Watched, folder: Path) -> None:
        super().__init__(folder)
        self.watched = watched

    def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> str:
        self.watched.keep_busy()
        return super().prepare(shard, spec, requests)


class SlowEngine:
    """A local engine that is silent for longer than a lease before it answers."""

    provider, hosted, paid, window = "slow", False, False, 4
    limits = Limits(max_requests=100)

    def __init__(self, watched: Watched, folder: Path) -> None:
        self.watched = watched

    def check(self, spec: Spec) -> None:
        """Refuse nothing."""

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        return schema_text, ()

    def model_digest(self) -> str | None:
        return None

    def account(self) -> str:
        return "this-machine"

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        return content_bytes.cast(pl.Int64)

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        return read_lines(lines)

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        self.watched.keep_busy()
        for custom_id, content in requests.select("custom_id", "content").iter_rows():
            yield [json.dumps(answer_line(custom_id, content)).encode()]


@pytest.mark.parametrize("slow", [SlowUpload, SlowEngine], ids=["an upload", "an engine"])
def test_a_shard_is_kept_while_something_takes_longer_than_its_lease(tmp_path: Path, slow: Any) -> None:
    watched = Watched()
    bench = Bench(
        folder=tmp_path,
        executor=slow(watched, tmp_path / "provider"),
        clock=SystemClock(),  # type: ignore[arg-type]
    )
    watched.ledger = bench.ledger

    job = bench.run(["a", "b"], options=Options(lease_s=LEASE_S))

    assert watched.taken == [False]
    assert watched.leases == sorted(watched.leases)
    assert run_book.counts(bench.ledger, job.run_id, job.validator_digest) == {"succeeded": (2, 2)}
    assert shard_book.of_job(bench.ledger, job.job_id)[0]["state"] == "collected"
    assert len(shard_book.of_job(bench.ledger, job.job_id)) == 1


class BrokenEngine(SlowEngine):
    """A local engine that answers one row and then ends for good."""

    answered = ""

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        custom_id, content = requests.select("custom_id", "content").row(0)
        self.answered = content
        yield [json.dumps(answer_line(custom_id, content)).encode()]
        raise EngineFailed.after_deaths("m", 3, "signal 9")


def test_a_local_engine_that_fails_stops_the_run_and_loses_no_row(tmp_path: Path) -> None:
    broken = BrokenEngine(Watched(), tmp_path)
    bench = Bench(folder=tmp_path, spec=SPEC, executor=broken)

    job = bench.run(["a", "b", "c"])

    assert job.halted is not None
    assert job.halted.startswith("engine:")
    assert "ended 3 times" in job.halted
    assert run_book.counts(bench.ledger, job.run_id, job.validator_digest) == {"succeeded": (1, 1), "pending": (2, 2)}
    assert verify(bench.ledger).findings == ()

    bench.executor = ScriptedExecutor(tmp_path / "provider", clock=bench.clock)
    again = bench.run(["a", "b", "c"])
    assert run_book.counts(bench.ledger, again.run_id, again.validator_digest) == {"succeeded": (3, 3)}
    assert sorted(bench.executor.bill()["content"]) == sorted({"a", "b", "c"} - {broken.answered})
