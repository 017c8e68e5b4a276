"""The statistics of lots: pure functions, exact for finite lots."""
