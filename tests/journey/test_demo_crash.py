"""The demo with the embedded model, killed at random moments and then let finish: one answer each request."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pytest

from journey.harness import PATIENCE_S
from lotwise.ledger import shards as shard_book
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify

DEMO = Path(__file__).resolve().parents[2] / "examples" / "demo.py"
TICKETS = pl.DataFrame(
    {
        "subject": ["Invoice", "It crashes", "How do I export?", "Invoice", None, "Refund", "Login", "Thanks"],
        "body": [
            "I was charged twice.",
            "The app closes when I press save.",
            "Where is the export button?",
            "I was charged twice.",
            "no subject",
            "Please pay me back.",
            "The password mail does not come.",
            "All is well.",
        ],
    }
)
N_REQUESTS = 6


def demo(folder: Path) -> subprocess.Popen[bytes]:
    """Start the demo on a few tickets, with a ledger in the folder."""
    folder.mkdir(exist_ok=True)
    TICKETS.write_csv(folder / "tickets.csv")
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, str(DEMO), "--input", "tickets.csv", "--ledger", "ledger"],
            cwd=folder,
            stdout=log,
            stderr=log,
        )


def finish(folder: Path) -> pl.DataFrame:
    process = demo(folder)
    assert process.wait(PATIENCE_S) == 0, (folder / "log").read_text()
    return pl.read_parquet(folder / "demo-out" / "tickets.parquet")


def judge(folder: Path, rows: pl.DataFrame) -> None:
    """Check that each row is the ledger's answer for its key, and that there is one answer for each request."""
    ledger = Ledger.open(folder / "ledger", create=False)
    assert verify(ledger).clean
    asked = rows["llm_id"].drop_nulls().unique()
    assert asked.len() == N_REQUESTS
    assert rows.filter(pl.col("llm_id").is_null())["llm_state"].to_list() == ["skipped"]
    billed = ledger.sql("SELECT key, count(*) AS n FROM result WHERE code IN ('ok', 'truncated') GROUP BY key")
    again = ledger.sql("SELECT DISTINCT key FROM attempt WHERE why LIKE 'changed:%'")["key"]
    assert set(billed["key"]) == set(asked)
    assert billed.filter((pl.col("n") > 1) & ~pl.col("key").is_in(again.implode())).is_empty()
    held = ledger.sql("SELECT key, value->>'category' AS category FROM validation WHERE ok")
    assert held["key"].n_unique() == held.height
    told = dict(held.iter_rows())
    for key, state, category in rows.select("llm_id", "llm_state", pl.col("category").cast(pl.String)).iter_rows():
        assert category == (told.get(key) if key else None)
        assert (category is not None) == (state == "succeeded")
    assert not shard_book.all_open(ledger)


@pytest.fixture(scope="module")
def usual_s(tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the demo takes when it is left alone, and that it is then as it should be."""
    folder = tmp_path_factory.mktemp("undisturbed") / "demo"
    began = time.monotonic()
    rows = finish(folder)
    took = time.monotonic() - began
    judge(folder, rows)
    return took


def kill_within(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(PATIENCE_S)


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_a_demo_killed_at_random_moments_ends_with_one_answer_each(tmp_path: Path, usual_s: float, kills: int) -> None:
    chance = random.Random(kills)
    folders = [tmp_path / "demo"] if kills == 2 else [tmp_path / f"demo-{i}" for i in range(kills)]
    for i in range(kills):
        kill_within(demo(folders[i % len(folders)]), chance.uniform(0.3, 1.0) * usual_s)
    for folder in folders:
        judge(folder, finish(folder))
    assert "nothing was sent" in _again(folders[0])


def _again(folder: Path) -> str:
    finish(folder)
    return (folder / "log").read_text().rpartition("requests")[2]
