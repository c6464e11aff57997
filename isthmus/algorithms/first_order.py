"""Projected (stochastic) gradient descent, and its compressed forms.

    theta_t = Pi_{Phi C}(Phi w_t - eta_t Phi g),   w_{t+1} in C with Phi w_{t+1} = theta_t

The two lines are one solve, `min over w in C of ||Phi w - (Phi w_t - eta_t Phi g)||^2`, started at w_t.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus import _validate
from isthmus.lifts import ProjectAndLift, pinv
from isthmus.parts import Full, Shuffle, Step, Weighted
from isthmus.parts.samplers import Sampler
from isthmus.pipeline import Pipeline, Release, Stage, StepSize, Wire
from isthmus.sets import Whole
from isthmus.sketches import CountSketch, Encoder
from isthmus.sketches.base import Size
from isthmus.solve import Binding, Recipe

StepRule = float | Callable[[int], float]


def sgd(*, step: StepRule, batch_size: int = 32, momentum: float = 0.0) -> Recipe:
    """Projected SGD: w+ = P_C(w - eta g).

    >>> sgd(step=0.1).name
    'sgd'
    """
    arguments = {"step": step, "batch_size": batch_size, "momentum": momentum}
    return _plain("sgd", Shuffle(batch_size), step, momentum, arguments)


def gd(*, step: StepRule, momentum: float = 0.0) -> Recipe:
    """Projected gradient descent on all records."""
    return _plain("gd", Full(), step, momentum, {"step": step, "momentum": momentum})


def comp_sgd(
    *,
    m: Size,
    step: StepRule,
    batch_size: int = 32,
    error_feedback: bool = False,
    sketch: Callable[[Size], Encoder] = CountSketch,
    tol: float = 1e-2,
) -> Recipe:
    """CompSGD: SGD that sees m numbers of each gradient.

    m               narrow dimension: a number, a fraction of d, or a rule t -> m
    error_feedback  the sender keeps what the sketch lost and adds it next time; the server then lifts by the
                    pseudo-inverse and projects.  Without it every round is memoryless: project and lift.
    sketch          the family, as a function of m
    tol             accuracy of the project-and-lift solve

    >>> comp_sgd(m=0.1, step=0.1, error_feedback=True).arguments["m"]
    0.1
    """
    arguments = {"m": m, "step": step, "batch_size": batch_size, "error_feedback": error_feedback, "tol": tol}
    return _compressed("comp_sgd", Shuffle(batch_size), m, step, error_feedback, sketch, tol, arguments)


def comp_gd(
    *,
    m: Size,
    step: StepRule,
    error_feedback: bool = False,
    sketch: Callable[[Size], Encoder] = CountSketch,
    tol: float = 1e-2,
) -> Recipe:
    """CompGD: the full-batch form of `comp_sgd`."""
    arguments = {"m": m, "step": step, "error_feedback": error_feedback, "tol": tol}
    return _compressed("comp_gd", Full(), m, step, error_feedback, sketch, tol, arguments)


def step_rule(step: StepRule) -> StepSize:
    """A rule `t -> eta` from a number or a rule."""
    if callable(step):
        return step
    _validate.positive(step=step)
    return lambda t: step


def _plain(name: str, sampler: Sampler, step: StepRule, momentum: float, arguments: dict[str, Any]) -> Recipe:
    rule = step_rule(step)

    def build(binding: Binding) -> Pipeline:
        update = Step(binding.constraint, binding.penalty, momentum)
        return Pipeline([Stage(sampler)], rule, update, Weighted())

    return Recipe(name, build, arguments)


def _compressed(
    name: str,
    sampler: Sampler,
    m: Size,
    step: StepRule,
    error_feedback: bool,
    sketch: Callable[[Size], Encoder],
    tol: float,
    arguments: dict[str, Any],
) -> Recipe:
    rule, encode = step_rule(step), sketch(m)
    _validate.positive(tol=tol)

    def build(binding: Binding) -> Pipeline:
        # without a set there is nothing to project onto: the nearest lift is the pseudo-inverse
        memoryless = not error_feedback and not isinstance(binding.constraint, Whole)
        lift = ProjectAndLift(binding.constraint, tol=tol) if memoryless else pinv
        return Pipeline(
            [Stage(sampler, [Release(encode=encode, lift=lift)])],
            rule,
            Step(binding.constraint, binding.penalty),
            Weighted(),
            Wire(feedback=error_feedback),
        )

    return Recipe(name, build, arguments)
