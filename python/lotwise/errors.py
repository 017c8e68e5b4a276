"""Every error that lotwise raises, in branches by who must act.

One root, `LotwiseError`. An error is built from facts by a named constructor, keeps them as attributes, and ends
in a hint. No message carries row content or a credential (promise 10).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LotwiseError(Exception):
    """The root of all errors raised by lotwise."""


def nearest(name: str, available: Iterable[str], n: int = 3) -> list[str]:
    """Name the `n` entries of `available` closest in spelling to `name`, best first."""
    return difflib.get_close_matches(name, list(available), n=n, cutoff=0.5)
