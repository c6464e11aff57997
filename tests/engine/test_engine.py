"""The promises of the engine: epsilon, budget, statement; the module and the objects around it."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from engine_cases import BATCH, MODELS, Indexed, N, Z, assert_same, cnn, data, loader, mlp, private, step, train
from torch import nn

from isthmus import InvalidInput, Kronecker, PrivacyEngine
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


@pytest.mark.parametrize(
    "epsilon, epochs, poisson, accountant",
    [
        (0.5, 2, True, "pld"),
        (8.0, 1.5, True, "prv"),
        (2.0, 1, True, "rdp"),
        (0.5, 1, False, "pld"),
        (4.0, 1.5, False, "rdp"),
    ],
)
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
    with pytest.raises(InvalidInput, match="private already"):
        private(mlp(), data(), optimizer=lambda p: run.optimizer)
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
