"""What Opacus' names mean here, one by one, and which of them refuse and why."""

import io
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from refusals import refuses
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from isthmus import InvalidInput
from isthmus import PrivacyEngine as Plain
from isthmus.opacus_compat import GradSampleModule, PrivacyEngine, distributed, schedulers
from isthmus.opacus_compat.accountants import GaussianAccountant, PRVAccountant, RDPAccountant, create_accountant
from isthmus.opacus_compat.accountants.utils import get_noise_multiplier
from isthmus.opacus_compat.data_loader import DPDataLoader
from isthmus.opacus_compat.names import _by_layer
from isthmus.opacus_compat.optimizers import DPOptimizer
from isthmus.opacus_compat.utils import module_utils
from isthmus.opacus_compat.utils.batch_memory_manager import BatchMemoryManager, wrap_data_loader
from isthmus.opacus_compat.utils.uniform_sampler import UniformWithReplacementSampler
from isthmus.opacus_compat.validators import ModuleValidator
from isthmus.opacus_compat.validators.errors import ShouldReplaceModuleError, UnsupportedModuleError

DELTA = 1e-5


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def records() -> DataLoader:
    g = torch.Generator().manual_seed(2)
    return DataLoader(
        TensorDataset(torch.randn(40, 6, generator=g), torch.randint(0, 3, (40,), generator=g)), batch_size=10
    )


def made(
    engine: Any = None, make: Any = torch.optim.SGD, module: nn.Module | None = None, data: Any = None, **options: Any
) -> tuple[Any, ...]:
    """(engine, module, optimizer, loader), with a criterion before the loader where the mode returns one."""
    engine, module = engine or PrivacyEngine(), module or net()
    optimizer, arguments = make(module.parameters(), lr=0.1), {"max_grad_norm": 1.0} | options
    if "target_epsilon" in options:
        private = engine.make_private_with_epsilon
    else:
        private, arguments = engine.make_private, {"noise_multiplier": 1.0} | arguments
    return engine, *private(module=module, optimizer=optimizer, data_loader=data or records(), **arguments)


def loop(module: Any, optimizer: Any, loader: Any) -> None:
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()


def weights(module: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])


# ---------------------------------------------------------------- module and optimiser


def test_module_and_optimiser_are_the_users_own_and_answer_to_both_names() -> None:
    engine, module, optimizer, loader = made(make=torch.optim.Adam)
    assert isinstance(module, GradSampleModule) and isinstance(module, nn.Sequential) and module._module is module
    assert isinstance(optimizer, DPOptimizer) and isinstance(optimizer, torch.optim.Adam)
    assert optimizer.original_optimizer is optimizer and optimizer.expected_batch_size == 10.0
    assert optimizer.accumulated_iterations == 1 and len(optimizer.params) == 4
    assert isinstance(loader, DPDataLoader) and loader.sample_rate == 0.25
    loop(module, optimizer, loader)
    assert sorted(module.state_dict()) == sorted(net().state_dict())
    for copied in (pickle.loads(pickle.dumps(module)), module_utils.clone_module(module)):
        assert type(copied) is nn.Sequential
        assert module_utils.are_state_dict_equal(copied.state_dict(), module.state_dict())
    engine.detach()
    assert type(module) is nn.Sequential and type(optimizer) is torch.optim.Adam


def test_a_module_that_is_not_wrapped_has_its_own_class() -> None:
    _, module, optimizer, loader = made(wrap_model=False)
    assert type(module) is nn.Sequential
    loop(module, optimizer, loader)


def test_there_are_no_raw_gradients_anywhere() -> None:
    _, module, optimizer, loader = made()
    for x, y in loader:
        F.cross_entropy(module(x), y).backward()
        assert not any(hasattr(p, name) for p in module.parameters() for name in ("grad_sample", "summed_grad"))
        assert not any(p.grad.any() for p in module.parameters())
        optimizer.step()
        optimizer.zero_grad()
    assert not any(hasattr(p, "summed_grad") for p in module.parameters())
    with pytest.raises(AttributeError):
        _ = optimizer.grad_samples


REFUSED = [
    (lambda: made()[2].signal_skip_step(), "signal_skip_step.*a record may be a second time"),
    (lambda: made()[2].clip_and_accumulate(), "in one go"),
    (lambda: made()[2].add_noise(), "in one go"),
    (lambda: made()[2].scale_grad(), "in one go"),
    (lambda: made()[2].pre_step(), "in one go"),
    (lambda: made()[1].to_standard_module(), "to_standard_module"),
    (lambda: made()[1].remove_hooks(), "remove_hooks"),
    (lambda: made()[1].disable_hooks(), "disable_hooks"),
    (lambda: GradSampleModule(net()), "not kept and not shown"),
    (lambda: DPOptimizer(None, noise_multiplier=1.0), "make_private"),
    (lambda: schedulers.StepNoise(None, step_size=1), "what the ledger charges"),
    (lambda: schedulers.ExponentialGradClip(None, gamma=0.9), "adaptive"),
    (lambda: distributed.DifferentiallyPrivateDistributedDataParallel(net()), "group=True"),
    (lambda: UniformWithReplacementSampler(num_samples=3), "in secret"),
    (lambda: GaussianAccountant(), "reports too little"),
]
test_names_without_a_sound_meaning_say_why = refuses(*REFUSED)


def test_step_hooks_see_every_release_once() -> None:
    _, module, optimizer, loader = made()
    seen: list[Any] = []
    optimizer.attach_step_hook(seen.append)
    loop(module, optimizer, wrap_data_loader(data_loader=loader, max_batch_size=2, optimizer=optimizer))
    assert seen == [optimizer] * 4


def test_without_noise_the_clipped_sum_is_shown() -> None:
    engine, module, optimizer, loader = made(noise_multiplier=0.0, max_grad_norm=0.1, poisson_sampling=False)
    x, y = next(iter(loader))
    F.cross_entropy(module(x), y).backward()
    optimizer.step()
    total = torch.cat([p.summed_grad.reshape(-1) for p in module.parameters()])
    assert 0 < float(total.norm()) <= 10 * 0.1 * 1.001
    assert engine.get_epsilon(DELTA) == math.inf and not engine.statement(DELTA).private


# ---------------------------------------------------------------- bounds by parameter


def test_bounds_of_parameters_become_bounds_of_layers_of_the_same_total() -> None:
    module = nn.Sequential(nn.Linear(3, 2), nn.MultiheadAttention(4, 2))
    bounds = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    found = _by_layer(module, bounds)
    assert len(found) > 2 and found["0"] == pytest.approx(math.sqrt(5))
    assert math.hypot(*found.values()) == pytest.approx(math.hypot(*bounds))
    with pytest.raises(InvalidInput, match="6 trainable parameters"):
        _by_layer(module, [1.0, 2.0])


def test_a_record_moves_no_layer_by_more_than_its_bound() -> None:
    bounds = [0.1, 0.2, 0.3, 0.4]
    options = {"clipping": "per_layer", "max_grad_norm": bounds, "noise_multiplier": 0.0, "poisson_sampling": False}
    _, module, optimizer, loader = made(**options)
    x, y = next(iter(loader))
    (1e6 * F.cross_entropy(module(x), y)).backward()
    optimizer.step()
    sums = [p.summed_grad.reshape(-1) for p in module.parameters()]
    for (weight, bias), bound in ((sums[:2], math.hypot(0.1, 0.2)), (sums[2:], 0.5)):
        assert float(torch.cat([weight, bias]).norm()) <= 10 * bound * 1.001


# ---------------------------------------------------------------- validators


def test_errors_have_opacus_kinds() -> None:
    wrong = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    with pytest.raises(UnsupportedModuleError, match="BatchNorm1d"):
        made(module=wrong)
    with pytest.raises(UnsupportedModuleError):
        PrivacyEngine.validate(module=wrong, optimizer=None, data_loader=None)
    assert all(isinstance(error, ShouldReplaceModuleError) for error in ModuleValidator.validate(wrong))
    assert not PrivacyEngine.is_compatible(module=wrong, optimizer=None, data_loader=None)
    assert ModuleValidator.is_valid(ModuleValidator.fix_and_validate(wrong))
    with pytest.raises(UnsupportedModuleError):
        ModuleValidator.fix_and_validate(nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)))


def test_what_fix_is_given_is_done_or_refused() -> None:
    wrong = nn.Sequential(nn.BatchNorm1d(16), nn.BatchNorm2d(16))
    assert [layer.num_groups for layer in ModuleValidator.fix(wrong)] == [2, 16]
    assert [layer.num_groups for layer in ModuleValidator.fix_and_validate(wrong, num_groups=4)] == [4, 4]
    with pytest.raises(InvalidInput, match="replace_bn_with_in=True is not allowed: put nn.InstanceNorm"):
        ModuleValidator.fix(wrong, replace_bn_with_in=True)
    with pytest.raises(TypeError, match="groups"):
        ModuleValidator.fix(wrong, groups=2)


@pytest.mark.parametrize("package", [PrivacyEngine, Plain])
def test_an_optimiser_made_before_the_fix_is_named(package: Any) -> None:
    module = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    fixed = ModuleValidator.fix(module)
    options = {"data_loader": records(), "noise_multiplier": 1.0, "max_grad_norm": 1.0}
    with pytest.raises(InvalidInput, match="get_compatible_module"):
        package().make_private(module=fixed, optimizer=optimizer, **options)
    again = torch.optim.SGD(fixed.parameters(), lr=0.1)
    package().make_private(module=fixed, optimizer=again, **options)


# ---------------------------------------------------------------- accountants


@pytest.mark.parametrize("kind", [RDPAccountant, PRVAccountant])
def test_an_accountant_counts_what_it_is_told(kind: Any) -> None:
    own, plain = kind(), Plain(accountant=kind.mechanism())
    for _ in range(5):
        own.step(noise_multiplier=1.0, sample_rate=0.25)
    _, module, optimizer, loader = made(plain)
    loop(module, optimizer, loader)
    assert own.history == [(1.0, 0.25, 5)] and len(own) == 5
    own_epsilon = own.get_epsilon(delta=DELTA)
    assert own_epsilon > plain.get_epsilon(DELTA) > 0
    own.step(noise_multiplier=0.0, sample_rate=0.25)
    assert own.get_epsilon(DELTA) == math.inf


def test_orders_are_the_renyi_accountants() -> None:
    own = create_accountant("rdp")
    own.step(noise_multiplier=1.0, sample_rate=0.1)
    few = own.get_epsilon(DELTA, alphas=[2.0])
    epsilon, order = own.get_privacy_spent(delta=DELTA, alphas=[2.0])
    assert few == epsilon > own.get_epsilon(DELTA) and order == 2.0
    tight = create_accountant("prv")
    tight.step(noise_multiplier=1.0, sample_rate=0.1)
    assert tight.get_epsilon(DELTA, alphas=[2.0]) == tight.get_epsilon(DELTA) < few
    with pytest.raises(InvalidInput, match="orders"):
        tight.get_privacy_spent(delta=DELTA)
    engine, module, optimizer, loader = made(PrivacyEngine(accountant="rdp"))
    loop(module, optimizer, loader)
    assert engine.get_epsilon(DELTA, alphas=[2.0]) > engine.get_epsilon(DELTA)


def test_a_state_that_is_loaded_never_lowers_epsilon() -> None:
    """The same run is not charged twice, another run's steps are added: Opacus would forget what was there."""
    engine, module, optimizer, loader = made()
    loop(module, optimizer, loader)
    state, spent = engine.accountant.state_dict(), engine.get_epsilon(DELTA)
    engine.accountant.load_state_dict(state)
    assert engine.get_epsilon(DELTA) == spent and len(engine.accountant) == 4
    other, module, optimizer, loader = made()
    loop(module, optimizer, loader)
    other.accountant.load_state_dict(state)
    assert len(other.accountant) == 8 and other.get_epsilon(DELTA) > spent
    other.accountant.load_state_dict({"history": [(1.0, 0.25, 3)], "mechanism": "prv"})
    assert len(other.accountant) == 11
    seeded, module, optimizer, loader = made(noise_generator=torch.Generator().manual_seed(1))
    loop(module, optimizer, loader)
    other.accountant.load_state_dict(seeded.accountant.state_dict())
    assert not other.statement(DELTA).private


def test_a_step_told_to_an_engine_is_one_more() -> None:
    engine, module, optimizer, loader = made()
    loop(module, optimizer, loader)
    before = engine.get_epsilon(DELTA)
    engine.accountant.step(noise_multiplier=1.0, sample_rate=0.25)
    assert engine.get_epsilon(DELTA) > before and len(engine.accountant) == 5


@pytest.mark.parametrize("accountant", ["prv", "rdp"])
def test_the_noise_of_a_target(accountant: str) -> None:
    options = {"target_epsilon": 2.0, "target_delta": DELTA, "sample_rate": 0.1, "accountant": accountant}
    z = get_noise_multiplier(epochs=2, **options)
    assert z == get_noise_multiplier(steps=20, **options)
    own = create_accountant(accountant)
    for _ in range(20):
        own.step(noise_multiplier=z, sample_rate=0.1)
    assert 1.999 < own.get_epsilon(DELTA) <= 2.0
    with pytest.raises(InvalidInput, match="either epochs or steps"):
        get_noise_multiplier(**options)


# ---------------------------------------------------------------- memory manager, checkpoints


@pytest.mark.parametrize("poisson", [True, False])
def test_the_memory_manager_counts_pieces(poisson: bool) -> None:
    engine, module, optimizer, loader = made(poisson_sampling=poisson)
    options = {"data_loader": loader, "max_physical_batch_size": 3, "optimizer": optimizer}
    with BatchMemoryManager(**options) as pieces:
        assert len(pieces) == 4 * 4 and len(loader) == 4
        seen = 0
        for x, y in pieces:
            assert len(x) <= 3
            F.cross_entropy(module(x), y).backward()
            optimizer.step()
            seen += 1
        assert poisson or seen == len(pieces)
    assert len(engine.accountant) == 4
    assert len(next(iter(loader))[0]) > 3 or poisson


def test_checkpoints_go_into_open_files_and_on_the_same_terms_only() -> None:
    engine, module, optimizer, loader = made(make=torch.optim.Adam)
    loop(module, optimizer, loader)
    file = io.BytesIO()
    engine.save_checkpoint(path=file, module=module, optimizer=optimizer, checkpoint_dict={"epoch": 1})
    other, again, second, loader = made(make=torch.optim.Adam)
    file.seek(0)
    assert other.load_checkpoint(path=file, module=again, optimizer=second, noise_scheduler=None) == {"epoch": 1}
    assert module_utils.are_state_dict_equal(module.state_dict(), again.state_dict())
    assert other.get_epsilon(DELTA) == engine.get_epsilon(DELTA)
    file.seek(0)
    looser, again, _, _ = made(noise_multiplier=2.0)
    with pytest.raises(InvalidInput, match="the settings of this checkpoint"):
        looser.load_checkpoint(path=file, module=again)
    for work in (engine.save_checkpoint, engine.load_checkpoint):
        with pytest.raises(InvalidInput, match="torch_save_kwargs"):
            work(path=io.BytesIO(), module=module, torch_save_kwargs={"x": 1})


def test_a_module_with_examples_second_must_say_so() -> None:
    """Opacus takes positions for examples here, and clips those: a record is not protected."""

    class Second(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x).mean(0)

    data = TensorDataset(torch.randn(40, 7, 4), torch.randint(0, 3, (40,)))

    def collate(batch: Any) -> Any:
        return torch.stack([x for x, _ in batch], 1), torch.stack([y for _, y in batch])

    module, engine = Second(4, 3), PrivacyEngine()
    _, _, optimizer, loader = made(engine, module=module, data=DataLoader(data, batch_size=20, collate_fn=collate))
    with pytest.raises(InvalidInput, match="was given 7 examples"):
        loop(module, optimizer, loader)
    assert len(engine.accountant) == 0
