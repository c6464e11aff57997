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

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from isthmus.base import validate
from isthmus.gradients.layers.folding import pieces_of
from isthmus.gradients.layers.shared import HANDLERS, Form, Shared, Trace, bare, mark
from isthmus.gradients.layers.uses import Convolved, Multiplied, Read, Spread, Use

ORDERED = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as", "reshape_as"}
"""Operations that leave the numbers of a value in their order."""
ALIKE = {"contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type", "type_as", "alias", "cuda", "cpu"}
"""Operations that leave shape and order as they are."""
SPREADS = {"expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave"}
"""Operations that repeat a value."""
FACTORS: dict[str, Callable[[float], float]] = {
    "add": lambda c: 1.0,
    "radd": lambda c: 1.0,
    "sub": lambda c: 1.0,
    "rsub": lambda c: -1.0,
    "mul": lambda c: c,
    "rmul": lambda c: c,
    "div": lambda c: 1.0 / c,
    "truediv": lambda c: 1.0 / c,
}
"""Arithmetic with a number c, and the factor it leaves."""
UNARY = set("exp tanh sigmoid relu gelu silu softplus neg abs sqrt square log sin cos".split())
BROADCAST = set(
    (
        "add radd iadd sub rsub isub mul rmul imul multiply div rdiv truediv rtruediv itruediv true_divide divide subtract "
        "pow rpow ipow float_power maximum minimum fmax fmin where lerp addcmul addcdiv atan2 hypot logaddexp masked_fill "
        "scaled_dot_product_attention bmm xlogy eq ne lt le gt ge"
    ).split()
)
"""Operations that take the numbers at one place of every tensor (for products of matrices: the matrices)."""
TURNS = {Tensor.T.__get__, Tensor.mT.__get__, torch.t, Tensor.t}


class Unseen(validate.InvalidInput):
    """An operation on a parameter that shows no per-example gradient; `leaf` is that parameter."""

    def __init__(self, value: Shared, why: str) -> None:
        self.leaf = value.trace.leaves[0]
        super().__init__(
            f"the parameter {value.trace.names} {why}: its gradient cannot be told example by example; freeze it "
            "(requires_grad_(False)), or use it in an operation with the examples in the first dimension"
        )


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

    def dim(self, ndim: int) -> int:
        """Where a tensor of so many dimensions keeps its examples."""
        return 0 if ndim < 3 else self.layers.batch_dim

    @property
    def layers(self) -> Any:
        """Whose taps they are."""
        return self.shared.trace.leaves[0].layers

    @property
    def count(self) -> int:
        """The entries that every tensor with examples has for them: n, or n times the pieces of an example."""
        counts = {x.shape[self.dim(x.ndim)] if x.ndim else -1 for x in self.examples}
        if len(counts) != 1:
            raise Unseen(self.shared, f"meets tensors with different numbers of examples in {self.name!r}")
        return counts.pop()

    def sound(self) -> bool:
        """Whether every tensor holds one entry for each example, or as many pieces of each."""
        k = pieces_of(self.count, self.n)
        if k > 1:
            self.layers.note_pieces(self.shared.trace.leaves[0].site, k)
        return bool(k) or self.count == self.n

    def tap(self, use: Use, output: Tensor, *seen: Tensor) -> Tensor:
        """The output with a tap for one use of shared values."""
        site = self.shared.trace.leaves[0].site
        tapped: Tensor = self.layers.tap(site, output, use.dim, seen, use.by_site)
        return tapped

    def named(self, *names: str) -> dict[str, Any]:
        """The arguments by name."""
        return dict.fromkeys(names) | dict(zip(names, self.args, strict=False)) | self.kwargs

    def copies(self, value: Shared, ndim: int) -> Tensor:
        """A copy of a value for every example, with a tap, to be used beside tensors of `ndim` dimensions."""
        dim = self.dim(ndim)
        place = dim - (ndim - value.ndim)
        lead, finish = value.shape[place] if place >= 0 else 1, None
        if lead != 1:
            base = value.trace.base
            if lead != self.count or base is None:
                where = f"{self.name!r}, where the {self.n} examples are"
                raise Unseen(value, f"is shared by all examples and has {lead} entries in {where}")
            value, finish = base, value.trace.finish
        blocks = value.ndim > ndim
        if blocks and self.count != self.n * value.shape[1]:
            raise Unseen(value, f"is repeated another number of times than there are examples for {self.name!r}")
        plain = bare(value)
        plain = plain.reshape(*[1] * (ndim - plain.ndim), *plain.shape)
        plain = plain.expand(*[self.n if i == dim else size for i, size in enumerate(plain.shape)])
        copies = self.tap(Spread(value, dim, self.n), plain)
        copies = copies if self.count == self.n or blocks else copies.repeat_interleave(self.count // self.n, dim)
        return copies if finish is None else finish(copies)


def operate(func: Any, args: Any, kwargs: Any) -> Any:
    """What every operation on shared values does."""
    name = getattr(func, "__name__", "").strip("_")
    if name == "get" and func not in TURNS:
        return _untouched(func, args, kwargs)
    tensors = list(_tensors((args, kwargs)))
    values = [x for x in tensors if isinstance(x, Shared)]
    leaf = values[0].trace.leaves[0]
    n = leaf.layers.batch if leaf.layers.batch is not None else leaf.n
    if not torch.is_grad_enabled() or n is None:
        return _untouched(func, args, kwargs)
    leaf.operations += 1
    plain = [(i, x) for i, x in enumerate(tensors) if not isinstance(x, Shared)]
    # only taps ask for gradients: what does holds examples, what does not may
    examples = [x for _, x in plain if x.requires_grad] or [x for i, x in plain if _holds(x, values[0], n, i)]
    if not examples:
        return _alone(func, name, args, kwargs, values, n)
    handler = OPERATIONS.get(name)
    operation = Operation(func, name, args, kwargs, values[0], n, examples)
    try:
        if handler is None or not operation.sound():
            raise Unseen(values[0], f"is used with examples in {name!r}")
        return handler(operation)
    except Unseen:
        if examples[0].requires_grad:
            raise
        return _alone(
            func, name, args, kwargs, values, n
        )  # none of examples, perhaps: whoever they are meets them later


def _holds(x: Tensor, value: Shared, n: int, place: int) -> bool:
    """Whether a tensor that asks for no gradient holds examples."""
    leaf = value.trace.leaves[0]
    layers, key = leaf.layers, (leaf.site.name, leaf.operations, place)
    size = x.shape[0 if x.ndim < 3 else layers.batch_dim] if x.ndim else 0
    if size != n:
        layers.shared_places.add(key)
        return False
    return key not in layers.shared_places and not layers.fixed(x)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for x in tree:
            yield from _tensors(x)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))


def _replaced(tree: Any, change: Callable[[Shared], Any]) -> Any:
    if isinstance(tree, Shared):
        return change(tree)
    if isinstance(tree, (tuple, list)):
        return type(tree)(_replaced(x, change) for x in tree) if type(tree) in (tuple, list) else tree
    return {key: _replaced(x, change) for key, x in tree.items()} if isinstance(tree, dict) else tree


def _untouched(func: Any, args: Any, kwargs: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


# ------------------------------------------------------------ without examples


def _alone(func: Any, name: str, args: Any, kwargs: Any, values: list[Shared], n: int) -> Any:
    """An operation without examples: what it gives is shared too."""
    changes = func.__name__.endswith("_") and not func.__name__.startswith("__") and name not in ("requires_grad",)
    if (changes or name in ("setitem", "iadd", "imul", "isub", "itruediv")) and isinstance(args[0], Shared):
        raise Unseen(values[0], f"is changed in place by {name!r}")
    result = _untouched(func, args, kwargs)
    leaves = tuple(dict.fromkeys(leaf for value in values for leaf in value.trace.leaves))

    def marked(x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return type(x)(marked(y) for y in x) if type(x) in (tuple, list) else tuple(marked(y) for y in x)
        if not isinstance(x, Tensor) or not x.requires_grad or isinstance(x, Shared):
            return x
        form = _form(func, name, args, kwargs, x) if len(values) == 1 else None
        base, finish = _base(func, name, args, kwargs, x) if len(values) == 1 else (None, None)
        return mark(x, Trace(leaves, form, base, finish))

    return marked(result)


def _form(func: Any, name: str, args: Any, kwargs: Any, result: Tensor) -> Form | None:
    """How the numbers of the result stand to those of the one parameter it comes from."""
    value = next((x for x in args if isinstance(x, Shared)), None)
    if value is None or value.trace.form is None:
        return None
    if name in ("embedding", "getitem", "index_select") and value.trace.form.plain:
        found = _places(func, name, args, kwargs, value)
        if found is not None:
            return Form(False, value.trace.form.factor, *found)
    if result.numel() != value.numel():
        return None
    form, same = value.trace.form, tuple(result.shape) == tuple(value.shape)
    shape = value.trace.leaves[0].value.shape
    if _turns(func, name, args) and value.ndim == 2:
        if form.index is not None:
            return None
        whole = tuple(shape if not form.turned else shape[::-1]) == tuple(value.shape)
        return replace(form, turned=not form.turned) if whole else None
    if name in ALIKE or name == "neg":
        return replace(form, factor=-form.factor if name == "neg" else form.factor)
    if name in ORDERED or (name == "getitem" and _whole(args[1])) or name in ("expand", "repeat", "broadcast_to"):
        return form if not form.turned or same else None
    number = [x for x in args if not isinstance(x, Shared)]
    if name in FACTORS and same and len(args) == 2 and not kwargs and isinstance(number[0], (int, float)):
        if name in ("div", "truediv") and not isinstance(args[0], Shared):
            return None
        return replace(form, factor=form.factor * FACTORS[name](float(number[0])))
    return None


def _places(func: Any, name: str, args: Any, kwargs: Any, table: Shared) -> tuple[Tensor, int | None] | None:
    """The places at which a table is read, and the one that gets no gradient."""
    if table.shape != table.trace.leaves[0].value.shape:
        return None
    if name == "embedding":
        named = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | kwargs
        index, padding = named["input"], named.get("padding_idx")
        return (index.flatten(), None if padding is None else padding % len(table)) if func is F.embedding else None
    index = args[1] if name == "getitem" else args[2] if len(args) > 2 and args[1] == 0 else None
    whole = isinstance(index, Tensor) and index.dtype not in (torch.bool, torch.uint8) and index.ndim > 0
    return (index.flatten(), None) if whole else None


def _turns(func: Any, name: str, args: Any) -> bool:
    if func in TURNS:
        return True
    if name in ("transpose", "swapaxes", "swapdims"):
        return args[1] % 2 != args[2] % 2 if len(args) == 3 else False
    sizes = args[1] if len(args) == 2 and isinstance(args[1], (tuple, list)) else args[1:]
    return name == "permute" and [x % 2 for x in sizes if isinstance(x, int)] == [1, 0]


def _whole(index: Any) -> bool:
    """Whether an index takes everything in its order."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(x is None or x is Ellipsis or (isinstance(x, slice) and x == slice(None)) for x in parts)


def _base(
    func: Any, name: str, args: Any, kwargs: Any, result: Tensor
) -> tuple[Shared | None, Callable[[Tensor], Tensor] | None]:
    """What a result repeats where examples would be, and what was done with the copies since."""
    value = next((x for x in args if isinstance(x, Shared)), None)
    if value is None or not result.ndim:
        return None, None
    trace, batch_dim = value.trace, value.trace.leaves[0].layers.batch_dim
    dim = 0 if result.ndim < 3 else batch_dim
    place = dim - (result.ndim - value.ndim)
    once = place < 0 or value.shape[place] == 1
    if name in SPREADS and once and trace.finish is None:
        sizes = [1 if i == dim else size for i, size in enumerate(result.shape)]
        one = result.narrow(dim, 0, 1) if result.shape[dim] else value.source.expand(sizes)
        form = trace.form if one.numel() == value.numel() else None
        return mark(one, Trace(trace.leaves, None if form is None or form.turned else form)), None

    def again(copies: Tensor) -> Tensor:
        done = copies if trace.finish is None else trace.finish(copies)
        made: Tensor = func(*(done if x is value else x for x in args), **kwargs)
        return made

    if trace.base is not None and result.shape[dim] == value.shape[place] and _keeps(func, name, args, result):
        return trace.base, again
    if name in BROADCAST and once and result.shape[dim] > 1:
        return mark(value.source.reshape(*[1] * (result.ndim - value.ndim), *value.shape), trace), again
    if name in ("repeat", "tile") and result.ndim == value.ndim and not batch_dim:
        if result.shape[1:] == value.shape[1:]:  # blocks of several entries, one block for every example
            return mark(value.source.unsqueeze(0), trace), lambda copies: copies.flatten(0, 1)
    return None, None


def _keeps(func: Any, name: str, args: Any, result: Tensor) -> bool:
    """Whether an operation leaves the first of several dimensions where and as it is."""
    if name in ALIKE or name in BROADCAST or name in ORDERED or name in UNARY:
        return True
    if name in ("transpose", "swapaxes", "swapdims"):
        return all(x % result.ndim for x in args[1:])
    if name == "permute":
        sizes = args[1] if isinstance(args[1], (tuple, list)) else args[1:]
        return bool(sizes[0] % result.ndim == 0)
    if name == "getitem":
        return isinstance(args[1], tuple) and isinstance(args[1][0], slice) and args[1][0] == slice(None)
    return func == Tensor.mT.__get__ and result.ndim > 2


# ------------------------------------------------------------ with examples


def _aligned(op: Operation) -> Any:
    """An operation that takes numbers at the same place of each tensor: every example has its own copy."""
    tensors = list(_tensors((op.args, op.kwargs)))
    ndim = max(x.ndim for x in tensors)
    if any(x.ndim != ndim for x in op.examples):
        raise Unseen(op.shared, f"has more dimensions than the examples it meets in {op.name!r}")
    if isinstance(op.args[0], Shared) and (op.func.__name__.endswith("_") and op.func.__name__ != f"__{op.name}__"):
        raise Unseen(op.shared, f"is changed in place by {op.name!r}")

    def change(value: Shared) -> Tensor:
        return op.copies(value, ndim)

    return op.func(*_replaced(op.args, change), **_replaced(op.kwargs, change))


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


def _linear(op: Operation) -> Tensor:
    named = op.named("input", "weight", "bias")
    x, weight, bias = named["input"], named["weight"], named["bias"]
    if isinstance(x, Shared) or not isinstance(weight, Shared):
        if isinstance(x, Shared):
            raise Unseen(op.shared, f"is the input of {op.name!r}")
        return F.linear(x, weight) + bias
    return _product(op, x, weight, bias, turned=False)


def _addmm(op: Operation) -> Tensor:
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
        return _product(op, left, right[:, None], None, turned=True).squeeze(-1)
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
    plain = bare(weight)
    out = F.linear(x, plain.mT if turned else plain, c)
    use = Multiplied(weight, turned, bias if isinstance(bias, Shared) else None, x.detach(), op.dim(x.ndim), op.n)
    return op.tap(use, out, x)


def _einsum(op: Operation) -> Tensor:
    """One product of examples and a matrix, or copies of the value for every example."""
    equation, *operands = op.args
    operands = list(operands[0]) if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    if not isinstance(equation, str) or "." in equation or "->" not in equation or op.layers.batch_dim:
        raise Unseen(op.shared, "is used with examples in an einsum of an unusual form")
    inputs, output = equation.replace(" ", "").split("->")
    terms = inputs.split(",")
    if len(terms) == 2:
        (mine, value), (other, x) = sorted(
            zip(terms, operands, strict=True), key=lambda p: not isinstance(p[1], Shared)
        )
        sums, new = set(mine) - set(output), set(mine) - set(other)
        rest = [c for c in other if c not in sums]
        plain = len(mine) == 2 and len(sums) == len(new) == 1 and sums <= set(other) and set(rest) < set(output)
        if plain and not isinstance(x, Shared) and other[0] not in mine and new <= set(output):
            (p,), (q,) = sums, new
            moved = x.permute([other.index(c) for c in [*rest, p]])
            found = moved @ value if mine == p + q else F.linear(moved, value)
            return found.permute([[*rest, q].index(c) for c in output])
    letters = {term[0] for term, x in zip(terms, operands, strict=True) if not isinstance(x, Shared) and x.ndim}
    shared = [(term, x) for term, x in zip(terms, operands, strict=True) if isinstance(x, Shared)]
    if len(letters) != 1 or any(letters & set(term) for term, _ in shared) or op.count != op.n:
        raise Unseen(op.shared, "is used with examples in an einsum of an unusual form")
    (first,) = letters
    terms = [first + term if isinstance(x, Shared) else term for term, x in zip(terms, operands, strict=True)]
    made = [op.copies(x, x.ndim + 1) if isinstance(x, Shared) else x for x in operands]
    return torch.einsum(f"{','.join(terms)}->{output}", *made)


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


def _convolution(op: Operation) -> Tensor:
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


def _normalised(op: Operation) -> Tensor:
    """Scale and shift of the normalised input, as operations of their own."""
    if op.name == "rms_norm":
        named = op.named("input", "normalized_shape", "weight", "eps")
        y = F.rms_norm(named["input"], named["normalized_shape"], None, named["eps"])
        return y if named["weight"] is None else y * named["weight"]
    named = op.named("input", "normalized_shape" if op.name == "layer_norm" else "num_groups", "weight", "bias", "eps")
    x, weight, bias = named["input"], named["weight"], named["bias"]
    eps = 1e-5 if named["eps"] is None else named["eps"]
    if isinstance(x, Shared):
        raise Unseen(op.shared, f"is the input of {op.name!r}")
    if op.name == "layer_norm":
        y = F.layer_norm(x, named["normalized_shape"], None, None, eps)
    else:
        y = F.group_norm(x, named["num_groups"], None, None, eps)
        weight, bias = (None if w is None else w.reshape(-1, *[1] * (x.ndim - 2)) for w in (weight, bias))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def _prelu(op: Operation) -> Tensor:
    x, weight = op.args
    if weight.numel() > 1 and x.ndim > 1:
        weight = weight.reshape(-1, *[1] * (x.ndim - 2))
    return torch.where(x > 0, x, weight * x)


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
OPERATIONS |= dict.fromkeys(("layer_norm", "rms_norm", "group_norm"), _normalised)
OPERATIONS |= {"linear": _linear, "addmm": _addmm, "einsum": _einsum, "embedding": _embedding, "prelu": _prelu}
OPERATIONS |= {"getitem": _getitem, "index_select": _index_select, "setitem": _setitem}
"""Operations that show what each example does with a shared value, by name."""

HANDLERS.append(operate)
