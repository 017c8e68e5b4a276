"""What the evidence columns of a million rows cost, against collecting them.

The run is written into a ledger as a provider's answers would have left it, its lot is drawn and read, and the frame is
collected as `Run.collect` does it: answers from the ledger, typed columns, evidence. Both clocks run in one process, so
that a busy machine slows both, and the median of the shares counts.
"""

from __future__ import annotations

import statistics
import time
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

import lotwise
import lotwise.testing
from lotwise import call as calls
from lotwise import join, lots
from lotwise.ledger import requests as request_book
from lotwise.ledger import runs as run_book
from lotwise.ledger.store import Ledger
from lotwise.shown import shown

ROWS, REPEATS, MOST = 1_000_000, 5, 0.1
NOW = datetime(2026, 1, 1, tzinfo=UTC)
GROUPS = 20

FILL = """
INSERT INTO manifest SELECT $run, substr(sha256(i::VARCHAR), 1, 40), 1 FROM range($n) t(i);
INSERT INTO request (key, spec, part, content_bytes, state, attempts)
    SELECT key, $spec, NULL, 10, 'answered', 1 FROM manifest WHERE run = $run AND key NOT IN (SELECT key FROM attempt);
INSERT INTO result (shard, key, code, raw, recorded_at)
    SELECT 'shard', key, 'ok', '{}', now() FROM manifest WHERE run = $run AND key NOT IN (SELECT key FROM attempt);
INSERT INTO validation
    SELECT 'shard', key, $validator, true, '{"answer":"' || key || '"}', NULL, NULL, false
    FROM manifest WHERE run = $run AND key NOT IN (SELECT key FROM attempt);
"""


@pytest.mark.soak
@pytest.mark.parametrize("accept", [lotwise.Acceptance(), lotwise.Acceptance(by="group")], ids=["one lot", "groups"])
def test_evidence_of_a_million_rows_costs_a_tenth_of_collecting_them(
    tmp_path: Path, accept: lotwise.Acceptance
) -> None:
    frame = pl.DataFrame({"text": ["x"], "group": ["0"]})
    arguments = {"model": "scripted:echo", "ledger": tmp_path, "accept": accept}
    call = calls.prepare(frame, "{text}", **arguments)
    ledger = Ledger.open(tmp_path)
    run = lotwise.submit(frame, "{text}", progress=False, **arguments).wait()
    about = {"run": run.id, "n": ROWS, "spec": call.spec_digest, "validator": call.validator.digest}
    with ledger.transaction("fill") as tx:
        for statement in FILL.split(";\n"):
            if statement.strip():
                named = {name: value for name, value in about.items() if f"${name}" in statement}
                tx._connection.execute(statement, named)
    keys = run_book.manifest(ledger, run.id)
    rows = pl.DataFrame({"text": keys, "group": (pl.int_range(keys.len(), eager=True) % GROUPS).cast(pl.String)})
    labels = lots.labels_of(rows, accept)
    grouped = lots.rows_of(keys, labels)
    family = lots.Family.of(
        job="job", validator=call.validator.digest, run=run.id, accept=accept, said=True, rows=grouped
    )
    lots.name(ledger, family, grouped, NOW)
    began = time.perf_counter()
    assert lots.close(ledger, family, NOW) == (GROUPS if accept.by else 1)
    drawn = time.perf_counter() - began
    sample = lotwise.sample(
        tmp_path, lot=[family.lot(label) for label in ([None] if labels is None else labels.unique())]
    )
    lotwise.inspect(sample.with_columns(verdict=pl.lit("good"), inspector=pl.lit("ana")), tmp_path)

    shares, took = [], []
    for _ in range(REPEATS):
        began = time.perf_counter()
        answers = request_book.answers(ledger, keys.drop_nulls().unique(), call.validator.digest)
        between = time.perf_counter()
        known = shown(ledger, family, keys, labels, answers, NOW)
        evidence = time.perf_counter() - between
        out = join.attach(rows.rename({"group": "kept"}), keys, answers, call, known)
        took.append(time.perf_counter() - began)
        began = time.perf_counter()
        join._evidence(keys, known)
        shares.append((evidence + time.perf_counter() - began) / took[-1])

    assert out["llm_decision"].unique().to_list() == ["release"]
    print(
        f"drawing {drawn:.1f} s, collecting {statistics.median(took):.2f} s, "
        f"evidence {statistics.median(shares):.3f} of it"
    )
    assert statistics.median(shares) < MOST
