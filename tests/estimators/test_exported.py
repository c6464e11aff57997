"""A model as scikit-learn or ONNX predicts with it: the same numbers, and the statement beside them."""

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC

from isthmus.base.validate import InvalidInput
from isthmus.estimators import PrivateClassifier, PrivateRegressor, to_onnx

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (600, 3))
MARGINS = X @ [3.0, -2.0, 1.0] + 0.3 * RNG.standard_normal(600)
LABELS = np.digitize(MARGINS, [-1, 1])
LINEAR: dict[str, Any] = {"epsilon": 2.0, "features": "linear", "scale": "none", "bounds": (-1, 1)}


def classifier(**options: Any) -> PrivateClassifier:
    several = PrivateClassifier(**{"classes": [0, 1, 2], **LINEAR, **options})
    return several.fit(X, LABELS)


def regressor(**options: Any) -> PrivateRegressor:
    return PrivateRegressor(**{"target_bounds": (-10, 10), **LINEAR, **options}).fit(X, MARGINS)


def two(**options: Any) -> PrivateClassifier:
    return PrivateClassifier(**{"classes": ["no", "yes"], **LINEAR, **options}).fit(
        X, np.where(MARGINS > 0, "yes", "no")
    )


AS_SKLEARN = [
    (lambda: two(), LogisticRegression),
    (lambda: classifier(), LogisticRegression),
    (lambda: two(loss="hinge"), LinearSVC),
    (lambda: regressor(), LinearRegression),
    (lambda: regressor(bounds=None, data_norm=2.0), LinearRegression),
]


@pytest.mark.parametrize(("made", "kind"), AS_SKLEARN)
def test_scikit_learn_predicts_as_the_model_within_the_bounds(made: Callable[[], Any], kind: type) -> None:
    model = made()
    plain = pickle.loads(pickle.dumps(model.to_sklearn()))
    assert type(plain) is kind and plain.privacy_statement_ == model.privacy_.words()
    if kind is LinearRegression:
        assert np.abs(plain.predict(X) - model.predict(X)).max() < 1e-9
    else:
        assert (plain.predict(X) == model.predict(X)).all()
        assert np.abs(plain.decision_function(X) - model.decision_function(X)).max() < 1e-9
    if kind is LogisticRegression:
        assert np.abs(plain.predict_proba(X) - model.predict_proba(X)).max() < 1e-9


def test_a_model_that_scikit_learn_would_predict_otherwise_is_refused() -> None:
    for options in ({"features": "smooth", "scale": "auto"}, {"scale": "moments"}, {"data_norm": 0.5}):
        with pytest.raises(InvalidInput, match="This model is not linear in rows within its bounds"):
            regressor(**options).to_sklearn()


AS_ONNX = [
    *(two, classifier, lambda: two(loss="hinge"), regressor, lambda: regressor(scale="auto", bounds=None)),
    *(lambda: two(features="smooth", scale="auto"), lambda: classifier(scale="moments")),
    lambda: regressor(data_norm=0.5),
    lambda: PrivateRegressor(loss="poisson", target_bounds=(0, 5), bounds=(-1, 1)).fit(X, LABELS),
    lambda: PrivateClassifier(epsilon=float("inf")).fit(X, LABELS),
    lambda: two(bounds=None, data_norm="unit", fit_intercept=False),
    lambda: two(scale="columns", fit_intercept=False),
]


@pytest.mark.parametrize("made", AS_ONNX)
def test_onnx_predicts_as_the_model_everywhere(tmp_path: Path, made: Callable[[], Any]) -> None:
    onnx, model = pytest.importorskip("onnx"), made()
    to_onnx(model, tmp_path / "m.onnx")
    read = onnx.load(tmp_path / "m.onnx")
    words = "not private" if model.privacy_ is None else model.privacy_.words()
    assert {entry.key: entry.value for entry in read.metadata_props} == {"privacy_statement": words}
    far = 3 * X
    predicted, *more = pytest.importorskip("onnx.reference").ReferenceEvaluator(read).run(None, {"X": far})
    if isinstance(model, PrivateRegressor):
        assert np.allclose(predicted, model.predict(far), rtol=1e-9, atol=1e-9)
    else:
        assert (predicted == model.predict(far)).all()
    assert len(more) == hasattr(model, "predict_proba")
    for probabilities in more:
        assert np.abs(probabilities - model.predict_proba(far)).max() < 1e-9


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(InvalidInput, match="install onnx, which is needed to write it"):
        to_onnx(two(), tmp_path / "m.onnx")
