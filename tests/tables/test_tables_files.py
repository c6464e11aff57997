"""Reading files: every format, what the header alone decides, and what is refused with what to do."""

import bz2
import contextlib
import gzip
import json
import sqlite3
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow.parquet
import pytest
import scipy.sparse as sp

from isthmus.base.streamed import opened
from isthmus.base.validate import InvalidInput
from isthmus.tables.encode import encode
from isthmus.tables.files import Reading, _types_of, columns_of, overlap, read, write
from isthmus.tables.infer import infer
from isthmus.tables.rows import numbers_of
from isthmus.tables.schema import Schema


def refused(path: Path, words: str, **options: Any) -> str:
    """The words with which a file is refused."""
    with pytest.raises(InvalidInput, match=words) as error:
        read(path, **options)
    return str(error.value)


TEXT = 'name,age,salary\nAnna,31,"1,200"\nBjörn,,900\n'


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "csv.bz2"])
def test_a_csv_is_read_also_when_compressed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"people.{suffix}"
    data = TEXT.encode()
    path.write_bytes({"csv": data, "csv.gz": gzip.compress(data), "csv.bz2": bz2.compress(data)}[suffix])
    table = read(path)
    assert table.name == "people" and table.n == 2
    assert list(table.frame["name"]) == ["Anna", "Björn"] and table.frame["age"].tolist() == ["31", None]
    assert columns_of(path) == ["name", "age", "salary"]


@pytest.mark.parametrize(("separator", "suffix"), [(";", "csv"), ("\t", "tsv"), ("|", "csv"), (",", "csv")])
def test_the_header_decides_the_separator(tmp_path: Path, separator: str, suffix: str) -> None:
    path, number = tmp_path / f"t.{suffix}", {",": "1.5"}.get(separator, "1,5")
    path.write_text(separator.join("abc") + "\n" + separator.join([number, "x", "2"]) + "\n")
    table = read(path)
    assert list(table.frame.columns) == ["a", "b", "c"] and table.frame["a"][0] == number


def test_entries_are_kept_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("zip , y\n01234,1\n00001,0\n")
    assert list(read(path).frame["zip"]) == ["01234", "00001"] and list(read(path).frame["y"]) == ["1", "0"]


def test_quoted_lines_and_short_rows_are_rows_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text('a,b,c\n1,"two\nlines, ""quoted""",3\n4\n5,six "inches",\n')
    frame = read(path).frame
    assert frame["b"].tolist()[0] == 'two\nlines, "quoted"' and frame["b"].tolist()[2] == 'six "inches"'
    assert frame["a"].tolist() == ["1", "4", "5"] and frame["c"].tolist() == ["3", None, None]


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("Größe,y\n1,2\n", encoding="utf-8-sig")
    assert columns_of(path) == ["Größe", "y"]


def test_other_encodings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes("Größe,y\n1,2\n".encode("latin-1"))
    refused(path, "it is not utf-8 text; give its encoding, such as --encoding latin-1")
    assert columns_of(path, Reading(encoding="latin-1")) == ["Größe", "y"]
    wide = tmp_path / "wide.csv"  # as spreadsheets write "Unicode text"; a letter may hold the byte of a line's end
    wide.write_bytes("Ċ,y\r\n1,ਊ\r\n".encode("utf-16"))
    with pytest.raises(InvalidInput, match="it is not utf-8 text; give its encoding, --encoding utf-16$"):
        columns_of(wide)
    for coded in ("utf-16", "utf-16-le", "utf-16-be", "utf-32"):
        wide.write_bytes("Ċ,y\r\n1,ਊ\r\n".encode(coded))
        assert columns_of(wide, Reading(encoding=coded)) == ["Ċ", "y"]
        assert read(wide, reading=Reading(encoding=coded)).frame["y"].tolist() == ["ਊ"]
    path.write_bytes(b"a,y\n1,2\n" + "ö,3\n".encode("latin-1"))
    assert columns_of(path) == ["a", "y"]  # the header says nothing of the rows
    refused(path, "it is not utf-8 text")


BROKEN = [
    ('\x00i,city,oi,c",",7\n', "a line does not fit"),
    ("a,b,a\n1,2,3\n", r"the column names \['a'\] occur twice"),
    ("\n1,2\n", "its first line is empty, and must hold the names"),
    ("a,b\n1,2,3,4\n1,2\n1,2,3,4,5,6\n", "a line does not fit the header"),
    ("a,b\n1,2,3\n1,2\n", r"a line does not fit the header \(Expected 2 fields in line 2, saw 3\)"),
    ("a,b\n1,2\n1,2,3\n", r"a line does not fit the header \(Expected 2 fields in line 3, saw 3\)"),
    ('a,b\n1,"oops\n2,"x"\n3,y\n', "a line does not fit the header .*expected after .* in line 3"),
    ('a,b\n1,"oops\n2,x\n', "a line does not fit the header .*unexpected end of data"),
]


@pytest.mark.parametrize(("content", "words"), BROKEN)
def test_broken_csv_files_are_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(content)
    refused(path, words)


def test_blank_rows_and_empty_columns_at_the_end_are_nothing(tmp_path: Path) -> None:
    """As spreadsheets leave them below and beside a table; an entry beside it would have no name."""
    path = tmp_path / "t.csv"
    path.write_text("a,y,,\n1,2,,\n,,,\n , ,,\n3,,\n4,5,,,,\n,,\n")
    table = read(path)
    assert columns_of(path) == list(table.frame.columns) == ["a", "y"] and table.nameless == 2 and table.n == 3
    assert table.frame["a"].tolist() == ["1", "3", "4"] and table.frame["y"].tolist() == ["2", None, "5"]
    path.write_text("a,y,,\n1,2,,\n1,2,,7\n")
    refused(path, r"a line does not fit the header \(Expected 2 fields in line 3, saw 4\)")
    lines = tmp_path / "t.jsonl"
    lines.write_text('{"a": 1, "y": "b", "": null}\n{"a": null, "y": " "}\n{"a": 0, "y": null}\n')
    assert columns_of(lines) == ["a", "y"] and read(lines).frame["a"].tolist() == [1, 0] and read(lines).nameless == 1


def test_names_that_differ_by_blanks_alone(tmp_path: Path) -> None:
    """Blank ones are named by their place, in text and in parquet; two that become one are refused, never merged."""
    text, packed = tmp_path / "t.csv", tmp_path / "t.parquet"
    for names, clean in ((["\x0b", " a", "\x0c", "b "], ["Unnamed: 0", "a", "Unnamed: 2", "b"]), (["a", "a "], None)):
        text.write_text(",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
        pyarrow.parquet.write_table(pyarrow.table({name: [1.0] for name in names}), packed)
        for path in (text, packed):
            if clean is None:
                for reader in (read, columns_of) if path == text else (read, columns_of, _types_of):
                    with pytest.raises(InvalidInput, match=r"the column names \['a'\] occur twice"):
                        reader(path)
            else:
                assert columns_of(path) == clean == list(read(path).frame.columns)
        if clean is not None:
            assert list(_types_of(packed)) == clean
            assert [list(read(packed).frame[name]) for name in clean] == [[1.0]] * 4


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pandas.DataFrame({"a": [1, 2], "when": pandas.to_datetime(["2020-01-01", None])}).to_parquet(path)
    assert columns_of(path) == ["a", "when"] and list(read(path).frame["a"]) == [1, 2]
    path.write_bytes(b"PAR1 nonsense")
    refused(path, "Cannot read .*: give a folder of Parquet files")


def test_row_labels_of_pandas_are_columns_or_left_out(tmp_path: Path) -> None:
    """Labels with a name are a column like others, those without one are none."""
    path = tmp_path / "t.parquet"
    frame = pandas.DataFrame({"a": [1.0, 2.0]}, index=[7, 9])
    frame.to_parquet(path)
    assert columns_of(path) == ["a"] == list(read(path).frame.columns)
    assert opened(str(path))[0].shape == (2, 1)
    frame.rename_axis("id").to_parquet(path)
    assert columns_of(path) == ["a", "id"] == list(read(path).frame.columns)
    assert list(read(path).frame["id"]) == [7, 9]


def test_npz_dense_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, x_train=np.ones((3, 2)), y_train=[0, 1, 1], x_test=np.zeros((1, 2)), y_test=[0])
    train, test = read(path), read(path, part="test")
    assert train.x.shape == (3, 2) and train.y is not None and train.y.tolist() == [0, 1, 1]
    assert test.x.shape == (1, 2) and test.n == 1
    np.savez(path, X=np.ones((2, 2)))
    assert read(path).y is None


def test_npz_sparse_pieces(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    matrix = sp.random_array((5, 4), density=0.5, format="csr", rng=np.random.default_rng(0))
    pieces = {"indptr": matrix.indptr, "indices": matrix.indices, "shape": matrix.shape}
    np.savez(path, **pieces, data=matrix.data, y=np.arange(5))
    assert (read(path).x != matrix).nnz == 0
    np.savez(path, **{f"test_{key}": value for key, value in pieces.items()}, y_test=np.arange(5))
    assert read(path, part="test").x.sum() == matrix.nnz  # without data: presence


def test_npz_files_with_pickles_or_without_a_matrix_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.npz"
    np.savez(path, X=np.array([{"a": 1}], dtype=object), y=[1])
    refused(path, "needs pickle")
    np.savez(path, weights=np.ones(3))
    refused(path, r"it holds the arrays \['weights'\]; give arrays X and y")
    np.savez(path, X=np.ones((3, 2)), y=[1, 2])
    refused(path, "3 rows and 2 targets")
    np.savez(path, indptr=np.array([0, 1]), indices=np.array([0]), shape=np.array([], np.int64))
    refused(path, "no CSR matrix")
    path.write_bytes(path.read_bytes()[:40])
    refused(path, "no npz file, or needs pickle")


def test_libsvm_says_when_its_width_comes_from_the_data(tmp_path: Path) -> None:
    path = tmp_path / "t.libsvm"
    path.write_text("1 1:0.5 4:2\n-1 2:1\n")
    guessed = read(path)
    assert guessed.x.shape == (2, 4) and "--features" in guessed.notes[0]
    contents = read(path, reading=Reading(features=6))
    assert contents.x.shape == (2, 6) and contents.notes == () and np.asarray(contents.y).tolist() == [1, -1]
    path.write_text("1 0:1\n")
    refused(path, "--zero-based")
    assert read(path, reading=Reading(zero_based=True, features=2)).x[0, 0] == 1
    path.write_text("1 1:1\nsecret 1:1\n")
    assert "secret" not in refused(path, "a line is not of the form `label index:value")


@pytest.mark.parametrize("name", ["t.xls", "t", "t.json"])
def test_other_files_are_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("")
    with pytest.raises(InvalidInput, match="save other formats as csv first"):
        read(tmp_path / name)


def test_parquet_alone_needs_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pandas cannot be imported csv, npz and libsvm still work, and parquet says what to install."""
    pyarrow.parquet.write_table(pyarrow.table({"a": [1.0]}), tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pandas", None)
    (tmp_path / "t.csv").write_text(TEXT)
    (tmp_path / "t.svm").write_text("1 1:0.5\n")
    np.savez(tmp_path / "t.npz", X=np.ones((2, 2)), y=[0, 1])
    assert read(tmp_path / "t.npz").n == 2 and read(tmp_path / "t.svm").n == 1
    people = read(tmp_path / "t.csv").frame
    assert [infer(name, people[name]).column.type for name in people.columns] == ["hash", "number", "number"]
    assert numbers_of(people, Schema.from_dict({"columns": {"salary": [0, 2000]}})).tolist() == [[1200.0], [900.0]]
    with pytest.raises(InvalidInput, match=r"pandas is needed for it; in a clone .* run: pip install -e '\.\[table\]'"):
        read(tmp_path / "t.parquet")


@pytest.mark.parametrize("suffix", ["csv", "tsv", "npz", "parquet"])
def test_what_is_written_can_be_read(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"out.{suffix}"
    columns = {"prediction": np.array(["ja", "né, in"]), "p(ja)": np.array([0.25, 1 / 3])}
    write(path, columns)
    if suffix == "npz":
        with np.load(path) as stored:
            assert stored["p(ja)"].tolist() == [0.25, 1 / 3] and stored["prediction"].tolist() == ["ja", "né, in"]
    else:
        frame = read(path).frame
        assert frame["prediction"].tolist() == ["ja", "né, in"]
        assert [float(share) for share in frame["p(ja)"]] == [0.25, 1 / 3]


def test_outputs_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"end it in \.csv"):
        write(tmp_path / "out.doc", {"prediction": np.zeros(1)})


# ---------------------------------------------------------------- sheets, lines of JSON, queries, patterns


PEOPLE = [("0123", 31, "low"), ("Oslo", None, "high"), ("3,5", 7.5, None)]


def written_as(folder: Path, kind: str) -> tuple[Path, Reading]:
    """The same rows in a file of each kind."""
    path, columns = folder / f"people.{kind}", ("city", "age", "income")
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(dict(zip(columns, row, strict=True))) for row in PEOPLE))
    elif kind == "feather":
        pandas.DataFrame(PEOPLE, columns=columns).to_feather(path)
    elif kind == "xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for row in (columns, *PEOPLE):
            book.active.append(row)
        book.save(path)
    else:
        connect = sqlite3.connect
        if kind == "duckdb":
            connect = pytest.importorskip("duckdb").connect
        with contextlib.closing(connect(str(path))) as database:
            database.execute("create table people (city text, age real, income text)")
            database.executemany("insert into people values (?, ?, ?)", PEOPLE)
            database.commit()
        return path, Reading(query="select * from people; ")
    return path, Reading()


@pytest.mark.parametrize("kind", ["jsonl", "feather", "xlsx", "sqlite", "duckdb"])
def test_a_table_of_another_kind_is_read_as_the_csv_of_its_rows(tmp_path: Path, kind: str) -> None:
    path, reading = written_as(tmp_path, kind)
    text = tmp_path / "people.csv"
    text.write_text('city,age,income\n0123,31,low\nOslo,,high\n"3,5",7.5,\n')
    assert columns_of(path, reading) == columns_of(text) == ["city", "age", "income"]
    schema = Schema.from_toml('[columns]\ncity = ["0123", "Oslo", "3,5"]\nage = [0, 100]\nincome = "hash"')
    table = read(path, reading=reading)
    assert table.name == "people" and table.n == 3
    assert np.array_equal(numbers_of(table.frame, schema), numbers_of(read(text).frame, schema))
    path.write_bytes(b"nonsense")
    refused(path, "Cannot read", reading=reading)


@pytest.mark.parametrize(("kind", "package"), [("xlsx", "openpyxl"), ("duckdb", "duckdb"), ("feather", "pyarrow")])
def test_a_package_that_is_missing_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, package: str
) -> None:
    path = tmp_path / f"t.{kind}"
    path.write_bytes(b"")
    monkeypatch.setitem(sys.modules, package, None)
    refused(path, rf"{package} is needed for it; in a clone .*'.\[table\]'", reading=Reading(query="q"))


def test_lines_of_json_have_the_names_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "t.ndjson.gz"
    path.write_bytes(gzip.compress(b'{"a": 1, "b": null}\n\n{"b": [1, 2]}\n'))
    frame = read(path).frame
    assert frame["a"].tolist() == [1, None] and frame["b"].tolist() == [None, "[1, 2]"]
    path = tmp_path / "t.jsonl"
    for content, words in (
        ('{"a": 1}\n{"a": 2, "secret": 3}', "line 2 has a name that the first line does not have: every name must"),
        ('{"a": 1}\n[3]', "line 2 is no JSON object"),
        ('{"a": 1}\n{"secret', "it is damaged, its name ends wrongly, or a query fails"),
        ("", "it is empty"),
    ):
        path.write_text(content)
        assert "secret" not in refused(path, words)


def test_a_query_says_which_rows_are_meant(tmp_path: Path) -> None:
    path, _ = written_as(tmp_path, "sqlite")
    refused(path, "query=None is not allowed: say which rows are meant, as in --query")
    refused(path, "the query cannot be asked of it .no such column: wage", reading=Reading(query="select wage"))
    refused(path, "the query cannot be asked of it", reading=Reading(query="delete from people"))
    assert read(path, reading=Reading(query="select age from people where age > 8 -- adults")).n == 1


def test_a_sheet_is_named_where_there_are_several(tmp_path: Path) -> None:
    book, path = pytest.importorskip("openpyxl").Workbook(), tmp_path / "t.xlsx"
    book.create_sheet("people").append(["when", "n", None])
    book["people"].append([datetime(2024, 1, 2), "7", None])
    book["people"].append([None, None, None])
    book.save(path)
    refused(path, r"name the sheet that is meant, one of \['Sheet', 'people'\]")
    table = read(path, reading=Reading(query="people"))
    assert table.n == 1 and table.frame["n"].tolist() == ["7"] and list(table.frame.columns) == ["when", "n"]
    assert encode(table.frame, Schema.from_toml("[columns.when]\ntype = 'date'\nbounds = [2020-01-01, 2030-01-01]")) > 0
    book["people"].append([None, None, "secret"])
    book.save(path)
    assert "secret" not in refused(path, "row 3 has more entries", reading=Reading(query="people"))


def test_files_that_match_a_pattern_are_one_table(tmp_path: Path) -> None:
    for place, text in enumerate(("a,b\n1,x\n", "b,a\ny,2\nz,3\n")):
        (tmp_path / f"part-{place}.csv").write_text(text)
        pandas.read_csv(tmp_path / f"part-{place}.csv").to_parquet(tmp_path / f"part-{place}.parquet")
    pattern = tmp_path / "part-*.csv"
    assert columns_of(pattern) == ["a", "b"] and read(pattern).frame["a"].tolist() == ["1", "2", "3"]
    assert read(tmp_path / "part-?.parquet").frame["a"].tolist() == [1, 2, 3]
    assert overlap(pattern, tmp_path / "part-1.csv") and not overlap(pattern, tmp_path / "part-1.parquet")
    refused(tmp_path / "rest-*.csv", "File not found")
    (tmp_path / "part-2.csv").write_text("a,c\n1,2\n")
    refused(pattern, "give files with the same named columns and separator")
