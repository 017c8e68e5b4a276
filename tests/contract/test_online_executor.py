"""The executor of one's own servers, against the emulated provider and a server that is busy in many ways."""

from __future__ import annotations

import gc
import json
import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import fanout_child
import polars as pl
import pytest
from provider_contract import SECRET, SHARD, Desk, LiveContract, emulator, frame
from test_openai_executor import COMMON

import lotwise
from busy_server import Busy, busy
from emulator import Emulator, Faults
from lotwise import errors, executors
from lotwise.executors import fanout
from lotwise.executors.online import BASE_URL_VARIABLE, KEY_VARIABLE, OnlineExecutor
from lotwise.executors.pace import Allowance, Pace
from lotwise.request import Code, Shard, Spec

__all__ = ["emulator"]

SPEC = Spec(provider="online", model="served")


def answers(executor: Any, requests: pl.DataFrame, spec: Spec = SPEC) -> list[bytes]:
    shard = Shard(id=SHARD, run_id="run-1", n_requests=len(requests), created_at=datetime.now(UTC))
    return [line for lines in executor.answer(shard, spec, requests) for line in lines]


def load(server: Busy, **options: Any) -> Any:
    return executors.load("online:served", options={"base_url": server.url, **options})[0]


def work(n_rows: int) -> Iterator[tuple[str, bytes]]:
    for n in range(n_rows):
        yield f"{n}", json.dumps({"model": "m", "messages": [{"content": f"{n}"}]}).encode()


def shift(server: Busy, work: Iterator[tuple[str, bytes]], pace: Pace, window: int) -> Iterator[list[bytes]]:
    """Answer work without an executor around it; the lines are the custom ids."""
    where = fanout.Server(url=server.url + "/chat/completions", headers={}, timeout_s=60, connect_timeout_s=60)
    return fanout.answers(
        work, server=lambda: where, line=lambda answer: answer.custom_id.encode(), pace=pace, window=window
    )


@dataclass
class ServerDesk(Desk):
    """A desk whose executor has no SDK, and so none of its options."""

    def load(self, tier: executors.Tier = "batch", **options: Any) -> Any:
        options.pop("read_retries", None)
        given = {"base_url": self.emulator.openai_url, **self.options, **options}
        return executors.load(self.model, tier="interactive", options=given)[0]


class TestOnlineLive(LiveContract):
    """What holds for every executor of synchronous calls."""

    model = "online:gpt-5-mini"
    key_variable = KEY_VARIABLE
    url_variable = BASE_URL_VARIABLE
    service = "openai"
    live_call = "chat.create"
    expected: ClassVar[dict[str, Code]] = COMMON
    batch_only = frozenset({"request_timeout", "status_zero", "expired", "canceled", "unknown_type"})

    @pytest.fixture
    def desk(
        self, emulator: Emulator, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> Desk:
        api_key = "sk-planted-" + "".join(c if c.isalnum() else "-" for c in request.node.name)
        monkeypatch.setenv(KEY_VARIABLE, api_key)
        emulator.set_faults(**Faults().to_json())
        return ServerDesk(emulator=emulator, api_key=api_key, model=self.model, temp_dir=tmp_path, options={})


# --- how many at once ---------------------------------------------------------------------------------------------


def test_server_that_refuses_above_64_is_asked_near_64_and_loses_nothing() -> None:
    pace = Pace(Allowance(max_concurrency=512))
    # Slow enough that the server's own limit is met, and not what this machine can do.
    with busy(latency_s=0.25, most=64) as server:
        lines = list(chain.from_iterable(shift(server, work(1_200), pace, window=1_024)))
        told = server.account()
    assert sorted(map(int, lines)) == list(range(1_200))
    assert set(told["charges"].values()) == {1}
    assert max(told["in_flight"]) == 64
    assert 0 < told["n_refused"] < 120  # it was found by trying
    # What the server saw at once also depends on how busy this machine is; the limit that was found does not.
    assert 58 <= pace.limit.now <= 65


def test_limit_that_was_found_holds_for_the_next_shard() -> None:
    with busy(latency_s=0.1, most=16) as server:
        executor = load(server)
        answers(executor, frame(400))
        refused = server.account()["n_refused"]
        answers(executor, frame(200))
        told = server.account()
    assert told["n_refused"] - refused <= 10
    assert refused > 0


def test_call_waits_as_long_as_the_server_asks() -> None:
    with busy(refuse=[3, 9], retry_after_s=0.4) as server:
        lines = answers(load(server, max_concurrency=1), frame(12))
        told = server.account()
    assert len(lines) == 12
    assert set(told["charges"].values()) == {1}
    assert len(told["waits"]) == 2
    assert min(told["waits"]) >= 0.39


def test_overloaded_server_is_not_asked_again_by_itself() -> None:
    with busy(refuse=[1], status=503) as server:
        executor = load(server, max_concurrency=1)
        lines = answers(executor, frame(3))
        assert server.account()["n_calls"] == 3
    assert sorted(executor.read(lines)["code"]) == ["ok", "ok", "server_error"]


def test_requests_a_minute_are_kept() -> None:
    with busy() as server:
        began = time.monotonic()
        assert len(answers(load(server, rpm=1_200), frame(40))) == 40
        # Twenty at once, and twenty a second after that.
        assert time.monotonic() - began >= 0.9


def test_tokens_a_minute_count_what_answers_used() -> None:
    with busy() as server:
        began = time.monotonic()
        executor = load(server, tpm=60_000, max_concurrency=1)
        # A thousand a second: enough at once for 30 answers of 12 tokens, and for 90 s of the 3,000 they might have.
        assert len(answers(executor, frame(30), Spec(provider="online", model="served", max_tokens=3_000))) == 30
        assert time.monotonic() - began < 45


# --- bounds -------------------------------------------------------------------------------------------------------


def test_what_is_begun_and_not_taken_up_stays_within_the_window() -> None:
    window, n_rows = 32, 3_000
    begun = taken = 0
    most = 0

    def watched() -> Iterator[tuple[str, bytes]]:
        nonlocal begun, most
        for piece in work(n_rows):
            begun += 1
            most = max(most, begun - taken)
            yield piece

    seen: list[bytes] = []
    with busy() as server:
        for lines in shift(server, watched(), Pace(Allowance(max_concurrency=256)), window):
            seen += lines
            assert len(lines) <= window
            assert begun - taken <= window
            # Where the generator goes on, the lines before are taken up.
            taken += len(lines)
        told = server.account()
    assert sorted(map(int, seen)) == list(range(n_rows))
    assert max(told["in_flight"]) <= window
    assert told["n_connections"] <= window + 1  # and the one that asks for the account
    assert window // 2 < most <= window


def test_memory_does_not_grow_with_the_rows() -> None:
    n_rows = 2_000
    child = Path(__file__).with_name("fanout_child.py")
    with busy() as server:
        told = json.loads(subprocess.check_output([sys.executable, str(child), server.url, str(n_rows)]))
    assert told["lines"] == n_rows
    # Three quarters of the answers alone would be 30 MB, and their requests as much again.
    assert told["bytes"] > n_rows * fanout_child.ROW_BYTES
    assert told["peak_mb"] - told["early_mb"] < 10


def test_closing_breaks_off_what_is_in_flight_and_leaves_no_thread() -> None:
    with busy(latency_s=60.0) as server:
        executor = load(server, max_concurrency=8)
        shard = Shard(id=SHARD, run_id="run-1", n_requests=100, created_at=datetime.now(UTC))
        got: list[list[bytes]] = []
        reader = executor.answer(shard, SPEC, frame(100))
        with busy() as quick:
            first = load(quick, max_concurrency=2)
            second = first.answer(shard, SPEC, frame(100))
            got.append(next(second))
            second.close()
            assert quick.account()["n_calls"] <= len(got[0]) + 2 * 2
        reader.close()
        gc.collect()
    assert not [thread for thread in threading.enumerate() if thread.name == "lotwise-fanout"]


# --- lost answers -------------------------------------------------------------------------------------------------


def test_lost_answer_is_uncertain_and_not_asked_again() -> None:
    with busy(lose=[2, 5]) as server:
        executor = load(server, max_concurrency=1, paid=True)
        read = executor.read(answers(executor, frame(9)))
        told = server.account()
    assert sorted(read["code"]) == ["ok"] * 7 + ["uncertain"] * 2
    assert told["n_calls"] == 9
    assert set(told["charges"].values()) == {1}


def test_fault_of_our_own_reaches_the_caller() -> None:
    def faulty() -> Iterator[tuple[str, bytes]]:
        yield "1", b"{}"
        raise RuntimeError("planted")

    with busy() as server, pytest.raises(RuntimeError, match="planted"):
        list(shift(server, faulty(), Pace(Allowance(max_concurrency=2)), window=2))


# --- what is sent and read ----------------------------------------------------------------------------------------


def test_key_and_headers_come_from_the_user_and_show_nowhere(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", "sk-planted")
    with busy(key="sk-planted", models=["served"]) as server:
        executor = load(server, api_key_env="MY_KEY", headers={"x-team": "blue"})
        executor.check(SPEC)
        answers(executor, frame(2))
        headers = server.account()["headers"]
    assert headers["x-team"] == "blue"
    assert headers["authorization"] == "Bearer sk-planted"
    logged = "\n".join(str(vars(record)) for record in caplog.records) + caplog.text
    shown = logged + repr(executor.options) + repr(executor._server("/x")) + executor.account()
    assert "sk-planted" not in shown
    assert SECRET not in logged


def test_tokens_and_the_revision_that_answered_are_read() -> None:
    with busy() as server:
        executor = load(server)
        (row,) = executor.read(answers(executor, frame(1))).to_dicts()
    assert row["model_revision"] == "served-7b-0425"
    assert (row["input_tokens"], row["cache_read_tokens"], row["output_tokens"]) == (9, 4, 3)


def test_server_is_sent_its_own_name_for_the_model_and_any_parameter() -> None:
    with busy() as server:
        executor = load(server, model="org/Served-7B")
        answers(executor, frame(1), Spec(provider="online", model="served", params={"top_k": 3}))
        body = json.loads(server.account()["body"])
    assert body["model"] == "org/Served-7B"
    assert body["top_k"] == 3
    assert body["max_tokens"] == 1_024


SCHEMA = json.dumps({"type": "object", "properties": {"a": {"type": "string", "pattern": "x"}}, "required": ["a"]})


def test_schema_goes_as_response_format_or_is_left_to_validation() -> None:
    with busy() as server:
        strict = load(server)
        text, left = strict.wire_schema(SCHEMA)
        assert left == ("/a/pattern",) or left == ("/properties/a/pattern",)
        answers(strict, frame(1), Spec(provider="online", model="served", wire_schema=text))
        form = json.loads(server.account()["body"])["response_format"]
        assert form["json_schema"]["schema"] == json.loads(text)
        loose = load(server, response_format="json_object")
        text, left = loose.wire_schema(SCHEMA)
        assert left == ("/",)
        answers(loose, frame(1), Spec(provider="online", model="served", wire_schema=text))
        assert json.loads(server.account()["body"])["response_format"] == {"type": "json_object"}


# --- what is refused before anything is sent ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "near"),
    [
        ("http://127.0.0.1:8000/v1", True),
        ("http://127.9.9.9/v1", True),
        ("http://localhost:11434/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://[::ffff:127.0.0.1]:8000/v1", True),
        ("http://10.0.0.7:8000/v1", False),
        ("http://192.168.1.4/v1", False),
        ("https://api.deepseek.com/v1", False),
        ("http://localhost.example.com/v1", False),
        ("http://127.0.0.1.example.com/v1", False),
        ("http://0.0.0.0:8000/v1", False),
    ],
)
def test_only_a_server_on_loopback_is_neither_paid_nor_hosted(url: str, near: bool) -> None:
    executor = OnlineExecutor(options={"base_url": url})
    assert (executor.paid, executor.hosted) == (not near, not near)
    told = OnlineExecutor(options={"base_url": url, "paid": near, "hosted": near})
    assert (told.paid, told.hosted) == (near, near)


def test_window_of_a_paid_server_is_what_is_in_flight() -> None:
    url = "http://127.0.0.1:1/v1"
    assert OnlineExecutor(options={"base_url": url, "paid": True}).window == 64
    assert OnlineExecutor(options={"base_url": url, "paid": True, "max_concurrency": 7}).window == 7
    assert OnlineExecutor(options={"base_url": url, "max_concurrency": 7}).window > 7


FRAME = pl.DataFrame({"text": ["one", "two", "one"]})


def ask(server: Busy, tmp_path: Path, **arguments: Any) -> pl.DataFrame:
    given = {"base_url": server.url, **arguments.pop("executor_options", {})}
    return lotwise.map(
        FRAME,
        "{text}",
        model="online:served",
        ledger=tmp_path / "ledger",
        progress=False,
        options=lotwise.Options(executor_options=given),
        **arguments,
    )


def test_local_data_goes_to_loopback_and_nowhere_else(tmp_path: Path) -> None:
    with busy() as server:
        assert ask(server, tmp_path, data="local")["answer"].to_list() == ["one", "two", "one"]
        with pytest.raises(errors.HostedRefused):
            ask(server, tmp_path, data="local", executor_options={"hosted": True})
        assert server.account()["n_calls"] == 2


def test_server_with_a_price_is_paid_wherever_it_is(tmp_path: Path) -> None:
    with busy() as server:
        ask(server, tmp_path, prices={"input_mtok": "1", "output_mtok": "2"}, budget=1)
    run = lotwise.runs(tmp_path / "ledger").to_dicts()[0]["id"]
    ledger = lotwise.open_ledger(tmp_path / "ledger")
    assert ledger.sql("SELECT in_flight FROM shard")["in_flight"].to_list() == [64]
    assert ledger.sql("SELECT sum(cost_usd) AS usd FROM shard")["usd"].item() > 0
    assert run


def test_server_may_move_and_its_label_keeps_the_answers(tmp_path: Path) -> None:
    with busy() as here:
        ask(here, tmp_path)
    with busy() as there:
        out = ask(there, tmp_path)
        assert there.account()["n_calls"] == 0
    assert out["answer"].to_list() == ["one", "two", "one"]


def test_check_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BASE_URL_VARIABLE, raising=False)
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    with pytest.raises(errors.MissingServer, match=BASE_URL_VARIABLE):
        OnlineExecutor().check(SPEC)
    with (
        busy(key="sk-other", models=["served"]) as server,
        pytest.raises(errors.MissingCredentials, match=KEY_VARIABLE),
    ):
        load(server).check(SPEC)
    with busy(models=["servant"]) as server, pytest.raises(errors.UnknownModel, match="servant"):
        load(server).check(SPEC)
    with busy(pages=True, models=[]) as server, pytest.raises(errors.MissingServer, match="answers with a web page"):
        load(server).check(SPEC)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        nobody = Busy(unused.getsockname()[1])
        with pytest.raises(errors.SilentServer, match=f"no server answers at {nobody.url}; is it running"):
            load(nobody).check(SPEC)


@pytest.mark.parametrize("manners", [{}, {"models": []}, {"models": ["x.gguf"], "owned_by": "llamacpp"}])
def test_check_takes_a_server_at_its_word_that_lists_no_names(manners: dict[str, Any]) -> None:
    with busy(**manners) as server:
        load(server).check(SPEC)


def test_check_refuses_a_parameter_that_is_ours() -> None:
    with busy() as server, pytest.raises(errors.UnsupportedParameter):
        load(server).check(Spec(provider="online", model="served", params={"stream": True}))


@pytest.mark.parametrize(
    "url",
    ["localhost:8000", "ftp://h/v1", "", 7, "http://u:planted@h/v1", "http://h/v1?k=planted", "http://h/v1#planted"],
)
def test_address_that_cannot_be_one_is_refused_and_not_told(url: Any) -> None:
    with pytest.raises(errors.MissingServer) as caught:
        OnlineExecutor(options={"base_url": url})
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    "options", [{"base_ulr": "x"}, {"response_format": "xml"}, {"paid": "no"}, {"max_concurrency": 0}, {"rpm": -1}]
)
def test_option_that_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(errors.UnknownParameter, match=next(iter(options))):
        executors.load("online:m", options=options)


def test_address_comes_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASE_URL_VARIABLE, "https://models.example.com/v1/")
    executor = OnlineExecutor()
    assert executor.hosted
    assert executor._server("/chat/completions").url == "https://models.example.com/v1/chat/completions"


def test_what_is_kept_is_what_was_given_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BASE_URL_VARIABLE, "https://models.example.com/v1")
    given = {"model": "served-7b", "paid": False, "max_concurrency": 8, "rpm": 60.0, "timeout_s": 9.0}
    kept = OnlineExecutor(options={**given, "headers": {"x-key": "planted"}}).kept_options()
    assert kept == given
    near = {"base_url": "http://127.0.0.1:1/v1"}
    assert OnlineExecutor(options=near).kept_options() == near


@pytest.mark.parametrize("spoiled", ["planted\r", "planted–key"], ids=["end of a line", "dash"])
@pytest.mark.parametrize("model", ["online:served", "openai:gpt-5-mini", "anthropic:claude-haiku-4-5"])
def test_a_key_that_no_header_can_carry_is_told_and_not_quoted(
    model: str, spoiled: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider, _, name = model.partition(":")
    variable = KEY_VARIABLE if provider == "online" else f"{provider.upper()}_API_KEY"
    monkeypatch.setenv(variable, spoiled)
    executor = executors.load(model, tier="interactive", options={"base_url": "http://127.0.0.1:9/v1"})[0]
    with pytest.raises(errors.MissingCredentials, match=f"{variable} hold a character") as caught:
        executor.check(Spec(provider=provider, model=name))
    assert "planted" not in str(caught.value)


def test_credentials_that_were_not_renewed_once_are_renewed_the_next_time(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fanout, "RENEW_S", 0.01)
    renewed = threading.Event()
    asked = 0

    with busy() as server:

        def where() -> fanout.Server:
            nonlocal asked
            asked += 1
            if asked == 2:
                raise OSError("planted")
            if asked == 4:
                renewed.set()
            headers = {"authorization": f"Bearer {asked}"}
            url = server.url + "/chat/completions"
            return fanout.Server(url=url, headers=headers, timeout_s=60, connect_timeout_s=60)

        lines = fanout.answers(
            work(2),
            server=where,
            line=lambda answer: answer.custom_id.encode(),
            pace=Pace(Allowance(max_concurrency=1)),
            window=1,
        )
        assert next(lines) == [b"0"]
        assert renewed.wait(60)
        assert next(lines) == [b"1"]
        assert server.account()["headers"]["authorization"] not in ("Bearer 1", "Bearer 2")
        assert next(lines, None) is None
    assert "were not renewed: OSError" in caplog.text
    assert "planted" not in caplog.text


def test_a_loop_that_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(coroutine: Any) -> None:
        coroutine.close()
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(fanout.asyncio, "run", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        list(shift(Busy(9), work(1), Pace(Allowance(max_concurrency=1)), 1))


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        ({}, None),
        ({"HTTPS_PROXY": "http://one:1", "ALL_PROXY": "http://all:2"}, "http://one:1"),
        ({"ALL_PROXY": "http://all:2"}, "http://all:2"),
        ({"ALL_PROXY": "http://all:2", "NO_PROXY": "api.example"}, None),
        ({"ALL_PROXY": "socks5://all:2"}, None),
    ],
    ids=["none", "of the scheme", "of all", "passed by", "not spoken"],
)
def test_proxy_is_the_environments(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    environment: dict[str, str],
    proxy: str | None,
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert fanout._proxy("https://api.example/v1") == proxy
    assert ("socks5" in caplog.text) == ("socks5" in environment.get("ALL_PROXY", ""))
