"""From a newcomer's table to numbers: what is guessed is named as a leak, what is declared or public is not."""

from pathlib import Path
from typing import Any

import messy
import numpy as np
import pytest
import scipy.sparse as sp
from command_line import prepared as rows_of

from isthmus.base.validate import InvalidInput
from isthmus.runs.config import load
from isthmus.runs.prepare import PreparedRows, prepare, split
from isthmus.tables.schema import Schema

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


def prepared(path: Path, **options: Any) -> PreparedRows:
    return rows_of(path, **{"target": "churned", **options})


def test_undeclared_columns_are_leaks_with_their_remedy(people: Path) -> None:
    begun = prepared(people, columns={"joined": "drop"})
    assert len(begun.leaks) == 3
    assert "the types of 'customer_id', 'Alter', 'sex'" in begun.leaks[0] and "--schema" in begun.leaks[0]
    assert "--task classification" in begun.leaks[1] and "--classes Ja,Nein" in begun.leaks[2]
    assert any("go into fixed buckets" in note for note in begun.notes)
    assert any("'income' is read as number" in note for note in begun.notes)
    assert begun.bounds is not None and int(np.isnan(begun.bounds[0]).sum()) == 4  # numbers: their ranges are bought
    assert np.isfinite(begun.x).all() and set(begun.y) == {"Ja", "Nein"} and begun.n < 400


def test_nothing_leaks_where_all_is_declared(people: Path) -> None:
    begun = prepared(people, columns=DECLARED, classes=["Nein", "Ja"])
    assert begun.leaks == () and begun.target.task == "classification"
    assert begun.features is not None and "city#3" in begun.features and begun.d == len(begun.features)
    assert begun.bounds is not None and int(np.isnan(begun.bounds[0]).sum()) == 1


def test_nothing_leaks_where_public_rows_tell(people: Path, tmp_path: Path) -> None:
    public = messy.write(tmp_path / "public.csv", 120, seed=3)
    begun = prepared(people, public=str(public))
    assert begun.leaks == () and begun.bounds is not None and not np.isnan(begun.bounds[0]).any()
    assert begun.target.classes == ("Ja", "Nein") and begun.public[0].shape == (len(begun.public[1]), begun.d)
    number = prepared(people, public=str(public), target="visits", task="regression")
    assert number.target.bounds is not None and number.target.bounds[0] == number.public[1].min()


def test_the_schema_that_a_run_leaves_guesses_nothing_more(people: Path, tmp_path: Path) -> None:
    first = prepared(people, columns={"joined": "drop"})
    (tmp_path / "schema.toml").write_text(first.schema.to_toml())
    again = prepared(people, schema=str(tmp_path / "schema.toml"), target=None)
    assert again.leaks == () and (again.x == first.x).all() and (again.y == first.y).all()


@pytest.mark.parametrize("labels", [["1.0", "0", ""], ["True", "False", ""], ["b", "a", ""], ["01", "1", "x"]])
def test_a_settled_run_reads_the_same_labels(tmp_path: Path, labels: list[str]) -> None:
    """Guessed classes are stored, and the labels then looked up: it must come to the same."""
    path = tmp_path / "t.csv"
    path.write_text("x,y\n" + "".join(f"{i},{labels[i % 3]}\n" for i in range(30)))
    settings, declared = load(None, {"data": str(path), "target": "y", "decimal": "."})
    first = prepare(settings, declared, salt="")
    known = {"target": "y", "classes": first.target.classes, "task": "classification"}
    settled, _ = load(None, {"data": str(path), **known})
    again = prepare(settled, first.schema, salt="", settled=True)
    assert again.y.tolist() == first.y.tolist() and len(first.y) == (30 if labels[2] else 20)
    assert first.target.classes == {"1.0": ("0", "1"), "01": ("01", "1", "x")}.get(labels[0], tuple(sorted(labels[:2])))


def test_what_a_schema_says_of_another_target_is_left(people: Path, tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('[target]\nname = "churned"\nclasses = ["Ja", "Nein"]\n[columns]\njoined = "drop"')
    begun = prepared(people, schema=str(tmp_path / "s.toml"), target="visits", task="regression")
    assert begun.target.classes is None and begun.target.name == "visits"


def test_one_range_for_all_numbers(people: Path) -> None:
    begun = prepared(people, columns={"joined": "drop", "Alter": [18, 90]}, bounds=[-5, 5])
    alter, balance = begun.schema.get("Alter"), begun.schema.get("balance")
    assert alter is not None and balance is not None and (alter.bounds, balance.bounds) == ((18, 90), (-5, 5))


REFUSED = [
    ({"target": None}, "target=None is not allowed: give the column to predict, one of 'customer_id'"),
    ({"target": "churnd"}, "Column not found: 'churnd', given as target .did you mean 'churned'"),
    ({"columns": {"sexx": "drop"}}, "Column not found: 'sexx', given as columns .did you mean 'sex'"),
    ({}, r'columns.joined=.* \(--drop "joined"\)'),
    ({"columns": DECLARED, "classes": ["ja", "nein"]}, "some rows have other labels"),
    ({"columns": DECLARED, "task": "regression", "classes": ["Ja", "Nein"]}, "--task regression has no classes"),
    ({"columns": DECLARED, "task": "classification", "target_bounds": [0, 1]}, "classes have no range"),
    (
        {"columns": DECLARED, "target": "comment"},
        "classes='400 labels' .* give --task regression, or --classes: there may be at most 100",
    ),
    (
        {"columns": dict.fromkeys(DECLARED, "drop"), "classes": ["Ja", "Nein"]},
        "declare at least one column as a number, words, a date or bool: none is left to learn from",
    ),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_what_cannot_be_done_is_refused_with_what_to_do(people: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        prepared(people, **options)


@pytest.mark.parametrize(("labels", "task"), [([0, 1, 1], "classification"), ([0.5, 1, 2], "regression")])
def test_the_task_of_a_matrix_is_guessed(tmp_path: Path, labels: list[float], task: str) -> None:
    np.savez(tmp_path / "t.npz", X=np.ones((30, 2)), y=labels * 10)
    problem = rows_of(tmp_path / "t.npz", bounds=[0, 1])
    assert problem.target.task == task and f"--task {task}" in problem.leaks[0] and problem.features is None
    assert problem.bounds is not None and problem.bounds[1].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("x", "words"), [([[1.0, np.nan]], "holds NaN or infinite"), ([["a", "b"]], "a matrix of numbers")]
)
def test_a_matrix_must_be_of_numbers(tmp_path: Path, x: Any, words: str) -> None:
    np.savez(tmp_path / "t.npz", X=x, y=[1])
    with pytest.raises(InvalidInput, match=words):
        rows_of(tmp_path / "t.npz", classes=["0", "1"])


def test_the_split_is_independent_of_what_the_rows_hold(rng: np.random.Generator) -> None:
    """Coins by place and salt alone: neither equal rows nor another record move a size that is published."""
    same, y = np.ones((1000, 2)), np.array(["a"] * 1000)
    other, label = same.copy(), y.copy()
    other[0], label[0] = 0, "b"
    sizes = []
    for k in range(20):
        values = [len(split(x, z, 0.3, f"{k:032x}")[1][1]) for x, z in ((same, y), (other, label))]
        assert values[0] == values[1]
        sizes.append(values[0])
    deviation = np.sqrt(1000 * 0.3 * 0.7)
    assert max(abs(size - 300) for size in sizes) < 5 * deviation and np.std(sizes) > deviation / 3  # coins, no quota


def test_one_record_less_moves_a_size_by_one(rng: np.random.Generator) -> None:
    x, y = rng.standard_normal((500, 3)), np.arange(500)
    (train, kept), (test, held) = split(x, y, 0.3, "salt")
    assert sorted([*kept, *held]) == list(range(500)) and (train == x[kept]).all() and (test == x[held]).all()
    (_, fewer), _ = split(x[:-1], y[:-1], 0.3, "salt")
    assert set(kept) - set(fewer) <= {499} and set(fewer) <= set(kept)
    (sparse, also), _ = split(sp.csr_matrix(x), y, 0.3, "salt")
    assert (sparse.toarray() == train).all() and (also == kept).all()
    assert set(split(x, y, 0.3, "pepper")[1][1]) != set(held)
    with pytest.raises(InvalidInput, match="no row is left on one side"):
        split(x[:1], y[:1], 0.5, "salt")


@pytest.mark.parametrize(("given", "blank"), [({"classes": ["1", "2"]}, ""), ({"target_bounds": [0, 9]}, "none")])
def test_with_replace_one_no_record_changes_the_number_of_rows(tmp_path: Path, given: Any, blank: str) -> None:
    """A row without a target would be left out, and the published n show it."""

    def rows(last: str, **more: Any) -> int:
        lines = [f"{k % 7},{1 + k % 2}" for k in range(100)] + [f"3,{last}"]
        (tmp_path / "t.csv").write_text("\n".join(["x,y", *lines]) + "\n")
        return prepared(tmp_path / "t.csv", target="y", columns={"x": [0, 7]}, **given, **more).n

    assert rows("1", adjacency="replace-one") == rows("1") == 101 and rows(blank) == 100
    with pytest.raises(InvalidInput, match="remove the rows that have no target first, or use add-remove"):
        rows(blank, adjacency="replace-one")
    (tmp_path / "test.csv").write_text(f"x,y\n1,1\n2,{blank}\n")
    assert rows("1", adjacency="replace-one", test=str(tmp_path / "test.csv")) == 101  # public test rows
    with pytest.raises(InvalidInput, match="remove the rows that have no target first"):
        rows("1", adjacency="replace-one", test=str(tmp_path / "test.csv"), test_epsilon=0.1)


COMPANY = {
    "truth": ({"a": "bool", "b": [0, 3]}, [f"{k % 3},{k % 2}" for k in range(100)], "yes,1"),
    "truths as numbers": ({"a": [0, 1], "b": [0, 3]}, [f"{k % 2 or 'True'},1" for k in range(100)], "0.5,1"),
    "words": ({"a": ["7", "007"], "b": [0, 3]}, [f"{'007' if k % 2 else '7'},1" for k in range(100)], "x,1"),
    "thousands": ({"a": [0, 2000], "b": [0, 3]}, ["1233,1", '"1,234",1'] * 50, "?,1"),
    "decimal": ({"a": [0, 3], "b": [0, 3]}, ['"1,5",1', '"0,5",0'] * 50, "much,1"),
    "dates": (
        {"a": {"type": "date", "bounds": ["2000-01-01", "2099-12-31"]}, "b": [0, 3]},
        ["2024-01-02,1", "9999-12-31,0", "2003/2/1,1", "2024-01-02T12:00:00+02:00,1"] * 25,
        "2024-01-01T00:00:00.123456789,1",
    ),
}


@pytest.mark.parametrize("name", COMPANY)
def test_one_row_does_not_change_how_others_are_read(tmp_path: Path, name: str) -> None:
    columns, rows, extra = COMPANY[name]

    def read(lines: list[str]) -> tuple[np.ndarray, np.ndarray]:
        sign = "," if name == "decimal" else "."
        (tmp_path / "t.csv").write_text("\n".join(["a,b,y", *(f'{line},"{k % 4}{sign}5"' for k, line in lines)]) + "\n")
        options = {"decimal": sign, "task": "regression", "target_bounds": [0, 60]}
        begun = prepared(tmp_path / "t.csv", columns=columns, target="y", **options)
        assert begun.leaks == ()
        return begun.x, begun.y

    usual = list(enumerate(rows))
    alone, targets = read(usual)
    for lines, kept in (([(9, extra), *usual], slice(1, None)), ([*usual, (9, extra)], slice(-1))):
        whole, told = read(lines)
        assert (whole[kept] == alone).all() and (told[kept] == targets).all() and len(np.unique(alone[:, 0])) > 1


@pytest.mark.parametrize("extra", ["x,a", "1.5,b", "True,a"])
def test_types_of_public_rows_are_read_as_written(tmp_path: Path, extra: str) -> None:
    (tmp_path / "p.csv").write_text("z,y\n" + "007,a\n012,b\nx,a\n007,b\n" * 5)
    collected = []
    for more in ("", f"{extra}\n"):
        (tmp_path / "t.csv").write_text("z,y\n" + "007,a\n012,b\n" * 50 + more)
        problem = prepared(tmp_path / "t.csv", public=str(tmp_path / "p.csv"), target="y", classes=["a", "b"])
        assert problem.leaks == () and problem.features is not None
        collected.append(problem.x[:100])
    assert (collected[0] == collected[1]).all() and collected[0][:, problem.features.index("z=007")].sum() == 50


@pytest.mark.parametrize("decimal", [".", ","])
def test_numbers_are_read_to_the_last_bit(tmp_path: Path, rng: np.random.Generator, decimal: str) -> None:
    """Once guessed and once with the schema that was guessed: as Python reads each of them."""
    numbers = [*map(float, rng.standard_normal(300) * 10.0 ** rng.integers(-9, 9, 300)), 2.0**60 + 1, 0.1, -0.0]
    lines = [f"{value!r};{k % 2}".replace(".", decimal) for k, value in enumerate(numbers)]
    (tmp_path / "t.csv").write_text("\n".join(["a;y", *lines]) + "\n")
    options = {"target": "y", "classes": ["0", "1"], "decimal": decimal}
    guessed = prepared(tmp_path / "t.csv", **options)
    (tmp_path / "s.toml").write_text(guessed.schema.to_toml())
    begun = prepared(tmp_path / "t.csv", schema=str(tmp_path / "s.toml"), **options)
    assert guessed.x[:, 0].tolist() == begun.x[:, 0].tolist() == numbers and begun.leaks == () != guessed.leaks


def test_the_decimal_sign_of_the_target(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a;y\n1;1,5\n2;2,25\n3;-\n")
    begun = prepared(tmp_path / "t.csv", target="y", task="regression", decimal=",", columns={"a": [0, 3]})
    assert begun.y.tolist() == [1.5, 2.25] and begun.target.decimal == ","
    (tmp_path / "s.toml").write_text(begun.schema.to_toml())
    again = prepared(tmp_path / "t.csv", schema=str(tmp_path / "s.toml"), target=None)
    assert again.y.tolist() == [1.5, 2.25]


def test_a_settled_schema_guesses_nothing(people: Path) -> None:
    settings, declared = load(None, {"data": str(people), "target": "churned", "columns": {"joined": "drop"}})
    with pytest.raises(InvalidInput, match="continue with the table that the run began with: its schema does not"):
        prepare(settings, declared, salt="", settled=True)
    assert Schema().features == []
