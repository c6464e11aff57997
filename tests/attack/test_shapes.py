"""One more record changes the shape of a batch: what must not change the others, and does not."""

from __future__ import annotations

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from attack import shapes
from isthmus import PrivacyEngine

F32, F64 = torch.float32, torch.float64


@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("last", [(0.3, 0.1, 0.5), (0.7, 0.7, 0.7)])
@pytest.mark.parametrize("n", [12, 48, 64, 256])
def test_a_sum_of_losses_does_not_depend_on_the_size_of_the_batch(
    n: int, last: tuple[float, ...], dtype: torch.dtype
) -> None:
    moved = shapes.averaged(n, dtype, "sum", last).moved()
    assert moved is not None and moved.ratio <= 1


def test_a_mean_does_and_its_statement_says_so() -> None:
    """The known gap: a mean divides by the size of the batch, and rounding that is long changes with it."""
    moved = shapes.averaged(256, F64, "mean").moved()
    assert moved is not None and moved.ratio > 100
    for reduction in ("mean", "sum"):
        assumed = " ".join(assumptions(reduction))
        assert "do not depend on the shape of its batch" in assumed
        assert ("do not depend on how many records its batch has" in assumed) == (reduction == "mean")


def assumptions(reduction: str) -> tuple[str, ...]:
    """What the statement of an engine rests on, before its first step."""
    data, module = TensorDataset(torch.zeros(8, 2), torch.zeros(8)), torch.nn.Linear(2, 1)
    engine = PrivacyEngine()
    engine.make_private(
        module=module,
        optimizer=torch.optim.SGD(module.parameters(), lr=0.1),
        data_loader=DataLoader(data, batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        loss_reduction=reduction,
    )
    return engine.statement(1e-5).assumptions


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("n, d", [(15, 64), (63, 64), (69, 784), (95, 64), (255, 64)])
def test_records_on_the_kink_stay_where_they_are(n: int, d: int, dtype: torch.dtype, order: str) -> None:
    moved = shapes.linear(n, dtype, order, d).moved()
    assert moved is not None and moved.ratio <= 1
