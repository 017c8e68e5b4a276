"""One seed's story: who wants what, what goes wrong, and the run of it all to the end.

Small jobs of 10 to 60 rows; one or two callers with the same or overlapping work, each living several lives; then a
quiet time in which what is left must come to its end. `checks` then compares the ledger with the provider.
"""

from __future__ import annotations

import contextlib
import logging
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from lotwise import engine, reconcile
from lotwise.clock import Clock
from lotwise.cost import Prices
from lotwise.job import Job, Options
from lotwise.key import KEY_VERSION, spec_digest, spec_json
from lotwise.ledger import migrate, parts
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import Policy
from lotwise.request import Limits, Spec
from lotwise.schema import Schema
from lotwise.validate import Validator
from simulation.executors import SimBareBatch, SimBatch, SimStream
from simulation.provider import Manner, Provider
from simulation.world import Crash, Process, World, WorldClock

SPEC = Spec(provider="simulated", model="pure", system=None, max_tokens=64)
SCHEMA = {
    "type": "object",
    "properties": {"echo": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["echo", "n"],
    "additionalProperties": False,
}
SHAPES = {"batch": SimBatch, "bare": SimBareBatch, "stream": SimStream}

OTHERS = timedelta(seconds=60)
"""How often a process looks whether another has finished: rarely, since each look costs the simulation real time."""

LIVES = 4
"""Lives of one caller before the quiet time."""


@cache
def validator() -> Validator:
    """Return the one validator of all seeds."""
    return Validator.of(Schema.of(SCHEMA))


class OneConnection:
    """The seed's one open database, as one process sees it: every transaction has boundaries, and dies with it."""

    def __init__(self, story: Story) -> None:
        self._story, self._world, self._database = story, story.world, story.database

    @contextlib.contextmanager
    def session(self, purpose: str, *, read_only: bool = False) -> Iterator[Any]:
        """Yield the connection; what its process leaves open is rolled back."""
        self._world.step(f"before {purpose!r}")
        watched = _Watched(self._world, self._database, purpose, self._story)
        try:
            yield watched
        finally:
            if watched.is_open:
                self._database.execute("ROLLBACK")


class _Watched:
    """A connection whose COMMIT is a boundary on both sides."""

    def __init__(self, world: World, database: duckdb.DuckDBPyConnection, purpose: str, story: Story) -> None:
        self._world, self._database, self._purpose, self._story = world, database, purpose, story
        self.is_open = False

    def execute(self, statement: str, parameters: object = None) -> Any:
        match statement:
            case "BEGIN":
                self._database.execute("BEGIN")
                self.is_open = True
            case "COMMIT":
                if self._world.chance("crash_in_transaction"):
                    self._world.end_here(f"before the commit of {self._purpose!r}")
                self._database.execute("COMMIT")
                self.is_open = False
                self._world.step(f"after the commit of {self._purpose!r}")
            case "ROLLBACK":
                if self.is_open:
                    self._database.execute("ROLLBACK")
                    self.is_open = False
            case _:
                if isinstance(parameters, dict) and {"shard", "owner"} <= parameters.keys():
                    self._witness(parameters)
                return self._database.execute(statement, parameters)
        return self._database

    def _witness(self, parameters: dict[str, Any]) -> None:
        """Note who acts on a shard, and whoever takes one that a living process holds by its lease."""
        story, shard, taker = self._story, parameters["shard"], parameters["owner"]
        story.takers.setdefault(shard, set()).add(taker)
        if "gone" not in parameters:
            return
        look = "SELECT owner, lease_until FROM shard WHERE id = $id AND state = $state"
        held = self._database.execute(look, {"id": shard, "state": parameters["state"]}).fetchone()
        if held is None or held[1] is None or held[0] == taker or held[1] <= self._world.now:
            return
        holder = story.process(held[0])
        if holder is not None and not holder.known_gone and parameters["gone"] == held[0]:
            story.trespasses.append(f"{taker} takes shard {shard}, which {held[0]} holds until {held[1]}")

    def sql(self, statement: str, params: object = None) -> Any:
        return self._database.sql(statement, params=params)

    def register(self, name: str, frame: object) -> None:
        self._database.register(name, frame)

    def unregister(self, name: str) -> None:
        self._database.unregister(name)


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
    """How the last life ended: "done", or why sending was halted; None for a crash."""


@dataclass(kw_only=True, eq=False)
class Story:
    """One seed, told."""

    seed: int
    world: World
    provider: Provider
    database: duckdb.DuckDBPyConnection
    folder: Path
    shape: str
    prices: Prices | None
    callers: list[Caller]
    limits: Limits
    processes: list[Process] = field(default_factory=list)
    takers: dict[str, set[str]] = field(default_factory=dict)
    """Which processes ever held each shard."""
    trespasses: list[str] = field(default_factory=list)
    """Who took a shard that a living process held, in sentences."""

    @property
    def ledger(self) -> Ledger:
        """Return the ledger as an onlooker has it."""
        return Ledger(Onlooker(self.database), self.folder, self.folder)

    def process(self, name: str | None) -> Process | None:
        return next((process for process in self.processes if process.name == name), None)


class Onlooker:
    """The database without boundaries, for checks after the end."""

    def __init__(self, database: duckdb.DuckDBPyConnection) -> None:
        self._database = database

    @contextlib.contextmanager
    def session(self, purpose: str, *, read_only: bool = False) -> Iterator[Any]:
        yield self._database


def fresh_database() -> duckdb.DuckDBPyConnection:
    """Open an empty ledger in memory."""
    database = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "256MB"})
    database.execute("SET TimeZone = 'UTC'")
    database.execute("PRAGMA disable_optimizer")  # a few dozen rows: planning costs more than any plan can save
    migrate.migrate(database, Path(":memory:"))
    return database


# --- drawing ------------------------------------------------------------------------------------------------------


def tell(seed: int, folder: Path) -> Story:
    """Draw all that a seed decides beforehand."""
    world = World(seed)
    rng = random.Random(f"story/{seed}")
    shape = rng.choices(("batch", "bare", "stream"), weights=(5, 3, 2))[0]
    priced = rng.random() < 0.8
    prices = Prices.given({"input_mtok": "2", "output_mtok": "10"}, "batch") if priced else None
    texts = _texts(rng)
    options = Options(
        window=rng.choice((None, 1, 2, 4)),
        shard_rows=rng.choice((None, 5, 12, 30)),
        lease_s=rng.choice((30.0, 120.0)),
        create_timeout_s=rng.choice((60.0, 600.0)),
        lost_after_s=rng.choice((28_800.0, 172_800.0)),  # longer than all flaps together
        systemic_rate=rng.choice((None, None, 0.2)),
        max_resends=rng.choice((20, 20, 4)),
        cleanup=rng.random() < 0.2,
    )
    world.silence_s = options.lease_s
    silence = options.create_timeout_s + options.lease_s
    longest = options.absence_margin_s + silence * 1.2
    world.pauses_s = (5.0, options.lease_s * 1.3, silence * 1.1, silence * 1.1, longest)
    world.mischief.chances, world.mischief.left = _mischief(rng)
    manner = Manner(
        outcomes=_shares(
            rng,
            {
                "invalid": 0.1,
                "truncated": 0.1,
                "refused": 0.1,
                "needs_continuation": 0.03,
                "bad_request": 0.05,
                "rate_limited": 0.1,
                "server_error": 0.1,
                "account_blocked": 0.01,
            },
        ),
        flaws=_shares(
            rng, {"missing": 0.05, "torn": 0.05, "torn_once": 0.1, "unreadable": 0.03, "unreadable_once": 0.05}
        ),
        usage_missing=rng.choice((0.0, 0.0, 0.1)),
        at_the_bound=rng.choice((0.0, 0.1, 1.0)),
        input_nano=1_000_000,
        output_nano=5_000_000,
        max_tokens=SPEC.max_tokens,
        durations_s=rng.choice(((30.0, 600.0), (1.0,), (1_800.0, 60.0), (4_000.0,))),
        window_s=rng.choice((86_400.0, 86_400.0, 900.0)),
        lag_s=rng.choice((0.0, 60.0)),
        skew_s=rng.choice((0.0, 0.0, 600.0, -600.0)),
    )
    limits = Limits(
        max_requests=rng.choice((1_000, 25, 7)),
        max_bytes=rng.choice((None, None, 6_000)),
        max_in_flight=rng.choice((None, 2, 1)),
    )
    most = (
        sum(
            prices.upper_bound(input_bytes=len(text.encode()) + 200, output_tokens=SPEC.max_tokens)
            for text in {text for text in texts if text is not None}
        )
        if prices is not None
        else Decimal(0)
    )
    story = Story(
        seed=seed,
        world=world,
        provider=Provider(world, manner),
        database=fresh_database(),
        folder=folder,
        shape=shape,
        prices=prices,
        callers=[],
        limits=limits,
    )
    n_callers = rng.choice((1, 2))
    for number in range(n_callers):
        wanted = texts
        if number and rng.random() < 0.5:
            wanted = [text for text in texts if rng.random() < 0.6] + [f"only {number}: {i}" for i in range(3)]
        budget = None
        if prices is not None and rng.random() < 0.7:
            budget = (most * Decimal(str(round(rng.choice((0.1, 0.4, 0.9, 2.0)) * rng.uniform(0.7, 1.2), 3)))).quantize(
                Decimal("0.000000001")
            )
        story.callers.append(
            Caller(
                name="AB"[number],
                texts=wanted,
                budget_usd=budget,
                options=options,
                policy=Policy(
                    systemic_rate=options.systemic_rate,
                    max_resends=options.max_resends,
                    backoff_s=rng.choice((15.0, 120.0)),
                ),
                poll_s=None if max(manner.durations_s) < 10 else rng.choice((900.0, 1_800.0, 3_600.0)),
            )
        )
    return story


def _texts(rng: random.Random) -> list[str | None]:
    n_rows = rng.randint(10, 60)
    texts: list[str | None] = [f"row {i} " + "é" * rng.choice((0, 3, 60, 200)) for i in range(n_rows)]
    for _ in range(rng.choice((0, 0, 3, 8))):
        texts[rng.randrange(n_rows)] = rng.choice((None, texts[0]))
    if all(text is None for text in texts):
        texts[0] = "row"
    return texts


def _shares(rng: random.Random, most: Mapping[str, float]) -> dict[str, float]:
    """Draw which faults a provider has at all, and how often: most seeds have few, some have all."""
    kind = rng.choice(("none", "few", "few", "all"))
    if kind == "none":
        return {}
    return {name: share * rng.choice((0.3, 1.0)) for name, share in most.items() if kind == "all" or rng.random() < 0.3}


_CHANCES: dict[str, tuple[float, int]] = {
    "crash": (0.02, 4),
    "crash_in_transaction": (0.03, 2),
    "pause": (0.01, 3),
    "slow": (0.3, 20),
    "unreachable": (0.1, 8),
    "upload_rejected": (0.1, 2),
    "create_unsent": (0.3, 2),
    "create_late": (0.3, 2),
    "reply_lost": (0.3, 3),
    "rejected": (0.05, 1),
    "rejected_wait": (0.3, 3),
    "rejected_later": (0.2, 2),
    "no_credit": (0.05, 1),
    "flap": (0.2, 4),
    "forget": (0.02, 1),
    "unknown_state": (0.2, 3),
    "results_flap": (0.2, 1),
    "download_broken": (0.2, 2),
    "duplicate": (0.2, 0),
    "unknown_id": (0.5, 0),
    "garbage": (0.3, 0),
}
"""Each fault's largest chance at an occasion, and how often it may happen in a seed."""


def _mischief(rng: random.Random) -> tuple[dict[str, float], dict[str, int]]:
    share = rng.choice((0.15, 0.4, 0.8))
    chances = {name: most * rng.choice((0.3, 1.0, 2.0)) for name, (most, _) in _CHANCES.items() if rng.random() < share}
    left = {name: rng.randint(1, limit) if limit else 0 for name, (_, limit) in _CHANCES.items()}
    chances["switch"] = rng.choice((0.0, 0.05, 0.3))
    if rng.random() < 0.6:
        chances.setdefault("crash", rng.choice((0.005, 0.02, 0.05)))
    return chances, left


# --- running ------------------------------------------------------------------------------------------------------


def play(story: Story) -> None:
    """Run a story to its end. Raises what the product raises."""
    world = story.world
    with _seeded_names(world):
        world.on_end = lambda process: _ended(story, process)
        for caller in story.callers:
            _live(story, caller, delay_s=world.rng.choice((0.0, 0.0, 30.0)))
        world.run()
        world.quiet = True
        world.say("world", "--- from here on nothing goes wrong ---")
        for caller in story.callers:
            _live(story, caller, delay_s=world.rng.choice((0.0, 10.0)))
        world.run()
        spent = bill_nano(story)
        world.say("world", "--- the same calls once more ---")
        for caller in story.callers:
            if caller.said == "done":
                _live(story, caller, delay_s=0.0, again=True)
        world.run()
        if bill_nano(story) != spent:
            raise AssertionError("a repeated call of finished work was charged")


def bill_nano(story: Story) -> int:
    """Return all that the provider charged, in 1e-9 dollars."""
    batches = sum(batch.charged_nano(row) for batch in story.provider.batches.values() for row in batch.rows.values())
    return batches + sum(served.row.usd_nano for served in story.provider.served)


def _live(story: Story, caller: Caller, *, delay_s: float, again: bool = False) -> None:
    caller.lives += 1
    caller.said = None
    name = f"{caller.name}{caller.lives}"

    def body(process: Process) -> None:
        job = _job(story, caller, process, again=again)
        one_pass = not story.world.quiet and story.world.rng.random() < 0.1
        story.world.say(name, f"begins run {job.run_id}" + (" (one pass)" if one_pass else ""))
        engine.drive(job, wait=not one_pass)
        caller.said = job.halted or ("passed" if one_pass else "done")
        story.world.say(name, f"ends: {caller.said}")

    process = story.world.start(name, body, delay_s)
    story.processes.append(process)


def _ended(story: Story, process: Process) -> None:
    """Let a caller live again after a crash, or after a halt that he may want to overcome."""
    world = story.world
    if process.crashed_at is None:
        process.known_gone = True
    if world.quiet:
        return
    caller = next(one for one in story.callers if one.name == process.name[0])
    if caller.said != "done" and caller.lives < LIVES:
        _live(story, caller, delay_s=world.rng.choice((0.0, 5.0, 200.0, 4_000.0)))


def _job(story: Story, caller: Caller, process: Process, *, again: bool) -> Job:
    """Do what `map` or `resume` does before the engine takes over, with everything new but the database."""
    world = story.world
    ledger = Ledger(OneConnection(story), story.folder, story.folder)
    executor = SHAPES[story.shape](world, story.provider, process.name, story.limits, caller.options.create_timeout_s)
    clock: Clock = WorldClock(world)
    digest = spec_digest(SPEC)
    judge = validator()
    if caller.run_id is not None and not again and world.rng.random() < 0.5:
        run = ledger.run(caller.run_id)
        assert run is not None
        ledger.reopen_run(caller.run_id)
        run_id, job_id, n_requests, n_skipped = caller.run_id, run["job"], run["n_requests"], run["n_skipped"]
    else:
        enrolled = engine.enroll(ledger, digest, [pl.Series("content", caller.texts, dtype=pl.String)], clock.now())
        run_id, job_id = engine.new_run_id(), engine.job_digest(digest, enrolled.manifest)
        n_requests, n_skipped = enrolled.manifest.height, enrolled.n_skipped
        caller.digest_keys = enrolled.manifest["key"].to_list()
        caller.job_id = job_id
        ledger.begin_run(
            {
                "id": run_id,
                "name": None,
                "spec": digest,
                "validator": judge.digest,
                "job": job_id,
                "tier": "batch",
                "options": "{}",
                "prompt": "{text}",
                "n_rows": len(caller.texts),
                "n_skipped": n_skipped,
                "n_requests": n_requests,
                "budget_usd": caller.budget_usd,
            },
            {"digest": digest, "model": SPEC.model_name, "body": spec_json(SPEC), "key_version": KEY_VERSION},
            {"digest": judge.digest, "body": None},
            enrolled.manifest,
            clock.now(),
        )
        caller.run_id = run_id

    def is_gone(owner: str | None) -> bool:
        other = story.process(owner)
        return owner is None or (other is not None and other.known_gone)

    return Job(
        ledger=ledger,
        executor=executor,
        spec=SPEC,
        spec_digest=digest,
        validator=judge,
        validator_digest=judge.digest,
        run_id=run_id,
        job_id=job_id,
        n_requests=n_requests,
        n_skipped=n_skipped,
        clock=clock,
        owner=process.name,
        is_gone=is_gone,
        options=caller.options,
        policy=caller.policy,
        budget_usd=caller.budget_usd,
        prices=story.prices,
        poll_s=caller.poll_s,
        rng=random.Random(f"{story.seed}/{process.name}"),
    )


class _Names:
    """Stands in for the module `secrets`, so that a seed decides the names too."""

    def __init__(self, world: World) -> None:
        self.token_hex = world.token_hex


@contextlib.contextmanager
def _seeded_names(world: World) -> Iterator[None]:
    names: Any = _Names(world)
    modules: tuple[Any, ...] = (engine, parts)
    before, others = [module.secrets for module in modules], reconcile.OTHERS
    for module in modules:
        module.secrets = names
    reconcile.OTHERS = OTHERS
    try:
        yield
    finally:
        for module, secrets in zip(modules, before, strict=True):
            module.secrets = secrets
        reconcile.OTHERS = others


@contextlib.contextmanager
def parts_folder() -> Iterator[Path]:
    """Yield a folder for parts, in memory where the machine has such a file system."""
    shared = Path("/dev/shm")
    folder = Path(tempfile.mkdtemp(prefix="lotwise-sim-", dir=shared if shared.is_dir() else None))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Keep the product's log out of the output: its history is the world's."""
    logger = logging.getLogger("lotwise")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


__all__ = ["Caller", "Crash", "Story", "parts_folder", "play", "silent", "tell", "validator"]
