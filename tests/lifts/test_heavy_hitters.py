"""A memory of codes at the server: nothing is lost, and a run goes on from it."""

import pytest
import torch

from isthmus import InvalidInput, LeastSquares, SparseJL, algorithms, minimize
from isthmus.core.wire import State
from isthmus.lifts import HeavyHitters


def test_codes_of_what_was_applied_and_what_is_left_add_up_to_all_that_came(draws: torch.Generator) -> None:
    phi, lift = SparseJL(40, s=5).draw(200, seed=1), HeavyHitters(6)
    came, applied, memory = torch.zeros(40).double(), torch.zeros(200).double(), None
    for _ in range(10):
        y = phi.forward(torch.randn(200, generator=draws, dtype=torch.float64))
        lifted, memory = lift.remember(phi, y, None, 0.5, memory)
        came, applied = came + 0.5 * y, applied + 0.5 * lifted.direction
        assert int((lifted.direction != 0).sum()) == 6
    assert torch.allclose(phi.forward(applied) + memory["error"], came)


def test_another_map_begins_with_an_empty_memory(draws: torch.Generator) -> None:
    y, lift = torch.randn(40, generator=draws).double(), HeavyHitters(3)
    first, second = (SparseJL(40, s=5).draw(200, seed=1, t=t) for t in (0, 1))
    _, memory = lift.remember(first, y, None, 1.0, None)
    assert memory["error"].norm() > 0.1
    assert torch.equal(lift.remember(second, y, None, 1.0, memory)[0].direction, lift(second, y, None, 1.0).direction)
    assert not torch.equal(lift.remember(first, y, None, 1.0, memory)[0].direction, lift(first, y, None, 1.0).direction)


def test_what_is_left_never_grows_where_nothing_comes(draws: torch.Generator) -> None:
    """A dense vector has no heavy entries: applying the k largest estimates as they are would add to what is left."""
    phi, lift = SparseJL(40, s=5).draw(2000, seed=1), HeavyHitters(20)
    y = phi.forward(torch.randn(2000, generator=draws, dtype=torch.float64))
    _, memory = lift.remember(phi, y, None, 1.0, None)
    for _ in range(20):
        before = float(memory["error"].norm())
        _, memory = lift.remember(phi, torch.zeros(40).double(), None, 1.0, {**memory, "velocity": 0 * y})
        assert float(memory["error"].norm()) <= before


def sparse_problem(draws: torch.Generator) -> LeastSquares:
    x = torch.randn(3000, 300, generator=draws, dtype=torch.float64)
    w = torch.zeros(300).double()
    w[:5] = torch.tensor([3.0, -2.0, 2.0, -3.0, 2.5])
    return LeastSquares(x, x @ w)


def test_it_finds_few_coefficients_from_few_numbers(draws: torch.Generator) -> None:
    """Maps of five rounds: the largest coordinates are found, where the pseudo-inverse of such maps is far behind."""
    problem = sparse_problem(draws)
    options = {"steps": 60, "clients": [problem], "record": None}
    result = minimize(problem, algorithms.comp_dist_sgd(m=90, heavy=5, step=0.1, refresh=5), **options)
    plain = minimize(problem, algorithms.comp_dist_sgd(m=90, step=0.1, refresh=5), **options)
    assert problem.loss(result.x) < 0.5 * problem.loss(plain.x) and problem.loss(result.x) < 0.02 * 15


def test_a_run_goes_on_from_its_memory(draws: torch.Generator, tmp_path) -> None:
    problem = sparse_problem(draws)
    recipe, told = (
        algorithms.comp_dist_sgd(m=90, heavy=5, step=0.1, momentum=0.5, refresh=3),
        {"clients": [problem], "record": None},
    )
    whole = minimize(problem, recipe, steps=8, **told)
    minimize(problem, recipe, steps=4, **told).state.save(tmp_path / "half")
    again = minimize(problem, recipe, steps=8, resume=State.load(tmp_path / "half"), **told)
    assert torch.equal(whole.x, again.x)


def test_two_memories_and_momentum_without_one_are_refused() -> None:
    with pytest.raises(InvalidInput, match="one memory is enough"):
        algorithms.comp_dist_sgd(m=5, step=1.0, heavy=2, refresh=4, error_feedback=True)
    with pytest.raises(InvalidInput, match="lasts as long as its map"):
        algorithms.comp_dist_sgd(m=5, step=1.0, heavy=2)
    with pytest.raises(InvalidInput, match="give heavy="):
        algorithms.comp_dist_sgd(m=5, step=1.0, momentum=0.9)
