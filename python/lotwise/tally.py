"""Which line of a shard's results is whose: matched by key alone, whatever the order; strays are kept apart."""

from __future__ import annotations

import hashlib

import polars as pl

from lotwise.errors import LedgerInconsistent
from lotwise.job import Lane
from lotwise.request import BILLED, PERHAPS_BILLED, Code


class Tally:
    """What has come back for a shard, by key, and what came that should not have."""

    def __init__(self, sent: pl.DataFrame, *, last: bool) -> None:
        self._last = last
        self._sent = sent.select("key")
        self._recorded = sent.filter("recorded").select("key")
        self._returned = pl.DataFrame(schema={"key": pl.String})
        self.counts = {"n_results": 0, "n_duplicates": 0, "n_unknown": 0, "n_unreadable": 0}

    def sort(self, shard: str, lines: list[bytes], lane: Lane) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Split lines into the first result of each key that was asked for, and strays."""
        read = lane.executor.read(lines)
        if read.height != len(lines):
            raise LedgerInconsistent.of("an executor read another number of lines", lines=len(lines), read=read.height)
        texts, blobs = _verbatim(lines)
        frame = read.with_columns(
            code=pl.col("code").cast(pl.String),
            raw=texts,
            raw_blob=blobs,
            key=pl.when(pl.col("custom_id").str.starts_with(shard + "-")).then(pl.col("custom_id").str.slice(17)),
        ).with_row_index("line")
        known = frame.join(self._sent, on="key", how="semi")
        # What cannot be read may be whole in the next reading; as a result it would stand for good.
        held_back = known.filter(pl.lit(not self._last) & (pl.col("code") == Code.UNREADABLE.value))
        known = known.join(held_back, on="line", how="anti", maintain_order="left")
        first = known.unique("key", keep="first", maintain_order=True).join(self._returned, on="key", how="anti")
        why = (
            pl.when(pl.col("custom_id").is_null() | pl.col("line").is_in(held_back["line"].implode()))
            .then(pl.lit("unreadable"))
            .when(pl.col("key").is_in(known["key"].implode()))
            .then(pl.lit("duplicate"))
            .otherwise(pl.lit("unknown"))
        )
        strays = frame.join(first.select("line"), on="line", how="anti").with_columns(why=why)
        self._returned = pl.concat([self._returned, first.select("key")])
        self.counts["n_results"] += first.height
        for kind, name in (("duplicate", "n_duplicates"), ("unknown", "n_unknown"), ("unreadable", "n_unreadable")):
            self.counts[name] += strays.filter(why=kind).height
        results = first.join(self._recorded, on="key", how="anti", maintain_order="left")
        costs = lane.prices.cost_usd(results) if lane.prices is not None else pl.lit(None, pl.Decimal(18, 9))
        billed = pl.col("code").is_in([c.value for c in BILLED])
        results = results.with_columns(cost_usd=costs).with_columns(
            cost_usd=pl.when(billed)
            .then("cost_usd")
            .when(~pl.col("code").is_in([c.value for c in PERHAPS_BILLED]))
            .then(pl.lit(0).cast(pl.Decimal(18, 9)))
        )
        digests = pl.Series(
            "line_digest",
            [hashlib.sha256(lines[i]).hexdigest()[:32] for i in strays["line"].to_list()],
            dtype=pl.String,
        )
        return results, strays.select("why", "custom_id", digests, "raw", "raw_blob")

    def again(self) -> Tally:
        """Return a tally for a second reading of the same results, which takes up only what the first one lacked."""
        returned = pl.concat([self._recorded, self._returned])
        taken = pl.col("key").is_in(returned["key"].implode())
        return Tally(self._sent.with_columns(recorded=taken), last=True)

    @property
    def unreturned(self) -> pl.DataFrame:
        """Keys that were sent, and neither returned now nor recorded before."""
        return self._sent.join(self._returned, on="key", how="anti").join(self._recorded, on="key", how="anti")


def _verbatim(lines: list[bytes]) -> tuple[pl.Series, pl.Series]:
    """Return the lines as text, and those that are not UTF-8 apart as bytes."""
    raw = pl.Series("raw_blob", lines, dtype=pl.Binary)
    try:
        return raw.cast(pl.String).alias("raw"), pl.Series("raw_blob", [None] * len(lines), dtype=pl.Binary)
    except pl.exceptions.ComputeError:
        texts = pl.Series("raw", [_decoded(line) for line in lines], dtype=pl.String)
        return texts, pl.select(pl.when(texts.is_null()).then(raw)).to_series().alias("raw_blob")


def _decoded(line: bytes) -> str | None:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return None
