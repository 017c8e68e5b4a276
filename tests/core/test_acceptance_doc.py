"""The page on acceptance sampling holds what the code computes today, and its example runs."""

from __future__ import annotations

import importlib.util
import re
import struct
from pathlib import Path
from types import ModuleType

import pytest

from lotwise import stats

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw_acceptance_curves", DOCS / "draw_acceptance_curves.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page() -> str:
    return (DOCS / "acceptance-sampling.md").read_text(encoding="utf-8")


def test_tables_hold_what_the_code_computes(script: ModuleType, page: str) -> None:
    assert script.filled(page) == page, "run docs/draw_acceptance_curves.py and read the difference"


def test_every_computed_block_is_on_the_page(script: ModuleType, page: str) -> None:
    assert {match["name"] for match in script.BLOCK.finditer(page)} == set(script.BLOCKS)


def test_sizes_are_the_quoted_ones(page: str) -> None:
    assert "| 95 % sure | 278 | 370 | 383 | 385 |" in page
    assert "| 99 % sure | 400 | 623 | 660 | 664 |" in page
    assert [stats.sample_size(n).n for n in (1_000, 10_000, 100_000, 1_000_000)] == [278, 370, 383, 385]


def test_worked_example_shows_each_word(page: str) -> None:
    example = page.split("<!-- computed: worked-example -->")[1].split("<!-- end -->")[0]
    words = re.findall(r"`(\w+)` \|", example)
    assert words == ["release", "re_review", "continue"]


def test_figures_of_the_page_exist_and_are_wide_enough(page: str) -> None:
    figures = re.findall(r"\]\((img/[\w-]+\.png)\)", page)
    assert len(figures) == 3
    for figure in figures:
        head = (DOCS / figure).read_bytes()[:24]
        assert head[:8] == b"\x89PNG\r\n\x1a\n"
        assert struct.unpack(">I", head[16:20])[0] >= 1_200


def test_example_code_runs_and_says_what_its_comments_say(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = page.split("```python\n")[1].split("```")[0]
    exec(compile(code, "acceptance-sampling.md", "exec"), {})
    assert capsys.readouterr().out.startswith("Look at 278 rows of the 1,000")
    decision = stats.decide(5, 278, population=1_000)
    assert repr(decision).startswith("Decision(decision='release', reason='upper_bound_below_limit'")
