"""Result lines on their way to disk, as often and as whole as the faults let them through."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from sqlite3 import Row

from emulator import anthropic_wire, openai_wire
from emulator.answers import Dialect, Json
from emulator.faults import RowFate
from emulator.model import Result
from emulator.records import key_part


class Lines:
    """Lines to append to the result files of one batch, after the lengths that its record holds."""

    def __init__(self, record: Row) -> None:
        self._record = record
        self._new: dict[str, list[bytes]] = {"out": [], "err": []}
        self.out_bytes: int = record["out_bytes"]
        self.err_bytes: int = record["err_bytes"]
        self.failed = 0

    def add(self, custom_id: str, body: Json, dialect: Dialect, result: Result, fate: RowFate, *, created: int) -> str:
        """Add a row's line as often and as whole as its delivery says; return the stream it went to."""
        line, failed = self._line(custom_id, body, dialect, result, fate, created)
        self.failed += failed
        name = "err" if failed and dialect != "messages" else "out"
        sent = {"missing": [], "duplicate": [line, line], "torn": [line[: len(line) // 2]]}.get(fate.delivery, [line])
        if fate.delivery == "unknown_id":
            prefix = custom_id[: -len(key_part(custom_id))]
            stray = prefix + sha256(custom_id.encode()).hexdigest()[:40]
            sent = [line, self._line(stray, body, dialect, result, fate, created)[0]]
        self._new[name].extend(sent)
        return name

    def _line(
        self, custom_id: str, body: Json, dialect: Dialect, result: Result, fate: RowFate, created: int
    ) -> tuple[bytes, bool]:
        name = openai_wire.ident("", self._record["id"], custom_id)
        if dialect == "messages":
            line = anthropic_wire.row_line(custom_id, body, result, name=name, dress=fate.dress)
            return line, not result.billed
        return openai_wire.row_line(custom_id, body, dialect, result, name=name, created=created, dress=fate.dress)

    def write(self, folder: Path) -> None:
        """Append the new lines, over whatever a killed process left beyond the recorded lengths."""
        self.out_bytes = self._append(folder, "out", self.out_bytes)
        self.err_bytes = self._append(folder, "err", self.err_bytes)

    def _append(self, folder: Path, name: str, length: int) -> int:
        if not self._new[name]:
            return length
        path = folder / "results" / f"{self._record['ordinal']}.{name}"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(length)
            file.seek(length)
            file.write(b"\n".join(self._new[name]) + b"\n")
            return file.tell()
