"""Noise, time and memory of a filling, from public facts; times and memory are estimates."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from isthmus.algorithms.facts import Facts
from isthmus.privacy import Charge, Poisson, PrivacyPlan
from isthmus.privacy.adjacency import Adjacency

NUMBER = 8
"""Bytes of a number (float64)."""
ENTRIES = 4e8
"""Dense entries a second that one core reads in a product."""
SPARSE_ENTRIES = 1.5e8
"""CSR entries a second."""
NORMALS = 1.5e6
"""Secret normals a second."""
FLOPS = 4e9
"""Multiplications a second in dense products."""
ROUND = 4e-4
"""Seconds that a round costs whatever its size."""
LOOKS = 3
"""How often a round reads its rows: margins, norms, weighted sum."""


def poisson_multiplier(facts: Facts, rate: float, rounds: int) -> float:
    """Noise multiplier of `rounds` Poisson batches, calibrated once for each (rate, rounds)."""
    return split(facts, Charge("gradient", rounds=rounds, sampler=Poisson(rate)))["gradient"]


def full_multiplier(facts: Facts, rounds: int, share: float = 1.0) -> float:
    """sqrt(T / share) / mu: exact for Gaussian releases of all records."""
    return Charge("gradient", rounds=rounds, share=share * (1 - facts.before)).number_at(1 / facts.mu)


def split(facts: Facts, *items: Charge) -> dict[str, float]:
    """The numbers of a plan with several items, beside what is bought before."""
    bought = (Charge("before", share=facts.before),) if facts.before else ()
    rest = tuple(replace(item, share=item.share * (1 - facts.before)) for item in items)
    if not facts.exact:
        return {item.name: _first_order(item, facts.mu) for item in bought + rest}
    return dict(_split(facts.epsilon, facts.delta or 0.0, facts.adjacency, bought + rest))


def _first_order(item: Charge, mu: float) -> float:
    """The multiplier by the central limit theorem: a round at rate q spends q^2 (exp(1/z^2) - 1) of mu^2."""
    number = item.number_at(1 / mu)
    sampled = item.sampler.rate < 1 and not item.selects
    return 1 / math.sqrt(math.log1p(number**-2)) if sampled else number


@lru_cache(maxsize=256)
def _split(epsilon: float, delta: float, adjacency: str, items: tuple[Charge, ...]) -> dict[str, float]:
    plan = PrivacyPlan(epsilon, delta, Adjacency(adjacency), items=items)
    return {item.name: plan.multiplier(item.name) for item in items}


def seconds(facts: Facts, rounds: int, batch_size: int | None, noised: int, extra: float = 0.0) -> float:
    """Rounds times (fixed cost + reading the batch + drawing noise), plus what a method adds of its own."""
    rows = facts.n if batch_size is None else batch_size
    speed = SPARSE_ENTRIES if facts.sparse else ENTRIES
    reading = LOOKS * rows * facts.filled * facts.outputs / speed
    noise = noised / NORMALS if facts.private else 0.0
    return rounds * (ROUND + reading + noise) + extra


def gram_seconds(facts: Facts) -> float:
    """X'X, or X X', whichever is smaller, and its eigenvalues."""
    least, most = sorted((facts.n, facts.d))
    return facts.filled / facts.d * least**2 * most / FLOPS + least**3 / FLOPS


def memory(facts: Facts, batch_size: int | None, vectors: int = 6, extra: int = 0) -> int:
    """A few vectors of parameters, slopes of a batch, copied rows of a sampled batch."""
    rows = facts.n if batch_size is None else batch_size
    copied = 0 if batch_size is None else math.ceil(rows * facts.filled) * (12 if facts.sparse else NUMBER)
    return NUMBER * (vectors * facts.parameters + 4 * rows * facts.outputs) + copied + extra
