"""What a step held is gone when it ends: no cycle keeps tensors until the collector of garbage comes by."""

import gc

import pytest
import torch
import torch.nn.functional as F
from attack.modules import CLASSES, ZOO, built, inputs
from mixing_cases import private

from isthmus.core.driver import Ticket

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
N = 6


def tensors() -> int:
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("name", [name for name in ZOO if name != "linear"])
def test_memory_of_a_step_comes_back_without_the_collector(name: str) -> None:
    """Else a device's steps would never come to the same places, and be recorded."""
    module, g = built(*ZOO[name]), torch.Generator().manual_seed(1)
    x, y = inputs(N, ZOO[name][1], g), torch.randint(0, CLASSES, (N,), generator=g)
    x = x.to(next(module.parameters()).dtype) if x.is_floating_point() else x
    _, engine = private(module, N, loss_reduction="mean")
    optimizer = engine.driver.optimizer

    def step() -> None:
        engine.driver.begin(Ticket(N))
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(module(x), y).backward()
        optimizer.step()

    for _ in range(4):  # what is learnt once, of shapes and layers, may stay
        step()
    gc.collect()
    gc.disable()
    try:
        before = tensors()
        for _ in range(3):
            step()
        assert tensors() == before
    finally:
        gc.enable()
