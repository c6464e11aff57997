"""Paper 001, Appendix E: CompFW on l1, simplex and nuclear-norm least squares, beside the bound of Theorem E.2.

The theorem's schedule sets m_t from the width of C; a fixed m runs beside it.  The last column stops on the
compressed gap and checks the true one.
"""

from __future__ import annotations

import numpy as np
import torch
from common import arguments, curves, save, table

from isthmus import L1Ball, LeastSquares, NuclearBall, Simplex, algorithms, minimize, theory


def problems(rng: np.random.Generator) -> dict[str, tuple[LeastSquares, object]]:
    """n = 300 Gaussian measurements of a vector in R^900 that the set fits."""
    n, d = 300, 900
    a = rng.standard_normal((n, d)) / np.sqrt(d)
    sparse = np.zeros(d)
    sparse[rng.choice(d, 8, replace=False)] = rng.standard_normal(8)
    weights = rng.dirichlet(np.full(d, 0.02))
    low = np.outer(rng.standard_normal(30), rng.standard_normal(30)).ravel() / 30
    return {
        "l1 ball": (LeastSquares(a, a @ sparse), L1Ball(float(np.abs(sparse).sum()))),
        "simplex": (LeastSquares(a, a @ weights), Simplex(1.0)),
        "nuclear ball": (LeastSquares(a, a @ low), NuclearBall(float(np.linalg.norm(low)), shape=(30, 30))),
    }


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, rounds=400)
    rounds, rows, summary = (30 if args.quick else args.rounds), [], {}
    torch.set_num_threads(1)
    for name, (objective, constraint) in problems(np.random.default_rng(0)).items():
        mu, diameter = objective.smoothness(), constraint.diameter(objective.d)
        start = constraint.project(torch.zeros(objective.d, dtype=torch.float64))
        bound = float(objective.gradient(start).norm()) + mu * diameter
        schedule = theory.convex_fw_schedule(smoothness=mu, diameter=diameter, gradient_bound=bound, noise=0.0)
        runs = {
            "FW": algorithms.comp_fw(),
            "CompFW, m_t of Theorem E.2": algorithms.comp_fw(schedule=schedule, batch_size=objective.n),
            "CompFW, m = 300": algorithms.comp_fw(m=300),
            "FW, away steps, line search": algorithms.comp_fw(away=True, line_search="line"),
        }
        limit = theory.convex_fw_rate(rounds, smoothness=mu, diameter=diameter)
        series = {}
        for label, recipe in runs.items():
            found = minimize(objective, recipe, constraint, steps=rounds, record=max(1, rounds // 50))
            series[label] = found.curve("loss", "t")  # every problem is fitted exactly: F* = 0
            gap = found.history[-1]["loss"]
            share = found.dims / (rounds * objective.d)
            rows.append({"set": name, "run": label, "F - F*": gap, "4 mu D^2 / T": limit, "numbers used": share,
                         "seconds": found.seconds})  # fmt: skip
            summary[f"{name}: {label}"] = gap
        alpha = 0.05 * float(objective.gradient(start) @ (start - constraint.lmo(objective.gradient(start))))
        for m in (objective.d, 600, 300):
            found = minimize(objective, algorithms.comp_fw(m=m, alpha=alpha), constraint, steps=5 * rounds, record=None)
            gap = found.certificate.get("gap", float("nan"))
            label = f"gap stop, m = {m}: {found.status} at t = {found.state.t}"
            share = m / objective.d
            rows.append({"set": name, "run": label, "F - F*": gap, "4 mu D^2 / T": alpha, "numbers used": share,
                         "seconds": found.seconds})  # fmt: skip
        curves(args.out, f"frank_wolfe_{name.split()[0]}", series, "round", "F - F*")
    table(f"Frank-Wolfe, T = {rounds} (gap stops: true gap beside alpha)", rows)
    save(args.out, "frank_wolfe", {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
