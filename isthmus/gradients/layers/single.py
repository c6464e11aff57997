"""Operations on shared values in a layer that is computed one example at a time (`torch.func.vmap`).

There a tensor holds examples if and only if it is batched, whatever its shape: nothing has to be guessed.  Products,
tables and convolutions are taken below vmap, on the whole batch, with a tap that keeps their factors; for every other
operation an example has its own copy of the value, which takes no memory, and whose gradient is the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as functorch
from torch._C._functorch import is_batchedtensor
from torch.nn import functional as F

from isthmus.gradients.layers.rules import as_multiplied
from isthmus.gradients.layers.shared import Shared, Unseen, bare
from isthmus.gradients.layers.uses import Convolved, Multiplied, Read, Spread, Use
from isthmus.gradients.rounding import CHUNK_BYTES

Below = Callable[[int, list[Tensor]], Tensor]
"""What is computed of n examples, from tensors that have them in front."""


def single(func: Any, name: str, args: Any, kwargs: Any, values: list[Shared]) -> Any:
    """An operation on shared values and single examples."""
    handler = FACTORED.get(name)
    answer = None if handler is None else handler(func, args, kwargs)
    if answer is not None:
        return answer
    if isinstance(args[0], Shared) and (name == "setitem" or _in_place(func)):
        raise Unseen(values[0], f"is changed in place by {name!r}")
    like = next(x for x in tensors_in((args, kwargs)) if is_batchedtensor(x))

    def change(value: Shared) -> Tensor:
        return _copies(value, like)

    return func(*replaced(args, change), **replaced(kwargs, change))


def _in_place(func: Any) -> bool:
    name: str = func.__name__
    return name.startswith("__i") if name.startswith("__") else name.endswith("_")


def _copies(value: Shared, like: Tensor) -> Tensor:
    """A copy of a value for every example, with a tap."""

    def below(n: int, _: list[Tensor]) -> Tensor:
        plain = bare(value)
        if n * plain.numel() * plain.element_size() > CHUNK_BYTES:
            raise Unseen(value, "has more numbers than fit once for every example")
        return _tap(Spread(value, 0, n), plain.expand(n, *plain.shape))

    return _lower(below, like)


def _lower(below: Below, *tensors: Tensor) -> Tensor:
    """What is computed of the whole batch, below vmap, as a tensor of single examples."""
    level = next(functorch.maybe_get_level(x) for x in tensors if is_batchedtensor(x))
    pairs = [functorch._unwrap_batched(x, level) for x in tensors]
    if any(is_batchedtensor(x) for x, _ in pairs):
        raise RuntimeError("a parameter is used inside another vmap")
    n = next(x.shape[dim] for x, dim in pairs if dim is not None)
    whole = [x.expand(n, *x.shape) if dim is None else x.movedim(dim, 0) for x, dim in pairs]
    saved = functorch.pop_dynamic_layer_stack()
    try:
        out = below(n, whole)
    finally:
        functorch.push_dynamic_layer_stack(saved)
    lowered: Tensor = functorch._add_batch_dim(out, 0, level)
    return lowered


def _tap(use: Use, output: Tensor, *inputs: Tensor) -> Tensor:
    leaf = use.values[0].history.leaves[0]
    return leaf.layers.tap(leaf.site, output, 0, inputs, use.by_site, use.feeds)


def _linear(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    named = by_name(("input", "weight", "bias"), args, kwargs)
    x, weight, bias = named["input"], named["weight"], named["bias"]
    if not isinstance(weight, Shared) or weight.ndim != 2 or not is_batchedtensor(x):
        return None if not isinstance(bias, Shared) or isinstance(weight, Shared) else F.linear(x, weight) + bias
    return _product(x, weight, bias, turned=False)


def _addmm(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    named = by_name(("input", "mat1", "mat2"), args, kwargs)
    if named.get("beta", 1) != 1 or named.get("alpha", 1) != 1:
        return None
    if isinstance(named["mat2"], Shared) and is_batchedtensor(named["mat1"]):
        return _product(named["mat1"], named["mat2"], named["input"], turned=True)
    total: Tensor = named["mat1"] @ named["mat2"] + named["input"]
    return total


def _matmul(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    if len(args) != 2:
        return None
    left, right = args if func.__name__ != "__rmatmul__" else reversed(args)
    if isinstance(right, Shared) and is_batchedtensor(left):
        if right.ndim == 2:
            return _product(left, right, None, turned=True)
        column: Any = right[:, None] if right.ndim == 1 else None
        return None if column is None else _product(left, column, None, turned=True).squeeze(-1)
    if isinstance(left, Shared) and left.ndim == 2 and right.ndim >= 2 and is_batchedtensor(right):
        return _product(right.mT, left, None, turned=False).mT
    return None


def _product(x: Tensor, weight: Shared, bias: Tensor | None, turned: bool) -> Tensor:
    """x W' + c, or x W + c where `turned`."""
    own = bias if isinstance(bias, Shared) and bias.ndim == 1 else None

    def below(n: int, tensors: list[Tensor]) -> Tensor:
        x, plain = as_multiplied(tensors[0]), bare(weight)
        out = F.linear(x, plain.mT if turned else plain, None if own is None else bare(own))
        return _tap(Multiplied(weight, turned, own, x.detach(), 0, n), out, x)

    out = _lower(below, x)
    return out if bias is None or own is not None else out + bias


def einsum_product(args: Sequence[Any]) -> Tensor | None:
    """An einsum of two tensors that is a product with a shared matrix; None where it is another."""
    equation, *operands = args
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation or "->" not in equation:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    pairs = zip(inputs.split(","), operands, strict=True)
    (mine, value), (other, x) = sorted(pairs, key=lambda pair: not isinstance(pair[1], Shared))
    sums, new = set(mine) - set(output), set(mine) - set(other)
    rest = [c for c in other if c not in sums]
    plain = len(mine) == 2 and len(sums) == len(new) == 1 and sums <= set(other)
    if not plain or isinstance(x, Shared) or sorted([*rest, *new]) != sorted(output) or len(set(other)) < len(other):
        return None
    (p,), (q,) = sums, new
    moved = x.permute([other.index(c) for c in [*rest, p]])
    product = moved @ value if mine == p + q else F.linear(moved, value)
    return product.permute([[*rest, q].index(c) for c in output])


def _embedding(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    names = ("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    named = by_name(names, args, kwargs)
    index, table, padding = named["input"], named["weight"], named["padding_idx"]
    if func is not F.embedding or not isinstance(table, Shared) or not is_batchedtensor(index):
        return None
    for setting in ("max_norm", "scale_grad_by_freq", "sparse"):
        if named[setting]:
            raise Unseen(table, f"is read by an embedding with {setting}")
    return _read(table, index, None if padding is None else padding % len(table))


def _getitem(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    table, index = args
    whole = isinstance(index, Tensor) and index.dtype not in (torch.bool, torch.uint8)
    return _read(table, index, None) if isinstance(table, Shared) and whole and is_batchedtensor(index) else None


def _index_select(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    named = by_name(("input", "dim", "index"), args, kwargs)
    table, index = named["input"], named["index"]
    mine = isinstance(table, Shared) and named["dim"] % table.ndim == 0 and is_batchedtensor(index)
    return _read(table, index, None) if mine else None


def _read(table: Shared, index: Tensor, padding: int | None) -> Tensor:
    def below(n: int, tensors: list[Tensor]) -> Tensor:
        (index,) = tensors
        return _tap(Read(table, index, 0, padding, n), bare(table)[index], index)

    return _lower(below, index)


def _convolution(func: Any, args: Any, kwargs: Any) -> Tensor | None:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    named = by_name(names, args, kwargs)
    x, weight, bias = named["input"], named["weight"], named["bias"]
    if not isinstance(weight, Shared) or not is_batchedtensor(x) or x.ndim != weight.ndim:
        return None
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    settings = {key: value if named[key] is None else named[key] for key, value in defaults.items()}
    own = bias if isinstance(bias, Shared) else None

    def below(n: int, tensors: list[Tensor]) -> Tensor:
        x = tensors[0].flatten(0, 1)
        out = func(x, bare(weight), None if own is None else bare(own), **settings)
        tapped = _tap(Convolved(weight, own, x.detach(), settings, n), out, x)
        return tapped.reshape(n, len(x) // n, *out.shape[1:])

    out = _lower(below, x)
    return out if bias is None or own is not None else out + bias.reshape(-1, *[1] * (x.ndim - 2))


def normalised(name: str, args: Any, kwargs: Any) -> Tensor | None:
    """Scale and shift of a normalised input, as operations of their own."""
    second = "num_groups" if name == "group_norm" else "normalized_shape"
    names = ("input", second, "weight", "eps") if name == "rms_norm" else ("input", second, "weight", "bias", "eps")
    named = by_name(names, args, kwargs)
    x, weight, bias = named["input"], named["weight"], named.get("bias")
    if isinstance(x, Shared):
        return None
    if name == "rms_norm":
        y = F.rms_norm(x, named[second], None, named["eps"])
    elif name == "layer_norm":
        y = F.layer_norm(x, named[second], None, None, 1e-5 if named["eps"] is None else named["eps"])
    else:
        y = F.group_norm(x, named[second], None, None, 1e-5 if named["eps"] is None else named["eps"])
        weight, bias = (None if w is None else w.reshape(-1, *[1] * (x.ndim - 2)) for w in (weight, bias))
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def by_name(names: Sequence[str], args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name, None where one is missing."""
    return {**dict.fromkeys(names), **dict(zip(names, args, strict=False)), **kwargs}


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors among arguments."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for x in tree:
            yield from tensors_in(x)
    elif isinstance(tree, dict):
        yield from tensors_in(list(tree.values()))


def replaced(tree: Any, change: Callable[[Shared], Any]) -> Any:
    """Arguments with every shared value changed."""
    if isinstance(tree, Shared):
        return change(tree)
    if type(tree) in (tuple, list):
        return type(tree)(replaced(x, change) for x in tree)
    return {key: replaced(x, change) for key, x in tree.items()} if isinstance(tree, dict) else tree


NORMS = ("layer_norm", "rms_norm", "group_norm")
FACTORED: dict[str, Callable[[Any, Any, Any], Tensor | None]] = {
    "linear": _linear,
    "addmm": _addmm,
    "matmul": _matmul,
    "rmatmul": _matmul,
    "mm": _matmul,
    "einsum": lambda func, args, kwargs: einsum_product(args),
    "embedding": _embedding,
    "masked_fill": lambda func, args, kwargs: torch.where(args[1], args[2], args[0]),
    "getitem": _getitem,
    "index_select": _index_select,
    "conv1d": _convolution,
    "conv2d": _convolution,
    "conv3d": _convolution,
}
"""Operations whose rows have factors, by name; None where the arguments are not those of a product."""
FACTORED |= {name: lambda _, args, kwargs, name=name: normalised(name, args, kwargs) for name in NORMS}  # type: ignore
