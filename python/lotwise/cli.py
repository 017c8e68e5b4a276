"""The command line: the verbs of the API over files, for a shell, a Makefile or a scheduler.

A result goes to standard output and everything else to standard error, so that output can be piped. The exit code says
whether to trust the file: 0 whole, 3 stopped with what there is, 2 nothing was done because the call cannot be right.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import polars as pl

import lotwise
from lotwise import call as calls
from lotwise import cli_options as opt
from lotwise import cli_review, models, tables
from lotwise import cli_tell as tell
from lotwise.cli_ledger import ledger as ledger_commands
from lotwise.cli_ledger import run_id_of
from lotwise.errors import (
    ClaimLost,
    ExecutorError,
    LedgerDiskFull,
    LedgerInconsistent,
    LedgerLocked,
    LedgerStatementFailed,
    LotwiseError,
    ModelDownloadFailed,
    RunStopped,
    UnknownColumn,
    UnwritableTable,
)
from lotwise.frame import PREVIEW_ROWS
from lotwise.handle import open_ledger
from lotwise.render import Template
from lotwise.run import Run, Status

DONE, FAILED, WRONG_USE, STOPPED, INTERRUPTED = 0, 1, 2, 3, 130

_NOT_THE_CALL = (
    ClaimLost,
    ExecutorError,
    LedgerDiskFull,
    LedgerInconsistent,
    LedgerLocked,
    LedgerStatementFailed,
    ModelDownloadFailed,
)
"""Errors that are no fault of the call: the same call may work later, or elsewhere."""

EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed, through no fault of the call: a locked ledger, a network
  2    wrong use; nothing was sent
  3    stopped with a partial result; the output file is written
  130  interrupted; what was sent is not lost, and repeating goes on
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    sys.exit(_run(words))


def _run(words: list[str]) -> int:
    as_json = "--json" in words
    try:
        code = cli.main(words, prog_name="lotwise", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        _tell_as_json("UsageError", error.format_message(), as_json)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # whoever read our output has closed it: `| head`
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except LotwiseError as error:
        message = tell.as_option(str(error))
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


@cli.command()
@_SOURCE
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--label",
    type=opt.Label(),
    help="A column of IN that holds the true answer, and the field it is compared with. Where they have the same name, "
    "OUT has the column as COLUMN_label.",
)
@opt.of_call
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
    command again sends only what is missing.
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
        tell.note(f"lotwise: {stopped}")
    if as_json or not quiet:
        agreement = None if label is None else _agreement(answered, label, arguments)
        summary = _summary(run.status(), target, time.monotonic() - began, agreement, stopped)
        tell.result(summary, _summary_text(summary), as_json=as_json)
    return DONE if stopped is None else STOPPED


@cli.command()
@_SOURCE
@opt.of_call
def plan(
    source: Path, prompt: str, schema: Any, limit: int | None, arguments: dict[str, Any], as_json: bool, quiet: bool
) -> int:
    """Say what map would do: what is answered, what would be sent, and what it may cost. Sends and writes nothing."""
    shown = lotwise.plan(_read(source, limit, arguments["model"]), prompt, schema, **arguments)
    why = dict(shown.rows.group_by("why").len().sort("why").iter_rows())
    tell.result({**tell.plain(shown), "why": why}, str(shown), as_json=as_json)
    return DONE


@cli.command()
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
        tell.note(f"lotwise: {stop}")
    prefix = arguments["prefix"] or ""
    used = [name for name in Template.parse(prompt).columns if name in frame.columns]
    new = [name for name in answered.columns if name not in frame.columns]
    fields = new[: new.index(f"{prefix}llm_id")]
    shown = answered.select(*used, *fields, f"{prefix}llm_state", f"{prefix}llm_error")
    tell.result(answered.select(*used, *new), tell.table(shown), as_json=as_json)
    return DONE if stopped is None else STOPPED


@cli.command()
@click.argument("run", required=False)
@opt.ledger
@opt.as_json
def status(run: str | None, ledger: Path | None, as_json: bool) -> int:
    """Show where a RUN stands (its id, or the start of it), or list all runs."""
    handle = open_ledger(ledger)
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


@cli.command()
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
    handle = open_ledger(ledger)
    left = dict(handle.unfinished().iter_rows())
    newest = [run_id for run_id, collect_only in left.items() if not collect_only][-1:]
    chosen = [run_id_of(handle, run)] if run is not None else list(left) if every else newest
    if not chosen:
        tell.note("lotwise: no run is open; nothing to resume")
    ended: list[Status] = []
    code = DONE
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
            tell.note(f"lotwise: {stop}")
            code = STOPPED
        except LotwiseError as fault:
            if not every:
                raise
            tell.note(f"lotwise: run {run_id}: {fault}")  # the others are gone on with
            code = FAILED
        ended.append(handle.status(run_id))
    if as_json or (ended and not quiet):
        text = "\n\n".join(str(status) for status in ended)
        tell.result(ended[0] if run is not None else ended, text, as_json=as_json)
    return code


@cli.command()
@opt.ledger
@opt.as_json
def stop(ledger: Path | None, as_json: bool) -> int:
    """Stop every open run at once, in every process: nothing more is sent.

    What is in flight stays so; cancel a run to cancel its batches, resume it to go on.
    """
    stopped = open_ledger(ledger).stop()
    told = f"stopped {len(stopped)} open run{'' if len(stopped) == 1 else 's'}: {', '.join(stopped) or 'none'}"
    tell.result({"stopped": stopped}, told, as_json=as_json)
    return DONE


@cli.command()
@click.argument("run")
@opt.executor_option
@opt.ledger
@opt.as_json
def cancel(run: str, executor_option: dict[str, Any], ledger: Path | None, as_json: bool) -> int:
    """Stop a RUN: nothing more is sent, and its open batches are canceled.

    What they finished stays billed; resume collects it.
    """
    handle = open_ledger(ledger)
    run_id = run_id_of(handle, run)
    before = handle.status(run_id)
    if before.state == "done":
        tell.note("lotwise: this run is done; there is nothing to cancel")
    else:
        _introduce(before.model)
        handle.resume(run_id, options=opt.options(executor_option), progress=False).cancel()
    shown = handle.status(run_id)
    tell.result(shown, str(shown), as_json=as_json)
    return DONE


@cli.command("fetch-model")
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
        return frame.rename({column: f"{column}_label"}), (f"{column}_label", field)
    return frame, label


# --- the summary --------------------------------------------------------------------------------------------------


def _agreement(answered: pl.DataFrame, label: tuple[str, str], arguments: dict[str, Any]) -> dict[str, Any]:
    """Count the answered rows with a label, and those of them whose answer is the label, compared as text."""
    column, field = label
    prefix, into = arguments["prefix"] or "", arguments["into"]
    value = pl.col(prefix + field) if into is None else pl.col(prefix + into).struct.field(field)
    pairs = answered.select(label=pl.col(column).cast(pl.String), value=value.cast(pl.String)).drop_nulls()
    agree = pairs.filter(pl.col("label") == pl.col("value")).height
    percent = round(100 * agree / pairs.height, 1) if pairs.height else None
    return {"label": column, "field": field, "agree": agree, "of": pairs.height, "percent": percent}


def _summary(
    status: Status, target: Path, time_s: float, agreement: dict[str, Any] | None, stopped: RunStopped | None
) -> dict[str, Any]:
    rows = status.rows
    return {
        "run": status.run_id,
        "state": status.state,
        "out": str(target.absolute()),
        "ledger": status.ledger,
        "rows": status.n_rows,
        "unique": status.n_requests,
        "valid": rows.get("succeeded", 0),
        "invalid": rows.get("invalid", 0),
        "refused": rows.get("refused", 0),
        "dead_lettered": rows.get("dead_lettered", 0),
        "skipped": rows.get("skipped", 0),
        "open": rows.get("pending", 0) + rows.get("submitted", 0),
        "sent_now": status.n_sent,
        "cost_usd": status.cost_usd,
        "time_s": round(time_s, 3),
        "agreement": agreement,
        "stopped": None if stopped is None else {"kind": type(stopped).__name__, "reason": stopped.reason},
    }


def _summary_text(summary: dict[str, Any]) -> str:
    always = ("rows", "unique", "valid", "invalid", "refused", "skipped")
    told = [("wrote", summary["out"])]
    told += [
        (name.replace("_", "-"), f"{summary[name]:,}")
        for name in ("rows", "unique", "valid", "invalid", "refused", "dead_lettered", "skipped", "open")
        if name in always or summary[name]
    ]
    none_open = not summary["open"]
    nothing = (
        "nothing was sent: every answer was in the ledger, or on its way there" if none_open else "nothing was sent"
    )
    told.append(("sent now", f"{summary['sent_now']:,} requests" if summary["sent_now"] else nothing))
    if summary["cost_usd"]:
        told.append(("cost", f"${summary['cost_usd']} for this work in all"))
    told.append(("time", tell.seconds(summary["time_s"])))
    if summary["agreement"] is not None:
        told.append(("agreement", _agreement_text(summary["agreement"])))
    return tell.facts(told)


def _agreement_text(agreement: dict[str, Any]) -> str:
    """Say how often answers are what the label says."""
    if not agreement["of"]:
        return f"no answered row has a label in {agreement['label']}"
    return (
        f"{agreement['agree']:,} of {agreement['of']:,} ({agreement['percent']} %): "
        f"{agreement['field']} against {agreement['label']}"
    )


def _minute(column: str) -> pl.Expr:
    return pl.col(column).dt.to_string("%Y-%m-%d %H:%M")
