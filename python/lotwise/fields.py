"""Values that a user makes by name, such as `Options`.

A name that they do not have is told as `map` tells one, with the nearest that there is, and not by Python's bare
TypeError.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any, TypeVar

from lotwise.errors import BadArgument

T = TypeVar("T")


def known_by_name(cls: type[T]) -> type[T]:
    """Make a dataclass refuse names that it does not have, and lack of those that it needs, with `BadArgument`.

    Its signature stays as it is.
    """
    made: Any = cls.__init__
    signature = inspect.signature(made)
    names = [field.name for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]

    @functools.wraps(made)
    def init(self: T, *values: Any, **given: Any) -> None:
        if unknown := [name for name in given if name not in names]:
            raise BadArgument.unknown(unknown, names, where=f"in lotwise.{cls.__name__}")
        try:
            signature.bind(self, *values, **given)
        except TypeError as misfit:
            told = f"lotwise.{cls.__name__}(...): {misfit}; known are {', '.join(names)}"
            raise BadArgument(told, ()) from None
        made(self, *values, **given)

    cls.__init__ = init  # type: ignore[assignment]
    shown = list(signature.parameters.values())[1:]
    cls.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]  # a __new__ would hide it
    return cls
