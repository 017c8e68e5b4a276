"""From the user's JSON Schema to the part of it that a provider's grammar can hold it to.

Each provider enforces a subset. What is outside is taken off the wire by the rules of `to_wire`, listed, and left to
validation, which judges every answer against the whole schema. Nothing is put into descriptions: lotwise adds no text
that the user did not write. The result is the exact text sent, so it is made once, before the key.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from lotwise.errors import UnsupportedSchema
from lotwise.wire import clash, merged, without

Node = dict[str, Any]

# They constrain nothing, so they leave the wire without a word.
_ANNOTATIONS = frozenset(
    {"$schema", "$id", "$anchor", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly"}
    | {"discriminator"}
)
_STRUCTURE = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "anyOf",
        "$ref",
        "$defs",
        "definitions",
    }
    | {"enum", "const", "title", "description"}
)
# A grammar is no back-tracking engine: lookaround, back references and word boundaries are not in it.
_HARD_PATTERN = re.compile(r"\(\?[=!<]|\\[1-9bB]")


@dataclass(frozen=True, kw_only=True)
class Subset:
    """What one provider's structured output can express.

    Attributes
    ----------
    provider
        For error messages.
    keywords
        Constraints that are kept besides the structural ones.
    formats
        Values of ``format`` that are kept.
    all_required
        True where every property must be required; an optional one is then asked for as a union with null.
    recursion
        True where a ``$ref`` may lead back to itself.
    min_items
        The largest ``minItems`` that is kept; a larger one is sent as this one. None for any.
    max_properties, max_depth, max_enum_values, max_text, max_optional
        Bounds over the whole schema; None for none.
    """

    provider: str
    keywords: frozenset[str]
    formats: frozenset[str]
    all_required: bool
    recursion: bool
    min_items: int | None = None
    max_properties: int | None = None
    max_depth: int | None = None
    max_enum_values: int | None = None
    max_text: int | None = None
    max_optional: int | None = None


@dataclass(frozen=True, kw_only=True)
class WireSchema:
    """A schema ready for the wire.

    Attributes
    ----------
    text
        Compact JSON, property order kept.
    left_to_validation
        ``/path/keyword`` of each constraint that the wire does not carry; ``/path/optional`` where an optional
        property is asked for as a union with null, so that null means absent.
    inexpressible
        ``/path: reason`` of what no rule could take off the wire; where there is any, `text` is the user's schema as
        it is, which can be sent as a hint only.
    """

    text: str
    left_to_validation: tuple[str, ...] = ()
    inexpressible: tuple[tuple[str, str], ...] = ()


def to_wire(schema_text: str, subset: Subset) -> WireSchema:
    """Cut a JSON Schema to a provider's subset.

    Parameters
    ----------
    schema_text
        A JSON Schema with an object at its root.
    subset
        What the provider takes.

    Raises
    ------
    UnsupportedSchema
        The root is no object.

    Notes
    -----
    The rules, in full: objects get ``additionalProperties: false``; ``oneOf`` becomes ``anyOf``; an ``allOf`` of one
    and the target of a ``$ref`` with neighbours become one schema with what stands beside them, and are inexpressible
    where the two clash (`lotwise.wire.merged`); optional properties become required and nullable where
    `subset.all_required`; a constraint outside the subset is dropped and listed; annotations are dropped. The result
    of a result is itself.
    """
    root = json.loads(schema_text)
    if not isinstance(root, dict):
        raise UnsupportedSchema.at(subset.provider, "", "a schema is an object")
    work = _Work(subset, root)
    made = work.root()
    if made.get("type") != "object" or "anyOf" in made:
        raise UnsupportedSchema.at(subset.provider, "", "the root must be one object with named fields")
    work.measure(made)
    if work.inexpressible:
        return WireSchema(
            text=_dumps(root),
            left_to_validation=("/",),
            inexpressible=tuple(work.inexpressible),
        )
    return WireSchema(text=_dumps(made), left_to_validation=tuple(work.left))


def to_enforced_wire(schema_text: str, subset: Subset) -> WireSchema:
    """Cut a JSON Schema as `to_wire` does, for a provider that knows no way to send a schema without holding to it.

    Raises
    ------
    UnsupportedSchema
        The root is no object, or something in it cannot be expressed, with the place.
    """
    made = to_wire(schema_text, subset)
    for path, reason in made.inexpressible:
        raise UnsupportedSchema.at(subset.provider, path, reason)
    return made


def _dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@dataclass
class _Work:
    """One walk over one schema, and what it noted."""

    subset: Subset
    source: Node
    left: list[str] = field(default_factory=list)
    inexpressible: list[tuple[str, str]] = field(default_factory=list)

    def root(self) -> Node:
        node = self.source
        if "$ref" in node:
            # Some generators put the root itself among the definitions.
            target = self._target(node["$ref"])
            if isinstance(target, dict):
                node = self._as_one(target, without(node, "$ref"), "", "$ref")
        return self._node(node, "", ())

    def _cannot(self, path: str, reason: str) -> None:
        self.inexpressible.append((path, reason))

    def _node(self, node: object, path: str, within: tuple[str, ...]) -> Node:
        """Return what is sent of one subschema; `within` are the references that it was reached through."""
        if not isinstance(node, dict) or not set(node) - _ANNOTATIONS - {"title", "description"}:
            self._cannot(path, "any value at all is allowed here")
            return {}
        node = self._without_all_of(node, path)
        if "$ref" in node:
            return self._reference(node, path, within)
        made: Node = {}
        for name, value in node.items():
            self._keyword(made, name, value, path, within)
        if "properties" in made or made.get("type") == "object":
            self._object(made, node, path)
        if made.get("type") == "array" and "items" not in made:
            self._cannot(path, "an array without items")
        return made

    def _without_all_of(self, node: Node, path: str) -> Node:
        parts = node.get("allOf")
        if not isinstance(parts, list):
            return node
        rest = without(node, "allOf")
        if len(parts) == 1 and isinstance(parts[0], dict):
            return self._as_one(parts[0], rest, path, "allOf")
        self._cannot(path, "allOf")
        return rest

    def _as_one(self, part: Node, beside: Node, path: str, word: str) -> Node:
        """Merge the part that `word` brings with what stands beside it; note where both cannot be one."""
        if reason := clash(part, beside):
            self._cannot(path, f"{word}: {reason}")
        return merged(part, beside)

    def _reference(self, node: Node, path: str, within: tuple[str, ...]) -> Node:
        ref = node["$ref"]
        target = self._target(ref)
        if not isinstance(target, dict):
            self._cannot(path, "a $ref that leads nowhere in this schema")
            return {}
        recursive = ref in within or ref == "#" or ref in _references_within(self.source, ref)
        if recursive and not self.subset.recursion:
            self._cannot(path, "a schema that contains itself")
            return {}
        neighbours = {k: v for k, v in node.items() if k != "$ref" and k not in _ANNOTATIONS}
        defs = {k: neighbours.pop(k) for k in ("$defs", "definitions") if k in neighbours}
        if neighbours and not recursive:
            return self._node(self._as_one(target, neighbours, path, "$ref"), path, (*within, ref))
        self.left += [f"{path}/{name}" for name in neighbours]
        made: Node = {"$ref": ref}
        for name, value in defs.items():
            self._keyword(made, name, value, path, within)
        return made

    def _keyword(self, made: Node, name: str, value: Any, path: str, within: tuple[str, ...]) -> None:
        subset = self.subset
        here = f"{path}/{name}"
        if name in _ANNOTATIONS:
            return
        if name in ("properties", "$defs", "definitions"):
            named = value if isinstance(value, dict) else {}
            made[name] = {key: self._node(part, f"{here}/{key}", within) for key, part in named.items()}
        elif name in ("anyOf", "oneOf"):
            parts = value if isinstance(value, list) else []
            made["anyOf"] = [self._node(part, f"{here}/{n}", within) for n, part in enumerate(parts)]
            if name == "oneOf":
                self.left.append(here)
        elif name == "items":
            if value is not False:
                made[name] = self._node(value, here, within)
        elif name == "enum" and not all(v is None or isinstance(v, str | int | float) for v in value):
            self._cannot(path, "an enum of objects or arrays")
        elif name in _STRUCTURE:
            made[name] = value
        elif name in ("patternProperties", "prefixItems"):
            self._cannot(path, name)
        elif (name == "format" and value not in subset.formats) or (
            name == "pattern" and _HARD_PATTERN.search(str(value))
        ):
            self.left.append(here)
        elif name == "minItems" and subset.min_items is not None and value > subset.min_items:
            made[name] = subset.min_items
            self.left.append(here)
        elif name in subset.keywords:
            made[name] = value
        else:
            self.left.append(here)

    def _object(self, made: Node, node: Node, path: str) -> None:
        """Close an object, and make all of its properties required where that is asked."""
        others = node.get("additionalProperties", True)
        if isinstance(others, dict) or (others is not False and not node.get("properties")):
            self._cannot(path, "an object with names that the schema does not list")
        properties: Node = made.setdefault("properties", {})
        required = [name for name in node.get("required", ()) if name in properties]
        if len(required) < len(node.get("required", ())):
            self._cannot(path, "a required property that is not described")
        if self.subset.all_required:
            for name, part in properties.items():
                if name not in required and not self._takes_null(part):
                    properties[name] = {"anyOf": [part, {"type": "null"}]}
                    self.left.append(f"{path}/properties/{name}/optional")
            required = list(properties)
        made["required"] = required
        made["additionalProperties"] = False

    def _takes_null(self, part: Node) -> bool:
        if "$ref" in part:
            target = self._target(part["$ref"])
            return isinstance(target, dict) and "$ref" not in target and self._takes_null(target)
        if "anyOf" in part:
            return any(self._takes_null(one) for one in part["anyOf"])
        if "enum" in part:
            return None in part["enum"]
        if "const" in part:
            return part["const"] is None
        kinds = part.get("type")
        return "null" in kinds if isinstance(kinds, list) else kinds == "null"

    def _target(self, ref: object) -> object:
        return _target(self.source, ref)

    def measure(self, made: Node) -> None:
        """Note each bound over the whole schema that `made` passes."""
        subset = self.subset
        properties = enum_values = text = optional = deepest = 0
        for node, depth in _nodes(made, 0):
            deepest = max(deepest, depth)
            named = node.get("properties", {})
            properties += len(named)
            optional += len(named) - len(node.get("required", ())) if named else 0
            values = node.get("enum", [])
            enum_values += len(values)
            letters = sum(len(value) for value in values if isinstance(value, str))
            if subset.max_enum_values is not None and len(values) > 250 and letters > 15_000:
                self._cannot("", "an enum of more than 250 values holds over 15,000 characters")
            text += letters + sum(map(len, named)) + sum(map(len, node.get("$defs", {})))
            if isinstance(node.get("const"), str):
                text += len(node["const"])
        for bound, found, what in (
            (subset.max_properties, properties, "properties"),
            (subset.max_depth, deepest, "levels of nesting"),
            (subset.max_enum_values, enum_values, "enum values"),
            (subset.max_text, text, "characters of names and values"),
            (subset.max_optional, optional, "optional properties"),
        ):
            if bound is not None and found > bound:
                self._cannot("", f"{found:,} {what}, where {bound:,} are taken")


def _target(source: Mapping[str, Any], ref: object) -> object:
    """Return what a reference inside the schema points to; None for an outside or a dangling one."""
    if not isinstance(ref, str) or ref[:2] not in ("#", "#/"):
        return None
    found: object = source
    for part in ref[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return None
        found = found[name]
    return found


def _references_within(source: Mapping[str, Any], ref: str) -> frozenset[str]:
    """Return every reference that can be reached from the target of `ref`."""
    seen: set[str] = set()
    open_refs = [ref]
    while open_refs:
        for found in _references(_target(source, open_refs.pop())):
            if found not in seen:
                seen.add(found)
                open_refs.append(found)
    return frozenset(seen)


def _references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for name, part in value.items():
            if name not in ("$defs", "definitions", "enum", "const"):
                yield from _references(part)
    elif isinstance(value, list):
        for part in value:
            yield from _references(part)


def _nodes(node: Node, depth: int) -> Iterator[tuple[Node, int]]:
    """Yield each subschema with the number of objects and arrays around it."""
    yield node, depth
    for part in node.get("properties", {}).values():
        yield from _nodes(part, depth + 1)
    if isinstance(node.get("items"), dict):
        yield from _nodes(node["items"], depth + 1)
    for part in node.get("anyOf", ()):
        yield from _nodes(part, depth)
    for name in ("$defs", "definitions"):
        for part in node.get(name, {}).values():
            yield from _nodes(part, depth)
