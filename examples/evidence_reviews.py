"""Evidence on real reviews: a golden set, a canary, and a lot that people's verdicts decide.

    python examples/evidence_reviews.py REVIEWS.parquet [LEDGER] [ROWS]

The file has the columns `text` and `label` (positive, negative). Every tenth review's label is the golden set; the
labels of all stand in for people who read the sample. The embedded model answers, so no key is needed and nothing is
spent.
At the end 1,000 samples are redrawn from what was recorded, to see how often the interval holds the true rate.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import polars as pl
from scipy import stats as scipy_stats

import lotwise
from lotwise import stats

HERE = Path(__file__).parent
REDRAWS = 1_000


def main() -> None:
    source, ledger = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    reviews = pl.read_parquet(source).select("text", "label")
    if len(sys.argv) > 3:
        reviews = reviews.head(int(sys.argv[3]))
    prompt = (HERE / "reviews.prompt.md").read_text(encoding="utf-8")
    schema = json.loads((HERE / "reviews.schema.json").read_text(encoding="utf-8"))
    examples = [tuple(pair) for pair in json.loads((HERE / "reviews.examples.json").read_text(encoding="utf-8"))]
    golden = lotwise.Golden(
        reviews.gather_every(10).select("text", sentiment="label"), answers=["sentiment"], threshold=0.7
    )

    began = time.perf_counter()
    run = lotwise.submit(
        reviews,
        prompt,
        schema,
        model="embedded",
        examples=examples,
        golden=golden,
        ledger=ledger,
        name="reviews with evidence",
    )
    out = run.collect()
    print(f"{out.height:,} rows, {time.perf_counter() - began:.0f} s")
    print(run.status())

    truth = out.unique("llm_id", keep="first").select("llm_id", "sentiment", "label")
    sample = lotwise.sample(ledger, run.id)
    verdicts = sample.join(truth.select("llm_id", "label"), on="llm_id", how="left").with_columns(
        verdict=pl.when(pl.col("sentiment").cast(pl.String) == pl.col("label"))
        .then(pl.lit("good"))
        .otherwise(pl.lit("bad")),
        inspector=pl.lit("labels"),
        inspected_at=pl.lit(datetime.now(UTC)),
    )
    print(lotwise.inspect(verdicts.select(sample.columns), ledger))
    shown = (
        "n_unique",
        "population",
        "plan_n",
        "plan_c",
        "n_looked",
        "x_bad",
        "rate",
        "low",
        "high",
        "upper_one_sided",
        "decision",
        "reason",
    )
    (lot,) = run.lots().select(shown).iter_rows(named=True)
    for name, value in lot.items():
        print(f"  {name:16}{round(value, 4) if isinstance(value, float) else value}")
    redraw(truth, int(sample.height))


def redraw(truth: pl.DataFrame, n: int) -> None:
    """Draw the sample anew from the recorded answers, many times, and count the intervals that hold the true rate."""
    answered = truth.filter(pl.col("sentiment").is_not_null())
    bad = (answered["sentiment"].cast(pl.String) != answered["label"]).to_numpy()
    true_rate, rng = float(bad.mean()), np.random.default_rng(20261130)
    held = 0
    for _ in range(REDRAWS):
        x = int(bad[rng.choice(bad.size, size=n, replace=False)].sum())
        interval = stats.bad_rate_interval(x, n, population=int(bad.size))
        held += interval.low <= true_rate <= interval.high
    p = scipy_stats.binomtest(held, REDRAWS, 0.95, alternative="less").pvalue
    print(
        f"true bad rate {true_rate:.4f} of {bad.size:,} answers; {held} of {REDRAWS:,} redrawn intervals hold it "
        f"(p against 95 %: {p:.3f})"
    )


if __name__ == "__main__":
    main()
