"""What a type checker must accept and refuse of the public API. Never run: `mypy --strict` reads it.

A line that must be refused carries the error code that is expected; with `warn_unused_ignores` a refusal that goes
away is an error too.
"""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Literal, assert_type

import polars as pl
from pydantic import BaseModel

import lotwise
from lotwise.estimate import Plan


class Ticket(BaseModel):
    category: Literal["billing", "bug"]
    urgent: bool


df = pl.DataFrame({"body": ["refund me"]})

# The five verbs, and what each returns.
assert_type(lotwise.map(df, "{body}"), pl.DataFrame)
assert_type(lotwise.map(df, "{body}", Ticket, model="anthropic:claude-haiku-4-5"), pl.DataFrame)
assert_type(lotwise.preview(df, "{body}", Ticket, 5), pl.DataFrame)
assert_type(lotwise.peek(df, "{body}", Ticket), pl.DataFrame)
assert_type(lotwise.plan(df, "{body}", Ticket), Plan)
assert_type(lotwise.answers(df, prefix="x_"), pl.DataFrame)
assert_type(lotwise.submit(df, "{body}", Ticket), lotwise.Run)

# Every schema that is documented.
lotwise.map(df, "{body}", {"type": "object", "properties": {"a": {"type": "string"}}})
lotwise.map(df, "{body}", pl.Schema({"a": pl.String}))
lotwise.map(df, "{body}", {"a": pl.Enum(["x", "y"]), "b": bool})

# Every keyword argument, with the types that it takes.
lotwise.map(
    df,
    "{body}",
    Ticket,
    model="openai:gpt-5-mini",
    name="october",
    system="Be brief.",
    examples=[({"body": "Paid twice"}, {"category": "billing", "urgent": True})],
    params={"temperature": 0, "max_tokens": 200},
    tier="batch",
    ledger=Path("ledger"),
    budget=Decimal("2.50"),
    prices={"input_mtok": "0.25", "output_mtok": 2},
    check=pl.col("urgent") | (pl.col("category") == "bug"),
    on_null="render",
    reuse="compatible",
    retry=["dead_lettered", "invalid"],
    into="answer",
    prefix="llm_",
    progress=False,
    poll_s=30,
    data="local",
    options=lotwise.Options(shard_rows=500),
)

# A run's handle.
run = lotwise.submit(df, "{body}")
assert_type(run.wait(), lotwise.Run)
assert_type(run.collect(partial=True), pl.DataFrame)
assert_type(run.status(), lotwise.Status)
assert_type(run.status().cost_usd, Decimal | None)
assert_type(run.missing(), pl.DataFrame)
assert_type(run.cancel(), lotwise.Run)

# The ledger.
ledger = lotwise.open_ledger("ledger")
assert_type(ledger, lotwise.LedgerHandle)
assert_type(ledger.resume(run.id), lotwise.Run)
assert_type(ledger.status(run.id), lotwise.Status)
assert_type(ledger.sql("SELECT 1"), pl.DataFrame)
assert_type(lotwise.runs(), pl.DataFrame)

# What must be refused.
lotwise.map(df, "{body}", modell="openai:gpt-5-mini")  # type: ignore[call-arg]
lotwise.map(df, "{body}", tier="fast")  # type: ignore[arg-type]
lotwise.map(df, "{body}", on_null="drop")  # type: ignore[arg-type]
lotwise.map(df, "{body}", budget=2.5)  # type: ignore[arg-type]
lotwise.map(df, "{body}", data="hosted")  # type: ignore[arg-type]
lotwise.map({"body": ["refund me"]}, "{body}")  # type: ignore[arg-type]
lotwise.plan(df, ["{body}"])  # type: ignore[arg-type]
