"""The account that OpenAI's executors share: the client, its options, the checks before anything is sent, the body.

The client takes the user's own environment (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``, ...); nothing here charges money.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import openai
import polars as pl

from lotwise.errors import (
    MissingCredentials,
    UnknownModel,
    UnknownParameter,
)
from lotwise.executors import encode
from lotwise.executors import openai_dialect as dialect
from lotwise.executors.credentials import digest, refuse_unsendable, set_by_hand
from lotwise.executors.limits import limits_of
from lotwise.executors.pace import Allowance, refuse_bad_pace
from lotwise.executors.reading import items_of, mapping
from lotwise.executors.sdk import Fault, RawResponse, attempt, document
from lotwise.request import Limits, Spec

ERRORS = (openai.OpenAIError,)
KEY_VARIABLE = "OPENAI_API_KEY"
# A deployment that grants no look-up of models, or has none, says so in one of these.
_NO_LOOKUP = (403, 404, 405, 501)


@dataclass(frozen=True, kw_only=True)
class Options:
    """``executor_options`` of this provider.

    Attributes
    ----------
    base_url, organization, project
        In place of the SDK's environment variables.
    endpoint
        "chat" for chat completions, "responses" for responses.
    timeout_s, create_timeout_s
        Of one call in seconds, and of the create call.
    read_retries
        How often the SDK repeats a call that charges nothing.
    max_tokens_name
        The field of chat completions that carries the limit; None for ``max_completion_tokens``.
    input_expires_s, output_expires_s
        When the provider removes the input, and the output and error file, in seconds after their creation (3,600 to
        2,592,000); None for its default.
    list_page
        Batches asked for in one page of the list.
    max_concurrency
        Synchronous calls in flight at most; how many there are is found by trying. A kill leaves at most so many of
        which it is not known whether they were charged.
    rpm, tpm
        Requests and tokens a minute of synchronous calls; None for no limit but the provider's own.
    temp_dir
        Where encoded requests and downloads lie for a moment; None for the system's temporary folder.
    limits
        Fields of `Limits` that replace the table's.
    """

    base_url: str | None = None
    organization: str | None = None
    project: str | None = None
    endpoint: dialect.Endpoint = "chat"
    timeout_s: float = 600.0
    create_timeout_s: float = 120.0
    read_retries: int = 2
    max_tokens_name: str | None = None
    input_expires_s: int | None = None
    output_expires_s: int | None = None
    list_page: int = 100
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
            A name that is none of them, or an endpoint that is neither.
        """
        known = [f.name for f in fields(cls)]
        if unknown := set(given or {}) - set(known):
            raise UnknownParameter.from_names("openai", unknown, known)
        made = cls(**dict(given or {}))
        if made.endpoint not in dialect.PATHS:
            raise UnknownParameter.bad_value("openai", "endpoint", made.endpoint, "'chat' or 'responses'")
        refuse_bad_pace("openai", made)
        return made

    @property
    def allowance(self) -> Allowance:
        """What synchronous calls may ask of the provider."""
        return Allowance(max_concurrency=self.max_concurrency, rpm=self.rpm, tpm=self.tpm)


class Service:
    """What batch and synchronous executors have in common: the client, the checks, the body, the reading."""

    provider: str = "openai"
    hosted: bool = True
    paid: bool = True
    limits: Limits

    def __init__(self, *, options: Mapping[str, Any] | None = None) -> None:
        self.options = Options.of(options)
        self.limits = limits_of("openai", self.options.limits)

    def kept_options(self) -> Mapping[str, Any]:
        """Return the options that were given; the address only where it is not the environment's."""
        return set_by_hand(self.options)

    @cached_property
    def client(self) -> openai.OpenAI:
        given = self.options
        absent = None
        try:
            made = openai.OpenAI(
                base_url=given.base_url,
                organization=given.organization,
                project=given.project,
                timeout=given.timeout_s,
                max_retries=given.read_retries,
            )
        except openai.OpenAIError:
            absent = MissingCredentials.unset(self.provider, KEY_VARIABLE)
        else:
            refuse_unsendable(self.provider, KEY_VARIABLE, made.api_key)
            return made
        raise absent

    def get(self, call: Callable[[openai.OpenAI], RawResponse]) -> dict[str, Any] | Fault:
        """Make a call that charges nothing and return its JSON object."""
        client = self.client
        return attempt(lambda: document(call(client)), ERRORS)

    def check_spec(self, spec: Spec) -> None:
        dialect.refuse_params(spec, self.options.endpoint)
        dialect.body_parts(spec, self.options.endpoint)
        found = self.get(lambda client: client.models.with_raw_response.retrieve(spec.model))
        if not isinstance(found, Fault):
            return
        if found.status == 401:
            raise MissingCredentials.refused_by(self.provider, KEY_VARIABLE, found.code)
        if found.status not in _NO_LOOKUP:
            raise found.unreachable()
        if not found.absent:
            return
        listed = self.get(lambda client: client.models.with_raw_response.list())
        if isinstance(listed, Fault):
            if "model_not_found" in found.words:
                raise UnknownModel.from_name(self.provider, spec.model, ())
            return
        names = [name for entry in items_of(listed.get("data")) if (name := mapping(entry).get("id"))]
        if spec.model not in names:
            raise UnknownModel.from_name(self.provider, spec.model, map(str, names))

    def wire_schema(self, schema_text: str) -> tuple[str, tuple[str, ...]]:
        """Cut a JSON Schema to what is sent, before the key is made of it.

        Returns
        -------
        (str, tuple of str)
            The exact text sent, and what is left to validation: ``/path/keyword`` each, or ``/`` for all of it where
            the strict subset cannot express the schema and it is sent unenforced.

        Raises
        ------
        UnsupportedSchema
            The root is no object with named fields.
        """
        made = dialect.wire_schema(schema_text)
        return made.text, made.left_to_validation

    def model_digest(self) -> None:
        """Return None: what a hosted model is made of is not known here."""

    def account(self) -> str:
        """Return organisation and project where the server names them, else a digest of the key.

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
        got = attempt(lambda: client.models.with_raw_response.list().http_response.headers, ERRORS)
        if isinstance(got, Fault):
            if got.status is None or got.status == 429 or got.status >= 500:
                raise got.unreachable()
            return digest(client.api_key)
        named = [got.get("openai-organization"), got.get("openai-project")]
        return "/".join(part or "-" for part in named) if any(named) else digest(client.api_key)

    def parts_for(self, spec: Spec) -> encode.PartsFor:
        given = self.options
        return lambda limit: dialect.body_parts(
            spec, given.endpoint, max_tokens=limit, max_tokens_name=given.max_tokens_name
        )

    def sizes(self, spec: Spec, content_bytes: pl.Series) -> pl.Series:
        """Return an upper bound of each request's encoded bytes (Int64), from `plan.json_bytes` of its content."""
        parts = self.parts_for(spec)(spec.max_tokens)
        return encode.sizes(content_bytes, parts, dialect.envelope(self.options.endpoint))

    def body(self, spec: Spec, content: str, variant: str | None = None) -> bytes:
        """Return the body that is sent for one request, from request and variant alone."""
        return encode.body(content, variant, self.parts_for(spec), spec.max_tokens)

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        """Say what raw lines mean: one row of `OUTCOMES` a line, in order."""
        return dialect.read_lines(lines)
