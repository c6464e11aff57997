"""One more record changes the shape of a batch: what must not change the others, and does not."""

from __future__ import annotations

import pytest
import torch

from attack import shapes

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


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [F32, F64], ids=["float32", "float64"])
@pytest.mark.parametrize("n, d", [(15, 64), (63, 64), (69, 784), (95, 64), (255, 64)])
def test_records_on_the_kink_stay_where_they_are(n: int, d: int, dtype: torch.dtype, order: str) -> None:
    moved = shapes.linear(n, dtype, order, d).moved()
    assert moved is not None and moved.ratio <= 1
