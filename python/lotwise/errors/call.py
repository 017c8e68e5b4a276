"""A call that cannot be right: whoever wrote it acts, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterable

from lotwise.errors.base import LotwiseError, hint, named, nearest


class UnknownColumn(LotwiseError, LookupError):
    """A template, an example or a check names a column that is not there."""

    def __init__(self, message: str, *, missing: tuple[str, ...], available: tuple[str, ...]) -> None:
        super().__init__(message)
        self.missing, self.available = missing, available

    @classmethod
    def from_names(
        cls, missing: Iterable[str], available: Iterable[str], *, where: str = "the prompt"
    ) -> UnknownColumn:
        """Build from the names asked for and those that exist; `where` says who asked."""
        missing, available = tuple(missing), tuple(available)
        noun = "column" if len(missing) == 1 else "columns"
        message = f"{where} names {noun} {named(missing)}, not found{hint(missing, available)}"
        if any(mark in name for name in missing for mark in "\"':"):  # it looks like JSON
            message += "; write {{ and }} for braces"
        return cls(message, missing=missing, available=available)


class EmptyTemplate(LotwiseError, ValueError):
    """A prompt template that holds nothing but white space."""

    @classmethod
    def from_text(cls) -> EmptyTemplate:
        """Build; there is nothing to tell of an empty text."""
        return cls("the prompt is empty; write what the model shall do, with {column} where a column's text goes")


class BadTemplate(LotwiseError, ValueError):
    """A prompt template whose braces do not pair up. `position` counts characters from 0."""

    def __init__(self, message: str, *, position: int, reason: str) -> None:
        super().__init__(message)
        self.position, self.reason = position, reason

    @classmethod
    def at(cls, text: str, position: int, reason: str) -> BadTemplate:
        """Build from the template and the place of the fault in it."""
        line = text.count("\n", 0, position) + 1
        column = position - (text.rfind("\n", 0, position) + 1) + 1
        message = (
            f"the prompt has {reason} at line {line}, column {column}; "
            "write {column} for a column's text and {{ or }} for a brace"
        )
        return cls(message, position=position, reason=reason)


class UnrenderableColumn(LotwiseError, TypeError):
    """A column whose dtype has no text, such as Binary, alone or inside a list or struct."""

    def __init__(self, message: str, *, column: str, dtype: str, inner: str) -> None:
        super().__init__(message)
        self.column, self.dtype, self.inner = column, dtype, inner

    @classmethod
    def from_dtype(cls, column: str, dtype: object, inner: object) -> UnrenderableColumn:
        """Build from the column, its dtype, and the part of the dtype that has no text."""
        held = f"{dtype}" if f"{inner}" == f"{dtype}" else f"{dtype}, which holds {inner}"
        message = (
            f"column {column!r} is {held} and has no text; "
            "decode it to a String column, or drop that field, before it goes into a prompt"
        )
        return cls(message, column=column, dtype=str(dtype), inner=str(inner))


class UntranslatableSchema(LotwiseError, TypeError):
    """A schema that cannot be said both to a model and to Polars. `path` leads to the part at fault; "" is the root."""

    def __init__(self, message: str, *, path: str, reason: str) -> None:
        super().__init__(message)
        self.path, self.reason = path, reason

    @classmethod
    def at(cls, path: str, reason: str) -> UntranslatableSchema:
        """Build from the path (``address.geo[].x``) and the reason, which ends in what to write instead."""
        return cls(f"the schema cannot be used at {path or 'its root'}: {reason}", path=path, reason=reason)


class BadExample(LotwiseError, ValueError):
    """A few-shot example whose input or answer has not the right shape. `path` leads to the part at fault."""

    def __init__(self, message: str, *, path: str, reason: str) -> None:
        super().__init__(message)
        self.path, self.reason = path, reason

    @classmethod
    def at(cls, path: str, reason: str) -> BadExample:
        """Build from the path into the answer and the reason; neither holds a value."""
        return cls(f"an example's answer is wrong at {path or 'its root'}: {reason}", path=path, reason=reason)

    @classmethod
    def no_pair(cls) -> BadExample:
        """Build from an example that is no pair."""
        reason = "it is no pair of an input by column and an answer"
        return cls(f'an example is not usable: {reason}; write ({{"column": ...}}, answer)', path="", reason=reason)

    @classmethod
    def other_dtype(cls, column: str, dtype: str) -> BadExample:
        """Build from the column whose value in an example is none of its dtype."""
        reason = f"its value for {column!r} is no {dtype}, as the frame's column is"
        return cls(f"an example is not usable: {reason}", path=column, reason=reason)

    @classmethod
    def unknown(cls, path: str, name: str, available: Iterable[str]) -> BadExample:
        """Build from a name that the schema does not know there."""
        return cls.at(path, f"the schema has no {name!r}{hint([name], available)}")


class OutputClash(LotwiseError, ValueError):
    """A new column would take the name of one that the frame already has."""

    def __init__(self, message: str, *, clashing: tuple[str, ...]) -> None:
        super().__init__(message)
        self.clashing = clashing

    @classmethod
    def from_names(cls, clashing: Iterable[str], *, into: str | None = None) -> OutputClash:
        """Build from the names that are taken; `into` is the answer's struct column where it alone is."""
        clashing = tuple(clashing)
        way = "pass prefix= to name all new columns otherwise" if into is None else "pass another into="
        noun = "a column" if len(clashing) == 1 else "columns"
        message = f"the frame already has {noun} named {named(clashing)}; {way}, or rename or drop the old"
        return cls(message, clashing=clashing)


class BadParams(LotwiseError, ValueError):
    """A value in ``params=``, a message or an example that cannot be written as JSON, so has no key."""

    def __init__(self, message: str, *, path: str, kind: str) -> None:
        super().__init__(message)
        self.path, self.kind = path, kind

    @classmethod
    def at(cls, path: str, kind: str) -> BadParams:
        """Build from where the value stands and what it is."""
        message = (
            f"{path} is {kind}; only text, finite numbers, booleans, None, lists and dicts with text keys can be sent"
        )
        return cls(message, path=path, kind=kind)


class CheckFailedToRun(LotwiseError, RuntimeError):
    """A rule of ``check=``, or a model's own validator, raised or gave something that is no verdict.

    `check` names the rule and `fault` the kind of failure: a class name or a dtype, never a message, since a message
    may quote an answer.
    """

    def __init__(self, message: str, *, check: str, fault: str) -> None:
        super().__init__(message)
        self.check, self.fault = check, fault

    @classmethod
    def raised(cls, check: str, error: BaseException) -> CheckFailedToRun:
        """Build from the rule and what it raised."""
        fault = type(error).__name__
        message = f"check {check!r} raised {fault}; a rule gives true or false for every answer of the schema's shape"
        return cls(message, check=check, fault=fault)

    @classmethod
    def gave(cls, check: str, got: str, wanted: str) -> CheckFailedToRun:
        """Build from the rule, what it gave and what was wanted."""
        return cls(f"check {check!r} gave {got}; wanted {wanted}", check=check, fault=got)


class UnreadableValue(LotwiseError, ValueError):
    """Stored values do not fit the schema that they are read with; `column` is one of its names, or None."""

    def __init__(self, message: str, *, column: str | None, rows: int | None) -> None:
        super().__init__(message)
        self.column, self.rows = column, rows

    @classmethod
    def in_column(cls, column: str | None, rows: int | None) -> UnreadableValue:
        """Build from the column and the number of rows that do not fit, where known."""
        what = "values" if rows is None else f"{rows} values"
        where = "" if column is None else f" of column {column!r}"
        message = f"{what}{where} do not fit the schema; judge the stored results again with this schema"
        return cls(message, column=column, rows=rows)


class BadPrices(LotwiseError, ValueError):
    """The `prices=` of a call cannot be used."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names

    @classmethod
    def of(cls, name: str, what: str) -> BadPrices:
        return cls(f"prices: {name} {what}; give US dollars a million tokens at the standard tier", (name,))

    @classmethod
    def unknown(cls, names: list[str], known: tuple[str, ...]) -> BadPrices:
        return cls(f"prices: unknown {', '.join(names)}; known are {', '.join(known)}", tuple(names))


class BadArgument(LotwiseError, ValueError):
    """An argument of a call cannot be used."""

    def __init__(self, message: str, names: tuple[str, ...]) -> None:
        super().__init__(message)
        self.names = names

    @classmethod
    def of(cls, name: str, what: str) -> BadArgument:
        return cls(f"{name} {what}", (name,))

    @classmethod
    def misplaced(cls, names: Iterable[str], where: str) -> BadArgument:
        """Build from names that are known, but elsewhere."""
        given = tuple(names)
        written = ", ".join(f"{name}=..." for name in given)
        return cls(f"{where} takes {', '.join(given)}: write {where}({written})", given)

    @classmethod
    def unknown(cls, names: Iterable[str], known: Iterable[str], where: str = "arguments") -> BadArgument:
        given, known = tuple(names), tuple(known)
        told = "; ".join(
            f"{name!r}" + (f" (did you mean {' or '.join(near)}?)" if (near := nearest(name, known)) else "")
            for name in given
        )
        return cls(f"unknown {where}: {told}; known are {', '.join(known)}", given)


class QueryRefused(BadArgument):
    """A query over the ledger cannot be run. The message holds nothing of a row."""

    @classmethod
    def because(cls, why: str) -> QueryRefused:
        """Build from DuckDB's message where that quotes the query alone, else from the kind of its error."""
        return cls(f"the query cannot be run: {why}", ("query",))

    @classmethod
    def count(cls, n_statements: int) -> QueryRefused:
        """Build from how many statements there are."""
        held = "is empty" if not n_statements else f"holds {n_statements} statements"
        return cls(f"the query {held}; give one statement, such as SELECT * FROM run", ("query",))

    @classmethod
    def writes(cls, why: str) -> QueryRefused:
        """Build from DuckDB's message on a statement that would change something."""
        return cls(f"the ledger is read-only here; change nothing by hand ({why})", ("query",))

    @classmethod
    def reaches_out(cls) -> QueryRefused:
        """Build; which file it named may have come out of a row."""
        return cls(
            "the query reaches outside of the ledger, to a file, an extension or another database; it can read the "
            "ledger alone. `lotwise ledger export` writes a copy that any DuckDB opens",
            ("query",),
        )


class NotAFrame(LotwiseError, TypeError):
    """The input is not a Polars frame."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @classmethod
    def of(cls, given: object) -> NotAFrame:
        kind = f"{type(given).__module__}.{type(given).__qualname__}"
        package, _, name = kind.partition(".")
        way = {
            ("polars", "LazyFrame"): ".collect()",
            ("pyarrow", "Table"): "pl.from_arrow(...)",
            ("pandas", "DataFrame"): "pl.from_pandas(...)",
        }.get((package, name.rpartition(".")[2]), "pl.DataFrame(...)")
        return cls(f"a polars DataFrame is needed, and this is a {kind}; {way} makes one", kind)


class ModelNotSaid(LotwiseError, ValueError):
    """A large frame was given without a model."""

    def __init__(self, message: str, n_rows: int) -> None:
        super().__init__(message)
        self.n_rows = n_rows

    @classmethod
    def of(cls, n_rows: int, most: int) -> ModelNotSaid:
        return cls(
            f"model= must be said for {n_rows:,} rows: the embedded demo model is the default only up to {most:,}. "
            'Say model="embedded" to use it all the same, or name a provider: model="anthropic:..."',
            n_rows,
        )


class HostedRefused(LotwiseError, PermissionError):
    """`data="local"` was said, and the model's executor sends content off this machine."""

    def __init__(self, message: str, model: str) -> None:
        super().__init__(message)
        self.model = model

    @classmethod
    def of(cls, model: str) -> HostedRefused:
        return cls(f'data="local" refuses {model!r}, which is answered elsewhere; nothing was rendered for it', model)


class PriceUnknown(LotwiseError, LookupError):
    """A budget was given, and what the model costs is not known."""

    def __init__(self, message: str, model: str) -> None:
        super().__init__(message)
        self.model = model

    @classmethod
    def of(cls, model: str, tier: str, params: Iterable[str] = ()) -> PriceUnknown:
        """Build from the model, the tier, and the names of the parameters, one of which may change the price."""
        besides = f" with {', '.join(sorted(params))}" if params else ""
        return cls(
            f"budget= needs a price, and no {tier} price of {model!r}{besides} is known for certain; give "
            'prices={"input_mtok": ..., "output_mtok": ...} in US dollars a million tokens at the standard tier',
            model,
        )


class UnreadableTable(LotwiseError, ValueError):
    """An input file that cannot be read as the table that its suffix promises. `why` holds nothing of its rows."""

    def __init__(self, message: str, path: object, why: str) -> None:
        super().__init__(message)
        self.path, self.why = path, why

    @classmethod
    def of(cls, path: object, why: str) -> UnreadableTable:
        return cls(f"{path} cannot be read: {why}", path, why)


class UnwritableTable(LotwiseError, OSError):
    """An output file that cannot be written. What was there before is untouched."""

    def __init__(self, message: str, path: object, why: str) -> None:
        super().__init__(message)
        self.path, self.why = path, why

    @classmethod
    def of(cls, path: object, why: str) -> UnwritableTable:
        return cls(f"{path} cannot be written: {why}", path, why)
