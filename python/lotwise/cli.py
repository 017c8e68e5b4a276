"""The command line: the verbs of the API over files, for a shell, a Makefile or a scheduler.

A result goes to standard output and everything else to standard error, so that output can be piped. The exit code says
whether to trust the file: 0 whole, 4 whole but for rows that have no valid answer, 3 stopped with what there is, 2
nothing was done because the call cannot be right.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import polars as pl

import lotwise
from lotwise import call as calls
from lotwise import cli_options as opt
from lotwise import cli_review, models, signals, tables
from lotwise import cli_summary as summary
from lotwise import cli_tell as tell
from lotwise.cli_ledger import ledger as ledger_commands
from lotwise.cli_ledger import opened, run_id_of
from lotwise.errors import (
    ClaimLost,
    ExecutorError,
    LedgerDiskFull,
    LedgerInconsistent,
    LedgerLocked,
    LedgerStatementFailed,
    LotwiseError,
    ModelDownloadFailed,
    OutputClash,
    RunStopped,
    SilentServer,
    UnknownColumn,
    UnwritableTable,
)
from lotwise.frame import PREVIEW_ROWS
from lotwise.render import Template
from lotwise.run import Run
from lotwise.status import Status

DONE, FAILED, WRONG_USE, STOPPED, INCOMPLETE, INTERRUPTED, TERMINATED = 0, 1, 2, 3, 4, 130, 143

_GRAVEST = (DONE, INCOMPLETE, STOPPED, FAILED)
"""What is told of several runs: the last of these that holds for one of them."""

_NOT_THE_CALL = (
    ClaimLost,
    ExecutorError,
    LedgerDiskFull,
    LedgerInconsistent,
    LedgerLocked,
    LedgerStatementFailed,
    ModelDownloadFailed,
    SilentServer,
)
"""Errors that are no fault of the call: the same call may work later, or elsewhere."""

EXIT_CODES = """\b
Exit codes:
  0    done; each row that asks for something has a valid answer
  1    failed, through no fault of the call: a locked ledger, a network
  2    wrong use; nothing was sent
  3    stopped with a partial result; the output file is written
  4    finished, and some rows have no valid answer; the output file is written
  130  interrupted; what was sent is not lost, and repeating goes on
  143  the same, by SIGTERM
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, signals.terminate)
    sys.exit(_run(words))


def _run(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        code = cli.main(words, prog_name="lotwise", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        _tell_as_json("UsageError", error.format_message(), as_json)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt) as interrupt:
        cause = interrupt.__cause__ or interrupt  # click says Abort for what it was interrupted by
        return TERMINATED if isinstance(cause, signals.Terminated) else INTERRUPTED
    except BrokenPipeError:  # whoever read our output has closed it: `| head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except LotwiseError as error:
        message = tell.error_in_words(error)
        tell.note(f"lotwise: {message}")
        _tell_as_json(type(error).__name__, message, as_json)
        return STOPPED if isinstance(error, RunStopped) else FAILED if isinstance(error, _NOT_THE_CALL) else WRONG_USE
    return code if isinstance(code, int) else DONE


def _tell_as_json(kind: str, message: str, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"error": {"kind": kind, "message": message}}, ensure_ascii=False))


@click.group(epilog=EXIT_CODES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(lotwise.__version__, prog_name="lotwise")
def cli() -> None:
    """LLM work over tables: each unique request is paid once, and each row is accounted for."""


_SOURCE = click.argument("source", metavar="IN", type=click.Path(path_type=Path))


@cli.command(short_help="Ask a model about every row of IN; write OUT.")
@_SOURCE
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--label",
    type=opt.Label(),
    help="A column of IN that holds the true answer, and the field it is compared with. Where they have the same name, "
    "OUT has the column as COLUMN_label.",
)
@opt.of_job
def map(
    source: Path,
    target: Path,
    label: tuple[str, str] | None,
    prompt: str,
    schema: Any,
    limit: int | None,
    arguments: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> int:
    """Ask a model about every row of IN, and write IN with the answers to OUT.

    IN and OUT are .parquet, .csv or .ndjson (.jsonl). OUT appears whole or not at all, and is never IN. The same
    command again sends only what is missing. Exits with 4 where rows end without a valid answer.
    """
    began = time.monotonic()
    tables.check_target(target, source)
    frame = _read(source, limit, arguments["model"])
    if label is not None:
        frame, label = _set_apart(frame, label, prompt, arguments)
    call = calls.prepare(frame, prompt, schema, **arguments)
    if label is not None and label[1] not in call.schema.dtypes:
        raise UnknownColumn.from_names([label[1]], call.schema.dtypes, where="--label")
    run = Run.begin(call, frame)
    stopped: RunStopped | None = None
    try:
        answered = run.collect()
    except RunStopped as stop:
        stopped, answered = stop, stop.partial()
    try:
        tables.write(answered, target)
    except UnwritableTable:
        tell.note("lotwise: all answers are in the ledger; name another OUT and repeat, nothing is sent again")
        raise
    if stopped is not None:
        tell.note(f"lotwise: {tell.error_in_words(stopped, partial=str(target))}")
    status = run.status()
    if as_json or not quiet:
        told = summary.of(status, run.missing(), answered, target, time.monotonic() - began, label, arguments, stopped)
        tell.result(told, summary.in_words(told), as_json=as_json)
    return STOPPED if stopped is not None else _whole(status.rows)


@cli.command(short_help="Say what map would do and cost; send nothing.")
@_SOURCE
@opt.of_job
def plan(
    source: Path, prompt: str, schema: Any, limit: int | None, arguments: dict[str, Any], as_json: bool, quiet: bool
) -> int:
    """Say what map would do: what is answered, what would be sent, and what it may cost. Sends and writes nothing."""
    shown = lotwise.plan(_read(source, limit, arguments["model"]), prompt, schema, **arguments)
    why = dict(shown.rows.group_by("why").len().sort("why").iter_rows())
    tell.result({**tell.plain(shown), "why": why}, tell.as_option(str(shown)), as_json=as_json)
    return DONE


@cli.command(short_help="Answer the first rows now and show them.")
@_SOURCE
@click.option(
    "-n", "rows", type=click.IntRange(1), default=PREVIEW_ROWS, show_default=True, help="How many rows are answered."
)
@opt.of_call
def preview(
    source: Path,
    rows: int,
    prompt: str,
    schema: Any,
    limit: int | None,
    arguments: dict[str, Any],
    as_json: bool,
    quiet: bool,
) -> int:
    """Answer the first rows now and show them. They are not bought again by map."""
    frame = _read(source, limit, arguments["model"])
    arguments["tier"] = arguments["tier"] or "interactive"
    stopped: RunStopped | None = None
    try:
        answered = lotwise.preview(frame, prompt, schema, rows, **arguments)
    except RunStopped as stop:
        stopped, answered = stop, stop.partial()
        tell.note(f"lotwise: {tell.error_in_words(stop, partial='what is shown')}")
    prefix = arguments["prefix"] or ""
    used = [name for name in Template.parse(prompt).columns if name in frame.columns]
    new = [name for name in answered.columns if name not in frame.columns]
    fields = new[: new.index(f"{prefix}llm_id")]
    shown = answered[[*used, *fields, f"{prefix}llm_state", f"{prefix}llm_error"]]
    tell.result(answered[[*used, *new]], tell.table(shown), as_json=as_json)
    states = answered[f"{prefix}llm_state"].cast(pl.String).value_counts()
    return STOPPED if stopped is not None else _whole(dict(states.iter_rows()))


@cli.command(short_help="Show where a RUN stands, or list all runs.")
@click.argument("run", required=False)
@opt.ledger
@opt.as_json
def status(run: str | None, ledger: Path | None, as_json: bool) -> int:
    """Show where a RUN stands (its id, the start of it, or its --name), or list all runs."""
    handle = opened(ledger)
    if run is None:
        runs = handle.runs().drop("prompt", "options", "spec", "validator", "job")
        told = runs.select(
            "id", "name", "model", "state", "reason", "n_rows", "n_requests", created=_minute("created_at")
        )
        tell.result(runs, tell.table(told), as_json=as_json)
    else:
        shown = handle.status(run_id_of(handle, run))
        tell.result(shown, str(shown), as_json=as_json)
    return DONE


@cli.command(short_help="Go on with a RUN in this process.")
@click.argument("run", required=False)
@click.option(
    "--all", "every", is_flag=True, help="Go on with every open run, and collect what ended ones have in flight."
)
@opt.executor_option
@opt.poll_s
@opt.ledger
@opt.as_json
@opt.quiet
def resume(
    run: str | None,
    every: bool,
    executor_option: dict[str, Any],
    poll_s: float | None,
    ledger: Path | None,
    as_json: bool,
    quiet: bool,
) -> int:
    """Go on with a RUN in this process: poll what is in flight, send what is missing, judge what comes.

    Without RUN and --all it is the newest open run. The answers go to the ledger; repeat the map to write its file,
    which sends nothing again.
    """
    if run is not None and every:
        raise click.UsageError("give a RUN or --all, not both")
    handle = opened(ledger)
    left = dict(handle.unfinished().iter_rows())
    newest = [run_id for run_id, collect_only in left.items() if not collect_only][-1:]
    chosen = [run_id_of(handle, run)] if run is not None else list(left) if every else newest
    if not chosen:
        tell.note("lotwise: no run is open; nothing to resume")
    ended: list[Status] = []
    codes = [DONE]
    for run_id in chosen:
        _introduce(handle.status(run_id).model)
        try:
            handle.resume(
                run_id,
                options=opt.options(executor_option),
                progress=False if quiet else None,
                poll_s=poll_s,
                collect_only=every and left[run_id],
            ).wait()
        except RunStopped as stop:
            tell.note(f"lotwise: {tell.error_in_words(stop)}")
            codes.append(STOPPED)
        except LotwiseError as fault:
            if not every:
                raise
            tell.note(f"lotwise: run {run_id}: {tell.error_in_words(fault)}")  # the others are gone on with
            codes.append(FAILED)
        ended.append(handle.status(run_id))
        codes.append(_whole(ended[-1].rows))
    if as_json or (ended and not quiet):
        text = "\n\n".join(str(status) for status in ended)
        tell.result(ended[0] if run is not None else ended, text, as_json=as_json)
    return max(codes, key=_GRAVEST.index)


@cli.command(short_help="Stop every open run at once; nothing more is sent.")
@opt.ledger
@opt.as_json
def stop(ledger: Path | None, as_json: bool) -> int:
    """Stop every open run at once, in every process: nothing more is sent.

    What is in flight stays so; cancel a run to cancel its batches, resume it to go on.
    """
    stopped = opened(ledger).stop()
    told = f"stopped {len(stopped)} open run{'' if len(stopped) == 1 else 's'}: {', '.join(stopped) or 'none'}"
    tell.result({"stopped": stopped}, told, as_json=as_json)
    return DONE


@cli.command(short_help="Stop a RUN and cancel its open batches.")
@click.argument("run")
@opt.executor_option
@opt.ledger
@opt.as_json
def cancel(run: str, executor_option: dict[str, Any], ledger: Path | None, as_json: bool) -> int:
    """Stop a RUN: nothing more is sent, and its open batches are canceled.

    What they finished stays billed; resume collects it.
    """
    handle = opened(ledger)
    run_id = run_id_of(handle, run)
    before = handle.status(run_id)
    if before.state == "done":
        tell.note("lotwise: this run is done; there is nothing to cancel")
    else:
        _introduce(before.model)
        # Nothing is to be sent, so the server need not be there.
        handle.resume(run_id, options=opt.options(executor_option), progress=False, collect_only=True).cancel()
    shown = handle.status(run_id)
    tell.result(shown, str(shown), as_json=as_json)
    return DONE


@cli.command("fetch-model", short_help="Bring the embedded model (93 MB) to this machine.")
@opt.as_json
@opt.quiet
def fetch_model(as_json: bool, quiet: bool) -> int:
    """Bring the weights of the embedded model (93 MB) to this machine, checked against their pinned digest."""
    path = models.fetch_model(progress=None if quiet else tell.note)
    tell.result({"path": path}, str(path), as_json=as_json)
    return DONE


cli.add_command(ledger_commands)
for _command in cli_review.COMMANDS:
    cli.add_command(_command)


def _whole(rows: Mapping[str, int]) -> int:
    """Return the code of work that has ended by its rows: whether each that asks for something has a valid answer."""
    return INCOMPLETE if any(rows.get(state) for state in summary.NOT_VALID) else DONE


# --- reading ------------------------------------------------------------------------------------------------------


def _read(source: Path, limit: int | None, model: str | None) -> pl.DataFrame:
    _introduce(model or "")
    frame = tables.read(source)
    return frame if limit is None else frame.head(limit)


def _introduce(model: str) -> None:
    """Make the scripted provider known when its model is named: outside of tests and docs it is not."""
    if model.partition(":")[0] == "scripted":
        import lotwise.testing  # noqa: F401


def _set_apart(
    frame: pl.DataFrame, label: tuple[str, str], prompt: str, arguments: dict[str, Any]
) -> tuple[pl.DataFrame, tuple[str, str]]:
    """Find the label column, and move it out of the way where an answer field takes its name."""
    column, field = label
    if column not in frame.columns:
        raise UnknownColumn.from_names([column], frame.columns, where="--label")
    takes = f"{arguments['prefix'] or ''}{field}"
    if column == takes and arguments["into"] is None and column not in Template.parse(prompt).columns:
        apart = f"{column}_label"
        if apart in frame.columns:
            raise OutputClash.from_names([apart])
        return frame.rename({column: apart}), (apart, field)
    return frame, label


def _minute(column: str) -> pl.Expr:
    return pl.col(column).dt.to_string("%Y-%m-%d %H:%M")
