"""Accounting against published values, the library's traps, its corners, what it refuses, and calibration."""

import math
from typing import Any

import dp_accounting as dpa
import pytest
from scipy import integrate, stats

from isthmus import InvalidInput, privacy
from isthmus.privacy import Gaussian, accounting, compose, delta_of, epsilon, epsilon_of, joint, noise_multiplier
from isthmus.privacy.accounting import _NO_NOISE, _convert, _cost, _key, _route_of, leaves_of, noiseless, solve
from isthmus.privacy.event_json import SkellamDpEvent

ADD, REPLACE = privacy.Adjacency.ADD_REMOVE, privacy.Adjacency.REPLACE_ONE
DELTA = 1e-5


def times(event: Any, count: int) -> Any:
    return dpa.SelfComposedDpEvent(event, count)


def subsets(z: float, n: int = 10000, b: int = 100, steps: int = 1000) -> Any:
    return times(privacy.FixedSize(b, n=n).event(Gaussian(z).event()), steps)


SUBSPACE = {2: 1.87729, 4: 0.81577, 6: 0.51647, 8: 0.37539, 10: 0.29356, 14: 0.20291, 18: 0.15407}
SAMPLED = [
    *((0.025, float(z), 1200, ADD, cost) for z, cost in SUBSPACE.items()),  # as its paper prints them
    (0.025, 4.0, 1200, REPLACE, 1.69737),
    (0.025, 2.0, 1200, REPLACE, 3.71761),
    (0.01, 1.0, 1000, ADD, 1.82824),
    (0.01, 1.0, 1000, REPLACE, 2.84345),
    (0.01, 1.41463, 1000, ADD, 1.0),
    (256 / 60000, 1.1, 14040, ADD, 2.37964),
]


@pytest.mark.parametrize(("q", "z", "steps", "adjacency", "expected"), SAMPLED)
def test_poisson_gaussian_oracles(
    q: float, z: float, steps: int, adjacency: privacy.Adjacency, expected: float
) -> None:
    cost = epsilon(noise_multiplier=z, sampling_rate=q, steps=steps, delta=DELTA, adjacency=adjacency)
    assert cost == pytest.approx(expected, abs=1e-3)


EXACT = [
    (1.0, 1, 1e-5, 4.3771780957),
    (4.2246788893, 1, 1e-6, 1.0),
    (0.6002290722, 1, 1e-5, 8.0),
    (64.378981, 100, 1e-6, 0.635878),
]


@pytest.mark.parametrize(("z", "steps", "at", "expected"), EXACT)
def test_full_batch_gaussian_is_exact(z: float, steps: int, at: float, expected: float) -> None:
    assert epsilon(noise_multiplier=z, steps=steps, delta=at) == pytest.approx(expected, abs=1e-6)


def test_laplace_oracles() -> None:
    for multiplier, expected in ((1.0, 474.302), (100.0, 1.19570), (1000.0, 0.096897)):
        assert epsilon_of(times(privacy.Laplace(multiplier).event(), 1000), DELTA) == pytest.approx(expected, abs=1e-3)
    assert epsilon_of(times(privacy.Laplace(1.0).event(), 999), DELTA) == pytest.approx(473.880, abs=1e-3)
    sampled = times(privacy.Poisson(0.01).event(privacy.Laplace(5.0).event()), 1000)
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
        assert not privacy.supports(mixture, REPLACE)


def test_zcdp_oracle() -> None:
    event = compose([times(privacy.TopK(5, 0.1).event(), 100), times(Gaussian(50.0).event(), 100)])
    assert epsilon_of(event, DELTA) == pytest.approx(5.47678, abs=1e-3)


def test_renyi_oracles_of_poisson_sampling_with_a_selection() -> None:
    """With a negligible zCDP part the Renyi route is taken; its dense orders matter at z = 18 (0.17623 without)."""
    for q, z, steps, expected in (
        (0.025, 4.0, 1200, 0.89448),
        (0.025, 18.0, 1200, 0.17096),
        (0.01, 1.0, 1000, 2.10137),
        (256 / 60000, 1.1, 14040, 2.59436),
    ):
        event = compose([times(privacy.Poisson(q).event(Gaussian(z).event()), steps), privacy.NoisyMax(1e-5).event()])
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
    with_laplace = compose([Gaussian(z).event(), privacy.Laplace(1e6).event()])  # PLD with halved multipliers
    assert epsilon_of(with_laplace, DELTA, REPLACE) == pytest.approx(exact, abs=1e-3)
    with_selection = compose([Gaussian(z).event(), privacy.NoisyMax(1e-6).event()])  # Renyi with halved multipliers
    halved = dpa.rdp.RdpAccountant().compose(dpa.GaussianDpEvent(z / 2)).get_epsilon(DELTA)
    assert epsilon_of(with_selection, DELTA, REPLACE) == pytest.approx(halved, rel=1e-3)
    almost_all = privacy.Poisson(1 - 1e-9).event(Gaussian(z).event())  # the library's own pair
    assert epsilon_of(almost_all, DELTA, REPLACE) == pytest.approx(exact, abs=1e-3)


def test_replace_one_quadruples_zcdp_and_halves_laplace() -> None:
    assert epsilon_of(privacy.NoisyMax(0.1).event(), DELTA, REPLACE) == pytest.approx(
        epsilon_of(privacy.NoisyMax(0.2).event(), DELTA)
    )
    assert epsilon_of(times(privacy.Laplace(4.0).event(), 9), DELTA, REPLACE) == pytest.approx(
        epsilon_of(times(privacy.Laplace(2.0).event(), 9), DELTA)
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
    assert privacy.delta(noise_multiplier=z, epsilon=eps) == pytest.approx(slow, rel=1e-6, abs=1e-13)


def test_delta_and_epsilon_are_inverse() -> None:
    event = times(privacy.Poisson(0.02).event(Gaussian(1.5).event()), 200)
    eps = epsilon_of(event, DELTA)
    assert delta_of(event, eps) == pytest.approx(DELTA, rel=1e-3)  # the distribution is discrete
    assert delta_of(event, 2 * eps) < DELTA < delta_of(event, eps / 2)


def test_joint_gaussians_merge_exactly() -> None:
    assert joint([Gaussian(1.0).event(), Gaussian(5.0).event()]).noise_multiplier == pytest.approx(0.98058, abs=1e-5)
    two = [Gaussian(6.0).event(), Gaussian(6.0).event()]
    assert joint(two).noise_multiplier == pytest.approx(6 / math.sqrt(2), rel=1e-12)
    assert epsilon_of(joint(two), DELTA) == pytest.approx(epsilon_of(compose(two), DELTA), rel=1e-12)
    assert isinstance(joint([Gaussian(1.0).event(), privacy.NoisyMax(1.0).event()]), dpa.ComposedDpEvent)


def test_a_release_without_noise_has_no_epsilon() -> None:
    for event in (
        privacy.Exact().event(),
        joint([privacy.Exact().event(), Gaussian(9.0).event()]),
        privacy.Poisson(0.1).event(privacy.Exact().event()),
    ):
        assert epsilon_of(event, DELTA) == math.inf and delta_of(event, 1.0) == 1.0


def test_the_sparse_search_over_orders_finds_the_dense_optimum() -> None:
    dense = [1 + x / 10 for x in range(1, 100)] + list(range(11, 1025))
    for z, eps0 in ((20.0, 0.01), (60.0, 0.003), (3.0, 0.2)):
        parts = [Gaussian(z).event(), privacy.NoisyMax(eps0).event()]
        slow = dpa.rdp.RdpAccountant(dense)
        for part in parts:
            slow.compose(part)
        assert epsilon_of(compose(parts), DELTA) == pytest.approx(slow.get_epsilon(DELTA), rel=1e-4)


def test_small_multipliers_and_many_rounds_stay_within_memory() -> None:
    assert epsilon(noise_multiplier=0.1, sampling_rate=0.01, steps=100, delta=DELTA) > 50
    assert epsilon(noise_multiplier=1000.0, sampling_rate=0.001, steps=10**5, delta=DELTA) < 1e-2


# ---------------------------------------------------------------- the support matrix

GAUSS, LAPLACE, ZCDP = Gaussian(2.0).event(), privacy.Laplace(2.0).event(), privacy.NoisyMax(1.0).event()
POISSON_G, POISSON_L = privacy.Poisson(0.1).event(GAUSS), privacy.Poisson(0.1).event(LAPLACE)
SUBSETS = privacy.FixedSize(10, n=100).event(GAUSS)


SUPPORTED = [
    (dpa.PoissonSampledDpEvent(0.1, ZCDP), False, False),
    (dpa.UnsupportedDpEvent(), False, False),
    (dpa.ComposedDpEvent([POISSON_G, LAPLACE]), True, False),
    (dpa.ComposedDpEvent([POISSON_G, ZCDP]), True, False),
    (dpa.ComposedDpEvent([POISSON_L, ZCDP]), False, False),
    (dpa.ComposedDpEvent([POISSON_G, SUBSETS]), False, False),
    (dpa.ComposedDpEvent([SUBSETS, ZCDP, LAPLACE]), False, True),
]


@pytest.mark.parametrize(("event", "add", "replace"), SUPPORTED)
def test_support_is_what_the_accountants_do(event: Any, add: bool, replace: bool) -> None:
    for adjacency, expected in ((ADD, add), (REPLACE, replace)):
        assert privacy.supports(event, adjacency) is expected
        if expected:
            assert 0 < epsilon_of(event, DELTA, adjacency) < math.inf
        else:
            with pytest.raises(privacy.UnsupportedEvent):
                epsilon_of(event, DELTA, adjacency)


REFUSED = [
    (SUBSETS, ADD, r"SampledWithoutReplacement\(Gaussian\).*adding or removing"),
    (dpa.ComposedDpEvent([GAUSS, POISSON_L]), REPLACE, r"PoissonSampled\(Laplace\).*replacing"),
    (dpa.ComposedDpEvent([POISSON_L, ZCDP]), ADD, r"ZC.*together with PoissonSampled\(Laplace\)"),
    (dpa.SampledWithReplacementDpEvent(9, 2, GAUSS), ADD, r"SampledWithReplacement\(Gaussian\)"),
]


@pytest.mark.parametrize(("event", "adjacency", "words"), REFUSED)
def test_refusals_name_the_part(event: Any, adjacency: privacy.Adjacency, words: str) -> None:
    with pytest.raises(privacy.UnsupportedEvent, match=words):
        privacy.check(event, adjacency)


def test_samplers_refuse_what_they_cannot_amplify() -> None:
    both = joint([GAUSS, ZCDP])
    for sampler in (privacy.Poisson(0.1), privacy.FixedSize(10, n=100)):
        with pytest.raises(privacy.UnsupportedEvent, match="ZC"):
            sampler.event(ZCDP)
        with pytest.raises(privacy.UnsupportedEvent, match="Composed"):
            sampler.event(both)
    with pytest.raises(privacy.UnsupportedEvent, match="Laplace"):
        privacy.FixedSize(10, n=100).event(LAPLACE)
    assert privacy.FullBatch().event(both) is both


def test_bad_input_is_refused_by_name() -> None:
    shared = {
        "noise_multiplier": (0.0, math.nan),
        "sampling_rate": (0.0, 1.1),
        "steps": (0, 1.5),
        "adjacency": ("add",),
    }
    for door, given, own in ((epsilon, "delta", (0.0, 1.0)), (privacy.delta, "epsilon", (-0.1,))):
        for name, values in {**shared, given: own}.items():
            for value in values:
                with pytest.raises(InvalidInput, match=name):
                    door(**{"noise_multiplier": 1.0, given: 0.1, name: value})


# ---------------------------------------------------------------- accounting at its corners: what every route makes o

THREE, HALF = dpa.GaussianDpEvent(3.0), dpa.GaussianDpEvent(1.5)
LAPLACE_THREE, ZC = dpa.LaplaceDpEvent(3.0), dpa.ZCDpEvent(0.25, 0.0)
SUBSET = dpa.SampledWithoutReplacementDpEvent(100, 10, THREE)
MIXTURE = dpa.dp_event.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0), (0.9, 0.1))


def some(event: Any) -> Any:
    return dpa.PoissonSampledDpEvent(0.1, event)


READINGS = [
    (THREE, ADD, THREE, None, THREE),
    (THREE, REPLACE, HALF, THREE, HALF),
    (LAPLACE_THREE, ADD, LAPLACE_THREE, None, LAPLACE_THREE),
    (LAPLACE_THREE, REPLACE, dpa.LaplaceDpEvent(1.5), None, dpa.LaplaceDpEvent(1.5)),
    (some(THREE), ADD, some(THREE), None, some(THREE)),
    (some(THREE), REPLACE, None, some(THREE), None),
    (some(LAPLACE_THREE), ADD, some(LAPLACE_THREE), None, None),
    (some(LAPLACE_THREE), REPLACE, None, None, None),
    (SUBSET, ADD, None, None, None),
    (SUBSET, REPLACE, None, None, dpa.SampledWithoutReplacementDpEvent(100, 10, HALF)),
    (dpa.SampledWithoutReplacementDpEvent(100, 10, LAPLACE_THREE), REPLACE, None, None, None),
    (dpa.SampledWithReplacementDpEvent(100, 10, THREE), REPLACE, None, None, None),
    (ZC, ADD, None, None, ZC),
    (ZC, REPLACE, None, None, dpa.ZCDpEvent(1.0, 0.0)),
    (dpa.ZCDpEvent(0.25, 0.1), ADD, None, None, dpa.ZCDpEvent(0.25, 0.1)),
    (dpa.ZCDpEvent(0.25, 0.1), REPLACE, None, None, None),
    (MIXTURE, ADD, MIXTURE, None, None),
    (MIXTURE, REPLACE, None, None, None),
    (SkellamDpEvent(3.0), ADD, THREE, None, THREE),
    (SkellamDpEvent(3.0), REPLACE, HALF, THREE, HALF),
    (some(SkellamDpEvent(3.0)), ADD, some(THREE), None, some(THREE)),
    (some(SkellamDpEvent(3.0)), REPLACE, None, None, None),
]


@pytest.mark.parametrize(("leaf", "adjacency", "pld", "pair", "rdp"), READINGS)
def test_every_route_reads_an_event_like_this(
    leaf: Any, adjacency: privacy.Adjacency, pld: Any, pair: Any, rdp: Any
) -> None:
    """None where the route's accountant must not be asked: it would answer for something else."""
    table = {route: _convert(leaf, adjacency, route) for route in ("pld", "pair", "rdp")}
    assert table == {"pld": pld, "pair": pair, "rdp": rdp}
    known = [route for route, event in table.items() if event is not None]
    assert privacy.supports(leaf, adjacency) is bool(known)
    if known:
        assert _route_of({leaf: 2}, adjacency) == known[0] and 0 < epsilon_of(leaf, DELTA, adjacency) < math.inf
        return
    with pytest.raises(privacy.UnsupportedEvent):
        epsilon_of(leaf, DELTA, adjacency)


def test_parts_of_nested_compositions_are_counted() -> None:
    inner = dpa.ComposedDpEvent([THREE, dpa.SelfComposedDpEvent(LAPLACE_THREE, 2), dpa.NoOpDpEvent()])
    nested = dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([inner, THREE]), 3)
    assert leaves_of(nested) == {THREE: 6, LAPLACE_THREE: 6}
    assert leaves_of(dpa.PoissonSampledDpEvent(1.0, nested), 2) == {THREE: 12, LAPLACE_THREE: 12}
    assert leaves_of(dpa.SelfComposedDpEvent(THREE, 0)) == {} == leaves_of(THREE, 0)
    lists = dpa.dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0], [0.9, 0.1])
    assert leaves_of(compose([lists, MIXTURE])) == {MIXTURE: 2}
    assert compose([THREE]) == THREE and compose([]) == dpa.NoOpDpEvent() == joint([])
    assert joint([THREE, dpa.NonPrivateDpEvent()]) == dpa.NonPrivateDpEvent()
    merged = joint([dpa.SelfComposedDpEvent(THREE, 4), ZC, ZC])
    assert merged.events == [HALF, dpa.SelfComposedDpEvent(ZC, 2)]
    assert joint([ZC]) == ZC and joint([THREE, dpa.GaussianDpEvent(0.0)]) == dpa.GaussianDpEvent(0.0)


@pytest.mark.parametrize("wrap", [lambda event: event, some])
def test_hardly_any_noise_is_none(wrap: Any) -> None:
    for kind in (dpa.GaussianDpEvent, dpa.LaplaceDpEvent):
        assert noiseless(wrap(kind(_NO_NOISE * 0.999))) and not noiseless(wrap(kind(_NO_NOISE)))
        silent = compose([wrap(kind(_NO_NOISE / 2)), THREE])
        assert epsilon_of(silent, DELTA) == math.inf and delta_of(silent, 5.0) == 1.0
    assert _NO_NOISE == 1e-9 and not noiseless(ZC)
    assert accounting._exact(0.0, "delta", 1.0) == 1.0
    assert accounting._exact(math.inf, "delta", 0.0) == accounting._exact(math.inf, "epsilon", DELTA) == 0.0


BEYOND = [
    compose([dpa.LaplaceDpEvent(1e-8), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1e-8), 10**200)]),
    some(dpa.LaplaceDpEvent(_NO_NOISE / 2)),
]


@pytest.mark.parametrize("event", BEYOND)
def test_a_cost_that_no_number_holds_is_infinite(event: Any) -> None:
    assert epsilon_of(event, DELTA) == math.inf and delta_of(event, 1.0) == 1.0


def test_pure_epsilons_add_up_where_no_distribution_holds_the_loss() -> None:
    """log(1 + q (exp(e) - 1)) of a sampled round, at every delta."""
    event = dpa.SelfComposedDpEvent(some(dpa.LaplaceDpEvent(1e-9)), 3)
    assert epsilon_of(event, DELTA) == pytest.approx(3 * (1e9 + math.log(0.1)), rel=1e-12)
    assert delta_of(event, 3e9) == 0.0 and delta_of(event, 1.0) == 1.0
    small = dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(1.0), 2)
    assert epsilon_of(small, 1e-300, "replace-one") == pytest.approx(4.0, rel=1e-12) and delta_of(small, 2.1) == 0.0


@pytest.mark.parametrize("leaf", [LAPLACE_THREE, some(THREE), some(LAPLACE_THREE), MIXTURE])
@pytest.mark.parametrize("rounds", [21, 30, 97])
def test_many_rounds_cost_no_less_than_they_do(leaf: Any, rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rounds, and Renyi orders where there are some, are bounds that are not far from the true cost."""
    event = dpa.SelfComposedDpEvent(leaf, rounds)
    eps, odds = epsilon_of(event, DELTA), delta_of(event, 1.0)
    accounting._cost.cache_clear()
    monkeypatch.setattr(accounting, "_MOST_ROUNDS", 20)
    blocks = -(-rounds // 10)
    assert eps <= epsilon_of(event, DELTA) <= blocks * epsilon_of(dpa.SelfComposedDpEvent(leaf, 10), DELTA / blocks)
    assert odds <= delta_of(event, 1.0) <= min(1.0, blocks * delta_of(dpa.SelfComposedDpEvent(leaf, 10), 1 / blocks))
    accounting._cost.cache_clear()


@pytest.mark.parametrize("leaf", [LAPLACE_THREE, some(THREE), some(LAPLACE_THREE), MIXTURE])
def test_rounds_without_number_have_a_cost(leaf: Any) -> None:
    for rounds in (10**12, 10**300):
        assert epsilon_of(dpa.SelfComposedDpEvent(leaf, rounds), DELTA) > 1e6


def test_rounding_hides_no_cost() -> None:
    """10^20 rounds of sampled noise are Gaussian noise of q sqrt(10^20) / z = 1, whatever the library's last digits."""
    many = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1e8)), 10**20)
    assert epsilon_of(many, DELTA) >= epsilon_of(dpa.GaussianDpEvent(1.0), DELTA)
    for z in (1e3, 1e5, 1e6, 1e7, 1e9):  # 100 z^2 rounds of a tenth of all records: noise of q sqrt(100 z^2) / z = 1
        rounds = dpa.SelfComposedDpEvent(
            dpa.SampledWithoutReplacementDpEvent(100, 10, dpa.GaussianDpEvent(z)), int(1e2 * z**2)
        )
        assert epsilon_of(rounds, DELTA, REPLACE) >= epsilon_of(dpa.GaussianDpEvent(1.0), DELTA, REPLACE)
    most = dpa.SelfComposedDpEvent(dpa.SampledWithoutReplacementDpEvent(100, 10, dpa.GaussianDpEvent(5e5)), 10**4)
    assert epsilon_of(most, DELTA, REPLACE) < 0.05


def test_front_doors_mean_one_release_of_all_records() -> None:
    assert epsilon(noise_multiplier=1.0, delta=DELTA) == epsilon_of(Gaussian(1.0).event(), DELTA)
    assert privacy.delta(noise_multiplier=1.0, epsilon=1.0) == delta_of(Gaussian(1.0).event(), 1.0)
    for eps in (0.01, 0.3, 1.0, 7.0, 40.0):
        for steps in (1, 9):
            z = noise_multiplier(epsilon=eps, delta=DELTA, steps=steps, adjacency=REPLACE)
            spent = epsilon(noise_multiplier=z, delta=DELTA, steps=steps, adjacency=REPLACE)
            assert eps * (1 - 1e-9) < spent <= eps


@pytest.mark.parametrize(
    "event",
    [some(THREE), compose([THREE, LAPLACE_THREE]), compose([THREE, privacy.NoisyMax(0.1).event()])],
    ids=["sampled", "laplace", "selection"],
)
def test_haste_only_costs_more(event: Any) -> None:
    """What a search starts from is never below what the careful accountant says, and not far above it."""
    careful, quick, quickest = (_cost(_key(event), ADD, "epsilon", DELTA, haste) for haste in (0, 1, 2))
    assert careful <= quick * (1 + 1e-9) <= careful * 1.02
    assert careful <= quickest * (1 + 1e-9) <= careful * 1.5
    assert delta_of(event, careful) == pytest.approx(DELTA, rel=0.02)  # distributions are discrete, orders few


def test_a_search_across_a_cliff_ends_on_its_cheap_side() -> None:
    for guess in (0.01, 0.99, 30.0):
        scale, _ = solve(lambda s: 2.0 if s < 1 else 0.5, 1.0, guess)
        assert 1.0 <= scale <= 1.0 + 1e-9


def test_a_search_stops_within_its_tolerance_and_not_before() -> None:
    for guess, least in ((1 + 1.5e-5, 1 + 1.4e-5), (1 + 3e-5, 1.0)):
        assert least <= solve(lambda s: 1 / s, 1.0, guess)[0] <= 1 + 2e-5


@pytest.mark.parametrize("power", [0.1, 1.0, 4.0])
def test_a_search_ends_just_below_its_target(power: float) -> None:
    for guess in (1e-4, 1.0, 1e4):
        calls: list[float] = []

        def cost(s: float, calls: list[float] = calls) -> float:
            calls.append(s)
            return s**-power

        scale, slope = solve(cost, 0.3, guess)
        assert 0.3 * (1 - 2e-5) <= scale**-power <= 0.3 and slope == pytest.approx(-power, rel=0.05)
        assert len(calls) <= 4 + abs(math.log(guess) - math.log(scale)) / 2 + 2


def test_quick_accountants_with_a_floor_are_passed_over() -> None:
    """Renyi orders end at 8192, so an epsilon of 5e-4 is beyond the first search; the tight one reaches it."""
    b = noise_multiplier(epsilon=5e-4, delta=DELTA, mechanism="laplace")
    assert 0.9999 * 5e-4 <= epsilon_of(privacy.Laplace(b).event(), DELTA) <= 5e-4
    with pytest.raises(InvalidInput, match="no amount of noise"):
        privacy.calibrate(lambda s: privacy.Laplace(1.0).event(), 0.1, DELTA)


def test_parts_take_the_route_that_all_of_them_have() -> None:
    assert _route_of({THREE: 1, ZC: 1}, ADD) == "rdp" and _route_of({THREE: 1, some(THREE): 1}, REPLACE) == "pair"
    sampled = privacy.FixedSize(10, n=100).event(THREE)
    assert _route_of({sampled: 1, THREE: 1}, REPLACE) == "rdp" and sampled == SUBSET


def test_what_no_accountant_composes_is_refused_beside_a_release_without_noise_too() -> None:
    both = dpa.ComposedDpEvent([dpa.NonPrivateDpEvent(), dpa.UnsupportedDpEvent()])
    for ask in (epsilon_of, delta_of):
        with pytest.raises(accounting.UnsupportedEvent, match="event=Unsupported"):
            ask(both, 0.1)


def test_no_delta_is_above_one_however_many_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_MOST_ROUNDS", 20)
    many = {dpa.PoissonSampledDpEvent(0.5, dpa.GaussianDpEvent(0.5)): 200}
    assert accounting._in_blocks("pld", many, ADD, "delta", 0.1, 0) == 1.0


def test_a_target_below_the_floor_of_the_fast_accountant_is_found() -> None:
    z = noise_multiplier(epsilon=1e-3, delta=1e-12, sampling_rate=0.1)
    assert 0.9999e-3 <= epsilon(noise_multiplier=z, delta=1e-12, sampling_rate=0.1) <= 1e-3


@pytest.mark.parametrize("target", [1e-2, 1e-5, 1e-8])
def test_an_epsilon_that_falls_to_nothing_at_once_is_found(target: float) -> None:
    """At a large delta epsilon is 0 from some noise on: a search that comes from there has no slope to follow."""
    z = noise_multiplier(epsilon=target, delta=1e-2, sampling_rate=0.01, steps=10)
    near, less = (epsilon(noise_multiplier=x, delta=1e-2, sampling_rate=0.01, steps=10) for x in (z, 0.999 * z))
    assert near <= target < less


def test_samples_of_fixed_size_are_accounted_with_a_little_less_noise() -> None:
    for z, less in ((1.0, 1 - 1e-15), (1e3, 1e3 * (1 - 1e-9))):
        leaf = dpa.SampledWithoutReplacementDpEvent(100, 10, dpa.GaussianDpEvent(z))
        assert accounting._with_less_noise(leaf).event.noise_multiplier == pytest.approx(less, rel=1e-16, abs=0.0)
    assert accounting._with_less_noise(THREE) is THREE


# ---------------------------------------------------------------- calibration: the noise it returns costs at most the


CALIBRATED = [
    (1.0, 0.01, 1000, ADD, 1.41463),
    (0.5, 0.025, 1200, ADD, 6.17712),
    (1.0, 0.01, 1000, REPLACE, 2.36443),
    (0.5, 0.025, 1200, REPLACE, 12.17924),
]


@pytest.mark.parametrize(("eps", "q", "steps", "adjacency", "expected"), CALIBRATED)
def test_poisson_oracles(eps: float, q: float, steps: int, adjacency: privacy.Adjacency, expected: float) -> None:
    multiplier = noise_multiplier(epsilon=eps, delta=1e-5, sampling_rate=q, steps=steps, adjacency=adjacency)
    assert multiplier == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    ("eps", "at", "expected"), [(0.5, 1e-5, 7.0318266756), (1.0, 1e-6, 4.2246788893), (8.0, 1e-5, 0.6002290722)]
)
def test_full_batch_gaussian_oracles(eps: float, at: float, expected: float) -> None:
    assert noise_multiplier(epsilon=eps, delta=at) == pytest.approx(expected, abs=1e-6)
    assert noise_multiplier(epsilon=eps, delta=at, adjacency=REPLACE) == pytest.approx(2 * expected, abs=1e-6)
    assert noise_multiplier(epsilon=eps, delta=at, steps=100) == pytest.approx(10 * expected, abs=1e-5)


def test_laplace_oracle() -> None:
    multiplier = noise_multiplier(epsilon=1.0, delta=1e-5, steps=1000, mechanism="laplace")
    assert multiplier == pytest.approx(117.68, abs=5e-3)  # the oracle is stated to two decimals


def test_the_noise_without_replacement() -> None:
    sampler = privacy.FixedSize(100, n=10000)
    got = privacy.calibrate(lambda z: compose([sampler.event(Gaussian(z).event())] * 1000), 1.0, 1e-5, REPLACE, 4.0)
    assert got == pytest.approx(2 * 2.70757, abs=1e-3)


@pytest.mark.parametrize("adjacency", [ADD, REPLACE])
@pytest.mark.parametrize(
    ("eps", "q", "steps"),
    [(8.0, 0.1, 1000), (1.0, 0.001, 1000), (0.1, 0.1, 10**5), (4.0, 0.01, 10**5), (1.0, 1.0, 10**5)],
)
def test_the_result_costs_the_target(eps: float, q: float, steps: int, adjacency: privacy.Adjacency) -> None:
    z = noise_multiplier(epsilon=eps, delta=1e-6, sampling_rate=q, steps=steps, adjacency=adjacency)
    spent = epsilon(noise_multiplier=z, sampling_rate=q, steps=steps, delta=1e-6, adjacency=adjacency)
    assert 0.9999 * eps <= spent <= eps


@pytest.mark.parametrize(("q", "steps"), [(1.0, 1), (1.0, 10**4), (0.05, 500)])
def test_laplace_costs_the_target(q: float, steps: int) -> None:
    b = noise_multiplier(epsilon=1.0, delta=1e-6, sampling_rate=q, steps=steps, mechanism="laplace")
    event = compose([privacy.Poisson(q).event(privacy.Laplace(b).event())] * steps)
    assert 0.9999 <= epsilon_of(event, 1e-6) <= 1.0


def test_selections_are_calibrated_with_the_renyi_accountant() -> None:
    scale = privacy.calibrate(lambda s: compose([privacy.NoisyMax(1 / s).event()] * 100), 1.0, 1e-5)
    assert 0.9999 <= epsilon_of(compose([privacy.NoisyMax(1 / scale).event()] * 100), 1e-5) <= 1.0


def test_an_unreachable_target_is_refused() -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        solve(lambda s: 1.0 + 1 / s, 0.5, 1.0)
    with pytest.raises(privacy.UnsupportedEvent, match="Laplace"):
        noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.1, mechanism="laplace", adjacency=REPLACE)


@pytest.mark.parametrize("start", [1e-3, 1.0, 1e4])
def test_search_survives_cliffs_and_plateaus(start: float) -> None:
    def cost(s: float) -> float:
        return math.inf if s < 0.1 else 0.0 if s > 100 else 1 / s**2

    scale, _ = solve(cost, 0.25, start)
    assert 0.25 * (1 - 2e-5) <= cost(scale) <= 0.25


def test_bad_input_is_refused_by_name_calibration() -> None:
    wrong: dict[str, Any] = {"epsilon": (0.0, -1.0, math.inf), "delta": (0.0, 1.0), "sampling_rate": (0.0, 2.0)}
    for name, values in {**wrong, "steps": (0,), "mechanism": ("uniform",), "adjacency": (None,)}.items():
        for value in values:
            with pytest.raises(InvalidInput, match=name):
                noise_multiplier(**{"epsilon": 1.0, "delta": 1e-5, name: value})
