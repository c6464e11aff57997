"""Whoever may stop on what was released needs the plan's epsilon: that of the rounds made is not enough."""

import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from engine.engine_cases import private, step
from torch import nn
from torch.utils.data import TensorDataset

from isthmus import InvalidInput, L2Ball, LeastSquares, PrivacyEngine, PrivateClassifier, algorithms, minimize
from isthmus.core.minimize import unspent
from isthmus.core.parts import FirstOrderStationary
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.privacy import Clip, FullBatch, Gaussian, PrivacyStatement, epsilon_of
from isthmus.privacy.event_json import dpa

DELTA = 1e-3


def attacked(z: float, rounds: int, paths: int, claims: np.ndarray, margin: float, seed: int) -> tuple[float, float]:
    """The delta that the claim (claims[t], .) really has for "stop at the first t with L_t > claims[t] + margin s_t".

    s_t = sqrt(t) / z is the spread of the loss.
    Released in round t is x_t = 1 + z N(0, 1) with the record, z N(0, 1) without; L_t = sum (x_s - 1/2) / z^2 is the
    privacy loss.  Of a claim epsilon the hockey-stick divergence is E[(1 - exp(epsilon - L))_+] over runs with the
    record: its mean over paths, and its standard error.
    """
    draws = np.random.default_rng(seed)
    lost = np.zeros(paths)
    running, loss = np.ones(paths, dtype=bool), np.zeros(paths)
    for t in range(rounds):
        loss[running] += (0.5 + z * draws.standard_normal(int(running.sum()))) / z**2
        over = running & ((loss > claims[t] + margin * math.sqrt(t + 1) / z) | (t == rounds - 1))
        lost[over] = np.maximum(0.0, -np.expm1(claims[t] - loss[over]))
        running &= ~over
    return float(lost.mean()), float(lost.std() / math.sqrt(paths))


def test_the_epsilon_so_far_is_broken_by_stopping_and_that_of_the_plan_is_not() -> None:
    rounds, z, paths = 2000, 40.0, 4000
    marks = np.unique(np.geomspace(1, rounds, 60).astype(int))
    spent = [epsilon_of(dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(z), int(t)), DELTA) for t in marks]
    so_far = np.interp(np.arange(1, rounds + 1), marks, spent)
    broken, error = attacked(z, rounds, paths, so_far, margin=0.3, seed=0)
    assert broken - 4 * error > 5 * DELTA  # claimed is DELTA
    planned = np.full(rounds, so_far[-1])
    for margin in (-1.0, 0.0, 0.3, 1.0):
        real, error = attacked(z, rounds, paths, planned, margin, seed=1)
        assert real <= DELTA + 4 * max(error, math.sqrt(DELTA / paths))


def problem() -> LeastSquares:
    X = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return LeastSquares(X, X[:, 0])


def charged(statement: PrivacyStatement) -> int:
    """How many releases a statement counts."""
    from isthmus.privacy import event_json

    return sum(count for _, count in event_json.flatten(statement.event))


RECIPE = algorithms.dp_gd(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, n="exact")


def test_a_callback_a_stop_rule_and_a_resumed_run_state_the_plan() -> None:
    stopped = minimize(problem(), RECIPE, steps=20, record=1, callbacks=[lambda record, state: state.t == 3])
    assert stopped.status == "interrupted" and charged(stopped.privacy) == 20
    assert "3 of 20 planned rounds" in stopped.privacy.words()
    resumed = minimize(problem(), RECIPE, steps=20, resume=stopped.state)
    assert charged(resumed.privacy) == 20 and "planned rounds" not in resumed.privacy.words()
    assert resumed.privacy.epsilon == stopped.privacy.epsilon
    pipe = Pipeline(
        [Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(20.0))])],
        lambda t: 0.1,
        stop=FirstOrderStationary(1e9, L2Ball(1.0)),
        promise=Promise(1.0, 1e-5),
    )
    ruled = minimize(problem(), pipe, steps=15)
    assert ruled.status == "stopped" and ruled.state.t == 1 and charged(ruled.privacy) == 15


def test_a_run_is_not_prolonged_after_a_look() -> None:
    pipe = Pipeline(
        [Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(20.0))])],
        lambda t: 0.1,
        promise=Promise(1.0, 1e-5),
    )
    first = minimize(problem(), pipe, steps=5)
    with pytest.raises(InvalidInput, match="number of rounds that the run was begun with"):
        minimize(problem(), pipe, steps=10, resume=first.state)


def test_what_is_planned_and_not_made_follows_from_the_terms() -> None:
    recipe = algorithms.dp_svrg(epsilon=1.0, delta=1e-5, clip=1.0, step=0.1, n="exact", inner=4, batch_size=None)
    whole = minimize(problem(), recipe, steps=10)
    for t in (0, 1, 4, 5, 9, 10):
        some = minimize(
            problem(), recipe, steps=10, record=1, callbacks=[lambda record, state, t=t: state.t == max(t, 1)]
        )
        event = unspent(some.state.parts["terms"], t)
        left = {stage: -(-10 // k) - -(-t // k) for stage, k in json.loads(some.state.parts["terms"])["every"].items()}
        assert charged(PrivacyStatement.of(event, 1e-5)) == sum(left.values())
        assert some.privacy.epsilon == whole.privacy.epsilon


def test_partial_fits_state_all_planned_calls() -> None:
    draws = np.random.default_rng(0)
    X, y = draws.uniform(-1, 1, (300, 3)), np.arange(300) % 2
    model = PrivateClassifier(epsilon=1.0, delta=1e-5, bounds=(-1, 1), classes=[0, 1], algorithm="dp_gd", max_iter=4)
    model.set_params(partial_calls=3, scale="none").partial_fit(X, y)
    assert 0.99 < model.privacy_.epsilon <= 1.0 and "4 of 12 planned rounds" in model.privacy_.words()
    curve = model.budget_curve()
    assert curve[-1][0] == 4 and curve[-1][1] < 0.8  # a reading of the rounds so far
    model.partial_fit(X, y).partial_fit(X, y)
    assert "planned rounds" not in model.privacy_.words()
    assert model.budget_curve()[-1] == (12, pytest.approx(model.privacy_.epsilon, rel=1e-9))


def trained(rounds: int, **plan: Any) -> PrivacyEngine:
    torch.manual_seed(0)
    module, data = nn.Linear(3, 2), TensorDataset(torch.randn(40, 3), torch.arange(40) % 2)
    run = private(module, data, max_grad_norm=1.0, noise_generator=None, **plan)
    for _, (x, y) in zip(range(rounds), run.loader, strict=False):
        step(run, x, y)
    return run.engine


def test_the_engine_states_its_plan_or_says_what_it_assumes() -> None:
    planned = trained(2, target_epsilon=2.0, target_delta=1e-5, epochs=3)
    planned.detach()
    stated = planned.statement(1e-5)
    assert charged(stated) == 12 and 1.99 < stated.epsilon <= 2.0
    assert planned.get_epsilon(1e-5) < stated.epsilon and "2 of 12 planned rounds" in stated.words()
    assert not any("fixed before training" in assumption for assumption in stated.assumptions)
    free = trained(2, noise_multiplier=1.0)
    stated = free.statement(1e-5)
    assert charged(stated) == 2 and any("fixed before training" in assumption for assumption in stated.assumptions)
