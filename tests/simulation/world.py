"""The world of one seed: its time, its processes, its mischief and its history.

Processes are threads of which exactly one holds the baton. At every boundary (a ledger transaction, a call to the
provider, a sleep) the holder asks the world, which may end it, stop it for a while as SIGSTOP does, or let another go
first. Time stands still unless all processes wait; so a seed is one sequence of events, the same each time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

EPOCH = datetime(2026, 3, 1, tzinfo=UTC)

MOST_STEPS = 20_000
"""Boundaries in one seed; a world that needs more goes round in circles."""

MOST_IN_A_MOMENT = 1_500
"""Boundaries of one process while its clock stands still; more is a busy wait."""


class Crash(BaseException):
    """The end of a simulated process, at any boundary. Not an Exception: nothing in the product may catch it."""


class Stuck(Exception):
    """The world goes round in circles: a busy wait, or a run that never ends."""


@dataclass(eq=False)
class Process:
    """One life of one caller: it ends by finishing or by a crash."""

    name: str
    body: Callable[[Process], None]
    wake_at: datetime
    baton: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None
    dead: bool = False
    ended: bool = False
    known_gone: bool = False
    """Whether others can tell that it is gone, or have to wait for its leases."""
    crashed_at: datetime | None = None
    last_step_at: datetime | None = None
    silences: list[tuple[datetime, datetime]] = field(default_factory=list)
    """When it did not reach a boundary for longer than `World.silence_s`."""
    in_moment: int = 0


@dataclass
class Mischief:
    """How likely each fault is at each occasion, and how often it may still happen."""

    chances: dict[str, float]
    left: dict[str, int]


class World:
    """Time, processes and chance of one seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = EPOCH
        self.history: list[tuple[datetime, str, str]] = []
        self.mischief = Mischief(chances={}, left={})
        self.quiet = False
        """No more mischief: what is left is brought to its end."""
        self.silence_s = 120.0
        self.pauses_s: tuple[float, ...] = (1.0,)
        self.steps = 0
        self.failure: BaseException | None = None
        self.on_end: Callable[[Process], None] = lambda process: None
        self._processes: list[Process] = []
        self._current: Process | None = None
        self._all_ended = threading.Semaphore(0)

    # --- telling -----------------------------------------------------------------------------------------------

    def say(self, who: str, text: str) -> None:
        """Write one event into the history."""
        self.history.append((self.now, who, text))

    def told(self) -> str:
        """Return the history, one line an event."""
        lines = []
        for moment, who, text in self.history:
            lines.append(f"{(moment - EPOCH).total_seconds():>12.3f}s  {who:<10} {text}")
        return "\n".join(lines)

    # --- chance ------------------------------------------------------------------------------------------------

    def chance(self, fault: str) -> bool:
        """Say whether a fault happens now."""
        if self.quiet:
            return False
        likely = self.mischief.chances.get(fault, 0.0)
        if not likely or self.mischief.left.get(fault, 0) <= 0 or self.rng.random() >= likely:
            return False
        self.mischief.left[fault] -= 1
        return True

    def token_hex(self, nbytes: int) -> str:
        """Stand in for `secrets.token_hex`: names that the seed decides."""
        return self.rng.randbytes(nbytes).hex()

    # --- the clock, as the product is handed it ----------------------------------------------------------------

    def at(self) -> datetime:
        """Return the present moment."""
        return self.now

    def sleep(self, seconds: float, what: str = "") -> None:
        """Let time pass for the process that runs."""
        process = self._holder()
        if what and seconds >= 1:
            self.say(process.name, f"{what} {seconds:.1f}s")
        self._wait_until(process, self.now + timedelta(seconds=max(seconds, 0.001)))

    # --- boundaries --------------------------------------------------------------------------------------------

    def step(self, where: str) -> None:
        """Pass a boundary: the process may end here, be stopped for a while, or let others go first."""
        process = self._holder()
        self._beat(process, where)
        if self.quiet:
            if len(self._processes) > 1 and self.rng.random() < 0.05:
                self._wait_until(process, self.now)
            return
        if self.chance("crash"):
            self._crash(process, where)
        if self.chance("pause"):
            self.stop(self.rng.choice(self.pauses_s), where)
        elif len(self._processes) > 1 and self.rng.random() < self.mischief.chances.get("switch", 0.0):
            self._wait_until(process, self.now + timedelta(seconds=self.rng.choice((0.0, 0.0, 0.1, 2.0))))
        if process.dead:
            raise Crash

    def stop(self, about_s: float, where: str) -> None:
        """Stop the process that runs for a while, as SIGSTOP does."""
        process, seconds = self._holder(), about_s * self.rng.uniform(0.9, 1.2)
        self.say(process.name, f"STOPPED for {seconds:.0f}s {where}")
        self._wait_until(process, self.now + timedelta(seconds=seconds))

    def _crash(self, process: Process, where: str) -> None:
        process.known_gone = self.rng.random() < 0.5
        process.crashed_at = self.now
        process.dead = True
        self.say(process.name, f"KILLED {where}" + (", known to be gone" if process.known_gone else ""))
        raise Crash

    def end_here(self, where: str) -> None:
        """End the process that runs."""
        self._crash(self._holder(), where)

    def _beat(self, process: Process, where: str) -> None:
        if process.dead or self.failure is not None:
            raise Crash
        if process.last_step_at != self.now:
            before = process.last_step_at
            if before is not None and (self.now - before).total_seconds() > self.silence_s:
                process.silences.append((before, self.now))
            process.last_step_at, process.in_moment = self.now, 0
        process.in_moment += 1
        self.steps += 1
        if process.in_moment > MOST_IN_A_MOMENT:
            raise Stuck(f"{process.name} is in a busy wait {where}")
        if self.steps > MOST_STEPS:
            raise Stuck(f"no end after {MOST_STEPS} boundaries, {where}")

    # --- processes ---------------------------------------------------------------------------------------------

    def start(self, name: str, body: Callable[[Process], None], delay_s: float = 0.0) -> Process:
        """Add a process that begins after a delay."""
        process = Process(name=name, body=body, wake_at=self.now + timedelta(seconds=delay_s))
        self._processes.append(process)
        return process

    def run(self) -> None:
        """Run until all processes have ended, and raise what went wrong in any of them."""
        if self._processes:
            self._hand_on()
            self._all_ended.acquire()
        if self.failure is not None:
            raise self.failure

    def _holder(self) -> Process:
        process = self._current
        if process is None or process.thread is not threading.current_thread():
            raise RuntimeError("a boundary was passed without the baton")
        if process.dead or self.failure is not None:
            raise Crash
        return process

    def _wait_until(self, process: Process, moment: datetime) -> None:
        process.wake_at = moment
        chosen = self._choose()
        if chosen is not process:
            self._pass_to(chosen)
            process.baton.acquire()
        if process.dead or self.failure is not None:
            raise Crash
        process.wake_at = self.now

    def _choose(self) -> Process:
        """Return who runs next; time moves on when nobody can run now."""
        first = min(process.wake_at for process in self._processes)
        self.now = max(self.now, first)
        ready = [process for process in self._processes if process.wake_at <= self.now]
        return ready[0] if len(ready) == 1 else self.rng.choice(ready)

    def _pass_to(self, process: Process) -> None:
        self._current = process
        if process.thread is None:
            process.thread = threading.Thread(target=self._live, args=(process,), name=process.name, daemon=True)
            process.thread.start()
        else:
            process.baton.release()

    def _hand_on(self) -> None:
        if not self._processes:
            self._current = None
            self._all_ended.release()
            return
        self._pass_to(self._choose())

    def _live(self, process: Process) -> None:
        try:
            process.body(process)
        except Crash:
            pass
        except BaseException as failure:
            if self.failure is None:
                self.say(process.name, f"FAILED with {type(failure).__name__}: {failure}")
                self.failure = failure
        process.ended = True
        self._processes.remove(process)
        try:
            if self.failure is None:
                self.on_end(process)
        except BaseException as failure:
            self.failure = failure
        self._hand_on()


class WorldClock:
    """The clock that the product is handed."""

    def __init__(self, world: World) -> None:
        self._world = world

    def now(self) -> datetime:
        return self._world.now

    def sleep(self, seconds: float) -> None:
        """Sleep, with a boundary before and after."""
        self._world.step("before a sleep")
        self._world.sleep(seconds, "sleeps")
        self._world.step("after a sleep")
