"""The conditions under which the emulated provider works at a moment: its clock, its faults, its accounts.

All of them are kept in the state, so a restarted emulator works under the same ones.
"""

from __future__ import annotations

from dataclasses import asdict

from emulator.answers import Dialect, Json, user_text
from emulator.clock import Clock
from emulator.faults import Faults, RowFate, RowFates
from emulator.records import Caller, account_of
from emulator.state import State


class Conditions:
    """Clock, faults and accounts of one state folder.

    `speed` and `faults` change what the state holds; None leaves it.
    """

    def __init__(self, state: State, *, speed: float | None = None, faults: Json | None = None) -> None:
        self._state = state
        stored = state.setting("clock")
        clock = Clock(**stored) if stored else Clock.started(1.0 if speed is None else speed)
        if stored and speed is not None and speed != clock.speed:
            clock = clock.at_speed(speed)
        self.use_clock(clock)
        if state.setting("started_at") is None:
            state.set("started_at", clock.now())
        self.started_at: float = state.setting("started_at")
        self.use_faults(Faults.from_json(state.setting("faults") or {}).changed(faults or {}))

    def now(self) -> float:
        """Return the provider time, without its skew."""
        return self.clock.now()

    def shown(self, moment: float) -> float:
        """Return a moment as the provider's skewed clock shows it."""
        return moment + self.faults.clock_skew_s

    def use_clock(self, clock: Clock) -> None:
        """Go on with another clock."""
        self.clock = clock
        self._state.set("clock", asdict(clock))

    def use_faults(self, faults: Faults) -> None:
        """Go on with other faults."""
        self.faults = faults
        self._fates = RowFates(faults)
        self._state.set("faults", faults.to_json())

    def caller(self, api_key: str) -> Caller:
        """Return who an API key is; the key itself is kept nowhere."""
        account = account_of(api_key)
        return Caller(account=account, project=self.faults.projects.get(api_key, "proj_" + account))

    def out_of_credit(self, project: str, moment: float, charges: int | None = None) -> bool:
        """Say whether a project has no credit left at a moment, after so many charges (None: count them)."""
        faults = self.faults
        if faults.credit_until is not None and moment - self.started_at >= faults.credit_until:
            return True
        if faults.credit_rows is None:
            return False
        if charges is None:
            charges = self.charges(project)
        return charges >= faults.credit_rows

    def charges(self, project: str) -> int:
        """Return the number of charges of a project."""
        return self._state.number("SELECT count(*) FROM charge WHERE project = ?", (project,))

    def fate(self, custom_id: str, key: str, body: Json, dialect: Dialect, project: str, tier: str) -> RowFate:
        """Return the fate of one row or synchronous call under the faults of now."""
        fates = self._fates
        occurrence = 0
        if fates.counts_occurrences and tier == "batch":
            occurrence = self._state.number(
                "SELECT count(*) FROM row JOIN batch ON row.batch = batch.ordinal"
                " WHERE row.key = ? AND row.outcome IS NOT NULL AND batch.project = ?",
                (key, project),
            )
        elif fates.counts_occurrences:
            occurrence = self._state.number(
                "SELECT count(*) FROM sync_call WHERE digest = ? AND project = ?", (key, project)
            )
        text = user_text(body, dialect) if fates.reads_text else ""
        return fates.fate(custom_id=custom_id, key=key, text=text, tier=tier, occurrence=occurrence)
