"""Reading a module: which layers have leaves, which of them are tied, and where the taps go.

**A tap**: whoever listens is shown the gradient of a tensor during the backward pass that a step belongs to.
Other passes may go through the same tensors: `torch.autograd.grad` for the slope at an input, an adversarial example, a
penalty.  Torch adds nothing to a parameter's `.grad` in them, and a tap says nothing.  It knows them by its anchor, a
tensor that every tap hangs on as a layer hangs on its parameters: only a pass that ends in all leaves ends there too.

A slope with a graph of its own (`create_graph=True`) depends on the weights once more, by a way that has no tap.  A
backward pass that goes back through such a slope is refused; a slope that no loss uses may be anything.
"""

from __future__ import annotations

import inspect
import operator
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils.parametrize import ParametrizationList

from isthmus.base import validate
from isthmus.base.space import Space
from isthmus.gradients.layers import operations, rules
from isthmus.gradients.layers.rules import AnyRule, Args, Handle, Kwargs, LeafBinding, RowsOf, Trainable
from isthmus.gradients.rows import Outer, Rows, Stack

_RULES: dict[type[nn.Module], type[AnyRule]] = {of: rule for rule in rules.RULES for of in rule.kinds}

_REPLACE = "call `engine.get_compatible_module(module)` before making the optimiser, or freeze it"
_REFUSED: dict[type, str] = {
    LazyModuleMixin: "has no parameters yet: run one batch through the module first",
    _BatchNorm: f"mixes the examples of a batch (put it in eval mode too if you freeze it): {_REPLACE}",
    nn.RNNBase: f"computes all its steps in one call that shows no per-example gradient: {_REPLACE}",
    ParametrizationList: "computes a weight from parameters without seeing examples: call "
    "`torch.nn.utils.parametrize.remove_parametrizations` first, or freeze it",
}
"""Kinds that have no per-example gradient, or whose gradient cannot be seen, and what to do about it."""


def rule_for(name: str, layer: nn.Module, batch_dim: int = 0) -> AnyRule:
    """The rule of a layer that owns trainable parameters; a layer that cannot have one is refused with the remedy.

    A layer with an attribute `batch_dim` says itself where its examples are.

    >>> type(rule_for("fc", nn.Linear(2, 2))).__name__
    '_LinearRule'
    >>> rule_for("norm", nn.BatchNorm1d(2))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: module='BatchNorm1d' is not allowed: layer 'norm' mixes ...
    """
    for refused, why in _REFUSED.items():
        if isinstance(layer, refused):
            validate.refuse("module", type(layer).__name__, f"layer {name!r} {why}")
    if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)):
        rules._check_table(name, layer)
    known = (kind for of, kind in _RULES.items() if isinstance(layer, of) and type(layer).forward is of.forward)
    rule = next(known, operations._OperationRule)(name, layer, getattr(layer, "batch_dim", batch_dim))
    rule.check()
    return rule


_VERSION = operator.attrgetter("_version")
"""How often a tensor was changed in place."""
_ASKS = operator.attrgetter("requires_grad")
_LARGE = 1 << 24
"""A module with more parameters is tried out on its own device, but for one extreme."""
_Later = Callable[[str, Callable[[Tensor], None], Tensor, Sequence[Tensor]], None]
"""Takes the name of a layer, what makes its rows of a gradient, the gradient, and what else is read for it."""


@dataclass(eq=False)
class _Findings:
    """What passes and trials have found out of a module's own code."""

    trusted: dict[tuple[tuple[str, ...], Hashable], Set[tuple[str, int]]] = field(default_factory=dict)
    """The ways and shapes of arguments that `look` has tried out, and the `pieces` that were seen there."""
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


@dataclass(eq=False)
class _CurrentPass:
    """A pass in progress: who is told its rows, and what is known of it."""

    listener: Callable[[str, Rows], None] | None = None
    """Who is told the rows of every leaf, by its name."""
    batch: int | None = None
    """The number of examples, where it is known: layers that see another are refused."""
    token: object = None
    """Whose pass it is: a gradient that arrives when another has begun is refused."""
    pieces: Set[tuple[str, int]] | None = None
    """Layers that may see several pieces of every example, and how many (None: any)."""
    calls: Counter[str] = field(default_factory=Counter)
    """How often each layer was called."""
    reduced: Callable[[], bool] = lambda: True
    """Whether gradients of less than 32 bits are taken (see `TorchDriver`)."""
    arrived: Callable[[], None] = lambda: None
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

    def __init__(self, module: nn.Module, *, batch_first: bool = True, known: _Findings | None = None) -> None:
        self.module, self.batch_dim = module, int(not batch_first)
        self.known, self.now = known or _Findings(), _CurrentPass()
        trained = {id(p) for p in module.parameters() if p.requires_grad and not _watched(p)}
        remedy = "give a module with at least one trainable parameter"
        validate.check(bool(trained), "module", type(module).__name__, remedy)
        self._mixers = [
            (name, layer)
            for name, layer in module.named_modules()
            if isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats)
        ]
        """Layers that take statistics from the batch, or keep them."""
        self.check_apart()
        self.sites, self.bindings = _read(module, lambda p: p is not None and id(p) in trained, self.batch_dim)
        self.large = sum(parameter.numel() for parameter in module.parameters()) > _LARGE
        self.space = Space.of({name: binding.shape for name, binding in self.bindings.items()})
        first = next(self.parameters())
        self.anchor = torch.zeros((), device=first.device, requires_grad=True)
        """What every tap hangs on, as a layer does on its parameters (see `tap`)."""
        self.shown: Callable[[AnyRule, Tensor, int], Tensor] | None = None
        """What takes the place of a tap, where a module is tried out."""
        self.learning = False
        """Whether parameters that are read outside their layers are noted rather than refused."""

    def attach(self) -> list[Handle]:
        """Put taps on every layer and a watch on every weight; returns the hook handles."""
        handles: list[Handle] = [
            parameter.requires_grad_(True).register_hook(_Watch(self, name)) for name, parameter in self.named()
        ]
        handles += operations._trace_layers(self)
        for rule in self.sites:
            handles += rule.install(self)
        return handles

    def begin(self, batch: int | None) -> None:
        """What comes from now on is of so many other examples (None: not known): earlier gradients are refused."""
        self.now = replace(self.now, batch=batch, token=object(), calls=Counter())

    @contextmanager
    def listening(
        self,
        listener: Callable[[str, Rows], None] | None,
        batch: int | None = None,
        pieces: Set[tuple[str, int]] | None = None,
    ) -> Iterator[None]:
        """Send the rows of every backward pass to `listener` meanwhile."""
        before, token = self.now, object()
        self.now = _CurrentPass(listener, batch, before.token if listener is None else token, pieces)
        try:
            yield
        finally:
            self.now = before

    def parameters(self) -> Iterator[nn.Parameter]:
        """The parameters the space is made of, each once."""
        return iter({id(p): p for binding in self.bindings.values() for p in binding.parameters}.values())

    def named(self) -> list[tuple[str, nn.Parameter]]:
        """The same with the names that the module gives them."""
        mine = {id(parameter) for parameter in self.parameters()}
        return [(name, parameter) for name, parameter in self.module.named_parameters() if id(parameter) in mine]

    @contextmanager
    def silenced(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        """Parameters that ask for no gradient meanwhile."""
        asking = list(filter(_ASKS, parameters))
        for parameter in asking:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in asking:
                parameter.requires_grad_(True)

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
            remedy = (
                f"use get_compatible_module, or call eval() on layer {name!r}, which takes statistics from the batch"
            )
            apart = not layer.training and bool(layer.track_running_stats)
            validate.check(apart, "module", type(layer).__name__, remedy)

    def zeros(self, names: Iterable[str], n: int) -> list[tuple[str, Rows]]:
        """The rows of n examples that leave these leaves alone."""
        like, shapes = next(self.parameters()), [(name, self.bindings[name].shape) for name in names]
        return [(name, Outer(like.new_zeros(n, p), like.new_zeros(n, q))) for name, (q, p) in shapes]

    def no_rows(self) -> Stack:
        """The rows of no example."""
        return Stack(self.zeros(self.bindings, 0))

    def listens(self) -> bool:
        """Whether rows of the pass in progress are asked for."""
        return self.now.listener is not None and torch.is_grad_enabled()

    def tap_layer(self, rule: AnyRule) -> Handle:
        """A tap around the layer's own forward: what hooks do with its output or its weights is done by others.

        While the layer computes, its parameters ask for no gradient; where its input holds no examples they are shared
        tensors, and so is its output.
        """
        layer, plain = rule.layer, rule.layer.forward

        def run(*args: Any, **kwargs: Any) -> Any:
            args = rule.prepare(args)
            others: dict[str, Any] = {}
            if self._given_no_examples(rule, args, kwargs):
                others |= operations._shared_parameters(rule, self, self.now.batch)
            elif self.known.read:  # what others were given of the parameters is taken away meanwhile
                others |= dict.fromkeys(layer._parameters)
            with self.silenced(rule.parameters):
                if others:
                    with operations._attributes_set(layer, others):
                        output = plain(*args, **kwargs)
                else:
                    output = plain(*args, **kwargs)
            if isinstance(output, operations._SharedTensor):
                return output
            self._check_dimensions(rule, output)
            inputs = list(filter(torch.is_tensor, (*args, *kwargs.values())))
            return self.tap(rule, output, rule.dim(output), inputs, rule.watch(args, kwargs))

        return self.replace_forward(layer, rule.parameters, run)

    def replace_forward(
        self, layer: nn.Module, parameters: Sequence[Tensor], run: Callable[..., object]
    ) -> rules._Replaced:
        """Another forward of this one object while someone listens: else its own, and its parameters are silenced."""
        plain = layer.forward

        def forward(self_: nn.Module, *args: Any, **kwargs: Any) -> object:
            if self_ is not layer:  # a copy has its own again
                return type(self_).forward(self_, *args, **kwargs)
            listening = self.now.listener is not None and torch.is_grad_enabled()
            if listening and (parameters or self.known.read):  # a root without either hands nothing out
                return run(*args, **kwargs)
            with self.silenced(parameters):
                return plain(*args, **kwargs)

        forward.tapped = True  # type: ignore[attr-defined]
        # trainers read from it which columns a model takes
        forward.__signature__ = inspect.signature(type(layer).forward)  # type: ignore[attr-defined]
        return rules._Replaced(layer, "forward", MethodType(forward, layer))

    def _given_no_examples(self, rule: AnyRule, args: Args, kwargs: Kwargs) -> bool:
        """Whether all examples share the input: it comes from parameters alone, or has not one entry for each."""
        examples = rule.given(args, kwargs)
        if examples is None:
            return False
        x, dim = examples
        if isinstance(x, operations._SharedTensor) or x.requires_grad or not self.now.batch:
            return isinstance(x, operations._SharedTensor)
        self.now.calls[rule.name] += 1
        key = (rule.name, "input", self.now.calls[rule.name])
        if x.shape[dim] != self.now.batch:
            self.known.shared_places.add(key)
        return key in self.known.shared_places

    def _check_dimensions(self, rule: AnyRule, output: Tensor) -> None:
        """Refuse a batch of one whose example has lost the dimension that examples have in larger batches."""
        usual = self.known.dimensions.setdefault(rule.name, set())
        if self.now.batch is not None and self.now.batch > 1:
            usual.add(output.ndim)
        elif self.now.batch == 1 and usual and output.ndim not in usual:
            if output.ndim < 2 or output.shape[rule.dim(output)] != 1:
                raise validate.InvalidInput(
                    f"layer {rule.name!r} was given a batch of one example without a dimension for examples: its "
                    f"output has {output.ndim} dimension(s), in larger batches {min(usual)}. Name the dimension that "
                    "is meant (squeeze(1) in place of squeeze(), flatten(1) in place of flatten())"
                )

    def tap(self, rule: AnyRule, output: Tensor, dim: int, inputs: Sequence[Tensor], rows_of: RowsOf) -> Tensor:
        """An output of a layer with a tap on it: its gradient gives the rows of this and perhaps other layers.

        The examples are in dimension `dim`, and come first in what `rows_of` is given; the inputs may not be changed
        before the gradient arrives.
        """
        if isinstance(output, operations._SharedTensor):
            raise operations._Unseen(output, f"is what layer {rule.name!r} computes with for all examples at once")
        if self.shown is not None:
            return self.shown(rule, output, dim)
        token, versions = self.now.token, [*map(_VERSION, inputs)]

        def push(b: Tensor) -> None:
            if versions != [*map(_VERSION, inputs)]:
                raise validate.InvalidInput(
                    f"the input of layer {rule.name!r} was changed in place after the layer used it: write y = f(x) in "
                    "place of f_(x)"
                )
            b = b.detach()
            if dim:
                b = b.transpose(0, dim)
            for owner, suffix, rows in rows_of(b):
                if rows.n != self.now.batch:
                    rows = self._of_examples(owner, rows)
                if self.now.listener is not None:
                    self.now.listener(owner.leaves[suffix], rows)

        def arrive(b: Tensor) -> None:
            now = self.now
            if now.token is not token:
                raise validate.InvalidInput(
                    f"a gradient of layer {rule.name!r} arrived after its batch was closed: call backward() on the "
                    "loss of a batch before optimizer.step() and before the next batch"
                )
            if b.dtype.itemsize < 4 and not now.reduced():
                raise validate.InvalidInput(
                    f"the gradient of layer {rule.name!r} is {b.dtype} and the loss a mean: its rounding depends on "
                    "the size of the batch, and with it every record's share; return tensors, lists, tuples or dicts "
                    "from the module, or use a sum, loss_reduction='sum'"
                )
            now.arrived()
            if now.later is None:
                push(b)
            else:
                now.later(rule.name, push, b, inputs)

        tapped: Tensor = _GradientTap.apply(output, self.anchor, arrive)  # type: ignore[no-untyped-call]
        return tapped

    def _of_examples(self, rule: AnyRule, rows: Rows) -> Rows:
        """Rows as many as there are examples, those of pieces added up; refused where there are others."""
        batch = self.now.batch
        if batch is None:
            return rows
        if batch and self.batch_dim == 0 and rules._pieces_of(rows.n, batch):
            self.note_pieces(rule, rows.n // batch)
            return rules._folded(rows, batch)
        raise validate.InvalidInput(
            f"layer {rule.name!r} saw {rows.n} examples where the module was given {batch}: keep the "
            "examples in the first dimension of every layer's input (batch_first=False: in the second)"
        )

    def note_pieces(self, rule: AnyRule, k: int) -> None:
        """A layer saw k pieces of every example: as it did when it was tried out, or it is refused."""
        if self.now.pieces is not None and (rule.name, k) not in self.now.pieces:
            raise validate.InvalidInput(
                f"layer {rule.name!r} saw {k} pieces of every example, and another number when the module was tried "
                "out: keep the examples in the first dimension of every layer's input"
            )
        self.known.pieces.add((rule.name, k))


@dataclass(eq=False)
class _Watch:
    """Refuses every gradient that reaches a parameter itself: its layer's taps have told all they know by then."""

    layers: Layers
    name: str

    def __call__(self, gradient: Tensor) -> None:
        if self.layers.learning:
            self.layers.known.read.add(self.name)
        else:
            raise validate.InvalidInput(
                f"the parameter {self.name!r} is used outside the pass of its own layer (by other code of the module, "
                "by a hook, or in the loss), where its gradient cannot be told example by example: call the layer "
                "itself, or tie a second layer to the same Parameter; write .detach() where no gradient is meant, "
                "let the optimiser do penalties (weight_decay=), or freeze it before training is made private"
            )


def _watched(parameter: nn.Parameter) -> bool:
    """Whether other taps have this parameter already."""
    return any(isinstance(hook, _Watch) for hook in (parameter._backward_hooks or {}).values())


def _read(module: nn.Module, trainable: Trainable, batch_dim: int) -> tuple[list[AnyRule], dict[str, LeafBinding]]:
    """The layers of a module that have leaves, and the binding of every leaf."""
    rules = [
        rule_for(name, layer, batch_dim)
        for name, layer in module.named_modules()
        # attention reads the weight of its output projection and never calls it: its rule does
        if any(map(trainable, layer.parameters(recurse=type(layer).forward is nn.MultiheadAttention.forward)))
    ]
    uses: Counter[int] = Counter()
    for rule in rules:
        rule.own(rule.bindings(trainable, False))
        uses.update({id(p) for p in rule.parameters})
    bindings: dict[str, LeafBinding] = {}
    owner: dict[tuple[int, str], str] = {}
    for rule in rules:
        if any(uses[id(p)] > 1 for p in rule.parameters):
            rule.own(rule.bindings(trainable, True))
        for suffix, binding in rule.wanted.items():
            own = f"{rule.name}.{suffix}".strip(".")
            place = (id(binding.weight), str(binding.rows))
            cut = {rows for weight, rows in owner if weight == place[0] and "None" in (rows, place[1])} - {place[1]}
            validate.check(not cut, "module", own, "untie this layer: another one uses a part of the same parameter")
            rule.leaves[suffix] = owner.setdefault(place, own)
            bindings.setdefault(rule.leaves[suffix], binding)
    return rules, bindings


# ------------------------------------------------------------ taps


_Push = Callable[[Tensor], None]


def trains(node: Any) -> bool:
    """Inside the backward pass of a node whose second tensor is the anchor: whether the pass ends there."""
    return bool(torch._C._will_engine_execute_node(node.next_functions[1][0]))


class _GradientTap(torch.autograd.Function):
    """Makes a tensor need a gradient although no weight does, and shows that gradient to `push`.

    The memory is handed on as a tensor of its own, not as a view, so that activations may still be computed in place
    and cannot cut off the tap.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, push: _Push) -> Tensor:
        """The output's memory."""
        ctx.push, ctx.anchor = push, anchor
        return output.detach()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Show the gradient; nothing below needs it."""
        if torch._C._will_engine_execute_node(ctx.next_functions[1][0]):  # as `trains` asks, without a call
            ctx.push(gradients[0])
        if not torch.is_grad_enabled():
            return gradients[0], None, None
        slope: Tensor = _Slope.apply(gradients[0], ctx.anchor)  # type: ignore[no-untyped-call]
        return slope, None, None


class _Slope(torch.autograd.Function):
    """A gradient that has a graph of its own, through which no training pass may come back."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, anchor: Tensor) -> Tensor:
        """The same numbers, which need a gradient even where they follow from weights alone."""
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Only into a slope of the slope, which is none of the weights' gradient."""
        if trains(ctx):
            raise validate.InvalidInput(
                "the loss goes back through a gradient of the private module (torch.autograd.grad with "
                "create_graph=True, as in a gradient penalty): this gradient of a gradient cannot be told example by "
                "example. Use .detach() on that gradient where it is only a number, or write the loss of one example "
                "as a function for isthmus.TorchObjective, which may call torch.func.grad, and train with minimize"
            )
        return gradients[0], None


def tap(output: Tensor, anchor: Tensor, push: _Push) -> Tensor:
    """The output, with `push` called once with its gradient.

    >>> x, gradients = torch.ones(2), []
    >>> tap(x * 3, torch.zeros((), requires_grad=True), gradients.append).sum().backward()
    >>> gradients
    [tensor([1., 1.])]
    """
    tapped: Tensor = _GradientTap.apply(output, anchor, push)  # type: ignore[no-untyped-call]
    return tapped
