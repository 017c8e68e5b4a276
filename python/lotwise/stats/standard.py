"""The published tables, for people who must quote a standard: letters, single plans and switching rules.

The tables of MIL-STD-105E (1989, public domain; the same numbers stand in ANSI/ASQ Z1.4 and ISO 2859-1) are a
pattern: the acceptance number depends only on the sum of the letter's place and the rate's place. So two short
rows hold both tables, and an arrow is a walk along the letters to the next plan, whose sample size goes with it.
A letter promises no exact risk for one lot. Plans from `acceptance` do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from lotwise.errors import StatisticsRefused
from lotwise.stats.distributions import Rate, exact

Severity: TypeAlias = Literal["normal", "tightened", "reduced", "discontinued"]

LEVELS = ("S-1", "S-2", "S-3", "S-4", "I", "II", "III")
LETTERS = "ABCDEFGHJKLMNPQRS"
SIZES = (2, 3, 5, 8, 13, 20, 32, 50, 80, 125, 200, 315, 500, 800, 1250, 2000, 3150)
# fmt: off
RATES_PERCENT = tuple(
    exact(percent)
    for percent in (
        "0.010", "0.015", "0.025", "0.040", "0.065", "0.10", "0.15", "0.25", "0.40", "0.65", "1.0", "1.5", "2.5",
        "4.0", "6.5", "10", "15", "25", "40", "65", "100", "150", "250", "400", "650", "1000",
    )
)
# fmt: on

_LOT_UP_TO = (8, 15, 25, 50, 90, 150, 280, 500, 1200, 3200, 10_000, 35_000, 150_000, 500_000)
_CODE_LETTERS = {
    "S-1": "AAAABBBBCCCCDDD",
    "S-2": "AAABBBCCCDDDEEE",
    "S-3": "AABBCCDDEEFFGGH",
    "S-4": "AABCCDEEFGGHJJK",
    "I": "AABCCDEFGHJKLMN",
    "II": "ABCDEFGHJKLMNPQ",
    "III": "BCDEFGHJKLMNPQR",
}
_ACCEPT: dict[str, dict[int, int]] = {
    "normal": {14: 0, 17: 1, 18: 2, 19: 3, 20: 5, 21: 7, 22: 10, 23: 14, 24: 21},
    "tightened": {15: 0, 18: 1, 19: 2, 20: 3, 21: 5, 22: 8, 23: 12, 24: 18},
}
"""Acceptance number by place of letter plus place of rate (Tables II-A and II-B)."""
_ACCEPT_FROM_150 = {"normal": {25: 30, 26: 44}, "tightened": {25: 27, 26: 41}}
"""Two more, in the columns of 150 and above only."""


def code_letter(lot_size: int, *, level: str = "II") -> str:
    """Look up the sample size code letter (Table I).

    Raises
    ------
    StatisticsRefused
        `lot_too_small` under two rows; `unknown_level`.
    """
    if level not in LEVELS:
        raise StatisticsRefused.from_name("level", level, LEVELS)
    if lot_size < 2:
        raise StatisticsRefused.because("lot_too_small", "the tables begin at two; look at the row", lot_size=lot_size)
    return _CODE_LETTERS[level][sum(lot_size > bound for bound in _LOT_UP_TO)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AttributePlan:
    """A single plan from the tables: accept at `ac` bad rows or fewer, refuse at `re` or more."""

    letter_start: str
    letter_used: str
    n: int
    ac: int
    re: int
    inspect_all: bool
    severity: Severity


def attribute_plan(
    lot_size: int, *, aql_percent: Rate, level: str = "II", severity: Severity = "normal"
) -> AttributePlan:
    """Look up a single plan, following arrows with the new plan's sample size.

    Parameters
    ----------
    aql_percent
        One of RATES_PERCENT; in percent, as in the tables.
    severity
        `normal` or `tightened`.

    Raises
    ------
    StatisticsRefused
        `unknown_aql`, `unknown_severity`, and those of `code_letter`.
    """
    start = code_letter(lot_size, level=level)
    if severity not in _ACCEPT:
        raise StatisticsRefused.from_name("severity", severity, _ACCEPT)
    rate = exact(aql_percent)
    if rate not in RATES_PERCENT:
        near = sorted(RATES_PERCENT, key=lambda r: abs(r - rate))[:2]
        hint = f"the tables hold {' and '.join(str(float(r)) for r in sorted(near))} percent"
        raise StatisticsRefused.because("unknown_aql", hint, aql_percent=aql_percent)
    column, at = RATES_PERCENT.index(rate), LETTERS.index(start)
    while (ac := _accept(severity, at, column)) is None:
        at += _arrow(severity, at, column)
    n, re = SIZES[at], ac + 1
    return AttributePlan(
        letter_start=start,
        letter_used=LETTERS[at],
        n=min(n, lot_size),
        ac=ac,
        re=re,
        inspect_all=n >= lot_size,
        severity=severity,
    )


def _last_letter(severity: str) -> int:
    """Letter S exists for tightened inspection alone."""
    return len(SIZES) - (1 if severity == "tightened" else 2)


def _accept(severity: str, letter: int, column: int) -> int | None:
    place = letter + column
    if column >= RATES_PERCENT.index(exact(150)) and place in _ACCEPT_FROM_150[severity]:
        return _ACCEPT_FROM_150[severity][place]
    return _ACCEPT[severity].get(place)


def _arrow(severity: str, letter: int, column: int) -> int:
    """+1 to the first plan below, -1 to the first plan above.

    Just past a zero Table II-A points back up to it, if there is a letter, where Table II-B points down with one long
    arrow; past the last number both point up.
    """
    place = letter + column
    if severity == "normal" and place == min(_ACCEPT[severity]) + 1 and letter > 0:
        return -1
    if place > max(_ACCEPT[severity]):
        return -1
    below = range(letter + 1, _last_letter(severity) + 1)
    return 1 if any(_accept(severity, row, column) is not None for row in below) else -1


@dataclass(frozen=True, kw_only=True, slots=True)
class InspectedLot:
    """One lot of a series: was it accepted, would it also pass one rate tighter, at which acceptance number."""

    accepted: bool
    accepted_tighter: bool
    ac: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Switching:
    """Severity under which each lot was looked at, that of the next one, and the score after each."""

    states: tuple[Severity, ...]
    final_state: Severity
    scores_after: tuple[int, ...]


def switching(lots: Iterable[InspectedLot]) -> Switching:
    """Follow a series of lots through normal, tightened and reduced inspection (ISO 2859-1:1999, clause 9).

    Notes
    -----
    Normal: two refusals within five lots since normal began tighten; a score of 30 reduces. Tightened: five
    acceptances in a row return to normal; five refusals in all end inspection. Reduced: one refusal returns.
    """
    state: Severity = "normal"
    score, since, states, scores = 0, list[bool](), list[Severity](), list[int]()
    for lot in lots:
        states.append(state)
        since.append(lot.accepted)
        after = state
        if state == "normal":
            score = _score(score, lot)
            if since[-5:].count(False) >= 2:
                after = "tightened"
            elif score >= 30:
                after = "reduced"
        elif state == "tightened":
            if len(since) >= 5 and all(since[-5:]):
                after = "normal"
            elif since.count(False) >= 5:
                after = "discontinued"
        elif state == "reduced" and not lot.accepted:
            after = "normal"
        if after != state:
            state, since = after, []
            if after in ("tightened", "normal"):
                score = 0
        scores.append(score)
    return Switching(states=tuple(states), final_state=state, scores_after=tuple(scores))


def _score(score: int, lot: InspectedLot) -> int:
    if lot.ac >= 2:
        return score + 3 if lot.accepted and lot.accepted_tighter else 0
    return score + 2 if lot.accepted else 0
