"""Golden rows: what binds, what agrees, under which keys they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lotwise.errors import BadGolden, CheckFailedToRun
from lotwise.executors.openai_dialect import body_parts
from lotwise.golden import Golden, GoldenSet, golden_keys, golden_spec, riders
from lotwise.key import keys, spec_digest, spec_from_json, spec_json
from lotwise.render import Template
from lotwise.request import Purpose, Spec
from lotwise.schema import Schema

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
