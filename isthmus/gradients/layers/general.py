"""Any other layer: per-example gradients of its own parameters by a second pass, one example at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from isthmus.base import validate
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.rules import Args, Kwargs, LayerRule, Site, Taps, Trainable
from isthmus.gradients.layers.shared import Shared
from isthmus.gradients.rounding import CHUNK_BYTES
from isthmus.gradients.rows import Dense, Lazy, Rows

REMEDY = (
    "own the parameter in a small module that is given the examples and does only what needs it, or freeze it "
    "(requires_grad_(False))"
)


Leaves: TypeAlias = list[Any]
"""The pieces of arguments or outputs: tensors and anything else."""
Autocast = tuple[str, torch.dtype, bool]
"""The kind of a device, the dtype of its products, and whether they are shortened to it."""


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: its arguments, which of their tensors hold examples, and one of its outputs."""

    name: str
    leaves: Leaves
    spec: TreeSpec
    split: list[int | None]
    """The dimension of the examples, for every leaf of the arguments that has one."""
    index: int
    """Which output."""
    dim: int
    """Where that output keeps its examples."""
    n: int
    versions: list[int]
    """How often each tensor among the arguments had been changed in place."""
    autocast: Autocast
    expected: Tensor | None
    """The output of the whole batch, where it was not computed one example at a time."""

    def part(self, lo: int, hi: int) -> list[Tensor]:
        """The tensors with examples, of examples lo, ..., hi - 1."""
        pairs = zip(self.leaves, self.split, strict=True)
        return [leaf.narrow(dim, lo, hi - lo) for leaf, dim in pairs if dim is not None]


def arguments(own: tuple[Tensor, ...], leaves: Leaves, split: list[int | None], spec: TreeSpec) -> tuple[Args, Kwargs]:
    """Arguments of a batch of one: one example's tensors in their places, all else as it was."""
    mine = iter(own)
    pairs = zip(leaves, split, strict=True)
    filled = [leaf if dim is None else next(mine).unsqueeze(dim) for leaf, dim in pairs]
    args, kwargs = tree_unflatten(filled, spec)
    return args, kwargs


class _Bare(nn.Module):
    """A layer's own forward without its hooks: those belong to the first pass."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.plain = layer, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer itself computes."""
        return self.plain(*args, **kwargs)


class FunctionRule(LayerRule[nn.Module, Call]):
    """g_i = J_i' b_i, the vector-Jacobian product of the layer's function at example i alone, by `torch.func`.

    For modules that own trainable parameters directly: class tokens, position embeddings, low-rank updates, layers of
    one's own.  Children that own parameters keep their own rules.  Tensors among the arguments (nested ones too) whose
    dimension of examples has as many entries as there are examples are taken apart, everything else is shared; each
    output that receives a gradient costs a second pass, and the rows are their sum.

    Guarantees:
      * a layer without such children computes its output one example at a time (`torch.func.vmap`), in the first pass
        too: what is handed on of an example depends on no other, whatever the layer's code does with a batch;
      * the output of the whole batch is that of its examples alone, or the layer is refused (checked once for every
        shape of call; at every call where children have rules of their own, and there up to rounding only);
      * never more than about `CHUNK_BYTES` of rows at once; larger ones are computed again each time they are read,
        with the weights of the time of the backward pass.
    """

    kinds = ()

    def __init__(self, batch_dim: int = 0) -> None:
        super().__init__(batch_dim)
        self._settled: dict[Hashable, list[int]] = {}
        """For shapes of calls that were checked: which of their outputs have one entry for every example."""
        self._taps: Taps | None = None
        self._plain: Callable[..., Any] | None = None
        self._whole = False
        """Whether children have taps, which must see the whole batch."""

    def bindings(self, layer: nn.Module, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """One leaf for every parameter the layer owns, under its name."""
        return {name: LeafBinding(parameter) for name, parameter in owned(layer) if trainable(parameter)}

    def check(self, name: str, layer: nn.Module) -> None:
        """No random draws: the second pass would see others."""
        for child_name, child in layer.named_modules():
            if draws(child):
                where = f"{name}.{child_name}".strip(".")
                validate.refuse(
                    "module",
                    type(layer).__name__,
                    f"{REMEDY}, or turn the randomness off: layer {name!r} owns trainable parameters and holds "
                    f"{where!r}, which draws random numbers, and the second pass that its gradients need would "
                    "draw other ones",
                )

    def ready(self, site: Site, layers: Taps, plain: Callable[..., Any]) -> None:
        """Know the layers, the layer's own forward, and whether children have taps."""
        self._taps, self._plain = layers, plain
        below = {id(child) for child in site.layer.modules() if child is not site.layer}
        self._whole = any(id(candidate.layer) in below for candidate in layers.sites)

    def warn(self, site: Site) -> None:
        """Say what the second pass costs."""
        size = sum(binding.weight.numel() for binding in site.wanted.values())
        warnings.warn(
            f"layer {site.name!r} ({type(site.layer).__name__}) owns parameters ({', '.join(site.wanted)}) that no "
            "rule covers: their per-example gradients take the layer's forward and backward pass a second time, one "
            f"example at a time, and (number of examples) x {size} numbers of memory, in chunks; else {REMEDY}",
            UserWarning,
            stacklevel=2,
        )

    @property
    def _layers(self) -> Taps:
        assert self._taps is not None  # `install` comes before any pass
        return self._taps

    def keep(self, layer: nn.Module, args: Args, kwargs: Kwargs) -> Call:
        """The call, as `tapped` describes it."""
        call: Call = args[0]
        return call

    def rows(self, layer: nn.Module, factors: Call, b: Tensor, wanted: Mapping[str, LeafBinding]) -> dict[str, Rows]:
        """The rows of every parameter: all at once where they fit, else each by chunks whenever it is read."""
        same = factors.versions == _versions(factors.leaves)
        refuse_unless(same, factors.name, "is given a tensor that is changed in place later; change a copy of it")
        own = {name: binding.weight.detach() for name, binding in wanted.items()}
        b = b.detach()
        size = sum(weight.numel() * weight.element_size() for weight in own.values())
        if factors.n * size <= CHUNK_BYTES:
            leaves = self._pass(layer, factors, b, own, {}, 0, factors.n)
            return {name: Dense(rows) for name, rows in leaves.items()}
        fixed = _copied(layer)

        def lazy(name: str) -> Rows:
            weight = fixed[f"layer.{name}"]

            def chunk(lo: int, hi: int) -> Tensor:
                return self._pass(layer, factors, b, {name: weight}, fixed, lo, hi)[name]

            return Lazy(chunk, factors.n, weight.numel(), dtype=weight.dtype, device=weight.device)

        return {name: lazy(name) for name in own}

    def tapped(self, site: Site, args: Args, kwargs: Kwargs) -> Any:
        """The layer's output with a tap on every tensor in it."""
        self.check(site.name, site.layer)
        inputs, spec = tree_flatten((args, kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in inputs]
        outputs, shape = self._outputs(site.name, inputs, spec)
        for index, piece in enumerate(outputs):
            if isinstance(piece, Tensor) and piece.is_floating_point():
                call = self._call(site.name, leaves, spec, piece, index)
                # an output of several may be used inside the layer or be an argument: a copy has its gradient alone
                fresh = len(outputs) == 1 and _fresh(piece, leaves)
                outputs[index] = self._layers.after(site, (call,), {}, piece if fresh else piece.clone())
        return tree_unflatten(outputs, shape)

    def _outputs(self, name: str, leaves: Leaves, spec: TreeSpec) -> tuple[Leaves, TreeSpec]:
        """The pieces of the output: of every example alone, where no child has taps that must see the whole batch."""
        n = self._count(leaves)
        split = self._learned(name, leaves, n)
        if self._whole or not n or all(dim is None for dim in split):
            return self._all(name, leaves, spec)
        alone, shape = self._each(name, leaves, spec, split)
        signature = tuple(shape_of(x, cut) for x, cut in zip(leaves, split, strict=True))
        apart = self._settled.get(signature)
        if apart is None:
            with torch.no_grad():  # nothing to remember: a recomputed pass finds the shape settled
                whole, again = self._all(name, leaves, spec)
            refuse_unless(again == shape, name, "returns other things for an example alone than for the batch")
            apart = alike(name, whole, alone)
            if n > 1:  # one example alone has nobody to meet
                self._settled[signature] = apart
        if all(apart):
            return alone, shape
        # what has no entry for every example is handed on as it is, and refused when a gradient comes back
        whole, _ = self._all(name, leaves, spec)
        return [x if mine else y for x, y, mine in zip(alone, whole, apart, strict=True)], shape

    def _all(self, name: str, leaves: Leaves, spec: TreeSpec) -> tuple[Leaves, TreeSpec]:
        """The pieces of the output of the whole batch at once."""
        assert self._plain is not None
        args, kwargs = tree_unflatten(leaves, spec)
        with unchanged(name, leaves):
            return tree_flatten(self._plain(*args, **kwargs))

    def _each(self, name: str, leaves: Leaves, spec: TreeSpec, split: list[int | None]) -> tuple[Leaves, TreeSpec]:
        """The pieces of the output, one example at a time, examples where the module keeps them."""
        plain, flattened = self._plain, []
        assert plain is not None

        def one(*examples: Tensor) -> tuple[Tensor, ...]:
            args, kwargs = arguments(examples, leaves, split, spec)
            flattened.append(tree_flatten(plain(*args, **kwargs)))
            return tuple(piece for piece in flattened[-1][0] if isinstance(piece, Tensor))

        pairs = [(leaf, cut) for leaf, cut in zip(leaves, split, strict=True) if cut is not None]
        with unchanged(name, leaves), _one_by_one(self._layers, name, autocast_of(pairs[0][0])):
            outputs = iter(vmap(one, in_dims=tuple(cut for _, cut in pairs))(*(leaf for leaf, _ in pairs)))
        ((pieces, shape),) = flattened
        return [self._joined(next(outputs)) if isinstance(piece, Tensor) else piece for piece in pieces], shape

    def _joined(self, x: Tensor) -> Tensor:
        """The outputs of batches of one, stacked in front, as the output of a batch (as they are if they are not)."""
        dim = self._dim(x[0])
        return x.squeeze(1 + dim).movedim(0, dim) if x.ndim > 1 + dim and x.shape[1 + dim] == 1 else x

    def _count(self, leaves: Leaves) -> int:
        """The number of examples: as the pass was told, else as the first tensor has it."""
        if self._layers.batch is not None:
            return self._layers.batch
        return next((x.shape[self._dim(x)] for x in leaves if _whole(x)), 0)

    def _learned(self, name: str, leaves: Leaves, n: int) -> list[int | None]:
        """As `_split`; arguments that have no entry for every example are remembered as shared by all.

        A table of positions may have as many entries as one batch has examples, and another number than the next has.
        Of one entry nothing is learned: it may be one example's, or one for all.
        """
        split = self._split(name, leaves, n)
        if any(cut is not None for cut in split):
            for place, (x, cut) in enumerate(zip(leaves, split, strict=True)):
                if cut is None and _whole(x) and x.shape[self._dim(x)] not in (1, n):
                    self._layers.shared_places.add(_argument(name, place, x))
        return split

    def _split(self, name: str, leaves: Leaves, n: int) -> list[int | None]:
        """Where each tensor keeps its examples, if it has one entry for each and never had another number of them."""
        return [self._cut(x, n, _argument(name, place, x)) for place, x in enumerate(leaves)]

    def _cut(self, x: object, n: int, argument: Hashable) -> int | None:
        if not _whole(x) or argument in self._layers.shared_places or x.shape[self._dim(x)] != n:
            return None
        return self._dim(x)

    def _call(self, name: str, leaves: Leaves, spec: TreeSpec, output: Tensor, index: int) -> Call:
        dim, batch = self._dim(output), self._layers.batch
        n = output.shape[dim] if output.ndim else -1
        split = self._split(name, leaves, n)
        consistent = n >= 0 and (batch is None or n == batch) and any(cut is not None for cut in split)
        return Call(
            name,
            leaves,
            spec,
            split if consistent else [],
            index,
            dim,
            n,
            _versions(leaves),
            autocast_of(output),
            output.detach().clone() if self._whole else None,
        )

    def _dim(self, x: Tensor) -> int:
        return 0 if x.ndim < 3 else self.batch_dim

    def _pass(
        self,
        layer: nn.Module,
        call: Call,
        b: Tensor,
        own: Mapping[str, Tensor],
        fixed: Mapping[str, Tensor],
        lo: int,
        hi: int,
    ) -> dict[str, Tensor]:
        """The rows lo, ..., hi - 1 of the parameters `own`, each with the others held fixed."""
        apart = any(dim is not None for dim in call.split)
        refuse_unless(
            apart,
            call.name,
            "gets or returns no tensor with one entry for every example, where its gradient comes from",
        )
        if hi == lo:
            return {name: weight.new_zeros(0, weight.numel()) for name, weight in own.items()}
        assert self._plain is not None
        bare = _Bare(layer, self._plain)
        dims = [dim for dim in call.split if dim is not None]

        def one(b: Tensor, *examples: Tensor) -> tuple[dict[str, Tensor], Tensor]:
            def function(parameters: dict[str, Tensor]) -> Tensor:
                mine = {f"layer.{name}": value for name, value in parameters.items()}
                args, kwargs = arguments(examples, call.leaves, call.split, call.spec)
                output = functional_call(bare, {**fixed, **mine}, args, kwargs, tie_weights=False)
                piece: Tensor = tree_flatten(output)[0][call.index]
                return piece

            result: Any = vjp(function, dict(own))
            output, pull = result
            return pull(b.unsqueeze(call.dim).to(output.dtype))[0], output

        with torch.no_grad(), _one_by_one(self._layers, call.name, call.autocast):
            rows, output = vmap(one, in_dims=(call.dim, *dims))(b.narrow(call.dim, lo, hi - lo), *call.part(lo, hi))
        if call.expected is not None:
            _agree(call.name, call.expected.narrow(call.dim, lo, hi - lo), self._joined(output), call.autocast)
        return {name: value.reshape(hi - lo, -1) for name, value in rows.items()}


def _whole(x: object) -> TypeGuard[Tensor]:
    """Whether an argument may hold examples: a tensor with dimensions that is not computed from parameters alone."""
    return isinstance(x, Tensor) and not isinstance(x, Shared) and x.ndim > 0


def _argument(name: str, place: int, x: object) -> Hashable:
    """An argument of a layer, by which it is known from call to call."""
    return name, "argument", place, x.ndim if isinstance(x, Tensor) else None


def owned(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters a layer holds itself, once for every name."""
    return list(layer.named_parameters(recurse=False, remove_duplicate=False))


def draws(module: nn.Module) -> bool:
    """Whether a module of torch's draws random numbers as it is."""
    kinds = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)
    rate = getattr(module, "p", getattr(module, "dropout", 0.0)) if isinstance(module, kinds) else 0.0
    return module.training and (isinstance(module, nn.RReLU) or bool(rate))


def shape_of(x: object, cut: int | None) -> Hashable:
    """The shape of one example's part, so that batches of many sizes count as one kind of call."""
    return (cut, *(size for i, size in enumerate(x.shape) if i != cut)) if isinstance(x, Tensor) else None


def _versions(leaves: Leaves) -> list[int]:
    return [leaf._version for leaf in leaves if isinstance(leaf, Tensor)]


def _fresh(output: Tensor, leaves: Leaves) -> bool:
    """Whether an output is a tensor of its own, not an argument handed through."""
    return not any(isinstance(leaf, Tensor) and leaf.data_ptr() == output.data_ptr() for leaf in leaves)


def _copied(layer: nn.Module) -> dict[str, Tensor]:
    """Everything the layer computes with, as it is now: rows may be read after the weights have moved."""
    named = [*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)]
    memo: dict[int, Tensor] = {}
    return {f"layer.{name}": memo.setdefault(id(x), x.detach().clone()) for name, x in named}


def refuse_unless(ok: bool, name: str, why: str) -> None:
    """Refuse a layer, by its name, unless something holds of it."""
    if not ok:
        raise validate.InvalidInput(f"layer {name!r} owns trainable parameters and {why}: {REMEDY}")


@contextmanager
def unchanged(name: str, leaves: Leaves) -> Iterator[None]:
    """Refuse a layer that changes what it is given."""
    versions = _versions(leaves)
    yield
    refuse_unless(versions == _versions(leaves), name, "changes its arguments in place; write it out of place")


def autocast_of(x: Tensor) -> Autocast:
    """How products are taken on the device of a tensor."""
    kind = x.device.type
    return kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)


@contextmanager
def _one_by_one(layers: Taps, name: str, autocast: Autocast) -> Iterator[None]:
    """No taps, and what `singly` says."""
    with layers.listening(None), layers.untouched(), singly(name, autocast):
        yield


@contextmanager
def singly(name: str, autocast: Autocast, parameters: Iterable[str] = ()) -> Iterator[None]:
    """The precision of the first pass, attention in plain steps, and errors that say what to do."""
    kind, dtype, enabled = autocast
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().split("\n")[0]
            owned = f" ({', '.join(parameters)})" if parameters else ""
            raise validate.InvalidInput(
                f"layer {name!r} owns trainable parameters{owned} and cannot be run one example at a time (control "
                "flow or shapes that depend on data, random numbers, gradient checkpointing, or an operation that "
                f"torch.func.vmap does not know): {REMEDY}. torch said: {reason}"
            ) from error


def _slack(output: Tensor, autocast: Autocast) -> float:
    """How far, relative to the largest entry, the two passes may differ by rounding alone."""
    if autocast[2] or output.element_size() < 4:
        return 3e-2
    if output.dtype == torch.float64:
        return 1e-6
    return 1e-3 if output.device.type == "cpu" else 1e-2  # accelerators may shorten the factors of float32 products


def alike(name: str, whole: Leaves, alone: Leaves, values: bool = True) -> list[int]:
    """Which outputs of a batch have the shape, and then the numbers, of those of its examples alone."""
    apart = [int(not isinstance(x, Tensor) or x.shape == y.shape) for x, y in zip(alone, whole, strict=True)]
    for batch, single, mine in zip(whole, alone, apart, strict=True):
        if values and mine and isinstance(single, Tensor) and single.is_floating_point():
            _agree(name, batch.detach(), single.detach())
    return apart


def _agree(name: str, batch: Tensor, alone: Tensor, autocast: Autocast | None = None) -> None:
    """Refuse a layer that gives other numbers for examples alone than for a batch of them."""
    slack = _slack(batch, autocast_of(batch) if autocast is None else autocast)
    size = float(batch.abs().nan_to_num(posinf=0.0).max()) if batch.numel() else 0.0
    refuse_unless(
        torch.allclose(batch, alone.to(batch.dtype), rtol=0.0, atol=slack * size, equal_nan=True),
        name,
        "gives other numbers for an example alone than in the batch (random numbers, examples that meet, or an "
        "argument with as many entries as there are examples that is not one for each)",
    )
