"""Being told to end: Ctrl-C, and SIGTERM, which a scheduler or a container sends, are heard the same way.

Both are a `KeyboardInterrupt`, so that whatever is at work ends as it does for Ctrl-C: the transaction is whole or not
there, and how to go on is said. SIGTERM is heard only where `terminate` was installed, as the command line does; a
library leaves its user's signals alone.
"""

from __future__ import annotations

import signal
from types import FrameType
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """SIGTERM has come."""


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Hear SIGTERM as an interrupt; a handler to install for it."""
    raise Terminated


def heard() -> tuple[int, ...]:
    """Return the signals that are heard as interrupts here: those that a user handles himself are his."""
    hands = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    return tuple(number for number, hand in hands.items() if signal.getsignal(number) is hand)


def interrupt(number: int) -> KeyboardInterrupt:
    """Make the exception by which a signal is heard."""
    return Terminated() if number == signal.SIGTERM else KeyboardInterrupt()
