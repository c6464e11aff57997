"""GradScaler: rows are divided by its scale before they are clipped, and nothing of the data moves scale or steps."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import C, Trained, assert_same, data, mlp, private, train
from torch import nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam

from isthmus import InvalidInput, Kronecker


def scaler(scale: float = 2.0**10, **options: Any) -> GradScaler:
    return GradScaler("cpu", init_scale=scale, **options)


def scaled(run: Trained, amp: GradScaler, epochs: int = 2, unscale: bool = False, sum_: bool = False) -> Trained:
    """The loop that torch's documentation shows."""
    for _ in range(epochs):
        for i, x, y in run.loader:
            run.batches.append(i.tolist())
            run.optimizer.zero_grad()
            loss = F.cross_entropy(run.module(x), y, reduction="sum" if sum_ else "mean")
            amp.scale(loss).backward()
            if unscale:
                amp.unscale_(run.optimizer)
            amp.step(run.optimizer)
            amp.update()
    return run


@pytest.mark.parametrize("unscale", [True, False])
@pytest.mark.parametrize("sketch", [None, Kronecker(4, 2)])
@pytest.mark.parametrize("make", [lambda p: SGD(p, lr=0.5), lambda p: Adam(p, lr=0.05, fused=True)])
def test_a_scaled_loss_trains_as_the_loss_itself(make: Any, sketch: Any, unscale: bool) -> None:
    amp = scaler(growth_interval=2)
    plain = train(private(mlp(), data(), sketch=sketch, optimizer=make))
    run = private(mlp(), data(), sketch=sketch, optimizer=make, grad_scaler=amp)
    scaled(run, amp, unscale=unscale)
    assert_same(run.module, plain.module, 1e-12)
    assert amp.get_scale() == 2.0**10  # it would have grown four times


@pytest.mark.parametrize("sum_", [True, False])
def test_pieces_of_a_batch(sum_: bool) -> None:
    amp = scaler()
    options = {"loss_reduction": "sum" if sum_ else "mean"}
    plain = private(mlp(), data(), **options)
    for _, x, y in plain.loader:
        F.cross_entropy(plain.module(x), y, reduction=options["loss_reduction"]).backward()
        plain.optimizer.step()
    run = private(mlp(), data(), grad_scaler=amp, max_physical_batch_size=3, **options)
    scaled(run, amp, 1, sum_=sum_)
    assert len(run.rounds) == 4
    assert_same(run.module, plain.module, 1e-12)


class Half(nn.Module):
    """A network that autocast runs in float16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.float16):
            return self.net(x)


def half_sums(scale: float, weight: float, huge: bool = False) -> list[torch.Tensor]:
    """The clipped sums (without noise) of small losses in float16; one record may be huge."""
    records = data(dtype=torch.float32)
    if huge:
        records.x[3] = 3e4
    amp = scaler(scale)
    run = private(Half(), records, noise_multiplier=0.0, loss_reduction="sum", grad_scaler=amp, poisson_sampling=False)
    for _, x, y in run.loader:
        loss = weight * F.cross_entropy(run.module(x).float(), y, reduction="sum")
        amp.scale(loss).backward()
        amp.step(run.optimizer)
        amp.update()
    assert amp.get_scale() == scale
    return [round.released["main"]["gradient"] for round in run.rounds]


def test_small_gradients_that_vanish_in_half_precision_survive() -> None:
    weight = 2.0**-25  # times gradients of about 0.1: below the smallest float16 number
    lost, kept = half_sums(1.0, weight), half_sums(2.0**14, weight)
    exact = half_sums(1.0, 1.0)
    assert float(kept[0].norm()) > 0 and float(lost[0].norm()) < 0.5 * float(kept[0].norm())
    assert float(exact[0].norm()) > 1e3 * float(kept[0].norm())  # divided by the scale before the clip, not after


@pytest.mark.parametrize("scale", [2.0**4, 2.0**14])
def test_a_record_that_overflows_counts_as_zero_and_stops_nothing(scale: float) -> None:
    """Torch's scaler would skip the step and halve its scale, for all to see: one record would decide that."""
    calm, hit = half_sums(scale, 1.0), half_sums(scale, 1.0, huge=True)
    assert len(calm) == len(hit) == 4
    assert all(bool(torch.isfinite(each).all()) for each in hit)
    assert float((calm[0] - hit[0]).norm()) * 10 <= 2 * C * 1.06


def test_a_scaler_that_nobody_told_of_is_refused_before_anything_is_charged() -> None:
    for make in (lambda p: SGD(p, lr=0.5), lambda p: Adam(p, fused=True)):
        amp, run = scaler(), private(mlp(), data(), optimizer=make)
        for _, x, y in run.loader:
            amp.scale(F.cross_entropy(run.module(x), y)).backward()
            with pytest.raises(InvalidInput, match="grad_scaler"):
                amp.step(run.optimizer)
            assert not hasattr(run.optimizer, "found_inf")
            break
        assert run.engine.ledger.rounds() == {}


def test_a_scaler_serves_private_optimisers_only_and_keeps_its_scale() -> None:
    amp = scaler()
    run = private(mlp(), data(), grad_scaler=amp)
    other = SGD(mlp().parameters(), lr=0.1)
    for call in (amp.step, amp.unscale_):
        with pytest.raises(InvalidInput, match="a scaler of their own"):
            call(other)
    with pytest.raises(InvalidInput, match="fixed when training is made private"):
        amp.update(4.0)
    with pytest.raises(InvalidInput, match="fixed when training is made private"):
        amp.load_state_dict({**amp.state_dict(), "scale": 4.0})
    amp.load_state_dict(amp.state_dict())
    copied = pickle.loads(pickle.dumps(amp))
    assert type(copied) is GradScaler and copied.get_scale() == 2.0**10
    run.engine.detach()
    assert type(amp) is GradScaler
    amp.load_state_dict({**amp.state_dict(), "scale": 4.0})
    assert amp.get_scale() == 4.0


def test_a_scaler_that_is_off_is_nothing() -> None:
    amp = GradScaler("cpu", enabled=False)
    plain, run = train(private(mlp(), data())), private(mlp(), data(), grad_scaler=amp)
    assert_same(scaled(run, amp).module, plain.module, 0.0)


def test_wrong_scalers() -> None:
    with pytest.raises(InvalidInput, match="grad_scaler"):
        private(mlp(), data(), grad_scaler=1024.0)
    with pytest.warns(UserWarning, match="count as zero"):
        private(mlp(), data(), grad_scaler=scaler(2.0**16), loss_reduction="sum")


def autocast_sum(reduction: str, scale: float) -> torch.Tensor:
    """The clipped sum of the first batch, under autocast to float16."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    amp, options = scaler(scale), {"noise_multiplier": 0.0, "poisson_sampling": False, "max_grad_norm": 0.1}
    run = private(net, data(dtype=torch.float32), loss_reduction=reduction, grad_scaler=amp, **options)
    _, x, y = next(iter(run.loader))
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(run.module(x), y, reduction=reduction)
    amp.scale(loss).backward()
    amp.step(run.optimizer)
    return run.rounds[0].released["main"]["gradient"]


def test_means_and_sums_under_autocast_have_the_same_rows() -> None:
    whole = autocast_sum("sum", 2.0**8)
    assert float(whole.norm()) > 0
    for reduction, scale in (("mean", 2.0**8), ("mean", 2.0**4)):
        torch.testing.assert_close(autocast_sum(reduction, scale), whole, rtol=2e-3, atol=1e-6)  # float16 has 11 bits
