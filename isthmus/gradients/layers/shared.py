"""Values computed from parameters alone: tensors that know which parameters they come from.

While a layer without a rule of its own computes, its parameters are handed to it as shared tensors.  What is computed
from them and from constants is shared again; where one meets a tensor with examples, that operation is tapped
(`isthmus.gradients.layers.operations`), and the rows of the shared value are pulled back to the parameters:
for S = f(w) and the row s_i of S, the row of w is J_f' s_i.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from isthmus.base import validate
from isthmus.gradients.layers.embedding import _table_rows
from isthmus.gradients.layers.rules import AnyRule, Found
from isthmus.gradients.rounding import CHUNK_BYTES
from isthmus.gradients.rows import Dense, Lazy, Outer, Rows, row_spans

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers

HANDLERS: list[Callable[..., Any]] = []
"""What is called for every operation on a `_Shared` tensor: added by `operations`, which imports this file."""


class _Shared(Tensor):
    """A tensor that no example has touched, with a `_Trace` of where it comes from."""

    history: _Trace
    source: Tensor
    """The same as a plain tensor, with its history."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation is looked at."""
        return HANDLERS[0](func, args, kwargs or {})


@dataclass(eq=False)
class _SharedLeaf:
    """A parameter as one pass sees it."""

    rule: AnyRule
    suffix: str
    """The leaf of the layer that the parameter lies in."""
    attribute: str
    """What the layer calls it."""
    layers: Layers
    value: Tensor
    """The parameter's memory, asking for a gradient that nobody may send but `_pulled`."""
    n: int | None
    """The number of examples that the layer itself was given."""
    single: bool = False
    """Whether the layer is computed one example at a time."""
    operations: int = 0
    """How many operations were done with it: the place of an operation in the layer's code."""
    gate: list[bool] = field(default_factory=list)
    """Whether a gradient may come just now: not empty while `_pulled` sends one."""

    @property
    def name(self) -> str:
        """The name that the module gives the parameter."""
        return f"{self.rule.name}.{self.attribute}".strip(".")

    def laid(self, rows: Rows) -> Rows:
        """The rows of the parameter, its numbers in order, as rows of the leaf it lies in."""
        binding = self.rule.wanted[self.suffix]
        q, p = binding.shape
        if binding.bias is None:
            return _dense(rows) if isinstance(rows, Outer) and (rows.q, rows.p) != (q, p) else rows
        if self.rule.layer._parameters[self.attribute] is binding.bias:
            values = rows.dense()
            return Outer(values.new_zeros(rows.n, p - 1), values, ones=True)
        if isinstance(rows, Outer) and isinstance(rows.a, Tensor) and (rows.q, rows.p) == (q, p - 1):
            return Outer(F.pad(rows.a, (0, 1)), rows.b)
        return Dense(F.pad(rows.dense().view(rows.n, q, p - 1), (0, 1)).flatten(1))


SAME, TURNED, READ = "same", "turned", "read"


@dataclass(frozen=True, eq=False)
class _Trace:
    """Where a shared value comes from.

    `form` says how its numbers stand to those of its one parameter, where factors of rows can be kept: all of them in
    their order (`SAME`), a matrix laid on its side (`TURNED`), or a table read at the places `index` (`READ`; the place
    `padding` gets no gradient).  None is anything else, of any number of parameters.
    """

    leaves: tuple[_SharedLeaf, ...]
    form: str | None = None
    index: Tensor | None = None
    padding: int | None = None
    repeat: Callable[[int, int], Tensor] | None = None
    """The same made of a copy for each of n examples, where a constant has k entries for each and the value one."""


class _Unseen(validate.InvalidInput):
    """An operation on a parameter that shows no per-example gradient."""

    def __init__(self, value: _Shared, why: str) -> None:
        names = ", ".join(repr(leaf.name) for leaf in value.history.leaves)
        super().__init__(
            f"the parameter {names} {why}: its gradient cannot be told example by example; freeze it "
            "(requires_grad_(False)), or use it in an operation with the examples in the first dimension"
        )


def _open_leaves(
    rule: AnyRule, layers: Layers, n: int | None, only: Set[int] | None = None, single: bool = False
) -> dict[str, _Shared]:
    """The parameters of a layer (those with the ids `only`) as shared tensors, by attribute."""
    opened = {}
    for attribute, parameter in rule.layer._parameters.items():
        if parameter is None or (only is not None and id(parameter) not in only):
            continue
        for suffix, binding in rule.wanted.items():
            if binding.rows is None and any(parameter is p for p in binding.parameters):
                opened[attribute] = _open(_SharedLeaf(rule, suffix, attribute, layers, parameter.detach(), n, single))
    return opened


def _open(leaf: _SharedLeaf) -> _Shared:
    """A parameter as a shared tensor; a gradient that reaches it round the taps is refused."""

    gate, name = leaf.gate, leaf.name  # and not the leaf, which holds the tensor that holds the hook

    def touched(gradient: Tensor) -> None:
        if not gate:
            raise validate.InvalidInput(
                f"the parameter {name!r} is used by an operation that shows no per-example gradient (with a "
                "tensor that has not one entry for every example, in a function written with torch.autograd.Function, "
                "in a scripted function, or in the loss): use torch's own operations on it with the examples in the "
                "first dimension, or freeze it"
            )

    leaf.value.requires_grad_(True).register_hook(touched)
    return _mark(leaf.value, _Trace((leaf,), SAME))


@contextmanager
def _placed(layer: nn.Module, values: Mapping[str, object]) -> Iterator[None]:
    """Attributes that stand before a module's parameters meanwhile; None takes one away."""
    shelf = layer.__dict__
    before = {name: shelf.pop(name, None) for name in values}
    shelf.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            shelf.pop(name, None)
            if value is not None:
                shelf[name] = value


def _mark(value: Tensor, history: _Trace) -> _Shared:
    """The same memory and history as a shared tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        shared: _Shared = value.as_subclass(_Shared)
    shared.history, shared.source = history, value
    return shared


def _bare(value: _Shared) -> Tensor:
    """The numbers alone."""
    return value.source.detach()


def _pulled(value: _Shared, rows: Rows) -> Found:
    """The rows of every parameter behind a shared value, from the rows of that value (its numbers in order)."""
    trace = value.history
    if trace.form is None:
        return [(leaf.rule, leaf.suffix, leaf.laid(_back(value, leaf, rows))) for leaf in trace.leaves]
    (leaf,) = trace.leaves
    if trace.form == TURNED and isinstance(rows, Outer) and isinstance(rows.a, Tensor):
        rows = Outer(rows.b, rows.a)
    elif trace.form == TURNED:
        rows = Dense(rows.dense().view(rows.n, *value.shape).transpose(1, 2).reshape(rows.n, rows.d))
    elif trace.index is not None:
        index = trace.index.expand(rows.n, -1)
        vocabulary = leaf.value.shape[0]
        values = rows.dense().reshape(*index.shape, leaf.value.numel() // max(1, vocabulary))
        rows = _table_rows(index, values, vocabulary, trace.padding)
    return [(leaf.rule, leaf.suffix, leaf.laid(rows))]


def _dense(rows: Rows) -> Rows:
    """Factors multiplied out, a chunk at a time where they are large."""
    if rows.n * rows.d * rows.dtype.itemsize <= CHUNK_BYTES:
        return Dense(rows.dense())
    return Lazy(lambda lo, hi: rows.part(lo, hi).dense(), rows.n, rows.d, dtype=rows.dtype, device=rows.device)


def _back(value: _Shared, leaf: _SharedLeaf, rows: Rows) -> Rows:
    """Rows of one parameter through whatever was computed of it, by autograd, a chunk of examples at a time."""
    plain, own = value.source, leaf.value

    def chunk(lo: int, hi: int) -> Tensor:
        pull = rows.part(lo, hi).dense().to(plain.dtype).view(hi - lo, *plain.shape)
        for each in value.history.leaves:
            each.gate.append(True)
        options = {"retain_graph": True, "allow_unused": True, "is_grads_batched": True}
        try:
            (gradient,) = torch.autograd.grad(plain, [own], pull, **options)
        finally:
            for each in value.history.leaves:
                each.gate.pop()
        if gradient is None:
            return own.new_zeros(hi - lo, own.numel())
        return gradient.detach().reshape(hi - lo, -1)

    row_bytes = own.numel() * own.element_size()
    if rows.n * row_bytes > CHUNK_BYTES:
        return Lazy(chunk, rows.n, own.numel(), dtype=own.dtype, device=own.device)
    spans = row_spans(rows.n, row_bytes + plain.numel() * plain.element_size())
    parts = [chunk(lo, hi) for lo, hi in spans]
    return Dense(torch.cat([own.detach().new_zeros(0, own.numel()), *parts]))
