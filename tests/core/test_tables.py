"""Tables as files: nothing of a CSV is changed by reading it, and a file is written whole or not at all."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import polars as pl
import pytest

from lotwise import tables
from lotwise.errors import UnreadableTable, UnwritableTable


def test_csv_numbers_are_numbers_only_where_no_text_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(
        "zip,price,n,flag,big\n01234,1.50,7,true,99999999999999999999999\n5,2,8,false,1\n", encoding="utf-8"
    )

    frame = tables.read(path)

    assert frame["zip"].to_list() == ["01234", "5"]
    assert frame["price"].to_list() == ["1.50", "2"]
    assert frame["n"].dtype == pl.Int64
    assert frame["flag"].dtype == pl.Boolean
    assert frame["big"].cast(pl.String).to_list() == ["99999999999999999999999", "1"]


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_csv_of_a_spreadsheet_is_read_whatever_parts_its_columns(separator: str, mark: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = [["id", "text", "n"], ["007", '"one, two; three"', "1"], ["008", "x", "2"]]
    path.write_text(mark + "".join(separator.join(row) + "\r\n" for row in rows), encoding="utf-8", newline="")

    read = tables.read(path)

    assert read.to_dict(as_series=False) == {"id": ["007", "008"], "text": ["one, two; three", "x"], "n": [1, 2]}


def test_csv_type_is_decided_by_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("a\n" + "1\n" * 5_000 + "x\n", encoding="utf-8")
    assert tables.read(path)["a"][-1] == "x"


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".ndjson", ".jsonl"])
def test_a_written_table_reads_back(suffix: str, tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": [1, None, 3], "b": ["x", 'a "quoted"\nline', None]})
    tables.write(frame, tmp_path / f"t{suffix}")
    assert tables.read(tmp_path / f"t{suffix}").equals(frame)


def test_nested_columns_are_json_in_a_csv(tmp_path: Path) -> None:
    frame = pl.DataFrame({"s": [{"x": 1, "d": date(2026, 1, 2)}, None], "l": [["a", "b"], []]})
    tables.write(frame, tmp_path / "t.csv")
    back = tables.read(tmp_path / "t.csv")
    assert back["s"].to_list() == ['{"x":1,"d":"2026-01-02"}', None]
    assert back["l"].to_list() == ['["a","b"]', "[]"]


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("old\n", encoding="utf-8")
    with pytest.raises(UnwritableTable):
        tables.write(pl.DataFrame({"a": [b"\x00bytes"]}), path)
    assert path.read_text(encoding="utf-8") == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_goes_through_a_link_and_keeps_the_mode(tmp_path: Path) -> None:
    real, link = tmp_path / "real.csv", tmp_path / "link.csv"
    real.write_text("old\n", encoding="utf-8")
    real.chmod(0o640)
    link.symlink_to(real)

    tables.write(pl.DataFrame({"a": [1]}), link)

    assert link.is_symlink()
    assert real.read_text(encoding="utf-8") == "a\n1\n"
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", b""),
        ("a.parquet", b"planted-4711"),
        ("a.ndjson", b'{"a": planted-4711'),
        ("a.txt", b"x"),
        ("no.csv", None),
    ],
    ids=["empty", "no parquet", "no JSON", "unknown suffix", "no file"],
)
def test_an_unreadable_file_is_told_without_its_content(name: str, content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UnreadableTable) as told:
        tables.read(path)
    assert str(path) in str(told.value)
    assert "planted" not in str(told.value)
    assert told.value.__cause__ is told.value.__context__ is None


@pytest.mark.parametrize("suffix", [".csv", ".ndjson"])
def test_a_file_in_another_encoding_is_told_as_such(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"t{suffix}"
    path.write_bytes({".csv": "a,b\n1,planté\n", ".ndjson": '{"a": "planté"}\n'}[suffix].encode("latin-1"))
    with pytest.raises(UnreadableTable, match="it is not UTF-8; save it as such"):
        tables.read(path)


def test_a_column_may_have_any_name(tmp_path: Path) -> None:
    frame = pl.DataFrame({"": ["x"], "*": [[1]], "^a$": [1], "a": [2]})

    tables.write(frame, tmp_path / "a.csv")
    tables.write(frame, tmp_path / "a.parquet")

    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == '"",*,^a$,a\nx,[1],1,2\n'
    assert tables.read(tmp_path / "a.csv").columns == frame.columns
    assert tables.read(tmp_path / "a.parquet").equals(frame)
