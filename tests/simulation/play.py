"""Running a story: each caller lives several lives, then comes a quiet time in which what is left must come to its end.

`checks` then compares the ledger with the provider.
"""

from __future__ import annotations

from lotwise import engine
from lotwise.errors import AccountMismatch, BatchNotFound, Unreachable
from simulation.product import job_of, seeded
from simulation.story import ACCOUNTS, OTHER_ACCOUNT, Caller, Story
from simulation.world import Process

KEY_TURNS = 40
"""How often the quiet time changes the key, at most."""

LIVES = 3
"""Lives of one caller before the quiet time."""


def play(story: Story) -> None:
    """Run a story to its end. Raises what the product raises."""
    world = story.world
    with seeded(story):
        world.on_end = lambda process: _ended(story, process)
        for caller in story.callers:
            _live(story, caller, delay_s=world.rng.choice((0.0, 0.0, 30.0)))
        world.run()
        world.quiet = True
        world.say("world", "--- from here on nothing goes wrong ---")
        for caller in story.callers:
            _live(story, caller, delay_s=world.rng.choice((0.0, 10.0)))
        world.run()
        _with_each_key(story)
        spent, asked = bill_nano(story), n_asked(story)
        world.say("world", "--- the same calls once more ---")
        for caller in story.callers:
            if caller.said == "done" or _is_held_back(caller):
                _live(story, caller, delay_s=0.0, again=True)
        world.run()
        if bill_nano(story) != spent:
            raise AssertionError("a repeated call of ended work was charged")
        if n_asked(story) != asked:
            raise AssertionError("a repeated call of ended work was sent")


def _with_each_key(story: Story) -> None:
    """Bring to its end what was sent under two accounts: each key in turn."""
    world = story.world
    for turn in range(KEY_TURNS):
        waiting = [caller for caller in story.callers if caller.said == OTHER_ACCOUNT]
        if not waiting:
            return
        for caller in waiting:
            _live(story, caller, delay_s=1_800.0, account=ACCOUNTS[(turn + 1) % 2])
        world.run()


def _is_held_back(caller: Caller) -> bool:
    """Say whether a caller was stopped by his canary and will not go on past it."""
    never = caller.precaution is not None and caller.precaution.overrides_from is None
    return never and (caller.said or "").startswith("canary:")


def n_asked(story: Story) -> int:
    """Return how many requests arrived at the provider."""
    return sum(len(batch.rows) for batch in story.provider.batches.values()) + len(story.provider.served)


def bill_nano(story: Story) -> int:
    """Return all that the provider charged, in 1e-9 dollars."""
    batches = sum(batch.charged_nano(row) for batch in story.provider.batches.values() for row in batch.rows.values())
    return batches + sum(served.row.usd_nano for served in story.provider.served)


def _live(story: Story, caller: Caller, *, delay_s: float, again: bool = False, account: str = ACCOUNTS[0]) -> None:
    world = story.world
    caller.lives += 1
    caller.said = None
    name = f"{caller.name}{caller.lives}"
    if not world.quiet and story.strange and world.rng.random() < story.strange:
        account = ACCOUNTS[1]

    def body(process: Process) -> None:
        job = job_of(story, caller, process, again=again, account=account)
        one_pass = not world.quiet and world.rng.random() < 0.1
        world.say(
            name,
            f"begins run {job.run_id}"
            + (" (one pass)" if one_pass else "")
            + (f" under {account}" if account != ACCOUNTS[0] else ""),
        )
        try:
            engine.drive(job, wait=not one_pass)
        except AccountMismatch as mismatch:
            if mismatch.sent_under == mismatch.here or not story.strange:
                raise
            caller.said = OTHER_ACCOUNT
        else:
            caller.said = job.halted or ("passed" if one_pass else "done")
        world.say(name, f"ends: {caller.said}")

    story.processes.append(world.start(name, body, delay_s))
    if not world.quiet and story.cancels and world.rng.random() < story.cancels:
        _cancel(story, caller, account, delay_s + world.rng.choice((0.5, 60.0, 2_000.0)))


def _cancel(story: Story, caller: Caller, account: str, delay_s: float) -> None:
    """Let somebody cancel a caller's run from another process, as `lotwise cancel` does."""
    world = story.world
    name = f"U{len(story.processes)}"

    def body(process: Process) -> None:
        if caller.run_id is None:
            return
        job = job_of(story, caller, process, account=account, canceling=True)
        world.say(name, f"cancels run {job.run_id}")
        try:
            engine.cancel(job)
        except (Unreachable, BatchNotFound) as fault:
            world.say(name, f"is told: {type(fault).__name__}")

    story.processes.append(world.start(name, body, delay_s))


def _ended(story: Story, process: Process) -> None:
    """Let a caller live again after a crash, or after a halt that he may want to overcome."""
    world = story.world
    if process.crashed_at is None:
        process.known_gone = True
    if world.quiet:
        return
    caller = next((one for one in story.callers if one.name == process.name[0]), None)
    if caller is not None and caller.said != "done" and caller.lives < LIVES:
        _live(story, caller, delay_s=world.rng.choice((0.0, 5.0, 200.0, 4_000.0)))
