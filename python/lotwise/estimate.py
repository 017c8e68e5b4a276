"""What a call would do, worked out from the frame and the ledger without sending or writing anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path

import polars as pl

from lotwise import lots
from lotwise.call import Call
from lotwise.engine import Enrolled
from lotwise.evidence import Reading
from lotwise.golden import riders
from lotwise.key import spec_json
from lotwise.ledger import golden as book
from lotwise.ledger.files import locate
from lotwise.ledger.store import Ledger
from lotwise.plan import json_bytes, pack

WHY = pl.Enum(["reused", "in_flight", "sent", "retried", "ended", "skipped"])
"""Why, per row: answered; asked and not back; to be sent; sent again; ended without an answer; asks nothing."""


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
    n_to_send
        Distinct requests that would be sent.
    n_shards, n_bytes
        What they would be sent in: shards, and encoded bytes at most.
    cost_low_usd, cost_high_usd
        Nothing but the content read as four bytes a token and answered shortly; and the true upper bound. None where
        no price is known.
    canary
        What is sent first and what must come of it, or how the gate was decided before; None without a canary.
    n_golden
        Golden rows that would be asked besides; their cost is in the cost.
    reading
        Lots, answers and hours that people would read, and what that proves.
    warnings
        What is worth knowing before.
    close_spec
        When nothing is done: the fields in which an earlier spec of the same model differs from this one, if any.
    rows
        One row a row of the frame: `llm_id` and `why` (of `WHY`).
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

    @classmethod
    def of(cls, call: Call, frame: pl.DataFrame, enrolled: Enrolled) -> Plan:
        """Work out what a call would do for an already keyed frame."""
        path = locate(call.ledger)
        is_new = not (path / "ledger.duckdb").exists()
        ledger = None if is_new else Ledger.open(path, create=False)
        keys = enrolled.manifest["key"]
        if ledger is None:
            known = pl.DataFrame(schema={"key": pl.String, "state": pl.String, "attempts": pl.Int32})
        else:
            known = ledger.answers(keys, call.validator.digest).select("key", "state", "attempts")
        why = enrolled.manifest.select("key").join(known, on="key", how="left").select("key", why=_why(call).cast(WHY))
        rows = pl.DataFrame({"llm_id": enrolled.keys}).join(
            why.rename({"key": "llm_id"}), on="llm_id", how="left", maintain_order="left"
        )
        rows = rows.with_columns(pl.col("why").fill_null("skipped"))
        counts = dict(why.group_by("why").len().iter_rows())
        sizes = _sizes(call, frame, enrolled, why.filter(pl.col("why").is_in(["sent", "retried"])))
        cut = pack(
            sizes, call.executor.limits, shard_rows=call.options.shard_rows, shard_bytes=call.options.shard_bytes
        )
        n_bytes = int(sizes["bytes"].sum())
        canary, golden = _canary(call, ledger, keys.len(), [shard.height for shard in cut.shards])
        low, high = _cost(call, pl.concat([sizes.select("bytes"), golden]))
        nothing_done = not counts.get("reused") and not counts.get("in_flight")
        return cls(
            ledger=path,
            ledger_is_new=is_new,
            model=call.spec.model_name,
            tier=call.tier,
            n_rows=frame.height,
            n_skipped=enrolled.n_skipped,
            n_unique=keys.len(),
            n_done=counts.get("reused", 0),
            n_in_flight=counts.get("in_flight", 0),
            n_ended=counts.get("ended", 0),
            n_to_send=counts.get("sent", 0) + counts.get("retried", 0),
            n_shards=len(cut.shards),
            n_bytes=n_bytes,
            cost_low_usd=low,
            cost_high_usd=high,
            reading=Reading.of(_populations(call, frame, enrolled, why, cut.shards), call.accept),
            warnings=call.warnings,
            close_spec=_closest(call, ledger) if ledger is not None and nothing_done else (),
            rows=rows,
            canary=canary,
            n_golden=golden.height,
        )

    def __str__(self) -> str:
        from lotwise import text

        return text.plan(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from lotwise import html

        return html.plan(self)


def _why(call: Call) -> pl.Expr:
    state = pl.col("state")
    retried = set(call.retry)
    ended = ("invalid", "refused", "dead_lettered")
    return (
        pl.when(state == "succeeded")
        .then(pl.lit("reused"))
        .when(state == "submitted")
        .then(pl.lit("in_flight"))
        .when((state == "pending") & (pl.col("attempts") > 0))
        .then(pl.lit("retried"))
        .when(state.is_in([word for word in ended if word in retried]))
        .then(pl.lit("retried"))
        .when(state.is_in(ended))
        .then(pl.lit("ended"))
        .otherwise(pl.lit("sent"))
    )


def _sizes(call: Call, frame: pl.DataFrame, enrolled: Enrolled, wanted: pl.DataFrame) -> pl.DataFrame:
    """Return `key`, `part` and `bytes` of the requests that would be sent, rendering the frame once more."""
    sizes = [json_bytes(content) for content in call.contents(frame)]
    lengths = pl.concat(sizes) if sizes else pl.Series([], dtype=pl.Int32)
    every = pl.DataFrame({"key": enrolled.keys, "content_bytes": lengths}).drop_nulls("key").unique("key", keep="first")
    chosen = every.join(wanted.select("key"), on="key", how="semi")
    return chosen.select("key", pl.lit("").alias("part"), bytes=call.executor.sizes(call.spec, chosen["content_bytes"]))


def _cost(call: Call, sizes: pl.DataFrame) -> tuple[Decimal | None, Decimal | None]:
    if call.prices is None:
        return None, None
    total = int(sizes["bytes"].sum())
    low = call.prices.upper_bound(input_bytes=0, output_tokens=0) + (
        call.prices.input_mtok * (total // 4) + call.prices.output_mtok * 10 * sizes.height
    ) / Decimal(1_000_000)
    high = call.prices.upper_bound(input_bytes=total, output_tokens=call.spec.max_tokens * sizes.height)
    return low.quantize(Decimal("0.0001")), high.quantize(Decimal("0.0001"))


def _populations(
    call: Call, frame: pl.DataFrame, enrolled: Enrolled, why: pl.DataFrame, shards: Sequence[pl.DataFrame]
) -> list[int]:
    """Return the distinct requests of each lot, as they will be when all are answered.

    Lots that are shards: those that would be sent, and what was sent before as one more, since the shards in which it
    went are told by `Run.lots`.
    """
    labels = lots.labels_of(frame, call.accept)
    if labels is not None:
        rows = pl.DataFrame({"key": enrolled.keys, "label": labels}).drop_nulls("key")
        return rows.group_by("label").agg(pl.col("key").n_unique())["key"].to_list()
    if call.accept.scheme == "run":
        return [why.height]
    sent = [shard.height for shard in shards]
    return [*sent, why.height - sum(sent)]


def _canary(
    call: Call, ledger: Ledger | None, n_requests: int, shards: Sequence[int]
) -> tuple[str | None, pl.DataFrame]:
    """Say what a run must pass first, and return the `bytes` of each golden row that it would ask."""
    canary, nothing = call.canary(n_requests), pl.DataFrame(schema={"bytes": pl.Int64})
    if canary is None:
        return None, nothing
    found = None if ledger is None or canary.mode == "off" else book.gate(ledger, canary)
    refused = found is not None and found["state"] == "failed" and canary.mode != "override"
    asked = nothing
    if canary.golden is not None and shards and not refused:
        rows = canary.golden.rows
        n_asks = sum(riders(n, rows.height) for n in shards)
        n_asks += rows.height if found is None and canary.mode != "off" else 0
        each = call.executor.sizes(call.spec, json_bytes(rows["content"])).cast(pl.Int64)
        asked = pl.DataFrame({"bytes": each.gather([i % rows.height for i in range(n_asks)])})
    if canary.mode == "off":
        return "off", asked
    if found is not None:
        went_on = ", and is overridden" if canary.mode == "override" and found["state"] == "failed" else ""
        return f"{found['state']}{went_on}: {found['reason']}", asked
    parts = [f"{canary.golden.rows.height:,} golden rows"] if canary.golden is not None else []
    parts += [f"{canary.n_frame:,} requests"] if canary.n_frame else []
    return f"{' and '.join(parts)} first, the rest only if they pass", asked


def _closest(call: Call, ledger: Ledger) -> tuple[str, ...]:
    """Name the fields in which the nearest stored spec of the same model differs from this call's."""
    ours = json.loads(spec_json(call.spec))
    best: tuple[str, ...] = ()
    for digest, body in ledger.specs_of(call.spec.model_name).iter_rows():
        theirs = json.loads(body)
        different = tuple(sorted(name for name in ours if ours[name] != theirs.get(name)))
        if digest == call.spec_digest:
            return ()  # the same spec: what differs is the prompt or the rows
        if not best or len(different) < len(best):
            best = different
    return best
