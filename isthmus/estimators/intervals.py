"""Confidence intervals of coefficients, from what a private fit has released: no new look at the records.

A fit by `dp_gd` that bought its statistics released noisy X'X, and its steps go through the inverse P of the Hessian H
that follows from it.  Near the minimum w* of the loss over the records, a round with step e_t and gradient noise n_t is

    w_(t+1) - w* = (1 - e_t) (w_t - w*) - e_t P n_t

so that the point is w* less a weighted sum of P n_t with public weights c_t, averages of iterates included:

    from the noise       s^2 H^-2 sum_t c_t^2     s = multiplier * clip / n, all public
    from the sampling    H^-1 J H^-1 / n          J the covariance of one record's gradient

Logistic loss: H = E p (1 - p) x x', which for rows that are about normal follows from noisy X'X and the point, and
J = H, as for a model that holds.  Squared loss: H = X'X / n and J = v H, v the variance of the residuals, which was not
released: it is asked for.  Both covariances add up, and are carried to the coefficients of the columns as given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import expit
from scipy.stats import norm
from sklearn.utils.validation import check_is_fitted

from isthmus.algorithms.purchases import Statistics
from isthmus.base import validate
from isthmus.objectives import LeastSquares, Logistic
from isthmus.problems.features import SmoothMap
from isthmus.problems.scaling import RowMap

if TYPE_CHECKING:
    from isthmus.estimators.linear import _PrivateLinear

_DRAWN = (
    "records are independent draws, and few rows were shortened or gradients clipped: what that moves is not counted"
)
_LARGE = "the noise in X'X and in the column scales is small beside them; intervals are those of large samples"
_LOGISTIC = "the logistic model holds, and rows are about normally distributed along its coefficients"
_SQUARED = "the model is linear, and its residuals have the standard deviation that was given, whatever the inputs are"
_CLIP = "main/gradient/clip"
"""Where the state keeps the clip."""
_CLEAR = 3.0
"""By how many lengths of its noise X'X must stand out in every direction."""
_SHORTENED = 0.06
"""Of the mean squared length of rows, what may have been cut off."""
_FILLED = 0.7
"""Of the squared length that rows may have after their ranges were scaled, what they have on average."""
_UNCLIPPED = 3.0
"""Residuals of so many standard deviations must fit under the clip."""


@dataclass(frozen=True, eq=False)
class Intervals:
    """Intervals of the coefficients, the last of them the intercept, and on what they rest.

    noise, sampling   standard deviations of an estimate: from the noise of the privacy, and from the sampling
    """

    names: tuple[str, ...]
    values: np.ndarray
    low: np.ndarray
    high: np.ndarray
    noise: np.ndarray
    sampling: np.ndarray
    level: float
    assumptions: tuple[str, ...]

    def words(self) -> str:
        """A table, and what it rests on."""
        wide = max(len(name) for name in self.names)
        head = f"{'':{wide}}  {'estimate':>11}  {f'{self.level:.0%} interval':>25}  noise s.d.  sampling s.d."
        lines = [
            f"{name:{wide}}  {self.values[i]:>11.4g}  {self.low[i]:>11.4g} to {self.high[i]:>10.4g}  "
            f"{self.noise[i]:>10.3g}  {self.sampling[i]:>13.3g}"
            for i, name in enumerate(self.names)
        ]
        rests_on = [f"- {assumption}" for assumption in self.assumptions]
        return "\n".join([head, *lines, "It rests on these assumptions:", *rests_on])

    __str__ = words


def _coefficient_intervals(model: _PrivateLinear, level: float, residual_sd: float | None) -> Intervals:
    """Intervals that hold each true coefficient with about probability `level`, noise and sampling both counted.

    residual_sd   of a regression: the standard deviation of y about its prediction, a public number, such as the root
                  mean squared error of `private_score`

    Nothing new is read from the records: refused where what was released does not tell enough.

    >>> import numpy as np
    >>> from isthmus import PrivateRegressor
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(20_000, 3)).clip(-4, 4)
    >>> y = X @ [1.0, 0.5, 0.0] + rng.normal(size=20_000)
    >>> options = {"bounds": (-4, 4), "target_bounds": (-9, 9), "algorithm": "dp_gd", "features": "linear"}
    >>> model = PrivateRegressor(epsilon=3.0, **options).fit(X, y)
    >>> intervals = model.coefficient_intervals(0.999, residual_sd=1.0)
    >>> bool(intervals.low[0] < 1.0 < intervals.high[0]), bool(intervals.high[0] - intervals.low[0] < 0.2)
    (True, True)
    """
    check_is_fitted(model)
    validate.open_unit(level=level)
    weights, gram, clip, n = _released(model)
    shape, spread, assumptions = _curvature(model, weights, gram / n, clip, residual_sd)
    inverse = np.linalg.inv(shape)
    assert model.choice_.noise_multiplier is not None  # private fits have one
    noise = (model.choice_.noise_multiplier * clip / n) ** 2 * _averaged(model)
    (shift, width), p = model._target_map, model.n_features_in_
    weight, offset = (tensor.numpy() for tensor in model._maps.affine(p))
    carry = width * np.vstack([np.eye(p, len(weights)) * weight[:, None], offset])  # to coefficients and intercept
    values = carry @ weights
    values[-1] += shift
    covariances = noise * inverse @ inverse, spread * inverse / n
    quiet, drawn = (np.sqrt(np.diag(carry @ covariance @ carry.T)) for covariance in covariances)
    away = float(norm.ppf((1 + level) / 2)) * np.hypot(quiet, drawn)
    names, assumptions = (*model._names(), "(intercept)"), (*assumptions, _DRAWN, _LARGE)
    return Intervals(names, values, values - away, values + away, quiet, drawn, level, assumptions)


def _released(model: _PrivateLinear) -> tuple[np.ndarray, np.ndarray, float, int]:
    """The point, noisy X'X, the clip in the end and the public number of records; refused where there are none."""
    remedy = "compute ordinary confidence intervals: this fit is not private"
    validate.check(model.privacy_ is not None, "epsilon", math.inf, remedy)
    remedy = "compute intervals where the model was fitted: one that was read from a file has none"
    validate.check("result_" in vars(model), type(model).__name__, "(loaded)", remedy)
    parts, maps = model.result_.state.parts, model._maps.maps
    bought, last = parts.get("prepare", {}), maps[-1]
    plain = model.constraint is None and not (model.l1 or model.l2) and model._outputs == 1
    supported = "statistics" in bought and _CLIP in parts and plain and not model._bent and model.batch_size is None
    wanted = 'fit with algorithm="dp_gd", features="linear", without set or penalty, and with more records'
    remedy = f"{wanted}: intervals need noisy X'X of the columns, which the planner then buys"
    validate.check(bool(supported), "algorithm", model.choice_.name, remedy)
    weights = model._weights.numpy()[:, 0]
    d, n = len(weights), int(model.plan_.facts.n)
    gram = bought["statistics"].double().numpy()[: d * d].reshape(d, d)
    gram = (gram + gram.T) / 2
    noise = math.sqrt(2) / (model.plan_.facts.mu * math.sqrt(Statistics().share))  # in each entry of X'X
    remedy = "give more records or a larger epsilon: the noise in X'X is as large as X'X itself in some direction"
    clear = float(np.linalg.eigvalsh(gram)[0]) > _CLEAR * noise * math.sqrt(d)
    validate.check(clear, "epsilon", model.epsilon, remedy)
    # rows that were shortened answer to other coefficients
    assert isinstance(last, (RowMap, SmoothMap))
    if last.limit is not None and last.bias:
        # columns that were scaled to second moment 1, and the bias: what is missing of their sum was shortened away
        whole = (d - 1 + last.bias**2) / (last.limit**2 + last.bias**2)
        short = 1 - float(np.trace(gram)) / n / whole - 3 * noise * math.sqrt(d) / (n * whole)
        why = f"rows were shortened, by {short:.0%} of their squared length on average, and coefficients answer to that"
        remedy = f"transform columns with long tails: {why}, so that intervals would not hold"
        validate.check(short <= _SHORTENED, "bounds", model.bounds, remedy)
    if isinstance(last, RowMap):  # ranges so narrow that rows fill the ball of their first map
        square = float(bought["scale"][len(bought["scale"]) // 2 :].sum()) / n
        why = f"rows fill {square:.0%} of the squared length that these allow, so that many were shortened"
        remedy = f"declare bounds about three times as wide as the usual entry: {why}, and intervals would not hold"
        validate.check(square <= _FILLED, "bounds", model.bounds, remedy)
    return weights, gram, float(parts[_CLIP]), n


def _curvature(
    model: _PrivateLinear, weights: np.ndarray, second: np.ndarray, clip: float, residual_sd: float | None
) -> tuple[np.ndarray, float, tuple[str, ...]]:
    """H, v with J = v H, and what they assume."""
    if issubclass(model._kind, Logistic):
        bound = float(model._kind.slope_bound)
        remedy = f"fit with clip={bound:g}: this one shortens gradients of confident mistakes, and moves coefficients"
        validate.check(clip >= bound, "clip", clip, remedy)
        validate.check(residual_sd is None, "residual_sd", residual_sd, "leave it out: labels have no residuals")
        return _logistic_hessian(weights, second, model.fit_intercept), 1.0, (_LOGISTIC,)
    squared = issubclass(model._kind, LeastSquares)
    remedy = "use the logistic or the squared loss, for which intervals are known"
    validate.check(squared, "loss", model.loss, remedy)
    remedy = "give the standard deviation of the residuals: a public number, such as that of private_score"
    validate.check(residual_sd is not None, "residual_sd", None, remedy)
    assert residual_sd is not None
    validate.positive(residual_sd=residual_sd)
    relative = residual_sd / model._target_map[1]
    need = _UNCLIPPED * relative * math.sqrt(float(np.trace(second)))  # of rows of usual length
    remedy = f"fit with clip={need:.3g} or more: this one shortens gradients of large residuals, and moves coefficients"
    validate.check(clip >= need, "clip", clip, remedy)
    return second, relative**2, (_SQUARED,)


def _logistic_hessian(weights: np.ndarray, second: np.ndarray, constant: bool) -> np.ndarray:
    """E h(m) x x' with h = p (1 - p) of the margin m = w'x, for rows x = mean + z, z normal, by Stein's identity.

    E h z = E h' S w and E h z z' = E h S + E h'' S w w' S, S the covariance of z and all means over m, which is normal.
    """
    # a bias column is constant: its products with the others are their means
    mean = constant * second[-1] / math.sqrt(max(float(second[-1, -1]), 1e-300))
    covariance = second - np.outer(mean, mean)
    along = covariance @ weights
    at, share = np.polynomial.hermite_e.hermegauss(40)
    p = expit(float(mean @ weights) + math.sqrt(max(float(weights @ along), 0.0)) * at)
    h = p * (1 - p)
    zero, one, two = (float(share @ slope / share.sum()) for slope in (h, h * (1 - 2 * p), h * (1 - 6 * p + 6 * p**2)))
    bent = zero * second + two * np.outer(along, along) + one * (np.outer(mean, along) + np.outer(along, mean))
    if np.linalg.eigvalsh(bent)[0] > 0.2 * zero * np.linalg.eigvalsh(second)[0]:
        return bent
    return zero * second


def _averaged(model: _PrivateLinear) -> float:
    """sum_t c_t^2: what is left of the noise of a round in the point, by the steps that were taken."""
    steps = np.array([record["eta"] for record in model.result_.history if record["t"] > 0], dtype=float)
    output = (model.options or {}).get("output", model.choice_.arguments.get("output", "last"))
    mean = carried = np.zeros(len(steps))
    weight = 0.0
    for t, step in enumerate(steps):
        carried = carried * (1 - step)
        carried[t] = step
        if t >= len(steps) // 2:  # where the average of a run that bought something begins
            weight += step
            mean += (carried - mean) * (step / weight)
    if output == "average":
        carried = mean
    return float(np.square(carried).sum())
