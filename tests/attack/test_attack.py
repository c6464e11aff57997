"""One record moves what a mechanism is handed by at most the stated bound, over many drawn attacks.

A failure prints the command that runs its case again; `make attack` searches for longer and with longer sums.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from attack.cases import Case, draw, replay
from attack.probes import Arrays, Membership, Seen, compare, observe
from attack.search import LIMIT, Search
from isthmus.privacy import Gaussian, SeededSource
from isthmus.privacy.clips import ClippedSum

SEEDS, CASES = range(2), 150


@pytest.mark.parametrize("seed", SEEDS)
def test_no_attack_moves_a_release_beyond_its_bound(seed: int) -> None:
    table = Search(seed).run(CASES)
    print(f"seed {seed}: {table}")
    assert table.cases >= CASES and table.refused < CASES / 5
    assert not table.broken(), f"seed {seed}: {table}"


# ---------------------------------------------------------------- the attack itself can fail


def single_precision(arrays: Arrays) -> None:
    """A sum in float32 whose rounding nobody accounts for."""
    total = np.float32(0)
    for value in arrays["x"].astype(np.float32):
        total += value
    Gaussian(1.0).release(ClippedSum(torch.tensor([total]), 2, 1.0), SeededSource(0))


def crossing() -> Case:
    """The sum ends just below a power of two, or with one more record just above it."""
    S = 1 << 10
    x = np.concatenate([-np.ones(S - 1), [-0.5, -1.0], np.full(S, 0.99 * S * 2.0**-24)])
    return Case("test", "", {"x": x}, S, single_precision, ("x",), 0)


def test_a_sum_that_rounds_is_found() -> None:
    moved = crossing().moved()
    assert moved is not None and moved.ratio > 1.0001 > LIMIT


def test_a_bound_that_is_too_small_is_found() -> None:
    def train(arrays: Arrays) -> None:
        value = torch.from_numpy(np.clip(arrays["x"], -1, 1)).sum()[None]
        Gaussian(1.0).release(ClippedSum(value, 2, 0.5), SeededSource(0))

    moved = Case("test", "", {"x": np.array([0.2, 1.0, -0.4])}, 1, train, (), 0).moved()
    assert moved is not None and moved.ratio == pytest.approx(2.0)


@pytest.mark.parametrize(
    "one, two, why",
    [
        (Seen(refused="NaN"), Seen([np.ones(1)], [("Gaussian", 2.0, 1.0)]), "only one"),
        (Seen([np.ones(1)], [("Gaussian", 2.0, 1.0)]), Seen([np.ones(1)], [("Gaussian", 2.0, 1.1)]), "depends"),
        (Seen([np.ones(1)], [("Gaussian", 2.0, 1.0)]), Seen([np.ones(1)] * 2, [("Gaussian", 2.0, 1.0)] * 2), "depends"),
        (Seen([np.array([np.nan])], [("Gaussian", 2.0, 1.0)]), Seen([np.ones(1)], [("Gaussian", 2.0, 1.0)]), ""),
    ],
)
def test_what_cannot_be_hidden_by_noise_counts_as_infinite(one: Seen, two: Seen, why: str) -> None:
    moved = compare(one, two)
    assert moved is not None and moved.ratio == np.inf and why in moved.why


def test_norms_are_those_of_the_mechanism() -> None:
    def ratio(ord: float) -> float:
        entries = [("any", ord, 2.0)]
        moved = compare(Seen([np.array([3.0, -4.0])], entries), Seen([np.zeros(2)], entries))
        assert moved is not None
        return moved.ratio

    assert [ratio(ord) for ord in (1.0, 2.0, np.inf)] == pytest.approx([3.5, 2.5, 2.0])


def test_the_second_training_is_given_what_the_first_released() -> None:
    released: list[Any] = []

    def train(arrays: Arrays) -> None:
        value = torch.from_numpy(arrays["x"]).sum()[None]
        released.append(Gaussian(1.0).release(ClippedSum(value, 2, 1.0), SeededSource(0)))

    observed = observe(train, {"x": np.ones(3)}, Membership(0, 1))
    observe(train, {"x": np.ones(2)}, Membership(0, None), observed.released)
    assert torch.equal(released[0], released[1])


def test_the_others_do_not_notice_the_record_in_secret_draws() -> None:
    drawn: list[Any] = []

    def train(arrays: Arrays) -> None:
        source = SeededSource(0)
        mask = source.mask(len(arrays["x"]), 0.5)
        drawn.append((mask, source.integers(7, int(mask.sum()))))
        Gaussian(1.0).release(ClippedSum(torch.zeros(1), 2, 1.0), source)

    observe(train, {"x": np.ones(41)}, Membership(3, 5, 0.7))
    observe(train, {"x": np.ones(40)}, Membership(3, None, 0.7))
    (mask, groups), (rest, others) = drawn
    at = int(mask[:5].sum())
    assert bool(mask[5]) and 0 < int(rest.sum()) < 40
    assert torch.equal(torch.cat([mask[:5], mask[6:]]), rest)
    assert torch.equal(torch.cat([groups[:at], groups[at + 1 :]]), others)


def test_a_case_is_what_its_number_and_path_say() -> None:
    for number in range(6):
        first, second = (replay(5, number, 64, (3, 8)) for _ in range(2))
        assert first.label == second.label == draw(5, number, 64).label and first.at == second.at
        assert all(np.array_equal(first.arrays[name], second.arrays[name], equal_nan=True) for name in first.arrays)
        assert first.moved() == second.moved()
