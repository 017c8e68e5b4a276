"""A scripted provider for tests and docs: a batch API whose answers are a pure function of the request.

Its side may live in a folder, so that it outlives the process as a real provider does; its clock is an argument, and
`HandClock` is one that is wound by hand. Importing this module makes ``model="scripted:echo"`` (the content comes back
in the first text field) and ``"scripted:choice"`` (a choice by hash) known. Nothing leaves the machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl

from lotwise.clock import Clock, SystemClock
from lotwise.errors import BatchNotFound, UnknownModel
from lotwise.executors import register
from lotwise.executors.openai_dialect import read_lines
from lotwise.request import REQUESTS, Limits, Listed, Observation, Phase, Shard, Spec

Lines = list[bytes]

Answer = Callable[[str, Spec], str]
"""Makes the answer's text from a request's content and its spec."""

Schedule = Callable[[int], tuple[str, Answer]]
"""Says of the n-th batch, from 0, which model revision answers it, and how: a provider that changes its model."""


class HandClock:
    """A clock that stands still until it is told to sleep."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = start or datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self._now

    def sleep(self, seconds: float) -> None:
        """Wind the clock on, without waiting."""
        self._now += timedelta(seconds=max(seconds, 0.001))


def echo(content: str, spec: Spec) -> str:
    """Give the content back: as it is for free text, else in the schema's first text field."""
    if spec.wire_schema is None:
        return content
    return json.dumps(_fill(json.loads(spec.wire_schema), content, [content]), ensure_ascii=False)


def choice(content: str, spec: Spec) -> str:
    """Answer what the schema asks with values chosen by a hash of the content."""
    if spec.wire_schema is None:
        return "answer " + hashlib.sha256(content.encode()).hexdigest()[:8]
    return json.dumps(_fill(json.loads(spec.wire_schema), content, []), ensure_ascii=False)


ANSWERS: dict[str, Answer] = {"echo": echo, "choice": choice}


class ScriptedExecutor:
    """A batch executor over a scripted provider.

    Parameters
    ----------
    folder
        Where the provider keeps its batches; None for a folder of its own that goes with this object.
    answer
        What a request is answered with; None to take it from the model's name.
    schedule
        Which revision answers which batch, and how; None for one revision that always answers by `answer`.
    clock, duration_s
        A batch ends so many seconds after it was made.
    limits
        What it takes.
    """

    provider = "scripted"
    hosted = False
    paid = True

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        answer: Answer | None = None,
        schedule: Schedule | None = None,
        clock: Clock | None = None,
        duration_s: float = 0.0,
        limits: Limits | None = None,
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="lotwise-scripted-") if folder is None else folder)
        # A folder of our own goes with this object, whether or not anybody closes it.
        self._forget = weakref.finalize(self, shutil.rmtree, self.folder, True) if folder is None else None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.limits = limits or Limits(max_requests=50_000, max_bytes=200_000_000)
        self._answer, self._clock, self._duration_s = answer, clock or SystemClock(), duration_s
        self._schedule = schedule

    # --- the executor ------------------------------------------------------------------------------------------

    def check(self, spec: Spec) -> None:
        if self._answer is None and self._schedule is None and spec.model not in ANSWERS:
            raise UnknownModel.from_name("scripted", spec.model, ANSWERS)

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        return schema_text, ()

    def model_digest(self) -> str | None:
        return None

    def account(self) -> str:
        return "scripted"

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        head = len(spec.system or "") + sum(len(a) + len(b) for a, b in spec.examples) + len(spec.wire_schema or "")
        return content_bytes.cast(pl.Int64) + 4 * head + 200

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        return read_lines(lines)

    def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> str:
        prepared = self.folder / f"prepared-{shard.id}-{secrets.token_hex(4)}"
        prepared.mkdir()
        requests.select(list(REQUESTS)).write_parquet(prepared / "requests.parquet")
        return str(prepared)

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        batch_id = f"batch_{secrets.token_hex(8)}"
        about = {
            "shard": shard.id,
            "created_at": self._clock.now().isoformat(),
            "number": len(self._batch_ids()),
            "n_requests": shard.n_requests,
            "model": spec.model,
            "wire_schema": spec.wire_schema,
            "canceled_at": None,
        }
        (Path(prepared) / "batch.json").write_text(json.dumps(about), encoding="utf-8")
        Path(prepared).rename(self.folder / batch_id)  # from this moment on the provider has it
        return batch_id

    def poll(self, batch_id: str) -> Observation:
        about = self._about(batch_id)
        if self._ended(about):
            return Observation(phase=Phase.ENDED, provider_state="ended", done=about["n_requests"])
        return Observation(phase=Phase.RUNNING, provider_state="in_progress")

    def fetch(self, batch_id: str) -> Iterator[Lines]:
        about = self._about(batch_id)
        requests = pl.read_parquet(self.folder / batch_id / "requests.parquet")
        # In the order of the ids' hashes: results never come back in the order in which they were sent.
        shuffled = requests.sort(pl.col("custom_id").str.reverse())
        for part in shuffled.iter_slices(5_000):
            yield [self._line(row, about) for row in part.iter_rows(named=True)]

    def list(self, *, since: datetime) -> Iterator[Listed]:
        for batch_id in self._batch_ids():
            about = self._about(batch_id)
            created_at = datetime.fromisoformat(about["created_at"])
            if created_at >= since:
                yield Listed(
                    batch_id=batch_id,
                    created_at=created_at,
                    shard_id=about["shard"],
                    n_requests=about["n_requests"],
                    ended=self._ended(about),
                )

    def cancel(self, batch_id: str) -> None:
        about = self._about(batch_id)
        if not self._ended(about):
            about["canceled_at"] = self._clock.now().isoformat()
            (self.folder / batch_id / "batch.json").write_text(json.dumps(about), encoding="utf-8")

    def delete(self, batch_id: str) -> None:
        """Forget a batch's content; what was charged for it stays on the bill."""
        folder = self.folder / batch_id
        requests = pl.read_parquet(folder / "requests.parquet")
        requests.with_columns(content=pl.lit("")).write_parquet(folder / "requests.parquet")

    # --- the provider's side -----------------------------------------------------------------------------------

    def bill(self) -> pl.DataFrame:
        """Return every charge the provider made: `batch_id`, `key`, `content`, one row each, repeats included."""
        charged = []
        for batch_id in self._batch_ids():
            if self._about(batch_id)["canceled_at"] is None:
                requests = pl.read_parquet(self.folder / batch_id / "requests.parquet")
                charged.append(requests.select(pl.lit(batch_id).alias("batch_id"), "key", "content"))
        empty = pl.DataFrame(schema={"batch_id": pl.String, "key": pl.String, "content": pl.String})
        return pl.concat([empty, *charged])

    def close(self) -> None:
        """Remove the folder that this object made for itself."""
        if self._forget is not None:
            self._forget()

    def _batch_ids(self) -> Sequence[str]:
        return sorted(entry.name for entry in self.folder.iterdir() if entry.name.startswith("batch_"))

    def _about(self, batch_id: str) -> dict[str, Any]:
        try:
            text = (self.folder / batch_id / "batch.json").read_text(encoding="utf-8")
        except FileNotFoundError:
            raise BatchNotFound(batch_id) from None
        about: dict[str, Any] = json.loads(text)
        return about

    def _ended(self, about: Mapping[str, Any]) -> bool:
        if about["canceled_at"] is not None:
            return True
        created_at = datetime.fromisoformat(about["created_at"])
        return self._clock.now() >= created_at + timedelta(seconds=self._duration_s)

    def _line(self, row: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
        if about["canceled_at"] is not None:
            error = {"code": "batch_cancelled", "message": ""}
            line = {"id": "x", "custom_id": row["custom_id"], "response": None, "error": error}
        else:
            spec = Spec(provider="scripted", model=about["model"], wire_schema=about["wire_schema"])
            if self._schedule is None:
                revision, answer = "scripted-1", self._answer or ANSWERS[about["model"]]
            else:
                revision, answer = self._schedule(about["number"])
            text, n_bytes = answer(row["content"], spec), len(row["content"].encode())
            line = answer_line(row["custom_id"], text, prompt_bytes=n_bytes, revision=revision)
        return json.dumps(line, ensure_ascii=False).encode()


def answer_line(
    custom_id: str,
    text: str,
    *,
    prompt_bytes: int = 0,
    finish_reason: str = "stop",
    revision: str = "scripted-1",
) -> dict[str, Any]:
    """Make the raw result line of one answer, in the shape of a chat completion in a batch output."""
    usage = {"prompt_tokens": prompt_bytes // 4 + 1, "completion_tokens": len(text) // 4 + 1}
    message = {"role": "assistant", "content": text, "refusal": None}
    body = {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": revision,
        "choices": [{"index": 0, "message": message, "finish_reason": finish_reason}],
        "usage": {**usage, "total_tokens": sum(usage.values())},
    }
    response = {"status_code": 200, "request_id": "scripted", "body": body}
    return {"id": "scripted", "custom_id": custom_id, "response": response, "error": None}


def _fill(schema: Mapping[str, Any], content: str, texts: list[str]) -> Any:
    """Make a value that fits a wire schema, by hash; the first free text field takes from `texts`."""
    pick = int.from_bytes(hashlib.sha256((content + json.dumps(schema, sort_keys=True)).encode()).digest()[:6], "big")
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][pick % len(schema["enum"])]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return _fill(schema[word][0], content, texts)
    kind = schema.get("type", "object")
    if isinstance(kind, Sequence) and not isinstance(kind, str):
        kind = next(one for one in kind if one != "null")
    match kind:
        case "object":
            return {name: _fill(inner, content, texts) for name, inner in schema.get("properties", {}).items()}
        case "array":
            n = max(int(schema.get("minItems", 1)), 1)
            return [_fill(schema.get("items", {"type": "string"}), content, texts) for _ in range(n)]
        case "boolean":
            return bool(pick % 2)
        case "integer":
            low = int(schema.get("minimum", 0))
            return low + pick % (int(schema.get("maximum", low + 99)) - low + 1)
        case "number":
            least = float(schema.get("minimum", 0.0))
            return least + (pick % 1000) / 1000 * (float(schema.get("maximum", least + 1)) - least)
        case "null":
            return None
        case _:
            return _text(schema, pick, texts)


def _text(schema: Mapping[str, Any], pick: int, texts: list[str]) -> str:
    moment = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=pick % 800_000_000)
    match schema.get("format"):
        case "date":
            return moment.date().isoformat()
        case "date-time":
            return moment.isoformat()
        case "time":
            return moment.time().isoformat()
        case _:
            return texts.pop(0) if texts else f"text {pick % 10_000}"


def _factory(model: str, tier: str | None, options: Mapping[str, Any]) -> ScriptedExecutor:
    return ScriptedExecutor(**options)


register("scripted", _factory)

__all__ = ["ANSWERS", "HandClock", "ScriptedExecutor", "answer_line", "choice", "echo"]
