"""From what a user hands to an estimator to a problem that can be planned: maps of rows, purchases, what is assumed.

Rows are mapped to norm at most 1 by arguments, by public data, or by a release that is paid for.  In a fit by a group
every rank has rows of its own: what is read off rows that are not private, or off private ones with a warning (classes
that nobody declared, ranges of "data"), every rank finds for its own, and it is combined.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_array, column_or_1d, validate_data
from torch import Tensor

from isthmus.algorithms.purchases import SMALL, Ranges, SumPurchase, ranged
from isthmus.algorithms.suggest import CONSTANTS
from isthmus.base import storage, validate
from isthmus.base.matrix import Csr, Matrix, as_matrix, canonical, is_sparse, take
from isthmus.base.streamed import Streamed, dense_parts, opened
from isthmus.core.group import ALONE, Group
from isthmus.estimators.stateless_steps import _learned_before
from isthmus.gradients.rounding import upper_norms
from isthmus.objectives.linear import LinearModel, top_eigenvalue
from isthmus.privacy.leaks import Leak, leak
from isthmus.privacy.plan import mu_of
from isthmus.problems.queries import TopEigenvalue
from isthmus.problems.scaling import RowMap, RowMaps, Scaled
from isthmus.tables import encode, encoder

if TYPE_CHECKING:
    from isthmus.estimators.linear import Bounds, _PrivateLinear

_DENSE_BIAS, _SPARSE_BIAS = 0.5, 0.1
"""The constant column of an intercept, relative to the longest row: long enough to be learned, short beside x."""
DECLARED = "what was declared about the data (its columns, classes, bounds, norms, ranges) is public knowledge"
_PUBLIC = "the rows given as public are public, and none of the private records is among them"
_PUBLIC_ROWS = 1000
"""More public rows than this are sampled."""
Objective = tuple[LinearModel, tuple[SumPurchase, ...], tuple[str, ...]]
"""An objective, what is bought for it, and on what it rests."""
Start = tuple[Scaled, np.ndarray, Tensor | None]
"""Rows, targets and weights that a start is fitted to."""


@dataclass(frozen=True)
class _Problem:
    """One problem, ready to be planned: its objective, what is bought first, what is assumed, what was read off.

    facts     what the planner is told; `public` among them are the public rows as algorithms learn from them
    labelled  the labelled public rows that a start is fitted to
    """

    objective: LinearModel
    maps: RowMaps
    buys: tuple[SumPurchase, ...]
    facts: dict[str, object]
    assumptions: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    labelled: Start | None = None

    @property
    def n(self) -> int:
        """The public number of records."""
        return int(self.facts["n"])  # type: ignore[call-overload]


def _posed(model: _PrivateLinear, X: Matrix, y: np.ndarray, weight: ArrayLike | None) -> _Problem:
    """Objective, maps and purchases of a fit; what is private in X is not looked at, except where a warning says so."""
    private, several, d = model._private, model._group.size > 1, X.shape[1]
    learned: tuple[str, ...] = ()
    if private or several:
        learned = _learned_before()
    remedy = "put steps that learn nothing before the model: each rank's steps would learn from its own rows alone"
    validate.check(not learned or not several, "group", [*map(str, learned)], remedy)
    guessed = model._learn_targets(y)
    public, targets = _public_rows(model, d)
    chosen, bought = _scales(model, X, public)
    intercept = model.fit_intercept and chosen != "public" and bought not in ("moments", "shapes")
    # among so many records rows that are shortened would bend more than their noise
    many = private and _certainty(model, X.shape[0]) >= CONSTANTS.clip_b * d
    assumed: list[str] = []
    if model._mean_alone(X.shape[0]):
        first: RowMap | Ranges = RowMap(weight=torch.zeros(d, dtype=torch.float64), bias=1.0)
    else:
        first = _first_map(model, X, public, intercept, bought == "shapes" or many, assumed)
    buys: tuple[SumPurchase, ...] = ()
    maps, seen = list[RowMap](), None
    if isinstance(first, RowMap):
        maps.append(first)
    else:
        buys = (first,)
    if public is not None:
        seen = RowMaps(maps)(public)
        if chosen == "public":
            maps.append(_standardised(seen))
            seen = maps[-1](seen)
    view = RowMaps(maps)(Scaled.of(X))
    if isinstance(first, Ranges) and first.bias:  # a column that the bought map will fill
        view = view.with_constant()
    objective, more, remarks = model._objective(view, y, weight)
    buys += more
    if private:
        assumed += [DECLARED, *learned, *guessed]
    if public is not None:
        assumed.append(_PUBLIC)
    assumed += remarks
    facts = {**_public_facts(model, X), "d": view.shape[1]}
    facts |= {"scale": chosen, "before": sum(item.share for item in buys), "public": None}
    if chosen == "public" or not private:
        facts["scale"] = "none"
    labelled = None
    if seen is not None:
        same = seen.shape[1] == view.shape[1]
        if not same:  # seen as the private rows before anything is bought: a bought map fills a column
            seen = seen.with_constant()
        if targets is not None:
            labelled = seen, *model._public_targets(targets)
        if same:
            facts["public"] = seen.plain() if labelled is None else (seen.plain(), labelled[1])
    leaks = tuple(fact for fact in assumed if isinstance(fact, Leak))
    rest = tuple(fact for fact in assumed if not isinstance(fact, Leak))
    return _Problem(objective, RowMaps(maps), buys, facts, rest, leaks, labelled)


def _public_facts(model: _PrivateLinear, X: Matrix) -> dict[str, object]:
    """What is public of the problem before it is posed."""
    ranged = model.bounds is not None or model.data_norm is None and model.public is None
    facts = {"n": model._records(X.shape[0]), "d": X.shape[1], "sparse": is_sparse(X), "features": "linear"}
    if model._private:
        facts["features"] = model.features
    return {**facts, "ranged": ranged, "loss": model._kind, "classes": model._class_count}


# ---------------------------------------------------------------- where column scales come from


def _scales(model: _PrivateLinear, X: Matrix, public: Matrix | None) -> tuple[str, str]:
    """Where column scales come from, as asked or from public rows where they tell more than the budget would buy.

    And the scale that will be bought: centred columns bring an intercept of their own.
    """
    if not model._private:
        return model.scale, "none"
    bought, named, sparse = model.scale, model._named_algorithm, is_sparse(X)
    if bought != "auto":
        return bought, bought
    if not model.fit_intercept and not sparse:
        return "none", "none"  # centred columns have an intercept; those of CSR rows are scaled, not centred
    if named is None or "scale" in named.parameters:
        choices = model._planned(_public_facts(model, X), exact=False).choices
        bought = str(choices[0].arguments.get("scale", "none")) if choices else "none"
    free = model.constraint is None and not (model.l1 or model.l2) and (named is None or named.direct)
    if public is not None and free and not sparse and X.shape[1] <= SMALL and bought != "shapes":
        # with less even scaled columns drown in noise; with more all records tell the scale better than a few rows
        if 3 * X.shape[1] <= _certainty(model, X.shape[0]) <= 8 * public.shape[0]:
            return "public", "public"
    return "auto", bought


def _certainty(model: _PrivateLinear, n: int) -> float:
    n = model._records(n)
    return n * mu_of(model.epsilon, model._delta(n), model._adjacency)


def _public_rows(model: _PrivateLinear, d: int) -> tuple[Matrix | None, np.ndarray | None]:
    X, y = model.public, None
    if isinstance(X, tuple):
        X, y = X
    if X is None:
        return None, None
    X = as_matrix("public", X if is_sparse(X) else np.asarray(X, dtype=np.float64))
    validate.check(X.shape[1] == d, "public", tuple(X.shape), f"give public rows with {d} columns")
    if y is not None:
        y = np.asarray(y)
        sizes = f"{X.shape[0]} rows, {len(y)} targets"
        validate.check(len(y) == X.shape[0], "public", sizes, "give one target for each public row")
    if X.shape[0] > _PUBLIC_ROWS:  # directions are found anew every few rounds, at a cost of rows^2
        some = np.random.default_rng(0).permutation(X.shape[0])[:_PUBLIC_ROWS]
        X = take(X, torch.from_numpy(some))
        if y is not None:
            y = y[some]
    return X, y


# ---------------------------------------------------------------- maps of rows


def _check_range(name: str, value: object, remedy: str, partly: bool = False) -> None:
    """Refuse what is no (low, high), before data is read; `partly`: where one of them is NaN the range is bought."""
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    validate.check(pair, name, value, remedy)
    assert isinstance(value, (tuple, list))
    low, high = np.broadcast_arrays(*(np.atleast_1d(np.asarray(side, dtype=float)) for side in value))
    good = (low < high) & np.isfinite(low) & np.isfinite(high)
    remedy = "give finite numbers with low below high"
    if partly:
        good |= np.isnan(low) | np.isnan(high)
        remedy += " (NaN: buy the range of that column)"
    validate.check(bool(good.all()), name, value, remedy)


def _check_bounds(bounds: Bounds | str | None, data_norm: float | str | None) -> None:
    """Refuse bounds and norms that are none, before data is read."""
    if isinstance(bounds, str):
        validate.one_of(("data",), bounds=bounds)
    elif bounds is not None:
        remedy = 'give (low, high): two numbers, or two lists with a number for each column; or "data"'
        _check_range("bounds", bounds, remedy, partly=True)
    if isinstance(data_norm, str):
        validate.one_of(("data", "unit"), data_norm=data_norm)
    elif data_norm is not None:
        validate.positive(data_norm=data_norm)


def _first_map(
    model: _PrivateLinear, X: Matrix, public: Matrix | None, intercept: bool, whole: bool, leaks: list[str]
) -> RowMap | Ranges:
    """How rows X get norm at most 1: by bounds and data_norm, by public rows, by a purchase; a CSR row gets length 1.

    whole  whether rows within their ranges are never shortened, however long: histograms are bought of them
    leaks  to which is added what was read off the rows
    """
    d, bounds, norm = X.shape[1], model.bounds, model.data_norm
    if not model._private:
        return _from_rows(X, intercept, model._group)
    if isinstance(bounds, str):
        bounds = _ranges_of(X, model._group)
        leaks.append(leak("the ranges of the columns (bounds) were", "give bounds=(low, high) that are public"))
    if norm == "data":
        norm = max(*model._group.all(float(upper_norms(X).max()) if X.shape[0] else 0.0), 1e-12)
        leaks.append(leak(f"the largest row norm (data_norm={norm:.4g}) was", "give a data_norm= that is public"))
    by_ranges: dict = {"bias": float(intercept), "origin": not model.fit_intercept}
    if bounds is not None:
        low, high = (_column(side, d) for side in bounds)
        unknown = low.isnan() | high.isnan()
        if public is not None:
            low, high = (torch.where(unknown, *ends) for ends in zip(_ranges_of(public), (low, high), strict=True))
        elif unknown.any():
            return Ranges(low, high, whole=whole, **by_ranges)
        elif model._fills_itself and model.scale == "auto" and norm is None and not isinstance(model.bounds, str):
            least, most = CONSTANTS.ranges_b
            if max(least * d, CONSTANTS.ranges_least_b) <= _certainty(model, X.shape[0]) <= most * d:
                return Ranges(within=(low, high), whole=whole, **by_ranges)
        limit = math.sqrt(d) if whole else None
        if norm is not None and not isinstance(norm, str):
            limit = float(norm)
        return ranged(low, high, limit=limit, **by_ranges)
    if norm == "unit" or (norm is None and public is None and is_sparse(X)):
        return RowMap(limit=None, bias=_SPARSE_BIAS * intercept)
    if norm is not None:
        return RowMap(limit=float(norm), bias=_DENSE_BIAS * intercept * float(norm))
    if public is not None:
        return _from_rows(public, intercept)
    return Ranges(whole=whole, **by_ranges)


def _standardised(public: Scaled) -> RowMap:
    """Centred, scaled columns and a bias, from public rows that are seen through the first map.

    A variance is taken to be at least the largest second moment over the number of rows: a column that is constant
    in the public rows may not be so in the private ones.
    """
    n, d = public.shape
    mean = sum((rows.sum(0) for _, _, rows in public.chunks()), torch.zeros(d, dtype=torch.float64)) / n
    second = public.square_sum(torch.ones(n, dtype=torch.float64)) / n
    variance = (second - mean**2).clamp(min=max(float(second.max()) / n, 1e-12))
    return RowMap(None, None, mean, variance.rsqrt(), math.sqrt(d), 1.0)


def _column(side: ArrayLike, d: int) -> Tensor:
    values = torch.from_numpy(np.atleast_1d(np.asarray(side, dtype=float)).copy())
    good = len(values) in (1, d)
    remedy = f"give one number for all columns, or {d}, one for each"
    validate.check(good, "bounds", f"{len(values)} columns", remedy)
    return values.expand(d).clone()


def _from_rows(X: Matrix, intercept: bool, group: Group = ALONE) -> RowMap:
    """Columns divided by their root mean square over these rows (CSR: rows of length 1), usual lengths near 1."""
    X = as_matrix("public", X)
    if is_sparse(X):
        return RowMap(limit=None, bias=_SPARSE_BIAS * intercept)
    n, zero = X.shape[0], torch.zeros(X.shape[1], dtype=torch.float64)
    mean = group.mean(sum((part.sum(0) for part in dense_parts(X)), zero) / max(n, 1), n)
    square = sum(((part - mean).square().sum(0) for part in dense_parts(X)), zero) / max(n, 1)
    spread = group.mean(square, n).sqrt()
    if not intercept:  # without a constant to make up for it columns keep their place
        mean, spread = torch.zeros_like(mean), torch.hypot(mean, spread)
    spread = torch.where(spread > 1e-12 * (1 + mean.abs()), spread, torch.ones_like(spread))
    return RowMap(None, None, mean, 1 / spread, 1.5 * math.sqrt(X.shape[1]), float(intercept))


def _ranges_of(X: Matrix, group: Group = ALONE) -> tuple[Tensor, Tensor]:
    """The smallest and the largest entry of each column, of the rows of all ranks."""
    if is_sparse(X):
        validate.refuse("bounds", "data", "give data_norm= for sparse rows")
    ends = torch.full((2, X.shape[1]), -math.inf, dtype=torch.float64)
    for part in dense_parts(X):
        ends = torch.maximum(ends, torch.stack([-part.amin(0), part.amax(0)]))
    ends = torch.stack(group.all(ends)).amax(0)
    low, high = -ends[0], ends[1]
    same = (low == high).double()
    return low - same, high + same


# ---------------------------------------------------------------- the rows of all ranks of a group


def _shared_rows(group: Group, X: Matrix, names: list[str]) -> tuple[Matrix, int]:
    """Rows of one kind on all ranks, and how many they have together; a rank may have none."""
    layouts = group.all([*X.shape, is_sparse(X), str(X.dtype), names])
    n, kinds = sum(layout[0] for layout in layouts), [layout[1:] for layout in layouts if layout[0]]
    validate.check(n > 0, "X", f"{n} rows", "give at least one rank some rows")
    remedy = "give all ranks rows with the same columns, names and dtype, all sparse or all dense"
    validate.check(all(kind == kinds[0] for kind in kinds), "X", kinds, remedy)
    d, sparse, dtype, _ = kinds[0]
    if not X.shape[0] and sparse:  # an empty part is of whatever kind the others are
        X = sp.csr_matrix((0, d))
    elif not X.shape[0]:
        X = torch.zeros(0, d, dtype=storage.DTYPES[dtype.split(".")[-1]])
    return X, n


def _shared_labels(group: Group, y: np.ndarray) -> np.ndarray:
    """The labels that occur on any rank."""
    own = np.unique(y)
    if group.size == 1:
        return own
    parts = [part for part in group.all({"kind": own.dtype.kind, "labels": own.tolist()}) if part["labels"]]
    kinds = {part["kind"] for part in parts}
    remedy = "give all ranks labels of one kind: all of them numbers, or all of them text"
    validate.check(len(kinds) < 2, "y", sorted(kinds), remedy)
    every = [label for part in parts for label in part["labels"]]
    return np.unique(np.array(every, dtype=object if kinds == {"O"} else None))


def _largest_eigenvalue(group: Group, X: Matrix) -> float:
    """lambda_max(X'X) of all rows as they are: of fits that are not private."""
    if group.size == 1:
        return top_eigenvalue(X)
    eigenvalue = group.answer(_OfLongRows(X))
    return float(group.on_leader(lambda: eigenvalue))


class _OfLongRows(TopEigenvalue):
    """Of rows of any length: nothing that is released."""

    def __init__(self, X: Matrix) -> None:
        self.X = X  # type: ignore[assignment]


# ---------------------------------------------------------------- what a user hands in

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
    if encode.is_frame(table):
        encoder.check_numbers_only(table)
    how: dict = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_min_samples": least}
    if not y:
        return _as_rows(_checked(estimator, table, reset=reset, **how)), None
    rows, targets = _checked(estimator, table, targets, y_numeric=not estimator._LABELS, reset=reset, **how)
    return _as_rows(rows), targets


def _checked(estimator: object, *arrays: object, **how: object) -> Any:
    """`validate_data` of scikit-learn, with other words for gaps and text: its own repeat an entry of the rows, or
    advise to fill gaps from the rows, which epsilon would not cover.
    """
    words = "y holds entries that are no numbers: give a number for each row; PrivateClassifier predicts words"
    try:
        if how.get("y_numeric") and (y := np.asarray(arrays[1])).ndim and y.dtype.kind in "SUO":
            y.astype(float)
        words = ""
        return validate_data(estimator, *arrays, **how)
    except (TypeError, ValueError) as error:
        name = "X" if "Input X" in str(error) else "y"
        others = {
            "contains NaN": {"X": _GAPS, "y": "y contains NaN: leave out the rows that have no target"}[name],
            "contains infinity": f"{name} contains infinity or numbers too large: give finite numbers",
            "Reshape your data": _FLAT,
            "could not convert string": _TEXT_COLUMNS,
        }
        words = words or next((words for begun, words in others.items() if begun in str(error)), "")
        if not words:
            raise
    raise validate.InvalidInput(words)  # out here: the error that held the entry is not its context


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
