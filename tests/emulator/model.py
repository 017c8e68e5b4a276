"""One request through the emulated model: what it ends as, with which text and usage.

First the provider's own refusals (unknown model, refused parameter, malformed request, schema outside its
subset), then the fate that the faults decided, then the answer under its cap of tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from emulator.answers import (
    Dialect,
    Json,
    Tokens,
    UnsupportedSchema,
    answer_text,
    capped,
    max_tokens,
    tokens_of,
    wire_schema,
    wrong_text,
)
from emulator.faults import BILLED, Faults, RowFate
from emulator.schema_rules import fault_of_schema

# Outcomes that a provider has no form for, and what it gives in their place.
NATIVE: dict[Dialect, dict[str, str]] = {
    "chat": {"context_window": "truncated", "needs_continuation": "ok", "model_failed": "server_error"},
    "responses": {"context_window": "truncated", "needs_continuation": "ok"},
    "messages": {
        "content_filter": "refused",
        "too_large": "bad_request",
        "unprocessable": "bad_request",
        "conflict": "server_error",
        "request_timeout": "timeout",
        "status_zero": "server_error",
        "empty_body": "server_error",
        "model_failed": "server_error",
    },
}


NOTHING = Tokens(input=0, cached=0, output=0)


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one request ends as; `text` and `tokens` are empty where nothing was answered."""

    outcome: str
    text: str = ""
    tokens: Tokens = NOTHING
    message: str = ""
    parameter: str | None = None

    @property
    def billed(self) -> bool:
        """Whether the provider charges for it."""
        return self.outcome in BILLED


def run(body: Json, dialect: Dialect, fate: RowFate, faults: Faults) -> Result:
    """Return the result of one request."""
    refusal = _refusal(body, dialect, faults)
    if refusal is not None:
        return refusal
    outcome = NATIVE[dialect].get(fate.outcome, fate.outcome)
    if outcome not in BILLED:
        parameter = fate.parameter if outcome == "bad_request" else None
        return Result(outcome=outcome, message=f"emulated {outcome.replace('_', ' ')}", parameter=parameter)
    try:
        text = answer_text(body, dialect, echo=faults.answers == "echo")
    except UnsupportedSchema as problem:
        return Result(outcome="bad_request", message=f"Invalid schema: {problem}", parameter="schema")
    text = _bent(text, outcome, body, dialect)
    cut = outcome in ("truncated", "context_window")
    if cut:
        text = text[: len(text) // 2]
    text, over = capped(text, max_tokens(body, dialect))
    if over and not cut:
        outcome, cut = "truncated", True
    tokens = tokens_of(
        body, dialect, text, cached_fraction=faults.cached_fraction, worst=faults.usage == "worst", cut=cut
    )
    return Result(outcome=outcome, text=text, tokens=tokens)


def _refusal(body: Json, dialect: Dialect, faults: Faults) -> Result | None:
    """Return why the provider would not even start, or None."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        return _bad("model: Field required", "model")
    if faults.models is not None and model not in faults.models:
        return Result(outcome="model_not_found", message=f"The model `{model}` does not exist", parameter="model")
    for name in faults.refused_parameters:
        if name in body:
            return _bad(f"Unsupported parameter: '{name}' is not supported with this model.", name)
    if body.get("stream"):
        return _bad("stream: not supported here", "stream")
    turns = "input" if dialect == "responses" else "messages"
    if not body.get(turns):
        return _bad(f"{turns}: Field required", turns)
    cap = max_tokens(body, dialect)
    if dialect == "messages" and cap is None:
        return _bad("max_tokens: Field required", "max_tokens")
    if cap is not None and cap < 1:
        return _bad("max_tokens: must be at least 1", "max_tokens")
    schema = wire_schema(body, dialect)
    problem = None if schema is None else fault_of_schema(schema, body, dialect)
    return None if problem is None else _bad(problem, "schema")


def _bad(message: str, parameter: str) -> Result:
    return Result(outcome="bad_request", message=message, parameter=parameter)


def _bent(text: str, outcome: str, body: Json, dialect: Dialect) -> str:
    """Return the answer as a model in trouble would give it."""
    if outcome == "empty":
        return ""
    if outcome in ("refused", "content_filter"):
        return "I can't help with that."
    if outcome == "wrong":
        return wrong_text(body, dialect)
    if outcome == "fenced":
        return f"```json\n{text}\n```"
    if outcome == "prose":
        return f"Here is the answer:\n\n{text}"
    if outcome == "invalid_json":
        return text[:-1] + ',,"' if text[-1:] in ("}", "]") else "{" + text
    if outcome == "schema_mismatch":
        return _mismatched(wire_schema(body, dialect))
    return text


def _mismatched(schema: Json | None) -> str:
    """Return JSON that parses and violates the schema: its first property is of no allowed type."""
    names: list[str] = list((schema or {}).get("properties", {}))
    value: Any = {names[0]: {"unexpected": ["value"]}} if names else [[["unexpected"]]]
    return json.dumps(value)
