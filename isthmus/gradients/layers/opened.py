"""Layers without a rule of their own: taps at the operations on their parameters."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from isthmus.base import validate
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.embedding import _check_table
from isthmus.gradients.layers.folding import _pieces_of
from isthmus.gradients.layers.operations import Leaves, _is_plain, _near_enough, _one_by_one, _plain_steps
from isthmus.gradients.layers.rules import (
    Args,
    Found,
    Handle,
    Kwargs,
    LayerRule,
    Trainable,
    _examples_dim,
    _replaced_forward,
)
from isthmus.gradients.layers.shared import _bare, _open_leaves, _placed, _Shared
from isthmus.gradients.layers.twin import Dice

if TYPE_CHECKING:
    from isthmus.gradients.layers.layers import Layers

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
    one's own.  While the layer computes, its parameters are `_Shared` tensors: `isthmus.gradients.layers.operations`
    says what becomes of them.  Children that own parameters keep their own rules.

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

    def check(self) -> None:
        """Anything goes, but for what no embedding may do."""
        if isinstance(self.layer, (nn.Embedding, nn.EmbeddingBag)):
            _check_table(self.name, self.layer)

    def install(self, layers: Layers) -> list[Handle]:
        """What computes with the parameters is replaced by `_open_layers`."""
        return []


def _open_layers(layers: Layers) -> list[Handle]:
    """Parameters without taps of their layer's are handed, as shared tensors, to whoever computes with them.

    The root hands out those that are read outside their layers.
    """
    hosts: dict[nn.Module, list[_OperationRule]] = {}
    if not any(rule.layer is layers.module and not isinstance(rule, _OperationRule) for rule in layers.sites):
        hosts[layers.module] = []
    for rule in layers.sites:
        if isinstance(rule, _OperationRule):
            hosts.setdefault(_owner(rule, layers.module), []).append(rule)
    return [_replaced_forward(layer, _Host(layer, layers, rules).run) for layer, rules in hosts.items()]


def _owner(rule: _OperationRule, module: nn.Module) -> nn.Module:
    """The layer itself, or the nearest module above one that only holds parameters."""
    path, layer = rule.name, rule.layer
    while isinstance(layer, _HOLDERS):
        if not path:
            remedy = "give the module that computes with these parameters: this one only holds them"
            validate.refuse("module", type(rule.layer).__name__, remedy)
        path = path.rpartition(".")[0]
        layer = module.get_submodule(path)
    return layer


class _Host:
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
        """The layer's own forward, the parameters shared tensors while someone listens."""
        if not self.layers.listens():
            restore = self.layers.silence(p for rule in self.rules for p in rule.parameters)
            try:
                return self.plain(*args, **kwargs)
            finally:
                restore()
        if not self.rules and not self.layers.known.read:
            return self.plain(*args, **kwargs)
        leaves, spec = tree_flatten((args, kwargs))
        n, cuts = 0, list[int | None]()
        if self.single and not any(isinstance(x, nn.Module) for x in leaves):  # which may have taps
            n, cuts = self._examples(leaves)
        if n and any(cut is not None for cut in cuts):
            return self._one_by_one(leaves, spec, n, cuts)
        return self._as_a_whole(leaves, args, kwargs)

    def _as_a_whole(self, leaves: Leaves, args: Args, kwargs: Kwargs) -> Any:
        """Given its parameters and, at the root, those that others read, as shared tensors."""
        layers = self.layers
        n = next((x.shape[self._dim(x)] for x in leaves if isinstance(x, Tensor) and x.ndim), None)
        with ExitStack() as stack, self._unchanged(leaves):
            if self.layer is layers.module and layers.known.read:
                read = {id(parameter) for name, parameter in layers.named() if name in layers.known.read}
                for rule in layers.sites:
                    stack.enter_context(_placed(rule.layer, _open_leaves(rule, layers, n, read)))
            for rule in self.rules:
                stack.enter_context(_placed(rule.layer, _open_leaves(rule, layers, n)))
            return self.plain(*args, **kwargs)

    def _one_by_one(self, leaves: Leaves, spec: TreeSpec, n: int, cuts: list[int | None]) -> Any:
        """The output of every example alone."""
        (rule,) = self.rules
        own = _open_leaves(rule, self.layers, n, single=True)
        device = rule.parameters[0].device

        def plain(*args: Any, **kwargs: Any) -> Any:
            with _placed(rule.layer, own):
                return self.plain(*args, **kwargs)

        # batches of many sizes count as one kind of call
        pairs = zip(leaves, cuts, strict=True)
        call = tuple((cut, *_without(x.shape, cut)) if isinstance(x, Tensor) else None for x, cut in pairs)
        held = self._settled.get(call)
        if held is None and len(self._settled) >= _CHECKED:
            held = next(iter(self._settled.values()))
        dice = Dice(device) if held is None else None
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
            with torch.no_grad(), Dice(device):
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
        return _examples_dim(x.ndim, self.layers.batch_dim)

    def _examples(self, leaves: Leaves) -> tuple[int, list[int | None]]:
        """How many examples there are, or pieces of them, and where each argument keeps them."""
        held, n = [x for x in leaves if _is_plain(x) and x.ndim], self.layers.batch
        if n is None:
            n = next((x.shape[self._dim(x)] for x in held), 0)
        cuts = self._cuts(leaves, n)
        if all(cut is None for cut in cuts) and not self.layers.batch_dim:
            n = next((len(x) for x in held if x.requires_grad and _pieces_of(len(x), n)), n)
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
            if isinstance(x, _Shared):
                x = _bare(x)
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

        return self.layers.tap(self.rules[0], x, 0, [], refuse, self.rules[0].leaves.values())

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


def _without(shape: torch.Size, cut: int | None) -> list[int]:
    """The sizes of one example's part."""
    return [size for place, size in enumerate(shape) if place != cut]
