"""Attacks refute broken pipelines and no sound one; their bounds are exact or proved by brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import beta, binom, norm

from isthmus import CountSketch, GaussianSketch, Identity, InvalidInput, Whole, algorithms, privacy
from isthmus.algorithms.suggest import Algorithm
from isthmus.audit import AuditReport, Pair, attack, clopper_pearson, epsilon_from_counts, known_bad, suite, worst_pair
from isthmus.audit.distinguish import scores
from isthmus.base.space import Space
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.penalties import NoPenalty
from isthmus.privacy import Adjacency, FixedSize, FullBatch, Gaussian, Laplace, NoisyMax, Poisson, SeededSource, TopK
from isthmus.privacy.sampling import rate_of

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
DELTA = 1e-5
JL = GaussianSketch(5, scaling="jl")


def private(mechanism, sampler=None, encode=None, ord=2, adjacency=ADD, epsilon=1.0) -> Pipeline:
    release = Release("gradient", Identity() if encode is None else encode, privacy.Clip(1.0, ord), mechanism)
    stage = Stage(FullBatch() if sampler is None else sampler, [release])
    return Pipeline([stage], lambda t: 0.1, promise=Promise(epsilon, DELTA, adjacency))


def gaussian(sampler=None, encode=None, adjacency=ADD) -> Pipeline:
    z = privacy.noise_multiplier(epsilon=1.0, delta=DELTA, sampling_rate=rate_of(sampler), adjacency=adjacency)
    return private(Gaussian(z), sampler, encode, adjacency=adjacency)


def laplace(sampler=None) -> Pipeline:
    z = privacy.noise_multiplier(epsilon=1.0, delta=DELTA, sampling_rate=rate_of(sampler), mechanism="laplace")
    return private(Laplace(z), sampler, JL, ord=1)


def audited(pipe: Pipeline, draws: int, d: int = 12, n: int = 20, seed: int = 5) -> AuditReport:
    return attack(pipe, worst_pair(pipe, d, n), draws, noise=SeededSource(seed))


# ---------------------------------------------------------------- sound and broken pipelines

SOUND = {
    "gaussian": (lambda: gaussian(), 100_000, 0.3),
    "gaussian, replace-one": (lambda: gaussian(encode=JL, adjacency=REPLACE), 100_000, 0.3),
    "count-sketch": (lambda: gaussian(encode=CountSketch(5)), 100_000, 0.3),
    "poisson": (lambda: gaussian(Poisson(0.1)), 100_000, 0.0),
    "laplace": (lambda: laplace(), 100_000, 0.85),
    "laplace, poisson": (lambda: laplace(Poisson(0.2)), 100_000, 0.6),
    "noisy max": (lambda: private(NoisyMax(1.0), ord=math.inf), 8_000, 0.2),
    "noisy max, unsigned": (lambda: private(NoisyMax(1.0, signed=False), ord=math.inf), 8_000, 0.2),
    "top-k": (lambda: private(TopK(2, 0.5), ord=math.inf), 8_000, 0.1),
}


@pytest.mark.parametrize("name", SOUND)
def test_sound_pipelines_are_not_refuted(name: str) -> None:
    build, draws, informative = SOUND[name]
    report = audited(build(), draws)
    assert report.verdict == "consistent" and informative <= report.lower <= 1
    assert report.ratio <= 1 + 1e-9


def test_fixed_size_batches_are_part_of_what_is_attacked() -> None:
    sampler = FixedSize(5, 20)
    z = privacy.calibrate(lambda s: sampler.event(Gaussian(s).event()), 1.0, DELTA, REPLACE)
    pipe = private(Gaussian(z), sampler, adjacency=REPLACE)
    report = audited(pipe, 100_000)
    assert report.verdict == "consistent" and report.gaussian is None


@pytest.mark.parametrize("name", ["gaussian", "laplace", "noisy max"])
def test_half_the_noise_is_noticed(name: str) -> None:
    pipe = known_bad.halved(SOUND[name][0]())
    report = audited(pipe, {"gaussian": 200_000, "laplace": 50_000, "noisy max": 12_000}[name])
    assert report.verdict == "violation" and report.lower > 1


def test_the_poisson_claim_fails_without_the_sampling() -> None:
    pipe = gaussian(Poisson(0.1))
    stage = replace(pipe.stages[0], sampler=FullBatch())
    assert audited(replace(pipe, stages=[stage]), 50_000).verdict == "violation"


def test_the_published_map_is_refuted_for_a_known_map() -> None:
    pipe = known_bad.published_privsgd(1000, 50)
    report = attack(pipe, worst_pair(pipe, 2000, 1000), 20_000, noise=SeededSource(1))
    assert report.verdict == "violation" and report.lower > 5 and report.ratio > 900


def test_two_releases_are_attacked_jointly() -> None:
    z = privacy.noise_multiplier(epsilon=1.0, delta=DELTA)
    both = [Release(name, clip=privacy.Clip(c), mechanism=Gaussian(z)) for name, c in (("in", 1.0), ("out", 2.0))]
    pipe = Pipeline([Stage(FullBatch(), both)], lambda t: 0.1, promise=Promise(1.0, DELTA))
    pipeline = Pipeline([Stage(FullBatch(), both[:1])], lambda t: 0.1, promise=Promise(1.0, DELTA))
    pair = worst_pair(pipe, 6, 10)
    joint, alone = (attack(p, pair, 100_000, noise=SeededSource(2)).gaussian for p in (pipe, pipeline))
    assert joint > 1.2 * alone and alone <= 1  # two full prices: sqrt(2) in mu


def test_the_gaussian_curve_finds_the_scale_of_the_noise() -> None:
    # two-sided: the stated noise is not refuted, 2/3 of it is
    pipe = gaussian(encode=JL)
    z = pipe.stages[0].releases[0].mechanism.multiplier
    right = audited(pipe, 100_000).gaussian
    wrong = audited(private(Gaussian(z / 1.5), encode=JL), 100_000).gaussian
    assert 0.7 < right <= 1 < wrong


def test_scores_are_the_log_likelihood_ratio() -> None:
    pipe = private(Gaussian(2.0))
    pair = Pair("one", torch.zeros(3, 2).double(), torch.tensor([1.0, 0.0]).double(), None)
    left, right = scores(pipe, pair, 40_000, SeededSource(0))
    # N(+-mu^2/2, mu^2) with mu = 1/2; five standard errors
    assert left.mean() == pytest.approx(0.125, abs=0.0125) and right.mean() == pytest.approx(-0.125, abs=0.0125)
    assert left.std() == pytest.approx(0.5, abs=0.01)
    assert np.exp(-left).mean() == pytest.approx(1, abs=0.02)  # E_P[dQ/dP] = 1


def test_a_sampled_record_is_there_as_often_as_stated() -> None:
    pipe = private(Gaussian(0.01), Poisson(0.3), epsilon=50.0)
    pair = Pair("one", torch.zeros(3, 2).double(), torch.tensor([1.0, 0.0]).double(), None)
    left, right = scores(pipe, pair, 10_000, SeededSource(0))
    assert (left > 0).mean() == pytest.approx(0.3, abs=0.025) and (right > 0).mean() == 0


def test_a_record_of_a_fixed_size_batch_is_there_as_often_as_stated() -> None:
    pipe = private(Gaussian(0.01), FixedSize(5, 20), adjacency=REPLACE, epsilon=1000.0)
    record = torch.tensor([1.0, 0.0]).double()
    left, right = scores(pipe, Pair("one", torch.zeros(19, 2).double(), record, -record), 10_000, SeededSource(0))
    assert (left > 1).mean() == pytest.approx(0.25, abs=0.025) and (left < -1).mean() == 0
    assert (right < -1).mean() == pytest.approx(0.25, abs=0.025) and (right > 1).mean() == 0


def test_equal_datasets_cannot_be_told_apart() -> None:
    nothing = Pair("nothing", torch.ones(3, 2).double(), torch.zeros(2).double(), None)
    assert attack(gaussian(), nothing, 1000, noise=SeededSource(0)).lower == 0


def test_reports_read_well() -> None:
    report = audited(gaussian(), 1000)
    assert "claimed 1" in str(report) and report.row()["verdict"] == "consistent"
    assert audited(gaussian(), 1000) == report  # a seeded source repeats itself
    assert attack(gaussian(), worst_pair(gaussian(), 3, 4), 200).draws == 200  # fresh noise by default


def test_bad_input_is_refused() -> None:
    pair = worst_pair(gaussian(), 3, 4)
    with pytest.raises(InvalidInput, match="draws"):
        attack(gaussian(), pair, 10)
    with pytest.raises(InvalidInput, match="confidence"):
        attack(gaussian(), pair, confidence=1.0)
    with pytest.raises(InvalidInput, match="replacing one record"):
        attack(gaussian(adjacency=REPLACE), pair, 1000)
    with pytest.raises(InvalidInput, match="hits"):
        clopper_pearson(11, 10, 0.9)


# ---------------------------------------------------------------- bounds from counts


@pytest.mark.parametrize("hits", [0, 1, 7, 99, 100])
def test_clopper_pearson_against_the_beta_quantiles_and_its_coverage(hits: int) -> None:
    low, high = clopper_pearson(hits, 100, 0.975)
    assert low == pytest.approx(0 if hits == 0 else beta.ppf(0.025, hits, 101 - hits), abs=1e-12)
    assert high == pytest.approx(1 if hits == 100 else beta.ppf(0.975, hits + 1, 100 - hits), abs=1e-12)
    if 0 < hits < 100:  # the defining tails
        assert binom.sf(hits - 1, 100, low) == pytest.approx(0.025) and binom.cdf(hits, 100, high) == pytest.approx(
            0.025
        )


def test_the_epsilon_of_counts_is_rarely_above_the_true_one() -> None:
    # a threshold test on N(mu, 1) against N(0, 1), whose true log ratio is known
    rng, threshold, mu = np.random.default_rng(3), 1.0, 0.5
    tpr, fpr = norm.sf(threshold - mu), norm.sf(threshold)
    hits, alarms = rng.binomial(2000, tpr, 4000), rng.binomial(2000, fpr, 4000)
    bounds = epsilon_from_counts(hits, alarms, 2000, 0.0, 0.9)
    assert (bounds > math.log(tpr / fpr)).mean() < 0.1
    assert np.median(bounds) > 0.7 * math.log(tpr / fpr)
    assert epsilon_from_counts(10, 900, 1000, 0.0, 0.9) == 0


def test_every_private_algorithm_is_attacked() -> None:
    """As `isthmus audit` says: a case of each, by its name and what may follow it ("priv_sgd, replace-one")."""
    made = {name: part for name, part in vars(algorithms).items() if isinstance(part, Algorithm)}
    private = {name for name, part in made.items() if part.private and part is not algorithms.dp_comp_gd}
    assert len(private) >= 13
    assert private == {name.split(",")[0] for name in suite._recipe_pipelines()}


def test_what_is_audited_as_published_is_what_the_recipe_runs() -> None:
    case = suite._broken_pipelines()["PRIVSGD as published"]
    recipe = algorithms.priv_sgd(
        epsilon=suite.EPSILON, delta=suite.DELTA, m=50, clip=1.0, step=0.1, n="exact", as_published=True
    )
    own = recipe.bind(Binding(Whole(), NoPenalty(), Space.flat(case.d), case.n, 1, None))
    (audited,), (run,) = case.pipe.stages, own.stages
    assert audited.sampler == run.sampler and audited.releases == run.releases
    assert own.promise is not None and own.promise.epsilon == math.inf
    assert case.pipe.promise == replace(own.promise, epsilon=suite.EPSILON)  # what the paper claims is attacked
