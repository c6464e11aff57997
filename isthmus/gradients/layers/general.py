"""Any other layer: per-example gradients of its own parameters by a second pass, one example at a time."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from isthmus import _validate
from isthmus.gradients._rounding import CHUNK_BYTES
from isthmus.gradients.base import Dense, Lazy, Rows
from isthmus.gradients.layers.attention import Replaced
from isthmus.gradients.layers.binding import Binding
from isthmus.gradients.layers.rules import Rule, Trainable

REMEDY = "own the parameter in a small module that is given the examples and does only what needs it, or freeze it"


@dataclass(frozen=True, eq=False)
class Call:
    """One call of a layer: its arguments, which of their tensors hold examples, and one of its outputs."""

    name: str
    leaves: list[Any]
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
    autocast: tuple[str, torch.dtype, bool]
    expected: Tensor | None
    """The output itself, while this shape of call is yet to be checked against the second pass."""
    settled: Callable[[], None]

    def part(self, lo: int, hi: int) -> list[Tensor]:
        """The tensors with examples, of examples lo, ..., hi - 1."""
        pairs = zip(self.leaves, self.split, strict=True)
        return [leaf.narrow(dim, lo, hi - lo) for leaf, dim in pairs if dim is not None]

    def arguments(self, own: tuple[Tensor, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of a batch of one: one example's tensors in their places, all else as it was."""
        mine = iter(own)
        pairs = zip(self.leaves, self.split, strict=True)
        filled = [leaf if dim is None else next(mine).unsqueeze(dim) for leaf, dim in pairs]
        return tree_unflatten(filled, self.spec)


class _Bare(nn.Module):
    """A layer's own forward without its hooks: those belong to the first pass."""

    def __init__(self, layer: nn.Module, forward: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.plain = layer, forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the layer itself computes."""
        return self.plain(*args, **kwargs)


class FunctionRule(Rule):
    """g_i = J_i' b_i, the vector-Jacobian product of the layer's function at example i alone, by `torch.func`.

    For modules that own trainable parameters directly: class tokens, position embeddings, low-rank updates, layers of
    one's own.  Children that own parameters keep their own rules.  Tensors among the arguments (nested ones too) whose
    dimension of examples has as many entries as there are examples are taken apart, everything else is shared; each
    output that receives a gradient costs a second pass, and the rows are their sum.

    Guarantees:
      * the second pass gives the output of the first (checked once for every shape of call) or the layer is refused:
        randomness, arguments changed in place and examples that meet inside the layer do not pass unnoticed;
      * never more than about `CHUNK_BYTES` of rows at once; larger ones are computed again each time they are read,
        with the weights of the time of the backward pass.
    """

    kinds = ()

    def __init__(self, batch_dim: int = 0) -> None:
        super().__init__(batch_dim)
        self._settled: set[Any] = set()
        self._layers: Any = None
        self._plain: Callable[..., Any] | None = None

    def bindings(self, layer: Any, trainable: Trainable, split: bool) -> dict[str, Binding]:
        """One leaf for every parameter the layer owns, under its name."""
        return {name: Binding(parameter) for name, parameter in owned(layer) if trainable(parameter)}

    def check(self, name: str, layer: Any) -> None:
        """No random draws: the second pass would see others."""
        for child_name, child in layer.named_modules():
            if draws(child):
                where = f"{name}.{child_name}".strip(".")
                _validate.refuse(
                    "module",
                    type(layer).__name__,
                    f"layer {name!r} owns trainable parameters and holds {where!r}, which draws random numbers: its "
                    f"gradients need a second pass, that would draw others; {REMEDY} (or turn the randomness off)",
                )

    def install(self, site: Any, layers: Any) -> list[Any]:
        """Replace the forward of this one object; say what it costs."""
        self._layers, self._plain = layers, site.layer.forward
        size = sum(binding.weight.numel() for binding in site.wanted.values())
        warnings.warn(
            f"layer {site.name!r} ({type(site.layer).__name__}) owns parameters ({', '.join(site.wanted)}) that no "
            "rule covers: their per-example gradients take the layer's forward and backward pass a second time, one "
            f"example at a time, and (number of examples) x {size} numbers of memory, in chunks; else {REMEDY}",
            UserWarning,
            stacklevel=2,
        )
        rule, plain = self, self._plain

        def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
            if self is not site.layer:  # a copy of the layer
                return type(self).forward(self, *args, **kwargs)
            if not layers._listens():
                return plain(*args, **kwargs)
            return rule._tapped(site, args, kwargs)

        return [Replaced(site.layer, "forward", MethodType(forward, site.layer))]

    def keep(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        """The call, as `_tapped` describes it."""
        return args[0]

    def rows(self, layer: Any, kept: Call, b: Tensor, wanted: Mapping[str, Binding]) -> dict[str, Rows]:
        """The rows of every parameter: all at once where they fit, else each by chunks whenever it is read."""
        same = kept.versions == _versions(kept.leaves)
        _refuse_unless(same, kept.name, "is given a tensor that is changed in place later; change a copy of it")
        own = {name: binding.weight.detach() for name, binding in wanted.items()}
        b = b.detach()
        size = sum(weight.numel() * weight.element_size() for weight in own.values())
        if kept.n * size <= CHUNK_BYTES:
            found = self._pass(layer, kept, b, own, {}, 0, kept.n)
            return {name: Dense(rows) for name, rows in found.items()}
        fixed = _copied(layer)

        def lazy(name: str) -> Rows:
            weight = fixed[f"layer.{name}"]

            def chunk(lo: int, hi: int) -> Tensor:
                return self._pass(layer, kept, b, {name: weight}, fixed, lo, hi)[name]

            return Lazy(chunk, kept.n, weight.numel(), dtype=weight.dtype, device=weight.device)

        return {name: lazy(name) for name in own}

    def _tapped(self, site: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The layer's output with a tap on every tensor in it."""
        self.check(site.name, site.layer)
        leaves, spec = tree_flatten((args, kwargs))
        leaves = [leaf.detach() if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        versions = _versions(leaves)
        assert self._plain is not None
        output = self._plain(*args, **kwargs)
        _refuse_unless(
            versions == _versions(leaves), site.name, "changes its arguments in place; write it out of place"
        )
        outputs, shape = tree_flatten(output)
        alone = isinstance(output, Tensor)
        for index, piece in enumerate(outputs):
            if isinstance(piece, Tensor) and piece.is_floating_point():
                call = self._call(site.name, leaves, spec, piece, index)
                # an output of several may be used inside the layer or be an argument: a copy has its gradient alone
                outputs[index] = self._layers.after(
                    site, (call,), {}, piece if alone and _fresh(piece, leaves) else piece.clone()
                )
        return tree_unflatten(outputs, shape)

    def _call(self, name: str, leaves: list[Any], spec: TreeSpec, output: Tensor, index: int) -> Call:
        dim = self._dim(output)
        n = output.shape[dim] if output.ndim else -1
        batch = self._layers.batch
        split = [
            self._dim(leaf) if isinstance(leaf, Tensor) and leaf.ndim and leaf.shape[self._dim(leaf)] == n else None
            for leaf in leaves
        ]
        known = n >= 0 and (batch is None or n == batch) and any(dim is not None for dim in split)
        cuts = zip([*leaves, output], [*split, dim], strict=True)
        signature = (index, *(_shape(x, cut) for x, cut in cuts))
        kind = output.device.type
        return Call(
            name,
            leaves,
            spec,
            split if known else [],
            index,
            dim,
            n,
            _versions(leaves),
            (kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)),
            None if signature in self._settled else output.detach().clone(),
            lambda: self._settled.add(signature),
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
        _refuse_unless(
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
                args, kwargs = call.arguments(examples)
                output = functional_call(bare, {**fixed, **mine}, args, kwargs, tie_weights=False)
                return tree_flatten(output)[0][call.index]

            result: Any = vjp(function, dict(own))
            output, pull = result
            return pull(b.unsqueeze(call.dim).to(output.dtype))[0], output

        with _second_pass(self._layers, call):
            rows, output = vmap(one, in_dims=(call.dim, *dims))(b.narrow(call.dim, lo, hi - lo), *call.part(lo, hi))
        _compare(call, output, lo, hi)
        return {name: value.reshape(hi - lo, -1) for name, value in rows.items()}


def owned(layer: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """The parameters a layer holds itself, once for every name."""
    return list(layer.named_parameters(recurse=False, remove_duplicate=False))


def draws(module: nn.Module) -> bool:
    """Whether a module of torch's draws random numbers as it is."""
    kinds = (nn.modules.dropout._DropoutNd, nn.MultiheadAttention, nn.RNNBase)
    rate = getattr(module, "p", getattr(module, "dropout", 0.0)) if isinstance(module, kinds) else 0.0
    return module.training and (isinstance(module, nn.RReLU) or bool(rate))


def _shape(x: Any, cut: int | None) -> Any:
    """The shape of one example's part, so that batches of many sizes count as one kind of call."""
    return (cut, *(size for i, size in enumerate(x.shape) if i != cut)) if isinstance(x, Tensor) else None


def _versions(leaves: list[Any]) -> list[int]:
    return [leaf._version for leaf in leaves if isinstance(leaf, Tensor)]


def _fresh(output: Tensor, leaves: list[Any]) -> bool:
    """Whether an output is a tensor of its own, not an argument handed through."""
    return not any(isinstance(leaf, Tensor) and leaf.data_ptr() == output.data_ptr() for leaf in leaves)


def _copied(layer: nn.Module) -> dict[str, Tensor]:
    """Everything the layer computes with, as it is now: rows may be read after the weights have moved."""
    named = [*layer.named_parameters(remove_duplicate=False), *layer.named_buffers(remove_duplicate=False)]
    memo: dict[int, Tensor] = {}
    return {f"layer.{name}": memo.setdefault(id(x), x.detach().clone()) for name, x in named}


def _refuse_unless(ok: bool, name: str, why: str) -> None:
    if not ok:
        raise _validate.InvalidInput(f"layer {name!r} owns trainable parameters and {why}: {REMEDY}")


@contextmanager
def _second_pass(layers: Any, call: Call) -> Iterator[None]:
    """Silent hooks, the precision of the first pass, attention in plain steps, and errors that say what to do."""
    kind, dtype, enabled = call.autocast
    fused = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(layers.listening(None))
        stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False))
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        torch.backends.mha.set_fastpath_enabled(False)
        stack.callback(torch.backends.mha.set_fastpath_enabled, fused)
        try:
            yield
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().split("\n")[0]
            raise _validate.InvalidInput(
                f"layer {call.name!r} owns trainable parameters and cannot be run one example at a time (control flow "
                "or shapes that depend on data, random numbers, gradient checkpointing, or an operation that "
                f"torch.func.vmap does not know): {REMEDY}. torch said: {reason}"
            ) from error


def _slack(call: Call, output: Tensor) -> float:
    """How far, relative to the largest entry, the two passes may differ by rounding alone."""
    if call.autocast[2] or output.element_size() < 4:
        return 3e-2
    if output.dtype == torch.float64:
        return 1e-6
    return 1e-3 if output.device.type == "cpu" else 1e-2  # accelerators may shorten the factors of float32 products


def _compare(call: Call, output: Tensor, lo: int, hi: int) -> None:
    """Refuse a second pass that gave other numbers than the first; once for every shape of call."""
    if call.expected is None:
        return
    first = call.expected.narrow(call.dim, lo, hi - lo)
    second = output.squeeze(1 + call.dim).movedim(0, call.dim)
    slack = _slack(call, first)
    size = float(first.abs().nan_to_num(posinf=0.0).max()) if first.numel() else 0.0
    _refuse_unless(
        torch.allclose(first, second.to(first.dtype), rtol=0.0, atol=slack * size, equal_nan=True),
        call.name,
        "gives other numbers for an example alone than in the batch (random numbers, examples that meet, or an "
        "argument with as many entries as there are examples that is not one for each)",
    )
    if call.n > 1:  # one example alone has nobody to meet
        call.settled()
