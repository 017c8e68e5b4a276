"""Batches that come late, for a shard that was given up meanwhile: what they answered is collected and paid within the
budget, and nobody pays for the same request twice unseen."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from lotwise import engine
from lotwise.errors import AccountMismatch, BatchNotFound, CreateUncertain, Unreachable
from lotwise.job import Job, Options
from lotwise.ledger import requests as request_book
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.store import Ledger
from lotwise.ledger.transaction import Transaction
from lotwise.ledger.verify import verify
from lotwise.lifecycle import ShardState
from lotwise.request import Listed, Observation, Phase, Shard, Spec
from lotwise.status import Status
from lotwise.testing import ScriptedExecutor, answer_line
from runs import PRICES, Bench, text_validator

S = ShardState


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(folder=tmp_path, in_memory=True)
    made.executor = Slow(tmp_path / "provider", clock=made.clock, duration_s=1_000_000.0)
    made.executor.bench = made
    yield made
    assert verify(made.ledger).findings == ()


class Killed(BaseException):
    """The end of a process: nothing may catch it."""


class Slow(ScriptedExecutor):
    """A provider to which a create call comes after its shard was given up by another process."""

    bench: Bench
    gives_up = True
    answer: Exception | None = None
    """How the create call fails, though the batch is made."""
    faults: tuple[BaseException, ...] = ()
    """What the next calls to cancel meet."""

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        ledger, now = self.bench.ledger, self.bench.clock.now()
        (row,) = shard_book.all_open(ledger)
        assert shard_book.take(ledger, row, owner="another", now=now, lease_until=now, gone=row["owner"])
        if self.gives_up:
            tomorrow = now + timedelta(days=1)  # so that what is sent again comes after what these tests look at
            shard_book.release(
                ledger, row["id"], S.CREATING, S.LOST, owner="another", now=now, reason="x", due_at=tomorrow
            )
        batch_id = super().create(shard, spec, prepared)
        if self.answer is not None:
            raise self.answer
        return batch_id

    def cancel(self, batch_id: str) -> None:
        if self.faults:
            fault, *rest = self.faults
            self.faults = tuple(rest)
            raise fault
        super().cancel(batch_id)


def _later(bench: Bench, job: Job, seconds: float = 60.0) -> None:
    """Let another process make one pass over the same work, somewhat later."""
    bench.clock.sleep(seconds)
    engine.drive(replace(job, owner="test/1/1/next", halted="no more is sent here"), wait=False)


def _orphans(bench: Bench) -> list[str]:
    return bench.ledger.sql("SELECT state FROM orphan")["state"].to_list()


def test_late_batch_is_canceled(bench: Bench) -> None:
    engine.send(bench.begin(["a", "b"]))

    assert bench.executor.bill().is_empty()
    assert _orphans(bench) == ["canceled"]


@pytest.mark.parametrize("answer", [CreateUncertain("timeout"), CreateUncertain("server_error")], ids=str)
def test_late_batch_whose_answer_was_lost_is_found_and_canceled(bench: Bench, answer: Exception) -> None:
    bench.executor.answer = answer

    engine.send(bench.begin(["a", "b"]))

    assert bench.executor.bill().is_empty()
    assert _orphans(bench) == ["canceled"]


@pytest.mark.parametrize(
    "fault", [Unreachable("timeout"), BatchNotFound("b"), Killed()], ids=["unreachable", "not known yet", "killed"]
)
def test_late_batch_that_could_not_be_canceled_is_canceled_by_the_next_pass(bench: Bench, fault: BaseException) -> None:
    bench.executor.faults = (fault,)
    job = bench.begin(["a", "b"])
    with contextlib.suppress(Killed):
        engine.send(job)
    assert bench.executor.bill().height == 2

    _later(bench, job)

    assert bench.executor.bill().is_empty()
    assert _orphans(bench) == ["canceled"]


def test_run_does_not_end_before_its_late_batch_is_dealt_with(bench: Bench) -> None:
    bench.executor.faults = (Unreachable("timeout"),) * 3
    job = bench.begin(["a", "b"])
    engine.send(job)
    job.halt("no more is sent here")

    engine.drive(job)

    assert bench.executor.bill().is_empty()


def test_late_batch_of_a_shard_that_another_still_looks_for_is_left_to_it(bench: Bench) -> None:
    bench.executor.gives_up = False
    job = bench.begin(["a", "b"])
    engine.send(job)
    assert _orphans(bench) == ["found"]

    _later(bench, job)  # adopts it, since the lease of the other has run out
    _later(bench, job)

    assert bench.executor.bill().height == 2
    assert _orphans(bench) == ["adopted"]


def test_late_batch_that_is_adopted_and_rejected_whole_costs_nothing(bench: Bench) -> None:
    bench.executor.gives_up = False
    bench.executor.poll = lambda batch_id: Observation(
        phase=Phase.REJECTED, provider_state="failed", reason="token_limit_exceeded", wait=True
    )
    job = bench.begin(["a", "b"], prices=PRICES)
    engine.send(job)
    assert _orphans(bench) == ["found"]

    _later(bench, job, seconds=5.0)  # adopts it
    _later(bench, job, seconds=5.0)
    assert shard_book.of_job(bench.ledger, job.job_id)[0]["state"] == "rejected"

    _later(bench, job)
    assert _orphans(bench) == ["adopted"]
    assert shard_book.committed_usd(bench.ledger, job.job_id) == 0


def test_late_batch_that_never_shows_is_taken_for_never_made(bench: Bench) -> None:
    bench.executor.answer = CreateUncertain("timeout")
    bench.executor.list = lambda *, since: iter(())
    job = bench.begin(["a", "b"], options=Options(create_timeout_s=100.0, absence_margin_s=100.0))
    engine.send(job)
    assert _orphans(bench) == ["sought"]

    _later(bench, job, seconds=201.0)

    assert _orphans(bench) == ["absent"]


def test_late_batch_is_not_given_up_by_who_looks_under_another_account(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.executor.answer = CreateUncertain("timeout")
    monkeypatch.setattr(bench.executor, "list", lambda *, since: iter(()))  # what another account's key is shown
    job = bench.begin(["a", "b"], options=Options(create_timeout_s=100.0, absence_margin_s=100.0))
    engine.send(job)

    monkeypatch.setattr(bench.executor, "account", lambda: "another")
    with pytest.raises(AccountMismatch):
        _later(bench, job, seconds=201.0)
    assert _orphans(bench) == ["sought"]

    monkeypatch.undo()
    _later(bench, job)
    assert bench.executor.bill().is_empty()
    assert _orphans(bench) == ["canceled"]


def test_silent_owner_is_watched_for_by_its_own_account_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job, _ = _given_up(bench)

    monkeypatch.setattr(bench.executor, "account", lambda: "another")
    _later(bench, job, 300.0)  # ends without a word: nobody waits for it
    assert _orphans(bench) == ["watched"]

    monkeypatch.undo()
    _later(bench, job)
    assert _orphans(bench) == ["absent"]


def test_call_that_came_back_late_and_unanswered_proves_nothing_for_a_while(tmp_path: Path) -> None:
    class Stopped(ScriptedExecutor):
        def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
            bench.clock.sleep(100_000.0)  # the process, in the middle of the call
            super().create(shard, spec, prepared)
            raise CreateUncertain("timeout")

        def list(self, *, since: datetime) -> Iterator[Listed]:
            hidden = bench.clock.now() - timedelta(seconds=300)
            return (one for one in super().list(since=since) if one.created_at <= hidden)

    bench = Bench(folder=tmp_path, in_memory=True)
    bench.executor = Stopped(tmp_path / "provider", clock=bench.clock)

    job = bench.run(["a", "b"])

    assert bench.executor.bill().height == 2
    assert run_book.counts(bench.ledger, job.run_id, job.validator_digest) == {"succeeded": (2, 2)}


def _creating(bench: Bench, job: Job) -> ShardRow:
    """Bring a job's next shard to just before its create call."""
    planned = engine.next_shard(job)
    assert planned is not None
    row = engine.intend(job, planned)
    assert row is not None
    now = bench.clock.now()
    shard_book.move(bench.ledger, row["id"], S.INTENDED, S.CREATING, owner=job.owner, now=now, lease_until=now)
    return row


def _given_up(bench: Bench) -> tuple[Job, ShardRow]:
    """Bring a shard to `lost` whose owner fell silent in `creating`, and may still call."""
    job = bench.begin(["a", "b"], options=Options(create_timeout_s=100.0, absence_margin_s=100.0, lease_s=10.0))
    job.is_gone = lambda owner: False
    row = _creating(bench, job)
    _later(bench, job, 201.0)
    assert shard_book.row(bench.ledger, row["id"])["state"] == "lost"
    assert _orphans(bench) == ["watched"]
    return job, row


def test_batch_of_an_owner_that_fell_silent_is_watched_for(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    bench.executor = provider = bench.provider(duration_s=1_000_000.0)
    job, row = _given_up(bench)
    about = Shard(id=row["id"], run_id=job.run_id, n_requests=2, created_at=row["intended_at"])
    texts = request_book.contents(bench.ledger, request_book.pending(bench.ledger, job.run_id)).with_columns(
        custom_id="key", variant=None
    )
    provider.create(about, job.spec, provider.prepare(about, job.spec, texts))

    _later(bench, job)

    assert bench.executor.bill().is_empty()
    assert _orphans(bench) == ["canceled"]


def test_silent_owner_is_watched_for_only_as_long_as_its_call_may_come(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job, _ = _given_up(bench)

    _later(bench, job, 199.0)
    assert _orphans(bench) == ["watched"]
    _later(bench, job, 31.0)

    assert _orphans(bench) == ["absent"]


def test_owner_that_is_known_to_be_gone_is_not_watched_for(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job = bench.begin(["a"], options=Options(create_timeout_s=100.0, absence_margin_s=100.0))
    job.is_gone = lambda owner: True
    row = _creating(bench, job)

    _later(bench, job, 201.0)

    assert shard_book.row(bench.ledger, row["id"])["state"] == "lost"
    assert _orphans(bench) == []


# --- what a late batch answered -----------------------------------------------------------------------------------


class Working(Slow):
    """A provider that has answered so many requests of a late batch when it is canceled; the first by id."""

    n_done = 1

    def bill(self) -> pl.DataFrame:
        whole = [super().bill()]
        for batch_id in self._batch_ids():
            if self._about(batch_id)["canceled_at"] is not None:
                requests = pl.read_parquet(self.folder / batch_id / "requests.parquet").sort("custom_id")
                whole.append(requests.head(self.n_done).select(pl.lit(batch_id).alias("batch_id"), "key", "content"))
        return pl.concat(whole)

    def bill_usd(self) -> Decimal:
        lines = [json.dumps(answer_line("x", text, prompt_bytes=len(text))).encode() for text in self.bill()["content"]]
        return Decimal(self.read(lines).select(PRICES.cost_usd(self.read(lines))).to_series().sum() or 0)

    def _line(self, row: Mapping[str, Any], about: Mapping[str, Any]) -> bytes:
        ids = pl.read_parquet(self._folder_of(about) / "requests.parquet")["custom_id"].sort()
        done = row["custom_id"] in ids.head(self.n_done)
        return super()._line(row, {**about, "canceled_at": None} if done else about)

    def _folder_of(self, about: Mapping[str, Any]) -> Path:
        return next(
            self.folder / batch_id for batch_id in self._batch_ids() if self._about(batch_id)["shard"] == about["shard"]
        )


class Overtaken(Working):
    """The same, while whose create call is under way another process has the requests answered."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)
    _inside = False

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        if self._inside:
            return ScriptedExecutor.create(self, shard, spec, prepared)
        self._inside = True
        self.meanwhile()
        try:
            return ScriptedExecutor.create(self, shard, spec, prepared)
        finally:
            self._duration_s = 1_000_000.0


TEXTS = ["one", "two", "three"]
QUICK = Options(create_timeout_s=100.0, absence_margin_s=100.0, lease_s=10.0)


def _settled(bench: Bench) -> Decimal:
    rows = bench.ledger.sql(
        "SELECT sum(settled_usd) AS usd, count(*) FILTER (settled_usd IS NULL) AS n FROM reservation"
    )
    assert rows["n"].item() == 0
    return Decimal(rows["usd"].item())


def _bound(bench: Bench) -> Decimal:
    """Return what one shard of `TEXTS` reserves."""
    folder = bench.folder / "measured"
    folder.mkdir()
    other = Bench(folder=folder, in_memory=True)
    job = other.begin(TEXTS, prices=PRICES)
    planned = engine.next_shard(job)
    assert planned is not None
    row = engine.intend(job, planned)
    assert row is not None
    return Decimal(row["reserved_usd"] or 0)


def _overtaken(bench: Bench, *, budget_usd: Decimal | None = None) -> tuple[Job, Job]:
    """Make a job whose maker is stopped in its create call, and one that has the same answered meanwhile."""
    bench.executor = Overtaken(bench.folder / "provider", clock=bench.clock)
    job = bench.begin(TEXTS, prices=PRICES, options=QUICK, budget_usd=budget_usd)
    job.is_gone = lambda owner: False
    other = replace(job, owner="test/1/1/other")
    return job, other


def test_late_batch_answers_what_nobody_had_sent_again(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job, _ = _overtaken(bench)

    def given_up() -> None:
        now = bench.clock.now()
        (row,) = shard_book.all_open(bench.ledger)
        assert shard_book.take(bench.ledger, row, owner="another", now=now, lease_until=now, gone=row["owner"])
        tomorrow = now + timedelta(days=1)
        shard_book.release(
            bench.ledger, row["id"], S.CREATING, S.LOST, owner="another", now=now, reason="x", due_at=tomorrow
        )

    bench.executor.meanwhile = given_up
    engine.send(job)
    assert _orphans(bench) == ["canceled"]
    bench.executor._duration_s = 0.0
    engine.drive(job)

    assert bench.values(job, TEXTS) == [json.dumps({"answer": text}, separators=(",", ":")) for text in TEXTS]
    assert bench.executor.bill()["key"].n_unique() == bench.executor.bill().height == 3
    assert bench.ledger.sql("SELECT why, count(*) AS n FROM attempt GROUP BY why ORDER BY why").rows() == [
        ("first", 3),
        ("not_billed:canceled", 2),
    ]
    assert _settled(bench) == bench.executor.bill_usd()
    assert verify(bench.ledger).findings == ()


@pytest.mark.parametrize("n_done", [0, 1, 3])
def test_second_answers_of_a_late_batch_are_recorded_and_charged_and_change_nothing(
    tmp_path: Path, n_done: int
) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job, other = _overtaken(bench)
    bench.executor.meanwhile = lambda: engine.drive(other)
    bench.executor.n_done = n_done

    engine.drive(job)

    assert bench.values(job, TEXTS) == [json.dumps({"answer": text}, separators=(",", ":")) for text in TEXTS]
    assert bench.executor.bill().height == 3 + n_done
    assert _settled(bench) == bench.executor.bill_usd()
    late = bench.ledger.sql(
        "SELECT a.why, r.code, a.n FROM attempt a JOIN result r USING (shard, key) WHERE a.n > 1 ORDER BY r.code, a.key"
    )
    assert late.rows() == [("given_up", "canceled", 2)] * (3 - n_done) + [("given_up", "ok", 2)] * n_done
    assert bench.ledger.sql("SELECT DISTINCT state, attempts FROM request").rows() == [("answered", 2)]
    status = Status.of(bench.ledger, job.run_id)
    assert (status.n_late, status.n_given_up, status.cost_usd) == (3, 0, bench.executor.bill_usd())
    assert any("given up" in notice for notice in status.notices)
    assert verify(bench.ledger).findings == ()


def _silenced(bench: Bench, job: Job) -> datetime:
    """Let the maker of a shard be gone for good before its create call, and nobody know; return since when."""
    _creating(bench, job)
    bench.executor._inside = True
    return bench.clock.now()


def test_budget_is_kept_for_a_batch_that_may_still_come(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    bound = _bound(bench)
    job, other = _overtaken(bench, budget_usd=bound * 6 / 5)
    looked = []

    def meanwhile() -> None:
        for _ in range(3):  # uncertain, proven unsent, and nothing sent while the batch may come
            bench.clock.sleep(120.0)
            engine.drive(other, wait=False)
        status = Status.of(bench.ledger, job.run_id)
        looked.append((status.reserved_usd, status.n_given_up, bench.executor.bill().height))
        assert verify(bench.ledger).findings == ()

    bench.executor.meanwhile = meanwhile
    bench.executor.n_done = 3
    engine.drive(job)

    assert looked == [(bound, 1, 0)]
    assert bench.executor.bill().height == 3
    assert _settled(bench) == bench.executor.bill_usd() <= bound
    assert verify(bench.ledger).findings == ()


def test_budget_that_was_kept_is_free_again_when_no_batch_can_come_any_more(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job, other = _overtaken(bench, budget_usd=_bound(bench) * 6 / 5)
    now = _silenced(bench, job)

    engine.drive(other)

    assert bench.clock.now() - now > timedelta(seconds=400)  # its call may come 200 s after it was proven unsent
    assert _orphans(bench) == ["absent"]
    assert other.halted is None
    assert bench.values(job, TEXTS) == [json.dumps({"answer": text}, separators=(",", ":")) for text in TEXTS]
    assert _settled(bench) == bench.executor.bill_usd()
    assert verify(bench.ledger).findings == ()


def test_budget_that_is_kept_for_a_batch_of_another_account_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job, other = _overtaken(bench, budget_usd=_bound(bench) * 6 / 5)
    _silenced(bench, job)
    for _ in range(3):
        bench.clock.sleep(120.0)
        engine.drive(other, wait=False)
    assert _orphans(bench) == ["watched"]

    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(bench.executor, "account", lambda: "another")
        with pytest.raises(AccountMismatch):  # and not looked for in its list for ever
            engine.drive(other)
        assert bench.executor.bill().is_empty()

    engine.drive(other)
    assert _orphans(bench) == ["absent"]
    assert bench.values(job, TEXTS) == [json.dumps({"answer": text}, separators=(",", ":")) for text in TEXTS]
    reasons = bench.ledger.sql("SELECT DISTINCT n, why FROM attempt").rows()
    assert reasons == [(1, "first")]


def test_late_batch_is_unfinished_work_that_resume_all_takes_up(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    job, other = _overtaken(bench)
    seen = []

    def meanwhile() -> None:
        engine.drive(other)
        seen.append(run_book.unfinished(bench.ledger).rows())

    bench.executor.meanwhile = meanwhile
    engine.drive(job)

    assert seen == [[(job.run_id, True)]]
    assert run_book.unfinished(bench.ledger).is_empty()


def test_kill_anywhere_on_the_way_of_a_late_batch_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Ledger.transaction
    kill_at, passed = 0, 0

    def boundary() -> None:
        nonlocal passed
        passed += 1
        if passed == kill_at:
            raise Killed

    @contextlib.contextmanager
    def transaction(self: Ledger, purpose: str) -> Iterator[Transaction]:
        with plain(self, purpose) as tx:
            yield tx
            boundary()
        boundary()

    def cancel(self: Working, batch_id: str) -> None:
        boundary()
        Slow.cancel(self, batch_id)
        boundary()

    def story(name: str, at: int) -> tuple[list[Any], int]:
        """Let a late batch come, kill its maker at one boundary after the create call, and let another go on."""
        nonlocal kill_at, passed
        (tmp_path / name).mkdir()
        bench = Bench(folder=tmp_path / name, in_memory=True)
        job, other = _overtaken(bench)

        def meanwhile() -> None:
            nonlocal kill_at, passed
            engine.drive(other)
            kill_at, passed = at, 0

        kill_at = 0
        bench.executor.meanwhile = meanwhile
        with contextlib.suppress(Killed):
            engine.drive(job)
        n, kill_at = passed, 0
        bench.clock.sleep(60.0)
        engine.drive(replace(job, owner="test/1/1/next", is_gone=lambda owner: owner == job.owner))
        assert verify(bench.ledger).findings == ()
        cost = _settled(bench)
        assert cost == bench.executor.bill_usd()
        shards = bench.ledger.sql("SELECT state FROM shard ORDER BY state")["state"].to_list()
        whys = bench.ledger.sql("SELECT why, n, count(*) FROM attempt GROUP BY ALL ORDER BY ALL").rows()
        # A batch whose canceling was not written down has perhaps ended when that is looked at.
        assert _orphans(bench) in (["canceled"], ["uncanceled"])
        return [bench.values(job, TEXTS), cost, shards, whys], n

    monkeypatch.setattr(Ledger, "transaction", transaction)
    monkeypatch.setattr(Working, "cancel", cancel)
    undisturbed, n = story("whole", 0)
    assert n > 20
    for at in range(1, n + 1):
        told, _ = story(f"killed-{at}", at)
        assert told == undisturbed, f"killed at boundary {at} of {n}"


def test_second_answer_that_is_bad_is_not_asked_once_more(tmp_path: Path) -> None:
    def only_bad(value: Any) -> bool:
        return False

    bench = Bench(folder=tmp_path, in_memory=True, validator=text_validator(only_bad))
    job, other = _overtaken(bench)
    job.policy = other.policy = replace(job.policy, systemic_rate=None)
    bench.executor.meanwhile = lambda: engine.drive(other)
    bench.executor.n_done = 3
    engine.drive(job)
    engine.drive(replace(job, owner="test/1/1/next"))  # judges what was recorded late

    assert bench.ledger.sql("SELECT DISTINCT state FROM request")["state"].to_list() == ["answered"]
    times = Counter(bench.executor.bill()["key"])
    assert sorted(times.values()) == [3, 3, 3]  # asked, once more changed, and late
    assert verify(bench.ledger).findings == ()
