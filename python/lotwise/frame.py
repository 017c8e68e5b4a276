"""The front: `df.llm` on Polars frames, and the same five verbs as functions.

`map` does the whole journey, `submit` begins it, `preview` does ten rows of it, `plan` says what it would do, and
`peek` joins what the ledger already has.
"""

from __future__ import annotations

from typing import Any, NoReturn, Unpack

import polars as pl

from lotwise import call as calls
from lotwise import collect, engine, join, lots, reading
from lotwise.call import BOOKKEEPING, Arguments
from lotwise.clock import SystemClock
from lotwise.errors import BadArgument, NotAFrame, UnknownColumn
from lotwise.estimate import Plan
from lotwise.key import keys as content_keys
from lotwise.ledger.files import DATABASE, locate
from lotwise.ledger.store import Ledger
from lotwise.run import Run
from lotwise.shown import shown
from lotwise.signature import spelled_out

PREVIEW_ROWS = 10


@spelled_out
def map(df: pl.DataFrame, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> pl.DataFrame:
    """Ask a model about every row, once, and join the answers back.

    Parameters
    ----------
    df
        A Polars frame; it is not changed.
    prompt
        The user message, with ``{column}`` places and ``{{ }}`` for braces.
    schema
        What an answer looks like: a Pydantic model, a JSON Schema dict, a Polars schema or ``{name: dtype}``, or None
        for text in a column ``answer``.
    **arguments
        See `lotwise.call.Arguments`.

    Returns
    -------
    The same rows in the same order, the schema's fields as typed columns, then the bookkeeping columns (`llm_id`,
    `llm_state`, `llm_error`, ...).

    Raises
    ------
    LotwiseError
        What can be known to be wrong, before anything is sent; else one `RunStopped` that carries `.run` and
        `.partial()`.

    Notes
    -----
    Identical rows are one request. What the ledger has is not asked again, in this process or another; what is in
    flight is polled. Money is spent only by hosted models, and never past `budget`.

    Examples
    --------
    >>> import polars as pl, lotwise, lotwise.testing
    >>> df = pl.DataFrame({"body": ["refund me", None, "refund me"]})
    >>> out = lotwise.map(df, "Echo: {body}", model="scripted:echo", ledger=folder, progress=False)
    >>> out["answer"].to_list()
    ['Echo: refund me', None, 'Echo: refund me']
    >>> out["llm_state"].to_list()
    ['succeeded', 'skipped', 'succeeded']
    """
    return submit_unsent(df, prompt, schema, **arguments).collect()


def submit_unsent(df: pl.DataFrame, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> Run:
    """Check a call and write its run down, without sending anything yet."""
    call = calls.prepare(df, prompt, schema, **arguments)
    return Run.begin(call, df)


@spelled_out
def submit(df: pl.DataFrame, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> Run:
    """Send what is missing and return the run's handle without waiting for answers.

    Parameters and errors are those of `map`.

    Returns
    -------
    A `Run`: `status()`, `wait()`, `collect()`, `missing()`, `cancel()`.

    Notes
    -----
    A provider's batches are made before this returns, as many as may be in flight at once; a local engine works in a
    thread of this process. The rest is sent by `wait`, `collect`, a repeated call, or ``lotwise resume``.
    """
    return submit_unsent(df, prompt, schema, **arguments).start()


@spelled_out
def preview(
    df: pl.DataFrame, prompt: str, schema: Any = None, n: int = PREVIEW_ROWS, **arguments: Unpack[Arguments]
) -> pl.DataFrame:
    """Answer the first `n` rows now, interactively where the provider has that, to see what the prompt does.

    Returns
    -------
    The first `n` rows with the columns that `map` adds.

    Raises
    ------
    BadArgument
        `n` is no whole number of rows from 1 on; and what `map` raises.

    Notes
    -----
    The keys are those of `map`: what is previewed is not bought again.
    """
    if type(n) is not int or n < 1:
        raise BadArgument.of("n", "must be a whole number of rows, 1 or more")
    if not isinstance(df, pl.DataFrame):
        raise NotAFrame.of(df)
    arguments.setdefault("tier", "interactive")
    return map(df.head(n), prompt, schema, **arguments)


@spelled_out
def peek(df: pl.DataFrame, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> pl.DataFrame:
    """Join what the ledger has, and send nothing.

    Returns
    -------
    As `map`. Rows that were never sent show `absent`; where there is no ledger, all rows do.
    """
    call = calls.prepare(df, prompt, schema, sends=False, **arguments)
    enrolled = _keyed(call, df)
    distinct = enrolled.keys.drop_nulls().unique()
    path = locate(call.ledger)
    ledger = Ledger.open(path, create=False) if (path / DATABASE).exists() else None
    answers = absent(distinct) if ledger is None else collect.answers(ledger, distinct, call.executor, call.validator)
    labels = lots.labels_of(df, call.accept)
    family = lots.Family.of(
        job=engine.job_digest(call.spec_digest, enrolled.manifest, reuse=call.reuse),
        validator=call.validator.digest,
        run="",
        accept=call.accept,
        said=call.accept_said,
        rows=lots.rows_of(enrolled.keys, labels),
    )
    if ledger is not None:
        lots.refuse_other_rule(ledger, family)
    known = shown(ledger, family, enrolled.keys, labels, answers, SystemClock().now())
    return join.attach(df, enrolled.keys, answers, call, known)


def answers(df: pl.DataFrame, *, prefix: str | None = None) -> pl.DataFrame:
    """Leave out the bookkeeping columns, so that the answers can be seen: of those only `llm_state` stays.

    Parameters
    ----------
    df
        A frame that `map`, `preview` or `peek` returned, or one made of it; it is not changed.
    prefix
        What was put before the names of the new columns.

    Returns
    -------
    The same rows; the input's columns, the answer's, and `llm_state` last.

    Raises
    ------
    UnknownColumn
        It has no state: it is no such frame, or was made with another prefix.
    """
    state = f"{prefix or ''}llm_state"
    if state not in df.columns:
        raise UnknownColumn.from_names([state], df.columns, where="the frame")
    return df.drop([f"{prefix or ''}{name}" for name in BOOKKEEPING], strict=False).with_columns(df[state])


@spelled_out
def plan(df: pl.DataFrame, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> Plan:
    """Say what `map` would do. Sends nothing and writes nothing.

    Returns
    -------
    A `Plan`: rows, distinct requests, what is done, in flight and to send, shards and bytes, and per row why.
    """
    call = calls.prepare(df, prompt, schema, sends=False, **arguments)
    return Plan.of(call, df, _keyed(call, df))


def _keyed(call: calls.Call, df: pl.DataFrame) -> engine.Enrolled:
    """Key a frame's rows without writing anything down."""
    keys = [content_keys(call.spec_digest, content) for content in call.contents(df)]
    joined = pl.concat(keys) if keys else pl.Series("key", [], dtype=pl.String)
    return engine.Enrolled(keys=joined, manifest=engine.manifest_of(joined), n_new=0)


def absent(keys: pl.Series) -> pl.DataFrame:
    """Return what the ledger would say of keys that it does not have."""
    nothing = pl.lit(None, pl.String)
    return pl.DataFrame({"key": keys}).select(
        "key",
        state=pl.lit("absent"),
        reason=nothing,
        faults=nothing,
        detail=nothing,
        attempts=pl.lit(0),
        value=nothing,
    )


@pl.api.register_dataframe_namespace("llm")
class LLM:
    """`df.llm`: LLM work over a Polars frame. Type checkers know the same verbs as functions of `lotwise`."""

    def __init__(self, df: pl.DataFrame) -> None:
        self._df = df

    @spelled_out
    def map(self, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> pl.DataFrame:
        """Ask a model about every row, once, and join the answers back: `lotwise.map`."""
        return map(self._df, prompt, schema, **arguments)

    @spelled_out
    def submit(self, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> Run:
        """Send what is missing without waiting for answers: `lotwise.submit`."""
        return submit(self._df, prompt, schema, **arguments)

    @spelled_out
    def preview(
        self, prompt: str, schema: Any = None, n: int = PREVIEW_ROWS, **arguments: Unpack[Arguments]
    ) -> pl.DataFrame:
        """Answer the first `n` rows now: `lotwise.preview`."""
        return preview(self._df, prompt, schema, n, **arguments)

    @spelled_out
    def peek(self, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> pl.DataFrame:
        """Join what the ledger has, and send nothing: `lotwise.peek`."""
        return peek(self._df, prompt, schema, **arguments)

    @spelled_out
    def plan(self, prompt: str, schema: Any = None, **arguments: Unpack[Arguments]) -> Plan:
        """Say what `map` would do, and do nothing: `lotwise.plan`."""
        return plan(self._df, prompt, schema, **arguments)

    def answers(self, *, prefix: str | None = None) -> pl.DataFrame:
        """Leave out the bookkeeping columns, so that the answers can be seen: `lotwise.answers`."""
        return answers(self._df, prefix=prefix)

    def sample(self, ledger: reading.LedgerLike = None, *, prefix: str | None = None) -> pl.DataFrame:
        """Return the answers to be read of the lots that these rows belong to: `lotwise.sample`.

        The sample is the lots', drawn when they were closed, also where this frame holds only some of their rows.
        """
        return reading.sample_of_frame(self._df, ledger, prefix or "")


@pl.api.register_lazyframe_namespace("llm")
class LazyLLM:
    """`lf.llm`: there to say that the rows must be there first. Each verb of `LLM` raises `NotAFrame`."""

    def __init__(self, lf: pl.LazyFrame) -> None:
        self._lf = lf

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or name not in vars(LLM):
            raise AttributeError(f"'LazyLLM' object has no attribute {name!r}")
        raise NotAFrame.of(self._lf)
