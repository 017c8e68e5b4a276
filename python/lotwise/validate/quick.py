"""The quick way to accept an answer: a decoder made for the schema, and a proof that it hid nothing.

It only ever accepts. A `Quick` exists for schemas of a small language in which what the decoder takes, the JSON Schema
takes too and the columns hold. An answer is accepted if its value, written again, is the answer but for spaces: then
each property was there once, in the schema's order, and each number and text is spelled as it would be written. All
else, good or bad, is left to the patient way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import polars as pl

from lotwise.schema import Schema
from lotwise.validate.parse import is_blank

_NOTES = frozenset(
    {"$comment", "$defs", "$schema", "default", "definitions", "deprecated", "description", "examples", "title"}
)
"""Words of a JSON Schema that rule nothing."""

_DEPTH = 20
"""Nested objects and lists of a schema that is read here; deeper ones are rare."""

_BOUNDS = {"minimum": "ge", "exclusiveMinimum": "gt", "maximum": "le", "exclusiveMaximum": "lt"}
"""JSON Schema's words for bounds, and the decoder's."""

_LEAST, _MOST = -(2**63), 2**63 - 1
"""The integers that the decoder compares with."""
_WIDEST = 2**64
"""Bounds beyond this are not read."""
_EXACT = 2**53
"""Integers up to this size are the same as floats."""
_FLOAT32 = 3.4e38
"""A little less than the greatest number of a Float32 column."""

_DATE = (
    r"^[12][0-9]{3}-((0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])"
    r"|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31)\Z"
)
"""Days of the years 1000 to 2999, but for 29 February."""

_MAYBE_BLANK = r'[:\[,](null|"("|\s|\\))'
"""A null, or a text that is empty or begins with a space or an escape; some inside of texts look like one too."""


class _Declined(Exception):
    """A schema has something that is not read here. Never leaves this module."""


class _Place(NamedTuple):
    """What a decoder takes at one place of a schema, and whether any value of it says something."""

    takes: Any
    says: bool


@dataclass(frozen=True, kw_only=True)
class Quick:
    """Accepts the answers that need no second look. Made by `Quick.of`."""

    _decode: Callable[[str], Any] = field(repr=False)
    _says: bool

    @classmethod
    def of(cls, schema: Schema) -> Quick | None:
        """Make the quick way of a schema; None where there is none."""
        if schema.model is not None or schema.is_text:
            return None
        try:
            root = _object(_ruling(schema.json_schema), pl.Struct(dict(schema.dtypes)), 0)
        except _Declined:
            return None
        return cls(_decode=msgspec.json.Decoder(root.takes).decode, _says=root.says)

    def accept(self, answers: pl.Series) -> pl.Series:
        """Give the values of the answers that are accepted.

        Parameters
        ----------
        answers
            String.

        Returns
        -------
        pl.Series
            String: what the patient way would give as value; null where an answer is not accepted. Of the same height.

        Notes
        -----
        About a microsecond an answer of a hundred bytes.
        """
        decode, encode = self._decode, msgspec.json.Encoder().encode
        written: list[bytes | None] = []
        for text in answers.to_list():
            try:
                written.append(encode(decode(text)))
            except (msgspec.DecodeError, TypeError):
                written.append(None)
        values = pl.Series(written, dtype=pl.Binary).cast(pl.String)
        same = _without_spaces(answers) == _without_spaces(values)
        if not self._says:
            for i in (same & values.str.contains(_MAYBE_BLANK)).arg_true():
                same[i] = not is_blank(msgspec.json.decode(values[i]))
        if same.all(ignore_nulls=False):
            return values
        return values.zip_with(same.fill_null(False), pl.Series([None], dtype=pl.String))


def _without_spaces(texts: pl.Series) -> pl.Series:
    """Take out all that is a space between JSON's tokens, inside of texts too; where tokens end stays the same."""
    for space in " \n\r\t":
        if texts.str.contains(space, literal=True).any():
            texts = texts.str.replace_all(space, "", literal=True)
    return texts


def _place(rules: Any, dtype: pl.DataType, depth: int) -> _Place:
    """Translate one place; the dtype may hold less than the rules allow."""
    rules = _ruling(rules)
    if set(rules) == {"anyOf"}:
        branches = [_ruling(each) for each in rules["anyOf"]]
        inner = [each for each in branches if each != {"type": "null"}]
        if len(inner) != 1:
            raise _Declined
        return _or_null(_place(inner[0], dtype, depth), len(branches) > 1)
    if "const" in rules and "enum" not in rules:
        rules["enum"] = [rules.pop("const")]
    kinds = rules.get("type")
    nullable = False
    if isinstance(kinds, list):
        nullable, kinds = "null" in kinds, [each for each in kinds if each != "null"]
        if len(kinds) != 1:
            raise _Declined
        rules = {**rules, "type": kinds[0]}
    if "enum" in rules:
        return _enum(rules, dtype, nullable)
    kind = rules.get("type", "object" if "properties" in rules else "array" if "items" in rules else None)
    translate = {"object": _object, "array": _array}.get(kind)
    if translate is not None:
        return _or_null(translate(rules, dtype, depth + 1), nullable)
    scalar = {"string": _string, "integer": _integer, "number": _number, "boolean": _boolean}.get(kind)
    if scalar is None:
        raise _Declined
    return _or_null(scalar(rules, dtype), nullable)


def _object(rules: Mapping[str, Any], dtype: pl.DataType, depth: int) -> _Place:
    _only(rules, "type", "properties", "required", "additionalProperties")
    if not isinstance(dtype, pl.Struct) or depth > _DEPTH or rules.get("type", "object") != "object":
        raise _Declined
    inner = {each.name: each.dtype for each in dtype.fields}
    required = set(rules.get("required", ()))
    if list(inner) != list(rules.get("properties", ())):
        raise _Declined
    # Two names that differ by spaces only would look the same without them; the decoder knows no name with escapes.
    if len({name.replace(" ", "") for name in inner}) < len(inner) or any(map(_needs_escape, inner)):
        raise _Declined
    fields, says = [], False
    for i, (name, each) in enumerate(rules["properties"].items()):
        place = _or_null(_place(each, _dtype(inner[name]), depth), name not in required)
        fields.append((f"f{i}", place.takes))
        says = says or place.says
    names = {f"f{i}": name for i, name in enumerate(inner)}
    # An optional property is asked for nonetheless: where it is absent, the patient way adds it.
    made = msgspec.defstruct("Answer", fields, rename=names, forbid_unknown_fields=True, gc=False)
    return _Place(made, says)


def _array(rules: Mapping[str, Any], dtype: pl.DataType, depth: int) -> _Place:
    _only(rules, "type", "items", "minItems", "maxItems")
    if not isinstance(dtype, (pl.List, pl.Array)) or depth > _DEPTH:
        raise _Declined
    least, most = _length(rules, "minItems"), _length(rules, "maxItems")
    if isinstance(dtype, pl.Array) and not least == most == dtype.shape[0]:
        raise _Declined
    item = _place(rules.get("items"), _dtype(dtype.inner), depth)
    # An empty list says "none", and others as much as their items.
    return _Place(Annotated[list[item.takes], msgspec.Meta(min_length=least, max_length=most)], item.says)  # type: ignore[name-defined]


def _enum(rules: Mapping[str, Any], dtype: pl.DataType, nullable: bool) -> _Place:
    _only(rules, "type", "enum")
    values = [each for each in rules["enum"] if each is not None]
    kind = rules.get("type")
    if values and all(type(each) is str for each in values) and kind in (None, "string"):
        held = isinstance(dtype, pl.Enum) and set(values) <= set(dtype.categories)
        says = not any(not each or each.isspace() for each in values)
    elif values and all(type(each) is int for each in values) and kind in (None, "integer", "number"):
        low, high = _held(dtype)
        held, says = all(low <= each <= high for each in values), True
    else:
        raise _Declined
    if not held:
        raise _Declined
    has_null = None in rules["enum"] and (nullable or kind is None)
    return _or_null(_Place(Literal[tuple(values)], says), has_null)


def _string(rules: Mapping[str, Any], dtype: pl.DataType) -> _Place:
    if rules.get("format") == "date" and isinstance(dtype, pl.Date):
        _only(rules, "type", "format")
        return _Place(Annotated[str, msgspec.Meta(pattern=_DATE)], True)
    _only(rules, "type", "minLength", "maxLength")
    if not isinstance(dtype, pl.String):
        raise _Declined
    least, most = _length(rules, "minLength"), _length(rules, "maxLength")
    return _Place(
        str if least == most is None else Annotated[str, msgspec.Meta(min_length=least, max_length=most)], False
    )


def _integer(rules: Mapping[str, Any], dtype: pl.DataType) -> _Place:
    _only(rules, "type", *_BOUNDS)
    whole = _whole_numbers(rules, *_held(dtype))
    if whole is None:
        raise _Declined
    return _Place(whole, True)


def _number(rules: Mapping[str, Any], dtype: pl.DataType) -> _Place:
    _only(rules, "type", *_BOUNDS)
    if not dtype.is_float():
        raise _Declined
    bounds = {_BOUNDS[word]: bound for word in _BOUNDS if (bound := _bound(rules, word)) is not None}
    if (
        {"ge", "gt"} <= set(bounds)
        or {"le", "lt"} <= set(bounds)
        or any(float(each) != each for each in bounds.values())
    ):
        raise _Declined
    if isinstance(dtype, pl.Float32):
        if bounds:
            raise _Declined
        bounds = {"ge": -_FLOAT32, "le": _FLOAT32}
    fractions = Annotated[float, msgspec.Meta(**{short: float(bound) for short, bound in bounds.items()})]
    whole = _whole_numbers(rules, *_held(dtype))
    return _Place(fractions if whole is None else whole | fractions, True)


def _boolean(rules: Mapping[str, Any], dtype: pl.DataType) -> _Place:
    _only(rules, "type")
    if not isinstance(dtype, pl.Boolean):
        raise _Declined
    return _Place(bool, True)


def _whole_numbers(rules: Mapping[str, Any], low: int, high: int) -> Any:
    """Take the integers from `low` to `high` that the rules' bounds allow; None if there are none."""
    for word in _BOUNDS:
        bound = _bound(rules, word)
        if bound is None:
            continue
        if word == "minimum":
            low = max(low, math.ceil(bound))
        elif word == "exclusiveMinimum":
            low = max(low, math.floor(bound) + 1)
        elif word == "maximum":
            high = min(high, math.floor(bound))
        else:
            high = min(high, math.ceil(bound) - 1)
    return None if low > high else Annotated[int, msgspec.Meta(ge=low, le=high)]


def _held(dtype: pl.DataType) -> tuple[int, int]:
    """Give the least and the greatest integer that a column and the decoder hold exactly."""
    if dtype.is_float():
        return -_EXACT, _EXACT
    if not isinstance(dtype, pl.datatypes.IntegerType):
        raise _Declined
    low, high = pl.select(low=dtype.min(), high=dtype.max()).row(0)
    return max(low, _LEAST), min(high, _MOST)


def _bound(rules: Mapping[str, Any], word: str) -> int | float | None:
    """Read a bound; the first drafts of JSON Schema have Booleans there."""
    if word not in rules:
        return None
    bound: int | float = rules[word]
    if type(bound) not in (int, float) or not -_WIDEST <= bound <= _WIDEST:
        raise _Declined
    return bound


def _length(rules: Mapping[str, Any], word: str) -> int | None:
    if word not in rules:
        return None
    length: int = rules[word]
    if type(length) is not int or length > _MOST:
        raise _Declined
    return length


def _or_null(place: _Place, nullable: bool) -> _Place:
    return _Place(place.takes | None, False) if nullable else place


def _ruling(rules: Any) -> dict[str, Any]:
    """Leave out the words that rule nothing."""
    if not isinstance(rules, Mapping):
        raise _Declined
    return {word: each for word, each in rules.items() if word not in _NOTES}


def _only(rules: Mapping[str, Any], *words: str) -> None:
    """Decline a place with other words than these."""
    if not set(rules) <= set(words):
        raise _Declined


def _needs_escape(name: str) -> bool:
    return any(character in '"\\' or character < " " for character in name)


def _dtype(dtype: Any) -> pl.DataType:
    """Give the instance of a dtype that may stand as a class inside another."""
    return dtype if isinstance(dtype, pl.DataType) else dtype()
