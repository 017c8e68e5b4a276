"""Collecting result lines, against the least that the same work costs by hand, in pairs.

    python tests/benchmarks/bench_collect.py [ROWS] [PAIRS]

The floor parses each line with typed msgspec decoders and inserts (key, raw line) as zstd VARCHAR in transactions of
25,000 on one open connection. Ours does that and matches by key, validates, settles, and adds up the rows.
"""

from __future__ import annotations

import json
import random
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import duckdb
import msgspec
import polars as pl
from msgspec import Struct

from lotwise import engine, owner
from lotwise.clock import SystemClock
from lotwise.executors.openai_dialect import read_lines
from lotwise.job import Job, Lane
from lotwise.key import KEY_VERSION, spec_digest, spec_json
from lotwise.ledger import requests as request_book
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import OPEN_SHARDS
from lotwise.request import Limits, Listed, Observation, Phase, Shard, Spec
from lotwise.schema import Schema
from lotwise.validate import Validator

CATEGORIES = ["billing", "delivery", "technical", "account", "refund", "other"]
SCHEMA = {"category": pl.Enum(CATEGORIES), "urgent": bool, "summary": str}


class Prebuilt:
    """A provider whose results lie on disk already, one file a shard."""

    provider, hosted, paid = "prebuilt", False, False
    limits = Limits(max_requests=50_000)

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def check(self, spec: Spec) -> None: ...
    def wire_schema(self, text: str) -> tuple[str, tuple[str, ...]]:
        return text, ()

    def model_digest(self) -> str | None:
        return None

    def account(self) -> str:
        return "bench"

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        return content_bytes.cast(pl.Int64) + 500

    def read(self, lines: Any) -> pl.DataFrame:
        return read_lines(lines)

    def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> str:
        r = random.Random(shard.id)
        ids = requests["custom_id"].to_list()
        r.shuffle(ids)
        with (self.folder / shard.id).open("wb") as file:
            for custom_id in ids:
                file.write(line(custom_id, r))
        return shard.id

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        return prepared

    def poll(self, batch_id: str) -> Observation:
        return Observation(phase=Phase.ENDED, provider_state="ended")

    def fetch(self, batch_id: str) -> Iterator[list[bytes]]:
        held: list[bytes] = []
        with (self.folder / batch_id).open("rb") as file:
            for one in file:
                held.append(one[:-1])
                if len(held) == 5_000:
                    yield held
                    held = []
        yield held

    def list(self, *, since: datetime) -> Iterator[Listed]:
        return iter(())

    def cancel(self, batch_id: str) -> None: ...
    def delete(self, batch_id: str) -> None: ...


def line(custom_id: str, r: random.Random) -> bytes:
    """Make a result line of about 600 bytes."""
    words = ["late box", "wrong charge", "no answer", "écran cassé", "返金", "broken part", "parcel lost"]
    summary = "customer reports " + " ".join(r.choice(words) for _ in range(r.randrange(2, 9)))
    answer = json.dumps(
        {"category": r.choice(CATEGORIES), "urgent": r.random() < 0.2, "summary": summary}, ensure_ascii=False
    )
    body = {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 1750000000,
        "model": "stub-1",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": answer, "refusal": None}, "finish_reason": "stop"}
        ],
        "usage": {"prompt_tokens": 1250, "completion_tokens": 42, "total_tokens": 1292},
    }
    whole = {
        "id": f"batch_req_{r.randrange(2**90):024x}",
        "custom_id": custom_id,
        "response": {"status_code": 200, "request_id": "0" * 32, "body": body},
        "error": None,
    }
    return json.dumps(whole, ensure_ascii=False).encode() + b"\n"


class A(Struct, forbid_unknown_fields=True, gc=False):
    category: Literal["billing", "delivery", "technical", "account", "refund", "other"]
    urgent: bool
    summary: str


class M(Struct, gc=False):
    content: str | None = None


class Ch(Struct, gc=False):
    message: M


class U(Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int


class B(Struct, gc=False):
    choices: list[Ch] = []
    usage: U | None = None


class R(Struct, gc=False):
    status_code: int
    body: B


class E(Struct, gc=False):
    custom_id: str
    response: R | None = None


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def ours(rows: int, folder: Path) -> tuple[float, float, Path]:
    """Return wall and CPU seconds of collecting, and where the lines lie."""
    lines = folder / "lines"
    lines.mkdir()
    spec = Spec(provider="prebuilt", model="m", wire_schema=Schema.of(SCHEMA).wire)
    digest, validator = spec_digest(spec), Validator.of(Schema.of(SCHEMA))
    ledger, clock = Ledger.open(folder / "ledger"), SystemClock()
    contents = (
        pl.Series([f"ticket {i} says that" for i in range(a, min(a + 50_000, rows))]) for a in range(0, rows, 50_000)
    )
    enrolled = engine.enroll(ledger, digest, contents, clock.now())
    run = engine.new_run_id()
    job_id = engine.job_digest(digest, enrolled.manifest)
    run_book.begin(
        ledger,
        run={
            "id": run,
            "name": None,
            "spec": digest,
            "validator": validator.digest,
            "job": job_id,
            "tier": "batch",
            "options": "{}",
            "prompt": "",
            "n_rows": rows,
            "n_skipped": 0,
            "n_requests": rows,
            "budget_usd": None,
        },
        spec={"digest": digest, "model": "prebuilt:m", "body": spec_json(spec), "key_version": KEY_VERSION},
        validator={"digest": validator.digest, "body": None},
        manifest=enrolled.manifest,
        now=clock.now(),
    )
    with owner.acting() as name:
        job = Job(
            ledger=ledger,
            lane=Lane(executor=Prebuilt(lines), prices=None),
            spec=spec,
            spec_digest=digest,
            validator=validator,
            validator_digest=validator.digest,
            run_id=run,
            job_id=job_id,
            n_requests=rows,
            clock=clock,
            owner=name,
            is_gone=owner.gone,
            options=engine_options(),
        )
        engine.send(job)
        assert not request_book.pending(job.ledger, run).height
        began, used = time.perf_counter(), cpu_s()
        while any(shard["state"] in OPEN_SHARDS for shard in shard_book.all_open(ledger)):
            for shard in shard_book.open_of(ledger, run, job_id):
                engine.advance(job, shard)
        wall, spent = time.perf_counter() - began, cpu_s() - used
        assert run_book.counts(ledger, run, validator.digest) == {"succeeded": (rows, rows)}
    return wall, spent, lines


def engine_options() -> Any:
    from lotwise.job import Options

    return Options(window=1_000, shard_rows=25_000)


def floor(lines: Path, folder: Path) -> tuple[float, float]:
    """Return wall and CPU seconds of doing the least by hand."""

    began, used = time.perf_counter(), cpu_s()
    envelope, answer = msgspec.json.Decoder(E).decode, msgspec.json.Decoder(A).decode
    con = duckdb.connect(str(folder / "floor.duckdb"))
    con.execute("SET threads = 2")
    con.execute("CREATE TABLE result (key VARCHAR, raw VARCHAR USING COMPRESSION zstd)")
    columns: dict[str, list[Any]] = {name: [] for name in ("key", "category", "urgent", "summary", "pt", "ct")}
    keys: list[str] = []
    raws: list[str] = []

    def flush() -> None:
        con.register("k", pl.DataFrame({"key": keys, "raw": raws}).to_arrow())
        con.execute("BEGIN")
        con.execute("INSERT INTO result SELECT key, raw FROM k")
        con.execute("COMMIT")
        con.unregister("k")
        keys.clear()
        raws.clear()

    for path in sorted(lines.iterdir()):
        with path.open("rb") as file:
            for one in file:
                read = envelope(one)
                assert read.response is not None
                said = answer(read.response.body.choices[0].message.content or "")
                usage = read.response.body.usage
                assert usage is not None
                for name, value in zip(
                    columns,
                    (
                        read.custom_id,
                        said.category,
                        said.urgent,
                        said.summary,
                        usage.prompt_tokens,
                        usage.completion_tokens,
                    ),
                    strict=True,
                ):
                    columns[name].append(value)
                keys.append(read.custom_id)
                raws.append(one.decode())
                if len(keys) == 25_000:
                    flush()
    if keys:
        flush()
    con.close()
    pl.DataFrame(columns)
    return time.perf_counter() - began, cpu_s() - used


def main() -> None:
    given = [int(word) for word in sys.argv[1:]]
    rows, pairs = (given + [200_000, 3][len(given) :])[:2]
    ratios = []
    for pair in range(pairs):
        with tempfile.TemporaryDirectory() as name:
            wall, spent, lines = ours(rows, Path(name))
            floor_wall, floor_spent = floor(lines, Path(name))
        ratios.append(wall / floor_wall)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(
            f"pair {pair + 1}: ours {wall:.2f} s ({spent:.2f} CPU), floor {floor_wall:.2f} s ({floor_spent:.2f} CPU), "
            f"ratio {wall / floor_wall:.2f} (CPU {spent / floor_spent:.2f}), peak {peak:.0f} MB"
        )
    print(f"median ratio {statistics.median(ratios):.2f} [{min(ratios):.2f}-{max(ratios):.2f}], {rows:,} rows")


if __name__ == "__main__":
    main()
