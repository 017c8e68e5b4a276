"""What synchronous calls have in common, whoever makes them: the body, the answer, and what its headers ask for.

An answer is embedded byte for byte in the envelope of a batch's output, so that one reader serves both.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import msgspec
import polars as pl

from lotwise.executors import encode
from lotwise.executors.reading import load_line, word

ROWS_A_SLICE = 256
"""Rows encoded at once for calls that go out one by one: a few milliseconds, in which no answer is taken in."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one call brought: a status and a body that is JSON, or a word that says what happened instead."""

    custom_id: str
    status: int | None = None
    request_id: str | None = None
    body: bytes | None = field(default=None, repr=False)
    failure: str | None = None


def bodies(requests: pl.DataFrame, parts_for: encode.PartsFor, max_tokens: int) -> Iterator[tuple[str, bytes]]:
    """Yield (custom id, body) of each request, the bytes equal to what a batch would carry."""
    for part in encode.lines(requests, parts_for, max_tokens, rows=ROWS_A_SLICE):
        for row_id, line in part.iter_rows():
            yield row_id, line.encode()


def one_line_of_json(body: bytes) -> bytes:
    """Return a body that can stand inside a line: itself if it is a JSON object, else a JSON string of its text.

    What `reading.load_line` takes in a batch's output is an object here too: NaN, half a surrogate pair and the
    like. A byte that is no UTF-8 becomes U+FFFD. A line break in JSON can only stand between tokens, so a space says
    the same.
    """
    try:
        body.decode()
    except UnicodeDecodeError:
        body = body.decode("utf-8", "replace").encode()
    body = body.removeprefix(BOM_UTF8)
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        if load_line(body) is None:
            return json.dumps(body.decode()).encode()
    return body.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in body or b"\r" in body else body


def error_words(body: bytes) -> list[str]:
    """Return the words (code, then type) by which an error's body names it, lower case; none for any other body."""
    try:
        told = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return []
    error = told.get("error", told) if isinstance(told, dict) else None
    fields = error if isinstance(error, dict) else {}
    return [w.lower() for name in ("code", "type") if (w := word(fields.get(name)))]


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the seconds that the provider asks to wait, or None; both forms of ``Retry-After`` and its ms kin."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        given = headers.get("retry-after")
        if given is None:
            return None
        if given.replace(".", "", 1).isdigit():
            return float(given)
        until = parsedate_to_datetime(given)
        # The provider's own clock where it tells it: ours may be minutes off.
        told = headers.get("date")
        start = parsedate_to_datetime(told) if told else now or datetime.now(UTC)
        return max(0.0, (until - start).total_seconds())
    except (ValueError, TypeError):
        return None
