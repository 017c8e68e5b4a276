"""The account that Anthropic's executors share: the client, its options, the checks before anything is sent, the body.

The client takes the user's own environment (``ANTHROPIC_API_KEY``, ``ANTHROPIC_BASE_URL``, ...); nothing here charges
money.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import anthropic
import polars as pl

from lotwise.errors import (
    MissingCredentials,
    UnknownModel,
    UnknownParameter,
)
from lotwise.executors import anthropic_dialect as dialect
from lotwise.executors import encode
from lotwise.executors.credentials import digest, refuse_unsendable, set_by_hand
from lotwise.executors.limits import limits_of
from lotwise.executors.pace import Allowance, refuse_bad_pace
from lotwise.executors.reading import items_of, mapping
from lotwise.executors.sdk import (
    Fault,
    RawResponse,
    attempt,
    document,
)
from lotwise.request import Limits, Spec

ERRORS = (anthropic.AnthropicError,)
KEY_VARIABLE = "ANTHROPIC_API_KEY"
_NO_LOOKUP = (403, 404, 405, 501)


@dataclass(frozen=True, kw_only=True)
class Options:
    """``executor_options`` of this provider.

    Attributes
    ----------
    base_url
        In place of the SDK's environment variable.
    timeout_s, create_timeout_s
        Of one call in seconds, and of the create call, which carries the whole shard.
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

    base_url: str | None = None
    timeout_s: float = 600.0
    create_timeout_s: float = 600.0
    read_retries: int = 2
    list_page: int = 1_000
    max_concurrency: int = 64
    rpm: float | None = None
    tpm: float | None = None
    temp_dir: str | None = None
    limits: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Read them from a mapping.

        Raises
        ------
        UnknownParameter
            A name that is none of them.
        """
        known = [f.name for f in fields(cls)]
        if unknown := set(given or {}) - set(known):
            raise UnknownParameter.from_names("anthropic", unknown, known)
        made = cls(**dict(given or {}))
        refuse_bad_pace("anthropic", made)
        return made

    @property
    def allowance(self) -> Allowance:
        """What synchronous calls may ask of the provider."""
        return Allowance(max_concurrency=self.max_concurrency, rpm=self.rpm, tpm=self.tpm)


class Service:
    """What batch and synchronous executors have in common: the client, the checks, the body, the reading."""

    provider: str = "anthropic"
    hosted: bool = True
    paid: bool = True
    limits: Limits

    def __init__(self, *, options: Mapping[str, Any] | None = None) -> None:
        self.options = Options.of(options)
        self.limits = limits_of("anthropic", self.options.limits)

    def kept_options(self) -> Mapping[str, Any]:
        """Return the options that were given; the address only where it is not the environment's."""
        return set_by_hand(self.options)

    @cached_property
    def client(self) -> anthropic.Anthropic:
        given = self.options
        made = attempt(
            lambda: anthropic.Anthropic(
                base_url=given.base_url, timeout=given.timeout_s, max_retries=given.read_retries
            ),
            ERRORS,
        )
        # The SDK itself complains only at the first call.
        if isinstance(made, Fault) or not (made.api_key or made.auth_token or made.credentials):
            raise MissingCredentials.unset(self.provider, KEY_VARIABLE)
        for secret in (made.api_key, made.auth_token):
            refuse_unsendable(self.provider, KEY_VARIABLE, secret)
        return made

    def get(self, call: Callable[[anthropic.Anthropic], RawResponse]) -> dict[str, Any] | Fault:
        """Make a call that charges nothing and return its JSON object."""
        client = self.client
        return attempt(lambda: document(call(client)), ERRORS)

    def check_spec(self, spec: Spec, *, batch: bool) -> None:
        dialect.refuse_params(spec, batch=batch)
        dialect.body_parts(spec)
        found = self.get(lambda client: client.models.with_raw_response.retrieve(spec.model))
        if not isinstance(found, Fault):
            return
        if found.status == 401:
            raise MissingCredentials.refused_by(self.provider, KEY_VARIABLE, found.code)
        if found.status not in _NO_LOOKUP:
            raise found.unreachable()
        if not found.absent:
            return
        listed = self.get(lambda client: client.models.with_raw_response.list(limit=1_000))
        if isinstance(listed, Fault):
            # A gateway without the look-up.
            return
        names = [name for entry in items_of(listed.get("data")) if (name := mapping(entry).get("id"))]
        if spec.model not in names:
            raise UnknownModel.from_name(self.provider, spec.model, map(str, names))

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        """Cut a JSON Schema to what is sent, before the key is made of it.

        Returns
        -------
        (str, tuple of str)
            The exact text sent, and what is left to validation, ``/path/keyword`` each.

        Raises
        ------
        UnsupportedSchema
            The subset cannot express it, with the place.
        """
        made = dialect.wire_schema(schema_text)
        return made.text, made.left_to_validation

    def model_digest(self) -> None:
        """Return None: what a hosted model is made of is not known here."""

    def account(self) -> str:
        """Return organisation and workspace where the server names them, else a digest of the key.

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
        client = self.client
        got = attempt(lambda: client.models.with_raw_response.list(limit=1).http_response.headers, ERRORS)
        if isinstance(got, Fault):
            if got.status is None or got.status == 429 or got.status >= 500:
                raise got.unreachable()
            named = []
        else:
            named = [got.get("anthropic-organization-id"), got.get("anthropic-workspace-id")]
        if any(named):
            return "/".join(part or "-" for part in named)
        return digest(client.api_key or client.auth_token or type(client.credentials).__name__)

    def parts_for(self, spec: Spec) -> encode.PartsFor:
        return lambda limit: dialect.body_parts(spec, max_tokens=limit)

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        """Return an upper bound of each request's encoded bytes (Int64), from `plan.json_bytes` of its content."""
        return encode.sizes(content_bytes, self.parts_for(spec)(spec.max_tokens), dialect.ENVELOPE)

    def body(self, spec: Spec, content: str, variant: str | None = None) -> bytes:
        """Return the body that is sent for one request, from request and variant alone."""
        return encode.body(content, variant, self.parts_for(spec), spec.max_tokens)

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Say what raw lines mean: one row of `OUTCOMES` a line, in order."""
        return dialect.read_lines(lines)
