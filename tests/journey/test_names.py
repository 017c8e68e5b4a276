"""Columns and fields go by the user's names alone: names of our own and Polars' patterns mean nothing there."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lotwise
from lotwise import cli, testing
from lotwise.errors import RunStopped
from lotwise.reading import BACK, FRONT, TO_FILL_IN
from lotwise.request import Spec

OURS = ["key", "state", "reason", "error", "faults", "detail", "attempts", "value", "content", "variant", "answer"]
OURS += ["row", "said", "is_valid", "label", "lot", "place", "0", "1", "literal", "len", "v", "nested"]
READ = ["verdict", "answer_verdict", "input", "stratum", "answer_digest", "sampled", "llm_like"]
PATTERNS = ["*", "^a$", "^.*$", "^q$", "a", "^(state|value)$"]
WORDS = ["", " ", "a.b", "größe", "名前", 'say "so"', "two\nlines", "a,b", "$ref"]
NAMES = [*OURS, *READ, *PATTERNS, *WORDS]
ALONE = ["key", "state", "error", "attempts", "*", "^a$", "^.*$", "^q$", ""]
"""Those that are tried one by one too, each beside nothing that a pattern could take for it."""


def named(content: str, spec: Spec) -> str:
    """Answer each field with its own name, so that none can be taken for another."""
    return json.dumps({name: f"is {name}" for name in json.loads(spec.wire_schema or "")["properties"]})


@pytest.fixture(autouse=True)
def _named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(testing.ANSWERS, "named", named)


def fields(names: Sequence[str]) -> dict[str, Any]:
    return dict.fromkeys(names, pl.String)


def asked(names: Sequence[str], folder: Path, verb: Callable[..., Any] = lotwise.map, **more: Any) -> Any:
    """Ask two distinct rows and one that asks for nothing."""
    frame = more.pop("frame", pl.DataFrame({"body": ["one", "two", None]}))
    given = {"model": "scripted:named", "ledger": folder, "progress": False, "poll_s": 0.01, **more}
    return verb(frame, "Say {body}", fields(names), **given)


def values(names: Sequence[str]) -> list[dict[str, str | None]]:
    answered: dict[str, str | None] = {name: f"is {name}" for name in names}
    return [answered, answered, dict.fromkeys(names)]


@pytest.mark.parametrize("names", [NAMES, *([name] for name in ALONE)], ids=["all of them", *map(repr, ALONE)])
def test_an_answer_comes_back_under_its_own_name(tmp_path: Path, names: list[str]) -> None:
    told = asked(names, tmp_path)

    assert told[names].to_dicts() == values(names)
    assert told["llm_state"].to_list() == ["succeeded", "succeeded", "skipped"]
    assert told.columns[: 1 + len(names)] == ["body", *names]
    assert asked(names, tmp_path, lotwise.peek).equals(told)
    assert asked(names, tmp_path, lotwise.plan).n_done == 2


def test_an_answer_in_one_struct_keeps_its_names(tmp_path: Path) -> None:
    told = asked(NAMES, tmp_path, into="^b.*$")

    assert told["^b.*$"].to_list() == [*values(NAMES)[:2], None]


@pytest.mark.parametrize("prefix", ["^", "*", "a_", " "])
def test_a_prefix_is_put_before_any_name(tmp_path: Path, prefix: str) -> None:
    told = asked(NAMES, tmp_path, prefix=prefix)

    assert told[[prefix + name for name in NAMES]].rows() == [tuple(row.values()) for row in values(NAMES)]
    answers = lotwise.answers(told, prefix=prefix)
    assert answers.columns == ["body", *(prefix + name for name in NAMES), f"{prefix}llm_state"]


def test_a_prompt_reads_the_column_that_it_names(tmp_path: Path) -> None:
    places = [name for name in NAMES if name]
    frame = pl.DataFrame({name: [f"in {name}"] for name in NAMES})
    prompt = "|".join(f"{{{name}}}" for name in places)

    told = lotwise.map(frame, prompt, model="scripted:echo", ledger=tmp_path, progress=False, prefix="of ")

    assert told["of answer"].to_list() == ["|".join(f"in {name}" for name in places)]
    assert told[NAMES].equals(frame)


@pytest.mark.parametrize("name", ALONE, ids=repr)
def test_lots_are_the_groups_of_the_column_that_is_named(tmp_path: Path, name: str) -> None:
    frame = pl.DataFrame({"body": ["one", "two", "three"], name: ["x", "y", "x"], "a": ["x", "x", "x"]})

    told = asked(["word"], tmp_path, frame=frame, accept=lotwise.Acceptance(by=name))

    lots = told["llm_lot"].to_list()
    assert lots[0] == lots[2] != lots[1]
    assert asked(["word"], tmp_path, lotwise.plan, frame=frame, accept=lotwise.Acceptance(by=name)).n_done == 3


def test_a_sample_shows_every_field(tmp_path: Path) -> None:
    run = asked(NAMES, tmp_path, lotwise.submit)
    run.wait()

    sample = lotwise.sample(tmp_path, run)

    ours = (*FRONT, *TO_FILL_IN, *BACK)
    shown = sample.drop([name for name in sample.columns if name in ours])
    assert shown.rows() == [tuple(f"is {name}" for name in NAMES)] * 2
    assert set(NAMES) - {*ours} <= set(shown.columns)
    assert sample["verdict"].null_count() == sample.height


@pytest.mark.parametrize("names", [NAMES, *([name] for name in ALONE)], ids=["all of them", *map(repr, ALONE)])
def test_a_known_answer_is_the_column_that_is_named(tmp_path: Path, names: list[str]) -> None:
    rows = {name: [f"is {name}"] * 8 for name in names}
    golden = pl.DataFrame({"body": [f"known {i}" for i in range(8)], **rows, "_": ["other"] * 8})
    wrong = golden.with_columns(pl.Series(names[0], ["wrong"] * 8))

    run = asked(names, tmp_path, lotwise.submit, golden=lotwise.Golden(golden, answers=names, threshold=0.5))
    run.wait()
    told = run.golden()
    with pytest.raises(RunStopped, match="canary"):
        asked(names, tmp_path / "other", golden=lotwise.Golden(wrong, answers=names, threshold=0.5))

    assert told["agreed"].to_list() == [True] * told.height
    assert json.loads(told["expected"][0]) == values(names)[0]


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(names=st.lists(st.text(max_size=6) | st.sampled_from(NAMES), min_size=1, max_size=8, unique=True))
def test_no_set_of_names_loses_an_answer(tmp_path_factory: pytest.TempPathFactory, names: list[str]) -> None:
    told = asked(names, tmp_path_factory.mktemp("ledger"), prefix="p")

    assert told[["p" + name for name in names]].rows() == [tuple(row.values()) for row in values(names)]


# --- the command line ---------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOTWISE_LEDGER", raising=False)
    said = {name: pl.Series([f"is {name}", "else", None]) for name in NAMES}
    pl.DataFrame({"body": ["one", "two", None], **said}).write_parquet("in.parquet")
    rules = {"type": "object", "properties": {name: {"type": "string"} for name in NAMES}, "required": NAMES}
    Path("schema.json").write_text(json.dumps(rules), encoding="utf-8")
    return tmp_path


def command(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    with pytest.raises(SystemExit) as left:
        cli.main([*words, "-p", "Say {body}", "-s", "schema.json", "-m", "scripted:named", "--json", "-q"])
    assert left.value.code == cli.DONE
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("more", [(), ("--into", "^a.*$")], ids=["columns", "struct"])
@pytest.mark.parametrize("name", ["state", "label", "^a$", "^.*$", "*"])
def test_a_label_is_compared_with_the_field_that_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, more: tuple[str, ...]
) -> None:
    told = command(capsys, "map", "in.parquet", "out.parquet", "--prefix", "p", "--label", f"{name}={name}", *more)

    assert told["agreement"] == {"label": name, "field": name, "agree": 1, "of": 2, "percent": 50.0}


def test_preview_shows_the_columns_of_the_prompt_and_the_answers(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = command(capsys, "preview", "in.parquet", "--prefix", "p")

    assert [row["body"] for row in shown] == ["one", "two", None]
    assert [[row["p" + name] for name in NAMES] for row in shown] == [list(row.values()) for row in values(NAMES)]
    assert not set(NAMES) & set(shown[0])


def test_a_label_that_cannot_be_set_apart_is_told_before_anything_is_sent(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pl.DataFrame({"body": ["one"], "kind": ["a"], "kind_label": ["b"]}).write_parquet("both.parquet")
    schema = '{"type":"object","properties":{"kind":{"type":"string"}},"required":["kind"]}'

    asking = ("-p", "Say {body}", "-s", schema, "-m", "scripted:named")
    with pytest.raises(SystemExit) as left:
        cli.main(["map", "both.parquet", "out.parquet", *asking, "--label", "kind"])

    assert left.value.code == cli.WRONG_USE
    said = capsys.readouterr().err
    assert "kind_label" in said
    assert "--prefix" in said
    assert not Path(".lotwise").exists()
