"""A program that is started, watched and ended by us: a process group of its own, spoken to over a socket in frames.

Whatever ends it, and however, all processes of its group are ended with it, and so the device is free again. What it
writes to stdout and stderr is kept, the last of it, until it says that it is ready: before that it has been given no
row, so none can be in it; after that it is read and dropped.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Any

import msgspec

LENGTH = struct.Struct(">I")

TAIL_BYTES = 16_384
"""How much of what the program wrote before it was ready is kept."""

GRACE_S = 8.0
"""How long the program and its processes may take to end by themselves before they are killed."""

READ_BYTES = 1 << 20

_SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSWORD|_KEY$", re.IGNORECASE)

Frame = dict[str, Any]


class ChildEnded(Exception):
    """The program is there no more, or not as it must be. `how` says how; it quotes nothing written to stdout."""

    def __init__(self, how: str) -> None:
        super().__init__(how)
        self.how = how


class Child:
    """One running program.

    Parameters
    ----------
    command
        The program and its arguments. The number of its end of the socket and our process id are put after them.
    env
        Its whole environment.
    send_s
        How long it may leave what it is told unread, in seconds, before it counts as ended.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], *, send_s: float) -> None:
        self._socket, theirs = socket.socketpair()
        self._env = dict(env)
        try:
            self._process = subprocess.Popen(
                [*command, str(theirs.fileno()), str(os.getpid())],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        except BaseException:
            self._socket.close()
            raise
        finally:
            theirs.close()
        self._socket.settimeout(send_s)
        self._poll = select.poll()  # select() itself takes no descriptor from 1,024 on
        self._poll.register(self._socket, select.POLLIN)
        self._owner = os.getpid()
        self._held = bytearray()
        self._encode, self._decode = msgspec.json.Encoder().encode, msgspec.json.Decoder(Frame).decode
        self._tail: deque[bytes] = deque()
        self._keep = True
        self._closed = False
        self._said: str | None = None
        assert self._process.stdout is not None
        self._drain = threading.Thread(target=self._read_output, args=(self._process.stdout,), daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        """The program's process id, which is also its group's."""
        return self._process.pid

    def tell(self, frame: Mapping[str, Any]) -> None:
        """Send one frame. Raises `ChildEnded` when nobody reads it."""
        body = self._encode(frame)
        try:
            self._socket.sendall(LENGTH.pack(len(body)) + body)
        except TimeoutError:
            raise ChildEnded("it read nothing for too long") from None
        except OSError:
            raise ChildEnded(self._how()) from None

    def hear(self, wait_s: float) -> list[Frame]:
        """Return the frames that came, waiting so long for one. Raises `ChildEnded` after the last of a dead child."""
        frames = self._whole()
        if frames:
            return frames
        if not self._poll.poll(wait_s * 1_000):
            if self._exit() is not None:  # its own processes may still hold its end of the socket
                raise ChildEnded(self._how())
            return []
        try:
            got = self._socket.recv(READ_BYTES)
        except OSError:
            got = b""
        if not got:
            raise ChildEnded(self._how())
        self._held += got
        return self._whole()

    def ready(self) -> None:
        """Note that it is up: what it writes from now on is dropped unseen."""
        self._keep = False
        self._tail.clear()

    def note(self, said: str) -> None:
        """Remember in a word why it says that it ends."""
        self._said = said

    def tail(self) -> str:
        """Return the last of what it wrote before it was ready, without the values of secrets in its environment."""
        text = b"".join(self._tail)[-TAIL_BYTES:].decode(errors="replace")
        for name, value in self._env.items():
            if len(value) >= 8 and _SECRET_NAME.search(name):
                text = text.replace(value, f"<{name}>")
        return text

    def close(self, *, grace_s: float = GRACE_S) -> None:
        """End the program and all processes of its group, first by asking. Does nothing twice, or in a fork."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        self._socket.close()  # it ends by itself when it finds nobody at the other end
        self._wait(grace_s)
        # The leader is not reaped before its group is gone: as long as it is not, no other group can have its number.
        # (Where SIGCHLD is ignored it is, and then a member that is left keeps the number.)
        for number in (signal.SIGTERM, signal.SIGKILL):
            self._signal_group(number)
            self._wait(grace_s)
        self._process.wait()
        self._drain.join(grace_s)

    def forget(self) -> None:
        """Let go of it in a forked process, where it is not ours: only our copy of the socket is closed."""
        self._closed = True
        self._socket.close()

    def _signal_group(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _exit(self) -> int | None:
        """Return how the program exited, as `subprocess` counts, and leave it to be reaped; None while it runs."""
        try:
            found = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # where SIGCHLD is ignored, the system reaps it and tells nobody how it ended
            return 0
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def _wait(self, seconds: float) -> int | None:
        deadline = time.monotonic() + seconds
        while (code := self._exit()) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return code

    def _how(self) -> str:
        code = self._wait(1.0)  # its end of the socket is closed a moment before it is seen to have ended
        if self._said is not None:
            return self._said
        if code is None:
            return "its end of the socket closed"
        if code >= 0:
            return f"exit code {code}"
        return "SIGKILL, as when memory runs out" if -code == signal.SIGKILL else f"signal {-code}"

    def _whole(self) -> list[Frame]:
        frames: list[Frame] = []
        start = 0
        while len(self._held) - start >= LENGTH.size:
            (size,) = LENGTH.unpack_from(self._held, start)
            if len(self._held) - start - LENGTH.size < size:
                break
            frames.append(self._decode(self._held[start + LENGTH.size : start + LENGTH.size + size]))
            start += LENGTH.size + size
        del self._held[:start]
        return frames

    def _read_output(self, output: IO[bytes]) -> None:
        with output:
            while got := os.read(output.fileno(), 65_536):
                if self._keep:
                    self._tail.append(got[-TAIL_BYTES:])
                    while len(self._tail) > 1 and sum(map(len, self._tail)) - len(self._tail[0]) >= TAIL_BYTES:
                        self._tail.popleft()
