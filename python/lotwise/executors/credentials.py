"""What may be kept of a credential: a fingerprint, by which two accounts are told apart and nothing can be called; and
of an executor's options all but what may hold one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import fields
from typing import Any
from urllib.parse import urlsplit

from lotwise.errors import MissingCredentials


def digest(secret: str) -> str:
    """Return a fingerprint of a credential that does not give it away."""
    return "key-" + hashlib.sha256(b"lotwise account\0" + secret.encode()).hexdigest()[:12]


def refuse_unsendable(provider: str, variable: str, secret: str | None) -> None:
    """Refuse a credential that no header can carry. Raises `MissingCredentials`, which does not quote it."""
    if secret is not None and not (secret.isascii() and secret.isprintable()):
        raise MissingCredentials.unsendable(provider, variable)


def may_hold_secret(url: str) -> bool:
    """Say whether an address holds more than an address: a name and password, a query, a fragment."""
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query) or bool(parts.fragment)


def set_by_hand(options: Any, *, without: Iterable[str] = ()) -> dict[str, Any]:
    """Return the fields of an executor's options that are not the default, to be written down with a run.

    Left out are those named, and a `base_url` that may hold a secret.
    """
    kept = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in without}
    kept = {name: value for name, value in kept.items() if value != getattr(type(options), name)}
    if may_hold_secret(kept.get("base_url", "")):
        del kept["base_url"]
    return kept
