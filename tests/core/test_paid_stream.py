"""A paid synchronous endpoint: what was charged unseen stays reserved, wherever in the shard it was asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from lotwise import engine
from lotwise.cost import Prices
from lotwise.executors.live import Answer
from lotwise.executors.openai_dialect import answer_line, read_lines
from lotwise.executors.reading import ANSWER_LOST
from lotwise.job import Snapshot
from lotwise.ledger import runs as run_book
from lotwise.lifecycle import Policy
from lotwise.request import Limits, Shard, Spec
from lotwise.status import Status
from lotwise.testing import answer_line as scripted_line
from lotwise.testing import echo
from runs import Bench

PRICES = Prices.given({"input_mtok": "1", "output_mtok": "5"}, "interactive")


class Endpoint:
    """Answers in the order of asking; at some places there is a failure, such as an answer that is lost on its way."""

    provider, hosted, paid = "scripted", False, True
    limits = Limits(max_requests=100)
    window = 2

    def __init__(self, *lost: int, failure: str = ANSWER_LOST) -> None:
        self._lost, self._failure = lost, failure

    def check(self, spec: Spec) -> None: ...

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        return schema_text, ()

    def model_digest(self) -> str | None:
        return None

    def account(self) -> str:
        return "scripted"

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        return content_bytes.cast(pl.Int64) + 200

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        return read_lines(lines)

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        for i, (custom_id, content) in enumerate(requests.select("custom_id", "content").iter_rows()):
            if i in self._lost:
                yield [answer_line(Answer(custom_id=custom_id, failure=self._failure))]
            else:
                yield [_encoded(custom_id, echo(content, spec))]


def _encoded(custom_id: str, text: str) -> bytes:
    return json.dumps(scripted_line(custom_id, text)).encode()


@pytest.mark.parametrize("lost", range(6))
def test_lost_answer_keeps_its_bound_wherever_it_was_asked(tmp_path: Path, lost: int) -> None:
    bench = Bench(folder=tmp_path, in_memory=True, executor=Endpoint(lost))
    texts = [f"row {i}" for i in range(6)]
    job = bench.begin(texts, prices=PRICES, budget_usd=Decimal(1), policy=Policy(hold_uncertain=True))

    engine.drive(job)

    (row,) = job.ledger.sql(
        "SELECT s.cost_usd, r.settled_usd FROM shard s JOIN reservation r ON r.shard = s.id"
    ).to_dicts()
    bound = PRICES.upper_bound(input_bytes=200 + len("row 0"), output_tokens=bench.spec.max_tokens, requests=1)
    assert row["settled_usd"] == row["cost_usd"] + bound


def test_endpoint_that_loses_every_answer_is_asked_again_after_pauses_and_the_reason_is_told(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True, executor=Endpoint(0, 1, 2))
    job = bench.begin(["a", "b", "c"], policy=Policy(backoff_s=10))
    told: list[tuple[float, dict[str, int], float | None]] = []

    def tell(snapshot: Snapshot) -> None:
        told.append((snapshot.elapsed_s, dict(snapshot.waiting), snapshot.next_try_s))
        status = Status.of(job.ledger, job.run_id, paid=True, now=bench.clock.now())
        assert status.waiting == snapshot.waiting
        assert (status.next_try_at is None) == (snapshot.next_try_s is None)

    job.tell = tell
    engine.drive(job)

    assert told == [(0, {"uncertain": 3}, 10), (10, {"uncertain": 3}, 20), (30, {}, None)]
    assert run_book.missing(job.ledger, job.run_id, job.validator_digest)["attempts"].to_list() == [3, 3, 3]


class KilledOnce(Endpoint):
    """Its asker is killed after the first answer; the next one is answered."""

    killed = False

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        answers = super().answer(shard, spec, requests)
        if self.killed:
            yield from answers
            return
        yield next(answers)
        self.killed = True
        raise KeyboardInterrupt


def test_what_a_killed_process_left_unrecorded_is_asked_again_at_once(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True, executor=KilledOnce())
    texts = [f"row {i}" for i in range(6)]
    # What was never begun does not fall under the cap on asking again.
    job = bench.begin(texts, policy=Policy(max_resends=0))
    with pytest.raises(KeyboardInterrupt):
        engine.drive(job)
    killed_at = bench.clock.now()
    job.owner, job.is_gone = "test/1/2/owner", lambda owner: owner == "test/1/1/owner"
    engine.drive(job)

    whys = job.ledger.sql("SELECT why, count(*) FROM attempt WHERE why <> 'first' GROUP BY why")
    assert dict(whys.iter_rows()) == {"uncertain": Endpoint.window, "not_billed:canceled": 3}
    assert bench.values(job, texts).count(None) == 0
    assert bench.clock.now() == killed_at
