"""A job: one call's whole set of tools and settings, as the engine and the reconciler are handed it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from functools import cached_property
from typing import Any, Literal, Self

import polars as pl

from lotwise.canary import Canary
from lotwise.clock import Clock
from lotwise.cost import Prices
from lotwise.errors import BadArgument
from lotwise.executors import Tier
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.fields import known_by_name
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import Policy
from lotwise.lots import Family
from lotwise.request import Purpose, Spec
from lotwise.validate import Validator


@known_by_name
@dataclass(frozen=True, kw_only=True)
class Options:
    """What is rarely set.

    What was set is kept with the run: a process that takes it up goes by it, but for what that sets itself, be it the
    default. `executor_options` are kept as far as they are no secrets.

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
    retry_spend
        What may be spent on asking again, changed, what was answered badly: a share of what the first answers cost, and
        at least 20 requests; None for no cap.
    repeat
        0, or the number of a planned repeat, which asks the same question anew.
    cleanup
        Delete the provider's copies once a shard is collected.
    deadline_policy
        What happens to requests whose batch has not ended when they must be asked to meet the deadline: "wait" for its
        end, or "pay_twice": ask them interactively beside it, under a reservation of their own.
    deadline_reserve_s
        How long before the deadline the work turns to the interactive tier, in seconds; None for ten minutes and a
        tenth of a second for each open request.
    """

    executor_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
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
    retry_spend: float | None = 0.1
    repeat: int = 0
    cleanup: bool = False
    deadline_policy: Literal["wait", "pay_twice"] = "wait"
    deadline_reserve_s: float | None = None
    said: frozenset[str] = field(init=False, repr=False, compare=False)
    """The names of what was set, which a value alone does not tell."""

    def __new__(cls, *_: Any, **said: Any) -> Self:
        """Remember what is set."""
        made = super().__new__(cls)
        object.__setattr__(made, "said", frozenset(said))
        return made

    def __post_init__(self) -> None:
        for names, takes, fits in _TAKES:
            for name in names:
                value = getattr(self, name)
                if not fits(value):
                    raise BadArgument(f"Options: {name} must be {takes}, not {value!r:.60}", (name,))
        if not isinstance(self.executor_options, Mapping):
            raise BadArgument("Options: executor_options must be a dict by name", ("executor_options",))

    def kept(self) -> dict[str, Any]:
        """Return what was set, as JSON has it, for a process that takes the run up; `executor_options` apart."""
        return {name: getattr(self, name) for name in sorted(self.said - {"executor_options"})}

    def over(self, kept: Mapping[str, Any]) -> Options:
        """Return these options over those that a run was begun with, as `kept` wrote them down."""
        said = {name: getattr(self, name) for name in self.said}
        return Options(**{**kept, **said})


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_time(value: Any) -> bool:
    return _is_number(value) and value >= 0


_TAKES: tuple[tuple[tuple[str, ...], str, Callable[[Any], bool]], ...] = (
    (
        ("window", "shard_rows", "shard_bytes"),
        "a whole number, 1 or more, or None",
        lambda value: value is None or (_is_count(value) and value >= 1),
    ),
    (("max_resends", "repeat"), "a whole number, 0 or more", _is_count),
    (("lease_s", "create_timeout_s", "absence_margin_s", "lost_after_s"), "seconds, 0 or more", _is_time),
    (("deadline_reserve_s",), "seconds, 0 or more, or None", lambda value: value is None or _is_time(value)),
    (
        ("systemic_rate",),
        "a share from 0 to 1, or None",
        lambda value: value is None or (_is_number(value) and 0 <= value <= 1),
    ),
    (
        ("retry_spend",),
        "a share, 0 or more, or None",
        lambda value: value is None or (_is_number(value) and value >= 0),
    ),
    (("on_uncertain",), "'resend' or 'hold'", lambda value: value in ("resend", "hold")),
    (("deadline_policy",), "'wait' or 'pay_twice'", lambda value: value in ("wait", "pay_twice")),
    (("cleanup",), "True or False", lambda value: isinstance(value, bool)),
)
"""What each option takes, in words and as a test."""


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
    waiting, next_try_s
        Distinct requests that wait to be asked again by what went wrong, the most frequent first, and in how many
        seconds from this snapshot on the first of them is; None where none waits.
    """

    counts: Mapping[str, int]
    rows: Mapping[str, int]
    phases: Mapping[str, int]
    elapsed_s: float
    note: str
    waiting: Mapping[str, int] = field(default_factory=dict)
    next_try_s: float | None = None


@dataclass(frozen=True, kw_only=True)
class Lane:
    """One way to have requests answered: an executor, and what it charges."""

    executor: BatchExecutor | StreamExecutor
    prices: Prices | None

    @cached_property
    def streams(self) -> bool:
        """Whether the executor answers while it is read. Asked at every step, and slow to find out."""
        return isinstance(self.executor, StreamExecutor)

    @property
    def tier(self) -> Tier:
        """The tier that shards of this lane are written down with."""
        return "interactive" if self.streams else "batch"

    @property
    def in_flight(self) -> int | None:
        """How many requests may be asked beyond those that are recorded, where asking may cost money unseen."""
        return self.executor.window if isinstance(self.executor, StreamExecutor) and self.executor.paid else None


@dataclass(kw_only=True)
class Job:
    """One call's work: what it is, what it is done with, and why it stopped sending, if it did."""

    ledger: Ledger
    lane: Lane
    """The way that requests are sent now; a deadline may change it."""
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
    purpose: Purpose = Purpose.ANSWER
    lots: Family | None = None
    """The lots that are closed and drawn from once their requests are final; None for a job without lots."""
    open_lane: Callable[[Tier], Lane] | None = None
    """Makes the lane of a tier, for shards that were sent another way than this call sends."""
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
    n_golden_apart: int = 0
    """Golden rows that disagree, where they do not let the rest through."""
    golden_known: pl.DataFrame | None = field(default=None, repr=False)
    """Golden rows whose answers are known for good."""
    started_at: datetime | None = None
    halted: str | None = None
    """Why nothing more is sent: a code, with a colon and a detail where there is one. Open shards still run out."""
    n_unsummed: int = 0
    """Requests collected since the whole run was added up."""
    deadline: datetime | None = None
    """When the answers are wanted; batches that will not make it are left for the interactive lane."""
    turned: bool = False
    """Whether the deadline has turned this work to the interactive lane."""
    unreached: bool = False
    """Whether a batch could not be canceled at the last attempt, since its provider was not reached."""
    fits_from: datetime | None = None
    """When something is due that fits the budget, where nothing that is due now does."""
    queue: list[pl.DataFrame] = field(default_factory=list)
    """Shards that are cut but not intended yet. Only a plan: what another process takes is left out of it."""
    _lanes: dict[Tier, Lane] = field(default_factory=dict)

    def lane_of(self, shard: ShardRow) -> Lane:
        """Return the way that a shard was sent."""
        return self.lane_at("interactive" if shard["tier"] == "interactive" else "batch")

    def lane_at(self, tier: Tier) -> Lane:
        """Return the way of a tier, made on first use.

        Raises
        ------
        BadArgument
            This provider has no such tier.
        """
        self._lanes.setdefault(self.lane.tier, self.lane)
        if tier not in self._lanes:
            if self.open_lane is None:
                raise BadArgument.of("tier", f"{self.spec.provider} has no {tier} tier here")
            self._lanes[tier] = self.open_lane(tier)
        return self._lanes[tier]

    def halt(self, reason: str) -> None:
        """Stop sending. The first reason stands."""
        self.halted = self.halted or reason
