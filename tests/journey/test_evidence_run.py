"""A lot from the call to the word: closed by the run, read by people, shown by the next look.

Everything is real but the provider, which is the scripted one: the ledger lies on disk, and another process is one.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
import lotwise.testing
from lotwise.cli import main as cli_main
from lotwise.cli_review import Reading
from lotwise.errors import LotOpen, NothingToInspect, OutputClash, PlanFixed, UnknownColumn, UnknownLot, UnknownRun
from lotwise.evidence import LOTS, Acceptance
from lotwise.handle import open_ledger
from lotwise.job import Options
from lotwise.ledger.purge import purge
from lotwise.ledger.store import Ledger
from lotwise.ledger.transaction import queries
from lotwise.ledger.verify import CHECKS, verify
from lotwise.request import Spec

PROMPT = "Say again: {text}"
FRAME = pl.DataFrame({"text": [f"row {i}" for i in range(60)]})
EVIDENCE = [
    f"llm_{name}"
    for name in ("lot", "inspected", "defect_rate", "defect_low", "defect_high", "defect_upper", "decision", "reason")
]


class Desk:
    """One ledger, and the calls that are made on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "ledger"

    def call(self, verb: Any, frame: pl.DataFrame = FRAME, **arguments: Any) -> Any:
        settings = {"model": "scripted:echo", "ledger": self.folder, **arguments}
        return verb(frame, PROMPT, **settings)

    def map(self, frame: pl.DataFrame = FRAME, **arguments: Any) -> pl.DataFrame:
        out: pl.DataFrame = self.call(lotwise.map, frame, progress=False, **arguments)
        return out

    def submit(self, frame: pl.DataFrame = FRAME, **arguments: Any) -> lotwise.Run:
        run: lotwise.Run = self.call(lotwise.submit, frame, progress=False, **arguments)
        return run

    def peek(self, frame: pl.DataFrame = FRAME, **arguments: Any) -> pl.DataFrame:
        out: pl.DataFrame = self.call(lotwise.peek, frame, **arguments)
        return out

    def inspect(self, frame: pl.DataFrame, verdict: str = "good", who: str = "ana") -> lotwise.Inspected:
        """Give the same verdict on all rows of a sample that have none yet."""
        filled = frame.with_columns(verdict=pl.col("verdict").fill_null(verdict), inspector=pl.lit(who))
        return lotwise.inspect(filled, self.folder)

    @property
    def ledger(self) -> Ledger:
        return Ledger.open(self.folder, create=False)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def said(frame: pl.DataFrame) -> list[tuple[Any, ...]]:
    """What the rows show of their lots, each once."""
    return frame.select(EVIDENCE).drop_nulls("llm_lot").unique(maintain_order=True).rows()


# --- the whole way ------------------------------------------------------------------------------------------------


def test_lot_is_closed_by_the_run_read_by_people_and_told_by_the_next_look(desk: Desk) -> None:
    out = desk.map()
    assert said(out) == [(out["llm_lot"][0], 0, None, None, None, None, "continue", "no_inspection")]

    sample = out.llm.sample(desk.folder)  # type: ignore[attr-defined]
    assert sample.columns[:5] == ["llm_lot", "llm_id", "answer_digest", "input", "answer"]
    assert (sample["input"] == sample["answer"]).all()
    assert sample["verdict"].null_count() == sample.height

    desk.inspect(sample.head(10))
    ((_, n, rate, low, high, upper, decision, reason),) = said(desk.peek())
    assert (n, rate, low, upper, decision, reason) == (10, 0.0, 0.0, None, "continue", "partly_inspected")
    assert 0 < high < 1

    desk.inspect(sample)
    for shown in (desk.peek(), desk.map()):
        ((_, n, rate, low, _, upper, decision, reason),) = said(shown)
        assert (n, rate, low) == (sample.height, 0.0, 0.0)
        assert (decision, reason) == ("release", "upper_bound_below_limit")
        assert upper < 0.05
    assert desk.submit().lots().schema == LOTS
    assert verify(desk.ledger).findings == ()


def test_lots_are_told_without_taking_the_run_up(desk: Desk) -> None:
    run = desk.submit().wait()
    handle = open_ledger(desk.folder)
    lotwise.inspect(lotwise.sample(desk.folder, run).with_columns(verdict=pl.lit("good")), desk.folder)

    assert handle.lots(run.id).equals(run.lots())
    assert handle.lots(run.id)["decision"].to_list() == ["release"]
    with pytest.raises(UnknownRun, match="nobody"):
        handle.lots("nobody")


@pytest.mark.parametrize("named", [{}, {"prefix": "x_"}, {"into": "said"}])
def test_answers_alone_are_the_input_the_answer_and_the_state(desk: Desk, named: dict[str, str]) -> None:
    out = desk.map(**named)
    prefix = named.get("prefix")

    alone = out.sort("text").llm.answers(prefix=prefix)  # type: ignore[attr-defined]

    assert alone.columns == ["text", named.get("into", f"{prefix or ''}answer"), f"{prefix or ''}llm_state"]
    assert alone.equals(out.sort("text").select(alone.columns))
    assert lotwise.answers(alone, prefix=prefix).equals(alone)
    with pytest.raises(UnknownColumn, match="llm_state"):
        lotwise.answers(FRAME)


def test_sample_is_the_lots_whatever_rows_a_frame_has(desk: Desk) -> None:
    out = desk.map()

    some = out.filter(pl.col("text") == "row 7").llm.sample(desk.folder)  # type: ignore[attr-defined]

    assert some.equals(out.llm.sample(desk.folder))  # type: ignore[attr-defined]
    assert some.height == lotwise.stats.inspection_plan(60).n  # type: ignore[attr-defined]


def test_sample_is_the_same_after_sorting_resuming_and_calling_again(desk: Desk) -> None:
    run = desk.submit()
    run.wait()
    first = lotwise.sample(desk.folder, run)

    again = desk.submit(FRAME.sample(fraction=1.0, shuffle=True, seed=1))
    again.wait()
    resumed = open_ledger(desk.folder).resume(run.id, progress=False).wait()

    assert lotwise.sample(desk.folder, again.id).equals(first)
    assert lotwise.sample(desk.folder, resumed).equals(first)


def test_sample_is_taken_in_one_process_and_read_next_week_in_another(desk: Desk, tmp_path: Path) -> None:
    run = desk.submit()
    run.wait()
    file = tmp_path / "sample.csv"
    with pytest.raises(SystemExit, match="0"):
        cli_main(["sample", run.id[:8], str(file), "--ledger", str(desk.folder)])
    sample = pl.read_csv(file, infer_schema=False)
    next_week = sample.with_columns(
        verdict=pl.lit(" Good "), inspector=pl.lit("ana"), inspected_at=pl.lit("2026-01-08 09:00"), note=pl.lit("")
    )
    next_week.write_csv(file)

    code = "import sys; from lotwise.cli import main; main(sys.argv[1:])"
    words = [sys.executable, "-c", code, "inspect", str(file), "--ledger", str(desk.folder)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)

    assert f"{sample.height} verdicts recorded" in done.stdout
    assert "release" in done.stdout
    assert said(desk.peek())[0][-2:] == ("release", "upper_bound_below_limit")
    assert lotwise.inspect(file, desk.folder).n_repeated == sample.height


def test_parquet_goes_both_ways(desk: Desk, tmp_path: Path) -> None:
    run = desk.submit(FRAME.head(4))
    run.wait()
    file = tmp_path / "sample.parquet"
    sample = lotwise.sample(desk.folder, run)
    sample.with_columns(verdict=pl.lit("bad"), inspected_at=pl.lit(datetime(2026, 1, 8, 9))).write_parquet(file)

    done = lotwise.inspect(file, desk.folder)

    assert done.n_recorded == 4
    times = desk.ledger.sql("SELECT DISTINCT inspected_at FROM inspection")["inspected_at"]
    assert times.dt.convert_time_zone("UTC").to_list() == [datetime(2026, 1, 8, 9, tzinfo=UTC)]


# --- what a lot holds ---------------------------------------------------------------------------------------------


def test_rows_that_share_an_answer_are_one_look(desk: Desk) -> None:
    frame = pl.DataFrame({"text": ["same"] * 50 + [f"row {i}" for i in range(9)] + [None]})

    run = desk.submit(frame)
    out = run.collect()

    (lot,) = run.lots().iter_rows(named=True)
    assert (lot["n_rows"], lot["n_unique"], lot["population"]) == (59, 10, 10)
    sample = lotwise.sample(desk.folder, run)
    assert sample.filter(pl.col("input") == "Say again: same")["multiplicity"].to_list() == [50]
    desk.inspect(sample.with_columns(verdict=pl.when(pl.col("multiplicity") == 50).then(pl.lit("bad"))))
    (lot,) = run.lots().iter_rows(named=True)
    assert (lot["rate"], lot["row_rate"]) == (0.1, 50 / 59)
    assert out["llm_lot"][-1] is None
    assert out["llm_reason"][-1] is None


def only_even(value: dict[str, Any]) -> bool:
    return int(value["answer"].rsplit(" ", 1)[1]) % 2 == 0


def test_invalid_answers_are_counted_apart_and_never_drawn(desk: Desk) -> None:
    run = desk.submit(check=only_even, options=Options(systemic_rate=None))
    run.collect()

    (lot,) = run.lots().iter_rows(named=True)
    assert (lot["n_unique"], lot["n_invalid"], lot["population"]) == (60, 30, 30)
    assert all(int(text.rsplit(" ", 1)[1]) % 2 == 0 for text in lotwise.sample(desk.folder, run)["answer"])


def test_changed_validator_is_another_lot_with_evidence_of_its_own(desk: Desk) -> None:
    plain = desk.map()
    desk.inspect(plain.llm.sample(desk.folder))  # type: ignore[attr-defined]

    checked = desk.map(check=only_even, options=Options(systemic_rate=None))

    assert checked["llm_lot"][0] != plain["llm_lot"][0]
    assert checked["llm_inspected"][0] == 0
    assert desk.peek()["llm_decision"][0] == "release"


class Moody:
    """Answers the odd rows badly until its mood is mended."""

    def __init__(self) -> None:
        self.is_bad = True

    def __call__(self, content: str, spec: Spec) -> str:
        return "" if self.is_bad and int(content.rsplit(" ", 1)[1]) % 2 else content


def test_repaired_lot_is_drawn_anew_with_another_seed(desk: Desk) -> None:
    moody = Moody()
    options = Options(executor_options={"answer": moody}, systemic_rate=None, retry_spend=None)
    run = desk.submit(options=options)
    run.collect()
    first = lotwise.sample(desk.folder, run)
    (before,) = run.lots().iter_rows(named=True)
    desk.inspect(first)
    assert run.lots()["decision"].to_list() == ["release"]

    moody.is_bad = False
    repaired = desk.submit(options=options, retry="invalid")
    out = repaired.collect()

    (after,) = repaired.lots().iter_rows(named=True)
    assert (before["population"], after["population"], after["n_invalid"]) == (30, 60, 0)
    assert after["lot_id"] == before["lot_id"]
    assert after["seed"] != before["seed"]
    assert (after["n_looked"], out["llm_reason"][0]) == (0, "no_inspection")
    assert verify(desk.ledger).findings == ()


def test_lot_of_rows_that_were_answered_before_has_evidence_of_its_own(desk: Desk) -> None:
    small = FRAME.head(30)
    desk.inspect(desk.map(small).llm.sample(desk.folder))  # type: ignore[attr-defined]

    out = desk.map()

    assert said(out) == [(out["llm_lot"][0], 0, None, None, None, None, "continue", "no_inspection")]
    assert desk.peek(small)["llm_decision"][0] == "release"


def test_lot_of_one_row_is_read_whole(desk: Desk) -> None:
    one = FRAME.head(1)
    sample = desk.map(one).llm.sample(desk.folder)  # type: ignore[attr-defined]

    desk.inspect(sample, "bad")

    assert sample.height == 1
    assert said(desk.peek(one))[0][1:] == (1, 1.0, 1.0, 1.0, 1.0, "re_review", "rate_above_acceptable")


def test_open_lot_is_told_and_cannot_be_sampled(desk: Desk, tmp_path: Path) -> None:
    slow = Options(executor_options={"folder": tmp_path / "provider", "duration_s": 3_600})
    run = desk.submit(options=slow)

    out = desk.peek(options=slow)

    assert said(out)[0][-2:] == ("continue", "lot_open")
    assert run.lots()["plan_n"].to_list() == [None]
    with pytest.raises(LotOpen) as refused:
        lotwise.sample(desk.folder, run)
    assert refused.value.lots == (out["llm_lot"][0],)


def test_look_closes_a_lot_that_nobody_closed(desk: Desk) -> None:
    run = desk.submit()
    run.wait()
    with desk.ledger.transaction("a hand") as tx:
        tx._connection.execute("DELETE FROM sample; DELETE FROM draw")

    desk.peek()

    assert lotwise.sample(desk.folder, run).height > 0


def test_call_that_was_never_made_shows_no_evidence_and_makes_no_lot(desk: Desk) -> None:
    desk.map()

    out = desk.peek(FRAME.head(5))

    assert said(out)[0][1:] == (0, None, None, None, None, "continue", "no_inspection")
    assert desk.ledger.sql("SELECT count(*) AS n FROM lot")["n"].to_list() == [1]
    with pytest.raises(UnknownLot):
        out.llm.sample(desk.folder)  # type: ignore[attr-defined]


def test_lot_without_a_valid_answer_has_nothing_to_read(desk: Desk) -> None:
    run = desk.submit(check=lambda value: False, options=Options(systemic_rate=None))
    out = run.collect()

    assert said(out)[0][-2:] == ("continue", "empty_lot")
    with pytest.raises(NothingToInspect):
        lotwise.sample(desk.folder, run)


# --- groups and shards --------------------------------------------------------------------------------------------

GROUPED = FRAME.with_columns(language=pl.Series(["de", "en", None] * 20))
BY = Acceptance(by="language")


def test_groups_of_a_column_are_lots(desk: Desk) -> None:
    run = desk.submit(GROUPED, accept=BY)
    out = run.collect()

    assert run.lots()["label"].to_list() == [None, "de", "en"]
    assert run.lots()["population"].to_list() == [20, 20, 20]
    assert out.group_by("language").agg(pl.col("llm_lot").n_unique())["llm_lot"].to_list() == [1, 1, 1]
    sample = lotwise.sample(desk.folder, run)
    german = out.filter(pl.col("language") == "de")["llm_lot"][0]
    desk.inspect(sample.filter(pl.col("llm_lot") == german))
    shown = desk.peek(GROUPED, accept=BY)
    decided = shown.group_by("language").agg(pl.col("llm_decision").first()).sort("language", nulls_last=True)
    assert decided["llm_decision"].to_list() == ["release", "continue", "continue"]
    assert verify(desk.ledger).findings == ()


def test_answer_that_two_groups_share_is_in_both_lots(desk: Desk) -> None:
    frame = pl.DataFrame({"text": ["a", "a", "a", "b"], "language": ["de", "de", "en", "en"]})

    run = desk.submit(frame, accept=BY)
    run.collect()

    lots = run.lots().select("label", "n_rows", "n_unique", "population").rows()
    assert lots == [("de", 2, 1, 1), ("en", 2, 2, 2)]
    assert lotwise.sample(desk.folder, run).sort("llm_lot", "input")["multiplicity"].sum() == 4


def test_changed_groups_are_other_lots_and_the_same_groups_are_found_again(desk: Desk) -> None:
    first = desk.map(GROUPED, accept=BY)
    moved = GROUPED.with_columns(language=pl.Series(["en", "de", None] * 20))

    again = desk.map(GROUPED.reverse(), accept=BY)
    other = desk.map(moved, accept=BY)

    assert set(again["llm_lot"]) == set(first["llm_lot"])
    assert not set(other["llm_lot"]) & set(first["llm_lot"])
    assert desk.ledger.sql("SELECT count(*) AS n FROM lot_member")["n"].to_list() == [120]


@pytest.mark.parametrize(
    ("column", "error"), [("langauge", UnknownColumn), ("tags", lotwise.errors.BadArgument)], ids=["typo", "lists"]
)
def test_column_that_has_no_groups_is_refused_before_anything_is_sent(
    desk: Desk, column: str, error: type[Exception]
) -> None:
    frame = GROUPED.with_columns(tags=pl.lit([1]))

    with pytest.raises(error, match=column):
        desk.map(frame, accept=Acceptance(by=column))

    assert not desk.folder.exists()


def test_shards_are_lots_and_a_retried_row_stays_in_its_first(desk: Desk) -> None:
    shards, moody = Acceptance(lots="shard"), Moody()
    options = Options(executor_options={"answer": moody}, systemic_rate=None, retry_spend=None, shard_rows=25)
    run = desk.submit(accept=shards, options=options)
    first = run.collect()

    moody.is_bad = False
    out = desk.map(accept=shards, options=options, retry="invalid")

    assert out["llm_lot"].to_list() == first["llm_lot"].to_list()
    assert out["llm_lot"].n_unique() == 3
    assert run.lots()["n_unique"].to_list() == [20, 20, 20]
    assert run.lots()["population"].sum() == 60
    assert desk.peek(accept=shards)["llm_lot"].to_list() == first["llm_lot"].to_list()
    assert verify(desk.ledger).findings == ()


# --- the rule -----------------------------------------------------------------------------------------------------


def test_rule_may_change_until_somebody_has_looked(desk: Desk) -> None:
    desk.map()
    strict = Acceptance(limit=0.03)
    run = desk.submit(accept=strict)
    out = run.collect()
    assert run.lots()["limit"].to_list() == [0.03]

    desk.inspect(out.llm.sample(desk.folder).head(1))  # type: ignore[attr-defined]

    for verb in (desk.map, desk.peek):
        with pytest.raises(PlanFixed) as refused:
            verb(accept=Acceptance(limit=0.2))
        assert (refused.value.kept["limit"], refused.value.asked["limit"]) == (0.03, 0.2)
    assert desk.submit().lots()["limit"].to_list() == [0.03]
    assert desk.peek(accept=strict)["llm_inspected"][0] == 1


def test_plan_tells_what_is_to_read_and_writes_nothing(desk: Desk) -> None:
    plan = desk.call(lotwise.plan, GROUPED, accept=Acceptance(by="language", read_minutes=3))

    n = lotwise.stats.inspection_plan(20).n  # type: ignore[attr-defined]
    assert (plan.reading.n_lots, plan.reading.n_rows) == (3, 3 * n)
    assert plan.reading.hours == 3 * n * 3 / 60
    assert f"{3 * n} answers of 3 lots" in str(plan)
    assert not desk.folder.exists()


def test_lots_column_that_is_taken_is_a_clash(desk: Desk) -> None:
    with pytest.raises(OutputClash, match="llm_lot"):
        desk.map(FRAME.with_columns(llm_lot=pl.lit("x")))


# --- verdicts -----------------------------------------------------------------------------------------------------


def test_what_cannot_be_recorded_is_told_row_by_row_and_harms_no_other(desk: Desk) -> None:
    out = desk.map()
    sample = out.llm.sample(desk.folder).head(9)  # type: ignore[attr-defined]
    outside = out.filter(~pl.col("llm_id").is_in(out.llm.sample(desk.folder)["llm_id"].implode()))  # type: ignore[attr-defined]
    filled = sample.select("llm_lot", "llm_id", "answer_digest").with_columns(
        verdict=pl.Series(["good", "bad", "maybe", None, "", "good", "good", "good", "good"]),
        inspected_at=pl.Series([None, "2026-01-08", None, None, None, None, None, None, "soon"], dtype=pl.String),
    )
    filled = filled.with_columns(
        llm_lot=pl.when(pl.int_range(pl.len()) == 5).then(pl.lit("nowhere")).otherwise("llm_lot"),
        llm_id=pl.when(pl.int_range(pl.len()) == 6).then(pl.lit("f" * 40)).otherwise("llm_id"),
        answer_digest=pl.when(pl.int_range(pl.len()) == 7).then(pl.lit("f" * 16)).otherwise("answer_digest"),
    )
    digest = lotwise.evidence.digests(pl.Series(['{"answer":"' + outside["answer"][0] + '"}']))[0]  # type: ignore[attr-defined]
    extra = outside.head(1).select("llm_lot", "llm_id", answer_digest=pl.lit(digest), verdict=pl.lit("bad"))

    done = lotwise.inspect(pl.concat([filled, extra], how="diagonal"), desk.folder, inspector="ana")

    assert (done.n_recorded, done.n_blank, done.n_repeated, done.n_outside) == (3, 2, 0, 1)
    assert done.n_rejected == {
        "unknown_verdict": 1,
        "unknown_lot": 1,
        "unknown_id": 1,
        "answer_changed": 1,
        "unreadable_time": 1,
    }
    assert "the answer is another one now" in str(done)
    assert said(desk.peek())[0][1:3] == (2, 0.5)


def test_two_who_disagree_leave_an_answer_unsure_until_a_third_has_looked(desk: Desk) -> None:
    run = desk.submit()
    run.wait()
    sample = lotwise.sample(desk.folder, run)
    desk.inspect(sample, "good", "ana")
    desk.inspect(sample.head(1), "bad", "bob")
    lots = [run.lots()]

    desk.inspect(sample.head(1), "bad", "eva")
    lots.append(run.lots())

    assert [(lot["n_unsure"][0], lot["x_bad"][0]) for lot in lots] == [(1, 0), (0, 1)]
    assert desk.ledger.sql("SELECT count(*) AS n FROM inspection")["n"].to_list() == [sample.height + 2]


def test_same_verdict_twice_counts_once_and_a_changed_mind_counts(desk: Desk) -> None:
    run = desk.submit()
    run.wait()
    sample = lotwise.sample(desk.folder, run)

    done = [desk.inspect(sample, word) for word in ("good", "good", "bad", "bad")]

    assert [one.n_recorded for one in done] == [sample.height, 0, sample.height, 0]
    assert done[-1].lots["x_bad"].to_list() == [sample.height]


def test_answer_that_changed_after_it_was_read_voids_the_verdict(desk: Desk) -> None:
    run = desk.submit()
    run.wait()
    sample = lotwise.sample(desk.folder, run)
    desk.inspect(sample)
    changed = sample["llm_id"][0]
    with desk.ledger.transaction("a hand") as tx:
        tx._connection.execute('UPDATE validation SET value = \'{"answer":"other"}\' WHERE key = $1', [changed])

    for shown in (desk.peek(), desk.map()):
        assert said(shown)[0][-2:] == ("continue", "answers_changed")
    assert run.lots()["n_void"].to_list() == [1]

    desk.inspect(lotwise.sample(desk.folder, run).filter(pl.col("llm_id") == changed), "bad", "bob")
    assert run.lots().select("n_void", "x_bad").row(0) == (0, 1)


def test_verdicts_stand_after_text_and_answers_were_purged(desk: Desk) -> None:
    run = desk.submit()
    run.wait()
    sample = lotwise.sample(desk.folder, run)
    desk.inspect(sample.with_columns(note=pl.lit("a private remark")).head(5))

    purge(desk.ledger, values=True, now=datetime.now(UTC))

    assert run.lots()["n_looked"].to_list() == [5]
    assert desk.ledger.sql("SELECT count(note) AS n FROM inspection")["n"].to_list() == [0]
    assert desk.inspect(sample.tail(sample.height - 5)).lots["decision"].to_list() == ["release"]
    assert verify(desk.ledger).findings == ()


# --- what verification finds ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def inspected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger with a read lot."""
    desk = Desk(tmp_path_factory.mktemp("inspected"))
    desk.inspect(desk.map(GROUPED, accept=BY).llm.sample(desk.folder))  # type: ignore[attr-defined]
    return desk.folder


@pytest.mark.parametrize(
    ("check", "sql"),
    [
        pytest.param("lots", "UPDATE lot SET job = 'other'", id="a lot of another job"),
        pytest.param("lots", "UPDATE lot_member SET multiplicity = 0", id="a member that no row has"),
        pytest.param("draws", "UPDATE draw SET lot = 'none'", id="a draw of no lot"),
        pytest.param("draws", "UPDATE draw SET n_invalid = 7", id="counts that do not add up"),
        pytest.param("draws", "UPDATE draw SET n = 2", id="a draw that is missing"),
        pytest.param("samples", "DELETE FROM sample WHERE rank = 1", id="a sampled answer that is gone"),
        pytest.param("samples", "UPDATE sample SET key = 'k'", id="an answer drawn twice"),
        pytest.param("inspections", "UPDATE inspection SET verdict = 'fine'", id="a word that is no verdict"),
        pytest.param("inspections", "UPDATE inspection SET draw = 2", id="a verdict of no draw"),
        pytest.param(
            "inspections", "UPDATE draw SET drawn_at = now() + INTERVAL 1 DAY", id="a plan made after the first look"
        ),
    ],
)
def test_verification_finds(inspected: Path, check: str, sql: str) -> None:
    ledger = Ledger.open(inspected, create=False)
    statement = queries()[f"check_{check}"]
    found = []
    with contextlib.suppress(Undone), ledger.transaction("a hand") as tx:
        assert tx._connection.execute(statement).fetchall() == []
        tx._connection.execute(sql)
        found = tx._connection.execute(statement).fetchall()
        raise Undone
    assert found
    assert check in CHECKS


class Undone(Exception):
    """Rolls a transaction back."""


# --- at the keyboard ----------------------------------------------------------------------------------------------


def keys(pressed: str) -> Any:
    left = iter(pressed)
    return lambda: next(left)


def test_review_takes_one_key_a_verdict_and_goes_on_where_it_stopped(desk: Desk) -> None:
    run = desk.submit(FRAME.head(5))
    run.wait()
    handle, sample = open_ledger(desk.folder), lotwise.sample(desk.folder, run)
    shown: list[str] = []

    Reading(handle, sample, "ana").read(key=keys("gxbq"), show=shown.append)
    Reading(handle, sample, "ana").read(key=keys("subq"), show=shown.append)

    assert "1 of 5" in shown[0]
    assert sample["input"][0] in shown[0]
    assert "3 of 5" in shown[4]
    verdicts = desk.ledger.sql("SELECT verdict FROM inspection ORDER BY seq")["verdict"].to_list()
    assert verdicts == ["good", "bad", "unsure", "bad"]
    assert run.lots().select("n_looked", "x_bad", "n_unsure").row(0) == (4, 2, 1)


def test_review_takes_back_what_was_said_before(desk: Desk) -> None:
    run = desk.submit(FRAME.head(3))
    run.wait()
    shown: list[str] = []

    Reading(open_ledger(desk.folder), lotwise.sample(desk.folder, run), "ana").read(
        key=keys("zbzggg"), show=shown.append
    )

    assert "nothing to undo" in shown[1]
    assert any("which you called bad" in line for line in shown)
    assert run.lots().select("n_looked", "x_bad").row(0) == (3, 0)


@pytest.mark.parametrize("columns", [1, 12, 30])
def test_review_is_readable_in_a_narrow_terminal(desk: Desk, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    run = desk.submit(FRAME.head(1))
    run.wait()
    drawn = lotwise.sample(desk.folder, run).rename({"answer": "what_the_model_answered"})
    monkeypatch.setenv("COLUMNS", str(columns))

    page = Reading(open_ledger(desk.folder), drawn, "ana").page(0)

    assert "what_the_model_answered" in page


def test_review_shows_control_characters_and_does_not_obey_them(desk: Desk) -> None:
    frame = pl.DataFrame({"text": ["\x1b[2Jgone\x07"]})
    run = desk.submit(frame)
    run.wait()

    page = Reading(open_ledger(desk.folder), lotwise.sample(desk.folder, run), "ana").page(0)

    assert "\x1b[2J" not in page
    assert "\x07" not in page
    assert "gone" in page
