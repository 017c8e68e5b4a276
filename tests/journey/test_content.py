"""Strings that break software, and many languages, go through as content and come back to their own rows."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import lotwise
from journey.harness import SHARED
from lotwise.testing import ScriptedExecutor

NAUGHTY = SHARED / "data" / "naughty_strings.json"
LANGUAGES = SHARED / "data" / "languages.parquet"
STAND_INS = (
    "", " ", "\x00\x01\x1b", "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e", "\u200b\u200f\u202e reversed", "{text} {{text}}",
    '"quoted" \\ back\\slash', "'; DROP TABLE request; --", "<script>alert(1)</script>", "\ufeffBOM", "null", "NaN",
    "%s %d $HOME `id`", "e\u0301 \u00e9", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\r\n\t", "a" * 20_000,
)  # fmt: skip
STAND_IN_LANGUAGES = (
    "Guten Tag, wie geht es?", "今日は天気がいいです。", "مرحبا بالعالم", "שלום עולם", "สวัสดีชาวโลก", "Привет, мир",
    "नमस्ते दुनिया", "안녕하세요 세계", "Xin chào thế giới", "ამინდი კარგია", "Γειά σου Κόσμε", "你好，世界",
)  # fmt: skip


def naughty() -> list[str]:
    if not NAUGHTY.exists():
        return list(STAND_INS)
    return [*json.loads(NAUGHTY.read_text(encoding="utf-8")), *STAND_INS]


def languages() -> list[str]:
    if not LANGUAGES.exists():
        return list(STAND_IN_LANGUAGES)
    return pl.read_parquet(LANGUAGES)["text"].to_list()


@pytest.mark.parametrize("texts", [naughty(), languages()], ids=["naughty strings", "languages"])
@pytest.mark.parametrize("schema", [None, {"said": pl.String}], ids=["as text", "in a field"])
def test_every_text_comes_back_to_its_own_row_and_is_sent_once(
    tmp_path: Path, texts: list[str], schema: dict[str, pl.DataType] | None
) -> None:
    twice = [*texts, *reversed(texts)]
    out = pl.DataFrame({"text": twice}).llm.map(
        ">{text}",
        schema,
        model="scripted:echo",
        ledger=tmp_path / "ledger",
        progress=False,
        poll_s=0.01,
        options=lotwise.Options(executor_options={"folder": tmp_path / "provider"}),
    )
    assert out["answer" if schema is None else "said"].to_list() == [f">{text}" for text in twice]
    assert set(out["llm_state"]) == {"succeeded"}
    bill = ScriptedExecutor(tmp_path / "provider").bill()
    assert sorted(bill["content"].to_list()) == sorted({f">{text}" for text in texts})
    assert bill["key"].n_unique() == bill.height == out["llm_id"].n_unique()


def test_text_is_never_read_as_a_template(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": ["{b}", "{{a}}", "{nothing}"], "b": ["secret"] * 3})
    out = frame.llm.map("{a}|{b}", model="scripted:echo", ledger=tmp_path / "ledger", progress=False, poll_s=0.01)
    assert out["answer"].to_list() == ["{b}|secret", "{{a}}|secret", "{nothing}|secret"]
