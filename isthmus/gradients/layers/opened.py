"""Layers without a rule of their own: taps at the operations on their parameters, else a second pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from isthmus.base import validate
from isthmus.gradients.layers import general, operations
from isthmus.gradients.layers.attention import Replaced
from isthmus.gradients.layers.general import FunctionRule
from isthmus.gradients.layers.rules import Args, Handle, Kwargs, Site, Taps
from isthmus.gradients.layers.shared import Shared, bare, open_leaves, placed

HOLDERS = (nn.ParameterList, nn.ParameterDict, nn.ModuleList, nn.ModuleDict)
"""Modules that only hold: whoever holds them computes."""
CHECKED = 4
"""So many shapes of calls are compared with the output of single examples."""


class OperationRule(FunctionRule):
    """Each use of a parameter with examples is tapped where it happens; what it shows no rows of takes a second pass.

    While the layer computes, its parameters are `Shared` tensors: `isthmus.gradients.layers.operations` says what
    becomes of them.  The rows of a parameter are the sum over its uses.

    Guarantees:
      * a gradient that reaches a parameter round the taps is refused, in the backward pass of every batch;
      * a layer without children that have taps gives the same numbers for a batch as for its examples alone, or it is
        refused (checked for the first shapes of call);
      * where an operation is not known the whole layer is computed as `FunctionRule` says, and a warning says so.
    """

    kinds = ()

    def __init__(self, batch_dim: int = 0) -> None:
        super().__init__(batch_dim)
        self._told = False

    def check(self, name: str, layer: nn.Module) -> None:
        """Anything goes, until a second pass is needed."""
        return None

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
        if all(cut is None for cut in self._split(leaves, self._count(leaves))):
            raise validate.InvalidInput(self._layers.slow[site.name])
        if not self._told and not self._layers.quiet:
            self.warn(site)
        self._told = True
        restore = self._layers.silence(site.parameters)
        try:
            return self.tapped(site, args, kwargs)
        finally:
            restore()

    def settle(self, site: Site, args: Args, kwargs: Kwargs, output: Any) -> None:
        """Refuse a layer whose output for a batch is not that of its examples alone; once for a shape of call."""
        leaves, spec = tree_flatten((args, kwargs))
        leaves = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
        n = self._count(leaves)
        split = self._split(leaves, n)
        signature = tuple(general.shape_of(x, cut) for x, cut in zip(leaves, split, strict=True))
        known = signature in self._settled or len(self._settled) >= CHECKED
        if self._whole or known or n < 2 or all(cut is None for cut in split):
            return
        whole = [bare(x) if isinstance(x, Shared) else x for x in tree_flatten(output)[0]]
        try:
            with torch.no_grad():
                alone, _ = self._each(site.name, leaves, spec, split)
        except validate.InvalidInput as error:
            if "randomness" not in str(error.__cause__):
                raise
            return  # taps see the draws of the pass itself; other draws say nothing
        general.refuse_unless(len(alone) == len(whole), site.name, "returns other things for an example alone")
        self._settled[signature] = general.alike(site.name, whole, alone)


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

        forward.tapped = True  # type: ignore[attr-defined]
        method = MethodType(forward, self.layer)
        forward.host = self  # type: ignore[attr-defined]
        return [Replaced(self.layer, "forward", method)]

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
            leaves = tree_flatten((args, kwargs))[0]
            with self._shared(leaves), general.unchanged(own.name, leaves) if own else nullcontext():
                output = self.plain(*args, **kwargs)
        except operations.Unseen as error:
            if own is None or error.leaf.site is not own:
                raise
            self.layers.slow[own.name] = str(error)
            assert isinstance(rule, OperationRule)
            return rule.again(own, args, kwargs)
        if own is not None and isinstance(rule, OperationRule):
            rule.settle(own, args, kwargs, output)
        return output

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
        "module", type(site.layer).__name__, "it only holds parameters: give the module that computes with them"
    )
