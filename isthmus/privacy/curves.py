"""What accountants answer for the parts they support: an exact curve, Renyi orders, the interval of a distribution."""

from __future__ import annotations

import math
from collections.abc import Mapping

from scipy.special import log_ndtr

from isthmus.privacy.library import DpEvent, dpa

DISCRETISATION = 1e-4
"""The interval of privacy-loss distributions: results are upper bounds, tight to about 1e-3 of a typical epsilon."""

ROUNDING = 1e-14
"""What the library's Renyi divergence of one sampled round may lose in rounding (1.4e-15 was seen), added to it."""

MOST_NOISE = 1e6
"""Above this multiplier the library's Renyi divergence of a sample of fixed size subtracts 1 from 1."""


def exact(multiplier: float, asked: str, given: float) -> float:
    """The Gaussian mechanism's own curve, without discretisation (Balle and Wang 2018)."""
    if multiplier == math.inf:
        return 0.0
    if asked == "epsilon":
        return float(dpa.get_epsilon_gaussian(multiplier, given))
    if multiplier == 0:
        return 1.0
    log_p = log_ndtr(0.5 / multiplier - given * multiplier)
    log_q = given + log_ndtr(-0.5 / multiplier - given * multiplier)
    return float(-math.exp(log_p) * math.expm1(min(0.0, log_q - log_p)))


def renyi(parts: Mapping[DpEvent, int], relation: object, asked: str, given: float, coarse: bool) -> float:
    """The Renyi accountant's answer at the best order: a sparse search, then every order around its optimum.

    The library's own list of orders thins out after 64, which costs up to 3 % of an epsilon.
    """
    orders = [1 + x / 10 for x in range(1, 100)] + [*range(11, 64), *(2**i for i in range(6, 14))]
    value, best = _at_orders(orders, parts, relation, asked, given)
    while not coarse and best >= 10:
        place = orders.index(best)
        low, high = int(orders[place - 1]), int(orders[min(place + 1, len(orders) - 1)])
        step = max(1, (high - low) // 16)
        orders = list(range(low, high + 1, step))
        refined, best = _at_orders(orders, parts, relation, asked, given)
        value = min(value, refined)
        if step == 1 or best in (orders[0], orders[-1]):
            break
    return value


def _at_orders(
    orders: list[float], parts: Mapping[DpEvent, int], relation: object, asked: str, given: float
) -> tuple[float, float]:
    accountant = dpa.rdp.RdpAccountant(orders, relation)
    for leaf, count in parts.items():
        accountant.compose(_with_less_noise(leaf), count)
    accountant.compose(dpa.ZCDpEvent(rho=0.0, xi=ROUNDING * sum(parts.values())))
    if asked == "epsilon":
        value, order = accountant.get_epsilon_and_optimal_order(given)
    else:
        value, order = accountant.get_delta_and_optimal_order(given)
    return float(value), min(orders, key=lambda a: abs(a - order))


def _with_less_noise(leaf: DpEvent) -> DpEvent:
    """A sample of fixed size with a little less noise, which costs more: as much as the library's rounding may hide."""
    if not isinstance(leaf, dpa.SampledWithoutReplacementDpEvent):
        return leaf
    z = min(leaf.event.noise_multiplier, MOST_NOISE)
    less = dpa.GaussianDpEvent(z * (1 - 1e-15 * z**2))
    return type(leaf)(leaf.source_dataset_size, leaf.sample_size, less)


def interval(leaves: Mapping[DpEvent, int], factor: int) -> float:
    """An interval fine against the loss of one round, with at most some million points for all of them.

    It decides how tight the result is, never whether it is an upper bound.
    """
    fine, widest, mean, variance = DISCRETISATION, 0.0, 0.0, 0.0
    for leaf, count in leaves.items():
        rate = getattr(leaf, "sampling_probability", 1.0)
        base = getattr(leaf, "event", leaf)
        if isinstance(base, dpa.dp_event.MixtureOfGaussiansDpEvent):
            z, rate = base.standard_deviation / max(base.sensitivities), 1 - base.sampling_probs[0]
        else:
            z = base.noise_multiplier / factor
        largest = 1 / z if isinstance(base, dpa.LaplaceDpEvent) else 0.5 / z**2 + 8 / z
        spread = min(largest**2, rate**2 * math.expm1(min(z**-2, 100.0)))
        fine = min(fine, 0.1 * rate / z)
        widest = max(widest, largest)
        mean += count * min(largest, spread / 2)
        variance += count * spread
    return max(fine, widest / 1e5, (mean + 10 * math.sqrt(variance)) / 2e6)
