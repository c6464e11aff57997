"""Mirror descent on the simplex, on whole, compressed or noisy gradients.

    w+_j = r w_j exp(-eta g_j) / sum_i w_i exp(-eta g_i)

A step multiplies instead of adding: the rate depends on the largest entry of a gradient and on log d.
"""

from __future__ import annotations

from isthmus.algorithms.filling import Build, algorithm
from isthmus.algorithms.first_order import Descent, Family, StepRule, WidthRule, narrowed, step_rule
from isthmus.algorithms.private import Relation, private_descent
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.lifts import pinv, unbiased
from isthmus.parts import Full, Mirror, Shuffle
from isthmus.penalties import NoPenalty
from isthmus.privacy import AdaptiveClip
from isthmus.sets import Simplex
from isthmus.sketches import CountSketch
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
) -> Build:
    """Entropic mirror descent over `Simplex(radius)`, from its middle unless told otherwise.

    step        eta, or a rule t -> eta: sqrt(2 log d / T) over the largest entry of a gradient is the theorem's
    m           None takes gradients as they are; else m numbers of each, lifted without bias (times d / m)
    batch_size  None: all records
    output      as for `sgd`; the theorem is about the average

    >>> mirror_descent(step=0.1).name
    'mirror_descent'
    """
    rule, sampler = step_rule(step, schedule), Full() if batch_size is None else Shuffle(batch_size)
    descent = Descent(m=m, schedule=schedule, output=output, sketch=sketch if narrowed(m, schedule) else None)

    def build(binding: Binding) -> Pipeline:
        encode = descent.encode(binding, sampler.rounds(binding.n))
        stage = Stage(sampler, [Release(encode=encode, lift=pinv if descent.sketch is None else unbiased)])
        return descent.pipeline(binding, [stage], rule, update=mirror_of(binding))

    return build


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
) -> Build:
    """`mirror_descent` on clipped sums with Gaussian noise; arguments as for `dp_sgd`.

    >>> dp_mirror_descent(epsilon=1.0, clip=1.0, step=0.1, n="exact").name
    'dp_mirror_descent'
    """
    return private_descent(moves=mirror_of, **locals())


def mirror_of(binding: Binding) -> Mirror:
    """The multiplicative step of a simplex."""
    constraint, bare = binding.constraint, isinstance(binding.penalty, NoPenalty)
    simplex = isinstance(constraint, Simplex)
    validate.check(simplex, "constraint", constraint, "give Simplex(radius), over which mirror descent runs")
    validate.check(bare, "penalty", binding.penalty, "leave it out: a multiplicative step has no proximal map")
    assert isinstance(constraint, Simplex)
    return Mirror(constraint.radius)
