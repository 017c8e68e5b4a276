"""A create whose answer is lost, an owner that stops, a list that lags: one charge a request, or `uncertain`."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from emulator import BatchFault, Emulator, HttpFault
from journey.clouds import CREATE, LIST, PRICES, PROVIDERS, Cloud
from journey.harness import until
from journey.worker import Stop

TEXTS = [f"row {i}" for i in range(8)]
FRAME = pl.DataFrame({"text": TEXTS})
providers = pytest.mark.parametrize("provider", PROVIDERS)


def assert_done(here: Cloud, rows: pl.DataFrame, n_batches: int) -> None:
    assert rows["answer"].to_list() == TEXTS
    here.assert_each_charged_once(len(TEXTS))
    assert len(here.batches()) == n_batches
    here.assert_clean()


def notes(here: Cloud) -> Counter[str | None]:
    """Return how often shards moved with each note."""
    return Counter(here.sql("SELECT note FROM event")["note"].to_list())


def lost(n: int, action: str, **more: object) -> HttpFault:
    """Lose the answer to the n-th create, after it was accepted."""
    return HttpFault(endpoint=CREATE, action=action, skip=n, times=1, **more)  # type: ignore[arg-type]


@providers
def test_a_create_whose_answer_is_lost_is_adopted(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(
        http=(
            lost(0, "reply", status=500),
            lost(1, "reply", status=504),
            lost(2, "reset"),
            lost(3, "drop", seconds=3.0),
        )
    )
    here = Cloud(
        tmp_path / "desk",
        FRAME,
        emulator,
        provider,
        options={"shard_rows": 2, "create_timeout_s": 1.5, "absence_margin_s": 900.0},
    )
    assert_done(here, here.call().rows, n_batches=4)
    assert notes(here)["adopted"] == 4


@providers
def test_a_second_process_waits_while_the_first_one_sends(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    uploaded = "openai.files.create" if provider == "openai" else CREATE
    emulator.set_faults(http=(HttpFault(endpoint=uploaded, action="delay", seconds=2.0, times=1),))
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, options={"create_timeout_s": 30.0, "lease_s": 30.0})
    first = here.start()
    until(lambda: first.passed("before prepare"), "the first process to send")
    second = here.start()
    frames = [first.wait().rows, second.wait().rows]
    assert_done(here, frames[0], n_batches=1)
    assert_frame_equal(*frames)


@pytest.mark.parametrize(
    ("provider", "at"),
    [
        pytest.param("openai", "after prepare", id="openai, after the upload"),
        pytest.param("anthropic", "after commit: intend", id="anthropic, before it is encoded"),
        pytest.param("openai", "after commit: intend", id="openai, before the upload", marks=pytest.mark.soak),
        pytest.param("anthropic", "after prepare", id="anthropic, after it is encoded", marks=pytest.mark.soak),
    ],
)
def test_an_owner_stopped_with_an_intent_finds_it_taken_over(
    tmp_path: Path, emulator: Emulator, provider: str, at: str
) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
    owner = here.start(Stop(at=at, how="STOP"))
    owner.wait_stopped()
    other = here.call().rows
    owner.go_on()
    assert_frame_equal(owner.wait().rows, other)
    assert_done(here, other, n_batches=1)
    assert here.shards() == {"lost": 1, "collected": 1}


@providers
def test_an_owner_stopped_before_its_create_cancels_what_it_makes_too_late(tmp_path: Path, provider: str) -> None:
    # The second batch is the late one; it takes so long that it is canceled before it answers anything.
    slow = BatchFault(kind="duration", value=100_000.0, batches=(1,))
    with Emulator(tmp_path / "provider", batches=(slow,)) as emulator:
        here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
        owner = here.start(Stop(at="before create", how="STOP"))
        owner.wait_stopped()
        other = here.call().rows
        owner.go_on()
        # The ledger counts that each was sent once more; nothing else is another.
        assert_frame_equal(owner.wait().rows.drop("llm_attempts"), other.drop("llm_attempts"))
        assert_done(here, other, n_batches=2)
        assert notes(here)["absent_from_list"] == 1
        assert here.shards() == {"collected": 2}
        until(lambda: here.batches()[1]["stage"] not in ("in_progress", "canceling", "cancelling"), "the cancel")


LATE_STEPS = (
    "before commit: reopen shard",
    "after commit: reopen shard",
    "before cancel",
    "after cancel",
    "before commit: submitted to canceling",
    "after commit: submitted to canceling",
    "during fetch",
    "before commit: record",
    "after commit: record",
    "before commit: finish",
)
"""The way of a late batch from the time that it is known. Each process is killed at its first arrival there."""


@providers
def test_a_late_batch_is_collected_and_charged_whatever_is_killed_on_the_way(tmp_path: Path, provider: str) -> None:
    # The second batch is the late one; it comes to a halt when half of it is answered, and takes an hour to cancel.
    halted = BatchFault(kind="stall", value=0.5, batches=(1,))
    slow = BatchFault(kind="slow_cancel", value=3_600.0, batches=(1,))
    with Emulator(tmp_path / "provider", batches=(halted, slow)) as emulator:
        here = Cloud(tmp_path / "desk", FRAME, emulator, provider, arguments={"prices": PRICES, "budget": "1"})
        noted = Stop(at="after commit: note orphan")
        owner = here.start(Stop(at="before create", how="STOP", then=noted))
        owner.wait_stopped()
        other = here.call().rows
        owner.go_on()
        assert owner.wait().signal == signal.SIGKILL
        until(
            lambda: sum(row["billed"] for row in here.batches()[1]["rows"].values()) == 4, "half of it to be answered"
        )
        for step in LATE_STEPS:
            ended = here.call(Stop(at=step))
            assert ended.signal == signal.SIGKILL, (step, ended.error, ended.message, ended.boundaries)
            if step == "after commit: submitted to canceling":
                emulator.advance(3_600.0)

        rows = here.call().rows

        assert_frame_equal(rows.drop("llm_attempts"), other.drop("llm_attempts"))
        assert here.shards() == {"collected": 2}
        assert len(here.bill()) == len(TEXTS) + 4
        charged = here.sql("SELECT sum(cost_usd)::VARCHAR AS usd FROM result")["usd"].item()
        settled = here.sql("SELECT sum(settled_usd)::VARCHAR AS usd FROM reservation")["usd"].item()
        assert Decimal(charged) == Decimal(settled) == here.bill_usd()
        why = here.sql("SELECT why, count(*) AS n FROM attempt GROUP BY why ORDER BY why").rows()
        assert why == [("first", 8), ("given_up", 8)]
        here.assert_clean()


@providers
def test_a_list_that_lags_leaves_a_shard_uncertain_and_is_asked_again(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(list_lag_s=60.0, http=(lost(0, "reply", status=500),))
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, options={"absence_margin_s": 900.0})
    work = here.start()
    listed = "after list"
    until(lambda: work.passed(listed) and here.shards() == {"uncertain": 1}, "the list to be read")
    assert len(here.batches()) == 1
    emulator.advance(61)
    assert_done(here, work.wait().rows, n_batches=1)


@providers
def test_a_shard_is_not_taken_for_unsent_under_another_key(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
    here.call(Stop(at="after create"))
    stranger = here.call(env=here.env("sk-another-account"))
    assert stranger.error == "AccountMismatch"
    assert "sk-another-account" not in stranger.message
    assert here.api_key not in stranger.message
    assert here.shards() == {"uncertain": 1}
    assert emulator.bill("sk-another-account") == []
    assert_done(here, here.call().rows, n_batches=1)


@providers
def test_a_batch_of_another_account_is_told_as_that_and_kept(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
    here.call(Stop(at="after commit: creating to submitted"))
    account = here.sql("SELECT account FROM shard")["account"].item()
    stranger = here.call(env=here.env("sk-another-account"))
    assert stranger.error == "AccountMismatch"
    assert account in stranger.message
    assert here.shards() == {"submitted": 1}
    assert here.sql("SELECT DISTINCT state FROM request")["state"].to_list() == ["submitted"]
    assert emulator.bill("sk-another-account") == []
    assert_done(here, here.call().rows, n_batches=1)


@pytest.mark.parametrize(
    ("provider", "skew_s"),
    [
        pytest.param("openai", 600.0, id="openai, ahead"),
        pytest.param("anthropic", -600.0, id="anthropic, behind"),
        pytest.param("openai", -600.0, id="openai, behind", marks=pytest.mark.soak),
        pytest.param("anthropic", 600.0, id="anthropic, ahead", marks=pytest.mark.soak),
    ],
)
def test_a_provider_clock_ten_minutes_off_hides_no_batch(
    tmp_path: Path, emulator: Emulator, provider: str, skew_s: float
) -> None:
    emulator.set_faults(clock_skew_s=skew_s, http=(lost(0, "reset"),))
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, options={"absence_margin_s": 900.0})
    assert_done(here, here.call().rows, n_batches=1)
    assert notes(here)["adopted"] == 1


@providers
def test_a_list_that_cannot_be_read_proves_nothing(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    unread: Callable[[int], HttpFault] = lambda times: HttpFault(  # noqa: E731
        endpoint=LIST, action="reject", status=503, skip=1, times=times
    )
    emulator.set_faults(http=(lost(0, "reply", status=500), unread(4)))
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
    assert_done(here, here.call().rows, n_batches=1)
