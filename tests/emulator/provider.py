"""The emulated provider as both APIs see it: batches, files, synchronous calls, and the bill.

Before the faults change, everything that is due is processed under the old ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from emulator import model
from emulator.answers import Dialect, Json, body_digest
from emulator.batches import Batches
from emulator.conditions import Conditions
from emulator.faults import Faults
from emulator.files import Files
from emulator.model import Result
from emulator.records import Caller, ProviderName
from emulator.state import INSERT_CHARGE, State


class Provider:
    """The emulated provider on one state folder."""

    def __init__(self, state: State, *, speed: float | None = None, faults: Json | None = None) -> None:
        self.state = state
        self.conditions = Conditions(state, speed=speed, faults=faults)
        self.files = Files(state)
        self.batches = Batches(state, self.conditions, self.files)

    @property
    def faults(self) -> Faults:
        """The faults of now."""
        return self.conditions.faults

    def move_clock(self, *, advance_s: float = 0.0, speed: float | None = None) -> float:
        """Move the clock forward, set its speed, and return the provider time."""
        with self.batches.settling:
            clock = self.conditions.clock.advanced(advance_s)
            self.conditions.use_clock(clock if speed is None else clock.at_speed(speed))
        return self.conditions.now()

    def change_faults(self, value: Json) -> Faults:
        """Replace the named settings from now on; calls of new HTTP faults are counted from 0."""
        changed = self.faults.changed(value)
        with self.batches.settling:
            self.batches.settle_all()
            with self.state.transaction():
                if "http" in value:
                    self.state.execute("DELETE FROM counter WHERE name LIKE 'http:%'")
                self.conditions.use_faults(changed)
        return changed

    def call(self, provider: ProviderName, caller: Caller, body: Json, dialect: Dialect) -> tuple[Result, int]:
        """Run one synchronous request, charge it, and return its result and number."""
        digest = body_digest(body)
        with self.state.transaction():
            now = self.conditions.now()
            fate = self.conditions.fate("", digest, body, dialect, caller.project, "sync")
            if self.conditions.out_of_credit(caller.project, now):
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
                values = (
                    provider,
                    caller.account,
                    caller.project,
                    "sync",
                    None,
                    None,
                    digest,
                    digest,
                    body["model"],
                )
                self.state.execute(INSERT_CHARGE, (*values, tokens.input, tokens.cached, tokens.output, now))
        return result, number

    def bill(self) -> Iterator[Json]:
        """Yield every charge so far, in the order in which rows were processed."""
        self.batches.settle_all()
        return (dict(row) for row in self.state.rows("SELECT * FROM charge ORDER BY n"))

    def bill_summary(self) -> Json:
        """Return the bill in numbers: charges, keys, most charges of one key, and tokens by kind."""
        self.batches.settle_all()
        total = self.state.row(
            "SELECT count(*) AS charges, count(DISTINCT key) AS keys,"
            " coalesce(sum(input_tokens), 0) AS input_tokens,"
            " coalesce(sum(cached_tokens), 0) AS cached_tokens,"
            " coalesce(sum(output_tokens), 0) AS output_tokens FROM charge"
        )
        most = self.state.number("SELECT max(n) FROM (SELECT count(*) AS n FROM charge GROUP BY key)")
        return {**dict(total or {}), "most_of_one_key": most}

    def truth(self) -> Json:
        """Return what was decided for each row of each batch, and for each synchronous call."""
        self.batches.settle_all()
        batches = []
        for record in self.state.rows("SELECT * FROM batch ORDER BY ordinal"):
            rows = self.state.rows(
                "SELECT custom_id, outcome, delivery, billed FROM row WHERE batch = ?", (record["ordinal"],)
            )
            batches.append(
                {
                    "id": record["id"],
                    "provider": record["provider"],
                    "project": record["project"],
                    "stage": self.batches.standing(record).stage,
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
                }
            )
        sync = [dict(row) for row in self.state.rows("SELECT * FROM sync_call ORDER BY n")]
        return {"batches": batches, "sync": sync}
