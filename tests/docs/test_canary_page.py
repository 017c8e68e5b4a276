"""The page on the canary holds what its own example prints, run from top to bottom on the scripted provider."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_evidence_page import ran

PAGE = Path(__file__).parents[2] / "docs" / "canary.md"


def test_canary_page_shows_what_its_example_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = PAGE.read_text(encoding="utf-8")

    assert ran(page, tmp_path) == page, "docs/canary.md shows other output; read the difference and take it over"
