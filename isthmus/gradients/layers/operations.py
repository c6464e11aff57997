"""What becomes of an operation in which a value computed from parameters meets examples.

It is done one example at a time, by `torch.func.vmap`, and there

    x W', x W, F.linear, addmm, einsum      are taken below vmap, on the whole batch, with a tap that keeps factors:
    F.embedding, W[k], F.conv1d/2d/3d       sum_t b_t a_t', sum_t e_(k_t) b_t'
    everything else                         finds a copy of the value for each example, which takes no memory: the
                                            gradient of the copies is the rows.  Where these are larger than
                                            `CHUNK_BYTES` they are computed from the gradient of the output, in chunks

In a layer of one's own without children that train, the layer as a whole runs so: a tensor holds examples if and only
if it is batched, whatever its shape.  Elsewhere a tensor that asks for a gradient holds examples: only taps ask.  One
that does not holds them if it has one entry for each and is no buffer, unless the same operation was seen with another
number of entries before: then all examples share it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch._C._functorch import is_batchedtensor
from torch.func import vjp, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from isthmus.gradients import rounding
from isthmus.gradients.layers import rules
from isthmus.gradients.layers.convolution import _weight_rows
from isthmus.gradients.layers.embedding import _counts, _table_rows
from isthmus.gradients.layers.folding import _folded, _pieces_of
from isthmus.gradients.layers.shared import (
    HANDLERS,
    READ,
    SAME,
    TURNED,
    _bare,
    _mark,
    _pulled,
    _Shared,
    _Trace,
    _Unseen,
)
from isthmus.gradients.rows import Dense, Lazy, Outer

Function = Callable[..., Any]
"""An operation of torch."""
Leaves = list[Any]
"""The pieces of arguments or outputs: tensors and anything else."""
_ORDERED = {"view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "view_as", "reshape_as"}
"""Operations that leave the numbers of a value in their order."""
_ALIKE = {"contiguous", "clone", "to", "float", "double", "half", "bfloat16", "type", "type_as", "alias", "cuda", "cpu"}
"""Operations that leave shape and order as they are."""
_SPREADS = {"expand", "expand_as", "broadcast_to", "repeat", "tile", "repeat_interleave"}
"""Operations that repeat a value."""
_LIKE = {"expand_as", "view_as", "reshape_as", "type_as", "to"}
"""Operations that take only shape or kind of another tensor."""
_PAIRED = set(
    "add radd iadd sub rsub isub subtract mul rmul imul multiply div rdiv truediv rtruediv itruediv true_divide divide "
    "pow rpow ipow float_power maximum minimum fmax fmin where lerp addcmul addcdiv atan2 hypot logaddexp bmm xlogy "
    "scaled_dot_product_attention eq ne lt le gt ge masked_fill prelu cat concat concatenate stack einsum setitem "
    "matmul rmatmul mm layer_norm rms_norm group_norm".split()
)
"""Operations known to do with examples alone what they do with a batch; others are compared."""
TABLES = ("embedding", "getitem", "index_select")
"""Operations that read a table."""
_ASIDE: Any = (Tensor.T, Tensor.mT)
TURNS = {*(turn.__get__ for turn in _ASIDE), torch.t, Tensor.t}
"""Operations that lay a matrix on its side."""


class _Operation:
    """One call of an operation on shared values."""

    def __init__(self, func: Function, args: rules.Args, kwargs: rules.Kwargs) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name = getattr(func, "__name__", "").strip("_")
        self.leaves, self.spec = tree_flatten((args, kwargs))
        self.tensors = [x for x in self.leaves if isinstance(x, Tensor)]
        self.values = [x for x in self.tensors if isinstance(x, _Shared)]
        """The shared values among the arguments."""

    @property
    def changes(self) -> bool:
        """Whether it changes its first argument."""
        name: str = self.func.__name__
        changes = name.endswith("_") and not name.startswith("__") and name != "requires_grad_"
        return changes or self.name in ("setitem", "iadd", "imul", "isub", "itruediv", "ipow")

    def named(self, names: str, **defaults: object) -> dict[str, Any]:
        """Arguments by name, their defaults (None) where one is missing."""
        listed = names.split()
        return dict.fromkeys(listed) | defaults | dict(zip(listed, self.args, strict=False)) | self.kwargs

    def of(self, leaves: Leaves) -> Any:
        """The same of other arguments."""
        args, kwargs = tree_unflatten(leaves, self.spec)
        return self.func(*args, **kwargs)

    def untouched(self) -> Any:
        """The same, not looked at."""
        with torch._C.DisableTorchFunctionSubclass():
            return self.func(*self.args, **self.kwargs)

    def check_unchanged(self) -> None:
        """Refuse to change a shared value."""
        if isinstance(self.leaves[0], _Shared) and self.changes:
            raise _Unseen(self.leaves[0], f"is changed in place by {self.name!r}")


def _without_history(leaves: Leaves) -> Leaves:
    """The numbers of shared values alone."""
    answer: Leaves = tree_map_only(_Shared, _bare, leaves)
    return answer


def _operate(func: Function, args: rules.Args, kwargs: rules.Kwargs) -> object:
    """What every operation on shared values does."""
    op = _Operation(func, args, kwargs)
    name = op.name
    if not torch.is_grad_enabled() or (name == "get" and func not in TURNS):
        return op.untouched()
    if any(is_batchedtensor(x) for x in op.tensors):
        return _single(op)
    if name in _LIKE and not isinstance(args[0], _Shared):
        return op.of(_without_history(op.leaves))
    value = op.values[0]
    leaf = value.history.leaves[0]
    n = leaf.n if leaf.layers.batch is None else leaf.layers.batch
    if leaf.single:
        return _without_examples(op)
    if n is None:
        return op.untouched()
    leaf.operations += 1
    others = [(place, x) for place, x in enumerate(op.tensors) if not isinstance(x, _Shared)]
    asking = [x for _, x in others if x.requires_grad]
    examples = asking or [x for place, x in others if _one_for_each(value, place, _size(op, x), n, x)]
    if name in _SPREADS and len(op.values) == 1 and (name in _LIKE or not examples):
        return _spread(op, n)
    if name in _LIKE or not examples:
        return _without_examples(op)
    if not n:
        return _of_none(op.of(_without_history(op.leaves)), op.values)
    try:
        return _apart(op, n, examples)
    except _Unseen:
        if asking:
            raise
        return _without_examples(op)  # perhaps none holds examples: those come later


def _one_for_each(value: _Shared, place: object, size: int, n: int, x: Tensor | None = None) -> bool:
    """Whether something in an operation has one entry for each example: never another number of them before.

    A tensor x that asks for no gradient may be a buffer, or positions 0, 1, 2, ... rather than a place for each.
    """
    leaf = value.history.leaves[0]
    known, key = leaf.layers.known, (leaf.rule.name, leaf.operations, place)
    if size != n:
        known.shared_places.add(key)
    elif key not in known.example_places:
        if x is not None and (_fixed(x, leaf.layers.module) or _counts(x)):
            known.shared_places.add(key)
        else:
            known.example_places.add(key)
    return key not in known.shared_places


def _fixed(x: Tensor, module: nn.Module) -> bool:
    """Whether a tensor is a buffer or a frozen parameter of the module, or a part of one."""
    tensors = itertools.chain(module.buffers(), module.parameters())
    return any(x.untyped_storage().data_ptr() == held.untyped_storage().data_ptr() for held in tensors)


def _dim(value: _Shared, ndim: int) -> int:
    """Where a tensor of so many dimensions keeps its examples."""
    return rules._examples_dim(ndim, value.history.leaves[0].layers.batch_dim)


def _where(op: _Operation, x: Tensor) -> int:
    """Where an argument of an operation keeps its examples: places in a table have a dimension less than the output."""
    return _dim(op.values[0], x.ndim + (op.name in TABLES))


def _size(op: _Operation, x: Tensor) -> int:
    """How many entries an argument has where its examples would be."""
    return x.shape[_where(op, x)] if x.ndim else -1


# ------------------------------------------------------------ without examples


def _without_examples(op: _Operation) -> object:
    """An operation without examples: what it gives is shared too."""
    op.check_unchanged()
    return _marked(op.untouched(), op)


def _marked(x: object, op: _Operation) -> object:
    """Results of an operation as shared values (no inner function: one that calls itself would keep its tensors)."""
    if isinstance(x, (tuple, list)):
        return type(x)([_marked(y, op) for y in x])  # torch's own tuples too
    if not isinstance(x, Tensor) or not x.requires_grad or isinstance(x, _Shared):
        return x
    trace = _Trace(tuple(dict.fromkeys(leaf for value in op.values for leaf in value.history.leaves)))
    if len(op.values) == 1:
        trace = _followed(op, x) or trace
        if x.ndim and op.name in _PAIRED:
            dim, lead = _lead(op.values[0], x.ndim)
            if lead == 1 < x.shape[dim]:
                trace = replace(trace, repeat=partial(_repeated, op, x.ndim))
    return _mark(x, trace)


def _repeated(op: _Operation, ndim: int, n: int, k: int) -> Any:
    """What a constant with k entries for every example made of a value, of copies of that value."""
    (value,) = op.values
    dim, source = _dim(value, ndim), value.source
    once = _mark(source.reshape([1] * (ndim - source.ndim) + list(source.shape)), value.history)
    copies = _side_by_side(once, n, dim).repeat_interleave(k, dim)
    return op.of(tree_map_only(_Shared, lambda _: copies, op.leaves))


def _followed(op: _Operation, result: Tensor) -> _Trace | None:
    """The trace of a result whose numbers stand to those of the parameter as `_Trace` can say."""
    (value,) = op.values
    trace, source = value.history, value.source
    if trace.form is None:
        return None
    whole = trace.form == SAME and source.shape == trace.leaves[0].value.shape
    if whole:
        _, index, padding = _places(op)
        if index is not None and index.ndim:
            return _Trace(trace.leaves, READ, index.flatten(), padding)
    if result.numel() != source.numel():
        return None
    swapped = op.name in ("transpose", "swapaxes", "swapdims") and op.args[1] % 2 != op.args[2] % 2
    if source.ndim == 2 and (swapped or op.func in TURNS):
        if trace.form == TURNED or whole:
            return _Trace(trace.leaves, SAME if trace.form == TURNED else TURNED)
        return None
    ordered = op.name in _ORDERED or op.name in _SPREADS
    return trace if op.name in _ALIKE or (ordered and trace.form != TURNED) else None


def _spread(op: _Operation, n: int) -> object:
    """What is repeated once for every example is from now on a copy for each, with a tap; all else stays shared."""
    result = _without_examples(op)
    if not isinstance(result, _Shared):
        return result
    (value,) = op.values
    trace, source, whole = value.history, value.source, result.source
    dim, lead = _lead(value, whole.ndim)
    times, left = divmod(whole.shape[dim], max(lead, 1))
    leaf = trace.leaves[0]
    if not n and not times:
        return _of_none(whole.detach(), [value])
    if left or (times == 1 and (leaf.rule.name, leaf.operations, op.name) not in leaf.layers.known.example_places):
        return result
    if lead == 1:
        first = whole.narrow(dim, 0, 1)
        kept = first.numel() == source.numel() and trace.form != TURNED
        once = _mark(first, trace if kept else _Trace(trace.leaves))
    elif op.name in ("repeat", "tile") and not dim and (whole.ndim, whole.shape[1:]) == (source.ndim, source.shape[1:]):
        once = value
    else:
        return result
    return _side_by_side(once, n, dim) if _one_for_each(value, op.name, times, n) else result


def _lead(value: _Shared, ndim: int) -> tuple[int, int]:
    """Where a result of so many dimensions keeps its examples, and how many entries a value has there."""
    dim = _dim(value, ndim)
    place = dim - (ndim - value.source.ndim)
    return dim, value.source.shape[place] if place >= 0 else 1


def _side_by_side(once: _Shared, n: int, dim: int) -> Tensor:
    """A copy of a value for each example, in the dimension of the examples."""
    return _copies(once, n).movedim(0, dim).flatten(dim, dim + 1)


# ------------------------------------------------------------ with examples


def _apart(op: _Operation, n: int, examples: list[Tensor]) -> object:
    """An operation done one example at a time."""
    value, name, count = op.values[0], op.name, _size(op, examples[0])
    leaf, k = value.history.leaves[0], _pieces_of(count, n) or 1
    if any(_size(op, x) != n * k for x in examples):
        raise _Unseen(value, f"meets tensors without one entry for each of the examples in {name!r}")
    if k > 1:
        leaf.layers.note_pieces(leaf.rule, k)
    op.check_unchanged()
    if op.changes and name not in _PAIRED:
        raise _Unseen(value, f"is written into examples by {name!r}")
    leaves, widest = list(op.leaves), max(x.ndim for x in examples)
    for place, x in enumerate(leaves):
        if isinstance(x, _Shared) and x.history.repeat is not None and _lead(x, widest)[1] == count:
            leaves[place] = x.history.repeat(n, k)
            examples = [*examples, leaves[place]]
    ids = {id(x) for x in examples}
    cuts: list[int | None] = [None] * len(leaves)
    for place, x in enumerate(leaves):
        beside = _is_plain(x) and name in _PAIRED and x.ndim == widest and _size(op, x) == count
        if beside or id(x) in ids:
            cuts[place] = _where(op, x)
    try:
        with _plain_steps(examples[0].device.type):
            pieces, shape = _one_by_one(op.func, leaves, op.spec, cuts, n)
    except (RuntimeError, IndexError) as error:
        reason = str(error).strip().split("\n")[0]
        raise _Unseen(value, f"cannot be used one example at a time in {name!r} ({reason})") from error
    outputs = [_joined(x, value, k, name) for x in pieces]
    if name not in _PAIRED and name not in FACTORED:
        with torch.no_grad():
            whole = tree_flatten(op.of(_without_history(leaves)))[0]
        for x, y in zip(outputs, whole, strict=True):
            if _is_plain(x) and not (x.shape == y.shape and _near_enough(x, y)):
                raise _Unseen(
                    value, f"is used with examples in {name!r}, which gives each of them something else alone"
                )
    return tree_unflatten(outputs, shape)


def _joined(x: object, value: _Shared, k: int, name: str) -> object:
    """What single examples give, side by side in front, as a batch gives it."""
    if not _is_plain(x):
        return x
    dim = _dim(value, x.ndim - 1)
    if x.ndim < 2 or x.shape[1 + dim] != k:
        raise _Unseen(value, f"is put beside other examples by {name!r}, or shared by all where each has its own")
    return x.movedim(0, dim).flatten(dim, dim + 1)


def _of_none(out: object, values: list[_Shared]) -> object:
    """What an operation gives of no examples, which vmap cannot do: there are no rows."""

    def rows(b: Tensor) -> rules.Found:
        return [found for value in values for found in _pulled(value, Dense(b.new_zeros(0, value.numel())))]

    return _tap(values, out, [], rows) if isinstance(out, Tensor) else out


def _is_plain(x: object) -> TypeGuard[Tensor]:
    """A tensor, but no shared one."""
    return isinstance(x, Tensor) and not isinstance(x, _Shared)


def _one_by_one(
    function: Function, leaves: Leaves, spec: TreeSpec, cuts: list[int | None], n: int
) -> tuple[Leaves, TreeSpec]:
    """The pieces of what a function gives n examples alone, one after the other in front.

    It is given batches of one example (of all its pieces, where it has several), cut from the dimensions `cuts`.
    """
    flattened: list[tuple[Leaves, TreeSpec]] = []

    def one(*mine: Tensor) -> tuple[Tensor, ...]:
        own = iter(mine)
        pairs = zip(leaves, cuts, strict=True)
        args, kwargs = tree_unflatten([x if cut is None else next(own) for x, cut in pairs], spec)
        flattened.append(tree_flatten(function(*args, **kwargs)))
        return tuple(x for x in flattened[-1][0] if _is_plain(x)) or mine[:1]

    pairs = [(x, cut) for x, cut in zip(leaves, cuts, strict=True) if cut is not None]
    parts = [x.unflatten(cut, (n, x.shape[cut] // max(n, 1))) for x, cut in pairs]
    outputs = iter(vmap(one, in_dims=tuple(cut for _, cut in pairs), randomness="different")(*parts))
    ((pieces, shape),) = flattened
    return [next(outputs) if _is_plain(x) else x for x in pieces], shape


@contextmanager
def _plain_steps(kind: str) -> Iterator[None]:
    """Attention in steps that vmap knows, and products in the precision of now, nothing of them kept."""
    fused, narrow = torch.backends.mha.get_fastpath_enabled(), torch.is_autocast_enabled(kind)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        precision = torch.autocast(kind, torch.get_autocast_dtype(kind), enabled=narrow, cache_enabled=False)
        with precision, sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def _near_enough(x: Tensor, y: Tensor, slack: float | None = None) -> bool:
    """Equal but for rounding, of so much of the largest number."""
    x, y, kind = x.detach(), y.detach(), x.device.type
    if not x.is_floating_point():
        return torch.equal(x, y)
    if slack is None:
        slack = 1e-3 if kind == "cpu" else 1e-2  # accelerators may shorten the factors of float32 products
        if torch.is_autocast_enabled(kind) or x.element_size() < 4:
            slack = 3e-2
        elif x.dtype == torch.float64:
            slack = 1e-6
    size = float(x.abs().nan_to_num(0.0, 0.0, 0.0).max()) if x.numel() else 0.0
    return torch.allclose(x, y.to(x.dtype), rtol=0.0, atol=slack * size, equal_nan=True)


# ------------------------------------------------------------ one example at a time


def _single(op: _Operation) -> object:
    """An operation on shared values and single examples."""
    if op.name in FACTORED and not op.changes:
        answer = FACTORED[op.name](op)
        if answer is not None:
            return answer
    op.check_unchanged()
    batched = [x for x in op.tensors if is_batchedtensor(x)]
    n = functorch.get_unwrapped(batched[0]).shape[functorch.maybe_get_bdim(batched[0])]
    if n * sum(x.source.numel() * x.source.element_size() for x in op.values) > rounding.CHUNK_BYTES:
        return _lower(partial(_in_chunks, op), *batched)
    return op.of(tree_map_only(_Shared, lambda x: _lower(partial(_copies, x), batched[0]), op.leaves))


def _copies(value: _Shared, n: int, _: object = None) -> Tensor:
    """A copy of a value for every example, with a tap."""

    def rows(b: Tensor) -> rules.Found:
        return _pulled(value, Dense(b.reshape(n, value.numel())))

    return _tap([value], _bare(value).expand(n, *value.shape), [], rows)


def _in_chunks(op: _Operation, n: int, whole: list[Tensor]) -> Tensor:
    """An operation whose values are too large for a copy for each example: rows from the gradient of its output."""
    places = [i for i, x in enumerate(op.leaves) if isinstance(x, _Shared)]
    places += [i for i, x in enumerate(op.leaves) if isinstance(x, Tensor) and is_batchedtensor(x)]
    values, kept, fixed = op.values, [x.detach() for x in whole], list(op.leaves)

    def call(*given: Tensor) -> Tensor:
        for place, x in zip(places, given, strict=True):
            fixed[place] = x
        answer: Tensor = op.of(fixed)
        return answer

    def rows(b: Tensor) -> rules.Found:
        weights = [_bare(value).clone() for value in values]  # rows may be read when the parameters have moved on

        def chunk(which: int, lo: int, hi: int) -> Tensor:
            def one(b: Tensor, *mine: Tensor) -> Tensor:
                own: Tensor = vjp(lambda *weights: call(*weights, *mine), *weights)[1](b)[which]
                return own

            with torch.no_grad(), _plain_steps(b.device.type):
                return vmap(one)(b[lo:hi], *(x[lo:hi] for x in kept)).reshape(hi - lo, -1)

        lazy = [Lazy(partial(chunk, i), n, x.numel(), dtype=x.dtype, device=x.device) for i, x in enumerate(weights)]
        return [found for value, part in zip(values, lazy, strict=True) for found in _pulled(value, part)]

    out = vmap(lambda *mine: call(*map(_bare, values), *mine))(*whole)
    return _tap(values, out, whole, rows)


def _lower(below: Callable[[int, list[Tensor]], Tensor], *tensors: Tensor) -> Tensor:
    """What is computed of the n examples, below vmap, from tensors that have them in front, as single examples."""
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


def _tap(values: list[_Shared], output: Tensor, inputs: list[Tensor], rows_of: rules.RowsOf) -> Tensor:
    """An output, examples in front, with a tap that gives the rows of the parameters behind some values."""
    leaves = [leaf for value in values for leaf in value.history.leaves]
    feeds = [leaf.rule.leaves[leaf.suffix] for leaf in leaves]
    return leaves[0].layers.tap(leaves[0].rule, output, 0, inputs, lambda b: rows_of(b.detach()), feeds)


# ------------------------------------------------------------ products, tables and convolutions


def _linear(op: _Operation) -> Tensor | None:
    named = op.named("input weight bias")
    x, weight = named["input"], named["weight"]
    if isinstance(weight, _Shared) and weight.ndim == 2 and is_batchedtensor(x):
        return _product(x, weight, named["bias"])
    return None


def _addmm(op: _Operation) -> Tensor | None:
    named = op.named("input mat1 mat2 beta alpha", beta=1, alpha=1)
    if named["beta"] != 1 or named["alpha"] != 1:
        return None
    if isinstance(named["mat2"], _Shared) and is_batchedtensor(named["mat1"]):
        return _product(named["mat1"], named["mat2"], named["input"], turned=True)
    total: Tensor = named["mat1"] @ named["mat2"] + named["input"]
    return total


def _matmul(op: _Operation) -> Tensor | None:
    if len(op.args) != 2:
        return None
    left, right = reversed(op.args) if op.name == "rmatmul" else op.args
    if isinstance(right, _Shared) and is_batchedtensor(left) and right.ndim <= 2:
        if right.ndim == 2:
            return _product(left, right, turned=True)
        column: Any = right[:, None]
        return _product(left, column, turned=True).squeeze(-1)
    if isinstance(left, _Shared) and left.ndim == 2 and right.ndim >= 2 and is_batchedtensor(right):
        return _product(right.mT, left).mT
    return None


def _product(x: Tensor, weight: _Shared, bias: Tensor | None = None, turned: bool = False) -> Tensor:
    """x W' + c, or x W + c where `turned`: outer products of the input and the gradient."""
    biases = [bias] if isinstance(bias, _Shared) and bias.ndim == 1 else []

    def below(n: int, whole: list[Tensor]) -> Tensor:
        x, plain = rules._as_multiplied(whole[0]), _bare(weight)
        out = F.linear(x, plain.mT if turned else plain, *map(_bare, biases))
        kept = x.detach()

        def rows(b: Tensor) -> rules.Found:
            a, b = rules._positions(kept), rules._positions(b)
            found = _pulled(weight, Outer(b, a) if turned else Outer(a, b))
            return found + [each for own in biases for each in _pulled(own, rules._bias_rows(b))]

        return _tap([weight, *biases], out, [x], rows)

    out = _lower(below, x)
    return out if bias is None or biases else out + bias


def _einsum(op: _Operation) -> Tensor | None:
    """An einsum of two tensors that is a product with a shared matrix; None where it is another."""
    equation, *operands = op.args
    if not isinstance(equation, str) or len(operands) != 2 or "." in equation or "->" not in equation:
        return None
    inputs, output = equation.replace(" ", "").split("->")
    pairs = zip(inputs.split(","), operands, strict=True)
    (mine, value), (other, x) = sorted(pairs, key=lambda pair: not isinstance(pair[1], _Shared))
    sums, new = set(mine) - set(output), set(mine) - set(other)
    rest = [c for c in other if c not in sums]
    plain = len(mine) == 2 and len(sums) == len(new) == 1 and sums <= set(other)
    if not plain or isinstance(x, _Shared) or sorted([*rest, *new]) != sorted(output) or len(set(other)) < len(other):
        return None
    (p,), (q,) = sums, new
    moved = x.permute([other.index(c) for c in [*rest, p]])
    product: Tensor = moved @ value if mine == p + q else F.linear(moved, value)
    return product.permute([[*rest, q].index(c) for c in output])


def _places(op: _Operation) -> tuple[object, Tensor | None, int | None]:
    """A table that is read, the places if they are named by integers, and the one that gets no gradient."""
    table, index, padding = next(iter(op.args), None), None, None
    if op.func is F.embedding:
        named = op.named("input weight padding_idx max_norm norm_type scale_grad_by_freq sparse")
        index, table, padding = named["input"], named["weight"], named["padding_idx"]
        for setting in ("max_norm", "scale_grad_by_freq", "sparse"):
            if named[setting]:
                raise _Unseen(table, f"is read by an embedding with {setting}")
        if padding is not None:
            padding = padding % len(table)
    elif op.name == "getitem":
        index = op.args[1]
    elif op.name == "index_select" and len(op.args) > 2 and op.args[1] % op.args[0].ndim == 0:
        index = op.args[2]
    if not _is_plain(index) or index.dtype in (torch.bool, torch.uint8):
        index = None
    return table, index, padding


def _read(op: _Operation) -> Tensor | None:
    """z = W[k]: the places and the gradients there."""
    table, index, padding = _places(op)
    if not isinstance(table, _Shared) or index is None or not is_batchedtensor(index):
        return None

    def below(n: int, whole: list[Tensor]) -> Tensor:
        (index,) = whole

        def rows(b: Tensor) -> rules.Found:
            places = index.reshape(n, -1)
            values = b.reshape(*places.shape, table.numel() // max(1, len(table)))
            return _pulled(table, _table_rows(places, values, len(table), padding))

        return _tap([table], _bare(table)[index], [index], rows)

    return _lower(below, index)


def _convolution(op: _Operation) -> Tensor | None:
    """A linear layer over patches; the bias has the sum over places."""
    named = op.named("input weight bias stride padding dilation groups", stride=1, padding=0, dilation=1, groups=1)
    x, weight, bias, groups = named["input"], named["weight"], named["bias"], named["groups"]
    if not isinstance(weight, _Shared) or not is_batchedtensor(x) or x.ndim != weight.ndim:
        return None
    biases, spans = [bias] if isinstance(bias, _Shared) else [], {}
    for name in ("stride", "padding", "dilation"):
        value = named[name]
        spans[name] = (value,) * (x.ndim - 2) if isinstance(value, int) else value
    sizes = {"in_channels": weight.shape[1] * groups, "out_channels": len(weight), "kernel_size": weight.shape[2:]}
    layer: Any = SimpleNamespace(**spans, **sizes, groups=groups, weight=_bare(weight), padding_mode="zeros")

    def below(n: int, whole: list[Tensor]) -> Tensor:
        x = whole[0].flatten(0, 1)
        kept = x.detach()
        out = op.func(x, _bare(weight), *map(_bare, biases), groups=groups, **spans)

        def rows(b: Tensor) -> rules.Found:
            b = b.flatten(2)
            found = _pulled(weight, _folded(_weight_rows(layer, kept, b, ones=False), n))
            return found + [each for own in biases for each in _pulled(own, _folded(rules._bias_rows(b.mT), n))]

        tapped = _tap([weight, *biases], out, [x], rows)
        return tapped.reshape(n, len(tapped) // n, *tapped.shape[1:])

    out = _lower(below, x)
    return out if bias is None or biases else out + bias.reshape(-1, *[1] * (x.ndim - 2))


def _filled(op: _Operation) -> Tensor:
    """vmap knows no `masked_fill` with a value for each example."""
    x, mask, value = op.args
    return torch.where(mask, value, x)


FACTORED: dict[str, Callable[[_Operation], Tensor | None]] = {
    "linear": _linear,
    "addmm": _addmm,
    "einsum": _einsum,
    "masked_fill": _filled,
}
FACTORED |= dict.fromkeys(("matmul", "rmatmul", "mm"), _matmul)
FACTORED |= dict.fromkeys(TABLES, _read)
FACTORED |= dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution)
"""Operations whose rows have factors, by name; None where the arguments are not those of a product."""

HANDLERS.append(_operate)
