"""What services that speak OpenAI's dialect share: the body of a request, and the meaning of a result line.

A body is a constant head, the row's content as a JSON string, and a constant tail, so that the shared part is the same
bytes for every row and comes first. A result line means one `Code`, whichever file it came in; what it says is read by a
typed decoder where it has the common shape and by a slower one where it does not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import msgspec
import polars as pl

from lotwise.request import OUTCOMES, Code

Row = tuple[
    str | None,
    str,
    str | None,
    str | None,
    str | None,
    str | None,
    int | None,
    int | None,
    int | None,
    int | None,
]
"""One outcome, in the order of `OUTCOMES`."""

# Made by this package where a synchronous call gave no answer (see `lotwise.executors.live`).
ANSWER_LOST = "answer_lost"
NOT_SENT = "not_sent"

_CODES: Final[Mapping[str, Code]] = {
    # rows that never ran
    "batch_expired": Code.EXPIRED,
    "batch_cancelled": Code.CANCELED,
    "batch_canceled": Code.CANCELED,
    "request_timeout": Code.SERVER_ERROR,
    ANSWER_LOST: Code.UNCERTAIN,
    NOT_SENT: Code.SERVER_ERROR,
    # the account, whatever the status says
    "insufficient_quota": Code.ACCOUNT_BLOCKED,
    "billing_hard_limit_reached": Code.ACCOUNT_BLOCKED,
    "billing_not_active": Code.ACCOUNT_BLOCKED,
    "account_deactivated": Code.ACCOUNT_BLOCKED,
    "invalid_api_key": Code.ACCOUNT_BLOCKED,
    "model_not_found": Code.ACCOUNT_BLOCKED,
    "deploymentnotfound": Code.ACCOUNT_BLOCKED,
    "authentication_error": Code.ACCOUNT_BLOCKED,
    "permission_error": Code.ACCOUNT_BLOCKED,
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

_WORD = re.compile(r"[A-Za-z][A-Za-z_.]{0,63}")
_INT64_MAX = 2**63 - 1


def word(value: object) -> str | None:
    """Return a provider's error word if it is one, else None.

    Letters, ``_`` and ``.`` only: neither a sentence, which may quote the row, nor a key passes.
    """
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def code_of_status(status: int) -> Code:
    """Name the code of an HTTP status that is not 200, where its body says nothing more exact."""
    if status in (401, 402, 403):
        return Code.ACCOUNT_BLOCKED
    if status == 429:
        return Code.RATE_LIMITED
    if status in (408, 409, 425) or status < 400 or status >= 500:
        return Code.SERVER_ERROR
    return Code.BAD_REQUEST


# --- Reading: the common shapes ------------------------------------------------------------------------------------


_Tokens = Annotated[int, msgspec.Meta(ge=0, le=_INT64_MAX)]


class _Message(msgspec.Struct, gc=False):
    content: str | None = None
    refusal: str | None = None


class _Choice(msgspec.Struct, gc=False):
    message: _Message
    finish_reason: str | None = None


class _InputDetails(msgspec.Struct, gc=False):
    cached_tokens: _Tokens | None = None
    cache_write_tokens: _Tokens | None = None


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: _Tokens | None = None
    completion_tokens: _Tokens | None = None
    prompt_tokens_details: _InputDetails | None = None
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
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
    if usage.prompt_tokens is not None:
        given, made, details = usage.prompt_tokens, usage.completion_tokens, usage.prompt_tokens_details
    else:
        given, made, details = usage.input_tokens, usage.output_tokens, usage.input_tokens_details
    if details is None:
        return (record.custom_id, code, answer, None, end, body.model, given, None, None, made)
    read, written = details.cached_tokens, details.cache_write_tokens
    return (record.custom_id, code, answer, None, end, body.model, given, read, written, made)


# --- Reading: every other shape ------------------------------------------------------------------------------------


def _count(value: object) -> int | None:
    """Return a token count if the value is one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _INT64_MAX:
        return None
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _parts_text(content: object) -> str | None:
    """Return the text of a message: a string, or the text parts of a list joined."""
    if isinstance(content, str):
        return content
    texts = [t for part in _list(content) if isinstance(t := _mapping(part).get("text"), str)]
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
    fields = _mapping(error)
    words = [w for key in ("code", "type", "error_code") if (w := word(fields.get(key)))]
    if isinstance(error, str) and (w := word(error)):
        words.append(w)
    for w in words:
        code = _CODES.get(w.lower())
        # A word that only repeats the kind of the status must not overrule it: 429 and 503 come as all sorts of types.
        if code is not None and (
            status is None or code in (Code.ACCOUNT_BLOCKED, Code.EXPIRED, Code.CANCELED)
        ):
            return code, w
    number = _count(fields.get("code"))
    if status is None and number is not None and 400 <= number <= 599:
        status = number
    if status is not None:
        return code_of_status(status), words[0] if words else f"http_{status}"
    return Code.SERVER_ERROR, words[0] if words else "unknown_error"


def _chat(body: Mapping[str, Any], choices: list[Any]) -> tuple[Code, str | None, str | None, str | None]:
    choice = _mapping(choices[0])
    message = _mapping(choice.get("message"))
    answer = _parts_text(message.get("content"))
    end = word(choice.get("finish_reason"))
    refused = bool(message.get("refusal")) or any(
        _mapping(part).get("type") == "refusal" for part in _list(message.get("content"))
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
    for item in _list(body.get("output")):
        if _mapping(item).get("type") != "message":
            continue
        for part in _list(_mapping(item).get("content")):
            fields = _mapping(part)
            if fields.get("type") == "refusal":
                refused = True
            elif isinstance(text := fields.get("text"), str):
                texts.append(text)
    answer = "".join(texts) if texts else None
    if status == "failed":
        code, detail = classify(body.get("error"), None)
        return code, None, detail, status
    if status == "incomplete":
        reason = word(_mapping(body.get("incomplete_details")).get("reason"))
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
    fields = _mapping(body)
    status = _count(response.get("status_code"))
    choices, output = _list(fields.get("choices")), fields.get("output")
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
        return Code.SERVER_ERROR, None, "empty_body", None, fields
    return code, answer, detail, end, fields


def usage_of(body: Mapping[str, Any]) -> tuple[int | None, int | None, int | None, int | None]:
    """Return (input, cache read, cache write, output) tokens of a body; the input total holds the cached ones."""
    usage = _mapping(body.get("usage"))
    if "prompt_tokens" in usage:
        given, made, details = (
            usage.get("prompt_tokens"),
            usage.get("completion_tokens"),
            "prompt_tokens_details",
        )
    else:
        given, made, details = usage.get("input_tokens"), usage.get("output_tokens"), "input_tokens_details"
    cached = _mapping(usage.get(details))
    return (
        _count(given),
        _count(cached.get("cached_tokens")),
        _count(cached.get("cache_write_tokens")),
        _count(made),
    )


def _representable(text: str | None) -> str | None:
    """Replace lone surrogates, which JSON escapes can spell and UTF-8 cannot, by U+FFFD; the raw line keeps them."""
    return None if text is None else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load_line(line: bytes) -> dict[str, Any] | None:
    """Parse one line leniently (a byte-order mark, NaN, lone surrogates pass); None for what is no JSON object."""
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def unreadable(custom_id: str | None, detail: str) -> Row:
    """Make the row of a line that says nothing."""
    return (custom_id, Code.UNREADABLE.value, None, detail, None, None, None, None, None, None)


def _any_shape(line: bytes) -> Row:
    """Read one line of whatever shape."""
    record = load_line(line)
    if record is None:
        return unreadable(None, "not_json")
    custom_id = _representable(_text(record.get("custom_id")))
    code, answer, detail, end, body = _meaning(record)
    model = _representable(_text(body.get("model")))
    return (custom_id, code.value, _representable(answer), detail, end, model, *usage_of(body))


def outcomes(rows: Sequence[Row]) -> pl.DataFrame:
    """Make the `OUTCOMES` frame of rows."""
    if not rows:
        return pl.DataFrame(schema=OUTCOMES)
    columns = zip(*rows, strict=True)
    return pl.DataFrame(
        [
            pl.Series(name, values, dtype=dtype, strict=True)
            for (name, dtype), values in zip(OUTCOMES.items(), columns, strict=True)
        ]
    )


def read_with(
    common: Callable[[bytes], Row | None], any_shape: Callable[[bytes], Row], lines: Sequence[bytes]
) -> pl.DataFrame:
    """Read lines by the quick reader, and by the patient one where the quick one declines."""
    return outcomes([common(line) or any_shape(line) for line in lines])


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
