"""What y may be: two labels, K labels, real numbers or counts; how it is read, predicted and scored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import validate

Labels: TypeAlias = NDArray[np.generic]
Classes: TypeAlias = Sequence[object] | Labels | Tensor | None
"""The labels in order; None: those that y holds."""


class Targets(ABC):
    """How a loss reads y and what it predicts from a margin."""

    labels: ClassVar[bool] = False
    """Whether y holds labels, of the `classes` there are, rather than numbers."""
    classes: tuple[Any, ...] | None = None

    @abstractmethod
    def read(self, y: object) -> tuple[Targets, Tensor]:
        """The targets with all classes known, and y as numbers."""

    @abstractmethod
    def predict(self, z: Tensor) -> Labels | Tensor:
        """A prediction for each margin."""

    @abstractmethod
    def score(self, z: Tensor, y: Tensor) -> float:
        """Accuracy (labels) or R2 (numbers)."""


@dataclass(frozen=True)
class SignedLabels(Targets):
    """Two labels, held as -1 and 1; without `classes` they must be {-1, 1}, {0, 1} or booleans.

    >>> SignedLabels(("no", "yes")).read(["yes", "no"])[1]
    tensor([ 1., -1.], dtype=torch.float64)
    """

    labels = True
    classes: Any = None

    def __post_init__(self) -> None:
        if self.classes is not None:
            object.__setattr__(self, "classes", _distinct(self.classes))
            validate.check(len(self.classes) == 2, "classes", self.classes, "give two labels: (negative, positive)")

    def read(self, y: object) -> tuple[SignedLabels, Tensor]:
        """The two classes and y in {-1, 1}."""
        labels = _labels(y)
        targets = self if self.classes is not None else SignedLabels(_two_classes(labels))
        return targets, torch.from_numpy(2.0 * _positions(labels, targets.classes or ()) - 1.0)

    def predict(self, z: Tensor) -> Labels:
        """The positive class where the margin is > 0."""
        labels: Labels = np.asarray(self.classes)[(z > 0).to(torch.int64).cpu().numpy()]
        return labels

    def score(self, z: Tensor, y: Tensor) -> float:
        """Accuracy."""
        return float(((z > 0) == (y > 0)).to(torch.float64).mean())


@dataclass(frozen=True)
class ClassLabels(Targets):
    """K labels, held as 0..K-1; `classes` is K, the labels in order, or None (the sorted labels of y).

    >>> ClassLabels(("a", "b", "c")).read(["c", "a"])[1]
    tensor([2, 0])
    """

    labels = True
    classes: Any = None

    def __post_init__(self) -> None:
        if self.classes is None:
            return
        if isinstance(self.classes, (int, np.integer)):
            validate.positive_int(classes=int(self.classes))
            object.__setattr__(self, "classes", tuple(range(int(self.classes))))
        else:
            object.__setattr__(self, "classes", _distinct(self.classes))

    def read(self, y: object) -> tuple[ClassLabels, Tensor]:
        """The classes and y in 0..K-1."""
        labels = _labels(y)
        targets = self if self.classes is not None else ClassLabels(tuple(np.unique(labels).tolist()))
        if self.classes is None:
            validate.require(len(targets.classes) > 1, "y holds one class only: declare all classes with classes=")
        return targets, torch.from_numpy(_positions(labels, targets.classes))

    def predict(self, z: Tensor) -> Labels:
        """The class with the largest margin."""
        labels: Labels = np.asarray(self.classes)[z.argmax(1).cpu().numpy()]
        return labels

    def score(self, z: Tensor, y: Tensor) -> float:
        """Accuracy."""
        return float((z.argmax(1) == y).to(torch.float64).mean())


@dataclass(frozen=True)
class RealTargets(Targets):
    """Real numbers; the margin is the prediction.

    >>> RealTargets().read([1, 2])[1]
    tensor([1., 2.], dtype=torch.float64)
    """

    def read(self, y: object) -> tuple[RealTargets, Tensor]:
        """y itself."""
        return self, _numbers(y)

    def predict(self, z: Tensor) -> Tensor:
        """The margin."""
        return z

    def score(self, z: Tensor, y: Tensor) -> float:
        """R2 = 1 - sum (y - z)^2 / sum (y - mean y)^2."""
        return _r2(z, y)


@dataclass(frozen=True)
class CountTargets(Targets):
    """Counts >= 0 with a log link: exp(margin) is the prediction.

    >>> CountTargets().predict(torch.zeros(1))
    tensor([1.])
    """

    def read(self, y: object) -> tuple[CountTargets, Tensor]:
        """y itself, once no count is negative."""
        counts = _numbers(y)
        if counts.numel():
            low = float(counts.min())
            validate.require(low >= 0, "y holds a negative number: give counts, which are 0 or more")
        return self, counts

    def predict(self, z: Tensor) -> Tensor:
        """The rate; margins beyond 50 count as 50, where the loss turns linear."""
        return z.clamp(max=50.0).exp()

    def score(self, z: Tensor, y: Tensor) -> float:
        """R2 of the rates."""
        return _r2(z.exp(), y)


def _r2(prediction: Tensor, y: Tensor) -> float:
    spread = (y - y.mean()).square().sum()
    error = (y - prediction).square().sum()
    return float(1 - error / spread) if spread > 0 else float(error == 0)


def _numbers(y: object) -> Tensor:
    validate.check(not sp.issparse(y), "y", type(y).__name__, "give a dense 1-d array")
    numbers = y if isinstance(y, Tensor) else np.asarray(y)
    validate.check(numbers.ndim == 1, "y.shape", tuple(numbers.shape), "give one number an example (1-d; y.ravel()?)")
    return validate.as_tensor("y", numbers, ndim=1)


def _labels(y: object) -> Labels:
    validate.check(not sp.issparse(y), "y", type(y).__name__, "give a dense 1-d array")
    labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    validate.check(labels.ndim == 1, "y.shape", labels.shape, "give one label an example (1-d; y.ravel()?)")
    if labels.dtype.kind == "f" and not np.isfinite(labels).all():
        bad = int((~np.isfinite(labels)).sum())
        raise validate.InvalidInput(f"y holds {bad} NaN or infinite entries: remove or impute them first")
    return labels


def _distinct(classes: Sequence[object]) -> tuple[object, ...]:
    labels = tuple(np.asarray(classes).tolist()) if isinstance(classes, (np.ndarray, Tensor)) else tuple(classes)
    validate.check(len(labels) > 0 and len(set(labels)) == len(labels), "classes", labels, "give distinct labels")
    return labels


def _two_classes(labels: Labels) -> tuple[object, object]:
    distinct = np.unique(labels).tolist() if labels.dtype.kind in "fiub" else sorted(set(labels.tolist()), key=str)
    if distinct == [-1, 1]:
        return -1, 1
    if distinct == [0, 1]:
        return (False, True) if labels.dtype.kind == "b" else (0, 1)
    raise validate.InvalidInput(
        f"y holds {len(distinct)} labels, and not both of {{-1, 1}} or {{0, 1}}: declare classes=(negative, positive)"
    )  # which labels they are stays unsaid


def _positions(labels: Labels, classes: Sequence[object]) -> NDArray[np.int64]:
    """The position of each label in the list of classes."""
    positions = np.full(len(labels), -1, dtype=np.int64)
    for position, label in enumerate(classes):
        positions[labels == label] = position
    if (positions < 0).any():
        text = f"y holds a label that is not among classes={list(classes)}: declare all labels, or leave those rows out"
        validate.require(False, text)  # whose it is stays unsaid
    return positions
