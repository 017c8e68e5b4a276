"""What a seed is made of: callers who want rows answered, a provider, a world, and the ledger that they share."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from pathlib import Path

import duckdb

from lotwise.canary import Canary
from lotwise.cost import Prices
from lotwise.golden import Golden
from lotwise.job import Options
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import Policy
from lotwise.request import Limits, Spec
from lotwise.schema import Schema
from lotwise.validate import Validator
from simulation.database import Onlooker
from simulation.provider import Provider
from simulation.world import Process, World

MAX_TOKENS = 64
PROMPT = "{text}"
SCHEMA = {
    "type": "object",
    "properties": {"echo": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["echo", "n"],
    "additionalProperties": False,
}

ACCOUNTS = ("account-1", "account-2")

OTHER_ACCOUNT = "other account"
"""How a life ends that met a shard of another account."""


def spec_of(seed: int) -> Spec:
    """Return a seed's spec: another one each, so that several seeds can share a database and no request."""
    return Spec(provider="simulated", model="pure", system=f"seed {seed}", max_tokens=MAX_TOKENS)


@cache
def schema() -> Schema:
    """Return the one schema of all seeds."""
    return Schema.of(SCHEMA)


@cache
def validator() -> Validator:
    """Return the one validator of all seeds."""
    return Validator.of(schema())


@dataclass(frozen=True, kw_only=True, eq=False)
class Precaution:
    """What a caller has sent first, and what must come of it before the rest is."""

    golden: Golden | None
    n_frame: int
    """Requests of the frame in the canary."""
    overrides_from: int | None
    """The life from which on he goes on past a failed canary; None for never."""


@dataclass(kw_only=True, eq=False)
class Caller:
    """Somebody who wants some rows answered, and comes back until they are."""

    name: str
    texts: list[str | None]
    budget_usd: Decimal | None
    options: Options
    policy: Policy
    poll_s: float | None
    run_id: str | None = None
    job_id: str | None = None
    digest_keys: list[str] = field(default_factory=list)
    lives: int = 0
    said: str | None = None
    """How the last life ended: "done", why sending was halted, or OTHER_ACCOUNT; None for a crash."""
    precaution: Precaution | None = None
    """None in worlds without golden rows."""


@dataclass(kw_only=True, eq=False)
class Story:
    """One seed, told."""

    seed: int
    spec: Spec
    world: World
    provider: Provider
    database: duckdb.DuckDBPyConnection
    folder: Path
    shape: str
    prices: Prices | None
    callers: list[Caller]
    limits: Limits
    paid: bool = True
    strange: float = 0.0
    """How likely a life has another account's key."""
    cancels: float = 0.0
    """How likely somebody cancels a life's run."""
    processes: list[Process] = field(default_factory=list)
    takers: dict[str, set[str]] = field(default_factory=dict)
    """Which processes ever held each shard."""
    trespasses: list[str] = field(default_factory=list)
    """Who took a shard that a living process held, in sentences."""
    golden_share: float | None = None
    """How many golden rows ride in a shard, as a share of its other rows; None in worlds without golden rows."""
    canaries: dict[str, Canary | None] = field(default_factory=dict)
    """What each process has to pass, by its name."""
    run_callers: dict[str, Caller] = field(default_factory=dict)
    """Whose each run is, by its id."""

    @property
    def ledger(self) -> Ledger:
        """Return the ledger as an onlooker has it."""
        return Ledger(Onlooker(self.database), self.folder, self.folder)

    def process(self, name: str | None) -> Process | None:
        return next((process for process in self.processes if process.name == name), None)
