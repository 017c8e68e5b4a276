"""Statistics, golden sets, lots and inspections: whoever plans or inspects acts."""

from __future__ import annotations

from collections.abc import Iterable

from lotwise.errors.base import LotwiseError, nearest


class StatisticsRefused(LotwiseError, ValueError):
    """The numbers given allow no honest answer, or are not counts and rates at all.

    `reason` is a short code that a column can carry; `facts` are the numbers it rests on.
    """

    def __init__(self, reason: str, hint: str, facts: dict[str, object]) -> None:
        self.reason = reason
        self.hint = hint
        self.facts = facts
        numbers = ", ".join(f"{name}={value}" for name, value in facts.items())
        super().__init__(f"{reason} ({numbers}): {hint}" if numbers else f"{reason}: {hint}")

    @classmethod
    def because(cls, reason: str, hint: str, **facts: object) -> StatisticsRefused:
        """Refuse for `reason`, saying in `hint` what would help and keeping the numbers."""
        return cls(reason, hint, facts)

    @classmethod
    def from_name(cls, what: str, name: str, available: Iterable[str]) -> StatisticsRefused:
        """Refuse a `name` that is none of the `available` ones."""
        known = list(available)
        close = nearest(name, known) or known
        return cls(f"unknown_{what}", f"use {' or '.join(close)}", {what: name})


class BadGolden(LotwiseError, ValueError):
    """A golden set cannot be used as it is."""

    @classmethod
    def because(cls, what: str) -> BadGolden:
        """Build from what is wrong with it; never from a value in it."""
        return cls(f"golden: {what}")

    @classmethod
    def too_few(cls, n: int, fewest: int, threshold: float) -> BadGolden:
        """Build from how many distinct rows there are, and how many the threshold needs at least."""
        rows = "1 row is" if n == 1 else f"{n:,} rows are"
        return cls.because(
            f"{rows} too few for a threshold of {threshold:.0%}: it could not be passed even if all agreed; "
            f"give {fewest:,} rows or more"
        )


class PlanFixed(LotwiseError, ValueError):
    """Another rule is asked of a lot than the one that was written down before its first verdict."""

    def __init__(self, message: str, lot: str, kept: dict[str, float], asked: dict[str, float]) -> None:
        super().__init__(message)
        self.lot, self.kept, self.asked = lot, kept, asked

    @classmethod
    def of(cls, lot: str, kept: dict[str, float], asked: dict[str, float]) -> PlanFixed:
        """Build from the lot, the rule that stands, and the one asked for."""
        other = [name for name in kept if kept[name] != asked[name]]
        different = ", ".join(f"{name}={kept[name]:g} (asked: {asked[name]:g})" for name in other)
        return cls(
            f"lot {lot} was planned with {different} before people looked at it, and a rule is not changed after that; "
            "leave accept= out to go on with it",
            lot,
            kept,
            asked,
        )


class UnknownLot(LotwiseError, LookupError):
    """The ledger has no such lot."""

    def __init__(self, message: str, lots: tuple[str, ...]) -> None:
        super().__init__(message)
        self.lots = lots

    @classmethod
    def of(cls, lots: Iterable[str], available: Iterable[str]) -> UnknownLot:
        """Build from the lots that are not there and those that are."""
        unknown, known = tuple(lots), list(available)
        near = nearest(unknown[0], known) if unknown else []
        hint = f"; did you mean {' or '.join(near)}?" if near else "; is it another ledger's? Say which with ledger="
        return cls(f"the ledger has no lot {', '.join(map(repr, unknown[:3]))}{hint}", unknown)


class LotOpen(LotwiseError, RuntimeError):
    """A lot cannot be sampled while its requests are not final."""

    def __init__(self, message: str, lots: tuple[str, ...]) -> None:
        super().__init__(message)
        self.lots = lots

    @classmethod
    def of(cls, lots: Iterable[str]) -> LotOpen:
        """Build from the lots that are open."""
        still = tuple(lots)
        return cls(
            f"{len(still)} lots are open ({', '.join(still[:3])}): not each of their requests is final, and what has "
            "come in so far is no random sample. Finish the run first",
            still,
        )


class NothingToInspect(LotwiseError, ValueError):
    """A lot has no valid answer that could be looked at."""

    def __init__(self, message: str, lots: tuple[str, ...]) -> None:
        super().__init__(message)
        self.lots = lots

    @classmethod
    def of(cls, lots: Iterable[str]) -> NothingToInspect:
        """Build from the empty lots."""
        empty = tuple(lots)
        return cls(f"there is no valid answer to look at in {', '.join(empty[:3]) or 'this run'}", empty)
