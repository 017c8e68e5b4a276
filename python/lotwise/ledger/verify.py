"""Verifying a ledger: read all of it, make every key and digest anew, and check every invariant.

Checks hold at any moment, also while other processes send and collect: each is one consistent look, and between two of
them the lock is given back. Findings name a check and the keys, shards or runs that break it, never content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import polars as pl

from lotwise.errors import LedgerDamaged, LedgerStatementFailed
from lotwise.key import KEY_VERSION, keys, spec_digest, spec_from_json, spec_json
from lotwise.ledger import parts
from lotwise.ledger.store import Ledger
from lotwise.ledger.transaction import queries
from lotwise.lifecycle import SHARD_MOVES
from lotwise.plan import json_bytes

EXAMPLES = 5
"""Examples named for each finding."""

READ_ROWS = 250_000
"""Rows read in one look, so that nobody waits long for the lock."""

CHECKS: dict[str, str] = {
    "request_states": "request",
    "request_unique": "request",
    "live_shard": "request",
    "live_attempt": "request",
    "attempt_numbers": "attempt",
    "attempt_reasons": "attempt",
    "charged_once": "attempt",
    "attempt_shards": "attempt",
    "shard_attempts": "shard",
    "shard_runs": "shard",
    "shard_costs": "shard",
    "event_chain": "event",
    "result_attempts": "result",
    "result_once": "result",
    "result_order": "result",
    "result_raw": "result",
    "result_ids": "result",
    "answered": "request",
    "validation_results": "validation",
    "validation_values": "validation",
    "borrowed": "borrowed",
    "reservations": "reservation",
    "reserved_enough": "reservation",
    "manifests": "run",
    "run_references": "run",
    "request_specs": "request",
    "request_parts": "request",
    "strays": "stray",
    "lots": "lot",
    "draws": "draw",
    "samples": "sample",
    "inspections": "inspection",
    "golden_asks": "golden_ask",
    "gates": "gate",
    "shard_quality": "shard_quality",
    "orphans": "orphan",
    "given_up": "given_up",
}
"""The checks that are one statement each (`check_<name>` in sql/checks.sql), and the table whose rows each looks at."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something that should hold and does not.

    Attributes
    ----------
    check
        The check's name.
    holds
        What should hold, in words.
    count
        How many things break it.
    examples
        A few of them, by key, shard, run, digest, part or table.
    """

    check: str
    holds: str
    count: int
    examples: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a verification looked at and found.

    Attributes
    ----------
    checked
        How many rows, parts or specs each check looked at, by the check's name.
    findings
        What does not hold; empty when all is well.
    """

    checked: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def clean(self) -> bool:
        """Whether everything holds."""
        return not self.findings


def verify(ledger: Ledger) -> Report:
    """Read all of a ledger, re-derive its keys and digests, and check its invariants. Changes nothing.

    Parameters
    ----------
    ledger
        The ledger, which may be in use.

    Returns
    -------
    Report
        A check that could not be done because the file is damaged is a finding too.

    Raises
    ------
    LedgerDamaged
        The file cannot be opened at all.

    Notes
    -----
    Costs one read of the whole ledger, a part at a time; memory is bounded by the largest part and by the ledger's
    memory limit. No network. Index blocks are the one thing that is not read through: DuckDB rebuilds them from the
    rows that are.
    """
    checked: dict[str, int] = {}
    findings: list[Finding] = []

    def note(check: str, holds: str, found: tuple[int, tuple[str, ...]]) -> None:
        count, examples = found
        if count:
            findings.append(Finding(check=check, holds=holds, count=count, examples=examples[:EXAMPLES]))

    sizes, unreadable = _read_all(ledger)
    checked["readable"] = sum(sizes.values())
    note("readable", "every column of every table can be read", (len(unreadable), tuple(unreadable)))
    for name, table in CHECKS.items():
        statement = f"check_{name}"
        checked[name] = sizes.get(table, 0)
        try:
            note(name, _says(statement), _broken(ledger, statement))
        except (LedgerDamaged, LedgerStatementFailed) as error:
            note(name, f"the check can be made ({type(error).__name__})", (1, (table,)))
    checked["spec_digests"], specs = _bad_specs(ledger)
    note("spec_digests", "each spec's digest is that of its stored body", (len(specs), tuple(specs)))
    checked["parts"], checked["keys"] = 0, 0
    bad_parts: list[str] = []
    bad_keys: list[str] = []
    for part in _parts(ledger):
        checked["parts"] += 1
        checked["keys"] += part.n_keys
        bad_parts += [] if part.whole else [part.id]
        bad_keys += part.bad_keys
    note("parts", "each part can be read and holds the requests it is said to", (len(bad_parts), tuple(bad_parts)))
    note("keys", "each key is that of its spec and content", (len(bad_keys), tuple(sorted(bad_keys))))
    return Report(checked=checked, findings=tuple(findings))


def _broken(ledger: Ledger, statement: str) -> tuple[int, tuple[str, ...]]:
    frames = {"legal": legal_moves()} if "legal" in queries()[statement] else None
    with ledger.reading("verify") as tx:
        return tx.sample(statement, EXAMPLES, frames=frames)


def legal_moves() -> pl.DataFrame:
    """Return every legal move of a shard as `origin` and `target`."""
    pairs = [(origin.value, target.value) for origin, targets in SHARD_MOVES.items() for target in targets]
    return pl.DataFrame(pairs, schema={"origin": pl.String, "target": pl.String}, orient="row")


def _says(statement: str) -> str:
    """Return what a check's first comment line says holds."""
    return queries()[statement].splitlines()[0].lstrip("- ")


def _read_all(ledger: Ledger) -> tuple[dict[str, int], list[str]]:
    """Read every column of every table; return the rows of each, and the tables that cannot be read."""
    with ledger.reading("verify") as tx:
        tables = [str(row[0]) for row in tx.rows("tables")]
    sizes: dict[str, int] = {}
    unreadable: list[str] = []
    for table in tables:
        try:
            with ledger.reading("verify") as tx:
                sizes[table] = sum(tx.read_through(table, step=READ_ROWS))
        except (LedgerDamaged, LedgerStatementFailed):
            unreadable.append(table)
    return sizes, unreadable


def _bad_specs(ledger: Ledger) -> tuple[int, list[str]]:
    """Return how many specs there are, and the digests of those whose body is another's."""
    with ledger.reading("verify") as tx:
        stored = tx.frame("specs")
        purged = {row[0] for row in tx.rows("purged")}
    bad = []
    for digest, model, body, version in stored.iter_rows():
        if '"purged":' in body and "values_purged_at" in purged:
            continue  # its text is gone by request; the digest cannot be made anew
        ours = version == KEY_VERSION
        if not (_is_spec(body, digest, model) if ours else sha256(body.encode()).hexdigest() == digest):
            bad.append(digest)
    return stored.height, bad


def _is_spec(body: str, digest: str, model: str) -> bool:
    """Say whether a text is the spec of a digest, as it was written down."""
    try:
        spec = spec_from_json(body)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False  # it was written by nothing of ours
    return spec_json(spec) == body and spec.model_name == model and spec_digest(spec) == digest


@dataclass(frozen=True, kw_only=True)
class _Part:
    id: str
    n_keys: int
    whole: bool
    bad_keys: list[str]


def _parts(ledger: Ledger) -> Iterator[_Part]:
    """Decode one part after the other and make its keys anew."""
    with ledger.reading("verify") as tx:
        named = tx.rows("part_ids")
    for part, n_requests in named:
        try:
            content = parts.load(ledger.parts_folder, part)
        except LedgerDamaged:
            yield _Part(id=part, n_keys=0, whole=False, bad_keys=[])
            continue
        with ledger.reading("verify") as tx:
            said = tx.frame("part_requests", frames={"k": content.select("key")}, part=part)
        held = said.join(content, on="key", how="left")
        wrong = set(held.filter(pl.Series(json_bytes(held["content"]) != held["content_bytes"]))["key"])
        for (spec,), group in held.drop_nulls("content").group_by("spec"):
            is_digest = re.fullmatch("[0-9a-f]{64}", str(spec))
            right = group["key"] == keys(str(spec), group["content"]) if is_digest else pl.Series([False])
            wrong |= set(group["key"].filter(~right))
        whole = content.height == n_requests and not held.filter("here")["content"].has_nulls()
        yield _Part(id=part, n_keys=content.height, whole=whole, bad_keys=sorted(wrong))
