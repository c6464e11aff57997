"""A few faults in every test run; `make chaos` has all of them, at more moments."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest
import torch

from chaos import scenarios
from chaos.child import Ended
from chaos.interrupts import interrupted
from chaos.judge import charged, corrupt, unclear
from isthmus.base.atomic import CannotWrite, atomic_write
from isthmus.core.wire import State
from isthmus.privacy import Ledger

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks of a process with threads


def sound(result: scenarios.Result | None) -> None:
    assert result is not None and result.runs > 0
    assert not result.failed, (result.lost, result.corrupt, result.unclear)


def test_killed_at_any_moment() -> None:
    sound(scenarios.stopped("kill", signal.SIGKILL, ["estimator"], 1, random.Random(1)))


def test_a_disk_that_is_full() -> None:
    sound(scenarios.faulty("full", scenarios.small_files, ["minimize"], 1, random.Random(2)))


def test_files_that_were_cut() -> None:
    sound(scenarios.truncated(["minimize"], 2, random.Random(3)))


# between the opening of a file and its name in a block an interrupt leaves it to Python's collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_inside_a_ledger() -> None:
    sound(interrupted(30, random.Random(4)))


# ---------------------------------------------------------------- files that are whole or not there


def test_a_file_that_cannot_be_written_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    with pytest.raises(CannotWrite, match=f"{path} cannot be written .No space"), atomic_write(path) as partial:
        partial.write_text("half")
        raise OSError(28, "No space left on device")
    assert path.read_text() == "old" and [file.name for file in tmp_path.iterdir()] == ["a"]


# ---------------------------------------------------------------- the judge can find fault


def test_what_was_not_charged_is_lost(tmp_path: Path) -> None:
    ledger, result = Ledger.open(tmp_path / "ledger"), scenarios.Result("test")
    with ledger.run({"main": {"event": "Gaussian", "noise_multiplier": 4.0}}) as run:
        run.charge("main", 0)
    assert charged(tmp_path) == 1
    scenarios.look(result, "one", tmp_path, 1, Ended(0, 1))
    assert not result.failed
    scenarios.look(result, "two", tmp_path, 2, Ended(0, 2))
    assert result.lost and not result.corrupt


def test_a_cut_file_is_corrupt_and_one_left_behind_is_told(tmp_path: Path) -> None:
    State(w=torch.ones(3)).save(tmp_path / "state")
    assert corrupt(tmp_path, False) == []
    (tmp_path / "state").write_bytes((tmp_path / "state").read_bytes()[:-1])
    (tmp_path / "other.part").write_text("half")
    assert len(corrupt(tmp_path, False)) == 2 and len(corrupt(tmp_path, True)) == 1


@pytest.mark.parametrize(
    ("ended", "fine"),
    [
        (Ended(1, 0, "InvalidInput", "radius=0 is not allowed"), True),
        (Ended(1, 0, "InvalidInput", ""), False),
        (Ended(1, 0, "KeyError", "'w'"), False),
        (Ended(1, 0, "OSError", "[Errno 28] No space left on device"), False),
        (Ended(1, 0, "exit 4", "error: stopped. Go on with: isthmus train --resume run"), True),
        (Ended(1, 0, "exit 1", "Traceback (most recent call last)"), False),
        (Ended(-9, 3), True),
        (Ended(-11, 3), False),
        (Ended(-9, 3, "hang", "no end"), False),
    ],
)
def test_words_are_judged(ended: Ended, fine: bool) -> None:
    assert (unclear(ended) == "") is fine
