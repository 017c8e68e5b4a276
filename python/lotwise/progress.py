"""How far a run is, for whoever watches: a line that renews itself in a terminal or notebook, plain lines elsewhere.

Everything goes to standard error, so that output that is piped stays clean. No row content is ever shown.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol, TextIO

from lotwise.job import Snapshot

EVERY = timedelta(seconds=0.5)
"""How often a line is renewed at most."""


class Reporter(Protocol):
    """What a run tells about itself while it works."""

    def began(self, ledger: Path, *, paid: bool, warnings: Sequence[str]) -> None: ...
    def due(self, now: datetime) -> bool: ...
    def tell(self, snapshot: Snapshot) -> None: ...
    def detached(self, run_id: str, ledger: Path) -> None: ...
    def finished(self) -> None: ...


def reporter(progress: bool | None) -> Reporter:
    """Return the reporter that suits where we are; a silent one when it is not wanted."""
    return Silent() if progress is False else Lines(sys.stderr)


class Silent:
    """Tells nothing but how to go on after an interruption."""

    def began(self, ledger: Path, *, paid: bool, warnings: Sequence[str]) -> None:
        pass

    def due(self, now: datetime) -> bool:
        return False

    def tell(self, snapshot: Snapshot) -> None:
        pass

    def detached(self, run_id: str, ledger: Path) -> None:
        print(detached_text(run_id, ledger), file=sys.stderr)

    def finished(self) -> None:
        pass


class Lines:
    """Plain lines."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._last: datetime | None = None
        self._said = ""

    def began(self, ledger: Path, *, paid: bool, warnings: Sequence[str]) -> None:
        print(f"lotwise: ledger {ledger}", file=self._out)
        for warning in warnings:
            print(f"lotwise: {warning}", file=self._out)

    def due(self, now: datetime) -> bool:
        if self._last is not None and now - self._last < EVERY:
            return False
        self._last = now
        return True

    def tell(self, snapshot: Snapshot) -> None:
        line = text_of(snapshot)
        if line != self._said:
            self._said = line
            print(f"lotwise: {line}", file=self._out, flush=True)

    def detached(self, run_id: str, ledger: Path) -> None:
        print(detached_text(run_id, ledger), file=self._out)

    def finished(self) -> None:
        self._out.flush()


def text_of(snapshot: Snapshot) -> str:
    """Write a snapshot as one line."""
    total = sum(snapshot.rows.values())
    done = total - sum(snapshot.rows.get(state, 0) for state in ("pending", "submitted"))
    states = ", ".join(f"{n:,} {state}" for state, n in sorted(snapshot.rows.items()) if n)
    phases = ", ".join(f"{n} {phase}" for phase, n in sorted(snapshot.phases.items()))
    tail = f"; shards: {phases}" if phases else ""
    return f"{done:,} of {total:,} rows ({states}){tail}"


def detached_text(run_id: str, ledger: Path) -> str:
    """Say how to go on after Ctrl-C, and how not to."""
    return (
        f"\nlotwise: detached; nothing is lost.\n"
        f"  go on:  repeat the call, or  lotwise resume {run_id} --ledger {ledger}\n"
        f"  cancel: lotwise cancel {run_id} --ledger {ledger}"
    )
