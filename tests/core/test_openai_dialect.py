"""Bodies and result lines of the OpenAI dialect: what is sent, byte for byte, and what each answer means."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise.errors import CreateRejected, UnsupportedParameter
from lotwise.executors import encode, openai_lines
from lotwise.executors import openai_dialect as dialect
from lotwise.plan import json_bytes
from lotwise.request import OUTCOMES, REQUESTS, Code, Spec

SAMPLES: dict[str, Any] = json.loads((Path(__file__).resolve().parents[1] / "emulator" / "samples.json").read_text())
SUCCEEDED = SAMPLES["openai.row_succeeded"]


def read(*records: Any) -> list[dict[str, Any]]:
    return dialect.read_lines([json.dumps(record).encode() for record in records]).to_dicts()


def chat(**choice: Any) -> dict[str, Any]:
    record = copy.deepcopy(SUCCEEDED)
    message = choice.pop("message", {})
    record["response"]["body"]["choices"][0] |= choice
    record["response"]["body"]["choices"][0]["message"] |= message
    return record


def answered(body: Any, status: Any = 200) -> dict[str, Any]:
    return {"custom_id": "r-1", "response": {"status_code": status, "body": body}, "error": None}


def failed(status: int, **error: Any) -> dict[str, Any]:
    return answered({"error": {"message": "SECRET row text", "type": "invalid_request_error", **error}}, status)


def unsent(code: Any) -> dict[str, Any]:
    return {"custom_id": "r-1", "response": None, "error": {"code": code, "message": "SECRET row text"}}


def response(**fields: Any) -> dict[str, Any]:
    text = {"type": "message", "content": [{"type": "output_text", "text": "hi", "annotations": []}]}
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}, "output_tokens": 2}
    return answered({"model": "m", "status": "completed", "output": [text], "usage": usage, **fields})


REFUSAL = {"type": "message", "content": [SAMPLES["openai.response_refusal_part"]]}

OUTCOME_TABLE: dict[str, tuple[dict[str, Any], Code, str | None, str | None]] = {
    "answer": (SUCCEEDED, Code.OK, "hi", None),
    "tool call": (chat(finish_reason="tool_calls", message={"content": None}), Code.OK, None, None),
    "stop without content": (chat(message={"content": None}), Code.OK, None, None),
    "content in parts": (
        chat(message={"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        Code.OK,
        "ab",
        None,
    ),
    "refusal": (chat(message=SAMPLES["openai.message_refused"]), Code.REFUSED, None, None),
    "content filter": (chat(finish_reason="content_filter"), Code.REFUSED, "hi", None),
    "length": (chat(finish_reason="length"), Code.TRUNCATED, "hi", None),
    "unknown finish reason": (
        chat(finish_reason="paused"),
        Code.NEEDS_CONTINUATION,
        "hi",
        "unknown_finish_reason",
    ),
    "finish reason left out": (chat(finish_reason=None), Code.OK, "hi", None),
    "neither finish reason nor content": (
        chat(finish_reason=None, message={"content": None}),
        Code.SERVER_ERROR,
        None,
        "empty_body",
    ),
    "broken off at a gateway": (chat(finish_reason="error"), Code.SERVER_ERROR, "hi", None),
    "bad request": (SAMPLES["openai.row_invalid"], Code.BAD_REQUEST, None, "invalid_request_error"),
    "404 of something": (failed(404), Code.BAD_REQUEST, None, "invalid_request_error"),
    "413": (
        failed(413, code="request_too_large"),
        Code.BAD_REQUEST,
        None,
        "request_too_large",
    ),
    "422": (failed(422), Code.BAD_REQUEST, None, "invalid_request_error"),
    "404 of the model": (
        failed(404, code="model_not_found"),
        Code.ACCOUNT_BLOCKED,
        None,
        "model_not_found",
    ),
    "401": (failed(401, code="invalid_api_key"), Code.ACCOUNT_BLOCKED, None, "invalid_api_key"),
    "403 without words": (answered({}, 403), Code.ACCOUNT_BLOCKED, None, "http_403"),
    "429": (
        failed(429, code="rate_limit_exceeded"),
        Code.RATE_LIMITED,
        None,
        "rate_limit_exceeded",
    ),
    "429 out of credit": (
        failed(429, code="insufficient_quota"),
        Code.ACCOUNT_BLOCKED,
        None,
        "insufficient_quota",
    ),
    "500": (failed(500, type="server_error"), Code.SERVER_ERROR, None, "server_error"),
    "503 that calls itself invalid": (failed(503), Code.SERVER_ERROR, None, "invalid_request_error"),
    "408": (failed(408), Code.SERVER_ERROR, None, "invalid_request_error"),
    "409": (failed(409), Code.SERVER_ERROR, None, "invalid_request_error"),
    "status zero": (answered({}, 0), Code.SERVER_ERROR, None, "http_0"),
    "200 with an empty object": (answered({}), Code.SERVER_ERROR, None, "empty_body"),
    "200 with null": (answered(None), Code.SERVER_ERROR, None, "empty_body"),
    "200 with a page": (answered("<html>"), Code.SERVER_ERROR, None, "not_json"),
    "200 with no text": (answered(" "), Code.SERVER_ERROR, None, "empty_body"),
    "200 with a spoiled answer": (answered('{"choices": [{"mess'), Code.UNREADABLE, None, "not_json"),
    "200 without choices": (answered({"choices": []}), Code.SERVER_ERROR, None, "empty_body"),
    "200 with an error in it": (
        answered({"error": {"code": 429, "message": "SECRET row text"}}),
        Code.RATE_LIMITED,
        None,
        "http_429",
    ),
    "no status but an answer": (
        answered(SUCCEEDED["response"]["body"], None),
        Code.OK,
        "hi",
        None,
    ),
    "expired": (SAMPLES["openai.row_expired"], Code.EXPIRED, None, "batch_expired"),
    "cancelled": (unsent("batch_cancelled"), Code.CANCELED, None, "batch_cancelled"),
    "timed out unsent": (unsent("request_timeout"), Code.SERVER_ERROR, None, "request_timeout"),
    "unknown code without an answer": (unsent("batch_deferred"), Code.SERVER_ERROR, None, "batch_deferred"),
    "out of credit before the row ran": (
        unsent("insufficient_quota"),
        Code.ACCOUNT_BLOCKED,
        None,
        "insufficient_quota",
    ),
    "live answer lost": (unsent("answer_lost"), Code.UNCERTAIN, None, "answer_lost"),
    "live call not sent": (unsent("not_sent"), Code.SERVER_ERROR, None, "not_sent"),
    "neither response nor error": (
        {"custom_id": "r-1", "response": None, "error": None},
        Code.UNREADABLE,
        None,
        "no_response",
    ),
    "response: completed": (response(), Code.OK, "hi", None),
    "response: reasoning before the message": (
        response(output=[{"type": "reasoning", "content": None}, *response()["response"]["body"]["output"]]),
        Code.OK,
        "hi",
        None,
    ),
    "response: refusal part": (response(output=[REFUSAL]), Code.REFUSED, None, None),
    "response: max_output_tokens": (
        response(**SAMPLES["openai.response_incomplete"]),
        Code.TRUNCATED,
        None,
        None,
    ),
    "response: content_filter": (
        response(status="incomplete", incomplete_details={"reason": "content_filter"}),
        Code.REFUSED,
        "hi",
        None,
    ),
    "response: steered": (
        response(status="incomplete", incomplete_details={"reason": "steered"}),
        Code.NEEDS_CONTINUATION,
        "hi",
        None,
    ),
    "response: unknown reason": (
        response(status="incomplete", incomplete_details={"reason": "moonrise"}),
        Code.NEEDS_CONTINUATION,
        "hi",
        "unknown_incomplete_reason",
    ),
    "response: failed": (
        response(**SAMPLES["openai.response_failed"]),
        Code.SERVER_ERROR,
        None,
        "server_error",
    ),
    "response: failed by rate": (
        response(status="failed", error={"code": "rate_limit_exceeded"}),
        Code.RATE_LIMITED,
        None,
        "rate_limit_exceeded",
    ),
    "response: failed by the prompt": (
        response(status="failed", error={"code": "invalid_prompt"}),
        Code.BAD_REQUEST,
        None,
        "invalid_prompt",
    ),
    "response: still running": (
        response(status="in_progress"),
        Code.SERVER_ERROR,
        None,
        "unfinished_response",
    ),
    "runner: error as a string": (
        {
            "id": "vllm-1",
            "custom_id": "r-1",
            "response": {"status_code": 400, "request_id": "vllm-2", "body": None},
            "error": "SECRET row text is too long",
        },
        Code.BAD_REQUEST,
        None,
        "http_400",
    ),
    "runner: error as an object": (
        {
            "id": "vllm-1",
            "custom_id": "r-1",
            "response": {"status_code": 400, "body": None},
            "error": {"message": "SECRET row text", "type": "BadRequestError", "code": 400},
        },
        Code.BAD_REQUEST,
        None,
        "BadRequestError",
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
    assert openai_lines._common(line) in (None, openai_lines._any_shape(line))


def test_common_shapes_take_the_quick_reader() -> None:
    for record in (SUCCEEDED, chat(finish_reason="length"), response()):
        assert openai_lines._common(json.dumps(record).encode()) is not None


def test_no_detail_carries_a_sentence_of_the_provider() -> None:
    frame = dialect.read_lines([json.dumps(entry[0]).encode() for entry in OUTCOME_TABLE.values()])
    assert not frame["detail"].drop_nulls().str.contains("SECRET").any()


def test_usage_keeps_cached_tokens_inside_the_input() -> None:
    chat_usage = chat()
    chat_usage["response"]["body"]["usage"] |= {"prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 3}}
    first, second = read(chat_usage, response())
    names = ("input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens")
    assert [first[name] for name in names] == [9, 5, 3, 2]
    assert [second[name] for name in names] == [9, 4, None, 2]


@pytest.mark.parametrize(
    "usage", [None, {}, {"prompt_tokens": -1, "completion_tokens": "x"}, {"prompt_tokens": 2**70}, [1]]
)
def test_senseless_usage_is_unknown_and_loses_no_answer(usage: Any) -> None:
    record = chat()
    record["response"]["body"]["usage"] = usage
    (row,) = read(record)
    assert (row["code"], row["answer"], row["input_tokens"]) == ("ok", "hi", None)


@pytest.mark.parametrize(
    "line",
    [b"", b"  ", b"{", b"null", b"[]", b'"x"', b'{"custom_id":"r-1","response":{"st', b"\xff\xfe", b"[" * 100_000],
    ids=["empty", "blank", "brace", "null", "list", "string", "torn", "not utf-8", "deep"],
)
def test_unreadable_line_is_one_row_without_an_id_and_harms_no_neighbour(line: bytes) -> None:
    good = json.dumps(SUCCEEDED).encode()
    frame = dialect.read_lines([good, line, good])
    assert frame["code"].to_list() == ["ok", "unreadable", "ok"]
    assert frame["custom_id"].to_list() == ["r-1", None, "r-1"]


def test_byte_order_mark_nan_and_lone_surrogates_lose_no_line() -> None:
    text = json.dumps(SUCCEEDED)
    lines = [
        b"\xef\xbb\xbf" + text.encode(),
        text.replace('"created": 1', '"created": NaN').encode(),
        text.replace('"hi"', '"h\\ud800i"').encode(),
        text.replace('"hi"', '"h\u2028i"').encode(),
    ]
    assert dialect.read_lines(lines)["answer"].to_list() == ["hi", "hi", "h\ufffdi", "h\u2028i"]


def test_no_lines_give_an_empty_frame_with_the_schema() -> None:
    assert dialect.read_lines([]).schema == OUTCOMES
    assert dialect.read_lines([json.dumps(SUCCEEDED).encode()]).schema == OUTCOMES


NAMES = (
    *("custom_id", "response", "error", "status_code", "body", "choices", "message", "content", "usage", "status"),
    *("output", "finish_reason", "code", "type", "text", "refusal", "prompt_tokens"),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text()


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)


@given(st.recursive(PLAIN, nested, max_leaves=12))
def test_any_json_is_one_row(value: Any) -> None:
    frame = dialect.read_lines([json.dumps(value).encode()])
    assert frame.height == 1
    assert frame.schema == OUTCOMES


# --- Bodies --------------------------------------------------------------------------------------------------

SCHEMA = '{"type":"object","properties":{"a":{"type":"string"}},"required":["a"],"additionalProperties":false}'
SPEC = Spec(
    provider="openai",
    model="m",
    system='say "a"',
    examples=(("in\n1", '{"a":"x"}'),),
    wire_schema=SCHEMA,
    params={"top_p": 0.5, "seed": 1.0},
    max_tokens=77,
)


def requests(contents: list[str], variants: list[str | None] | None = None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "key": [f"{n:040x}" for n in range(len(contents))],
            "custom_id": [f"0123456789abcdef-{n:040x}" for n in range(len(contents))],
            "content": contents,
            "variant": variants or [None] * len(contents),
        },
        schema=REQUESTS,
    )


def encoded(frame: pl.DataFrame, endpoint: dialect.Endpoint = "chat") -> list[str]:
    parts = encode.lines(
        frame,
        lambda limit: dialect.body_parts(SPEC, endpoint, max_tokens=limit),
        SPEC.max_tokens,
        dialect.envelope(endpoint),
    )
    return [line for part in parts for line in part["line"]]


def test_chat_body_holds_all_of_the_spec_and_the_content_last() -> None:
    line = json.loads(encoded(requests(["row"]))[0])
    assert line == {
        "custom_id": f"0123456789abcdef-{0:040x}",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {
            "model": "m",
            "max_completion_tokens": 77,
            "seed": 1,
            "top_p": 0.5,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "answer", "strict": True, "schema": json.loads(SCHEMA)},
            },
            "messages": [
                {"role": "system", "content": 'say "a"'},
                {"role": "user", "content": "in\n1"},
                {"role": "assistant", "content": '{"a":"x"}'},
                {"role": "user", "content": "row"},
            ],
        },
    }
    assert list(line["body"])[-1] == "messages"


def test_responses_body_holds_all_of_the_spec_and_the_content_last() -> None:
    line = json.loads(encoded(requests(["row"]), "responses")[0])
    assert line["url"] == "/v1/responses"
    assert line["body"] == {
        "model": "m",
        "max_output_tokens": 77,
        "seed": 1,
        "top_p": 0.5,
        "text": {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": json.loads(SCHEMA)}},
        "instructions": 'say "a"',
        "input": [
            {"role": "user", "content": "in\n1"},
            {"role": "assistant", "content": '{"a":"x"}'},
            {"role": "user", "content": "row"},
        ],
    }


def test_schema_is_sent_as_the_exact_text() -> None:
    assert SCHEMA in dialect.body_parts(SPEC).head
    assert SCHEMA in dialect.body_parts(SPEC, "responses").head


def test_schema_outside_the_strict_subset_is_sent_unenforced() -> None:
    loose = '{"type":"object","properties":{"a":{"type":"object"}}}'
    spec = Spec(provider="openai", model="m", wire_schema=loose)
    body = json.loads(dialect.body_parts(spec).head + '""}]}')
    assert body["response_format"]["json_schema"] == {
        "name": "answer",
        "strict": False,
        "schema": json.loads(loose),
    }


@pytest.mark.parametrize("endpoint", ["chat", "responses"])
def test_rows_differ_only_in_id_and_content(endpoint: dialect.Endpoint) -> None:
    one, other = encoded(requests(["first", "second"]), endpoint)
    head, tail = dialect.body_parts(SPEC, endpoint).head, dialect.body_parts(SPEC, endpoint).tail
    assert head in one
    assert head in other
    assert one.endswith(f'"first"{tail}}}')
    assert other.endswith(f'"second"{tail}}}')


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=30), min_size=1, max_size=5))
def test_content_arrives_as_it_was_for_any_text(contents: list[str]) -> None:
    lines = encoded(requests(contents))
    assert [json.loads(line)["body"]["messages"][-1]["content"] for line in lines] == contents
    assert not any("\n" in line or "\r" in line for line in lines)
    one_by_one = [
        encode.body(text, None, lambda limit: dialect.body_parts(SPEC, max_tokens=limit), SPEC.max_tokens)
        for text in contents
    ]
    assert all(body.decode() in line for body, line in zip(one_by_one, lines, strict=True))


@given(st.text(st.characters(codec="utf-8"), max_size=60))
def test_sizes_bound_the_bytes_sent_and_are_at_most_one_over(content: str) -> None:
    line = encoded(requests([content]))[0] + "\n"
    sent = len(line.encode())
    parts, around = dialect.body_parts(SPEC), dialect.envelope("chat")
    bound = encode.sizes(json_bytes(pl.Series([content])), parts, around)
    assert sent <= bound[0] <= sent + 1


def test_variant_changes_its_own_row_only() -> None:
    frame = requests(["a", "b", "c"], [None, '{"max_tokens":200,"faults":[{"path":"a","kind":"missing"}]}', None])
    bodies = [json.loads(line)["body"] for line in encoded(frame)]
    assert [body["max_completion_tokens"] for body in bodies] == [77, 200, 77]
    assert [body["messages"][-1]["content"][:1] for body in bodies] == ["a", "b", "c"]
    assert "missing" in bodies[1]["messages"][-1]["content"]
    assert bodies[0]["messages"][-1]["content"] == "a"


def test_same_id_twice_is_refused_before_the_upload() -> None:
    frame = requests(["a", "b"]).with_columns(custom_id=pl.lit("x"))
    with pytest.raises(CreateRejected) as caught:
        encode.check_ids(frame)
    assert (caught.value.code, caught.value.input_fault) == ("duplicate_custom_id", True)


@pytest.mark.parametrize("custom_id", ["", "a" * 65, "a b", "a/b", "é", 'a"b', "a\n"])
def test_id_outside_the_strictest_grammar_is_refused(custom_id: str) -> None:
    with pytest.raises(CreateRejected, match="invalid_custom_id"):
        encode.check_ids(requests(["a"]).with_columns(custom_id=pl.lit(custom_id)))


@pytest.mark.parametrize(
    ("name", "endpoint"),
    [
        ("stream", "chat"),
        ("n", "chat"),
        ("messages", "chat"),
        ("response_format", "chat"),
        ("max_tokens", "chat"),
        ("stream", "responses"),
        ("input", "responses"),
        ("background", "responses"),
    ],
)
def test_parameter_that_cannot_be_carried_is_refused_by_name(name: str, endpoint: dialect.Endpoint) -> None:
    with pytest.raises(UnsupportedParameter, match=repr(name)):
        dialect.refuse_params(Spec(provider="openai", model="m", params={name: 1}), endpoint)


def test_other_parameters_pass() -> None:
    spec = Spec(provider="openai", model="m", params={"temperature": 0, "text": {"verbosity": "low"}})
    dialect.refuse_params(spec, "responses")
    body = json.loads(dialect.body_parts(spec, "responses").head + '""}]}')
    assert body["text"] == {"verbosity": "low"}
