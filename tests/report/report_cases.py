"""Records of real runs: a private one with everything beside it, one with seeded noise, one as published, one bare."""

import json
import math
from functools import cache
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer

import isthmus
from isthmus import algorithms, plan
from isthmus.gradients import Glm
from isthmus.report import Record

ROUNDS, BATCH, CLIP, STEP, DELTA = 60, 100, 0.5, 4.0, 1e-4
HOSTILE = "<script>document.title = 'spoilt'</script><img src=x onerror='document.title = 1'>\"'}}{{7*7}}"


@cache
def problem() -> tuple[Any, Any, torch.Tensor, list[str]]:
    """Training and held-out parts of scikit-learn's breast cancer data, public rows, and the names of the columns."""
    data = load_breast_cancer()
    x = torch.from_numpy(data.data / data.data.max(axis=0))
    x = x / x.norm(dim=1, keepdim=True)
    y = torch.from_numpy(2.0 * data.target - 1)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test, public = order[:400], order[400:500], order[500:]
    parts = [isthmus.Logistic(x[part], y[part], classes=(-1, 1)) for part in (train, test)]
    return *parts, x[public], [str(name) for name in data.feature_names]


def run(recipe: Any, steps: int = ROUNDS, **options: Any) -> tuple[Any, list[dict[str, float]]]:
    """A run, how far each round moved the model, and how well it then did on held-out records."""
    train, test, _, _ = problem()
    seen, moves = [torch.zeros(train.d, dtype=torch.float64)], []

    def look(record: dict[str, Any], state: Any) -> None:
        moved = float((state.w - seen[-1]).norm())
        moves.append({"t": record["t"], "moved": moved, "score": float(test.score(state.w))})
        seen.append(state.w.clone())

    return isthmus.minimize(train, recipe, steps=steps, record=1, callbacks=[look], **options), moves


def dp_sgd(epsilon: float, n: Any = "exact") -> Any:
    """DP-SGD as the cases run it."""
    return algorithms.dp_sgd(epsilon=epsilon, delta=DELTA, clip=CLIP, step=STEP, batch_size=BATCH, n=n)


def of_run(result: Any, algorithm: str, **parts: Any) -> dict[str, Any]:
    """The least record of a run."""
    train, test, _, names = problem()
    statement = result.privacy
    public = statement is None or statement.n is not None
    data = {"name": "breast cancer (scikit-learn)", "n": train.n if public else None, "d": train.d, "target": "benign"}
    model = {"task": "classification", "loss": "logistic", "algorithm": algorithm, "rounds": result.state.t}
    return {
        "format": "isthmus-run-1",
        "title": "Benign or malignant",
        "created": "2026-05-04T10:30:00+00:00",
        "data": {**data, "features": names, "classes": ["malignant", "benign"], "test_rows": test.n},
        "model": {**model, "dims": result.dims, "bytes": result.bytes, "seconds": result.seconds},
        "privacy": None if statement is None else json.loads(statement.to_json()),
        "words": "" if statement is None else statement.words(),
        **parts,
    }


def noise_multiplier(result: Any) -> float:
    """What the statement's event says of the noise."""
    return float(result.privacy.event["inner"]["inner"]["noise_multiplier"])


def curve(result: Any) -> list[list[float]]:
    """Epsilon of the first rounds of a DP-SGD run."""
    train, _, _, _ = problem()
    z, rate = noise_multiplier(result), BATCH / train.n
    at = [1, *range(10, ROUNDS + 1, 10)]
    return [[t, isthmus.privacy.epsilon(noise_multiplier=z, sampling_rate=rate, steps=t, delta=DELTA)] for t in at]


def score(result: Any) -> float:
    """Accuracy on the held-out records."""
    return float(problem()[1].score(result.x))


def energy(chosen: int) -> dict[str, Any]:
    """Captured energy of public rows."""
    rows = problem()[2]
    fit, rest = (Glm(torch.ones(len(part), dtype=torch.float64), part) for part in (rows[::2], rows[1::2]))
    found = isthmus.diagnostics.captured_energy(fit, rest)
    source = f"{len(rows)} public records, half of them to learn from and half to judge"
    return {"k": list(found.ks), "captured": list(found.shares), "chosen": chosen, "source": source}


@cache
def full() -> dict[str, Any]:
    """A private run with every part that a record can have."""
    train, test, public, _ = problem()
    ledger = isthmus.privacy.Ledger(budget=(3.0, DELTA))
    result, moves = run(dp_sgd(1.0), ledger=ledger)
    noise = STEP * noise_multiplier(result) * CLIP / BATCH * math.sqrt(train.d)
    plain, _ = run(algorithms.gd(step=STEP))
    tight, _ = run(dp_sgd(0.1), ledger=ledger)
    on = f"{test.n} held-out records"
    metrics = [{"name": "accuracy", "value": score(result), "on": on}]
    others = [
        ("DP-SGD, epsilon 0.1", 0.1, tight, None),
        ("gd", math.inf, plain, "no privacy: the most there is to get"),
    ]
    some = ["dp_gd", "dp_sgd", "pdp_sgd", "priv_sgd", "dp_cd", "dp_fw"]
    planned = plan(n=train.n, d=train.d, epsilon=1.0, delta=DELTA, public=public, algorithms=some)
    record = of_run(result, "dp_sgd")
    fields = [{"name": name, "treatment": "number, from 0 to 1 (declared)"} for name in record["data"]["features"]]
    record["data"] |= {"public_rows": len(public), "fields": fields}
    record["model"] |= {"arguments": {"clip": CLIP, "step": STEP, "batch_size": BATCH}, "constraint": "the whole space"}
    return record | {
        "purpose": "Show which samples to look at first.",
        "owner": "The laboratory",
        "versions": {"isthmus": isthmus.__version__, "torch": torch.__version__},
        "warnings": ["classes were read from the data, which tells that each of them occurs: give classes=[...]"],
        "budget": {
            **{"epsilon": 1.0, "delta": DELTA, "curve": curve(result)},
            "shared": {"file": "study.ledger", "epsilon": 3.0, "spent": ledger.spent()},
        },
        "history": [{"t": move["t"], "moved": move["moved"], "noise": noise} for move in moves],
        "metrics": metrics,
        "comparison": [
            {"name": name, "epsilon": eps if math.isfinite(eps) else "inf", "score": score(found), "metric": "accuracy"}
            | {"dims": found.dims, "seconds": found.seconds, "note": note}
            for name, eps, found, note in others
        ],
        "curves": [
            {"title": "Accuracy on held-out records", "x_label": "round", "y_label": "accuracy"}
            | {"note": "Computed from released models only, on records that were not trained on."}
            | {"series": [{"name": "dp_sgd", "x": [m["t"] for m in moves], "y": [m["score"] for m in moves]}]}
        ],
        "energy": energy(4),
        "plan": json.loads(planned.to_json()),
    }


@cache
def seeded() -> dict[str, Any]:
    """Noise from a seed, and a number of records that is not published."""
    result, _ = run(dp_sgd(1.0, n=400), noise_seed=1)
    return of_run(result, "dp_sgd", budget={"epsilon": 1.0, "delta": DELTA, "curve": curve(result)})


@cache
def published() -> dict[str, Any]:
    """A mechanism as it was published, which keeps no promise."""
    recipe = algorithms.priv_sgd(epsilon=1.0, delta=DELTA, m=8, clip=CLIP, step=STEP, n="exact", as_published=True)
    return of_run(run(recipe, steps=4)[0], "priv_sgd")


@cache
def bare() -> dict[str, Any]:
    """Plain gradient descent."""
    return of_run(run(algorithms.gd(step=STEP))[0], "gd")


CASES = {"full": full, "seeded": seeded, "published": published, "bare": bare}


def record(name: str) -> Record:
    """One of the cases."""
    return Record.from_dict(CASES[name]())


def hostile() -> Record:
    """The full case with markup in every text that a user or a file can choose."""

    def spoilt(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spoilt(each) for key, each in value.items()}
        if isinstance(value, list):
            return [spoilt(each) for each in value]
        return f"{HOSTILE}{value}" if isinstance(value, str) else value

    by_name = {name: full()[name] for name in ("format", "created", "privacy", "words")}
    free = {name: value for name, value in full().items() if name not in by_name}
    found = by_name | spoilt(free)
    found["model"]["task"] = "classification"
    found["comparison"][-1]["epsilon"] = "inf"
    return Record.from_dict(found)
