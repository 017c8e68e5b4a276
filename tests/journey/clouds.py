"""A desk whose model is a hosted provider's, emulated in a process of its own and reached through the real SDK.

One emulator serves a file; each test has an API key, and so an account and a bill, of its own.
"""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from emulator import Emulator
from emulator.handle import Charge
from emulator.records import account_of
from journey.harness import Desk

PROVIDERS = ("openai", "anthropic")
MODELS = {
    "openai": "openai:gpt-5-nano",
    "anthropic": "anthropic:claude-haiku-4-5",
    "online": "online:gpt-5-nano",  # the same emulator, reached as a server of one's own that costs money
}
OF_THE_EXECUTOR: dict[str, dict[str, Any]] = {"online": {"paid": True}}
PRICES = {"input_mtok": "1", "output_mtok": "5"}
CREATE = "batches.create"
RETRIEVE = "batches.retrieve"
LIST = "batches.list"
DOWNLOAD = {"openai": "openai.files.content", "anthropic": "anthropic.batches.results"}


def owed_usd(charges: list[Charge]) -> Decimal:
    """Return what charges amount to at `PRICES`: half for a batch."""
    million = Decimal(1_000_000)
    return sum(
        (
            (c.input_tokens * Decimal(PRICES["input_mtok"]) + c.output_tokens * Decimal(PRICES["output_mtok"]))
            / million
            / (2 if c.tier == "batch" else 1)
            for c in charges
        ),
        Decimal(0),
    )


class Cloud(Desk):
    """A desk at an emulated provider."""

    def __init__(
        self,
        folder: Path,
        frame: pl.DataFrame,
        emulator: Emulator,
        provider: str,
        *,
        options: dict[str, Any] | None = None,
        arguments: dict[str, Any] | None = None,
        api_key: str | None = None,
        speed: float = 1.0,
        **work: Any,
    ) -> None:
        self.emulator, self.provider = emulator, provider
        self.api_key = api_key or f"sk-{provider}-{folder.parent.name}-{folder.name}"
        self.arguments = {"poll_s": 0.05 * speed, "progress": False, **(arguments or {})}
        super().__init__(
            folder,
            frame,
            model=MODELS[provider],
            speed=speed,
            env=self.env(self.api_key),
            arguments=self.arguments,
            options={
                "lease_s": 1.0,
                "create_timeout_s": 10.0 * speed if speed > 1 else 1.0,
                "absence_margin_s": 0.5,
                **(options or {}),
                "executor_options": {
                    **OF_THE_EXECUTOR.get(provider, {"read_retries": 0}),
                    **(options or {}).get("executor_options", {}),
                },
            },
            **work,
        )

    def env(self, api_key: str) -> dict[str, str]:
        """Return the environment by which the SDKs find the emulator."""
        return {
            "OPENAI_API_KEY": api_key,
            "ANTHROPIC_API_KEY": api_key,
            "OPENAI_BASE_URL": self.emulator.openai_url,
            "ANTHROPIC_BASE_URL": self.emulator.anthropic_url,
            "LOTWISE_ONLINE_API_KEY": api_key,
            "LOTWISE_ONLINE_BASE_URL": self.emulator.openai_url,
        }

    def bill(self) -> list[Charge]:
        return self.emulator.bill(self.api_key)

    def bill_usd(self) -> Decimal:
        """Return what this account owes at `PRICES`: half for a batch."""
        return owed_usd(self.bill())

    def batches(self) -> list[dict[str, Any]]:
        """Return the truth of each batch that this account's provider accepted, oldest first."""
        project = "proj_" + account_of(self.api_key)
        return [batch for batch in self.emulator.batches() if batch["project"] == project]

    def assert_each_charged_once(self, n: int) -> None:
        charges = Counter(charge.key for charge in self.bill())
        assert len(charges) == n
        assert set(charges.values()) <= {1}, charges.most_common(3)
