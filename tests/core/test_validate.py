"""What becomes a value, what a fault, and that nothing is lost between an answer and its columns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator

from lotwise.errors import CheckFailedToRun, UnknownColumn, UnreadableValue
from lotwise.render import Template, render
from lotwise.schema import Nullable, Schema
from lotwise.validate import CHUNK_ROWS, JUDGED, Validator

SHARED = Path(os.environ.get("LOTWISE_SHARED", Path(__file__).parents[3] / "shared")) / "data"
STAND_IN_STRINGS = [
    "", " ", "\ufeff", "\u200b\u202e", "NULL", "null", "undefined", "NaN", "Infinity", "1e400", "\x00\x01\x1f\x7f",
    "{a}", "{{a}}", "{", "}", '"', "'", "\\", "\\u0022 : \\", '":"', "`id`", "$(touch x)", "<script>", "' OR 1=1 --",
    "\r\n", "\u2028\u2029", "مرحبا", "田中さん", "😀👩‍👩‍👧", "Z̮̞̠͙͔ͅ", "```json\n{}\n```", "%s%n", "9" * 60,
]  # fmt: skip
STAND_IN_SENTENCES = ["The cat sat.", "Le chat dort.", "고양이가 잔다.", "القط نائم.", "猫が寝ている。", "חתול ישן."]


def naughty_strings() -> list[str]:
    file = SHARED / "naughty_strings.json"
    return [str(each) for each in json.loads(file.read_text("utf-8"))] if file.exists() else STAND_IN_STRINGS


def sentences() -> list[str]:
    file = SHARED / "languages.parquet"
    return pl.read_parquet(file)["text"].to_list() if file.exists() else STAND_IN_SENTENCES


class Ticket(BaseModel):
    category: Literal["bug", "billing"]
    urgent: bool
    summary: str = Field(max_length=200)


AS_DTYPES = {"category": pl.Enum(["bug", "billing"]), "urgent": pl.Boolean, "summary": pl.String}
AS_JSON = {
    "type": "object",
    "properties": {
        "category": {"enum": ["bug", "billing"]},
        "urgent": {"type": "boolean"},
        "summary": {"type": "string", "maxLength": 200},
    },
    "required": ["category", "urgent", "summary"],
    "additionalProperties": False,
}
GOOD = '{"category":"bug","urgent":true,"summary":"it broke"}'


@pytest.fixture(params=[Ticket, AS_DTYPES, AS_JSON], ids=["model", "dtypes", "JSON Schema"])
def ticket(request: pytest.FixtureRequest) -> Validator:
    """The same shape, said in each of the three ways."""
    return Validator.of(Schema.of(request.param))


def judged(validator: Validator, *answers: str | None, codes: list[str] | None = None) -> list[dict[str, Any]]:
    series = pl.Series(answers, dtype=pl.String)
    frame = validator.judge(series, None if codes is None else pl.Series(codes))
    assert frame.schema == JUDGED
    return frame.to_dicts()


def one(validator: Validator, answer: str | None) -> dict[str, Any]:
    (row,) = judged(validator, answer)
    return row


def faults(row: dict[str, Any]) -> list[tuple[str, str]]:
    return [(each["path"], each["kind"]) for each in json.loads(row["faults"])]


# --- What is a value


def test_a_good_answer_is_a_value(ticket: Validator) -> None:
    assert one(ticket, GOOD) == {"ok": True, "value": GOOD, "faults": None, "code": None, "lenient": False}


def test_space_around_and_inside_json_is_no_fault(ticket: Validator) -> None:
    row = one(ticket, '\n { "category" : "bug",\t"urgent": true, "summary": "it broke"} \n')
    assert (row["value"], row["lenient"]) == (GOOD, False)


@pytest.mark.parametrize(
    "answer",
    [
        f"```json\n{GOOD}\n```",
        f"```\n{GOOD}\n```\n",
        f"Here it is:\n```JSON\r\n{GOOD}\r\n```",
        f"Sure! {GOOD}",
        f"\ufeff{GOOD}",
    ],
    ids=["fence", "bare fence", "prose and fence", "prose", "byte order mark"],
)
def test_json_in_a_fence_or_behind_prose_is_taken_and_marked(ticket: Validator, answer: str) -> None:
    row = one(ticket, answer)
    assert (row["value"], row["lenient"]) == (GOOD, True)


@pytest.mark.parametrize(
    "answer",
    [
        GOOD + " That is all.",
        GOOD + GOOD,
        "I can't help with {this}. " + GOOD,
        '{"outer": ' + GOOD,
        '{"outer": {broken}, "x": ' + GOOD + "}",
        f"{{not}} ```json\n{GOOD}\n```",
        GOOD[:-1],
        "no",
        GOOD.replace("true", "NaN"),
        GOOD.replace("it broke", "it \\ud800 broke"),
        GOOD.replace("it broke", "it\nbroke"),
        GOOD.replace("true", "1e999"),
        '{"a":' * 5000,
        "[" * 100_000,
    ],
    ids=[
        "prose behind", "two objects", "braces in prose", "cut outer object", "broken outer object",
        "braces before a fence",
        "cut", "prose", "not a number", "lone surrogate", "raw newline", "infinite number", "deep object", "deep list",
    ],
)  # fmt: skip
def test_what_is_no_json_is_told(ticket: Validator, answer: str) -> None:
    row = one(ticket, answer)
    assert (row["ok"], row["value"], row["code"], row["lenient"]) == (False, None, "invalid_json", False)


@pytest.mark.parametrize(
    "answer",
    [
        '{"category":"bug","category":"billing","urgent":true,"summary":"s"}',
        '{"category":"bug","urgent":true,"summary":"s","category" : "bug"}',
        r'{"category":"bug","urgent":true,"urgent":true,"summary":"a\u0022:b"}',
        r'{"category":"bug","urgent":true,"urgent":true,"summary":"a\"\u0020:b"}',
        r'{"category":"bug","urgent":true,"urgent":true,"summary":"a\"\u003Ab"}',
        r'{"category":"bug","urgent":true,"\u0075rgent":true,"summary":"s"}',
        '{"category":"bug","urgent":true,"summary":"s","more":{"a":1,"a":1}}',
    ],
    ids=["other value", "same value", "quote hidden", "space hidden", "colon hidden", "name escaped", "nested"],
)
def test_a_name_given_twice_is_told(ticket: Validator, answer: str) -> None:
    row = one(ticket, answer)
    assert (row["code"], faults(row)) == ("invalid_json", [("", "duplicate_key")])


@pytest.mark.parametrize("behind", ["", "Sure: "], ids=["strict", "lenient"])
@pytest.mark.parametrize(("depth", "ok"), [(90, True), (200, False), (900, False)])
def test_deep_nesting_is_refused_at_a_fixed_depth(depth: int, ok: bool, behind: str) -> None:
    answer = behind + GOOD[:-1] + ',"more":' + "[" * depth + '"]"' + "]" * depth + "}"
    row = one(Validator.of(Schema.of(Ticket)), answer)
    assert (row["ok"], row["code"]) == (ok, None if ok else "invalid_json")


def test_many_brackets_that_do_not_nest_are_no_fault() -> None:
    answer = json.dumps({"rows": [["[[[[", "{{"]] * 300})
    assert one(Validator.of(Schema.of({"rows": pl.List(pl.List(pl.String))})), answer)["ok"]


def test_a_text_that_only_looks_like_names_is_no_duplicate(ticket: Validator) -> None:
    answer = r'{"category":"bug","urgent":true,"summary":"\"category\": \"bug\", \u0022urgent\u0022:"}'
    assert one(ticket, answer)["ok"]


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        (GOOD.replace("bug", "SECRET"), "category"),
        (GOOD.replace("true", '"SECRET"'), "urgent"),
        (GOOD.replace('"it broke"', "7"), "summary"),
        (GOOD.replace(',"summary":"it broke"', ""), "summary"),
        (GOOD.replace("true", "null"), "urgent"),
    ],
    ids=["enum", "type", "number for text", "missing", "null"],
)
def test_a_fault_says_where_and_what_kind_but_not_which_value(ticket: Validator, answer: str, path: str) -> None:
    row = one(ticket, answer)
    assert (row["ok"], row["code"], row["value"]) == (False, "schema_mismatch", None)
    assert [where for where, _ in faults(row)] == [path]
    assert "SECRET" not in row["faults"]


def test_a_name_from_the_answer_is_no_part_of_a_fault() -> None:
    class Closed(Ticket):
        model_config = ConfigDict(extra="forbid")

    for schema in (Closed, AS_JSON):
        row = one(Validator.of(Schema.of(schema)), GOOD[:-1] + ',"SECRET":1}')
        assert row["code"] == "schema_mismatch"
        assert "SECRET" not in row["faults"]


def test_a_path_leads_into_lists() -> None:
    schema = Schema.of({"geo": pl.List(pl.Struct({"x": pl.Int8}))})
    row = one(Validator.of(schema), '{"geo":[{"x":1},{"x":300}]}')
    assert faults(row) == [("geo[1].x", "maximum")]


def test_only_the_first_faults_are_kept() -> None:
    row = one(Validator.of(Schema.of({"n": pl.List(pl.Int8)})), json.dumps({"n": ["x"] * 1000}))
    assert len(faults(row)) == 10


def test_a_rule_that_is_not_sent_is_checked(ticket: Validator) -> None:
    has_rule = "maxLength" in json.dumps(dict(ticket.schema.json_schema))
    assert one(ticket, GOOD.replace("it broke", "x" * 201))["ok"] != has_rule


# --- Empty and cut off


@pytest.mark.parametrize(
    "answer",
    [
        None,
        "",
        " \n",
        "{}",
        "null",
        '""',
        '{"category":null,"urgent":null,"summary":" \\t"}',
        '{"summary":""}',
        "```json\n{}\n```",
    ],
)
def test_an_answer_that_holds_nothing_is_empty(ticket: Validator, answer: str | None) -> None:
    row = one(ticket, answer)
    assert (row["ok"], row["code"]) == (False, "empty")


@pytest.mark.parametrize("answer", ['{"n":0}', '{"b":false}', '{"tags":[]}'])
def test_zero_false_and_an_empty_list_are_answers(answer: str) -> None:
    schema = Schema.of({"n": Nullable(int), "b": Nullable(bool), "tags": Nullable(pl.List(pl.String))})
    full = {"n": None, "b": None, "tags": None} | json.loads(answer)
    assert one(Validator.of(schema), json.dumps(full))["ok"]


@pytest.mark.parametrize("code", ["truncated", "needs_continuation"])
def test_an_answer_that_was_cut_off_is_invalid_however_whole_it_looks(ticket: Validator, code: str) -> None:
    cut, whole = judged(ticket, GOOD, GOOD, codes=[code, "ok"])
    assert (cut["ok"], cut["code"], cut["value"]) == (False, code, None)
    assert whole["ok"]


def test_an_outcome_without_an_answer_is_not_judged(ticket: Validator) -> None:
    with pytest.raises(ValueError, match="expired"):
        ticket.judge(pl.Series([GOOD]), pl.Series(["expired"]))


def test_one_code_an_answer(ticket: Validator) -> None:
    with pytest.raises(ValueError, match="1 codes for 2 answers"):
        ticket.judge(pl.Series([GOOD, GOOD]), pl.Series(["ok"]))


def test_no_answers_give_no_rows(ticket: Validator) -> None:
    frame = ticket.judge(pl.Series([], dtype=pl.String))
    assert (frame.schema, frame.height) == (JUDGED, 0)
    assert ticket.columns(frame["value"]).schema == ticket.schema.dtypes


# --- Free text


def test_free_text_is_kept_to_the_letter() -> None:
    text = Validator.of(Schema.of(None))
    row = one(text, ' {"a": 1}\n')
    assert text.columns(pl.Series([row["value"]]))["answer"].to_list() == [' {"a": 1}\n']


def test_free_text_of_white_space_is_empty_and_cut_text_invalid() -> None:
    text = Validator.of(Schema.of(None))
    rows = judged(text, " \n", None, "half a sen", codes=["ok", "ok", "truncated"])
    assert [row["code"] for row in rows] == ["empty", "empty", "truncated"]


def test_free_text_may_hold_any_digits() -> None:
    assert one(Validator.of(Schema.of(None)), "9" * 100 + " NaN")["ok"]


# --- Columns


def test_answers_come_back_in_the_schemas_dtypes(ticket: Validator) -> None:
    frame = ticket.judge(pl.Series([GOOD, "no", None, GOOD.replace("bug", "billing")]))
    columns = ticket.columns(frame["value"])
    assert columns.schema == ticket.schema.dtypes
    assert columns["category"].to_list() == ["bug", None, None, "billing"]


def test_columns_of_nothing_but_nulls_have_the_dtypes(ticket: Validator) -> None:
    assert ticket.columns(pl.Series([None, None], dtype=pl.String)).schema == ticket.schema.dtypes


WIDE = {
    "i8": pl.Int8,
    "u64": pl.UInt64,
    "f32": pl.Float32,
    "f64": pl.Float64,
    "d": pl.Date,
    "utc": pl.Datetime("us", "UTC"),
    "berlin": pl.Datetime("ms", "Europe/Berlin"),
    "naive": pl.Datetime("ns"),
    "t": pl.Time,
    "pair": pl.Array(pl.Int16, 2),
    "deep": pl.List(pl.Struct({"*": pl.Date, "^e$": pl.Enum(["x"]), "a": pl.Array(pl.Time, 1)})),
    "^none$": Nullable(pl.List(pl.Int8)),
}
WIDE_ANSWER = {
    "i8": -128,
    "u64": 2**64 - 1,
    "f32": 0.1,
    "f64": 1e300,
    "d": "2024-02-29",
    "utc": "2024-02-29T10:20:30.5+02:00",
    "berlin": "2024-02-29T10:20:30Z",
    "naive": "2024-02-29T10:20:30+02:00",
    "t": "10:20",
    "pair": [1, 2],
    "deep": [{"*": "2024-01-02", "^e$": "x", "a": ["01:02:03.5Z"]}],
    "^none$": None,
}


def test_every_dtype_comes_back_exactly() -> None:
    validator = Validator.of(Schema.of(WIDE))
    row = one(validator, json.dumps(WIDE_ANSWER))
    columns = validator.columns(pl.Series([row["value"], None]))
    assert columns.schema == validator.schema.dtypes
    assert all(value is None for value in columns.row(1))
    got = columns.row(0, named=True)
    assert got["utc"] == datetime(2024, 2, 29, 8, 20, 30, 500_000, tzinfo=UTC)
    assert got["berlin"] == datetime(2024, 2, 29, 10, 20, 30, tzinfo=UTC)
    assert got["naive"] == datetime(2024, 2, 29, 8, 20, 30)
    assert (got["i8"], got["u64"], got["d"], got["t"]) == (-128, 2**64 - 1, date(2024, 2, 29), time(10, 20))
    assert got["deep"] == [{"*": date(2024, 1, 2), "^e$": "x", "a": [time(1, 2, 3, 500_000)]}]
    assert (list(got["pair"]), got["^none$"], got["f64"]) == ([1, 2], None, 1e300)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("i8", 128),
        ("i8", 1.5),
        ("i8", True),
        ("i8", "1"),
        ("u64", -1),
        ("u64", 2**64),
        ("f32", 1e39),
        ("f64", 10**60),
        ("d", "2024-02-30"),
        ("d", "2024-2-3"),
        ("utc", "2024-02-29T10:20:30"),
        ("utc", "yesterday"),
        ("naive", "1500-01-01T00:00:00Z"),
        ("t", "25:00"),
        ("t", "10:20:30+02:00"),
        ("pair", [1]),
        ("pair", [1, 70000]),
        ("deep", [{"*": "2024-13-01", "^e$": "x", "a": ["01:00"]}]),
        ("deep", [{"*": "2024-01-01", "^e$": "y", "a": ["01:00"]}]),
        ("^none$", [300]),
    ],
)
def test_what_a_column_cannot_hold_is_a_fault_of_its_row_alone(name: str, value: Any) -> None:
    validator = Validator.of(Schema.of(WIDE))
    bad, good = judged(validator, json.dumps(WIDE_ANSWER | {name: value}), json.dumps(WIDE_ANSWER))
    assert (bad["ok"], bad["code"]) == (False, "schema_mismatch")
    assert good["ok"]


class Loose(BaseModel):
    n: int | None = None
    x: float = 0.5
    at: datetime | None = None
    day: Annotated[str, Field(json_schema_extra={"format": "date"})] = "2024-01-01"


@pytest.mark.parametrize(
    "answer",
    [
     '{"n":9223372036854775808}',
     '{"n":' + "9" * 60 + "}", '{"n":"' + "9" * 60 + '"}', '{"x":"inf"}', '{"x":"-Infinity"}',
     '{"n":1,"day":"soon"}', '{"n":1,"x":"nan"}'],
)  # fmt: skip
def test_what_a_lax_model_takes_and_a_column_cannot_hold_is_a_fault(answer: str) -> None:
    bad, good = judged(Validator.of(Schema.of(Loose)), answer, '{"n":1}')
    assert (bad["ok"], bad["code"]) == (False, "schema_mismatch")
    assert good["ok"]


def test_an_instant_that_a_model_takes_without_an_offset_is_utc() -> None:
    validator = Validator.of(Schema.of(Loose))
    row = one(validator, '{"at":"2024-01-02T03:04:05"}')
    assert validator.columns(pl.Series([row["value"]]))["at"].item() == datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)


def test_a_models_strictness_and_defaults_are_its_own() -> None:
    class Strict(Ticket):
        model_config = ConfigDict(strict=True)
        note: str = "none"

    lax = one(Validator.of(Schema.of(Ticket)), GOOD.replace("true", '"yes"'))
    strict = one(Validator.of(Schema.of(Strict)), GOOD.replace("true", '"yes"'))
    assert (lax["ok"], strict["ok"]) == (True, False)
    assert json.loads(one(Validator.of(Schema.of(Strict)), GOOD)["value"])["note"] == "none"


def test_a_models_alias_names_property_and_column() -> None:
    class Aliased(BaseModel):
        n: int = Field(alias="the number")

    validator = Validator.of(Schema.of(Aliased))
    row = one(validator, '{"the number":3}')
    assert validator.columns(pl.Series([row["value"]])).to_dicts() == [{"the number": 3}]


def test_values_of_another_schema_are_refused_without_being_quoted() -> None:
    validator = Validator.of(Schema.of({"n": pl.Int8}))
    for value, column in (('{"n":300}', "n"), ("SECRET", None), ("", None)):
        with pytest.raises(UnreadableValue) as caught:
            validator.columns(pl.Series(['{"n":1}', value]))
        assert caught.value.column == column
        assert "SECRET" not in str(caught.value)
        assert caught.value.__context__ is None


def test_an_optional_property_may_be_absent_or_null() -> None:
    inner = {
        "type": "object",
        "properties": {"s": {"type": "string", "minLength": 1}, "k": {"type": "integer"}},
        "required": ["k"],
    }
    schema = Schema.of(
        {
            "type": "object",
            "properties": {"n": {"type": "integer"}, "o": inner, "l": {"type": "array", "items": inner}},
            "required": ["o"],
        }
    )
    validator = Validator.of(schema)
    absent, null, bad = judged(
        validator,
        '{"o":{"k":1},"l":[{"k":2}]}',
        '{"n":null,"o":{"k":1,"s":null},"l":[{"k":2,"s":null}]}',
        '{"o":{"k":null}}',
    )
    assert [row["ok"] for row in (absent, null, bad)] == [True, True, False]
    columns = validator.columns(pl.Series([absent["value"], null["value"]]))
    assert columns.row(0) == columns.row(1) == (None, {"s": None, "k": 1}, [{"s": None, "k": 2}])


def test_more_answers_than_a_chunk_keep_their_order() -> None:
    validator = Validator.of(Schema.of({"n": pl.Int64}))
    answers = [f'{{"n":{i}}}' if i % 3 else "x" for i in range(CHUNK_ROWS + 5)]
    columns = validator.columns(validator.judge(pl.Series(answers))["value"])
    assert columns["n"].to_list() == [i if i % 3 else None for i in range(CHUNK_ROWS + 5)]


# --- Any text survives the whole way


def travels(values: list[str]) -> None:
    """Render each value, say it back as JSON in two spellings, judge it, and read it from its column."""
    contents = render(pl.DataFrame({"a": values}), Template.parse("<{a}>")).to_list()
    validator = Validator.of(Schema.of({"echo": pl.String}))
    for ascii_only in (True, False):
        answers = [json.dumps({"echo": content}, ensure_ascii=ascii_only) for content in contents]
        frame = validator.judge(pl.Series(answers, dtype=pl.String))
        assert frame["ok"].all()
        assert not frame["lenient"].any()
        assert validator.columns(frame["value"])["echo"].to_list() == [f"<{value}>" for value in values]


@pytest.mark.parametrize("values", [naughty_strings, sentences], ids=["naughty strings", "languages"])
def test_every_string_comes_back_attached_to_its_row(values: Callable[[], list[str]]) -> None:
    travels(values())


@given(st.lists(st.text(), min_size=1, max_size=10))
def test_any_text_comes_back(values: list[str]) -> None:
    travels(values)


@given(st.lists(st.text(alphabet='{}[]",:\\ u0123ab\n`'), max_size=10))
def test_no_answer_breaks_the_judge_or_its_neighbours(answers: list[str]) -> None:
    validator = Validator.of(Schema.of({"a": Nullable(pl.String), "b": Nullable(pl.Int8)}))
    good = '{"a":"x","b":1}'
    frame = validator.judge(pl.Series([good, *answers, good]))
    assert frame.height == len(answers) + 2
    assert (frame["ok"][0], frame["ok"][-1]) == (True, True)
    assert validator.columns(frame["value"]).height == frame.height


# --- check=


def test_an_expression_judges_the_typed_columns_and_null_fails() -> None:
    schema = Schema.of({"low": pl.Date, "high": Nullable(pl.Date)})
    validator = Validator.of(schema, (pl.col("low") <= pl.col("high")).alias("in_order"))
    rows = judged(
        validator,
        '{"low":"2024-01-01","high":"2024-01-02"}',
        '{"low":"2024-01-03","high":"2024-01-02"}',
        '{"low":"2024-01-03","high":null}',
        "no",
    )
    assert [row["code"] for row in rows] == [None, "check_failed", "check_failed", "invalid_json"]
    assert faults(rows[1]) == [("", "check:in_order")]


def test_a_function_gives_true_false_or_the_kind_of_the_fault() -> None:
    def short(value: dict[str, Any]) -> bool | str:
        return {"a": True, "b": False}.get(value["s"], "too.odd")

    rows = judged(Validator.of(Schema.of({"s": str}), short), '{"s":"a"}', '{"s":"b"}', '{"s":"c"}')
    assert [row["ok"] for row in rows] == [True, False, False]
    assert [faults(row) for row in rows[1:]] == [[("", "check:short")], [("", "check:too.odd")]]


def test_all_failed_checks_are_told() -> None:
    checks = [(pl.col("n") > 3).alias("big"), lambda value: value["n"] % 2 == 0]
    row = one(Validator.of(Schema.of({"n": int}), checks), '{"n":1}')
    assert [kind for _, kind in faults(row)] == ["check:big", "check:check_2"]


def test_a_check_that_raises_is_a_fault_of_the_run_without_content() -> None:
    def broken(value: dict[str, Any]) -> bool:
        raise KeyError(value["s"])

    for check in (broken, pl.col("s").str.to_integer().is_not_null().alias("broken")):
        with pytest.raises(CheckFailedToRun, match="'broken'") as caught:
            Validator.of(Schema.of({"s": str}), check).judge(pl.Series(['{"s":"SECRET"}']))
        error: BaseException | None = caught.value
        assert "SECRET" not in str(error)
        assert caught.value.__context__ is None
        assert caught.value.__cause__ is None


def test_a_models_validator_that_raises_is_a_fault_of_the_run() -> None:
    class Broken(BaseModel):
        s: str

        @field_validator("s")
        @classmethod
        def look(cls, s: str) -> str:
            raise KeyError(s)

    with pytest.raises(CheckFailedToRun, match="'Broken' raised KeyError") as caught:
        Validator.of(Schema.of(Broken)).judge(pl.Series(['{"s":"SECRET"}']))
    assert "SECRET" not in str(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("check", "error", "words"),
    [
        (pl.col("summry").is_null(), UnknownColumn, "did you mean 'summary'"),
        (pl.col("summary").str.len_chars(), CheckFailedToRun, "gave UInt32; wanted one Boolean column"),
        ("urgent", CheckFailedToRun, "an expression or a function"),
    ],
    ids=["unknown column", "not Boolean", "text"],
)
def test_a_check_that_cannot_work_is_told_before_any_answer(check: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Validator.of(Schema.of(Ticket), check)


@pytest.mark.parametrize("verdict", [None, 1, "has spaces in it", ""], ids=str)
def test_a_verdict_that_is_none_is_a_fault_of_the_run(verdict: Any) -> None:
    with pytest.raises(CheckFailedToRun, match="wanted True, False or a fault kind"):
        Validator.of(Schema.of({"s": str}), lambda value: verdict).judge(pl.Series(['{"s":"x"}']))


def test_an_expression_over_all_rows_at_once_is_refused() -> None:
    check = (pl.col("n").sum() > 3).alias("sum")
    with pytest.raises(CheckFailedToRun, match="1 rows for 2"):
        Validator.of(Schema.of({"n": int}), check).judge(pl.Series(['{"n":1}', '{"n":2}']))


# --- The digest


def above(limit: int) -> Callable[[dict[str, Any]], bool]:
    return lambda value: bool(value["n"] > limit)


def at_least(value: dict[str, Any], limit: int = 3) -> bool:
    return bool(value["n"] >= limit)


def with_rule(rule: Callable[[int], int]) -> type[BaseModel]:
    class Made(BaseModel):
        n: Annotated[int, AfterValidator(rule)]

    return Made


def with_bound(bound: int) -> dict[str, Any]:
    return {"type": "object", "properties": {"n": {"type": "integer", "maximum": bound}}}


N = Schema.of({"n": pl.Int64})
DIFFERENT: dict[str, tuple[Validator, Validator]] = {
    "a check": (Validator.of(N), Validator.of(N, above(3))),
    "what a check closes over": (Validator.of(N, above(3)), Validator.of(N, above(4))),
    "a default": (Validator.of(N, partial(at_least, limit=3)), Validator.of(N, partial(at_least, limit=4))),
    "code": (Validator.of(N, lambda v: v["n"] > 1), Validator.of(N, lambda v: v["n"] < 1)),
    "an expression": (Validator.of(N, pl.col("n") > 1), Validator.of(N, pl.col("n") > 2)),
    "a rule": (Validator.of(Schema.of(with_bound(100))), Validator.of(Schema.of(with_bound(200)))),
    "a dtype": (Validator.of(Schema.of({"x": pl.Float32})), Validator.of(Schema.of({"x": pl.Float64}))),
    "property order": (Validator.of(Schema.of({"a": str, "b": str})), Validator.of(Schema.of({"b": str, "a": str}))),
    "a model's rule": (
        Validator.of(Schema.of(with_rule(lambda n: n + 1))),
        Validator.of(Schema.of(with_rule(lambda n: n + 2))),
    ),
}


@pytest.mark.parametrize(("one_", "other"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_the_digest_covers(one_: Validator, other: Validator) -> None:
    assert one_.digest != other.digest
    assert len(one_.digest) == 40


def test_the_same_rules_have_the_same_digest() -> None:
    assert Validator.of(N, [above(3), pl.col("n") > 1]).digest == Validator.of(N, [above(3), pl.col("n") > 1]).digest
    assert Validator.of(Schema.of(Ticket)).digest == Validator.of(Schema.of(Ticket)).digest


OPTIONAL = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer", "maximum": 5}}}


@pytest.mark.parametrize("given_", [None, WIDE, OPTIONAL, AS_JSON], ids=["text", "dtypes", "optional", "JSON Schema"])
def test_a_schema_written_down_judges_alike(given_: Any) -> None:
    schema = Schema.of(given_)
    back = Schema.from_portable(schema.portable() or "")
    assert back == schema
    assert Validator.of(back).digest == Validator.of(schema).digest


def test_a_model_is_not_written_down() -> None:
    assert Schema.of(Ticket).portable() is None


def test_the_digest_is_the_same_in_another_process() -> None:
    program = (
        "import polars as pl\n"
        "from lotwise.schema import Schema\n"
        "from lotwise.validate import Validator\n"
        "def short(v, limit=3):\n"
        "    return v['n'] in {1, 2, 'a', 'b'} and v['n'] < limit\n"
        "print(Validator.of(Schema.of({'n': int}), [short, pl.col('n') > 1]).digest)\n"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
