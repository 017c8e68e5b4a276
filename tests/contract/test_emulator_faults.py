"""Everything that the emulator can be told to do wrong, seen through the real SDKs.

Each row of the outcome table is produced for both providers; files, states, calls and limits go wrong as the
contract page reports them; and the emulator's own truth says what it did.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import openai
import pytest

from emulator import BatchFault, Emulator, Faults, HttpFault, RowFault
from emulator.faults import BILLED, OUTCOMES
from emulator.model import NATIVE
from emulator.sdk import (
    anthropic_client,
    anthropic_lines,
    by_id,
    chat_body,
    create_anthropic,
    create_openai,
    message_body,
    openai_client,
    openai_lines,
    parsed,
    responses_body,
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("emulator"), speed=0) as emulator:
        yield emulator


@pytest.fixture
def emulator(served: Emulator) -> Iterator[Emulator]:
    yield served
    served.set_faults(**Faults().to_json())


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """An API key of the test's own, so that no other test's batches are seen."""
    return str(request.node.name)


@pytest.fixture
def gpt(emulator: Emulator, key: str) -> Iterator[openai.OpenAI]:
    with openai_client(emulator, key) as client:
        yield client


@pytest.fixture
def claude(emulator: Emulator, key: str) -> Iterator[anthropic.Anthropic]:
    with anthropic_client(emulator, key) as client:
        yield client


def each_outcome() -> tuple[RowFault, ...]:
    return tuple(RowFault(kind=kind, ids=(f"id-{kind}",)) for kind in sorted(OUTCOMES))


def truth_of(emulator: Emulator, batch_id: str) -> dict[str, Any]:
    return next(batch["rows"] for batch in emulator.batches() if batch["id"] == batch_id)


CHAT_FINISHES = {"truncated": "length", "content_filter": "content_filter"}
OPENAI_ERRORS: dict[str, tuple[int | None, str | None]] = {
    "bad_request": (400, None),
    "not_found": (404, None),
    "too_large": (413, "request_too_large"),
    "unprocessable": (422, None),
    "rate_limited": (429, "rate_limit_exceeded"),
    "insufficient_quota": (429, "insufficient_quota"),
    "authentication": (401, "invalid_api_key"),
    "permission": (403, "permission_denied"),
    "model_not_found": (404, "model_not_found"),
    "server_error": (500, "server_error"),
    "overloaded": (503, "service_unavailable"),
    "timeout": (408, "timeout"),
    "conflict": (409, "conflict"),
    "status_zero": (0, None),
    "expired": (None, "batch_expired"),
    "canceled": (None, "batch_cancelled"),
    "request_timeout": (None, "request_timeout"),
    "unknown_type": (None, "batch_deferred"),
}
ANTHROPIC_STOPS = {
    "refused": "refusal",
    "truncated": "max_tokens",
    "context_window": "model_context_window_exceeded",
    "needs_continuation": "pause_turn",
}
ANTHROPIC_ERRORS = {
    "bad_request": "invalid_request_error",
    "not_found": "not_found_error",
    "rate_limited": "rate_limit_error",
    "insufficient_quota": "billing_error",
    "authentication": "authentication_error",
    "permission": "permission_error",
    "model_not_found": "not_found_error",
    "server_error": "api_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
}


@pytest.mark.parametrize("endpoint", ["/v1/chat/completions", "/v1/responses"])
def test_openai_rows_end_in_every_outcome_of_the_table(
    emulator: Emulator, gpt: openai.OpenAI, key: str, endpoint: str
) -> None:
    emulator.set_faults(rows=each_outcome())
    make = chat_body if endpoint.endswith("completions") else responses_body
    dialect = "chat" if make is chat_body else "responses"
    batch = create_openai(gpt, {f"id-{kind}": make(kind) for kind in OUTCOMES}, endpoint)
    emulator.advance(1)
    output, errors = map(by_id, openai_lines(gpt, batch.id))
    truth = truth_of(emulator, batch.id)
    for kind in OUTCOMES:
        custom_id, outcome = f"id-{kind}", NATIVE[dialect].get(kind, kind)  # type: ignore[index]
        assert truth[custom_id] == {"outcome": outcome, "delivery": "once", "billed": outcome in BILLED}
        if outcome in OPENAI_ERRORS:
            status, code = OPENAI_ERRORS[outcome]
            line = errors[custom_id]
            if status is None:
                assert (line["response"], line["error"]["code"]) == (None, code)
            else:
                response = line["response"]
                assert (response["status_code"], response["body"]["error"]["code"]) == (status, code)
            continue
        body = output[custom_id]["response"]["body"]
        assert output[custom_id]["response"]["status_code"] == 200
        if outcome == "empty_body":
            assert body == {}
        elif dialect == "chat":
            assert body["choices"][0]["finish_reason"] == CHAT_FINISHES.get(outcome, "stop")
        else:
            statuses = {"truncated": "incomplete", "content_filter": "incomplete", "model_failed": "failed"}
            assert body["status"] == statuses.get(outcome, "completed")
    billed = {row for row, fate in truth.items() if fate["billed"]}
    assert {charge.custom_id for charge in emulator.bill(key)} == billed


def test_anthropic_rows_end_in_every_outcome_of_the_table(
    emulator: Emulator, claude: anthropic.Anthropic, key: str
) -> None:
    emulator.set_faults(rows=each_outcome())
    batch = create_anthropic(claude, {f"id-{kind}": message_body(kind) for kind in OUTCOMES})
    emulator.advance(1)
    lines = by_id(anthropic_lines(claude, batch.id))
    truth = truth_of(emulator, batch.id)
    for kind in OUTCOMES:
        custom_id, outcome = f"id-{kind}", NATIVE["messages"].get(kind, kind)
        assert truth[custom_id] == {"outcome": outcome, "delivery": "once", "billed": outcome in BILLED}
        result = lines[custom_id]["result"]
        if outcome in BILLED:
            assert result["type"] == "succeeded"
            assert result["message"]["stop_reason"] == ANTHROPIC_STOPS.get(outcome, "end_turn")
        elif outcome in ("expired", "canceled"):
            assert result == {"type": outcome}
        elif outcome == "unknown_type":
            assert result == {"type": "deferred"}
        else:
            assert result["error"]["error"]["type"] == ANTHROPIC_ERRORS[outcome]
    billed = {row for row, fate in truth.items() if fate["billed"]}
    assert {charge.custom_id for charge in emulator.bill(key)} == billed


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("bad_request", 400),
        ("authentication", 401),
        ("permission", 403),
        ("rate_limited", 429),
        ("server_error", 500),
    ],
)
def test_synchronous_calls_fail_with_the_status_of_the_outcome(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic, key: str, kind: str, status: int
) -> None:
    emulator.set_faults(rows=(RowFault(kind=kind, tier="sync"),))
    with pytest.raises(openai.APIStatusError) as refused:
        gpt.chat.completions.create(**chat_body("x"))
    with pytest.raises(anthropic.APIStatusError) as also_refused:
        claude.messages.create(**message_body("x"))
    assert (refused.value.status_code, also_refused.value.status_code) == (status, status)
    assert refused.value.response.headers.get("retry-after") == ("1" if status == 429 else None)
    assert emulator.bill(key) == []


def test_answers_with_faults_of_content_are_billed(emulator: Emulator, gpt: openai.OpenAI) -> None:
    kinds = ("fenced", "prose", "invalid_json", "schema_mismatch", "empty")
    emulator.set_faults(rows=tuple(RowFault(kind=kind, marker=kind) for kind in kinds))
    texts = {}
    for kind in kinds:
        answer: Any = gpt.chat.completions.create(**chat_body(f"a {kind} row"))
        texts[kind] = answer.choices[0].message.content
    assert texts["fenced"].startswith("```json\n{")
    assert texts["prose"].startswith("Here is the answer:\n\n{")
    assert (texts["empty"], texts["schema_mismatch"]) == ("", '{"category": {"unexpected": ["value"]}}')
    with pytest.raises(ValueError, match=r"Expecting|Unterminated"):
        parsed(texts["invalid_json"].encode())


def test_times_lets_a_later_attempt_of_the_key_succeed(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(rows=(RowFault(kind="server_error", times=2),))
    codes = []
    for shard in range(3):
        batch = create_openai(gpt, {f"{shard:016x}-k": chat_body("x")})
        emulator.advance(1)
        output, errors = openai_lines(gpt, batch.id)
        codes.append((output or errors)[0]["response"]["status_code"])
    assert codes == [500, 500, 200]
    emulator.set_faults(rows=(RowFault(kind="overloaded", times=1),))
    with pytest.raises(openai.InternalServerError):
        gpt.chat.completions.create(**chat_body("twice"))
    assert gpt.chat.completions.create(**chat_body("twice")).choices[0].finish_reason == "stop"


def test_lines_are_lost_repeated_torn_and_foreign(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic, key: str
) -> None:
    kinds = ("missing", "duplicate", "torn", "unknown_id")
    emulator.set_faults(rows=tuple(RowFault(kind=kind, ids=(kind,)) for kind in kinds))
    names = {kind: f"{1:016x}-{kind}" for kind in (*kinds, "fine")}
    first = create_openai(gpt, {name: chat_body(name) for name in names.values()})
    second = create_anthropic(claude, {name: message_body(name) for name in names.values()})
    emulator.advance(1)
    output = gpt.files.content(str(gpt.batches.retrieve(first.id).output_file_id)).content
    with claude.messages.batches.with_streaming_response.results(second.id) as response:
        results = b"".join(response.iter_bytes())
    for content in (output, results):
        whole, torn, counts = set(names.values()), 0, Counter[str]()
        for line in content.splitlines():
            try:
                counts[parsed(line)[0]["custom_id"]] += 1
            except ValueError:
                torn += 1
        assert torn == 1
        assert (counts[names["missing"]], counts[names["torn"]]) == (0, 0)
        assert (counts[names["duplicate"]], counts[names["unknown_id"]], counts[names["fine"]]) == (2, 1, 1)
        strays = counts.keys() - whole
        assert len(strays) == 1
        assert strays.pop().startswith(f"{1:016x}-")
    deliveries = {name: fate["delivery"] for name, fate in truth_of(emulator, first.id).items()}
    assert deliveries == {name: "once" if kind == "fine" else kind for kind, name in names.items()}
    assert len(emulator.bill(key)) == 10


def test_separators_stand_raw_inside_json_strings(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(rows=(RowFault(kind="line_separator"),))
    first = create_openai(gpt, {"r": chat_body("a\u2028b", None)})
    second = create_anthropic(claude, {"r": message_body("a\u2028b", None)})
    emulator.advance(1)
    output = gpt.files.content(str(gpt.batches.retrieve(first.id).output_file_id)).content
    with claude.messages.batches.with_streaming_response.results(second.id) as response:
        results = b"".join(response.iter_bytes())
    for content in (output, results):
        assert {mark for mark in "\u2028\u2029\u0085" if mark in content.decode()} == set("\u2028\u2029\u0085")
        assert len(content.decode().splitlines()) > 1
        assert len(parsed(content)) == 1
    assert parsed(output)[0]["response"]["body"]["choices"][0]["message"]["content"] == "a\u2028b"


def test_errors_of_anthropic_can_come_unnested(emulator: Emulator, claude: anthropic.Anthropic) -> None:
    emulator.set_faults(rows=(RowFault(kind="bad_request"), RowFault(kind="flat_error")))
    batch = create_anthropic(claude, {"r": message_body("x")})
    emulator.advance(1)
    assert anthropic_lines(claude, batch.id)[0]["result"]["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("fault", "bad", "output", "error"),
    [
        pytest.param(None, 0, True, False, id="all well"),
        pytest.param(None, 2, False, True, id="every row failed: no output file"),
        pytest.param(None, 1, True, True, id="both files"),
        pytest.param("error_file_zero_bytes", 0, True, True, id="error file of zero bytes"),
        pytest.param("error_file_empty_id", 0, True, False, id="empty string as the error file's id"),
        pytest.param("error_file_null", 1, True, False, id="error file lost"),
        pytest.param("no_output_file", 1, False, True, id="output file lost"),
    ],
)
def test_files_of_a_completed_batch(
    emulator: Emulator, gpt: openai.OpenAI, fault: str | None, bad: int, output: bool, error: bool
) -> None:
    rows = (RowFault(kind="bad_request", ids=tuple(f"r{n}" for n in range(bad))),) if bad else ()
    emulator.set_faults(rows=rows, batches=(BatchFault(kind=fault),) if fault else ())
    batch = create_openai(gpt, {"r0": chat_body("x"), "r1": chat_body("y")})
    emulator.advance(1)
    batch = gpt.batches.retrieve(batch.id)
    assert batch.status == "completed"
    assert (bool(batch.output_file_id), bool(batch.error_file_id)) == (output, error)
    assert (batch.error_file_id == "") == (fault == "error_file_empty_id")
    good, failed = openai_lines(gpt, batch.id)
    assert len(good) == (2 - bad if output else 0)
    assert len(failed) == (bad if error else 0)
    missing = [row for row, fate in truth_of(emulator, batch.id).items() if fate["delivery"] == "missing"]
    assert len(missing) == 2 - len(good) - len(failed)


@pytest.mark.parametrize("code", ["token_limit_exceeded", "model_not_found"])
def test_batch_fails_with_the_code_it_was_told(emulator: Emulator, gpt: openai.OpenAI, key: str, code: str) -> None:
    emulator.set_faults(batches=(BatchFault(kind="fail", value=code),))
    batch = create_openai(gpt, {"r": chat_body("x")})
    emulator.advance(1)
    failed: Any = gpt.batches.retrieve(batch.id)
    assert (failed.status, [fault.code for fault in failed.errors.data]) == ("failed", [code])
    assert (failed.output_file_id, failed.error_file_id, emulator.bill(key)) == (None, None, [])


def test_unknown_states_and_null_counts_are_shown(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(
        validate_s=0,
        batches=(BatchFault(kind="unknown_state", value="paused"), BatchFault(kind="null_counts")),
    )
    first = create_openai(gpt, {"r": chat_body("x")})
    second = create_anthropic(claude, {"r": message_body("x")})
    assert (first.status, first.request_counts) == ("paused", None)
    assert (second.processing_status, second.request_counts) == ("paused", None)
    emulator.advance(1)
    assert gpt.batches.retrieve(first.id).status == "completed"
    assert claude.messages.batches.retrieve(second.id).processing_status == "ended"


def test_batch_faults_pick_batches_by_ordinal(emulator: Emulator, gpt: openai.OpenAI) -> None:
    ordinal = len(emulator.batches())
    emulator.set_faults(batches=(BatchFault(kind="fail", batches=(ordinal + 1,)),))
    made = [create_openai(gpt, {"r": chat_body("x")}).id for _ in range(3)]
    emulator.advance(1)
    assert [gpt.batches.retrieve(name).status for name in made] == ["completed", "failed", "completed"]


def test_finalizing_lasts_as_long_as_it_was_told(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(batches=(BatchFault(kind="slow_finalize", value=3600),))
    batch = create_openai(gpt, {"r": chat_body("x")})
    emulator.advance(3600)
    seen: Any = gpt.batches.retrieve(batch.id)
    assert (seen.status, seen.request_counts.completed, seen.output_file_id) == ("finalizing", 1, None)
    emulator.advance(1)
    assert gpt.batches.retrieve(batch.id).status == "completed"


@pytest.mark.parametrize("fault", [{"list_lag_s": 60}, {"batches": ({"kind": "list_lag", "value": 60},)}])
def test_new_batches_are_invisible_in_a_lagging_list(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic, fault: dict[str, Any]
) -> None:
    emulator.set_faults(**fault)
    first = create_openai(gpt, {"r": chat_body("x")})
    create_anthropic(claude, {"r": message_body("x")})
    emulator.advance(59)
    assert (list(gpt.batches.list()), list(claude.messages.batches.list())) == ([], [])
    assert gpt.batches.retrieve(first.id).id == first.id
    emulator.advance(1)
    assert (len(list(gpt.batches.list())), len(list(claude.messages.batches.list()))) == (1, 1)


def test_hidden_batch_is_404_for_a_while(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(batches=(BatchFault(kind="hidden", value=60),))
    batch = create_openai(gpt, {"r": chat_body("x")})
    with pytest.raises(openai.NotFoundError):
        gpt.batches.retrieve(batch.id)
    emulator.advance(60)
    assert gpt.batches.retrieve(batch.id).status == "completed"


def test_retention_of_results_can_pass_early(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(batches=(BatchFault(kind="retention", value=10),))
    first = create_openai(gpt, {"r": chat_body("x")})
    second = create_anthropic(claude, {"r": message_body("x")})
    emulator.advance(60)
    output = str(gpt.batches.retrieve(first.id).output_file_id)
    with pytest.raises(openai.NotFoundError):
        gpt.files.content(output)
    assert claude.messages.batches.retrieve(second.id).results_url is None


def test_torn_download_is_whole_the_second_time(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(batches=(BatchFault(kind="torn_downloads", value=1),))
    first = create_openai(gpt, {f"r{n}": chat_body("x") for n in range(9)})
    second = create_anthropic(claude, {f"r{n}": message_body("x") for n in range(9)})
    emulator.advance(1)
    reads: tuple[Callable[[], list[Any]], ...] = (
        lambda: openai_lines(gpt, first.id)[0],
        lambda: anthropic_lines(claude, second.id),
    )
    for lines in reads:
        with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
            lines()
        assert len(by_id(lines())) == 9


def test_skewed_clock_shows_in_every_timestamp(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(clock_skew_s=600)
    now = emulator.now()
    assert create_openai(gpt, {"r": chat_body("x")}).created_at == pytest.approx(now + 600, abs=2)
    assert create_anthropic(claude, {"r": message_body("x")}).created_at.timestamp() == pytest.approx(now + 600, abs=2)


def test_model_and_parameter_that_a_provider_lacks(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(models=("m",), refused_parameters=("temperature",))
    with pytest.raises(openai.BadRequestError, match="temperature") as refused:
        gpt.chat.completions.create(**chat_body("x", temperature=0))
    assert refused.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        gpt.chat.completions.create(**{**chat_body("x"), "model": "gone"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        gpt.models.retrieve("gone")
    assert gpt.models.retrieve("m").id == "m"
    batch = create_anthropic(
        claude, {"gone": {**message_body("x"), "model": "gone"}, "hot": message_body("x", temperature=1)}
    )
    emulator.advance(1)
    lines = by_id(anthropic_lines(claude, batch.id))
    assert lines["gone"]["result"]["error"]["error"]["type"] == "not_found_error"
    assert "temperature" in lines["hot"]["result"]["error"]["error"]["message"]


def test_queue_of_two_batches_refuses_a_third_until_one_ends(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(max_open_batches=2)
    creates: tuple[Callable[[], Any], ...] = (
        lambda: create_openai(gpt, {"r": chat_body("x")}),
        lambda: create_anthropic(claude, {"r": message_body("x")}),
    )
    for create in creates:
        create()
        create()
        with pytest.raises((openai.RateLimitError, anthropic.RateLimitError), match="batches"):
            create()
        emulator.advance(1)
        create()


@pytest.mark.parametrize("over_queue", ["fail", "reject"])
def test_token_quota_of_openai_fails_or_rejects(emulator: Emulator, gpt: openai.OpenAI, over_queue: str) -> None:
    body = chat_body("x" * 400, None)  # 100 tokens
    emulator.set_faults(max_enqueued_tokens=250, over_queue=over_queue)
    create_openai(gpt, {"a": body, "b": body})
    if over_queue == "reject":
        with pytest.raises(openai.RateLimitError, match="tokens"):
            create_openai(gpt, {"c": body})
    else:
        over = create_openai(gpt, {"c": body})
        emulator.advance(0.05)
        failed = gpt.batches.retrieve(over.id)
        assert failed.status == "failed"
        assert failed.errors is not None
        assert [fault.code for fault in failed.errors.data or ()] == ["token_limit_exceeded"]
    emulator.advance(1)
    later = create_openai(gpt, {"c": body})
    emulator.advance(1)
    assert gpt.batches.retrieve(later.id).status == "completed"


def test_queued_requests_of_anthropic_are_limited(emulator: Emulator, claude: anthropic.Anthropic) -> None:
    emulator.set_faults(max_queued_requests=3)
    create_anthropic(claude, {"a": message_body("x"), "b": message_body("x")})
    with pytest.raises(anthropic.RateLimitError, match="requests"):
        create_anthropic(claude, {"c": message_body("x"), "d": message_body("x")})
    create_anthropic(claude, {"c": message_body("x")})


def test_credit_ends_after_so_many_charges(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic, key: str
) -> None:
    emulator.set_faults(credit_rows=7)
    first = create_openai(gpt, {f"r{n}": chat_body("x") for n in range(10)})
    emulator.advance(1)
    output, errors = openai_lines(gpt, first.id)
    codes = {line["response"]["body"]["error"]["code"] for line in errors}
    assert (len(output), len(errors), codes) == (7, 3, {"insufficient_quota"})
    second = create_anthropic(claude, {"r": message_body("x")})
    emulator.advance(1)
    assert anthropic_lines(claude, second.id)[0]["result"]["error"]["error"]["type"] == "billing_error"
    with pytest.raises(openai.RateLimitError, match="quota"):
        gpt.chat.completions.create(**chat_body("x"))
    emulator.set_faults(credit_blocks_create=True)
    with pytest.raises(openai.RateLimitError, match="quota"):
        create_openai(gpt, {"r": chat_body("x")})
    with pytest.raises(anthropic.APIStatusError, match="billing_error"):
        create_anthropic(claude, {"r": message_body("x")})
    assert len(emulator.bill(key)) == 7
    emulator.set_faults(credit_rows=None)
    create_openai(gpt, {"r": chat_body("x")})
    emulator.advance(1)
    assert len(emulator.bill(key)) == 8


def test_credit_ends_at_a_time(tmp_path: Any) -> None:
    with (
        Emulator(tmp_path, speed=0, validate_s=0, batch_s=100, credit_until=40, shuffle=False) as emulator,
        openai_client(emulator) as client,
    ):
        batch = create_openai(client, {f"r{n}": chat_body("x") for n in range(10)})
        emulator.advance(200)
        assert [line["custom_id"] for line in openai_lines(client, batch.id)[0]] == ["r0", "r1", "r2"]


@pytest.mark.parametrize("answer", ["drop", "reset", "reply"])
@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_create_is_accepted_though_its_answer_is_lost(emulator: Emulator, key: str, provider: str, answer: str) -> None:
    emulator.set_faults(http=(HttpFault(endpoint="batches.create", action=answer, status=504, times=1),))
    with (
        openai_client(emulator, key, timeout_s=0.5) as gpt,
        anthropic_client(emulator, key, timeout_s=0.5) as claude,
    ):
        create: Any = create_openai if provider == "openai" else create_anthropic
        client: Any = gpt if provider == "openai" else claude
        body = chat_body("x") if provider == "openai" else message_body("x")
        with pytest.raises((openai.APIError, anthropic.APIError)) as lost:
            create(client, {"r": body})
        assert getattr(lost.value, "status_code", None) == (504 if answer == "reply" else None)
        batches = gpt.batches if provider == "openai" else claude.messages.batches
        assert len(list(batches.list())) == 1
        create(client, {"r": body})
        assert len(list(batches.list())) == 2


def test_sdk_retry_of_a_lost_create_makes_a_second_batch(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(http=(HttpFault(endpoint="openai.batches.create", action="reply", times=1),))
    create_openai(gpt.with_options(max_retries=2), {"r": chat_body("x")})
    assert len(list(gpt.batches.list())) == 2


@pytest.mark.parametrize(
    ("endpoint", "call"),
    [
        ("files.create", lambda gpt: gpt.files.create(file=("in.jsonl", b"{}"), purpose="batch")),
        ("files.list", lambda gpt: gpt.files.list()),
        ("batches.list", lambda gpt: gpt.batches.list()),
        ("batches.retrieve", lambda gpt: gpt.batches.retrieve("batch_x")),
        ("chat.create", lambda gpt: gpt.chat.completions.create(**chat_body("x"))),
        ("responses.create", lambda gpt: gpt.responses.create(**responses_body("x"))),
        ("models.list", lambda gpt: gpt.models.list()),
    ],
)
def test_any_endpoint_can_say_429_with_retry_after(
    emulator: Emulator, gpt: openai.OpenAI, key: str, endpoint: str, call: Any
) -> None:
    fault = HttpFault(endpoint=endpoint, action="reject", status=429, retry_after_s=7, code="rate_limit_exceeded")
    emulator.set_faults(http=(fault,))
    with pytest.raises(openai.RateLimitError) as refused:
        call(gpt)
    assert refused.value.response.headers["retry-after"] == "7"
    assert refused.value.code == "rate_limit_exceeded"
    assert (emulator.bill(key), list(gpt.batches.list()) if endpoint != "batches.list" else []) == ([], [])


def test_retrieve_flaps_between_404_and_found(emulator: Emulator, gpt: openai.OpenAI) -> None:
    batch = create_openai(gpt, {"r": chat_body("x")})
    emulator.set_faults(http=(HttpFault(endpoint="batches.retrieve", action="reject", status=404, fraction=0.5),))
    seen: list[str] = []
    for _ in range(40):
        try:
            seen.append(gpt.batches.retrieve(batch.id).status)
        except openai.NotFoundError:
            seen.append("lost")
    assert set(seen) == {"validating", "lost"}
    assert 8 <= seen.count("lost") <= 32


def test_calls_pass_until_a_fault_begins_and_after_it_ends(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(http=(HttpFault(endpoint="openai.*", action="reject", status=500, skip=2, times=1),))
    seen = []
    for _ in range(4):
        try:
            seen.append(len(gpt.models.list().data))
        except openai.InternalServerError:
            seen.append(0)
    assert seen == [1, 1, 0, 1]


@pytest.mark.parametrize("action", ["delay", "delay_reply"])
def test_calls_can_be_slow_in_real_time(emulator: Emulator, gpt: openai.OpenAI, action: str) -> None:
    emulator.set_faults(http=(HttpFault(endpoint="models.list", action=action, seconds=0.2),))
    begun = time.perf_counter()
    gpt.models.list()
    assert time.perf_counter() - begun >= 0.2


def test_download_that_is_cut_breaks_in_the_client(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    first = create_openai(gpt, {f"r{n}": chat_body("x") for n in range(99)})
    second = create_anthropic(claude, {f"r{n}": message_body("x") for n in range(99)})
    emulator.advance(1)
    cuts = (
        HttpFault(endpoint="files.content", action="cut", after_bytes=5000, times=1),
        HttpFault(endpoint="batches.results", action="cut", after_bytes=5000, times=1),
    )
    emulator.set_faults(http=cuts)
    with pytest.raises(openai.APIConnectionError):
        openai_lines(gpt, first.id)
    assert len(openai_lines(gpt, first.id)[0]) == 99
    with pytest.raises(Exception, match=r"incomplete|reset|peer|closed"):
        anthropic_lines(claude, second.id)
    assert len(anthropic_lines(claude, second.id)) == 99


def test_faults_can_change_between_the_rows_of_a_batch(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(validate_s=0, batch_s=100)
    batch = create_openai(gpt, {f"r{n}": chat_body("x") for n in range(10)})
    emulator.advance(40)
    emulator.set_faults(rows=(RowFault(kind="server_error"),))
    emulator.advance(100)
    outcomes = Counter(fate["outcome"] for fate in truth_of(emulator, batch.id).values())
    assert outcomes == {"ok": 4, "server_error": 6}


def test_calls_are_counted_by_endpoint(emulator: Emulator, gpt: openai.OpenAI) -> None:
    before = Counter(emulator.calls())
    emulator.set_faults(http=(HttpFault(endpoint="models.list", action="reject"),))
    with pytest.raises(openai.InternalServerError):
        gpt.models.list()
    gpt.batches.list()
    assert Counter(emulator.calls()) - before == {"openai.models.list": 1, "openai.batches.list": 1}


def test_mixed_faults_leave_counts_that_the_truth_tells(emulator: Emulator, gpt: openai.OpenAI, key: str) -> None:
    emulator.set_faults(
        rows=(
            RowFault(kind="bad_request", fraction=0.1),
            RowFault(kind="refused", fraction=0.1),
            RowFault(kind="truncated", fraction=0.1),
            RowFault(kind="missing", fraction=0.1),
        )
    )
    batch = create_openai(gpt, {f"r{n}": chat_body(f"{n}") for n in range(500)})
    emulator.advance(1)
    output, errors = openai_lines(gpt, batch.id)
    truth = truth_of(emulator, batch.id)
    counted = Counter((fate["outcome"], fate["delivery"]) for fate in truth.values())
    assert len(errors) == counted["bad_request", "once"]
    assert len(output) + len(errors) == 500 - sum(n for (_, how), n in counted.items() if how == "missing")
    assert len(emulator.bill(key)) == sum(fate["billed"] for fate in truth.values())
    assert all(counted[kind, "once"] > 10 for kind in ("bad_request", "refused", "truncated", "ok"))


def test_handle_tells_of_a_fault_that_does_not_exist(emulator: Emulator) -> None:
    with pytest.raises(ValueError, match=r"unknown endpoint 'batches.creat'.*openai.batches.create"):
        emulator.set_faults(http=(HttpFault(endpoint="batches.creat", action="drop"),))
    with pytest.raises(ValueError, match="unknown batch fault 'lost'"):
        emulator.set_faults(batches=({"kind": "lost"},))
