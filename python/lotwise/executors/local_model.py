"""A model as it lies on this machine: its folder, and a digest of all in it that can change an answer.

A name of the model hub means the snapshot in the hub's cache, never a download: an engine is started without a network.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from lotwise.errors import ModelFolderMissing

HEADER_BYTES = 4 << 20
"""How much of a weight file's start the digest covers: the header of most, which names each tensor."""

WEIGHTS = frozenset({".safetensors", ".bin", ".pt", ".pth", ".gguf"})

CONFIGURATION = frozenset({".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"})
"""Files of configuration, tokenizer and template, which are hashed whole."""


def folder_of(model: str, revision: str | None = None) -> Path:
    """Return the folder of a model.

    Parameters
    ----------
    model
        A folder, or ``owner/name`` of a model in the hub's cache.
    revision
        A branch or commit of the hub; None for ``main``.

    Raises
    ------
    ModelFolderMissing
        It is neither, with the places where it was looked for.
    """
    here = Path(model).expanduser()
    if model and (here / "config.json").is_file():
        return here.resolve()
    looked: list[object] = [here] if model else ["(no model is named)"]
    if model and model.count("/") == 1 and not model.startswith(("/", ".", "~")):
        kept = _hub_cache() / f"models--{model.replace('/', '--')}"
        looked.append(kept)
        named = kept / "refs" / (revision or "main")
        commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision or ""
        snapshot = kept / "snapshots" / commit
        if commit and (snapshot / "config.json").is_file():
            return snapshot.absolute()  # its files are links: the folder's own name is the commit
    raise ModelFolderMissing.of(model, looked)


def _hub_cache() -> Path:
    """Return the hub's cache folder by the hub client's own rules."""
    for name, below in (("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub")):
        if chosen := os.environ.get(name):
            return Path(chosen).expanduser() / below
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "huggingface" / "hub"


def digest(folder: Path) -> str:
    """Digest a model's configuration, and the size and start of each weight file.

    Returns
    -------
    str
        64 hexadecimal characters, the same wherever the folder lies.
    """
    told = hashlib.sha256()
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        size = path.stat().st_size
        with path.open("rb") as file:
            start = hashlib.sha256(file.read(HEADER_BYTES if path.suffix in WEIGHTS else size)).hexdigest()
        told.update(f"{name}\0{size}\0{start}\n".encode())
    return told.hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that count, in order of their names; notes and pictures do not."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in WEIGHTS | CONFIGURATION and path.is_file() and not path.name.startswith("."):
            yield path
