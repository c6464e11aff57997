"""Random layers: a private pass draws from secrets, and leaves the user's generators as they were."""

from __future__ import annotations

import random
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from engine_cases import C, Indexed, private, step, sums
from scipy import stats
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from isthmus import InvalidInput
from isthmus.core.driver import Ticket
from isthmus.gradients.layers.forward_guard import generators_hidden, hide_generators

N, WIDTH = 64, 40


class Functional(nn.Module):
    """Draws in every way a module can: the name says which."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.way, self.layer, self.last = way, nn.Linear(6, WIDTH), nn.Linear(WIDTH, 3)
        self.drop, self.leaky = nn.Dropout(0.5), nn.RReLU()

    def mask(self, h: Tensor) -> Tensor:
        ways: dict[str, Any] = {
            "module": lambda: self.drop(h),
            "functional": lambda: F.dropout(h, 0.5, self.training),
            "rrelu": lambda: self.leaky(h),
            "rand": lambda: h * (torch.rand_like(h) < 0.5),
            "python": lambda: h * torch.tensor([[random.random() < 0.5 for _ in range(WIDTH)] for _ in h]),
        }
        return ways.get(self.way, lambda: h * torch.from_numpy(np.random.rand(*h.shape) < 0.5))()

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.mask(self.layer(x)))


WAYS = ["module", "functional", "rand", "python", "numpy"]


def records() -> Indexed:
    g = torch.Generator().manual_seed(5)
    return Indexed(torch.randn(N, 6, generator=g), torch.randint(0, 3, (N,), generator=g))


def made(module: nn.Module, **options: Any) -> Any:
    arguments = {"noise_generator": None, "batch": N, "loss_reduction": "sum"} | options
    return private(module, records(), **arguments)


def seed(value: int = 0) -> None:
    torch.manual_seed(value)
    random.seed(value)
    np.random.seed(value)


EVERYONE = torch.ones(N, dtype=torch.bool)


def total(run: Any, keep: Tensor = EVERYONE, value: int = 0) -> Tensor:
    """The clipped sum of some records, the user's generators seeded right before the pass."""
    data = records()

    def loss() -> Tensor:
        seed(value)
        return F.cross_entropy(run.module(data.x[keep]), data.y[keep], reduction="sum")

    return sums(run.engine, loss, int(keep.sum()))["gradient"].value


@pytest.mark.parametrize("way", WAYS)
def test_a_known_seed_tells_nothing_about_the_masks(way: str) -> None:
    run = made(Functional(way))
    sums = torch.stack([total(run) for _ in range(3)])
    assert float(torch.cdist(sums, sums)[0, 1:].min()) > 0.1 * C  # the same seed, other masks
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    seed()
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])


@pytest.mark.parametrize("way", WAYS)
def test_runs_for_tests_stay_repeatable_and_are_not_private(way: str) -> None:
    """What the finding measured: with masks that follow the seed, one record shifts those of all after it."""
    run = made(Functional(way), noise_generator=torch.Generator().manual_seed(0))
    assert torch.equal(total(run), total(run))
    assert float((total(run) - total(run, torch.arange(N) != 0)).norm()) > 2 * C
    assert not run.engine.statement(1e-5).private


def test_draws_that_depend_on_other_examples_are_refused() -> None:
    """A random leaky ReLU draws for negative entries only: what one example holds shifts the draws of the next."""
    run = made(Functional("rrelu"))
    with pytest.raises(InvalidInput, match="examples meet"):
        total(run)


def test_the_statement_says_which() -> None:
    assert "secrets of the operating system" in made(Functional("module")).engine.statement(1e-5).words()


def test_parts_called_by_themselves_are_secret_too() -> None:
    run = made(nn.Sequential(nn.Linear(6, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 3)))
    run.engine.driver.begin(Ticket(N))
    masks = []
    for _ in range(2):
        seed()
        masks.append(run.module[1](torch.ones(N, WIDTH)))
    assert not torch.equal(*masks)
    assert torch.initial_seed() == 0 and not generators_hidden()


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.first, self.drop, self.last = nn.Linear(6, WIDTH), nn.Dropout(0.5), nn.Linear(WIDTH, 3)
        self.reentrant, self.masks = reentrant, None

    def inner(self, h: Tensor) -> Tensor:
        dropped = self.drop(h)
        MASKS.append((dropped == 0).detach())
        return dropped * dropped

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant))


MASKS: list[Tensor] = []


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_replays_the_secret_masks(reentrant: bool) -> None:
    run = made(Checkpointed(reentrant))
    MASKS.clear()
    total(run)
    first, again = MASKS[-2:]  # those before were of copies that were tried out
    assert len(first) == N and torch.equal(first, again)
    assert 0.4 < float(first.double().mean()) < 0.6
    assert not generators_hidden()


def test_generators_of_a_modules_own_are_refused() -> None:
    module = Functional("module")
    module.generator = torch.Generator().manual_seed(0)
    with pytest.raises(InvalidInput, match=r"generators of its own \(\['generator'\]\)"):
        made(module)
    run = made(Functional("module"))
    run.module.drop.many = [torch.Generator()]
    with pytest.raises(InvalidInput, match=r"drop.many\[0\]"):
        total(run)
    assert not generators_hidden()


def test_a_module_that_seeds_itself_is_refused() -> None:
    class Seeds(Functional):
        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(0)
            return super().forward(x)

    run = made(Seeds("module"))
    with pytest.raises(InvalidInput, match="inside its forward pass"):
        total(run)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_generators_come_back_after_a_pass_that_failed(error: type[BaseException]) -> None:
    class Fails(Functional):
        fail = True

        def forward(self, x: Tensor) -> Tensor:
            if self.fail:
                raise error
            return super().forward(x)

    run = made(Fails("module"))
    with pytest.raises(error):
        total(run)
    run.module.fail = False
    run.engine.driver.rest()
    assert torch.initial_seed() == 0 and not generators_hidden()
    total(run)


class Augmented(Indexed):
    """Random augmentation follows the place in the batch."""

    def __getitem__(self, i: int) -> tuple[int, Tensor, Tensor]:
        return i, self.x[i] + torch.rand(()) + np.random.rand() + random.random(), self.y[i]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_augmentation_in_the_dataset_is_secret(workers: int, generator: torch.Generator | None) -> None:
    plain, found = records(), []
    for _ in range(2):
        seed()
        if generator is not None:
            generator.manual_seed(0)
        loading = {"num_workers": workers, "generator": generator}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = private(
                Functional("module"), Augmented(plain.x, plain.y), batch=N, loading=loading, noise_generator=None
            )
            seed()
            found.append(next((i, x) for i, x, _ in run.loader))
        assert torch.initial_seed() == 0
    assert not bool((found[0][1] == found[1][1]).any())


# ---------------------------------------------------------------- the hidden state itself


def test_the_hidden_state_is_a_mersenne_twister_with_words_of_the_kernel() -> None:
    """NumPy's twister, given the same words, continues torch's stream: nothing else decides it."""
    back = hide_generators()
    words = torch.get_rng_state().numpy()[24 : 24 + 8 * 624].view(np.uint64).astype(np.uint32)
    drawn = torch.randint(0, 1 << 32, (200,), dtype=torch.int64)
    back()
    twin = np.random.RandomState()
    twin.set_state(("MT19937", words, 624))
    ours = twin.randint(0, 1 << 32, 400, dtype=np.uint32)
    assert np.array_equal(ours.reshape(-1, 2)[:, 1], drawn.numpy().astype(np.uint32))
    bits = np.unpackbits(words.view(np.uint8))
    assert stats.binomtest(int(bits.sum()), len(bits), 0.5).pvalue > 1e-7


def test_hidden_draws_never_repeat_and_have_their_law() -> None:
    drawn = []
    for _ in range(50):
        torch.manual_seed(0)
        back = hide_generators()
        drawn.append(torch.rand(40))
        back()
        assert torch.initial_seed() == 0
    whole = torch.stack(drawn)
    assert len(set(whole.flatten().tolist())) > 0.99 * whole.numel()
    assert stats.kstest(whole.flatten().numpy(), "uniform").pvalue > 1e-7


@pytest.mark.parametrize("seed", ["default", "chosen", "secret", "inside"])
def test_a_loop_that_draws_for_a_batch_from_a_seed_that_may_be_known_is_warned(seed: str) -> None:
    """Torch's generator has one and the same seed in every process in which nobody has called torch.seed()."""
    before = torch.get_rng_state()
    run = private(Functional("module" if seed == "inside" else "none"), records(), noise_generator=None)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        if seed == "secret":
            torch.seed()
        else:
            torch.manual_seed(torch.Generator().initial_seed() if seed == "default" else 0)
        for _, x, y in run.loader:
            x = x if seed == "inside" else x + torch.randn_like(x)
            step(run, x, y)
    torch.set_rng_state(before)
    drew = [str(each.message) for each in told if "loop drew random numbers" in str(each.message)]
    assert len(drew) == (seed in ("default", "chosen"))
