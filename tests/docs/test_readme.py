"""What the README says to type runs, on the first few tickets, in a folder of its own."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emulator import Emulator

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LOTWISE = Path(sys.executable).with_name("lotwise")
FEW = 4
"""Tickets that the examples are run on: the embedded model answers about two a second."""


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    return tmp_path


def run(words: list[str], home: Path, **environ: str) -> str:
    done = subprocess.run(
        words, cwd=home, capture_output=True, text=True, env={**os.environ, **environ}, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return done.stdout


def test_first_example_answers_tickets_without_a_key(home: Path) -> None:
    whole = 'pl.read_csv("examples/tickets.csv")'
    first = blocks("python")[0]
    assert whole in first
    assert "out.llm.answers()" in first  # the first look is not at twelve columns of bookkeeping

    said = run([sys.executable, "-c", first.replace(whole, f"{whole}.head({FEW})") + "\nprint(out.columns)"], home)

    assert "'category'" in said
    assert "'llm_state'" in said


def test_example_with_a_provider_stays_inside_its_budget(home: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    first, second = blocks("python")[:2]
    start = first.split("out = ")[0].replace('tickets.csv")', f'tickets.csv").head({FEW})')
    with Emulator(tmp_path_factory.mktemp("provider")) as provider:
        run(
            [sys.executable, "-c", start + second.replace('model="', 'poll_s=0.05, model="')],
            home,
            ANTHROPIC_BASE_URL=provider.anthropic_url,
            ANTHROPIC_API_KEY="sk-test",
        )

        assert len(provider.bill()) == FEW


def test_commands_of_the_readme_run_in_their_order(home: Path) -> None:
    commands = re.findall(r"^lotwise .*$", README, re.MULTILINE)
    assert [shlex.split(line)[1] for line in commands] == ["plan", "map", "status", "ledger"]

    for line in commands:
        words = shlex.split(line)[1:]
        few = ["--limit", str(FEW)] if words[0] == "map" else []
        run([str(LOTWISE), *words, *few], home / "examples")

    assert (home / "examples" / "tickets.parquet").exists()


def test_targets_of_the_readme_are_in_the_makefile() -> None:
    targets = set(re.findall(r"^make (\w+)", README, re.MULTILINE)) | set(re.findall(r"`make (\w+)", README))

    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")

    assert targets
    assert {target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()
