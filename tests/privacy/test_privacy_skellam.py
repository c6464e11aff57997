"""Skellam noise: exact draws, and never worse than the Gaussian it is counted as, in one dimension and in several."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import torch
from dp_accounting import dp_event
from scipy import stats

from isthmus import InvalidInput, privacy
from isthmus.privacy import Adjacency, Poisson, SeededSource, Skellam, UnsupportedEvent, compose, delta_of, epsilon_of
from isthmus.privacy.clips import ClippedSum
from isthmus.privacy.event_json import SkellamDpEvent
from isthmus.privacy.skellam import _log_masses, _poisson, _thresholds, gaussian_scale, variance_for

VARIANCES = [1.0, 1.7, 4.0, 30.0, 400.0]


# ---------------------------------------------------------------- exact draws


def cdf(rate: Fraction, last: int) -> list[Decimal]:
    """F(0), ..., F(last) of the Poisson law to some 100 digits."""
    with localcontext() as context:
        context.prec = 120
        mean = Decimal(rate.numerator) / Decimal(rate.denominator)
        mass = total = (-mean).exp()
        entries = [total]
        for k in range(1, last + 1):
            mass = mass * mean / k
            total += mass
            entries.append(total)
    return entries


@pytest.mark.parametrize("rate", [Fraction(1, 100), Fraction(1, 2), Fraction(37, 10), Fraction(1201, 4)])
@pytest.mark.parametrize("digits", [3, 64, 192])
def test_tables_enclose_the_distribution_function_and_are_narrow(rate: Fraction, digits: int) -> None:
    first, lower, before = _thresholds(rate, digits)
    true = cdf(rate, first + len(lower) - 1)
    with localcontext() as context:
        context.prec = 120
        scaled = [each * 2**digits for each in true]
    assert all(low <= value for low, value in zip(lower, scaled[first:], strict=True))
    assert before[0] >= (scaled[first - 1] if first else 0)
    assert all(high >= value for high, value in zip(before[1:], scaled[first:], strict=False))
    assert max(high - low for low, high in zip(lower, before[1:], strict=False)) <= 2


class Digits(SeededSource):
    """A source whose words of 32 digits are given."""

    def __init__(self, *words: int) -> None:
        super().__init__(0)
        self.given = list(words)

    def integers(self, high: int, size: int) -> torch.Tensor:
        taken, self.given = self.given[:size], self.given[size:]
        return torch.tensor(taken, dtype=torch.int64)


@pytest.mark.parametrize("k", [0, 3, 20])
def test_digits_on_a_border_are_decided_by_the_digits_that_follow(k: int) -> None:
    """The digits of F(k) cut off after 192: what follows 128 of them, all zeros or all ones, lies on one side of it."""
    _, lower, _ = _thresholds(Fraction(37, 10), 192)
    words = [lower[k] >> (160 - 32 * j) & (2**32 - 1) for j in range(6)]
    assert _poisson(Fraction(37, 10), 1, Digits(*words[:4], 0, 0)).tolist() == [k]
    assert _poisson(Fraction(37, 10), 1, Digits(*words[:4], 2**32 - 1, 2**32 - 1)).tolist() == [k + 1]


@pytest.mark.parametrize("word", [2, 5, 64])
@pytest.mark.parametrize("rate", [0.3, 3.7, 50.0])
def test_draws_have_the_law_however_many_digits_are_taken_at_a_time(rate: float, word: int) -> None:
    drawn = _poisson(rate, 2000 if word < 64 else 20000, SeededSource(word), word)
    law = stats.poisson(rate)
    edges = np.unique(law.ppf(np.linspace(0.05, 0.95, 13)))
    masses = np.diff(np.concatenate([[0.0], law.cdf(edges), [1.0]]))
    counts = np.histogram(drawn, np.concatenate([[-0.5], edges + 0.5, [np.inf]]))[0]
    assert stats.chisquare(counts, masses * len(drawn)).pvalue > 1e-3
    wrong = stats.poisson(1.3 * rate)
    masses = np.diff(np.concatenate([[0.0], wrong.cdf(edges), [1.0]]))
    assert stats.chisquare(counts, masses * len(drawn)).pvalue < 1e-3


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, 1e9])
def test_rates_out_of_range_are_refused(rate: float) -> None:
    with pytest.raises(InvalidInput, match="rate="):
        _poisson(rate, 1, SeededSource(0))


# ---------------------------------------------------------------- the theorem


def masses(variance: float, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """The laws of the noise and of the noise moved by an integer, on a range that holds all but 1e-17 of both."""
    reach = int(12 * math.sqrt(variance)) + 25
    places = np.arange(-reach, reach + shift + 1)
    law = stats.skellam(variance / 2, variance / 2)
    return law.pmf(places), law.pmf(places - shift)


def together(variance: float, shifts: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The same for vectors: products of coordinates."""
    first, second = np.ones(1), np.ones(1)
    for shift in shifts:
        p, q = masses(variance, shift)
        first, second = np.outer(first, p).ravel(), np.outer(second, q).ravel()
    return first, second


def curve(one: np.ndarray, other: np.ndarray, epsilons: np.ndarray) -> np.ndarray:
    return np.array([np.maximum(one - math.exp(e) * other, 0).sum() for e in epsilons])


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("shifts", [(1,), (7,), (2, 1)])
def test_it_is_never_worse_than_its_gaussian(variance: float, shifts: tuple[int, ...]) -> None:
    epsilons = np.concatenate([np.linspace(0, 3, 25), [4.0, 6.0, 9.0]])
    first, second = together(variance, shifts)
    z = gaussian_scale(variance) / math.hypot(*shifts)
    allowed = np.array([delta_of(privacy.Gaussian(z).event(), e) for e in epsilons])
    assert (curve(first, second, epsilons) <= allowed + 1e-13).all()
    assert (curve(second, first, epsilons) <= allowed + 1e-13).all()


@pytest.mark.parametrize("variance", VARIANCES)
def test_its_gaussian_cannot_be_wider(variance: float) -> None:
    """At epsilon = 0 a shift by one is what the theorem says, to the bit: with more it would be false."""
    first, second = masses(variance, 1)
    value = float(curve(first, second, np.zeros(1))[0])
    for wider, holds in ((1.0, True), (1.0 + 1e-6, False)):
        z = wider * gaussian_scale(variance)
        assert (value <= delta_of(privacy.Gaussian(z).event(), 0.0)) is holds


@pytest.mark.parametrize("variance", VARIANCES)
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_a_poisson_sample_of_it_is_never_worse_than_one_of_its_gaussian(variance: float, rate: float) -> None:
    """Add/remove, both directions, against the integral of the Gaussian mixture."""
    p, q = masses(variance, 1)
    z = gaussian_scale(variance)
    x = np.linspace(-12 * z, 1 + 12 * z, 400001)
    a, b = stats.norm(0, z).pdf(x), stats.norm(1, z).pdf(x)
    epsilons = np.linspace(0, 1, 9)
    for first, second in ((0, 1), (1, 0)):
        mine = [p, (1 - rate) * p + rate * q]
        theirs = [a, (1 - rate) * a + rate * b]
        allowed = curve(theirs[first], theirs[second], epsilons) * (x[1] - x[0])
        assert (curve(mine[first], mine[second], epsilons) <= allowed + 1e-9).all()


def test_the_theorem_is_tighter_than_the_published_bound() -> None:
    for variance in (4.0, 30.0, 400.0):  # order 8 and a shift of 1, Agarwal, Kairouz and Liu (2021)
        published = 8 / (2 * variance) + min((15 + 6) / (4 * variance**2), 3 / (2 * variance))
        assert 8 / (2 * gaussian_scale(variance) ** 2) < published


@pytest.mark.parametrize("variance", [1.01e6, 2.0**25])
def test_large_variances_give_away_a_thousandth_at_most(variance: float) -> None:
    assert 0.999 <= gaussian_scale(variance) / math.sqrt(variance) < 1
    assert _log_masses(variance, 2000) == pytest.approx(
        stats.norm(0, math.sqrt(variance)).logpdf(np.arange(2001)), abs=4 / variance
    )


def test_the_two_ways_to_large_masses_agree() -> None:
    slow, fast = _log_masses(1e6, 20000), _log_masses(math.nextafter(1e6, math.inf), 20000)
    assert np.abs(slow - fast).max() < 1e-9


def test_variances_are_found_from_above() -> None:
    for scale in (1.01, 3.3, 250.0, 1200.0):
        variance = variance_for(scale)
        assert gaussian_scale(variance) >= scale > gaussian_scale(variance - 2.0**-20)
        assert Fraction(variance) * 2**20 == int(variance * 2**20)


@pytest.mark.parametrize("variance", [0.5, 0.0, math.nan, 1e12])
def test_variances_out_of_range_are_refused(variance: float) -> None:
    with pytest.raises(InvalidInput, match="variance="):
        gaussian_scale(variance)


# ---------------------------------------------------------------- the event


def test_it_is_counted_as_its_gaussian() -> None:
    mine, theirs = SkellamDpEvent(2.0), dp_event.GaussianDpEvent(2.0)
    for adjacency in Adjacency:
        assert epsilon_of(mine, 1e-5, adjacency) == epsilon_of(theirs, 1e-5, adjacency)
    both = compose([mine, mine, theirs])
    assert epsilon_of(both, 1e-5) == pytest.approx(epsilon_of(compose([theirs] * 3), 1e-5), rel=1e-9)
    sampled, other = (dp_event.SelfComposedDpEvent(Poisson(0.5).event(each), 5) for each in (mine, theirs))
    assert epsilon_of(sampled, 1e-5) == epsilon_of(other, 1e-5)
    mixed = compose([mine, dp_event.ZCDpEvent(0.1), dp_event.LaplaceDpEvent(20.0)])
    other = compose([theirs, dp_event.ZCDpEvent(0.1), dp_event.LaplaceDpEvent(20.0)])
    assert epsilon_of(mixed, 1e-5) == epsilon_of(other, 1e-5)


def test_samples_that_compare_three_laws_are_refused() -> None:
    with pytest.raises(UnsupportedEvent, match=r"PoissonSampled\(Skellam\)"):
        epsilon_of(Poisson(0.1).event(SkellamDpEvent(2.0)), 1e-5, Adjacency.REPLACE_ONE)
    with pytest.raises(UnsupportedEvent, match="Skellam"):
        privacy.FixedSize(10, n=100).event(SkellamDpEvent(2.0))
    wrapped = dp_event.SampledWithoutReplacementDpEvent(100, 10, SkellamDpEvent(2.0))
    with pytest.raises(UnsupportedEvent, match="Skellam"):
        epsilon_of(wrapped, 1e-5, Adjacency.REPLACE_ONE)


def test_the_statement_says_what_it_is() -> None:
    words = privacy.PrivacyStatement.of(SkellamDpEvent(4.0), 1e-5).words()
    assert "Skellam noise (whole numbers) that hides as much as Gaussian noise of 4 times the most one " in words
    assert "the exact curve of the Gaussian mechanism that the Skellam noise is no worse than" in words


# ---------------------------------------------------------------- the mechanism


def test_the_mechanism_releases_the_stated_variance_on_its_grid() -> None:
    value, mechanism = torch.linspace(-3, 3, 20000, dtype=torch.float64), Skellam(1.5, grid=0.05)
    noise = mechanism.release(ClippedSum(value, 2, 20.0), SeededSource(2)) - (value / 0.05).round() * 0.05
    steps = noise / 0.05
    assert bool(((steps - steps.round()).abs() < 1e-6).all())
    variance = mechanism.variance(20.0, len(value))
    assert math.sqrt(variance) == pytest.approx(1.5 * (400 + math.sqrt(20000)), rel=1e-3)
    assert float(steps.var()) == pytest.approx(variance, rel=0.05)


def test_values_that_are_not_numbers_count_as_zero_and_huge_ones_saturate() -> None:
    value = torch.tensor([math.nan, math.inf, -math.inf], dtype=torch.float64)
    found = Skellam(1.0, grid=1.0).release(ClippedSum(value, 2, 1.0), SeededSource(0))
    assert abs(float(found[0])) < 100 and float(found[1]) > 1e11 and float(found[2]) < -1e11
