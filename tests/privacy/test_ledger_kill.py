"""Killed at any moment, torn at any byte, shared by several processes: the ledger never says less than the truth."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ledger_child import TURNS

from isthmus.privacy.chain import LedgerCorrupt, _SealedRecords
from isthmus.privacy.ledger import Ledger

CHILD = Path(__file__).with_name("ledger_child.py")
EVENT = {"event": "Gaussian", "noise_multiplier": 40.0}
OTHER = {"event": "Laplace", "noise_multiplier": 9.0}


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


@pytest.mark.parametrize(("mode", "reserve", "kills"), [("plain", 1, 10), ("plain", 7, 10), ("torn", 3, 16)])
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
            else:
                until(out, before + moments.randint(0, 4), child)
            child.kill()
        ledger = Ledger.open(path)  # resume: each child continues what the killed ones left
        charged, released = ledger.rounds().get("main", 0), out.stat().st_size if out.exists() else 0
        assert released <= charged <= released + kill * reserve
        records = ledger.records()
        assert [record["number"] for record in records] == list(range(1, len(records) + 1))
    assert out.stat().st_size > 0
    if mode == "torn":
        assert sum(record["kind"] == "torn" for record in records) >= 5


def build(path: Path, *, last: str = "charge") -> tuple[bytes, int, int]:
    """A ledger whose last record is of the given kind: its bytes, where that record starts, rounds of "main" before."""
    ledger = Ledger.open(path, dataset="d")
    dead = ledger.run({"main": EVENT}, reserve=3)
    dead.charge("main")
    if last == "begin":
        ledger.run({"main": EVENT, "rare": OTHER}, reserve=5)
    else:
        run = ledger.run({"main": EVENT, "rare": OTHER}, reserve=5)
        run.charge("rare")
        before = path.read_bytes()
        if last == "charge":
            run.charge("main")
        else:
            run.close()
        assert path.read_bytes().startswith(before)
    data = path.read_bytes()
    return data, data.rstrip(b"\n").rfind(b"\n") + 1, 3


def reopened(path: Path, data: bytes) -> Ledger:
    """The ledger in these bytes, without a mark of what was written before."""
    Path(f"{path}.lock").unlink(missing_ok=True)
    path.write_bytes(data)
    return Ledger.open(path)


def test_a_charge_torn_at_any_byte_is_charged(tmp_path: Path) -> None:
    data, begins, before = build(tmp_path / "whole")
    copy = tmp_path / "copy"
    seen = set()
    for cut in range(begins, len(data) + 1):
        ledger = reopened(copy, data[:cut])
        rounds = ledger.rounds()
        assert rounds["main"] == before + (5 if cut > begins else 0)
        assert rounds["rare"] in (5, 10)  # 10 where the cut record may have been a charge of the other stage
        seen.add(rounds["rare"])
        with ledger.run({"main": EVENT}) as run:
            run.charge("main")
        assert Ledger.open(copy).rounds() == rounds | {"main": rounds["main"] + 1}
        assert copy.read_bytes().startswith(data[:cut])  # nothing is ever erased
    assert seen == {5, 10}


def test_a_cut_record_that_was_durable_is_refused(tmp_path: Path) -> None:
    data, begins, _ = build(tmp_path / "whole")
    line = data[:begins].count(b"\n") + 1
    mark = (tmp_path / "whole.lock").read_bytes()
    copy = tmp_path / "copy"
    for cut in range(begins, len(data) - 1):
        copy.write_bytes(data[:cut])
        (tmp_path / "copy.lock").write_bytes(mark)
        with pytest.raises(LedgerCorrupt, match=f"line {line} is cut or missing: {line} records were written"):
            Ledger.open(copy)


@pytest.mark.parametrize("last", ["begin", "close"])
def test_other_records_torn_at_any_byte_never_lower_a_charge(tmp_path: Path, last: str) -> None:
    data, begins, _ = build(tmp_path / "whole", last=last)
    copy = tmp_path / "copy"
    shutil.copy(tmp_path / "whole", copy)
    least = Ledger.open(copy).rounds()
    for cut in range(begins, len(data)):
        rounds = reopened(copy, data[:cut]).rounds()
        assert all(rounds[name] >= count for name, count in least.items())
        if cut - begins > len('{"kind":"c'):
            assert rounds == least


def test_a_torn_refund_gives_nothing_back(tmp_path: Path) -> None:
    data, _, _ = build(tmp_path / "whole", last="close")
    begins = data.index(b'{"kind":"refund"')
    ends = data.index(b"\n", begins)
    copy = tmp_path / "copy"
    for cut in range(begins, ends + 1):
        assert reopened(copy, data[:cut]).rounds()["rare"] >= 5


def test_a_recovery_killed_at_any_byte_is_recovered(tmp_path: Path) -> None:
    data, begins, before = build(tmp_path / "whole")
    copy = tmp_path / "copy"
    torn = data[: begins + 90]
    expected = reopened(copy, torn).rounds()
    assert expected["main"] == before + 5
    mended = copy.read_bytes()
    assert mended.startswith(torn + b"\t")
    for cut in range(len(torn), len(mended)):
        assert reopened(copy, mended[:cut]).rounds() == expected
        assert Ledger.open(copy).rounds() == expected


def test_the_first_record_torn_at_any_byte_begins_again(tmp_path: Path) -> None:
    Ledger.open(tmp_path / "whole", budget=(1.0, 1e-5), dataset="d")
    data = (tmp_path / "whole").read_bytes()
    copy = tmp_path / "copy"
    for cut in range(len(data)):
        (tmp_path / "copy.lock").unlink(missing_ok=True)
        copy.write_bytes(data[:cut])
        ledger = Ledger.open(copy, budget=(1.0, 1e-5), dataset="d")
        assert ledger.rounds() == {} and Ledger.open(copy).budget == (1.0, 1e-5)


@pytest.mark.parametrize("failing", ["write", "fsync"])
def test_a_failed_write_grants_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    def half(self: _SealedRecords, data: bytes) -> None:
        os.write(self._file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    def failed(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    ledger = Ledger.open(tmp_path / "ledger")
    run = ledger.run({"main": EVENT}, reserve=4)
    with monkeypatch.context() as patch:
        patch.setattr(*((_SealedRecords, "_write", half) if failing == "write" else (os, "fsync", failed)))
        with pytest.raises(OSError, match="space|output"):
            run.charge("main")
    assert run._left == {"main": 0}
    run.charge("main")
    assert ledger.rounds() == {"main": 8}  # the failed charge counts, and nobody may give it back
    run.close()
    assert ledger.rounds() == Ledger.open(tmp_path / "ledger").rounds() == {"main": 5}


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


@pytest.mark.parametrize(
    "junk", [b"\x00" * 40, b"nonsense", b"\xff\xfe\t{", b'{"kind":"charge","run":"nobody","what":"main",']
)
def test_an_unreadable_tail_charges_all_it_may_have_been(tmp_path: Path, junk: bytes) -> None:
    path = tmp_path / "ledger"
    ledger = Ledger.open(path)
    for reserve in (3, 8, 5):
        ledger.run({"main": EVENT, "rare": OTHER}, reserve={"main": reserve, "rare": 2})
    with ledger.run({"main": EVENT}, reserve=99):
        pass
    with path.open("ab") as file:
        file.write(junk)
    assert ledger.rounds() == Ledger.open(path).rounds() == {"main": 8, "rare": 2}  # one record, by a run not closed
