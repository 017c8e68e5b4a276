"""Which rows to look at: the order of a keyed hash, so that a draw depends on keys and a seed and nothing else.

Sorting the lot, resuming the run or asking for more rows later changes no place in the order: a larger sample begins
with the smaller one. The order is fixed before the first look, which is what every interval here assumes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from lotwise.errors import StatisticsRefused


def draw_order(keys: Iterable[str], *, seed: int) -> list[str]:
    """Put distinct keys in the order in which they are looked at.

    Parameters
    ----------
    keys
        Keys of distinct answers.
    seed
        Any integer. Take a new one after rows were repaired.

    Notes: BLAKE2b of the key, keyed with the seed; ties of the 128-bit hash fall back to the key.
    """
    salt = str(seed).encode()

    def place(key: str) -> tuple[bytes, str]:
        return hashlib.blake2b(key.encode(), digest_size=16, key=salt[:64]).digest(), key

    return sorted(set(keys), key=place)


def draw(keys: Iterable[str], n: int, *, seed: int) -> list[str]:
    """Draw a simple random sample of `n` distinct keys, without replacement.

    Raises
    ------
    StatisticsRefused
        `impossible_counts` when fewer distinct keys are there.
    """
    order = draw_order(keys, seed=seed)
    if not 0 <= n <= len(order):
        raise StatisticsRefused.because(
            "impossible_counts", "draw no more rows than there are distinct keys", looked=n, population=len(order)
        )
    return order[:n]
