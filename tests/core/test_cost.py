"""Costs: exact to the last decimal of the ledger, unknown where a count is, and never above what was reserved."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lotwise
from lotwise.cost import Prices
from lotwise.errors import BadPrices, PriceUnknown
from lotwise.prices import known

PLAIN = Prices(
    input_mtok=Decimal("1.25"),
    output_mtok=Decimal(10),
    cache_read_mtok=Decimal("0.125"),
    cache_write_mtok=Decimal("1.5625"),
    source="a test",
)


def _tokens(*rows: tuple[int | None, int | None, int | None, int | None]) -> pl.DataFrame:
    names = ["input_tokens", "cache_read_tokens", "cache_write_tokens", "output_tokens"]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.Int64), orient="row")


COSTS: dict[str, tuple[tuple[int | None, int | None, int | None, int | None], str | None]] = {
    "plain": ((1_000_000, 0, 0, 1_000_000), "11.25"),
    "one token each": ((1, 0, 0, 1), "0.00001125"),
    "cached input costs its own price, once": ((1_000_000, 400_000, 100_000, 0), "0.83125"),
    "no cache counts": ((1_000_000, None, None, 0), "1.25"),
    "nothing": ((0, 0, 0, 0), "0"),
    "a fraction of the last decimal is rounded up": ((0, 1, 0, 0), "0.000000125"),
    "more cached than sent is not negative": ((10, 20, 0, 0), "0.0000025"),
    "a large bill is exact": ((9_000_000_000, 0, 0, 9_000_000_000), "101250"),
    "input unknown": ((None, 0, 0, 5), None),
    "output unknown": ((5, 0, 0, None), None),
}


@pytest.mark.parametrize(("tokens", "cost"), COSTS.values(), ids=COSTS.keys())
def test_cost_of(tokens: tuple[int | None, int | None, int | None, int | None], cost: str | None) -> None:
    (found,) = PLAIN.cost_usd(_tokens(tokens))

    assert found == (None if cost is None else Decimal(cost))


def test_cost_keeps_the_ledgers_type_also_for_no_rows() -> None:
    costs = PLAIN.cost_usd(_tokens())

    assert costs.dtype == pl.Decimal(18, 9)
    assert costs.len() == 0


_price = st.decimals(0, 200, places=6)
_priced = st.builds(
    Prices,
    input_mtok=_price,
    output_mtok=_price,
    cache_read_mtok=_price,
    cache_write_mtok=_price,
    source=st.just("a test"),
)


@given(prices=_priced, data=st.data())
def test_no_use_within_bytes_and_max_tokens_costs_more_than_the_bound(prices: Prices, data: st.DataObject) -> None:
    n_bytes = data.draw(st.integers(0, 1_000_000))
    most = data.draw(st.integers(0, 100_000))
    given_tokens = data.draw(st.integers(0, n_bytes))
    read = data.draw(st.integers(0, given_tokens))
    written = data.draw(st.integers(0, given_tokens - read))
    answered = data.draw(st.integers(0, most))

    (cost,) = prices.cost_usd(_tokens((given_tokens, read, written, answered)))

    assert cost <= prices.upper_bound(input_bytes=n_bytes, output_tokens=most)


@settings(max_examples=50)
@given(prices=_priced, uses=st.lists(st.tuples(st.integers(0, 5_000), st.integers(0, 500)), max_size=20))
def test_a_shards_costs_together_stay_under_its_one_bound(prices: Prices, uses: list[tuple[int, int]]) -> None:
    costs = prices.cost_usd(_tokens(*[(given, 0, 0, answered) for given, answered in uses]))
    bound = prices.upper_bound(
        input_bytes=sum(i for i, _ in uses), output_tokens=sum(o for _, o in uses), requests=len(uses) or 1
    )

    assert sum(costs, Decimal(0)) <= bound


def test_bound_takes_input_for_written_to_the_cache_where_that_is_dearest() -> None:
    assert PLAIN.upper_bound(input_bytes=1_000_000, output_tokens=0) == Decimal("1.5625")


def test_given_prices_are_halved_for_a_batch_and_cache_prices_default_to_input() -> None:
    prices = Prices.given({"input_mtok": "2", "output_mtok": 8}, "batch")

    assert (prices.input_mtok, prices.output_mtok) == (Decimal(1), Decimal(4))
    assert prices.cache_read_mtok == prices.cache_write_mtok == Decimal(1)


BAD: dict[str, dict[str, Any]] = {
    "unknown name": {"input_mtok": 1, "output_mtok": 1, "outptu_mtok": 1},
    "output missing": {"input_mtok": 1},
    "no number": {"input_mtok": "cheap", "output_mtok": 1},
    "negative": {"input_mtok": -1, "output_mtok": 1},
    "infinite": {"input_mtok": "inf", "output_mtok": 1},
}


@pytest.mark.parametrize("given_prices", BAD.values(), ids=BAD.keys())
def test_prices_are_refused_with(given_prices: dict[str, Any]) -> None:
    with pytest.raises(BadPrices):
        Prices.given(given_prices, "interactive")


def test_a_long_request_pays_the_dearer_price_for_all_its_tokens() -> None:
    dearer = replace(PLAIN, input_mtok=Decimal("2.5"), output_mtok=Decimal(15), cache_read_mtok=Decimal("0.25"))
    tiered = replace(PLAIN, above=((200_000, dearer),))
    uses = _tokens((200_000, 0, 0, 1_000), (200_001, 0, 0, 1_000), (200_001, 100_000, 0, 1_000))
    assert tiered.cost_usd(uses).to_list() == [Decimal("0.26"), Decimal("0.5150025"), Decimal("0.2900025")]
    assert Prices.from_json(tiered.to_json()) == tiered


def test_known_prices_have_the_tiers_of_long_contexts_and_none_is_made_up() -> None:
    tiered = known("google", "gemini-2.5-pro", "interactive")
    assert tiered is not None
    ((start, dearer),) = tiered.above
    assert start == 200_000
    assert dearer.input_mtok > tiered.input_mtok
    assert known("openai", "a-model-of-nobody", "interactive") is None
    assert known("openai", "a-model-of-nobody", "batch") is None


FAST = [
    ("openai", "gpt-5.1", {"service_tier": "priority"}, 2),
    ("openai", "gpt-5.1", {"service_tier": "flex"}, Decimal("0.5")),
    ("anthropic", "claude-opus-5", {"speed": "fast"}, 2),
]
"""What is priced otherwise than the plain call, by how much in the list of 2026-11."""


@pytest.mark.parametrize(("provider", "model", "params", "times"), FAST)
def test_a_dearer_or_cheaper_service_has_its_own_price(
    provider: str, model: str, params: dict[str, Any], times: Decimal
) -> None:
    plain, other = known(provider, model, "interactive"), known(provider, model, "interactive", params)
    assert plain is not None
    assert other is not None
    assert (other.input_mtok, other.output_mtok) == (plain.input_mtok * times, plain.output_mtok * times)
    assert str(next(iter(params.values()))) in other.source
    assert known(provider, model, "batch", params) is None  # nobody says what a batch costs then


STANDARD = [
    ("openai", {"temperature": 0, "service_tier": "default", "tools": [{"type": "function", "function": {}}]}),
    (
        "anthropic",
        {"top_k": 5, "service_tier": "auto", "cache_control": {"type": "ephemeral"}, "tools": [{"name": "f"}]},
    ),
]
UNSAID = [
    ("openai", {"service_tier": "scale"}),
    ("openai", {"web_search_options": {}}),
    ("openai", {"tools": [{"type": "web_search"}]}),
    ("openai", {"tools": ["web_search"]}),
    ("openai", {"modalities": ["text", "audio"]}),
    ("openai", {"service_tier": "priority", "web_search_options": {}}),
    ("anthropic", {"inference_geo": "us"}),
    ("anthropic", {"cache_control": {"type": "ephemeral", "ttl": "1h"}}),
    ("anthropic", {"tools": [{"type": "web_search_20260209", "name": "web_search"}]}),
    ("anthropic", {"speed": "faster"}),
]
MODEL = {"openai": "gpt-5.1", "anthropic": "claude-opus-5"}


@pytest.mark.parametrize("tier", ["batch", "interactive"])
@pytest.mark.parametrize(("provider", "params"), STANDARD, ids=str)
def test_parameters_of_a_plain_call_leave_the_price_as_it_is(provider: str, params: dict[str, Any], tier: str) -> None:
    plain = known(provider, MODEL[provider], tier)
    assert plain is not None
    assert known(provider, MODEL[provider], tier, params) == plain


@pytest.mark.parametrize("tier", ["batch", "interactive"])
@pytest.mark.parametrize(("provider", "params"), UNSAID, ids=str)
def test_what_the_list_does_not_price_is_not_priced_as_a_plain_call(
    provider: str, params: dict[str, Any], tier: str
) -> None:
    assert known(provider, MODEL[provider], tier, params) is None
    assert known("openai", "gpt-4o-mini", "interactive", {"service_tier": "flex"}) is None  # listed at the plain price


def test_a_budget_with_a_parameter_that_changes_the_price_is_refused_by_name(tmp_path: Path) -> None:
    call: dict[str, Any] = {"model": "openai:gpt-5.1", "budget": 5, "ledger": tmp_path / "ledger"}
    with pytest.raises(PriceUnknown, match=r"no batch price of 'openai:gpt-5\.1' with service_tier is known"):
        lotwise.plan(pl.DataFrame({"a": ["x"]}), "{a}", params={"service_tier": "priority"}, **call)
    said = {"input_mtok": "2.5", "output_mtok": "20"}
    lotwise.plan(pl.DataFrame({"a": ["x"]}), "{a}", params={"service_tier": "priority"}, prices=said, **call)
