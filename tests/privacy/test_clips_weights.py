"""What every clip says of itself, in numbers: its weights to the last digit, its bounds, and how they move."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from isthmus.base.validate import InvalidInput
from isthmus.gradients import Dense, Stack, rounding
from isthmus.privacy import AdaptiveClip, Clip, GroupClip, PerLeafClip, clips
from isthmus.privacy.clips import Clipping


def rows_of(n: int, d: int, dtype: torch.dtype, seed: int = 0) -> Dense:
    return Dense(torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("ord", [1, 2, math.inf])
def test_a_weight_is_the_last_number_below_the_bound_over_the_norm(dtype: torch.dtype, ord: float) -> None:
    """In exact arithmetic: never above C / norm, and less than two roundings below it."""
    rows, bound = rows_of(300, 5, dtype), 0.37
    weights, u = Clip(bound, ord=ord).weights(rows, bound), Fraction(rounding.unit(dtype))
    clipped = 0
    for weight, norm in zip(weights.tolist(), rows.norms(ord).tolist(), strict=True):
        share = Fraction(weight) * Fraction(norm)
        if norm > bound:
            clipped += 1
            assert Fraction(bound) * (1 - 2 * u - Fraction(2) ** -49) < share <= Fraction(bound)
        else:
            assert weight == 1.0
    assert clipped > 100


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_device_keeps_a_few_roundings_more(dtype: torch.dtype) -> None:
    """RESERVE + 4 of them on average, of which its own divisions and the cast may use up two."""
    rows, bound, u = rows_of(300, 5, dtype), 0.37, rounding.unit(dtype)
    weights, norms = clips._device_weights(rows, 2, bound).double(), rows.norm_upper(2).double()
    clipped = norms > bound * (1 + 20 * u)
    share = (weights * norms / bound)[clipped]
    assert int(clipped.sum()) > 100
    assert bool((share <= 1 - (rounding.RESERVE + 2) * u).all())
    assert float((1 - share).mean() / u) == pytest.approx(rounding.RESERVE + 4, abs=0.3)
    assert bool((weights[norms < bound * (1 - 20 * u)] == 1).all())


def test_what_a_kind_of_rows_loses_is_taken_off_its_bound() -> None:
    """On the host and on a device; where nothing is left of the bound, nothing is kept."""

    class Lossy(Dense):
        def underflow(self) -> torch.Tensor:
            return torch.full((self.n,), 0.1, dtype=torch.float64)

    rows = Lossy(rows_of(100, 5, torch.float64).values)
    whole, lossy = (clips._weights(each, 2, 0.37) for each in (Dense(rows.values), rows))
    assert torch.allclose(lossy[whole < 1], whole[whole < 1] * 0.27 / 0.37, rtol=1e-12)
    device = clips._device_weights(rows, 2, 0.37)
    assert torch.allclose(device, (0.27 / rows.norm_upper(2)).clamp(max=1.0), rtol=1e-12)
    assert clips._device_weights(Dense(torch.zeros(1, 3)), 2, 1e-39).tolist() == [0.0]


def test_a_row_at_its_bound_is_whole() -> None:
    rows = rows_of(1, 3, torch.float32)
    norm = float(rows.norms(2))
    assert Clip(norm).weights(rows, norm).tolist() == [1.0]
    assert float(Clip(norm / 2).weights(rows, norm / 2)) == pytest.approx(0.5, rel=1e-6)


def test_leaves_are_clipped_by_themselves() -> None:
    leaves = {"a": rows_of(50, 3, torch.float64, 1), "b": rows_of(50, 4, torch.float64, 2)}
    stack, clip = Stack(list(leaves.items())), PerLeafClip({"a": 0.3, "b": 0.4})
    assert clip.init() == 1.0 and clip.total(2.0) == pytest.approx(1.0) and clip.each(2.0) == {"a": 0.6, "b": 0.8}
    assert clip.by_leaf and not Clip(1.0).by_leaf and not AdaptiveClip(1.0).by_leaf
    whole = clip.weights(stack, 2.0)
    for name, rows in leaves.items():
        own, bound = clip.leaf_weights(name, rows, 2.0)
        assert bound == clip.each(2.0)[name] and torch.equal(own, whole[name])
        assert torch.equal(own, Clip(bound).weights(rows, bound)) and bool((own < 1).any())
    with pytest.raises(InvalidInput, match="name the leaves"):
        PerLeafClip({"a": 0.3}).weights(stack, 1.0)


def test_a_clip_of_ones_own_inherits_one_bound_that_stays() -> None:
    class Own(Clipping):
        ord, before = 1.0, False

        def init(self) -> float:
            return 2.0

    rows, own = rows_of(20, 3, torch.float64), Own()
    weights, bound = own.leaf_weights("any", rows, 0.5)
    assert bound == 0.5 and torch.equal(weights, Clip(0.5, ord=1).weights(rows, 0.5))
    assert (own.each(0.5), own.total(0.5), own.next(0.5, {}), own.moves, own.by_leaf) == (0.5, 0.5, 0.5, False, False)
    assert (Clip(3.0).init(), AdaptiveClip(3.0).init(), AdaptiveClip.moves, Clip.moves) == (3.0, 3.0, True, False)
    assert (Clip(1.0).ord, Clip(1.0).before, GroupClip(1.0).before, AdaptiveClip(1.0).before) == (
        2,
        False,
        False,
        False,
    )


@pytest.mark.parametrize("quantile", [0.5, 0.8])
def test_an_adaptive_bound_moves_by_the_stated_factor(quantile: float) -> None:
    clip = AdaptiveClip(2.0, quantile=quantile, rate=0.3)
    for released, below in ((-0.5, 0.0), (-0.1, 0.4), (0.3, 0.8), (0.5, 1.0), (0.9, 1.0), (-7.0, 0.0)):
        moved = clip.next(1.5, {"below": torch.tensor([released, 99.0], dtype=torch.float64)})
        assert moved == pytest.approx(1.5 * math.exp(-0.3 * (below - quantile)), rel=1e-12)
    assert AdaptiveClip(1.0).quantile == 0.5 and AdaptiveClip(1.0).rate == 0.2
    with pytest.raises(InvalidInput, match="a release of the stage"):
        clip.next(1.0, {"other": torch.zeros(1)})


def test_an_adaptive_bound_ends_at_a_million_times_its_start() -> None:
    for initial, low, high in ((2.0, 2e-6, 2e6), (1e-20, 1e-24, 1e-14), (1e28, 1e22, 1e30)):
        clip, fast = AdaptiveClip(initial), AdaptiveClip(initial, rate=1e4)
        assert clip.next(high * 2, {"below": torch.tensor([0.0])}) == pytest.approx(high)
        assert clip.next(low / 2, {"below": torch.tensor([0.0])}) == pytest.approx(low)
        assert fast.next(initial, {"below": torch.tensor([-0.5])}) == pytest.approx(high)
        assert fast.next(initial, {"below": torch.tensor([0.5])}) == pytest.approx(low)


def test_bad_clips_are_refused_by_name() -> None:
    wrong: dict[str, Any] = {
        "clip": (lambda: Clip(-1.0), lambda: Clip("1"), lambda: GroupClip(0.0), lambda: AdaptiveClip(0.0)),
        "ord": (lambda: Clip(1.0, 3), lambda: PerLeafClip({"a": 1.0}, 1), lambda: AdaptiveClip(1.0, ord=3)),
        "bounds": (lambda: PerLeafClip({}), lambda: PerLeafClip({"a": -1.0})),
        "quantile": (lambda: AdaptiveClip(1.0, quantile=0.0), lambda: AdaptiveClip(1.0, quantile=1.0)),
        "rate": (lambda: AdaptiveClip(1.0, rate=0.0),),
    }
    for name, builds in wrong.items():
        for build in builds:
            with pytest.raises(InvalidInput, match=name):
                build()


def test_the_ends_of_what_is_allowed_are_allowed() -> None:
    for edge in (clips._SMALLEST, clips._LARGEST):
        assert Clip(edge).init() == edge
    for ord in (1, 2, math.inf):
        assert Clip(1.0, ord=ord).ord == AdaptiveClip(1.0, ord=ord).ord == ord


@pytest.mark.parametrize(
    "clip", [Clip(1.0), PerLeafClip({"a": 1.0}), AdaptiveClip(1.0)], ids=lambda clip: type(clip).__name__
)
def test_codes_are_clipped_unless_gradients_are_asked_for(clip: Clipping) -> None:
    assert not clip.before
