"""What the provider SDKs have in common: how a call fails, and what of that may be passed on.

An SDK's exception holds the request with its headers, and often a sentence of the provider that quotes a key or a
row. So a failed call becomes a `Fault`, a plain value of status and words, inside the `except`, and our own error
is raised outside of it, with no exception behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol, TypeVar

import httpx2
import msgspec

from lotwise.errors import CreateRejected, CreateUncertain, Unreachable
from lotwise.executors import jsonl
from lotwise.executors.fanout import Server
from lotwise.executors.live import error_words, retry_after_s
from lotwise.executors.reading import BLOCKED_WORDS, load_line, mapping, text_of

T = TypeVar("T")
Errors = tuple[type[Exception], ...]
"""The exception classes of one SDK."""

# The connection was never made, so not a byte of the request left.
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.ProxyError)
_WAIT_WORDS = frozenset(
    {"token_limit_exceeded", "rate_limit_exceeded", "rate_limit_error", "too_many_batches", "queue_full"}
)
RETRY_S = 30.0
"""How long to hold where the provider asks to wait and does not say how long."""
RECONNECT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How a call failed: `status` is None where no answer came, `unsent` is true where none of it was sent."""

    status: int | None
    code: str
    words: frozenset[str] = frozenset()
    wait_s: float | None = None
    unsent: bool = False

    @property
    def absent(self) -> bool:
        """True for an answer that says that there is no such thing."""
        return self.status == 404

    @property
    def blocked(self) -> bool:
        """True where the account itself may not send."""
        return self.status in (401, 402, 403) or bool(self.words & BLOCKED_WORDS)

    def unreachable(self) -> Unreachable:
        """Make the error of a call that is safe to make again."""
        return Unreachable(self.code, wait_s=self.wait_s)

    def of_upload(self) -> CreateRejected | Unreachable:
        """Make the error of a call that charges nothing and came before the create."""
        refused = self.status is not None and 400 <= self.status < 500 and self.status not in (408, 409)
        made = self.of_create() if refused else None
        return made if isinstance(made, CreateRejected) else self.unreachable()

    def of_create(self) -> CreateRejected | CreateUncertain:
        """Make the error of a create call: rejected only where the provider certainly took nothing."""
        status = self.status
        if status is None:
            return CreateRejected(self.code, wait_s=RECONNECT_S) if self.unsent else CreateUncertain(self.code)
        if not 400 <= status < 500 or status in (408, 409):
            return CreateUncertain(self.code)
        # 404 and 405 say that this address creates no batches.
        if self.blocked or status in (404, 405):
            return CreateRejected(self.code, blocked=True)
        if status == 429 or self.words & _WAIT_WORDS:
            return CreateRejected(self.code, wait_s=RETRY_S if self.wait_s is None else self.wait_s)
        return CreateRejected(self.code, input_fault=True)


def fault_of(error: Exception) -> Fault:
    """Take the facts out of an SDK's or the transport's exception."""
    response = getattr(error, "response", None)
    if isinstance(response, httpx2.Response):
        return fault_of_response(response)
    cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
    if isinstance(cause, _UNSENT):
        return Fault(status=None, code="not_connected", unsent=True)
    if isinstance(cause, httpx2.TimeoutException):
        return Fault(status=None, code="timeout")
    if isinstance(cause, httpx2.HTTPError):
        return Fault(status=None, code="connection_lost")
    return Fault(status=None, code=type(error).__name__)


def fault_of_response(response: httpx2.Response) -> Fault:
    """Take the facts out of an HTTP answer that is an error."""
    status = response.status_code
    try:
        words = error_words(response.content)
    except (httpx2.HTTPError, httpx2.StreamError):
        words = []
    return Fault(
        status=status,
        code=words[0] if words else f"http_{status}",
        words=frozenset(words),
        wait_s=retry_after_s(response.headers),
    )


def attempt(do: Callable[[], T], errors: Errors) -> T | Fault:
    """Call, and return the fault of one of the known errors as a value."""
    try:
        return do()
    except errors as error:
        return fault_of(error)
    except (httpx2.HTTPError, NotAnObject) as error:
        return fault_of(error)


class NotAnObject(Exception):
    """An answer that should be a JSON object is something else, such as a proxy's page."""


class RawResponse(Protocol):
    """What ``with_raw_response`` returns, in any of the SDKs."""

    @property
    def http_response(self) -> httpx2.Response: ...


def document(raw: RawResponse) -> dict[str, Any]:
    """Return the JSON object of an answer.

    The SDKs' models are built without validation and turn a page of HTML into text, so the bytes are read here.
    """
    try:
        made = msgspec.json.decode(raw.http_response.content)
    except msgspec.DecodeError:
        made = None
    if not isinstance(made, dict):
        raise NotAnObject
    return made


class StreamedResponse(Protocol):
    """What ``with_streaming_response`` yields, in any of the SDKs."""

    def iter_bytes(self, chunk_size: int | None = None) -> Any: ...


def id_of(made: Mapping[str, Any]) -> str | None:
    """Return the id of what was made; None for an answer that names none."""
    found = made.get("id")
    return found if isinstance(found, str) and found else None


def first_ids(response: StreamedResponse, limit: int) -> list[str]:
    """Return up to `limit` custom ids of streamed result lines; the rest is not read."""
    found: list[str] = []
    for line in jsonl.split_lines(response.iter_bytes(jsonl.READ_BYTES)):
        custom_id = text_of((load_line(line) or {}).get("custom_id"))
        if custom_id is not None:
            found.append(custom_id)
        if len(found) >= limit:
            break
    return found


def save(response: StreamedResponse, path: Path) -> None:
    """Write a streamed answer to a file, in bounded memory."""
    with path.open("wb") as sink:
        for chunk in response.iter_bytes(1 << 20):
            sink.write(chunk)


MAX_PAGES = 1_000
"""Pages of a list that are read before it counts as endless."""


def pages(get: Callable[[str | None], dict[str, Any] | Fault]) -> Iterator[list[dict[str, Any]]]:
    """Yield the pages of a list, each entry once.

    Parameters
    ----------
    get
        Fetches the page after an id; None for the first.

    Raises
    ------
    Unreachable
        A page did not come or holds no list of things with ids, the list is endless, or it claims more and brings
        nothing new: nothing may be concluded from what such a list lacks.
    """
    cursor: str | None = None
    seen: set[str] = set()
    for _ in range(MAX_PAGES):
        page = get(cursor)
        if isinstance(page, Fault):
            raise page.unreachable()
        entries = page.get("data")
        if entries is None and page.get("has_more") is False:
            return  # how some gateways write an empty list
        if not isinstance(entries, list) or not all(id_of(mapping(entry)) for entry in entries):
            raise Unreachable("list_unreadable")  # a proxy's notice, say: by no means an empty list
        fresh = [entry for entry in entries if entry["id"] not in seen]
        if not fresh:
            if page.get("has_more") is True:
                raise Unreachable("list_repeats_itself")
            return
        seen.update(entry["id"] for entry in fresh)
        yield fresh
        # A server that leaves has_more out is asked until nothing new comes.
        if page.get("has_more") is False:
            return
        cursor = entries[-1]["id"]
    raise Unreachable("list_too_long")


def newer(
    found: Iterable[list[dict[str, Any]]],
    created_at: Callable[[dict[str, Any]], datetime],
    since: datetime,
) -> Iterator[dict[str, Any]]:
    """Yield the entries created at or after `since`; stop early only in a list that is plainly newest first."""
    for page in found:
        times = [created_at(entry) for entry in page]
        yield from (entry for entry, made in zip(page, times, strict=True) if made >= since)
        newest_first = times[0] > times[-1] and all(one >= other for one, other in pairwise(times))
        if newest_first and times[-1] < since:
            return


CONNECT_S = 30.0
"""How long a connection may take to be made where the SDK allows it as long as the whole call."""

_OF_ONE_CALL = frozenset({"host", "content-length", "connection", "accept-encoding", "idempotency-key"})


def server_of(post: Callable[[httpx2.Client], object], errors: Errors) -> Server:
    """Return where an SDK's client would send a call, with all its headers and its time-outs. Sends nothing.

    The SDK builds a whole request, from the user's environment and with credentials of whatever kind, and hands it to
    a transport that only looks at it. Parts of the body's own are left out.

    Parameters
    ----------
    post
        Makes the call through the HTTP client that it is given.

    Raises
    ------
    Unreachable
        The SDK could not get credentials.
    """
    seen: list[httpx2.Request] = []

    def look(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json={})

    with httpx2.Client(transport=httpx2.MockTransport(look)) as nowhere:
        made = attempt(lambda: post(nowhere), errors)
    if isinstance(made, Fault):
        raise made.unreachable()
    request = seen[-1]
    limits: Mapping[str, float | None] = request.extensions.get("timeout", {})
    timeout_s = limits.get("read") or 600.0
    return Server(
        url=str(request.url),
        headers={name: value for name, value in request.headers.items() if name.lower() not in _OF_ONE_CALL},
        timeout_s=timeout_s,
        connect_timeout_s=min(limits.get("connect") or timeout_s, CONNECT_S),
    )
