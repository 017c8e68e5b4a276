"""Where a run stands, read from the ledger alone: nothing is sent, no provider is asked, and nothing is changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import polars as pl

from lotwise.deadline import WHY
from lotwise.errors import LotwiseError, UnknownRun
from lotwise.executors import hosted_by_name, load
from lotwise.executors.reading import NOT_SENT
from lotwise.ledger import borrowed as borrowed_book
from lotwise.ledger import golden as golden_book
from lotwise.ledger import orphans, waiting
from lotwise.ledger import results as result_book
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import RequestState, ShardState
from lotwise.schema import Schema

_OPEN = ("pending", "submitted")

_UNSENT = (ShardState.PLANNED, ShardState.INTENDED, ShardState.LOST, ShardState.REJECTED)
"""Where the provider has taken nothing of a shard."""


@dataclass(frozen=True, kw_only=True)
class Status:
    """Where a run stands.

    Attributes
    ----------
    run_id, name, model, ledger
        Which run it is, and where it is written down.
    state
        open, done, stopped or canceled.
    reason
        Why it was stopped; None when it was not.
    n_rows, n_skipped, n_requests
        Rows of the frame, rows that ask for nothing, and distinct requests.
    requests, rows
        Distinct requests and rows by state.
    shards
        Shards made for this work by state.
    n_sent
        Requests that this very call sent, repeats included; the rest was in the ledger or went with another call. Of a
        batch it is all that is in it; of a synchronous endpoint or a local engine, what an answer or an error came back
        for.
    n_unsent
        Calls of this very run that never left, for want of a connection; they are in no other count.
    n_golden
        Golden rows that this very call asked besides; they are in no other count.
    reserved_usd, cost_usd
        What open shards may still cost, those that were given up and whose batch may still come included, and what
        collected ones did cost; None where no price is known.
    n_given_up
        Batches that came, or may still come, for shards that were given up, and are not dealt with yet.
    answered_by
        Distinct requests answered by tier, where this work was sent by more than one: {"batch": ..., "interactive":
        ...}; each counts where its last answer came from. Empty otherwise.
    n_borrowed
        Distinct requests that show an answer to a compatible one: the same messages and model, under another schema or
        parameters (`reuse="compatible"`; table `borrowed`).
    n_twice
        Requests that a deadline had asked interactively while their batch had not ended: each may be paid for twice.
    n_late
        Requests that had been sent again when their first batch came after all: what it answered of them before it was
        canceled is charged besides.
    cached_share
        The share of the work's input tokens that were read from a provider's cache; None where no tokens are known.
    n_uncertain, uncertain_usd
        Attempts that may have been charged without our seeing an answer, because a process ended or an answer was lost
        on its way, and the most that they can have cost: the largest double charge, where they were asked again. None
        where no price is known.
    waiting, next_try_at
        Distinct requests that failed and wait to be asked again by what went wrong, the most frequent first, and when
        the first of them is due; None where none waits.
    notices
        What the work was told of at once: the canary's verdict, a risen rate of invalid answers, a changed model
        revision, drift of the golden rows, each with the shard at which it began. What another run of the same work was
        told begins with that run.
    paid
        Whether its executor can cost money.
    created_at, ended_at
        When the run was written down, and when it ended.
    """

    run_id: str
    name: str | None
    model: str
    ledger: str
    state: str
    reason: str | None
    n_rows: int
    n_skipped: int
    n_requests: int
    requests: Mapping[str, int]
    rows: Mapping[str, int]
    shards: Mapping[str, int]
    n_sent: int
    n_unsent: int = 0
    n_golden: int = 0
    reserved_usd: Decimal | None
    cost_usd: Decimal | None
    n_given_up: int = 0
    n_late: int = 0
    answered_by: Mapping[str, int] = field(default_factory=dict)
    n_borrowed: int = 0
    n_twice: int = 0
    cached_share: float | None = None
    n_uncertain: int = 0
    uncertain_usd: Decimal | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)
    next_try_at: datetime | None = None
    notices: tuple[str, ...] = ()
    paid: bool = True
    created_at: datetime
    ended_at: datetime | None

    @classmethod
    def of(cls, ledger: Ledger, run_id: str, *, paid: bool | None = None, now: datetime | None = None) -> Status:
        """Read where a run stands from the ledger. Sends nothing, asks no provider, and changes nothing.

        Parameters
        ----------
        paid
            Whether its executor can cost money; None to find out from the model's name and what is kept of its options.
        now
            After which moment a request counts as waiting; None for the clock's.

        Raises
        ------
        UnknownRun
            The ledger has no such run.
        """
        row = row_of(ledger, run_id)
        counts = run_book.counts(ledger, run_id, row["validator"])
        rows = {state: n for state, (_, n) in counts.items()}
        if row["n_skipped"]:
            rows["skipped"] = row["n_skipped"]
        shards: dict[str, int] = {}
        tiers = set()
        n_sent, reserved, cost, unpriced = 0, Decimal(0), Decimal(0), False
        given_up = {orphan["shard"] for orphan in orphans.of_job(ledger, row["job"])}
        for shard in shard_book.of_job(ledger, row["job"]):
            state = shard["state"]
            shards[state] = shards.get(state, 0) + 1
            tiers.add(shard["tier"])
            if shard["run"] == run_id and shard["tier"] != "interactive" and state not in _UNSENT:
                n_sent += shard["n_requests"]
            if state == ShardState.COLLECTED:
                unpriced |= shard["cost_usd"] is None
                cost += shard["cost_usd"] or 0
            elif state not in (ShardState.LOST, ShardState.REJECTED) or shard["id"] in given_up:
                unpriced |= shard["reserved_usd"] is None
                reserved += shard["reserved_usd"] or 0
        n_calls, n_unsent = result_book.calls_made(ledger, run_id, unsent=NOT_SENT)
        n_golden = golden_book.n_sent(ledger, run_id, unsent=NOT_SENT)
        n_uncertain, uncertain_usd = result_book.uncertain(ledger, run_id, row["job"])
        paid = _is_paid(row) if paid is None else paid
        priced = not unpriced or not paid
        waits = waiting.of(ledger, run_id, now or datetime.now(UTC)) if row["state"] == "open" else ()
        return cls(
            run_id=run_id,
            name=row["name"],
            model=row["model"],
            ledger=str(ledger.path),
            state=row["state"],
            reason=row["reason"],
            n_rows=row["n_rows"],
            n_skipped=row["n_skipped"],
            n_requests=row["n_requests"],
            requests={state: n for state, (n, _) in counts.items()},
            rows=rows,
            shards=shards,
            n_sent=n_sent + n_calls - n_golden,
            n_unsent=n_unsent,
            n_golden=n_golden,
            reserved_usd=reserved if priced else None,
            cost_usd=cost if priced else None,
            n_given_up=len(given_up),
            n_late=run_book.n_asked_with(ledger, run_id, orphans.WHY),
            answered_by=run_book.answered_by(ledger, run_id) if len(tiers) > 1 else {},
            n_borrowed=borrowed_book.n_of(ledger, run_id),
            n_twice=run_book.n_asked_with(ledger, run_id, WHY) if len(tiers) > 1 else 0,
            cached_share=run_book.cached_share(ledger, row["job"]),
            n_uncertain=n_uncertain,
            uncertain_usd=uncertain_usd if priced else None,
            waiting={one.reason: one.n for one in waits},
            next_try_at=min((one.next_due_at for one in waits), default=None),
            notices=tuple(
                one["text"] if one["run"] == run_id else f"run {one['run']}: {one['text']}"
                for one in golden_book.notices(ledger, row["job"])
            ),
            paid=paid,
            created_at=row["created_at"],
            ended_at=row["ended_at"],
        )

    @property
    def n_open(self) -> int:
        """Requests that are not final."""
        return sum(self.requests.get(state, 0) for state in _OPEN)

    def __str__(self) -> str:
        from lotwise import text

        return text.status(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from lotwise import html

        return html.status(self)


def missing_of(ledger: Ledger, run_id: str) -> pl.DataFrame:
    """Return every request of a run without a valid answer, as `Run.missing` does."""
    found = run_book.missing(ledger, run_id, row_of(ledger, run_id)["validator"])
    state = (
        pl.when(pl.col("sending_state") == RequestState.ANSWERED.value)
        .then(pl.lit("invalid"))
        .otherwise(pl.col("sending_state"))
    )
    return found.select(llm_id="key", llm_state=state, reason="reason", attempts="attempts", due_at="due_at")


def row_of(ledger: Ledger, run_id: str) -> dict[str, Any]:
    """Return a run's row. Raises `UnknownRun` where the ledger has none."""
    row = run_book.row(ledger, run_id)
    if row is None:
        raise UnknownRun.of(run_id, run_book.all_runs(ledger)["id"].to_list())
    return row


def schema_of(row: Mapping[str, Any]) -> Schema:
    """Read the schema of a run's answers back: its own, else the one that was sent.

    A Pydantic model lives in the caller's code; the schema that was sent for it names the same fields. A purge takes
    messages out of the spec, and the schema stays.
    """
    body, wire = row.get("validator_body"), json.loads(row["spec_body"])["wire_schema"]
    return Schema.from_portable(body) if body else Schema.of(None if wire is None else json.loads(wire))


def _is_paid(row: Mapping[str, Any]) -> bool:
    """Say whether a run's model can cost money; one that cannot be loaded here may."""
    if hosted_by_name(row["model"]):
        return True
    try:
        executor, _ = load(row["model"], options=json.loads(row["options"]).get("executor_options"))
    except LotwiseError:
        return True
    return executor.paid
