"""Batches of every size that chance draws: none, one, two, and as many examples as something else of the module has."""

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from engine_cases import clipped, numbered, private, step, sums
from gradients.layers.layer_reference import Built
from grids import pairs
from mixing_cases import rows_alone
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


class Norm(nn.Module):
    """A norm of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class Every(nn.Module):
    """A class token, shared positions, a bias that all examples share, flattened tokens, and a tied output."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.place, self.bias = nn.Embedding(11, WIDTH), nn.Embedding(STEPS, WIDTH), nn.Embedding(4, 1)
        self.start, self.norm, self.mix, self.out = (
            nn.Parameter(torch.randn(1, 1, WIDTH)),
            Norm(),
            nn.Linear(WIDTH, WIDTH),
            Norm(),
        )

    def forward(self, index: Tensor) -> Tensor:
        x = self.token(index) + self.place(torch.arange(index.shape[1]))
        x = self.norm(torch.cat([self.start.expand(len(x), -1, -1), x], 1))
        places = (torch.arange(STEPS + 1)[:, None] - torch.arange(STEPS + 1)[None]).clamp(0, 3)
        x = x + F.scaled_dot_product_attention(x, x, x, self.bias(places).permute(2, 0, 1))
        x = x + self.mix(x.reshape(-1, WIDTH)).view_as(x).tanh()
        return F.linear(self.out(x[:, 0]), self.token.weight)


def words(n: int) -> Tensor:
    return torch.randint(0, 11, (n, STEPS))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor]]] = {
    "text": (Text, words),
    "picture": (Picture, lambda n: torch.randn(n, 1, 8, 8)),
    "relative positions": (Relative, words),
    "state space": (State, words),
    "every use": (Every, words),
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


SIZES = [1, 2, STEPS, STEPS + 1, WIDTH, 12]


@pytest.mark.parametrize("family, first, clipping", pairs(FAMILIES, SIZES, ["flat", "per_layer"]))
def test_a_first_batch_of_any_size_gives_the_clipped_sum_of_its_examples(
    family: str, first: int, clipping: str
) -> None:
    """Each example as it is alone, clipped as a whole or leaf by leaf."""
    torch.manual_seed(0)
    make, inputs = FAMILIES[family]
    module, x, y = make().double(), inputs(12), torch.arange(12) % 3
    x = x.double() if x.is_floating_point() else x
    leaves = [torch.stack(each) for each in zip(*rows_alone(copy.deepcopy(module), x, y), strict=True)]
    bound = 1.0 if clipping == "flat" else len(leaves) ** -0.5
    rows = [torch.cat(leaves, 1)] if clipping == "flat" else leaves
    alone = torch.cat([clipped(each, bound) for each in rows], 1)
    run = private(module, numbered(x), batch=first, clipping=clipping, max_grad_norm=1.0, loss_reduction="sum")
    for size in (first, 3, STEPS, first):
        loss = lambda n=size: F.cross_entropy(run.module(x[:n]), y[:n], reduction="sum")  # noqa: E731
        found = sums(run.engine, loss, size)["gradient"].value.double()
        torch.testing.assert_close(found, alone[:size].sum(0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.LayerNorm(4)], ids=["linear", "norm"])
@pytest.mark.parametrize("sizes", [(4, 1), (1,)], ids=["later", "at once"])
def test_a_batch_of_one_that_lost_its_dimension_is_refused_by_the_layer_that_sees_it(
    make: Callable[[], nn.Module], sizes: tuple[int, ...]
) -> None:
    squeezed = Built(lambda m, x: m.b(m.a(x)[:, None].squeeze()), a=nn.Linear(6, 4), b=make()).double()
    run = private(squeezed, numbered(torch.randn(20, 6, dtype=torch.float64)), loss_reduction="sum")
    driver = run.engine.driver
    assert driver is not None
    for size in sizes[:-1]:
        driver.begin(Ticket(size))
        run.module(torch.randn(size, 6, dtype=torch.float64)).sum().backward()
        run.optimizer.step()
    driver.begin(Ticket(sizes[-1]))
    with pytest.raises(InvalidInput, match=r"layer 'b' was given a batch of one example .*squeeze\(1\)"):
        run.module(torch.randn(sizes[-1], 6, dtype=torch.float64))
