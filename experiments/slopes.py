"""Papers 001 and 000: measured log-log slopes of the optimisation error beside the theorems' exponents.

CompGD on a smooth problem (least squares in an l2 ball) and CompSGD on a nonsmooth one (hinge loss in an l1 ball),
with fixed m and with the theorems' m_t = min(d, w^2 / beta_t^2), beta_t = 1/(t + 1) and w the width of C scaled to
radius 1.  The rules make m_t = d after a few rounds; the share of rounds with m_t < d is printed.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from common import arguments, curves, save, table

from isthmus import Hinge, L1Ball, L2Ball, LeastSquares, algorithms, minimize, theory
from isthmus.algorithms import WidthRule

D, BETA = 400, theory.Rule(1.0, power=1.0, offset=2)


def smooth(rng: np.random.Generator) -> tuple[LeastSquares, L2Ball, float]:
    """An ill-conditioned least squares whose optimum is inside the ball: F* = 0."""
    a = rng.standard_normal((500, D)) * np.geomspace(1, 1e-3, D) ** 0.5
    w = rng.standard_normal(D) / math.sqrt(D)
    return LeastSquares(a, a @ w), L2Ball(2.0), 0.0


def nonsmooth(rng: np.random.Generator) -> tuple[Hinge, L1Ball, float]:
    """Hinge loss over an l1 ball; F* from long runs of SGD with decreasing steps."""
    a = rng.standard_normal((600, D)) / math.sqrt(D)
    y = np.sign(a[:, :5].sum(1) + 0.3 * rng.standard_normal(600) / math.sqrt(D))
    objective, ball = Hinge(a, y), L1Ball(20.0)
    rule = theory.convex_schedule(ball.diameter(D), 1.0)
    long = minimize(objective, algorithms.gd(schedule=rule, output="average"), ball, steps=20_000, record=500)
    best = min(min(record["loss"] for record in long.history), objective.loss(long.average))
    return objective, ball, best


def slope(rounds: list[int], errors: list[float]) -> float:
    """The least-squares slope of log error against log T."""
    return float(np.polyfit(np.log(rounds), np.log(np.maximum(errors, 1e-300)), 1)[0])


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, seeds=3)
    torch.set_num_threads(1)
    lengths = [20, 40, 80] if args.quick else [50, 100, 200, 400, 800, 1600]
    rng, rows, summary = np.random.default_rng(0), [], {}
    objective, ball, _ = smooth(rng)
    rough, l1, best = nonsmooth(rng)
    gd_plan = theory.goal_schedule("comp_gd", "optimisation", smoothness=objective.smoothness())
    sgd_plan = theory.goal_schedule("comp_sgd", "optimisation", scale=l1.diameter(D))
    cases = {
        "CompGD smooth": (objective, ball, 0.0, algorithms.comp_gd, gd_plan, {}, -1.0, "log T / T"),
        "CompSGD nonsmooth": (
            rough,
            l1,
            best,
            algorithms.comp_sgd,
            sgd_plan,
            {"batch_size": 8},
            -0.5,
            "log T / sqrt T",
        ),
    }
    for name, (f, constraint, optimum, algorithm, plan, extra, exponent, law) in cases.items():
        series = {}
        unit = type(constraint)(1.0)
        width_rule = WidthRule(beta=BETA, width=float(unit.gaussian_width(D)))
        sizes = {"m = d": D, "m = d/4": D // 4, "m = d/20": D // 20, "theorem's m_t": width_rule}
        here = slope(lengths, [math.log(t) * t**exponent for t in lengths])
        for label, m in sizes.items():
            recipe = algorithm(m=m, schedule=plan, output="average", **extra)
            errors = []
            for rounds in lengths:
                runs = (minimize(f, recipe, constraint, steps=rounds, seed=s, record=None) for s in range(args.seeds))
                errors.append(float(np.mean([f.loss(run.x) - optimum for run in runs])))
            rule = m.rule(constraint, D, 1) if isinstance(m, WidthRule) else (lambda t, m=m: m)
            narrow = float(np.mean([rule(t) < D for t in range(lengths[-1])]))
            fitted = slope(lengths, errors)
            rows.append({"case": name, "m": label, "slope": fitted, "theorem": f"{exponent:g} ({law})",
                         "its slope here": here, "rounds with m < d": narrow, "last error": errors[-1]})  # fmt: skip
            summary[f"{name}, {label}: slope"] = fitted
            series[label] = (lengths, errors)
        curves(args.out, f"slopes_{name.split()[0]}", series, "rounds T", "F(average) - F*")
    table(f"slopes over T = {lengths}, {args.seeds} seeds", rows)
    save(args.out, "slopes", {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
