"""Known prices, from the dated data of genai-prices. No network: a newer package is a newer price list.

A price that is not known is never guessed: where the list has no variant for batches or for a dearer service it gives
the standard price without a word, so a variant that equals the standard one counts as unknown. A parameter that may be
charged for in a way that the list does not say makes the price unknown too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from decimal import Decimal
from importlib.metadata import version
from typing import Any

from genai_prices import Usage, calc_price
from genai_prices.types import ModelPrice, TieredPrices

from lotwise.cost import Prices

HALVES = frozenset({"openai", "anthropic", "google", "mistral", "groq"})
"""Providers whose batch tier costs half (provider pages, checked 2026-11-30)."""


_STANDARD: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "openai": {
        "service_tier": lambda value: value in (None, "auto", "default"),
        "modalities": lambda value: value in (None, ["text"]),
        "audio": lambda value: value is None,
        "web_search_options": lambda value: value is None,
        "tools": lambda value: all(_kind(tool) in ("function", "custom") for tool in value or ()),
    },
    "anthropic": {
        "speed": lambda value: value in (None, "standard"),
        "service_tier": lambda value: value in (None, "auto", "standard_only"),
        "inference_geo": lambda value: value in (None, "global"),
        "cache_control": lambda value: value is None or (isinstance(value, Mapping) and value.get("ttl", "5m") == "5m"),
        "tools": lambda value: all(_kind(tool) in (None, "custom") for tool in value or ()),
        "mcp_servers": lambda value: not value,
    },
}
"""Parameters that are charged for in another way than the tokens of a plain call, with the values that are not
(by the words of the SDKs' own parameters, openai 3 and anthropic 2)."""

_IN_THE_LIST: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "openai": {"service_tier": ("flex", "priority")},
    "anthropic": {"speed": ("fast",)},
}
"""Those of them for which the list has prices."""


def known(provider: str, model: str, tier: str, params: Mapping[str, Any] | None = None) -> Prices | None:
    """Return the price of a hosted model at a tier, or None where none is known for certain.

    Parameters
    ----------
    provider, model
        As in ``provider:model``.
    tier
        "batch" or "interactive".
    params
        What is sent besides: some choose a dearer or cheaper service.
    """
    standard = _find(provider, model, None)
    if standard is None:
        return None
    given, rules = params or {}, _STANDARD.get(provider, {})
    special = {
        name: given[name] for name, is_standard in rules.items() if name in given and not is_standard(given[name])
    }
    if special:
        listed = _IN_THE_LIST.get(provider, {})
        if tier == "batch" or any(value not in listed.get(name, ()) for name, value in special.items()):
            return None
        other = _find(provider, model, special)
        if other is None or _field(other, "output_mtok", 0) == _field(standard, "output_mtok", 0):
            return None
        return _prices(other, ", ".join((tier, *map(str, special.values()))))
    if tier != "batch":
        return _prices(standard, tier)
    batch = _find(provider, model, {"processing": "batch"})
    if batch is None or provider not in HALVES or _field(batch, "input_mtok", 0) == _field(standard, "input_mtok", 0):
        return None
    return _prices(batch, tier)


def _kind(tool: Any) -> Any:
    return tool.get("type") if isinstance(tool, Mapping) else tool


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
