"""A schema for columns that nobody declared: taken from public rows, or guessed from the private ones.

From public rows everything may be taken: types, words, ranges, formats of dates, and whether something is missing.
From private rows only the type of a column is guessed, by what most entries are: words are hashed into fixed buckets,
ranges are left for the estimator to buy, a missing number is filled and never marked, and neither the decimal sign
nor the order of day and month is ever guessed.  Even the type is read from the data, which no budget pays for: the
caller warns, the statement says that it is not covered, and the schema is written down for review.  A column whose name
says that it identifies a person is left out by its name alone, which is public.

A schema.toml to begin with: from the header of a file, what was declared, and public rows; free of charge.

No row of the file itself is read.  What nothing public tells is left open as "?", which a run refuses by name: a blank
that somebody has to fill in is better than a guess that nobody sees.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isthmus.base import validate
from isthmus.tables.columns import (
    _BOOLEANS,
    FORMATS,
    LOOKS,
    MAX_NUMBER,
    _as_days,
    _entries,
    _word,
    as_numbers,
    as_words,
    day,
    readable,
)
from isthmus.tables.files import Reading, Table, _types_of, columns_of, overlap, read
from isthmus.tables.schema import _FORMS, _OPEN, VERSION, Column, Schema, Target, _toml_value, check_names, from_days

if TYPE_CHECKING:
    from pandas import Series

_LOOK = 2000
"""How many rows are looked at for dates, numbers in text and the like."""
_MOSTLY = 0.95
OWN, ENOUGH = 0.9, 20
"""Words that are different in so large a share of at least so many rows tell rows apart, and nothing else."""
_MOST_WORDS = 100
"""A public column with more words than this is hashed all the same."""
_ROW = r"(^|[_\-. ])({0})\.?$|^(id|uuid|guid|index)([_\-. ]|$)|^unnamed: \d+$|^((lfd|s|sr)?[. ]*(nr|no)\.|#|№)$"
_ID = re.compile(_ROW.format("id|uuid|guid|key|index|nr|no|number"), re.I)
_OWN_NAME = re.compile(_ROW.format("id|uuid|guid").replace("|index", ""), re.I)
_PERSON = re.compile(
    r"(^|[_\-. ])(e-?mails?|e_mail|mail|telephone|phone|mobile|fax|ssn|iban|passport|surname|"
    r"(first|last|full|family|user)[_\-. ]?name)([_\-. ]?(address|number|no|nr))?$",
    re.I,
)
_DONE = re.compile(
    r"^(is|was|has|had|have|any|no|sent|got|opened|clicked|read|received|verified|confirmed|wants?|uses?|gave|owns?|"
    r"n|num|count|days|times)(?![a-z])",
    re.I,
)
"""How names of what was done with somebody's address begin, such as sent_email: counts and truth values."""
_CODE = re.compile(r"0\d+")
_PLAIN = (str, int, float, bool, Decimal, date)
_EMPTY = "it is empty"
_ALL_THE_SAME = "to learn from its words all the same: --hash {!r}=16"
_MEASURED = re.compile(r"\W*\d[\d.,'\u2019\u00a0\u202f ]*\W*[^\W\d_]{0,4}\W*")
"""A number and a short unit or mark beside it, whatever it is: 12 kg, >100."""
_SENTINEL = re.compile(r"-1|-9|-?99+(\.9+)?|9999-12-31|1[89]00-01-01|1970-01-01|0001-01-01")
"""What often stands for a missing number or date."""
_FAR = 2
"""So many times the widest gap among all other values is far away from them."""


def identifies(name: str) -> bool:
    """Whether a column's name says that it tells persons or rows apart; the name alone is looked at.

    >>> [name for name in ("e-mail", "customer_id", "Nr.", "last_name", "mailing", "sent_email") if identifies(name)]
    ['e-mail', 'customer_id', 'Nr.', 'last_name']
    """
    return _names_person(name.strip()) or bool(_OWN_NAME.search(name.strip()))


def _names_person(name: str) -> bool:
    return bool(_PERSON.search(name)) and not _DONE.search(name)


@dataclass(frozen=True)
class _Guess:
    """A column and, where something was decided that a user should know, why."""

    column: Column
    why: str = ""


def infer(
    name: str,
    values: Series,
    *,
    public: bool = False,
    decimal: str | None = None,
    separator: str | None = None,
    missing: tuple[str, ...] = (),
) -> _Guess:
    """How to encode a column that was not declared; dates of private rows are refused with what to do.

    decimal, separator   the decimal sign that was declared of its file, and what separates the columns there
    missing              entries that count as missing, beside the usual ones
    """
    words, absent = as_words(values, missing)
    words = words[~absent].tolist()
    answers = public and len(words) > 0 and {word.lower() for word in words} <= set(_BOOLEANS)
    if _names_person(name.strip()) and not answers:
        why = f"its name says that it identifies a person; {_ALL_THE_SAME.format(name)}, or --bounds {name!r}=0,1"
        return _Guess(Column(name, "drop", source="name"), why)
    kind = _kind(name, values, words, decimal, separator)
    column = kind.column
    if column.type == "date":
        column = _date(name, values, words, public)
    column = column.settled(None, None, missing)
    if not public:
        return replace(kind, column=replace(column, source="data"))
    return _filled_in(replace(kind, column=replace(column, source="public")), values)


def _kind(name: str, values: Series, words: list[str], decimal: str | None, separator: str | None) -> _Guess:
    """The type alone, of a column and what its entries that are there are in words."""
    if not words:
        return _Guess(Column(name, "drop"), _EMPTY)
    kind = values.dtype.kind
    if kind == "b":
        return _Guess(Column(name, "bool"))
    if kind == "M" or "date" in str(values.dtype):
        return _Guess(Column(name, "date"))
    numbers = as_numbers(np.array(words, dtype=object), Column(name, "number"))
    fractions = bool((np.isfinite(numbers) & (numbers % 1 != 0)).any())
    if _ID.search(name.strip()) and len(set(words)) == len(words) and not fractions:
        return _Guess(Column(name, "drop"), "it looks like an identifier: every row has its own")
    if kind in "iuf":
        return _Guess(Column(name, "number"))
    if not all(isinstance(entry, _PLAIN) for entry in _entries(values)[0] if _word(entry)):
        return _Guess(Column(name, "drop"), "its entries are neither numbers nor words")
    words = words[:_LOOK]
    if _share(words, lambda word: word.lower() in _BOOLEANS) >= _MOSTLY > _share(words, ("0", "1").__contains__):
        return _Guess(Column(name, "bool"))
    if _share(words, LOOKS.fullmatch) >= _MOSTLY:
        return _Guess(Column(name, "date"))
    why = ""
    if _share(words, _CODE.fullmatch) >= 1 - _MOSTLY:
        why = "numbers that begin with 0 are codes, such as those of places"
    else:  # grouped thousands, currency signs, a few strange entries
        if decimal is None:
            _check_decimal(name, words, separator)
        column = Column(name, "number").read_by(separator, decimal)
        if np.mean(_readable(words, column)) >= _MOSTLY:
            signs = "its numbers have signs between thousands, of currency, k for thousands or the like"
            plain = set("".join(words)) <= set("+-0123456789eE" + column.decimal)
            return _Guess(Column(name, "number").read_by(None, decimal), signs * (not plain))
        if _share([word[:MAX_NUMBER] for word in words], _MEASURED.fullmatch) >= 0.5:
            why = "many of its entries are numbers, with marks, units or words among them that are not read; write "
            why += "plain numbers to learn from them as such"
    different = len(set(words)) / len(words)
    if np.mean([len(word) for word in words]) > 40 and different > 0.5:
        return _Guess(Column(name, "drop"), "it is free text: turn it into numbers first (bags of words as npz, say)")
    if len(words) >= ENOUGH and different >= OWN:
        own = f"nearly every row has a word of its own; {why or _ALL_THE_SAME.format(name)}"
        return _Guess(Column(name, "drop"), own)
    return _Guess(Column(name, "hash"), why)


def _share(words: list[str], fits: Callable[[str], object]) -> float:
    """The share of the words that fit."""
    return float(np.mean([bool(fits(word)) for word in words]))


def _check_decimal(name: str, words: list[str], separator: str | None) -> None:
    """Refuse numbers that only another sign than "." explains, where none was declared: none is read off rows."""
    column = Column(name, "number").read_by(separator)
    there = _readable(words, column)
    grouped = replace(column, thousands=None)
    also = _readable(words, grouped) | _readable(words, replace(grouped, decimal=","))
    remedy = (
        f"give --decimal , where the comma in entries of the column {name!r} is the decimal sign, --decimal . where it "
        "is between thousands; declare the column where it holds no numbers"
    )
    other_sign = bool((also & ~there).any()) and np.mean(there | also) >= _MOSTLY
    validate.check(not other_sign, "decimal", "(not declared)", remedy)


def _readable(words: list[str], column: Column) -> np.ndarray:
    """Which words are numbers in this column."""
    return np.isfinite(as_numbers(np.array(words, dtype=object), column))


def _date(name: str, values: Series, words: list[str], public: bool) -> Column:
    """A column of dates with the format that public rows tell."""
    declare = f'--bounds "{name}=2010-01-01,2024-12-31"'
    written = [word for word in words if LOOKS.fullmatch(word)]
    iso = values.dtype.kind != "O" or bool(np.isfinite(_as_days(np.array(written, dtype=object))).all())
    if not public:
        remedy = f'leave it out (--drop "{name}"), or declare its public range ({declare})'
        if not iso:
            remedy += f'; they are not ISO (2024-12-31): give their format too (--date-format "{name}=%d/%m/%Y")'
        validate.refuse(f"columns.{name}", "dates", remedy)
    forms, reason = [""] if iso else ["", *FORMATS], "no single format fits all of them"
    fitting = [form for form in forms if all(np.isfinite(day(word, form)) for word in set(written))]
    if fitting:
        reason = f"{' and '.join(fitting)} fit all of them"
    remedy = f'give the format and the range (--date-format "{name}=%d/%m/%Y", --bounds "{name}=LOW,HIGH"): {reason}'
    validate.check(len(fitting) == 1, f"columns.{name}", "dates", remedy)
    return Column(name, "date", format=fitting[0], source="public")


def _filled_in(guess: _Guess, values: Series) -> _Guess:
    """Words, ranges and gaps of public rows; of private ones an empty cell would add a column."""
    column = guess.column
    if column.type == "hash":
        distinct = _distinct_words(values, column.absent)
        if len(distinct) <= _MOST_WORDS:
            return replace(guess, column=replace(column, type="category", categories=distinct))
    if column.type not in ("number", "bool", "date"):
        return guess
    numbers = readable(values, column)
    there = numbers[~np.isnan(numbers)]
    sentinels: dict[float, str] = {}
    if column.type != "bool":
        sentinels = _sentinels(there, column.type)
        there = there[~np.isin(there, list(sentinels))]
    column = replace(column, absent=(*column.absent, *sentinels.values()))
    if len(there) < len(numbers):
        column = replace(column, missing="indicator")
    if column.type != "bool" and len(there):
        low, high = float(there.min()), float(there.max())
        column = replace(column, bounds=(low, high + (low == high)))
    why = f"{' and '.join(sentinels.values())}, far from all its other entries, counts as missing (absent)"
    return _Guess(column, "; ".join([guess.why] * bool(guess.why) + [why] * bool(sentinels)))


def _sentinels(there: np.ndarray, kind: str) -> dict[float, str]:
    """Numbers or days that stand for missing ones, and how they are written: those in use for it and far from the rest.

    >>> _sentinels(np.array([18.0, 20, 31, -999, 99, 99]), "number"), _sentinels(np.array([-1.0, 0, 1, 2]), "number")
    ({-999.0: '-999', 99.0: '99'}, {})
    """
    found: dict[float, str] = {}
    values = np.unique(there)
    while len(values) > 2:
        gaps = np.diff(values)
        for end, gap, others in ((0, gaps[0], gaps[1:]), (-1, gaps[-1], gaps[:-1])):
            value = float(values[end])
            word = from_days(value).isoformat() if kind == "date" else _word(value)
            below = value <= -9 and values[1] >= 0  # no number below 0 but this one
            often = len(word) > 2 or int((there == value).sum()) > 1  # a count may be 99 once
            if _SENTINEL.fullmatch(word) and (often and gap > _FAR * others.max() or below and end == 0):
                found[value] = word
                values = np.delete(values, end)
                break
        else:
            break
    return found


def _distinct_words(values: Series, absent: tuple[str, ...]) -> tuple[str, ...]:
    words, missing = as_words(values, absent)
    return tuple(sorted(set(words[~missing])))


def draft(
    path: str | Path,
    declared: Schema,
    target: Target | None,
    *,
    reading: Reading | None = None,
    decimal: str | None = None,
    bounds: tuple[float, float] | None = None,
    missing: tuple[str, ...] = (),
    sample: str | Path | None = None,
) -> tuple[str, list[str]]:
    """The text of a schema: declared columns, then those that public rows of `sample` tell; and what is still open.

    decimal, bounds   the decimal sign and the range of all numbers that have none of their own
    missing           entries that count as missing in all columns
    """
    names = columns_of(path, reading)
    if names is None:
        validate.present(os.path.isfile(path), path)
        validate.unreadable(path, "it has no named columns; a schema is for tables, such as csv and parquet files")
    predicted = None if target is None else target.name
    check_names(names, declared, predicted)
    public = None
    if sample is not None:
        remedy = "give a file of rows that are public: the rows of this one are the private ones"
        validate.check(not overlap(sample, path), "sample", str(sample), remedy)
        public = read(sample, reading=reading)
        usable = public.frame is not None and public.n > 0
        validate.check(usable, "sample", str(sample), "give a csv, tsv or parquet file with rows that are public")
    types, columns = _types_of(path), {}
    why: dict[str, str] = {}
    for name in [name for name in names if name != predicted]:
        column = declared.get(name) or _from_public(name, public, decimal, missing, why)
        if column is None and identifies(name):
            column = Column(name, "id", source="name")
        elif column is None and name in types:
            column = Column(name, types[name])
        columns[name] = column and column.settled(bounds, decimal, missing)
    if target is not None and public is not None and target.name in public.frame.columns:
        target = _sampled(target, public, missing, why)
    return _written(Path(path), columns, why, Schema((), target, missing), sampled=public is not None)


def _from_public(
    name: str, public: Table | None, decimal: str | None, missing: tuple[str, ...], why: dict[str, str]
) -> Column | None:
    """What public rows tell of a column; where they do not settle it, why."""
    if public is None or name not in public.frame.columns:
        return None
    try:
        file = {"decimal": decimal, "separator": public.separator}
        guess = infer(name, public.frame[name], public=True, missing=missing, **file)
    except validate.InvalidInput as error:
        why[name] = str(error).partition(" is not allowed: ")[2]
        return None
    if guess.why:
        why[name] = guess.why
    if guess.column.type == "drop" and identifies(name) and guess.why != _EMPTY:
        return Column(name, "id")
    return guess.column


def guess_task(name: str, values: Series, missing: tuple[str, ...], decimal: str | None, separator: str | None) -> str:
    """Words, truth values, two different numbers: classes.  Anything else: a number to predict."""
    numbers = target_numbers(values, missing, decimal, separator)
    words, absent = as_words(values, missing)
    if decimal is None:
        _check_decimal(name, words[~absent].tolist(), separator)
    finite = np.isfinite(numbers)
    if (~finite & ~absent).any() or len(np.unique(numbers[finite])) <= 2:
        return "classification"
    return "regression"


def target_numbers(values: Series, missing: tuple[str, ...], decimal: str | None, separator: str | None) -> np.ndarray:
    """The targets as numbers, NaN where there is none."""
    return as_numbers(values, Column("y", "number", absent=missing).read_by(separator, decimal))


def _sampled(target: Target, public: Table, missing: tuple[str, ...], why: dict[str, str]) -> Target:
    """The target with the task, the labels and the range that public rows tell."""
    values, signs = public.frame[target.name], (target.decimal, public.separator)
    if target.task is None:
        try:
            target = replace(target, task=guess_task(target.name, values, missing, *signs))
        except validate.InvalidInput as error:
            why[target.name] = str(error).partition(" is not allowed: ")[2]
    if target.task == "regression" and target.bounds is None:
        numbers = np.unique(target_numbers(values, missing, *signs))
        numbers = numbers[np.isfinite(numbers)]
        sentinels = _sentinels(numbers, "number")
        numbers = numbers[~np.isin(numbers, list(sentinels))]
        if sentinels:
            written = " and ".join(sentinels.values())
            why[target.name] = f"{written}, far from all other targets: where that means none, give it with --missing"
        if len(numbers) > 1:
            return replace(target, bounds=(float(numbers[0]), float(numbers[-1])))
    elif target.task == "classification" and not target.classes:
        labels = _distinct_words(values, missing)
        if 2 <= len(labels) <= _MOST_WORDS:
            return replace(target, classes=labels)
    return target


# ---------------------------------------------------------------- the text


def _written(
    path: Path, columns: Mapping[str, Column | None], why: Mapping[str, str], told: Schema, sampled: bool
) -> tuple[str, list[str]]:
    target_lines, missing = _target_lines(told.target)
    if told.target is not None and told.target.name in why:
        target_lines.insert(0, f"# {why[told.target.name]}")
    names = [name for name, column in columns.items() if column is None]
    missing += names
    sources = " and the options"
    if sampled:
        sources = ", the options and the public sample, whose words and ranges you may widen"
    lines = [
        f"# The public rules that turn the columns of {path.name} into numbers.  No row of it was read: they come",
        f"# from its header{sources}.",
    ]
    if missing:
        lines.append(f'# Fill in each "{_OPEN}" with what is publicly known; never look it up in the private rows.')
    lines += [f"# Then: isthmus train {path.name} --schema schema.toml", "", f"version = {VERSION}", ""]
    lines += [*Schema(missing=told.missing).to_toml().splitlines(), *target_lines]
    if names:
        width = max(len(_toml_value(name)) for name in names)
        reasons = {name: f"  # {reason}" for name, reason in why.items()}
        open_ones = [f"{_toml_value(name):{width}} = {_toml_value(_OPEN)}{reasons.get(name, '')}" for name in names]
        lines += ["[columns]", f"# {_FORMS}", *open_ones, ""]
    for name, column in columns.items():
        if column is not None:
            if name in why:
                lines.append(f"# {why[name]}")
            lines.append(Schema((column,)).to_toml())
    return "\n".join(lines).rstrip() + "\n", missing


def _target_lines(target: Target | None) -> tuple[list[str], list[str]]:
    """The table [target], and what is open in it."""
    if target is None:
        return ["[target]", f'name = "{_OPEN}"', f'task = "{_OPEN}"  # classification or regression', ""], ["target"]
    lines, missing = Schema(target=target).to_toml().rstrip().splitlines(), []
    if target.task is None:
        lines.append(f'task = "{_OPEN}"  # "classification", with classes = ["no", "yes"]; or "regression"')
        missing = ["target.task"]
    elif target.task == "classification" and not target.classes:
        lines.append(f'classes = "{_OPEN}"  # all labels, such as ["no", "yes"]')
        missing = ["target.classes"]
    elif target.task == "regression" and target.bounds is None:
        lines.append("# bounds = [0, 100]  # the public range; without it, the range is bought from the budget")
    return [*lines, ""], missing
