"""Networks without an engine: `minimize` and clients guard private passes as the engine does."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from gradients.layers.layer_reference import Built
from torch import Tensor, nn

from isthmus import InvalidInput, ModuleObjective, algorithms, minimize
from isthmus.base.space import Space
from isthmus.gradients import Dense
from isthmus.gradients.layers import forward_guard
from isthmus.gradients.layers.forward_guard import RANDOM, generators_hidden
from isthmus.objectives.base import Objective

N, C = 200, 0.5
BUDGET = {"epsilon": 50.0, "delta": 1e-5, "clip": C, "n": "exact"}
RECIPES: dict[str, Callable[[], Any]] = {
    "dp_gd": lambda: algorithms.dp_gd(step=0.1, **BUDGET),
    "dp_sgd": lambda: algorithms.dp_sgd(step=0.1, batch_size=N // 2, **BUDGET),
    "dp_svrg": lambda: algorithms.dp_svrg(step=0.1, batch_size=N // 2, inner=2, **BUDGET),
    "compressive": lambda: algorithms.compressive_dp_sgd(p=10, kappa=3, step=0.1, variant="selection", **BUDGET),
}


def records(n: int = N) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(3)
    return torch.randn(n, 6, generator=g), torch.randint(0, 3, (n,), generator=g)


def dropping() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 40), nn.Dropout(0.5), nn.Linear(40, 3))


def objective(module: nn.Module, n: int = N, **options: Any) -> ModuleObjective:
    return ModuleObjective(module, F.cross_entropy, records(n), **options)


class Watching(nn.Module):
    """Keeps the mask of every pass outside of itself, and whether it was drawn from a secret."""

    def __init__(self, module: nn.Module, masks: list[Tensor]) -> None:
        super().__init__()
        self.module = module
        module[1].register_forward_hook(
            lambda layer, args, output: masks.append((output == 0).detach()) if len(output) > 16 else None
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


@pytest.mark.parametrize("name", RECIPES)
def test_masks_of_a_private_run_do_not_follow_a_known_seed(name: str) -> None:
    found = []
    for _ in range(2):
        masks: list[Tensor] = []
        problem = objective(Watching(dropping(), masks))
        torch.manual_seed(0)
        minimize(problem, RECIPES[name](), steps=2, x0=problem.start(), record=None)
        assert torch.initial_seed() == 0 and not generators_hidden()
        found.append(masks)
    assert len(found[0]) == len(found[1]) > 0
    for one, other in zip(*found, strict=True):
        rows = min(len(one), len(other))
        assert 0.4 < float((one[:rows] == other[:rows]).double().mean()) < 0.6


def clipped(problem: ModuleObjective, secret: bool) -> Tensor:
    torch.manual_seed(0)
    with forward_guard.private_records(secret):
        rows = problem.rows(problem.start()).dense().double()
    return (rows * (C / rows.norm(dim=1)).clamp(max=1)[:, None]).sum(0)


def test_a_record_in_front_shifts_the_masks_where_the_seed_is_known_and_not_where_it_is_secret() -> None:
    """With masks by position, one record more gives every record after it another mask."""
    x, y = records()
    with_it, without = (ModuleObjective(dropping(), F.cross_entropy, data) for data in ((x, y), (x[1:], y[1:])))
    known = float((clipped(with_it, False) - clipped(without, False)).norm())
    assert known > 4 * C
    again = [clipped(with_it, True) for _ in range(2)]
    assert float((again[0] - again[1]).norm()) > 1e-2 * C  # the same records and seed, other masks


def test_runs_with_a_seed_that_are_not_private_stay_repeatable() -> None:
    found = []
    for _ in range(2):
        problem = objective(dropping())
        torch.manual_seed(7)
        found.append(minimize(problem, algorithms.gd(step=0.1), steps=3, x0=problem.start()).x)
    assert torch.equal(*found)


class Keeps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.mean.copy_(x.detach().mean(0))
        return self.layer(x)


def test_buffers_that_keep_data_are_warned_of_and_stated() -> None:
    problem = objective(Keeps())
    with pytest.warns(UserWarning, match="mean"):
        result = minimize(problem, RECIPES["dp_gd"](), steps=2, x0=problem.start())
    assert any(forward_guard.KEPT in leak and "'mean'" in leak for leak in result.privacy.leaks)


def test_a_generator_of_the_modules_own_is_refused_before_anything_is_released() -> None:
    module = dropping()
    module.own = torch.Generator().manual_seed(0)
    problem = objective(module)
    with pytest.raises(InvalidInput, match="generators of its own"):
        minimize(problem, RECIPES["dp_gd"](), steps=2, x0=problem.start())
    assert not generators_hidden()
    minimize(problem, algorithms.gd(step=0.1), steps=1, x0=problem.start())  # not private: its own business


def test_a_module_that_seeds_itself_is_refused() -> None:
    class Seeds(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            torch.manual_seed(0)
            return super().forward(x)

    problem = objective(Seeds(*dropping()))
    with pytest.raises(InvalidInput, match="inside its forward pass"):
        minimize(problem, RECIPES["dp_gd"](), steps=2, x0=problem.start())
    assert not generators_hidden()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_statement_of_a_network_says_what_it_rests_on(reduction: str) -> None:
    module = nn.Linear(6, 3)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target, reduction=reduction)

    problem = ModuleObjective(module, loss, records(), reduction=reduction)
    for physical in (None, 50):
        said = minimize(
            problem, RECIPES["dp_gd"](), steps=2, x0=problem.start(), physical_batch_size=physical
        ).privacy.assumptions
        assert {forward_guard.MIXING, RANDOM, forward_guard.SHAPES} <= set(said)
        assert (forward_guard.MEAN in said, forward_guard.PIECES in said) == (reduction == "mean", physical is not None)
    seeded = minimize(problem, RECIPES["dp_gd"](), steps=2, x0=problem.start(), noise_seed=0).privacy
    assert RANDOM not in seeded.assumptions and not seeded.private


def test_layers_that_are_left_out_of_some_pieces_of_a_batch_are_refused() -> None:
    sometimes = lambda m, x: m.a(x) + m.b(x) if len(x) == 150 else m.a(x)  # noqa: E731
    problem = objective(Built(sometimes, a=nn.Linear(6, 3), b=nn.Linear(6, 3)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minimize(problem, RECIPES["dp_gd"](), steps=1, x0=problem.start())
        with pytest.raises(InvalidInput, match="some physical batches"):
            minimize(problem, RECIPES["dp_gd"](), steps=1, x0=problem.start(), physical_batch_size=150)


def test_an_objective_of_ones_own_draws_from_secrets_too() -> None:
    class Noisy(Objective):
        """A vector of one record that follows torch's generator."""

        n, space = 20, Space.flat(3)
        seen: list[Tensor] = []

        def rows(self, w: Tensor, index: Tensor | None = None) -> Dense:
            self.seen.append(torch.rand(20 if index is None else len(index), 3))
            return Dense(self.seen[-1].double())

        def data_loss(self, w: Tensor, index: Tensor | None = None) -> float:
            return 0.0

    for _ in range(2):
        torch.manual_seed(0)
        minimize(Noisy(), RECIPES["dp_gd"](), steps=1)
    assert not torch.equal(*Noisy.seen)
