"""What an objective is: the mean of n losses, plus a penalty that looks at no data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.gradients import Rows
from isthmus.penalties import NoPenalty, Penalty, penalty_of

Index: TypeAlias = Tensor | NDArray[np.integer] | Sequence[int] | slice | None
"""Positions of examples, or a range of them; None stands for all of them."""


@runtime_checkable
class Objective(Protocol):
    """f(w) = (1/n) sum_i l_i(w) + penalty(w), for a flat vector w of `space`.

    A new objective states `n` and `space` and writes two methods, `data_loss` and `rows`; inherit from this
    class to get the other two.  `index` chooses examples (all of them when it is None).  One that reads a fact off its
    data which could have been declared says so in `read_off`, pairs of the fact and its remedy (see `LinearModel`).

    >>> from isthmus.gradients import Dense
    >>> class Mean(Objective):
    ...     def __init__(self, X):
    ...         self.X, self.n, self.space = X, len(X), Space.flat(X.shape[1])
    ...     def data_loss(self, w, index=None):
    ...         return float((self.rows(w, index).dense() ** 2).sum(1).mean() / 2)
    ...     def rows(self, w, index=None):
    ...         return Dense(w - (self.X if index is None else self.X[index]))
    >>> f = Mean(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    >>> f.loss(torch.zeros(2)), f.gradient(torch.zeros(2)), f.d
    (0.5, tensor([-0.5000, -0.5000]), 2)
    """

    n: int
    space: Space
    penalty: Penalty = NoPenalty()

    def data_loss(self, w: Tensor, index: Index = None) -> float:
        """(1/|index|) sum_i l_i(w); 0 for an empty batch."""
        ...

    def rows(self, w: Tensor, index: Index = None) -> Rows:
        """The gradients of the l_i, one row an example: of the DATA loss only, never of the penalty."""
        ...

    def loss(self, w: Tensor, index: Index = None) -> float:
        """The mean data loss plus the value of the penalty."""
        return self.data_loss(w, index) + self.penalty.value(w)

    def gradient(self, w: Tensor, index: Index = None) -> Tensor:
        """The mean data gradient plus the gradient of the penalty's smooth (l2) part.

        An l1 part has no gradient: it enters by `penalty.prox_rest` after the step.
        """
        rows = self.rows(w, index)
        return rows.sum().to(w.dtype) / max(rows.n, 1) + self.penalty.gradient(w)

    @property
    def d(self) -> int:
        """The dimension of w."""
        return self.space.d


def as_index(index: Index, n: int, device: torch.device | str = "cpu") -> Tensor | None:
    """Positions of examples as an int64 tensor, each in 0..n-1; None stands for all.

    >>> as_index([2, 0], 3), as_index(None, 3)
    (tensor([2, 0]), None)
    """
    if index is None:
        return None
    index = range(*index.indices(n)) if isinstance(index, slice) else index
    tensor = index if isinstance(index, Tensor) else torch.as_tensor(list(index) if isinstance(index, range) else index)
    validate.check(tensor.ndim == 1, "index.shape", tuple(tensor.shape), "give a 1-d list of positions")
    if tensor.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device=device)
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    validate.check(whole, "index.dtype", tensor.dtype, "give integer positions (of a mask: mask.nonzero()[:, 0])")
    low, high = int(tensor.min()), int(tensor.max())
    validate.check(0 <= low and high < n, "index", (low, high), f"give positions from 0 to n - 1 = {n - 1}")
    return tensor.to(device=device, dtype=torch.int64)


def as_rows(index: Index, n: int, device: torch.device | str = "cpu") -> slice | Tensor | None:
    """The same, with ranges kept as they are: rows side by side are taken without a copy.

    >>> as_rows(slice(1, 2), 3)
    slice(1, 2, None)
    """
    return index if isinstance(index, slice) else as_index(index, n, device)


def choose_penalty(penalty: Penalty | None, l1: float, l2: float) -> Penalty:
    """The penalty given as an object or by its two strengths, not both."""
    if penalty is None:
        return penalty_of(l1, l2)
    validate.check(isinstance(penalty, Penalty), "penalty", penalty, "give a Penalty, such as L2Penalty(0.1)")
    validate.check(l1 == 0 and l2 == 0, "penalty", penalty, "give either penalty= or l1= and l2=")
    return penalty


def check_point(w: object, d: int) -> Tensor:
    """A flat floating vector of length d, detached."""
    if not isinstance(w, Tensor):
        validate.refuse("w", w, f"give a torch tensor of shape ({d},)")
    validate.check(w.is_floating_point(), "w.dtype", w.dtype, "give a floating tensor")
    validate.shape((d,), w=w)
    return w.detach()
