"""What Anthropic's batches and messages share: the body of a request, its schema, and the meaning of a result line.

A line says succeeded, errored, canceled or expired; what kind of answer or error it is stands one level deeper, in
some copies two. A type that this version does not know is never success.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec
import polars as pl

from lotwise.errors import UnsupportedParameter
from lotwise.executors.encode import BodyParts, Envelope, json_text
from lotwise.executors.live import Answer
from lotwise.executors.openai_dialect import params_text
from lotwise.executors.reading import (
    ANSWER_LOST,
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
from lotwise.executors.wire_schema import Subset, WireSchema, to_enforced_wire
from lotwise.request import Code, Spec

PATH = "/v1/messages"

SUBSET = Subset(
    provider="anthropic",
    keywords=frozenset({"pattern", "format", "minItems"}),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "uri", "ipv4", "ipv6", "uuid"}),
    all_required=False,
    recursion=False,
    min_items=1,
    max_optional=24,
)
"""The subset of structured outputs (provider contracts, section 3)."""

ENVELOPE = Envelope(before='{"custom_id":"', between='","params":', after="}")

_OWN: Final[Mapping[str, str]] = {
    "model": "it is named in model=",
    "messages": "prompt= and examples= make them",
    "system": "system= makes it",
    "max_tokens": "give it as max_tokens of the map",
    "output_format": "schema= makes it",
    "stream": "answers are read whole",
}
_NOT_IN_BATCH: Final[Mapping[str, str]] = {"speed": 'a batch takes no speed; use tier="interactive"'}

_STOPS: Final[Mapping[str, Code]] = {
    "end_turn": Code.OK,
    "stop_sequence": Code.OK,
    "tool_use": Code.OK,
    "max_tokens": Code.TRUNCATED,
    "model_context_window_exceeded": Code.TRUNCATED,
    "refusal": Code.REFUSED,
    "pause_turn": Code.NEEDS_CONTINUATION,
}
_ERRORS: Final[Mapping[str, Code]] = {
    "invalid_request_error": Code.BAD_REQUEST,
    "request_too_large": Code.BAD_REQUEST,
    "authentication_error": Code.ACCOUNT_BLOCKED,
    "billing_error": Code.ACCOUNT_BLOCKED,
    "permission_error": Code.ACCOUNT_BLOCKED,
    "rate_limit_error": Code.RATE_LIMITED,
    "timeout_error": Code.SERVER_ERROR,
    "api_error": Code.SERVER_ERROR,
    "overloaded_error": Code.SERVER_ERROR,
    ANSWER_LOST: Code.UNCERTAIN,
    NOT_SENT: Code.SERVER_ERROR,
}
# The provider gives one type for everything that is not found; only the model is a matter of the account.
_OF_THE_MODEL = re.compile(r"\bmodel\b", re.IGNORECASE)


# --- Bodies --------------------------------------------------------------------------------------------------


def refuse_params(spec: Spec, *, batch: bool) -> None:
    """Refuse parameters that lotwise sets itself or that cannot be carried.

    Raises
    ------
    UnsupportedParameter
        The first such name, with the reason.
    """
    reasons = {**_OWN, **(_NOT_IN_BATCH if batch else {})}
    for name in spec.params:
        if name in reasons:
            raise UnsupportedParameter.of(spec.provider, name, reasons[name])
    given = spec.params.get("output_config")
    if isinstance(given, Mapping) and "format" in given:
        raise UnsupportedParameter.of(spec.provider, "output_config.format", "schema= makes it")


def wire_schema(schema_text: str) -> WireSchema:
    """Cut a JSON Schema to Anthropic's subset.

    Raises
    ------
    UnsupportedSchema
        Something that no rule can take off the wire: there is no way to send a schema unenforced.
    """
    return to_enforced_wire(schema_text, SUBSET)


def body_parts(spec: Spec, *, max_tokens: int | None = None) -> BodyParts:
    """Make the constant parts of a request body: ``head + json(content) + tail``.

    Parameters
    ----------
    spec
        What all requests share. `spec.wire_schema` goes in as it stands.
    max_tokens
        A limit that replaces the spec's; None for the spec's.
    """
    limit = spec.max_tokens if max_tokens is None else max_tokens
    members = [f'"model":{json_text(spec.model)}', f'"max_tokens":{limit}']
    members += params_text({k: v for k, v in spec.params.items() if k != "output_config"})
    config = params_text(spec.params.get("output_config", {}))
    if spec.wire_schema is not None:
        config.append(f'"format":{{"type":"json_schema","schema":{spec.wire_schema}}}')
    if config:
        members.append(f'"output_config":{{{",".join(config)}}}')
    if spec.system is not None:
        members.append(f'"system":{json_text(spec.system)}')
    turns = [turn for asked, told in spec.examples for turn in (("user", asked), ("assistant", told))]
    shared = "".join(f'{{"role":"{role}","content":{json_text(said)}}},' for role, said in turns)
    return BodyParts(head=f'{{{",".join(members)},"messages":[{shared}{{"role":"user","content":', tail="}]}")


# --- The common shape ----------------------------------------------------------------------------------------


class _Block(msgspec.Struct, gc=False):
    type: str
    text: str | None = None


class _Usage(msgspec.Struct, gc=False):
    input_tokens: Tokens
    output_tokens: Tokens
    cache_creation_input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None


class _Message(msgspec.Struct, gc=False):
    content: list[_Block]
    stop_reason: str
    usage: _Usage
    model: str | None = None


class _Result(msgspec.Struct, gc=False):
    type: str
    message: _Message


class _Line(msgspec.Struct, gc=False):
    custom_id: str
    result: _Result


_decode = msgspec.json.Decoder(_Line).decode
_COMMON_STOPS: Final[Mapping[str, str]] = {
    stop: code.value for stop, code in _STOPS.items() if code is not Code.REFUSED
}


def _common(line: bytes) -> Row | None:
    """Read a finished answer of the common shape; None for whatever is not one."""
    try:
        record = _decode(line)
    except msgspec.DecodeError:
        return None
    message = record.result.message
    code = _COMMON_STOPS.get(message.stop_reason)
    if record.result.type != "succeeded" or code is None:
        return None
    texts = [block.text for block in message.content if block.type == "text" and block.text is not None]
    answer = texts[0] if len(texts) == 1 else "".join(texts) if texts else None
    usage = message.usage
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return (
        record.custom_id,
        code,
        answer,
        None,
        message.stop_reason,
        message.model,
        usage.input_tokens + (read or 0) + (written or 0),
        read,
        written,
        usage.output_tokens,
    )


# --- Every other shape ---------------------------------------------------------------------------------------


def _any_shape(line: bytes) -> Row:
    record = load_line(line)
    if record is None:
        return unreadable(None, "not_json")
    custom_id = representable(text_of(record.get("custom_id")))
    result = mapping(record.get("result"))
    kind = result.get("type")
    if kind == "succeeded":
        return _succeeded(custom_id, result.get("message"))
    if kind == "errored":
        code, detail = classify(result.get("error"), count(result.get("status_code")))
    elif kind == "canceled":
        code, detail = Code.CANCELED, None
    elif kind == "expired":
        code, detail = Code.EXPIRED, None
    elif isinstance(kind, str):
        code, detail = Code.SERVER_ERROR, "unknown_result_type"
    else:
        return unreadable(custom_id, "no_result")
    return (custom_id, code.value, None, detail, None, None, None, None, None, None)


def _succeeded(custom_id: str | None, message: object) -> Row:
    if not isinstance(message, dict) or not message:
        means, why = no_object(message)
        return (custom_id, means.value, None, why, None, None, None, None, None, None)
    texts = [
        text
        for block in items_of(message.get("content"))
        if mapping(block).get("type") == "text" and isinstance(text := mapping(block).get("text"), str)
    ]
    stop = word(message.get("stop_reason"))
    code = _STOPS.get(stop or "", Code.NEEDS_CONTINUATION)
    detail = None if stop in _STOPS else "unknown_stop_reason"
    if code is Code.REFUSED:
        detail = word(mapping(message.get("stop_details")).get("category"))
    usage = mapping(message.get("usage"))
    given, made = count(usage.get("input_tokens")), count(usage.get("output_tokens"))
    read = count(usage.get("cache_read_input_tokens"))
    written = count(usage.get("cache_creation_input_tokens"))
    # The provider's input_tokens leave the cached ones out; an outcome's hold them.
    total = None if given is None else given + (read or 0) + (written or 0)
    answer = representable("".join(texts)) if texts else None
    model = representable(text_of(message.get("model")))
    return (custom_id, code.value, answer, detail, stop, model, total, read, written, made)


def classify(error: object, status: int | None) -> tuple[Code, str | None]:
    """Say what an error means, nested in an envelope of type ``error`` or not.

    Parameters
    ----------
    error
        The provider's error object.
    status
        The HTTP status of a synchronous call; None in a batch.
    """
    fields = mapping(error)
    inner = mapping(fields.get("error")) or fields
    kind = word(inner.get("type"))
    if kind == "not_found_error":
        of_model = _OF_THE_MODEL.search(text_of(inner.get("message")) or "")
        return (Code.ACCOUNT_BLOCKED if of_model else Code.BAD_REQUEST), kind
    known = _ERRORS.get(kind or "")
    if known is not None:
        return known, kind
    if status is not None and status >= 400:
        return code_of_status(status), kind if kind and kind != "error" else f"http_{status}"
    return Code.SERVER_ERROR, kind or "unknown_error"


def read_lines(lines: Sequence[bytes]) -> pl.DataFrame:
    """Say what result lines mean.

    Parameters
    ----------
    lines
        Raw lines of a batch's results, or of synchronous calls in the same envelope.

    Returns
    -------
    pl.DataFrame
        `OUTCOMES`, one row a line, in order. A line that is no JSON object is `unreadable` with a null custom id.
        `input_tokens` hold the tokens read from and written to the cache.

    Notes
    -----
    No network. The source of the mapping is the outcome table of the provider contracts.
    """
    return read_with(_common, _any_shape, lines)


def answer_line(answer: Answer) -> bytes:
    """Put the answer to a synchronous call into the envelope of a result line."""
    start = b'{"custom_id":' + json_text(answer.custom_id).encode() + b',"result":{"type":'
    if answer.failure is not None:
        kind = json_text(answer.failure).encode()
        return start + b'"errored","error":{"type":"error","error":{"type":' + kind + b',"message":""}}}}'
    body = answer.body or b"null"
    if answer.status == 200:
        return start + b'"succeeded","message":' + body + b"}}"
    return start + b'"errored","status_code":' + str(answer.status).encode() + b',"error":' + body + b"}}"
