"""Exporting a ledger: a compact copy in a DuckDB file of its own, which anyone may open or attach without our lock.

The copy holds every table; rendered content lies in parts beside the ledger and is not in it. It is written under
another name and appears whole, and never takes the place of a file that is there.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from lotwise.errors import ExportExists, LedgerUnwritable
from lotwise.ledger.files import wal_of
from lotwise.ledger.store import Ledger


def export(ledger: Ledger, path: str | os.PathLike[str]) -> Path:
    """Write a snapshot of a ledger.

    Parameters
    ----------
    ledger
        The ledger, which may be in use; others wait while it is read.
    path
        The file to make.

    Returns
    -------
    Path
        The file's absolute path. Only its owner can read it: it holds raw and parsed answers.

    Raises
    ------
    ExportExists
        There is something of that name, a file or anything else. It is left as it is.
    LedgerUnwritable
        The file cannot be made there.
    """
    target = Path(path).expanduser().absolute()
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # the name is ours, or nobody's
    except FileExistsError:
        raise ExportExists.at(target) from None
    except OSError as error:
        raise LedgerUnwritable.at(target, error.strerror or type(error).__name__) from None
    work = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        ledger.copy_to(work)
        os.replace(work, target)
    except BaseException:
        for left in (work, wal_of(work), target):
            left.unlink(missing_ok=True)
        raise
    return target
