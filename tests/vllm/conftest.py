"""What the tests against the real vLLM share: the model, the rows, and one warm engine."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest

from lotwise.executors import vllm_engine


def pytest_configure() -> None:
    # One GiB holds these rows many times over; a small machine has little more.
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")


@pytest.fixture(scope="session")
def model() -> Path:
    return Path(os.environ["LOTWISE_VLLM_MODEL"])


@pytest.fixture(scope="session")
def reviews() -> pl.DataFrame:
    """Two hundred distinct reviews: real ones where the shared folder is, else some of our own making."""
    shared = Path(os.environ.get("LOTWISE_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "reviews.parquet"
    if shared.exists():
        return pl.read_parquet(shared).unique("text", maintain_order=True).select("text").head(200)
    things, words = ("phone", "soup", "case", "waiter"), ("great", "awful", "slow", "perfect", "cold")
    return pl.DataFrame({"text": [f"The {things[n % 4]} was {words[n % 5]}, visit number {n}." for n in range(200)]})


@pytest.fixture(scope="session", autouse=True)
def _engines_end() -> Iterator[None]:
    yield
    vllm_engine.shut_down()
