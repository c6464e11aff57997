"""The user's own optimiser, with a step that closes a private round first."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from isthmus.base import validate
from isthmus.core.driver import DRIVERS, TorchDriver
from isthmus.gradients.layers import Layers
from isthmus.sets import ConvexSet, Product, Whole

T = TypeVar("T")
LOCKED = (
    *("noise_multiplier", "max_grad_norm", "max_clipbound", "min_clipbound", "target_unclipped_quantile"),
    *("clipbound_learning_rate", "unclipped_num_std", "expected_batch_size", "loss_reduction", "generator"),
    *("secure_mode", "grad_samples", "accumulated_iterations", "summed_grad", "step_hook"),
)
"""What Opacus' optimiser and its schedulers set: here an assignment would change nothing, and is refused."""
_UNKNOWN_SCALER = (
    "give the GradScaler that scales its gradients to make_private(grad_scaler=), so that rows are divided by its "
    "scale before they are clipped and no step is skipped for what overflows"
)
_RAW = "keep them frozen, or call engine.detach() and make private again: they were not trained by make_private"
"""A gradient that did not come out of the pipeline would move its parameter by unprotected data."""


def beside(thing: Any, names: type, **own: object) -> None:
    """Give an object a class with these names beside its own, which is `_plain`."""
    kind = type(thing)
    named = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "_plain": kind}
    thing.__class__ = type(kind.__name__, (names, kind), named | own)


def _bare(kind: type[T]) -> T:
    """An object of a class that is about to be given its state."""
    return kind.__new__(kind)


class _Private(torch.optim.Optimizer):
    """Beside the optimiser's own class: refuses what would be ignored, and copies are plain."""

    _plain: type[torch.optim.Optimizer]
    _step_supports_amp_scaling = True  # a GradScaler that nobody has told us of shows itself in `step`

    def __setattr__(self, name: str, value: object) -> None:
        if name in LOCKED:
            remedy = "give it to make_private: it is fixed with what the ledger charges; call engine.detach() first"
            validate.refuse(f"optimizer.{name}", value, remedy)
        super().__setattr__(name, value)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Refused: nothing of it would be private."""
        remedy = "call engine.detach() and add it before make_private: its parameters would move by raw gradients"
        validate.refuse("optimizer.add_param_group", sorted(param_group), remedy)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        return _bare, (self._plain,), self.__getstate__()


def _make_steps_private(optimizer: torch.optim.Optimizer, driver: TorchDriver, sets: Mapping[str, ConvexSet]) -> None:
    """Its `step()` releases the round, sets `.grad`, moves, and projects layers onto their sets.

    While more physical batches of a logical one are to come, `step()` releases nothing.  A closure is called once, its
    loss returned: forward and backward of the batch, then the release.  Schedulers, state dicts and step
    hooks see the optimiser they know; an assignment that would be ignored, and more parameters, are refused.
    """
    before = optimizer.step
    private = {id(parameter) for parameter in driver.layers.parameters()}

    def step(self: torch.optim.Optimizer, closure: Callable[[], object] | None = None) -> object:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        attributes = vars(self)
        if "grad_scale" in attributes or "found_inf" in attributes:  # left by a scaler before it asks for a step
            for name in ("grad_scale", "found_inf"):
                attributes.pop(name, None)
            validate.refuse("optimizer", type(self).__name__, _UNKNOWN_SCALER)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None and id(parameter) not in private:
                    validate.refuse("optimizer", "parameters with a gradient of their own", _RAW)
        attributes["_opt_called"] = True  # schedulers look for it, also while pieces are to come
        if driver.step() and sets:
            with driver.group.alike():
                for name, constraint in sets.items():  # every constrained leaf onto its set: post-processing
                    binding = driver.layers.bindings[name]
                    binding.write(constraint.project(binding.read().reshape(-1)))
        return loss

    if hasattr(before, "_wrapped_by_lr_sched"):  # a scheduler made earlier looks for its mark
        step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    step._before = before  # type: ignore[attr-defined]
    _watch_others(driver, private)
    optimizer.step = MethodType(step, optimizer)  # type: ignore[method-assign]
    beside(optimizer, _Private)


def _restore_steps(optimizer: torch.optim.Optimizer) -> None:
    """The optimiser's own `step` again, and no mark of privacy on it."""
    optimizer.__class__ = optimizer._plain  # type: ignore[attr-defined]
    before = optimizer.step._before  # type: ignore[attr-defined]
    if hasattr(before, "_wrapped_by_lr_sched"):
        optimizer.step = before  # type: ignore[method-assign]
    else:
        del optimizer.step
    del optimizer.noise_multiplier, optimizer.max_grad_norm  # type: ignore[attr-defined]


def _check_fresh(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """A module or an optimiser that is private already would be charged and noised twice."""
    remedy = "call detach() on its engine first: it is private already"
    driven = any(driver.module is module for driver in DRIVERS)
    validate.check(not driven, "module", type(module).__name__, remedy)
    validate.check(not isinstance(optimizer, _Private), "optimizer", type(optimizer).__name__, remedy)


def _watch_others(driver: TorchDriver, private: set[int]) -> None:
    """Refuse steps that other optimisers take with private parameters while a batch waits for the private one."""
    seen = weakref.ref(driver)  # torch keeps the hook, and an engine may be forgotten

    def before(other: torch.optim.Optimizer, args: object, kwargs: object) -> None:
        driver = seen()
        if driver is None or not driver.unmoved:
            return
        if other is driver.optimizer or any(value is driver.optimizer for value in vars(other).values()):
            return  # the private one, or a wrapper around it
        theirs = any(id(p) in private for group in other.param_groups for p in group["params"])
        remedy = (
            "call step() of the optimiser that make_private returned: this one has private parameters too, and would "
            "move nothing, as their gradients are there only once the private step has released them"
        )
        validate.check(not theirs, "optimizer", type(other).__name__, remedy)

    handle = register_optimizer_step_pre_hook(before)
    driver.handles.append(handle)
    weakref.finalize(driver, handle.remove)


def unwrapped(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """The optimiser inside the wrappers of a trainer, such as `accelerate`'s: it is the one that moves."""
    inner = getattr(optimizer, "optimizer", None)
    if not isinstance(inner, torch.optim.Optimizer):
        return optimizer
    remedy = "prepare the optimiser after make_private: it keeps a step of its own for its GradScaler"
    validate.check(getattr(optimizer, "scaler", None) is None, "optimizer", type(optimizer).__name__, remedy)
    return unwrapped(inner)


def _leaf_sets(
    constraint: ConvexSet | Mapping[str, ConvexSet] | None, layers: Layers
) -> tuple[dict[str, ConvexSet], ConvexSet | None]:
    """The sets of single layers, given by name, or one set for every layer; and their product, where there are any."""
    if not constraint:
        return {}, None
    names = [leaf.name for leaf in layers.space.leaves]
    if not isinstance(constraint, Mapping):
        constraint = dict.fromkeys(names, constraint)
    sets = dict(constraint)
    for name, given_set in sets.items():
        validate.check(name in names, "constraint", name, f"name layers of the module: {names}")
        size, where = layers.space[name].size, f"constraint[{name!r}]"
        validate.check(isinstance(given_set, ConvexSet), where, given_set, "give a set from isthmus.sets")
        remedy = f"give a set of dimension {size}: the layer has so many numbers [W | c]"
        validate.check(given_set.dim in (None, size), where, given_set, remedy)
    return sets, Product([(sets.get(leaf.name, Whole()), leaf.size) for leaf in layers.space.leaves])


def _check_optimizer(optimizer: torch.optim.Optimizer, layers: Layers) -> None:
    """The optimiser moves exactly the parameters that are trained."""
    kind = type(optimizer).__name__
    validate.check(isinstance(optimizer, torch.optim.Optimizer), "optimizer", kind, "give a torch optimiser")
    remedy = "use SGD or Adam: it evaluates the loss several times in a step, and every value would be a release"
    validate.check(not isinstance(optimizer, torch.optim.LBFGS), "optimizer", "LBFGS", remedy)
    held = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    trained = {id(p) for p in layers.parameters()}
    remedy = (
        f"Module parameters are different than optimizer Parameters: give the optimiser exactly the {len(trained)} "
        f"parameters that the module trains, of which it has {len(trained & held)}, and freeze the others first "
        "(requires_grad_(False)). get_compatible_module returns a copy with parameters of its own: make the optimiser "
        "after it"
    )
    validate.check(trained == held, "optimizer", f"{len(held)} trainable parameters", remedy)


# ---------------------------------------------------------------- the loop's GradScaler

# A `GradScaler` multiplies the loss by S, so that small gradients do not vanish in float16, and divides gradients by S
# before the optimiser moves.  Here the rows of every example are divided by S before they are clipped, in float32.
#
# A scaler also looks for gradients that are not finite, skips the step then and makes S smaller.  Whether that happens
# depends on the raw gradients of private records: one record with a large gradient would decide whether a round is
# released at all.  So S stays what it was when training was made private, every step is taken and charged, and an
# example whose gradient overflows counts as zero, which changes the sum by no more than C.

LARGE = 2.0**15
"""Of a loss that is a sum, gradients of 1 are near the largest float16 number beyond this scale."""
KEPT = (
    "leave the scale as it is: it is fixed when training is made private, and may not follow what overflows in "
    "private gradients"
)


class _Fixed(torch.amp.GradScaler):
    """A scaler whose scale stays, for the optimisers of private training only."""

    _private: set[int]
    _plain: type[torch.amp.GradScaler]

    def unscale_(self, optimizer: torch.optim.Optimizer) -> None:
        """Nothing: what a private optimiser is given was divided by the scale before it was clipped."""
        self._check(optimizer)

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """The optimiser's step, always: whether one is taken must not depend on the data."""
        self._check(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, new_scale: object = None) -> None:
        """Nothing: the scale stays."""
        validate.check(new_scale is None, "new_scale", new_scale, KEPT)

    def load_state_dict(self, state_dict: dict[str, object]) -> None:
        """Only a state with the same scale."""
        scale = state_dict.get("scale", self.get_scale())
        validate.check(scale == self.get_scale(), "scale", scale, KEPT)

    def _check(self, optimizer: object) -> None:
        is_private = id(optimizer) in self._private
        remedy = "give other optimisers a scaler of their own: this one belongs to private training"
        validate.check(is_private, "optimizer", type(optimizer).__name__, remedy)

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        state = {name: value for name, value in self.__getstate__().items() if name != "_private"}
        return _bare, (self._plain,), state


def _scale_of(scaler: torch.amp.GradScaler | None, reduction: str) -> float:
    """The scale that a loop multiplies its loss by: 1 without a scaler, or with one that is switched off.

    >>> _scale_of(None, "mean"), _scale_of(torch.amp.GradScaler("cpu", init_scale=8.0), "mean")
    (1.0, 8.0)
    """
    if scaler is None:
        return 1.0
    is_scaler = isinstance(scaler, torch.amp.GradScaler)
    validate.check(is_scaler, "grad_scaler", type(scaler).__name__, "give the torch.amp.GradScaler of the loop")
    scale = float(scaler.get_scale())
    validate.positive(**{"grad_scaler.get_scale()": scale})
    if scale > LARGE and reduction == "sum":
        warnings.warn(
            f"the loss is a sum, and the GradScaler keeps its scale of {scale:g}: gradients of 1 overflow in "
            "float16, and examples that overflow count as zero; make it with init_scale=2.0**8 or so",
            stacklevel=3,
        )
    return scale


def _fix_scale(scaler: Any, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Let the scale of a user's scaler stay from now on; returns what makes the scaler the user's own again.

    >>> weights = [torch.nn.Parameter(torch.zeros(1))]
    >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    >>> free = _fix_scale(scaler, torch.optim.SGD(weights, lr=0.1))
    >>> scaler.update(), scaler.get_scale()
    (None, 8.0)
    >>> free()
    """
    if scaler is None or not scaler.is_enabled():
        return lambda: None
    if isinstance(scaler, _Fixed):
        scaler._private.add(id(optimizer))
    else:
        scaler._private = {id(optimizer)}
        beside(scaler, _Fixed)

    def free() -> None:
        scaler._private.discard(id(optimizer))
        if not scaler._private:
            scaler.__class__ = scaler._plain
            del scaler._private

    return free
