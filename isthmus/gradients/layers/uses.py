"""What one operation did with a shared value, and the rows that the gradient of its output gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from isthmus.gradients import rounding
from isthmus.gradients.layers.convolution import weight_rows
from isthmus.gradients.layers.folding import folded
from isthmus.gradients.layers.rules import Site
from isthmus.gradients.layers.shared import Found, Shared, bare, matrix_rows, pulled, read_rows
from isthmus.gradients.rows import Dense, Lookup, Rows


class Use(ABC):
    """One use of shared values by n examples."""

    n: int
    dim: int
    """Where the output keeps its examples."""

    @property
    @abstractmethod
    def values(self) -> list[Shared]:
        """The values, in the order of their rows."""

    @property
    def feeds(self) -> list[str]:
        """The leaves whose rows it gives."""
        leaves = [leaf for value in self.values for leaf in value.history.leaves]
        return [leaf.site.leaves[leaf.suffix] for leaf in leaves]

    @abstractmethod
    def rows(self, b: Tensor) -> Found:
        """The rows of the parameters from the gradient of the output."""

    def by_site(self, b: Tensor) -> list[tuple[Site, dict[str, Rows]]]:
        """The same, by the layers that own them."""
        return [(leaf.site, {leaf.suffix: rows}) for leaf, rows in self.rows(b.detach())]


@dataclass(frozen=True, eq=False)
class Spread(Use):
    """A copy for each example: the gradient of the copies."""

    value: Shared
    dim: int
    n: int

    @property
    def values(self) -> list[Shared]:
        """The value."""
        return [self.value]

    def rows(self, b: Tensor) -> Found:
        """(n, numbers of the value)."""
        return pulled(self.value, Dense(b.movedim(self.dim, 0).reshape(self.n, self.value.numel())))


@dataclass(frozen=True, eq=False)
class Multiplied(Use):
    """z = x W' + c, or x W + c where `turned`, at any number of positions."""

    weight: Shared
    turned: bool
    bias: Shared | None
    x: Tensor
    dim: int
    n: int

    @property
    def values(self) -> list[Shared]:
        """The matrix, and the shift."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def rows(self, b: Tensor) -> Found:
        """Outer products of the input and the gradient; the bias has the sum of the latter."""
        a, b = (_positions(x.movedim(self.dim, 0), self.n) for x in (self.x, b))
        rows = matrix_rows(self.weight, b, a) if self.turned else matrix_rows(self.weight, a, b)
        if self.bias is not None:
            shift = b if b.ndim == 2 else b.sum(1, dtype=rounding.working(b.dtype))
            if self.bias.numel() == 1 < shift.shape[1]:
                shift = shift.sum(1, keepdim=True)
            rows += pulled(self.bias, Dense(shift))
        return rows


@dataclass(frozen=True, eq=False)
class Read(Use):
    """z = W[k] at the places k of each example."""

    table: Shared
    index: Tensor
    dim: int
    padding: int | None
    n: int

    @property
    def values(self) -> list[Shared]:
        """The table."""
        return [self.table]

    def rows(self, b: Tensor) -> Found:
        """The places and the gradients there."""
        index = self.index.movedim(self.dim, 0)
        index = index.flatten(1) if index.ndim > 1 else index[:, None]
        form, values = self.table.history.form, b.movedim(self.dim, 0)
        if form is not None and form.plain:
            (leaf,) = self.table.history.leaves
            rows = read_rows(leaf, index, values, self.padding)
            return [(leaf, leaf.laid(rows if form.factor == 1.0 else rows.scaled(form.factor)))]
        width = self.table[0].numel()
        values = values.reshape(*index.shape, width)
        if self.padding is not None:
            values = values.masked_fill((index == self.padding)[:, :, None], 0.0)
        return pulled(self.table, Lookup(index % len(self.table), values, len(self.table)))


@dataclass(frozen=True, eq=False)
class Convolved(Use):
    """A convolution: a linear layer over patches."""

    weight: Shared
    bias: Shared | None
    x: Tensor
    settings: dict[str, Any]
    n: int
    dim: int = 0

    @property
    def values(self) -> list[Shared]:
        """The kernel, and the shift."""
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def rows(self, b: Tensor) -> Found:
        """Products or factors of the weight; the bias has the sum over places."""
        b = b.flatten(2)
        k = self.x.ndim - 2
        spans = {key: (v,) * k if isinstance(v, int) else v for key, v in self.settings.items() if key != "groups"}
        shape = self.weight.shape
        layer: Any = SimpleNamespace(
            **spans,
            groups=self.settings["groups"],
            weight=bare(self.weight),
            kernel_size=tuple(shape[2:]),
            padding_mode="zeros",
            in_channels=shape[1] * self.settings["groups"],
            out_channels=shape[0],
        )
        rows = pulled(self.weight, _at_most(weight_rows(layer, self.x, b, ones=False), self.n))
        if self.bias is not None:
            rows += pulled(self.bias, _at_most(Dense(b.sum(2, dtype=rounding.working(b.dtype))), self.n))
        return rows


def _at_most(rows: Rows, n: int) -> Rows:
    return rows if rows.n == n else folded(rows, n)


def _positions(x: Tensor, n: int) -> Tensor:
    """(n, p), or (n, T, p) with everything between, pieces of an example side by side."""
    x = x.detach()
    if len(x) == n:
        return x if x.ndim == 2 else x.flatten(1, -2)
    return x.reshape(n, -1, x.shape[-1])
