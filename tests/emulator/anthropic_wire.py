"""The shapes that Anthropic puts on the wire: message batches, result lines and messages.

Pure functions from facts to JSON values; a row's result type and inner error type follow from its outcome
alone.
"""

from __future__ import annotations

from emulator.answers import Json
from emulator.model import Result
from emulator.openai_wire import dumps

# outcome: HTTP status of a synchronous call, inner error type
FAILURES: dict[str, tuple[int, str]] = {
    "bad_request": (400, "invalid_request_error"),
    "authentication": (401, "authentication_error"),
    "insufficient_quota": (402, "billing_error"),
    "permission": (403, "permission_error"),
    "not_found": (404, "not_found_error"),
    "model_not_found": (404, "not_found_error"),
    "too_large": (413, "request_too_large"),
    "rate_limited": (429, "rate_limit_error"),
    "server_error": (500, "api_error"),
    "timeout": (504, "timeout_error"),
    "overloaded": (529, "overloaded_error"),
}
STOP_REASONS = {
    "truncated": "max_tokens",
    "context_window": "model_context_window_exceeded",
    "needs_continuation": "pause_turn",
    "refused": "refusal",
}
ERROR_TYPES = dict(FAILURES.values()) | {404: "not_found_error"}


def failure(kind: str, message: str, request_id: str | None) -> Json:
    """Return the error envelope of an HTTP error and of an errored row."""
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


def message_body(body: Json, result: Result, *, name: str, tier: str) -> Json:
    """Return a message."""
    tokens = result.tokens
    made = {
        "id": "msg_" + name,
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [{"type": "text", "text": result.text}] if result.text else [],
        "stop_reason": STOP_REASONS.get(result.outcome, "end_turn"),
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens.input - tokens.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": tokens.cached,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": tokens.output,
            "service_tier": tier,
        },
    }
    if result.outcome == "refused":
        made["stop_details"] = {"type": "refusal", "category": "cyber", "explanation": None}
    return made


def row_line(custom_id: str, body: Json, result: Result, *, name: str, dress: str | None) -> bytes:
    """Return a row's line without its newline."""
    outcome: Json
    if result.outcome in ("expired", "canceled"):
        outcome = {"type": result.outcome}
    elif result.outcome == "unknown_type":
        outcome = {"type": "deferred"}
    elif result.outcome in FAILURES:
        error = failure(FAILURES[result.outcome][1], result.message, None)
        outcome = {"type": "errored", "error": error["error"] if dress == "flat_error" else error}
    else:
        outcome = {"type": "succeeded", "message": message_body(body, result, name=name, tier="batch")}
        if dress == "line_separator":
            outcome["message"]["id"] += "\u2028\u2029\u0085"
    return dumps({"custom_id": custom_id, "result": outcome}, dress)
