"""Starting, killing, stopping and awaiting the processes of these tests, and judging what they leave behind.

Children are forked from a server that has imported everything and done nothing, so that each is a new process of its
own and none pays for imports. What they did is judged by the provider's bill, the ledger's own verification, and the
frame; never by what the product says of itself.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from journey.worker import Stop, Work, main
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify

SHARED = Path(os.environ.get("LOTWISE_SHARED", Path(__file__).resolve().parents[3] / "shared"))
PATIENCE_S = 300.0
"""How long anything is waited for: far longer than it takes, since the machine may be busy."""

_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["journey.warm"])
_turn = threading.Event()


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait until a condition gives something true, and return it."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {PATIENCE_S:.0f} s for {what}")
        _turn.wait(0.01)
    return found


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a process ended."""

    signal: int | None
    """The signal that killed it; None where it came to its own end."""
    error: str | None = None
    """The class of the error that its call raised."""
    message: str = ""
    frame: pl.DataFrame | None = None
    boundaries: tuple[str, ...] = ()
    log: str = ""

    @property
    def rows(self) -> pl.DataFrame:
        """The frame of a call that must have returned one."""
        assert self.error is None, f"{self.error}: {self.message}\n{self.log}"
        assert self.frame is not None, self.log
        return self.frame


class Child:
    """One process at work."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self._process = _forks.Process(target=main, args=(work,), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self) -> Ended:
        """Wait for the end and return what the process left."""
        self._process.join(PATIENCE_S)
        if self._process.exitcode is None:
            self.kill()
            raise TimeoutError(f"a process did not end in {PATIENCE_S:.0f} s; its log:\n{self._read('log')[-4000:]}")
        return self._ended()

    def assert_alive(self) -> None:
        """Fail with the process's log when it has ended."""
        self._state()

    def kill_after(self, seconds: float) -> Ended:
        """Kill the process after so long, if it still runs, and return what it left."""
        self._process.join(seconds)
        self.kill()
        return self._ended()

    def kill(self) -> None:
        """End the process with SIGKILL."""
        self._process.kill()
        self._process.join(PATIENCE_S)

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        os.kill(self.pid, signal.SIGINT)

    def wait_stopped(self) -> None:
        """Wait until the process has stopped itself."""
        until(lambda: self._state() == "T", "a process to stop itself")

    def go_on(self) -> None:
        """Let a stopped process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def passed(self, boundary: str) -> bool:
        """Say whether the process has come by a boundary."""
        return boundary in self._read("boundaries").splitlines()

    def count(self, boundary: str) -> int:
        """Return how often the process has come by a boundary."""
        return self._read("boundaries").splitlines().count(boundary)

    def _state(self) -> str:
        assert self._process.exitcode is None, f"the process has ended:\n{self._read('log')[-4000:]}"
        return Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0]

    def _read(self, name: str) -> str:
        path = self.work.folder / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def _ended(self) -> Ended:
        code = self._process.exitcode
        assert code is not None
        out = self.work.folder / "out.parquet"
        told = json.loads(self._read("result.json") or '{"error": null}')
        assert code < 0 or self._read("result.json"), self._read("log")
        return Ended(
            signal=-code if code < 0 else None,
            error=told["error"],
            message=told.get("message", ""),
            frame=pl.read_parquet(out) if out.exists() else None,
            boundaries=tuple(self._read("boundaries").splitlines()),
            log=self._read("log"),
        )


class Desk:
    """A ledger, an input and the way to call for it, again and again."""

    def __init__(self, folder: Path, frame: pl.DataFrame, **work: Any) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        frame.write_parquet(folder / "in.parquet")
        self.frame = frame
        self.ledger_path = folder / "ledger"
        self._base = Work(
            folder=folder, ledger=self.ledger_path, source=folder / "in.parquet", epoch=time.time(), **work
        )
        self._n = 0

    def start(self, stop: Stop | None = None, **changes: Any) -> Child:
        """Start the call in a new process."""
        self._n += 1
        folder = self.folder / f"call-{self._n}"
        folder.mkdir()
        return Child(replace(self._base, folder=folder, stop=stop, **changes))

    def call(self, stop: Stop | None = None, **changes: Any) -> Ended:
        """Make the call in a new process and wait for its end."""
        return self.start(stop, **changes).wait()

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.ledger_path, create=False)

    def sql(self, query: str) -> pl.DataFrame:
        return self.ledger.sql(query)

    def shards(self) -> Counter[str]:
        """Return the number of shards in each state."""
        return Counter(self.sql("SELECT state FROM shard")["state"].to_list())

    def assert_clean(self) -> None:
        """Verify the whole ledger."""
        report = verify(self.ledger)
        assert report.clean, report.findings

    def assert_rows_are_the_ledgers(self, rows: pl.DataFrame) -> None:
        """Check that each row's answer is the one that the ledger holds for its key."""
        held = self.sql(
            "SELECT v.key, count(DISTINCT r.shard) AS n, min(v.value) AS value FROM validation v"
            " JOIN result r ON r.shard = v.shard AND r.key = v.key WHERE v.ok GROUP BY v.key"
        )
        told = {key: json.loads(value) for key, value in held.select("key", "value").iter_rows()}
        assert held["n"].max() in (1, None)
        for row in rows.filter(pl.col("llm_id").is_not_null()).iter_rows(named=True):
            answer = told[row["llm_id"]]
            shown = answer if isinstance(answer, dict) else {"answer": answer}
            assert {name: row[name] for name in shown} == shown


MAYBE = frozenset({"before commit: renew lease", "after commit: renew lease"})
"""Boundaries that a run comes to only where it is slow."""


def may_be_missed(stop: Stop) -> bool:
    """Say whether another run of the same work may end without coming to a boundary: it polls as often as its batches
    take, and keeps its leases as often as its work takes."""
    return stop.nth > 1 or stop.at in MAYBE


def kill_points(boundaries: tuple[str, ...]) -> list[Stop]:
    """Return every boundary of an undisturbed run as a place to be killed at."""
    times: Counter[str] = Counter()
    stops = []
    for name in boundaries:
        times[name] += 1
        stops.append(Stop(at=name, nth=times[name]))
    return stops


def reviews(n: int | None = None) -> pl.DataFrame:
    """Return real reviews (`text`), or as many made-up ones where the shared data is absent."""
    path = SHARED / "data" / "reviews.parquet"
    if path.exists():
        frame = pl.read_parquet(path).select("text")
    else:
        frame = pl.DataFrame({"text": [f"Stand-in review {i % 1_987}: not what I paid for." for i in range(2_002)]})
    return frame if n is None else frame.head(n)
