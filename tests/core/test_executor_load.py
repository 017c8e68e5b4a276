"""A model's name picks one executor; what is missing is told with the way to get it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from lotwise import executors
from lotwise.errors import BatchUnsupported, MissingExtra, UnknownParameter, UnknownProvider
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.executors.limits import limits_of, table


@pytest.mark.parametrize(
    ("model", "tier", "shape"),
    [
        ("openai:gpt-5-mini", None, BatchExecutor),
        ("openai:gpt-5-mini", "batch", BatchExecutor),
        ("openai:gpt-5-mini", "interactive", StreamExecutor),
        ("anthropic:claude-haiku-4-5", None, BatchExecutor),
        ("anthropic:claude-haiku-4-5", "interactive", StreamExecutor),
    ],
)
def test_tier_picks_the_shape(model: str, tier: executors.Tier | None, shape: type) -> None:
    executor, name = executors.load(model, tier=tier)
    assert isinstance(executor, shape)
    assert f"{executor.provider}:{name}" == model
    assert executor.hosted
    assert executor.paid


def test_model_name_may_hold_colons() -> None:
    assert executors.load("openai:ft:gpt-5:org::id")[1] == "ft:gpt-5:org::id"


def test_unknown_provider_names_the_nearest() -> None:
    with pytest.raises(UnknownProvider, match="'openai'") as caught:
        executors.load("opanai:gpt-5")
    assert caught.value.provider == "opanai"


def test_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anthropic", None)
    monkeypatch.delitem(sys.modules, "lotwise.executors.anthropic", raising=False)
    with pytest.raises(MissingExtra, match=r'pip install "lotwise\[anthropic\]"'):
        executors.load("anthropic:claude-haiku-4-5")


def test_batch_of_a_provider_without_batches_is_refused() -> None:
    with pytest.raises(BatchUnsupported, match="interactive"):
        executors.load("embedded", tier="batch")


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(UnknownParameter, match="base_url"):
        executors.load("openai:m", options={"base_ulr": "x"})


def test_registered_provider_is_handed_what_was_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executors, "_registered", {})
    seen: list[object] = []
    stand_in = executors.load("openai:m")[0]

    def factory(name: str, tier: executors.Tier | None, options: Mapping[str, Any]) -> Any:
        seen.append((name, tier, options))
        return stand_in

    executors.register("mine", factory)
    assert executors.load("mine:m", tier="batch", options={"a": 1}) == (stand_in, "m")
    assert seen == [("m", "batch", {"a": 1})]
    assert "mine" in executors.providers()


@pytest.mark.parametrize("name", ["", "a:b", "openai"])
def test_name_that_is_taken_or_unusable_is_not_registered(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be registered"):
        executors.register(name, lambda *_: executors.load("openai:m")[0])


def test_no_provider_package_is_imported_before_it_is_named() -> None:
    code = "import sys, lotwise.executors; print([m for m in ('openai', 'anthropic') if m in sys.modules])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_limits_are_dated_and_can_be_overridden() -> None:
    assert table()["checked"].year >= 2026
    assert limits_of("openai").max_requests == 50_000
    assert limits_of("anthropic").retention_s == 29 * 86_400
    assert limits_of("openai", {"max_requests": 7}).max_requests == 7
    with pytest.raises(ValueError, match="max_bytes"):
        limits_of("openai", {"max_byte": 7})
