"""The dated table of provider limits, and how a user overrides it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from importlib import resources
from typing import Any

from lotwise.request import Limits

_DAY_S = 86_400.0


@cache
def table() -> Mapping[str, Any]:
    """Read ``limits.toml``: one table a provider, and `checked`, the day on which it was last compared."""
    text = resources.files("lotwise.executors").joinpath("limits.toml").read_text("utf-8")
    return tomllib.loads(text)


def limits_of(provider: str, overrides: Mapping[str, Any] | None = None) -> Limits:
    """Return a provider's limits.

    Parameters
    ----------
    provider
        A table of ``limits.toml``.
    overrides
        Fields of `Limits` that replace the table's.

    Raises
    ------
    ValueError
        An override that is no field of `Limits`.
    """
    entry = table()[provider]
    days = entry.get("retention_days")
    known = Limits(
        max_requests=entry["max_requests"],
        max_bytes=entry.get("max_bytes"),
        max_row_bytes=entry.get("max_row_bytes"),
        max_in_flight=entry.get("max_in_flight"),
        retention_s=None if days is None else days * _DAY_S,
    )
    if not overrides:
        return known
    names = {f.name for f in fields(Limits)}
    unknown = sorted(set(overrides) - names)
    if unknown:
        raise ValueError(f"limits has no {', '.join(unknown)}; it has {', '.join(sorted(names))}")
    return replace(known, **overrides)
