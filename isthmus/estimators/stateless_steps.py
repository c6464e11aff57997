"""Steps before a private model that take nothing from the rows they are fitted on; every other one is a leak.

The list is of classes and of the parameters that keep them so, by exact class: a subclass may learn.  What is not
on it (scalers, imputers, target encoders, selections, steps of other packages) counts as learning.  Compositions are
walked into, whatever their depth.

What a data set tells without being paid for, and the warnings that name the remedy.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from types import FrameType

import numpy as np
from sklearn import compose, frozen, impute, random_projection
from sklearn import kernel_approximation as kernels
from sklearn import preprocessing as pre
from sklearn.base import BaseEstimator
from sklearn.feature_extraction import FeatureHasher, text
from sklearn.pipeline import FeatureUnion, Pipeline

from isthmus.privacy.leaks import Leak, PrivacyBudgetWarning, leak
from isthmus.tables.encoder import TableEncoder


def _elementwise(function: object) -> bool:
    """Whether a function is known to look at one number at a time."""
    return function is None or isinstance(function, np.ufunc)


def _declared_words(step: BaseEstimator) -> bool:
    """An encoder of given words, none of which is rare or frequent by what the rows hold."""
    return not isinstance(step.categories, str) and step.min_frequency is None and step.max_categories is None


_STATELESS: dict[type, Callable[[BaseEstimator], bool]] = {
    **dict.fromkeys((pre.Binarizer, pre.Normalizer, pre.PolynomialFeatures, text.HashingVectorizer), lambda step: True),
    **dict.fromkeys((kernels.AdditiveChi2Sampler, kernels.SkewedChi2Sampler, FeatureHasher), lambda step: True),
    **dict.fromkeys((pre.OneHotEncoder, pre.OrdinalEncoder), _declared_words),
    random_projection.GaussianRandomProjection: lambda step: step.n_components != "auto",
    random_projection.SparseRandomProjection: lambda step: step.n_components != "auto",
    kernels.PolynomialCountSketch: lambda step: True,
    kernels.RBFSampler: lambda step: not isinstance(step.gamma, str),
    frozen.FrozenEstimator: lambda step: True,  # fitted elsewhere
    TableEncoder: lambda step: True,  # it reads names and types of columns, and rows one by one
    pre.FunctionTransformer: lambda step: _elementwise(step.func),
    pre.SplineTransformer: lambda step: not isinstance(step.knots, str),
    # a constant everywhere, empty columns too, and none is marked by what is missing
    impute.SimpleImputer: lambda s: s.strategy == "constant" and s.keep_empty_features and not s.add_indicator,
    impute.MissingIndicator: lambda step: step.features == "all",
    text.CountVectorizer: lambda step: step.vocabulary is not None,
    text.TfidfVectorizer: lambda step: step.vocabulary is not None and not step.use_idf,
    text.TfidfTransformer: lambda step: not step.use_idf,
}


def _learners(step: BaseEstimator | str | None) -> Iterator[str]:
    """The names of the parts of a step that may take something from the rows; none of a stateless one.

    >>> from sklearn.preprocessing import Normalizer, StandardScaler
    >>> list(_learners(Pipeline([("a", Normalizer()), ("b", StandardScaler())])))
    ['StandardScaler']
    """
    if step is None or (isinstance(step, str) and step in ("passthrough", "drop")):
        return
    if isinstance(step, Pipeline):
        inner = [part for _, part in step.steps]
    elif isinstance(step, FeatureUnion):
        inner = [part for _, part in step.transformer_list]
    elif isinstance(step, compose.ColumnTransformer):
        inner = [*(part for _, part, _ in step.transformers), step.remainder]
        for _, _, columns in step.transformers:
            # a column selector looks at names and types
            if callable(columns) and type(columns) is not compose.make_column_selector:
                yield _name(columns)
    else:
        keeps = _STATELESS.get(type(step))
        if keeps is None or not keeps(step):
            yield _name(step)
        return
    for part in inner:
        yield from _learners(part)


def _name(part: object) -> str:
    return str(getattr(part, "__name__", type(part).__name__))


ONCE = ("pipeline", "base", "utils", "compose", "frozen", "_config", "externals")
"""Parts of scikit-learn that fit an estimator once; all others try it several times, or feed its errors back."""


def _frames() -> Iterator[FrameType]:
    """Whatever is running, from the inside out."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _warn_of_repeated_fits(epsilon: float) -> None:
    """Warn when a fit is one of many of a model selection: each of them spends."""
    for frame in _frames():
        package, *parts = str(frame.f_globals.get("__name__", "")).split(".")
        if package == "sklearn" and parts and parts[0] not in ONCE:
            warnings.warn(
                f"every fit of a search, cross-validation or ensemble spends epsilon={epsilon:g} on the rows it "
                "sees, and the scores that it is judged by are not private: choose with isthmus.PrivateSearch, "
                "choose on public data, or share a ledger= that refuses what exceeds it",
                PrivacyBudgetWarning,
                stacklevel=3,
            )
            return


def _learned_before() -> tuple[Leak, ...]:
    """Warn of whatever may have learned from the rows before this fit; what the statement says of it."""
    told: dict[str, None] = {}
    for frame in _frames():  # pipelines may be nested
        around = frame.f_locals.get("self")
        if isinstance(around, Pipeline):
            for name, step in around.steps[:-1]:
                names = dict.fromkeys(_learners(step))
                if names:
                    told[f"the step {name!r} ({', '.join(names)}) before the model"] = None
        elif isinstance(around, compose.TransformedTargetRegressor):
            names = dict.fromkeys(_learners(around.transformer))
            if names or not _elementwise(around.func):
                told[f"the transformer of the target ({', '.join(names) or 'its function'})"] = None
        elif isinstance(around, BaseEstimator):
            kind = type(around)
            ours = any(base.__module__.startswith("isthmus.") for base in kind.__mro__)
            if not ours and kind.__module__.split(".")[0] != "sklearn":
                told[f"{kind.__name__} around the model"] = None  # not known to hand the rows on as they are
    remedy = (
        "scale by bounds=, target_bounds= or public rows, or use steps that look at one row at a time (encoders with "
        "declared words, Normalizer, FunctionTransformer of a numpy ufunc, or FrozenEstimator around one fitted to "
        "public rows)"
    )
    return tuple(leak(f"what {name} took from the rows was", remedy) for name in told)
