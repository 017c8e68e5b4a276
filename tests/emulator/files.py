"""The files of the emulated provider: uploads and results, their retention, and downloads that tear."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from sqlite3 import Row

from emulator.openai_wire import ident
from emulator.records import Caller
from emulator.state import State


class Files:
    """The files under one state folder."""

    def __init__(self, state: State) -> None:
        self._state = state

    def add(
        self,
        *,
        project: str,
        filename: str,
        purpose: str,
        path: Path,
        size: int,
        created_at: float,
        expires_at: float,
        expiry_shown: bool,
        torn_downloads: int = 0,
    ) -> str:
        """Record a file whose bytes lie under the state folder, and return its id."""
        with self._state.transaction():
            ordinal = self._state.next("file")
            file_id = ident("file-", "file", ordinal)
            self._state.insert(
                "file",
                {
                    "ordinal": ordinal,
                    "id": file_id,
                    "project": project,
                    "filename": filename,
                    "purpose": purpose,
                    "bytes": size,
                    "created_at": created_at,
                    "expires_at": expires_at,
                    "expiry_shown": expiry_shown,
                    "path": str(path),
                    "torn_downloads": torn_downloads,
                },
            )
        return file_id

    def find(self, caller: Caller, file_id: str, now: float) -> Row | None:
        """Return a file of the caller's project that is neither deleted nor past its retention."""
        return self._state.row(
            "SELECT * FROM file WHERE id = ? AND project = ? AND deleted = 0 AND expires_at > ?",
            (file_id, caller.project, now),
        )

    def spans_to_send(self, file: Row) -> list[tuple[int, int]]:
        """Return the byte spans of one download: the whole file, or without half a line where it is torn."""
        if not file["torn_downloads"] or not file["bytes"]:
            return [(0, file["bytes"])]
        self._state.execute("UPDATE file SET torn_downloads = torn_downloads - 1 WHERE id = ?", (file["id"],))
        with mapped(self._state.folder / file["path"]) as read:
            content = read(0, file["bytes"])
        end = content.index(b"\n", file["bytes"] // 2)
        start = content.rfind(b"\n", 0, end) + 1
        return [(0, start + (end - start) // 2), (end, file["bytes"])]


@contextmanager
def mapped(path: Path) -> Iterator[Callable[[int, int], bytes]]:
    """Give a reader of (position, length) over a file that need not fit in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield lambda position, length: content[position : position + length]
