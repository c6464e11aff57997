"""Any torch function of one example as an objective."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import grad, vmap

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.gradients import Lazy
from isthmus.gradients.base import row_spans
from isthmus.objectives.base import Index, Objective, as_index, check_point, choose_penalty
from isthmus.penalties import Penalty

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
        parameters: Mapping[str, Any] | Tensor | int,
        *,
        l2: float = 0.0,
        l1: float = 0.0,
        penalty: Penalty | None = None,
    ) -> None:
        validate.check(callable(fn), "fn", fn, "give a function fn(params, *example) -> scalar loss")
        self.fn, self.penalty = fn, choose_penalty(penalty, l1, l2)
        self.data = _tensors(data)
        self.n = len(self.data[0])
        self.named = isinstance(parameters, Mapping)
        self.space, self.dtype = _describe(parameters)

    def data_loss(self, w: Tensor, index: Index = None) -> float:
        """The mean loss of the chosen examples."""
        w, count, total = check_point(w, self.d), 0, 0.0
        losses = vmap(self._one, in_dims=self._axes())
        with torch.no_grad():
            for batch in self._batches(index):
                values = losses(w, *batch)
                validate.shape((len(batch[0]),), losses=values)
                total, count = total + float(values.to(torch.float64).sum()), count + len(batch[0])
        return total / max(count, 1)

    def rows(self, w: Tensor, index: Index = None) -> Lazy:
        """The per-example gradients, computed when they are asked for."""
        point, chosen = check_point(w, self.d).clone(), as_index(index, self.n, self.data[0].device)
        gradients = vmap(grad(self._one), in_dims=self._axes())

        def chunk(lo: int, hi: int) -> Tensor:
            rows: Tensor = gradients(point, *(x[lo:hi] if chosen is None else x[chosen[lo:hi]] for x in self.data))
            return rows

        n = self.n if chosen is None else len(chosen)
        return Lazy(chunk, n, self.d, space=self.space, dtype=point.dtype, device=point.device)

    def gradient(self, w: Tensor, index: Index = None) -> Tensor:
        """The gradient of the mean loss, by one backward pass a batch, plus that of the penalty's l2 part."""
        w, count, total = check_point(w, self.d), 0, torch.zeros_like(w)
        summed = grad(lambda v, *batch: vmap(self._one, in_dims=self._axes())(v, *batch).sum())
        for batch in self._batches(index):
            total, count = total + summed(w, *batch), count + len(batch[0])
        return total / max(count, 1) + self.penalty.gradient(w)

    def on(self, data: object) -> TorchObjective:
        """The same function and penalty on other examples."""
        shapes = {leaf.name: leaf.shape for leaf in self.space.leaves} if self.named else self.d
        return TorchObjective(self.fn, data, shapes, penalty=self.penalty)

    def _one(self, w: Tensor, *example: Tensor) -> Tensor:
        if not self.named:
            return self.fn(w, *example)
        return self.fn({leaf.name: self.space.view(w, leaf.name) for leaf in self.space.leaves}, *example)

    def _axes(self) -> tuple[int | None, ...]:
        return (None, *(0 for _ in self.data))

    def _batches(self, index: Index) -> Iterator[list[Tensor]]:
        chosen = as_index(index, self.n, self.data[0].device)
        for lo, hi in row_spans(self.n if chosen is None else len(chosen), 1, BATCH):
            yield [x[lo:hi] if chosen is None else x[chosen[lo:hi]] for x in self.data]


def _tensors(data: object) -> tuple[Tensor, ...]:
    """The data as tensors of one length, finite, their dtypes kept."""
    parts = data if isinstance(data, (tuple, list)) else (data,)
    tensors = tuple(torch.as_tensor(part) for part in parts)
    validate.check(len(tensors) > 0, "data", data, "give at least one tensor")
    for k, tensor in enumerate(tensors):
        name = f"data[{k}]"
        validate.check(
            tensor.ndim > 0 and len(tensor) > 0, f"{name}.shape", tuple(tensor.shape), "give at least one example"
        )
        same = len(tensor) == len(tensors[0])
        validate.check(same, f"len({name})", len(tensor), f"give as many examples as data[0]: {len(tensors[0])}")
        validate.finite(**{name: tensor})
    return tensors


def _describe(parameters: Mapping[str, Any] | Tensor | int) -> tuple[Space, torch.dtype]:
    """The space of the parameters and the dtype they came in."""
    if isinstance(parameters, Mapping):
        validate.check(len(parameters) > 0, "parameters", parameters, "give at least one named tensor or shape")
        shapes = {k: tuple(v.shape) if isinstance(v, Tensor) else tuple(v) for k, v in parameters.items()}
        validate.check(all(math.prod(s) > 0 for s in shapes.values()), "parameters", shapes, "give non-empty shapes")
        tensors = [v for v in parameters.values() if isinstance(v, Tensor)]
        return Space.of(shapes), tensors[0].dtype if tensors else torch.get_default_dtype()
    if isinstance(parameters, Tensor):
        validate.check(parameters.ndim == 1, "parameters.shape", tuple(parameters.shape), "give a flat tensor")
        return Space.flat(len(parameters)), parameters.dtype
    return Space.flat(parameters), torch.get_default_dtype()
