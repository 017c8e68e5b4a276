"""What a second attempt changes against its request, and the one place that says how.

A retry with a changed setting is another attempt of the same key, so the change is stored as JSON beside the
attempt and the body that was sent can be derived again from request and variant. Every executor applies it
through `apply`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def apply(content: str, variant: str | None) -> tuple[str, dict[str, Any]]:
    """Change one request's user message and settings as its attempt's variant says.

    Parameters
    ----------
    content
        The rendered user message of the request.
    variant
        JSON of what this attempt changes, or None for nothing. Known: ``max_tokens`` (int), the new limit of
        output tokens; ``faults`` (list of objects with ``path`` and ``kind``), what was wrong with the answer
        before.

    Returns
    -------
    tuple
        The user message to send, and the settings that replace the spec's.

    Raises
    ------
    ValueError
        The variant is not such an object: what it asks could not be derived again.
    """
    if variant is None:
        return content, {}
    change = json.loads(variant)
    if not isinstance(change, dict) or (unknown := set(change) - {"faults", "max_tokens"}):
        what = f"unknown {', '.join(sorted(unknown))}" if isinstance(change, dict) else "no JSON object"
        raise ValueError(f"this variant cannot be applied: {what}")
    settings: dict[str, Any] = {}
    if "max_tokens" in change:
        limit = change["max_tokens"]
        if type(limit) is not int or limit < 1:
            raise ValueError("this variant cannot be applied: max_tokens is no positive integer")
        settings["max_tokens"] = limit
    if faults := change.get("faults"):
        if not all(isinstance(fault, dict) and isinstance(fault.get("kind"), str) for fault in faults):
            raise ValueError("this variant cannot be applied: a fault has no kind")
        content = f"{content}\n\n{faults_text(faults)}"
    return content, settings


def faults_text(faults: Sequence[Mapping[str, str]]) -> str:
    """Tell the model what was wrong with its answer before: kinds and paths, never a value.

    The text comes after the row's content, so that what requests share stays first and byte-identical.
    """
    told = "; ".join(f"{fault.get('path') or 'the whole answer'}: {fault['kind']}" for fault in faults)
    return f"An earlier answer to this did not fit the required form ({told}). Answer again in that form."
