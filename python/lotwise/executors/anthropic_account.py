"""Anthropic's account, as batches and synchronous calls share it: its options, its client, the body in its dialect.

The client takes the user's own environment (``ANTHROPIC_API_KEY``, ``ANTHROPIC_BASE_URL``, ...); nothing here charges
money.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import anthropic
import polars as pl

from lotwise.errors import MissingCredentials
from lotwise.executors import anthropic_dialect as dialect
from lotwise.executors import encode, service
from lotwise.executors.credentials import refuse_unsendable
from lotwise.executors.sdk import Fault, RawResponse, attempt
from lotwise.request import Spec


@dataclass(frozen=True, kw_only=True)
class Options(service.Options):
    """``executor_options`` of this provider, which are those of `service.Options`: the create call may take longer,
    since it carries the whole shard, and a page of the list is longer."""

    provider: ClassVar[str] = "anthropic"

    create_timeout_s: float = 600.0
    list_page: int = 1_000


class AnthropicService(service.Service[anthropic.Anthropic]):
    """What both executors of this provider are."""

    provider: ClassVar[str] = "anthropic"
    errors = (anthropic.AnthropicError,)
    key_variable = "ANTHROPIC_API_KEY"
    account_headers = ("anthropic-organization-id", "anthropic-workspace-id")

    def __init__(self, *, options: Mapping[str, Any] | None = None) -> None:
        super().__init__(Options.of(options))

    @cached_property
    def client(self) -> anthropic.Anthropic:
        given = self.options
        made = attempt(
            lambda: anthropic.Anthropic(
                base_url=given.base_url, timeout=given.timeout_s, max_retries=given.read_retries
            ),
            self.errors,
        )
        # The SDK itself complains only at the first call.
        if isinstance(made, Fault) or not (made.api_key or made.auth_token or made.credentials):
            raise MissingCredentials.unset(self.provider, self.key_variable)
        for secret in (made.api_key, made.auth_token):
            refuse_unsendable(self.provider, self.key_variable, secret)
        return made

    def credential(self) -> str:
        client = self.client
        return client.api_key or client.auth_token or type(client.credentials).__name__

    def models(self) -> RawResponse:
        return self.client.models.with_raw_response.list(limit=1_000)

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

    def parts_for(self, spec: Spec) -> encode.PartsFor:
        return lambda limit: dialect.body_parts(spec, max_tokens=limit)

    def envelope(self) -> encode.Envelope:
        return dialect.ENVELOPE

    def read(self, lines: Sequence[bytes]) -> pl.DataFrame:
        return dialect.read_lines(lines)
