"""Reading a module: which layers have leaves, which of them are tied, and where the taps go."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.gradients.layers.attention import AttentionRule, OutputRule
from isthmus.gradients.layers.binding import LeafBinding
from isthmus.gradients.layers.convolution import ConvolutionRule
from isthmus.gradients.layers.embedding import EmbeddingBagRule, EmbeddingRule
from isthmus.gradients.layers.folding import folded, pieces_of
from isthmus.gradients.layers.normalisation import GroupNormRule, LayerNormRule
from isthmus.gradients.layers.opened import OperationRule, install_root
from isthmus.gradients.layers.rules import Args, Found, Handle, Kwargs, LayerRule, LinearRule, Listener, Site, Trainable
from isthmus.gradients.layers.shared import Shared, open_leaves, placed
from isthmus.gradients.layers.tap import tap
from isthmus.gradients.rows import Outer, Rows, Stack

RULES: list[type[LayerRule[Any, Any]]] = [OutputRule, LinearRule, AttentionRule]
RULES += [ConvolutionRule, LayerNormRule, GroupNormRule, EmbeddingRule, EmbeddingBagRule]

REPLACE = "call `engine.get_compatible_module(module)` before making the optimiser, or freeze it"
REFUSED: list[tuple[tuple[type, ...], str]] = [
    ((LazyModuleMixin,), "has no parameters yet: run one batch through the module first"),
    ((_BatchNorm,), f"mixes the examples of a batch (put it in eval mode too if you freeze it): {REPLACE}"),
    ((nn.RNNBase,), f"computes all its steps in one call that shows no per-example gradient: {REPLACE}"),
    (
        (ParametrizationList,),
        "computes a weight from parameters without seeing examples: call "
        "`torch.nn.utils.parametrize.remove_parametrizations` first, or freeze it",
    ),
]
"""Kinds that have no per-example gradient, or whose gradient cannot be seen, and what to do about it."""


def rule_for(name: str, layer: nn.Module, batch_dim: int = 0) -> LayerRule[Any, Any]:
    """The rule of a layer that owns trainable parameters; a layer that cannot have one is refused with the remedy.

    A layer with an attribute `batch_dim` says itself where its examples are.

    >>> type(rule_for("fc", nn.Linear(2, 2))).__name__
    'LinearRule'
    >>> rule_for("norm", nn.BatchNorm1d(2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: module='BatchNorm1d' is not allowed: layer 'norm' mixes ...
    """
    for kinds, why in REFUSED:
        if isinstance(layer, kinds):
            validate.refuse("module", type(layer).__name__, f"layer {name!r} {why}")
    dim = getattr(layer, "batch_dim", batch_dim)
    for rule in RULES:
        for kind in rule.kinds:
            if isinstance(layer, kind) and type(layer).forward is kind.forward:
                return rule(dim)
    return OperationRule(dim)


_LARGE = 1 << 24
"""A module with more parameters is tried out on its own device, but for one extreme."""
_Later = Callable[[str, Callable[[Tensor], None], Tensor, Sequence[Tensor]], None]
"""Takes the name of a layer, what makes its rows of a gradient, the gradient, and what else is read for it."""


@dataclass(eq=False)
class _Known:
    """What passes and trials have found out of a module's own code."""

    trusted: dict[tuple[tuple[str, ...], Hashable], Set[tuple[str, int]]] = field(default_factory=dict)
    """The ways and shapes of arguments that `apart.look` has tried out, and the `pieces` that were seen there."""
    shared_places: set[Hashable] = field(default_factory=set)
    """Operations, in the code of a layer, whose tensor was seen to hold no examples."""
    example_places: set[Hashable] = field(default_factory=set)
    """Those whose tensor had one entry for every example, so far."""
    read: set[str] = field(default_factory=set)
    """The parameters that are read outside their layers."""
    pieces: set[tuple[str, int]] = field(default_factory=set)
    """Layers that saw several pieces of every example, and how many."""
    dimensions: dict[str, set[int]] = field(default_factory=dict)
    """How many dimensions the outputs of each layer had in batches of two examples or more."""


def _taken() -> bool:
    """Every gradient is taken."""
    return True


def _ignored() -> None:
    """Nothing happens."""


@dataclass(eq=False)
class Pass:
    """A pass in progress: who is told its rows, and what is known of it."""

    listener: Listener | None = None
    batch: int | None = None
    """The number of examples, where it is known: layers that see another are refused."""
    token: object = None
    """Whose pass it is: a gradient that arrives when another has begun is refused."""
    pieces: Set[tuple[str, int]] | None = None
    """Layers that may see several pieces of every example, and how many (None: any)."""
    calls: Counter[str] = field(default_factory=Counter)
    """How often each layer was called."""
    reduced: Callable[[], bool] = _taken
    """Whether gradients of less than 32 bits are taken (see `TorchDriver`)."""
    arrived: Callable[[], None] = _ignored
    """Called when a gradient comes, before anything is made of it."""
    later: _Later | None = None
    """Who keeps gradients that arrive until the backward pass has ended; None: rows are made at once."""


class Layers:
    """The trainable parameters of a module as one flat space, with taps on the layers that use them.

    A layer is one leaf [W | c]; tied weights are one leaf, fed from every layer that uses them.  Parameters that are
    frozen when this is made are left alone.

    While a layer computes, its parameters ask for no gradient: the taps tell it.  Everywhere else they ask for one,
    and a gradient that arrives is refused: whoever reads a weight outside its layer, in another module or in the loss,
    is found in the backward pass of every batch.

    >>> layers = Layers(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2, bias=False)))
    >>> [(leaf.name, leaf.shape) for leaf in layers.space.leaves]
    [('0', (3, 5)), ('2', (2, 3))]
    """

    def __init__(self, module: nn.Module, *, batch_first: bool = True, known: _Known | None = None) -> None:
        self.module, self.batch_dim = module, 0 if batch_first else 1
        self.known, self.now = known or _Known(), Pass()
        trained = {
            id(parameter) for parameter in module.parameters() if parameter.requires_grad and not _watched(parameter)
        }
        validate.check(
            bool(trained), "module", type(module).__name__, "give a module with at least one trainable parameter"
        )
        self._mixers = [(name, layer) for name, layer in module.named_modules() if _keeps_batch_statistics(layer)]
        self.check_apart()
        self.sites, self.bindings = _read(module, lambda p: p is not None and id(p) in trained, self.batch_dim)
        self.large = sum(parameter.numel() for parameter in module.parameters()) > _LARGE
        self.space = Space.of({name: binding.shape for name, binding in self.bindings.items()})
        first = next(self.parameters())
        self.anchor = torch.zeros((), device=first.device, requires_grad=True)
        """What every tap hangs on, as a layer does on its parameters (see `tap`)."""
        self.uses: Counter[str] = Counter()
        """How often each leaf was used in the passes of a batch, gradients of which may come."""
        self.plain = False
        """Whether weights are left as they are, as without taps."""
        self.learning = False
        """Whether parameters that are read outside their layers are noted rather than refused."""

    def attach(self) -> list[Handle]:
        """Put taps on every layer and a watch on every weight; returns the hook handles."""
        handles: list[Handle] = [self._watch(name, parameter) for name, parameter in self._named()]
        handles += install_root(self)
        for site in self.sites:
            handles += site.rule.install(site, self)
        return handles

    def begin(self, batch: int | None) -> None:
        """What comes from now on is of so many other examples (None: not known): earlier gradients are refused."""
        self.now = replace(self.now, batch=batch, token=object(), calls=Counter())

    @contextmanager
    def listening(
        self, listener: Listener | None, batch: int | None = None, pieces: Set[tuple[str, int]] | None = None
    ) -> Iterator[None]:
        """Send the rows of every backward pass to `listener` meanwhile."""
        before = self.now
        self.now = Pass(listener, batch, before.token if listener is None else object(), pieces)
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Weights as they would be without taps, meanwhile: in and outside their layers."""
        before, self.plain = self.plain, True
        try:
            yield
        finally:
            self.plain = before

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters the space is made of, each once."""
        listed: set[int] = set()
        for binding in self.bindings.values():
            for parameter in binding.parameters:
                if id(parameter) not in listed:
                    listed.add(id(parameter))
                    yield parameter

    def silence(self, parameters: Iterable[Tensor]) -> Callable[[], None]:
        """Parameters that ask for no gradient until what is returned is called."""
        asking = [] if self.plain else [parameter for parameter in parameters if parameter.requires_grad]
        for parameter in asking:
            parameter.requires_grad_(False)

        def restore() -> None:
            for parameter in asking:
                parameter.requires_grad_(True)

        return restore

    def pack(self) -> Tensor:
        """The parameters as one flat vector."""
        return torch.cat([binding.read().reshape(-1) for binding in self.bindings.values()])

    def unpack(self, w: Tensor) -> None:
        """Write a flat vector into the parameters."""
        for name, binding in self.bindings.items():
            binding.write(self.space.view(w, name))

    def set_gradients(self, columns: Callable[[str, int, int], Tensor]) -> None:
        """Give every parameter its piece of a direction, columns lo..hi-1 of a leaf, as its `.grad`."""
        for name, binding in self.bindings.items():
            binding.set_gradients(partial(columns, name))

    def check_apart(self) -> None:
        """Refuse norms that take statistics from the batch, or keep them, whether or not they train."""
        for name, layer in self._mixers:
            kind = type(layer).__name__
            apart = not layer.training and layer.track_running_stats
            remedy = (
                f"use get_compatible_module, or call eval() on layer {name!r}, which takes statistics from the batch"
            )
            validate.check(apart, "module", kind, remedy)

    def no_rows(self) -> Stack:
        """The rows of no example."""
        like = next(self.parameters())
        empty = [
            (n, Outer(like.new_zeros(0, b.shape[1]), like.new_zeros(0, b.shape[0]))) for n, b in self.bindings.items()
        ]
        return Stack(empty)

    def enter(self, site: Site, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs, Callable[[], None]]:
        """The layer's own pass begins: its arguments, and what ends it.

        Meanwhile its parameters ask for no gradient.  Where its input holds no examples they are shared tensors
        instead, and so is its output.
        """
        if not self.listens():
            return args, kwargs, self.silence(site.parameters)
        args = site.rule.prepare(site.layer, args, self.now.batch) or args
        shared = self._given_no_examples(site, args, kwargs)
        names = [name for name in site.layer._parameters if name in site.layer.__dict__]
        if not shared and not names:
            return args, kwargs, self.silence(site.parameters)
        with ExitStack() as stack:
            if shared:
                stack.enter_context(placed(site.layer, open_leaves(site, self, self.now.batch)))
            else:
                stack.enter_context(placed(site.layer, dict.fromkeys(names)))
                stack.callback(self.silence(site.parameters))
            return args, kwargs, stack.pop_all().close

    def _given_no_examples(self, site: Site, args: Args, kwargs: Kwargs) -> bool:
        """Whether all examples share the input: it comes from parameters alone, or has not one entry for each."""
        examples = site.rule.given(site.layer, args, kwargs)
        if examples is None:
            return False
        x, dim = examples
        if isinstance(x, Shared) or x.requires_grad or not self.now.batch:
            return isinstance(x, Shared)
        self.now.calls[site.name] += 1
        key = (site.name, "input", self.now.calls[site.name])
        if x.shape[dim] != self.now.batch:
            self.known.shared_places.add(key)
        return key in self.known.shared_places

    def after(self, site: Site, args: Args, kwargs: Kwargs, output: Tensor) -> Tensor:
        """The output with a tap on it."""
        if not self.listens() or isinstance(output, Shared):
            return output
        self._check_dimensions(site, output)
        factors, rule = site.rule.keep(site.layer, args, kwargs), site.rule
        inputs = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
        dim = rule.dim(site.layer, output)
        return self.tap(site, output, dim, inputs, lambda b: [(site, rule.rows(site.layer, factors, b, site.wanted))])

    def _check_dimensions(self, site: Site, output: Tensor) -> None:
        """Refuse a batch of one whose example has lost the dimension that examples have in larger batches."""
        usual = self.known.dimensions.setdefault(site.name, set())
        if self.now.batch is not None and self.now.batch > 1:
            usual.add(output.ndim)
        elif self.now.batch == 1 and usual and output.ndim not in usual:
            if output.ndim < 2 or output.shape[site.rule.dim(site.layer, output)] != 1:
                raise validate.InvalidInput(
                    f"layer {site.name!r} was given a batch of one example without a dimension for examples: its "
                    f"output has {output.ndim} dimension(s), in larger batches {min(usual)}. Batches of one come by "
                    "chance: name the dimension that is meant (squeeze(1) in place of squeeze(), flatten(1) in place "
                    "of flatten())"
                )

    def tap(
        self,
        site: Site,
        output: Tensor,
        dim: int,
        inputs: Sequence[Tensor],
        rows_of: Found,
        feeds: Iterable[str] | None = None,
    ) -> Tensor:
        """An output of a site with a tap on it: its gradient gives the rows of this and perhaps other sites.

        The examples are in dimension `dim`; the inputs may not be changed before the gradient arrives; `feeds` names
        the leaves whose rows it gives, each as often as it does (the site's own where it is not said).
        """
        self.uses.update(site.leaves.values() if feeds is None else feeds)
        token = self.now.token
        versions = [(x, x._version) for x in inputs]

        def check(b: Tensor) -> None:
            if self.now.token is not token:
                raise validate.InvalidInput(
                    f"a gradient of layer {site.name!r} arrived after its batch was closed: call backward() on the "
                    "loss of a batch before optimizer.step() and before the next batch"
                )
            if b.dtype.itemsize < 4 and not self.now.reduced():
                raise validate.InvalidInput(
                    f"the gradient of layer {site.name!r} is {b.dtype} and the loss a mean: its rounding depends on "
                    "the size of the batch, and with it every record's share; return tensors, lists, tuples or dicts "
                    "from the module, or use a sum, loss_reduction='sum'"
                )

        def push(b: Tensor) -> None:
            if any(x._version != version for x, version in versions):
                raise validate.InvalidInput(
                    f"the input of layer {site.name!r} was changed in place after the layer used it: write y = f(x) in "
                    "place of f_(x)"
                )
            for owner, rows in rows_of(b):
                self.push(owner, rows)

        def arrive(b: Tensor) -> None:
            check(b)
            self.now.arrived()
            if self.now.later is None:
                push(b)
            else:
                self.now.later(site.name, push, b, inputs)

        return tap(output, self.anchor, arrive)

    def push(self, site: Site, rows: dict[str, Rows]) -> None:
        """Hand the rows of a site to the listener, under the names of its leaves."""
        listener, batch = self.now.listener, self.now.batch
        for suffix, piece in rows.items():
            if batch and piece.n != batch and self.batch_dim == 0 and pieces_of(piece.n, batch):
                self.note_pieces(site, piece.n // batch)
                piece = folded(piece, batch)
            if batch is not None and piece.n != batch:
                raise validate.InvalidInput(
                    f"layer {site.name!r} saw {piece.n} examples where the module was given {batch}: keep the "
                    "examples in the first dimension of every layer's input (batch_first=False: in the second)"
                )
            if listener is not None:
                listener(site.leaves[suffix], piece)

    def _named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The parameters with the names the module gives them, each once."""
        mine = {id(parameter) for parameter in self.parameters()}
        return ((name, parameter) for name, parameter in self.module.named_parameters() if id(parameter) in mine)

    def _watch(self, name: str, parameter: nn.Parameter) -> Handle:
        """Refuse every gradient that reaches a parameter itself: its layer's taps have told all they know by then."""

        def touched(gradient: Tensor) -> None:
            if self.learning:
                self.known.read.add(name)
            elif not self.plain:
                raise validate.InvalidInput(
                    f"the parameter {name!r} is used outside the pass of its own layer (by other code of the module, "
                    "by a hook, or in the loss), where its gradient cannot be told example by example: call the layer "
                    "itself, or tie a second layer to the same Parameter; write .detach() where no gradient is meant, "
                    "let the optimiser do penalties (weight_decay=), or freeze it before training is made private"
                )

        touched.layers = self  # type: ignore[attr-defined]
        handle: Handle = parameter.requires_grad_(True).register_hook(touched)
        return handle

    def note_pieces(self, site: Site, k: int) -> None:
        """A layer saw k pieces of every example: as it did when it was tried out, or it is refused."""
        if self.now.pieces is not None and (site.name, k) not in self.now.pieces:
            raise validate.InvalidInput(
                f"layer {site.name!r} saw {k} pieces of every example, and another number when the module was tried "
                "out: keep the examples in the first dimension of every layer's input"
            )
        self.known.pieces.add((site.name, k))

    def read_ids(self) -> set[int]:
        """The parameters that are read outside their layers."""
        return {id(parameter) for name, parameter in self._named() if name in self.known.read}

    def fixed(self, x: Tensor) -> bool:
        """Whether a tensor is a buffer or a frozen parameter of the module, or a part of one."""
        place = x.untyped_storage().data_ptr()
        tensors = itertools.chain(self.module.buffers(), self.module.parameters())
        return any(tensor.untyped_storage().data_ptr() == place for tensor in tensors)

    def listens(self) -> bool:
        """Whether rows of the pass in progress are asked for."""
        return self.now.listener is not None and torch.is_grad_enabled()

    @property
    def batch(self) -> int | None:
        """The number of examples of the pass in progress, where it is known."""
        return self.now.batch


def _watched(parameter: nn.Parameter) -> bool:
    """Whether other taps have this parameter already."""
    return any(hasattr(hook, "layers") for hook in (parameter._backward_hooks or {}).values())


def _keeps_batch_statistics(layer: nn.Module) -> bool:
    """Batch norm, and instance norm with running statistics."""
    if isinstance(layer, nn.modules.instancenorm._InstanceNorm):
        return bool(layer.track_running_stats)
    return isinstance(layer, nn.modules.batchnorm._BatchNorm)


def _read(module: nn.Module, trainable: Trainable, batch_dim: int) -> tuple[list[Site], dict[str, LeafBinding]]:
    """The sites of a module and the binding of every leaf."""
    ruled = []
    for name, layer in module.named_modules():
        if any(trainable(parameter) for parameter in layer.parameters(recurse=False)):
            rule = rule_for(name, layer, batch_dim)
            rule.check(name, layer)
            ruled.append((name, layer, rule))
    uses: Counter[int] = Counter()
    for _, layer, rule in ruled:
        uses.update({id(p) for b in rule.bindings(layer, trainable, False).values() for p in b.parameters})
    sites: list[Site] = []
    bindings: dict[str, LeafBinding] = {}
    owner: dict[tuple[int, str], str] = {}
    for name, layer, rule in ruled:
        wanted = rule.bindings(layer, trainable, False)
        if any(uses[id(p)] > 1 for binding in wanted.values() for p in binding.parameters):
            wanted = rule.bindings(layer, trainable, True)
        leaves = {}
        for suffix, binding in wanted.items():
            own = f"{name}.{suffix}" if name and suffix else name or suffix
            place = (id(binding.weight), str(binding.rows))
            cut = {rows for weight, rows in owner if weight == place[0] and "None" in (rows, place[1])} - {place[1]}
            validate.check(not cut, "module", own, "untie this layer: another one uses a part of the same parameter")
            leaf = owner.setdefault(place, own)
            bindings.setdefault(leaf, binding)
            leaves[suffix] = leaf
        sites.append(Site(name, layer, rule, wanted, leaves))
    return sites, bindings
