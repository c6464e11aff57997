"""`make demo`: SGD beside the same SGD with a tenth of the numbers, and Frank-Wolfe, on two small problems.

Multiclass logistic regression on scikit-learn's digits and a sparse regression, both over an l1 ball.  Each line of
the table is a real run on embedded data: what it reached, how many gradient numbers it used, how long it took.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from isthmus import L1Ball, LeastSquares, Softmax, algorithms, minimize
from isthmus.result import Result

OUT = Path("demo-output")


def digits() -> tuple[Softmax, Softmax, L1Ball]:
    """Training and test parts of the digits, and the ball."""
    x, y = load_digits(return_X_y=True)
    x = torch.from_numpy(x / 16.0)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)  # the bias is the weight of a constant
    parts = train_test_split(x, torch.from_numpy(y), test_size=0.3, random_state=0, stratify=y)
    return Softmax(parts[0], parts[2], classes=10), Softmax(parts[1], parts[3], classes=10), L1Ball(300.0)


def sparse_regression() -> tuple[LeastSquares, LeastSquares, L1Ball]:
    """A 10-sparse vector in R^1000 seen through 400 noisy products."""
    rng = np.random.default_rng(0)
    w = np.zeros(1000)
    w[rng.choice(1000, 10, replace=False)] = rng.choice([-1.0, 1.0], 10)
    a = rng.standard_normal((800, 1000)) / np.sqrt(1000)
    y = a @ w + 0.01 * rng.standard_normal(800)
    return LeastSquares(a[:400], y[:400]), LeastSquares(a[400:], y[400:]), L1Ball(10.0)


def compare(title: str, train: Any, test: Any, ball: L1Ball, step: float, epochs: int) -> dict[str, Result]:
    """Run the four methods and print one line each."""
    m = train.d // 10
    common: dict[str, Any] = {"step": step, "batch_size": 32}
    recipes = {
        "SGD": algorithms.sgd(**common),
        f"CompSGD m={m}, memoryless": algorithms.comp_sgd(m=m, **common),
        f"CompSGD m={m}, error feedback": algorithms.comp_sgd(m=m, error_feedback=True, **common),
        f"CompFW m={train.d // 2}, all records": algorithms.comp_fw(m=train.d // 2),
    }
    score = "test acc" if isinstance(train, Softmax) else "test R2"
    rounds = epochs * -(-train.n // 32)
    print(f"\n{title}: {train.n} records, {train.d} parameters, l1 ball of radius {ball.radius:g}, {rounds} rounds")
    print(f"  {'':31}{'loss':>9}{score:>10}{'numbers':>12}{'bytes':>12}{'seconds':>9}")
    results = {}
    for name, recipe in recipes.items():
        found = results[name] = minimize(train, recipe, ball, steps=rounds, seed=0, record=rounds // 20)
        loss, reached = found.history[-1]["loss"], test.score(found.x)
        line = f"{loss:9.4g}{reached:10.4f}{found.dims:12,}{found.bytes:12,}{found.seconds:9.2f}"
        print(f"  {name:31}{line}")
    return results


def draw(runs: dict[str, dict[str, Result]], path: Path) -> None:
    """The loss of every run against the gradient numbers it used, as one PNG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(runs), figsize=(6 * len(runs), 4.2))
    for ax, (title, results) in zip(axes, runs.items(), strict=True):
        for name, found in results.items():
            numbers, losses = found.curve("loss", "dims")
            ax.plot(numbers[1:], losses[1:], marker=".", label=name)
        ax.set(title=title, xlabel="gradient numbers used", ylabel="training loss", yscale="log", xscale="log")
        ax.legend(fontsize="small")
    path.parent.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, compare, print, draw."""
    runs = {
        "digits": compare("scikit-learn digits", *digits(), step=0.5, epochs=20),
        "sparse regression": compare("sparse regression", *sparse_regression(), step=10.0, epochs=80),
    }
    draw(runs, OUT / "curves.png")
    print(f"\ncurves: {OUT / 'curves.png'}")


if __name__ == "__main__":
    main()
