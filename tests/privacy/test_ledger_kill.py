"""Killed at any moment, on a full disk, shared by several processes: the ledger never says less than the truth."""

import os
import random
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_child import TURNS

from isthmus.base.atomic import CannotWrite
from isthmus.privacy import ledger as ledger_module
from isthmus.privacy.ledger import Ledger

CHILD = Path(__file__).with_name("ledger_child.py")
EVENT = {"event": "Gaussian", "noise_multiplier": 40.0}


def start(path: Path, out: Path, reserve: int, mode: str, rounds: int = 10**6) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHILD), str(path), str(out), str(reserve), mode, str(rounds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def told(child: subprocess.Popen[str], words: str) -> None:
    """Wait until a child has said this."""
    assert child.stdout is not None and child.stdout.readline() == f"{words}\n"


def go(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    child.stdin.write("go\n")
    child.stdin.flush()


def finish_together(children: list[subprocess.Popen[str]], turns: int = 0) -> list[str]:
    """Let the children take turns, then go on at the same time; what each of them said after that."""
    for child in children:
        told(child, "ready")
    for _ in range(turns):
        for child in children:
            go(child)
            told(child, "done")
    for child in children if not turns else ():
        go(child)
    values = [child.communicate()[0] for child in children]
    assert [child.returncode for child in children] == [0] * len(children)
    return values


def until(out: Path, size: int, child: subprocess.Popen[str]) -> None:
    """Wait until a child has made so many releases, however long that takes."""
    while (out.stat().st_size if out.exists() else 0) < size:
        assert child.poll() is None
        time.sleep(1e-3)


@pytest.mark.parametrize(("mode", "reserve", "kills"), [("plain", 1, 10), ("plain", 7, 10), ("torn", 3, 8)])
def test_a_kill_at_any_moment_never_under_reports(tmp_path: Path, mode: str, reserve: int, kills: int) -> None:
    """`make chaos` kills more often."""
    path, out = tmp_path / "ledger", tmp_path / "out"
    moments = random.Random(reserve)
    for kill in range(1, kills + 1):
        before = out.stat().st_size if out.exists() else 0
        with start(path, out, reserve, mode, moments.randint(2, 6) if mode == "torn" else 10**6) as child:
            told(child, "ready")
            if mode == "torn":
                told(child, "torn")
                assert Path(f"{path}-journal").stat().st_size > 0  # what it takes to undo the half that is written
            else:
                until(out, before + moments.randint(0, 4), child)
            child.kill()
        ledger = Ledger.open(path)  # resume: each child continues what the killed ones left
        charged, released = ledger.rounds().get("main", 0), out.stat().st_size if out.exists() else 0
        assert released <= charged <= released + kill * reserve
        records = ledger.records()
        assert [record["number"] for record in records] == list(range(1, len(records) + 1))
        assert all(record["kind"] != "ran" for record in records)
    assert out.stat().st_size > 0


@pytest.mark.parametrize("statement", ["INSERT", "COMMIT", "mark"])
def test_a_failed_write_grants_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str) -> None:
    ledger = Ledger.open(tmp_path / "ledger")
    run = ledger.run({"main": EVENT}, reserve=4)
    connected = ledger_module._connected

    class Full(sqlite3.Connection):
        def execute(self, sql: str, *values: Any) -> Any:
            if sql.startswith(statement):
                error = sqlite3.OperationalError("database or disk is full")
                error.sqlite_errorcode = sqlite3.SQLITE_FULL
                raise error
            return super().execute(sql, *values)

    def full(path: Path) -> sqlite3.Connection:
        database = sqlite3.connect(path, isolation_level=None, factory=Full)
        database.text_factory = connected(path).text_factory
        return database

    def no_room(*arguments: Any) -> int:
        raise OSError(28, "disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(ledger_module, "_connected", full)
        if statement == "mark":
            patch.setattr(os, "pwrite", no_room)
        with pytest.raises(CannotWrite, match="disk is full.*nothing was released for it; make room, and go on"):
            run.charge("main")
    assert run._left == {"main": 0}
    run.charge("main")
    charged = 8 if statement == "mark" else 4  # what is on the disk counts, and nobody may give it back
    assert ledger.rounds() == {"main": charged}
    run.close()
    assert ledger.rounds() == Ledger.open(tmp_path / "ledger").rounds() == {"main": charged - 3}


def test_a_fork_goes_on_with_a_ledger_that_threads_use(tmp_path: Path) -> None:
    """What a fork copies is never in the middle of an operation, however many threads charge while it is made."""
    from concurrent.futures import ThreadPoolExecutor

    ledger = Ledger.open(tmp_path / "ledger")
    with ThreadPoolExecutor(2) as pool:
        busy = [pool.submit(ledger.pay, "here", EVENT) for _ in range(60)]
        for _ in range(12):
            child = os.fork()
            if not child:
                ledger.pay("fork", EVENT)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        for each in busy:
            each.result()
    assert ledger.rounds() == Ledger.open(tmp_path / "ledger").rounds() == {"here": 60, "fork": 12}


def test_processes_share_a_ledger_without_losing_an_update(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    outs = [tmp_path / f"out{i}" for i in range(3)]
    finish_together([start(path, out, k, "together", 150) for out, k in zip(outs, (1, 2, 4), strict=True)], TURNS)
    ledger = Ledger.open(path)
    assert ledger.rounds() == {"main": 450}
    charges = [record for record in ledger.records() if record["kind"] == "charge"]
    assert len(charges) == 150 + 75 + 38
    assert len({charge["run"] for charge in charges}) == 3
    switches = sum(a["run"] != b["run"] for a, b in zip(charges, charges[1:], strict=False))
    assert switches > 2  # they did run at the same time


def test_processes_share_one_budget(tmp_path: Path) -> None:
    from isthmus.privacy import accounting
    from isthmus.privacy.event_json import composed

    path, budget = tmp_path / "ledger", (0.5, 1e-5)
    ledger = Ledger.open(path, budget=budget)
    outs = [tmp_path / "out0", tmp_path / "out1"]
    assert finish_together([start(path, out, 2, "budget") for out in outs]) == ["refused\n"] * 2
    released = sum(out.stat().st_size for out in outs)

    def cost(rounds: int) -> float:
        return float(accounting.epsilon_of(composed([(EVENT, rounds)]), budget[1], ledger.adjacency))

    assert ledger.rounds() == {"main": released}
    assert cost(released) <= budget[0] < cost(released + 1)


def test_threads_share_a_ledger(tmp_path: Path) -> None:
    from concurrent.futures import ThreadPoolExecutor

    ledgers: list[Any] = [Ledger.open(tmp_path / "ledger") for _ in range(2)]
    runs = [ledger.run({"main": EVENT}, reserve=3) for ledger in ledgers]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda i: runs[i % 2].charge("main", i), range(60)))
    for run in runs:
        run.close()
    assert ledgers[0].rounds() == ledgers[1].rounds() == {"main": 60}


HOLDS = """
import sqlite3, sys, time
database = sqlite3.connect(sys.argv[1], isolation_level=None)
for statement in sys.argv[2:]:
    database.execute(statement).fetchall()
print("held", flush=True)
sys.stdin.readline()
time.sleep(0.3)
"""
HELD: dict[str, list[str]] = {
    "within an operation": ["BEGIN IMMEDIATE"],
    "while it writes": ["BEGIN EXCLUSIVE"],
    "while it reads": ["BEGIN", "SELECT * FROM records"],  # others get as far as their COMMIT
}


def holder(path: Path, *statements: str) -> subprocess.Popen[str]:
    """A process that was stopped while it had the file of a ledger."""
    command = [sys.executable, "-c", HOLDS, str(path), *statements]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    told(child, "held")
    return child


def warned(what: Callable[[], None], then: Callable[[], None]) -> list[tuple[str, type[Warning], str]]:
    """What is warned of, with its kind and its place; `then` is done at each warning."""
    said = []

    def show(message: Warning | str, category: type[Warning], filename: str, *_: Any) -> None:
        said.append((str(message), category, filename))
        then()

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        what()
    return said


@pytest.mark.parametrize("held", list(HELD))
def test_a_ledger_that_another_process_holds_is_waited_for_with_one_warning(
    held: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is let go a while after the warning, and not before: what ends has waited on."""
    path = tmp_path / "ledger"
    Ledger.open(path).pay("a", EVENT, 3)
    monkeypatch.setattr(ledger_module, "_SILENCE", 0.1)
    with holder(path, *HELD[held]) as child:
        said = warned(lambda: Ledger.open(path).pay("a", EVENT, 2), lambda: go(child))
    ((message, category, filename),) = said
    assert (category, filename) == (RuntimeWarning, __file__)
    assert repr(str(path)) in message and "look for another process that has the ledger open" in message
    assert Ledger.open(path).rounds() == {"a": 5}


def test_a_ledger_that_is_held_for_ever_is_given_up_after_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger.open(path)
    ledger.pay("a", EVENT, 3)
    before = ledger.records()
    assert (ledger_module._SILENCE, ledger_module._PATIENCE) == (5.0, 600.0)
    monkeypatch.setattr(ledger_module, "_SILENCE", 0.1)
    monkeypatch.setattr(ledger_module, "_PATIENCE", 0.3)

    def refused() -> None:
        with pytest.raises(CannotWrite, match="database is locked.*nothing was released for it"):
            ledger.pay("a", EVENT)

    with holder(path, "BEGIN IMMEDIATE") as child:
        assert len(warned(refused, lambda: None)) == 1
        with pytest.raises(RuntimeWarning, match="has held the ledger"):  # where warnings are errors, as in these tests
            ledger.pay("a", EVENT)
        child.kill()
    assert ledger.records() == Ledger.open(path).records() == before
