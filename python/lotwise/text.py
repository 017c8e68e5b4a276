"""How a run and a plan read in a terminal: a heading and aligned facts, counts only and never any row content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lotwise.estimate import Plan
    from lotwise.run import Status

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
    facts.append(("sent", f"{sent} for this run{asked}"))
    if shown.shards:
        facts.append(("shards", counts(shown.shards)))
    if shown.cost_usd is None:
        facts.append(("cost", "unknown: no price is known for this model"))
    elif shown.cost_usd or shown.reserved_usd:
        reserved = f", up to {usd(shown.reserved_usd)} more for what is open" if shown.reserved_usd else ""
        facts.append(("cost", f"{usd(shown.cost_usd)} spent{reserved}"))
    facts.append(("ledger", shown.ledger))
    return facts + [("notice", told) for told in shown.notices]


def plan_facts(shown: Plan) -> list[tuple[str, str]]:
    """Return what is told of a plan, by name."""
    facts = [
        ("rows", f"{shown.n_rows:,} ({plural(shown.n_unique, 'distinct request')}, {shown.n_skipped:,} skipped)"),
        ("done", f"{shown.n_done:,}"),
    ]
    if shown.n_in_flight:
        facts.append(("in flight", f"{shown.n_in_flight:,}"))
    if shown.n_ended:
        facts.append(("ended", f"{shown.n_ended:,} without a valid answer; retry= opens them again"))
    if shown.n_to_send:
        sent_in = f"{plural(shown.n_shards, 'shard')}, {size(shown.n_bytes)} at most"
        facts.append(("to send", f"{plural(shown.n_to_send, 'request')} in {sent_in}"))
    else:
        facts.append(("to send", "nothing"))
    if shown.canary is not None:
        facts.append(("canary", shown.canary))
    if shown.n_golden:
        facts.append(("golden", f"{plural(shown.n_golden, 'golden row')} asked besides, in the cost"))
    if shown.cost_high_usd is not None:
        facts.append(("cost", f"{usd(shown.cost_low_usd)} to {usd(shown.cost_high_usd)}"))
    if shown.close_spec:
        facts.append(("close", f"an earlier spec of this model differs only in {', '.join(shown.close_spec)}"))
    if shown.reading.n_rows:
        of = f" of {plural(shown.reading.n_lots, 'lot')}"
        facts.append(("to read", f"{plural(shown.reading.n_rows, 'answer')}{of}, {hours(shown.reading.hours)}"))
        facts += [("", words) for words in shown.reading.words]
    facts.append(("ledger", f"{shown.ledger}{' (would be made)' if shown.ledger_is_new else ''}"))
    return facts + [("note", warning) for warning in shown.warnings]


def counts(parts: Mapping[str, int]) -> str:
    """Write the parts that are not zero, states in their order."""
    return ", ".join(f"{n:,} {said(state)}" for state, n in ordered(parts))


def ordered(parts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the parts that are not zero: states in their order, then all else as it comes."""
    shown = [(state, n) for state, n in parts.items() if n]
    return sorted(shown, key=lambda part: STATES.index(part[0]) if part[0] in STATES else len(STATES))


def said(state: str) -> str:
    """Write a state's name as words."""
    return {"dead_lettered": "dead-lettered"}.get(state, state)


def plural(n: int, noun: str) -> str:
    """Count a noun."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def usd(amount: Decimal | None) -> str:
    """Write an amount of US dollars: cents, and more digits only where it is less than a dollar."""
    if amount is None:
        return "unknown"
    return f"${amount:,.2f}" if amount >= 1 or not amount else f"${amount:.4f}"


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
