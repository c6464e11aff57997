"""The promises of the engine: epsilon, budget, statement, and none without noise; the module and what is around it."""

import copy
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, MODELS, Indexed, N, Z, assert_same, cnn, data, loader, mlp, private, step, train
from torch import nn

from isthmus import GradientEmbedding, InvalidInput, Kronecker, PrivacyEngine, PublicSubspace
from isthmus.privacy import Ledger
from isthmus.privacy.ledger import BudgetExceeded

DELTA = 1e-5


def snapshot(run: Any) -> Any:
    state = copy.deepcopy(run.optimizer.state_dict()["state"])
    return [p.detach().clone() for p in run.module.parameters()], state, run.engine.driver.state.t, len(run.rounds)


def assert_unchanged(run: Any, before: Any) -> None:
    now = snapshot(run)
    assert all(torch.equal(a, b) for a, b in zip(before[0], now[0], strict=True))
    assert now[2:] == before[2:]
    assert str(now[1]) == str(before[1])


TARGETS = [
    (0.5, 2, True, "pld"),
    (8.0, 1.5, True, "prv"),
    (2.0, 1, True, "rdp"),
    (0.5, 1, False, "pld"),
    (4.0, 1.5, False, "rdp"),
]


@pytest.mark.parametrize("epsilon, epochs, poisson, accountant", TARGETS)
def test_a_target_is_met_from_below_and_then_enforced(
    epsilon: float, epochs: float, poisson: bool, accountant: str
) -> None:
    engine = PrivacyEngine(accountant=accountant)
    run = private(
        mlp(), data(), engine=engine, target_epsilon=epsilon, target_delta=DELTA, epochs=epochs, noise_generator=None,
        poisson_sampling=poisson, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    )  # fmt: skip
    planned, steps, seen = round(epochs * N / BATCH), 0, []
    with pytest.raises(BudgetExceeded, match="Nothing was released"):
        while True:
            for _, x, y in run.loader:
                F.cross_entropy(run.module(x), y).backward()
                before = snapshot(run)
                run.optimizer.step()
                steps += 1
                if steps in (1, planned):
                    seen.append(engine.get_epsilon(DELTA))
    assert steps == planned
    assert_unchanged(run, before)
    assert 0 < seen[0] < seen[1]
    assert 0.99 * epsilon <= seen[-1] <= epsilon
    assert engine.get_epsilon(DELTA) == seen[-1]
    assert engine.ledger.rounds() == {"main": planned}
    assert run.optimizer.noise_multiplier > 0
    with pytest.raises(BudgetExceeded):
        run.optimizer.step()


@pytest.mark.parametrize("shared", [None, (100.0, DELTA)])
def test_a_target_holds_on_a_ledger_with_another_budget(shared: Any) -> None:
    engine = PrivacyEngine(ledger=Ledger(budget=shared))
    run = private(mlp(), data(), engine=engine, target_epsilon=1.0, target_delta=DELTA, epochs=1)
    train(run, 1)
    assert 0.99 <= engine.get_epsilon(DELTA) <= 1.0
    with pytest.raises(BudgetExceeded):
        train(run, 1)
    assert engine.get_epsilon(DELTA) <= 1.0


def test_a_shared_budget_ends_a_run_before_its_own_target() -> None:
    ledger = Ledger(budget=(1.0, DELTA))
    target = {"target_epsilon": 0.9, "target_delta": DELTA, "epochs": 1}
    train(private(mlp(), data(), engine=PrivacyEngine(ledger=ledger), **target), 1)
    second = private(mlp(), data(), engine=PrivacyEngine(ledger=ledger), **target)
    with pytest.raises(BudgetExceeded):
        train(second, 1)
    assert ledger.spent() <= 1.0


def test_epsilon_grows_and_renyi_is_looser() -> None:
    tight, loose = PrivacyEngine(), PrivacyEngine(accountant="rdp")
    assert tight.get_epsilon(DELTA) == loose.get_epsilon(DELTA) == 0.0
    collected = []
    for engine in (tight, loose, PrivacyEngine(accountant="prv")):
        run, seen = private(mlp(), data(), engine=engine), []
        for _ in range(2):
            train(run, 1)
            seen.append(engine.get_epsilon(DELTA))
        assert 0 < seen[0] < seen[1]
        collected.append(seen[1])
    assert collected[0] <= collected[1]
    assert collected[0] == collected[2]
    assert tight.accountant.history == [(Z, BATCH / N, 8)]
    assert len(tight.accountant) == 8


@pytest.mark.parametrize("secure", [True, False])
@pytest.mark.parametrize("poisson", [True, False])
def test_the_statement_says_what_holds(poisson: bool, secure: bool) -> None:
    engine = PrivacyEngine(secure_mode=secure)
    train(private(mlp(), data(), engine=engine, noise_generator=None, poisson_sampling=poisson), 1)
    statement = engine.statement(DELTA)
    assert statement.private
    assert statement.epsilon == pytest.approx(engine.get_epsilon(DELTA))
    assert (statement.delta, statement.n) == (DELTA, N)
    assert statement.adjacency.value == ("add-remove" if poisson else "replace-one")
    assert ("Poisson" if poisson else "without replacement") in statement.sampler
    assert ("cryptographic" in statement.noise) != secure
    assert any("one record belongs to one person" in assumption for assumption in statement.assumptions)
    assert "0.25" in statement.sampler or f"{BATCH} of {N}" in statement.sampler
    words = statement.words()
    assert 1 <= float(words.split("epsilon = ")[1].split()[0]) / statement.epsilon < 1.001
    assert "1e-05" in words


def test_seeded_noise_is_not_private() -> None:
    run = train(private(mlp(), data()), 1)
    statement = run.engine.statement(DELTA)
    assert not statement.private
    assert statement.epsilon == math.inf
    assert statement.nominal == pytest.approx(run.engine.get_epsilon(DELTA))
    assert "not private" in str(statement)


def test_the_objects_are_the_users_own() -> None:
    module = cnn()
    keys, parameters = list(module.state_dict()), list(module.parameters())
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    triple = PrivacyEngine().make_private(
        module=module, optimizer=optimizer, data_loader=loader(data("cnn")), noise_multiplier=1.0, max_grad_norm=1.0
    )
    assert triple[0] is module
    assert triple[1] is optimizer
    assert len(triple[2]) == N // BATCH
    assert list(module.state_dict()) == keys
    assert all(a is b for a, b in zip(module.parameters(), parameters, strict=True))
    assert optimizer.noise_multiplier == 1.0


def test_evaluation_costs_nothing_and_taps_nothing() -> None:
    run = private(mlp(), data())
    for i, (_, x, y) in enumerate(run.loader):
        run.module.eval()
        F.cross_entropy(run.module(data(seed=9).x), data(seed=9).y)  # other data, other size, with a graph
        run.module.train()
        with torch.no_grad():
            run.module(data(seed=9).x)
        loss = F.cross_entropy(run.module(x), y)
        run.module.eval()
        assert not run.module(data(seed=9).x).requires_grad
        run.module.train()
        loss.backward()
        run.optimizer.step()
        assert run.engine.ledger.rounds() == {"main": i + 1}
    twin = train(private(mlp(), data()), 1)
    assert_same(run.module, twin.module, 1e-12)


@pytest.mark.parametrize("kind", list(MODELS))
def test_a_copy_is_free_of_the_engine(kind: str) -> None:
    """A moving average of the weights, a teacher, the best so far: copies neither disturb nor are disturbed."""
    run, twin = private(MODELS[kind](), data(kind)), train(private(MODELS[kind](), data(kind)), 1)
    for _, x, y in run.loader:
        teacher = copy.deepcopy(run.module)
        output = run.module(x)
        teacher(data(kind, seed=9).x)  # in training mode, another size
        teacher.eval()(x)
        F.cross_entropy(output, y).backward()
        teacher.train()(x).sum()
        run.optimizer.step()
        assert any(not torch.equal(a, b) for a, b in zip(run.module.parameters(), teacher.parameters(), strict=True))
    assert_same(run.module, twin.module, 1e-12)


def test_averaged_weights() -> None:
    run = private(mlp(), data())
    mean = torch.optim.swa_utils.AveragedModel(run.module)
    seen = []
    for _, x, y in run.loader:
        step(run, x, y)
        mean.update_parameters(run.module)
        seen.append(run.module[0].weight.detach().clone())
    torch.testing.assert_close(mean.module[0].weight.detach(), torch.stack(seen).mean(0))
    assert mean(data().x).shape == (N, 3)
    assert run.engine.ledger.rounds() == {"main": 4}


def test_a_detached_module_is_as_it_was_given() -> None:
    module = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 4), nn.LayerNorm(4)).double()
    tokens = torch.randint(0, 5, (N, 2))
    run = private(module, Indexed(tokens, torch.randint(0, 3, (N,))))
    train(run, 1)
    engine, spent = run.engine, run.engine.get_epsilon(DELTA)
    engine.detach()
    again = pickle.loads(pickle.dumps(module))
    assert all(p.requires_grad for p in module.parameters())
    assert not hasattr(run.optimizer, "noise_multiplier")
    run.optimizer.zero_grad()
    module(tokens).square().sum().backward()
    again(tokens).square().sum().backward()
    run.optimizer.step()  # an ordinary step
    for a, b in zip(module.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(a, b - 0.5 * b.grad)
    assert engine.get_epsilon(DELTA) == spent == engine.statement(DELTA).nominal
    with pytest.raises(InvalidInput, match="made private"):
        engine.save_checkpoint(path="nowhere", module=module)


def test_a_detached_module_can_be_made_private_again() -> None:
    run = train(private(mlp(), data()), 1)
    with pytest.raises(InvalidInput, match="private already"):
        private(
            run.module, data(), engine=run.engine, optimizer=lambda p: torch.optim.SGD(run.module.parameters(), lr=0.1)
        )
    for again in ({"optimizer": lambda p: run.optimizer}, {"data_loader": run.loader}):
        with pytest.raises(InvalidInput, match="private already"):
            private(mlp(), data(), **again)
    run.engine.detach()
    again = train(private(run.module, data(), engine=run.engine), 1)
    assert run.engine.ledger.rounds() == {"main": 8}
    assert len(again.rounds) == 4


def test_two_modules_of_one_engine_share_its_ledger() -> None:
    first = private(mlp(), data())
    second = private(cnn(), data("cnn"), engine=first.engine, sketch=Kronecker(4, 2), noise_multiplier=2.0)
    train(first, 1)
    train(second, 1)
    train(first, 1)
    assert first.engine.ledger.rounds() == {"main": 12}
    assert sorted(first.engine.accountant.history) == [(Z, 0.25, 8), (2.0, 0.25, 4)]
    alone = train(private(mlp(), data()), 2)
    assert first.engine.get_epsilon(DELTA) > alone.engine.get_epsilon(DELTA)
    assert_same(first.module, alone.module, 1e-12)


def test_a_spent_module_is_detached_and_stays_as_it_is() -> None:
    run = private(mlp(), data(), target_epsilon=1.0, target_delta=DELTA, epochs=1)
    with pytest.raises(BudgetExceeded):
        train(run, 2)
    before = [p.clone() for p in run.module.parameters()]
    run.engine.detach()
    assert all(torch.equal(a, b) for a, b in zip(before, run.module.parameters(), strict=True))
    assert run.engine.ledger.rounds() == {"main": 4}
    pickle.dumps(run.module)


def test_asking_first_and_failing_first_leave_no_trace() -> None:
    engine = PrivacyEngine()
    assert engine.get_epsilon(DELTA) == 0.0
    with pytest.raises(InvalidInput, match="BatchNorm"):
        batch_norm = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3))
        private(batch_norm, data(), engine=engine, target_epsilon=0.1, target_delta=DELTA, epochs=1)
    run = private(
        mlp(), data(), engine=engine, poisson_sampling=False, target_epsilon=1.0, target_delta=DELTA, epochs=1
    )
    train(run, 1)
    assert 0.99 <= engine.get_epsilon(DELTA) <= 1.0
    assert engine.ledger.budget == (1.0, DELTA)


def test_one_engine_counts_for_one_adjacency() -> None:
    run = private(mlp(), data())
    with pytest.raises(InvalidInput, match="replace-one"):
        private(mlp(), data(), engine=run.engine, poisson_sampling=False)


def test_nothing_is_stated_before_anything_is_private() -> None:
    engine = PrivacyEngine()
    for call in (lambda: engine.statement(DELTA), lambda: engine.save_checkpoint(path="x", module=mlp())):
        with pytest.raises(RuntimeError, match="make_private"):
            call()


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
