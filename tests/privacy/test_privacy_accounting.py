"""Accounting against published values, the library's traps, and what it refuses."""

from __future__ import annotations

import math
import subprocess
import sys
from typing import Any

import dp_accounting as dpa
import pytest
from scipy import integrate, stats

from isthmus.base.validate import InvalidInput
from isthmus.privacy import (
    Adjacency,
    Exact,
    FixedSize,
    FullBatch,
    Gaussian,
    Laplace,
    NoisyMax,
    Poisson,
    TopK,
    UnsupportedEvent,
    check,
    compose,
    delta,
    delta_of,
    epsilon,
    epsilon_of,
    joint,
    supports,
)

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
DELTA = 1e-5


def times(event: Any, count: int) -> Any:
    return dpa.SelfComposedDpEvent(event, count)


def subsets(z: float, n: int = 10000, b: int = 100, steps: int = 1000) -> Any:
    return times(FixedSize(b, n=n).event(Gaussian(z).event()), steps)


@pytest.mark.parametrize(
    ("z", "expected"),
    [(2, 1.87729), (4, 0.81577), (6, 0.51647), (8, 0.37539), (10, 0.29356), (14, 0.20291), (18, 0.15407)],
)
def test_poisson_gaussian_of_the_subspace_paper(z: float, expected: float) -> None:
    cost = epsilon(noise_multiplier=float(z), sampling_rate=0.025, steps=1200, delta=DELTA)
    assert cost == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("q", "z", "steps", "adjacency", "expected"),
    [
        (0.025, 4.0, 1200, REPLACE, 1.69737),
        (0.025, 2.0, 1200, REPLACE, 3.71761),
        (0.01, 1.0, 1000, ADD, 1.82824),
        (0.01, 1.0, 1000, REPLACE, 2.84345),
        (0.01, 1.41463, 1000, ADD, 1.0),
        (256 / 60000, 1.1, 14040, ADD, 2.37964),
    ],
)
def test_poisson_gaussian_oracles(q: float, z: float, steps: int, adjacency: Adjacency, expected: float) -> None:
    cost = epsilon(noise_multiplier=z, sampling_rate=q, steps=steps, delta=DELTA, adjacency=adjacency)
    assert cost == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("z", "steps", "at", "expected"),
    [
        (1.0, 1, 1e-5, 4.3771780957),
        (4.2246788893, 1, 1e-6, 1.0),
        (0.6002290722, 1, 1e-5, 8.0),
        (64.378981, 100, 1e-6, 0.635878),
    ],
)
def test_full_batch_gaussian_is_exact(z: float, steps: int, at: float, expected: float) -> None:
    assert epsilon(noise_multiplier=z, steps=steps, delta=at) == pytest.approx(expected, abs=1e-6)


def test_laplace_oracles() -> None:
    for multiplier, expected in ((1.0, 474.302), (100.0, 1.19570), (1000.0, 0.096897)):
        assert epsilon_of(times(Laplace(multiplier).event(), 1000), DELTA) == pytest.approx(expected, abs=1e-3)
    assert epsilon_of(times(Laplace(1.0).event(), 999), DELTA) == pytest.approx(473.880, abs=1e-3)
    sampled = times(Poisson(0.01).event(Laplace(5.0).event()), 1000)
    assert epsilon_of(sampled, DELTA) == pytest.approx(0.20086, abs=1e-3)


def test_without_replacement_oracles() -> None:
    """The oracles are stated with sigma / (2 C); events here hold sigma / C."""
    assert epsilon_of(subsets(2 * 2.0), DELTA, REPLACE) == pytest.approx(1.44530, abs=1e-3)
    assert epsilon_of(subsets(2 * 2.70757), DELTA, REPLACE) == pytest.approx(1.0, abs=1e-3)


def test_sampling_with_replacement_as_a_mixture() -> None:
    """Multiplicities of one record in 250 draws of 10000, add/remove by zeroing it out."""
    law = stats.binom(250, 1e-4)
    counts = [0.0, 1.0, 2.0, 3.0, 4.0]
    rest = 1 - sum(law.pmf(counts[1:]))
    for z, expected in ((2.0, 1.88737), (4.0, 0.81682), (10.0, 0.29364)):
        mixture = dpa.dp_event.MixtureOfGaussiansDpEvent(z, counts, [rest, *law.pmf(counts[1:])])
        assert epsilon_of(times(mixture, 1200), DELTA) == pytest.approx(expected, abs=1e-3)
        assert not supports(mixture, REPLACE)


def test_zcdp_oracle() -> None:
    event = compose([times(TopK(5, 0.1).event(), 100), times(Gaussian(50.0).event(), 100)])
    assert epsilon_of(event, DELTA) == pytest.approx(5.47678, abs=1e-3)


def test_renyi_oracles_of_poisson_sampling_with_a_selection() -> None:
    """With a negligible zCDP part the Renyi route is taken; its dense orders matter at z = 18 (0.17623 without)."""
    for q, z, steps, expected in (
        (0.025, 4.0, 1200, 0.89448),
        (0.025, 18.0, 1200, 0.17096),
        (0.01, 1.0, 1000, 2.10137),
        (256 / 60000, 1.1, 14040, 2.59436),
    ):
        event = compose([times(Poisson(q).event(Gaussian(z).event()), steps), NoisyMax(1e-5).event()])
        assert epsilon_of(event, DELTA) == pytest.approx(expected, abs=1e-3)


# ---------------------------------------------------------------- the library's replace-one


def library(accountant: Any) -> float:
    return accountant.compose(dpa.GaussianDpEvent(1.0)).get_epsilon(DELTA)


def test_the_library_means_two_things_by_replace_one() -> None:
    add, replace = dpa.NeighboringRelation.ADD_OR_REMOVE_ONE, dpa.NeighboringRelation.REPLACE_ONE
    assert library(dpa.pld.PLDAccountant(add)) == pytest.approx(4.377178, abs=1e-3)
    assert library(dpa.pld.PLDAccountant(replace)) == pytest.approx(9.997256, abs=1e-3)
    assert library(dpa.rdp.RdpAccountant(None, add)) == pytest.approx(4.728507, abs=1e-3)
    assert library(dpa.rdp.RdpAccountant(None, replace)) == pytest.approx(4.728507, abs=1e-3)


def test_replace_one_is_counted_once_on_every_route() -> None:
    z = 1.0
    exact = epsilon_of(Gaussian(z).event(), DELTA, REPLACE)
    assert exact == pytest.approx(epsilon_of(Gaussian(z / 2).event(), DELTA), abs=1e-9)
    pair = dpa.pld.PLDAccountant(dpa.NeighboringRelation.REPLACE_ONE).compose(dpa.GaussianDpEvent(z))
    assert exact == pytest.approx(pair.get_epsilon(DELTA), abs=1e-3)
    with_laplace = compose([Gaussian(z).event(), Laplace(1e6).event()])  # PLD with halved multipliers
    assert epsilon_of(with_laplace, DELTA, REPLACE) == pytest.approx(exact, abs=1e-3)
    with_selection = compose([Gaussian(z).event(), NoisyMax(1e-6).event()])  # Renyi with halved multipliers
    halved = dpa.rdp.RdpAccountant().compose(dpa.GaussianDpEvent(z / 2)).get_epsilon(DELTA)
    assert epsilon_of(with_selection, DELTA, REPLACE) == pytest.approx(halved, rel=1e-3)
    almost_all = Poisson(1 - 1e-9).event(Gaussian(z).event())  # the library's own pair
    assert epsilon_of(almost_all, DELTA, REPLACE) == pytest.approx(exact, abs=1e-3)


def test_replace_one_quadruples_zcdp_and_halves_laplace() -> None:
    assert epsilon_of(NoisyMax(0.1).event(), DELTA, REPLACE) == pytest.approx(epsilon_of(NoisyMax(0.2).event(), DELTA))
    assert epsilon_of(times(Laplace(4.0).event(), 9), DELTA, REPLACE) == pytest.approx(
        epsilon_of(times(Laplace(2.0).event(), 9), DELTA)
    )


def test_adjacency_is_the_sensitivity() -> None:
    assert (ADD.factor, REPLACE.factor) == (1, 2)
    assert (ADD.sensitivity(1.5), REPLACE.sensitivity(1.5)) == (1.5, 3.0)
    with pytest.raises(InvalidInput, match="bound"):
        ADD.sensitivity(math.inf)


# ---------------------------------------------------------------- identities


@pytest.mark.parametrize(("z", "eps"), [(0.7, 1.0), (1.0, 0.0), (2.0, 0.3), (5.0, 1.5)])
def test_exact_delta_is_the_hockey_stick_integral(z: float, eps: float) -> None:
    p, q = stats.norm(1, z), stats.norm(0, z)
    start = z**2 * eps + 0.5  # where the densities' ratio is e^eps
    slow = integrate.quad(lambda x: p.pdf(x) - math.exp(eps) * q.pdf(x), start, start + 40 * z, epsabs=1e-15)[0]
    assert delta(noise_multiplier=z, epsilon=eps) == pytest.approx(slow, rel=1e-6, abs=1e-13)


def test_delta_and_epsilon_are_inverse() -> None:
    event = times(Poisson(0.02).event(Gaussian(1.5).event()), 200)
    eps = epsilon_of(event, DELTA)
    assert delta_of(event, eps) == pytest.approx(DELTA, rel=1e-3)  # the distribution is discrete
    assert delta_of(event, 2 * eps) < DELTA < delta_of(event, eps / 2)


def test_joint_gaussians_merge_exactly() -> None:
    assert joint([Gaussian(1.0).event(), Gaussian(5.0).event()]).noise_multiplier == pytest.approx(0.98058, abs=1e-5)
    two = [Gaussian(6.0).event(), Gaussian(6.0).event()]
    assert joint(two).noise_multiplier == pytest.approx(6 / math.sqrt(2), rel=1e-12)
    assert epsilon_of(joint(two), DELTA) == pytest.approx(epsilon_of(compose(two), DELTA), rel=1e-12)
    assert isinstance(joint([Gaussian(1.0).event(), NoisyMax(1.0).event()]), dpa.ComposedDpEvent)


def test_a_release_without_noise_has_no_epsilon() -> None:
    for event in (
        Exact().event(),
        joint([Exact().event(), Gaussian(9.0).event()]),
        Poisson(0.1).event(Exact().event()),
    ):
        assert epsilon_of(event, DELTA) == math.inf and delta_of(event, 1.0) == 1.0


def test_the_accounting_library_is_loaded_only_when_it_is_needed() -> None:
    code = "import sys, isthmus.core.pipeline, isthmus.privacy; assert 'dp_accounting' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_sparse_search_over_orders_finds_the_dense_optimum() -> None:
    dense = [1 + x / 10 for x in range(1, 100)] + list(range(11, 1025))
    for z, eps0 in ((20.0, 0.01), (60.0, 0.003), (3.0, 0.2)):
        parts = [Gaussian(z).event(), NoisyMax(eps0).event()]
        slow = dpa.rdp.RdpAccountant(dense)
        for part in parts:
            slow.compose(part)
        assert epsilon_of(compose(parts), DELTA) == pytest.approx(slow.get_epsilon(DELTA), rel=1e-4)


def test_small_multipliers_and_many_rounds_stay_within_memory() -> None:
    assert epsilon(noise_multiplier=0.1, sampling_rate=0.01, steps=100, delta=DELTA) > 50
    assert epsilon(noise_multiplier=1000.0, sampling_rate=0.001, steps=10**5, delta=DELTA) < 1e-2


# ---------------------------------------------------------------- the support matrix

GAUSS, LAPLACE, ZCDP = Gaussian(2.0).event(), Laplace(2.0).event(), NoisyMax(1.0).event()
POISSON_G, POISSON_L = Poisson(0.1).event(GAUSS), Poisson(0.1).event(LAPLACE)
SUBSETS = FixedSize(10, n=100).event(GAUSS)


@pytest.mark.parametrize(
    ("event", "add", "replace"),
    [
        (GAUSS, True, True),
        (LAPLACE, True, True),
        (ZCDP, True, True),
        (POISSON_G, True, True),
        (POISSON_L, True, False),
        (SUBSETS, False, True),
        (dpa.SampledWithReplacementDpEvent(100, 10, GAUSS), False, False),
        (dpa.PoissonSampledDpEvent(0.1, ZCDP), False, False),
        (dpa.UnsupportedDpEvent(), False, False),
        (dpa.ComposedDpEvent([POISSON_G, LAPLACE]), True, False),
        (dpa.ComposedDpEvent([POISSON_G, ZCDP]), True, False),
        (dpa.ComposedDpEvent([POISSON_L, ZCDP]), False, False),
        (dpa.ComposedDpEvent([POISSON_G, SUBSETS]), False, False),
        (dpa.ComposedDpEvent([SUBSETS, ZCDP, LAPLACE]), False, True),
        (dpa.ZCDpEvent(0.1, 0.1), True, False),
    ],
)
def test_support_is_what_the_accountants_do(event: Any, add: bool, replace: bool) -> None:
    for adjacency, expected in ((ADD, add), (REPLACE, replace)):
        assert supports(event, adjacency) is expected
        if expected:
            assert 0 < epsilon_of(event, DELTA, adjacency) < math.inf
        else:
            with pytest.raises(UnsupportedEvent):
                epsilon_of(event, DELTA, adjacency)


@pytest.mark.parametrize(
    ("event", "adjacency", "words"),
    [
        (SUBSETS, ADD, r"SampledWithoutReplacement\(Gaussian\).*adding or removing"),
        (dpa.ComposedDpEvent([GAUSS, POISSON_L]), REPLACE, r"PoissonSampled\(Laplace\).*replacing"),
        (dpa.ComposedDpEvent([POISSON_L, ZCDP]), ADD, r"ZC.*together with PoissonSampled\(Laplace\)"),
        (dpa.SampledWithReplacementDpEvent(9, 2, GAUSS), ADD, r"SampledWithReplacement\(Gaussian\)"),
    ],
)
def test_refusals_name_the_part(event: Any, adjacency: Adjacency, words: str) -> None:
    with pytest.raises(UnsupportedEvent, match=words):
        check(event, adjacency)


def test_samplers_refuse_what_they_cannot_amplify() -> None:
    both = joint([GAUSS, ZCDP])
    for sampler in (Poisson(0.1), FixedSize(10, n=100)):
        with pytest.raises(UnsupportedEvent, match="ZC"):
            sampler.event(ZCDP)
        with pytest.raises(UnsupportedEvent, match="Composed"):
            sampler.event(both)
    with pytest.raises(UnsupportedEvent, match="Laplace"):
        FixedSize(10, n=100).event(LAPLACE)
    assert FullBatch().event(both) is both


def test_bad_input_is_refused_by_name() -> None:
    shared = {
        "noise_multiplier": (0.0, math.nan),
        "sampling_rate": (0.0, 1.1),
        "steps": (0, 1.5),
        "adjacency": ("add",),
    }
    for door, given, own in ((epsilon, "delta", (0.0, 1.0)), (delta, "epsilon", (-0.1,))):
        for name, values in {**shared, given: own}.items():
            for value in values:
                with pytest.raises(InvalidInput, match=name):
                    door(**{"noise_multiplier": 1.0, given: 0.1, name: value})
