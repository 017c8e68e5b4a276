"""A run that stopped: it carries itself, and the rows that it has."""

from __future__ import annotations

from typing import Any

from lotwise.errors.base import LotwiseError


class RunStopped(LotwiseError, RuntimeError):
    """A run stopped before each of its requests was final. What it has is kept; `.partial()` returns it.

    Attributes
    ----------
    run
        The run's handle.
    reason
        Why, in a code and a few words.
    """

    def __init__(self, message: str, run: Any, reason: str) -> None:
        super().__init__(message)
        self.run, self.reason = run, reason

    def partial(self) -> Any:
        """Return the input frame with the answers that there are."""
        return self.run.collect(partial=True)

    @classmethod
    def because(cls, run: Any, reason: str, *, n_golden_apart: int = 0) -> RunStopped:
        """Make the error that fits a reason; `n_golden_apart` counts the golden rows that disagree."""
        code, _, detail = reason.partition(":")
        kinds: dict[str, tuple[type[RunStopped], str]] = {
            "budget": (BudgetReached, "the budget is reached: not one request that is left fits what is left of it"),
            "systemic": (SystemicError, f"too many answers are bad ({detail}), so no more are bought"),
            "account_blocked": (AccountBlocked, f"the provider no longer takes requests of this account ({detail})"),
            "rejected": (ShardRejected, f"the provider refused a whole shard ({detail})"),
            "canceled": (RunCanceled, "the run was canceled"),
            "stopped": (cls, "every run of this ledger was stopped by hand"),
            "canary": (CanaryFailed, f"the canary does not let the rest through ({detail})"),
            "engine": (EngineStopped, detail),
        }
        kind, text = kinds.get(code, (cls, reason))
        hint = {
            "budget": "Call again with a larger budget= to go on",
            "systemic": "Look at .partial(), mend the prompt or schema, or raise Options(systemic_rate=)",
            "account_blocked": "Nothing is lost and no attempt was used up: call again once the account is in order",
            "rejected": "The other shards went on; call again once the cause is mended",
            "canary": f"{_apart(run, n_golden_apart)}, mend the prompt, schema or threshold, or pass canary='override'",
            "engine": "Nothing is lost: call again once the engine's arguments or the machine are in order",
        }.get(code, "Call again to go on")
        return kind(f"{text}. {hint}. Run {run.id}; .partial() has what is done", run, reason)


def _apart(run: Any, n: int) -> str:
    """Say where the golden rows are shown that disagree; no content is in a message."""
    if not n:
        return "Look at .partial()"
    rows = "1 golden row disagrees" if n == 1 else f"{n:,} golden rows disagree"
    return f"{rows}: `lotwise golden {run.id}` or .run.golden() shows expected and answered. Look at them"


class BudgetReached(RunStopped):
    """No unsent request's upper bound fits what is left of the budget."""


class SystemicError(RunStopped):
    """More answers of a shard are bad than may be."""


class AccountBlocked(RunStopped):
    """The account cannot send: no credit, no permission, no such model."""


class ShardRejected(RunStopped):
    """The provider refused a shard whole, for a reason that waiting does not mend."""


class RunCanceled(RunStopped):
    """The run was canceled."""


class CanaryFailed(RunStopped):
    """Golden rows do not agree, or too many answers of the canary are invalid. A later call is refused as well, until
    the spec or the threshold changes or ``canary="override"`` is passed."""


class EngineStopped(RunStopped):
    """The local engine could not be started, or kept ending."""
