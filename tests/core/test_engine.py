"""Whole runs against the scripted provider: what is sent, what is charged, what each row shows."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lotwise import collect, engine, reconcile
from lotwise.errors import BatchNotFound, ClaimLost, CreateRejected, CreateUncertain, LedgerInconsistent, Unreachable
from lotwise.job import Job, Options
from lotwise.ledger import results as result_book
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.verify import verify
from lotwise.lifecycle import Policy, ShardState
from lotwise.request import Limits, Observation, Shard, Spec
from lotwise.testing import ScriptedExecutor
from runs import PRICES, Bench, text_validator

TEXTS = [f"row {i}" for i in range(12)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(folder=tmp_path, in_memory=True)
    yield made
    assert verify(made.ledger).findings == ()


def _counts(bench: Bench, job: Job) -> dict[str, int]:
    return {state: n for state, (n, _) in run_book.counts(bench.ledger, job.run_id, job.validator_digest).items()}


def _answer(text: str) -> str:
    return json.dumps({"answer": text}, ensure_ascii=False, separators=(",", ":"))


# --- the straight line --------------------------------------------------------------------------------------------


def test_every_row_gets_the_answer_to_its_own_content(bench: Bench) -> None:
    job = bench.run(TEXTS, options=Options(shard_rows=5))

    assert bench.values(job, TEXTS) == [_answer(text) for text in TEXTS]
    assert run_book.row(bench.ledger, job.run_id)["state"] == "done"  # type: ignore[index]


def test_late_look_of_a_process_that_lost_the_shard_decides_nothing(bench: Bench) -> None:
    class Unsettled(ScriptedExecutor):
        """A batch that one process does not find, and another has seen the end of before the first can say so."""

        looks = 0

        def poll(self, batch_id: str) -> Observation:
            self.looks += 1
            if self.looks > 1:
                return super().poll(batch_id)
            (row,) = shard_book.all_open(bench.ledger)
            now = bench.clock.now()
            assert shard_book.take(bench.ledger, row, owner="other", now=now, lease_until=now, gone=row["owner"])
            origin, target = ShardState.SUBMITTED, ShardState.ENDED
            shard_book.move(bench.ledger, row["id"], origin, target, owner="other", now=now, lease_until=now)
            raise BatchNotFound(batch_id)

    bench.executor = Unsettled(bench.folder / "provider", clock=bench.clock)

    job = bench.run(TEXTS)

    assert _counts(bench, job) == {"succeeded": 12}
    assert bench.executor.bill().height == 12


def test_equal_rows_are_sent_once_and_skipped_rows_never(bench: Bench) -> None:
    texts = ["a", "b", None, "a", "a", None]

    job = bench.run(texts)

    assert sorted(bench.executor.bill()["content"]) == ["a", "b"]
    assert run_book.counts(bench.ledger, job.run_id, job.validator_digest) == {"succeeded": (2, 4)}
    assert job.n_skipped == 2


def test_second_run_over_the_same_rows_sends_nothing(bench: Bench) -> None:
    bench.run(TEXTS)
    again = bench.run(TEXTS[::-1])

    assert bench.executor.bill().height == len(TEXTS)
    assert bench.values(again, TEXTS) == [_answer(text) for text in TEXTS]


def test_run_over_more_rows_sends_only_the_new_ones(bench: Bench) -> None:
    bench.run(TEXTS[:8])
    bench.run(TEXTS)

    assert sorted(bench.executor.bill()["content"]) == sorted(TEXTS)


def test_run_over_nothing_is_done(bench: Bench) -> None:
    job = bench.run([None, None])

    assert bench.executor.bill().is_empty()
    assert run_book.row(bench.ledger, job.run_id)["state"] == "done"  # type: ignore[index]


def test_without_waiting_one_pass_is_made_and_a_later_call_goes_on(bench: Bench) -> None:
    bench.executor = bench.provider(duration_s=3600)
    job = bench.begin(TEXTS)

    first = engine.drive(job, wait=False)
    assert (first.n_open, first.n_waiting) == (12, 1)
    assert 0 <= first.pause_s <= 600

    engine.drive(job)
    assert _counts(bench, job) == {"succeeded": 12}
    assert bench.executor.bill().height == 12


def test_no_more_shards_are_in_flight_than_the_window(bench: Bench) -> None:
    bench.executor = bench.provider(duration_s=60)
    job = bench.begin(TEXTS, options=Options(shard_rows=2, window=2))
    most = 0

    while engine.drive(job, wait=False).n_open:
        most = max(most, len(shard_book.open_of(bench.ledger, job.run_id, job.job_id)))
        bench.clock.sleep(30)

    assert most == 2
    assert _counts(bench, job) == {"succeeded": 12}


@settings(max_examples=8)
@given(st.permutations(list(range(12))))
def test_order_of_results_does_not_matter(order: list[int]) -> None:
    import tempfile

    class Shuffled(ScriptedExecutor):
        def fetch(self, batch_id: str) -> Iterator[list[bytes]]:
            lines = [line for part in super().fetch(batch_id) for line in part]
            yield [lines[i] for i in order[:6]]
            yield [lines[i] for i in order[6:]]

    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(folder=Path(folder), in_memory=True)
        bench.executor = Shuffled(Path(folder) / "provider", clock=bench.clock)
        job = bench.run(TEXTS)

        assert bench.values(job, TEXTS) == [_answer(text) for text in TEXTS]


# --- what comes back strange --------------------------------------------------------------------------------------


class Strange(ScriptedExecutor):
    """A provider whose lines pass through `change` before they are handed out."""

    change: Callable[[list[bytes]], list[bytes]]

    def fetch(self, batch_id: str) -> Iterator[list[bytes]]:
        yield self.change([line for part in super().fetch(batch_id) for line in part])


def _strange(bench: Bench, change: Callable[[list[bytes]], list[bytes]], **settings: Any) -> None:
    bench.executor = Strange(bench.folder / "provider", clock=bench.clock, **settings)
    bench.executor.change = change


def _sorted(lines: list[bytes]) -> list[bytes]:
    return sorted(lines, key=lambda line: json.loads(line)["response"]["body"]["choices"][0]["message"]["content"])


def test_lines_that_were_not_asked_for_are_kept_apart_and_harm_no_row(bench: Bench) -> None:
    unknown = json.dumps({"custom_id": "0" * 16 + "-" + "1" * 40, "response": None, "error": None}).encode()
    _strange(bench, lambda lines: [b"{broken", lines[0], unknown, *lines, b"\xff\xfe"])

    job = bench.run(TEXTS)

    assert bench.values(job, TEXTS) == [_answer(text) for text in TEXTS]
    (shard,) = shard_book.of_job(bench.ledger, job.job_id)
    assert (shard["n_results"], shard["n_duplicates"], shard["n_unknown"], shard["n_unreadable"]) == (12, 1, 1, 2)


def test_second_delivery_of_another_answer_changes_nothing(bench: Bench) -> None:
    def twice(lines: list[bytes]) -> list[bytes]:
        return [*lines, *(line.replace(b"row", b"ROW") for line in lines)]

    _strange(bench, twice)

    job = bench.run(TEXTS)

    assert bench.values(job, TEXTS) == [_answer(text) for text in TEXTS]


def test_answers_without_ids_are_given_to_no_row_and_kept_apart(bench: Bench) -> None:
    def nameless(lines: list[bytes]) -> list[bytes]:
        return [json.dumps({k: v for k, v in json.loads(line).items() if k != "custom_id"}).encode() for line in lines]

    _strange(bench, nameless)

    job = bench.run(["a"])  # one request and one answer: even here nothing but its place would say whose it is

    assert bench.values(job, ["a"]) == [None]
    assert _counts(bench, job) == {"dead_lettered": 1}
    assert bench.ledger.sql("SELECT DISTINCT why FROM stray")["why"].to_list() == ["unreadable"]


def test_request_that_did_not_come_back_is_asked_again_for_that_reason(bench: Bench) -> None:
    times = iter([1, 1, 0, 0])  # results are read a second time before anything is asked again
    _strange(bench, lambda lines: _sorted(lines)[next(times) :])

    job = bench.run(["a", "b", "c"])

    assert _counts(bench, job) == {"succeeded": 3}
    assert sorted(bench.executor.bill()["content"]) == ["a", "a", "b", "c"]
    assert bench.ledger.sql("SELECT why FROM attempt WHERE n = 2")["why"].to_list() == ["unreturned"]


def test_request_that_never_comes_back_ends_after_three_attempts(bench: Bench) -> None:
    _strange(bench, lambda lines: [])

    job = bench.run(["a"])

    assert _counts(bench, job) == {"dead_lettered": 1}
    assert bench.executor.bill().height == 3
    assert run_book.missing(bench.ledger, job.run_id, job.validator_digest)["reason"].to_list() == ["unreturned"]


# --- retries ------------------------------------------------------------------------------------------------------


def test_invalid_answer_is_asked_for_once_more_changed(bench: Bench) -> None:
    bench.validator = text_validator(lambda value: value["answer"] != "bad")
    job = bench.run(["good", "bad"])

    attempts = bench.ledger.sql("SELECT n, why, variant FROM attempt ORDER BY n, why")
    assert attempts["n"].to_list() == [1, 1, 2]
    assert attempts["why"].to_list()[-1] == "changed:check_failed"
    assert "faults" in attempts["variant"].to_list()[-1]
    assert _counts(bench, job) == {"succeeded": 1, "invalid": 1}
    assert sorted(bench.executor.bill()["content"]) == ["bad", "bad", "good"]


def test_plan_from_before_another_process_made_a_retry_due_is_made_anew(bench: Bench) -> None:
    """What was reserved for it was the bound of the request as it was planned, not of the changed one."""
    bench.validator = text_validator(lambda value: value["answer"] != "bad")
    slow, fast = (bench.begin(["bad"], prices=PRICES, owned_by=name) for name in ("test/1/1/slow", "test/1/1/fast"))
    planned = engine.next_shard(slow)
    assert planned is not None
    engine.drive(fast, wait=False)
    fast.halt("no more is sent here")
    engine.drive(fast)

    with pytest.raises(ClaimLost):
        engine.intend(slow, planned)

    bench.run(["bad"], prices=PRICES)
    reserved = bench.ledger.sql("SELECT bytes FROM shard ORDER BY intended_at")["bytes"].to_list()
    assert reserved[1] > reserved[0]


def test_invalid_answer_is_not_bought_again_by_the_next_run(bench: Bench) -> None:
    bench.validator = text_validator(lambda value: value["answer"] != "bad")
    bench.run(["good", "bad"])
    again = bench.run(["good", "bad"])

    assert bench.executor.bill().height == 3
    assert _counts(bench, again) == {"succeeded": 1, "invalid": 1}


def test_changed_validator_judges_stored_answers_again_and_buys_nothing(bench: Bench) -> None:
    bench.run(["good", "bad"])

    bench.validator = text_validator(lambda value: value["answer"] != "bad")
    strict = bench.run(["good", "bad"])

    assert _counts(bench, strict) == {"succeeded": 1, "invalid": 1}
    assert bench.executor.bill().height == 2

    bench.validator = text_validator()
    lax = bench.run(["good", "bad"])
    assert _counts(bench, lax) == {"succeeded": 2}
    assert bench.executor.bill().height == 2


def test_changed_retries_stop_where_they_have_cost_their_share(bench: Bench) -> None:
    texts = [f"bad {i}" if i % 4 == 0 else f"good {i}" for i in range(200)]
    bench.validator = text_validator(lambda value: "bad" not in value["answer"])
    policy = Policy(systemic_rate=None, retry_spend=0.1, retry_floor=3)
    job = bench.run(texts, policy=policy, options=Options(shard_rows=30, window=2))

    assert _counts(bench, job) == {"succeeded": 150, "invalid": 20, "dead_lettered": 30}
    assert bench.executor.bill().height == 220
    missing = run_book.missing(bench.ledger, job.run_id, job.validator_digest)
    assert missing.filter(sending_state="dead_lettered")["reason"].unique().to_list() == ["retry_budget"]
    assert bench.ledger.sql("SELECT count(*) AS n FROM notice WHERE kind = 'retry_budget'")["n"].item() == 1

    again = bench.run(texts, policy=policy)
    assert _counts(bench, again) == _counts(bench, job)
    assert bench.executor.bill().height == 220


def test_nothing_that_came_back_uncharged_is_held_to_the_share_of_retries(bench: Bench) -> None:
    bench.executor = bench.provider(duration_s=60)
    job = bench.begin(["a", "b", "c"], policy=Policy(retry_spend=0.0, retry_floor=0))
    engine.drive(job, wait=False)
    for shard in shard_book.open_of(bench.ledger, job.run_id, job.job_id):
        bench.executor.cancel(shard["batch_id"])
    engine.drive(job)

    assert _counts(bench, job) == {"succeeded": 3}


def test_cancel_that_another_process_is_ahead_of_decides_nothing(bench: Bench) -> None:
    class Overtaken(ScriptedExecutor):
        """Another process sees the batch end between our call and our writing it down."""

        def cancel(self, batch_id: str) -> None:
            super().cancel(batch_id)
            (row,) = shard_book.all_open(bench.ledger)
            now = bench.clock.now()
            assert shard_book.take(bench.ledger, row, owner="other", now=now, lease_until=now, gone=row["owner"])
            origin, target = ShardState.SUBMITTED, ShardState.ENDED
            shard_book.move(bench.ledger, row["id"], origin, target, owner="other", now=now, lease_until=now)

    bench.executor = Overtaken(bench.folder / "provider", clock=bench.clock, duration_s=600)
    job = bench.begin(TEXTS)
    engine.drive(job, wait=False)
    (shard,) = shard_book.all_open(bench.ledger)

    reconcile.cancel(job, shard)

    assert [row["state"] for row in shard_book.all_open(bench.ledger)] == ["ended"]
    engine.drive(job)
    assert _counts(bench, job) == {"succeeded": 12}


def test_share_of_retries_is_looked_at_again_when_a_shard_is_written_down(bench: Bench) -> None:
    bench.validator = text_validator(lambda value: value["answer"] != "bad")
    job = bench.begin(["good", "bad"], policy=Policy(retry_spend=None))
    engine.drive(job, wait=False)
    bench.clock.sleep(60)
    for shard in shard_book.open_of(bench.ledger, job.run_id, job.job_id):
        engine.advance(job, shard)
    planned = engine.next_shard(job)
    assert planned is not None
    assert planned.height == 1

    job.policy = Policy(retry_spend=0.0, retry_floor=0)  # as when another process has spent the share meanwhile
    with pytest.raises(ClaimLost):
        engine.intend(job, planned)
    engine.drive(job)
    assert _counts(bench, job) == {"succeeded": 1, "dead_lettered": 1}
    assert bench.executor.bill().height == 2


def test_answer_recorded_without_a_validator_is_judged_by_the_next_call_and_its_retry_is_due(bench: Bench) -> None:
    bench.validator = text_validator(lambda value: value["answer"] != "bad")
    blind = replace_validator(bench.begin(["good", "bad"]))
    engine.drive(blind)
    assert _counts(bench, blind) == {"invalid": 2}

    seeing = bench.run(["good", "bad"])

    assert _counts(bench, seeing) == {"succeeded": 1, "invalid": 1}
    assert sorted(bench.executor.bill()["content"]) == ["bad", "bad", "good"]


@pytest.mark.parametrize(("max_attempts", "asked"), [(2, 2), (3, 3)])
def test_answer_that_is_judged_late_is_not_asked_again_beyond_the_cap(
    bench: Bench, max_attempts: int, asked: int
) -> None:
    bench.validator = text_validator(lambda value: False)
    downloads = iter([[], []])  # the first attempt's answer stays away, and may have been charged for
    _strange(bench, lambda lines: next(downloads, lines))
    capped = Policy(max_attempts=max_attempts)
    engine.drive(replace_validator(bench.begin(["bad"], policy=capped)))
    assert bench.executor.bill().height == 2

    seeing = bench.begin(["bad"], policy=capped)
    engine.drive(seeing)

    assert _counts(bench, seeing) == {"invalid": 1}
    assert bench.executor.bill().height == asked


def test_two_processes_that_judge_stored_answers_at_once_judge_each_once(bench: Bench) -> None:
    bench.run(TEXTS)
    bench.validator = text_validator(lambda value: value["answer"] != TEXTS[0])
    jobs = [bench.begin(TEXTS), bench.begin(TEXTS)]
    held = [result_book.unjudged(bench.ledger, job.run_id, job.validator_digest, 100) for job in jobs]
    assert [one.height for one in held] == [12, 12]
    nothing = pl.DataFrame(schema={"key": pl.String, "to_state": pl.String})

    for job, found in zip(jobs, held, strict=True):  # each has read before the other wrote
        judged = collect.judge(job, collect.reread(job, found))
        result_book.judge_again(bench.ledger, job.validator_digest, judged, nothing, max_attempts=3)

    verdicts = bench.ledger.sql("SELECT validator, count(*) AS n FROM validation GROUP BY validator")
    assert verdicts["n"].to_list() == [12, 12]
    assert [_counts(bench, job) for job in jobs] == [{"succeeded": 11, "invalid": 1}] * 2


def replace_validator(job: Job) -> Job:
    """Return a job whose process lacks the user's code."""
    return replace(job, validator=None)


def test_answers_that_are_bad_throughout_stop_the_sending(bench: Bench) -> None:
    bench.validator = text_validator(lambda value: False)
    texts = [f"t{i}" for i in range(60)]

    job = bench.run(texts, options=Options(shard_rows=20, window=1))

    assert job.halted is not None
    assert job.halted.startswith("systemic:20 of 20")
    assert bench.executor.bill().height == 20
    assert run_book.row(bench.ledger, job.run_id)["state"] == "stopped"  # type: ignore[index]


def test_canceled_batch_is_sent_again_unbilled(bench: Bench) -> None:
    bench.executor = bench.provider(duration_s=60)
    job = bench.begin(TEXTS)
    engine.drive(job, wait=False)
    (shard,) = shard_book.open_of(bench.ledger, job.run_id, job.job_id)
    bench.executor.cancel(shard["batch_id"])

    engine.drive(job)

    assert _counts(bench, job) == {"succeeded": 12}
    assert bench.executor.bill().height == 12
    assert set(bench.ledger.sql("SELECT why FROM attempt WHERE n = 2")["why"]) == {"not_billed:canceled"}


def test_resends_end_too(bench: Bench) -> None:
    bench.executor = bench.provider(duration_s=60)
    job = bench.begin(["a"], policy=Policy(max_resends=2))

    while engine.drive(job, wait=False).n_open:
        for shard in shard_book.open_of(bench.ledger, job.run_id, job.job_id):
            bench.executor.cancel(shard["batch_id"])
        bench.clock.sleep(600)

    assert _counts(bench, job) == {"dead_lettered": 1}
    assert bench.ledger.sql("SELECT count(*) AS n FROM attempt")["n"][0] == 3


# --- a provider that will not take it -----------------------------------------------------------------------------


class Reluctant(ScriptedExecutor):
    """A provider whose create calls go as `faults` say, one after the other; then as they should."""

    faults: list[Exception | None]
    arrives: bool = False

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        fault = self.faults.pop(0) if self.faults else None
        if fault is None:
            return super().create(shard, spec, prepared)
        if self.arrives:
            super().create(shard, spec, prepared)
        raise fault


def _reluctant(bench: Bench, *faults: Exception | None, arrives: bool = False) -> None:
    bench.executor = Reluctant(bench.folder / "provider", clock=bench.clock)
    bench.executor.faults, bench.executor.arrives = list(faults), arrives


def test_shard_rejected_for_want_of_room_is_sent_later(bench: Bench) -> None:
    _reluctant(bench, CreateRejected("queue_full", wait_s=60), CreateRejected("queue_full", wait_s=60))
    began = bench.clock.now()

    job = bench.run(TEXTS)

    assert _counts(bench, job) == {"succeeded": 12}
    assert (bench.clock.now() - began).total_seconds() >= 120
    assert bench.executor.bill().height == 12
    assert bench.ledger.sql("SELECT max(n) AS n FROM attempt")["n"][0] == 1


def test_shard_rejected_for_good_stops_the_run_and_keeps_its_requests(bench: Bench) -> None:
    _reluctant(bench, CreateRejected("no_credit", blocked=True))

    job = bench.run(TEXTS)

    assert job.halted == "account_blocked:no_credit"
    assert _counts(bench, job) == {"pending": 12}


@pytest.mark.parametrize("arrives", [True, False], ids=["the batch was made", "it was not"])
def test_lost_answer_to_create_charges_nobody_twice(bench: Bench, arrives: bool) -> None:
    _reluctant(bench, CreateUncertain("timeout"), arrives=arrives)

    job = bench.run(TEXTS)

    assert _counts(bench, job) == {"succeeded": 12}
    assert bench.executor.bill().height == 12
    states = [row[0] for row in bench.ledger.sql("SELECT to_state FROM event ORDER BY seq").iter_rows()]
    assert "uncertain" in states
    assert ("lost" in states) is not arrives


def test_unreachable_provider_is_asked_again(bench: Bench) -> None:
    class Away(ScriptedExecutor):
        times = 3

        def poll(self, batch_id: str) -> Any:
            self.times -= 1
            if self.times >= 0:
                raise Unreachable("timeout")
            return super().poll(batch_id)

    bench.executor = Away(bench.folder / "provider", clock=bench.clock)

    job = bench.run(TEXTS)

    assert _counts(bench, job) == {"succeeded": 12}
    assert bench.executor.bill().height == 12


def test_shard_whose_upload_did_not_get_through_is_not_sent_once_the_run_is_stopped(bench: Bench) -> None:
    class Away(ScriptedExecutor):
        uploads = 0

        def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Any:
            self.uploads += 1
            bench.clock.sleep(1)  # so the first shard is the older one, and is looked at first
            if self.uploads == 2:
                raise Unreachable("timeout")
            return super().prepare(shard, spec, requests)

    bench.executor = Away(bench.folder / "provider", clock=bench.clock)
    bench.validator = text_validator(lambda value: False)
    texts = [f"t{i}" for i in range(40)]

    job = bench.run(texts, options=Options(shard_rows=20, window=2))

    assert job.halted is not None
    assert job.halted.startswith("systemic:20 of 20")
    assert bench.executor.bill().height == 20
    assert shard_book.open_of(bench.ledger, job.run_id, job.job_id) == []


def test_request_too_large_for_any_shard_is_set_aside(bench: Bench) -> None:
    bench.executor = bench.provider(limits=Limits(max_requests=100, max_row_bytes=1_000))

    job = bench.run(["small", "x" * 2_000])

    assert _counts(bench, job) == {"succeeded": 1, "dead_lettered": 1}
    assert run_book.missing(bench.ledger, job.run_id, job.validator_digest)["reason"].to_list() == ["oversize"]


# --- money --------------------------------------------------------------------------------------------------------


def _spent(bench: Bench) -> Decimal:
    value = bench.ledger.sql("SELECT coalesce(sum(cost_usd), 0)::VARCHAR AS usd FROM result")["usd"][0]
    return Decimal(value)


def _reserved(bench: Bench) -> Decimal:
    value = bench.ledger.sql(
        "SELECT coalesce(sum(coalesce(settled_usd, reserved_usd)), 0)::VARCHAR AS usd FROM reservation"
    )["usd"][0]
    return Decimal(value)


BUDGETS = {"nothing": "0", "less than one": "0.001", "one at a time": "0.003", "a shard at a time": "0.009", "all": "1"}


@pytest.mark.parametrize("budget", BUDGETS.values(), ids=BUDGETS.keys())
def test_no_money_is_committed_past_the_budget(bench: Bench, budget: str) -> None:
    bench.executor = bench.provider(duration_s=60)
    job = bench.begin(TEXTS[:5], budget_usd=Decimal(budget), prices=PRICES, options=Options(shard_rows=3, window=4))
    while True:
        outlook = engine.drive(job, wait=False)
        assert _reserved(bench) <= Decimal(budget)
        if outlook.n_waiting == 0 and (job.halted or not outlook.n_open):
            break
        bench.clock.sleep(max(outlook.pause_s, 1))

    assert _spent(bench) <= Decimal(budget)
    assert bench.executor.bill().height == _counts(bench, job).get("succeeded", 0)


def test_budget_that_is_reached_stops_the_run_and_a_larger_one_goes_on(bench: Bench) -> None:
    small = bench.run(TEXTS, budget_usd=Decimal("0.0027"), prices=PRICES)
    assert small.halted == "budget"
    done = _counts(bench, small).get("succeeded", 0)
    assert 0 < done < 12

    large = bench.run(TEXTS, budget_usd=Decimal(1), prices=PRICES)

    assert large.halted is None
    assert _counts(bench, large) == {"succeeded": 12}
    assert bench.executor.bill().height == 12


def test_unused_reservation_makes_room_again(bench: Bench) -> None:
    # One request reserves far more than it costs: all fit one after the other, never at once.
    job = bench.run(TEXTS, budget_usd=Decimal("0.01"), prices=PRICES, options=Options(shard_rows=1, window=1))

    assert _counts(bench, job) == {"succeeded": 12}
    assert _spent(bench) <= Decimal("0.01")


# --- loud when broken ---------------------------------------------------------------------------------------------


def test_requests_that_do_not_add_up_are_an_error(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job = bench.run(TEXTS)
    with bench.ledger.connections.session("a hand") as connection:
        connection.execute("DELETE FROM manifest WHERE key = (SELECT min(key) FROM manifest)")

    with pytest.raises(LedgerInconsistent, match="do not add up"):
        engine.look_ahead(job)


def test_content_that_is_gone_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job = bench.begin(TEXTS)
    with bench.ledger.connections.session("a hand") as connection:
        connection.execute("UPDATE request SET part = NULL")

    with pytest.raises(LedgerInconsistent, match="content"):
        engine.drive(job)
    assert bench.executor.bill().is_empty()


def test_keys_stay_the_same_however_the_frame_is_cut(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    whole = pl.Series("content", TEXTS)

    first = bench.begin(iter([whole]))
    second = bench.begin(iter([whole[:5], whole[5:]]))

    assert first.job_id == second.job_id


def test_cheapest_request_is_tried_first_though_it_is_the_longer_one(bench: Bench) -> None:
    """A truncated answer is retried with twice the output, which may cost more than a much longer request."""
    job = bench.begin(["a"], prices=PRICES)
    tokens = job.spec.max_tokens
    due = pl.DataFrame(
        {"key": ["short", "long"], "bytes": [100, 300], "variant": [f'{{"max_tokens":{2 * tokens}}}', None]}
    )
    room_usd = PRICES.upper_bound(input_bytes=300, output_tokens=tokens)

    assert engine.fitting(job, due, room_usd)["key"].to_list() == ["long"]
