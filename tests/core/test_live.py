"""An answer to a synchronous call is read from its line whatever bytes it came in: it is paid for."""

from __future__ import annotations

import json

import pytest

from lotwise.executors import anthropic_dialect, openai_dialect
from lotwise.executors.live import Answer, one_line_of_json

CUSTOM_ID = "0123456789abcdef-" + "a" * 40
OPENAI = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"hi %s"},"finish_reason":"stop"}],"x":%s}'
ANTHROPIC = b'{"type":"message","content":[{"type":"text","text":"hi %s"}],"stop_reason":"end_turn","x":%s}'
SPOILED = {
    "as it should be": (b"\xc3\xa9", b"1", "\u00e9"),
    "half a surrogate pair": (b"\\ud83d", b"1", "\ufffd"),
    "no UTF-8": (b"\xff", b"1", "\ufffd"),
    "NaN": (b"", b"NaN", ""),
    "minus infinity": (b"", b"-Infinity", ""),
    "a bare tab": (b"\t", b"1", "\t"),
    "an escaped null": (b"\\u0000", b"1", "\0"),
    "lines": (b"", b"\r\n1\n", ""),
}


def line(dialect: str, body: bytes) -> bytes:
    answer = Answer(custom_id=CUSTOM_ID, status=200, request_id="r", body=one_line_of_json(body))
    return openai_dialect.answer_line(answer) if dialect == "openai" else anthropic_dialect.answer_line(answer)


def read(dialect: str, body: bytes) -> dict[str, object]:
    made = line(dialect, body)
    assert b"\n" not in made
    assert b"\r" not in made
    frame = (openai_dialect if dialect == "openai" else anthropic_dialect).read_lines([made])
    return frame.row(0, named=True)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "after a byte-order mark"])
@pytest.mark.parametrize(("text", "value", "answer"), SPOILED.values(), ids=SPOILED)
@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_an_answer_is_read_in_spite_of_its_bytes(
    dialect: str, text: bytes, value: bytes, answer: str, mark: bytes
) -> None:
    row = read(dialect, mark + (OPENAI if dialect == "openai" else ANTHROPIC) % (text, value))
    assert (row["custom_id"], row["code"], row["answer"]) == (CUSTOM_ID, "ok", "hi " + answer)


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_what_may_be_an_answer_is_told_from_a_page_of_another_program(dialect: str) -> None:
    cut = OPENAI[:40]
    for body, code, detail in (
        (cut, "unreadable", "not_json"),  # it may have been charged
        (cut + b"\xff", "unreadable", "not_json"),
        (b"<html>\n<p>Hello", "server_error", "not_json"),
        (b"", "server_error", "empty_body"),
    ):
        row = read(dialect, body)
        assert (row["custom_id"], row["code"], row["detail"]) == (CUSTOM_ID, code, detail)


def test_a_good_body_is_passed_on_byte_for_byte() -> None:
    body = json.dumps({"a": "\u00e9", "b": [1.50, 1e400]}, ensure_ascii=False).encode()
    assert one_line_of_json(body) == body
