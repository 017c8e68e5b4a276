"""Schemas: one translation of what the user wrote to the JSON Schema sent and to the Polars dtypes returned.

Three texts of one shape: `wire` is what the model sees, in the subset that every provider takes; `json_schema` is the
original with all its rules, for validation; `dtypes` are the columns. Bounds, lengths and patterns are checked but not
sent, so that tightening a rule judges stored answers again and buys none; what cannot be said in all three is refused
with its path.
"""

from __future__ import annotations

import base64
import io
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
from lotwise.wire import DATETIME, Optionals, Reader, closed_object, or_null, without

TEXT_COLUMN = "answer"
"""The one column of a free-text answer."""

_TIME_RULE = r"^([01][0-9]|2[0-3]):[0-5][0-9](:[0-5][0-9](\.[0-9]{1,9})?)?([Zz]|[+-]00:00)?$"
"""A time of day for a Time column. JSON Schema's own format asks for an offset, which such a column cannot hold."""

_PYTHON: dict[object, pl.DataType] = {
    str: pl.String(),
    int: pl.Int64(),
    float: pl.Float64(),
    bool: pl.Boolean(),
    date: pl.Date(),
    datetime: DATETIME,
    time: pl.Time(),
}


@dataclass(frozen=True)
class Nullable:
    """A dtype that may be null: ``{"due": Nullable(pl.Date)}``."""

    dtype: Any


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
        raise UntranslatableSchema.at("", _no_schema(schema))

    @classmethod
    def _of_model(cls, model: type[BaseModel]) -> Schema:
        try:
            original = model.model_json_schema(mode="validation")
            dumped = model.model_json_schema(mode="serialization")
        except PydanticInvalidForJsonSchema as error:
            reason = f"Pydantic has no JSON Schema for {model.__name__}: {error.message}"
            raise UntranslatableSchema.at("", reason) from None
        node = Reader(original, absent_is_null=False).root()
        back = Reader(dumped, absent_is_null=False).root()
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
        fault: jsonschema_rs.ValidationError | None = None
        try:
            jsonschema_rs.validator_for(original, validate_formats=True, offline=True)
        except jsonschema_rs.ValidationError as error:
            fault = error
        if fault is not None and fault.kind.name != "$ref":
            raise UntranslatableSchema.at("", f"it is not a valid JSON Schema: {fault.message}")
        # A schema that is sound but for a reference is read, to say where that reference stands.
        node = Reader(original, absent_is_null=True).root()
        if fault is not None:
            raise UntranslatableSchema.at("", f"it refers to what is not there: {fault.message}")
        return cls(
            dtypes=pl.Schema(_fields(node.dtype)),
            wire=_compact(node.wire),
            json_schema=_with_time_rule(original),
            optionals=node.optionals,
        )

    @classmethod
    def _of_dtypes(cls, schema: Mapping[str, Any]) -> Schema:
        said = {name: _said(given, name) for name, given in schema.items()}
        original = closed_object({name: rules for name, (_, rules) in said.items()})
        node = Reader(original, absent_is_null=False).root()
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

    def portable(self) -> str | None:
        """Write the schema down for another process; None for a Pydantic model, whose code stays with the caller.

        Returns
        -------
        str or None
            JSON that `from_portable` reads; validators of both have the same digest.
        """
        if self.model is not None:
            return None
        # Arrow keeps every dtype of a schema exactly, and later versions of Polars read it.
        columns = io.BytesIO()
        self.dtypes.to_frame().write_ipc(columns)
        return _compact(
            {
                "json_schema": self.json_schema,
                "wire": self.wire,
                "columns": base64.b64encode(columns.getvalue()).decode(),
                "absent_is_null": self.optionals is not None,
            }
        )

    @classmethod
    def from_portable(cls, text: str) -> Schema:
        """Read back what `portable` wrote."""
        stored = json.loads(text)
        optionals = None
        if stored["absent_is_null"]:
            optionals = Reader(stored["json_schema"], absent_is_null=True).root().optionals
        return cls(
            dtypes=pl.read_ipc(io.BytesIO(base64.b64decode(stored["columns"]))).schema,
            wire=stored["wire"],
            json_schema=stored["json_schema"],
            optionals=optionals,
        )

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


def _said(given: Any, path: str) -> tuple[pl.DataType, dict[str, Any]]:
    """Translate one entry of ``{name: dtype}`` to its dtype and its rules."""
    if isinstance(given, Nullable):
        dtype, rules = _said(given.dtype, path)
        return dtype, or_null(rules)
    origin, args = typing.get_origin(given), typing.get_args(given)
    if origin in (typing.Union, types.UnionType):
        rest = [each for each in args if each is not type(None)]
        if len(rest) != 1:
            raise UntranslatableSchema.at(path, "a union of several types; choose one")
        dtype, rules = _said(rest[0], path)
        return dtype, or_null(rules)
    if origin is typing.Literal:
        node = Reader({}, absent_is_null=False).node({"enum": list(args)}, path, ())
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
        return closed_object({each.name: _said(each.dtype, f"{path}.{each.name}")[1] for each in dtype.fields})
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


def _no_schema(given: object) -> str:
    """Say why it is none, and what would be."""
    if typing.get_origin(given) is not None:
        name, is_field = str(given), True
    elif isinstance(given, type):
        name, is_field = given.__name__, given in _PYTHON
    else:
        name, is_field = f"a {type(given).__name__}", False
    if is_field:
        return f'{name} is the type of one field; name the field, as in {{"{TEXT_COLUMN}": {name}}}'
    return f"{name} is no schema; give a Pydantic model class, a JSON Schema dict, dtypes by name, or None"


def _is_dtype(given: object) -> bool:
    """Tell a dtype, or what is taken for one, from the parts of a JSON Schema."""
    return isinstance(given, (type, Nullable, pl.DataType)) or typing.get_origin(given) is not None


def _fields(dtype: pl.DataType) -> dict[str, Any]:
    """Give the fields of a struct by name."""
    return {each.name: each.dtype for each in dtype.fields} if isinstance(dtype, pl.Struct) else {}


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
            return {**without(inner, "format"), "allOf": [*inner.get("allOf", ()), rule]}
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
