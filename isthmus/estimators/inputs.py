"""What a user hands to an estimator, read and checked: arrays, frames, and tables on disk that are read in slices."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.utils.validation import check_array, column_or_1d, validate_data

from isthmus.base import validate
<<<<<<< HEAD
from isthmus.base.arrow import opened
from isthmus.base.matrix import Matrix, canonical, is_sparse
from isthmus.base.streamed import Streamed
from isthmus.tables.encode import is_frame
from isthmus.tables.encoder import check_numbers_only
=======
from isthmus.base.matrix import as_matrix, canonical, is_sparse
from isthmus.base.streamed import Streamed, dense_parts
from isthmus.estimators.rank_group import ALONE, RankGroup
from isthmus.estimators.stateless_steps import leak
from isthmus.gradients.rounding import upper_norms
from isthmus.problems.scaling import RowMap, RowMaps, Scaled
>>>>>>> main

if TYPE_CHECKING:
    from isthmus.estimators.base import PrivateLinear

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


def read(estimator: PrivateLinear, X: object, *y: object, reset: bool = False, least: int = 1) -> tuple[Matrix, Any]:
    """Rows as the library holds them, and targets where some are given; of a fit (`reset`) their columns are noted."""
    table, targets = opened(X, *y)
    if isinstance(table, Streamed):
        return _read_in_slices(estimator, table, targets, reset)
    if is_frame(table):
        check_numbers_only(table)
    how: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": least}
    if not y:
        return as_rows(checked(estimator, table, reset=reset, **how)), None
    rows, targets = checked(estimator, table, targets, y_numeric=not estimator._LABELS, reset=reset, **how)
    return as_rows(rows), targets


def checked(estimator: object, *arrays: object, **how: object) -> Any:
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
    if "contains NaN" in said:
        return {"X": _GAPS, "y": "y contains NaN: leave out the rows that have no target"}[name]
    if "contains infinity" in said:
        return f"{name} contains infinity or numbers too large: give finite numbers"
    others = {"Reshape your data": _FLAT, "could not convert string": _TEXT_COLUMNS}
    return next((words for begun, words in others.items() if begun in said), "")


<<<<<<< HEAD
def as_rows(X: Any) -> Matrix:
=======
def check_bounds(bounds: Any, data_norm: Any) -> None:
    """Refuse bounds and norms that are none, before data is read."""
    if isinstance(bounds, str):
        validate.one_of(("data",), bounds=bounds)
    elif bounds is not None:
        pair = isinstance(bounds, (tuple, list)) and len(bounds) == 2
        validate.check(pair, "bounds", bounds, _PAIR)
        low, high = (np.asarray(side, dtype=float) for side in bounds)
        declared = ~(np.isnan(low) | np.isnan(high))
        ordered = bool(np.all(np.where(declared, low < high, True)))
        finite = bool(np.all(np.isfinite(np.where(declared, low, 0)) & np.isfinite(np.where(declared, high, 0))))
        validate.check(
            ordered and finite,
            "bounds",
            bounds,
            "give finite numbers with low below high (NaN: buy the range of that column)",
        )
    if isinstance(data_norm, str):
        validate.one_of(("data", "unit"), data_norm=data_norm)
    elif data_norm is not None:
        validate.positive(data_norm=data_norm)


def inputs_of(
    X: Any,
    *,
    bounds: Any,
    data_norm: Any,
    public: Any,
    intercept: bool,
    private: bool,
    origin: bool = False,
    whole: bool = False,
    ranks: RankGroup = ALONE,
) -> Inputs:
    """The maps of rows X; what is private in X is not looked at, except where a warning says so.

    whole  whether rows within their ranges are never shortened, however long: histograms are bought of them
    ranks   who else has rows: what is read from them is read off all

    bounds and data_norm, then public rows, then a purchase; a CSR row gets length 1, which looks at no other row.
    """
    n, d = X.shape
    leaks: list[str] = []
    if not private:
        return Inputs(_from_rows(X, intercept, ranks))
    if isinstance(bounds, str):
        bounds = _ranges_of(X, ranks)
        leaks.append(leak("the ranges of the columns (bounds) were", "give bounds=(low, high) that are public"))
    if isinstance(data_norm, str) and data_norm == "data":
        longest = max(ranks.all(float(upper_norms(X).max()) if n else 0.0))
        data_norm = max(longest, 1e-12)
        leaks.append(leak(f"the largest row norm (data_norm={data_norm:.4g}) was", "give a data_norm= that is public"))
    if bounds is not None:
        return _ranged(d, bounds, data_norm, public, intercept, origin, whole, leaks)
    bias = DENSE_BIAS if intercept else 0.0
    if data_norm == "unit" or (data_norm is None and public is None and is_sparse(X)):
        return Inputs(RowMaps([RowMap(limit=None, bias=SPARSE_BIAS if intercept else 0.0)]), (), tuple(leaks))
    if data_norm is not None:
        limit = float(data_norm)
        return Inputs(RowMaps([RowMap(limit=limit, bias=bias * limit)]), (), tuple(leaks))
    if public is not None:
        return Inputs(_from_rows(public, intercept), (), tuple(leaks))
    bought = Ranges(bias=1.0 if intercept else 0.0, origin=origin, whole=whole)
    return Inputs(RowMaps([]), (bought,), tuple(leaks))


def standardised(public: Scaled) -> RowMap:
    """Centred, scaled columns and a bias, from public rows that are seen through the first map.

    A variance is taken to be at least the largest second moment over the number of rows: a column that is constant
    in the public rows may not be so in the private ones.
    """
    n, d = public.shape
    mean = sum((rows.sum(0) for _, _, rows in public.chunks()), torch.zeros(d, dtype=torch.float64)) / n
    second = public.square_sum(torch.ones(n, dtype=torch.float64)) / n
    variance = (second - mean**2).clamp(min=max(float(second.max()) / n, 1e-12))
    return RowMap(None, None, mean, variance.rsqrt(), math.sqrt(d), 1.0)


def _ranged(
    d: int, bounds: Any, data_norm: Any, public: Any, intercept: bool, origin: bool, whole: bool, notes: list[str]
) -> Inputs:
    low, high = (_column(side, d) for side in bounds)
    bias = 1.0 if intercept else 0.0
    if public is not None:
        public_ranges = _ranges_of(public)
        unknown = low.isnan() | high.isnan()
        low, high = torch.where(unknown, public_ranges[0], low), torch.where(unknown, public_ranges[1], high)
    if bool((low.isnan() | high.isnan()).any()):
        return Inputs(RowMaps([]), (Ranges(low, high, bias=bias, origin=origin, whole=whole),), tuple(notes))
    limit = None if data_norm is None or isinstance(data_norm, str) else float(data_norm)
    limit = math.sqrt(d) if limit is None and whole else limit
    return Inputs(RowMaps([ranged(low, high, bias, limit=limit, origin=origin)]), (), tuple(notes))


def _column(side: Any, d: int) -> Tensor:
    values = torch.from_numpy(np.atleast_1d(np.asarray(side, dtype=float)).copy())
    if len(values) == 1:
        values = values.expand(d).clone()
    validate.check(
        len(values) == d, "bounds", f"{len(values)} columns", f"give one number for all columns, or {d}, one for each"
    )
    return values


def _from_rows(X: Any, intercept: bool, ranks: RankGroup = ALONE) -> RowMaps:
    """Columns divided by their root mean square over these rows (CSR: rows of length 1), usual lengths near 1."""
    X = as_matrix("public", X)
    if is_sparse(X):
        return RowMaps([RowMap(limit=None, bias=SPARSE_BIAS if intercept else 0.0)])
    mean, spread = ranks.moments(X)
    if not intercept:  # without a constant to make up for it columns keep their place
        mean, spread = torch.zeros_like(mean), torch.hypot(mean, spread)
    spread = torch.where(spread > 1e-12 * (1 + mean.abs()), spread, torch.ones_like(spread))
    bias = 1.0 if intercept else 0.0
    return RowMaps([RowMap(None, None, mean, 1 / spread, 1.5 * math.sqrt(X.shape[1]), bias)])


def _ranges_of(X: Any, ranks: RankGroup = ALONE) -> tuple[Tensor, Tensor]:
    if is_sparse(X):
        validate.refuse("bounds", "data", "give data_norm= for sparse rows")
    low = torch.full((X.shape[1],), math.inf, dtype=torch.float64)
    high = -low
    for part in dense_parts(X):
        low, high = torch.minimum(low, part.amin(0)), torch.maximum(high, part.amax(0))
    low, high = ranks.extremes(low, high)
    same = low == high
    return torch.where(same, low - 1, low), torch.where(same, high + 1, high)


def as_rows(X: Any) -> Any:
>>>>>>> main
    """The matrix as the library holds it, already checked; CSR in float64, so that no product converts it again."""
    if is_sparse(X):
        return canonical(X if X.dtype == np.float64 else X.astype(np.float64))
    with warnings.catch_warnings():  # a read-only array is shared like any other: nothing here writes to it
        warnings.simplefilter("ignore", UserWarning)
        return torch.from_numpy(X if min(X.strides) >= 0 else X.copy())


def _read_in_slices(estimator: PrivateLinear, X: Streamed, y: object, reset: bool) -> tuple[Streamed, Any]:
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
