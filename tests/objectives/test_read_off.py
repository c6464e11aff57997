"""Facts that an objective reads off its data: declared, or warned of and stated by every private run."""

from typing import Any

import numpy as np
import pytest
import torch

import isthmus
from isthmus.objectives import OneVsRest

X = np.random.default_rng(0).uniform(-1, 1, (60, 3))
TWO, THREE = (X[:, 0] > 0).astype(int), np.arange(60) % 3
CLASSIFIERS: dict[str, tuple[Any, Any]] = {
    "Logistic": (isthmus.Logistic, TWO),
    "Hinge": (isthmus.Hinge, TWO),
    "SmoothHinge": (isthmus.SmoothHinge, TWO),
    "Softmax": (isthmus.Softmax, THREE),
    "OneVsRest": (OneVsRest, THREE),
}
OTHERS: dict[str, Any] = {
    "LeastSquares": lambda: isthmus.LeastSquares(X, X[:, 0]),
    "Huber": lambda: isthmus.Huber(X, X[:, 0]),
    "Poisson": lambda: isthmus.Poisson(X, THREE),
    "TorchObjective": lambda: isthmus.TorchObjective(
        lambda w, x: (w @ x) ** 2, torch.from_numpy(X), torch.zeros(3).double()
    ),
}


def run(objective: Any, **options: Any) -> Any:
    recipe = isthmus.algorithms.dp_gd(epsilon=1.0, delta=1e-6, clip=1.0, step=0.1, n="exact")
    return isthmus.minimize(objective, recipe, steps=4, record=1, **options)


def test_every_objective_is_looked_at() -> None:
    apart = {"LinearModel", "Objective"}
    assert set(CLASSIFIERS) | set(OTHERS) == set(isthmus.objectives.__all__) - apart


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_undeclared_classes_are_warned_of_and_stated(name: str) -> None:
    made, y = CLASSIFIERS[name]
    with pytest.warns(isthmus.PrivacyLeakWarning, match=r"labels \(classes\) were read from") as caught:
        result = run(made(X, y))
    assert len(caught) == 1 and caught[0].filename == __file__
    assert len(result.privacy.leaks) == 1 and result.privacy.leaks[0] in result.privacy.words()
    assert "except for 1 fact that was read from the data" in str(result.privacy)


@pytest.mark.parametrize("name", [*CLASSIFIERS, *OTHERS])
def test_declared_classes_and_other_objectives_are_no_leak(name: str) -> None:
    made, y = CLASSIFIERS.get(name, (None, THREE))
    objective = OTHERS[name]() if made is None else made(X, y, classes=sorted(set(y.tolist())))
    assert run(objective).privacy.leaks == ()


def test_without_privacy_nothing_is_said() -> None:
    assert isthmus.minimize(isthmus.Softmax(X, THREE), isthmus.algorithms.gd(step=0.1), steps=2).privacy is None


def test_a_resumed_run_states_what_its_beginning_read() -> None:
    with pytest.warns(isthmus.PrivacyLeakWarning):
        half = run(isthmus.Softmax(X, THREE), callbacks=[lambda record, state: state.t == 2])
    result = run(isthmus.Softmax(X, THREE, classes=3), resume=half.state)
    assert half.state.t == 2 and result.state.t == 4 and result.privacy.leaks == half.privacy.leaks != ()
