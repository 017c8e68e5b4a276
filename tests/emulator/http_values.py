"""Calls and replies as plain values, so that the two APIs know nothing of sockets."""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import IO, Any

from emulator.provider import Provider
from emulator.records import Caller

CHUNK = 1 << 18


@dataclass(frozen=True, kw_only=True)
class Call:
    """One HTTP call that found its route: `ids` are the parts of its path, `body` its bytes, spooled."""

    provider: Provider
    caller: Caller
    number: int
    ids: tuple[str, ...]
    query: Mapping[str, str]
    headers: Message
    body: tempfile.SpooledTemporaryFile[bytes]
    host: str

    def json(self) -> Any:
        """Return the body as JSON; raises ValueError where it is not."""
        self.body.seek(0)
        return json.loads(self.body.read() or b"{}")

    def integer(self, name: str, default: int, most: int) -> int:
        """Return a number of the query within 1 and `most`; raises ValueError outside."""
        value = int(self.query.get(name, default))
        if not 1 <= value <= most:
            raise ValueError(f"{name} must be between 1 and {most}")
        return value


@dataclass(frozen=True, kw_only=True)
class Reply:
    """An answer: JSON or bytes, or spans of a file on disk."""

    status: int = 200
    body: bytes = b""
    content_type: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)
    path: Path | None = None
    spans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, value: Any, status: int = 200, **headers: str) -> Reply:
        """Reply with JSON."""
        body = json.dumps(value, separators=(",", ":")).encode()
        return cls(status=status, body=body, headers={k.replace("_", "-"): v for k, v in headers.items()})

    @property
    def length(self) -> int:
        """The number of bytes of the body."""
        return len(self.body) if self.path is None else sum(end - start for start, end in self.spans)

    def chunks(self) -> Iterator[bytes]:
        """Yield the body in pieces of bounded size."""
        if self.path is None:
            yield self.body
            return
        with self.path.open("rb") as file:
            for start, end in self.spans:
                file.seek(start)
                while start < end:
                    piece = file.read(min(CHUNK, end - start))
                    start += len(piece)
                    yield piece


@dataclass(frozen=True, kw_only=True)
class Route:
    """One endpoint: method, path as a pattern of its ids, name used by HTTP faults, and what answers it."""

    method: str
    pattern: str
    endpoint: str
    answer: Callable[[Call], Reply]


class HttpError(Exception):
    """A call that the API refuses; the API's own table turns it into its envelope."""

    def __init__(self, status: int, message: str, *, code: str | None = None, parameter: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.parameter = status, message, code, parameter


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part of a multipart body: its name, its file name, and where its content lies."""

    name: str
    filename: str | None
    start: int
    end: int


def multipart(file: tempfile.SpooledTemporaryFile[bytes], content_type: str) -> list[Part]:
    """Return the parts of a spooled multipart/form-data body without copying their content."""
    header = Message()
    header["content-type"] = content_type
    boundary = header.get_boundary()
    if header.get_content_type() != "multipart/form-data" or not boundary:
        raise HttpError(400, "the body must be multipart/form-data")
    mark = b"--" + boundary.encode()
    parts: list[Part] = []
    with viewed(file) as view:
        at = view.find(mark)
        while at >= 0 and view[at + len(mark) : at + len(mark) + 2] != b"--":
            head_end = view.find(b"\r\n\r\n", at)
            following = view.find(b"\r\n" + mark, head_end)
            if head_end < 0 or following < 0:
                raise HttpError(400, "the multipart body is cut off")
            head = Message()
            for line in view[at + len(mark) + 2 : head_end].decode("utf-8", "replace").split("\r\n"):
                name, _, value = line.partition(":")
                head[name.strip()] = value.strip()
            named = head.get_param("name", "", "content-disposition")
            parts.append(Part(name=str(named), filename=head.get_filename(), start=head_end + 4, end=following))
            at = following + 2
    return parts


@contextmanager
def viewed(file: tempfile.SpooledTemporaryFile[bytes]) -> Iterator[bytes | mmap.mmap]:
    """Give the spooled bytes as one buffer, mapped where they lie on disk."""
    file.seek(0)
    if not getattr(file, "_rolled", False):
        yield file.read()
        return
    file.flush()
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        yield view


def copy_span(file: tempfile.SpooledTemporaryFile[bytes], start: int, end: int, into: IO[bytes]) -> None:
    """Copy a span of the spooled bytes in pieces of bounded size."""
    file.seek(start)
    while start < end:
        piece = file.read(min(CHUNK, end - start))
        start += len(piece)
        into.write(piece)
