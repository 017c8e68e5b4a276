"""The frozen values that the package passes round: specs, shards, observations, limits, and the shape of outcomes.

Requests themselves travel as Polars frames (`REQUESTS`), and so do outcomes (`OUTCOMES`): one Python object a row
would cost more than the work. What an executor yields is the provider's raw lines; their meaning is read from them
by the same executor, at collection and again whenever a stored line is judged anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

import polars as pl


class Code(StrEnum):
    """What one answer line means, in the words of this project, whichever provider said it."""

    OK = "ok"
    REFUSED = "refused"
    TRUNCATED = "truncated"
    NEEDS_CONTINUATION = "needs_continuation"
    BAD_REQUEST = "bad_request"
    RATE_LIMITED = "rate_limited"
    SERVER_ERROR = "server_error"
    EXPIRED = "expired"
    CANCELED = "canceled"
    UNRETURNED = "unreturned"
    UNREADABLE = "unreadable"
    ACCOUNT_BLOCKED = "account_blocked"
    UNCERTAIN = "uncertain"


BILLED = frozenset({Code.OK, Code.REFUSED, Code.TRUNCATED, Code.NEEDS_CONTINUATION})
"""Codes of attempts that the provider charges for (provider contracts, outcome mapping)."""


PERHAPS_BILLED = frozenset({Code.UNRETURNED, Code.UNREADABLE, Code.UNCERTAIN})
"""Codes of attempts that may have been charged without our seeing the answer."""


class Outcome(StrEnum):
    """What the provider said of one attempt."""

    SUCCEEDED = "succeeded"
    ERRORED = "errored"
    EXPIRED = "expired"
    CANCELED = "canceled"
    UNRETURNED = "unreturned"

    @classmethod
    def of(cls, code: Code) -> Outcome:
        """Name the provider's word for a code."""
        if code in BILLED:
            return cls.SUCCEEDED
        return {
            Code.EXPIRED: cls.EXPIRED,
            Code.CANCELED: cls.CANCELED,
            Code.UNRETURNED: cls.UNRETURNED,
            Code.UNCERTAIN: cls.UNRETURNED,
        }.get(code, cls.ERRORED)


class Purpose(StrEnum):
    """Why an attempt is sent. Golden and judge attempts have keys of their own."""

    ANSWER = "answer"
    GOLDEN = "golden"
    JUDGE = "judge"


CODES = pl.Enum([c.value for c in Code])

REQUESTS = pl.Schema(
    {
        "key": pl.String(),  # 40 hex characters
        "custom_id": pl.String(),  # what the provider sees: <16 hex of the shard id>-<key>
        "content": pl.String(),  # the rendered user message
        "variant": pl.String(),  # JSON of what this attempt changes against the request; null for none
    }
)
"""The frame of requests that an executor is handed, one row a request."""

OUTCOMES = pl.Schema(
    {
        "custom_id": pl.String(),  # null where the line could not be read
        "code": CODES,
        "answer": pl.String(),  # the text that the model wrote; null where there is none
        "detail": pl.String(),  # the provider's own error code or type; never row content
        "finish_reason": pl.String(),
        "model_revision": pl.String(),
        "input_tokens": pl.Int64(),  # all input, cached tokens included
        "cache_read_tokens": pl.Int64(),
        "cache_write_tokens": pl.Int64(),
        "output_tokens": pl.Int64(),
    }
)
"""The frame that `Executor.read` returns, one row a raw line, in the lines' order."""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What all requests of a run share, and all that can change an answer besides the row's content.

    Attributes
    ----------
    provider, model
        As written in ``provider:model``.
    system
        The system message, or None for none.
    examples
        Few-shot pairs, (rendered user text, answer text), sent before each row in this order.
    wire_schema
        The exact JSON Schema text sent, property order included, or None for free text.
    params
        Sampling parameters as the user gave them; what is not set is not sent.
    max_tokens
        The limit of output tokens, sent with every request.
    repeat
        0 for the first asking; n for the n-th planned repeat.
    purpose
        Why requests of this spec are sent.
    model_digest
        For a local model, a digest of its configuration and weights; None for a hosted one.
    anew
        The name under which all is asked anew, whatever is known; None for the first asking.
    """

    provider: str
    model: str
    system: str | None = None
    examples: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    wire_schema: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    max_tokens: int = 1024
    repeat: int = 0
    purpose: Purpose = Purpose.ANSWER
    model_digest: str | None = None
    anew: str | None = None

    @property
    def model_name(self) -> str:
        """The model as the user writes it, ``provider:model``."""
        return f"{self.provider}:{self.model}" if self.model else self.provider


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one provider takes in one batch, and how many batches at once.

    Attributes
    ----------
    max_requests
        Requests a batch.
    max_bytes
        Encoded bytes a batch; None where nothing is encoded into a file.
    max_row_bytes
        Encoded bytes a request; None for no limit of its own.
    max_in_flight
        Open batches at once; None for no known limit.
    retention_s
        Seconds after creation for which results can be read; None for as long as the engine lives.
    """

    max_requests: int
    max_bytes: int | None = None
    max_row_bytes: int | None = None
    max_in_flight: int | None = None
    retention_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Shard:
    """Requests sent together: what an executor must know of one, and what the ledger stores of it."""

    id: str
    """16 lower-case hex characters, made by us."""
    run_id: str
    n_requests: int
    created_at: datetime

    def __post_init__(self) -> None:
        if self.created_at.tzinfo is None:
            raise ValueError("created_at must be an aware datetime")


class Phase(StrEnum):
    """Where a batch stands at the provider, as far as the engine must tell apart."""

    RUNNING = "running"
    ENDED = "ended"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What one look at a batch showed.

    Attributes
    ----------
    phase
        RUNNING, ENDED (results may be read, whatever they are), REJECTED (refused whole, nothing ran, nothing is
        billed) or UNKNOWN (a state this version does not know: never taken for success, asked again).
    provider_state
        The provider's own word.
    done, failed
        The provider's counts, for display only; None where it gives none.
    reason
        Why it was rejected: the provider's code.
    wait
        True when a rejected batch only has to wait for capacity (an enqueued-token or queue limit).
    """

    phase: Phase
    provider_state: str
    done: int | None = None
    failed: int | None = None
    reason: str | None = None
    wait: bool = False


@dataclass(frozen=True, kw_only=True)
class Listed:
    """One batch found in the provider's list, for adoption after a crash.

    `shard_id` is None where the provider carries no metadata; then `custom_id` may hold one of its ids once the batch
    has ended, and `created_at` and `n_requests` narrow the search before.
    """

    batch_id: str
    created_at: datetime
    shard_id: str | None = None
    n_requests: int | None = None
    ended: bool = False


def custom_id(shard_id: str, key: str) -> str:
    """Join the shard's part and the key into the id that a provider sees: 57 characters of ``[0-9a-f-]``."""
    return f"{shard_id}-{key}"
