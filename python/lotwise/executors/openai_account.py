"""OpenAI's account, as batches and synchronous calls share it: its options, its client, the body in its dialect.

The client takes the user's own environment (``OPENAI_API_KEY``, ``OPENAI_BASE_URL``, ...); nothing here charges money.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Self

import openai
import polars as pl

from lotwise.errors import MissingCredentials, UnknownParameter
from lotwise.executors import encode, service
from lotwise.executors import openai_dialect as dialect
from lotwise.executors.credentials import refuse_unsendable
from lotwise.executors.sdk import RawResponse
from lotwise.request import Spec


@dataclass(frozen=True, kw_only=True)
class Options(service.Options):
    """``executor_options`` of this provider, beside those of `service.Options`.

    Attributes
    ----------
    organization, project
        In place of the SDK's environment variables.
    endpoint
        "chat" for chat completions, "responses" for responses.
    max_tokens_name
        The field of chat completions that carries the limit; None for ``max_completion_tokens``.
    input_expires_s, output_expires_s
        When the provider removes the input, and the output and error file, in seconds after their creation (3,600 to
        2,592,000); None for its default.
    """

    provider: ClassVar[str] = "openai"

    organization: str | None = None
    project: str | None = None
    endpoint: dialect.Endpoint = "chat"
    max_tokens_name: str | None = None
    input_expires_s: int | None = None
    output_expires_s: int | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Self:
        """Read them from a mapping. Raises `UnknownParameter`, also for an endpoint that is neither."""
        made = super().of(given)
        if made.endpoint not in dialect.PATHS:
            raise UnknownParameter.bad_value(cls.provider, "endpoint", made.endpoint, "'chat' or 'responses'")
        return made


class OpenAIService(service.Service[openai.OpenAI]):
    """What both executors of this provider are."""

    provider: ClassVar[str] = "openai"
    errors = (openai.OpenAIError,)
    key_variable = "OPENAI_API_KEY"
    account_headers = ("openai-organization", "openai-project")
    options: Options

    def __init__(self, *, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(Options.of(options))

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
            absent = MissingCredentials.unset(self.provider, self.key_variable)
        else:
            refuse_unsendable(self.provider, self.key_variable, made.api_key)
            return made
        raise absent

    def credential(self) -> str:
        return self.client.api_key

    def refuse(self, spec: Spec) -> None:
        dialect.refuse_params(spec, self.options.endpoint)
        dialect.body_parts(spec, self.options.endpoint)

    def models(self) -> RawResponse:
        return self.client.models.with_raw_response.list()

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

    def parts_for(self, spec: Spec) -> encode.PartsFor:
        given = self.options
        return lambda limit: dialect.body_parts(
            spec, given.endpoint, max_tokens=limit, max_tokens_name=given.max_tokens_name
        )

    def envelope(self) -> encode.Envelope:
        return dialect.envelope(self.options.endpoint)

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        return dialect.read_lines(lines)
