"""Fitted estimators as one file (see `isthmus.base.storage`): names and numbers, no pickle, no code.

Stored are the model (weights and the public maps of rows they belong to), the parameters, the privacy statement, and
for `partial_fit` the state it goes on from.  Left out is what belongs to a fit and not to the model: `public` rows,
`ledger`, `checkpoint`, `noise_seed`, and the plan and history of the fit.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from isthmus.algorithms import KNOWN, Algorithm
from isthmus.algorithms.suggest import find
from isthmus.base import class_registry, storage, validate
from isthmus.core.wire import State
from isthmus.objectives import LinearModel
from isthmus.privacy import PrivacyStatement
from isthmus.problems.features import SmoothMap
from isthmus.problems.scaling import RowMap, RowMaps

if TYPE_CHECKING:
    from isthmus.estimators.linear import _PrivateLinear

FORMAT = storage.Format("isthmus-estimator-3", "isthmus.estimators.save")
KINDS: dict[str, type[_PrivateLinear]] = {}
"""The classes that can be stored, by name; not those below them."""
_MAPS: dict[str, type[RowMap | SmoothMap]] = {kind.__name__: kind for kind in (RowMap, SmoothMap)}
"""The maps of rows that a model can have."""
LEFT_OUT = ("public", "ledger", "checkpoint", "noise_seed")
"""Parameters that are None again after loading."""
_OF_COLUMNS = ("n_features_in_", "feature_names_in_", "coef_")
_FITTED = (*_OF_COLUMNS, "intercept_", "classes_", "target_bounds_", "target_centre_", "n_iter_")
_PARTIAL = ("_calls", "_declared", "_charged", "_first", "_run", "_planned_rounds")
"""What `partial_fit` remembers of earlier calls."""


def save(estimator: _PrivateLinear, path: str | Path) -> None:
    """Write a fitted estimator to one file, whole or not at all.

    A seal (SHA-256) shows damage to the file; it is no signature: whoever may write the file can forge a whole one.

    >>> import tempfile
    >>> from isthmus import PrivateClassifier
    >>> X, y = np.random.default_rng(0).uniform(-1, 1, (500, 3)), np.arange(500) % 2
    >>> model = PrivateClassifier(epsilon=1.0, bounds=(-1, 1), classes=[0, 1]).fit(X, y)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(model, folder + "/model.safetensors")
    ...     again = load(folder + "/model.safetensors")
    >>> bool((again.predict_proba(X) == model.predict_proba(X)).all()), again.privacy_ == model.privacy_
    (True, True)
    """
    kind = type(estimator).__name__
    remedy = f"give a fitted {' or '.join(KINDS)}; of a search or a Pipeline, its fitted estimator"
    validate.check(KINDS.get(kind) is type(estimator), "estimator", estimator, remedy)
    own, state = vars(estimator), estimator._partial_state
    validate.check("_weights" in own, "estimator", estimator, "fit it first")
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in LEFT_OUT}
    params |= {"loss": _named(params["loss"]), "algorithm": _named(params["algorithm"])}
    if not isinstance(params["random_state"], (int, np.integer)):  # a generator's state is not a choice
        params["random_state"] = None
    tree: dict[str, object] = {
        "class": kind,
        "params": params,
        "fitted": {name: own[name] for name in _FITTED if own.get(name) is not None},
        "weights": estimator._weights,
        "maps": [{"kind": type(row_map).__name__, **storage.fields_of(row_map)} for row_map in estimator._maps.maps],
        "privacy": estimator.privacy_ and estimator.privacy_.to_json(),
        "partial": {name: own[name] for name in _PARTIAL if own.get(name) is not None},
        "state": state and storage.fields_of(state),
    }
    FORMAT.write(path, tree)


def load(path: str | Path) -> _PrivateLinear:
    """The estimator that `save` wrote, able to predict, score and `partial_fit` further; damaged files are refused."""
    return FORMAT.read(path, lambda tree: _usable(_rebuilt(tree)))


def _rebuilt(tree: dict) -> _PrivateLinear:
    strange = {"params": {*tree["params"]} & {*LEFT_OUT}}
    strange |= {"fitted": {*tree["fitted"]} - {*_FITTED}, "partial": {*tree["partial"]} - {*_PARTIAL}}
    for part, more in strange.items():
        remedy = "give a file that this library wrote: models are stored without these entries"
        validate.check(not more, f"path: {part}", sorted(more), remedy)
    params = tree["params"] | {name: _looked_up(tree["params"][name]) for name in ("loss", "algorithm")}
    estimator = KINDS[tree["class"]](**params)
    estimator._weights = tree["weights"]
    estimator._maps = RowMaps([_MAPS[entry.pop("kind")](**entry) for entry in tree["maps"]])
    for name, value in {**tree["fitted"], **tree["partial"]}.items():
        setattr(estimator, name, value)
    estimator.privacy_ = tree["privacy"] and PrivacyStatement.from_json(tree["privacy"])
    estimator._partial_state = tree["state"] and State(**tree["state"])
    return estimator


def _usable(estimator: _PrivateLinear) -> _PrivateLinear:
    """The model, where it predicts for a row of zeros: else its parts were made up, or are of different models."""
    fitted = vars(estimator)
    columns, classes = fitted.get("n_features_in_", ""), fitted.get("classes_")
    remedy = "give a file as it was written: the coefficients belong to others"
    validate.check(isinstance(columns, (int, np.integer)), "path: n_features_in_", columns, remedy)
    shape = np.shape(estimator._straight()[0])
    validate.check(shape[-1:] == (columns,), "path: n_features_in_", columns, remedy)
    estimator._set_coefficients()  # what an earlier version stored of a model that is not linear is left out
    if classes is not None:  # one row of coefficients for two labels, else one for each
        flat = isinstance(classes, np.ndarray) and classes.ndim == 1
        several = flat and len(set(classes.tolist())) == len(classes) > 1
        whole = several and shape[:-1] == ({2: 1}.get(len(classes), len(classes)),)
        validate.check(whole, "path: classes_", np.shape(classes), remedy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this row has no names
        predicted = np.asarray(estimator.predict(np.zeros((1, columns))))
    remedy = "give a file as it was written: a model predicts one value for a row"
    validate.check(predicted.shape == (1,), "path: weights", predicted.shape, remedy)
    return estimator


def _named(part: object) -> object:
    """A loss or a recipe that was given as itself: where it was declared."""
    if isinstance(part, str):
        return part
    if isinstance(part, type):
        return {"loss": class_registry.address(part)}
    remedy = "declare the recipe in a module by @isthmus.algorithms.algorithm: a file can name only what is declared"
    declared = isinstance(part, Algorithm) and (KNOWN.get(part.name) is part or find(part.address) is part)
    validate.check(declared, "algorithm", part, remedy)
    assert isinstance(part, Algorithm)
    return {"recipe": part.name if KNOWN.get(part.name) is part else part.address}


def _looked_up(part: object) -> object:
    """What a name stands for, among what this process has imported."""
    if not isinstance(part, dict):
        return part
    if "loss" in part:
        return class_registry.imported(LinearModel, part["loss"])  # type: ignore[type-abstract]
    recipe = KNOWN.get(part["recipe"]) or find(part["recipe"])
    remedy = "import the module that defines this algorithm first: reading a file never imports code"
    validate.check(recipe is not None, "path", part["recipe"], remedy)
    return recipe
