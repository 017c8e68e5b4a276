"""A chat completions server on loopback that is busy in ways that can be set, in a process of its own.

    python tests/busy_server.py '{"latency_s": 0.05, "most": 64}'

It refuses, queues, lags and hangs up, counts what it was asked, and keeps an account of what it answered: a call that
it worked on is charged, whether or not its answer arrives. It prints its port, and ends with its starter's stdin.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

PAGE = b"<!doctype html><title>Not what you came for</title>"


@dataclass(kw_only=True)
class Manners:
    """What the server does.

    Attributes
    ----------
    latency_s
        How long it works on a call.
    most
        Calls that it works on at once before it refuses with 429.
    retry_after_s
        The wait that it asks for when it refuses.
    refuse
        Further calls, by ordinal from 0, that are refused with `status`.
    lose
        Calls by ordinal that it works on and whose connection it then closes.
    key
        The key without which it answers 401.
    models
        The names that it lists; others are not found. None for a server that lists none.
    owned_by
        Who made the models, in that list.
    pages
        Whether it answers 200 and a web page to all that is asked, as other programs do.
    """

    latency_s: float = 0.0
    most: int | None = None
    retry_after_s: float | None = None
    refuse: list[int] = field(default_factory=list)
    status: int = 429
    lose: list[int] = field(default_factory=list)
    key: str | None = None
    models: list[str] | None = None
    owned_by: str = "busy"
    pages: bool = False


@dataclass
class Account:
    """What the server did."""

    n_calls: int = 0
    n_refused: int = 0
    n_connections: int = 0
    charges: Counter[str] = field(default_factory=Counter)
    """Calls that it worked on, by the last message."""
    models: Counter[str] = field(default_factory=Counter)
    in_flight: list[int] = field(default_factory=list)
    """Calls in work, at each that was taken."""
    waits: list[float] = field(default_factory=list)
    """Seconds from a refusal to the next call."""
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""


class _Server:
    def __init__(self, manners: Manners) -> None:
        self.manners, self.account = manners, Account()
        self.busy = 0
        self.refused_at: float | None = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.account.n_connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                first, *lines = head.split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                reply = await self.reply(first.split(" ")[1], headers, body)
                if reply is None:
                    break
                status, more, told = reply
                text = PAGE if self.manners.pages and told is not vars(self.account) else json.dumps(told).encode()
                told_of = f"content-type: application/json\r\ncontent-length: {len(text)}\r\n{more}\r\n"
                writer.write(f"HTTP/1.1 {status} -\r\n{told_of}".encode() + text)
                await writer.drain()
        writer.close()

    async def reply(self, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, Any] | None:
        manners, account = self.manners, self.account
        if path == "/account":
            return 200, "", vars(account)
        if manners.key is not None and headers.get("authorization") != f"Bearer {manners.key}":
            return 401, "", {"error": {"message": "no", "code": "invalid_api_key"}}
        if path.endswith("/models"):
            if manners.models is None:
                return 404, "", {"detail": "Not Found"}
            return 200, "", {"data": [{"id": name, "owned_by": manners.owned_by} for name in manners.models]}
        n, now = account.n_calls, time.monotonic()
        account.n_calls += 1
        account.headers, account.body = headers, body.decode()
        if self.refused_at is not None:
            account.waits.append(now - self.refused_at)
            self.refused_at = None
        if n in manners.refuse or (manners.most is not None and self.busy >= manners.most):
            account.n_refused += 1
            self.refused_at = now
            wait = "" if manners.retry_after_s is None else f"retry-after: {manners.retry_after_s}\r\n"
            return manners.status, wait, {"error": {"message": "busy", "code": "rate_limit_exceeded"}}
        self.busy += 1
        account.in_flight.append(self.busy)
        asked = json.loads(body)
        said = asked["messages"][-1]["content"]
        account.charges[said] += 1
        account.models[asked["model"]] += 1
        await asyncio.sleep(manners.latency_s)
        self.busy -= 1
        if n in manners.lose:
            return None
        usage = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": said}}
        return 200, "", {"id": f"c{n}", "model": "served-7b-0425", "choices": [choice], "usage": usage}


async def _main(manners: Manners) -> None:
    made = _Server(manners)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0, backlog=1024, limit=1 << 22)
    print(server.sockets[0].getsockname()[1], flush=True)
    async with server:
        await asyncio.to_thread(sys.stdin.read)


class Busy:
    """The handle of a running server."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def account(self) -> dict[str, Any]:
        with urlopen(f"http://127.0.0.1:{self.port}/account") as got:
            told: dict[str, Any] = json.loads(got.read())
        return told


@contextlib.contextmanager
def busy(**manners: Any) -> Iterator[Busy]:
    """Start a server with these manners, and end it afterwards."""
    command = [sys.executable, str(Path(__file__)), json.dumps(asdict(Manners(**manners)))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            yield Busy(int(process.stdout.readline()))
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(_main(Manners(**json.loads(sys.argv[1]))))
