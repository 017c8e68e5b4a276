"""The embedded engine: SmolLM2-135M-Instruct through llama.cpp, in this process, without a key or a network.

A demonstration model: small enough for any machine, right often enough to show the journey of a row, never
more than that. The engine is loaded once a process, on the first row. It answers one row at a time, since
more slots at once were measured to gain nothing on few cores, and its unset parameters mean greedy decoding:
the same rows asked in the same order get the same answers. In another order the prefix that rows share is read
in other steps, whose numbers differ in the last bits, and where the model wavers it may say something else: so it
was with ten of the 111 demo tickets.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import json
import os
import secrets
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

import polars as pl

from lotwise.errors import MissingExtra, ModelWeightsMissing, UnknownModel, UnknownParameter
from lotwise.executors import variant
from lotwise.executors.openai_dialect import read_lines
from lotwise.executors.sampling import TEXT_OR_TEXTS, Takes, integer, number, refuse_others
from lotwise.executors.wire_schema import Subset, to_enforced_wire
from lotwise.models import SMOLLM2, model_path, weights_path
from lotwise.request import Limits, Shard, Spec

MODEL = "smollm2-135m-instruct"
"""The one model there is; ``embedded`` alone means it too."""

ENGINE: Mapping[str, Any] = {
    "n_ctx": 8192,  # all that the model was trained on: prompt and answer together
    "n_parallel": 1,
    "n_batch": 128,  # a longer prompt is read in such steps, and work can be stopped between two
    "n_ubatch": 128,
    "cache_ram_mib": 0,  # the slot itself keeps the shared prefix; by default up to 8 GiB of others
    "ctx_shift": False,
    "warmup": False,
}
"""The engine's settings that are not the machine's; part of `EmbeddedExecutor.model_digest`."""

SAMPLING: Mapping[str, float] = {
    "temp": 0.0,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "penalty_repeat": 1.0,
}
"""What the engine uses for a parameter that is not sent. Temperature 0 takes the likeliest token."""

HEADER_BYTES = 4 << 20
"""How much of the weight file's start the digest covers: more than this model's GGUF header of 1.8 MB."""


PARAMETERS: Mapping[str, Takes] = {
    "temperature": number(0, 5),
    "top_p": number(0, 1),
    "min_p": number(0, 1),
    "top_k": integer(0, 100_000),
    "seed": integer(0, 2**32 - 2),  # the engine takes 2**32 - 1 for "draw one"
    "frequency_penalty": number(-2, 2),
    "presence_penalty": number(-2, 2),
    "repeat_penalty": number(0, 5),
    "stop": TEXT_OR_TEXTS,
}
"""The sampling parameters that the engine is sent, under these names, and what each takes."""

SUBSET = Subset(
    provider="embedded",
    # No patterns: the engine reads few of them, and writes about the others to stderr instead of refusing them.
    keywords=frozenset({"minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"}),
    formats=frozenset({"date", "time", "date-time", "uuid"}),
    all_required=False,
    recursion=True,
)
"""What the engine's grammars hold an answer to; validation judges the rest."""

LOOK_UP_S = 0.1
"""How long an interrupt from the keyboard can go unnoticed."""

OPTIONS = ("weights", "threads")
"""What ``executor_options`` may hold."""


class EmbeddedExecutor:
    """The stream executor of the embedded model.

    Parameters
    ----------
    options
        ``weights``, a GGUF file in place of the one that `lotwise fetch-model` brought; ``threads`` of the engine,
        by default one less than there are cores. With all of them, one other busy process makes llama.cpp's
        threads wait for each other and costs most of the speed.

    Raises
    ------
    UnknownParameter
        An option that is none of these.
    """

    provider = "embedded"
    hosted = False
    paid = False
    limits = Limits(max_requests=500, max_in_flight=1)
    window = 2
    """One row in the engine, and one finished that the reader has not taken yet."""

    def __init__(self, *, options: Mapping[str, Any] | None = None) -> None:
        given = dict(options or {})
        if unknown := set(given) - set(OPTIONS):
            raise UnknownParameter.from_names(self.provider, unknown, OPTIONS)
        chosen = given.get("weights")
        self._chosen = None if chosen is None else Path(chosen)
        self._threads: int = given.get("threads") or max(1, _cores() - 1)

    @property
    def weights(self) -> Path:
        """The weight file. Raises `ModelWeightsMissing` where there is none."""
        path = self._chosen or model_path()
        if path is None or not path.is_file():
            raise ModelWeightsMissing.at(self._chosen or weights_path())
        return path

    def check(self, spec: Spec) -> None:
        """Refuse an unknown model or parameter, and say what is not installed. Loads nothing."""
        if spec.model not in ("", MODEL):
            raise UnknownModel.from_name(self.provider, spec.model, [MODEL])
        refuse_others(self.provider, spec.params, PARAMETERS)
        if importlib.util.find_spec("xllamacpp") is None:
            raise MissingExtra.of("embedded", "xllamacpp")
        _ = self.weights

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        """Cut a JSON Schema to what is sent, before the key is made of it.

        Returns
        -------
        (str, tuple of str)
            The exact text sent, and what is left to validation, ``/path/keyword`` each.

        Raises
        ------
        UnsupportedSchema
            The grammar cannot express it, with the place.
        """
        made = to_enforced_wire(schema_text, SUBSET)
        return made.text, made.left_to_validation

    def account(self) -> str:
        """Return a fixed word: there is no account on one's own machine."""
        return "this-machine"

    def model_digest(self) -> str:
        """Digest what can change all answers: the engine's settings, and the weights' size and header.

        Returns
        -------
        str
            64 hexadecimal characters, the same wherever the file lies and however many threads there are.
        """
        size, header = _measure(self.weights)
        told = json.dumps([dict(ENGINE), dict(SAMPLING), size, header], sort_keys=True)
        return hashlib.sha256(told.encode()).hexdigest()

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        """Return an upper bound of each request's body in bytes."""
        shared = len(json.dumps(_body(spec, "", {}), ensure_ascii=False).encode())
        return (content_bytes.cast(pl.Int64) + shared).alias("bytes")

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        """Answer the `REQUESTS` frame row by row and yield each raw line as it is there.

        A line is an envelope ``{"custom_id", "response": {"status_code", "body"}, "error"}`` around the
        engine's own words. What the engine refuses is a line too and harms no other row. Closing the iterator
        stops the row at work at its next token and waits for that; waiting for a row can be interrupted from
        the keyboard.
        """
        engine = _engine(self.weights, self._threads)
        stop = threading.Event()
        rows = iter(requests.select("custom_id", "content", "variant").iter_rows())
        # A thread of our own: the caller's waits in Python, where signals and other threads reach it.
        pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="lotwise-embedded")
        try:
            waiting: deque[Future[bytes]] = deque()
            for row in islice(rows, self.window):
                waiting.append(pool.submit(_answer_row, engine, spec, stop, *row))
            while waiting:
                line = _result(waiting.popleft())
                yield [line]
                for row in islice(rows, 1):
                    waiting.append(pool.submit(_answer_row, engine, spec, stop, *row))
        finally:
            stop.set()
            pool.shutdown(wait=True, cancel_futures=True)

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Say what raw lines mean: one row of `OUTCOMES` a line, in order."""
        return read_lines(lines)


def _result(future: Future[bytes]) -> bytes:
    """Wait for one row, looking up now and then.

    A signal that the system hands to one of the engine's threads does not wake this one, and its handler runs only
    when this one next runs Python.
    """
    while not wait([future], timeout=LOOK_UP_S).done:
        pass
    return future.result()


def _cores() -> int:
    """Count the cores that this process may use, which in a container can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _measure(weights: Path) -> tuple[int, str]:
    with weights.open("rb") as file:
        header = hashlib.sha256(file.read(HEADER_BYTES)).hexdigest()
    return weights.stat().st_size, header


# --- The engine, one a process ------------------------------------------------------------------------------

_loading = threading.Lock()
_loaded: dict[tuple[Path, int], Any] = {}
_left_by_fork: list[Any] = []


def _engine(weights: Path, threads: int) -> Any:
    """Return this process's engine for a weight file, loading it on the first call."""
    with _loading:
        if (weights, threads) not in _loaded:
            _loaded[weights, threads] = _load(weights, threads)
        return _loaded[weights, threads]


def _load(weights: Path, threads: int) -> Any:
    try:
        xllamacpp = importlib.import_module("xllamacpp")
    except ImportError as error:
        raise MissingExtra.of("embedded", "xllamacpp") from error
    params = xllamacpp.CommonParams()
    for name, value in ENGINE.items():
        setattr(params, name, value)
    for name, value in SAMPLING.items():
        setattr(params.sampling, name, value)
    params.model.path = str(weights)
    size, header = _measure(weights)
    name = weights.stem if weights.name != SMOLLM2.file_name else SMOLLM2.file_name.removesuffix(".gguf")
    params.model_alias = [f"{name}@{hashlib.sha256(f'{size}:{header}'.encode()).hexdigest()[:12]}"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.verbosity = -1  # nothing on stdout or stderr; what goes wrong comes back as an error of the row
    # llama.cpp's engine comes only as a server, whose web pages show the prompt at work to whoever may
    # connect. Nobody may: it listens under a name that is removed at once or, where there are no such
    # sockets, behind a key that nobody has.
    params.api_keys = [secrets.token_hex(32)]
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.cors_origins = ""
    with tempfile.TemporaryDirectory(prefix="lotwise-") as private:
        if os.name == "posix":
            params.hostnames = [f"{private}/engine.sock"]
        return xllamacpp.Server(params)


def _forget_after_fork() -> None:
    # The engine's threads do not live in a forked child, and taking the object apart would wait for them for
    # ever.
    global _loading
    _left_by_fork.extend(_loaded.values())
    _loaded.clear()
    _loading = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)


# --- One row ------------------------------------------------------------------------------------------------


def _body(spec: Spec, content: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Build the request as sent: what all rows share first, the row's content last."""
    messages = [{"role": "system", "content": spec.system}] if spec.system is not None else []
    for asked, answered in spec.examples:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    messages.append({"role": "user", "content": content})
    body: dict[str, Any] = {"messages": messages, "max_tokens": spec.max_tokens, "seed": spec.repeat}
    if spec.wire_schema is not None:
        schema = {"name": "answer", "strict": True, "schema": json.loads(spec.wire_schema)}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body | dict(spec.params) | dict(settings)


def _answer_row(
    engine: Any, spec: Spec, stop: threading.Event, custom_id: str, content: str, changed: str | None
) -> bytes:
    """Ask the engine for one row and wrap what it said, or what it refused, into a line."""
    content, settings = variant.apply(content, changed)
    body = _body(spec, content, settings)
    # Asked for as a stream, since only a stream can be stopped; progress makes it speak while it reads the
    # prompt too.
    body |= {"stream": True, "stream_options": {"include_usage": True}, "return_progress": True}
    chunks: list[str] = []

    def take(chunk: str) -> bool:
        chunks.append(chunk)
        return stop.is_set()  # true ends the work

    try:
        engine.handle_chat_completions(json.dumps(body, ensure_ascii=False), take)
    except (ValueError, RuntimeError) as error:
        # Raised for one request (a schema it cannot constrain to, say). Its text may quote the request, so it
        # is left out.
        status = 400 if isinstance(error, ValueError) else 500
        return _line(custom_id, status, {"error": {"code": status, "type": "engine_" + type(error).__name__.lower()}})
    return _line(custom_id, *_whole(chunks))


def _whole(chunks: list[str]) -> tuple[int, dict[str, Any]]:
    """Put the engine's stream together into the chat completion that it would have given at once."""
    text: list[str] = []
    finish_reason, last = None, {}
    for chunk in map(json.loads, chunks):
        if "error" in chunk:
            return int(chunk["error"].get("code", 500)), chunk
        for choice in chunk["choices"]:
            with suppress(KeyError, TypeError):
                text.append(choice["delta"]["content"] or "")
            finish_reason = choice["finish_reason"] or finish_reason
        last = chunk
    answer = {
        "index": 0,
        "finish_reason": finish_reason,
        "message": {"role": "assistant", "content": "".join(text)},
    }
    return 200, {**last, "object": "chat.completion", "choices": [answer]}


def _line(custom_id: str, status: int, body: dict[str, Any]) -> bytes:
    response = {"status_code": status, "body": body}
    return json.dumps({"custom_id": custom_id, "response": response, "error": None}, ensure_ascii=False).encode()
