"""What the commands that make a call have in common: their options, and how a word on the command line is read.

The rule for text: `@FILE` is always a file, so is a single line that ends in a known suffix, and all else is the text
itself. What is on disk never decides which it is.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from lotwise import cli_golden
from lotwise.errors import BadArgument
from lotwise.job import Options

F = TypeVar("F", bound=Callable[..., Any])


class TextOrFile(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """Text, or the name of a file that holds it."""

    def __init__(self, *suffixes: str) -> None:
        self.name = "text|file"
        self._suffixes = suffixes

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        word = str(value)
        named = word.startswith("@") or ("\n" not in word and word.lower().endswith(self._suffixes))
        return self._read(Path(word.removeprefix("@")), param, ctx) if named else word

    def _read(self, path: Path, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            self.fail(f"{path} is not UTF-8 text", param, ctx)
        except OSError as error:
            self.fail(f"{path} cannot be read: {error.strerror or type(error).__name__}", param, ctx)


class JsonOrFile(TextOrFile):
    """JSON, or the name of a file that holds it."""

    def __init__(self) -> None:
        super().__init__(".json")
        self.name = "json|file"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = super().convert(value, param, ctx)
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            self.fail(f"no JSON at line {error.lineno}, column {error.colno}: {error.msg}", param, ctx)


class Setting(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """`KEY=VALUE`. The value is JSON where it can be read as that, else text."""

    name = "key=value"

    def __init__(self, *, as_text: bool = False) -> None:
        self._as_text = as_text

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        key, equals, given = str(value).partition("=")
        if not key or not equals:
            self.fail("is written KEY=VALUE", param, ctx)
        if self._as_text:
            return key, given
        try:
            return key, json.loads(given)
        except json.JSONDecodeError:
            return key, given


class Label(click.ParamType):  # type: ignore[type-arg]  # generic in newer clicks only
    """`COLUMN=FIELD`, or `COLUMN` when both have the same name."""

    name = "column[=field]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        column, _, field = str(value).partition("=")
        if not column:
            self.fail("is written COLUMN=FIELD", param, ctx)
        return column, field or column


def _mapping(ctx: click.Context, param: click.Parameter, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise click.BadParameter(f"{key} is given twice", ctx=ctx, param=param)
        made[key] = value
    return made


def settings(*names: str, help: str, as_text: bool = False) -> Callable[[F], F]:
    """Make a repeatable `KEY=VALUE` option that arrives as a dict."""
    return click.option(*names, type=Setting(as_text=as_text), multiple=True, callback=_mapping, help=help)


ledger = click.option(
    "--ledger",
    type=click.Path(path_type=Path, file_okay=False),
    help="The ledger's folder. Without it: LOTWISE_LEDGER, a lotwise.toml or .lotwise/ upwards, else .lotwise/ here.",
)
as_json = click.option(
    "--json", "as_json", is_flag=True, help="Write one JSON value to stdout, and nothing else there."
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Show neither progress nor a summary; errors are still told.")
executor_option = settings(
    "--executor-option", help="An option of the executor: base_url=..., threads=2. May be repeated."
)
poll_s = click.option(
    "--poll-s", type=click.FloatRange(0), help="Seconds between looks at a batch. Without it: a growing pause."
)

_CALL: tuple[Callable[[F], F], ...] = (
    click.option(
        "-p",
        "--prompt",
        required=True,
        type=TextOrFile(".md", ".txt"),
        help="The user message with {column} places. One line that ends in .md or .txt, or @FILE, names a file; "
        "all else is the message itself.",
    ),
    click.option(
        "-s",
        "--schema",
        type=JsonOrFile(),
        help="The JSON Schema of an answer. One line that ends in .json, or @FILE, names a file; all else is the "
        "schema itself. Without it the answer is text.",
    ),
    click.option("-m", "--model", help="provider:model. Without it: the embedded demo model, up to 2,000 rows."),
    click.option("--system", type=TextOrFile(".md", ".txt"), help="The system message: text or a file, as for -p."),
    click.option(
        "--examples",
        type=JsonOrFile(),
        help="Few-shot pairs as a JSON list of [input by column, answer]: file or JSON.",
    ),
    settings("--param", help="A sampling parameter: temperature=0, max_tokens=200. May be repeated."),
    click.option("--budget", metavar="USD", help="US dollars that this work may cost in all. Without it: no limit."),
    settings(
        "--price",
        as_text=True,
        help="US dollars a million tokens at the standard tier: input_mtok=1, output_mtok=5, cache_read_mtok, "
        "cache_write_mtok. May be repeated.",
    ),
    click.option(
        "--tier",
        type=click.Choice(["batch", "interactive"]),
        help="How the provider is asked. Without it: batch where the provider has one.",
    ),
    click.option("--name", help="A name for the run."),
    click.option(
        "--on-null",
        type=click.Choice(["skip", "render"]),
        default="skip",
        show_default=True,
        help="Skip a row with a null in a used column, or render the null as the word null.",
    ),
    click.option(
        "--reuse",
        type=click.Choice(["exact", "compatible", "never"]),
        default="exact",
        show_default=True,
        help="Which known answers are taken: to exactly this request; compatible ones too, to the same messages and "
        "model under another schema or parameters; or never one from before this --name, which is asked and paid anew.",
    ),
    click.option(
        "--retry",
        multiple=True,
        metavar="STATE|CODE",
        help="Open another attempt of what has ended: dead_lettered, invalid, refused, or a code of llm_error. "
        "May be repeated.",
    ),
    click.option("--into", metavar="COLUMN", help="Put the answer into one struct column of this name."),
    click.option("--prefix", help="Put this before the name of every new column."),
    poll_s,
    click.option(
        "--deadline",
        metavar="WHEN",
        help="When the answers are wanted: 6h, 90m, or a time such as 2026-12-01T08:00+01:00. What batches will not "
        "answer by then is asked interactively, at the standard price.",
    ),
    click.option(
        "--data",
        type=click.Choice(["local"]),
        help="Refuse every model that is answered on another machine, before anything is rendered for it.",
    ),
    click.option("--limit", type=click.IntRange(0), metavar="N", help="Take only the first N rows of IN."),
    executor_option,
    settings("--option", help="What is rarely set, as in lotwise.Options: shard_rows=500. May be repeated."),
    ledger,
    as_json,
    quiet,
)


_EVIDENCE: tuple[Callable[[F], F], ...] = (
    click.option(
        "--golden",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Rows whose answers are known (.parquet, .csv, .ndjson), with the columns that the prompt uses. "
        "They go first, and the rest only if enough of them agree.",
    ),
    click.option(
        "--answers",
        metavar="COLUMN[,COLUMN]",
        multiple=True,
        help="The columns of --golden that hold known answers, named as the schema's fields. May be repeated.",
    ),
    click.option(
        "--match",
        type=cli_golden.Matching(),
        help="How a known answer is compared: exact, or a function of (known, said), two dicts by column, that says "
        "whether they agree. Without it: exact.",
    ),
    click.option(
        "--threshold",
        type=click.FloatRange(0, 1),
        help="The share of golden rows that must agree. Without it: 0.9.",
    ),
    click.option(
        "--canary",
        type=click.Choice(list(cli_golden.CANARY)),
        help="Send a small part first: on, off, or override to go on past one that failed. Without it: on where there "
        "is --golden, or where 2,000 requests or more go to a model that is paid for or hosted.",
    ),
    settings(
        "--accept",
        help="What is asked of a lot, as in lotwise.Acceptance: limit=0.02, aql=0.005, by=language. May be repeated.",
    ),
)


def of_call(command: F) -> F:
    """Give a command the options of a call; they arrive as one dict `arguments`, the rest by name."""
    return _with(_CALL, _arguments, command)


def of_job(command: F) -> F:
    """Give a command the options of a whole job: those of a call, and what is asked of its answers."""
    return _with((*_CALL[:-3], *_EVIDENCE, *_CALL[-3:]), _arguments_of_job, command)


def _with(options: Sequence[Callable[[F], F]], arguments: Callable[[dict[str, Any]], dict[str, Any]], command: F) -> F:
    @functools.wraps(command)
    def reading(**given: Any) -> Any:
        return command(arguments=arguments(given), **given)

    made: Any = reading
    for option in reversed(options):
        made = option(made)
    decorated: F = made
    return decorated


def _arguments_of_job(given: dict[str, Any]) -> dict[str, Any]:
    evidence = ("golden", "answers", "match", "threshold", "canary", "accept")
    return {**_arguments(given), **cli_golden.arguments(**{name: given.pop(name) for name in evidence})}


def _arguments(given: dict[str, Any]) -> dict[str, Any]:
    """Take a call's keyword arguments out of what the command line gave, leaving what the command itself uses."""
    names = (
        "model",
        "system",
        "examples",
        "budget",
        "tier",
        "name",
        "on_null",
        "reuse",
        "into",
        "prefix",
        "poll_s",
        "deadline",
        "data",
    )
    arguments = {name: given.pop(name) for name in names}
    arguments["params"] = given.pop("param") or None
    arguments["prices"] = given.pop("price") or None
    arguments["retry"] = list(given.pop("retry")) or None
    arguments["ledger"] = given.pop("ledger")
    arguments["progress"] = False if given["quiet"] else None
    arguments["options"] = options(given.pop("executor_option"), given.pop("option"))
    return arguments


def options(executor_options: dict[str, Any], rare: dict[str, Any] | None = None) -> Options:
    """Make `Options` from settings.

    Raises
    ------
    BadArgument
        A name that `Options` does not have, or a value that it does not take.
    """
    settable = [field.name for field in dataclasses.fields(Options) if field.init]
    known = [name for name in settable if name != "executor_options"]
    rare = rare or {}
    unknown = [name for name in rare if name not in known]
    if unknown:
        raise BadArgument.unknown(unknown, known, where="--option")
    return Options(executor_options=executor_options, **rare)
