"""The meaning of a result line of chat completions or responses, whichever service or file it came from.

Batch output files, batch error files, synchronous answers that this package puts into the same envelope, and the files
of local batch runners are all read here. HTTP 200 with an ending that is known is ok, refused or truncated; an ending
that is not known is never ok.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
import polars as pl

from lotwise.executors.reading import (
    ANSWER_LOST,
    BLOCKED_WORDS,
    NOT_SENT,
    Row,
    Tokens,
    code_of_status,
    count,
    items_of,
    load_line,
    mapping,
    no_object,
    read_with,
    representable,
    text_of,
    unreadable,
    word,
)
from lotwise.request import Code

_CODES: Final[Mapping[str, Code]] = {
    # rows that never ran
    "batch_expired": Code.EXPIRED,
    "batch_cancelled": Code.CANCELED,
    "batch_canceled": Code.CANCELED,
    "request_timeout": Code.SERVER_ERROR,
    ANSWER_LOST: Code.UNCERTAIN,
    NOT_SENT: Code.SERVER_ERROR,
    **dict.fromkeys(BLOCKED_WORDS, Code.ACCOUNT_BLOCKED),
    # errors that may come without a status of their own
    "rate_limit_exceeded": Code.RATE_LIMITED,
    "rate_limit_error": Code.RATE_LIMITED,
    "server_error": Code.SERVER_ERROR,
    "internal_error": Code.SERVER_ERROR,
    "vector_store_timeout": Code.SERVER_ERROR,
    "invalid_request_error": Code.BAD_REQUEST,
    "invalid_request": Code.BAD_REQUEST,
    "invalid_prompt": Code.BAD_REQUEST,
    "data_residency_mismatch": Code.BAD_REQUEST,
    "bio_policy": Code.BAD_REQUEST,
    "misalignment_policy_violation": Code.BAD_REQUEST,
    "context_length_exceeded": Code.BAD_REQUEST,
    "content_filter": Code.BAD_REQUEST,
}

_CHAT_ENDS: Final[Mapping[str, Code]] = {
    "stop": Code.OK,
    "tool_calls": Code.OK,
    "function_call": Code.OK,
    "eos": Code.OK,
    "length": Code.TRUNCATED,
    "model_length": Code.TRUNCATED,
    "content_filter": Code.REFUSED,
    # what gateways and local servers write for an answer that broke off unfinished
    "error": Code.SERVER_ERROR,
    "abort": Code.SERVER_ERROR,
}

_INCOMPLETE: Final[Mapping[str, Code]] = {
    "max_output_tokens": Code.TRUNCATED,
    "content_filter": Code.REFUSED,
    "max_messages": Code.NEEDS_CONTINUATION,
    "steered": Code.NEEDS_CONTINUATION,
}

# --- The common shapes ---------------------------------------------------------------------------


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: str | None = None


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: Tokens | None = None
    cache_write_tokens: Tokens | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: Tokens | None = None
    completion_tokens: Tokens | None = None
    prompt_tokens_details: _InputDetails | None = None
    input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    input_tokens_details: _InputDetails | None = None


class _Part(msgspec.Struct, gc=False):
    type: str
    text: str | None = None


class _Item(msgspec.Struct, gc=False):
    type: str
    content: list[_Part] | None = None


class _Body(msgspec.Struct, gc=False):
    model: str | None = None
    choices: list[_Choice] | None = None
    status: str | None = None
    output: list[_Item] | None = None
    usage: _Usage | None = None


class _Response(msgspec.Struct, gc=False):
    status_code: int
    body: _Body


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    response: _Response
    error: None = None


_COMMON_ENDS: Final[Mapping[str | None, str]] = {
    end: _CHAT_ENDS[end].value for end in ("stop", "length", "content_filter")
}
_decode = msgspec.json.Decoder(_Line).decode


def _common(line: bytes) -> Row | None:
    """Read a finished answer of the common shape; None for whatever is not one."""
    try:
        record = _decode(line)
    except msgspec.DecodeError:
        return None
    response = record.response
    body = response.body
    if response.status_code != 200:
        return None
    if body.choices:
        choice = body.choices[0]
        message = choice.message
        end = choice.finish_reason
        code = _COMMON_ENDS.get(end)
        answer = message.content
        if code is None or message.refusal or (answer is None and code == "ok"):
            return None
    elif body.status == "completed" and body.output is not None:
        texts = []
        for item in body.output:
            if item.type != "message":
                continue
            for part in item.content or ():
                if part.type != "output_text" or part.text is None:
                    return None
                texts.append(part.text)
        if not texts:
            return None
        code, answer, end = "ok", texts[0] if len(texts) == 1 else "".join(texts), "completed"
    else:
        return None
    usage = body.usage
    if usage is None:
        return (record.custom_id, code, answer, None, end, body.model, None, None, None, None)
    given, made, details = usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details
    if given is None:
        given, made, details = usage.input_tokens, usage.output_tokens, usage.input_tokens_details
    if details is None:
        return (record.custom_id, code, answer, None, end, body.model, given, None, None, made)
    read, written = details.cached_tokens, details.cache_write_tokens
    return (record.custom_id, code, answer, None, end, body.model, given, read, written, made)


# --- Every other shape ---------------------------------------------------------------------------


def _parts_text(content: object) -> str | None:
    """Return the text of a message: a string, or the text parts of a list joined."""
    if isinstance(content, str):
        return content
    texts = [t for part in items_of(content) if isinstance(t := mapping(part).get("text"), str)]
    return "".join(texts) if texts else None


def classify(error: object, status: int | None) -> tuple[Code, str | None]:
    """Say what an error object means.

    Parameters
    ----------
    error
        The provider's error: an object, or a string as some servers write it.
    status
        The HTTP status it came with, or None where there was no HTTP answer.

    Returns
    -------
    (Code, str or None)
        The code, and the provider's own word for it. An error without a status that no table knows is a server error:
        it was not executed, and is not billed.
    """
    fields = mapping(error)
    words = [w for key in ("code", "type", "error_code") if (w := word(fields.get(key)))]
    if isinstance(error, str) and (w := word(error)):
        words.append(w)
    for w in words:
        code = _CODES.get(w.lower())
        # A word that only repeats the kind of the status must not overrule it: 429 and 503 come as all sorts of types.
        if code is not None and (status is None or code in (Code.ACCOUNT_BLOCKED, Code.EXPIRED, Code.CANCELED)):
            return code, w
    number = count(fields.get("code"))
    if status is None and number is not None and 400 <= number <= 599:
        status = number
    if status is not None:
        return code_of_status(status), words[0] if words else f"http_{status}"
    return Code.SERVER_ERROR, words[0] if words else "unknown_error"


def _chat(body: Mapping[str, Any], choices: list[Any]) -> tuple[Code, str | None, str | None, str | None]:
    choice = mapping(choices[0])
    message = mapping(choice.get("message"))
    answer = _parts_text(message.get("content"))
    end = word(choice.get("finish_reason"))
    refused = bool(message.get("refusal")) or any(
        mapping(part).get("type") == "refusal" for part in items_of(message.get("content"))
    )
    if refused:
        return Code.REFUSED, answer, None, end
    if end is None and choice.get("finish_reason") is None:
        # Some servers leave it out. An answer is judged by its text then; without one there is nothing to judge.
        return (Code.OK, answer, None, None) if answer else (Code.SERVER_ERROR, None, "empty_body", None)
    code = _CHAT_ENDS.get(end or "")
    if code is None:
        return Code.NEEDS_CONTINUATION, answer, "unknown_finish_reason", end
    return code, answer, None, end


def _responses(body: Mapping[str, Any]) -> tuple[Code, str | None, str | None, str | None]:
    status = word(body.get("status"))
    texts: list[str] = []
    refused = False
    for item in items_of(body.get("output")):
        if mapping(item).get("type") != "message":
            continue
        for part in items_of(mapping(item).get("content")):
            fields = mapping(part)
            if fields.get("type") == "refusal":
                refused = True
            elif isinstance(text := fields.get("text"), str):
                texts.append(text)
    answer = "".join(texts) if texts else None
    if status == "failed":
        code, detail = classify(body.get("error"), None)
        return code, None, detail, status
    if status == "incomplete":
        reason = word(mapping(body.get("incomplete_details")).get("reason"))
        if refused:
            return Code.REFUSED, answer, None, reason
        code = _INCOMPLETE.get(reason or "", Code.NEEDS_CONTINUATION)
        return code, answer, None if reason in _INCOMPLETE else "unknown_incomplete_reason", reason
    if status == "completed":
        return (Code.REFUSED if refused else Code.OK), answer, None, status
    if status in ("cancelled", "canceled"):
        return Code.CANCELED, None, None, status
    # queued, in_progress, or a state that this version does not know: no answer, and never success.
    return Code.SERVER_ERROR, None, "unfinished_response", status


def _meaning(record: Mapping[str, Any]) -> tuple[Code, str | None, str | None, str | None, Mapping[str, Any]]:
    """Return code, answer, detail, finish reason, and the body that usage and model are read from."""
    response = record.get("response")
    error = record.get("error")
    if not isinstance(response, dict):
        if error:
            code, detail = classify(error, None)
            return code, None, detail, None, {}
        return Code.UNREADABLE, None, "no_response", None, {}
    body = response.get("body")
    fields = mapping(body)
    status = count(response.get("status_code"))
    choices, output = items_of(fields.get("choices")), fields.get("output")
    answered = bool(choices) or isinstance(output, list)
    if status is None and not answered and error:
        code, detail = classify(error, None)
        return code, None, detail, None, fields
    if status is not None and not 200 <= status < 300:
        code, detail = classify(fields.get("error") or error or fields, status)
        return code, None, detail, None, fields
    if fields.get("status") == "failed":
        code, answer, detail, end = _responses(fields)
    elif not answered and fields.get("error"):
        # Some gateways answer 200 and put the error where the answer would be.
        code, detail = classify(fields.get("error"), None)
        return code, None, detail, None, fields
    elif choices:
        code, answer, detail, end = _chat(fields, choices)
    elif "status" in fields:
        code, answer, detail, end = _responses(fields)
    else:
        code, detail = no_object(body)
        return code, None, detail, None, fields
    return code, answer, detail, end, fields


def usage_of(body: Mapping[str, Any]) -> tuple[int | None, int | None, int | None, int | None]:
    """Return (input, cache read, cache write, output) tokens of a body; the input total holds the cached ones."""
    usage = mapping(body.get("usage"))
    if "prompt_tokens" in usage:
        given, made, details = (
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            "prompt_tokens_details",
        )
    else:
        given, made, details = usage.get("input_tokens"), usage.get("output_tokens"), "input_tokens_details"
    cached = mapping(usage.get(details))
    return (
        count(given),
        count(cached.get("cached_tokens")),
        count(cached.get("cache_write_tokens")),
        count(made),
    )


def _any_shape(line: bytes) -> Row:
    """Read one line of whatever shape."""
    record = load_line(line)
    if record is None:
        return unreadable(None, "not_json")
    custom_id = representable(text_of(record.get("custom_id")))
    code, answer, detail, end, body = _meaning(record)
    model = representable(text_of(body.get("model")))
    return (custom_id, code.value, representable(answer), detail, end, model, *usage_of(body))


def read_lines(lines: Sequence[bytes]) -> pl.DataFrame:
    """Say what result lines of chat completions or responses mean.

    Parameters
    ----------
    lines
        Raw lines of output and error files, of synchronous calls in the same envelope, or of a local batch runner.

    Returns
    -------
    pl.DataFrame
        `OUTCOMES`, one row a line, in order. A line that is no JSON object is `unreadable` with a null custom id.

    Notes
    -----
    No network. The source of the mapping is the outcome table of the provider contracts: HTTP 200 with a finish or
    status that is known is ok, refused or truncated; an unknown one is never ok.
    """
    return read_with(_common, _any_shape, lines)
