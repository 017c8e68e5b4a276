"""What reading a result line has in common at every provider: the row it becomes, and how to be patient.

A line is tried on a typed decoder first, which takes the common shape only; what that declines is parsed leniently and
looked at field by field. A provider's own words pass into `detail` only if they are single words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Annotated, Any

import msgspec
import polars as pl

from lotwise.request import OUTCOMES, Code

Row = tuple[
    str | None,
    str,
    str | None,
    str | None,
    str | None,
    str | None,
    int | None,
    int | None,
    int | None,
    int | None,
]
"""One outcome, in the order of `OUTCOMES`."""

BLOCKED_WORDS = frozenset(
    {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active", "billing_error"}
    | {"invalid_api_key", "authentication_error", "permission_error", "account_deactivated"}
    | {"model_not_found", "deploymentnotfound"}
)
"""Error words by which a provider says that the account cannot send, whatever the status."""

# Made by this package where a synchronous call gave no answer (see `lotwise.executors.fanout`).
ANSWER_LOST = "answer_lost"
NOT_SENT = "not_sent"

_WORD = re.compile(r"[A-Za-z][A-Za-z_.]{0,63}")
INT64_MAX = 2**63 - 1
_ROWS_AT_ONCE = 200


def word(value: object) -> str | None:
    """Return a provider's error word if it is one, else None.

    Letters, ``_`` and ``.`` only: neither a sentence, which may quote the row, nor a key passes.
    """
    return value if isinstance(value, str) and _WORD.fullmatch(value) else None


def code_of_status(status: int) -> Code:
    """Name the code of an HTTP status that is not 200, where its body says nothing more exact."""
    if status in (401, 402, 403):
        return Code.ACCOUNT_BLOCKED
    if status == 429:
        return Code.RATE_LIMITED
    if status in (408, 409, 425) or status < 400 or status >= 500:
        return Code.SERVER_ERROR
    return Code.BAD_REQUEST


Tokens = Annotated[int, msgspec.Meta(ge=0, le=INT64_MAX)]
"""A token count, as typed decoders take it."""


def count(value: object) -> int | None:
    """Return a token count if the value is one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= INT64_MAX:
        return None
    return value


def text_of(value: object) -> str | None:
    """Return the value if it is text."""
    return value if isinstance(value, str) else None


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items_of(value: object) -> list[Any]:
    """Return the value if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []


def representable(text: str | None) -> str | None:
    """Replace lone surrogates, which JSON escapes can spell and UTF-8 cannot, by U+FFFD; the raw line keeps them."""
    return None if text is None else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def load_line(line: bytes) -> dict[str, Any] | None:
    """Parse one line leniently (a byte-order mark, NaN, half a surrogate pair, a bare control character pass).

    Returns None for what is no JSON object.
    """
    try:
        record = json.loads(line.decode("utf-8-sig"), strict=False)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def no_object(body: object) -> tuple[Code, str]:
    """Say what a 200 answer means whose body is no JSON object, as `live.one_line_of_json` or a provider passed it on.

    Nothing at all is a server's error, and text that never was an object is some other program's page: neither was
    charged. What begins as an object is the model's answer, spoiled on its way, and may have been.
    """
    if not isinstance(body, str) or not body.strip():
        return Code.SERVER_ERROR, "empty_body"
    return Code.UNREADABLE if body.lstrip().startswith("{") else Code.SERVER_ERROR, "not_json"


def unreadable(custom_id: str | None, detail: str) -> Row:
    """Make the row of a line that says nothing."""
    return (custom_id, Code.UNREADABLE.value, None, detail, None, None, None, None, None, None)


def outcomes(rows: Iterable[Row]) -> pl.DataFrame:
    """Make the `OUTCOMES` frame of rows."""
    columns: list[list[Any]] = [[] for _ in OUTCOMES]
    remaining = iter(rows)
    # A few rows at a time: tuples that live no longer than that never make the garbage collector walk them.
    while some := list(islice(remaining, _ROWS_AT_ONCE)):
        for column, values in zip(columns, zip(*some, strict=True), strict=True):
            column.extend(values)
    return pl.DataFrame(
        [
            pl.Series(name, values, dtype=dtype, strict=True)
            for (name, dtype), values in zip(OUTCOMES.items(), columns, strict=True)
        ]
    )


def read_with(
    common: Callable[[bytes], Row | None], any_shape: Callable[[bytes], Row], lines: Sequence[bytes]
) -> pl.DataFrame:
    """Read lines by the quick reader, and by the patient one where the quick one declines."""
    return outcomes(common(line) or any_shape(line) for line in lines)
