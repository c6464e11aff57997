"""What a user hands to an estimator, read and checked: arrays, frames, and tables on disk that are read in slices."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from isthmus.base import validate
from isthmus.base.matrix import Csr, Matrix, canonical, is_sparse
from isthmus.base.streamed import Streamed, opened
from isthmus.tables.encode import is_frame
from isthmus.tables.encoder import check_numbers_only

if TYPE_CHECKING:
    from isthmus.estimators.base import _PrivateLinear

_TEXT_COLUMNS = (
    "X holds text, which numpy could not convert to numbers: declare what each column is in "
    "isthmus.TableEncoder({...}), and put it before this estimator: make_pipeline(TableEncoder(...), ...)"
)
_GAPS = (
    "X contains NaN: fill gaps by a public rule that looks at no other row. isthmus.TableEncoder({...}) puts "
    "the middle of a declared range there, SimpleImputer(strategy='constant', keep_empty_features=True) a zero"
)
_FLAT = (
    "Expected 2D array, got another: Reshape your data, X.reshape(-1, 1) for one column, X.reshape(1, -1) for one row"
)


def _read(estimator: _PrivateLinear, X: object, *y: object, reset: bool = False, least: int = 1) -> tuple[Matrix, Any]:
    """Rows as the library holds them, and targets where some are given; of a fit (`reset`) their columns are noted."""
    table, targets = opened(X, *y)
    if isinstance(table, Streamed):
        return _read_in_slices(estimator, table, targets, reset)
    if is_frame(table):
        check_numbers_only(table)
    how: dict = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": least}
    if not y:
        return _as_rows(_checked(estimator, table, reset=reset, **how)), None
    rows, targets = _checked(estimator, table, targets, y_numeric=not estimator._LABELS, reset=reset, **how)
    return _as_rows(rows), targets


def _checked(estimator: object, *arrays: object, **how: object) -> Any:
    """`validate_data` of scikit-learn, with other words for gaps and text: its own repeat an entry of the rows, or
    advise to fill gaps from the rows, which epsilon would not cover.
    """
    if how.get("y_numeric"):
        remedy = "give a number for each row; PrivateClassifier predicts words"
        validate.require(_are_numbers(arrays[1]), f"y holds entries that are no numbers: {remedy}")
    try:
        return validate_data(estimator, *arrays, **how)
    except ValueError as error:
        words = _other_words(str(error))
        if not words:
            raise
    raise validate.InvalidInput(words)  # out here: the error that held the entry is not its context


def _are_numbers(y: object) -> bool:
    """Whether entries that are kept as text or as objects become numbers; all others are left to scikit-learn."""
    entries = np.asarray(y)
    try:
        return entries.ndim == 0 or entries.dtype.kind not in "SUO" or entries.astype(float) is not None
    except (TypeError, ValueError):
        return False


def _other_words(said: str) -> str:
    name = "X" if "Input X" in said else "y"
    others = {
        "contains NaN": {"X": _GAPS, "y": "y contains NaN: leave out the rows that have no target"}[name],
        "contains infinity": f"{name} contains infinity or numbers too large: give finite numbers",
        "Reshape your data": _FLAT,
        "could not convert string": _TEXT_COLUMNS,
    }
    return next((words for begun, words in others.items() if begun in said), "")


def _as_rows(X: np.ndarray | Csr) -> Matrix:
    """The matrix as the library holds it, already checked; CSR in float64, so that no product converts it again."""
    if is_sparse(X):
        return canonical(X if X.dtype == np.float64 else X.astype(np.float64))
    with warnings.catch_warnings():  # a read-only array is shared like any other: nothing here writes to it
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(X if min(X.strides) >= 0 else X.copy())


def _read_in_slices(estimator: _PrivateLinear, X: Streamed, y: object, reset: bool) -> tuple[Streamed, Any]:
    """A table that is read in slices, and its targets, with the checks that scikit-learn makes of arrays."""
    validate.check(min(X.shape) > 0, "X.shape", X.shape, "give at least one row and one column")
    if reset:
        estimator.__dict__.pop("feature_names_in_", None)
        estimator.n_features_in_ = X.shape[1]
        if X.names is not None:
            estimator.feature_names_in_ = np.array(X.names, dtype=object)
    d, names = estimator.n_features_in_, vars(estimator).get("feature_names_in_")
    validate.check(X.shape[1] == d, "X.shape", X.shape, f"give the {d} columns of the fit")
    same = names is None or X.names is None or list(names) == list(X.names)
    validate.check(same, "X.names", list(X.names or ())[:20], "give the columns of the fit, in their order")
    X.check_finite("X")
    if y is None:
        validate.check(not reset, "y", None, "give targets, or the name of their column")
        return X, None
    dtype = {True: None, False: "numeric"}[estimator._LABELS]
    targets = check_array(column_or_1d(y, warn=True), ensure_2d=False, dtype=dtype, input_name="y")
    remedy = f"give one target for each of the {X.shape[0]} rows"
    validate.check(len(targets) == X.shape[0], "len(y)", len(targets), remedy)
    return X, targets
