"""`TableEncoder`: the command line's schema as a transformer of scikit-learn, for pandas and polars frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from isthmus.base import validate
from isthmus.base.shapes import checked
from isthmus.tables.encode import NamedColumns, as_frame, bounds_of, encode
from isthmus.tables.infer import identifies
from isthmus.tables.schema import WORDS, Column, Schema, read_column


class TableEncoder(TransformerMixin, BaseEstimator):
    """Turns tables of numbers, words, dates and gaps into numbers, row by row and by public rules alone.

    `fit` reads the names and the types of the columns and no entry; `transform` encodes each row by itself.  So nothing
    is learned from private rows, and a private estimator after it in a `Pipeline` keeps its whole guarantee: whatever
    is declared here counts as public, and must not have been read from the private rows.

    columns     a dict from names to declarations, as in the [columns] of a schema.toml:
                (17, 90)                a number and its public range; "number" leaves the range to be bought
                ["f", "m"]              one of these words; any other is "(other)", none is "(missing)"
                "category"              one of the words that the column's type lists (pandas categories, a polars
                                        Enum), which this declares public: `astype("category")` would have read them
                                        off the rows
                "hash"                  any word, into 16 fixed buckets by a fixed hash
                "bool", "drop", "id"    truth values; left out; left out because it identifies a row
                {"type": "date", "bounds": ["2010-01-01", "2024-12-31"], "format": "%d/%m/%Y", "missing": "indicator"}
                                        the long form, which all types have
    undeclared  what becomes of other columns: "type" takes numbers and truth values by their type and refuses all
                others (and those named like an identifier) with what to declare, "refuse" refuses any, "drop" leaves
                them out
    missing     entries that count as missing in all columns, such as [-999, "unknown"]; a column's own are its `absent`

    After `fit`: `schema_`, `bounds_` = (low, high) of the encoded columns, NaN where a range is to be bought, for
    `bounds=` of the estimators; `fields_`, what each encoded column is; `feature_names_in_`, `n_features_in_`.

    >>> import pandas
    >>> people = pandas.DataFrame({"age": [30, None], "sex": ["m", "x"], "city": ["Rome", None]})
    >>> encoder = TableEncoder({"age": (0, 100), "sex": ["f", "m"], "city": {"type": "hash", "buckets": 2}})
    >>> encoder.fit_transform(people)
    array([[30.,  0.,  1.,  0.,  0.,  0.,  1.,  0.],
           [50.,  0.,  0.,  1.,  0.,  0.,  0.,  1.]])
    >>> encoder.get_feature_names_out().tolist()
    ['age', 'sex=f', 'sex=m', 'sex=(other)', 'sex=(missing)', 'city#0', 'city#1', 'city=(missing)']
    >>> TableEncoder().fit(people)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: columns=['sex', 'city'] is not allowed: declare what is public of them, ...
    """

    def __init__(
        self,
        columns: Mapping[str, object] | None = None,
        *,
        undeclared: str = "type",
        missing: Iterable[str | float] = (),
    ) -> None:
        self.columns = columns
        self.undeclared = undeclared
        self.missing = missing

    @classmethod
    def from_schema(cls, path: str | Path) -> TableEncoder:
        """The encoder of a schema.toml: what a run of the command line left, or `isthmus schema` began.

        The target that it names is left out; a column it does not name is refused.
        """
        schema = Schema.load(path)
        columns = {column.name: column.to_dict() for column in schema.columns}
        if schema.target is not None:
            columns.setdefault(schema.target.name, {"type": "drop"})
        return cls(columns, undeclared="refuse")

    def to_toml(self) -> str:
        """The schema as the command line reads it (--schema): of a fitted encoder, for every column."""
        schema = vars(self).get("schema_") or Schema(tuple(self._declared().values()))
        return str(schema.to_toml(versioned=True))

    def fit(self, X: object, y: object = None) -> TableEncoder:
        """Settle the rules for the columns of X by their names and types; no entry is read."""
        validate.one_of(("type", "refuse", "drop"), undeclared=self.undeclared)
        frame = as_frame(X)
        declared = self._declared(frame)
        unknown = [name for name in declared if name not in frame.columns and declared[name].features]
        remedy = f"name columns of the table, which has {frame.columns[:20]}"
        validate.check(not unknown, "columns", unknown, remedy)
        missing = checked(self.missing, WORDS, "missing")
        columns = {name: declared.get(name) or self._by_type(frame, name) for name in frame.columns}
        open_ones = [name for name, column in columns.items() if column is None]
        validate.check(not open_ones, "columns", open_ones, f"{_what_to_declare(frame, open_ones)}: {_UNKNOWN}")
        schema = Schema(tuple(column.settled(None, None, missing) for column in columns.values() if column is not None))
        remedy = "declare at least one column as a number, words, a date or bool: none is left to learn from"
        validate.check(bool(schema.features), "columns", schema.names, remedy)
        self.schema_, self.bounds_ = schema, bounds_of(schema)
        self.fields_ = schema.fields
        self.feature_names_in_ = np.array(frame.columns, dtype=object)
        self.n_features_in_ = len(frame.columns)
        return self

    def transform(self, X: object) -> np.ndarray:
        """The rows as float64 numbers; entries that are not what was declared are refused, unless they are missing."""
        check_is_fitted(self, "schema_")
        return encode(as_frame(X), self.schema_)

    def get_feature_names_out(self, input_features: object = None) -> np.ndarray:
        """The names of the encoded columns."""
        check_is_fitted(self, "schema_")
        return np.array(self.schema_.features, dtype=object)

    def _declared(self, frame: NamedColumns | None = None) -> dict[str, Column]:
        """The declared columns by their names; those of type "category" with the words of the table's types."""
        declared = self.columns or {}
        validate.check(isinstance(declared, Mapping), "columns", declared, "give a dict from names to declarations")
        columns = {}
        for name, value in declared.items():
            if value == "category":
                value = {"type": value}
            if isinstance(value, Mapping) and value.get("type") == "category" and "categories" not in value:
                value = {**value, "categories": _words_of(frame, str(name))}
            columns[str(name)] = read_column(str(name), value)
        return columns

    def _by_type(self, frame: NamedColumns, name: str) -> Column | None:
        if self.undeclared == "drop":
            return Column(name, "drop")
        kind = frame.kind(name)
        typed = self.undeclared == "type" and (kind == "bool" or kind == "number" and not identifies(name))
        return Column(name, kind) if typed else None

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.string, tags.input_tags.allow_nan, tags.input_tags.categorical = True, True, True
        tags.input_tags.two_d_array = False
        return tags


_UNKNOWN = "their types do not say how they become numbers, and their entries are private"
"""Why columns are not taken as they are."""


def _words_of(frame: NamedColumns | None, name: str) -> tuple[str, ...]:
    words = () if frame is None or name not in frame.columns else frame.words(name)
    remedy = 'give its words, such as ["a", "b"]: its type lists none (pandas categories or a polars Enum do)'
    validate.check(bool(words), f"columns.{name}", "category", remedy)
    return words


def _what_to_declare(frame: NamedColumns, names: list[str]) -> str:
    """What to write for columns whose types do not tell, ready to be filled in."""
    forms = {
        "words": '"category" (the words of its type, where they are public) or a list of words',
        "date": '{"type": "date", "bounds": ["2010-01-01", "2024-12-31"]}',
        "": '["a", "b"] (all its words), "hash" (any word, 16 fixed buckets)',
        "number": '(low, high) or "number"',
        "bool": '"bool"',
    }
    owner = '"id" (it seems to identify a row), '
    lines = [f'"{name}": {owner * identifies(name)}{forms[frame.kind(name)]} or "drop"' for name in names]
    return f"declare what is public of them, TableEncoder({{...}}) with {'; '.join(lines)}"


def check_numbers_only(X: object) -> None:
    """Refuse a frame with columns that are no numbers, with the encoder that makes numbers of them."""
    frame = as_frame(X)
    names = []
    for name in frame.columns:
        try:
            number = frame.kind(name) != "date"
            if frame.kind(name) in ("", "words"):  # numbers by each entry
                np.asarray(frame[name], dtype=np.float64)
        except (TypeError, ValueError):
            number = False
        if not number:
            names.append(name)
    before = "and put it before this estimator, make_pipeline(TableEncoder(...), ...)"
    remedy = f"{_what_to_declare(frame, names)}, {before}: {_UNKNOWN}"
    validate.check(not names, "X", f"columns {names}", remedy)
