"""vLLM's child with a second way in: one row may ask for a plain `LLM.chat` over a list, in the very same engine.

Called as an interpreter with the program that it is to be, as the executor's ``python`` option asks.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLAIN = "plain "
"""A row that begins so names a file: the contents to ask, the settings of the job apply."""


def main(program: Path, arguments: list[str]) -> None:
    """Be the program, with that way in."""
    spec = importlib.util.spec_from_file_location("vllm_child", program)
    assert spec is not None
    assert spec.loader is not None
    child: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    ask, step, busy = child.Engine.ask, child.Engine.step, child.Engine.busy
    answers: list[tuple[str, dict[str, Any]]] = []

    def asked(self: Any, one: str, content: str, job: Any, max_tokens: int) -> None:
        if not content.startswith(PLAIN):
            ask(self, one, content, job, max_tokens)
            return
        contents = json.loads(Path(content.removeprefix(PLAIN)).read_text(encoding="utf-8"))
        self._llm.reset_prefix_cache()
        began = time.perf_counter()
        lists = [[*job["messages"], {"role": "user", "content": text}] for text in contents]
        outputs = self._llm.chat(lists, self.sampling(job, max_tokens), use_tqdm=False) if lists else []
        seconds = time.perf_counter() - began
        self._llm.reset_prefix_cache()
        answers.append((one, {"seconds": seconds, "n": len(outputs)}))

    def stepped(self: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        while answers:
            yield answers.pop()
        if busy.fget(self):
            yield from step(self)

    child.Engine.ask, child.Engine.step = asked, stepped
    child.Engine.busy = property(lambda self: bool(answers) or busy.fget(self))
    child.main(arguments)


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument not in ("-P", "-E")]
    main(Path(given[0]), given[1:])
