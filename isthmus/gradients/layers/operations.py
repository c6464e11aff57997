"""Layers without a rule of their own: taps at the operations on their parameters.

While such a layer computes, its parameters are handed to it as shared tensors, which know which parameters they come
from.  What is computed from them and from constants is shared again; where one meets a tensor with examples, that
operation is tapped, and the rows of the shared value are pulled back to the parameters: for S = f(w) and the row s_i of
S, the row of w is J_f' s_i.

An operation in which a shared value meets examples is done one example at a time, by `torch.func.vmap`, and there

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
from collections.abc import Callable, Hashable, Iterator, Mapping, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn
from torch._C import _functorch as functorch
from torch._C._functorch import is_batchedtensor
from torch.func import vjp, vmap
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.modules.conv import _ConvNd
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map_only, tree_unflatten

from isthmus.base import validate
from isthmus.gradients import rounding
from isthmus.gradients.layers import rules
from isthmus.gradients.layers.forward_guard import RandomStates
from isthmus.gradients.layers.rules import AnyRule, Args, Found, Handle, Kwargs, LayerRule, LeafBinding, Trainable
from isthmus.gradients.rows import Dense, Lazy, Outer, Rows, row_spans

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers

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


# ------------------------------------------------------------ values computed from parameters alone


class _SharedTensor(Tensor):
    """A tensor that no example has touched, with a `_Trace` of where it comes from."""

    history: _Trace
    source: Tensor
    """The same as a plain tensor, with its history."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Every operation is looked at."""
        return _operate(func, args, kwargs or {})


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
    """The parameter's memory, asking for a gradient that nobody may send but `_pulled_back`."""
    n: int | None
    """The number of examples that the layer itself was given."""
    single: bool = False
    """Whether the layer is computed one example at a time."""
    operations: int = 0
    """How many operations were done with it: the place of an operation in the layer's code."""
    gate: list[bool] = field(default_factory=list)
    """Whether a gradient may come just now: not empty while `_pulled_back` sends one."""

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

    def __init__(self, value: _SharedTensor, why: str) -> None:
        names = ", ".join(repr(leaf.name) for leaf in value.history.leaves)
        super().__init__(
            f"the parameter {names} {why}: its gradient cannot be told example by example; freeze it "
            "(requires_grad_(False)), or use it in an operation with the examples in the first dimension"
        )


def _shared_parameters(
    rule: AnyRule, layers: Layers, n: int | None, only: Set[int] | None = None, single: bool = False
) -> dict[str, _SharedTensor]:
    """The parameters of a layer (those with the ids `only`) as shared tensors, by attribute."""
    opened = {}
    for attribute, parameter in rule.layer._parameters.items():
        if parameter is None or (only is not None and id(parameter) not in only):
            continue
        for suffix, binding in rule.wanted.items():
            if binding.rows is None and any(parameter is p for p in binding.parameters):
                leaf = _SharedLeaf(rule, suffix, attribute, layers, parameter.detach(), n, single)
                opened[attribute] = _shared_parameter(leaf)
    return opened


def _shared_parameter(leaf: _SharedLeaf) -> _SharedTensor:
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
def _attributes_set(layer: nn.Module, values: Mapping[str, object]) -> Iterator[None]:
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


def _mark(value: Tensor, history: _Trace) -> _SharedTensor:
    """The same memory and history as a shared tensor."""
    with torch._C.DisableTorchFunctionSubclass():
        shared: _SharedTensor = value.as_subclass(_SharedTensor)
    shared.history, shared.source = history, value
    return shared


def _numbers(value: _SharedTensor) -> Tensor:
    """The numbers alone."""
    return value.source.detach()


def _pulled_back(value: _SharedTensor, rows: Rows) -> Found:
    """The rows of every parameter behind a shared value, from the rows of that value (its numbers in order)."""
    trace = value.history
    if trace.form is None:
        return [(leaf.rule, leaf.suffix, leaf.laid(_rows_by_autograd(value, leaf, rows))) for leaf in trace.leaves]
    (leaf,) = trace.leaves
    if trace.form == TURNED and isinstance(rows, Outer) and isinstance(rows.a, Tensor):
        rows = Outer(rows.b, rows.a)
    elif trace.form == TURNED:
        rows = Dense(rows.dense().view(rows.n, *value.shape).transpose(1, 2).reshape(rows.n, rows.d))
    elif trace.index is not None:
        index = trace.index.expand(rows.n, -1)
        vocabulary = leaf.value.shape[0]
        values = rows.dense().reshape(*index.shape, leaf.value.numel() // max(1, vocabulary))
        rows = rules._table_rows(index, values, vocabulary, trace.padding)
    return [(leaf.rule, leaf.suffix, leaf.laid(rows))]


def _dense(rows: Rows) -> Rows:
    """Factors multiplied out, a chunk at a time where they are large."""
    if rows.n * rows.d * rows.dtype.itemsize <= rounding.CHUNK_BYTES:
        return Dense(rows.dense())
    return Lazy(lambda lo, hi: rows.part(lo, hi).dense(), rows.n, rows.d, dtype=rows.dtype, device=rows.device)


def _rows_by_autograd(value: _SharedTensor, leaf: _SharedLeaf, rows: Rows) -> Rows:
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
    if rows.n * row_bytes > rounding.CHUNK_BYTES:
        return Lazy(chunk, rows.n, own.numel(), dtype=own.dtype, device=own.device)
    spans = row_spans(rows.n, row_bytes + plain.numel() * plain.element_size())
    parts = [chunk(lo, hi) for lo, hi in spans]
    return Dense(torch.cat([own.detach().new_zeros(0, own.numel()), *parts]))


# ------------------------------------------------------------ operations on them


class _Operation:
    """One call of an operation on shared values."""

    def __init__(self, func: Function, args: Args, kwargs: Kwargs) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.name = getattr(func, "__name__", "").strip("_")
        self.leaves, self.spec = tree_flatten((args, kwargs))
        self.tensors = [x for x in self.leaves if isinstance(x, Tensor)]
        self.values = [x for x in self.tensors if isinstance(x, _SharedTensor)]
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
        if isinstance(self.leaves[0], _SharedTensor) and self.changes:
            raise _Unseen(self.leaves[0], f"is changed in place by {self.name!r}")


def _without_history(leaves: Leaves) -> Leaves:
    """The numbers of shared values alone."""
    answer: Leaves = tree_map_only(_SharedTensor, _numbers, leaves)
    return answer


def _operate(func: Function, args: Args, kwargs: Kwargs) -> object:
    """What every operation on shared values does."""
    op = _Operation(func, args, kwargs)
    name = op.name
    if not torch.is_grad_enabled() or (name == "get" and func not in TURNS):
        return op.untouched()
    if any(is_batchedtensor(x) for x in op.tensors):
        return _single(op)
    if name in _LIKE and not isinstance(args[0], _SharedTensor):
        return op.of(_without_history(op.leaves))
    value = op.values[0]
    leaf = value.history.leaves[0]
    n = leaf.n if leaf.layers.now.batch is None else leaf.layers.now.batch
    if leaf.single:
        return _without_examples(op)
    if n is None:
        return op.untouched()
    leaf.operations += 1
    others = [(place, x) for place, x in enumerate(op.tensors) if not isinstance(x, _SharedTensor)]
    asking = [x for _, x in others if x.requires_grad]
    examples = asking or [x for place, x in others if _one_for_each(value, place, _size(op, x), n, x)]
    if name in _SPREADS and len(op.values) == 1 and (name in _LIKE or not examples):
        return _spread_over_examples(op, n)
    if name in _LIKE or not examples:
        return _without_examples(op)
    try:
        return _done_one_by_one(op, n, examples)
    except _Unseen:
        if asking:
            raise
        return _without_examples(op)  # perhaps none holds examples: those come later


def _one_for_each(value: _SharedTensor, place: object, size: int, n: int, x: Tensor | None = None) -> bool:
    """Whether something in an operation has one entry for each example: never another number of them before.

    A tensor x that asks for no gradient may be a buffer, or positions 0, 1, 2, ... rather than a place for each.
    """
    leaf = value.history.leaves[0]
    known, key = leaf.layers.known, (leaf.rule.name, leaf.operations, place)
    if size != n:
        known.shared_places.add(key)
    elif key not in known.example_places:
        held = itertools.chain(leaf.layers.module.buffers(), leaf.layers.module.parameters())
        fixed = {tensor.untyped_storage().data_ptr() for tensor in held}
        if x is not None and (x.untyped_storage().data_ptr() in fixed or rules._counts(x)):
            known.shared_places.add(key)
        else:
            known.example_places.add(key)
    return key not in known.shared_places


def _dim(value: _SharedTensor, ndim: int) -> int:
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
    if not isinstance(x, Tensor) or not x.requires_grad or isinstance(x, _SharedTensor):
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
    return op.of(tree_map_only(_SharedTensor, lambda _: copies, op.leaves))


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


def _spread_over_examples(op: _Operation, n: int) -> object:
    """What is repeated once for every example is from now on a copy for each, with a tap; all else stays shared."""
    result = _without_examples(op)
    if not isinstance(result, _SharedTensor):
        return result
    (value,) = op.values
    trace, source, whole = value.history, value.source, result.source
    dim, lead = _lead(value, whole.ndim)
    times, left = divmod(whole.shape[dim], max(lead, 1))
    leaf = trace.leaves[0]
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


def _lead(value: _SharedTensor, ndim: int) -> tuple[int, int]:
    """Where a result of so many dimensions keeps its examples, and how many entries a value has there."""
    dim = _dim(value, ndim)
    place = dim - (ndim - value.source.ndim)
    return dim, value.source.shape[place] if place >= 0 else 1


def _side_by_side(once: _SharedTensor, n: int, dim: int) -> Tensor:
    """A copy of a value for each example, in the dimension of the examples."""
    return _copies(once, n).movedim(0, dim).flatten(dim, dim + 1)


# ------------------------------------------------------------ with examples


def _done_one_by_one(op: _Operation, n: int, examples: list[Tensor]) -> object:
    """An operation done one example at a time."""
    value, name, count = op.values[0], op.name, _size(op, examples[0])
    leaf, k = value.history.leaves[0], rules._pieces_of(count, n) or 1
    if any(_size(op, x) != n * k for x in examples):
        raise _Unseen(value, f"meets tensors without one entry for each of the examples in {name!r}")
    if k > 1:
        leaf.layers.note_pieces(leaf.rule, k)
    op.check_unchanged()
    if op.changes and name not in _PAIRED:
        raise _Unseen(value, f"is written into examples by {name!r}")
    leaves, widest = list(op.leaves), max(x.ndim for x in examples)
    for place, x in enumerate(leaves):
        if isinstance(x, _SharedTensor) and x.history.repeat is not None and _lead(x, widest)[1] == count:
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


def _joined(x: object, value: _SharedTensor, k: int, name: str) -> object:
    """What single examples give, side by side in front, as a batch gives it."""
    if not _is_plain(x):
        return x
    dim = _dim(value, x.ndim - 1)
    if x.ndim < 2 or x.shape[1 + dim] != k:
        raise _Unseen(value, f"is put beside other examples by {name!r}, or shared by all where each has its own")
    return x.movedim(0, dim).flatten(dim, dim + 1)


def _is_plain(x: object) -> TypeGuard[Tensor]:
    """A tensor, but no shared one."""
    return isinstance(x, Tensor) and not isinstance(x, _SharedTensor)


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
    parts = [x.unflatten(cut, (n, x.shape[cut] // n)) for x, cut in pairs]
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
    return op.of(tree_map_only(_SharedTensor, lambda x: _lower(partial(_copies, x), batched[0]), op.leaves))


def _copies(value: _SharedTensor, n: int, _: object = None) -> Tensor:
    """A copy of a value for every example, with a tap."""

    def rows(b: Tensor) -> Found:
        return _pulled_back(value, Dense(b.reshape(n, value.numel())))

    return _tap([value], _numbers(value).expand(n, *value.shape), [], rows)


def _in_chunks(op: _Operation, n: int, whole: list[Tensor]) -> Tensor:
    """An operation whose values are too large for a copy for each example: rows from the gradient of its output."""
    places = [i for i, x in enumerate(op.leaves) if isinstance(x, _SharedTensor)]
    places += [i for i, x in enumerate(op.leaves) if isinstance(x, Tensor) and is_batchedtensor(x)]
    values, kept, fixed = op.values, [x.detach() for x in whole], list(op.leaves)

    def call(*given: Tensor) -> Tensor:
        for place, x in zip(places, given, strict=True):
            fixed[place] = x
        answer: Tensor = op.of(fixed)
        return answer

    def rows(b: Tensor) -> Found:
        weights = [_numbers(value).clone() for value in values]  # rows may be read when the parameters have moved on

        def chunk(which: int, lo: int, hi: int) -> Tensor:
            def one(b: Tensor, *mine: Tensor) -> Tensor:
                own: Tensor = vjp(lambda *weights: call(*weights, *mine), *weights)[1](b)[which]
                return own

            with torch.no_grad(), _plain_steps(b.device.type):
                return vmap(one)(b[lo:hi], *(x[lo:hi] for x in kept)).reshape(hi - lo, -1)

        lazy = [Lazy(partial(chunk, i), n, x.numel(), dtype=x.dtype, device=x.device) for i, x in enumerate(weights)]
        return [found for value, part in zip(values, lazy, strict=True) for found in _pulled_back(value, part)]

    out = vmap(lambda *mine: call(*map(_numbers, values), *mine))(*whole)
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


def _tap(values: list[_SharedTensor], output: Tensor, inputs: list[Tensor], rows_of: rules.RowsOf) -> Tensor:
    """An output, examples in front, with a tap that gives the rows of the parameters behind some values."""
    leaves = [leaf for value in values for leaf in value.history.leaves]
    return leaves[0].layers.tap(leaves[0].rule, output, 0, inputs, rows_of)


# ------------------------------------------------------------ products, tables and convolutions


def _linear(op: _Operation) -> Tensor | None:
    named = op.named("input weight bias")
    x, weight = named["input"], named["weight"]
    if isinstance(weight, _SharedTensor) and weight.ndim == 2 and is_batchedtensor(x):
        return _product(x, weight, named["bias"])
    return None


def _addmm(op: _Operation) -> Tensor | None:
    named = op.named("input mat1 mat2 beta alpha", beta=1, alpha=1)
    if named["beta"] != 1 or named["alpha"] != 1:
        return None
    if isinstance(named["mat2"], _SharedTensor) and is_batchedtensor(named["mat1"]):
        return _product(named["mat1"], named["mat2"], named["input"], turned=True)
    total: Tensor = named["mat1"] @ named["mat2"] + named["input"]
    return total


def _matmul(op: _Operation) -> Tensor | None:
    if len(op.args) != 2:
        return None
    left, right = reversed(op.args) if op.name == "rmatmul" else op.args
    if isinstance(right, _SharedTensor) and is_batchedtensor(left) and right.ndim <= 2:
        if right.ndim == 2:
            return _product(left, right, turned=True)
        column: Any = right[:, None]
        return _product(left, column, turned=True).squeeze(-1)
    if isinstance(left, _SharedTensor) and left.ndim == 2 and right.ndim >= 2 and is_batchedtensor(right):
        return _product(right.mT, left).mT
    return None


def _product(x: Tensor, weight: _SharedTensor, bias: Tensor | None = None, turned: bool = False) -> Tensor:
    """x W' + c, or x W + c where `turned`: outer products of the input and the gradient."""
    biases = [bias] if isinstance(bias, _SharedTensor) and bias.ndim == 1 else []

    def below(n: int, whole: list[Tensor]) -> Tensor:
        x, plain = rules._as_multiplied(whole[0]), _numbers(weight)
        out = F.linear(x, plain.mT if turned else plain, *map(_numbers, biases))
        kept = x.detach()

        def rows(b: Tensor) -> Found:
            a, b = rules._positions(kept), rules._positions(b)
            found = _pulled_back(weight, Outer(b, a) if turned else Outer(a, b))
            return found + [each for own in biases for each in _pulled_back(own, rules._bias_rows(b))]

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
    (mine, value), (other, x) = sorted(pairs, key=lambda pair: not isinstance(pair[1], _SharedTensor))
    sums, new = set(mine) - set(output), set(mine) - set(other)
    rest = [c for c in other if c not in sums]
    plain = len(mine) == 2 and len(sums) == len(new) == 1 and sums <= set(other)
    plain = plain and not isinstance(x, _SharedTensor) and len(set(other)) == len(other)
    if not plain or sorted([*rest, *new]) != sorted(output):
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
    if not isinstance(table, _SharedTensor) or index is None or not is_batchedtensor(index):
        return None

    def below(n: int, whole: list[Tensor]) -> Tensor:
        (index,) = whole

        def rows(b: Tensor) -> Found:
            places = index.reshape(n, -1)
            values = b.reshape(*places.shape, table.numel() // max(1, len(table)))
            return _pulled_back(table, rules._table_rows(places, values, len(table), padding))

        return _tap([table], _numbers(table)[index], [index], rows)

    return _lower(below, index)


_CONVOLUTIONS: tuple[Callable[..., _ConvNd], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _convolution(op: _Operation) -> Tensor | None:
    """A linear layer over patches; the bias has the sum over places."""
    named = op.named("input weight bias stride padding dilation groups", stride=1, padding=0, dilation=1, groups=1)
    x, weight, bias = (named.pop(name) for name in ("input", "weight", "bias"))
    if not isinstance(weight, _SharedTensor) or not is_batchedtensor(x) or x.ndim != weight.ndim:
        return None
    biases = [bias] if isinstance(bias, _SharedTensor) else []
    kind, (q, p, *size) = _CONVOLUTIONS[x.ndim - 3], weight.shape

    def below(n: int, whole: list[Tensor]) -> Tensor:
        x = whole[0].flatten(0, 1)
        kept, layer = x.detach(), kind(p * named["groups"], q, size, bias=False, device="meta", **named)
        out = op.func(x, _numbers(weight), *map(_numbers, biases), **named)

        def rows(b: Tensor) -> Found:
            b = b.flatten(2)
            found = _pulled_back(weight, rules._folded(rules._weight_rows(layer, kept, b, ones=False), n))
            return found + [
                each for own in biases for each in _pulled_back(own, rules._folded(rules._bias_rows(b.mT), n))
            ]

        tapped = _tap([weight, *biases], out, [x], rows)
        return tapped.reshape(n, len(tapped) // n, *tapped.shape[1:])

    out = _lower(below, x)
    return out if bias is None or biases else out + bias.reshape(-1, *[1] * (x.ndim - 2))


FACTORED: dict[str, Callable[[_Operation], Tensor | None]] = {
    "linear": _linear,
    "addmm": _addmm,
    "einsum": _einsum,
    # vmap knows none with a value for each example
    "masked_fill": lambda op: torch.where(op.args[1], op.args[2], op.args[0]),
}
FACTORED |= dict.fromkeys(("matmul", "rmatmul", "mm"), _matmul)
FACTORED |= dict.fromkeys(TABLES, _read)
FACTORED |= dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution)
"""Operations whose rows have factors, by name; None where the arguments are not those of a product."""


# ------------------------------------------------------------ layers that own bare parameters


_HOLDERS = (nn.ParameterList, nn.ParameterDict, nn.ModuleList, nn.ModuleDict)
"""Modules that only hold: whoever holds them computes."""
_CHECKED = 4
"""So many shapes of calls are compared with the output of single examples."""
_REMEDY = (
    "own the parameter in a small module that is given the examples and does only what needs it, or freeze it "
    "(requires_grad_(False))"
)
_ALONE, _SHARED, _BARRED = "one for each example", "shared by all", "no entry for each"
"""What an output of a layer may hold."""


class _OperationRule(LayerRule[nn.Module]):
    """Each use of a parameter with examples is tapped where it happens: the rows of a parameter are the sum over them.

    For modules that own trainable parameters directly: class tokens, position embeddings, low-rank updates, layers of
    one's own.  While the layer computes, its parameters are of `_SharedTensor`, and the top of this file says what
    becomes of them.  Children that own parameters keep their own rules.

    Guarantees:
      * a layer without children that have taps is computed one example at a time (`torch.func.vmap`): its output and
        its rows of an example depend on no other, whatever its code does with a batch; and it gives the same numbers
        for a batch as a whole, or it is refused (checked for the first shapes of call);
      * a gradient that reaches a parameter round the taps is refused, in the backward pass of every batch.
    """

    def bindings(self, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """One leaf for every parameter the layer owns, under its name."""
        owned = self.layer.named_parameters(recurse=False, remove_duplicate=False)
        return {name: LeafBinding(parameter) for name, parameter in owned if trainable(parameter)}

    def install(self, layers: Layers) -> list[Handle]:
        """What computes with the parameters is replaced by `_trace_layers`."""
        return []


def _trace_layers(layers: Layers) -> list[Handle]:
    """Parameters without taps of their layer's are handed, as shared tensors, to whoever computes with them.

    That is the layer itself, or the nearest module above one that only holds parameters.  The root hands out those that
    are read outside their layers.
    """
    hosts: dict[nn.Module, list[_OperationRule]] = {}
    if not any(rule.layer is layers.module and not isinstance(rule, _OperationRule) for rule in layers.sites):
        hosts[layers.module] = []
    for rule in layers.sites:
        if not isinstance(rule, _OperationRule):
            continue
        path, host = rule.name, rule.layer
        while isinstance(host, _HOLDERS):
            remedy = "give the module that computes with these parameters: this one only holds them"
            validate.check(bool(path), "module", type(rule.layer).__name__, remedy)
            path = path.rpartition(".")[0]
            host = layers.module.get_submodule(path)
        hosts.setdefault(host, []).append(rule)
    handles: list[Handle] = []
    for layer, own in hosts.items():
        parameters = [parameter for rule in own for parameter in rule.parameters]
        handles.append(layers.replace_forward(layer, parameters, _TracedForward(layer, layers, own).run))
    return handles


class _TracedForward:
    """Whoever computes with the parameters of some layers without a rule, itself as a rule."""

    def __init__(self, layer: nn.Module, layers: Layers, rules: list[_OperationRule]) -> None:
        self.layer, self.layers, self.plain, self.rules = layer, layers, layer.forward, rules
        self.own = next((rule for rule in rules if rule.layer is layer), None)
        below = {id(child) for child in layer.modules() if child is not layer}
        tapped = any(id(rule.layer) in below for rule in layers.sites)  # which must see the whole batch
        self.single = self.own is not None and len(rules) == 1 and not tapped
        """Whether it can be computed one example at a time."""
        self._settled: dict[Hashable, list[str]] = {}
        """For shapes of calls that were checked: what each of their outputs holds."""

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """The layer's own forward, its parameters shared tensors."""
        leaves, spec = tree_flatten((args, kwargs))
        n, cuts = 0, list[int | None]()
        if self.single and not any(isinstance(x, nn.Module) for x in leaves):  # which may have taps
            n, cuts = self._examples(leaves)
        if n and any(cut is not None for cut in cuts):
            return self._one_by_one(leaves, spec, n, cuts)
        # as a whole: given its parameters and, at the root, those that others read, as shared tensors
        layers = self.layers
        size = next((x.shape[self._dim(x)] for x in leaves if isinstance(x, Tensor) and x.ndim), None)
        with ExitStack() as stack, self._unchanged(leaves):
            if self.layer is layers.module and layers.known.read:
                read = {id(parameter) for name, parameter in layers.named() if name in layers.known.read}
                for rule in layers.sites:
                    stack.enter_context(_attributes_set(rule.layer, _shared_parameters(rule, layers, size, read)))
            for rule in self.rules:
                stack.enter_context(_attributes_set(rule.layer, _shared_parameters(rule, layers, size)))
            return self.plain(*args, **kwargs)

    def _one_by_one(self, leaves: Leaves, spec: TreeSpec, n: int, cuts: list[int | None]) -> Any:
        """The output of every example alone."""
        (rule,) = self.rules
        own = _shared_parameters(rule, self.layers, n, single=True)
        device = rule.parameters[0].device

        def plain(*args: Any, **kwargs: Any) -> Any:
            with _attributes_set(rule.layer, own):
                return self.plain(*args, **kwargs)

        # batches of many sizes count as one kind of call
        call = rules.shapes_of_one(leaves, cuts)
        held = self._settled.get(call)
        if held is None and len(self._settled) >= _CHECKED:
            held = next(iter(self._settled.values()))
        dice = RandomStates(device) if held is None else None
        try:
            with self._unchanged(leaves), _plain_steps(device.type):
                pieces, shape = _one_by_one(plain, leaves, spec, cuts, n)
        except RuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise validate.InvalidInput(
                f"layer {rule.name!r} owns trainable parameters ({', '.join(rule.wanted)}) and cannot be run "
                "one example at a time (control flow or shapes that depend on data, random numbers, gradient "
                f"checkpointing, or an operation that torch.func.vmap does not know): {_REMEDY}. torch said: {reason}"
            ) from error
        for value in own.values():  # what is returned of them meets whole batches
            value.history.leaves[0].single = False
        alone = [self._joined(x) if _is_plain(x) else x for x in pieces]
        whole: Leaves = []
        drew = dice is not None and dice.drew()
        if held is None or _BARRED in held:
            args, kwargs = tree_unflatten(leaves, spec)
            with torch.no_grad(), RandomStates(device):
                whole = tree_flatten(self.plain(*args, **kwargs))[0]
        if held is None:
            held = self._compared(whole, alone, drew)
            if n > 1:  # one example alone has nobody to meet
                self._settled[call] = held
        for place, kind in enumerate(held):
            x = alone[place]
            if kind == _SHARED:
                dim = self._dim(x)
                alone[place] = x.expand([*x.shape[:dim], n, *x.shape[dim + 1 :]])
            elif kind == _BARRED:
                alone[place] = self._barred(whole[place])
        return tree_unflatten(alone, shape)

    def _dim(self, x: Tensor) -> int:
        return rules._examples_dim(x.ndim, self.layers.batch_dim)

    def _examples(self, leaves: Leaves) -> tuple[int, list[int | None]]:
        """How many examples there are, or pieces of them, and where each argument keeps them."""
        held, n = [x for x in leaves if _is_plain(x) and x.ndim], self.layers.now.batch
        if n is None:
            n = next((x.shape[self._dim(x)] for x in held), 0)
        cuts = self._cuts(leaves, n)
        if all(cut is None for cut in cuts) and not self.layers.batch_dim:
            n = next((len(x) for x in held if x.requires_grad and rules._pieces_of(len(x), n)), n)
            cuts = self._cuts(leaves, n)
        return n, cuts

    def _cuts(self, leaves: Leaves, n: int) -> list[int | None]:
        """Where each tensor keeps its examples, if it has one entry for each and never had another number of them.

        A table of positions may have as many entries as one batch has examples, and another number than the next has.
        Of one entry nothing is learned: it may be one example's, or one for all.
        """
        known, others = self.layers.known.shared_places, set[Hashable]()
        cuts: list[int | None] = [None] * len(leaves)
        for place, x in enumerate(leaves):
            if not _is_plain(x) or not x.ndim:
                continue
            key, size = (self.own and self.own.name, "argument", place, x.ndim), x.shape[self._dim(x)]
            if size == n and key not in known:
                cuts[place] = self._dim(x)
            elif size not in (1, n):
                others.add(key)
        if any(cut is not None for cut in cuts):
            known |= others
        return cuts

    def _joined(self, x: Tensor) -> Tensor:
        """The outputs of batches of one, stacked in front, as the output of a batch (as they are if they are not)."""
        dim = self._dim(x[0])
        if x.ndim > 1 + dim and x.shape[1 + dim] == 1:
            return x.squeeze(1 + dim).movedim(0, dim)
        return x

    def _compared(self, whole: Leaves, alone: Leaves, drew: bool) -> list[str]:
        """Refuse outputs of single examples that are not those of the batch; what each of them holds."""
        if len(whole) != len(alone):
            self._refuse("returns other things for an example alone")
        held = []
        for x, y in zip(alone, whole, strict=True):
            kind = _ALONE
            if isinstance(x, _SharedTensor):
                x = _numbers(x)
                if isinstance(y, Tensor) and x.shape != y.shape and x.ndim == y.ndim:
                    kind, x = _SHARED, x.expand_as(y)
            if isinstance(x, Tensor) and (not isinstance(y, Tensor) or x.shape != y.shape):
                kind = _BARRED
            elif isinstance(x, Tensor) and x.is_floating_point() and not drew and not _near_enough(y, x):
                self._refuse(
                    "gives other numbers for an example alone than in the batch (random numbers, examples that meet, "
                    "or an argument with as many entries as there are examples that is not one for each)"
                )
            held.append(kind)
        return held

    def _barred(self, x: Any) -> Any:
        """An output that has no entry for every example: no gradient may come back through it."""
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x

        def refuse(b: Tensor) -> Found:
            self._refuse(
                "returns no tensor with one entry for every example, from which its gradient could be computed"
            )
            return []

        return self.layers.tap(self.rules[0], x, 0, [], refuse)

    @contextmanager
    def _unchanged(self, leaves: Leaves) -> Iterator[None]:
        """Refuse a layer that changes what it is given."""
        versions = [x._version for x in leaves if isinstance(x, Tensor)]
        yield
        if versions != [x._version for x in leaves if isinstance(x, Tensor)]:
            self._refuse("changes its arguments in place; write it out of place")

    def _refuse(self, why: str) -> None:
        """Refuse the layer, by its name."""
        if self.own is not None:
            raise validate.InvalidInput(f"layer {self.own.name!r} owns trainable parameters and {why}: {_REMEDY}")
