"""Requests in the ledger: what is asked, what of it waits to be sent, and what each has come to."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from lotwise.errors import LedgerInconsistent
from lotwise.ledger import parts
from lotwise.ledger.store import Ledger
from lotwise.plan import json_bytes


def enroll(ledger: Ledger, spec: str, requests: pl.DataFrame, now: datetime) -> int:
    """Write down requests that the ledger does not have yet, as pending, and return how many there were.

    `requests` has distinct `key` and `content`. The content is durable in a part before the transaction that names
    it.
    """
    new = unknown(ledger, requests)
    new = new.with_columns(json_bytes(new["content"]))
    while not new.is_empty():
        part = parts.write(ledger.parts_folder, new)
        with ledger.transaction("enroll") as tx:
            if not parts.exists(ledger.parts_folder, part):
                continue  # a purge in another process took it for the rest of a crash
            keyed = {"k": new.select("key", "content_bytes")}
            count = tx.run("enroll", frames=keyed, spec=spec, part=part)
            if count != new.height:
                tx.run("restore_content", frames=keyed, part=part)
            tx.run("insert_part", part=part, n_requests=new.height, bytes=int(new["content_bytes"].sum()), now=now)
        return count
    return 0


def unknown(ledger: Ledger, requests: pl.DataFrame) -> pl.DataFrame:
    """Return those of the requests (a frame with `key`) whose content the ledger needs: it does not have them, or
    they are to be sent and their content was purged."""
    with ledger.reading("known") as tx:
        known = tx.frame("known_keys", frames={"k": requests.select("key")})
    return requests.join(known, on="key", how="anti", maintain_order="left")


def pending(ledger: Ledger, run: str) -> pl.DataFrame:
    """Return a run's requests that wait to be sent: `key`, `part`, `content_bytes`, `due_at`, `faults`, ..."""
    with ledger.reading("pending") as tx:
        return tx.frame("pending", run=run)


def contents(ledger: Ledger, requests: pl.DataFrame) -> pl.DataFrame:
    """Return the frame (with `key` and `part`) with each request's rendered `content`, in the same order."""
    held = requests.filter(pl.col("part") != "")["part"].unique().to_list()
    texts = parts.read(ledger.parts_folder, held, requests["key"])
    joined = requests.join(texts, on="key", how="left", maintain_order="left")
    lacking = int(joined["content"].null_count())
    if lacking:
        raise LedgerInconsistent.of("the content of some pending requests is gone", requests=lacking)
    return joined


def reopen(ledger: Ledger, keys: pl.Series, origin: str, why: str) -> int:
    """Open another attempt of ended requests because the user asked, and return how many there were."""
    with ledger.transaction("reopen") as tx:
        return tx.run("reopen", frames={"k": pl.DataFrame({"key": keys})}, why=why, origin=origin)


def give_up(ledger: Ledger, keys: pl.Series, to_state: str, reason: str) -> int:
    """End pending requests that may not be sent (again), with the reason."""
    with ledger.transaction("give up") as tx:
        return tx.run("give_up_due", frames={"k": pl.DataFrame({"key": keys})}, to_state=to_state, reason=reason)


def answers(ledger: Ledger, keys: pl.Series, validator: str) -> pl.DataFrame:
    """Return what each distinct key's row shows: `key`, `state`, `reason`, `faults`, `detail`, `attempts`, `value`.

    `detail` is the provider's word for what ended by its own fault.
    """
    with ledger.reading("answers") as tx:
        return tx.frame("answers", frames={"k": pl.DataFrame({"key": keys})}, validator=validator)
