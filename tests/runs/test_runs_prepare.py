"""From a newcomer's table to numbers: what is guessed is named as a leak, what is declared or public is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import messy
import numpy as np
import pytest
import scipy.sparse as sp

from isthmus._validate import InvalidInput
from isthmus.runs.config import load
from isthmus.runs.prepare import Problem, prepare, split
from isthmus.runs.schema import Schema

DECLARED = {
    **dict.fromkeys(("customer_id", "comment"), "drop"),
    "Alter": [18, 90],
    "sex": ["female", "male"],
    "city": {"type": "hash", "buckets": 4},
    "member": "bool",
    "income": {"type": "number", "bounds": [0, 200000], "missing": "indicator"},
    "balance": "number",
    "visits": [0, 30],
    "joined": {"type": "date", "bounds": ["2010-01-01", "2024-12-31"]},
}


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return messy.write(tmp_path_factory.mktemp("data") / "people.csv", 400)


def prepared(path: Path, **options: Any) -> Problem:
    settings, declared = load(None, {"data": str(path), "target": "churned", **options})
    return prepare(settings, declared, salt="salt")


def test_undeclared_columns_are_leaks_with_their_remedy(people: Path) -> None:
    found = prepared(people, columns={"joined": "drop"})
    assert len(found.leaks) == 3
    assert "the types of 'customer_id', 'Alter', 'sex'" in found.leaks[0] and "--schema" in found.leaks[0]
    assert "--task classification" in found.leaks[1] and "--classes Ja,Nein" in found.leaks[2]
    assert any("go into fixed buckets" in note for note in found.notes)
    assert any("'income' is read as number" in note for note in found.notes)
    assert found.bounds is not None and int(np.isnan(found.bounds[0]).sum()) == 4  # numbers: their ranges are bought
    assert np.isfinite(found.x).all() and set(found.y) == {"Ja", "Nein"} and found.n < 400


def test_nothing_leaks_where_all_is_declared(people: Path) -> None:
    found = prepared(people, columns=DECLARED, classes=["Nein", "Ja"])
    assert found.leaks == () and found.target.task == "classification"
    assert found.features is not None and "city#3" in found.features and found.d == len(found.features)
    assert found.bounds is not None and int(np.isnan(found.bounds[0]).sum()) == 1


def test_nothing_leaks_where_public_rows_tell(people: Path, tmp_path: Path) -> None:
    public = messy.write(tmp_path / "public.csv", 120, seed=3)
    found = prepared(people, public=str(public))
    assert found.leaks == () and found.bounds is not None and not np.isnan(found.bounds[0]).any()
    assert found.target.classes == ("Ja", "Nein") and found.public[0].shape == (len(found.public[1]), found.d)
    number = prepared(people, public=str(public), target="visits", task="regression")
    assert number.target.bounds is not None and number.target.bounds[0] == number.public[1].min()


def test_the_schema_that_a_run_leaves_guesses_nothing_more(people: Path, tmp_path: Path) -> None:
    first = prepared(people, columns={"joined": "drop"})
    (tmp_path / "schema.toml").write_text(first.schema.to_toml())
    again = prepared(people, schema=str(tmp_path / "schema.toml"), target=None)
    assert again.leaks == () and (again.x == first.x).all() and (again.y == first.y).all()


@pytest.mark.parametrize("labels", [["1.0", "0.0", ""], ["True", "False", ""], ["b", "a", ""]])
def test_a_settled_run_reads_the_same_labels(tmp_path: Path, labels: list[str]) -> None:
    """Guessed classes are stored, and the labels then read as text: it must come to the same."""
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i},{labels[i % 3]}\n" for i in range(9)))
    settings, declared = load(None, {"data": str(path), "target": "y", "decimal": "."})
    first = prepare(settings, declared, salt="")
    settled, _ = load(
        None, {"data": str(path), "target": "y", "classes": first.target.classes, "task": "classification"}
    )
    again = prepare(settled, first.schema, salt="", settled=True)
    assert again.y.tolist() == first.y.tolist() and len(first.y) == 6


def test_what_a_schema_says_of_another_target_is_left(people: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[target]\nname = "churned"\nclasses = ["Ja", "Nein"]\n[columns]\njoined = "drop"')
    found = prepared(people, schema=str(tmp_path / "s.toml"), target="visits", task="regression")
    assert found.target.classes is None and found.target.name == "visits"


def test_one_range_for_all_numbers(people: Path) -> None:
    found = prepared(people, columns={"joined": "drop", "Alter": [18, 90]}, bounds=[-5, 5])
    alter, balance = found.schema.get("Alter"), found.schema.get("balance")
    assert alter is not None and balance is not None and (alter.bounds, balance.bounds) == ((18, 90), (-5, 5))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"target": None}, "target=None is not allowed: give the column to predict, one of 'customer_id'"),
        ({"target": "churnd"}, "target='churnd' is not allowed: did you mean 'churned'"),
        ({"columns": {"sexx": "drop"}}, "columns='sexx' is not allowed: did you mean 'sex'"),
        ({}, r'columns.joined=.* \(--drop "joined"\)'),
        ({"columns": DECLARED, "classes": ["ja", "nein"]}, "some rows have other labels"),
        ({"columns": DECLARED, "task": "regression", "classes": ["Ja", "Nein"]}, "--task regression has none"),
        ({"columns": DECLARED, "task": "classification", "target_bounds": [0, 1]}, "classes have no range"),
        ({"columns": DECLARED, "target": "comment"}, "classes='400 labels' .* give --task regression, or --classes"),
        ({"columns": dict.fromkeys(DECLARED, "drop"), "classes": ["Ja", "Nein"]}, "no column is left to learn from"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_to_do(people: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        prepared(people, **options)


@pytest.mark.parametrize(("labels", "task"), [([0, 1, 1], "classification"), ([0.5, 1, 2], "regression")])
def test_the_task_of_a_matrix_is_guessed(tmp_path: Path, labels: list[float], task: str) -> None:
    np.savez(tmp_path / "t.npz", X=np.ones((3, 2)), y=labels)
    settings, declared = load(None, {"data": str(tmp_path / "t.npz"), "bounds": [0, 1]})
    found = prepare(settings, declared, salt="")
    assert found.target.task == task and f"--task {task}" in found.leaks[0] and found.features is None
    assert found.bounds is not None and found.bounds[1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("x", "words"), [([[1.0, np.nan]], "holds NaN or infinite"), ([["a", "b"]], "a matrix of numbers")]
)
def test_a_matrix_must_be_of_numbers(tmp_path: Path, x: Any, words: str) -> None:
    np.savez(tmp_path / "t.npz", X=x, y=[1])
    settings, declared = load(None, {"data": str(tmp_path / "t.npz"), "classes": ["0", "1"]})
    with pytest.raises(InvalidInput, match=words):
        prepare(settings, declared, salt="")


def test_held_out_rows_do_not_depend_on_other_rows(rng: np.random.Generator) -> None:
    """With add-remove one row more or less moves no other row to the other side; dense and CSR agree."""
    x, y = rng.standard_normal((500, 3)), rng.choice(["a", "b"], 500)
    (train, _), (test, _) = split(x, y, 0.3, "add-remove", "salt")
    assert abs(len(test) - 150) < 5 * np.sqrt(500 * 0.3 * 0.7) and len(train) + len(test) == 500
    (fewer, _), (held, _) = split(x[1:], y[1:], 0.3, "add-remove", "salt")
    whole = {row.tobytes() for row in train} - {row.tobytes() for row in fewer}
    gone = {row.tobytes() for row in test} - {row.tobytes() for row in held}
    assert whole | gone == {x[0].tobytes()}
    (sparse, _), _ = split(sp.csr_matrix(x), y, 0.3, "add-remove", "salt")
    assert sparse.shape[0] + held.shape[0] > 400
    (other, _), _ = split(x, y, 0.3, "add-remove", "pepper")
    assert {row.tobytes() for row in other} != {row.tobytes() for row in train}


def test_held_out_places_stay_with_replace_one(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((100, 2)), np.arange(100)
    changed = x.copy()
    changed[7] = 0
    (_, first), (_, held) = split(x, y, 0.4, "replace-one", "salt")
    (_, second), (_, kept) = split(changed, y, 0.4, "replace-one", "salt")
    assert first.tolist() == second.tolist() and held.tolist() == kept.tolist()
    with pytest.raises(InvalidInput, match="no row is left on one side"):
        split(x[:1], y[:1], 0.5, "replace-one", "salt")


def test_a_settled_schema_guesses_nothing(people: Path) -> None:
    settings, declared = load(None, {"data": str(people), "target": "churned", "columns": {"joined": "drop"}})
    with pytest.raises(InvalidInput, match="the settled schema does not cover this table"):
        prepare(settings, declared, salt="", settled=True)
    assert Schema().features == []
