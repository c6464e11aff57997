"""The count that moves an adaptive clip is continuous: records on its border do not all change sides together."""

from __future__ import annotations

import pytest
import torch

from isthmus import Logistic
from isthmus.gradients import Dense
from isthmus.privacy.clips import _WIDTH, _CountMap
from isthmus.sketches import SRHT, GaussianSketch, Identity

SKETCHES = {"none": Identity(), "gaussian": GaussianSketch(8), "srht": SRHT(8)}


@pytest.mark.parametrize("name", SKETCHES)
def test_records_on_the_border_stay_where_they_are(name: str) -> None:
    """The last digit of a norm may depend on the number of records; that of a count of a thousand may not follow it."""
    g, d, worst = torch.Generator().manual_seed(0), 64, 0.0
    sketch = SKETCHES[name].draw(d, seed=0)
    for n in (15, 16, 31, 1000):
        for _ in range(20):
            X = torch.randn(1, d, dtype=torch.float64, generator=g).expand(n, d).contiguous()
            w = torch.randn(d, dtype=torch.float64, generator=g)
            rows, less = (Logistic(x, torch.ones(len(x)), classes=(-1, 1)).rows(w) for x in (X, X[1:]))
            for bound in {float(norm) for norm in sketch.encode(rows).norms(2)}:
                count = _CountMap(sketch, 2, bound, False)
                moved = count.encode(rows).sum() - count.encode(less).sum()
                worst = max(worst, float(moved.abs()))
    assert worst <= 0.5 + 1e-9  # one record adds a half at most


def test_a_record_away_from_the_border_counts_as_below_or_above() -> None:
    sketch = Identity().draw(1)
    norms = torch.tensor([0.0, 1 - 2 * _WIDTH, 1.0, 1 + 2 * _WIDTH, 1e30, float("inf"), float("nan")]).double()
    counts = _CountMap(sketch, 2, 1.0, False).encode(Dense(norms[:, None])).dense()[:, 0]
    assert counts[:2].tolist() == [0.5, 0.5] and abs(float(counts[2])) < 1e-9 and counts[3:].tolist() == [-0.5] * 4
    assert float(counts.abs().max()) <= 0.5
