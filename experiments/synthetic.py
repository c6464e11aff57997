"""Paper 001, Figures 1a and 5: least squares over an l1 ball, a 10-dim subspace and the simplex, n = 1000, d = 10000.

A is Gaussian with rows of unit length on average and y = A w*; w* is 10-sparse, in the subspace, or uniform on the
simplex.  m_t = w(C)^2 t^2 (t the epoch) is the paper's rule; a fixed m = 1000 runs beside it.
"""

from __future__ import annotations

import numpy as np
import torch
from common import arguments, curves, save, table

from isthmus import L1Ball, LeastSquares, Simplex, Subspace, algorithms, minimize
from isthmus.algorithms import WidthRule

N, D, BATCH, M = 1000, 10_000, 32, 1000


def problems(rng: np.random.Generator) -> dict[str, tuple[LeastSquares, object, float]]:
    """Each problem with its set and its step."""
    a = rng.standard_normal((N, D)) / np.sqrt(D)
    sparse = np.zeros(D)
    sparse[rng.choice(D, 10, replace=False)] = 10 * rng.choice([-1.0, 1.0], 10)
    basis = np.linalg.qr(rng.standard_normal((D, 10)))[0].T
    inside = 10 * basis.T @ rng.standard_normal(10)
    weights = rng.exponential(size=D)
    simplex = 100 * weights / weights.sum()
    return {
        "sparse regression, l1 ball": (LeastSquares(a, a @ sparse), L1Ball(float(np.abs(sparse).sum())), 30.0),
        "10-dim subspace": (LeastSquares(a, a @ inside), Subspace(basis, radius=100.0), 30.0),
        "simplex": (LeastSquares(a, a @ simplex), Simplex(100.0), 30.0),
    }


def recipes(step: float, width: float) -> dict[str, object]:
    """SGD and the compressed runs."""
    common, comp_sgd = {"step": step, "batch_size": BATCH}, algorithms.comp_sgd
    return {
        "SGD": algorithms.sgd(**common),
        "CompSGD m = 1000": comp_sgd(m=M, **common),
        "CompSGD m_t by width, epoch": comp_sgd(m=WidthRule(per="epoch", width=width), **common),
        "CompSGD m = 1000 + error feedback": comp_sgd(m=M, error_feedback=True, **common),
    }


def main() -> None:
    """Run, print, save."""
    args = arguments(__doc__, epochs=40)
    torch.set_num_threads(1)
    epochs, summary, rows = (2 if args.quick else args.epochs), {}, []
    for name, (objective, constraint, step) in problems(np.random.default_rng(0)).items():
        # the cone at a point of the subspace is the subspace: its width is sqrt(10); the balls use unit radius
        width = np.sqrt(10) if isinstance(constraint, Subspace) else float(type(constraint)(1.0).gaussian_width(D))
        series = {}
        for label, recipe in recipes(step, float(width)).items():
            found = minimize(objective, recipe, constraint, epochs=epochs, seed=0)
            series[label] = found.curve("loss", "epoch")
            loss = found.history[-1]["loss"]
            rows.append({"problem": name, "run": label, "first": found.history[0]["loss"], "last": loss,
                         "numbers": found.dims, "seconds": found.seconds})  # fmt: skip
            summary[f"{name}: {label}"] = loss
        curves(args.out, f"synthetic_{name.split()[0]}", series, "epoch", "objective")
    table(f"least squares, n = {N}, d = {D}, {epochs} epochs", rows)
    save(args.out, "synthetic", {"summary": summary, "rows": rows})


if __name__ == "__main__":
    main()
