"""Progress: what each of the three faces shows, how often, and that it leaves no trace."""

from __future__ import annotations

import io
import re
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise import progress
from lotwise.job import Snapshot
from lotwise.progress import Lines, Look, Silent, Terminal, terminal_line

STATES = ("succeeded", "invalid", "refused", "dead_lettered", "submitted", "pending", "skipped")
PLAIN = Look(colour=False, lines=True)
LEDGER = Path("/data/my ledger")


class Seconds:
    """A monotonic clock that is wound by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def snapshot(elapsed_s: float = 0, **rows: int) -> Snapshot:
    return Snapshot(counts={}, rows=rows, phases={"in_progress": 2}, elapsed_s=elapsed_s, note="")


def waits(n: int, next_try_s: float, **reasons: int) -> Snapshot:
    return Snapshot(
        counts={}, rows={"pending": n}, phases={}, elapsed_s=0, note="", waiting=reasons, next_try_s=next_try_s
    )


def without_ink(line: str) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", line)


# --- the terminal -------------------------------------------------------------------------------------------------


@given(
    rows=st.dictionaries(st.sampled_from(STATES), st.integers(0, 10_000_000)),
    elapsed_s=st.floats(0, 1e6),
    width=st.integers(0, 200),
    colour=st.booleans(),
)
def test_line_never_wraps(rows: dict[str, int], elapsed_s: float, width: int, colour: bool) -> None:
    line = terminal_line(snapshot(**rows), elapsed_s, width=width, look=Look(colour=colour, lines=True))
    assert len(without_ink(line)) <= width


@given(rows=st.dictionaries(st.sampled_from(STATES), st.integers(0, 10_000_000)))
def test_colour_changes_no_word(rows: dict[str, int]) -> None:
    bare = terminal_line(snapshot(**rows), 5, width=120, look=Look(colour=False, lines=True))
    inked = terminal_line(snapshot(**rows), 5, width=120, look=Look(colour=True, lines=True))
    assert without_ink(inked).replace("━", "┄") == bare.replace("━", "┄")


def test_line_in_80_columns_has_count_states_phase_and_time() -> None:
    line = terminal_line(snapshot(succeeded=40, invalid=2, pending=58), 65, width=79, look=PLAIN)
    assert line == "━━━┄┄┄┄┄  42%  42 of 100 rows · 2 invalid · 2 shards in progress · 1:05"


@pytest.mark.parametrize(("elapsed_s", "soon"), [(0, "in 1:15"), (15.2, "in 1:00"), (60, "in 15 s"), (80, "now")])
def test_line_in_80_columns_says_why_requests_wait_and_counts_down(elapsed_s: float, soon: str) -> None:
    line = terminal_line(waits(24, 75, rate_limited=24), elapsed_s, width=79, look=PLAIN)
    assert f"0 of 24 rows · 24 wait: rate_limited, next try {soon} · " in line


def test_line_names_three_reasons_at_most() -> None:
    many = waits(24, 12, a=3, b=9, c=2, d=10)
    assert "24 wait: 10 d, 9 b, 3 a, ..., next try in 12 s" in terminal_line(many, 0, width=120, look=PLAIN)


def test_line_is_ascii_where_the_stream_is() -> None:
    look = Look.of(io.TextIOWrapper(io.BytesIO(), encoding="ascii"), {})
    assert terminal_line(snapshot(succeeded=1, pending=1), 0, width=100, look=look).isascii()


@pytest.mark.parametrize(("environ", "colour"), [({}, True), ({"NO_COLOR": "1"}, False)], ids=["plain", "NO_COLOR"])
def test_no_color_is_honoured(environ: dict[str, str], colour: bool) -> None:
    assert Look.of(io.StringIO(), environ).colour is colour


def terminal(out: io.StringIO, *, ticking: bool = False) -> Terminal:
    return Terminal(out, look=PLAIN, width=lambda: 120, ticking=ticking, monotonic=Seconds())


def test_terminal_line_is_renewed_in_place_and_kept_at_the_end() -> None:
    out = io.StringIO()
    face = terminal(out)
    face.tell(snapshot(pending=2))
    face.tell(snapshot(succeeded=1, pending=1))
    assert "\n" not in out.getvalue()

    face.tell(snapshot(succeeded=2))
    face.finished()
    assert out.getvalue().count("\n") == 1
    assert "2 of 2 rows · 2 succeeded" in out.getvalue().rpartition("\r")[2]


def test_terminal_writes_nothing_when_nothing_changed() -> None:
    out = io.StringIO()
    face = terminal(out)
    face.tell(snapshot(pending=2))
    before = out.getvalue()
    face.tell(snapshot(pending=2))
    assert out.getvalue() == before


def test_terminal_sets_no_mode_that_a_kill_would_leave_behind() -> None:
    out = io.StringIO()
    face = Terminal(out, look=Look(colour=True, lines=True), width=lambda: 120, ticking=False)
    face.began(LEDGER, new=True, paid=True, warnings=["careful"])
    face.tell(snapshot(succeeded=1, invalid=1, pending=1))
    face.detached("abc", LEDGER, under_way="open batches go on")
    face.finished()
    codes = re.findall(r"\x1b\[[^A-Za-z]*[A-Za-z]", out.getvalue())
    assert {code[-1] for code in codes} == {"m", "K"}
    assert out.getvalue().rfind("\x1b[0m") >= max(out.getvalue().rfind(f"\x1b[{ink}m") for ink in (1, 31, 32, 36, 90))


def test_ticking_ends_with_the_run() -> None:
    face = terminal(io.StringIO(), ticking=True)
    face.tell(snapshot(pending=2))
    (ticker,) = (thread for thread in threading.enumerate() if thread.name == "lotwise-progress")
    face.finished()
    ticker.join(timeout=10)
    assert not ticker.is_alive()


def test_a_detached_terminal_stays_still_until_the_next_wait() -> None:
    out = io.StringIO()
    face = terminal(out)
    face.tell(snapshot(pending=2))
    face.detached("abc", LEDGER, under_way="open batches go on")
    said = out.getvalue()
    face.tell(snapshot(succeeded=1, pending=1))
    assert out.getvalue() == said

    face.finished()
    face.tell(snapshot(succeeded=1, pending=1))
    assert "1 of 2 rows" in out.getvalue()


# --- plain lines --------------------------------------------------------------------------------------------------


def test_plain_lines_come_every_few_seconds_when_something_changed_and_always_last() -> None:
    out, seconds = io.StringIO(), Seconds()
    face = Lines(out, monotonic=seconds)
    for second in range(20):
        seconds.now = second
        face.tell(snapshot(second, succeeded=min(second, 12), pending=20 - min(second, 12)))
    seconds.now = 21
    face.tell(snapshot(21, succeeded=20))
    face.finished()

    counts = [int(line.split()[1]) for line in out.getvalue().splitlines()]
    assert counts == [5, 10, 12, 20]  # at 5, 10 and 15 seconds, and the end at once


def test_a_quick_run_is_one_plain_line() -> None:
    out = io.StringIO()
    face = Lines(out, monotonic=Seconds())
    face.tell(snapshot(pending=2))
    face.tell(Snapshot(counts={}, rows={"succeeded": 1, "skipped": 1}, phases={}, elapsed_s=62, note=""))
    face.finished()
    assert out.getvalue() == "lotwise: 2 of 2 rows: 1 succeeded, 1 skipped, 1:02\n"


def test_a_new_reason_to_wait_is_told_at_once_and_once() -> None:
    out = io.StringIO()
    face = Lines(out, monotonic=Seconds())
    face.tell(snapshot(pending=24))
    face.tell(waits(24, 12, server_error=24))
    face.tell(waits(24, 11, server_error=24))
    face.tell(waits(24, 10, server_error=4, uncertain=20))

    assert out.getvalue().splitlines() == [
        "lotwise: 0 of 24 rows: 24 pending; 24 wait: server_error, next try in 12 s, 0:00",
        "lotwise: 0 of 24 rows: 24 pending; 24 wait: 20 uncertain, 4 server_error, next try in 10 s, 0:00",
    ]


# --- what all faces say -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("new", "paid", "told"),
    [
        (True, True, "new ledger /data/my ledger: answers that another ledger holds would be bought again"),
        (True, False, "new ledger /data/my ledger"),
        (False, True, "ledger /data/my ledger"),
    ],
    ids=["new and paid", "new and free", "known"],
)
def test_a_new_ledger_is_announced_before_money_is_spent(new: bool, paid: bool, told: str) -> None:
    out = io.StringIO()
    Lines(out).began(LEDGER, new=new, paid=paid, warnings=["careful"])
    assert out.getvalue() == f"lotwise: {told}\nlotwise: careful\n"


def test_ctrl_c_says_how_to_go_on_and_how_to_cancel_also_when_silent(capsys: pytest.CaptureFixture[str]) -> None:
    Silent().detached("abc", LEDGER, under_way="open batches go on")
    told = capsys.readouterr().err
    assert "nothing is lost: answers are kept, and open batches go on\n" in told
    assert "lotwise resume abc --ledger '/data/my ledger'" in told
    assert "lotwise cancel abc --ledger '/data/my ledger'" in told


def test_a_snapshot_is_due_twice_a_second_at_most() -> None:
    start = datetime(2026, 1, 1, tzinfo=UTC)
    face = Lines(io.StringIO())
    due = [face.due(start + timedelta(milliseconds=100 * i)) for i in range(11)]
    assert due == [True, *[False] * 4, True, *[False] * 4, True]


def test_progress_false_shows_nothing() -> None:
    assert isinstance(progress.reporter(False), Silent)


def test_elsewhere_than_in_a_terminal_or_kernel_lines_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    assert isinstance(progress.reporter(None), Lines)
