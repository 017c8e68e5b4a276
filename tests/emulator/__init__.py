"""A provider of batch and synchronous LLM calls, emulated in a process of its own.

It speaks the HTTP that the real OpenAI and Anthropic SDKs send, keeps its state and its own bill on disk, and
lets provider time pass as fast as a test likes.  Everything that a provider is known to do wrong can be
switched on.  Tests use the handle `Emulator`; `python -m emulator --state DIR --port 0` runs it by hand.
"""

from emulator.faults import BatchFault, Faults, HttpFault, RowFault
from emulator.handle import Charge, Emulator

__all__ = ["BatchFault", "Charge", "Emulator", "Faults", "HttpFault", "RowFault"]
