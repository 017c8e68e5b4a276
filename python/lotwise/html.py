"""How a run, a plan and progress look in a notebook: cards of counts, and never any row content.

Styles are inline and colours stand on light and dark alike, since a notebook's front end may strip or override a style
sheet, and nobody knows its theme. Every word that comes from outside is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from lotwise import text

if TYPE_CHECKING:
    from lotwise.estimate import Plan
    from lotwise.job import Snapshot
    from lotwise.status import Status

_GREY = "rgba(140,150,165,.7)"
_COLOURS = {
    "succeeded": "#2f9e5b",
    "invalid": "#d9534f",
    "refused": "#d08700",
    "dead_lettered": "#9b59b6",
    "submitted": "#3b82d6",
    "pending": _GREY,
    "skipped": "rgba(140,150,165,.35)",
}
_STATE_COLOURS = {"done": "#2f9e5b", "open": "#3b82d6", "stopped": "#d08700", "canceled": _GREY}
_CARD = (
    "font:13px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,sans-serif;box-sizing:border-box;max-width:46em;"
    "margin:4px 0;padding:12px 16px 13px;border:1px solid rgba(128,128,128,.3);border-radius:8px;"
    "font-variant-numeric:tabular-nums"
)
_MONO = "font:12px/1.55 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;overflow-wrap:anywhere"
_QUIET = "opacity:.62"
_PATHS = ("ledger", "model")


def status(shown: Status) -> str:
    """Draw where a run stands."""
    heading = f"run {_mono(shown.run_id)}" + (f" &ensp;{escape(shown.name)}" if shown.name else "")
    chip = _chip(text.state_of(shown), _STATE_COLOURS.get(shown.state, _GREY))
    facts = [fact for fact in text.status_facts(shown) if fact[0] != "states"]
    return _card(heading, chip, _bar(shown.rows) + _legend(shown.rows), facts)


def plan(shown: Plan) -> str:
    """Draw what a call would do."""
    parts = {
        "succeeded": shown.n_done,
        "submitted": shown.n_in_flight,
        "invalid": shown.n_ended,
        "pending": shown.n_to_send,
    }
    names = {"succeeded": "done", "submitted": "in flight", "pending": "to send", "invalid": "ended"}
    facts = [("model", f"{shown.model}, {shown.tier}"), *text.plan_facts(shown)]
    facts = [fact for fact in facts if fact[0] not in ("done", "in flight")]
    chip = _chip("nothing is sent by a plan", _GREY)
    return _card("plan", chip, _bar(parts) + _legend(parts, names), facts)


def progress(shown: Snapshot, elapsed_s: float, notes: Sequence[str]) -> str:
    """Draw how far a run is, with what else is worth knowing below."""
    total = sum(shown.rows.values())
    done = total - sum(shown.rows.get(state, 0) for state in ("pending", "submitted"))
    heading = f"{done:,} of {total:,} rows" if total else "no rows"
    phases = ", ".join(f"{n:,} {phase.replace('_', ' ')}" for phase, n in sorted(shown.phases.items()))
    chip = _chip(text.duration(elapsed_s), "#2f9e5b" if done == total else "#3b82d6")
    told = [("shards", phases)] if phases else []
    if waits := text.waits(shown, elapsed_s):
        told.append(("waiting", waits))
    lines = "".join(f'<div style="{_QUIET};{_MONO};white-space:pre-wrap">{escape(note)}</div>' for note in notes)
    foot = f'<div style="margin-top:7px">{lines}</div>' if notes else ""
    return _card(heading, chip, _bar(shown.rows) + _legend(shown.rows), told, foot)


def _card(heading: str, chip: str, picture: str, facts: Sequence[tuple[str, str]], foot: str = "") -> str:
    """Put a card together; `heading`, `chip`, `picture` and `foot` are HTML already, `facts` are text."""
    head = (
        '<div style="display:flex;justify-content:space-between;align-items:baseline;gap:16px;flex-wrap:wrap">'
        f'<div><span style="{_QUIET}">lotwise</span> &ensp;<span style="font-weight:600">{heading}</span></div>'
        f"{chip}</div>"
    )
    return f'<div style="{_CARD}">{head}{picture}{_facts(facts)}{foot}</div>'


def _chip(words: str, colour: str) -> str:
    return (
        '<div style="white-space:nowrap"><span style="display:inline-block;width:8px;height:8px;border-radius:50%;'
        f'background:{colour};margin-right:6px"></span>{escape(words)}</div>'
    )


def _mono(words: str) -> str:
    return f'<span style="{_MONO}">{escape(words)}</span>'


def _bar(parts: Mapping[str, int]) -> str:
    if not sum(parts.values()):
        return ""
    pieces = "".join(
        f'<span style="flex:{n} 0 2px;background:{_COLOURS.get(state, _GREY)}" title="{n:,} {escape(state)}"></span>'
        for state, n in text.ordered(parts)
    )
    return (
        '<div style="display:flex;gap:1px;height:7px;border-radius:4px;overflow:hidden;margin:9px 0 6px">'
        f"{pieces}</div>"
    )


def _legend(parts: Mapping[str, int], names: Mapping[str, str] | None = None) -> str:
    told = "".join(
        '<span style="white-space:nowrap"><span style="display:inline-block;width:9px;height:9px;border-radius:2px;'
        f'background:{_COLOURS.get(state, _GREY)};margin-right:5px"></span>'
        f"{n:,} {escape((names or {}).get(state, text.said(state)))}</span>"
        for state, n in text.ordered(parts)
    )
    return f'<div style="display:flex;flex-wrap:wrap;gap:2px 16px">{told}</div>' if told else ""


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    cells = "".join(
        f'<div style="{_QUIET}">{escape(name)}</div><div>{_mono(value) if name in _PATHS else escape(value)}</div>'
        for name, value in facts
    )
    grid = "display:grid;grid-template-columns:max-content minmax(0,1fr);gap:1px 18px;margin-top:8px"
    return f'<div style="{grid}">{cells}</div>' if cells else ""
