"""A prompt gone wrong and a model that changes: what the canary and the golden rows hold back.

What it costs over 50,000 rows by a provider's bill is in `test_canary_bill.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from journey.harness import Desk
from lotwise import executors, watch
from lotwise.canary import Verdict
from lotwise.clock import SystemClock
from lotwise.errors import BadGolden, CanaryFailed, SystemicError, Unreachable
from lotwise.ledger import golden as golden_book
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify
from lotwise.request import Shard, Spec
from lotwise.schema import Schema
from lotwise.testing import ScriptedExecutor

PROMPT = "Is this number odd? {n}"
SCHEMA = {
    "type": "object",
    "properties": {"odd": {"type": "boolean"}},
    "required": ["odd"],
    "additionalProperties": False,
}
PRICES = {"input_mtok": 1, "output_mtok": 5}
GOLDEN = pl.DataFrame({"n": range(-100, 0)}).with_columns(odd=pl.col("n") % 2 == 1)


def right(content: str, spec: Spec) -> str:
    return json.dumps({"odd": int(content.rsplit(" ", 1)[1]) % 2 == 1})


def wrong(content: str, spec: Spec) -> str:
    return json.dumps({"odd": int(content.rsplit(" ", 1)[1]) % 2 == 0})


def broken(content: str, spec: Spec) -> str:
    return '{"even": 1}'


def broken_at_times(content: str, spec: Spec) -> str:
    return broken(content, spec) if int(content.rsplit(" ", 1)[1]) % 10 == 7 else right(content, spec)


ANSWERS = {"right": right, "wrong": wrong, "broken": broken}


def same(known: dict[str, Any], said: dict[str, Any]) -> bool:
    return known == said


class Provider:
    """A scripted provider whose model can be told to change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changes_at: int | None = None
        """The batch from which on others answer."""
        self.then = ("rev-2", wrong)

    def executor(self, model: str, *_: Any) -> ScriptedExecutor:
        if self.changes_at is None:
            return ScriptedExecutor(self.folder, answer=ANSWERS[model])
        at = self.changes_at
        return ScriptedExecutor(self.folder, schedule=lambda number: ("rev-1", right) if number < at else self.then)

    def asked(self) -> int:
        """Return how many answers were charged."""
        return ScriptedExecutor(self.folder).bill().height


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    made = Provider(tmp_path / "provider")
    executors.register("planted", made.executor)
    yield made
    report = verify(Ledger.open(tmp_path / "ledger"))
    assert report.clean, report.findings


def ask(folder: Path, n: int = 300, *, model: str = "right", **changes: Any) -> pl.DataFrame:
    arguments: dict[str, Any] = {
        "golden": lotwise.Golden(GOLDEN, answers=["odd"]),
        "prices": PRICES,
        "options": lotwise.Options(shard_rows=500, window=1),
        "progress": False,
        **changes,
    }
    frame = arguments.pop("frame", pl.DataFrame({"n": range(n)}))
    return lotwise.map(
        frame,
        PROMPT,
        SCHEMA,
        model=f"planted:{model}",
        ledger=folder / "ledger",
        poll_s=0,
        **arguments,
    )


def sql(folder: Path, query: str) -> pl.DataFrame:
    return lotwise.open_ledger(folder / "ledger").sql(query)


# --- a prompt gone wrong, in two processes ------------------------------------------------------------------------


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A job whose model answers by hash: golden rows agree half of the time."""
    frame = pl.DataFrame({"n": range(2_400)})
    return Desk(
        tmp_path,
        frame,
        prompt=PROMPT,
        schema=SCHEMA,
        model="scripted:choice",
        arguments={"golden": lotwise.Golden(GOLDEN, answers=["odd"]), "prices": PRICES, "poll_s": 0, "progress": False},
        options={"executor_options": {"folder": str(tmp_path / "provider")}},
    )


def test_second_process_waits_for_the_first_ones_canary_and_does_not_get_past_it(tmp_path: Path, desk: Desk) -> None:
    slow = {**desk._base.options["executor_options"], "duration_s": 1.0}

    pair = [desk.start(options={"executor_options": slow}) for _ in range(2)]

    assert [child.wait().error for child in pair] == ["CanaryFailed", "CanaryFailed"]
    assert ScriptedExecutor(tmp_path / "provider").bill().height == 120 + 100
    desk.assert_clean()


# --- the gate -----------------------------------------------------------------------------------------------------


def test_passed_gate_is_reused_at_no_cost(provider: Provider, tmp_path: Path) -> None:
    ask(tmp_path, 300, options=lotwise.Options(shard_rows=1_000))
    before = provider.asked()

    ask(tmp_path, frame=pl.DataFrame({"n": range(1_000, 1_200)}))

    assert before == 100 + 300 + 3
    assert provider.asked() == before + 200 + 2
    assert sql(tmp_path, "SELECT state, n, agreed FROM gate").rows() == [("passed", 100, 100)]


def test_golden_rows_are_in_no_count_and_no_frame(provider: Provider, tmp_path: Path) -> None:
    frame = pl.DataFrame({"n": [*range(250), *range(-50, 0)]})  # fifty rows are asked what golden rows are asked

    out = ask(tmp_path, frame=frame)

    assert out["llm_state"].to_list() == ["succeeded"] * 300
    assert out["odd"].to_list() == [n % 2 == 1 for n in frame["n"]]
    status = lotwise.open_ledger(tmp_path / "ledger").status(lotwise.runs(tmp_path / "ledger")["id"][0])
    assert (status.requests, status.n_sent, status.n_golden) == ({"succeeded": 300}, 300, 103)
    purposes = sql(tmp_path, "SELECT purpose, count(*) AS n FROM attempt GROUP BY ALL ORDER BY ALL")
    assert purposes.rows() == [("answer", 300), ("golden", 103)]


def test_failed_gate_opens_to_another_threshold_prompt_or_override_only(provider: Provider, tmp_path: Path) -> None:
    ledger: dict[str, Any] = {"options": lotwise.Options(shard_rows=1_000)}
    mixed = GOLDEN.with_columns(odd=pl.when(pl.col("n") % 5 == 0).then(~pl.col("odd")).otherwise("odd"))
    golden = lotwise.Golden(mixed, answers=["odd"])
    with pytest.raises(CanaryFailed, match="80 of 100 golden rows agree"):
        ask(tmp_path, golden=golden, **ledger)
    asked = provider.asked()

    with pytest.raises(CanaryFailed) as refused:
        ask(tmp_path, golden=golden, retry="invalid", **ledger)
    assert refused.value.partial()["llm_state"].unique().to_list() == ["pending"]
    assert provider.asked() == asked == 100

    out = ask(tmp_path, 40, golden=golden, canary="override", **ledger)
    assert out["llm_state"].unique().to_list() == ["succeeded"]
    with pytest.raises(CanaryFailed):
        ask(tmp_path, golden=golden, **ledger)

    lower = lotwise.Golden(mixed, answers=["odd"], threshold=0.75)
    out = ask(tmp_path, golden=lower, **ledger)
    assert out["llm_state"].unique().to_list() == ["succeeded"]
    answered = sql(tmp_path, "SELECT count(*) AS n FROM golden_ask WHERE round = 0 GROUP BY set_digest")["n"].to_list()
    assert answered == [100]  # the lower threshold is judged by the answers that were bought


def test_golden_rows_that_disagree_are_counted_in_the_error_and_shown_on_request(
    provider: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="lotwise")
    mixed = GOLDEN.with_columns(odd=pl.when(pl.col("n") % 5 == 0).then(~pl.col("odd")).otherwise("odd"))
    with pytest.raises(CanaryFailed) as stopped:
        ask(tmp_path, golden=lotwise.Golden(mixed, answers=["odd"]))
    run, message = stopped.value.run, str(stopped.value)

    shown = run.golden()

    apart = shown.filter(~pl.col("agreed"))
    assert f"20 golden rows disagree: `lotwise golden {run.id}` or .run.golden() shows" in message
    assert (shown.height, apart.height) == (100, 20)
    assert sorted(apart["input"]) == sorted(PROMPT.format(n=n) for n in range(-100, 0, 5))
    one = apart.filter(input=PROMPT.format(n=-100)).row(0, named=True)
    assert (json.loads(one["expected"]), json.loads(one["answered"])) == ({"odd": True}, {"odd": False})
    assert (one["reason"], one["round"]) == (None, 0)
    assert lotwise.open_ledger(tmp_path / "ledger").golden(run.id).equals(shown)
    assert not any(text in message + caplog.text for text in shown["input"])


def test_golden_row_without_a_valid_answer_says_why(provider: Provider, tmp_path: Path) -> None:
    with pytest.raises(CanaryFailed) as stopped:
        ask(tmp_path, model="broken")

    shown = stopped.value.run.golden()

    assert "100 golden rows disagree" in str(stopped.value)
    assert shown.select("answered", "agreed", "reason").unique().rows() == [(None, False, "schema_mismatch")]


def test_golden_rows_that_the_callers_function_compares_are_shown_without_a_verdict_elsewhere(
    provider: Provider, tmp_path: Path
) -> None:
    ask(tmp_path, 50, golden=lotwise.Golden(GOLDEN, answers=["odd"], match=same))
    handle = lotwise.open_ledger(tmp_path / "ledger")
    (run,) = handle.runs()["id"]

    first = pl.col("round") == 0
    assert handle.golden(run).filter(first)["agreed"].null_count() == 100
    assert handle.golden(run, match=same).filter(first)["agreed"].to_list() == [True] * 100


def test_a_run_without_golden_rows_shows_none(provider: Provider, tmp_path: Path) -> None:
    ask(tmp_path, 20, golden=None)
    handle = lotwise.open_ledger(tmp_path / "ledger")
    assert handle.golden(handle.runs()["id"].item()).is_empty()


def test_canary_false_asks_no_golden_row_first(provider: Provider, tmp_path: Path) -> None:
    ask(tmp_path, 100, model="wrong", canary=False)

    assert sql(tmp_path, "SELECT * FROM gate").is_empty()
    assert provider.asked() == 101


def test_frame_rows_alone_are_a_canary_of_a_large_paid_job(provider: Provider, tmp_path: Path) -> None:
    with pytest.raises(CanaryFailed, match="100 of 100 first answers are invalid"):
        ask(tmp_path, 2_000, model="broken", golden=None)

    assert provider.asked() == 100
    with pytest.raises(SystemicError):
        ask(tmp_path, 1_000, model="broken", golden=None)  # too small for a canary of its own


def test_golden_set_that_could_never_pass_is_refused_before_anything_is_sent(
    provider: Provider, tmp_path: Path
) -> None:
    Ledger.open(tmp_path / "ledger")
    with pytest.raises(BadGolden, match=r"10 rows are too few for a threshold of 90%.* give 14 rows or more"):
        ask(tmp_path, golden=lotwise.Golden(GOLDEN.head(10), answers=["odd"]))


def submitted(folder: Path, n: int, **golden: Any) -> lotwise.Run:
    """Begin a run and leave it with its canary in flight."""
    return lotwise.submit(
        pl.DataFrame({"n": range(n)}),
        PROMPT,
        SCHEMA,
        model="planted:right",
        ledger=folder / "ledger",
        golden=lotwise.Golden(GOLDEN, answers=["odd"], **golden),
        progress=False,
        poll_s=0,
    )


def test_run_taken_up_by_its_id_keeps_its_gate_and_its_golden_rows(provider: Provider, tmp_path: Path) -> None:
    run = submitted(tmp_path, 300)
    assert provider.asked() == 100  # golden rows alone: the job is too small for frame rows

    done = lotwise.open_ledger(tmp_path / "ledger").resume(run.id, progress=False, poll_s=0).collect()

    assert done["llm_state"].to_list() == ["succeeded"] * 300
    assert provider.asked() == 100 + 300 + 3
    assert sql(tmp_path, "SELECT state FROM gate")["state"].to_list() == ["passed"]


def test_gate_that_needs_the_callers_function_waits_for_the_caller(provider: Provider, tmp_path: Path) -> None:
    run = submitted(tmp_path, 50, match=same)

    with pytest.raises(CanaryFailed, match="the caller's code"):
        lotwise.open_ledger(tmp_path / "ledger").resume(run.id, progress=False, poll_s=0).wait()
    assert sql(tmp_path, "SELECT * FROM gate").is_empty()

    out = ask(tmp_path, 50, golden=lotwise.Golden(GOLDEN, answers=["odd"], match=same))
    assert out["llm_state"].to_list() == ["succeeded"] * 50
    assert provider.asked() == 100 + 50 + 1


# --- a model that changes -----------------------------------------------------------------------------------------


def test_change_of_model_in_mid_run_is_told_stops_the_run_and_names_its_first_shard(
    provider: Provider, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.changes_at = 3

    with pytest.raises(CanaryFailed, match="golden rows agree less") as stopped:
        ask(tmp_path, 4_000, progress=None)

    shards = sql(tmp_path, "SELECT id FROM shard ORDER BY intended_at")["id"].to_list()
    began = shards[3]
    notices = stopped.value.run.status().notices
    assert f"model revision rev-2 answers from shard {began} on after rev-1" in notices
    assert f"golden rows agree less from shard {began} on, certain at shard {shards[4]}" in notices
    assert len(shards) == 5  # the two that it took to be certain, and none after
    told = capsys.readouterr().err
    assert told.count(f"model revision rev-2 answers from shard {began} on") == 1
    series = stopped.value.run.golden_series()
    assert series.select("shard", "n", "agreed").rows() == [
        (shards[1], 5, 5),
        (shards[2], 5, 5),
        (shards[3], 5, 0),
        (shards[4], 5, 0),
    ]
    with pytest.raises(CanaryFailed):  # the pass is withdrawn, for tonight's job too
        ask(tmp_path, frame=pl.DataFrame({"n": range(9_000, 9_100)}))


def fail(folder: Path, *, withdraw: bool = True) -> None:
    """Decide that the gate has failed, or take its pass back, as another process under the same gate does."""
    ledger = Ledger.open(folder / "ledger")
    canary = watch.restore(ledger, str(sql(folder, "SELECT id FROM run")["id"][0]), Schema.of(SCHEMA))
    assert canary is not None
    drift = Verdict(passed=False, reason="drift", n=9, agreed=0, lower=None, n_frame=0, n_invalid=0, upper=None)
    golden_book.decide(ledger, canary, drift, run="another", now=SystemClock().now(), withdraw=withdraw)


def test_pass_that_another_process_takes_back_holds_the_next_shard(provider: Provider, tmp_path: Path) -> None:
    class Slow(ScriptedExecutor):
        created = 0

        def create(self, shard: Shard, spec: Spec, prepared: Any) -> str:
            self.created += 1
            if self.created == 2:  # the first behind the gate
                fail(tmp_path)
            return super().create(shard, spec, prepared)

    executors.register("planted", lambda *_: Slow(tmp_path / "provider", answer=right))

    with pytest.raises(CanaryFailed, match="drift"):
        ask(tmp_path, 1_000, options=lotwise.Options(shard_rows=250, window=4))

    assert provider.asked() == 100 + 252


def test_gate_that_another_process_decides_holds_the_rest_of_the_canary(provider: Provider, tmp_path: Path) -> None:
    class Slow(ScriptedExecutor):
        created = 0

        def create(self, shard: Shard, spec: Spec, prepared: Any) -> str:
            self.created += 1
            if self.created == 1:
                fail(tmp_path, withdraw=False)
            return super().create(shard, spec, prepared)

    executors.register("planted", lambda *_: Slow(tmp_path / "provider", answer=right))

    with pytest.raises(CanaryFailed, match="drift"):
        ask(tmp_path, 1_000, options=lotwise.Options(shard_rows=25, window=4))

    assert provider.asked() == 25


def test_pass_that_is_taken_back_holds_a_shard_whose_upload_is_to_be_tried_again(
    provider: Provider, tmp_path: Path
) -> None:
    class Away(ScriptedExecutor):
        uploads = 0

        def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Any:
            self.uploads += 1
            if self.uploads == 3:  # the second behind the gate
                fail(tmp_path)
                raise Unreachable("timeout")
            return super().prepare(shard, spec, requests)

    executors.register("planted", lambda *_: Away(tmp_path / "provider", answer=right))

    with pytest.raises(CanaryFailed, match="drift"):
        ask(tmp_path, 500, options=lotwise.Options(shard_rows=250, window=2))

    assert provider.asked() == 100 + 252


def test_risen_rate_of_invalid_answers_is_told_and_names_its_shard(provider: Provider, tmp_path: Path) -> None:
    provider.changes_at, provider.then = 2, ("rev-1", broken_at_times)  # a tenth: too few to stop the run

    out = ask(tmp_path, 600, golden=None, options=lotwise.Options(shard_rows=150, window=1))

    shards = sql(tmp_path, "SELECT id FROM shard ORDER BY intended_at")["id"].to_list()
    alarms = sql(tmp_path, "SELECT kind, shard FROM notice").rows()
    assert ("invalid_rate", shards[2]) in alarms
    assert {kind for kind, _ in alarms} == {"invalid_rate"}
    assert not {shard for _, shard in alarms} & set(shards[:2])
    assert out["llm_state"].value_counts(sort=True).row(0)[0] == "succeeded"


def test_golden_rows_are_reserved_for_within_the_budget_and_give_way_in_it(provider: Provider, tmp_path: Path) -> None:
    out = ask(tmp_path, 400, budget="0.5")

    assert out["llm_state"].unique().to_list() == ["succeeded"]
    shards = sql(
        tmp_path,
        "SELECT s.n_requests, s.reserved_usd, count(*) FILTER (WHERE a.purpose = 'golden') AS n_golden"
        " FROM shard s JOIN attempt a ON a.shard = s.id GROUP BY s.id, s.n_requests, s.reserved_usd, s.intended_at"
        " ORDER BY s.intended_at",
    )
    assert shards["n_golden"][0] == 100
    each = shards["reserved_usd"] / shards["n_requests"]
    assert each.min() > Decimal("0.0025")  # golden rows are in the bound like any other
    assert shards["reserved_usd"].max() <= Decimal("0.5")
    assert shards["n_golden"].to_list()[1:-1] == [0] * (shards.height - 2)  # what the budget cuts carries none
