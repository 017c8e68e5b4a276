"""A program that speaks as vLLM's child does, and does what the row it is asked says: answer, die, hold, refuse.

Called as an interpreter is, so that the executor's ``python`` option may name it. What it was asked, and the processes
there were, it notes in a folder. It holds one process of its own in its group, as vLLM does.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

LENGTH = struct.Struct(">I")
SEQS = 64


class Script:
    """The engine's side of the socket."""

    def __init__(self, folder: Path, descriptor: int) -> None:
        self.folder, self.socket = folder, socket.socket(fileno=descriptor)
        self.held: list[tuple[str, str]] = []
        self.job = 0

    def send(self, **frame: Any) -> None:
        body = json.dumps(frame, ensure_ascii=False).encode()
        try:
            self.socket.sendall(LENGTH.pack(len(body)) + body)
        except OSError:  # the parent is gone
            os.killpg(0, signal.SIGKILL)

    def receive(self) -> dict[str, Any]:
        (size,) = LENGTH.unpack(self.read(LENGTH.size))
        frame: dict[str, Any] = json.loads(self.read(size))
        return frame

    def read(self, size: int) -> bytes:
        got = bytearray()
        while len(got) < size:
            try:
                some = self.socket.recv(size - len(got))
            except OSError:
                some = b""
            if not some:  # the parent is gone
                os.killpg(0, signal.SIGKILL)
            got += some
        return bytes(got)

    def note(self, name: str, text: str) -> None:
        with (self.folder / name).open("a", encoding="utf-8") as file:
            file.write(text + "\n")

    def has(self, name: str) -> bool:
        return (self.folder / name).exists()

    # --- what it does ---------------------------------------------------------------------------------------------

    def run(self) -> None:
        start = self.receive()
        self.note("starts", str(os.getpid()))
        other = subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"], close_fds=False)
        self.note("others", str(other.pid))
        print(f"loading {start['model']}", flush=True)
        if told := start["engine"].get("fails"):
            self.send(op="failed", error=f"ValueError: {told}")
            print(f"Error: {told} {os.environ.get('SCRIPT_TOKEN')}", flush=True)  # late: it must be heard all the same
            sys.exit(1)
        if start["engine"].get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.send(op="ready", max_num_seqs=start["engine"].get("seqs", SEQS), max_model_len=1024, vllm={})
        while True:
            if self.held and not self.has("hold"):
                held, self.held = self.held, []
                self.done(*(self.good(one, content) for one, content in held))
            if self.held and not select.select([self.socket], [], [], 0.02)[0]:
                self.done()  # a beat
                continue
            self.take(self.receive())

    def take(self, frame: dict[str, Any]) -> None:
        match frame["op"]:
            case "job":
                self.job = frame["id"]
            case "abort":
                self.note("aborts", str(len(self.held)))
                self.held.clear()
            case "ask":
                for one, content, max_tokens in frame["rows"]:
                    self.note("asked", content)
                    print(f"asked {content}", flush=True)
                    self.answer(one, content, max_tokens)

    def answer(self, one: str, content: str, max_tokens: int) -> None:
        match content.split():
            case ["die", *_]:
                os.kill(os.getpid(), signal.SIGKILL)
            case ["once", *_] if not self.has("died"):
                self.note("died", content)
                os.kill(os.getpid(), signal.SIGKILL)
            case ["hold", *_] if self.has("hold"):
                self.held.append((one, content))
            case ["long", *_]:
                self.done([one, 400, {"error": {"code": 400, "type": "context_length_exceeded"}}])
            case ["refuse", *_]:
                self.done(self.good(one, "", "content_filter"))
            case ["cut", *_]:
                self.done(self.good(one, "half an ans", "length"))
            case ["stall", *_]:
                signal.pause()
            case _:
                self.done(self.good(one, content))

    def good(self, one: str, text: str, end: str = "stop") -> list[Any]:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": end}
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
        return [one, 200, {"object": "chat.completion", "choices": [choice], "usage": usage}]

    def done(self, *rows: list[Any]) -> None:
        self.send(op="done", job=self.job, rows=list(rows))


def main(folder: Path, arguments: list[str]) -> None:
    """Say what is installed, or serve."""
    if arguments[-1] == "--about":
        print(json.dumps({"vllm": "0.0.scripted"}))
        return
    Script(folder, int(arguments[-2])).run()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
