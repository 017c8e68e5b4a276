"""The ledger on real DuckDB: conditional claims, all or nothing, and deliveries that change nothing twice."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lotwise.collect import CHUNK
from lotwise.errors import BudgetTooSmall, ClaimLost, ForkedLedger, LedgerStatementFailed, RunEnded
from lotwise.job import Job
from lotwise.ledger import evidence as evidence_book
from lotwise.ledger import requests as request_book
from lotwise.ledger import results as result_book
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger import waiting
from lotwise.ledger.shards import Intent
from lotwise.ledger.verify import verify
from lotwise.lifecycle import ShardState
from runs import Bench

ME, OTHER = "test/1/1/owner", "test/1/1/other"
UNTIL = datetime(2100, 1, 1, tzinfo=UTC)
SHARD = "00000000000000aa"
NOW = datetime(2026, 12, 1, tzinfo=UTC)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path, in_memory=True)


@pytest.fixture
def job(bench: Bench) -> Job:
    return bench.begin(["a", "b", "c"])


def _intent(job: Job, **changes: Any) -> Intent:
    now = job.clock.now()
    whole = Intent(
        shard=SHARD,
        run=job.run_id,
        job=job.job_id,
        spec=job.spec_digest,
        provider="scripted",
        account="scripted",
        tier="batch",
        purpose="answer",
        owner=ME,
        lease_until=now + timedelta(seconds=60),
        bytes=100,
        keys=request_book.pending(job.ledger, job.run_id)["key"].sort(),
        reserved_usd=Decimal("0.5"),
        budget_usd=Decimal(1),
    )
    return replace(whole, **changes)


def _tables(job: Job) -> dict[str, int]:
    names = ("shard", "attempt", "event", "reservation", "result", "validation", "stray")
    return {name: job.ledger.sql(f"SELECT count(*) AS n FROM {name}")["n"][0] for name in names}


def _states(job: Job) -> list[str]:
    return job.ledger.sql("SELECT state FROM request ORDER BY key")["state"].to_list()


def _ended(job: Job) -> Intent:
    """Bring a shard of all pending requests to `ended`."""
    intent = _intent(job)
    shard_book.intend(job.ledger, intent, job.clock.now())
    S = ShardState
    for origin, target in ((S.INTENDED, S.CREATING), (S.CREATING, S.SUBMITTED), (S.SUBMITTED, S.ENDED)):
        shard_book.move(job.ledger, SHARD, origin, target, owner=ME, now=job.clock.now(), batch_id="b")
    return intent


def _results(keys: pl.Series, raw: str = "{}") -> pl.DataFrame:
    return pl.DataFrame({"key": keys}).with_columns(
        code=pl.lit("ok"),
        detail=pl.lit(None, pl.String),
        raw=pl.lit(raw),
        raw_blob=pl.lit(None, pl.Binary),
        finish_reason=pl.lit("stop"),
        model_revision=pl.lit("m"),
        input_tokens=pl.lit(1, pl.Int64),
        cache_read_tokens=pl.lit(0, pl.Int64),
        cache_write_tokens=pl.lit(0, pl.Int64),
        output_tokens=pl.lit(1, pl.Int64),
        cost_usd=pl.lit(Decimal("0.1")).cast(pl.Decimal(18, 9)),
    )


NO_STRAYS = pl.DataFrame(schema={"why": pl.String})


def _moves(keys: pl.Series, to_state: str = "answered") -> pl.DataFrame:
    return pl.DataFrame({"key": keys}).with_columns(
        to_state=pl.lit(to_state),
        reason=pl.lit(None, pl.String),
        why=pl.lit(None, pl.String),
        variant=pl.lit(None, pl.String),
        faults=pl.lit(1, pl.Int32),
        resends=pl.lit(0, pl.Int32),
        delay_s=pl.lit(0.0),
    )


def _verdicts(keys: pl.Series, ok: list[bool]) -> pl.DataFrame:
    return pl.DataFrame({"key": keys, "ok": ok}).with_columns(
        shard=pl.lit(SHARD),
        value=pl.when("ok").then(pl.lit("{}")),
        fault_code=pl.when(~pl.col("ok")).then(pl.lit("empty")),
        fault_list=pl.lit(None, pl.String),
        lenient=pl.lit(False),
    )


# --- enrolling ----------------------------------------------------------------------------------------------------


def test_request_that_is_there_is_not_enrolled_again(bench: Bench, job: Job) -> None:
    bench.begin(["b", "c", "d"])

    assert job.ledger.sql("SELECT count(*) AS n FROM request")["n"][0] == 4
    assert job.ledger.sql("SELECT n_requests FROM part ORDER BY created_at, n_requests DESC")[
        "n_requests"
    ].to_list() == [3, 1]


def test_content_comes_back_as_it_was_in_the_order_asked(bench: Bench) -> None:
    texts = ["", " \t\n", "ünïcödé \U0001f642", "\u2028", '"quoted"', "x" * 100_000, "\x00nul"]
    job = bench.begin(texts)
    pending = request_book.pending(job.ledger, job.run_id).sort("key", descending=True)

    assert sorted(request_book.contents(job.ledger, pending)["content"]) == sorted(texts)
    assert request_book.contents(job.ledger, pending)["key"].to_list() == pending["key"].to_list()


def test_part_that_a_purge_took_is_written_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    from lotwise.ledger import parts

    write, taken = parts.write, []

    def write_and_lose_the_first(folder: Path, content: pl.DataFrame) -> str:
        part = write(folder, content)
        if not taken:
            taken.append(part)
            (folder / f"{part}.parquet").unlink()
        return part

    monkeypatch.setattr(parts, "write", write_and_lose_the_first)
    job = bench.begin(["a"])

    assert request_book.contents(job.ledger, request_book.pending(job.ledger, job.run_id))["content"].to_list() == ["a"]


# --- intents ------------------------------------------------------------------------------------------------------


def test_intent_claims_reserves_and_tells_all_at_once(job: Job) -> None:
    shard_book.intend(job.ledger, _intent(job), job.clock.now())

    assert _states(job) == ["submitted"] * 3
    assert _tables(job) == {
        "shard": 1, "attempt": 3, "event": 1, "reservation": 1, "result": 0, "validation": 0, "stray": 0,
    }  # fmt: skip


REFUSED_INTENTS: dict[str, tuple[dict[str, Any], type[Exception]]] = {
    "a request that is not there": ({"keys": pl.Series(["0" * 40])}, ClaimLost),
    "more than the budget": ({"reserved_usd": Decimal("1.000000001")}, BudgetTooSmall),
    "a key named twice": ({"keys": "twice"}, ClaimLost),
}


@pytest.mark.parametrize(("changes", "error"), REFUSED_INTENTS.values(), ids=REFUSED_INTENTS.keys())
def test_intent_that_is_refused_leaves_nothing(job: Job, changes: dict[str, Any], error: type[Exception]) -> None:
    pending = request_book.pending(job.ledger, job.run_id)["key"]
    keys = changes.get("keys", pending)
    changes = {**changes, "keys": pl.concat([pending, pending]) if isinstance(keys, str) else keys}

    with pytest.raises(error):
        shard_book.intend(job.ledger, _intent(job, **changes), job.clock.now())

    assert _states(job) == ["pending"] * 3
    assert not any(_tables(job).values())


def test_second_claim_of_one_request_is_lost_and_rolled_back_whole(job: Job) -> None:
    keys = request_book.pending(job.ledger, job.run_id)["key"].sort()
    shard_book.intend(job.ledger, _intent(job, keys=keys[:1]), job.clock.now())

    with pytest.raises(ClaimLost) as lost:
        shard_book.intend(job.ledger, _intent(job, shard="00000000000000bb", keys=keys), job.clock.now())

    assert (lost.value.asked, lost.value.got) == (3, 2)
    assert _states(job) == ["submitted", "pending", "pending"]
    assert _tables(job)["shard"] == 1


def test_reservations_of_one_job_add_up(job: Job) -> None:
    keys = request_book.pending(job.ledger, job.run_id)["key"].sort()
    shard_book.intend(job.ledger, _intent(job, keys=keys[:1], reserved_usd=Decimal("0.6")), job.clock.now())

    with pytest.raises(BudgetTooSmall) as full:
        shard_book.intend(
            job.ledger,
            _intent(job, shard="00000000000000bb", keys=keys[1:], reserved_usd=Decimal("0.5")),
            job.clock.now(),
        )

    assert full.value.committed_usd == Decimal("0.6")


@pytest.mark.parametrize("state", ["canceled", "stopped"])
def test_nothing_is_intended_for_a_run_that_was_ended(job: Job, state: str) -> None:
    run_book.end(job.ledger, job.run_id, state, "why", job.clock.now())

    with pytest.raises(RunEnded):
        shard_book.intend(job.ledger, _intent(job), job.clock.now())

    assert _states(job) == ["pending"] * 3


# --- moves and leases ---------------------------------------------------------------------------------------------


def test_shard_moves_only_from_the_expected_state_and_by_its_owner(job: Job) -> None:
    shard_book.intend(job.ledger, _intent(job), job.clock.now())
    now, S = job.clock.now(), ShardState

    with pytest.raises(ClaimLost):
        shard_book.move(job.ledger, SHARD, S.INTENDED, S.CREATING, owner=OTHER, now=now)
    with pytest.raises(ClaimLost):
        shard_book.move(job.ledger, SHARD, S.CREATING, S.SUBMITTED, owner=ME, now=now)
    with pytest.raises(ValueError, match="does not move"):
        shard_book.move(job.ledger, SHARD, S.INTENDED, S.COLLECTED, owner=ME, now=now)

    assert shard_book.row(job.ledger, SHARD)["state"] == "intended"
    assert _tables(job)["event"] == 1


LEASES: dict[str, tuple[dict[str, Any], bool]] = {
    "held by another": ({}, False),
    "run out this moment": ({"now_s": 60}, True),
    "a second before it runs out": ({"now_s": 59}, False),
    "its owner is known to be gone": ({"gone": ME}, True),
    "another owner is known to be gone": ({"gone": "somebody"}, False),
    "ours": ({"owner": ME}, True),
    "moved on meanwhile": ({"owner": ME, "state": "creating"}, False),
}


@pytest.mark.parametrize(("case", "taken"), LEASES.values(), ids=LEASES.keys())
def test_lease_is_taken_only_when_free(job: Job, case: dict[str, Any], taken: bool) -> None:
    now = job.clock.now()
    shard_book.intend(job.ledger, _intent(job), now)
    at = now + timedelta(seconds=case.get("now_s", 0))

    got = shard_book.take(
        job.ledger,
        {"id": SHARD, "state": case.get("state", "intended")},
        owner=case.get("owner", OTHER),
        now=at,
        lease_until=at + timedelta(seconds=60),
        gone=case.get("gone"),
    )

    assert got is taken


def test_run_waits_for_shards_of_other_jobs_that_hold_its_requests_and_for_no_others(bench: Bench, job: Job) -> None:
    shared, apart = bench.begin(["a", "z"]), bench.begin(["y"])
    now = job.clock.now()
    shard_book.intend(job.ledger, _intent(job), now)
    shard_book.intend(job.ledger, _intent(apart, shard="00000000000000bb"), now)

    def waits_for(one: Job) -> list[str]:
        return [shard["id"] for shard in shard_book.open_of(one.ledger, one.run_id, one.job_id)]

    assert waits_for(job) == waits_for(shared) == [SHARD]
    assert waits_for(apart) == ["00000000000000bb"]


def test_look_says_what_is_due_and_when_the_next_is(job: Job) -> None:
    now = job.clock.now()
    _ended(job)
    keys = result_book.sent_keys(job.ledger, SHARD)["key"].sort()
    later = _moves(keys, "pending").with_columns(delay_s=pl.Series([0.0, 60.0, 90.0]))
    result_book.settle(job.ledger, SHARD, None, pl.DataFrame(), later, now=now, owner=ME, lease_until=UNTIL)

    seen = run_book.look(job.ledger, job.run_id, job.job_id, job.validator_digest, now)

    assert (seen.n_due, seen.next_due_at) == (1, now + timedelta(seconds=60))
    assert [(one.n, one.next_due_at) for one in seen.waiting] == [(2, now + timedelta(seconds=60))]
    assert waiting.of(job.ledger, job.run_id, now + timedelta(seconds=90)) == ()
    assert seen.counts == {"pending": (3, 3)}
    assert [shard["id"] for shard in seen.shards] == [SHARD]


def test_lease_that_was_given_back_is_free(job: Job) -> None:
    now = job.clock.now()
    shard_book.intend(job.ledger, _intent(job), now)
    shard_book.drop(job.ledger, SHARD, owner=ME)

    assert shard_book.take(job.ledger, {"id": SHARD, "state": "intended"}, owner=OTHER, now=now, lease_until=now)
    assert not shard_book.renew(job.ledger, SHARD, owner=ME, lease_until=now)


@pytest.mark.parametrize("target", [ShardState.LOST, ShardState.REJECTED])
def test_shard_that_nobody_worked_on_leaves_its_requests_as_they_were(
    bench: Bench, job: Job, target: ShardState
) -> None:
    shard_book.intend(job.ledger, _intent(job), job.clock.now())
    shard_book.move(job.ledger, SHARD, ShardState.INTENDED, ShardState.CREATING, owner=ME, now=job.clock.now())

    count = shard_book.release(
        job.ledger, SHARD, ShardState.CREATING, target, owner=ME, now=job.clock.now(), reason="why", due_at=None
    )

    assert count == 3
    assert _states(job) == ["pending"] * 3
    assert job.ledger.sql("SELECT DISTINCT attempts FROM request")["attempts"].to_list() == [0]
    assert _tables(job)["attempt"] == 0
    assert job.ledger.sql("SELECT settled_usd::VARCHAR AS usd FROM reservation")["usd"].to_list() == ["0.000000000"]
    shard_book.intend(job.ledger, _intent(job, shard="00000000000000bb"), job.clock.now())
    assert verify(bench.ledger).clean


# --- results ------------------------------------------------------------------------------------------------------


def test_second_delivery_of_a_result_changes_nothing(job: Job) -> None:
    keys = _ended(job).keys
    first = result_book.record(job.ledger, SHARD, _results(keys[:2], raw="first"), NO_STRAYS, job.clock.now())
    second = result_book.record(job.ledger, SHARD, _results(keys, raw="second"), NO_STRAYS, job.clock.now())

    assert (first, second) == (2, 1)
    assert job.ledger.sql("SELECT raw FROM result ORDER BY key")["raw"].to_list() == ["first", "first", "second"]


def test_settling_moves_all_requests_or_none(job: Job) -> None:
    keys = _ended(job).keys
    result_book.record(job.ledger, SHARD, _results(keys), NO_STRAYS, job.clock.now())
    result_book.settle(
        job.ledger,
        SHARD,
        job.validator_digest,
        _verdicts(keys[:1], [True]),
        _moves(keys[:1]),
        now=job.clock.now(),
        owner=ME,
        lease_until=UNTIL,
    )

    with pytest.raises(ClaimLost):
        result_book.settle(
            job.ledger,
            SHARD,
            job.validator_digest,
            _verdicts(keys, [True] * 3),
            _moves(keys),
            now=job.clock.now(),
            owner=ME,
            lease_until=UNTIL,
        )

    assert _states(job) == ["answered", "submitted", "submitted"]
    assert _tables(job)["validation"] == 1
    assert result_book.sent(job.ledger, SHARD)[1]["key"].sort().to_list() == keys[1:].to_list()


def test_collected_shard_settles_its_reservation_at_its_real_cost(job: Job) -> None:
    keys = _ended(job).keys
    result_book.record(job.ledger, SHARD, _results(keys), NO_STRAYS, job.clock.now())
    result_book.settle(
        job.ledger,
        SHARD,
        job.validator_digest,
        _verdicts(keys, [True] * 3),
        _moves(keys),
        now=job.clock.now(),
        owner=ME,
        lease_until=UNTIL,
    )
    counts = {"n_results": 3, "n_duplicates": 0, "n_unknown": 0, "n_unreadable": 0}

    result_book.finish(job.ledger, SHARD, owner=ME, now=job.clock.now(), counts=counts, validator=job.validator_digest)

    assert shard_book.row(job.ledger, SHARD)["cost_usd"] == Decimal("0.3")
    assert job.ledger.sql("SELECT settled_usd::VARCHAR AS usd FROM reservation")["usd"].to_list() == ["0.300000000"]


def test_cost_that_is_not_known_settles_at_the_upper_bound(job: Job) -> None:
    keys = _ended(job).keys
    unpriced = _results(keys).with_columns(cost_usd=pl.lit(None, pl.Decimal(18, 9)))
    result_book.record(job.ledger, SHARD, unpriced, NO_STRAYS, job.clock.now())
    result_book.settle(
        job.ledger,
        SHARD,
        job.validator_digest,
        _verdicts(keys, [True] * 3),
        _moves(keys),
        now=job.clock.now(),
        owner=ME,
        lease_until=UNTIL,
    )
    counts = {"n_results": 3, "n_duplicates": 0, "n_unknown": 0, "n_unreadable": 0}

    result_book.finish(job.ledger, SHARD, owner=ME, now=job.clock.now(), counts=counts, validator=job.validator_digest)

    assert shard_book.row(job.ledger, SHARD)["cost_usd"] is None
    assert job.ledger.sql("SELECT settled_usd::VARCHAR AS usd FROM reservation")["usd"].to_list() == ["0.500000000"]


LATER = """
INSERT INTO result (shard, key, code, raw, recorded_at) SELECT 'late', key, code, raw, recorded_at FROM result;
INSERT INTO validation SELECT 'late', key, validator, ok, '{"later":1}', code, faults, lenient FROM validation;
"""


def test_answer_is_the_earliest_valid_one(job: Job) -> None:
    keys = _ended(job).keys
    result_book.record(job.ledger, SHARD, _results(keys[:1]), NO_STRAYS, job.clock.now())
    result_book.settle(
        job.ledger,
        SHARD,
        job.validator_digest,
        _verdicts(keys[:1], [True]),
        _moves(keys[:1]),
        now=job.clock.now(),
        owner=ME,
        lease_until=UNTIL,
    )
    with job.ledger.connections.session("a later shard") as connection:
        connection.execute(LATER)

    answers = request_book.answers(job.ledger, keys[:1], job.validator_digest)

    assert answers.select("state", "value", "reason").row(0) == ("succeeded", "{}", None)


def test_answer_of_another_validator_is_not_ours(job: Job) -> None:
    keys = _ended(job).keys
    result_book.record(job.ledger, SHARD, _results(keys), NO_STRAYS, job.clock.now())
    verdicts = _verdicts(keys, [True, False, True])
    result_book.settle(
        job.ledger,
        SHARD,
        job.validator_digest,
        verdicts,
        _moves(keys),
        now=job.clock.now(),
        owner=ME,
        lease_until=UNTIL,
    )

    ours = request_book.answers(job.ledger, keys, job.validator_digest).sort("key")
    other = request_book.answers(job.ledger, keys, "another").sort("key")
    absent = request_book.answers(job.ledger, pl.Series(["f" * 40]), job.validator_digest)

    assert ours["state"].to_list() == ["succeeded", "invalid", "succeeded"]
    assert ours["reason"].to_list() == [None, "empty", None]
    assert other.select("state", "reason").unique().rows() == [("invalid", "not_judged")]
    assert absent["state"].to_list() == ["absent"]


def test_ended_requests_are_reopened_only_when_asked_and_with_the_reason(job: Job) -> None:
    keys = _ended(job).keys
    result_book.record(job.ledger, SHARD, _results(keys), NO_STRAYS, job.clock.now())
    result_book.settle(
        job.ledger,
        SHARD,
        None,
        pl.DataFrame(schema={"key": pl.String}),
        _moves(keys),
        now=job.clock.now(),
        owner=ME,
        lease_until=UNTIL,
    )

    assert request_book.reopen(job.ledger, keys, "refused", "retry=refused") == 0
    assert request_book.reopen(job.ledger, keys[:2], "answered", "retry=invalid") == 2
    assert request_book.pending(job.ledger, job.run_id)["why"].to_list() == ["retry=invalid"] * 2


# --- what a ledger refuses ----------------------------------------------------------------------------------------


def test_ledger_is_refused_in_a_fork(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    parent = os.getpid()
    monkeypatch.setattr("lotwise.ledger.store.os.getpid", lambda: parent + 1)

    for use in (
        lambda: run_book.all_runs(bench.ledger),
        lambda: bench.ledger.sql("SELECT 1"),
        lambda: run_book.end(bench.ledger, "x", "done", None, bench.clock.now()),
    ):
        with pytest.raises(ForkedLedger):
            use()


def test_failing_statement_names_itself_and_no_content(job: Job) -> None:
    secret = pl.DataFrame({"key": ["planted"], "content_bytes": ["planted"]})

    with pytest.raises(LedgerStatementFailed) as failed, job.ledger.transaction("test") as tx:
        tx.run("enroll", frames={"k": secret}, spec="s", part="p")

    assert failed.value.name == "enroll"
    assert "planted" not in str(failed.value)
    assert failed.value.__context__ is None


def test_transaction_of_a_chunk_takes_results_by_the_thousand(job: Job) -> None:
    keys = pl.Series([f"{i:040x}" for i in range(CHUNK)])
    _ended(job)

    assert result_book.record(job.ledger, SHARD, _results(keys), NO_STRAYS, job.clock.now()) == CHUNK
    assert result_book.record(job.ledger, SHARD, _results(keys), NO_STRAYS, job.clock.now()) == 0


def test_shard_that_was_asked_besides_and_never_worked_on_leaves_no_gap_in_the_attempts(job: Job) -> None:
    now, first, second = job.clock.now(), _intent(job), _intent(job, shard="b" * 16, reserved_usd=Decimal("0.1"))
    shard_book.intend(job.ledger, first, now)
    shard_book.move(job.ledger, SHARD, ShardState.INTENDED, ShardState.CREATING, owner=ME, now=now)
    assert shard_book.ask_twice(job.ledger, SHARD, "deadline") == 3
    shard_book.intend(job.ledger, second, now)

    shard_book.release(
        job.ledger,
        SHARD,
        ShardState.CREATING,
        ShardState.LOST,
        owner=ME,
        now=now,
        reason="absent_from_list",
        due_at=None,
    )

    assert verify(job.ledger).clean, verify(job.ledger).findings
    assert job.ledger.sql("SELECT DISTINCT n, shard FROM attempt").rows() == [(1, "b" * 16)]


# --- lots ---------------------------------------------------------------------------------------------------------


def _draw(plan_n: int) -> pl.DataFrame:
    counts = dict.fromkeys(("n_rows", "n_unique", "n_invalid", "population", "plan_c"), plan_n)
    rates = {"aql": 0.01, "limit": 0.05, "confidence": 0.95, "margin": 0.05, "accept_at_aql": 1.0, "accept_at_limit": 0}
    kind = "inspection" if plan_n else "none"
    return pl.DataFrame(
        {"lot_id": ["lot"], "n": [1], "plan_n": [plan_n], "plan_kind": [kind], "seed": [7], **counts, **rates}
    )


def _sample(n: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "lot_id": "lot",
            "n": 1,
            "key": [f"k{i}" for i in range(n)],
            "rank": range(1, n + 1),
            "stratum": "small",
            "weight": 1.0,
            "multiplicity": 1,
            "answer_digest": "00",
        },
        schema_overrides={"lot_id": pl.String, "stratum": pl.String},
    )


@pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 0), (2, 3)])
def test_a_lot_that_two_processes_draw_keeps_the_first_draw_and_its_sample_alone(
    bench: Bench, first: int, second: int
) -> None:
    for n in (first, second):  # what each saw: answers may have come between the two looks
        evidence_book.record_draws(bench.ledger, _draw(n), _sample(n), NOW)

    drawn = bench.ledger.sql("SELECT plan_n FROM draw")["plan_n"].to_list()
    assert (drawn, bench.ledger.sql("SELECT * FROM sample").height) == ([first], first)
