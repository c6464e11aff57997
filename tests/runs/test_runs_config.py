"""Settings from a TOML file and options, and what is refused before any data is read."""

import json
import math
from pathlib import Path

import pytest
from refusals import refuses

from isthmus.base.validate import InvalidInput
from isthmus.runs.config import Settings, load, read_constraint
from isthmus.tables.schema import Schema

FILE = """
data = "people.csv"
epsilon = 0.5
test_fraction = 0.25

[target]
name = "income"
classes = ["low", "high"]

[columns]
age = [17, 90]
"""


def test_a_file_and_options_that_beat_it(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(FILE)
    settings, schema = load(tmp_path / "run.toml", {"epsilon": 2.0, "delta": None, "columns": {"sex": ["f", "m"]}})
    assert settings.data == str(tmp_path / "people.csv")  # relative to the file
    assert (settings.epsilon, settings.target, settings.classes) == (2.0, "income", ("low", "high"))
    assert settings.test_fraction == 0.25 and settings.measure_epsilon == 0.2
    assert [column.name for column in schema.columns] == ["age", "sex"]


def test_a_schema_that_is_handed_in_is_declared(tmp_path: Path) -> None:
    (tmp_path / "schema.toml").write_text(
        '[target]\nname = "y"\nbounds = [0, 9]\n[columns.a]\ntype = "hash"\nsource = "data"\n[columns]\nb = [0, 1]'
    )
    settings, schema = load(None, {"data": "d.csv", "schema": str(tmp_path / "schema.toml"), "columns": {"b": [0, 5]}})
    assert settings.target == "y" and settings.target_bounds == (0, 9)
    assert [column.source for column in schema.columns] == ["declared", "declared"]
    found = schema.get("b")
    assert found is not None and found.bounds == (0, 5)


def test_settings_survive_json() -> None:
    settings = Settings(data="a.csv", target="y", classes=("a", "b"), epsilon=math.inf, bounds=(0, 1), options={"m": 3})
    assert Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_what_test_rows_cost() -> None:
    options = {"data": "a.csv", "test_fraction": 0.2}
    assert Settings(**options, epsilon=2.0).measure_epsilon == 0.2
    assert Settings(**options, test_epsilon=0.7).measure_epsilon == 0.7
    assert Settings(**options, release_test_metrics=True).measure_epsilon is None
    assert Settings(**options, epsilon=math.inf).measure_epsilon is None
    assert Settings(data="a.csv", test="b.csv").measure_epsilon is None
    assert Settings(data="a.csv", test="b.csv", test_epsilon=0.3).measure_epsilon == 0.3


test_wrong_settings_are_refused = refuses(
    ({"data": ""}, "give the file to train on"),
    ({"epsilon": 0}, "epsilon=0 is not allowed: give a number above 0; inf trains without privacy"),
    ({"epsilon": math.nan}, "epsilon='nan'"),
    ({"epsilon": "much"}, "epsilon='much'"),
    ({"delta": 1.0}, "delta=1.0"),
    ({"task": "ranking"}, "task='ranking' is not allowed: choose one of"),
    ({"adjacency": "both"}, "adjacency='both'"),
    ({"test": "a", "test_fraction": 0.5}, "give test or test_fraction, not both"),
    ({"test_fraction": 1.5}, "test_fraction=1.5"),
    ({"test_epsilon": 0.1}, "it needs test rows"),
    ({"test_fraction": 0.2, "test_epsilon": 1.0}, "test_epsilon=1.0 is not allowed: give less than epsilon=1"),
    ({"release_test_metrics": True}, "it needs test rows"),
    ({"test_fraction": 0.2, "test_epsilon": 0.1, "release_test_metrics": True}, "with noise or without, not both"),
    ({"n": 500, "test_fraction": 0.2}, "give the private number of rows away"),
    ({"epsilon": math.inf, "budget": "b"}, "epsilon = inf spends none"),
    ({"constraint": "l1"}, "constraint='l1' is not allowed: give l1:RADIUS"),
    ({"constraint": "l1:-3"}, "give l1:RADIUS.*radius"),
    ({"l1": -1.0}, "l1=-1.0"),
    ({"max_iter": 2.5}, "max_iter=2.5"),
    ({"classes": ["a", "a"]}, "give each word once"),
    ({"bounds": [1, 0]}, "give low < high"),
    ({"intercept": "no"}, "intercept='no' is not allowed: give true or false"),
    by=lambda given: Settings(**{"data": "a.csv", **given}),
)


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(InvalidInput, match="File not found"):
        load(path, {})
    path.write_text("epsilon = ")
    with pytest.raises(InvalidInput, match="it is not valid TOML"):
        load(path, {})
    path.write_text("epsilom = 1")
    with pytest.raises(InvalidInput, match=r"config.epsilom=1 is not allowed: did you mean 'epsilon'\?"):
        load(path, {})


def test_constraints() -> None:
    assert read_constraint(None) is None
    assert read_constraint("L1: 50") == read_constraint("l1:50")
    assert type(read_constraint("box:-1,1")).__name__ == "Box"
    assert type(read_constraint("simplex")).__name__ == "Simplex"


def test_the_schema_in_the_docs_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    block = text.split("```toml\n")[1].split("```")[0]
    types = {column.name: column.type for column in Schema.from_toml(block).columns}
    assert types == {
        **{"age": "number", "sex": "category", "city": "hash", "member": "bool", "customer_id": "id"},
        **{"remarks": "drop", "joined": "date", "salary": "number"},
    }
