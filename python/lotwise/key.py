"""Content keys: what can change an answer, and nothing else, goes into a request's key.

The spec (model, fixed messages, wire schema, parameters) is written as RFC 8785 JSON and hashed once; each request's
key is a hash over that digest and the row's content. So column order, row order, unrelated columns, budget and
transport never ask for an answer anew, and anything that the model can see does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import polars as pl
import rfc8785

from lotwise.errors import BadParams, ContentPurged
from lotwise.request import Purpose, Spec

KEY_VERSION = 1
"""The version of the canonical form below. Raise it with any change of that form; older keys are still looked up."""

KEY_HEX = 40
"""Characters of a key: 160 bits of SHA-256, short enough for every provider's request id."""

_SAFE_INTEGER = 2**53 - 1
"""The largest integer that RFC 8785 writes; JSON readers that use doubles lose larger ones."""

_BIG = "$int"
"""The sole member of the object that stands for a larger whole number, such as a 64-bit seed."""


def spec_json(spec: Spec) -> str:
    """Write a spec as canonical JSON: the text that is hashed, and that the ledger keeps.

    Parameters
    ----------
    spec
        What all requests of a run share.

    Returns
    -------
    str
        RFC 8785 JSON. The wire schema stands in it as one string, so that the order of its properties counts.

    Raises
    ------
    BadParams
        A parameter or message cannot be written as JSON: not a number, a set, a lone surrogate.
    """
    fields = {
        "examples": [list(pair) for pair in spec.examples],
        "key_version": KEY_VERSION,
        "max_tokens": spec.max_tokens,
        "model": spec.model,
        "model_digest": spec.model_digest,
        "params": dict(spec.params),
        "provider": spec.provider,
        "purpose": str(spec.purpose),
        "repeat": spec.repeat,
        "system": spec.system,
        "wire_schema": spec.wire_schema,
    }
    if spec.anew is not None:  # as with parameters, what is not set is not in the key
        fields["anew"] = spec.anew
    return rfc8785.dumps({name: _plain(value, name) for name, value in fields.items()}).decode()


def spec_from_json(text: str) -> Spec:
    """Read back what `spec_json` wrote.

    Parameters
    ----------
    text
        The canonical text.

    Returns
    -------
    Spec
        A spec with the same digest. A whole float of the original (``1.0``) comes back as an integer: RFC 8785 knows
        one number.

    Raises
    ------
    ContentPurged
        Its messages were purged.
    ValueError
        The text was written for another key version, or it is not such a text.
    """
    fields = json.loads(text)
    if fields.get("purged"):
        raise ContentPurged.messages()
    version = fields.pop("key_version")
    if version != KEY_VERSION:
        raise ValueError(f"this spec was written for key version {version}; this lotwise reads version {KEY_VERSION}")
    fields["examples"] = tuple((user, answer) for user, answer in fields["examples"])
    fields["purpose"] = Purpose(fields["purpose"])
    return Spec(**{name: _restored(value) for name, value in fields.items()})


def spec_digest(spec: Spec) -> str:
    """Hash all of a spec that can change an answer.

    Returns
    -------
    str
        64 hex characters: SHA-256 of `spec_json`. A local model counts by its name and digest, wherever it lies.

    Raises
    ------
    BadParams
        As `spec_json`.
    """
    if spec.model_digest is not None:
        spec = replace(spec, model=spec.model.rstrip("/").rpartition("/")[2])
    return sha256(spec_json(spec).encode()).hexdigest()


def keys(spec_digest: str, contents: pl.Series) -> pl.Series:
    """Name each request by what it asks.

    Parameters
    ----------
    spec_digest
        64 hex characters, from `spec_digest`.
    contents
        Rendered user messages (String); null where the row is skipped.

    Returns
    -------
    pl.Series
        String of the same height, named "key": 40 lower-case hex characters of SHA-256 over the digest and the
        content's UTF-8 bytes; null stays null.

    Notes
    -----
    The digest's length is fixed, so no two pairs of digest and content are hashed as the same bytes. The hash of the
    digest is copied, not repeated; about 1.2 us a row of 1.2 KB.
    """
    if len(spec_digest) != 64:
        raise ValueError(f"a spec digest has 64 hex characters, not {len(spec_digest)}")
    copy = sha256(spec_digest.encode("ascii")).copy
    found: list[str | None] = []
    # Bytes out of Polars cost half of what text does: no decoding here, no encoding for the hash.
    for content in contents.cast(pl.Binary):
        if content is None:
            found.append(None)
            continue
        state = copy()
        state.update(content)
        found.append(state.hexdigest()[:KEY_HEX])
    return pl.Series("key", found, dtype=pl.String)


def _plain(value: Any, path: str) -> Any:
    """Copy a value into what RFC 8785 writes, large integers as objects; refuse the rest with its path."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            pass
        else:
            return str(value)
        raise BadParams.at(path, "text with a lone surrogate")
    if isinstance(value, int):
        return int(value) if abs(value) <= _SAFE_INTEGER else {_BIG: str(int(value))}
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadParams.at(path, "not a finite number")
        # A large whole float is written without a point, and would be read back as an integer.
        return {_BIG: str(int(value))} if value.is_integer() and abs(value) > _SAFE_INTEGER else value
    if isinstance(value, Mapping):
        if _BIG in value:
            raise BadParams.at(path, f"a dict with the reserved name {_BIG!r}")
        for name in value:
            if not isinstance(name, str):
                raise BadParams.at(path, f"a dict with a key of type {type(name).__name__}")
        return {_plain(name, path): _plain(item, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, f"{path}[{i}]") for i, item in enumerate(value)]
    raise BadParams.at(path, f"of type {type(value).__name__}")


def _restored(value: Any) -> Any:
    """Undo `_plain`."""
    if isinstance(value, dict):
        if value.keys() == {_BIG}:
            return int(value[_BIG])
        return {name: _restored(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_restored(item) for item in value]
    return value
