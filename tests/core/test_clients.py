"""Clients of unequal size: every record counts the same, whatever the batches and however many clients are asked."""

from typing import Any

import numpy as np
import pytest
import torch

from isthmus import Identity, LeastSquares, Pipeline, Release, Stage, algorithms, minimize
from isthmus.core.pipeline import Client, RunContext, contribute, start, step
from isthmus.core.wire import Keys, Message
from isthmus.parts import Clients, Full, Shuffle, Uniform

D, SIZES = 4, (30, 10)


def holders() -> tuple[LeastSquares, list[LeastSquares]]:
    """Two clients whose own minimisers are far apart, and their whole."""
    draws = np.random.default_rng(0)
    X = [draws.standard_normal((n, D)) for n in SIZES]
    y = [X[0] @ np.ones(D), -X[1] @ np.ones(D)]
    return LeastSquares(np.vstack(X), np.concatenate(y)), [LeastSquares(a, b) for a, b in zip(X, y, strict=True)]


def test_the_run_of_unequal_clients_is_that_of_their_whole() -> None:
    whole, parts = holders()
    recipe = algorithms.comp_dist_sgd(m=1.0, step=0.3, sketch=lambda m: Identity())
    best = minimize(whole, algorithms.gd(step=0.3), steps=200, record=None).x
    found = minimize(whole, recipe, clients=parts, steps=200, record=None).x
    same = minimize(whole, recipe, clients=Clients(parts, uniform=True), steps=200, record=None).x
    torch.testing.assert_close(found, best, rtol=0, atol=1e-9)
    assert whole.loss(found) < 0.9 * whole.loss(same)  # a mean of clients has another minimiser


@pytest.mark.parametrize("shifts", [False, True])
def test_what_clients_remember_is_weighed_as_their_messages_are(shifts: bool) -> None:
    whole, parts = holders()
    recipe = algorithms.comp_dist_sgd(m=2, step=0.05, shifts=shifts, error_feedback=not shifts)
    best = minimize(whole, algorithms.gd(step=0.3), steps=200, record=None).x
    found = minimize(whole, recipe, clients=parts, steps=800, record=None).x
    assert float((found - best).norm()) < (1e-6 if shifts else 0.2)


def test_a_private_message_does_not_say_how_many_records_its_sender_has() -> None:
    whole, parts = holders()
    told: dict[str, int] = {}

    class Watched(Clients):
        def collect(self, round: Any, stage: Any, context: Any) -> Message:
            for number, part in enumerate(self.problems):
                message = contribute(round, stage, Client(str(number), part), context.keys)
                told[f"{len(round.bounds)}/{number}"] = Message.from_bytes(message.to_bytes()).records
            return super().collect(round, stage, context)

    private = algorithms.dp_sgd(epsilon=1.0, delta=1e-3, clip=1.0, step=0.1, batch_size=10, n=50)
    for recipe in (algorithms.comp_dist_sgd(m=2, step=0.1), private):
        minimize(whole, recipe, clients=Watched(parts), steps=1, record=None)
    assert told == {"0/0": 30, "0/1": 10, "1/0": 0, "1/1": 0}


@pytest.mark.parametrize(("sampler", "per_round"), [(Shuffle(5), None), (Full(), 1), (Uniform(4), 3)], ids=str)
def test_the_mean_step_is_the_gradient_of_the_whole(sampler: object, per_round: int | None) -> None:
    """Batches of one size from clients of different sizes, and clients that are drawn: unbiased (paper 001, App. D)."""
    whole, parts = holders()
    pipe = Pipeline([Stage(sampler, [Release()])], lambda t: 1.0)  # type: ignore[arg-type]
    setting, zero = RunContext(Clients(parts, per_round), whole.space, Keys(1)), torch.zeros(D, dtype=torch.float64)
    steps = torch.stack([-step(pipe, start(pipe, zero).replace(t=t), setting)[1].w for t in range(700)])
    off = (steps.mean(0) - whole.gradient(zero)) / (steps.std(0) / len(steps) ** 0.5)
    assert off.abs().max() < 4
