"""`TableEncoder`: the same numbers from pandas, polars and dicts; nothing learned; errors that say what to declare."""

import pickle
from pathlib import Path
from typing import Any

import messy
import numpy as np
import pandas
import pytest
from refusals import refuses
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from isthmus import InvalidInput, PrivateClassifier, PrivateRegressor, TableEncoder
from isthmus.cli import main
from isthmus.estimators.stateless_steps import _learners
from isthmus.tables.encode import encode
from isthmus.tables.schema import Schema

COLUMNS = {
    "age": (0, 100),
    "sex": ["f", "m"],
    "city": {"type": "hash", "buckets": 3},
    "member": "bool",
    "pay": {"type": "number", "missing": "indicator"},
    "joined": {"type": "date", "bounds": ["2020-01-01", "2020-12-31"], "format": "%d/%m/%Y"},
    "who": "id",
    "notes": "drop",
}
TABLE: dict[str, list[Any]] = {
    "age": [50, None, 300],
    "sex": ["f", None, " m "],
    "city": ["Łódź", "東京", None],
    "member": [True, None, False],
    "pay": ["1,234.5", "n/a", "$ 20"],
    "joined": ["02/01/2020", "31/12/2019", None],
    "who": ["a", "b", "c"],
    "notes": ["x", "y", "z"],
}


def frames() -> dict[str, Any]:
    facts: dict[str, Any] = {"pandas": pandas.DataFrame(TABLE), "dict": TABLE}
    try:
        import polars
    except ImportError:
        return facts
    return facts | {"polars": polars.DataFrame(TABLE)}


def test_every_kind_of_table_gives_the_same_numbers() -> None:
    rows = {name: TableEncoder(COLUMNS).fit(frame).transform(frame) for name, frame in frames().items()}
    expected = rows["pandas"]
    assert expected.shape == (3, 13) and expected[:, 0].tolist() == [50, 50, 100]
    assert all((row == expected).all() for row in rows.values())


def test_fit_reads_names_and_types_alone() -> None:
    """Other entries, another number of rows, none at all: everything it keeps is the same, to the byte."""
    frame = pandas.DataFrame(TABLE)
    kept = pickle.dumps(TableEncoder(COLUMNS).fit(frame).__dict__)
    for other in (frame.iloc[:0], frame.iloc[[2, 0]], frame.assign(sex="?", city=None, age=frame["age"] * 7)):
        assert pickle.dumps(TableEncoder(COLUMNS).fit(other).__dict__) == kept


def test_what_each_encoded_column_is() -> None:
    encoder = TableEncoder(COLUMNS).fit(pandas.DataFrame(TABLE))
    low, high = encoder.bounds_
    assert len(encoder.fields_) == len(low) == len(high) == len(encoder.get_feature_names_out()) == 13
    table = {field.feature: field for field in encoder.fields_}
    assert table["sex=m"].column == "sex" and table["sex=m"].treatment == "category, 2 words and (other) (declared)"
    assert table["city#1"].type == "hash" and "3 fixed buckets" in table["city#1"].treatment
    assert encoder.feature_names_in_.tolist() == list(TABLE) and encoder.n_features_in_ == 8
    place = encoder.get_feature_names_out().tolist().index
    assert (low[place("age")], high[place("age")]) == (0, 100) and np.isnan(low[place("pay")])


def test_habits_of_scikit_learn() -> None:
    frame = pandas.DataFrame(TABLE, index=[7, 8, 9])
    encoder = TableEncoder(COLUMNS).set_output(transform="pandas")
    found = encoder.fit_transform(frame)
    assert list(found.columns) == encoder.get_feature_names_out().tolist() and list(found.index) == [7, 8, 9]
    again = pickle.loads(pickle.dumps(encoder))
    assert again.transform(frame).equals(found)
    copy = clone(encoder)
    assert copy.columns == COLUMNS and copy.get_params() == encoder.get_params() and not hasattr(copy, "schema_")
    assert "TableEncoder" in repr(copy)
    nested = make_column_transformer((TableEncoder({"sex": ["f", "m"]}), ["sex"]), (TableEncoder(), ["age"]))
    assert nested.fit_transform(frame[["sex", "age"]].assign(age=[1.0, 2.0, 3.0])).shape == (3, 5)


def test_the_schema_goes_to_the_command_line_and_back(tmp_path: Path) -> None:
    path = tmp_path / "schema.toml"
    encoder = TableEncoder(COLUMNS)
    path.write_text(encoder.to_toml())
    frame = pandas.DataFrame(TABLE)
    read = TableEncoder.from_schema(path).fit(frame)
    assert (read.transform(frame) == encoder.fit_transform(frame)).all()
    path.write_text(encoder.to_toml().replace('"drop"', '"hash"') + '[target]\nname = "notes"\n')
    assert TableEncoder.from_schema(path).fit(frame).schema_.features[-1] == "notes=(missing)"
    bare = '[target]\nname = "notes"\n[columns]\nage = [0, 9]\n'
    path.write_text(bare)
    assert TableEncoder.from_schema(path).fit(frame[["age", "notes"]]).schema_.features == ["age"]
    with pytest.raises(InvalidInput, match=r"columns=\['who'\]"):
        TableEncoder.from_schema(path).fit(frame[["age", "who", "notes"]])


def test_the_encoder_of_a_run_is_the_runs_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    messy.write(tmp_path / "people.csv", 200)
    options = "--drop joined --classes Ja,Nein --algorithm dp_gd --dry-run --write-schema s.toml".split()
    main(["train", "people.csv", "--target", "churned", *options], standalone_mode=False)
    encoder = TableEncoder.from_schema("s.toml")
    frame = pandas.read_csv("people.csv")  # with the types that pandas gives
    text = pandas.read_csv("people.csv", dtype=str)
    assert (encoder.fit_transform(frame) == encoder.fit_transform(text)).all()
    assert (encode(text, encoder.schema_) == encoder.transform(text)).all()


# ---------------------------------------------------------------- what is not declared


def test_types_tell_numbers_and_truth_values_and_nothing_else() -> None:
    frame = pandas.DataFrame({"a": [1, 2], "b": [True, False], "c": pandas.array([1, None], dtype="Int64")})
    assert [column.type for column in TableEncoder().fit(frame).schema_.columns] == ["number", "bool", "number"]
    frame["city"], frame["when"] = ["x", "y"], pandas.to_datetime(["2020-01-01", "2020-01-02"])
    frame["sex"], frame["customer_id"] = pandas.Categorical(["f", "m"]), [7, 8]
    with pytest.raises(InvalidInput) as error:
        TableEncoder().fit(frame)
    words = str(error.value)
    assert "columns=['city', 'when', 'sex', 'customer_id']" in words and "TableEncoder({...})" in words
    assert '"city": ["a", "b"] (all its words), "hash"' in words and '"when": {"type": "date", "bounds"' in words
    assert '"sex": "category"' in words and '"customer_id": "id" (it seems to identify a row)' in words
    assert TableEncoder(undeclared="drop", columns={"a": "number"}).fit(frame).schema_.features == ["a"]
    with pytest.raises(InvalidInput, match=r"columns=\['b', 'c'"):
        TableEncoder({"a": "number"}, undeclared="refuse").fit(frame)


def test_missing_entries_of_all_columns_are_declared_once() -> None:
    frame = pandas.DataFrame({"x": [1.0, -999.0], "city": ["Rome", "unknown"], "n": ["7", "-999.00"]})
    other = TableEncoder({"city": ["Rome"]}, missing=["unknown"]).fit_transform({"city": ["Oslo", "unknown"]})
    assert other.tolist() == [[0, 1, 0], [0, 0, 1]]
    columns = {"x": (0, 4), "city": ["Rome"], "n": {"bounds": (0, 8), "missing": "indicator"}}
    encoder = TableEncoder(columns, missing=[-999, "unknown"])
    assert encoder.fit_transform(frame).tolist() == [[1, 1, 0, 0, 7, 0], [2, 0, 0, 1, 4, 1]]
    assert TableEncoder(undeclared="drop", missing=["-999"]).get_params()["missing"] == ["-999"]
    again = Schema.from_toml(encoder.to_toml())
    assert [column.absent for column in again.columns] == [("-999", "unknown")] * 3


def test_words_of_a_type_count_when_somebody_declares_them() -> None:
    """`astype("category")` collects the words from the rows: by itself it declares nothing."""
    frame = pandas.DataFrame({"sex": pandas.Categorical(["f", None], categories=["f", "m", "x"])})
    with pytest.raises(InvalidInput, match=r"columns=\['sex'\]"):
        TableEncoder().fit(frame)
    encoder = TableEncoder({"sex": "category"}).fit(frame)
    assert encoder.schema_.columns[0].categories == ("f", "m", "x")
    assert encoder.transform(frame).tolist() == [[1, 0, 0, 0, 0], [0, 0, 0, 0, 1]]
    plain = pandas.DataFrame({"sex": ["m"]})  # new rows need not have the type
    assert encoder.transform(plain).tolist() == [[0, 1, 0, 0, 0]]
    with pytest.raises(InvalidInput, match=r"columns.sex='category' .* its type lists none"):
        TableEncoder({"sex": "category"}).fit(plain)
    with pytest.raises(InvalidInput, match="columns.sex.bounds"):
        TableEncoder({"sex": {"type": "category", "bounds": (0, 1)}}).fit(frame)


def test_polars_lists_words_in_an_enum_only() -> None:
    polars = pytest.importorskip("polars")
    closed = polars.DataFrame({"sex": polars.Series(["f", None], dtype=polars.Enum(["f", "m"]))})
    assert TableEncoder({"sex": "category"}).fit(closed).transform(closed).tolist() == [[1, 0, 0, 0], [0, 0, 0, 1]]
    collected = polars.DataFrame({"sex": polars.Series(["f", None], dtype=polars.Categorical)})
    with pytest.raises(InvalidInput, match="its type lists none"):
        TableEncoder({"sex": "category"}).fit(collected)
    with pytest.raises(InvalidInput, match="collect"):
        TableEncoder().fit(closed.lazy())


def test_types_of_polars() -> None:
    polars = pytest.importorskip("polars")
    from datetime import date, datetime

    whole = polars.Series([1, None], dtype=polars.Int32)
    dates = {"d": [date(2020, 1, 1), None], "t": [datetime(2020, 1, 1, 12), None]}
    frame = polars.DataFrame({"i": whole, **dates, "b": [True, None], "s": ["2020-01-02", None]})
    bounds = {"bounds": ["2019-01-01", "2021-01-01"], "type": "date"}
    rows = TableEncoder({"d": bounds, "t": bounds, "s": bounds}).fit_transform(frame)
    assert rows[0].tolist() == [1, 18262, 18262.5, 1, 18263] and rows[1, 0] == 0 and rows[1, 3] == 0.5


test_wrong_declarations_are_refused = refuses(
    ({"agee": (0, 1)}, r"columns=\['agee'\] .* which has \['age'\]"),
    ({"age": (1, 0)}, "columns.age.bounds=.* give low < high"),
    ({"age": "nmber"}, "columns.age='nmber'"),
    ({"age": "?"}, "declare how it becomes numbers"),
    ({"age": "drop"}, "none is left to learn from"),
    (["age"], "give a dict from names to declarations"),
    by=lambda columns: TableEncoder(columns).fit({"age": [1.0]}),
)


def test_tables_that_are_none_are_refused() -> None:
    twice = pandas.DataFrame([[1, 2]], columns=["a", "a"]), "rename one of two columns that have the same name"
    lengths = {"a": [1], "b": [1, 2]}, "of one length"
    for table, words in ((np.ones((2, 2)), "give a pandas or polars"), lengths, twice):
        with pytest.raises(InvalidInput, match=words):
            TableEncoder().fit(table)
    with pytest.raises(InvalidInput, match=r"columns=\['b'\] .* name columns of the table, which has"):
        TableEncoder().fit({"a": [1], "b": [2]}).transform({"a": [1]})


# ---------------------------------------------------------------- before a private estimator


def people(n: int = 2000) -> tuple[pandas.DataFrame, np.ndarray]:
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({"age": rng.uniform(18, 90, n), "sex": rng.choice(["f", "m"], n)})
    return frame, np.where((frame["sex"] == "f") ^ (rng.random(n) < 0.1), "yes", "no")


def test_it_is_harmless_before_a_private_estimator() -> None:
    frame, y = people()
    encoder = TableEncoder({"age": (18, 90), "sex": ["f", "m"]}).fit(frame)
    assert list(_learners(encoder)) == [] and list(_learners(make_pipeline(encoder, StandardScaler()))) != []
    model = PrivateClassifier(epsilon=1.0, classes=["no", "yes"], bounds=encoder.bounds_)
    pipeline = make_pipeline(encoder, model).fit(frame, y)  # warnings are errors here
    assert pipeline[-1].privacy_.leaks == () and pipeline.score(frame, y) > 0.8

    class Learning(TableEncoder):
        pass

    assert list(_learners(Learning())) == ["Learning"]  # a subclass may learn


@pytest.mark.parametrize("kind", [PrivateClassifier, PrivateRegressor])
def test_an_estimator_says_what_to_declare_of_a_frame(kind: Any) -> None:
    frame, y = people(50)
    frame["when"] = pandas.Timestamp("2020-01-01")
    target = y if kind is PrivateClassifier else np.arange(50.0)
    with pytest.raises(InvalidInput, match=r"X=\"columns \['sex', 'when'\]\" .* make_pipeline\(TableEncoder") as error:
        kind(epsilon=1.0).fit(frame, target)
    assert "could not convert" not in str(error.value) and error.value.__context__ is None
    with pytest.raises(InvalidInput, match="'when'"):  # alone it would have become nanoseconds
        kind(epsilon=1.0).fit(frame[["when"]], target)


def test_frames_of_numbers_go_on_as_before() -> None:
    frame, y = people(300)
    numbers = pandas.DataFrame({"age": frame["age"], "f": frame["sex"] == "f", "o": frame["age"].astype(object)})
    model = PrivateClassifier(epsilon=5.0, classes=["no", "yes"], bounds=(0, 90), algorithm="dp_gd", scale="none")
    assert model.fit(numbers, y).n_features_in_ == 3
