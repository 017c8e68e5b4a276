"""What the emulated model answers: a pure function of the request body.

The same body always gives the same answer and the same usage, so a test can compute what must stand in a
frame.  With a JSON Schema on the wire the answer satisfies it, each value picked by a hash of the user's text
and the value's path; without one the answer echoes the user's text.  Dialects are told apart by the body's
own fields.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any, Literal

from emulator.schema_values import SchemaValues, UnsupportedSchema

Dialect = Literal["chat", "responses", "messages"]
Json = dict[str, Any]

BYTES_PER_TOKEN = 4

# json.dumps builds an encoder a call where its options are not the defaults; a batch has 25,000 rows.
COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
CANONICAL = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode

__all__ = ["Answer", "Dialect", "Tokens", "UnsupportedSchema", "answer_text", "body_digest", "tokens_of", "wrong_text"]


@dataclass(frozen=True, kw_only=True)
class Tokens:
    """Usage of one request; `input` includes the `cached` part."""

    input: int
    cached: int
    output: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The model's text for one body, and whether max_tokens cut it."""

    text: str
    truncated: bool
    tokens: Tokens


def body_digest(body: Json) -> str:
    """Return SHA-256 over the body's canonical JSON: what makes two sent bodies the same request."""
    return sha256(CANONICAL(body).encode("utf-8", "surrogatepass")).hexdigest()


def user_text(body: Json, dialect: Dialect) -> str:
    """Return the text of the user's turns, joined by a newline."""
    turns = body.get("input") if dialect == "responses" else body.get("messages")
    if isinstance(turns, str):
        return turns
    texts: list[str] = []
    for turn in turns or ():
        if isinstance(turn, dict) and turn.get("role") == "user":
            texts.extend(_texts(turn.get("content")))
    return "\n".join(texts)


def _texts(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if isinstance(part, dict) and isinstance(part.get("text"), str)]


def wire_schema(body: Json, dialect: Dialect) -> Json | None:
    """Return the JSON Schema that the body asks for, or None for plain text."""
    if dialect == "chat":
        form = body.get("response_format") or {}
        schema = (form.get("json_schema") or {}).get("schema") if form.get("type") == "json_schema" else None
    else:
        holder = body.get("text") if dialect == "responses" else body.get("output_config")
        form = (holder or {}).get("format") or {}
        schema = form.get("schema") if form.get("type") == "json_schema" else None
    return schema


def max_tokens(body: Json, dialect: Dialect) -> int | None:
    """Return the output cap of the body, or None where it has none."""
    names = {
        "chat": ("max_completion_tokens", "max_tokens"),
        "responses": ("max_output_tokens",),
        "messages": ("max_tokens",),
    }[dialect]
    return next((body[name] for name in names if isinstance(body.get(name), int)), None)


def answer_text(body: Json, dialect: Dialect, *, echo: bool = False) -> str:
    """Return the whole answer of the model to a body, before any cap.

    Raises UnsupportedSchema where the schema needs something that the emulator cannot make up.
    """
    user = user_text(body, dialect)
    schema = wire_schema(body, dialect)
    if schema is None:
        return user
    seed = blake2b(user.encode("utf-8", "surrogatepass"), digest_size=16).digest()
    value = SchemaValues(schema, seed, echo=user if echo else None).value()
    return COMPACT(value)


def wrong_text(body: Json, dialect: Dialect) -> str:
    """Return an answer that is well formed, plausible, and not the model's: its schema's values by another hash.

    Where a schema allows one value only, no answer can be wrong, and it is that value.
    """
    right = answer_text(body, dialect)
    schema = wire_schema(body, dialect)
    if schema is None:
        return f"not {right}"
    user = user_text(body, dialect).encode("utf-8", "surrogatepass")
    seeds = (blake2b(user, digest_size=16, key=b"wrong%d" % n).digest() for n in range(64))
    return next((text for seed in seeds if (text := COMPACT(SchemaValues(schema, seed).value())) != right), right)


def input_tokens(body: Json, dialect: Dialect, *, worst: bool = False) -> int:
    """Return the tokens of everything that the model reads: turns, system text and schema."""
    turns = body.get("input") if dialect == "responses" else body.get("messages")
    if isinstance(turns, str):
        size = _size(turns)
    else:
        contents = (turn.get("content") for turn in turns or () if isinstance(turn, dict))
        size = sum(_size(text) for content in contents for text in _texts(content))
    extra = body.get("instructions") if dialect == "responses" else body.get("system")
    size += sum(_size(text) for text in _texts(extra))
    schema = wire_schema(body, dialect)
    if schema is not None:
        size += _size(COMPACT(schema))
    return max(1, size if worst else -(-size // BYTES_PER_TOKEN))


def tokens_of(
    body: Json,
    dialect: Dialect,
    text: str,
    *,
    cached_fraction: float = 0.0,
    worst: bool = False,
    cut: bool = False,
) -> Tokens:
    """Return the usage of an answer.

    Four bytes are one token; with `worst` each input byte is a token and the output fills its cap, the most
    that a budget must have reserved.  A cut answer has used its whole cap.
    """
    read = input_tokens(body, dialect, worst=worst)
    cap = max_tokens(body, dialect)
    wrote = max(1, -(-_size(text) // BYTES_PER_TOKEN))
    if cap is not None:
        wrote = cap if worst or cut else min(wrote, cap)
    return Tokens(input=read, cached=int(read * cached_fraction), output=wrote)


def capped(text: str, cap: int | None) -> tuple[str, bool]:
    """Return the text within a cap of tokens, and whether something was cut off."""
    raw = text.encode("utf-8", "surrogatepass")
    if cap is None or len(raw) <= cap * BYTES_PER_TOKEN:
        return text, False
    return raw[: cap * BYTES_PER_TOKEN].decode("utf-8", "ignore"), True


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogatepass"))
