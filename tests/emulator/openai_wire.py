"""The shapes that OpenAI puts on the wire: files, batches, result lines and synchronous answers.

Pure functions from facts to JSON values.  A row's HTTP status, its error object and whether it lands in the
output or the error file follow from its outcome alone.
"""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

from emulator.answers import COMPACT, Dialect, Json
from emulator.model import Result

ASCII = json.JSONEncoder(separators=(",", ":")).encode
ENDPOINTS: dict[str, Dialect] = {"/v1/chat/completions": "chat", "/v1/responses": "responses"}

# outcome: HTTP status, error type, error code
FAILURES: dict[str, tuple[int, str, str | None]] = {
    "bad_request": (400, "invalid_request_error", None),
    "not_found": (404, "invalid_request_error", None),
    "too_large": (413, "invalid_request_error", "request_too_large"),
    "unprocessable": (422, "invalid_request_error", None),
    "rate_limited": (429, "rate_limit_exceeded", "rate_limit_exceeded"),
    "insufficient_quota": (429, "insufficient_quota", "insufficient_quota"),
    "authentication": (401, "invalid_request_error", "invalid_api_key"),
    "permission": (403, "invalid_request_error", "permission_denied"),
    "model_not_found": (404, "invalid_request_error", "model_not_found"),
    "server_error": (500, "server_error", "server_error"),
    "overloaded": (503, "server_error", "service_unavailable"),
    "timeout": (408, "server_error", "timeout"),
    "conflict": (409, "server_error", "conflict"),
    "status_zero": (0, "server_error", None),
}
# outcome: code of a row that never got an HTTP answer
UNSENT = {
    "expired": ("batch_expired", "This request could not be executed before the completion window expired."),
    "canceled": ("batch_cancelled", "This request was cancelled before it was executed."),
    "request_timeout": ("request_timeout", "The request timed out."),
    "unknown_type": ("batch_deferred", "A code that no client knows yet."),
}


def ident(prefix: str, *parts: object) -> str:
    """Return an id that depends on its parts alone."""
    return prefix + blake2b("\x1f".join(map(str, parts)).encode(), digest_size=12).hexdigest()


def failure(status_type_code: tuple[int, str, str | None], message: str, parameter: str | None = None) -> Json:
    """Return the body of an HTTP error."""
    _, kind, code = status_type_code
    return {"error": {"message": message, "type": kind, "param": parameter, "code": code}}


def answer_body(body: Json, dialect: Dialect, result: Result, *, name: str, created: int) -> Json:
    """Return the body of a 200 answer."""
    if dialect == "chat":
        return _chat(body, result, name, created)
    return _response(body, result, name, created)


def _chat(body: Json, result: Result, name: str, created: int) -> Json:
    refused = result.outcome == "refused"
    finish = {"truncated": "length", "content_filter": "content_filter"}.get(result.outcome, "stop")
    tokens = result.tokens
    return {
        "id": "chatcmpl-" + name,
        "object": "chat.completion",
        "created": created,
        "model": body["model"],
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None if refused else result.text,
                    "refusal": result.text if refused else None,
                },
                "finish_reason": finish,
            }
        ],
        "usage": {
            "prompt_tokens": tokens.input,
            "completion_tokens": tokens.output,
            "total_tokens": tokens.input + tokens.output,
            "prompt_tokens_details": {"cached_tokens": tokens.cached},
            "completion_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _response(body: Json, result: Result, name: str, created: int) -> Json:
    tokens = result.tokens
    status, incomplete, error = "completed", None, None
    if result.outcome == "model_failed":
        status, error = "failed", {"code": "server_error", "message": result.message}
    elif result.outcome in ("truncated", "content_filter"):
        reason = "max_output_tokens" if result.outcome == "truncated" else "content_filter"
        status, incomplete = "incomplete", {"reason": reason}
    if result.outcome == "refused":
        part: Json = {"type": "refusal", "refusal": result.text}
    else:
        part = {"type": "output_text", "text": result.text, "annotations": []}
    message = {
        "id": "msg_" + name,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
    }
    return {
        "id": "resp_" + name,
        "object": "response",
        "created_at": created,
        "status": status,
        "error": error,
        "incomplete_details": incomplete,
        "model": body["model"],
        "output": [] if status == "failed" else [message],
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": None
        if status == "failed"
        else {
            "input_tokens": tokens.input,
            "input_tokens_details": {"cached_tokens": tokens.cached, "cache_write_tokens": 0},
            "output_tokens": tokens.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": tokens.input + tokens.output,
        },
    }


def row_line(
    custom_id: str,
    body: Json,
    dialect: Dialect,
    result: Result,
    *,
    name: str,
    created: int,
    dress: str | None,
) -> tuple[bytes, bool]:
    """Return a row's line without its newline, and whether it belongs in the error file."""
    line: Json = {"id": "batch_req_" + name, "custom_id": custom_id, "response": None, "error": None}
    failed = True
    if result.outcome in UNSENT:
        code, message = UNSENT[result.outcome]
        line["error"] = {"code": code, "message": message}
    else:
        if result.outcome in FAILURES:
            status, answer = (
                FAILURES[result.outcome][0],
                failure(FAILURES[result.outcome], result.message, result.parameter),
            )
        elif result.outcome == "empty_body":
            status, answer, failed = 200, {}, False
        else:
            status, answer, failed = (
                200,
                answer_body(body, dialect, result, name=name, created=created),
                False,
            )
            if dress == "line_separator":
                answer["id"] += "\u2028\u2029\u0085"
        line["response"] = {"status_code": status, "request_id": "req_" + name, "body": answer}
    return dumps(line, dress), failed


def dumps(value: Any, dress: str | None = None) -> bytes:
    """Write compact JSON; a line dressed with separators has raw U+2028, U+2029 and U+0085 in its strings."""
    text = COMPACT(value) if dress == "line_separator" else ASCII(value)
    return text.encode("utf-8", "surrogatepass")


def listing(data: list[Json], has_more: bool) -> Json:
    """Return one page of a list."""
    return {
        "object": "list",
        "data": data,
        "first_id": data[0]["id"] if data else None,
        "last_id": data[-1]["id"] if data else None,
        "has_more": has_more,
    }
