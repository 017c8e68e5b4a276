"""What a key covers, and what it must not."""

from __future__ import annotations

import dataclasses
from hashlib import sha256
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise.errors import BadParams
from lotwise.key import keys, spec_digest, spec_from_json, spec_json
from lotwise.render import Template, render
from lotwise.request import Purpose, Spec
from lotwise.schema import Schema

SPEC = Spec(
    provider="anthropic",
    model="claude-haiku-4-5",
    system="Be brief.",
    examples=(("2 + 2", '{"n":4}'),),
    wire_schema='{"type":"object"}',
    params={"temperature": 0.5, "stop": ["a", "b"]},
)

FLIPS: dict[str, dict[str, Any]] = {
    "provider": {"provider": "openai"},
    "model": {"model": "claude-haiku-4-6"},
    "model and provider cut elsewhere": {"provider": "anthropic:claude", "model": "haiku-4-5"},
    "model digest": {"model_digest": "ab"},
    "system": {"system": "Be brief. "},
    "no system": {"system": None},
    "empty system": {"system": ""},
    "example input": {"examples": (("2+2", '{"n":4}'),)},
    "example answer": {"examples": (("2 + 2", '{"n": 4}'),)},
    "no examples": {"examples": ()},
    "example twice": {"examples": (("2 + 2", '{"n":4}'),) * 2},
    "schema": {"wire_schema": '{"type": "object"}'},
    "no schema": {"wire_schema": None},
    "parameter": {"params": {"temperature": 0.6, "stop": ["a", "b"]}},
    "order of a list parameter": {"params": {"temperature": 0.5, "stop": ["b", "a"]}},
    "parameter set to none": {"params": {"temperature": 0.5, "stop": ["a", "b"], "top_p": None}},
    "no parameters": {"params": {}},
    "max_tokens": {"max_tokens": 1025},
    "repeat": {"repeat": 1},
    "name of the asking": {"anew": "october"},
    "purpose": {"purpose": Purpose.GOLDEN},
}


def key_of(spec: Spec, content: str = "hello") -> str:
    return str(keys(spec_digest(spec), pl.Series([content])).item())


@pytest.mark.parametrize("change", FLIPS.values(), ids=FLIPS.keys())
def test_each_thing_that_can_change_the_answer_is_in_the_key(change: dict[str, Any]) -> None:
    assert key_of(dataclasses.replace(SPEC, **change)) != key_of(SPEC)


def test_the_flips_name_every_field_of_a_spec() -> None:
    flipped = {name for change in FLIPS.values() for name in change}
    assert flipped == {each.name for each in dataclasses.fields(Spec)}


def test_all_flips_are_told_apart() -> None:
    digests = {spec_digest(dataclasses.replace(SPEC, **change)) for change in FLIPS.values()}
    assert len(digests) == len(FLIPS)


def test_property_order_of_the_schema_is_in_the_key() -> None:
    one, other = Schema.of({"a": str, "b": bool}), Schema.of({"b": bool, "a": str})
    keys_ = {key_of(dataclasses.replace(SPEC, wire_schema=each.wire)) for each in (one, other)}
    assert len(keys_) == 2


def test_order_of_parameters_is_not_in_the_key() -> None:
    swapped = dataclasses.replace(SPEC, params={"stop": ["a", "b"], "temperature": 0.5})
    assert spec_digest(swapped) == spec_digest(SPEC)


def test_a_rule_that_is_not_sent_is_not_in_the_key() -> None:
    loose, tight = ({"type": "object", "properties": {"n": {"type": "integer", "maximum": m}}} for m in (900, 100))
    assert Schema.of(loose).wire == Schema.of(tight).wire


FRAME = pl.DataFrame({"a": ["x", "y", None], "b": [1, 2, 3], "other": [0.1, 0.2, 0.3]})
PROMPT = Template.parse("{a} and {b}")


def frame_keys(frame: pl.DataFrame) -> list[str | None]:
    return keys(spec_digest(SPEC), render(frame, PROMPT)).to_list()


def test_key_ignores_column_order() -> None:
    assert frame_keys(FRAME.select("b", "other", "a")) == frame_keys(FRAME)


def test_key_ignores_row_order() -> None:
    assert frame_keys(FRAME.reverse()) == frame_keys(FRAME)[::-1]


def test_key_ignores_columns_that_the_prompt_does_not_use() -> None:
    assert frame_keys(FRAME.with_columns(other=pl.lit("changed"), new=1)) == frame_keys(FRAME)


def test_a_skipped_row_has_no_key() -> None:
    assert frame_keys(FRAME)[2] is None


def test_no_rows_give_no_keys_of_the_right_dtype() -> None:
    found = keys(spec_digest(SPEC), pl.Series([], dtype=pl.String))
    assert (found.dtype, len(found), found.name) == (pl.String, 0, "key")


@given(st.lists(st.none() | st.text(), max_size=20))
def test_keys_are_sha256_over_digest_and_utf8_of_the_content(contents: list[str | None]) -> None:
    digest = spec_digest(SPEC)
    wanted = [None if each is None else sha256(digest.encode() + each.encode()).hexdigest()[:40] for each in contents]
    assert keys(digest, pl.Series(contents, dtype=pl.String)).to_list() == wanted


def test_a_short_digest_is_refused_since_its_end_could_be_taken_for_content() -> None:
    with pytest.raises(ValueError, match="64 hex"):
        keys("abc", pl.Series(["x"]))


def test_the_canonical_form_is_pinned() -> None:
    assert key_of(SPEC) == "709788f72056d55b93db84ebf3279870f1bcd366", (
        "The canonical form of a spec or the framing of its content changed: every ledger out there would be asked "
        "for anew and paid again. If that is meant, raise KEY_VERSION, keep the old form for looking up, and pin the "
        "new key here; if not, undo it."
    )


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(
    system=st.none() | st.text(),
    params=st.dictionaries(st.text(max_size=5), JSON_VALUES, max_size=4),
    repeat=st.integers(0, 9),
    anew=st.none() | st.text(),
    purpose=st.sampled_from(list(Purpose)),
)
def test_a_spec_read_back_has_the_same_digest(
    system: str | None, params: dict[str, Any], repeat: int, purpose: Purpose, anew: str | None
) -> None:
    spec = dataclasses.replace(SPEC, system=system, params=params, repeat=repeat, purpose=purpose, anew=anew)
    back = spec_from_json(spec_json(spec))
    assert spec_digest(back) == spec_digest(spec)
    assert back == spec


def test_a_spec_of_another_key_version_is_refused() -> None:
    with pytest.raises(ValueError, match="key version 0"):
        spec_from_json(spec_json(SPEC).replace('"key_version":1', '"key_version":0'))


@pytest.mark.parametrize(
    ("params", "path"),
    [
        ({"temperature": float("nan")}, "params.temperature"),
        ({"a": {"b": [1, {2}]}}, "params.a.b[1]"),
        ({"a": {1: 2}}, "params.a"),
        ({"stop": "\ud800"}, "params.stop"),
        ({"a": {"$int": "1"}}, "params.a"),
    ],
    ids=["not a number", "set", "key that is no text", "lone surrogate", "reserved name"],
)
def test_a_parameter_without_a_json_form_is_refused_with_its_path(params: dict[str, Any], path: str) -> None:
    with pytest.raises(BadParams) as caught:
        spec_digest(dataclasses.replace(SPEC, params=params))
    assert caught.value.path == path


def test_a_local_model_counts_by_its_name_and_digest_and_not_by_where_it_lies() -> None:
    here = dataclasses.replace(SPEC, provider="vllm", model="/models/small", model_digest="ab")

    assert spec_digest(dataclasses.replace(here, model="/elsewhere/small/")) == spec_digest(here)
    assert spec_digest(dataclasses.replace(here, model="/models/large")) != spec_digest(here)
    assert spec_digest(dataclasses.replace(here, model_digest="cd")) != spec_digest(here)
    assert spec_digest(dataclasses.replace(here, model="small", model_digest=None)) != spec_digest(
        dataclasses.replace(here, model="/models/small", model_digest=None)
    )
