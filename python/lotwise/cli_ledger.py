"""`lotwise ledger`: look into a ledger, check it, copy it, and take content out of it."""

from __future__ import annotations

from pathlib import Path

import click
import polars as pl

from lotwise import cli_options as opt
from lotwise import cli_tell as tell
from lotwise.clock import SystemClock
from lotwise.errors import UnknownRun
from lotwise.handle import LedgerHandle
from lotwise.ledger import export as exporting
from lotwise.ledger import purge as purging
from lotwise.ledger import runs as run_book
from lotwise.ledger import verify as verifying
from lotwise.ledger.store import Ledger

NOT_CLEAN = NOT_DONE = 1


def opened(path: Path | None) -> LedgerHandle:
    """Open a ledger that exists, and say so where it can only be read."""
    return LedgerHandle(store_of(path))


def store_of(path: Path | None) -> Ledger:
    """Open a ledger as `opened` does, for what a handle has no method for."""
    store = Ledger.open(path, create=False)
    if store.read_only is not None:
        tell.note(f"lotwise: the ledger at {store.path} can only be read here: {store.read_only}")
    return store


def run_id_of(handle: LedgerHandle, word: str) -> str:
    """Return the run whose id begins with a word, or the newest one with that word for its name.

    Raises
    ------
    UnknownRun
        There is none, or ids of several begin with it.
    """
    runs = handle.runs()
    found = runs.filter(pl.col("id").str.starts_with(word))["id"].to_list()
    if len(found) == 1:
        return str(found[0])
    named = runs.filter(pl.col("name") == word)["id"].to_list()
    if named:
        return str(named[-1])  # oldest first
    raise UnknownRun.of(word, found or [*runs["id"], *runs["name"].drop_nulls().unique(maintain_order=True)])


@click.group(short_help="Look into a ledger, check it, copy it, purge it.")
def ledger() -> None:
    """Look into a ledger, check it, copy it, and take content out of it."""


@ledger.command()
@opt.ledger
@opt.as_json
def runs(ledger: Path | None, as_json: bool) -> int:
    """List all runs, oldest first."""
    found = opened(ledger).runs()
    told = found.select("id", "name", "model", "state", "reason", "n_rows", "n_skipped", "n_requests", "created_at")
    tell.result(found, tell.table(told), as_json=as_json)
    return 0


@ledger.command(short_help="List requests with their state; no content.")
@click.option("--run", help="Only the requests of this run: its id, the start of it, or its name.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, help="List at most so many.")
@opt.ledger
@opt.as_json
def requests(run: str | None, limit: int, ledger: Path | None, as_json: bool) -> int:
    """List requests with their sending state, by key. Shows no content."""
    store = store_of(ledger)
    handle = LedgerHandle(store)
    found = handle.sql(
        "SELECT key, state, reason, attempts, faults, resends, due_at, content_bytes, spec FROM request ORDER BY key"
    )
    if run is not None:
        found = found.filter(pl.col("key").is_in(run_book.manifest(store, run_id_of(handle, run)).implode()))
    if found.height > limit:
        tell.note(f"lotwise: the first {limit:,} of {found.height:,}; more with --limit")
    told = found.head(limit)
    tell.result(told, tell.table(told.drop("spec")), as_json=as_json)
    return 0


@ledger.command(short_help="List the requests of a RUN without a valid answer.")
@click.argument("run")
@opt.ledger
@opt.as_json
def missing(run: str, ledger: Path | None, as_json: bool) -> int:
    """List every request of a RUN without a valid answer, with its state and reason."""
    handle = opened(ledger)
    found = handle.missing(run_id_of(handle, run))
    tell.result(found, tell.table(found), as_json=as_json)
    return 0


@ledger.command(short_help="Answer one read-only DuckDB QUERY.")
@click.argument("query")
@opt.ledger
@opt.as_json
def sql(query: str, ledger: Path | None, as_json: bool) -> int:
    """Answer one read-only DuckDB QUERY over the ledger's tables."""
    found = opened(ledger).sql(query)
    tell.result(found, tell.table(found), as_json=as_json)
    return 0


@ledger.command(short_help="Check every key and every invariant of a ledger.")
@opt.ledger
@opt.as_json
def verify(ledger: Path | None, as_json: bool) -> int:
    """Read all of a ledger, make every key anew, and check every invariant. Exits with 1 when something is wrong."""
    store = store_of(ledger)
    report = verifying.verify(store)
    checked = sum(report.checked.values())
    lines = [
        f"{store.path}: {'clean' if report.clean else 'NOT CLEAN'}, {len(report.checked)} checks, {checked:,} things"
    ]
    for finding in report.findings:
        lines.append(f"  {finding.check}: {finding.count:,} break this: {finding.holds}")
        lines += [f"    {example}" for example in finding.examples]
    tell.result({"clean": report.clean, **tell.plain(report)}, "\n".join(lines), as_json=as_json)
    return 0 if report.clean else NOT_CLEAN


@ledger.command(short_help="Copy the ledger's tables to a DuckDB file.")
@click.argument("path", type=click.Path(path_type=Path, dir_okay=False))
@opt.ledger
@opt.as_json
def export(path: Path, ledger: Path | None, as_json: bool) -> int:
    """Write a copy of the ledger's tables to PATH, a DuckDB file that anybody may open. It must not exist."""
    made = exporting.export(store_of(ledger), path)
    tell.result({"path": made, "bytes": made.stat().st_size}, str(made), as_json=as_json)
    return 0


@ledger.command(short_help="Take content out of a ledger for good.")
@click.option("--values", is_flag=True, help="Take parsed answers, prompts, system messages and examples out too.")
@click.option("--force", is_flag=True, help="Purge although requests are in flight; their answers are lost.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@opt.ledger
@opt.as_json
def purge(values: bool, force: bool, yes: bool, ledger: Path | None, as_json: bool) -> int:
    """Take rendered content and raw answers out of a ledger for good. Keys, parsed answers and costs stay."""
    store = store_of(ledger)
    if not yes:
        what = "content, raw answers and parsed answers" if values else "content and raw answers"
        if not click.confirm(f"Take {what} out of {store.path} for good?", err=True):
            tell.note("lotwise: nothing was done")
            return NOT_DONE
    done = purging.purge(store, values=values, force=force, now=SystemClock().now())
    lines = [
        ("requests", f"{done.n_requests:,}"),
        ("results", f"{done.n_results:,}"),
        ("files", f"{done.n_files:,} deleted"),
        ("bytes", f"{done.bytes_before:,} before, {done.bytes_after:,} now"),
    ]
    tell.result(done, tell.facts(lines), as_json=as_json)
    return 0
