"""What a theorem prescribes, round by round: rules for steps, batches and dimensions, which recipes take.

Rounds are counted from 0 here; the papers' t is t + 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from isthmus.base import validate
from isthmus.theory.arguments import check_arguments


def round_up(x: float) -> int:
    """The least integer that is at least x, up to a relative rounding error of 1e-12.

    >>> round_up(3 * 1.1 / 1.1), round_up(3.01)
    (3, 4)
    """
    return math.ceil(x * (1 - 1e-12))


def narrow_dimension(d: int, width: float, beta: float, constant: float = 1.0) -> int:
    """The dimension of a compressed gradient, m = min(d, c w(C)^2 / beta^2), up to a constant.

    Algorithm CompSGD (paper 001), step 2a, rounded up.  Its section 2.2 prints max{d, t^2 log d}, which is min.

    Lemma 2.2 derives ||Phi v||^2 >= (1 - beta) ||v||^2 for v = w_{t+1} - w from this m by Gordon's theorem, but
    applies that to the *normalised* directions of C - C: when C has an interior these fill the sphere, whose width
    is `direction_width(d)`, about sqrt(d), and not w(C).  The step is right for the tangent cone at a fixed w*: give
    `sparse_cone_width(d, k)` as the width for a k-sparse w* on the boundary of an l1 ball.

    >>> narrow_dimension(10_000, 3.0, 0.1), narrow_dimension(500, 3.0, 0.1)
    (900, 500)
    """
    check_arguments(locals())
    narrow = constant * (width / beta) ** 2
    return d if narrow >= d else max(1, round_up(narrow))


@dataclass(frozen=True)
class Rule:
    """A number for each round: scale / (t + offset)^power, kept between `low` and `high`.

    >>> [Rule(2.0, power=1.0)(t) for t in range(4)]
    [2.0, 1.0, 0.6666666666666666, 0.5]
    >>> Rule(2.0, power=1.0, high=0.25)(0)
    0.25
    """

    scale: float
    power: float = 0.0
    offset: int = 1
    low: float = 0.0
    high: float = math.inf

    def __post_init__(self) -> None:
        validate.non_negative(scale=self.scale, low=self.low)
        validate.positive_int(offset=self.offset)
        validate.check(math.isfinite(self.power), "power", self.power, "give a finite number")
        validate.check(self.high >= self.low, "high", self.high, f"give at least low = {self.low}")

    def __call__(self, t: int) -> float:
        validate.non_negative_int(t=t)
        return min(self.high, max(self.low, self.scale / float((t + self.offset) ** self.power)))


@dataclass(frozen=True)
class Schedule:
    """What a theorem prescribes.

    step       eta_t
    beta       the distortion beta_t that sets m_t; None when nothing is compressed
    batch      the minibatch size (clients a round in the distributed theorems), before rounding up
    rounds     T, where the theorem fixes it
    threshold  stop when a round moves the iterate by no more than this, where the theorem stops
    gap        stop when the compressed Frank-Wolfe gap is no more than this, where the theorem stops

    >>> plan = Schedule(step=Rule(4.0, power=1.0), beta=Rule(1.0, power=1.0))
    >>> plan.step(0), plan.step(3), plan.beta(3), plan.batch_size(3), plan.dimension(3, 1000, 2.0)
    (4.0, 1.0, 0.25, 1, 64)
    """

    step: Rule
    beta: Rule | None
    batch: Rule = field(default_factory=lambda: Rule(1.0))
    rounds: int | None = None
    threshold: float | None = None
    gap: float | None = None

    def batch_size(self, t: int = 0) -> int:
        """The batch of round t, rounded up."""
        return round_up(self.batch(t))

    def dimension(self, t: int, d: int, width: float, constant: float = 1.0) -> int:
        """m_t = min(d, c w(C)^2 / beta_t^2); d when nothing is compressed."""
        return d if self.beta is None else narrow_dimension(d, width, self.beta(t), constant)
