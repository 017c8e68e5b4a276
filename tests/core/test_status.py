"""What a run's status counts as sent, and whose notices it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.test_paid_stream import Endpoint
from lotwise import engine, watch
from lotwise.executors.reading import ANSWER_LOST, NOT_SENT
from lotwise.lifecycle import Policy
from lotwise.status import Status
from lotwise.testing import ScriptedExecutor
from runs import Bench

TEXTS = [f"row {i}" for i in range(6)]


def test_calls_that_never_left_are_not_counted_as_sent(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True, executor=Endpoint(1, 3, 4, failure=NOT_SENT))
    job = bench.begin(TEXTS, policy=Policy(max_resends=0))
    engine.drive(job)

    status = Status.of(bench.ledger, job.run_id, paid=True)

    assert status.requests == {"succeeded": 3, "dead_lettered": 3}
    assert (status.n_sent, status.n_unsent) == (3, 3)
    assert "3 requests for this run; 3 calls never left, for want of a connection" in str(status)


def test_a_call_whose_answer_was_lost_did_leave(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True, executor=Endpoint(0, failure=ANSWER_LOST))
    job = bench.begin(TEXTS, policy=Policy(hold_uncertain=True))
    engine.drive(job)

    status = Status.of(bench.ledger, job.run_id, paid=True)

    assert (status.n_sent, status.n_unsent, status.n_uncertain) == (6, 0, 1)


def test_what_an_endpoint_was_not_asked_before_it_was_given_up_is_not_counted_as_sent(tmp_path: Path) -> None:
    class Fails(Endpoint):
        def answer(self, shard, spec, requests):  # type: ignore[no-untyped-def]
            for i, lines in enumerate(super().answer(shard, spec, requests)):
                if i == 2:
                    raise KeyboardInterrupt
                yield lines

    bench = Bench(folder=tmp_path, in_memory=True, executor=Fails())
    job = bench.begin(TEXTS)
    with pytest.raises(KeyboardInterrupt):
        engine.drive(job)

    assert Status.of(bench.ledger, job.run_id, paid=True).n_sent == 2


def test_a_batch_is_sent_when_it_is_made(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    assert isinstance(bench.executor, ScriptedExecutor)
    job = bench.begin(TEXTS)
    engine.drive(job, wait=False)

    status = Status.of(bench.ledger, job.run_id)

    assert (status.requests, status.n_sent, status.n_unsent) == ({"submitted": 6}, 6, 0)


def test_a_notice_of_another_run_of_the_same_work_names_that_run(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    first, second = bench.begin(TEXTS), bench.begin(TEXTS)
    assert first.job_id == second.job_id
    watch.tell(first, "invalid_rate", None, "more answers are invalid than before")
    watch.tell(second, "model_revision", None, "another revision answers")

    def notices(run: str) -> tuple[str, ...]:
        return Status.of(bench.ledger, run).notices

    assert notices(first.run_id) == (
        "more answers are invalid than before",
        f"run {second.run_id}: another revision answers",
    )
    assert notices(second.run_id) == (
        f"run {first.run_id}: more answers are invalid than before",
        "another revision answers",
    )
