"""`accelerate` around private training: prepared before make_private, or after it, in one process."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import SEED, C, Z, assert_same, data, loader, mlp, private, train
from torch.optim import SGD, Adam
from torch.optim.lr_scheduler import StepLR

from isthmus import InvalidInput, PrivacyEngine
from isthmus.engine import loader as private_loader

accelerate = pytest.importorskip("accelerate")


@pytest.fixture(autouse=True)
def _alone() -> Iterator[None]:
    yield
    accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
    accelerate.state.GradientState._reset_state()


def prepared(when: str, make: Any = lambda p: SGD(p, lr=0.5), **options: Any) -> tuple[Any, ...]:
    """(accelerator, engine, module, optimizer, loader), private and prepared in one order or the other."""
    accelerator, engine, module = accelerate.Accelerator(cpu=True), PrivacyEngine(seed=3), mlp()
    parts: tuple[Any, ...] = (module, make(module.parameters()), loader(data()))
    if when == "before":
        parts = accelerator.prepare(*parts)
    facts = {"noise_multiplier": Z, "max_grad_norm": C, "noise_generator": torch.Generator().manual_seed(SEED)}
    made = engine.make_private(
        module=parts[0], optimizer=parts[1], data_loader=parts[2], criterion=F.cross_entropy, **(facts | options)
    )
    return accelerator, engine, *(made if when == "before" else accelerator.prepare(*made))


@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("when", ["before", "after"])
def test_it_trains_as_without(when: str, physical: int | None) -> None:
    plain = train(private(mlp(), data(), optimizer=lambda p: Adam(p, lr=0.05)))
    accelerator, engine, module, optimizer, batches = prepared(
        when, lambda p: Adam(p, lr=0.05), max_physical_batch_size=physical
    )
    for _ in range(2):
        for _, x, y in batches:
            optimizer.zero_grad()
            accelerator.backward(F.cross_entropy(module(x), y))
            optimizer.step()
    assert engine.ledger.rounds() == {"main": 8}
    assert_same(accelerator.unwrap_model(module), plain.module, 1e-12)


@pytest.mark.parametrize("when", ["before", "after"])
def test_accumulated_batches_are_rounds_of_their_own(when: str) -> None:
    accelerator, engine, module, optimizer, batches = prepared(when)
    accelerator.gradient_accumulation_steps = 2
    for _, x, y in batches:
        with accelerator.accumulate(module):
            accelerator.backward(F.cross_entropy(module(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert engine.ledger.rounds() == {"main": 4}


@pytest.mark.parametrize("when", ["before", "after"])
def test_schedulers_step_and_a_clip_of_what_is_not_released_yet_is_warned_of(when: str) -> None:
    accelerator, engine, module, optimizer, batches = prepared(when)
    scheduler = accelerator.prepare(StepLR(optimizer, 1, 0.5))
    for _, x, y in batches:
        accelerator.backward(F.cross_entropy(module(x), y))
        with pytest.warns(UserWarning, match="between backward.* and optimizer.step.*does nothing"):
            accelerator.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    assert engine.ledger.rounds() == {"main": 4}
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.5 * 0.5**4)


@pytest.mark.parametrize("when", ["before", "after"])
def test_no_batch_is_read_ahead_and_all_come_on_the_device_of_the_module(when: str, monkeypatch: Any) -> None:
    """Its own loaders read a batch ahead: tickets and batches would be out of step."""
    accelerator, _, module, _, batches = prepared(when)
    collected: list[tuple[int, torch.device]] = []
    place = private_loader.moved

    def seen(batch: Any, device: torch.device) -> Any:
        if isinstance(batch, list):
            collected.append((len(batch[0]), device))
        return place(batch, device)

    monkeypatch.setattr(private_loader, "moved", seen)
    for number, (i, _, _) in enumerate(batches, 1):
        assert collected[-1] == (len(i), accelerator.device) and len(collected) == number
        break
    assert type(batches).__name__ == "PrivateLoader" and batches.sample_rate == 0.25


def test_saved_and_unwrapped_models_are_plain(tmp_path: Any) -> None:
    accelerator, _, module, _, _ = prepared("after")
    accelerator.save_model(module, tmp_path)
    plain = accelerator.unwrap_model(module)
    assert sorted(plain.state_dict()) == sorted(mlp().state_dict())


def test_an_optimiser_with_a_scaler_inside_is_prepared_after() -> None:
    accelerator, module = accelerate.Accelerator(cpu=True), mlp()
    wrapped = accelerator.prepare(SGD(module.parameters(), lr=0.1))
    wrapped.scaler = torch.amp.GradScaler("cpu")
    with pytest.raises(InvalidInput, match="prepare the optimiser after make_private"):
        PrivacyEngine().make_private(
            module=module, optimizer=wrapped, data_loader=loader(data()), noise_multiplier=1.0, max_grad_norm=1.0
        )


@pytest.mark.parametrize("when", ["before", "after"])
def test_mixed_precision(when: str) -> None:
    """Autocast around the module: gradients of bfloat16 are taken of losses that are sums."""
    accelerator, engine = accelerate.Accelerator(cpu=True, mixed_precision="bf16"), PrivacyEngine()
    module = mlp().float()
    records = data(dtype=torch.float32)
    parts: tuple[Any, ...] = (module, SGD(module.parameters(), lr=0.01), loader(records))
    if when == "before":
        parts = accelerator.prepare(*parts)
    options = {"noise_multiplier": 0.0, "max_grad_norm": 1.0, "loss_reduction": "sum", "poisson_sampling": False}
    made = engine.make_private(module=parts[0], optimizer=parts[1], data_loader=parts[2], **options)
    net, optimizer, batches = made if when == "before" else accelerator.prepare(*made)
    for _ in range(20):
        for _, x, y in batches:
            accelerator.backward(F.cross_entropy(net(x), y, reduction="sum"))
            optimizer.step()
    net.eval()
    with torch.no_grad():
        after = float(F.cross_entropy(net(records.x), records.y))
        start = float(F.cross_entropy(mlp().float()(records.x), records.y))
    assert after < start - 0.02 and len(engine.accountant) == 80
