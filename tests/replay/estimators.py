"""Doors of the estimators, of what is measured and summarised beside them, and of the command line."""

from __future__ import annotations

import csv
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from isthmus import L2Ball, PrivateClassifier, PrivateRegressor, PrivateSearch, private_score, private_summary
from isthmus.cli import main
from replay.trials import ANYWHERE, ENDS, Rng, Trial, labels, numbers, targets

N, D = 60, 3
WORDS = ("north", "south", "east", "nowhere")


def _options(rng: Rng, sampled: bool = True) -> dict[str, Any]:
    """Parameters that both estimators have; combinations that do not go together are refused, alike for both data."""
    algorithms = ["auto", "dp_gd", "dp_comp_gd", "dp_fw", *(["dp_sgd", "dp_svrg"] if sampled else [])]
    options: dict[str, Any] = {
        "algorithm": str(rng.choice(algorithms)),
        "epsilon": 2.0,
        "max_iter": int(rng.integers(2, 5)),
        "bounds": [(-3, 3), None, ([-3, np.nan, 0], [3, np.nan, 1])][rng.integers(3)],
        "scale": str(rng.choice(["auto", "none", "columns", "moments", "shapes"])),
        "features": str(rng.choice(["auto", "linear", "smooth"])),
        "random_state": int(rng.integers(9)),
    }
    if options["features"] == "smooth":
        options["scale"] = "auto"
    options["n"] = N if rng.random() < 0.6 else None
    more: dict[str, Any] = {
        "l2": 0.1,
        "clip": 0.5,
        "step": 0.3,
        "adjacency": "replace-one",
        "ledger": "fit.ledger",
        "checkpoint": "fit.state",
        "verbose": 1,
        "data_norm": 2.0,
        "fit_intercept": False,
        "constraint": L2Ball(3.0),
    }
    for name in rng.choice(list(more), 2, replace=False):
        options[str(name)] = more[str(name)]
    options["public"] = np.eye(D).repeat(4, 0) if rng.random() < 0.2 else None
    return options


def _places(options: dict[str, Any]) -> tuple[str, ...]:
    """Where the number of records is public, or records are replaced anyhow, a neighbour has as many."""
    counted = options.get("n") is None or options.get("adjacency") == "replace-one"
    return ("replaced",) if counted else ANYWHERE


def _rows(X: np.ndarray, sparse: bool) -> Any:
    return sp.csr_array(X) if sparse else X


def _classifier(options: dict[str, Any], classes: int, balanced: bool) -> PrivateClassifier:
    weight = "balanced" if balanced else None
    return PrivateClassifier(**options, classes=list(range(classes)), class_weight=weight)


def _regressor(options: dict[str, Any], ranged: bool) -> PrivateRegressor:
    return PrivateRegressor(**options, target_bounds=(-2, 2) if ranged else None)


def _fitted(kind: str) -> Callable[[Rng], Trial]:
    """A fit of either, once or in parts, with everything that the model keeps."""

    def trial(rng: Rng) -> Trial:
        options, labelled = _options(rng), bool(rng.random() < 0.5)
        X = numbers(rng, N, D)
        sparse, weighted, ranged, classes = (
            rng.random() < 0.2,
            rng.random() < 0.3,
            rng.random() < 0.5,
            int(rng.integers(2, 4)),
        )
        options = {**options, "bounds": None} if sparse else options
        if kind == "partial fits":
            options |= {"partial_calls": 2, "checkpoint": None}
        y = labels(rng, X, classes) if labelled else targets(rng, X)
        make: Any = (
            partial(_classifier, options, classes, bool(ranged))
            if labelled
            else partial(_regressor, options, bool(ranged))
        )

        def run(data: tuple[Any, Any, Any]) -> object:
            rows, model = _rows(data[0], bool(sparse)), make()
            weight = data[2] if weighted else None
            if kind == "partial fits":
                for _ in range(2):
                    model.partial_fit(rows, data[1], sample_weight=weight)
            else:
                model.fit(rows, data[1], sample_weight=weight)
            if kind == "fit twice":  # from its checkpoint and ledger, where it has them
                model = make().fit(rows, data[1], sample_weight=weight)
            print(model.privacy_.words())
            return model, model.predict(_rows(np.eye(D), bool(sparse)))

        facts = f"sparse={sparse}, weighted={weighted}, ranged={ranged}"
        words = f"{'classifier' if labelled else 'regressor'} {options}, {facts}"
        return Trial(run, (X, y, np.abs(numbers(rng, N, 1))[:, 0]), words, _places(options))

    return trial


def _searched(rng: Rng) -> Trial:
    """A search over a grid.  Its trials see parts of the data."""
    n = 240
    X = numbers(rng, n, D)
    declared = bool(rng.random() < 0.6)
    options = {"algorithm": "dp_gd", "bounds": (-3, 3), "n": n if declared else None, "max_iter": 2}

    def run(data: tuple[Any, Any]) -> object:
        model = PrivateClassifier(**options, classes=[0, 1])
        search = PrivateSearch(model, {"step": [0.1, 1.0], "l2": [0.0, 0.1]}, epsilon=2.0, ledger="search.ledger")
        return search.fit(*data)

    return Trial(run, (X, labels(rng, X, 2)), f"{options}", ("front", "end", "replaced") if declared else ("replaced",))


@cache
def _models() -> dict[str, Any]:
    """Models that are public."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, D))
    options = {"algorithm": "dp_gd", "bounds": (-3, 3), "noise_seed": 0, "epsilon": 5.0}
    two, three = ((X[:, 0] > 0).astype(int), np.digitize(X[:, 0], [-0.5, 0.5]))
    return {
        "two": PrivateClassifier(**options, classes=[0, 1]).fit(X, two),
        "three": PrivateClassifier(**options, classes=[0, 1, 2]).fit(X, three),
        "number": PrivateRegressor(**options, target_bounds=(-3, 3)).fit(X, X[:, 0]),
    }


def _scored(rng: Rng) -> Trial:
    """Figures of a public model.  How many rows are measured is public."""
    kind, n = str(rng.choice(["two", "three", "number"])), int(rng.choice([40, 400]))
    X, model = numbers(rng, n, D), _models()[kind]
    y = targets(rng, X) if kind == "number" else labels(rng, X, 2 if kind == "two" else 3)

    def run(data: tuple[Any, Any]) -> object:
        scores = private_score(model, *data, epsilon=3.0, ledger="score.ledger")
        print(scores, scores.privacy)
        return scores

    return Trial(run, (X, y), f"{kind}, n={n}", ("replaced",))


def _measured(rng: Rng) -> Trial:
    """Intervals of coefficients, from what a fit released."""
    X, y = rng.normal(size=(2000, D)).clip(-4, 4), rng.normal(size=2000)
    options = {"bounds": (-4, 4), "target_bounds": (-9, 9), "algorithm": "dp_gd", "features": "linear", "n": 2000}

    def run(data: tuple[Any, Any]) -> object:
        model = PrivateRegressor(epsilon=8.0, **options).fit(*data)
        try:
            print(model.coefficient_intervals(0.9, residual_sd=1.0))
        except Exception as error:  # what was released does not tell enough: public too
            print(error)
        return model, model.effects()

    return Trial(run, (X, y + X[:, 0]), "", ANYWHERE)


# ---------------------------------------------------------------- tables

SCHEMA = {"age": [0, 100], "place": list(WORDS[:3]), "since": {"type": "date"}, "income": "number", "member": "bool"}


def _table(rng: Rng, n: int) -> dict[str, np.ndarray]:
    """People; some entries are missing, out of range, or a word that nobody declared."""
    days = rng.integers(0, 3000, n) + np.datetime64("2012-01-01")
    income = rng.lognormal(3, 1, n)
    income[rng.integers(n)] = 1e6
    return {
        "age": rng.integers(0, 130, n).astype(str),
        "place": rng.choice(WORDS, n, p=[0.6, 0.3, 0.09, 0.01]),
        "since": days.astype("datetime64[D]").astype(str),
        "income": np.where(rng.random(n) < 0.05, "", income.round(2).astype(str)),
        "member": rng.choice(["yes", "no"], n),
    }


def _summarised(rng: Rng) -> Trial:
    """Counts, quantiles and means."""
    wanted = {name: SCHEMA[name] for name in ("age", "place", "income", "member")}

    def run(data: dict[str, Any]) -> object:
        table = {name: column.tolist() for name, column in data.items()}
        table["age"] = [float(value) for value in table["age"]]
        table["income"] = [float(value or "nan") for value in table["income"]]
        found = private_summary(table, wanted, epsilon=2.0, bins=5, ledger="summary.ledger")
        print(found)
        return found

    return Trial(run, _table(rng, int(rng.choice([12, 300]))), "", ANYWHERE)


def _command(*arguments: str, target: bool, counted: bool = False) -> Callable[[Rng], Trial]:
    """The command line on a csv, beside the folder that is compared."""

    def trial(rng: Rng) -> Trial:
        n = int(rng.choice([40, 150]))
        some = [[], ["--scale", "columns"], ["--algorithm", "dp_gd"]] if target else [[], ["--bins", "4"]]
        chosen = [
            *(["--max-iter", "4"] if target else []),
            *([] if counted or not target else ["-n", str(n)]),
            *some[rng.integers(len(some))],
        ]

        def run(data: dict[str, Any]) -> object:
            path = Path("..", "people.csv")
            with path.open("w", newline="") as file:
                table = csv.writer(file)
                table.writerow(data)
                table.writerows(zip(*data.values(), strict=True))
            return main([arguments[0], str(path), *arguments[1:], *chosen], standalone_mode=False)

        return Trial(
            run, _table(rng, n), " ".join([*arguments, *chosen]), ("replaced",) if counted else (*ENDS, "replaced")
        )

    return trial


_DECLARED = ("--bounds", "age=0,100", "--categories", "place=north,south,east", "--drop", "since", "--epsilon", "2")

ESTIMATORS: dict[str, Callable[[Rng], Trial]] = {
    "fit": _fitted("fit"),
    "fit twice": _fitted("fit twice"),
    "partial fits": _fitted("partial fits"),
    "search": _searched,
    "score": _scored,
    "intervals": _measured,
    "summary": _summarised,
    "command train classes": _command("train", "--target", "member", "--classes", "yes,no", *_DECLARED, target=True),
    "command train numbers": _command("train", "--target", "income", *_DECLARED, target=True),
    "command train measured": _command(
        "train", "--target", "member", "--classes", "yes,no", "--test-fraction", "0.3", "--test-epsilon", "1",
        *_DECLARED, target=True, counted=True,
    ),
    "command describe": _command("describe", *_DECLARED, target=False),
}  # fmt: skip
