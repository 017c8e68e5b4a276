"""The OpenAI endpoints: Files, Batches, chat completions, responses and models."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from sqlite3 import Row
from typing import Any

from emulator import openai_wire as wire
from emulator.answers import Dialect, Json
from emulator.http_values import Call, HttpError, Part, Reply, Route, copy_span, multipart
from emulator.openai_input import read_input
from emulator.records import Batch, NewBatch

MAX_FILE_BYTES = 512_000_000
EXPIRY_RANGE_S = (3600, 2_592_000)
ERROR_KINDS = {401: "invalid_request_error", 403: "invalid_request_error", 429: "rate_limit_exceeded"}


def error(status: int, message: str, code: str | None, parameter: str | None) -> Json:
    """Return OpenAI's envelope of an HTTP error."""
    kind = ERROR_KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    if code == "insufficient_quota":
        kind = code
    return wire.failure((status, kind, code), message, parameter)


def headers(call_number: int, project: str | None) -> dict[str, str]:
    """Return the headers that every answer has, and those that tell a known caller's account."""
    made = {"x-request-id": wire.ident("req_", "openai", call_number), "openai-version": "2020-10-01"}
    if project is not None:
        made |= {"openai-organization": "org-emulated", "openai-project": project}
    return made


# Files


def create_file(call: Call) -> Reply:
    """POST /v1/files"""
    parts = {part.name: part for part in multipart(call.body, call.headers.get("content-type", ""))}
    upload = parts.get("file")
    if upload is None or upload.filename is None:
        raise HttpError(400, "'file' is a required property", parameter="file")
    purpose = _text(call, parts.get("purpose"))
    if purpose != "batch":
        raise HttpError(400, f"'{purpose}' is not one of ['batch'] - 'purpose'", parameter="purpose")
    size = upload.end - upload.start
    if size > MAX_FILE_BYTES:
        raise HttpError(413, f"The file is larger than {MAX_FILE_BYTES} bytes.")
    expires_s = _text(call, parts.get("expires_after[seconds]"))
    provider = call.provider
    path = provider.state.folder / "uploads" / f"{provider.state.next('upload')}.jsonl"
    with path.open("wb") as file:
        copy_span(call.body, upload.start, upload.end, file)
    now = provider.conditions.now()
    file_id = provider.files.add(
        project=call.caller.project,
        filename=upload.filename,
        purpose=purpose,
        path=path.relative_to(provider.state.folder),
        size=size,
        created_at=now,
        expires_at=now + (_expiry_s(expires_s) if expires_s else provider.faults.file_retention_s),
        expiry_shown=bool(expires_s),
    )
    return Reply.of(_file(call, _found_file(call, file_id)))


def _text(call: Call, part: Part | None) -> str | None:
    if part is None:
        return None
    call.body.seek(part.start)
    return call.body.read(part.end - part.start).decode()


def _expiry_s(value: Any) -> float:
    seconds = float(value)
    if not EXPIRY_RANGE_S[0] <= seconds <= EXPIRY_RANGE_S[1]:
        raise HttpError(400, "seconds must be between 3600 and 2592000", parameter="expires_after")
    return seconds


def _found_file(call: Call, file_id: str) -> Row:
    found = call.provider.files.find(call.caller, file_id, call.provider.conditions.now())
    if found is None:
        raise HttpError(404, f"No such File object: {file_id}", parameter="id")
    return found


def _file(call: Call, file: Row) -> Json:
    shown = call.provider.conditions.shown
    return {
        "id": file["id"],
        "object": "file",
        "bytes": file["bytes"],
        "created_at": int(shown(file["created_at"])),
        "filename": file["filename"],
        "purpose": file["purpose"],
        "status": "processed",
        "expires_at": int(shown(file["expires_at"])) if file["expiry_shown"] else None,
    }


def retrieve_file(call: Call) -> Reply:
    """GET /v1/files/{id}"""
    return Reply.of(_file(call, _found_file(call, call.ids[0])))


def download_file(call: Call) -> Reply:
    """GET /v1/files/{id}/content"""
    file = _found_file(call, call.ids[0])
    return Reply(
        content_type="application/octet-stream",
        path=call.provider.state.folder / file["path"],
        spans=tuple(call.provider.files.spans_to_send(file)),
    )


def list_files(call: Call) -> Reply:
    """GET /v1/files"""
    limit, purpose = call.integer("limit", 10_000, 10_000), call.query.get("purpose")
    newest_first = call.query.get("order", "desc") == "desc"
    files = call.provider.state.rows(
        "SELECT * FROM file WHERE project = ? AND deleted = 0 AND expires_at > ?"
        f" AND purpose IN ('batch', 'batch_output') ORDER BY ordinal {'DESC' if newest_first else 'ASC'}",
        (call.caller.project, call.provider.conditions.now()),
    )
    files = [file for file in files if purpose in (None, file["purpose"])]
    if "after" in call.query:
        places = [n for n, file in enumerate(files) if file["id"] == call.query["after"]]
        files = files[places[0] + 1 :] if places else []
    return Reply.of(wire.listing([_file(call, file) for file in files[:limit]], len(files) > limit))


def delete_file(call: Call) -> Reply:
    """DELETE /v1/files/{id}"""
    file = _found_file(call, call.ids[0])
    call.provider.state.execute("UPDATE file SET deleted = 1 WHERE id = ?", (file["id"],))
    return Reply.of({"id": file["id"], "object": "file", "deleted": True})


# Batches


def create_batch(call: Call) -> Reply:
    """POST /v1/batches"""
    body = call.json()
    for name in ("input_file_id", "endpoint", "completion_window"):
        if not isinstance(body.get(name), str):
            raise HttpError(400, f"Missing required parameter: '{name}'.", parameter=name)
    endpoint = body["endpoint"]
    if endpoint not in wire.ENDPOINTS:
        raise HttpError(400, f"Invalid value: '{endpoint}'.", parameter="endpoint")
    if body["completion_window"] != "24h":
        raise HttpError(400, "Invalid value: only '24h' is supported.", parameter="completion_window")
    metadata = _metadata(body.get("metadata"))
    output_expires = body.get("output_expires_after")
    provider, caller = call.provider, call.caller
    if provider.faults.credit_blocks_create and provider.conditions.out_of_credit(
        caller.project, provider.conditions.now()
    ):
        raise HttpError(429, "You exceeded your current quota.", code="insufficient_quota")
    file = _found_file(call, body["input_file_id"])
    path = provider.state.folder / file["path"]
    found = read_input(path, endpoint, provider.faults)
    if provider.faults.duplicate_id == "reject" and any(e["code"] == "duplicate_custom_id" for e in found.errors):
        raise HttpError(400, "The custom_id appears more than once.", code="duplicate_custom_id")
    new = NewBatch(
        provider="openai",
        caller=caller,
        endpoint=endpoint,
        input_path=path,
        rows=found.rows,
        model=found.model,
        enqueued_tokens=found.enqueued_tokens,
        input_file_id=file["id"],
        metadata=metadata,
        output_expires_s=None if output_expires is None else _expiry_s(output_expires["seconds"]),
        errors=found.errors,
    )
    with provider.state.transaction():
        over = provider.batches.over_queue(new)
        if over is not None:
            message = f"Enqueued {over[0]} limit reached for {found.model}: {over[1]}. Please try again later."
            if over[0] != "tokens" or provider.faults.over_queue == "reject":
                raise HttpError(429, message, code="rate_limit_exceeded")
            fault = {"code": "token_limit_exceeded", "message": message, "param": None, "line": None}
            new = replace(new, errors=[*found.errors, fault])
        batch = provider.batches.create(new)
    return Reply.of(_batch(call, batch))


def _metadata(value: Any) -> Json | None:
    if value is None:
        return None
    fits = isinstance(value, dict) and len(value) <= 16
    if not fits or any(len(k) > 64 or not isinstance(v, str) or len(v) > 512 for k, v in value.items()):
        raise HttpError(400, "metadata: at most 16 pairs, keys of 64 and values of 512", parameter="metadata")
    return dict(value)


def _found_batch(call: Call) -> Batch:
    found = call.provider.batches.find("openai", call.caller, call.ids[0])
    if found is None:
        raise HttpError(404, f"No batch found with id '{call.ids[0]}'.", parameter="batch_id")
    return found


def _batch(call: Call, batch: Batch) -> Json:
    provider, stage, since = call.provider, batch.standing.stage, batch.standing.since

    def at(name: str) -> int | None:
        return int(provider.conditions.shown(since[name])) if name in since else None

    status: str = stage
    if stage == "in_progress" and "unknown_state" in batch.faults:
        status = batch.faults["unknown_state"] or "paused"
    total = 0 if stage in ("validating", "failed") else batch["rows"]
    counts: Json | None = {"total": total, "completed": batch["succeeded"], "failed": batch["errored"]}
    if "null_counts" in batch.faults:
        counts = None
    errors = None
    if stage == "failed":
        errors = {"object": "list", "data": json.loads(batch["failure"])}
    final = batch.standing.final
    return {
        "id": batch["id"],
        "object": "batch",
        "endpoint": batch["endpoint"],
        "model": batch["model"],
        "errors": errors,
        "input_file_id": batch["input_file_id"],
        "completion_window": "24h",
        "status": status,
        "output_file_id": batch["output_file_id"],
        "error_file_id": batch["error_file_id"],
        "created_at": at("created"),
        "in_progress_at": at("in_progress"),
        "expires_at": int(provider.conditions.shown(batch["created_at"] + json.loads(batch["timing"])["window_s"])),
        "finalizing_at": at("finalizing"),
        "completed_at": at("completed"),
        "failed_at": at("failed"),
        "expired_at": at("expired"),
        "cancelling_at": at("cancelling"),
        "cancelled_at": at("cancelled"),
        "request_counts": counts,
        "usage": {
            "input_tokens": batch["input_tokens"] if final else 0,
            "input_tokens_details": {"cached_tokens": batch["cached_tokens"] if final else 0},
            "output_tokens": batch["output_tokens"] if final else 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": batch["input_tokens"] + batch["output_tokens"] if final else 0,
        },
        "metadata": None if batch["metadata"] is None else json.loads(batch["metadata"]),
    }


def retrieve_batch(call: Call) -> Reply:
    """GET /v1/batches/{id}"""
    return Reply.of(_batch(call, _found_batch(call)))


def list_batches(call: Call) -> Reply:
    """GET /v1/batches"""
    limit = call.integer("limit", 20, 100)
    page, more = call.provider.batches.list("openai", call.caller, limit=limit, after=call.query.get("after"))
    return Reply.of(wire.listing([_batch(call, batch) for batch in page], more))


def cancel_batch(call: Call) -> Reply:
    """POST /v1/batches/{id}/cancel"""
    batch = _found_batch(call)
    if batch.standing.final:
        raise HttpError(409, f"Cannot cancel a batch with status '{batch.standing.stage}'.")
    return Reply.of(_batch(call, call.provider.batches.cancel(batch)))


# Synchronous calls


def create_answer(dialect: Dialect, call: Call) -> Reply:
    """POST /v1/chat/completions and /v1/responses"""
    body = call.json()
    result, number = call.provider.call("openai", call.caller, body, dialect)
    if result.outcome in wire.FAILURES:
        status, kind, code = wire.FAILURES[result.outcome]
        envelope = wire.failure((status, kind, code), result.message, result.parameter)
        return Reply.of(envelope, status or 500, **({"retry_after": "1"} if status == 429 else {}))
    if result.outcome in wire.UNSENT:
        return Reply.of(error(500, result.message, None, None), 500)
    if result.outcome == "empty_body":
        return Reply()
    name = wire.ident("", "sync", number)
    created = int(call.provider.conditions.shown(call.provider.conditions.now()))
    return Reply.of(wire.answer_body(body, dialect, result, name=name, created=created))


def list_models(call: Call) -> Reply:
    """GET /v1/models"""
    names = call.provider.faults.models or ("m",)
    models = [{"id": name, "object": "model", "created": 1, "owned_by": "emulator"} for name in names]
    return Reply.of({"object": "list", "data": models})


def retrieve_model(call: Call) -> Reply:
    """GET /v1/models/{id}"""
    name, known = call.ids[0], call.provider.faults.models
    if known is not None and name not in known:
        raise HttpError(404, f"The model '{name}' does not exist", code="model_not_found", parameter="model")
    return Reply.of({"id": name, "object": "model", "created": 1, "owned_by": "emulator"})


ROUTES = (
    Route(method="POST", pattern="/v1/files", endpoint="openai.files.create", answer=create_file),
    Route(method="GET", pattern="/v1/files", endpoint="openai.files.list", answer=list_files),
    Route(
        method="GET",
        pattern="/v1/files/([^/]+)/content",
        endpoint="openai.files.content",
        answer=download_file,
    ),
    Route(method="GET", pattern="/v1/files/([^/]+)", endpoint="openai.files.retrieve", answer=retrieve_file),
    Route(method="DELETE", pattern="/v1/files/([^/]+)", endpoint="openai.files.delete", answer=delete_file),
    Route(method="POST", pattern="/v1/batches", endpoint="openai.batches.create", answer=create_batch),
    Route(method="GET", pattern="/v1/batches", endpoint="openai.batches.list", answer=list_batches),
    Route(method="GET", pattern="/v1/batches/([^/]+)", endpoint="openai.batches.retrieve", answer=retrieve_batch),
    Route(
        method="POST",
        pattern="/v1/batches/([^/]+)/cancel",
        endpoint="openai.batches.cancel",
        answer=cancel_batch,
    ),
    Route(
        method="POST",
        pattern="/v1/chat/completions",
        endpoint="openai.chat.create",
        answer=partial(create_answer, "chat"),
    ),
    Route(
        method="POST",
        pattern="/v1/responses",
        endpoint="openai.responses.create",
        answer=partial(create_answer, "responses"),
    ),
    Route(method="GET", pattern="/v1/models", endpoint="openai.models.list", answer=list_models),
    Route(method="GET", pattern="/v1/models/(.+)", endpoint="openai.models.retrieve", answer=retrieve_model),
)
