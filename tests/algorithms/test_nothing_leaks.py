"""A private run shows its releases and nothing else: history, callbacks, bars, logs, stop rules, result, ledger."""

import logging
import math
from typing import Any

import numpy as np
import private_cases
import pytest
import torch
from private_cases import COMMON, problem

from isthmus import EarlyStop, L1Ball, Logistic, algorithms, minimize
from isthmus.privacy import Ledger

PUBLIC = {"t", "epoch", "seconds", "dims", "bytes"}
# the step is public as well: a number that was given, or follows from what was bought
STEP = {"eta"}
RECIPES: dict[str, Any] = {
    **{name: make() for name, make in private_cases.RECIPES.items()},
    "dp_gd auto": algorithms.dp_gd(**(COMMON | {"step": "auto"})),
    "compressive": algorithms.compressive_dp_sgd(p=15, kappa=4, **COMMON),
    "selection": algorithms.compressive_dp_sgd(p=15, kappa=4, variant="selection", **COMMON),
    "dp_svrg": algorithms.dp_svrg(inner=8, batch_size=60, **COMMON),
    "dp_skgd": algorithms.dp_skgd(epsilon=1.0, delta=1e-5, n="exact", smoothness=0.02, clip=0.1),
    "dp_fw": algorithms.dp_fw(epsilon=1.0, delta=1e-5, n="exact", clip=0.2),
}


def run(name: str, objective: Any, **options: Any) -> Any:
    constraint = None if name == "dp_gd auto" else L1Ball(5.0)
    return minimize(objective, RECIPES[name], constraint, steps=16, record=1, noise_seed=5, **options)


@pytest.mark.parametrize("name", RECIPES)
def test_records_and_callbacks_hold_public_things_only(name: str) -> None:
    seen: list[dict[str, Any]] = []
    result = run(name, problem(), callbacks=[lambda record, state: seen.append(record)])
    assert all(set(record) - STEP == PUBLIC for record in [*result.history, *seen])
    assert result.certificate == {}


@pytest.mark.parametrize("name", RECIPES)
def test_what_is_public_does_not_depend_on_the_records(name: str) -> None:
    """All public numbers of two runs on quite different data of one size are the same, seconds apart."""
    first, second = problem(seed=0), problem(seed=1)
    one, two = run(name, first), run(name, second)
    for a, b in zip(one.history, two.history, strict=True):
        shown = PUBLIC - {"seconds"} | (set() if name == "dp_gd auto" else STEP & set(a))
        assert {k: a[k] for k in shown} == {k: b[k] for k in shown}
    assert (one.dims, one.bytes, one.state.t, one.status) == (two.dims, two.bytes, two.state.t, two.status)
    assert one.privacy.to_json() == two.privacy.to_json()


@pytest.mark.parametrize("name", RECIPES)
def test_bars_and_logs_say_nothing(
    name: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, logger="isthmus"):
        run(name, problem(), progress=True)
    text = "".join(capsys.readouterr())
    assert "loss" not in text and "acc" not in text and "norm" not in text
    assert not [record for record in caplog.records if record.name.startswith("isthmus")]


def test_a_private_run_cannot_be_stopped_by_its_loss() -> None:
    stop = EarlyStop(patience=1, min_delta=1e9)
    result = run("dp_gd", problem(), callbacks=[stop])
    assert result.status == "finished" and math.isinf(stop.best)


def test_the_ledger_holds_no_data(tmp_path: Any) -> None:
    """What is written to disk is the same for different data but for time stamps, run numbers and hashes."""
    texts = []
    for seed in (0, 1):
        ledger = Ledger(tmp_path / f"{seed}.ledger", budget=(1.0, 1e-5))
        run("dp_sgd", problem(seed=seed), ledger=ledger)
        records = ledger.records()
        texts.append([{k: v for k, v in r.items() if k in ("kind", "what", "event", "rounds")} for r in records])
    assert texts[0] == texts[1]


def test_the_drawn_batch_size_is_nowhere() -> None:
    """With half of the records the run has other batches, but the same divisor and the same public numbers."""
    whole = problem(n=300)
    half = Logistic(whole.X[:150], np.asarray(whole.y[:150]), classes=(-1, 1))
    recipe = algorithms.dp_sgd(batch_size=60, **(COMMON | {"n": 300}))
    runs = [minimize(f, recipe, L1Ball(5.0), steps=10, record=1, noise_seed=5) for f in (whole, half)]
    public = [[{k: r[k] for k in PUBLIC - {"seconds", "epoch"}} for r in run.history] for run in runs]
    assert public[0] == public[1]
    assert not torch.equal(runs[0].x, runs[1].x)
