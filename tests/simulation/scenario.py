"""Drawing one seed's story: who wants what, with which settings, and what goes wrong.

Small jobs of 10 to 60 rows; one or two callers with the same or overlapping work.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path

import duckdb

from lotwise.cost import Prices
from lotwise.job import Options
from lotwise.lifecycle import Policy
from lotwise.request import Limits
from simulation.golden import add_golden
from simulation.provider import Manner, Provider
from simulation.story import MAX_TOKENS, Caller, Story, spec_of
from simulation.world import World


def tell(seed: int, database: duckdb.DuckDBPyConnection, folder: Path, *, golden: bool = False) -> Story:
    """Draw all that a seed decides beforehand. Its ledger is in `database` and `folder`, with those of other seeds.

    With `golden` it is the same story, in which the callers also have a canary before them.
    """
    world = World(seed)
    rng = random.Random(f"story/{seed}")
    shape = rng.choices(("batch", "bare", "stream"), weights=(5, 3, 2))[0]
    priced = rng.random() < 0.8
    prices = Prices.given({"input_mtok": "2", "output_mtok": "10"}, "batch") if priced else None
    texts = _texts(rng)
    durations_s: tuple[float, ...] = rng.choice(((30.0, 600.0), (1.0,), (1_800.0, 60.0), (4_000.0,)))
    window_s = rng.choice((86_400.0, 86_400.0, 900.0))
    options = Options(
        window=rng.choice((None, 1, 2, 4)),
        shard_rows=rng.choice((None, None, 6, 12)),
        lease_s=rng.choice((30.0, 120.0)),
        create_timeout_s=rng.choice((60.0, 600.0)),
        lost_after_s=28_800.0,  # longer than all flaps together
        systemic_rate=rng.choice((None, None, 0.2)),
        max_resends=rng.choice((20, 4, 4)) if window_s > max(durations_s) else 2,  # else all of it expires each time
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
        max_tokens=MAX_TOKENS,
        durations_s=durations_s,
        window_s=window_s,
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
            prices.upper_bound(input_bytes=len(text.encode()) + 200, output_tokens=MAX_TOKENS)
            for text in {text for text in texts if text is not None}
        )
        if prices is not None
        else Decimal(0)
    )
    wide = random.Random(f"wide/{seed}")  # apart, so that worlds without these stay what they were
    paid = shape != "stream" or wide.random() < 0.6
    if shape != "stream" and wide.random() < 0.3:
        world.mischief.chances["foreign"], world.mischief.left["foreign"] = wide.choice((0.2, 0.6)), 5
    strange = wide.choice((0.3, 0.6)) if shape != "stream" and wide.random() < 0.2 else 0.0
    cancels = wide.choice((0.3, 0.8)) if wide.random() < 0.25 else 0.0
    if not paid:
        prices, manner.input_nano, manner.output_nano = None, 0, 0
    story = Story(
        seed=seed,
        spec=spec_of(seed),
        world=world,
        provider=Provider(world, manner, bare=shape == "bare"),
        database=database,
        folder=folder,
        shape=shape,
        prices=prices,
        callers=[],
        limits=limits,
        paid=paid,
        strange=strange,
        cancels=cancels,
    )
    poll_s = rng.choice((None, 3_600.0) if max(manner.durations_s) < 10 else (900.0, 1_800.0, 3_600.0, 3_600.0))
    if poll_s is None:
        world.mischief.left["forget"] = 0  # it would be looked for some fifty times
    n_callers = rng.choice((1, 1, 2))
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
                poll_s=poll_s,
            )
        )
    if golden:
        add_golden(story)
    return story


def _texts(rng: random.Random) -> list[str | None]:
    n_rows = rng.randint(*rng.choices(((10, 20), (20, 40), (40, 60)), weights=(8, 1, 1))[0])
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
    "create_after_long": (0.4, 1),
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
