"""How the commands speak: results to standard output, everything else to standard error, JSON when it was asked for."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import click
import polars as pl


def result(value: Any, text: str, *, as_json: bool) -> None:
    """Write a command's result to standard output: the value as JSON, or the text."""
    click.echo(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) if as_json else text)


def note(text: str) -> None:
    """Tell the person at the keyboard something that is no result."""
    click.echo(text, err=True)


def as_option(message: str) -> str:
    """Say an error's advice as the command line takes it: ``--ledger`` for ``ledger=``."""
    return re.sub(r"(?<![\w./-])ledger=", "--ledger ", message).rstrip()


def rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return a frame as values that JSON has: one object a row."""
    simple = frame.with_columns(
        pl.col(pl.Binary).bin.encode("hex"),
        pl.col(pl.Decimal).cast(pl.String),
        pl.when(pl.col(pl.Float32, pl.Float64).is_finite()).then(pl.col(pl.Float32, pl.Float64)),
    )
    loaded: list[dict[str, Any]] = json.loads(simple.write_json())
    return loaded


def table(frame: pl.DataFrame, *, width: int | None = None) -> str:
    """Draw a frame for reading: every row and column, long text cut."""
    if frame.is_empty():
        return "(none)"
    with pl.Config(
        tbl_rows=-1,
        tbl_cols=-1,
        tbl_width_chars=width or 1_000,
        fmt_str_lengths=48,
        fmt_table_cell_list_len=8,
        tbl_hide_dataframe_shape=True,
        tbl_hide_column_data_types=True,
        tbl_formatting="UTF8_FULL_CONDENSED",
    ):
        return str(frame)


def facts(pairs: Sequence[tuple[str, str]]) -> str:
    """Write named facts below each other, aligned."""
    width = max(len(name) for name, _ in pairs)
    return "\n".join(f"  {name:<{width}}  {value}" for name, value in pairs)


def plain(value: Any) -> Any:
    """Turn a value into what JSON has: exact decimals and times become text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {name: plain(part) for name, part in named.items() if not isinstance(part, pl.DataFrame)}
    if isinstance(value, pl.DataFrame):
        return rows(value)
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, Decimal | Path):
        return str(value)
    return value


def seconds(elapsed_s: float) -> str:
    """Write a time span as people say it."""
    if elapsed_s < 60:
        return f"{elapsed_s:.1f} s"
    minutes, rest = divmod(round(elapsed_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"
