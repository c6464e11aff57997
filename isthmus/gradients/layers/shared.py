"""Values computed from parameters alone: tensors that know which parameters they come from.

While a layer without a rule of its own computes, its parameters are handed to it as `Shared` tensors.  What is computed
from them and from constants is `Shared` again; where one meets a tensor with examples, that operation is tapped
(`isthmus.gradients.layers.operations`), and the rows of the shared value are pulled back to the parameters:
for S = f(w) and the row s_i of S, the row of w is J_f' s_i.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.gradients.base import Dense, Lazy, Rows, row_spans
from isthmus.gradients.layers.rules import Site, Taps
from isthmus.gradients.outer import Outer
from isthmus.gradients.rounding import CHUNK_BYTES

HANDLERS: list[Callable[..., Any]] = []
"""What is called for every operation on a `Shared` tensor: added by `operations`, which imports this file."""


class Shared(Tensor):
    """A tensor that no example has touched, with a `Trace` of where it comes from."""

    trace: Trace
    source: Tensor
    """The same as a plain tensor, with its history."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation is looked at."""
        return HANDLERS[0](func, args, kwargs or {})


@dataclass(eq=False)
class Leaf:
    """A parameter as one pass of its layer sees it."""

    site: Site
    suffix: str
    layers: Taps
    value: Tensor
    """The parameter's memory, asking for a gradient that nobody may send but `pulled`."""
    n: int | None
    """The number of examples that the layer itself was given."""
    operations: int = 0
    """How many operations its layer has done: the place of an operation in the layer's code."""
    pulling: bool = False

    @property
    def name(self) -> str:
        """The name that the module gives the parameter."""
        return f"{self.site.name}.{self.suffix}".strip(".")


@dataclass(frozen=True, eq=False)
class Form:
    """A value that holds the numbers of one parameter, times a factor and plus constants, in order or transposed."""

    turned: bool = False
    factor: float = 1.0


@dataclass(frozen=True, eq=False)
class Trace:
    """Where a shared value comes from."""

    leaves: tuple[Leaf, ...]
    form: Form | None = None
    base: Shared | None = None
    """One copy of a value that was repeated along the dimension of the examples."""
    names: str = field(init=False)
    """The parameters, for messages."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "names", ", ".join(repr(leaf.name) for leaf in self.leaves))


def open_leaf(site: Site, suffix: str, layers: Taps, n: int | None) -> Shared:
    """A parameter of a site as a shared tensor; a gradient that reaches it round the taps is refused."""
    value = site.wanted[suffix].weight.detach().requires_grad_(True)
    leaf = Leaf(site, suffix, layers, value, n)

    def touched(gradient: Tensor) -> None:
        if not leaf.pulling:
            raise validate.InvalidInput(
                f"the parameter {leaf.name!r} is used by an operation that shows no per-example gradient (a function "
                "written with torch.autograd.Function, a scripted function, or a loss that reads it): use torch's own "
                "operations on it, or freeze it"
            )

    value.register_hook(touched)
    return mark(value, Trace((leaf,), Form()))


def mark(value: Tensor, trace: Trace) -> Shared:
    """The same memory and history as a shared tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        shared: Shared = value.as_subclass(Shared)
    shared.trace, shared.source = trace, value
    return shared


def bare(value: Shared) -> Tensor:
    """The numbers alone."""
    return value.source.detach()


def pulled(value: Shared, rows: Rows) -> list[tuple[Leaf, Rows]]:
    """The rows of every parameter behind a shared value, from the rows of that value (its numbers in order)."""
    trace, form = value.trace, value.trace.form
    if form is not None:
        (leaf,) = trace.leaves
        rows = rows if form.factor == 1.0 else rows.scaled(form.factor)
        return [(leaf, _turned(rows, tuple(value.shape)) if form.turned else _laid(rows, leaf))]
    return _back(value, rows)


def matrix_rows(value: Shared, a: Tensor, b: Tensor) -> list[tuple[Leaf, Rows]]:
    """The same for rows sum_t b_t a_t' of a matrix: factors stay factors where the value is the parameter itself.

    a is (n, p) or (n, T, p), b the same with q; the value is q x p.
    """
    form = value.trace.form
    if form is None:
        return _back(value, Outer(a, b).compact())
    if form.turned:
        a, b = b, a
    rows: Rows = Outer(a, b).compact()
    rows = rows if form.factor == 1.0 else rows.scaled(form.factor)
    (leaf,) = value.trace.leaves
    return [(leaf, _laid(rows, leaf))]


def _laid(rows: Rows, leaf: Leaf) -> Rows:
    """Factors of another matrix than the leaf has are multiplied out, the numbers in the same order."""
    other = isinstance(rows, Outer) and (rows.q, rows.p) != leaf.site.wanted[leaf.suffix].shape
    return Lazy(lambda lo, hi: rows.part(lo, hi).dense(), rows.n, rows.d, dtype=rows.dtype, device=rows.device) if (
        other and rows.n * rows.d * rows.dtype.itemsize > CHUNK_BYTES
    ) else (Dense(rows.dense()) if other else rows)


def _turned(rows: Rows, shape: Sequence[int]) -> Rows:
    """The rows of the transposed matrix."""
    return Dense(rows.dense().view(rows.n, *shape).transpose(1, 2).reshape(rows.n, -1))


def _back(value: Shared, rows: Rows) -> list[tuple[Leaf, Rows]]:
    """Through whatever was computed, by autograd, a chunk of examples at a time."""
    leaves, plain = value.trace.leaves, value.source

    def chunk(some: Sequence[Leaf], lo: int, hi: int) -> list[Tensor]:
        pull = rows.part(lo, hi).dense().to(plain.dtype).view(hi - lo, *plain.shape)
        for leaf in leaves:
            leaf.pulling = True
        try:
            found = torch.autograd.grad(
                plain, [leaf.value for leaf in some], pull, retain_graph=True, allow_unused=True, is_grads_batched=True
            )
        finally:
            for leaf in leaves:
                leaf.pulling = False
        pairs = zip(some, found, strict=True)
        return [
            leaf.value.new_zeros(hi - lo, leaf.value.numel()) if x is None else x.detach().reshape(hi - lo, -1)
            for leaf, x in pairs
        ]

    size = max(1, plain.element_size())
    large = [leaf for leaf in leaves if rows.n * leaf.value.numel() * size > CHUNK_BYTES]
    small = [leaf for leaf in leaves if leaf not in large]
    result: list[tuple[Leaf, Rows]] = []
    for leaf in large:
        made = Lazy(
            lambda lo, hi, leaf=leaf: chunk([leaf], lo, hi)[0],  # type: ignore[misc]
            rows.n,
            leaf.value.numel(),
            dtype=leaf.value.dtype,
            device=leaf.value.device,
        )
        result.append((leaf, made))
    if small:
        width = size * (plain.numel() + sum(leaf.value.numel() for leaf in small))
        parts = [chunk(small, lo, hi) for lo, hi in row_spans(rows.n, width)] or [chunk(small, 0, 0)]
        result += [(leaf, Dense(torch.cat([part[i] for part in parts]))) for i, leaf in enumerate(small)]
    return result
