"""Templates, and the text of every dtype."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise.errors import BadExample, BadTemplate, EmptyTemplate, UnknownColumn, UnrenderableColumn
from lotwise.render import CACHEABLE_CHARS, Template, cache_warning, render, render_examples, text_of
from lotwise.schema import Nullable, Schema


def texts(values: list[Any], dtype: Any) -> list[str | None]:
    column = pl.Series("x", values, dtype=dtype)
    return column.to_frame().select(text_of("x", column.dtype)).to_series().to_list()


# --- Templates


def test_columns_stand_in_order_of_first_use() -> None:
    assert Template.parse("{b} {a} {b}").columns == ("b", "a")


def test_head_is_the_text_before_the_first_place() -> None:
    assert Template.parse("{{x}} is {a}").head == "{x} is "


@pytest.mark.parametrize("name", ["a b", " a", "ü", "a.b", "a:b", "0", "*", "^a$", "a!r", "a\nb", '"', "''"])
def test_a_place_holds_any_name(name: str) -> None:
    frame = pl.DataFrame({"first": ["no"], name: ["yes"]})
    assert render(frame, Template.parse("{" + name + "}!")).to_list() == ["yes!"]


@pytest.mark.parametrize(
    ("text", "rendered"),
    [("{{{a}}}", "{A}"), ("{{a}}", "{a}"), ("{{}}{a}", "{}A"), ("a", "a"), ("{a}{a}", "AA"), ("}}{{", "}{")],
)
def test_double_braces_are_braces(text: str, rendered: str) -> None:
    assert render(pl.DataFrame({"a": ["A"]}), Template.parse(text)).to_list() == [rendered]


@pytest.mark.parametrize("text", ["", " ", "\n\t "])
def test_an_empty_template_is_refused(text: str) -> None:
    with pytest.raises(EmptyTemplate, match="the prompt is empty"):
        Template.parse(text)


@pytest.mark.parametrize(
    ("text", "position", "line_and_column"),
    [
        ("ab {a", 3, "line 1, column 4"),
        ("a}", 1, "line 1, column 2"),
        ("x\ny{}", 3, "line 2, column 2"),
        ("{a{b}", 0, "line 1, column 1"),
        ("{a}}", 3, "line 1, column 4"),
    ],
    ids=["open", "closed only", "no name", "brace in a name", "one too many"],
)
def test_an_unpaired_brace_is_refused_with_its_place(text: str, position: int, line_and_column: str) -> None:
    with pytest.raises(BadTemplate, match=line_and_column) as caught:
        Template.parse(text)
    assert caught.value.position == position


def test_an_unknown_column_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownColumn, match=r"'subjct'.*did you mean 'subject'") as caught:
        Template.parse("{subjct} {body}").check(["subject", "body"])
    assert (caught.value.missing, caught.value.available) == (("subjct",), ("subject", "body"))
    assert isinstance(caught.value, LookupError)


# --- Rows


def test_a_null_in_a_used_column_skips_the_row() -> None:
    frame = pl.DataFrame({"a": ["x", None, ""], "b": [None, None, None]})
    assert render(frame, Template.parse("<{a}>")).to_list() == ["<x>", None, "<>"]


def test_a_null_is_written_as_the_word_null_when_asked() -> None:
    frame = pl.DataFrame({"a": ["x", None], "b": pl.Series([None, [1, None]], dtype=pl.List(pl.Int64))})
    rendered = render(frame, Template.parse("{a} {b}"), on_null="render")
    assert rendered.to_list() == ["x null", "null [1,null]"]


@pytest.mark.parametrize("text", ["{a}", "fixed"])
def test_no_rows_render_to_no_rows(text: str) -> None:
    rendered = render(pl.DataFrame({"a": []}, schema={"a": pl.Int8}), Template.parse(text))
    assert (rendered.dtype, len(rendered)) == (pl.String, 0)


def test_a_template_without_places_says_the_same_to_every_row() -> None:
    assert render(pl.DataFrame({"a": [1, 2]}), Template.parse("hi")).to_list() == ["hi", "hi"]


@given(st.lists(st.text() | st.sampled_from(["{a}", "{{b}}", "{", "}", "$a", "\\1", "%s"]), min_size=1, max_size=8))
def test_values_are_never_read_as_templates(values: list[str]) -> None:
    frame = pl.DataFrame({"a": values, "b": values[::-1]})
    rendered = render(frame, Template.parse("{{{a}}} {b} {a}"))
    assert rendered.to_list() == [f"{{{a}}} {b} {a}" for a, b in frame.rows()]


# --- The text of every dtype

BERLIN = ZoneInfo("Europe/Berlin")
AT = datetime(2024, 7, 2, 3, 4, 5, 120_000)
CASES: dict[str, tuple[Any, list[Any], list[str]]] = {
    "String": (pl.String, ["", "é\u2028\x00{a}"], ["", "é\u2028\x00{a}"]),
    "Boolean": (pl.Boolean, [True, False], ["true", "false"]),
    "Int8": (pl.Int8, [-128, 0], ["-128", "0"]),
    "Int16": (pl.Int16, [-32768], ["-32768"]),
    "Int32": (pl.Int32, [-(2**31)], ["-2147483648"]),
    "Int64": (pl.Int64, [-(2**63)], ["-9223372036854775808"]),
    "Int128": (pl.Int128, [2**100], ["1267650600228229401496703205376"]),
    "UInt8": (pl.UInt8, [255], ["255"]),
    "UInt16": (pl.UInt16, [65535], ["65535"]),
    "UInt32": (pl.UInt32, [2**32 - 1], ["4294967295"]),
    "UInt64": (pl.UInt64, [2**64 - 1], ["18446744073709551615"]),
    "UInt128": (pl.UInt128, [2**100], ["1267650600228229401496703205376"]),
    "Float16": (pl.Float16, [0.5, 3.0], ["0.5", "3.0"]),
    "Float32": (pl.Float32, [0.1, 16777216.0, 1e-7], ["0.1", "16777216.0", "1e-7"]),
    "Float64": (
        pl.Float64,
        [0.1, 3.0, -0.0, 1e-7, 1e16, 1.5e300, 0.1 + 0.2, float("nan"), float("-inf")],
        ["0.1", "3.0", "-0.0", "1e-7", "1e16", "1.5e300", "0.30000000000000004", "NaN", "-inf"],
    ),
    "Decimal": (
        pl.Decimal(12, 4),
        [Decimal("19.90"), Decimal("100"), Decimal("-0.0001"), Decimal("0")],
        ["19.9", "100", "-0.0001", "0"],
    ),
    "Decimal without scale": (pl.Decimal(12, 0), [Decimal("100")], ["100"]),
    "Date": (pl.Date, [date(2024, 1, 2), date(1, 2, 3)], ["2024-01-02", "0001-02-03"]),
    "Datetime ms": (pl.Datetime("ms"), [AT, datetime(1969, 1, 1)], ["2024-07-02T03:04:05.12", "1969-01-01T00:00:00"]),
    "Datetime us": (pl.Datetime("us"), [AT, datetime(1969, 1, 1)], ["2024-07-02T03:04:05.12", "1969-01-01T00:00:00"]),
    "Datetime ns": (pl.Datetime("ns"), [AT, datetime(1969, 1, 1)], ["2024-07-02T03:04:05.12", "1969-01-01T00:00:00"]),
    "Datetime UTC": (
        pl.Datetime("us", "UTC"),
        [AT.replace(tzinfo=UTC), datetime(2024, 1, 1, 10, 20, tzinfo=UTC)],
        ["2024-07-02T03:04:05.12+00:00", "2024-01-01T10:20:00+00:00"],
    ),
    "Datetime Berlin": (
        pl.Datetime("ms", "Europe/Berlin"),
        [AT.replace(tzinfo=BERLIN), datetime(2024, 1, 1, tzinfo=BERLIN)],
        ["2024-07-02T03:04:05.12+02:00", "2024-01-01T00:00:00+01:00"],
    ),
    "Time": (pl.Time, [time(3, 4, 5, 100), time(0), time(10, 20)], ["03:04:05.0001", "00:00:00", "10:20:00"]),
    "Duration ms": (pl.Duration("ms"), [timedelta(days=1, seconds=3.5)], ["P1DT3.5S"]),
    "Duration us": (pl.Duration("us"), [timedelta(days=1, seconds=3.5), timedelta(0)], ["P1DT3.5S", "PT0S"]),
    "Duration ns": (pl.Duration("ns"), [-timedelta(seconds=3)], ["-PT3S"]),
    "Categorical": (pl.Categorical, ["a", "ö"], ["a", "ö"]),
    "Enum": (pl.Enum(["b", "a"]), ["a", "b"], ["a", "b"]),
    "List of texts": (pl.List(pl.String), [["a", None, 'q"é'], []], ['["a",null,"q\\"é"]', "[]"]),
    "List of floats": (pl.List(pl.Float32), [[0.1, float("nan"), 3.0]], ["[0.1,null,3.0]"]),
    "List of dates": (pl.List(pl.Datetime("ns")), [[AT, None]], ['["2024-07-02T03:04:05.12",null]']),
    "List of lists": (pl.List(pl.List(pl.Date)), [[[date(2024, 1, 2)], None]], ['[["2024-01-02"],null]']),
    "Array": (pl.Array(pl.Int8, 2), [[1, 2]], ["[1,2]"]),
    "Array of two dimensions": (pl.Array(pl.Date, (1, 2)), [[[date(2024, 1, 2), None]]], ['[["2024-01-02",null]]']),
    "Struct": (
        pl.Struct(
            {"*": pl.Boolean, "^ü$": pl.Decimal(9, 3), "t": pl.Time, "d": pl.Duration("ms"), "e": pl.Enum(["x"])}
        ),
        [{"*": True, "^ü$": Decimal("1.5"), "t": time(1), "d": timedelta(days=1), "e": "x"}],
        ['{"*":true,"^ü$":"1.5","t":"01:00:00","d":"P1D","e":"x"}'],
    ),
    "List of structs": (
        pl.List(pl.Struct({"a": pl.Datetime("ms", "UTC")})),
        [[{"a": AT.replace(tzinfo=UTC)}, None, {"a": None}]],
        ['[{"a":"2024-07-02T03:04:05.12+00:00"},null,{"a":null}]'],
    ),
    "Struct without fields": (pl.Struct({}), [{}], ["{}"]),
    "Map": (pl.Map(pl.String, pl.Int64), [{"b": 1, "a": None}], ['[{"key":"b","value":1},{"key":"a","value":null}]']),
}


@pytest.mark.parametrize(("dtype", "values", "wanted"), CASES.values(), ids=CASES.keys())
def test_text_of_a_dtype(dtype: Any, values: list[Any], wanted: list[str]) -> None:
    assert texts([*values, None], dtype) == [*wanted, None]


def test_a_column_of_nulls_has_no_text() -> None:
    assert texts([None, None], pl.Null) == [None, None]


def test_every_dtype_of_polars_is_in_a_test() -> None:
    known = {
        name
        for name, each in vars(pl.datatypes).items()
        if isinstance(each, type) and issubclass(each, pl.DataType) and each is not pl.DataType
    }
    abstract = {"BaseExtension", "FloatType", "IntegerType", "TemporalType", "Unknown", "Utf8"}
    refused = {"Binary", "Object", "Extension"}
    covered = {type(pl.Series([], dtype=dtype).dtype).__name__ for dtype, _, _ in CASES.values()} | {"Null"}
    assert known - abstract - refused == covered


def test_float_and_decimal_texts_read_back_as_the_same_value() -> None:
    values = [0.1, 1 / 3, 5e-324, 1.7976931348623157e308, 123456789.123, 2**53 + 2.0]
    assert [float(each or "") for each in texts(values, pl.Float64)] == values


@pytest.mark.parametrize(
    "dtype",
    [
        pl.Binary(),
        pl.Object(),
        pl.List(pl.Binary),
        pl.Array(pl.Binary, 2),
        pl.Struct({"a": pl.List(pl.Struct({"b": pl.Binary}))}),
        pl.Map(pl.String, pl.Binary),
    ],
    ids=str,
)
def test_bytes_and_objects_are_refused_before_a_row_is_rendered(dtype: pl.DataType) -> None:
    with pytest.raises(UnrenderableColumn, match="'x'") as caught:
        text_of("x", dtype)
    assert caught.value.inner in ("Binary", "Object")


def test_a_refused_column_that_the_prompt_does_not_use_does_no_harm() -> None:
    assert render(pl.DataFrame({"a": [1], "b": [b"\xff"]}), Template.parse("{a}")).to_list() == ["1"]


# --- Examples and caching

ANSWER = Schema.of({"n": pl.Int64, "label": pl.Enum(["x", "y"]), "note": Nullable(pl.String)})


def test_examples_follow_the_rows_rule_and_the_schemas_order() -> None:
    pairs = render_examples(
        Template.parse("{when}: {v}"),
        [({"v": 3, "when": date(2024, 1, 2), "unused": object()}, {"label": "x", "n": 4})],
        ANSWER,
        dtypes={"v": pl.Float64()},
    )
    assert pairs == (("2024-01-02: 3.0", '{"n":4,"label":"x","note":null}'),)


def test_an_example_of_free_text_is_the_text() -> None:
    assert render_examples(Template.parse("{a}"), [({"a": "{b}"}, " yes\n")], Schema.of(None)) == (("{b}", " yes\n"),)


def test_an_example_without_a_used_column_is_refused() -> None:
    with pytest.raises(UnknownColumn, match=r"example.*'b'.*did you mean 'bb'"):
        render_examples(Template.parse("{b}"), [({"bb": 1}, "x")], Schema.of(None))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ({"n": 1}, "'label' is missing"),
        ({"n": 1, "label": "x", "nots": "a"}, "'nots'; did you mean 'note'"),
        ({"n": "1", "label": "x"}, "at n: it is of type str; the schema has integer"),
        ({"n": True, "label": "x"}, "at n: it is of type bool"),
        ({"n": 1, "label": "z"}, "at label: it is none of the allowed values"),
        ("x", "at its root"),
    ],
)
def test_an_answer_without_the_schemas_shape_is_refused(answer: Any, words: str) -> None:
    with pytest.raises(BadExample, match=re.escape(words)):
        render_examples(Template.parse("{a}"), [({"a": 1}, answer)], ANSWER)


@pytest.mark.parametrize(
    ("text", "shared", "warns"),
    [
        ("{a}" + "x" * CACHEABLE_CHARS, 0, True),
        ("{a} " + "x" * 1000, CACHEABLE_CHARS - 1000, True),
        ("{a} short", 0, False),
        ("x" * CACHEABLE_CHARS + "{a}" + "x" * CACHEABLE_CHARS, 0, False),
        ("{a}" + "x" * CACHEABLE_CHARS, CACHEABLE_CHARS, False),
        ("x" * CACHEABLE_CHARS, 0, False),
    ],
    ids=[
        "place first",
        "enough with the system message",
        "too little behind",
        "head is enough",
        "system is enough",
        "no place",
    ],
)
def test_a_place_that_stands_too_early_is_told_only_where_moving_it_helps(text: str, shared: int, warns: bool) -> None:
    message = cache_warning(Template.parse(text), shared)
    assert (message is not None) == warns
