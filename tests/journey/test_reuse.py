"""Which known answers a call takes: to its own requests, to compatible ones too, or none from before; and the bill."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pydantic
import pytest

import lotwise
from journey.harness import Desk
from journey.worker import Stop
from lotwise.errors import BadArgument
from lotwise.ledger.purge import purge
from lotwise.ledger.store import Ledger
from lotwise.ledger.verify import verify
from lotwise.testing import ScriptedExecutor

TEXTS = [f"row {i}" for i in range(12)] + ["row 0"]
FRAME = pl.DataFrame({"text": TEXTS})
N = 12


def schema(*kinds: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"kind": {"enum": list(kinds)}},
        "required": ["kind"],
        "additionalProperties": False,
    }


WIDE = schema("bug", "how-to")
NARROW = schema("bug")
WIDER = schema("other", "bug", "how-to")


def desk(folder: Path, **arguments: Any) -> Desk:
    return Desk(
        folder,
        FRAME,
        prompt="What is it? {text}",
        model="scripted:choice",
        schema=WIDE,
        arguments={"poll_s": 0.05, "progress": False, **arguments},
        options={
            "executor_options": {"folder": str(folder / "provider"), "duration_s": 0.01},
            "shard_rows": 4,
            "create_timeout_s": 0.3,
            "absence_margin_s": 0.3,
            "lease_s": 2,
            "systemic_rate": None,
        },
    )


def bill(here: Desk) -> Counter[str]:
    return Counter(ScriptedExecutor(here.folder / "provider").bill()["key"])


def ask(folder: Path, wanted: dict[str, Any] | None = WIDE, verb: str = "map", **arguments: Any) -> Any:
    options = lotwise.Options(executor_options={"folder": folder / "provider"}, systemic_rate=None)
    arguments = {"model": "scripted:choice", "ledger": folder / "ledger", "progress": False, **arguments}
    return getattr(lotwise, verb)(FRAME, "What is it? {text}", wanted, options=options, **arguments)


def charges(folder: Path) -> int:
    return ScriptedExecutor(folder / "provider").bill().height


# --- exact: the same requests under other rules --------------------------------------------------------------------


class Kind(pydantic.BaseModel):
    """The same on the wire as `CLOSED`, judged by rules of its own."""

    model_config = pydantic.ConfigDict(extra="forbid")
    kind: Literal["bug", "how-to"]


CLOSED = Kind.model_json_schema()


def test_answers_that_other_rules_judged_are_known_to_plan_and_peek_and_never_bought_again(tmp_path: Path) -> None:
    before = ask(tmp_path, CLOSED)
    assert before["llm_state"].unique().to_list() == ["succeeded"]

    plan = ask(tmp_path, Kind, "plan")
    assert (plan.n_done, plan.n_ended, plan.n_to_send) == (N, 0, 0)
    assert ask(tmp_path, Kind, "plan", retry="invalid").n_to_send == 0
    seen = ask(tmp_path, Kind, "peek")
    assert seen["llm_state"].unique().to_list() == ["succeeded"]
    assert seen["kind"].to_list() == before["kind"].to_list()

    again = ask(tmp_path, Kind, retry="invalid")
    assert again["llm_state"].unique().to_list() == ["succeeded"]
    assert charges(tmp_path) == N


def test_answers_that_stricter_rules_reject_are_told_before_they_are_bought_again(tmp_path: Path) -> None:
    before = ask(tmp_path, CLOSED)
    n_bad = before.unique("llm_id").filter(kind="how-to").height
    assert 0 < n_bad < N

    def is_bug(answer: Any) -> bool:
        return bool(answer["kind"] == "bug")

    plan = ask(tmp_path, Kind, "plan", check=is_bug)
    assert (plan.n_done, plan.n_ended, plan.n_to_send) == (N - n_bad, n_bad, 0)
    assert plan.rows.filter(why="ended")["reason"].unique().to_list() == ["check_failed"]
    assert ask(tmp_path, Kind, "plan", check=is_bug, retry="check_failed").n_to_send == n_bad
    seen = ask(tmp_path, Kind, "peek", check=is_bug)
    assert seen.filter(llm_state="invalid").unique("llm_id").height == n_bad
    assert charges(tmp_path) == N


# --- compatible ---------------------------------------------------------------------------------------------------


def test_answers_that_are_valid_under_the_new_schema_are_taken_and_only_the_rest_is_bought(tmp_path: Path) -> None:
    before = ask(tmp_path)
    n_bugs = before.unique("llm_id").filter(kind="bug").height
    assert 0 < n_bugs < N, "both kinds, or nothing is tested"

    planned = ask(tmp_path, NARROW, "plan", reuse="compatible")
    after = ask(tmp_path, NARROW, reuse="compatible")

    assert (planned.n_compatible, planned.n_to_send) == (n_bugs, N - n_bugs)
    assert planned.rows["why"].to_list() == ["compatible" if kind == "bug" else "sent" for kind in before["kind"]]
    assert charges(tmp_path) == N + N - n_bugs
    assert after["kind"].to_list() == ["bug"] * len(TEXTS)
    assert after["llm_attempts"].to_list() == [0 if kind == "bug" else 1 for kind in before["kind"]]
    assert verify(Ledger.open(tmp_path / "ledger")).clean


def test_what_was_taken_stays_though_the_same_request_is_bought_later(tmp_path: Path) -> None:
    before = ask(tmp_path)
    taken = ask(tmp_path, WIDER, reuse="compatible")
    assert charges(tmp_path) == N

    bought = ask(tmp_path, WIDER)
    again = ask(tmp_path, WIDER, reuse="compatible")

    assert charges(tmp_path) == 2 * N, "a call that asks for its own answers takes no other's"
    assert taken["kind"].to_list() == before["kind"].to_list() == again["kind"].to_list()
    assert bought["llm_id"].to_list() == taken["llm_id"].to_list()
    assert bought["kind"].to_list() != taken["kind"].to_list(), "the answers differ, or nothing is tested"
    assert charges(tmp_path) == 2 * N
    assert verify(Ledger.open(tmp_path / "ledger")).clean


def test_where_an_answer_was_taken_from_can_be_read(tmp_path: Path) -> None:
    before = ask(tmp_path)
    run = ask(tmp_path, WIDER, "submit", reuse="compatible").wait()

    status = run.status()
    pairs = lotwise.open_ledger(tmp_path / "ledger").sql(
        "SELECT b.key, b.of_key, b.run FROM borrowed b JOIN result r ON r.shard = b.shard AND r.key = b.of_key"
    )
    assert status.n_borrowed == N
    assert "12 answers taken over from another schema or other parameters" in str(status)
    assert set(pairs["of_key"]) == set(before["llm_id"])
    assert set(pairs["key"]) == set(run.collect()["llm_id"])
    assert set(pairs["run"]) == {run.id}


@pytest.mark.parametrize(
    ("changed", "n_taken"),
    [
        ({"params": {"temperature": 0.5}}, N),
        ({"params": {"max_tokens": 50}}, N),
        ({"system": "Be brief."}, 0),
        ({"model": "scripted:echo"}, 0),
    ],
    ids=["parameters", "limit", "messages", "model"],
)
def test_only_the_same_messages_and_model_are_compatible(tmp_path: Path, changed: dict[str, Any], n_taken: int) -> None:
    ask(tmp_path)
    assert ask(tmp_path, WIDE, "plan", reuse="compatible", **changed).n_compatible == n_taken


def test_a_planned_repeat_takes_no_answer_of_the_first_asking(tmp_path: Path) -> None:
    ask(tmp_path)
    options = lotwise.Options(executor_options={"folder": tmp_path / "provider"}, repeat=1)
    planned = lotwise.plan(
        FRAME,
        "What is it? {text}",
        WIDER,
        model="scripted:choice",
        ledger=tmp_path / "ledger",
        reuse="compatible",
        options=options,
    )
    assert planned.n_compatible == 0


@pytest.mark.parametrize("accept", ["run", "shard"])
def test_lots_hold_what_was_taken(tmp_path: Path, accept: Any) -> None:
    ask(tmp_path)
    rows = ask(tmp_path, NARROW, reuse="compatible", accept=lotwise.Acceptance(lots=accept))
    assert rows["llm_lot"].null_count() == 0
    sample = rows.llm.sample(tmp_path / "ledger")  # type: ignore[attr-defined]
    assert set(sample["llm_id"]) == set(rows["llm_id"]), "lots so small are read whole"


def test_a_purge_is_not_held_up_by_requests_that_took_another_answer(tmp_path: Path) -> None:
    ask(tmp_path)
    taken = ask(tmp_path, WIDER, reuse="compatible")
    purge(Ledger.open(tmp_path / "ledger"), now=datetime.now(UTC))
    assert ask(tmp_path, WIDER, "peek", reuse="compatible")["kind"].to_list() == taken["kind"].to_list()
    assert verify(Ledger.open(tmp_path / "ledger")).clean


TAKING = ("after commit: enroll", "before commit: borrow", "after commit: borrow", "after commit: begin run")


def test_kills_while_answers_are_taken_over_buy_nothing_that_was_known(tmp_path: Path) -> None:
    here = desk(tmp_path)
    before = here.call().rows
    n_bugs = before.unique("llm_id").filter(kind="bug").height
    changed = {"schema": NARROW, "arguments": {"poll_s": 0.05, "progress": False, "reuse": "compatible"}}
    for step in (*TAKING, "after commit: intend", "after create", "after commit: settle"):
        ended = here.call(Stop(at=step), **changed)
        assert ended.signal == signal.SIGKILL, (step, ended.error, ended.message, ended.boundaries)

    rows = here.call(**changed).rows

    charged = bill(here)
    assert rows["kind"].to_list() == ["bug"] * len(TEXTS)
    assert set(charged.values()) == {1}
    assert len(charged) == N + N - n_bugs
    here.assert_clean()


def test_a_run_that_is_taken_up_by_its_id_buys_nothing_that_was_taken(tmp_path: Path) -> None:
    here = desk(tmp_path)
    n_bugs = here.call().rows.unique("llm_id").filter(kind="bug").height
    changed = {"schema": NARROW, "arguments": {"poll_s": 0.05, "progress": False, "reuse": "compatible"}}
    assert here.call(Stop(at="after commit: begin run"), **changed).signal == signal.SIGKILL
    run_id = lotwise.open_ledger(here.ledger_path).runs()["id"][-1]

    here.call(resume=run_id)

    assert sum(bill(here).values()) == N + N - n_bugs
    assert lotwise.open_ledger(here.ledger_path).status(run_id).requests == {"succeeded": N}
    here.assert_clean()


# --- never --------------------------------------------------------------------------------------------------------


def test_never_needs_a_name_that_says_which_asking_it_is(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match="'never' needs name="):
        ask(tmp_path, reuse="never")
    assert not (tmp_path / "ledger").exists()


def test_never_asks_anew_once_for_each_name(tmp_path: Path) -> None:
    first = ask(tmp_path)
    for name, total in [("october", 2), ("october", 2), ("november", 3), ("october", 3)]:
        rows = ask(tmp_path, reuse="never", name=name)
        assert charges(tmp_path) == total * N, name
        assert rows["llm_state"].to_list() == ["succeeded"] * len(TEXTS)
        assert not set(rows["llm_id"]) & set(first["llm_id"])
    assert ask(tmp_path, name="october")["llm_id"].to_list() == first["llm_id"].to_list()
    assert charges(tmp_path) == 3 * N
    assert verify(Ledger.open(tmp_path / "ledger")).clean


def test_kills_of_a_call_that_asks_anew_pay_nothing_twice(tmp_path: Path) -> None:
    here = desk(tmp_path)
    here.call()
    changed = {"arguments": {"poll_s": 0.05, "progress": False, "reuse": "never", "name": "again"}}
    for step in (
        "before commit: begin run",
        "after commit: intend",
        "after create",
        "after commit: record",
        "before commit: finish",
        "after commit: end job",
    ):
        ended = here.call(Stop(at=step), **changed)
        assert ended.signal == signal.SIGKILL, (step, ended.error, ended.message, ended.boundaries)

    here.call(**changed)

    charged = bill(here)
    assert len(charged) == 2 * N
    assert set(charged.values()) == {1}
    here.assert_clean()
