"""The values that the emulator's parts hand to each other: callers, new batches, and batches at a moment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from sqlite3 import Row
from typing import Any, Literal

from emulator.answers import Json
from emulator.timeline import Standing

ProviderName = Literal["openai", "anthropic"]
SHARD_PREFIX = re.compile(r"^[0-9a-f]{16}-(.+)$", re.DOTALL)


def key_part(custom_id: str) -> str:
    """Return a custom id without the client's shard prefix (16 hex digits and a dash)."""
    found = SHARD_PREFIX.match(custom_id)
    return found.group(1) if found else custom_id


def account_of(api_key: str) -> str:
    """Return the digest that stands for an API key."""
    return sha256(api_key.encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who calls: the digest of the API key, and the project whose things the key sees."""

    account: str
    project: str


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch as it was created; `rows` are (custom id, position, length) of lines in the input file."""

    provider: ProviderName
    caller: Caller
    endpoint: str
    input_path: Path
    rows: list[tuple[str, int, int]]
    model: str | None
    enqueued_tokens: int
    input_file_id: str | None = None
    metadata: Json | None = None
    output_expires_s: float | None = None
    errors: list[Json] | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch at a moment: its record, its own faults and where it stands."""

    record: Row
    faults: dict[str, Any]
    standing: Standing

    def __getitem__(self, column: str) -> Any:
        return self.record[column]
