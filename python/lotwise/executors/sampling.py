"""What values a local engine's sampling parameters take, so that a wrong one is told before the engine is started."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from lotwise.errors import UnknownParameter


class Takes(NamedTuple):
    """What values a parameter takes: in words, and as a test."""

    words: str
    test: Callable[[Any], bool]


def number(low: float, high: float) -> Takes:
    """Take any number in a range, its ends included."""
    return Takes(
        f"a number from {low:g} to {high:g}",
        lambda value: type(value) in (int, float) and low <= value <= high,
    )


def integer(low: int, high: int) -> Takes:
    """Take a whole number in a range, its ends included."""
    return Takes(f"an integer from {low} to {high}", lambda value: type(value) is int and low <= value <= high)


def are_texts(value: Any) -> bool:
    """Say whether a value is a list of texts."""
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


TEXT_OR_TEXTS = Takes("a text or a list of texts", lambda value: isinstance(value, str) or are_texts(value))


def refuse_others(provider: str, params: Mapping[str, Any], known: Mapping[str, Takes]) -> None:
    """Refuse a parameter that an engine does not know, or a value that it does not take.

    Raises
    ------
    UnknownParameter
        The first of them.
    """
    if unknown := set(params) - set(known):
        raise UnknownParameter.from_names(provider, unknown, known)
    for name, value in params.items():
        if not known[name].test(value):
            raise UnknownParameter.bad_value(provider, name, value, known[name].words)
