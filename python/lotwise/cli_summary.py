"""What `lotwise map` says at its end: the same facts as JSON for a program and in words for a person."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl

from lotwise import cli_tell as tell
from lotwise import text
from lotwise.errors import RunStopped
from lotwise.evidence import NOT_LOOKED, PARTLY
from lotwise.status import Status

NOT_VALID = ("dead_lettered", "invalid", "refused")
"""The states of rows and requests that ended without a valid answer, as `--retry` names them."""

FOR_GOOD = frozenset({"bad_request", "oversize"})
"""Reasons that lie in the request itself: the same request ends the same way again."""


def of(
    status: Status,
    missing: pl.DataFrame,
    answered: pl.DataFrame,
    target: Path,
    time_s: float,
    label: tuple[str, str] | None,
    arguments: dict[str, Any],
    stopped: RunStopped | None,
) -> dict[str, Any]:
    """Gather the facts: what became of the rows and why, what it cost, and what is known of their lots."""
    rows = status.rows
    return {
        "run": status.run_id,
        "state": status.state,
        "out": str(target.absolute()),
        "ledger": status.ledger,
        "rows": status.n_rows,
        "unique": status.n_requests,
        "valid": rows.get("succeeded", 0),
        "invalid": rows.get("invalid", 0),
        "refused": rows.get("refused", 0),
        "dead_lettered": rows.get("dead_lettered", 0),
        "skipped": rows.get("skipped", 0),
        "open": rows.get("pending", 0) + rows.get("submitted", 0),
        "ended": ended(missing),
        "sent_now": status.n_sent,
        "unsent_now": status.n_unsent,
        "cost_usd": status.cost_usd,
        "time_s": round(time_s, 3),
        "lots": _lots(answered, arguments["prefix"] or ""),
        "agreement": None if label is None else _agreement(answered, label, arguments),
        "notices": list(status.notices),
        "stopped": None if stopped is None else {"kind": type(stopped).__name__, "reason": stopped.reason},
    }


def ended(missing: pl.DataFrame) -> list[dict[str, Any]]:
    """Count the requests that ended without a valid answer by state and reason, the most frequent first."""
    over = missing.filter(pl.col("llm_state").is_in(NOT_VALID))
    reason = pl.coalesce("reason", "llm_state")  # a changed rule rejects an answer that ended well
    counted = over.group_by(state="llm_state", reason=reason).len("n")
    return counted.sort("n", "state", "reason", descending=[True, False, False]).to_dicts()


def _lots(answered: pl.DataFrame, prefix: str) -> list[dict[str, Any]]:
    """Count the lots of the rows by what is decided of them and why, the most frequent first."""
    names = ("lot", "decision", "reason")
    each = answered.select(pl.col(f"{prefix}llm_{name}").cast(pl.String).alias(name) for name in names)
    counted = each.drop_nulls("lot").unique().group_by("decision", "reason").len("n")
    return counted.sort("n", "decision", "reason", descending=[True, False, False]).to_dicts()


def _agreement(answered: pl.DataFrame, label: tuple[str, str], arguments: dict[str, Any]) -> dict[str, Any]:
    """Count the answered rows with a label, and those of them whose answer is the label, compared as text."""
    column, field = label
    prefix, into = arguments["prefix"] or "", arguments["into"]
    # Series, not expressions: those read names such as "*" and "^a$" as patterns.
    value = answered[prefix + field] if into is None else answered[prefix + into].struct.unnest()[field]
    pairs = pl.DataFrame({"label": answered[column].cast(pl.String), "value": value.cast(pl.String)}).drop_nulls()
    agree = pairs.filter(pl.col("label") == pl.col("value")).height
    percent = round(100 * agree / pairs.height, 1) if pairs.height else None
    return {"label": column, "field": field, "agree": agree, "of": pairs.height, "percent": percent}


def in_words(facts: dict[str, Any]) -> str:
    """Write the facts below each other, without what is nothing."""
    always = ("rows", "unique", "valid", "invalid", "refused", "skipped")
    told = [("wrote", facts["out"]), ("run", facts["run"])]
    told += [
        (name.replace("_", "-"), f"{facts[name]:,}")
        for name in ("rows", "unique", "valid", "invalid", "refused", "dead_lettered", "skipped", "open")
        if name in always or facts[name]
    ]
    if facts["ended"]:
        told.append(("reasons", reasons_in_words(facts["ended"])))
    told.append(("sent now", text.plural(facts["sent_now"], "request") if facts["sent_now"] else nothing_sent(facts)))
    if facts["unsent_now"]:
        told.append(("not sent", f"{text.plural(facts['unsent_now'], 'call')} found no connection"))
    if facts["ended"] and facts["sent_now"]:
        told.append(("to retry", _retry_in_words(facts["ended"])))
    if facts["cost_usd"]:
        told.append(("cost", f"{text.usd(facts['cost_usd'])} for this work in all"))
    told.append(("time", tell.seconds(facts["time_s"])))
    if facts["lots"] and facts["stopped"] is None:
        told.append(("lots", _lots_in_words(facts["lots"], facts["run"])))
    if facts["agreement"] is not None:
        told.append(("agreement", _agreement_in_words(facts["agreement"])))
    return tell.facts(told)


def nothing_sent(facts: dict[str, Any]) -> str:
    """Say what the ledger had instead of sending."""
    if over := facts["ended"]:
        n = sum(one["n"] for one in over)
        return f"nothing was sent; {text.plural(n, 'request')} ended without a valid answer, {_retry_in_words(over)}"
    return (
        "nothing was sent" if facts["open"] else "nothing was sent: every answer was in the ledger, or on its way there"
    )


def reasons_in_words(ended: list[dict[str, Any]]) -> str:
    """Say why requests ended without a valid answer."""
    by_reason: Counter[str] = Counter()
    for one in ended:
        by_reason[one["reason"]] += one["n"]
    return ", ".join(text.reasons(by_reason, alone=False))


def _retry_in_words(ended: list[dict[str, Any]]) -> str:
    """Say what to write to have asked again what ended, or that it would not help."""
    worth = [one for one in ended if one["reason"] not in FOR_GOOD]
    if not worth:
        return "asked again " + ("it" if sum(one["n"] for one in ended) == 1 else "they") + " would end the same way"
    states = [state for state in NOT_VALID if any(one["state"] == state for one in worth)]
    them = "it" if sum(one["n"] for one in worth) == 1 else "them"
    verb = "opens" if len(states) == 1 else "open"
    return " ".join(f"--retry {state}" for state in states) + f" {verb} {them} again"


def _lots_in_words(lots: list[dict[str, Any]], run: str) -> str:
    """Say what is decided of the lots, and where something is to be read, by which command."""
    alone = sum(lot["n"] for lot in lots) == 1
    words = "; ".join(("" if alone else f"{lot['n']:,} ") + f"{lot['decision']}, {lot['reason']}" for lot in lots)
    return words + (f": lotwise review {run}" if any(lot["reason"] in (NOT_LOOKED, PARTLY) for lot in lots) else "")


def _agreement_in_words(agreement: dict[str, Any]) -> str:
    """Say how often answers are what the label says."""
    if not agreement["of"]:
        return f"no answered row has a label in {agreement['label']}"
    return (
        f"{agreement['agree']:,} of {agreement['of']:,} ({agreement['percent']} %): "
        f"{agreement['field']} against {agreement['label']}"
    )
