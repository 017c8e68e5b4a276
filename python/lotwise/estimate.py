"""What a call would do, worked out from the frame and the ledger without sending or writing anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, ROUND_UP, Decimal
from pathlib import Path

import polars as pl

from lotwise import borrow, collect, lots
from lotwise.call import Call
from lotwise.engine import Enrolled
from lotwise.evidence import Reading
from lotwise.executors.limits import retention
from lotwise.golden import riders
from lotwise.key import spec_json
from lotwise.ledger import borrowed as borrowed_book
from lotwise.ledger import golden as book
from lotwise.ledger import runs as run_book
from lotwise.ledger.files import locate
from lotwise.ledger.store import Ledger
from lotwise.plan import json_bytes, pack
from lotwise.request import Code

NANO_USD = Decimal("1e-9")
"""What an estimate is rounded to, outwards: as fine as the ledger's amounts."""

LEAST_TOKENS = 4
"""What an answer takes at least, in a guess of what a job costs: a JSON object of one field."""

SIZES = pl.Schema({"content_bytes": pl.Int64, "bytes": pl.Int64})
"""Of a request: its content as JSON, and all that is sent for it, at most."""

ARGUMENT = {"wire_schema": "schema", "anew": "name"}
"""Fields of a spec that are called otherwise where they are given."""

WHY = pl.Enum(["reused", "compatible", "in_flight", "sent", "retried", "ended", "oversize", "skipped"])
"""Why, per row: answered; answered to a compatible request; asked and not back; to be sent; sent again; ended without
an answer; too large for the provider, so never sent; asks nothing."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What `map` would do.

    Attributes
    ----------
    ledger, ledger_is_new
        The folder that would be used, and whether it would be made.
    model, tier
        Who would be asked, and how.
    n_rows, n_skipped, n_unique
        Rows of the frame, rows with a null in a used column, distinct requests.
    n_done, n_in_flight, n_ended
        Distinct requests that have a valid answer, that wait for one, and that ended without one.
    n_compatible
        Those of the done that have, or would take, an answer to the same messages and model under another schema or
        parameters (`reuse="compatible"`).
    n_oversize
        Distinct requests that are larger than the provider takes: they would be dead-lettered and never sent.
    n_to_send
        Distinct requests that would be sent.
    n_shards, n_bytes
        What they would be sent in: shards, and encoded bytes at most.
    cost_low_usd, cost_high_usd
        A low guess: nothing but the content, read once as four bytes a token, and answered with four tokens each; and
        the true upper bound. None where no price is known.
    canary
        What is sent first and what must come of it, or how the gate was decided before; None without a canary.
    n_golden
        Golden rows that would be asked besides; their cost is in the cost.
    reading
        Lots, answers and hours that people would read, and what that proves.
    warnings
        What is worth knowing before.
    close_spec
        When nothing is done: the arguments in which an earlier spec of the same model differs from this one, if any.
    retention
        How long the provider keeps what would be sent, and since when that is known.
    null_columns
        The columns whose nulls make a row ask for nothing.
    rows
        One row a row of the frame: `llm_id`, `why` (of `WHY`), and `reason`: what went wrong where it is retried or
        has ended, which columns are null where it is skipped; a code or names, never row content.
    """

    ledger: Path
    ledger_is_new: bool
    model: str
    tier: str
    n_rows: int
    n_skipped: int
    n_unique: int
    n_done: int
    n_in_flight: int
    n_ended: int
    n_to_send: int
    n_shards: int
    n_bytes: int
    cost_low_usd: Decimal | None
    cost_high_usd: Decimal | None
    reading: Reading
    warnings: tuple[str, ...]
    close_spec: tuple[str, ...]
    rows: pl.DataFrame = field(repr=False)
    canary: str | None = None
    n_golden: int = 0
    n_compatible: int = 0
    n_oversize: int = 0
    retention: str = ""
    null_columns: tuple[str, ...] = ()

    @classmethod
    def of(cls, call: Call, frame: pl.DataFrame, enrolled: Enrolled) -> Plan:
        """Work out what a call would do for an already keyed frame."""
        path = locate(call.ledger)
        is_new = not (path / "ledger.duckdb").exists()
        ledger = None if is_new else Ledger.open(path, create=False)
        keys = enrolled.manifest["key"]
        if ledger is None:
            known = pl.DataFrame(
                schema={"key": pl.String, "state": pl.String, "reason": pl.String, "attempts": pl.Int32}
            )
        else:
            known = collect.answers(ledger, keys, call.executor, call.validator).select(
                "key", "state", "reason", "attempts"
            )
        known = known.with_columns(borrowed=pl.col("key").is_in(_borrowed(call, frame, keys, ledger).implode()))
        why = enrolled.manifest.select("key").join(known, on="key", how="left")
        why = why.select("key", why=_why(call).cast(WHY), reason="reason")
        sizes = _sizes(call, frame, enrolled, why.filter(pl.col("why").is_in(["sent", "retried"])))
        cut = pack(
            sizes, call.executor.limits, shard_rows=call.options.shard_rows, shard_bytes=call.options.shard_bytes
        )
        why = why.with_columns(
            why=pl.when(pl.col("key").is_in(cut.oversize["key"].implode()))
            .then(pl.lit("oversize", WHY))
            .otherwise("why")
        )
        sizes = sizes.join(cut.oversize.select("key"), on="key", how="anti")
        counts = dict(why.group_by("why").len().iter_rows())
        n_compatible = counts.get("compatible", 0)
        n_bytes = int(sizes["bytes"].sum())
        canary, golden = _canary(call, ledger, keys.len() - n_compatible, [shard.height for shard in cut.shards])
        n_longer = why.filter((pl.col("why") == "retried") & (pl.col("reason") == Code.TRUNCATED.value)).height
        low, high = _cost(call, pl.concat([sizes.select(*SIZES), golden]), n_longer)
        nothing_done = not counts.get("reused") and not n_compatible and not counts.get("in_flight")
        return cls(
            ledger=path,
            ledger_is_new=is_new,
            model=call.spec.model_name,
            tier=call.tier,
            n_rows=frame.height,
            n_skipped=enrolled.n_skipped,
            n_unique=keys.len(),
            n_done=counts.get("reused", 0) + n_compatible,
            n_compatible=n_compatible,
            n_oversize=counts.get("oversize", 0),
            retention=_retention(call),
            null_columns=tuple(_null_columns(call, frame)),
            n_in_flight=counts.get("in_flight", 0),
            n_ended=counts.get("ended", 0),
            n_to_send=counts.get("sent", 0) + counts.get("retried", 0),
            n_shards=len(cut.shards),
            n_bytes=n_bytes,
            cost_low_usd=low,
            cost_high_usd=high,
            reading=Reading.of(_populations(call, frame, enrolled, why, cut.shards), call.accept),
            warnings=(*call.warnings, *_unwritable(ledger), *_short_of(call.budget_usd, low, high)),
            close_spec=_closest(call, ledger) if ledger is not None and nothing_done else (),
            rows=_rows(call, frame, enrolled.keys, why),
            canary=canary,
            n_golden=golden.height,
        )

    @property
    def can_borrow(self) -> bool:
        """Whether answers to the earlier spec of `close_spec` may be taken over by ``reuse="compatible"``."""
        may_differ = {ARGUMENT.get(name, name) for name in borrow.MAY_DIFFER}
        return bool(self.close_spec) and may_differ.issuperset(self.close_spec)

    def __str__(self) -> str:
        from lotwise import text

        return text.plan(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from lotwise import html

        return html.plan(self)


def _unwritable(ledger: Ledger | None) -> list[str]:
    if ledger is None or ledger.read_only is None:
        return []
    return [f"this ledger can only be read here: {ledger.read_only}; a map needs one that can be written, see ledger="]


def _short_of(budget: Decimal | None, low: Decimal | None, high: Decimal | None) -> list[str]:
    """Say where a budget may not hold what is to be sent; what the same work has spent of it is not counted here."""
    if budget is None or low is None or high is None or high <= budget:
        return []
    what = "less than this is likely to cost" if low > budget else "less than this may cost"
    return [f"the budget, ${budget}, is {what}; what does not fit when its turn comes stays unsent"]


def _why(call: Call) -> pl.Expr:
    state = pl.col("state")
    ended = ("invalid", "refused", "dead_lettered")
    return (
        pl.when("borrowed")
        .then(pl.lit("compatible"))
        .when(state == "succeeded")
        .then(pl.lit("reused"))
        .when(state == "submitted")
        .then(pl.lit("in_flight"))
        .when((state == "pending") & (pl.col("attempts") > 0))
        .then(pl.lit("retried"))
        .when(state.is_in(ended) & (state.is_in(call.retry) | pl.col("reason").is_in(call.retry)))
        .then(pl.lit("retried"))
        .when(state.is_in(ended))
        .then(pl.lit("ended"))
        .otherwise(pl.lit("sent"))
    )


def _rows(call: Call, frame: pl.DataFrame, keys: pl.Series, why: pl.DataFrame) -> pl.DataFrame:
    """Say for each row why it would be reused, sent, retried or left out, with the reason where there is one."""
    told = pl.DataFrame({"llm_id": keys}).join(
        why.rename({"key": "llm_id"}), on="llm_id", how="left", maintain_order="left"
    )
    nulls = pl.concat_str(
        [pl.when(frame[name].is_null()).then(pl.lit(name)) for name in _null_columns(call, frame)]
        or [pl.lit(None, pl.String)],
        separator=", ",
        ignore_nulls=True,
    )
    skipped, spoilt = pl.col("why").is_null(), pl.col("why").is_in(["retried", "ended"])
    return told.with_columns(
        why=pl.col("why").fill_null("skipped"),
        reason=pl.when(skipped).then("null in " + nulls).when(spoilt).then("reason"),
    )


def _null_columns(call: Call, frame: pl.DataFrame) -> list[str]:
    """Return the columns whose nulls make a row ask for nothing, those that have any."""
    used = dict.fromkeys(call.template.places) if call.on_null == "skip" else ()
    return [name for name in used if frame[name].null_count()]


def _retention(call: Call) -> str:
    """Say how long the provider keeps what would be sent."""
    if not call.executor.hosted:
        return "nothing leaves this machine"
    known = retention(call.spec.provider, call.executor.limits)
    if known is None:
        return f"not known for {call.spec.provider}, {call.tier}: your account's terms with it say"
    return known + ("; deleted there once a shard is collected" if call.options.cleanup else "")


def _borrowed(call: Call, frame: pl.DataFrame, keys: pl.Series, ledger: Ledger | None) -> pl.Series:
    """Return the keys that show, or would take, an answer to a compatible request."""
    if ledger is None or call.reuse != "compatible":
        return pl.Series("key", [], dtype=pl.String)
    found = borrow.find(ledger, call.spec, call.executor, call.validator, call.contents(frame))
    return pl.concat([found["key"], borrowed_book.taken(ledger, keys, call.validator.digest)])


def _sizes(call: Call, frame: pl.DataFrame, enrolled: Enrolled, wanted: pl.DataFrame) -> pl.DataFrame:
    """Return `key`, `part` and `SIZES` of the requests that would be sent, rendering the frame once more."""
    sizes = [json_bytes(content) for content in call.contents(frame)]
    lengths = pl.concat(sizes) if sizes else pl.Series([], dtype=pl.Int32)
    every = pl.DataFrame({"key": enrolled.keys, "content_bytes": lengths}).drop_nulls("key").unique("key", keep="first")
    chosen = every.join(wanted.select("key"), on="key", how="semi")
    return chosen.select("key", pl.lit("").alias("part"), *_encoded(call, chosen["content_bytes"]))


def _encoded(call: Call, content_bytes: pl.Series) -> list[pl.Series]:
    return [
        content_bytes.cast(pl.Int64).alias("content_bytes"),
        call.executor.sizes(call.spec, content_bytes).cast(pl.Int64).alias("bytes"),
    ]


def _cost(call: Call, sizes: pl.DataFrame, n_longer: int) -> tuple[Decimal | None, Decimal | None]:
    """Return what requests of these `SIZES` may cost, guessed low and bounded; so many may give twice the output."""
    if call.prices is None:
        return None, None
    content, total = (int(sizes[name].sum()) for name in SIZES)
    least = min(LEAST_TOKENS, call.spec.max_tokens) * sizes.height
    most = call.spec.max_tokens * (sizes.height + n_longer)
    low = (call.prices.input_mtok * (content // 4) + call.prices.output_mtok * least) / Decimal(1_000_000)
    high = call.prices.upper_bound(input_bytes=total, output_tokens=most)
    return low.quantize(NANO_USD, ROUND_DOWN), high.quantize(NANO_USD, ROUND_UP)


def _populations(
    call: Call, frame: pl.DataFrame, enrolled: Enrolled, why: pl.DataFrame, shards: Sequence[pl.DataFrame]
) -> list[int]:
    """Return the distinct requests of each lot, as they will be when all that can be are answered.

    Lots that are shards: those that would be sent, and what was sent before as one more, since the shards in which it
    went are told by `Run.lots`.
    """
    labels = lots.labels_of(frame, call.accept)
    answered = why.filter(~pl.col("why").is_in(["ended", "oversize"]))  # what has no answer is in no sample
    if labels is not None:
        rows = pl.DataFrame({"key": enrolled.keys, "label": labels}).join(answered, on="key", how="semi")
        return rows.group_by("label").agg(pl.col("key").n_unique())["key"].to_list()
    if call.accept.scheme == "run":
        return [answered.height]
    sent = [shard.height for shard in shards]
    return [*sent, answered.height - sum(sent)]


def _canary(
    call: Call, ledger: Ledger | None, n_requests: int, shards: Sequence[int]
) -> tuple[str | None, pl.DataFrame]:
    """Say what a run must pass first, and return the `SIZES` of each golden row that it would ask."""
    canary, nothing = call.canary(n_requests), SIZES.to_frame()
    if canary is None:
        return None, nothing
    found = None if ledger is None or canary.mode == "off" else book.gate(ledger, canary)
    refused = found is not None and found["state"] == "failed" and canary.mode != "override"
    asked = nothing
    if canary.golden is not None and shards and not refused:
        rows = canary.golden.rows
        n_asks = sum(riders(n, rows.height) for n in shards)
        n_asks += rows.height if found is None and canary.mode != "off" else 0
        each = pl.DataFrame(_encoded(call, json_bytes(rows["content"])))
        asked = each[[i % rows.height for i in range(n_asks)]]
    if canary.mode == "off":
        return "off", asked
    if found is not None:
        went_on = ", and is overridden" if canary.mode == "override" and found["state"] == "failed" else ""
        return f"{found['state']}{went_on}: {found['reason']}", asked
    parts = [f"{canary.golden.rows.height:,} golden rows"] if canary.golden is not None else []
    parts += [f"{canary.n_frame:,} requests"] if canary.n_frame else []
    return f"{' and '.join(parts)} first, the rest only if they pass", asked


def _closest(call: Call, ledger: Ledger) -> tuple[str, ...]:
    """Name the arguments in which the nearest stored spec of the same model differs from this call's."""
    ours = json.loads(spec_json(call.spec))
    best: tuple[str, ...] = ()
    for digest, body in run_book.specs_of(ledger, call.spec.model_name).iter_rows():
        theirs = json.loads(body)
        different = tuple(sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)))
        if digest == call.spec_digest:
            return ()  # the same spec: what differs is the prompt or the rows
        if not best or len(different) < len(best):
            best = different
    if call.reuse == "compatible" and borrow.MAY_DIFFER.issuperset(best):
        return ()  # its answers were looked at
    return tuple(ARGUMENT.get(name, name) for name in best)
