"""Taking over answers to compatible requests (`reuse="compatible"`): the same messages to the same model, under another
schema, limit or parameters, whose stored answer is valid under this schema too. It costs nothing.

What is taken is written down before the run is (table `borrowed`), so that the run shows the same answer ever after,
and a process that takes the run up later buys nothing that was taken.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import datetime

import polars as pl

from lotwise.collect import answers_in
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.key import keys, spec_digest, spec_json
from lotwise.ledger import borrowed as borrowed_book
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger
from lotwise.request import Spec
from lotwise.validate import Validator

MAY_DIFFER = frozenset({"wire_schema", "params", "max_tokens"})
"""Fields of a spec in which a compatible one may differ: all but its messages, its model and its number of repeat."""

FOUND = pl.Schema(
    {"key": pl.String, "of_key": pl.String, "shard": pl.String, "value": pl.String, "lenient": pl.Boolean}
)
"""What `find` returns: the answer that each request would take, and from where."""


def compatible(ledger: Ledger, spec: Spec) -> list[str]:
    """Return the digests of the stored specs whose answers may be taken for requests of a spec."""
    ours, mine = json.loads(spec_json(spec)), spec_digest(spec)
    found = []
    for digest, body in run_book.specs_of(ledger, spec.model_name).iter_rows():
        theirs = json.loads(body)
        alike = all(ours.get(name) == theirs.get(name) for name in {*ours, *theirs} - MAY_DIFFER)
        if digest != mine and alike:
            found.append(digest)
    return found


def find(
    ledger: Ledger,
    spec: Spec,
    executor: BatchExecutor | StreamExecutor,
    validator: Validator,
    contents: Iterable[pl.Series],
) -> pl.DataFrame:
    """Look for answers that requests which were never sent can take over: of each the earliest valid one.

    Parameters
    ----------
    contents
        The frame's rendered rows, in slices; null is a skipped row.

    Returns
    -------
    `FOUND`, one row a request. Writes nothing.
    """
    others, mine = compatible(ledger, spec), spec_digest(spec)
    found: list[pl.DataFrame] = []
    for content in contents if others else ():
        distinct = content.drop_nulls().unique(maintain_order=True)
        key = keys(mine, distinct)
        pairs = pl.concat([pl.DataFrame({"key": key, "of_key": keys(other, distinct)}) for other in others])
        held = borrowed_book.candidates(ledger, pairs, validator.digest)
        verdict = validator.judge(answers_in(executor, held), held["code"]).select("ok", "value", "lenient")
        found.append(held.select("key", "of_key", "shard", "seq").with_columns(verdict))
    if not found:
        return pl.DataFrame(schema=FOUND)
    valid = pl.concat(found).filter("ok").sort("seq").unique("key", keep="first", maintain_order=True)
    return valid.select(FOUND.names())


def take(ledger: Ledger, found: pl.DataFrame, validator: Validator, run: str, now: datetime) -> int:
    """Write down what a run takes over, before the run itself, and return how many answers it got."""
    return borrowed_book.take(ledger, found, validator.digest, run, now)
