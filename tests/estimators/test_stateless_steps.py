"""Steps before a private model: those known to take nothing from the rows pass, all others are warned of and stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from estimator_tables import classifier, labelled, numbered, regressor
from sklearn import preprocessing as pre
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.cluster import KMeans
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.feature_selection import SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.frozen import FrozenEstimator
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.kernel_approximation import Nystroem, RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.random_projection import GaussianRandomProjection

from isthmus import PrivacyLeakWarning, PrivateClassifier
from isthmus.estimators.stateless_steps import _learners

WORDS = [[0.0, 1.0]] * 4
REST = [("a", "passthrough", [0])]


class Centred(TransformerMixin, BaseEstimator):
    """A step of another package, which says that it needs no fit."""

    def fit(self, X: Any, y: Any = None) -> Centred:
        return self

    def transform(self, X: Any) -> Any:
        return X - X.mean(0)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags


class Normed(pre.Normalizer):
    """A subclass of a harmless step is not known to be one."""


LEARNING: dict[str, Any] = {
    "scaler": pre.StandardScaler(),
    "remainder": ColumnTransformer(REST, remainder=pre.StandardScaler()),
    "a transformer of columns": ColumnTransformer([("a", pre.MinMaxScaler(), [0])], remainder="passthrough"),
    "deep": make_pipeline(FeatureUnion([("a", Pipeline([("b", ColumnTransformer(REST, remainder=PCA(2)))]))])),
    "target encoder": pre.TargetEncoder(),
    "target encoder of declared words": pre.TargetEncoder(categories=WORDS),
    "rare words": pre.OneHotEncoder(categories=WORDS, min_frequency=2, handle_unknown="infrequent_if_exist"),
    "frequent words": pre.OneHotEncoder(categories=WORDS, max_categories=2, handle_unknown="infrequent_if_exist"),
    "words of the rows": pre.OneHotEncoder(handle_unknown="ignore"),
    "rare ordinals": pre.OrdinalEncoder(
        categories=WORDS, min_frequency=2, handle_unknown="use_encoded_value", unknown_value=-1
    ),
    "bins": pre.KBinsDiscretizer(),
    "knots": pre.SplineTransformer(),
    "mean imputer": SimpleImputer(),
    "constant imputer that drops columns": SimpleImputer(strategy="constant", fill_value=0.0),
    "imputer that marks": SimpleImputer(strategy="constant", keep_empty_features=True, add_indicator=True),
    "neighbours": KNNImputer(),
    "selection": SelectKBest(k=2),
    "variances": VarianceThreshold(),
    "meta-estimator": SelectFromModel(LogisticRegression()),
    "clusters": KMeans(2, n_init=1),
    "landmarks": Nystroem(n_components=5),
    "kernel scale": RBFSampler(gamma="scale"),
    "a function of all rows": pre.FunctionTransformer(lambda X: X - X.mean(0)),
    "columns by the rows": ColumnTransformer([("a", "passthrough", lambda X: [int(X.var(0).argmax())])]),
    "another package": Centred(),
    "subclass": Normed(),
}
HARMLESS: dict[str, Any] = {
    "nothing": "passthrough",
    "row norms": pre.Normalizer(),
    "thresholds": pre.Binarizer(threshold=0.5),
    "powers": pre.PolynomialFeatures(2),
    "declared words": pre.OneHotEncoder(categories=WORDS, handle_unknown="ignore"),
    "ordinals": pre.OrdinalEncoder(categories=WORDS, handle_unknown="use_encoded_value", unknown_value=-1),
    "ufunc": pre.FunctionTransformer(np.tanh),
    "identity": pre.FunctionTransformer(),
    "declared knots": pre.SplineTransformer(knots=np.linspace(-2, 2, 4)[:, None].repeat(4, 1)),
    "constant": SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True),
    "all marks": MissingIndicator(features="all"),
    "random features": RBFSampler(gamma=1.0, n_components=5),
    "projection": GaussianRandomProjection(3),
    "fitted elsewhere": FrozenEstimator(pre.StandardScaler().fit(labelled(seed=9)[0])),
    "columns": ColumnTransformer([("a", pre.Normalizer(), [0, 1]), ("b", "drop", [2])], remainder=pre.Binarizer()),
    "union": FeatureUnion([("a", pre.Normalizer()), ("b", "drop"), ("c", make_pipeline(pre.Binarizer()))]),
}


@pytest.mark.parametrize("name", LEARNING)
def test_a_step_that_is_not_known_to_be_harmless_is_warned_of_and_stated(name: str) -> None:
    step = clone(LEARNING[name])
    if name == "columns by the rows":
        step = LEARNING[name]
    with pytest.warns(PrivacyLeakWarning, match="the step 'prepared'") as caught:
        model = Pipeline([("prepared", step), ("model", classifier(bounds=None))]).fit(*labelled())[-1]
    assert len(caught) == 1
    assert [leak for leak in model.privacy_.leaks if "'prepared'" in leak] == list(model.privacy_.leaks) != []
    assert "Epsilon does NOT cover the following" in model.privacy_.words()


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_step_passes(name: str) -> None:
    step = HARMLESS[name]
    model = Pipeline([("prepared", step), ("model", classifier(bounds=None))]).fit(*labelled())[-1]  # a warning raises
    assert model.privacy_.leaks == ()


def test_text_is_hashed_or_counted_by_declared_words() -> None:
    good = [HashingVectorizer(), CountVectorizer(vocabulary=["a"]), TfidfVectorizer(vocabulary=["a"], use_idf=False)]
    assert [list(_learners(each)) for each in [*good, TfidfTransformer(use_idf=False)]] == [[], [], [], []]
    bad = [CountVectorizer(), TfidfVectorizer(vocabulary=["a"]), TfidfTransformer()]
    assert [list(_learners(each)) for each in bad] == [[type(each).__name__] for each in bad]


def test_columns_and_widths_are_chosen_without_the_rows() -> None:
    assert list(_learners(ColumnTransformer([("a", pre.Normalizer(), make_column_selector("x"))]))) == []
    assert list(_learners(MissingIndicator())) == ["MissingIndicator"]
    assert list(_learners(GaussianRandomProjection())) == ["GaussianRandomProjection"]


def test_the_parts_that_learn_are_named() -> None:
    assert list(_learners(LEARNING["deep"])) == ["PCA"] and list(_learners(LEARNING["remainder"])) == ["StandardScaler"]


def test_targets_are_transformed_one_number_at_a_time_or_warned_of() -> None:
    X, y = numbered()
    TransformedTargetRegressor(regressor(), func=np.arcsinh, inverse_func=np.sinh).fit(X, y)
    for learning in ({"transformer": pre.StandardScaler()}, {"func": lambda y: y / 2, "inverse_func": np.sinh}):
        with pytest.warns(PrivacyLeakWarning, match="transformer of the target"):
            TransformedTargetRegressor(regressor(), check_inverse=False, **learning).fit(X, y)


class Mine(PrivateClassifier):
    """A subclass is the model itself."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        return super().fit(X, y, sample_weight)


def test_a_subclass_of_the_model_is_not_around_it() -> None:
    assert Mine(**classifier().get_params()).fit(*labelled()).privacy_.leaks == ()


class Around(ClassifierMixin, BaseEstimator):
    """A meta-estimator of another package."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def fit(self, X: Any, y: Any) -> Around:
        self.inner_ = clone(self.inner).fit(X - X.mean(0), y)
        return self


def test_an_unknown_estimator_around_the_model_is_warned_of() -> None:
    with pytest.warns(PrivacyLeakWarning, match="Around around the model"):
        model = Around(classifier()).fit(*labelled())
    assert any("Around" in leak for leak in model.inner_.privacy_.leaks)
