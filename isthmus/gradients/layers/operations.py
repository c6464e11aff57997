"""Taps at operations: where a value computed from parameters meets a tensor with examples.

    x W', x W, F.linear, addmm, einsum      sum_t b_t a_t', factors of the input and the output's gradient
    F.embedding, W[k]                       sum_t e_(k_t) b_t'
    F.conv1d/2d/3d                          the same as a linear layer over patches
    x * w, x + w, cat, where, attention...  every example has its own copy of w, without memory: the gradient of the
                                            copies is the rows
    F.layer_norm, rms_norm, group_norm      as a scale and a shift of the normalised input

A tensor that asks for a gradient holds examples: only taps ask.  One that does not holds them if it has one entry for
each and is no buffer, unless the same operation was seen with another number of entries before: then all examples share
it.  Any other operation is refused (`Unseen`), and the layer is computed one example at a time instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.nn import functional as F

from isthmus.gradients.layers.folding import pieces_of
from isthmus.gradients.layers.forms import BROADCAST, TURNS, base_of, form_of
from isthmus.gradients.layers.rules import as_multiplied
from isthmus.gradients.layers.shared import HANDLERS, Base, Shared, Trace, Unseen, bare, mark
from isthmus.gradients.layers.single import NORMS, by_name, einsum_product, normalised, replaced, single, tensors_in
from isthmus.gradients.layers.uses import Convolved, Multiplied, Read, Spread, Use


@dataclass(eq=False)
class Operation:
    """One call of an operation on shared values and examples."""

    func: Callable[..., Any]
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shared: Shared
    """One of the shared values, for messages and for whoever listens."""
    n: int
    examples: list[Tensor]
    count: int = 0
    """The entries that every tensor with examples has for them: n, or n times the pieces of an example."""

    def __post_init__(self) -> None:
        counts = {x.shape[self.dim(x.ndim)] if x.ndim else -1 for x in self.examples} or {self.n}
        if len(counts) != 1:
            raise Unseen(self.shared, f"meets tensors with different numbers of examples in {self.name!r}")
        self.count = counts.pop()

    def dim(self, ndim: int) -> int:
        """Where a tensor of so many dimensions keeps its examples."""
        return 0 if ndim < 3 else self.layers.batch_dim

    @property
    def layers(self) -> Any:
        """Whose taps they are."""
        return self.shared.history.leaves[0].layers

    def sound(self) -> bool:
        """Whether every tensor holds one entry for each example, or as many pieces of each."""
        k = pieces_of(self.count, self.n)
        if k > 1:
            self.layers.note_pieces(self.shared.history.leaves[0].site, k)
        return bool(k) or self.count == self.n

    def tap(self, use: Use, output: Tensor, *inputs: Tensor) -> Tensor:
        """The output with a tap for one use of shared values."""
        site = self.shared.history.leaves[0].site
        tapped: Tensor = self.layers.tap(site, output, use.dim, inputs, use.by_site, use.feeds)
        return tapped

    def named(self, *names: str) -> dict[str, Any]:
        """The arguments by name."""
        return by_name(names, self.args, self.kwargs)

    def copies(self, value: Shared, ndim: int) -> Tensor:
        """A copy of a value for every example, with a tap, to be used beside tensors of `ndim` dimensions."""
        dim = self.dim(ndim)
        place = dim - (ndim - value.ndim)
        lead = value.shape[place] if place >= 0 else 1
        if lead == 1:
            base = Base(value)
            plain = bare(value).reshape(*[1] * (ndim - value.ndim), *value.shape)
        elif value.history.base is None or lead != self.count:
            where = f"{self.name!r}, where the {self.n} examples are"
            raise Unseen(value, f"is shared by all examples and has {lead} entries in {where}")
        else:
            base = value.history.base
            plain = bare(base.value)
            dim = self.dim(plain.ndim)
        if base.blocks and self.count != self.n * plain.shape[1]:
            raise Unseen(value, f"is repeated another number of times than there are examples for {self.name!r}")
        plain = plain.expand(*[self.n if i == dim else size for i, size in enumerate(plain.shape)])
        copies = self.tap(Spread(base.value, dim, self.n), plain)
        if self.count != self.n and not base.blocks:
            copies = copies.repeat_interleave(self.count // self.n, dim)
        return copies if base.finish is None else base.finish(copies)


def operate(func: Any, args: Any, kwargs: Any) -> Any:
    """What every operation on shared values does."""
    name = getattr(func, "__name__", "").strip("_")
    if name == "get" and func not in TURNS:
        return _untouched(func, args, kwargs)
    tensors = list(tensors_in((args, kwargs)))
    values = [x for x in tensors if isinstance(x, Shared)]
    if not torch.is_grad_enabled():
        return _untouched(func, args, kwargs)
    if any(is_batchedtensor(x) for x in tensors):
        return single(func, name, args, kwargs, values)
    leaf = values[0].history.leaves[0]
    if name in LIKE and not isinstance(args[0], Shared):
        return func(*replaced(args, bare), **replaced(kwargs, bare))
    if leaf.single or name in LIKE:
        return _alone(func, name, args, kwargs, values)
    n = leaf.layers.batch if leaf.layers.batch is not None else leaf.n
    if n is None:
        return _untouched(func, args, kwargs)
    leaf.operations += 1
    plain = [(i, x) for i, x in enumerate(tensors) if not isinstance(x, Shared)]
    # only taps ask for gradients: what does holds examples, what does not may
    examples = [x for _, x in plain if x.requires_grad] or [x for i, x in plain if _holds(x, values[0], n, i)]
    if not examples:
        return _alone(func, name, args, kwargs, values)
    handler = OPERATIONS.get(name)
    try:
        operation = Operation(func, name, args, kwargs, values[0], n, examples)
        if handler is None or not operation.sound():
            raise Unseen(values[0], f"is used with examples in {name!r}")
        return handler(operation)
    except Unseen:
        if examples[0].requires_grad:
            raise
        return _alone(func, name, args, kwargs, values)  # perhaps none holds examples: those are met later


def own_copies(value: Any, n: int) -> Any:
    """A shared value that is repeated for n examples, as a tensor of examples; anything else as it is."""
    if not isinstance(value, Shared) or value.history.base is None or not value.ndim:
        return value
    operation = Operation(Tensor.expand, "the call of a layer", (), {}, value, n, [])
    return operation.copies(value, value.ndim) if value.shape[operation.dim(value.ndim)] == n else value


def _holds(x: Tensor, value: Shared, n: int, place: int) -> bool:
    """Whether a tensor that asks for no gradient holds examples."""
    leaf = value.history.leaves[0]
    layers, key = leaf.layers, (leaf.site.name, leaf.operations, place)
    size = x.shape[0 if x.ndim < 3 else layers.batch_dim] if x.ndim else 0
    if size != n:
        layers.shared_places.add(key)
        return False
    if key in layers.shared_places or key in layers.example_places:
        return key not in layers.shared_places
    # places 0, 1, 2, ... are positions, not one place for each example
    counted = x.ndim == 1 and not x.is_floating_point() and torch.equal(x, torch.arange(n, device=x.device))
    (layers.shared_places if counted or layers.fixed(x) else layers.example_places).add(key)
    return key in layers.example_places


def _untouched(func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _alone(func: Any, name: str, args: Any, kwargs: Any, values: list[Shared]) -> Any:
    """An operation without examples: what it gives is shared too."""
    changes = func.__name__.endswith("_") and not func.__name__.startswith("__") and name not in ("requires_grad",)
    if (changes or name in ("setitem", "iadd", "imul", "isub", "itruediv")) and isinstance(args[0], Shared):
        raise Unseen(values[0], f"is changed in place by {name!r}")
    return _marked(_untouched(func, args, kwargs), func, name, args, kwargs, values)


def _marked(x: Any, func: Any, name: str, args: Any, kwargs: Any, values: list[Shared]) -> Any:
    """Results of an operation as shared values (no inner function: one that calls itself would keep its tensors)."""
    if isinstance(x, (tuple, list)):
        parts = [_marked(y, func, name, args, kwargs, values) for y in x]
        return type(x)(parts)  # torch's own tuples too
    if not isinstance(x, Tensor) or not x.requires_grad or isinstance(x, Shared):
        return x
    leaves = tuple(dict.fromkeys(leaf for value in values for leaf in value.history.leaves))
    form = form_of(func, name, args, kwargs, x) if len(values) == 1 else None
    base = base_of(func, name, args, kwargs, x) if len(values) == 1 else None
    return mark(x, Trace(leaves, form, base))


# ------------------------------------------------------------ with examples


def _aligned(op: Operation) -> Any:
    """An operation that takes numbers at the same place of each tensor: every example has its own copy."""
    tensors = list(tensors_in((op.args, op.kwargs)))
    ndim = max(x.ndim for x in tensors)
    if any(x.ndim != ndim for x in op.examples):
        raise Unseen(op.shared, f"has more dimensions than the examples it meets in {op.name!r}")
    if isinstance(op.args[0], Shared) and (op.func.__name__.endswith("_") and op.func.__name__ != f"__{op.name}__"):
        raise Unseen(op.shared, f"is changed in place by {op.name!r}")

    def change(value: Shared) -> Tensor:
        return op.copies(value, ndim)

    return op.func(*replaced(op.args, change), **replaced(op.kwargs, change))


def _joined(op: Operation) -> Any:
    """cat and stack, along another dimension than that of the examples."""
    named = op.named("tensors", "dim")
    tensors, along = named["tensors"], named.get("axis", named["dim"]) or 0
    ndim = tensors[0].ndim
    along = along % (ndim + (op.name == "stack"))
    where = op.dim(ndim)
    if any(x.ndim != ndim for x in tensors) or along == where or (op.name == "stack" and along < where):
        raise Unseen(op.shared, f"is put beside other examples by {op.name!r}")
    return op.func([op.copies(x, ndim) if isinstance(x, Shared) else x for x in tensors], along)


def _linear(op: Operation) -> Any:
    named = op.named("input", "weight", "bias")
    x, weight, bias = named["input"], named["weight"], named["bias"]
    if isinstance(x, Shared) or not isinstance(weight, Shared):
        if isinstance(x, Shared):
            raise Unseen(op.shared, f"is the input of {op.name!r}")
        return F.linear(x, weight) + bias
    return _product(op, x, weight, bias, turned=False)


def _addmm(op: Operation) -> Any:
    named = op.named("input", "mat1", "mat2")
    if named.get("beta", 1) != 1 or named.get("alpha", 1) != 1 or isinstance(named["mat1"], Shared):
        raise Unseen(op.shared, f"is used with examples in {op.name!r}")
    if isinstance(named["mat2"], Shared):
        return _product(op, named["mat1"], named["mat2"], named["input"], turned=True)
    return named["mat1"] @ named["mat2"] + named["input"]


def _matmul(op: Operation) -> Any:
    left, right = op.args[:2] if len(op.args) > 1 else (op.args[0], next(iter(op.kwargs.values())))
    if op.name == "rmatmul":
        left, right = right, left
    if isinstance(left, Shared) and isinstance(right, Shared):
        raise Unseen(op.shared, f"is used with examples in {op.name!r}")
    if isinstance(right, Shared) and right.ndim == 2:
        return _product(op, left, right, None, turned=True)
    if isinstance(right, Shared) and right.ndim == 1:
        column: Any = right[:, None]
        return _product(op, left, column, None, turned=True).squeeze(-1)
    if isinstance(left, Shared) and left.ndim == 2 and right.ndim >= 3:
        return _product(op, right.mT, left, None, turned=False).mT
    if left.ndim < 3 or right.ndim < 3:
        raise Unseen(op.shared, f"is used with examples in {op.name!r}")
    return _aligned(op)


def _product(op: Operation, x: Tensor, weight: Shared, bias: Tensor | None, turned: bool) -> Tensor:
    """x W' + c, or x W + c where `turned`."""
    if x.ndim < 2 or bias is not None and bias.ndim > 1:
        raise Unseen(op.shared, f"meets an example without a dimension of its own in {op.name!r}")
    c = bare(bias) if isinstance(bias, Shared) else bias
    x, plain = as_multiplied(x), bare(weight)
    out = F.linear(x, plain.mT if turned else plain, c)
    use = Multiplied(weight, turned, bias if isinstance(bias, Shared) else None, x.detach(), op.dim(x.ndim), op.n)
    return op.tap(use, out, x)


def _einsum(op: Operation) -> Tensor:
    """One product of examples and a matrix, or copies of the value for every example."""
    product = einsum_product(op.args)
    if product is not None:
        return product
    equation, *operands = op.args
    if not isinstance(equation, str) or "." in equation or "->" not in equation or op.layers.batch_dim:
        raise Unseen(op.shared, "is used with examples in an einsum of an unusual form")
    inputs, output = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    letters = {term[0] for term, x in zip(terms, operands, strict=True) if not isinstance(x, Shared) and x.ndim}
    shared = [(term, x) for term, x in zip(terms, operands, strict=True) if isinstance(x, Shared)]
    if len(letters) != 1 or any(letters & set(term) for term, _ in shared) or op.count != op.n:
        raise Unseen(op.shared, "is used with examples in an einsum of an unusual form")
    (first,) = letters
    terms = [first + term if isinstance(x, Shared) else term for term, x in zip(terms, operands, strict=True)]
    copies = [op.copies(x, x.ndim + 1) if isinstance(x, Shared) else x for x in operands]
    return torch.einsum(f"{','.join(terms)}->{output}", *copies)


def _embedding(op: Operation) -> Tensor:
    named = op.named("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    index, table, padding = named["input"], named["weight"], named["padding_idx"]
    if not isinstance(table, Shared) or isinstance(index, Shared):
        # torch.embedding has the table first
        index, table = table, index
        padding = -1 if padding is None else padding
    for setting in ("max_norm", "scale_grad_by_freq", "sparse"):
        if named[setting] and op.func is F.embedding:
            raise Unseen(table, f"is read by an embedding with {setting}")
    padding = None if padding is None or (padding < 0 and op.func is not F.embedding) else padding
    return _read(op, table, index, None if padding is None else padding % table.shape[0])


def _getitem(op: Operation) -> Tensor:
    table, index = op.args
    if not isinstance(table, Shared) or not isinstance(index, Tensor) or index.dtype in (torch.bool, torch.uint8):
        raise Unseen(op.shared, "is read at places that no tensor of integers names")
    return _read(op, table, index, None)


def _index_select(op: Operation) -> Tensor:
    named = op.named("input", "dim", "index")
    if not isinstance(named["input"], Shared) or named["dim"] % named["input"].ndim != 0:
        raise Unseen(op.shared, f"is used with examples in {op.name!r}")
    return _read(op, named["input"], named["index"], None)


def _read(op: Operation, table: Shared, index: Tensor, padding: int | None) -> Tensor:
    dim = 0 if index.ndim < 2 else op.layers.batch_dim
    if index.shape[dim] != op.n:
        raise Unseen(table, "is read at places that are not one row for every example")
    return op.tap(Read(table, index, dim, padding, op.n), bare(table)[index], index)


def _convolution(op: Operation) -> Any:
    named = op.named("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    x, weight, bias = named["input"], named["weight"], named["bias"]
    if isinstance(x, Shared) or x.ndim != int(op.name[4]) + 2:
        raise Unseen(op.shared, f"is the input of {op.name!r}")
    if not isinstance(weight, Shared):
        column = bias.reshape(-1, *[1] * (x.ndim - 2))
        return op.func(x, weight, None, *op.args[3:], **{k: v for k, v in op.kwargs.items() if k not in NAMES}) + column
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    settings = {key: value if named[key] is None else named[key] for key, value in defaults.items()}
    c = bias if isinstance(bias, Shared) else None
    out = op.func(x, bare(weight), bare(c) if c is not None else bias, **settings)
    return op.tap(Convolved(weight, c, x.detach(), settings, op.n), out, x)


NAMES = ("input", "weight", "bias")
LIKE = {"expand_as", "view_as", "reshape_as", "type_as", "to"}
"""Operations that take only shape or kind of another tensor."""


def _normalised(op: Operation) -> Tensor:
    result = normalised(op.name, op.args, op.kwargs)
    if result is None:
        raise Unseen(op.shared, f"is the input of {op.name!r}")
    return result


def _prelu(op: Operation) -> Tensor:
    x, weight = op.args
    if weight.numel() > 1 and x.ndim > 1:
        weight = weight.reshape(-1, *[1] * (x.ndim - 2))
    return torch.where(x > 0, x, weight * x)


def _masked_fill(op: Operation) -> Any:
    x, mask, value = op.args
    return torch.where(mask, value, x)


def _setitem(op: Operation) -> None:
    x, index, value = op.args
    first = index[0] if isinstance(index, tuple) else index
    if not isinstance(value, Shared) or not (isinstance(first, slice) and first == slice(None)) or op.layers.batch_dim:
        raise Unseen(op.shared, "is written into some examples only")
    with torch.no_grad():
        ndim = x[index].ndim
    x[index] = op.copies(value, ndim)


OPERATIONS: dict[str, Callable[[Operation], Any]] = dict.fromkeys(BROADCAST, _aligned)
OPERATIONS |= dict.fromkeys(("cat", "concat", "concatenate", "stack"), _joined)
OPERATIONS |= dict.fromkeys(("matmul", "rmatmul", "mm"), _matmul)
OPERATIONS |= dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution)
OPERATIONS |= dict.fromkeys(NORMS, _normalised)
OPERATIONS |= {"linear": _linear, "addmm": _addmm, "einsum": _einsum, "embedding": _embedding, "prelu": _prelu}
OPERATIONS |= {"masked_fill": _masked_fill, "getitem": _getitem, "index_select": _index_select, "setitem": _setitem}
"""Operations that show what each example does with a shared value, by name."""

HANDLERS.append(operate)
