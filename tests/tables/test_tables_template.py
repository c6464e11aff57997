"""`isthmus schema`: a schema to fill in, from the header, the options and public rows, without a look at a row."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import messy
import pandas
import pytest
from command_line import invoke

from isthmus.base.validate import InvalidInput
from isthmus.tables.schema import Schema


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_no_row_is_read() -> None:
    """The same text whatever stands below the header, even where it could not be read."""
    texts = []
    for body in ("", "1,Rome,a@b.c,1\n", 'x,"never closed\n', "1,2,3,4,5,6,7\n"):
        Path("t.csv").write_text("age,city,email,y\n" + body)
        texts.append(invoke("schema", "t.csv", "--target", "y", "--task", "regression").stdout)
    assert len(set(texts)) == 1 and '"age"  = "?"' in texts[0] and "Rome" not in texts[0]


def test_what_is_open_must_be_filled_in_before_a_run() -> None:
    messy.write(Path("people.csv"), 60)
    entries = ["--target", "churned", "--categories", "sex=female,male", "--id", "customer_id"]
    result = invoke("schema", "people.csv", *entries)
    assert 'fill in what is marked "?": target.task, Alter, city' in result.stderr
    Path("schema.toml").write_text(result.stdout)
    with pytest.raises(
        InvalidInput, match=r"columns.Alter='\?' .* declare how it becomes numbers, as one of .*\[low, high\]"
    ):
        Schema.load("schema.toml")
    assert "columns.Alter='?'" in invoke("train", "people.csv", "--schema", "schema.toml", code=2).output

    Path("schema.toml").write_text(re.sub(r'^("\w+" +=) "\?"', r'\1 "drop"', result.stdout, flags=re.M))
    with pytest.raises(InvalidInput, match=r"target.task='\?'"):
        Schema.load("schema.toml")


def test_filled_in_it_is_all_that_a_run_needs() -> None:
    messy.write(Path("people.csv"), 200)
    entries = ["--target", "churned", "--classes", "Ja,Nein", "--hash", "city=4", "--categories", "sex=female,male"]
    entries += ["--drop", "comment", "--bounds", "joined=2010-01-01,2024-12-31", "--bounds", "0,100000"]
    text = invoke("schema", "people.csv", *entries).stdout
    text = re.sub(r'^"member" +=.*', 'member = "bool"', text, flags=re.M)
    text = re.sub(r'^("(?:Alter|income|balance|visits)" +=).*', r'\1 "number"', text, flags=re.M)
    Path("schema.toml").write_text(text)
    result = invoke("train", "people.csv", "--schema", "schema.toml", "--algorithm", "dp_gd", "--dry-run")
    assert "warning" not in result.stderr and "never a feature" in result.stdout


def test_public_rows_tell_the_rest() -> None:
    messy.write(Path("people.csv"), 100)
    messy.write(Path("public.csv"), 150, seed=3)
    options = ["--target", "churned", "--task", "classification", "--sample", "public.csv"]
    data = json.loads(invoke("schema", "people.csv", *options, "--json").stdout)
    schema = Schema.from_toml(data["schema"])
    assert data["open"] == [] and schema.target is not None and schema.target.classes == ("Ja", "Nein")
    types = {column.name: column.type for column in schema.columns}
    assert types["customer_id"] == "id" and types["joined"] == "date" and types["sex"] == "category"
    Path("schema.toml").write_text(data["schema"])
    result = invoke("train", "people.csv", "--schema", "schema.toml", "--algorithm", "dp_gd", "--dry-run")
    assert "warning" not in result.stderr


TASKS = [
    (["no", "yes"], 'task = "classification"\nclasses = ["no", "yes"]'),
    (range(9), 'task = "regression"\nbounds = [0'),
]


@pytest.mark.parametrize(("y", "target"), TASKS)
def test_public_rows_tell_the_task(y: Sequence[object], target: str) -> None:
    Path("t.csv").write_text("x,y\n")
    Path("p.csv").write_text("x,y\n" + "".join(f"{k},{y[k % len(y)]}\n" for k in range(30)))
    result = invoke("schema", "t.csv", "--target", "y", "--sample", "p.csv")
    assert target in result.stdout and "fill in" not in result.stderr


STANDING = [
    ([20, 31, 45, -999], "[20.0, 45.0]", ["-999"]),
    ([0, 1, 2, 3, 99, 99], "[0.0, 3.0]", ["99"]),
    ([18, 24, 33, 40, -1, -1, 9999], "[18.0, 40.0]", ["9999", "-1"]),
    ([0, 1, 2, -1, -1], "[-1.0, 2.0]", []),
    ([50, 70, 99, 100, 120], "[50.0, 120.0]", []),
    (["2020-01-01", "2021-03-04", "2022-05-06", "9999-12-31"], '["2020-01-01", "2022-05-06"]', ["9999-12-31"]),
]


@pytest.mark.parametrize(("entries", "bounds", "absent"), STANDING)
def test_entries_that_stand_for_missing_ones_are_in_no_range(
    entries: list[Any], bounds: str, absent: list[str]
) -> None:
    Path("t.csv").write_text("x,y\n")
    Path("p.csv").write_text("x,y\n" + "".join(f"{entry},{k % 2}\n" for k, entry in enumerate(entries)))
    text = invoke("schema", "t.csv", "--target", "y", "--sample", "p.csv").stdout
    column = Schema.from_toml(text).get("x")
    assert f"bounds = {bounds}" in text and column is not None and column.absent == tuple(absent)
    assert ("counts as missing" in text) == bool(absent)


def test_public_rows_that_are_wrongly_taken_for_ids() -> None:
    """Truth values identify nobody, an empty column neither."""
    Path("t.csv").write_text("Nr.,mobile,email,,y\n")
    Path("p.csv").write_text("Nr.,mobile,email,,y\n" + "".join(f"{k},{k % 2},,,{k % 2}\n" for k in range(30)))
    schema = Schema.from_toml(invoke("schema", "t.csv", "--target", "y", "--sample", "p.csv").stdout)
    assert [column.type for column in schema.columns] == ["id", "number", "id", "drop"]


def test_sampled_ranges_are_not_called_declared() -> None:
    Path("t.csv").write_text("x,z,y\n" + "".join(f"{k % 7},{k % 3},{k % 2}\n" for k in range(100)))
    Path("p.csv").write_text("x,y\n1,0\n4,1\n")
    Path("s.toml").write_text(
        invoke("schema", "t.csv", "--target", "y", "--bounds", "z=0,2", "--sample", "p.csv").stdout
    )
    told = invoke("train", "t.csv", "--schema", "s.toml", "--dry-run", "--algorithm", "dp_gd").stdout
    assert "from 1 to 4 (from public rows)" in told and "from 0 to 2 (declared)" in told


def test_public_rows_that_do_not_settle_a_column_leave_it_open() -> None:
    Path("t.csv").write_text("when,price,y\n")
    Path("p.csv").write_text('when,price,y\n01/02/2024,"1,5",0\n03/04/2024,"2,5",1\n')
    result = invoke("schema", "t.csv", "--target", "y", "--classes", "0,1", "--sample", "p.csv")
    assert '"when"  = "?"  # give the format and the range' in result.stdout
    assert "%d/%m/%Y and %m/%d/%Y fit all of them" in result.stdout
    assert "is the decimal sign, --decimal . where it is between thousands" in result.stdout
    again = invoke("schema", "t.csv", "--target", "y", "--classes", "0,1", "--sample", "p.csv", "--decimal", ",")
    assert "bounds = [1.5, 2.5]" in again.stdout and 'decimal = ","' in again.stdout


def test_parquet_has_types() -> None:
    pandas.DataFrame({"a": [1], "b": [True], "c": ["x"], "y": [0]}).to_parquet("t.parquet")
    text = invoke("schema", "t.parquet", "--target", "y", "--classes", "0,1").stdout
    columns = {column.name: column.type for column in Schema.from_toml(text.replace('"?"', '"drop"')).columns}
    assert columns == {"a": "number", "b": "bool", "c": "drop"} and text.count('"?"') == 2  # once in the words above


REFUSED = [
    (["t.npz"], "it has no named columns"),
    (["nowhere.csv"], "File not found"),
    (["nowhere.npz"], "File not found"),
    (["t.csv", "--target", "z"], "Column not found: 'z', given as target (the columns are 'a', 'y')"),
    (["t.csv", "--drop", "z"], "Column not found: 'z', given as columns"),
    (["t.csv", "--target", "Y"], "Column not found: 'Y', given as target (the columns are 'a', 'y')"),
    (["t.csv", "--sample", "e.csv"], "with rows that are public"),
    (["t.csv", "--sample", "./t.csv"], "the rows of this one are the private ones"),
]


@pytest.mark.parametrize(("arguments", "words"), REFUSED)
def test_what_has_no_schema_is_refused(arguments: list[str], words: str) -> None:
    Path("t.npz").write_bytes(b"")
    Path("t.csv").write_text("a,y\n")
    Path("e.csv").write_text("a,y\n")
    assert words in invoke("schema", *arguments, code=2).output


def test_without_a_target_it_asks_for_one() -> None:
    Path("t.csv").write_text("a,y\n")
    result = invoke("schema", "t.csv", "--quiet")
    assert '[target]\nname = "?"' in result.stdout and result.stderr == ""
