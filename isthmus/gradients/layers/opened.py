"""Layers without a rule of their own: taps at the operations on their parameters, else a second pass."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import MethodType
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from isthmus.base import validate
from isthmus.gradients.layers import general, operations  # noqa: F401
from isthmus.gradients.layers.attention import Replaced
from isthmus.gradients.layers.embedding import check_table
from isthmus.gradients.layers.folding import pieces_of
from isthmus.gradients.layers.general import FunctionRule, Leaves
from isthmus.gradients.layers.rules import Args, Handle, Kwargs, Site, Taps
from isthmus.gradients.layers.shared import Shared, Unseen, bare, open_leaves, placed
from isthmus.gradients.layers.twin import Dice
from isthmus.gradients.rows import Rows

HOLDERS = (nn.ParameterList, nn.ParameterDict, nn.ModuleList, nn.ModuleDict)
"""Modules that only hold: whoever holds them computes."""
SPREAD = 2
"""An output that is the same for every example, and repeated for each."""
CHECKED = 4
"""So many shapes of calls are compared with the output of single examples."""


class OperationRule(FunctionRule):
    """Each use of a parameter with examples is tapped where it happens: the rows of a parameter are the sum over them.

    While the layer computes, its parameters are `Shared` tensors: `isthmus.gradients.layers.operations` says what
    becomes of them.

    Guarantees:
      * a layer without children that have taps is computed one example at a time (`torch.func.vmap`): its output and
        its rows of an example depend on no other, whatever its code does with a batch; and it gives the same numbers
        for a batch as a whole, or it is refused (checked for the first shapes of call);
      * a gradient that reaches a parameter round the taps is refused, in the backward pass of every batch;
      * where an operation shows no rows the whole layer is computed as `FunctionRule` says, and a warning says so.
    """

    kinds = ()

    def __init__(self, batch_dim: int = 0) -> None:
        super().__init__(batch_dim)
        self._told = False

    def check(self, name: str, layer: nn.Module) -> None:
        """Anything goes until a second pass is needed, but for what no embedding may do."""
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
            check_table(name, layer)

    def install(self, site: Site, layers: Taps) -> list[Handle]:
        """Hand the parameters to whoever computes with them as shared tensors."""
        owner = _host(site, layers)
        host = getattr(owner.__dict__.get("forward"), "host", None)
        if host is not None:
            host.sites.append(site)
            self.ready(site, layers, host.plain)
            return []
        host = _Host(owner, layers)
        host.sites.append(site)
        self.ready(site, layers, host.plain)
        return host.install()

    def again(self, site: Site, args: Args, kwargs: Kwargs) -> Any:
        """The output by way of a second pass."""
        super().check(site.name, site.layer)
        leaves = tree_flatten((args, kwargs))[0]
        if all(cut is None for cut in self._split(site.name, leaves, self._count(leaves))):
            raise validate.InvalidInput(self._layers.slow[site.name])
        if not self._told and not self._layers.quiet:
            self.warn(site)
        self._told = True
        restore = self._layers.silence(site.parameters)
        try:
            return self.tapped(site, args, kwargs)
        finally:
            restore()

    def apart(self, site: Site, args: Args, kwargs: Kwargs) -> tuple[Leaves, TreeSpec] | None:
        """The pieces of the output, of every example alone; None where examples have to be seen together."""
        leaves, spec = tree_flatten((args, kwargs))
        n, split = self._examples(site.name, leaves)
        others = any(isinstance(x, nn.Module) for x in leaves)  # which may have taps
        if self._whole or others or not n or all(cut is None for cut in split):
            return None
        plain, flattened, own = self._plain, [], open_leaves(site, self._layers, n, single=True)
        assert plain is not None

        def one(*examples: Tensor) -> tuple[Tensor, ...]:
            args, kwargs = general.arguments(examples, leaves, split, spec)
            with placed(site.layer, own):
                flattened.append(tree_flatten(plain(*args, **kwargs)))
            return tuple(x for x in flattened[-1][0] if _computed(x)) or examples[:1]

        batched = [(leaf, cut) for leaf, cut in zip(leaves, split, strict=True) if cut is not None]
        signature = tuple(general.shape_of(x, cut) for x, cut in zip(leaves, split, strict=True))
        ways = self._known(signature)
        dice = Dice(batched[0][0].device).began() if ways is None else None
        autocast = general.autocast_of(batched[0][0])
        with general.unchanged(site.name, leaves), general.singly(site.name, autocast, site.wanted):
            cuts, examples = tuple(cut for _, cut in batched), [leaf for leaf, _ in batched]
            outputs = iter(vmap(one, in_dims=cuts, randomness="different")(*examples))
        for value in own.values():  # what is returned of them meets whole batches
            value.history.leaves[0].single = False
        ((pieces, shape),) = flattened
        alone = [self._joined(next(outputs)) if _computed(x) else x for x in pieces]
        if dice is not None:
            ways = self._compared(site, leaves, spec, alone, drew=dice.drew())
            if n > 1:
                self._settled[signature] = ways
        assert ways is not None
        if all(ways):
            return [
                _spread(x, n, self._dim(x)) if how == SPREAD else x for x, how in zip(alone, ways, strict=True)
            ], shape
        whole = self._together(site, leaves, spec)
        return [x if mine else self._barred(site, y) for x, y, mine in zip(alone, whole, ways, strict=True)], shape

    def _examples(self, name: str, leaves: Leaves) -> tuple[int, list[int | None]]:
        """How many examples there are, or pieces of them, and where each argument keeps them."""
        n = self._count(leaves)
        split = self._learned(name, leaves, n)
        if all(cut is None for cut in split) and not self._layers.batch_dim:
            sizes = [len(x) for x in leaves if _computed(x) and x.ndim and x.requires_grad]
            n = next((size for size in sizes if pieces_of(size, n)), n)
            split = self._learned(name, leaves, n)
        return n, split

    def _known(self, signature: Hashable) -> list[int] | None:
        """What is known of the outputs of a shape of call: of its own, or of the first few where there are many."""
        ways = self._settled.get(signature)
        if ways is None and len(self._settled) >= CHECKED:
            return next(iter(self._settled.values()))
        return ways

    def _compared(self, site: Site, leaves: Leaves, spec: TreeSpec, alone: Leaves, drew: bool) -> list[int]:
        """Refuse outputs of single examples that are not those of the batch; which of them have one for each."""
        whole = self._together(site, leaves, spec)
        general.refuse_unless(len(whole) == len(alone), site.name, "returns other things for an example alone")
        ours: Leaves = []
        ways = []
        for x, y in zip(alone, whole, strict=True):
            wide = isinstance(x, Shared) and isinstance(y, Tensor) and x.shape != y.shape and x.ndim == y.ndim
            ours.append((bare(x).expand_as(y) if wide else bare(x)) if isinstance(x, Shared) else x)
            ways.append(SPREAD if wide else 1)
        apart = general.alike(site.name, whole, ours, values=not drew)
        return [how if mine else 0 for how, mine in zip(ways, apart, strict=True)]

    def _together(self, site: Site, leaves: Leaves, spec: TreeSpec) -> Leaves:
        """The output of the batch as a whole, its parameters asking for no gradient, and the dice as they were."""
        restore = self._layers.silence(site.parameters)
        try:
            with self._layers.listening(None), torch.no_grad(), Dice(site.parameters[0].device):
                return self._all(site.name, leaves, spec)[0]
        finally:
            restore()

    def _barred(self, site: Site, x: Any) -> Any:
        """An output that has no entry for every example: no gradient may come back through it."""

        def refuse(b: Tensor) -> list[tuple[Site, dict[str, Rows]]]:
            why = (
                "gets or returns no tensor with one entry for every example, from which its gradient could be computed"
            )
            raise validate.InvalidInput(f"layer {site.name!r} owns trainable parameters and {why}: {general.REMEDY}")

        floats = isinstance(x, Tensor) and x.is_floating_point()
        return self._layers.tap(site, x, 0, [], refuse) if floats else x


def install_root(layers: Taps) -> list[Handle]:
    """Where parameters that are read outside their layers are handed out."""
    ruled = any(site.layer is layers.module and not isinstance(site.rule, OperationRule) for site in layers.sites)
    return [] if ruled else _Host(layers.module, layers).install()


class _Host:
    """Whoever computes with the parameters of some sites: its forward hands them out as shared tensors."""

    def __init__(self, layer: nn.Module, layers: Taps) -> None:
        self.layer, self.layers, self.plain = layer, layers, layer.forward
        self.sites: list[Site] = []

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
        if not self.sites and not self.layers.read:
            return self.plain(*args, **kwargs)
        own = next((site for site in self.sites if site.layer is self.layer), None)
        rule = None if own is None else own.rule
        if own is not None and own.name in self.layers.slow:
            assert isinstance(rule, OperationRule)
            return rule.again(own, args, kwargs)
        try:
            if own is not None and isinstance(rule, OperationRule) and len(self.sites) == 1:
                answer = rule.apart(own, args, kwargs)
                if answer is not None:
                    return tree_unflatten(*answer)
            leaves = tree_flatten((args, kwargs))[0]
            with self._shared(leaves), general.unchanged(own.name, leaves) if own else nullcontext():
                return self.plain(*args, **kwargs)
        except Unseen as error:
            if own is None or error.leaf.site is not own:
                raise
            self.layers.slow[own.name] = str(error)
            assert isinstance(rule, OperationRule)
            return rule.again(own, args, kwargs)

    @contextmanager
    def _shared(self, leaves: list[Any]) -> Iterator[None]:
        """The parameters of the sites, and at the root those that others read, as shared tensors."""
        n = next((x.shape[0 if x.ndim < 3 else self.layers.batch_dim] for x in leaves if _dims(x)), None)
        with ExitStack() as stack:
            if self.layer is self.layers.module and self.layers.read:
                for site in self.layers.sites:
                    stack.enter_context(placed(site.layer, open_leaves(site, self.layers, n, self.layers.read_ids())))
            for site in self.sites:
                stack.enter_context(placed(site.layer, open_leaves(site, self.layers, n)))
            yield


def _spread(x: Any, n: int, dim: int) -> Any:
    """A shared output once for every example, as the layer returns it of a batch."""
    return x.expand([n if i == dim else size for i, size in enumerate(x.shape)])


def _computed(x: object) -> TypeGuard[Tensor]:
    """A tensor, but no shared one."""
    return isinstance(x, Tensor) and not isinstance(x, Shared)


def _dims(x: object) -> bool:
    return isinstance(x, Tensor) and x.ndim > 0


def _host(site: Site, layers: Taps) -> nn.Module:
    """The layer itself, or the nearest module above one that only holds parameters."""
    if not isinstance(site.layer, HOLDERS):
        return site.layer
    path = site.name
    while path:
        path = path.rpartition(".")[0]
        layer = layers.module.get_submodule(path)
        if not isinstance(layer, HOLDERS):
            return layer
    validate.refuse(
        "module",
        type(site.layer).__name__,
        "give the module that computes with these parameters: this one only holds them",
    )
