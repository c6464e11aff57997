"""Wrong arguments are refused with their name and the remedy, before data is read or budget is spent."""

import math
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from estimator_tables import X, classifier, labelled, numbered, regressor, sparse_rows, y
from sklearn.model_selection import cross_val_predict

from isthmus import InvalidInput, L1Ball, PrivacyBudgetWarning, PrivateSearch
from isthmus.privacy import Ledger

WRONG: dict[str, list[Any]] = {
    "epsilon": [0, -1.0, math.nan, "1", -math.inf],
    "delta": [0.0, 1.0],
    "loss": ["cubic"],
    "algorithm": ["adam", "gd"],
    "l1": [-1.0],
    "l2": [math.inf],
    "clip": [0.0],
    "step": [-1.0],
    "max_iter": [0, 2.5],
    "batch_size": [0],
    "n": [0, "many"],
    "scale": ["robust"],
    "bounds": [3.0, {"a": (0, 1)}, [(0, 1)] * 4, (1, 1), (2, 1), (-math.inf, 1), ([0, 0], [1, 1]), "public", (0, 1, 2)],
    "data_norm": [0.0, "auto"],
    "max_weight": [0.0],
    "partial_calls": [0],
    "adjacency": ["both"],
    "public": [np.ones((5, 3)), [[math.nan] * 4]],
}
TOGETHER: list[tuple[dict[str, Any], str]] = [
    ({"scale": "public"}, "public=X"),
    ({"facts": {"clip": 1.0}}, "facts"),
    ({"scale": "moments", "fit_intercept": False}, "fit_intercept"),
    ({"as_published": True, "algorithm": "auto"}, "as_published"),
    ({"scale": "moments", "step": None, "constraint": L1Ball(1.0)}, "only algorithm=.dp_gd. buys scales"),
    ({"scale": "moments", "step": None, "algorithm": "dp_cd"}, "only algorithm=.dp_gd. buys scales"),
]
OF_CLASSIFIERS: dict[str, list[Any]] = {
    "classes": [[0], [0, 2]],
    "class_weight": ["heavy", {0: -1.0}, {0: 0.0, 1: 0.0}, [1, 2]],
    "loss": ["squared"],
}
OF_REGRESSORS: dict[str, list[Any]] = {
    "target_bounds": [(1, 1), (0, math.inf), 3.0, "y"],
    "huber_delta": [0.0],
    "loss": ["logistic"],
}
BOTH = (classifier, regressor)
CASES = [
    *((made, *case) for made in BOTH for case in TOGETHER),
    (regressor, {"target_bounds": (-1, 5), "loss": "poisson"}, "target_bounds"),
    *(
        (made, {name: value}, f"{name}=" if name == "n" else name)
        for makers, table in ((BOTH, WRONG), ((classifier,), OF_CLASSIFIERS), ((regressor,), OF_REGRESSORS))
        for made in makers
        for name, values in table.items()
        for value in values
    ),
]


@pytest.mark.parametrize(
    ("made", "changes", "word"), CASES, ids=lambda value: getattr(value, "__name__", str(value)[:40])
)
def test_wrong_parameters(made: Any, changes: dict[str, Any], word: str) -> None:
    ledger = Ledger()
    with pytest.raises(InvalidInput, match=word) as refused:
        made(ledger=ledger, **changes).fit(X, y)
    assert "is not allowed: " in str(refused.value) or "holds" in str(refused.value)
    assert ledger.rounds() == {}, "nothing was spent"


@pytest.mark.parametrize(
    "made", [classifier, regressor, lambda: PrivateSearch(classifier(noise_seed=None), {"l2": [0.0, 0.1]})]
)
def test_gaps_and_text_are_refused_with_a_remedy_and_no_entry_is_repeated(made: Any) -> None:
    gaps, text = np.where(np.eye(*X.shape) > 0, math.nan, X), X.astype(object)
    text[3, 1] = "Jane Doe"
    filled = "X contains NaN: fill gaps by a public rule"
    for rows, words in ((gaps, filled), (sp.csr_matrix(gaps), filled), (text, "X holds text")):
        with pytest.raises(InvalidInput, match=words) as refused:
            made().fit(rows, y)
        assert "TableEncoder" in str(refused.value) and "Jane" not in str(refused.value)
        assert refused.value.__context__ is None, "nor does the traceback repeat it"
    with pytest.raises(InvalidInput, match="^Expected 2D array, got another: Reshape your data, X.reshape") as refused:
        made().fit(X[:, 0], y)
    assert str(X[0, 0])[:6] not in str(refused.value) and refused.value.__context__ is None
    with pytest.raises(InvalidInput, match="X contains infinity or numbers too large: give finite numbers"):
        made().fit(np.where(np.eye(*X.shape) > 0, math.inf, X), y)
    targets = np.where(np.arange(len(y)) == 3, math.nan, y)
    with pytest.raises(InvalidInput, match="y contains NaN: leave out the rows"):
        made().fit(X, targets)


@pytest.mark.parametrize("kind", [object, str])
def test_words_are_no_targets_of_a_regressor(kind: Any) -> None:
    X, _ = labelled()
    with pytest.raises(InvalidInput, match="^y holds entries that are no numbers: .* PrivateClassifier") as refused:
        regressor().fit(X, np.where(X[:, 0] > 0, "Jane Doe", "2.5").astype(kind))
    assert "Jane" not in str(refused.value) and refused.value.__context__ is None
    assert regressor().fit(X, (X[:, 0] > 0).astype(int).astype(kind)).predict(X).shape == (len(X),)


def test_labels_that_a_tool_has_numbered_are_told_from_labels_that_nobody_declared() -> None:
    """`cross_val_predict` for probabilities gives an estimator 0, 1, ... for the labels it was given."""
    words = np.where(y == y[0], "no", "yes")
    wanted = "y has numbers where the classes are words. .* declare classes=\\[0, ..., 1\\]"
    with pytest.warns(PrivacyBudgetWarning), pytest.raises(InvalidInput, match=wanted):
        cross_val_predict(classifier(classes=["no", "yes"]), X, words, cv=2, method="predict_proba")
    with pytest.warns(PrivacyBudgetWarning):
        shares = cross_val_predict(classifier(classes=[0, 1]), X, words, cv=2, method="predict_proba")
    assert shares.shape == (len(X), 2)
    with pytest.raises(InvalidInput, match="declare all labels, or leave those rows out"):
        classifier(classes=["no", "perhaps"]).fit(X, words)


def test_labels_outside_the_declared_ones_are_refused_and_not_repeated() -> None:
    X, y = labelled(classes=3)
    with pytest.raises(InvalidInput, match=r"a label that is not among classes=\[0, 1\]"):
        classifier().fit(X, y)
    with pytest.raises(InvalidInput, match="a label that is not among") as refused:
        classifier(classes=["no", "yes"]).fit(X, np.where(y == 2, "maybe", "no"))
    assert "maybe" not in str(refused.value), "whose label it is stays unsaid"


def test_one_class_must_be_declared_with_the_other() -> None:
    X, _ = labelled()
    with pytest.raises(InvalidInput, match="^y holds one class only: declare all classes with classes=$"):
        classifier(classes=None).fit(X, np.full(400, "hiv"))
    with pytest.raises(ValueError, match="continuous"):
        classifier(classes=None).fit(X, X[:, 0])


def test_counts_are_not_negative() -> None:
    X, y = numbered()
    with pytest.raises(InvalidInput, match="give counts"):
        regressor(loss="poisson", target_bounds=(0, 15)).fit(X, y - 100)


@pytest.mark.parametrize("made", BOTH)
def test_ranges_of_sparse_rows(made: Any) -> None:
    X, y = sparse_rows()
    for bounds in ((0, 1), "data", (math.nan, 1)):
        with pytest.raises(InvalidInput, match="data_norm="):
            made(bounds=bounds).fit(X, y)


@pytest.mark.parametrize("made", BOTH)
def test_weights_that_are_none(made: Any) -> None:
    for weight, word in (
        (np.full(400, -77.0), "sample_weight holds .* give weights of 0 or more"),
        (np.ones(3), "shape|inconsistent"),
        ([math.nan] * 400, "NaN"),
    ):
        with pytest.raises(ValueError, match=word) as refused:
            made().fit(X, y, sample_weight=weight)
        assert "77" not in str(refused.value), "a private value stays unsaid"


def test_another_number_of_columns() -> None:
    model = classifier().fit(X, y)
    with pytest.raises(ValueError, match="3 features"):
        model.predict(X[:, :3])
    with pytest.raises(InvalidInput, match="give one number for all columns, or 4, one for each"):
        classifier(bounds=(np.zeros(3), 1)).fit(X, y)
    partly = classifier().partial_fit(X, y)
    with pytest.raises(ValueError, match="3 features"):
        partly.partial_fit(X[:, :3], y)


def test_a_budget_is_shown_after_a_fit() -> None:
    with pytest.raises(ValueError, match="not fitted"):
        classifier().budget_curve()


def test_a_paper_run_as_published_is_named_and_stated() -> None:
    model = classifier(algorithm="priv_sgd", step=None, as_published=True, noise_seed=None).fit(X, y)
    assert "published" in model.privacy_.words()
