"""`PrivacyEngine` with Opacus' habits: what a script passes is translated, and goes through the same engine."""

from __future__ import annotations

import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from isthmus.base import validate
from isthmus.engine import PrivacyEngine
from isthmus.engine.optimizer import unwrapped
from isthmus.gradients.layers import Layers
from isthmus.opacus_compat.accountants import IAccountant
from isthmus.opacus_compat.grad_sample import put_on, take_off
from isthmus.opacus_compat.optimizers import answer
from isthmus.opacus_compat.validators import ModuleValidator


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

    def __init__(self, *, accountant: str = "prv", secure_mode: bool = False, **rest: Any) -> None:
        super().__init__(accountant=accountant, secure_mode=secure_mode, **rest)

    def make_private(
        self,
        *,
        module: nn.Module,
        optimizer: torch.optim.Optimizer,
        noise_multiplier: float,
        max_grad_norm: Any,
        batch_first: bool = True,
        clipping: str = "flat",
        wrap_model: bool = True,
        **rest: Any,
    ) -> Any:
        """What `isthmus.PrivacyEngine` returns, its module and optimiser with Opacus' names beside their own.

        A list of bounds for `clipping="per_layer"` has one for each trainable parameter, as in Opacus: a layer [W | c]
        gets the root of the sum of their squares.
        With `wrap_model` the module answers to the names of `GradSampleModule`.
        """
        ModuleValidator.validate(module, strict=True)
        _check_same(module, unwrapped(optimizer))
        if clipping == "per_layer" and isinstance(max_grad_norm, Sequence):
            max_grad_norm = by_layer(module, max_grad_norm, batch_first)
        made = super().make_private(
            module=module,
            optimizer=optimizer,
            noise_multiplier=noise_multiplier,
            max_grad_norm=max_grad_norm,
            batch_first=batch_first,
            clipping=clipping,
            **rest,
        )
        answer(unwrapped(optimizer), self._require_driver(), sums=noise_multiplier == 0)
        if wrap_model:
            put_on(module)
        return made

    def detach(self) -> None:
        """Take training apart: module and optimiser are plain again."""
        super().detach()
        for training in self._trainings:
            take_off(training.driver.module)

    @property
    def accountant(self) -> IAccountant:
        """The ledger's epsilon, with Opacus' methods."""
        return IAccountant(self.ledger, self._kind)

    def get_epsilon(self, delta: float, alphas: Sequence[float] | None = None) -> float:
        """Epsilon at delta of everything released so far; "rdp" takes the orders `alphas`."""
        return super().get_epsilon(delta) if alphas is None else self.accountant.get_epsilon(delta, alphas)

    @classmethod
    def is_compatible(cls, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> bool:
        """Whether every trainable layer has per-example gradients."""
        return ModuleValidator.is_valid(module)

    @classmethod
    def validate(cls, *, module: nn.Module, optimizer: Any = None, data_loader: Any = None) -> None:  # type: ignore[override]
        """Raise `UnsupportedModuleError` with everything that is wrong with a module."""
        ModuleValidator.validate(module, strict=True)

    def save_checkpoint(self, *, path: Any, module: nn.Module, **rest: Any) -> None:
        """To a path or a file that is open for writing; without pickle, and whole or not at all at a path."""
        with tempfile.TemporaryDirectory() as folder:
            own = Path(path) if isinstance(path, (str, Path)) else Path(folder) / "checkpoint"
            super().save_checkpoint(path=own, module=module, **_without_schedulers(rest))
            if not isinstance(path, (str, Path)):
                path.write(own.read_bytes())

    def load_checkpoint(self, *, path: Any, module: nn.Module, **rest: Any) -> dict[str, Any]:
        """From a path or a file that is open for reading, on the terms it was written with."""
        with tempfile.TemporaryDirectory() as folder:
            own = Path(path) if isinstance(path, (str, Path)) else Path(folder) / "checkpoint"
            if not isinstance(path, (str, Path)):
                own.write_bytes(path.read())
            return super().load_checkpoint(path=own, module=module, **_without_schedulers(rest))


def by_layer(module: nn.Module, bounds: Sequence[float], batch_first: bool = True) -> dict[str, float]:
    """Bounds of layers from those of parameters, in the module's order: the bound of a whole record is the same.

    >>> by_layer(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1, bias=False)), [3.0, 4.0, 1.0])
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


def _check_same(module: nn.Module, optimizer: Any) -> None:
    """An optimiser of other parameters, in Opacus' words."""
    optimised = {id(p) for group in getattr(optimizer, "param_groups", []) for p in group["params"] if p.requires_grad}
    trained = {id(p) for p in module.parameters() if p.requires_grad}
    if optimised != trained:
        raise validate.InvalidInput(
            "Module parameters are different than optimizer Parameters: make the optimiser from the parameters of the "
            "module that is given here, after ModuleValidator.fix and get_compatible_module, which return copies"
        )


def _without_schedulers(rest: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint takes: options of torch.save, and schedulers of noise, have no meaning here."""
    names = ("optimizer", "checkpoint_dict")
    for name, value in rest.items():
        remedy = "leave it out: a checkpoint holds module, optimiser, sketch and terms, without pickle"
        validate.check(name in names or value is None, name, value, remedy)
    return {name: value for name, value in rest.items() if name in names}
