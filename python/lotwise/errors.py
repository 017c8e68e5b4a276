"""Every error that lotwise raises, in branches by who must act.

One root, `LotwiseError`. An error is built from facts by a named constructor, keeps them as attributes, and ends
in a hint. No message carries row content or a credential (promise 10).
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class LotwiseError(Exception):
    """The root of all errors raised by lotwise."""


def nearest(name: str, available: Iterable[str], n: int = 3) -> list[str]:
    """Name the `n` entries of `available` closest in spelling to `name`, best first."""
    return difflib.get_close_matches(name, list(available), n=n, cutoff=0.5)


# --- The provider, or the way to it: the engine acts on these, a user seldom sees them ----------------------------


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
