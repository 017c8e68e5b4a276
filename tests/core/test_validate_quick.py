"""The quick way to accept an answer says what the patient way says, and takes what well-behaved models write."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from polars.testing import assert_frame_equal

from lotwise.schema import Nullable, Schema
from lotwise.validate import Check, Validator
from lotwise.validate.quick import Quick

FLAT = {
    "type": "object",
    "properties": {
        "category": {"enum": ["bug", "billing"], "description": "what it is about"},
        "urgent": {"type": "boolean"},
        "summary": {"type": "string", "maxLength": 20},
    },
    "required": ["category", "urgent", "summary"],
    "additionalProperties": False,
}
GOOD = '{"category": "bug", "urgent": true, "summary": "it broke"}'


def judged_patiently(validator: Validator, answers: pl.Series) -> pl.DataFrame:
    return dataclasses.replace(validator, _quick=None).judge(answers)


def accepted(schema: Schema, *answers: str) -> list[bool]:
    quick = Quick.of(schema)
    assert quick is not None
    return quick.accept(pl.Series(answers)).is_not_null().to_list()


# --- Schemas and answers at random

NAMES = ["a", "b", " a", "a b", "ab", "é", '"', "^x$", "*"]
TEXTS = [
    "",
    " ",
    "a",
    "b c",
    "bc",
    "\u00a0",
    "\x1f",
    "\n",
    "null",
    '"',
    "\\",
    "2024-02-28",
    "2024-02-30",
    "é",
    "😀😀",
    "\ufeff",
]
NUMBERS = [0, -1, 1, 2, 3, 127, 128, 2**53, 2**53 + 2, 2**63 - 1, 2**63, 2**64, 10**30]
FRACTIONS = [0.0, -0.0, 1.0, 0.5, 1.5, 2.5, 1e5, 1e16, 1e39, 1e300]

bounds = st.dictionaries(
    st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]),
    st.sampled_from([1, 2, 2.0, 1.5, 10**30]),
    max_size=2,
)
lengths = st.dictionaries(st.sampled_from(["minLength", "maxLength"]), st.integers(0, 3), max_size=2)
notes = st.sampled_from([{}, {}, {"description": "d"}, {"title": "t", "default": None}, {"$comment": "c", "x-own": 1}])
leaves = st.one_of(
    st.builds(lambda kind, rules: {"type": kind, **rules}, st.sampled_from(["integer", "number"]), bounds),
    st.builds(lambda rules: {"type": "string", **rules}, lengths),
    st.sampled_from(
        [
            {"type": "boolean"},
            {"type": "string", "format": "date"},
            {"type": "string", "format": "date-time"},
            {"type": "string", "format": "email"},
            {"type": "string", "pattern": "^[a-z]"},
            {"enum": ["a", "b c"]},
            {"enum": ["a", ""], "type": "string"},
            {"enum": ["a", None]},
            {"enum": ["a", None], "type": ["string", "null"]},
            {"enum": ["a", "é"], "const": "é"},
            {"enum": [1, 2], "type": "integer"},
            {"enum": [1, 2.5]},
            {"const": "a"},
        ]
    ),
)


def or_null(rules: dict[str, Any], how: int) -> dict[str, Any]:
    if how == 0 and isinstance(rules.get("type"), str) and "enum" not in rules:
        return {**rules, "type": [rules["type"], "null"]}
    return {"anyOf": [rules, {"type": "null"}]} if how == 1 else rules


def object_of(properties: dict[str, Any], absent: list[str], closed: bool) -> dict[str, Any]:
    required = [name for name in properties if name not in absent]
    return {"type": "object", "properties": properties, "required": required} | (
        {"additionalProperties": False} if closed else {}
    )


def objects(values: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(
        object_of,
        st.dictionaries(st.sampled_from(NAMES), values, min_size=1, max_size=4),
        st.lists(st.sampled_from(NAMES), max_size=2),
        st.booleans(),
    )


places = st.recursive(
    st.builds(lambda rules, note, how: or_null({**rules, **note}, how), leaves, notes, st.integers(0, 4)),
    lambda inner: st.builds(
        or_null,
        objects(inner)
        | st.builds(
            lambda items, rules: {"type": "array", "items": items, **rules},
            inner,
            st.dictionaries(st.sampled_from(["minItems", "maxItems"]), st.integers(0, 2), max_size=1),
        ),
        st.integers(0, 4),
    ),
    max_leaves=4,
)
dtypes = st.recursive(
    st.sampled_from(
        [pl.Int8, pl.Int64, pl.UInt64, pl.Float32, pl.Float64, pl.Boolean, pl.String, pl.Date, pl.Enum(["a", "b c"])]
    ),
    lambda inner: st.builds(pl.List, inner) | st.builds(lambda each: pl.Array(each, 2), inner),
    max_leaves=2,
)
schemas = st.one_of(
    objects(places),
    st.dictionaries(st.sampled_from(NAMES), dtypes | st.builds(Nullable, dtypes), min_size=1, max_size=4),
).map(Schema.of)


def value_of(rules: Any, r: random.Random) -> Any:
    """Make a value that the rules mostly allow."""
    if r.random() < 0.02:
        return r.choice([None, "a", 1, 1.5, True, [], {}, [["a"]]])
    if "anyOf" in rules:
        return None if r.random() < 0.3 else value_of(rules["anyOf"][0], r)
    if "enum" in rules or "const" in rules:
        return r.choice(rules.get("enum") or [rules["const"]])
    kinds = rules["type"] if isinstance(rules["type"], list) else [rules["type"]]
    kind = r.choice(kinds)
    if kind == "object":
        names = list(rules["properties"])
        dropped = [name for name in names if name not in rules["required"] and r.random() < 0.2]
        return {name: value_of(rules["properties"][name], r) for name in names if name not in dropped}
    if kind == "array":
        least = rules.get("minItems", 0)
        return [value_of(rules["items"], r) for _ in range(r.randint(least, min(least + 2, rules.get("maxItems", 9))))]
    if kind == "string" and "format" in rules and r.random() < 0.8:
        return {"date": f"20{r.randint(10, 30)}-{r.randint(1, 12):02}-{r.randint(1, 31):02}"}.get(
            rules["format"], "2024-02-29T10:20:30Z"
        )
    if kind == "number":
        return r.choice(NUMBERS[:6] + FRACTIONS if r.random() < 0.7 else NUMBERS + FRACTIONS)
    options: dict[str, list[Any]] = {
        "integer": NUMBERS[1:6] if r.random() < 0.7 else NUMBERS,
        "string": TEXTS,
        "boolean": [True, False],
        "null": [None],
    }
    return r.choice(options[kind])


def spelled(value: Any, r: random.Random) -> str:
    """Write a value as a model may: mostly well, at times twice, in another order, cut, fenced or with odd spaces."""
    how = r.random()
    if isinstance(value, dict) and value and how < 0.1:
        names = list(value)
        r.shuffle(names)
        value = {name: value[name] for name in names}
    elif isinstance(value, dict) and value and how < 0.15:
        value = {**value, r.choice(NAMES): r.choice(TEXTS)}
    text = json.dumps(
        value,
        ensure_ascii=r.random() < 0.2,
        separators=r.choice([None, (",", ":"), (" ,\t", " : ")]),
        indent=r.choice([None, None, None, 2]),
    )
    if isinstance(value, dict) and value and 0.15 < how < 0.25:
        name = r.choice(list(value))
        text = f"{text[:-1]},{json.dumps(name)}:{json.dumps(r.choice([value[name], 'a', 1]))}}}"
    elif how < 0.3:
        text = r.choice([f"```json\n{text}\n```", f"So: {text}", text[:-1], text + "}", f" {text}\n", "", "[" * 200])
    elif how < 0.4:
        at = r.randrange(len(text) + 1)
        text = text[:at] + r.choice(' ",:0e.-\n\t\\') + text[at:]
    return text


@given(schemas, st.integers(0, 2**32))
@example(Schema.of({"a": pl.Float32, "b": Nullable(pl.Date)}), 1)
@example(Schema.of(FLAT), 2)
def test_the_quick_way_says_what_the_patient_way_says(schema: Schema, seed: int) -> None:
    r = random.Random(seed)
    answers = pl.Series([spelled(value_of(schema.json_schema, r), r) for _ in range(30)])
    validator = Validator.of(schema)
    assert_frame_equal(validator.judge(answers), judged_patiently(validator, answers))


# --- What is taken, and what is left


@pytest.mark.parametrize(
    "schema",
    [
        FLAT,
        {"category": pl.Enum(["bug", "billing"]), "urgent": pl.Boolean, "summary": pl.String},
        FLAT | {"required": ["category"]},
    ],
    ids=["JSON Schema", "dtypes", "optional properties"],
)
def test_what_well_behaved_models_write_is_taken(schema: Any) -> None:
    value = json.loads(GOOD)
    spellings = [
        GOOD,
        json.dumps(value, separators=(",", ":")),
        json.dumps(value, indent=2),
        f"\n{GOOD} ",
        GOOD.replace("broke", '\\"brökè\\"\\n😀'),
    ]
    assert accepted(Schema.of(schema), *spellings) == [True] * len(spellings)


EVERY = {
    "i": pl.Int8,
    "f": pl.Float64,
    "f32": pl.Float32,
    "d": Nullable(pl.Date),
    "l": pl.List(pl.Struct({"n": pl.UInt64, "s": pl.String})),
    "p": pl.Array(pl.Boolean, 2),
}
EVERY_ANSWER = {"i": -7, "f": 3, "f32": 0.25, "d": "2024-03-31", "l": [{"n": 9, "s": ""}], "p": [True, False]}


@pytest.mark.parametrize("changed", [{}, {"d": None}, {"l": []}, {"f": -1.5}], ids=str)
def test_numbers_dates_lists_and_structs_are_taken(changed: dict[str, Any]) -> None:
    assert accepted(Schema.of(EVERY), json.dumps(EVERY_ANSWER | changed)) == [True]


EDGES: list[dict[str, Any]] = [
    {"i": -128}, {"i": 128}, {"i": -129}, {"f": 2**53 + 1}, {"f": 1e308}, {"f32": 1e39}, {"f32": -3.5e38},
    {"l": [{"n": 2**63, "s": "x"}]}, {"l": [{"n": 2**64, "s": "x"}]}, {"l": [{"n": -1, "s": "x"}]}, {"p": [True]},
    *({"d": f"{year}-{month:02}-{day}"} for year in (2023, 2024) for month in range(14) for day in range(28, 33)),
]  # fmt: skip


def test_at_the_edges_of_the_columns_both_ways_agree() -> None:
    validator = Validator.of(Schema.of(EVERY))
    # Python writes 1e+39 for what the decoder's encoder writes as 1e39.
    answers = pl.Series([json.dumps(EVERY_ANSWER | changed).replace("e+", "e") for changed in EDGES])
    assert_frame_equal(validator.judge(answers), judged_patiently(validator, answers))


@pytest.mark.parametrize(
    "answer",
    [
        GOOD.replace('"urgent": true', '"urgent": true, "urgent": true'),
        '{"urgent": true, "category": "bug", "summary": "it broke"}',
        GOOD.replace("it broke", "it br\\u006fke"),
        GOOD.replace("it broke", "x" * 21),
        GOOD.replace("bug", "bugs"),
        GOOD[:-1] + ', "more": 1}',
        GOOD.replace(', "summary": "it broke"', ""),
        f"Sure: {GOOD}",
        GOOD + GOOD,
    ],
    ids=["twice", "order", "escape", "too long", "enum", "more", "missing", "prose", "two objects"],
)
def test_whatever_else_is_left_to_the_patient_way(answer: str) -> None:
    assert accepted(Schema.of(FLAT), answer) == [False]


@pytest.mark.parametrize(
    "rules",
    [
        {"type": "string", "pattern": "a"},
        {"type": "string", "format": "email"},
        {"type": "integer", "multipleOf": 2},
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "string", "not": {"const": "a"}},
        {"oneOf": [{"type": "string"}, {"type": "null"}]},
        {"enum": ["a", "b"], "const": "a"},
    ],
    ids=lambda rules: list(rules)[-1],
)
def test_a_rule_that_the_decoder_does_not_know_leaves_no_quick_way(rules: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {"a": rules}, "required": ["a"], "additionalProperties": False}
    assert Quick.of(Schema.of(schema)) is None


def test_names_that_differ_by_spaces_only_leave_no_quick_way() -> None:
    assert Quick.of(Schema.of({"a b": str, "ab": str})) is None


def test_an_answer_of_blank_texts_is_not_taken() -> None:
    schema = Schema.of({"a": Nullable(str), "l": pl.List(str)})
    blank = ['{"a":null,"l":[""," "]}', '{"a":"\\n","l":["\u00a0"]}', '{"a":"","l":["\\u001f"]}']
    assert accepted(schema, *blank) == [False] * 3
    assert accepted(schema, '{"a":null,"l":[]}', '{"a":" x","l":[""]}') == [True] * 2


def test_an_answer_that_was_cut_off_is_not_taken() -> None:
    frame = Validator.of(Schema.of(FLAT)).judge(pl.Series([GOOD, GOOD]), pl.Series(["truncated", "ok"]))
    assert frame["code"].to_list() == ["truncated", None]


# --- Rules of check=

CHECKS: dict[str, Check | list[Callable[..., Any]]] = {
    "expression over all": (pl.col("n") >= pl.col("n").mean()).alias("above_mean"),
    "function": lambda value: value["n"] > 2,
    "both": [(pl.col("n") != 3).alias("not_three"), lambda value: "odd" if value["n"] % 2 else True],  # type: ignore[list-item]
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS.keys())
def test_rules_see_quick_and_patient_answers_together(check: Any) -> None:
    validator = Validator.of(Schema.of({"n": int, "s": str}), check)
    answers = pl.Series(
        ['{"n":1,"s":"x"}', 'So: {"n":2,"s":"x"}', "no", '{"s":"x","n":3}', '{"n":40,"s":"x"}', '{"n":9e30,"s":"x"}']
    )
    frame = validator.judge(answers)
    assert_frame_equal(frame, judged_patiently(validator, answers))
    assert {None, "check_failed", "invalid_json"} <= set(frame["code"])
    assert frame["lenient"].to_list() == [False, True, False, False, False, False]
