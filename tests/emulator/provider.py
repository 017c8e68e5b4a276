"""What both emulated APIs share: clock, faults, accounts, limits, batches and the bill.

Rows of a batch are processed when somebody looks, exactly as many as the clock says, in slices of one transaction
each: outcome, line, charge and counts of a row become true together.  Before the faults change, everything that is
due is processed under the old ones.
"""

from __future__ import annotations

import json
import mmap
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from sqlite3 import Row
from typing import Any, Literal

from emulator import anthropic_wire, model, openai_wire
from emulator.answers import Dialect, Json, Tokens, body_digest, user_text
from emulator.clock import Clock
from emulator.faults import Faults, RowFate, RowFates
from emulator.model import Result
from emulator.state import State
from emulator.timeline import Plan, Standing, row_time, standing

ProviderName = Literal["openai", "anthropic"]
SLICE = 4000  # rows of one transaction: long enough to be cheap, short enough to let other calls in
SHARD_PREFIX = re.compile(r"^[0-9a-f]{16}-(.+)$", re.DOTALL)


def key_part(custom_id: str) -> str:
    """Return a custom id without the client's shard prefix (16 hex digits and a dash)."""
    found = SHARD_PREFIX.match(custom_id)
    return found.group(1) if found else custom_id


@dataclass(frozen=True, kw_only=True)
class Caller:
    """Who calls: the digest of the API key, and the project whose things the key sees."""

    account: str
    project: str


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """A batch as its create call gave it; `rows` are (custom id, position, length) of lines in the input file."""

    provider: ProviderName
    caller: Caller
    endpoint: str
    input_path: Path
    rows: list[tuple[str, int, int]]
    model: str | None
    enqueued_tokens: int
    input_file_id: str | None = None
    metadata: Json | None = None
    output_expires_s: float | None = None
    errors: list[Json] | None = None


@dataclass(frozen=True, kw_only=True)
class Batch:
    """A batch at a moment: its record, its own faults and where it stands."""

    record: Row
    faults: dict[str, Any]
    standing: Standing

    def __getitem__(self, column: str) -> Any:
        return self.record[column]


class Provider:
    """The emulated provider on one state folder."""

    def __init__(self, state: State, *, speed: float | None = None, faults: Json | None = None) -> None:
        self.state = state
        self._settling = threading.RLock()
        stored = state.setting("clock")
        clock = Clock(**stored) if stored else Clock.started(1.0 if speed is None else speed)
        if stored and speed is not None and speed != clock.speed:
            clock = clock.at_speed(speed)
        self._set_clock(clock)
        if state.setting("started_at") is None:
            state.set("started_at", clock.now())
        self.started_at: float = state.setting("started_at")
        self._use_faults(Faults.from_json(state.setting("faults") or {}).changed(faults or {}))

    # Clock and faults

    def now(self) -> float:
        """Return the provider time, without its skew."""
        return self._clock.now()

    def shown(self, moment: float) -> float:
        """Return a moment as the provider's skewed clock shows it."""
        return moment + self.faults.clock_skew_s

    def move_clock(self, *, advance_s: float = 0.0, speed: float | None = None) -> float:
        """Move the clock forward, set its speed, and return the provider time."""
        with self._settling:
            clock = self._clock.advanced(advance_s)
            self._set_clock(clock if speed is None else clock.at_speed(speed))
        return self.now()

    def _set_clock(self, clock: Clock) -> None:
        self._clock = clock
        self.state.set("clock", asdict(clock))

    def change_faults(self, value: Json) -> Faults:
        """Replace the named settings from now on; calls of new HTTP faults are counted from 0."""
        changed = self.faults.changed(value)
        with self._settling:
            self.settle_all()
            with self.state.transaction():
                if "http" in value:
                    self.state.execute("DELETE FROM counter WHERE name LIKE 'http:%'")
                self._use_faults(changed)
        return changed

    def _use_faults(self, faults: Faults) -> None:
        self.faults = faults
        self._fates = RowFates(faults)
        self.state.set("faults", faults.to_json())

    # Accounts and limits

    def caller(self, api_key: str) -> Caller:
        """Return who an API key is; the key itself is kept nowhere."""
        account = sha256(api_key.encode()).hexdigest()[:16]
        return Caller(account=account, project=self.faults.projects.get(api_key, "proj_" + account))

    def out_of_credit(self, project: str, moment: float, charges: int | None = None) -> bool:
        """Say whether a project has no credit left at a moment, after so many charges (None: count them)."""
        faults = self.faults
        if faults.credit_until is not None and moment - self.started_at >= faults.credit_until:
            return True
        if faults.credit_rows is None:
            return False
        if charges is None:
            charges = self._charges(project)
        return charges >= faults.credit_rows

    def _charges(self, project: str) -> int:
        return self.state.number("SELECT count(*) FROM charge WHERE project = ?", (project,))

    def over_queue(self, new: NewBatch) -> tuple[Literal["batches", "requests", "tokens"], int] | None:
        """Return which queue limit a new batch would pass, and the limit."""
        faults = self.faults
        if faults.max_open_batches is faults.max_queued_requests is faults.max_enqueued_tokens is None:
            return None
        records = self.state.rows(
            "SELECT * FROM batch WHERE provider = ? AND project = ? AND settled = 0 AND failure IS NULL",
            (new.provider, new.caller.project),
        )
        waiting = [record for record in records if not self._standing(record).final]
        if faults.max_open_batches is not None and len(waiting) >= faults.max_open_batches:
            return "batches", faults.max_open_batches
        queued = sum(record["rows"] for record in waiting) + len(new.rows)
        if faults.max_queued_requests is not None and queued > faults.max_queued_requests:
            return "requests", faults.max_queued_requests
        tokens = new.enqueued_tokens + sum(r["enqueued_tokens"] for r in waiting if r["model"] == new.model)
        if faults.max_enqueued_tokens is not None and tokens > faults.max_enqueued_tokens:
            return "tokens", faults.max_enqueued_tokens
        return None

    # Batches

    def create_batch(self, new: NewBatch) -> Batch:
        """Accept a batch; its rows get the order in which they will be processed."""
        faults = self.faults
        with self.state.transaction():
            ordinal = self.state.next("batch")
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
            self.state.insert(
                "batch",
                {
                    "ordinal": ordinal,
                    "id": openai_wire.ident(prefix, faults.seed, "batch", ordinal),
                    "provider": new.provider,
                    "project": new.caller.project,
                    "account": new.caller.account,
                    "endpoint": new.endpoint,
                    "input_file_id": new.input_file_id,
                    "input_path": str(new.input_path.relative_to(self.state.folder)),
                    "metadata": None if new.metadata is None else json.dumps(new.metadata),
                    "output_expires_s": new.output_expires_s,
                    "model": new.model,
                    "rows": len(new.rows),
                    "enqueued_tokens": new.enqueued_tokens,
                    "failure": None if not errors else json.dumps(errors),
                    "created_at": self.now(),
                    "timing": json.dumps(timing),
                    "faults": json.dumps(own),
                },
            )
            order = list(range(len(new.rows)))
            if faults.shuffle:
                Random(f"{faults.seed}/{ordinal}").shuffle(order)
            if not errors:
                self.state.execute_many(
                    "INSERT INTO row (batch, rank, custom_id, key, position, length) VALUES (?, ?, ?, ?, ?, ?)",
                    (
                        (ordinal, rank, new.rows[n][0], key_part(new.rows[n][0]), new.rows[n][1], new.rows[n][2])
                        for rank, n in enumerate(order)
                    ),
                )
        return self.settle(ordinal)

    def find_batch(self, provider: ProviderName, caller: Caller, batch_id: str) -> Batch | None:
        """Return a settled batch of the caller's project, or None where its retrieve is 404."""
        record = self.state.row(
            "SELECT * FROM batch WHERE id = ? AND provider = ? AND project = ? AND deleted = 0",
            (batch_id, provider, caller.project),
        )
        if record is None or self.now() < record["created_at"] + json.loads(record["faults"]).get("hidden", 0.0):
            return None
        return self.settle(record["ordinal"])

    def list_batches(
        self, provider: ProviderName, caller: Caller, *, limit: int, after: str | None, before: str | None = None
    ) -> tuple[list[Batch], bool]:
        """Return one page of the caller's settled batches, newest first, and whether there are more."""
        now = self.now()
        records = self.state.rows(
            "SELECT ordinal, id, created_at, faults FROM batch WHERE provider = ? AND project = ? AND deleted = 0"
            " ORDER BY ordinal DESC",
            (provider, caller.project),
        )
        ids = {record["id"]: record["ordinal"] for record in records}
        listed = [
            record["ordinal"]
            for record in records
            if now
            >= record["created_at"] + max(self.faults.list_lag_s, json.loads(record["faults"]).get("list_lag", 0.0))
        ]
        if after is not None:
            listed = [ordinal for ordinal in listed if ordinal < ids.get(after, -1)]
        if before is not None:
            listed = [ordinal for ordinal in listed if ordinal > ids.get(before, len(listed) + 10**9)][-limit:]
        return [self.settle(ordinal) for ordinal in listed[:limit]], len(listed) > limit

    def cancel(self, batch: Batch) -> Batch:
        """Begin to cancel a batch that is still open."""
        with self._settling:
            self.settle(batch["ordinal"])
            self.state.execute(
                "UPDATE batch SET cancel_at = ? WHERE ordinal = ? AND cancel_at IS NULL AND settled = 0",
                (self.now(), batch["ordinal"]),
            )
        return self.settle(batch["ordinal"])

    def _record(self, ordinal: int) -> Row:
        record = self.state.row("SELECT * FROM batch WHERE ordinal = ?", (ordinal,))
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

    def _standing(self, record: Row) -> Standing:
        return standing(self._plan(record), self.now())

    def settle_all(self) -> None:
        """Process everything that is due in any batch, oldest first."""
        for record in self.state.rows("SELECT ordinal FROM batch WHERE settled = 0 ORDER BY ordinal"):
            self.settle(record["ordinal"])

    def settle(self, ordinal: int) -> Batch:
        """Process the rows of a batch that are due, finish it when its time has come, and return it."""
        now = self.now()  # once: rows that fall due meanwhile are left to the next look
        while True:
            with self._settling, self.state.transaction():
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
        rows = self.state.rows(
            "SELECT rank, custom_id, key, position, length FROM row WHERE batch = ? AND rank >= ? ORDER BY rank LIMIT ?",
            (record["ordinal"], record["done"], count),
        )
        charges = self._charges(record["project"]) if self.faults.credit_rows is not None else 0
        lines = _Lines(record)
        decided: list[tuple[Any, ...]] = []
        charged: list[tuple[Any, ...]] = []
        total = [0, 0, 0]
        with _mapped(self.state.folder / record["input_path"]) as read:
            for rank, custom_id, key, position, length in rows:
                body = json.loads(read(position, length))["body" if dialect != "messages" else "params"]
                moment = row_time(plan, rank)
                fate = self._fate(custom_id, key, body, dialect, record["project"], "batch")
                if self.out_of_credit(record["project"], moment, charges):
                    result = Result(outcome="insufficient_quota", message="You exceeded your current quota.")
                else:
                    result = model.run(body, dialect, fate, self.faults)
                stream = lines.add(custom_id, body, dialect, result, fate, created=int(self.shown(moment)))
                decided.append((result.outcome, fate.delivery, result.billed, stream, record["ordinal"], rank))
                if result.billed:
                    charges += 1
                    tokens = result.tokens
                    total = [total[0] + tokens.input, total[1] + tokens.cached, total[2] + tokens.output]
                    charged.append(_charge(record, custom_id, key, body, tokens, moment))
        lines.write(self.state.folder)
        self.state.execute_many(DECIDE_ROW, decided)
        self.state.execute_many(INSERT_CHARGE, charged)
        self.state.execute(
            "UPDATE batch SET done = done + ?, succeeded = succeeded + ?, errored = errored + ?, out_bytes = ?, err_bytes = ?,"
            " input_tokens = input_tokens + ?, cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?"
            " WHERE ordinal = ?",
            (len(rows), len(rows) - lines.failed, lines.failed, lines.out_bytes, lines.err_bytes, *total, record["ordinal"]),
        )

    def _fate(self, custom_id: str, key: str, body: Json, dialect: Dialect, project: str, tier: str) -> RowFate:
        fates = self._fates
        occurrence = 0
        if fates.counts_occurrences and tier == "batch":
            occurrence = self.state.number(
                "SELECT count(*) FROM row JOIN batch ON row.batch = batch.ordinal"
                " WHERE row.key = ? AND row.outcome IS NOT NULL AND batch.project = ?",
                (key, project),
            )
        elif fates.counts_occurrences:
            occurrence = self.state.number(
                "SELECT count(*) FROM sync_call WHERE digest = ? AND project = ?", (key, project)
            )
        text = user_text(body, dialect) if fates.reads_text else ""
        return fates.fate(custom_id=custom_id, key=key, text=text, tier=tier, occurrence=occurrence)

    def _finish(self, record: Row, seen: Standing) -> None:
        """Write the rows that were never run, and make the result files."""
        own = json.loads(record["faults"])
        lines = _Lines(record)
        if seen.stage in ("expired", "cancelled"):
            outcome = "expired" if seen.stage == "expired" else "canceled"
            rest = self.state.rows(
                "SELECT rank, custom_id, key FROM row WHERE batch = ? AND rank >= ? ORDER BY rank",
                (record["ordinal"], record["done"]),
            )
            decided = []
            for rank, custom_id, key in rest:
                fate = self._fates.fate(custom_id=custom_id, key=key, text="", tier="batch", occurrence=0)
                stream = lines.add(custom_id, {}, _dialect(record), Result(outcome=outcome), fate, created=0)
                decided.append((outcome, fate.delivery, False, stream, record["ordinal"], rank))
            lines.write(self.state.folder)
            self.state.execute_many(DECIDE_ROW, decided)
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
        self.state.execute(
            "UPDATE batch SET settled = 1, out_bytes = ?, err_bytes = ?, output_file_id = ?, error_file_id = ?"
            " WHERE ordinal = ?",
            (lines.out_bytes, lines.err_bytes, out_id, err_id, record["ordinal"]),
        )

    def _forget_lines(self, record: Row, stream: str) -> None:
        """Mark the rows whose file was lost as missing, in the truth as well."""
        self.state.execute(
            "UPDATE row SET delivery = 'missing' WHERE batch = ? AND stream = ?", (record["ordinal"], stream)
        )

    def _result_file(self, record: Row, own: Json, name: str, size: int, ended: float) -> str:
        path = Path("results") / f"{record['ordinal']}.{name}"
        if size == 0:
            (self.state.folder / path).write_bytes(b"")
        if record["provider"] == "anthropic":
            expires = record["created_at"] + self.faults.results_retention_s
        else:
            expires = ended + (record["output_expires_s"] or self.faults.file_retention_s)
        return self.add_file(
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

    # Files

    def add_file(
        self,
        *,
        project: str,
        filename: str,
        purpose: str,
        path: Path,
        size: int,
        created_at: float,
        expires_at: float,
        expiry_shown: bool,
        torn_downloads: int = 0,
    ) -> str:
        """Record a file whose bytes lie under the state folder, and return its id."""
        with self.state.transaction():
            ordinal = self.state.next("file")
            file_id = openai_wire.ident("file-", self.faults.seed, "file", ordinal)
            self.state.insert(
                "file",
                {
                    "ordinal": ordinal,
                    "id": file_id,
                    "project": project,
                    "filename": filename,
                    "purpose": purpose,
                    "bytes": size,
                    "created_at": created_at,
                    "expires_at": expires_at,
                    "expiry_shown": expiry_shown,
                    "path": str(path),
                    "torn_downloads": torn_downloads,
                },
            )
        return file_id

    def find_file(self, caller: Caller, file_id: str) -> Row | None:
        """Return a file of the caller's project that is neither deleted nor past its retention."""
        return self.state.row(
            "SELECT * FROM file WHERE id = ? AND project = ? AND deleted = 0 AND expires_at > ?",
            (file_id, caller.project, self.now()),
        )

    def spans_to_send(self, file: Row) -> list[tuple[int, int]]:
        """Return the byte spans of one download: the whole file, or without half a line where it is torn."""
        if not file["torn_downloads"] or not file["bytes"]:
            return [(0, file["bytes"])]
        self.state.execute("UPDATE file SET torn_downloads = torn_downloads - 1 WHERE id = ?", (file["id"],))
        with _mapped(self.state.folder / file["path"]) as read:
            content = read(0, file["bytes"])
        end = content.index(b"\n", file["bytes"] // 2)
        start = content.rfind(b"\n", 0, end) + 1
        return [(0, start + (end - start) // 2), (end, file["bytes"])]

    # Synchronous calls

    def call(self, provider: ProviderName, caller: Caller, body: Json, dialect: Dialect) -> tuple[Result, int]:
        """Run one synchronous request, charge it, and return its result and number."""
        digest = body_digest(body)
        with self.state.transaction():
            now = self.now()
            fate = self._fate("", digest, body, dialect, caller.project, "sync")
            if self.out_of_credit(caller.project, now):
                result = Result(outcome="insufficient_quota", message="You exceeded your current quota.")
            else:
                result = model.run(body, dialect, fate, self.faults)
            number = self.state.next("sync")
            self.state.execute(
                "INSERT INTO sync_call VALUES (?, ?, ?, ?, ?, ?)",
                (number, provider, caller.project, digest, result.outcome, now),
            )
            if result.billed:
                tokens = result.tokens
                values = (provider, caller.account, caller.project, "sync", None, None, digest, digest, body["model"])
                self.state.execute(INSERT_CHARGE, (*values, tokens.input, tokens.cached, tokens.output, now))
        return result, number

    # What tests read

    def bill(self) -> Iterator[Json]:
        """Yield every charge so far, in the order in which rows were processed."""
        self.settle_all()
        return (dict(row) for row in self.state.rows("SELECT * FROM charge ORDER BY n"))

    def bill_summary(self) -> Json:
        """Return the bill in numbers: charges, keys, most charges of one key, and tokens by kind."""
        self.settle_all()
        total = self.state.row(
            "SELECT count(*) AS charges, count(DISTINCT key) AS keys, coalesce(sum(input_tokens), 0) AS input_tokens,"
            " coalesce(sum(cached_tokens), 0) AS cached_tokens, coalesce(sum(output_tokens), 0) AS output_tokens FROM charge"
        )
        most = self.state.number("SELECT max(n) FROM (SELECT count(*) AS n FROM charge GROUP BY key)")
        return {**dict(total or {}), "most_of_one_key": most}

    def truth(self) -> Json:
        """Return what was decided for each row of each batch, and for each synchronous call."""
        self.settle_all()
        batches = []
        for record in self.state.rows("SELECT * FROM batch ORDER BY ordinal"):
            rows = self.state.rows(
                "SELECT custom_id, outcome, delivery, billed FROM row WHERE batch = ?", (record["ordinal"],)
            )
            batches.append({
                "id": record["id"],
                "provider": record["provider"],
                "project": record["project"],
                "stage": self._standing(record).stage,
                "metadata": json.loads(record["metadata"] or "null"),
                "created_at": record["created_at"],
                "output_file_id": record["output_file_id"],
                "error_file_id": record["error_file_id"],
                "rows": {
                    row["custom_id"]: {
                        "outcome": row["outcome"],
                        "delivery": row["delivery"],
                        "billed": bool(row["billed"]),
                    }
                    for row in rows
                },
            })
        sync = [dict(row) for row in self.state.rows("SELECT * FROM sync_call ORDER BY n")]
        return {"batches": batches, "sync": sync}


DECIDE_ROW = "UPDATE row SET outcome = ?, delivery = ?, billed = ?, stream = ? WHERE batch = ? AND rank = ?"
INSERT_CHARGE = (
    "INSERT INTO charge (provider, account, project, tier, batch, custom_id, key, digest, model,"
    " input_tokens, cached_tokens, output_tokens, at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


def _charge(record: Row, custom_id: str, key: str, body: Json, tokens: Tokens, moment: float) -> tuple[Any, ...]:
    who = (record["provider"], record["account"], record["project"], "batch", record["id"], custom_id, key)
    return (*who, body_digest(body), body["model"], tokens.input, tokens.cached, tokens.output, moment)


def _dialect(record: Row) -> Dialect:
    return "messages" if record["provider"] == "anthropic" else openai_wire.ENDPOINTS[record["endpoint"]]


class _Lines:
    """Lines to append to the result files of one batch, after the lengths that its record holds."""

    def __init__(self, record: Row) -> None:
        self._record = record
        self._new: dict[str, list[bytes]] = {"out": [], "err": []}
        self.out_bytes: int = record["out_bytes"]
        self.err_bytes: int = record["err_bytes"]
        self.failed = 0

    def add(self, custom_id: str, body: Json, dialect: Dialect, result: Result, fate: RowFate, *, created: int) -> str:
        """Add a row's line as often and as whole as its delivery says; return the stream it went to."""
        line, failed = self._line(custom_id, body, dialect, result, fate, created)
        self.failed += failed
        name = "err" if failed and dialect != "messages" else "out"
        sent = {"missing": [], "duplicate": [line, line], "torn": [line[: len(line) // 2]]}.get(fate.delivery, [line])
        if fate.delivery == "unknown_id":
            prefix = custom_id[: -len(key_part(custom_id))]
            stray = prefix + sha256(custom_id.encode()).hexdigest()[:40]
            sent = [line, self._line(stray, body, dialect, result, fate, created)[0]]
        self._new[name].extend(sent)
        return name

    def _line(
        self, custom_id: str, body: Json, dialect: Dialect, result: Result, fate: RowFate, created: int
    ) -> tuple[bytes, bool]:
        name = openai_wire.ident("", self._record["id"], custom_id)
        if dialect == "messages":
            line = anthropic_wire.row_line(custom_id, body, result, name=name, dress=fate.dress)
            return line, not result.billed
        return openai_wire.row_line(custom_id, body, dialect, result, name=name, created=created, dress=fate.dress)

    def write(self, folder: Path) -> None:
        """Append the new lines, over whatever a killed process left beyond the recorded lengths."""
        self.out_bytes = self._append(folder, "out", self.out_bytes)
        self.err_bytes = self._append(folder, "err", self.err_bytes)

    def _append(self, folder: Path, name: str, length: int) -> int:
        if not self._new[name]:
            return length
        path = folder / "results" / f"{self._record['ordinal']}.{name}"
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(length)
            file.seek(length)
            file.write(b"\n".join(self._new[name]) + b"\n")
            return file.tell()


@contextmanager
def _mapped(path: Path) -> Iterator[Callable[[int, int], bytes]]:
    """Give a reader of (position, length) over a file that need not fit in memory."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        yield lambda position, length: content[position : position + length]
