"""Owners: known to be gone only when that is certain."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from lotwise import owner

NAME = """
import sys
from lotwise import owner
with owner.acting() as name:
    print(name, flush=True)
    sys.stdin.readline()
"""


def test_owner_is_present_while_it_acts_and_gone_afterwards() -> None:
    with owner.acting() as name:
        assert not owner.gone(name)
    assert owner.gone(name)


def test_owner_is_gone_also_when_its_call_failed() -> None:
    with pytest.raises(KeyboardInterrupt), owner.acting() as name:
        raise KeyboardInterrupt
    assert owner.gone(name)


def test_two_calls_of_one_process_are_two_owners() -> None:
    with owner.acting() as first, owner.acting() as second:
        assert first != second
        assert not owner.gone(first)
        assert not owner.gone(second)


def test_no_owner_is_gone() -> None:
    assert owner.gone(None)


def test_owner_in_another_process_is_gone_when_that_process_was_killed() -> None:
    command = [sys.executable, "-c", NAME]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()

        before = owner.gone(name)
        process.kill()
        process.wait()

    assert not before
    assert owner.gone(name)


def test_process_id_that_was_given_to_another_process_does_not_count() -> None:
    with owner.acting() as name:
        machine, pid, _started, token = name.rsplit("/", 3)
    parent = os.getppid()

    assert int(pid) == os.getpid()
    assert owner.gone(f"{machine}/{parent}/1/{token}")


UNKNOWABLE = {
    "another machine": "elsewhere/boot/pid:[1]/1/2/abc",
    "a name of another form": "somebody",
    "a start that nobody knows": None,
}


@pytest.mark.parametrize("name", UNKNOWABLE.values(), ids=UNKNOWABLE.keys())
def test_owner_is_not_gone_when_that_cannot_be_known(name: str | None) -> None:
    if name is None:
        with owner.acting() as own:
            machine, _pid, _started, token = own.rsplit("/", 3)
        name = f"{machine}/1/-/{token}"

    assert not owner.gone(name)
