"""The validation that OpenAI does of a batch's input file, line by line in bounded memory."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from emulator.answers import Json, input_tokens
from emulator.faults import Faults
from emulator.openai_wire import ENDPOINTS

MAX_REQUESTS = 50_000
MAX_BYTES = 200_000_000
MAX_ERRORS = 100


@dataclass(kw_only=True)
class BatchInput:
    """What an input file holds: rows as (custom id, position, length), its model, its errors."""

    rows: list[tuple[str, int, int]] = field(default_factory=list)
    model: str | None = None
    enqueued_tokens: int = 0
    errors: list[Json] = field(default_factory=list)

    def fault(self, code: str, message: str, line: int | None = None, parameter: str | None = None) -> None:
        """Note one error, up to the number that is reported."""
        if len(self.errors) < MAX_ERRORS:
            self.errors.append({"code": code, "message": message, "param": parameter, "line": line})


def read_input(path: Path, endpoint: str, faults: Faults) -> BatchInput:
    """Return what an input file holds."""
    found = BatchInput()
    seen: set[str] = set()
    most_requests = faults.max_requests or MAX_REQUESTS
    most_bytes = faults.max_bytes or MAX_BYTES
    position = 0
    with path.open("rb") as file:
        for number, raw in enumerate(file, 1):
            start, position = position, position + len(raw)
            if not raw.strip():
                continue
            _line(found, seen, raw, number, start, endpoint)
    if position > most_bytes:
        found.fault("invalid_request", f"The input file is larger than {most_bytes} bytes.")
    if len(found.rows) > most_requests:
        found.fault("too_many_tasks", f"The input file has more than {most_requests} requests.")
    if not found.rows and not found.errors:
        found.fault("empty_file", "The input file is empty.")
    if found.model is not None and faults.models is not None and found.model not in faults.models:
        found.fault("model_not_found", f"The model `{found.model}` does not exist.", parameter="body.model")
    return found


def _line(found: BatchInput, seen: set[str], raw: bytes, number: int, start: int, endpoint: str) -> None:
    try:
        line = json.loads(raw)
    except ValueError:
        found.fault("invalid_json_line", "This line is not valid JSON.", number)
        return
    body = line.get("body") if isinstance(line, dict) else None
    if not isinstance(body, dict):
        found.fault("invalid_request", "Each line must be an object with a body.", number, "body")
        return
    custom_id = line.get("custom_id")
    if not isinstance(custom_id, str) or not custom_id:
        found.fault("invalid_request", "Each line must have a custom_id.", number, "custom_id")
        return
    if custom_id in seen:
        found.fault("duplicate_custom_id", "The custom_id appears more than once.", number, "custom_id")
    seen.add(custom_id)
    if line.get("method") != "POST":
        found.fault("invalid_request", "The method must be POST.", number, "method")
    if line.get("url") != endpoint:
        found.fault("url_mismatch", f"The url must be {endpoint}.", number, "url")
    if body.get("stream"):
        found.fault("invalid_request", "stream is not supported in a batch.", number, "body.stream")
    model = body.get("model")
    if found.model is None and isinstance(model, str):
        found.model = model
    elif model != found.model:
        found.fault("model_mismatch", "All requests of a batch must name one model.", number, "body.model")
    found.enqueued_tokens += input_tokens(body, ENDPOINTS[endpoint])
    found.rows.append((custom_id, start, len(raw)))
