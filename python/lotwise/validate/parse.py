"""From an answer's text to a JSON value, and what a JSON reader hides on the way.

A reader takes the last of two properties with one name, follows brackets until the stack ends, and rounds a number
that is too wide, all without a word; each of these makes an answer invalid here. JSON in a fence or behind prose is
taken.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import polars as pl

from lotwise.request import Code
from lotwise.validate.faults import Fault

MOST_DEPTH = 100
"""Nested objects and lists of an answer; more would make the verdict depend on the stack's height at the call."""

CUT_OFF = frozenset({str(Code.TRUNCATED), str(Code.NEEDS_CONTINUATION)})
"""The outcome codes of answers that are not whole."""

_FENCE = re.compile(r"```[A-Za-z0-9]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```\s*\Z", re.DOTALL)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_NAME = r'"\s*:'
_HIDDEN_NAME = r"\\u00(22|20|3[aA])"
"""A quote, space or colon written as an escape can make the count of names in a text differ from the true one."""
_WIDE = r"[0-9]{19}|NaN|Infinity"
"""Texts that may hold a number beyond 64 bits, or none that JSON knows."""


@dataclass(frozen=True, kw_only=True)
class Parsed:
    """Answers as JSON, in their order.

    Attributes
    ----------
    texts
        The JSON in each answer; None where there is none.
    values
        What it says.
    results
        The value written again, compactly, or why the answer is invalid already.
    lenient
        Where the JSON was not the whole answer.
    """

    texts: list[str | None]
    values: list[Any]
    results: list[bytes | Fault]
    lenient: list[bool]


def parse(answers: Sequence[str | None], codes: Sequence[str]) -> Parsed:
    """Read answers as JSON; `codes` are their outcome codes."""
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    results: list[bytes | Fault] = []
    values: list[Any] = [None] * len(answers)
    lenient = [False] * len(answers)
    texts: list[str | None] = list(answers)
    opened = pl.Series(answers, dtype=pl.String).str.count_matches(r"[\[{]").fill_null(0)
    deep = {i for i in (opened > MOST_DEPTH).arg_true() if _is_deep(answers[i] or "")}
    for i, (text, code) in enumerate(zip(answers, codes, strict=True)):
        if code in CUT_OFF:
            texts[i] = None
            results.append(Fault.whole(code))
            continue
        if i in deep:
            texts[i] = None
            results.append(Fault.whole("invalid_json", "too_deep"))
            continue
        try:
            values[i] = decode(text)  # type: ignore[arg-type]
        except (msgspec.DecodeError, TypeError):
            inner, values[i] = _decoded_leniently(text or "", decode)
            texts[i] = inner
            if inner is None:
                blank = text is None or not text.strip()
                results.append(Fault.whole("empty" if blank else "invalid_json"))
                continue
            lenient[i] = True
        results.append(Fault.whole("empty") if is_blank(values[i]) else encode(values[i]))
    for i in _suspects(texts, results):
        if _has_duplicate(texts[i] or ""):
            results[i] = Fault.whole("invalid_json", "duplicate_key")
    return Parsed(texts=texts, values=values, results=results, lenient=lenient)


def refuse_wide_numbers(results: list[bytes | Fault]) -> None:
    """Make answers invalid whose numbers JSON readers disagree on, before Polars reads them."""
    values = pl.Series([each if isinstance(each, bytes) else None for each in results], dtype=pl.Binary)
    for i in values.cast(pl.String).str.contains(_WIDE).fill_null(False).arg_true():
        if has_wide_number(json.loads(results[i])):
            results[i] = Fault.whole("schema_mismatch", "number_out_of_range")


def _decoded_leniently(text: str, decode: Callable[[str], Any]) -> tuple[str | None, Any]:
    """Find the JSON in a fence, or behind prose up to the text's end; (None, None) when there is none.

    Only the first brace is tried: a later one may open an object inside a broken one.
    """
    fenced = _FENCE.search(text)
    body = fenced[1] if fenced else text
    start = body.find("{")
    if start < 0 or (fenced and "{" in text[: fenced.start()]):
        return None, None
    body = body[start:]
    if _is_deep(body):
        return None, None
    try:
        return body, decode(body)
    except msgspec.DecodeError:
        return None, None


def _is_deep(text: str) -> bool:
    """Tell whether a JSON text nests deeper than is judged; brackets inside strings do not count."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                return True
        elif token[0] in "]}":
            depth -= 1
    return False


def _suspects(texts: list[str | None], results: list[bytes | Fault]) -> list[int]:
    """Find the texts that may repeat a name: the value, written again, has another number of names."""
    frame = pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "value": pl.Series([each if isinstance(each, bytes) else None for each in results], dtype=pl.Binary),
        }
    )
    text, value = pl.col("text"), pl.col("value").cast(pl.String)
    differs = text.str.count_matches(_NAME) != value.str.count_matches(_NAME)
    odd = frame.select((differs | text.str.contains(_HIDDEN_NAME)) & value.is_not_null()).to_series()
    return odd.fill_null(False).arg_true().to_list()


def _has_duplicate(text: str) -> bool:
    """Tell whether any object of a JSON text has a name twice."""
    found = False

    def seen(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=seen)
    return found


def has_wide_number(value: Any, *, integers: bool = True) -> bool:
    """Tell whether a value holds an integer beyond 64 bits, or a number that JSON does not know."""
    if isinstance(value, dict):
        return any(has_wide_number(inner, integers=integers) for inner in value.values())
    if isinstance(value, (list, tuple, set)):
        return any(has_wide_number(inner, integers=integers) for inner in value)
    if isinstance(value, float):
        return not math.isfinite(value)
    return integers and isinstance(value, int) and not -(2**63) <= value < 2**64


def is_blank(value: Any) -> bool:
    """Tell whether a value holds nothing. A list without items says something: none."""
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list) or not value:
        return value is None
    # A loop, since this runs for every answer, and `all` with a generator takes three times as long.
    for inner in value:  # noqa: SIM110
        if not is_blank(inner):
            return False
    return True
