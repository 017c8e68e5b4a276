"""What every hosted provider's executors promise, asked through the real SDK of an emulated provider.

A provider's test file inherits `BatchContract` and `LiveContract` and says what differs. One emulator serves a file;
each test has an API key, and so an account, of its own. Its clock stands still unless a test moves it.
"""

from __future__ import annotations

import gc
import json
import logging
import socket
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar

import polars as pl
import pytest
from pydantic import BaseModel, Field

from emulator import BatchFault, Emulator, Faults, HttpFault, RowFault
from lotwise import errors, executors
from lotwise.executors import fanout
from lotwise.request import REQUESTS, Code, Phase, Shard, Spec, custom_id

SHARD = "0123456789abcdef"
SECRET = "PLANTEDROW"
DONE_S = 200.0
DAY_S = 86_400.0


class Ticket(BaseModel):
    category: str = Field(min_length=2, max_length=30)
    score: int | None = Field(ge=1, le=5)


def key_of(n: int) -> str:
    return f"{n:040x}"


def frame(n: int, variants: list[str | None] | None = None) -> pl.DataFrame:
    """Make `n` requests whose content holds a planted word and characters that break careless code."""
    keys = [key_of(i) for i in range(n)]
    return pl.DataFrame(
        {
            "key": keys,
            "custom_id": [custom_id(SHARD, key) for key in keys],
            "content": [f'{SECRET} {i} "é"\u2028\n\x1c 返' for i in range(n)],
            "variant": variants or [None] * n,
        },
        schema=REQUESTS,
    )


@dataclass
class Desk:
    """One account at the emulated provider, and what a test needs to work with it."""

    emulator: Emulator
    api_key: str
    model: str
    temp_dir: Path
    options: dict[str, Any]
    loaded: list[Any] = field(default_factory=list)

    def load(self, tier: executors.Tier = "batch", **options: Any) -> Any:
        given = {"temp_dir": str(self.temp_dir), "read_retries": 0, **self.options, **options}
        executor = executors.load(self.model, tier=tier, options=given)[0]
        self.loaded.append(executor)
        return executor

    def close(self) -> None:
        """Close the SDKs' clients. A garbage collector that meets one in a cycle may take its sockets first, loudly."""
        for executor in self.loaded:
            if (client := vars(executor).get("client")) is not None:
                client.close()

    @property
    def provider(self) -> str:
        return self.model.partition(":")[0]

    def spec(self, executor: Any, **more: Any) -> Spec:
        text, _ = executor.wire_schema(json.dumps(Ticket.model_json_schema()))
        name = self.model.partition(":")[2]
        return Spec(**{"provider": self.provider, "model": name, "system": "judge", "wire_schema": text, **more})

    def shard(self, n: int) -> Shard:
        return Shard(id=SHARD, run_id="run-1", n_requests=n, created_at=datetime.now(UTC))

    def submit(self, executor: Any, requests: pl.DataFrame) -> str:
        spec, shard = self.spec(executor), self.shard(len(requests))
        return str(executor.create(shard, spec, executor.prepare(shard, spec, requests)))

    def bodies_charged(self) -> Counter[str]:
        """Return this account's charges by request body; the others' batches go on while the clock moves."""
        account = sha256(self.api_key.encode()).hexdigest()[:16]
        return Counter(charge.digest for charge in self.emulator.bill() if charge.account == account)

    def charges(self) -> int:
        return self.bodies_charged().total()


def lines_of(executor: Any, batch_id: str) -> list[bytes]:
    return [line for group in executor.fetch(batch_id) for line in group]


def codes_of(executor: Any, lines: list[bytes]) -> dict[str, str]:
    """Return the code of each key."""
    read = executor.read(lines)
    return {row["custom_id"].partition("-")[2]: row["code"] for row in read.to_dicts()}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider"), speed=0) as running:
        yield running


class ProviderContract:
    """What a provider's file says of itself."""

    model: str
    key_variable: str
    url_variable: str
    options: ClassVar[dict[str, Any]] = {}
    download: str
    live_call: str
    expected: ClassVar[dict[str, Code]]
    """What each outcome of the emulator is read as."""

    @pytest.fixture(autouse=True)
    def clients_are_closed(self, desk: Desk) -> Iterator[None]:
        yield
        desk.close()

    @pytest.fixture
    def desk(
        self,
        emulator: Emulator,
        request: pytest.FixtureRequest,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> Desk:
        for name in ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_CUSTOM_HEADERS", "ANTHROPIC_AUTH_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        api_key = f"sk-planted-{type(self).__name__}-{request.node.name}"
        url = emulator.openai_url if self.model.startswith("openai") else emulator.anthropic_url
        monkeypatch.setenv(self.key_variable, "".join(c if c.isalnum() else "-" for c in api_key))
        monkeypatch.setenv(self.url_variable, url)
        emulator.set_faults(**Faults(validate_s=5.0, batch_s=60.0, finalize_s=5.0).to_json())
        return Desk(
            emulator=emulator,
            api_key="".join(c if c.isalnum() else "-" for c in api_key),
            model=self.model,
            temp_dir=tmp_path,
            options=self.options,
        )


CREATE_FAULTS: dict[str, tuple[dict[str, Any], type[Exception], dict[str, Any], int]] = {
    # name: fault, error, facts, batches that the provider has afterwards
    "answered 500 after taking it": ({"action": "reply", "status": 500}, errors.CreateUncertain, {}, 1),
    "answered 504 after taking it": ({"action": "reply", "status": 504}, errors.CreateUncertain, {}, 1),
    "answered 524 after taking it": ({"action": "reply", "status": 524}, errors.CreateUncertain, {}, 1),
    "reset after taking it": ({"action": "reset"}, errors.CreateUncertain, {}, 1),
    "silent after taking it": ({"action": "drop", "seconds": 1.0}, errors.CreateUncertain, {"code": "timeout"}, 1),
    "500 without taking it": ({"action": "reject", "status": 500}, errors.CreateUncertain, {}, 0),
    "529": ({"action": "reject", "status": 529}, errors.CreateUncertain, {}, 0),
    "408": ({"action": "reject", "status": 408}, errors.CreateUncertain, {}, 0),
    "409": ({"action": "reject", "status": 409}, errors.CreateUncertain, {}, 0),
    "400": (
        {"action": "reject", "status": 400},
        errors.CreateRejected,
        {"input_fault": True, "blocked": False, "wait_s": None},
        0,
    ),
    "413": ({"action": "reject", "status": 413}, errors.CreateRejected, {"input_fault": True}, 0),
    "401": ({"action": "reject", "status": 401}, errors.CreateRejected, {"blocked": True, "wait_s": None}, 0),
    "403": ({"action": "reject", "status": 403}, errors.CreateRejected, {"blocked": True}, 0),
    "404": ({"action": "reject", "status": 404}, errors.CreateRejected, {"blocked": True}, 0),
    "429 with a time": (
        {"action": "reject", "status": 429, "retry_after_s": 7.0},
        errors.CreateRejected,
        {"wait_s": 7.0, "blocked": False, "input_fault": False},
        0,
    ),
    "429 without a time": ({"action": "reject", "status": 429}, errors.CreateRejected, {"wait_s": 30.0}, 0),
}


class ResultContract(ProviderContract):
    """What a batch executor promises of the rows, for each form of body."""

    def test_every_row_comes_back_and_is_charged_once(self, desk: Desk) -> None:
        executor = desk.load()
        requests = frame(30)
        batch_id = desk.submit(executor, requests)
        assert executor.poll(batch_id).phase is Phase.RUNNING
        desk.emulator.advance(DONE_S)
        assert executor.poll(batch_id).phase is Phase.ENDED
        read = executor.read(lines_of(executor, batch_id))
        assert sorted(read["custom_id"]) == sorted(requests["custom_id"])
        assert set(read["code"]) == {"ok"}
        assert all(json.loads(answer).keys() == {"category", "score"} for answer in read["answer"])
        assert read["input_tokens"].min() > 0
        assert desk.charges() == 30

    def test_each_outcome_is_read_as_the_table_says(self, desk: Desk) -> None:
        kinds = list(self.expected)
        rows = [RowFault(kind=kind, ids=(key_of(n),)) for n, kind in enumerate(kinds)]
        desk.emulator.set_faults(rows=rows)
        executor = desk.load()
        batch_id = desk.submit(executor, frame(len(kinds)))
        desk.emulator.advance(DONE_S)
        codes = codes_of(executor, lines_of(executor, batch_id))
        found = {kind: codes[key_of(n)] for n, kind in enumerate(kinds)}
        assert found == {kind: code.value for kind, code in self.expected.items()}

    def test_bad_deliveries_lose_no_good_row(self, desk: Desk) -> None:
        kinds = ("missing", "duplicate", "torn", "unknown_id", "line_separator")
        rows = [RowFault(kind=kind, ids=(key_of(n),)) for n, kind in enumerate(kinds)]
        desk.emulator.set_faults(rows=rows)
        executor = desk.load()
        requests = frame(20)
        batch_id = desk.submit(executor, requests)
        desk.emulator.advance(DONE_S)
        read = executor.read(lines_of(executor, batch_id))
        times = Counter(read["custom_id"])
        sent = [custom_id(SHARD, key_of(n)) for n in range(20)]
        assert [times[sent[n]] for n in range(5)] == [0, 2, 0, 1, 1]
        assert all(times[one] == 1 for one in sent[5:])
        assert times[None] == 1
        assert read.filter(code="unreadable").height == 1
        assert len(set(times) - set(sent) - {None}) == 1

    def test_canceled_batch_gives_up_what_it_finished(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(60))
        desk.emulator.advance(35)
        executor.cancel(batch_id)
        desk.emulator.advance(DONE_S)
        assert executor.poll(batch_id).phase is Phase.ENDED
        codes = Counter(codes_of(executor, lines_of(executor, batch_id)).values())
        assert codes["ok"] > 0
        assert codes["ok"] + codes["canceled"] == 60

    def test_expired_batch_gives_up_what_it_finished(self, desk: Desk) -> None:
        desk.emulator.set_faults(batches=[BatchFault(kind="stall", value=0.5)])
        executor = desk.load()
        batch_id = desk.submit(executor, frame(20))
        desk.emulator.advance(DAY_S + DONE_S)
        assert executor.poll(batch_id).phase is Phase.ENDED
        codes = Counter(codes_of(executor, lines_of(executor, batch_id)).values())
        assert codes == {"ok": 10, "expired": 10}

    def test_check_passes_what_can_be_sent(self, desk: Desk) -> None:
        executor = desk.load()
        executor.check(desk.spec(executor))

    @pytest.mark.parametrize("name", ["stream", "model", "messages", "max_tokens"])
    def test_check_refuses_a_parameter_by_name(self, desk: Desk, name: str) -> None:
        executor = desk.load(**({"endpoint": "chat"} if desk.provider == "openai" else {}))
        with pytest.raises(errors.UnsupportedParameter, match=repr(name)):
            executor.check(desk.spec(executor, params={name: True}))


class BatchContract(ResultContract):
    """What a batch executor promises, whatever the rows are."""

    def test_unknown_state_is_neither_running_nor_ended(self, desk: Desk) -> None:
        desk.emulator.set_faults(batches=[BatchFault(kind="unknown_state", value="dreaming")])
        executor = desk.load()
        batch_id = desk.submit(executor, frame(2))
        desk.emulator.advance(20)
        seen = executor.poll(batch_id)
        assert (seen.phase, seen.provider_state) == (Phase.UNKNOWN, "dreaming")

    def test_counts_may_be_null(self, desk: Desk) -> None:
        desk.emulator.set_faults(batches=[BatchFault(kind="null_counts")])
        executor = desk.load()
        batch_id = desk.submit(executor, frame(2))
        seen = executor.poll(batch_id)
        assert (seen.done, seen.failed) == (None, None)
        (listed,) = executor.list(since=datetime.fromtimestamp(0, UTC))
        assert listed.n_requests is None

    def test_cancel_of_an_ended_batch_changes_nothing(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(3))
        desk.emulator.advance(DONE_S)
        executor.cancel(batch_id)
        assert executor.poll(batch_id).phase is Phase.ENDED
        assert set(codes_of(executor, lines_of(executor, batch_id)).values()) == {"ok"}

    @pytest.mark.parametrize(
        ("fault", "error", "facts", "batches"), list(CREATE_FAULTS.values()), ids=list(CREATE_FAULTS)
    )
    def test_failed_create_is_certain_only_where_it_is_and_never_repeated(
        self, desk: Desk, fault: dict[str, Any], error: type[Exception], facts: dict[str, Any], batches: int
    ) -> None:
        executor = desk.load(create_timeout_s=0.3, read_retries=2)
        spec, shard = desk.spec(executor), desk.shard(2)
        prepared = executor.prepare(shard, spec, frame(2))
        name = f"{desk.provider}.batches.create"
        calls = desk.emulator.calls().get(name, 0)
        desk.emulator.set_faults(http=[HttpFault(endpoint="batches.create", **fault)])
        with pytest.raises(error) as caught:
            executor.create(shard, spec, prepared)
        desk.emulator.set_faults(http=[])
        assert {fact: getattr(caught.value, fact) for fact in facts} == facts
        assert desk.emulator.calls()[name] == calls + 1
        assert len(list(executor.list(since=datetime.fromtimestamp(0, UTC)))) == batches

    def test_account_without_credit_is_blocked_at_create(self, desk: Desk) -> None:
        desk.emulator.set_faults(credit_rows=0, credit_blocks_create=True)
        executor = desk.load()
        with pytest.raises(errors.CreateRejected) as caught:
            desk.submit(executor, frame(2))
        assert caught.value.blocked
        assert caught.value.code in ("insufficient_quota", "billing_error")

    def test_create_without_a_connection_is_certainly_unsent(self, desk: Desk) -> None:
        executor = desk.load()
        spec, shard = desk.spec(executor), desk.shard(2)
        prepared = executor.prepare(shard, spec, frame(2))
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            away = desk.load(base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1")
            with pytest.raises(errors.CreateRejected) as caught:
                away.create(shard, spec, prepared)
        assert (caught.value.code, caught.value.blocked) == ("not_connected", False)
        assert caught.value.wait_s is not None

    def test_list_pages_back_to_since_and_no_further(self, desk: Desk) -> None:
        executor = desk.load(list_page=2)
        made = []
        for _ in range(5):
            made.append(desk.submit(executor, frame(1)))
            desk.emulator.advance(10)
        everything = list(executor.list(since=datetime.fromtimestamp(0, UTC)))
        assert [one.batch_id for one in everything] == made[::-1]
        assert all(one.created_at.tzinfo is not None for one in everything)
        calls = desk.emulator.calls()[f"{desk.provider}.batches.list"]
        newest = list(executor.list(since=everything[1].created_at))
        assert [one.batch_id for one in newest] == made[:-3:-1]
        assert desk.emulator.calls()[f"{desk.provider}.batches.list"] - calls == 2

    def test_list_that_fails_says_so_instead_of_ending(self, desk: Desk) -> None:
        executor = desk.load(list_page=1)
        desk.submit(executor, frame(1))
        desk.submit(executor, frame(1))
        desk.emulator.set_faults(http=[HttpFault(endpoint="batches.list", action="reject", status=503, skip=1)])
        with pytest.raises(errors.Unreachable):
            list(executor.list(since=datetime.fromtimestamp(0, UTC)))

    def test_batch_of_another_account_is_not_found(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        batch_id = desk.submit(desk.load(), frame(1))
        monkeypatch.setenv(self.key_variable, "sk-planted-someone-else")
        other = desk.load()
        for act in (other.poll, other.cancel, lambda b: lines_of(other, b)):
            with pytest.raises(errors.BatchNotFound) as caught:
                act(batch_id)
            assert caught.value.batch_id == batch_id

    def test_account_is_the_project_and_not_the_key(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        desk.emulator.set_faults(projects={desk.api_key: "proj-a", "sk-planted-b": "proj-a"})
        first = desk.load().account()
        monkeypatch.setenv(self.key_variable, "sk-planted-b")
        second = desk.load().account()
        monkeypatch.setenv(self.key_variable, "sk-planted-c")
        third = desk.load().account()
        assert first == second != third
        assert "planted" not in first + third

    def test_account_of_a_silent_gateway_is_a_digest(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        desk.emulator.set_faults(http=[HttpFault(endpoint="models.list", action="reject", status=404)])
        first = desk.load().account()
        assert first == desk.load().account()
        monkeypatch.setenv(self.key_variable, "sk-planted-other")
        assert first != desk.load().account()
        assert "planted" not in first

    def test_account_is_not_guessed_while_the_provider_is_away(self, desk: Desk) -> None:
        desk.emulator.set_faults(http=[HttpFault(endpoint="models.list", action="reject", status=503)])
        with pytest.raises(errors.Unreachable):
            desk.load().account()

    def test_results_past_retention_are_gone_by_name(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(2))
        desk.emulator.advance(40 * DAY_S)
        with pytest.raises(errors.ResultsGone) as caught:
            lines_of(executor, batch_id)
        assert caught.value.batch_id == batch_id

    def test_download_that_breaks_off_yields_nothing_and_can_be_repeated(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(50))
        desk.emulator.advance(DONE_S)
        desk.emulator.set_faults(http=[HttpFault(endpoint=self.download, action="cut", after_bytes=5_000, times=1)])
        fetched = executor.fetch(batch_id)
        with pytest.raises(errors.Unreachable):
            next(fetched)
        assert len(lines_of(executor, batch_id)) == 50
        assert list(desk.temp_dir.iterdir()) == []

    def test_closing_a_fetch_removes_the_download(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(3))
        desk.emulator.advance(DONE_S)
        fetched = executor.fetch(batch_id)
        assert next(fetched)
        fetched.close()
        assert list(desk.temp_dir.iterdir()) == []

    def test_poll_that_fails_says_when_to_ask_again(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(1))
        desk.emulator.set_faults(
            http=[HttpFault(endpoint="batches.retrieve", action="reject", status=429, retry_after_s=11.0)]
        )
        with pytest.raises(errors.Unreachable) as caught:
            executor.poll(batch_id)
        assert caught.value.wait_s == 11.0

    def test_prepare_may_be_repeated_and_charges_nothing(self, desk: Desk) -> None:
        executor = desk.load()
        spec, shard = desk.spec(executor), desk.shard(2)
        executor.prepare(shard, spec, frame(2))
        batch_id = executor.create(shard, spec, executor.prepare(shard, spec, frame(2)))
        desk.emulator.advance(DONE_S)
        assert len(lines_of(executor, batch_id)) == 2
        assert desk.charges() == 2

    def test_same_id_twice_is_refused_before_anything_is_sent(self, desk: Desk) -> None:
        executor = desk.load()
        calls = desk.emulator.calls()
        twice = pl.concat([frame(1), frame(1)])
        with pytest.raises(errors.CreateRejected, match="duplicate_custom_id"):
            executor.prepare(desk.shard(2), desk.spec(executor), twice)
        assert desk.emulator.calls() == calls

    def test_deleted_batch_has_no_results_and_may_be_deleted_again(self, desk: Desk) -> None:
        executor = desk.load()
        batch_id = desk.submit(executor, frame(1))
        desk.emulator.advance(DONE_S)
        executor.delete(batch_id)
        executor.delete(batch_id)
        with pytest.raises((errors.ResultsGone, errors.BatchNotFound)):
            lines_of(executor, batch_id)

    def test_check_names_the_nearest_model(self, desk: Desk) -> None:
        known = self.model.partition(":")[2]
        desk.emulator.set_faults(models=[known, "another"])
        executor = desk.load()
        executor.check(desk.spec(executor))
        with pytest.raises(errors.UnknownModel, match=known):
            executor.check(desk.spec(executor, model=known + "x"))

    def test_check_takes_a_gateway_without_a_list_of_models_at_its_word(self, desk: Desk) -> None:
        desk.emulator.set_faults(
            http=[
                HttpFault(endpoint="models.retrieve", action="reject", status=404),
                HttpFault(endpoint="models.list", action="reject", status=404),
            ]
        )
        executor = desk.load()
        executor.check(desk.spec(executor))

    @pytest.mark.parametrize("status", [404, 405])
    def test_check_refuses_a_gateway_without_batches(self, desk: Desk, status: int) -> None:
        desk.emulator.set_faults(http=[HttpFault(endpoint="batches.list", action="reject", status=status)])
        executor = desk.load()
        with pytest.raises(errors.BatchUnsupported, match="interactive"):
            executor.check(desk.spec(executor))

    def test_check_refuses_missing_and_unknown_credentials(self, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
        desk.emulator.set_faults(keys=["sk-planted-only-this"])
        executor = desk.load()
        spec = desk.spec(executor)
        with pytest.raises(errors.MissingCredentials) as caught:
            executor.check(spec)
        assert caught.value.refused
        monkeypatch.delenv(self.key_variable)
        with pytest.raises(errors.MissingCredentials, match=self.key_variable) as caught:
            desk.load().check(spec)
        assert not caught.value.refused

    def test_no_key_and_no_row_in_errors_or_logs(self, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        executor = desk.load(create_timeout_s=0.3)
        spec, shard = desk.spec(executor), desk.shard(2)
        prepared = executor.prepare(shard, spec, frame(2))
        again = executor.prepare(shard, spec, frame(2))
        batch_id = executor.create(shard, spec, again)
        desk.emulator.set_faults(http=[HttpFault(endpoint="*", action="reject", status=401)])
        acts: list[Callable[[], object]] = [
            lambda: executor.create(shard, spec, prepared),
            lambda: executor.check(spec),
            lambda: executor.poll(batch_id),
            lambda: executor.cancel(batch_id),
            lambda: lines_of(executor, batch_id),
            lambda: list(executor.list(since=datetime.now(UTC) - timedelta(days=1))),
        ]
        for act in acts:
            with pytest.raises(errors.LotwiseError) as caught:
                act()
            told = "".join(traceback.format_exception(caught.value))
            assert caught.value.__context__ is None
            assert caught.value.__cause__ is None
            assert SECRET not in told
            assert desk.api_key not in told + repr(vars(caught.value))
        logged = "\n".join(str(vars(record)) for record in caplog.records) + caplog.text
        assert desk.api_key not in logged
        assert SECRET not in logged


class LiveContract(ProviderContract):
    """What an executor of synchronous calls promises."""

    service: str | None = None
    """Whose endpoint is called, where it is not the provider's own."""

    def live_endpoint(self, desk: Desk) -> str:
        return f"{self.service or desk.provider}.{self.live_call}"

    def answers(self, desk: Desk, executor: Any, requests: pl.DataFrame) -> list[bytes]:
        shard, spec = desk.shard(len(requests)), desk.spec(executor)
        return [line for group in executor.answer(shard, spec, requests) for line in group]

    def test_each_live_outcome_is_read_as_the_table_says(self, desk: Desk) -> None:
        kinds = [kind for kind in self.expected if kind not in self.batch_only | {"rate_limited"}]
        rows = [RowFault(kind=kind, marker=f"{SECRET} {n} ") for n, kind in enumerate(kinds)]
        desk.emulator.set_faults(rows=rows)
        executor = desk.load("interactive", read_retries=2)
        before = desk.emulator.calls().get(self.live_endpoint(desk), 0)
        codes = codes_of(executor, self.answers(desk, executor, frame(len(kinds))))
        found = {kind: codes[key_of(n)] for n, kind in enumerate(kinds)}
        assert found == {kind: self.expected[kind].value for kind in kinds}
        assert desk.emulator.calls()[self.live_endpoint(desk)] - before == len(kinds)

    batch_only: frozenset[str] = frozenset()
    """Outcomes that a synchronous call cannot have."""

    def test_refusal_by_429_is_asked_again_when_the_provider_wants_it_and_charged_once(self, desk: Desk) -> None:
        desk.emulator.set_faults(
            http=[HttpFault(endpoint=self.live_call, action="reject", status=429, retry_after_s=0.3, times=2)]
        )
        executor = desk.load("interactive", max_concurrency=2)
        began = time.monotonic()
        lines = self.answers(desk, executor, frame(4))
        assert time.monotonic() - began >= 0.3
        assert list(codes_of(executor, lines).values()) == ["ok"] * 4
        assert desk.charges() == 4

    def test_refusal_that_stays_is_a_line_after_a_few_calls(self, desk: Desk) -> None:
        desk.emulator.set_faults(
            http=[HttpFault(endpoint=self.live_call, action="reject", status=429, retry_after_s=0.05)]
        )
        executor = desk.load("interactive")
        before = desk.emulator.calls().get(self.live_endpoint(desk), 0)
        lines = self.answers(desk, executor, frame(3))
        assert list(codes_of(executor, lines).values()) == ["rate_limited"] * 3
        assert desk.emulator.calls()[self.live_endpoint(desk)] - before == 3 * fanout.TRIES
        assert desk.charges() == 0

    @pytest.mark.parametrize("action", ["reset", "drop"])
    def test_lost_answer_is_uncertain_and_not_asked_again(self, desk: Desk, action: str) -> None:
        desk.emulator.set_faults(http=[HttpFault(endpoint=self.live_call, action=action, seconds=1.0, times=1)])
        executor = desk.load("interactive", max_concurrency=1, timeout_s=0.3, read_retries=2)
        lines = self.answers(desk, executor, frame(3))
        assert sorted(codes_of(executor, lines).values()) == ["ok", "ok", "uncertain"]
        assert desk.charges() == 3

    @pytest.mark.parametrize("status", [502, 504])
    def test_gateway_that_has_no_answer_leaves_it_uncertain(self, desk: Desk, status: int) -> None:
        fault = HttpFault(endpoint=self.live_call, action="reply", status=status, page=True, times=1)
        desk.emulator.set_faults(http=[fault])
        executor = desk.load("interactive", max_concurrency=1)
        assert sorted(codes_of(executor, self.answers(desk, executor, frame(2))).values()) == ["ok", "uncertain"]
        assert desk.charges() == 2

    @pytest.mark.parametrize(("status", "page"), [(500, True), (504, False)])
    def test_fault_of_the_server_is_read_by_its_status_or_word(self, desk: Desk, status: int, page: bool) -> None:
        fault = HttpFault(endpoint=self.live_call, action="reject", status=status, page=page, times=1)
        desk.emulator.set_faults(http=[fault])
        executor = desk.load("interactive", max_concurrency=1)
        assert sorted(codes_of(executor, self.answers(desk, executor, frame(2))).values()) == ["ok", "server_error"]
        assert desk.charges() == 1

    def test_nobody_there_ends_the_work_with_what_has_no_line_unsent(self, desk: Desk) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            executor = desk.load(
                "interactive", max_concurrency=2, base_url=f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
            )
            lines: list[bytes] = []
            answers = executor.answer(desk.shard(50), desk.spec(executor), frame(50))
            with pytest.raises(errors.Unreachable):
                lines.extend(line for group in answers for line in group)
        read = executor.read(lines)
        assert set(read["detail"]) == {"not_sent"}
        assert len(lines) < 50

    def test_closing_the_iterator_stops_the_work(self, desk: Desk) -> None:
        executor = desk.load("interactive", max_concurrency=2)
        answers = executor.answer(desk.shard(200), desk.spec(executor), frame(200))
        got = len(next(answers))
        answers.close()
        gc.collect()
        # What was in flight ends by itself; nothing new is begun.
        assert desk.charges() <= got + 2 * executor.window

    def test_each_line_is_one_line_of_json(self, desk: Desk) -> None:
        executor = desk.load("interactive")
        for line in self.answers(desk, executor, frame(4)):
            assert b"\n" not in line
            json.loads(line)

    def test_no_key_and_no_row_in_logs(self, desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        executor = desk.load("interactive")
        desk.emulator.set_faults(http=[HttpFault(endpoint=self.live_call, action="reject", status=500, times=1)])
        self.answers(desk, executor, frame(3))
        logged = "\n".join(str(vars(record)) for record in caplog.records) + caplog.text
        assert desk.api_key not in logged
        assert SECRET not in logged


class LiveAndBatchContract(LiveContract):
    """What a provider promises that has both."""

    def test_live_and_batch_bodies_of_one_request_are_equal(self, desk: Desk) -> None:
        requests = frame(6, [None, '{"max_tokens":5000}', *[None] * 4])
        batch, live = desk.load(), desk.load("interactive")
        desk.submit(batch, requests)
        desk.emulator.advance(DONE_S)
        lines = self.answers(desk, live, requests)
        assert set(codes_of(live, lines).values()) == {"ok"}
        made = desk.bodies_charged()
        assert len(made) == 6
        assert set(made.values()) == {2}
