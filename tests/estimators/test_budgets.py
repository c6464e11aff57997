"""What fits spend: partial fits, weights, class weights, ledgers, checkpoints and searches of others."""

import math
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_tables import QUICK, X, classifier, labelled, numbered, regressor, y
from sklearn import ensemble, model_selection

from isthmus import InvalidInput, PrivacyBudgetWarning, PrivateClassifier, PrivateRegressor
from isthmus.core.wire import State
from isthmus.privacy import BudgetExceeded, Ledger

# ---------------------------------------------------------------- partial fits


@pytest.mark.parametrize("bounds", [(-2, 2), None])
@pytest.mark.parametrize("made", [classifier, regressor])
def test_partial_fits_share_one_budget(made: Any, bounds: Any) -> None:
    model = made(partial_calls=3, noise_seed=None, bounds=bounds, epsilon=0.7)
    stated, maps = [], []
    for part in np.array_split(np.arange(400), 3):
        model.partial_fit(X[part], y[part])
        stated.append(model.privacy_.epsilon)
        maps.append(model._maps)
    assert 0.699 < stated[0] == stated[1] == stated[2] <= 0.7  # whether to go on may depend on what was released
    assert model.n_iter_ == 3 * 4
    for later in maps[1:]:  # what the first call bought is what the others go on with
        for first, second in zip(maps[0].maps, later.maps, strict=True):
            assert first.limit == second.limit and (first.weight is None or bool((first.weight == second.weight).all()))
    with pytest.raises(InvalidInput, match="all of them were made"):
        model.partial_fit(X[:10], y[:10])


def test_one_ledger_pays_for_all_partial_fits() -> None:
    ledger = Ledger(budget=(1.0, 1e-5))
    model = classifier(partial_calls=2, ledger=ledger, bounds=None).partial_fit(X[:200], y[:200])
    first = ledger.spent()
    assert ledger.rounds() == {"ranges": 1, "main": 4}
    model.partial_fit(X[200:], y[200:])
    assert ledger.rounds() == {"ranges": 1, "main": 8}
    assert first < ledger.spent() <= 1.0 and ledger.spent() == pytest.approx(model.privacy_.nominal, rel=1e-9)


def test_partial_fits_go_on_from_the_last_point() -> None:
    X, y = labelled(2000)
    model = classifier(partial_calls=5, epsilon=50.0)
    scores = [model.partial_fit(X, y).score(X, y) for _ in range(5)]
    whole = classifier(max_iter=20, epsilon=50.0).fit(X, y).score(X, y)
    assert scores[-1] == pytest.approx(whole, abs=0.02) and scores[-1] >= scores[0] - 0.01


def test_a_fit_after_partial_fits_begins_anew() -> None:
    model = classifier(partial_calls=2).partial_fit(X, y).fit(X, y)
    np.testing.assert_array_equal(model.coef_, classifier(partial_calls=2).fit(X, y).coef_)
    model.partial_fit(X, y).partial_fit(X, y)


def test_classes_may_be_declared_at_the_first_partial_fit() -> None:
    model = classifier(classes=None).partial_fit(X[:50], np.zeros(50, int), classes=[0, 1])
    assert model.partial_fit(X, y).classes_.tolist() == [0, 1]
    with pytest.raises(InvalidInput, match="classes"):
        model.partial_fit(X[:5], [0, 1, 2, 0, 1])


# ---------------------------------------------------------------- weights


@pytest.mark.parametrize("made", [classifier, regressor])
def test_a_record_of_weight_zero_has_no_influence(made: Any) -> None:
    weight = np.ones(400)
    weight[[3, 77]] = 0
    other, labels = X.copy(), y.copy()
    other[[3, 77]], labels[[3, 77]] = 1.9, 1 - labels[[3, 77]]
    first, second = (made().fit(rows, targets, sample_weight=weight) for rows, targets in ((X, y), (other, labels)))
    unweighted = made().fit(other, labels)
    np.testing.assert_array_equal(first.coef_, second.coef_)
    assert not np.array_equal(first.coef_, unweighted.coef_) and first.privacy_ == unweighted.privacy_


def test_weights_multiply_the_losses_and_are_bounded() -> None:
    weight = np.random.default_rng(0).uniform(0, 3, 400)
    free = {"epsilon": math.inf, "algorithm": "gd"}  # no noise, nothing clipped
    by_weight = classifier(max_weight=3.0, step=0.1, **free).fit(X, y, sample_weight=weight)
    doubled = classifier(max_weight=6.0, step=0.2, **free).fit(X, y, sample_weight=weight)
    np.testing.assert_allclose(by_weight.coef_, doubled.coef_, rtol=1e-9)
    cut = classifier(max_weight=1.0).fit(X, y, sample_weight=weight)
    np.testing.assert_array_equal(cut.coef_, classifier(max_weight=1.0).fit(X, y, np.minimum(weight, 1)).coef_)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_class_weights_are_weights_of_records(loss: str, classes: int) -> None:
    X, y = labelled(classes=classes)
    names = list(range(classes))
    by_class = classifier(loss=loss, classes=names, class_weight={0: 0.5, 1: 2.0}).fit(X, y)
    each = np.choose(y, [0.5, 2.0, 1.0][:classes])
    by_record = classifier(loss=loss, classes=names, max_weight=2.0).fit(X, y, sample_weight=each)
    np.testing.assert_allclose(by_class.coef_, by_record.coef_, rtol=1e-9)
    assert by_class.privacy_ == by_record.privacy_


def test_balanced_classes_are_bought() -> None:
    X, y = labelled(3000)
    few = np.flatnonzero((y == 0) | (np.arange(3000) % 12 == 0))
    X, y = X[few], y[few]
    ledger = Ledger(budget=(2.0, 1e-5))
    model = classifier(class_weight="balanced", max_iter=40, epsilon=2.0, ledger=ledger).fit(X, y)
    assert ledger.rounds() == {"classes": 1, "main": 40} and ledger.spent() <= 2.0
    plain = classifier(max_iter=40, epsilon=2.0).fit(X, y)
    assert (model.predict(X) == 1).mean() > (plain.predict(X) == 1).mean()
    counts = model.result_.state.parts["prepare"]["classes"]
    assert np.abs(counts.numpy() - np.bincount(y)).max() < 100
    assert len(model.privacy_.event["events"]) == 2, "the statement holds the purchase and the rounds"


# ---------------------------------------------------------------- ledgers


@pytest.mark.parametrize("made", [classifier, regressor])
def test_a_fit_beyond_the_budget_is_refused_before_anything_is_charged(made: Any, tmp_path: Path) -> None:
    for ledger in (Ledger(budget=(0.9, 1e-5)), Ledger.open(tmp_path / "small.ledger", budget=(0.9, 1e-5))):
        with pytest.raises(BudgetExceeded):
            made(ledger=ledger, bounds=None, epsilon=1.0).fit(X, y)
        assert ledger.rounds() == {} and ledger.spent() == 0
    assert made(ledger=ledger, bounds=None, epsilon=0.9).fit(X, y).privacy_.nominal <= 0.9


def test_fits_add_up_in_a_ledger_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "study.ledger"
    Ledger.open(path, budget=(1.0, 1e-5))
    for _ in range(2):
        classifier(ledger=path, epsilon=0.6).fit(X, y)
    assert 0.6 < Ledger.open(path).spent() < 1.0
    with pytest.raises(BudgetExceeded):
        classifier(ledger=str(path), epsilon=0.6).fit(X, y)


def test_a_ledger_of_another_adjacency_is_refused() -> None:
    with pytest.raises(InvalidInput, match="replace-one"):
        classifier(ledger=Ledger(adjacency="replace-one")).fit(*labelled())


# ---------------------------------------------------------------- checkpoints

KILLED = """
import sys
sys.path.insert(0, {here!r})
from estimator_tables import classifier, labelled
import os, signal, torch
from isthmus.estimators import linear
torch.set_num_threads(1)
watch = linear._RoundNotes.__call__

def killed(self, record, state):
    stop = watch(self, record, state)
    if state.t == 37:
        os.kill(os.getpid(), signal.SIGKILL)
    return stop

linear._RoundNotes.__call__ = killed
classifier(bounds=None, max_iter=400, noise_seed=None, checkpoint={path!r}).fit(*labelled(3000))
"""


def test_after_a_kill_epsilon_is_never_lower_and_little_higher(tmp_path: Path) -> None:
    path, here = tmp_path / "run.state", str(Path(__file__).parent)
    child = subprocess.Popen([sys.executable, "-c", KILLED.format(here=here, path=str(path))])
    assert child.wait() == -signal.SIGKILL
    reached, ledger = State.load(path).t, Ledger.open(f"{path}.ledger")
    charged = ledger.rounds()
    assert reached == 37 and charged["ranges"] == 1
    assert reached <= charged["main"] <= reached + 41, "one reservation of a tenth, and the round in flight"
    model = classifier(bounds=None, max_iter=400, noise_seed=None, checkpoint=path).fit(*labelled(3000))
    assert model.n_iter_ == 400 and ledger.rounds()["ranges"] == 1, "what was bought is not bought again"
    assert 400 <= ledger.rounds()["main"] <= 400 + 41
    undisturbed = classifier(bounds=None, max_iter=400).fit(*labelled(3000)).privacy_
    assert undisturbed.nominal <= model.privacy_.epsilon < 1.06 * undisturbed.nominal
    assert model.privacy_.epsilon >= ledger.spent(undisturbed.delta) * (1 - 1e-9)


def test_a_finished_checkpoint_gives_the_same_model_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.state"
    first = classifier(bounds=None, checkpoint=path, noise_seed=None).fit(X, y)
    before = Ledger.open(f"{path}.ledger").rounds()
    again = classifier(bounds=None, checkpoint=path, noise_seed=None).fit(X, y)
    np.testing.assert_array_equal(again.coef_, first.coef_)
    assert Ledger.open(f"{path}.ledger").rounds() == before


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.state"
    classifier(checkpoint=path).fit(X, y)
    with pytest.raises(InvalidInput, match="resume"):
        classifier(checkpoint=path, epsilon=2.0).fit(X, y)


# ---------------------------------------------------------------- many fits


def test_searches_and_cross_validations_warn() -> None:
    with pytest.warns(PrivacyBudgetWarning, match="isthmus.PrivateSearch"):
        model_selection.GridSearchCV(classifier(), {"l2": [0.0, 0.1]}, cv=2).fit(X, y)
    with pytest.warns(PrivacyBudgetWarning, match="every fit"):
        model_selection.cross_val_score(regressor(), *numbered(), cv=2)
    with pytest.warns(PrivacyBudgetWarning, match="ensemble"):
        ensemble.BaggingClassifier(classifier(), n_estimators=2).fit(X, y)


@pytest.mark.parametrize("made", [PrivateClassifier, PrivateRegressor])
def test_without_privacy_nobody_is_warned(made: Any) -> None:
    model = made(epsilon=math.inf, max_iter=3, random_state=0)
    assert len(model_selection.cross_val_score(model, X, y, cv=2)) == 2
    assert set(QUICK) <= set(model.get_params())


def test_a_checkpoint_without_its_ledger_is_refused(tmp_path: Path) -> None:
    model = classifier(checkpoint=tmp_path / "fit.state").fit(*labelled())
    (tmp_path / "fit.state.ledger").unlink()
    with pytest.raises(InvalidInput, match="has what this run has spent"):
        model.fit(*labelled())
