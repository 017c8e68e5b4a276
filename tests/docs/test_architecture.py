"""The tables of states in docs/architecture.md are the code's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

import pytest

from lotwise.lifecycle import REQUEST_MOVES, SHARD_MOVES

PAGE = Path(__file__).parents[2] / "docs" / "architecture.md"


def table(name: str) -> dict[str, tuple[str, ...]]:
    text = PAGE.read_text(encoding="utf-8")
    block = re.search(rf"<!-- {name} -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert block is not None, f"docs/architecture.md has no table {name}"
    rows = [line.strip("| \n").split("|") for line in block.group(1).splitlines()[2:]]
    return {row[0].strip(): tuple(word.strip() for word in row[1].split(",")) if len(row) > 1 else () for row in rows}


@pytest.mark.parametrize(
    ("name", "moves"), [("shard-moves", SHARD_MOVES), ("request-moves", REQUEST_MOVES)], ids=["shards", "requests"]
)
def test_documented_moves_are_the_codes(name: str, moves: Mapping[StrEnum, Sequence[StrEnum]]) -> None:
    coded = {str(origin): tuple(str(target) for target in targets) for origin, targets in moves.items()}
    assert table(name) == coded, f"docs/architecture.md and lifecycle.py disagree; mend the table {name}"
