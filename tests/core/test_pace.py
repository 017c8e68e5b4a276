"""The number of calls in flight finds the server's own limit; rates and waits are kept. Time is simulated."""

from __future__ import annotations

import heapq
import random
from dataclasses import dataclass, field
from math import ceil
from statistics import mean, median

import pytest

from lotwise.errors import UnknownParameter
from lotwise.executors.pace import MAX_HOLD_S, Allowance, Bucket, Limit, Pace, refuse_bad_pace

HOUR_S = 3_600.0


@dataclass
class Simulated:
    """A server, and a client that keeps as many calls in flight as its pace allows."""

    pace: Pace
    latency_s: float = 0.5
    jitter: float = 0.0
    most: int | None = None
    """Calls in flight above which it refuses at once."""
    slots: int | None = None
    """Calls that it works on at once; the others wait in its queue."""
    retry_after_s: float | None = None
    tick_s: float = 0.0
    """How seldom the client looks: on a busy machine it reads many answers before it begins the next calls."""
    moment: float = 0.0
    seen: list[int] = field(default_factory=list)
    """Calls in flight after each answer."""
    limits: list[int] = field(default_factory=list)
    """The limit after each answer."""
    n_refused: int = 0
    began: list[float] = field(default_factory=list)

    def serve(self, n: int) -> Simulated:
        """Take `n` answers."""
        chance = random.Random(7)
        ends: list[tuple[float, float, int, int, bool]] = []
        free = [self.moment] * (self.slots or 0)
        count = busy = 0
        full = False
        goal = len(self.seen) + n
        while len(self.seen) < goal:
            late = bool(self.tick_s and ends and ends[0][0] <= self.moment)
            while not late and len(ends) < self.pace.limit.now and self.pace.wait_s(self.moment) == 0:
                count += 1
                beside, epoch = len(ends), self.pace.limit.epoch
                self.pace.began(100)
                self.began.append(self.moment)
                took_s = self.latency_s * (1 + self.jitter * chance.uniform(-1, 1))
                if self.most is not None and busy >= self.most:
                    end_s, refused = self.moment + 0.001, True
                elif self.slots is not None:
                    start = max(self.moment, free[0])
                    heapq.heapreplace(free, start + took_s)
                    end_s, refused = start + took_s, False
                else:
                    end_s, refused = self.moment + took_s, False
                busy += not refused
                read_s = ceil(end_s / self.tick_s) * self.tick_s if self.tick_s else end_s
                heapq.heappush(ends, (read_s, chance.random() if self.tick_s else count, epoch, beside, refused))
            if not ends:
                self.moment += self.pace.wait_s(self.moment) + 1e-6
                continue
            if not late:
                full = len(ends) >= self.pace.limit.now
            self.moment, _, epoch, beside, refused = heapq.heappop(ends)
            busy -= not refused
            if refused:
                self.n_refused += 1
                wait_s = self.retry_after_s
                self.pace.refused(self.moment, began_in=epoch, in_flight=beside, wait_s=wait_s)
            else:
                self.pace.answered(self.moment, full=full)
                self.seen.append(len(ends))
                self.limits.append(self.pace.limit.now)
        return self

    def settled(self) -> float:
        """Return how many were in flight over the later half."""
        return median(self.seen[len(self.seen) // 2 :])


def pace(cap: int, **rates: float) -> Pace:
    return Pace(Allowance(max_concurrency=cap, **rates))


@pytest.mark.parametrize("jitter", [0.0, 0.8])
def test_server_that_takes_everything_is_asked_as_much_as_is_allowed(jitter: float) -> None:
    served = Simulated(pace(256), jitter=jitter).serve(8_000)
    assert served.settled() >= 250


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.3, 0.8])
@pytest.mark.parametrize("cap", [64, 256])
def test_asking_for_less_now_and_then_costs_little(cap: int, jitter: float) -> None:
    served = Simulated(pace(cap), latency_s=0.05, jitter=jitter).serve(10_000)
    assert mean(served.limits[500:]) >= 0.96 * cap
    # The rest is the way up from the first eight.
    assert served.moment <= 1.08 * 10_000 * 0.05 / cap + 0.25


@pytest.mark.parametrize("jitter", [0.0, 0.8])
@pytest.mark.parametrize("most", [3, 64, 200])
def test_server_that_refuses_is_asked_just_below_its_limit(most: int, jitter: float) -> None:
    served = Simulated(pace(1_000), most=most, jitter=jitter).serve(8_000)
    assert 0.85 * most - 1 <= served.settled() <= most
    assert served.n_refused <= 0.06 * 8_000 if most == 3 else served.n_refused <= 0.02 * 8_000


@pytest.mark.parametrize("tick_s", [0.0, 0.05, 0.1, 0.4])
def test_limit_that_was_found_stays_though_many_answers_are_read_together(tick_s: float) -> None:
    served = Simulated(pace(1_000), most=64, jitter=0.2, tick_s=tick_s).serve(3_000)
    assert min(served.limits[600:]) >= 58
    assert served.n_refused < 0.05 * 3_000 + 64


@pytest.mark.parametrize("slots", [1, 8, 50])
def test_server_that_only_queues_is_not_asked_for_more_than_it_works_on(slots: int) -> None:
    served = Simulated(pace(1_000), slots=slots, jitter=0.5).serve(8_000)
    assert max(8, 0.6 * slots) - 1 <= served.settled() <= max(16, 4 * slots)


def test_limit_that_falls_is_followed_and_one_that_rises_is_found_again() -> None:
    served = Simulated(pace(1_000), most=64).serve(10_000)
    served.most = 10
    served.seen.clear()
    assert 8 <= served.serve(10_000).settled() <= 10
    served.most = 200
    served.seen.clear()
    assert 150 <= served.serve(30_000).settled() <= 200


def test_one_burst_of_refusals_cuts_at_most_by_half() -> None:
    limit = Limit(128, start=128)
    for left in range(127, -1, -1):
        limit.overloaded(1.0, began_in=0, in_flight=left)
    assert limit.now == 64
    limit.overloaded(2.0, began_in=limit.epoch, in_flight=0)
    assert limit.now == 32


def test_limit_is_never_below_one_nor_above_its_cap() -> None:
    limit = Limit(4)
    assert limit.now == 4
    for n in range(20):
        limit.overloaded(float(n), began_in=limit.epoch, in_flight=0)
    assert limit.now == 1


def test_waiting_that_the_server_asks_for_holds_all_calls_and_costs_little() -> None:
    served = Simulated(pace(1_000), most=64, retry_after_s=5.0).serve(8_000)
    assert 50 <= served.settled() <= 64
    # 8,000 answers of half a second, 64 at once, take 63 s at best.
    assert served.moment < 1.3 * 8_000 * 0.5 / 64


def test_retry_after_is_kept_to_the_end_but_not_for_hours() -> None:
    held = pace(8)
    held.refused(10.0, began_in=0, in_flight=3, wait_s=7.0)
    assert held.wait_s(10.0) == pytest.approx(7.0)
    assert held.wait_s(17.0) == 0
    held.refused(20.0, began_in=held.limit.epoch, in_flight=3, wait_s=HOUR_S)
    assert held.wait_s(20.0) == MAX_HOLD_S


def test_server_that_refuses_all_and_names_no_time_is_left_alone_for_longer_each_time() -> None:
    held = pace(8)
    waits = []
    for n in range(5):
        held.refused(100.0 * n, began_in=held.limit.epoch, in_flight=0, wait_s=None)
        waits.append(held.wait_s(100.0 * n))
    assert waits == [0.0, 0.25, 0.5, 1.0, 2.0]
    held.answered(600.0, full=True)
    held.refused(600.0, began_in=held.limit.epoch, in_flight=0, wait_s=None)
    assert held.wait_s(600.0) == 0


@pytest.mark.parametrize(
    ("rates", "a_minute"), [({"rpm": 90}, 90), ({"tpm": 6_000}, 60), ({"rpm": 600, "tpm": 3_000}, 30)]
)
def test_rates_are_kept_on_average(rates: dict[str, float], a_minute: float) -> None:
    served = Simulated(pace(64, **rates)).serve(1_000)
    took_min = served.began[-1] / 60
    assert 0.97 * a_minute <= 1_000 / took_min <= 1.04 * a_minute


def test_what_was_counted_too_much_flows_back() -> None:
    bucket = Bucket(60)
    bucket.wait_s(0.0)
    bucket.take(1_000)
    assert bucket.wait_s(0.0) == pytest.approx(999, abs=1)
    bucket.take(-990)
    assert bucket.wait_s(0.0) == pytest.approx(9, abs=1)


@pytest.mark.parametrize(
    "bad", [{"max_concurrency": 0}, {"max_concurrency": 2.5}, {"rpm": 0}, {"tpm": -1}, {"rpm": "9"}]
)
def test_options_that_are_no_rates_are_refused_by_name(bad: dict[str, object]) -> None:
    with pytest.raises(UnknownParameter, match=next(iter(bad))):
        refuse_bad_pace("online", Allowance(**{"max_concurrency": 8, **bad}))  # type: ignore[arg-type]
