"""`step(closure)`: the closure is called once, and what it gathered goes through the one way out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import Trained, assert_same, data, mlp, private, train
from torch.optim import Adam

from isthmus import Kronecker


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
@pytest.mark.parametrize("sketch", [None, Kronecker(4, 2)])
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
    for _, x, _y in run.loader:
        if len(x):
            with pytest.raises(RuntimeError, match="no gradient of this batch arrived"):
                run.optimizer.step(lambda: None)
            break
    assert run.engine.ledger.rounds() == {}


def test_a_closure_that_goes_twice_through_its_batch_is_clipped_once() -> None:
    bound, run = 0.3, private(mlp(), data(), noise_multiplier=0.0, max_grad_norm=0.3)
    for _, x, y in run.loader:

        def closure(x: Any = x, y: Any = y) -> None:
            for _ in range(2):
                (1e6 * F.cross_entropy(run.module(x), y)).backward()

        run.optimizer.step(closure)
        released = run.rounds[-1].released["main"]["gradient"] * 10
        assert float(released.norm()) <= len(x) * bound * 1.001
    assert len(run.rounds) == 4
