"""`make demo`: handwritten digits, learned privately by several algorithms at two epsilons.

Each line of the table is a real run on scikit-learn's embedded digits.  What is public about them: images of 8 x 8
pixels between 0 and 16, ten classes, the number of records; of the records themselves only the few that are declared
public, and the held-out ones that the scores are of.  A report of one run is written beside.
"""

from __future__ import annotations

import math
import textwrap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from isthmus import L1Ball, PrivateClassifier, Softmax, algorithms, minimize
from isthmus.privacy import Ledger
from isthmus.report import Record, write

OUT = Path("demo-output")
EPSILONS = (1.0, 4.0)
DELTA = 1e-5
PIXELS, CLASSES = (0, 16), range(10)
Part = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Digits:
    """Rows and labels: private ones, a few that are declared public, and those that scores are of."""

    private: Part
    public: Part
    test: Part


@dataclass(frozen=True)
class _Row:
    """One line of the table."""

    name: str
    epsilon: float
    score: float
    seconds: float
    noise: float | None = None
    numbers: int | None = None
    model: Any = None


RUNS: Mapping[str, Callable[[Digits], dict[str, Any]]] = {
    "auto: what the planner chooses": lambda data: {"algorithm": "auto", "public": data.public},
    "dp_gd, plain: all records, step 2/L": lambda data: {"algorithm": "dp_gd", "scale": "none", "step": 4.0},
    "dp_sgd: random batches": lambda data: {"algorithm": "dp_sgd"},
    "pdp_sgd: the span of public gradients": lambda data: {
        "algorithm": "pdp_sgd",
        "public": data.public,
        "options": {"k": len(data.public[1])},
    },
    "dp_comp_minibatch: random directions": lambda data: {"algorithm": "dp_comp_minibatch"},
}
"""The private runs: the arguments of `PrivateClassifier` beside the budget and the public facts."""


def _digits(public: int = 50) -> Digits:
    """The digits, split without looking at them: 540 are held out, a few are public, the rest is private."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    test, declared, private = np.split(order, [540, 540 + public])
    return Digits((x[private], y[private]), (x[declared], y[declared]), (x[test], y[test]))


# ------------------------------------------------------------ the table


def _shown(row: _Row) -> _Row:
    """A run's figures, behind its name, which stands there while it runs."""
    noise = "-" if row.noise is None else f"{row.noise:.3g}"
    numbers = "-" if row.numbers is None else f"{row.numbers:,}"
    print(f"{row.epsilon:>8g}{row.score:>10.3f}{noise:>12}{numbers:>11}{row.seconds:>9.2f}", flush=True)
    return row


def _fitted(name: str, data: Digits, epsilon: float, **arguments: Any) -> _Row:
    """A run of `PrivateClassifier`, and its line."""
    print(f"{name:<42}", end="", flush=True)
    if epsilon < math.inf:
        arguments |= {"bounds": PIXELS, "delta": DELTA}
    model = PrivateClassifier(epsilon=epsilon, classes=CLASSES, **arguments).fit(*data.private)
    noise, numbers = model.choice_.noise_multiplier, model.result_.dims
    return _shown(_Row(name, epsilon, model.score(*data.test), model.seconds_, noise, numbers, model))


def _compared(data: Digits, epsilons: Sequence[float], names: Sequence[str]) -> tuple[list[_Row], float]:
    """All lines, and the epsilon of all private runs together."""
    ledger = Ledger(adjacency="add-remove")
    print(f"{'':<42}{'':>8}{'test':>10}{'noise':>12}{'numbers':>11}")
    print(f"{'':<42}{'epsilon':>8}{'accuracy':>10}{'multiplier':>12}{'released':>11}{'seconds':>9}")
    # a model of the public records alone costs no privacy
    name, began = f"public labels alone ({len(data.public[1])} records)", time.perf_counter()
    model = LogisticRegression(max_iter=1000).fit(data.public[0] / PIXELS[1], data.public[1])
    score = model.score(data.test[0] / PIXELS[1], data.test[1])
    print(f"{name:<42}", end="")
    rows = [_shown(_Row(name, 0.0, score, time.perf_counter() - began))]
    for epsilon in epsilons:
        rows += [_fitted(name, data, epsilon, ledger=ledger, **RUNS[name](data)) for name in names]
    rows.append(_fitted("not private: comp_gd", data, math.inf, algorithm="comp_gd"))
    return rows, ledger.spent(DELTA)


# ------------------------------------------------------------ the report


def _report(data: Digits, rows: Sequence[_Row], own: _Row, together: float, out: Path) -> Path:
    """Write the record and the report of one run, with the others beside it; `together` is the epsilon of them all."""
    on = f"{len(data.test[1])} held-out records, declared public"
    private = [row for row in rows if 0 < row.epsilon < math.inf]
    others, series = list[dict[str, Any]](), dict[str, dict[str, Any]]()
    for row in rows:
        figures = {"epsilon": row.epsilon, "score": row.score, "dims": row.numbers, "seconds": row.seconds}
        name, _, note = row.name.partition(": ")
        others.append({"name": name, "note": note or None, "metric": "accuracy", **figures})
        if row in private:
            others[-1]["name"] += f", epsilon {row.epsilon:g}"
            line = series.setdefault(name, {"name": name, "x": [], "y": []})
            line["x"].append(row.epsilon)
            line["y"].append(row.score)
    labels = {"x_label": "epsilon", "y_label": "test accuracy", "note": f"Scores of {on}."}
    counted = (
        f"The promise counts all {len(private)} private runs of the comparison, which were made on the same records "
        f"and together spend epsilon = {together:.3g}. The comparison also shows a run that promises nothing."
    )
    sizes = {"test_rows": len(data.test[1]), "public_rows": len(data.public[1])}
    record = Record.of(
        own.model,
        title="Handwritten digits, learned privately",
        data={"name": "the digits of scikit-learn", "target": "digit", **sizes},
        metrics=[{"name": "accuracy", "value": own.score, "on": on}],
        comparison=others,
        curves=[{"title": "Accuracy by epsilon", **labels, "series": list(series.values())}],
        warnings=[counted],
    )
    out.mkdir(parents=True, exist_ok=True)
    record.save(out)
    return write(record, out / "report.html")


# ------------------------------------------------------------ without privacy


def _compressed(data: Digits, rounds: int = 800) -> None:
    """SGD beside the same SGD that sends a tenth of the numbers, with and without memory of what was lost."""
    (x, y), (x_test, y_test) = data.private, data.test
    with_bias = [np.hstack([part / PIXELS[1], np.ones((len(part), 1))]) for part in (x, x_test)]
    train, test = (Softmax(a, b, classes=10) for a, b in zip(with_bias, (y, y_test), strict=True))
    m = train.d // 10
    common: dict[str, Any] = {"step": 0.5, "batch_size": 32}
    recipes = {
        "SGD": algorithms.sgd(**common),
        f"CompSGD m={m}, memoryless": algorithms.comp_sgd(m=m, **common),
        f"CompSGD m={m}, error feedback": algorithms.comp_sgd(m=m, error_feedback=True, **common),
    }
    print(f"\nWithout privacy: {train.d} parameters in an l1 ball of radius 300, {rounds} rounds of 32 records.")
    print(f"{'':<42}{'':>8}{'accuracy':>10}{'':>12}{'numbers':>11}{'seconds':>9}")
    for name, recipe in recipes.items():
        result = minimize(train, recipe, L1Ball(300.0), steps=rounds, seed=0, progress=False)
        print(f"{name:<50}{test.score(result.x):>10.3f}{'':>12}{result.dims:>11,}{result.seconds:>9.2f}", flush=True)


def _paragraphs(text: str, width: int = 100) -> str:
    """The text in lines that a terminal shows whole."""
    return "\n".join(textwrap.fill(line, width, subsequent_indent="  ") for line in text.split("\n"))


def main(out: Path = OUT, epsilons: Sequence[float] = EPSILONS, names: Sequence[str] = tuple(RUNS)) -> None:
    """Train, compare, state, report: the first of `names` (of `RUNS`) at the first epsilon."""
    torch.set_num_threads(1)  # the data is small: threads would wait for each other
    data = _digits()
    private, public, test = (len(part[1]) for part in (data.private, data.public, data.test))
    print(f"The digits of scikit-learn: {private} private records, {public} declared public, {test} held out.")
    print("Accuracies are of the held-out records, which are declared public too.\n")
    rows, together = _compared(data, epsilons, names)
    chosen = [row for row in rows if row.name == names[0]]
    explanation = (
        "The noise is relative to the most that one record can contribute to a round, of all records (dp_gd) or of a "
        f"random batch. Each private line keeps its own epsilon; together they spend {together:.3g}."
    )
    print("\n" + textwrap.fill(explanation, 100))
    for row in chosen:
        print(f"At epsilon {row.epsilon:g} the planner chose {row.model.choice_.name}.")
    own = chosen[0]
    print(f"\n{own.name.partition(': ')[0]} at epsilon {own.epsilon:g}, in words\n")
    print(textwrap.indent(_paragraphs(own.model.privacy_.words()), "  "))
    _compressed(data)
    print(f"\nreport: {_report(data, rows, own, together, out)}")


if __name__ == "__main__":
    main()
