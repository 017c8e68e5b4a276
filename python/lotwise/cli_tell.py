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

from lotwise.call import Arguments
from lotwise.errors import BadArgument, BadGolden, BadPrices, LotwiseError

_NAMES = "|".join(Arguments.__annotations__)
_AT_START = re.compile(rf"^(unknown )?({_NAMES}|Options:)(?=[: ])")
_ARGUMENT = re.compile(rf"""(?<![\w./-])({_NAMES})=(?!=)(["']([^"']*)["'])?""")
_OPTION = re.compile(r"(?:options=)?(?:lotwise\.)?Options\((\w+)=([^){]*)\)")
_PRICES = re.compile(r"prices=\{([^}]*)\}")
_PRICE = re.compile(r'"(\w+)": ([^,}]+)')
_EXECUTOR_OPTION = re.compile(r'options=lotwise\.Options\(executor_options=\{"(\w+)": "([^"]*)"\}\)')


def result(value: Any, text: str, *, as_json: bool) -> None:
    """Write a command's result to standard output: the value as JSON, or the text."""
    click.echo(json.dumps(plain(value), ensure_ascii=False, allow_nan=False) if as_json else text)


def note(text: str) -> None:
    """Tell the person at the keyboard something that is no result."""
    click.echo(text, err=True)


def error_in_words(error: LotwiseError, *, partial: str = "the ledger") -> str:
    """Say an error as `as_option` does; one about an argument begins with the option that it came in."""
    message = str(error)
    if isinstance(error, BadArgument | BadGolden | BadPrices):
        message = _AT_START.sub(lambda found: f"{found[1] or ''}{_option(found[2])}", message)
    return as_option(message, partial=partial)


def as_option(message: str, *, partial: str = "the ledger") -> str:
    """Say what is written for Python as the command line takes it: ``--ledger`` for ``ledger=``.

    `partial` is where the answers are that `.partial()` returns.
    """
    message = _EXECUTOR_OPTION.sub(r"--executor-option \1=\2", message)
    message = _PRICES.sub(
        lambda found: " ".join(f"--price {name}={value}" for name, value in _PRICE.findall(found[1])), message
    )
    message = _OPTION.sub(lambda found: f"--option {found[1]}{'=' if found[2] else ''}{found[2]}", message)
    message = _ARGUMENT.sub(lambda found: f"{_option(found[1])}{' ' if found[3] else ''}{found[3] or ''}", message)
    message = message.replace("params may not hold", "--param may not hold")
    return message.replace(" or .run.golden()", "").replace(".partial()", partial).rstrip()


def _option(argument: str) -> str:
    one_each = {"params": "param", "prices": "price", "options": "option", "Options:": "option"}
    return "--" + one_each.get(argument, argument).replace("_", "-")


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
