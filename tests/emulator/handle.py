"""The handle by which tests start, steer, kill and question the emulator.

The emulator is a process of its own; the handle only speaks HTTP to it, so what a test learns is what is on
the emulator's disk.  It ends with the process that started it, however that one ends.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from emulator.faults import Faults
from emulator.records import account_of

TESTS = Path(__file__).resolve().parents[1]
PATIENCE_S = 120.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Charge:
    """One charge on the emulator's bill: one request body that was processed and answered."""

    n: int
    provider: str
    account: str
    project: str
    tier: str
    batch: str | None
    custom_id: str | None
    key: str
    digest: str
    model: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    at: float


class Emulator:
    """An emulated provider on a state folder.

    Use it as a context manager, or call `start` and `stop`.  `speed` is provider seconds a real second: 1
    keeps both clocks together, 0 leaves the clock to `advance`.  The other keywords are the settings of
    `Faults`.
    """

    def __init__(self, state_dir: Path | str, *, speed: float = 1.0, port: int = 0, **faults: Any) -> None:
        self.state_dir = Path(state_dir)
        self.port = port
        self._speed: float | None = speed
        self._faults: dict[str, Any] = _plain(faults)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # The process

    def start(self) -> Self:
        """Start the process and wait until it serves."""
        self.state_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "emulator", "--state", str(self.state_dir), "--port", str(self.port)]
        command += ["--until-stdin-ends", "--faults", json.dumps(self._faults)]
        if self._speed is not None:
            command += ["--speed", str(self._speed)]
        with (self.state_dir / "emulator.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=os.environ | {"PYTHONPATH": str(TESTS)},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._reap()
            raise RuntimeError(f"the emulator did not start; its log says:\n{self.log()}")
        self.port = json.loads(line)["port"]
        self._speed, self._faults = None, {}  # from now on what is on disk holds
        return self

    def kill(self) -> None:
        """End the process at once with SIGKILL; its state stays."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    stop = kill

    def restart(self) -> Self:
        """Kill the process if it lives, and start it on the same state and port."""
        self.kill()
        return self.start()

    def wait_until_dead(self) -> None:
        """Wait for the end of a process that a fault kills."""
        if self._process is not None:
            self._process.wait(PATIENCE_S)
            self._reap()

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The id of the process."""
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        """Return what the process wrote of its own failures."""
        return (self.state_dir / "emulator.log").read_text()

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait(PATIENCE_S)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()
        self._process = None

    # Addresses

    @property
    def openai_url(self) -> str:
        """The base URL for the OpenAI SDK."""
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def anthropic_url(self) -> str:
        """The base URL for the Anthropic SDK."""
        return f"http://127.0.0.1:{self.port}"

    # Steering

    def set_faults(self, **faults: Any) -> Faults:
        """Replace the named settings; what was due before was processed under the old ones."""
        return Faults.from_json(self._ask("POST", "faults", _plain(faults)))

    def advance(self, seconds: float) -> float:
        """Move provider time forward, and return it in seconds since the epoch."""
        return float(self._ask("POST", "clock", {"advance_s": seconds})["now"])

    def set_speed(self, speed: float) -> float:
        """Set how fast provider time passes, and return it."""
        return float(self._ask("POST", "clock", {"speed": speed})["now"])

    def now(self) -> float:
        """Return the provider time, without its skew, in seconds since the epoch."""
        return float(self._ask("GET", "clock")["now"])

    # Questions

    def bill(self, api_key: str | None = None) -> list[Charge]:
        """Return every charge so far, oldest first; with an API key only those of its account."""
        charges = [Charge(**charge) for charge in self._ask("GET", "bill")]
        account = None if api_key is None else account_of(api_key)
        return [charge for charge in charges if account in (None, charge.account)]

    def bill_summary(self) -> dict[str, int]:
        """Return the bill in numbers: charges, keys, most charges of one key, and tokens by kind."""
        return dict(self._ask("GET", "bill/summary"))

    def charges_by_key(self) -> Counter[str]:
        """Return the charges of each key: a custom id without its shard part, or a sync body's digest."""
        return Counter(charge.key for charge in self.bill())

    def charges_by_body(self) -> Counter[str]:
        """Return the number of charges of each request body, batch or sync."""
        return Counter(charge.digest for charge in self.bill())

    def bill_usd(self, *, input_mtok: str, output_mtok: str, cached_mtok: str | None = None) -> Decimal:
        """Return the bill in US dollars at prices of the standard tier; a batch costs half."""
        total = Decimal(0)
        for charge in self.bill():
            fresh = charge.input_tokens - charge.cached_tokens
            cost = fresh * Decimal(input_mtok) + charge.cached_tokens * Decimal(cached_mtok or input_mtok)
            cost += charge.output_tokens * Decimal(output_mtok)
            total += cost / 2 if charge.tier == "batch" else cost
        return total / 1_000_000

    def truth(self) -> dict[str, Any]:
        """Return what was decided for each row of each batch, and for each synchronous call."""
        return dict(self._ask("GET", "truth"))

    def batches(self) -> list[dict[str, Any]]:
        """Return the truth of each accepted batch, oldest first."""
        return list(self.truth()["batches"])

    def outcomes(self) -> Counter[tuple[str, str]]:
        """Return the number of batch rows by (outcome, delivery)."""
        return Counter((row["outcome"], row["delivery"]) for batch in self.batches() for row in batch["rows"].values())

    def calls(self) -> dict[str, int]:
        """Return the number of HTTP calls so far by endpoint, refused ones included."""
        return dict(self._ask("GET", "calls"))

    def _ask(self, method: str, name: str, value: Any = None) -> Any:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, f"/_emulator/{name}", None if value is None else json.dumps(value))
            response = connection.getresponse()
            body = json.loads(response.read())
        finally:
            connection.close()
        if response.status != 200:
            raise ValueError(body["error"])
        return body


def _plain(faults: dict[str, Any]) -> dict[str, Any]:
    """Return settings as plain values, checked before they travel."""
    given = Faults.from_json(faults).to_json()
    return {name: given[name] for name in faults}
