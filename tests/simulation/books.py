"""Both sides of a story at its end: what the ledger says, and what the provider knows of itself.

The provider's side is the truth: what arrived, what it came to, what was charged, which lines were handed out whole.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

import polars as pl

from lotwise.canary import Canary
from lotwise.golden import golden_keys
from lotwise.key import keys, spec_digest
from simulation.provider import Batch, Row
from simulation.story import Caller, Story


@dataclass(kw_only=True)
class Sent:
    """One attempt as the provider knows it."""

    row: Row
    batch: Batch | None
    process: str | None
    paid: bool = True

    @property
    def outcome(self) -> str:
        return self.row.code if self.batch is None else self.batch.outcome(self.row)

    @property
    def charged_nano(self) -> int:
        return self.row.usd_nano if self.batch is None else self.batch.charged_nano(self.row)

    @property
    def billed(self) -> bool:
        return (
            self.batch.billed(self.row)
            if self.batch is not None
            else self.paid
            and self.outcome != "not_sent"
            and (self.outcome in ("ok", "invalid", "truncated", "refused", "needs_continuation", "answer_lost"))
        )

    @property
    def whole_downloads(self) -> int:
        """How often its line was handed out whole."""
        return sum(self.row.key in one.intact for one in self.batch.downloads) if self.batch is not None else 0


@dataclass(frozen=True, kw_only=True)
class Asking:
    """A golden row as it was asked once: in round 0 before the rest, then as it rode in later shards."""

    text: str
    round: int


class Books:
    """Both sides of a story, side by side."""

    def __init__(self, story: Story) -> None:
        self.story = story
        digest = spec_digest(story.spec)
        ours = f"(SELECT id FROM shard WHERE spec = '{digest}')"
        self.shards = {row["id"]: row for row in self.rows(f"SELECT * FROM shard WHERE spec = '{digest}'")}
        self.requests = {row["key"]: row for row in self.rows(f"SELECT * FROM request WHERE spec = '{digest}'")}
        self.requests |= {
            row["key"]: row
            for row in self.rows(
                f"SELECT * FROM request WHERE key IN (SELECT key FROM golden_ask WHERE spec = '{digest}')"
            )
        }
        self.gates = self.rows(f"SELECT * FROM gate WHERE spec = '{digest}' ORDER BY decided_at, rowid")
        jobs = f"(SELECT job FROM run WHERE spec = '{digest}')"
        self.notices = [row["text"] for row in self.rows(f"SELECT text FROM notice WHERE job IN {jobs}")]
        self.attempts = self.rows(f"SELECT * FROM attempt WHERE shard IN {ours} ORDER BY key, n")
        self.results = {
            (row["shard"], row["key"]): row
            for row in self.rows(f"SELECT shard, key, cost_usd, seq FROM result WHERE shard IN {ours}")
        }
        valid = self.rows(f"SELECT shard, key, value FROM validation WHERE ok AND shard IN {ours}")
        earliest = sorted(valid, key=lambda row: int(self.results[row["shard"], row["key"]]["seq"]), reverse=True)
        self.values = {row["key"]: row["value"] for row in earliest}
        self.orphans = {row["shard"]: row for row in self.rows(f"SELECT * FROM orphan WHERE shard IN {ours}")}
        self.contents = self._contents(digest)
        self.golden = self._golden(digest)
        self.contents.update({key: asking.text for key, asking in self.golden.items()})

    def rows(self, sql: str) -> list[dict[str, Any]]:
        cursor = self.story.database.execute(sql)
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def _contents(self, digest: str) -> dict[str, str]:
        texts = sorted({text for caller in self.story.callers for text in caller.texts if text is not None})
        return dict(zip(keys(digest, pl.Series(texts, dtype=pl.String)), texts, strict=True))

    def _golden(self, digest: str) -> dict[str, Asking]:
        """Name every asking of a golden row, as far as the ledger has gone round in them."""
        precautions = [caller.precaution for caller in self.story.callers if caller.precaution is not None]
        texts = sorted({text for one in precautions if one.golden is not None for text in one.golden.frame["text"]})
        last = self.rows(f"SELECT coalesce(max(round), -1) AS n FROM golden_ask WHERE spec = '{digest}'")[0]["n"]
        found = {}
        for round_ in range(last + 1):
            asked = golden_keys(self.story.spec, round_, pl.Series(texts, dtype=pl.String))
            found.update({key: Asking(text=text, round=round_) for key, text in zip(asked, texts, strict=True)})
        return found

    def was_away(self, shard: str) -> bool:
        """Say whether the process that had a shard crashed or fell silent for longer than its lease."""
        owners = self.story.takers.get(shard, set())
        processes = [process for process in self.story.processes if process.name in owners]
        return any(process.crashed_at is not None or process.silences for process in processes)

    def decisions(self, canary: Canary) -> Sequence[dict[str, Any]]:
        """Return how a gate was decided, oldest first."""
        return [
            row
            for row in self.gates
            if row["set_digest"] == canary.subject and abs(row["threshold"] - canary.threshold) < 1e-9
        ]

    def first_sent(self, caller: Caller, canary: Canary) -> set[str]:
        """Return the keys of a canary: its golden rows' first askings, and the first requests of the frame."""
        texts = set() if canary.golden is None else set(canary.golden.rows["content"])
        golden = {key for key, one in self.golden.items() if one.round == 0 and one.text in texts}
        return golden | set(sorted(caller.digest_keys)[: canary.n_frame])

    def may_be_sent(self, caller: Caller) -> list[str]:
        """Return the keys that a caller may send: all that he wants, or the canary's while its gate is undecided."""
        canary = self.story.canaries.get(f"{caller.name}{caller.lives}")
        if canary is None or self.decisions(canary):
            return caller.digest_keys
        return sorted(self.first_sent(caller, canary))

    @cached_property
    def sent(self) -> dict[tuple[str, str], list[Sent]]:
        """All that arrived at the provider, by shard and key."""
        found: dict[tuple[str, str], list[Sent]] = defaultdict(list)
        for batch in self.story.provider.batches.values():
            for row in batch.rows.values():
                found[(str(row.custom_id[:16]), row.key)].append(Sent(row=row, batch=batch, process=None))
        for served in self.story.provider.served:
            one = Sent(row=served.row, batch=None, process=served.process, paid=self.story.paid)
            found[(served.shard, served.row.key)].append(one)
        return found

    def too_late(self, batch: Batch) -> bool:
        """Say whether a batch arrived longer after `creating` than a create call may take: its process was stopped
        in between, and the ledger was entitled to take the shard for never sent."""
        shard = self.shards[next(iter(batch.rows.values())).custom_id[:16]]
        began: datetime | None = shard["creating_at"]
        most = timedelta(seconds=self.story.callers[0].options.create_timeout_s)
        return began is not None and batch.arrived_at > began + most
