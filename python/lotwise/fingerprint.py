"""Fingerprints of rules written in Python: the text that stands for a function or a model in a validator's digest.

A function is its bytecode with its constants, defaults and what it closes over; a model is its JSON Schema with the
source, or where there is none the code, of its classes. Globals that a function reads are not followed.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel


def code_of(function: Callable[..., Any]) -> str:
    """Write a function as text that changes when what it does is changed."""
    return repr(_value(function, ()))


def model_text(model: type[BaseModel]) -> str:
    """Write a model, and the models that it holds, as text that changes when its rules are changed."""
    parts: list[Any] = []
    for each in _models(model, []):
        parts.append([each.__qualname__, _source(each) or _members(each)])
        for name, given in each.model_fields.items():
            found = (getattr(rule, "func", None) for rule in given.metadata)
            parts.append([name, [code_of(function) for function in found if callable(function)]])
    return repr(parts)


def _models(model: type[BaseModel], found: list[type[BaseModel]]) -> list[type[BaseModel]]:
    """List a model, its bases, and the models in its fields, each once."""
    for each in model.__mro__:
        if each is BaseModel or not issubclass(each, BaseModel) or each in found:
            continue
        found.append(each)
        for given in each.model_fields.values():
            for part in _parts(given.annotation):
                if isinstance(part, type) and issubclass(part, BaseModel):
                    _models(part, found)
    return found


def _parts(annotation: Any) -> Iterator[Any]:
    """Give a type and the types inside it."""
    yield annotation
    for each in typing.get_args(annotation):
        yield from _parts(each)


def _source(model: type[BaseModel]) -> str | None:
    try:
        return inspect.getsource(model)
    except (OSError, TypeError):
        return None


def _members(model: type[BaseModel]) -> list[Any]:
    """Write the functions of a class whose source is not at hand, as in an interactive session."""
    members = []
    for name, member in sorted(vars(model).items()):
        function = getattr(member, "wrapped", member)
        function = getattr(function, "__func__", function)
        if isinstance(function, types.FunctionType):
            members.append([name, code_of(function)])
    return members


def _value(value: Any, above: tuple[int, ...]) -> Any:
    """Write a function, a constant or a container of them; anything else by its type only."""
    if id(value) in above:
        return "itself"
    above = (*above, id(value))
    if isinstance(value, (str, bytes, int, float, complex, type(None), type(Ellipsis))):
        return [type(value).__name__, repr(value)]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [_value(each, above) for each in value]]
    if isinstance(value, (set, frozenset)):
        return [type(value).__name__, sorted(repr(_value(each, above)) for each in value)]
    if isinstance(value, dict):
        return ["dict", [[_value(name, above), _value(each, above)] for name, each in value.items()]]
    if isinstance(value, types.CodeType):
        names = [value.co_names, value.co_varnames, value.co_freevars]
        return ["code", value.co_code.hex(), _value(value.co_consts, above), names]
    if isinstance(value, functools.partial):
        return ["partial", _value(value.func, above), _value(value.args, above), _value(value.keywords, above)]
    if isinstance(value, types.MethodType):
        return ["method", _value(value.__func__, above), type(value.__self__).__qualname__]
    if isinstance(value, types.FunctionType):
        cells = [_cell(cell, above) for cell in value.__closure__ or ()]
        defaults = [_value(value.__defaults__, above), _value(value.__kwdefaults__, above)]
        return ["function", _value(value.__code__, above), defaults, cells]
    if isinstance(value, type):
        return ["class", f"{value.__module__}.{value.__qualname__}"]
    if callable(value) and isinstance(call := type(value).__call__, types.FunctionType):
        return ["object", type(value).__qualname__, _value(call, above), _value(vars(value), above)]
    return ["other", getattr(value, "__qualname__", type(value).__qualname__)]


def _cell(cell: types.CellType, above: tuple[int, ...]) -> Any:
    try:
        return _value(cell.cell_contents, above)
    except ValueError:  # a cell that is not filled yet
        return "empty"
