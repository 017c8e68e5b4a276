"""The root of all errors, and how the nearest alternative to a misspelt name is found."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LotwiseError(Exception):
    """The root of all errors raised by lotwise."""


def nearest(name: str, available: Iterable[str], n: int = 3) -> list[str]:
    """Name the `n` entries of `available` closest in spelling to `name`, best first, whatever their case."""
    spelled: dict[str, list[str]] = {}
    for one in available:
        spelled.setdefault(one.casefold(), []).append(one)
    close = difflib.get_close_matches(name.casefold(), spelled, n=n, cutoff=0.5)
    return [one for folded in close for one in spelled[folded]][:n]


def named(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def hint(missing: Iterable[str], available: Iterable[str]) -> str:
    """Say which of `available` the `missing` names were probably meant to be; all of them when few, else nothing."""
    available = list(available)
    near = list(dict.fromkeys(found for name in missing for found in nearest(name, available)))
    if near:
        return f"; did you mean {named(near)}?"
    if 0 < len(available) <= 12:
        return f"; there are {named(available)}"
    return "; nothing there is spelled alike" if available else "; there are none"
