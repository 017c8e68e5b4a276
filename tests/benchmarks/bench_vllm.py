"""The `vllm` executor in pairs on one engine: against a plain `LLM.chat` over the whole list, and its order of rows.

    python bench_vllm.py [PAIRS] [ROWS]

needs the environment of `make test-vllm`, and LOTWISE_VLLM_MODEL. Each arm begins with an empty prefix cache, and the
arms take turns in going first. What lotwise's arm takes is the whole of `map`: enrolling, ledger, judging, joining.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl

import lotwise
from lotwise.executors import order, vllm_engine

SCHEMA = {
    "type": "object",
    "properties": {"mood": {"enum": ["positive", "negative"]}},
    "required": ["mood"],
    "additionalProperties": False,
}
PARAMS = {"temperature": 0, "max_tokens": 32}
ENGINE: dict[str, Any] = {"enforce_eager": True, "max_model_len": 1024, "block_size": 32}
SMALL_CACHE = {**ENGINE, "num_gpu_blocks_override": 130}
"""A cache of 4,160 tokens, which ten prefixes of 600 outgrow."""


def main(pairs: int, rows: int) -> None:
    """Run both comparisons and print each pair, the median and the range."""
    model = os.environ["LOTWISE_VLLM_MODEL"]
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        python = folder / "python"
        child = Path(__file__).with_name("vllm_bench_child.py")
        python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{child}" "$@"\n')
        python.chmod(0o700)
        against_plain(model, folder, python, pairs, rows)
        in_order(model, folder, python, pairs)


def reviews(rows: int) -> list[str]:
    """Return distinct reviews."""
    shared = Path(os.environ.get("LOTWISE_SHARED", Path(__file__).parents[3] / "shared")) / "data" / "reviews.parquet"
    texts = pl.read_parquet(shared)["text"].unique(maintain_order=True).head(rows).to_list()
    return [f"Is this review positive or negative?\n\n{text}" for text in texts]


def mapped(model: str, folder: Path, python: Path, engine: dict[str, Any], texts: list[str]) -> float:
    """Return the seconds of a map into a new ledger on the warm engine."""
    ledger = Path(tempfile.mkdtemp(dir=folder))
    options = lotwise.Options(executor_options={"engine": engine, "python": str(python)}, systemic_rate=None)
    frame = pl.DataFrame({"text": texts})
    began = time.perf_counter()
    out = lotwise.map(
        frame, "{text}", SCHEMA, model=f"vllm:{model}", params=PARAMS, ledger=ledger, options=options, progress=False
    )
    seconds = time.perf_counter() - began
    answered = out["llm_state"].cast(pl.String).is_in(["succeeded", "invalid"]).sum()
    assert answered == len(texts), f"{answered} of {len(texts)} were answered"
    return seconds


def plain(folder: Path, texts: list[str]) -> float:
    """Return the seconds of `LLM.chat` over texts, in the engine that is up. Leaves the prefix cache empty."""
    (engine,) = [engine for engine in vllm_engine.engines() if engine.pid is not None]
    file = folder / "contents.json"
    file.write_text(json.dumps(texts), encoding="utf-8")
    params = {name: value for name, value in PARAMS.items() if name != "max_tokens"}
    engine.begin({"messages": [], "params": params, "schema": json.dumps(SCHEMA)})
    engine.ask([("plain", f"plain {file}", PARAMS["max_tokens"])])
    while not (finished := engine.hear()):
        pass
    ((_, _, body),) = finished
    assert body["n"] == len(texts)
    return float(body["seconds"])


def against_plain(model: str, folder: Path, python: Path, pairs: int, rows: int) -> None:
    """Compare rows a second with a plain `LLM.chat`."""
    texts = reviews(rows)
    ours: Callable[[], float] = lambda: mapped(model, folder, python, ENGINE, texts)  # noqa: E731
    theirs: Callable[[], float] = lambda: plain(folder, texts)  # noqa: E731
    mapped(model, folder, python, ENGINE, texts[:8])  # the engine starts
    plain(folder, texts[:8])
    told = []
    for pair in range(pairs):
        first, second = (ours, theirs) if pair % 2 else (theirs, ours)
        one = first()
        plain(folder, [])  # empties the prefix cache
        two = second()
        plain(folder, [])
        mine, floor = (one, two) if pair % 2 else (two, one)
        told.append(floor / mine)
        print(f"plain: pair {pair}: map {mine:.2f} s, LLM.chat {floor:.2f} s, rate ratio {told[-1]:.3f}", flush=True)
    print(
        f"plain: {rows} rows, {pairs} pairs: median {statistics.median(told):.3f}, {min(told):.3f} to {max(told):.3f}"
    )


def in_order(model: str, folder: Path, python: Path, pairs: int) -> None:
    """Compare the executor's order with a random one, where the prefixes outgrow the cache."""
    rng = random.Random(7)
    words = ["river", "stone", "market", "engine", "winter", "garden", "copper", "letter", "mirror", "harbour"]
    prefixes = [" ".join(rng.choices(words, k=550)) for _ in range(10)]
    texts = [f"{prefix}\n\nQuestion {n}: is this good?" for prefix in prefixes for n in range(10)]
    sort = order.for_throughput
    mapped(model, folder, python, SMALL_CACHE, texts[:2])
    told = []
    for pair in range(pairs):
        seconds: dict[str, float] = {}
        for arm in ("sorted", "random") if pair % 2 else ("random", "sorted"):
            shuffled = lambda frame, _limit, seed=pair: frame.sample(fraction=1.0, shuffle=True, seed=seed)  # noqa: E731
            order.for_throughput = sort if arm == "sorted" else shuffled
            plain(folder, [])
            seconds[arm] = mapped(model, folder, python, SMALL_CACHE, texts)
        told.append(seconds["random"] / seconds["sorted"])
        print(
            f"order: pair {pair}: sorted {seconds['sorted']:.2f} s, random {seconds['random']:.2f} s, "
            f"ratio {told[-1]:.2f}",
            flush=True,
        )
    order.for_throughput = sort
    print(f"order: 100 rows, {pairs} pairs: median {statistics.median(told):.2f}, {min(told):.2f} to {max(told):.2f}")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5, int(sys.argv[2]) if len(sys.argv) > 2 else 200)
