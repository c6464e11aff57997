"""A fitted model for those who predict without this library: plain scikit-learn, or an ONNX file with its statement."""

from __future__ import annotations

import importlib
import math
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted

from isthmus.base import validate
from isthmus.base.atomic import atomic_write
from isthmus.objectives.targets import CountTargets
from isthmus.problems.features import SmoothMap
from isthmus.problems.scaling import RowMap

if TYPE_CHECKING:
    from isthmus.estimators.linear import _PrivateLinear

_Plain: TypeAlias = LinearRegression | LogisticRegression | LinearSVC
"""What scikit-learn predicts with."""
_NOT_LINEAR = (
    "This model is not linear in rows within its bounds, for it has smooth features, shortens rows or predicts counts: "
    'fit it with features="linear", scale="none" and bounds, or write it with isthmus.estimators.to_onnx'
)


def _to_sklearn(estimator: _PrivateLinear) -> _Plain:
    """The coefficients in an estimator of scikit-learn; see `PrivateClassifier.to_sklearn`."""
    check_is_fitted(estimator)
    validate.require(_is_linear(estimator), _NOT_LINEAR)
    plain = LinearRegression()
    if estimator._LABELS:
        plain = LogisticRegression() if estimator._kind.probabilities else LinearSVC()
    learned = ("coef_", "intercept_", "classes_", "n_features_in_", "feature_names_in_")
    vars(plain).update({name: vars(estimator)[name] for name in learned if name in vars(estimator)})
    plain.privacy_statement_ = _statement(estimator)
    return plain


def _is_linear(estimator: _PrivateLinear) -> bool:
    """Whether no row within the bounds is shortened, and what is predicted is the margin or its sign."""
    maps = list(estimator._maps.maps)
    if issubclass(estimator._kind.reads, CountTargets) or len(maps) > 1:
        return False
    for row_map in maps:
        if not isinstance(row_map, RowMap) or row_map.limit is None:
            return False
        if row_map.low is not None and row_map.high is not None:
            shift, weight = row_map._columns(estimator.n_features_in_)
            farthest = ((torch.stack([row_map.low, row_map.high]).double() - shift) * weight).abs().amax(0)
            return float(torch.linalg.vector_norm(farthest)) <= row_map.limit * (1 + 1e-9)
    return True


def _statement(estimator: _PrivateLinear) -> str:
    return "not private" if estimator.privacy_ is None else estimator.privacy_.words()


def to_onnx(estimator: _PrivateLinear, path: str | Path) -> None:
    """Write a fitted model as an ONNX file (extra `onnx`), with its statement as the metadata `privacy_statement`.

    Its input is `X`, rows of float64; its outputs are `prediction` and, where there are any, `probabilities`.  Rows are
    clipped and shortened there as the model does it: predictions are the same for all rows, to rounding.
    """
    check_is_fitted(estimator)
    try:
        onnx = importlib.import_module("onnx")
    except ImportError:
        validate.refuse("path", str(path), f"install onnx, which is needed to write it: {validate.extra('onnx')}")
    graph = _Graph(onnx)
    rows, constant = "X", 0.0
    for row_map in estimator._maps.maps:
        rows, constant = graph.mapped(row_map, rows, constant)
    weights, kind = estimator._weights.numpy(), estimator._kind
    if estimator._LABELS and weights.shape[1] == 1:  # the margin of the first of two classes is 0
        weights = np.hstack([np.zeros_like(weights), weights])
    p = len(weights) - bool(constant)
    margins = graph.add("MatMul", rows, weights[:p])
    if constant:
        margins = graph.add("Add", margins, constant * weights[p])
    kinds = {"prediction": onnx.TensorProto.DOUBLE}
    shapes: dict[str, list[int | None]] = {"prediction": [None]}
    if estimator._LABELS:
        classes = vars(estimator)["classes_"]
        if classes.dtype.kind == "U":
            classes = classes.astype(object)
        places = graph.add("ArgMax", margins, axis=1, keepdims=0)
        graph.add("Gather", classes, places, name="prediction")
        kinds["prediction"] = onnx.helper.np_dtype_to_tensor_dtype(classes.dtype)
        if kind.probabilities:
            graph.add("Softmax", margins, axis=1, name="probabilities")
            kinds["probabilities"], shapes["probabilities"] = onnx.TensorProto.DOUBLE, [None, len(classes)]
    else:
        shift, width = estimator._target_map
        if issubclass(kind.reads, CountTargets):
            margins = graph.add("Exp", graph.add("Min", margins, np.float64(50.0)))
        scaled = graph.add("Add", graph.add("Mul", margins, np.float64(width)), np.float64(shift))
        graph.add("Squeeze", scaled, np.array([1]), name="prediction")
    outputs = [onnx.helper.make_tensor_value_info(name, kinds[name], shapes[name]) for name in kinds]
    rows_in = onnx.helper.make_tensor_value_info("X", onnx.TensorProto.DOUBLE, [None, estimator.n_features_in_])
    whole = onnx.helper.make_graph(graph.nodes, "isthmus", [rows_in], outputs, graph.constants)
    model = onnx.helper.make_model(whole, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=9)
    onnx.helper.set_model_props(model, {"privacy_statement": _statement(estimator)})
    onnx.checker.check_model(model)
    with atomic_write(path) as partial:
        partial.write_bytes(model.SerializeToString())


class _Graph:
    """Operations of ONNX, one after the other; an array among their inputs becomes a constant."""

    def __init__(self, onnx: ModuleType) -> None:
        self.onnx, self.nodes, self.constants = onnx, list[object](), list[object]()

    def add(self, operation: str, *inputs: str | np.ndarray | np.float64, name: str = "", **how: int) -> str:
        """An operation, by the name of what comes out."""
        name, names = name or f"v{len(self.nodes)}", []
        for given in inputs:
            if not isinstance(given, str):
                self.constants.append(self.onnx.numpy_helper.from_array(np.asarray(given), f"c{len(self.constants)}"))
                given = f"c{len(self.constants) - 1}"
            names.append(given)
        self.nodes.append(self.onnx.helper.make_node(operation, names, [name], **how))
        return name

    def mapped(self, row_map: object, rows: str, before: float) -> tuple[str, float]:
        """The features of a map, and the constant beside them, for rows that had the constant `before`."""
        if isinstance(row_map, SmoothMap):
            constant, limit, least = row_map.bias, row_map.limit, row_map.limit
            knots, values = row_map.knots.numpy(), row_map.values.numpy()
            # how far a row is through each piece, from 0 to 1, times how much the function rises there
            apart = self.add("Unsqueeze", self.add("Div", rows, np.float64(row_map.reach)), np.array([2]))
            through = self.add("Div", self.add("Sub", apart, knots[:-1]), np.diff(knots))
            through = self.add("Clip", through, np.float64(0.0), np.float64(1.0))
            risen = self.add("Mul", self.add("Gather", through, row_map.columns.numpy(), axis=1), np.diff(values))
            features = self.add("ReduceSum", risen, np.array([2]), keepdims=0)
            features = self.add("Add", features, values[:, 0])
        else:
            assert isinstance(row_map, RowMap)
            constant, limit, least = row_map.constant(before), row_map.limit or 1.0, row_map.limit or 1e-150
            if row_map.low is not None and row_map.high is not None:
                low, high = row_map.low.double().numpy(), row_map.high.double().numpy()
                rows = self.add("Min", self.add("Max", rows, low), high)
            shift, weight = row_map._columns(None if row_map.weight is None else len(row_map.weight))
            features = self.add("Mul", self.add("Sub", rows, shift.numpy()), weight.numpy())
        squares = self.add("ReduceSum", self.add("Mul", features, features), np.array([1]), keepdims=1)
        length = self.add("Max", self.add("Sqrt", squares), np.float64(least))
        whole = math.hypot(limit, constant)
        return self.add("Mul", features, self.add("Div", np.float64(limit / whole), length)), constant / whole
