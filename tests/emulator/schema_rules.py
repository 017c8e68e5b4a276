"""The part of JSON Schema that each provider takes on the wire.

A schema outside it makes the request a bad one, as the real services answer, so a product that sends what a
provider cannot express is found out here and not at the first real bill.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from emulator.answers import COMPACT, Dialect, Json

OPENAI_REFUSED = ("allOf", "not", "if", "then", "else", "dependentRequired", "dependentSchemas")
ANTHROPIC_REFUSED = (
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "minLength",
    "maxLength", "not",
)  # fmt: skip
ANTHROPIC_FORMATS = (
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "uri",
    "ipv4",
    "ipv6",
    "uuid",
)
OPENAI_DEEPEST, OPENAI_PROPERTIES, OPENAI_ENUM_VALUES = 10, 5000, 1000


def fault_of_schema(schema: Any, body: Json, dialect: Dialect) -> str | None:
    """Return why the provider refuses the schema, or None."""
    if not isinstance(schema, dict):
        return "Invalid schema: not an object"
    if dialect == "messages":
        return _fault(COMPACT(schema), "messages", None, True)
    form = body["response_format"]["json_schema"] if dialect == "chat" else body["text"]["format"]
    return _fault(COMPACT(schema), dialect, form.get("name"), bool(form.get("strict")))


@lru_cache(maxsize=64)
def _fault(schema_text: str, dialect: Dialect, name: Any, strict: bool) -> str | None:
    """Judge a schema once, not once a row."""
    schema = json.loads(schema_text)
    if dialect == "messages":
        return next(_anthropic_faults(schema), None)
    if not isinstance(name, str) or not 1 <= len(name) <= 64:
        return "Invalid name of schema: 1 to 64 characters"
    if any(not (c.isascii() and (c.isalnum() or c in "_-")) for c in name):
        return "Invalid name of schema: letters, digits, _ and - only"
    return next(_openai_faults(schema), None) if strict else None


def _nodes(schema: Any, path: str = "$", depth: int = 0) -> Iterator[tuple[str, Json, int]]:
    """Yield each subschema with its path and its depth in objects."""
    if not isinstance(schema, dict):
        return
    yield path, schema, depth
    for word in ("properties", "$defs", "definitions"):
        for name, part in (schema.get(word) or {}).items():
            yield from _nodes(part, f"{path}.{word}.{name}", depth + (word == "properties"))
    for word in ("anyOf", "oneOf", "allOf", "prefixItems"):
        for n, part in enumerate(schema.get(word) or ()):
            yield from _nodes(part, f"{path}.{word}.{n}", depth)
    yield from _nodes(schema.get("items"), f"{path}.items", depth)


def _openai_faults(schema: Json) -> Iterator[str]:
    if schema.get("type") != "object":
        yield "Invalid schema: the root must be of type object"
    properties = values = 0
    for path, node, depth in _nodes(schema):
        for word in OPENAI_REFUSED:
            if word in node:
                yield f"Invalid schema: '{word}' is not permitted at {path}"
        if depth > OPENAI_DEEPEST:
            yield f"Invalid schema: more than {OPENAI_DEEPEST} levels at {path}"
        if node.get("type") == "object" or "properties" in node:
            names = node.get("properties") or {}
            properties += len(names)
            if node.get("additionalProperties") is not False:
                yield f"Invalid schema: 'additionalProperties' must be false at {path}"
            if set(node.get("required") or ()) != set(names):
                yield f"Invalid schema: 'required' must name every property at {path}"
        values += len(node.get("enum") or ())
    if properties > OPENAI_PROPERTIES:
        yield f"Invalid schema: more than {OPENAI_PROPERTIES} properties"
    if values > OPENAI_ENUM_VALUES:
        yield f"Invalid schema: more than {OPENAI_ENUM_VALUES} enum values"


def _anthropic_faults(schema: Json) -> Iterator[str]:
    for path, node, _depth in _nodes(schema):
        for word in ANTHROPIC_REFUSED:
            if word in node:
                yield f"output_config.format.schema: '{word}' is not supported at {path}"
        if (node.get("type") == "object" or "properties" in node) and node.get("additionalProperties") is not False:
            yield f"output_config.format.schema: 'additionalProperties' must be explicitly false at {path}"
        if node.get("minItems", 0) not in (0, 1):
            yield f"output_config.format.schema: 'minItems' may be 0 or 1 at {path}"
        if "maxItems" in node:
            yield f"output_config.format.schema: 'maxItems' is not supported at {path}"
        if "format" in node and node["format"] not in ANTHROPIC_FORMATS:
            yield f"output_config.format.schema: format {node['format']!r} is not supported at {path}"
        if not str(node.get("$ref", "#")).startswith("#"):
            yield f"output_config.format.schema: external '$ref' at {path}"
        if any("$ref" in part for part in node.get("allOf") or () if isinstance(part, dict)):
            yield f"output_config.format.schema: 'allOf' with '$ref' at {path}"
