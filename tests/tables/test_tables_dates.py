"""Dates have one format a column: ISO, or the one declared; never the day first here and the month first there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas
import pytest

from isthmus.base.validate import InvalidInput
from isthmus.tables.columns import _as_days, day
from isthmus.tables.encode import encode
from isthmus.tables.infer import infer
from isthmus.tables.schema import Column, Schema

MIXED = ["01/02/2024", "01/13/2024", "02/01/2024"]


def column(form: str = "") -> Column:
    return Column("when", "date", bounds=(10957, 22279), format=form)


def test_mixed_dates_are_never_read_two_ways() -> None:
    """01/02 once was the first of February, and 01/13 in the next row the thirteenth of January."""
    frame = pandas.DataFrame({"when": MIXED})
    with pytest.raises(InvalidInput, match=r"columns.when='date' .* another format than ISO .*--date-format 'when="):
        encode(frame, Schema((column(),)))
    with pytest.raises(InvalidInput, match="another format than %d/%m/%Y"):  # 13 is no month
        encode(frame, Schema((column("%d/%m/%Y"),)))
    days = encode(frame, Schema((column("%m/%d/%Y"),)))[:, 0]
    assert days.tolist() == [day("2024-01-02"), day("2024-01-13"), day("2024-02-01")]


@pytest.mark.parametrize("word", ["31.12.2019", "12/31/2019", "5 May 2020", "20", "1577836800", "2020", "12:30"])
def test_a_date_that_is_not_iso_is_refused(word: str) -> None:
    with pytest.raises(InvalidInput, match="another format than ISO"):
        encode(pandas.DataFrame({"when": ["2020-01-01", word]}), Schema((column(),)))
    missing = encode(pandas.DataFrame({"when": ["2020-01-01", "soon", None]}), Schema((column(),)))
    assert missing[1:, 0].tolist() == [(10957 + 22279) / 2] * 2


def test_whole_numbers_are_no_dates_unless_they_are_written_so() -> None:
    assert encode(pandas.DataFrame({"when": [20240102, 20240103]}), Schema((column(),)))[0, 0] == day("2024-01-02")
    with pytest.raises(InvalidInput, match="another format than ISO"):  # seconds since 1970 were all missing
        encode(pandas.DataFrame({"when": [1577836800, 1577836801]}), Schema((column(),)))


def test_formats_survive_toml_and_wrong_ones_are_refused() -> None:
    schema = Schema((column("%d.%m.%y %H:%M"),))
    assert Schema.from_toml(schema.to_toml()) == schema and "written as %d.%m.%y" in schema.columns[0].words()
    for form in ("%d/%m", "day first", "%Y-%Q-%d", "dmy"):
        with pytest.raises(InvalidInput, match=r"columns.a.format=.* give a format such as %d/%m/%Y"):
            Schema.from_toml(f'[columns.a]\ntype = "date"\nbounds = ["2010-01-01", "2011-01-01"]\nformat = "{form}"')


@pytest.mark.parametrize(
    ("values", "form"),
    [
        (["31/12/2019", "01/02/2020"], "%d/%m/%Y"),
        (["12/31/2019", "01/02/2020"], "%m/%d/%Y"),
        (["31.12.2019", "01.02.2020"], "%d.%m.%Y"),
        (["31.12.2019 23:59", "01.02.2020 00:00"], "%d.%m.%Y %H:%M"),
        (["Dec 31 2019", "Feb 1 2020"], "%b %d %Y"),
        (["31-Dec-2019", "01-Feb-2020"], "%d-%b-%Y"),
        (["December 31, 2019", "February 1, 2020"], "%B %d, %Y"),
        (["2019-12-31", "2020/02/01"], ""),
    ],
)
def test_public_rows_tell_the_format_where_one_fits(values: list[str], form: str) -> None:
    found = infer("when", pandas.Series(values), public=True).column
    assert found.format == form and found.bounds == tuple(sorted(_as_days(pandas.Series(values), form)))


@pytest.mark.parametrize(
    ("values", "words"),
    [(["01/02/2019", "03/04/2020"], "and .* fit all"), (["31/12/2019", "12/31/2019"], "no single format")],
)
def test_public_rows_that_do_not_tell_are_refused(values: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        infer("when", pandas.Series(values), public=True)


PRIVATE = [MIXED, ["Jan 1 2000", "Feb 1 2000"], ["31.12.19", "01.01.20"], ["2020-01-02", "2021-05-06"]]


@pytest.mark.parametrize("values", [*PRIVATE, pandas.to_datetime(["2020-01-02", "2021-05-06"])])
def test_private_rows_are_refused_with_the_options(values: Any) -> None:
    words = r'--drop "when"\), or declare its public range \(--bounds "when=2010-01-01'
    if isinstance(values, list) and values in PRIVATE[:3]:
        words += '.*they are not ISO .*--date-format "when=%d/%m/%Y"'
    with pytest.raises(InvalidInput, match=words):
        infer("when", pandas.Series(values))


@pytest.mark.parametrize(
    "values",
    [
        pandas.to_datetime(["2020-01-01T12:00", None]),
        pandas.to_datetime(["2020-01-01T14:00+02:00", None], utc=True).tz_convert("Asia/Tokyo"),
        pandas.Series([pandas.Timestamp("2020-01-01T12:00"), None], dtype=object),
        np.array(["2020-01-01T12:00", "NaT"], dtype="datetime64[s]"),
    ],
)
def test_dates_by_type_need_no_format(values: Any) -> None:
    for form in ("", "%d/%m/%Y"):
        days = _as_days(pandas.Series(values), form)
        assert days[0] == 18262.5 and np.isnan(days[1])
