"""What a checked call warns of, and how the values that it is given refuse what they do not know."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise.testing  # makes the scripted provider known
from lotwise import call as calls
from lotwise.errors import BadArgument, NotAFrame

TWO = pl.DataFrame({"body": ["a", "b"]})


@pytest.mark.parametrize(
    ("frame", "prompt", "warns"),
    [(TWO, "Say hello", True), (TWO, "Say {body}", False), (TWO.head(1), "Say hello", False)],
    ids=["no place", "a place", "one row"],
)
def test_a_prompt_that_names_no_column_is_warned_of_where_rows_share_it(
    tmp_path: Path, frame: pl.DataFrame, prompt: str, warns: bool
) -> None:
    options = lotwise.Options(executor_options={"folder": tmp_path})
    call = calls.prepare(frame, prompt, model="scripted:echo", options=options)
    assert ("the prompt names no column, so all rows are one request" in call.warnings) is warns


def test_a_pandas_frame_is_refused_with_the_way_to_make_one() -> None:
    error = NotAFrame.of(type("DataFrame", (), {"__module__": "pandas.core.frame"})())
    assert "pl.from_pandas(...) makes one" in str(error)


# --- values that are given to a call ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "given", "told"),
    [
        (lotwise.Options, {"shardrows": 500}, "unknown in lotwise.Options: 'shardrows' (did you mean shard_rows"),
        (lotwise.Acceptance, {"limits": 0.1}, "unknown in lotwise.Acceptance: 'limits' (did you mean limit"),
        (lotwise.Golden, {"frame": TWO, "answer": "kind"}, "unknown in lotwise.Golden: 'answer' (did you mean answers"),
    ],
    ids=["Options", "Acceptance", "Golden"],
)
def test_a_name_that_is_none_is_told_with_the_nearest_and_all_that_there_are(
    made: Any, given: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadArgument) as refused:
        made(**given)
    assert told in str(refused.value)
    assert str(refused.value).endswith("known are " + ", ".join(one.name for one in fields(made) if one.init))


def test_an_option_that_is_given_as_an_argument_is_told_where_it_goes() -> None:
    with pytest.raises(BadArgument, match=r"write options=lotwise\.Options\(lease_s=\.\.\.\)$"):
        TWO.llm.plan("say {text}", None, lease_s=3)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: lotwise.Options(500), "lotwise.Options(...): too many positional arguments; known are "),  # type: ignore[misc]
        (lambda: lotwise.Golden(), "lotwise.Golden(...): missing a required argument: 'frame'; known are "),  # type: ignore[call-arg]
    ],
    ids=["not by name", "nothing"],
)
def test_values_that_do_not_fit_are_told_in_words(make: Any, told: str) -> None:
    with pytest.raises(BadArgument) as refused:
        make()
    assert str(refused.value).startswith(told)


BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "text for a number": ({"shard_rows": "x"}, "shard_rows must be a whole number, 1 or more, or None, not 'x'"),
    "zero rows": ({"shard_rows": 0}, "shard_rows must be a whole number, 1 or more, or None, not 0"),
    "a truth for a number": ({"window": True}, "window must be a whole number, 1 or more, or None, not True"),
    "half a resend": ({"max_resends": 1.5}, "max_resends must be a whole number, 0 or more, not 1.5"),
    "negative time": ({"lease_s": -1}, "lease_s must be seconds, 0 or more, not -1"),
    "no time": ({"lease_s": None}, "lease_s must be seconds, 0 or more, not None"),
    "not a number": ({"lost_after_s": float("nan")}, "lost_after_s must be seconds, 0 or more, not nan"),
    "reserve": ({"deadline_reserve_s": "6h"}, "deadline_reserve_s must be seconds, 0 or more, or None, not '6h'"),
    "percent": ({"systemic_rate": 20}, "systemic_rate must be a share from 0 to 1, or None, not 20"),
    "spend": ({"retry_spend": -0.1}, "retry_spend must be a share, 0 or more, or None, not -0.1"),
    "word": ({"on_uncertain": "retry"}, "on_uncertain must be 'resend' or 'hold', not 'retry'"),
    "policy": ({"deadline_policy": "pay"}, "deadline_policy must be 'wait' or 'pay_twice', not 'pay'"),
    "flag": ({"cleanup": "no"}, "cleanup must be True or False, not 'no'"),
    "no dict": ({"executor_options": "base_url"}, "executor_options must be a dict by name"),
}


@pytest.mark.parametrize(("given", "told"), BAD_OPTIONS.values(), ids=BAD_OPTIONS)
def test_an_option_that_cannot_be_says_what_it_takes(given: dict[str, Any], told: str) -> None:
    with pytest.raises(BadArgument) as refused:
        lotwise.Options(**given)
    assert str(refused.value) == f"Options: {told}"


def test_options_are_values_like_any_other() -> None:
    options = lotwise.Options(shard_rows=500, systemic_rate=None)
    assert replace(options, shard_rows=2) == lotwise.Options(shard_rows=2, systemic_rate=None)
    assert copy.deepcopy(options) == options
    assert pickle.loads(pickle.dumps(options)) == options
    assert list(inspect.signature(lotwise.Options).parameters) == [
        one.name for one in fields(lotwise.Options) if one.init
    ]
