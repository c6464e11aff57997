"""One column of a table: its entries have one reading, by what was declared, or a refusal; none depends on another.

pandas gives a column the type that all of its entries fit, and finds entries equal that are written differently: both
would let one record decide how all others become numbers, which no clip bounds.
"""

import csv
import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from command_line import prepared as rows_of
from refusals import refuses

from isthmus.base.validate import InvalidInput
from isthmus.runs.prepare import PreparedRows
from isthmus.tables.columns import _as_days, day, number
from isthmus.tables.encode import encode, encode_target
from isthmus.tables.files import ParquetColumns, read
from isthmus.tables.infer import infer
from isthmus.tables.rows import numbers_of
from isthmus.tables.schema import Column, Schema, Target

# ---------------------------------------------------------------- numbers in text


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


@pytest.mark.parametrize("word", ["1,5", "12 kg", ">100", "1.2.3", "(7", "2-", "1,00,000"])
def test_an_entry_with_digits_is_never_missing_without_a_word(word: str) -> None:
    schema = Schema((Column("a", "number", bounds=(0, 9)),))
    with pytest.raises(
        InvalidInput, match="columns.a='number' .* some of its entries are written with other signs"
    ) as error:
        encode(pandas.DataFrame({"a": ["1", "2", "3", word]}), schema)
    assert word not in str(error.value)
    assert encode(pandas.DataFrame({"a": ["1", "unknown", "n/a", "3"]}), schema)[:, 0].tolist() == [1, 4.5, 4.5, 3]


MARKED = [
    (["44.4k", "1.5M", "900"], [44_400, 1_500_000, 900]),
    (["(817)", "12", "($3.5)"], [-817, 12, -3.5]),
    (["729.5-", "1,200-", "8"], [-729.5, -1200, 8]),
    (["12 USD", "USD 7", "9"], [12, 7, 9]),
    (["91.7%", "(8%)", "0"], [91.7, -8, 0]),
    (["91.7%", ".237"], None),
    (["12 USD", "7 EUR"], None),
]


@pytest.mark.parametrize(("words", "numbers"), MARKED)
def test_numbers_with_marks_are_read_as_they_are_or_refused(words: list[str], numbers: list[float] | None) -> None:
    """Declared or not: one unit in a column, or none."""
    values = pandas.Series(words * 10, dtype=object)
    column = replace(infer("a", values).column, bounds=(-1e9, 1e9))
    assert column.type == "number"
    if numbers is None:
        with pytest.raises(InvalidInput, match="columns.a='number' .* write all of its entries in one unit"):
            encode({"a": values}, Schema((column,)))
        return
    assert encode({"a": values}, Schema((column,)))[: len(words), 0].tolist() == numbers
    labels, _ = encode_target(np.array(["3-", "(3)"], dtype=object), Target("y", "classification", ("3-", "-3", "(3)")))
    assert labels.tolist() == ["3-", "(3)"]  # of marks no number is made


def test_units_that_are_not_read_are_noted_by_their_column() -> None:
    guess = infer("weight", pandas.Series([f"{k % 9} kg" for k in range(60)]))
    assert guess.column.type == "hash" and "many of its entries are numbers" in guess.why
    guess = infer("weight", pandas.Series([f"{k} kg" for k in range(60)]))
    assert guess.column.type == "drop" and "many of its entries are numbers" in guess.why


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


# ---------------------------------------------------------------- tables written in every style


MADE = {
    "price": lambda rng: rng.lognormal(3, 2, 60).round(2),
    "ratio": lambda rng: rng.uniform(0, 1, 60).round(3),
    "weight": lambda rng: rng.uniform(10, 999, 60).round(3),
    "people": lambda rng: rng.integers(1, 10**7, 60).astype(float),
    "balance": lambda rng: rng.normal(0, 5000, 60).round(1),
    "count": lambda rng: rng.integers(0, 900, 60).astype(float),
}
STYLES = [
    (separator, decimal, thousands)
    for separator, decimal, thousands in itertools.product(",;\t|", ".,", ["", ".", ",", "'", "\u202f"])
    if thousands != decimal
]


def written(value: float, decimal: str, thousands: str) -> str:
    """A number as a spreadsheet writes it: three digits a group, as many decimals as it has."""
    whole, _, rest = f"{value:,.3f}".partition(".")
    rest = rest.rstrip("0")
    return whole.replace(",", thousands) + (decimal + rest if rest else "")


def write(path: Path, columns: dict[str, np.ndarray], separator: str, decimal: str, thousands: str) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow([*columns, "y"])
        for k in range(60):
            entries = [written(values[k], decimal, thousands) if k % 17 else "" for values in columns.values()]
            writer.writerow([*entries, k % 2])


def rows_read(path: Path, **options: Any) -> np.ndarray:
    return np.asarray(rows_of(path, target="y", classes=["0", "1"], **options).x)


def expected(columns: dict[str, np.ndarray]) -> np.ndarray:
    rows = np.column_stack(list(columns.values()))
    rows[::17] = 0.0  # nothing was there
    return rows


@pytest.mark.parametrize(("separator", "decimal", "thousands"), STYLES)
def test_a_style_is_read_exactly_or_refused(tmp_path: Path, separator: str, decimal: str, thousands: str) -> None:
    rng = np.random.default_rng(3)
    columns = {name: make(rng) for name, make in MADE.items()}
    path = tmp_path / "t.csv"
    write(path, columns, separator, decimal, thousands)
    assert np.array_equal(rows_read(path, decimal=decimal), expected(columns))
    ranges = {name: [-1e9, 1e9] for name in columns}
    assert np.array_equal(rows_read(path, decimal=decimal, columns=ranges), expected(columns))
    refused = []
    for given in ({}, {"columns": ranges}):
        try:
            assert np.array_equal(rows_read(path, **given), expected(columns))
        except InvalidInput as error:
            assert "--decimal" in str(error)
            refused.append(error)
    comma = "," in (decimal, thousands)
    assert len(refused) == (2 if decimal == "," or (comma and separator != ",") else 0)


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize(("separator", "decimal", "thousands"), STYLES[::3])
def test_a_column_alone_too(tmp_path: Path, name: str, separator: str, decimal: str, thousands: str) -> None:
    """Without others that would give the style away."""
    columns, path = {name: MADE[name](np.random.default_rng(4))}, tmp_path / "t.csv"
    write(path, columns, separator, decimal, thousands)
    if name != "weight" or (separator, decimal) != (",", ","):  # there 31,275 counts as a thousand: the docs say so
        try:
            assert np.array_equal(rows_read(path), expected(columns))
        except InvalidInput as error:
            assert "--decimal" in str(error)
    assert np.array_equal(rows_read(path, decimal=decimal), expected(columns))


# ---------------------------------------------------------------- dates


MIXED = ["01/02/2024", "01/13/2024", "02/01/2024"]


def dated(form: str = "") -> Column:
    return Column("when", "date", bounds=(10957, 22279), format=form)


def test_mixed_dates_are_never_read_two_ways() -> None:
    """01/02 once was the first of February, and 01/13 in the next row the thirteenth of January."""
    frame = pandas.DataFrame({"when": MIXED})
    with pytest.raises(InvalidInput, match=r"columns.when='date' .* another format than ISO .*--date-format 'when="):
        encode(frame, Schema((dated(),)))
    with pytest.raises(InvalidInput, match="another format than %d/%m/%Y"):  # 13 is no month
        encode(frame, Schema((dated("%d/%m/%Y"),)))
    days = encode(frame, Schema((dated("%m/%d/%Y"),)))[:, 0]
    assert days.tolist() == [day("2024-01-02"), day("2024-01-13"), day("2024-02-01")]


@pytest.mark.parametrize("word", ["31.12.2019", "12/31/2019", "5 May 2020", "20", "1577836800", "2020", "12:30"])
def test_a_date_that_is_not_iso_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match="another format than ISO"):
        encode(pandas.DataFrame({"when": ["2020-01-01", word]}), Schema((dated(),)))
    missing = encode(pandas.DataFrame({"when": ["2020-01-01", "soon", None]}), Schema((dated(),)))
    assert missing[1:, 0].tolist() == [(10957 + 22279) / 2] * 2


def test_whole_numbers_are_no_dates_unless_they_are_written_so() -> None:
    assert encode(pandas.DataFrame({"when": [20240102, 20240103]}), Schema((dated(),)))[0, 0] == day("2024-01-02")
    with pytest.raises(InvalidInput, match="another format than ISO"):  # seconds since 1970 were all missing
        encode(pandas.DataFrame({"when": [1577836800, 1577836801]}), Schema((dated(),)))


def test_formats_survive_toml_and_wrong_ones_are_refused() -> None:
    schema = Schema((dated("%d.%m.%y %H:%M"),))
    assert Schema.from_toml(schema.to_toml()) == schema and "written as %d.%m.%y" in schema.columns[0].words()
    for form in ("%d/%m", "day first", "%Y-%Q-%d", "dmy"):
        with pytest.raises(InvalidInput, match=r"columns.a.format=.* give a format such as %d/%m/%Y"):
            Schema.from_toml(f'[columns.a]\ntype = "date"\nbounds = ["2010-01-01", "2011-01-01"]\nformat = "{form}"')


FORMATS = [
    (["31/12/2019", "01/02/2020"], "%d/%m/%Y"),
    (["12/31/2019", "01/02/2020"], "%m/%d/%Y"),
    (["31.12.2019", "01.02.2020"], "%d.%m.%Y"),
    (["31.12.2019 23:59", "01.02.2020 00:00"], "%d.%m.%Y %H:%M"),
    (["Dec 31 2019", "Feb 1 2020"], "%b %d %Y"),
    (["31-Dec-2019", "01-Feb-2020"], "%d-%b-%Y"),
    (["December 31, 2019", "February 1, 2020"], "%B %d, %Y"),
    (["2019-12-31", "2020/02/01"], ""),
]


@pytest.mark.parametrize(("values", "form"), FORMATS)
def test_public_rows_tell_the_format_where_one_fits(values: list[str], form: str) -> None:
    found = infer("when", pandas.Series(values), public=True).column
    assert found.format == form and found.bounds == tuple(sorted(_as_days(pandas.Series(values), form)))


test_public_rows_that_do_not_tell_are_refused = refuses(
    (["01/02/2019", "03/04/2020"], "and .* fit all"),
    (["31/12/2019", "12/31/2019"], "no single format"),
    by=lambda values: infer("when", pandas.Series(values), public=True),
)


PRIVATE = [MIXED, ["Jan 1 2000", "Feb 1 2000"], ["31.12.19", "01.01.20"], ["2020-01-02", "2021-05-06"]]


@pytest.mark.parametrize("values", [*PRIVATE, pandas.to_datetime(["2020-01-02", "2021-05-06"])])
def test_private_rows_are_refused_with_the_options(values: Any) -> None:
    words = r'--drop "when"\), or declare its public range \(--bounds "when=2010-01-01'
    if isinstance(values, list) and values in PRIVATE[:3]:
        words += '.*they are not ISO .*--date-format "when=%d/%m/%Y"'
    with pytest.raises(InvalidInput, match=words):
        infer("when", pandas.Series(values))


TYPED = [
    pandas.to_datetime(["2020-01-01T12:00", None]),
    pandas.to_datetime(["2020-01-01T14:00+02:00", None], utc=True).tz_convert("Asia/Tokyo"),
    pandas.Series([pandas.Timestamp("2020-01-01T12:00"), None], dtype=object),
    np.array(["2020-01-01T12:00", "NaT"], dtype="datetime64[s]"),
]


@pytest.mark.parametrize("values", TYPED)
def test_dates_by_type_need_no_format(values: Any) -> None:
    for form in ("", "%d/%m/%Y"):
        days = _as_days(pandas.Series(values), form)
        assert days[0] == 18262.5 and np.isnan(days[1])


# ---------------------------------------------------------------- entries in company


KOLKATA = timezone(timedelta(hours=5, minutes=30))
BIG = [2**53 + 1 + 2 * k for k in range(6)]
HASH, ABSENT = {"type": "hash", "buckets": 1000}, {"absent": ["1", "1e3"], "missing": "indicator"}
DATES = {"type": "date", "bounds": ["1800-01-01", "2100-01-01"], "missing": "indicator", "absent": ["2000-05-05"]}
TABLES: dict[str, Callable[[list[Any]], Any]] = {
    "pandas": lambda entries: pandas.DataFrame({"a": entries}),
    "dict": lambda entries: {"a": entries},
}
ENTRIES: dict[str, tuple[list[Any], Any, Any]] = {
    "truth before numbers, words": ([1, 1, 2], True, ["1", "2"]),
    "truth before numbers, hashed": ([1, 1, 2], True, HASH),
    "numbers before truth": ([True, False], 1, HASH),
    "a decimal before numbers": ([1, 1, 2], Decimal("1.00"), HASH),
    "two decimals": ([Decimal("1.0")] * 3, Decimal("1.00"), HASH),
    "a decimal that is a float": ([0.1, 0.2], Decimal(0.1), HASH),
    "one moment in two zones": ([datetime(2024, 1, 1, tzinfo=UTC)], datetime(2024, 1, 1, 5, 30, tzinfo=KOLKATA), HASH),
    "large numbers and a missing one": (BIG, None, HASH),
    "large numbers and a word": (BIG, "x", HASH),
    "large words and a missing number": (BIG, None, [str(BIG[0])]),
    "declared missing, truth values": ([True, False, True], None, {"type": "bool", **ABSENT}),
    "declared missing, numbers": ([1000.0, 2.0, 3.0], "x", {"bounds": [0, 2000], **ABSENT}),
    "declared missing, decimals": ([1000.0, 2.0, 3.0], Decimal(7), {"bounds": [0, 2000], **ABSENT}),
    "declared missing, dates": ([pandas.Timestamp("2000-05-05"), pandas.Timestamp("2024-01-02")] * 2, "x", DATES),
    "dates with a time": ([pandas.Timestamp("1960-03-01 01:02:03.123456789")] * 3, "x", DATES),
    "dates of a zone": ([pandas.Timestamp("2024-03-01 01:02:03", tz=KOLKATA)] * 3, "x", DATES),
    "numbers that numpy made": ([np.float32(0.5)] * 3, "x", {"bounds": [0, 1], "decimal": ",", "thousands": "."}),
    "numbers beyond float64": ([1, 2, 3], 10**400, HASH),
}


def others_read_alike(make: Callable[[list[Any]], Any], entries: list[Any], extra: Any, declared: Any, at: int) -> bool:
    """Whether one more entry leaves all others as they were; refused tables release nothing."""
    schema = Schema.from_dict({"columns": {"a": declared}})
    try:
        rows, more = (encode(make(column), schema) for column in (entries, [*entries[:at], extra, *entries[at:]]))
    except InvalidInput:
        return True
    return np.array_equal(rows, np.delete(more, at, axis=0))


@pytest.mark.parametrize("name", ENTRIES)
@pytest.mark.parametrize("table", TABLES)
def test_one_entry_more_changes_no_other(name: str, table: str) -> None:
    entries, extra, declared = ENTRIES[name]
    for at in (0, len(entries)):
        assert others_read_alike(TABLES[table], entries, extra, declared, at)
    rows = encode(TABLES[table]([*entries, extra]), Schema.from_dict({"columns": {"a": declared}}))
    assert len(rows) == len(entries) + 1  # none of these is refused


POOL: list[Any] = [0, 1, 2, 999, -1, *BIG[:2], 2**63, 2**64 + 5, 10**25, 0.0, 1.0, 1.5, 0.1, 1e20, 1e-7, float("inf")]
POOL += [True, False, np.int64(1), np.float32(0.1), np.True_, Decimal("1"), Decimal("1.00"), Decimal(0.1), None]
POOL += ["1", "1.0", "true", "x", "", "NA", "999", "2024-01-01", "1e3", float("nan"), pandas.NA, pandas.NaT]
POOL += [
    date(2000, 5, 5),
    datetime(2024, 1, 1),
    datetime(2024, 1, 1, tzinfo=KOLKATA),
    pandas.Timestamp("1930-02-03 4:05"),
]
DECLARED: list[Any] = [HASH, ["1", "2", "true"], {"bounds": [-1e30, 1e30], **ABSENT}, {"type": "bool", **ABSENT}, DATES]


@pytest.mark.parametrize("table", TABLES)
def test_no_entry_of_any_type_changes_another(table: str) -> None:
    rng = np.random.default_rng(0)
    for _ in range(400):
        kinds = rng.choice(len(POOL), size=rng.integers(1, 4), replace=False)
        entries = [POOL[k] for k in rng.choice(kinds, size=rng.integers(2, 8))]
        extra, declared = POOL[rng.integers(len(POOL))], DECLARED[rng.integers(len(DECLARED))]
        at = int(rng.integers(len(entries) + 1))
        assert others_read_alike(TABLES[table], entries, extra, declared, at), (entries, extra, declared, at)


def test_categories_of_pandas_are_read_one_by_one() -> None:
    column = pandas.Series(pandas.Categorical.from_codes([1, 0, 1], [Decimal("1.00"), Decimal("2.0")]))
    rows = encode(pandas.DataFrame({"a": column}), Schema.from_dict({"columns": {"a": ["1", "2"]}}))
    assert rows.argmax(1).tolist() == [1, 0, 1]


def test_large_numbers_of_parquet_do_not_notice_a_missing_one(tmp_path: Path) -> None:
    schema = Schema.from_dict({"columns": {"a": HASH}})
    rows = []
    for name, more in (("one", []), ("two", [None])):
        path = tmp_path / f"{name}.parquet"
        pandas.DataFrame({"a": pandas.array([*BIG, *more], dtype="Int64")}).to_parquet(path, index=False)
        rows += [numbers_of(read(path).frame, schema)[: len(BIG)]]
        rows += [np.concatenate([*ParquetColumns(path).encoded(schema)])[: len(BIG)]]
    assert all(np.array_equal(rows[0], other) for other in rows[1:])


def test_labels_do_not_notice_the_type_of_another() -> None:
    target = Target("y", "classification", ("true", "1", "0"))
    labels, _ = encode_target(pandas.Series([True, 1, 0, 1]), target)
    assert labels.tolist() == ["true", "1", "0", "1"]
    large = Target("y", "classification", (str(BIG[0]), "0"))
    for column in (BIG[:1] * 2, [*BIG[:1] * 2, None]):
        assert encode_target(pandas.Series(column), large)[0].tolist() == [str(BIG[0])] * 2
