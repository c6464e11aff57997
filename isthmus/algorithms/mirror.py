"""Mirror descent on the simplex, on whole, compressed or noisy gradients.

    w+_j = r w_j exp(-eta g_j) / sum_i w_i exp(-eta g_i)

A step multiplies instead of adding: the rate depends on the largest entry of a gradient and on log d.
"""

from __future__ import annotations

from dataclasses import replace

from isthmus.algorithms.filling import algorithm
from isthmus.algorithms.first_order import Family, StepRule, WidthRule, bound_size, scheduled_size, step_rule
from isthmus.algorithms.private import Budget, Relation, _Private
from isthmus.base import validate
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.parts import average_of
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.lifts import pinv, unbiased
from isthmus.parts import Full, Mirror, Shuffle
from isthmus.penalties import NoPenalty
from isthmus.privacy import AdaptiveClip
from isthmus.sets import Simplex
from isthmus.sketches import CountSketch, Identity
from isthmus.sketches.base import Size
from isthmus.theory import Schedule

ASKED = "for a simplex only: planned where it is asked for by name"


@algorithm(left_out=ASKED)
def mirror_descent(
    *,
    step: StepRule | None = None,
    m: Size | WidthRule | None = None,
    batch_size: int | None = None,
    schedule: Schedule | None = None,
    output: str = "average",
    sketch: Family = CountSketch,
) -> Recipe:
    """Entropic mirror descent over `Simplex(radius)`, from its middle unless told otherwise.

    step        eta, or a rule t -> eta: sqrt(2 log d / T) over the largest entry of a gradient is the theorem's
    m           None takes gradients as they are; else m numbers of each, lifted without bias (times d / m)
    batch_size  None: all records
    output      as for `sgd`; the theorem is about the average

    >>> mirror_descent(step=0.1).name
    'mirror_descent'
    """
    step_rule(step, schedule)
    average_of(output)

    def build(binding: Binding) -> Pipeline:
        sampler = Full() if batch_size is None else Shuffle(batch_size)
        size = scheduled_size(m, schedule)
        encode = Identity() if size is None else sketch(bound_size(size, binding, sampler.rounds(binding.n)))
        return Pipeline(
            [Stage(sampler, [Release(encode=encode, lift=pinv if size is None else unbiased)])],
            step_rule(step, schedule),
            mirror_of(binding),
            average_of(output),
            output="last" if output == "last" else "average",
            rounds=None if schedule is None else schedule.rounds,
        )

    return Recipe("mirror_descent", build, {"m": m, "step": step, "batch_size": batch_size, "output": output})


@algorithm(left_out=ASKED, words="each round adds noise to a sum and moves by factors, inside a simplex")
def dp_mirror_descent(
    *,
    epsilon: float,
    delta: float | None = None,
    clip: float | AdaptiveClip,
    step: StepRule,
    batch_size: int | None = None,
    n: int | str | None = None,
    adjacency: Relation = "add-remove",
    output: str = "average",
) -> Recipe:
    """`mirror_descent` on clipped sums with Gaussian noise; arguments as for `dp_sgd`.

    >>> dp_mirror_descent(epsilon=1.0, clip=1.0, step=0.1, n="exact").name
    'dp_mirror_descent'
    """
    filling = _Private(Budget(epsilon, delta, adjacency, n), clip, step, batch_size, output, 0.0)
    return replace(filling, update=mirror_of).recipe("dp_mirror_descent")


def mirror_of(binding: Binding) -> Mirror:
    """The multiplicative step of a simplex."""
    constraint, bare = binding.constraint, isinstance(binding.penalty, NoPenalty)
    simplex = isinstance(constraint, Simplex)
    validate.check(simplex, "constraint", constraint, "give Simplex(radius), over which mirror descent runs")
    validate.check(bare, "penalty", binding.penalty, "leave it out: a multiplicative step has no proximal map")
    assert isinstance(constraint, Simplex)
    return Mirror(constraint.radius)
