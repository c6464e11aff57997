"""Losses of many rounds against an independent integral and closed forms, down to deltas far below rounding."""

import math

import dp_accounting as dpa
import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from isthmus.privacy import composition, delta_of, epsilon, epsilon_of
from isthmus.privacy.accounting import _exact

Law = tuple[NDArray[np.float64], NDArray[np.float64]]


def removed(q: float, sigma: float, added: bool) -> Law:
    """The loss at the points of a fine grid of outcomes, and the logarithms of their masses."""
    x, step = np.linspace(-13 * sigma, 1 + 13 * sigma, 200_001, retstep=True)
    ratio = np.logaddexp(math.log1p(-q) if q < 1 else -math.inf, math.log(q) + (x - 0.5) / sigma**2)
    plain = -(x**2) / (2 * sigma**2) + math.log(step / (sigma * math.sqrt(2 * math.pi)))
    return (-ratio, plain) if added else (ratio, plain + ratio)


def true_delta(law: Law, n: int, epsilon: float, t: float) -> float:
    """delta of n rounds: the law tilted by t, on a grid of a fortieth of its own width, to the power of n."""
    losses, logs = law
    logs = logs + t * losses
    log_mean = float(np.logaddexp.reduce(logs))
    masses = np.exp(logs - log_mean)
    mean = float(masses @ losses)
    width = math.sqrt(float(masses @ (losses - mean) ** 2))
    size, step = 1 << 17 if n <= 10_000 else 1 << 20, width / 40
    whole = np.floor((losses - mean) / step)
    share, place = (losses - mean) / step - whole, whole.astype(np.int64)
    grid = np.bincount(place % size, masses * (1 - share), size) + np.bincount((place + 1) % size, masses * share, size)
    law_of_sum = np.fft.irfft(np.fft.rfft(grid) ** n, size)
    sums = n * mean + step * ((np.arange(size) + size // 2) % size - size // 2)
    beyond = np.maximum(sums - epsilon, 0.0)
    inner = float(law_of_sum @ (np.exp(-t * beyond) * -np.expm1(-beyond)))
    return math.exp(n * log_mean - t * epsilon) * inner


def test_the_reference_finds_the_gaussian_curve() -> None:
    for epsilon_, t in ((1.0, 2.0), (5.0, 30.0)):
        found = true_delta(removed(1.0, 100.0, False), 1000, epsilon_, t)
        assert found == pytest.approx(_exact(100 / math.sqrt(1000), "delta", epsilon_), rel=1e-3)  # its own grid


@pytest.mark.parametrize(
    ("rate", "sigma", "rounds", "small"),
    [(0.01, 2.0, 100_000, 1e-14), (0.01, 2.0, 100_000, 1e-5), (1e-5, 0.5, 1_000_000, 1e-10), (0.01, 1.0, 1000, 1e-12)],
)
def test_no_rounding_hides_a_cost(rate: float, sigma: float, rounds: int, small: float) -> None:
    """The transform of the library loses up to n 2^-53 of everything: more than such deltas."""
    claimed = epsilon(noise_multiplier=sigma, sampling_rate=rate, steps=rounds, delta=small)
    true = 0.0
    for added in (False, True):
        law = removed(rate, sigma, added)
        tilts = [t for t in np.geomspace(0.5, 60, 15) if np.isfinite(t)]
        bound = [rounds * float(np.logaddexp.reduce(law[1] + t * law[0])) - t * claimed for t in tilts]
        true = max(true, true_delta(law, rounds, claimed, float(tilts[int(np.argmin(bound))])))
    assert 0.9 * small < true < small * 1.001  # the grid of the reference is off by less than a thousandth


@pytest.mark.parametrize("small", [0.1, 1e-5, 1e-12, 1e-30, 1e-100])
def test_rounds_without_sampling_are_one_gaussian(small: float) -> None:
    for n, sigma in ((1, 1.0), (10_000, 70.0)):
        one = {dpa.GaussianDpEvent(sigma): n}
        cost = composition.cost(one, False, 1e-4 if n == 1 else 1e-5, "epsilon", small)
        least = _exact(sigma / math.sqrt(n), "epsilon", small)
        if small >= 1e-15:  # below it the mass that is cut off a round counts
            assert least <= cost <= least * 1.001
        else:
            assert cost >= least
        back = composition.cost(one, False, 1e-4, "delta", least)
        assert back >= _exact(sigma / math.sqrt(n), "delta", least) * (1 - 1e-9)


@pytest.mark.parametrize("small", [0.3, 0.1, 1e-5, 1e-12])
def test_one_laplace_round_has_its_closed_form(small: float) -> None:
    cost = epsilon_of(dpa.LaplaceDpEvent(2.0), small)
    least = max(0.0, 0.5 + 2 * math.log1p(-small))
    assert least <= cost + 1e-12 <= least + 2e-4


def test_many_laplace_rounds_have_no_infinite_loss() -> None:
    """What rounding left of a curve beyond the largest loss, 10^5 times, was more than this delta."""
    rounds = dpa.SelfComposedDpEvent(dpa.LaplaceDpEvent(100.0), 100_000)
    gaussian = _exact(100 / math.sqrt(100_000), "epsilon", 1e-12)  # nearly, by the central limit theorem
    assert epsilon_of(rounds, 1e-12) == pytest.approx(gaussian, rel=0.02)


def one_round(first: int, masses: NDArray[np.float64], infinite: float = 0.0) -> composition._RoundLoss:
    there = np.flatnonzero(masses)
    return composition._RoundLoss(first + there.astype(float), np.log(masses[there]), infinite)


def test_any_tilt_gives_a_bound() -> None:
    """Where the exponent does not fit, the bound is loose and never below."""
    interval, event = 1e-3, dpa.PoissonSampledDpEvent(0.1, dpa.GaussianDpEvent(2.0))
    side = dpa.pld.privacy_loss_mechanism.AdjacencyType.REMOVE
    total = composition._Total([(composition._round(event, side, interval), 1000)], interval)
    right = total.delta(9.0)
    assert 1e-9 < right < 1e-5
    for t in (1e-6, 0.1, 10.0, 1000.0):
        assert total._law(t).log_delta(9.0) >= math.log(right) - 1e-4
    assert not total._law(1000.0).clear(9.0)


@pytest.mark.parametrize("n", [1, 10, 1000])
def test_large_exponents_are_rounded_for(n: int) -> None:
    """With t = 10^5 the masses of one round add up to 1 - 3.7e-11: what exponents lose is part of the bound."""
    event, sides = dpa.PoissonSampledDpEvent(0.01, dpa.GaussianDpEvent(1.0)), dpa.pld.privacy_loss_mechanism
    for side in (sides.AdjacencyType.REMOVE, sides.AdjacencyType.ADD):
        total = composition._Total([(composition._round(event, side, 1e-4), n)], 1e-4)
        for t in (1.0, 30.0, 1000.0, 1e5):
            law = total._law(t)
            assert abs(float(law.masses.sum()) - 1) <= law.rounding


def test_rates_next_to_one_and_no_epsilon_at_all() -> None:
    nearly = dpa.PoissonSampledDpEvent(1 - 2.0**-53, dpa.GaussianDpEvent(0.1))
    assert epsilon_of(nearly, 1e-5) == epsilon_of(dpa.GaussianDpEvent(0.1), 1e-5)
    rounds = dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(1e-5, dpa.GaussianDpEvent(100.0)), 3_000_000)
    assert 1e-6 < delta_of(rounds, 0.0) < 1e-2


def test_no_noise_costs_everything_and_no_delta_is_left() -> None:
    one = {dpa.PoissonSampledDpEvent(0.5, dpa.GaussianDpEvent(1.0)): 10_000}
    assert composition.cost(one, False, 1e-3, "epsilon", 1e-24) == math.inf  # less than the mass that is cut off
    assert composition.cost(one, False, 1e-3, "delta", 0.0) == pytest.approx(1.0)


def test_a_curve_of_one_point_has_all_its_mass_there() -> None:
    assert composition._chords(np.array([0.25]), 1e-3).tolist() == [0.75]


@pytest.mark.parametrize(("heavy", "n"), [(0.4, 1), (0.4, 50), (0.999, 20_000), (1 - 1e-6, 300_000)])
def test_no_mass_is_off_by_more_than_the_reserve(heavy: float, n: int) -> None:
    """Against binomial masses in 50 digits, plainly and tilted; the reserve is small against the largest mass."""
    masses, t, interval = np.array([heavy, 0.0, 1 - heavy]), 0.7, 0.3
    law = composition._Total([(one_round(-1, masses), n)], interval)._law(t)
    with mpmath.workdps(50):
        weights = [
            mpmath.mpf(float(mass)) * mpmath.exp(t * interval * at) for mass, at in zip(masses, (-1, 0, 1), strict=True)
        ]
        share, off = weights[2] / mpmath.fsum(weights), 0.0
        for place, mass in enumerate(law.masses):
            up = law.first + place + n  # every step up moves the sum by two places
            exact = (
                mpmath.binomial(n, up // 2) * share ** (up // 2) * (1 - share) ** (n - up // 2) if up % 2 == 0 else 0
            )
            off = max(off, abs(float(mass - exact)))
    assert off <= law.lost * (1 + law.rounding) + law.rounding * law.masses.max()
    assert law.lost <= 1e-11 * n * law.masses.max()


def test_the_reserve_is_the_one_that_is_proved() -> None:
    """Against the formula over all frequencies, each sum written out."""
    rng, size, unit = np.random.default_rng(0), 4096, 2.0**-53
    laws = [
        (np.exp(-(np.linspace(-3, 3, 41) ** 2) * width) * rng.uniform(0.5, 1, 41), n) for width, n in ((1, 9), (50, 1))
    ]
    laws = [(masses / masses.sum(), n) for masses, n in laws]
    circles = [composition._around(np.arange(-20.0, 21.0), masses, size) for masses, _ in laws]
    waves = [
        (np.fft.rfft(circle), float(np.sqrt((m**2).sum())), n) for circle, (m, n) in zip(circles, laws, strict=True)
    ]
    errors = [12 * unit * 12 * 64 * math.sqrt(float((masses**2).sum())) for masses, _ in laws]  # log2 and root of 4096
    total = 0.0
    spectra = [np.abs(np.fft.fft(circle)) + error for circle, error in zip(circles, errors, strict=True)]
    for j, error in enumerate(errors):
        rest = np.prod([f ** (n - (i == j)) for i, (f, (_, n)) in enumerate(zip(spectra, laws, strict=True))], axis=0)
        total += laws[j][1] * error * math.sqrt(float((rest**2).sum())) / size
    product = np.prod([f**n for f, (_, n) in zip(spectra, laws, strict=True)], axis=0)
    turned = sum(n * (4 + np.abs(np.log(f))) for f, (_, n) in zip(spectra, laws, strict=True))
    total += 16 * unit * float((turned * product).mean())
    assert total <= composition._lost(waves, size) <= 1.05 * total


def test_a_mixture_of_nothing_and_a_record_is_poisson_sampling() -> None:
    mixture = dpa.dp_event.MixtureOfGaussiansDpEvent(1.0, (0.0, 1.0), (0.7, 0.3))
    sampled = dpa.PoissonSampledDpEvent(0.3, dpa.GaussianDpEvent(1.0))
    costs = [composition.cost({leaf: 7}, False, 1e-3, "epsilon", 1e-6) for leaf in (mixture, sampled)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-4)  # each on a grid of its own


def test_what_an_exponent_loses_is_added_and_not_taken_away() -> None:
    law = composition._Tilted(1e3, 0.0, 1.0, 1000, np.array([1.0]), 0.0, 0.0)
    counted, lost = law._inner(999.5)
    reserve = law.log_delta(999.5) - (math.log(counted + lost) - 1e3 * 999.5)
    assert 4 * composition._UNIT * 1e3 * 999.5 < reserve < 16 * composition._UNIT * 1e3 * 999.5


def test_a_law_with_too_many_multiples_is_refused_and_not_computed() -> None:
    total = composition._Total([], 1e-9)
    total.parts = [(np.array([-1.0, 1.0]) * 2.0**27, np.log([0.5, 0.5]), 1)]
    with pytest.raises(OverflowError, match="multiples"):
        total._law(1.0)


def test_the_masses_of_a_polygon_are_never_rounded_down() -> None:
    rng, interval = np.random.default_rng(0), 1e-3
    with mpmath.workdps(50):
        grow = mpmath.exp(mpmath.mpf(interval))
        for _ in range(50):
            falls = np.sort(rng.uniform(0.9, 1.0, 60) ** rng.choice([1e-9, 1e-3, 1.0]))[::-1] / 1000
            deltas = np.concatenate([[0.0], np.cumsum(falls[::-1])])[::-1]
            exact = [-mpmath.mpf(float(b)) + mpmath.mpf(float(a)) for a, b in zip(deltas, deltas[1:], strict=False)]
            masses = composition._chords(deltas, interval)
            inner = [(a * grow - b) / (grow - 1) for a, b in zip(exact, exact[1:], strict=False)]
            assert all(mpmath.mpf(float(m)) >= x for m, x in zip(masses[1:-1], inner, strict=True))
            assert mpmath.mpf(float(masses[-1])) >= exact[-1] * grow / (grow - 1)
            assert mpmath.mpf(float(masses[0])) >= 1 - mpmath.mpf(float(deltas[0])) - exact[0] / (grow - 1)


def test_what_was_cut_off_counts() -> None:
    law = composition._Tilted(1.0, 0.0, 1.0, 0, np.zeros(5), 0.0, 0.0)
    assert law._inner(1.0)[1] >= math.exp(-composition._DEEP) + 2 * math.exp(-composition._FAR)


@pytest.mark.parametrize(("asked", "cost"), [("epsilon", math.inf), ("delta", 1.0)])
def test_a_round_whose_loss_is_infinite_for_certain_costs_everything(asked: str, cost: float) -> None:
    certain, harmless = one_round(0, np.array([0.0]), 1.0), one_round(0, np.array([1.0]))
    for rounds in ([(certain, 1)], [(harmless, 2), (certain, 1)]):
        assert composition._one_way(rounds, 1e-4, asked, 0.5) == cost


def test_every_round_is_charged_its_shift(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = [(one_round(0, np.array([0.5, 0.5])), 7)]
    before = composition._one_way(rounds, 0.1, "epsilon", 1e-5)
    monkeypatch.setattr(composition, "_SHIFT", 0.01)
    assert composition._one_way(rounds, 0.1, "epsilon", 1e-5) == pytest.approx(before + 0.07, rel=1e-9)
