"""Validation: an answer's text becomes a value of the schema's shape, or faults that say where and what, never which.

Answers are judged in lists. `quick` takes those that are what was asked for to the letter; every other one is decoded,
checked for what a JSON reader hides (`parse`), judged by the user's own schema (`rules`), and read into typed columns
to see that nothing is lost on the way. A fault is a path and a kind; what the answer says stays in the stored answer.
"""

from lotwise.validate.checks import Check
from lotwise.validate.faults import MOST_FAULTS
from lotwise.validate.parse import MOST_DEPTH
from lotwise.validate.validator import CHUNK_ROWS, JUDGED, VALIDATOR_VERSION, Validator

__all__ = ["CHUNK_ROWS", "JUDGED", "MOST_DEPTH", "MOST_FAULTS", "VALIDATOR_VERSION", "Check", "Validator"]
