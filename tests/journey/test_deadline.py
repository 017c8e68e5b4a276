"""A deadline with batches that are slow, stuck and slow to cancel: in time or waiting, and never paid for twice unless
told. Time is the emulated provider's: a sleep moves its clock, so hours pass at once and each moment is exact."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from emulator import BatchFault, Emulator, Faults, HttpFault
from emulator.handle import Charge
from journey.clouds import MODELS, PRICES, PROVIDERS, Cloud, owed_usd
from journey.harness import Stop
from lotwise.call import Call, prepare
from lotwise.ledger.verify import verify
from lotwise.plan import json_bytes
from lotwise.run import Run
from lotwise.status import Status

N = 40
HOUR = 3_600.0


@pytest.fixture(scope="module")
def still(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("still"), speed=0.0) as emulator:
        yield emulator


class ProviderClock:
    """The emulated provider's own clock, which stands still until somebody sleeps."""

    def __init__(self, emulator: Emulator) -> None:
        self._emulator = emulator

    def now(self) -> datetime:
        return datetime.fromtimestamp(self._emulator.now(), UTC)

    def sleep(self, seconds: float) -> None:
        self._emulator.advance(seconds)


class Office:
    """One analyst at an emulated provider with an account, a ledger and a deadline two hours from now."""

    def __init__(self, folder: Path, emulator: Emulator, provider: str) -> None:
        self.ledger_path, self.emulator, self.provider = folder / "ledger", emulator, provider
        self.api_key = f"sk-{provider}-{folder.name}"
        self.clock = ProviderClock(emulator)
        self.deadline = self.clock.now() + timedelta(hours=2)
        self.frame = pl.DataFrame({"text": [f"row {i}" for i in range(N)]})

    def call(self, options: lotwise.Options | None = None, **arguments: Any) -> Call:
        """Return the call for `N` rows in two shards."""
        return prepare(
            self.frame,
            "{text}",
            model=MODELS[self.provider],
            ledger=self.ledger_path,
            progress=False,
            prices=PRICES,
            poll_s=300,
            options=options or lotwise.Options(shard_rows=20),
            **{"deadline": self.deadline, **arguments},
        )

    def begin(self, options: lotwise.Options | None = None, **arguments: Any) -> Run:
        """Begin a run of the call."""
        return Run.begin(self.call(options, **arguments), self.frame, clock=self.clock)

    def bill(self) -> list[Charge]:
        return self.emulator.bill(self.api_key)

    def charges(self) -> Counter[str]:
        """Return the charges of each request body, in batches and by synchronous calls."""
        return Counter(charge.digest for charge in self.bill())

    def assert_answered(self, run: Run) -> Status:
        """Check that each row is answered and the ledger clean, and return where the run stands."""
        assert run.collect(partial=True)["llm_state"].to_list() == ["succeeded"] * N
        report = verify(run.ledger)
        assert report.clean, report.findings
        return run.status()


@pytest.fixture(params=PROVIDERS)
def office(request: pytest.FixtureRequest, tmp_path: Path, still: Emulator, monkeypatch: pytest.MonkeyPatch) -> Office:
    still.set_faults(**Faults().to_json())
    made = Office(tmp_path, still, request.param)
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.setenv(name, made.api_key)
    monkeypatch.setenv("OPENAI_BASE_URL", still.openai_url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", still.anthropic_url)
    return made


def test_batches_that_make_it_are_left_alone(office: Office) -> None:
    office.emulator.set_faults(batch_s=1 * HOUR)

    run = office.begin().wait()

    assert office.assert_answered(run).answered_by == {}
    assert {charge.tier for charge in office.bill()} == {"batch"}


def test_deadline_that_has_passed_is_no_matter_where_all_is_answered(office: Office) -> None:
    office.begin(deadline=None).wait()

    run = office.begin(deadline=office.clock.now() - timedelta(days=1)).wait()

    assert office.assert_answered(run).notices == ()


def test_slow_batches_are_canceled_and_the_rest_is_asked_interactively_in_time(office: Office) -> None:
    office.emulator.set_faults(batch_s=4 * HOUR, cancel_s=300.0)

    run = office.begin().wait()

    tiers = Counter(charge.tier for charge in office.bill())
    status = office.assert_answered(run)
    assert office.clock.now() <= office.deadline
    assert status.answered_by == {"batch": tiers["batch"], "interactive": tiers["sync"]}
    assert tiers["batch"] == 18  # a batch of 20 in four hours: nine of each are done when the work turns
    assert len(office.charges()) == N
    assert set(office.charges().values()) == {1}
    assert status.cost_usd == owed_usd(office.bill())
    assert status.n_twice == 0


def test_rows_wait_for_a_batch_that_is_slow_to_cancel(office: Office) -> None:
    office.emulator.set_faults(batch_s=20 * HOUR, cancel_s=1_200.0)

    run = office.begin().wait()

    office.assert_answered(run)
    assert office.clock.now() > office.deadline
    assert set(office.charges().values()) == {1}
    assert len(office.charges()) == N


def test_stuck_batch_that_never_ends_by_itself_is_canceled_in_time(office: Office) -> None:
    office.emulator.set_faults(batch_s=1.0, batches=(BatchFault(kind="stall", value=0.5),), cancel_s=300.0)

    run = office.begin().wait()

    office.assert_answered(run)
    assert office.clock.now() <= office.deadline
    assert set(office.charges().values()) == {1}


def test_pay_twice_answers_in_time_and_states_and_reserves_what_may_be_charged_again(office: Office) -> None:
    office.emulator.set_faults(batch_s=4 * HOUR, cancel_s=2 * HOUR)
    options = lotwise.Options(shard_rows=20, deadline_policy="pay_twice")

    run = office.begin(options).wait()

    status = office.assert_answered(run)
    assert office.clock.now() <= office.deadline
    assert status.n_twice == N
    assert status.shards["canceling"] == N // 20
    assert status.cost_usd is not None
    assert status.reserved_usd is not None
    assert owed_usd(office.bill()) <= status.cost_usd + status.reserved_usd
    assert "may be paid for twice" in str(status)

    office.emulator.advance(3 * HOUR)
    later = Run.resume(run.ledger, run.id, progress=False, poll_s=300, clock=office.clock).wait()
    settled = office.assert_answered(later)
    assert settled.shards == {"collected": settled.shards["collected"]}
    assert settled.reserved_usd == 0
    assert settled.cost_usd == owed_usd(office.bill())
    assert len(office.charges()) == N
    assert set(office.charges().values()) == {1, 2}
    assert Counter(office.charges().values())[2] == Counter(charge.tier for charge in office.bill())["batch"]


def test_batch_stays_where_the_budget_does_not_hold_its_rows_interactively(office: Office) -> None:
    office.emulator.set_faults(batch_s=4 * HOUR, usage="worst")
    call = office.call()
    sizes = call.executor.sizes(call.spec, json_bytes(office.frame["text"]))
    assert call.prices is not None
    bound = call.prices.upper_bound(input_bytes=int(sizes.sum()), output_tokens=call.spec.max_tokens * N, requests=N)

    run = office.begin(budget=bound * Decimal("1.2")).wait()  # all as batches, and less than a shard more

    status = office.assert_answered(run)
    assert owed_usd(office.bill()) <= bound * Decimal("1.2")
    assert {charge.tier for charge in office.bill()} == {"batch"}
    assert sum("stays a batch" in notice for notice in status.notices) == N // 20


def test_deadline_of_a_run_is_kept_by_the_process_that_takes_it_up(office: Office) -> None:
    office.emulator.set_faults(batch_s=4 * HOUR, cancel_s=300.0)
    run = office.begin().advance()
    office.emulator.advance(1 * HOUR)

    later = Run.resume(run.ledger, run.id, progress=False, poll_s=300, clock=office.clock).wait()

    assert office.assert_answered(later).answered_by.keys() == {"batch", "interactive"}
    assert office.clock.now() <= office.deadline
    assert set(office.charges().values()) == {1}


def test_provider_that_cannot_be_reached_at_the_turn_is_asked_again(office: Office) -> None:
    cancel = f"{office.provider}.batches.cancel"
    office.emulator.set_faults(
        batch_s=4 * HOUR, cancel_s=60.0, http=(HttpFault(endpoint=cancel, action="reject", status=503, times=6),)
    )

    run = office.begin().wait()

    office.assert_answered(run)
    assert set(office.charges().values()) == {1}


@pytest.mark.parametrize("provider", PROVIDERS)
def test_kill_around_the_turn_charges_nothing_twice_but_what_is_told_as_uncertain(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(batch_s=8.0, cancel_s=0.2)
    chance = random.Random(11)
    cloud = _cloud(tmp_path, emulator, provider, arguments={"deadline": "3s"}, options={"deadline_reserve_s": 2.0})
    ended = cloud.start().kill_after(chance.uniform(1.2, 2.2))
    for _ in range(2):
        ended = cloud.start().kill_after(chance.uniform(0.3, 2.0))
    if ended.frame is None:
        ended = cloud.call()

    assert ended.rows["llm_state"].to_list() == ["succeeded"] * N
    charges = Counter(charge.digest for charge in cloud.bill())
    again = cloud.sql("SELECT key FROM attempt WHERE why = 'uncertain'").height
    assert len(charges) == N
    assert sum(charges.values()) <= N + again
    cloud.assert_clean()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_what_an_interactive_run_left_behind_is_settled_by_a_batch_run_of_the_same_work(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    cloud = _cloud(tmp_path, emulator, provider)
    killed = cloud.call(
        stop=Stop(at="after commit: creating to submitted"), arguments={**cloud.arguments, "tier": "interactive"}
    )
    assert killed.signal is not None

    assert cloud.call().rows["llm_state"].to_list() == ["succeeded"] * N
    assert cloud.sql("SELECT DISTINCT tier FROM shard ORDER BY tier")["tier"].to_list() == ["batch", "interactive"]
    cloud.assert_clean()


def _cloud(tmp_path: Path, emulator: Emulator, provider: str, **changes: Any) -> Cloud:
    return Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": [f"row {i}" for i in range(N)]}),
        emulator,
        provider,
        arguments={"prices": PRICES, **changes.get("arguments", {})},
        options={"shard_rows": 10, **changes.get("options", {})},
    )
