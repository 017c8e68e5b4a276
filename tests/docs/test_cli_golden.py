"""The command line's golden set, canary and acceptance rule: from files to what the provider was asked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl
import pytest

import lotwise
from lotwise import cli
from lotwise.request import Spec
from lotwise.testing import choice

SCHEMA = '{"type":"object","properties":{"kind":{"type":"string","enum":["a","b"]}},"required":["kind"]}'
PROMPT = "Sort this: {body}"
GOLDEN = ("--golden", "golden.csv", "--answers", "kind")


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
    """A working folder with 300 rows, and 60 golden ones whose answers are the scripted model's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LOTWISE_LEDGER", raising=False)
    pl.DataFrame({"body": [f"row {i}" for i in range(300)], "lang": ["de", "en"] * 150}).write_csv("in.csv")
    bodies = [f"known {i}" for i in range(60)]
    spec = Spec(provider="scripted", model="choice", wire_schema=SCHEMA)
    kinds = [json.loads(choice(PROMPT.format(body=body), spec))["kind"] for body in bodies]
    golden = pl.DataFrame({"body": bodies, "kind": kinds})
    golden.write_csv("golden.csv")
    golden.write_parquet("golden.parquet")
    golden.with_columns(kind=pl.lit("a")).write_csv("wrong.csv")
    golden.with_columns(pl.col("kind").replace({"a": "b", "b": "a"})).write_csv("swapped.csv")
    Path("rules.py").write_text("def other(known, said):\n    return known['kind'] != said['kind']\n", encoding="utf-8")
    Path("broken.py").write_text("import nothing_of_this_name\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def lotwise_(here: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    def run(command: str, *words: str) -> Said:
        files = {"map": ("in.csv", "out.csv"), "plan": ("in.csv",)}[command]
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main([command, *files, "-p", PROMPT, "-s", SCHEMA, "-m", "scripted:choice", *words])
        out, err = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return Said(left.value.code, out, err)

    return run


def sql(query: str, ledger: str = ".lotwise") -> list[Any]:
    return lotwise.open_ledger(ledger).sql(query).rows()


def test_plan_counts_golden_rows_and_writes_nothing(lotwise_: Command) -> None:
    said = lotwise_("plan", *GOLDEN)

    assert said.code == cli.DONE
    assert "60 golden rows first, the rest only if they pass" in said.out
    assert "63 golden rows asked besides" in said.out
    assert not Path(".lotwise").exists()


@pytest.mark.parametrize("file", ["golden.csv", "golden.parquet"])
def test_golden_rows_that_agree_let_the_rest_through(lotwise_: Command, file: str) -> None:
    done = lotwise_("map", "--golden", file, "--answers", "kind", "--json")

    assert (done.code, done.json["valid"], done.json["sent_now"]) == (cli.DONE, 300, 300)
    assert done.json["notices"] == ["canary passed: 60 of 60 golden rows agree, at least 95.1%"]
    assert pl.read_csv("out.csv").height == 300
    assert sql("SELECT purpose, count(*) FROM attempt GROUP BY ALL ORDER BY ALL") == [("answer", 300), ("golden", 63)]


def test_golden_rows_that_do_not_agree_stop_the_map_until_it_is_overridden(lotwise_: Command) -> None:
    wrong = ("--golden", "wrong.csv", "--answers", "kind")

    stopped = lotwise_("map", *wrong)
    assert stopped.code == cli.STOPPED
    assert "of 60 golden rows agree" in stopped.err
    assert "--canary override" in stopped.err
    assert "canary=" not in stopped.err
    assert "out.csv has what is done" in stopped.err
    assert pl.read_csv("out.csv")["llm_state"].unique().to_list() == ["pending"]
    assert lotwise_("map", *wrong, "--json").json["stopped"]["kind"] == "CanaryFailed"
    assert sql("SELECT count(*) FROM attempt") == [(60,)]

    assert lotwise_("map", *wrong, "--canary", "override", "--json").json["valid"] == 300


def test_golden_rows_that_disagree_are_shown_beside_their_known_answers(
    lotwise_: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped = lotwise_("map", "--golden", "wrong.csv", "--answers", "kind", "--json")
    apart = [row for row in pl.read_csv("golden.csv").iter_rows(named=True) if row["kind"] == "b"]
    run = stopped.json["run"]
    assert f"{len(apart)} golden rows disagree: `lotwise golden {run}` shows" in stopped.err
    assert "known" not in stopped.err.replace("known answers", "")

    told = golden(capsys, run)
    assert (told.code, "".join(told.out.split()).count('{"kind":"b"}')) == (cli.DONE, len(apart))
    rows = golden(capsys, run, "--json").json
    assert sorted(row["input"] for row in rows) == sorted(PROMPT.format(body=row["body"]) for row in apart)
    assert {(row["expected"], json.loads(row["answered"])["kind"]) for row in rows} == {('{"kind":"a"}', "b")}
    assert len(golden(capsys, run, "--all", "--json").json) == 60


def test_golden_rows_compared_by_a_function_are_judged_with_it_again(
    lotwise_: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--golden", "golden.csv", "--answers", "kind", "--match", "rules.py:other")
    run = lotwise_("map", *words, "--json").json["run"]

    untold = golden(capsys, run, "--json")
    assert "give --match FILE.py:FUNCTION" in untold.err
    assert {row["agreed"] for row in untold.json} == {None}
    assert {row["agreed"] for row in golden(capsys, run, "--match", "rules.py:other", "--json").json} == {False}


def golden(capsys: pytest.CaptureFixture[str], *words: str) -> Said:
    with pytest.raises(SystemExit) as left:
        cli.main(["golden", *words])
    out, err = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return Said(left.value.code, out, err)


def test_threshold_and_match_are_those_that_were_given(lotwise_: Command) -> None:
    swapped = ("--golden", "swapped.csv", "--answers", "kind", "--ledger", "led")

    assert lotwise_("map", *swapped).code == cli.STOPPED
    assert lotwise_("map", *swapped, "--match", "exact", "--threshold", "0").code == cli.DONE
    assert lotwise_("map", *swapped, "--match", "rules.py:other").code == cli.DONE
    gates = sql("SELECT state, agreed FROM gate ORDER BY ALL", "led")
    assert gates == [("failed", 0), ("passed", 0), ("passed", 60)]
    assert sql("SELECT count(*) FROM golden_ask WHERE round = 0 GROUP BY set_digest", "led") == [(60,), (60,)]


def test_canary_off_sends_no_golden_row_first(lotwise_: Command) -> None:
    assert lotwise_("map", "--golden", "wrong.csv", "--answers", "kind", "--canary", "off").code == cli.DONE
    assert sql("SELECT * FROM gate") == []


def test_accept_is_the_lots_rule(lotwise_: Command) -> None:
    words = ("--accept", "limit=0.1", "--accept", "aql=0.02", "--accept", "by=lang")

    assert "of 2 lots" in lotwise_("plan", *words).out
    assert lotwise_("map", *words).code == cli.DONE
    assert sql("SELECT DISTINCT bad_limit, aql FROM draw") == [(0.1, 0.02)]
    assert sorted(pl.read_csv("out.csv")["llm_lot"].value_counts()["count"]) == [150, 150]


def test_map_says_its_run_and_what_there_is_to_read(lotwise_: Command) -> None:
    first = lotwise_("map").out
    (run,) = (row[0] for row in sql("SELECT id FROM run"))
    assert f"run       {run}" in first
    assert f"lots      continue, no_inspection: lotwise review {run}" in first

    sample = lotwise.sample(".lotwise", run).with_columns(verdict=pl.lit("good"))
    lotwise.inspect(sample, ".lotwise")
    again = lotwise_("map").out
    assert "lots      release, upper_bound_below_limit\n" in again
    assert "lotwise review" not in again
    assert lotwise_("map", "--json").json["lots"] == [
        {"decision": "release", "reason": "upper_bound_below_limit", "n": 1}
    ]

    assert "lots      2 continue, no_inspection: lotwise review" in lotwise_("map", "--accept", "by=lang").out


WRONG = {
    "no answers": (("--golden", "golden.csv"), "--golden needs --answers"),
    "answers alone": (("--answers", "kind"), "--answers says something about --golden, which is not given"),
    "threshold alone": (("--threshold", "0.8"), "--threshold says something about --golden"),
    "percent": ((*GOLDEN, "--threshold", "90"), "--threshold"),
    "no such file": (("--golden", "gone.csv", "--answers", "kind"), "there is no such file"),
    "no such column": (("--golden", "golden.csv", "--answers", "kind,sort"), "no column 'sort'"),
    "no field": (("--golden", "golden.csv", "--answers", "body"), "the prompt uses 'body'"),
    "no function": ((*GOLDEN, "--match", "same"), "exact or FILE.py:FUNCTION"),
    "no such function": ((*GOLDEN, "--match", "rules.py:same"), "rules.py has no function 'same'"),
    "no such rules": ((*GOLDEN, "--match", "gone.py:same"), "gone.py cannot be read"),
    "rules that do not run": ((*GOLDEN, "--match", "broken.py:same"), "broken.py cannot be run: ModuleNotFoundError"),
    "canary word": (("--canary", "maybe"), "--canary"),
    "unknown rule": (("--accept", "limits=0.1"), "did you mean limit"),
    "rule that cannot be": (("--accept", "limit=5"), "a number from 0 to 1"),
    "no such group": (("--accept", "by=language"), "'lang'"),
}


@pytest.mark.parametrize(("words", "told"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("command", ["map", "plan"])
def test_wrong_use_is_told_in_words_and_sends_nothing(
    command: str, words: tuple[str, ...], told: str, lotwise_: Command
) -> None:
    done = lotwise_(command, *words)

    assert (done.code, done.out) == (cli.WRONG_USE, "")
    assert told in done.err
    assert not Path(".lotwise").exists()
    assert not Path("out.csv").exists()
