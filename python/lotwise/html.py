"""How a run and a plan look in a notebook: small tables of counts, and never any row content."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lotwise.estimate import Plan
    from lotwise.run import Status

_STYLE = (
    "font-family:system-ui,sans-serif;font-size:13px;border:1px solid rgba(128,128,128,.35);border-radius:6px;"
    "padding:10px 14px;display:inline-block;min-width:22em"
)
_COLOURS = {
    "succeeded": "#2e7d32",
    "invalid": "#c62828",
    "refused": "#ad6800",
    "dead_lettered": "#6a1b9a",
    "submitted": "#1565c0",
    "pending": "#90a4ae",
    "skipped": "#cfd8dc",
}


def status(shown: Status) -> str:
    """Draw where a run stands."""
    title = f"run <code>{escape(shown.run_id)}</code>{' ' + escape(shown.name) if shown.name else ''}"
    facts = [
        ("model", escape(shown.model)),
        ("state", escape(shown.state + (f": {shown.reason}" if shown.reason else ""))),
        ("rows", f"{shown.n_rows:,} ({shown.n_requests:,} distinct requests)"),
        ("shards", escape(", ".join(f"{n} {state}" for state, n in shown.shards.items()) or "none")),
        ("ledger", f"<code>{escape(shown.ledger)}</code>"),
    ]
    if shown.cost_usd is not None and (shown.cost_usd or shown.reserved_usd):
        facts.insert(4, ("cost", f"${shown.cost_usd} spent, ${shown.reserved_usd} reserved"))
    return _card(title, _bar(shown.rows) + _legend(shown.rows) + _table(facts))


def plan(shown: Plan) -> str:
    """Draw what a call would do."""
    parts = {
        "succeeded": shown.n_done,
        "submitted": shown.n_in_flight,
        "pending": shown.n_to_send,
        "invalid": shown.n_ended,
    }
    names = {"succeeded": "done", "submitted": "in flight", "pending": "to send", "invalid": "ended"}
    facts = [
        ("model", f"{escape(shown.model)} ({escape(shown.tier)})"),
        ("rows", f"{shown.n_rows:,} ({shown.n_unique:,} distinct, {shown.n_skipped:,} skipped)"),
        ("to send", f"{shown.n_to_send:,} requests in {shown.n_shards:,} shards, {shown.n_bytes:,} bytes at most"),
        ("ledger", f"<code>{escape(str(shown.ledger))}</code>{' (would be made)' if shown.ledger_is_new else ''}"),
    ]
    if shown.cost_high_usd is not None:
        facts.insert(3, ("cost", f"${shown.cost_low_usd} to ${shown.cost_high_usd}"))
    if shown.close_spec:
        facts.append(("close", "an earlier spec differs only in " + escape(", ".join(shown.close_spec))))
    facts += [("note", escape(warning)) for warning in shown.warnings]
    return _card("plan", _bar(parts) + _legend(parts, names) + _table(facts))


def _card(title: str, body: str) -> str:
    return f'<div style="{_STYLE}"><div style="font-weight:600;margin-bottom:6px">lotwise {title}</div>{body}</div>'


def _bar(parts: Mapping[str, int]) -> str:
    total = sum(parts.values())
    if not total:
        return ""
    pieces = "".join(
        f'<span style="flex:{n};background:{_COLOURS.get(state, "#90a4ae")}" title="{escape(state)}: {n:,}"></span>'
        for state, n in _ordered(parts)
    )
    return f'<div style="display:flex;height:8px;border-radius:4px;overflow:hidden;margin:4px 0">{pieces}</div>'


def _legend(parts: Mapping[str, int], names: Mapping[str, str] | None = None) -> str:
    told = (
        f'<span style="margin-right:12px;white-space:nowrap"><span style="color:{_COLOURS.get(state, "#90a4ae")}">'
        f"&#9632;</span> {n:,} {escape((names or {}).get(state, state))}</span>"
        for state, n in _ordered(parts)
    )
    return f'<div style="margin-bottom:6px">{"".join(told)}</div>'


def _ordered(parts: Mapping[str, int]) -> Iterable[tuple[str, int]]:
    order = list(_COLOURS)
    shown = [(state, n) for state, n in parts.items() if n]
    return sorted(shown, key=lambda one: order.index(one[0]) if one[0] in order else len(order))


def _table(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(
        f'<tr><td style="text-align:left;padding:1px 14px 1px 0;opacity:.65">{name}</td>'
        f'<td style="text-align:left;padding:1px 0">{value}</td></tr>'
        for name, value in facts
    )
    return f'<table style="border:none;border-collapse:collapse;margin:0">{rows}</table>'
