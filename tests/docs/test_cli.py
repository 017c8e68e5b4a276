"""The command line: what each command promises about files, streams and exit codes, over the scripted provider."""

from __future__ import annotations

import ast
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import polars as pl
import pytest

import lotwise
import lotwise.testing  # makes the scripted provider known
from lotwise import cli, cli_summary, cli_tell
from lotwise.call import Arguments

SCHEMA = '{"type":"object","properties":{"kind":{"type":"string","enum":["a","b"]}},"required":["kind"]}'
UNSATISFIED = '{"type":"object","properties":{"kind":{"type":"string","pattern":"^never$"}},"required":["kind"]}'
CLASH = '{"type":"object","properties":{"truth":{"type":"string"}},"required":["truth"]}'
CHOICE = ("-p", "Sort this: {body}", "-s", SCHEMA, "-m", "scripted:choice")
PLANTED = "planted-4711"


class Said(NamedTuple):
    """What a command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder with an input of six rows: four distinct, one null."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOTWISE_LEDGER", raising=False)
    bodies = [PLANTED, "two", None, "three", "two", "four"]
    labels = ["a", "b", "a", None, "b", "a"]
    pl.DataFrame({"id": ["007", "8", "9", "10", "11", "12"], "body": bodies, "truth": labels}).write_csv("in.csv")
    pl.DataFrame({"body": [f"row {i}" for i in range(3_000)]}).write_csv("big.csv")
    return tmp_path


@pytest.fixture
def lotwise_(here: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(*words: str) -> Said:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main(words)
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Said(left.value.code, out, err)

    return run


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), command


ALL = dict(commands(cli.cli))


# --- help ---------------------------------------------------------------------------------------------------------


def test_every_command_of_the_design_is_there() -> None:
    ledger = {f"ledger {name}" for name in ("runs", "requests", "missing", "sql", "verify", "export", "purge")}
    assert set(ALL) >= ledger | {"map", "plan", "preview", "status", "resume", "cancel", "fetch-model"}


@pytest.mark.parametrize("name", ALL)
def test_every_command_and_option_is_documented(name: str, lotwise_: Command) -> None:
    shown = lotwise_(*name.split(), "--help")

    words = " ".join(shown.out.split())
    assert shown.code == 0
    assert ALL[name].help
    for option in ALL[name].params:
        if isinstance(option, click.Option):
            assert option.help, f"{name} {option.opts} has no help text"
            assert option.help.split("  ")[0][:30] in words
            assert all(spelled in words for spelled in option.opts)


@pytest.mark.parametrize("name", ALL)
def test_every_command_can_answer_in_json(name: str) -> None:
    assert "--json" in {word for option in ALL[name].params for word in option.opts}


@pytest.mark.parametrize("group", [(), ("ledger",)], ids=["lotwise", "lotwise ledger"])
def test_the_list_of_commands_says_each_in_a_whole_sentence(group: tuple[str, ...], lotwise_: Command) -> None:
    listed = lotwise_(*group, "--help").out.partition("Commands:")[2].partition("\n\n")[0].strip().splitlines()
    assert len(listed) > 5
    assert [line for line in listed if not line.endswith(".") or line.endswith("...")] == []


def test_help_names_the_exit_codes(lotwise_: Command) -> None:
    shown = lotwise_("--help").out
    assert [line.split()[0] for line in shown.partition("Exit codes:")[2].strip().splitlines()] == [
        *map(
            str,
            (
                cli.DONE,
                cli.FAILED,
                cli.WRONG_USE,
                cli.STOPPED,
                cli.INCOMPLETE,
                cli.INTERRUPTED,
                cli.TERMINATED,
            ),
        )
    ]


# --- map ----------------------------------------------------------------------------------------------------------


def test_map_writes_typed_columns_beside_the_input(lotwise_: Command) -> None:
    done = lotwise_("map", "in.csv", "out.parquet", *CHOICE)

    out = pl.read_parquet("out.parquet")
    assert done.code == 0, done.err
    assert out.columns[:4] == ["id", "body", "truth", "kind"]
    assert out["id"].to_list() == ["007", "8", "9", "10", "11", "12"]
    assert out["kind"].dtype == pl.Enum(["a", "b"])
    assert out["llm_state"].to_list() == ["succeeded", "succeeded", "skipped", "succeeded", "succeeded", "succeeded"]


def test_map_again_sends_nothing_and_says_so(lotwise_: Command) -> None:
    first = lotwise_("map", "in.csv", "out.parquet", *CHOICE)
    again = lotwise_("map", "in.csv", "out.parquet", *CHOICE)

    assert "sent now  4 requests" in first.out
    assert "nothing was sent: every answer was in the ledger" in again.out


def test_map_names_why_requests_ended_and_a_repeat_does_not_claim_their_answers(lotwise_: Command) -> None:
    words = ("map", "in.csv", "out.parquet", *CHOICE[:2], "-s", UNSATISFIED, "-m", "scripted:choice")
    first = lotwise_(*words)
    again = lotwise_(*words)
    told = lotwise_(*words, "--json").json

    assert "reasons   4 schema_mismatch\n" in first.out
    assert "to retry  --retry invalid opens them again\n" in first.out
    assert "nothing was sent; 4 requests ended without a valid answer, --retry invalid opens them again\n" in again.out
    assert "every answer" not in again.out
    assert told["ended"] == [{"state": "invalid", "reason": "schema_mismatch", "n": 4}]


def test_a_map_that_leaves_rows_without_a_valid_answer_exits_with_4_and_writes_its_file(lotwise_: Command) -> None:
    words = ("in.csv", *CHOICE[:2], "-s", UNSATISFIED, "-m", "scripted:choice")
    first = lotwise_("map", words[0], "out.parquet", *words[1:])

    assert first.code == cli.INCOMPLETE == 4
    assert pl.read_parquet("out.parquet")["llm_state"].value_counts().height == 2  # invalid, and skipped
    assert (
        lotwise_("map", words[0], "out.parquet", *words[1:]).code == cli.INCOMPLETE
    )  # nothing is sent, nothing better
    assert lotwise_("preview", *words).code == cli.INCOMPLETE
    (run, *_) = lotwise_("ledger", "runs", "--json").json
    assert lotwise_("resume", run["id"]).code == cli.INCOMPLETE


def test_rows_that_ask_for_nothing_are_no_reason_to_exit_with_4(lotwise_: Command) -> None:
    assert lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["skipped"] == 1
    assert lotwise_("map", "in.csv", "out.csv", *CHOICE).code == cli.DONE


def test_summary_names_three_reasons_and_every_state_to_retry() -> None:
    ended = [("dead_lettered", "server_error", 12), ("refused", "refused", 2), ("dead_lettered", "uncertain", 9)]
    ended += [("dead_lettered", "oversize", 1)]
    rows = [(state, reason) for state, reason, n in ended for _ in range(n)] + [("pending", "server_error")] * 5
    missing = pl.DataFrame(rows, schema={"llm_state": pl.String, "reason": pl.String}, orient="row")
    facts = {"ended": cli_summary.ended(missing), "open": 5}

    assert cli_summary.reasons_in_words(facts["ended"]) == "12 server_error, 9 uncertain, 2 refused, ..."
    assert cli_summary.nothing_sent(facts) == (
        "nothing was sent; 24 requests ended without a valid answer, "
        "--retry dead_lettered --retry refused open them again"
    )


def test_summary_does_not_send_anybody_to_retry_what_would_end_the_same_way() -> None:
    lasting = [{"state": "dead_lettered", "reason": "bad_request", "n": 2}]
    other = {"state": "invalid", "reason": "schema_mismatch", "n": 1}

    assert cli_summary.nothing_sent({"ended": lasting, "open": 0}) == (
        "nothing was sent; 2 requests ended without a valid answer, asked again they would end the same way"
    )
    assert cli_summary.nothing_sent({"ended": [*lasting, other], "open": 0}).endswith(
        ", --retry invalid opens it again"
    )


def test_a_run_is_found_by_its_name_and_the_newest_of_several(lotwise_: Command) -> None:
    first = lotwise_("map", "in.csv", "one.parquet", *CHOICE, "--name", "nightly", "--json").json["run"]
    words = ("-p", "Put this: {body}", *CHOICE[2:])
    second = lotwise_("map", "in.csv", "two.parquet", *words, "--name", "nightly", "--json").json["run"]

    assert lotwise_("status", "nightly", "--json").json["run_id"] == second != first
    assert lotwise_("status", first[:8], "--json").json["run_id"] == first
    assert "did you mean nightly?" in lotwise_("status", "nightlx").err


def test_map_counts_rows_in_json(lotwise_: Command) -> None:
    told = lotwise_("map", "in.csv", "out.parquet", *CHOICE, "--label", "truth=kind", "--json").json

    out = pl.read_parquet("out.parquet")
    both = out.drop_nulls(["truth", "kind"])
    agree = both.filter(pl.col("truth") == pl.col("kind").cast(pl.String)).height
    expected = {"rows": 6, "unique": 4, "valid": 5, "invalid": 0, "refused": 0, "skipped": 1, "open": 0, "sent_now": 4}
    assert {name: told[name] for name in expected} == expected
    assert told["agreement"] == {
        "label": "truth",
        "field": "kind",
        "agree": agree,
        "of": 4,
        "percent": round(100 * agree / 4, 1),
    }


def test_a_label_of_the_fields_own_name_moves_aside(lotwise_: Command) -> None:
    pl.read_csv("in.csv", infer_schema=False).rename({"truth": "kind"}).write_parquet("in.parquet")

    done = lotwise_("map", "in.parquet", "out.parquet", *CHOICE, "--label", "kind")

    out = pl.read_parquet("out.parquet")
    assert done.code == 0, done.err
    assert out["kind_label"].to_list() == ["a", "b", "a", None, "b", "a"]
    assert out["kind"].dtype == pl.Enum(["a", "b"])


def test_every_option_of_a_call_reaches_it(lotwise_: Command, here: Path) -> None:
    (here / "prompt.md").write_text("Sort this: {body}", encoding="utf-8")
    (here / "schema.json").write_text(SCHEMA, encoding="utf-8")
    (here / "examples.json").write_text('[[{"body": "x"}, {"kind": "a"}]]', encoding="utf-8")
    (here / "system.txt").write_text("Be brief.", encoding="utf-8")
    words = "map in.csv out.ndjson -p prompt.md -s schema.json -m scripted:choice --system system.txt -q"
    words += " --examples examples.json --param temperature=0 --param max_tokens=64 --budget 5 --price input_mtok=1"
    words += " --price output_mtok=2 --name october --on-null render --retry invalid --into answer --prefix x_"
    words += " --poll-s 0 --data local --limit 3 --executor-option duration_s=0 --option shard_rows=2 --ledger led"

    done = lotwise_(*words.split())

    (run,) = lotwise_("ledger", "runs", "--ledger", "led", "--json").json
    (spec,) = lotwise_("ledger", "sql", "SELECT body FROM spec", "--ledger", "led", "--json").json
    body = json.loads(spec["body"])
    out = pl.read_ndjson("out.ndjson")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (run["name"], run["n_rows"], run["n_skipped"]) == ("october", 3, 0)
    assert (body["system"], body["max_tokens"], body["params"]["temperature"]) == ("Be brief.", 64, 0)
    assert "Sort this: x" in spec["body"]
    assert {"x_answer", "x_llm_id"} <= set(out.columns)
    assert lotwise_("ledger", "sql", "FROM shard", "--ledger", "led", "--json").json[0]["n_requests"] == 2


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson", ".jsonl"])
def test_map_reads_and_writes_by_suffix(suffix: str, lotwise_: Command) -> None:
    assert lotwise_("map", "in.csv", f"middle{suffix}", *CHOICE, "--prefix", "first_").code == 0
    assert lotwise_("map", f"middle{suffix}", "out.parquet", *CHOICE, "--json").json["sent_now"] == 0


# --- a stop -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stops(here: Path) -> tuple[str, ...]:
    """The words of a map whose answers are all invalid, so that it stops."""
    pl.DataFrame({"body": [f"row {i}" for i in range(30)]}).write_parquet("many.parquet")
    return ("map", "many.parquet", "out.parquet", "-p", "{body}", "-s", UNSATISFIED, "-m", "scripted:choice")


def test_a_stopped_map_writes_the_file_and_exits_with_3(stops: tuple[str, ...], lotwise_: Command) -> None:
    done = lotwise_(*stops)

    assert done.code == cli.STOPPED
    assert "too many answers are bad" in done.err
    assert pl.read_parquet("out.parquet").height == 30


def test_a_stopped_map_says_why_in_json(stops: tuple[str, ...], lotwise_: Command) -> None:
    told = lotwise_(*stops, "--json").json
    assert (told["stopped"]["kind"], told["state"], told["valid"]) == ("SystemicError", "stopped", 0)


# --- wrong use ----------------------------------------------------------------------------------------------------

WRONG = {
    "no such file": (("map", "nowhere.csv", "out.csv", *CHOICE), "there is no such file"),
    "unknown suffix in": (("map", "in.xlsx", "out.csv", *CHOICE), "suffix"),
    "unknown suffix out": (("map", "in.csv", "out.xlsx", *CHOICE), "suffix"),
    "no folder for out": (("map", "in.csv", "no/out.csv", *CHOICE), "folder does not exist"),
    "out is in": (("map", "in.csv", "./in.csv", *CHOICE), "never overwritten"),
    "unknown column": (("map", "in.csv", "out.csv", "-p", "{boddy}", "-m", "scripted:echo"), "'body'"),
    "missing prompt file": (("map", "in.csv", "out.csv", "-p", "no.md", "-m", "scripted:echo"), "no.md"),
    "schema is no JSON": (("map", "in.csv", "out.csv", "-p", "{body}", "-s", "{", "-m", "scripted:echo"), "line 1"),
    "unknown label": (("map", "in.csv", "out.csv", *CHOICE, "--label", "trut=kind"), "'truth'"),
    "unknown label field": (("map", "in.csv", "out.csv", *CHOICE, "--label", "truth=kinds"), "'kind'"),
    "unknown model": (("map", "in.csv", "out.csv", "-p", "{body}", "-m", "scripted:nobody"), "nobody"),
    "unknown provider": (("plan", "in.csv", "-p", "{body}", "-m", "opneai:x"), "openai"),
    "unknown option field": (("map", "in.csv", "out.csv", *CHOICE, "--option", "shard_row=2"), "shard_rows"),
    "bad option value": (("map", "in.csv", "out.csv", *CHOICE, "--option", "shard_rows=0"), "shard_rows"),
    "not key=value": (("map", "in.csv", "out.csv", *CHOICE, "--param", "temperature"), "KEY=VALUE"),
    "given twice": (("map", "in.csv", "out.csv", *CHOICE, "--param", "a=1", "--param", "a=2"), "twice"),
    "bad option kind": (
        ("map", "in.csv", "out.csv", *CHOICE, "--option", "shard_rows=x"),
        "--option shard_rows must be a whole number, 1 or more, or None, not 'x'",
    ),
    "bad budget": (
        ("map", "in.csv", "out.csv", *CHOICE, "--budget", "many"),
        "--budget must be an amount of US dollars, not 'many'",
    ),
    "budget without a price": (
        ("map", "in.csv", "out.csv", "-p", "{body}", "-m", "online:x", "--budget", "5"),
        "--executor-option base_url=http",
    ),
    "bad price": (("map", "in.csv", "out.csv", *CHOICE, "--price", "input_mtok=x"), "--price: output_mtok is missing"),
    "bad parameter": (
        ("map", "in.csv", "out.csv", *CHOICE, "--param", "max_tokens=x"),
        "--param max_tokens must be a positive integer",
    ),
    "bad time": (("map", "in.csv", "out.csv", *CHOICE, "--deadline", "soon"), "--deadline is no time"),
    "unknown retry": (("map", "in.csv", "out.csv", *CHOICE, "--retry", "invalit"), "unknown --retry: 'invalit'"),
    "hosted": (("plan", "in.csv", "-p", "{body}", "-m", "openai:x", "--data", "local"), "--data local refuses"),
    "clash": (("map", "in.csv", "out.csv", "-p", "{body}", "-s", CLASH, "-m", "scripted:choice"), "pass --prefix"),
    "no model for many rows": (("plan", "big.csv", "-p", "{body}"), "--model must be said for 3,000 rows"),
    "no ledger": (("status",), "no ledger"),
    "run and all": (("resume", "abc", "--all"), "not both"),
}


@pytest.mark.parametrize(("words", "told"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_told_in_words_and_sends_nothing(words: tuple[str, ...], told: str, lotwise_: Command) -> None:
    done = lotwise_(*words)

    assert done.code == cli.WRONG_USE
    assert told in done.err
    assert not PYTHON_WORDS.search(done.err)
    assert "Traceback" not in done.err
    assert PLANTED not in done.err
    assert not Path(".lotwise").exists()
    assert not any(Path(".").glob("out.*"))


OWN_TO_PYTHON = {"check", "frame", "examples_of", "schema"}
"""Arguments that the command line does not have."""

PYTHON_WORDS = re.compile(
    r"(?<![\w./-])(?:" + "|".join(set(Arguments.__annotations__) - OWN_TO_PYTHON) + r")=(?!=)|Options\(\w|\.partial\("
)
"""How an argument is written in Python."""


def said_by_the_package() -> Iterator[str]:
    """Yield every text in the package that names an argument as Python writes it, but for its documentation."""
    for path in sorted(Path(cli.__file__).parent.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                told = "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented | parts:
                told = node.value
            else:
                continue
            if PYTHON_WORDS.search(told) and path.name != "cli_tell.py":
                yield told


def test_whatever_the_package_says_the_command_line_says_in_its_own_words() -> None:
    texts = list(said_by_the_package())
    assert any("budget=" in told for told in texts)  # it finds what there is to find
    assert [told for told in texts if PYTHON_WORDS.search(cli_tell.as_option(told))] == []


def test_advice_is_said_in_the_words_of_the_command_line() -> None:
    said = {
        "Call again with a larger budget= to go on": "Call again with a larger --budget to go on",
        "or raise Options(systemic_rate=)": "or raise --option systemic_rate",
        "use Options(retry_spend=0.2), or": "use --option retry_spend=0.2, or",
        'give prices={"input_mtok": ..., "output_mtok": ...} in': (
            "give --price input_mtok=... --price output_mtok=... in"
        ),
        'Say model="embedded" to use it': "Say --model embedded to use it",
        "pass canary='override'": "pass --canary override",
        'give options=lotwise.Options(executor_options={"base_url": "http://h/v1"}) or': (
            "give --executor-option base_url=http://h/v1 or"
        ),
        "Run 1f; .partial() has what is done": "Run 1f; the ledger has what is done",
        "the file made/a.ledger=x stays": "the file made/a.ledger=x stays",
    }
    assert {told: cli_tell.as_option(told) for told in said} == said


@pytest.mark.parametrize("words", [("status",), ("map", "in.csv"), ("map", "in.csv", "./in.csv", *CHOICE)])
def test_wrong_use_is_one_json_object_too(words: tuple[str, ...], lotwise_: Command) -> None:
    done = lotwise_(*words, "--json")
    assert done.code == cli.WRONG_USE
    assert set(done.json["error"]) == {"kind", "message"}


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_the_input_is_not_overwritten_through_a_link(link: Callable[[str, str], None], lotwise_: Command) -> None:
    before = Path("in.csv").read_bytes()
    link("in.csv", "out.csv")

    assert lotwise_("map", "in.csv", "out.csv", *CHOICE).code == cli.WRONG_USE
    assert Path("in.csv").read_bytes() == before


# --- plan, preview, and what the ledger knows ---------------------------------------------------------------------


def test_plan_makes_no_ledger(lotwise_: Command) -> None:
    told = lotwise_("plan", "in.csv", *CHOICE, "--json").json
    assert (told["n_to_send"], told["ledger_is_new"], told["why"]) == (4, True, {"sent": 5, "skipped": 1})
    assert not Path(".lotwise").exists()


def test_what_is_previewed_is_not_sent_again(lotwise_: Command) -> None:
    shown = lotwise_("preview", "in.csv", *CHOICE, "-n", "2", "--json").json
    done = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json

    assert [row["body"] for row in shown] == [PLANTED, "two"]
    assert all(row["kind"] in ("a", "b") for row in shown)
    assert done["sent_now"] == 2


@pytest.fixture
def begun(here: Path) -> tuple[str, tuple[str, ...]]:
    """A run that was submitted and left, and the option that leads to its provider."""
    provider = str(here / "provider")
    run = lotwise.submit(
        pl.read_csv("in.csv", infer_schema=False),
        "Sort this: {body}",
        json.loads(SCHEMA),
        model="scripted:choice",
        progress=False,
        options=lotwise.Options(executor_options={"folder": provider}),
    )
    return run.id, ("--executor-option", f"folder={provider}")


def test_status_changes_nothing_and_takes_the_start_of_an_id(
    begun: tuple[str, tuple[str, ...]], lotwise_: Command
) -> None:
    run, _ = begun
    twice = [lotwise_("status", run[:8], "--json").json for _ in range(2)]

    assert twice[0] == twice[1]
    assert (twice[0]["run_id"], twice[0]["state"], twice[0]["requests"]) == (run, "open", {"submitted": 4})
    assert f"run {run}: open" in lotwise_("status", run).out


@pytest.mark.parametrize("chosen", ["the newest", "--all", "by id"])
def test_resume_finishes_what_another_process_began(
    chosen: str, begun: tuple[str, tuple[str, ...]], lotwise_: Command
) -> None:
    run, provider = begun
    which = {"the newest": (), "--all": ("--all",), "by id": (run,)}[chosen]

    told = lotwise_("resume", *which, *provider, "--json").json

    ended = told if chosen == "by id" else told[0]
    assert (ended["run_id"], ended["state"], ended["requests"]) == (run, "done", {"succeeded": 4})
    assert lotwise_("ledger", "missing", run, "--json").json == []
    assert lotwise_("resume", "--json").json == []


def test_cancel_stops_a_run_and_resume_collects_what_there_is(
    begun: tuple[str, tuple[str, ...]], lotwise_: Command
) -> None:
    run, provider = begun
    assert lotwise_("cancel", run, *provider, "--json").json["state"] == "canceled"
    assert len(lotwise_("ledger", "missing", run, "--json").json) == 4


def test_a_done_run_is_not_canceled(lotwise_: Command) -> None:
    run = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["run"]
    told = lotwise_("cancel", run, "--json")
    assert (told.code, told.json["state"]) == (0, "done")
    assert "nothing to cancel" in told.err


def test_the_ledger_commands_answer_in_json(lotwise_: Command) -> None:
    run = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["run"]

    assert [row["id"] for row in lotwise_("ledger", "runs", "--json").json] == [run]
    assert len(lotwise_("ledger", "requests", "--run", run, "--json").json) == 4
    assert len(lotwise_("ledger", "requests", "--limit", "3", "--json").json) == 3
    assert lotwise_("ledger", "sql", "SELECT count(*) AS n FROM result", "--json").json == [{"n": 4}]
    assert lotwise_("ledger", "verify", "--json").json["clean"] is True
    assert Path(lotwise_("ledger", "export", "copy.duckdb", "--json").json["path"]).is_file()
    assert lotwise_("ledger", "purge", "--yes", "--json").json["n_requests"] == 4
    assert lotwise_("status", run, "--json").json["requests"] == {"succeeded": 4}


def test_verify_of_a_broken_ledger_exits_with_1(lotwise_: Command) -> None:
    import duckdb

    lotwise_("map", "in.csv", "out.csv", *CHOICE)
    with duckdb.connect(".lotwise/ledger.duckdb") as connection:
        connection.execute("DELETE FROM result")

    told = lotwise_("ledger", "verify", "--json")
    assert (told.code, told.json["clean"]) == (cli.FAILED, False)
    assert told.json["findings"]


@pytest.mark.parametrize(
    "query",
    ["SELECT nothing FROM run", "SELEC 1", "SELECT error(raw) FROM result"],
    ids=["unknown column", "no SQL", "an error that quotes content"],
)
def test_a_query_that_fails_is_told_without_content(query: str, lotwise_: Command) -> None:
    lotwise_("map", "in.csv", "out.csv", "-p", "{body}", "-m", "scripted:echo")
    told = lotwise_("ledger", "sql", query)
    assert told.code == cli.WRONG_USE
    assert "the query cannot be run" in told.err
    assert PLANTED not in told.err


@pytest.mark.parametrize("query", ["DELETE FROM run", "UPDATE run SET name = 'x'", "INSERT INTO run SELECT * FROM run"])
def test_a_query_changes_nothing(query: str, lotwise_: Command) -> None:
    lotwise_("map", "in.csv", "out.csv", *CHOICE)
    before = lotwise_("ledger", "sql", "SELECT * FROM run", "--json").json

    told = lotwise_("ledger", "sql", query)

    assert told.code == cli.WRONG_USE
    assert "the ledger is read-only here; change nothing by hand" in told.err
    assert lotwise_("ledger", "sql", "SELECT * FROM run", "--json").json == before


@pytest.mark.parametrize(
    "query",
    [
        "COPY run TO 'leak.csv'",
        "ATTACH 'leak.duckdb' AS leak",
        "SELECT * FROM read_csv('in.csv')",
        "SELECT * FROM 'in.csv'",
        "EXPORT DATABASE 'leak'",
        "SET enable_external_access = true",
    ],
)
def test_a_query_reaches_nothing_but_the_ledger(query: str, lotwise_: Command, here: Path) -> None:
    lotwise_("map", "in.csv", "out.csv", *CHOICE)
    told = lotwise_("ledger", "sql", query)
    assert told.code == cli.WRONG_USE
    assert "query" in told.err
    assert PLANTED not in told.out + told.err
    assert not list(here.glob("leak*"))


@pytest.mark.parametrize("query", ["", " ; ", "/* a remark */", "SELECT 1; SELECT 2"])
def test_a_query_is_one_statement(query: str, lotwise_: Command) -> None:
    lotwise_("map", "in.csv", "out.csv", *CHOICE)
    told = lotwise_("ledger", "sql", query, "--json")
    assert told.code == cli.WRONG_USE
    assert told.json["error"]["kind"] == "QueryRefused"
    assert "one statement" in told.err


def test_a_query_without_rows_answers_with_none(lotwise_: Command) -> None:
    lotwise_("map", "in.csv", "out.csv", *CHOICE)
    assert lotwise_("ledger", "sql", "SELECT * FROM run WHERE false;", "--json").json == []


def test_a_sample_is_drawn_without_its_input_after_a_purge(lotwise_: Command) -> None:
    run = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["run"]
    lotwise_("ledger", "purge", "--yes")

    assert lotwise_("sample", run, "sample.parquet", "--json").code == 0

    drawn = pl.read_parquet("sample.parquet")
    assert drawn["kind"].null_count() == 0
    assert drawn["input"].null_count() == drawn.height > 0


@pytest.mark.parametrize("words", [("sample", "RUN", "sample.csv"), ("review", "RUN")], ids=["sample", "review"])
def test_reading_purged_answers_is_refused_in_words(words: tuple[str, ...], lotwise_: Command) -> None:
    run = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["run"]
    lotwise_("ledger", "purge", "--yes", "--values")

    told = lotwise_(*(run if word == "RUN" else word for word in words), "--json")

    assert (told.code, told.json["error"]["kind"]) == (cli.WRONG_USE, "ContentPurged")
    assert "purged" in told.err
    assert not Path("sample.csv").exists()


def test_resume_without_purged_messages_is_told_in_words(lotwise_: Command) -> None:
    run = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["run"]
    lotwise_("ledger", "purge", "--yes", "--values")
    assert lotwise_("resume", run, "--json").json["error"]["kind"] == "ContentPurged"


def test_a_sample_that_is_there_is_not_overwritten(lotwise_: Command) -> None:
    run = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["run"]
    Path("sample.csv").write_text("verdicts", encoding="utf-8")

    told = lotwise_("sample", run, "sample.csv")

    assert told.code == cli.WRONG_USE
    assert "the file exists, and is not overwritten" in told.err
    assert Path("sample.csv").read_text(encoding="utf-8") == "verdicts"


def test_inspect_says_each_lots_decision_in_json_too(lotwise_: Command) -> None:
    run = lotwise_("map", "in.csv", "out.csv", *CHOICE, "--json").json["run"]
    lotwise_("sample", run, "sample.parquet")
    drawn = pl.read_parquet("sample.parquet")
    drawn.with_columns(verdict=pl.lit("good")).write_parquet("read.parquet")

    told = lotwise_("inspect", "read.parquet", "--json").json

    (lot,) = told["lots"]
    assert (told["n_recorded"], lot["lot_id"]) == (drawn.height, drawn["llm_lot"][0])
    assert f"lot {lot['lot_id']}: {lot['decision']}, {lot['reason']};" in lotwise_("inspect", "read.parquet").out


@pytest.mark.parametrize("words", [("map", "in.csv", "out.csv", *CHOICE), ("status",)], ids=["map", "status"])
def test_a_file_in_place_of_a_ledger_is_told_as_one(
    words: tuple[str, ...], lotwise_: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("notes.txt").write_text("mine", encoding="utf-8")
    monkeypatch.setenv("LOTWISE_LEDGER", "notes.txt")

    told = lotwise_(*words)

    assert told.code == cli.WRONG_USE
    assert "is a file, and a ledger is a folder; name another folder with --ledger" in told.err
    assert "ledger=" not in told.err
    assert Path("notes.txt").read_text(encoding="utf-8") == "mine"


def test_purge_asks_first(lotwise_: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    lotwise_("map", "in.csv", "out.csv", *CHOICE)
    monkeypatch.setattr(sys, "stdin", io.StringIO("n\n"))
    told = lotwise_("ledger", "purge")
    assert (told.code, told.out) == (cli.FAILED, "")
    assert "nothing was done" in told.err


# --- a process of its own -----------------------------------------------------------------------------------------


HEARING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us with it ignored
from lotwise.cli import main
main()
"""
"""The command line, hearing Ctrl-C as it does in a terminal, whatever the tests were started by."""


@pytest.mark.parametrize(("end", "code"), [(signal.SIGINT, cli.INTERRUPTED), (signal.SIGTERM, cli.TERMINATED)])
def test_an_interrupt_detaches_and_says_how_to_go_on(here: Path, end: signal.Signals, code: int) -> None:
    """In a terminal, while a batch is out: its exit code, no file, no traceback, and a run that can be resumed."""
    never = ("--executor-option", "duration_s=86400", "--executor-option", f"folder={here / 'provider'}")
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", HEARING, "map", "in.csv", "out.csv", *CHOICE, *never]
    process = subprocess.Popen(command, stderr=theirs, cwd=here)
    os.close(theirs)

    shown = read_until(ours, b"shard")  # the batch is made, and the call waits
    process.send_signal(end)
    shown += read_until(ours, None)
    os.close(ours)

    text = shown.decode()
    assert process.wait(timeout=60) == code
    assert "nothing is lost" in text
    assert "Traceback" not in text
    (run,) = lotwise.runs(here / ".lotwise")["id"]
    assert f"lotwise resume {run} --ledger {here / '.lotwise'}" in text.replace("\r\n", "\n")
    assert not (here / "out.csv").exists()


def read_until(terminal: int, word: bytes | None) -> bytes:
    """Read what a terminal shows until a word stands there, or to its end."""
    shown, patience = b"", time.monotonic() + 120
    while word is None or word not in shown:
        assert time.monotonic() < patience, f"no end of it: {shown[-500:]!r}"
        assert select.select([terminal], [], [], 60)[0], f"nothing more after {shown[-500:]!r}"
        try:
            got = os.read(terminal, 4096)
        except OSError:  # Linux ends a pseudo-terminal with an error
            got = b""
        if not got:
            assert word is None, f"ended before it said {word!r}: {shown[-500:]!r}"
            return shown
        shown += got
    return shown
