"""Accounting at its corners: what every route makes of every event, what is no noise, searches that get stuck."""

from __future__ import annotations

import math
from typing import Any

import dp_accounting as dpa
import pytest

from isthmus.base.validate import InvalidInput
from isthmus.privacy import (
    Adjacency,
    FixedSize,
    Gaussian,
    Laplace,
    NoisyMax,
    Poisson,
    accounting,
    calibrate,
    compose,
    delta,
    delta_of,
    epsilon,
    epsilon_of,
    joint,
    noise_multiplier,
)
from isthmus.privacy.accounting import _NO_NOISE, _convert, _cost, _key, _route_of, leaves_of, noiseless, solve
from isthmus.privacy.event_json import SkellamDpEvent

ADD, REPLACE = Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE
DELTA = 1e-5
GAUSS, HALF = dpa.GaussianDpEvent(3.0), dpa.GaussianDpEvent(1.5)
LAPLACE, ZC = dpa.LaplaceDpEvent(3.0), dpa.ZCDpEvent(0.25, 0.0)
SUBSET = dpa.SampledWithoutReplacementDpEvent(100, 10, GAUSS)
MIXTURE = dpa.dp_event.MixtureOfGaussiansDpEvent(2.0, (0.0, 1.0), (0.9, 0.1))


def some(event: Any) -> Any:
    return dpa.PoissonSampledDpEvent(0.1, event)


@pytest.mark.parametrize(
    ("leaf", "adjacency", "pld", "pair", "rdp"),
    [
        (GAUSS, ADD, GAUSS, None, GAUSS),
        (GAUSS, REPLACE, HALF, GAUSS, HALF),
        (LAPLACE, ADD, LAPLACE, None, LAPLACE),
        (LAPLACE, REPLACE, dpa.LaplaceDpEvent(1.5), None, dpa.LaplaceDpEvent(1.5)),
        (some(GAUSS), ADD, some(GAUSS), None, some(GAUSS)),
        (some(GAUSS), REPLACE, None, some(GAUSS), None),
        (some(LAPLACE), ADD, some(LAPLACE), None, None),
        (some(LAPLACE), REPLACE, None, None, None),
        (SUBSET, ADD, None, None, None),
        (SUBSET, REPLACE, None, None, dpa.SampledWithoutReplacementDpEvent(100, 10, HALF)),
        (dpa.SampledWithoutReplacementDpEvent(100, 10, LAPLACE), REPLACE, None, None, None),
        (dpa.SampledWithReplacementDpEvent(100, 10, GAUSS), REPLACE, None, None, None),
        (ZC, ADD, None, None, ZC),
        (ZC, REPLACE, None, None, dpa.ZCDpEvent(1.0, 0.0)),
        (dpa.ZCDpEvent(0.25, 0.1), ADD, None, None, dpa.ZCDpEvent(0.25, 0.1)),
        (dpa.ZCDpEvent(0.25, 0.1), REPLACE, None, None, None),
        (MIXTURE, ADD, MIXTURE, None, None),
        (MIXTURE, REPLACE, None, None, None),
        (SkellamDpEvent(3.0), ADD, GAUSS, None, GAUSS),
        (SkellamDpEvent(3.0), REPLACE, HALF, GAUSS, HALF),
        (some(SkellamDpEvent(3.0)), ADD, some(GAUSS), None, some(GAUSS)),
        (some(SkellamDpEvent(3.0)), REPLACE, None, None, None),
    ],
)
def test_every_route_reads_an_event_like_this(leaf: Any, adjacency: Adjacency, pld: Any, pair: Any, rdp: Any) -> None:
    """None where the route's accountant must not be asked: it would answer for something else."""
    table = {route: _convert(leaf, adjacency, route) for route in ("pld", "pair", "rdp")}
    assert table == {"pld": pld, "pair": pair, "rdp": rdp}
    known = [route for route, event in table.items() if event is not None]
    if known:
        assert _route_of({leaf: 2}, adjacency) == known[0]


def test_parts_of_nested_compositions_are_counted() -> None:
    inner = dpa.ComposedDpEvent([GAUSS, dpa.SelfComposedDpEvent(LAPLACE, 2), dpa.NoOpDpEvent()])
    nested = dpa.SelfComposedDpEvent(dpa.ComposedDpEvent([inner, GAUSS]), 3)
    assert leaves_of(nested) == {GAUSS: 6, LAPLACE: 6}
    assert leaves_of(dpa.PoissonSampledDpEvent(1.0, nested), 2) == {GAUSS: 12, LAPLACE: 12}
    assert leaves_of(dpa.SelfComposedDpEvent(GAUSS, 0)) == {} == leaves_of(GAUSS, 0)
    lists = dpa.dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0], [0.9, 0.1])
    assert leaves_of(compose([lists, MIXTURE])) == {MIXTURE: 2}
    assert compose([GAUSS]) == GAUSS and compose([]) == dpa.NoOpDpEvent() == joint([])
    assert joint([GAUSS, dpa.NonPrivateDpEvent()]) == dpa.NonPrivateDpEvent()
    merged = joint([dpa.SelfComposedDpEvent(GAUSS, 4), ZC, ZC])
    assert merged.events == [HALF, dpa.SelfComposedDpEvent(ZC, 2)]
    assert joint([ZC]) == ZC and joint([GAUSS, dpa.GaussianDpEvent(0.0)]) == dpa.GaussianDpEvent(0.0)


@pytest.mark.parametrize("wrap", [lambda event: event, some])
def test_hardly_any_noise_is_none(wrap: Any) -> None:
    for kind in (dpa.GaussianDpEvent, dpa.LaplaceDpEvent):
        assert noiseless(wrap(kind(_NO_NOISE * 0.999))) and not noiseless(wrap(kind(_NO_NOISE)))
        silent = compose([wrap(kind(_NO_NOISE / 2)), GAUSS])
        assert epsilon_of(silent, DELTA) == math.inf and delta_of(silent, 5.0) == 1.0
    assert _NO_NOISE == 1e-9 and not noiseless(ZC)
    assert accounting._exact(0.0, "delta", 1.0) == 1.0
    assert accounting._exact(math.inf, "delta", 0.0) == accounting._exact(math.inf, "epsilon", DELTA) == 0.0


@pytest.mark.parametrize(
    "event",
    [
        compose([dpa.LaplaceDpEvent(1e-8), dpa.SelfComposedDpEvent(dpa.GaussianDpEvent(1e-8), 10**200)]),
        some(dpa.LaplaceDpEvent(_NO_NOISE / 2)),
    ],
)
def test_a_cost_that_no_number_holds_is_infinite(event: Any) -> None:
    assert epsilon_of(event, DELTA) == math.inf and delta_of(event, 1.0) == 1.0


def test_pure_epsilons_add_up_where_no_distribution_holds_the_loss() -> None:
    """log(1 + q (exp(e) - 1)) of a sampled round, at every delta."""
    event = dpa.SelfComposedDpEvent(some(dpa.LaplaceDpEvent(1e-9)), 3)
    assert epsilon_of(event, DELTA) == pytest.approx(3 * (1e9 + math.log(0.1)), rel=1e-12)
    assert delta_of(event, 3e9) == 0.0 and delta_of(event, 1.0) == 1.0
    small = dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(1.0), 2)
    assert epsilon_of(small, 1e-300, "replace-one") == pytest.approx(4.0, rel=1e-12) and delta_of(small, 2.1) == 0.0


@pytest.mark.parametrize("leaf", [LAPLACE, some(GAUSS), some(LAPLACE), MIXTURE])
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


@pytest.mark.parametrize("leaf", [LAPLACE, some(GAUSS), some(LAPLACE), MIXTURE])
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
    assert delta(noise_multiplier=1.0, epsilon=1.0) == delta_of(Gaussian(1.0).event(), 1.0)
    for eps in (0.01, 0.3, 1.0, 7.0, 40.0):
        for steps in (1, 9):
            z = noise_multiplier(epsilon=eps, delta=DELTA, steps=steps, adjacency=REPLACE)
            spent = epsilon(noise_multiplier=z, delta=DELTA, steps=steps, adjacency=REPLACE)
            assert eps * (1 - 1e-9) < spent <= eps


@pytest.mark.parametrize(
    "event",
    [Poisson(0.1).event(GAUSS), compose([GAUSS, LAPLACE]), compose([GAUSS, NoisyMax(0.1).event()])],
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
    assert 0.9999 * 5e-4 <= epsilon_of(Laplace(b).event(), DELTA) <= 5e-4
    with pytest.raises(InvalidInput, match="no amount of noise"):
        calibrate(lambda s: Laplace(1.0).event(), 0.1, DELTA)


def test_a_part_that_two_routes_do_not_share_is_named_with_the_others() -> None:
    both = r"event=ZC .*for adding .*together with PoissonSampled\(Laplace\)"
    with pytest.raises(accounting.UnsupportedEvent, match=both):
        _route_of({some(LAPLACE): 1, ZC: 1}, ADD)
    assert _route_of({GAUSS: 1, ZC: 1}, ADD) == "rdp" and _route_of({GAUSS: 1, some(GAUSS): 1}, REPLACE) == "pair"
    sampled = FixedSize(10, n=100).event(GAUSS)
    assert _route_of({sampled: 1, GAUSS: 1}, REPLACE) == "rdp" and sampled == SUBSET


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
    assert accounting._with_less_noise(GAUSS) is GAUSS
