"""What a plan says of each row, of what would be left out and why, and of what the provider keeps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from lotwise import html
from lotwise.estimate import Plan
from lotwise.executors.limits import limits_of, table
from lotwise.request import Limits
from lotwise.testing import ScriptedExecutor

DF = pl.DataFrame({"title": ["a", None, "c", "d" * 500], "body": ["one", None, None, "four"]})
PRICES = {"input_mtok": "1", "output_mtok": "5"}


def plan(folder: Path, verb: str = "plan", **arguments: Any) -> Any:
    options = lotwise.Options(
        executor_options={
            "folder": folder / "provider",
            "limits": Limits(max_requests=10, max_bytes=10_000, max_row_bytes=700),
        }
    )
    given = {"model": "scripted:echo", "ledger": folder / "ledger", "options": options, "progress": False}
    return getattr(lotwise, verb)(DF, "{title}: {body}", **{**given, **arguments})


def test_each_row_that_is_left_out_says_why(tmp_path: Path) -> None:
    before = plan(tmp_path)
    assert before.rows["why"].to_list() == ["sent", "skipped", "skipped", "oversize"]
    assert before.rows["reason"].to_list() == [None, "null in title, body", "null in body", None]
    assert (before.n_to_send, before.n_oversize, before.n_skipped) == (1, 1, 2)
    assert "2 skipped for a null in title, body" in str(before)
    assert "1 request, over what the provider takes; never sent" in str(before)

    out = plan(tmp_path, "map")
    after = plan(tmp_path)
    assert out["llm_error"].to_list()[3] == "oversize"
    assert ScriptedExecutor(tmp_path / "provider").bill().height == before.n_to_send
    assert after.rows["why"].to_list() == ["reused", "skipped", "skipped", "ended"]
    assert after.rows["reason"].to_list()[3] == "oversize"
    assert (before.reading.n_rows, after.reading.n_rows) == (1, 1)  # no answer will be there to be read
    assert "1 without a valid answer (oversize); retry= opens them again" in str(after)


def test_what_would_not_be_sent_is_in_no_cost(tmp_path: Path) -> None:
    planned = plan(tmp_path, prices=PRICES)
    alone = lotwise.plan(
        DF.head(1),
        "{title}: {body}",
        model="scripted:echo",
        ledger=tmp_path / "ledger",
        prices=PRICES,
        options=lotwise.Options(executor_options={"folder": tmp_path / "provider"}),
    )
    assert (planned.n_bytes, planned.cost_high_usd) == (alone.n_bytes, alone.cost_high_usd)


def test_the_field_in_which_an_earlier_spec_differs_is_told_with_what_asking_again_costs(tmp_path: Path) -> None:
    plan(tmp_path, "map")
    planned = plan(tmp_path, params={"temperature": 1}, prices=PRICES)
    assert planned.close_spec == ("params",)
    assert "differs only in params; asking again costs up to $" in str(planned)
    assert (
        str(planned)
        .rpartition("differs")[2]
        .partition("\n")[0]
        .endswith('; reuse="compatible" takes its valid answers over')
    )

    assert plan(tmp_path, schema={"answer": pl.String}).close_spec == ("schema",)
    assert plan(tmp_path, params={"temperature": 1}, reuse="compatible").close_spec == ()
    other = plan(tmp_path, system="Be brief.")
    assert other.close_spec == ("system",)
    assert "reuse=" not in str(other)


def test_a_small_jobs_cost_is_rounded_outwards_and_not_to_nothing(tmp_path: Path) -> None:
    planned = plan(tmp_path, prices=PRICES, params={"max_tokens": 1})
    assert planned.cost_high_usd == Decimal(planned.n_bytes + 5) / 2_000_000  # a batch costs half
    assert 0 < planned.cost_low_usd < planned.cost_high_usd
    assert re.search(r"cost +up to \$0\.0001\n", str(planned))
    assert re.search(r"cost +less than \$0\.0001\n", str(plan(tmp_path, prices=dict.fromkeys(PRICES, "0.01"))))
    short = plan(tmp_path, prices=PRICES, budget=planned.cost_high_usd - Decimal("1e-9"), params={"max_tokens": 1})
    assert [note for note in short.warnings if "less than this may cost" in note]


def test_what_was_cut_off_may_cost_twice_the_output_when_it_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch = ScriptedExecutor.fetch

    def cut_off(self: ScriptedExecutor, batch_id: str) -> Iterator[list[bytes]]:
        for lines in fetch(self, batch_id):
            yield [line.replace(b'"stop"', b'"length"') for line in lines]

    prices = {"input_mtok": "0", "output_mtok": "5"}
    first = plan(tmp_path, prices=prices)
    monkeypatch.setattr(ScriptedExecutor, "fetch", cut_off)
    plan(tmp_path, "map", prices=prices)
    again = plan(tmp_path, prices=prices, retry="truncated")

    assert again.rows["why"].to_list() == ["retried", "skipped", "skipped", "ended"]
    assert again.cost_high_usd == 2 * first.cost_high_usd


def hosted(folder: Path, model: str, **arguments: Any) -> Plan:
    return lotwise.plan(DF, "{title}: {body}", model=model, ledger=folder / "ledger", prices=PRICES, **arguments)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_what_a_provider_keeps_of_batches_is_told_from_the_dated_table(tmp_path: Path, provider: str) -> None:
    planned = hosted(tmp_path, f"{provider}:some-model")
    kept_s = limits_of(provider).retention_s
    assert kept_s is not None
    assert planned.retention.startswith(f"for {kept_s / 86_400:g} days by {provider}: ")
    assert planned.retention.endswith(f"(checked {table()['checked']})")
    for shown in (str(planned), html.plan(planned)):
        assert planned.retention in shown


def test_a_retention_that_is_not_known_is_not_made_up(tmp_path: Path) -> None:
    planned = hosted(tmp_path, "openai:some-model", tier="interactive")
    assert planned.retention == "not known for openai, interactive: your account's terms with it say"


def test_copies_that_are_deleted_after_collecting_are_told(tmp_path: Path) -> None:
    planned = hosted(tmp_path, "anthropic:some-model", options=lotwise.Options(cleanup=True))
    assert planned.retention.endswith("; deleted there once a shard is collected")


def test_of_a_local_model_nothing_leaves_the_machine(tmp_path: Path) -> None:
    assert plan(tmp_path).retention == "nothing leaves this machine"
