"""The tables of moves, the decisions made from them, and the SQL that must agree with both."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from importlib import resources
from typing import Any

import polars as pl
import pytest

from lotwise.ledger.transaction import queries
from lotwise.lifecycle import (
    CLOSED_SHARDS,
    OPEN_SHARDS,
    REQUEST_MOVES,
    SHARD_MOVES,
    Policy,
    RequestState,
    RetrySpend,
    ShardState,
    Standing,
    Step,
    decide,
    next_step,
    poll_pause,
    proven_unsent,
    systemic,
    within_retry_spend,
)
from lotwise.request import BILLED, Code

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def _reachable(moves: dict[Any, tuple[Any, ...]], start: Any) -> set[Any]:
    seen, ahead = {start}, [start]
    while ahead:
        for target in moves[ahead.pop()]:
            if target not in seen:
                seen.add(target)
                ahead.append(target)
    return seen


def test_every_shard_state_is_reached_from_planned() -> None:
    assert _reachable(SHARD_MOVES, ShardState.PLANNED) == set(ShardState)


@pytest.mark.parametrize("state", list(ShardState))
def test_every_shard_can_still_end(state: ShardState) -> None:
    assert _reachable(SHARD_MOVES, state) & CLOSED_SHARDS


def test_open_closed_and_planned_are_all_states_once() -> None:
    assert OPEN_SHARDS | CLOSED_SHARDS | {ShardState.PLANNED} == set(ShardState)
    assert not OPEN_SHARDS & CLOSED_SHARDS


def test_a_create_that_was_begun_is_never_taken_for_not_begun() -> None:
    assert ShardState.INTENDED not in _reachable(SHARD_MOVES, ShardState.CREATING)


def test_every_request_can_be_sent_again_only_through_pending() -> None:
    assert [origin for origin, targets in REQUEST_MOVES.items() if RequestState.SUBMITTED in targets] == [
        RequestState.PENDING
    ]


# --- SQL and Python say the same ----------------------------------------------------------------------------------


def _sql(name: str) -> str:
    return resources.files("lotwise.ledger").joinpath("sql", name).read_text(encoding="utf-8")


def _words(text: str) -> set[str]:
    return set(re.findall(r"'(\w+)'", text))


def test_request_table_allows_exactly_the_states_of_the_code() -> None:
    allowed = re.search(r"CHECK \(state IN \(([^)]*)\)\)", _sql("001_initial.sql"))
    assert allowed is not None
    assert _words(allowed.group(1)) == {state.value for state in RequestState}


@pytest.mark.parametrize("name", ["all_open_shards", "unfinished_runs"])
def test_statement_takes_exactly_the_closed_states_for_closed(name: str) -> None:
    closed = re.search(r"state NOT IN \(([^)]*)\)", queries()[name])
    assert closed is not None
    assert _words(closed.group(1)) == {state.value for state in CLOSED_SHARDS}


@pytest.mark.parametrize("name", ["check_live_shard", "check_reservations"])
def test_check_takes_exactly_the_closed_states_for_closed(name: str) -> None:
    closed = re.search(r"state IN \(([^)]*)\)", queries()[name])
    assert closed is not None
    assert _words(closed.group(1)) == {state.value for state in CLOSED_SHARDS}


@pytest.mark.parametrize("name", ["shard_cost", "check_charged_once", "check_answered"])
def test_statement_counts_exactly_the_billed_codes(name: str) -> None:
    billed = re.search(r"code IN \(([^)]*)\)", queries()[name])
    assert billed is not None
    assert _words(billed.group(1)) == {code.value for code in BILLED}


STATEMENT_MOVES = {
    "claim": ("pending", {"submitted"}),
    "claim_late": ("pending", {"submitted"}),
    "release_requests": ("submitted", {"pending"}),
    "dead_letter": ("pending", {"dead_lettered"}),
    "settle_requests": ("submitted", {"pending", "answered", "refused", "dead_lettered"}),
    "retry_answered": ("answered", {"pending"}),
    "ask_twice": ("submitted", {"pending"}),
}


@pytest.mark.parametrize("name", STATEMENT_MOVES)
def test_statement_makes_the_move_that_its_first_line_names_and_it_is_legal(name: str) -> None:
    origin, targets = STATEMENT_MOVES[name]
    first, statement = queries()[name].split("\n", 1)
    assert first.startswith(f"-- {origin} -> ")
    assert _words(statement) & {s.value for s in RequestState} <= {origin, *targets, "pending"}
    assert f"state = '{origin}'" in statement
    assert targets <= {target.value for target in REQUEST_MOVES[RequestState(origin)]}


def test_every_statement_that_sets_a_request_state_is_known_here() -> None:
    setting = {name for name, text in queries().items() if re.search(r"UPDATE request SET state = ", text)}
    assert setting == {*STATEMENT_MOVES, "give_up_due", "reopen"}


# --- deciding -----------------------------------------------------------------------------------------------------


def _attempt(**changes: Any) -> pl.DataFrame:
    row = {
        "key": "k",
        "code": "ok",
        "ok": True,
        "fault_code": None,
        "fault_list": None,
        "faults": 0,
        "resends": 0,
        "tried_variant": None,
        "max_tokens": 100,
        "retryable": True,
        **changes,
    }
    schema = {
        "key": pl.String,
        "code": pl.String,
        "ok": pl.Boolean,
        "fault_code": pl.String,
        "fault_list": pl.String,
        "faults": pl.Int32,
        "resends": pl.Int32,
        "tried_variant": pl.String,
        "max_tokens": pl.Int32,
        "retryable": pl.Boolean,
    }
    return pl.DataFrame([row], schema=schema)


BAD = {"code": "ok", "ok": False, "fault_code": "schema_mismatch", "fault_list": '[{"path":"a","kind":"missing"}]'}
TOLD = '{"faults":[{"path":"a","kind":"missing"}]}'

DECISIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "valid": ({}, {"to_state": "answered", "reason": None, "why": None, "faults": 1, "resends": 0}),
    "valid, nobody could judge it": ({"ok": None}, {"to_state": "answered", "reason": None, "why": None}),
    "invalid, first time: once more, told what was wrong": (
        BAD,
        {"to_state": "pending", "reason": "schema_mismatch", "why": "changed:schema_mismatch", "variant": TOLD},
    ),
    "invalid, after a changed retry: stays": (
        {**BAD, "tried_variant": TOLD, "faults": 1},
        {"to_state": "answered", "reason": "schema_mismatch", "why": None, "variant": None},
    ),
    "invalid, attempts used up": ({**BAD, "faults": 2}, {"to_state": "answered", "why": None, "faults": 3}),
    "invalid, no retry allowed": ({**BAD, "retryable": False}, {"to_state": "answered", "why": None}),
    "truncated: once more with twice the tokens": (
        {"code": "truncated", "ok": False, "fault_code": "truncated"},
        {"to_state": "pending", "why": "changed:truncated", "variant": '{"max_tokens":200}'},
    ),
    "needs continuation: no changed retry helps": (
        {"code": "needs_continuation", "ok": False, "fault_code": "needs_continuation"},
        {"to_state": "answered", "reason": "needs_continuation", "why": None},
    ),
    "refused: final": ({"code": "refused", "ok": None}, {"to_state": "refused", "reason": "refused", "why": None}),
    "input fault: final": (
        {"code": "bad_request", "ok": None},
        {"to_state": "dead_lettered", "reason": "bad_request", "why": None, "faults": 1},
    ),
    "expired: again as it was": (
        {"code": "expired", "ok": None},
        {"to_state": "pending", "why": "not_billed:expired", "faults": 0, "resends": 1, "delay_s": 15.0},
    ),
    "expired on a changed retry: the change is kept": (
        {"code": "expired", "ok": None, "tried_variant": TOLD},
        {"to_state": "pending", "variant": TOLD},
    ),
    "rate limited a fourth time: waits longer": (
        {"code": "rate_limited", "ok": None, "resends": 3},
        {"to_state": "pending", "resends": 4, "delay_s": 120.0},
    ),
    "server error for long: waits no longer than the cap": (
        {"code": "server_error", "ok": None, "resends": 15},
        {"to_state": "pending", "delay_s": 900.0},
    ),
    "canceled, resends used up": (
        {"code": "canceled", "ok": None, "resends": 20},
        {"to_state": "dead_lettered", "reason": "canceled", "why": None},
    ),
    "unreturned: asked again for that reason": (
        {"code": "unreturned", "ok": None},
        {"to_state": "pending", "why": "unreturned", "faults": 1, "resends": 0, "delay_s": 0.0},
    ),
    "answer lost: asked again after a pause": (
        {"code": "uncertain", "ok": None},
        {"to_state": "pending", "why": "uncertain", "faults": 1, "resends": 0, "delay_s": 15.0},
    ),
    "answer lost a second time: waits longer": (
        {"code": "uncertain", "ok": None, "faults": 1},
        {"to_state": "pending", "why": "uncertain", "faults": 2, "delay_s": 30.0},
    ),
    "answer lost a third time: ends": (
        {"code": "uncertain", "ok": None, "faults": 2},
        {"to_state": "dead_lettered", "reason": "uncertain", "why": None, "delay_s": 0.0},
    ),
    "unreadable a third time: ends": (
        {"code": "unreadable", "ok": None, "faults": 2},
        {"to_state": "dead_lettered", "reason": "unreadable", "why": None},
    ),
    "account blocked: waits, counts nothing": (
        {"code": "account_blocked", "ok": None},
        {"to_state": "pending", "why": "not_billed:account_blocked", "faults": 0, "resends": 0},
    ),
}


@pytest.mark.parametrize(("attempt", "expected"), DECISIONS.values(), ids=DECISIONS.keys())
def test_attempt_comes_to(attempt: dict[str, Any], expected: dict[str, Any]) -> None:
    (move,) = decide(_attempt(**attempt), Policy()).to_dicts()

    assert {name: move[name] for name in expected} == expected


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("ok", [True, False, None])
def test_every_code_moves_a_submitted_request_legally(code: Code, ok: bool | None) -> None:
    (move,) = decide(_attempt(code=code.value, ok=ok), Policy()).to_dicts()

    assert RequestState(move["to_state"]) in REQUEST_MOVES[RequestState.SUBMITTED]
    assert (move["to_state"] == "pending") == (move["why"] is not None)
    if move["to_state"] == "dead_lettered":
        assert move["reason"]


def test_pause_before_a_lost_answer_is_asked_again_has_the_cap_of_all_pauses() -> None:
    (move,) = decide(_attempt(code="uncertain", ok=None, faults=12), Policy(max_attempts=20)).to_dicts()

    assert move["delay_s"] == Policy().backoff_cap_s


@pytest.mark.parametrize("code", sorted(BILLED))
def test_no_billed_attempt_is_sent_again_unchanged(code: Code) -> None:
    (move,) = decide(_attempt(code=code.value, ok=False, fault_code="empty"), Policy()).to_dicts()

    assert move["to_state"] != "pending" or move["variant"] is not None


# A blocked account stops the run instead; its requests wait as they are.
@pytest.mark.parametrize("code", [code for code in Code if code is not Code.ACCOUNT_BLOCKED])
def test_attempts_of_one_request_come_to_an_end(code: Code) -> None:
    policy, faults, resends, variant, sent = Policy(max_attempts=3, max_resends=4), 0, 0, None, 0
    while sent < 50:
        sent += 1
        (move,) = decide(
            _attempt(
                code=code.value, ok=False, fault_code="empty", faults=faults, resends=resends, tried_variant=variant
            ),
            policy,
        ).to_dicts()
        faults, resends, variant = move["faults"], move["resends"], move["variant"]
        if move["to_state"] != "pending":
            break
    assert sent <= 5


# --- when to stop, what to do next --------------------------------------------------------------------------------

SYSTEMIC = {
    "too few to tell": (19, 19, False),
    "exactly the rate": (20, 4, False),
    "one above the rate": (20, 5, True),
    "none bad": (1000, 0, False),
}


@pytest.mark.parametrize(("answered", "bad", "stops"), SYSTEMIC.values(), ids=SYSTEMIC.keys())
def test_sending_stops_when_too_many_of_enough_are_bad(answered: int, bad: int, stops: bool) -> None:
    assert systemic(answered, bad, Policy()) is stops


def test_no_rate_never_stops() -> None:
    assert not systemic(100, 100, Policy(systemic_rate=None))


OURS = Standing(state=ShardState.INTENDED, mine=True, leased=False, stream=False, due=True)
STEPS: dict[str, tuple[dict[str, Any], Step]] = {
    "our own intent": ({}, Step.SUBMIT),
    "an intent whose owner is gone": ({"mine": False}, Step.RELEASE),
    "an intent that another holds": ({"mine": False, "leased": True}, Step.WAIT),
    "a create that was begun": ({"state": ShardState.CREATING, "mine": False}, Step.RESOLVE),
    "a create that was begun, just looked at": ({"state": ShardState.CREATING, "due": False}, Step.RESOLVE),
    "a create that another is in": ({"state": ShardState.CREATING, "mine": False, "leased": True}, Step.WAIT),
    "uncertain and due": ({"state": ShardState.UNCERTAIN}, Step.RESOLVE),
    "uncertain and not due": ({"state": ShardState.UNCERTAIN, "due": False}, Step.WAIT),
    "submitted and due": ({"state": ShardState.SUBMITTED}, Step.POLL),
    "submitted and not due": ({"state": ShardState.SUBMITTED, "due": False}, Step.WAIT),
    "submitted by a process that is gone": ({"state": ShardState.SUBMITTED, "mine": False}, Step.POLL),
    "submitted, another polls it": ({"state": ShardState.SUBMITTED, "mine": False, "leased": True}, Step.WAIT),
    "canceling and due": ({"state": ShardState.CANCELING}, Step.POLL),
    "a stream has nothing to poll": ({"state": ShardState.SUBMITTED, "stream": True, "due": False}, Step.COLLECT),
    "ended": ({"state": ShardState.ENDED, "mine": False}, Step.COLLECT),
    "ended, another collects it": ({"state": ShardState.ENDED, "mine": False, "leased": True}, Step.WAIT),
    "closed": ({"state": ShardState.COLLECTED}, Step.WAIT),
}


@pytest.mark.parametrize(("changes", "step"), STEPS.values(), ids=STEPS.keys())
def test_next_step_of_a_shard(changes: dict[str, Any], step: Step) -> None:
    assert next_step(replace(OURS, **changes)) is step


@pytest.mark.parametrize("state", sorted(OPEN_SHARDS))
def test_nobody_touches_a_shard_that_another_holds(state: ShardState) -> None:
    assert next_step(replace(OURS, state=state, mine=False, leased=True)) is Step.WAIT


@pytest.mark.parametrize("state", sorted(OPEN_SHARDS))
def test_every_open_shard_whose_owner_is_gone_is_gone_on_with(state: ShardState) -> None:
    assert next_step(replace(OURS, state=state, mine=False, leased=False)) is not Step.WAIT


PROOFS: dict[str, tuple[dict[str, Any], bool]] = {
    "late enough and far enough": ({}, True),
    "a second too early": ({"listed_at": NOON + timedelta(seconds=1499)}, False),
    "the list stops a second short": ({"listed_back_to": NOON - timedelta(seconds=899)}, False),
    "the whole list was read": ({"listed_back_to": None}, True),
    "the whole list, too early": ({"listed_back_to": None, "listed_at": NOON + timedelta(seconds=600)}, False),
    "the call came back in time": ({"called_at": NOON + timedelta(seconds=600)}, True),
    "the call came back late": ({"called_at": NOON + timedelta(seconds=601)}, False),
    "creating began long after the intent": ({"creating_at": NOON + timedelta(seconds=1)}, False),
}


@pytest.mark.parametrize(("changes", "proven"), PROOFS.values(), ids=PROOFS.keys())
def test_shard_is_proven_unsent_only(changes: dict[str, Any], proven: bool) -> None:
    known: dict[str, Any] = {
        "creating_at": NOON,
        "listed_at": NOON + timedelta(seconds=1500),
        "create_timeout_s": 600.0,
        "margin_s": 900.0,
        "listed_back_to": NOON - timedelta(seconds=900),
        "intended_at": NOON,
    }
    assert proven_unsent(**{**known, **changes}) is proven


def test_looks_grow_rarer_with_age_up_to_a_limit() -> None:
    pauses = [poll_pause(age, 0.5) for age in (0, 60, 600, 3_600, 86_400)]

    assert pauses == sorted(pauses)
    assert pauses[0] == 5.0
    assert pauses[-1] == 600.0


@pytest.mark.parametrize(
    ("field", "value"), [("max_attempts", 0), ("max_resends", -1), ("retry_spend", -0.1), ("retry_floor", -1)]
)
def test_policy_refuses(field: str, value: int) -> None:
    with pytest.raises(ValueError, match=field):
        Policy(**{field: value})  # type: ignore[arg-type]


# --- what changed retries may cost --------------------------------------------------------------------------------


def _retries(*usd: str | None) -> pl.DataFrame:
    costs = [None if one is None else Decimal(one) for one in usd]
    return pl.DataFrame(
        {"key": [f"k{i}" for i in range(len(usd))], "expected_usd": costs},
        schema={"key": pl.String, "expected_usd": pl.Decimal(18, 9)},
    )


def _spend(**changes: object) -> RetrySpend:
    usual: dict[str, object] = {"n_first": 100, "first_usd": Decimal(10), "n_changed": 0, "changed_usd": Decimal(0)}
    return RetrySpend(**{**usual, "n_open": 0, **changes})  # type: ignore[arg-type]


CAPPED = Policy(retry_floor=0)

RETRIES: dict[str, tuple[Policy, RetrySpend, tuple[str | None, ...], tuple[int, int, int]]] = {
    "all fit": (CAPPED, _spend(), ("0.4", "0.6"), (2, 0, 0)),
    "the cheapest fit": (CAPPED, _spend(), ("0.9", "0.3", "0.4"), (2, 0, 1)),
    "one billionth too much": (CAPPED, _spend(), ("1.000000001",), (0, 0, 1)),
    "what was spent counts": (CAPPED, _spend(n_changed=3, changed_usd=Decimal("0.7")), ("0.3", "0.3"), (1, 0, 1)),
    "more may fit later": (CAPPED, _spend(n_open=1), ("0.9", "0.9"), (1, 1, 0)),
    "overspent": (CAPPED, _spend(n_changed=9, changed_usd=Decimal(2)), ("0.1",), (0, 0, 1)),
    "requests counted where no cost is known": (CAPPED, _spend(first_usd=None), (None,) * 12, (10, 0, 2)),
    "requests counted where one cost is not known": (CAPPED, _spend(n_changed=8), ("0.1", None, "0.1"), (2, 0, 1)),
    "a few in any case": (Policy(retry_floor=3), _spend(n_first=5, n_changed=1), ("9", "8", "7"), (2, 0, 1)),
    "no cap": (Policy(retry_spend=None, retry_floor=0), _spend(), ("99", "99"), (2, 0, 0)),
    "nothing at all": (Policy(retry_spend=0.0, retry_floor=0), _spend(), ("0.1",), (0, 0, 1)),
}


@pytest.mark.parametrize(("policy", "spend", "due", "ends"), RETRIES.values(), ids=RETRIES.keys())
def test_changed_retries_cost_no_more_than_their_share(
    policy: Policy, spend: RetrySpend, due: tuple[str | None, ...], ends: tuple[int, int, int]
) -> None:
    chosen = within_retry_spend(_retries(*due), spend, policy)
    assert (chosen.now.len(), chosen.later.len(), chosen.never.len()) == ends
    assert sorted([*chosen.now, *chosen.later, *chosen.never]) == sorted(f"k{i}" for i in range(len(due)))


def test_what_fits_together_fits_in_parts_too() -> None:
    # A shard is checked by itself once more when its intent is written; its requests were chosen together with others'.
    due, spend = _retries("0.1", "0.2", "0.3", "0.4", "0.5"), _spend()
    together = within_retry_spend(due, spend, CAPPED).now
    for n in range(1, together.len() + 1):
        part = due.filter(pl.col("key").is_in(together.tail(n).implode()))
        assert set(within_retry_spend(part, spend, CAPPED).now) == set(part["key"])
