"""The wire against the original, for schemas of all kinds: it asks for all properties, and lets in what is valid."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import polars as pl
from hypothesis import HealthCheck, assume, event, given, settings
from hypothesis import strategies as st

from lotwise.errors import UntranslatableSchema
from lotwise.schema import Schema
from lotwise.validate import Validator

LEAVES: list[dict[str, Any]] = [
    {"type": "string"},
    {"type": ["string", "null"]},
    {"type": "integer"},
    {"type": "string", "enum": ["x", "y"]},
    {"enum": ["x", None]},
    {"type": "string", "enum": ["x", None]},
    {"type": ["string", "null"], "enum": ["x", None]},
    {"type": ["string", "null"], "enum": ["x"]},
    {"type": "number", "enum": [1, "x", 2.5]},
    {"const": "x"},
    {"const": "x", "enum": ["x", "y", None]},
    {"type": ["boolean", "null"]},
]
NULLS: list[dict[str, Any]] = [{"type": "null"}, {"const": None}, {"enum": [None]}, {"type": ["null"]}]
BESIDE: list[dict[str, Any]] = [
    {},
    {"description": "said"},
    {"type": "string"},
    {"type": ["string", "null"]},
    {"type": "object"},
    {"enum": ["x"]},
    {"enum": ["x", None]},
    {"additionalProperties": False},
]


class Making:
    """Draws one document; every property has a name of its own, so that a lost one is missed."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.n, self.definitions = draw, 0, {}  # type: ignore[var-annotated]

    def fields(self, depth: int) -> dict[str, Any]:
        names = [f"p{self.n + i}" for i in range(self.draw(st.integers(1, 2)))]
        self.n += len(names)
        required = [name for name in names if self.draw(st.booleans())]
        return {"properties": {name: self.schema(depth - 1) for name in names}, "required": required}

    def schema(self, depth: int) -> dict[str, Any]:
        kinds = ["leaf", "union", "one", "all", "ref"] + ["object", "array"] * (depth > 0)
        kind = self.draw(st.sampled_from(kinds)) if depth > -2 else "leaf"
        if kind == "leaf":
            return dict(self.draw(st.sampled_from(LEAVES)))
        if kind == "object":
            closed = {"additionalProperties": False} if self.draw(st.booleans()) else {}
            return {"type": "object", **self.fields(depth), **closed}
        if kind == "array":
            return {"type": "array", "items": self.schema(depth - 1)}
        inner = self.schema(depth - 1)
        beside = dict(self.draw(st.sampled_from(BESIDE)))
        if depth > 0 and self.draw(st.booleans()):
            beside |= self.fields(depth)
        if kind == "ref":
            name = f"d{len(self.definitions)}"
            self.definitions[name] = inner
            return {"$ref": f"#/$defs/{name}", **beside}
        if kind == "all":
            return {"allOf": [inner], **beside}
        word = self.draw(st.sampled_from(["anyOf", "oneOf"]))
        null = [dict(self.draw(st.sampled_from(NULLS)))] if kind == "union" else []
        return {word: self.draw(st.permutations([inner, *null])), **beside}


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    making = Making(draw)
    root = {"type": "object", **making.fields(2)}
    return {**root, "$defs": making.definitions}


def said(draw: st.DrawFn, wire: dict[str, Any]) -> Any:
    """Draw a value that the wire lets in."""
    if "anyOf" in wire:
        return None if draw(st.booleans()) else said(draw, wire["anyOf"][0])
    if "enum" in wire:
        return draw(st.sampled_from(wire["enum"]))
    if wire["type"] == "object":
        return {name: said(draw, inner) for name, inner in wire["properties"].items()}
    if wire["type"] == "array":
        return [said(draw, wire["items"])]
    return {"string": "text", "integer": 7, "boolean": True, "number": 0.5}[wire["type"]]


def property_names(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        yield from schema.get("properties", {})
        for part in schema.values():
            yield from property_names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from property_names(part)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow])
@given(document=documents(), data=st.data())
def test_what_the_wire_lets_in_the_original_does_and_no_property_is_lost(
    document: dict[str, Any], data: st.DataObject
) -> None:
    try:
        schema = Schema.of(document)
    except UntranslatableSchema as refused:
        event(refused.reason)
        assume(False)
    wire = json.loads(schema.wire or "")
    value = said(data.draw, wire)  # type: ignore[arg-type]

    judged = Validator.of(schema).judge(pl.Series([json.dumps(value)])).row(0, named=True)

    assert sorted(property_names(wire)) == sorted(property_names(document))
    assert judged["ok"] or judged["code"] == "empty", judged["faults"]
