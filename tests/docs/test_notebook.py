"""Notebooks: the shipped one runs, and a call inside a real kernel draws one card and lets go at an interrupt."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import nbformat
import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager, start_new_kernel

EXAMPLES = Path(__file__).parents[2] / "examples"
TIMEOUT_S = 90


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[tuple[KernelManager, BlockingKernelClient]]:
    """A real kernel whose working folder is empty. Its event loop runs while a cell does."""
    env = {**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    env.pop("LOTWISE_LEDGER", None)
    manager, client = start_new_kernel(startup_timeout=TIMEOUT_S, cwd=str(tmp_path), env=env)
    try:
        yield manager, client
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


def messages(client: BlockingKernelClient, sent: str) -> Iterator[dict[str, Any]]:
    """Yield what a cell says, until it is done."""
    while True:
        try:
            message = client.get_iopub_msg(timeout=TIMEOUT_S)
        except Empty:
            raise AssertionError("the kernel said nothing more") from None
        if message["msg_type"] == "status" and message["parent_header"].get("msg_id") == sent:
            if message["content"]["execution_state"] == "idle":
                return
        elif message["msg_type"] not in ("status", "execute_input"):
            yield message


def run(client: BlockingKernelClient, source: str) -> list[dict[str, Any]]:
    said = list(messages(client, client.execute(source)))
    errors = [message["content"]["evalue"] for message in said if message["msg_type"] == "error"]
    assert errors == []
    return said


def test_the_first_notebook_runs(kernel: tuple[KernelManager, BlockingKernelClient], tmp_path: Path) -> None:
    """With the scripted model in place of the embedded one: the same cells, no weights."""
    _, client = kernel
    for path in EXAMPLES.glob("tickets*"):
        shutil.copy(path, tmp_path)
    notebook = nbformat.read(EXAMPLES / "first_notebook.ipynb", as_version=4)
    nbformat.validate(notebook)
    cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    scripted = [
        source.replace('model = "embedded"', 'import lotwise.testing\nmodel = "scripted:choice"') for source in cells
    ]
    assert sum(a != b for a, b in zip(cells, scripted, strict=True)) == 1

    said = [run(client, source) for source in scripted]

    cards = [m["content"]["data"].get("text/html", "") for cell in said for m in cell if "data" in m["content"]]
    assert sum("lotwise</span> &ensp;" in card for card in cards) >= 4  # plan, two calls at work, the run
    sent = run(client, "print(run.status().n_sent, answered['llm_state'].unique().to_list())")
    assert sent[0]["content"]["text"].strip() == "0 ['succeeded']"


def test_the_first_notebook_ships_without_output() -> None:
    notebook = nbformat.read(EXAMPLES / "first_notebook.ipynb", as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)


SETUP = """
import asyncio, polars as pl, lotwise, lotwise.testing
assert asyncio.get_event_loop().is_running()
df = pl.DataFrame({"body": ["planted-4711", "two"]})
call = dict(model="scripted:echo", options=lotwise.Options(executor_options={"folder": "provider"}))
slow = dict(call, options=lotwise.Options(executor_options={"folder": "provider", "duration_s": 86400}))
"""


def test_a_call_in_a_running_event_loop_draws_one_card(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    _, client = kernel
    run(client, SETUP)

    said = run(client, "out = df.llm.map('{body}', **call); loop = asyncio.get_event_loop().is_running()")

    drawn = [message for message in said if message["msg_type"] in ("display_data", "update_display_data")]
    ids = {message["content"]["transient"]["display_id"] for message in drawn}
    assert drawn[0]["msg_type"] == "display_data"
    assert sum(message["msg_type"] == "display_data" for message in drawn) == len(ids) == 1
    assert "2 of 2 rows" in drawn[-1]["content"]["data"]["text/plain"]
    assert not any("planted" in str(message["content"]) for message in said)
    (answers,) = run(client, "print(out['answer'].to_list(), loop)")
    assert answers["content"]["text"].strip() == "['planted-4711', 'two'] True"


def test_an_interrupt_detaches_and_the_run_can_be_taken_up(kernel: tuple[KernelManager, BlockingKernelClient]) -> None:
    manager, client = kernel
    run(client, SETUP)

    said, interrupted = [], False
    for message in messages(client, client.execute("df.llm.map('{body}', **slow)")):
        said.append(message)
        shown = message["content"].get("data", {}).get("text/plain", "")
        if not interrupted and "shard" in shown:  # the batch is out, and the call waits
            manager.interrupt_kernel()
            interrupted = True

    assert [message["content"]["ename"] for message in said if message["msg_type"] == "error"] == ["KeyboardInterrupt"]
    cards = [message["content"]["data"]["text/html"] for message in said if "data" in message["content"]]
    assert "detached; nothing is lost" in cards[-1]
    assert "lotwise resume" in cards[-1]
    (taken,) = [
        message
        for message in run(
            client,
            "(i,) = lotwise.runs()['id']; opt = call['options']\n"
            "lotwise.open_ledger().resume(i, options=opt, progress=False).wait().status().requests",
        )
        if message["msg_type"] == "execute_result"
    ]
    assert taken["content"]["data"]["text/plain"] == "{'succeeded': 2}"
