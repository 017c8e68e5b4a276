"""How a run and a plan read in a terminal: a heading and aligned facts, counts only and never any row content."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lotwise.estimate import Plan
    from lotwise.job import Snapshot
    from lotwise.status import Status

STATES = ("succeeded", "invalid", "refused", "dead_lettered", "submitted", "pending", "skipped", "absent")
"""The order in which states are told."""


def status(shown: Status) -> str:
    """Write where a run stands."""
    name = f" {shown.name!r}" if shown.name else ""
    return "\n".join([f"run {shown.run_id}{name}: {state_of(shown)}", *_aligned(status_facts(shown))])


def plan(shown: Plan) -> str:
    """Write what a call would do."""
    return "\n".join([f"plan for {shown.model}, {shown.tier}", *_aligned(plan_facts(shown))])


def state_of(shown: Status) -> str:
    """Say in what state a run is, and why when it was stopped."""
    return shown.state if shown.reason in (None, shown.state) else f"{shown.state} ({shown.reason})"


def status_facts(shown: Status) -> list[tuple[str, str]]:
    """Return what is told of a run, by name."""
    facts = [
        ("model", shown.model),
        ("rows", f"{shown.n_rows:,} ({plural(shown.n_requests, 'distinct request')})"),
        ("states", counts(shown.rows) or "no rows"),
    ]
    sent = plural(shown.n_sent, "request") if shown.n_sent else "nothing"
    asked = f", and {plural(shown.n_golden, 'golden row')} asked" if shown.n_golden else ""
    unsent = f"; {plural(shown.n_unsent, 'call')} never left, for want of a connection" if shown.n_unsent else ""
    facts.append(("sent", f"{sent} for this run{asked}{unsent}"))
    if shown.n_borrowed:
        taken = plural(shown.n_borrowed, "answer")
        facts.append(("compatible", f"{taken} taken over from another schema or other parameters"))
    if shown.next_try_at is not None:
        asked_again = f"{sum(shown.waiting.values()):,} to be asked again ({', '.join(reasons(shown.waiting))})"
        facts.append(("waiting", f"{asked_again}, the next at {shown.next_try_at:%H:%M:%S} UTC"))
    if shown.shards:
        facts.append(("shards", counts(shown.shards)))
    if shown.answered_by:
        ways = ", ".join(
            f"{n:,} {'in batches' if tier == 'batch' else 'interactively'}" for tier, n in shown.answered_by.items()
        )
        twice = f"; {plural(shown.n_twice, 'request')} may be paid for twice" if shown.n_twice else ""
        facts.append(("answered", ways + twice))
    if shown.cost_usd is None:
        facts.append(("cost", "unknown: no price is known for this model"))
    elif shown.cost_usd or shown.reserved_usd:
        reserved = f", up to {usd(shown.reserved_usd)} more for what is open" if shown.reserved_usd else ""
        facts.append(("cost", f"{usd(shown.cost_usd)} spent{reserved}"))
    if shown.n_given_up or shown.n_late:
        facts.append(("late", late(shown)))
    if shown.cached_share:
        facts.append(("cache", f"{shown.cached_share:.1%} of the input tokens were read from it".replace("%", " %")))
    if shown.n_uncertain:
        facts.append(("uncertain", uncertain(shown)))
    facts.append(("ledger", shown.ledger))
    return facts + [("notice", told) for told in shown.notices]


def late(shown: Status) -> str:
    """Say what is known of batches that come after their shards were given up."""
    awaited = f"{plural(shown.n_given_up, 'batch', 'batches')} may come late, and will be canceled"
    twice = f"{plural(shown.n_late, 'request')} had been sent again when the batch came, and may be paid for twice"
    return "; ".join([awaited] * bool(shown.n_given_up) + [twice] * bool(shown.n_late))


def uncertain(shown: Status) -> str:
    """Say how many attempts ended with no answer seen, and what those that may have been charged can have cost."""
    if not shown.paid:
        return f"{plural(shown.n_uncertain, 'attempt')} with no answer seen, at no cost"
    most = "an unknown amount" if shown.uncertain_usd is None else f"{usd(shown.uncertain_usd)} at most"
    return f"{plural(shown.n_uncertain, 'attempt')} may have been charged with no answer seen: {most} paid twice"


def plan_facts(shown: Plan) -> list[tuple[str, str]]:
    """Return what is told of a plan, by name."""
    compatible = f", {shown.n_compatible:,} of them under another schema or parameters" if shown.n_compatible else ""
    nulls = f" for a null in {', '.join(shown.null_columns)}" if shown.null_columns else ""
    skipped = f"{shown.n_skipped:,} skipped{nulls}"
    facts = [
        ("rows", f"{shown.n_rows:,} ({plural(shown.n_unique, 'distinct request')}, {skipped})"),
        ("done", f"{shown.n_done:,}{compatible}"),
    ]
    if shown.n_in_flight:
        facts.append(("in flight", f"{shown.n_in_flight:,}"))
    if shown.n_ended:
        ended = dict(shown.rows.unique("llm_id").filter(why="ended").group_by("reason").len().iter_rows())
        why = ", ".join(reasons({reason or "unknown": n for reason, n in ended.items()}))
        facts.append(("ended", f"{shown.n_ended:,} without a valid answer ({why}); retry= opens them again"))
    if shown.n_oversize:
        facts.append(("too large", f"{plural(shown.n_oversize, 'request')}, over what the provider takes; never sent"))
    if shown.n_to_send:
        sent_in = f"{plural(shown.n_shards, 'shard')}, {size(shown.n_bytes)} at most"
        facts.append(("to send", f"{plural(shown.n_to_send, 'request')} in {sent_in}"))
    else:
        facts.append(("to send", "nothing"))
    if shown.canary is not None:
        facts.append(("canary", shown.canary))
    if shown.n_golden:
        facts.append(("golden", f"{plural(shown.n_golden, 'golden row')} asked besides, in the cost"))
    priced = shown.cost_high_usd is not None
    if priced:
        facts.append(("cost", usd_between(shown.cost_low_usd, shown.cost_high_usd)))
    if shown.close_spec:
        again = f"; asking again costs {usd_between(shown.cost_low_usd, shown.cost_high_usd)}" if priced else ""
        way = '; reuse="compatible" takes its valid answers over' if shown.can_borrow else ""
        told = f"an earlier spec of this model differs only in {', '.join(shown.close_spec)}{again}{way}"
        facts.append(("close", told))
    if shown.reading.n_rows:
        of = f" of {plural(shown.reading.n_lots, 'lot')}"
        facts.append(("to read", f"{plural(shown.reading.n_rows, 'answer')}{of}, {hours(shown.reading.hours)}"))
        facts += [("", words) for words in shown.reading.words]
    if shown.retention:
        facts.append(("kept", shown.retention))
    facts.append(("ledger", f"{shown.ledger}{' (would be made)' if shown.ledger_is_new else ''}"))
    return facts + [("note", warning) for warning in shown.warnings]


def counts(parts: Mapping[str, int]) -> str:
    """Write the parts that are not zero, states in their order."""
    return ", ".join(f"{n:,} {said(state)}" for state, n in ordered(parts))


def reasons(parts: Mapping[str, int], *, most: int = 3, alone: bool = True) -> list[str]:
    """Write what went wrong, the most frequent first and so many at most; one alone may go without its count."""
    if alone and len(parts) == 1:
        return list(parts)
    frequent = sorted(parts.items(), key=lambda part: (-part[1], part[0]))
    return [f"{n:,} {reason}" for reason, n in frequent[:most]] + ["..."] * (len(parts) > most)


def waits(shown: Snapshot, elapsed_s: float | None = None) -> str:
    """Say what waits to be asked again, why, and how long still; empty where nothing waits."""
    if shown.next_try_s is None:
        return ""
    passed_s = 0.0 if elapsed_s is None else elapsed_s - shown.elapsed_s
    left = math.ceil(max(shown.next_try_s - passed_s, 0.0))
    soon = "now" if not left else f"in {left} s" if left < 60 else f"in {duration(left)}"
    return f"{sum(shown.waiting.values()):,} wait: {', '.join(reasons(shown.waiting))}, next try {soon}"


def ordered(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the parts that are not zero: states in their order, then all else as it comes."""
    shown = [(state, n) for state, n in parts.items() if n]
    return sorted(shown, key=lambda part: STATES.index(part[0]) if part[0] in STATES else len(STATES))


def said(state: str) -> str:
    """Write a state's name as words."""
    return {"dead_lettered": "dead-lettered"}.get(state, state)


def plural(n: int, noun: str, many: str | None = None) -> str:
    """Count a noun; `many` is its plural where that is not an added s."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {many or noun + 's'}"


def usd(amount: Decimal | None) -> str:
    """Write an amount of US dollars: cents, four digits below a dollar, and no amount as nothing."""
    if amount is None:
        return "unknown"
    if amount >= 1 or not amount:
        return f"${amount:,.2f}"
    return f"${amount:.4f}" if amount >= _LEAST_USD else f"less than ${_LEAST_USD}"


_LEAST_USD = Decimal("0.0001")


def usd_between(low: Decimal | None, high: Decimal | None) -> str:
    """Write between which amounts of US dollars one lies; the upper one alone where the lower is next to nothing."""
    if low is not None and low < _LEAST_USD and high:
        return usd(high) if high < _LEAST_USD else f"up to {usd(high)}"
    return f"{usd(low)} to {usd(high)}"


def size(n_bytes: int) -> str:
    """Write a number of bytes."""
    amount = float(n_bytes)
    for unit in ("bytes", "kB", "MB"):
        if amount < 1_000:
            return f"{n_bytes} bytes" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1_000
    return f"{amount:.1f} GB"


def hours(amount: float) -> str:
    """Write hours of work: minutes where it is less than two hours."""
    return f"{round(amount * 60)} minutes" if amount < 2 else f"{amount:,.1f} hours"


def duration(elapsed_s: float) -> str:
    """Write a time span: 0:07, 12:30, 3:04:05."""
    minutes, seconds = divmod(int(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


def _aligned(facts: Sequence[tuple[str, str]]) -> Iterable[str]:
    width = max(len(name) for name, _ in facts)
    return (f"  {name:<{width}}  {value}" for name, value in facts)
