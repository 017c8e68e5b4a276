"""Schemas: one translation of what the user wrote to the JSON Schema sent and to the Polars dtypes returned.

Three texts of one shape: `wire` is what the model sees, in the subset that every provider takes; `json_schema` is the
original with all its rules, for validation; `dtypes` are the columns. Bounds, lengths and patterns are checked but not
sent, so that tightening a rule judges stored answers again and buys none; what cannot be said in all three is refused
with its path.
"""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import Any

import jsonschema_rs
import polars as pl
from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema

from lotwise.errors import BadExample, UntranslatableSchema

TEXT_COLUMN = "answer"
"""The one column of a free-text answer."""

SENT_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"})
"""String formats that every provider with structured outputs takes; other formats are checked but not sent."""

ENUMERATED_INTEGERS = 32
"""A bounded integer of at most so many values is sent as their list, since not every provider takes bounds. More
would cost tokens in each request."""

_TIME_RULE = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?([Zz]|[+-]00:00)?$"
"""A time of day for a Time column. JSON Schema's own format asks for an offset, which such a column cannot hold."""

_PYTHON: dict[object, pl.DataType] = {
    str: pl.String(),
    int: pl.Int64(),
    float: pl.Float64(),
    bool: pl.Boolean(),
    date: pl.Date(),
    datetime: pl.Datetime("us", "UTC"),
    time: pl.Time(),
}
_FORMATTED: dict[object, pl.DataType] = {
    "date": pl.Date(),
    "date-time": pl.Datetime("us", "UTC"),
    "time": pl.Time(),
}
_SHAPES = frozenset({"string", "integer", "number", "boolean", "object", "array"})
_UNSAYABLE = ("patternProperties", "unevaluatedProperties", "dependentSchemas", "$dynamicRef", "$recursiveRef")


@dataclass(frozen=True)
class Nullable:
    """A dtype that may be null: ``{"due": Nullable(pl.Date)}``."""

    dtype: Any


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
class Schema:
    """What an answer looks like. Made by `Schema.of`.

    Attributes
    ----------
    dtypes
        The columns of an answer, in the schema's order.
    wire
        The exact JSON Schema text sent, or None for free text.
    json_schema
        The original with all its rules.
    model
        The Pydantic model, when that is what the user gave: it validates itself.
    optionals
        Where a null stands for an absent property; None where nowhere.
    """

    dtypes: pl.Schema
    wire: str | None
    json_schema: Mapping[str, Any]
    model: type[BaseModel] | None = None
    optionals: Optionals | None = None

    @classmethod
    def of(cls, schema: object) -> Schema:
        """Translate what the user wrote.

        Parameters
        ----------
        schema
            A Pydantic model class; a JSON Schema dict with an object at its root; a `pl.Schema` or ``{name: dtype}``,
            where a dtype may be a Polars class or instance, one of str, int, float, bool, date, datetime, time, a
            `Literal`, ``list[T]`` or ``T | None``, and `Nullable` marks what may be null; or None for free text. A
            dict in which any value is a dtype is such a mapping, any other a JSON Schema.

        Returns
        -------
        Schema
            Strings of a fixed set become `pl.Enum`, integers Int64 and numbers Float64 unless a dtype says
            otherwise, date-times `Datetime("us", "UTC")`. A Datetime without a time zone holds UTC.

        Raises
        ------
        UntranslatableSchema
            With the path and the reason: an open object, a union of several types, recursion, a mixed tuple, an
            object without properties.
        """
        if schema is None:
            rules = {"type": "object", "properties": {TEXT_COLUMN: {"type": "string"}}, "required": [TEXT_COLUMN]}
            return cls(dtypes=pl.Schema({TEXT_COLUMN: pl.String()}), wire=None, json_schema=rules)
        if isinstance(schema, Schema):
            return schema
        if isinstance(schema, type) and issubclass(schema, BaseModel):
            return cls._of_model(schema)
        if isinstance(schema, pl.Schema):
            return cls._of_dtypes(schema)
        if isinstance(schema, Mapping):
            if any(map(_is_dtype, schema.values())):
                return cls._of_dtypes(schema)
            return cls._of_json_schema(schema)
        name = schema.__name__ if isinstance(schema, type) else f"a {type(schema).__name__}"
        raise UntranslatableSchema.at(
            "", f"{name} is no schema; give a Pydantic model class, a JSON Schema dict, dtypes by name, or None"
        )

    @classmethod
    def _of_model(cls, model: type[BaseModel]) -> Schema:
        try:
            original = model.model_json_schema(mode="validation")
            dumped = model.model_json_schema(mode="serialization")
        except PydanticInvalidForJsonSchema as error:
            reason = f"Pydantic has no JSON Schema for {model.__name__}: {error.message}"
            raise UntranslatableSchema.at("", reason) from None
        node = _Reader(original, absent_is_null=False).root()
        back = _Reader(dumped, absent_is_null=False).root()
        read, written = pl.Schema(_fields(node.dtype)), pl.Schema(_fields(back.dtype))
        for name, dtype in read.items():
            if written.get(name) != dtype:
                raise UntranslatableSchema.at(
                    name, "the model reads and writes this field under another name or type; use one alias and type"
                )
        return cls(dtypes=read, wire=_compact(node.wire), json_schema=original, model=model)

    @classmethod
    def _of_json_schema(cls, schema: Mapping[str, Any]) -> Schema:
        original = _copied(schema)
        try:
            jsonschema_rs.validator_for(original, validate_formats=True)
        except (ValueError, jsonschema_rs.ValidationError) as error:
            fault = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
            raise UntranslatableSchema.at("", f"it is not a valid JSON Schema: {fault}") from None
        node = _Reader(original, absent_is_null=True).root()
        return cls(
            dtypes=pl.Schema(_fields(node.dtype)),
            wire=_compact(node.wire),
            json_schema=_with_time_rule(original),
            optionals=node.optionals,
        )

    @classmethod
    def _of_dtypes(cls, schema: Mapping[str, Any]) -> Schema:
        said = {name: _said(given, name) for name, given in schema.items()}
        original = _object({name: rules for name, (_, rules) in said.items()})
        node = _Reader(original, absent_is_null=False).root()
        dtypes = pl.Schema({name: dtype for name, (dtype, _) in said.items()})
        return cls(dtypes=dtypes, wire=_compact(node.wire), json_schema=_with_time_rule(original))

    @property
    def names(self) -> tuple[str, ...]:
        """The columns' names, in the schema's order."""
        return tuple(self.dtypes)

    @property
    def is_text(self) -> bool:
        """True for a free-text answer."""
        return self.wire is None

    def example_text(self, answer: Any) -> str:
        """Write an example's answer as the model shall write it.

        Parameters
        ----------
        answer
            A dict or a model instance; text for free text.

        Returns
        -------
        str
            Compact JSON with the properties in the schema's order; an absent property that may be null is null.

        Raises
        ------
        BadExample
            A property is missing or unknown, or a value is not of JSON's types. Rules are not judged here.
        """
        if self.wire is None:
            if not isinstance(answer, str):
                raise BadExample.at("", f"it is of type {type(answer).__name__}; a free-text answer is text")
            return answer
        if isinstance(answer, BaseModel):
            answer = answer.model_dump(mode="json", by_alias=True)
        return _compact(_ordered(answer, json.loads(self.wire), ""))


@dataclass(frozen=True, kw_only=True)
class _Node:
    """One place of a schema, translated; `wire` already allows null where `nullable`."""

    wire: dict[str, Any]
    dtype: pl.DataType
    nullable: bool
    optionals: Optionals | None = None


class _Reader:
    """Reads one JSON Schema document; `absent_is_null` lets the model say null for what it may leave out."""

    def __init__(self, document: Mapping[str, Any], *, absent_is_null: bool) -> None:
        self.document, self.absent_is_null = document, absent_is_null

    def root(self) -> _Node:
        """Translate the document's root, which must be an object that is not nullable."""
        node = self.node(self.document, "", ())
        if not isinstance(node.dtype, pl.Struct) or node.nullable:
            raise UntranslatableSchema.at("", "the root is not an object; wrap it in an object with one property")
        return node

    def node(self, schema: object, path: str, seen: tuple[str, ...]) -> _Node:
        """Translate one place."""
        if not isinstance(schema, Mapping) or not schema:
            raise UntranslatableSchema.at(path, "it allows any value; give it a type")
        if "$ref" in schema:
            ref = schema["$ref"]
            if ref in seen:
                raise UntranslatableSchema.at(path, f"it contains itself through {ref}; give it a fixed depth")
            return self.node(self._target(ref, path) | _without(schema, "$ref"), path, (*seen, ref))
        for word in _UNSAYABLE:
            if schema.get(word) not in (None, False):
                raise UntranslatableSchema.at(path, f"{word} has no columns; name the properties")
        if "allOf" in schema:
            if len(schema["allOf"]) != 1:
                raise UntranslatableSchema.at(path, "allOf of several schemas; write them as one")
            return self.node({**schema["allOf"][0], **_without(schema, "allOf")}, path, seen)
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._union(schema, word, path, seen)
        if "const" in schema:
            schema = {**_without(schema, "const"), "enum": [schema["const"]]}
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

    def _union(self, schema: Mapping[str, Any], word: str, path: str, seen: tuple[str, ...]) -> _Node:
        branches = [each for each in schema[word] if not (isinstance(each, Mapping) and each.get("type") == "null")]
        if len(branches) != 1:
            reason = "a union of several types; choose one, or give each a property of its own"
            raise UntranslatableSchema.at(path, reason if branches else "it can only be null")
        if not isinstance(branches[0], Mapping):
            raise UntranslatableSchema.at(path, "it allows any value; give it a type")
        node = self.node({**branches[0], **_without(schema, word)}, path, seen)
        return _nullable(node) if len(branches) < len(schema[word]) else node

    def _enum(self, schema: Mapping[str, Any], path: str) -> _Node:
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
        node = _Node(wire=wire, dtype=pl.Enum(allowed) if kind is str else _PYTHON[kind], nullable=False)
        return _nullable(node) if None in schema["enum"] else node

    def _leaf(self, schema: Mapping[str, Any], kind: str) -> _Node:
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
        return _Node(wire=_described(schema, wire), dtype=dtype, nullable=False)

    def _object(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> _Node:
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
        return _Node(
            wire=_described(schema, _object({name: node.wire for name, node in nodes.items()})),
            dtype=pl.Struct({name: node.dtype for name, node in nodes.items()}),
            nullable=False,
            optionals=optionals if names or inside else None,
        )

    def _array(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> _Node:
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
        return _Node(wire=wire, dtype=dtype, nullable=False, optionals=optionals)


def _said(given: Any, path: str) -> tuple[pl.DataType, dict[str, Any]]:
    """Translate one entry of ``{name: dtype}`` to its dtype and its rules."""
    if isinstance(given, Nullable):
        dtype, rules = _said(given.dtype, path)
        return dtype, _or_null(rules)
    origin, args = typing.get_origin(given), typing.get_args(given)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in args if each is not type(None)]
        if len(rest) != 1:
            raise UntranslatableSchema.at(path, "a union of several types; choose one")
        dtype, rules = _said(rest[0], path)
        return dtype, _or_null(rules)
    if origin is typing.Literal:
        node = _Reader({}, absent_is_null=False).node({"enum": list(args)}, path, ())
        return node.dtype, {"enum": list(args)}
    if origin is list:
        dtype, rules = _said(args[0], f"{path}[]")
        return pl.List(dtype), {"type": "array", "items": rules}
    if isinstance(given, type) and not issubclass(given, pl.DataType):
        if given not in _PYTHON:
            reason = f"{given.__name__} has no dtype; use a Polars dtype, or a Pydantic model"
            raise UntranslatableSchema.at(path, reason)
        given = _PYTHON[given]
    if not _is_dtype(given):
        raise UntranslatableSchema.at(path, f"a {type(given).__name__} is no dtype")
    try:
        dtype = given() if isinstance(given, type) else given
    except TypeError:
        raise UntranslatableSchema.at(path, f"{given.__name__} needs its arguments") from None
    return dtype, _rules(dtype, path)


def _rules(dtype: pl.DataType, path: str) -> dict[str, Any]:
    """Write a Polars dtype as JSON Schema, with the bounds of its integers."""
    if isinstance(dtype, pl.Enum):
        if not len(dtype.categories):
            raise UntranslatableSchema.at(path, "an Enum without categories")
        return {"type": "string", "enum": dtype.categories.to_list()}
    if isinstance(dtype, pl.List):
        return {"type": "array", "items": _said(dtype.inner, f"{path}[]")[1]}
    if isinstance(dtype, pl.Array):
        items = _said(dtype.inner, f"{path}[]")[1]
        return {"type": "array", "items": items, "minItems": dtype.shape[0], "maxItems": dtype.shape[0]}
    if isinstance(dtype, pl.Struct):
        return _object({each.name: _said(each.dtype, f"{path}.{each.name}")[1] for each in dtype.fields})
    if dtype.is_integer() and dtype not in (pl.Int128, pl.UInt128):
        low, high = _bounds(dtype)
        return {"type": "integer", "minimum": low, "maximum": high}
    if dtype in (pl.Float32, pl.Float64):
        return {"type": "number"}
    if isinstance(dtype, pl.Boolean):
        return {"type": "boolean"}
    if isinstance(dtype, pl.String):
        return {"type": "string"}
    if isinstance(dtype, pl.Date):
        return {"type": "string", "format": "date"}
    if isinstance(dtype, pl.Datetime):
        return {"type": "string", "format": "date-time"}
    if isinstance(dtype, pl.Time):
        return {"type": "string", "format": "time"}
    raise UntranslatableSchema.at(path, f"{dtype} has no JSON form; use another and convert the column afterwards")


def _bounds(dtype: pl.DataType) -> tuple[int, int]:
    """Give the least and the greatest integer of a dtype."""
    bits = int(str(dtype).removeprefix("U").removeprefix("Int"))
    return (0, 2**bits - 1) if dtype.is_unsigned_integer() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


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


def _is_dtype(given: object) -> bool:
    """Tell a dtype, or what is taken for one, from the parts of a JSON Schema."""
    return isinstance(given, (type, Nullable, pl.DataType)) or typing.get_origin(given) is not None


def _fields(dtype: pl.DataType) -> dict[str, Any]:
    """Give the fields of a struct by name."""
    return {each.name: each.dtype for each in dtype.fields} if isinstance(dtype, pl.Struct) else {}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Write a closed object of which all properties are required."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties),
        "additionalProperties": False,
    }


def _or_null(rules: Mapping[str, Any]) -> dict[str, Any]:
    """Allow null beside what `rules` allow; a description stays on the outside."""
    return _described(rules, {"anyOf": [_without(rules, "description"), {"type": "null"}]})


def _nullable(node: _Node) -> _Node:
    """Allow null, once."""
    if node.nullable:
        return node
    return _Node(wire=_or_null(node.wire), dtype=node.dtype, nullable=True, optionals=node.optionals)


def _described(schema: Mapping[str, Any], wire: dict[str, Any]) -> dict[str, Any]:
    """Put the description of `schema`, if it has one, in front."""
    return {"description": schema["description"], **wire} if "description" in schema else wire


def _without(schema: Mapping[str, Any], word: str) -> dict[str, Any]:
    return {name: value for name, value in schema.items() if name != word}


def _copied(schema: Any) -> Any:
    """Copy a JSON Schema, so that what the user does to theirs later changes nothing here."""
    if isinstance(schema, Mapping):
        return {str(name): _copied(value) for name, value in schema.items()}
    if isinstance(schema, (list, tuple)):
        return [_copied(value) for value in schema]
    return schema


def _with_time_rule(schema: Any) -> Any:
    """Replace the format "time", which asks for an offset, by the rule of a Time column."""
    if isinstance(schema, Mapping):
        inner = {name: _with_time_rule(value) for name, value in schema.items()}
        if inner.get("format") == "time":
            rule = {"pattern": _TIME_RULE}
            return {**_without(inner, "format"), "allOf": [*inner.get("allOf", ()), rule]}
        return inner
    return [_with_time_rule(each) for each in schema] if isinstance(schema, list) else schema


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _ordered(value: Any, wire: Mapping[str, Any], path: str) -> Any:
    """Bring an example's answer into the order of the wire schema; refuse what has not its shape."""
    if "anyOf" in wire:
        return None if value is None else _ordered(value, wire["anyOf"][0], path)
    kind = wire["type"]
    if kind == "object":
        if not isinstance(value, Mapping):
            raise BadExample.at(path, f"it is of type {type(value).__name__}; the schema has an object there")
        properties = wire["properties"]
        for name in value:
            if name not in properties:
                raise BadExample.unknown(path, name, properties)
        ordered = {}
        for name, inner in properties.items():
            if name not in value and "anyOf" not in inner:
                raise BadExample.at(path, f"{name!r} is missing")
            ordered[name] = _ordered(value.get(name), inner, f"{path}.{name}" if path else name)
        return ordered
    if kind == "array":
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise BadExample.at(path, f"it is of type {type(value).__name__}; the schema has a list there")
        return [_ordered(each, wire["items"], f"{path}[{i}]") for i, each in enumerate(value)]
    if kind == "string" and isinstance(value, (date, time)):
        value = value.isoformat()
    wanted: dict[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
    if not isinstance(value, wanted.get(kind, bool)) or (isinstance(value, bool) and kind != "boolean"):
        raise BadExample.at(path, f"it is of type {type(value).__name__}; the schema has {kind} there")
    if isinstance(value, float) and not math.isfinite(value):
        raise BadExample.at(path, "it is not a finite number")
    if "enum" in wire and value not in wire["enum"]:
        raise BadExample.at(path, "it is none of the allowed values")
    return value
