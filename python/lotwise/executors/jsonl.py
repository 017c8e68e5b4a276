"""JSON lines, as bytes: a line ends at byte ``\\n`` and nowhere else.

`str.splitlines` and several SDK iterators also break at U+2028, U+0085 and their kin, which may stand inside a JSON
string; here a record is never cut in two. A download is written to a private temporary file first, so that a broken
connection yields nothing, and is read from there in bounded memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl

LINES_A_LIST = 5_000
"""Lines handed on at once: some MB, enough to spread the cost of a transaction or a frame."""

READ_BYTES = 1 << 20

_BLANK = b" \t\r"


def split_lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines of a byte stream, without their ``\\n`` and without blank ones.

    Parameters
    ----------
    chunks
        Pieces of the stream, cut anywhere, also inside a character.

    Returns
    -------
    Iterator of bytes
        Each line verbatim; a last line that lacks its ``\\n`` is yielded as it stands.

    Notes
    -----
    Memory is one chunk plus the longest line. A line over many chunks is joined once, at its end.
    """
    pending: list[bytes] = []
    for chunk in chunks:
        head, newline, rest = chunk.partition(b"\n")
        pending.append(head)
        if not newline:
            continue
        first = b"".join(pending)
        if first.strip(_BLANK):
            yield first
        *whole, last = rest.split(b"\n")
        for line in whole:
            if line.strip(_BLANK):
                yield line
        pending = [last]
    torn = b"".join(pending)
    if torn.strip(_BLANK):
        yield torn


def in_lists(lines: Iterable[bytes], size: int = LINES_A_LIST) -> Iterator[list[bytes]]:
    """Yield lines in lists of at most `size`; nothing for no lines."""
    group: list[bytes] = []
    for line in lines:
        group.append(line)
        if len(group) >= size:
            yield group
            group = []
    if group:
        yield group


def read_file(path: Path) -> Iterator[bytes]:
    """Yield a file's bytes in pieces of `READ_BYTES`."""
    with path.open("rb") as source:
        while chunk := source.read(READ_BYTES):
            yield chunk


@contextmanager
def temporary_path(suffix: str, directory: str | None = None) -> Iterator[Path]:
    """Make an empty file that only its owner can read, and remove it at the end.

    Parameters
    ----------
    suffix
        How the name ends.
    directory
        Where it is made; None for the system's temporary folder.
    """
    path = private_file(suffix, directory)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def private_file(suffix: str, directory: str | None = None) -> Path:
    """Make an empty file of mode 0600 and return its path; the caller removes it."""
    handle, name = tempfile.mkstemp(prefix="lotwise-", suffix=suffix, dir=directory)
    os.close(handle)
    return Path(name)


def append_lines(path: Path, lines: pl.Series, end: str = "\n") -> None:
    """Append a String series to a file, each value as it stands and followed by `end`.

    Notes
    -----
    Polars writes the column in one pass; no Python string is made a row.
    """
    with path.open("ab") as sink:
        # A comma or a quote in the text must not be quoted again: the column is JSON already.
        lines.to_frame().write_csv(sink, include_header=False, quote_style="never", line_terminator=end)
