"""Lines end at byte 0x0A and nowhere else, whatever the chunks."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise.executors import jsonl

# Every character at which some line iterator of Python or of an SDK would break as well.
SEPARATORS = "\u2028\u2029\u0085\x0b\x0c\x1c\x1d\x1e\r"


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Cut bytes at places, also inside characters."""
    ends = sorted({min(place, len(data)) for place in places} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(ends)]


@given(
    st.lists(st.text("ab\u2028\u0085\x1cé返", min_size=1), max_size=8),
    st.lists(st.integers(0, 60), max_size=8),
    st.booleans(),
)
def test_lines_come_back_whole_for_any_cut(texts: list[str], places: list[int], closed: bool) -> None:
    lines = [text.encode() for text in texts if text.strip(" \t\r")]
    data = b"\n".join(lines) + (b"\n" if closed else b"")
    assert list(jsonl.split_lines(cut(data, places))) == lines


@pytest.mark.parametrize("separator", SEPARATORS, ids=[f"U+{ord(c):04X}" for c in SEPARATORS])
def test_character_that_breaks_lines_elsewhere_stays_inside(separator: str) -> None:
    line = f'{{"a":"x{separator}y"}}'.encode()
    assert list(jsonl.split_lines([line + b"\n" + line + b"\n"])) == [line, line]


def test_last_line_without_its_newline_is_yielded_as_it_stands() -> None:
    assert list(jsonl.split_lines([b'{"a":1}\n{"a'])) == [b'{"a":1}', b'{"a']


def test_blank_lines_are_no_lines() -> None:
    assert list(jsonl.split_lines([b"\n\n \r\n", b"a\n", b"", b"\n"])) == [b"a"]


def test_line_over_many_chunks_is_joined_once() -> None:
    assert list(jsonl.split_lines([b"x"] * 100_000 + [b"\n"])) == [b"x" * 100_000]


@pytest.mark.parametrize(
    ("n", "sizes"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1])], ids=["none", "one", "full", "one over"]
)
def test_lists_are_full_but_the_last(n: int, sizes: list[int]) -> None:
    assert [len(group) for group in jsonl.in_lists([b"x"] * n, 3)] == sizes


def test_private_file_is_for_its_owner_and_is_removed(tmp_path: Path) -> None:
    with jsonl.temporary_path(".jsonl", str(tmp_path)) as path:
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent == tmp_path
    assert not path.exists()


def test_appended_lines_stand_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    texts = ['{"a":"x,\\"y\\""}', "{'a' : 1}", "", ' "quoted" ', "é\u2028返"]
    for text in texts:
        jsonl.append_lines(path, pl.Series("line", [text]), end=",\n")
    assert path.read_bytes() == "".join(text + ",\n" for text in texts).encode()


def test_memory_of_a_long_stream_is_one_list() -> None:
    alive = 0

    def endless() -> Iterator[bytes]:
        nonlocal alive
        while True:
            alive += 1
            yield b"line\n" * 10

    groups = jsonl.in_lists(jsonl.split_lines(endless()), 100)
    assert len(next(groups)) == 100
    assert alive <= 11
