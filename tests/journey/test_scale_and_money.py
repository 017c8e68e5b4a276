"""Large work in bounded memory, a kill in the middle of it, and money that is counted as the provider counts it."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from emulator import Emulator, HttpFault
from journey.clouds import MODELS, PROVIDERS, Cloud
from journey.harness import until
from lotwise.errors import BatchUnsupported, PriceUnknown, UnsupportedParameter

TEXTS = [f"row {i}" for i in range(8)]
FRAME = pl.DataFrame({"text": TEXTS})
ASK = {"openai": "openai.chat.create", "anthropic": "anthropic.messages.create"}
PRICES = {"input_mtok": "3", "output_mtok": "15", "cache_read_mtok": "0.3"}
providers = pytest.mark.parametrize("provider", PROVIDERS)


def connect(here: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in here.env(here.api_key).items():
        monkeypatch.setenv(name, value)


@providers
def test_a_run_killed_at_sixty_percent_keeps_sixty_percent(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    n, kept_at_least, window = 50, 30, 4
    emulator.set_faults(http=(HttpFault(endpoint=ASK[provider], action="delay", seconds=0.05),))
    here = Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": [f"row {i}" for i in range(n)]}),
        emulator,
        provider,
        arguments={"tier": "interactive"},
        options={"executor_options": {"max_concurrency": window}},
    )
    work = here.start()
    # Each settled list holds an answer or more, and is written down before the next is taken.
    until(lambda: work.count("after commit: settle") >= kept_at_least // 2 and settled(here) >= kept_at_least, "60 %")
    work.kill()
    kept = here.sql("SELECT key FROM validation WHERE ok")["key"]
    assert kept_at_least <= kept.len() < n
    # What is in flight is bounded, and so is what is answered and not written down.
    assert len(here.bill()) <= kept.len() + 2 * window

    rows = here.call().rows
    assert rows["answer"].to_list() == here.frame["text"].to_list()
    assert n <= len(here.bill()) <= n + 2 * window
    assert not set(here.sql("SELECT key FROM attempt WHERE n > 1")["key"]) & set(kept)
    here.assert_clean()


def settled(here: Cloud) -> int:
    return int(here.sql("SELECT count(*) AS n FROM validation WHERE ok")["n"].item())


@providers
def test_cached_tokens_cost_their_own_price_and_equal_rows_count_once(
    tmp_path: Path, emulator: Emulator, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    emulator.set_faults(cached_fraction=0.6)
    texts = ["short", "a " + "much " * 200 + "longer one", "short"]
    here = Cloud(tmp_path / "desk", pl.DataFrame({"text": texts}), emulator, provider, arguments={"prices": PRICES})
    connect(here, monkeypatch)
    shown = lotwise.plan(here.frame, "{text}", model=MODELS[provider], ledger=here.ledger_path, prices=PRICES)
    assert here.call().rows["answer"].to_list() == texts

    charges = here.bill()
    assert len(charges) == 2
    owed = sum(
        (c.input_tokens - c.cached_tokens) * Decimal("1.5")
        + c.cached_tokens * Decimal("0.15")
        + c.output_tokens * Decimal("7.5")
        for c in charges
    ) / Decimal(1_000_000)
    status = lotwise.open_ledger(here.ledger_path).status(here.sql("SELECT id FROM run")["id"].item())
    assert status.cost_usd is not None
    assert owed <= status.cost_usd < owed + Decimal("0.00000001")
    # By tokens: the mean of the two requests' own rates would give the short one as much weight.
    share = sum(c.cached_tokens for c in charges) / sum(c.input_tokens for c in charges)
    assert sum(c.cached_tokens / c.input_tokens for c in charges) / 2 != pytest.approx(share, abs=1e-6)
    assert status.cached_share == pytest.approx(share, abs=1e-9)
    assert f"{share:.1%}".replace("%", " %") in str(status)

    assert shown.cost_low_usd is not None
    assert shown.cost_high_usd is not None
    assert shown.cost_low_usd < shown.cost_high_usd
    assert owed <= shown.cost_high_usd
    assert f"${shown.cost_low_usd:.4f} to ${shown.cost_high_usd:.4f}" in str(shown)


def test_a_model_without_a_known_price_has_an_unknown_cost(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, "openai")
    connect(here, monkeypatch)
    emulator.set_faults(models=("of-our-own",))
    given: dict[str, Any] = {"model": "openai:of-our-own", "ledger": here.ledger_path}
    shown = lotwise.plan(FRAME, "{text}", **given)
    assert (shown.cost_low_usd, shown.cost_high_usd) == (None, None)
    with pytest.raises(PriceUnknown):
        lotwise.map(FRAME, "{text}", budget=5, **given)
    assert not here.ledger_path.exists()

    assert here.call(model="openai:of-our-own").rows["answer"].to_list() == TEXTS
    status = lotwise.open_ledger(here.ledger_path).status(here.sql("SELECT id FROM run")["id"].item())
    assert status.cost_usd is None
    assert "unknown" in str(status)


LACKING: dict[str, tuple[str, dict[str, Any]]] = {
    "openai": ("stream", {"params": {"stream": True}}),
    "anthropic": ("stream", {"params": {"stream": True}}),
}


@providers
def test_what_a_provider_lacks_in_batches_is_told_before_anything_is_sent(
    tmp_path: Path, emulator: Emulator, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
    connect(here, monkeypatch)
    name, arguments = LACKING[provider]
    given: dict[str, Any] = {"model": MODELS[provider], "ledger": here.ledger_path, **arguments}
    for call in (lotwise.plan, lotwise.map, lotwise.submit):
        with pytest.raises(UnsupportedParameter, match=name):
            call(FRAME, "{text}", **given)
    assert not here.ledger_path.exists()
    assert here.batches() == []


def test_a_gateway_without_batches_is_told_before_anything_is_sent(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, "openai")
    connect(here, monkeypatch)
    emulator.set_faults(http=(HttpFault(endpoint="batches.list", action="reject", status=404),))
    with pytest.raises(BatchUnsupported):
        lotwise.map(FRAME, "{text}", model=MODELS["openai"], ledger=here.ledger_path)
    assert not here.ledger_path.exists()


@pytest.mark.parametrize(("budget", "told"), [("1000", ""), ("0.01", "may cost"), ("0.0000001", "is likely to cost")])
def test_plan_says_where_the_budget_is_too_small(tmp_path: Path, budget: str, told: str) -> None:
    plan = lotwise.plan(
        FRAME, "Say it again: {text}", model="scripted:echo", ledger=tmp_path, budget=budget, prices=PRICES
    )
    notes = [note for note in plan.warnings if "budget" in note]
    assert len(notes) == bool(told)
    assert all(told in note and note in str(plan) for note in notes)
