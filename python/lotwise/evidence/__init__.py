"""Evidence of a lot, worked out without any I/O: what is asked of it, which answers are looked at, what they prove.

`Acceptance` holds the rule, `draw_samples` draws by it, `lot_table` says what the verdicts prove.
"""

from lotwise.evidence.acceptance import (
    Acceptance,
    Reading,
    Scheme,
    curve_in_words,
    family_of,
    groups_digest,
    lot_in,
    seed_of,
)
from lotwise.evidence.sampling import SAMPLE, draw_sample, draw_samples
from lotwise.evidence.verdicts import (
    CHANGED,
    DECISIONS,
    EMPTY,
    INSPECTIONS,
    LOT_OPEN,
    LOTS,
    NOT_LOOKED,
    PARTLY,
    PLANNED,
    SAMPLED,
    STANDING,
    VERDICTS,
    digests,
    lot_table,
    row_columns,
    settled,
)

__all__ = [
    "CHANGED",
    "DECISIONS",
    "EMPTY",
    "INSPECTIONS",
    "LOTS",
    "LOT_OPEN",
    "NOT_LOOKED",
    "PARTLY",
    "PLANNED",
    "SAMPLE",
    "SAMPLED",
    "STANDING",
    "VERDICTS",
    "Acceptance",
    "Reading",
    "Scheme",
    "curve_in_words",
    "digests",
    "draw_sample",
    "draw_samples",
    "family_of",
    "groups_digest",
    "lot_in",
    "lot_table",
    "row_columns",
    "seed_of",
    "settled",
]
