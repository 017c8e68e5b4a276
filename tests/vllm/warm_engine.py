"""The options of the one engine that the tests against the real vLLM share."""

from __future__ import annotations

from typing import Any

import lotwise

ENGINE = {"enforce_eager": True, "max_model_len": 1024, "block_size": 32}
"""Without compilation the engine is up in a fraction of the time; blocks are the smallest that a CPU takes."""


def options(**more: Any) -> lotwise.Options:
    """Return options for it."""
    return lotwise.Options(executor_options={"engine": ENGINE, **more})
