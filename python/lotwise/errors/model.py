"""The ``model=`` argument, what it needs on this machine, and its account: told before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable

from lotwise.errors.base import LotwiseError, nearest


class MissingExtra(LotwiseError, ImportError):
    """An optional package is not installed."""

    def __init__(self, message: str, extra: str, module: str) -> None:
        super().__init__(message)
        self.extra, self.module = extra, module

    @classmethod
    def of(cls, extra: str, module: str) -> MissingExtra:
        """Name the `module` that is missing and the `extra` of lotwise that brings it."""
        return cls(f'{module} is not installed; run: pip install "lotwise[{extra}]"', extra, module)


class UnknownModel(LotwiseError, LookupError):
    """A provider's executor knows no such model."""

    def __init__(self, message: str, name: str, nearest_names: list[str]) -> None:
        super().__init__(message)
        self.name, self.nearest = name, nearest_names

    @classmethod
    def from_name(cls, provider: str, name: str, available: Iterable[str]) -> UnknownModel:
        """Refuse `name` and offer the nearest of the `available` models."""
        known = list(available)
        close = nearest(name, known) or known[:3]
        hint = f"use {' or '.join(map(repr, close))}" if close else "look up its name with the provider"
        return cls(f"{provider} knows no model {name!r}; {hint}", name, close)


class UnknownParameter(LotwiseError, ValueError):
    """A sampling parameter that the executor does not know, or a value that it cannot take."""

    def __init__(self, message: str, names: list[str], nearest_names: list[str]) -> None:
        super().__init__(message)
        self.names, self.nearest = names, nearest_names

    @classmethod
    def from_names(cls, provider: str, names: Iterable[str], available: Iterable[str]) -> UnknownParameter:
        """Refuse `names` and offer the nearest of the `available` parameters."""
        unknown, known = sorted(names), sorted(available)
        close = list(dict.fromkeys(near for name in unknown for near in nearest(name, known)))
        hint = f"did you mean {' or '.join(close)}?" if close else f"it knows {', '.join(known)}"
        return cls(f"{provider} knows no parameter {', '.join(unknown)}; {hint}", unknown, close)

    @classmethod
    def bad_value(cls, provider: str, name: str, value: object, takes: str) -> UnknownParameter:
        """Refuse the `value` of a known parameter and say what it `takes`."""
        return cls(f"{provider} takes {takes} for {name}, not {value!r}", [name], [])


class ModelWeightsMissing(LotwiseError, FileNotFoundError):
    """The weights of a local model are not on this machine."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object) -> ModelWeightsMissing:
        """Name the place where the weights were looked for, and the command that brings them."""
        return cls(f"there are no model weights at {path}; run: lotwise fetch-model", path)


class ModelFolderMissing(LotwiseError, FileNotFoundError):
    """A local engine's model is neither a folder on this machine nor in the model hub's cache."""

    def __init__(self, message: str, model: str, looked_in: list[str]) -> None:
        super().__init__(message)
        self.model, self.looked_in = model, looked_in

    @classmethod
    def of(cls, model: str, looked_in: Iterable[object]) -> ModelFolderMissing:
        """Name the model as it was written, and the places where it was looked for."""
        places = [str(place) for place in looked_in]
        return cls(
            f"there is no model {model!r}: looked in {', '.join(places)}. Give a folder with a config.json, or bring "
            "the model into the cache first (hf download), since an engine is started without a network",
            model,
            places,
        )


class ModelDownloadFailed(LotwiseError, RuntimeError):
    """The weights could not be fetched; `tried` names each way and why it failed."""

    def __init__(self, message: str, tried: list[tuple[str, str]]) -> None:
        super().__init__(message)
        self.tried = tried

    @classmethod
    def after(cls, what: str, tried: list[tuple[str, str]]) -> ModelDownloadFailed:
        """Report the ways `tried`, in order."""
        told = "".join(f"\n  {way}: {why}" for way, why in tried)
        return cls(f"{what} could not be fetched. Tried, in this order:{told}", tried)


class UnknownProvider(LotwiseError, LookupError):
    """No executor answers to the provider in ``model="provider:model"``."""

    def __init__(self, message: str, provider: str, available: tuple[str, ...]) -> None:
        super().__init__(message)
        self.provider, self.available = provider, available

    @classmethod
    def of(cls, model: str, available: Iterable[str]) -> UnknownProvider:
        """Build from ``model=`` as it was written, and the providers that there are."""
        provider, colon, _ = model.partition(":")
        names = tuple(sorted(available))
        close = nearest(provider, names)
        hint = f"did you mean {' or '.join(map(repr, close))}?" if close else f"known are {', '.join(names)}."
        written = "write provider:model, for instance openai:" + ("gpt-5-mini" if colon or close else provider)
        return cls(f"no provider {provider!r}; {hint} For a model, {written}", provider, names)


class MissingCredentials(LotwiseError, PermissionError):
    """There is no key for this provider, it cannot be sent, or the provider does not take it."""

    def __init__(self, message: str, provider: str, variable: str, refused: bool) -> None:
        super().__init__(message)
        self.provider, self.variable, self.refused = provider, variable, refused

    @classmethod
    def unset(cls, provider: str, variable: str) -> MissingCredentials:
        return cls(f"no credentials for {provider}: set {variable}", provider, variable, False)

    @classmethod
    def unsendable(cls, provider: str, variable: str) -> MissingCredentials:
        return cls(
            f"the credentials for {provider} in {variable} hold a character that no HTTP header can carry, such as the "
            "end of a line; set it again",
            provider,
            variable,
            False,
        )

    @classmethod
    def refused_by(cls, provider: str, variable: str, code: str) -> MissingCredentials:
        return cls(
            f"{provider} did not take the credentials in {variable} ({code}); check that the key is of the "
            "account and project that you mean",
            provider,
            variable,
            True,
        )


class MissingServer(LotwiseError, ValueError):
    """A model of a server of one's own was named, and not where that server is. An address that is none is never told:
    it may hold a key."""

    @classmethod
    def unset(cls, variable: str) -> MissingServer:
        return cls(
            "online: needs the address of a server; give "
            'options=lotwise.Options(executor_options={"base_url": "http://127.0.0.1:8000/v1"}) or set ' + variable
        )

    @classmethod
    def unusable(cls, reason: str) -> MissingServer:
        return cls(f"the base_url of online: {reason}; write it as http://127.0.0.1:8000/v1")


class SilentServer(MissingServer):
    """Nobody answers where a server of one's own should be. The same call may work once it is started."""

    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address

    @classmethod
    def at(cls, address: str) -> SilentServer:
        """Name the `address`, which holds no secret: one with more than an address in it is refused before."""
        return cls(f"no server answers at {address}; is it running, and is the address right?", address)


class UnsupportedParameter(LotwiseError, ValueError):
    """`params` names something that this executor sets itself or cannot carry."""

    def __init__(self, message: str, provider: str, name: str) -> None:
        super().__init__(message)
        self.provider, self.name = provider, name

    @classmethod
    def of(cls, provider: str, name: str, reason: str) -> UnsupportedParameter:
        return cls(f"{provider}: params may not hold {name!r}: {reason}", provider, name)


class UnsupportedSchema(LotwiseError, ValueError):
    """The provider cannot be sent this JSON Schema in any form."""

    def __init__(self, message: str, provider: str, path: str) -> None:
        super().__init__(message)
        self.provider, self.path = provider, path

    @classmethod
    def at(cls, provider: str, path: str, reason: str) -> UnsupportedSchema:
        return cls(f"{provider} cannot take this schema: at {path or '/'}: {reason}", provider, path)


class BatchUnsupported(LotwiseError, ValueError):
    """What answers at this address has no batch endpoint."""

    def __init__(self, message: str, provider: str) -> None:
        super().__init__(message)
        self.provider = provider

    @classmethod
    def by(cls, provider: str, code: str) -> BatchUnsupported:
        return cls(f'what answers for {provider} has no batch endpoint ({code}); use tier="interactive"', provider)


class AccountMismatch(LotwiseError, PermissionError):
    """A shard was sent under another account than the one that is configured now."""

    def __init__(self, message: str, shard: str, sent_under: str, here: str) -> None:
        super().__init__(message)
        self.shard, self.sent_under, self.here = shard, sent_under, here

    @classmethod
    def of(cls, shard: str, sent_under: str, here: str) -> AccountMismatch:
        return cls(
            f"shard {shard} was sent under account {sent_under}, and this process uses {here}; nothing can be "
            "concluded from what this account sees. Use the first account's key to go on with it",
            shard,
            sent_under,
            here,
        )
