"""Provider time: real time multiplied by a speed and moved by hand.

Seconds of provider time pass `speed` times as fast as real seconds; with speed 0 the clock stands still until
it is advanced, so that a test decides every moment.  The anchors are plain numbers, kept by the state on
disk, so a restarted emulator goes on with the same clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime


@dataclass(frozen=True, kw_only=True)
class Clock:
    """Reads provider time in seconds since the epoch.

    `at_real` and `at_provider` are one moment in both times; `speed` is provider seconds a real second.
    """

    at_real: float
    at_provider: float
    speed: float

    @classmethod
    def started(cls, speed: float, real: Callable[[], float] = time.time) -> Clock:
        """Start a clock that agrees with real time now."""
        now = real()
        return cls(at_real=now, at_provider=now, speed=speed)

    def now(self, real: Callable[[], float] = time.time) -> float:
        """Return the provider time."""
        return self.at_provider + max(0.0, real() - self.at_real) * self.speed

    def advanced(self, seconds: float, real: Callable[[], float] = time.time) -> Clock:
        """Return this clock moved forward by `seconds` of provider time."""
        if seconds < 0:
            raise ValueError(f"provider time only moves forward, not by {seconds} s")
        return replace(self, at_real=real(), at_provider=self.now(real) + seconds)

    def at_speed(self, speed: float, real: Callable[[], float] = time.time) -> Clock:
        """Return this clock running at another speed from now on."""
        return Clock(at_real=real(), at_provider=self.now(real), speed=speed)


def rfc3339(seconds: float) -> str:
    """Write a provider time as Anthropic does: UTC with a Z."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
