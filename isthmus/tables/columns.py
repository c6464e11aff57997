"""Types of columns: what may be declared of each, how its entries are read, and which columns of numbers it becomes.

A new type of column is one class here and its line in `TYPES`.  Every entry is read by itself, and by what was declared
of its column.  The type that pandas would give the column plays no part: text is parsed entry by entry, and comes to
what the number itself would.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, ClassVar, SupportsFloat

import numpy as np

from isthmus.base import validate

if TYPE_CHECKING:  # pandas is an extra; polars and numpy have what is asked of its columns too
    from pandas import Series

    from isthmus.tables.schema import Column

_BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), 1.0) | dict.fromkeys(("false", "no", "f", "n", "0"), 0.0)
ABSENT = frozenset(
    "? - -- na n/a nan null none <na> #n/a #na -1.#ind 1.#ind -1.#qnan 1.#qnan -nan".split() + ["", "#n/a n/a"]
)
"""Entries that count as missing, in lower case, unless they are declared words of their column."""
_EXACT = 1 << 53
"""Whole numbers up to this are float64 numbers."""
_NUMBERS = (int, float, Decimal, np.number, np.bool_)


# ---------------------------------------------------------------- the types


@dataclass(frozen=True)
class ColumnType:
    """What every type of column says of its columns; as it stands, a type that is never a feature.

    A new type writes `features` and `encode`; `ranges` if they are not 0 to 1, and `words` if `treatment` needs more
    than {0}, the column, and {1}, how many words it has (of numbers: the two ends of the range).

    treatment   what becomes of such a column, in words
    keys        what may be declared of it, beside its type ("missing" and "bounds" too)
    left_out    why a private summary leaves such columns out; "" where it counts them
    """

    treatment: str
    keys: tuple[str, ...] = ()
    left_out: str = "a summary has no cells for its type"

    def features(self, column: Column) -> list[str]:
        """The names of the columns of numbers that it becomes."""
        return []

    def ranges(self, column: Column) -> list[tuple[float, float]]:
        """The public range of each of these; NaN where it has to be bought."""
        return [(0.0, 1.0)] * len(self.features(column))

    def encode(self, values: Series, column: Column, out: np.ndarray) -> None:
        """Write the features of the rows into `out`, which is filled with zeros."""

    def words(self, column: Column) -> str:
        """What becomes of this column, for a reader."""
        return self.treatment.format(column, len(column.categories))


class NumberType(ColumnType):
    """One number, a public constant where it is missing, and, if asked, a column that says so."""

    own: ClassVar[tuple[type, ...]] = _NUMBERS
    """Entries of these types are missing only where they were declared to be."""
    typed: ClassVar[str] = "iufbM"
    """The kinds of arrays in which nothing but a gap is unreadable."""
    remedy: ClassVar[str] = (
        "other signs than the decimal sign {0.decimal!r} and well-formed thousands, or with other marks: give the "
        "signs (--decimal CHAR, or decimal and thousands of the column in the schema), write plain numbers, or declare "
        'the column as "category", "hash" or "drop"'
    )
    """Completes "some of its entries are written with ..."; {0} is the column, {1} its format."""

    def features(self, column: Column) -> list[str]:
        return [column.name, f"{column.name} (missing)"][: 1 + (column.missing == "indicator")]

    def ranges(self, column: Column) -> list[tuple[float, float]]:
        return [self.limits(column) or (np.nan, np.nan), (0.0, 1.0)][: len(self.features(column))]

    def limits(self, column: Column) -> tuple[float, float] | None:
        """The range of its numbers, where it is known."""
        return column.bounds

    def numbers(self, values: Series, column: Column) -> np.ndarray:
        """The entries as float64, NaN where there is none of this type."""
        return as_numbers(values, column)

    def filled(self, column: Column) -> float:
        """What stands where an entry is missing: `fill`, else the middle of the range, else 0."""
        low, high = self.limits(column) or (0.0, 0.0)
        return (low + high) / 2 if column.fill is None else column.fill

    def encode(self, values: Series, column: Column, out: np.ndarray) -> None:
        numbers = readable(values, column)
        absent = np.isnan(numbers)
        numbers = np.where(absent, self.filled(column), numbers)
        out[:, 0] = np.clip(numbers, *(self.limits(column) or (-np.inf, np.inf)))
        if column.missing == "indicator":
            out[:, 1] = absent

    def words(self, column: Column) -> str:
        limits = self.limits(column)
        return "range bought privately" if limits is None else self.treatment.format(*limits)


class BoolType(NumberType):
    remedy = 'other words than true/false, yes/no and 1/0: declare it as "category", "hash" or "drop"'

    def limits(self, column: Column) -> tuple[float, float]:
        return 0.0, 1.0


class DateType(NumberType):
    """Days since 1970."""

    own, typed = (date,), "M"
    remedy = (
        "another format than {1}: give the one format of the column (--date-format '{0.name}=%d/%m/%Y' or %m/%d/%Y; or "
        "format in the schema), and write all dates in it"
    )

    def numbers(self, values: Series, column: Column) -> np.ndarray:
        return _as_days(values, column.format, column.absent)

    def words(self, column: Column) -> str:
        first, last = (from_days(end).isoformat() for end in column.bounds or ())
        return f"{first} to {last}" + f", written as {column.format}" * bool(column.format)


class CategoryType(ColumnType):
    """A column for each of the declared words, for other words and for gaps."""

    def features(self, column: Column) -> list[str]:
        return [f"{column.name}={word}" for word in (*column.categories, "(other)", "(missing)")]

    def other(self, word: str, column: Column) -> int:
        """Which feature stands for a word that was not declared."""
        return len(column.categories)

    def encode(self, values: Series, column: Column, out: np.ndarray) -> None:
        words, codes = _distinct(values)
        declared = {word: k for k, word in enumerate(column.categories)}
        folded = {word.casefold(): k for k, word in reversed(list(enumerate(column.categories)))}
        place = []
        for word, label in zip(words, _labels(words, column.categories), strict=True):
            if label is not None:
                place.append(declared[label])
            elif word.casefold() in folded:  # Female where female is declared
                place.append(folded[word.casefold()])
            elif _is_absent(word, column.absent):
                place.append(out.shape[1] - 1)
            else:
                place.append(self.other(word, column))
        out[np.arange(len(out)), np.array(place)[codes]] = 1.0


class HashType(CategoryType):
    """Any word, into one of a fixed number of buckets by a fixed hash."""

    def features(self, column: Column) -> list[str]:
        return [*(f"{column.name}#{k}" for k in range(column.buckets)), f"{column.name}=(missing)"]

    def other(self, word: str, column: Column) -> int:
        return _bucket(column.name, _whole(word), column.buckets)


TYPES: dict[str, ColumnType] = {
    "number": NumberType("from {:g} to {:g}", ("bounds", "missing", "absent", "fill", "thousands", "decimal"), ""),
    "bool": BoolType("0 or 1", ("missing", "absent"), ""),
    "category": CategoryType("{1} words and (other)", ("categories", "absent"), ""),
    "hash": HashType(
        "words hashed into {0.buckets} fixed buckets; none is learned",
        ("buckets", "absent"),
        "its words were not declared",
    ),
    "date": DateType("", ("bounds", "missing", "absent", "format"), ""),
    "id": ColumnType("carried along by predictions, never a feature", left_out="it identifies rows"),
    "drop": ColumnType("left out", left_out="it is to be dropped"),
}


# ---------------------------------------------------------------- one column as words, numbers, days


def readable(values: Series, column: Column) -> np.ndarray:
    """A column as numbers (dates: days since 1970), NaN where nothing is; refused where it is not what was declared.

    An entry with digits that is not read, such as 1,5 where the decimal sign is a point, is no missing one: as missing
    it would be filled by a constant without a word.
    """
    kind = TYPES[column.type]
    assert isinstance(kind, NumberType)
    numbers = kind.numbers(values, column)
    absent = np.isnan(numbers)
    if values.dtype.kind in kind.typed:
        return numbers
    units = _UNIT.search(" ".join(entry for entry in values.tolist() if isinstance(entry, str)))
    if units is None and not absent.any():
        return numbers
    entries, codes = _entries(values)
    words, where = [_word(entry) for entry in entries], f"columns.{column.name}"
    if units is not None:
        units_there = {_unit(words[code]) for code in np.unique(codes[~absent & (numbers != 0)])}
        one = units_there <= {"%"} or "%" not in units_there and len(units_there - {""}) <= 1
        validate.check(one, where, column.type, _UNITS)
    there = np.array([not _is_absent(word, column.absent) for word in words])
    text = np.array([not isinstance(entry, kind.own) for entry in entries])
    digits = np.array([any(sign.isdigit() for sign in word) for word in words])
    strange = absent & (there & text)[codes]
    written = kind.remedy.format(column, column.format or "ISO (2024-12-31)")
    unread = bool((strange & digits[codes]).any())
    validate.check(not unread, where, column.type, f"some of its entries are written with {written}")
    remedy = f'declare it as "category", "hash" or "drop": more than half of its entries are no {column.type}'
    validate.check(int(strange.sum()) <= there[codes].sum() / 2, where, column.type, remedy)
    return numbers


def _is_absent(word: str, absent: Collection[str]) -> bool:
    if word.lower() in ABSENT or _whole(word) in absent:
        return True
    return any(number(word, thousands="") == number(entry) for entry in absent)  # -999.00 where -999 was declared


def _whole(word: str) -> str:
    """3.0 as 3: a column of whole numbers gets the point as soon as one of them is missing."""
    return word[:-2] if re.fullmatch(r"[+-]?\d+\.0", word) else word


def _bucket(column: str, word: str, buckets: int) -> int:
    """The fixed public bucket of a word.

    >>> _bucket("city", "Rome", 16), _bucket("city", "Paris", 16), _bucket("town", "Rome", 16)
    (5, 13, 13)
    """
    digest = hashlib.blake2b(f"{column}\x00{word}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % buckets


def as_words(values: Series, absent: Collection[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """The entries as stripped text, and where nothing is; 3.0 reads as "3"."""
    distinct, codes = _distinct(values)
    absent = np.array([_is_absent(word, absent) for word in distinct], dtype=bool)
    return np.array(distinct, dtype=object)[codes], absent[codes]


def as_written(values: Series) -> np.ndarray:
    """Numbers as they are; other entries as text, "" where nothing is."""
    if values.dtype.kind in "iufb":
        return np.asarray(values)
    return np.array([str(entry) if _word(entry) else "" for entry in values.tolist()])


def _distinct(values: Series) -> tuple[list[str], np.ndarray]:
    """The different words of a column, the empty one first, and which of them each entry is."""
    entries, codes = _entries(values)
    return [_word(value) for value in entries], codes


def _entries(values: Series) -> tuple[list[object], np.ndarray]:
    """The different entries of a column, None first, and which of them each is.

    Entries that are equal and written differently (True and 1, two decimals, one moment in two zones) are different:
    else the first of them would say how all others are read.
    """
    if isinstance(values.dtype, np.dtype) and values.dtype.kind in "iu":  # a nullable one may hold gaps
        numbers, codes = np.unique(np.asarray(values), return_inverse=True)
        return [None, *numbers.tolist()], codes + 1
    given = values.tolist()
    keys, kinds = given, set(map(type, given)) - {type(None)}
    if len(kinds) > 1 or not kinds <= {str, int, bool}:  # else equal entries are written alike
        keys = [_key(entry) for entry in given]
    entries = {None: None} | dict(zip(keys, given, strict=True))
    place = {key: k for k, key in enumerate(entries)}
    return list(entries.values()), np.fromiter(map(place.__getitem__, keys), np.int64, len(keys))


def _key(entry: object) -> object:
    """What two entries have in common that are read alike."""
    if entry is None or (isinstance(entry, float) and entry != entry):
        return None
    return type(entry), entry if isinstance(entry, (str, int, float)) else str(entry)


def _word(value: object) -> str:
    """The text of an entry, the same in every type that a column may get from its other entries.

    Whole numbers beyond 2^53 are those of float64, which a column of them becomes as soon as one is missing.
    """
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if isinstance(value, (complex, np.complexfloating)) and value.imag == 0:
        value = value.real  # what all numbers of a column become as soon as one of them is complex
    if isinstance(value, (int, np.integer)) and abs(int(value)) > _EXACT:
        value = _float(value)
    if isinstance(value, (float, np.floating)):
        if not np.isfinite(value):
            return ""
        return str(int(value)) if value == int(value) else repr(float(value))
    text = str(value)
    return "" if value is None or text in ("<NA>", "NaT") else text.strip()


def _float(value: SupportsFloat) -> float:
    """A number as float64, infinite beyond its range."""
    try:
        return float(value)
    except OverflowError:
        return np.inf


def as_numbers(values: Series, column: Column) -> np.ndarray:
    """The entries as float64, NaN where there is no finite number."""
    gone = [number(word) for word in column.absent]  # among entries that are numbers
    if values.dtype.kind in "iufb":
        plain = isinstance(values, np.ndarray)  # pandas may know missing integers
        numbers = values.astype(np.float64) if plain else values.to_numpy(np.float64, na_value=np.nan)
        numbers = np.where(np.isin(numbers, gone), np.nan, numbers)
    else:
        distinct, codes = _entries(values)
        numbers = np.array([_number(entry, column, gone) for entry in distinct], dtype=np.float64)[codes]
    return np.where(np.isfinite(numbers), numbers, np.nan)


def _number(entry: object, column: Column, gone: list[float]) -> float:
    """A number as it is, one in text by the signs of its column; a word for truth where it holds truth values."""
    if isinstance(entry, _NUMBERS):  # as in a column of numbers alone
        value = _float(entry)
        return np.nan if value in gone else value
    word = _word(entry)
    if column.absent and _is_absent(word, column.absent):
        return np.nan
    if column.type == "bool" and word.lower() in _BOOLEANS:
        return _BOOLEANS[word.lower()]
    return number(_without_marks(word), column.decimal, column.thousands)


def _as_days(values: Series, form: str = "", absent: Collection[str] = ()) -> np.ndarray:
    """Days since 1970, NaN where there is no date; text has the one format that is given, ISO (2024-12-31) if none."""
    gone = [day(word, own) for word in absent for own in {form, ""}]
    if values.dtype.kind == "M":
        moments = values if isinstance(values, np.ndarray) else values.to_numpy(dtype="datetime64[us]")
        plain = moments.astype("datetime64[us]")
        days = np.where(np.isnat(plain), np.nan, plain.astype(np.int64) / _DAY)
        return np.where(np.isin(days, gone), np.nan, days)

    def days_of(entry: object) -> float:
        word = _word(entry)
        if isinstance(entry, date):  # as it is, as in a column of dates alone
            at = day(word)
            return np.nan if at in gone else at
        return np.nan if word in absent else day(word, form)

    distinct, codes = _entries(values)
    return np.array([days_of(entry) for entry in distinct], dtype=np.float64)[codes]


# ---------------------------------------------------------------- labels


def as_labels(words: Collection[str]) -> set[str]:
    """The different labels among words; where all are numbers, 1 and 1.0 are one."""
    labels = set(words)
    if all(np.isfinite(number(word)) for word in labels):
        return {_plain(word) for word in labels}
    return labels


def _labels(words: list[str], classes: tuple[str, ...]) -> list[str | None]:
    """The class of each word: the same text, else the same number or truth value (1 and 1.0, True and true)."""
    same = {_plain(label): label for label in reversed(classes)}
    exact = dict(zip(classes, classes, strict=True))
    return [exact.get(word, same.get(_plain(word))) for word in words]


def _plain(word: str) -> str:
    """One way to write a number or a truth value."""
    value = number(word, thousands="")
    if np.isfinite(value):
        return _word(value)
    return word.lower() if word.lower() in ("true", "false") else word


# ---------------------------------------------------------------- numbers and dates in text
#
# One entry at a time, by the signs and the one format that were declared.  The decimal sign is never also one between
# thousands, and digits are grouped by threes or not at all.  `01/02/2024` is the first of February or the second of
# January, and nothing in the entry says which: no order of day and month is ever tried, a column has the format that
# its schema declares, or ISO.  What looks like a number or a date written otherwise is refused with what to declare:
# read as missing, or as a thousand times itself, it would be wrong without a word.

OTHER = {".": ",", ",": "."}

_SPACES = "'\u2019 \u00a0\u202f"
"""Signs between thousands that can be nothing else."""

MAX_NUMBER = 40
"""Longer words are no numbers with marks; on long ones the patterns would take their time."""
_MONEY = "$€£¥%"
_CODES = "USD EUR GBP JPY CNY CHF INR AUD CAD NZD SEK NOK DKK PLN CZK HUF RON BRL MXN ZAR SGD HKD KRW TRY ILS".split()
_CODE = re.compile(rf"^(?:{'|'.join(_CODES)})(?=[\s(\d.-])\s*|(?<=[\s)\dkM.-])\s*(?:{'|'.join(_CODES)})$")
_UNIT = re.compile(rf"[{_MONEY}]|{'|'.join(_CODES)}")
_UNITS = (
    'write all of its entries in one unit, or declare it as "category", "hash" or "drop": some have a per-cent '
    "sign and others have none, or they are of several currencies"
)


def _unit(word: str) -> str:
    """The per-cent sign or the currency of a number in text, "" for none."""
    found = _UNIT.search(word)
    return "" if found is None else dict(zip("$€£", _CODES, strict=False)).get(found[0], found[0])


def _without_marks(word: str) -> str:
    """A number as programs write it, of one as book-keepers do; other words as they are.

    Labels are not read so: a mark 2- is no number below 0.

    >>> [_without_marks(word) for word in ("(817)", "729.5-", "44.4k", "12 USD", "(EUR 1.5M)", "2-", "12 kg")]
    ['-817', '-729.5', '44.4e3', '12', '-1.5e6', '2-', '12 kg']
    """
    if len(word) > MAX_NUMBER or word[-1:].isdigit() and not word[:1].isalpha():
        return word
    bare, sign = _CODE.sub("", word).strip("$€£¥ "), ""
    if bare[:1] == "(" and bare[-1:] == ")":
        bare, sign = _CODE.sub("", bare[1:-1].strip()), "-"
    elif re.fullmatch(r"\d.*\d-", bare):
        bare, sign = bare[:-1], "-"
    match = re.fullmatch(r"(.*\d)\s?([kKM])", bare)
    if match is not None:
        bare = match[1] + {"M": "e6"}.get(match[2], "e3")
    return sign + bare


def number(word: str, decimal: str = ".", thousands: str | None = None) -> float:
    """The number in a text, NaN where there is none; signs of currency and per cent are ignored.

    >>> number("31.275"), number("1,234.5"), number("$ 1'200"), number("-€3"), number("4%")
    (31.275, 1234.5, 1200.0, -3.0, 4.0)
    >>> number("1,5"), number("0,338"), number("1.234", ","), number("1.234,5", ",")
    (nan, nan, 1234.0, 1234.5)
    """
    if "_" in word:  # Python's own way to group digits
        return np.nan
    if decimal == ".":
        try:
            return float(word)
        except ValueError:
            pass
    bare = word.strip(_MONEY + " ").replace("\u2212", "-")
    if bare[:1] in ("+", "-"):
        bare = bare[0] + bare[1:].lstrip(_MONEY + " ")
    match = _pattern(decimal, thousands).fullmatch(bare)
    if match is None:
        return np.nan
    sign, whole, fraction, power = match.group("sign", "whole", "fraction", "power")
    return float(f"{sign}{re.sub(_NO_DIGIT, '', whole)}.{fraction or '0'}{power or ''}")


_NO_DIGIT = re.compile(r"[^0-9]")


@functools.lru_cache(maxsize=64)
def _pattern(decimal: str, thousands: str | None) -> re.Pattern[str]:
    """Digits, or groups of three after one to three that do not begin with 0; then a fraction and a power of ten."""
    separator = OTHER.get(decimal, "") if thousands is None else thousands
    between = f"[{re.escape(_SPACES + separator)}]"
    grouped = rf"[1-9][0-9]{{0,2}}(?P<group>{between})[0-9]{{3}}(?:(?P=group)[0-9]{{3}})*"
    tail = rf"(?:{re.escape(decimal)}(?P<fraction>[0-9]*))?(?P<power>[eE][+-]?[0-9]+)?"
    begun = rf"(?=[0-9]|{re.escape(decimal)}[0-9])"
    return re.compile(rf"(?P<sign>[+-]?){begun}(?P<whole>{grouped}|[0-9]*){tail}")


_EPOCH = date(1970, 1, 1).toordinal()

START = datetime(1970, 1, 1)

_DAY = 86_400e6
"""Microseconds."""

FORMATS = tuple(
    f"{order}{time}"
    for order in (
        *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%d/%m/%y", "%m/%d/%y", "%d.%m.%y"),
        *("%d %b %Y", "%b %d %Y", "%b %d, %Y", "%d-%b-%Y", "%b-%d-%Y", "%d-%b-%y", "%d %B %Y", "%B %d, %Y", "%B %d %Y"),
    )
    for time in ("", " %H:%M", " %H:%M:%S")
)
"""What is tried on public rows; on private ones nothing is."""

_MONTH = r"(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"

LOOKS = re.compile(
    r"(\d{4}[-/]\d{1,2}[-/]\d{1,2}|\d{1,2}[./-]\d{1,2}[./-]\d{2,4}"
    rf"|\d{{1,2}}[ ./-]{_MONTH}[ ./,-]+\d{{2,4}}|{_MONTH}[ ./-]\d{{1,2}}[ ./,-]+\d{{2,4}})([T ].*)?",
    re.I,
)

_ISO = re.compile(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}")


def day(word: str, form: str = "") -> float:
    """One date in text, in days since 1970; NaN where there is none in this format ("": ISO).

    >>> day("2024-01-02"), day("02/01/2024"), day("02/01/2024", "%d/%m/%Y"), day("2024-01-01T12:00:00+12:00")
    (19724.0, nan, 19724.0, 19723.0)
    """
    read_date = _read(word, form)
    if read_date is None:
        return np.nan
    since = read_date.replace(tzinfo=None) - START - (read_date.utcoffset() or timedelta())
    return (since // timedelta(microseconds=1)) / _DAY  # one division, as of a column of dates


def _read(word: str, form: str) -> datetime | None:
    try:
        if form:
            return datetime.strptime(word, form)
        begun = _ISO.match(word)
        if begun is None:
            return datetime.fromisoformat(word)
        year, month, first = re.split("[-/]", begun.group())
        return datetime.fromisoformat(f"{year}-{int(month):02d}-{int(first):02d}{word[begun.end() :]}")
    except ValueError:
        return None


def is_format(form: str) -> bool:
    """Whether it is the format of a date with a day, a month and a year; "" is ISO."""
    there = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)
    try:
        return not form or datetime.strptime(there.strftime(form), form).date() == there.date()
    except (ValueError, re.error):  # a directive that stands there twice
        return False


def from_days(days: float) -> date:
    """The date of a number of days since 1970."""
    return date.fromordinal(_EPOCH + int(days))
