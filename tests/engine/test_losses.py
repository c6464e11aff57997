"""What a loop's own loss does with the examples of a batch: sums called means, weighed means, terms of two examples."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import CLASSES, Indexed, N, Trained, cnn, data, mlp, private, step, train
from gradients.layers.layer_reference import Built
from torch import Tensor, nn

from isthmus import InvalidInput

Loss = Callable[[Tensor, Tensor], Tensor]
WEIGHTS = torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)


def losses_of(
    loss: Loss, reduction: str = "mean", epochs: int = 2, module: nn.Module | None = None, **more: Any
) -> Any:
    """The user's loop around a loss; no criterion is given, as the loss is in the loop."""
    run = private(mlp() if module is None else module, data(), criterion=None, loss_reduction=reduction, **more)
    return train(run, epochs, loss)


def refused(words: str, loss: Loss, reduction: str = "mean", **more: Any) -> None:
    before = torch.autograd.backward
    run = private(mlp(), data(), criterion=None, loss_reduction=reduction, poisson_sampling=False, **more)
    start = [p.detach().clone() for p in run.module.parameters()]
    with pytest.raises(InvalidInput, match=words):
        train(run, 1, loss)
    assert run.engine.ledger.rounds() == {}, "refused before anything is charged"
    assert all(torch.equal(p, q) for p, q in zip(run.module.parameters(), start, strict=True))
    run.engine.detach()
    assert torch.autograd.backward is before, "torch is left as it was"


def each(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, y, reduction="none")


SUMS: dict[str, Loss] = {
    "torch": lambda z, y: F.cross_entropy(z, y, reduction="sum"),
    "own": lambda z, y: each(z, y).sum(),
    "squares": lambda z, y: F.mse_loss(z, F.one_hot(y, CLASSES).double(), reduction="sum"),
    "binary": lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], (y > 0).double(), reduction="sum"),
    "mean-of-classes": lambda z, y: (z**2).mean(1).sum(),
    "two-tasks": lambda z, y: F.cross_entropy(z, y, reduction="sum") + (z**2).mean(),
    "stacked": lambda z, y: torch.stack([each(z, y).sum(), (z**2).sum()]).sum(),
}
MEANS: dict[str, Loss] = {
    "torch": F.cross_entropy,
    "own": lambda z, y: each(z, y).mean(),
    "squares": lambda z, y: F.mse_loss(z, F.one_hot(y, CLASSES).double()),
    "absolute": lambda z, y: F.l1_loss(z, F.one_hot(y, CLASSES).double()),
    "binary": lambda z, y: F.binary_cross_entropy_with_logits(z[:, 0], (y > 0).double()),
    "smoothed": lambda z, y: F.cross_entropy(z, y, label_smoothing=0.1),
    "two-tasks": lambda z, y: F.cross_entropy(z, y) + 0.1 * (z**2).mean(),
    "stacked": lambda z, y: torch.stack([F.cross_entropy(z, y), (z**2).mean()]).mean(),
    "by-hand": lambda z, y: each(z, y).sum() / len(y),
    "weighed-by-hand": lambda z, y: (WEIGHTS[y] * each(z, y)).mean(),
    "margin": lambda z, y: F.multi_margin_loss(z, y),
    "first-then-mean": lambda z, y: (z**2).sum(0).mean() / len(y),
    "example-by-example": lambda z, y: torch.stack(
        [F.cross_entropy(a[None], b[None]) for a, b in zip(z, y, strict=True)]
    ).mean(),
}


CALLED_SUMS: dict[str, Loss] = SUMS | {
    "two-tasks": lambda z, y: F.cross_entropy(z, y, reduction="sum") + (z**2).sum() / 7,
    "over-a-public-number": lambda z, y: each(z, y).sum() / 10,
    "a-mean-over-one": lambda z, y: each(z, y).mean() * (len(y) / 10) if len(y) else z.sum(),
    "class-weights": lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS, reduction="sum"),
}
INSIDE: Loss = lambda p, y: (p.max(1).values - p.topk(2).values[:, 1] + p.sort(1).values[:, 0] + p.amax(-1)).mean()  # noqa: E731


@pytest.mark.parametrize("name", [*MEANS, "choosing-inside-an-example"])
def test_means_pass_without_a_word(name: str) -> None:
    assert losses_of(MEANS.get(name, INSIDE)).engine.ledger.rounds() == {"main": 8}


@pytest.mark.parametrize("name", CALLED_SUMS)
def test_sums_pass_without_a_word_where_they_are_called_sums(name: str) -> None:
    assert losses_of(CALLED_SUMS[name], "sum").engine.ledger.rounds() == {"main": 8}


def ignored(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z, torch.where(torch.arange(len(y)) < 1, -100, y))


WEIGHED: dict[str, Loss] = {
    "class-weights": lambda z, y: F.cross_entropy(z, y, weight=WEIGHTS),
    "module": lambda z, y: nn.CrossEntropyLoss(weight=WEIGHTS)(z, y),
    "nll": lambda z, y: F.nll_loss(z.log_softmax(1), y, weight=WEIGHTS),
    "ignored": ignored,
    "ignored-index": lambda z, y: F.cross_entropy(z, y.index_fill(0, torch.tensor([0]), 1), ignore_index=1),
    "scaled": lambda z, y: 0.5 * F.cross_entropy(z, y, weight=WEIGHTS) + (z**2).mean(),
    "tokens": lambda z, y: F.cross_entropy(torch.stack([z, z], 2), torch.stack([y, torch.full_like(y, -100)], 1)),
}


def test_a_divisor_that_follows_the_batch_is_warned_of_once() -> None:
    def masked(z: Tensor, y: Tensor) -> Tensor:
        seen = (y > 0).double()
        return (each(z, y) * seen).sum() / (seen.sum() + 0.5)

    with pytest.warns(UserWarning, match="the loss divides its terms by another number.*public schedule") as told:
        losses_of(masked)
    assert len(told) == 1
    assert not any(character.isdigit() for character in str(told[0].message)), "a number of the data"


def contrastive(z: Tensor, y: Tensor) -> Tensor:
    z = F.normalize(z, dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)))


CROSSED: dict[str, Loss] = {
    "contrastive": contrastive,
    "centred": lambda z, y: F.cross_entropy(z - z.mean(0), y),
    "root-of-the-mean": lambda z, y: (z**2).mean().sqrt(),
    "distances": lambda z, y: ((z - z.flip(0)) ** 2).mean(),
    "neighbours": lambda z, y: (z * z.roll(1, 0)).mean(),
    "batch-norm": lambda z, y: F.cross_entropy(F.batch_norm(z, None, None, training=True), y),
    "ranked": lambda z, y: F.softmax(z[:, 0], 0).square().mean(),
    "squared-mean": lambda z, y: F.cross_entropy(z, y) ** 2,
}


SELECTING: dict[str, Loss] = {
    "topk": lambda p, y: each(p, y).topk(2).values.mean(),
    "max": lambda p, y: each(p, y).max(),
    "amax": lambda p, y: each(p, y).amax(0),
    "sort": lambda p, y: each(p, y).sort(dim=-1).values[1:].mean(),
    "median": lambda p, y: each(p, y).median(),
    "by class": lambda p, y: p.max(0).values.mean(),
}
WRONG_MEANS = {name: MEANS[name] for name in ("torch", "own", "squares", "absolute", "binary", "two-tasks", "margin")}
REFUSED: dict[str, tuple[dict[str, Loss], str, str]] = {
    "sum": (SUMS, "mean", 'is a sum over the examples.*loss_reduction="sum"'),
    "mean": (WRONG_MEANS, "sum", 'is a mean over the examples.*loss_reduction="mean"'),
    "weighed": (WEIGHED, "mean", "divides by the weights.*reduction='none'.*public number"),
    "crossed": (CROSSED, "mean", "examples meet in the loss"),
    "selecting": (SELECTING, "mean", "chooses among the examples|examples meet in the loss"),
}


@pytest.mark.parametrize("kind, name", [(kind, name) for kind, (losses, *_) in REFUSED.items() for name in losses])
def test_losses_that_are_not_what_they_are_called_are_refused(kind: str, name: str) -> None:
    losses, reduction, words = REFUSED[kind]
    refused(words, losses[name], reduction)


def test_outputs_in_dicts_are_seen() -> None:
    wrapped = Built(lambda m, x: {"more": [m.layers(x)]}, layers=mlp())
    run = private(wrapped, data(), criterion=None, poisson_sampling=False)
    _, x, y = next(iter(run.loader))
    with pytest.raises(InvalidInput, match="is a sum"):
        F.cross_entropy(run.module(x)["more"][0], y, reduction="sum").backward()


def test_two_outputs_of_one_network_are_looked_at_without_running_it_again() -> None:
    def both(module: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = module.body(x).tanh()
        return hidden, module.head(hidden)

    torch.manual_seed(3)
    plain = Built(both, body=nn.Linear(6, 5).double(), head=nn.Linear(5, CLASSES).double())
    exact = {"noise_multiplier": 1e-7, "max_grad_norm": 50.0}
    run = private(copy.deepcopy(plain), data(), criterion=None, poisson_sampling=False, **exact)
    _, x, y = next(iter(run.loader))

    def loss(pair: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(pair[1], y) + (pair[0] ** 2).mean()

    loss(run.module(x)).backward()
    run.optimizer.step()
    loss(plain(x)).backward()
    for p, q in zip(run.module.parameters(), plain.parameters(), strict=True):
        assert torch.allclose(p, q - 0.5 * q.grad, atol=1e-5)


def test_a_loss_is_not_changed_by_being_looked_at() -> None:
    def stepped(loss: Loss) -> Tensor:
        run = private(mlp(), data(), criterion=None, poisson_sampling=False, noise_multiplier=1e-7, max_grad_norm=50.0)
        _, x, y = next(iter(run.loader))
        before = run.engine.driver.layers.pack()
        step(run, x, y, loss)
        plain = mlp()
        loss(plain(x), y).backward()
        gradient = torch.cat(
            [torch.cat([layer.weight.grad, layer.bias.grad[:, None]], 1).flatten() for layer in plain[::2]]
        )
        return (before - run.engine.driver.layers.pack()) / 0.5 - gradient

    for loss in (MEANS["two-tasks"], MEANS["smoothed"], MEANS["by-hand"]):
        assert stepped(loss).abs().max() < 1e-5


def test_a_backward_pass_of_another_module_is_not_looked_at() -> None:
    other = nn.Linear(6, 1).double()
    run = private(mlp(), data(), criterion=None)
    for _, x, y in run.loader:
        z = run.module(x)
        contrastive(other(x).expand(-1, 2), y).backward()
        F.cross_entropy(z, y).backward()
        run.optimizer.step()
    assert run.engine.ledger.rounds() == {"main": 4}


def test_a_scale_of_the_loss_is_not_a_divisor() -> None:
    amp = torch.amp.GradScaler("cpu", init_scale=8.0)
    run = private(mlp(), data(), criterion=None, grad_scaler=amp, poisson_sampling=False)
    _, x, y = next(iter(run.loader))
    with pytest.raises(InvalidInput, match="is a sum"):
        amp.scale(F.cross_entropy(run.module(x), y, reduction="sum")).backward()


class Cubed(torch.autograd.Function):
    """A loss with a backward pass of its own, which cannot be looked into."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return (z.sum(0) ** 2).mean()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors
        return gradient * (2 * z.sum(0) / z.shape[1]).expand_as(z)


UNSEEN: dict[str, Loss] = {
    "a function with a backward pass of its own": lambda z, y: Cubed.apply(z),
    "weights of single terms that were made from the batch": lambda z, y: (
        each(z, y) / torch.bincount(y, minlength=CLASSES)[y]
    ).mean(),
}


@pytest.mark.parametrize("name", list(UNSEEN))
def test_what_stays_assumed_is_not_seen_and_the_statement_says_so(name: str) -> None:
    run = losses_of(UNSEEN[name], epochs=1)
    assert any("the loss is a mean (or sum)" in words for words in run.engine.statement(1e-5).assumptions)


# ---------------------------------------------------------------- examples that are mixed before the module sees them


def images(seed: int = 0) -> Indexed:
    g = torch.Generator().manual_seed(seed)
    return Indexed(torch.rand(N, 1, 6, 6, generator=g), torch.randint(0, CLASSES, (N,), generator=g))


def fed(change: Callable[[Tensor], Tensor], **more: Any) -> Trained:
    run = private(cnn(torch.float32), images(), criterion=None, poisson_sampling=False, **more)
    for _, x, y in run.loader:
        F.cross_entropy(run.module(change(x)), y).backward()
        run.optimizer.step()
    return run


def cut(x: Tensor) -> Tensor:
    x, y = x.clone(), x.roll(1, 0)
    x[:, :, :4, 1:5] = y[:, :, :4, 1:5]
    return x


MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "mixup": lambda x: 0.3 * x + 0.7 * x.roll(1, 0),
    "mixup-scaled": lambda x: (0.6 * x + 0.4 * x.flip(0) - 0.5) / 0.25,
    "cutmix": cut,
}


@pytest.mark.parametrize("name", list(MIXED))
def test_examples_that_are_mixed_before_the_module_are_warned_of(name: str) -> None:
    with pytest.warns(UserWarning, match="mixtures of the examples that the private loader handed out") as caught:
        fed(MIXED[name])
    assert caught[0].filename == __file__


APART: dict[str, Callable[[Tensor], Tensor]] = {
    "as-they-are": lambda x: x,
    "copied": lambda x: x.clone(),
    "scaled": lambda x: (x - 0.3) / 0.2,
    "flipped": lambda x: x.flip(3),
    "shifted": lambda x: x.roll(1, 3),
    "erased": lambda x: x.index_fill(3, torch.tensor([1, 2, 3]), 0.0),
    "noisy": lambda x: x + 0.1 * torch.rand_like(x),
    "wide": lambda x: x.double().float().contiguous(),
}


@pytest.mark.parametrize("name", list(APART))
def test_examples_that_are_changed_one_by_one_pass_without_a_word(name: str) -> None:
    assert fed(APART[name]).engine.ledger.rounds() == {"main": 4}


def test_mixtures_of_many_examples_are_not_seen_and_the_statement_names_them() -> None:
    run = fed(lambda x: x - x.mean(0))
    assert any("between the loader, the layers and the loss mixes" in w for w in run.engine.statement(1e-5).assumptions)


@pytest.mark.parametrize("where", ["before", "after"])
def test_parameters_beside_the_private_module_are_refused(where: str) -> None:
    """They would get raw gradients, and an optimiser of their own would publish them."""
    beside = nn.Linear(CLASSES, CLASSES) if where == "after" else nn.Linear(6, 6)
    beside.double()
    run = private(mlp(), data(), criterion=None)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(beside(run.module(x)) if where == "after" else run.module(beside(x)), y)

    for number, (_, x, y) in enumerate(run.loader):
        if number == 0:
            with pytest.raises(InvalidInput, match="2 parameter.* not of the private module"):
                loss(x, y).backward()
            assert beside.weight.grad is None
            beside.requires_grad_(False)
        loss(x, y).backward()
        run.optimizer.step()
