"""The emulated model and clock are pure: the same body gives the same answer, which satisfies its schema."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator import Faults, RowFault
from emulator.answers import Dialect, UnsupportedSchema, answer_text, body_digest, input_tokens
from emulator.clock import Clock
from emulator.faults import BILLED, OUTCOMES, RowFate, RowFates
from emulator.model import NATIVE, run
from emulator.records import key_part
from emulator.schema_values import SchemaValues
from emulator.sdk import SCHEMA, chat_body, message_body, responses_body
from emulator.timeline import Plan, Stage, row_time, standing

NESTED: dict[str, Any] = {
    "$defs": {"tag": {"type": "string", "enum": ["a", "b"]}},
    "type": "object",
    "properties": {
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 2},
        "unique": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "uniqueItems": True},
        "pair": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "boolean"}], "items": False},
        "count": {"type": "integer", "minimum": -3, "exclusiveMaximum": 4},
        "even": {"type": "integer", "multipleOf": 2, "minimum": 1, "maximum": 9},
        "share": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "maybe": {"type": ["integer", "null"]},
        "either": {"oneOf": [{"const": "x"}, {"type": "integer", "minimum": 5}]},
        "both": {"allOf": [{"type": "string"}, {"minLength": 30, "maxLength": 40}]},
        "code": {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,5}(x|yz)?$"},
        "at": {"type": "string", "format": "date-time"},
        "id": {"type": "string", "format": "uuid"},
        "optional": {"type": "string"},
    },
    "required": [
        "tags",
        "unique",
        "pair",
        "count",
        "even",
        "share",
        "maybe",
        "either",
        "both",
        "code",
        "at",
        "id",
    ],
    "additionalProperties": False,
}
TREE: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
    "required": ["name", "next"],
    "additionalProperties": False,
}
BODIES: dict[Dialect, Any] = {"chat": chat_body, "responses": responses_body, "messages": message_body}
dialects = pytest.mark.parametrize("dialect", BODIES)


@dialects
@pytest.mark.parametrize("schema", [SCHEMA, NESTED, TREE], ids=["flat", "nested", "recursive"])
@given(text=st.text())
def test_answer_satisfies_the_schema_on_the_wire(dialect: Dialect, schema: dict[str, Any], text: str) -> None:
    answer = json.loads(answer_text(BODIES[dialect](text, schema), dialect))
    assert jsonschema_rs.validator_for(schema, validate_formats=True).is_valid(answer), answer


def test_answers_take_every_value_of_an_enum_and_null() -> None:
    answers = [json.loads(answer_text(chat_body(f"row {n}"), "chat")) for n in range(200)]
    assert {answer["category"] for answer in answers} == {"billing", "bug", "how-to", "other"}
    assert {answer["urgent"] for answer in answers} == {True, False}
    assert {answer["score"] is None for answer in answers} == {True, False}


@dialects
def test_answer_depends_on_the_users_text_alone(dialect: Dialect) -> None:
    body = BODIES[dialect]("the same")
    assert answer_text(body, dialect) == answer_text({**body, "temperature": 1}, dialect)
    assert answer_text(body, dialect) != answer_text(BODIES[dialect]("another"), dialect)


@dialects
@pytest.mark.parametrize("text", ["hello", "", "Größe 見本 \u2028", "a" * 10_000])
def test_answer_without_a_schema_is_the_users_text(dialect: Dialect, text: str) -> None:
    assert answer_text(BODIES[dialect](text, None), dialect) == text


@dialects
def test_echo_puts_the_users_text_into_the_first_free_string(dialect: Dialect) -> None:
    answer = json.loads(answer_text(BODIES[dialect]("my own text"), dialect, echo=True))
    assert answer["note"] == "my own text"


def test_text_parts_count_as_the_users_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    body = {"model": "m", "input": [{"role": "system", "content": "no"}, {"role": "user", "content": parts}]}
    assert answer_text(body, "responses") == "a\nb"


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "string", "format": "isbn"}, id="unknown format"),
        pytest.param({"$ref": "http://example.com/x"}, id="external reference"),
        pytest.param({"type": "integer", "minimum": 5, "maximum": 4}, id="empty range"),
        pytest.param({"type": "string", "pattern": "(?=a)b"}, id="pattern with a lookahead"),
    ],
)
def test_schema_without_a_makeable_value_is_refused_by_name(schema: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedSchema):
        SchemaValues(schema, b"seed").value()


def test_body_digest_ignores_key_order_and_nothing_else() -> None:
    assert body_digest({"a": 1, "b": 2}) == body_digest({"b": 2, "a": 1})
    assert body_digest({"a": 1}) != body_digest({"a": 1.5})


@given(text=st.text(max_size=200), cap=st.integers(1, 50), worst=st.booleans())
def test_usage_stays_within_bytes_in_and_the_cap_out(text: str, cap: int, worst: bool) -> None:
    faults = Faults(usage="worst" if worst else "typical")
    body = message_body(text or "x", max_tokens=cap)
    result = run(body, "messages", RowFate(), faults)
    sent = len(json.dumps(body, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    assert 1 <= result.tokens.input <= sent
    assert 1 <= result.tokens.output <= cap
    assert result.tokens.input == input_tokens(body, "messages", worst=worst)


def test_answer_over_its_cap_is_truncated_and_billed_at_the_cap() -> None:
    result = run(chat_body("x" * 100, None, max_completion_tokens=10), "chat", RowFate(), Faults())
    assert (result.outcome, result.text, result.tokens.output) == ("truncated", "x" * 40, 10)


@dialects
def test_wrong_answer_satisfies_the_schema_and_is_not_the_models(dialect: Dialect) -> None:
    holds = jsonschema_rs.validator_for(SCHEMA).is_valid
    for n in range(50):
        body = BODIES[dialect](f"row {n}")
        right, wrong = (json.loads(run(body, dialect, RowFate(outcome=o), Faults()).text) for o in ("ok", "wrong"))
        assert holds(wrong)
        assert wrong != right


def test_wrong_answer_without_a_schema_is_another_text() -> None:
    assert run(chat_body("x", None), "chat", RowFate(outcome="wrong"), Faults()).text == "not x"


@dialects
@pytest.mark.parametrize("outcome", sorted(OUTCOMES))
def test_every_outcome_ends_as_itself_or_as_the_providers_nearest(dialect: Dialect, outcome: str) -> None:
    result = run(BODIES[dialect]("x"), dialect, RowFate(outcome=outcome), Faults())
    assert result.outcome == NATIVE[dialect].get(outcome, outcome)
    assert result.billed == (result.outcome in BILLED) == (result.tokens.output > 0)


@pytest.mark.parametrize(
    ("dialect", "body", "parameter"),
    [
        pytest.param("messages", {**message_body("x"), "max_tokens": None}, "max_tokens", id="no max_tokens"),
        pytest.param("messages", message_body("x", max_tokens=0), "max_tokens", id="max_tokens of 0"),
        pytest.param("chat", {"model": "m", "messages": []}, "messages", id="no messages"),
        pytest.param("chat", {"messages": [{"role": "user", "content": "x"}]}, "model", id="no model"),
        pytest.param("chat", chat_body("x", stream=True), "stream", id="stream"),
        pytest.param("chat", chat_body("x", {"type": "array", "items": {}}), "schema", id="root not an object"),
        pytest.param("chat", chat_body("x", {**SCHEMA, "required": []}), "schema", id="optional property"),
        pytest.param("chat", chat_body("x", {**SCHEMA, "additionalProperties": True}), "schema", id="open object"),
        pytest.param(
            "messages",
            message_body("x", {"type": "integer", "minimum": 1}),
            "schema",
            id="minimum at Anthropic",
        ),
        pytest.param("messages", message_body("x", {"type": "object"}), "schema", id="open object at Anthropic"),
    ],
)
def test_request_outside_the_contract_is_a_bad_request(dialect: Dialect, body: Any, parameter: str) -> None:
    result = run(body, dialect, RowFate(), Faults())
    assert (result.outcome, result.parameter, result.billed) == ("bad_request", parameter, False)


def test_refused_parameter_and_unknown_model_are_named() -> None:
    faults = Faults(refused_parameters=("temperature",), models=("m",))
    refused = run(chat_body("x", temperature=0), "chat", RowFate(), faults)
    assert (refused.outcome, refused.parameter) == ("bad_request", "temperature")
    unknown = run({**chat_body("x"), "model": "other"}, "chat", RowFate(), faults)
    assert unknown.outcome == "model_not_found"
    assert run(chat_body("x"), "chat", RowFate(), faults).outcome == "ok"


def fates(*faults: RowFault, seed: int = 0, keys: int = 20_000) -> list[RowFate]:
    decide = RowFates(Faults(seed=seed, rows=faults))
    return [decide.fate(custom_id=f"c-{n}", key=f"k-{n}", text="", tier="batch", occurrence=0) for n in range(keys)]


def test_fractions_hit_their_share_of_keys_and_never_overlap() -> None:
    found = fates(
        RowFault(kind="refused", fraction=0.02),
        RowFault(kind="truncated", fraction=0.03),
        RowFault(kind="torn", fraction=0.05),
    )
    outcomes = [fate.outcome for fate in found]
    # Four standard deviations of a binomial count over 20,000 keys.
    assert abs(outcomes.count("refused") - 400) < 80
    assert abs(outcomes.count("truncated") - 600) < 97
    assert abs([fate.delivery for fate in found].count("torn") - 1000) < 124


def test_seed_decides_which_keys_a_fraction_hits() -> None:
    fault = RowFault(kind="refused", fraction=0.5)
    assert fates(fault, keys=100) == fates(fault, keys=100)
    assert fates(fault, keys=100) != fates(fault, seed=1, keys=100)


@pytest.mark.parametrize(
    ("fault", "hit"),
    [
        pytest.param(RowFault(kind="refused"), True, id="no selector"),
        pytest.param(RowFault(kind="refused", ids=("k",)), True, id="by key part"),
        pytest.param(RowFault(kind="refused", ids=("c-k",)), True, id="by custom id"),
        pytest.param(RowFault(kind="refused", ids=("other",)), False, id="another id"),
        pytest.param(RowFault(kind="refused", marker="BAD"), True, id="by marker"),
        pytest.param(RowFault(kind="refused", marker="GOOD"), False, id="another marker"),
        pytest.param(RowFault(kind="refused", tier="sync"), False, id="another tier"),
        pytest.param(RowFault(kind="refused", times=1), True, id="first occurrence"),
        pytest.param(RowFault(kind="refused", times=0), False, id="no more occurrences"),
    ],
)
def test_selector_decides_whether_a_row_is_hit(fault: RowFault, hit: bool) -> None:
    fate = RowFates(Faults(rows=(fault,))).fate(custom_id="c-k", key="k", text="a BAD row", tier="batch", occurrence=0)
    assert (fate.outcome == "refused") == hit


def test_unknown_names_of_faults_are_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown row fault 'refusd'.*refused"):
        RowFault(kind="refusd")
    with pytest.raises(ValueError, match=r"unknown fault setting 'speed'.*seed"):
        Faults.from_json({"speed": 1})


def test_faults_survive_their_way_as_json() -> None:
    faults = Faults(rows=(RowFault(kind="torn", ids=("a",)),), models=("m",), projects={"k": "p"})
    assert Faults.from_json(json.loads(json.dumps(faults.to_json()))) == faults


@pytest.mark.parametrize(
    ("custom_id", "key"),
    [
        ("0123456789abcdef-k1", "k1"),
        ("0123456789abcdef-" + "a" * 40, "a" * 40),
        ("r-1", "r-1"),
        ("0123456789abcde-k1", "0123456789abcde-k1"),
    ],
)
def test_key_part_is_what_follows_a_shard_prefix(custom_id: str, key: str) -> None:
    assert key_part(custom_id) == key


PLAN = Plan(created_at=1000, rows=10, fails=False, validate_s=10, batch_s=100, finalize_s=10, cancel_s=5, window_s=500)


@pytest.mark.parametrize(
    ("plan", "elapsed", "stage", "due"),
    [
        pytest.param(PLAN, 0, "validating", 0, id="just created"),
        pytest.param(PLAN, 10, "in_progress", 0, id="validated"),
        pytest.param(PLAN, 60, "in_progress", 5, id="half way"),
        pytest.param(PLAN, 110, "finalizing", 10, id="all rows done"),
        pytest.param(PLAN, 120, "completed", 10, id="completed"),
        pytest.param(replace(PLAN, fails=True), 9, "validating", 0, id="not yet failed"),
        pytest.param(replace(PLAN, fails=True), 10, "failed", 0, id="failed"),
        pytest.param(replace(PLAN, cancel_at=1060), 61, "cancelling", 5, id="canceling keeps what is done"),
        pytest.param(replace(PLAN, cancel_at=1060), 65, "cancelled", 5, id="canceled"),
        pytest.param(replace(PLAN, cancel_at=1002), 400, "cancelled", 0, id="canceled before validation"),
        pytest.param(replace(PLAN, cancel_at=1300), 400, "completed", 10, id="canceled after the end"),
        pytest.param(replace(PLAN, stall=0.3), 499, "in_progress", 3, id="stalled"),
        pytest.param(replace(PLAN, stall=0.3), 500, "expired", 3, id="expired"),
        pytest.param(replace(PLAN, batch_s=980), 500, "expired", 5, id="too slow for its window"),
        pytest.param(replace(PLAN, finalize_s=900), 600, "finalizing", 10, id="finalizing past the window"),
        pytest.param(replace(PLAN, batch_s=0), 10, "finalizing", 10, id="rows in no time"),
    ],
)
def test_stage_and_rows_due_follow_from_plan_and_time(plan: Plan, elapsed: float, stage: Stage, due: int) -> None:
    seen = standing(plan, plan.created_at + elapsed)
    assert (seen.stage, seen.due) == (stage, due)


@given(
    rows=st.integers(1, 50),
    cancel=st.none() | st.floats(0, 700),
    stall=st.none() | st.floats(0, 1),
    moments=st.lists(st.floats(0, 1000), min_size=2, max_size=6),
)
def test_rows_due_never_go_back_and_final_stages_stay(
    rows: int, cancel: float | None, stall: float | None, moments: list[float]
) -> None:
    plan = replace(PLAN, rows=rows, stall=stall, cancel_at=None if cancel is None else 1000 + cancel)
    seen = [standing(plan, 1000 + moment) for moment in sorted(moments)]
    for before, after in pairwise(seen):
        assert before.due <= after.due <= rows
        assert not before.final or before == after


def test_rows_are_processed_at_an_even_pace() -> None:
    assert [row_time(PLAN, rank) for rank in (0, 4, 9)] == [1020, 1060, 1110]
    assert standing(PLAN, row_time(PLAN, 4)).due == 5
    assert standing(PLAN, row_time(PLAN, 4) - 0.01).due == 4


@pytest.mark.parametrize("speed", [0, 1, 3600])
def test_clock_runs_at_its_speed_and_moves_only_forward(speed: float) -> None:
    clock = Clock(at_real=50, at_provider=1000, speed=speed)
    assert clock.now(lambda: 53) == 1000 + 3 * speed
    assert clock.advanced(10, lambda: 53).now(lambda: 54) == 1010 + 4 * speed
    assert clock.at_speed(2, lambda: 53).now(lambda: 54) == 1002 + 3 * speed
    assert clock.now(lambda: 49) == 1000
    with pytest.raises(ValueError, match="forward"):
        clock.advanced(-1)


def test_window_without_an_end_never_expires() -> None:
    assert standing(replace(PLAN, window_s=inf, stall=0.5), 1e12).stage == "in_progress"
