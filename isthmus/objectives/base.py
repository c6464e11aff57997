"""What an objective is: the mean of n losses, plus a penalty that looks at no data; any torch function as one."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.gradients import Lazy, Rows
from isthmus.gradients.rows import row_spans
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
    if isinstance(index, slice):
        index = torch.arange(*index.indices(n))
    tensor = torch.as_tensor(index)
    if tensor.ndim != 1:
        validate.refuse("index.shape", tuple(tensor.shape), "give a 1-d list of positions")
    if tensor.numel() == 0:
        return torch.zeros(0, dtype=torch.int64, device=device)
    if tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        validate.refuse("index.dtype", tensor.dtype, "give integer positions (of a mask: mask.nonzero()[:, 0])")
    low, high = int(tensor.min()), int(tensor.max())
    if low < 0 or high >= n:
        validate.refuse("index", (low, high), f"give positions from 0 to n - 1 = {n - 1}")
    return tensor.to(device=device, dtype=torch.int64)


def _check_point(w: object, d: int) -> Tensor:
    """A flat floating vector of length d, detached."""
    if isinstance(w, Tensor) and w.shape == (d,) and w.is_floating_point():
        return w.detach()
    validate.refuse("w", w, f"give a floating torch tensor of shape ({d},)")


BATCH = 1024
"""Examples whose losses are computed together."""


class TorchObjective(Objective):
    """(1/n) sum_i fn(params, *example_i) + penalty(w), for any torch function of ONE example.

    Per-example gradients come from `torch.func.vmap(grad(fn))`, a chunk of rows at a time: the general,
    slower way.  Linear models and torch modules have factored ones.

    Args:
        fn: `fn(params, *example) -> scalar loss`, written in torch operations that `torch.func` can follow.
        data: a tensor or a tuple of tensors or arrays; their first axis counts examples.
        parameters: what `params` is: a dict of names to tensors or shapes (`params` is then a dict), or a flat
            tensor or its length (`params` is then flat).  Values are not used, only shapes and the dtype.

    >>> X, y = torch.eye(2), torch.tensor([1.0, 2.0])
    >>> f = TorchObjective(lambda w, x, y: (w @ x - y) ** 2 / 2, (X, y), 2)
    >>> f.loss(torch.zeros(2)), f.rows(torch.zeros(2)).dense()
    (1.25, tensor([[-1., -0.],
            [-0., -2.]]))
    """

    def __init__(
        self,
        fn: Callable[..., Tensor],
        data: object,
        parameters: Mapping[str, Tensor | tuple[int, ...]] | Tensor | int,
        *,
        l2: float = 0.0,
        l1: float = 0.0,
        penalty: Penalty | None = None,
    ) -> None:
        validate.check(callable(fn), "fn", fn, "give a function fn(params, *example) -> scalar loss")
        self.fn, self.penalty = fn, penalty_of(l1, l2, penalty)
        self.data = _tensors(data)
        self.n = len(self.data[0])
        self.named = isinstance(parameters, Mapping)
        self.space, self.dtype = _describe(parameters)

    def data_loss(self, w: Tensor, index: Index = None) -> float:
        """The mean loss of the chosen examples."""
        w, count, total = _check_point(w, self.d), 0, 0.0
        losses = self._each(self._one)
        with torch.no_grad():
            for batch in self._batches(index):
                values = losses(w, *batch)
                validate.shape((len(batch[0]),), losses=values)
                total, count = total + float(values.to(torch.float64).sum()), count + len(batch[0])
        return total / max(count, 1)

    def rows(self, w: Tensor, index: Index = None) -> Lazy:
        """The per-example gradients, computed when they are asked for."""
        point, chosen = _check_point(w, self.d).clone(), self._chosen(index)
        gradients = self._each(grad(self._one))

        def chunk(lo: int, hi: int) -> Tensor:
            return gradients(point, *(x[chosen[lo:hi]] for x in self.data))

        return Lazy(chunk, len(chosen), self.d, space=self.space, dtype=point.dtype, device=point.device)

    def gradient(self, w: Tensor, index: Index = None) -> Tensor:
        """The gradient of the mean loss, by one backward pass a batch, plus that of the penalty's l2 part."""
        w, count, total = _check_point(w, self.d), 0, torch.zeros_like(w)
        summed = grad(lambda v, *batch: self._each(self._one)(v, *batch).sum())
        for batch in self._batches(index):
            total, count = total + summed(w, *batch), count + len(batch[0])
        return total / max(count, 1) + self.penalty.gradient(w)

    def on(self, data: object) -> TorchObjective:
        """The same function and penalty on other examples."""
        objective = copy.copy(self)
        objective.data = _tensors(data)
        objective.n = len(objective.data[0])
        return objective

    def _one(self, w: Tensor, *example: Tensor) -> Tensor:
        if not self.named:
            return self.fn(w, *example)
        return self.fn({leaf.name: self.space.view(w, leaf.name) for leaf in self.space.leaves}, *example)

    def _each(self, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """A function of one example, of each of a batch."""
        return vmap(function, in_dims=(None, *[0] * len(self.data)))

    def _chosen(self, index: Index) -> Tensor:
        if index is None:
            index = slice(None)
        chosen = as_index(index, self.n, self.data[0].device)
        assert chosen is not None
        return chosen

    def _batches(self, index: Index) -> Iterator[list[Tensor]]:
        chosen = self._chosen(index)
        for lo, hi in row_spans(len(chosen), 1, BATCH):
            yield [x[chosen[lo:hi]] for x in self.data]


def _tensors(data: object) -> tuple[Tensor, ...]:
    """The data as tensors of one length, finite, their dtypes kept."""
    if not isinstance(data, (tuple, list)):
        data = (data,)
    tensors = tuple(map(torch.as_tensor, data))
    validate.check(len(tensors) > 0, "data", data, "give at least one tensor")
    for k, tensor in enumerate(tensors):
        some = tensor.ndim > 0 and len(tensor) > 0
        validate.check(some, f"data[{k}].shape", tuple(tensor.shape), "give at least one example")
        same = len(tensor) == len(tensors[0])
        validate.check(same, f"len(data[{k}])", len(tensor), f"give as many examples as data[0]: {len(tensors[0])}")
        validate.finite(**{f"data[{k}]": tensor})
    return tensors


def _describe(parameters: Mapping[str, Tensor | tuple[int, ...]] | Tensor | int) -> tuple[Space, torch.dtype]:
    """The space of the parameters and the dtype they came in."""
    if isinstance(parameters, Tensor):
        validate.check(parameters.ndim == 1, "parameters.shape", tuple(parameters.shape), "give a flat tensor")
        return Space.flat(len(parameters)), parameters.dtype
    if not isinstance(parameters, Mapping):
        return Space.flat(parameters), torch.get_default_dtype()
    validate.check(len(parameters) > 0, "parameters", parameters, "give at least one named tensor or shape")
    shapes, dtypes = {}, []
    for name, given in parameters.items():
        if isinstance(given, Tensor):
            dtypes.append(given.dtype)
            given = given.shape
        shapes[name] = tuple(given)
    validate.check(all(math.prod(s) > 0 for s in shapes.values()), "parameters", shapes, "give non-empty shapes")
    return Space.of(shapes), (*dtypes, torch.get_default_dtype())[0]
