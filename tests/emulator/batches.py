"""The life of a batch: accepted, run row by row as its time comes, finished into result files.

Rows are processed when somebody looks, exactly as many as the clock says, in slices of one transaction each:
outcome, line, charge and counts of a row become true together.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from random import Random
from sqlite3 import Row
from typing import Any, Literal

from emulator import model
from emulator.answers import Dialect, Json, Tokens, body_digest
from emulator.conditions import Conditions
from emulator.files import Files, mapped
from emulator.lines import Lines
from emulator.model import Result
from emulator.openai_wire import ENDPOINTS, ident
from emulator.records import Batch, Caller, NewBatch, ProviderName, key_part
from emulator.state import INSERT_CHARGE, State
from emulator.timeline import Plan, Standing, row_time, standing

SLICE = 4000  # rows of one transaction: long enough to be cheap, short enough to let other calls in
DECIDE_ROW = "UPDATE row SET outcome = ?, delivery = ?, billed = ?, stream = ? WHERE batch = ? AND rank = ?"


class Batches:
    """The batches of one provider."""

    def __init__(self, state: State, conditions: Conditions, files: Files) -> None:
        self._state = state
        self._conditions = conditions
        self._files = files
        self.settling = threading.RLock()

    def over_queue(self, new: NewBatch) -> tuple[Literal["batches", "requests", "tokens"], int] | None:
        """Return which queue limit a new batch would pass, and the limit."""
        faults = self._conditions.faults
        if faults.max_open_batches is faults.max_queued_requests is faults.max_enqueued_tokens is None:
            return None
        records = self._state.rows(
            "SELECT * FROM batch WHERE provider = ? AND project = ? AND settled = 0 AND failure IS NULL",
            (new.provider, new.caller.project),
        )
        waiting = [record for record in records if not self.standing(record).final]
        if faults.max_open_batches is not None and len(waiting) >= faults.max_open_batches:
            return "batches", faults.max_open_batches
        queued = sum(record["rows"] for record in waiting) + len(new.rows)
        if faults.max_queued_requests is not None and queued > faults.max_queued_requests:
            return "requests", faults.max_queued_requests
        tokens = new.enqueued_tokens + sum(r["enqueued_tokens"] for r in waiting if r["model"] == new.model)
        if faults.max_enqueued_tokens is not None and tokens > faults.max_enqueued_tokens:
            return "tokens", faults.max_enqueued_tokens
        return None

    def create(self, new: NewBatch) -> Batch:
        """Accept a batch; its rows get the order in which they will be processed."""
        faults = self._conditions.faults
        with self._state.transaction():
            ordinal = self._state.next("batch")
            own = faults.of_batch(ordinal)
            errors = new.errors
            if "fail" in own and new.provider == "openai":
                code = own["fail"] or "token_limit_exceeded"
                errors = [{"code": code, "message": f"emulated {code}", "param": None, "line": None}]
            prefix = "batch_" if new.provider == "openai" else "msgbatch_"
            timing = {
                "validate_s": faults.validate_s if new.provider == "openai" else 0.0,
                "batch_s": own.get("duration", faults.batch_s),
                "finalize_s": own.get("slow_finalize", faults.finalize_s),
                "cancel_s": own.get("slow_cancel", faults.cancel_s),
                "window_s": faults.window_s,
                "stall": own.get("stall"),
            }
            self._state.insert(
                "batch",
                {
                    "ordinal": ordinal,
                    "id": ident(prefix, faults.seed, "batch", ordinal),
                    "provider": new.provider,
                    "project": new.caller.project,
                    "account": new.caller.account,
                    "endpoint": new.endpoint,
                    "input_file_id": new.input_file_id,
                    "input_path": str(new.input_path.relative_to(self._state.folder)),
                    "metadata": None if new.metadata is None else json.dumps(new.metadata),
                    "output_expires_s": new.output_expires_s,
                    "model": new.model,
                    "rows": len(new.rows),
                    "enqueued_tokens": new.enqueued_tokens,
                    "failure": None if not errors else json.dumps(errors),
                    "created_at": self._conditions.now(),
                    "timing": json.dumps(timing),
                    "faults": json.dumps(own),
                },
            )
            order = list(range(len(new.rows)))
            if faults.shuffle:
                Random(f"{faults.seed}/{ordinal}").shuffle(order)
            if not errors:
                self._state.execute_many(
                    "INSERT INTO row (batch, rank, custom_id, key, position, length) VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        (
                            ordinal,
                            rank,
                            new.rows[n][0],
                            key_part(new.rows[n][0]),
                            new.rows[n][1],
                            new.rows[n][2],
                        )
                        for rank, n in enumerate(order)
                    ),
                )
        record = self._record(ordinal)
        # What may already be due is left to the next look: create answers at once, whatever the pace.
        return Batch(record=record, faults=own, standing=standing(self._plan(record), record["created_at"]))

    def find(self, provider: ProviderName, caller: Caller, batch_id: str) -> Batch | None:
        """Return a settled batch of the caller's project, or None where its retrieve is 404."""
        record = self._state.row(
            "SELECT * FROM batch WHERE id = ? AND provider = ? AND project = ? AND deleted = 0",
            (batch_id, provider, caller.project),
        )
        if record is None or self._conditions.now() < record["created_at"] + json.loads(record["faults"]).get(
            "hidden", 0.0
        ):
            return None
        return self.settle(record["ordinal"])

    def list(
        self,
        provider: ProviderName,
        caller: Caller,
        *,
        limit: int,
        after: str | None,
        before: str | None = None,
    ) -> tuple[list[Batch], bool]:
        """Return one page of the caller's settled batches, newest first, and whether there are more."""
        now = self._conditions.now()
        records = self._state.rows(
            "SELECT ordinal, id, created_at, faults FROM batch"
            " WHERE provider = ? AND project = ? AND deleted = 0 ORDER BY ordinal DESC",
            (provider, caller.project),
        )
        ids = {record["id"]: record["ordinal"] for record in records}
        listed = [
            record["ordinal"]
            for record in records
            if now
            >= record["created_at"]
            + max(self._conditions.faults.list_lag_s, json.loads(record["faults"]).get("list_lag", 0.0))
        ]
        if after is not None:
            listed = [ordinal for ordinal in listed if ordinal < ids.get(after, -1)]
        page = listed[:limit]
        if before is not None:
            listed = [ordinal for ordinal in listed if before in ids and ordinal > ids[before]]
            page = listed[-limit:]
        return [self.settle(ordinal) for ordinal in page], len(listed) > limit

    def cancel(self, batch: Batch) -> Batch:
        """Begin to cancel a batch that is still open."""
        with self.settling:
            self.settle(batch["ordinal"])
            self._state.execute(
                "UPDATE batch SET cancel_at = ? WHERE ordinal = ? AND cancel_at IS NULL AND settled = 0",
                (self._conditions.now(), batch["ordinal"]),
            )
        return self.settle(batch["ordinal"])

    def _record(self, ordinal: int) -> Row:
        record = self._state.row("SELECT * FROM batch WHERE ordinal = ?", (ordinal,))
        assert record is not None
        return record

    @staticmethod
    def _plan(record: Row) -> Plan:
        return Plan(
            created_at=record["created_at"],
            rows=record["rows"],
            fails=record["failure"] is not None,
            cancel_at=record["cancel_at"],
            **json.loads(record["timing"]),
        )

    def standing(self, record: Row) -> Standing:
        """Return where a batch stands now."""
        return standing(self._plan(record), self._conditions.now())

    def settle_all(self) -> None:
        """Process everything that is due in any batch, oldest first."""
        for record in self._state.rows("SELECT ordinal FROM batch WHERE settled = 0 ORDER BY ordinal"):
            self.settle(record["ordinal"])

    def settle(self, ordinal: int) -> Batch:
        """Process the rows of a batch that are due, finish it when its time has come, and return it."""
        now = self._conditions.now()  # once: rows that fall due meanwhile are left to the next look
        while True:
            with self.settling, self._state.transaction():
                record = self._record(ordinal)
                seen = standing(self._plan(record), now)
                if not record["settled"] and record["done"] < seen.due:
                    self._process(record, min(seen.due - record["done"], SLICE))
                    continue
                if not record["settled"] and seen.final:
                    self._finish(record, seen)
                    record = self._record(ordinal)
                return Batch(record=record, faults=json.loads(record["faults"]), standing=seen)

    def _process(self, record: Row, count: int) -> None:
        """Run the next rows of a batch in the order of their ranks."""
        plan, dialect = self._plan(record), _dialect(record)
        rows = self._state.rows(
            "SELECT rank, custom_id, key, position, length FROM row"
            " WHERE batch = ? AND rank >= ? ORDER BY rank LIMIT ?",
            (record["ordinal"], record["done"], count),
        )
        charges = self._conditions.charges(record["project"]) if self._conditions.faults.credit_rows is not None else 0
        lines = Lines(record)
        decided: list[tuple[Any, ...]] = []
        charged: list[tuple[Any, ...]] = []
        total = [0, 0, 0]
        with mapped(self._state.folder / record["input_path"]) as read:
            for rank, custom_id, key, position, length in rows:
                body = json.loads(read(position, length))["body" if dialect != "messages" else "params"]
                moment = row_time(plan, rank)
                fate = self._conditions.fate(custom_id, key, body, dialect, record["project"], "batch")
                if self._conditions.out_of_credit(record["project"], moment, charges):
                    result = Result(outcome="insufficient_quota", message="You exceeded your current quota.")
                else:
                    result = model.run(body, dialect, fate, self._conditions.faults)
                stream = lines.add(custom_id, body, dialect, result, fate, created=int(self._conditions.shown(moment)))
                decided.append((result.outcome, fate.delivery, result.billed, stream, record["ordinal"], rank))
                if result.billed:
                    charges += 1
                    tokens = result.tokens
                    total = [total[0] + tokens.input, total[1] + tokens.cached, total[2] + tokens.output]
                    charged.append(_charge(record, custom_id, key, body, tokens, moment))
        lines.write(self._state.folder)
        self._state.execute_many(DECIDE_ROW, decided)
        self._state.execute_many(INSERT_CHARGE, charged)
        self._state.execute(
            "UPDATE batch SET done = done + ?, succeeded = succeeded + ?, errored = errored + ?,"
            " out_bytes = ?, err_bytes = ?, input_tokens = input_tokens + ?,"
            " cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?"
            " WHERE ordinal = ?",
            (
                len(rows),
                len(rows) - lines.failed,
                lines.failed,
                lines.out_bytes,
                lines.err_bytes,
                *total,
                record["ordinal"],
            ),
        )

    def _finish(self, record: Row, seen: Standing) -> None:
        """Write the rows that were never run, and make the result files."""
        own = json.loads(record["faults"])
        lines = Lines(record)
        if seen.stage in ("expired", "cancelled"):
            outcome = "expired" if seen.stage == "expired" else "canceled"
            rest = self._state.rows(
                "SELECT rank, custom_id, key FROM row WHERE batch = ? AND rank >= ? ORDER BY rank",
                (record["ordinal"], record["done"]),
            )
            decided = []
            for rank, custom_id, key in rest:
                fate = self._conditions.fate(custom_id, key, {}, _dialect(record), record["project"], "batch")
                stream = lines.add(custom_id, {}, _dialect(record), Result(outcome=outcome), fate, created=0)
                decided.append((outcome, fate.delivery, False, stream, record["ordinal"], rank))
            lines.write(self._state.folder)
            self._state.execute_many(DECIDE_ROW, decided)
        out_id = err_id = None
        if seen.stage != "failed":
            ended = seen.since[seen.stage]
            if record["provider"] == "anthropic" or lines.out_bytes:
                out_id = self._result_file(record, own, "out", lines.out_bytes, ended)
            if "no_output_file" in own and record["provider"] == "openai":
                out_id = None
                self._forget_lines(record, "out")
            if lines.err_bytes or "error_file_zero_bytes" in own:
                err_id = self._result_file(record, own, "err", lines.err_bytes, ended)
            if "error_file_empty_id" in own and not lines.err_bytes:
                err_id = ""
            if "error_file_null" in own:
                err_id = None
                self._forget_lines(record, "err")
        self._state.execute(
            "UPDATE batch SET settled = 1, out_bytes = ?, err_bytes = ?,"
            " output_file_id = ?, error_file_id = ? WHERE ordinal = ?",
            (lines.out_bytes, lines.err_bytes, out_id, err_id, record["ordinal"]),
        )

    def _forget_lines(self, record: Row, stream: str) -> None:
        """Mark the rows whose file was lost as missing, in the truth as well."""
        self._state.execute(
            "UPDATE row SET delivery = 'missing' WHERE batch = ? AND stream = ?", (record["ordinal"], stream)
        )

    def _result_file(self, record: Row, own: Json, name: str, size: int, ended: float) -> str:
        path = Path("results") / f"{record['ordinal']}.{name}"
        if size == 0:
            (self._state.folder / path).write_bytes(b"")
        if record["provider"] == "anthropic":
            expires = record["created_at"] + self._conditions.faults.results_retention_s
        else:
            expires = ended + (record["output_expires_s"] or self._conditions.faults.file_retention_s)
        return self._files.add(
            project=record["project"],
            filename=f"{record['id']}_{'output' if name == 'out' else 'error'}.jsonl",
            purpose="batch_output" if record["provider"] == "openai" else "results",
            path=path,
            size=size,
            created_at=ended,
            expires_at=ended + own["retention"] if "retention" in own else expires,
            expiry_shown=record["output_expires_s"] is not None,
            torn_downloads=int(own.get("torn_downloads", 0)) if name == "out" else 0,
        )


def _charge(record: Row, custom_id: str, key: str, body: Json, tokens: Tokens, moment: float) -> tuple[Any, ...]:
    who = (record["provider"], record["account"], record["project"], "batch", record["id"], custom_id, key)
    return (*who, body_digest(body), body["model"], tokens.input, tokens.cached, tokens.output, moment)


def _dialect(record: Row) -> Dialect:
    return "messages" if record["provider"] == "anthropic" else ENDPOINTS[record["endpoint"]]
