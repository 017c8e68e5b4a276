"""What services that speak OpenAI's dialect share: the body of a request, its schema, and the lines of a batch.

The body holds the model, the limit, the parameters and the schema first, then the messages, the row's content last, so
that what rows share is the same bytes from the start. `read_lines` says what the answers mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

import rfc8785

from lotwise.errors import UnsupportedParameter
from lotwise.executors.encode import BodyParts, Envelope, json_text
from lotwise.executors.live import Answer
from lotwise.executors.openai_lines import read_lines
from lotwise.executors.wire_schema import Subset, WireSchema, to_wire
from lotwise.request import Spec

__all__ = [
    "PATHS",
    "SUBSET",
    "Endpoint",
    "answer_line",
    "body_parts",
    "envelope",
    "read_lines",
    "refuse_params",
    "wire_schema",
]

Endpoint = Literal["chat", "responses"]

Path = Literal["/v1/chat/completions", "/v1/responses"]

PATHS: Final[Mapping[Endpoint, Path]] = {"chat": "/v1/chat/completions", "responses": "/v1/responses"}

SCHEMA_NAME = "answer"

SUBSET = Subset(
    provider="openai",
    keywords=frozenset(
        {"pattern", "format", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"}
        | {"minItems", "maxItems"}
    ),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}),
    all_required=True,
    recursion=True,
    max_properties=5_000,
    max_depth=10,
    max_enum_values=1_000,
    max_text=120_000,
)
"""The subset of strict structured outputs (provider contracts, section 1)."""

_OWN: Final[Mapping[Endpoint, Mapping[str, str]]] = {
    "chat": {
        "model": "it is named in model=",
        "messages": "prompt=, system= and examples= make them",
        "response_format": "schema= makes it",
        "max_tokens": "give it as max_tokens of the map",
        "max_completion_tokens": "give it as max_tokens of the map",
    },
    "responses": {
        "model": "it is named in model=",
        "input": "prompt= and examples= make it",
        "instructions": "system= makes it",
        "max_output_tokens": "give it as max_tokens of the map",
        "background": "an answer must come with the call",
    },
}
_NEVER: Final[Mapping[str, str]] = {
    "stream": "answers are read whole",
    "stream_options": "answers are read whole",
    "n": "a row has one answer; use repeat for more",
}


def refuse_params(spec: Spec, endpoint: Endpoint) -> None:
    """Refuse parameters that lotwise sets itself or that cannot be carried.

    Raises
    ------
    UnsupportedParameter
        The first such name, with the reason.
    """
    reasons = {**_NEVER, **_OWN[endpoint]}
    for name in spec.params:
        if name in reasons:
            raise UnsupportedParameter.of(spec.provider, name, reasons[name])
    text = spec.params.get("text")
    if endpoint == "responses" and isinstance(text, Mapping) and "format" in text:
        raise UnsupportedParameter.of(spec.provider, "text.format", "schema= makes it")


def wire_schema(schema_text: str) -> WireSchema:
    """Cut a JSON Schema to OpenAI's strict subset; what is inexpressible there is sent unenforced, whole."""
    return to_wire(schema_text, SUBSET)


def _schema_form(wire: str) -> str:
    """Write the named form of a schema; strict where the text is within the strict subset as it stands."""
    if "\n" in wire:
        raise ValueError("a schema on the wire is one line; make it with wire_schema()")
    cut = wire_schema(wire)
    strict = not cut.inexpressible and cut.text == wire
    return f'"name":"{SCHEMA_NAME}","strict":{json_text(strict)},"schema":{wire}'


def params_text(params: Mapping[str, Any]) -> list[str]:
    """Write parameters as JSON members, sorted by name, each value in canonical form (RFC 8785).

    Canonical, so that the same bytes come of what the user gave and of what the ledger stored.
    """
    return [f"{json_text(name)}:{rfc8785.dumps(params[name]).decode()}" for name in sorted(params)]


def body_parts(
    spec: Spec,
    endpoint: Endpoint = "chat",
    *,
    max_tokens: int | None = None,
    max_tokens_name: str | None = None,
    response_format: str | None = None,
) -> BodyParts:
    """Make the constant parts of a request body.

    Parameters
    ----------
    spec
        What all requests share. `spec.wire_schema` goes in as it stands.
    endpoint
        "chat" for chat completions, "responses" for responses.
    max_tokens
        A limit that replaces the spec's; None for the spec's.
    max_tokens_name
        The field that carries it in chat completions: older servers know ``max_tokens`` only. None for
        ``max_completion_tokens``.
    response_format
        What chat completions ask for in place of the schema: a whole member of the body; None for the schema.

    Returns
    -------
    BodyParts
        ``head + json(content) + tail`` is the body.
    """
    limit = spec.max_tokens if max_tokens is None else max_tokens
    turns = [turn for asked, told in spec.examples for turn in (("user", asked), ("assistant", told))]
    members = [f'"model":{json_text(spec.model)}']
    if endpoint == "chat":
        members.append(f'"{max_tokens_name or "max_completion_tokens"}":{limit}')
        members += params_text(spec.params)
        if spec.wire_schema is not None:
            form = f'"response_format":{{"type":"json_schema","json_schema":{{{_schema_form(spec.wire_schema)}}}}}'
            members.append(response_format or form)
        if spec.system is not None:
            turns.insert(0, ("system", spec.system))
        messages = "messages"
    else:
        members.append(f'"max_output_tokens":{limit}')
        members += params_text({k: v for k, v in spec.params.items() if k != "text"})
        text = params_text(spec.params.get("text", {}))
        if spec.wire_schema is not None:
            text.append(f'"format":{{"type":"json_schema",{_schema_form(spec.wire_schema)}}}')
        if text:
            members.append(f'"text":{{{",".join(text)}}}')
        if spec.system is not None:
            members.append(f'"instructions":{json_text(spec.system)}')
        messages = "input"
    shared = "".join(f'{{"role":"{role}","content":{json_text(said)}}},' for role, said in turns)
    return BodyParts(head=f'{{{",".join(members)},"{messages}":[{shared}{{"role":"user","content":', tail="}]}")


def envelope(endpoint: Endpoint) -> Envelope:
    """Return what stands round custom id and body in a line of the input file."""
    return Envelope(
        before='{"custom_id":"',
        between=f'","method":"POST","url":"{PATHS[endpoint]}","body":',
        after="}",
    )


def answer_line(answer: Answer) -> bytes:
    """Put the answer to a synchronous call into the envelope of a result line."""
    start = b'{"id":null,"custom_id":' + json_text(answer.custom_id).encode()
    if answer.failure is not None:
        code = json_text(answer.failure).encode()
        return start + b',"response":null,"error":{"code":' + code + b',"message":""}}'
    told = f',"response":{{"status_code":{answer.status},"request_id":{json_text(answer.request_id)},"body":'
    return start + told.encode() + (answer.body or b"null") + b'},"error":null}'
