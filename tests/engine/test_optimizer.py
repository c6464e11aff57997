"""The user's optimiser, schedulers and loop stay what they are."""

import gc
import pickle
from functools import partial
from typing import Any

import engine_cases
import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, C, Reference, Trained, Z, assert_same, clipped, data, first, mlp, private, step, train
from gradients.layers.layer_reference import Built
from grids import pairs
from test_sketches import plain_direction
from torch import Tensor, nn
from torch._C._dynamo.eval_frame import get_eval_frame_callback
from torch.amp import GradScaler
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop
from torch.optim.lr_scheduler import LambdaLR, OneCycleLR, StepLR
from torch.optim.optimizer import _global_optimizer_pre_hooks

from isthmus import BatchMemoryManager, InvalidInput, Kronecker


def groups(parameters: list[nn.Parameter]) -> SGD:
    return SGD([{"params": parameters[:2], "lr": 0.5}, {"params": parameters[2:], "lr": 0.05, "momentum": 0.9}], lr=9.0)


OPTIMIZERS = {
    "momentum": lambda p: SGD(p, lr=0.2, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adam": lambda p: Adam(p, lr=0.05),
    "adamw": lambda p: AdamW(p, lr=0.05, weight_decay=0.1),
    "rmsprop": lambda p: RMSprop(p, lr=0.02, momentum=0.5),
    "adam-fused": lambda p: Adam(p, lr=0.05, fused=True),
    "adam-foreach": lambda p: Adam(p, lr=0.05, foreach=True),
    "sgd-fused": lambda p: SGD(p, lr=0.2, momentum=0.9, fused=True),
    "adagrad-fused": lambda p: Adagrad(p, lr=0.1, fused=True),
    "adagrad": lambda p: Adagrad(p, lr=0.1),
    "groups": groups,
}

EITHER = [None, Kronecker(4, 2)]
"""Without a sketch and with one."""


@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_every_optimiser_moves_by_the_released_gradient(name: str) -> None:
    run = train(private(mlp(), data(), optimizer=OPTIMIZERS[name], sketch=Kronecker(4, 2)))
    reference = Reference(run, mlp(), data(), OPTIMIZERS[name])
    assert_same(run.module, reference.loop(plain_direction(reference)), 1e-9)  # Adam divides by a root


SCHEDULERS = {
    "step": lambda o: StepLR(o, 3, 0.5),
    "cycle": lambda o: OneCycleLR(o, 0.5, total_steps=20),
    "lambda": lambda o: LambdaLR(o, lambda t: 1 / (1 + t)),
    "warm-up": lambda o: LambdaLR(o, lambda t: min(1.0, t / 4)),
}


@pytest.mark.parametrize("name, when, physical", pairs(SCHEDULERS, ["before", "after"], [None, 3]))
def test_schedulers_made_before_and_after(name: str, when: str, physical: int | None) -> None:
    """Warnings are errors here: a scheduler that misses its optimiser's steps would warn."""
    held: dict[str, Any] = {}

    def make(parameters: Any) -> SGD:
        held["optimizer"] = SGD(parameters, lr=0.4, momentum=0.5)
        if when == "before":
            held["scheduler"] = SCHEDULERS[name](held["optimizer"])
        return held["optimizer"]

    run = private(mlp(), data(), optimizer=make, max_physical_batch_size=physical)
    scheduler = held["scheduler"] if when == "before" else SCHEDULERS[name](run.optimizer)
    rates = []
    for _ in range(2):
        for _, x, y in run.loader:
            F.cross_entropy(run.module(x), y).backward()
            t = run.engine.driver.state.t
            run.optimizer.step()
            if run.engine.driver.state.t > t:
                rates.append(run.optimizer.param_groups[0]["lr"])
                scheduler.step()
    plain = SGD(mlp().parameters(), lr=0.4, momentum=0.5)
    twin, expected = SCHEDULERS[name](plain), []
    for _ in range(8):
        expected.append(plain.param_groups[0]["lr"])
        plain.step()
        twin.step()
    assert rates == pytest.approx(expected)


def test_several_logical_batches_before_a_step_are_rounds_of_their_own() -> None:
    run = private(mlp(), data())
    for count, (i, x, y) in enumerate(run.loader, 1):
        run.batches.append(i.tolist())
        F.cross_entropy(run.module(x), y).backward()
        if count % 2 == 0:
            run.optimizer.step()
            assert run.engine.ledger.rounds() == {"main": count}
    assert len(run.rounds) == 4
    reference = Reference(run, mlp(), data())
    for start in (0, 2):
        rows = []
        for t in (start, start + 1):
            index = reference.draw()
            assert index.tolist() == run.batches[t]
            rows.append(clipped(torch.cat(reference.rows(index), 1), C).sum(0))
        # noise is drawn when a round closes: the first's when the second batch has been drawn
        released = [(total + reference.noise(len(total), Z * C)) / BATCH for total in rows]
        engine_cases.write(reference.module, reference.names, (released[0] + released[1]) / 2)
        reference.optimizer.step()
    assert_same(run.module, reference.module)


@pytest.mark.parametrize("physical, manager, sketch", pairs([1, 3, 7, 100], [True, False], EITHER), ids=str)
def test_any_physical_size_gives_the_same_training(physical: int, manager: bool, sketch: Any) -> None:
    whole = train(private(mlp(), data(), sketch=sketch))
    given = {} if manager else {"max_physical_batch_size": physical}
    run = private(mlp(), data(), sketch=sketch, **given)
    before = [p.clone() for p in run.module.parameters()]

    def loop(batches: Any) -> None:
        nonlocal before
        for i, x, y in batches:
            assert len(i) <= physical
            t = run.engine.driver.state.t
            step(run, x, y)
            run.optimizer.zero_grad()
            moved = not all(torch.equal(a, b) for a, b in zip(before, run.module.parameters(), strict=True))
            assert moved == (run.engine.driver.state.t > t)
            before = [p.clone() for p in run.module.parameters()]

    for _ in range(2):
        if manager:
            with BatchMemoryManager(
                data_loader=run.loader, max_physical_batch_size=physical, optimizer=run.optimizer
            ) as batches:
                loop(batches)
        else:
            loop(run.loader)
    assert run.loader._draws.physical == (None if manager else physical)
    assert len(run.rounds) == len(whole.rounds) == 8
    assert_same(run.module, whole.module, 1e-12)


def twice(run: Trained, how: str) -> Trained:
    for i, x, y in run.loader:
        run.batches.append(i.tolist())
        if how == "one backward":
            (F.cross_entropy(run.module(x), y) + F.cross_entropy(run.module(x), y)).backward()
        else:
            for _ in range(2):
                F.cross_entropy(run.module(x), y).backward()
        run.optimizer.step()
    return run


@pytest.mark.parametrize("sketch", EITHER)
@pytest.mark.parametrize("how", ["one backward", "two backwards"])
def test_a_batch_that_goes_through_twice_is_clipped_once(how: str, sketch: Any) -> None:
    """The gradient of a record is that of the sum of both losses, and its share is still at most C."""
    run = twice(private(mlp(), data(), sketch=sketch), how)
    reference = Reference(run, mlp(), data())
    rows = reference.rows
    reference.rows = lambda index: [2 * leaf for leaf in rows(index)]  # type: ignore[method-assign]
    assert_same(run.module, reference.loop(plain_direction(reference)))


def test_the_sum_of_losses() -> None:
    run = train(private(mlp(), data(), loss_reduction="sum"), loss=partial(F.cross_entropy, reduction="sum"))
    assert_same(run.module, train(private(mlp(), data())).module, 1e-12)


def test_step_without_backward_is_refused_before_anything_is_charged() -> None:
    run = private(mlp(), data())
    x, y = first(run)
    with pytest.raises(RuntimeError, match="no gradient"):
        run.optimizer.step()
    run.module(x)
    with pytest.raises(RuntimeError, match="no gradient"):
        run.optimizer.step()
    assert run.engine.ledger.rounds() == {}
    step(run, x, y)
    assert run.engine.ledger.rounds() == {"main": 1}


def test_a_second_step_is_an_empty_round_of_its_own() -> None:
    run = private(mlp(), data())
    step(run, *first(run))
    run.optimizer.step()
    assert run.engine.ledger.rounds() == {"main": 2}
    assert float(run.rounds[1].released["main"]["gradient"].std()) == pytest.approx(Z * C / BATCH, rel=0.5)


def test_only_batches_of_the_private_loader_go_through_the_module() -> None:
    """The loader the user had before, in place of the one that came back, would break the sampling's promise."""
    run = private(mlp(), data())
    x, y = data().x[:BATCH], data().y[:BATCH]
    with pytest.raises(InvalidInput, match="private loader"):
        run.module(x)
    train(run, 1)
    with pytest.raises(InvalidInput, match="private loader"):
        F.cross_entropy(run.module(x), y).backward()
    x, _ = first(run)
    for wrong in (torch.cat([x, x, x[:1], data().x[:1]]), x[1:]):
        with pytest.raises(InvalidInput, match="private loader handed out"):
            run.module(wrong)
    assert run.engine.ledger.rounds() == {"main": 4}


def test_a_mask_beside_the_examples_is_not_counted() -> None:
    run = private(Built(lambda m, mask, x: m.layer(x * mask[0]), layer=nn.Linear(6, 3).double()), data())
    for _, x, y in run.loader:
        F.cross_entropy(run.module(torch.ones(2, 6, dtype=torch.float64), x), y).backward()
        run.optimizer.step()
    assert len(run.rounds) == 4


def test_a_parameter_with_a_gradient_of_its_own_is_refused() -> None:
    module = mlp()
    module[0].requires_grad_(False)
    run = private(module, data(), optimizer=lambda p: SGD(module.parameters(), lr=0.1))
    train(run, 1)
    frozen = module[0].weight.clone()
    x, y = first(run)
    module[0].requires_grad_(True)  # after the fact
    with pytest.raises(InvalidInput, match="gradient of their own"):
        F.cross_entropy(run.module(x), y).backward()
    module[0].requires_grad_(False)
    F.cross_entropy(run.module(x), y).backward()
    module[0].weight.grad = torch.ones_like(frozen)
    with pytest.raises(InvalidInput, match="gradient of their own"):
        run.optimizer.step()
    assert torch.equal(module[0].weight, frozen)
    assert run.engine.ledger.rounds() == {"main": 4}


def test_a_skipped_batch_is_named() -> None:
    run = private(mlp(), data())
    with pytest.warns(UserWarning, match="no step was taken"):
        for _ in run.loader:
            pass
    assert run.engine.ledger.rounds() == {}


def test_step_hooks_and_state_dicts_are_torchs_own() -> None:
    run, seen = private(mlp(), data(), optimizer=lambda p: Adam(p, lr=0.1)), []
    run.optimizer.register_step_post_hook(lambda *_: seen.append(1))
    train(run, 1)
    assert len(seen) == 4
    plain = Adam(mlp().parameters(), lr=0.1)
    plain.load_state_dict(run.optimizer.state_dict())
    assert len(plain.state) == 4
    run.optimizer.load_state_dict(plain.state_dict())


# ---------------------------------------------------------------- what would do nothing, or what it should not


def test_a_step_of_another_optimiser_with_private_parameters_is_refused_before_it_moves_or_anything_is_charged() -> (
    None
):
    run = private(mlp(), data())
    other = Adam(run.module.parameters(), lr=0.1, weight_decay=0.1)
    x, y = first(run)
    F.cross_entropy(run.module(x), y).backward()
    before = [p.detach().clone() for p in run.module.parameters()]
    with pytest.raises(InvalidInput, match=r"optimizer='Adam'.*step\(\) of the optimiser that make_private returned"):
        other.step()
    assert all(torch.equal(p, q) for p, q in zip(run.module.parameters(), before, strict=True))
    run.optimizer.step()
    other.step()  # moves by what was released
    assert run.engine.ledger.rounds() == {"main": 1}
    run.engine.detach()
    other.step()  # nothing is private any more


def test_a_wrapper_around_the_private_optimiser_and_optimisers_of_other_modules_step() -> None:
    class Around(torch.optim.Optimizer):
        def __init__(self, inner: Any) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: Any = None) -> None:
            self.inner.step()

    run, other = private(mlp(), data()), nn.Linear(6, 1).double()
    around, beside = Around(run.optimizer), SGD(other.parameters(), lr=0.1)
    for _, x, y in run.loader:
        F.cross_entropy(run.module(x), y).backward()
        other(x).sum().backward()
        beside.step()
        around.step()
    assert run.engine.ledger.rounds() == {"main": 4}


def test_an_engine_that_is_forgotten_leaves_no_hook_behind() -> None:
    hooks = _global_optimizer_pre_hooks
    gc.collect()
    before = len(hooks)
    run = train(private(mlp(), data()), 1)
    assert len(hooks) == before + 1
    run.engine.detach()
    assert len(hooks) == before
    run = private(mlp(), data())
    del run
    gc.collect()
    assert len(hooks) == before


@pytest.mark.parametrize("when", ["before-forward", "before-step"])
@pytest.mark.parametrize("physical", [None, 3])
def test_a_layer_that_is_frozen_meanwhile_is_refused_before_it_moves(when: str, physical: int | None) -> None:
    run = train(private(mlp(), data(), max_physical_batch_size=physical), 1)
    charged = run.engine.ledger.rounds()
    before = [p.detach().clone() for p in run.module.parameters()]
    with pytest.raises(InvalidInput, match=r"\['0.weight', '0.bias'\] were frozen.*engine.detach\(\)"):
        for _, x, y in run.loader:
            if when == "before-forward":
                run.module[0].requires_grad_(False)
            loss = F.cross_entropy(run.module(x), y)
            loss.backward()
            run.module[0].requires_grad_(False)
            run.optimizer.step()
    assert all(torch.equal(p, q) for p, q in zip(run.module.parameters(), before, strict=True))
    assert run.engine.ledger.rounds() == charged
    run.module[0].requires_grad_(True)
    train(run, 1)


def early(change: Any, **options: Any) -> Trained:
    run = private(mlp(), data(), optimizer=lambda p: SGD(p, lr=0.5, momentum=0.5), **options)
    for _, x, y in run.loader:
        F.cross_entropy(run.module(x), y).backward()
        change(run)
        run.optimizer.step()
    return run


CHANGES: dict[str, Any] = {
    "clip-norm": lambda run: torch.nn.utils.clip_grad_norm_(run.module.parameters(), 1e-3),
    "clip-norm-foreach": lambda run: torch.nn.utils.clip_grad_norm_(run.module.parameters(), 1e-3, foreach=True),
    "clip-value": lambda run: torch.nn.utils.clip_grad_value_(run.module.parameters(), 1e-3),
    "scale": lambda run: run.module[0].weight.grad.mul_(0.5),
    "scale-data": lambda run: run.module[0].weight.grad.data.mul_(0.5),
    "noise": lambda run: run.module[2].bias.grad.add_(torch.randn(3).double()),
    "entry": lambda run: run.module[0].weight.grad.__setitem__(0, 1.0),
    "assigned": lambda run: setattr(run.module[0].weight, "grad", torch.ones_like(run.module[0].weight)),
}


@pytest.mark.parametrize("name", list(CHANGES))
def test_a_gradient_that_is_changed_before_the_step_is_warned_of_and_the_step_is_the_same(name: str) -> None:
    noise = {"noise_generator": torch.Generator().manual_seed(1), "poisson_sampling": False}
    with pytest.warns(UserWarning, match="between backward.*does nothing.*max_grad_norm.*register_step_pre_hook"):
        run = early(CHANGES[name], **noise)
    twin = early(lambda run: None, **noise | {"noise_generator": torch.Generator().manual_seed(1)})
    for p, q in zip(run.module.parameters(), twin.module.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_and_readers_between_backward_and_step_are_fine(to_none: bool) -> None:
    def look(run: Trained) -> None:
        assert all(p.grad.norm() == 0 and type(p.grad.clone()) is Tensor for p in run.module.parameters())
        run.optimizer.zero_grad(set_to_none=to_none)

    assert early(look).engine.ledger.rounds() == {"main": 4}


def test_a_hook_before_the_step_changes_what_was_released() -> None:
    run = private(mlp(), data(), optimizer=lambda p: SGD(p, lr=0.5, momentum=0.5))

    def halve(optimizer: Any, args: Any, kwargs: Any) -> None:
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 1e-9)

    run.optimizer.register_step_pre_hook(halve)
    before = [p.detach().clone() for p in run.module.parameters()]
    train(run, 1)
    moved = [(p.detach() - q).norm() for p, q in zip(run.module.parameters(), before, strict=True)]
    assert 0 < max(moved) < 1e-7


@pytest.mark.parametrize("name", list(SCHEDULERS))
def test_a_schedule_that_counts_pieces_is_refused(name: str) -> None:
    """How many pieces a batch has depends on who was drawn, and a learning rate is public."""
    run = private(mlp(), data(), max_physical_batch_size=1)
    scheduler = SCHEDULERS[name](run.optimizer)
    with pytest.raises(InvalidInput, match="changed between two pieces of one batch"):
        for _, x, y in run.loader:
            step(run, x, y)
            scheduler.step()


def test_a_schedule_may_follow_what_is_released() -> None:
    run = private(mlp(), data(), max_physical_batch_size=1)
    scheduler = StepLR(run.optimizer, 2, 0.5)
    run.optimizer.register_step_post_hook(lambda *_: scheduler.step())
    train(run, 1)
    assert scheduler.last_epoch == 4 == len(run.rounds)


def test_steps_that_follow_a_count_of_pieces_are_refused() -> None:
    run = private(mlp(), data(), max_physical_batch_size=2)
    with pytest.raises(InvalidInput, match="no step was taken with its last piece"):
        for _ in range(20):
            for count, (_, x, y) in enumerate(run.loader, 1):
                F.cross_entropy(run.module(x), y).backward()
                if count % 3 == 0:
                    run.optimizer.step()


# ---------------------------------------------------------------- gradScaler


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


@pytest.mark.parametrize("name, sketch, unscale", pairs(["momentum", "adam-fused"], EITHER, [True, False]), ids=str)
def test_a_scaled_loss_trains_as_the_loss_itself(name: str, sketch: Any, unscale: bool) -> None:
    amp, make = scaler(growth_interval=2), OPTIMIZERS[name]
    plain = train(private(mlp(), data(), sketch=sketch, optimizer=make))
    run = private(mlp(), data(), sketch=sketch, optimizer=make, grad_scaler=amp)
    scaled(run, amp, unscale=unscale)
    assert_same(run.module, plain.module, 1e-12)
    assert amp.get_scale() == 2.0**10  # it would have grown four times


@pytest.mark.parametrize("sum_", [True, False])
def test_pieces_of_a_batch(sum_: bool) -> None:
    amp = scaler()
    options = {"loss_reduction": "sum" if sum_ else "mean"}
    loss = partial(F.cross_entropy, reduction=options["loss_reduction"])
    plain = train(private(mlp(), data(), **options), 1, loss)
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
        x, y = first(run)
        amp.scale(F.cross_entropy(run.module(x), y)).backward()
        with pytest.raises(InvalidInput, match="grad_scaler"):
            amp.step(run.optimizer)
        assert not hasattr(run.optimizer, "found_inf")
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
    """The clipped sum of the first batch, under autocast to float16 around the module."""
    options = {"noise_multiplier": 0.0, "poisson_sampling": False, "max_grad_norm": 0.1, "loss_reduction": reduction}
    amp = scaler(scale)
    run = private(Half().net, data(dtype=torch.float32), grad_scaler=amp, **options)
    x, y = first(run)
    with torch.autocast("cpu", torch.float16):
        loss = F.cross_entropy(run.module(x), y, reduction=reduction)
    amp.scale(loss).backward()
    amp.step(run.optimizer)
    return run.rounds[0].released["main"]["gradient"]


@pytest.mark.parametrize("scale", [2.0**8, 2.0**4])
def test_means_and_sums_under_autocast_have_the_same_rows(scale: float) -> None:
    whole = autocast_sum("sum", 2.0**8)
    assert float(whole.norm()) > 0
    torch.testing.assert_close(autocast_sum("mean", scale), whole, rtol=2e-3, atol=1e-6)  # float16 has 11 bits


# ---------------------------------------------------------------- `step(closure)`


def by_closure(run: Trained, epochs: int = 2) -> list[int]:
    """The user's loop, with closures; how often each was called."""
    calls = []
    for _ in range(epochs):
        for _, x, y in run.loader:
            calls.append(0)

            def closure(x: Any = x, y: Any = y) -> torch.Tensor:
                calls[-1] += 1
                run.optimizer.zero_grad()
                loss = F.cross_entropy(run.module(x), y)
                loss.backward()
                return loss

            with torch.no_grad():  # as torch's own optimisers, step turns gradients on for it
                loss = run.optimizer.step(closure)
            assert loss.shape == ()
    return calls


@pytest.mark.parametrize("physical", [None, 3])
@pytest.mark.parametrize("sketch", EITHER)
def test_a_closure_trains_as_the_plain_loop_does(sketch: Any, physical: int | None) -> None:
    options = {"sketch": sketch, "max_physical_batch_size": physical, "optimizer": lambda p: Adam(p, lr=0.1)}
    plain, run = (private(mlp(), data(), **options) for _ in range(2))
    train(plain)
    assert set(by_closure(run)) == {1}
    assert len(run.rounds) == len(plain.rounds) == 8 == len(run.engine.accountant)
    assert_same(run.module, plain.module, 0.0)


def test_a_closure_that_leaves_no_gradient_is_refused_before_anything_is_charged() -> None:
    """Lightning's way to skip a batch: whether one is skipped would be seen, and may depend on the data."""
    run = private(mlp(), data())
    first(run)
    with pytest.raises(RuntimeError, match="no gradient of this batch arrived"):
        run.optimizer.step(lambda: None)
    assert run.engine.ledger.rounds() == {}


# ---------------------------------------------------------------- compiled modules and modules in eval mode

EVALUATES = "a batch of the private loader was given to a module in eval mode, .* call module.train"


def test_a_module_that_was_compiled_is_refused_before_data_is_seen() -> None:
    whole, part = mlp(), mlp()
    part[0].compile(backend="eager")
    for module in (torch.compile(whole, backend="eager"), part):
        with pytest.raises(InvalidInput, match="module=.* is not allowed: torch.compile cannot trace the training"):
            private(module, data())


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace")
def test_a_private_module_is_compiled_for_predictions_alone() -> None:
    trained = private(mlp(), data())
    compiled = torch.compile(trained.module, backend="eager")
    _, x, y = next(iter(trained.loader))
    with pytest.raises(InvalidInput, match="torch.compile cannot trace the training of a private module"):
        F.cross_entropy(compiled(x), y).backward()
    assert not callable(get_eval_frame_callback())
    trained.module.eval()
    with torch.no_grad():
        assert torch.allclose(compiled(x), trained.module(x))


def test_a_loop_in_eval_mode_is_told_what_to_call() -> None:
    trained = private(mlp().eval(), data())
    _, x, _ = next(iter(trained.loader))
    with pytest.warns(UserWarning, match=EVALUATES):
        trained.module(x)
    with torch.no_grad():
        trained.module(x)  # an evaluation
    trained.module(torch.cat([x, x]))  # other data
