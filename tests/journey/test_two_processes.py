"""Two processes with different maps on one ledger: both finish, nobody waits long, a third reads meanwhile."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lotwise.errors import LedgerLocked
from lotwise.ledger import files
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify
from runs import Bench

LONGEST_S = 5.0
"""More than a transaction takes on a loaded machine, far less than a starved process waits."""

WORKER = """
import contextlib, json, sys, time
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from runs import Bench
from lotwise.job import Options
from lotwise.ledger import files

waits = []
lock = files._sidecar

@contextlib.contextmanager
def timed(path, purpose):
    began = time.perf_counter()
    with lock(path, purpose):
        waits.append(time.perf_counter() - began)
        yield

files._sidecar = timed
name, texts = sys.argv[3], json.loads(sys.argv[4])
bench = Bench(folder=Path(sys.argv[2]))
job = bench.run(texts, options=Options(shard_rows=20))
answers = bench.values(job, texts)
print(json.dumps({"longest_wait_s": max(waits), "answers": [json.loads(one)["answer"] for one in answers]}))
"""

HOLDER = """
import sys, duckdb
connection = duckdb.connect(sys.argv[1], read_only=True)
connection.sql("SELECT count(*) FROM request").fetchall()
print("open", flush=True)
sys.stdin.readline()
"""

TESTS = str(Path(__file__).parent.parent)


def _start(folder: Path, name: str, texts: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, TESTS, str(folder), name, json.dumps(texts)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_two_maps_both_finish_while_a_third_process_reads(tmp_path: Path) -> None:
    shared = [f"shared {i}" for i in range(20)]
    wanted = {name: [*shared, *(f"{name} {i}" for i in range(20))] for name in ("left", "right")}
    bench = Bench(folder=tmp_path)

    workers = {name: _start(tmp_path, name, texts) for name, texts in wanted.items()}
    looks: list[float] = []
    while any(worker.poll() is None for worker in workers.values()):
        began = time.perf_counter()
        bench.ledger.sql("SELECT state, count(*) FROM request GROUP BY state")
        looks.append(time.perf_counter() - began)
    told = {name: worker.communicate() for name, worker in workers.items()}

    assert {name: worker.returncode for name, worker in workers.items()} == {"left": 0, "right": 0}, told
    for name, (said, _) in told.items():
        report = json.loads(said)
        assert report["answers"] == wanted[name]
        assert report["longest_wait_s"] < LONGEST_S
    assert max(looks) < LONGEST_S
    bill = bench.executor.bill()
    assert sorted(bill["content"]) == sorted({text for texts in wanted.values() for text in texts})
    assert verify(bench.ledger).clean


def test_foreign_reader_is_named_with_its_process_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FOREIGN_WAIT_S", 0.2)
    ledger = Ledger.open(tmp_path / "ledger")
    command = [sys.executable, "-c", HOLDER, str(tmp_path / "ledger" / "ledger.duckdb")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "open"

        with pytest.raises(LedgerLocked) as locked, ledger.transaction("test"):
            pass
        readable = run_book.all_runs(ledger).is_empty()
        holder.communicate("\n")

    assert locked.value.pid == holder.pid
    assert f"process {holder.pid}" in str(locked.value)
    assert readable
    with ledger.transaction("afterwards"):
        pass


def test_lock_of_a_killed_process_is_free(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger")
    hold = f"""
import sys
from lotwise.ledger.store import Ledger
with Ledger.open({str(tmp_path / "ledger")!r}).transaction("hold"):
    print("open", flush=True)
    sys.stdin.readline()
"""
    with subprocess.Popen(
        [sys.executable, "-c", hold], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == "open"
        said = (tmp_path / "ledger" / files.LOCK).read_text()
        holder.kill()
        holder.wait()

    began = time.perf_counter()
    assert run_book.all_runs(ledger).is_empty()
    assert time.perf_counter() - began < LONGEST_S
    assert said == f"{holder.pid} hold\n"
