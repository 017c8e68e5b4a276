"""What the analyst asks of a lot, and what follows from it before anybody looks: lots' names, plans and hours.

The rule of a lot is fixed by its rates and its closed population, so two calls that ask the same of the same answers
name the same lot and find each other's evidence.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lotwise.errors import BadArgument
from lotwise.fields import known_by_name
from lotwise.stats import InspectionPlan, InspectionPlans, accept_chance, inspection_plan, inspection_plans

Scheme = Literal["run", "shard", "by"]


@known_by_name
@dataclass(frozen=True, kw_only=True)
class Acceptance:
    """What a lot is asked for, fixed before the first look.

    Attributes
    ----------
    limit
        The rate of bad answers at which a lot must not be released.
    aql
        The acceptable rate, at which it would be wrong to send a lot back. Below `limit`.
    confidence
        Two-sided for the interval, one-sided for the test that releases.
    margin
        Half-width of the interval that sizes the sample, as a rate: 0.05 is five points.
    by
        A column of the frame whose groups are lots; None for lots that `lots` names.
    lots
        "run": all rows of a call are one lot, sampled over its shards. "shard": each shard is one.
    read_minutes
        Minutes that reading one answer takes, for the hours that a plan prints. It changes no evidence.
    """

    limit: float = 0.05
    aql: float = 0.01
    confidence: float = 0.95
    margin: float = 0.05
    by: str | None = None
    lots: Literal["run", "shard"] = "run"
    read_minutes: float = 2.0

    def __post_init__(self) -> None:
        for name in ("limit", "aql", "confidence", "margin"):
            rate = getattr(self, name)
            if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise BadArgument.of("accept", f"{name} must be a rate, a number from 0 to 1, not percent")
        if not self.aql < self.limit:
            raise BadArgument.of("accept", f"aql={self.aql} must lie below limit={self.limit}")
        if not 0 < self.confidence < 1 or self.margin == 0:
            raise BadArgument.of("accept", "confidence must lie between 0 and 1, and margin above 0")
        if self.lots not in ("run", "shard"):
            raise BadArgument.of("accept", "lots must be 'run' or 'shard'; for a column's groups say by=")
        if self.by is not None and self.lots != "run":
            raise BadArgument.of("accept", "say by= or lots='shard', not both")
        if not self.read_minutes > 0:
            raise BadArgument.of("accept", "read_minutes must be above 0")

    @property
    def scheme(self) -> Scheme:
        """How rows are parted into lots."""
        return "by" if self.by is not None else self.lots

    @property
    def rule(self) -> tuple[float, float, float, float]:
        """What fixes a lot's plan and decision: limit, aql, confidence, margin."""
        return self.limit, self.aql, self.confidence, self.margin

    def plan(self, population: int) -> InspectionPlan | None:
        """Return the plan for a lot of so many distinct valid answers; None where there are none."""
        if population == 0:
            return None
        return inspection_plan(
            population, margin=self.margin, acceptable=self.aql, limit=self.limit, confidence=self.confidence
        )

    def plans(self, populations: Sequence[int]) -> InspectionPlans:
        """Return the plans for many lots, each of which holds an answer, as `plan` makes them one by one."""
        return inspection_plans(
            populations, margin=self.margin, acceptable=self.aql, limit=self.limit, confidence=self.confidence
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON has them."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any] | None) -> Acceptance:
        """Read what `to_json` wrote; None for the defaults."""
        return cls(**(fields or {}))


def family_of(
    job: str, validator: str, scheme: Scheme = "run", column: str | None = None, groups: str | None = None
) -> str:
    """Name one way of parting a job's rows into lots, 16 hex. A run's one lot has the name of its family.

    The validator is in it: it says which answers are valid, and evidence about one population is none about another.
    `groups` is a digest of who is in which group, so that a changed column names other lots.
    """
    return _digest([job, validator, scheme, column, groups])[:16]


def lot_in(family: str, scheme: Scheme, label: str | None) -> str:
    """Name the lot of a family that has this label."""
    return family if scheme == "run" else f"{family[:12]}-{_digest([label])[:12]}"


def groups_digest(groups: Iterable[tuple[str | None, Sequence[str]]]) -> str:
    """Digest which keys each group holds; neither the order of the groups nor that of the keys matters."""
    digest = hashlib.sha256()
    for label, keys in sorted(groups, key=lambda group: (group[0] is not None, group[0] or "")):
        digest.update(json.dumps([label, len(keys)]).encode())
        digest.update("".join(sorted(keys)).encode())
    return digest.hexdigest()[:40]


def seed_of(lot: str, draw: int) -> int:
    """Return the seed of a lot's draw: it is known beforehand, and another one for another draw."""
    return int(_digest([lot, draw])[:8], 16)


def _digest(words: list[Any]) -> str:
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What looking at a call's lots would take, if every answer is valid.

    Attributes
    ----------
    n_lots
        Lots that hold a request.
    n_rows
        Answers to read in all of them.
    hours
        Time for it, at the minutes a row that were asked for.
    words
        The plan of the largest lot, and how often it would release a lot by its true rate.
    """

    n_lots: int
    n_rows: int
    hours: float
    words: tuple[str, ...]

    @classmethod
    def of(cls, populations: Sequence[int], accept: Acceptance) -> Reading:
        """Work out the reading for lots of these sizes."""
        sizes = [size for size in populations if size]
        n_rows = int(accept.plans(sizes).n.sum())
        largest = accept.plan(max(sizes)) if sizes else None
        return cls(
            n_lots=len(sizes),
            n_rows=n_rows,
            hours=n_rows * accept.read_minutes / 60,
            words=() if largest is None else (_plan_in_words(largest), curve_in_words(largest)),
        )


def _plan_in_words(plan: InspectionPlan) -> str:
    drawn = "it is read" if plan.population == 1 else f"all {plan.population:,} are read"
    if plan.n != plan.population:
        drawn = f"{plan.n:,} of {plan.population:,} drawn at random"
    return f"{drawn}; release with {f'{plan.c:,} bad or fewer' if plan.c else 'none bad'}"


def curve_in_words(plan: InspectionPlan) -> str:
    """Say how often a plan releases a lot, from the acceptable rate to the limit.

    A lot so small that neighbouring rates mean the same whole number of answers is told in answers, and one that is
    read in full leaves nothing to chance.
    """
    if plan.n == plan.population:
        return "nothing is left to chance: every bad answer is seen"
    low, high, population = plan.acceptable or 0.0, plan.limit, plan.population or 0
    if population * (high - low) / 4 >= 1:
        curve = plan.curve([low + (high - low) * step / 4 for step in range(5)])
        first, *rest = (f"{_percent(chance, 1)} with {_percent(rate, 2)} truly bad" for rate, chance in curve)
        return f"released {first}, " + ", ".join(one.removesuffix(" truly bad") for one in rest)
    numbers = range(plan.bad_at_acceptable or 0, (plan.bad_at_limit or 0) + 1)
    chances = [_percent(accept_chance(plan.n, plan.c, population=population, bad_in_lot=bad), 1) for bad in numbers]
    first, *rest = (f"{chance} with {bad:,}" for chance, bad in zip(chances, numbers, strict=True))
    return ", ".join([f"released {first} of its {population:,} answers truly bad", *rest])


def _percent(rate: float, digits: int) -> str:
    return f"{round(100 * rate, digits):g} %"
