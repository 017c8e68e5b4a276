"""The product as a simulated process runs it: everything new but the database, with the world's clock and names."""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import polars as pl

from lotwise import collect, engine, golden, reconcile, watch
from lotwise.job import Job, Lane
from lotwise.key import KEY_VERSION, spec_digest, spec_json
from lotwise.ledger import parts
from lotwise.ledger import runs as run_book
from lotwise.ledger import shards as shard_book
from lotwise.ledger.rows import ShardRow
from lotwise.ledger.store import Ledger
from lotwise.shards import lease_end
from simulation.database import OneConnection
from simulation.executors import SimBareBatch, SimBatch, SimStream
from simulation.golden import canary_of
from simulation.story import ACCOUNTS, PROMPT, Caller, Story, schema, validator
from simulation.world import Process, WorldClock

SHAPES = {"batch": SimBatch, "bare": SimBareBatch, "stream": SimStream}

OTHERS = timedelta(seconds=60)
"""How often a process looks whether another has finished: rarely, since each look costs the simulation real time."""


def job_of(
    story: Story, caller: Caller, process: Process, *, account: str, again: bool = False, canceling: bool = False
) -> Job:
    """Do what `map`, `resume` or `cancel` does before the engine takes over, with everything new but the database."""
    world = story.world
    ledger = Ledger(OneConnection(story), story.folder, story.folder)
    spec = story.spec
    digest = spec_digest(spec)
    judge, clock = validator(), WorldClock(world)
    resumed = caller.run_id is not None and (canceling or (not again and world.rng.random() < 0.5))
    if resumed:
        assert caller.run_id is not None
        run = run_book.row(ledger, caller.run_id)
        assert run is not None
        if not canceling:
            run_book.reopen(ledger, caller.run_id)
        run_id, job_id, n_requests, n_skipped = caller.run_id, run["job"], run["n_requests"], run["n_skipped"]
    else:
        enrolled = engine.enroll(ledger, digest, [pl.Series("content", caller.texts, dtype=pl.String)], clock.now())
        run_id, job_id = engine.new_run_id(), engine.job_digest(digest, enrolled.manifest)
        n_requests, n_skipped = enrolled.manifest.height, enrolled.n_skipped
        caller.digest_keys = enrolled.manifest["key"].to_list()
        caller.job_id = job_id

    job = _assembled(story, caller, ledger, process.name, account, run_id, job_id, n_requests, n_skipped)
    if caller.precaution is not None and not canceling:
        story.canaries[process.name] = job.canary = (
            watch.restore(ledger, run_id, schema()) if resumed else canary_of(caller, caller.precaution, digest)
        )
        story.run_callers[run_id] = caller
    if resumed:
        return job
    if job.canary is not None:
        watch.begin(job, job.canary)
    run_book.begin(
        ledger,
        {
            "id": run_id,
            "name": None,
            "spec": digest,
            "validator": judge.digest,
            "job": job_id,
            "tier": "batch",
            "options": "{}",
            "prompt": PROMPT,
            "n_rows": len(caller.texts),
            "n_skipped": n_skipped,
            "n_requests": n_requests,
            "budget_usd": caller.budget_usd,
        },
        {"digest": digest, "model": spec.model_name, "body": spec_json(spec), "key_version": KEY_VERSION},
        {"digest": judge.digest, "body": None},
        enrolled.manifest,
        clock.now(),
    )
    caller.run_id = run_id
    return job


def onlooking(story: Story, caller: Caller, run_id: str) -> Job:
    """Return a run's job after the end, for somebody who only looks."""
    run = run_book.row(story.ledger, run_id)
    assert run is not None
    counts = run["job"], run["n_requests"], run["n_skipped"]
    return _assembled(story, caller, story.ledger, "onlooker", ACCOUNTS[0], run_id, *counts)


def _assembled(
    story: Story,
    caller: Caller,
    ledger: Ledger,
    owner: str,
    account: str,
    run_id: str,
    job_id: str,
    n_requests: int,
    n_skipped: int,
) -> Job:
    def is_gone(owner: str | None) -> bool:
        other = story.process(owner)
        return owner is None or (other is not None and other.known_gone)

    executor = SHAPES[story.shape](
        story.world,
        story.provider,
        owner,
        story.limits,
        caller.options.create_timeout_s,
        account=account,
        paid=story.paid,
    )
    judge = validator()
    return Job(
        ledger=ledger,
        lane=Lane(executor=executor, prices=story.prices),
        spec=story.spec,
        spec_digest=spec_digest(story.spec),
        validator=judge,
        validator_digest=judge.digest,
        run_id=run_id,
        job_id=job_id,
        n_requests=n_requests,
        n_skipped=n_skipped,
        clock=WorldClock(story.world),
        owner=owner,
        is_gone=is_gone,
        options=caller.options,
        policy=caller.policy,
        budget_usd=caller.budget_usd,
        poll_s=caller.poll_s,
        rng=random.Random(f"{story.seed}/{owner}"),
    )


class _Names:
    """Stands in for the module `secrets`, so that a seed decides the names too."""

    def __init__(self, story: Story) -> None:
        self.token_hex = story.world.token_hex


@contextlib.contextmanager
def seeded(story: Story) -> Iterator[None]:
    """Let the seed decide the names that the product makes, and the story what no setting does."""
    names: Any = _Names(story)
    places: tuple[tuple[Any, str, Any], ...] = (
        (engine, "secrets", names),
        (parts, "secrets", names),
        (reconcile, "OTHERS", OTHERS),
        (reconcile, "kept", _kept),
        (collect, "kept", _kept),
        (golden, "SHARE", golden.SHARE if story.golden_share is None else story.golden_share),
    )
    before = [getattr(module, name) for module, name, _ in places]
    for module, name, value in places:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(places, before, strict=True):
            setattr(module, name, value)


@contextlib.contextmanager
def _kept(job: Job, shard: ShardRow) -> Iterator[None]:
    """Stand in for `lease.kept`, whose thread goes by the machine's time: here the executor renews while it is away."""
    lane = job.lane_of(shard)
    executor: Any = lane.executor

    def renew() -> None:
        until = lease_end(job, lane, job.clock.now())
        if not shard_book.renew(job.ledger, shard["id"], owner=job.owner, lease_until=until):
            executor.renew = None

    executor.renew, executor.renew_s = renew, job.options.lease_s / 3
    try:
        yield
    finally:
        executor.renew = None


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
