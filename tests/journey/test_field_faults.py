"""What breaks such software in the field, against the emulated providers: one input and the right behaviour each."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import lotwise
from emulator import BatchFault, Emulator, HttpFault, RowFault
from journey.clouds import DOWNLOAD, PROVIDERS, RETRIEVE, Cloud
from journey.harness import Desk, until
from journey.worker import Stop
from lotwise import reconcile
from lotwise.errors import ClaimLost
from lotwise.ledger import shards as shard_book
from lotwise.testing import ScriptedExecutor

TEXTS = [f"row {i}" for i in range(8)]
FRAME = pl.DataFrame({"text": TEXTS})
ANSWER = {
    "type": "object",
    "properties": {"category": {"enum": ["bug", "how-to"]}, "note": {"type": "string"}},
    "required": ["category", "note"],
    "additionalProperties": False,
}
SEPARATORS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e"
providers = pytest.mark.parametrize("provider", PROVIDERS)


def run(here: Cloud, n_batches: int = 1) -> pl.DataFrame:
    """Make the call and check that nothing was lost or paid for twice."""
    rows = here.call().rows
    assert rows["answer"].to_list() == here.frame["text"].to_list()
    here.assert_each_charged_once(here.frame["text"].n_unique())
    assert len(here.batches()) == n_batches
    here.assert_clean()
    return rows


# --- result files and identity ------------------------------------------------------------------------------------


@providers
def test_lines_end_at_the_newline_byte_alone(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(rows=(RowFault(kind="line_separator"),))
    frame = pl.DataFrame({"text": [f"{i}{c}{i}" for i, c in enumerate(SEPARATORS)]})
    here = Cloud(tmp_path / "desk", frame, emulator, provider)
    rows = here.call().rows
    assert set(rows["llm_state"]) == {"succeeded"}
    raw = here.sql("SELECT key, raw FROM result")
    assert raw.height == len(SEPARATORS)
    by_key = dict(zip(rows["llm_id"], zip(frame["text"], rows["answer"], strict=True), strict=True))
    for key, line in raw.iter_rows():
        sent, got = by_key[key]
        assert sent in got
        assert any(c in line for c in SEPARATORS), "the line holds no raw separator, so nothing was tested"
    here.assert_clean()


FILES = {
    "no output file at all": ("no_output_file", RowFault(kind="server_error", times=1)),
    "a null error file": ("error_file_null", None),
    "an error file without an id": ("error_file_empty_id", None),
    "an error file of no bytes": ("error_file_zero_bytes", None),
    "an output and an error file": (None, RowFault(kind="server_error", fraction=0.5, times=1)),
}


@pytest.mark.parametrize(("batch", "row"), FILES.values(), ids=FILES.keys())
def test_every_key_ends_in_a_state_whatever_files_a_batch_has(
    tmp_path: Path, batch: str | None, row: RowFault | None
) -> None:
    batches = () if batch is None else (BatchFault(kind=batch, batches=(0,)),)
    with Emulator(tmp_path / "provider", batches=batches, rows=() if row is None else (row,)) as emulator:
        here = Cloud(tmp_path / "desk", FRAME, emulator, "openai", options={"lease_s": 6_000.0}, speed=60.0)
        run(here, n_batches=1 if row is None else 2)


@providers
def test_what_an_expired_batch_did_is_kept_and_only_the_rest_is_sent_again(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(rows=(RowFault(kind="expired", fraction=0.4, times=1),), seed=3)
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, options={"lease_s": 6_000.0}, speed=60.0)
    rows = run(here, n_batches=2)
    first, second = (batch["rows"] for batch in here.batches())
    late = {custom_id[17:] for custom_id, row in first.items() if row["outcome"] == "expired"}
    assert 0 < len(late) < len(TEXTS)
    assert {custom_id[17:] for custom_id in second} == late
    assert set(rows.filter(llm_attempts=2)["llm_id"]) == late


@providers
def test_a_torn_download_is_whole_the_second_time_and_buys_nothing(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(batches=(BatchFault(kind="torn_downloads", value=1),))
    run(Cloud(tmp_path / "desk", FRAME, emulator, provider))


@providers
def test_a_frame_reordered_or_filtered_meanwhile_joins_by_content_alone(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
    run(here)
    later = FRAME.reverse().filter(pl.col("text") != "row 3").with_columns(other=pl.lit(1))
    later.write_parquet(here.folder / "later.parquet")
    rows = here.call(source=here.folder / "later.parquet").rows
    assert rows["answer"].to_list() == later["text"].to_list()
    assert len(here.batches()) == 1


# --- submit and recovery ------------------------------------------------------------------------------------------


@providers
def test_a_call_for_the_batch_or_its_results_that_fails_is_made_again(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(
        http=(
            HttpFault(endpoint=RETRIEVE, action="reject", status=404, times=2),
            HttpFault(endpoint=RETRIEVE, action="reject", status=429, skip=2, times=1),
            HttpFault(endpoint=DOWNLOAD[provider], action="reject", status=404, times=1),
            HttpFault(endpoint=DOWNLOAD[provider], action="reject", status=500, skip=1, times=1),
            HttpFault(endpoint=DOWNLOAD[provider], action="cut", after_bytes=100, skip=2, times=1),
        )
    )
    rows = run(Cloud(tmp_path / "desk", FRAME, emulator, provider))
    assert set(rows["llm_attempts"]) == {1}


@providers
def test_a_state_that_nobody_knows_is_no_end(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(batches=(BatchFault(kind="unknown_state", value="pondering"),), batch_s=0.5)
    run(Cloud(tmp_path / "desk", FRAME, emulator, provider))


@providers
def test_a_create_that_is_replayed_makes_no_second_batch(
    tmp_path: Path, emulator: Emulator, provider: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider)
    for name, value in here.env(here.api_key).items():
        monkeypatch.setenv(name, value)
    stopped = here.start(Stop(at="after commit: intended to creating", how="STOP"))
    stopped.wait_stopped()
    shard = here.sql("SELECT id FROM shard")["id"].item()
    (seen,) = (row for row in shard_book.all_open(here.ledger) if row["id"] == shard)
    stopped.go_on()
    assert stopped.wait().rows["answer"].to_list() == TEXTS
    # What replays its work does once more what it did before, from what it saw then.
    run = lotwise.open_ledger(here.ledger_path).resume(seen["run"], progress=False)
    for state in ("intended", "creating"):
        with pytest.raises(ClaimLost):
            reconcile.submit(run._job, {**seen, "state": state})
    assert len(here.batches()) == 1
    here.assert_each_charged_once(len(TEXTS))
    here.assert_clean()


FINALIZING = {"openai": "finalizing", "anthropic": "in progress"}


@providers
def test_counts_at_their_full_number_are_no_rows_and_the_phase_and_time_are_shown(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(batches=(BatchFault(kind="slow_finalize", value=3_600.0),))
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, arguments={"progress": True})
    work = here.start()
    until(lambda: work.passed("after commit: creating to submitted"), "the batch to be made")
    emulator.advance(600)  # every row is done, and the batch is not
    polls = work.count("after poll")
    until(lambda: work.count("after poll") > polls + 1, "the batch to be polled")
    work.interrupt()
    told = work.wait().log
    assert re.search(rf"0 of 8 rows: 8 submitted; 1 shard {FINALIZING[provider]}, \d+:\d\d", told), told
    assert here.sql("SELECT * FROM result").is_empty()
    emulator.advance(4_000)
    run(here)


def test_a_rejected_shard_leaves_the_others_going(tmp_path: Path) -> None:
    fail = BatchFault(kind="fail", value="invalid_file_format", batches=(2,))
    with Emulator(tmp_path / "provider", batches=(fail,), batch_s=0.5) as emulator:
        here = Cloud(tmp_path / "desk", FRAME, emulator, "openai", options={"shard_rows": 2})
        stopped = here.call()
        assert stopped.error == "ShardRejected"
        assert "invalid_file_format" in stopped.message
        assert stopped.frame is not None
        assert Counter(stopped.frame["llm_state"].to_list()) == {"succeeded": 6, "pending": 2}
        # A machine that stands still for a second gives a shard up before it is created, and its rows go in another.
        assert {state: n for state, n in here.shards().items() if state != "lost"} == {"collected": 3, "rejected": 1}
        emulator.set_faults(batches=())
        run(here, n_batches=5)


def test_work_for_two_models_of_one_provider_is_never_mixed(tmp_path: Path, emulator: Emulator) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, "openai")
    both = [here.start(), here.start(model="openai:gpt-5-mini")]
    for child in both:
        assert child.wait().rows["answer"].to_list() == TEXTS
    charged = {(charge.batch, charge.model) for charge in here.bill()}
    assert len(charged) == 2
    assert {model for _, model in charged} == {"gpt-5-nano", "gpt-5-mini"}
    assert here.sql("SELECT count(DISTINCT id) AS n FROM run")["n"].item() == 2
    here.assert_each_charged_once(2 * len(TEXTS))


# --- limits -------------------------------------------------------------------------------------------------------


@providers
def test_shards_are_cut_by_encoded_bytes_and_a_row_too_large_fails_alone(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    limits = {"max_bytes": 8_000, "max_row_bytes": 3_000}
    emulator.set_faults(max_bytes=8_000)
    texts = ["é" * 800, "\x01" * 200, *(f"{i} " + "x" * 1_000 for i in range(8)), "y" * 5_000]
    here = Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": texts}),
        emulator,
        provider,
        options={"executor_options": {"limits": limits}},
    )
    rows = here.call().rows
    assert rows["answer"].to_list() == [*texts[:-1], None]
    assert rows["llm_state"].to_list() == [*["succeeded"] * 10, "dead_lettered"]
    assert rows["llm_error"].to_list() == [*[None] * 10, "oversize"]
    assert len(here.batches()) > 1
    here.assert_each_charged_once(10)


def test_a_batch_whose_every_row_failed_is_no_success(tmp_path: Path, emulator: Emulator) -> None:
    emulator.set_faults(rows=(RowFault(kind="bad_request"),))
    frame = pl.DataFrame({"text": [f"row {i}" for i in range(40)]})
    here = Cloud(tmp_path / "desk", frame, emulator, "openai", schema=ANSWER, options={"shard_rows": 20, "window": 1})
    stopped = here.call()
    assert stopped.error == "SystemicError"
    assert stopped.frame is not None
    assert Counter(stopped.frame["llm_state"].to_list()) == {"dead_lettered": 20, "pending": 20}
    assert stopped.frame.schema["category"] == pl.Enum(["bug", "how-to"])
    assert stopped.frame.schema["note"] == pl.String
    assert here.bill() == []


# --- what the model says ------------------------------------------------------------------------------------------

SAID: dict[str, tuple[str, str | None]] = {
    "ok": ("succeeded", None),
    "fenced": ("succeeded", None),
    "prose": ("succeeded", None),
    "refused": ("refused", "refused"),
    "content_filter": ("refused", "refused"),
    "truncated": ("invalid", "truncated"),
    "invalid_json": ("invalid", "invalid_json"),
    "schema_mismatch": ("invalid", "schema_mismatch"),
    "empty": ("invalid", "empty"),
    "bad_request": ("dead_lettered", "bad_request"),
    "not_found": ("dead_lettered", "bad_request"),
}


@providers
def test_each_fault_of_an_answer_is_told_apart(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(rows=tuple(RowFault(kind=kind, marker=f"<{kind}>") for kind in SAID if kind != "ok"))
    frame = pl.DataFrame({"text": [f"<{kind}>" for kind in SAID]})
    here = Cloud(tmp_path / "desk", frame, emulator, provider, schema=ANSWER, options={"systemic_rate": None})
    rows = here.call().rows
    shown = {
        kind: (state, error and error.partition(":")[0])
        for kind, state, error in zip(SAID, rows["llm_state"], rows["llm_error"], strict=True)
    }
    assert shown == SAID
    lenient = here.sql("SELECT key FROM validation WHERE lenient")["key"]
    assert set(lenient) == set(rows.filter(pl.col("text").is_in(["<fenced>", "<prose>"]))["llm_id"])
    here.assert_clean()


@providers
def test_an_answer_that_came_too_often_is_that_rows_alone_and_asked_again(
    tmp_path: Path, emulator: Emulator, provider: str
) -> None:
    emulator.set_faults(rows=(RowFault(kind="rate_limited", marker="row 3", times=1),))
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, options={"lease_s": 6_000.0}, speed=60.0)
    rows = run(here, n_batches=2)
    assert rows["llm_attempts"].to_list() == [2 if text == "row 3" else 1 for text in TEXTS]


@providers
def test_an_invalid_answer_is_asked_once_more_with_its_fault(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    emulator.set_faults(rows=(RowFault(kind="invalid_json", fraction=0.3, times=1),), seed=5)
    here = Cloud(tmp_path / "desk", FRAME, emulator, provider, schema=ANSWER, options={"systemic_rate": None})
    rows = here.call().rows
    assert set(rows["llm_state"]) == {"succeeded"}
    again = rows.filter(llm_attempts=2)
    assert 0 < again.height < len(TEXTS)
    charges = Counter(charge.key for charge in here.bill())
    assert {key for key, n in charges.items() if n == 2} == set(again["llm_id"])
    assert max(charges.values()) == 2
    why = here.sql("SELECT why, variant FROM attempt WHERE n = 2")
    assert set(why["why"]) == {"changed:invalid_json"}
    assert all("faults" in json.loads(variant) for variant in why["variant"])
    here.assert_clean()


# --- frames -------------------------------------------------------------------------------------------------------


def scripted(folder: Path, frame: pl.DataFrame, prompt: str = "{text}", **more: Any) -> pl.DataFrame:
    options = lotwise.Options(executor_options={"folder": folder / "provider"})
    given = {"model": "scripted:echo", "ledger": folder / "ledger", "progress": False, "poll_s": 0.01, **more}
    return lotwise.map(frame, prompt, options=options, **given)


def bill(folder: Path) -> list[str]:
    return ScriptedExecutor(folder / "provider").bill()["content"].to_list()


def test_rows_of_one_text_are_one_request(tmp_path: Path) -> None:
    out = scripted(tmp_path, pl.DataFrame({"text": ["same"] * 3 + ["other"]}))
    assert out["answer"].to_list() == ["same"] * 3 + ["other"]
    assert out["llm_id"].n_unique() == 2
    assert sorted(bill(tmp_path)) == ["other", "same"]


def test_a_prompt_without_columns_is_one_request_for_ten_thousand_rows(tmp_path: Path) -> None:
    out = scripted(tmp_path, pl.DataFrame({"i": range(10_000)}), "Say something.")
    assert set(out["answer"]) == {"Say something."}
    assert bill(tmp_path) == ["Say something."]


@pytest.mark.parametrize(("on_null", "answer", "state"), [("skip", None, "skipped"), ("render", "null", "succeeded")])
def test_a_null_is_skipped_unless_it_is_to_be_rendered(
    tmp_path: Path, on_null: str, answer: str | None, state: str
) -> None:
    out = scripted(tmp_path, pl.DataFrame({"text": ["a", None]}), on_null=on_null)
    assert out["answer"].to_list() == ["a", answer]
    assert out["llm_state"].to_list() == ["succeeded", state]
    assert len(bill(tmp_path)) == (1 if answer is None else 2)


def test_it_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    async def cell() -> pl.DataFrame:
        out = scripted(tmp_path, FRAME)
        await asyncio.sleep(0)  # the loop is the caller's own, as it was
        return out

    assert asyncio.run(cell())["answer"].to_list() == TEXTS


def test_a_hosted_call_works_inside_a_running_event_loop(
    tmp_path: Path, emulator: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Cloud(tmp_path / "desk", FRAME, emulator, "openai")
    for name, value in here.env(here.api_key).items():
        monkeypatch.setenv(name, value)

    async def cell() -> pl.DataFrame:
        return lotwise.preview(FRAME, "{text}", n=3, model="openai:gpt-5-nano", ledger=here.ledger_path, progress=False)

    assert asyncio.run(cell())["answer"].to_list() == TEXTS[:3]


def test_two_runs_of_one_call_never_share_an_identity(tmp_path: Path) -> None:
    scripted(tmp_path, FRAME)
    scripted(tmp_path, FRAME)
    assert lotwise.open_ledger(tmp_path / "ledger").runs()["id"].n_unique() == 2


def test_a_file_of_the_users_in_the_ledgers_folder_stays(tmp_path: Path) -> None:
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "notes.txt").write_text("mine", encoding="utf-8")
    scripted(tmp_path, FRAME)
    assert (tmp_path / "ledger" / "notes.txt").read_text(encoding="utf-8") == "mine"


def test_a_finished_run_can_be_called_for_from_a_saved_frame(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "desk", FRAME, arguments={"poll_s": 0.05, "progress": False})
    first = desk.call().rows
    saved = first.select("text")
    saved.write_parquet(desk.folder / "in.parquet")
    assert desk.call().rows["llm_id"].equals(first["llm_id"])
    assert desk.shards() == {"collected": 1}
