"""Batches, files and synchronous calls of the emulator, driven by the real SDKs, without faults.

What the two providers share is tested for both: a batch moves as provider time passes, its rows are charged
when they are processed, and each API key sees its own things.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import openai
import pytest

from emulator import Emulator, Faults
from emulator.answers import Dialect, answer_text
from emulator.sdk import (
    anthropic_client,
    anthropic_lines,
    by_id,
    chat_body,
    create_anthropic,
    create_openai,
    input_file,
    message_body,
    openai_client,
    openai_lines,
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


def ids(count: int) -> list[str]:
    return [f"{7:016x}-key{n}" for n in range(count)]


def charged(emulator: Emulator, batch_id: str) -> list[str | None]:
    return [charge.custom_id for charge in emulator.bill() if charge.batch == batch_id]


def test_openai_batch_moves_through_its_states_as_time_passes(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(validate_s=10, batch_s=100, finalize_s=10)
    batch = create_openai(gpt, {name: chat_body(name) for name in ids(10)}, metadata={"shard": "s-1"})
    seen = []
    for seconds in (0, 10, 50, 50, 10):
        emulator.advance(seconds)
        batch = gpt.batches.retrieve(batch.id)
        counts: Any = batch.request_counts
        seen.append((batch.status, counts.total, counts.completed, len(charged(emulator, batch.id))))
    assert seen == [
        ("validating", 0, 0, 0),
        ("in_progress", 10, 0, 0),
        ("in_progress", 10, 5, 5),
        ("finalizing", 10, 10, 10),
        ("completed", 10, 10, 10),
    ]
    assert batch.metadata == {"shard": "s-1"}
    assert batch.completed_at - batch.created_at == 120
    assert batch.usage.input_tokens == sum(c.input_tokens for c in emulator.bill() if c.batch == batch.id)


def test_anthropic_batch_shows_no_counts_before_its_end(emulator: Emulator, claude: anthropic.Anthropic) -> None:
    emulator.set_faults(batch_s=100, finalize_s=10)
    batch = create_anthropic(claude, {name: message_body(name) for name in ids(10)})
    emulator.advance(50)
    batch = claude.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, batch.results_url, batch.ended_at) == ("in_progress", None, None)
    assert batch.request_counts.to_dict() == {
        "processing": 10,
        "succeeded": 0,
        "errored": 0,
        "canceled": 0,
        "expired": 0,
    }
    assert len(charged(emulator, batch.id)) == 5
    emulator.advance(60)
    batch = claude.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, batch.request_counts.succeeded) == ("ended", 10)
    assert batch.ended_at is not None
    assert (batch.ended_at - batch.created_at).total_seconds() == pytest.approx(110, abs=1)


@pytest.mark.parametrize(
    ("endpoint", "make"),
    [("/v1/chat/completions", chat_body), ("/v1/responses", responses_body)],
    ids=["chat", "responses"],
)
def test_openai_answers_are_those_of_the_bodies(
    emulator: Emulator, gpt: openai.OpenAI, endpoint: str, make: Callable[[str], Any]
) -> None:
    bodies = {name: make(f"text of {name}") for name in ids(50)}
    batch = create_openai(gpt, bodies, endpoint)
    emulator.advance(1)
    output, errors = openai_lines(gpt, batch.id)
    assert errors == []
    dialect: Dialect = "chat" if make is chat_body else "responses"
    for custom_id, line in by_id(output).items():
        body = line["response"]["body"]
        got = body["choices"][0]["message"] if dialect == "chat" else body["output"][0]["content"][0]
        assert (got["content"] if dialect == "chat" else got["text"]) == answer_text(bodies[custom_id], dialect)
    assert by_id(output).keys() == bodies.keys()


def test_anthropic_answers_are_those_of_the_bodies(emulator: Emulator, claude: anthropic.Anthropic) -> None:
    bodies = {name: message_body(f"text of {name}") for name in ids(50)}
    batch = create_anthropic(claude, bodies)
    emulator.advance(1)
    answers = {
        line.custom_id: line.result.message.content[0].text  # type: ignore[union-attr]
        for line in claude.messages.batches.results(batch.id)
    }
    assert answers == {custom_id: answer_text(body, "messages") for custom_id, body in bodies.items()}


def test_output_is_shuffled_by_seed_and_can_be_in_order(emulator: Emulator, gpt: openai.OpenAI) -> None:
    def order(**faults: Any) -> list[str]:
        emulator.set_faults(**faults)
        batch = create_openai(gpt, {name: chat_body(name) for name in ids(30)})
        emulator.advance(1)
        return [line["custom_id"] for line in openai_lines(gpt, batch.id)[0]]

    shuffled = order(seed=1)
    assert shuffled != ids(30)
    assert sorted(shuffled) == sorted(ids(30))
    assert order(shuffle=False) == ids(30)


def test_canceled_openai_batch_keeps_and_charges_what_was_done(emulator: Emulator, gpt: openai.OpenAI) -> None:
    emulator.set_faults(validate_s=0, batch_s=100, cancel_s=600)
    batch = create_openai(gpt, {name: chat_body(name) for name in ids(10)})
    emulator.advance(40)
    assert gpt.batches.cancel(batch.id).status == "cancelling"
    emulator.advance(599)
    assert gpt.batches.retrieve(batch.id).output_file_id is None
    emulator.advance(1)
    assert gpt.batches.retrieve(batch.id).status == "cancelled"
    output, errors = openai_lines(gpt, batch.id)
    assert (len(output), len(errors)) == (4, 6)
    assert {line["error"]["code"] for line in errors} == {"batch_cancelled"}
    assert sorted(charged(emulator, batch.id)) == sorted(by_id(output))  # type: ignore[type-var]
    with pytest.raises(openai.ConflictError):
        gpt.batches.cancel(batch.id)


def test_canceled_anthropic_batch_keeps_and_charges_what_was_done(
    emulator: Emulator, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(batch_s=100, cancel_s=600)
    batch = create_anthropic(claude, {name: message_body(name) for name in ids(10)})
    emulator.advance(40)
    assert claude.messages.batches.cancel(batch.id).processing_status == "canceling"
    emulator.advance(600)
    batch = claude.messages.batches.retrieve(batch.id)
    assert (batch.processing_status, batch.request_counts.succeeded, batch.request_counts.canceled) == (
        "ended",
        4,
        6,
    )
    kinds = {line["custom_id"]: line["result"]["type"] for line in anthropic_lines(claude, batch.id)}
    done = sorted(name for name, kind in kinds.items() if kind == "succeeded")
    assert sorted(charged(emulator, batch.id)) == done  # type: ignore[type-var]
    assert len(done) == 4
    assert claude.messages.batches.delete(batch.id).type == "message_batch_deleted"
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.batches.retrieve(batch.id)


def test_expired_batches_return_and_charge_only_what_was_done(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(batches=({"kind": "stall", "value": 0.3},), window_s=86400)
    first = create_openai(gpt, {name: chat_body(name) for name in ids(10)})
    second = create_anthropic(claude, {name: message_body(name) for name in ids(10)})
    emulator.advance(86399)
    assert gpt.batches.retrieve(first.id).status == "in_progress"
    emulator.advance(1)
    assert gpt.batches.retrieve(first.id).status == "expired"
    output, errors = openai_lines(gpt, first.id)
    assert (len(output), {line["error"]["code"] for line in errors}) == (3, {"batch_expired"})
    counts = claude.messages.batches.retrieve(second.id).request_counts
    assert (counts.succeeded, counts.expired) == (3, 7)
    assert (len(charged(emulator, first.id)), len(charged(emulator, second.id))) == (3, 3)


def test_openai_pages_hold_every_batch_newest_first(emulator: Emulator, gpt: openai.OpenAI) -> None:
    made = [create_openai(gpt, {"r": chat_body("x")}).id for _ in range(5)]
    assert [batch.id for batch in gpt.batches.list(limit=2)] == made[::-1]
    page = gpt.batches.list(limit=2)
    assert ([batch.id for batch in page.data], page.has_more) == (made[:-3:-1], True)


def test_anthropic_pages_go_both_ways(emulator: Emulator, claude: anthropic.Anthropic) -> None:
    made = [create_anthropic(claude, {"r": message_body("x")}).id for _ in range(5)]
    assert [batch.id for batch in claude.messages.batches.list(limit=2)] == made[::-1]
    page = claude.messages.batches.list(limit=2, before_id=made[0])
    assert ([batch.id for batch in page.data], page.has_more) == (made[2:0:-1], True)


def test_keys_see_their_own_project_only(emulator: Emulator, gpt: openai.OpenAI, key: str) -> None:
    batch = create_openai(gpt, {"r": chat_body("x")})
    with openai_client(emulator, key + "-other") as other:
        assert list(other.batches.list()) == []
        with pytest.raises(openai.NotFoundError):
            other.batches.retrieve(batch.id)
        with pytest.raises(openai.NotFoundError):
            other.files.content(batch.input_file_id)
    emulator.set_faults(projects={key + "-sister": "p", key + "-brother": "p"})
    with (
        openai_client(emulator, key + "-sister") as sister,
        openai_client(emulator, key + "-brother") as brother,
    ):
        shared = create_openai(sister, {"r": chat_body("x")})
        assert brother.batches.retrieve(shared.id).id == shared.id


def test_account_is_told_in_the_headers(emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    told = gpt.models.with_raw_response.list().headers
    assert told["openai-project"].startswith("proj_")
    assert claude.models.with_raw_response.list().headers["anthropic-organization-id"] == told["openai-project"]


def test_account_can_stay_untold(emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    emulator.set_faults(account_headers=False)
    told = {*gpt.models.with_raw_response.list().headers, *claude.models.with_raw_response.list().headers}
    assert told.isdisjoint({"openai-organization", "openai-project", "anthropic-organization-id"})
    assert {"x-request-id", "request-id"} <= told


def test_many_threads_get_their_own_answers_and_one_charge_each(emulator: Emulator, key: str) -> None:
    def work(n: int) -> int:
        with openai_client(emulator, key) as client:
            bodies = {f"{n:016x}-{n}-{m}": chat_body(f"{n} {m}") for m in range(20)}
            batch = create_openai(client, bodies)
            for m in range(10):
                answer: Any = client.chat.completions.create(**chat_body(f"call {n} {m}", None))
                assert answer.choices[0].message.content == f"call {n} {m}"
            emulator.advance(1)
            output, _ = openai_lines(client, batch.id)
            return len(by_id(output).keys() & bodies.keys())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [20] * 8
    charges = Counter(charge.key for charge in emulator.bill(key))
    assert (len(charges), set(charges.values())) == (8 * 30, {1})


def test_unknown_keys_are_refused_by_both(emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    emulator.set_faults(keys=("known",))
    with pytest.raises(openai.AuthenticationError, match="API key"):
        gpt.batches.list()
    with pytest.raises(anthropic.AuthenticationError, match="authentication_error"):
        claude.messages.batches.list()
    with openai_client(emulator, "known") as client:
        assert list(client.batches.list()) == []


@pytest.mark.parametrize("version", ["2023-06-01", "2026-10-21"])
@pytest.mark.parametrize("style", ["x-api-key", "authorization"])
def test_anthropic_takes_both_styles_of_authentication(emulator: Emulator, style: str, version: str) -> None:
    value = "key-a" if style == "x-api-key" else "Bearer key-a"
    request = urllib.request.Request(
        f"{emulator.anthropic_url}/v1/messages/batches", headers={style: value, "anthropic-version": version}
    )
    with urllib.request.urlopen(request, timeout=30) as response:
        assert json.loads(response.read())["has_more"] is False


def test_synchronous_calls_are_answered_and_charged_in_full(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic, key: str
) -> None:
    chat: Any = gpt.chat.completions.create(**chat_body("one"))
    response: Any = gpt.responses.create(**responses_body("two"))
    message: Any = claude.messages.create(**message_body("three"))
    assert chat.choices[0].message.content == answer_text(chat_body("one"), "chat")
    assert response.output_text == answer_text(responses_body("two"), "responses")
    assert message.content[0].text == answer_text(message_body("three"), "messages")
    charges = emulator.bill(key)
    assert [(charge.tier, charge.provider) for charge in charges] == [
        ("sync", "openai"),
        ("sync", "openai"),
        ("sync", "anthropic"),
    ]
    assert charges[0].input_tokens == chat.usage.prompt_tokens
    assert charges[2].output_tokens == message.usage.output_tokens


def test_same_body_has_one_digest_in_batch_and_call(emulator: Emulator, gpt: openai.OpenAI, key: str) -> None:
    gpt.chat.completions.create(**chat_body("shared body"))
    create_openai(gpt, {"r": chat_body("shared body")})
    emulator.advance(1)
    first, second = emulator.bill(key)
    assert (first.digest, first.tier, second.tier) == (second.digest, "sync", "batch")


def test_bill_counts_repeats_by_key_across_shards(emulator: Emulator, gpt: openai.OpenAI) -> None:
    for shard in (1, 2):
        create_openai(gpt, {f"{shard:016x}-repeated": chat_body("x"), f"{shard:016x}-once-{shard}": chat_body("x")})
    emulator.advance(1)
    charges = emulator.charges_by_key()
    assert (charges["repeated"], charges["once-1"], charges["once-2"]) == (2, 1, 1)


def test_bill_in_dollars_halves_batches_and_discounts_cached_tokens(tmp_path: Any) -> None:
    with (
        Emulator(tmp_path, speed=0, usage="worst", cached_fraction=0.5) as emulator,
        openai_client(emulator) as client,
    ):
        client.chat.completions.create(**chat_body("x" * 100, None, max_completion_tokens=10))
        assert emulator.bill_usd(input_mtok="2", output_mtok="4", cached_mtok="1") * 1_000_000 == 50 * 2 + 50 + 40
        create_openai(client, {"r": chat_body("x" * 100, None, max_completion_tokens=10)})
        emulator.advance(1)
        assert emulator.bill_usd(input_mtok="2", output_mtok="4", cached_mtok="1") * 1_000_000 == 190 * 1.5
        assert emulator.bill_summary() == {
            "charges": 2,
            "keys": 2,
            "most_of_one_key": 1,
            "input_tokens": 200,
            "cached_tokens": 100,
            "output_tokens": 20,
        }


def test_cached_tokens_are_shown_as_each_provider_does(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic
) -> None:
    emulator.set_faults(cached_fraction=0.5)
    chat: Any = gpt.chat.completions.create(**chat_body("x" * 400, None))
    assert (chat.usage.prompt_tokens, chat.usage.prompt_tokens_details.cached_tokens) == (100, 50)
    message: Any = claude.messages.create(**message_body("x" * 400, None))
    assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (50, 50)


@pytest.mark.parametrize(
    ("content", "code"),
    [
        pytest.param(b"", "empty_file", id="empty file"),
        pytest.param(b"{not json}\n", "invalid_json_line", id="a line that is not JSON"),
        pytest.param(input_file({"r": chat_body("x")}) * 2, "duplicate_custom_id", id="duplicate id"),
        pytest.param(input_file({"r": responses_body("x")}, "/v1/responses"), "url_mismatch", id="another url"),
        pytest.param(
            input_file({"a": chat_body("x"), "b": {**chat_body("x"), "model": "n"}}),
            "model_mismatch",
            id="two models",
        ),
        pytest.param(input_file({"r": chat_body("x", stream=True)}), "invalid_request", id="stream"),
        pytest.param(input_file({"r": {**chat_body("x"), "model": "gone"}}), "model_not_found", id="unknown model"),
        pytest.param(input_file({f"r{n}": chat_body("x") for n in range(4)}), "too_many_tasks", id="a row too many"),
        pytest.param(input_file({"r": chat_body("é" * 5_000)}), "invalid_request", id="too many bytes"),
    ],
)
def test_openai_input_outside_the_limits_fails_the_batch(
    emulator: Emulator, gpt: openai.OpenAI, content: bytes, code: str
) -> None:
    emulator.set_faults(models=("m", "n"), max_requests=3, max_bytes=5_000)
    file = gpt.files.create(file=("in.jsonl", content), purpose="batch")
    batch = gpt.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    assert batch.status == "validating"
    emulator.advance(1)
    batch = gpt.batches.retrieve(batch.id)
    assert batch.status == "failed"
    assert batch.errors is not None
    assert [fault.code for fault in batch.errors.data or ()] == [code]
    assert (batch.output_file_id, batch.error_file_id, charged(emulator, batch.id)) == (None, None, [])


def test_openai_input_at_the_limits_is_accepted(emulator: Emulator, gpt: openai.OpenAI) -> None:
    content = input_file({f"r{n}": chat_body("é") for n in range(3)})
    emulator.set_faults(max_requests=3, max_bytes=len(content))
    batch = create_openai(gpt, {f"r{n}": chat_body("é") for n in range(3)})
    emulator.advance(1)
    assert gpt.batches.retrieve(batch.id).status == "completed"


@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        pytest.param({"a" * 65: message_body("x")}, r"requests\.0\.custom_id", id="65 characters"),
        pytest.param({"": message_body("x")}, r"requests\.0\.custom_id", id="empty id"),
        pytest.param({"ok": message_body("x"), "a b": message_body("x")}, r"requests\.1\.custom_id", id="a space"),
        pytest.param({f"r{n}": message_body("x") for n in range(4)}, "at most 3", id="a row too many"),
        pytest.param({}, "requests", id="no rows"),
    ],
)
def test_anthropic_envelope_outside_the_limits_is_refused_whole(
    emulator: Emulator, claude: anthropic.Anthropic, bodies: dict[str, Any], message: str
) -> None:
    emulator.set_faults(max_requests=3)
    with pytest.raises(anthropic.BadRequestError, match=message):
        create_anthropic(claude, bodies)
    assert list(claude.messages.batches.list()) == []


def test_anthropic_refuses_duplicate_ids_and_too_many_bytes(emulator: Emulator, claude: anthropic.Anthropic) -> None:
    twice: Any = [{"custom_id": "r", "params": message_body("x")}] * 2
    with pytest.raises(anthropic.BadRequestError, match="unique"):
        claude.messages.batches.create(requests=twice)
    emulator.set_faults(max_bytes=1000)
    with pytest.raises(anthropic.APIStatusError, match="request_too_large") as refused:
        create_anthropic(claude, {"r": message_body("é" * 500)})
    assert refused.value.status_code == 413
    assert create_anthropic(claude, {"a" * 64: message_body("x")}).processing_status == "in_progress"


def test_bad_row_at_anthropic_errs_alone(emulator: Emulator, claude: anthropic.Anthropic) -> None:
    bad = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
    batch = create_anthropic(claude, {"bad": bad, "good": message_body("x")})
    emulator.advance(1)
    lines = by_id(anthropic_lines(claude, batch.id))
    assert lines["bad"]["result"]["error"]["error"]["type"] == "invalid_request_error"
    assert lines["good"]["result"]["type"] == "succeeded"
    assert charged(emulator, batch.id) == ["good"]


def test_files_end_with_their_retention(emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    first = create_openai(gpt, {"r": chat_body("x")}, output_expires_after={"anchor": "created_at", "seconds": 3600})
    second = create_anthropic(claude, {"r": message_body("x")})
    emulator.advance(60)
    batch = gpt.batches.retrieve(first.id)
    output = gpt.files.retrieve(str(batch.output_file_id))
    assert output.expires_at == output.created_at + 3600
    emulator.advance(3600)
    with pytest.raises(openai.NotFoundError):
        gpt.files.content(output.id)
    assert gpt.files.content(str(batch.input_file_id)).content
    emulator.advance(30 * 86400)
    with pytest.raises(openai.NotFoundError):
        gpt.files.content(str(batch.input_file_id))
    archived = claude.messages.batches.retrieve(second.id)
    assert archived.results_url is None
    assert archived.archived_at is not None
    with pytest.raises(anthropic.AnthropicError, match="results"):
        claude.messages.batches.results(second.id)


def test_upload_of_a_large_file_is_kept_byte_for_byte(emulator: Emulator, gpt: openai.OpenAI, tmp_path: Any) -> None:
    content = bytes(range(256)) * 40_000 + b"\r\n--not-the-boundary\r\n"
    path = tmp_path / "größe.jsonl"
    path.write_bytes(content)
    with path.open("rb") as stream:
        file = gpt.files.create(file=stream, purpose="batch")
    assert file.bytes == len(content)
    assert gpt.files.content(file.id).content == content


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_five_thousand_rows_take_seconds(
    emulator: Emulator, gpt: openai.OpenAI, claude: anthropic.Anthropic, provider: str
) -> None:
    begun = time.perf_counter()
    if provider == "openai":
        batch = create_openai(gpt, {f"r-{n}": chat_body(f"row {n}") for n in range(5_000)})
        emulator.advance(1)
        count = len(openai_lines(gpt, batch.id)[0])
    else:
        batch = create_anthropic(claude, {f"r-{n}": message_body(f"row {n}") for n in range(5_000)})
        emulator.advance(1)
        count = len(anthropic_lines(claude, batch.id))
    assert count == 5_000
    # About 1 s measured; the bound leaves room for a busy machine, and catches a cost a row that grows.
    assert time.perf_counter() - begun < 15
