"""`PrivacyEngine` with Opacus' habits: what a script passes is translated, and goes through the same engine."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isthmus.base import validate
from isthmus.core.driver import TorchDriver
from isthmus.engine import PrivacyEngine
from isthmus.engine.optimizer import beside, unwrapped
from isthmus.engine.options import Norm
from isthmus.gradients.layers import Layers
from isthmus.opacus_compat.names import IAccountant, ModuleValidator, method

_END = "call engine.detach(): it gives module and optimiser back with what they have learned"
_ONE = "call step(): it clips, sums, adds noise and charges the ledger in one go, no part of which can be had alone"
_RAW = (
    "call make_private, which clips and sums gradients from their factors, or engine.public_rows for public "
    "examples: those of single records are not kept and not shown"
)


class OpacusEngine(PrivacyEngine):
    """`isthmus.PrivacyEngine` for scripts that were written for Opacus.

    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = DataLoader(TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,))), batch_size=10)
    >>> net, criterion, engine = nn.Linear(3, 2), nn.CrossEntropyLoss(), OpacusEngine(accountant="rdp")
    >>> net, optimizer, criterion, loader = engine.make_private(
    ...     module=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1), data_loader=data, criterion=criterion,
    ...     noise_multiplier=1.0, max_grad_norm=1.0, grad_sample_mode="ghost")
    >>> for x, y in loader:
    ...     optimizer.zero_grad()
    ...     criterion(net(x), y).backward()
    ...     _ = optimizer.step()
    >>> len(engine.accountant), optimizer.expected_batch_size, loader.sample_rate, net._module is net
    (4, 10.0, 0.25, True)
    """

    def __init__(self, *, accountant: str = "prv", **rest: Any) -> None:
        super().__init__(accountant=accountant, **rest)

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        max_grad_norm: Norm,
        wrap_model: bool = True,
        **rest: Any,
    ) -> Any:
        """What `isthmus.PrivacyEngine` returns, its module and optimiser with Opacus' names beside their own.

        A list of bounds for `clipping="per_layer"` has one for each trainable parameter, as in Opacus: a layer [W | c]
        gets the root of the sum of their squares.
        With `wrap_model` the module answers to the names of `GradSampleModule`.
        """
        ModuleValidator.validate(module, strict=True)
        if rest.get("clipping") == "per_layer" and isinstance(max_grad_norm, Sequence):
            max_grad_norm = _by_layer(module, max_grad_norm, rest.get("batch_first", True))
        made = super().make_private(module=module, optimizer=optimizer, max_grad_norm=max_grad_norm, **rest)
        _answer(unwrapped(optimizer), self._require_driver(), sums=rest["noise_multiplier"] == 0)
        if wrap_model:
            _put_on(module)
        return made

    def detach(self) -> None:
        """Take training apart: module and optimiser are plain again."""
        super().detach()
        for training in self._trainings:
            _take_off(training.driver.module)

    @property
    def accountant(self) -> IAccountant:
        """The ledger's epsilon, with Opacus' methods."""
        return IAccountant(self.ledger, self._kind)

    def get_epsilon(self, delta: float, alphas: Sequence[float] | None = None) -> float:
        """Epsilon at delta of everything released so far; "rdp" takes the orders `alphas`."""
        return self.accountant.get_epsilon(delta, alphas)

    @classmethod
    def is_compatible(cls, *, module: nn.Module, **rest: object) -> bool:  # type: ignore[override]
        """Whether every trainable layer has per-example gradients."""
        return ModuleValidator.is_valid(module)

    @classmethod
    def validate(cls, *, module: nn.Module, **rest: object) -> None:  # type: ignore[override]
        """Raise `UnsupportedModuleError` with everything that is wrong with a module."""
        ModuleValidator.validate(module, strict=True)

    def save_checkpoint(self, *, path: Any, module: nn.Module, **rest: Any) -> None:
        """To a path or a file that is open for writing; without pickle, and whole or not at all at a path."""
        rest = _without_schedulers(rest)
        if isinstance(path, (str, Path)):
            return super().save_checkpoint(path=path, module=module, **rest)
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / "checkpoint"
            super().save_checkpoint(path=own, module=module, **rest)
            path.write(own.read_bytes())

    def load_checkpoint(self, *, path: Any, module: nn.Module, **rest: Any) -> dict[str, Any]:
        """From a path or a file that is open for reading, on the terms it was written with."""
        rest = _without_schedulers(rest)
        if isinstance(path, (str, Path)):
            return super().load_checkpoint(path=path, module=module, **rest)
        with tempfile.TemporaryDirectory() as folder:
            own = Path(folder) / "checkpoint"
            own.write_bytes(path.read())
            return super().load_checkpoint(path=own, module=module, **rest)


def _by_layer(module: nn.Module, bounds: Sequence[float], batch_first: bool = True) -> dict[str, float]:
    """Bounds of layers from those of parameters, in the module's order: the bound of a whole record is the same.

    >>> _by_layer(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False)), [3.0, 4.0, 1.0])
    {'0': 5.0, '1': 1.0}
    """
    layers = Layers(module, batch_first=batch_first)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    remedy = f"give one bound, or one for each of the {len(trained)} trainable parameters"
    validate.check(len(bounds) == len(trained), "max_grad_norm", list(bounds), remedy)
    for bound in bounds:
        validate.positive(max_grad_norm=bound)
    squares = {id(parameter): bound**2 for parameter, bound in zip(trained, bounds, strict=True)}
    uses = Counter(id(p) for binding in layers.bindings.values() for p in binding.parameters)  # q, k, v share one
    return {
        name: math.sqrt(sum(squares[id(p)] / uses[id(p)] for p in binding.parameters))
        for name, binding in layers.bindings.items()
    }


def _without_schedulers(rest: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint takes: options of torch.save, and schedulers of noise, have no meaning here."""
    names = ("optimizer", "checkpoint_dict")
    for name, value in rest.items():
        remedy = "leave it out: a checkpoint holds module, optimiser, sketch and terms, without pickle"
        validate.check(name in names or value is None, name, value, remedy)
    return {name: value for name, value in rest.items() if name in names}


# ---------------------------------------------------------------- what module and optimiser answer to


class GradSampleModule:
    """The class of a module while training is private, beside the module's own: nothing is wrapped.

    `_module` is the module itself, so that scripts which look inside a wrapper find it; `isinstance` holds.  There is
    no `grad_sample`: raw gradients of single records would be unprotected.
    """

    _plain: type[nn.Module]
    __init__ = method("GradSampleModule", _RAW)
    to_standard_module = method("to_standard_module", _END)
    remove_hooks = method("remove_hooks", _END)
    disable_hooks = method("disable_hooks", "call module.eval() for passes of other data")

    @property
    def _module(self) -> GradSampleModule:
        return self

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        """Copies and pickles are of the module's own class."""
        own, plain = type(self), self._plain
        reduced = plain.__reduce_ex__(self, 1)  # later protocols insist on the class it has now

        def named(part: object) -> object:
            if isinstance(part, tuple):
                return tuple(map(named, part))
            if part is own:
                return plain
            return part

        return tuple(map(named, reduced))


def _put_on(module: nn.Module) -> nn.Module:
    """The same module, which answers to Opacus' names too.

    >>> module = _put_on(nn.Linear(2, 2))
    >>> isinstance(module, GradSampleModule), isinstance(module, nn.Linear), module._module is module
    (True, True, True)
    >>> type(_take_off(module)) is nn.Linear
    True
    """
    beside(module, GradSampleModule)
    return module


def _take_off(module: nn.Module) -> nn.Module:
    """The same module, of its own class again."""
    if isinstance(module, GradSampleModule):
        module.__class__ = module._plain
    return module


class DPOptimizer:
    """The class of an optimiser while training is private, beside the optimiser's own: nothing is wrapped.

    noise_multiplier, max_grad_norm   as they were given; assignments are refused
    expected_batch_size               the public number that noisy sums are divided by
    accumulated_iterations            1: every batch of the loader is a release of its own
    summed_grad (of a parameter)      only where noise_multiplier is 0: the clipped sum, which was released as it is
    """

    _driver: TorchDriver
    accumulated_iterations = 1
    __init__ = method("DPOptimizer", "call make_private of an engine, which knows loader, clip and ledger")
    clip_and_accumulate = method("clip_and_accumulate", _ONE)
    add_noise = method("add_noise", _ONE)
    scale_grad = method("scale_grad", _ONE)
    pre_step = method("pre_step", _ONE)
    signal_skip_step = method(
        "signal_skip_step",
        "use BatchMemoryManager, which cuts one batch into pieces: a batch of the loader that is not released "
        "would be added to the next one, where a record may be a second time",
    )

    @property
    def original_optimizer(self) -> DPOptimizer:
        """The optimiser itself."""
        return self

    @property
    def expected_batch_size(self) -> float:
        """The public number that noisy sums are divided by."""
        return self._driver.stage.sampler.divisor(self._driver.n, 0)

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters that are trained."""
        return list(self._driver.layers.parameters())

    def attach_step_hook(self, fn: Callable[[Any], None]) -> None:
        """Call `fn(optimizer)` at every release: what it sees was released and charged."""
        self._driver.observers.append(lambda round: fn(self))


def _answer(optimizer: torch.optim.Optimizer, driver: TorchDriver, sums: bool) -> None:
    """Let a private optimiser answer to Opacus' names too; `engine.detach()` makes it plain again.

    sums  give every parameter the sum it moves by as `summed_grad`: only where that was released without noise
    """
    beside(optimizer, DPOptimizer, _driver=driver, _plain=optimizer._plain)  # type: ignore[attr-defined]

    def show(private: Any, args: object, kwargs: object) -> None:
        for parameter in private.params:
            if parameter.grad is not None:
                parameter.summed_grad = parameter.grad * private.expected_batch_size

    if sums:
        optimizer.register_step_pre_hook(show)
