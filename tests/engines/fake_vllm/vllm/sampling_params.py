"""The parameters of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class RequestOutputKind:
    """How often a row is heard of."""

    FINAL_ONLY = 2


@dataclass
class StructuredOutputsParams:
    """What an answer is held to."""

    json: Any


@dataclass
class SamplingParams:
    """Like vLLM's, with the temperature that everybody gets who says none."""

    max_tokens: int
    output_kind: int
    temperature: float = 1.0
    structured_outputs: StructuredOutputsParams | None = None
