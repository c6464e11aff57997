"""Steps before a private model that take nothing from the rows they are fitted on; every other one is a leak.

The list is of classes and of the parameters that keep them harmless, by exact class: a subclass may learn.  What is not
on it (scalers, imputers, target encoders, selections, steps of other packages) counts as learning.  Compositions are
walked into, whatever their depth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from sklearn import preprocessing as pre
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.feature_extraction import FeatureHasher
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import AdditiveChi2Sampler, PolynomialCountSketch, RBFSampler, SkewedChi2Sampler
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.random_projection import GaussianRandomProjection, SparseRandomProjection

from isthmus.tables.encoder import TableEncoder


def _always(step: Any) -> bool:
    return True


def _declared_words(step: Any) -> bool:
    """An encoder of given words, none of which is rare or frequent by what the rows hold."""
    return not isinstance(step.categories, str) and step.min_frequency is None and step.max_categories is None


def elementwise(function: Any) -> bool:
    """Whether a function is known to look at one number at a time."""
    return function is None or isinstance(function, np.ufunc)


def _constant(step: Any) -> bool:
    """An imputer that puts a constant everywhere, keeps empty columns, and marks none by what is missing."""
    return step.strategy == "constant" and step.keep_empty_features and not step.add_indicator


HARMLESS: dict[type, Callable[[Any], bool]] = {
    **dict.fromkeys((pre.Binarizer, pre.Normalizer, pre.PolynomialFeatures), _always),
    **dict.fromkeys((FeatureHasher, HashingVectorizer, FrozenEstimator), _always),  # frozen: fitted elsewhere
    **dict.fromkeys((AdditiveChi2Sampler, PolynomialCountSketch, SkewedChi2Sampler), _always),
    **dict.fromkeys((pre.OneHotEncoder, pre.OrdinalEncoder), _declared_words),
    **dict.fromkeys((GaussianRandomProjection, SparseRandomProjection), lambda step: step.n_components != "auto"),
    TableEncoder: _always,  # it reads names and types of columns, and rows one by one
    pre.FunctionTransformer: lambda step: elementwise(step.func),
    pre.SplineTransformer: lambda step: not isinstance(step.knots, str),
    RBFSampler: lambda step: not isinstance(step.gamma, str),
    SimpleImputer: _constant,
    MissingIndicator: lambda step: step.features == "all",
    CountVectorizer: lambda step: step.vocabulary is not None,
    TfidfVectorizer: lambda step: step.vocabulary is not None and not step.use_idf,
    TfidfTransformer: lambda step: not step.use_idf,
}


def learners(step: Any) -> Iterator[str]:
    """The names of the parts of a step that may take something from the rows; none of a harmless one.

    >>> from sklearn.preprocessing import Normalizer, StandardScaler
    >>> list(learners(Pipeline([("a", Normalizer()), ("b", StandardScaler())])))
    ['StandardScaler']
    """
    if step is None or (isinstance(step, str) and step in ("passthrough", "drop")):
        return
    if isinstance(step, Pipeline):
        inner = [part for _, part in step.steps]
    elif isinstance(step, FeatureUnion):
        inner = [part for _, part in step.transformer_list]
    elif isinstance(step, ColumnTransformer):
        inner = [*(part for _, part, _ in step.transformers), step.remainder]
        yield from (_name(columns) for _, _, columns in step.transformers if _chosen_by_values(columns))
    else:
        keeps = HARMLESS.get(type(step))
        if keeps is None or not keeps(step):
            yield _name(step)
        return
    for part in inner:
        yield from learners(part)


def _chosen_by_values(columns: Any) -> bool:
    """A function that is given the rows may choose columns by them; scikit-learn's own looks at names and types."""
    return callable(columns) and type(columns) is not make_column_selector


def _name(part: Any) -> str:
    return str(getattr(part, "__name__", type(part).__name__))
