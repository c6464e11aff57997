"""Fitted estimators as one file: names and numbers in a JSON header, arrays as safetensors.  No pickle, no code.

Stored are the model (weights and the public maps of rows they belong to), the parameters, the privacy statement, and
for `partial_fit` the state it goes on from.  Left out is what belongs to a fit and not to the model: `public` rows,
`ledger`, `checkpoint`, `noise_seed`, and the plan and history of the fit.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from isthmus.algorithms import KNOWN, Algorithm
from isthmus.algorithms.declare import find
from isthmus.base import known, validate
from isthmus.estimators.parameters import Parameters
from isthmus.geometry.sets import ConvexSet
from isthmus.privacy import PrivacyStatement
from isthmus.problems.objectives import LinearModel
from isthmus.problems.scaling import RowMap, RowMaps
from isthmus.round.state import State, pack, unpack

FORMAT = "isthmus-estimator-1"
KINDS = ("PrivateClassifier", "PrivateRegressor")
LEFT_OUT = ("public", "ledger", "checkpoint", "noise_seed")
"""Parameters that are None again after loading."""
FITTED = ("coef_", "intercept_", "classes_", "target_bounds_", "n_features_in_", "feature_names_in_", "n_iter_")
PARTIAL = ("_calls", "_declared", "_charged", "_first", "_run", "_planned_rounds")
"""What `partial_fit` remembers of earlier calls."""

Tensors = dict[str, Tensor]


def save(estimator: Any, path: str | Path) -> None:
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
    kind = known.address(type(estimator))
    remedy = f"give a fitted {' or '.join(KINDS)}; of a search or a Pipeline, its fitted estimator"
    validate.check(kind in KINDS, "estimator", estimator, remedy)
    validate.check(hasattr(estimator, "_weights"), "estimator", estimator, "fit it first")
    tensors: Tensors = {}
    state = getattr(estimator, "_partial_state", None)
    statement = estimator.privacy_
    tree = {
        "class": kind,
        "params": _params(estimator, tensors),
        "fitted": _attributes(estimator, FITTED, tensors),
        "weights": _encode(estimator._weights, "weights", tensors),
        "maps": [_map_tree(each, f"maps/{k}", tensors) for k, each in enumerate(estimator._maps.maps)],
        "privacy": None if statement is None else statement.to_json(),
        "partial": _attributes(estimator, PARTIAL, tensors),
        "state": None if state is None else _state_tree(state, tensors),
    }
    text = json.dumps(tree, allow_nan=False)
    target = Path(path)
    partial = target.with_name(target.name + ".part")
    try:
        save_file(tensors, partial, metadata={"format": FORMAT, "tree": text, "seal": _seal(text, tensors)})
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def load(path: str | Path) -> Any:
    """The estimator that `save` wrote, able to predict, score and `partial_fit` further; damaged files are refused."""
    remedy = "give a file written by isthmus.estimators.save; this one is missing, damaged or of another kind"
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}
        validate.check(header.get("format") == FORMAT, "path", str(path), remedy)
        validate.check(header["seal"] == _seal(header["tree"], tensors), "path", str(path), remedy)
        return _rebuilt(json.loads(header["tree"]), tensors)
    except validate.InvalidInput:
        raise
    except (OSError, SafetensorError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise validate.InvalidInput(f"path={str(path)!r} is not allowed: {remedy} ({error})") from error


# ---------------------------------------------------------------- parts of the tree


def _params(estimator: Any, tensors: Tensors) -> dict[str, Any]:
    given = {name: value for name, value in estimator.get_params(deep=False).items() if name not in LEFT_OUT}
    if not isinstance(given["random_state"], (int, np.integer)):  # a generator's state is not a choice
        given["random_state"] = None
    given |= {"loss": _named(given["loss"]), "algorithm": _named(given["algorithm"])}
    return {name: _encode(value, f"params/{name}", tensors) for name, value in given.items()}


def _attributes(estimator: Any, names: tuple[str, ...], tensors: Tensors) -> dict[str, Any]:
    there = {name: getattr(estimator, name) for name in names if getattr(estimator, name, None) is not None}
    return {name: _encode(value, f"fitted/{name}", tensors) for name, value in there.items()}


def _map_tree(found: RowMap, path: str, tensors: Tensors) -> dict[str, Any]:
    return {each.name: _encode(getattr(found, each.name), f"{path}/{each.name}", tensors) for each in fields(found)}


def _state_tree(state: State, tensors: Tensors) -> dict[str, Any]:
    return {each.name: pack(getattr(state, each.name), f"state/{each.name}", tensors) for each in fields(state)}


def _rebuilt(tree: dict[str, Any], tensors: Tensors) -> Any:
    params = {name: _decode(value, tensors) for name, value in tree["params"].items()}
    params |= {"loss": _found(params["loss"]), "algorithm": _found(params["algorithm"])}
    validate.check(tree["class"] in KINDS, "path", tree["class"], f"this file holds no {' or '.join(KINDS)}")
    estimator: Any = known.imported(Parameters, tree["class"])(**params)
    estimator._weights = _decode(tree["weights"], tensors)
    estimator._maps = RowMaps(
        [RowMap(**{name: _decode(value, tensors) for name, value in each.items()}) for each in tree["maps"]]
    )
    for name, value in {**tree["fitted"], **tree["partial"]}.items():
        setattr(estimator, name, _decode(value, tensors))
    estimator.privacy_ = None if tree["privacy"] is None else PrivacyStatement.from_json(tree["privacy"])
    if tree["state"] is not None:
        estimator._partial_state = State(**unpack(tree["state"], tensors))
    return estimator


def _named(part: Any) -> Any:
    """A loss or a recipe that was given as itself: where it was declared."""
    if isinstance(part, str):
        return part
    if isinstance(part, type):
        return {"loss": known.address(part)}
    remedy = "declare the recipe in a module by @isthmus.algorithms.algorithm: a file can name only what is declared"
    declared = isinstance(part, Algorithm) and (KNOWN.get(part.name) is part or find(part.address) is part)
    validate.check(declared, "algorithm", part, remedy)
    assert isinstance(part, Algorithm)
    return {"recipe": part.name if KNOWN.get(part.name) is part else part.address}


def _found(part: Any) -> Any:
    """What a name stands for, among what this process has imported."""
    if not isinstance(part, dict):
        return part
    if "loss" in part:
        return known.imported(LinearModel, part["loss"])
    recipe = KNOWN.get(part["recipe"]) or find(part["recipe"])
    remedy = "import it first: this process knows no such algorithm, and a file imports nothing itself"
    validate.check(recipe is not None, "path", part["recipe"], remedy)
    return recipe


# ---------------------------------------------------------------- values


def _encode(value: Any, path: str, tensors: Tensors) -> Any:
    """A value as JSON; arrays become references to tensors."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"@float": repr(value)}
    if isinstance(value, np.generic):
        return _encode(value.item(), path, tensors)
    if isinstance(value, Enum):
        return _encode(value.value, path, tensors)
    if isinstance(value, (Tensor, np.ndarray)):
        return _encode_array(value, path, tensors)
    if isinstance(value, (list, tuple)):
        kind = "@list" if isinstance(value, list) else "@tuple"
        return {kind: [_encode(each, f"{path}/{k}", tensors) for k, each in enumerate(value)]}
    if isinstance(value, Mapping):
        pairs = enumerate(value.items())
        return {"@dict": [[_encode(each, f"{path}/{k}.{j}", tensors) for j, each in enumerate(p)] for k, p in pairs]}
    if isinstance(value, ConvexSet) and is_dataclass(value):
        inner = {each.name: getattr(value, each.name) for each in fields(value)}
        tree = {key: _encode(inner[key], f"{path}/{key}", tensors) for key in inner}
        return {"@set": known.address(type(value)), "fields": tree}
    validate.refuse(path, value, "only numbers, strings, arrays and sets that are dataclasses of them can be stored")


def _encode_array(value: Tensor | np.ndarray, path: str, tensors: Tensors) -> dict[str, Any]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "OU":
        return {"@array": _encode(value.tolist(), path, tensors), "dtype": value.dtype.str}
    numeric = isinstance(value, Tensor) or value.dtype.kind in "fiub"
    validate.check(numeric, path, value, "only arrays of numbers or strings can be stored")
    tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.ascontiguousarray(value).reshape(value.shape))
    tensors[path] = tensor.detach().cpu().clone().contiguous()
    return {"@tensor" if isinstance(value, Tensor) else "@numpy": path}


def _decode(tree: Any, tensors: Tensors) -> Any:
    """What `_encode` made a tree of."""
    if not isinstance(tree, dict):
        return tree
    kind, inner = next(iter(tree.items()))
    if kind == "@float":
        return float(inner)
    if kind in ("@list", "@tuple"):
        return (list if kind == "@list" else tuple)(_decode(each, tensors) for each in inner)
    if kind == "@dict":
        return {_decode(key, tensors): _decode(value, tensors) for key, value in inner}
    if kind == "@array":
        return np.array(_decode(inner, tensors), dtype=tree["dtype"])
    if kind in ("@tensor", "@numpy"):
        return tensors[inner] if kind == "@tensor" else tensors[inner].numpy()
    validate.check(kind == "@set", "path", kind, "this file holds something that no estimator has")
    made = {name: _decode(value, tensors) for name, value in tree["fields"].items()}
    return known.imported(ConvexSet, inner)(**made)  # type: ignore[type-abstract]


def _seal(text: str, tensors: Mapping[str, Tensor]) -> str:
    """One hash of the header's tree and of every tensor with its name and kind."""
    whole = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        whole.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
        whole.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return whole.hexdigest()
