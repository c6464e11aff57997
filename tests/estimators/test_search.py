"""Private selection: its choice has the stated law, its cost is the stated one, and nothing else is shown."""

import math
import pickle
from contextlib import nullcontext
from itertools import product
from typing import Any

import numpy as np
import pandas
import pytest
import torch
from estimator_tables import X, labelled, numbered, sparse_rows, y
from scipy import stats
from scipy.special import ndtri, softmax
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from isthmus import InvalidInput, PrivacyLeakWarning, PrivateClassifier, PrivateRegressor, privacy
from isthmus.core.pipeline import Promise
from isthmus.estimators.looks import Looks
from isthmus.estimators.search import PrivateSearch, _BestOf, _choose, _range_of, _Split
from isthmus.gradients import Dense

ADD, REPLACE = privacy.Adjacency.ADD_REMOVE, privacy.Adjacency.REPLACE_ONE
GRID = {"max_iter": [1, 20]}


SHARED = {"algorithm": "dp_gd", "bounds": (-2, 2), "random_state": 0}


def classifier(**changes: Any) -> PrivateClassifier:
    return PrivateClassifier(**{**SHARED, "classes": [0, 1], **changes})


def regressor(**changes: Any) -> PrivateRegressor:
    return PrivateRegressor(**{**SHARED, "target_bounds": (-5, 15), **changes})


# ---------------------------------------------------------------- the choice


class Uncounted:
    """A ledger for thousands of draws."""

    def require(self, event: Any) -> None:
        """Everything fits."""

    def run(self, events: dict[str, Any], seeded: bool = False) -> Any:
        return nullcontext(self)

    def charge(self, stage: Any, t: int) -> None:
        """Nothing is counted."""


def test_the_choice_has_the_law_of_the_exponential_mechanism_and_no_other() -> None:
    split = _Split(10_000, 4, 0.2, 0.25, Promise(9.0, 1e-5, ADD))
    sums = np.array([10.0, 12.0, 9.0, 12.5]) * split.choice.temperature / 2.5
    scores = Dense(torch.from_numpy(np.tile(sums / 40, (40, 1))))
    looks = Looks(split.multiplier, split.promise, Uncounted())
    counts = np.bincount([_choose(scores, split, looks) for _ in range(4000)], minlength=4)
    stated = softmax(sums / split.choice.temperature)
    assert stats.chisquare(counts, 4000 * stated).pvalue > 1e-4
    for wrong in (2 / 3, 3 / 2):
        other = softmax(sums / (wrong * split.choice.temperature))
        assert stats.chisquare(counts, 4000 * other).pvalue < 1e-6


class NoNoise(privacy.Source):
    """Nothing can be drawn from it."""

    seeded = False


def test_the_choice_is_charged_before_it_is_made() -> None:
    split, ledger = _Split(10_000, 2, 0.2, 0.25, Promise(1.0, 1e-5, ADD)), privacy.Ledger(budget=(1e-3, 1e-5))
    looks = Looks(split.multiplier, split.promise, ledger)
    looks.source = NoNoise()
    with pytest.raises(privacy.BudgetExceeded):
        _choose(Dense(torch.ones(3, 2).double()), split, looks)  # no noise is asked for


@pytest.mark.parametrize("e", [1e-3, 0.05, 0.3, 1.0, 2.0, 5.0, 9.0])
def test_a_bounded_range_is_gaussian_private(e: float) -> None:
    """mu-GDP means that no kink (a, b) lies below the curve Phi(Phi^-1(1 - a) - mu)."""
    t = np.linspace(0, e, 20_001)[1:-1]
    a, b = np.expm1(t) / np.expm1(e), np.expm1(e - t) / np.expm1(e)  # of the worst pairs: losses t - e and t
    needed = ndtri(1 - a) - ndtri(b)
    mu = 2 * ndtri(1 / (1 + math.exp(-e / 2)))
    assert _range_of(mu) == pytest.approx(e, rel=1e-9)
    assert needed.max() <= mu * (1 + 1e-9) and needed.max() > 0.999 * mu


def divergence(p: np.ndarray, q: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(p - math.exp(epsilon) * q, 0).sum())


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize("multiplier", [0.5, 2.0, 8.0])
def test_no_record_tells_more_by_the_choice_than_by_the_gaussian_release(adjacency: Any, multiplier: float) -> None:
    """Every way in which one record can move three scores, from several tables, in both directions."""
    temperature = _BestOf(multiplier, adjacency.value).temperature
    moves = product((0.0, 0.5, 1.0), repeat=3) if adjacency is ADD else product((-1.0, 0.0, 1.0), repeat=3)
    levels = np.linspace(0, 4 * adjacency.factor / multiplier, 9)
    allowed = [privacy.delta_of(privacy.Gaussian(multiplier).event(), float(e), adjacency) for e in levels]
    closest = 0.0
    for move in map(np.array, moves):
        for scores in np.array([[0, 0, 0], [9, 0, 0], [0, 0.7, 1.4]]):
            p, q = softmax(scores), softmax(scores + move / temperature)
            for epsilon, most in zip(levels, allowed, strict=True):
                largest = max(divergence(p, q, epsilon), divergence(q, p, epsilon))
                assert largest <= most + 1e-12
                closest = max(closest, largest / most)
    assert closest > 0.5, "the choice uses what it is charged for"


# ---------------------------------------------------------------- scores and parts


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_a_record_moves_all_scores_one_way_by_at_most_one(kind: str, weighted: bool) -> None:
    X, y = labelled(300) if kind == "classes" else numbered(300)
    made = classifier() if kind == "classes" else regressor()
    search = PrivateSearch(made, GRID)
    trials = [clone(made).set_params(max_iter=m, noise_seed=m, epsilon=5.0).fit(X, y) for m in (1, 5, 20)]
    weight = np.linspace(0, 1, 301) if weighted else None
    strange = [0, 1] if kind == "classes" else [0.0, 1e300, -1e300, y[0]]
    for row in ([0.0] * 4, [1e300] * 4, [1.0, -2, 0.5, 1]):
        for target in strange:
            rows, labels = np.vstack([X, row]), np.append(y, target)
            before = search._scores(trials, X, y, None if weight is None else weight[:300]).sum()
            moved = search._scores(trials, rows, labels, weight).sum() - before
            assert bool((moved >= -1e-9).all()) and bool((moved <= 1 + 1e-9).all())
    empty = search._scores(trials, X[:0], y[:0], None).sum()
    assert empty.tolist() == [0, 0, 0]


def test_right_answers_are_counted() -> None:
    X, y = labelled(200)
    trials = [classifier(max_iter=m, noise_seed=0).fit(X, y) for m in (1, 9)]
    found = PrivateSearch(classifier(), GRID)._scores(trials, X, y, None).sum()
    assert found.tolist() == [int((trial.predict(X) == y).sum()) for trial in trials]


def test_parts_are_drawn_independently_of_all_else() -> None:
    split = _Split(10_000, 4, 0.2, 0.25, Promise(1.0, 1e-5, ADD))
    part = split.parts(40_000, privacy.SecretSource())
    expected = 40_000 * np.array([0.1875] * 4 + [0.25])
    assert stats.chisquare(np.bincount(part, minlength=5), expected).pvalue > 1e-4
    assert (split.records, split.checks) == (1875, 2500)
    longer = split.parts(501, privacy.SeededSource(3))  # one record more leaves the others where they are
    np.testing.assert_array_equal(split.parts(500, privacy.SeededSource(3)), longer[:500])


# ---------------------------------------------------------------- what it costs


@pytest.mark.parametrize("share", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
def test_selection_and_last_fit_together_cost_epsilon(share: float, adjacency: privacy.Adjacency) -> None:
    split = _Split(5000, 3, share, 0.2, Promise(0.8, 1e-6, adjacency))
    both = privacy.compose([privacy.Gaussian(split.multiplier).event(), privacy.Gaussian(split.last).event()])
    assert privacy.epsilon_of(both, 1e-6, adjacency) == pytest.approx(0.8, rel=1e-6)
    assert privacy.epsilon_of(split.total, 1e-6, adjacency) <= 0.8 * (1 + 1e-9)
    for epsilon, multiplier in ((split.trial, split.multiplier), (split.rest, split.last)):
        event = privacy.Gaussian(multiplier).event()
        assert epsilon == pytest.approx(privacy.epsilon_of(event, 1e-6, adjacency), rel=1e-5)
    assert split.trial < split.rest if share < 0.5 else split.trial > split.rest


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize("bounds", [(-2, 2), None])
def test_every_trial_is_as_private_as_the_selection_is_charged_for(bounds: Any, adjacency: str) -> None:
    X, y = labelled(600)
    search = PrivateSearch(classifier(adjacency=adjacency, bounds=bounds), GRID)
    search._classes = [0, 1]
    split = _Split(600, 2, 0.2, 0.2, Promise(1.0, 1e-5, privacy.Adjacency(adjacency)))
    for params in search._candidates():
        both = (search._trial(params, split, 0), split.multiplier), (search._last(params, split), split.last)
        for made, multiplier in both:
            cost = privacy.joint([privacy.event_json.from_json(made.fit(X, y).privacy_.event)])
            assert multiplier * (1 - 1e-9) <= cost.noise_multiplier < 1.001 * multiplier


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_the_ledger_holds_the_selection_and_the_last_fit(adjacency: str) -> None:
    ledger = privacy.Ledger(budget=(1.0, 1e-5), adjacency=adjacency)
    search = PrivateSearch(classifier(adjacency=adjacency, scale="none", step=1.0), GRID, ledger=ledger)
    search.fit(*labelled(600))
    assert ledger.rounds() == {"selection": 1, "main": search.best_params_["max_iter"]}
    assert 0.999 < ledger.spent() <= 1.0 and search.ledger is ledger
    assert search.privacy_.epsilon == 1.0 and search.privacy_.private
    assert search.best_estimator_.ledger is None and search.best_estimator_.privacy_ == search.privacy_


def test_a_search_beyond_the_budget_is_refused_before_anything_is_charged(tmp_path: Any) -> None:
    X, y = labelled(600)
    path = tmp_path / "study.ledger"
    privacy.Ledger.open(path, budget=(0.9, 1e-5))
    with pytest.raises(privacy.BudgetExceeded):
        PrivateSearch(classifier(), GRID, epsilon=1.0, ledger=path).fit(X, y)
    assert privacy.Ledger.open(path).rounds() == {}
    PrivateSearch(classifier(), GRID, epsilon=0.9, ledger=path).fit(X, y)
    assert 0.89 < privacy.Ledger.open(path).spent() <= 0.9


def test_the_statement_is_of_everything() -> None:
    grid = {"max_iter": [1, 5], "l2": [0.0, 0.1]}
    search = PrivateSearch(classifier(), grid, epsilon=0.7, delta=1e-6).fit(*labelled(800))
    statement = search.privacy_
    assert (statement.epsilon, statement.delta, statement.n) == (0.7, 1e-6, 800)
    assert privacy.epsilon_of(privacy.event_json.from_json(statement.event), 1e-6, ADD) <= 0.7
    assert search.best_estimator_.privacy_ == search.best_estimator_.result_.privacy == statement
    words = statement.words()
    assert "one of 5 parts at random" in words and "one part of the selection" in words
    assert search.parts_["records"] == 160 and search.parts_["validation"] == 160
    seeded = PrivateSearch(classifier(), GRID, noise_seed=0).fit(*labelled(400)).privacy_
    assert not seeded.private and math.isinf(seeded.epsilon) and seeded.nominal == 1.0
    hidden = PrivateSearch(classifier(n=500), GRID).fit(*labelled(400)).privacy_
    assert hidden.n is None


def test_scores_and_losers_are_not_kept() -> None:
    search = PrivateSearch(classifier(), GRID).fit(*labelled(400))
    shown = {"best_estimator_", "best_index_", "best_params_", "candidates_", "parts_", "privacy_", "n_features_in_"}
    assert set(vars(search)) == shown | set(search.get_params(deep=False)) | {"_classes"}
    assert search.candidates_ == [{"max_iter": 1}, {"max_iter": 20}]


# ---------------------------------------------------------------- what it finds


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_the_better_candidate_is_found_where_the_budget_allows(kind: str) -> None:
    X, y = labelled(4000) if kind == "classes" else numbered(4000)
    made, bad, good = regressor(), {"step": 1e-4}, {"step": 4.0}
    if kind == "classes":
        made, bad, good = classifier(step=4.0), {"class_weight": {0: 1.0, 1: 1e-4}}, {"class_weight": None}
    grid = [{name: [value] for name, value in each.items()} for each in (bad, good)]
    search = PrivateSearch(made.set_params(scale="none", max_iter=30), grid, epsilon=5.0).fit(X, y)
    assert search.best_params_ == good and search.best_index_ == 1
    new, truth = labelled(1000, seed=1) if kind == "classes" else numbered(1000, seed=1)
    assert search.score(new, truth) == search.best_estimator_.score(new, truth) > 0.8
    np.testing.assert_array_equal(search.predict(new), search.best_estimator_.predict(new))


def test_seeded_searches_are_alike_and_secret_ones_are_not() -> None:
    first, second = (PrivateSearch(classifier(), GRID, noise_seed=7).fit(X, y) for _ in range(2))
    assert first.best_index_ == second.best_index_
    np.testing.assert_array_equal(first.best_estimator_.coef_, second.best_estimator_.coef_)
    free = [PrivateSearch(classifier(), GRID).fit(X, y).best_estimator_.coef_ for _ in range(2)]
    assert not np.array_equal(*free)


# ---------------------------------------------------------------- habits of scikit-learn


def test_it_is_an_estimator_like_any_other() -> None:
    search = PrivateSearch(classifier(), GRID, epsilon=2.0)
    again = clone(search)
    assert again.get_params()["estimator__algorithm"] == "dp_gd" and again.epsilon == 2.0
    assert is_classifier(search) and is_regressor(PrivateSearch(regressor(), GRID))
    assert clone(search.set_params(ledger=(ledger := privacy.Ledger()))).ledger is ledger
    with pytest.raises(ValueError, match="not fitted"):
        again.predict([[0.0] * 4])
    pipe = make_pipeline(FunctionTransformer(np.tanh), PrivateSearch(classifier(bounds=(-1, 1)), GRID)).fit(X, y)
    assert pipe.predict(X).shape == (400,) and pipe.predict_proba(X).shape == (400, 2)
    assert pipe[-1].classes_.tolist() == [0, 1] and pipe.decision_function(X).shape == (400,)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(pipe)).predict(X), pipe.predict(X))
    assert not hasattr(PrivateSearch(classifier(loss="hinge"), GRID), "predict_proba")


def test_frames_and_sparse_rows() -> None:
    X, y = labelled(400)
    frame = pandas.DataFrame(X, columns=list("abcd"))
    search = PrivateSearch(classifier(), GRID).fit(frame, y)
    assert search.best_estimator_.feature_names_in_.tolist() == list("abcd")
    assert search.predict(frame).shape == (400,)
    X, y = sparse_rows()
    assert PrivateSearch(classifier(bounds=None), GRID).fit(X, y).predict(X).shape == (400,)


def test_weights_reach_the_fits() -> None:
    weight = np.where(y == 0, 1.0, 0.0)
    for given in (weight, 5 * weight):
        made = classifier(max_weight=5.0, scale="none", step=4.0)
        search = PrivateSearch(made, {"max_iter": [20, 30]}, epsilon=20.0).fit(X, y, sample_weight=given)
        assert (search.predict(X) == 0).mean() > 0.9


def test_undeclared_labels_are_read_once_with_a_warning() -> None:
    with pytest.warns(PrivacyLeakWarning, match="classes=") as caught:
        search = PrivateSearch(classifier(classes=None), GRID).fit(X, y)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert any("labels" in leak for leak in search.privacy_.leaks)
    PrivateSearch(classifier(), GRID).fit(X, y)  # without a warning: all of them are errors here


# ---------------------------------------------------------------- refusals


WRONG = [
    ({"epsilon": 0.0}, "epsilon"),
    ({"epsilon": math.inf}, "epsilon"),
    ({"delta": 1.0}, "delta"),
    ({"share": 1.0}, "share"),
    ({"validation": 0.0}, "validation"),
    ({"estimator": FunctionTransformer()}, "estimator"),
    ({"estimator": make_pipeline(classifier())}, "before the search"),
    ({"estimator": classifier(ledger="a.ledger")}, "estimator.ledger"),
    ({"estimator": classifier(checkpoint="a.state")}, "estimator.checkpoint"),
    ({"estimator": classifier(noise_seed=0)}, "estimator.noise_seed"),
    ({"estimator": regressor(target_bounds=None)}, "target_bounds"),
    ({"estimator": regressor(target_bounds="data")}, "target_bounds"),
    ({"estimator": classifier(l2=-1.0)}, "l2"),
    ({"param_grid": {"max_iter": [1]}}, "at least two"),
    ({"param_grid": {"epsilon": [1.0, 2.0]}}, "epsilon"),
    ({"param_grid": {"noise_seed": [1, 2]}}, "noise_seed"),
    ({"param_grid": {"max_weight": [1.0, 2.0]}}, "max_weight"),
    ({"param_grid": {"step": [1.0, -1.0]}}, "step"),
    ({"param_grid": {"max_iter": list(range(1, 40))}}, "try fewer"),
    ({"param_grid": {"algorithm": ["dp_gd", "dp_sgd"]}}, "look at all records"),
    ({"param_grid": {"algorithm": ["priv_sgd"], "as_published": [False, True]}}, "as_published"),
]


@pytest.mark.parametrize(("changes", "word"), WRONG, ids=lambda value: str(value)[:50])
def test_wrong_searches(changes: dict[str, Any], word: str) -> None:
    ledger = privacy.Ledger()
    options = {"estimator": classifier(), "param_grid": GRID, "ledger": ledger, **changes}
    with pytest.raises(InvalidInput, match=word):
        PrivateSearch(**options).fit(*labelled(400))
    assert ledger.rounds() == {}


def test_wrong_names_and_rows() -> None:
    with pytest.raises(ValueError, match="gamma"):
        PrivateSearch(classifier(), {"gamma": [1, 2]}).fit(X, y)
    with pytest.raises(ValueError, match="NaN"):
        PrivateSearch(classifier(), GRID).fit(np.where(X > 1.9, math.nan, X), y)
    with pytest.raises(InvalidInput, match="a label that is not among"):
        PrivateSearch(classifier(), GRID).fit(X, y + 1)


def test_the_noise_of_a_choice_follows_from_what_it_is_counted_as() -> None:
    """One number sets both: no plan, read from a text or not, counts more noise than there is."""
    with pytest.raises(TypeError):
        _BestOf(1e9, signed=False, multiplier=100.0)
    for adjacency in privacy.Adjacency:
        best_of = _BestOf(3.0, adjacency.value)
        assert 1 / best_of.temperature == pytest.approx(_range_of(adjacency.factor / 3.0) / adjacency.factor)
        assert best_of.event(adjacency) == privacy.Gaussian(3.0).event()
    with pytest.raises(ValueError, match="give replace-one, for which"):
        best_of.event(privacy.Adjacency.ADD_REMOVE)
