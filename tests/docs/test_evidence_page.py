"""The page on evidence holds what its own example prints, run from top to bottom on the scripted provider."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path

import pytest

from lotwise.evidence import CHANGED, EMPTY, LOT_OPEN, NOT_LOOKED, PARTLY
from lotwise.stats import REASONS

PAGE = Path(__file__).parents[2] / "docs" / "evidence.md"
STEP = re.compile(r"```python\n(?P<code>.*?)```\n(?:\n<!-- output -->\n```text\n(?P<output>.*?)```\n)?", re.DOTALL)


def ran(page: str, folder: Path) -> str:
    """Run the page's example in a folder, and return the page with what it printed."""
    names: dict[str, object] = {}

    def step(found: re.Match[str]) -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(found["code"], str(PAGE), "exec"), names)
        told = printed.getvalue().replace(str(folder), "...")
        return (
            found[0] if found["output"] is None else found[0].replace(f"```text\n{found['output']}", f"```text\n{told}")
        )

    return STEP.sub(step, page)


def test_page_shows_what_its_example_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")

    assert ran(page, tmp_path) == page, "docs/evidence.md shows other output; read the difference and take it over"


def test_page_explains_every_reason_that_a_row_can_show() -> None:
    page = PAGE.read_text(encoding="utf-8")
    # Judges have no say yet, so no row shows `no_human_labels`.
    reasons = {*REASONS, CHANGED, EMPTY, LOT_OPEN, NOT_LOOKED, PARTLY} - {"no_human_labels"}

    assert {reason for reason in reasons if f"| `{reason}` |" not in page} == set()
