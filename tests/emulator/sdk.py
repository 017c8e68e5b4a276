"""Driving the emulator with the real SDKs: clients, request bodies, and batches from upload to result lines.

Result lines are returned raw, split at the newline byte alone: what the lines look like is what tests of
the emulator are about.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import anthropic
import openai

from emulator.handle import Emulator

Json = dict[str, Any]

SCHEMA: Json = {
    "type": "object",
    "properties": {
        "category": {"enum": ["billing", "bug", "how-to", "other"]},
        "urgent": {"type": "boolean"},
        "note": {"type": "string"},
        "score": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "required": ["category", "urgent", "note", "score"],
    "additionalProperties": False,
}


def openai_client(emulator: Emulator, key: str = "key-a", *, timeout_s: float = 30.0) -> openai.OpenAI:
    """Return a client that retries nothing; close it, or use it as a context manager."""
    return openai.OpenAI(api_key=key, base_url=emulator.openai_url, max_retries=0, timeout=timeout_s)


def anthropic_client(emulator: Emulator, key: str = "key-a", *, timeout_s: float = 30.0) -> anthropic.Anthropic:
    """Return a client that retries nothing; close it, or use it as a context manager."""
    return anthropic.Anthropic(api_key=key, base_url=emulator.anthropic_url, max_retries=0, timeout=timeout_s)


def chat_body(text: str, schema: Json | None = SCHEMA, **more: Any) -> Json:
    """Return the body of a chat completion."""
    body: Json = {"model": "m", "messages": [{"role": "user", "content": text}], **more}
    if schema is not None:
        form = {"name": "answer", "strict": True, "schema": schema}
        body["response_format"] = {"type": "json_schema", "json_schema": form}
    return body


def responses_body(text: str, schema: Json | None = SCHEMA, **more: Any) -> Json:
    """Return the body of a response."""
    body: Json = {"model": "m", "input": text, **more}
    if schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}}
    return body


def message_body(text: str, schema: Json | None = SCHEMA, **more: Any) -> Json:
    """Return the params of a message."""
    body: Json = {"model": "m", "max_tokens": 1000, "messages": [{"role": "user", "content": text}], **more}
    if schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
    return body


def input_file(bodies: dict[str, Json], endpoint: str = "/v1/chat/completions") -> bytes:
    """Return the bytes of an OpenAI input file."""
    lines = (
        {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": body} for custom_id, body in bodies.items()
    )
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def create_openai(
    client: openai.OpenAI, bodies: dict[str, Json], endpoint: Any = "/v1/chat/completions", **more: Any
) -> Any:
    """Upload an input file, create its batch, and return the batch."""
    file = client.files.create(file=("in.jsonl", input_file(bodies, endpoint)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def create_anthropic(client: anthropic.Anthropic, bodies: dict[str, Json]) -> Any:
    """Create a message batch, and return it."""
    requests: Any = [{"custom_id": custom_id, "params": body} for custom_id, body in bodies.items()]
    return client.messages.batches.create(requests=requests)


def openai_lines(client: openai.OpenAI, batch_id: str) -> tuple[list[Json], list[Json]]:
    """Return the lines of a batch's output file and of its error file."""
    batch = client.batches.retrieve(batch_id)
    files = (batch.output_file_id, batch.error_file_id)
    output, errors = (parsed(client.files.content(file).content) if file else [] for file in files)
    return output, errors


def anthropic_lines(client: anthropic.Anthropic, batch_id: str) -> list[Json]:
    """Return the lines of a message batch's results."""
    with client.messages.batches.with_streaming_response.results(batch_id) as response:
        return parsed(b"".join(response.iter_bytes()))


def parsed(content: bytes) -> list[Json]:
    """Return the JSON lines of a result file, split at the newline byte alone."""
    return [json.loads(line) for line in content.split(b"\n") if line]


def by_id(lines: Iterable[Json]) -> dict[str, Json]:
    """Return lines by custom id; an id that comes twice is an error."""
    found: dict[str, Json] = {}
    for line in lines:
        if line["custom_id"] in found:
            raise ValueError(f"custom id {line['custom_id']!r} comes twice")
        found[line["custom_id"]] = line
    return found
