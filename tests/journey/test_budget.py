"""Random budgets, with two processes at the same work: the bill stays within, and what fits is sent."""

from __future__ import annotations

import random
from decimal import Decimal
from pathlib import Path

import polars as pl
import pytest

from emulator import Emulator, RowFault
from journey.clouds import PRICES, PROVIDERS, Cloud
from lotwise.cost import Prices
from lotwise.executors import load
from lotwise.key import spec_from_json

TRIALS = [*range(20), *(pytest.param(n, marks=pytest.mark.soak) for n in range(20, 200))]


@pytest.mark.parametrize("seed", TRIALS)
def test_the_bill_stays_within_the_budget_and_what_fits_is_sent(tmp_path: Path, emulator: Emulator, seed: int) -> None:
    chance = random.Random(seed)
    provider = PROVIDERS[seed % 2]
    emulator.set_faults(
        usage=chance.choice(("worst", "typical")),
        batch_s=chance.choice((0.05, 0.4)),
        rows=(
            RowFault(kind="expired", fraction=0.1, times=1),
            RowFault(kind="truncated", fraction=chance.choice((0.0, 0.1)), times=1),
            RowFault(kind="server_error", fraction=0.05, times=1),
        ),
        seed=seed,
    )
    texts = [f"row {i} " + "long " * chance.choice((0, 3, 200, 2_000)) for i in range(chance.randint(3, 30))]
    max_tokens = chance.choice((10, 300))
    prices = Prices.given(PRICES, "batch")
    whole = prices.upper_bound(
        input_bytes=sum(len(text) + 700 for text in texts),
        output_tokens=max_tokens * len(texts),
        requests=len(texts),
    )
    budget = (whole * Decimal(str(round(chance.uniform(0.02, 1.1), 3)))).quantize(Decimal("0.000001"))
    here = Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": texts}),
        emulator,
        provider,
        arguments={"budget": str(budget), "prices": PRICES, "params": {"max_tokens": max_tokens}},
        options={"shard_rows": chance.randint(2, 12), "lease_s": 6_000.0, "systemic_rate": None},
        speed=60.0,
    )
    both = [here.start(), here.start()]
    ended = [child.wait() for child in both]
    assert {one.error for one in ended} <= {None, "BudgetReached"}, [one.message for one in ended]
    assert here.bill_usd() <= budget
    here.assert_clean()

    assert not here.sql("SELECT id FROM shard WHERE state NOT IN ('collected', 'rejected', 'lost')").height
    pending = here.sql("SELECT key, content_bytes, variant FROM request WHERE state = 'pending'")
    if ended[0].error is None and ended[1].error is None:
        assert pending.is_empty()
        return
    settled = here.sql("SELECT coalesce(sum(settled_usd), 0)::VARCHAR AS usd FROM reservation")["usd"].item()
    assert not pending.is_empty()
    spec = spec_from_json(here.sql("SELECT body FROM spec")["body"].item())
    executor, _ = load(spec.model_name)
    plain = pending.filter(pl.col("variant").is_null())  # a changed retry needs more than its plain bound
    sizes = executor.sizes(spec, plain["content_bytes"])
    for size in sizes:
        bound = prices.upper_bound(input_bytes=size, output_tokens=max_tokens, requests=1)
        assert bound > budget - Decimal(settled), "a request that fits was not sent"
