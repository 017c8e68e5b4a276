"""Faults: where an answer goes wrong and in what way, never what it says there.

A fault is a path and a kind. A name that the schema does not know came from the answer, and is left out of the path.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MOST_FAULTS = 10
"""Faults kept of one answer; the first ones tell enough."""


class Fault(NamedTuple):
    """Why an answer is invalid."""

    code: str
    faults: tuple[tuple[str, str], ...]

    @classmethod
    def whole(cls, code: str, kind: str | None = None) -> Fault:
        """Build a fault of the answer as a whole."""
        return cls(code, (("", kind or code),))

    def text(self) -> str:
        """Write the faults as JSON."""
        return json.dumps([{"path": path, "kind": kind} for path, kind in self.faults], ensure_ascii=False)


def path_of(parts: Sequence[str | int], known: frozenset[str]) -> str:
    """Write a path; a name that the schema does not know came from the answer and becomes a question mark."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + (part if part in known else "?")
    return path


def property_names(schema: Any) -> Iterator[str]:
    """Give all property names of a JSON Schema, at any depth."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from properties
        for each in schema.values():
            yield from property_names(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from property_names(each)
