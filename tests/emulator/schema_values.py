"""A value that satisfies a JSON Schema, every choice made by a hash.

Only the seed and the value's path decide, so adding a property to a schema does not change the others.  The
parts of JSON Schema that structured outputs use are covered; what is not is refused by name, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import blake2b
from typing import Any
from uuid import UUID

# The standard library's own pattern parser: private by name, stable since 3.11, and the only one there is.
from re import _constants as pattern_ops  # type: ignore[attr-defined]  # isort: skip
from re import _parser as pattern_parser  # type: ignore[attr-defined]  # isort: skip

DEEPEST = 12  # a recursive schema ends in its empty or null branch from here on
WORDS = ("lot", "row", "batch", "answer", "Größe", "見本", "clear", "short", "part", "whole", "first", "last")


class UnsupportedSchema(ValueError):
    """The schema needs something that the emulator cannot make up."""


class SchemaValues:
    """Makes the value of one schema for one seed; with `echo` that text goes into the first free string."""

    def __init__(self, schema: Any, seed: bytes, *, echo: str | None = None) -> None:
        self._root = schema
        self._seed = seed
        self._echo = echo

    def value(self) -> Any:
        """Return the value at the root."""
        return self._value(self._root, "", 0)

    def _number(self, path: str) -> int:
        return int.from_bytes(blake2b(path.encode(), key=self._seed, digest_size=8).digest(), "big")

    def _value(self, schema: Any, path: str, depth: int) -> Any:
        if schema is True or schema == {}:
            return self._string({}, path)
        if not isinstance(schema, dict):
            raise UnsupportedSchema(f"schema at {path or '/'} is {schema!r}")
        if "$ref" in schema:
            return self._value(self._resolved(schema["$ref"]), path, depth + 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return schema["enum"][self._number(path) % len(schema["enum"])]
        for word in ("anyOf", "oneOf"):
            if word in schema:
                return self._value(self._branch(schema[word], path, depth), path, depth + 1)
        if "allOf" in schema:
            return self._value(self._merged(schema), path, depth)
        kind = schema.get("type") or ("object" if "properties" in schema else "string")
        if isinstance(kind, list):
            return self._value({**schema, "type": self._kind(kind, path, depth)}, path, depth)
        makers: dict[str, Callable[[dict[str, Any], str, int], Any]] = {
            "object": self._object,
            "array": self._array,
            "string": self._string_at,
            "integer": self._integer,
            "number": self._float,
            "boolean": lambda _schema, at, _depth: self._number(at) % 2 == 0,
            "null": lambda _schema, _at, _depth: None,
        }
        make = makers.get(kind)
        if make is None:
            raise UnsupportedSchema(f"type {kind!r} at {path or '/'}")
        return make(schema, path, depth)

    def _resolved(self, ref: str) -> Any:
        if not ref.startswith("#"):
            raise UnsupportedSchema(f"external $ref {ref!r}")
        node = self._root
        for part in ref[1:].split("/")[1:]:
            node = node[part.replace("~1", "/").replace("~0", "~")]
        return node

    def _merged(self, schema: dict[str, Any]) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for part in [{k: v for k, v in schema.items() if k != "allOf"}, *schema["allOf"]]:
            part = self._resolved(part["$ref"]) if "$ref" in part else part
            for word, value in part.items():
                if word == "properties":
                    value = {**merged.get(word, {}), **value}
                elif word == "required":
                    value = [*merged.get(word, ()), *value]
                merged[word] = value
        return merged

    def _branch(self, branches: list[Any], path: str, depth: int) -> Any:
        nulls = [branch for branch in branches if branch == {"type": "null"}]
        others = [branch for branch in branches if branch != {"type": "null"}]
        pick = self._number(path + "?")
        if nulls and (not others or depth > DEEPEST or pick % 4 == 0):
            return nulls[0]
        if depth > DEEPEST:  # the branch that says least ends soonest, unless it is a reference
            return min(others, key=lambda branch: ("$ref" in branch, len(str(branch))))
        return others[pick // 4 % len(others)]

    def _kind(self, kinds: list[str], path: str, depth: int) -> str:
        pick = self._number(path + "?")
        others = [kind for kind in kinds if kind != "null"]
        if "null" in kinds and (not others or depth > DEEPEST or pick % 4 == 0):
            return "null"
        return others[pick // 4 % len(others)]

    def _object(self, schema: dict[str, Any], path: str, depth: int) -> dict[str, Any]:
        required = set(schema.get("required", ()))
        made: dict[str, Any] = {}
        for name, part in schema.get("properties", {}).items():
            at = f"{path}/{name}"
            if name in required or (depth <= DEEPEST and self._number(at + "!") % 4):
                made[name] = self._value(part, at, depth + 1)
        for name in required - made.keys():
            made[name] = self._value(schema.get("additionalProperties", {}), f"{path}/{name}", depth + 1)
        return made

    def _array(self, schema: dict[str, Any], path: str, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        most = schema.get("maxItems", max(least, 3))
        length = least if depth > DEEPEST else least + self._number(path + "#") % (most - least + 1)
        first = schema.get("prefixItems", [])
        items = schema.get("items", {})
        if items is False:
            length = min(length, len(first))
        made: list[Any] = []
        for n in range(length):
            made.append(self._value(first[n] if n < len(first) else items, f"{path}/{n}", depth + 1))
            salt = 0
            while schema.get("uniqueItems") and made[-1] in made[:-1]:
                salt += 1
                if salt > 1000:  # a small enum has no more values: a shorter array is all there is
                    made.pop()
                    return made
                made[-1] = self._value(items, f"{path}/{n}~{salt}", depth + 1)
        return made

    def _bounds(self, schema: dict[str, Any], step: float) -> tuple[float, float]:
        low, high = schema.get("minimum"), schema.get("maximum")
        if "exclusiveMinimum" in schema:
            low = schema["exclusiveMinimum"] + step
        if "exclusiveMaximum" in schema:
            high = schema["exclusiveMaximum"] - step
        if low is None:
            low = 0 if high is None else min(0, high)
        if high is None:
            high = low + 100
        return low, high

    def _integer(self, schema: dict[str, Any], path: str, _depth: int) -> int:
        step = int(schema.get("multipleOf", 1))
        low, high = self._bounds(schema, 1)
        first, last = -(-int(low) // step), int(high) // step
        if last < first:
            raise UnsupportedSchema(f"no integer fits at {path or '/'}")
        return (first + self._number(path) % (last - first + 1)) * step

    def _float(self, schema: dict[str, Any], path: str, _depth: int) -> float:
        if "multipleOf" in schema:
            step = float(schema["multipleOf"])
            low, high = self._bounds(schema, step)
            return (int(low / step) + self._number(path) % (int(high / step) - int(low / step) + 1)) * step
        low, high = self._bounds(schema, 0.001)
        return round(low + (high - low) * (self._number(path) % 1001) / 1000, 6)

    def _string_at(self, schema: dict[str, Any], path: str, _depth: int) -> str:
        return self._string(schema, path)

    def _string(self, schema: dict[str, Any], path: str) -> str:
        least = schema.get("minLength", 0)
        most = schema.get("maxLength")
        if "pattern" in schema:
            return self._from_pattern(schema["pattern"], path)
        if "format" in schema:
            return self._from_format(schema["format"], path)
        if self._echo is not None:
            text, self._echo = self._echo, None
        else:
            pick = self._number(path)
            text = " ".join(WORDS[(pick >> 6 * n) % len(WORDS)] for n in range(1 + pick % 4))
        while len(text) < least:
            text += f" {WORDS[len(text) % len(WORDS)]}"
        return text if most is None else text[:most]

    def _from_format(self, name: str, path: str) -> str:
        pick = self._number(path)
        moment = datetime(2020, 1, 1, tzinfo=UTC) + timedelta(seconds=pick % 200_000_000)
        made = {
            "date-time": moment.isoformat().replace("+00:00", "Z"),
            "date": moment.date().isoformat(),
            "time": moment.time().isoformat() + "Z",
            "duration": f"PT{pick % 1000}S",
            "email": f"user{pick % 1000}@example.com",
            "hostname": f"host{pick % 1000}.example.com",
            "uri": f"https://example.com/{pick % 1000}",
            "ipv4": f"192.0.2.{pick % 256}",
            "ipv6": f"2001:db8::{pick % 65536:x}",
            "uuid": str(UUID(bytes=blake2b(path.encode(), key=self._seed, digest_size=16).digest(), version=4)),
        }.get(name)
        if made is None:
            raise UnsupportedSchema(f"format {name!r} at {path or '/'}")
        return made

    def _from_pattern(self, pattern: str, path: str) -> str:
        parsed: Any = pattern_parser.parse(pattern)
        text = self._sequence(parsed, path)
        if re.search(pattern, text) is None:
            raise UnsupportedSchema(f"pattern {pattern!r} at {path or '/'}")
        return text

    def _piece(self, op: Any, argument: Any, path: str) -> str:
        pick = self._number(path)
        if op is pattern_ops.LITERAL:
            return chr(argument)
        if op is pattern_ops.ANY:
            return "x"
        if op is pattern_ops.AT:
            return ""
        if op is pattern_ops.IN:
            head, value = argument[pick % len(argument)]
            if head is pattern_ops.LITERAL:
                return chr(value)
            if head is pattern_ops.RANGE:
                return chr(value[0] + pick // 64 % (value[1] - value[0] + 1))
            if head is pattern_ops.CATEGORY:
                return {pattern_ops.CATEGORY_DIGIT: str(pick % 10), pattern_ops.CATEGORY_SPACE: " "}.get(value, "w")
        if op in (pattern_ops.MAX_REPEAT, pattern_ops.MIN_REPEAT):
            least, most, inner = argument
            times = least + pick % (min(most, least + 3) - least + 1)
            return "".join(self._sequence(inner, f"{path}/{n}") for n in range(times))
        if op is pattern_ops.SUBPATTERN:
            return self._sequence(argument[3], path)
        if op is pattern_ops.BRANCH:
            return self._sequence(argument[1][pick % len(argument[1])], path)
        raise UnsupportedSchema(f"pattern operation {op} at {path}")

    def _sequence(self, parsed: Any, path: str) -> str:
        return "".join(self._piece(op, argument, f"{path}~{n}") for n, (op, argument) in enumerate(parsed))
