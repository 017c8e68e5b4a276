"""Bodies and result lines of Anthropic: what is sent, byte for byte, and what each answer means."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lotwise.errors import UnsupportedParameter, UnsupportedSchema
from lotwise.executors import anthropic_dialect as dialect
from lotwise.executors import encode
from lotwise.request import OUTCOMES, REQUESTS, Code, Spec

SAMPLES: dict[str, Any] = json.loads((Path(__file__).resolve().parents[1] / "emulator" / "samples.json").read_text())
SUCCEEDED = SAMPLES["anthropic.row_succeeded"]


def read(*records: Any) -> list[dict[str, Any]]:
    return dialect.read_lines([json.dumps(record).encode() for record in records]).to_dicts()


def message(**fields: Any) -> dict[str, Any]:
    record = copy.deepcopy(SUCCEEDED)
    record["result"]["message"] |= fields
    return record


def errored(kind: str, text: str = "SECRET row text", **result: Any) -> dict[str, Any]:
    error = {"type": "error", "error": {"type": kind, "message": text}, "request_id": None}
    return {"custom_id": "r-1", "result": {"type": "errored", "error": error, **result}}


REFUSAL = message(stop_reason="refusal", stop_details=SAMPLES["anthropic.stop_details"], content=[])

OUTCOME_TABLE: dict[str, tuple[dict[str, Any], Code, str | None, str | None]] = {
    "end_turn": (SUCCEEDED, Code.OK, "hi", None),
    "stop_sequence": (message(stop_reason="stop_sequence"), Code.OK, "hi", None),
    "tool_use": (message(stop_reason="tool_use"), Code.OK, "hi", None),
    "thinking before the text": (
        message(content=[{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hi"}]),
        Code.OK,
        "hi",
        None,
    ),
    "no text": (message(content=[]), Code.OK, None, None),
    "max_tokens": (message(stop_reason="max_tokens"), Code.TRUNCATED, "hi", None),
    "context window": (message(stop_reason="model_context_window_exceeded"), Code.TRUNCATED, "hi", None),
    "refusal": (REFUSAL, Code.REFUSED, None, "cyber"),
    "pause_turn": (message(stop_reason="pause_turn"), Code.NEEDS_CONTINUATION, "hi", None),
    "unknown stop reason": (
        message(stop_reason="moonrise"),
        Code.NEEDS_CONTINUATION,
        "hi",
        "unknown_stop_reason",
    ),
    "errored, nested": (
        SAMPLES["anthropic.row_errored"],
        Code.BAD_REQUEST,
        None,
        "invalid_request_error",
    ),
    "errored, not nested": (
        {"custom_id": "r-1", "result": {"type": "errored", "error": {"type": "api_error", "message": "x"}}},
        Code.SERVER_ERROR,
        None,
        "api_error",
    ),
    "overloaded": (errored("overloaded_error"), Code.SERVER_ERROR, None, "overloaded_error"),
    "timeout": (errored("timeout_error"), Code.SERVER_ERROR, None, "timeout_error"),
    "rate limit": (errored("rate_limit_error"), Code.RATE_LIMITED, None, "rate_limit_error"),
    "too large": (errored("request_too_large"), Code.BAD_REQUEST, None, "request_too_large"),
    "billing": (errored("billing_error"), Code.ACCOUNT_BLOCKED, None, "billing_error"),
    "authentication": (
        errored("authentication_error"),
        Code.ACCOUNT_BLOCKED,
        None,
        "authentication_error",
    ),
    "permission": (errored("permission_error"), Code.ACCOUNT_BLOCKED, None, "permission_error"),
    "model not found": (
        errored("not_found_error", "model: claude-nope"),
        Code.ACCOUNT_BLOCKED,
        None,
        "not_found_error",
    ),
    "something else not found": (errored("not_found_error"), Code.BAD_REQUEST, None, "not_found_error"),
    "unknown error": (errored("moon_error"), Code.SERVER_ERROR, None, "moon_error"),
    "live 502 with a page": (
        {"custom_id": "r-1", "result": {"type": "errored", "status_code": 502, "error": "<html>"}},
        Code.SERVER_ERROR,
        None,
        "http_502",
    ),
    "live 429 of a gateway": (
        {"custom_id": "r-1", "result": {"type": "errored", "status_code": 429, "error": {"detail": "slow"}}},
        Code.RATE_LIMITED,
        None,
        "http_429",
    ),
    "live answer lost": (errored("answer_lost"), Code.UNCERTAIN, None, "answer_lost"),
    "live call not sent": (errored("not_sent"), Code.SERVER_ERROR, None, "not_sent"),
    "canceled": (SAMPLES["anthropic.row_canceled"], Code.CANCELED, None, None),
    "expired": (SAMPLES["anthropic.row_expired"], Code.EXPIRED, None, None),
    "unknown result type, even with a message": (
        {"custom_id": "r-1", "result": SUCCEEDED["result"] | {"type": "deferred"}},
        Code.SERVER_ERROR,
        None,
        "unknown_result_type",
    ),
    "no result": ({"custom_id": "r-1"}, Code.UNREADABLE, None, "no_result"),
    "succeeded without a message": (
        {"custom_id": "r-1", "result": {"type": "succeeded", "message": None}},
        Code.SERVER_ERROR,
        None,
        "empty_body",
    ),
    "succeeded with a spoiled message": (
        {"custom_id": "r-1", "result": {"type": "succeeded", "message": '{"content": [{"ty'}},
        Code.UNREADABLE,
        None,
        "not_json",
    ),
}


@pytest.mark.parametrize(("record", "code", "answer", "detail"), list(OUTCOME_TABLE.values()), ids=list(OUTCOME_TABLE))
def test_outcome_table(record: dict[str, Any], code: Code, answer: str | None, detail: str | None) -> None:
    (row,) = read(record)
    assert (row["code"], row["answer"], row["detail"]) == (code.value, answer, detail)
    assert row["custom_id"] == record["custom_id"]


@pytest.mark.parametrize("record", [entry[0] for entry in OUTCOME_TABLE.values()], ids=list(OUTCOME_TABLE))
def test_quick_reader_agrees_with_the_patient_one_or_declines(record: dict[str, Any]) -> None:
    line = json.dumps(record).encode()
    assert dialect._common(line) in (None, dialect._any_shape(line))


def test_common_shape_takes_the_quick_reader() -> None:
    assert dialect._common(json.dumps(SUCCEEDED).encode()) is not None


def test_usage_is_made_inclusive_of_cache_reads_and_writes() -> None:
    usage = SUCCEEDED["result"]["message"]["usage"]
    cached = usage | {"cache_read_input_tokens": 100, "cache_creation_input_tokens": 30}
    quick, patient = read(message(usage=cached), message(usage=cached | {"output_tokens": 2.0}))
    names = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    assert [quick[name] for name in names] == [139, 100, 30, 2]
    assert [patient[name] for name in names] == [139, 100, 30, 2]


def test_torn_line_is_one_unreadable_row() -> None:
    good = json.dumps(SUCCEEDED).encode()
    frame = dialect.read_lines([good, good[:60], good])
    assert frame["code"].to_list() == ["ok", "unreadable", "ok"]
    assert frame.schema == OUTCOMES


SCHEMA = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'


def test_body_holds_all_of_the_spec_and_the_content_last() -> None:
    spec = Spec(
        provider="anthropic",
        model="m",
        system="s",
        examples=(("in", "out"),),
        wire_schema=SCHEMA,
        params={"output_config": {"effort": "low"}, "temperature": 0.5},
        max_tokens=77,
    )
    frame = pl.DataFrame(
        {"key": ["k"], "custom_id": ["s-k"], "content": ["row"], "variant": ['{"max_tokens":99}']}, schema=REQUESTS
    )
    (part,) = encode.lines(
        frame, lambda limit: dialect.body_parts(spec, max_tokens=limit), spec.max_tokens, dialect.ENVELOPE
    )
    line = json.loads(part["line"][0])
    assert line == {
        "custom_id": "s-k",
        "params": {
            "model": "m",
            "max_tokens": 99,
            "temperature": 0.5,
            "output_config": {
                "effort": "low",
                "format": {"type": "json_schema", "schema": json.loads(SCHEMA)},
            },
            "system": "s",
            "messages": [
                {"role": "user", "content": "in"},
                {"role": "assistant", "content": "out"},
                {"role": "user", "content": "row"},
            ],
        },
    }
    assert SCHEMA in part["line"][0]
    assert list(line["params"])[-1] == "messages"


@pytest.mark.parametrize("name", ["stream", "model", "messages", "system", "max_tokens", "output_format"])
def test_parameter_that_cannot_be_carried_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnsupportedParameter, match=repr(name)):
        dialect.refuse_params(Spec(provider="anthropic", model="m", params={name: 1}), batch=False)


def test_speed_is_refused_in_a_batch_only() -> None:
    spec = Spec(provider="anthropic", model="m", params={"speed": "fast"})
    dialect.refuse_params(spec, batch=False)
    with pytest.raises(UnsupportedParameter, match="interactive"):
        dialect.refuse_params(spec, batch=True)


def test_schema_that_cannot_be_expressed_is_refused_with_its_place() -> None:
    with pytest.raises(UnsupportedSchema, match="/properties/a"):
        dialect.wire_schema('{"type":"object","properties":{"a":{"type":"object"}}}')
