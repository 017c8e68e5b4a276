"""What answers cost, from token counts and dated prices. Pure, and Decimal throughout.

A price that is not known is None, never zero, and so is any sum that would need it. An upper bound counts every byte
as a token, every request as answered at full length and every input as written to a cache: what is reserved before
sending must hold whatever comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_UP, Decimal
from typing import Any

import polars as pl

from lotwise.errors import BadPrices

_MILLION = Decimal(1_000_000)
_LAST = Decimal("0.000000001")  # the ledger keeps nine decimals of a dollar
BATCH_SHARE = Decimal("0.5")
"""What every provider with a batch tier charges for it, as a share of the standard price."""

_FIELDS = ("input_mtok", "output_mtok", "cache_read_mtok", "cache_write_mtok")


@dataclass(frozen=True, kw_only=True)
class Prices:
    """US dollars a million tokens, as charged for one model at one tier.

    Attributes
    ----------
    input_mtok, output_mtok
        Plain input and output.
    cache_read_mtok, cache_write_mtok
        Input that was read from, or written to, the provider's prompt cache.
    source
        Where the figures come from, with version and date.
    above
        Dearer prices for long requests, (input tokens, prices) in ascending order: a request of more input tokens
        pays them for all its tokens.
    """

    input_mtok: Decimal
    output_mtok: Decimal
    cache_read_mtok: Decimal
    cache_write_mtok: Decimal
    source: str
    above: tuple[tuple[int, Prices], ...] = ()

    def __post_init__(self) -> None:
        for name in _FIELDS:
            value = getattr(self, name)
            if not value.is_finite() or value < 0:
                raise BadPrices.of(name, "is not a price")

    @classmethod
    def given(cls, prices: Mapping[str, Any], tier: str) -> Prices:
        """Take the user's prices, which are at the standard tier. Cache prices default to the input price."""
        unknown = sorted(set(prices) - set(_FIELDS))
        if unknown:
            raise BadPrices.unknown(unknown, _FIELDS)
        lacking = [name for name in ("input_mtok", "output_mtok") if name not in prices]
        if lacking:
            raise BadPrices.of(lacking[0], "is missing")
        share = BATCH_SHARE if tier == "batch" else Decimal(1)
        amount = {name: _decimal(name, prices[name]) for name in prices}
        return cls(
            input_mtok=amount["input_mtok"] * share,
            output_mtok=amount["output_mtok"] * share,
            cache_read_mtok=amount.get("cache_read_mtok", amount["input_mtok"]) * share,
            cache_write_mtok=amount.get("cache_write_mtok", amount["input_mtok"]) * share,
            source="given by the caller",
        )

    def to_json(self) -> dict[str, Any]:
        """Write the prices down for another process."""
        amounts = {name: str(getattr(self, name)) for name in _FIELDS}
        above = [[start, dearer.to_json()] for start, dearer in self.above]
        return {**amounts, "source": self.source, "above": above}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Prices:
        """Read prices that `to_json` wrote."""
        return cls(
            input_mtok=Decimal(stored["input_mtok"]),
            output_mtok=Decimal(stored["output_mtok"]),
            cache_read_mtok=Decimal(stored["cache_read_mtok"]),
            cache_write_mtok=Decimal(stored["cache_write_mtok"]),
            source=stored["source"],
            above=tuple((int(start), cls.from_json(dearer)) for start, dearer in stored["above"]),
        )

    @property
    def dearest_input_mtok(self) -> Decimal:
        """The most that one input token can cost."""
        here = max(self.input_mtok, self.cache_read_mtok, self.cache_write_mtok)
        return max([here, *(dearer.dearest_input_mtok for _, dearer in self.above)])

    @property
    def dearest_output_mtok(self) -> Decimal:
        """The most that one output token can cost."""
        return max([self.output_mtok, *(dearer.dearest_output_mtok for _, dearer in self.above)])

    def upper_bound(self, *, input_bytes: int, output_tokens: int, requests: int = 1) -> Decimal:
        """Return what requests of so many encoded bytes and allowed output tokens can cost at most, in dollars.

        `requests` says how many they are: the cost of each is rounded up to the ledger's last decimal.
        """
        most = (self.dearest_input_mtok * input_bytes + self.dearest_output_mtok * output_tokens) / _MILLION
        return most.quantize(_LAST, rounding=ROUND_UP) + (requests - 1) * _LAST

    def cost_usd(self, tokens: pl.DataFrame) -> pl.Series:
        """Return each outcome's cost in dollars, Decimal(18, 9).

        Parameters
        ----------
        tokens
            `input_tokens` (cached ones included), `cache_read_tokens`, `cache_write_tokens`, `output_tokens`.

        Returns
        -------
        A series of the same height; null where input or output tokens are not known.
        """
        nano = self._nano_usd()
        for start, dearer in self.above:
            nano = pl.when(pl.col("input_tokens") > start).then(dearer._nano_usd()).otherwise(nano)
        return tokens.select(_as_usd(nano)).to_series()

    def _nano_usd(self) -> pl.Expr:
        read, write = pl.col("cache_read_tokens").fill_null(0), pl.col("cache_write_tokens").fill_null(0)
        # Prices have at most six decimals, so in units of 1e-12 dollars a token everything is an exact integer.
        unit = {name: int((getattr(self, name) * _MILLION).to_integral_value(ROUND_UP)) for name in _FIELDS}
        picodollars = (
            (pl.col("input_tokens") - read - write).clip(0) * unit["input_mtok"]
            + read * unit["cache_read_mtok"]
            + write * unit["cache_write_mtok"]
            + pl.col("output_tokens") * unit["output_mtok"]
        )
        # Round up to the ledger's 1e-9: a bill is never understated.
        return (picodollars + 999) // 1000


def _as_usd(nano: pl.Expr) -> pl.Expr:
    whole = (nano // 10**9).cast(pl.String)
    rest = (nano % 10**9).cast(pl.String).str.zfill(9)
    return pl.concat_str(whole, pl.lit("."), rest).cast(pl.Decimal(18, 9)).alias("cost_usd")


def _decimal(name: str, value: Any) -> Decimal:
    try:
        return Decimal(str(value))
    except ArithmeticError:
        raise BadPrices.of(name, "is not a number") from None
