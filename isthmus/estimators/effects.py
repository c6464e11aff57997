"""What each column does to the prediction of an additive model: public curves, from what was released."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from isthmus.problems.features import SmoothMap
from isthmus.problems.scaling import RowMaps

if TYPE_CHECKING:
    from isthmus.estimators.base import PrivateLinear

Curve = tuple[np.ndarray, np.ndarray]
"""Numbers of a column, and what they add: one number each, or one for every class."""


def effects(model: PrivateLinear) -> dict[str, Curve]:
    """The curve of each column of a model with smooth features, less its mean over the knots; of a linear model the
    line through 0, at -1 and 1.

    Curves hold for rows that are not shortened.  They are made from the model alone and cost nothing.
    """
    maps = list(model._maps.maps)
    names = getattr(model, "feature_names_in_", [f"x{j}" for j in range(model.n_features_in_)])
    last = maps[-1] if maps else None
    if not isinstance(last, SmoothMap):
        ends = np.array([-1.0, 1.0])
        slopes = np.atleast_2d(model.coef_)
        return {str(name): (ends, np.outer(ends, slopes[:, j]).squeeze()) for j, name in enumerate(names)}
    weight, offset = RowMaps(maps[:-1]).affine(model.n_features_in_)
    whole = float(np.hypot(last.limit, last.bias))
    curves = {}
    for j, name in enumerate(names):
        mine = (last.columns == j).nonzero()[:, 0]
        x = (last.knots * last.reach - offset[j]) / weight[j]
        curve = last.values[mine].T @ model._weights[mine] / whole
        curves[str(name)] = x.numpy(), model._in_units(curve - curve.mean(0))
    return curves


def in_order(margins: torch.Tensor) -> np.ndarray:
    """Margins as an array: one a row, or one a row and class."""
    values: np.ndarray = margins.numpy()
    return values[:, 0] if values.shape[1] == 1 else values
