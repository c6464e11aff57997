"""What an adversarial reading found: each of these once failed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus import PrivateClassifier
from isthmus.algorithms.purchases import ranged
from isthmus.estimators import load
from isthmus.matrix import rmatmul


@pytest.mark.parametrize("way", ["set_params", "load"])
def test_rounds_with_seeded_noise_stay_not_private(tmp_path: Path, way: str) -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (500, 3))
    y = (X[:, 0] > 0).astype(int)
    options = {"algorithm": "dp_gd", "max_iter": 5, "partial_calls": 2}
    model = PrivateClassifier(bounds=(-1, 1), classes=[0, 1], noise_seed=0, **options).partial_fit(X, y)
    assert not model.privacy_.private
    if way == "load":
        model.save(tmp_path / "m")
        model = load(tmp_path / "m")
    else:
        model.set_params(noise_seed=None)
    model.partial_fit(X, y)
    assert not model.privacy_.private  # whoever knows the seed can subtract the noise of the first five rounds


def test_one_record_moves_a_badly_centred_sum_by_no_more_than_its_bound() -> None:
    """Rows that are small differences of large numbers: their sum must not be one of large sums."""
    rng, n = np.random.default_rng(0), 20_000
    X = torch.from_numpy(1e12 + rng.uniform(0, 1, (n, 2)))
    seen = ranged(torch.full((2,), 1e12).double(), torch.full((2,), 1e12 + 1).double(), 1.0)
    v = torch.from_numpy(rng.uniform(0.5, 1, n))
    whole = rmatmul(seen(X), v)
    for i in range(20):
        rest = torch.arange(n) != i
        assert (whole - rmatmul(seen(X[rest]), v[rest])).norm() <= 1 + 1e-9
