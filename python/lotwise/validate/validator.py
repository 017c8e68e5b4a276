"""The judge of answers: which are values of the schema, which are not and why, and the columns of those that are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256

import msgspec
import polars as pl

from lotwise.errors import UnreadableValue
from lotwise.fingerprint import code_of, model_text
from lotwise.request import Code
from lotwise.schema import TEXT_COLUMN, Schema
from lotwise.typed import typed_columns
from lotwise.validate.checks import Check, name_of, run_expression, run_function, try_expression
from lotwise.validate.faults import MOST_FAULTS, Fault
from lotwise.validate.parse import CUT_OFF, parse, refuse_wide_numbers
from lotwise.validate.quick import Quick
from lotwise.validate.rules import Verdict, by_model, by_rules

VALIDATOR_VERSION = 1
"""The version of the rules in this package; raising it judges all stored answers again, at no cost."""

JUDGED = pl.Schema(
    {"ok": pl.Boolean, "value": pl.String, "faults": pl.String, "code": pl.String, "lenient": pl.Boolean}
)
"""What `Validator.judge` returns.

ok, lenient: never null. value: JSON text of the parsed value, null unless ok. faults: a JSON list of
``{"path": ..., "kind": ...}``, null when ok. code: null when ok, else one of invalid_json, schema_mismatch, empty,
check_failed, truncated, needs_continuation. lenient: the JSON was taken out of a fence or from behind prose.
"""

CHUNK_ROWS = 20_000
"""Answers decoded at a time, to bound memory."""


@dataclass(frozen=True, kw_only=True)
class Validator:
    """Judges answers against one schema and its rules. Made by `Validator.of`.

    Attributes
    ----------
    schema
        The shape of an answer.
    checks
        The rules of ``check=``, each with its name.
    digest
        40 hex characters over all that can change a verdict: the schema with its rules, the model's source, the
        checks' code. Globals that a function reads are not followed.
    """

    schema: Schema
    checks: tuple[tuple[str, Check], ...] = ()
    digest: str
    _verdict: Verdict = field(repr=False)
    _quick: Quick | None = field(repr=False)

    @classmethod
    def of(cls, schema: Schema, check: Check | Sequence[Check] | None = None) -> Validator:
        """Make the validator of a schema and rules.

        Parameters
        ----------
        schema
            From `Schema.of`.
        check
            One rule or several; None for none. An expression sees the typed columns of the answers, not the input
            frame, and gives a Boolean a row; null fails. A function gets one value as a dict, dates as ISO text.

        Raises
        ------
        UnknownColumn
            An expression names a column that the schema lacks.
        CheckFailedToRun
            An expression does not give Booleans, or a rule is neither expression nor function.
        """
        given = () if check is None else (check,) if isinstance(check, pl.Expr) or callable(check) else tuple(check)
        checks = tuple((name_of(each, i), each) for i, each in enumerate(given, 1))
        for name, each in checks:
            if isinstance(each, pl.Expr):
                try_expression(name, each, schema)
        verdict = by_model(schema.model) if schema.model is not None else by_rules(schema)
        return cls(
            schema=schema, checks=checks, digest=_digest(schema, checks), _verdict=verdict, _quick=Quick.of(schema)
        )

    def taking_compatible(self) -> Validator:
        """Return the same judge under a digest of its own, for runs that also take answers to compatible requests.

        What such a run takes is valid for it, and must not be for a run that asks for its own answers only.
        """
        return replace(self, digest=sha256(f"compatible {self.digest}".encode()).hexdigest()[:40])

    def judge(self, answers: pl.Series, codes: pl.Series | None = None) -> pl.DataFrame:
        """Judge answers.

        Parameters
        ----------
        answers
            String: what the model said; null is judged as empty.
        codes
            The outcome code of each answer (`lotwise.request.Code`): ok, truncated or needs_continuation. An answer
            that was cut off is invalid with that code and is not parsed. None means all ok.

        Returns
        -------
        pl.DataFrame
            `JUDGED`, of the same height and order.

        Raises
        ------
        CheckFailedToRun
            A rule of ``check=`` or a validator of the model raised.

        Notes
        -----
        An answer is `empty` when it holds nothing: no text, ``{}``, or only nulls and blank strings. An empty list is
        an answer ("no tags").
        """
        said = pl.repeat(str(Code.OK), len(answers), eager=True) if codes is None else codes.cast(pl.String)
        if len(said) != len(answers):
            raise ValueError(f"{len(said)} codes for {len(answers)} answers")
        if strange := sorted({str(code) for code in said.unique()} - CUT_OFF - {str(Code.OK)}):
            raise ValueError(f"only answers are judged; these outcome codes bring none: {', '.join(strange)}")
        frames = [
            self._judge_chunk(answers.slice(at, CHUNK_ROWS).cast(pl.String), said.slice(at, CHUNK_ROWS))
            for at in range(0, len(answers), CHUNK_ROWS)
        ]
        return pl.concat(frames) if frames else JUDGED.to_frame()

    def columns(self, values: pl.Series) -> pl.DataFrame:
        """Read judged values into typed columns.

        Parameters
        ----------
        values
            String: the `value` of `judge`; null gives null in every column.

        Returns
        -------
        pl.DataFrame
            The schema's columns with exactly its dtypes, of the same height and order.

        Raises
        ------
        UnreadableValue
            A value does not fit: it was judged by another schema. Nothing becomes null in silence.
        """
        frame, lost = typed_columns(values, self.schema.dtypes)
        for name, mask in lost.items():
            if rows := int(mask.sum()):
                raise UnreadableValue.in_column(name, rows)
        return frame

    def _judge_chunk(self, answers: pl.Series, codes: pl.Series) -> pl.DataFrame:
        nothing = pl.Series([None], dtype=pl.String)
        if self._quick is None:
            values = nothing.new_from_index(0, len(answers))
        else:
            values = self._quick.accept(answers.zip_with(codes == str(Code.OK), nothing))
        faults: dict[int, Fault] = {}
        lenient = [False] * len(answers)
        rest = values.is_null().arg_true()
        if len(rest):
            results, found = self._judge_patiently(answers.gather(rest).to_list(), codes.gather(rest).to_list())
            for i, result, taken in zip(rest, results, found, strict=True):
                lenient[i] = taken
                if isinstance(result, Fault):
                    faults[i] = result
            written = pl.Series([None if isinstance(each, Fault) else each for each in results], dtype=pl.Binary)
            order = pl.concat([values.is_not_null().arg_true(), rest]).arg_sort()
            values = pl.concat([values.drop_nulls(), written.cast(pl.String)]).gather(order)
        self._refuse_what_columns_lose(values, rest, faults)
        ok = [True] * len(answers)
        told: list[str | None] = [None] * len(answers)
        named: list[str | None] = [None] * len(answers)
        for i, fault in faults.items():
            ok[i], told[i], named[i] = False, fault.text(), fault.code
        good = pl.Series(ok, dtype=pl.Boolean)
        return pl.DataFrame(
            {"ok": good, "value": values.zip_with(good, nothing), "faults": told, "code": named, "lenient": lenient},
            schema=JUDGED,
        )

    def _judge_patiently(self, answers: list[str | None], codes: list[str]) -> tuple[list[bytes | Fault], list[bool]]:
        """Give the value or fault of each answer, and whether its JSON was not the whole of it."""
        if self.schema.is_text:
            results = [_text_verdict(text, code) for text, code in zip(answers, codes, strict=True)]
            return results, [False] * len(answers)
        parsed = parse(answers, codes)
        results, verdict = parsed.results, self._verdict
        for i, result in enumerate(results):
            if isinstance(result, bytes):
                results[i] = verdict(parsed.texts[i] or "", parsed.values[i], result)
        refuse_wide_numbers(results)
        return results, parsed.lenient

    def _refuse_what_columns_lose(self, values: pl.Series, patient: pl.Series, faults: dict[int, Fault]) -> None:
        """Add the faults of values that the columns cannot hold, and of those that a rule of ``check=`` refuses.

        The columns hold what was accepted quickly; those values are read only for a rule that looks at columns. Such
        a rule sees all good values of the chunk at once, whichever way they came.
        """
        looks = any(isinstance(check, pl.Expr) for _, check in self.checks)
        valid = values.is_not_null().arg_true()
        rows = valid if looks else patient.filter(values.gather(patient).is_not_null())
        if not len(valid):
            return
        frame, lost = typed_columns(values.gather(rows), self.schema.dtypes)
        held = pl.repeat(True, len(rows), eager=True)
        for name, mask in lost.items():
            for i in rows.filter(mask):
                faults[i] = Fault("schema_mismatch", ((name, "unrepresentable"),))
            held &= ~mask
        if not self.checks:
            return
        kept = [i for i in valid if i not in faults]
        failed: dict[int, list[tuple[str, str]]] = {}
        for name, check in self.checks:
            if isinstance(check, pl.Expr):
                passed = run_expression(name, check, frame.filter(held))
                kinds = ((i, None if good else name) for i, good in zip(kept, passed, strict=True))
            else:
                kinds = (
                    (i, run_function(name, check, value)) for i, value in zip(kept, values.gather(kept), strict=True)
                )
            for i, kind in kinds:
                if kind is not None:
                    failed.setdefault(i, []).append(("", f"check:{kind}"))
        for i, found in failed.items():
            faults[i] = Fault("check_failed", tuple(found[:MOST_FAULTS]))


def _text_verdict(text: str | None, code: str) -> bytes | Fault:
    if code in CUT_OFF:
        return Fault.whole(code)
    if text is None or not text.strip():
        return Fault.whole("empty")
    return msgspec.json.encode({TEXT_COLUMN: text})


def _digest(schema: Schema, checks: tuple[tuple[str, Check], ...]) -> str:
    parts = {
        "version": VALIDATOR_VERSION,
        "rules": schema.json_schema,
        "wire": schema.wire,
        "dtypes": {name: str(dtype) for name, dtype in schema.dtypes.items()},
        "model": None if schema.model is None else model_text(schema.model),
        "checks": [
            [name, check.meta.serialize().hex() if isinstance(check, pl.Expr) else code_of(check)]
            for name, check in checks
        ],
    }
    # The order of properties is part of the text: the columns follow it.
    return sha256(json.dumps(parts, ensure_ascii=True, default=str).encode()).hexdigest()[:40]
