"""Every error that lotwise raises, in branches by who must act.

One root, `LotwiseError`. An error is built from facts by a named constructor, keeps them as attributes, and ends
in a hint. No message carries row content or a credential (promise 10).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from decimal import Decimal
from typing import Any


class LotwiseError(Exception):
    """The root of all errors raised by lotwise."""


def nearest(name: str, available: Iterable[str], n: int = 3) -> list[str]:
    """Name the `n` entries of `available` closest in spelling to `name`, best first, whatever their case."""
    spelled: dict[str, list[str]] = {}
    for one in available:
        spelled.setdefault(one.casefold(), []).append(one)
    close = difflib.get_close_matches(name.casefold(), spelled, n=n, cutoff=0.5)
    return [one for folded in close for one in spelled[folded]][:n]


# --- The provider, or the way to it: the engine acts on these, a user seldom sees them ----------------------------


class ExecutorError(LotwiseError):
    """Something went wrong between an executor and its provider."""


class CreateRejected(ExecutorError):
    """The provider certainly took nothing of a shard.

    `code` is the provider's own; `wait_s` is how long to hold when only capacity is missing, else None; `blocked` is
    true when the account itself cannot send (no credit, no permission), `input_fault` when the shard itself is at
    fault.
    """

    def __init__(
        self, code: str, *, wait_s: float | None = None, blocked: bool = False, input_fault: bool = False
    ) -> None:
        super().__init__(f"the provider took nothing of this shard: {code}")
        self.code, self.wait_s, self.blocked, self.input_fault = code, wait_s, blocked, input_fault


class CreateUncertain(ExecutorError):
    """The answer to a create call was lost; the provider may have taken the shard."""

    def __init__(self, code: str) -> None:
        super().__init__(f"no certain answer to the create call: {code}")
        self.code = code


class BatchNotFound(ExecutorError):
    """This account has no batch of that id."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"the provider knows no batch {batch_id!r} under this account")
        self.batch_id = batch_id


class Unreachable(ExecutorError):
    """The provider did not answer, or answered that it could not just now; asking again is safe."""

    def __init__(self, code: str, *, wait_s: float | None = None) -> None:
        super().__init__(f"the provider did not answer: {code}")
        self.code, self.wait_s = code, wait_s


class StatisticsRefused(LotwiseError, ValueError):
    """The numbers given allow no honest answer, or are not counts and rates at all.

    `reason` is a short code that a column can carry; `facts` are the numbers it rests on.
    """

    def __init__(self, reason: str, hint: str, facts: dict[str, object]) -> None:
        self.reason = reason
        self.hint = hint
        self.facts = facts
        numbers = ", ".join(f"{name}={value}" for name, value in facts.items())
        super().__init__(f"{reason} ({numbers}): {hint}" if numbers else f"{reason}: {hint}")

    @classmethod
    def because(cls, reason: str, hint: str, **facts: object) -> StatisticsRefused:
        """Refuse for `reason`, saying in `hint` what would help and keeping the numbers."""
        return cls(reason, hint, facts)

    @classmethod
    def from_name(cls, what: str, name: str, available: Iterable[str]) -> StatisticsRefused:
        """Refuse a `name` that is none of the `available` ones."""
        known = list(available)
        close = nearest(name, known) or known
        return cls(f"unknown_{what}", f"use {' or '.join(close)}", {what: name})


# --- The ledger: the analyst, or whoever looks after the machine, acts --------------------------------------------


class LedgerError(LotwiseError):
    """Something is wrong with the ledger's folder or file. Nothing in it was changed."""


class LedgerNotFound(LedgerError, FileNotFoundError):
    """There is no ledger where one was expected."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object) -> LedgerNotFound:
        return cls(f"there is no ledger at {path}; a `map` makes one, or name another with ledger=", path)


class LedgerUnwritable(LedgerError, PermissionError):
    """The ledger's folder cannot be made or written."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object, why: str) -> LedgerUnwritable:
        return cls(f"the ledger at {path} cannot be written: {why}; name another folder with ledger=", path)

    @classmethod
    def is_file(cls, path: object) -> LedgerUnwritable:
        return cls(f"{path} is a file, and a ledger is a folder; name another folder with ledger=", path)


class LedgerForeign(LedgerError, ValueError):
    """The file is not a lotwise ledger."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def not_duckdb(cls, path: object) -> LedgerForeign:
        return cls(f"{path} is not a DuckDB file; it was left as it is. Name another folder with ledger=", path)

    @classmethod
    def not_ours(cls, path: object) -> LedgerForeign:
        return cls(
            f"{path} is a DuckDB file, but not a lotwise ledger; it was left as it is. "
            "Name another folder with ledger=",
            path,
        )


class LedgerNewer(LedgerError, RuntimeError):
    """The ledger was written by a newer lotwise."""

    def __init__(self, message: str, path: object, found: int, known: int) -> None:
        super().__init__(message)
        self.path, self.found, self.known = path, found, known

    @classmethod
    def at(cls, path: object, found: int, known: int) -> LedgerNewer:
        return cls(
            f"the ledger at {path} has schema version {found}, and this lotwise knows versions up to {known}; "
            "it was left as it is. Install a newer lotwise",
            path,
            found,
            known,
        )


class LedgerDamaged(LedgerError, RuntimeError):
    """The ledger's file or one of its parts cannot be read."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object, what: str) -> LedgerDamaged:
        return cls(
            f"the ledger at {path} is damaged ({what}); it was left as it is. Restore it and its .wal from a copy",
            path,
        )


class LedgerLocked(LedgerError, TimeoutError):
    """Another program holds the ledger's DuckDB file open without lotwise's own lock."""

    def __init__(self, message: str, path: object, pid: int | None) -> None:
        super().__init__(message)
        self.path, self.pid = path, pid

    @classmethod
    def by(cls, path: object, pid: int | None) -> LedgerLocked:
        who = f"process {pid}" if pid is not None else "another process"
        return cls(
            f"{path} is held open by {who}, which is not using lotwise's lock; close it there, or read through "
            "`lotwise ledger sql` or a `lotwise ledger export`, which hold it for moments only",
            path,
            pid,
        )


class LedgerInconsistent(LedgerError, AssertionError):
    """An invariant of the ledger does not hold: a defect of lotwise, or a ledger that was edited by hand."""

    def __init__(self, message: str, facts: dict[str, object]) -> None:
        super().__init__(message)
        self.facts = facts

    @classmethod
    def of(cls, what: str, **facts: object) -> LedgerInconsistent:
        told = ", ".join(f"{name}={value}" for name, value in facts.items())
        return cls(f"{what} ({told}); nothing was changed. Run `lotwise ledger verify`", facts)


# --- What a model or an executor needs: the person at the keyboard acts -------------------------------------------


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


# --- The model= argument, its provider and its account: told before anything is sent ------------------


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
    """There is no key for this provider, or the provider does not take the one there is."""

    def __init__(self, message: str, provider: str, variable: str, refused: bool) -> None:
        super().__init__(message)
        self.provider, self.variable, self.refused = provider, variable, refused

    @classmethod
    def unset(cls, provider: str, variable: str) -> MissingCredentials:
        return cls(f"no credentials for {provider}: set {variable}", provider, variable, False)

    @classmethod
    def refused_by(cls, provider: str, variable: str, code: str) -> MissingCredentials:
        return cls(
            f"{provider} did not take the credentials in {variable} ({code}); check that the key is of the "
            "account and project that you mean",
            provider,
            variable,
            True,
        )


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


class ResultsGone(ExecutorError, LookupError):
    """The batch is known, its results are not there (any more).

    One 404 is no proof: a list or a file may lag behind. The engine asks again before it believes.
    """

    def __init__(self, message: str, batch_id: str, reason: str) -> None:
        super().__init__(message)
        self.batch_id, self.reason = batch_id, reason

    @classmethod
    def of(cls, batch_id: str, reason: str) -> ResultsGone:
        return cls(f"the results of batch {batch_id!r} cannot be read: {reason}", batch_id, reason)


# --- The call: what the user wrote cannot work, told before anything is sent --------------------------------------


def _named(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def _hint(missing: Iterable[str], available: Iterable[str]) -> str:
    """Say which of `available` the `missing` names were probably meant to be; all of them when few, else nothing."""
    available = list(available)
    near = list(dict.fromkeys(found for name in missing for found in nearest(name, available)))
    if near:
        return f"; did you mean {_named(near)}?"
    if 0 < len(available) <= 12:
        return f"; there are {_named(available)}"
    return "; nothing there is spelled alike" if available else "; there are none"


class UnknownColumn(LotwiseError, LookupError):
    """A template, an example or a check names a column that is not there."""

    def __init__(self, message: str, *, missing: tuple[str, ...], available: tuple[str, ...]) -> None:
        super().__init__(message)
        self.missing, self.available = missing, available

    @classmethod
    def from_names(
        cls, missing: Iterable[str], available: Iterable[str], *, where: str = "the prompt"
    ) -> UnknownColumn:
        """Build from the names asked for and those that exist; `where` says who asked."""
        missing, available = tuple(missing), tuple(available)
        noun = "column" if len(missing) == 1 else "columns"
        message = f"{where} names {noun} {_named(missing)}, not found{_hint(missing, available)}"
        if any(mark in name for name in missing for mark in "\"':"):  # it looks like JSON
            message += "; write {{ and }} for braces"
        return cls(message, missing=missing, available=available)


class EmptyTemplate(LotwiseError, ValueError):
    """A prompt template that holds nothing but white space."""

    @classmethod
    def from_text(cls) -> EmptyTemplate:
        """Build; there is nothing to tell of an empty text."""
        return cls("the prompt is empty; write what the model shall do, with {column} where a column's text goes")


class BadTemplate(LotwiseError, ValueError):
    """A prompt template whose braces do not pair up. `position` counts characters from 0."""

    def __init__(self, message: str, *, position: int, reason: str) -> None:
        super().__init__(message)
        self.position, self.reason = position, reason

    @classmethod
    def at(cls, text: str, position: int, reason: str) -> BadTemplate:
        """Build from the template and the place of the fault in it."""
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        message = (
            f"the prompt has {reason} at line {line}, column {column}; "
            "write {column} for a column's text and {{ or }} for a brace"
        )
        return cls(message, position=position, reason=reason)


class UnrenderableColumn(LotwiseError, TypeError):
    """A column whose dtype has no text, such as Binary, alone or inside a list or struct."""

    def __init__(self, message: str, *, column: str, dtype: str, inner: str) -> None:
        super().__init__(message)
        self.column, self.dtype, self.inner = column, dtype, inner

    @classmethod
    def from_dtype(cls, column: str, dtype: object, inner: object) -> UnrenderableColumn:
        """Build from the column, its dtype, and the part of the dtype that has no text."""
        held = f"{dtype}" if f"{inner}" == f"{dtype}" else f"{dtype}, which holds {inner}"
        message = (
            f"column {column!r} is {held} and has no text; "
            "decode it to a String column, or drop that field, before it goes into a prompt"
        )
        return cls(message, column=column, dtype=str(dtype), inner=str(inner))


class UntranslatableSchema(LotwiseError, TypeError):
    """A schema that cannot be said both to a model and to Polars. `path` leads to the part at fault; "" is the root."""

    def __init__(self, message: str, *, path: str, reason: str) -> None:
        super().__init__(message)
        self.path, self.reason = path, reason

    @classmethod
    def at(cls, path: str, reason: str) -> UntranslatableSchema:
        """Build from the path (``address.geo[].x``) and the reason, which ends in what to write instead."""
        return cls(f"the schema cannot be used at {path or 'its root'}: {reason}", path=path, reason=reason)


class BadExample(LotwiseError, ValueError):
    """A few-shot example whose answer does not have the schema's shape. `path` leads to the part at fault."""

    def __init__(self, message: str, *, path: str, reason: str) -> None:
        super().__init__(message)
        self.path, self.reason = path, reason

    @classmethod
    def at(cls, path: str, reason: str) -> BadExample:
        """Build from the path into the answer and the reason; neither holds a value."""
        return cls(f"an example's answer is wrong at {path or 'its root'}: {reason}", path=path, reason=reason)

    @classmethod
    def unknown(cls, path: str, name: str, available: Iterable[str]) -> BadExample:
        """Build from a name that the schema does not know there."""
        return cls.at(path, f"the schema has no {name!r}{_hint([name], available)}")


class OutputClash(LotwiseError, ValueError):
    """A new column would take the name of one that the frame already has."""

    def __init__(self, message: str, *, clashing: tuple[str, ...]) -> None:
        super().__init__(message)
        self.clashing = clashing

    @classmethod
    def from_names(cls, clashing: Iterable[str], *, into: str | None = None) -> OutputClash:
        """Build from the names that are taken; `into` is the answer's struct column where it alone is."""
        clashing = tuple(clashing)
        way = "pass prefix= to name all new columns otherwise" if into is None else "pass another into="
        noun = "a column" if len(clashing) == 1 else "columns"
        message = f"the frame already has {noun} named {_named(clashing)}; {way}, or rename or drop the old"
        return cls(message, clashing=clashing)


class BadParams(LotwiseError, ValueError):
    """A value in ``params=``, a message or an example that cannot be written as JSON, so has no key."""

    def __init__(self, message: str, *, path: str, kind: str) -> None:
        super().__init__(message)
        self.path, self.kind = path, kind

    @classmethod
    def at(cls, path: str, kind: str) -> BadParams:
        """Build from where the value stands and what it is."""
        message = (
            f"{path} is {kind}; only text, finite numbers, booleans, None, lists and dicts with text keys can be sent"
        )
        return cls(message, path=path, kind=kind)


class CheckFailedToRun(LotwiseError, RuntimeError):
    """A rule of ``check=``, or a model's own validator, raised or gave something that is no verdict.

    `check` names the rule and `fault` the kind of failure: a class name or a dtype, never a message, since a message
    may quote an answer.
    """

    def __init__(self, message: str, *, check: str, fault: str) -> None:
        super().__init__(message)
        self.check, self.fault = check, fault

    @classmethod
    def raised(cls, check: str, error: BaseException) -> CheckFailedToRun:
        """Build from the rule and what it raised."""
        fault = type(error).__name__
        message = f"check {check!r} raised {fault}; a rule gives true or false for every answer of the schema's shape"
        return cls(message, check=check, fault=fault)

    @classmethod
    def gave(cls, check: str, got: str, wanted: str) -> CheckFailedToRun:
        """Build from the rule, what it gave and what was wanted."""
        return cls(f"check {check!r} gave {got}; wanted {wanted}", check=check, fault=got)


class UnreadableValue(LotwiseError, ValueError):
    """Stored values do not fit the schema that they are read with; `column` is one of its names, or None."""

    def __init__(self, message: str, *, column: str | None, rows: int | None) -> None:
        super().__init__(message)
        self.column, self.rows = column, rows

    @classmethod
    def in_column(cls, column: str | None, rows: int | None) -> UnreadableValue:
        """Build from the column and the number of rows that do not fit, where known."""
        what = "values" if rows is None else f"{rows} values"
        where = "" if column is None else f" of column {column!r}"
        message = f"{what}{where} do not fit the schema; judge the stored results again with this schema"
        return cls(message, column=column, rows=rows)


class LedgerDiskFull(LedgerError, OSError):
    """The disk that the ledger lies on is full. What was committed is safe; the last transaction did not happen."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object) -> LedgerDiskFull:
        return cls(f"no space left for the ledger at {path}; free some and call again, nothing is lost", path)


class LedgerStatementFailed(LedgerError, RuntimeError):
    """DuckDB refused one of lotwise's own statements: a defect of lotwise."""

    def __init__(self, message: str, name: str, kind: str) -> None:
        super().__init__(message)
        self.name, self.kind = name, kind

    @classmethod
    def of(cls, name: str, kind: str) -> LedgerStatementFailed:
        return cls(f"the ledger statement {name!r} failed with {kind}; the transaction was rolled back", name, kind)


class ClaimLost(LedgerError, RuntimeError):
    """Another process took some of the same requests, or the same shard, first. Nothing was changed; look again."""

    def __init__(self, what: str, asked: int, got: int) -> None:
        super().__init__(f"{what}: asked for {asked}, {got} were still free; the transaction was rolled back")
        self.what, self.asked, self.got = what, asked, got


class ForkedLedger(LedgerError, RuntimeError):
    """A ledger that was opened before a fork was used in the child. DuckDB connections do not survive a fork."""

    def __init__(self, message: str, opened_by: int, used_by: int) -> None:
        super().__init__(message)
        self.opened_by, self.used_by = opened_by, used_by

    @classmethod
    def of(cls, opened_by: int, used_by: int) -> ForkedLedger:
        return cls(
            f"this ledger was opened by process {opened_by} and is used in {used_by} after a fork; "
            "open it again in the child, or start workers with the spawn method",
            opened_by,
            used_by,
        )


class BudgetTooSmall(LedgerError, ValueError):
    """A shard's upper bound does not fit what is left of the budget. Nothing was reserved.

    `n_open` counts the reservations that are not settled yet: what they leave over may make room.
    """

    def __init__(
        self, message: str, budget_usd: Decimal, committed_usd: Decimal, asked_usd: Decimal, n_open: int
    ) -> None:
        super().__init__(message)
        self.budget_usd, self.committed_usd, self.asked_usd = budget_usd, committed_usd, asked_usd
        self.n_open = n_open

    @classmethod
    def of(cls, budget_usd: Decimal, committed_usd: Decimal, asked_usd: Decimal, *, n_open: int = 0) -> BudgetTooSmall:
        return cls(
            f"up to ${asked_usd} more does not fit a budget of ${budget_usd}, of which ${committed_usd} is spent or "
            "reserved",
            budget_usd,
            committed_usd,
            asked_usd,
            n_open,
        )


class BadPrices(LotwiseError, ValueError):
    """The `prices=` of a call cannot be used."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names

    @classmethod
    def of(cls, name: str, what: str) -> BadPrices:
        return cls(f"prices: {name} {what}; give US dollars a million tokens at the standard tier", (name,))

    @classmethod
    def unknown(cls, names: list[str], known: tuple[str, ...]) -> BadPrices:
        return cls(f"prices: unknown {', '.join(names)}; known are {', '.join(known)}", tuple(names))


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


class RunEnded(LedgerError, RuntimeError):
    """A run was ended (canceled, or stopped by another process), so nothing more is sent for it."""

    def __init__(self, message: str, run: str, reason: str) -> None:
        super().__init__(message)
        self.run, self.reason = run, reason

    @classmethod
    def of(cls, run: str, state: str, reason: str | None) -> RunEnded:
        return cls(f"run {run} is {state}; nothing more is sent for it", run, reason or state)


# --- A call that cannot be right: whoever wrote it acts -----------------------------------------------------------


class BadArgument(LotwiseError, ValueError):
    """An argument of a call cannot be used."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names

    @classmethod
    def of(cls, name: str, what: str) -> BadArgument:
        return cls(f"{name} {what}", (name,))

    @classmethod
    def unknown(cls, names: Iterable[str], known: Iterable[str], where: str = "arguments") -> BadArgument:
        given, known = tuple(names), tuple(known)
        told = "; ".join(
            f"{name!r}" + (f" (did you mean {' or '.join(near)}?)" if (near := nearest(name, known)) else "")
            for name in given
        )
        return cls(f"unknown {where}: {told}; known are {', '.join(known)}", given)


class QueryRefused(BadArgument):
    """A query over the ledger cannot be run. The message holds nothing of a row."""

    @classmethod
    def because(cls, why: str) -> QueryRefused:
        """Build from DuckDB's message where that quotes the query alone, else from the kind of its error."""
        return cls(f"the query cannot be run: {why}", ("query",))

    @classmethod
    def count(cls, n_statements: int) -> QueryRefused:
        """Build from how many statements there are."""
        held = "is empty" if not n_statements else f"holds {n_statements} statements"
        return cls(f"the query {held}; give one statement, such as SELECT * FROM run", ("query",))

    @classmethod
    def writes(cls, why: str) -> QueryRefused:
        """Build from DuckDB's message on a statement that would change something."""
        return cls(f"the ledger is read-only here; change nothing by hand ({why})", ("query",))

    @classmethod
    def reaches_out(cls) -> QueryRefused:
        """Build; which file it named may have come out of a row."""
        return cls(
            "the query reaches outside of the ledger, to a file, an extension or another database; it can read the "
            "ledger alone. `lotwise ledger export` writes a copy that any DuckDB opens",
            ("query",),
        )


class NotAFrame(LotwiseError, TypeError):
    """The input is not a Polars frame."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @classmethod
    def of(cls, given: object) -> NotAFrame:
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        package, _, name = kind.partition(".")
        way = {
            ("polars", "LazyFrame"): ".collect()",
            ("pyarrow", "Table"): "pl.from_arrow(...)",
            ("pandas", "DataFrame"): "pl.from_pandas(...)",
        }.get((package, name.rpartition(".")[2]), "pl.DataFrame(...)")
        return cls(f"a polars DataFrame is needed, and this is a {kind}; {way} makes one", kind)


class ModelNotSaid(LotwiseError, ValueError):
    """A large frame was given without a model."""

    def __init__(self, message: str, n_rows: int) -> None:
        super().__init__(message)
        self.n_rows = n_rows

    @classmethod
    def of(cls, n_rows: int, most: int) -> ModelNotSaid:
        return cls(
            f"model= must be said for {n_rows:,} rows: the embedded demo model is the default only up to {most:,}. "
            'Say model="embedded" to use it all the same, or name a provider: model="anthropic:..."',
            n_rows,
        )


class HostedRefused(LotwiseError, PermissionError):
    """`data="local"` was said, and the model's executor sends content off this machine."""

    def __init__(self, message: str, model: str) -> None:
        super().__init__(message)
        self.model = model

    @classmethod
    def of(cls, model: str) -> HostedRefused:
        return cls(f'data="local" refuses {model!r}, which is answered elsewhere; nothing was rendered for it', model)


class PriceUnknown(LotwiseError, LookupError):
    """A budget was given, and what the model costs is not known."""

    def __init__(self, message: str, model: str) -> None:
        super().__init__(message)
        self.model = model

    @classmethod
    def of(cls, model: str, tier: str) -> PriceUnknown:
        return cls(
            f"budget= needs a price, and no {tier} price of {model!r} is known for certain; give "
            'prices={"input_mtok": ..., "output_mtok": ...} in US dollars a million tokens at the standard tier',
            model,
        )


class UnknownRun(LotwiseError, LookupError):
    """The ledger has no such run."""

    def __init__(self, message: str, run: str) -> None:
        super().__init__(message)
        self.run = run

    @classmethod
    def of(cls, run: str, available: Iterable[str]) -> UnknownRun:
        near = nearest(run, available)
        hint = f"; did you mean {' or '.join(near)}?" if near else "; `lotwise status` lists the runs"
        return cls(f"the ledger has no run {run!r}{hint}", run)


class UnreachableAnswers(LotwiseError, RuntimeError):
    """A run was taken up by its id, and its answers are judged by code that only the caller has."""

    def __init__(self, message: str, run: str) -> None:
        super().__init__(message)
        self.run = run

    @classmethod
    def of(cls, run: str) -> UnreachableAnswers:
        return cls(
            f"run {run} is judged by a Pydantic model or a check= that lives in the caller's code; "
            "repeat its map, which costs nothing, to see the answers",
            run,
        )


# --- Files of the command line: whoever named them acts -----------------------------------------------------------


class UnreadableTable(LotwiseError, ValueError):
    """An input file that cannot be read as the table that its suffix promises. `why` holds nothing of its rows."""

    def __init__(self, message: str, path: object, why: str) -> None:
        super().__init__(message)
        self.path, self.why = path, why

    @classmethod
    def of(cls, path: object, why: str) -> UnreadableTable:
        return cls(f"{path} cannot be read: {why}", path, why)


class UnwritableTable(LotwiseError, OSError):
    """An output file that cannot be written. What was there before is untouched."""

    def __init__(self, message: str, path: object, why: str) -> None:
        super().__init__(message)
        self.path, self.why = path, why

    @classmethod
    def of(cls, path: object, why: str) -> UnwritableTable:
        return cls(f"{path} cannot be written: {why}", path, why)


# --- A run that stopped: it carries itself, and the rows that it has ----------------------------------------------


class RunStopped(LotwiseError, RuntimeError):
    """A run stopped before each of its requests was final. What it has is kept; `.partial()` returns it.

    Attributes
    ----------
    run
        The run's handle.
    reason
        Why, in a code and a few words.
    """

    def __init__(self, message: str, run: Any, reason: str) -> None:
        super().__init__(message)
        self.run, self.reason = run, reason

    def partial(self) -> Any:
        """Return the input frame with the answers that there are."""
        return self.run.collect(partial=True)

    @classmethod
    def because(cls, run: Any, reason: str) -> RunStopped:
        """Make the error that fits a reason."""
        code, _, detail = reason.partition(":")
        kinds: dict[str, tuple[type[RunStopped], str]] = {
            "budget": (BudgetReached, "the budget is reached: not one request that is left fits what is left of it"),
            "systemic": (SystemicError, f"too many answers are bad ({detail}), so no more are bought"),
            "account_blocked": (AccountBlocked, f"the provider no longer takes requests of this account ({detail})"),
            "rejected": (ShardRejected, f"the provider refused a whole shard ({detail})"),
            "canceled": (RunCanceled, "the run was canceled"),
            "stopped": (cls, "every run of this ledger was stopped by hand"),
            "canary": (CanaryFailed, f"the canary does not let the rest through ({detail})"),
        }
        kind, text = kinds.get(code, (cls, reason))
        hint = {
            "budget": "Call again with a larger budget= to go on",
            "systemic": "Look at .partial(), mend the prompt or schema, or raise Options(systemic_rate=)",
            "account_blocked": "Nothing is lost and no attempt was used up: call again once the account is in order",
            "rejected": "The other shards went on; call again once the cause is mended",
            "canary": "Look at .partial(), mend the prompt, schema or threshold, or pass canary='override'",
        }.get(code, "Call again to go on")
        return kind(f"{text}. {hint}. Run {run.id}; .partial() has what is done", run, reason)


class BudgetReached(RunStopped):
    """No unsent request's upper bound fits what is left of the budget."""


class SystemicError(RunStopped):
    """More answers of a shard are bad than may be."""


class AccountBlocked(RunStopped):
    """The account cannot send: no credit, no permission, no such model."""


class ShardRejected(RunStopped):
    """The provider refused a shard whole, for a reason that waiting does not mend."""


class RunCanceled(RunStopped):
    """The run was canceled."""


class CanaryFailed(RunStopped):
    """Golden rows do not agree, or too many answers of the canary are invalid. A later call is refused as well, until
    the spec or the threshold changes or ``canary="override"`` is passed."""


class BadGolden(LotwiseError, ValueError):
    """A golden set cannot be used as it is."""

    @classmethod
    def because(cls, what: str) -> BadGolden:
        """Build from what is wrong with it; never from a value in it."""
        return cls(f"golden: {what}")


class PurgeRefused(LedgerError, RuntimeError):
    """Requests still need the text that a purge would remove. Nothing was changed."""

    def __init__(self, message: str, n_pending: int, n_submitted: int, n_unsettled: int) -> None:
        super().__init__(message)
        self.n_pending, self.n_submitted, self.n_unsettled = n_pending, n_submitted, n_unsettled

    @classmethod
    def of(cls, n_pending: int, n_submitted: int, n_unsettled: int) -> PurgeRefused:
        """Build from how many requests are pending, how many submitted, and how many answers nobody judged yet."""
        if n_unsettled:
            hint = f"{n_unsettled} recorded answers are not judged yet; resume their runs first"
        else:
            hint = (
                "they could not be sent without their text; finish or cancel their runs first, "
                "or pass force to purge all the same"
            )
        return cls(
            f"{n_pending} requests are pending and {n_submitted} submitted: {hint}", n_pending, n_submitted, n_unsettled
        )


class ContentPurged(LedgerError, ValueError):
    """What is asked for was taken out of the ledger by a purge of values."""

    @classmethod
    def messages(cls) -> ContentPurged:
        """Build for a spec without its system message and examples."""
        return cls(
            "the messages of this spec were purged, and no request can be made from it; repeat the map, which has them"
        )

    @classmethod
    def answers(cls, lots: Iterable[str]) -> ContentPurged:
        """Build from the lots whose drawn answers are gone."""
        named = ", ".join(list(lots)[:3])
        return cls(
            f"the answers of {named} were purged (`lotwise ledger purge --values`), so there is nothing to read; "
            "verdicts that were given before still count. Read from a copy of the ledger made before the purge"
        )


class ExportExists(LedgerError, FileExistsError):
    """There is a file where an export should go; it was left as it is."""

    def __init__(self, message: str, path: object) -> None:
        super().__init__(message)
        self.path = path

    @classmethod
    def at(cls, path: object) -> ExportExists:
        """Build from the path that is taken."""
        return cls(f"{path} is there already and was left as it is; name another file, or remove it", path)


# --- Evidence: whoever plans or inspects a lot acts ---------------------------------------------------------------


class PlanFixed(LotwiseError, ValueError):
    """Another rule is asked of a lot than the one that was written down before its first verdict."""

    def __init__(self, message: str, lot: str, kept: dict[str, float], asked: dict[str, float]) -> None:
        super().__init__(message)
        self.lot, self.kept, self.asked = lot, kept, asked

    @classmethod
    def of(cls, lot: str, kept: dict[str, float], asked: dict[str, float]) -> PlanFixed:
        """Build from the lot, the rule that stands, and the one asked for."""
        other = [name for name in kept if kept[name] != asked[name]]
        different = ", ".join(f"{name}={kept[name]:g} (asked: {asked[name]:g})" for name in other)
        return cls(
            f"lot {lot} was planned with {different} before people looked at it, and a rule is not changed after that; "
            "leave accept= out to go on with it",
            lot,
            kept,
            asked,
        )


class UnknownLot(LotwiseError, LookupError):
    """The ledger has no such lot."""

    def __init__(self, message: str, lots: tuple[str, ...]) -> None:
        super().__init__(message)
        self.lots = lots

    @classmethod
    def of(cls, lots: Iterable[str], available: Iterable[str]) -> UnknownLot:
        """Build from the lots that are not there and those that are."""
        unknown, known = tuple(lots), list(available)
        near = nearest(unknown[0], known) if unknown else []
        hint = f"; did you mean {' or '.join(near)}?" if near else "; is it another ledger's? Say which with ledger="
        return cls(f"the ledger has no lot {', '.join(map(repr, unknown[:3]))}{hint}", unknown)


class LotOpen(LotwiseError, RuntimeError):
    """A lot cannot be sampled while its requests are not final."""

    def __init__(self, message: str, lots: tuple[str, ...]) -> None:
        super().__init__(message)
        self.lots = lots

    @classmethod
    def of(cls, lots: Iterable[str]) -> LotOpen:
        """Build from the lots that are open."""
        still = tuple(lots)
        return cls(
            f"{len(still)} lots are open ({', '.join(still[:3])}): not each of their requests is final, and what has "
            "come in so far is no random sample. Finish the run first",
            still,
        )


class NothingToInspect(LotwiseError, ValueError):
    """A lot has no valid answer that could be looked at."""

    def __init__(self, message: str, lots: tuple[str, ...]) -> None:
        super().__init__(message)
        self.lots = lots

    @classmethod
    def of(cls, lots: Iterable[str]) -> NothingToInspect:
        """Build from the empty lots."""
        empty = tuple(lots)
        return cls(f"there is no valid answer to look at in {', '.join(empty[:3]) or 'this run'}", empty)
