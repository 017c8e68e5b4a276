"""As much of vLLM's offline engine as the child program uses, with an engine process of its own that can be killed.

When it is killed, `step` waits for ever, as vLLM's does.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from types import SimpleNamespace
from typing import Any

from vllm.sampling_params import SamplingParams

MAX_CHARS = 200


class LLMEngine:
    """Answers in order, one row a step."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        scheduler = SimpleNamespace(max_num_seqs=arguments.get("max_num_seqs", 8))
        self.vllm_config = SimpleNamespace(
            scheduler_config=scheduler, model_config=SimpleNamespace(max_model_len=MAX_CHARS)
        )
        self.process = multiprocessing.get_context("spawn").Process(target=signal.pause, daemon=True)
        self.process.start()
        self.engine_core = self
        self.rows: list[tuple[str, str, SamplingParams]] = []

    def has_unfinished_requests(self) -> bool:
        return bool(self.rows)

    def step(self) -> list[Any]:
        number, text, params = self.rows.pop(0)
        if "kill the engine" in text:
            assert self.process.pid is not None
            os.kill(self.process.pid, signal.SIGKILL)
            threading.Event().wait()
        made = SimpleNamespace(text=f"{params.temperature} {text}", token_ids=[1, 2], finish_reason="stop")
        return [
            SimpleNamespace(
                request_id=number, finished=True, outputs=[made], prompt_token_ids=[1, 2, 3], num_cached_tokens=1
            )
        ]

    def abort_request(self, numbers: list[str]) -> None:
        self.rows = [row for row in self.rows if row[0] not in numbers]

    def shutdown(self) -> None:
        self.process.kill()


class LLM:
    """The class that the child makes."""

    def __init__(self, model: str, **arguments: Any) -> None:
        self.model_config = SimpleNamespace(get_diff_sampling_param=lambda: {"temperature": 0.6, "max_tokens": 9})
        self.llm_engine = LLMEngine(arguments)
        self.asked = 0

    def enqueue_chat(
        self, messages: list[Any], params: SamplingParams, *, use_tqdm: bool, chat_template_kwargs: Any
    ) -> list[str]:
        text = " | ".join(f"{turn['role']}: {turn['content']}" for turn in messages[0])
        if len(text) > MAX_CHARS:
            raise ValueError(f"This model's maximum context length is {MAX_CHARS}; the prompt is {text}")
        self.asked += 1
        self.llm_engine.rows.append((str(self.asked), text, params))
        return [f"{self.asked}-a1b2c3"]
