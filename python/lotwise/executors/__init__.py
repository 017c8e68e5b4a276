"""Executors by name: ``provider:model`` picks one file, which is imported only then.

No provider's package is imported before a model of it is named, so that an environment without it works for
the rest.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from lotwise.errors import BatchUnsupported, MissingExtra, UnknownProvider
from lotwise.executors.base import Executor

Tier = Literal["batch", "interactive"]

Factory = Callable[[str, Tier | None, Mapping[str, Any]], Executor]
"""Makes an executor from (model name, tier, executor options)."""


@dataclass(frozen=True, kw_only=True)
class _Provider:
    """Where a provider's executors are.

    `packages` are the importable names whose absence means that the extra is not installed; `hosted` says whether it
    is known by its name alone to send content off this machine; `by_name` whether the executor is made with the
    model's name.
    """

    module: str
    batch: str | None = None
    interactive: str | None = None
    extra: str
    packages: tuple[str, ...]
    hosted: bool = True
    by_name: bool = False


_PROVIDERS: Mapping[str, _Provider] = {
    "openai": _Provider(
        module="lotwise.executors.openai",
        batch="OpenAIExecutor",
        interactive="OpenAIInteractive",
        extra="openai",
        packages=("openai", "httpx2", "aiohttp"),
    ),
    "anthropic": _Provider(
        module="lotwise.executors.anthropic",
        batch="AnthropicExecutor",
        interactive="AnthropicInteractive",
        extra="anthropic",
        packages=("anthropic", "httpx2", "aiohttp"),
    ),
    "online": _Provider(
        module="lotwise.executors.online",
        interactive="OnlineExecutor",
        extra="online",
        packages=("aiohttp",),
        hosted=False,  # its address says
    ),
    "embedded": _Provider(
        module="lotwise.executors.embedded",
        interactive="EmbeddedExecutor",
        extra="embedded",
        packages=("xllamacpp",),
        hosted=False,
    ),
    "vllm": _Provider(
        module="lotwise.executors.vllm",
        interactive="VllmExecutor",
        extra="vllm",
        packages=("vllm",),
        hosted=False,
        by_name=True,
    ),
}

_registered: dict[str, Factory] = {}


def register(provider: str, factory: Factory) -> None:
    """Add a provider by name, or replace one that was added so.

    Parameters
    ----------
    provider
        The part of ``model=`` before the colon.
    factory
        Called as ``factory(model_name, tier, options)`` for each executor that is loaded.

    Raises
    ------
    ValueError
        The name is empty, holds a colon, or is one of lotwise's own.
    """
    if not provider or ":" in provider or provider in _PROVIDERS:
        raise ValueError(f"a provider cannot be registered as {provider!r}")
    _registered[provider] = factory


def providers() -> tuple[str, ...]:
    """Name all providers, sorted."""
    return tuple(sorted({*_PROVIDERS, *_registered}))


def hosted_by_name(model: str) -> bool:
    """Say whether a model is known to be answered elsewhere, before its executor is made."""
    entry = _PROVIDERS.get(model.partition(":")[0])
    return entry is not None and entry.hosted


def load(model: str, *, tier: Tier | None = None, options: Mapping[str, Any] | None = None) -> tuple[Executor, str]:
    """Make the executor for ``provider:model``.

    Parameters
    ----------
    model
        As the user writes it; everything after the first colon is the model's name, and may be absent.
    tier
        "batch", "interactive", or None for "batch" where the provider has one.
    options
        The executor's own options (``executor_options``).

    Returns
    -------
    (Executor, str)
        The executor, and the model's name without the provider.

    Raises
    ------
    UnknownProvider
        No provider of that name.
    MissingExtra
        Its package is not installed.
    BatchUnsupported
        ``tier="batch"`` at a provider without batches.
    UnknownParameter
        An option that the executor does not know.

    Notes
    -----
    No network, and no credentials: a stored line can be read without a key. `check` asks for both.
    """
    provider, _, name = model.partition(":")
    given = dict(options or {})
    if factory := _registered.get(provider):
        return factory(name, tier, given), name
    entry = _PROVIDERS.get(provider)
    if entry is None:
        raise UnknownProvider.of(model, providers())
    wanted = entry.batch if tier == "batch" or (tier is None and entry.batch) else entry.interactive
    if wanted is None:
        raise BatchUnsupported.by(provider, "it answers while it is read")
    made = _import(provider, entry, wanted)
    return (made(model=name, options=given) if entry.by_name else made(options=given)), name


def _import(provider: str, entry: _Provider, class_name: str) -> Callable[..., Executor]:
    """Import one executor class; an absent package of its extra is told as such, any other fault as it is."""
    absent = None
    try:
        module = importlib.import_module(entry.module)
    except ModuleNotFoundError as fault:
        if fault.name is None or fault.name.partition(".")[0] not in entry.packages:
            raise
        absent = MissingExtra.of(entry.extra, fault.name)
    if absent is not None:
        raise absent
    made: Callable[..., Executor] = getattr(module, class_name)
    return made
