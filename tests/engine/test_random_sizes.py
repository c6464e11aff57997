"""Batches of every size that chance draws: none, one, two, and as many examples as something else of the module has."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engine_cases import numbered, private, step, sums
from torch import Tensor, nn

from isthmus import InvalidInput
from isthmus.core.driver import Ticket

STEPS, WIDTH = 5, 8


class Attention(nn.Module):
    """As encoders of text write it: the number of heads is left to `view`, which an empty batch does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (h.view(*h.shape[:-1], -1, 4).transpose(1, 2) for h in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape))


class Positions(nn.Embedding):
    """As decoders of text write it: one place for every step, beside the words of every example."""

    def forward(self, words: Tensor, places: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(places[None] + 2)


class Text(nn.Module):
    """A decoder: words, learned positions, attention, a head that is tied to the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, WIDTH), Positions(STEPS + 2, WIDTH)
        self.norm, self.attention = nn.LayerNorm(WIDTH), Attention()

    def forward(self, words: Tensor) -> Tensor:
        h = self.words(words) + self.places(words, torch.arange(words.shape[1]))
        h = h + self.attention(self.norm(h))
        return F.linear(h, self.words.weight).mean(1)[:, :3]


class Picture(nn.Module):
    """Patches, a class token, positions."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(1, WIDTH, 4, 4), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places, self.attention = nn.Parameter(torch.randn(1, 5, WIDTH)), Attention()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2)
        h = torch.cat([self.token.expand(len(x), -1, -1), h], 1) + self.places
        return self.head((h + self.attention(h))[:, 0])


class Relative(nn.Module):
    """Biases by distance, and weights that the module reads outside their layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.table = nn.Embedding(11, WIDTH), nn.Embedding(2 * STEPS, 1)
        self.inner, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, words: Tensor) -> Tensor:
        h, steps = self.words(words), torch.arange(words.shape[1])
        bias = self.table(steps[:, None] - steps[None] + STEPS)[..., 0]
        h = torch.softmax(h @ h.mT + bias, -1) @ h
        return self.head(F.linear(h, self.inner.weight, self.inner.bias).relu().mean(1))


class State(nn.Module):
    """A recurrence with parameters of its own, as state space models have."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.decay, self.step = nn.Embedding(11, WIDTH), nn.Parameter(torch.zeros(WIDTH)), nn.Linear(8, 8)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, words: Tensor) -> Tensor:
        x, h = self.words(words), torch.zeros(len(words), WIDTH)
        for t in range(words.shape[1]):
            h = -self.decay.exp() * h * 0.1 + F.softplus(x[:, t] @ self.step.weight.T + self.step.bias)
        return self.head(h)


def words(n: int) -> Tensor:
    return torch.randint(0, 11, (n, STEPS))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "text": (Text, words),
    "picture": (Picture, lambda n: torch.randn(n, 1, 8, 8)),
    "relative positions": (Relative, words),
    "state space": (State, words),
}


@pytest.mark.parametrize("expected", [1, 2, 5])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_run_ends_by_itself_whatever_sizes_chance_draws(family: str, expected: int) -> None:
    torch.manual_seed(0)
    make, inputs = FAMILIES[family]
    run = private(make(), numbered(inputs(20)), batch=expected, noise_generator=None)
    rounds = 0
    while rounds < 60:
        for _, x, y in run.loader:
            step(run, x, y)
            rounds += 1
    assert len(run.rounds) == rounds


@pytest.mark.parametrize("first", [1, 2, STEPS, WIDTH])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_first_batch_of_any_size_gives_the_gradients_of_its_examples(family: str, first: int) -> None:
    """A sum of rows that are clipped at far more than they have is the gradient of the batch."""
    torch.manual_seed(0)
    make, inputs = FAMILIES[family]
    module = make().double()
    x = inputs(40)
    x = x.double() if x.is_floating_point() else x
    loss = F.cross_entropy(module(x[:first]), torch.arange(first) % 3, reduction="sum")
    plain = torch.autograd.grad(loss, list(module.parameters()))
    options = {"noise_multiplier": 1e-9, "max_grad_norm": 1e3, "normaliser": 1.0, "loss_reduction": "sum"}
    run = private(module, numbered(x), batch=first, **options)
    norm = torch.cat([g.reshape(-1) for g in plain]).norm()
    for size in (first, 3, STEPS, first):
        loss = lambda n=size: F.cross_entropy(run.module(x[:n]), torch.arange(n) % 3, reduction="sum")  # noqa: E731
        total = sums(run.engine, loss, size)["gradient"].value.double()
        assert size != first or float(total.norm()) == pytest.approx(float(norm), rel=1e-6)


class Squeezed(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 4), layer

    def forward(self, x: Tensor) -> Tensor:
        return self.b(self.a(x)[:, None].squeeze())


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.LayerNorm(4)], ids=["linear", "norm"])
@pytest.mark.parametrize("sizes", [(4, 1), (1,)], ids=["later", "at once"])
def test_a_batch_of_one_that_lost_its_dimension_is_refused_by_the_layer_that_sees_it(
    make: Callable[[], nn.Module], sizes: tuple[int, ...]
) -> None:
    run = private(Squeezed(make()).double(), numbered(torch.randn(20, 6, dtype=torch.float64)), loss_reduction="sum")
    driver = run.engine.driver
    assert driver is not None
    for size in sizes[:-1]:
        driver.begin(Ticket(size))
        run.module(torch.randn(size, 6, dtype=torch.float64)).sum().backward()
        run.optimizer.step()
    driver.begin(Ticket(sizes[-1]))
    with pytest.raises(InvalidInput, match=r"layer 'b' was given a batch of one example .*squeeze\(1\)"):
        run.module(torch.randn(sizes[-1], 6, dtype=torch.float64))
