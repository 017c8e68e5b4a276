"""The rules of ``check=``: named, tried on no rows before anything is sent, and run on the answers.

What a rule raises may quote an answer, so only the kind of the error leaves this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import msgspec
import polars as pl

from lotwise.errors import CheckFailedToRun, UnknownColumn
from lotwise.schema import Schema

Check = pl.Expr | Callable[[dict[str, Any]], "bool | str"]
"""A rule: an expression over the answer's typed columns that gives true, or a function of the value that gives True,
False or the kind of the fault."""

_KIND = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def name_of(check: object, number: int) -> str:
    """Name a rule for faults and errors."""
    if isinstance(check, pl.Expr):
        name = check.meta.output_name(raise_if_undetermined=False)
        return name if name is not None and _KIND.fullmatch(name) else f"check_{number}"
    if callable(check):
        name = getattr(check, "__name__", type(check).__name__)
        return name if _KIND.fullmatch(name) else f"check_{number}"
    raise CheckFailedToRun.gave(f"check_{number}", f"a {type(check).__name__}", "an expression or a function")


def try_expression(name: str, check: pl.Expr, schema: Schema) -> None:
    """Run a rule on no rows: tells unknown columns and wrong types before anything is sent."""
    plain = [each for each in check.meta.root_names() if not each.startswith("^") and each != "*"]
    if missing := [each for each in plain if each not in schema.names]:
        raise UnknownColumn.from_names(missing, schema.names, where=f"check {name!r}")
    run_expression(name, check, schema.dtypes.to_frame())


def run_expression(name: str, check: pl.Expr, frame: pl.DataFrame) -> pl.Series:
    """Give the verdicts of a rule, null as false."""
    raised: Exception | None = None
    verdicts = pl.DataFrame()
    try:
        verdicts = frame.select(check)
    except Exception as error:
        raised = error
    if raised is not None:
        raise CheckFailedToRun.raised(name, raised)
    if verdicts.width != 1 or verdicts.dtypes[0] != pl.Boolean:
        got = ", ".join(str(dtype) for dtype in verdicts.dtypes) or "no column"
        raise CheckFailedToRun.gave(name, got, "one Boolean column")
    if verdicts.height != frame.height and frame.height:
        raise CheckFailedToRun.gave(name, f"{verdicts.height} rows for {frame.height}", "a verdict for each row")
    return verdicts.to_series().fill_null(False)


def run_function(name: str, check: Callable[[dict[str, Any]], bool | str], value: str) -> str | None:
    """Give the kind of the fault that a rule finds, or None."""
    raised: Exception | None = None
    verdict: object = None
    try:
        verdict = check(msgspec.json.decode(value))
    except Exception as error:
        raised = error
    if raised is not None:
        raise CheckFailedToRun.raised(name, raised)
    if isinstance(verdict, str) and _KIND.fullmatch(verdict):
        return verdict
    if isinstance(verdict, bool):
        return None if verdict else name
    got = "text that is no fault kind" if isinstance(verdict, str) else f"a {type(verdict).__name__}"
    raise CheckFailedToRun.gave(name, got, "True, False or a fault kind of letters, digits, and _ . : -")
