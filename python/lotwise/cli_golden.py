"""The command line's words for what is asked of answers: a golden set in a file, how it is compared, a lot's rule."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click

from lotwise import tables
from lotwise.errors import BadArgument
from lotwise.evidence import Acceptance
from lotwise.golden import Golden, Match

CANARY = {"on": True, "off": False, "override": "override"}
"""The words of --canary, and the argument that each is."""


class Matching(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """`exact`, or `FILE.py:FUNCTION`."""

    name = "exact|file.py:function"

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        """Write it as it is typed; click would write EXACT."""
        return "exact|FILE.py:FUNCTION"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Literal["exact"] | Match:
        if callable(value):
            return value  # type: ignore[no-any-return]  # click may convert what it has converted already
        word = str(value)
        if word == "exact":
            return "exact"
        path, colon, name = word.rpartition(":")
        if not colon or not path.endswith(".py"):
            self.fail("is written exact or FILE.py:FUNCTION", param, ctx)
        spec = importlib.util.spec_from_file_location(Path(path).stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        failure = None
        try:
            spec.loader.exec_module(module)
        except OSError as error:
            failure = f"{path} cannot be read: {error.strerror or type(error).__name__}"
        except Exception as error:
            failure = f"{path} cannot be run: {type(error).__name__}: {error}"
        if failure is not None:
            self.fail(failure, param, ctx)
        function = getattr(module, name, None)
        if not callable(function):
            self.fail(f"{path} has no function {name!r}", param, ctx)
        return function  # type: ignore[no-any-return]


def arguments(
    *,
    golden: Path | None,
    answers: Sequence[str],
    match: Literal["exact"] | Match | None,
    threshold: float | None,
    canary: str | None,
    accept: dict[str, Any],
) -> dict[str, Any]:
    """Make a call's `golden`, `canary` and `accept` of what the command line gave.

    Raises
    ------
    UnreadableTable, BadGolden, BadArgument
    """
    return {
        "golden": _golden(golden, answers, match, threshold),
        "canary": None if canary is None else CANARY[canary],
        "accept": _acceptance(accept),
    }


def _golden(
    path: Path | None, answers: Sequence[str], match: Literal["exact"] | Match | None, threshold: float | None
) -> Golden | None:
    names = [name for given in answers for name in given.split(",") if name]
    about = {"--answers": names or None, "--match": match, "--threshold": threshold}
    if path is None:
        if said := [option for option, value in about.items() if value is not None]:
            raise click.UsageError(f"{said[0]} says something about --golden, which is not given")
        return None
    if not names:
        raise click.UsageError("--golden needs --answers: the columns of its file that hold the known answers")
    more = {} if threshold is None else {"threshold": threshold}
    return Golden(tables.read(path), answers=names, match="exact" if match is None else match, **more)


def _acceptance(given: dict[str, Any]) -> Acceptance | None:
    known = [field.name for field in dataclasses.fields(Acceptance)]
    if unknown := [name for name in given if name not in known]:
        raise BadArgument.unknown(unknown, known, where="--accept")
    return Acceptance(**given) if given else None
