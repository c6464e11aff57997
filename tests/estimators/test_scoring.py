"""`private_score`: figures right on average, noise as large as they say, and a row moves them by the bound."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_tables import Seen
from sklearn import metrics
from sklearn.linear_model import LinearRegression, LogisticRegression

from isthmus import InvalidInput, PrivateClassifier, private_score
from isthmus.core.pipeline import Promise
from isthmus.estimators import scoring
from isthmus.estimators.looks import Looks, covers
from isthmus.estimators.scoring import _auc_figure, _confusion_figures, _readable, _rows_needed, _Scale
from isthmus.privacy import Gaussian, Ledger, SecretSource, SeededSource, noise_multiplier

Data = tuple[Any, np.ndarray, np.ndarray]


def labelled(rng: np.random.Generator, n: int, classes: int = 2) -> Data:
    """A model and rows that it was not fitted to."""
    X = rng.normal(size=(n + 1000, 4))
    y = np.argmax(X[:, :classes] + rng.gumbel(size=(n + 1000, classes)), axis=1)
    return LogisticRegression().fit(X[:1000], y[:1000]), X[1000:], y[1000:]


def numbered(rng: np.random.Generator, n: int) -> Data:
    X = rng.normal(size=(n + 1000, 3))
    y = 10 + X[:, 0] + rng.normal(size=n + 1000)
    return LinearRegression().fit(X[:1000], y[:1000]), X[1000:], y[1000:]


def test_public_rows_are_measured_exactly(rng: np.random.Generator) -> None:
    model, X, y = labelled(rng, 2000)
    scores, called, p = private_score(model, X, y, epsilon=math.inf), model.predict(X), model.predict_proba(X)[:, 1]
    assert scores.privacy is None and scores.releases == 0 and not any(figure.noise for figure in scores.figures)
    expected = {
        "accuracy": metrics.accuracy_score(y, called),
        "recall of 1": metrics.recall_score(y, called),
        "precision of 1": metrics.precision_score(y, called),
        "AUC": metrics.roc_auc_score(y, p),
        "log loss": metrics.log_loss(y, p),
    }
    assert {name: scores[name].value for name in expected} == pytest.approx(expected, rel=1e-9)
    shares = np.bincount(y) / len(y)
    assert scores["accuracy"].baseline == shares.max()
    assert scores["log loss"].baseline == pytest.approx(-float(shares @ np.log(shares)))
    assert 0 < scores["calibration error"].value < 0.1
    model, X, y = numbered(rng, 2000)
    scores = private_score(model, X, y, epsilon=math.inf)
    assert scores["R2"].value == pytest.approx(model.score(X, y))
    assert scores["root mean squared error"].baseline == pytest.approx(np.std(y))
    with pytest.raises(InvalidInput, match="name='AUC' is not allowed: name a figure that was measured"):
        scores["AUC"]


def test_probabilities_that_are_off_show_in_the_calibration(rng: np.random.Generator) -> None:
    model, X, y = labelled(rng, 20_000)
    good = private_score(model, X, y, epsilon=1.0)
    model.coef_, model.intercept_ = 4 * model.coef_, model.intercept_ + 1
    bad = private_score(model, X, y, epsilon=1.0)
    assert good["calibration error"].value < 0.03 and bad["calibration error"].value > 0.1
    (curve,) = bad.curves
    name, x, happened = curve["series"][0].values()
    assert name == "happened" and x == sorted(x) and np.abs(np.subtract(x, happened)).max() > 0.1


@pytest.mark.parametrize("classes", [2, 4])
def test_the_noise_of_labels_is_what_it_says(classes: int, rng: np.random.Generator) -> None:
    model, X, y = labelled(rng, 4000, classes)
    exact = {figure.name: figure for figure in private_score(model, X, y, epsilon=math.inf).figures}
    found = [private_score(model, X, y, epsilon=1.0, noise_seed=seed) for seed in range(60)]
    assert {figure.name for figure in found[0].figures} == set(exact)
    for name, true in exact.items():
        values = np.array([scores[name].value for scores in found])
        mean = np.mean([scores[name].noise for scores in found])
        if name == "calibration error":  # a mean of distances: noise only adds
            assert true.value - 0.01 < values.mean() < true.value + 0.04
            continue
        rounding = {"AUC": 0.01, "log loss": 0.05}.get(name, 0.0)  # scores are told to a cell
        assert abs(values.mean() - true.value) < 4 * mean / math.sqrt(60) + rounding
        assert 0.7 < values.std() / mean < 1.4, name


def test_the_noise_of_errors_is_what_it_says(rng: np.random.Generator) -> None:
    model, X, y = numbered(rng, 6000)
    exact = {figure.name: figure.value for figure in private_score(model, X, y, epsilon=math.inf).figures}
    found = [private_score(model, X, y, target_bounds=(0, 20), noise_seed=seed) for seed in range(60)]
    for name, true in exact.items():
        values = np.array([scores[name].value for scores in found])
        mean = np.mean([scores[name].noise for scores in found])
        assert abs(values.mean() - true) < 4 * mean / math.sqrt(60) + 0.01 * abs(true), name
        assert 0.7 < values.std() / mean < 1.4, name
        assert "are cut at" in found[0][name].note


def test_wide_bounds_do_not_drown_the_errors(rng: np.random.Generator) -> None:
    """Clips come from what was seen, not from a range a hundred times as wide."""
    model, X, y = numbered(rng, 8000)
    scores = private_score(model, X, y, target_bounds=(-500, 1500))
    assert abs(scores["R2"].value - model.score(X, y)) < 0.15 and scores["R2"].noise < 0.1


def test_both_looks_together_cost_epsilon_and_are_charged_first(rng: np.random.Generator, tmp_path: Path) -> None:
    model, X, y = labelled(rng, 3000)
    ledger = Ledger(tmp_path / "l", budget=(1.0, 1e-5))
    scores = private_score(model, X, y, epsilon=0.7, delta=1e-5, ledger=tmp_path / "l")
    assert ledger.rounds() == {"test ranges": 1, "test figures": 1} and scores.releases == 2
    assert ledger.spent() == pytest.approx(0.7, rel=1e-6) and scores.privacy.epsilon == pytest.approx(0.7, rel=1e-6)
    assert scores.privacy.private and scoring._APART in scores.privacy.assumptions
    with pytest.raises(RuntimeError, match="needs epsilon"):
        private_score(model, X, y, epsilon=0.9, delta=1e-5, ledger=ledger)
    seeded = private_score(model, X, y, noise_seed=1)
    assert not seeded.privacy.private and "seeded" in seeded.privacy.words()
    assert private_score(model, X, y, noise_seed=1)["accuracy"] == seeded["accuracy"]
    assert private_score(model, X, y)["accuracy"] != private_score(model, X, y)["accuracy"]
    with pytest.raises(InvalidInput, match="adjacency='replace-one' is not allowed: give adjacency='add-remove'"):
        private_score(model, X, y, adjacency="replace-one", ledger=ledger)


def test_twice_the_noise_where_a_record_is_replaced(rng: np.random.Generator) -> None:
    model, X, y = labelled(rng, 3000)
    kinds = ("add-remove", "replace-one")
    first, second = (private_score(model, X, y, adjacency=each)["accuracy"].noise for each in kinds)
    assert second == pytest.approx(2 * first, rel=1e-6)


def test_a_row_moves_what_is_released_by_its_bound_whatever_it_holds(rng: np.random.Generator) -> None:
    hard = np.array([1e300, -1e300, np.finfo(float).max, 5e-324, 0.0])
    for model, X, y in (labelled(rng, 3000), labelled(rng, 3000, 4), numbered(rng, 3000)):
        X[:5, 0] = np.array([1e9, -1e9, 500.0, -500.0, 0.0])
        if not hasattr(model, "classes_"):
            y[:5] = hard
        looks = Seen(noise_multiplier(epsilon=1.0, delta=1e-5), Promise(1.0, 1e-5), Ledger())
        scoring.noisy_figures(model, X, y, looks, bounds=(0, 20))
        assert len(looks.rows) == 2 and all(length <= bound for length, bound in looks.rows)
    terms = _Scale(1.0, 0.0, 1.0).terms(np.array([np.nan, 1e308, -1e308]), np.array([0.0, -1e308, 1e308]))
    assert np.isfinite(terms).all() and np.linalg.norm(terms, axis=1).max() == pytest.approx(math.sqrt(5))


def test_what_the_noise_would_hide_is_no_number(rng: np.random.Generator) -> None:
    model, X, y = labelled(rng, 20)
    ledger = Ledger()
    scores = private_score(model, X, y, epsilon=0.1, ledger=ledger)
    assert scores["accuracy"].value is None and ledger.rounds() == {} and scores.privacy.epsilon == 0
    need = int(scores["accuracy"].note.split("about ")[1].split()[0].replace(",", ""))
    model, X, y = labelled(rng, need)
    enough = private_score(model, X, y, epsilon=0.1)["accuracy"]
    assert enough.value is not None and 0.04 < enough.noise <= 0.05
    model, X, y = numbered(rng, 20)
    few = private_score(model, X, y, epsilon=0.1, target_bounds=(0, 20), ledger=ledger)
    assert few["R2"].value is None and "too few rows" in few.words() and ledger.rounds() == {}
    rare = np.array([[3000.0, 4.0], [3.0, 2.0]])  # five rows of the class, noise of ten
    shown = [_readable(figure, 3009).value for figure in _confusion_figures(rare, ["a", "b"], 10.0)]
    assert shown[0] is not None and shown[1:] == [None, None]
    assert _readable(_auc_figure(np.array([[500.0, 400.0], [2.0, 3.0]]), 10.0), 905).value is None
    assert _rows_needed(100, 0.1) == "about 200"


def test_models_without_probabilities_have_the_figures_that_they_can(rng: np.random.Generator) -> None:
    model, X, y = labelled(rng, 4000)

    class Bare:
        classes_ = np.array([0, 1])
        predict = staticmethod(model.predict)

    class Margins(Bare):
        decision_function = staticmethod(model.decision_function)

    names = [figure.name for figure in private_score(Bare(), X, y).figures]
    assert names == ["accuracy", "recall of 1", "precision of 1"]
    assert [figure.name for figure in private_score(Margins(), X, y).figures] == [*names, "AUC"]
    assert [figure.name for figure in private_score(Bare(), X, y, epsilon=math.inf).figures] == names


def undecided(rng: np.random.Generator, w: np.ndarray) -> np.ndarray:
    """A row whose margin is 0 but for its last digits."""
    x = rng.normal(size=len(w))
    return x - (x @ w) / (w @ w) * w


def test_models_of_others_are_taken_to_predict_row_by_row_and_ours_do(rng: Any, monkeypatch: Any) -> None:
    """One row more changes what a matrix product says of undecided rows; the statement names it, or it is untrue."""
    X = rng.uniform(-1, 1, (400, 257))
    y = (X[:, 0] > 0).astype(int)
    ours = PrivateClassifier(epsilon=50.0, classes=[0, 1], data_norm=20.0, max_iter=3, fit_intercept=False).fit(X, y)
    theirs = LogisticRegression(fit_intercept=False).fit(X, y)
    assert scoring._ONE_BY_ONE in private_score(theirs, X, y).privacy.assumptions  # type: ignore[union-attr]
    assert scoring._ONE_BY_ONE not in private_score(ours, X, y).privacy.assumptions  # type: ignore[union-attr]
    cells: list[np.ndarray] = []
    counts = Looks.counts

    def watched(looks: Any, name: str, bins: np.ndarray, *rest: Any) -> Any:
        cells.append(bins)
        return counts(looks, name, bins, *rest)

    monkeypatch.setattr(Looks, "counts", watched)
    for n in (40, 1000):
        for _ in range(10):
            rows = np.tile(undecided(rng, ours.coef_[0]), (n + 1, 1))
            for some in (rows, rows[1:]):
                private_score(ours, some, np.zeros(len(some), int), epsilon=1000.0)
            whole, less = cells[-4], cells[-2]  # the first looks of both: those after them follow what was released
            assert np.array_equal(whole[1:], less)


WRONG = [
    ({"epsilon": 0.0}, "epsilon=0.0 is not allowed"),
    ({"adjacency": "both"}, "adjacency='both' is not allowed"),
    ({"y": np.full(50, 7)}, r"does not know: its labels are \[0, 1\]"),
    ({"y": np.zeros((50, 2))}, "give one target for each row"),
]


@pytest.mark.parametrize(("change", "words"), WRONG)
def test_what_is_wrong_is_refused_before_anything_is_spent(change: Any, words: str, rng: Any) -> None:
    model, X, y = labelled(rng, 50)
    ledger = Ledger()
    with pytest.raises((InvalidInput, ValueError), match=words):
        private_score(model, X, **{"y": y, "ledger": ledger} | change)
    assert ledger.rounds() == {}


def test_a_regressor_without_a_range_is_refused(rng: np.random.Generator) -> None:
    model, X, y = numbered(rng, 50)
    with pytest.raises(InvalidInput, match=r"target_bounds=None is not allowed: give a public range"):
        private_score(model, X, y)
    with pytest.raises(InvalidInput, match="NaN or infinite"):
        private_score(model, X, np.full(50, np.nan), target_bounds=(0, 1))


def test_what_covers_a_release_at_other_rows() -> None:
    assert covers(Gaussian(2.0).event(), 2.0) and covers(Gaussian(2.0).event(), 3.0)
    assert not covers(Gaussian(2.0).event(), 1.9)
    ledger = Ledger()
    assert not covers(ledger.event(), 100.0)  # nothing was released, nothing is paid for
    inner = {"event": "Gaussian", "noise_multiplier": 1.0}
    ledger.pay("sampled", {"event": "PoissonSampled", "sampling_probability": 0.5, "inner": inner})
    assert not covers(ledger.event(), 100.0)


def test_covered_looks_are_in_the_ledger_and_add_nothing(rng: np.random.Generator) -> None:
    model, X, y = labelled(rng, 3000)
    ledger = Ledger()
    ledger.pay("training", Gaussian(4.0).event())
    before = ledger.spent(1e-5)
    looks = Looks(4.0, Promise(1.0, 1e-5), ledger, covered=True)
    found = scoring.noisy_figures(model, X, y, looks)
    assert ledger.spent(1e-5) == before and found.releases == 0 and len(looks.taken) == 2
    assert ledger.rounds() == {"training": 1, "test ranges": 1, "test figures": 1}
    assert found["accuracy"].noise == pytest.approx(4.0 / math.sqrt(0.8) * math.sqrt(2) / 3000)
    assert isinstance(looks.source, SecretSource) and not isinstance(looks.source, SeededSource)


def test_a_model_that_predicts_a_column_is_measured_as_one_that_predicts_a_row(rng: np.random.Generator) -> None:
    X = rng.uniform(-1, 1, (500, 3))
    y = X @ [1.0, 0.5, 0.0]
    column = LinearRegression().fit(X, y[:, None])
    assert private_score(column, X, y, epsilon=math.inf)["R2"].value == pytest.approx(1)
    noisy = private_score(column, X, y, epsilon=100.0, target_bounds=(-2, 2))["mean absolute error"]
    assert noisy.note and private_score(column, X, y, epsilon=100.0, target_bounds=(-2, 2)).releases == 2


@pytest.mark.parametrize("epsilon", [math.inf, 5.0])
def test_a_model_that_predicts_several_numbers_is_refused(epsilon: float, rng: np.random.Generator) -> None:
    X = rng.uniform(-1, 1, (500, 3))
    two = LinearRegression().fit(X, X[:, :2])
    with pytest.raises(InvalidInput, match="one that predicts one"):
        private_score(two, X, X[:, 0], epsilon=epsilon, target_bounds=(-2, 2))
