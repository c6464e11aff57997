"""How a leaf of the flat space lies over a module's parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
        q, p = self._matrix(self.weight).shape
        return q, p + (self.bias is not None)

    def read(self) -> Tensor:
        """The parameters as one q x p matrix."""
        pieces = [self._matrix(self.weight)] + ([] if self.bias is None else [self._column(self.bias)])
        return torch.cat([piece.detach() for piece in pieces], 1)

    def packed(self, values: Mapping[int, Tensor]) -> Tensor:
        """The leaf, flat, of other values of its parameters, given by the parameters' ids."""
        pieces = [self._matrix(values[id(self.weight)])]
        pieces += [] if self.bias is None else [self._column(values[id(self.bias)])]
        return torch.cat(pieces, 1).reshape(-1)

    @torch.no_grad()
    def write(self, leaf: Tensor) -> None:
        """Copy a leaf (flat or q x p) into the parameters."""
        leaf = leaf.view(self.shape)
        for parameter, values in self._split(leaf):
            part = parameter if self.rows is None else parameter[self.rows]
            part.copy_(values.reshape(part.shape))

    def set_gradients(self, columns: Callable[[int, int], Tensor]) -> None:
        """Give the parameters their columns lo..hi-1 of a leaf as `.grad`, without a copy where they are whole."""
        _, p = self.shape
        width = p - (self.bias is not None)
        self._give(self.weight, columns(0, width))
        if self.bias is not None:
            self._give(self.bias, columns(width, p))

    def _split(self, leaf: Tensor) -> list[tuple[nn.Parameter, Tensor]]:
        if self.bias is None:
            return [(self.weight, leaf)]
        return [(self.weight, leaf[:, :-1]), (self.bias, leaf[:, -1])]

    def places(self) -> Iterator[tuple[nn.Parameter, Tensor, int, int]]:
        """Each parameter, its matrix in memory, and the columns lo..hi-1 of the leaf that it is."""
        _, p = self.shape
        width = p - (self.bias is not None)
        yield self.weight, self._matrix(self.weight.detach()), 0, width
        if self.bias is not None:
            yield self.bias, self._column(self.bias.detach()), width, p

    def _give(self, parameter: nn.Parameter, values: Tensor) -> None:
        values = values.to(parameter.dtype)
        if self.rows is None:
            parameter.grad = values.reshape(parameter.shape)
            return
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        part = parameter.grad[self.rows]
        part.copy_(values.reshape(part.shape))

    def _matrix(self, parameter: Tensor) -> Tensor:
        """A weight as q rows."""
        part = parameter if self.rows is None else parameter[self.rows]
        if self.columns:
            return part.reshape(-1, 1)
        return part.reshape(1, -1) if part.ndim < 2 else part.reshape(part.shape[0], -1)

    def _column(self, bias: Tensor) -> Tensor:
        part = bias if self.rows is None else bias[self.rows]
        return part.reshape(-1, 1)
