"""Planted error rates through the whole product: how often a lot is released, by what is truly wrong with it.

Each run asks an emulated provider about 1,000 rows through the real SDK. The provider answers a chosen number of them
with values that are plausible, valid and wrong; people read the sample and are never wrong; the next look tells the
decision. What is planted where is fixed by seeds. The same over a recorded ledger, 1,000 times a rate, is in
`test_evidence_coverage.py`.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from scipy.stats import binomtest  # type: ignore[import-untyped, unused-ignore]

import lotwise
from emulator import Emulator, RowFault
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify

ROWS = 1_000
PROMPT = "Classify this ticket.\n\n{text}"
SCHEMA = {"category": pl.Enum(["billing", "bug", "how-to", "other"]), "urgent": pl.Boolean}
MODEL = "openai:gpt-5-nano"

# A test that holds is red about once in a thousand changes of the seeds, which are fixed.
CHANCE = 0.001


@pytest.fixture(params=[5, pytest.param(20, marks=pytest.mark.soak)])
def n_runs(request: pytest.FixtureRequest) -> int:
    """Return how many runs a rate gets: few in the short version, which is about the way and not the chances."""
    count: int = request.param
    return count


@pytest.fixture(autouse=True)
def provider(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    monkeypatch.setenv("OPENAI_BASE_URL", emulator.openai_url)


def judged(folder: Path, emulator: Emulator, rate: float, seed: int) -> tuple[str, float | None]:
    """Make one run with answers planted as wrong, read its sample, and return the decision and what the plan promised.

    The promise is the chance of release at this rate that the plan printed, less what rounding may have added; None
    where it printed none.
    """
    where: dict[str, Any] = {"model": MODEL, "ledger": folder / "ledger", "progress": False, "poll_s": 0.01}
    frame = pl.DataFrame({"text": [f"ticket {i} of run {seed} at {rate}" for i in range(ROWS)]})
    plan = lotwise.plan(frame, PROMPT, SCHEMA, **where)
    told = re.search(rf"([\d.]+) % with {100 * rate:g} %", str(plan))
    wrong = random.Random(f"{rate}/{seed}").sample(plan.rows["llm_id"].to_list(), round(rate * ROWS))
    # A fault without a selector would hit every row.
    emulator.set_faults(rows=(RowFault(kind="wrong", ids=tuple(wrong)),) if wrong else ())

    out = lotwise.map(frame, PROMPT, SCHEMA, **where)

    truth = {
        custom_id.partition("-")[2]: row["outcome"]
        for batch in emulator.batches()
        for custom_id, row in batch["rows"].items()
    }
    assert out["llm_state"].unique().to_list() == ["succeeded"]
    assert sorted(key for key in out["llm_id"] if truth[key] == "wrong") == sorted(wrong)
    sample = out.llm.sample(folder / "ledger")  # type: ignore[attr-defined]
    seen = ["bad" if truth[key] == "wrong" else "good" for key in sample["llm_id"]]
    done = lotwise.inspect(sample.with_columns(verdict=pl.Series(seen), inspector=pl.lit("ana")), folder / "ledger")
    assert done.n_recorded == sample.height == 278
    decision = lotwise.peek(frame, PROMPT, SCHEMA, model=MODEL, ledger=folder / "ledger")["llm_decision"]
    assert decision.n_unique() == 1
    return decision[0], float(told[1]) / 100 - 0.0005 if told else None


@pytest.mark.parametrize("rate", [0.0, 0.01, 0.03, 0.06, 0.15])
def test_lots_are_released_as_the_plan_says(tmp_path: Path, emulator: Emulator, rate: float, n_runs: int) -> None:
    ends = [judged(tmp_path, emulator, rate, seed) for seed in range(n_runs)]

    released = sum(decision == "release" for decision, _ in ends)
    promised = ends[0][1]
    print(json.dumps({"truly_bad": rate, "runs": n_runs, "released": released, "promised": promised}))
    assert verify(Ledger.open(tmp_path / "ledger")).clean
    if rate == 0:
        assert released == n_runs
    elif rate >= 0.05:
        assert binomtest(released, n_runs, 0.05, alternative="greater").pvalue >= CHANCE
    else:
        assert promised is not None
        assert binomtest(released, n_runs, promised, alternative="less").pvalue >= CHANCE
