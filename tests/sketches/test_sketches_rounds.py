"""Short count-sketches of a loop: tables that are made for several rounds at once, and codes that are lifted once."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from isthmus.base import randomness
from isthmus.base.space import Space
from isthmus.lifts import pinv
from isthmus.sketches import CountSketch, base, hashed
from isthmus.sketches.base import leave_pinv, take_pinv
from isthmus.sketches.hashed import SHORT, _next_prime

LARGEST = 32_749  # the largest prime below 2^15


def slow_table(key: int, d: int, m: int) -> list[int]:
    """h(j), plus m where the sign is -1, as the formulas say, one j at a time."""
    p, where = _next_prime(d), []
    a, c = 1 + randomness.key(key, "a") % (p - 1), randomness.key(key, "c") % p
    signs = randomness.signs(randomness.key(key, "signs"), torch.arange(d)).tolist()
    for j, sign in enumerate(signs):
        image = (a * j + c) % p
        while image >= d:
            image = (a * image + c) % p
        where.append(image % m + (m if sign < 0 else 0))
    return where


@pytest.mark.parametrize(
    ("d", "m"),
    [(1, 1), (2, 1), (3, 2), (10, 10), (31, 7), (128, 128), (129, 5), (997, 100), (10_000, 1000), (LARGEST, LARGEST)],
)
def test_tables_of_several_keys_follow_the_formulas(d: int, m: int) -> None:
    keys = [randomness.key("tables", k) for k in range(3)] + [0, 2**64 - 1]
    tables = hashed._signed_tables(keys, d, m)
    assert tables.shape == (len(keys), d) and tables.dtype == np.uint16
    for key, table in zip(keys, tables, strict=True):
        assert table.tolist() == slow_table(key, d, m)


@pytest.mark.parametrize("d", [LARGEST, LARGEST + 1, LARGEST + 18, LARGEST + 19])
def test_dimensions_about_the_largest_short_one(d: int) -> None:
    """32767 is below 2^15, and its prime is not."""
    assert (_next_prime(d) < SHORT) is (d == LARGEST)
    sketch = CountSketch(d // 2).draw(d, seed=4)
    key = randomness.key(4, 0, "CountSketch")
    code, places = sketch.adjoint(torch.arange(1.0, d // 2 + 1)), torch.tensor(slow_table(key, d, d // 2))
    bucket, sign = places % (d // 2), 1 - 2 * (places >= d // 2).int()
    torch.testing.assert_close(code, sign * (sketch.scale.float() * torch.arange(1.0, d // 2 + 1))[bucket])


@pytest.mark.parametrize("refresh", [1, 3])
@pytest.mark.parametrize("m", [5, 0.25, lambda t: 3 + t % 4])
def test_maps_of_a_loop_are_those_that_are_drawn(refresh: int, m: object) -> None:
    encoder, spaces = CountSketch(m, refresh=refresh), [Space.flat(20), Space.flat(40)]  # type: ignore[arg-type]
    for t in [*range(30), 7, 100, 3]:  # in turn, back again and far ahead
        for seed in (0, 1):
            for space in spaces:
                bound = encoder.bind(SimpleNamespace(space=space, seed=seed, t=t, device=None), None)[0]
                drawn = encoder.draw(space, seed=seed, t=t)
                assert torch.equal(bound.dense(), drawn.dense()) and bound.fingerprint == drawn.fingerprint


def test_a_family_with_keys_of_its_own_keeps_its_maps() -> None:
    class Other(CountSketch):
        def build(self, space: Space, key: int, t: int) -> hashed._BalancedMap:
            return hashed._BalancedMap(space, 4, key + 1)

    space = Space.flat(12)
    bound = Other(3).bind(SimpleNamespace(space=space, seed=0, t=2), None)[0]
    assert torch.equal(bound.dense(), Other(3).draw(space, seed=0, t=2).dense())


def test_maps_that_differ_in_their_loop_do_not_write_to_each_other() -> None:
    context = SimpleNamespace(space=Space.flat(20), seed=0, t=0)
    first, again = (CountSketch(5).bind(context, None)[0] for _ in range(2))
    first._signed_buckets.zero_()
    assert torch.equal(again.dense(), CountSketch(5).draw(20).dense())


def test_what_was_left_is_taken_once_and_only_of_an_equal_code() -> None:
    sketch, y = CountSketch(5).draw(20), torch.arange(5.0)
    left = leave_pinv(sketch, y)
    assert torch.equal(left, sketch.pinv(y))
    assert pinv(sketch, y.clone(), None, 0.1).direction is left
    assert pinv(sketch, y.clone(), None, 0.1).direction is not left
    for other in (y + 1, y.double(), y * torch.nan):
        leave_pinv(sketch, y)
        found = pinv(sketch, other, None, 0.1).direction
        assert found.dtype == other.dtype and torch.equal(found.nan_to_num(7.0), sketch.pinv(other).nan_to_num(7.0))
        assert take_pinv(sketch, y) is not left


def test_long_vectors_are_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    sketch, y = CountSketch(5).draw(20), torch.arange(5.0)
    monkeypatch.setattr(base, "LONGEST_LEFT", 19)
    left = leave_pinv(sketch, y)
    assert take_pinv(sketch, y) is not left and torch.equal(left, sketch.pinv(y))


def test_scales_first_asked_for_in_inference_mode_serve_gradients_later() -> None:
    with torch.inference_mode():
        CountSketch(7).draw(30).adjoint(torch.ones(7))
    y = torch.ones(7, requires_grad=True)
    CountSketch(7).draw(30).adjoint(y).sum().backward()
    assert y.grad is not None and y.grad.isfinite().all()
