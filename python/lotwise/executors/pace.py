"""How many calls a server takes at once, found by trying, and how many a minute it may be asked, as the user says.

Nothing here waits or reads a clock: the moment is an argument, so that minutes can be tested in no time. A server is
asked more at once for as long as that brings more answers a second, and less as soon as it says that it is too much.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lotwise.errors import UnknownParameter

START = 8
"""Calls in flight before anything is known of a server."""

CUT = 0.95
"""What is left of the limit after a refusal: a server refuses what is above its own limit, which is just below."""

DEEPEST_CUT = 0.5
"""What one burst of refusals leaves at least: they all speak of the same moment."""

SHARE = 0.25
"""How much of a doubling of calls must come back as answers a second. Twice as many calls that bring less than 1.25
times the answers only wait in the server's own queue."""

PROBE = 1.25
"""By how much a limit that was found is exceeded, and in turn fallen short of, to see whether it still holds."""

PROBE_SHARE = 0.4
"""How much of a probe must come back, or be lost, to count: more than chance makes of a round of `PROBE_ANSWERS`."""

PROBE_ANSWERS = 64

PATIENCE_S, PATIENCE_ROUNDS = 0.5, 3
"""How long, at least, more calls must bring no more answers before that is believed."""

IN_VAIN = 3
"""Doublings that brought nothing after which only small steps are tried."""

HOLD_ROUNDS = 10
"""Rounds (of as many answers as calls are in flight) between two probes."""

CEILING_ANSWERS = 32
"""Answers between two tries of one call more than a server took: of its calls so few are refused."""

QUIET = 20.0
"""For how many times the wait that a server asked for no further call is tried: what trying costs stays near 5 %."""


class Limit:
    """How many calls may be in flight now: between 1 and `cap`, and near what the server takes.

    At first it doubles from round to round while the rate of answers follows. Where it does not follow, the limit is
    the one before, and now and then more and a little less are tried. Where the server refuses (429, 503,
    529) or is not reached, it takes no more than was in flight when the first such call began: from a little below that
    it goes on by one a round, as TCP does.

    Parameters
    ----------
    cap
        What the limit never exceeds.
    start
        The limit before anything is known.
    """

    def __init__(self, cap: int, *, start: int = START) -> None:
        if cap < 1:
            raise ValueError("cap must be at least 1")
        self.cap = cap
        self.now = min(start, cap)
        self.epoch = 0
        """How many bursts of refusals there were; a call remembers the one in which it began."""
        self._floor = 1
        self._ceiling: int | None = None
        self._known: tuple[int, float] | None = None
        self._step = 2.0
        self._hold = 0
        self._upwards = False
        self._n_in_vain = 0
        self._quiet_until = 0.0
        self._n = self._n_full = self._n_before = 0
        self._since: float | None = None

    def answered(self, moment: float, *, full: bool) -> None:
        """Take notice of an answer.

        Parameters
        ----------
        moment
            Seconds of a clock that never goes back.
        full
            Whether as many calls were in flight as might be: other rounds tell nothing of the limit.
        """
        if self._n_before:
            self._n_before -= 1
            self._since = moment
            return
        if self._since is None:
            self._since = moment
            return
        self._n += 1
        self._n_full += full
        # Whole rounds: calls of one length end together, and part of a round would show a rate that is not there.
        round_of = -(-self._least_answers() // self.now) * self.now
        if self._n % round_of:
            return
        elapsed, was_full = moment - self._since, self._n_full >= 0.9 * self._n
        rate = self._n / max(elapsed, 1e-6)
        # A moment in which this machine was busy proves nothing: what did not help is looked at for longer.
        soon = elapsed < PATIENCE_S or self._n < PATIENCE_ROUNDS * round_of
        if was_full and soon and self._rising and not self._followed(rate):
            return
        self._new_round(moment)
        if was_full:
            self._judge(rate, moment)

    def overloaded(self, moment: float, *, began_in: int, in_flight: int, wait_s: float | None = None) -> None:
        """Take notice of a refusal, or of a call that did not get through.

        Parameters
        ----------
        began_in
            The epoch in which the call began.
        in_flight
            The other calls that were in flight when it began.
        wait_s
            How long the server asked to wait.
        """
        if began_in == self.epoch:
            self.epoch += 1
            self._floor = max(1, int(self.now * DEEPEST_CUT))
            self.now = int(self.now * CUT)
        self.now = max(self._floor, min(self.now, in_flight), 1)
        self._ceiling, self._known, self._step = self.now, None, PROBE
        self._quiet_until = max(self._quiet_until, moment + QUIET * (wait_s or 0.0))
        self._new_round(None)

    @property
    def _rising(self) -> bool:
        return self._ceiling is None and self._known is not None and self.now > self._known[0]

    def _followed(self, rate: float) -> bool:
        """Whether the rate of answers went along with the change of the limit that is being tried."""
        assert self._known is not None
        limit, rate_then = self._known
        share = SHARE if self._step > PROBE and self._rising else PROBE_SHARE
        return rate >= rate_then * (1 + share * (self.now / limit - 1))

    def _least_answers(self) -> int:
        if self._ceiling is not None:
            return CEILING_ANSWERS
        probing = self._known is not None and (self.now < self._known[0] or (self._step == PROBE and self._rising))
        return PROBE_ANSWERS if probing else START

    def _new_round(self, moment: float | None) -> None:
        self._n = self._n_full = 0
        self._since = moment

    def _judge(self, rate: float, moment: float) -> None:
        if moment < self._quiet_until:
            return
        if self._ceiling is not None:
            self._raise_to(self.now + max(1, self.now // 50))
            if self.now > PROBE * self._ceiling:
                self._ceiling = None  # it takes more than it did
            return
        if self._known is None:
            self._known = (self.now, rate)
            self._raise_to(int(self.now * self._step))
            return
        limit, rate_then = self._known
        if self.now == limit:
            self._known = (limit, 0.8 * rate_then + 0.2 * rate)
            self._hold -= 1
            if self._hold <= 0:
                self._upwards = not self._upwards
                step = self._step if self._upwards else 1 / PROBE
                self.now = max(min(START, limit), min(self.cap, round(limit * step)))
                self._hold = HOLD_ROUNDS
                if self.now < limit:
                    self._n_before = limit  # calls of before, which come back as fast as they did
        elif self._followed(rate):
            self._known = (self.now, rate)
            if self.now > limit:
                self._raise_to(int(self.now * self._step))
        else:
            self._n_in_vain += self.now > limit
            self._step = PROBE if self._n_in_vain >= IN_VAIN else self._step
            self.now, self._hold = limit, HOLD_ROUNDS

    def _raise_to(self, limit: int) -> None:
        self.now = min(max(limit, self.now), self.cap)


class Bucket:
    """A rate that is kept on average: what is taken flows back at so much a minute, and at most a second's worth waits.

    One piece may take more than there is; the next then waits until all of it has flowed back.
    """

    def __init__(self, per_minute: float) -> None:
        if not per_minute > 0:
            raise ValueError("a rate must be positive")
        self._per_s = per_minute / 60.0
        self._most = max(1.0, self._per_s)
        self._level, self._seen = self._most, None  # type: float, float | None

    def wait_s(self, moment: float) -> float:
        """Return the seconds until something may be taken; 0 for now."""
        if self._seen is not None:
            self._level = min(self._most, self._level + (moment - self._seen) * self._per_s)
        self._seen = moment
        return 0.0 if self._level > 0 else (1e-3 - self._level) / self._per_s

    def take(self, amount: float) -> None:
        """Take an amount; a negative one gives back what was taken too much."""
        self._level -= amount


@dataclass(frozen=True, kw_only=True)
class Allowance:
    """What a user lets a server be asked.

    Attributes
    ----------
    max_concurrency
        Calls in flight at once, at most.
    rpm, tpm
        Requests and tokens (read and written) a minute; None for no limit but the server's own.
    """

    max_concurrency: int
    rpm: float | None = None
    tpm: float | None = None


class Pacing(Protocol):
    """The options of an executor that say how much may be asked."""

    @property
    def max_concurrency(self) -> int: ...
    @property
    def rpm(self) -> float | None: ...
    @property
    def tpm(self) -> float | None: ...


def refuse_bad_pace(provider: str, given: Pacing) -> None:
    """Refuse options that are no numbers above zero.

    Raises
    ------
    UnknownParameter
        The first of them.
    """
    if type(given.max_concurrency) is not int or given.max_concurrency < 1:
        raise UnknownParameter.bad_value(
            provider, "max_concurrency", given.max_concurrency, "a whole number, at least 1"
        )
    for name, value in (("rpm", given.rpm), ("tpm", given.tpm)):
        if value is not None and (type(value) not in (int, float) or not value > 0):
            raise UnknownParameter.bad_value(provider, name, value, "a number above 0, or None")


class Pace:
    """All that decides when the next call goes out to one server; kept over shards, so that a limit is found once."""

    def __init__(self, allowance: Allowance) -> None:
        self.limit = Limit(allowance.max_concurrency)
        self._requests = None if allowance.rpm is None else Bucket(allowance.rpm)
        self._tokens = None if allowance.tpm is None else Bucket(allowance.tpm)
        self._held_until = 0.0
        self._refused_in_a_row = 0

    @property
    def counts_tokens(self) -> bool:
        """Whether tokens a minute are limited."""
        return self._tokens is not None

    def wait_s(self, moment: float) -> float:
        """Return the seconds until the next call may go out, if there is room for one; 0 for now."""
        waits = [self._held_until - moment, *(b.wait_s(moment) for b in (self._requests, self._tokens) if b)]
        return max(0.0, *waits)

    def began(self, tokens: float) -> None:
        """Count a call that goes out, with the tokens that it may need."""
        if self._requests:
            self._requests.take(1)
        if self._tokens:
            self._tokens.take(tokens)

    def used(self, tokens: float, guessed: float) -> None:
        """Put right what was counted for a call, when its answer says what it used."""
        if self._tokens:
            self._tokens.take(tokens - guessed)

    def answered(self, moment: float, *, full: bool) -> None:
        """Take notice of an answer."""
        self._refused_in_a_row = 0
        self.limit.answered(moment, full=full)

    def refused(self, moment: float, *, began_in: int, in_flight: int, wait_s: float | None) -> None:
        """Take notice of a refusal: fewer calls at once, and none before the server wants them.

        A server that names no time and lets nothing through is left alone for twice as long each time.
        """
        if began_in == self.limit.epoch:
            self._refused_in_a_row += 1
        hold_s = wait_s or 0.0
        if wait_s is None and self._refused_in_a_row > 1:
            hold_s = FIRST_HOLD_S * 2.0 ** min(self._refused_in_a_row - 2, 10)
        self._held_until = max(self._held_until, moment + min(hold_s, MAX_HOLD_S))
        self.limit.overloaded(moment, began_in=began_in, in_flight=in_flight, wait_s=wait_s)


FIRST_HOLD_S = 0.25

MAX_HOLD_S = 60.0
"""The longest time that a server's word holds back the calls that follow."""
