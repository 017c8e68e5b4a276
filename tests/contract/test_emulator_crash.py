"""The emulator may be killed at any moment: what it accepted, charged and returned still holds after."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import openai
import pytest

from emulator import Emulator, HttpFault, RowFault
from emulator.sdk import (
    anthropic_client,
    anthropic_lines,
    by_id,
    chat_body,
    create_anthropic,
    create_openai,
    message_body,
    openai_client,
    openai_lines,
)

ROWS = 400


def bodies(make: Any = chat_body) -> dict[str, Any]:
    return {f"{1:016x}-k{n}": make(f"row {n}") for n in range(ROWS)}


def assert_charged_once_each(emulator: Emulator, count: int) -> None:
    charges = emulator.charges_by_key()
    assert (len(charges), set(charges.values())) == (count, {1})


def test_state_port_clock_and_faults_survive_a_kill(tmp_path: Path) -> None:
    with (
        Emulator(tmp_path, speed=0, batch_s=100, validate_s=0) as emulator,
        openai_client(emulator) as client,
    ):
        batch = create_openai(client, bodies(), metadata={"shard": "s"})
        now, port = emulator.advance(50), emulator.port
        emulator.kill()
        assert not emulator.alive
        emulator.restart()
        assert (emulator.port, emulator.now()) == (port, now)
        again = client.batches.retrieve(batch.id)
        assert (again.status, again.metadata) == ("in_progress", {"shard": "s"})
        assert_charged_once_each(emulator, ROWS // 2)
        emulator.advance(100)
        assert len(by_id(openai_lines(client, batch.id)[0])) == ROWS
        assert_charged_once_each(emulator, ROWS)


@pytest.mark.parametrize("provider", ["openai", "anthropic"])
def test_kill_in_the_middle_of_a_download_loses_and_charges_nothing_twice(tmp_path: Path, provider: str) -> None:
    fault = HttpFault(endpoint="*", action="kill", after_bytes=50_000, times=None)
    with (
        Emulator(tmp_path, speed=0) as emulator,
        openai_client(emulator) as gpt,
        anthropic_client(emulator) as claude,
    ):
        if provider == "openai":
            first = create_openai(gpt, bodies())
        else:
            second = create_anthropic(claude, bodies(message_body))
        emulator.advance(1)
        emulator.set_faults(http=(fault,))
        with pytest.raises(Exception, match=r"onnection|closed|peer|reset|incomplete"):
            _ = openai_lines(gpt, first.id) if provider == "openai" else anthropic_lines(claude, second.id)
        emulator.wait_until_dead()
        emulator.start()
        emulator.set_faults(http=())
        lines = openai_lines(gpt, first.id)[0] if provider == "openai" else anthropic_lines(claude, second.id)
        assert len(by_id(lines)) == ROWS
        assert_charged_once_each(emulator, ROWS)


@pytest.mark.parametrize(("action", "accepted"), [("kill_before", 0), ("kill", 1)])
def test_kill_around_a_create_leaves_it_unsent_or_accepted(tmp_path: Path, action: str, accepted: int) -> None:
    fault = HttpFault(endpoint="batches.create", action=action, times=1)
    with Emulator(tmp_path, speed=0, http=(fault,)) as emulator, openai_client(emulator) as client:
        with pytest.raises(openai.APIConnectionError):
            create_openai(client, bodies())
        emulator.wait_until_dead()
        emulator.start()
        assert len(list(client.batches.list())) == accepted
        create_openai(client, bodies())
        assert len(list(client.batches.list())) == accepted + 1


def test_kills_at_many_moments_of_processing_keep_lines_and_bill_whole(tmp_path: Path) -> None:
    faults: dict[str, Any] = {
        "rows": (RowFault(kind="server_error", fraction=0.2), RowFault(kind="duplicate", fraction=0.1))
    }
    with (
        Emulator(tmp_path, speed=0, batch_s=100, validate_s=0, **faults) as emulator,
        openai_client(emulator) as client,
    ):
        batch = create_openai(client, bodies())
        for _ in range(6):
            emulator.advance(20)
            asking = threading.Thread(target=ask_until_dead, args=(client, batch.id))
            asking.start()
            emulator.kill()
            asking.join()
            emulator.start()
        output, errors = openai_lines(client, batch.id)
        truth = emulator.batches()[0]["rows"]
        expected = sorted(
            custom_id for custom_id, fate in truth.items() for _ in range(1 + (fate["delivery"] == "duplicate"))
        )
        assert sorted(line["custom_id"] for line in [*output, *errors]) == expected
        assert_charged_once_each(emulator, sum(fate["billed"] for fate in truth.values()))


def test_bytes_beyond_the_last_commit_are_overwritten(tmp_path: Path) -> None:
    with (
        Emulator(tmp_path, speed=0, batch_s=100, validate_s=0) as emulator,
        openai_client(emulator) as client,
    ):
        batch = create_openai(client, bodies())
        emulator.advance(50)
        client.batches.retrieve(batch.id)
        emulator.kill()
        with (tmp_path / "results" / "0.out").open("ab") as file:
            file.write(b'{"custom_id": "written by a transaction that never was')
        emulator.start().advance(100)
        assert len(by_id(openai_lines(client, batch.id)[0])) == ROWS


def ask_until_dead(client: openai.OpenAI, batch_id: str) -> None:
    try:
        while True:
            client.batches.retrieve(batch_id)
    except openai.APIConnectionError:
        return


def test_second_emulator_on_the_same_seed_gives_the_same_results(tmp_path: Path) -> None:
    seen = []
    for name in ("first", "second"):
        with (
            Emulator(tmp_path / name, speed=0, seed=3, rows=(RowFault(kind="refused", fraction=0.3),)) as emulator,
            openai_client(emulator) as client,
        ):
            batch = create_openai(client, bodies())
            emulator.advance(1)
            output, _ = openai_lines(client, batch.id)
            seen.append([(line["custom_id"], line["response"]["body"]["choices"]) for line in output])
    assert seen[0] == seen[1]


def test_emulator_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    tests = Path(__file__).resolve().parents[1]
    code = (
        "import os, sys; from emulator import Emulator; e = Emulator(sys.argv[1]).start();"
        "print(e.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"PYTHONPATH": str(tests)}, check=False)
    # The run ends only when nobody holds its output any more, and the emulator's log is its own.
    assert done.returncode == -9
    lock = subprocess.run([sys.executable, "-c", WAIT_FOR_END, done.stdout.decode().strip()], check=False, timeout=30)
    assert lock.returncode == 0


WAIT_FOR_END = """
import os, select, sys
try:
    end = os.pidfd_open(int(sys.argv[1]))
except ProcessLookupError:
    sys.exit(0)
sys.exit(0 if select.select([end], [], [], 20)[0] else 1)
"""


def test_start_that_fails_shows_the_log(tmp_path: Path) -> None:
    emulator = Emulator(tmp_path, speed=0)
    emulator._faults = {"unheard_of": 1}
    with pytest.raises(RuntimeError, match="unknown fault setting 'unheard_of'"):
        emulator.start()


def test_emulator_writes_no_key_and_no_row_to_its_log(tmp_path: Path) -> None:
    with Emulator(tmp_path, speed=0) as emulator, openai_client(emulator, "sk-secret-key") as client:
        create_openai(client, {"r": chat_body("secret content")})
        with pytest.raises(openai.NotFoundError):
            client.batches.retrieve("batch_none")
        emulator.advance(1)
        assert emulator.log() == ""
        assert b"sk-secret-key" not in (tmp_path / "state.sqlite").read_bytes()
