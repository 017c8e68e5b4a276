"""Tables as files: read a frame by the file's suffix, and write one so that there is a whole file or none.

A CSV has no types. A column of it becomes numbers only where writing them again gives the same text, so that `007` and
`1.50` reach the prompt and the output as they were written. What parts its columns is a comma, or the semicolon or tab
that spreadsheets write where the comma is for decimals.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO

import polars as pl

from lotwise.errors import UnreadableTable, UnwritableTable
from lotwise.render import text_of


def read(path: Path) -> pl.DataFrame:
    """Read a Parquet, CSV or NDJSON file, by its suffix.

    Raises
    ------
    UnreadableTable
        There is no such file, its suffix says nothing, or it does not hold what the suffix says.
    """
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UnreadableTable.of(path, f"its suffix is none of {', '.join(_READERS)}")
    failure = None
    try:
        return reader(path)
    except FileNotFoundError:
        failure = "there is no such file"
    except OSError as error:
        failure = error.strerror or type(error).__name__
    except pl.exceptions.NoDataError:
        failure = "it is empty"
    except pl.exceptions.PolarsError as error:  # its text may quote a row
        failure = f"it is no {path.suffix.lower().lstrip('.')} file that Polars can read ({type(error).__name__})"
        if path.suffix.lower() != ".parquet" and not _is_utf8(path):
            failure = "it is not UTF-8; save it as such (spreadsheets call it CSV UTF-8)"
    raise UnreadableTable.of(path, failure)


def check_target(target: Path, source: Path | None) -> None:
    """Refuse a place that cannot be written to, before anything is spent.

    Without a `source` the target is for somebody to fill in, and no file that is there is overwritten.

    Raises
    ------
    UnwritableTable
        Its suffix says nothing, it is the input itself (under whatever name), a file that may have been filled in, a
        folder, or in no writable folder.
    """
    if target.suffix.lower() not in _WRITERS:
        raise UnwritableTable.of(target, f"its suffix is none of {', '.join(_WRITERS)}")
    if target.is_dir():
        raise UnwritableTable.of(target, "it is a folder")
    if source is None and target.exists():
        raise UnwritableTable.of(target, "the file exists, and is not overwritten; it may hold verdicts")
    if source is not None and target.exists() and source.exists() and target.samefile(source):
        raise UnwritableTable.of(target, "it is the input, which is never overwritten")
    folder = target.resolve().parent
    if not folder.is_dir():
        raise UnwritableTable.of(target, "its folder does not exist")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UnwritableTable.of(target, "no permission to write in its folder")


def write(frame: pl.DataFrame, path: Path) -> None:
    """Write a frame as Parquet, CSV or NDJSON, by the suffix. Whoever looks sees the old file or the whole new one.

    In a CSV, lists and structs are JSON.

    Raises
    ------
    UnwritableTable
        The file could not be written; what was there before is untouched.
    """
    target = path.resolve()  # through a link, which stays one
    writer = _WRITERS[target.suffix.lower()]
    failure = None
    try:
        with _replacing(target) as file:
            writer(frame, file)
    except OSError as error:
        failure = error.strerror or type(error).__name__
    except pl.exceptions.PolarsError as error:
        failure = f"Polars cannot write these columns so ({type(error).__name__}); use .parquet"
    if failure is not None:
        raise UnwritableTable.of(path, failure)


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """Yield a file beside the target that takes its place, and its mode, when the block ends well."""
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise


def _umask() -> int:
    mask = os.umask(0o077)  # there is no way to ask without setting it
    os.umask(mask)
    return mask


def _is_utf8(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            while file.read(1 << 20):
                pass
    except UnicodeDecodeError:
        return False
    return True


def _separator(path: Path) -> str:
    with path.open("rb") as file:
        header = file.readline(1 << 20)
    return next((chr(one) for one in b";\t" if one in header and b"," not in header), ",")


def _read_csv(path: Path) -> pl.DataFrame:
    separator = _separator(path)
    text = pl.read_csv(path, infer_schema=False, separator=separator)
    try:
        typed = pl.read_csv(path, infer_schema_length=None, separator=separator)
    except pl.exceptions.PolarsError:
        return text
    same = [
        guessed if guessed.cast(pl.String).equals(written) else written
        for guessed, written in zip(typed.get_columns(), text.get_columns(), strict=True)
    ]
    return pl.select(same)  # a frame made of them would call one without a name column_0


def _write_csv(frame: pl.DataFrame, file: IO[bytes]) -> None:
    flat = [_json(column) if column.dtype.is_nested() else column for column in frame.get_columns()]
    pl.select(flat).write_csv(file)


def _json(column: pl.Series) -> pl.Series:
    named = column.alias("nested")
    return named.to_frame().select(text_of("nested", column.dtype)).to_series().alias(column.name)


_READERS: Mapping[str, Callable[[Path], pl.DataFrame]] = {
    ".parquet": pl.read_parquet,
    ".csv": _read_csv,
    ".ndjson": lambda path: pl.read_ndjson(path, infer_schema_length=None),
    ".jsonl": lambda path: pl.read_ndjson(path, infer_schema_length=None),
}

_WRITERS: Mapping[str, Callable[[pl.DataFrame, IO[bytes]], None]] = {
    ".parquet": lambda frame, file: frame.write_parquet(file),
    ".csv": _write_csv,
    ".ndjson": lambda frame, file: frame.write_ndjson(file),
    ".jsonl": lambda frame, file: frame.write_ndjson(file),
}
