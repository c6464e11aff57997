"""Copies of a half-spent model: of all of them one makes the next call, or a ledger counts what each of them spends."""

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from estimator_tables import X, classifier, regressor, y
from sklearn.base import clone

from isthmus import InvalidInput
from isthmus.estimators import linear, load
from isthmus.privacy import BudgetExceeded, Ledger


def stored(model: Any, folder: Path) -> Any:
    model.save(folder / "model")
    return load(folder / "model")


COPIES: dict[str, Callable[[Any, Path], Any]] = {
    "copy": lambda model, folder: copy.copy(model),
    "deep copy": lambda model, folder: copy.deepcopy(model),
    "pickle": lambda model, folder: pickle.loads(pickle.dumps(model)),
    "file": stored,
    "copy of a copy": lambda model, folder: copy.deepcopy(stored(copy.copy(model), folder)),
}


def half(made: Any = classifier, **more: Any) -> Any:
    return made(**{"partial_calls": 2, "noise_seed": None, **more}).partial_fit(X, y)


@pytest.mark.parametrize("made", [classifier, regressor])
@pytest.mark.parametrize("first", ["original", "other"])
@pytest.mark.parametrize("how", COPIES)
def test_the_second_half_is_spent_once(how: str, first: str, made: Any, tmp_path: Path) -> None:
    model = half(made)
    other = COPIES[how](model, tmp_path)
    one, two = (model, other) if first == "original" else (other, model)
    one.partial_fit(X, y)
    assert one.n_iter_ == 8
    before = two.privacy_
    with pytest.raises(InvalidInput, match="begun before, by another copy"):
        two.partial_fit(X, y)
    assert two.n_iter_ == 4 and two.privacy_ == before and np.isfinite(two.predict(X[:3])).all()
    two.fit(X, y)  # a fit begins anew, and says so: it is another budget


def test_copies_of_a_finished_model_have_nothing_left(tmp_path: Path) -> None:
    model = half().partial_fit(X, y)
    for how in COPIES.values():
        with pytest.raises(InvalidInput, match="all of them were made"):
            how(model, tmp_path).partial_fit(X, y)


def test_copies_in_threads_spend_it_once() -> None:
    copies = [copy.deepcopy(half(partial_calls=2))]
    copies += [copy.deepcopy(copies[0]) for _ in range(5)]

    def spent(model: Any) -> bool:
        try:
            model.partial_fit(X, y)
        except InvalidInput:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        assert sum(pool.map(spent, copies)) == 1


def test_an_interrupted_call_is_not_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    model, watch = half(), linear._RoundNotes.__call__

    def stopped(self: Any, record: Any, state: Any) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(linear._RoundNotes, "__call__", stopped)
    with pytest.raises(KeyboardInterrupt):
        model.partial_fit(X, y)
    monkeypatch.setattr(linear._RoundNotes, "__call__", watch)
    with pytest.raises(InvalidInput, match="before an interruption"):
        model.partial_fit(X, y)


def test_a_refused_call_takes_nothing() -> None:
    model = half()
    with pytest.raises(ValueError, match="features"):
        model.partial_fit(X[:, :2], y)
    model.partial_fit(X, y)


CHILD = """
import pickle, sys
sys.path.insert(0, {here!r})
from estimator_tables import labelled
from isthmus import InvalidInput
from isthmus.estimators import load
model = load({path!r}) if {file} else pickle.load(open({path!r}, "rb"))
try:
    model{given}.partial_fit(*labelled())
    print("spent")
except InvalidInput as error:
    print(error)
"""


def in_another_process(path: Path, file: bool, given: str = "") -> str:
    code = CHILD.format(here=str(Path(__file__).parent), path=str(path), file=file, given=given)
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("file", [True, False])
def test_a_copy_in_another_process_needs_a_ledger(file: bool, tmp_path: Path) -> None:
    model, path, ledger = half(), tmp_path / "m", tmp_path / "l"
    model.save(path) if file else path.write_bytes(pickle.dumps(model))
    assert "in another process than the first" in in_another_process(path, file)
    model = half(ledger=str(ledger))
    model.save(path) if file else path.write_bytes(pickle.dumps(model))
    given = f".set_params(ledger={str(ledger)!r})"
    assert in_another_process(path, file, given) == "spent\n" and Ledger.open(ledger).rounds() == {"main": 8}
    model.partial_fit(X, y)
    assert Ledger.open(ledger).rounds() == {"main": 12}, "what both copies spent is in the ledger they share"


def test_a_shared_budget_holds_for_all_copies(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "l", budget=(1.0, 1e-5))
    model = half(ledger=str(tmp_path / "l"), epsilon=1.0, delta=1e-5)
    other = copy.deepcopy(model)
    model.partial_fit(X, y)
    with pytest.raises(BudgetExceeded):
        other.partial_fit(X, y)
    assert Ledger.open(tmp_path / "l").spent() <= 1.0


def test_calls_go_on_with_the_ledger_that_counts_them(tmp_path: Path) -> None:
    model = half(ledger=str(tmp_path / "l"))
    for other in (None, str(tmp_path / "another"), Ledger()):
        with pytest.raises(InvalidInput, match="give the ledger that earlier calls were charged to again"):
            copy.copy(model).set_params(ledger=other).partial_fit(X, y)
    late = half()
    first, second = (copy.copy(late).set_params(ledger=Ledger()) for _ in range(2))
    first.partial_fit(X, y)
    with pytest.raises(InvalidInput, match="begun before"):
        second.partial_fit(X, y)


def test_a_clone_is_another_model() -> None:
    model = half()
    again = clone(model).partial_fit(X, y)
    again.partial_fit(X, y)
    model.partial_fit(X, y)


def test_without_privacy_copies_are_free() -> None:
    model = half(epsilon=float("inf"), algorithm="auto", step=None, max_iter=3)
    copy.deepcopy(model).partial_fit(X, y)
    model.partial_fit(X, y)
