"""How a leaf of the flat space lies over a module's parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class LeafBinding:
    """A leaf [W | c] of shape (q, p): a weight seen as q rows and, where there is one, its bias as the last column.

    `rows` says which rows of the parameters the leaf covers, when it is not all of them (the query, key and value
    parts of one stacked weight); a lone bias or bare parameter is a weight without a bias.

    >>> layer = nn.Linear(4, 3)
    >>> LeafBinding(layer.weight, layer.bias).shape
    (3, 5)
    """

    weight: nn.Parameter
    bias: nn.Parameter | None = None
    rows: slice | None = None
    columns: bool = False
    """A vector as one column (q, 1), as norm layers hold scale and shift, rather than as one row (1, q)."""

    @property
    def parameters(self) -> tuple[nn.Parameter, ...]:
        """The parameters the leaf covers."""
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    @cached_property
    def shape(self) -> tuple[int, int]:
        """(q, p), the bias column counted."""
        q, p = self._matrix(self.weight, self.weight).shape
        return q, p + (self.bias is not None)

    @cached_property
    def spans(self) -> list[tuple[nn.Parameter, int, int]]:
        """Each parameter, and the columns lo..hi-1 of the leaf that it is."""
        width = self.shape[1]
        if self.bias is None:
            return [(self.weight, 0, width)]
        return [(self.weight, 0, width - 1), (self.bias, width - 1, width)]

    def places(self) -> list[tuple[nn.Parameter, Tensor, int, int]]:
        """Each parameter, its matrix in memory, and its columns."""
        return [(parameter, self._matrix(parameter, parameter.detach()), lo, hi) for parameter, lo, hi in self.spans]

    def read(self) -> Tensor:
        """The parameters as one q x p matrix."""
        return torch.cat([self._matrix(parameter, parameter.detach()) for parameter in self.parameters], 1)

    def packed(self, values: Mapping[int, Tensor]) -> Tensor:
        """The leaf, flat, of other values of its parameters, given by the parameters' ids."""
        return torch.cat([self._matrix(parameter, values[id(parameter)]) for parameter in self.parameters], 1).flatten()

    @torch.no_grad()
    def write(self, leaf: Tensor) -> None:
        """Copy a leaf (flat or q x p) into the parameters."""
        leaf = leaf.view(self.shape)
        for parameter, lo, hi in self.spans:
            part = self._part(parameter)
            part.copy_(leaf[:, lo:hi].reshape(part.shape))

    def set_gradients(self, columns: Callable[[int, int], Tensor]) -> None:
        """Give the parameters their columns lo..hi-1 of a leaf as `.grad`, without a copy where they are whole."""
        for parameter, lo, hi in self.spans:
            values = columns(lo, hi).to(parameter.dtype)
            if self.rows is None:
                parameter.grad = values.reshape(parameter.shape)
                continue
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            part = self._part(parameter.grad)
            part.copy_(values.reshape(part.shape))

    def _part(self, x: Tensor) -> Tensor:
        return x if self.rows is None else x[self.rows]

    def _matrix(self, parameter: nn.Parameter, values: Tensor) -> Tensor:
        """Values of a weight as q rows, of a bias as a column."""
        part = self._part(values)
        if self.columns or parameter is self.bias:
            return part.reshape(-1, 1)
        if part.ndim < 2:
            return part.reshape(1, -1)
        return part.reshape(part.shape[0], -1)
