"""One translation of a schema, to what is sent and to what comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Annotated, Any, Literal

import polars as pl
import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field, field_serializer

from lotwise.errors import UntranslatableSchema
from lotwise.schema import Nullable, Schema
from lotwise.validate import Validator

UTC = pl.Datetime("us", "UTC")


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Geo(BaseModel):
    x: float
    y: float | None = None


class Ticket(BaseModel):
    """A ticket."""

    category: Literal["bug", "billing"]
    stars: int = Field(ge=1, le=3, description="How good.")
    count: Annotated[int, Field(ge=0, lt=10_000)] = 3
    colour: Colour | None
    at: Geo
    places: list[Geo]
    pair: tuple[int, int]
    seen: datetime
    day: date | None
    clock: time


def test_a_model_is_sent_closed_with_references_written_out_and_rules_left_out() -> None:
    geo = {
        "type": "object",
        "properties": {"x": {"type": "number"}, "y": {"anyOf": [{"type": "number"}, {"type": "null"}]}},
        "required": ["x", "y"],
        "additionalProperties": False,
    }
    assert json.loads(Schema.of(Ticket).wire or "") == {
        "description": "A ticket.",
        "type": "object",
        "properties": {
            "category": {"type": "string", "enum": ["bug", "billing"]},
            "stars": {"description": "How good.", "type": "integer", "enum": [1, 2, 3]},
            "count": {"type": "integer"},
            "colour": {"anyOf": [{"type": "string", "enum": ["red", "blue"]}, {"type": "null"}]},
            "at": geo,
            "places": {"type": "array", "items": geo},
            "pair": {"type": "array", "items": {"type": "integer"}},
            "seen": {"type": "string", "format": "date-time"},
            "day": {"anyOf": [{"type": "string", "format": "date"}, {"type": "null"}]},
            "clock": {"type": "string", "format": "time"},
        },
        "required": list(Ticket.model_fields),
        "additionalProperties": False,
    }


def test_a_model_comes_back_as_dtypes() -> None:
    geo = pl.Struct({"x": pl.Float64, "y": pl.Float64})
    assert Schema.of(Ticket).dtypes == pl.Schema(
        {
            "category": pl.Enum(["bug", "billing"]),
            "stars": pl.Int64,
            "count": pl.Int64,
            "colour": pl.Enum(["red", "blue"]),
            "at": geo,
            "places": pl.List(geo),
            "pair": pl.Array(pl.Int64, 2),
            "seen": UTC,
            "day": pl.Date,
            "clock": pl.Time,
        }
    )


def test_the_original_keeps_its_rules() -> None:
    schema = Schema.of(Ticket)
    assert schema.json_schema["properties"]["stars"]["maximum"] == 3
    assert schema.model is Ticket


def test_free_text_is_one_column_and_sends_no_schema() -> None:
    schema = Schema.of(None)
    assert (schema.wire, schema.dtypes, schema.is_text) == (None, pl.Schema({"answer": pl.String}), True)


def test_the_wire_text_is_compact_and_keeps_property_order_and_letters() -> None:
    assert Schema.of({"ö": str, "a": bool}).wire == (
        '{"type":"object","properties":{"ö":{"type":"string"},"a":{"type":"boolean"}},'
        '"required":["ö","a"],"additionalProperties":false}'
    )


DTYPES: dict[str, tuple[Any, pl.DataType, dict[str, Any]]] = {
    "Int8": (pl.Int8, pl.Int8(), {"type": "integer"}),
    "UInt64": (pl.UInt64(), pl.UInt64(), {"type": "integer"}),
    "Float32": (pl.Float32, pl.Float32(), {"type": "number"}),
    "Float64": (pl.Float64, pl.Float64(), {"type": "number"}),
    "Boolean": (pl.Boolean, pl.Boolean(), {"type": "boolean"}),
    "String": (pl.String, pl.String(), {"type": "string"}),
    "Enum": (pl.Enum(["b", "a"]), pl.Enum(["b", "a"]), {"type": "string", "enum": ["b", "a"]}),
    "Date": (pl.Date, pl.Date(), {"type": "string", "format": "date"}),
    "Datetime": (pl.Datetime("ms"), pl.Datetime("ms"), {"type": "string", "format": "date-time"}),
    "Time": (pl.Time, pl.Time(), {"type": "string", "format": "time"}),
    "List": (pl.List(pl.Int8), pl.List(pl.Int8), {"type": "array", "items": {"type": "integer"}}),
    "Array": (
        pl.Array(pl.Date, 2),
        pl.Array(pl.Date, 2),
        {"type": "array", "items": {"type": "string", "format": "date"}},
    ),
    "Struct": (
        pl.Struct({"a": pl.Int8}),
        pl.Struct({"a": pl.Int8}),
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}},
            "required": ["a"],
            "additionalProperties": False,
        },
    ),
    "Nullable": (Nullable(pl.Int8), pl.Int8(), {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "Nullable twice": (Nullable(str | None), pl.String(), {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "str": (str, pl.String(), {"type": "string"}),
    "int": (int, pl.Int64(), {"type": "integer"}),
    "float": (float, pl.Float64(), {"type": "number"}),
    "bool": (bool, pl.Boolean(), {"type": "boolean"}),
    "date": (date, pl.Date(), {"type": "string", "format": "date"}),
    "datetime": (datetime, UTC, {"type": "string", "format": "date-time"}),
    "time": (time, pl.Time(), {"type": "string", "format": "time"}),
    "list of": (list[bool], pl.List(pl.Boolean), {"type": "array", "items": {"type": "boolean"}}),
    "or None": (int | None, pl.Int64(), {"anyOf": [{"type": "integer"}, {"type": "null"}]}),
    "Literal": (Literal["x", "y"], pl.Enum(["x", "y"]), {"type": "string", "enum": ["x", "y"]}),
    "Literal of integers": (Literal[2, 1], pl.Int64(), {"type": "integer", "enum": [2, 1]}),
}


@pytest.mark.parametrize(("given", "dtype", "sent"), DTYPES.values(), ids=DTYPES.keys())
def test_a_dtype_is_kept_and_sent(given: Any, dtype: pl.DataType, sent: dict[str, Any]) -> None:
    schema = Schema.of({"c": given})
    assert schema.dtypes == pl.Schema({"c": dtype})
    assert json.loads(schema.wire or "")["properties"]["c"] == sent


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [(pl.Int8, -128, 127), (pl.UInt16, 0, 65535), (pl.Int64, -(2**63), 2**63 - 1)]
)
def test_an_integers_width_is_a_rule(dtype: Any, low: int, high: int) -> None:
    assert Schema.of({"c": dtype}).json_schema["properties"]["c"] == {
        "type": "integer",
        "minimum": low,
        "maximum": high,
    }


def test_a_polars_schema_is_a_mapping_of_dtypes() -> None:
    given = pl.Schema({"a": pl.Int8, "b": pl.List(pl.String)})
    assert Schema.of(given).dtypes == given


def sent(properties: dict[str, Any], **rest: Any) -> Schema:
    return Schema.of({"type": "object", "properties": properties, **rest})


JSON_CASES: dict[str, tuple[dict[str, Any], pl.DataType, dict[str, Any]]] = {
    "type list": ({"type": ["string", "null"]}, pl.String(), {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "enum with null": (
        {"enum": ["a", None]},
        pl.Enum(["a"]),
        {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
    ),
    "const": ({"const": "a"}, pl.Enum(["a"]), {"type": "string", "enum": ["a"]}),
    "numbers": ({"enum": [1, 2.5]}, pl.Float64(), {"type": "number", "enum": [1, 2.5]}),
    "one of one": ({"oneOf": [{"type": "integer"}]}, pl.Int64(), {"type": "integer"}),
    "all of one": ({"allOf": [{"$ref": "#/$defs/d"}]}, pl.Boolean(), {"type": "boolean"}),
    "reference with a sibling": (
        {"$ref": "#/$defs/d", "description": "D"},
        pl.Boolean(),
        {"description": "D", "type": "boolean"},
    ),
    "pattern": ({"type": "string", "pattern": "^a$", "minLength": 1}, pl.String(), {"type": "string"}),
    "format that is sent": ({"type": "string", "format": "uuid"}, pl.String(), {"type": "string", "format": "uuid"}),
    "format that is not": ({"type": "string", "format": "iri"}, pl.String(), {"type": "string"}),
    "few integers": (
        {"type": "integer", "exclusiveMinimum": 0, "maximum": 2},
        pl.Int64(),
        {"type": "integer", "enum": [1, 2]},
    ),
    "few integers, by all of their bounds": (
        {"type": "integer", "minimum": 0, "exclusiveMinimum": 0, "maximum": 20, "exclusiveMaximum": 16},
        pl.Int64(),
        {"type": "integer", "enum": list(range(1, 16))},
    ),
    "few integers, of a multiple": (
        {"type": "integer", "minimum": 0, "maximum": 15, "multipleOf": 5},
        pl.Int64(),
        {"type": "integer", "enum": [0, 5, 10, 15]},
    ),
    "many integers": ({"type": "integer", "minimum": 0, "maximum": 100}, pl.Int64(), {"type": "integer"}),
    "null as a constant": (
        {"anyOf": [{"type": "string"}, {"const": None}]},
        pl.String(),
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
    "null as the only option": (
        {"oneOf": [{"enum": [None]}, {"type": "string"}]},
        pl.String(),
        {"anyOf": [{"type": "string"}, {"type": "null"}]},
    ),
    "null in an enum of texts": (
        {"type": "string", "enum": ["x", None]},
        pl.Enum(["x"]),
        {"type": "string", "enum": ["x"]},
    ),
    "null in an enum of texts or null": (
        {"type": ["string", "null"], "enum": ["x", None]},
        pl.Enum(["x"]),
        {"anyOf": [{"type": "string", "enum": ["x"]}, {"type": "null"}]},
    ),
    "no null in an enum beside a type with null": (
        {"type": ["string", "null"], "enum": ["x"]},
        pl.Enum(["x"]),
        {"type": "string", "enum": ["x"]},
    ),
    "null that the words beside refuse": (
        {"anyOf": [{"minLength": 1}, {"type": "null"}], "type": "string"},
        pl.String(),
        {"type": "string"},
    ),
    "an enum of another type": ({"type": "integer", "enum": [1, "x"]}, pl.Int64(), {"type": "integer", "enum": [1]}),
    "a rule beside a rule": (
        {"allOf": [{"pattern": "^a"}], "type": "string", "pattern": "b$"},
        pl.String(),
        {"type": "string"},
    ),
    "tuple of one type": (
        {"type": "array", "prefixItems": [{"type": "integer"}] * 2, "minItems": 2, "maxItems": 2},
        pl.Array(pl.Int64, 2),
        {"type": "array", "items": {"type": "integer"}},
    ),
}


@pytest.mark.parametrize(("given", "dtype", "wire"), JSON_CASES.values(), ids=JSON_CASES.keys())
def test_a_json_schema_is_translated(given: dict[str, Any], dtype: pl.DataType, wire: dict[str, Any]) -> None:
    schema = sent({"c": given}, required=["c"], **{"$defs": {"d": {"type": "boolean"}}})
    assert schema.dtypes == pl.Schema({"c": dtype})
    assert json.loads(schema.wire or "")["properties"]["c"] == wire


BASE = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
OWN = {"properties": {"name": {"type": "string"}}, "required": ["name"]}
INHERITED = {
    "allOf": {"allOf": [{"$ref": "#/$defs/base"}], **OWN},
    "$ref": {"$ref": "#/$defs/base", **OWN},
    "anyOf": {"type": "object", "anyOf": [BASE], **OWN},
    "anyOf with null": {"anyOf": [BASE, {"type": "null"}], **OWN},
    "oneOf": {"oneOf": [{"$ref": "#/$defs/base"}], **OWN},
}


@pytest.mark.parametrize("given", INHERITED.values(), ids=INHERITED.keys())
def test_what_is_inherited_is_sent_with_what_is_added(given: dict[str, Any]) -> None:
    schema = sent({"c": given}, required=["c"], **{"$defs": {"base": BASE}})

    assert schema.dtypes == pl.Schema({"c": pl.Struct({"id": pl.Int64, "name": pl.String})})
    wire = json.loads(schema.wire or "")["properties"]["c"]
    assert wire.get("anyOf", [wire])[0]["required"] == ["id", "name"]
    assert Validator.of(schema).judge(pl.Series(['{"c":{"id":1,"name":"n"}}']))["ok"].to_list() == [True]


def test_an_optional_property_is_sent_as_required_and_nullable() -> None:
    schema = sent({"a": {"type": "string"}, "b": {"type": "string"}}, required=["a"])
    wire = json.loads(schema.wire or "")
    assert wire["required"] == ["a", "b"]
    assert wire["properties"]["b"] == {"anyOf": [{"type": "string"}, {"type": "null"}]}


def test_what_the_user_does_to_the_dict_later_changes_nothing() -> None:
    given: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    schema = Schema.of(given)
    given["properties"]["a"]["type"] = "integer"
    assert schema.json_schema["properties"]["a"]["type"] == "string"


class Loop(BaseModel):
    inner: Loop | None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class OtherName(BaseModel):
    a: int = Field(validation_alias=AliasChoices("b"))


class OtherType(BaseModel):
    a: int

    @field_serializer("a")
    def dump(self, a: int) -> str:
        return str(a)


class Mixed(Enum):
    A = "a"
    B = 1


def model(annotation: Any) -> type[BaseModel]:
    return type("Made", (BaseModel,), {"__annotations__": {"a": annotation}})


def obj(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


REFUSED: dict[str, tuple[Any, str, str]] = {
    "number": (3, "", "is no schema"),
    "class": (dict, "", "dict is no schema"),
    "type of a field": (str, "", 'str is the type of one field; name the field, as in {"answer": str}'),
    "generic type of a field": (list[str], "", 'as in {"answer": list[str]}'),
    "nothing": ({}, "", "allows any value"),
    "no properties": (obj(), "", "without properties"),
    "not a JSON Schema": ({"type": "objekt"}, "", "not a valid JSON Schema"),
    "root is a list": ({"type": "array", "items": {"type": "string"}}, "", "the root is not an object"),
    "root may be null": ({**obj(a={"type": "string"}), "type": ["object", "null"]}, "", "the root is not an object"),
    "any value": (obj(a={}), "a", "allows any value"),
    "any value by True": (obj(a=True), "a", "allows any value"),
    "no type": (obj(a={"description": "x"}), "a", "names no type"),
    "only null": (obj(a={"type": "null"}), "a", "only be null"),
    "open object": (obj(a={**obj(b={"type": "string"}), "additionalProperties": True}), "a", "open object"),
    "object of anything": (obj(a={"type": "object"}), "a", "without properties"),
    "patterns": (obj(a={**obj(b={"type": "string"}), "patternProperties": {"x": {}}}), "a", "patternProperties"),
    "deep union": (
        obj(address=obj(geo={"type": "array", "items": obj(x={"type": ["string", "integer"]})})),
        "address.geo[].x",
        "a union of several types",
    ),
    "anyOf": (obj(a={"anyOf": [{"type": "string"}, {"type": "integer"}]}), "a", "a union of several types"),
    "allOf": (obj(a={"allOf": [{"type": "string"}, {"minLength": 1}]}), "a", "allOf"),
    "two descriptions of a property": (
        obj(a={"allOf": [obj(b={"type": "string"})], **obj(b={"type": "integer"})}),
        "a",
        "b is described twice",
    ),
    "two types": (obj(a={"allOf": [{"type": "integer"}], "type": "string"}), "a", "type is said twice"),
    "more than a closed object": (
        obj(a={"allOf": [{**obj(b={"type": "string"}), "additionalProperties": False}], **obj(c={"type": "string"})}),
        "a",
        "a closed object, which refuses c",
    ),
    "a closed object beside more": (
        obj(a={"allOf": [obj(b={"type": "string"})], "additionalProperties": False}),
        "a",
        "a closed object, which refuses b",
    ),
    "anchor": (
        {**obj(a={"$ref": "#there"}), "$defs": {"d": {"$anchor": "there", "type": "string"}}},
        "a",
        "a reference to an anchor, #there",
    ),
    "only null, as a constant": (obj(a={"const": None}), "a", "only be null"),
    "no option of its type": (obj(a={"type": "integer", "enum": ["x"]}), "a", "none of its allowed values"),
    "null twice in oneOf": (
        obj(a={"oneOf": [{"type": ["string", "null"]}, {"type": "null"}]}),
        "a",
        "null is in two parts of oneOf",
    ),
    "recursion": (obj(a={"$ref": "#"}), "a.a", "contains itself"),
    "other document": (obj(a={"$ref": "https://example.com/x"}), "a", "another document"),
    "reference to nothing that nothing uses": (
        {**obj(a={"type": "string"}), "$defs": {"x": {"$ref": "https://example.com/x"}}},
        "",
        "what is not there",
    ),
    "dangling": (obj(a={"$ref": "#/$defs/x"}), "a", "nothing"),
    "list of anything": (obj(a={"type": "array"}), "a", "a list of anything"),
    "mixed tuple": (
        obj(
            a={"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "minItems": 2, "maxItems": 2}
        ),
        "a",
        "a tuple of several types",
    ),
    "enum of objects": (obj(a={"enum": [{"b": 1}]}), "a", "not all texts"),
    "mixed enum": (obj(a={"enum": ["a", 1]}), "a", "not all texts"),
    "requires the unknown": ({**obj(a={"type": "string"}), "required": ["b"]}, "", "requires b"),
    "Binary": ({"a": pl.Binary}, "a", "no JSON form"),
    "Duration": ({"a": pl.List(pl.Duration("us"))}, "a[]", "no JSON form"),
    "Decimal": ({"a": pl.Struct({"b": pl.Decimal(9, 2)})}, "a.b", "no JSON form"),
    "Int128": ({"a": pl.Int128}, "a", "no JSON form"),
    "dtype without arguments": ({"a": pl.List}, "a", "needs its arguments"),
    "Python class": ({"a": Decimal}, "a", "Decimal has no dtype"),
    "union of dtypes": ({"a": int | str}, "a", "a union of several types"),
    "half a mapping": ({"a": str, "b": "text"}, "b", "is no dtype"),
    "model recursion": (Loop, "inner", "contains itself"),
    "model open": (Open, "", "open object"),
    "model dict": (model(dict[str, int]), "a", "open object"),
    "model any": (model(Any), "a", "names no type"),
    "model union": (model(int | str), "a", "a union of several types"),
    "model mixed enum": (model(Mixed), "a", "not all texts"),
    "model mixed tuple": (model(tuple[int, str]), "a", "a tuple of several types"),
    "model of what has no JSON": (model(Callable[[], int]), "", "Pydantic has no JSON Schema"),
    "model under two names": (OtherName, "b", "another name or type"),
    "model under two types": (OtherType, "a", "another name or type"),
}


@pytest.mark.parametrize(("given", "path", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_translated_is_refused_with_its_path(given: Any, path: str, reason: str) -> None:
    with pytest.raises(UntranslatableSchema) as caught:
        Schema.of(given)
    assert caught.value.path == path
    assert reason in caught.value.reason
    assert (path or "its root") in str(caught.value)


def test_an_example_answer_may_be_a_model() -> None:
    answer = Geo(x=1.5)
    assert Schema.of(Geo).example_text(answer) == '{"x":1.5,"y":null}'
