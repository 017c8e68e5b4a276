"""Runs in which everything goes wrong at once: what the ledger counts is what the provider did, row for row."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from emulator import Emulator, RowFault
from journey.clouds import PROVIDERS, Cloud

N = 400
ANSWER = {
    "type": "object",
    "properties": {"category": {"enum": ["bug", "how-to"]}, "note": {"type": "string"}},
    "required": ["category", "note"],
    "additionalProperties": False,
}
FAULTS = (
    RowFault(kind="bad_request", fraction=0.01),
    RowFault(kind="refused", fraction=0.02),
    RowFault(kind="truncated", fraction=0.02),
    RowFault(kind="invalid_json", fraction=0.03),
    RowFault(kind="expired", fraction=0.05, times=1),
    RowFault(kind="server_error", fraction=0.03, times=1),
)
CODES = {
    "ok": "ok",
    "bad_request": "bad_request",
    "refused": "refused",
    "truncated": "truncated",
    "invalid_json": "ok",  # an answer to the provider; that it is none is the validator's word
    "expired": "expired",
    "server_error": "server_error",
}
# What a request's last outcome makes of its row: state and reason.
ENDS = {
    "ok": ("succeeded", None),
    "bad_request": ("dead_lettered", "bad_request"),
    "refused": ("refused", "refused"),
    "truncated": ("invalid", "truncated"),
    "invalid_json": ("invalid", "invalid_json"),
}


def marked(word: str, n: int) -> list[str]:
    return [f"{word} {i}" for i in range(n)]


@pytest.mark.parametrize("provider", PROVIDERS)
def test_counts_by_state_and_reason_are_the_providers_truth(tmp_path: Path, emulator: Emulator, provider: str) -> None:
    deliveries = (
        RowFault(kind="duplicate", marker="twice"),
        RowFault(kind="unknown_id", marker="stranger"),
        RowFault(kind="torn", marker="broken", times=1),
    )
    emulator.set_faults(rows=(*FAULTS, *deliveries), seed=7)
    texts = [*marked("row", N - 4), "twice 0", "twice 1", "stranger", "broken"]
    here = Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": texts}),
        emulator,
        provider,
        schema=ANSWER,
        # Truncated answers are dear beside the others here, and asking for them again may cost more than its share.
        options={"shard_rows": 140, "lease_s": 6_000.0, "retry_spend": None},
        speed=60.0,
    )
    rows = here.call().rows

    last: dict[str, str] = {}
    seen: list[tuple[str, str]] = []
    billed: Counter[str] = Counter()
    for batch in here.batches():
        for custom_id, row in batch["rows"].items():
            key = custom_id.partition("-")[2]
            last[key] = row["outcome"]
            billed[key] += row["billed"]
            if row["delivery"] in ("once", "duplicate", "unknown_id"):
                seen.append((custom_id, CODES[row["outcome"]]))
    assert len(last) == N
    shown = {
        key: (state, error and error.partition(":")[0])
        for key, state, error in rows.select("llm_id", "llm_state", "llm_error").iter_rows()
    }
    assert shown == {key: ENDS[outcome] for key, outcome in last.items()}

    recorded = here.sql("SELECT shard || '-' || key AS id, code FROM result")
    assert Counter(recorded.rows()) == Counter(seen)
    strays = Counter(here.sql("SELECT why FROM stray")["why"].to_list())
    delivered = Counter(row["delivery"] for batch in here.batches() for row in batch["rows"].values())
    assert min(delivered[kind] for kind in ("duplicate", "torn", "unknown_id")) > 0
    assert strays == {
        "duplicate": delivered["duplicate"],
        "unreadable": delivered["torn"],
        "unknown": delivered["unknown_id"],
    }
    sums = here.sql("SELECT sum(n_requests) AS sent, sum(n_results) AS results FROM shard").row(0, named=True)
    assert sums["results"] == len(recorded)
    assert sums["sent"] == sum(len(batch["rows"]) for batch in here.batches())

    unbilled = here.sql(
        "SELECT count(*) AS n FROM request WHERE state = 'dead_lettered' AND reason IN ('expired', 'server_error')"
    )
    assert unbilled["n"].item() == 0
    why = dict(here.sql("SELECT key, string_agg(why, ' ' ORDER BY n) AS why FROM attempt GROUP BY key").iter_rows())
    for key, n in billed.items():
        assert n <= 1 or any(word in why[key] for word in ("changed:", "unreturned", "unreadable")), why[key]
    here.assert_clean()
