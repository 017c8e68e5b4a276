"""The provider or a local engine, or the way to it: the engine acts on these, a user seldom sees them."""

from __future__ import annotations

from lotwise.errors.base import LotwiseError


class ExecutorError(LotwiseError):
    """Something went wrong between an executor and its provider."""


class CreateRejected(ExecutorError):
    """The provider certainly took nothing of a shard.

    `code` is the provider's own; `wait_s` is how long to hold when only capacity is missing, else None; `blocked` is
    true when the account itself cannot send (no credit, no permission), `input_fault` when the shard itself is at
    fault.
    """

    def __init__(
        self, code: str, *, wait_s: float | None = None, blocked: bool = False, input_fault: bool = False
    ) -> None:
        super().__init__(f"the provider took nothing of this shard: {code}")
        self.code, self.wait_s, self.blocked, self.input_fault = code, wait_s, blocked, input_fault


class CreateUncertain(ExecutorError):
    """The answer to a create call was lost; the provider may have taken the shard."""

    def __init__(self, code: str) -> None:
        super().__init__(f"no certain answer to the create call: {code}")
        self.code = code


class BatchNotFound(ExecutorError):
    """This account has no batch of that id."""

    def __init__(self, batch_id: str) -> None:
        super().__init__(f"the provider knows no batch {batch_id!r} under this account")
        self.batch_id = batch_id


class Unreachable(ExecutorError):
    """The provider did not answer, or answered that it could not just now; asking again is safe."""

    def __init__(self, code: str, *, wait_s: float | None = None) -> None:
        super().__init__(f"the provider did not answer: {code}")
        self.code, self.wait_s = code, wait_s


class EngineFailed(ExecutorError, RuntimeError):
    """A local engine cannot be started, or ends again and again without answering. Nothing that it answered is lost.

    `why` says it in a few words, the engine's own among them where it said any before it was given a row.
    """

    def __init__(self, message: str, model: str, why: str) -> None:
        super().__init__(message)
        self.model, self.why = model, why

    @classmethod
    def to_start(cls, model: str, why: str) -> EngineFailed:
        """Report an engine that never came up."""
        told = f"the engine for {model} did not start: {why}"
        return cls(told, model, told)

    @classmethod
    def after_deaths(cls, model: str, deaths: int, why: str) -> EngineFailed:
        """Report an engine that was started again in vain."""
        told = f"the engine for {model} ended {deaths} times in one shard, the last time with {why}"
        return cls(told, model, told)


class ResultsGone(ExecutorError, LookupError):
    """The batch is known, its results are not there (any more).

    One 404 is no proof: a list or a file may lag behind. The engine asks again before it believes.
    """

    def __init__(self, message: str, batch_id: str, reason: str) -> None:
        super().__init__(message)
        self.batch_id, self.reason = batch_id, reason

    @classmethod
    def of(cls, batch_id: str, reason: str) -> ResultsGone:
        return cls(f"the results of batch {batch_id!r} cannot be read: {reason}", batch_id, reason)
