"""Any server that speaks OpenAI's chat completions: vLLM, SGLang, TensorRT-LLM, llama.cpp, Ollama, or a rented one.

``model="online:LABEL"``: the label names the model in the key, so that a server may move to another address and the
answers stay. What is charged and what leaves the machine is told by the address, unless the user says otherwise: a
server on loopback is neither paid nor hosted, every other one is both.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
import polars as pl

from lotwise.errors import MissingCredentials, MissingServer, SilentServer, UnknownModel, UnknownParameter
from lotwise.executors import encode, fanout
from lotwise.executors import openai_dialect as dialect
from lotwise.executors.credentials import digest, may_hold_secret, refuse_unsendable, set_by_hand
from lotwise.executors.live import bodies
from lotwise.executors.pace import Allowance, Pace, refuse_bad_pace
from lotwise.executors.reading import items_of, mapping
from lotwise.executors.wire_schema import Subset, to_wire
from lotwise.request import Limits, Shard, Spec

BASE_URL_VARIABLE = "LOTWISE_ONLINE_BASE_URL"
KEY_VARIABLE = "LOTWISE_ONLINE_API_KEY"

ResponseFormat = Literal["json_schema", "json_object"]

SUBSET = Subset(
    provider="online",
    # What the grammars of vLLM, SGLang and llama.cpp all hold an answer to. Some servers refuse other keywords.
    keywords=frozenset({"minItems", "maxItems", "minLength", "maxLength", "minimum", "maximum"}),
    formats=frozenset({"date", "time", "date-time", "uuid"}),
    all_required=False,
    recursion=True,
)
"""What is sent of a schema; validation judges the rest."""

ANY_OBJECT = '{"type":"object"}'
"""The schema in the key where the server only promises some JSON object."""

BACKLOG = 4_096
"""Answers of a server that costs nothing which may wait to be written down, while calls go on."""

LOOK_UP_S = 20.0
"""How long the server may take to say which models it has."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """``executor_options`` of this provider.

    Attributes
    ----------
    base_url
        Where the server is, with the ``/v1``; None for the environment variable LOTWISE_ONLINE_BASE_URL.
    model
        The name under which the server knows the model; None for the label.
    api_key_env
        The environment variable that holds the key, which is never an option itself: options are printed and passed
        on. Without the variable no key is sent.
    headers
        Sent with every call besides.
    paid
        Whether calls cost money; None for yes unless the server is on loopback, or prices are given.
    hosted
        Whether row content leaves this machine in the sense of ``data="local"``; None for yes unless the server is on
        loopback. Say False for a server of your own in your own network.
    response_format
        "json_schema" sends the schema; "json_object" is for servers that take none and promise some JSON object: the
        prompt must say which, and validation judges it.
    max_tokens_name
        The field that carries the limit of output tokens.
    timeout_s, connect_timeout_s
        Of one call in seconds, and of making a connection.
    max_concurrency
        Calls in flight at most; how many there are is found by trying. At a paid server a kill leaves at most so many
        of which it is not known whether they were charged. None for 64 at a paid server, 256 at one that is not.
    rpm, tpm
        Requests and tokens a minute; None for no limit but the server's own.
    """

    base_url: str | None = None
    model: str | None = None
    api_key_env: str = KEY_VARIABLE
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    paid: bool | None = None
    hosted: bool | None = None
    response_format: ResponseFormat = "json_schema"
    max_tokens_name: str = "max_tokens"
    timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    max_concurrency: int | None = None
    rpm: float | None = None
    tpm: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Read them from a mapping.

        Raises
        ------
        UnknownParameter
            A name that is none of them, or a value that cannot be meant.
        MissingServer
            An address that cannot be one.
        """
        known = [f.name for f in fields(cls)]
        if unknown := set(given or {}) - set(known):
            raise UnknownParameter.from_names("online", unknown, known)
        made = cls(**dict(given or {}))
        if made.base_url is not None:
            _refuse_bad_url(made.base_url)
        if made.response_format not in get_args(ResponseFormat):
            raise UnknownParameter.bad_value(
                "online", "response_format", made.response_format, "'json_schema' or 'json_object'"
            )
        for name in ("paid", "hosted"):
            if getattr(made, name) not in (True, False, None):
                raise UnknownParameter.bad_value("online", name, getattr(made, name), "True, False or None")
        return made


class OnlineExecutor:
    """The stream executor of one server.

    Parameters
    ----------
    options
        `Options`.
    """

    provider = "online"
    limits = Limits(max_requests=10_000)

    def __init__(self, *, options: Mapping[str, Any] | None = None) -> None:
        given = self.options = Options.of(options)
        base_url = given.base_url or os.environ.get(BASE_URL_VARIABLE) or None
        if base_url is not None and given.base_url is None:
            _refuse_bad_url(base_url)
        self._base_url = None if base_url is None else base_url.rstrip("/")
        near = self._base_url is not None and is_loopback(self._base_url)
        # Without an address nothing can be sent, which `check` tells better than a refusal for local data would.
        self.hosted: bool = (not near and base_url is not None) if given.hosted is None else given.hosted
        self.paid: bool = not near if given.paid is None else given.paid
        at_once = (64 if self.paid else 256) if given.max_concurrency is None else given.max_concurrency
        allowance = Allowance(max_concurrency=at_once, rpm=given.rpm, tpm=given.tpm)
        refuse_bad_pace(self.provider, allowance)
        self._pace = Pace(allowance)
        self.window: int = at_once if self.paid else at_once + BACKLOG

    def check(self, spec: Spec) -> None:
        """Refuse what can be known to fail before anything is sent.

        Raises
        ------
        MissingServer
            No address, or one at which there are web pages.
        UnsupportedParameter
            A parameter that lotwise sets itself.
        MissingCredentials
            The server takes no call with this key, or without one.
        UnknownModel
            The server lists its models, and this one is not among them.
        SilentServer
            No server answers at the address.

        Notes
        -----
        One free look-up of the server's models. A server without it, and llama.cpp, which answers to any name, are
        taken at their word later.
        """
        dialect.refuse_params(spec, "chat")
        server = replace(self._server("/models"), timeout_s=LOOK_UP_S)
        got = fanout.look_up(server)
        if got is None:
            raise SilentServer.at(self.base_url)
        status, body = got
        if status in (401, 403):
            raise MissingCredentials.refused_by(self.provider, self.options.api_key_env, f"http_{status}")
        if status == 200 and body.lstrip().startswith(b"<"):
            raise MissingServer.unusable("answers with a web page where such a server lists its models")
        try:
            listed = items_of(mapping(msgspec.json.decode(body)).get("data")) if status == 200 else []
        except msgspec.DecodeError:
            return
        names = [name for one in listed if isinstance(name := mapping(one).get("id"), str)]
        any_name = any(mapping(one).get("owned_by") == "llamacpp" for one in listed)
        if names and not any_name and self._name(spec) not in names:
            raise UnknownModel.from_name(self.provider, self._name(spec), names)

    def kept_options(self) -> Mapping[str, Any]:
        """Return the options that were given, without headers, which may hold a key, and what the environment says."""
        return set_by_hand(self.options, without={"headers"})

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        """Cut a JSON Schema to what is sent, before the key is made of it.

        Returns
        -------
        (str, tuple of str)
            The exact text sent, and what is left to validation, ``/path/keyword`` each, or ``/`` for all of it.
        """
        if self.options.response_format == "json_object":
            return ANY_OBJECT, ("/",)
        made = to_wire(schema_text, SUBSET)
        return made.text, made.left_to_validation

    def model_digest(self) -> None:
        """Return None: what stands behind a label is the user's word. Another model is another label."""

    def account(self) -> str:
        """Return a digest of the address and the key; no network."""
        return digest(f"{self._base_url}\0{self._key() or ''}")

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        """Return an upper bound of each request's encoded bytes (Int64), from `plan.json_bytes` of its content."""
        return encode.sizes(content_bytes, self.parts_for(spec)(spec.max_tokens), dialect.envelope("chat"))

    def body(self, spec: Spec, content: str, variant: str | None = None) -> bytes:
        """Return the body that is sent for one request, from request and variant alone."""
        return encode.body(content, variant, self.parts_for(spec), spec.max_tokens)

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        """Ask for each request once and yield a line as each call ends, in any order.

        Raises
        ------
        Unreachable
            Nobody is there; what has no line was not sent.

        Notes
        -----
        An answer that was lost on its way is a line with the code ``uncertain``: it may have been charged.
        """
        encode.check_ids(requests)
        return fanout.answers(
            bodies(requests, self.parts_for(spec), spec.max_tokens),
            server=lambda: self._server("/chat/completions"),
            line=dialect.answer_line,
            pace=self._pace,
            window=self.window,
            max_tokens=spec.max_tokens,
        )

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Say what raw lines mean: one row of `OUTCOMES` a line, in order."""
        return dialect.read_lines(lines)

    def parts_for(self, spec: Spec) -> encode.PartsFor:
        """Return what makes the constant parts of a body, under the name that the server knows."""
        served = replace(spec, model=self._name(spec))
        given = self.options
        form = '"response_format":{"type":"json_object"}' if given.response_format == "json_object" else None
        return lambda limit: dialect.body_parts(
            served, "chat", max_tokens=limit, max_tokens_name=given.max_tokens_name, response_format=form
        )

    def _name(self, spec: Spec) -> str:
        return self.options.model or spec.model

    def _key(self) -> str | None:
        key = os.environ.get(self.options.api_key_env) or None
        refuse_unsendable(self.provider, self.options.api_key_env, key)
        return key

    @property
    def base_url(self) -> str:
        """Where the server is. Raises `MissingServer` where nobody said it."""
        if self._base_url is None:
            raise MissingServer.unset(BASE_URL_VARIABLE)
        return self._base_url

    def _server(self, path: str) -> fanout.Server:
        key = self._key()
        return fanout.Server(
            url=self.base_url + path,
            headers={
                "accept": "application/json",
                "content-type": "application/json",
                **({} if key is None else {"authorization": f"Bearer {key}"}),
                **self.options.headers,
            },
            timeout_s=self.options.timeout_s,
            connect_timeout_s=self.options.connect_timeout_s,
        )


def is_loopback(url: str) -> bool:
    """Say whether an address is this machine's own."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback if mapped is None else bool(mapped.is_loopback)


def _refuse_bad_url(url: object) -> None:
    parts = urlsplit(url if isinstance(url, str) else "")
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise MissingServer.unusable("is no http:// or https:// address")
    if may_hold_secret(parts.geturl()):
        raise MissingServer.unusable("holds more than an address; a key belongs into an environment variable")
