"""One record moves what a mechanism is handed by at most the stated bound, over many drawn attacks.

A failure prints the command that runs its case again; `make attack` searches for longer and with longer sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attack.cases import Case, draw, replay
from attack.probes import Arrays
from attack.search import LIMIT, Search
from isthmus.base import secret
from isthmus.base.validate import InvalidInput
from isthmus.privacy import Exact, SecretSource
from isthmus.privacy.clips import ClippedSum

SEEDS, CASES = range(2), 150


@pytest.mark.parametrize("seed", SEEDS)
def test_no_attack_moves_a_release_beyond_its_bound(seed: int) -> None:
    table = Search(seed).run(CASES)
    print(f"seed {seed}: {table}")
    assert table.cases >= CASES and table.refused < CASES / 5
    assert not table.broken(), f"seed {seed}: {table}"


# ---------------------------------------------------------------- the attack itself can fail


def released(value: Any, bound: float = 1.0, ord: float = 2) -> torch.Tensor:
    """One release of numbers, as a loop makes it."""
    bounded = ClippedSum(torch.as_tensor(value).reshape(-1), ord, bound)
    return secret.released("test", bounded, lambda: Exact().release(bounded, None))


def single_precision(arrays: Arrays) -> None:
    """A sum in float32 whose rounding nobody accounts for."""
    total = np.float32(0)
    for value in arrays["x"].astype(np.float32):
        total += value
    released(total)


def crossing() -> Case:
    """The sum ends just below a power of two, or with one more record just above it."""
    S = 1 << 10
    x = np.concatenate([-np.ones(S - 1), [-0.5, -1.0], np.full(S, 0.99 * S * 2.0**-24)])
    return Case("test", "", {"x": x}, S, single_precision, ("x",), 0)


def test_a_sum_that_rounds_is_found() -> None:
    found = crossing().moved()
    assert found is not None and found.ratio > 1.0001 > LIMIT


def moved(train: Any) -> tuple[float, str]:
    found = Case("test", "", {"x": np.array([0.25, 1.0, -0.5])}, 1, lambda arrays: train(arrays["x"]), (), 0).moved()
    assert found is not None
    return found.ratio, found.words


def test_a_bound_that_is_too_small_is_found_in_its_norm() -> None:
    assert moved(lambda x: released(x.sum(), 0.5))[0] == 2.0
    for ord, ratio in ((1.0, 3.5), (2.0, 2.5), (np.inf, 2.0)):
        assert moved(lambda x, ord=ord: released(x.sum() * np.array([3.0, -4.0]), 2.0, ord))[0] == pytest.approx(ratio)


def refuses(x: np.ndarray) -> None:
    if len(x) == 2:
        raise InvalidInput("NaN")
    released(0.0)


@pytest.mark.parametrize(
    ("train", "why"),
    [
        (refuses, "only one"),
        (lambda x: released(0.0, 1.0 + x.sum()), "depends"),
        (lambda x: [released(0.0) for _ in x], "depends"),
        (lambda x: released(np.where(len(x) == 3, np.nan, 0.0)), "inf"),
    ],
)
def test_what_cannot_be_hidden_by_noise_counts_as_infinite(train: Any, why: str) -> None:
    ratio, words = moved(train)
    assert ratio == np.inf and why in words


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_the_share_of_the_others_in_a_batch_is_that_of_the_case(share: float) -> None:
    drawn: list[torch.Tensor] = []

    def train(arrays: Arrays) -> None:
        drawn.append(SecretSource().mask(len(arrays["x"]), 1e-3))
        released(0.0)

    Case("test", "", {"x": np.ones(400)}, 5, train, (), 3, share).moved()
    assert torch.equal(torch.cat([drawn[0][:5], drawn[0][6:]]), drawn[1]) and bool(drawn[0][5])
    assert abs(float(drawn[1].double().mean()) - share) < 0.12


def test_a_case_is_what_its_number_and_path_say() -> None:
    for number in range(6):
        first, second = (replay(5, number, 64, (3, 8)) for _ in range(2))
        assert first.label == second.label == draw(5, number, 64).label and first.at == second.at
        assert all(np.array_equal(first.arrays[name], second.arrays[name], equal_nan=True) for name in first.arrays)
        assert first.moved() == second.moved()
