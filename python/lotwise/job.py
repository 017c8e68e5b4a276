"""A job: one call's whole set of tools and settings, as the engine and the reconciler are handed it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

import polars as pl

from lotwise.canary import Canary
from lotwise.clock import Clock
from lotwise.cost import Prices
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import Policy
from lotwise.lots import Family
from lotwise.request import Purpose, Spec
from lotwise.validate import Validator


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is rarely set.

    Attributes
    ----------
    executor_options
        Handed to the executor as they are: a base URL, a time-out.
    window
        Shards open at once; None for what the provider takes, at most 8.
    shard_rows, shard_bytes
        Requests and encoded bytes a shard; None for 20,000 and the provider's limit.
    lease_s
        How long others wait for an owner that is not heard of, in seconds.
    create_timeout_s
        How long a create call may take, in seconds.
    absence_margin_s
        How long after that a shard that the provider's list lacks is taken for never sent, in seconds. It covers a
        list that lags and a provider clock that differs from ours.
    lost_after_s
        How long a batch that the provider no longer knows is asked for before it is given up, in seconds.
    on_uncertain
        "resend" or "hold" what may have been sent to a paid synchronous endpoint when the process died.
    max_resends
        Attempts of one request that came to nothing and were not billed.
    systemic_rate
        The share of bad answers in a shard that stops the sending; None never does.
    repeat
        0, or the number of a planned repeat, which asks the same question anew.
    cleanup
        Delete the provider's copies once a shard is collected.
    """

    executor_options: Mapping[str, Any] = field(default_factory=dict)
    window: int | None = None
    shard_rows: int | None = None
    shard_bytes: int | None = None
    lease_s: float = 120.0
    create_timeout_s: float = 600.0
    absence_margin_s: float = 900.0
    lost_after_s: float = 172_800.0
    on_uncertain: Literal["resend", "hold"] = "resend"
    max_resends: int = 20
    systemic_rate: float | None = 0.2
    repeat: int = 0
    cleanup: bool = False

    def __post_init__(self) -> None:
        for name in ("window", "shard_rows", "shard_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"Options: {name} must be at least 1")
        for name in ("lease_s", "create_timeout_s", "absence_margin_s", "lost_after_s"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"Options: {name} must not be negative")
        if self.on_uncertain not in ("resend", "hold"):
            raise ValueError("Options: on_uncertain must be 'resend' or 'hold'")
        if self.repeat < 0 or self.max_resends < 0:
            raise ValueError("Options: repeat and max_resends must not be negative")
        if self.systemic_rate is not None and not 0 <= self.systemic_rate <= 1:
            raise ValueError("Options: systemic_rate must lie between 0 and 1, or be None")


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Where a run stands, for a progress line.

    Attributes
    ----------
    counts
        Distinct requests by row state.
    rows
        Rows by row state, skipped ones included.
    phases
        Open shards by what their provider, or we, call their state.
    elapsed_s
        Seconds since this call began to act.
    note
        What is happening just now, in a word or two.
    """

    counts: Mapping[str, int]
    rows: Mapping[str, int]
    phases: Mapping[str, int]
    elapsed_s: float
    note: str


@dataclass(kw_only=True)
class Job:
    """One call's work: what it is, what it is done with, and why it stopped sending, if it did."""

    ledger: Ledger
    executor: BatchExecutor | StreamExecutor
    spec: Spec
    spec_digest: str
    validator: Validator | None
    """None where this process lacks the user's code: answers are then recorded, and judged by a later call."""
    validator_digest: str
    run_id: str
    job_id: str
    n_requests: int
    n_skipped: int = 0
    clock: Clock
    owner: str
    is_gone: Callable[[str | None], bool]
    options: Options = field(default_factory=Options)
    policy: Policy = field(default_factory=Policy)
    budget_usd: Decimal | None = None
    prices: Prices | None = None
    purpose: Purpose = Purpose.ANSWER
    lots: Family | None = None
    """The lots that are closed and drawn from once their requests are final; None for a job without lots."""
    poll_s: float | None = None
    rng: random.Random = field(default_factory=random.Random)
    tell: Callable[[Snapshot], None] = field(default=lambda _: None)
    progressed: Callable[[], None] = field(default=lambda: None)
    """Called after every settled chunk of results."""
    notify: Callable[[str], None] = field(default=lambda _: None)
    """Called with what whoever watches must know at once."""
    canary: Canary | None = None
    """What must pass before the rest is sent; None for a job without a gate."""
    gate: Literal["open", "passed", "failed"] = "open"
    """How the gate stood at the last look."""
    golden_known: pl.DataFrame | None = None
    """Golden rows whose answers are known for good."""
    started_at: datetime | None = None
    halted: str | None = None
    """Why nothing more is sent: a code, with a colon and a detail where there is one. Open shards still run out."""
    n_unsummed: int = 0
    """Requests collected since the whole run was added up."""
    fits_from: datetime | None = None
    """When something is due that fits the budget, where nothing that is due now does."""
    queue: list[pl.DataFrame] = field(default_factory=list)
    """Shards that are cut but not intended yet. Only a plan: what another process takes is left out of it."""

    @property
    def streams(self) -> bool:
        """Whether the executor answers while it is read."""
        return isinstance(self.executor, StreamExecutor)

    def halt(self, reason: str) -> None:
        """Stop sending. The first reason stands."""
        self.halted = self.halted or reason
