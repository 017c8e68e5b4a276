"""Rendered content, in immutable zstd Parquet files beside the database.

Long text in the database made planning a million rows three times slower (docs/decisions/0001-parts.md), so the
`request` table holds keys and the parts hold text. A part is written whole, synced and renamed into place before the
transaction that names it; a file that no transaction names is the rest of a crash and means nothing.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

import polars as pl

from lotwise.errors import LedgerDamaged

_NAME = re.compile(r"^[0-9a-f]{16}\.parquet$")


def write(folder: Path, content: pl.DataFrame) -> str:
    """Write `key` and `content` as one durable part, and return its id."""
    part = secrets.token_hex(8)
    final = folder / f"{part}.parquet"
    temporary = folder / f"{part}.tmp"
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        content.select("key", "content").write_parquet(file, compression="zstd", compression_level=1)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(final)
    _sync_folder(folder)
    return part


def read(folder: Path, parts: Iterable[str], keys: pl.Series) -> pl.DataFrame:
    """Read `key` and `content` of the wanted keys from the parts that hold them; order is not kept."""
    wanted = pl.DataFrame({"key": keys})
    frames: list[pl.DataFrame] = []
    for part in parts:
        path = folder / f"{part}.parquet"
        try:
            frame = pl.read_parquet(path, columns=["key", "content"])
        except FileNotFoundError:
            raise LedgerDamaged.at(path, "the part is missing") from None
        except (pl.exceptions.PolarsError, OSError) as error:
            raise LedgerDamaged.at(path, type(error).__name__) from None
        frames.append(frame.join(wanted, on="key", how="semi"))
    if not frames:
        return pl.DataFrame(schema={"key": pl.String, "content": pl.String})
    # A key stands in two parts when two processes enrolled it at once; both hold the same text.
    return pl.concat(frames).unique("key", keep="any")


def ours(folder: Path) -> list[Path]:
    """List the files in the folder that this module made, by their name; no other file is ever touched."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.match(path.name))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
