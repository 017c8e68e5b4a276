"""The emulator puts on the wire what the providers' contract page shows: the same keys, the same types.

The samples are data (emulator/samples.json), taken from the contract page and checked against it where it is
at hand, so that the emulator and the product cannot share a misreading of it.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.messages import MessageBatch
from openai.types import Batch, FileObject

from emulator import Emulator, Faults, RowFault
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

TESTS = Path(__file__).resolve().parents[1]
SAMPLES: dict[str, Any] = json.loads((TESTS / "emulator" / "samples.json").read_text())
PAGE = Path(os.environ.get("LOTWISE_SHARED", TESTS.parents[1] / "shared")) / "provider-contracts.md"


def page_blocks() -> list[Any]:
    """Return the JSON blocks of the page's OpenAI and Anthropic sections; without the page, those samples."""
    if not PAGE.exists():
        return [SAMPLES[name] for name in SAMPLES if ".row_" in name or ".batch_" in name]
    sections = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    wanted = [text for text in sections if text.startswith(("1. OpenAI", "3. Anthropic"))]
    return [json.loads(block) for text in wanted for block in re.findall(r"```json\n(.*?)```", text, re.DOTALL)]


def differences(sample: Any, actual: Any, path: str = "$", extras: frozenset[str] = frozenset()) -> list[str]:
    """Return where a value has another shape than its sample.

    A null in the sample says nothing of the type.  Keys that the sample lacks must be named in `extras`.
    """
    if sample is None:
        return []
    if isinstance(sample, bool) or isinstance(actual, bool) or not isinstance(sample, dict | list):
        return [] if type(sample) is type(actual) else [f"{path}: {actual!r}, not like {sample!r}"]
    if type(sample) is not type(actual):
        return [f"{path}: {actual!r}, not like {sample!r}"]
    if isinstance(sample, list):
        return [
            found
            for n, item in enumerate(actual if sample else ())
            for found in differences(sample[0], item, f"{path}[{n}]", extras)
        ]
    assert isinstance(sample, dict)
    assert isinstance(actual, dict)
    found = [f"{path}.{name}: absent" for name in sample.keys() - actual.keys()]
    found += [f"{path}.{name}: not in the sample" for name in actual.keys() - sample.keys() - extras]
    for name in sample.keys() & actual.keys():
        found += differences(sample[name], actual[name], f"{path}.{name}", extras)
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("emulator"), speed=0) as emulator:
        yield emulator


@pytest.fixture
def emulator(served: Emulator) -> Iterator[Emulator]:
    yield served
    served.set_faults(**Faults().to_json())


def get(url: str, key: str, *, method: str = "GET", **headers: str) -> Any:
    request = urllib.request.Request(url, method=method, headers={"authorization": f"Bearer {key}", **headers})
    with urllib.request.urlopen(request, timeout=30) as response:
        return json.loads(response.read())


def get_anthropic(url: str, key: str, *, method: str = "GET") -> Any:
    return get(url, key, method=method, **{"anthropic-version": "2026-10-21"})


def assert_like(sample: str, actual: Any, extras: frozenset[str] = frozenset()) -> None:
    assert differences(SAMPLES[sample], actual, extras=extras) == []


def test_samples_hold_every_json_block_of_the_contract_page() -> None:
    blocks = page_blocks()
    assert len(blocks) >= 7
    assert [block for block in blocks if block not in SAMPLES.values()] == []


@pytest.mark.parametrize(
    ("sample", "actual", "expected"),
    [
        pytest.param({"a": 1}, {"a": 2}, [], id="same keys and types"),
        pytest.param({"a": None}, {"a": "x"}, [], id="null in the sample"),
        pytest.param({"a": 1}, {"a": "x"}, ["$.a: 'x', not like 1"], id="another type"),
        pytest.param({"a": 1}, {"a": True}, ["$.a: True, not like 1"], id="a bool is not a number"),
        pytest.param({"a": {"b": 1}}, {"a": {}}, ["$.a.b: absent"], id="a key absent inside"),
        pytest.param({}, {"a": 1}, ["$.a: not in the sample"], id="a key too many"),
        pytest.param([{"a": 1}], [{"a": 1}, {}], ["$[1].a: absent"], id="the second item"),
    ],
)
def test_a_difference_of_shape_is_found(sample: Any, actual: Any, expected: list[str]) -> None:
    assert differences(sample, actual) == expected


def test_openai_file_objects_have_the_shape_of_the_samples(emulator: Emulator) -> None:
    with openai_client(emulator, "files") as client:
        file = client.files.create(file=("in.jsonl", b"{}\n"), purpose="batch")
    assert file.filename == "in.jsonl"
    raw = get(f"{emulator.openai_url}/files/{file.id}", "files")
    assert_like("openai.file", raw)
    assert raw.keys() <= FileObject.model_fields.keys()
    page = get(f"{emulator.openai_url}/files?purpose=batch", "files")
    assert_like("openai.empty_list", page)
    assert [found["id"] for found in page["data"]] == [file.id]
    assert_like("openai.file_deleted", get(f"{emulator.openai_url}/files/{file.id}", "files", method="DELETE"))
    assert_like("openai.empty_list", get(f"{emulator.openai_url}/files", "files"))


def test_openai_result_lines_have_the_shape_of_the_samples(emulator: Emulator) -> None:
    kinds = ("ok", "refused", "truncated", "bad_request", "rate_limited", "server_error", "request_timeout")
    faults = tuple(RowFault(kind=kind, ids=(kind,), parameter="temperature") for kind in kinds)
    emulator.set_faults(rows=faults)
    with openai_client(emulator, "lines") as client:
        batch = create_openai(client, {kind: chat_body(kind) for kind in kinds})
        emulator.advance(1)
        output, errors = map(by_id, openai_lines(client, batch.id))
    assert output.keys() == {"ok", "refused", "truncated"}
    assert errors.keys() == {"bad_request", "rate_limited", "server_error", "request_timeout"}
    for kind in ("ok", "truncated"):
        assert_like("openai.row_succeeded", output[kind])
    refused = output["refused"]["response"]["body"]["choices"][0]
    assert differences(SAMPLES["openai.message_refused"], refused["message"]) == []
    assert (refused["message"]["content"], refused["finish_reason"]) == (None, "stop")
    assert_like("openai.row_invalid", errors["bad_request"])
    for kind in ("rate_limited", "server_error"):
        assert_like("openai.http_error", errors[kind]["response"]["body"])
    assert_like("openai.row_expired", errors["request_timeout"])


def test_openai_responses_lines_have_the_shape_of_the_samples(emulator: Emulator) -> None:
    kinds = ("ok", "refused", "truncated", "model_failed")
    emulator.set_faults(rows=tuple(RowFault(kind=kind, ids=(kind,)) for kind in kinds))
    with openai_client(emulator, "responses") as client:
        batch = create_openai(client, {kind: responses_body(kind) for kind in kinds}, "/v1/responses")
        emulator.advance(1)
        output, errors = openai_lines(client, batch.id)
    bodies = {line["custom_id"]: line["response"]["body"] for line in output}
    assert (set(bodies), len(errors)) == (set(kinds), 0)
    envelope = frozenset(bodies["ok"])
    assert bodies["truncated"]["status"] == "incomplete"
    assert_like("openai.response_incomplete", bodies["truncated"], envelope)
    assert bodies["model_failed"]["status"] == "failed"
    assert_like("openai.response_failed", bodies["model_failed"], envelope)
    assert_like("openai.response_refusal_part", bodies["refused"]["output"][0]["content"][0])


def test_openai_failed_batch_has_the_shape_of_the_sample(emulator: Emulator) -> None:
    content = input_file({f"r-{n}": chat_body("x") for n in range(3)}) + b"{not json}\n"
    with openai_client(emulator, "failed") as client:
        file = client.files.create(file=("in.jsonl", content), purpose="batch")
        batch = client.batches.create(input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h")
    emulator.advance(1)
    raw = get(f"{emulator.openai_url}/batches/{batch.id}", "failed")
    assert_like("openai.batch_failed", raw, frozenset(Batch.model_fields))
    assert [(fault["code"], fault["line"]) for fault in raw["errors"]["data"]] == [("invalid_json_line", 4)]
    assert raw.keys() <= Batch.model_fields.keys()


def test_anthropic_lines_and_batches_have_the_shape_of_the_samples(emulator: Emulator) -> None:
    kinds = ("ok", "refused", "truncated", "bad_request", "overloaded", "canceled", "expired")
    emulator.set_faults(rows=tuple(RowFault(kind=kind, ids=(kind,)) for kind in kinds))
    with anthropic_client(emulator, "messages") as client:
        batch = create_anthropic(client, {kind: message_body(kind) for kind in kinds})
        emulator.advance(1)
        lines = by_id(anthropic_lines(client, batch.id))
    assert lines.keys() == set(kinds)
    assert_like("anthropic.row_succeeded", lines["ok"])
    assert_like("anthropic.row_succeeded", lines["truncated"])
    assert_like("anthropic.row_succeeded", lines["refused"], frozenset({"stop_details"}))
    assert_like("anthropic.stop_details", lines["refused"]["result"]["message"]["stop_details"])
    assert_like("anthropic.row_errored", lines["bad_request"])
    assert_like("anthropic.row_errored", lines["overloaded"])
    assert_like("anthropic.row_canceled", lines["canceled"])
    assert_like("anthropic.row_expired", lines["expired"])
    url = f"{emulator.anthropic_url}/v1/messages/batches"
    raw = get_anthropic(f"{url}/{batch.id}", "messages")
    assert_like("anthropic.batch_ended", raw)
    assert raw.keys() <= MessageBatch.model_fields.keys()
    assert raw["results_url"] == f"{url}/{batch.id}/results"
    assert_like("anthropic.empty_list", get_anthropic(url, "messages"))
    assert_like("anthropic.deleted", get_anthropic(f"{url}/{batch.id}", "messages", method="DELETE"))
    assert_like("anthropic.empty_list", get_anthropic(url, "messages"))


def test_http_errors_have_the_shape_of_the_samples(emulator: Emulator) -> None:
    with openai_client(emulator) as client, pytest.raises(Exception, match="No batch found") as refused:
        client.batches.retrieve("batch_none")
    assert_like("openai.http_error", refused.value.response.json())  # type: ignore[attr-defined]
    with anthropic_client(emulator) as client, pytest.raises(Exception, match="not found") as refused:
        client.messages.batches.retrieve("msgbatch_none")
    assert_like("anthropic.http_error", refused.value.response.json())  # type: ignore[attr-defined]


def test_bodies_of_the_helpers_carry_schemas_as_the_samples_do() -> None:
    assert_like("openai.chat_format", chat_body("x")["response_format"], frozenset(chat_schema()))
    assert_like("openai.responses_format", responses_body("x")["text"]["format"], frozenset(chat_schema()))
    assert_like("anthropic.format", message_body("x")["output_config"]["format"], frozenset(chat_schema()))


def chat_schema() -> dict[str, Any]:
    schema: dict[str, Any] = chat_body("x")["response_format"]["json_schema"]["schema"]
    return schema
