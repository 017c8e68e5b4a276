"""The wire schema: a JSON Schema is read once into what the model is sent and the Polars dtype of each place.

What is sent keeps to the subset that every provider takes: closed objects with all properties required, null only
in a union with one type, references written out, no bounds, lengths or patterns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from lotwise.errors import UntranslatableSchema

SENT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
"""String formats that every provider with structured outputs takes; other formats are checked but not sent."""

ENUMERATED_INTEGERS = 32
"""A bounded integer of at most so many values is sent as their list, since not every provider takes bounds. More
would cost tokens in each request."""

DATETIME = pl.Datetime("us", "UTC")
"""The column of an instant, unless the user names another dtype."""

_SCALARS: dict[type, pl.DataType] = {int: pl.Int64(), float: pl.Float64(), bool: pl.Boolean()}
_FORMATTED: dict[object, pl.DataType] = {
    "date": pl.Date(),
    "date-time": DATETIME,
    "time": pl.Time(),
}
_SHAPES = frozenset({"string", "integer", "number", "boolean", "object", "array"})
_UNSAYABLE = ("patternProperties", "unevaluatedProperties", "dependentSchemas", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True, kw_only=True)
class Optionals:
    """Where an answer may say null, or nothing, though the original schema only knows nothing.

    Attributes
    ----------
    names
        The optional properties of an object.
    dropped
        Those of them whose null must be taken out before the original schema judges.
    inside
        The same for properties that are objects or lists themselves.
    items
        The same for a list's items.
    """

    names: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    inside: tuple[tuple[str, Optionals], ...] = ()
    items: Optionals | None = None


@dataclass(frozen=True, kw_only=True)
class Node:
    """One place of a schema, translated; `wire` already allows null where `nullable`."""

    wire: dict[str, Any]
    dtype: pl.DataType
    nullable: bool
    optionals: Optionals | None = None


class Reader:
    """Reads one JSON Schema document; `absent_is_null` lets the model say null for what it may leave out."""

    def __init__(self, document: Mapping[str, Any], *, absent_is_null: bool) -> None:
        self.document, self.absent_is_null = document, absent_is_null

    def root(self) -> Node:
        """Translate the document's root, which must be an object that is not nullable."""
        node = self.node(self.document, "", ())
        if not isinstance(node.dtype, pl.Struct) or node.nullable:
            raise UntranslatableSchema.at("", "the root is not an object; wrap it in an object with one property")
        return node

    def node(self, schema: object, path: str, seen: tuple[str, ...]) -> Node:
        """Translate one place."""
        if not isinstance(schema, Mapping) or not schema:
            raise UntranslatableSchema.at(path, "it allows any value; give it a type")
        if "$ref" in schema:
            ref = schema["$ref"]
            if ref in seen:
                raise UntranslatableSchema.at(path, f"it contains itself through {ref}; give it a fixed depth")
            return self.node(self._target(ref, path) | without(schema, "$ref"), path, (*seen, ref))
        for word in _UNSAYABLE:
            if schema.get(word) not in (None, False):
                raise UntranslatableSchema.at(path, f"{word} has no columns; name the properties")
        if "allOf" in schema:
            if len(schema["allOf"]) != 1:
                raise UntranslatableSchema.at(path, "allOf of several schemas; write them as one")
            return self.node({**schema["allOf"][0], **without(schema, "allOf")}, path, seen)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._union(schema, word, path, seen)
        if "const" in schema:
            schema = {**without(schema, "const"), "enum": [schema["const"]]}
        if "enum" in schema:
            return self._enum(schema, path)
        kind = schema.get("type", "object" if "properties" in schema else "array" if "items" in schema else None)
        if isinstance(kind, list):
            rest = [each for each in kind if each != "null"]
            if len(rest) != 1:
                raise UntranslatableSchema.at(path, f"a union of several types: {', '.join(kind)}; choose one")
            node = self.node({**schema, "type": rest[0]}, path, seen)
            return _nullable(node) if len(rest) < len(kind) else node
        if kind not in _SHAPES:
            raise UntranslatableSchema.at(path, "it can only be null" if kind == "null" else "it names no type")
        if kind == "object":
            return self._object(schema, path, seen)
        if kind == "array":
            return self._array(schema, path, seen)
        return self._leaf(schema, kind)

    def _target(self, ref: str, path: str) -> dict[str, Any]:
        found: Any = self.document
        if not ref.startswith("#"):
            raise UntranslatableSchema.at(path, f"a reference to another document, {ref}; write it out")
        for part in ref[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise UntranslatableSchema.at(path, f"a reference to nothing, {ref}")
        return dict(found)

    def _union(self, schema: Mapping[str, Any], word: str, path: str, seen: tuple[str, ...]) -> Node:
        branches = [each for each in schema[word] if not (isinstance(each, Mapping) and each.get("type") == "null")]
        if len(branches) != 1:
            reason = "a union of several types; choose one, or give each a property of its own"
            raise UntranslatableSchema.at(path, reason if branches else "it can only be null")
        if not isinstance(branches[0], Mapping):
            raise UntranslatableSchema.at(path, "it allows any value; give it a type")
        node = self.node({**branches[0], **without(schema, word)}, path, seen)
        return _nullable(node) if len(branches) < len(schema[word]) else node

    def _enum(self, schema: Mapping[str, Any], path: str) -> Node:
        values = [value for value in schema["enum"] if value is not None]
        kinds = {type(value) for value in values}
        if kinds == {int, float}:
            kinds = {float}
        if len(kinds) != 1 or not kinds <= {str, int, float, bool}:
            reason = "its allowed values are not all texts, all numbers or all booleans; choose one of these"
            raise UntranslatableSchema.at(path, reason)
        kind = kinds.pop()
        said = {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]
        allowed = list(dict.fromkeys(values))
        wire = _described(schema, {"type": said, "enum": allowed})
        node = Node(wire=wire, dtype=pl.Enum(allowed) if kind is str else _SCALARS[kind], nullable=False)
        return _nullable(node) if None in schema["enum"] else node

    def _leaf(self, schema: Mapping[str, Any], kind: str) -> Node:
        wire: dict[str, Any] = {"type": kind}
        dtype: pl.DataType = {"integer": pl.Int64(), "number": pl.Float64(), "boolean": pl.Boolean()}.get(
            kind, pl.String()
        )
        if kind == "string" and "format" in schema:
            dtype = _FORMATTED.get(schema["format"], dtype)
            if schema["format"] in SENT_FORMATS:
                wire["format"] = schema["format"]
        if kind == "integer" and (allowed := _few_integers(schema)):
            wire["enum"] = allowed
        return Node(wire=_described(schema, wire), dtype=dtype, nullable=False)

    def _object(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> Node:
        if schema.get("additionalProperties") not in (None, False):
            raise UntranslatableSchema.at(path, "an open object, whose names nobody knows; name the properties")
        properties = schema.get("properties") or {}
        if not properties:
            raise UntranslatableSchema.at(path, "an object without properties; name at least one")
        required = set(schema.get("required", ()))
        if unknown := sorted(required - set(properties)):
            raise UntranslatableSchema.at(path, f"it requires {', '.join(unknown)}, which it does not describe")
        nodes, names, dropped, inside = {}, [], [], []
        for name, each in properties.items():
            node = self.node(each, f"{path}.{name}" if path else name, seen)
            if node.optionals is not None:
                inside.append((name, node.optionals))
            if self.absent_is_null and name not in required:
                names.append(name)
                if not node.nullable:
                    dropped.append(name)
                node = _nullable(node)
            nodes[name] = node
        optionals = Optionals(names=tuple(names), dropped=tuple(dropped), inside=tuple(inside))
        return Node(
            wire=_described(schema, closed_object({name: node.wire for name, node in nodes.items()})),
            dtype=pl.Struct({name: node.dtype for name, node in nodes.items()}),
            nullable=False,
            optionals=optionals if names or inside else None,
        )

    def _array(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> Node:
        prefix, items = schema.get("prefixItems", ()), schema.get("items")
        if not prefix and (not isinstance(items, Mapping) or not items):
            raise UntranslatableSchema.at(path, "a list of anything; say what its items are")
        nodes = [self.node(each, f"{path}[]", seen) for each in (*prefix, *([items] if items else []))]
        first = nodes[0]
        if any((each.dtype, each.wire) != (first.dtype, first.wire) for each in nodes[1:]):
            raise UntranslatableSchema.at(path, "a tuple of several types; use an object with named properties")
        least, most = schema.get("minItems"), schema.get("maxItems")
        fixed = least if least == most and (not prefix or least == len(prefix) or items) else None
        if prefix and fixed is None:
            raise UntranslatableSchema.at(path, "a tuple of no fixed length; give minItems and maxItems, or items")
        dtype = pl.Array(first.dtype, fixed) if prefix and fixed else pl.List(first.dtype)
        optionals = None if first.optionals is None else Optionals(items=first.optionals)
        wire = _described(schema, {"type": "array", "items": first.wire})
        return Node(wire=wire, dtype=dtype, nullable=False, optionals=optionals)


def _few_integers(schema: Mapping[str, Any]) -> list[int]:
    """List the integers that the bounds of a schema leave; empty when they are many, or not bounded."""
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is None and "exclusiveMinimum" in schema:
        low = schema["exclusiveMinimum"] + 1
    if high is None and "exclusiveMaximum" in schema:
        high = schema["exclusiveMaximum"] - 1
    if not isinstance(low, int) or not isinstance(high, int) or high - low >= ENUMERATED_INTEGERS:
        return []
    return list(range(low, high + 1))


def closed_object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Write a closed object of which all properties are required."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def or_null(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Allow null beside what `rules` allow; a description stays on the outside."""
    return _described(rules, {"anyOf": [without(rules, "description"), {"type": "null"}]})


def _nullable(node: Node) -> Node:
    """Allow null, once."""
    if node.nullable:
        return node
    return Node(wire=or_null(node.wire), dtype=node.dtype, nullable=True, optionals=node.optionals)


def _described(schema: Mapping[str, Any], wire: dict[str, Any]) -> dict[str, Any]:
    """Put the description of `schema`, if it has one, in front."""
    return {"description": schema["description"], **wire} if "description" in schema else wire


def without(schema: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != word}
