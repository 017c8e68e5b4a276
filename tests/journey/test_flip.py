"""What is asked anew when one thing of a call is changed, and what is not, through the call itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from lotwise.testing import ScriptedExecutor

FRAME = pl.DataFrame({"a": ["x", "y"], "b": [1, 2], "unused": [0.5, 0.5]})
CALL: dict[str, Any] = {
    "prompt": "{a} {b}",
    "schema": {"one": pl.String, "two": pl.Boolean},
    "model": "scripted:choice",
    "system": "Be brief.",
    "params": {"temperature": 0.5, "max_tokens": 50},
    "poll_s": 0.01,
    "progress": False,
}
NEW: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "{a}  {b}"},
    "order of the places": {"prompt": "{b} {a}"},
    "schema": {"schema": {"one": pl.String, "two": pl.Int64}},
    "name of a field": {"schema": {"uno": pl.String, "two": pl.Boolean}},
    "order of the schema's properties": {"schema": {"two": pl.Boolean, "one": pl.String}},
    "no schema": {"schema": None},
    "model": {"model": "scripted:echo"},
    "system": {"system": "Be brief!"},
    "no system": {"system": None},
    "temperature": {"params": {"temperature": 0.6, "max_tokens": 50}},
    "no temperature": {"params": {"max_tokens": 50}},
    "max_tokens": {"params": {"temperature": 0.5, "max_tokens": 51}},
    "repeat": {"options": lotwise.Options(repeat=1)},
    "content": {"frame": FRAME.with_columns(a=pl.lit("z") + pl.col("a"))},
}
EXAMPLES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "none": [],
    "one": [({"a": "m", "b": 3}, {"one": "t", "two": True})],
    "another input": [({"a": "n", "b": 3}, {"one": "t", "two": True})],
    "another answer": [({"a": "m", "b": 3}, {"one": "t", "two": False})],
    "two": [({"a": "m", "b": 3}, {"one": "t", "two": True}), ({"a": "n", "b": 3}, {"one": "t", "two": True})],
    "two, the other way round": [
        ({"a": "n", "b": 3}, {"one": "t", "two": True}),
        ({"a": "m", "b": 3}, {"one": "t", "two": True}),
    ],
}
SAME: dict[str, dict[str, Any]] = {
    "column order": {"frame": FRAME.select("unused", "b", "a")},
    "row order": {"frame": FRAME.reverse()},
    "an unrelated column": {"frame": FRAME.with_columns(unused=pl.lit("other"))},
    "fewer rows": {"frame": FRAME.head(1)},
    "budget": {"budget": 5, "prices": {"input_mtok": 1, "output_mtok": 5}},
    "cut of the shards": {"options": lotwise.Options(shard_rows=1)},
    "names of the output": {"prefix": "p_"},
    "one struct": {"into": "whole"},
    "name of the run": {"name": "second"},
    "a rule that is not sent": {"check": pl.col("one").is_not_null()},
    "tier said": {"tier": "batch"},
}


def peek(**changes: Any) -> set[str]:
    """Return the ids that a call would ask for; nothing is written or sent."""
    given = {**CALL, **changes}
    out = lotwise.peek(given.pop("frame", FRAME), given.pop("prompt"), given.pop("schema"), **given)
    return set(out[f"{given.get('prefix', '')}llm_id"])


@pytest.mark.parametrize("change", NEW.values(), ids=NEW.keys())
def test_what_can_change_the_answer_is_asked_anew(change: dict[str, Any]) -> None:
    assert peek(**change).isdisjoint(peek())


def test_other_examples_are_asked_anew() -> None:
    asked = [key for examples in EXAMPLES.values() for key in peek(examples=examples)]
    assert len(set(asked)) == len(EXAMPLES) * FRAME.height


@pytest.mark.parametrize("change", SAME.values(), ids=SAME.keys())
def test_what_cannot_change_the_answer_is_not_asked_anew(change: dict[str, Any]) -> None:
    assert peek(**change) <= peek()


def test_calls_that_differ_in_nothing_that_counts_are_one_charge(tmp_path: Path) -> None:
    folder = tmp_path / "provider"
    for change in ({}, SAME["column order"], SAME["row order"], SAME["budget"], SAME["one struct"]):
        given = {**CALL, **change, "ledger": tmp_path / "ledger"}
        given["options"] = lotwise.Options(executor_options={"folder": folder})
        lotwise.map(given.pop("frame", FRAME), given.pop("prompt"), given.pop("schema"), **given)
    assert sorted(ScriptedExecutor(folder).bill()["key"]) == sorted(peek())
    given = {**CALL, **NEW["system"], "ledger": tmp_path / "ledger"}
    given["options"] = lotwise.Options(executor_options={"folder": folder})
    lotwise.map(FRAME, given.pop("prompt"), given.pop("schema"), **given)
    assert ScriptedExecutor(folder).bill().height == 4
