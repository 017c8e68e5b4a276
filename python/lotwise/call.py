"""One call's arguments, checked: everything that can be known to be wrong is told here, before anything is sent.

`prepare` turns what the analyst wrote into a `Call` of frozen parts (template, schema, spec, executor, caps). It reads
the frame's column names and dtypes and nothing of its rows, so a hosted executor can be refused for local data before
a single row is rendered.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Literal, TypedDict

import polars as pl

from lotwise import canary as rules
from lotwise import engine, lots
from lotwise.canary import Canary, Mode
from lotwise.cost import Prices
from lotwise.errors import (
    BadArgument,
    BadGolden,
    HostedRefused,
    MissingCredentials,
    MissingServer,
    ModelNotSaid,
    NotAFrame,
    OutputClash,
    PriceUnknown,
    Unreachable,
)
from lotwise.evidence import DECISIONS, Acceptance
from lotwise.executors import Tier, hosted_by_name, load
from lotwise.executors.base import BatchExecutor, StreamExecutor
from lotwise.golden import Golden, GoldenSet
from lotwise.job import Lane, Options
from lotwise.key import spec_digest
from lotwise.lifecycle import RETRY_SPEND, ROW_STATES, Policy
from lotwise.prices import known as known_price
from lotwise.render import Template, cache_warning, render, render_examples
from lotwise.request import Code, Spec
from lotwise.schema import Schema
from lotwise.validate import Check, Validator

EMBEDDED_DEFAULT_ROWS = 2_000
"""Rows up to which the embedded demo model is used without being named."""

DEFAULT_MAX_TOKENS = 1_024

LARGEST_BUDGET_USD = 1_000_000_000
"""What the ledger's amounts can hold (18 digits, 9 of them behind the point)."""

LONGEST_DEADLINE = timedelta(days=3_650)

Reuse = Literal["exact", "compatible", "never"]
"""Which known answers a call takes."""

BOOKKEEPING = pl.Schema(
    {
        "llm_id": pl.String(),  # the request's key
        "llm_state": ROW_STATES,
        "llm_error": pl.String(),  # null when fine, else a code and a short reason without row content
        "llm_attempts": pl.Int32(),  # sendings so far
        "llm_lot": pl.String(),  # rows that are accepted or re-reviewed together
        "llm_inspected": pl.Int64(),  # inspected answers of the lot
        "llm_defect_rate": pl.Float64(),
        "llm_defect_low": pl.Float64(),
        "llm_defect_high": pl.Float64(),
        "llm_defect_upper": pl.Float64(),  # one-sided: the one that decides
        "llm_decision": DECISIONS,
        "llm_reason": pl.String(),
    }
)
"""The columns that every output frame has besides the schema's fields."""


class Arguments(TypedDict, total=False):
    """The keyword arguments that `map`, `plan`, `preview`, `peek` and `submit` share.

    model
        ``provider:model``. None for the embedded demo model, which is the default up to 2,000 rows.
    name
        A name for the run.
    system
        The system message, the same for all rows.
    examples
        Few-shot pairs (input by column, answer), sent before each row.
    params
        Sampling parameters, sent as given; ``max_tokens`` is 1,024 unless it is here.
    tier
        "batch" (the default where the provider has one) or "interactive".
    ledger
        The ledger's folder; None for LOTWISE_LEDGER, a lotwise.toml or ``.lotwise/`` upwards, else ``.lotwise/`` here.
    budget
        US dollars that this work may cost in all, whoever calls for it; None for no limit.
    prices
        US dollars a million tokens at the standard tier: input_mtok, output_mtok, cache_read_mtok, cache_write_mtok.
    accept
        What each lot is asked for, as `Acceptance(...)`; None for what was written down for the lot, else the defaults.
    golden
        Rows with known answers, as `Golden(frame, answers=[...])`: asked first, and a few with every later shard.
    canary
        True or False, or "override" to go on past a failed canary; None for on where there is a golden set, or where
        2,000 requests or more go to a model that is paid for or hosted. The golden rows and the first 5 % of the
        requests, at most 500, are sent first, and only if they pass is the rest.
    check
        Rules beyond the schema: Polars expressions over the answer's columns, or functions of the value.
    on_null
        "skip" a row with a null in a used column, or "render" it as ``null``.
    reuse
        Which known answers are taken: those to "exact" this request; "compatible" ones too, to the same messages and
        model under another schema, limit or parameters, where they are valid under this schema; or "never" one that
        was given before this `name`: the same name goes on where it was left, a new one asks and pays anew.
    retry
        Open another attempt of what has ended: "dead_lettered", "invalid", "refused", or codes of `llm_error`.
    into
        Put the answer into one struct column of this name.
    prefix
        Put this before the name of every output column.
    progress
        Whether to show how far the run is; None for yes where somebody watches.
    poll_s
        Seconds between looks at a batch; None for a pause that grows with its age.
    deadline
        When the answers are wanted: a datetime with a time zone, a timedelta from now, or text such as "6h" or
        "2026-12-01T08:00+01:00". When batches will not make it, they are canceled, and what they did not answer is
        asked interactively, at the standard price and within the budget.
    data
        "local" refuses every executor that sends content off this machine, before anything is rendered for it.
    options
        What is rarely set.
    """

    model: str | None
    name: str | None
    system: str | None
    examples: Sequence[tuple[Mapping[str, Any], Any]]
    params: Mapping[str, Any] | None
    tier: Tier | None
    ledger: str | os.PathLike[str] | None
    budget: Decimal | int | str | None
    prices: Mapping[str, Any] | None
    golden: Golden | None
    canary: bool | Literal["override"] | None
    accept: Acceptance | None
    check: Check | Sequence[Check] | None
    on_null: Literal["skip", "render"]
    reuse: Reuse
    retry: str | Sequence[str] | None
    into: str | None
    prefix: str | None
    progress: bool | None
    poll_s: float | None
    deadline: datetime | timedelta | str | None
    data: Literal["local"] | None
    options: Options | None


@dataclass(frozen=True, kw_only=True)
class Call:
    """A checked call, ready to be enrolled or estimated."""

    prompt: str
    template: Template
    schema: Schema
    validator: Validator
    spec: Spec
    spec_digest: str
    executor: BatchExecutor | StreamExecutor
    tier: Tier
    options: Options
    policy: Policy
    prices: Prices | None
    prices_said: Mapping[str, Any] | None
    budget_usd: Decimal | None
    accept: Acceptance
    accept_said: bool
    golden: GoldenSet | None
    canary_said: bool | Literal["override"] | None
    on_null: Literal["skip", "render"]
    reuse: Reuse
    retry: tuple[str, ...]
    into: str | None
    prefix: str
    name: str | None
    ledger: str | os.PathLike[str] | None
    progress: bool | None
    poll_s: float | None
    deadline: datetime | timedelta | None
    warnings: tuple[str, ...] = field(default=())

    def contents(self, frame: pl.DataFrame) -> Iterator[pl.Series]:
        """Yield the frame's rendered rows in slices, null for a skipped row."""
        for part in frame.iter_slices(engine.ENROLL_ROWS):
            yield render(part, self.template, on_null=self.on_null)

    def canary(self, n_requests: int) -> Canary | None:
        """Return what must pass before all of so many distinct requests are sent; None for nothing."""
        said = self.canary_said
        wanted = self.golden is not None or self.executor.paid or self.executor.hosted if said is None else bool(said)
        n_frame = rules.frame_rows(n_requests) if wanted and self.options.systemic_rate is not None else 0
        if self.golden is None and not n_frame:
            return None
        mode: Mode = "override" if said == "override" else "on" if wanted else "off"
        return Canary(
            spec=self.spec_digest,
            subject=rules.subject(
                golden=self.golden,
                prompt=self.prompt,
                validator=self.validator.digest,
                bad_limit=self.options.systemic_rate,
            ),
            golden=self.golden,
            bad_limit=self.options.systemic_rate,
            n_frame=n_frame,
            mode=mode,
        )

    def lane(self, tier: Tier) -> Lane:
        """Return the way to have this call's requests answered at a tier."""
        return lane(self.spec, tier, self.options, _prices(self.prices_said, self.spec, tier, self.executor.hosted))

    @property
    def output_schema(self) -> pl.Schema:
        """The columns that are added to the frame, in order."""
        return pl.Schema({**self.answer_columns, **{self.prefix + name: t for name, t in BOOKKEEPING.items()}})

    @property
    def answer_columns(self) -> dict[str, pl.DataType]:
        """The answer's own columns: the schema's fields, or one struct."""
        fields = self.schema.dtypes
        if self.into is not None:
            return {self.prefix + self.into: pl.Struct(dict(fields))}
        return {self.prefix + name: dtype for name, dtype in fields.items()}


def prepare(frame: object, prompt: str, schema: object = None, *, sends: bool = True, **arguments: Any) -> Call:
    """Check a call's arguments against its frame's columns.

    With `sends` false, what only sending needs (credentials, a server that answers) is a warning where it lacks.

    Raises
    ------
    NotAFrame, BadArgument, EmptyTemplate, BadTemplate, UnknownColumn, UnrenderableColumn, UntranslatableSchema,
    BadExample, OutputClash, UnknownProvider, UnknownModel, UnknownParameter, MissingExtra, ModelWeightsMissing,
    MissingCredentials, HostedRefused, BadPrices, PriceUnknown
        Each before anything is rendered or sent.
    """
    if not isinstance(frame, pl.DataFrame):
        raise NotAFrame.of(frame)
    if not isinstance(prompt, str):
        raise BadArgument.of("prompt", f"must be text, not {type(prompt).__name__}")
    unknown = sorted(set(arguments) - set(Arguments.__annotations__))
    if misplaced := [name for name in unknown if name in Options.__dataclass_fields__]:
        raise BadArgument.misplaced(misplaced, "options=lotwise.Options")
    if unknown:
        raise BadArgument.unknown(unknown, Arguments.__annotations__)
    get = arguments.get
    options = get("options") or Options()
    if not isinstance(options, Options):
        raise BadArgument.of("options", "must be lotwise.Options(...)")
    accept = get("accept")
    if accept is not None and not isinstance(accept, Acceptance):
        raise BadArgument.of("accept", "must be lotwise.Acceptance(...)")
    lots.labels_of(frame.clear(), accept or Acceptance())  # refuses a column that has no groups
    for word in ("system", "name", "into", "prefix"):
        _text(word, get(word))
    _text("prompt", prompt)
    if get("tier") not in (None, "batch", "interactive"):
        raise BadArgument.of("tier", "must be 'batch', 'interactive' or None")
    if get("params") is not None and not isinstance(get("params"), Mapping):
        raise BadArgument.of("params", "must be a dict, such as {'temperature': 0}")
    if get("data") not in (None, "local"):
        raise BadArgument.of("data", "must be 'local' or None")
    on_null = get("on_null", "skip")
    if on_null not in ("skip", "render"):
        raise BadArgument.of("on_null", "must be 'skip' or 'render'")
    if get("prices") is not None and not isinstance(get("prices"), Mapping):
        raise BadArgument.of("prices", "must be a dict, such as {'input_mtok': '1', 'output_mtok': '5'}")
    reuse = _reuse(get("reuse", "exact"), get("name"))
    budget, retry = _budget(get("budget")), _retry(get("retry"))
    due, poll_s = _deadline(get("deadline")), _poll(get("poll_s"))
    template = Template.parse(prompt)
    template.check(frame.columns)
    translated = Schema.of(schema)
    validator = Validator.of(translated, _checks(get("check")))
    if reuse == "compatible":
        validator = validator.taking_compatible()
    model = _model(get("model"), frame.height)
    if get("data") == "local" and hosted_by_name(model):
        raise HostedRefused.of(model)
    executor, model_name = load(
        model, tier=get("tier"), options=executor_options(model, options, priced=get("prices") is not None)
    )
    if not isinstance(executor, BatchExecutor | StreamExecutor):
        raise BadArgument.of("model", f"{model!r} has no executor that can answer")
    if get("data") == "local" and executor.hosted:
        raise HostedRefused.of(model)
    tier: Tier = "batch" if isinstance(executor, BatchExecutor) else "interactive"
    params = dict(get("params") or {})
    max_tokens = params.pop("max_tokens", DEFAULT_MAX_TOKENS)
    if type(max_tokens) is not int or max_tokens < 1:
        raise BadArgument.of("params", "max_tokens must be a positive integer")
    warnings: list[str] = []
    if not template.places and frame.height > 1:
        warnings.append("the prompt names no column, so all rows are one request")
    wire, left = (None, ()) if translated.wire is None else executor.wire_schema(translated.wire)
    if left:
        warnings.append(f"{executor.provider} cannot enforce {', '.join(left)}; validation checks it instead")
    spec = Spec(
        provider=model.partition(":")[0],
        model=model_name,
        system=get("system"),
        examples=render_examples(template, get("examples") or (), translated, dtypes=dict(frame.schema)),
        wire_schema=wire,
        params=params,
        max_tokens=max_tokens,
        repeat=options.repeat,
        model_digest=executor.model_digest(),
        anew=get("name") if reuse == "never" else None,
    )
    digest = spec_digest(spec)
    try:
        executor.check(spec)
    except (MissingCredentials, MissingServer, Unreachable) as lacking:
        if sends:
            raise
        warnings.append(f"to send this, more is needed: {lacking}")
    shared = len(spec.system or "") + sum(len(user) + len(answer) for user, answer in spec.examples)
    if executor.hosted and (warning := cache_warning(template, shared)):
        warnings.append(warning)
    render(frame.clear(), template, on_null=on_null)  # refuses columns that have no text
    call = Call(
        prompt=prompt,
        template=template,
        schema=translated,
        validator=validator,
        spec=spec,
        spec_digest=digest,
        executor=executor,
        tier=tier,
        options=options,
        policy=policy_of(options),
        prices=_prices(get("prices"), spec, tier, executor.hosted),
        prices_said=get("prices"),
        budget_usd=budget,
        accept=accept or Acceptance(),
        accept_said=accept is not None,
        golden=_golden(get("golden"), get("canary"), template, translated, spec, on_null, dict(frame.schema)),
        canary_said=get("canary"),
        on_null=on_null,
        reuse=reuse,
        retry=retry,
        into=get("into"),
        prefix=get("prefix") or "",
        name=get("name"),
        ledger=get("ledger"),
        progress=get("progress"),
        poll_s=poll_s,
        deadline=due,
        warnings=tuple(warnings),
    )
    if call.budget_usd is not None and call.prices is None and executor.paid:
        raise PriceUnknown.of(model, tier, params)
    if call.deadline is not None and tier == "batch":
        turned = call.lane("interactive")  # refuses a provider that has no interactive tier
        if call.budget_usd is not None and turned.prices is None and executor.paid:
            raise PriceUnknown.of(model, "interactive", params)
    clashing = [name for name in call.output_schema if name in frame.columns]
    if clashing:
        raise OutputClash.from_names(clashing, into=call.into if clashing == [*call.answer_columns] else None)
    twice = set(call.answer_columns) & {call.prefix + name for name in BOOKKEEPING}
    if twice:
        raise OutputClash.from_names(sorted(twice), into=call.into)
    return call


def _golden(
    golden: object,
    canary: object,
    template: Template,
    schema: Schema,
    spec: Spec,
    on_null: Literal["skip", "render"],
    dtypes: Mapping[str, pl.DataType],
) -> GoldenSet | None:
    if not (canary is None or isinstance(canary, bool) or canary == "override"):
        raise BadArgument.of("canary", "must be True, False, 'override' or None")
    if golden is None:
        return None
    if not isinstance(golden, Golden):
        raise BadArgument.of("golden", f"must be lotwise.Golden(frame, answers=[...]), not {type(golden).__name__}")
    bound = GoldenSet.bind(golden, template, schema, spec.examples, on_null=on_null, dtypes=dtypes)
    n, fewest = bound.rows.height, rules.fewest_golden(bound.threshold)
    if canary is not False and n < fewest:
        raise BadGolden.too_few(n, fewest, bound.threshold)
    return bound


def lane(spec: Spec, tier: Tier, options: Options, prices: Prices | None) -> Lane:
    """Load the executor that answers a spec at a tier. No network.

    Raises
    ------
    BatchUnsupported, MissingExtra
        As `executors.load`.
    """
    model = spec.model_name
    executor, _ = load(model, tier=tier, options=executor_options(model, options, priced=prices is not None))
    if not isinstance(executor, BatchExecutor | StreamExecutor):
        raise BadArgument.of("model", f"{model!r} has no executor that can answer")
    return Lane(executor=executor, prices=prices)


def policy_of(options: Options) -> Policy:
    """Return the retry policy that the rare options ask for."""
    return Policy(
        max_resends=options.max_resends,
        systemic_rate=options.systemic_rate,
        retry_spend=options.retry_spend,
        hold_uncertain=options.on_uncertain == "hold",
    )


def executor_options(model: str, options: Options, *, priced: bool) -> dict[str, Any]:
    """Return what an executor is made with: the caller's own options, and what the rest of the call says of it.

    A provider's executor and the proof that a shard was never sent must mean the same time by a create call; and a
    server of one's own that has a price (`priced`) is one that is paid for, wherever it is.
    """
    given = dict(options.executor_options)
    if model.partition(":")[0] in ("openai", "anthropic"):
        given.setdefault("create_timeout_s", options.create_timeout_s)
    if model.partition(":")[0] == "online" and priced:
        given.setdefault("paid", True)
    return given


def _text(name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, str):
        raise BadArgument.of(name, f"must be text, not {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        at = error.start
    else:
        return
    raise BadArgument.of(name, f"holds a lone surrogate at character {at + 1:,}, which is no text that can be sent")


def _model(model: str | None, n_rows: int) -> str:
    if model is not None:
        if not isinstance(model, str) or not model:
            raise BadArgument.of("model", "must be text, 'provider:model'")
        return model
    if n_rows > EMBEDDED_DEFAULT_ROWS:
        raise ModelNotSaid.of(n_rows, EMBEDDED_DEFAULT_ROWS)
    return "embedded"


def _checks(given: object) -> tuple[Check, ...]:
    each = given if isinstance(given, Sequence) and not isinstance(given, str) else () if given is None else (given,)
    if not all(isinstance(one, pl.Expr) or callable(one) for one in each):
        raise BadArgument.of("check", "must be a Polars expression or a function, or a list of them")
    return tuple(each)


def _prices(prices: Mapping[str, Any] | None, spec: Spec, tier: str, hosted: bool) -> Prices | None:
    if prices is not None:
        return Prices.given(prices, tier)
    return known_price(spec.provider, spec.model, tier, spec.params) if hosted else None


def _budget(budget: object) -> Decimal | None:
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, Decimal | int | str):
        raise BadArgument.of(
            "budget",
            f"must be US dollars as Decimal, int or str, which say cents exactly, not {type(budget).__name__}",
        )
    try:
        amount = Decimal(budget)
    except InvalidOperation:
        raise BadArgument.of("budget", f"must be an amount of US dollars, not {budget!r}") from None
    if not amount.is_finite() or amount < 0:
        raise BadArgument.of("budget", f"must be a finite amount and not below zero, not {budget}")
    if amount >= LARGEST_BUDGET_USD:
        raise BadArgument.of("budget", f"must be below {LARGEST_BUDGET_USD:,} US dollars, not {budget}")
    return amount


def _reuse(reuse: object, name: object) -> Reuse:
    if reuse not in ("exact", "compatible", "never"):
        raise BadArgument.of("reuse", "must be 'exact', 'compatible' or 'never'")
    if reuse == "never" and not name:
        raise BadArgument.of(
            "reuse", "'never' needs name=: the same name goes on where it was left, so that a crash pays nothing twice"
        )
    return reuse


_STATES = ("dead_lettered", "invalid", "refused")
_CODES = (
    *(code.value for code in Code),
    *("invalid_json", "schema_mismatch", "empty", "check_failed", "not_judged", "oversize", RETRY_SPEND),
)


def _retry(retry: object) -> tuple[str, ...]:
    if retry is None:
        return ()
    words = (retry,) if isinstance(retry, str) else tuple(retry) if isinstance(retry, Sequence) else ()
    if not words:
        raise BadArgument.of("retry", "must be a state or reason, such as 'invalid', or a list of them")
    unknown = [str(word) for word in words if word not in (*_STATES, *_CODES)]
    if unknown:
        raise BadArgument.unknown(unknown, dict.fromkeys((*_STATES, *_CODES)), where="retry")
    return tuple(str(word) for word in words)


_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _deadline(deadline: object) -> datetime | timedelta | None:
    if isinstance(deadline, str):
        span = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", deadline.strip())
        try:
            deadline = timedelta(**{_UNITS[span[2]]: float(span[1])}) if span else datetime.fromisoformat(deadline)
        except (ValueError, OverflowError):
            raise BadArgument.of("deadline", "is no time; write '6h' or '2026-12-01T08:00+01:00'") from None
    if isinstance(deadline, timedelta) and abs(deadline) > LONGEST_DEADLINE:
        raise BadArgument.of("deadline", f"must be at most {LONGEST_DEADLINE.days:,} days away")
    if deadline is None or isinstance(deadline, timedelta):
        return deadline
    if not isinstance(deadline, datetime):
        raise BadArgument.of("deadline", "must be a datetime, a timedelta or text such as '6h'")
    if deadline.tzinfo is None:
        raise BadArgument.of("deadline", "needs a time zone, such as 2026-12-01T08:00+01:00")
    return deadline.astimezone(UTC)


def _poll(poll_s: object) -> float | None:
    if poll_s is None:
        return None
    if isinstance(poll_s, bool) or not isinstance(poll_s, int | float) or not 0 <= poll_s < 86_400:
        raise BadArgument.of("poll_s", "must be seconds, from 0 to a day")
    return float(poll_s)
