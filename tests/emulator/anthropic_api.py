"""The Anthropic endpoints: Message Batches, messages and models, for both styles of authentication."""

from __future__ import annotations

import json
import re
from typing import Any

from emulator import anthropic_wire as wire
from emulator.answers import Json, input_tokens
from emulator.clock import rfc3339
from emulator.http_values import Call, HttpError, Reply, Route
from emulator.openai_wire import ident
from emulator.records import Batch, NewBatch

CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
MAX_REQUESTS = 100_000
MAX_BYTES = 256_000_000
VERSIONS = ("2023-06-01", "2026-10-21")


def error(status: int, message: str, code: str | None, request_id: str | None) -> Json:
    """Return Anthropic's envelope of an HTTP error."""
    return wire.failure(code or wire.ERROR_TYPES.get(status, "api_error"), message, request_id)


def headers(call_number: int, project: str | None) -> dict[str, str]:
    """Return the headers that every answer has, and the one that tells a known caller's account."""
    made = {"request-id": ident("req_", "anthropic", call_number)}
    if project is not None:
        made["anthropic-organization-id"] = project
    return made


# Batches


def create_batch(call: Call) -> Reply:
    """POST /v1/messages/batches"""
    provider, caller, faults = call.provider, call.caller, call.provider.faults
    call.body.seek(0, 2)
    size, most = call.body.tell(), faults.max_bytes or MAX_BYTES
    if size > most:
        raise HttpError(413, f"Request exceeds the maximum size of {most} bytes", code="request_too_large")
    requests = call.json().get("requests")
    _check(requests, faults.max_requests or MAX_REQUESTS)
    if faults.credit_blocks_create and provider.conditions.out_of_credit(caller.project, provider.conditions.now()):
        raise HttpError(402, "Your credit balance is too low to access the API.", code="billing_error")
    path = provider.state.folder / "uploads" / f"{provider.state.next('upload')}.jsonl"
    rows: list[tuple[str, int, int]] = []
    tokens = position = 0
    with path.open("wb") as file:
        for request in requests:
            line = json.dumps({"params": request["params"]}, separators=(",", ":")).encode() + b"\n"
            rows.append((request["custom_id"], position, len(line)))
            position += file.write(line)
            tokens += input_tokens(request["params"], "messages")
    new = NewBatch(
        provider="anthropic",
        caller=caller,
        endpoint="/v1/messages",
        input_path=path,
        rows=rows,
        model=None,
        enqueued_tokens=tokens,
    )
    with provider.state.transaction():
        over = provider.batches.over_queue(new)
        if over is not None:
            raise HttpError(429, f"Number of {over[0]} in the queue would exceed {over[1]}")
        batch = provider.batches.create(new)
    return Reply.of(_batch(call, batch))


def _check(requests: Any, most: int) -> None:
    """Validate the envelope at once, as the provider does; params are validated row by row later."""
    if not isinstance(requests, list) or not requests:
        raise HttpError(400, "requests: Field required")
    if len(requests) > most:
        raise HttpError(400, f"requests: List should have at most {most} items")
    seen: set[str] = set()
    for n, request in enumerate(requests):
        custom_id = request.get("custom_id") if isinstance(request, dict) else None
        if not isinstance(custom_id, str) or not CUSTOM_ID.fullmatch(custom_id):
            raise HttpError(400, f"requests.{n}.custom_id: String should match pattern '^{CUSTOM_ID.pattern}$'")
        if custom_id in seen:
            raise HttpError(400, f"requests.{n}.custom_id: must be unique within the batch")
        seen.add(custom_id)
        if not isinstance(request.get("params"), dict):
            raise HttpError(400, f"requests.{n}.params: Field required")


def _found_batch(call: Call) -> Batch:
    found = call.provider.batches.find("anthropic", call.caller, call.ids[0])
    if found is None:
        raise HttpError(404, f"Message batch {call.ids[0]} not found")
    return found


def _archived_at(call: Call, batch: Batch) -> float | None:
    file = call.provider.state.row("SELECT expires_at FROM file WHERE id = ?", (batch["output_file_id"],))
    if file is not None and file["expires_at"] <= call.provider.conditions.now():
        return float(file["expires_at"])
    return None


def _batch(call: Call, batch: Batch) -> Json:
    shown, since, stage = call.provider.conditions.shown, batch.standing.since, batch.standing.stage
    ended, total = batch.standing.final, batch["rows"]
    status = "ended" if ended else "canceling" if stage == "cancelling" else "in_progress"
    if stage == "in_progress" and "unknown_state" in batch.faults:
        status = batch.faults["unknown_state"] or "paused"
    left = total - batch["done"]
    counts: Json | None = {
        "processing": 0 if ended else total,
        "succeeded": batch["succeeded"] if ended else 0,
        "errored": batch["errored"] if ended else 0,
        "canceled": left if stage == "cancelled" else 0,
        "expired": left if stage == "expired" else 0,
    }
    if "null_counts" in batch.faults:
        counts = None
    archived = _archived_at(call, batch)
    readable = ended and archived is None
    return {
        "id": batch["id"],
        "type": "message_batch",
        "processing_status": status,
        "request_counts": counts,
        "created_at": rfc3339(shown(batch["created_at"])),
        "expires_at": rfc3339(shown(batch["created_at"] + json.loads(batch["timing"])["window_s"])),
        "ended_at": rfc3339(shown(since[stage])) if ended else None,
        "cancel_initiated_at": rfc3339(shown(batch["cancel_at"])) if batch["cancel_at"] is not None else None,
        "archived_at": None if archived is None else rfc3339(shown(archived)),
        "results_url": f"http://{call.host}/v1/messages/batches/{batch['id']}/results" if readable else None,
    }


def retrieve_batch(call: Call) -> Reply:
    """GET /v1/messages/batches/{id}"""
    return Reply.of(_batch(call, _found_batch(call)))


def list_batches(call: Call) -> Reply:
    """GET /v1/messages/batches"""
    page, more = call.provider.batches.list(
        "anthropic",
        call.caller,
        limit=call.integer("limit", 20, 1000),
        after=call.query.get("after_id"),
        before=call.query.get("before_id"),
    )
    data = [_batch(call, batch) for batch in page]
    first, last = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return Reply.of({"data": data, "has_more": more, "first_id": first, "last_id": last})


def cancel_batch(call: Call) -> Reply:
    """POST /v1/messages/batches/{id}/cancel"""
    batch = _found_batch(call)
    if batch.standing.final:
        raise HttpError(400, "Message batch has already ended")
    return Reply.of(_batch(call, call.provider.batches.cancel(batch)))


def delete_batch(call: Call) -> Reply:
    """DELETE /v1/messages/batches/{id}"""
    batch = _found_batch(call)
    if not batch.standing.final:
        raise HttpError(400, "Message batch has not ended yet")
    call.provider.state.execute("UPDATE batch SET deleted = 1 WHERE ordinal = ?", (batch["ordinal"],))
    return Reply.of({"id": batch["id"], "type": "message_batch_deleted"})


def results(call: Call) -> Reply:
    """GET /v1/messages/batches/{id}/results"""
    batch = _found_batch(call)
    file = call.provider.files.find(call.caller, batch["output_file_id"] or "", call.provider.conditions.now())
    if file is None:
        raise HttpError(404, f"No results available for message batch {batch['id']}")
    return Reply(
        content_type="application/x-jsonl",
        path=call.provider.state.folder / file["path"],
        spans=tuple(call.provider.files.spans_to_send(file)),
    )


# Synchronous calls


def create_message(call: Call) -> Reply:
    """POST /v1/messages"""
    body = call.json()
    result, number = call.provider.call("anthropic", call.caller, body, "messages")
    if not result.billed:
        status, kind = wire.FAILURES.get(result.outcome, (500, "api_error"))
        request_id = headers(call.number, None)["request-id"]
        envelope = wire.failure(kind, result.message, request_id)
        return Reply.of(envelope, status, **({"retry_after": "1"} if status == 429 else {}))
    return Reply.of(wire.message_body(body, result, name=ident("", "sync", number), tier="standard"))


def _model(name: str) -> Json:
    return {
        "id": name,
        "type": "model",
        "display_name": name,
        "created_at": "2026-01-01T00:00:00Z",
        "lifecycle": "active",
    }


def list_models(call: Call) -> Reply:
    """GET /v1/models"""
    data = [_model(name) for name in call.provider.faults.models or ("m",)]
    return Reply.of({"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]})


def retrieve_model(call: Call) -> Reply:
    """GET /v1/models/{id}"""
    name, known = call.ids[0], call.provider.faults.models
    if known is not None and name not in known:
        raise HttpError(404, f"model: {name}")
    return Reply.of(_model(name))


BATCHES = "/v1/messages/batches"
ROUTES = (
    Route(method="POST", pattern=BATCHES, endpoint="anthropic.batches.create", answer=create_batch),
    Route(method="GET", pattern=BATCHES, endpoint="anthropic.batches.list", answer=list_batches),
    Route(
        method="GET",
        pattern=BATCHES + "/([^/]+)",
        endpoint="anthropic.batches.retrieve",
        answer=retrieve_batch,
    ),
    Route(
        method="DELETE",
        pattern=BATCHES + "/([^/]+)",
        endpoint="anthropic.batches.delete",
        answer=delete_batch,
    ),
    Route(
        method="POST",
        pattern=BATCHES + "/([^/]+)/cancel",
        endpoint="anthropic.batches.cancel",
        answer=cancel_batch,
    ),
    Route(
        method="GET",
        pattern=BATCHES + "/([^/]+)/results",
        endpoint="anthropic.batches.results",
        answer=results,
    ),
    Route(method="POST", pattern="/v1/messages", endpoint="anthropic.messages.create", answer=create_message),
    Route(method="GET", pattern="/v1/models", endpoint="anthropic.models.list", answer=list_models),
    Route(method="GET", pattern="/v1/models/(.+)", endpoint="anthropic.models.retrieve", answer=retrieve_model),
)
