"""Full queues, spent quotas and empty accounts: shards wait and go, and nothing counts against the rows."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from emulator import Emulator
from journey.clouds import PROVIDERS, Cloud
from journey.harness import until

TEXTS = [f"row {i}" for i in range(15)]
FRAME = pl.DataFrame({"text": TEXTS})
LIMITS: dict[str, tuple[str, dict[str, Any]]] = {
    "openai, two batches, the create is refused": ("openai", {"max_open_batches": 2, "over_queue": "reject"}),
    "openai, a token quota, the batch fails later": (
        "openai",
        {"max_enqueued_tokens": 20, "over_queue": "fail"},
    ),
    "anthropic, two batches": ("anthropic", {"max_open_batches": 2}),
}


@pytest.mark.parametrize(("provider", "limit"), LIMITS.values(), ids=LIMITS.keys())
def test_shards_wait_for_room_and_go(tmp_path: Path, emulator: Emulator, provider: str, limit: dict[str, Any]) -> None:
    emulator.set_faults(**limit, batch_s=10_000.0)
    here = Cloud(
        tmp_path / "desk", FRAME, emulator, provider, options={"shard_rows": 4, "lease_s": 6_000.0}, speed=60.0
    )
    work = here.start()
    until(lambda: work.passed("after commit: release to rejected"), "the limit to be met")
    emulator.set_faults(batch_s=0.05)
    emulator.advance(20_000)
    rows = work.wait().rows
    assert rows["answer"].to_list() == TEXTS
    here.assert_each_charged_once(len(TEXTS))
    shards = here.shards()
    assert shards["rejected"] > 0
    assert shards["collected"] == 4
    assert set(rows["llm_attempts"]) == {1}
    here.assert_clean()


@pytest.mark.parametrize("provider", PROVIDERS)
def test_out_of_credit_pauses_the_run_and_uses_up_no_attempt(tmp_path: Path, provider: str) -> None:
    with Emulator(tmp_path / "provider", credit_rows=6, credit_blocks_create=True) as emulator:
        here = Cloud(
            tmp_path / "desk",
            FRAME,
            emulator,
            provider,
            options={"shard_rows": 5, "window": 1, "lease_s": 6_000.0},
            speed=60.0,
        )
        stopped = here.call()
        assert stopped.error == "AccountBlocked"
        assert stopped.frame is not None
        assert Counter(stopped.frame["llm_state"].to_list()) == {"succeeded": 6, "pending": 9}
        assert here.sql("SELECT max(faults) AS n FROM request")["n"].item() <= 1
        blocked = here.sql("SELECT max(faults) AS n FROM request WHERE state = 'pending'")
        assert blocked["n"].item() == 0
        emulator.set_faults(credit_rows=None)
        assert here.call().rows["answer"].to_list() == TEXTS
        here.assert_each_charged_once(len(TEXTS))
        here.assert_clean()
