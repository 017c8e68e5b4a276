"""Answering a user's own SQL over a ledger, which can read the ledger and nothing else.

The ledger's file is attached read-only to a DuckDB instance of its own, which is then shut off from every file and
from its own settings for good. It lives for one statement.
"""

from __future__ import annotations

import duckdb
import polars as pl

from lotwise.errors import QueryRefused
from lotwise.ledger.files import Connections, Folder


def answer(connections: Connections, query: str) -> pl.DataFrame:
    """Answer one query as a frame; empty where it has no result.

    Raises
    ------
    QueryRefused
        It is not one statement, would change something or reach a file, or DuckDB cannot run it. The message quotes
        the query at most, never a row.
    """
    whole = (
        connections.shut_off("sql") if isinstance(connections, Folder) else connections.session("sql", read_only=True)
    )
    refused = None
    try:
        with whole as connection:
            n_statements = len(connection.extract_statements(query))
            if n_statements != 1:
                raise QueryRefused.count(n_statements)
            relation = connection.sql(query)
            found: pl.DataFrame = pl.DataFrame() if relation is None else relation.pl()
            return found
    except duckdb.InterruptException:
        raise KeyboardInterrupt from None
    except duckdb.Error as error:
        refused = _refused(error)
    raise refused  # outside, so that DuckDB's own error, which may quote content, is not in its chain


def _refused(error: duckdb.Error) -> QueryRefused:
    first = str(error).partition("\n")[0]
    if "read-only mode" in first:
        return QueryRefused.writes(first)
    if isinstance(error, duckdb.PermissionException):
        return QueryRefused.reaches_out()
    if isinstance(error, duckdb.ParserException | duckdb.BinderException | duckdb.CatalogException):
        return QueryRefused.because(first)  # these quote the query
    return QueryRefused.because(type(error).__name__)  # its text may quote a row
