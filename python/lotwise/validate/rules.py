"""The verdict of the user's own rules: a Pydantic model's, or the original JSON Schema's.

Both say what an answer is worth as they would without this package. The value of a model is its dump; the value of a
JSON Schema is the answer, with a null for each property that may be absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema_rs
import msgspec
from pydantic import BaseModel, ValidationError

from lotwise.errors import CheckFailedToRun
from lotwise.schema import Schema
from lotwise.validate.faults import MOST_FAULTS, Fault, path_of, property_names
from lotwise.validate.parse import has_wide_number
from lotwise.wire import Optionals

Verdict = Callable[[str, Any, bytes], bytes | Fault]
"""Judges one answer, given as text, as value and as the value written again; gives the final value or a fault."""


def by_model(model: type[BaseModel]) -> Verdict:
    """Judge by a Pydantic model: its own strictness, defaults and validators; the value is its JSON dump."""
    validate, dump = model.__pydantic_validator__.validate_json, model.__pydantic_serializer__.to_json
    known = frozenset(property_names(model.model_json_schema()))

    def verdict(text: str, value: Any, written: bytes) -> bytes | Fault:
        try:
            valid = validate(text)
            dumped = dump(valid, by_alias=True)
            # "inf" is a number to a lax model, and its dump says null.
            if b"null" in dumped and has_wide_number(valid.model_dump(), integers=False):
                return Fault.whole("schema_mismatch", "number_out_of_range")
            return dumped
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            faults = tuple((path_of(each["loc"], known), each["type"]) for each in found[:MOST_FAULTS])
            return Fault("schema_mismatch", faults)
        except Exception as error:
            raised = error
        # Raised outside the except block: the original may quote the answer, and would stay in the chain.
        raise CheckFailedToRun.raised(model.__name__, raised)

    return verdict


def by_rules(schema: Schema) -> Verdict:
    """Judge by the original JSON Schema, formats included."""
    rules = jsonschema_rs.validator_for(dict(schema.json_schema), validate_formats=True, offline=True)
    known = frozenset(property_names(schema.json_schema))
    is_valid, optionals = rules.is_valid, schema.optionals

    def verdict(text: str, value: Any, written: bytes) -> bytes | Fault:
        judged = value if optionals is None else _without_absent(value, optionals)
        if is_valid(judged):
            return written if optionals is None else msgspec.json.encode(_with_absent(value, optionals))
        faults = []
        for error in rules.iter_errors(judged):
            where = list(error.instance_path)
            if error.kind.name == "required":
                where.append(error.kind.as_dict()["property"])
            faults.append((path_of(where, known), error.kind.name))
            if len(faults) == MOST_FAULTS:
                break
        return Fault("schema_mismatch", tuple(faults))

    return verdict


def _without_absent(value: Any, optionals: Optionals) -> Any:
    """Copy a value without the nulls that stand for an absent property."""
    if isinstance(value, list) and optionals.items is not None:
        return [_without_absent(each, optionals.items) for each in value]
    if not isinstance(value, dict):
        return value
    inside = dict(optionals.inside)
    return {
        name: _without_absent(each, inside[name]) if name in inside else each
        for name, each in value.items()
        if each is not None or name not in optionals.dropped
    }


def _with_absent(value: Any, optionals: Optionals) -> Any:
    """Copy a value with null for each optional property that is absent."""
    if isinstance(value, list) and optionals.items is not None:
        return [_with_absent(each, optionals.items) for each in value]
    if not isinstance(value, dict):
        return value
    inside = dict(optionals.inside)
    present = {name: _with_absent(each, inside[name]) if name in inside else each for name, each in value.items()}
    return present | {name: None for name in optionals.names if name not in value}
