"""Golden rows: what binds, what agrees, under which keys they are asked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise import watch
from lotwise.canary import Canary
from lotwise.errors import BadGolden, CheckFailedToRun
from lotwise.executors.live import Answer
from lotwise.executors.openai_dialect import body_parts
from lotwise.golden import Golden, GoldenSet, golden_keys, golden_spec, riders
from lotwise.job import Options
from lotwise.key import KEY_VERSION, keys, spec_digest, spec_from_json, spec_json
from lotwise.ledger import golden as golden_book
from lotwise.ledger import requests as request_book
from lotwise.render import Template
from lotwise.request import Purpose, Spec
from lotwise.schema import Schema
from runs import Bench

SPEC = Spec(provider="scripted", model="m", system="Say which.")
SCHEMA = Schema.of({"kind": pl.Enum(["bug", "praise"]), "score": pl.Float64()})
FRAME = pl.DataFrame({"text": ["broken", "lovely", "late"], "kind": ["bug", "praise", "bug"], "score": [1, 5, None]})
TEMPLATE = Template.parse("What is this? {text}")


def bound(golden: Golden, *, template: Template = TEMPLATE, examples: Any = (), on_null: Any = "skip") -> GoldenSet:
    dtypes = {"text": pl.String(), "kind": pl.String()}
    return GoldenSet.bind(golden, template, SCHEMA, examples, on_null=on_null, dtypes=dtypes)


def said(golden: GoldenSet, values: dict[str, str | None]) -> list[bool]:
    """Return whether the answers agree, by a row's text."""
    contents = golden.rows.with_columns(pl.col("content").str.strip_prefix("What is this? "))
    asked = contents.select("row", "content").filter(pl.col("content").is_in(list(values)))
    value = [values[text] for text in asked["content"]]
    agreed = golden.agreed(asked.select("row").with_columns(value=pl.Series(value, dtype=pl.String)))
    by_text = dict(zip(asked["content"], agreed, strict=True))
    return [by_text[text] for text in values]


# --- binding ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Golden(FRAME, answers=[]), "at least one column"),
        (lambda: Golden(FRAME, answers=["absent"]), "no column 'absent'"),
        (lambda: Golden(FRAME.head(0), answers=["kind"]), "at least one row"),
        (lambda: Golden(FRAME, answers=["kind"], match="fuzzy"), "match must be"),  # type: ignore[arg-type]
    ],
    ids=["no answers", "unknown column", "no rows", "unknown match"],
)
def test_golden_that_cannot_be_used_is_refused(make: Callable[[], Golden], told: str) -> None:
    with pytest.raises(BadGolden, match=told):
        make()


@pytest.mark.parametrize(
    ("golden", "told"),
    [
        (Golden(FRAME, answers=["text"]), "would be shown the known answer"),
        (Golden(FRAME.rename({"text": "body"}), answers=["kind"]), "no column 'text'"),
        (Golden(FRAME.with_columns(urgent=True), answers=["urgent"]), "no field of the schema"),
        (
            Golden(FRAME.with_columns(kind=pl.lit("rant")), answers=["kind"]),
            "hold values that are no Enum|holds values",
        ),
        (Golden(FRAME.with_columns(text=pl.lit(None, pl.String)), answers=["kind"]), "null in a column"),
        (Golden(FRAME.with_columns(text=pl.lit("same")), answers=["kind"]), "twice with different answers"),
    ],
    ids=["answer in the prompt", "no prompt column", "no such field", "no such label", "null row", "two answers"],
)
def test_golden_set_that_does_not_fit_the_call_is_refused(golden: Golden, told: str) -> None:
    with pytest.raises(BadGolden, match=told) as refused:
        bound(golden)
    assert "rant" not in str(refused.value)


D, DT = pl.Date(), pl.Datetime("us", "UTC")
NOON = datetime(2026, 1, 2, 12)
BENT: dict[str, tuple[list[Any], Any]] = {
    "a fraction as an integer": ([2.7], int),
    "7 as a boolean": ([7], bool),
    "1 as a boolean": ([1], bool),
    "true as an integer": ([True], int),
    "a number as a day": ([1], D),
    "a number as an instant": ([1], DT),
    "a day as a number": ([date(2026, 1, 2)], int),
    "noon as a day": ([NOON], D),
    "a boolean in text": (["true"], bool),
    "no day at all": (["2026-13-01"], D),
    "a number as an option": ([1], pl.Enum(["bug"])),
    "a number too large": ([300], pl.Int8),
    "one as a list": ([1], list[int]),
    "fractions as integers in a list": ([[1.0, 2.5]], list[int]),
    "numbers as booleans in a list": ([[1, 0]], list[bool]),
    "a fraction in an object": ([{"a": 2.5}], pl.Struct({"a": pl.Int64})),
    "a number as a day in an object": ([{"a": 1}], pl.Struct({"a": pl.Date})),
    "no number": ([float("nan")], float),
}
KEPT: dict[str, tuple[list[Any], Any, str]] = {
    "an integer as a number": ([2], float, "2.0"),
    "a whole number as an integer": ([2.0, None], int, "2"),
    "a number in less bits": ([0.1], pl.Float32, "0.1"),
    "a number in text": (["12"], int, "12"),
    "a number as text": ([12345], str, '"12345"'),
    "a boolean as text": ([True], str, '"true"'),
    "a day as an instant": ([date(2026, 1, 2)], DT, '"2026-01-02T00:00:00+00:00"'),
    "an instant without a zone": ([NOON], DT, '"2026-01-02T12:00:00+00:00"'),
    "an option": (["bug"], pl.Enum(["bug"]), '"bug"'),
    "options in a list": ([["bug"]], pl.List(pl.Enum(["bug"])), '["bug"]'),
    "integers as numbers in a list": ([[1, 2]], list[float], "[1.0,2.0]"),
    "an object": ([{"a": 2.0}], pl.Struct({"a": pl.Int64}), '{"a":2}'),
    "empty lists": ([[]], list[int], "[]"),
    "nothing": ([None], int, "null"),
}


def known(values: list[Any], dtype: Any) -> GoldenSet:
    texts = [f"row {i}" for i in range(len(values))]
    golden = Golden(pl.DataFrame({"text": texts, "x": values}), answers="x")
    dtypes = {"text": pl.String()}
    return GoldenSet.bind(golden, TEMPLATE, Schema.of({"x": dtype}), (), on_null="skip", dtypes=dtypes)


@pytest.mark.parametrize(("values", "dtype"), BENT.values(), ids=BENT.keys())
def test_known_answer_that_a_cast_would_change_is_refused(values: list[Any], dtype: Any) -> None:
    with pytest.raises(BadGolden, match="column 'x' of the golden frame holds"):
        known(values, dtype)


@pytest.mark.parametrize(("values", "dtype", "said"), KEPT.values(), ids=KEPT.keys())
def test_known_answer_is_written_in_the_schemas_dtype(values: list[Any], dtype: Any, said: str) -> None:
    assert f'{{"x":{said}}}' in known(values, dtype).rows["answer"].to_list()


def test_question_that_a_cast_would_change_is_refused() -> None:
    golden = Golden(pl.DataFrame({"text": [2.7], "kind": ["bug"]}), answers="kind")

    with pytest.raises(BadGolden, match="column 'text' of the golden frame holds values that are no Int64"):
        GoldenSet.bind(golden, TEMPLATE, SCHEMA, (), on_null="skip", dtypes={"text": pl.Int64()})


def test_prompt_without_a_column_has_golden_rows_too() -> None:
    golden = Golden(pl.DataFrame({"kind": ["bug"]}), answers="kind")

    assert bound(golden, template=Template.parse("Say bug.")).rows["content"].to_list() == ["Say bug."]


def test_no_golden_row_is_in_a_repr() -> None:
    golden = Golden(pl.DataFrame({"text": ["planted-4711"], "kind": ["bug"]}), answers="kind")

    assert "planted-4711" not in repr(golden)
    assert "planted-4711" not in repr(bound(golden))


def test_no_example_no_answer_and_no_header_is_in_a_repr() -> None:
    examples = (("planted-4711", '{"kind":"bug"}'),)

    assert "planted-4711" not in repr(Spec(provider="scripted", model="m", examples=examples))
    assert "planted-4711" not in repr(Answer(custom_id="a", status=200, body=b"planted-4711"))
    assert "planted-4711" not in repr(Options(executor_options={"headers": {"x-key": "planted-4711"}}))


def test_golden_row_that_is_an_example_is_refused() -> None:
    with pytest.raises(BadGolden, match="also one of the examples"):
        bound(Golden(FRAME, answers=["kind"]), examples=[("What is this? late", "{}")])


def test_repeated_golden_rows_count_once() -> None:
    assert bound(Golden(pl.concat([FRAME, FRAME]), answers=["kind"])).rows.height == 3


def test_no_answer_is_in_what_is_asked() -> None:
    golden = bound(Golden(FRAME, answers=["kind", "score"]))

    assert sorted(golden.rows["content"]) == ["What is this? broken", "What is this? late", "What is this? lovely"]


def test_golden_digest_ignores_row_order_and_knows_every_answer() -> None:
    digest = bound(Golden(FRAME, answers=["kind"])).digest()

    assert bound(Golden(FRAME[::-1], answers=["kind"])).digest() == digest
    changed = FRAME.with_columns(kind=pl.Series(["praise", "praise", "bug"]))
    assert bound(Golden(changed, answers=["kind"])).digest() != digest
    assert bound(Golden(FRAME, answers=["kind"], match=lambda known, said: True)).digest() != digest


# --- agreeing -----------------------------------------------------------------------------------------------------


def test_exact_match_compares_only_the_answer_columns_in_the_schemas_dtypes() -> None:
    golden = bound(Golden(FRAME, answers=["kind", "score"]))

    values = {
        "broken": '{"kind":"bug","score":1}',
        "lovely": '{"score":5.0,"kind":"praise"}',
        "late": '{"kind":"bug","score":null}',
    }
    assert said(golden, values) == [True, True, True]


@pytest.mark.parametrize(
    "value",
    [None, '{"kind":"praise","score":1.0}', '{"kind":"bug","score":1.5}', '{"kind":"bug","score":null}'],
    ids=["no valid answer", "other label", "other number", "null"],
)
def test_answer_that_differs_does_not_agree(value: str | None) -> None:
    assert said(bound(Golden(FRAME, answers=["kind", "score"])), {"broken": value}) == [False]


def test_match_function_sees_known_and_said_and_never_a_missing_answer() -> None:
    seen = []

    def near(known: dict[str, Any], answer: dict[str, Any]) -> bool:
        seen.append((known, answer))
        return abs(known["score"] - answer["score"]) <= 1

    golden = bound(Golden(FRAME.drop_nulls(), answers=["score"], match=near))

    assert said(golden, {"broken": '{"kind":"bug","score":2}', "lovely": None}) == [True, False]
    assert seen == [({"score": 1.0}, {"score": 2.0})]


@pytest.mark.parametrize(
    "match", [lambda known, said: known["absent"], lambda known, said: 1], ids=["raises", "no verdict"]
)
def test_match_function_that_fails_is_told_without_the_answer(match: Any) -> None:
    golden = bound(Golden(FRAME, answers=["kind"], match=match))

    with pytest.raises(CheckFailedToRun) as failed:
        said(golden, {"broken": '{"kind":"bug","score":1}'})
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None


# --- keys ---------------------------------------------------------------------------------------------------------


def test_golden_rows_have_keys_of_their_own_in_every_round() -> None:
    contents = pl.Series(["What is this? late"])
    asked = [keys(spec_digest(SPEC), contents)[0]] + [golden_keys(SPEC, n, contents)[0] for n in range(3)]

    assert len(set(asked)) == 4


def test_golden_spec_differs_only_in_what_is_not_sent() -> None:
    golden = golden_spec(SPEC, 2)

    assert golden.purpose is Purpose.GOLDEN
    assert body_parts(golden) == body_parts(SPEC)
    assert spec_from_json(spec_json(golden)) == golden


def test_rounds_of_two_planned_repeats_never_meet() -> None:
    again = Spec(provider="scripted", model="m", system="Say which.", repeat=1)

    assert golden_spec(SPEC, 1) != golden_spec(again, 0)


@given(n_rows=st.integers(1, 100_000), n_golden=st.integers(1, 500))
def test_about_one_in_a_hundred_rides_and_no_golden_row_twice(n_rows: int, n_golden: int) -> None:
    n = riders(n_rows, n_golden)

    assert 1 <= n <= n_golden
    assert n == n_golden or abs(n - n_rows / 100) <= 1


# --- what may go out ----------------------------------------------------------------------------------------------


def test_undecided_gate_lets_no_row_go_that_was_to_ride_behind_another_threshold(tmp_path: Path) -> None:
    bench = Bench(folder=tmp_path, in_memory=True)
    known = pl.DataFrame({"text": ["a", "b", "c"], "answer": "yes"})
    golden = GoldenSet.bind(
        Golden(known, answers=["answer"]),
        Template.parse("{text}"),
        Schema.of(None),
        (),
        on_null="skip",
        dtypes={"text": pl.String()},
    )
    canary = Canary(spec=spec_digest(bench.spec), subject="s", golden=golden, bad_limit=None, n_frame=0, mode="on")
    job = bench.begin(["of the frame"])
    job.canary = canary
    watch.begin(job, canary)
    later = golden_spec(bench.spec, 1)
    asks = golden.rows.with_columns(
        key=keys(spec_digest(later), golden.rows["content"]),
        content_bytes=pl.lit(3, pl.Int64),
        round=pl.lit(1, pl.Int32),
    )
    about = {"digest": spec_digest(later), "model": "m", "body": spec_json(later), "key_version": KEY_VERSION}
    golden_book.ask(
        bench.ledger, replace(canary, golden=replace(golden, threshold=0.5)), about, asks, bench.clock.now()
    )

    may_go = watch.unlocked(job, request_book.pending(bench.ledger, job.run_id))

    assert set(may_go["key"]) == set(golden_keys(bench.spec, 0, golden.rows["content"]))
