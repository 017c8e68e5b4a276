"""How far a run is, for whoever watches: a line that renews itself in a terminal, a card in a notebook, plain lines
elsewhere.

All of it goes to standard error or to the notebook's display, so that output that is piped stays clean. No row content
is ever shown.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol, TextIO

from lotwise import text
from lotwise.job import Snapshot

EVERY = timedelta(seconds=0.5)
"""How often the engine is asked for a snapshot at most while answers come in: each costs a look into the ledger."""

TICK_S = 1.0
"""How often the elapsed time is renewed where nothing else changes."""

PLAIN_EVERY_S = 5.0
"""How often a plain line is written at most."""

Monotonic = Callable[[], float]


class Reporter(Protocol):
    """What a run tells about itself while it works."""

    def began(self, ledger: Path, *, new: bool, paid: bool, warnings: Sequence[str]) -> None: ...
    def due(self, now: datetime) -> bool: ...
    def tell(self, snapshot: Snapshot) -> None: ...
    def noticed(self, text: str) -> None: ...
    def detached(self, run_id: str, ledger: Path, *, under_way: str) -> None: ...
    def finished(self) -> None: ...


def reporter(progress: bool | None) -> Reporter:
    """Return the reporter that suits where we are; a silent one when it is not wanted."""
    if progress is False:
        return Silent()
    if in_kernel():
        return Notebook()
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return Terminal(sys.stderr, look=Look.of(sys.stderr, os.environ))
    return Lines(sys.stderr)


class Paced:
    """The pace at which the engine is asked for snapshots; what all faces share."""

    _asked: datetime | None = None

    def due(self, now: datetime) -> bool:
        """Say whether it is time for a snapshot."""
        if self._asked is not None and now - self._asked < EVERY:
            return False
        self._asked = now
        return True


class Silent:
    """Tells nothing but how to go on after an interruption."""

    def began(self, ledger: Path, *, new: bool, paid: bool, warnings: Sequence[str]) -> None:
        pass

    def due(self, now: datetime) -> bool:
        return False

    def tell(self, snapshot: Snapshot) -> None:
        pass

    def noticed(self, text: str) -> None:
        pass

    def detached(self, run_id: str, ledger: Path, *, under_way: str) -> None:
        print(detached_text(run_id, ledger, under_way), file=sys.stderr)

    def finished(self) -> None:
        pass


class Lines(Paced):
    """Plain lines: one when something has changed, at most one every few seconds; always the last, and each new reason
    to wait."""

    def __init__(self, out: TextIO, *, monotonic: Monotonic = time.monotonic) -> None:
        self._out, self._monotonic = out, monotonic
        self._written_at = monotonic()
        self._said = ""
        self._whys: set[str] = set()
        self._latest: Snapshot | None = None

    def began(self, ledger: Path, *, new: bool, paid: bool, warnings: Sequence[str]) -> None:
        for line in opening(ledger, new=new, paid=paid, warnings=warnings):
            print(f"lotwise: {line}", file=self._out, flush=True)

    def tell(self, snapshot: Snapshot) -> None:
        self._latest = snapshot
        news = not self._whys.issuperset(snapshot.waiting)  # a wait may be long, and its reason is told as it begins
        if news or self._monotonic() - self._written_at >= PLAIN_EVERY_S:
            self._write()

    def noticed(self, text: str) -> None:
        print(f"lotwise: {text}", file=self._out, flush=True)

    def detached(self, run_id: str, ledger: Path, *, under_way: str) -> None:
        self._write()
        print(detached_text(run_id, ledger, under_way), file=self._out, flush=True)

    def finished(self) -> None:
        self._write()
        self._latest, self._said, self._whys = None, "", set()

    def _write(self) -> None:
        if self._latest is None or plain_line(self._latest) == self._said:
            return
        self._said, self._written_at = plain_line(self._latest), self._monotonic()
        self._whys.update(self._latest.waiting)
        print(f"lotwise: {self._said}, {text.duration(self._latest.elapsed_s)}", file=self._out, flush=True)


class Live(Paced, ABC):
    """A picture that is renewed in place, also while nothing but the time changes.

    Parameters
    ----------
    ticking
        Whether a thread renews the elapsed time between snapshots.
    monotonic
        Seconds, for the elapsed time.
    """

    def __init__(self, *, ticking: bool, monotonic: Monotonic) -> None:
        self._ticking, self._monotonic = ticking, monotonic
        self._drawing = threading.RLock()
        self._stop: threading.Event | None = None
        self._latest: tuple[Snapshot, float] | None = None
        self._left = False

    @abstractmethod
    def draw(self, snapshot: Snapshot, elapsed_s: float, *, last: bool) -> None:
        """Draw where the run stands, over what was drawn before."""

    def tell(self, snapshot: Snapshot) -> None:
        with self._drawing:
            if self._left:
                return
            self._latest = (snapshot, self._monotonic())
            self.draw(snapshot, snapshot.elapsed_s, last=False)
            if self._ticking and self._stop is None:
                self._stop = threading.Event()
                threading.Thread(target=self._tick, args=(self._stop,), name="lotwise-progress", daemon=True).start()

    def finished(self) -> None:
        self._end()
        self._left = False

    def _end(self) -> None:
        """Draw for the last time, and let the thread end."""
        with self._drawing:
            if self._stop is not None:
                self._stop.set()
                self._stop = None
            if self._latest is not None:
                snapshot, told_at = self._latest
                self._latest = None
                self.draw(snapshot, snapshot.elapsed_s + self._monotonic() - told_at, last=True)

    def _tick(self, stop: threading.Event) -> None:
        while not stop.wait(TICK_S):
            with self._drawing:
                if stop.is_set() or self._latest is None:
                    return
                snapshot, told_at = self._latest
                self.draw(snapshot, snapshot.elapsed_s + self._monotonic() - told_at, last=False)


class Terminal(Live):
    """One line that renews itself. It leaves the terminal as it found it: no mode, colour or cursor is kept."""

    def __init__(
        self,
        out: TextIO,
        *,
        look: Look,
        width: Callable[[], int] | None = None,
        ticking: bool = True,
        monotonic: Monotonic = time.monotonic,
    ) -> None:
        super().__init__(ticking=ticking, monotonic=monotonic)
        self._out, self._look, self._width = out, look, width or (lambda: columns(out))
        self._drawn = ""

    def began(self, ledger: Path, *, new: bool, paid: bool, warnings: Sequence[str]) -> None:
        for line in opening(ledger, new=new, paid=paid, warnings=warnings):
            print(f"{self._look.faint('lotwise')}  {line}", file=self._out, flush=True)

    def draw(self, snapshot: Snapshot, elapsed_s: float, *, last: bool) -> None:
        line = terminal_line(snapshot, elapsed_s, width=self._width() - 1, look=self._look, last=last)
        if last:
            print(f"\r{line}\x1b[K", file=self._out, flush=True)
            self._drawn = ""
        elif line != self._drawn:
            self._drawn = line
            print(f"\r{line}\x1b[K", end="", file=self._out, flush=True)

    def noticed(self, text: str) -> None:
        with self._drawing:
            clear = "\r\x1b[K" if self._drawn else ""
            print(f"{clear}{self._look.faint('lotwise')}  {text}", file=self._out, flush=True)
            self._drawn = ""  # the line below it is drawn anew

    def detached(self, run_id: str, ledger: Path, *, under_way: str) -> None:
        self._end()
        self._left = True
        print(detached_text(run_id, ledger, under_way), file=self._out, flush=True)


class Notebook(Live):
    """A card that is updated in place by its display id."""

    def __init__(self, *, ticking: bool = True, monotonic: Monotonic = time.monotonic) -> None:
        super().__init__(ticking=ticking, monotonic=monotonic)
        self._handle: Any = None
        self._notes: list[str] = []
        self._drawn: dict[str, str] = {}

    def began(self, ledger: Path, *, new: bool, paid: bool, warnings: Sequence[str]) -> None:
        self._notes = opening(ledger, new=new, paid=paid, warnings=warnings)

    def draw(self, snapshot: Snapshot, elapsed_s: float, *, last: bool) -> None:
        from lotwise import html

        plain = f"lotwise: {plain_line(snapshot, elapsed_s)}, {text.duration(elapsed_s)}"
        self._show({"text/html": html.progress(snapshot, elapsed_s, self._notes), "text/plain": plain})

    def noticed(self, text: str) -> None:
        self._notes = [*self._notes, text]

    def detached(self, run_id: str, ledger: Path, *, under_way: str) -> None:
        self._notes = [*self._notes, *detached_text(run_id, ledger, under_way).splitlines()]
        self._end()
        self._left = True

    def finished(self) -> None:
        super().finished()
        self._handle = None  # a later wait shows a card of its own

    def _show(self, bundle: dict[str, str]) -> None:
        from IPython.display import display

        if bundle == self._drawn and self._handle is not None:
            return
        self._drawn = bundle
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)  # type: ignore[no-untyped-call]
        else:
            self._handle.update(bundle, raw=True)


def in_kernel() -> bool:
    """Say whether this process is a Jupyter kernel, without importing anything that is not there already."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def columns(out: TextIO) -> int:
    """Return how many cells a line of a terminal has; 80 where it does not say."""
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


# --- what is said -------------------------------------------------------------------------------------------------


def opening(ledger: Path, *, new: bool, paid: bool, warnings: Sequence[str]) -> list[str]:
    """Say where answers are kept before anything is sent, and what is worth knowing."""
    if new and paid:
        told = f"new ledger {ledger}: answers that another ledger holds would be bought again"
    else:
        told = f"{'new ledger' if new else 'ledger'} {ledger}"
    return [told, *warnings]


def plain_line(snapshot: Snapshot, elapsed_s: float | None = None) -> str:
    """Write a snapshot as a line without the time; what counts down does so from the snapshot on."""
    total, done = totals(snapshot.rows)
    told = f"{done:,} of {total:,} rows: {text.counts(snapshot.rows)}" if total else "no rows"
    return "; ".join(part for part in (told, text.waits(snapshot, elapsed_s), phases_of(snapshot)) if part)


def totals(rows: Mapping[str, int]) -> tuple[int, int]:
    """Return how many rows there are, and how many are final."""
    total = sum(rows.values())
    return total, total - sum(rows.get(state, 0) for state in ("pending", "submitted"))


def detached_text(run_id: str, ledger: Path, under_way: str) -> str:
    """Say what becomes of what is under way after Ctrl-C, how to go on, and how not to."""
    where = shlex.quote(str(ledger))
    return (
        f"lotwise: detached; nothing is lost: answers are kept, and {under_way}\n"
        f"  to go on   repeat the call, or: lotwise resume {run_id} --ledger {where}\n"
        f"  to cancel  lotwise cancel {run_id} --ledger {where}"
    )


def phases_of(snapshot: Snapshot) -> str:
    """Say what the open shards are at, in the provider's words where there are any."""
    return ", ".join(
        f"{text.plural(n, 'shard')} {phase.replace('_', ' ')}" for phase, n in sorted(snapshot.phases.items())
    )


# --- the terminal's line ------------------------------------------------------------------------------------------

_INK = {
    "succeeded": "32",
    "invalid": "31",
    "dead_lettered": "31",
    "refused": "33",
    "skipped": "90",
}


class Look:
    """What a terminal can show."""

    def __init__(self, *, colour: bool, lines: bool) -> None:
        self.colour, self.lines = colour, lines

    @classmethod
    def of(cls, out: TextIO, environ: Mapping[str, str]) -> Look:
        """Read it off a stream and the environment; NO_COLOR is honoured."""
        encoding = (getattr(out, "encoding", None) or "").lower().replace("-", "")
        return cls(colour=not environ.get("NO_COLOR"), lines=encoding.startswith("utf"))

    def ink(self, code: str, words: str) -> str:
        """Colour words, where there is colour."""
        return f"\x1b[{code}m{words}\x1b[0m" if self.colour and words else words

    def faint(self, words: str) -> str:
        """Write words that are not looked at first."""
        return self.ink("90", words)

    @property
    def dot(self) -> str:
        """What stands between two facts."""
        return " · " if self.lines else ", "


def terminal_line(snapshot: Snapshot, elapsed_s: float, *, width: int, look: Look, last: bool = False) -> str:
    """Write a snapshot as one line of at most `width` cells: what does not fit is left out, least needed first."""
    total, done = totals(snapshot.rows)
    share = done / total if total else 1.0
    count = f"{done:,} of {total:,} rows" if total else "no rows"
    clock = text.duration(elapsed_s)
    states = [(f"{n:,} {text.said(state)}", _INK.get(state, "0")) for state, n in text.ordered(snapshot.rows)]
    states = [part for part in states if not part[0].endswith((" pending", " submitted"))]
    phases = [(phases_of(snapshot), "36")] if snapshot.phases and not last else []
    waits = [] if last or not (told := text.waits(snapshot, elapsed_s)) else [(told, "33")]
    percent = f"{int(100 * share):>3}%"
    faults = [part for part in states if not part[0].endswith(" succeeded")]
    for name, bar_width, tail in (
        ("lotwise  ", 28, [*states, *waits, *phases]),
        ("lotwise  ", 16, [*states, *waits, *phases]),
        ("", 16, [*states, *waits, *phases]),
        ("", 8, [*states, *waits, *phases]),
        ("", 8, [*faults, *waits, *phases]),
        ("", 8, [*faults, *waits]),
        ("", 8, faults),
        ("", 8, []),
        ("", 0, []),
    ):
        pieces = [(count, "1"), *tail, (clock, "90")]
        bar = f"{'x' * bar_width} {percent}  " if bar_width else ""
        if len(name + bar + look.dot.join(words for words, _ in pieces)) <= width:
            drawn = f"{_bar(snapshot.rows, total, bar_width, look)} {percent}  " if bar_width else ""
            told = look.faint(look.dot).join(look.ink(ink, words) if ink != "0" else words for words, ink in pieces)
            return f"{look.faint(name)}{drawn}{told}"
    return f"{count} {clock}"[: max(width, 0)]


def _bar(rows: Mapping[str, int], total: int, width: int, look: Look) -> str:
    """Draw the shares of the final states, the rest faint."""
    full, rest = ("━", "━" if look.colour else "┄") if look.lines else ("#", "-")
    drawn, before, cells = "", 0, 0
    for state, n in text.ordered(rows):
        if state in ("pending", "submitted"):
            continue
        before += n
        upto = width * before // total
        drawn += look.ink(_INK.get(state, "32"), full * (upto - cells))
        cells = upto
    return drawn + look.faint(rest * (width - cells))
