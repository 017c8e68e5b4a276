"""Where a batch stands at a moment: a pure function of its plan and the provider's clock.

A batch is validated, runs its rows at an even pace, is finalized and completed; it may fail validation, be
canceled or reach the end of its window first.  Nothing here happens by itself: whoever looks at a batch asks
what must have happened by now and does it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf, isinf
from typing import Literal

Stage = Literal["validating", "failed", "in_progress", "finalizing", "completed", "cancelling", "cancelled", "expired"]
FINAL: frozenset[Stage] = frozenset({"failed", "completed", "cancelled", "expired"})


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The durations of one batch in seconds of provider time, fixed when it is created.

    `stall` is the fraction of rows after which progress stops until the window ends; None means that it runs
    through.
    """

    created_at: float
    rows: int
    fails: bool
    validate_s: float
    batch_s: float
    finalize_s: float
    cancel_s: float
    window_s: float
    stall: float | None = None
    cancel_at: float | None = None


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The stage of a batch, the rows that must have been processed, and each stage's moment so far."""

    stage: Stage
    due: int
    since: dict[str, float] = field(default_factory=dict)

    @property
    def final(self) -> bool:
        """Whether the stage never changes again."""
        return self.stage in FINAL


def row_time(plan: Plan, rank: int) -> float:
    """Return the moment at which the row of this rank (from 0) is processed."""
    return plan.created_at + plan.validate_s + plan.batch_s * (rank + 1) / plan.rows


def rows_due(plan: Plan, moment: float) -> int:
    """Return how many rows have been processed at a moment."""
    if plan.fails or moment < plan.created_at + plan.validate_s:
        return 0
    most = plan.rows if plan.stall is None else int(plan.rows * plan.stall)
    if plan.batch_s <= 0:
        return most
    elapsed = moment - plan.created_at - plan.validate_s
    return min(most, int(plan.rows * elapsed / plan.batch_s + 1e-9))


def standing(plan: Plan, now: float) -> Standing:
    """Return where the batch stands at `now`."""
    started = plan.created_at + plan.validate_s
    expires = plan.created_at + plan.window_s
    run_ends = inf if plan.stall is not None else started + plan.batch_s
    done = run_ends + plan.finalize_s
    cut = plan.cancel_at if plan.cancel_at is not None else inf
    since = {"created": plan.created_at}

    if now < min(started, cut):
        return Standing(stage="validating", due=0, since=since)
    if cut >= started:
        if plan.fails:
            return Standing(stage="failed", due=0, since=since | {"failed": started})
        since["in_progress"] = started
    if cut < min(done, expires if run_ends > expires else done):
        since["cancelling"] = cut
        ended = cut + plan.cancel_s
        if now < ended:
            return Standing(stage="cancelling", due=rows_due(plan, cut), since=since)
        return Standing(stage="cancelled", due=rows_due(plan, cut), since=since | {"cancelled": ended})
    if run_ends > expires:
        if now < expires:
            return Standing(stage="in_progress", due=rows_due(plan, now), since=since)
        return Standing(stage="expired", due=rows_due(plan, expires), since=since | {"expired": expires})
    if now < run_ends or isinf(run_ends):
        return Standing(stage="in_progress", due=rows_due(plan, now), since=since)
    since["finalizing"] = run_ends
    if now < done:
        return Standing(stage="finalizing", due=plan.rows, since=since)
    return Standing(stage="completed", due=plan.rows, since=since | {"completed": done})
