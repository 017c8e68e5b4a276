"""OpenAI's executors through the real SDK against the emulated provider."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from provider_contract import (
    DONE_S,
    SHARD,
    BatchContract,
    Desk,
    LiveAndBatchContract,
    ResultContract,
    codes_of,
    emulator,
    frame,
    lines_of,
)

from emulator import BatchFault
from lotwise import errors
from lotwise.adopt import find
from lotwise.request import Code, Phase

__all__ = ["emulator"]

COMMON: dict[str, Code] = {
    "ok": Code.OK,
    "invalid_json": Code.OK,
    "schema_mismatch": Code.OK,
    "empty": Code.OK,
    "wrong": Code.OK,
    "refused": Code.REFUSED,
    "content_filter": Code.REFUSED,
    "truncated": Code.TRUNCATED,
    "bad_request": Code.BAD_REQUEST,
    "not_found": Code.BAD_REQUEST,
    "too_large": Code.BAD_REQUEST,
    "unprocessable": Code.BAD_REQUEST,
    "rate_limited": Code.RATE_LIMITED,
    "server_error": Code.SERVER_ERROR,
    "overloaded": Code.SERVER_ERROR,
    "timeout": Code.SERVER_ERROR,
    "conflict": Code.SERVER_ERROR,
    "request_timeout": Code.SERVER_ERROR,
    "status_zero": Code.SERVER_ERROR,
    "empty_body": Code.SERVER_ERROR,
    "model_failed": Code.SERVER_ERROR,
    "expired": Code.EXPIRED,
    "canceled": Code.CANCELED,
    "unknown_type": Code.SERVER_ERROR,
    "insufficient_quota": Code.ACCOUNT_BLOCKED,
    "authentication": Code.ACCOUNT_BLOCKED,
    "permission": Code.ACCOUNT_BLOCKED,
    "model_not_found": Code.ACCOUNT_BLOCKED,
}


class OpenAI:
    model = "openai:gpt-5-mini"
    key_variable = "OPENAI_API_KEY"
    url_variable = "OPENAI_BASE_URL"
    options: ClassVar[dict[str, Any]] = {"endpoint": "chat"}
    download = "files.content"
    live_call = "chat.create"
    expected: ClassVar[dict[str, Code]] = COMMON
    batch_only = frozenset({"request_timeout", "status_zero", "expired", "canceled", "unknown_type"})


class TestChatBatches(OpenAI, BatchContract):
    """Chat completions in batches."""

    def test_shard_is_found_by_its_metadata_after_a_lost_answer(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(3))
        (found,) = executor.list(since=datetime.fromtimestamp(0, UTC))
        assert (found.batch_id, found.shard_id, found.ended) == (batch_id, SHARD, False)
        desk.emulator.advance(DONE_S)
        (found,) = executor.list(since=datetime.fromtimestamp(0, UTC))
        assert (found.n_requests, found.ended) == (3, True)

    def test_batch_without_our_metadata_is_told_by_the_ids_of_its_results(self, desk: Desk) -> None:
        """Somebody else's batch of as many requests leaves no question open once it has ended."""
        executor = desk.load()
        batch_id = desk.submit(executor, frame(3))
        listed = [
            replace(one, shard_id=None) for one in executor.list(since=datetime.fromtimestamp(0, UTC))
        ]  # as where the metadata is not ours
        shard: Any = {"id": "0" * 16, "creating_at": listed[0].created_at, "n_requests": 3}
        listed = [replace(one, n_requests=3) for one in listed]
        assert find(executor, shard, listed, timedelta(minutes=15)) == (None, True)

        desk.emulator.advance(DONE_S)
        listed = [replace(one, ended=True) for one in listed]

        assert set(executor.first_ids(batch_id, 2)) < set(frame(3)["custom_id"])
        assert find(executor, shard, listed, timedelta(minutes=15)) == (None, False)
        own = {**shard, "id": SHARD}
        assert find(executor, own, listed, timedelta(minutes=15)) == (listed[0], False)

    @pytest.mark.parametrize("kind", ["error_file_null", "error_file_empty_id", "error_file_zero_bytes"])
    def test_absent_error_file_takes_any_form(self, desk: Desk, kind: str) -> None:
        desk.emulator.set_faults(batches=[BatchFault(kind=kind)])
        executor = desk.load()
        batch_id = desk.submit(executor, frame(3))
        desk.emulator.advance(DONE_S)
        assert set(codes_of(executor, lines_of(executor, batch_id)).values()) == {"ok"}

    def test_batch_of_errors_alone_is_completed_and_read(self, desk: Desk) -> None:
        desk.emulator.set_faults(rows=[{"kind": "bad_request"}])
        executor = desk.load()
        batch_id = desk.submit(executor, frame(3))
        desk.emulator.advance(DONE_S)
        assert executor.poll(batch_id).provider_state == "completed"
        assert list(codes_of(executor, lines_of(executor, batch_id)).values()) == ["bad_request"] * 3

    @pytest.mark.parametrize(("code", "wait"), [("token_limit_exceeded", True), ("invalid_json_line", False)])
    def test_failed_batch_is_rejected_and_waits_only_for_quota(self, desk: Desk, code: str, wait: bool) -> None:
        desk.emulator.set_faults(batches=[BatchFault(kind="fail", value=code)])
        executor = desk.load()
        batch_id = desk.submit(executor, frame(2))
        desk.emulator.advance(DONE_S)
        seen = executor.poll(batch_id)
        assert (seen.phase, seen.reason, seen.wait) == (Phase.REJECTED, code, wait)
        assert lines_of(executor, batch_id) == []

    def test_files_expire_when_told(self, desk: Desk) -> None:
        executor = desk.load(input_expires_s=3_600, output_expires_s=7_200)
        batch_id = desk.submit(executor, frame(1))
        desk.emulator.advance(DONE_S)
        assert len(lines_of(executor, batch_id)) == 1
        desk.emulator.advance(7_200)
        with pytest.raises(errors.ResultsGone):
            lines_of(executor, batch_id)

    def test_refused_upload_is_certain_and_a_broken_one_is_asked_again(self, desk: Desk) -> None:
        executor = desk.load()
        spec, shard = desk.spec(executor), desk.shard(1)
        for status, error in ((413, errors.CreateRejected), (503, errors.Unreachable), (429, errors.CreateRejected)):
            desk.emulator.set_faults(http=[{"endpoint": "files.create", "action": "reject", "status": status}])
            with pytest.raises(error):
                executor.prepare(shard, spec, frame(1))
        assert list(desk.temp_dir.iterdir()) == []

    def test_upload_that_the_sdk_repeats_arrives_whole(self, desk: Desk) -> None:
        desk.emulator.set_faults(http=[{"endpoint": "files.create", "action": "reject", "status": 500, "times": 1}])
        executor = desk.load(read_retries=1)
        batch_id = desk.submit(executor, frame(40))
        desk.emulator.advance(DONE_S)
        assert set(codes_of(executor, lines_of(executor, batch_id)).values()) == {"ok"}


class TestResponsesBatches(OpenAI, ResultContract):
    """Responses in batches."""

    options: ClassVar[dict[str, Any]] = {"endpoint": "responses"}


class TestChatLive(OpenAI, LiveAndBatchContract):
    """Chat completions, one by one."""


class TestResponsesLive(OpenAI, LiveAndBatchContract):
    """Responses, one by one."""

    options: ClassVar[dict[str, Any]] = {"endpoint": "responses"}
    live_call = "responses.create"
