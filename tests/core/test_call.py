"""What a checked call warns of."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lotwise.testing  # makes the scripted provider known
from lotwise import call as calls
from lotwise.errors import NotAFrame

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
