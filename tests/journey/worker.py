"""One call of the product in a process of its own, which can be told to end or stop itself at a named boundary.

The boundaries are installed here, around the ledger's transactions and the executor's methods, never in the product.
Each one that is passed is noted in a file, so that a test can read from an undisturbed run where there is to kill.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl

import lotwise
import lotwise.call
import lotwise.executors.anthropic
import lotwise.executors.openai
import lotwise.run
import lotwise.testing
from lotwise.ledger.store import Ledger
from lotwise.ledger.transaction import Transaction

PROVIDER_CALLS = ("prepare", "create", "poll", "list", "cancel", "first_ids")


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Where a process ends or stops: at the `nth` time (from 1) that it comes to the boundary `at`."""

    at: str
    nth: int = 1
    how: Literal["KILL", "STOP", "INT"] = "KILL"
    then: Stop | None = None
    """What comes next, once the process goes on."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a process is to do: one `map` of `source`, or the resumption of the run `resume`.

    What it leaves is in `folder`: `out.parquet`, `result.json`, `boundaries` and `log`.
    """

    folder: Path
    ledger: Path
    source: Path | None = None
    prompt: str = "{text}"
    schema: Mapping[str, Any] | None = None
    model: str = "scripted:echo"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    resume: str | None = None
    stop: Stop | None = None
    speed: float = 1.0
    """How fast this process's clock runs, counted from `epoch`, so that a pause of minutes is over in no time."""
    epoch: float = 0.0
    log: str = "INFO"
    """The least level that is logged of every library; lotwise itself logs all in any case."""


class FastClock:
    """The system's clock, run faster since a moment that all processes of a test share."""

    def __init__(self, speed: float, epoch: float) -> None:
        self._speed, self._epoch = speed, epoch

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._epoch + (time.time() - self._epoch) * self._speed, UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds / self._speed)


def main(work: Work) -> None:
    """Do the work and write down how it ended. An error of the product is a result; it is not raised."""
    with (work.folder / "log").open("ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    logging.basicConfig(level=work.log, format="%(asctime)s %(name)s %(message)s", force=True)
    logging.getLogger("lotwise").setLevel(logging.DEBUG)
    os.environ.update(work.env)
    install(work)
    result: dict[str, Any] = {"error": None}
    try:
        frame = _do(work)
    except BaseException as error:
        traceback.print_exc()
        result = {"error": type(error).__name__, "message": str(error), "facts": _facts(error)}
        frame = error.partial() if isinstance(error, lotwise.errors.RunStopped) else None
    if frame is not None:
        frame.write_parquet(work.folder / "out.parquet")
    written = work.folder / "result.json.new"
    written.write_text(json.dumps(result), encoding="utf-8")
    written.rename(work.folder / "result.json")
    sys.stdout.flush()
    sys.stderr.flush()


def _do(work: Work) -> pl.DataFrame:
    options = lotwise.Options(**work.options)
    if work.resume is not None:
        run = lotwise.open_ledger(work.ledger).resume(
            work.resume, options=options, progress=False, poll_s=work.arguments.get("poll_s")
        )
        return run.collect()
    assert work.source is not None
    llm = pl.read_parquet(work.source).llm  # type: ignore[attr-defined]
    return llm.map(  # type: ignore[no-any-return]
        work.prompt, work.schema, model=work.model, ledger=work.ledger, options=options, **work.arguments
    )


def _facts(error: BaseException) -> dict[str, str]:
    return {name: repr(value) for name, value in vars(error).items() if name != "run"}


# --- boundaries ---------------------------------------------------------------------------------------------------


def install(work: Work) -> None:
    """Put a boundary before and after every commit and every call of the executor."""
    noted = os.open(work.folder / "boundaries", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    times: dict[str, int] = {}

    stop = work.stop

    def reach(name: str) -> None:
        nonlocal stop
        times[name] = times.get(name, 0) + 1
        os.write(noted, f"{name}\n".encode())
        if stop is not None and (name, times[name]) == (stop.at, stop.nth):
            how, stop = stop.how, stop.then
            os.kill(os.getpid(), getattr(signal, f"SIG{how}"))

    if work.speed != 1.0:
        lotwise.run.SystemClock = lambda: FastClock(work.speed, work.epoch)  # type: ignore[assignment,misc]
    _around_transactions(reach)
    _around_executors(reach)
    _inside_downloads(reach)


def _around_transactions(reach: Callable[[str], None]) -> None:
    plain = Ledger.transaction

    @contextlib.contextmanager
    def transaction(self: Ledger, purpose: str) -> Iterator[Transaction]:
        with plain(self, purpose) as tx:
            yield tx
            reach(f"before commit: {purpose}")
        reach(f"after commit: {purpose}")

    Ledger.transaction = transaction  # type: ignore[method-assign]


def _around_executors(reach: Callable[[str], None]) -> None:
    plain = lotwise.call.load

    def load(*args: Any, **kwargs: Any) -> Any:
        executor, name = plain(*args, **kwargs)
        for method in PROVIDER_CALLS:
            if hasattr(executor, method):
                setattr(executor, method, _bounded(getattr(executor, method), method, reach))
        for method in ("fetch", "answer"):
            if hasattr(executor, method):
                setattr(executor, method, _bounded_lists(getattr(executor, method), method, reach))
        return executor, name

    lotwise.call.load = load


def _bounded(plain: Callable[..., Any], name: str, reach: Callable[[str], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        reach(f"before {name}")
        result = plain(*args, **kwargs)
        reach(f"after {name}")
        return result

    return call


def _bounded_lists(plain: Callable[..., Any], name: str, reach: Callable[[str], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Iterator[list[bytes]]:
        reach(f"before {name}")
        for lines in plain(*args, **kwargs):
            reach(f"during {name}")
            yield lines
        reach(f"after {name}")

    return call


def _inside_downloads(reach: Callable[[str], None]) -> None:
    """Put a boundary into the saving of a result file, when half of its first piece is on disk."""
    for module in (lotwise.executors.openai, lotwise.executors.anthropic):

        def save(response: Any, path: Path, plain: Callable[..., None] = module.save) -> None:
            plain(_Halved(response, path, reach), path)

        module.save = save


class _Halved:
    def __init__(self, response: Any, path: Path, reach: Callable[[str], None]) -> None:
        self._response, self._path, self._reach = response, path, reach

    def iter_bytes(self, chunk_size: int | None = None) -> Iterator[bytes]:
        for piece in self._response.iter_bytes(chunk_size):
            middle = len(piece) // 2
            yield piece[:middle]
            self._reach("during download")
            yield piece[middle:]
