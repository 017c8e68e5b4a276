"""What the executors of a provider's own SDK share, whichever provider it is: options, client, account, checks, body.

`Service` is an account of one provider; `Batches` adds what is the same for every provider's batches, `Interactive`
the synchronous calls. What differs (the dialect, how a shard travels, what a batch says of itself) is the provider's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import httpx2
import polars as pl

from lotwise.errors import BatchNotFound, BatchUnsupported, MissingCredentials, UnknownModel, UnknownParameter
from lotwise.executors import encode, fanout
from lotwise.executors.credentials import digest, set_by_hand
from lotwise.executors.limits import limits_of
from lotwise.executors.live import Answer, bodies
from lotwise.executors.pace import Allowance, Pace, refuse_bad_pace
from lotwise.executors.reading import items_of, mapping
from lotwise.executors.sdk import Errors, Fault, RawResponse, attempt, document, server_of
from lotwise.request import Limits, Shard, Spec

_NO_LOOKUP = (403, 404, 405, 501)
"""By which a deployment says that it grants no look-up of models, or has none."""
_NO_BATCHES = (404, 405, 501)


@dataclass(frozen=True, kw_only=True)
class Options:
    """``executor_options`` of a provider.

    Attributes
    ----------
    base_url
        In place of the SDK's environment variable.
    timeout_s, create_timeout_s
        Of one call in seconds, and of the create call.
    read_retries
        How often the SDK repeats a call that charges nothing.
    list_page
        Batches asked for in one page of the list.
    max_concurrency
        Synchronous calls in flight at most; how many there are is found by trying. A kill leaves at most so many of
        which it is not known whether they were charged.
    rpm, tpm
        Requests and tokens a minute of synchronous calls; None for no limit but the provider's own.
    temp_dir
        Where encoded requests and downloads lie for a while; None for the system's temporary folder.
    limits
        Fields of `Limits` that replace the table's.
    """

    provider: ClassVar[str]

    base_url: str | None = None
    timeout_s: float = 600.0
    create_timeout_s: float = 120.0
    read_retries: int = 2
    list_page: int = 100
    max_concurrency: int = 64
    rpm: float | None = None
    tpm: float | None = None
    temp_dir: str | None = None
    limits: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Self:
        """Read them from a mapping.

        Raises
        ------
        UnknownParameter
            A name that is none of them, or a value that cannot be meant.
        """
        known = [f.name for f in fields(cls)]
        if unknown := set(given or {}) - set(known):
            raise UnknownParameter.from_names(cls.provider, unknown, known)
        made = cls(**dict(given or {}))
        refuse_bad_pace(cls.provider, made)
        return made


class Client(Protocol):
    """What is asked of an SDK's client, whichever it is."""

    @property
    def models(self) -> Any: ...
    def with_options(self, *, http_client: httpx2.Client, max_retries: int) -> Any: ...


C = TypeVar("C", bound=Client)


class Service(ABC, Generic[C]):
    """An account of one provider: the client, the checks before anything is sent, the body, the reading."""

    provider: ClassVar[str]
    hosted: bool = True
    paid: bool = True
    limits: Limits
    options: Options

    errors: ClassVar[Errors]
    """The exception classes of the SDK."""
    key_variable: ClassVar[str]
    """The environment variable of the key, which an error names."""
    account_headers: ClassVar[tuple[str, str]]
    """Where an answer names the organisation and what it has the account in."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.limits = limits_of(self.provider, options.limits)

    # --- what the provider says ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def client(self) -> C:
        """The SDK's client, made once, from the user's environment. Raises `MissingCredentials`."""

    @abstractmethod
    def credential(self) -> str:
        """Return what a fingerprint of the account is made of where the server does not name it."""

    @abstractmethod
    def refuse(self, spec: Spec) -> None:
        """Refuse parameters that cannot be sent. No network."""

    @abstractmethod
    def models(self) -> RawResponse:
        """Ask for the list of models."""

    @abstractmethod
    def parts_for(self, spec: Spec) -> encode.PartsFor:
        """Return what makes the constant parts of a body."""

    @abstractmethod
    def envelope(self) -> encode.Envelope:
        """Return what stands around a body in a batch."""

    @abstractmethod
    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Say what raw lines mean: one row of `OUTCOMES` a line, in order."""

    # --- what is the same everywhere ---------------------------------------------------------------------------------

    def kept_options(self) -> Mapping[str, Any]:
        """Return the options that were given; the address only where it is not the environment's."""
        return set_by_hand(self.options)

    def get(self, call: Callable[[C], RawResponse]) -> dict[str, Any] | Fault:
        """Make a call that charges nothing and return its JSON object."""
        client = self.client
        return attempt(lambda: document(call(client)), self.errors)

    def check(self, spec: Spec) -> None:
        """Refuse what can be known to fail before anything is sent.

        Raises
        ------
        UnsupportedParameter
            A parameter that lotwise sets itself, or that a batch cannot carry.
        MissingCredentials
            No key, or one that is not taken.
        UnknownModel
            The server lists its models, and this one is not among them.
        BatchUnsupported
            The server has no batches, and they are wanted.
        Unreachable
            The server did not answer.

        Notes
        -----
        Free look-ups only. A server without a look-up of models is taken at its word later.
        """
        self.refuse(spec)
        found = self.get(lambda client: client.models.with_raw_response.retrieve(spec.model))
        if not isinstance(found, Fault):
            return
        if found.status == 401:
            raise MissingCredentials.refused_by(self.provider, self.key_variable, found.code)
        if found.status not in _NO_LOOKUP:
            raise found.unreachable()
        if not found.absent:
            return
        listed = self.get(lambda _: self.models())
        if isinstance(listed, Fault):
            if "model_not_found" in found.words:
                raise UnknownModel.from_name(self.provider, spec.model, ())
            return
        names = [name for entry in items_of(listed.get("data")) if (name := mapping(entry).get("id"))]
        if spec.model not in names:
            raise UnknownModel.from_name(self.provider, spec.model, map(str, names))

    def model_digest(self) -> None:
        """Return None: what a hosted model is made of is not known here."""

    def account(self) -> str:
        """Return organisation and project or workspace where the server names them, else a digest of the key.

        Raises
        ------
        Unreachable
            The server did not answer.

        Notes
        -----
        One free call, made once.
        """
        return self._account

    @cached_property
    def _account(self) -> str:
        got = attempt(lambda: self.models().http_response.headers, self.errors)
        if isinstance(got, Fault):
            if got.status is None or got.status == 429 or got.status >= 500:
                raise got.unreachable()
            return digest(self.credential())
        named = [got.get(name) for name in self.account_headers]
        return "/".join(part or "-" for part in named) if any(named) else digest(self.credential())

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        """Return an upper bound of each request's encoded bytes (Int64), from `plan.json_bytes` of its content."""
        return encode.sizes(content_bytes, self.parts_for(spec)(spec.max_tokens), self.envelope())

    def body(self, spec: Spec, content: str, variant: str | None = None) -> bytes:
        """Return the body that is sent for one request, from request and variant alone."""
        return encode.body(content, variant, self.parts_for(spec), spec.max_tokens)


class Batches(Service[C]):
    """What can be asked of any provider's batches."""

    @abstractmethod
    def batches(self, client: C) -> Any:
        """Return the SDK's resource of batches."""

    def check(self, spec: Spec) -> None:
        """Refuse what can be known to fail, as `Service.check` does, and an account that has no batches."""
        super().check(spec)
        listed = self.get(lambda client: self.batches(client).with_raw_response.list(limit=1))
        if isinstance(listed, Fault):
            if listed.status in _NO_BATCHES:
                raise BatchUnsupported.by(self.provider, listed.code)
            if listed.status not in (401, 403):
                raise listed.unreachable()
            raise MissingCredentials.refused_by(self.provider, self.key_variable, listed.code)

    def batch(self, batch_id: str) -> dict[str, Any]:
        """Return what the provider says of a batch.

        Raises
        ------
        BatchNotFound
            This account has no such batch.
        Unreachable
            The provider did not answer.
        """
        got = self.get(lambda client: self.batches(client).with_raw_response.retrieve(batch_id))
        if isinstance(got, Fault):
            raise BatchNotFound(batch_id) if got.absent else got.unreachable()
        return got

    def cancel(self, batch_id: str) -> None:
        """Ask the provider to stop a batch; what it finished stays readable and billed.

        A batch that has ended already is left as it is.

        Raises
        ------
        BatchNotFound, Unreachable
            As in `batch`.
        """
        got = self.get(lambda client: self.batches(client).with_raw_response.cancel(batch_id))
        if isinstance(got, Fault) and got.status not in (400, 409):
            raise BatchNotFound(batch_id) if got.absent else got.unreachable()


class Interactive(Service[C]):
    """Requests as synchronous calls, as many at once as the provider takes."""

    window: int

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        self.window = options.max_concurrency
        self.limits = replace(self.limits, max_bytes=None, retention_s=None)
        self._pace = Pace(Allowance(max_concurrency=options.max_concurrency, rpm=options.rpm, tpm=options.tpm))

    @abstractmethod
    def path(self) -> str:
        """Return where calls go, below the client's address."""

    @abstractmethod
    def answer_line(self, answer: Answer) -> bytes:
        """Return the line of one answer, in the form of a batch's results."""

    def answer(self, shard: Shard, spec: Spec, requests: pl.DataFrame) -> Iterator[list[bytes]]:
        """Ask for each request once and yield a line as each call ends, in any order.

        Raises
        ------
        Unreachable
            Nobody is there; what has no line was not sent.

        Notes
        -----
        An answer that was lost on its way is a line with the code ``uncertain``: it may have been charged. The SDK says
        where calls go and with which headers; they are made by a client of our own (see `lotwise.executors.fanout`).
        """
        encode.check_ids(requests)
        return fanout.answers(
            bodies(requests, self.parts_for(spec), spec.max_tokens),
            server=self._server,
            line=self.answer_line,
            pace=self._pace,
            window=self.window,
            max_tokens=spec.max_tokens,
        )

    def _server(self) -> fanout.Server:
        client = self.client

        def post(http: httpx2.Client) -> object:
            once = client.with_options(http_client=http, max_retries=0)
            return once.post(self.path(), cast_to=httpx2.Response, content=b"{}")

        return server_of(post, self.errors)
