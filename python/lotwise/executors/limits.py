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


def retention(provider: str, limits: Limits) -> str | None:
    """Say for how long what is sent in batches can be read at a provider, and of which day that is known.

    Parameters
    ----------
    limits
        Those of the executor: an interactive one has no retention, and an override counts.

    Returns
    -------
    Words for a person; None where this table does not know it.
    """
    if limits.retention_s is None or provider not in table():
        return None
    days = f"{limits.retention_s / _DAY_S:g} days"
    return f"for {days} by {provider}: {table()[provider]['retention']} (checked {table()['checked']})"


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
