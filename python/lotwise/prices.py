"""Known prices, from the dated data of genai-prices. No network: a newer package is a newer price list.

A batch price that is not known is never guessed: where the list has no batch variant it silently gives the standard
price, so a batch price that equals the standard one at a provider that halves it counts as unknown.
"""

from __future__ import annotations

from decimal import Decimal
from importlib.metadata import version
from typing import Any

from genai_prices import Usage, calc_price
from genai_prices.types import ModelPrice, TieredPrices

from lotwise.cost import Prices

HALVES = frozenset({"openai", "anthropic", "google", "mistral", "groq"})
"""Providers whose batch tier costs half (provider pages, checked 2026-11-30)."""


def known(provider: str, model: str, tier: str) -> Prices | None:
    """Return the price of a hosted model at a tier, or None where none is known for certain."""
    standard = _find(provider, model, None)
    if standard is None:
        return None
    if tier != "batch":
        return _prices(standard, tier)
    batch = _find(provider, model, {"processing": "batch"})
    if batch is None or provider not in HALVES or _field(batch, "input_mtok", 0) == _field(standard, "input_mtok", 0):
        return None
    return _prices(batch, tier)


def _find(provider: str, model: str, context: dict[str, str] | None) -> ModelPrice | None:
    try:
        found = calc_price(Usage(input_tokens=1, output_tokens=1), model, provider_id=provider, price_context=context)
    except (LookupError, ValueError):
        return None
    return found.model_price


def _prices(price: ModelPrice, tier: str) -> Prices | None:
    starts = sorted({one.start for name in _NAMES for one in _tiers(price, name)})
    source = f"genai-prices {version('genai-prices')}, {tier}"
    levels = [_level(price, at, source) for at in (0, *starts)]
    if any(level is None for level in levels):
        return None
    base, *dearer = [level for level in levels if level is not None]
    return Prices(
        input_mtok=base.input_mtok,
        output_mtok=base.output_mtok,
        cache_read_mtok=base.cache_read_mtok,
        cache_write_mtok=base.cache_write_mtok,
        source=source,
        above=tuple(zip(starts, dearer, strict=True)),
    )


_NAMES = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")


def _level(price: ModelPrice, tokens: int, source: str) -> Prices | None:
    put, out = _field(price, "input_mtok", tokens), _field(price, "output_mtok", tokens)
    if put is None or out is None:
        return None
    read, write = _field(price, "cache_read_mtok", tokens), _field(price, "cache_write_mtok", tokens)
    return Prices(
        input_mtok=put,
        output_mtok=out,
        cache_read_mtok=put if read is None else read,
        cache_write_mtok=put if write is None else write,
        source=source,
    )


def _tiers(price: ModelPrice, name: str) -> list[Any]:
    value = getattr(price, name, None)
    return list(value.tiers) if isinstance(value, TieredPrices) else []


def _field(price: ModelPrice, name: str, tokens: int) -> Decimal | None:
    """Return one price for requests of more than `tokens` input tokens."""
    value = getattr(price, name, None)
    if not isinstance(value, TieredPrices):
        return value if isinstance(value, Decimal) else None
    reached = [tier.price for tier in value.tiers if tier.start <= tokens]
    return reached[-1] if reached else value.base
