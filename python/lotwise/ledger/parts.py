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

_NAME = re.compile(r"^[0-9a-f]{16}\.(parquet|tmp)$")


def write(folder: Path, content: pl.DataFrame) -> str:
    """Write `key` and `content` as one durable part, and return its id."""
    while True:
        part = secrets.token_hex(8)
        temporary = folder / f"{part}.tmp"
        descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            content.select("key", "content").write_parquet(file, compression="zstd", compression_level=1)
            file.flush()
            os.fsync(file.fileno())
        try:
            temporary.rename(folder / f"{part}.parquet")
        except FileNotFoundError:
            continue  # a purge in another process took it for the rest of a crash
        sync_folder(folder)
        return part


def read(folder: Path, parts: Iterable[str], keys: pl.Series) -> pl.DataFrame:
    """Read `key` and `content` of the wanted keys from the parts that hold them; order is not kept."""
    wanted = pl.DataFrame({"key": keys})
    frames = [load(folder, part).join(wanted, on="key", how="semi") for part in parts]
    if not frames:
        return pl.DataFrame(schema={"key": pl.String, "content": pl.String})
    # A key stands in two parts when two processes enrolled it at once; both hold the same text.
    return pl.concat(frames).unique("key", keep="any")


def load(folder: Path, part: str) -> pl.DataFrame:
    """Read the whole of one part. Raises `LedgerDamaged` when it is missing or cannot be decoded."""
    path = folder / f"{part}.parquet"
    try:
        return pl.read_parquet(path, columns=["key", "content"])
    except FileNotFoundError:
        raise LedgerDamaged.at(path, "the part is missing") from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise LedgerDamaged.at(path, type(error).__name__) from None


def exists(folder: Path, part: str) -> bool:
    """Say whether a part's file is there."""
    return (folder / f"{part}.parquet").is_file()


def ours(folder: Path) -> list[Path]:
    """List the files in the folder that this module made, whole or left half-written, by their name.

    No other file is ever touched.
    """
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _NAME.match(path.name))


def sync_folder(folder: Path) -> None:
    """Make renames and removals in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
