"""Tables on disk: the same rows, sums and refusals as in memory, read in slices."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import dataset, parquet

from isthmus import InvalidInput, Logistic, PrivateClassifier, PrivateRegressor, Softmax, minimize
from isthmus.algorithms import dp_gd, dp_sgd, gd
from isthmus.base import matrix, streamed
from isthmus.base.parallel import ahead, in_order
from isthmus.base.streamed import ChosenRows, FileRows, Streamed, opened
from isthmus.gradients.rounding import upper_norms
from isthmus.problems.scaling import RowMap, Scaled

N, D = 700, 5


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    for place in (matrix, streamed):
        monkeypatch.setattr(place, "CHUNK_BYTES", 1)
    monkeypatch.setattr(matrix, "SLICE_BYTES", 8 * D * 90)


def numbers(dtype: str = "float32") -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D)).astype(dtype)
    return X, (X[:, 0] > 0).astype(int)


def on_disk(kind: str, X: np.ndarray, y: np.ndarray, folder: Path) -> tuple[Any, Any]:
    """The rows in a file of some kind, and their targets."""
    if kind in ("npy", "memmap", "fortran"):
        np.save(folder / "x.npy", np.asfortranarray(X) if kind == "fortran" else X)
        return (folder / "x.npy" if kind == "npy" else np.load(folder / "x.npy", mmap_mode="r")), y
    for part, rows in enumerate(np.array_split(np.arange(N), 3)):
        columns = {f"x{j}": X[rows, j] for j in range(D)}
        table = pyarrow.table({**columns, "label": y[rows]})
        parquet.write_table(table, folder / f"part{part}.parquet", row_group_size=100 if part else 10_000)
    return (folder if kind == "parquet" else dataset.dataset(str(folder), format="parquet")), "label"


KINDS = ["npy", "memmap", "fortran", "parquet", "dataset"]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_on_disk_are_the_rows(kind: str, tmp_path: Path) -> None:
    X, y = numbers()
    rows, targets = opened(*on_disk(kind, X, y, tmp_path))
    assert isinstance(rows, Streamed) and rows.shape == (N, D) and rows.dtype == torch.float32
    assert np.array_equal(targets, y) and len(rows.spans()) > 5
    assert [lo for lo, _ in rows.spans()] == [0, *(hi for _, hi in rows.spans()[:-1])]
    whole = torch.from_numpy(X)
    assert torch.equal(torch.cat([part for _, _, part in rows.chunks()]), whole)
    index = torch.randperm(N, generator=torch.Generator().manual_seed(1))[:150]
    assert torch.equal(rows.take(index), whole[index]) and rows.take(index[:0]).shape == (0, D)
    assert torch.equal(rows[100:400], whole[100:400]) and torch.equal(rows[650:700], whole[650:])
    w, v = torch.randn(D).double(), torch.rand(N).double()
    torch.testing.assert_close(matrix.matmul(rows, w), whole.double() @ w, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(matrix.rmatmul(rows, v), whole.double().T @ v, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(rows.gram(), whole.double().T @ whole.double(), rtol=1e-12, atol=1e-12)
    for ord in (1, 2, torch.inf):
        true = torch.linalg.vector_norm(whole.double(), ord, dim=1)
        upper = upper_norms(rows, ord)
        assert bool((upper >= true).all()) and bool((upper <= true * (1 + 1e-5) + 1e-100).all())
    half = ChosenRows(rows, torch.arange(0, N, 2))
    assert torch.equal(half.dense(), whole[::2]) and torch.equal(half.take(torch.tensor([3])), whole[6:7])


@pytest.mark.parametrize(
    ("kind", "recipe"),
    [("npy", "dp_gd"), ("npy", "bought"), ("npy", "dp_sgd"), ("parquet", "dp_sgd"), ("parquet", "gd")],
)
def test_runs_over_a_file_find_what_runs_in_memory_find(kind: str, recipe: str, tmp_path: Path) -> None:
    X, y = numbers("float64")
    private: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "clip": 0.7, "n": "exact"}
    chosen = {
        "dp_gd": dp_gd(**private, step=0.5),
        "bought": dp_gd(**private, scale="shapes", features=12, step="auto"),
        "dp_sgd": dp_sgd(**private, step=0.5, batch_size=200),
        "gd": gd(step=0.5),
    }[recipe]
    seed = {} if recipe == "gd" else {"noise_seed": 1}
    here = minimize(Logistic(X, y, classes=(0, 1)), chosen, steps=5, **seed)
    there = minimize(Logistic(*on_disk(kind, X, y, tmp_path), classes=(0, 1)), chosen, steps=5, **seed)
    assert float((here.x - there.x).norm()) <= 1e-9 * float(here.x.norm())


def test_maps_of_a_file_are_those_of_its_rows(tmp_path: Path) -> None:
    X, y = numbers("float64")
    X[7] = 1e160  # longer than any number's square: taken for zeros
    file, _ = opened(*on_disk("npy", X, y, tmp_path))
    low, high = torch.full((D,), -1.0).double(), torch.full((D,), 1.5).double()
    for found in (RowMap(low, high, low / 3, None, 1.0, 0.5), RowMap(weight=torch.rand(D).double(), limit=None)):
        seen, true = found(file), found(torch.from_numpy(X))
        assert isinstance(seen.X, Streamed)
        torch.testing.assert_close(seen.dense(), true.dense())
        torch.testing.assert_close(seen.upper, true.upper)
        torch.testing.assert_close(seen[20:150].dense(), true[20:150].dense())
        assert isinstance(seen.plain(), Streamed)
        torch.testing.assert_close(Scaled.of(seen.plain()).dense(), true.dense())
    rows = Softmax(file, y, classes=2).part(slice(3, 9)).rows(torch.zeros(2 * D).double())
    assert rows.n == 6


@pytest.mark.parametrize("kind", ["memmap", "parquet"])
def test_estimators_take_files(kind: str, tmp_path: Path) -> None:
    X, y = numbers()
    options: dict[str, Any] = {"epsilon": 2.0, "noise_seed": 5, "max_iter": 5, "bounds": (-5, 5)}
    table, target = on_disk(kind, X, y, tmp_path)
    there = PrivateClassifier(classes=[0, 1], **options).fit(table, target)
    here = PrivateClassifier(classes=[0, 1], **options).fit(X, y)
    np.testing.assert_allclose(there._weights, here._weights, rtol=1e-7, atol=1e-9)
    rows = opened(table, target)[0]
    np.testing.assert_allclose(there.decision_function(rows), here.decision_function(X), rtol=1e-6, atol=1e-7)
    number = PrivateRegressor(target_bounds=(-4, 4), **options).fit(rows, X[:, 1])
    assert number.predict(rows).shape == (N,)
    free = PrivateClassifier(epsilon=float("inf"), max_iter=20).fit(rows, y)
    assert free.score(rows, y) > 0.9


def test_what_is_wrong_with_a_table_is_said(tmp_path: Path) -> None:
    X, y = numbers()
    X[500, 2] = np.nan
    file, _ = on_disk("npy", X, y, tmp_path)
    with pytest.raises(InvalidInput, match="X holds 1 NaN"):
        Logistic(file, y, classes=(0, 1))
    parquet.write_table(pyarrow.table({"a": [1.0, None], "b": ["x", "y"], "c": [0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(InvalidInput, match="do not hold numbers"):
        opened(tmp_path / "t.parquet", "c")
    with pytest.raises(InvalidInput, match="name a column of the table"):
        opened(tmp_path / "t.parquet", "d")
    parquet.write_table(pyarrow.table({"a": [1.0, None], "c": [0, 1]}), tmp_path / "t.parquet")
    with pytest.raises(InvalidInput, match="X holds 1 NaN"):
        Logistic(tmp_path / "t.parquet", "c")
    with pytest.raises(InvalidInput, match="File or folder not found"):
        opened(tmp_path / "none.parquet", "c")
    with pytest.raises(InvalidInput, match="len\\(y\\)"):
        PrivateClassifier(classes=[0, 1]).fit(np.load(file, mmap_mode="r")[:100], y)


def test_a_file_that_became_shorter_is_refused(tmp_path: Path) -> None:
    X, y = numbers()
    file, _ = on_disk("npy", X, y, tmp_path)
    rows = FileRows(np.load(file, mmap_mode="r"))
    rows.read(0, 10)
    with file.open("r+b") as stream:
        stream.truncate(2000)
    with pytest.raises(InvalidInput, match="written to since it was opened"):
        rows.read(600, 700)


def test_reading_ahead_keeps_the_order_and_raises() -> None:
    assert list(ahead(lambda x: x + 1, [1, 2, 3])) == [2, 3, 4] and not list(ahead(lambda x: x, []))
    with pytest.raises(ZeroDivisionError):
        list(ahead(lambda x: 1 // x, [1, 0, 2]))


def test_columns_of_several_types_are_float64(tmp_path: Path) -> None:
    table = {"a": pyarrow.array([1, 2], pyarrow.int8()), "b": [True, False], "c": [0.1, 0.2], "y": [1.5, 2.5]}
    parquet.write_table(pyarrow.table(table), tmp_path / "t.parquet")
    rows, y = opened(tmp_path / "t.parquet", "y")
    assert isinstance(rows, FileRows) and rows.names == ("a", "b", "c") and y.tolist() == [1.5, 2.5]
    assert rows.dense().tolist() == [[1.0, 1.0, 0.1], [2.0, 0.0, 0.2]]


def test_a_file_that_is_written_to_or_replaced_is_noticed(tmp_path: Any) -> None:
    """What was checked of rows, and what is kept of them, holds for the rows as they were."""
    path, other = tmp_path / "x.npy", tmp_path / "other.npy"
    np.save(path, np.full((20, 3), 7.0))
    np.save(other, np.zeros((20, 3)))
    mapping, opened = np.load(path, mmap_mode="r"), FileRows(np.load(path, mmap_mode="r"))
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(b"\0" * 8)
    with pytest.raises(InvalidInput, match="written to since it was opened"):
        opened.read(0, 2)
    os.replace(other, path)
    assert float(FileRows(mapping).read(19, 20)[0, 0]) == 7.0  # the mapping's file, not that of its name
    assert FileRows(np.load(path, mmap_mode="r")[5:5]).read(0, 0).shape == (0, 3)


def test_parts_are_done_in_order_and_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    alive, most = [0], [0]

    class Held:
        def __init__(self, number: int) -> None:
            self.number = number
            alive[0] += 1
            most[0] = max(most[0], alive[0])

        def __del__(self) -> None:
            alive[0] -= 1

    numbers = []
    for held in in_order(Held, range(200)):
        numbers.append(held.number)
        del held
    assert numbers == list(range(200)) and most[0] <= 12
