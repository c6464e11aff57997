"""`isthmus train` on a folder of Parquet files: the model of one file, encoded as it is read."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from command_line import invoke

from isthmus.base import matrix, streamed
from isthmus.base.streamed import Streamed
from isthmus.tables.files import ParquetColumns, _types_of, columns_of, read
from isthmus.tables.rows import numbers_of
from isthmus.tables.schema import Schema

N = 900
SCHEMA = """
[target]
name = "rich"
task = "classification"
classes = ["no", "yes"]

[columns]
age = [17, 90]
sex = ["f", "m"]
"""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (matrix, streamed):
        monkeypatch.setattr(place, "CHUNK_BYTES", 1)
    monkeypatch.setattr(matrix, "SLICE_BYTES", 8 * 6 * 100)


def people(folder: Path) -> Any:
    """A frame, also as one Parquet file and as a folder of three."""
    rng = np.random.default_rng(0)
    age, sex = rng.uniform(17, 90, N), rng.choice(["f", "m", "x"], N)
    rich = np.where(age + 20 * (sex == "f") + 10 * rng.standard_normal(N) > 60, "yes", "no").astype(object)
    rich[::50] = None  # rows without a target are left out
    frame = pandas.DataFrame({"age": age, "sex": sex, "rich": rich})
    frame.loc[3, "age"] = None
    frame.to_parquet(folder / "whole.parquet", index=False)
    (folder / "parts").mkdir()
    for part, rows in enumerate(np.array_split(np.arange(N), 3)):
        frame.iloc[rows].to_parquet(folder / "parts" / f"{part}.parquet", index=False, row_group_size=70)
    (folder / "schema.toml").write_text(SCHEMA)
    return frame


def test_rows_of_a_folder_are_encoded_as_those_of_a_file(tmp_path: Path) -> None:
    people(tmp_path)
    schema = Schema.from_toml(SCHEMA)
    whole, parts = read(tmp_path / "whole.parquet"), read(tmp_path / "parts")
    assert isinstance(parts.frame, ParquetColumns) and parts.n == whole.n == N
    assert columns_of(tmp_path / "parts") == ["age", "sex", "rich"] and _types_of(tmp_path / "parts")["age"] == "number"
    encoded = numbers_of(parts.frame, schema)
    assert isinstance(encoded, Streamed) and len(encoded.spans()) > 5
    assert np.array_equal(encoded.dense().numpy(), numbers_of(whole.frame, schema))
    mask = np.arange(N) % 3 > 0
    assert np.array_equal(
        numbers_of(parts.frame.chosen(mask), schema).dense().numpy(), numbers_of(whole.frame.chosen(mask), schema)
    )
    assert parts.frame.chosen(mask)["sex"].tolist() == whole.frame.chosen(mask)["sex"].tolist()


def test_a_run_over_a_folder(tmp_path: Path) -> None:
    frame = people(tmp_path)
    options = ["--schema", str(tmp_path / "schema.toml"), "--target", "rich", "--epsilon", "5", "--max-iter", "10"]
    run, given = str(tmp_path / "run"), [*options, "--test-fraction", "0.3", "--quiet"]
    invoke("train", str(tmp_path / "parts"), *given, "--out", run)
    invoke("predict", run, str(tmp_path / "parts"), "-o", str(tmp_path / "p.csv"))
    predicted = pandas.read_csv(tmp_path / "p.csv")["prediction"].to_numpy()
    known = frame["rich"].notna().to_numpy()
    assert (predicted == frame["rich"].to_numpy())[known].mean() > 0.75


def test_a_folder_without_parquet_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    result = invoke("train", str(tmp_path / "empty"), "--target", "y", code=2)
    assert "give a folder with Parquet files" in result.output
