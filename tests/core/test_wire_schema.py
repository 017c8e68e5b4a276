"""A schema on the wire is within the provider's subset, says what it left out, and never changes in silence."""

from __future__ import annotations

import json
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from emulator.schema_rules import _anthropic_faults, _openai_faults
from lotwise.errors import UnsupportedSchema
from lotwise.executors import anthropic_dialect, openai_dialect
from lotwise.executors.wire_schema import to_wire


class Place(BaseModel):
    city: str = Field(min_length=2, max_length=40)
    zip: str | None = Field(None, pattern=r"^\d{5}$")


class Ticket(BaseModel):
    category: Literal["billing", "bug"]
    score: int = Field(ge=1, le=5)
    place: Place = Field(description="where it happened")
    tags: list[str] = Field(min_length=2, max_length=4)
    note: str = "none"
    kind: Literal["x"] | int = 3


class Tree(BaseModel):
    name: str
    children: list[Tree]


def obj(required: bool = True, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties) if required else []}


def openai(schema: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    made = openai_dialect.wire_schema(json.dumps(schema))
    return json.loads(made.text), made.left_to_validation


def anthropic(schema: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    made = anthropic_dialect.wire_schema(json.dumps(schema))
    return json.loads(made.text), made.left_to_validation


STRING, NULL = {"type": "string"}, {"type": "null"}


@pytest.mark.parametrize("model", [Ticket, Place, Tree], ids=lambda m: m.__name__)
def test_pydantic_schemas_pass_the_rules_of_openai(model: type[BaseModel]) -> None:
    made, _ = openai(model.model_json_schema())
    assert list(_openai_faults(made)) == []


@pytest.mark.parametrize("model", [Ticket, Place], ids=lambda m: m.__name__)
def test_pydantic_schemas_pass_the_rules_of_anthropic(model: type[BaseModel]) -> None:
    made, _ = anthropic(model.model_json_schema())
    assert list(_anthropic_faults(made)) == []


@pytest.mark.parametrize("model", [Ticket, Place, Tree], ids=lambda m: m.__name__)
def test_a_result_is_its_own_result(model: type[BaseModel]) -> None:
    once = openai_dialect.wire_schema(json.dumps(model.model_json_schema()))
    twice = openai_dialect.wire_schema(once.text)
    assert (twice.text, twice.left_to_validation, twice.inexpressible) == (once.text, (), ())


def test_property_order_is_kept() -> None:
    made, _ = openai(obj(zeta=STRING, alpha=STRING))
    assert list(made["properties"]) == ["zeta", "alpha"]
    assert made["required"] == ["zeta", "alpha"]


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], list[str]]] = {
    "closed": (obj(a=STRING), {"a": STRING}, []),
    "max length": (obj(a=STRING | {"maxLength": 3}), {"a": STRING}, ["/properties/a/maxLength"]),
    "maximum is kept": (
        obj(a={"type": "number", "maximum": 3}),
        {"a": {"type": "number", "maximum": 3}},
        [],
    ),
    "unknown keyword": (obj(a=STRING | {"moon": 1}), {"a": STRING}, ["/properties/a/moon"]),
    "default is no constraint": (obj(a=STRING | {"default": "x"}), {"a": STRING}, []),
    "known format": (obj(a=STRING | {"format": "date"}), {"a": STRING | {"format": "date"}}, []),
    "unknown format": (obj(a=STRING | {"format": "moon"}), {"a": STRING}, ["/properties/a/format"]),
    "simple pattern": (obj(a=STRING | {"pattern": "^a+$"}), {"a": STRING | {"pattern": "^a+$"}}, []),
    "lookahead": (obj(a=STRING | {"pattern": "(?=a)"}), {"a": STRING}, ["/properties/a/pattern"]),
    "one of": (
        obj(a={"oneOf": [STRING, NULL]}),
        {"a": {"anyOf": [STRING, NULL]}},
        ["/properties/a/oneOf"],
    ),
    "all of one": (obj(a={"allOf": [STRING], "description": "d"}), {"a": STRING | {"description": "d"}}, []),
    "optional": (
        obj(required=False, a=STRING),
        {"a": {"anyOf": [STRING, NULL]}},
        ["/properties/a/optional"],
    ),
    "optional that takes null": (
        obj(required=False, a={"type": ["string", "null"]}),
        {"a": {"type": ["string", "null"]}},
        [],
    ),
}


@pytest.mark.parametrize(("schema", "properties", "left"), list(CASES.values()), ids=list(CASES))
def test_rules_for_openai(schema: dict[str, Any], properties: dict[str, Any], left: list[str]) -> None:
    made, told = openai(schema)
    assert made == {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    assert list(told) == left


def test_reference_with_a_description_is_replaced_by_its_target() -> None:
    made, left = openai(Ticket.model_json_schema())
    assert made["properties"]["place"]["description"] == "where it happened"
    assert "city" in made["properties"]["place"]["properties"]
    assert "/properties/place/properties/city/maxLength" in left


def test_anthropic_keeps_optional_properties_optional() -> None:
    made, left = anthropic(obj(required=False, a=STRING))
    assert (made["required"], left) == ([], ())


def test_anthropic_sends_the_smallest_min_items_that_it_takes() -> None:
    items = {"type": "array", "items": STRING}
    made, left = anthropic(obj(a=items | {"minItems": 3, "maxItems": 9}))
    assert made["properties"]["a"] == items | {"minItems": 1}
    assert set(left) == {"/properties/a/minItems", "/properties/a/maxItems"}


INEXPRESSIBLE: dict[str, dict[str, Any]] = {
    "open object": obj(a={"type": "object"}),
    "map": obj(a={"type": "object", "additionalProperties": STRING}),
    "any value": obj(a={}),
    "tuple": obj(a={"type": "array", "prefixItems": [STRING], "items": False}),
    "two of all": obj(a={"allOf": [STRING, {"minLength": 3}]}),
    "outside reference": obj(a={"$ref": "https://example.org/x"}),
    "dangling reference": obj(a={"$ref": "#/$defs/Moon"}),
    "too deep": json.loads('{"type":"object","properties":{"a":' * 12 + '{"type":"string"}' + "}}" * 12),
    "too many values": obj(a={"enum": [str(n) for n in range(1001)]}),
}


@pytest.mark.parametrize("schema", list(INEXPRESSIBLE.values()), ids=list(INEXPRESSIBLE))
def test_what_openai_cannot_enforce_is_sent_whole_and_left_to_validation(schema: dict[str, Any]) -> None:
    made = openai_dialect.wire_schema(json.dumps(schema))
    assert json.loads(made.text) == schema
    assert made.left_to_validation == ("/",)
    assert made.inexpressible


def test_recursion_is_taken_by_openai_and_refused_for_anthropic() -> None:
    assert openai_dialect.wire_schema(json.dumps(Tree.model_json_schema())).inexpressible == ()
    with pytest.raises(UnsupportedSchema, match="contains itself"):
        anthropic(Tree.model_json_schema())


@pytest.mark.parametrize(
    "schema", [{"type": "array", "items": STRING}, {"anyOf": [obj(a=STRING)]}, STRING], ids=["array", "union", "text"]
)
def test_root_that_is_no_object_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchema, match="root"):
        to_wire(json.dumps(schema), openai_dialect.SUBSET)


@pytest.mark.parametrize("part", [{"allOf": [obj(a=STRING)]}, {"$ref": "#/$defs/base"}], ids=["allOf", "$ref"])
def test_what_is_inherited_is_sent_with_what_is_added(part: dict[str, Any]) -> None:
    made, _ = anthropic({**obj(c={**part, **obj(b=STRING)}), "$defs": {"base": obj(a=STRING)}})

    assert made["properties"]["c"] == {**obj(a=STRING, b=STRING), "additionalProperties": False}


@pytest.mark.parametrize("part", [{"allOf": [obj(a=STRING)]}, {"$ref": "#/$defs/base"}], ids=["allOf", "$ref"])
def test_two_descriptions_of_a_property_are_refused(part: dict[str, Any]) -> None:
    schema = {**obj(c={**part, **obj(a=NULL)}), "$defs": {"base": obj(a=STRING)}}

    with pytest.raises(UnsupportedSchema, match=r"at /properties/c: .*: a is described twice"):
        anthropic(schema)
