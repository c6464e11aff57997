"""What a private run counts as sent is a public number: neither a record nor the size of a batch moves it.

The data decide in which dtype a clipped sum is added up; what is counted, shown and stored has the dtype of the rows.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from isthmus import ModuleObjective, PrivacyEngine, algorithms, minimize

SIZE, CLASSES = 64, 30


class Positions(nn.Module):
    """A linear layer at two positions, whose outputs are added: terms of one record's gradient may cancel."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(SIZE, CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x).sum(1)


def data(cancels: bool, n: int = 50) -> tuple[Tensor, Tensor]:
    """Records of two positions; perhaps one more, of two that are long and nearly cancel."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 2, SIZE, generator=generator), torch.randint(0, CLASSES, (n,), generator=generator)
    if not cancels:
        return x, y
    more = torch.zeros(1, 2, SIZE)
    more[0, 0, 0], more[0, 1, 0] = 1e5, -1e5 + 1e-3
    return torch.cat([x, more]), torch.cat([y, y[:1]])


def sent(cancels: bool, **options: Any) -> list[tuple[int, int]]:
    objective = ModuleObjective(Positions(), cross_entropy, data(cancels))
    recipe = algorithms.dp_sgd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, batch_size=40, n=51)
    result = minimize(objective, recipe, steps=4, record=1, **options)
    return [(record["dims"], record["bytes"]) for record in result.history]


def test_a_record_whose_terms_cancel_does_not_show_in_what_was_sent() -> None:
    one = SIZE * CLASSES
    assert sent(False) == sent(True) == [(t * one, 4 * t * one) for t in range(5)]


def test_the_number_of_physical_batches_does_not_show_in_what_was_sent() -> None:
    assert sent(False) == sent(False, physical_batch_size=7) == sent(True, physical_batch_size=1)


@pytest.mark.parametrize("options", [{}, {"clipping": "per_layer"}, {"max_grad_norm": 1e-10}])
def test_a_batch_of_the_engine_does_not_show_in_what_is_stored(options: dict[str, Any]) -> None:
    """Stand-ins for no record, one physical batch and several, and a record whose terms cancel: all count the same."""
    module, engine = nn.Sequential(Positions(), nn.Linear(CLASSES, CLASSES)), PrivacyEngine()
    given: dict[str, Any] = {"noise_multiplier": 1.0, "max_grad_norm": 1.0, **options}
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    loader = DataLoader(TensorDataset(*data(True)), batch_size=2)
    module, optimizer, loader = engine.make_private(
        module=module, optimizer=optimizer, data_loader=loader, max_physical_batch_size=1, **given
    )
    for _ in range(4):
        for x, y in loader:
            assert len(x) == 1
            cross_entropy(module(x), y).backward()
            optimizer.step()
    assert engine.driver is not None
    state = engine.driver.state
    assert state.bytes == 4 * state.dims == 4 * state.t * (SIZE * CLASSES + CLASSES * (CLASSES + 1))
