"""Planted secrets: no key and no row content in logs, errors, their chains, `llm_error` or what is shown."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import lotwise
from emulator import BatchFault, Emulator, Faults, HttpFault, RowFault
from journey.clouds import CREATE, DOWNLOAD, PROVIDERS, Cloud
from journey.worker import Stop

ROW = "PLANTEDROWCONTENT"
KEY = "sk-PLANTEDKEY"
TEXTS = [f"{ROW} {i}" for i in range(40)]
SCHEMA = {
    "type": "object",
    "properties": {"label": {"enum": ["a", "b"]}, "said": {"type": "string"}},
    "required": ["label", "said"],
    "additionalProperties": False,
}
KINDS = ("bad_request", "refused", "truncated", "invalid_json", "schema_mismatch", "prose", "empty")
BAD_ROWS = (
    *(RowFault(kind=kind, fraction=0.08) for kind in KINDS),
    RowFault(kind="torn", fraction=0.1, times=1),
    RowFault(kind="unknown_id", fraction=0.1),
)

# What goes wrong beside the rows, and the error of the call, if it is one.
TROUBLES: dict[str, tuple[Faults, str | None]] = {
    "bad rows and lost calls": (
        Faults(
            answers="echo",
            rows=BAD_ROWS,
            http=(
                HttpFault(endpoint=CREATE, action="reply", status=500, times=1),
                HttpFault(endpoint="batches.retrieve", action="reject", status=404, times=1),
                HttpFault(endpoint=DOWNLOAD["openai"], action="cut", after_bytes=300, times=1),
                HttpFault(endpoint=DOWNLOAD["anthropic"], action="cut", after_bytes=300, times=1),
            ),
        ),
        None,
    ),
    "the key is not taken": (Faults(keys=("another",)), "MissingCredentials"),
    "a create is refused": (
        Faults(http=(HttpFault(endpoint=CREATE, action="reject", status=400),)),
        "ShardRejected",
    ),
    "no credit": (Faults(credit_rows=5), "AccountBlocked"),
    "a batch fails": (Faults(batches=(BatchFault(kind="fail", value="invalid_model"),)), "ShardRejected"),
}


CASES = [
    pytest.param(
        provider,
        *trouble,
        id=f"{name}-{provider}",
        # The short run has each trouble once, and the one with all kinds of rows at both providers.
        marks=[] if provider == "openai" or name == "bad rows and lost calls" else [pytest.mark.soak],
    )
    for name, trouble in TROUBLES.items()
    for provider in PROVIDERS
]


def assert_silent(text: str) -> None:
    for secret in (ROW, KEY):
        assert secret not in text, text[max(0, text.index(secret) - 400) : text.index(secret) + 100]


@pytest.mark.parametrize(("provider", "faults", "error"), CASES)
def test_nothing_that_is_written_or_shown_holds_a_secret(
    tmp_path: Path, running: Emulator, provider: str, faults: Faults, error: str | None
) -> None:
    if provider == "anthropic" and faults.batches:
        faults = Faults(http=(HttpFault(endpoint=CREATE, action="reject", status=413),))
    running.set_faults(**faults.to_json())
    here = Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": TEXTS}),
        running,
        provider,
        schema=SCHEMA,
        api_key=f"{KEY}-{provider}-{tmp_path.name}",
        arguments={"progress": True},
        options={"systemic_rate": None, "lease_s": 6_000.0},
        speed=60.0,
    )
    if error is None:
        here.call(Stop(at="after commit: record"))
    ended = here.call()
    assert ended.error == error, ended.message
    assert_silent(ended.log)
    assert_silent(ended.message)
    assert_silent((here.folder / "call-1" / "result.json").read_text() if error else "")
    if ended.frame is not None:
        told = ended.frame.select(pl.col("^llm_.*$").cast(pl.String))
        assert_silent("\n".join(text or "" for column in told for text in column))
    if not here.ledger_path.exists():
        return
    handle = lotwise.open_ledger(here.ledger_path)
    for run in handle.runs()["id"]:
        status = handle.status(run)
        assert_silent(f"{status}{status!r}{status._repr_html_()}{handle!r}")
        assert_silent(str(handle.missing(run).to_dicts()))
    for path in here.ledger_path.rglob("*"):
        if path.is_file():
            assert KEY.encode() not in path.read_bytes()
    assert_silent(str(here.sql("SELECT * EXCLUDE (raw, raw_blob) FROM stray").to_dicts()))
    for table in ("shard", "event", "run", "attempt"):
        assert_silent(str(here.sql(f"SELECT * FROM {table}").to_dicts()))


@pytest.mark.parametrize("tier", ["batch", "interactive"])
@pytest.mark.parametrize("provider", PROVIDERS)
def test_debug_logs_of_every_library_hold_no_secret(
    tmp_path: Path, running: Emulator, provider: str, tier: str
) -> None:
    """As with OPENAI_LOG=debug and ANTHROPIC_LOG=debug, which set these levels, and for every other logger."""
    running.set_faults(**TROUBLES["bad rows and lost calls"][0].to_json())
    here = Cloud(
        tmp_path / "desk",
        pl.DataFrame({"text": TEXTS}),
        running,
        provider,
        schema=SCHEMA,
        api_key=f"{KEY}-{provider}-{tmp_path.name}",
        arguments={
            "tier": tier,
            "system": f"Judge the text. {ROW}",
            "examples": [({"text": ROW}, {"label": "a", "said": ROW})],
        },
        options={"systemic_rate": None, "lease_s": 6_000.0},
        speed=60.0,
        log="DEBUG",
    )
    ended = here.call()
    assert ended.error is None, ended.message
    sdk = {"openai": "openai._base_client", "anthropic": "anthropic._base_client"}[provider]
    for logger in (sdk, "httpcore2.http11"):
        assert f" {logger} " in ended.log, "this logger said nothing, so nothing of it was tested"
    assert_silent(ended.log)
