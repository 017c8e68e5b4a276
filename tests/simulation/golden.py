"""What golden worlds have besides: rows with known answers, a canary before the rest, and a provider that errs on them.

All of it is drawn apart, so that the same seed without it stays the story that it was.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import polars as pl

from lotwise.canary import Canary, fewest_golden, subject
from lotwise.golden import Golden, GoldenSet
from lotwise.render import Template
from simulation.provider import Astray, answer
from simulation.story import MAX_TOKENS, PROMPT, Caller, Precaution, Story, schema, validator

THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9)

FEWEST_FRAME_ROWS = {0.2: 9, 0.4: 5}
"""Rates of invalid answers that a caller allows, and how many requests it takes to prove that the rate is not higher.

The product takes requests into the canary from 2,000 on only, and 100 of them then. Here a caller says how many.
"""


def add_golden(story: Story) -> None:
    """Give a story a golden set or a canary of its own requests, and a provider that may answer golden rows wrongly."""
    rng = random.Random(f"golden/{story.seed}")
    kind = rng.choices(("right", "wrong", "drift", "frame rows alone"), weights=(5, 2, 3, 1))[0]
    story.golden_share = rng.choice((1.0, 2.0) if kind == "drift" else (0.01, 0.3, 1.0))
    bad_limit = rng.choice(tuple(FEWEST_FRAME_ROWS))
    has_frame_rows = kind == "frame rows alone" or rng.random() < 0.3
    texts: list[str] = []
    threshold = 0.0
    if kind != "frame rows alone":
        texts = _texts(rng, story.callers[0].texts, rng.choice((20, 40) if kind == "drift" else (4, 6, 10, 14, 20)))
        threshold = rng.choice(_provable(len(texts)))
        always: Sequence[str] = ()
        if kind == "wrong":
            always = rng.sample(texts, max(1, int(len(texts) * rng.choice((0.3, 0.6, 1.0)))))
        elif rng.random() < 0.2:
            always = texts[:1]
        story.provider.astray = Astray(
            contents=frozenset(texts),
            always=frozenset(always),
            after=len(texts) + rng.randint(0, 8) if kind == "drift" else None,
        )
    answers = rng.choice((["echo"], ["echo", "n"]))
    sending = {"shard_rows": rng.choice((3, 5)), "window": rng.choice((1, 2))} if kind == "drift" else {}
    room = rng.choice((1, 1, 4)) * _most_usd(story, texts)
    for number, caller in enumerate(story.callers):
        override, other_threshold = rng.random() < 0.2, rng.random() < 0.2
        own = threshold
        if number and texts and other_threshold:
            own = rng.choice(_provable(len(texts)))
        n_requests = len({text for text in caller.texts if text is not None})
        caller.precaution = Precaution(
            golden=Golden(_known(texts), answers=answers, threshold=own) if texts else None,
            n_frame=_n_frame(rng, n_requests, FEWEST_FRAME_ROWS[bad_limit]) if has_frame_rows else 0,
            overrides_from=(1 if number else rng.choice((1, 2, 3))) if override else None,
        )
        limit = bad_limit if has_frame_rows else caller.options.systemic_rate
        caller.options = replace(caller.options, systemic_rate=limit, **sending)
        caller.policy = replace(caller.policy, systemic_rate=limit)
        if caller.budget_usd is not None:
            caller.budget_usd += room


def canary_of(caller: Caller, precaution: Precaution, spec: str) -> Canary:
    """Return what a call must pass in the caller's present life, as `Call.canary` does."""
    given = precaution.golden
    golden = (
        None
        if given is None
        else GoldenSet.bind(given, Template.parse(PROMPT), schema(), (), on_null="skip", dtypes={"text": pl.String()})
    )
    overrides = precaution.overrides_from is not None and caller.lives >= precaution.overrides_from
    limit = caller.options.systemic_rate
    return Canary(
        spec=spec,
        subject=subject(golden=golden, prompt=PROMPT, validator=validator().digest, bad_limit=limit),
        golden=golden,
        bad_limit=limit,
        n_frame=precaution.n_frame,
        mode="override" if overrides else "on",
    )


def _texts(rng: random.Random, frame: Sequence[str | None], n: int) -> list[str]:
    """Draw distinct contents; now and then some of them are those of frame rows too."""
    texts = [f"known {i} " + "ü" * rng.choice((0, 3, 60)) for i in range(n)]
    if rng.random() < 0.4:
        shared = sorted({text for text in frame if text is not None})
        for at, text in enumerate(rng.sample(shared, min(len(shared), n, 3))):
            texts[at] = text
    return texts


def _provable(n_golden: int) -> list[float]:
    """Return the thresholds that so many golden rows can pass; a call with another is refused."""
    return [threshold for threshold in THRESHOLDS if fewest_golden(threshold) <= n_golden]


def _known(texts: Sequence[str]) -> pl.DataFrame:
    said = [json.loads(answer(text)) for text in texts]
    return pl.DataFrame({"text": texts, "echo": [one["echo"] for one in said], "n": [one["n"] for one in said]})


def _n_frame(rng: random.Random, n_requests: int, fewest: int) -> int:
    """Draw how many requests are in the canary: enough to prove something, where that is not most of them."""
    most = max(n_requests // 2, 1)
    return rng.randint(min(fewest, most), most)


def _most_usd(story: Story, texts: Sequence[str]) -> Decimal:
    """Return what asking each golden row once can cost at most."""
    if story.prices is None:
        return Decimal(0)
    each = [story.prices.upper_bound(input_bytes=len(text.encode()) + 200, output_tokens=MAX_TOKENS) for text in texts]
    return sum(each, Decimal(0))
