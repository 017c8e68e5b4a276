"""A process that asks a server many large calls, and says how much memory it held a quarter in and at the end.

python fanout_child.py URL N_ROWS
"""

from __future__ import annotations

import json
import resource
import sys

from lotwise.executors import fanout
from lotwise.executors.live import Answer
from lotwise.executors.pace import Allowance, Pace

ROW_BYTES = 20_000


def peak_mb() -> float:
    """Return the most memory that this process has held, in MB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(url: str, n_rows: int) -> None:
    """Ask, forget each answer, and print the two peaks and the bytes that came back."""
    where = fanout.Server(url=url + "/chat/completions", headers={}, timeout_s=60, connect_timeout_s=60)
    pad = "x" * ROW_BYTES
    work = (
        (f"{n}", json.dumps({"model": "m", "messages": [{"content": f"{n} {pad}"}]}).encode()) for n in range(n_rows)
    )

    def line(answer: Answer) -> bytes:
        return answer.body or b""

    n_lines = n_bytes = 0
    early_mb = 0.0
    for lines in fanout.answers(
        work, server=lambda: where, line=line, pace=Pace(Allowance(max_concurrency=64)), window=128
    ):
        n_lines += len(lines)
        n_bytes += sum(map(len, lines))
        if not early_mb and n_lines >= n_rows // 4:
            early_mb = peak_mb()
    print(json.dumps({"lines": n_lines, "bytes": n_bytes, "early_mb": early_mb, "peak_mb": peak_mb()}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
