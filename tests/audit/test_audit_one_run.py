"""One run with canaries: what its bound says holds, and is near the truth; half the noise is caught by one run."""

import math

import numpy as np
import pytest
import torch
from refusals import refuses
from scipy.optimize import linprog
from scipy.stats import binom

from isthmus import audit
from isthmus.audit import LinearRecords, known_bad, one_run, one_run_epsilon, one_run_p_value, training
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.privacy import Clip, FullBatch, Gaussian, SeededSource, noise_multiplier

DELTA = 1e-5


def summed(epsilon: float, steps: int = 1) -> Pipeline:
    """A Gaussian sum over all records, in `steps` rounds."""
    z = noise_multiplier(epsilon=epsilon, delta=DELTA, steps=steps)
    stage = Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(z))])
    return Pipeline([stage], lambda t: 0.1, promise=Promise(epsilon, DELTA))


# ---------------------------------------------------------------- the bound


def by_linear_programme(m: int, r: int, v: int, epsilon: float, delta: float) -> float:
    """The most that P[N >= v] can be under the inequalities that an (epsilon, delta) run obeys."""
    counts = np.arange(r + 1)
    rows = [(counts >= i) * counts - math.exp(epsilon) * (counts >= i - 1) * (r - counts) for i in range(1, r + 1)]
    total, limits = np.ones((1, r + 1)), np.full(r, m * delta)
    return -float(linprog(-1.0 * (counts >= v), np.array(rows), limits, total, [1.0], method="highs").fun)


@pytest.mark.parametrize("delta", [0.0, 1e-3, 0.05])
def test_the_one_run_bound_is_the_most_that_its_inequalities_allow(delta: float) -> None:
    for v in range(13):
        for epsilon in (0.0, 0.5, 2.0):
            found = one_run_p_value(20, 12, v, epsilon, delta)
            assert found == pytest.approx(by_linear_programme(20, 12, v, epsilon, delta), rel=1e-6)


@pytest.mark.parametrize(("guesses", "correct", "epsilon"), [(10, 10, 0.0), (400, 263, 0.3), (1000, 800, 1.0)])
def test_without_delta_the_bound_is_nearly_the_binomial_tail(guesses: int, correct: int, epsilon: float) -> None:
    tail = float(binom.sf(correct - 1, guesses, 1 / (1 + math.exp(-epsilon))))
    assert tail * (1 - 1e-9) <= one_run_p_value(1000, guesses, correct, epsilon) <= 1.1 * tail


@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_the_one_run_bound_holds_for_simulated_randomised_response(delta: float) -> None:
    # every bit is shown as it is with probability delta, else through epsilon randomised response
    epsilon, m, runs = 1.0, 200, 20_000
    rng = np.random.default_rng(11)
    right = delta + (1 - delta) / (1 + math.exp(-epsilon))
    correct = rng.binomial(m, right, runs)
    for v in range(130, 170, 4):
        share = (correct >= v).mean()
        assert share <= one_run_p_value(m, m, v, epsilon, delta) + 4 * math.sqrt(0.25 / runs)
    bounds = {v: one_run_epsilon(m, m, int(v), delta) for v in np.unique(correct)}
    values = np.array([bounds[v] for v in correct])
    assert (values > epsilon).mean() <= 0.05 + 4 * math.sqrt(0.05 / runs)
    if delta == 0:
        assert np.median(values) > 0.6 * epsilon


@pytest.mark.parametrize("gaussian", [False, True])
@pytest.mark.parametrize("epsilon", [1.0, 2.0, 8.0])
def test_bounds_of_simulated_gaussian_sums_hold_and_are_close(epsilon: float, gaussian: bool) -> None:
    rng, m, guesses, runs = np.random.default_rng(5), 10_000, 300, 300
    z = noise_multiplier(epsilon=epsilon, delta=DELTA)
    correct = []
    for _ in range(runs):
        member = rng.random(m) < 0.5
        order = (member + z * rng.standard_normal(m)).argsort()
        correct.append(int(member[order[-guesses // 2 :]].sum() + (~member[order[: guesses // 2]]).sum()))
    bounds = {v: one_run_epsilon(m, guesses, v, DELTA, gaussian=gaussian) for v in set(correct)}
    found = np.array([bounds[v] for v in correct])
    assert (found > epsilon).mean() <= 0.05
    assert np.median(found) > (0.53 if gaussian else 0.43) * epsilon


def test_what_is_given_away_rarely_and_all_at_once_is_no_breach() -> None:
    """A run that shows every record with probability delta keeps (0, delta): independent guesses would refute it."""
    assert one_run_epsilon(1000, 100, 100, delta=0.051) == 0
    assert one_run_epsilon(1000, 100, 100, delta=0.001) > 2
    assert one_run_p_value(1000, 100, 100, 0.0, 0.051) >= 0.051


def test_the_one_run_epsilon_is_monotone() -> None:
    by_correct = [one_run_epsilon(100, 100, v, 1e-5) for v in range(50, 101, 5)]
    assert by_correct == sorted(by_correct) and by_correct[0] == 0 and by_correct[-1] > 2
    assert one_run_epsilon(100, 100, 90, 1e-3) <= one_run_epsilon(100, 100, 90, 0.0)
    assert one_run_epsilon(100, 100, 90, 0.0, 0.99) < one_run_epsilon(100, 100, 90, 0.0, 0.9)


# ---------------------------------------------------------------- runs


def test_one_run_of_randomised_response() -> None:
    epsilon, canaries = 2.0, torch.eye(2000)
    noise = SeededSource(3)

    def train(included: torch.Tensor) -> torch.Tensor:
        bits = canaries @ included.sum(0)
        flip = noise.mask(len(bits), 1 / (1 + math.exp(epsilon)))
        return torch.where(flip, 1 - bits, bits)

    report = one_run(train, canaries, guesses=1000, noise=SeededSource(4))
    assert 0.8 * epsilon < report.lower <= epsilon and "1000 guesses" in str(report) and report.gaussian is None


def test_one_run_finds_most_of_what_a_gaussian_sum_gives_away() -> None:
    pipe, canaries = summed(2.0), torch.arange(100_000)
    sound = one_run(training(pipe, canaries, steps=1, noise_seed=1), canaries, delta=DELTA, noise=SeededSource(2))
    assert sound.guesses == 949 and 1.2 < sound.lower < sound.gaussian <= 2.0
    assert "its curve is Gaussian" in str(sound)


def test_half_the_noise_is_caught_by_one_run() -> None:
    pipe, canaries = known_bad.halved(summed(2.0, steps=5)), torch.arange(100_000)
    train = training(pipe, canaries, steps=5, noise_seed=1)
    assert one_run(train, canaries, delta=DELTA, noise=SeededSource(2)).lower > 2.0


def test_canaries_that_are_numbers_are_unit_vectors() -> None:
    numbers, rows = torch.arange(4), torch.eye(4, 5, dtype=torch.float64)
    pipe, included = summed(2.0, steps=2), [1, 3]
    short, long = (training(pipe, c, steps=2, noise_seed=1)(c[included]) for c in (numbers, rows))
    torch.testing.assert_close(short, long)
    records = LinearRecords(torch.tensor([0, 2]), 3)
    assert records.rows(torch.zeros(3)).dense().tolist() == [[1, 0, 0], [0, 0, 1]]
    assert records.data_loss(torch.tensor([1.0, 5.0, 2.0])) == 1.5 and records.data_loss(torch.ones(3), []) == 0


test_bad_input_is_refused = refuses(
    (lambda: one_run_p_value(10, 5, 6, 1.0), "correct"),
    (lambda: one_run_epsilon(10, 11, 5), "guesses"),
    (lambda: one_run_epsilon(10, 10, 5, gaussian=True), "delta"),
    (lambda: one_run(lambda included: torch.zeros(3), torch.eye(4)), "scores.shape"),
    (lambda: one_run(lambda included: torch.zeros(0), torch.eye(0)), "canaries.shape"),
    (lambda: training(summed(1.0), torch.ones(3), steps=1), "whole numbers"),
    (lambda: audit.orthogonal_canaries(6, 5), "count"),
)
