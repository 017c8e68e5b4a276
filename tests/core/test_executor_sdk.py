"""What is taken out of a failed call, and what may be concluded from a list."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx2
import pytest

from lotwise.errors import CreateRejected, CreateUncertain, Unreachable
from lotwise.executors.live import retry_after_s
from lotwise.executors.reading import word
from lotwise.executors.sdk import Fault, fault_of, fault_of_response, newer, pages

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "1500", "retry-after": "9"}, 1.5),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:00 GMT"}, 60.0),
        ({"retry-after": "Mon, 30 Nov 2026 11:00:00 GMT"}, 0.0),
        ({"retry-after": "Mon, 30 Nov 2026 12:01:00 GMT", "date": "Mon, 30 Nov 2026 12:00:50 GMT"}, 10.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
    ],
    ids=["none", "seconds", "fraction", "milliseconds", "date", "past", "by its own clock", "words", "negative"],
)
def test_retry_after_is_seconds_or_unknown(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(headers, NOW) == seconds


@pytest.mark.parametrize(
    "text", ["sk-abc", "rate limit", "café", "", "x" * 65, "key1", None, 5, {"a": 1}, "a\n"], ids=repr
)
def test_only_a_single_plain_word_passes(text: Any) -> None:
    assert word(text) is None


def test_error_words_pass() -> None:
    assert word("invalid_request_error") == "invalid_request_error"
    assert word("Throttling.RateQuota") == "Throttling.RateQuota"


@pytest.mark.parametrize(
    ("cause", "unsent"),
    [
        (httpx2.ConnectError("x"), True),
        (httpx2.ConnectTimeout("x"), True),
        (httpx2.ReadTimeout("x"), False),
        (httpx2.WriteError("x"), False),
        (httpx2.RemoteProtocolError("x"), False),
        (RuntimeError("x"), False),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, Exception) else "",
)
def test_call_is_unsent_only_where_no_connection_was_made(cause: Exception, unsent: bool) -> None:
    outer = Exception("from an SDK")
    outer.__cause__ = cause
    fault = fault_of(outer)
    assert fault.unsent is unsent
    assert isinstance(fault.of_create(), CreateRejected if unsent else CreateUncertain)


def test_words_are_read_from_both_error_envelopes() -> None:
    openai = httpx2.Response(429, json={"error": {"code": "insufficient_quota", "type": "x", "message": "SECRET y"}})
    anthropic = httpx2.Response(400, json={"type": "error", "error": {"type": "billing_error", "message": "SECRET y"}})
    for response in (openai, anthropic):
        fault = fault_of_response(response)
        assert fault.blocked
        assert "SECRET" not in repr(fault)
    assert fault_of_response(httpx2.Response(502, text="<html>SECRET")).code == "http_502"


def test_queue_limit_told_as_400_is_a_wait() -> None:
    told = httpx2.Response(400, json={"error": {"code": "token_limit_exceeded"}})
    refusal = fault_of_response(told).of_create()
    assert isinstance(refusal, CreateRejected)
    assert refusal.wait_s is not None
    assert not refusal.input_fault


def entry(n: int) -> dict[str, Any]:
    return {"id": f"b{n}", "at": n}


class Server:
    """A list endpoint that serves given pages by the id they come after."""

    def __init__(self, given: dict[str | None, dict[str, Any] | Fault]) -> None:
        self.given, self.asked = given, []  # type: ignore[var-annotated]

    def __call__(self, after: str | None) -> dict[str, Any] | Fault:
        self.asked.append(after)
        return self.given[after]


def ids(server: Server) -> list[str]:
    return [one["id"] for page in pages(server) for one in page]


def test_pages_follow_the_last_id_until_there_is_no_more() -> None:
    server = Server(
        {None: {"data": [entry(3), entry(2)], "has_more": True}, "b2": {"data": [entry(1)], "has_more": False}}
    )
    assert ids(server) == ["b3", "b2", "b1"]


def test_server_without_has_more_is_asked_until_nothing_new_comes() -> None:
    assert ids(Server({None: {"data": [entry(1)]}, "b1": {"data": [entry(1)]}})) == ["b1"]
    assert ids(Server({None: {"data": [entry(1)]}, "b1": {"data": []}})) == ["b1"]


def test_list_that_claims_more_and_repeats_itself_proves_nothing() -> None:
    page = {"data": [entry(1)], "has_more": True}
    with pytest.raises(Unreachable, match="repeats"):
        ids(Server({None: page, "b1": page}))


def test_endless_list_proves_nothing() -> None:
    def endless(after: str | None) -> dict[str, Any]:
        return {"data": [entry(int((after or "b0")[1:]) + 1)], "has_more": True}

    with pytest.raises(Unreachable, match="too_long"):
        list(pages(endless))


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"message": "maintenance"},
        {"data": None},
        {"data": {"b1": {}}, "has_more": False},
        {"data": [entry(1), {"at": 2}], "has_more": False},
        {"data": [entry(1), "b2"], "has_more": False},
        {"data": [{"id": 7}], "has_more": False},
    ],
    ids=str,
)
def test_what_is_no_list_proves_nothing(page: dict[str, Any]) -> None:
    with pytest.raises(Unreachable, match="unreadable"):
        ids(Server({None: page}))
    with pytest.raises(Unreachable, match="unreadable"):
        ids(Server({None: {"data": [entry(3)], "has_more": True}, "b3": page}))


def test_an_empty_list_is_empty_also_as_null_and_not_where_it_claims_more() -> None:
    assert ids(Server({None: {"data": [], "has_more": False}})) == []
    assert ids(Server({None: {"data": None, "has_more": False}})) == []
    with pytest.raises(Unreachable, match="repeats"):
        ids(Server({None: {"data": [], "has_more": True}}))


def test_fault_of_a_page_is_raised() -> None:
    with pytest.raises(Unreachable, match="http_503"):
        ids(Server({None: Fault(status=503, code="http_503")}))


def at(one: dict[str, Any]) -> datetime:
    return datetime.fromtimestamp(one["at"], UTC)


def test_list_newest_first_stops_at_the_first_older_page() -> None:
    def found() -> Any:
        yield [entry(9), entry(8)]
        yield [entry(7), entry(6)]
        raise AssertionError("asked for a page that is wholly older")

    assert [one["at"] for one in newer(found(), at, datetime.fromtimestamp(7, UTC))] == [9, 8, 7]


def test_list_of_small_pages_is_read_on_until_it_is_plainly_newest_first() -> None:
    found = [[entry(1)], [entry(2), entry(2)], [entry(8)], [entry(9)]]
    assert [one["at"] for one in newer(found, at, datetime.fromtimestamp(7, UTC))] == [8, 9]


def test_list_in_another_order_is_read_to_its_end() -> None:
    found = [[entry(1), entry(2)], [entry(8), entry(9)]]
    assert [one["at"] for one in newer(found, at, datetime.fromtimestamp(7, UTC))] == [8, 9]
