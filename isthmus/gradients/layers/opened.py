"""Layers without a rule of their own: taps at the operations on their parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cached_property
from types import MethodType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from isthmus.base import validate
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.embedding import check_table
from isthmus.gradients.layers.folding import pieces_of
from isthmus.gradients.layers.operations import Leaves, is_plain, near_enough, one_by_one, plain_steps
from isthmus.gradients.layers.rules import Args, Handle, Kwargs, LayerRule, Replaced, Site, Trainable
from isthmus.gradients.layers.shared import Shared, bare, open_leaves, placed
from isthmus.gradients.layers.twin import Dice
from isthmus.gradients.rows import Rows

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
ALONE, SHARED, BARRED = "one for each example", "shared by all", "no entry for each"
"""What an output of a layer may hold."""


class OperationRule(LayerRule[nn.Module, Any]):
    """Each use of a parameter with examples is tapped where it happens: the rows of a parameter are the sum over them.

    For modules that own trainable parameters directly: class tokens, position embeddings, low-rank updates, layers of
    one's own.  While the layer computes, its parameters are `Shared` tensors: `isthmus.gradients.layers.operations`
    says what becomes of them.  Children that own parameters keep their own rules.

    Guarantees:
      * a layer without children that have taps is computed one example at a time (`torch.func.vmap`): its output and
        its rows of an example depend on no other, whatever its code does with a batch; and it gives the same numbers
        for a batch as a whole, or it is refused (checked for the first shapes of call);
      * a gradient that reaches a parameter round the taps is refused, in the backward pass of every batch.
    """

    kinds = ()

    def bindings(self, layer: nn.Module, trainable: Trainable, split: bool) -> dict[str, LeafBinding]:
        """One leaf for every parameter the layer owns, under its name."""
        owned = layer.named_parameters(recurse=False, remove_duplicate=False)
        return {name: LeafBinding(parameter) for name, parameter in owned if trainable(parameter)}

    def check(self, name: str, layer: nn.Module) -> None:
        """Anything goes, but for what no embedding may do."""
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            check_table(name, layer)

    def install(self, site: Site, layers: Layers) -> list[Handle]:
        """Hand the parameters to whoever computes with them as shared tensors."""
        owner = _owner(site, layers)
        host = getattr(owner.__dict__.get("forward"), "host", None)
        if host is not None:
            host.sites.append(site)
            return []
        return _Host(owner, layers, [site]).install()


class _Single:
    """A layer of one's own that is computed one example at a time."""

    def __init__(self, site: Site, layers: Layers, plain: Callable[..., Any]) -> None:
        self.site, self.layers, self.plain = site, layers, plain
        self._settled: dict[Hashable, list[str]] = {}
        """For shapes of calls that were checked: what each of their outputs holds."""

    def run(self, args: Args, kwargs: Kwargs) -> tuple[Leaves, TreeSpec] | None:
        """The pieces of the output, of every example alone; None where examples have to be seen together."""
        site, (leaves, spec) = self.site, tree_flatten((args, kwargs))
        n, cuts = self._examples(leaves)
        modules = any(isinstance(x, nn.Module) for x in leaves)  # which may have taps
        if modules or not n or all(cut is None for cut in cuts):
            return None
        own = open_leaves(site, self.layers, n, single=True)

        def plain(*args: Any, **kwargs: Any) -> Any:
            with placed(site.layer, own):
                return self.plain(*args, **kwargs)

        signature = tuple(_shape_of(x, cut) for x, cut in zip(leaves, cuts, strict=True))
        held = self._settled.get(signature)
        if held is None and len(self._settled) >= _CHECKED:
            held = next(iter(self._settled.values()))
        dice = Dice(site.parameters[0].device) if held is None else None
        with _unchanged(site.name, leaves), self._explained(site.parameters[0]):
            pieces, shape = one_by_one(plain, leaves, spec, cuts, n)
        for value in own.values():  # what is returned of them meets whole batches
            value.history.leaves[0].single = False
        alone = [self._joined(x) if is_plain(x) else x for x in pieces]
        if dice is not None:
            held = self._compared(leaves, spec, alone, drew=dice.drew())
            if n > 1:  # one example alone has nobody to meet
                self._settled[signature] = held
        assert held is not None
        whole = alone if BARRED not in held else self._together(leaves, spec)
        for place, kind in enumerate(held):
            if kind == SHARED:
                dim = self._dim(alone[place])
                sizes = [n if i == dim else size for i, size in enumerate(alone[place].shape)]
                alone[place] = alone[place].expand(sizes)
            elif kind == BARRED:
                alone[place] = self._barred(whole[place])
        return alone, shape

    def _dim(self, x: Tensor) -> int:
        return 0 if x.ndim < 3 else self.site.rule.batch_dim

    def _examples(self, leaves: Leaves) -> tuple[int, list[int | None]]:
        """How many examples there are, or pieces of them, and where each argument keeps them."""
        held, n = [x for x in leaves if is_plain(x) and x.ndim], self.layers.batch
        if n is None:
            n = next((x.shape[self._dim(x)] for x in held), 0)
        cuts = self._cuts(leaves, n)
        if all(cut is None for cut in cuts) and not self.layers.batch_dim:
            sizes = [len(x) for x in held if x.requires_grad]
            n = next((size for size in sizes if pieces_of(size, n)), n)
            cuts = self._cuts(leaves, n)
        return n, cuts

    def _cuts(self, leaves: Leaves, n: int) -> list[int | None]:
        """Where each tensor keeps its examples, if it has one entry for each and never had another number of them.

        A table of positions may have as many entries as one batch has examples, and another number than the next has.
        Of one entry nothing is learned: it may be one example's, or one for all.
        """
        known, others = self.layers.known.shared_places, set[Hashable]()
        cuts: list[int | None] = []
        for place, x in enumerate(leaves):
            cuts.append(None)
            if not is_plain(x) or not x.ndim:
                continue
            key, size = (self.site.name, "argument", place, x.ndim), x.shape[self._dim(x)]
            if size == n and key not in known:
                cuts[-1] = self._dim(x)
            elif size not in (1, n):
                others.add(key)
        if any(cut is not None for cut in cuts):
            known |= others
        return cuts

    def _joined(self, x: Tensor) -> Tensor:
        """The outputs of batches of one, stacked in front, as the output of a batch (as they are if they are not)."""
        dim = self._dim(x[0])
        return x.squeeze(1 + dim).movedim(0, dim) if x.ndim > 1 + dim and x.shape[1 + dim] == 1 else x

    def _compared(self, leaves: Leaves, spec: TreeSpec, alone: Leaves, drew: bool) -> list[str]:
        """Refuse outputs of single examples that are not those of the batch; what each of them holds."""
        whole, name = self._together(leaves, spec), self.site.name
        _refuse_unless(len(whole) == len(alone), name, "returns other things for an example alone")
        held = []
        for x, y in zip(alone, whole, strict=True):
            kind = ALONE
            if isinstance(x, Shared):
                kind = SHARED if isinstance(y, Tensor) and x.shape != y.shape and x.ndim == y.ndim else ALONE
                x = bare(x).expand_as(y) if kind == SHARED else bare(x)
            if isinstance(x, Tensor) and (not isinstance(y, Tensor) or x.shape != y.shape):
                kind = BARRED
            elif isinstance(x, Tensor) and x.is_floating_point() and not drew:
                _refuse_unless(
                    near_enough(y, x.detach()),
                    name,
                    "gives other numbers for an example alone than in the batch (random numbers, examples that meet, "
                    "or an argument with as many entries as there are examples that is not one for each)",
                )
            held.append(kind)
        return held

    def _together(self, leaves: Leaves, spec: TreeSpec) -> Leaves:
        """The output of the batch as a whole, its parameters asking for no gradient, and the dice as they were."""
        args, kwargs = tree_unflatten(leaves, spec)
        restore = self.layers.silence(self.site.parameters)
        try:
            with self.layers.listening(None), torch.no_grad(), Dice(self.site.parameters[0].device):
                return tree_flatten(self.plain(*args, **kwargs))[0]
        finally:
            restore()

    def _barred(self, x: Any) -> Any:
        """An output that has no entry for every example: no gradient may come back through it."""

        def refuse(b: Tensor) -> list[tuple[Site, dict[str, Rows]]]:
            why = "returns no tensor with one entry for every example, from which its gradient could be computed"
            raise validate.InvalidInput(f"layer {self.site.name!r} owns trainable parameters and {why}: {_REMEDY}")

        floats = isinstance(x, Tensor) and x.is_floating_point()
        return self.layers.tap(self.site, x, 0, [], refuse) if floats else x

    @contextmanager
    def _explained(self, like: Tensor) -> Iterator[None]:
        """Errors that say what to do."""
        try:
            with plain_steps(like):
                yield
        except (RuntimeError, NotImplementedError) as error:
            reason = str(error).strip().split("\n")[0]
            raise validate.InvalidInput(
                f"layer {self.site.name!r} owns trainable parameters ({', '.join(self.site.wanted)}) and cannot be run "
                "one example at a time (control flow or shapes that depend on data, random numbers, gradient "
                f"checkpointing, or an operation that torch.func.vmap does not know): {_REMEDY}. torch said: {reason}"
            ) from error


def install_root(layers: Layers) -> list[Handle]:
    """Where parameters that are read outside their layers are handed out."""
    ruled = any(site.layer is layers.module and not isinstance(site.rule, OperationRule) for site in layers.sites)
    return [] if ruled else _Host(layers.module, layers, []).install()


class _Host:
    """Whoever computes with the parameters of some sites: its forward hands them out as shared tensors."""

    def __init__(self, layer: nn.Module, layers: Layers, sites: list[Site]) -> None:
        self.layer, self.layers, self.plain, self.sites = layer, layers, layer.forward, sites

    def install(self) -> list[Handle]:
        """Replace the forward of this one object."""
        host = self

        def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self is not host.layer:  # a copy of the layer
                return type(self).forward(self, *args, **kwargs)
            return host.run(args, kwargs)

        forward.tapped, forward.host = True, self  # type: ignore[attr-defined]
        # trainers read from it which columns a model takes
        forward.__signature__ = inspect.signature(type(self.layer).forward)  # type: ignore[attr-defined]
        return [Replaced(self.layer, "forward", MethodType(forward, self.layer))]

    def run(self, args: Args, kwargs: Kwargs) -> Any:
        """The layer's own forward, its parameters shared tensors while someone listens."""
        if not self.layers.listens():
            restore = self.layers.silence([p for site in self.sites for p in site.parameters])
            try:
                return self.plain(*args, **kwargs)
            finally:
                restore()
        if not self.sites and not self.layers.known.read:
            return self.plain(*args, **kwargs)
        own = next((site for site in self.sites if site.layer is self.layer), None)
        answer = None if self.single is None else self.single.run(args, kwargs)
        if answer is not None:
            return tree_unflatten(*answer)
        leaves = tree_flatten((args, kwargs))[0]
        with self._shared(leaves), _unchanged(own.name, leaves) if own else nullcontext():
            return self.plain(*args, **kwargs)

    @cached_property
    def single(self) -> _Single | None:
        """The layer one example at a time, where it has no children with taps, which must see the whole batch."""
        below = {id(child) for child in self.layer.modules() if child is not self.layer}
        tapped = any(id(site.layer) in below for site in self.layers.sites)
        if tapped or len(self.sites) != 1 or self.sites[0].layer is not self.layer:
            return None
        return _Single(self.sites[0], self.layers, self.plain)

    @contextmanager
    def _shared(self, leaves: Leaves) -> Iterator[None]:
        """The parameters of the sites, and at the root those that others read, as shared tensors."""
        held = (x for x in leaves if isinstance(x, Tensor) and x.ndim)
        n = next((x.shape[0 if x.ndim < 3 else self.layers.batch_dim] for x in held), None)
        with ExitStack() as stack:
            if self.layer is self.layers.module and self.layers.known.read:
                for site in self.layers.sites:
                    stack.enter_context(placed(site.layer, open_leaves(site, self.layers, n, self.layers.read_ids())))
            for site in self.sites:
                stack.enter_context(placed(site.layer, open_leaves(site, self.layers, n)))
            yield


def _owner(site: Site, layers: Layers) -> nn.Module:
    """The layer itself, or the nearest module above one that only holds parameters."""
    if not isinstance(site.layer, _HOLDERS):
        return site.layer
    path = site.name
    while path:
        path = path.rpartition(".")[0]
        layer = layers.module.get_submodule(path)
        if not isinstance(layer, _HOLDERS):
            return layer
    validate.refuse(
        "module",
        type(site.layer).__name__,
        "give the module that computes with these parameters: this one only holds them",
    )


def _shape_of(x: object, cut: int | None) -> Hashable:
    """The shape of one example's part, so that batches of many sizes count as one kind of call."""
    return (cut, *(size for i, size in enumerate(x.shape) if i != cut)) if isinstance(x, Tensor) else None


def _refuse_unless(ok: bool, name: str, why: str) -> None:
    """Refuse a layer, by its name, unless something holds of it."""
    if not ok:
        raise validate.InvalidInput(f"layer {name!r} owns trainable parameters and {why}: {_REMEDY}")


@contextmanager
def _unchanged(name: str, leaves: Leaves) -> Iterator[None]:
    """Refuse a layer that changes what it is given."""
    versions = [x._version for x in leaves if isinstance(x, Tensor)]
    yield
    same = versions == [x._version for x in leaves if isinstance(x, Tensor)]
    _refuse_unless(same, name, "changes its arguments in place; write it out of place")
