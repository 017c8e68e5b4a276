"""What is wrong with a call is told before anything is sent, by an error of its own that names what is near."""

from __future__ import annotations

import stat
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest
from pydantic import BaseModel

import lotwise
from lotwise import errors
from lotwise.ledger.files import DATABASE
from lotwise.testing import ScriptedExecutor

FRAME = pl.DataFrame({"subject": ["a"], "body": ["b"], "raw": [b"bytes"], "answer_id": [1]})


class Loop(BaseModel):
    """A schema without an end."""

    inner: Loop | None = None


# What is wrong; the error and the built-in that it also is; and what the message must say.
CASES: dict[str, tuple[dict[str, Any], type[Exception], type[Exception], tuple[str, ...]]] = {
    "unknown column": ({"prompt": "{bodi}"}, errors.UnknownColumn, LookupError, ("bodi", "'body'")),
    "clashing column": (
        {"schema": {"subject": pl.String}},
        errors.OutputClash,
        ValueError,
        ("'subject'", "prefix="),
    ),
    "clashing bookkeeping": (
        {"frame": FRAME.with_columns(llm_id=pl.lit(1))},
        errors.OutputClash,
        ValueError,
        ("'llm_id'", "prefix="),
    ),
    "empty template": ({"prompt": " \n"}, errors.EmptyTemplate, ValueError, ("{column}",)),
    "unpaired brace": ({"prompt": "{body"}, errors.BadTemplate, ValueError, ("line 1, column 1", "{{")),
    "column without text": ({"prompt": "{raw}"}, errors.UnrenderableColumn, TypeError, ("'raw'", "Binary")),
    "schema without a Polars dtype": (
        {"schema": {"type": "object", "properties": {"x": {"not": {}}}, "required": ["x"]}},
        errors.UntranslatableSchema,
        TypeError,
        ("at x",),
    ),
    "schema without an end": ({"schema": Loop}, errors.UntranslatableSchema, TypeError, ("inner",)),
    "schema of another kind": ({"schema": 7}, errors.UntranslatableSchema, TypeError, ("int",)),
    "unknown provider": ({"model": "opena:gpt"}, errors.UnknownProvider, LookupError, ("'opena'", "'openai'")),
    "unknown model": ({"model": "scripted:ecco"}, errors.UnknownModel, LookupError, ("'ecco'", "'echo'")),
    "unknown argument": ({"promt": "x"}, errors.BadArgument, ValueError, ("'promt'",)),
    "argument nearly right": ({"budgt": 1}, errors.BadArgument, ValueError, ("'budgt'", "budget")),
    "budget as a float": ({"budget": 0.1}, errors.BadArgument, ValueError, ("budget", "Decimal", "not float")),
    "budget below zero": ({"budget": -1}, errors.BadArgument, ValueError, ("budget", "-1")),
    "budget beyond all bounds": ({"budget": "1e20"}, errors.BadArgument, ValueError, ("budget", "1,000,000,000")),
    "deadline beyond all time": ({"deadline": "99999999999d"}, errors.BadArgument, ValueError, ("deadline",)),
    "deadline too far": ({"deadline": timedelta.max}, errors.BadArgument, ValueError, ("deadline", "3,650 days")),
    "check of another kind": ({"check": 5}, errors.BadArgument, ValueError, ("check", "function")),
    "prices of another kind": ({"prices": 5}, errors.BadArgument, ValueError, ("prices", "input_mtok")),
    "retry of another kind": ({"retry": 5}, errors.BadArgument, ValueError, ("retry must be", "'invalid'")),
    "examples of another kind": ({"examples": 5}, errors.BadExample, ValueError, ("no pair",)),
    "example of another dtype": (
        {"examples": [({"body": 5}, "a")]},
        errors.BadExample,
        ValueError,
        ("'body'", "String"),
    ),
    "budget in words": ({"budget": "ten"}, errors.BadArgument, ValueError, ("budget", "'ten'")),
    "budget without a price": ({"budget": 1}, errors.PriceUnknown, LookupError, ("scripted:echo", "prices=")),
    "price misspelt": ({"prices": {"input": 1}}, errors.BadPrices, ValueError, ("input_mtok",)),
    "parameter without a form": ({"params": {"stop": {1}}}, errors.BadParams, ValueError, ("stop",)),
    "no output tokens": ({"params": {"max_tokens": 0}}, errors.BadArgument, ValueError, ("max_tokens",)),
    "unknown retry": ({"retry": "dead_letter"}, errors.BadArgument, ValueError, ("dead_lettered",)),
    "negative pause": ({"poll_s": -1}, errors.BadArgument, ValueError, ("poll_s",)),
    "example of another shape": (
        {"schema": {"x": pl.String}, "examples": [({"body": "b"}, {"y": "no"})]},
        errors.BadExample,
        ValueError,
        ("'y'",),
    ),
    "example that is no pair": (
        {"examples": ["a"]},
        errors.BadExample,
        ValueError,
        ("pair", '({"column": ...}, answer)'),
    ),
    "example without columns": ({"examples": [("b", "no")]}, errors.BadExample, ValueError, ("pair",)),
    "hosted model for local data": (
        {"model": "openai:gpt-5-nano", "data": "local"},
        errors.HostedRefused,
        PermissionError,
        ("openai:gpt-5-nano",),
    ),
    "no model for many rows": (
        {"model": None, "frame": pl.DataFrame({"body": ["x"] * 2_001})},
        errors.ModelNotSaid,
        ValueError,
        ("2,001", 'model="embedded"'),
    ),
    "tier misspelt": ({"tier": "fast"}, errors.BadArgument, ValueError, ("tier", "'batch'", "'interactive'")),
    "no prompt": ({"prompt": None}, errors.BadArgument, ValueError, ("prompt must be text",)),
    "prefix of another kind": ({"prefix": 3}, errors.BadArgument, ValueError, ("prefix must be text",)),
    "into of another kind": ({"into": 3}, errors.BadArgument, ValueError, ("into must be text",)),
    "params as text": ({"params": "x"}, errors.BadArgument, ValueError, ("params must be a dict",)),
    "half a character in the prompt": ({"prompt": "{body}\ud800"}, errors.BadArgument, ValueError, ("character 7",)),
    "half a character in system": ({"system": "\udfff"}, errors.BadArgument, ValueError, ("system", "surrogate")),
    "JSON in the prompt": ({"prompt": 'as {"a": 1}'}, errors.UnknownColumn, LookupError, ("write {{ and }}",)),
    "column in another case": ({"prompt": "{BODY}"}, errors.UnknownColumn, LookupError, ("did you mean 'body'",)),
    "model without its provider": (
        {"model": "gpt-4"},
        errors.UnknownProvider,
        LookupError,
        ("known are", "vllm. ", "write provider:model, for instance openai:gpt-4"),
    ),
    "struct that takes a column": ({"into": "body"}, errors.OutputClash, ValueError, ("'body'", "another into=")),
    "a lazy frame": ({"frame": FRAME.lazy()}, errors.NotAFrame, TypeError, ("LazyFrame", ".collect() makes one")),
    "an Arrow table": ({"frame": FRAME.to_arrow()}, errors.NotAFrame, TypeError, ("pl.from_arrow(...) makes one",)),
    "a list": ({"frame": [{"body": "b"}]}, errors.NotAFrame, TypeError, ("list", "pl.DataFrame")),
    "a dict": ({"frame": {"body": ["b"]}}, errors.NotAFrame, TypeError, ("dict", "pl.DataFrame")),
    "a series": ({"frame": pl.Series(["b"])}, errors.NotAFrame, TypeError, ("Series",)),
}


def call(folder: Path, **changes: Any) -> pl.DataFrame:
    given: dict[str, Any] = {
        "prompt": "Say: {body}",
        "schema": None,
        "model": "scripted:echo",
        "ledger": folder / "ledger",
        "progress": False,
        "poll_s": 0.01,
        **changes,
    }
    if given["model"] == "scripted:echo":
        given.setdefault("options", lotwise.Options(executor_options={"folder": folder / "provider"}))
    return lotwise.map(given.pop("frame", FRAME), given.pop("prompt"), given.pop("schema"), **given)


def bill(folder: Path) -> int:
    return ScriptedExecutor(folder / "provider").bill().height


@pytest.mark.parametrize(("changes", "error", "built_in", "said"), CASES.values(), ids=CASES.keys())
def test_a_bad_call_is_told_before_anything_is_sent_or_made(
    tmp_path: Path,
    changes: dict[str, Any],
    error: type[Exception],
    built_in: type[Exception],
    said: tuple[str, ...],
) -> None:
    with pytest.raises(error) as raised:
        call(tmp_path, **changes)
    assert isinstance(raised.value, built_in)
    assert isinstance(raised.value, errors.LotwiseError)
    for words in said:
        assert words in str(raised.value)
    assert not (tmp_path / "ledger").exists()
    assert bill(tmp_path) == 0


@pytest.mark.parametrize("n", [-1, 0, 1.5, True, "3"])
def test_a_preview_of_no_whole_number_of_rows_is_refused(tmp_path: Path, n: Any) -> None:
    with pytest.raises(errors.BadArgument, match="n must be a whole number of rows"):
        lotwise.preview(FRAME, "{body}", n=n, model="scripted:echo", ledger=tmp_path / "ledger")
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize("verb", ["map", "submit", "preview", "peek", "plan", "answers", "sample"])
def test_every_verb_of_a_lazy_frame_says_that_the_rows_must_be_there(verb: str) -> None:
    with pytest.raises(errors.NotAFrame, match=r"LazyFrame; \.collect\(\) makes one"):
        getattr(FRAME.lazy().llm, verb)("Say: {body}")
    assert not hasattr(FRAME.lazy().llm, "mapp")


def test_what_retry_takes_is_listed_once(tmp_path: Path) -> None:
    with pytest.raises(errors.BadArgument) as raised:
        call(tmp_path, retry="nope")
    known = str(raised.value).partition("known are ")[2].split(", ")
    assert len(known) == len(set(known)) > 3


def test_local_data_is_refused_to_a_hosted_model_whose_package_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "lotwise.executors.openai", raising=False)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(errors.HostedRefused):
        call(tmp_path, model="openai:some-model", data="local")


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_a_missing_extra_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == provider]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, f"lotwise.executors.{provider}", raising=False)
    monkeypatch.setitem(sys.modules, provider, None)
    with pytest.raises(errors.MissingExtra) as raised:
        call(tmp_path, model=f"{provider}:some-model")
    assert f'pip install "lotwise[{provider}]"' in str(raised.value)
    assert not (tmp_path / "ledger").exists()


@pytest.mark.parametrize(("provider", "variable"), [("openai", "OPENAI_API_KEY"), ("anthropic", "ANTHROPIC_API_KEY")])
def test_missing_credentials_are_told_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, variable: str
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.MissingCredentials, match=variable):
        call(tmp_path, model=f"{provider}:some-model")
    assert not (tmp_path / "ledger").exists()


def test_plan_and_peek_need_no_credentials_and_say_what_sending_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    given = {"model": "openai:gpt-5-nano", "ledger": tmp_path / "ledger"}

    planned = lotwise.plan(FRAME, "Say: {body}", **given)
    assert any("OPENAI_API_KEY" in warning for warning in planned.warnings)
    assert planned.cost_high_usd is not None
    assert lotwise.peek(FRAME, "Say: {body}", **given)["llm_state"].unique().to_list() == ["absent"]
    assert not (tmp_path / "ledger").exists()


# --- ledgers that cannot be used ----------------------------------------------------------------------------------


def foreign_file(folder: Path) -> None:
    (folder / DATABASE).write_bytes(b"SQLite format 3\x00 and more of it")


def foreign_database(folder: Path) -> None:
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("CREATE TABLE theirs (i INTEGER)")


def newer(folder: Path) -> None:
    call(folder.parent)
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("UPDATE meta SET value = '9999' WHERE name = 'schema_version'")
    with duckdb.connect(str(folder / DATABASE)) as connection:
        connection.execute("CHECKPOINT")


def damaged(folder: Path) -> None:
    call(folder.parent)
    whole = (folder / DATABASE).read_bytes()
    (folder / DATABASE).write_bytes(whole[: 4096 * 2] + b"\xa5" * (len(whole) - 4096 * 2))


LEDGERS: dict[str, tuple[Any, type[Exception], tuple[str, ...]]] = {
    "a file of another kind": (foreign_file, errors.LedgerForeign, ("not a DuckDB file", "ledger=")),
    "another database": (foreign_database, errors.LedgerForeign, ("not a lotwise ledger", "ledger=")),
    "a newer ledger": (newer, errors.LedgerNewer, ("9999",)),
    "a damaged ledger": (damaged, errors.LedgerDamaged, ("damaged",)),
}


@pytest.mark.parametrize(("make", "error", "said"), LEDGERS.values(), ids=LEDGERS.keys())
def test_a_ledger_that_cannot_be_used_is_named_and_left_as_it_is(
    tmp_path: Path, make: Any, error: type[Exception], said: tuple[str, ...]
) -> None:
    folder = tmp_path / "ledger"
    folder.mkdir()
    make(folder)
    before, billed = (folder / DATABASE).read_bytes(), bill(tmp_path)
    with pytest.raises(error) as raised:
        call(tmp_path, prompt="Other: {body}")
    assert str(folder) in str(raised.value)
    for words in said:
        assert words in str(raised.value)
    assert (folder / DATABASE).read_bytes() == before
    assert bill(tmp_path) == billed


def test_a_place_where_no_ledger_can_be_is_told(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text("a file of the user's", encoding="utf-8")
    with pytest.raises(errors.LedgerUnwritable, match="ledger="):
        call(tmp_path)
    assert (tmp_path / "ledger").read_text(encoding="utf-8") == "a file of the user's"
    assert bill(tmp_path) == 0


# --- frames at the edge -------------------------------------------------------------------------------------------


def test_an_empty_frame_gives_an_empty_frame_with_the_full_schema(tmp_path: Path) -> None:
    schema = {"category": pl.Enum(["a", "b"]), "score": pl.Int64, "tags": pl.List(pl.String)}
    full = call(tmp_path / "full", schema=schema, model="scripted:choice")
    empty = call(tmp_path, schema=schema, frame=FRAME.clear())
    assert empty.height == 0
    assert empty.schema == full.schema
    assert list(empty.schema)[: FRAME.width] == FRAME.columns
    assert bill(tmp_path) == 0


def test_a_frame_of_nulls_asks_nothing_and_keeps_its_schema(tmp_path: Path) -> None:
    out = call(tmp_path, schema={"n": pl.Int64}, frame=FRAME.with_columns(body=pl.lit(None, pl.String)))
    assert out["llm_state"].to_list() == ["skipped"]
    assert out["n"].to_list() == [None]
    assert out.schema["n"] == pl.Int64
    assert out["llm_id"].to_list() == [None]
    assert bill(tmp_path) == 0


def test_the_ledgers_folder_is_its_owners_alone(tmp_path: Path) -> None:
    call(tmp_path)
    for path in [tmp_path / "ledger", *(tmp_path / "ledger").rglob("*")]:
        others = stat.S_IMODE(path.stat().st_mode) & 0o077
        assert others == 0 or path.name == ".gitignore", path
