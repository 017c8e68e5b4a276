"""The main job on real input, without a key: classify a file with the embedded model and write a typed Parquet file.

`make demo` runs this on the support tickets beside it. Any other file needs a prompt and a schema of its own, except
one with the columns `text` and `label`, of which the first 200 rows are taken for reviews.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import lotwise

HERE = Path(__file__).parent
OUT = Path("demo-out")
REVIEW_ROWS = 200
NAMED = {"succeeded": "valid", "invalid": "invalid", "skipped": "skipped"}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What to ask of a file."""

    prompt: str
    schema: dict[str, object]
    examples: list[tuple[dict[str, object], dict[str, object]]]

    @classmethod
    def shipped(cls, name: str) -> Task:
        """Read one of the tasks beside this file."""
        return cls(
            prompt=(HERE / f"{name}.prompt.md").read_text(encoding="utf-8"),
            schema=json.loads((HERE / f"{name}.schema.json").read_text(encoding="utf-8")),
            examples=[tuple(pair) for pair in json.loads((HERE / f"{name}.examples.json").read_text(encoding="utf-8"))],
        )


def main() -> int:
    """Run the demo; returns the exit code."""
    given = argparse.ArgumentParser(description=__doc__)
    for name in ("input", "prompt", "schema", "ledger"):
        given.add_argument(f"--{name}", default="")
    chosen = given.parse_args()
    source = Path(chosen.input) if chosen.input else HERE / "tickets.csv"
    try:
        frame = pl.read_csv(source) if source.suffix == ".csv" else pl.read_parquet(source)
        task, frame = pick(frame, source, chosen.prompt, chosen.schema)
        OUT.mkdir(exist_ok=True)
        began = time.perf_counter()
        before = lotwise.plan(frame, task.prompt, task.schema, **settings(task, chosen.ledger))
        run = lotwise.submit(frame, task.prompt, task.schema, **settings(task, chosen.ledger))
        answered = run.collect()
    except (lotwise.errors.LotwiseError, OSError, pl.exceptions.PolarsError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    target = OUT / f"{source.stem}.parquet"
    answered.write_parquet(target)
    print(summary(answered, before, list(task.schema["properties"]), time.perf_counter() - began))  # type: ignore[call-overload]
    print(f"written to {target}")
    print(
        f'look at it without the bookkeeping: import lotwise, polars as pl; pl.read_parquet("{target}").llm.answers()'
    )
    return 0


def settings(task: Task, ledger: str) -> dict[str, object]:
    """Return the arguments of the demo's calls besides prompt and schema."""
    return {"model": "embedded", "examples": task.examples, "ledger": ledger or None}


def pick(frame: pl.DataFrame, source: Path, prompt: str, schema: str) -> tuple[Task, pl.DataFrame]:
    """Choose what to ask: what was given, else what the file's columns say."""
    if prompt or schema:
        if not (prompt and schema):
            raise lotwise.errors.BadArgument.of("PROMPT and SCHEMA", "go together: give both")
        texts = [Path(name).read_text(encoding="utf-8") for name in (prompt, schema)]
        return Task(prompt=texts[0], schema=json.loads(texts[1]), examples=[]), frame
    if {"subject", "body"} <= set(frame.columns):
        return Task.shipped("tickets"), frame
    if {"text", "label"} <= set(frame.columns):
        if frame.height > REVIEW_ROWS:
            print(f"taking the first {REVIEW_ROWS} of {frame.height:,} rows")
        return Task.shipped("reviews"), frame.head(REVIEW_ROWS)
    raise lotwise.errors.BadArgument.of(
        str(source),
        f"has the columns {', '.join(frame.columns)}: give PROMPT=file.md with {{column}} places and SCHEMA=file.json "
        "(without them a file needs `text` and `label`, or `subject` and `body`)",
    )


def summary(answered: pl.DataFrame, before: lotwise.Plan, fields: list[str], seconds: float) -> str:
    """Say in a few lines what came out."""
    states = dict(answered["llm_state"].value_counts().iter_rows())
    sent = "nothing was sent: every answer was in the ledger" if before.n_to_send == 0 else f"{before.n_to_send} sent"
    lines = [
        f"{answered.height} rows, {before.n_unique} unique requests, {seconds:.1f} s; {sent}",
        ", ".join(f"{states.get(state, 0)} {name}" for state, name in NAMED.items()),
    ]
    if "label" in answered.columns:
        judged = answered.filter(pl.col("label").is_not_null() & (pl.col("llm_state") == "succeeded"))
        agreeing = judged.filter(pl.col(fields[0]).cast(pl.String) == pl.col("label")).height
        if judged.height:
            lines.append(f"agreement with the labels: {agreeing} of {judged.height} ({agreeing / judged.height:.0%})")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
