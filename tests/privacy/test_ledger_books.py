"""What stands behind a ledger: plain books in memory, sealed ones in files, shared ledgers and limits of rounds."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

import pytest
from dp_accounting import dp_event as E

from isthmus.base.validate import InvalidInput
from isthmus.privacy import Adjacency, epsilon_of
from isthmus.privacy.ledger import BudgetExceeded, Ledger, Limit
from isthmus.privacy.ledger_records import LedgerCorrupt, _Records

EVENT = E.ComposedDpEvent([E.GaussianDpEvent(40.0), E.SelfComposedDpEvent(E.LaplaceDpEvent(90.0), 2)])


def fill(ledger: Ledger) -> Ledger:
    with ledger.run({"main": EVENT, "rare": E.GaussianDpEvent(50.0)}, reserve={"main": 4, "rare": 1}) as run:
        for t in range(6):
            run.charge("main", t)
        run.charge("rare", 0)
    ledger.pay("it", E.ZCDpEvent(rho=0.01, xi=0.0), 2, seeded=True)
    return ledger


def test_memory_and_file_say_the_same(tmp_path: Path) -> None:
    memory, file = fill(Ledger(budget=(9.0, 1e-5))), fill(Ledger(tmp_path / "l", (9.0, 1e-5)))
    for ask in (Ledger.rounds, Ledger.event, Ledger.spent):
        assert ask(memory) == ask(file) == ask(Ledger.open(tmp_path / "l"))
    assert memory.seeded and file.seeded
    own = ("run", "time", "previous", "hash")
    values = [
        [{k: v for k, v in record.items() if k not in own} for record in each.records()] for each in (memory, file)
    ]
    assert values[0] == values[1]


def test_records_of_memory_are_copies() -> None:
    ledger = fill(Ledger())
    before = ledger.event()
    for record in ledger.records():
        record.setdefault("event", {})["event"] = "NoOp"
        record["rounds"] = 0
    assert ledger.event() == before and ledger.records()[0]["number"] == 1


def test_a_ledger_in_memory_does_not_read_or_write_json(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Ledger().run({"main": E.GaussianDpEvent(40.0)})

    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("a charge in memory is neither written nor sealed")

    for module, name in ((json, "dumps"), (json, "loads"), (hashlib, "sha256")):
        monkeypatch.setattr(module, name, never)
    for t in range(20):
        run.charge("main", t)
    assert run._left == {"main": 0}


def test_a_ledger_is_told_from_others(tmp_path: Path) -> None:
    file, other, memory, second = Ledger(tmp_path / "a"), Ledger(tmp_path / "b"), Ledger(), Ledger()
    assert Ledger.open(tmp_path / "a").identity == file.identity == file.records()[0]["hash"]
    assert len({file.identity, other.identity, memory.identity, second.identity}) == 4


def test_a_runs_own_ledger_has_no_budget_of_its_own() -> None:
    with pytest.raises(InvalidInput, match="budget=.*the shared ledger has the budget"):
        Ledger(budget=(1.0, 1e-5), shared=Ledger(budget=(2.0, 1e-5)), label="a")


def test_a_seed_is_marked_in_both() -> None:
    shared = Ledger(budget=(2.0, 1e-5))
    own = Ledger(shared=shared, label="a")
    own.mark_seeded()
    assert own.seeded and shared.seeded


def test_a_seed_is_marked_once_in_a_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l", (9.0, 1e-5))
    ledger.mark_seeded()
    written = (tmp_path / "l").read_bytes()
    ledger.mark_seeded()
    assert (tmp_path / "l").read_bytes() == written and Ledger.open(tmp_path / "l").seeded


def test_rounds_beyond_a_limit_are_refused_and_not_charged(tmp_path: Path) -> None:
    event = E.GaussianDpEvent(9.0)

    def cost(what: E.DpEvent, delta: float) -> float:
        return epsilon_of(what, delta, Adjacency.ADD_REMOVE)

    ledger = Ledger(tmp_path / "l")
    limit = Limit(3, (1.0, 1e-5), cost)
    run = ledger.run({"main": event, "rare": event}, limit=limit)
    for t in range(3):
        run.charge("main", t)
    run.charge("rare", 0)
    for t in (3, 0):  # by the rounds that were made, whatever number they give
        with pytest.raises(BudgetExceeded, match="'main' needs epsilon") as refused:
            run.charge("main", t)
    assert refused.value.budget == (1.0, 1e-5)
    assert refused.value.spent == pytest.approx(cost(E.SelfComposedDpEvent(event, 4), 1e-5))
    assert refused.value.asked == pytest.approx(cost(E.SelfComposedDpEvent(event, 5), 1e-5))
    with pytest.raises(BudgetExceeded):  # and by their number: some may have been made before an interruption
        run.charge("rare", 3)
    assert ledger.rounds() == {"main": 3, "rare": 1} and ledger.remaining() == math.inf


@pytest.mark.parametrize("rounds", [1e308, 2.0, True, 0, -3, "2"])
@pytest.mark.parametrize("torn", [False, True])
def test_a_charge_is_of_whole_rounds(rounds: object, torn: bool) -> None:
    """A record with a right seal is still read as what a ledger can have written; a torn one gives nothing back."""
    event = {"event": "Laplace", "noise_multiplier": 9.0}
    records = _Records({"kind": "open", "format": 1, "budget": None, "adjacency": "add-remove", "dataset": ""})
    records.append(records.opening)
    records.append({"kind": "begin", "run": "a", "announced": {"main": {"event": event, "rounds": 3}}})
    charge = {"what": "main", "event": event, "rounds": rounds}
    body = {"kind": "torn", "charges": [charge]} if torn else {"kind": "charge", "run": "a", **charge}
    with pytest.raises(LedgerCorrupt, match="record 3"):
        records.append(body)
