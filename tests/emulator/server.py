"""The emulator's HTTP server: routes, authentication, HTTP faults, and the endpoints for tests.

Loopback only, HTTP/1.1 with keep-alive, one thread a connection.  A call's body is always read whole before
it is answered, so that a refusal reaches the client instead of a broken pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from emulator import anthropic_api, openai_api
from emulator.faults import Faults, HttpFault
from emulator.http_values import CHUNK, Call, HttpError, Reply, Route
from emulator.provider import Provider

IN_MEMORY = 4 << 20
BEFORE = ("reject", "delay", "kill_before")


class Server(ThreadingHTTPServer):
    """Serves one provider until it is killed or its keeper goes away."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, provider: Provider, port: int) -> None:
        self.provider = provider
        self._lock = threading.Lock()
        self.routes = {
            api: [(route, re.compile(route.pattern)) for route in api.ROUTES] for api in (openai_api, anthropic_api)
        }
        self.check(provider.faults)
        super().__init__(("127.0.0.1", port), Handler)

    def check(self, faults: Faults) -> None:
        """Refuse HTTP faults that can never happen: a misspelt endpoint makes a test that cannot fail."""
        endpoints = sorted(route.endpoint for routes in self.routes.values() for route, _ in routes)
        for fault in faults.http:
            if not any(fault.meets(endpoint) for endpoint in endpoints):
                raise ValueError(f"unknown endpoint {fault.endpoint!r}; known: {', '.join(endpoints)}")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection in one line: clients that go away are part of the tests."""
        problem = sys.exc_info()[1]
        if isinstance(problem, ConnectionError):
            print(f"connection lost: {problem!r}", file=sys.stderr, flush=True)
        else:
            super().handle_error(request, client_address)

    def hits(self, endpoint: str) -> list[HttpFault]:
        """Count one call of an endpoint, and return the faults that hit it."""
        provider = self.provider
        with self._lock, provider.state.transaction():
            provider.state.next("call:" + endpoint)
            return [
                fault
                for n, fault in enumerate(provider.faults.http)
                if fault.meets(endpoint) and fault.hits(provider.faults.seed, provider.state.next(f"http:{n}"))
            ]


class Handler(BaseHTTPRequestHandler):
    """Answers the calls of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = CHUNK
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Keep silent: what was called is counted by endpoint, and bodies are nobody's business."""

    def do_GET(self) -> None:
        """Answer a GET."""
        self._answer()

    do_POST = do_DELETE = do_GET

    def finish(self) -> None:
        """Close the connection, also one that a fault has already reset."""
        with contextlib.suppress(OSError, ValueError):
            super().finish()

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY, dir=str(self.server.provider.state.folder)) as body:
            self._receive(body)
            if url.path.startswith("/_emulator/"):
                self._send(_admin(self.server, self.command, url.path.removeprefix("/_emulator/"), query, body))
            else:
                self._serve(url.path, query, body)

    def _receive(self, body: tempfile.SpooledTemporaryFile[bytes]) -> None:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body.write(self.rfile.read(size))
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
            return
        left = int(self.headers.get("content-length", 0))
        while left:
            piece = self.rfile.read(min(CHUNK, left))
            if not piece:
                raise ConnectionResetError("the client stopped in the middle of its body")
            body.write(piece)
            left -= len(piece)

    def _api(self, path: str) -> ModuleType:
        spoken = self.headers.get("anthropic-version") or self.headers.get("x-api-key")
        return anthropic_api if spoken or path.startswith("/v1/messages") else openai_api

    def _serve(self, path: str, query: dict[str, str], body: tempfile.SpooledTemporaryFile[bytes]) -> None:
        api, provider = self._api(path), self.server.provider
        number = provider.state.next("call")
        found = [
            (route, match)
            for route, pattern in self.server.routes[api]
            if (match := pattern.fullmatch(path)) and route.method == self.command
        ]
        if not found:
            self._send(self._refusal(api, HttpError(404, f"Invalid URL ({self.command} {path})"), number))
            return
        route, match = found[0]
        faults = self.server.hits(route.endpoint)
        for fault in faults:
            if fault.action == "kill_before":
                _die()
            elif fault.action == "delay":
                self._wait(fault.seconds)
            elif fault.action == "reject":
                self._send(self._faulty(api, fault, number))
                return
        ids = tuple(unquote(part) for part in match.groups())
        self._send(self._reply(api, route, ids, query, body, number), faults, api, number)

    def _reply(
        self,
        api: ModuleType,
        route: Route,
        ids: tuple[str, ...],
        query: dict[str, str],
        body: tempfile.SpooledTemporaryFile[bytes],
        number: int,
    ) -> Reply:
        provider = self.server.provider
        try:
            caller = provider.conditions.caller(self._key(api))
            host = self.headers.get("host", "127.0.0.1")
            call = Call(
                provider=provider,
                caller=caller,
                number=number,
                ids=ids,
                query=query,
                headers=self.headers,
                body=body,
                host=host,
            )
            reply = route.answer(call)
            told = caller.project if provider.faults.account_headers else None
            reply.headers.update(api.headers(number, told))
            return reply
        except HttpError as problem:
            return self._refusal(api, problem, number)
        except ValueError as problem:
            return self._refusal(api, HttpError(400, f"Invalid request: {problem}"), number)
        except Exception:
            traceback.print_exc()
            return self._refusal(api, HttpError(500, "the emulator itself failed; see its log"), number)

    def _key(self, api: ModuleType) -> str:
        key = self.headers.get("authorization", "").removeprefix("Bearer ").strip()
        if api is anthropic_api:
            key = key or self.headers.get("x-api-key", "")
            if self.headers.get("anthropic-version") not in anthropic_api.VERSIONS:
                raise HttpError(400, "anthropic-version: header is required")
        known = self.server.provider.faults.keys
        if not key or (known is not None and key not in known):
            raise HttpError(
                401, "Incorrect API key provided.", code=None if api is anthropic_api else "invalid_api_key"
            )
        return key

    def _refusal(self, api: ModuleType, problem: HttpError, number: int) -> Reply:
        if api is anthropic_api:
            names = anthropic_api.headers(number, None)
            envelope = anthropic_api.error(problem.status, problem.message, problem.code, names["request-id"])
        else:
            names = openai_api.headers(number, None)
            envelope = openai_api.error(problem.status, problem.message, problem.code, problem.parameter)
        return Reply(status=problem.status, body=json.dumps(envelope).encode(), headers=names)

    def _faulty(self, api: ModuleType, fault: HttpFault, number: int) -> Reply:
        if fault.page:
            return Reply(status=fault.status, body=f"<h1>{fault.status}</h1>".encode(), content_type="text/html")
        reply = self._refusal(api, HttpError(fault.status, f"emulated status {fault.status}", code=fault.code), number)
        if fault.retry_after_s is not None:
            reply.headers["retry-after"] = f"{fault.retry_after_s:g}"
        return reply

    def _send(
        self,
        reply: Reply,
        faults: list[HttpFault] | None = None,
        api: ModuleType = openai_api,
        number: int = 0,
    ) -> None:
        cut: int | None = None
        then: Callable[[], None] | None = None
        for fault in faults or ():
            if fault.action == "delay_reply":
                self._wait(fault.seconds)
            elif fault.action == "reply":
                reply = self._faulty(api, fault, number)
            elif fault.action in ("drop", "reset"):
                if fault.action == "drop":
                    self._wait(fault.seconds)
                self._reset()
                return
            elif fault.action in ("cut", "kill"):
                cut, then = fault.after_bytes, _die if fault.action == "kill" else self._hang_up
        if cut == 0 and then is _die:
            _die()
        self.send_response_only(reply.status)
        provider = self.server.provider
        self.send_header("date", formatdate(provider.conditions.shown(provider.conditions.now()), usegmt=True))
        self.send_header("content-type", reply.content_type)
        self.send_header("content-length", str(reply.length))
        for name, value in reply.headers.items():
            self.send_header(name, value)
        self.end_headers()
        for piece in reply.chunks():
            if cut is not None and len(piece) > cut:
                self.wfile.write(piece[:cut])
                break
            self.wfile.write(piece)
            if cut is not None:
                cut -= len(piece)
        if then is not None:
            self.wfile.flush()
            then()

    def _wait(self, seconds: float) -> None:
        """Wait in real time, or until the client has gone."""
        select.select([self.connection], [], [], seconds)

    def _hang_up(self) -> None:
        """Close the connection after what was sent, though it is less than was promised."""
        self.close_connection = True

    def _reset(self) -> None:
        """Reset the connection: no answer, no polite end."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _admin(
    server: Server, method: str, name: str, query: dict[str, str], body: tempfile.SpooledTemporaryFile[bytes]
) -> Reply:
    """Answer an endpoint for tests."""
    provider = server.provider
    body.seek(0)
    value = json.loads(body.read() or b"{}")
    try:
        if (method, name) == ("POST", "faults"):
            server.check(provider.faults.changed(value))
            return Reply.of(provider.change_faults(value).to_json())
        if (method, name) == ("GET", "faults"):
            return Reply.of(provider.faults.to_json())
        if (method, name) == ("POST", "clock"):
            now = provider.move_clock(advance_s=value.get("advance_s", 0.0), speed=value.get("speed"))
            return Reply.of({"now": now})
        if (method, name) == ("GET", "clock"):
            return Reply.of({"now": provider.conditions.now(), "started_at": provider.conditions.started_at})
        if (method, name) == ("GET", "bill"):
            return Reply.of(list(provider.bill()))
        if (method, name) == ("GET", "bill/summary"):
            return Reply.of(provider.bill_summary())
        if (method, name) == ("GET", "truth"):
            return Reply.of(provider.truth())
        if (method, name) == ("GET", "calls"):
            rows = provider.state.rows("SELECT substr(name, 6), n FROM counter WHERE name LIKE 'call:%'")
            return Reply.of({row[0]: row[1] for row in rows})
    except (ValueError, TypeError) as problem:
        return Reply.of({"error": str(problem)}, 400)
    return Reply.of({"error": f"no such endpoint: {method} {name}"}, 404)
