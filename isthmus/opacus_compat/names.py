"""What stands under Opacus' names beside the engine: accountants, validators, layers, helpers; and what is refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import MultiheadAttention as DPMultiheadAttention

from isthmus import modules
from isthmus.base import validate
from isthmus.engine import checkpoint, loader
from isthmus.engine.accountant import Accountant
from isthmus.engine.loader import PrivateLoader as DPDataLoader
from isthmus.engine.options import REFUSED
from isthmus.modules import GRU as DPGRU
from isthmus.modules import LSTM as DPLSTM
from isthmus.modules import RNN as DPRNN
from isthmus.privacy import Ledger, Poisson
from isthmus.privacy.accounting import Adjacency
from isthmus.privacy.event_json import dpa

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPDataLoader", "DPMultiheadAttention"]

# ---------------------------------------------------------------- names that have no sound meaning here


def refuse(name: str, why: str) -> NoReturn:
    """Say why a name of Opacus cannot be used."""
    validate.refuse(name, "of Opacus", why)


def refused(name: str, why: str) -> type:
    """A class of that name that can be imported, and says why it cannot be used.

    >>> refused("StepNoise", "the noise is fixed")(optimizer=None)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: StepNoise='of Opacus' is not allowed: the noise is fixed
    """
    return type(name, (), {"__init__": method(name, why), "__doc__": why})


def method(name: str, why: str) -> Callable[..., NoReturn]:
    """A method of that name that says why it cannot be called."""

    def refusing(self: object, *args: object, **kwargs: object) -> NoReturn:
        """Refused: see docs/migrating/opacus.md."""
        refuse(name, why)

    return refusing


ExponentialNoise, LambdaNoise, StepNoise = (
    refused(name, REFUSED["noise_scheduler"]) for name in ("ExponentialNoise", "LambdaNoise", "StepNoise")
)
ExponentialGradClip, LambdaGradClip, StepGradClip = (
    refused(name, REFUSED["grad_clip_scheduler"]) for name in ("ExponentialGradClip", "LambdaGradClip", "StepGradClip")
)
GaussianAccountant = refused(
    "GaussianAccountant",
    'use "prv" or "rdp": the central limit theorem of this one is no upper bound, and reports too little',
)
DifferentiallyPrivateDistributedDataParallel = refused(
    "DifferentiallyPrivateDistributedDataParallel",
    "give the bare module to make_private(group=True): the clipped sums of all processes are added there",
)
UniformWithReplacementSampler = refused(
    "UniformWithReplacementSampler", "give make_private a plain loader: it draws Poisson batches itself, and in secret"
)

# ---------------------------------------------------------------- accountants


class IAccountant(Accountant):
    """Epsilon of a ledger, and a way to charge it for what was released elsewhere.

    >>> accountant = create_accountant("rdp")
    >>> for _ in range(10):
    ...     accountant.step(noise_multiplier=1.0, sample_rate=0.01)
    >>> len(accountant), accountant.history
    (10, [(1.0, 0.01, 10)])
    >>> accountant.get_epsilon(1e-5, alphas=[2.0, 8.0]) >= accountant.get_epsilon(1e-5)
    True
    """

    def step(self, *, noise_multiplier: float, sample_rate: float, steps: int = 1) -> None:
        """Charge for a release of Gaussian noise on a Poisson batch, or for several.

        An engine charges its own releases: a step that is told here is one more.
        """
        validate.non_negative(noise_multiplier=noise_multiplier)
        event = dpa.NonPrivateDpEvent()
        if noise_multiplier:
            event = dpa.GaussianDpEvent(float(noise_multiplier))
        self.ledger.pay("step", Poisson(sample_rate).event(event), steps)

    def get_epsilon(self, delta: float, alphas: Sequence[float] | None = None, **kwargs: object) -> float:
        """Epsilon at delta; "rdp" takes the orders `alphas`, and the tight accountant needs none."""
        if alphas is None or self.kind != "rdp" or not len(self):
            return super().get_epsilon(delta)
        return self.get_privacy_spent(delta=delta, alphas=alphas)[0]

    def get_privacy_spent(self, *, delta: float, alphas: Sequence[float] | None = None) -> tuple[float, float]:
        """(epsilon, the order it was found at) of the "rdp" accountant."""
        validate.check(self.kind == "rdp", "accountant", self.kind, 'call get_epsilon: only "rdp" has orders')
        validate.open_unit(delta=delta)
        remedy = "leave alphas out: orders are for add-or-remove neighbours"
        validate.check(self.ledger.adjacency is Adjacency.ADD_REMOVE, "alphas", alphas, remedy)
        accountant = dpa.rdp.RdpAccountant(alphas and [float(alpha) for alpha in alphas])
        epsilon, order = accountant.compose(self.ledger.event()).get_epsilon_and_optimal_order(delta)
        return float(epsilon), float(order)

    def state_dict(self, destination: dict[str, object] | None = None) -> dict[str, object]:
        """What was charged, by the run that charged it."""
        own = {"spent": checkpoint.spent_by_run(self.ledger), "seeded": self.ledger.seeded}
        return {**(destination or {}), "history": self.history, "mechanism": self.kind, **own}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Charge for what a state holds and the ledger does not show: epsilon never falls.

        A state of Opacus does not say whose its steps were, and is charged whole.
        """
        remedy = "give what state_dict() returned"
        validate.check("history" in state_dict, "state_dict", sorted(state_dict), remedy)
        if state_dict.get("seeded"):
            self.ledger.mark_seeded()
        if "spent" in state_dict:
            checkpoint.charge_again(self.ledger, state_dict["spent"])
            return
        for noise_multiplier, sample_rate, steps in state_dict["history"]:
            self.step(noise_multiplier=noise_multiplier, sample_rate=sample_rate, steps=int(steps))

    def get_optimizer_hook_fn(self, sample_rate: float) -> Callable[[Any], None]:
        """What `optimizer.attach_step_hook` takes, for a second account of the same training."""
        return lambda optimizer: self.step(noise_multiplier=optimizer.noise_multiplier, sample_rate=sample_rate)


class RDPAccountant(IAccountant):
    """Renyi differential privacy: looser."""

    name = "rdp"

    def __init__(self) -> None:
        super().__init__(Ledger(), self.name)


class PRVAccountant(RDPAccountant):
    """Privacy-loss distributions: tight."""

    name = "prv"


def create_accountant(mechanism: str) -> IAccountant:
    """An accountant with a ledger of its own, by its name."""
    return IAccountant(Ledger(), mechanism)


def get_noise_multiplier(
    *,
    target_epsilon: float,
    target_delta: float,
    sample_rate: float,
    epochs: float | None = None,
    steps: int | None = None,
    accountant: str = "prv",
    epsilon_tolerance: float = 0.01,
    **kwargs: object,
) -> float:
    """The noise multiplier with which Poisson batches at `sample_rate` spend the target, from below within 0.01 %.

    >>> round(get_noise_multiplier(target_epsilon=1.0, target_delta=1e-5, sample_rate=0.01, steps=99), 2)
    0.9
    """
    validate.positive(target_epsilon=target_epsilon)
    validate.open_unit(target_delta=target_delta)
    validate.check((epochs is None) != (steps is None), "steps", steps, "give either epochs or steps")
    rounds = steps or max(1, int((epochs or 0.0) / sample_rate))
    validate.positive_int(steps=rounds)
    return Accountant(Ledger(), accountant).multiplier(Poisson(sample_rate), rounds, target_epsilon, target_delta)


# ---------------------------------------------------------------- validators


class UnsupportedError(validate.InvalidInput):
    """Something that private training does not take."""


class UnsupportedModuleError(UnsupportedError):
    """A module with a layer that has no per-example gradients."""


class ShouldReplaceModuleError(UnsupportedModuleError):
    """A layer that `fix` replaces."""


class IllegalModuleConfigurationError(UnsupportedModuleError):
    """A layer that private training takes with other options."""


class ModuleValidator:
    """Validates and repairs modules.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
    >>> ModuleValidator.is_valid(net), ModuleValidator.is_valid(ModuleValidator.fix(net))
    (False, True)
    """

    @classmethod
    def validate(cls, module: nn.Module, *, strict: bool = False) -> list[UnsupportedModuleError]:
        """Every error of a module; `strict` raises them in one message."""
        errors: list[UnsupportedModuleError] = []
        for problem in modules.validate(module):
            if problem.kind == "error" and "get_compatible_module" in problem.remedy:
                errors.append(ShouldReplaceModuleError(str(problem)))
            elif problem.kind == "error":
                errors.append(IllegalModuleConfigurationError(str(problem)))
        if strict and errors:
            raise UnsupportedModuleError("\n".join(map(str, errors)))
        return errors

    @classmethod
    def is_valid(cls, module: nn.Module) -> bool:
        """Whether a module has no error."""
        return not cls.validate(module)

    @classmethod
    def fix(cls, module: nn.Module, *, num_groups: int | None = None, replace_bn_with_in: bool = False) -> nn.Module:
        """A copy with layers that keep examples apart: make the optimiser after it, from the copy's parameters.

        num_groups  of every group norm that takes the place of a batch norm
        """
        remedy = "put nn.InstanceNorm in the place of these layers yourself: here they become group norms"
        validate.check(not replace_bn_with_in, "replace_bn_with_in", replace_bn_with_in, remedy)
        return modules.get_compatible_module(module, num_groups=num_groups)

    @classmethod
    def fix_and_validate(cls, module: nn.Module, **kwargs: Any) -> nn.Module:
        """`fix`, and an error where something is left."""
        fixed = cls.fix(module, **kwargs)
        cls.validate(fixed, strict=True)
        return fixed


# ---------------------------------------------------------------- batches in pieces


class _PhysicalBatches:
    """A private loader seen by its pieces.

    `len()` is the number of pieces for batches of a fixed size, and about that number for Poisson batches, whose sizes
    vary: it is computed from the public size of a batch.
    """

    def __init__(self, batches: DPDataLoader, size: int) -> None:
        self.loader, self.size = batches, size

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader) * math.ceil(round(self.loader.sample_rate * len(self.loader.dataset)) / self.size)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)


class BatchMemoryManager(loader.BatchMemoryManager):
    """Cuts the batches of a private loader to a physical size, within a `with` block."""

    def __enter__(self) -> _PhysicalBatches:  # type: ignore[override]
        return _PhysicalBatches(super().__enter__(), self.size)


def wrap_data_loader(*, data_loader: DPDataLoader, max_batch_size: int, optimizer: object) -> _PhysicalBatches:
    """The loader's batches in pieces, from now on."""
    manager = BatchMemoryManager(data_loader=data_loader, max_physical_batch_size=max_batch_size, optimizer=optimizer)
    return manager.__enter__()


# ---------------------------------------------------------------- small questions about modules


def trainable_parameters(module: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters that are trained, with their names."""
    return ((name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad)


def trainable_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers with parameters of their own that are trained, with their names."""
    return ((name, layer) for name, layer in module.named_modules() if has_trainable_params(layer))


def has_trainable_params(module: nn.Module) -> bool:
    """Whether a layer has a parameter of its own that is trained.

    >>> has_trainable_params(nn.Linear(1, 1)), has_trainable_params(nn.ReLU())
    (True, False)
    """
    return any(parameter.requires_grad for parameter in module.parameters(recurse=False))


def clone_module(module: nn.Module) -> nn.Module:
    """A copy, free of any engine."""
    return copy.deepcopy(module)


def are_state_dict_equal(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts have the same names and numbers."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
