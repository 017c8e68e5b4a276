"""Rendering: a template and a frame become one text a row, by a fixed rule for every dtype.

`{column}` is a place for a column's text; `{{` and `}}` are braces. A template is parsed once and values are put into
it as they are, so a value that looks like a template is never read as one. All rows are rendered in one expression.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from lotwise.errors import BadExample, BadTemplate, EmptyTemplate, UnknownColumn, UnrenderableColumn
from lotwise.schema import Schema

OnNull = Literal["skip", "render"]
"""What a null in a used column does: skip the row, or stand in its text as the word ``null``."""

NULL_TEXT = "null"
"""The text of a null under ``on_null="render"``: JSON's word, the same as inside lists and structs."""

CACHEABLE_CHARS = 4_096
"""Shared text below about 1,024 tokens (four characters a token) is cached by no hosted provider."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """A parsed prompt: fixed texts with places for columns between them.

    Attributes
    ----------
    texts
        The fixed texts, braces already single; one more than there are places.
    places
        The column of each place, in order; a column may stand in several.
    """

    texts: tuple[str, ...]
    places: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.places) + 1:
            raise ValueError("a template has one more text than places")

    @classmethod
    def parse(cls, text: str) -> Template:
        """Read a prompt.

        Parameters
        ----------
        text
            Text with places. A place holds a column's exact name, spaces and all, except for names with a brace.

        Returns
        -------
        Template

        Raises
        ------
        EmptyTemplate
            The text is empty or only white space.
        BadTemplate
            A brace has no partner, or a place names nothing.
        """
        if not text.strip():
            raise EmptyTemplate.from_text()
        texts, places, at = [""], [], 0
        while at < len(text):
            here = text[at]
            if here not in "{}":
                end = min((i for i in (text.find("{", at), text.find("}", at)) if i >= 0), default=len(text))
                texts[-1] += text[at:end]
                at = end
            elif text[at : at + 2] == here * 2:
                texts[-1] += here
                at += 2
            elif here == "}":
                raise BadTemplate.at(text, at, "a } without a {")
            else:
                end = text.find("}", at)
                name = text[at + 1 : end]
                if end < 0 or "{" in name:
                    raise BadTemplate.at(text, at, "a { without a }")
                if not name:
                    raise BadTemplate.at(text, at, "a place without a name")
                places.append(name)
                texts.append("")
                at = end + 1
        return cls(texts=tuple(texts), places=tuple(places))

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns used, each once, in order of first use."""
        return tuple(dict.fromkeys(self.places))

    @property
    def head(self) -> str:
        """The fixed text before the first place: the same in every row."""
        return self.texts[0]

    def check(self, available: Sequence[str]) -> None:
        """Refuse a template that names a column not among `available`.

        Raises
        ------
        UnknownColumn
            With the missing names and the nearest available ones.
        """
        missing = [name for name in self.columns if name not in set(available)]
        if missing:
            raise UnknownColumn.from_names(missing, available)


def render(frame: pl.DataFrame, template: Template, *, on_null: OnNull = "skip") -> pl.Series:
    """Render one text a row.

    Parameters
    ----------
    frame
        The rows.
    template
        The prompt.
    on_null
        "skip": a null in a used column makes the row null, which is a skipped row. "render": it is written as the
        word ``null``.

    Returns
    -------
    pl.Series
        String, named "content", of the frame's height.

    Raises
    ------
    UnknownColumn
        The template names a column that the frame lacks.
    UnrenderableColumn
        A used column has no text; told before any row is rendered.

    Notes
    -----
    One expression over the whole frame; no Python a row. The rule for each dtype stands at `text_of`.
    """
    if on_null not in ("skip", "render"):
        raise ValueError(f"on_null is 'skip' or 'render', not {on_null!r}")
    template.check(frame.columns)
    # Columns go by number in here: Polars reads names such as "*" and "^a$" as patterns.
    number = {name: str(i) for i, name in enumerate(template.columns)}
    used = pl.DataFrame([frame.get_column(name).alias(number[name]) for name in template.columns])
    text = {name: _text(pl.col(number[name]), frame.schema[name], name) for name in template.columns}
    if on_null == "render":
        text = {name: each.fill_null(NULL_TEXT) for name, each in text.items()}
    if not template.places:
        return pl.Series("content", [template.head], dtype=pl.String).new_from_index(0, frame.height)
    parts: list[pl.Expr] = []
    for i, fixed in enumerate(template.texts):
        if fixed:
            parts.append(pl.lit(fixed))
        if i < len(template.places):
            parts.append(text[template.places[i]])
    return used.select(pl.concat_str(parts).alias("content")).to_series()


def text_of(name: str, dtype: pl.DataType) -> pl.Expr:
    """Give the expression that writes a column as text. Equal values have equal texts, however they are stored.

    ==========================  =====================================================================================
    dtype                       text
    ==========================  =====================================================================================
    String, Categorical, Enum   the string itself
    Boolean                     ``true``, ``false``
    integers                    decimal digits
    Float16, 32, 64             the fewest digits that read back as the same value of that width: ``0.1``, ``3.0``,
                                ``1e-7``, ``1e16``, ``-0.0``, ``NaN``, ``inf``
    Decimal                     exact, without trailing zeros of the scale: ``19.9``, ``100``
    Date                        ``2024-01-02``
    Datetime                    ``2024-01-02T03:04:05.12``, a fraction only where there is one, whatever the time
                                unit; with a time zone the offset follows: ``+01:00``
    Time                        ``03:04:05.12``
    Duration                    ISO 8601: ``P1DT3.5S``
    List, Array, Struct         compact JSON; names kept, not ASCII kept; numbers and booleans as JSON has them, all
                                else as the text above in quotes (Decimal too, to stay exact); NaN and infinity, for
                                which JSON has no word, as null
    Map                         JSON: a list of ``{"key":...,"value":...}`` in the map's order
    Null                        null
    Binary, Object, Extension   refused, also inside the nested ones
    ==========================  =====================================================================================

    Parameters
    ----------
    name
        The column; Polars reads patterns such as ``^a$`` as patterns here.
    dtype
        Its dtype.

    Returns
    -------
    pl.Expr
        String; null where the value is null.

    Raises
    ------
    UnrenderableColumn
        The dtype, or one inside it, has no text.
    """
    return _text(pl.col(name), dtype, name)


def render_examples(
    template: Template,
    examples: Iterable[tuple[Mapping[str, Any], Any]],
    schema: Schema,
    *,
    dtypes: Mapping[str, pl.DataType] | None = None,
) -> tuple[tuple[str, str], ...]:
    """Render few-shot pairs by the rule that the rows follow.

    Parameters
    ----------
    template
        The prompt of the rows.
    examples
        Pairs of an input, by column, and the answer. A None in an input is written as ``null``.
    schema
        The schema of the answers.
    dtypes
        The frame's dtypes, so that 3 in an example reads ``3.0`` where the column is a float; None takes the dtype
        that Polars gives the value.

    Returns
    -------
    tuple
        (user text, answer text) pairs in the order given; an answer's text is compact JSON in the schema's order of
        properties, or the text itself where the schema is text.

    Raises
    ------
    UnknownColumn
        An input lacks a column that the template uses.
    BadExample
        An answer has not the schema's shape, or an input not its column's dtype.
    """
    rendered = []
    if not isinstance(examples, Iterable):
        raise BadExample.no_pair()
    for pair in examples:
        given, answer = _pair(pair)
        missing = [name for name in template.columns if name not in given]
        if missing:
            raise UnknownColumn.from_names(missing, given, where="the prompt, rendered for an example,")
        known = dtypes or {}
        row = pl.DataFrame([_one_value(name, given[name], known.get(name)) for name in template.columns])
        user = render(row, template, on_null="render")
        rendered.append((template.head if not template.places else str(user.item()), schema.example_text(answer)))
    return tuple(rendered)


def _one_value(name: str, value: object, dtype: pl.DataType | None) -> pl.Series:
    try:
        return pl.Series(name, [value], dtype=dtype)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        raise BadExample.other_dtype(name, str(dtype)) from None


def _pair(pair: object) -> tuple[Mapping[str, Any], Any]:
    """Refuse an example that is no pair of an input by column and an answer."""
    if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2 or not isinstance(pair[0], Mapping):
        raise BadExample.no_pair()
    return pair[0], pair[1]


def cache_warning(template: Template, shared_chars: int) -> str | None:
    """Say when no provider can cache the shared text, though it could if the first place stood later.

    Parameters
    ----------
    template
        The prompt.
    shared_chars
        Characters of the system message and the examples, which every request shares.

    Returns
    -------
    str or None
        One sentence; None when enough is shared already, or too little fixed text follows to change that.
    """
    shared = shared_chars + len(template.head)
    behind = sum(map(len, template.texts[1:]))
    if shared >= CACHEABLE_CHARS or shared + behind < CACHEABLE_CHARS:
        return None
    return (
        f"only the first {shared:,} characters are the same in every request, too few to be cached; "
        f"{behind:,} more of fixed text stand after {{{template.places[0]}}}: put the places at the prompt's end"
    )


def _text(value: pl.Expr, dtype: pl.DataType, column: str) -> pl.Expr:
    """Write values of one dtype as text; `column` names the column in the error."""
    if dtype.is_nested():
        # json_encode wants a struct, and writes the word null for a null one.
        json = pl.struct(_jsonable(value, dtype, column, dtype).alias("v")).struct.json_encode()
        return pl.when(value.is_not_null()).then(json.str.strip_prefix('{"v":').str.strip_suffix("}"))
    return _leaf(value, dtype, column, dtype)


def _leaf(value: pl.Expr, dtype: pl.DataType, column: str, whole: pl.DataType) -> pl.Expr:
    """Write values of a dtype that is not nested as text; `whole` is the column's dtype."""
    if isinstance(dtype, (pl.Binary, pl.Object, pl.Unknown, pl.BaseExtension)):
        raise UnrenderableColumn.from_dtype(column, whole, dtype)
    if isinstance(dtype, pl.Datetime):
        text = _trimmed(value.dt.to_string("%Y-%m-%dT%H:%M:%S%.9f"))
        return text if dtype.time_zone is None else pl.concat_str(text, value.dt.to_string("%:z"))
    if isinstance(dtype, pl.Date):
        return value.dt.to_string("%Y-%m-%d")
    if isinstance(dtype, pl.Time):
        return _trimmed(value.dt.to_string("%H:%M:%S%.9f"))
    if isinstance(dtype, pl.Duration):
        return value.dt.to_string("iso")
    if isinstance(dtype, pl.Decimal):
        return _trimmed(value.cast(pl.String)) if dtype.scale else value.cast(pl.String)
    if dtype.is_float():
        return value.cast(pl.String).str.replace("e+", "e", literal=True)
    return value.cast(pl.String)


def _trimmed(text: pl.Expr) -> pl.Expr:
    """Drop the trailing zeros of a fraction, and its point when nothing is left. The text must have a fraction."""
    return text.str.strip_chars_end("0").str.strip_chars_end(".")


def _jsonable(value: pl.Expr, dtype: pl.DataType, column: str, whole: pl.DataType) -> pl.Expr:
    """Turn values into what `json_encode` writes by our rule: leaves without a JSON form become their text."""
    if isinstance(dtype, pl.Map):
        entries = pl.List(pl.Struct({"key": dtype.key, "value": dtype.value}))
        return _jsonable(value.cast(entries), entries, column, whole)
    if isinstance(dtype, pl.List):
        return value.list.eval(_jsonable(pl.element(), _dtype(dtype.inner), column, whole))
    if isinstance(dtype, pl.Array):
        # An array of several dimensions has one more array inside, whatever its shape says.
        inner = _dtype(dtype.inner)
        return value.arr.to_list().list.eval(_jsonable(pl.element(), inner, column, whole))
    if isinstance(dtype, pl.Struct):
        if not dtype.fields:
            return value
        numbered = value.struct.rename_fields([str(i) for i in range(len(dtype.fields))])
        fields = [
            _jsonable(numbered.struct.field(str(i)), _dtype(field.dtype), column, whole).alias(field.name)
            for i, field in enumerate(dtype.fields)
        ]
        return pl.when(value.is_not_null()).then(pl.struct(fields))
    text = _leaf(value, dtype, column, whole)
    in_json = dtype.is_integer() or dtype.is_float() or isinstance(dtype, (pl.Boolean, pl.Null))
    return value if in_json else text


def _dtype(dtype: Any) -> pl.DataType:
    """Give the instance of a dtype that may stand as a class inside another."""
    return dtype if isinstance(dtype, pl.DataType) else dtype()
