"""The ledger's rules: records in memory and in files, the chain, the budget, reservations and refunds."""

import contextlib
import copy
import hashlib
import json
import math
import os
import pickle
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from dp_accounting import dp_event as E

from isthmus.base.atomic import CannotWrite
from isthmus.base.validate import InvalidInput
from isthmus.engine.engine import Accountant
from isthmus.privacy import Adjacency, accounting
from isthmus.privacy.event_json import canonical, to_json
from isthmus.privacy.ledger import START, BudgetExceeded, Ledger, LedgerCorrupt, RunLedger, _Records

GAUSSIAN = E.GaussianDpEvent(40.0)


@pytest.fixture(params=["memory", "file"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    return None if request.param == "memory" else tmp_path / "ledger"


def test_equal_events_are_counted_together(path: Path | None) -> None:
    ledger = Ledger(path)
    ledger.pay("a", E.GaussianDpEvent(2.0), 3)
    ledger.pay("b", E.SelfComposedDpEvent(E.GaussianDpEvent(2), 4))
    ledger.pay("c", E.ComposedDpEvent([E.LaplaceDpEvent(3.0), E.GaussianDpEvent(2.0)]))
    both = [E.SelfComposedDpEvent(E.GaussianDpEvent(2.0), 8), E.LaplaceDpEvent(3.0)]
    assert ledger.event() == E.ComposedDpEvent(both)
    assert ledger.rounds() == {"a": 3, "b": 1, "c": 1}
    expected = accounting.epsilon_of(E.ComposedDpEvent(both), 1e-5, Adjacency.ADD_REMOVE)
    assert ledger.spent(1e-5) == pytest.approx(expected, rel=1e-12)


# ---------------------------------------------------------------- reservations and refunds


def test_a_reservation_is_charged_whole_and_consumed_round_by_round(path: Path | None) -> None:
    ledger = Ledger(path)
    run = ledger.run({"main": GAUSSIAN, "rare": E.LaplaceDpEvent(3.0)}, reserve={"main": 10, "rare": 1})
    charged = []
    for t in range(12):
        run.charge("main", t)
        charged.append(ledger.rounds()["main"])
    run.charge("rare", 12)
    assert charged == [10] * 10 + [20] * 2
    assert run._left == {"main": 8, "rare": 0}
    run.close()
    assert ledger.rounds() == {"main": 12, "rare": 1}
    kinds = [(r["kind"], r.get("what"), r.get("rounds")) for r in ledger.records()]
    assert kinds == [
        ("open", None, None),
        ("begin", None, None),
        *[("charge", "main", 10)] * 2,
        ("charge", "rare", 1),
        ("refund", "main", 8),
        ("close", None, None),
    ]


def test_what_a_dead_run_reserved_stays_charged(tmp_path: Path) -> None:
    run = Ledger.open(tmp_path / "l").run({"main": GAUSSIAN}, reserve=10)
    run.charge("main")
    del run
    resumed = Ledger.open(tmp_path / "l")
    assert resumed.rounds() == {"main": 10}
    with resumed.run({"main": GAUSSIAN}, reserve=5) as second:
        second.charge("main")
    assert resumed.rounds() == {"main": 11}


def test_a_closed_run_is_over(path: Path | None) -> None:
    ledger = Ledger(path)
    run = ledger.run({"main": GAUSSIAN}, reserve=3)
    run.charge("main")
    run.close(refund=False)
    run.close()
    assert ledger.rounds() == {"main": 3}
    with pytest.raises(InvalidInput, match="begin a new run: this one is closed"):
        run.charge("main")


def test_a_run_that_fails_gives_back_what_it_never_began(path: Path | None) -> None:
    ledger = Ledger(path)
    with pytest.raises(ZeroDivisionError), ledger.run({"main": GAUSSIAN}, reserve=9) as run:
        run.charge("main")
        1 / 0  # noqa: B018
    assert ledger.rounds() == {"main": 1}


def test_another_process_cannot_spend_or_refund_a_reservation(
    path: Path | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(path)
    run = ledger.run({"main": GAUSSIAN}, reserve=5)
    run.charge("main")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        for act in (lambda: run.charge("main"), run.close):
            with pytest.raises(InvalidInput, match="begin a new run in this process"):
                act()
        if path is None:
            with pytest.raises(InvalidInput, match="give the ledger a path, through which processes share it"):
                ledger.rounds()
    assert ledger.rounds() == {"main": 5} and run._left == {"main": 4}


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_reservation_cannot_be_duplicated(path: Path | None, duplicate: Any) -> None:
    ledger = Ledger(path)
    for each in (ledger, ledger.run({"main": GAUSSIAN})):
        with pytest.raises(TypeError, match="is not copied or pickled"):
            duplicate(each)


NONSENSE = [
    ([{"kind": "refund", "what": "main", "rounds": 3}], "never announced or made"),
    ([{"kind": "charge", "what": "main", "rounds": 0}], "rounds=0 is not allowed"),
    ([{"kind": "charge", "what": "other", "rounds": 1}], "other"),
    ([{"kind": "charge", "what": "main", "rounds": 1, "event": to_json(E.LaplaceDpEvent(9.0))}], "never announced"),
    ([{"kind": "close"}, {"kind": "charge", "what": "main", "rounds": 1}], "cannot be what a ledger wrote"),
    ([{"kind": "holiday"}], "'holiday' can stand here"),
    ([{"kind": "close", "run": "nobody"}], "nobody"),
    ([{"kind": "open"}], "one 'open' record"),
]


@pytest.mark.parametrize(("bodies", "message"), NONSENSE)
def test_well_sealed_nonsense_is_refused(tmp_path: Path, bodies: list[dict[str, Any]], message: str) -> None:
    ledger = Ledger.open(tmp_path / "l")
    run = ledger.run({"main": GAUSSIAN}, reserve=2)
    run.charge("main")
    nonsense = [{"run": run.id, "event": to_json(GAUSSIAN)} | body for body in bodies]
    with pytest.raises(LedgerCorrupt, match=message), ledger._records.locked():
        ledger._records.append(*nonsense)
    assert ledger.rounds() == {"main": 2}  # it is not written
    forged = [*records(tmp_path / "l"), *nonsense]
    write(tmp_path / "l", sealed(forged))
    with pytest.raises(LedgerCorrupt, match=message):
        Ledger.open(tmp_path / "l")


# ---------------------------------------------------------------- the budget


@pytest.mark.parametrize("reserve", [1, 7, 100])
@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_budget_is_used_up_and_not_exceeded(path: Path | None, reserve: int, adjacency: Adjacency) -> None:
    ledger = Ledger(path, (1.0, 1e-5), adjacency=adjacency)
    run = ledger.run({"main": GAUSSIAN}, reserve=reserve)
    rounds = 0
    with pytest.raises(BudgetExceeded) as refused:
        while True:
            run.charge("main", rounds)
            rounds += 1

    def cost(count: int) -> float:
        return accounting.epsilon_of(E.SelfComposedDpEvent(GAUSSIAN, count), 1e-5, adjacency)

    assert cost(rounds) <= 1.0 < cost(rounds + 1)
    assert ledger.rounds() == {"main": rounds} and run._left == {"main": 0}
    assert ledger.spent() == pytest.approx(cost(rounds), rel=1e-12)
    assert refused.value.spent == ledger.spent() and refused.value.left == ledger.remaining() == 1.0 - ledger.spent()
    assert refused.value.asked == pytest.approx(cost(rounds + 1), rel=1e-12)
    for number in (refused.value.spent, refused.value.asked, refused.value.left):
        assert f"{number:.6g}" in str(refused.value)
    assert str(pickle.loads(pickle.dumps(refused.value))) == str(refused.value)


def test_a_payment_is_made_whole_or_not_at_all(path: Path | None) -> None:
    ledger = Ledger(path, (0.5, 1e-5))
    with pytest.raises(BudgetExceeded, match="'big' needs epsilon .* too little for 10000 more rounds"):
        ledger.pay("big", GAUSSIAN, 10_000)
    assert ledger.rounds() == {} and ledger.spent() == 0.0
    ledger.pay("small", GAUSSIAN, 3)
    assert ledger.rounds() == {"small": 3}


def test_unhidden_releases_never_fit_a_budget(path: Path | None) -> None:
    with pytest.raises(BudgetExceeded, match="no finite epsilon"):
        Ledger(path, (100.0, 1e-5)).pay("plain", E.NonPrivateDpEvent())
    free = Ledger()
    free.pay("plain", E.NonPrivateDpEvent())
    assert free.spent(1e-5) == math.inf


def test_many_rounds_ask_the_accountant_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    collected = []
    real = accounting.epsilon_of

    def counting(event: Any, *rest: Any) -> float:
        collected.append(event)
        return real(event, *rest)

    monkeypatch.setattr(accounting, "epsilon_of", counting)
    ledger = Ledger(budget=(4.0, 1e-5))
    events = {"main": E.GaussianDpEvent(400.0), "anchor": E.GaussianDpEvent(100.0)}
    with pytest.raises(BudgetExceeded), ledger.run(events, reserve={"main": 100, "anchor": 10}) as run:
        for t in range(200_000):
            run.charge("main", t)
            if t % 10 == 0:
                run.charge("anchor", t)
    assert ledger.rounds()["main"] > 50_000
    assert len(collected) < 150
    assert 3.99 < ledger.spent() <= 4.0


def test_events_no_accountant_composes_are_refused_when_a_run_begins(path: Path | None) -> None:
    unknown = E.SampledWithoutReplacementDpEvent(100, 10, GAUSSIAN)
    with pytest.raises(InvalidInput, match="an accountant composes for add-remove"):
        Ledger(path, (1.0, 1e-5)).run({"main": unknown})
    Ledger(budget=(1.0, 1e-5), adjacency="replace-one").run({"main": unknown})


def test_without_a_budget_everything_is_recorded(path: Path | None) -> None:
    ledger = Ledger(path)
    assert ledger.budget is None and ledger.remaining() == math.inf
    assert ledger.spent(1e-5) == 0.0 and ledger.event() == E.NoOpDpEvent()
    with pytest.raises(InvalidInput, match="delta=None"):
        ledger.spent()
    with pytest.raises(InvalidInput, match="give 1e-05, which is the delta of the budget"):
        Ledger(budget=(1.0, 1e-5)).remaining(1e-6)


def test_wrong_arguments_are_refused_before_a_file_is_made(tmp_path: Path) -> None:
    wrong: dict[str, Any] = {"budget": [(0.0, 1e-5), (1.0, 1.0), (math.inf, 1e-5), (1.0,), 1.0]}
    for name, values in (wrong | {"adjacency": ["neighbours"], "dataset": [3]}).items():
        for value in values:
            with pytest.raises(InvalidInput, match=f"{name}="):
                Ledger.open(tmp_path / "l", **{name: value})
    assert not list(tmp_path.iterdir())


def test_wrong_runs_are_refused() -> None:
    for events in ({}, {"": GAUSSIAN}):
        with pytest.raises(InvalidInput, match="events"):
            RunLedger(Ledger(), events)
    for reserve in (0, 1.5, {"other": 3}):
        with pytest.raises(InvalidInput, match="reserve"):
            RunLedger(Ledger(), {"main": GAUSSIAN}, reserve)  # type: ignore[arg-type]


def test_a_continued_ledger_must_agree(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "l", (1.0, 1e-5), adjacency=Adjacency.REPLACE_ONE, dataset="census")
    again = Ledger.open(tmp_path / "l")
    assert (again.budget, again.adjacency, again.dataset) == ((1.0, 1e-5), Adjacency.REPLACE_ONE, "census")
    Ledger.open(tmp_path / "l", [1, 1e-5], adjacency="replace-one", dataset="census")  # type: ignore[arg-type]
    for wrong in ({"budget": (2.0, 1e-5)}, {"adjacency": Adjacency.ADD_REMOVE}, {"dataset": "other"}):
        with pytest.raises(InvalidInput, match=f"{next(iter(wrong))}=.*with which this ledger was opened"):
            Ledger.open(tmp_path / "l", **wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- the chain

Row = tuple[int, str, str]


def rows(path: Path) -> list[Row]:
    """What is in the table of a ledger: number, hash, body."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        return list(database.execute("SELECT number, hash, body FROM records ORDER BY number"))


def records(path: Path) -> list[dict[str, Any]]:
    """The bodies of a ledger, read without its help."""
    return [json.loads(body) for _, _, body in rows(path)]


def sealed(bodies: list[dict[str, Any]]) -> list[Row]:
    """Rows of these bodies whose numbers and seals are right."""
    head, made = START, []
    for number, body in enumerate(bodies, 1):
        text = canonical(body | {"number": number, "previous": head})
        head = hashlib.sha256(text.encode()).hexdigest()
        made.append((number, head, text))
    return made


def write(path: Path, changed: list[Row], mark: bool = False) -> None:
    """Put these rows in the place of a ledger's; without its mark unless said otherwise."""
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute("DELETE FROM records")
        database.executemany("INSERT INTO records VALUES (?, ?, ?)", changed)
    if not mark:
        Path(f"{path}.lock").unlink(missing_ok=True)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    ledger = Ledger.open(tmp_path / "l", (9.0, 1e-5), dataset="d")
    with ledger.run({"main": GAUSSIAN, 'odd "name"\t\n': E.LaplaceDpEvent(9.0)}, reserve=4) as run:
        run.charge("main")
        run.charge('odd "name"\t\n')
    ledger.run({"main": GAUSSIAN}).charge("main")
    return tmp_path / "l"


@pytest.mark.parametrize("mark", [True, False])
def test_any_altered_byte_changes_nothing_or_is_refused(filled: Path, mark: bool) -> None:
    """The room that a page does not use holds nothing; a byte of a record is always noticed."""
    data, before = filled.read_bytes(), rows(filled)
    inside = [data.index(body[:60].encode()) + at for _, _, body in before for at in range(0, len(body), 9)]
    for place in [*inside, *range(0, 200), *range(200, len(data), 97)]:
        changed = bytearray(data)
        changed[place] ^= 1
        filled.write_bytes(changed)
        if not mark:
            Path(f"{filled}.lock").unlink(missing_ok=True)
        try:
            read = Ledger.open(filled).records()
        except (LedgerCorrupt, CannotWrite):
            continue
        assert place not in inside
        assert [record["hash"] for record in read] == [digest for _, digest, _ in before]
    for file in (filled, Path(f"{filled}-journal"), Path(f"{filled}-wal"), Path(f"{filled}-shm")):
        file.unlink(missing_ok=True)
    filled.write_bytes(data)
    assert Ledger.open(filled).rounds() == {"main": 2, 'odd "name"\t\n': 1}


def test_removed_repeated_moved_and_altered_records_are_refused(filled: Path) -> None:
    good = rows(filled)
    for i in range(len(good) - 1):
        number, digest, body = good[i]
        following = good[i + 1]
        alone = json.loads(body) | {"time": "1970-01-01T00:00:00.000+00:00"}
        resealed = canonical(alone)
        for changed in (
            good[:i] + good[i + 1 :],
            good[:i] + [(n - 1, d, b) for n, d, b in good[i + 1 :]],
            good[: i + 1] + [(n + 1, d, b) for n, d, b in good[i:]],
            [*good[:i], (number, *following[1:]), (number + 1, digest, body), *good[i + 2 :]],
            [*good[:i], (number, digest, resealed), *good[i + 1 :]],
            [*good[:i], (number, hashlib.sha256(resealed.encode()).hexdigest(), resealed), *good[i + 1 :]],
            [*good[:i], (number, digest, body.replace(":", ": ", 1)), *good[i + 1 :]],
            [*good[:i], (number, digest, "{}"), *good[i + 1 :]],
            [*good[:i], (number, digest, 7), *good[i + 1 :]],
        ):
            write(filled, changed)
            with pytest.raises(LedgerCorrupt, match=rf"record ({number}|{number + 1}) "):
                Ledger.open(filled)


def test_lost_records_at_the_end_are_refused(filled: Path) -> None:
    good = rows(filled)
    message = f"record {len(good)}, which was written to this ledger, is missing or altered"
    last = json.loads(good[-1][2]) | {"time": "1970-01-01T00:00:00.000+00:00"}
    for changed in [*(good[:number] for number in range(len(good))), sealed([*records(filled)[:-1], last])]:
        write(filled, changed, mark=True)
        with pytest.raises(LedgerCorrupt, match=message):
            Ledger.open(filled)
    for empty in (True, False):
        filled.unlink()
        if empty:
            filled.touch()
        with pytest.raises(LedgerCorrupt, match=message):
            Ledger.open(filled)


def test_the_hash_is_that_of_the_rest(filled: Path) -> None:
    assert sealed(records(filled)) == rows(filled)
    assert all(record["time"].endswith("+00:00") for record in records(filled))


def test_a_file_changed_under_a_live_ledger_is_refused(filled: Path, tmp_path: Path) -> None:
    ledger, good, data = Ledger.open(filled), rows(filled), filled.read_bytes()
    write(filled, good[:-1])
    with pytest.raises(LedgerCorrupt, match=f"record {len(good)}, which was written to this ledger, is missing"):
        ledger.rounds()
    write(filled, good)
    assert ledger.rounds() == Ledger.open(filled).rounds()
    (tmp_path / "new").write_bytes(data)
    os.replace(tmp_path / "new", filled)
    with pytest.raises(LedgerCorrupt, match="was replaced by another file"):
        ledger.rounds()
    assert Ledger.open(filled).rounds()


@pytest.mark.parametrize(
    "content",
    [b"hello", b"hello\n", b"\n", b"{}\n", b"[1, 2]\n", b"\x00\xff\xfe" * 50, b"\x00" * 64 + b"\n", b"1", b"[" * 10**5]
    + [b'{"kind":"charge","run":"', b'{"kind":"open","run":""}\n', b"hello\n" * 999],
)
def test_what_is_not_a_ledger_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "l").write_bytes(content)
    with pytest.raises(LedgerCorrupt, match="l.* this is not a ledger"):
        Ledger.open(tmp_path / "l")
    assert (tmp_path / "l").read_bytes() == content
    assert {path.name for path in tmp_path.iterdir()} <= {"l", "l.lock"}


def test_another_database_is_refused_and_left_alone(filled: Path) -> None:
    for statement in (
        "CREATE TABLE other (a)",
        "CREATE TRIGGER t AFTER INSERT ON records BEGIN DELETE FROM records; END",
    ):
        other = filled.with_name(f"other{len(statement)}")
        other.write_bytes(filled.read_bytes())
        with contextlib.closing(sqlite3.connect(other)) as database, database:
            database.execute(statement)
        data = other.read_bytes()
        with pytest.raises(LedgerCorrupt, match="holds something else: this is not a ledger"):
            Ledger.open(other)
        assert other.read_bytes() == data


def test_places_where_no_ledger_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for place in (tmp_path / "missing" / "l", tmp_path / "file" / "l", tmp_path / "folder", ""):
        with pytest.raises(InvalidInput, match="no ledger can be written to this one"):
            Ledger.open(place)

    def denied(*arguments: Any, **options: Any) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(InvalidInput, match=r"no ledger can be written to this one \(Permission denied\)"):
        Ledger.open(tmp_path / "l")


def test_a_name_that_sqlite_gives_a_meaning_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (":memory:", "file:l?mode=memory"):
        Ledger.open(name).pay("it", GAUSSIAN)
        assert (tmp_path / name).stat().st_size > 0 and Ledger.open(tmp_path / name).rounds() == {"it": 1}


def test_the_ledger_loads_neither_torch_nor_the_accountant() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import ledger_child; ledger_child.light_package()\n"
        "from isthmus.privacy.ledger import Ledger\n"
        "Ledger().pay('it', ledger_child.EVENT)\n"
        "assert not {'torch', 'dp_accounting'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(Path(__file__).parent)], check=True)


# ---------------------------------------------------------------- what stands behind a ledger: plain books in memory,

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

    ledger = Ledger(tmp_path / "l")
    accountant = Accountant(ledger)
    run = ledger.run({"main": event, "rare": event}, limit=accountant.limit(3, (1.0, 1e-5)))
    for t in range(3):
        run.charge("main", t)
    run.charge("rare", 0)
    for t in (3, 0):  # by the rounds that were made, whatever number they give
        with pytest.raises(BudgetExceeded, match="'main' needs epsilon") as refused:
            run.charge("main", t)
    assert refused.value.budget == (1.0, 1e-5)
    assert refused.value.spent == pytest.approx(accountant.cost(E.SelfComposedDpEvent(event, 4), 1e-5))
    assert refused.value.asked == pytest.approx(accountant.cost(E.SelfComposedDpEvent(event, 5), 1e-5))
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
