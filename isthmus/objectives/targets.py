"""What y may be: two labels, K labels, real numbers or counts; how it is read, predicted and scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self, TypeAlias

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
    classes: tuple[Any, ...] | None = None

    @abstractmethod
    def read(self, y: object) -> tuple[Targets, Tensor]:
        """The targets with all classes known, and y as numbers."""

    @abstractmethod
    def predict(self, z: Tensor) -> Any:
        """A prediction for each margin: labels as they were given (NumPy), or numbers (tensor)."""

    def score(self, z: Tensor, y: Tensor) -> float:
        """Accuracy (labels), or R2 = 1 - sum (y - prediction)^2 / sum (y - mean y)^2 (numbers)."""
        spread, error = (y - y.mean()).square().sum(), (y - self.predict(z)).square().sum()
        return float(1 - error / spread) if spread > 0 else float(error == 0)


@dataclass(frozen=True)
class _LabelTargets(Targets):
    """Labels, by their places among the classes."""

    labels = True
    classes: Any = None

    def __post_init__(self) -> None:
        if self.classes is None:
            return
        given = self.classes.tolist() if isinstance(self.classes, (np.ndarray, Tensor)) else tuple(self.classes)
        distinct = len(given) > 0 and len(set(given)) == len(given)
        validate.check(distinct, "classes", given, "give distinct labels")
        object.__setattr__(self, "classes", tuple(given))

    def read(self, y: object) -> tuple[Self, Tensor]:
        """The classes, and y as numbers."""
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(_flat(y))
        validate.check(labels.ndim == 1, "y.shape", labels.shape, "give one label an example (1-d; y.ravel()?)")
        if labels.dtype.kind == "f":
            validate.finite(y=torch.as_tensor(labels))
        targets = replace(self, classes=self._found(labels)) if self.classes is None else self
        places = np.full(len(labels), -1, dtype=np.int64)
        for place, label in enumerate(targets.classes):
            places[labels == label] = place
        others = f"is not among classes={list(targets.classes)}: declare all labels, or leave those rows out"
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

    def __post_init__(self) -> None:
        super().__post_init__()
        two = self.classes is None or len(self.classes) == 2
        validate.check(two, "classes", self.classes, "give two labels: (negative, positive)")

    def _found(self, labels: _Labels) -> tuple[object, ...]:
        distinct = np.unique(labels).tolist() if labels.dtype.kind in "fiub" else sorted(set(labels.tolist()), key=str)
        known = {(-1, 1): (-1, 1), (0, 1): (0, 1)}.get(tuple(distinct))
        if known is None:
            many = f"y holds {len(distinct)} labels"  # which labels they are stays unsaid
            refused = f"{many}, and not both of {{-1, 1}} or {{0, 1}}: declare classes=(negative, positive)"
            raise validate.InvalidInput(refused)
        return (False, True) if labels.dtype.kind == "b" else known

    def _place(self, z: Tensor) -> Tensor:
        return (z > 0).to(torch.int64)

    def _coded(self, places: Tensor) -> Tensor:
        return 2.0 * places.double() - 1.0


class ClassLabels(_LabelTargets):
    """K labels, held as 0..K-1; `classes` is K, the labels in order, or None (the sorted labels of y).

    >>> ClassLabels(("a", "b", "c")).read(["c", "a"])[1]
    tensor([2, 0])
    """

    def __post_init__(self) -> None:
        if isinstance(self.classes, (int, np.integer)):
            validate.positive_int(classes=int(self.classes))
            object.__setattr__(self, "classes", tuple(range(int(self.classes))))
        super().__post_init__()

    def _found(self, labels: _Labels) -> tuple[object, ...]:
        found = tuple(np.unique(labels).tolist())
        validate.require(len(found) > 1, "y holds one class only: declare all classes with classes=")
        return found

    def _place(self, z: Tensor) -> Tensor:
        return z.argmax(1)

    def _coded(self, places: Tensor) -> Tensor:
        return places


@dataclass(frozen=True)
class RealTargets(Targets):
    """Real numbers; the margin is the prediction.

    >>> RealTargets().read([1, 2])[1]
    tensor([1., 2.], dtype=torch.float64)
    """

    def read(self, y: object) -> tuple[Targets, Tensor]:
        """y itself."""
        numbers = _flat(y)
        shape = tuple(numbers.shape)
        validate.check(len(shape) == 1, "y.shape", shape, "give one number an example (1-d; y.ravel()?)")
        return self, validate.as_tensor("y", numbers, ndim=1)

    def predict(self, z: Tensor) -> Tensor:
        """The margin."""
        return z


@dataclass(frozen=True)
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


def _flat(y: Any) -> Any:
    """An array or a tensor of targets."""
    validate.check(not sp.issparse(y), "y", type(y).__name__, "give a dense 1-d array")
    return y if isinstance(y, Tensor) else np.asarray(y)
