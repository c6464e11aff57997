"""Nothing is learned from the records outside the budget: warnings where it is, and neighbours where it is not."""

import json
import math
from typing import Any

import numpy as np
import pytest
from estimator_tables import QUICK, X, classifier, labelled, numbered, regressor, sparse_rows, y
from scipy import sparse, stats

from isthmus import LeastSquares, PrivacyLeakWarning, PrivateClassifier, PrivateRegressor
from isthmus.algorithms.purchases import BINS, ClassCounts, Columns, Lambda, Moments, Ranges, Statistics, TargetRange
from isthmus.privacy import Ledger

KNOWN: dict[str, Any] = {"bounds": (-2, 2), "target_bounds": (-5, 15)}
UNIT = KNOWN | {"bounds": None, "data_norm": "data"}
LEAKS: dict[str, tuple[Any, dict[str, Any], str, str]] = {
    "classes": (PrivateClassifier, {"bounds": (-2, 2)}, "labels", "give classes="),
    "bounds": (PrivateRegressor, KNOWN | {"bounds": "data"}, "ranges of the columns", "give bounds=(low, high)"),
    "data_norm": (PrivateRegressor, UNIT, "largest row norm", "give a data_norm="),
    "target_bounds": (PrivateRegressor, KNOWN | {"target_bounds": "data"}, "range of y", "give target_bounds="),
}


@pytest.mark.parametrize("name", LEAKS)
def test_what_is_read_off_the_data_is_warned_of_and_stated(name: str) -> None:
    made, arguments, what, remedy = LEAKS[name]
    X, y = numbered() if made is PrivateRegressor else labelled()
    with pytest.warns(PrivacyLeakWarning) as caught:
        model = made(**QUICK, **arguments).fit(X, y)
    assert len(caught) == 1, "one leak, one warning"
    assert what in str(caught[0].message) and remedy in str(caught[0].message)
    assert caught[0].filename == __file__, "it points at the caller's line"
    leaks = [leak for leak in model.privacy_.leaks if what in leak]
    assert len(leaks) == 1 and remedy in leaks[0] and leaks[0] in model.privacy_.words()
    assert model.result_.privacy == model.privacy_, "what is stated of the loop is stated of the fit"


SILENT: dict[str, Any] = {
    "declared": lambda: classifier().fit(*labelled()),
    "declared numbers": lambda: regressor().fit(*numbered()),
    "bought ranges": lambda: regressor(bounds=None, target_bounds=None).fit(*numbered()),
    "some bought": lambda: classifier(bounds=([-2, math.nan, -2, -2], 2.0)).fit(*labelled()),
    "declared norm": lambda: classifier(bounds=None, data_norm=3.0).fit(*labelled()),
    "sparse": lambda: classifier(bounds=None).fit(*sparse_rows()),
    "public": lambda: classifier(bounds=None, public=labelled(50, seed=9)[0]).fit(*labelled()),
    "balanced": lambda: classifier(class_weight="balanced").fit(*labelled()),
    "auto": lambda: PrivateRegressor(n=400, noise_seed=0, max_iter=3).fit(*numbered()),
    "no privacy": lambda: PrivateClassifier(epsilon=math.inf, max_iter=3).fit(*labelled()),
}


@pytest.mark.parametrize("name", SILENT)
def test_nothing_is_warned_of_where_nothing_is_read(name: str) -> None:
    model = SILENT[name]()
    assert model.privacy_ is None or (model.privacy_.leaks == () and "NOT cover" not in model.privacy_.words())


def test_public_rows_are_an_assumption() -> None:
    assumptions = SILENT["public"]().privacy_.assumptions
    assert any("public rows" in assumption or "given as public" in assumption for assumption in assumptions)


# ---------------------------------------------------------------- neighbours

FIXED: dict[str, Any] = {**QUICK, "n": 400}
ALONE = {"step": "auto", "precondition": True, "scale": "none", "targets": False}
FIRST: dict[str, tuple[Any, Any]] = {
    "ranges": (lambda: regressor(**FIXED | {"bounds": None, "step": None}), math.sqrt(4)),
    "some ranges": (lambda: regressor(n=400, bounds=([-2, math.nan, -2, -2], 2.0)), 1.0),
    "targets": (lambda: regressor(n=400, target_bounds=None), 1.0),
    "classes": (lambda: classifier(n=400, class_weight="balanced"), 1.0),
    "moments": (lambda: regressor(n=400, scale="moments", step=None), math.sqrt(2)),
    "columns": (lambda: regressor(n=400, scale="columns", step=None), 1 / math.sqrt(5)),
    "lambda": (lambda: regressor(n=400, step=None, options={"targets": False}), 1.0),
    "target shape": (lambda: regressor(n=400, step=None), 1.0),
    "shapes": (lambda: regressor(n=400, step=None, scale="shapes"), math.sqrt(4)),
    "statistics": (lambda: regressor(n=400, step=None, options=ALONE), math.sqrt(2)),
}
STRANGERS = {
    "usual": ([0.5, -1.0, 1.5, 0.0], 1),
    "on an axis": ([2.0, 0.0, 0.0, 0.0], 0),
    "zero": ([0.0, 0.0, 0.0, 0.0], 1),
    "huge": ([1e300, -1e300, 1e300, 1e300], 1),
    "largest": ([np.finfo(float).max] * 4, 0),
    "mixed": ([1e-300, 1e200, 5e-324, -1.0], 0),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("name", FIRST)
def test_one_record_moves_the_first_release_by_at_most_its_bound(name: str, stranger: str) -> None:
    """With one stream of noise, two neighbouring tables' releases differ by what the record moved."""
    (made, bound), (row, label) = FIRST[name], STRANGERS[stranger]
    target = label if name == "classes" else 1e300 * label
    before = made().fit(X, y).result_.state.parts["prepare"]
    after = made().fit(np.vstack([X, row]), np.append(y, target)).result_.state.parts["prepare"]
    key = next(iter(before))
    other = {"some ranges": "ranges", "moments": "scale", "columns": "scale"}
    assert key == next(iter(after)) == other.get(name, name)
    moved = float((after[key] - before[key]).norm())
    assert moved <= bound * (1 + 2e-6)
    assert all(bool(value.isfinite().all()) for value in after.values())


@pytest.mark.parametrize("name", FIRST)
def test_a_strange_record_leaves_a_model_that_is_one(name: str) -> None:
    for row, label in STRANGERS.values():
        model = FIRST[name][0]().fit(np.vstack([X, row]), np.append(y, label))
        assert np.isfinite(model._straight()[0]).all() and np.isfinite(model.predict(np.array([row]))).all()


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("made", [classifier, regressor])
def test_one_record_moves_a_step_by_at_most_its_clipped_gradient(made: Any, stranger: str) -> None:
    """One step from zero with nothing bought: exchanging a record moves the point by 2 step clip / n at most."""
    other, labels = X.copy(), y.copy()
    other[7], labels[7] = STRANGERS[stranger]
    for convert, bounds in ((np.asarray, (-2, 2)), (sparse.csr_matrix, None)):
        step = {"max_iter": 1, "step": 0.5, "clip": 0.1, "bounds": bounds, "options": {"output": "last"}}
        points = [made(**step).fit(convert(a), b)._weights.numpy() for a, b in ((X, y), (other, labels))]
        assert 0 < np.linalg.norm(points[0] - points[1]) <= 2 * 0.5 * 0.1 / 400 * (1 + 1e-9)


def test_what_is_public_does_not_depend_on_the_records() -> None:
    """All that is shown of two fits to quite different records of one size is the same, but for what was released."""
    collected = []
    for seed in (0, 1):
        X, y = numbered(seed=seed)
        ledger = Ledger()
        model = regressor(bounds=None, target_bounds=None, ledger=ledger).fit(X * 10**seed, 7 * y * 10**seed)
        records = [{k: r[k] for k in ("kind", "what", "event", "rounds") if k in r} for r in ledger.records()]
        notes = [{k: v for k, v in note.items() if k != "moved"} for note in model.history_]
        collected.append(json.dumps([records, notes, model.privacy_.to_json(), model.plan_.to_dict(), model.n_iter_]))
    assert collected[0] == collected[1]


def test_private_history_holds_no_loss() -> None:
    assert all("loss" not in note for note in classifier().fit(*labelled()).history_)
    assert "loss" in PrivateClassifier(epsilon=math.inf, max_iter=3).fit(*labelled()).history_[-1]


def test_verbose_shows_epsilon_and_no_loss(capsys: pytest.CaptureFixture[str]) -> None:
    classifier(verbose=1, max_iter=1000).fit(*labelled(2000))  # long enough for the bar to be drawn again
    text = "".join(capsys.readouterr())
    assert "epsilon" in text and "loss" not in text


# ---------------------------------------------------------------- what is bought


def test_only_unknown_columns_are_bought() -> None:
    for bounds, columns in (
        (None, 4),
        (([math.nan] * 4, [math.nan] * 4), 4),
        (([0, math.nan, 0, math.nan], 2.0), 2),
        ((-2.0, [2, 2, math.nan, 2]), 1),
    ):
        bought = classifier(bounds=bounds).fit(X, y).result_.state.parts["prepare"]
        assert bought["ranges"].numel() == columns * BINS
    assert "prepare" not in classifier(bounds=(-2, [2, 3, 4, 5])).fit(X, y).result_.state.parts


def test_bought_ranges_have_the_noise_that_is_stated() -> None:
    """Through the whole estimator: what was released, less the exact counts, against the ledger's event."""
    X, y = labelled(50)
    noise = []
    for seed in range(4):
        ledger = Ledger()
        model = classifier(bounds=None, noise_seed=seed, ledger=ledger).fit(X, y)
        exact = Ranges().rows(LeastSquares(X, y)).sum()
        event = next(r["event"] for r in ledger.records() if r["kind"] == "charge" and r["what"] == "ranges")
        released = model.result_.state.parts["prepare"]["ranges"]
        noise.append((released - exact).numpy() / (event["noise_multiplier"] * math.sqrt(4)))
    drawn = np.concatenate(noise)
    assert stats.kstest(drawn, "norm").pvalue > 1e-3
    assert all(stats.kstest(drawn * wrong, "norm").pvalue < 1e-6 for wrong in (2 / 3, 3 / 2))


def test_purchases_are_few_percent_of_the_budget() -> None:
    shares = [item.share for item in (Ranges(), TargetRange(), ClassCounts(), Columns(), Moments(), Lambda())]
    assert sum(shares) < 0.5 and Statistics().share < 0.5
