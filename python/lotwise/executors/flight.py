"""Which rows are in an engine, and what becomes of them when it ends: the rows that end it are found and set apart.

An engine that ends takes its rows in flight with it, and does not say which of them it was. So they are asked again in
small groups, one group at a time; the group that ends it once more is asked row by row; and a row that was alone when
the engine ended, and was there at an end before, is given up. An end that no row is to blame for costs one more asking.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from math import isqrt

SINGLY = 4
"""Suspects that are few enough to be asked one by one at once."""


class Flight:
    """The rows of one shard on their way through an engine that may end at any time. Pure: it asks nothing itself.

    Parameters
    ----------
    ids
        The rows, in the order in which they are to be asked.
    """

    def __init__(self, ids: Iterable[str]) -> None:
        self._waiting = deque(ids)
        self._suspects: deque[Sequence[str]] = deque()
        self._out: dict[str, None] = {}
        self._ends: Counter[str] = Counter()

    @property
    def out(self) -> Sequence[str]:
        """The rows in flight, the first asked first."""
        return tuple(self._out)

    @property
    def over(self) -> bool:
        """True when nothing is in flight and nothing waits."""
        return not (self._out or self._suspects or self._waiting)

    def take(self, window: int) -> Sequence[str]:
        """Return the rows to ask now, so that at most `window` are in flight. They are in flight from here on."""
        if self._suspects:
            taken: Sequence[str] = () if self._out else self._suspects.popleft()
        elif self._out and any(self._ends[one] for one in self._out):
            taken = ()  # the last suspects are still alone
        else:
            room = min(max(window - len(self._out), 0), len(self._waiting))
            taken = tuple(self._waiting.popleft() for _ in range(room))
        self._out.update(dict.fromkeys(taken))
        return taken

    def finished(self, one: str) -> bool:
        """Note that a row has its answer. False for a row that is not in flight."""
        return self._out.pop(one, self) is None

    def ended(self) -> Sequence[str]:
        """Note that the engine ended, and return the rows that are given up for it."""
        out = tuple(self._out)
        self._out.clear()
        self._ends.update(out)
        if len(out) == 1 and self._ends[out[0]] > 1:
            return out
        twice = any(self._ends[one] > 1 for one in out)
        size = 1 if twice or len(out) <= SINGLY else isqrt(len(out))
        for group in reversed(list(_parts(out, size))):
            self._suspects.appendleft(group)
        return ()


def _parts(ids: Sequence[str], size: int) -> Iterable[Sequence[str]]:
    return (ids[start : start + size] for start in range(0, len(ids), size))
