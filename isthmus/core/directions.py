"""What a round has lifted becomes the optimiser's gradient, or moves the weights at once."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.base.recording import Replay
from isthmus.lifts import Lifted
from isthmus.objectives.module import Layers
from isthmus.sketches.base import Sketch, without_memo

Directions = Sequence[Sequence[Lifted]]
"""The lifted values of several rounds."""
Place = tuple[str, Tensor, Tensor, int, int]
"""A leaf, a parameter of it, that parameter as a matrix in its own memory, and the columns it is."""


_EARLY = (
    "the gradient was changed between backward() and optimizer.step() ({what}), which does nothing: every example's "
    "gradient is clipped to max_grad_norm, and step() releases their sum. Leave clip_grad_norm_ out (trainers take "
    "gradient_clip_val=None), or change what was released in a hook of optimizer.register_step_pre_hook"
)


class _NotYet(Tensor):
    """Stands for a gradient between the backward pass and the step that releases it: zeros that nobody can write to.

    >>> weight = torch.nn.Parameter(torch.ones(2, 3))
    >>> weight.grad = _not_yet(weight)
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     _ = torch.nn.utils.clip_grad_norm_([weight], 1.0)
    >>> str(caught[0].message)[:60]
    'the gradient was changed between backward() and optimizer.st'
    """

    @classmethod
    def __torch_function__(cls, func: Any, types: object, args: Any = (), kwargs: Any = None) -> object:
        """Reads zeros; says that what would be written is not."""
        name, written = func.__name__, args[0] if args else None
        tensors = written if isinstance(written, (list, tuple)) else [written]
        writes = (name.endswith("_") and not name.endswith("__")) or name == "__setitem__"  # as torch names functions
        if writes and any(isinstance(x, _NotYet) for x in tensors):
            if name not in QUIET:
                warnings.warn(_EARLY.format(what=name), stacklevel=2)
            return written
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if isinstance(result, Tensor) and isinstance(written, _NotYet) and result.data_ptr() == written.data_ptr():
                return result.as_subclass(_NotYet)
            return result


QUIET = ("zero_", "_foreach_zero_", "detach_", "requires_grad_", "_amp_foreach_non_finite_check_and_unscale_")
"""What `zero_grad` does, in silence; and a `GradScaler`, which the step looks for."""


def _not_yet(parameter: Tensor) -> Tensor:
    """What stands for the gradient of a parameter; it takes no memory."""
    return torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape).as_subclass(_NotYet)


class Awaiting:
    """The gradients of a batch until the step that releases them: whoever changes them is told that they are none."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        self._parameters = list(parameters)
        self._shown: list[Tensor] = []
        self._kinds: list[tuple[torch.device, torch.dtype]] = []
        self.on = False

    def begin(self) -> None:
        """The first gradient has come."""
        self.on = True
        kinds = [(parameter.device, parameter.dtype) for parameter in self._parameters]
        if kinds != self._kinds:
            self._kinds, self._shown = kinds, [_not_yet(parameter) for parameter in self._parameters]
        for parameter, shown in zip(self._parameters, self._shown, strict=True):
            parameter.grad = shown

    def end(self) -> None:
        """The step is taken: what was put in their place meanwhile is no gradient of this batch."""
        if not self.on:
            return
        self.on, strange = False, False
        for parameter, shown in zip(self._parameters, self._shown, strict=True):
            strange |= parameter.grad is not None and parameter.grad is not shown
            parameter.grad = None
        if strange:
            warnings.warn(_EARLY.format(what="assigned"), stacklevel=5)


class _GradientWriter:
    """Hands directions to an optimiser; on a device the steps of a sketch may be recorded ones."""

    def __init__(self, layers: Layers, optimizer: torch.optim.Optimizer) -> None:
        self.layers, self.optimizer = layers, optimizer
        self.replay: Replay[None] = Replay()
        self._sizes = [leaf.size for leaf in layers.space.leaves]
        self._room: Tensor | None = None

    def write(self, rounds: Directions) -> None:
        """The mean of the rounds' directions as gradients.

        Plain steps through a sketch that can add in place form no gradient at all.
        """
        lifted, *others = (lifted for each in rounds for lifted in each)
        if not others and isinstance(lifted.given, Tensor):  # one direction that is there as a whole
            pieces = zip(self.layers.space.leaves, lifted.given.split(self._sizes), strict=True)
            matrices = {leaf.name: piece.reshape(leaf.shape[0], -1) for leaf, piece in pieces}
            self.layers.set_gradients(lambda name, lo, hi: matrices[name][:, lo:hi])
            return
        rates = None if others else _plain_rates(self.optimizer)
        if rates is not None and lifted.code is not None:
            bindings = self.layers.bindings
            places = [(name, *place) for name, binding in bindings.items() for place in binding.places()]
            if all(_in_memory(parameter, matrix) for _, parameter, matrix, _, _ in places):
                for _, parameter, _, _, _ in places:
                    parameter.grad = None
                self._move(*lifted.code, places, [-rates[id(parameter)] for _, parameter, _, _, _ in places])
                return

        def columns(name: str, lo: int, hi: int) -> Tensor:  # leaf by leaf: the whole vector is never built
            total = sum([each.columns(self.layers.space, name, lo, hi) for each in others], first(name, lo, hi))
            return total / len(rounds)

        first = partial(lifted.columns, self.layers.space)
        self.layers.set_gradients(columns)

    def _move(self, sketch: Sketch, y: Tensor, places: Sequence[Place], rates: Sequence[float]) -> None:
        """w += rate Phi^+ y, leaf by leaf: the direction itself is never formed."""
        tensors = sketch.tensors()
        if not y.is_cuda or tensors is None or len(set(rates)) > 1:
            for (name, _, matrix, lo, hi), rate in zip(places, rates, strict=True):
                sketch.add_pinv_columns(matrix, name, y, lo, hi, rate)
            return
        if self._room is None or self._room.shape != y.shape or self._room.dtype != y.dtype:
            self._room = torch.empty_like(y)
        room = torch.mul(y, rates[0], out=self._room)  # a rate that changes is none of what is recorded

        def move() -> None:
            bare = without_memo(sketch)
            for name, _, matrix, lo, hi in places:
                bare.add_pinv_columns(matrix, name, room, lo, hi, 1.0)

        inputs = [room, *tensors, *(matrix for _, _, matrix, _, _ in places)]
        self.replay((sketch.m, sketch.norm), inputs, move)
        torch.autograd.graph.increment_version([parameter for _, parameter, _, _, _ in places])


def _plain_rates(optimizer: torch.optim.Optimizer) -> dict[int, float] | None:
    """The learning rate of each parameter, where a step is w - lr g and nothing else; None for other optimisers."""
    if getattr(optimizer, "_plain", type(optimizer)) is not torch.optim.SGD:
        return None
    quiet = all(not group[key] for group in optimizer.param_groups for key in ("momentum", "weight_decay", "maximize"))
    if not quiet or any(isinstance(group["lr"], Tensor) for group in optimizer.param_groups):
        return None
    return {id(p): float(group["lr"]) for group in optimizer.param_groups for p in group["params"]}


def _in_memory(parameter: Tensor, matrix: Tensor) -> bool:
    """Whether a matrix is a view of its parameter, and not a copy."""
    return matrix.untyped_storage().data_ptr() == parameter.untyped_storage().data_ptr()


# ---------------------------------------------------------------- copies and pickles of the module

# `copy.deepcopy`, `pickle` and `torch.save` ask a module for its state.  While a driver is attached every layer answers
# for itself (`__reduce_ex__` in its own dictionary): what it gives away is its state without the hooks of this package.
# What was gathered of private batches and not released is in the driver, and never in a copy.

_NAME = "__reduce_ex__"
_TABLES = "_hooks"
"""How the names of a module's tables of hooks, and of what is kept beside them, look."""


class _PlainCopies:
    """The handle of one layer's answer: `remove` takes it away."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

        def reduce(protocol: int) -> object:
            return _cleaned(type(layer).__reduce_ex__(layer, protocol))

        layer.__dict__[_NAME] = reduce

    def remove(self) -> None:
        """Copies are made as before."""
        self.layer.__dict__.pop(_NAME, None)


def _plain_copies(module: nn.Module) -> list[_PlainCopies]:
    """Let every layer of a module be copied and pickled without hooks of this package; returns the handles.

    >>> import copy
    >>> module = nn.Linear(2, 2)
    >>> handles = _plain_copies(module)
    >>> sorted(vars(copy.deepcopy(module)).keys() ^ vars(module).keys())
    ['__reduce_ex__']
    """
    return [_PlainCopies(layer) for layer in module.modules() if not isinstance(layer, torch.jit.ScriptModule)]


def _cleaned(part: object) -> object:
    """What a layer gives away of itself, in its state or among the arguments that it is made anew with."""
    if isinstance(part, tuple):
        return tuple(map(_cleaned, part))
    if not isinstance(part, dict) or "_modules" not in part:
        return part
    state = {name: value for name, value in part.items() if name != _NAME and not _ours(value)}
    tables = {name: table for name, table in state.items() if _TABLES in name and isinstance(table, dict)}
    hooks = {
        key for name, table in tables.items() if name.endswith(_TABLES) for key, hook in table.items() if _ours(hook)
    }
    for name, table in tables.items():  # those with the marks of hooks too, which have the same keys
        state[name] = type(table)((key, hook) for key, hook in table.items() if key not in hooks)
    return state


def _ours(value: object) -> bool:
    """Whether a function was defined inside one of this package: those of its users' models are not."""
    function = value.__func__ if isinstance(value, MethodType) else value
    local = isinstance(function, FunctionType) and "<locals>" in function.__qualname__
    return local and str(function.__module__).split(".")[0] == __name__.split(".")[0]
