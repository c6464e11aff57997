"""Columns become numbers row by row, by rules that look at no other row; schemas survive TOML."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from messy import rows
from refusals import refuses

from isthmus.base.validate import InvalidInput
from isthmus.tables.columns import _as_days, _bucket, as_numbers, as_words
from isthmus.tables.encode import bounds_of, encode, encode_target
from isthmus.tables.infer import infer
from isthmus.tables.schema import Column, Schema, Target

SCHEMA = Schema.from_toml(
    """
    [target]
    name = "y"
    task = "classification"
    classes = ["no", "yes"]

    [columns]
    age = [0, 100]
    sex = ["f", "m"]
    city = "hash"
    gone = "drop"
    member = "bool"

    "pay / month" = {type = "number", missing = "indicator", fill = -1}
    joined = {type = "date", bounds = ["2020-01-01", "2020-12-31"]}
    """
)
FRAME = {
    "age": [50, None, 300.0, "?"],
    "sex": ["f", None, " m ", "x"],
    "city": ["Łódź", "Łódź", "東京", ""],
    "member": ["yes", "FALSE", None, "1"],
    "pay / month": ["1,234.5", "n/a", "$ 20", "12"],
    "joined": ["2020-01-02", "2019/12/31", None, "2020-01-31 12:00"],
}


def test_each_type_of_column_is_encoded() -> None:
    encoded = pandas.DataFrame(encode(pandas.DataFrame(FRAME), SCHEMA), columns=SCHEMA.features)
    assert encoded["age"].tolist() == [50, 50, 100, 50]  # the middle where nothing is, clipped to the range
    assert encoded[["sex=f", "sex=m", "sex=(other)", "sex=(missing)"]].to_numpy().tolist() == [
        [1, 0, 0, 0],
        [0, 0, 0, 1],
        [0, 1, 0, 0],
        [0, 0, 1, 0],
    ]
    hashed = encoded[[name for name in SCHEMA.features if name.startswith("city")]].to_numpy()
    assert hashed.shape[1] == 17 and hashed.sum(1).tolist() == [1, 1, 1, 1]
    assert hashed.argmax(1).tolist() == [_bucket("city", "Łódź", 16)] * 2 + [_bucket("city", "東京", 16), 16]
    assert encoded["member"].tolist() == [1, 0, 0.5, 1]
    assert encoded["pay / month"].tolist() == [1234.5, -1, 20, 12]
    assert encoded["pay / month (missing)"].tolist() == [0, 1, 0, 0]
    first = (pandas.Timestamp("2020-01-01") - pandas.Timestamp("1970-01-01")).days
    assert encoded["joined"].tolist() == [first + 1, first, first + 182.5, first + 30.5]


def test_a_row_is_encoded_alike_in_every_company() -> None:
    """The one property that makes encoding free: no other row matters."""
    frame = pandas.DataFrame(FRAME)
    whole = encode(frame, SCHEMA)
    for i in range(len(frame)):
        assert (encode(frame.iloc[[i]], SCHEMA) == whole[i]).all()
    assert (encode(frame.iloc[::-1], SCHEMA) == whole[::-1]).all()


def test_public_ranges_of_the_encoded_columns() -> None:
    low, high = bounds_of(SCHEMA)
    places = dict(zip(SCHEMA.features, zip(low, high, strict=True), strict=True))
    assert places["age"] == (0, 100) and places["sex=f"] == places["city#3"] == places["member"] == (0, 1)
    assert all(math.isnan(end) for end in places["pay / month"]) and places["pay / month (missing)"] == (0, 1)


def test_a_schema_survives_toml() -> None:
    assert Schema.from_toml(SCHEMA.to_toml()) == SCHEMA
    strange = Column('a "quoted"\\ name\nof\tcolumns.é\x01', "category", categories=("x,y", "", "ü"))
    assert Schema.from_toml(Schema((strange,)).to_toml()).columns == (strange,)


test_wrong_schemas_are_refused_with_their_place = refuses(
    ('[columns.a]\ntype = "numbr"', "columns.a.type='numbr' is not allowed: choose one of"),
    ("[columns.a]\nbound = [0, 1]", "columns.a.bound=.* did you mean 'bounds'"),
    ("[columns]\na = [3, 1]", "columns.a.bounds=.* give low < high"),
    ("[columns]\na = [1, 2, 3]", "columns.a.bounds=.* give a range"),
    ('[columns]\na = ["x", "x"]', "columns.a.categories=.* give each word once"),
    ('[columns.a]\ntype = "date"', "columns.a.bounds=None is not allowed: give the public range"),
    ('[columns.a]\ntype = "hash"\nbuckets = 0', "columns.a.buckets=0"),
    ('[columns.a]\ntype = "bool"\nbounds = [0, 1]', "columns.a.bounds=.* choose from"),
    ('[target]\nname = "y"\ntask = "ranking"', "target.task='ranking'"),
    ('[target]\nname = "y"\ndecimal = ""', "target.decimal='' is not allowed: give one character"),
    ('[columns.a]\nthousands = ".."', "columns.a.thousands='..' is not allowed: give one character"),
    ("[colums]\na = 1", "did you mean 'columns'"),
    ("a = [", "it is not valid TOML"),
    by=Schema.from_toml,
)


def test_missing_and_unreadable_columns_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"columns=\['b'\] is not allowed: name columns of the table, which has 'a'"):
        encode(pandas.DataFrame({"a": [1]}), Schema((Column("a", "number"), Column("b", "number"))))
    with pytest.raises(InvalidInput, match="columns.a='number' .* more than half of its entries are no number"):
        encode(pandas.DataFrame({"a": ["x", "y", "3"]}), Schema((Column("a", "number"),)))


GUESSED: dict[str, list[list[Any]]] = {
    "number": [[1, 2, 2], [1.5, None, 2], ["0", "1", "1"], ["1", "2.5", "-3e4"], ["1", "", "2"], ["0", "0.5", "10"]],
    "numbers": [["0.338", "31.275", "1.5"], ["0.338", "0.412", "0.001"], ["1.234", "5.678"], ["$12.50", "€ 3", "4%"]],
    "bool": [[True, False, True], ["yes", "No", None], ["yes", "0", "1"]],
    "hash": [["a", "b", "a"], ["01234", "80331", "00501"]],
    "drop": [[None, None, None], [[1], [2], [3]], ["x" * 50, "y" * 50, "z" * 50]],
}


@pytest.mark.parametrize("kind", GUESSED)
def test_types_are_guessed(kind: str) -> None:
    for values in GUESSED[kind]:
        assert infer("a", pandas.Series(values)).column == Column("a", kind.removesuffix("s"), source="data"), values
    for values in (["1,200", "12", "7,000,000.5"], ["1'200", "12", "7'000"]):
        guess = infer("a", pandas.Series(values))
        assert guess.column == Column("a", "number", source="data") and "signs between thousands" in guess.why
        assert as_numbers(pandas.Series(values), guess.column)[0] == 1200


def test_a_decimal_comma_is_no_thousand() -> None:
    values = pandas.Series(["1,234", "2,5", "?"])
    column = infer("a", values, decimal=",").column
    assert (column.type, column.thousands, column.decimal) == ("number", ".", ",")
    assert as_numbers(values, column)[:2].tolist() == [1.234, 2.5]


@pytest.mark.parametrize("name", ["id", "customer_id", "Unnamed: 0", "UUID", "Index"])
def test_identifiers_are_left_out(name: str) -> None:
    for values in ([5, 9, 3], ["x1", "x2", "x3"], ["5", "9", "3"]):
        assert infer(name, pandas.Series(values)).column.type == "drop"
    for values in ([5, 5, 3], [0.5, 9, 3], ["0.5", "9", "3"]):  # not one of its own for every row, or not whole
        assert infer(name, pandas.Series(values)).column.type == "number"
    assert infer("paid", pandas.Series([5, 9, 3])).column.type == "number"


def test_private_rows_never_give_words_or_ranges() -> None:
    private = pandas.DataFrame(rows(300)).drop(columns="joined")
    for name in private:
        column = infer(name, private[name]).column
        assert column.bounds is None and column.categories == () and column.buckets == 16


def test_public_rows_give_words_and_ranges() -> None:
    public = pandas.DataFrame(rows(300))
    by_name = {name: infer(name, public[name], public=True).column for name in public}
    assert by_name["sex"].categories == ("female", "male") and by_name["sex"].source == "public"
    assert by_name["city"].type == "category" and "東京" in by_name["city"].categories
    income = as_numbers(public["income"], by_name["income"])
    assert by_name["income"].bounds == (np.nanmin(income), np.nanmax(income))
    assert by_name["joined"].type == "date" and by_name["customer_id"].type == "drop"


def test_numbers_and_words_read_alike_from_text_and_numbers() -> None:
    column = Column("a", "number")
    assert as_numbers(pandas.Series(["1", "2.5", "", "inf", "1_000"]), column)[:2].tolist() == [1, 2.5]
    assert np.isnan(as_numbers(pandas.Series(["", "inf", "1_000"]), column)).all()
    assert as_words(pandas.Series([1.0, 2.5, None]))[0].tolist() == ["1", "2.5", ""]
    assert as_words(np.array([1.0, -1.0]))[0].tolist() == ["1", "-1"]
    assert as_words(pandas.Series([True, False]))[0].tolist() == ["true", "false"]


def test_dates_with_and_without_a_zone() -> None:
    first = 18262.0  # 2020-01-01
    text = ["2020-01-01", "2020-01-01T12:00:00Z", "2020-01-01T12:00:00+12:00", "2020/1/1", None, "soon"]
    assert _as_days(pandas.Series(text))[:4].tolist() == [first, first + 0.5, first, first]
    assert np.isnan(_as_days(pandas.Series(text))[4:]).all()


def test_dates_are_read_one_by_one() -> None:
    """pandas takes the unit of a column from its finest entry, and the range with it."""
    text = ["9999-12-31", "2024-01-01T00:00:00.123456789", "0001-01-01", "2024-2-1", "2024/01/02"]
    days = _as_days(pandas.Series(text))
    assert days[[0, 2, 3, 4]].tolist() == [2932896, -719162, 19754, 19724]
    assert days[1] == pytest.approx(19723 + 0.123456 / 86400, abs=1e-12)
    assert all(_as_days(pandas.Series([word]))[0] == day for word, day in zip(text, days, strict=True))
    assert np.isnan(_as_days(pandas.Series(["now", "today", "12:30", "soon", "-"]))).all()  # no date of their own
    assert _as_days(pandas.Series([20240102.0, None]))[0] == 19724


def test_truth_values_are_numbers_between_0_and_1() -> None:
    schema = Schema((Column("a", "bool"),))
    for values in (["2", "0.0", "1", "-3", "yes"], [2.0, 0.0, 1.0, -3.0, 1.0]):
        assert encode(pandas.DataFrame({"a": values}), schema)[:, 0].tolist() == [1, 0, 1, 0, 1]


def test_missing_integers_and_truth_values_of_parquet() -> None:
    frame = pandas.DataFrame({"a": pandas.array([1, None], "Int64"), "b": pandas.array([True, None], "boolean")})
    schema = Schema((Column("a", "number", missing="indicator"), Column("b", "bool")))
    assert encode(frame, schema).tolist() == [[1, 0, 1], [0, 1, 0.5]]
    assert infer("a", frame["a"]).column.type == "number" and infer("b", frame["b"]).column.type == "bool"


def test_targets() -> None:
    labels, kept = encode_target(pandas.Series(["yes", " no", None]), Target("y", "classification", ("no", "yes")))
    assert labels.tolist() == ["yes", "no"] and kept.tolist() == [True, True, False]
    with pytest.raises(InvalidInput, match=r"classes=\['no', 'yes'\] .* some rows have other labels") as error:
        encode_target(pandas.Series(["secret"]), Target("y", "classification", ("no", "yes")))
    assert "secret" not in str(error.value)
    cases = ((("0", "1"), ["1.0", "0"], [1.0, 0.0]), (("false", "true"), ["True", "false"], [True, False]))
    for classes, written, typed in cases:
        for column in (written, typed):
            found, _ = encode_target(pandas.Series(column), Target("y", "classification", classes))
            assert found.tolist() == list(classes[::-1])
    exact = Target("y", "classification", ("01", "1"))
    assert encode_target(pandas.Series(["1", "01", "1.0"]), exact)[0].tolist() == ["1", "01", "01"]
    numbers, kept = encode_target(pandas.Series([1, None, 99]), Target("y", "regression", None, (0, 10)))
    assert numbers.tolist() == [1, 99] and kept.tolist() == [True, False, True]  # an estimator clips what it learns


@pytest.mark.parametrize("typed", [True, False])
def test_entries_that_were_declared_missing(typed: bool) -> None:
    """-999 is a number like any other unless somebody says so; a declared word stays a word."""
    schema = Schema.from_toml(
        """
        [columns]
        a = {bounds = [0, 10], missing = "indicator", absent = [-999, "refused (7)"]}
        b = {categories = ["x", "9"], absent = ["9", "z"]}
        c = {type = "hash", buckets = 2, absent = ["z"]}
        d = {type = "date", bounds = ["2020-01-01", "2020-01-03"], absent = ["9999-12-31"]}
        """
    )
    assert Schema.from_toml(schema.to_toml()) == schema
    frame = pandas.DataFrame({"a": [4.0, -999.0] if typed else ["4", "-999.0"], "b": ["9", "z"], "c": ["z", "z"]})
    frame["d"] = ["2020-01-03", "9999-12-31"]
    rows = encode(frame, schema)
    assert rows[:, :2].tolist() == [[4, 0], [5, 1]] and rows[:, 2:6].argmax(1).tolist() == [1, 3]
    assert rows[:, 6:9].argmax(1).tolist() == [2, 2] and rows[:, 9].tolist() == [18264, 18263]
    frame["a"] = ["4", "refused (7)"]
    assert encode(frame, schema)[:, :2].tolist() == [[4, 0], [5, 1]]


def test_a_table_in_the_place_of_a_schema_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    path.write_text("name,diagnosis\nzoe,flu\n")
    with pytest.raises(InvalidInput, match="^Cannot read .*patients.csv: it is not valid TOML") as refused:
        Schema.load(path)
    assert "zoe" not in str(refused.value) and "diagnosis" not in str(refused.value)


@pytest.mark.parametrize("how", [["1", "2", "0.5"], "hash"])
def test_a_complex_entry_changes_no_word_of_others(how: Any) -> None:
    schema = Schema.from_dict({"columns": {"code": how}})
    whole, odd = (encode(pandas.DataFrame({"code": [1.0, 2.0, 0.5, *more]}), schema)[:3] for more in ([], [1 + 2j]))
    assert (whole == odd).all()
