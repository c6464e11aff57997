"""What the estimators predict, against a slow reference, and that they behave as scikit-learn's do."""

import math
from typing import Any

import numpy as np
import pandas
import pytest
import scipy.sparse as sp
import sklearn
from estimator_tables import X, classifier, labelled, numbered, regressor, slow_margins, sparse_rows, y
from sklearn import base, linear_model, pipeline, preprocessing

from isthmus import L2Ball, PrivateClassifier, PrivateRegressor
from isthmus.privacy import Ledger

LOSSES = ("logistic", "softmax", "hinge", "smooth_hinge")
SCALED: dict[str, dict[str, Any]] = {
    "plain": {},
    "bought ranges": {"bounds": None, "epsilon": 20.0},
    "moments": {"scale": "moments", "step": None},
    "smooth": {"features": "smooth", "scale": "auto", "step": None, "epsilon": 20.0},
    "smooth, ranges bought": {"features": "smooth", "scale": "auto", "step": None, "epsilon": 20.0, "bounds": None},
    "columns": {"scale": "columns", "step": None},
    "norm": {"bounds": None, "data_norm": 1.5},
    "unit": {"bounds": None, "data_norm": "unit"},
    "public": {"bounds": None, "public": labelled(100, seed=5)[0]},
    "public scale": {"bounds": None, "public": labelled(100, seed=5)[0], "scale": "public"},
    "no intercept": {"fit_intercept": False},
}


@pytest.mark.parametrize("scaled", SCALED)
@pytest.mark.parametrize("loss", LOSSES)
def test_margins_are_those_of_rows_mapped_by_hand(loss: str, scaled: str) -> None:
    model = classifier(loss=loss, **SCALED[scaled]).fit(X, y)
    new = labelled(50, seed=3)[0] * 1.5  # some rows outside the bounds
    slow = slow_margins(model, new)
    margin = slow[:, 0] if slow.shape[1] == 1 else slow[:, 1] - slow[:, 0]
    np.testing.assert_allclose(model.decision_function(new), margin, rtol=1e-9, atol=1e-9)
    assert (model.predict(new) == (margin > 0)).all()
    if loss in ("logistic", "softmax"):
        np.testing.assert_allclose(model.predict_proba(new)[:, 1], 1 / (1 + np.exp(-margin)), rtol=1e-9)
        np.testing.assert_allclose(model.predict_log_proba(new), np.log(model.predict_proba(new)), rtol=1e-9)
    else:
        assert not hasattr(model, "predict_proba") and not hasattr(model, "predict_log_proba")


@pytest.mark.parametrize("loss", LOSSES)
def test_several_classes(loss: str) -> None:
    X, y = labelled(classes=3)
    model = classifier(loss=loss, classes=[0, 1, 2]).fit(X, y)
    slow = slow_margins(model, X[:40])
    np.testing.assert_allclose(model.decision_function(X[:40]), slow, rtol=1e-9, atol=1e-9)
    assert (model.predict(X[:40]) == slow.argmax(1)).all()
    assert model.coef_.shape == (3, 4) and model.intercept_.shape == (3,)
    if loss in ("logistic", "softmax"):
        shares = np.exp(slow) / np.exp(slow).sum(1, keepdims=True)
        np.testing.assert_allclose(model.predict_proba(X[:40]), shares, rtol=1e-9)


@pytest.mark.parametrize("loss", ["squared", "huber", "poisson"])
@pytest.mark.parametrize("bounds", [(-5, 15), None])
def test_numbers_come_back_in_their_units(loss: str, bounds: Any) -> None:
    X, y = numbered(5000)
    y, low = (np.floor(abs(y)), 0) if loss == "poisson" else (y, -5)
    bounds = None if bounds is None else (low, 15)
    model = regressor(loss=loss, target_bounds=bounds).fit(X, y)
    low, high = model.target_bounds_
    margin = slow_margins(model, X[:40])[:, 0]
    shift, width = model.target_centre_ or (0.0, 1.0)  # of targets that were mapped into [-1, 1]
    expected = high * np.exp(margin)
    if loss != "poisson":
        expected = (low + high) / 2 + (high - low) / 2 * (shift + width * margin)
    np.testing.assert_allclose(model.predict(X[:40]), expected, rtol=1e-9)
    if bounds is None:
        assert low <= np.quantile(y, 0.05) and high >= np.quantile(y, 0.95)


@pytest.mark.parametrize("scaled", [name for name in SCALED if name != "columns" and "smooth" not in name])
def test_coefficients_give_the_margins_of_rows_that_no_map_shortens(scaled: str) -> None:
    """But for "columns", which gives every row length 1, and smooth features: there are none of these."""
    X, y = labelled()
    unit = X[:20] / np.linalg.norm(X[:20], axis=1, keepdims=True)  # for the map that gives every row length 1
    rows = unit if scaled == "unit" else X.mean(0) + 0.05 * labelled(20, seed=2)[0]
    for loss in ("logistic", "softmax"):
        model = classifier(loss=loss, **SCALED[scaled]).fit(X, y)
        np.testing.assert_allclose(model.decision_function(rows), rows @ model.coef_[0] + model.intercept_, rtol=1e-8)
    for loss in ("squared", "huber", "poisson"):
        X, y = numbered()
        fitted = regressor(loss=loss, target_bounds=(0, 15), **SCALED[scaled]).fit(X, abs(y))
        linear = rows @ fitted.coef_ + fitted.intercept_
        np.testing.assert_allclose(fitted.predict(rows), np.exp(linear) if loss == "poisson" else linear, rtol=1e-8)


def test_smooth_features_of_one_function_a_column_have_coefficients() -> None:
    flags, y = np.sign(labelled()[0]), labelled()[1]
    model = classifier(**SCALED["smooth"], bounds=(-1, 1)).fit(flags, y)
    seen = model.decision_function(flags)
    assert np.isclose(seen, flags @ model.coef_[0] + model.intercept_, rtol=1e-8).any()


@pytest.mark.parametrize("scaled", ["columns", "smooth"])
def test_a_model_that_is_not_linear_in_the_rows_has_no_coefficients(scaled: str) -> None:
    model = classifier(**SCALED["moments"]).fit(X, y)
    assert hasattr(model, "coef_") and hasattr(model, "intercept_")
    model.set_params(**SCALED[scaled]).fit(X, y)
    assert set(model.effects()) == {"x0", "x1", "x2", "x3"} and "coef_" not in model._repr_html_()
    for name in ("coef_", "intercept_"):
        with pytest.raises(AttributeError, match=rf"{name} is not there, .* effects\(\) gives what each column adds"):
            getattr(model, name)
    assert not hasattr(classifier(), "coef_") and not hasattr(model, "other_")


def test_repr_shows_epsilon_at_its_default_too() -> None:
    fitted = PrivateClassifier(classes=[0, 1], bounds=(-2, 2)).fit(X, y)
    assert repr(fitted) == "PrivateClassifier(epsilon=1.0, bounds=(-2, 2), classes=[0, 1])"
    assert repr(PrivateRegressor()) == "PrivateRegressor(epsilon=1.0)"
    assert repr(PrivateClassifier(epsilon=2.0)) == "PrivateClassifier(epsilon=2.0)"
    with sklearn.config_context(print_changed_only=False):
        assert repr(PrivateRegressor()).count("epsilon=") == 1


@pytest.mark.parametrize("scale", ["auto", "none", "columns"])
@pytest.mark.parametrize("bounds", [(-2, 2), None])
def test_no_intercept_leaves_the_origin_alone(bounds: Any, scale: str) -> None:
    model = classifier(fit_intercept=False, scale=scale, step=None, bounds=bounds).fit(X, y)
    assert model.decision_function(np.zeros((1, 4))).tolist() == [0.0]


@pytest.mark.parametrize("scale", ["auto", "none", "columns", "moments"])
def test_an_intercept_is_learned_whatever_scales_the_columns(scale: str) -> None:
    X, y = numbered(3000)
    X = 0.2 * X  # far from what the targets' mean of 5 is made of
    for epsilon in (3.0, math.inf):
        made = {"algorithm": "dp_gd"} if epsilon < math.inf else {"algorithm": "gd"}
        model = regressor(epsilon=epsilon, scale=scale, step=None, max_iter=50, target_bounds=(-20, 20), **made)
        assert model.fit(X, y).predict(X).mean() == pytest.approx(y.mean(), abs=0.5)


@pytest.mark.parametrize("algorithm", ["dp_gd", "dp_sgd", "dp_cd", "priv_sgd"])
@pytest.mark.parametrize("norm", ["unit", 2.0])
def test_dense_and_sparse_rows_give_one_model(algorithm: str, norm: Any) -> None:
    X, y = sparse_rows()
    changes = {"bounds": None, "data_norm": norm, "algorithm": algorithm, "step": None, "max_iter": 3}
    if algorithm == "dp_sgd":
        changes |= {"batch_size": 100}
    dense, sparse = (classifier(**changes).fit(given, y) for given in (X.toarray(), X))
    np.testing.assert_allclose(sparse.coef_, dense.coef_, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(sparse.decision_function(X), dense.decision_function(X.toarray()), rtol=1e-7, atol=1e-9)
    for kind in (sp.csc_matrix, sp.coo_array, sp.csr_array):
        assert (sparse.predict(kind(X)) == sparse.predict(X)).all()


def test_sparse_rows_get_length_one_by_default() -> None:
    X, y = sparse_rows()
    model, unit = (classifier(bounds=None, data_norm=norm).fit(X, y) for norm in (None, "unit"))
    np.testing.assert_array_equal(model.coef_, unit.coef_)
    np.testing.assert_allclose(model.decision_function(7 * X), model.decision_function(X), rtol=1e-9)


def test_single_precision_rows_are_close_to_double_ones() -> None:
    single, double = (classifier().fit(X.astype(kind), y) for kind in (np.float32, np.float64))
    np.testing.assert_allclose(single.coef_, double.coef_, rtol=1e-4)


# ---------------------------------------------------------------- labels


@pytest.mark.parametrize(
    ("labels", "declared"),
    [(["no", "yes"], ["yes", "no"]), ([3, -7], [3, -7]), ([2.0, 1.0], [1.0, 2.0]), ([True, False], [False, True])],
)
def test_labels_of_any_kind_and_order(labels: list[Any], declared: list[Any]) -> None:
    names = np.array(labels)[y]
    model = classifier(classes=declared, max_iter=20).fit(X, names)
    assert model.classes_.tolist() == sorted(labels)
    predicted = model.predict(X)
    assert predicted.dtype == names.dtype and (predicted == names).mean() > 0.6 and set(predicted) <= set(labels)
    positive = model.classes_[1]
    assert ((model.decision_function(X) > 0) == (predicted == positive)).all()


def test_a_declared_class_may_be_missing_from_y() -> None:
    X, y = labelled(classes=3)
    here = y != 2
    model = classifier(classes=["a", "b", "c"]).fit(X[here], np.array(["a", "b", "c"])[y[here]])
    assert model.predict_proba(X).shape == (len(X), 3) and model.classes_.tolist() == ["a", "b", "c"]
    two = classifier(classes=[0, 1]).fit(X, np.zeros(len(X), int))
    assert two.classes_.tolist() == [0, 1] and (two.predict(X) == 0).mean() > 0.5


# ---------------------------------------------------------------- habits of scikit-learn


def test_column_names_of_a_data_frame_are_kept_and_checked() -> None:
    frame = pandas.DataFrame(X, columns=["age", "height", "income", "score"])
    model = classifier().fit(frame, pandas.Series(y))
    assert model.feature_names_in_.tolist() == list(frame.columns) and model.n_features_in_ == 4
    np.testing.assert_array_equal(model.predict(frame), classifier().fit(X, y).predict(X))
    with pytest.raises(ValueError, match="feature names should match"):
        model.predict(frame.rename(columns={"age": "years"}))


def test_pipeline_clone_and_parameters() -> None:
    model = classifier(constraint=L2Ball(3.0), step=None)
    again = base.clone(model)
    assert again.get_params()["max_iter"] == 4 and not hasattr(again, "coef_")
    np.testing.assert_array_equal(again.fit(X, y).coef_, model.fit(X, y).coef_)
    pipe = pipeline.make_pipeline(preprocessing.FunctionTransformer(np.tanh), classifier(bounds=(-1, 1))).fit(X, y)
    np.testing.assert_array_equal(pipe.predict(X), classifier(bounds=(-1, 1)).fit(np.tanh(X), y).predict(np.tanh(X)))
    assert pipe.set_params(privateclassifier__epsilon=2.0)[-1].epsilon == 2.0
    assert base.is_classifier(model) and base.is_regressor(regressor())
    for made in (classifier, regressor):
        assert base.clone(made(ledger=(ledger := Ledger()))).ledger is ledger


def test_secret_noise_differs_and_the_statement_says_what_it_is() -> None:
    first, second = (classifier(noise_seed=None).fit(X, y) for _ in range(2))
    assert not np.array_equal(first.coef_, second.coef_)
    assert first.privacy_.private and first.privacy_.epsilon <= 1.0 and first.privacy_.n == 400
    seeded = classifier().fit(X, y).privacy_
    assert not seeded.private and math.isinf(seeded.epsilon) and seeded.nominal == first.privacy_.epsilon


def test_a_public_estimate_of_n_keeps_the_number_of_records_private() -> None:
    model = classifier(n=500).fit(X, y)
    assert model.privacy_.n is None and "not published" in model.privacy_.words()


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_adjacency_is_that_of_the_statement(adjacency: str) -> None:
    model = classifier(adjacency=adjacency).fit(*labelled())
    assert model.privacy_.adjacency.value == adjacency and 0.99 < model.privacy_.nominal <= 1.0


def test_history_and_budget_curve() -> None:
    model = regressor(max_iter=10).fit(*numbered())
    assert [note["t"] for note in model.history_] == list(range(1, model.n_iter_ + 1)) == list(range(1, 11))
    assert model.choice_.algorithm == "dp_gd" and model.plan_.facts.n == 400
    assert set().union(*model.history_) <= {"t", "moved", "noise"}
    curve = model.budget_curve(5)
    epsilons = [epsilon for _, epsilon in curve]
    assert [t for t, _ in curve] == [2, 4, 6, 8, 10] and epsilons == sorted(epsilons)
    assert epsilons[-1] == pytest.approx(model.privacy_.nominal)


# ---------------------------------------------------------------- without privacy


def test_without_privacy_a_classifier_is_near_logistic_regression() -> None:
    X, y = labelled(3000, 8, classes=2)
    new, truth = labelled(2000, 8, seed=1)
    model = PrivateClassifier(epsilon=math.inf, random_state=0).fit(X, y)
    assert model.privacy_ is None and model.budget_curve() == []
    assert model.score(new, truth) > linear_model.LogisticRegression().fit(X, y).score(new, truth) - 0.01
    again = PrivateClassifier(epsilon=math.inf, random_state=0).fit(X, y)
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_without_privacy_a_regressor_is_near_ridge() -> None:
    X, y = numbered(3000, 8)
    X = X * np.geomspace(1, 100, 8) + 50
    new, truth = numbered(2000, 8, seed=1)
    new = new * np.geomspace(1, 100, 8) + 50
    model = PrivateRegressor(epsilon=math.inf, random_state=0).fit(X, y)
    assert model.score(new, truth) > linear_model.Ridge().fit(X, y).score(new, truth) - 0.01
