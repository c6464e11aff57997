"""The one-run audit of the engine's training: sound in every precision that a CPU has, and a control that is caught."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy

sys.path.insert(0, str(Path(__file__).parents[2] / "lab" / "measurements"))

import audit_precision as benchmark

SMALL = benchmark.Audit(canaries=400, others=200, steps=20)
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("case", ["float32", "bfloat16", "bfloat16, Kronecker 16"])
def test_a_training_gives_away_less_than_it_states(case: str) -> None:
    found, stated = benchmark.audited(benchmark.cases(SMALL)[case])
    assert 1.8 < stated <= 2.0 + 1e-3 and found.lower <= stated and found.guesses == 60


def test_a_training_with_a_tenth_of_its_noise_is_caught() -> None:
    found, stated = benchmark.audited(replace(SMALL, understated=10.0))
    assert found.lower > stated


def test_a_canary_pulls_at_its_own_word_almost_alone() -> None:
    """Otherwise the audit would look where nothing is: nine tenths of a canary's gradient are its word's."""
    module = benchmark.Words(benchmark.WORDS + 3)
    ids = torch.full((1, benchmark.LENGTH), benchmark.WORDS + 1)
    cross_entropy(module(ids), torch.ones(1, dtype=torch.int64)).backward()
    grads = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
    own = grads["encoder.embeddings.word_embeddings.weight"]
    assert float(own[benchmark.WORDS + 1].norm() / own.norm()) > 0.999
    assert float(own.norm() ** 2) > 0.9 * float(sum(g.norm() ** 2 for g in grads.values()))


def test_gradients_of_canaries_are_no_longer_than_the_clip() -> None:
    module = benchmark.Words(benchmark.WORDS + 3)
    canaries = (benchmark.WORDS + torch.arange(3))[:, None].repeat(1, benchmark.LENGTH)
    rows = benchmark.own_gradients(module, canaries, replace(SMALL, canaries=3))
    assert rows.shape == (3, 64) and bool((rows.norm(dim=1) <= 1 + 1e-6).all()) and float(rows.norm()) > 1
