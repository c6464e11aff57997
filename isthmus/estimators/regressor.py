"""`PrivateRegressor`: private least squares, Huber and Poisson regression with the habits of scikit-learn."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from isthmus.algorithms.purchases import TargetRange, scaled_targets, target_map
from isthmus.base import validate
from isthmus.core.minimize import Result
from isthmus.estimators.base import GroupLike, _PrivateLinear
from isthmus.estimators.problem import Objective, _check_range, _Problem, _ranges_of
from isthmus.estimators.stored import _storable
from isthmus.objectives import Huber
from isthmus.objectives.linear import Loss, loss_of
from isthmus.objectives.targets import CountTargets
from isthmus.privacy.leaks import leak
from isthmus.problems.scaling import Scaled


@dataclass(eq=False, repr=False, kw_only=True)
@_storable
class PrivateRegressor(RegressorMixin, _PrivateLinear):
    """A linear regression trained under differential privacy.

    Targets are clipped to `target_bounds` and learned on the scale [-1, 1] (Poisson: [0, 1], by quasi-likelihood);
    each record's gradient is clipped, Gaussian noise is added to their sum.  Parameters are those of
    `PrivateClassifier`, and

    loss           "squared", "huber" or "poisson"; or a class, a subclass of `LinearModel` that reads numbers
    target_bounds  (low, high) of y, public numbers; None takes those of public targets, or buys them from the budget;
                   "data" reads them off y and warns
    huber_delta    where the Huber loss turns linear, as a share of half the target's range

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, (4000, 4))
    >>> y = 10 + X @ [3.0, -2.0, 1.0, 0.0] + 0.1 * rng.standard_normal(4000)
    >>> model = PrivateRegressor(epsilon=1.0, bounds=(-1, 1), target_bounds=(0, 20)).fit(X, y)
    >>> model.score(X, y) > 0.8
    True
    """

    loss: str | Loss = "squared"
    target_bounds: tuple[float, float] | str | None = None
    huber_delta: float = 0.2
    target_centre_: tuple[float, float] | None = field(init=False, default=None)
    _LABELS = False
    _outputs = 1

    def partial_fit(
        self, X: object, y: object, sample_weight: ArrayLike | None = None, *, group: GroupLike = None
    ) -> PrivateRegressor:
        """One of `partial_calls` calls that share the budget, whether or not their records overlap; see `fit`."""
        return self._partial(X, y, sample_weight, group)

    def predict(self, X: object) -> np.ndarray:
        """The prediction, in the units of y."""
        predictions = self._kind.reads().predict(torch.from_numpy(self._margins(X)[:, 0]))
        shift, width = self._target_map
        return shift + width * np.asarray(predictions)

    # ------------------------------------------------------------ the problem

    def _check_parameters(self) -> None:
        super()._check_parameters()
        validate.positive(huber_delta=self.huber_delta)
        bounds = self.target_bounds
        if isinstance(bounds, str):
            validate.one_of(("data",), target_bounds=bounds)
        elif bounds is not None:
            _check_range("target_bounds", bounds, "give (low, high)")
            never = self._counts and bounds[0] < 0
            validate.check(not never, "target_bounds", bounds, "give a low of at least 0: counts are never negative")

    def _objective(self, X: Scaled, y: np.ndarray, weight: ArrayLike | None) -> Objective:
        remarks: tuple[str, ...] = ()
        own: dict = {"delta": self.huber_delta} if issubclass(self._kind, Huber) else {}
        y, weights = np.asarray(y, dtype=np.float64), self._checked_weights(weight, X.shape[0])
        model = self._kind(X, y, weights=weights, l1=self.l1, l2=self.l2, **own)
        bounds = self.target_bounds
        if bounds is None and isinstance(self.public, tuple):
            targets = np.asarray(self.public[1], dtype=float)
            if targets.min() < targets.max():
                bounds = float(targets.min()), float(targets.max())
                remarks = ("the public targets are public: y was clipped to their range",)
        if isinstance(bounds, str) or not self._private and bounds is None:
            low, high = _ranges_of(torch.tensor(y)[:, None], self._group)
            bounds = float(low), float(high)
            if self._private:
                remarks = (leak("the range of y (target_bounds) was", "give target_bounds=(low, high) that is public"),)
        if bounds is None:
            return model, (TargetRange(),), remarks
        self.target_bounds_ = float(bounds[0]), float(bounds[1])
        return scaled_targets(model, *self.target_bounds_), (), remarks

    @property
    def _kind(self) -> Loss:
        return loss_of(self.loss, labels=False)

    @property
    def _counts(self) -> bool:
        """Whether the margin is the logarithm of the prediction."""
        return issubclass(self._kind.reads, CountTargets)

    def _targets(self, y: np.ndarray) -> np.ndarray:
        """Public targets in the units that the problem is posed in: as given where their range is bought."""
        targets = np.asarray(y, dtype=float)
        validate.check(bool(np.isfinite(targets).all()), "public", "targets that are not finite", "give finite numbers")
        buys_range = self._private and self.target_bounds is None
        if buys_range and targets.min() == targets.max():
            return targets
        shift, width = target_map(*self.target_bounds_, self._counts)  # without the centre of an earlier fit
        return np.asarray((np.clip(targets, *self.target_bounds_) - shift) / width)

    def _store(self, problem: _Problem, result: Result) -> None:
        if result.target is not None:
            self.target_bounds_ = result.target
        self.target_centre_ = result.centre
        super()._store(problem, result)

    def _set_coefficients(self, coefficients: np.ndarray, intercepts: np.ndarray) -> None:
        shift, width = self._target_map
        if self._counts:
            self.coef_, self.intercept_ = coefficients[0], float(intercepts[0] + math.log(width))
        else:
            self.coef_, self.intercept_ = width * coefficients[0], float(shift + width * intercepts[0])

    @property
    def _target_map(self) -> tuple[float, float]:
        shift, width = target_map(*self.target_bounds_, self._counts)
        if self.target_centre_ is None:
            return shift, width
        return shift + width * self.target_centre_[0], width * self.target_centre_[1]

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = self._counts
        tags.regressor_tags.poor_score = True
        return tags
