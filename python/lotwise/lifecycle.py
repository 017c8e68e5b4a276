"""The states of shards and requests, which moves between them are legal, and what to do next.

Everything here is pure: a decision is a value made from what is known, and the reconciler acts on it. The tables below
are the one statement of what may move where; the ledger's SQL and docs/architecture.md are tested against them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import StrEnum

import polars as pl

from lotwise.request import BILLED, PERHAPS_BILLED, Code


class ShardState(StrEnum):
    """Where a shard stands."""

    PLANNED = "planned"
    INTENDED = "intended"
    CREATING = "creating"
    SUBMITTED = "submitted"
    ENDED = "ended"
    COLLECTED = "collected"
    UNCERTAIN = "uncertain"
    REJECTED = "rejected"
    CANCELING = "canceling"
    LOST = "lost"


S = ShardState
SHARD_MOVES: dict[ShardState, tuple[ShardState, ...]] = {
    S.PLANNED: (S.INTENDED,),
    S.INTENDED: (S.CREATING, S.LOST),
    S.CREATING: (S.SUBMITTED, S.UNCERTAIN, S.REJECTED, S.LOST),
    S.UNCERTAIN: (S.SUBMITTED, S.LOST),
    S.SUBMITTED: (S.CANCELING, S.ENDED, S.REJECTED, S.LOST),
    S.CANCELING: (S.ENDED, S.REJECTED, S.LOST),
    S.ENDED: (S.COLLECTED,),
    S.COLLECTED: (),
    S.REJECTED: (),
    S.LOST: (S.SUBMITTED,),  # its batch came late, after it was given up
}
"""Every legal move of a shard. One that is `lost` or `rejected` was never worked on: its requests are pending again."""

CLOSED_SHARDS = frozenset((S.COLLECTED, S.REJECTED, S.LOST))
OPEN_SHARDS = frozenset(SHARD_MOVES) - CLOSED_SHARDS - {S.PLANNED}


class RequestState(StrEnum):
    """Where the sending of a request stands. It belongs to the key, whatever run expects it."""

    PENDING = "pending"
    SUBMITTED = "submitted"
    ANSWERED = "answered"
    REFUSED = "refused"
    DEAD_LETTERED = "dead_lettered"


R = RequestState
REQUEST_MOVES: dict[RequestState, tuple[RequestState, ...]] = {
    R.PENDING: (R.SUBMITTED, R.DEAD_LETTERED),
    R.SUBMITTED: (R.PENDING, R.ANSWERED, R.REFUSED, R.DEAD_LETTERED),
    R.ANSWERED: (R.PENDING,),  # only by retry="invalid"
    R.REFUSED: (R.PENDING,),  # only by retry="refused"
    R.DEAD_LETTERED: (R.PENDING,),  # only by retry="dead_lettered" or a code
}
"""Every legal move of a request's sending state."""


class RowState(StrEnum):
    """What a row of the output frame shows: the sending state seen through the run's validator."""

    PENDING = "pending"
    SUBMITTED = "submitted"
    SUCCEEDED = "succeeded"
    INVALID = "invalid"
    REFUSED = "refused"
    DEAD_LETTERED = "dead_lettered"
    SKIPPED = "skipped"
    ABSENT = "absent"


ROW_STATES = pl.Enum([s.value for s in RowState])


@dataclass(frozen=True, kw_only=True)
class Policy:
    """How often a request is tried, and when sending stops (promise 4).

    Attributes
    ----------
    max_attempts
        Attempts of one request that were billed or failed by their own fault.
    max_resends
        Attempts of one request that came to nothing and were not billed; they cost nothing but time.
    systemic_rate
        The share of invalid or input-fault answers of one shard above which sending stops; None never stops.
    systemic_floor
        Answered requests that a shard needs before its share means anything.
    retry_spend
        What changed retries, of requests whose answers were charged for and invalid, may cost together, as a share of
        what their run's first answers cost; None for no cap.
    retry_floor
        Changed retries of a run that the cap never forbids: a share of few answers is less than one.
    backoff_s, backoff_cap_s
        The first pause before sending again what was not billed, or whose answer a synchronous endpoint lost, doubled
        each time up to the cap.
    hold_uncertain
        Dead-letter what may have been answered unseen at a synchronous endpoint, rather than asking it again.
    """

    max_attempts: int = 3
    max_resends: int = 20
    systemic_rate: float | None = 0.2
    systemic_floor: int = 20
    retry_spend: float | None = 0.1
    retry_floor: int = 20
    backoff_s: float = 15.0
    backoff_cap_s: float = 900.0
    hold_uncertain: bool = False

    def __post_init__(self) -> None:
        if self.max_attempts < 1 or self.max_resends < 0:
            raise ValueError("max_attempts must be at least 1 and max_resends at least 0")
        if (self.retry_spend is not None and self.retry_spend < 0) or self.retry_floor < 0:
            raise ValueError("retry_spend and retry_floor must not be negative")


# What an invalid answer can be retried with. A refusal, a continuation and an input fault have no changed retry.
_INPUT_FAULTS = (Code.BAD_REQUEST,)
_NOT_BILLED = (Code.EXPIRED, Code.CANCELED, Code.RATE_LIMITED, Code.SERVER_ERROR)


def decide(attempts: pl.DataFrame, policy: Policy) -> pl.DataFrame:
    """Say what becomes of each attempted request.

    Parameters
    ----------
    attempts
        One row a request: `key`, `code` (of `Code`), `ok` (Boolean, the validator's verdict; null where nothing was
        judged), `fault_code` (the validator's), `fault_list` (JSON), `faults`, `resends`, `tried_variant` (the variant
        of the attempt that ended, null for none), `max_tokens` (what that attempt was allowed), `retryable` (Boolean:
        whether a changed retry is allowed here at all).
    policy
        The caps.

    Returns
    -------
    The input's `key` with `to_state` (of `RequestState`), `reason` (null when all is well), `why` (what allows another
    attempt, null when none is due), `variant` (JSON for it), `faults` and `resends` as they stand now, and `delay_s`.
    """
    code = pl.col("code").cast(pl.String)
    billed = code.is_in([c.value for c in BILLED])
    own_fault = code.is_in([c.value for c in (*_INPUT_FAULTS, *PERHAPS_BILLED)])
    unbilled = code.is_in([c.value for c in _NOT_BILLED])
    frame = attempts.with_columns(
        code=code,
        faults=pl.col("faults") + (billed | own_fault).cast(pl.Int32),
        resends=pl.col("resends") + unbilled.cast(pl.Int32),
        invalid=code.is_in([Code.OK.value, Code.TRUNCATED.value, Code.NEEDS_CONTINUATION.value])
        & ~pl.col("ok").fill_null(True),
        truncated=code == Code.TRUNCATED.value,
    )
    changed = (
        pl.col("invalid")
        & pl.col("retryable")
        & pl.col("tried_variant").is_null()
        & (pl.col("faults") < policy.max_attempts)
        & (pl.col("code") != Code.NEEDS_CONTINUATION.value)
    )
    again = unbilled & (pl.col("resends") <= policy.max_resends)
    asked_again = [c.value for c in PERHAPS_BILLED if not (policy.hold_uncertain and c is Code.UNCERTAIN)]
    ask_again = pl.col("code").is_in(asked_again) & (pl.col("faults") < policy.max_attempts)
    blocked = pl.col("code") == Code.ACCOUNT_BLOCKED.value
    reason = pl.when(pl.col("invalid")).then(pl.coalesce("fault_code", "code")).otherwise(pl.col("code"))
    larger = pl.concat_str(pl.lit('{"max_tokens":'), (pl.col("max_tokens") * 2).cast(pl.String), pl.lit("}"))
    told = pl.concat_str(pl.lit('{"faults":'), pl.col("fault_list").fill_null("[]"), pl.lit("}"))
    return frame.select(
        "key",
        to_state=pl.when(changed | again | ask_again | blocked)
        .then(pl.lit(R.PENDING.value))
        .when(pl.col("code") == Code.REFUSED.value)
        .then(pl.lit(R.REFUSED.value))
        .when(billed)
        .then(pl.lit(R.ANSWERED.value))
        .otherwise(pl.lit(R.DEAD_LETTERED.value)),
        reason=pl.when(billed & ~pl.col("invalid") & (pl.col("code") == Code.OK.value)).then(None).otherwise(reason),
        why=pl.when(changed)
        .then(pl.concat_str(pl.lit("changed:"), reason))
        .when(again | blocked)
        .then(pl.concat_str(pl.lit("not_billed:"), pl.col("code")))
        .when(ask_again)
        .then(pl.col("code")),
        variant=pl.when(changed)
        .then(pl.when(pl.col("truncated")).then(larger).otherwise(told))
        .when(again | ask_again | blocked)
        .then(pl.col("tried_variant")),
        faults="faults",
        resends="resends",
        delay_s=pl.when(again)
        .then(_backoff_s("resends", policy))
        # An endpoint that loses an answer is likely to lose the next one too, and each may be charged.
        .when(ask_again & (pl.col("code") == Code.UNCERTAIN.value))
        .then(_backoff_s("faults", policy))
        .otherwise(0.0),
    )


def _backoff_s(tried: str, policy: Policy) -> pl.Expr:
    """Return the pause, seconds, before what was tried so many times in vain is tried again."""
    return (policy.backoff_s * pl.lit(2.0).pow((pl.col(tried) - 1).clip(0, 30))).clip(upper_bound=policy.backoff_cap_s)


def systemic(n_answered: int, n_bad: int, policy: Policy) -> bool:
    """Say whether so many of a shard's answers are bad that sending more would buy more of the same."""
    if policy.systemic_rate is None or n_answered < policy.systemic_floor:
        return False
    return n_bad > policy.systemic_rate * n_answered


_USD = pl.Decimal(38, 9)

RETRY_SPEND = "retry_budget"
"""The reason of a request that was not asked again because changed retries have cost what they may."""


@dataclass(frozen=True, kw_only=True)
class RetrySpend:
    """What a run's requests have cost so far.

    Attributes
    ----------
    n_first, first_usd
        Answers that were charged for as their requests were first asked, and their cost.
    n_changed, changed_usd
        Changed retries that were charged for or are out, and their cost; one that is out counts as what is expected.
    n_open
        Requests that are still to be answered for the first time, and changed retries that are out: with their answers
        the shares change.

    A cost is None where that of one answer is not known; requests are then counted in place of dollars.
    """

    n_first: int
    first_usd: Decimal | None
    n_changed: int
    changed_usd: Decimal | None
    n_open: int


@dataclass(frozen=True, kw_only=True)
class Retries:
    """What becomes of changed retries that are due: keys to be sent now, to wait, or never to be sent."""

    now: pl.Series
    later: pl.Series
    never: pl.Series


def within_retry_spend(due: pl.DataFrame, spend: RetrySpend, policy: Policy) -> Retries:
    """Say which changed retries may be sent, the cheapest first (promise 4).

    Parameters
    ----------
    due
        One row a retry: `key`, and `expected_usd`, what its request is expected to cost this time (Decimal, null where
        that is not known).
    spend
        What the run's requests have cost so far.
    policy
        The cap.

    Returns
    -------
    What does not fit waits while first answers, whose cost raises the cap, or other retries are out; else it is over.
    """
    nothing = due["key"].clear()
    if policy.retry_spend is None:
        return Retries(now=due["key"], later=nothing, never=nothing)
    first, changed = spend.first_usd, spend.changed_usd
    if first is None or changed is None or due["expected_usd"].has_nulls():
        first, changed = Decimal(spend.n_first), Decimal(spend.n_changed)
        due = due.with_columns(expected_usd=pl.lit(Decimal(1)))
    ordered = due.sort("expected_usd", "key")
    room = first * Decimal(str(policy.retry_spend)) - changed
    total = pl.col("expected_usd").cast(_USD).cum_sum()
    free = max(policy.retry_floor - spend.n_changed, 0)
    chosen = ordered.with_row_index("rank").select("key", sent=(total <= pl.lit(room, _USD)) | (pl.col("rank") < free))
    kept = chosen.filter(~pl.col("sent"))["key"]
    wait = spend.n_open > 0
    return Retries(
        now=chosen.filter("sent")["key"],
        later=kept if wait else nothing,
        never=nothing if wait else kept,
    )


class Step(StrEnum):
    """What one pass of the reconciler does with one open shard."""

    WAIT = "wait"  # somebody else's lease runs, or it is not yet time
    SUBMIT = "submit"  # go on with our own intent
    RELEASE = "release"  # no create was begun: its requests are pending again
    RESOLVE = "resolve"  # a create was begun: find out whether it arrived
    POLL = "poll"
    COLLECT = "collect"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What is known of an open shard when its next step is decided."""

    state: ShardState
    mine: bool
    """This very call holds the lease."""
    leased: bool
    """Somebody else holds a lease that has not run out, and is not known to be dead."""
    stream: bool
    """Its executor answers while it is read, so there is nothing to poll."""
    due: bool
    """The time for the next look has come."""


def next_step(standing: Standing) -> Step:
    """Decide what to do with an open shard. Nobody touches a shard that another holds."""
    if standing.leased and not standing.mine:
        return Step.WAIT
    match standing.state:
        case S.INTENDED:
            return Step.SUBMIT if standing.mine else Step.RELEASE
        case S.CREATING | S.UNCERTAIN:
            return Step.RESOLVE if standing.due or standing.state is S.CREATING else Step.WAIT
        case S.SUBMITTED | S.CANCELING if standing.stream:
            return Step.COLLECT
        case S.SUBMITTED | S.CANCELING:
            return Step.POLL if standing.due else Step.WAIT
        case S.ENDED:
            return Step.COLLECT
        case _:
            return Step.WAIT


def proven_unsent(
    *,
    creating_at: datetime,
    called_at: datetime | None = None,
    listed_at: datetime,
    create_timeout_s: float,
    margin_s: float,
    listed_back_to: datetime | None,
    intended_at: datetime,
) -> bool:
    """Say whether a shard that the account's list lacks was certainly never taken (promise 1).

    The list must have been read late enough that a create still on its way would have arrived, and far enough back
    that a provider clock running behind ours cannot have hidden it. `listed_back_to` is None when the whole list was
    read. `called_at` is when the call came back without an answer, where its maker could still tell: a process that was
    stopped in the middle may have sent it long after `creating_at`.
    """
    arrived_by = creating_at + timedelta(seconds=create_timeout_s)
    if called_at is not None:
        arrived_by = max(arrived_by, called_at)
    late_enough = listed_at >= arrived_by + timedelta(seconds=margin_s)
    far_enough = listed_back_to is None or listed_back_to <= intended_at - timedelta(seconds=margin_s)
    return late_enough and far_enough


RETENTION_WARNING = timedelta(days=5)
"""How long before a provider forgets a batch's results it is time to say so."""


def retention_ends(submitted_at: datetime | None, retention_s: float | None) -> datetime | None:
    """Return until when a batch's results can be read; None where nothing is submitted or nothing is forgotten."""
    if submitted_at is None or retention_s is None:
        return None
    return submitted_at + timedelta(seconds=retention_s)


def poll_pause(since_submitted_s: float, jitter: float) -> float:
    """Return the seconds to the next look at a batch: 5 s at first, growing with its age up to ten minutes.

    `jitter` in [0, 1) spreads processes that started together by up to a fifth.
    """
    return min(600.0, max(5.0, since_submitted_s / 12.0)) * (0.9 + 0.2 * jitter)
