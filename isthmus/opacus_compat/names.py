"""The names of Opacus for what the engine does; a script that uses one it cannot have here is told why.

What a script passes is translated, and goes through the same engine.  `isthmus.opacus_compat` puts every name under the
module that Opacus has it in.
"""

from __future__ import annotations

import copy
import math
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn import MultiheadAttention as DPMultiheadAttention

from isthmus import modules
from isthmus.base import validate
from isthmus.core.driver import TorchDriver
from isthmus.engine import PrivacyEngine, checkpoint, loader
from isthmus.engine.engine import Accountant
from isthmus.engine.loader import PrivateLoader as DPDataLoader
from isthmus.engine.optimizer import beside, unwrapped
from isthmus.engine.options import REFUSED, Norm
from isthmus.gradients.layers import Layers
from isthmus.modules import GRU as DPGRU
from isthmus.modules import LSTM as DPLSTM
from isthmus.modules import RNN as DPRNN
from isthmus.privacy import Adjacency, Ledger, Poisson
from isthmus.privacy.event_json import dpa

__all__ = ["DPGRU", "DPLSTM", "DPRNN", "DPDataLoader", "DPMultiheadAttention"]

# ---------------------------------------------------------------- names that have no sound meaning here


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
        validate.refuse(name, "of Opacus", why)

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


def clone_module(module: nn.Module) -> nn.Module:
    """A copy, free of any engine."""
    return copy.deepcopy(module)


def are_state_dict_equal(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    """Whether two state dicts have the same names and numbers."""
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# ---------------------------------------------------------------- the engine

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
            beside(module, GradSampleModule)
        return made

    def detach(self) -> None:
        """Take training apart: module and optimiser are plain again."""
        super().detach()
        for training in self._trainings:
            module = training.driver.module
            if isinstance(module, GradSampleModule):
                module.__class__ = module._plain

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
        with _as_path(path) as own:
            super().save_checkpoint(path=own, module=module, **_without_schedulers(rest))
            if own is not path:
                path.write(own.read_bytes())

    def load_checkpoint(self, *, path: Any, module: nn.Module, **rest: Any) -> dict[str, Any]:
        """From a path or a file that is open for reading, on the terms it was written with."""
        with _as_path(path) as own:
            if own is not path:
                own.write_bytes(path.read())
            return super().load_checkpoint(path=own, module=module, **_without_schedulers(rest))


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


@contextmanager
def _as_path(place: Any) -> Iterator[Any]:
    """A path as it is; for an open file, one in a folder that goes away."""
    if isinstance(place, (str, Path)):
        yield place
        return
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder) / "checkpoint"


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
        reduced: Any = self._plain.__reduce_ex__(self, 1)  # later protocols insist on the class it has now
        make, arguments, *state = reduced
        own = (self._plain if part is type(self) else part for part in arguments)
        return make, tuple(own), *state


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
