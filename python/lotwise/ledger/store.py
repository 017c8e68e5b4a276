"""The ledger: the only code that speaks SQL to it, one method a thing that the journey of a row needs.

A move is a conditional update from an expected state that says how much it moved; when that is not what was asked, the
whole transaction is rolled back and the caller is told. Two live attempts of one request cannot be written down: the
live attempt is one cell of the request's row.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any, TypedDict, cast

import polars as pl

from lotwise.errors import BudgetTooSmall, ClaimLost, ForkedLedger, LedgerInconsistent, LedgerNotFound, RunEnded
from lotwise.ledger import migrate, parts
from lotwise.ledger.files import Connections, Folder, locate
from lotwise.ledger.query import answer
from lotwise.ledger.transaction import Transaction
from lotwise.lifecycle import SHARD_MOVES, ShardState
from lotwise.plan import json_bytes

MANIFEST_STEP = 100_000
"""Manifest rows a transaction, so that none lasts long."""


@dataclass(frozen=True, kw_only=True)
class Intent:
    """All that is written down before a shard may touch the network."""

    shard: str
    run: str
    job: str
    spec: str
    provider: str
    account: str
    purpose: str
    owner: str
    lease_until: datetime
    bytes: int
    keys: pl.Series
    reserved_usd: Decimal | None
    budget_usd: Decimal | None
    golden: pl.Series | None = None
    """Those of the keys that are golden rows; their attempts have that purpose."""


@dataclass(frozen=True, kw_only=True)
class Closing:
    """What a closed shard brought: answers that were billed or failed by their own fault, and the bad among them."""

    n_answered: int
    n_bad: int


class ShardRow(TypedDict):
    """A shard as the ledger stores it (sql/001_initial.sql says what each column is)."""

    id: str
    run: str
    job: str
    spec: str
    provider: str
    account: str
    purpose: str
    state: str
    owner: str | None
    lease_until: datetime | None
    batch_id: str | None
    provider_state: str | None
    n_requests: int
    bytes: int
    n_results: int | None
    n_duplicates: int | None
    n_unknown: int | None
    n_unreadable: int | None
    reserved_usd: Decimal | None
    cost_usd: Decimal | None
    reason: str | None
    intended_at: datetime
    creating_at: datetime | None
    submitted_at: datetime | None
    ended_at: datetime | None
    collected_at: datetime | None
    polled_at: datetime | None


class Ledger:
    """A lotwise ledger. Holds no connection between calls; every method is one short transaction.

    Parameters
    ----------
    connections
        Where connections come from: a `Folder`, or in simulations one that is already open.
    parts_folder
        Where rendered content lies.
    """

    def __init__(self, connections: Connections, parts_folder: Path, path: Path) -> None:
        self.connections = connections
        self.parts_folder = parts_folder
        self.path = path
        self._pid = os.getpid()

    # --- opening -----------------------------------------------------------------------------------------------

    @classmethod
    def open(cls, given: str | os.PathLike[str] | None = None, *, create: bool = True) -> Ledger:
        """Open the ledger in a folder, made and migrated when need be.

        Parameters
        ----------
        given
            The folder; None for LOTWISE_LEDGER, a lotwise.toml or `.lotwise/` upwards, else `.lotwise/` here.
        create
            Whether to make a ledger where there is none.

        Raises
        ------
        LedgerNotFound, LedgerUnwritable, LedgerForeign, LedgerNewer, LedgerDamaged, LedgerLocked
            The file is left as it is in every case.
        """
        path = locate(given)
        folder = Folder(path=path)
        if not folder.exists and not create and not path.is_file():
            raise LedgerNotFound.at(path)
        folder.make()
        folder.check()
        if folder.exists:
            with folder.session("check") as connection:
                version = migrate.version_of(connection, folder.database)
            if 0 < version < migrate.LATEST:
                migrate.keep_copy(folder.database, version)
        with folder.session("open") as connection:
            if migrate.version_of(connection, folder.database) < migrate.LATEST:
                migrate.migrate(connection, folder.database)
        return cls(folder, folder.parts, path)

    def refuse_fork(self) -> None:
        """Raise `ForkedLedger` in a child of the process that opened this ledger."""
        if os.getpid() != self._pid:
            raise ForkedLedger.of(self._pid, os.getpid())

    @contextlib.contextmanager
    def transaction(self, purpose: str) -> Iterator[Transaction]:
        """Run one short transaction that commits at the end, or rolls back when anything is raised inside."""
        self.refuse_fork()
        with self.connections.session(purpose) as connection:
            connection.execute("BEGIN")
            try:
                yield Transaction(connection, self.path)
                connection.execute("COMMIT")
            except BaseException:
                with contextlib.suppress(Exception):  # after a failed COMMIT a ROLLBACK itself raises
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self, purpose: str) -> Iterator[Transaction]:
        """Read in one consistent snapshot; nothing is written, so closing costs no checkpoint."""
        self.refuse_fork()
        with self.connections.session(purpose, read_only=True) as connection:
            yield Transaction(connection, self.path)

    def sql(self, query: str) -> pl.DataFrame:
        """Answer one read-only query as a frame. Opens, answers and closes; others wait meanwhile."""
        self.refuse_fork()
        return answer(self.connections, query)

    def copy_to(self, database: Path) -> None:
        """Copy every table into a new DuckDB file, without the free blocks of this one."""
        self.refuse_fork()
        quoted = str(database).replace("'", "''")
        with self.connections.session("export", read_only=True) as connection:
            here = connection.execute("SELECT current_database()").fetchall()[0][0]
            connection.execute(f"ATTACH '{quoted}' AS copied (READ_WRITE)")
            connection.execute(f'COPY FROM DATABASE "{here}" TO copied')
            connection.execute("DETACH copied")

    # --- enrolling ---------------------------------------------------------------------------------------------

    def enroll(self, spec: str, requests: pl.DataFrame, now: datetime) -> int:
        """Write down requests that the ledger does not have yet, as pending, and return how many there were.

        `requests` has distinct `key` and `content`. The content is durable in a part before the transaction that names
        it.
        """
        new = self.unknown(requests)
        new = new.with_columns(json_bytes(new["content"]))
        while not new.is_empty():
            part = parts.write(self.parts_folder, new)
            with self.transaction("enroll") as tx:
                if not parts.exists(self.parts_folder, part):
                    continue  # a purge in another process took it for the rest of a crash
                keyed = {"k": new.select("key", "content_bytes")}
                count = tx.run("enroll", frames=keyed, spec=spec, part=part)
                if count != new.height:
                    tx.run("restore_content", frames=keyed, part=part)
                tx.run("insert_part", part=part, n_requests=new.height, bytes=int(new["content_bytes"].sum()), now=now)
            return count
        return 0

    def unknown(self, requests: pl.DataFrame) -> pl.DataFrame:
        """Return those of the requests (a frame with `key`) whose content the ledger needs: it does not have them, or
        they are to be sent and their content was purged."""
        with self.reading("known") as tx:
            known = tx.frame("known_keys", frames={"k": requests.select("key")})
        return requests.join(known, on="key", how="anti", maintain_order="left")

    def begin_run(
        self,
        run: Mapping[str, Any],
        spec: Mapping[str, Any],
        validator: Mapping[str, Any],
        manifest: pl.DataFrame,
        now: datetime,
    ) -> None:
        """Write down a run with all that it expects. The run's own row comes last, so a run has a whole manifest."""
        for start in range(0, manifest.height, MANIFEST_STEP):
            with self.transaction("manifest") as tx:
                tx.run("insert_manifest", frames={"k": manifest.slice(start, MANIFEST_STEP)}, run=run["id"])
        with self.transaction("begin run") as tx:
            tx.run("insert_spec", **spec, now=now)
            tx.run("insert_validator", **validator, now=now)
            tx.run("insert_run", **run, now=now)

    # --- what there is to do -----------------------------------------------------------------------------------

    def pending(self, run: str) -> pl.DataFrame:
        """Return a run's requests that wait to be sent: `key`, `part`, `content_bytes`, `due_at`, `faults`, ..."""
        with self.reading("pending") as tx:
            return tx.frame("pending", run=run)

    def open_shards(self, run: str, job: str) -> list[ShardRow]:
        """Return the open shards that a run waits for, its own and other runs'."""
        with self.reading("open shards") as tx:
            return cast(list[ShardRow], tx.records("open_shards", run=run, job=job))

    def all_open_shards(self) -> list[ShardRow]:
        """Return every open shard of the ledger."""
        with self.reading("open shards") as tx:
            return cast(list[ShardRow], tx.records("all_open_shards"))

    def contents(self, requests: pl.DataFrame) -> pl.DataFrame:
        """Return the frame (with `key` and `part`) with each request's rendered `content`, in the same order."""
        held = requests.filter(pl.col("part") != "")["part"].unique().to_list()
        texts = parts.read(self.parts_folder, held, requests["key"])
        joined = requests.join(texts, on="key", how="left", maintain_order="left")
        lacking = int(joined["content"].null_count())
        if lacking:
            raise LedgerInconsistent.of("the content of some pending requests is gone", requests=lacking)
        return joined

    # --- shards ------------------------------------------------------------------------------------------------

    def intend(self, intent: Intent, now: datetime) -> None:
        """Claim requests, reserve their upper bound and write the intent, all or nothing.

        Raises
        ------
        ClaimLost
            Some of the requests are no longer pending: another process was faster.
        BudgetTooSmall
            The reservation does not fit what is left of the budget.
        """
        golden = pl.Series([], dtype=pl.String) if intent.golden is None else intent.golden
        keys = pl.DataFrame({"key": intent.keys}).with_columns(golden=pl.col("key").is_in(golden.implode()))
        with self.transaction("intend") as tx:
            state, why = tx.rows("run_state", run=intent.run)[0]
            if state != "open":
                raise RunEnded.of(intent.run, state, why)
            if intent.budget_usd is not None:
                total, n_open = tx.rows("committed_usd", job=intent.job)[0]
                committed, asked = Decimal(total), intent.reserved_usd or Decimal(0)
                if committed + asked > intent.budget_usd:
                    raise BudgetTooSmall.of(intent.budget_usd, committed, asked, n_open=n_open)
            tx.run(
                "insert_shard",
                shard=intent.shard,
                run=intent.run,
                job=intent.job,
                spec=intent.spec,
                provider=intent.provider,
                account=intent.account,
                purpose=intent.purpose,
                owner=intent.owner,
                lease_until=intent.lease_until,
                n_requests=keys.height,
                bytes=intent.bytes,
                reserved_usd=intent.reserved_usd,
                now=now,
            )
            if intent.reserved_usd is not None:
                tx.run("reserve", shard=intent.shard, job=intent.job, reserved_usd=intent.reserved_usd, now=now)
            claimed = tx.run("claim", frames={"k": keys}, shard=intent.shard)
            if claimed != keys.height:
                raise ClaimLost("requests for a shard", keys.height, claimed)
            tx.run("insert_attempts", frames={"k": keys}, shard=intent.shard, purpose=intent.purpose)
            tx.run(
                "event",
                shard=intent.shard,
                now=now,
                note=None,
                origin=ShardState.PLANNED.value,
                target=ShardState.INTENDED.value,
            )

    def move(
        self,
        shard: str,
        origin: ShardState,
        target: ShardState,
        *,
        owner: str,
        now: datetime,
        lease_until: datetime | None = None,
        batch_id: str | None = None,
        reason: str | None = None,
        provider_state: str | None = None,
    ) -> None:
        """Move a shard that we hold from one state to the next, with its event. Raises `ClaimLost` when it is not
        there any more or not ours."""
        with self.transaction(f"{origin} to {target}") as tx:
            move(
                tx,
                shard,
                origin,
                target,
                owner=owner,
                now=now,
                lease_until=lease_until,
                batch_id=batch_id,
                reason=reason,
                provider_state=provider_state,
            )

    def take(
        self,
        shard: ShardRow,
        *,
        owner: str,
        now: datetime,
        lease_until: datetime,
        gone: str | None = None,
    ) -> bool:
        """Take the lease of a shard that is free, run out, ours, or whose owner `gone` is known to be dead."""
        with self.transaction("take lease") as tx:
            taken = tx.run(
                "take_lease",
                shard=shard["id"],
                state=shard["state"],
                owner=owner,
                now=now,
                lease_until=lease_until,
                gone=gone,
            )
        return taken == 1

    def renew(self, shard: str, *, owner: str, lease_until: datetime) -> bool:
        """Lengthen our lease. False when the shard is no longer ours."""
        with self.transaction("renew lease") as tx:
            return tx.run("renew_lease", shard=shard, owner=owner, lease_until=lease_until) == 1

    def drop(self, shard: str, *, owner: str) -> None:
        """Give our lease back, so that anybody may go on with the shard."""
        with self.transaction("drop lease") as tx:
            tx.run("drop_lease", shard=shard, owner=owner)

    def note_poll(self, shard: str, provider_state: str, *, owner: str, now: datetime) -> None:
        """Remember when a shard was last looked at and what its state was called, and give our lease back."""
        with self.transaction("note poll") as tx:
            tx.run("note_poll", shard=shard, provider_state=provider_state, owner=owner, now=now)

    def release(
        self,
        shard: str,
        origin: ShardState,
        target: ShardState,
        *,
        owner: str,
        now: datetime,
        reason: str,
        due_at: datetime | None,
        dead: bool = False,
    ) -> int:
        """Close a shard that nobody worked on: its requests are pending again, its reservation is settled at nothing.

        With `dead` they are dead-lettered instead: the provider refused what is in them.
        """
        if target not in (ShardState.LOST, ShardState.REJECTED):
            raise ValueError(f"a shard is released into lost or rejected, not {target}")
        with self.transaction(f"release to {target}") as tx:
            keys = pl.DataFrame(
                {"key": [row[0] for row in tx.rows("live_keys", shard=shard)]}, schema={"key": pl.String}
            )
            count = tx.run("release_requests", shard=shard, reason=reason, due_at=due_at)
            tx.run("forget_attempts", shard=shard)
            if dead:
                tx.run("dead_letter", frames={"k": keys}, reason=reason)
            tx.run("settle_reservation", shard=shard, settled_usd=Decimal(0), now=now)
            move(tx, shard, origin, target, owner=owner, now=now, reason=reason)
        return count

    # --- collecting --------------------------------------------------------------------------------------------

    def shard(self, shard: str) -> ShardRow:
        """Return a shard's row."""
        with self.reading("shard") as tx:
            return cast(ShardRow, tx.records("shard", shard=shard)[0])

    def batches(self, but: str) -> set[str]:
        """Return the provider's batch ids of all shards but one: batches that are accounted for."""
        with self.reading("batches") as tx:
            return {str(row[0]) for row in tx.rows("batches", shard=but)}

    def shard_keys(self, shard: str) -> pl.DataFrame:
        """Return what was sent in a shard: `key`, `n`, `variant`, `faults`, `resends`, `live`, `recorded`."""
        with self.reading("shard keys") as tx:
            return tx.frame("shard_keys", shard=shard)

    def sent(self, shard: str) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Return what was sent in a shard, as `shard_keys`, and the results of it that are recorded but not settled."""
        with self.reading("sent") as tx:
            keys = tx.frame("shard_keys", shard=shard)
            if not keys.filter("live", "recorded").height:
                return keys, pl.DataFrame(
                    schema={"key": pl.String, "code": pl.String, "raw": pl.String, "raw_blob": pl.Binary}
                )
            return keys, tx.frame("unsettled", shard=shard)

    def record(self, shard: str, results: pl.DataFrame, strays: pl.DataFrame, now: datetime) -> int:
        """Append results and strays of a shard. What is already there is not written again. Returns new results."""
        with self.transaction("record") as tx:
            count = (
                tx.run("insert_results", frames={"incoming": results}, shard=shard, now=now) if results.height else 0
            )
            if count:
                tx.run("late_cost", shard=shard)
            if strays.height:
                tx.run("insert_strays", frames={"incoming": strays}, shard=shard, now=now)
        return count

    def settle(
        self,
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
        with self.transaction("settle") as tx:
            if tx.run("renew_lease", shard=shard, owner=owner, lease_until=lease_until) != 1:
                raise ClaimLost("a shard that was being collected", 1, 0)
            if validator is not None and verdicts.height:
                tx.run("insert_validations", frames={"verdicts": verdicts}, validator=validator)
            moved = tx.run("settle_requests", frames={"moves": moves}, shard=shard, now=now) if moves.height else 0
            if moved != moves.height:
                raise ClaimLost("requests of a collected shard", moves.height, moved)

    def finish(
        self,
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
        with self.transaction("finish") as tx:
            cost, unpriced = tx.rows("shard_cost", shard=shard)[0]
            row = tx.records("shard", shard=shard)[0]
            # What may have been charged unseen keeps its upper bound: a bill is never understated.
            doubtful = tx.frame("doubtful", shard=shard)
            unseen = bound(doubtful) if doubtful.height and row["reserved_usd"] is not None else Decimal(0)
            known = cost or Decimal(0)
            settled = row["reserved_usd"] if unseen is None else min(known + unseen, row["reserved_usd"] or known)
            tx.run(
                "finish_shard",
                shard=shard,
                cost_usd=None if unpriced else cost,
                n_results=counts["n_results"],
                n_duplicates=counts["n_duplicates"],
                n_unknown=counts["n_unknown"],
                n_unreadable=counts["n_unreadable"],
            )
            tx.run("settle_reservation", shard=shard, settled_usd=settled, now=now)
            move(tx, shard, ShardState.ENDED, ShardState.COLLECTED, owner=owner, now=now)
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

    # --- judging again -----------------------------------------------------------------------------------------

    def unjudged(self, run: str, validator: str, limit: int) -> pl.DataFrame:
        """Return billed answers to a run's requests that a validator has not judged yet, at most `limit`."""
        with self.reading("unjudged") as tx:
            return tx.frame("unjudged", run=run, validator=validator, limit=limit)

    def judge_again(self, validator: str, verdicts: pl.DataFrame, moves: pl.DataFrame) -> None:
        """Write verdicts on stored answers, and the retries that an answer nobody had judged before makes due."""
        with self.transaction("judge again") as tx:
            tx.run("insert_validations", frames={"verdicts": verdicts}, validator=validator)
            if moves.height:
                tx.run("retry_answered", frames={"moves": moves}, validator=validator)

    def reopen(self, keys: pl.Series, origin: str, why: str) -> int:
        """Open another attempt of ended requests because the user asked, and return how many there were."""
        with self.transaction("reopen") as tx:
            return tx.run("reopen", frames={"k": pl.DataFrame({"key": keys})}, why=why, origin=origin)

    def give_up(self, keys: pl.Series, to_state: str, reason: str) -> int:
        """End pending requests that may not be sent (again), with the reason."""
        with self.transaction("give up") as tx:
            return tx.run("give_up_due", frames={"k": pl.DataFrame({"key": keys})}, to_state=to_state, reason=reason)

    # --- answers -----------------------------------------------------------------------------------------------

    def answers(self, keys: pl.Series, validator: str) -> pl.DataFrame:
        """Return what each distinct key's row shows: `key`, `state`, `reason`, `faults`, `attempts`, `value`."""
        with self.reading("answers") as tx:
            return tx.frame("answers", frames={"k": pl.DataFrame({"key": keys})}, validator=validator)

    def counts(self, run: str, validator: str) -> dict[str, tuple[int, int]]:
        """Return a run's distinct requests and rows by state, through a validator."""
        with self.reading("counts") as tx:
            return {state: (int(n), int(rows)) for state, n, rows in tx.rows("counts", run=run, validator=validator)}

    def missing(self, run: str, validator: str) -> pl.DataFrame:
        """Return every request of a run without a valid answer, with its state and reason."""
        with self.reading("missing") as tx:
            return tx.frame("missing", run=run, validator=validator)

    def manifest(self, run: str) -> pl.Series:
        """Return the distinct keys that a run expects."""
        with self.reading("manifest") as tx:
            return tx.frame("manifest_keys", run=run)["key"]

    def run(self, run: str) -> dict[str, Any] | None:
        """Return a run's row, with its spec and validator as stored, or None."""
        with self.reading("run") as tx:
            found = tx.records("run", run=run)
        return found[0] if found else None

    def runs(self) -> pl.DataFrame:
        """Return all runs, oldest first."""
        with self.reading("runs") as tx:
            return tx.frame("runs")

    def shards(self, job: str) -> list[ShardRow]:
        """Return all shards that were made for a job, oldest first."""
        with self.reading("shards") as tx:
            return cast(list[ShardRow], tx.records("shards_of_job", job=job))

    def end_run(self, run: str, state: str, reason: str | None, now: datetime) -> None:
        """End a run as done, stopped or canceled."""
        with self.transaction("end run") as tx:
            tx.run("end_run", run=run, state=state, reason=reason, now=now)

    def end_job(self, job: str, now: datetime) -> None:
        """End every open run of a job as done: each of its requests is final, whichever call saw to it."""
        with self.transaction("end job") as tx:
            tx.run("end_job", job=job, now=now)

    def stop(self, now: datetime) -> list[str]:
        """Stop every open run, whoever works on it, and return their ids."""
        with self.transaction("stop") as tx:
            stopped = [str(row[0]) for row in tx.rows("open_runs")]
            tx.run("stop_runs", now=now)
        return stopped

    def unfinished(self) -> pl.DataFrame:
        """Return the runs that are open, or ended with a shard in flight: `id`, `collect_only`, oldest first."""
        with self.reading("unfinished") as tx:
            return tx.frame("unfinished_runs")

    def reopen_run(self, run: str) -> None:
        """Open an ended run again, to go on with it."""
        with self.transaction("reopen run") as tx:
            tx.run("reopen_run", run=run)

    def stop_reason(self, job: str) -> tuple[str, str] | None:
        """Return the newest run that was stopped for this job, and why; None when none was."""
        with self.reading("stop reason") as tx:
            rows = tx.rows("stop_reason_of_job", job=job)
        return (str(rows[0][0]), str(rows[0][1])) if rows else None

    def specs_of(self, model: str) -> pl.DataFrame:
        """Return `digest` and `body` of the stored specs of a model."""
        with self.reading("specs") as tx:
            return tx.frame("similar_specs", model=model)


def move(
    tx: Transaction,
    shard: str,
    origin: ShardState,
    target: ShardState,
    *,
    owner: str,
    now: datetime,
    lease_until: datetime | None = None,
    batch_id: str | None = None,
    reason: str | None = None,
    provider_state: str | None = None,
) -> None:
    """Make one legal move of a shard inside a transaction, and leave its event."""
    if target not in SHARD_MOVES[origin]:
        raise ValueError(f"a shard does not move from {origin} to {target}")
    moved = tx.run(
        "move_shard",
        shard=shard,
        owner=owner,
        now=now,
        lease_until=lease_until,
        batch_id=batch_id,
        reason=reason,
        provider_state=provider_state,
        origin=origin.value,
        target=target.value,
    )
    if moved != 1:
        raise ClaimLost(f"a shard in {origin}", 1, moved)
    tx.run("event", shard=shard, now=now, note=reason, origin=origin.value, target=target.value)


def lease(now: datetime, seconds: float) -> datetime:
    """Return when a lease taken now runs out."""
    return now + timedelta(seconds=seconds)
