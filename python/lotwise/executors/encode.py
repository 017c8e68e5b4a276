"""A frame of requests to lines of JSON, without a Python object a row.

A body is a constant head, the content as a JSON string, and a constant tail; Polars encodes the content column and
joins the three. Only rows whose attempt changes something against its request are encoded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
import polars as pl

from lotwise.errors import CreateRejected
from lotwise.executors import variant as variants

ROWS_A_SLICE = 2_000
"""Rows encoded at once: bounds the memory of the encoded text."""

# The strictest grammar of any provider, and safe inside a JSON string as it stands.
_CUSTOM_ID = r"^[a-zA-Z0-9_-]{1,64}$"


@dataclass(frozen=True, kw_only=True)
class BodyParts:
    """The two constant parts of a body: ``head + json(content) + tail``."""

    head: str
    tail: str


@dataclass(frozen=True, kw_only=True)
class Envelope:
    """What stands round the custom id and the body in a line of a batch: before, between, after."""

    before: str
    between: str
    after: str


PartsFor = Callable[[int], BodyParts]
"""Makes the constant parts for a limit of output tokens."""

_BARE = Envelope(before="", between="", after="")


def json_text(value: object) -> str:
    """Return compact JSON of a plain value."""
    return msgspec.json.encode(value).decode()


def _quoted(content: pl.Series) -> pl.Series:
    """Encode a String series as JSON strings."""
    # A struct is the only way into Polars' JSON writer; the name and the braces come off again.
    objects = content.alias("c").to_frame().to_struct().struct.json_encode()
    return objects.str.strip_prefix('{"c":').str.strip_suffix("}")


def check_ids(requests: pl.DataFrame) -> None:
    """Refuse custom ids that a provider would refuse, or would answer twice.

    Raises
    ------
    CreateRejected
        An id outside the grammar, or the same id twice; nothing was sent.
    """
    ids = requests["custom_id"]
    if ids.null_count() or not ids.str.contains(_CUSTOM_ID).all():
        raise CreateRejected("invalid_custom_id", input_fault=True)
    if ids.n_unique() < len(ids):
        raise CreateRejected("duplicate_custom_id", input_fault=True)


def lines(
    requests: pl.DataFrame,
    parts_for: PartsFor,
    max_tokens: int,
    envelope: Envelope = _BARE,
    *,
    rows: int = ROWS_A_SLICE,
) -> Iterator[pl.DataFrame]:
    """Encode a `REQUESTS` frame, slice by slice.

    Parameters
    ----------
    requests
        `REQUESTS`.
    parts_for
        Makes the constant parts of a body for a limit of output tokens.
    max_tokens
        The limit of rows that change nothing.
    envelope
        What stands round each body.
    rows
        Rows encoded at once.

    Yields
    ------
    pl.DataFrame
        ``custom_id`` and ``line``, both String; rows in order.
    """
    base = parts_for(max_tokens)
    bare = envelope is _BARE
    for part in requests.select("custom_id", "content", "variant").iter_slices(rows):
        ids = [] if bare else [pl.lit(envelope.before), pl.col("custom_id"), pl.lit(envelope.between)]
        encoded = part.select(
            "custom_id",
            line=pl.concat_str([*ids, pl.lit(base.head), _quoted(part["content"]), pl.lit(base.tail + envelope.after)]),
        )
        if part["variant"].null_count() < len(part):
            changed = pl.Series(
                "changed",
                [
                    None
                    if variant is None
                    else _changed_line(row_id, content, variant, parts_for, max_tokens, envelope)
                    for row_id, content, variant in part.iter_rows()
                ],
                dtype=pl.String,
            )
            encoded = encoded.with_columns(line=changed.fill_null(encoded["line"]))
        yield encoded


def _changed_line(
    custom_id: str, content: str, variant: str, parts_for: PartsFor, max_tokens: int, envelope: Envelope
) -> str:
    content, settings = variants.apply(content, variant)
    parts = parts_for(settings.get("max_tokens", max_tokens))
    start = "" if envelope is _BARE else envelope.before + custom_id + envelope.between
    return f"{start}{parts.head}{json_text(content)}{parts.tail}{envelope.after}"


def body(content: str, variant: str | None, parts_for: PartsFor, max_tokens: int) -> bytes:
    """Return the body of one request, byte for byte as batch and live calls send it."""
    content, settings = variants.apply(content, variant)
    parts = parts_for(settings.get("max_tokens", max_tokens))
    return f"{parts.head}{json_text(content)}{parts.tail}".encode()


def sizes(content_bytes: pl.Series, parts: BodyParts, envelope: Envelope) -> pl.Series:
    """Return an upper bound of each line's bytes (Int64), its newline included, from its content's as sent.

    Notes
    -----
    `content_bytes` is `plan.json_bytes` of the content, so the bound is exact but for rows with a variant.
    """
    return (content_bytes.cast(pl.Int64) + _constant_bytes(parts, envelope)).alias("bytes")


def _constant_bytes(parts: BodyParts, envelope: Envelope) -> int:
    # The length of lotwise's own ids; and a comma with a newline where lines are items of an array.
    custom_id, quotes, newline = 57, 2, 2
    text = envelope.before + envelope.between + envelope.after + parts.head + parts.tail
    return len(text.encode()) + custom_id + quotes + newline
