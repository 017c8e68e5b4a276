"""Cards and text of runs, plans and progress: counts only, escaped, and fit for any theme."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest

import lotwise
import lotwise.testing  # makes the scripted provider known
from lotwise import html
from lotwise.estimate import Plan
from lotwise.job import Snapshot
from lotwise.status import Status

ROWS = {"succeeded": 7, "invalid": 1, "refused": 1, "dead_lettered": 1, "pending": 3, "skipped": 2}
STATUS = Status(
    run_id="a6cf3857bf2667cd",
    name="october",
    model="anthropic:claude-haiku-4-5",
    ledger="/data/.lotwise",
    state="stopped",
    reason="budget",
    n_rows=15,
    n_skipped=2,
    n_requests=13,
    requests={},
    rows=ROWS,
    shards={"collected": 2, "submitted": 1},
    n_sent=4,
    reserved_usd=Decimal("0.5"),
    cost_usd=Decimal("13.4411"),
    created_at=datetime(2026, 1, 1, tzinfo=UTC),
    ended_at=None,
)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
SNAPSHOT = Snapshot(counts={}, rows=ROWS, phases={"in_progress": 1}, elapsed_s=3, note="")


def a_plan(folder: Path) -> Plan:
    df = pl.DataFrame({"body": ["one", "two", "two", None]})
    return lotwise.plan(df, "{body}", model="scripted:echo", ledger=folder / "ledger")


def cards(tmp_path: Path) -> dict[str, str]:
    return {
        "status": html.status(STATUS),
        "plan": html.plan(a_plan(tmp_path)),
        "progress": html.progress(SNAPSHOT, 3, ["a note"]),
    }


class Balance(HTMLParser):
    """Reads a page and refuses an end that closes something else than what is open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("which", ["status", "plan", "progress"])
def test_a_card_is_whole_and_brings_no_style_sheet_or_script(which: str, tmp_path: Path) -> None:
    page = Balance()
    page.feed(cards(tmp_path)[which])
    assert page.open == []
    assert page.seen == {"div", "span"}


@pytest.mark.parametrize("which", ["status", "plan", "progress"])
def test_a_card_sets_no_text_or_ground_colour_of_its_own(which: str, tmp_path: Path) -> None:
    card = cards(tmp_path)[which]
    assert not re.search(r"[;\"]color:", card)
    assert not re.search(r"max-width:46em[^\"]*background", card)


EVIL = "<script>alert('x')</script>&\""


@pytest.mark.parametrize(
    "draw",
    [
        lambda: html.status(replace(STATUS, name=EVIL)),
        lambda: html.status(replace(STATUS, model=EVIL)),
        lambda: html.status(replace(STATUS, ledger=EVIL)),
        lambda: html.status(replace(STATUS, reason=EVIL)),
        lambda: html.status(replace(STATUS, run_id=EVIL)),
        lambda: html.status(replace(STATUS, shards={EVIL: 1})),
        lambda: html.status(replace(STATUS, rows={EVIL: 1})),
        lambda: html.progress(replace(SNAPSHOT, phases={EVIL: 1}), 1, []),
        lambda: html.progress(replace(SNAPSHOT, waiting={EVIL: 1}, next_try_s=1), 1, []),
        lambda: html.status(replace(STATUS, waiting={EVIL: 1}, next_try_at=NOON)),
        lambda: html.progress(SNAPSHOT, 1, [EVIL]),
    ],
    ids=["name", "model", "ledger", "reason", "run", "shard state", "row state", "phase", "waits", "waiting", "note"],
)
def test_words_from_outside_are_escaped(draw: Callable[[], str]) -> None:
    assert "<script" not in draw()
    assert "&lt;script&gt;" in draw()


def test_words_of_a_plan_are_escaped(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    for changed in (
        replace(plan, ledger=Path(EVIL)),
        replace(plan, model=EVIL),
        replace(plan, warnings=(EVIL,)),
        replace(plan, close_spec=(EVIL,)),
    ):
        assert "<script" not in html.plan(changed)
        assert "&lt;script&gt;" in html.plan(changed)


def test_no_row_content_is_shown_of_a_run_or_a_plan(tmp_path: Path) -> None:
    planted = "planted-4711"
    df = pl.DataFrame({"body": [planted, f"{planted} again"]})
    call = {"model": "scripted:echo", "ledger": tmp_path / "ledger", "progress": False}
    plan = lotwise.plan(df, "{body}", **call)  # type: ignore[arg-type]
    run = lotwise.submit(df, "{body}", **call).wait()  # type: ignore[arg-type]

    shown = [plan._repr_html_(), str(plan), repr(plan), run._repr_html_(), repr(run), str(run.status())]
    assert planted in run.collect()["answer"][0]
    assert not any(planted in text for text in shown)


def test_what_waits_to_be_asked_again_is_told_with_its_reason() -> None:
    waiting = {"server_error": 20, "uncertain": 4}
    told = str(replace(STATUS, waiting=waiting, next_try_at=NOON + timedelta(seconds=5)))
    assert "  waiting  24 to be asked again (20 server_error, 4 uncertain), the next at 12:00:05 UTC\n" in told

    card = html.progress(replace(SNAPSHOT, waiting=waiting, next_try_s=12), 5, [])  # drawn two seconds later
    assert "24 wait: 20 server_error, 4 uncertain, next try in 10 s" in card


def test_status_reads_well_in_a_terminal() -> None:
    assert str(STATUS).splitlines() == [
        "run a6cf3857bf2667cd 'october': stopped (budget)",
        "  model   anthropic:claude-haiku-4-5",
        "  rows    15 (13 distinct requests)",
        "  states  7 succeeded, 1 invalid, 1 refused, 1 dead-lettered, 3 pending, 2 skipped",
        "  sent    4 requests for this run",
        "  shards  1 submitted, 2 collected",
        "  cost    $13.44 spent, up to $0.5000 more for what is open",
        "  ledger  /data/.lotwise",
    ]


def test_an_unknown_cost_is_not_shown_as_nothing() -> None:
    assert "cost    unknown" in str(replace(STATUS, cost_usd=None, reserved_usd=None))
    assert "unknown: no price is known" in html.status(replace(STATUS, cost_usd=None, reserved_usd=None))


def test_plan_reads_well_in_a_terminal(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    lines = repr(plan).splitlines()
    assert lines[0] == "plan for scripted:echo, batch"
    assert lines[1].strip() == "rows     4 (2 distinct requests, 1 skipped for a null in body)"
    assert lines[-1].endswith("ledger (would be made)")
