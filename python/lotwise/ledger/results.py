"""Results in the ledger: what came back of a shard, what a validator said of it, and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

import polars as pl

from lotwise.errors import ClaimLost, LedgerInconsistent
from lotwise.ledger import shards
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import ShardState


@dataclass(frozen=True, kw_only=True)
class Closing:
    """What a closed shard brought: answers that were billed or failed by their own fault, and the bad among them."""

    n_answered: int
    n_bad: int


def sent_keys(ledger: Ledger, shard: str) -> pl.DataFrame:
    """Return what was sent in a shard: `key`, `n`, `variant`, `faults`, `resends`, `live`, `recorded`."""
    with ledger.reading("shard keys") as tx:
        return tx.frame("shard_keys", shard=shard)


def sent(ledger: Ledger, shard: str) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what was sent in a shard, as `shard_keys`, and the results of it that are recorded but not settled."""
    with ledger.reading("sent") as tx:
        keys = tx.frame("shard_keys", shard=shard)
        if not keys.filter("live", "recorded").height:
            return keys, pl.DataFrame(
                schema={"key": pl.String, "code": pl.String, "raw": pl.String, "raw_blob": pl.Binary}
            )
        return keys, tx.frame("unsettled", shard=shard)


def record(ledger: Ledger, shard: str, results: pl.DataFrame, strays: pl.DataFrame, now: datetime) -> int:
    """Append results and strays of a shard. What is already there is not written again. Returns new results."""
    with ledger.transaction("record") as tx:
        count = tx.run("insert_results", frames={"incoming": results}, shard=shard, now=now) if results.height else 0
        if count:
            tx.run("late_cost", shard=shard)
        if strays.height:
            tx.run("insert_strays", frames={"incoming": strays}, shard=shard, now=now)
    return count


def settle(
    ledger: Ledger,
    shard: str,
    validator: str | None,
    verdicts: pl.DataFrame,
    moves: pl.DataFrame,
    *,
    now: datetime,
    owner: str,
    lease_until: datetime,
) -> None:
    """Write verdicts down, move their requests out of `submitted` and lengthen our lease, all or nothing.

    Raises `ClaimLost` when the shard is no longer ours, or a request no longer live in it.
    """
    with ledger.transaction("settle") as tx:
        if tx.run("renew_lease", shard=shard, owner=owner, lease_until=lease_until) != 1:
            raise ClaimLost("a shard that was being collected", 1, 0)
        if validator is not None and verdicts.height:
            tx.run("insert_validations", frames={"verdicts": verdicts}, validator=validator)
        moved = tx.run("settle_requests", frames={"moves": moves}, shard=shard, now=now) if moves.height else 0
        if moved != moves.height:
            raise ClaimLost("requests of a collected shard", moves.height, moved)


def finish(
    ledger: Ledger,
    shard: str,
    *,
    owner: str,
    now: datetime,
    counts: Mapping[str, int],
    validator: str,
    judged: bool = True,
    bound: Callable[[pl.DataFrame], Decimal | None] = lambda _: None,
) -> Closing:
    """Close a collected shard: its counts, its real cost, its reservation. Returns what became of its requests.

    Parameters
    ----------
    counts
        Lines by kind: `n_results`, `n_duplicates`, `n_unknown`, `n_unreadable`.
    validator
        Through which answers count as good or bad.
    judged
        Whether it judged the shard's answers: a process without the caller's code cannot.
    bound
        Says what attempts (`key`, `content_bytes`, `variant`, `returned`) that may have been charged unseen can
        have cost at most; None where no price is known, for the whole reservation.
    """
    with ledger.transaction("finish") as tx:
        cost, unpriced = tx.rows("shard_cost", shard=shard)[0]
        row = tx.records("shard", shard=shard)[0]
        # What may have been charged unseen keeps its upper bound: a bill is never understated.
        doubtful = tx.frame("doubtful", shard=shard)
        unseen = bound(doubtful) if doubtful.height and row["reserved_usd"] is not None else Decimal(0)
        known = cost or Decimal(0)
        settled = row["reserved_usd"] if unseen is None else min(known + unseen, row["reserved_usd"] or known)
        # Of a shard with a price that brought nothing it is known: nothing was seen to cost anything.
        seen = cost if row["reserved_usd"] is None else known
        tx.run(
            "finish_shard",
            shard=shard,
            cost_usd=None if unpriced else seen,
            n_results=counts["n_results"],
            n_duplicates=counts["n_duplicates"],
            n_unknown=counts["n_unknown"],
            n_unreadable=counts["n_unreadable"],
        )
        tx.run("settle_reservation", shard=shard, settled_usd=settled, now=now)
        shards.move_in(tx, shard, ShardState.ENDED, ShardState.COLLECTED, owner=owner, now=now)
        answered, bad = tx.rows("shard_verdicts", shard=shard, validator=validator)[0]
        tx.run("insert_quality", shard=shard, job=row["job"], validator=validator, judged=judged)
        sent, live = tx.rows("shard_balance", shard=shard)[0]
        if sent != row["n_requests"] or live:
            raise LedgerInconsistent.of(
                "the requests of a shard do not add up",
                shard=shard,
                expected=row["n_requests"],
                sent=sent,
                still_live=live,
            )
    return Closing(n_answered=int(answered), n_bad=int(bad))


def unjudged(ledger: Ledger, run: str, validator: str, limit: int) -> pl.DataFrame:
    """Return billed answers to a run's requests that a validator has not judged yet, at most `limit`."""
    with ledger.reading("unjudged") as tx:
        return tx.frame("unjudged", run=run, validator=validator, limit=limit)


def unseen(ledger: Ledger, keys: pl.Series, validator: str) -> pl.DataFrame:
    """Return billed answers that a validator has not judged yet: `key`, `code`, `raw`, `raw_blob`, `seq`."""
    with ledger.reading("unseen") as tx:
        return tx.frame("unseen", frames={"k": pl.DataFrame({"key": keys})}, validator=validator)


def judge_again(
    ledger: Ledger, validator: str, verdicts: pl.DataFrame, moves: pl.DataFrame, *, max_attempts: int
) -> None:
    """Write verdicts on stored answers, and the retries that an answer nobody had judged before makes due.

    A request that has had `max_attempts` already is not asked again.
    """
    with ledger.transaction("judge again") as tx:
        judged = tx.frame("judged_of", frames={"verdicts": verdicts.select("shard", "key")}, validator=validator)
        if judged.height:  # another process has judged them since they were read
            verdicts = verdicts.join(judged, on=["shard", "key"], how="anti")
            moves = moves.join(judged, on="key", how="anti")
        tx.run("insert_validations", frames={"verdicts": verdicts}, validator=validator)
        if moves.height:
            tx.run("retry_answered", frames={"moves": moves}, validator=validator, max_attempts=max_attempts)


def calls_made(ledger: Ledger, run: str, *, unsent: str) -> tuple[int, int]:
    """Return how many calls of a run's own synchronous shards came to anything, an error too, and how many never left.

    `unsent` is the detail by which a result says that.
    """
    with ledger.reading("calls made") as tx:
        n_made, n_unsent = tx.rows("calls_made", run=run, unsent=unsent)[0]
    return int(n_made), int(n_unsent)


def uncertain(ledger: Ledger, run: str, job: str) -> tuple[int, Decimal | None]:
    """Return how many attempts may have been charged with no answer seen, and the most that they can have cost."""
    with ledger.reading("uncertain") as tx:
        n, most_usd = tx.rows("uncertain", run=run, job=job)[0]
    return int(n), most_usd
