"""lotwise: LLM work over DataFrames, run the way a factory runs lots.

Importing it registers `.llm` on Polars frames. The same verbs are functions here, for type checkers.
"""

from __future__ import annotations

import os

import polars as _pl

from lotwise import errors
from lotwise.estimate import Plan
from lotwise.evidence import Acceptance
from lotwise.frame import answers, map, peek, plan, preview, submit
from lotwise.golden import Golden
from lotwise.handle import LedgerHandle, open_ledger
from lotwise.inspection import Inspected, inspect
from lotwise.job import Options
from lotwise.reading import sample
from lotwise.run import Run
from lotwise.schema import Nullable
from lotwise.status import Status

__version__ = "0.1.0"


def runs(ledger: str | os.PathLike[str] | None = None) -> _pl.DataFrame:
    """Return all runs of a ledger, oldest first.

    Parameters
    ----------
    ledger
        The ledger's folder; None to find it as `map` does.

    Raises
    ------
    LedgerNotFound
        There is none.
    """
    return open_ledger(ledger).runs()


__all__ = [
    "Acceptance",
    "Golden",
    "Inspected",
    "LedgerHandle",
    "Nullable",
    "Options",
    "Plan",
    "Run",
    "Status",
    "answers",
    "errors",
    "inspect",
    "map",
    "open_ledger",
    "peek",
    "plan",
    "preview",
    "runs",
    "sample",
    "submit",
]
