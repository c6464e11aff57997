"""`noise_multiplier=0`: everything but the noise, and no word that could be taken for a promise."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import data, loader, mlp, private, train
from torch import nn

from isthmus import InvalidInput, Kronecker, PrivacyEngine
from isthmus.engine import GradientEmbedding
from isthmus.privacy import Ledger
from isthmus.sketches import PublicSubspace

DELTA = 1e-5


def test_it_says_not_private_whatever_was_asked() -> None:
    run = train(private(mlp(), data(), noise_multiplier=0.0, noise_generator=None), 1)
    engine = run.engine
    assert engine.get_epsilon(DELTA) == math.inf == engine.accountant.get_epsilon(DELTA)
    statement = engine.statement(DELTA)
    assert not statement.private and statement.epsilon == statement.nominal == math.inf
    words = statement.words()
    assert "NOT private" in words and "noise_multiplier=0" in words
    assert "secret" not in words.split("Where the noise comes from:")[1][:60]
    assert engine.ledger.rounds() == {"main": 4} and engine.accountant.history == [(0.0, 1.0, 4)]


def test_it_is_never_forgotten(tmp_path: Any) -> None:
    """Noise afterwards, by the same engine or by another one at the same ledger, makes nothing private again."""
    path = tmp_path / "ledger"
    run = train(private(mlp(), data(), noise_multiplier=0.0, engine=PrivacyEngine(ledger=path)), 1)
    run.engine.detach()
    later = private(run.module, data(), engine=run.engine, noise_generator=None)
    train(later, 1)
    assert run.engine.get_epsilon(DELTA) == math.inf and not run.engine.statement(DELTA).private
    other = train(private(mlp(), data(), engine=PrivacyEngine(ledger=path), noise_generator=None), 1)
    assert other.engine.get_epsilon(DELTA) == math.inf and not other.engine.statement(DELTA).private


def test_a_budget_pays_for_none_of_it(tmp_path: Any) -> None:
    ledger = Ledger(tmp_path / "ledger", (3.0, DELTA))
    with pytest.raises(InvalidInput, match="noise_multiplier=0.0.*no budget is enough"):
        private(mlp(), data(), noise_multiplier=0.0, engine=PrivacyEngine(ledger=ledger))
    assert ledger.rounds() == {}


def test_its_checkpoint_does_not_become_private_training(tmp_path: Any) -> None:
    run = train(private(mlp(), data(), noise_multiplier=0.0), 1)
    run.engine.save_checkpoint(path=tmp_path / "one", module=run.module, optimizer=run.optimizer)
    other = private(mlp(), data(), noise_generator=None)
    with pytest.raises(InvalidInput, match="the settings of this checkpoint"):
        other.engine.load_checkpoint(path=tmp_path / "one", module=other.module)


@pytest.mark.parametrize("bound", [1e20, 0.2])
@pytest.mark.parametrize("shuffle", [False, True])
def test_without_sampling_it_is_plain_training_but_for_the_clip(shuffle: bool, bound: float) -> None:
    """The loader's own batches in its own order, and dropout by the user's seed: step by step the same."""

    def make() -> nn.Module:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(6, 5), nn.Dropout(0.3), nn.Linear(5, 3)).double()

    module, twin = make(), make()
    batches = {"shuffle": shuffle, "generator": torch.Generator().manual_seed(9)}
    run = private(
        module, data(), noise_multiplier=0.0, max_grad_norm=bound, poisson_sampling=False, loading=dict(batches)
    )
    torch.manual_seed(8)
    train(run, 2)
    plain = torch.optim.SGD(twin.parameters(), lr=0.5)
    torch.manual_seed(8)
    batches["generator"] = torch.Generator().manual_seed(9)
    order = loader(data(), **batches)
    for _ in range(2):
        for _, x, y in order:
            plain.zero_grad()
            F.cross_entropy(twin(x), y).backward()
            plain.step()
    same = all(torch.allclose(a, b, atol=1e-12) for a, b in zip(module.parameters(), twin.parameters(), strict=True))
    assert same == (bound > 1)


def test_the_batches_stay_secret_where_they_are_drawn() -> None:
    words = train(private(mlp(), data(), noise_multiplier=0.0), 1).engine.statement(DELTA).words()
    assert "Poisson" in words
    own = private(mlp(), data(), noise_multiplier=0.0, poisson_sampling=False)
    assert "user's own loader" in train(own, 1).engine.statement(DELTA).words()


PUBLIC = (torch.randn(20, 6, dtype=torch.float64), torch.randint(0, 3, (20,)))
KINDS: dict[str, dict[str, Any]] = {
    "flat": {},
    "adaptive": {"clipping": "adaptive"},
    "layers": {"clipping": "per_layer"},
    "sketch": {"sketch": Kronecker(3, 2)},
    "embedding": {"sketch": GradientEmbedding(PublicSubspace(3), clip_rest=0.1), "public": PUBLIC},
    "pieces": {"max_physical_batch_size": 3},
    "micro": {"micro_batch_size": 5},
}


@pytest.mark.parametrize("name", list(KINDS))
def test_every_kind_of_round_runs_without_noise(name: str) -> None:
    first, second = (train(private(mlp(), data(), noise_multiplier=0.0, **copy.copy(KINDS[name])), 1) for _ in "12")
    assert first.engine.get_epsilon(DELTA) == math.inf
    for a, b in zip(first.module.parameters(), second.module.parameters(), strict=True):
        assert torch.equal(a, b)  # batches have a seed here: nothing else is random


def test_the_guards_stay() -> None:
    run = private(mlp(), data(), noise_multiplier=0.0)
    with pytest.raises(InvalidInput, match="was given 3 examples"):
        for _ in run.loader:
            run.module(torch.zeros(3, 6, dtype=torch.float64))
    with pytest.raises(InvalidInput, match="used outside"):
        run.module[0].weight.sum().backward()
