"""One emulated provider for each file, and without faults at the start of each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emulator import Emulator, Faults


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as emulator:
        yield emulator


@pytest.fixture
def emulator(running: Emulator) -> Emulator:
    running.set_faults(**Faults().to_json())
    return running
