"""Runs without a frame: what `map` does around the engine, in a few lines, for tests that look at ledger and engine.

Everything is real except time and the provider: a DuckDB ledger in a folder, the engine, the scripted provider.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import polars as pl

from lotwise import engine, owner
from lotwise.cost import Prices
from lotwise.job import Job, Lane, Options
from lotwise.key import KEY_VERSION, spec_digest, spec_json
from lotwise.ledger import migrate
from lotwise.ledger import requests as request_book
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger
from lotwise.lifecycle import Policy
from lotwise.request import Spec
from lotwise.schema import Schema
from lotwise.testing import HandClock, ScriptedExecutor
from lotwise.validate import Check, Validator

SPEC = Spec(provider="scripted", model="echo", system="Say it again.")
PRICES = Prices.given({"input_mtok": "1", "output_mtok": "5"}, "batch")


def text_validator(check: Check | None = None) -> Validator:
    """Return a validator of free text, with a rule if one is given."""
    return Validator.of(Schema.of(None), check)


class OpenDatabase:
    """A database in memory that stays open, where a test is about the engine and not about the file."""

    def __init__(self) -> None:
        self._connection = duckdb.connect(":memory:")
        migrate.migrate(self._connection, Path(":memory:"))

    @contextlib.contextmanager
    def session(self, purpose: str, *, read_only: bool = False) -> Iterator[Any]:
        """Yield a cursor of the one connection."""
        with self._connection.cursor() as cursor:
            cursor.execute("SET TimeZone = 'UTC'")
            yield cursor


@dataclass(kw_only=True)
class Bench:
    """A ledger, a provider and a clock, on which runs are begun and driven.

    With `in_memory` the ledger's database never touches the disk; its parts do.
    """

    folder: Path
    in_memory: bool = False
    clock: HandClock = field(default_factory=HandClock)
    spec: Spec = SPEC
    validator: Validator = field(default_factory=text_validator)
    executor: Any = None
    ledger: Ledger = field(init=False)

    def __post_init__(self) -> None:
        if self.in_memory:
            parts_folder = self.folder / "parts"
            parts_folder.mkdir()
            self.ledger = Ledger(OpenDatabase(), parts_folder, self.folder)
        else:
            self.ledger = Ledger.open(self.folder / "ledger")
        if self.executor is None:
            self.executor = self.provider()

    def provider(self, **settings: Any) -> ScriptedExecutor:
        """Return a scripted executor over this bench's provider folder and clock."""
        return ScriptedExecutor(self.folder / "provider", clock=self.clock, **settings)

    def begin(
        self,
        texts: Sequence[str | None] | Iterable[pl.Series],
        *,
        budget_usd: Decimal | None = None,
        prices: Prices | None = None,
        options: Options | None = None,
        policy: Policy | None = None,
        owned_by: str | None = None,
    ) -> Job:
        """Write down a run over rendered texts, as `map` does before it sends anything."""
        digest = spec_digest(self.spec)
        slices = [pl.Series("content", texts, dtype=pl.String)] if isinstance(texts, (list, tuple)) else texts
        enrolled = engine.enroll(self.ledger, digest, slices, self.clock.now())  # type: ignore[arg-type]
        run, job = engine.new_run_id(), engine.job_digest(digest, enrolled.manifest)
        run_book.begin(
            self.ledger,
            {
                "id": run,
                "name": None,
                "spec": digest,
                "validator": self.validator.digest,
                "job": job,
                "tier": "batch",
                "options": "{}",
                "prompt": "{text}",
                "n_rows": enrolled.keys.len(),
                "n_skipped": enrolled.n_skipped,
                "n_requests": enrolled.manifest.height,
                "budget_usd": budget_usd,
            },
            {
                "digest": digest,
                "model": self.spec.model_name,
                "body": spec_json(self.spec),
                "key_version": KEY_VERSION,
            },
            {"digest": self.validator.digest, "body": None},
            enrolled.manifest,
            self.clock.now(),
        )
        return Job(
            ledger=self.ledger,
            lane=Lane(executor=self.executor, prices=prices),
            spec=self.spec,
            spec_digest=digest,
            validator=self.validator,
            validator_digest=self.validator.digest,
            run_id=run,
            job_id=job,
            n_requests=enrolled.manifest.height,
            n_skipped=enrolled.n_skipped,
            clock=self.clock,
            owner=owned_by or "test/1/1/owner",
            is_gone=owner.gone,
            options=options or Options(),
            policy=policy or Policy(),
            budget_usd=budget_usd,
            rng=random.Random(7),
        )

    def run(self, texts: Sequence[str | None], **settings: Any) -> Job:
        """Begin a run and drive it to its end."""
        job = self.begin(texts, **settings)
        engine.drive(job)
        return job

    def values(self, job: Job, texts: Sequence[str | None]) -> list[str | None]:
        """Return each row's valid answer as JSON text, in the rows' order; None where there is none."""
        keys = engine.content_keys(job.spec_digest, pl.Series(texts, dtype=pl.String))
        answers = request_book.answers(self.ledger, keys.drop_nulls().unique(), job.validator_digest)
        found = dict(answers.select("key", "value").iter_rows())
        return [found.get(key) for key in keys]
