"""Anthropic's executors through the real SDK against the emulated provider."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

import pytest
from provider_contract import (
    DAY_S,
    DONE_S,
    BatchContract,
    Desk,
    LiveAndBatchContract,
    codes_of,
    emulator,
    frame,
    key_of,
    lines_of,
)

from emulator import HttpFault, RowFault
from lotwise import errors
from lotwise.request import Code

__all__ = ["emulator"]


class Anthropic:
    model = "anthropic:claude-haiku-4-5"
    key_variable = "ANTHROPIC_API_KEY"
    url_variable = "ANTHROPIC_BASE_URL"
    options: ClassVar[dict[str, Any]] = {}
    download = "batches.results"
    live_call = "messages.create"
    expected: ClassVar[dict[str, Code]] = {
        "ok": Code.OK,
        "invalid_json": Code.OK,
        "schema_mismatch": Code.OK,
        "empty": Code.OK,
        "wrong": Code.OK,
        "refused": Code.REFUSED,
        "truncated": Code.TRUNCATED,
        "context_window": Code.TRUNCATED,
        "needs_continuation": Code.NEEDS_CONTINUATION,
        "bad_request": Code.BAD_REQUEST,
        "not_found": Code.BAD_REQUEST,
        "too_large": Code.BAD_REQUEST,
        "rate_limited": Code.RATE_LIMITED,
        "server_error": Code.SERVER_ERROR,
        "overloaded": Code.SERVER_ERROR,
        "timeout": Code.SERVER_ERROR,
        "expired": Code.EXPIRED,
        "canceled": Code.CANCELED,
        "unknown_type": Code.SERVER_ERROR,
        "insufficient_quota": Code.ACCOUNT_BLOCKED,
        "authentication": Code.ACCOUNT_BLOCKED,
        "permission": Code.ACCOUNT_BLOCKED,
    }
    batch_only = frozenset({"expired", "canceled", "unknown_type"})


class TestMessageBatches(Anthropic, BatchContract):
    """Messages in batches."""

    def test_shard_is_known_by_time_count_and_first_ids(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(3))
        (found,) = executor.list(since=datetime.fromtimestamp(0, UTC))
        assert (found.batch_id, found.shard_id, found.n_requests, found.ended) == (batch_id, None, 3, False)
        desk.emulator.advance(DONE_S)
        (found,) = executor.list(since=datetime.fromtimestamp(0, UTC))
        assert found.ended
        ids = executor.first_ids(batch_id, 2)
        assert len(ids) == 2
        assert set(ids) <= set(frame(3)["custom_id"])

    def test_results_of_a_running_batch_are_not_there(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(1))
        with pytest.raises(errors.ResultsGone) as caught:
            lines_of(executor, batch_id)
        assert caught.value.reason == "no_results_url"

    def test_archived_batch_is_known_and_says_so(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(1))
        desk.emulator.advance(30 * DAY_S)
        assert executor.poll(batch_id).provider_state == "ended"
        with pytest.raises(errors.ResultsGone) as caught:
            lines_of(executor, batch_id)
        assert caught.value.reason == "archived"

    def test_error_that_is_not_nested_is_read(self, desk: Desk) -> None:
        desk.emulator.set_faults(rows=[RowFault(kind="overloaded"), RowFault(kind="flat_error", ids=(key_of(0),))])
        executor = desk.load()
        batch_id = desk.submit(executor, frame(2))
        desk.emulator.advance(DONE_S)
        assert list(codes_of(executor, lines_of(executor, batch_id)).values()) == ["server_error"] * 2

    def test_prepared_body_is_gone_whatever_comes_of_the_create(self, desk: Desk) -> None:
        executor = desk.load()
        spec, shard = desk.spec(executor), desk.shard(1)
        executor.create(shard, spec, executor.prepare(shard, spec, frame(1)))
        assert list(desk.temp_dir.iterdir()) == []
        desk.emulator.set_faults(http=[HttpFault(endpoint="batches.create", action="reply", status=500)])
        prepared = executor.prepare(shard, spec, frame(1))
        with pytest.raises(errors.CreateUncertain):
            executor.create(shard, spec, prepared)
        assert list(desk.temp_dir.iterdir()) == []


class TestMessagesLive(Anthropic, LiveAndBatchContract):
    """Messages, one by one."""
