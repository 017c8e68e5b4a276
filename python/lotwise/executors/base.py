"""The executor protocol: the only place where lotwise speaks to a model.

An executor has one of two shapes. A *batch* takes a shard, names it, and is asked later; a *stream* answers while it is
read. Both yield the provider's raw lines, verbatim, and both say what a line means (`read`), so that a stored line can
be judged again without asking anyone. An executor decides nothing: states move in the reconciler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

import polars as pl

from lotwise.request import Limits, Listed, Observation, Shard, Spec


class Executor(Protocol):
    """What batch and stream executors have in common."""

    provider: str
    """The part of ``model=`` before the colon."""
    hosted: bool
    """True when row content leaves this machine; ``data="local"`` refuses such an executor."""
    paid: bool
    """True when an attempt may cost money."""
    limits: Limits

    def check(self, spec: Spec) -> None:
        """Refuse what can be known to fail, before anything is sent: the model, a parameter, the schema's subset,
        missing credentials. No network unless the provider offers a free look-up."""

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        """Return the schema as this provider can take it, and the keywords that are left to validation. Pure.

        What it returns is the exact text that is sent and that goes into the key.
        """

    def model_digest(self) -> str | None:
        """Return a digest of a local model's configuration and weights; None for a hosted model."""

    def account(self) -> str:
        """Return a fingerprint of the account that requests go to; never the credential itself."""

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        """Return an upper bound of each request's encoded bytes (Int64), from `plan.json_bytes` of its content."""

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Say what raw lines mean: one row of `OUTCOMES` a line, in order. Pure; an unreadable line is a row too."""


@runtime_checkable
class BatchExecutor(Executor, Protocol):
    """An executor that takes a shard now and is asked for its results later."""

    def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> str:
        """Encode (and upload, where the provider takes files) the `REQUESTS` frame. Charges nothing, may be repeated.

        Returns a token that `create` understands. Raises `CreateRejected` when the provider certainly will not take
        it, `Unreachable` when it did not get through.
        """

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        """Make the one call that may charge money, once, without any retry, and return the provider's batch id.

        Raises
        ------
        CreateRejected
            The provider certainly took nothing.
        CreateUncertain
            The answer was lost: it may have been taken.
        """

    def poll(self, batch_id: str) -> Observation:
        """Look at one batch. Raises `BatchNotFound` when this account has no such batch, `Unreachable` when the
        provider did not answer."""

    def fetch(self, batch_id: str) -> Iterator[list[bytes]]:
        """Yield the raw result lines of an ended batch in lists, output and errors alike, in bounded memory."""

    def list(self, *, since: datetime) -> Iterator[Listed]:
        """Yield this account's batches created at or after `since` by the provider's clock, newest first."""

    def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop a batch. What it finished stays readable and billed."""

    def delete(self, batch_id: str) -> None:
        """Delete the provider's copies of a collected batch's content, where it can be done."""


@runtime_checkable
class StreamExecutor(Executor, Protocol):
    """An executor that answers while it is read: a local engine or a synchronous endpoint."""

    window: int
    """Requests that may be begun beyond those whose lines the caller has come back from; a kill leaves at most so many
    unrecorded."""

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        """Answer the `REQUESTS` frame and yield raw lines as they finish, in any order.

        Each line carries its request's custom id. Closing the iterator stops the work. An empty list says that nothing
        finished for a while, so that what did can be written down meanwhile.

        Where an attempt may cost money, requests are begun in the frame's order, and by asking for the next list the
        caller says that the lines before are written down: what a dead process may have asked is then known.

        Raises
        ------
        EngineFailed
            A local engine cannot go on; what has no line was not answered.
        """


@runtime_checkable
class KeepsOptions(Protocol):
    """An executor that a later process cannot make again from the model's name alone."""

    def kept_options(self) -> Mapping[str, Any]:
        """Return what of its options is written down with a run, so that the run can be taken up without them.

        Every value is one that JSON has, and none is a secret. What came from the environment is not among them.
        """
