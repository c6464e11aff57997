"""A run charges its own ledger and a shared one; the shared one decides."""

from __future__ import annotations

from pathlib import Path

import pytest
from dp_accounting import dp_event

from isthmus.base.validate import InvalidInput
from isthmus.privacy import BudgetExceeded, Ledger
from isthmus.runs.budget import open_shared, spenders

EVENT = dp_event.GaussianDpEvent(10.0)


def test_both_ledgers_hold_every_charge(tmp_path: Path) -> None:
    shared = Ledger.open(tmp_path / "shared", budget=(2.0, 1e-5))
    own = Ledger(tmp_path / "own", shared=shared, label="people-1")
    with own.run({"main": EVENT, "rare": dp_event.LaplaceDpEvent(9.0)}, reserve=4) as run:
        for t in range(6):
            run.charge("main", t)
        run.charge("rare", 0)
    assert own.rounds() == {"main": 6, "rare": 1}
    assert Ledger.open(tmp_path / "shared").rounds() == {"people-1/main": 6, "people-1/rare": 1}
    assert own.spent(1e-5) == shared.spent()
    killed = Ledger(tmp_path / "other", shared=shared, label="people-2").run({"main": EVENT}, reserve=5)
    killed.charge("main", 0)
    found = spenders(open_shared(tmp_path / "shared"))
    assert {each["label"]: each["rounds"] for each in found} == {
        "people-1": {"main": 6, "rare": 1},
        "people-2": {"main": 5},
    }
    assert found[0]["epsilon"] == own.spent(1e-5)


def test_the_shared_budget_refuses_before_and_while_a_run_runs(tmp_path: Path) -> None:
    shared = Ledger.open(tmp_path / "shared", budget=(1.0, 1e-5))
    own = Ledger(tmp_path / "own", shared=shared, label="a", planned=[dp_event.GaussianDpEvent(8.0)])
    own.require(dp_event.SelfComposedDpEvent(EVENT, 4))
    six = dp_event.SelfComposedDpEvent(EVENT, 6)
    shared.require(six)
    with pytest.raises(BudgetExceeded, match="'a' needs epsilon"):  # what it will release afterwards counts too
        own.require(six)
    assert own.rounds() == shared.rounds() == {}
    run = own.run({"main": EVENT}, reserve=3)
    with pytest.raises(BudgetExceeded):
        for t in range(100):
            run.charge("main", t)
    run.close()
    assert shared.spent() <= 1.0 and own.rounds()["main"] == shared.rounds()["a/main"]


def test_files_that_are_no_budget_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="File not found: .* .make it first: isthmus budget"):
        open_shared(tmp_path / "none")
    Ledger.open(tmp_path / "unlimited")
    with pytest.raises(InvalidInput, match="give a ledger that has a limit: make it first"):
        open_shared(tmp_path / "unlimited")
