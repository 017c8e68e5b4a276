"""Anthropic through its own SDK: message batches, and synchronous messages.

A batch is created from bytes that lie on disk, in one call without a retry. It carries no metadata, so our shard is
known again by the time, the number of requests, and, once it has ended, by the shard's part of its custom ids.
Results are read by our own splitter: the SDK's decoder gives up a whole file for one bad line.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import anthropic
import httpx2
import polars as pl

from lotwise.errors import CreateUncertain, ResultsGone
from lotwise.executors import anthropic_dialect as dialect
from lotwise.executors import encode, jsonl
from lotwise.executors.anthropic_account import AnthropicService
from lotwise.executors.live import Answer
from lotwise.executors.reading import count, mapping, text_of, word
from lotwise.executors.sdk import (
    Fault,
    StreamedResponse,
    attempt,
    document,
    first_ids,
    id_of,
    newer,
    pages,
    save,
)
from lotwise.executors.service import Batches, Interactive
from lotwise.request import Listed, Observation, Phase, Shard, Spec

T = TypeVar("T")
_BATCHES = "/v1/messages/batches"
_RUNNING = frozenset({"in_progress", "canceling"})


class AnthropicExecutor(AnthropicService, Batches[anthropic.Anthropic]):
    """Shards as message batches."""

    def batches(self, client: anthropic.Anthropic) -> Any:
        return client.messages.batches

    def refuse(self, spec: Spec) -> None:
        dialect.refuse_params(spec, batch=True)
        dialect.body_parts(spec)

    def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> str:
        """Encode a `REQUESTS` frame into the body of the create call, on disk; sends nothing, may be repeated.

        Returns
        -------
        str
            The path of a file of mode 0600, which `create` removes.

        Raises
        ------
        CreateRejected
            The ids are at fault.
        """
        encode.check_ids(requests)
        path = jsonl.private_file(f"-{shard.id}.json", self.options.temp_dir)
        separator = ",\n"
        try:
            path.write_bytes(b'{"requests":[')
            for part in encode.lines(requests, self.parts_for(spec), spec.max_tokens, dialect.ENVELOPE):
                jsonl.append_lines(path, part["line"], end=separator)
            with path.open("r+b") as body:
                if len(requests):
                    body.seek(-len(separator), io.SEEK_END)
                    body.truncate()
                body.seek(0, io.SEEK_END)
                body.write(b"]}")
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return str(path)

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        """Create the batch, once, and return its id; the prepared file is removed whatever comes of it.

        Raises
        ------
        CreateRejected
            The provider certainly took nothing.
        CreateUncertain
            The answer was lost, or says nothing: it may have been taken.

        Notes
        -----
        The body is sent from disk in pieces; memory stays bounded.
        """
        once = self.client.with_options(max_retries=0, timeout=self.options.create_timeout_s)
        path = Path(prepared)
        try:
            with path.open("rb") as body:
                got = attempt(
                    lambda: document(
                        _Raw(once.post(_BATCHES, cast_to=httpx2.Response, content=body)),
                    ),
                    self.errors,
                )
        finally:
            path.unlink(missing_ok=True)
        if isinstance(got, Fault):
            raise got.of_create()
        batch_id = id_of(got)
        if batch_id is None:
            raise CreateUncertain("no_batch_id")
        return batch_id

    def poll(self, batch_id: str) -> Observation:
        """Look at one batch.

        Raises
        ------
        BatchNotFound
            This account has no such batch.
        Unreachable
            The provider did not answer.
        """
        batch = self.batch(batch_id)
        state = word(batch.get("processing_status")) or "absent"
        counts = mapping(batch.get("request_counts"))
        failed = [n for name in ("errored", "canceled", "expired") if (n := count(counts.get(name))) is not None]
        phase = Phase.ENDED if state == "ended" else Phase.RUNNING if state in _RUNNING else Phase.UNKNOWN
        return Observation(
            phase=phase,
            provider_state=state,
            done=count(counts.get("succeeded")),
            failed=sum(failed) if failed else None,
        )

    def fetch(self, batch_id: str) -> Iterator[list[bytes]]:
        """Yield the lines of the results in lists.

        Raises
        ------
        BatchNotFound, Unreachable
            As in `poll`; also a download that broke off, of which nothing was yielded.
        ResultsGone
            The batch names no results, or they are not there.

        Notes
        -----
        The results are on disk before the first line is yielded. Memory is one list.
        """
        with jsonl.temporary_path(".download", self.options.temp_dir) as path:
            self._with_results(batch_id, lambda response: save(response, path))
            yield from jsonl.in_lists(jsonl.split_lines(jsonl.read_file(path)))

    def first_ids(self, batch_id: str, limit: int = 10) -> list[str]:
        """Return up to `limit` custom ids of an ended batch, to confirm whose it is.

        Raises
        ------
        BatchNotFound, Unreachable, ResultsGone
            As in `fetch`.
        """
        return self._with_results(batch_id, lambda response: first_ids(response, limit))

    def _with_results(self, batch_id: str, use: Callable[[StreamedResponse], T]) -> T:
        """Open the results of a batch as a stream and return what is made of it."""
        batch = self.batch(batch_id)
        if not batch.get("results_url"):
            raise ResultsGone.of(batch_id, "archived" if batch.get("archived_at") else "no_results_url")
        client = self.client

        def run() -> T:
            with client.messages.batches.with_streaming_response.results(batch_id) as response:
                return use(response)

        got = attempt(run, self.errors)
        if isinstance(got, Fault):
            raise ResultsGone.of(batch_id, "results_not_found") if got.absent else got.unreachable()
        return got

    def list(self, *, since: datetime) -> Iterator[Listed]:
        """Yield this account's batches created at or after `since` by the provider's clock, newest first.

        Raises
        ------
        Unreachable
            A page did not come, or the list has no end: absence may not be concluded.

        Notes
        -----
        `shard_id` is always None here: confirm by `first_ids` once a batch has ended.
        """

        def page(after: str | None) -> dict[str, Any] | Fault:
            start: Any = anthropic.omit if after is None else after
            return self.get(
                lambda client: client.messages.batches.with_raw_response.list(
                    after_id=start, limit=self.options.list_page
                )
            )

        for batch in newer(pages(page), _created_at, since.replace(microsecond=0)):
            counts = [n for n in map(count, mapping(batch.get("request_counts")).values()) if n is not None]
            yield Listed(
                batch_id=str(batch["id"]),
                created_at=_created_at(batch),
                n_requests=sum(counts) if counts else None,
                ended=batch.get("processing_status") == "ended",
            )

    def delete(self, batch_id: str) -> None:
        """Delete an ended batch with its results; one that is gone already is left so.

        Raises
        ------
        Unreachable
            The provider did not answer, or the batch has not ended.
        """
        got = self.get(lambda client: client.messages.batches.with_raw_response.delete(batch_id))
        if isinstance(got, Fault) and not got.absent:
            raise got.unreachable()


class AnthropicInteractive(AnthropicService, Interactive[anthropic.Anthropic]):
    """Requests as synchronous calls."""

    def refuse(self, spec: Spec) -> None:
        dialect.refuse_params(spec, batch=False)
        dialect.body_parts(spec)

    def path(self) -> str:
        return dialect.PATH

    def answer_line(self, answer: Answer) -> bytes:
        return dialect.answer_line(answer)


@dataclass(frozen=True)
class _Raw:
    """A bare HTTP answer in the form that `document` takes."""

    http_response: httpx2.Response


def _created_at(batch: Mapping[str, Any]) -> datetime:
    told = text_of(batch.get("created_at"))
    try:
        made = datetime.fromisoformat(told or "")
    except ValueError:
        # Without a time it may be anyone's, so it is in: leaving it out could leave an orphan out.
        return datetime.now(UTC)
    return made if made.tzinfo else made.replace(tzinfo=UTC)
