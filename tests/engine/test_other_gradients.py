"""Gradients that a loop takes for itself: only the backward pass that a step belongs to tells the rows of examples."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engine_cases import sums
from gradients.layers.layer_reference import Built
from mixing_cases import private, rows_alone
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isthmus import InvalidInput
from isthmus.core.driver import Ticket

N = 12


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()


class Checkpointed(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(super().forward, x, use_reentrant=False)


def table() -> nn.Module:
    """A parameter of the module's own, that is used by an operation and not by a layer with a rule."""
    scale = nn.Parameter(torch.linspace(0.5, 2.0, 6, dtype=torch.float64))
    return Built(lambda m, x: m.body(x * m.scale), scale=scale, body=net())


def records() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(N, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (N,), generator=g)


def clipped(module: nn.Module, loss: Callable[[nn.Module, Tensor, Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """The clipped sum of a loop's loss."""
    module, engine = private(module, len(x))
    found = sums(engine, lambda: loss(module, x, y), len(x))["gradient"].value.double()
    engine.detach()
    return found


def expected(module: nn.Module, x: Tensor, y: Tensor, weight: float = 1.0) -> Tensor:
    rows = weight * torch.stack([torch.cat(leaves) for leaves in rows_alone(module, x, y)])
    return (rows / rows.norm(dim=1).clamp(min=1)[:, None]).sum(0)


def adversary(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Where examples are pushed by the sign of their own gradient."""
    x = x.clone().requires_grad_()
    (push,) = torch.autograd.grad(F.cross_entropy(module(x), y, reduction="sum"), x)
    return (x + 0.1 * push.sign()).detach()


def through_inputs(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    torch.autograd.backward(F.cross_entropy(module(x), y, reduction="sum"), inputs=[x])
    return (x + 0.1 * x.grad.sign()).detach()


@pytest.mark.parametrize("attack", [adversary, through_inputs])
@pytest.mark.parametrize(("make", "plain"), [(net, net), (table, table), (lambda: Checkpointed(*net()), net)])
def test_examples_moved_by_their_own_gradient_are_trained_on_as_they_are(
    attack: Callable[[nn.Module, Tensor, Tensor], Tensor], make: Callable[[], nn.Module], plain: Callable[[], nn.Module]
) -> None:
    x, y = records()
    want = expected(plain(), attack(plain(), x, y), y)

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(module(attack(module, x, y)), y, reduction="sum")

    torch.testing.assert_close(clipped(make(), loss, x, y), want, rtol=1e-6, atol=1e-9)


def test_a_second_look_at_the_same_pass_adds_nothing() -> None:
    x, y = records()

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        value = F.cross_entropy(module(x), y, reduction="sum")
        torch.autograd.grad(value, x, retain_graph=True)
        return 0.05 * value  # so small that nothing is clipped

    torch.testing.assert_close(clipped(net(), loss, x, y), expected(net(), x, y, 0.05), rtol=1e-6, atol=1e-9)


def test_a_slope_that_was_taken_does_not_stand_for_the_loss_where_a_mean_is_undone() -> None:
    """In bfloat16 a loss must be one of what the module returns; a slope taken through an output proves nothing."""
    module, kept = net().float(), []
    module[0].register_forward_hook(lambda layer, args, output: kept.append(output))
    module, engine = private(module, N, loss_reduction="mean")
    x, _ = records()
    engine.driver.begin(Ticket(N))
    x = x.float().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        output = module(x)
    torch.autograd.grad(output.sum(), x, retain_graph=True)
    with pytest.raises(InvalidInput, match="without passing the module's own output"):
        kept[-1].float().mean().backward()


@pytest.mark.parametrize("make", [net, table])
def test_a_gradient_of_a_gradient_is_refused(make: Callable[[], nn.Module]) -> None:
    """The penalty on the slope: its backward pass would go through every layer twice."""
    x, y = records()

    def penalised(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        return F.cross_entropy(module(x), y, reduction="sum") + slope.square().sum()

    with pytest.raises(InvalidInput, match="gradient of a gradient"):
        clipped(make(), penalised, x, y)


def test_a_linear_slope_is_refused_too() -> None:
    """The slope of a linear layer is its weight: nothing of the layer's own pass is in its history."""
    x, y = records()

    def penalised(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        output = module(x)
        (slope,) = torch.autograd.grad(output.sum(), x, create_graph=True)
        return F.cross_entropy(output, y, reduction="sum") + slope.square().sum()

    with pytest.raises(InvalidInput, match="gradient of a gradient"):
        clipped(nn.Linear(6, 3).double(), penalised, x, y)


def test_a_graph_of_gradients_that_no_loss_uses_is_allowed() -> None:
    x, y = records()

    def loss(module: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        moved = (x + 0.1 * slope.sign()).detach()
        return F.cross_entropy(module(moved), y, reduction="sum")

    def plain(module: nn.Module) -> Tensor:
        points = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(module(points).sum(), points)
        return (points + 0.1 * slope.sign()).detach()

    torch.testing.assert_close(clipped(net(), loss, x, y), expected(net(), plain(net()), y), rtol=1e-6, atol=1e-9)
