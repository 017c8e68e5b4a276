"""Who acts on a shard, and whether that somebody is still there.

An owner is one call of the engine in one process. A lease says how long the others must wait for it; an owner that is
known to be gone (its process has ended on this very machine, or its call has returned) need not be waited for.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_active: set[str] = set()


def _machine() -> str:
    """Name this machine, this boot and this process namespace: process ids mean nothing across any of them."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text(encoding="ascii").strip() if boot.exists() else "-"
    try:
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        namespace = "-"
    return f"{socket.gethostname()}/{boot_id}/{namespace}"


def _started(pid: int) -> str | None:
    """Return when a process started, in kernel ticks, or None when there is no such process or no way to tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rsplit(")", 1)[1].split()
    return None if fields[0] == "Z" else fields[19]  # a zombie acts no more


@contextmanager
def acting() -> Iterator[str]:
    """Yield a new owner's name, which counts as present until the block is left."""
    name = f"{_machine()}/{os.getpid()}/{_started(os.getpid()) or '-'}/{secrets.token_hex(4)}"
    _active.add(name)
    try:
        yield name
    finally:
        _active.discard(name)


def gone(name: str | None) -> bool:
    """Say whether an owner is known to act no more. False whenever that cannot be known from here."""
    if name is None:
        return True
    try:
        machine, pid, started, _ = name.rsplit("/", 3)
    except ValueError:
        return False
    if machine != _machine() or started == "-":
        return False
    if int(pid) == os.getpid():
        return name not in _active
    return _started(int(pid)) != started
