"""`make demo`: SGD beside the same SGD with a tenth of the numbers, on scikit-learn's digits.

Multiclass logistic regression over an l1 ball.  Each line of the table is a real run on the embedded data:
what it reached, how many gradient numbers it used, and how long it took.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from isthmus import L1Ball, Softmax, algorithms, minimize
from isthmus.result import Result
from isthmus.solve import Recipe

RADIUS, EPOCHS, STEP, BATCH = 300.0, 20, 0.5, 32


def main() -> None:
    """Train, compare, print."""
    x, y = load_digits(return_X_y=True)
    x = torch.from_numpy(x / 16.0)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=x.dtype)], 1)  # the bias is the weight of a constant
    x_train, x_test, y_train, y_test = train_test_split(
        x, torch.from_numpy(y), test_size=0.3, random_state=0, stratify=y
    )
    train, test = Softmax(x_train, y_train, classes=10), Softmax(x_test, y_test, classes=10)
    d = train.space.d
    print(f"scikit-learn digits: {train.n} records, {d} parameters, l1 ball of radius {RADIUS:g}, {EPOCHS} epochs\n")
    m = d // 10
    runs: dict[str, Recipe] = {
        "SGD": algorithms.sgd(step=STEP, batch_size=BATCH),
        f"CompSGD m={m}, memoryless": algorithms.comp_sgd(m=m, step=STEP, batch_size=BATCH),
        f"CompSGD m={m}, error feedback": algorithms.comp_sgd(m=m, step=STEP, batch_size=BATCH, error_feedback=True),
    }
    results = {name: minimize(train, recipe, L1Ball(RADIUS), epochs=EPOCHS, seed=0) for name, recipe in runs.items()}
    print_table(results, test)


def print_table(results: dict[str, Result], test: Softmax) -> None:
    """One line a run: loss, accuracy, gradient numbers, bytes, seconds."""
    print(f"{'':32}{'loss':>8}{'test acc':>10}{'numbers':>12}{'bytes':>12}{'seconds':>9}")
    for name, result in results.items():
        accuracy = test.accuracy(result.x)
        loss = result.history[-1]["loss"]
        line = f"{name:32}{loss:8.4f}{accuracy:10.4f}{result.dims:12,}{result.bytes:12,}{result.seconds:9.2f}"
        print(line)


if __name__ == "__main__":
    main()
