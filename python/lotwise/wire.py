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
_TYPES: dict[type, set[str]] = {
    str: {"string"},
    int: {"integer", "number"},
    float: {"number"},
    bool: {"boolean"},
    type(None): {"null"},
}
_SHAPES = frozenset({"string", "integer", "number", "boolean", "object", "array"})
_READ = (
    *("type", "enum", "const", "format", "additionalProperties", "items", "prefixItems", "minItems", "maxItems"),
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "anyOf", "oneOf", "allOf", "$ref"),
)
"""Words that say what is sent, besides `properties` and `required`."""
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
            return self.node(_as_one(self._target(ref, path), without(schema, "$ref"), path), path, (*seen, ref))
        for word in _UNSAYABLE:
            if schema.get(word) not in (None, False):
                raise UntranslatableSchema.at(path, f"{word} has no columns; name the properties")
        if "allOf" in schema:
            if len(schema["allOf"]) != 1:
                raise UntranslatableSchema.at(path, "allOf of several schemas; write them as one")
            return self.node(_as_one(schema["allOf"][0], without(schema, "allOf"), path), path, seen)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._union(schema, word, path, seen)
        if "const" in schema:
            allowed = [each for each in schema.get("enum", [schema["const"]]) if each == schema["const"]]
            schema = {**without(schema, "const"), "enum": allowed}
        no_object = "enum" in schema or not _may_be("object", schema.get("type"))
        if schema.get("properties") and no_object:
            raise UntranslatableSchema.at(path, "it has properties, and is no object")
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
        if ref[1:2] not in ("", "/"):
            raise UntranslatableSchema.at(path, f"a reference to an anchor, {ref}; write its path, as in #/$defs/name")
        for part in ref[1:].split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            found = found.get(part) if isinstance(found, Mapping) else None
        if not isinstance(found, Mapping):
            raise UntranslatableSchema.at(path, f"a reference to nothing, {ref}")
        return dict(found)

    def _union(self, schema: Mapping[str, Any], word: str, path: str, seen: tuple[str, ...]) -> Node:
        branches = [each for each in schema[word] if not _is_null(each)]
        if len(branches) != 1:
            reason = "a union of several types; choose one, or give each a property of its own"
            raise UntranslatableSchema.at(path, reason if branches else "it can only be null")
        beside = without(schema, word)
        node = self.node(_as_one(branches[0], beside, path), path, seen)
        n_null = len(schema[word]) - 1
        if word == "oneOf" and n_null + node.nullable > 1:
            raise UntranslatableSchema.at(path, "null is in two parts of oneOf, which lets in what only one allows")
        return _nullable(node) if n_null and _takes_null(beside) else node

    def _enum(self, schema: Mapping[str, Any], path: str) -> Node:
        fitting = [value for value in schema["enum"] if _is_of_type(value, schema.get("type"))]
        values = [value for value in fitting if value is not None]
        if not values:
            reason = "it can only be null" if fitting else "none of its allowed values is of its type"
            raise UntranslatableSchema.at(path, reason)
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
        return _nullable(node) if None in fitting else node

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


def clash(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Say why two schemas that both hold cannot be written as one; None where `merged` does."""
    for word in _READ:
        if word in one and word in other and one[word] != other[word]:
            return f"{word} is said twice, and differently; write both as one schema"
    here, there = one.get("properties", {}), other.get("properties", {})
    if twice := [name for name in here if name in there and here[name] != there[name]]:
        return f"{twice[0]} is described twice, and differently; write both as one schema"
    for closed, more in ((one, {*there} - {*here}), (other, {*here} - {*there})):
        if closed.get("additionalProperties") is False and more:
            return f"a closed object, which refuses {', '.join(sorted(more))}; write both as one schema"
    return None


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Write two schemas that both hold, and do not clash, as one; of what only describes or checks, `other` stands."""
    made = {**one, **other}
    if "properties" in one and "properties" in other:
        made["properties"] = {**one["properties"], **other["properties"]}
    if "required" in one and "required" in other:
        made["required"] = list(dict.fromkeys([*one["required"], *other["required"]]))
    return made


def _as_one(part: object, beside: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Merge a part (the target of a reference, the one schema of an allOf or anyOf) with the words beside it."""
    if not isinstance(part, Mapping):
        raise UntranslatableSchema.at(path, "it allows any value; give it a type")
    if reason := clash(part, beside):
        raise UntranslatableSchema.at(path, reason)
    return merged(part, beside)


def _is_null(schema: object) -> bool:
    """Tell a schema that allows null and nothing else, however that is written."""
    if not isinstance(schema, Mapping):
        return False
    return schema.get("type") in ("null", ["null"]) or schema.get("enum") == [None] or schema.get("const", "") is None


def _takes_null(schema: Mapping[str, Any]) -> bool:
    """Tell whether words that stand beside a union with null allow null, too."""
    if not _may_be("null", schema.get("type")) or schema.get("const") is not None:
        return False
    if None not in schema.get("enum", [None]):
        return False
    return all(any(_is_null(each) for each in schema[word]) for word in ("anyOf", "oneOf") if word in schema)


def _is_of_type(value: object, kinds: str | list[str] | None) -> bool:
    """Tell whether an allowed value is of one of JSON Schema's types; None for any."""
    own = _TYPES.get(type(value), set()) | ({"integer"} if isinstance(value, float) and value.is_integer() else set())
    return kinds is None or any(_may_be(kind, kinds) for kind in own)


def _may_be(kind: str, kinds: str | list[str] | None) -> bool:
    return kinds is None or kind in ([kinds] if isinstance(kinds, str) else kinds)


def _few_integers(schema: Mapping[str, Any]) -> list[int]:
    """List the integers that the bounds of a schema leave; empty when they are many, or not bounded."""
    lows = [schema["minimum"]] if "minimum" in schema else []
    lows += [schema["exclusiveMinimum"] + 1] if "exclusiveMinimum" in schema else []
    highs = [schema["maximum"]] if "maximum" in schema else []
    highs += [schema["exclusiveMaximum"] - 1] if "exclusiveMaximum" in schema else []
    if not lows or not highs:
        return []
    low, high = max(lows), min(highs)
    if not isinstance(low, int) or not isinstance(high, int) or high - low >= ENUMERATED_INTEGERS:
        return []
    step = schema.get("multipleOf", 1)
    return [n for n in range(low, high + 1) if n % step == 0]


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
