"""Models on disk: the same after loading, and refused where the file is not what was written."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from estimator_tables import X, classifier, labelled, numbered, regressor, sparse_rows, y
from safetensors import safe_open
from safetensors.torch import save_file
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

import isthmus
from isthmus import InvalidInput, L1Ball, PrivateClassifier
from isthmus.estimators import load, save, stored
from isthmus.estimators.stored import LEFT_OUT
from isthmus.privacy import Adjacency, Ledger

SOME = ([-2, math.nan, -2, -3], np.full(4, 2.0))


def named(*words: str, kind: Any = str) -> tuple[np.ndarray, np.ndarray]:
    X, y = labelled(classes=len(words))
    return X, np.array(words, dtype=kind)[y]


FITTED: dict[str, Any] = {
    "logistic": lambda: classifier().fit(*labelled()),
    "three classes": lambda: classifier(classes=["b", "a", "c"], bounds=None).fit(*named("a", "b", "c")),
    "objects": lambda: classifier(classes=["no", "yes"]).fit(*named("no", "yes", kind=object)),
    "booleans": lambda: classifier(classes=[False, True], loss="hinge").fit(labelled()[0], labelled()[1] > 0),
    "sparse": lambda: classifier(bounds=None).fit(*sparse_rows()),
    "moments": lambda: classifier(scale="moments", step=None).fit(*labelled()),
    "smooth": lambda: classifier(scale="auto", features="smooth", step=None).fit(*labelled()),
    "public": lambda: classifier(bounds=None, public=labelled(60, seed=4)[0]).fit(*labelled()),
    "arrays": lambda: classifier(bounds=SOME, class_weight={0: 1.0, 1: 2}).fit(*labelled()),
    "set": lambda: classifier(constraint=L1Ball(2.0), step=None).fit(*labelled()),
    "frame": lambda: classifier().fit(pandas.DataFrame(labelled()[0], columns=list("abcd")), labelled()[1]),
    "secret": lambda: classifier(noise_seed=None).fit(*labelled()),
    "no privacy": lambda: PrivateClassifier(epsilon=math.inf, max_iter=3, random_state=0).fit(*labelled()),
    "numbers": lambda: regressor().fit(*numbered()),
    "bought targets": lambda: regressor(target_bounds=None, bounds=None).fit(*numbered()),
    "huber": lambda: regressor(loss="huber", adjacency=Adjacency.REPLACE_ONE).fit(*numbered()),
    "counts": lambda: regressor(loss="poisson", target_bounds=(0, 15)).fit(numbered()[0], abs(numbered()[1])),
}


def rows_for(model: Any) -> Any:
    if model.n_features_in_ == 30:
        return sparse_rows(50, seed=8)[0]
    X = 1.4 * labelled(50, seed=8)[0]
    return pandas.DataFrame(X, columns=list("abcd")) if hasattr(model, "feature_names_in_") else X


@pytest.mark.parametrize("name", FITTED)
def test_a_loaded_model_is_the_one_that_was_saved(name: str, tmp_path: Path) -> None:
    model = FITTED[name]()
    model.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    X = rows_for(model)
    assert type(again) is type(model)
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert again.predict(X).dtype == model.predict(X).dtype
    for method in ("predict_proba", "predict_log_proba", "decision_function"):
        assert hasattr(again, method) == hasattr(model, method)
        if hasattr(model, method):
            np.testing.assert_array_equal(getattr(again, method)(X), getattr(model, method)(X))
    for found in ("coef_", "intercept_"):
        np.testing.assert_array_equal(vars(again).get(found), vars(model).get(found))
    assert again.score(X, model.predict(X)) == 1.0
    assert again.privacy_ == model.privacy_ and again.n_iter_ == model.n_iter_
    assert again.budget_curve(3) == model.budget_curve(3)
    assert getattr(again, "target_bounds_", None) == getattr(model, "target_bounds_", None)
    if hasattr(model, "classes_"):
        assert again.classes_.dtype == model.classes_.dtype and again.classes_.tolist() == model.classes_.tolist()
    if hasattr(model, "feature_names_in_"):
        assert again.feature_names_in_.tolist() == list("abcd")
        with pytest.raises(ValueError, match="feature names"):
            again.predict(X.rename(columns={"a": "z"}))
    kept, given = again.get_params(), model.get_params()
    assert all(kept[left] is None for left in LEFT_OUT), "parameters are kept but those of the fit"
    for key in set(given) - set(LEFT_OUT) - {"adjacency"}:
        assert str(kept[key]) == str(given[key])
    assert clone(again).epsilon == model.epsilon


@pytest.mark.parametrize("made", [classifier, regressor])
def test_partial_fits_go_on_where_they_were(made: Any, tmp_path: Path) -> None:
    model = made(bounds=None, partial_calls=3, noise_seed=None, epsilon=0.8).partial_fit(X, y).partial_fit(X, y)
    spent = model.privacy_.epsilon
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").partial_fit(X, y)
    assert spent == again.privacy_.epsilon <= 0.8 and again.n_iter_ == 12
    with pytest.raises(InvalidInput, match="all of them were made"):
        again.partial_fit(X, y)


def test_nothing_of_the_machine_or_the_noise_is_stored(tmp_path: Path) -> None:
    model = classifier(noise_seed=12345, ledger=tmp_path / "private.ledger", checkpoint=tmp_path / "state").fit(X, y)
    save(model, tmp_path / "model")
    content = (tmp_path / "model").read_bytes()
    assert b"12345" not in content and str(tmp_path).encode() not in content and b"pickle" not in content
    assert len(content) < 20_000


# ---------------------------------------------------------------- damaged files


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    save(classifier(bounds=None).fit(*labelled()), path)
    good = path.read_bytes()
    where = np.linspace(0, len(good) - 1, 60).astype(int)
    for at in where:
        for bad in (good[:at], good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]):
            path.write_bytes(bad)
            with pytest.raises(InvalidInput, match="path="):
                load(path)
    path.write_bytes(good)
    assert load(path).n_features_in_ == 4


def rewritten(path: Path, change: Any) -> None:
    """The file with its header's tree changed, sealed by the old seal."""
    with safe_open(path, framework="pt") as file:
        header, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}
    save_file(tensors, path, metadata=change(header))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with pytest.raises(InvalidInput, match="missing"):
        load(path)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match="another kind"):
        load(path)
    model = classifier().fit(*labelled())
    model.result_.state.save(path)
    with pytest.raises(InvalidInput, match="another kind"):
        load(path)
    for change in (
        lambda header: {**header, "tree": header["tree"].replace("PrivateClassifier", "PrivateRegressor")},
        lambda header: {name: header[name] for name in ("format", "tree")},
        lambda header: {**header, "tree": json.dumps({"class": "os.system"})},
    ):
        save(model, path)
        rewritten(path, change)
        with pytest.raises(InvalidInput, match="path="):
            load(path)


def test_what_cannot_be_stored_is_refused_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "model"
    fitted = classifier().fit(X, y)
    for wrong, word in (
        (classifier(), "fit it first"),
        (make_pipeline(classifier()), "its fitted estimator"),
        (classifier().fit(X, y).set_params(constraint=isthmus.FromProjection(lambda x: x)), "params/constraint"),
        (classifier().fit(X, y).set_params(options={"rule": print}), "params/options"),
    ):
        with pytest.raises(InvalidInput, match=word):
            save(wrong, path)
        assert list(tmp_path.iterdir()) == []
    save(fitted.set_params(ledger=Ledger()), path)
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_sets_are_stored_by_name_and_numbers(tmp_path: Path) -> None:
    model = classifier().fit(*labelled())
    for given in (
        isthmus.L2Ball(2.0, [0.0] * 5),
        isthmus.Box(-1.0, 1.0),
        isthmus.GroupBall([[0, 1], [2, 3, 4]]),
        isthmus.LowRank(1, 2.0, (5, 1)),
        isthmus.Product([(isthmus.L1Ball(1.0), 2), (isthmus.Simplex(2.0), 3)]),
    ):
        save(model.set_params(constraint=given), tmp_path / "model")
        found, point = load(tmp_path / "model").constraint, np.array([3.0, -1, 0.2, 5, -2])
        assert repr(found) == repr(given)
        np.testing.assert_array_equal(found.project(point), given.project(point))


@pytest.mark.parametrize(
    ("part", "more"),
    [("params", {"noise_seed": 0}), ("params", {"ledger": "other.ledger"}), ("fitted", {"predict": "gone"})],
)
def test_a_file_sets_nothing_that_is_not_stored(part: str, more: dict[str, Any]) -> None:
    """Whoever fits a loaded model again does so with his own noise, and under the ledger he gives."""
    tree = {"class": "PrivateClassifier", "params": {"loss": "logistic", "algorithm": "auto"}, "fitted": {}}
    tree |= {"partial": {}, "weights": None, "maps": [], "privacy": None, "state": None}
    assert stored._rebuilt(tree).noise_seed is None
    with pytest.raises(InvalidInput, match=next(iter(more))):
        stored._rebuilt(tree | {part: tree[part] | more})
