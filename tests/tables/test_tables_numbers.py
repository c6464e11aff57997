"""Numbers in text have one reading, or none and a refusal that says what to declare."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas
import pytest
from command_line import prepared as rows_of

from isthmus.base.validate import InvalidInput
from isthmus.runs.prepare import PreparedRows
from isthmus.tables.columns import number
from isthmus.tables.encode import encode
from isthmus.tables.infer import infer
from isthmus.tables.schema import Column, Schema


def prepared(path: Path, text: str, **options: object) -> PreparedRows:
    path.write_text(text, encoding="utf-8")
    return rows_of(path, **{"target": "y", "classes": ["0", "1"], **options})


@pytest.mark.parametrize("first", ["0.338", "1.000", "31.275", "123.456"])
def test_three_decimals_are_never_thousands(tmp_path: Path, first: str) -> None:
    """One entry with three decimals once made the whole column a thousand times larger."""
    entries = [first, "31.275", "2.5", "7", "120.001"] * 20
    text = "a,y\n" + "".join(f"{entry},{k % 2}\n" for k, entry in enumerate(entries))
    begun = prepared(tmp_path / "t.csv", text)
    assert begun.x[:, 0].tolist() == [float(entry) for entry in entries]


POINT = {"1.234": 1.234, "1,234": 1234, "12,345,678.9": 12345678.9, "1'234'567.5": 1234567.5, "-$1,200": -1200}
POINT |= {"\u22123": -3, "45 %": 45, **dict.fromkeys(("1,5", "0,338", "1,23,456", "1,234.567.8"))}
POINT |= dict.fromkeys(("1'234 567", "12 kg", "(12)", "1_000", ""))  # no group of thousands begins with 0
COMMA = {"1.234,5": 1234.5, "1.234": 1234, "1,5": 1.5, ",5": 0.5, "5,": 5, "1,5e-3": 0.0015, "1\u202f234,5": 1234.5}
COMMA |= dict.fromkeys(("0.338", "1.5", ".", "e5"))


@pytest.mark.parametrize(
    ("decimal", "thousands", "words"), [(".", None, POINT), (",", None, COMMA), (".", "", {"1,234": None})]
)
def test_a_number_is_read_by_declared_signs(
    decimal: str, thousands: str | None, words: dict[str, float | None]
) -> None:
    found = {word: number(word, decimal, thousands) for word in words}
    assert {word: None if math.isnan(value) else value for word, value in found.items()} == words


@pytest.mark.parametrize("decimal", [".", ","])
def test_numbers_read_as_they_were_written(rng: np.random.Generator, decimal: str) -> None:
    other = {".": ",", ",": "."}[decimal]
    for value in [*rng.integers(-(10**9), 10**9, 200), *(rng.normal(size=200) * 10.0 ** rng.integers(-3, 7, 200))]:
        text = repr(float(value)) if isinstance(value, float) else f"{value:,}"
        text = text.translate(str.maketrans(".,", decimal + other))
        assert number(text, decimal) == float(value)


SEMICOLONS = "a;b;y\n" + "1,5;x;0\n2,25;z;1\n" * 30


def test_a_decimal_comma_is_declared_or_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"decimal=.* give --decimal , where the comma in entries of the column 'a'"):
        prepared(tmp_path / "t.csv", SEMICOLONS)
    begun = prepared(tmp_path / "t.csv", SEMICOLONS, decimal=",")
    assert begun.x[:2, 0].tolist() == [1.5, 2.25]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_comma_between_three_digits_has_two_readings(tmp_path: Path, separator: str) -> None:
    """1,234 in a file of semicolons may be 1.234: nothing but a declaration tells."""
    text = "a,y\n1,234,0\n2,345,1\n".replace(",y", f"{separator}y").replace(",0\n", f"{separator}0\n")
    text = text.replace(",1\n", f"{separator}1\n")
    rows = "".join(text.split("\n", 1)[1] for _ in range(20))
    text = text.split("\n", 1)[0] + "\n" + rows
    with pytest.raises(InvalidInput, match="give --decimal , where the comma in entries"):
        prepared(tmp_path / "t.csv", text)
    with pytest.raises(InvalidInput, match=r"columns.a='number' .* some of its entries are written with other signs"):
        prepared(tmp_path / "t.csv", text, columns={"a": [0, 9]})
    assert prepared(tmp_path / "t.csv", text, decimal=",").x[0, 0] == 1.234
    assert prepared(tmp_path / "t.csv", text, decimal=".").x[0, 0] == 1234


def test_semicolons_with_points_need_nothing(tmp_path: Path) -> None:
    begun = prepared(tmp_path / "t.csv", "a;b;y\n" + "0.076;0.998;0\n7.4;3.511;1\n" * 30)
    assert begun.x[:2].tolist() == [[0.076, 0.998], [7.4, 3.511]]


def test_the_target_has_the_same_signs(tmp_path: Path) -> None:
    text = "a;y\n" + "".join(f"{k};{k % 7},{k % 10}5\n" for k in range(60))
    options = {"classes": None, "bounds": [0, 60]}
    with pytest.raises(InvalidInput, match="comma in entries of the column 'y'"):  # it was taken for a classification
        prepared(tmp_path / "t.csv", text, **options)
    with pytest.raises(InvalidInput, match=r"columns.y='number' .* other signs than the decimal sign '\.'"):
        prepared(tmp_path / "t.csv", text, task="regression", **options)  # the rows were left out, all of them
    assert prepared(tmp_path / "t.csv", text, decimal=",", **options).y[1] == 1.15


def test_a_target_that_is_mostly_no_number_is_refused(tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"{k},{'high' if k % 3 else k}\n" for k in range(60))
    with pytest.raises(InvalidInput, match="columns.y='number' .* more than half of its entries are no number"):
        prepared(tmp_path / "t.csv", text, classes=None, task="regression")


@pytest.mark.parametrize("word", ["1,5", "12 kg", ">100", "1.2.3", "(7)", "1,00,000"])
def test_an_entry_with_digits_is_never_missing_without_a_word(word: str) -> None:
    schema = Schema((Column("a", "number", bounds=(0, 9)),))
    with pytest.raises(
        InvalidInput, match="columns.a='number' .* some of its entries are written with other signs"
    ) as error:
        encode(pandas.DataFrame({"a": ["1", "2", "3", word]}), schema)
    assert word not in str(error.value)
    assert encode(pandas.DataFrame({"a": ["1", "unknown", "n/a", "3"]}), schema)[:, 0].tolist() == [1, 4.5, 4.5, 3]


def test_numbers_that_are_no_text_keep_their_value() -> None:
    """A column of objects holds numbers beside text: the signs of text are not for them."""
    column = Column("a", "number", decimal=",")
    values = pandas.Series([1.234, "1,5", 7, None], dtype=object)
    assert encode(pandas.DataFrame({"a": values}), Schema((column,)))[:, 0].tolist() == [1.234, 1.5, 7, 0]


def test_signs_of_thousands_must_not_be_the_decimal_sign() -> None:
    for text in ('[columns.a]\nthousands = "."', '[columns.a]\nthousands = ","\ndecimal = ","'):
        with pytest.raises(InvalidInput, match="columns.a.thousands=.* it is the decimal sign too"):
            Schema.from_toml(text)
    column = infer("a", pandas.Series(["1.200,5", "12,1", "7.000.000"]), decimal=",").column
    assert (column.thousands, column.decimal) == (".", ",")
    assert Schema.from_toml(Schema((column,)).to_toml()).columns == (column,)


def test_predictions_judge_signs_by_their_own_file(tmp_path: Path) -> None:
    schema = Schema((Column("a", "number"),))
    frame = pandas.DataFrame({"a": ["1,234"]})
    assert encode(frame, schema.read_by(",")) == encode(frame, schema.read_by(None)) == 1234
    with pytest.raises(InvalidInput, match="other signs"):
        encode(frame, schema.read_by(";"))
    told = Schema((Column("a", "number", thousands=","),))
    assert encode(frame, told.read_by(";")) == 1234
