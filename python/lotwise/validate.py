"""Validation: an answer's text becomes a value of the schema's shape, or faults that say where and what, never which.

Answers are judged in lists: decoded, checked for what a JSON reader hides (duplicate keys, numbers that no column
holds), validated by the user's own schema, and read into typed columns to see that nothing is lost on the way. A
fault is a path and a kind; what the answer says stays in the stored answer.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec
import polars as pl
from pydantic import BaseModel, ValidationError

from lotwise.errors import CheckFailedToRun, UnknownColumn, UnreadableValue
from lotwise.fingerprint import code_of, model_text
from lotwise.request import Code
from lotwise.schema import TEXT_COLUMN, Schema
from lotwise.typed import typed_columns
from lotwise.wire import Optionals

VALIDATOR_VERSION = 1
"""The version of the rules in this file; raising it judges all stored answers again, at no cost."""

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

MOST_DEPTH = 100
"""Nested objects and lists of an answer; more would make the verdict depend on the stack's height at the call."""

MOST_FAULTS = 10
"""Faults kept of one answer; the first ones tell enough."""

_CUT_OFF = {str(Code.TRUNCATED), str(Code.NEEDS_CONTINUATION)}
_KIND = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_FENCE = re.compile(r"```[A-Za-z0-9]*[ \t]*\r?\n(.*?)\r?\n?[ \t]*```\s*\Z", re.DOTALL)

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_NAME = r'"\s*:'
_HIDDEN_NAME = r"\\u00(22|20|3[aA])"
"""A quote, space or colon written as an escape can make the count of names in a text differ from the true one."""
_WIDE = r"[0-9]{19}|NaN|Infinity"
"""Texts that may hold a number beyond 64 bits, or none that JSON knows."""

Check = pl.Expr | Callable[[dict[str, Any]], "bool | str"]
"""A rule: an expression over the answer's typed columns that gives true, or a function of the value that gives True,
False or the kind of the fault."""


class _Fault(NamedTuple):
    """Why an answer is invalid."""

    code: str
    faults: tuple[tuple[str, str], ...]

    @classmethod
    def whole(cls, code: str, kind: str | None = None) -> _Fault:
        """Build a fault of the answer as a whole."""
        return cls(code, (("", kind or code),))

    def text(self) -> str:
        """Write the faults as JSON."""
        return json.dumps([{"path": path, "kind": kind} for path, kind in self.faults], ensure_ascii=False)


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
    _verdict: Callable[[str, Any, bytes], bytes | _Fault] = field(repr=False)

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
        checks = tuple((_check_name(each, i), each) for i, each in enumerate(given, 1))
        for name, each in checks:
            if isinstance(each, pl.Expr):
                _try_expression(name, each, schema)
        verdict = _verdict_of_model(schema.model) if schema.model is not None else _verdict_of_rules(schema)
        return cls(schema=schema, checks=checks, digest=_digest(schema, checks), _verdict=verdict)

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
        said = [str(Code.OK)] * len(answers) if codes is None else codes.to_list()
        if len(said) != len(answers):
            raise ValueError(f"{len(said)} codes for {len(answers)} answers")
        if strange := sorted({str(code) for code in said} - _CUT_OFF - {str(Code.OK)}):
            raise ValueError(f"only answers are judged; these outcome codes bring none: {', '.join(strange)}")
        frames = [
            self._judge_chunk(answers.slice(at, CHUNK_ROWS).to_list(), said[at : at + CHUNK_ROWS])
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

    def _judge_chunk(self, answers: list[str | None], codes: list[str]) -> pl.DataFrame:
        lenient = [False] * len(answers)
        results: list[bytes | _Fault]
        if self.schema.is_text:
            results = [_text_verdict(text, code) for text, code in zip(answers, codes, strict=True)]
        else:
            results = self._parse(answers, codes, lenient)
        self._refuse_wide_numbers(results)
        self._refuse_what_columns_lose(results)
        return pl.DataFrame(
            {
                "ok": [isinstance(each, bytes) for each in results],
                "value": pl.Series([each if isinstance(each, bytes) else None for each in results], dtype=pl.Binary),
                "faults": [None if isinstance(each, bytes) else each.text() for each in results],
                "code": [None if isinstance(each, bytes) else each.code for each in results],
                "lenient": lenient,
            },
            schema_overrides={"faults": pl.String, "code": pl.String},
        ).cast({"value": pl.String})

    def _parse(self, answers: list[str | None], codes: list[str], lenient: list[bool]) -> list[bytes | _Fault]:
        """Decode and validate; sets `lenient` where the JSON was not the whole answer."""
        decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
        results: list[bytes | _Fault] = []
        values: list[Any] = [None] * len(answers)
        texts: list[str | None] = list(answers)
        opened = pl.Series(answers, dtype=pl.String).str.count_matches(r"[\[{]").fill_null(0)
        deep = {i for i in (opened > MOST_DEPTH).arg_true() if _is_deep(answers[i] or "")}
        for i, (text, code) in enumerate(zip(answers, codes, strict=True)):
            if code in _CUT_OFF:
                texts[i] = None
                results.append(_Fault.whole(code))
                continue
            if i in deep:
                texts[i] = None
                results.append(_Fault.whole("invalid_json", "too_deep"))
                continue
            try:
                values[i] = decode(text)  # type: ignore[arg-type]
            except (msgspec.DecodeError, TypeError):
                inner, values[i] = _decoded_leniently(text or "", decode)
                texts[i] = inner
                if inner is None:
                    blank = text is None or not text.strip()
                    results.append(_Fault.whole("empty" if blank else "invalid_json"))
                    continue
                lenient[i] = True
            results.append(_Fault.whole("empty") if _is_blank(values[i]) else encode(values[i]))
        for i in _suspects(texts, results):
            if _has_duplicate(texts[i] or ""):
                results[i] = _Fault.whole("invalid_json", "duplicate_key")
        verdict = self._verdict
        for i, result in enumerate(results):
            if isinstance(result, bytes):
                results[i] = verdict(texts[i] or "", values[i], result)
        return results

    def _refuse_wide_numbers(self, results: list[bytes | _Fault]) -> None:
        """Make answers invalid whose numbers JSON readers disagree on, before Polars reads them."""
        values = pl.Series([each if isinstance(each, bytes) else None for each in results], dtype=pl.Binary)
        for i in values.cast(pl.String).str.contains(_WIDE).fill_null(False).arg_true():
            if _has_wide_number(json.loads(results[i])):
                results[i] = _Fault.whole("schema_mismatch", "number_out_of_range")

    def _refuse_what_columns_lose(self, results: list[bytes | _Fault]) -> None:
        """Make answers invalid that the columns cannot hold, and those that a rule of ``check=`` refuses."""
        rows = [i for i, each in enumerate(results) if isinstance(each, bytes)]
        if not rows:
            return
        values = pl.Series([results[i] for i in rows], dtype=pl.Binary).cast(pl.String)
        frame, lost = typed_columns(values, self.schema.dtypes)
        held = pl.repeat(True, len(rows), eager=True)
        for name, mask in lost.items():
            for at in mask.arg_true():
                results[rows[at]] = _Fault("schema_mismatch", ((name, "unrepresentable"),))
            held &= ~mask
        kept, rows = frame.filter(held), [rows[at] for at in held.arg_true()]
        failed: dict[int, list[tuple[str, str]]] = {}
        for name, check in self.checks:
            if isinstance(check, pl.Expr):
                passed = _run_expression(name, check, kept)
                kinds = ((i, None if good else name) for i, good in zip(rows, passed, strict=True))
            else:
                kinds = ((i, _run_function(name, check, results[i])) for i in rows)
            for i, kind in kinds:
                if kind is not None:
                    failed.setdefault(i, []).append(("", f"check:{kind}"))
        for i, faults in failed.items():
            results[i] = _Fault("check_failed", tuple(faults[:MOST_FAULTS]))


def _text_verdict(text: str | None, code: str) -> bytes | _Fault:
    if code in _CUT_OFF:
        return _Fault.whole(code)
    if text is None or not text.strip():
        return _Fault.whole("empty")
    return msgspec.json.encode({TEXT_COLUMN: text})


def _verdict_of_model(model: type[BaseModel]) -> Callable[[str, Any, bytes], bytes | _Fault]:
    """Judge by a Pydantic model: its own strictness, defaults and validators; the value is its JSON dump."""
    validate, dump = model.__pydantic_validator__.validate_json, model.__pydantic_serializer__.to_json
    known = frozenset(_property_names(model.model_json_schema()))

    def verdict(text: str, value: Any, written: bytes) -> bytes | _Fault:
        try:
            valid = validate(text)
            dumped = dump(valid, by_alias=True)
            # "inf" is a number to a lax model, and its dump says null.
            if b"null" in dumped and _has_wide_number(valid.model_dump(), integers=False):
                return _Fault.whole("schema_mismatch", "number_out_of_range")
            return dumped
        except ValidationError as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            faults = tuple((_path(each["loc"], known), each["type"]) for each in found[:MOST_FAULTS])
            return _Fault("schema_mismatch", faults)
        except Exception as error:
            raised = error
        # Raised outside the except block: the original may quote the answer, and would stay in the chain.
        raise CheckFailedToRun.raised(model.__name__, raised)

    return verdict


def _verdict_of_rules(schema: Schema) -> Callable[[str, Any, bytes], bytes | _Fault]:
    """Judge by the original JSON Schema, formats included."""
    rules = jsonschema_rs.validator_for(dict(schema.json_schema), validate_formats=True, offline=True)
    known = frozenset(_property_names(schema.json_schema))
    is_valid, optionals = rules.is_valid, schema.optionals

    def verdict(text: str, value: Any, written: bytes) -> bytes | _Fault:
        judged = value if optionals is None else _without_absent(value, optionals)
        if is_valid(judged):
            return written if optionals is None else msgspec.json.encode(_with_absent(value, optionals))
        faults = []
        for error in rules.iter_errors(judged):
            where = list(error.instance_path)
            if error.kind.name == "required":
                where.append(error.kind.as_dict()["property"])
            faults.append((_path(where, known), error.kind.name))
            if len(faults) == MOST_FAULTS:
                break
        return _Fault("schema_mismatch", tuple(faults))

    return verdict


def _decoded_leniently(text: str, decode: Callable[[str], Any]) -> tuple[str | None, Any]:
    """Find the JSON in a fence, or behind prose up to the text's end; (None, None) when there is none.

    Only the first brace is tried: a later one may open an object inside a broken one.
    """
    fenced = _FENCE.search(text)
    body = fenced[1] if fenced else text
    start = body.find("{")
    if start < 0 or (fenced and "{" in text[: fenced.start()]):
        return None, None
    body = body[start:]
    if _is_deep(body):
        return None, None
    try:
        return body, decode(body)
    except msgspec.DecodeError:
        return None, None


def _is_deep(text: str) -> bool:
    """Tell whether a JSON text nests deeper than is judged; brackets inside strings do not count."""
    depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{":
            depth += 1
            if depth > MOST_DEPTH:
                return True
        elif token[0] in "]}":
            depth -= 1
    return False


def _suspects(texts: list[str | None], results: list[bytes | _Fault]) -> list[int]:
    """Find the texts that may repeat a name: the value, written again, has another number of names."""
    frame = pl.DataFrame(
        {
            "text": pl.Series(texts, dtype=pl.String),
            "value": pl.Series([each if isinstance(each, bytes) else None for each in results], dtype=pl.Binary),
        }
    )
    text, value = pl.col("text"), pl.col("value").cast(pl.String)
    differs = text.str.count_matches(_NAME) != value.str.count_matches(_NAME)
    odd = frame.select((differs | text.str.contains(_HIDDEN_NAME)) & value.is_not_null()).to_series()
    return odd.fill_null(False).arg_true().to_list()


def _has_duplicate(text: str) -> bool:
    """Tell whether any object of a JSON text has a name twice."""
    found = False

    def seen(pairs: list[tuple[str, Any]]) -> None:
        nonlocal found
        found = found or len({name for name, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=seen)
    return found


def _has_wide_number(value: Any, *, integers: bool = True) -> bool:
    """Tell whether a value holds an integer beyond 64 bits, or a number that JSON does not know."""
    if isinstance(value, dict):
        return any(_has_wide_number(inner, integers=integers) for inner in value.values())
    if isinstance(value, (list, tuple, set)):
        return any(_has_wide_number(inner, integers=integers) for inner in value)
    if isinstance(value, float):
        return not math.isfinite(value)
    return integers and isinstance(value, int) and not -(2**63) <= value < 2**64


def _is_blank(value: Any) -> bool:
    """Tell whether a value holds nothing. A list without items says something: none."""
    if isinstance(value, str):
        return not value or value.isspace()
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list) or not value:
        return value is None
    # A loop, since this runs for every answer, and `all` with a generator takes three times as long.
    for inner in value:  # noqa: SIM110
        if not _is_blank(inner):
            return False
    return True


def _without_absent(value: Any, optionals: Optionals) -> Any:
    """Copy a value without the nulls that stand for an absent property."""
    if isinstance(value, list) and optionals.items is not None:
        return [_without_absent(each, optionals.items) for each in value]
    if not isinstance(value, dict):
        return value
    inside = dict(optionals.inside)
    return {
        name: _without_absent(each, inside[name]) if name in inside else each
        for name, each in value.items()
        if each is not None or name not in optionals.dropped
    }


def _with_absent(value: Any, optionals: Optionals) -> Any:
    """Copy a value with null for each optional property that is absent."""
    if isinstance(value, list) and optionals.items is not None:
        return [_with_absent(each, optionals.items) for each in value]
    if not isinstance(value, dict):
        return value
    inside = dict(optionals.inside)
    present = {name: _with_absent(each, inside[name]) if name in inside else each for name, each in value.items()}
    return present | {name: None for name in optionals.names if name not in value}


def _path(parts: Sequence[str | int], known: frozenset[str]) -> str:
    """Write a path; a name that the schema does not know came from the answer and becomes a question mark."""
    path = ""
    for part in parts:
        if isinstance(part, int):
            path += f"[{part}]"
        else:
            path += ("." if path else "") + (part if part in known else "?")
    return path


def _property_names(schema: Any) -> Iterator[str]:
    """Give all property names of a JSON Schema, at any depth."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from properties
        for each in schema.values():
            yield from _property_names(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _property_names(each)


def _check_name(check: object, number: int) -> str:
    """Name a rule for faults and errors."""
    if isinstance(check, pl.Expr):
        name = check.meta.output_name(raise_if_undetermined=False)
        return name if name is not None and _KIND.fullmatch(name) else f"check_{number}"
    if callable(check):
        name = getattr(check, "__name__", type(check).__name__)
        return name if _KIND.fullmatch(name) else f"check_{number}"
    raise CheckFailedToRun.gave(f"check_{number}", f"a {type(check).__name__}", "an expression or a function")


def _try_expression(name: str, check: pl.Expr, schema: Schema) -> None:
    """Run a rule on no rows: tells unknown columns and wrong types before anything is sent."""
    plain = [each for each in check.meta.root_names() if not each.startswith("^") and each != "*"]
    if missing := [each for each in plain if each not in schema.names]:
        raise UnknownColumn.from_names(missing, schema.names, where=f"check {name!r}")
    _run_expression(name, check, schema.dtypes.to_frame())


def _run_expression(name: str, check: pl.Expr, frame: pl.DataFrame) -> pl.Series:
    """Give the verdicts of a rule, null as false."""
    raised: Exception | None = None
    verdicts = pl.DataFrame()
    try:
        verdicts = frame.select(check)
    except Exception as error:
        raised = error
    if raised is not None:
        raise CheckFailedToRun.raised(name, raised)
    if verdicts.width != 1 or verdicts.dtypes[0] != pl.Boolean:
        got = ", ".join(str(dtype) for dtype in verdicts.dtypes) or "no column"
        raise CheckFailedToRun.gave(name, got, "one Boolean column")
    if verdicts.height != frame.height and frame.height:
        raise CheckFailedToRun.gave(name, f"{verdicts.height} rows for {frame.height}", "a verdict for each row")
    return verdicts.to_series().fill_null(False)


def _run_function(name: str, check: Callable[[dict[str, Any]], bool | str], value: bytes | _Fault) -> str | None:
    """Give the kind of the fault that a rule finds, or None."""
    raised: Exception | None = None
    verdict: object = None
    try:
        verdict = check(msgspec.json.decode(value))  # type: ignore[arg-type]
    except Exception as error:
        raised = error
    if raised is not None:
        raise CheckFailedToRun.raised(name, raised)
    if isinstance(verdict, str) and _KIND.fullmatch(verdict):
        return verdict
    if isinstance(verdict, bool):
        return None if verdict else name
    got = "text that is no fault kind" if isinstance(verdict, str) else f"a {type(verdict).__name__}"
    raise CheckFailedToRun.gave(name, got, "True, False or a fault kind of letters, digits, and _ . : -")


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
