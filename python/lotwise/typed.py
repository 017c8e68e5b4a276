"""Typed columns: JSON values are read into exactly the schema's dtypes, and what does not fit is told, never nulled.

Polars reads JSON fast but loosely: an integer too large or a date that is none becomes null without a word. So each
value is read into a wide dtype first, converted, and compared: a null that was none before is a loss.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import polars as pl

from lotwise.errors import UnreadableValue

_OFFSET = r"(?i)(z|[+-][0-9]{2}:[0-9]{2})$"


def typed_columns(values: pl.Series, dtypes: pl.Schema) -> tuple[pl.DataFrame, dict[str, pl.Series]]:
    """Read JSON objects into columns.

    Parameters
    ----------
    values
        String: JSON objects; null gives nulls.
    dtypes
        The columns.

    Returns
    -------
    tuple
        The columns with exactly these dtypes, and by column a Boolean Series that is true where something that was
        no null became one. All of the values' height.

    Raises
    ------
    UnreadableValue
        A text is no JSON object.
    """
    wide = pl.Struct([pl.Field(str(i), _wide(dtype)) for i, dtype in enumerate(dtypes.values())])
    named = pl.Struct([pl.Field(name, each.dtype) for name, each in zip(dtypes, wide.fields, strict=True)])
    read: pl.Series | None = None
    with suppress(pl.exceptions.PolarsError):
        read = values.str.json_decode(named)
    # An empty text makes its row vanish; a text that is no object fails the whole column. Raised out here, since
    # Polars' own message quotes values.
    if read is None or len(read) != len(values):
        raise UnreadableValue.in_column(None, None)
    if not dtypes:
        return pl.DataFrame(), {}
    # By number from here on: Polars reads names such as "*" and "^a$" as patterns.
    loose = read.struct.unnest()
    loose.columns = [str(i) for i in range(len(dtypes))]
    exact = loose.select(_exact(pl.col(str(i)), dtype).alias(str(i)) for i, dtype in enumerate(dtypes.values()))
    was = loose.select(_nulls(pl.col(str(i)), dtype, arrays=False) for i, dtype in enumerate(dtypes.values()))
    now = exact.select(_nulls(pl.col(str(i)), dtype, arrays=True) for i, dtype in enumerate(dtypes.values()))
    lost = {name: (was[str(i)] != now[str(i)]).alias("lost") for i, name in enumerate(dtypes)}
    exact.columns = list(dtypes)
    return exact, lost


def _wide(dtype: pl.DataType) -> pl.DataType:
    """Give the dtype that a value of JSON is read into without loss."""
    if isinstance(dtype, (pl.List, pl.Array)):
        return pl.List(_wide(_dtype(dtype.inner)))
    if isinstance(dtype, pl.Struct):
        return pl.Struct([pl.Field(each.name, _wide(_dtype(each.dtype))) for each in dtype.fields])
    if dtype.is_integer():
        return pl.Int128()
    if dtype.is_float():
        return pl.Float64()
    return pl.Boolean() if isinstance(dtype, pl.Boolean) else pl.String()


def _exact(value: pl.Expr, dtype: pl.DataType) -> pl.Expr:
    """Convert from the wide dtype; what does not fit becomes null."""
    if isinstance(dtype, pl.List):
        inner = _dtype(dtype.inner)
        return value.list.eval(_exact(pl.element(), inner)) if _changes(inner) else value
    if isinstance(dtype, pl.Array):
        inner, length = _dtype(dtype.inner), dtype.shape[0]
        fitting = pl.when(value.list.len() == length).then(value)
        return fitting.list.eval(_exact(pl.element(), inner)).cast(pl.Array(inner, length))
    if isinstance(dtype, pl.Struct):
        if not _changes(dtype):
            return value
        numbered = value.struct.rename_fields([str(i) for i in range(len(dtype.fields))])
        fields = [
            _exact(numbered.struct.field(str(i)), _dtype(each.dtype)).alias(each.name)
            for i, each in enumerate(dtype.fields)
        ]
        return pl.when(value.is_not_null()).then(pl.struct(fields))
    if isinstance(dtype, pl.Date):
        return value.str.to_date("%Y-%m-%d", strict=False)
    if isinstance(dtype, pl.Datetime):
        # An instant without an offset is UTC; a column without a time zone holds UTC.
        offset = pl.when(value.str.contains(_OFFSET)).then(value).otherwise(value + "Z")
        instant = offset.str.to_datetime("%+", time_unit=dtype.time_unit, strict=False)
        if dtype.time_unit == "ns":
            # Outside 1677 to 2262 the nanoseconds wrap round in to_datetime; a cast gives null.
            held = offset.str.to_datetime("%+", time_unit="us", strict=False).cast(
                pl.Datetime("ns", "UTC"), strict=False
            )
            instant = pl.when(held.is_not_null()).then(instant)
        if dtype.time_zone is None:
            return instant.dt.replace_time_zone(None)
        return instant.dt.convert_time_zone(dtype.time_zone)
    if isinstance(dtype, pl.Time):
        plain = value.str.replace(r"([Zz]|[+-]00:00)$", "")
        full = pl.when(plain.str.len_bytes() == 5).then(plain + ":00").otherwise(plain)
        return full.str.to_time("%H:%M:%S%.f", strict=False)
    if isinstance(dtype, pl.Float32):
        narrow = value.cast(pl.Float32)
        return pl.when(narrow.is_finite()).then(narrow)
    return value.cast(dtype, strict=False) if _changes(dtype) else value


def _changes(dtype: pl.DataType) -> bool:
    """Tell whether a dtype is read through another."""
    return _wide(dtype) != dtype


def _nulls(value: pl.Expr, dtype: pl.DataType, *, arrays: bool) -> pl.Expr:
    """Count the nulls of each row that converting may have added; `arrays` is false for the wide columns."""
    own = value.is_null().cast(pl.UInt32)
    if not _changes(dtype):
        return own
    if isinstance(dtype, (pl.List, pl.Array)):
        items = value.arr.to_list() if arrays and isinstance(dtype, pl.Array) else value
        inside = _nulls(pl.element(), _dtype(dtype.inner), arrays=arrays)
        return own + items.list.eval(inside).list.sum().fill_null(0)
    if isinstance(dtype, pl.Struct):
        numbered = value.struct.rename_fields([str(i) for i in range(len(dtype.fields))])
        fields = [
            _nulls(numbered.struct.field(str(i)), _dtype(each.dtype), arrays=arrays)
            for i, each in enumerate(dtype.fields)
        ]
        return own + pl.sum_horizontal(fields)
    return own


def _dtype(dtype: Any) -> pl.DataType:
    """Give the instance of a dtype that may stand as a class inside another."""
    return dtype if isinstance(dtype, pl.DataType) else dtype()
