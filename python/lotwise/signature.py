"""Showing a call's real keyword arguments in `help()` and in a notebook, though `**arguments` carries them.

The names, types and meanings stand once, in `lotwise.call.Arguments`; type checkers read them there through `Unpack`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from lotwise.call import Arguments

F = TypeVar("F", bound=Callable[..., Any])

DEFAULTS = {"on_null": "skip"}
"""What is not None when it is not given."""

_HEADING = "Keyword arguments\n-----------------\n"


def spelled_out(function: F) -> F:
    """Give a function that takes ``**arguments: Unpack[Arguments]`` its full signature and docstring.

    The function itself is returned, with `__signature__` set and its docstring's entry for ``**arguments`` replaced by
    the arguments themselves, or these added at the end.
    """
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=DEFAULTS.get(name),
            annotation=getattr(annotation, "__forward_arg__", annotation),
        )
        for name, annotation in Arguments.__annotations__.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *named])  # type: ignore[attr-defined]
    doc = inspect.getdoc(function) or ""
    entry = "**arguments\n    See `lotwise.call.Arguments`."
    function.__doc__ = doc.replace(entry, meanings()) if entry in doc else f"{doc}\n\n{_HEADING}{meanings()}"
    return function


def meanings() -> str:
    """Return what the docstring of `Arguments` says of each, without its opening."""
    doc = inspect.getdoc(Arguments) or ""
    return doc.partition("\n\n")[2].rstrip()
