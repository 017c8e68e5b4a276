"""The executors of one simulated process: they carry its calls to the provider, with every fault on the way.

Each call has a boundary before it and one after it took effect, so that a process can end with the provider knowing
what the ledger does not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

import polars as pl

from lotwise.errors import BatchNotFound, CreateRejected, CreateUncertain, ResultsGone, Unreachable
from lotwise.executors.openai_dialect import read_lines
from lotwise.executors.variant import apply
from lotwise.request import Limits, Listed, Observation, Phase, Shard, Spec
from simulation.provider import ENVELOPE_BYTES, Batch, Download, Provider, Request
from simulation.world import World

_SENT = ("key", "custom_id", "content", "variant")


def _request(key: str, custom_id: str, content: str, variant: str | None, body: str) -> Request:
    return Request(key=key, custom_id=custom_id, content=content, variant=variant, body=body)


def _body(spec: Spec, content: str, variant: str | None) -> str:
    """Write down all that a request says to the model."""
    return json.dumps([spec.system, spec.examples, spec.wire_schema, *apply(content, variant)])


class _Common:
    provider = "simulated"
    hosted = True

    def __init__(
        self,
        world: World,
        provider: Provider,
        process: str,
        limits: Limits,
        create_timeout_s: float,
        *,
        account: str,
        paid: bool,
    ) -> None:
        self.world, self.side, self.process, self.limits = world, provider, process, limits
        self.create_timeout_s = create_timeout_s
        self._account, self.paid = account, paid
        self.renew: Callable[[], object] | None = None
        """What keeps the lease of a shard meanwhile, in place of the product's thread; every `renew_s` seconds."""
        self.renew_s = 0.0

    def check(self, spec: Spec) -> None:
        """Refuse nothing."""

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        return schema_text, ()

    def model_digest(self) -> str | None:
        return None

    def account(self) -> str:
        return self._account

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        return content_bytes.cast(pl.Int64) + ENVELOPE_BYTES

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        return read_lines(lines)

    def _call(self, what: str, longest_s: float = 5.0) -> None:
        """Make a call: it takes a while, and may not get through."""
        self.world.step(f"before {what}")
        slow = self.world.chance("slow")
        left_s = self.world.rng.uniform(0.01, longest_s if slow else 0.5)
        while self.renew is not None and left_s > self.renew_s:
            self.world.sleep(self.renew_s)
            self.renew()
            left_s -= self.renew_s
        self.world.sleep(left_s)

    def _unreachable(self, what: str) -> None:
        if self.world.chance("unreachable"):
            self.world.say(self.process, f"{what}: the provider cannot be reached")
            raise Unreachable("timeout")


class SimBatch(_Common):
    """A batch API whose list carries the shard's id."""

    def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> str:
        self._call("an upload", self.create_timeout_s / 2)
        self._unreachable("upload")
        if self.world.chance("upload_rejected"):
            self.world.say(self.process, f"the upload of shard {shard.id} is rejected")
            raise CreateRejected("too_many_files", wait_s=60.0)
        return json.dumps([[*row, _body(spec, row[2], row[3])] for row in requests.select(*_SENT).rows()])

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        world, side = self.world, self.side
        requests = [_request(*row) for row in json.loads(prepared)]
        began = world.now
        if world.chance("foreign"):
            side.take_foreign(len(requests), self._account)
        self._call("the create call", self.create_timeout_s * 0.5)
        self._refuse(shard)
        if world.chance("create_unsent"):
            world.say(self.process, f"the create of shard {shard.id} is lost on its way")
            raise CreateUncertain("connection_lost")
        if world.chance("create_late"):
            left = max(self.create_timeout_s - (world.now - began).total_seconds(), 0.0)
            side.take(shard.id, requests, self.process, delay_s=world.rng.uniform(0, left), account=self._account)
            raise CreateUncertain("timeout")
        if world.chance("create_after_long"):
            world.stop(world.pauses_s[-1], "just before its create call arrives")
        batch = side.take(shard.id, requests, self.process, account=self._account)
        if world.chance("rejected_later"):
            batch.rejected, batch.rejected_wait = "token_limit_exceeded", world.rng.random() < 0.7
        world.step(f"after {batch.id} was taken")
        if world.chance("reply_lost"):
            world.say(self.process, f"the reply for shard {shard.id} is lost")
            raise CreateUncertain("timeout")
        world.sleep(world.rng.uniform(0.01, 0.5))
        return batch.id

    def _refuse(self, shard: Shard) -> None:
        for fault, refusal in (
            ("rejected", CreateRejected("invalid_batch", input_fault=True)),
            ("rejected_wait", CreateRejected("queue_full", wait_s=90.0)),
            ("no_credit", CreateRejected("insufficient_quota", blocked=True)),
        ):
            if self.world.chance(fault):
                self.world.say(self.process, f"the create of shard {shard.id} is rejected: {refusal.code}")
                raise refusal

    def _batch(self, batch_id: str) -> Batch:
        batch = self.side.batches.get(batch_id)
        hidden = batch is None or batch.account != self._account or batch.forgotten
        if batch is None or hidden or batch.arrived_at > self.world.now or self.world.chance("flap"):
            self.world.say(self.process, f"{batch_id}: 404")
            raise BatchNotFound(batch_id)
        return batch

    def poll(self, batch_id: str) -> Observation:
        self._call("a poll")
        self._unreachable("poll")
        batch = self._batch(batch_id)
        batch.polled += 1
        if self.world.chance("forget"):
            batch.forgotten = True
            self.world.say("provider", f"forgets {batch_id}")
            raise BatchNotFound(batch_id)
        if self.world.chance("unknown_state"):
            return Observation(phase=Phase.UNKNOWN, provider_state="pondering", done=len(batch.rows))
        if batch.rejected is not None:
            return Observation(
                phase=Phase.REJECTED, provider_state="failed", reason=batch.rejected, wait=batch.rejected_wait
            )
        if batch.ended(self.world.now):
            return Observation(phase=Phase.ENDED, provider_state="ended", done=len(batch.rows))
        return Observation(phase=Phase.RUNNING, provider_state="in_progress")

    def fetch(self, batch_id: str) -> Iterator[list[bytes]]:
        world = self.world
        self._call("a download")
        self._unreachable("download")
        batch = self._batch(batch_id)
        if batch.deleted or world.chance("results_flap"):
            world.say(self.process, f"{batch_id}: its results are not there")
            raise ResultsGone.of(batch_id, "file_not_found")
        lines, intact = _results(self.side, batch, len(batch.downloads), world.seed)
        world.say(self.process, f"downloads {batch_id}: {len(intact)} of {len(batch.rows)} lines are whole")
        while lines:
            size = world.rng.randint(1, max(len(lines), 1))
            yield lines[:size]
            lines = lines[size:]
            world.step("in a download")
            if lines and world.chance("download_broken"):
                world.say(self.process, f"the download of {batch_id} breaks off")
                raise Unreachable("connection_lost")
        batch.downloads.append(Download(at=world.now, intact=intact))

    def list(self, *, since: datetime) -> Iterator[Listed]:
        self._call("a list")
        self._unreachable("list")
        now, skew = self.world.now, timedelta(seconds=self.side.manner.skew_s)
        whole = [*self.side.foreign.values(), *self.side.batches.values()]
        shown = [b for b in whole if b.listed_at <= now and not b.forgotten and b.account == self._account]
        for batch in reversed(shown):
            created_at = (batch.arrived_at + skew).replace(microsecond=0)
            if created_at >= since:
                yield self._listed(batch, created_at, now)

    def _listed(self, batch: Batch, created_at: datetime, now: datetime) -> Listed:
        return Listed(
            batch_id=batch.id,
            created_at=created_at,
            shard_id=batch.shard,
            n_requests=len(batch.rows),
            ended=batch.ended(now),
        )

    def cancel(self, batch_id: str) -> None:
        self._call("a cancel")
        self._unreachable("cancel")
        batch = self._own(batch_id)
        batch.asked_to_cancel = True
        if not batch.ended(self.world.now):
            batch.canceled_at = self.world.now
        self.world.say(self.process, f"cancels {batch_id}")
        self.world.step("after a cancel")

    def delete(self, batch_id: str) -> None:
        self._call("a delete")
        self._unreachable("delete")
        self._own(batch_id).deleted = True

    def first_ids(self, batch_id: str, limit: int = 10) -> list[str]:
        self._call("a look at first results")
        self._unreachable("first results")
        batch = self.side.foreign.get(batch_id) or self._batch(batch_id)
        if batch.deleted:
            raise ResultsGone.of(batch_id, "archived")
        lines, _ = _results(self.side, batch, len(batch.downloads), self.world.seed)
        found = [custom_id for custom_id in read_lines(lines)["custom_id"] if custom_id is not None]
        return found[:limit]

    def _own(self, batch_id: str) -> Batch:
        """Return a batch of this account, somebody else's too: the key allows it all."""
        batch = self.side.batches.get(batch_id) or self.side.foreign[batch_id]
        if batch.account != self._account:
            raise BatchNotFound(batch_id)
        return batch


class SimBareBatch(SimBatch):
    """A batch API whose list carries nothing of ours: a batch is told by the custom ids of its results."""

    def _listed(self, batch: Batch, created_at: datetime, now: datetime) -> Listed:
        return Listed(batch_id=batch.id, created_at=created_at, n_requests=len(batch.rows), ended=batch.ended(now))


def _results(side: Provider, batch: Batch, n: int, seed: int) -> tuple[list[bytes], frozenset[str]]:
    """Return the lines of a batch's files as they are handed out the n-th time, and the keys whose line is whole."""
    rng = random.Random(f"{seed}/{batch.id}/download/{n}")
    lines: list[bytes] = []
    intact = set()
    for row in batch.rows.values():
        line = side.line_of(batch, row)
        flaw = None if n and row.flaw in ("torn_once", "unreadable_once") else row.flaw
        match flaw:
            case "missing":
                continue
            case "torn" | "torn_once":
                lines.append(line[: rng.randint(1, 30)])
                continue
            case "unreadable" | "unreadable_once":
                lines.append(json.dumps({"custom_id": row.custom_id}).encode())
                continue
        lines.append(line)
        intact.add(row.key)
        if rng.random() < side.world.mischief.chances.get("duplicate", 0.0):
            lines.append(line)
    if rng.random() < side.world.mischief.chances.get("unknown_id", 0.0):
        shard = batch.shard or "0" * 16
        lines.append(
            json.dumps({"custom_id": f"{shard}-{'0' * 40}", "response": None, "error": {"code": "x"}}).encode()
        )
        lines.append(json.dumps({"custom_id": "not-ours", "response": None, "error": {"code": "x"}}).encode())
    if rng.random() < side.world.mischief.chances.get("garbage", 0.0):
        lines.append(b"\xff\xfe not json")
    rng.shuffle(lines)
    # A second delivery that says something else; it comes last, since nobody can tell which of two is the true one.
    if intact and rng.random() < side.world.mischief.chances.get("duplicate", 0.0):
        key = rng.choice(sorted(intact))
        lines.append(side.line_of(batch, batch.rows[key]).replace(b"sim-1", b"sim-2"))
    return lines, frozenset(intact)


class SimStream(_Common):
    """A synchronous endpoint: it answers while it is read, and cannot be asked what it did."""

    window = 4

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        world, side = self.world, self.side
        held: list[bytes] = []
        enough = world.rng.randint(1, self.window)
        for key, custom_id, content, variant in requests.select(*_SENT).rows():
            self._call("a synchronous call", self.create_timeout_s * 0.9)
            if world.chance("unreachable"):
                world.say(self.process, "nobody answers")
                if held:
                    yield held
                raise Unreachable("not_connected")
            request = _request(key, custom_id, content, variant, _body(spec, content, variant))
            row = side.serve(shard.id, request, self.process, lost=world.chance("reply_lost"))
            world.say("provider", f"answers {key[:8]} of shard {shard.id}: {row.code}")
            held.append(row.line)
            world.step("after an answer")
            if len(held) >= enough:
                yield held
                held, enough = [], world.rng.randint(1, self.window)
        if held:
            yield held
