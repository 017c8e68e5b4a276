"""Golden rows: questions whose answers people know, asked like any other row and never shown to the model.

A `Golden` is what the analyst gives; `GoldenSet` is the same set bound to one call: rendered by its prompt, its answers
written in the schema's dtypes. Each asking has a key of its own (purpose and round are in the spec that is hashed, and
neither is sent), so the wire body is that of a frame row and no frame row ever shares a golden row's answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal

import polars as pl

from lotwise.errors import BadGolden, CheckFailedToRun
from lotwise.fields import known_by_name
from lotwise.fingerprint import code_of
from lotwise.key import keys, spec_digest
from lotwise.render import OnNull, Template, render
from lotwise.request import Purpose, Spec
from lotwise.schema import Schema
from lotwise.stats import Rate
from lotwise.stats.distributions import proportion
from lotwise.typed import typed_columns

Match = Callable[[dict[str, Any], dict[str, Any]], bool]
"""Says of (what people know, what the model said), each by column and as JSON values, whether they agree."""

ROUNDS = 1_000_000
"""Rounds of a golden set between two planned repeats: a golden spec's repeat number is repeat * ROUNDS + round."""

SHARE = 0.01
"""Golden rows that ride in a shard, as a share of its frame rows."""


@known_by_name
@dataclass(frozen=True, kw_only=True, eq=False)
class Golden:
    """Rows with known answers, by which a prompt is let through and watched.

    Attributes
    ----------
    frame
        The golden rows: every column that the prompt uses, and the answer columns. Repeated rows count once.
    answers
        The names of the schema's fields that hold the known answers; they must not be used in the prompt.
    match
        "exact", or a function of (known, said), two dicts by answer column with JSON values, that says whether they
        agree.
    threshold
        The share of golden rows that must agree.
    """

    frame: pl.DataFrame = field(kw_only=False, repr=False)
    answers: Sequence[str]
    match: Literal["exact"] | Match = "exact"
    threshold: Rate = 0.9

    def __post_init__(self) -> None:
        if not isinstance(self.frame, pl.DataFrame) or self.frame.is_empty():
            raise BadGolden.because("frame must be a Polars frame with at least one row")
        object.__setattr__(self, "answers", (self.answers,) if isinstance(self.answers, str) else tuple(self.answers))
        if not self.answers:
            raise BadGolden.because("answers must name at least one column")
        if missing := [name for name in self.answers if name not in self.frame.columns]:
            raise BadGolden.because(f"the golden frame has no column {missing[0]!r}")
        if self.match != "exact" and not callable(self.match):
            raise BadGolden.because("match must be 'exact' or a function of (known, said)")
        proportion(self.threshold, "threshold")


@dataclass(frozen=True, kw_only=True, eq=False)
class GoldenSet:
    """A golden set as one call asks it.

    Attributes
    ----------
    rows
        Distinct rows in the order of `row`, which is a hash and so random: `row` (40 hex of the rendered content),
        `content` (null where only the ledger's answers are at hand), `answer` (JSON of the known answers).
    dtypes
        The answer columns with the schema's dtypes.
    match
        A function, None for exact, or "gone" where it lives in another process's code.
    threshold
        The share that must agree.
    """

    rows: pl.DataFrame = field(repr=False)
    dtypes: pl.Schema
    match: Match | Literal["gone"] | None
    threshold: float

    @classmethod
    def bind(
        cls,
        golden: Golden,
        template: Template,
        schema: Schema,
        examples: Sequence[tuple[str, str]],
        *,
        on_null: OnNull,
        dtypes: Mapping[str, pl.DataType],
    ) -> GoldenSet:
        """Render a golden set by a call's prompt, and write its answers in the schema's dtypes.

        Parameters
        ----------
        examples
            The rendered few-shot pairs, none of which may be a golden row.
        dtypes
            The frame's dtypes: golden columns are cast to them, so that the same row renders as the same text.

        Raises
        ------
        BadGolden
            A column is missing, an answer is none of the schema's values or would become another by the cast, a row is
            null where the prompt needs it or has two answers, or the known answer would be shown to the model.
        """
        if shown := [name for name in golden.answers if name in template.columns]:
            raise BadGolden.because(f"the prompt uses {shown[0]!r}, so the model would be shown the known answer")
        if missing := [name for name in template.columns if name not in golden.frame.columns]:
            raise BadGolden.because(f"the golden frame has no column {missing[0]!r}, which the prompt uses")
        if strange := [name for name in golden.answers if name not in schema.dtypes]:
            raise BadGolden.because(f"{strange[0]!r} is no field of the schema ({', '.join(schema.dtypes)})")
        wanted = pl.Schema({name: schema.dtypes[name] for name in golden.answers})
        contents = render(_cast(golden.frame, {n: dtypes[n] for n in template.columns}), template, on_null=on_null)
        answers = _cast(golden.frame, wanted)[list(wanted)]
        if strange := [one.name for one in answers if one.dtype.is_float() and not one.is_finite().all()]:
            raise BadGolden.because(f"column {strange[0]!r} of the golden frame holds a number that no JSON can say")
        known = answers.to_struct().struct.json_encode()
        if contents.null_count():
            raise BadGolden.because(f"{contents.null_count()} golden rows have a null in a column that the prompt uses")
        if {user for user, _ in examples} & set(contents):
            raise BadGolden.because("a golden row is also one of the examples, so the model would be shown its answer")
        rows = pl.DataFrame({"row": row_ids(contents), "content": contents, "answer": known}).unique().sort("row")
        if rows["row"].is_duplicated().any():
            raise BadGolden.because("a golden row stands there twice with different answers")
        match = None if golden.match == "exact" else golden.match
        return cls(rows=rows, dtypes=wanted, match=match, threshold=float(golden.threshold))

    def digest(self) -> str:
        """Name the set, 64 hex: what is asked, what is known, and how the two are compared."""
        if self.match == "gone":
            raise ValueError("a set whose function is gone cannot be named anew")
        how = "exact" if self.match is None else code_of(self.match)
        body = [list(self.dtypes), how, self.rows.select("row", "answer").rows()]
        return sha256(json.dumps(body, ensure_ascii=False).encode()).hexdigest()

    def said(self, values: pl.Series) -> pl.Series:
        """Write the answer columns of answers (JSON objects, or null) as the known answers are written, as `said`."""
        columns, _ = typed_columns(values, self.dtypes)
        return columns.to_struct("said").struct.json_encode()

    def agreed(self, said: pl.DataFrame) -> pl.Series:
        """Compare answers with what is known.

        Parameters
        ----------
        said
            `row` and `value` (JSON of a valid answer; null for none).

        Returns
        -------
        Boolean of the same height and order; no valid answer never agrees.

        Raises
        ------
        CheckFailedToRun
            The match function raised or gave no verdict.
        """
        pairs = (
            said.select("row", is_valid=pl.col("value").is_not_null())
            .with_columns(self.said(said["value"]))
            .join(self.rows.select("row", "answer"), on="row", how="left", maintain_order="left")
        )
        if self.match is None:
            return pairs.select(
                (pl.col("is_valid") & (pl.col("said") == pl.col("answer"))).fill_null(False)
            ).to_series()
        if self.match == "gone":
            raise ValueError("the function that compares golden answers lives in another process's code")
        verdicts = [
            valid and _matched(self.match, json.loads(known), json.loads(text))
            for valid, text, known in pairs.select("is_valid", "said", "answer").iter_rows()
        ]
        return pl.Series("agreed", verdicts, dtype=pl.Boolean)


def row_ids(contents: pl.Series) -> pl.Series:
    """Name golden rows by their rendered content, 40 hex."""
    return pl.Series("row", [sha256(text.encode()).hexdigest()[:40] if text is not None else None for text in contents])


def golden_spec(spec: Spec, round_: int) -> Spec:
    """Return the spec of a round's askings: that of the frame rows, but for what is not sent."""
    return replace(spec, purpose=Purpose.GOLDEN, repeat=spec.repeat * ROUNDS + round_)


def golden_keys(spec: Spec, round_: int, contents: pl.Series) -> pl.Series:
    """Return the keys of a round's askings."""
    return keys(spec_digest(golden_spec(spec, round_)), contents)


def riders(n_rows: int, n_golden: int) -> int:
    """Return how many golden rows ride with so many frame rows: one in a hundred, at least one, each at most once."""
    return min(max(1, round(n_rows * SHARE)), n_golden) if n_rows else 0


def _cast(frame: pl.DataFrame, dtypes: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Return the frame with columns in these dtypes; what would become another value by that is refused."""
    columns = []
    for name, dtype in dtypes.items():
        fault = ""
        try:
            columns.append(frame[name].cast(dtype))
            if not _is_kept(frame[name], columns[-1]):
                fault = "a cast would change them"
        except pl.exceptions.PolarsError as error:
            fault = type(error).__name__
        if fault:  # outside, so that Polars' own error, which quotes values, is not in its chain
            raise BadGolden.because(f"column {name!r} of the golden frame holds values that are no {dtype} ({fault})")
    return frame.with_columns(columns)


def _is_kept(given: pl.Series, made: pl.Series) -> bool:
    """Say whether a cast left the values what they are. Polars makes 2 of 2.7, true of 7, and a day of any number."""
    if given.dtype == made.dtype or given.null_count() == given.len():
        return True
    before, after = _kinds(given.dtype), _kinds(made.dtype)
    pairs = [{one, other} for one, other in zip(before, after, strict=False)]
    if len(before) != len(after) or any(len(pair) > 1 and not pair & {"text", "Null"} for pair in pairs):
        return False
    if before == ["text"] or after == ["text"] or made.dtype.is_float():
        return True  # read strictly, written down, or rounded as the same number in an answer is
    return made.cast(given.dtype).equals(given)


def _kinds(dtype: Any) -> list[str]:
    """Name the kinds of value that a dtype holds, from the outside in."""
    if isinstance(dtype, (pl.List, pl.Array)):
        return ["list", *_kinds(dtype.inner)]
    if isinstance(dtype, pl.Struct):
        return [kind for field in dtype.fields for kind in (f"field {field.name}", *_kinds(field.dtype))]
    if dtype.is_numeric():
        return ["number"]
    if isinstance(dtype, (pl.String, pl.Enum, pl.Categorical)):
        return ["text"]
    return ["moment" if isinstance(dtype, (pl.Date, pl.Datetime)) else str(dtype.base_type())]


def _matched(match: Match, known: dict[str, Any], said: dict[str, Any]) -> bool:
    name = getattr(match, "__name__", "match")
    try:
        verdict = match(known, said)
    except Exception as error:
        raised = error
    else:
        if isinstance(verdict, bool):
            return verdict
        raise CheckFailedToRun.gave(name, type(verdict).__name__, "True or False")
    raise CheckFailedToRun.raised(name, raised)
