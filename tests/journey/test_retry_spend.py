"""What asking again costs: it ends where the bill for changed retries reaches its share of the first pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

import lotwise
from emulator import Emulator, RowFault
from emulator.handle import Charge
from journey.clouds import PRICES, PROVIDERS, Cloud

N = 800
ANSWER = {
    "type": "object",
    "properties": {"category": {"enum": ["bug", "how-to"]}, "note": {"type": "string"}},
    "required": ["category", "note"],
    "additionalProperties": False,
}


def usd(charges: list[Charge]) -> Decimal:
    return sum(
        (
            (c.input_tokens * Decimal(PRICES["input_mtok"]) + c.output_tokens * Decimal(PRICES["output_mtok"]))
            for c in charges
        ),
        Decimal(0),
    )


@pytest.mark.parametrize("provider", PROVIDERS)
def test_changed_retries_cost_a_tenth_of_the_first_answers_at_most(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(rows=(RowFault(kind="truncated", fraction=0.2),), seed=11)
    here = Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": [f"row {i} {'long ' * (i % 7)}" for i in range(N)]}),
        emulator,
        provider,
        schema=ANSWER,
        arguments={"prices": PRICES, "params": {"max_tokens": 30}, "canary": False},
        options={"shard_rows": 150, "systemic_rate": None, "lease_s": 6_000.0},
        speed=60.0,
    )
    rows = here.call().rows

    by_key: dict[str, list[Charge]] = defaultdict(list)
    for charge in here.bill():
        by_key[charge.key].append(charge)
    first, again = [each[0] for each in by_key.values()], [c for each in by_key.values() for c in each[1:]]
    assert len(first) == N
    assert len(again) > 20, "no more than are allowed in any case, so the share was not tested"
    assert usd(again) <= usd(first) / 10
    states = Counter(rows["llm_state"].to_list())
    assert states["invalid"] == len(again)
    ended = rows.filter(llm_state="dead_lettered")
    assert ended.height == states["dead_lettered"] > 0
    assert set(ended["llm_error"]) == {"retry_budget"}
    assert {len(by_key[key]) for key in ended["llm_id"]} == {1}
    status = lotwise.open_ledger(here.ledger_path).status(here.sql("SELECT id FROM run")["id"].item())
    assert any("until a retry of 'retry_budget'" in notice for notice in status.notices)
    here.assert_clean()

    # What the caller asks for himself is asked, and not held to the share.
    emulator.set_faults(rows=())
    mended = here.call(arguments={**here._base.arguments, "retry": "retry_budget"}).rows
    assert Counter(mended["llm_state"].to_list()) == {"succeeded": N - len(again), "invalid": len(again)}
    here.assert_clean()
