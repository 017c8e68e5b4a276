"""vLLM's child with a plant: a row that says so kills vLLM's own process the moment it is in the engine.

Called as an interpreter with the program that it is to be, as the executor's ``python`` option asks. What it was asked
it notes in a file.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

POISON = "END THE ENGINE"


def engine_process() -> int:
    """Return the process in which vLLM's engine runs: the child's own child that is its largest."""
    mine = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
        except OSError:
            continue
        if int(fields["PPid"]) == os.getpid():
            mine.append((int(fields.get("VmRSS", "0 kB").split()[0]), int(fields["Pid"])))
    return max(mine)[1]


def main(notes: Path, program: Path, arguments: list[str]) -> None:
    """Be the program, with the plant in it."""
    spec = importlib.util.spec_from_file_location("vllm_child", program)
    assert spec is not None
    assert spec.loader is not None
    child: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    ask = child.Engine.ask

    def planted(self: Any, one: str, content: str, job: Any, max_tokens: int) -> None:
        ask(self, one, content, job, max_tokens)
        with notes.open("a", encoding="utf-8") as file:
            file.write(content + "\n")
        if POISON in content:
            os.kill(engine_process(), signal.SIGKILL)

    child.Engine.ask = planted
    child.main(arguments)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[2:] if argument not in ("-P", "-E")]
    main(Path(sys.argv[1]), Path(given[0]), given[1:])
