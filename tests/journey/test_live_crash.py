"""Kills of runs at synchronous endpoints, which cannot be asked what they did: at most what was in flight is uncertain.

The emulator's bill is the judge. A request is charged twice only if the ledger says beforehand that it may be, and all
that is charged twice costs no more than the run says.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from emulator import Emulator, HttpFault, RowFault
from journey.clouds import MODELS, PRICES, Cloud
from journey.harness import until
from journey.worker import Stop
from lotwise.status import Status

N = 300
ANSWERED = 150
IN_FLIGHT = 64
TEXTS = [f"row {i} of some" for i in range(N)]
CALL = {"openai": "openai.chat.create", "anthropic": "anthropic.messages.create", "online": "openai.chat.create"}
providers = pytest.mark.parametrize("provider", CALL)


def desk(tmp_path: Path, emulator: Emulator, provider: str, **options: object) -> Cloud:
    emulator.set_faults(models=tuple(model.partition(":")[2] for model in MODELS.values()))
    return Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": TEXTS}),
        emulator,
        provider,
        arguments={"tier": "interactive", "prices": PRICES, "budget": "5"},
        options={"executor_options": {"max_concurrency": IN_FLIGHT}, **options},
    )


def status(here: Cloud) -> Status:
    run = here.sql("SELECT id FROM run ORDER BY created_at DESC LIMIT 1")["id"].item()
    return Status.of(here.ledger, run, paid=True)


def assert_bill_is_within_what_was_told(here: Cloud) -> Status:
    """Check a finished run's charges against what its ledger says of them."""
    told, charges = status(here), here.bill()
    n_twice = len(charges) - len({charge.key for charge in charges})
    assert n_twice <= told.n_uncertain <= IN_FLIGHT
    asked_again = here.sql("SELECT count(*) AS n FROM attempt WHERE why = 'uncertain'")["n"].item()
    held = here.sql("SELECT count(*) AS n FROM request WHERE reason = 'uncertain'")["n"].item()
    assert told.n_uncertain == asked_again + held
    assert told.cost_usd is not None
    assert told.uncertain_usd is not None
    assert (told.uncertain_usd > 0) == (told.n_uncertain > 0)
    assert here.bill_usd() <= told.cost_usd + told.uncertain_usd <= Decimal(5)
    here.assert_clean()
    return told


def slow_then_silent(provider: str, answered: int) -> tuple[HttpFault, ...]:
    """Answer so many calls after half a second each, so that more at once bring more; then charge and tell nothing."""
    call = CALL[provider]
    return (
        HttpFault(endpoint=call, action="delay_reply", seconds=0.5, times=answered),
        HttpFault(endpoint=call, action="delay_reply", skip=answered),
    )


def kill_when_all_wait(here: Cloud) -> int:
    """Start the call, kill it when its provider hears no more of it, and return the number of charges until then."""
    work = here.start()
    last, since = 0, time.monotonic()

    def silent() -> bool:
        nonlocal last, since
        work.assert_alive()
        n = len(here.bill())
        if n != last:
            last, since = n, time.monotonic()
        return n > ANSWERED and time.monotonic() - since > 2

    until(silent, "all calls in flight to wait")
    work.kill()
    here.emulator.set_faults(http=())
    return last


@providers
def test_kill_with_64_in_flight_leaves_at_most_64_uncertain(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(http=slow_then_silent(provider, ANSWERED))
    here = desk(tmp_path, emulator, provider)
    in_flight = kill_when_all_wait(here) - ANSWERED
    assert in_flight > IN_FLIGHT // 2
    rows = here.call().rows
    assert rows["answer"].to_list() == TEXTS
    assert set(rows["llm_state"]) == {"succeeded"}
    told = assert_bill_is_within_what_was_told(here)
    assert len(here.bill()) == N + in_flight  # all that was in flight was charged twice: the worst that can be
    assert told.n_uncertain == IN_FLIGHT
    assert "64 attempts may have been charged with no answer seen" in str(told)
    whys = here.sql("SELECT why, count(*) AS n FROM attempt WHERE n > 1 GROUP BY why")
    assert dict(whys.iter_rows()) == {"uncertain": IN_FLIGHT, "not_billed:canceled": N - ANSWERED - IN_FLIGHT}


STOPS = (
    ("openai", Stop(at="during answer", nth=3)),
    ("anthropic", Stop(at="during answer", nth=3)),
    # The steps of the ledger are the same whoever answers.
    ("online", Stop(at="during answer", nth=3)),
    ("online", Stop(at="before commit: record", nth=2)),
    ("online", Stop(at="after commit: record", nth=3)),
    ("online", Stop(at="before commit: settle", nth=2)),
    ("online", Stop(at="after commit: settle", nth=4)),
)


@pytest.mark.parametrize(("provider", "stop"), STOPS, ids=lambda part: getattr(part, "at", part))
def test_kill_at_each_step_keeps_what_is_written_down(
    tmp_path: Path, emulator: Emulator, provider: str, stop: Stop
) -> None:
    emulator.set_faults(http=(HttpFault(endpoint=CALL[provider], action="delay_reply", seconds=0.05),))
    here = desk(tmp_path, emulator, provider)
    assert here.call(stop).signal == signal.SIGKILL
    rows = here.call().rows
    assert rows["answer"].to_list() == TEXTS
    assert_bill_is_within_what_was_told(here)


@pytest.mark.parametrize(
    "provider", ["online", *(pytest.param(p, marks=pytest.mark.soak) for p in ("openai", "anthropic"))]
)
def test_what_is_held_is_charged_once_and_says_so(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(http=slow_then_silent(provider, ANSWERED))
    here = desk(tmp_path, emulator, provider, on_uncertain="hold")
    kill_when_all_wait(here)
    rows = here.call().rows
    held = rows.filter(llm_state="dead_lettered")
    assert held.height == IN_FLIGHT
    assert set(held["llm_error"]) == {"uncertain"}
    assert rows.filter(llm_state="succeeded").height == N - IN_FLIGHT
    charges = Counter(charge.key for charge in here.bill())
    assert set(charges.values()) == {1}
    assert assert_bill_is_within_what_was_told(here).n_uncertain == IN_FLIGHT


@pytest.mark.parametrize(
    ("said", "held", "twice"),
    [
        pytest.param({}, IN_FLIGHT, 0, id="nothing is said: as it was begun"),
        pytest.param({"on_uncertain": "resend"}, 0, IN_FLIGHT, id="the default is said"),
    ],
)
def test_run_is_taken_up_with_the_options_that_it_was_begun_with(
    tmp_path: Path, emulator: Emulator, said: dict[str, str], held: int, twice: int
) -> None:
    emulator.set_faults(http=slow_then_silent("online", ANSWERED))
    here = desk(tmp_path, emulator, "online", on_uncertain="hold")
    kill_when_all_wait(here)

    here.call(resume=here.sql("SELECT id FROM run")["id"].item(), options=said)

    ended = here.sql("SELECT count(*) AS n FROM request WHERE reason = 'uncertain' AND state = 'dead_lettered'")
    assert ended["n"].item() == held
    assert here.sql("SELECT count(*) AS n FROM attempt WHERE why = 'uncertain'")["n"].item() == twice
    here.assert_clean()


def test_refused_and_over_long_rows_say_so_and_the_others_finish(tmp_path: Path, emulator: Emulator) -> None:
    emulator.set_faults(
        rows=(RowFault(kind="refused", marker="row 17 "), RowFault(kind="bad_request", marker="row 101 "))
    )
    here = desk(tmp_path, emulator, "online")
    rows = here.call().rows.with_row_index()
    other = rows.filter(pl.col("llm_state") != "succeeded")
    assert other.select("index", pl.col("llm_state").cast(pl.String), "llm_error").rows() == [
        (17, "refused", "refused"),
        (101, "dead_lettered", "bad_request: invalid_request_error"),
    ]
    assert assert_bill_is_within_what_was_told(here).n_uncertain == 0
    assert set(here.sql("SELECT faults FROM request WHERE state = 'answered'")["faults"]) == {1}
    assert here.sql("SELECT sum(resends) AS n FROM request")["n"].item() == 0
