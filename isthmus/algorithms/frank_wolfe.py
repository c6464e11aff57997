"""CompFW (paper 001, App. E): Frank-Wolfe on compressed gradients.

theta_t = argmin over Phi C of <y, theta> = Phi s  with  s = argmin over C of <Phi' y, s>:  no lift is solved
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.algorithms.declare import algorithm
from isthmus.algorithms.dimension import WidthRule, bound_size, scheduled_size
from isthmus.algorithms.filling import Choice, Facts, Refusal, costs, free_run
from isthmus.base import validate
from isthmus.core.minimize import Binding, Recipe
from isthmus.core.pipeline import Pipeline, Release, Stage
from isthmus.core.samplers import Sampler
from isthmus.lifts import adjoint
from isthmus.parts import FrankWolfe, Full, GapBelow, Uniform, WithoutReplacement
from isthmus.sketches import CountSketch, Encoder, Identity
from isthmus.sketches.base import Size
from isthmus.theory import Rule, Schedule


@algorithm(needs=("lmo",))
def comp_fw(
    *,
    m: Size | WidthRule | None = None,
    batch_size: int | Callable[[int], int] | None = None,
    step: Callable[[int], float] | None = None,
    schedule: Schedule | None = None,
    line_search: str = "open",
    smoothness: float | None = None,
    away: bool = False,
    alpha: float | None = None,
    draw: str | None = None,
    lmo_error: float = 0.0,
    sketch: Callable[[Size], Encoder] = CountSketch,
) -> Recipe:
    """CompFW: w+ = w + gamma (s - w), s the vertex that the sketched gradient prefers.

    m            narrow dimension as for `comp_sgd`; None (and no schedule) is plain Frank-Wolfe
    batch_size   a number or a rule t -> b; None: the schedule's, else all records
    draw         "subset" (different records, at most all) or "independent" (b independent calls of the oracle, as the
                 theorems have it); None: independent where the schedule says how many, else a subset
    step         gamma_t; by default the schedule's, else 2/(t+2)
    line_search  "open" uses the step, "short" gap / (mu ||s - w||^2) (needs `smoothness`), "line" searches the loss
    away         away steps: vertices that turned out bad lose their weight again
    alpha        stop at the first point whose compressed gap is at most alpha, if its true gap is too;
                 `result.x` is None when there was none, `result.certificate` has the true gap.  None: that of the
                 schedule, where it has one: the first w_tau of compressed gap at most alpha (Theorem E.1), or none
    lmo_error    e: s may be e gamma_t short of the minimum, which the stop rule adds to the gap.  For sets that save
                 work by it (`NuclearBall`: Lanczos in place of a decomposition); `lab.theory.oracle_error` says
                 how large Theorem E.2 allows it

    >>> comp_fw(m=20, away=True).name
    'comp_fw'
    """
    if alpha is not None:
        validate.positive(alpha=alpha)
    validate.non_negative(lmo_error=lmo_error)
    how = draw or ("independent" if batch_size is None else "subset")
    validate.one_of(("subset", "independent"), draw=how)
    rule = step or (schedule.step if schedule is not None else Rule(2.0, power=1.0, offset=2))
    batch = batch_size if batch_size is not None or schedule is None else schedule.batch_size

    def build(binding: Binding) -> Pipeline:
        sampler: Sampler = Full() if batch is None else Uniform(batch)
        if batch is not None and how == "subset":
            sampler = WithoutReplacement(_capped(batch, binding.n))
        size = scheduled_size(m, schedule)
        encode = Identity() if size is None else sketch(bound_size(size, binding, sampler.rounds(binding.n)))
        loss = binding.loss if line_search == "line" else None
        return Pipeline(
            [Stage(sampler, [Release(encode=encode, lift=adjoint)])],
            rule,
            FrankWolfe(binding.constraint, line_search, smoothness, loss, away, lmo_error),
            stop=_stop(alpha, schedule, binding),
            rounds=schedule.rounds if schedule is not None else None,
        )

    arguments = {"m": m, "batch_size": batch_size, "line_search": line_search, "away": away, "alpha": alpha}
    return Recipe("comp_fw", build, {**arguments, "schedule": schedule})


def _stop(alpha: float | None, schedule: Schedule | None, binding: Binding) -> GapBelow | None:
    """A gap that is checked on the full gradient where alpha was given, else as the schedule's theorem reads it."""
    if alpha is not None:
        return GapBelow(alpha, binding.constraint, binding.gradient)
    planned = None if schedule is None else schedule.gap
    return None if planned is None else GapBelow(planned, binding.constraint)


def _capped(batch: int | Callable[[int], int], n: int) -> int | Callable[[int], int]:
    """A growing batch stops growing at all the records."""
    return (lambda t: min(batch(t), n)) if callable(batch) else batch


# ---------------------------------------------------------------- how it is filled from public facts


@comp_fw.filling(
    evidence="measured (001-compfw-convex): away steps end 10^6 times below plain ones on an l1 ball",
    shortfall=(0.01, 0.05),
)
def _fill(facts: Facts) -> Choice | Refusal:
    """No projection, sparse iterates; away steps where the whole gradient may be seen."""
    able = facts.constraint is not None and facts.constraint.bounded and facts.constraint.can("lmo")
    if not able:
        return Refusal("it needs a bounded set with a linear minimiser as constraint")
    if facts.step is not None:
        return Refusal("its steps are searched for: leave step out")
    m = facts.max_dims if facts.narrow else None
    run = free_run(facts, m or facts.parameters, sampled=False)
    arguments = {"m": m, "away": m is None, "line_search": "line" if m is None else "open"}
    seconds = costs.seconds(facts, run.rounds, None, 0) * (5 if m is None else 1)
    return run.choice(arguments, "" if m else "away steps", seconds=seconds)
