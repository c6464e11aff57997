"""What server and clients agree on beforehand: how long sums may be, in public numbers, and a digest of the plan."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus.base import storage, validate
from isthmus.core.ranks import Reach, for_wire
from isthmus.core.wire import Message
from isthmus.gradients.rounding import gamma
from isthmus.privacy.bounded import Bounded
from isthmus.privacy.sampling import Sampler

if TYPE_CHECKING:
    from isthmus.distributed.flower.federation import Federation

NOTHING = 2.0**-30
"""What float64 rounds of a sum, relative to the bound of one record, that the bound is not made larger for."""
ANOTHER = "another plan"


# ---------------------------------------------------------------- lengths


def reach_of(plan: Federation, sampler: Sampler) -> Reach:
    """How long the sums of clients may be, in bounds of one term; the same for every client, whatever it has.

    A client that is one term has one bound.  One that adds up records may have all of them: twice what the plan
    expects of a round, and some.  How many it really has is its own business, and nothing here follows from it.
    """
    rate = float(getattr(sampler, "rate", 1.0))
    own = 1.0 if plan.unit == "client" else 16 + 2 * rate * plan.terms
    return Reach(own, plan.clients * own)


def narrowed(message: Message, plan: Federation, sampler: Sampler) -> Message:
    """Clipped sums in the dtype that is sent, with the bound that their sum at the server has.

    Neighbours differ in what one client sends: its cast to float32 (`Bounded.narrowed`, where that adds at most 1 %)
    counts once.  The server adds in float64, where the rounding of all clients' numbers counts (`room`).
    """
    reach = reach_of(plan, sampler)
    sent = for_wire(message, Reach(reach.own, reach.own), 1)
    values = {}
    for name, clipped in sent.values.items():
        same = clipped.dtype is None or clipped.dtype.itemsize >= plan.dtype.itemsize  # the server's bound is for these
        validate.check(same, "dtype", plan.dtype, f"give {clipped.dtype}, which this client's gradients are")
        more = room(clipped, reach, plan.clients)
        remedy = f"give a lower rate or fewer clients: to add sums of up to {reach.own:g} bounds would round too much"
        validate.check(more < 0.5, "n", plan.terms, remedy)
        # R is counted in the larger bound, hence the quotient
        values[name] = replace(clipped, bound=clipped.bound / (1 - more)) if more > NOTHING else clipped
    return replace(sent, values=values)


def room(share: Bounded, reach: Reach, clients: int) -> float:
    """What shortening and adding at the server, in float64, add to the bound at most, relative.

    `clients` vectors whose length is at most R are added with an error below gamma times the sum of lengths; clamped
    vectors (`shortened`) are m^(1/ord) R long.  A computed length is off by (m + 64) 2^-50, relative, at most.
    """
    if not math.isfinite(share.bound):
        return 0.0
    m, ball = share.value.numel(), share.ord == 2
    added = reach.total * (1.0 if ball else m ** (1 / share.ord)) * gamma(clients + 1, torch.float64)
    return float(2 * (added + (reach.own * (m + 64) * 2.0**-50 if ball else 0.0)))


def shortened(share: Bounded, own: float) -> Bounded:
    """A client's sum, no longer than `own` bounds: whoever sends more cannot round the sums of others away.

    In the l2 norm that is a projection onto a ball.  In other norms scaling may move two points further apart, so
    every number is clamped, which does not in any norm.  A sum of one term is scaled: it has one bound in its norm.

    >>> shortened(Bounded(torch.tensor([3.0, 4.0]) * 2**60, 2, 1.0), 10.0).value.round(decimals=9).tolist()
    [6.0, 8.0]
    """
    value, most = share.value.to(torch.float64), own * share.bound
    if share.ord != 2 and own > 1:
        return replace(share, value=value.clamp(-most, most))
    largest = float(value.abs().max()) if value.numel() else 0.0
    if largest > most:  # squares of very large numbers overflow
        value = value * (most / largest)
    length = float(torch.linalg.vector_norm(value, share.ord))
    return replace(share, value=value * (most / length) if length > most else value)


# ---------------------------------------------------------------- the plan


def digest(plan: Federation) -> str:
    """64 bits of all that a client's answer and a promise rest on: equal for equal plans, whatever the process."""
    pipe = plan.pipe
    stages = [
        [stage.name, stage.every, stage.groups, stage.sampler, stage.sampler.divisor(plan.terms), stage.source]
        + [[release.name, release.encode, release.clip, release.mechanism] for release in stage.releases]
        for stage in pipe.stages
    ]
    promised = None if pipe.promise is None else str(pipe.promise.adjacency)
    sizes = [plan.unit, plan.clients, plan.terms, plan.rounds, plan.dtype, plan.linear, plan.dropouts, plan.peak]
    space = [[leaf.name, tuple(leaf.shape)] for leaf in plan.whole.leaves]
    terms = [stages, promised, sizes, space, plan.local, plan.down, pipe.wire]
    return hashlib.blake2b("\n".join(_words(terms)).encode(), digest_size=8).hexdigest()


def _words(value: Any) -> Iterator[str]:
    """A value in words that hold no address and no last digit, which may differ between machines."""
    if isinstance(value, float):
        yield f"{value:.12g}"
    elif isinstance(value, Tensor) or hasattr(value, "fingerprint"):
        yield storage.fingerprint(value)
    elif isinstance(value, Enum):
        yield str(value)
    elif is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__
        for item in (member for member in fields(value) if member.init):  # the others are memories
            yield item.name
            yield from _words(getattr(value, item.name))
    elif isinstance(value, (Mapping, list, tuple)):
        yield f"{len(value)}:"
        for part in value.items() if isinstance(value, Mapping) else value:
            yield from _words(part)
    elif callable(value):
        yield str(getattr(value, "__qualname__", type(value).__qualname__))
    else:
        text = repr(value)
        yield type(value).__qualname__ if " at 0x" in text else text


def check_plan(plan: Federation, config: Mapping[str, Any]) -> None:
    """Refuse an order that was made by another plan, before a record is looked at."""
    sent = config.get("plan")
    remedy = f"give server and clients the same Federation: this one is {ANOTHER} than this client's ({plan.digest})"
    validate.check(sent == plan.digest, "plan", sent, remedy)


def check_linear(plan: Federation, problem: Any) -> None:
    """Refuse a model that is not linear where the plan says so: its sums round more than the server's bound holds."""
    fits = not plan.problem.linear or bool(getattr(problem, "linear", False))
    validate.check(fits, "linear", plan.linear, f"give linear=False: {type(problem).__name__} is not a linear model")
