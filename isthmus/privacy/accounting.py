"""What was released, in the accountant's terms, and what it costs: a thin layer over `dp_accounting`.

An event states its noise relative to the bound C of one record (sigma / C, b / C), whatever the adjacency.
Four routes lead to an epsilon, and the first that supports every part of an event is taken:

| route | parts | replace-one is |
|---|---|---|
| exact | Gaussian | half the multiplier |
| PLD | Gaussian, Laplace, Poisson(Gaussian), Poisson(Laplace) | half the multiplier (nothing sampled) |
| PLD of a pair | Gaussian, Poisson(Gaussian) | the library's own N(-C) against N(+C): the multiplier as it is |
| RDP | Gaussian, Laplace, zCDP, Poisson(Gaussian), subsets(Gaussian) | half the multiplier, four times rho |

Distributions of losses (PLD) are added up by `isthmus.privacy.composition`, from the library's curves of one round.
Add/remove takes no pair and no sampling without replacement; replace-one with RDP takes no Poisson sampling.  The
pair is the library's choice of a worst case for Poisson sampling under replace-one; add/remove with Poisson sampling,
the default, needs no such choice.  Mixtures of Gaussians (sampling with replacement) take PLD, add/remove only.

Skellam noise counts as the Gaussian that it is no worse than, for pairs of laws (`isthmus.privacy.skellam`): on all
records, and on Poisson samples under add/remove, where the law without the record meets a mixture of two.  Poisson
sampling under replace-one and subsets look at three laws at once, and are refused for it.

The conversion is made in `_convert` and nowhere else: the library's own REPLACE_ONE means sigma / C to its PLD
accountant and sigma / (2 C) to its RDP accountant.

>>> round(epsilon(noise_multiplier=4.0, sampling_rate=0.025, steps=1200, delta=1e-5), 4)
0.8158
>>> round(noise_multiplier(epsilon=1.0, delta=1e-5, sampling_rate=0.01, steps=1000), 4)
1.4146
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from enum import Enum
from functools import lru_cache

import numpy as np
from scipy.special import log_ndtr

from isthmus.base import validate
from isthmus.privacy import composition
from isthmus.privacy.event_json import DpEvent, SkellamDpEvent, _one_event, _unsampled, dpa


class Adjacency(Enum):
    """Neighbouring datasets: a sum of records bounded by C moves by `factor * C`.

    | relation | neighbours | factor |
    |---|---|---|
    | ADD_REMOVE | one record more or less: the number of records is protected too | 1 |
    | REPLACE_ONE | one record exchanged, the number of records public | 2 |

    This is the only place where a relation becomes a sensitivity; noise is always stated relative to C.

    >>> Adjacency.ADD_REMOVE.sensitivity(3.0), Adjacency.REPLACE_ONE.sensitivity(3.0)
    (3.0, 6.0)
    """

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"

    @classmethod
    def of(cls, adjacency: Adjacency | str) -> Adjacency:
        """A relation as its type; it may be given by its name.

        >>> Adjacency.of("replace-one") is Adjacency.REPLACE_ONE
        True
        """
        if isinstance(adjacency, Adjacency):
            return adjacency
        validate.one_of([member.value for member in cls], adjacency=adjacency)
        return cls(adjacency)

    @property
    def factor(self) -> int:
        """How many record bounds a sum moves by."""
        return {Adjacency.ADD_REMOVE: 1, Adjacency.REPLACE_ONE: 2}[self]

    def sensitivity(self, bound: float) -> float:
        """The most that a sum of records, each of norm at most `bound`, moves between neighbours."""
        validate.positive(bound=bound)
        return self.factor * bound

    def describe(self) -> str:
        """The relation in words."""
        return {1: "adding or removing one record", 2: "replacing one record by another"}[self.factor]


def solve(
    cost: Callable[[float], float],
    target: float,
    guess: float,
    *,
    slope: float = -1.0,
    tolerance: float = 2e-5,
    evaluations: int = 60,
) -> tuple[float, float]:
    """`s` with `target (1 - tolerance) <= cost(s) <= target`, and d log cost / d log s there.

    Costs fall like a power of the scale, so the secant is taken in logarithms; a bracket keeps it honest.

    >>> round(solve(lambda s: 8 / s**3, 1.0, 1.0)[0], 4)
    2.0
    """
    x, below, above, moved = math.log(guess), -math.inf, math.inf, 0.0
    last: tuple[float, float] | None = None
    widths = [math.inf] * 3
    for _ in range(evaluations):
        value = cost(math.exp(x))
        y = math.copysign(math.inf, value - target)
        if 0 < value < math.inf:
            y = math.log(value / target)
        if -tolerance <= y <= 0:
            return math.exp(x), slope
        if y > 0:
            below = max(below, x)
        else:
            above = min(above, x)
        widths.append(above - below)
        if widths[-1] < 1e-10:
            return math.exp(above), slope
        if last is not None and math.isfinite(y) and math.isfinite(last[1]) and y != last[1]:
            slope = min(-0.02, (y - last[1]) / (x - last[0]))
        last = (x, y)
        step = -(y + tolerance / 2) / slope
        if widths[-1] == math.inf:  # nothing on the other side yet: a cost that is flat here has no slope to follow
            step = math.copysign(max(abs(step), 2 * abs(moved)), step)
        moved = min(2.0, max(-2.0, step))
        x += moved
        if widths[-1] < math.inf and (not below < x < above or widths[-1] > widths[-4] / 2):  # the secant crawls
            x = (below + above) / 2
    remedy = "give a larger epsilon: no amount of noise reaches this one with this accountant"
    validate.refuse("epsilon", target, remedy)


_DISCRETISATION = 1e-4
"""The interval of privacy-loss distributions: results are upper bounds, tight to about 1e-3 of a typical epsilon."""

_ROUNDING = 1e-14
"""What the library's Renyi divergence of one sampled round may lose in rounding (1.4e-15 was seen), added to it."""

_NO_BOUND = {"epsilon": math.inf, "delta": 1.0}
"""What is said where nothing holds."""

_MOST_NOISE = 1e6
"""Above this multiplier the library's Renyi divergence of a sample of fixed size subtracts 1 from 1."""


def _exact(multiplier: float, asked: str, given: float) -> float:
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


def _renyi(parts: Mapping[DpEvent, int], relation: object, asked: str, given: float, coarse: bool) -> float:
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
    accountant.compose(dpa.ZCDpEvent(rho=0.0, xi=_ROUNDING * sum(parts.values())))
    ask = {"epsilon": accountant.get_epsilon_and_optimal_order, "delta": accountant.get_delta_and_optimal_order}
    value, order = ask[asked](given)
    return float(value), min(orders, key=lambda a: abs(a - order))


def _with_less_noise(leaf: DpEvent) -> DpEvent:
    """A sample of fixed size with a little less noise, which costs more: as much as the library's rounding may hide."""
    if not isinstance(leaf, dpa.SampledWithoutReplacementDpEvent):
        return leaf
    z = min(leaf.event.noise_multiplier, _MOST_NOISE)
    less = dpa.GaussianDpEvent(z * (1 - 1e-15 * z**2))
    return type(leaf)(leaf.source_dataset_size, leaf.sample_size, less)


def _interval(leaves: Mapping[DpEvent, int], factor: int) -> float:
    """An interval fine against the loss of one round, with at most some million points for all of them.

    It decides how tight the result is, never whether it is an upper bound.
    """
    fine, widest, mean, variance = _DISCRETISATION, 0.0, 0.0, 0.0
    for leaf, count in leaves.items():
        base, rate = _unsampled(leaf)
        if isinstance(base, dpa.dp_event.MixtureOfGaussiansDpEvent):
            z, rate = base.standard_deviation / max(base.sensitivities), 1 - base.sampling_probs[0]
        else:
            z = base.noise_multiplier / factor
        largest = 0.5 / z**2 + 8 / z
        if isinstance(base, dpa.LaplaceDpEvent):
            largest = 1 / z
        spread = min(largest**2, rate**2 * math.expm1(min(z**-2, 100.0)))
        fine = min(fine, 0.1 * rate / z)
        widest = max(widest, largest)
        mean += count * min(largest, spread / 2)
        variance += count * spread
    return max(fine, widest / 1e5, (mean + 10 * math.sqrt(variance)) / 2e6)


_ADD = Adjacency.ADD_REMOVE
_Relation = Adjacency | str
"""A relation, or its name."""
Leaves = Mapping[DpEvent, int]
_Key = tuple[tuple[DpEvent, int], ...]


_MOST_ROUNDS = 2_000_000
"""Rounds whose loss is followed as a distribution, in seconds; for more the bound is a coarser one."""

_NO_NOISE = 1e-9
"""A multiplier below this counts as 0: its epsilon, some 10^17 and more, counts as infinite."""

_NEARLY_ALL = 1 - 1e-12
"""A sampling rate from here on counts as 1, which costs more: curves of larger ones are no more than rounding."""


class UnsupportedEvent(validate.InvalidInput):
    """An event that no accountant can compose; the message names the part that is to blame."""


# ---------------------------------------------------------------- events


def compose(events: Iterable[DpEvent]) -> DpEvent:
    """One event for all of them, equal ones counted: what a ledger holds.

    >>> from isthmus.privacy import Gaussian
    >>> compose([Gaussian(2.0).event()] * 3)
    SelfComposedDpEvent(event=GaussianDpEvent(noise_multiplier=2.0), count=3)
    """
    return _one_event(_leaves_of_all(events).items())


def joint(events: Iterable[DpEvent]) -> DpEvent:
    """Releases that look at the same sample, as one event that a sampler can wrap.

    Gaussians merge exactly, `1 / z^2 = sum 1 / z_i^2`; anything else is composed, which no sampler takes.

    >>> from isthmus.privacy import Gaussian
    >>> round(joint([Gaussian(6.0).event(), Gaussian(6.0).event()]).noise_multiplier, 4)
    4.2426
    """
    counts = _leaves_of_all(events)
    if any(isinstance(leaf, dpa.NonPrivateDpEvent) for leaf in counts):
        return dpa.NonPrivateDpEvent()
    gaussian, rest = _split(counts)
    if gaussian < math.inf:
        rest = {dpa.GaussianDpEvent(gaussian): 1} | rest
    return _one_event(rest.items())


def _sampled(kind: str, event: DpEvent, allowed: tuple[type, ...], wrap: Callable[[DpEvent], DpEvent]) -> DpEvent:
    """`wrap(event)` where amplification by this sampling is known for the event; refused by name where not."""
    if isinstance(event, (dpa.NonPrivateDpEvent, dpa.NoOpDpEvent)):
        return event
    if not isinstance(event, allowed):
        names = " or ".join(type_.__name__ for type_ in allowed)
        raise UnsupportedEvent(
            f"event={_name(event)} is not allowed: use the full batch with it; {kind} amplifies one {names} in "
            "a round, and nothing else"
        )
    return wrap(event)


def leaves_of(event: DpEvent, count: int = 1) -> Counter[DpEvent]:
    """The parts of a composition with their counts."""
    mixture = dpa.dp_event.MixtureOfGaussiansDpEvent
    if isinstance(event, dpa.ComposedDpEvent):
        return _leaves_of_all(event.events, count)
    if isinstance(event, dpa.SelfComposedDpEvent):
        return leaves_of(event.event, count * event.count)
    if isinstance(event, dpa.PoissonSampledDpEvent) and event.sampling_probability >= _NEARLY_ALL:
        return leaves_of(event.event, count)
    if isinstance(event, mixture) and not isinstance(event.sensitivities, tuple):  # lists cannot be counted
        event = mixture(event.standard_deviation, tuple(event.sensitivities), tuple(event.sampling_probs))
    if isinstance(event, dpa.NoOpDpEvent) or count == 0:
        return Counter()
    return Counter({event: count})


def _leaves_of_all(events: Iterable[DpEvent], count: int = 1) -> Counter[DpEvent]:
    total: Counter[DpEvent] = Counter()
    for event in events:
        total.update(leaves_of(event, count))
    return total


def _split(leaves: Leaves) -> tuple[float, dict[DpEvent, int]]:
    """The multiplier of all unsampled Gaussians together (inf for none), and the rest."""
    gaussians = {leaf: count for leaf, count in leaves.items() if isinstance(leaf, dpa.GaussianDpEvent)}
    if any(map(noiseless, gaussians)):
        return 0.0, {}
    weight = math.fsum(count / leaf.noise_multiplier**2 for leaf, count in gaussians.items())
    rest = {leaf: count for leaf, count in leaves.items() if leaf not in gaussians}
    if weight == 0:
        return math.inf, rest
    return 1 / math.sqrt(weight), rest


def noiseless(leaf: DpEvent) -> bool:
    """Whether it is a release with noise of scale 0, or so little that no accountant can compute with it."""
    return float(getattr(_unsampled(leaf)[0], "noise_multiplier", math.inf)) < _NO_NOISE


def _name(event: DpEvent) -> str:
    inner, name = _unsampled(event)[0], type(event).__name__.removesuffix("DpEvent")
    if inner is event:
        return name
    return f"{name}({_name(inner)})"


# ---------------------------------------------------------------- routes


def _convert(leaf: DpEvent, adjacency: Adjacency, route: str) -> DpEvent | None:
    """The leaf as the route's accountant reads it, or None: the one place where adjacency meets an event."""
    leaf = _as_gaussian(leaf, adjacency)
    base, replaced = _unsampled(leaf)[0], adjacency is Adjacency.REPLACE_ONE
    gaussian, laplace = isinstance(base, dpa.GaussianDpEvent), isinstance(base, dpa.LaplaceDpEvent)
    sampled_leaf, poisson = base is not leaf, isinstance(leaf, dpa.PoissonSampledDpEvent)
    if isinstance(leaf, dpa.ZCDpEvent):  # group privacy of two: 4 rho
        taken = route == "rdp" and not (replaced and leaf.xi)
        leaf = dpa.ZCDpEvent(rho=adjacency.factor**2 * leaf.rho, xi=leaf.xi)
    elif isinstance(leaf, dpa.dp_event.MixtureOfGaussiansDpEvent):
        taken = route == "pld" and not replaced
    elif route == "pair":
        taken = replaced and gaussian and (poisson or not sampled_leaf)
    elif poisson:
        taken = not replaced and (gaussian or (laplace and route == "pld"))
    elif sampled_leaf:
        taken = isinstance(leaf, dpa.SampledWithoutReplacementDpEvent) and replaced and gaussian and route == "rdp"
        if taken:
            leaf = type(leaf)(leaf.source_dataset_size, leaf.sample_size, _divided(base, adjacency.factor))
    else:
        taken = gaussian or laplace
        if taken:
            leaf = _divided(leaf, adjacency.factor)
    if taken:
        return leaf
    return None


def _divided(leaf: DpEvent, factor: int) -> DpEvent:
    return type(leaf)(leaf.noise_multiplier / factor)


def _as_gaussian(leaf: DpEvent, adjacency: Adjacency) -> DpEvent:
    """The leaf with Skellam noise as the Gaussian that it is no worse than, where two laws meet; else as it is."""
    if isinstance(leaf, SkellamDpEvent):
        return dpa.GaussianDpEvent(leaf.noise_multiplier)
    paired = isinstance(leaf, dpa.PoissonSampledDpEvent) and adjacency is Adjacency.ADD_REMOVE
    if paired and isinstance(leaf.event, SkellamDpEvent):
        return dpa.PoissonSampledDpEvent(leaf.sampling_probability, dpa.GaussianDpEvent(leaf.event.noise_multiplier))
    return leaf


_ROUTES = ("pld", "pair", "rdp")


def _route_of(leaves: Leaves, adjacency: Adjacency) -> str:
    """The first route that takes every part; else `UnsupportedEvent` names the part."""
    open_routes = list(_ROUTES)
    for leaf in leaves:
        alone = [route for route in _ROUTES if _convert(leaf, adjacency, route) is not None]
        open_routes = [route for route in open_routes if route in alone]
        if not open_routes:
            others = sorted({_name(event) for event in leaves if event is not leaf and alone})
            together = ""
            if others:
                together = f" together with {', '.join(others)}"
            raise UnsupportedEvent(
                f"event={_name(leaf)} is not allowed: use mechanisms that one accountant composes for "
                f"{adjacency.describe()}; none composes this one{together}"
            )
    return open_routes[0]


def supports(event: DpEvent, adjacency: _Relation = _ADD) -> bool:
    """Whether some accountant composes the event: asked before a run starts.

    >>> from isthmus.privacy import NoisyMax
    >>> supports(NoisyMax(1.0).event())
    True
    """
    try:
        check(event, adjacency)
    except UnsupportedEvent:
        return False
    return True


def check(event: DpEvent, adjacency: _Relation = _ADD) -> None:
    """Refuse by name what no accountant composes.

    >>> from isthmus.privacy import FixedSize, Gaussian
    >>> check(FixedSize(10, n=100).event(Gaussian(1.0).event()))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.privacy.accounting.UnsupportedEvent: event=SampledWithoutReplacement(Gaussian) is not allowed: ...
    """
    kinds = {leaf: 1 for leaf in leaves_of(event) if not isinstance(leaf, dpa.NonPrivateDpEvent)}
    _route_of(kinds, Adjacency.of(adjacency))


# ---------------------------------------------------------------- costs


def epsilon_of(event: DpEvent, delta: float, adjacency: _Relation = _ADD) -> float:
    """The smallest epsilon the accountant can vouch for at `delta`.

    >>> from isthmus.privacy import Gaussian
    >>> round(epsilon_of(Gaussian(1.0).event(), 1e-5), 6), round(epsilon_of(Gaussian(2.0).event(), 1e-5,
    ...     Adjacency.REPLACE_ONE), 6)
    (4.377178, 4.377178)
    """
    validate.open_unit(delta=delta)
    check(event, adjacency)
    return _cost(_key(event), Adjacency.of(adjacency), "epsilon", delta)


def delta_of(event: DpEvent, epsilon: float, adjacency: _Relation = _ADD) -> float:
    """The smallest delta the accountant can vouch for at `epsilon`."""
    validate.non_negative(epsilon=epsilon)
    check(event, adjacency)
    return _cost(_key(event), Adjacency.of(adjacency), "delta", epsilon)


def _key(event: DpEvent) -> _Key:
    return tuple(leaves_of(event).items())


@lru_cache(maxsize=4096)
def _cost(key: _Key, adjacency: Adjacency, asked: str, given: float, haste: int = 0) -> float:
    """The cost in full care; with haste 1 or 2 a larger bound, faster, for searches to start from."""
    most = _NO_BOUND[asked]  # so little noise, or so often, that no number holds the cost
    if all(isinstance(_unsampled(leaf)[0], dpa.LaplaceDpEvent) for leaf, _ in key):
        pure = _pure(key, adjacency)
        if asked == "epsilon":
            most = pure
        elif given >= pure:
            most = 0.0
    with suppress(OverflowError, ZeroDivisionError), np.errstate(all="ignore"):
        if not math.isnan(cost := _finite_cost(key, adjacency, asked, given, haste)):
            return min(cost, most)
    return most


def _pure(key: _Key, adjacency: Adjacency) -> float:
    """The sum of what rounds of Laplace noise cost each, at every delta: a distribution on a grid says a little more.

    A sampled round of pure e costs log(1 + q (exp(e) - 1)).
    """
    if any(noiseless(leaf) for leaf, _ in key):
        return math.inf
    costs = []
    for leaf, count in key:
        base, rate = _unsampled(leaf)
        each = adjacency.factor / float(base.noise_multiplier)
        if rate == 0:
            each = 0.0
        elif rate < 1:
            each = float(np.logaddexp(math.log(rate) + each, math.log1p(-rate)))
        costs.append(count * each)
    return math.fsum(costs) * (1 + 1e-15)  # above what rounding took away


def _finite_cost(key: _Key, adjacency: Adjacency, asked: str, given: float, haste: int) -> float:
    leaves = dict(key)
    if any(isinstance(leaf, dpa.NonPrivateDpEvent) or noiseless(leaf) for leaf in leaves):
        return _NO_BOUND[asked]
    counted: Counter[DpEvent] = Counter()
    for leaf, count in leaves.items():
        counted[_as_gaussian(leaf, adjacency)] += count
    gaussian, rest = _split(counted)
    if not rest:
        return _exact(gaussian / adjacency.factor, asked, given)
    if gaussian < math.inf:
        rest[dpa.GaussianDpEvent(gaussian)] = 1
    routes = {_route_of(rest, adjacency)}
    many = sum(rest.values()) > _MOST_ROUNDS
    if (many or haste == 2) and all(_convert(leaf, adjacency, "rdp") is not None for leaf in rest):
        routes = {"rdp"}
        if many:
            routes.add(_route_of(rest, adjacency))
    return min(_by(route, rest, adjacency, asked, given, haste) for route in routes)


def _by(route: str, leaves: Leaves, adjacency: Adjacency, asked: str, given: float, haste: int) -> float:
    """What the accountant of one route answers."""
    if route != "rdp" and sum(leaves.values()) > _MOST_ROUNDS:
        return _in_blocks(route, leaves, adjacency, asked, given, haste)
    parts = {_convert(leaf, adjacency, route): count for leaf, count in leaves.items()}
    replaced = adjacency is Adjacency.REPLACE_ONE and route != "pld"  # route "pld" halved the multipliers itself
    if route == "rdp":
        relation = dpa.NeighboringRelation.ADD_OR_REMOVE_ONE
        if replaced:
            relation = dpa.NeighboringRelation.REPLACE_ONE
        return _renyi(parts, relation, asked, given, haste > 0)
    return composition.cost(parts, replaced, _interval(leaves, adjacency.factor) * (1, 8, 8)[haste], asked, given)


def _in_blocks(route: str, leaves: Leaves, adjacency: Adjacency, asked: str, given: float, haste: int) -> float:
    """Basic composition: k blocks that are (epsilon, delta)-private each are (k epsilon, k delta)-private together."""
    k = -(-2 * sum(leaves.values()) // _MOST_ROUNDS)
    block = {leaf: -(-count // k) for leaf, count in leaves.items()}
    if sum(block.values()) > _MOST_ROUNDS or (given / k == 0 and asked == "epsilon"):
        raise OverflowError("the blocks are too many, or one of each kind is more than a block holds")
    return min(_NO_BOUND[asked], k * _by(route, block, adjacency, asked, given / k, haste))


# ---------------------------------------------------------------- front doors


def epsilon(
    *, noise_multiplier: float, sampling_rate: float = 1.0, steps: int = 1, delta: float, adjacency: _Relation = _ADD
) -> float:
    """Epsilon of `steps` Gaussian releases of noise `noise_multiplier * C` on Poisson samples of a rate.

    >>> round(epsilon(noise_multiplier=117.972931, steps=1000, delta=1e-5), 6)
    1.0
    """
    event = _front("gaussian", noise_multiplier, sampling_rate, steps)
    return epsilon_of(event, delta, adjacency)


def delta(
    *, noise_multiplier: float, sampling_rate: float = 1.0, steps: int = 1, epsilon: float, adjacency: _Relation = _ADD
) -> float:
    """Delta of `steps` Gaussian releases of noise `noise_multiplier * C` on Poisson samples of a rate.

    >>> f"{delta(noise_multiplier=3.7306316348, epsilon=1.0):.4e}"
    '1.0000e-05'
    """
    event = _front("gaussian", noise_multiplier, sampling_rate, steps)
    return delta_of(event, epsilon, adjacency)


def noise_multiplier(
    *,
    epsilon: float,
    delta: float,
    sampling_rate: float = 1.0,
    steps: int = 1,
    adjacency: _Relation = _ADD,
    mechanism: str = "gaussian",
) -> float:
    """The noise, relative to the bound C of a record, for which `steps` releases cost `epsilon` at `delta`.

    The accountant's epsilon at the result is at most the target and within 0.01 % of it.

    >>> round(noise_multiplier(epsilon=1.0, delta=1e-5), 6)
    3.730632
    """
    validate.positive(epsilon=epsilon)
    validate.open_unit(delta=delta)
    _front(mechanism, 1.0, sampling_rate, steps)
    return _noise_multiplier(epsilon, delta, sampling_rate, steps, Adjacency.of(adjacency), mechanism)


@lru_cache(maxsize=1024)
def _noise_multiplier(
    epsilon: float, delta: float, rate: float, steps: int, adjacency: Adjacency, mechanism: str
) -> float:
    with np.errstate(all="ignore"):  # its search begins at noise for which no number holds the curve
        full = dpa.get_sigma_gaussian(epsilon, delta) * math.sqrt(steps) * adjacency.factor
    if mechanism == "gaussian" and rate == 1:
        return float(full) * (1 + 1e-12)  # the root is found to 1e-12: stay on its safe side
    guess = max(full * rate, 0.4)
    return calibrate(lambda z: _front(mechanism, z, rate, steps), epsilon, delta, adjacency, guess)


def calibrate(
    event_at: Callable[[float], DpEvent], epsilon: float, delta: float, adjacency: _Relation = _ADD, guess: float = 1.0
) -> float:
    """The scale at which `event_at(scale)` costs `epsilon` at `delta`, from below; cost must fall with the scale.

    Fast accountants bring the guess near, the tight one finishes in a few evaluations.

    >>> from isthmus.privacy import Gaussian
    >>> round(calibrate(lambda s: Gaussian(s).event(), 1.0, 1e-5), 3)
    3.731
    """
    adjacency = Adjacency.of(adjacency)
    check(event_at(guess), adjacency)
    slope = -1.0
    for haste, tolerance in ((2, 0.01), (1, 1e-4), (0, 2e-5)):

        def cost(scale: float, haste: int = haste) -> float:
            return _cost(_key(event_at(scale)), adjacency, "epsilon", delta, haste)

        try:
            guess, slope = solve(cost, epsilon, guess, slope=slope, tolerance=tolerance)
        except validate.InvalidInput:  # the fast accountant has a floor that the tight one may not have
            if haste == 0:
                raise
    return guess


def _front(mechanism: str, multiplier: float, rate: float, steps: int) -> DpEvent:
    validate.one_of(("gaussian", "laplace"), mechanism=mechanism)
    validate.positive(noise_multiplier=multiplier)
    validate.probability(sampling_rate=rate)
    validate.positive_int(steps=steps)
    kinds = {"gaussian": dpa.GaussianDpEvent, "laplace": dpa.LaplaceDpEvent}
    return dpa.SelfComposedDpEvent(dpa.PoissonSampledDpEvent(rate, kinds[mechanism](multiplier)), steps)
