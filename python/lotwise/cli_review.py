"""`lotwise sample`, `inspect`, `review` and `golden`: reading answers, in a spreadsheet or at the keyboard.

`review` shows one drawn answer after the other in the order of the draw and takes one key for each. Every verdict is
written down when its key is pressed, so that closing the window loses nothing and the next call goes on there.
"""

from __future__ import annotations

import getpass
import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
import polars as pl

from lotwise import cli_golden, tables
from lotwise import cli_options as opt
from lotwise import cli_tell as tell
from lotwise.cli_ledger import opened, run_id_of
from lotwise.clock import SystemClock
from lotwise.errors import BadArgument
from lotwise.evidence import VERDICTS
from lotwise.golden import Match
from lotwise.handle import LedgerHandle
from lotwise.inspection import inspect as inspect_all
from lotwise.inspection import table_of, take_in
from lotwise.ledger import evidence as store
from lotwise.reading import BACK, FRONT, TO_FILL_IN, ledger_of
from lotwise.reading import sample as drawn
from lotwise.text import plural

KEYS = {"b": "bad", "g": "good", "u": "unsure", "s": "skip", "z": "undo", "q": "quit"}
"""One key a verdict, and what else can be done."""

_MOST_LOTS = 20
"""Lots that are told of in a line each."""

NARROWEST = 20
"""Columns that a value needs beside its name."""

_COLOURS = {"bad": "red", "good": "green", "unsure": "yellow"}
F = TypeVar("F", bound=Callable[..., Any])

_LOT: Callable[[F], F] = click.option("--lot", multiple=True, help="Only this lot, by its id. May be repeated.")
_WHO: Callable[[F], F] = click.option(
    "--inspector", default=lambda: getpass.getuser(), help="Who reads. Without it: the name of your account."
)


@click.command(short_help="Write the answers of a RUN to be read to OUT.")
@click.argument("run")
@click.argument("target", metavar="OUT", type=click.Path(path_type=Path))
@_LOT
@opt.ledger
@opt.as_json
def sample(run: str, target: Path, lot: tuple[str, ...], ledger: Path | None, as_json: bool) -> int:
    """Write the answers of a RUN that were drawn to be read to OUT (.csv, .parquet or .ndjson).

    Fill in the column verdict with bad, good or unsure, and hand the file to `lotwise inspect`.
    """
    tables.check_target(target, None)
    handle = opened(ledger)
    frame = drawn(handle, run_id_of(handle, run), lot=lot or None)
    tables.write(frame, target)
    n_lots = frame["llm_lot"].n_unique()
    told = f"{plural(frame.height, 'answer')} of {plural(n_lots, 'lot')} to read: {target}"
    tell.result({"out": target.absolute(), "rows": frame.height, "lots": n_lots}, told, as_json=as_json)
    return 0


@click.command(short_help="Record the verdicts in FILE.")
@click.argument("source", metavar="FILE", type=click.Path(path_type=Path))
@click.option("--inspector", help="Who read, where the file's column does not say.")
@opt.ledger
@opt.as_json
def inspect(source: Path, inspector: str | None, ledger: Path | None, as_json: bool) -> int:
    """Record the verdicts in FILE, and show what they say of each lot."""
    done = inspect_all(source, opened(ledger), inspector=inspector)
    told = {**tell.plain(done), "n_rejected": done.n_rejected, "lots": done.lots}
    tell.result(told, f"{done}\n{_lots(done.lots)}", as_json=as_json)
    return 0


@click.command(short_help="Show the golden rows of a RUN that do not agree.")
@click.argument("run")
@click.option("--all", "every", is_flag=True, help="Show the golden rows that agree, too.")
@click.option(
    "--match",
    type=cli_golden.Matching(),
    help="The function by which they were compared, FILE.py:FUNCTION: the ledger does not keep it.",
)
@opt.ledger
@opt.as_json
def golden(run: str, every: bool, match: Literal["exact"] | Match | None, ledger: Path | None, as_json: bool) -> int:
    """Show the golden rows of a RUN whose answer is not the known one: what was asked, expected and answered."""
    handle = opened(ledger)
    shown = handle.golden(run_id_of(handle, run), match=None if match == "exact" else match)
    answered = pl.col("answered").is_not_null()
    if shown.filter(answered & pl.col("agreed").is_null()).height:
        tell.note("lotwise: whether they agree is told by a function of yours; give --match FILE.py:FUNCTION")
    found = shown if every else shown.filter(~pl.col("agreed").fill_null(False))
    tell.result(found, tell.table(found.drop("llm_id")), as_json=as_json)
    return 0


@click.command(short_help="Read a RUN's sample at the keyboard.")
@click.argument("run")
@_LOT
@_WHO
@opt.ledger
@opt.as_json
def review(run: str, lot: tuple[str, ...], inspector: str, ledger: Path | None, as_json: bool) -> int:
    """Read a RUN's sample at the keyboard, one key a verdict: (b)ad, (g)ood, (u)nsure, (s)kip, undo (z), (q)uit.

    What you have given a verdict on before is not shown again; what you skip comes back the next time.
    """
    handle = opened(ledger)
    frame = drawn(handle, run_id_of(handle, run), lot=lot or None)
    if not sys.stdin.isatty():
        raise BadArgument.of("review", "needs a terminal; for files there are `lotwise sample` and `lotwise inspect`")
    reading = Reading(handle, frame, inspector)
    reading.read(key=click.getchar)
    lots = table_of(handle, frame["llm_lot"].unique().to_list())
    tell.result({"lots": lots}, _lots(lots), as_json=as_json)
    return 0


class Reading:
    """One person's way through a sample.

    Parameters
    ----------
    handle
        The ledger that verdicts go to.
    frame
        The sample, as `lotwise.sample` gives it.
    inspector
        Who reads.
    """

    def __init__(self, handle: LedgerHandle, frame: pl.DataFrame, inspector: str) -> None:
        self._handle, self._frame, self._inspector = handle, frame, inspector
        self.given = self._given()

    def _given(self) -> dict[tuple[str, str], str]:
        """Return what this person has said already, by lot and key, of the answers as they are."""
        _, _, before = store.evidence(ledger_of(self._handle), self._frame["llm_lot"].unique().to_list())
        mine = before.filter(inspector=self._inspector).join(
            self._frame.select(lot_id="llm_lot", key="llm_id", answer_digest="answer_digest"),
            on=["lot_id", "key", "answer_digest"],
            how="semi",
        )
        return {
            (lot, key): verdict
            for lot, key, verdict in mine.sort("inspected_at", "seq").select("lot_id", "key", "verdict").iter_rows()
        }

    def read(self, *, key: Callable[[], str], show: Callable[[str], Any] = tell.note) -> None:
        """Go through what is left, one key a row, until the end or until it is quit."""
        todo = [i for i in range(self._frame.height) if self._at(i) not in self.given]
        place = 0
        trail: list[int] = []
        while place < len(todo):
            i = todo[place]
            show(self.page(i))
            word = self._word(key)
            if word == "quit":
                break
            if word == "undo":
                if trail:
                    place = trail.pop()
                    said = self.given.get(self._at(todo[place]), "skipped")
                    show(f"back to the one before, which you called {said}; that stands until you say otherwise")
                else:
                    show("there is nothing to undo")
                continue
            if word != "skip":
                self._say(i, word)
            trail.append(place)
            place += 1
        n_read = sum(self._at(i) in self.given for i in range(self._frame.height))
        show(f"{n_read:,} of {self._frame.height:,} read by {self._inspector}")

    def _word(self, key: Callable[[], str]) -> str:
        while True:
            pressed = key()
            if pressed in ("\x03", "\x04", ""):
                return "quit"
            if pressed.lower() in KEYS:
                return KEYS[pressed.lower()]

    def _at(self, i: int) -> tuple[str, str]:
        lot, request = self._frame.row(i)[:2]
        return lot, request

    def _say(self, i: int, verdict: str) -> None:
        row = self._frame[i].select("llm_lot", "llm_id", "answer_digest", pl.lit(verdict).alias("verdict"))
        take_in(ledger_of(self._handle), row, self._inspector, SystemClock().now())
        self.given[self._at(i)] = verdict

    def page(self, i: int) -> str:
        """Draw one row: how far, what was asked, what was answered, which keys there are."""
        row = self._frame.row(i, named=True)
        width = min(shutil.get_terminal_size().columns, 100)
        counts = {word: sum(said == word for said in self.given.values()) for word in VERDICTS}
        tally = ", ".join(click.style(f"{n:,} {word}", fg=_COLOURS[word]) for word, n in counts.items())
        rows = f", {row['multiplicity']:,} rows share it" if row["multiplicity"] > 1 else ""
        fields = [name for name in self._frame.columns if name not in (*FRONT, *TO_FILL_IN, *BACK)]
        lines = [
            "",
            "─" * width,
            f"{i + 1:,} of {self._frame.height:,}  lot {row['llm_lot']}{rows}    {tally}",
            "",
            *_block(row["input"] if row["input"] is not None else "(what was asked was purged)", width),
            "",
            *(line for name in fields for line in _field(name, row[name], width)),
            "",
            "  ".join(f"[{click.style(key, bold=True)}] {word}" for key, word in KEYS.items()),
        ]
        return "\n".join(lines)


def _block(text: str, width: int) -> list[str]:
    """Wrap text, keeping its own line ends. Control characters are shown, not obeyed."""
    plain = "".join(one if one.isprintable() or one in "\n\t" else "�" for one in text)
    return [
        "  " + line
        for own in plain.rstrip("\n").split("\n")
        for line in (textwrap.wrap(own, max(width - 4, 1), replace_whitespace=False) or [""])
    ]


def _field(name: str, value: Any, width: int) -> list[str]:
    beside = width - len(name) - 2
    if beside < NARROWEST:  # below the name instead
        return [f"  {click.style(name, bold=True)}:", *_block("null" if value is None else str(value), width)]
    first, *rest = _block("null" if value is None else str(value), beside)
    return [f"  {click.style(name, bold=True)}: {first.strip()}", *(" " * (len(name) + 2) + line for line in rest)]


def _lots(table: pl.DataFrame) -> str:
    """Say in a line each what is known of lots, those with verdicts first, and of the rest how many there are."""
    first = table.sort(pl.col("n_looked") == 0, maintain_order=True).head(_MOST_LOTS)
    lines = [_line(lot) for lot in first.iter_rows(named=True)]
    if table.height > _MOST_LOTS:
        counts = ", ".join(f"{n:,} {word}" for word, n in table.group_by("decision").len().sort("decision").iter_rows())
        lines.append(f"{table.height - _MOST_LOTS:,} more lots; of all {table.height:,}: {counts} (--json tells each)")
    return "\n".join(lines)


def _line(lot: dict[str, Any]) -> str:
    name = lot["lot_id"] if lot["label"] is None else f"{lot['lot_id']} ({lot['label']})"
    if not lot["n_looked"]:
        return f"lot {name}: {lot['decision']}, {lot['reason']}; {lot['plan_n'] or 0:,} answers to read"
    read = lot["method"] == "exact_finite"
    low, high = (lot["low"], lot["high"]) if read else (lot["cs_low"], lot["cs_high"])
    between = "" if low is None else f", so {low:.1%} to {high:.1%} of the lot"
    unsure = f", {lot['n_unsure']:,} unsure" if lot["n_unsure"] else ""
    bound = f", at most {lot['upper_one_sided']:.1%}" if read else ""
    return (
        f"lot {name}: {lot['decision']}, {lot['reason']}; {lot['x_bad']:,} bad{unsure} of {lot['n_looked']:,} read "
        f"({lot['plan_n']:,} planned){between}{bound}"
    )


COMMANDS: Sequence[click.Command] = (sample, inspect, review, golden)
