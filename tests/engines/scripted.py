"""A scripted engine for a test: its interpreter, its model's folder, and what it noted."""

from __future__ import annotations

import os
import select
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

import lotwise
from lotwise.executors import vllm_engine

PROGRAM = Path(__file__).with_name("scripted_child.py")
PATIENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Scripted:
    """A folder with a model, an interpreter and notes."""

    folder: Path

    @classmethod
    def under(cls, folder: Path) -> Scripted:
        """Make one."""
        made = cls(folder=folder / "scripted")
        made.model.mkdir(parents=True)
        (made.model / "config.json").write_text('{"architectures": ["Scripted"]}')
        (made.model / "model.safetensors").write_bytes(b"weights")
        made.notes.mkdir()
        made.python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "{PROGRAM}" "{made.notes}" "$@"\n')
        made.python.chmod(0o700)
        return made

    @property
    def model(self) -> Path:
        return self.folder / "tiny"

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    @property
    def python(self) -> Path:
        return self.folder / "python"

    def noted(self, name: str) -> list[str]:
        """Return the lines that the program noted under a name."""
        file = self.notes / name
        return file.read_text().splitlines() if file.exists() else []

    def hold(self) -> None:
        """Let rows that say `hold` wait."""
        (self.notes / "hold").touch()

    def let_go(self) -> None:
        """Answer the rows that wait."""
        (self.notes / "hold").unlink()

    def options(self, **more: Any) -> lotwise.Options:
        """Return options that name this engine."""
        executor = {"python": str(self.python), **more.pop("executor", {})}
        return lotwise.Options(executor_options=executor, **more)

    def map(self, texts: list[str], ledger: Path, **more: Any) -> pl.DataFrame:
        """Map texts, each of which is the whole prompt."""
        return lotwise.map(
            pl.DataFrame({"text": texts}),
            "{text}",
            model=f"vllm:{self.model}",
            ledger=ledger,
            options=more.pop("options", None) or self.options(**more),
            progress=False,
        )

    def everybody(self) -> list[int]:
        """Return the ids of all processes that there ever were."""
        return [int(pid) for name in ("starts", "others") for pid in self.noted(name)]


def wait_until_gone(pids: list[int]) -> None:
    """Return when none of the processes runs any more; one that nobody has reaped runs no more."""
    for pid in pids:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            assert select.select([handle], [], [], PATIENCE_S)[0], f"process {pid} is still there"
        finally:
            os.close(handle)


def end_engines() -> None:
    """End the engines that a test left, and forget them."""
    vllm_engine.shut_down()
