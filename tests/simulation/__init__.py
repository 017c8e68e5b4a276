"""Deterministic simulation: engine, ledger, clock and provider in one process, every choice made by one seed.

A seed decides each delay, fault, crash, pause and interleaving. What the engine did is then compared with what the
provider knows of itself: its bill, the lines it handed out, and when. A failing seed replays exactly.
"""
