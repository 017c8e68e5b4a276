"""A prompt gone wrong over 50,000 rows at a hosted provider: what it costs by the provider's own bill.

The prompt lost its point; its answers are valid and have nothing to do with the right ones. The golden set knows what
the prompt answered when it was good.
"""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import lotwise
from emulator import Emulator
from emulator.answers import answer_text
from emulator.sdk import chat_body
from journey.clouds import PRICES, Cloud

GOOD = "Which queue does this ticket belong to? Judge by what is asked, not by the tone.\n\n{text}"
GONE_WRONG = "Judge by the tone.\n\n{text}"
SCHEMA = {
    "type": "object",
    "properties": {"queue": {"type": "string", "enum": ["billing", "bug", "how-to", "other"]}},
    "required": ["queue"],
    "additionalProperties": False,
}
ROWS = 50_000


def tickets(first: int, n: int) -> pl.DataFrame:
    return pl.DataFrame(
        {"text": [f"Ticket {i}: the invoice of order {7 * i} is open." for i in range(first, first + n)]}
    )


def known(n: int) -> lotwise.Golden:
    """Return tickets with what the good prompt answers about them."""
    frame = tickets(1_000_000, n)
    said = [json.loads(answer_text(chat_body(GOOD.format(text=text), SCHEMA), "chat")) for text in frame["text"]]
    return lotwise.Golden(frame.with_columns(queue=pl.Series([one["queue"] for one in said])), answers=["queue"])


def test_prompt_gone_wrong_costs_less_than_3_percent_of_the_job_and_nobody_gets_past(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = known(100)
    arguments = {"prices": PRICES, "golden": golden}
    desk = Cloud(
        tmp_path / "desk",
        tickets(0, ROWS),
        emulator,
        "openai",
        prompt=GONE_WRONG,
        schema=SCHEMA,
        arguments=arguments,
    )
    for name, value in desk.env(desk.api_key).items():
        monkeypatch.setenv(name, value)
    plan = lotwise.plan(desk.frame, GONE_WRONG, SCHEMA, model="openai:gpt-5-nano", ledger=desk.ledger_path, **arguments)
    assert plan.cost_low_usd is not None

    first = desk.call()

    assert first.error == "CanaryFailed"
    assert first.frame is not None
    assert first.frame["llm_state"].value_counts(sort=True).rows() == [("pending", ROWS - 500), ("succeeded", 500)]
    assert len(desk.batches()) == 1
    desk.assert_each_charged_once(600)
    spent = desk.bill_usd()
    print(f"spent {spent} of {plan.cost_low_usd} US dollars guessed low: {spent / plan.cost_low_usd:.2%}")
    assert 0 < spent < plan.cost_low_usd * 3 / 100

    tickets(200_000, 6_000).write_parquet(tmp_path / "tonight.parquet")
    run = desk.sql("SELECT id FROM run ORDER BY created_at LIMIT 1")["id"][0]
    others = [
        desk.start(),  # the same job in two processes at once
        desk.start(),
        desk.start(source=tmp_path / "tonight.parquet"),
        desk.start(resume=run, source=None),
    ]
    assert [child.wait().error for child in others] == ["CanaryFailed"] * 4
    assert desk.bill_usd() == spent

    tickets(0, 2_500).write_parquet(tmp_path / "mended.parquet")
    mended = desk.call(prompt=GOOD, source=tmp_path / "mended.parquet").rows
    assert mended["llm_state"].unique().to_list() == ["succeeded"]
    assert [row["text"] for row in mended.iter_rows(named=True) if row["queue"] is None] == []
    desk.assert_clean()
