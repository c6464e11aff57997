"""Operations on shared values alone: what their results are in terms of the parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from isthmus.gradients.layers.shared import Base, Form, Shared, Trace, mark

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
"""Functions of single numbers."""
_NAMES = (
    "add radd iadd sub rsub isub subtract mul rmul imul multiply div rdiv truediv rtruediv itruediv true_divide divide "
    "pow rpow ipow float_power maximum minimum fmax fmin where lerp addcmul addcdiv atan2 hypot logaddexp "
    "scaled_dot_product_attention bmm xlogy eq ne lt le gt ge"
)
BROADCAST = set(_NAMES.split())
"""Operations that take the numbers at one place of every tensor (for products of matrices: the matrices)."""
ASIDE: Any = (Tensor.T, Tensor.mT)
TURNS = {*(turn.__get__ for turn in ASIDE), torch.t, Tensor.t}
"""Operations that lay a matrix on its side."""


def form_of(func: Any, name: str, args: Any, kwargs: Any, result: Tensor) -> Form | None:
    """How the numbers of the result stand to those of the one parameter it comes from."""
    value = next((x for x in args if isinstance(x, Shared)), None)
    if value is None or value.history.form is None:
        return None
    if name in ("embedding", "getitem", "index_select") and value.history.form.plain:
        places = _places(func, name, args, kwargs, value)
        if places is not None:
            return Form(False, value.history.form.factor, *places)
    if result.numel() != value.numel():
        return None
    form, same = value.history.form, tuple(result.shape) == tuple(value.shape)
    shape = value.history.leaves[0].value.shape
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
        if name in ("sub", "div", "truediv") and not isinstance(args[0], Shared):
            return None
        return replace(form, factor=form.factor * FACTORS[name](float(number[0])))
    return None


def _places(func: Any, name: str, args: Any, kwargs: Any, table: Shared) -> tuple[Tensor, int | None] | None:
    """The places at which a table is read, and the one that gets no gradient."""
    if table.shape != table.history.leaves[0].value.shape:
        return None
    if name == "embedding":
        named = dict(zip(("input", "weight", "padding_idx"), args, strict=False)) | kwargs
        index, padding = named["input"], named.get("padding_idx")
        return (index.flatten(), None if padding is None else padding % len(table)) if func is F.embedding else None
    index = args[1] if name == "getitem" else args[2] if len(args) > 2 and args[1] == 0 else None
    if not isinstance(index, Tensor) or index.dtype in (torch.bool, torch.uint8) or not index.ndim:
        return None
    return index.flatten(), None


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


def base_of(func: Any, name: str, args: Any, kwargs: Any, result: Tensor) -> Base | None:
    """What a result repeats where examples would be, and what was done with the copies since."""
    value = next((x for x in args if isinstance(x, Shared)), None)
    if value is None or not result.ndim:
        return None
    trace, batch_dim = value.history, value.history.leaves[0].layers.batch_dim
    dim = 0 if result.ndim < 3 else batch_dim
    place = dim - (result.ndim - value.ndim)
    once = place < 0 or value.shape[place] == 1
    if name in SPREADS and once:
        sizes = [1 if i == dim else size for i, size in enumerate(result.shape)]
        source = result.narrow(dim, 0, 1) if result.shape[dim] else value.source.expand(sizes)
        form = trace.form if source.numel() == value.numel() else None
        return Base(mark(source, Trace(trace.leaves, None if form is None or form.turned else form)))
    before = trace.base
    finish = None if before is None else before.finish

    def again(copies: Tensor) -> Tensor:
        laid = copies if finish is None else finish(copies)
        remade: Tensor = func(*(laid if x is value else x for x in args), **kwargs)
        return remade

    if before is not None and result.shape[dim] == value.shape[place] and _keeps(func, name, args, result):
        return replace(before, finish=again)
    if name in BROADCAST and once and result.shape[dim] > 1:
        shape = [*[1] * (result.ndim - value.ndim), *value.shape]
        return Base(mark(value.source.reshape(shape), Trace(trace.leaves, trace.form)), again)
    blocks = name in ("repeat", "tile") and result.shape[1:] == value.shape[1:] and not batch_dim
    if blocks and result.ndim == value.ndim:  # several entries, as one block for every example
        source = value.source.unsqueeze(0)
        return Base(mark(source, Trace(trace.leaves, trace.form)), lambda copies: copies.flatten(0, 1), blocks=True)
    return None


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
    return bool(func == ASIDE[1].__get__ and result.ndim > 2)
