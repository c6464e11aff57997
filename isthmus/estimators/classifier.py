"""`PrivateClassifier`: private logistic, softmax and hinge classifiers with the habits of scikit-learn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor

from isthmus.algorithms.purchases import ClassCounts, SumPurchase
from isthmus.base import validate
from isthmus.estimators.base import GroupLike, _PrivateLinear
from isthmus.estimators.problem import Objective, _shared_labels
from isthmus.estimators.stored import _storable
from isthmus.objectives.linear import CLASSES_READ, Loss, known_losses, loss_for
from isthmus.privacy.leaks import leak
from isthmus.problems.scaling import Scaled


def _has_probabilities(estimator: PrivateClassifier) -> bool:
    kind = estimator.loss if isinstance(estimator.loss, type) else known_losses(labels=True).get(estimator.loss)
    return kind is not None and kind.probabilities


def _other_labels(y: object, classes: np.ndarray) -> str:
    """The remedy for labels that were not declared; a type is told, and no label."""
    if np.asarray(y).dtype.kind in "iu" and classes.dtype.kind in "UO":
        counted = f"[0, ..., {len(classes) - 1}]"
        return (
            "y has numbers where the classes are words. Some tools of scikit-learn number the labels before they fit "
            f"(cross_val_predict for probabilities, stacking): declare classes={counted} for them, in the same order"
        )
    return "declare all labels, or leave those rows out"


@dataclass(eq=False, repr=False, kw_only=True)
@_storable
class PrivateClassifier(ClassifierMixin, _PrivateLinear):
    """A linear classifier trained under differential privacy.

    Each record's gradient is clipped, Gaussian noise is added to their sum, and only that is ever seen: whatever the
    records are, the fitted model is (epsilon, delta)-differentially private for adding or removing one of them.
    `privacy_` states it, and what must hold.  `epsilon=float("inf")` trains without privacy, on compressed gradients.

    epsilon, delta   the budget of one `fit`; delta defaults to min(1e-5, n^-1.1)
    loss             "logistic" (softmax for more than two classes), "softmax", "hinge", "smooth_hinge"; or a class, a
                     subclass of `LinearModel` that reads labels
    algorithm        "auto" asks `isthmus.plan`; or a recipe by its name in `isthmus.algorithms` or as a function of
                     your own, filled from public facts
    constraint       a set of `isthmus` for the coefficients of the scaled rows; l1, l2: strengths of a penalty
    clip, step, max_iter, batch_size   None: as planned; all of them are public choices
    scale            how columns are scaled beyond their bounds: "auto", "none", "columns", "moments", "shapes" (bought
                     from the budget) or "public" (from the public rows)
    features         "linear", or "smooth": every column becomes a few functions of itself and the model an additive one
                     (`effects()`); "auto" as the budget allows
    bounds           (low, high) of the columns, public numbers; NaN, or None for all, buys them from the budget;
                     "data" reads them off the data and warns
    data_norm        a public bound of the rows' l2 norm: longer rows are shortened; "unit" gives every row length 1,
                     the default for CSR
    public           rows X, or (X, y), that are public
    n                None: the number of records is public; a number is a public estimate of it
    classes          all labels; None reads them off y and warns
    class_weight     None, a dict {label: weight}, or "balanced", which buys the class counts
    max_weight       a public choice: a larger `sample_weight` counts as this
    adjacency        "add-remove" or "replace-one"
    partial_calls    how many calls of `partial_fit` share the budget
    ledger           a `privacy.Ledger` or its path: charged before anything is released, refuses what exceeds it
    checkpoint       a path: the run's public state is saved there, and `fit` goes on from it
    options          further arguments of the algorithm
    facts            further public facts for the planner: a dict with max_passes, max_dims, smoothness, density, ...
    as_published     run the paper's mechanism; the statement says what it really gives
    random_state     public randomness (sketches); noise never depends on it
    noise_seed       for tests only: the statement then says "not private"

    >>> from sklearn.datasets import make_classification
    >>> X, y = make_classification(3000, 5, random_state=0)
    >>> model = PrivateClassifier(epsilon=1.0, classes=[0, 1], bounds=(-6, 6)).fit(X, y)
    >>> model.score(X, y) > 0.8, model.privacy_.private
    (True, True)
    >>> print(model.privacy_)
    (epsilon=1, delta=1e-05)-differentially private, for adding or removing one record
    """

    loss: str | Loss = "logistic"
    classes: ArrayLike | None = None
    class_weight: dict | str | None = None
    _LABELS = True

    def partial_fit(
        self,
        X: object,
        y: object,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        *,
        group: GroupLike = None,
    ) -> Self:
        """One of `partial_calls` calls that share the budget, whether or not their records overlap.

        The first call buys what the plan buys; later ones go on from the last point.  `group` is that of `fit`.
        """
        if classes is not None:
            self._declared = classes
        return self._partial(X, y, sample_weight, group)

    def decision_function(self, X: object) -> np.ndarray:
        """Margins: one a row for two classes, else one a row and class."""
        z = self._margins(X)
        if z.shape[1] == 1:
            return z[:, 0]
        if len(self.classes_) == 2:
            return z[:, 1] - z[:, 0]
        return z

    def predict(self, X: object) -> np.ndarray:
        """The label of the largest margin."""
        z = self.decision_function(X)
        return self.classes_[(z > 0).astype(int) if z.ndim == 1 else z.argmax(1)]

    @available_if(_has_probabilities)
    def predict_proba(self, X: object) -> np.ndarray:
        """Probabilities of the classes, in the order of `classes_`."""
        return np.exp(self.predict_log_proba(X))

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: object) -> np.ndarray:
        """Their logarithms."""
        z = self.decision_function(X)
        if z.ndim == 1:
            z = np.stack([np.zeros_like(z), z], axis=1)
        return z - np.logaddexp.reduce(z, axis=1, keepdims=True)

    # ------------------------------------------------------------ the problem

    def _objective(self, X: Scaled, y: np.ndarray, weight: ArrayLike | None) -> Objective:
        weights, buys = self._checked_weights(weight, X.shape[0]), tuple[SumPurchase, ...]()
        if self.class_weight is not None:
            by_row = self._weights_of(y)
            if by_row is None:
                buys = (ClassCounts(),)
            else:
                weights = by_row * (1.0 if weights is None else weights)
        classes = tuple(self.classes_.tolist())
        return self._kind(X, y, weights=weights, classes=classes, l1=self.l1, l2=self.l2), buys, ()

    def _learn_targets(self, y: np.ndarray) -> tuple[str, ...]:
        if len(y):  # a rank may have no rows
            check_classification_targets(y)
        declared = self._declared if self.classes is None else self.classes
        if declared is not None:
            self.classes_ = np.unique(np.asarray(declared))
            validate.check(len(self.classes_) > 1, "classes", self.classes_.tolist(), "give at least two labels")
            words = f"a label that is not among classes={self.classes_.tolist()}"  # whose label it is stays unsaid
            known = bool(np.isin(y, self.classes_).all())
            validate.require(known, f"y holds {words}: {_other_labels(y, self.classes_)}")
        elif not self._calls:  # what the first call read is in its state
            self.classes_ = _shared_labels(self._group, y)
            validate.require(len(self.classes_) > 1, "y holds one class only: declare all classes with classes=")
            if self._private:
                return (leak(*CLASSES_READ),)
        return ()

    def _weights_of(self, y: np.ndarray, public: bool = False) -> np.ndarray | None:
        """The weight of each row by its class, at most 1; None where balancing them is to be bought."""
        chosen, labels = self.class_weight, self.classes_.tolist()
        if isinstance(chosen, str):
            validate.one_of(("balanced",), class_weight=chosen)
            if self._private and not public:
                return None
            own = torch.tensor([int((y == label).sum()) for label in labels])
            counts = own if public else sum(self._group.all(own))
            counts = np.maximum(np.asarray(counts), 1)
            chosen = dict(zip(labels, (counts.min() / counts).tolist(), strict=True))
        if not isinstance(chosen, dict):
            validate.refuse("class_weight", chosen, 'give a dict {label: weight} or "balanced"')
        weights = np.array([float(chosen.get(label, 1.0)) for label in labels])
        validate.check(weights.min() >= 0, "class_weight", chosen, "give weights of at least 0")
        validate.positive(class_weight=float(weights.max()))
        return (weights / weights.max())[np.searchsorted(self.classes_, y)]

    def _public_weights(self, y: np.ndarray) -> Tensor | None:
        """Those of `class_weight`; "balanced" by the public labels themselves."""
        if self.class_weight is None:
            return None
        return torch.from_numpy(self._weights_of(y, public=True))

    def _loss_facts(self) -> dict[str, object]:
        return {"loss": self._kind, "classes": len(self.classes_)}

    @property
    def _kind(self) -> Loss:
        return loss_for(self.loss, len(self.classes_))

    def _targets(self, y: np.ndarray) -> np.ndarray:
        unknown = sorted(set(y.tolist()) - set(self.classes_.tolist()), key=str)
        remedy = f"give public labels that are among classes={self.classes_.tolist()}"
        validate.check(not unknown, "public", unknown, remedy)
        return y

    @property
    def _outputs(self) -> int:
        return self._kind.outputs(len(self.classes_))

    def _set_coefficients(self, coefficients: np.ndarray, intercepts: np.ndarray) -> None:
        if len(self.classes_) == 2 and len(coefficients) == 2:
            coefficients, intercepts = coefficients[1:] - coefficients[:1], intercepts[1:] - intercepts[:1]
        self.coef_, self.intercept_ = coefficients, intercepts

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags
