"""OpenAI, and every service that speaks its dialect, through its own SDK: files and batches, and synchronous calls.

The client takes the user's own environment (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``, ...). A shard is uploaded as a
file, which charges nothing; the one call that may charge is the create, made once, with our shard and run ids in the
batch's metadata, where a crash finds them again. In every final state both the output and the error file are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import openai
import polars as pl

from lotwise.errors import CreateUncertain, ResultsGone, Unreachable
from lotwise.executors import encode, jsonl
from lotwise.executors import openai_dialect as dialect
from lotwise.executors.live import Answer
from lotwise.executors.openai_account import OpenAIService
from lotwise.executors.reading import count, items_of, mapping, word
from lotwise.executors.sdk import Fault, attempt, document, first_ids, id_of, newer, pages, save
from lotwise.executors.service import Batches, Interactive
from lotwise.request import Listed, Observation, Phase, Shard, Spec

_RUNNING = frozenset({"validating", "in_progress", "finalizing", "cancelling", "canceling", "queued", "pending"})
_ENDED = frozenset({"completed", "expired", "cancelled", "canceled"})
_MILLISECONDS = 10**11
"""Times from here on are no seconds, but the milliseconds that some gateways write."""


class OpenAIExecutor(OpenAIService, Batches[openai.OpenAI]):
    """Shards as provider batches: files, batches, and both result files."""

    def batches(self, client: openai.OpenAI) -> Any:
        return client.batches

    def prepare(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> str:
        """Encode a `REQUESTS` frame and upload it; charges nothing, may be repeated.

        Returns
        -------
        str
            The id of the uploaded file.

        Raises
        ------
        CreateRejected
            The ids are at fault, or the provider refuses the file or the account.
        Unreachable
            The upload did not get through.
        """
        given = self.options
        encode.check_ids(requests)
        expires: Any = openai.omit
        if given.input_expires_s is not None:
            expires = {"anchor": "created_at", "seconds": given.input_expires_s}
        client = self.client
        with jsonl.temporary_path(".jsonl", given.temp_dir) as path:
            rows = encode.lines(requests, self.parts_for(spec), spec.max_tokens, dialect.envelope(given.endpoint))
            for part in rows:
                jsonl.append_lines(path, part["line"])
            with path.open("rb") as source:
                got = attempt(
                    lambda: document(
                        client.files.with_raw_response.create(
                            file=(f"lotwise-{shard.id}.jsonl", source),
                            purpose="batch",
                            expires_after=expires,
                        )
                    ),
                    self.errors,
                )
        if isinstance(got, Fault):
            raise got.of_upload()
        file_id = id_of(got)
        if file_id is None:
            raise Unreachable("no_file_id")
        return file_id

    def create(self, shard: Shard, spec: Spec, prepared: str) -> str:
        """Create the batch, once, and return its id.

        Raises
        ------
        CreateRejected
            The provider certainly took nothing.
        CreateUncertain
            The answer was lost, or says nothing: it may have been taken.
        """
        given = self.options
        expires: Any = openai.omit
        if given.output_expires_s is not None:
            expires = {"anchor": "created_at", "seconds": given.output_expires_s}
        once = self.client.with_options(max_retries=0, timeout=given.create_timeout_s)
        got = attempt(
            lambda: document(
                once.batches.with_raw_response.create(
                    input_file_id=prepared,
                    endpoint=dialect.PATHS[given.endpoint],
                    completion_window="24h",
                    metadata={"lotwise_shard": shard.id, "lotwise_run": shard.run_id},
                    output_expires_after=expires,
                )
            ),
            self.errors,
        )
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
        state = word(batch.get("status")) or "absent"
        counts = mapping(batch.get("request_counts"))
        done, failed = count(counts.get("completed")), count(counts.get("failed"))
        seen = Observation(phase=Phase.UNKNOWN, provider_state=state, done=done, failed=failed)
        known = state.lower()
        if known in _RUNNING:
            return replace(seen, phase=Phase.RUNNING)
        if known in _ENDED or (known == "failed" and (_files(batch) or done)):
            # Also a failed batch can hold finished, billed rows; where it left a file, the file is read.
            return replace(seen, phase=Phase.ENDED)
        if known != "failed":
            return seen
        faults = items_of(mapping(batch.get("errors")).get("data"))
        reason = next((w for fault in faults if (w := word(mapping(fault).get("code")))), "failed")
        return replace(seen, phase=Phase.REJECTED, reason=reason, wait=reason == "token_limit_exceeded")

    def fetch(self, batch_id: str) -> Iterator[list[bytes]]:
        """Yield the lines of the output file, then of the error file, in lists.

        Raises
        ------
        BatchNotFound, Unreachable
            As in `poll`; also a download that broke off, of which nothing was yielded.
        ResultsGone
            A file that the batch names is not there; raised after the other one was yielded.

        Notes
        -----
        Each file is on disk before its first line is yielded. Memory is one list.
        """
        gone = False
        for file_id in _files(self.batch(batch_id)):
            with jsonl.temporary_path(".download", self.options.temp_dir) as path:
                fault = self._download(file_id, path)
                if fault is None:
                    yield from jsonl.in_lists(jsonl.split_lines(jsonl.read_file(path)))
                elif fault.absent:
                    gone = True
                else:
                    raise fault.unreachable()
        if gone:
            raise ResultsGone.of(batch_id, "file_not_found")

    def first_ids(self, batch_id: str, limit: int = 10) -> list[str]:
        """Return up to `limit` custom ids of an ended batch, to tell whose one without our metadata is.

        Raises
        ------
        BatchNotFound, Unreachable, ResultsGone
            As in `fetch`.
        """
        found: list[str] = []
        for file_id in _files(self.batch(batch_id)):
            ids = self._first_ids(file_id, limit - len(found))
            if isinstance(ids, Fault):
                raise ResultsGone.of(batch_id, "file_not_found") if ids.absent else ids.unreachable()
            found += ids
            if len(found) >= limit:
                break
        return found

    def _first_ids(self, file_id: str, limit: int) -> list[str] | Fault:
        client = self.client

        def run() -> list[str]:
            with client.files.with_streaming_response.content(file_id) as response:
                return first_ids(response, limit)

        return attempt(run, self.errors)

    def _download(self, file_id: str, path: Path) -> Fault | None:
        client = self.client

        def run() -> None:
            with client.files.with_streaming_response.content(file_id) as response:
                save(response, path)

        return attempt(run, self.errors)

    def list(self, *, since: datetime) -> Iterator[Listed]:
        """Yield this account's batches created at or after `since` by the provider's clock, newest first.

        Raises
        ------
        Unreachable
            A page did not come, or the list has no end: absence may not be concluded.
        """

        def page(after: str | None) -> dict[str, Any] | Fault:
            start: Any = openai.omit if after is None else after
            return self.get(
                lambda client: client.batches.with_raw_response.list(after=start, limit=self.options.list_page)
            )

        for batch in newer(pages(page), _created_at, since.replace(microsecond=0)):
            shard_id = mapping(batch.get("metadata")).get("lotwise_shard")
            yield Listed(
                batch_id=str(batch["id"]),
                created_at=_created_at(batch),
                shard_id=shard_id if isinstance(shard_id, str) else None,
                n_requests=count(mapping(batch.get("request_counts")).get("total")),
                ended=str(batch.get("status")).lower() in _ENDED | {"failed"},
            )

    def delete(self, batch_id: str) -> None:
        """Delete the input, output and error file of a batch; the batch object itself stays, without content.

        Raises
        ------
        BatchNotFound, Unreachable
            As in `poll`.
        """
        batch = self.batch(batch_id)
        given = batch.get("input_file_id")
        for file_id in (*([given] if isinstance(given, str) and given else []), *_files(batch)):
            self._delete_file(file_id)

    def _delete_file(self, file_id: str) -> None:
        got = self.get(lambda client: client.files.with_raw_response.delete(file_id))
        if isinstance(got, Fault) and not got.absent:
            raise got.unreachable()


class OpenAIInteractive(OpenAIService, Interactive[openai.OpenAI]):
    """Requests as synchronous calls."""

    def path(self) -> str:
        return dialect.PATHS[self.options.endpoint].removeprefix("/v1")

    def answer_line(self, answer: Answer) -> bytes:
        return dialect.answer_line(answer)


def _files(batch: Mapping[str, Any]) -> list[str]:
    """Return the ids of output and error file that are there: some servers write "" for none."""
    named = [batch.get("output_file_id"), batch.get("error_file_id")]
    return list(dict.fromkeys(name for name in named if isinstance(name, str) and name))


def _created_at(batch: Mapping[str, Any]) -> datetime:
    told = count(batch.get("created_at"))
    if told is None or told >= 1_000 * _MILLISECONDS:
        # Without a time it may be anyone's, so it is in: leaving it out could leave an orphan out.
        return datetime.now(UTC)
    return datetime.fromtimestamp(told / 1_000 if told >= _MILLISECONDS else told, UTC)
