"""What y may be: two labels, K labels, real numbers or counts; how it is read, predicted and scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import validate

_Labels: TypeAlias = NDArray[np.generic]


class Targets(ABC):
    """How a loss reads y and what it predicts from a margin."""

    labels: ClassVar[bool] = False
    """Whether y holds labels, of the `classes` there are, rather than numbers."""
    classes: tuple[object, ...] | None = None

    @abstractmethod
    def read(self, y: object) -> tuple[Targets, Tensor]:
        """The targets with all classes known, and y as numbers."""

    @abstractmethod
    def predict(self, z: Tensor) -> _Labels | Tensor:
        """A prediction for each margin: labels as they were given (NumPy), or numbers (tensor)."""

    def score(self, z: Tensor, y: Tensor) -> float:
        """Accuracy (labels), or R2 = 1 - sum (y - prediction)^2 / sum (y - mean y)^2 (numbers)."""
        spread, error = (y - y.mean()).square().sum(), (y - torch.as_tensor(self.predict(z))).square().sum()
        return float(1 - error / spread) if spread > 0 else float(error == 0)


class _LabelTargets(Targets):
    """Labels, by their places among the classes."""

    labels = True

    def __init__(self, classes: object = None) -> None:
        if classes is not None:
            if isinstance(classes, (np.ndarray, Tensor)):
                classes = classes.tolist()
            self.classes = tuple(classes)  # type: ignore[arg-type]
            distinct = 0 < len(set(self.classes)) == len(self.classes)
            validate.check(distinct, "classes", classes, "give distinct labels")

    def read(self, y: object) -> tuple[Targets, Tensor]:
        """The classes, and y as numbers."""
        if isinstance(y, Tensor):
            y = y.detach().cpu()
        validate.check(not sp.issparse(y), "y", type(y).__name__, "give a dense 1-d array")
        labels, targets = np.asarray(y), self
        validate.check(labels.ndim == 1, "y.shape", labels.shape, "give one label an example (1-d; y.ravel()?)")
        if labels.dtype.kind == "f":
            validate.finite(y=torch.as_tensor(labels))
        if self.classes is None:
            targets = type(self)(self._found(labels))
        places, classes = np.full(len(labels), -1, dtype=np.int64), targets.classes or ()
        for place, label in enumerate(classes):
            places[labels == label] = place
        others = f"is not among classes={list(classes)}: declare all labels, or leave those rows out"
        validate.require(not (places < 0).any(), f"y holds a label that {others}")  # whose it is stays unsaid
        return targets, self._coded(torch.from_numpy(places))

    def predict(self, z: Tensor) -> _Labels:
        """The class of each margin."""
        labels: _Labels = np.asarray(self.classes)[self._place(z).cpu().numpy()]
        return labels

    def score(self, z: Tensor, y: Tensor) -> float:
        """Accuracy."""
        return float((self._coded(self._place(z)) == y).to(torch.float64).mean())

    @abstractmethod
    def _found(self, labels: _Labels) -> tuple[object, ...]:
        """The classes that labels tell of, where none were declared."""

    @abstractmethod
    def _place(self, z: Tensor) -> Tensor:
        """Which class a margin stands for."""

    @abstractmethod
    def _coded(self, places: Tensor) -> Tensor:
        """Places as the loss takes them."""


class SignedLabels(_LabelTargets):
    """Two labels, held as -1 and 1; without `classes` they must be {-1, 1}, {0, 1} or booleans.

    >>> SignedLabels(("no", "yes")).read(["yes", "no"])[1]
    tensor([ 1., -1.], dtype=torch.float64)
    """

    def __init__(self, classes: object = None) -> None:
        super().__init__(classes)
        two = self.classes is None or len(self.classes) == 2
        validate.check(two, "classes", self.classes, "give two labels: (negative, positive)")

    def _found(self, labels: _Labels) -> tuple[object, ...]:
        distinct = tuple(sorted(set(labels.tolist()), key=str))
        for pair in ((False, True), (0, 1), (-1, 1)):
            if distinct == pair and (labels.dtype.kind == "b") == isinstance(pair[0], bool):
                return pair
        many = f"y holds {len(distinct)} labels"  # which labels they are stays unsaid
        refused = f"{many}, and not both of {{-1, 1}} or {{0, 1}}: declare classes=(negative, positive)"
        raise validate.InvalidInput(refused)

    def _place(self, z: Tensor) -> Tensor:
        return (z > 0).to(torch.int64)

    def _coded(self, places: Tensor) -> Tensor:
        return 2.0 * places.double() - 1.0


class ClassLabels(_LabelTargets):
    """K labels, held as 0..K-1; `classes` is K, the labels in order, or None (the sorted labels of y).

    >>> ClassLabels(("a", "b", "c")).read(["c", "a"])[1]
    tensor([2, 0])
    """

    def __init__(self, classes: object = None) -> None:
        if isinstance(classes, (int, np.integer)):
            validate.positive_int(classes=int(classes))
            classes = range(int(classes))
        super().__init__(classes)

    def _found(self, labels: _Labels) -> tuple[object, ...]:
        found = tuple(np.unique(labels).tolist())
        validate.require(len(found) > 1, "y holds one class only: declare all classes with classes=")
        return found

    def _place(self, z: Tensor) -> Tensor:
        return z.argmax(1)

    def _coded(self, places: Tensor) -> Tensor:
        return places


class RealTargets(Targets):
    """Real numbers; the margin is the prediction.

    >>> RealTargets().read([1, 2])[1]
    tensor([1., 2.], dtype=torch.float64)
    """

    def read(self, y: object) -> tuple[Targets, Tensor]:
        """y itself."""
        validate.check(not sp.issparse(y), "y", type(y).__name__, "give a dense 1-d array")
        if not isinstance(y, Tensor):
            y = np.asarray(y)
        validate.check(y.ndim == 1, "y.shape", tuple(y.shape), "give one number an example (1-d; y.ravel()?)")
        return self, validate.as_tensor("y", y, ndim=1)

    def predict(self, z: Tensor) -> Tensor:
        """The margin."""
        return z


class CountTargets(RealTargets):
    """Counts >= 0 with a log link: exp(margin) is the prediction.

    >>> CountTargets().predict(torch.zeros(1))
    tensor([1.])
    """

    def read(self, y: object) -> tuple[Targets, Tensor]:
        """y itself, once no count is negative."""
        targets, counts = super().read(y)
        good = not bool((counts < 0).any())
        validate.require(good, "y holds a negative number: give counts, which are 0 or more")
        return targets, counts

    def predict(self, z: Tensor) -> Tensor:
        """The rate; margins beyond 50 count as 50, where the loss turns linear."""
        return z.clamp(max=50.0).exp()
