"""DP-GD: clipped sums of all records with Gaussian noise, after what is bought first for linear models.

What is bought is in `purchases`; which of it, and how long the descent is then, is said at the end of this file.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Unpack

from isthmus.algorithms.budget import _BudgetOptions
from isthmus.algorithms.descent import StepRule, Stop
from isthmus.algorithms.facts import CONSTANTS, NUMBER, Facts
from isthmus.algorithms.filling import AVERAGED, Build, Choice, Refusal, _plain_run, _stepped, algorithm, full_run, walk
from isthmus.algorithms.private import _PrivateDescent
from isthmus.algorithms.purchases import SMALL, Columns, Lambda, Moments, Shapes, Statistics, SumPurchase, TargetShape
from isthmus.algorithms.purchases import _ShrunkStatistics as ShrunkStatistics
from isthmus.base import validate
from isthmus.objectives.linear import GRAM_LIMIT
from isthmus.privacy import AdaptiveClip
from isthmus.theory import Schedule


@algorithm(direct=True, words="each round adds up all records, limits what one record can contribute, and adds noise")
def dp_gd(
    *,
    clip: float | AdaptiveClip,
    step: StepRule | str | None = None,
    momentum: float = 0.0,
    output: str = "last",
    scale: str = "none",
    features: int | None = None,
    functions: int = 6,
    level: int = 6,
    targets: bool = False,
    precondition: bool = False,
    tau: float | None = None,
    schedule: Schedule | None = None,
    stop: Stop | None = None,
    **budget: Unpack[_BudgetOptions],
) -> Build:
    """DP-GD: `dp_sgd` on all records every round.

    For linear models whose rows have norm at most 1 it can first buy, from the same budget, what it needs to know:

    scale         "moments" (dense): noisy column means and second moments, 10 % of the budget; columns are centred and
                  scaled, rows clipped to norm 1, a bias column added.  "columns" (CSR): second moments only, rows
                  renormalised.  "shapes" (dense): histograms of the columns, 25 %, and of the targets, 3 %; columns
                  become at most `functions` smooth functions each and `features` in all (see `problems.features`; 1 is
                  the linear one), targets are centred, logits start at the class shares; `level` is that of the grid.
                  `result.transform` maps new rows the same way.
    targets       3 % for the histogram of the targets with any other scale too
    step          "auto": 2 % for lambda_max of X'X; the step is as long as it is stable and its accumulated noise,
                  about `tau` in the margin of a unit row (by default 10 / sqrt(d) for labels, 3 / sqrt(d) for numbers,
                  within limits), allows
    precondition  30 % for noisy sufficient statistics: start at their ridge solution, step with their inverse
    """
    validate.one_of(("none", "columns", "moments", "shapes"), scale=scale)
    rule: StepRule | None = None
    if isinstance(step, str):
        validate.one_of(("auto",), step=step)
    else:
        rule = step
    if tau is not None:
        validate.positive(tau=tau)
    scales = {"columns": Columns(), "moments": Moments(), "shapes": Shapes(features or 0, functions, level)}
    buys: list[SumPurchase] = [item for name, item in scales.items() if name == scale]
    smooth = scale == "shapes"
    if targets or smooth:
        buys.append(TargetShape(clips=smooth))
    if precondition:
        buys.append(ShrunkStatistics() if smooth else Statistics())
    elif step == "auto" or (step is None and scale != "none"):
        buys.append(Lambda(tau=tau))
    validate.check(rule is None or not precondition, "step", step, "leave it out: preconditioned steps have length 1")
    fixed = not (buys and isinstance(clip, AdaptiveClip))
    validate.check(fixed, "clip", clip, "give a number: the step that is bought depends on it")
    for name, value in {"momentum": momentum or None, "schedule": schedule, "stop": stop}.items():
        remedy = "leave it out: what is bought is for a planned number of plain steps"
        validate.check(value is None or not buys, name, value, remedy)
    descent = _PrivateDescent(
        clip=clip, step=rule, buys=tuple(buys), momentum=momentum, output=output, schedule=schedule, stop=stop, **budget
    )
    return descent.build


# ---------------------------------------------------------------- how it is filled from public facts


_SHARES = {"none": 0.0, "columns": Columns.share, "moments": Moments.share, "shapes": Shapes.share + TargetShape.share}


@dp_gd.filling(
    "plain",
    evidence="measured (private_tables): a9a .839, IMDB .811 at epsilon 0.5 with 100 rounds",
    shortfall=(0.011, 0.037),
)
def _plain(facts: Facts) -> Choice:
    """All records, one public step; nothing is bought."""
    return _stepped(_plain_run(facts, facts.parameters), {})


def _prepared(facts: Facts, scale: str, solved: bool) -> Choice:
    """A scale is bought, then the step or, where it is to be solved, X'X."""
    _check(facts, scale)
    if solved:
        _check_solved(facts, scale)
    clip, smooth, columns, copied = facts.the_clip, scale == "shapes", facts.d, 0
    spent, looks = _SHARES[scale], int(scale != "none")
    arguments: dict[str, object] = {"clip": clip, "scale": scale}
    if smooth:
        columns, functions = facts.smooth_features, CONSTANTS.functions
        if facts.features == "linear":
            functions = 1
        arguments |= {"features": columns, "functions": functions, "level": facts.shapes_level}
        copied, looks = NUMBER * facts.n * columns, looks + 1
    elif scale in ("none", "moments") and facts.of_loss.equivariant and not facts.sparse and facts.free:
        arguments["targets"] = True  # the scale does not bring their distribution
        spent, looks = spent + TargetShape.share, looks + 1
    dims = (columns + (scale in ("moments", "shapes"))) * facts.outputs
    if solved:
        rounds = CONSTANTS.statistics_rounds
        if smooth:
            rounds = CONSTANTS.shapes_rounds
        run = full_run(facts, clip, dims, rounds, 1 - spent - Statistics.share, looks + 1)
        # standardised rows of norm 1 have X'X / n near I / (d + 1); the last half of the points is averaged,
        # but steps along smooth features average by themselves
        inverse = dims / (facts.of_loss.usual_curvature or facts.smooth)
        arguments |= {"precondition": True, "output": "last" if smooth else "average"}
        return run.choice(
            arguments,
            margin_noise=inverse * run.sigma / math.sqrt(max(1, run.rounds - run.rounds // 2)),
            seconds=facts.seconds(run.rounds, None, dims, facts.gram_seconds),
            memory=facts.memory(None, extra=3 * NUMBER * columns**2 + copied),
        )
    gram = 0.0
    if facts.step is None:
        spent += Lambda.share
        if min(facts.n, facts.d) <= GRAM_LIMIT:
            looks, gram = looks + 1, facts.gram_seconds
            copied += NUMBER * min(facts.n, columns) ** 2
        else:
            looks += CONSTANTS.lanczos_passes
    run = full_run(facts, clip, dims, _rounds(facts, scale), 1 - spent, looks)
    if facts.step is not None:
        margin = walk(run, facts.step)
        arguments["step"] = facts.step
    else:
        # the longest stable step is d times 1.8 / h at most, as the spectrum allows; or what tau allows
        margin = min(walk(run, CONSTANTS.longest * dims / facts.smooth), facts.tau * math.sqrt(1 / (1 - spent)))
        arguments |= {"step": "auto", "tau": facts.tau}
    numbers = facts.of_loss.curvature is not None and not facts.of_loss.labelled()
    output, noise = "last", AVERAGED["last"]
    if numbers and not facts.sparse and (scale != "none" or facts.public is not None):
        output, noise = "average", AVERAGED["tail"]
    return run.choice(
        {**arguments, "output": output},
        margin_noise=margin * noise,
        seconds=facts.seconds(run.rounds + looks, None, dims, gram),
        memory=facts.memory(None, extra=copied),
    )


def _check(facts: Facts, scale: str) -> None:
    """Refuse facts that this preparation is not for."""
    if scale != "none" and not facts.free and (facts.scale == "auto" or facts.constraint is not None):
        raise Refusal("a set or a penalty is about the coefficients as they are: columns are not rescaled")
    if facts.scale == "none" != scale and facts.public is not None:
        raise Refusal("columns were scaled by public rows")
    if facts.scale not in ("auto", scale):
        raise Refusal(f"scale={facts.scale!r} was asked for")
    if scale == "shapes" and facts.sparse:
        raise Refusal("smooth features are for dense rows")
    if scale == "moments" and facts.sparse and facts.d > SMALL:
        raise Refusal(f"CSR rows of more than {SMALL} columns are not centred")


def _check_solved(facts: Facts, scale: str) -> None:
    """Refuse facts for which X'X is not bought."""
    if not facts.free:
        raise Refusal("preconditioned steps have no proximal map: leave out the set and the penalty")
    if facts.of_loss.curvature is None or facts.outputs > 1:
        raise Refusal("noisy X'X is for a smooth loss with one output")
    columns, least = facts.d, CONSTANTS.statistics_b * facts.d**2
    if scale == "shapes":
        columns, least = facts.smooth_features, facts.smooth_statistics
    if columns + 1 > SMALL:
        raise Refusal(f"noisy X'X is for fewer than {SMALL} columns")
    if facts.b < least:
        raise Refusal(f"noise would drown X'X: n mu = {facts.b:.3g} is less than {least:.3g}")
    if facts.step is not None:
        raise Refusal("preconditioned steps have length 1: leave step out")


def _rounds(facts: Facts, scale: str) -> int:
    """T of the bought step."""
    if scale == "none":
        if facts.public is not None and not facts.sparse:  # rows that were scaled by public moments
            return CONSTANTS.scaled_rounds
        return CONSTANTS.unscaled_rounds
    if facts.wide:
        low, high = CONSTANTS.text_rounds
        return min(max(round(facts.tau * facts.b / (CONSTANTS.text_unit * facts.the_clip)), low), high)
    return CONSTANTS.scaled_rounds


_MEASURED = {
    "step bought": "lending R2 .411 with 1500 rows at epsilon 1, moments .399; a9a .849 at epsilon 0.5",
    "columns and step bought": "IMDB .773 .851 .866 .880, a9a .846 .849 .850 .850 at epsilon .1 .5 1 3",
    "moments and step bought": "lending R2 .479 .522 .523 .526 at epsilon .1 .5 1 3 (plain: .42)",
    "statistics bought": "california R2 .601 .647 .649 .650 at epsilon .1 .5 1 3 (plain: .38)",
}
for _variant, _scale, _solved, _shortfall in (
    ("step bought", "none", False, (0.002, 0.023)),  # 2 % of the budget buys lambda_max, hence the longest step
    ("columns and step bought", "columns", False, (0.001, 0.0)),  # 10 % buys second moments of the columns too
    ("moments and step bought", "moments", False, (0.001, 0.03)),  # 10 % buys column means and second moments
    # moments, then 30 % for noisy X'X and X'y: start at their solution, step with their inverse
    ("statistics bought", "moments", True, (0.0, 0.0)),
    # histograms of columns and targets, smooth features; then X'X and X'y of these, or 2 % for the step
    ("shapes and statistics bought", "shapes", True, (0.0, 0.0)),
    ("shapes and step bought", "shapes", False, (0.0, 0.03)),
):
    _evidence = f"measured: {_MEASURED.get(_variant, 'docs/glm.md, tables kept apart')}"
    _make = partial(_prepared, scale=_scale, solved=_solved)
    dp_gd.filling(_variant, evidence=_evidence, shortfall=_shortfall)(_make)


def preferred(facts: Facts) -> str:
    """Which preparation of DP-GD the facts ask for."""
    solvable = facts.of_loss.curvature is not None and facts.outputs == 1
    if facts.free and _shaped(facts):
        few = facts.smooth_features < SMALL and facts.b >= facts.smooth_statistics
        if solvable and few and facts.step is None:
            return "shapes and statistics bought"
        return "shapes and step bought"
    if not facts.free and facts.scale in ("auto", "none"):
        return "step bought"
    if facts.scale == "none":
        return "step bought"
    started = facts.public is not None and facts.public.labelled  # a start is better in columns that are scaled
    several = facts.sparse and facts.scale == "auto" and facts.outputs > 1 and not started
    if several and facts.b < CONSTANTS.several_b * math.sqrt(facts.d):
        return "plain"
    if facts.scale == "columns" or (facts.sparse and facts.scale == "auto"):
        return "columns and step bought"
    if solvable and facts.free and facts.d < SMALL and facts.b >= CONSTANTS.statistics_b * facts.d**2:
        return "statistics bought"
    if facts.scale == "moments" or facts.b >= CONSTANTS.moments_b * facts.d:
        return "moments and step bought"
    if facts.d <= CONSTANTS.small:
        return "step bought"
    return "columns and step bought"


def _shaped(facts: Facts) -> bool:
    """Whether histograms of the columns are worth their price: as asked, or where they stand out of their noise."""
    if facts.sparse or facts.scale not in ("auto", "shapes"):
        return False
    wide = facts.d > SMALL or NUMBER * facts.n * facts.smooth_features > CONSTANTS.copied
    if wide and facts.scale == "auto" and facts.features == "auto":
        return False
    required = facts.scale == "shapes" or facts.features == "smooth"
    least = CONSTANTS.shapes_b[facts.outputs > 1]
    if not facts.ranged:
        least = max(least, CONSTANTS.shapes_levels[-1])
    return required or facts.shapes >= least
