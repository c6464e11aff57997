"""From random words to draws, word by word: exact probabilities, no word twice, and the ends of what a scale may be."""

from __future__ import annotations

import os
import struct

import numpy as np
import pytest
import torch

from isthmus.base import secret
from isthmus.base.validate import InvalidInput
from isthmus.privacy import GeneratorSource, SecretSource, SeededSource
from isthmus.privacy.noise import Source, check_scale, two_keys

TOP = (1 << 64) - 1


class Words(Source):
    """A source that gives these 64-bit words, one after the other."""

    seeded = True

    def __init__(self, *words: int) -> None:
        self._left = list(words)

    def bytes(self, count: int) -> bytes:
        taken, self._left = self._left[: count // 8], self._left[count // 8 :]
        assert 8 * len(taken) == count
        return struct.pack(f"={len(taken)}Q", *taken)


def test_a_uniform_is_the_first_53_bits_of_a_word() -> None:
    words = (0, (1 << 11) - 1, 1 << 11, 1 << 63, TOP)
    values = Words(*words).uniform(5).tolist()
    assert values == [2.0**-54, 2.0**-54, 2.0**-53, 0.5, 1 - 2.0**-53]
    assert Words(*words).uniform((5, 1), dtype=torch.float32).shape == (5, 1)


def test_membership_has_its_probability_exactly() -> None:
    """Of the 2^53 uniforms exactly q 2^53 are below q, where that is a whole number."""
    below = (1 << 63) - 1  # the largest word whose uniform is below a half
    assert Words(0, below, 1 << 63, TOP).mask(4, 0.5).tolist() == [True, True, False, False]
    assert Words(0, TOP).mask(2, 1.0).tolist() == [True, True]
    assert Words(0, 1 << 11).mask(2, 2.0**-53).tolist() == [True, False]


def test_integers_reject_the_words_that_are_too_many() -> None:
    """2^64 - 1 is a multiple of 3: one word is left over, and is drawn again."""
    assert Words(TOP, TOP - 1, 4).integers(3, 2).tolist() == [2, 1]
    assert Words(TOP, 0).integers(2, 2).tolist() == [1, 0]
    assert Words(TOP).integers(1, 1).tolist() == [0] and len(Words().integers(5, 0)) == 0
    for call in (lambda: Words().integers(3, -1), lambda: Words().subset(0, 0), lambda: Words().mask(3, 0.0)):
        with pytest.raises(InvalidInput):
            call()


def test_in_a_replay_draws_about_records_are_those_of_the_stand_in() -> None:
    class Fixed:
        def uniform(self, n: int) -> torch.Tensor:
            return torch.full((n,), 0.25)

        def mask(self, n: int, q: float) -> torch.Tensor:
            return torch.ones(n, dtype=torch.bool)

        def integers(self, high: int, size: int) -> torch.Tensor:
            return torch.full((size,), high - 1)

        subset = integers

    with secret.standing_in(Fixed()):  # type: ignore[arg-type]
        source = SecretSource()
        assert source.uniform(2).tolist() == [0.25] * 2 and source.mask(2, 1e-9).tolist() == [True] * 2
        assert source.integers(9, 2).tolist() == [8] * 2 == source.subset(9, 2).tolist()


def test_a_subset_has_the_smallest_words() -> None:
    assert Words(5, 1, 9, 3).subset(4, 2).tolist() == [1, 3]
    assert Words(5, 1, 9, 3).subset(4, 1).tolist() == [1] and Words(7).subset(1, 1).tolist() == [0]


def test_no_word_of_the_system_is_given_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is given is what the system gave, no piece of it twice."""
    entries = [0]

    def count_up(size: int) -> bytes:
        assert size % 4 == 0
        entries[0] += size // 4
        return np.arange(entries[0] - size // 4, entries[0], dtype=np.uint32).tobytes()

    source = SecretSource()
    monkeypatch.setattr(os, "urandom", count_up)
    sizes = (4, 8, 1 << 16, 16, 8, 0, 4)
    parts = [source.bytes(size) for size in sizes]
    monkeypatch.undo()
    assert [len(part) for part in parts] == list(sizes)
    words = np.concatenate([np.frombuffer(part, np.uint32) for part in parts])
    assert len(np.unique(words)) == len(words) and int(words.max()) < entries[0]
    again = SecretSource()
    assert again.bytes(8) != again.bytes(8)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int64], ids=str)
def test_a_scale_may_go_to_the_ends_of_its_numbers(dtype: torch.dtype) -> None:
    """From the least normal number to a 64th of the largest; whole numbers are noised in float64."""
    info = torch.finfo(dtype if dtype.is_floating_point else torch.float64)
    for edge, beyond in ((info.tiny, 1 - 2.0**-40), (info.max / 64, 1 + 2.0**-40)):
        check_scale(edge, dtype)
        with pytest.raises(InvalidInput, match="noise scale"):
            check_scale(edge * beyond, dtype)


def test_two_generators_make_one_normal_law() -> None:
    drawn = two_keys(torch.zeros(40000, dtype=torch.float32))
    assert drawn.dtype == torch.float64 and abs(float(drawn.var()) - 1) < 7 * 0.0071  # seven standard errors
    assert len(drawn.unique()) == 40000


def test_noise_is_added_at_its_scale_to_every_type() -> None:
    """Added in float64 and rounded last, the draws of `normal` in their order."""
    for make in (lambda: SeededSource(3), lambda: GeneratorSource(torch.Generator().manual_seed(3))):
        for dtype in (torch.float32, torch.float64):
            out = torch.full((3, 5), 2.0, dtype=dtype)
            make().add_normal(out, 0.25)
            assert torch.equal(out, (2 + 0.25 * make().normal(15)).view(3, 5).to(dtype))
