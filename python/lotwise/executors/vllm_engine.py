"""The engines of this process: which child runs with which arguments, who has it just now, and how it is started.

One engine is asked by one shard at a time. It outlives the shard, so that the next one finds it warm; an idle one is
ended when another is wanted, since two seldom fit on a device.
"""

from __future__ import annotations

import atexit
import json
import os
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lotwise.errors import EngineFailed
from lotwise.executors.child import GRACE_S, Child, ChildEnded, Frame

ENVIRONMENT: Mapping[str, str] = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing is told to anybody
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",  # the model lies here
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROCESSING_METHOD": "spawn",  # the child has threads, which a fork would cut off
    "TOKENIZERS_PARALLELISM": "true",
}
"""What the child's environment says unless ours or ``env`` says otherwise."""

WAIT_S = 0.5
"""How long nothing may happen until whoever waits gets an empty list, to do what it has to do meanwhile."""

RETRY_START_S = (1.0, 5.0, 15.0)
"""Pauses before an engine that was up is started once more, if it does not come up: a device is not free at once."""

HALFWAY_S = 1.0
"""How long an engine that is given up while it starts may take to end, before its processes are killed."""

WHAT_CHARS = 600
"""How much of an exception's text is told."""

PRINCIPAL_LINES = 6
"""How many of its lines an engine that does not start is quoted with."""

_GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How an engine is started; equal plans share one engine."""

    command: tuple[str, ...]
    model: str
    arguments: str
    """JSON of the arguments of vLLM's `LLM`."""
    env: tuple[tuple[str, str], ...]
    """What the caller wants in the child's environment."""
    foreign: bool
    """Whether the interpreter is another environment's, for which ours must not speak."""
    on_cpu: bool
    start_s: float
    stall_s: float

    def environment(self) -> dict[str, str]:
        """Return the child's whole environment."""
        ours = dict(os.environ)
        if self.foreign:
            for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
                ours.pop(name, None)
        room = {"VLLM_CPU_KVCACHE_SPACE": str(room_on_cpu())} if self.on_cpu else {}
        return {**ENVIRONMENT, **room, **ours, **dict(self.env)}


def room_on_cpu() -> int:
    """Return how many whole GiB a CPU engine's cache may take: a quarter of what is free now.

    Where nothing is said, vLLM on CPU takes nearly all of the machine's memory, and dies when anything else runs.
    """
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
        return max(1, free // 4 // _GIB)
    return 1


class Engine:
    """One engine: the child that is started by a plan, again and again if need be."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lock = threading.Lock()
        """Held by whoever asks it."""
        self.about: Frame = {}
        """What the child said of itself when it was up last."""
        self.n_starts = 0
        self._child: Child | None = None
        self._job = 0
        self._heard_at = 0.0

    @property
    def pid(self) -> int | None:
        """The child's process id; None while there is none."""
        return None if self._child is None else self._child.pid

    @property
    def room(self) -> int:
        """Rows in flight that never let the engine want for one: twice what it works on at once."""
        return 2 * int(self.about["max_num_seqs"])

    # --- its life -------------------------------------------------------------------------------------------------

    def start(self, *, again: bool) -> Iterator[list[bytes]]:
        """Bring the engine up if it is not, and yield empty lists meanwhile.

        Raises
        ------
        EngineFailed
            It did not come up; with `again`, not after some pauses either.
        """
        pauses = iter(RETRY_START_S if again else ())
        while self._child is None:
            try:
                yield from self._start_once()
            except EngineFailed:
                pause = next(pauses, None)
                if pause is None:
                    raise
                until = time.monotonic() + pause
                while time.monotonic() < until:
                    time.sleep(WAIT_S)
                    yield []

    def _start_once(self) -> Iterator[list[bytes]]:
        plan = self.plan
        try:
            child = Child(plan.command, plan.environment(), send_s=plan.stall_s)
        except OSError as fault:
            raise EngineFailed.to_start(plan.model, f"{plan.command[0]}: {fault.strerror}") from None
        self.n_starts += 1
        try:
            self.about = yield from self._come_up(child)
        except ChildEnded as end:
            child.close(grace_s=HALFWAY_S)  # first: only then all that it wrote has been read
            raise EngineFailed.to_start(plan.model, _why(end.how, child.tail())) from None
        except BaseException:
            child.close(grace_s=HALFWAY_S)
            raise
        child.ready()
        self._child = child

    def _come_up(self, child: Child) -> Generator[list[bytes], None, Frame]:
        """Tell a child what to load and return what it says of itself once it is up. Raises `ChildEnded`: it is not."""
        plan, deadline = self.plan, time.monotonic() + self.plan.start_s
        child.tell({"op": "start", "model": plan.model, "engine": json.loads(plan.arguments)})
        while True:
            for frame in child.hear(WAIT_S):
                if frame["op"] == "failed":
                    raise ChildEnded(frame["error"])
                return frame
            if time.monotonic() > deadline:
                raise ChildEnded(f"it was not ready after {plan.start_s:g} s")
            yield []

    def close(self, *, grace_s: float = GRACE_S) -> None:
        """End the child and all its processes, killed after `grace_s` seconds; the device is free afterwards."""
        child, self._child = self._child, None
        if child is not None:
            child.close(grace_s=grace_s)

    def forget(self) -> None:
        """Let go of the child in a forked process."""
        child, self._child = self._child, None
        if child is not None:
            child.forget()

    # --- its work -------------------------------------------------------------------------------------------------

    def begin(self, shared: Mapping[str, Any]) -> None:
        """Say what all rows that follow share. Raises `ChildEnded`."""
        self._job += 1
        self._tell({"op": "job", "id": self._job, **shared})

    def ask(self, rows: Sequence[tuple[str, str, int]]) -> None:
        """Hand over rows (id, content, max_tokens). Raises `ChildEnded`."""
        self._tell({"op": "ask", "rows": rows})

    def hear(self) -> list[tuple[str, int, Frame]]:
        """Return the rows (id, status, body) that finished, waiting a moment for the first. Raises `ChildEnded`."""
        child = self._alive()
        finished: list[tuple[str, int, Frame]] = []
        for frame in child.hear(WAIT_S):
            self._heard_at = time.monotonic()
            if frame["op"] == "dead":
                child.note(frame["error"])
            elif frame["job"] == self._job:  # what was given up may still come
                finished.extend((one, status, body) for one, status, body in frame["rows"])
        if time.monotonic() - self._heard_at > self.plan.stall_s:
            raise ChildEnded(f"no step for {self.plan.stall_s:g} s")
        return finished

    def give_up(self) -> None:
        """Give up the rows at work, if there is a child that has them."""
        if self._child is not None:
            try:
                self._tell({"op": "abort"})
            except ChildEnded:
                self.close()

    def _tell(self, frame: Mapping[str, Any]) -> None:
        self._alive().tell(frame)
        self._heard_at = time.monotonic()

    def _alive(self) -> Child:
        if self._child is None:
            raise ChildEnded("it was shut down")
        return self._child


def _why(what: str, tail: str) -> str:
    """Say why an engine did not start: what is known, and those of its last lines that tell of an error."""
    lines = [line.strip() for line in tail.splitlines() if line.strip()]
    telling = [line for line in lines if "error" in line.lower()] or lines
    return "; ".join([" ".join(what.split())[:WHAT_CHARS], *telling[-PRINCIPAL_LINES:]])[: 3 * WHAT_CHARS]


# --- the engines of this process ----------------------------------------------------------------------------------

_known: dict[Plan, Engine] = {}
_knowing = threading.Lock()


@contextmanager
def claim(plan: Plan) -> Iterator[Claim]:
    """Yield a claim to the engine of a plan, which is given back at the end."""
    with _knowing:
        engine = _known.setdefault(plan, Engine(plan))
    claimed = Claim(engine)
    try:
        yield claimed
    finally:
        claimed.give_back()


class Claim:
    """Somebody's turn at an engine."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._held = False

    def mine(self, wait_s: float) -> bool:
        """Say whether the engine is ours now, waiting so long for it. Idle engines of other plans are ended then."""
        self._held = self._held or self.engine.lock.acquire(timeout=wait_s)
        if self._held:
            with _knowing:
                others = [other for other in _known.values() if other is not self.engine]
            for other in others:
                if other.lock.acquire(blocking=False):
                    try:
                        other.close()
                    finally:
                        other.lock.release()
        return self._held

    def give_back(self) -> None:
        """Let the next one have it."""
        if self._held:
            self._held = False
            self.engine.lock.release()


def engines() -> tuple[Engine, ...]:
    """Return the engines that this process knows, up or not."""
    with _knowing:
        return tuple(_known.values())


def shut_down() -> None:
    """End every engine of this process, and free its device. A later call starts its engine anew."""
    for engine in engines():
        engine.close()


def _forget_after_fork() -> None:
    global _knowing
    _knowing = threading.Lock()
    for engine in _known.values():
        engine.forget()
    _known.clear()


atexit.register(shut_down)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
