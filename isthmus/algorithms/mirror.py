"""Entropic mirror descent over a simplex: multiplicative steps, plain, through a sketch, and private."""

from __future__ import annotations

from dataclasses import replace
from typing import Unpack

from isthmus.algorithms.descent import Family, StepRule, WidthRule, _Descent, _step_rule
from isthmus.algorithms.filling import Build, algorithm
from isthmus.algorithms.private import _PrivateDescent, _PrivateOptions
from isthmus.base import validate
from isthmus.core.minimize import Binding
from isthmus.core.parts import Full, Mirror, Shuffle
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.lifts import unbiased
from isthmus.penalties import NoPenalty
from isthmus.sets import Simplex
from isthmus.sketches import CountSketch, Size
from isthmus.theory import Schedule

_ASKED = "for a simplex only: planned where it is asked for by name"


@algorithm(left_out=_ASKED)
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
    rule, sampler = _step_rule(step, schedule), Full() if batch_size is None else Shuffle(batch_size)
    descent = _Descent(m=m, schedule=schedule, output=output)
    if descent.narrowed:
        descent = replace(descent, sketch=sketch)

    def build(binding: Binding) -> Pipeline:
        release = Release(encode=descent.encode(binding, sampler.rounds(binding.n)))
        if descent.narrowed:
            release = replace(release, lift=unbiased)
        return descent.pipeline(binding, [Stage(sampler, [release])], rule, update=_mirror_of(binding))

    return build


@algorithm(left_out=_ASKED, words="each round adds noise to a sum and moves by factors, inside a simplex")
def dp_mirror_descent(*, batch_size: int | None = None, **options: Unpack[_PrivateOptions]) -> Build:
    """`mirror_descent` on clipped sums with Gaussian noise; arguments as for `dp_sgd`.

    >>> dp_mirror_descent(epsilon=1.0, clip=1.0, step=0.1, n="exact").name
    'dp_mirror_descent'
    """
    options.setdefault("output", "average")
    return _PrivateDescent(batch_size=batch_size, moves=_mirror_of, **options).build


def _mirror_of(binding: Binding) -> Mirror:
    """The multiplicative step of a simplex."""
    constraint, bare = binding.constraint, isinstance(binding.penalty, NoPenalty)
    simplex = isinstance(constraint, Simplex)
    validate.check(simplex, "constraint", constraint, "give Simplex(radius), over which mirror descent runs")
    validate.check(bare, "penalty", binding.penalty, "leave it out: a multiplicative step has no proximal map")
    assert isinstance(constraint, Simplex)
    return Mirror(constraint.radius)
