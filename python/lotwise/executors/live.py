"""Synchronous calls, a bounded number at once, each answer one line in the envelope of the batch output.

The answer is embedded byte for byte, so that one reader serves both. A call is made once: an SDK's own retry is off,
since a call that was answered too late was paid for. What failed is a line as well, with the code that says how.
"""

from __future__ import annotations

import io
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TypeVar

import httpx2
import msgspec
import polars as pl

from lotwise.errors import Unreachable
from lotwise.executors import encode
from lotwise.executors.reading import ANSWER_LOST, NOT_SENT
from lotwise.executors.sdk import Errors, Fault, attempt, fault_of_response

T = TypeVar("T")

MAX_HOLD_S = 60.0
"""The longest time that a ``Retry-After`` holds back the calls that follow."""

_HOLDING = frozenset({429, 503, 529})


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one call brought: a status and a body that is JSON, or a word that says what happened instead."""

    custom_id: str
    status: int | None = None
    request_id: str | None = None
    body: bytes | None = None
    failure: str | None = None


@dataclass
class Pace:
    """Holds back new calls after the provider asked to wait, and counts calls that did not reach it in a row."""

    window: int
    _until: float = 0.0
    _unsent: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _closed: threading.Event = field(default_factory=threading.Event)

    def wait(self) -> None:
        """Wait until calls may go out again, or until the work is closed."""
        while (left := self._until - time.monotonic()) > 0 and not self._closed.wait(left):
            pass

    def saw(self, answer: Answer, wait_s: float | None) -> None:
        """Take notice of one answer."""
        with self._lock:
            self._unsent = self._unsent + 1 if answer.failure == NOT_SENT else 0
            if answer.status in _HOLDING and wait_s:
                self._until = max(self._until, time.monotonic() + min(wait_s, MAX_HOLD_S))

    @property
    def away(self) -> bool:
        """True when as many calls in a row as are in flight at once found nobody there."""
        return self._unsent >= self.window

    def close(self) -> None:
        """Let waiting calls go, to end."""
        self._closed.set()

    @property
    def closed(self) -> bool:
        """True after `close`."""
        return self._closed.is_set()


def in_window(work: Iterable[T], call: Callable[[T], bytes], pace: Pace) -> Iterator[list[bytes]]:
    """Call for each piece of work, at most ``pace.window`` at once, and yield the lines as they finish.

    Raises
    ------
    Unreachable
        Nobody is there: raised after every call in flight has ended and its line was yielded, so that what has no line
        was not sent.
    """
    pool = ThreadPoolExecutor(pace.window, thread_name_prefix="lotwise-live")
    pending: set[Future[bytes]] = set()
    try:
        for piece in work:
            pending.add(pool.submit(call, piece))
            if len(pending) >= pace.window:
                done, pending = wait(pending, return_when=FIRST_COMPLETED)
                yield [future.result() for future in done]
            if pace.away:
                break
        while pending:
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            yield [future.result() for future in done]
        if pace.away:
            raise Unreachable("not_connected")
    finally:
        pace.close()
        # A call in flight cannot be taken back; it ends by itself, and its line is lost with the closed iterator.
        pool.shutdown(wait=False, cancel_futures=True)


def ask(
    custom_id: str,
    body: bytes,
    post: Callable[[io.BytesIO], httpx2.Response],
    errors: Errors,
    pace: Pace,
) -> Answer:
    """Make one call, once.

    Notes
    -----
    The body goes as a stream: an SDK that logs its requests at debug level would write bytes out in full.
    """
    pace.wait()
    if pace.closed:
        return Answer(custom_id=custom_id, failure=NOT_SENT)

    def send() -> httpx2.Response:
        try:
            return post(io.BytesIO(body))
        except errors as error:
            # An HTTP error is an answer too, and its body is kept as it is.
            response = getattr(error, "response", None)
            if not isinstance(response, httpx2.Response):
                raise
            return response

    got = attempt(send, errors)
    if isinstance(got, Fault):
        answer = Answer(custom_id=custom_id, failure=NOT_SENT if got.unsent else ANSWER_LOST)
        pace.saw(answer, None)
        return answer
    request_id = got.headers.get("x-request-id") or got.headers.get("request-id")
    answer = Answer(
        custom_id=custom_id, status=got.status_code, request_id=request_id, body=one_line_of_json(got.content)
    )
    pace.saw(answer, fault_of_response(got).wait_s if got.status_code in _HOLDING else None)
    return answer


def one_line_of_json(body: bytes) -> bytes:
    """Return a body that can stand inside a line: itself if it is JSON, else a JSON string of its text.

    A line break in JSON can only stand between tokens, so a space says the same.
    """
    try:
        msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError:
        return json.dumps(body.decode("utf-8", "replace")).encode()
    return body.replace(b"\r", b" ").replace(b"\n", b" ") if b"\n" in body or b"\r" in body else body


def bodies(requests: pl.DataFrame, parts_for: encode.PartsFor, max_tokens: int) -> Iterator[tuple[str, bytes]]:
    """Yield (custom id, body) of each request, the bytes equal to what a batch would carry."""
    for part in encode.lines(requests, parts_for, max_tokens):
        for row_id, line in part.iter_rows():
            yield row_id, line.encode()
