"""Time as an argument: the engine asks a clock, so that twenty-four hours can be tested in a millisecond."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the engine needs of time."""

    def now(self) -> datetime:
        """Return the present moment as an aware datetime in UTC."""

    def sleep(self, seconds: float) -> None:
        """Return after so many seconds, or raise KeyboardInterrupt when the user wants out."""


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)
