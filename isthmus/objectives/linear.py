"""Linear models: losses of the margin z = X w, on dense or CSR data that is neither densified nor copied.

Losses are known by their names: every complete subclass of `LinearModel` that states one, wherever it was written.
"""

from __future__ import annotations

import copy
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TypedDict, Unpack

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, eigsh
from torch import Tensor

from isthmus.base import matrix, secret, validate
from isthmus.base.class_registry import subclasses
from isthmus.base.matrix import Array, Matrix, View, as_matrix, is_sparse
from isthmus.base.space import Space
from isthmus.base.streamed import opened
from isthmus.gradients import Outer
from isthmus.gradients.rounding import Lengths
from isthmus.objectives.base import Index, Objective, _check_point, as_index
from isthmus.objectives.targets import ClassLabels, CountTargets, RealTargets, SignedLabels, Targets
from isthmus.penalties import Penalty, penalty_of

CLASSES_READ = ("the labels (classes) were", "give classes=[...], which must be public")
"""What a classifier without declared classes has read off y, and the remedy."""


class _Options(TypedDict, total=False):
    """What every linear model takes beside its data (see `LinearModel`)."""

    l2: float
    l1: float
    penalty: Penalty | None
    weights: object


class LinearModel(Objective):
    """(1/n) sum_i l(x_i'w, y_i) + penalty(w).

    A loss is two formulas of the margin z: `losses(z, y)` and its derivative `slopes(z, y)`; the gradient of
    example i is slope_i x_i.  The dtype of w drives every computation; X stays as it was given.

    Args:
        X: n x p array, tensor or SciPy sparse matrix (held as CSR, never densified); or a table that outgrows memory:
            a memory-mapped array, a .npy or Parquet file, a folder of Parquet files, a pyarrow dataset.
        y: n targets, read as the class says in `reads`.  With Parquet also the name of their column.
        classes: the labels of a classifier, in order.
        l1, l2: strengths of the penalty l1 ||w||_1 + (l2 / 2) ||w||^2; or give `penalty`.
        weights: n numbers >= 0 that multiply the losses (the sum is still divided by n).

    Class attributes say what planner and estimators need to know of it: `reads`, `curvature`, `slope_bound`,
    `default_clip`.  A class that states them can be given to them: `PrivateRegressor(loss=Absolute)`.

    >>> class Absolute(LinearModel):
    ...     slope_bound = 1.0
    ...     def losses(self, z, y):
    ...         return (z - y).abs()
    ...     def slopes(self, z, y):
    ...         return torch.sign(z - y)
    >>> f = Absolute(torch.eye(2), [1.0, -3.0])
    >>> f.loss(torch.zeros(2)), f.gradient(torch.zeros(2))
    (2.0, tensor([-0.5000,  0.5000]))
    """

    curvature: float | None = None
    """A bound of the second derivative of l in z; None when there is none."""
    slope_bound: float | None = None
    """A bound of |slope|; None when there is none."""
    name: str = ""
    """What users call the loss: `plan(loss=...)` and the estimators find a class by the name it states itself."""
    reads: type[Targets] = RealTargets
    """How y is read and what a margin predicts: `RealTargets`, `CountTargets` (log link) or `SignedLabels`."""
    default_clip: float | None = None
    """|slope| at w = 0, or a measured bound of it, for rows of norm 1 and targets in [-1, 1]; None: `slope_bound`."""
    usual_curvature: float | None = None
    """The second derivative at margins that fitted models have; None: `curvature`."""
    probabilities = False
    """Whether a classifier's margins are log-odds: then it predicts probabilities."""
    extends: type[LinearModel] | None = None
    """The loss of two classes that this one takes to more of them."""
    equivariant = False
    """Whether targets that are shifted and scaled give margins that are shifted and scaled alike."""
    linear = True
    """Clipped sums of its gradients are taken in float64: one number a record is all that its rows are made of."""
    read_off: tuple[tuple[str, str], ...] = ()
    """Facts that were read from the data where they could have been declared, each with its remedy: no epsilon covers
    them, so a private run warns of them and states them."""

    def __init__(
        self,
        X: object,
        y: object,
        *,
        classes: object = None,
        l2: float = 0.0,
        l1: float = 0.0,
        penalty: Penalty | None = None,
        weights: object = None,
    ) -> None:
        self.penalty = penalty_of(l1, l2, penalty)
        labelled = self.labelled()
        self.targets: Targets = self.reads()
        if not labelled:
            validate.check(classes is None, "classes", classes, "leave it out: only a classifier has classes")
        elif classes is None:
            self.read_off = (CLASSES_READ,)
        else:
            self.targets = self.reads(classes)  # type: ignore[call-arg]
        self.weights: Tensor | None = None
        self._load(X, y)
        if weights is not None:
            self.weights = validate.as_tensor("weights", weights, ndim=1).to(self.y.device, torch.float64)
            remedy = f"give one weight for each of the {self.n} rows"
            validate.check(len(self.weights) == self.n, "len(weights)", len(self.weights), remedy)
            good = bool((self.weights >= 0).all())
            validate.require(good, "weights holds a negative number: give weights of 0 or more")

    @classmethod
    def labelled(cls) -> bool:
        """Whether targets are labels; a class that does not say how they are read is refused here, by whoever asks."""
        remedy = "state how targets are read: reads = RealTargets, CountTargets or SignedLabels"
        validate.check("reads" not in _missing(cls), f"{cls.__name__}.reads", cls.reads, remedy)
        return cls.reads.labels

    @classmethod
    def outputs(cls, classes: int = 2) -> int:
        """How many margins an example has."""
        return 1

    @classmethod
    def clip_for(cls, classes: int = 2) -> float:
        """The clip for rows of norm 1 where none is given."""
        clip = cls.default_clip or cls.slope_bound
        if not clip:
            validate.refuse(
                "clip", None, f"give clip=, because {cls.__name__} states neither default_clip nor slope_bound"
            )
        return clip

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What a private run takes from a loss that this library did not write, whose slopes nothing tries out."""
        kind = type(self)
        if kind.__module__.startswith("isthmus."):
            return ()
        return (f"{kind.__name__}, which is not of this library, gives a record a slope that depends on it alone",)

    @abstractmethod
    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """l(z_i, y_i) for each example."""

    @abstractmethod
    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """dl/dz for each example."""

    def data_loss(self, w: Tensor, index: Index = None) -> float:
        """The mean loss of the chosen examples."""
        X, losses = self._of(self.losses, w, self._where(index))
        return float(losses.double().sum()) / max(X.shape[0], 1)

    def rows(self, w: Tensor, index: Index = None) -> Outer:
        """The per-example gradients slope_i x_i', factored."""
        where = self._where(index)
        X, slopes = self._of(self.slopes, w, where)
        outputs = slopes[:, None] if slopes.ndim == 1 else slopes
        return Outer(X, outputs, sizes=lambda ord: self.lengths.of(X, ord, where))

    def gradient(self, w: Tensor, index: Index = None) -> Tensor:
        """X' slopes / n, plus the gradient of the penalty's l2 part (see `Objective.gradient`)."""
        X, slopes = self._of(self.slopes, w, self._where(index))
        mean = matrix.rmatmul(X, slopes).movedim(0, -1).reshape(-1) / max(X.shape[0], 1)
        return mean + self.penalty.gradient(w.detach())

    def spans(self) -> list[tuple[int, int]] | None:
        """Ranges of records that are looked at together, a choice of speed and memory; None: all."""
        return matrix.spans_of(self.X)

    def part(self, index: Index) -> LinearModel:
        """The same problem with some of its records only."""
        where = self._where(index)
        if where is None:
            return self._with(lengths=Lengths(self.n))
        X, weights = matrix.take(self.X, where), self.weights
        if weights is not None:
            weights = weights[where]
        return self._with(X=X, y=self.y[where], weights=weights, n=X.shape[0], lengths=Lengths(X.shape[0]))

    def forget(self) -> None:
        """Forget what was computed of the rows: they may have been written to since."""
        self.lengths = Lengths(self.n)
        if isinstance(self.X, View):
            self.X.forget()

    def predict(self, w: Tensor, X: object = None) -> NDArray[np.generic] | Tensor:
        """Labels (NumPy, as they were given) or numbers (tensor), for X or for the training data."""
        return self.targets.predict(self._decide(w, X))

    def score(self, w: Tensor, X: object = None, y: object = None) -> float:
        """Accuracy of a classifier, R2 of a regression, on (X, y) or on the training data."""
        validate.check((X is None) == (y is None), "X, y", "one of them", "give both X and y, or neither")
        truth, z = self.y, self._decide(w, X)
        if y is not None:
            truth = self.targets.read(y)[1]
        validate.check(len(truth) == len(z), "len(y)", len(truth), f"give one target for each of {len(z)} rows")
        return self.targets.score(z, truth.to(z) if truth.is_floating_point() else truth.to(z.device))

    @property
    def classes(self) -> tuple[object, ...] | None:
        """The labels in order, or None for a regression."""
        return self.targets.classes

    def smoothness(self) -> float:
        """A Lipschitz constant of the gradient: curvature * lambda_max(X'X) / n + l2; inf when there is none.

        To rounding.  It reads the data: not for private runs.
        """
        if self.curvature is None:
            return math.inf
        return self.curvature * top_eigenvalue(self.X) / self.n + self.penalty.curvature

    def on(self, data: tuple[object, object]) -> LinearModel:
        """The same loss, classes and penalty on other examples `(X, y)` with as many columns."""
        model = self._with(weights=None)
        model._load(*data)
        validate.check(model.d == self.d, "X.shape", tuple(model.X.shape), f"give {self.X.shape[1]} columns")
        return model

    def with_inputs(self, X: object) -> LinearModel:
        """The same loss, targets and penalty on other columns of the same examples (scaled, with a bias, ...)."""
        inputs = as_matrix("X", X)
        validate.check(inputs.shape[0] == self.n, "X.shape", tuple(inputs.shape), f"give {self.n} rows")
        model = self._with(X=inputs, dtype=matrix.dtype_of(inputs), lengths=Lengths(self.n))
        model.space = model._space()
        return model

    def with_targets(self, y: object) -> LinearModel:
        """The same loss and inputs with other targets of the same examples."""
        targets, numbers = self.targets.read(y)
        validate.check(len(numbers) == self.n, "len(y)", len(numbers), f"give one target for each of {self.n} rows")
        return self._with(targets=targets, y=numbers)

    def with_weights(self, weights: Tensor | None) -> LinearModel:
        """The same problem with other weights of its examples."""
        return self._with(weights=weights)

    def _with(self, **attributes: object) -> LinearModel:
        """A copy with other attributes."""
        model = copy.copy(self)
        vars(model).update(attributes)
        return model

    def _of(
        self, formula: Callable[[Tensor, Tensor], Tensor], w: Tensor, where: slice | Tensor | None
    ) -> tuple[Matrix, Tensor]:
        """The chosen rows, and their losses or slopes at w times their weights."""
        X, y, weights = self.X, self.y, self.weights
        if where is not None:
            X, y = matrix.take(X, where), y[where]
        z = matrix.margins(X, self._as_columns(_check_point(w, self.d)))
        values = formula(z, y.to(z) if y.is_floating_point() else y.to(z.device))
        if weights is not None:
            weights = weights[slice(None) if where is None else where].to(values)
            values = values * weights.view(-1, *[1] * (values.ndim - 1))
        return X, values

    def _where(self, index: Index) -> slice | Tensor | None:
        """Which rows; ranges stay ranges: rows side by side are taken without a copy."""
        return index if isinstance(index, slice) else as_index(index, self.n, self.y.device)

    def _load(self, X: object, y: object) -> None:
        X, y = opened(X, y)
        self.X: Matrix = as_matrix("X", X)
        least = int(not isinstance(self.X, View))  # a rank's part of a fit may be empty
        some = self.X.shape[1] > 0 and self.X.shape[0] >= least
        validate.check(some, "X.shape", tuple(self.X.shape), "give at least one row and one column")
        self.targets, target = self.targets.read(y)
        self.n, self.dtype = self.X.shape[0], matrix.dtype_of(self.X)
        validate.check(len(target) == self.n, "len(y)", len(target), f"give one target for each of the {self.n} rows")
        self.y = target.to(matrix.device_of(self.X))
        self.space, self.lengths = self._space(), Lengths(self.n)

    def _space(self) -> Space:
        return Space.flat(self.X.shape[1])

    def _decide(self, w: Tensor, X: object) -> Tensor:
        data, columns = self.X, self.X.shape[1]
        if X is not None:
            data = as_matrix("X", opened(X)[0])
        validate.check(data.shape[1] == columns, "X.shape", tuple(data.shape), f"give {columns} columns")
        return matrix.matmul(data, self._as_columns(_check_point(w, self.d)))

    def _as_columns(self, w: Tensor) -> Tensor:
        return w

    def __repr__(self) -> str:
        return f"{type(self).__name__}(n={self.n}, d={self.d}, penalty={self.penalty})"


class Logistic(LinearModel):
    """l = log(1 + exp(-y z)), y in {-1, 1}; slope -y sigmoid(-y z), curvature 1/4.

    `y` holds {-1, 1}, {0, 1}, booleans, or the two labels `classes=(negative, positive)`.

    >>> f = Logistic([[1.0], [2.0]], [0, 1])
    >>> round(f.loss(torch.zeros(1, dtype=torch.float64)), 4), f.slope_bound
    (0.6931, 1.0)
    """

    name, reads, probabilities = "logistic", SignedLabels, True
    curvature, usual_curvature, slope_bound, default_clip = 0.25, 0.2, 1.0, 0.5

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """log(1 + exp(-y z)), stable for every margin."""
        return -F.logsigmoid(y * z)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """-y / (1 + exp(y z)): torch's sigmoid would round the last rows of a vector in another way than the rest."""
        return -y / (1 + torch.exp(y * z))


class Hinge(LinearModel):
    """l = max(0, 1 - y z); slope -y where y z < 1 and 0 elsewhere, a subgradient.

    >>> Hinge([[1.0], [2.0]], [-1, 1]).loss(torch.ones(1, dtype=torch.float64))
    1.0
    """

    name, reads, slope_bound, default_clip = "hinge", SignedLabels, 1.0, 0.5
    gamma = 0.0
    """The width of the corner."""

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """t (1 - m) - gamma t^2 / 2 with m = y z and t as in `slopes`."""
        return _hinge(y * z, self.gamma)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """-y t, t = clip((1 - m) / gamma, 0, 1)."""
        return -y * _steepness(y * z, self.gamma)


def _hinge(m: Tensor, gamma: float) -> Tensor:
    """The hinge of this width at margins m."""
    t = _steepness(m, gamma)
    return t * ((1 - m).clamp_min(0) - gamma / 2 * t)


def _steepness(m: Tensor, gamma: float) -> Tensor:
    """How steep a hinge of this width is, from 0 to 1, at margins m."""
    return ((1 - m) / gamma).clamp(0, 1) if gamma else (1 - m > 0).to(m.dtype)


class SmoothHinge(Hinge):
    """The hinge with a quadratic of width gamma at its corner; curvature 1 / gamma.

    With m = y z: 0 for m >= 1, (1 - m)^2 / (2 gamma) for 1 - gamma < m < 1, and 1 - m - gamma / 2 below.

    >>> SmoothHinge([[1.0], [2.0]], [-1, 1], gamma=0.5).loss(torch.ones(1, dtype=torch.float64))
    0.875
    """

    name, curvature = "smooth_hinge", 1.0

    def __init__(self, X: object, y: object, *, gamma: float = 1.0, **options: Unpack[_Options]) -> None:
        validate.positive(gamma=gamma)
        self.gamma, self.curvature = gamma, 1 / gamma
        super().__init__(X, y, **options)


class LeastSquares(LinearModel):
    """l = (z - y)^2 / 2; slope z - y, curvature 1.

    >>> LeastSquares([[1.0], [2.0]], [1.0, 0.0]).loss(torch.ones(1, dtype=torch.float64))
    1.0
    """

    name, curvature, default_clip = "squared", 1.0, 0.3
    equivariant = True

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """(z - y)^2 / 2."""
        return (z - y).square() / 2

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """z - y."""
        return z - y


class Huber(LinearModel):
    """l = e^2 / 2 for |e| <= delta, else delta (|e| - delta / 2), e = z - y; slope clip(e, -delta, delta).

    >>> Huber([[1.0], [5.0]], [0.0, 0.0], delta=1.0).loss(torch.ones(1, dtype=torch.float64))
    2.5
    """

    name, curvature, default_clip = "huber", 1.0, 0.3

    def __init__(self, X: object, y: object, *, delta: float = 1.0, **options: Unpack[_Options]) -> None:
        validate.positive(delta=delta)
        self.delta = self.slope_bound = delta
        super().__init__(X, y, **options)

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """c (e - c / 2) with c = clip(e, -delta, delta)."""
        clipped = self.slopes(z, y)
        return clipped * (z - y - clipped / 2)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """The clipped error."""
        return (z - y).clamp(-self.delta, self.delta)


class Poisson(LinearModel):
    """l = exp(z) - y z + log(y!), the negative log-likelihood of counts y with rate exp(z).

    Beyond z = `max_log` the exponential goes on along its tangent, so that the loss stays convex and finite.

    >>> round(Poisson([[1.0]], [2]).loss(torch.zeros(1, dtype=torch.float64)), 4)
    1.6931
    """

    name, reads, default_clip = "poisson", CountTargets, 0.3

    def __init__(self, X: object, y: object, *, max_log: float = 50.0, **options: Unpack[_Options]) -> None:
        validate.positive(max_log=max_log)
        validate.at_most(80.0, "the largest whose exponential float32 holds well", max_log=max_log)
        self.max_log = max_log
        super().__init__(X, y, **options)

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """exp(z) - y z + log(y!)."""
        low = z.clamp_max(self.max_log)
        return low.exp() * (1 + z - low) - y * z + torch.lgamma(y + 1)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """exp(z) - y."""
        return z.clamp_max(self.max_log).exp() - y


class Softmax(LinearModel):
    """l = log sum_k exp(z_k) - z_y with z = W x; w is the K x p matrix W, flat and row-major.

    Slopes are softmax(z) - e_y, so the gradient of example i is the outer product (softmax(z_i) - e_{y_i}) x_i'.
    The Hessian in z is at most 1/2, and ||slope|| <= sqrt 2.

    Args:
        classes: the number of classes (labels 0..K-1), the labels in order, or None: the sorted labels of y.

    >>> f = Softmax([[1.0, 0.0], [0.0, 1.0]], [0, 2], classes=3)
    >>> f.space.shape("w"), round(f.loss(torch.zeros(6, dtype=torch.float64)), 4)
    ((3, 2), 1.0986)
    """

    name, reads, probabilities = "softmax", ClassLabels, True
    extends: type[LinearModel] | None = Logistic
    curvature, slope_bound = 0.5, 2.0**0.5

    @classmethod
    def outputs(cls, classes: int = 2) -> int:
        """One margin for each class."""
        return classes

    @classmethod
    def clip_for(cls, classes: int = 2) -> float:
        """sqrt(1 - 1/K), the norm of the slope at w = 0, unless the class has a number of its own."""
        return cls.default_clip or math.sqrt(1 - 1 / classes)

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """log sum_k exp(z_k) - z_y."""
        return torch.logsumexp(z, dim=1) - z.gather(1, y[:, None])[:, 0]

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """softmax(z) - e_y."""
        return torch.softmax(z, dim=1).scatter_add(1, y[:, None], z.new_full((len(y), 1), -1.0))

    def _space(self) -> Space:
        return Space.of({"w": (len(self.classes or ()), self.X.shape[1])})

    def _as_columns(self, w: Tensor) -> Tensor:
        return w.view(-1, self.X.shape[1]).T


class OneVsRest(Softmax):
    """l = sum_k h(s_k z_k), s_k = 1 for the right class and -1 else; h the hinge, or the smooth hinge of width gamma.

    >>> OneVsRest([[1.0, 0.0]], [2], classes=3).loss(torch.zeros(6, dtype=torch.float64))
    3.0
    """

    name, probabilities, default_clip = "", False, 1.0
    extends: type[LinearModel] | None = Hinge
    gamma = 0.0

    def __init__(self, X: object, y: object, *, gamma: float | None = None, **options: Unpack[_Options]) -> None:
        if gamma is not None:
            validate.non_negative(gamma=gamma)
            self.gamma = gamma
        self.curvature = 1 / self.gamma if self.gamma else None  # type: ignore[assignment]
        super().__init__(X, y, **options)
        self.slope_bound = len(self.classes or ()) ** 0.5

    def losses(self, z: Tensor, y: Tensor) -> Tensor:
        """The hinges of all classes."""
        return _hinge(self._signs(z, y) * z, self.gamma).sum(1)

    def slopes(self, z: Tensor, y: Tensor) -> Tensor:
        """-s_k where the margin is short."""
        signs = self._signs(z, y)
        return -signs * _steepness(signs * z, self.gamma)

    def _signs(self, z: Tensor, y: Tensor) -> Tensor:
        return torch.full_like(z, -1.0).scatter_(1, y[:, None], 1.0)


class SmoothOneVsRest(OneVsRest):
    """`OneVsRest` of smooth hinges, of width 1 unless told otherwise.

    >>> SmoothOneVsRest([[1.0, 0.0]], [2], classes=3).gamma
    1.0
    """

    extends, gamma = SmoothHinge, 1.0


Loss = type[LinearModel]


def known_losses(labels: bool | None = None) -> dict[str, Loss]:
    """Names and classes; of classifiers or of regressions alone where `labels` says so.  Half-written ones are none.

    >>> {"huber", "poisson", "squared"} <= set(known_losses(labels=False)), "hinge" in known_losses(labels=False)
    (True, False)
    """
    losses: dict[str, Loss] = {}
    for kind in subclasses(LinearModel):  # type: ignore[type-abstract]
        if vars(kind).get("name") and not _missing(kind) and labels in (None, kind.labelled()):
            losses.setdefault(kind.name, kind)  # the nearest one: nobody takes over a name by importing something
    return losses


def _missing(kind: Loss) -> list[str]:
    """What a class has to write before it is a loss."""
    formulas = sorted(kind.__abstractmethods__)
    if isinstance(kind.reads, type) and issubclass(kind.reads, Targets):
        return formulas
    return [*formulas, "reads"]


def loss_of(loss: str | Loss, labels: bool | None = None) -> Loss:
    """The class of a loss that was given by its name or as a class.

    >>> loss_of("logistic") is loss_of(loss_of("logistic"))
    True
    """
    if isinstance(loss, type) and issubclass(loss, LinearModel):
        missing = " and ".join(_missing(loss))
        remedy = f"write {missing} first: isthmus.objectives.LinearModel says what a loss states"
        validate.check(not missing, "loss", loss.__name__, remedy)
        validate.check(labels in (None, loss.labelled()), "loss", loss.__name__, f"give a loss of {_READS[labels]}")
        return loss
    named = [kind for kind in subclasses(LinearModel) if vars(kind).get("name") == loss]  # type: ignore[type-abstract]
    for kind in named:
        if not _missing(kind) and labels in (None, kind.labelled()):
            return kind
    why = "".join(f"{kind.__name__} has no {' and '.join(_missing(kind))} yet; " for kind in named if _missing(kind))
    validate.refuse("loss", loss, f"{why}choose one of {list(known_losses(labels))}, or give a subclass of LinearModel")


_READS = {True: "labels (reads = SignedLabels)", False: "numbers (reads = RealTargets)", None: "any targets"}


def name_of(loss: str | Loss) -> str:
    """The name of a loss, or that of its class."""
    return loss if isinstance(loss, str) else vars(loss).get("name") or loss.__name__


def loss_for(loss: str | Loss, classes: int) -> Loss:
    """The classifier that takes so many classes: the loss itself, or the one that says it extends it.

    >>> loss_for("logistic", 2).__name__, loss_for("logistic", 3).__name__, loss_for("hinge", 3).__name__
    ('Logistic', 'Softmax', 'OneVsRest')
    """
    kind = loss_of(loss, labels=True)
    if classes == 2 or kind.outputs(classes) > 1:
        return kind
    every = subclasses(LinearModel)  # type: ignore[type-abstract]
    wider = [candidate for candidate in every if vars(candidate).get("extends") is kind]
    remedy = f"give two classes, or declare a loss with extends = {kind.__name__} for more: {name_of(kind)} is for two"
    validate.check(bool(wider), "classes", classes, remedy)
    return wider[0]


# ---------------------------------------------------------------- the largest eigenvalue of X'X: for steps, and to buy

GRAM_LIMIT = 2000
"""Up to so many rows or columns the largest eigenvalue is that of a Gram matrix."""
_SMALL_GRAM = 300
"""Up to this size all eigenvalues are had sooner than the largest one by Lanczos."""


def top_eigenvalue(X: Matrix) -> float:
    """lambda_max(X'X), to rounding, for X of any size: by Lanczos where the Gram matrix would be large.

    With rows of norm at most 1 one record moves it by at most 1 (Weyl), which is what a private release needs.

    >>> round(top_eigenvalue(torch.diag(torch.tensor([1.0, 3.0]))), 9)
    9.0
    """
    if min(X.shape) <= GRAM_LIMIT:
        gram = _gram(X)
        if len(gram) <= _SMALL_GRAM:
            return float(torch.linalg.eigvalsh(gram)[-1].clamp_min(0))
        dense: Array = gram.numpy()
        return lanczos_top(lambda v: dense @ v, len(dense))
    if is_sparse(X):
        X = X.astype(np.float64)
    return lanczos_top(lambda v: matrix.rmatmul(X, matrix.matmul(X, torch.from_numpy(v))).numpy(), X.shape[1])


def lanczos_top(square: Callable[[Array], Array], size: int) -> float:
    """The largest eigenvalue of a positive semi-definite matrix, to rounding, from its products with vectors."""
    operator = LinearOperator((size, size), matvec=lambda v: square(v.reshape(-1)), dtype=np.float64)
    # secret: nobody can prepare data that hides from it
    start = np.random.default_rng(secret.randbits(128)).standard_normal(size)
    if not np.any(square(start)):
        return 0.0
    return float(eigsh(operator, k=1, which="LA", v0=start, ncv=40, tol=0, return_eigenvectors=False)[0])


def _gram(X: Matrix) -> Tensor:
    """X'X or X X', whichever is smaller, in float64."""
    tall = X.shape[0] >= X.shape[1]
    if isinstance(X, View) and tall:
        return X.gram()
    if isinstance(X, View):
        X = X.dense()
    if is_sparse(X):
        wide = X.astype(np.float64)
        product = wide.T @ wide if tall else wide @ wide.T
        return torch.from_numpy(product @ np.eye(product.shape[0]))
    if not tall:
        rows = X.to(torch.float64)
        return rows @ rows.T
    chunks = (chunk.to(torch.float64) for chunk in X.split(max(1, (1 << 23) // X.shape[1])))
    return sum((chunk.T @ chunk for chunk in chunks), torch.zeros((), dtype=torch.float64, device=X.device))
