"""Many synchronous calls at once, over connections that stay open, each made once, and a line of each as it ends.

The calls run in an event loop on a thread of its own, so that they go on while the caller writes down what came, and
so that the caller may itself be inside a loop. What is begun and not yet taken up by the caller never exceeds the
window: memory does not grow with the rows, and of a killed process it is known how much it may have asked.
"""

from __future__ import annotations

import asyncio
import io
import logging
import queue
import ssl
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec

from lotwise.errors import Unreachable
from lotwise.executors.live import Answer, error_words, one_line_of_json, retry_after_s
from lotwise.executors.pace import Pace
from lotwise.executors.reading import ANSWER_LOST, BLOCKED_WORDS, NOT_SENT

log = logging.getLogger("lotwise")

TRIES = 5
"""How often one request is refused with 429, which is not billed, before its line says so and it waits with others."""

AWAY = 8
"""Calls in a row that find nobody there before the work is given up for now."""

KEEP_S = 4.0
"""How long an unused connection is kept. Common servers close theirs after 5 s, and a call that is sent into a closing
connection may have been charged for nothing."""

RENEW_S = 60.0
"""How often the address and its credentials are asked for anew: some tokens live for minutes."""

LOOK_UP_S = 0.5
"""How long an interrupt from the keyboard can go unnoticed where waiting for a lock cannot be interrupted."""

LARGE_BODY = 1 << 20

_BUSY = frozenset({429, 503, 529})
_NO_ANSWER = frozenset({502, 504, 520, 524})
"""A gateway has no answer of the server behind it (RFC 9110 sections 15.6.3 and 15.6.5; the last two are a common
network's own), which may have worked on the request all the same: unless the answer names an error in the provider's
own words, and so is the server's."""
_UNSENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
    aiohttp.InvalidURL,
)
"""The connection was never made, so not a byte of the request left."""

Work = Iterator[tuple[str, bytes]]
"""Pairs of custom id and body."""


@dataclass(frozen=True, kw_only=True)
class Server:
    """Where calls go, and with which headers. `repr` shows neither, since a header may be a key."""

    url: str
    headers: Mapping[str, str]
    timeout_s: float
    connect_timeout_s: float

    def __repr__(self) -> str:
        return "Server(...)"


def answers(
    work: Work,
    *,
    server: Callable[[], Server],
    line: Callable[[Answer], bytes],
    pace: Pace,
    window: int,
    max_tokens: int = 0,
) -> Iterator[list[bytes]]:
    """Make a call for each piece of work and yield the lines in lists as they finish, in any order.

    Parameters
    ----------
    work
        Custom ids and bodies; begun in this order. Read in another thread, a few pieces ahead of what is begun.
    server
        Says where to call; asked again once a minute.
    line
        Makes the line of an answer.
    pace
        Decides how many calls are in flight.
    window
        Pieces begun whose lines the caller has not come back from: coming for the next list says that the one before
        is safe.
    max_tokens
        What an answer may be long, for a limit of tokens a minute.

    Raises
    ------
    Unreachable
        Nobody is there: raised after every call in flight has ended and its line was yielded, so that what has no line
        was not sent.

    Notes
    -----
    A call is made once, and never again after any part of it may have been processed. A refusal by 429 is not billed
    and is asked again here, up to `TRIES` times, when the server wants it. Closing the iterator ends the work: calls in
    flight are broken off.
    """
    shift = _Shift(work, server, line, pace, window, max_tokens)
    shift.thread.start()
    try:
        while lines := shift.take():
            yield lines
            shift.acknowledge(len(lines))
    finally:
        shift.close()
    if shift.failure is not None:
        raise shift.failure


def look_up(server: Server) -> tuple[int, bytes] | None:
    """Get an address once and return status and body; None where nobody answers."""

    async def get() -> tuple[int, bytes] | None:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with (
                _session(server) as session,
                session.get(server.url, headers=server.headers, proxy=_proxy(server.url)) as got,
            ):
                return got.status, await got.read()
        return None

    # A thread of its own: the caller's may run a loop already.
    with ThreadPoolExecutor(1, thread_name_prefix="lotwise-look-up") as beside:
        return beside.submit(asyncio.run, get()).result()


@dataclass(slots=True)
class _Piece:
    """One request on its way: how often it was refused, and what was counted for it."""

    custom_id: str
    body: bytes
    tries: int = 0
    epoch: int = 0
    beside: int = 0  # calls in flight when it began
    tokens: float = 0.0


class _Usage(msgspec.Struct, gc=False):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0


class _Used(msgspec.Struct, gc=False):
    usage: _Usage | None = None


_used = msgspec.json.Decoder(_Used).decode


class _Shift:
    """The calls of one piece of work, from the first to the last."""

    def __init__(
        self,
        work: Work,
        server: Callable[[], Server],
        line: Callable[[Answer], bytes],
        pace: Pace,
        window: int,
        max_tokens: int,
    ) -> None:
        self._work, self._server_of, self._line, self._pace = work, server, line, pace
        self._window, self._max_tokens = window, max_tokens
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._again: deque[_Piece] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._n_begun = self._n_safe = self._n_unsent = 0
        self._n_open = 0  # calls without an answer: a task that has one may still be there for a moment
        self._full = False
        self._exhausted = self._away = self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._started = threading.Event()
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name="lotwise-fanout", daemon=True)

    # --- the caller's side -------------------------------------------------------------------------------------

    def take(self) -> list[bytes]:
        """Wait for lines and return all that there are; none when the work is over."""
        while True:
            try:
                first = self._lines.get(timeout=LOOK_UP_S)
                break
            except queue.Empty:
                continue
        taken: list[bytes] = []
        while first is not None:
            taken.append(first)
            try:
                first = self._lines.get_nowait()
            except queue.Empty:
                return taken
        if taken:
            self._lines.put(None)  # for the next time
        return taken

    def acknowledge(self, n: int) -> None:
        """Say that so many lines are safe."""
        self._tell(lambda: self._safe(n))

    def close(self) -> None:
        """End the work, and wait until nothing of it is left."""
        self._tell(self._break_off)
        self.thread.join()

    def _tell(self, do: Callable[[], None]) -> None:
        self._started.wait()
        if self.failure is not None:
            return  # the loop is over, or never came to be
        with suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(do)

    # --- the loop's side ---------------------------------------------------------------------------------------

    _loop: asyncio.AbstractEventLoop
    _session: aiohttp.ClientSession
    _server: Server
    _proxy: str | None

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as failure:  # raised on the caller's side
            self.failure = failure
        finally:
            self._started.set()
            self._lines.put(None)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._server = self._server_of()
        self._proxy = _proxy(self._server.url)
        async with _session(self._server) as self._session:
            renewing = asyncio.create_task(self._renew())
            self._started.set()
            try:
                self._fill()
                await self._over
            finally:
                left = [renewing, *self._in_flight]
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)
        if self._away and not self._closed:
            raise Unreachable("not_connected")

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            try:
                # A token may have to be fetched, which may take a while.
                self._server = await asyncio.to_thread(self._server_of)
            except Exception as failure:  # the old one may still hold, and the next fetch may succeed
                log.warning("the server's credentials were not renewed: %s", type(failure).__name__)

    def _safe(self, n: int) -> None:
        self._n_safe += n
        self._fill()

    def _break_off(self) -> None:
        self._closed = True
        self._end()

    def _end(self, failure: BaseException | None = None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._over.done():
            return
        if failure is None:
            self._over.set_result(None)
        else:
            self._over.set_exception(failure)

    def _fill(self) -> None:
        """Begin what may be begun now; see to it that somebody comes back for the rest."""
        try:
            while not self._over.done() and self._n_open < self._pace.limit.now:
                wait_s = self._pace.wait_s(self._loop.time())
                if wait_s > 0:
                    self._come_back_in(wait_s)
                    break
                piece = self._next()
                if piece is None:
                    break
                self._begin(piece)
            self._full = self._n_open >= self._pace.limit.now
            if self._nothing_left():
                self._end()
        except BaseException as failure:
            self._end(failure)

    def _next(self) -> _Piece | None:
        if self._away:
            return None
        if self._again:
            return self._again.popleft()
        if self._exhausted or self._n_begun - self._n_safe >= self._window:
            return None
        got = next(self._work, None)
        if got is None:
            self._exhausted = True
            return None
        self._n_begun += 1
        return _Piece(*got)

    def _begin(self, piece: _Piece) -> None:
        piece.epoch, piece.beside = self._pace.limit.epoch, self._n_open
        # A token is seldom less than four bytes of English; what it really was is put right by the answer.
        piece.tokens = len(piece.body) / 4 + self._max_tokens
        self._pace.began(piece.tokens)
        self._n_open += 1
        task = self._loop.create_task(self._call(piece))
        self._in_flight.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if task.cancelled():
            return
        if (failure := task.exception()) is not None:
            self._end(failure)
        else:
            self._fill()

    def _come_back_in(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._fill)

    def _nothing_left(self) -> bool:
        """Whether nothing is in flight and nothing may follow. Given up, what was refused is told as it stands."""
        if self._in_flight:
            return False
        if self._away:
            while self._again:
                self._deliver(Answer(custom_id=self._again.popleft().custom_id, failure=NOT_SENT))
            return True
        return self._exhausted and not self._again

    async def _call(self, piece: _Piece) -> None:
        """Make one call, once, and see what it says of the server."""
        custom_id, server = piece.custom_id, self._server
        wait_s = None
        try:
            async with self._session.post(
                server.url,
                data=piece.body if len(piece.body) < LARGE_BODY else io.BytesIO(piece.body),
                headers=server.headers,
                allow_redirects=False,
                proxy=self._proxy,
            ) as got:
                body = await got.read()
        except _UNSENT:
            answer = Answer(custom_id=custom_id, failure=NOT_SENT)
        except (aiohttp.ClientError, TimeoutError, OSError):
            answer = Answer(custom_id=custom_id, failure=ANSWER_LOST)
        else:
            headers = got.headers
            request_id = headers.get("x-request-id") or headers.get("request-id")
            told = one_line_of_json(body)
            answer = Answer(custom_id=custom_id, status=got.status, request_id=request_id, body=told)
            if got.status in _NO_ANSWER and not error_words(body):
                answer = Answer(custom_id=custom_id, failure=ANSWER_LOST)
            elif got.status in _BUSY:
                wait_s = retry_after_s(headers)
        self._n_open -= 1
        if self._refused_unbilled(piece, answer, wait_s):
            self._again.append(piece)
        else:
            self._deliver(answer)

    def _refused_unbilled(self, piece: _Piece, answer: Answer, wait_s: float | None) -> bool:
        """Tell the pace how a call went, and say whether it is to be asked again here."""
        # It was too much for what was in flight when it was sent: by now, on a busy machine, half may have ended.
        pace, moment, others = self._pace, self._loop.time(), piece.beside
        self._n_unsent = self._n_unsent + 1 if answer.failure == NOT_SENT else 0
        self._away = self._away or self._n_unsent >= min(self._window, AWAY)
        if answer.failure is not None:
            pace.limit.overloaded(moment, began_in=piece.epoch, in_flight=others)
            return False
        if answer.status not in _BUSY:
            pace.answered(moment, full=self._full)
            if pace.counts_tokens:
                pace.used(_tokens_of(answer.body or b"", piece.tokens), piece.tokens)
            return False
        if answer.status == 429 and BLOCKED_WORDS.intersection(error_words(answer.body or b"")):
            return False  # no credit, which waiting does not mend
        pace.used(0, piece.tokens)
        pace.refused(moment, began_in=piece.epoch, in_flight=others, wait_s=wait_s)
        piece.tries += 1
        return answer.status == 429 and piece.tries < TRIES

    def _deliver(self, answer: Answer) -> None:
        self._lines.put(self._line(answer))


def _tokens_of(body: bytes, guessed: float) -> float:
    """Return the tokens that an answer says it used; the guess where it says nothing."""
    try:
        usage = _used(body).usage
    except msgspec.DecodeError:
        return guessed
    if usage is None:
        return guessed
    return usage.prompt_tokens + usage.completion_tokens + usage.input_tokens + usage.output_tokens


# --- connections --------------------------------------------------------------------------------------------------


def _session(server: Server) -> aiohttp.ClientSession:
    secure = urlsplit(server.url).scheme == "https"
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_S, ssl=_trusted() if secure else True),
        timeout=aiohttp.ClientTimeout(total=server.timeout_s, sock_connect=server.connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def _trusted() -> ssl.SSLContext:
    """Trust what the system trusts, and the list that the SDKs bring, where it is there: some systems have none."""
    context = ssl.create_default_context()
    with suppress(ImportError):
        context.load_verify_locations(import_module("certifi").where())
    return context


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for an address, looked up once and not for every call.

    One that is not spoken to in HTTP cannot be used, and is told.
    """
    parts = urlsplit(url)
    if parts.hostname is None or proxy_bypass(parts.hostname):
        return None
    named = getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if proxy is not None and (way := urlsplit(proxy).scheme) not in ("http", "https"):
        log.warning("the environment's proxy is passed by: it is a %s proxy, and calls know how to use HTTP ones", way)
        return None
    return proxy
