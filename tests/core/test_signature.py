"""What `help()` and a notebook show of the five verbs."""

from __future__ import annotations

import inspect

import polars as pl
import pytest

import lotwise
from lotwise.call import Arguments

VERBS = ("map", "submit", "preview", "peek", "plan")
NAMES = list(Arguments.__annotations__)


@pytest.mark.parametrize("verb", VERBS)
def test_function_and_method_show_every_keyword(verb: str) -> None:
    frame = pl.DataFrame({"body": ["x"]})
    for shown in (getattr(lotwise, verb), getattr(frame.llm, verb)):  # type: ignore[attr-defined]
        parameters = inspect.signature(shown).parameters
        keywords = [name for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY]
        assert keywords == NAMES
        assert inspect.Parameter.VAR_KEYWORD not in {p.kind for p in parameters.values()}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", NAMES)
def test_every_keyword_is_explained_once(verb: str, name: str) -> None:
    lines = (inspect.getdoc(getattr(lotwise, verb)) or "").splitlines()
    assert [line for line in lines if line == name] == [name]


def test_a_default_that_is_shown_is_the_one_that_holds() -> None:
    shown = inspect.signature(lotwise.plan).parameters
    assert {name: shown[name].default for name in NAMES if shown[name].default is not None} == {"on_null": "skip"}
