"""A run's folder appears whole, and a damaged one is refused."""

from pathlib import Path

import pytest
from dp_accounting import dp_event

from isthmus.base.validate import InvalidInput
from isthmus.privacy import BudgetExceeded, Ledger
from isthmus.runs import train
from isthmus.runs.budget import open_shared, spenders
from isthmus.runs.folder import CHECKPOINT, METRICS, SCHEMA, SECRET, SETTINGS, FolderDamaged, RunFolder, _next_folder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"epsilon": 1.0}, schema="[columns]\n")


def test_what_was_written_is_found(run: RunFolder) -> None:
    again = RunFolder.open(run.path)
    assert again.settings == {"epsilon": 1.0}
    again.write_sealed(METRICS, {"metrics": [1, 2]})
    assert again.read_sealed(METRICS)["metrics"] == [1, 2]


def test_nothing_but_whole_files_is_left(run: RunFolder) -> None:
    run.write("a", b"1")
    run.write("a", b"2")
    assert run.read("a") == b"2"
    assert sorted(path.name for path in run.path.iterdir()) == ["a", SCHEMA, SETTINGS]
    assert sorted(path.name for path in run.path.parent.iterdir()) == ["run"]


def test_half_files_of_a_killed_process_go_with_what_an_unfinished_run_needs(run: RunFolder) -> None:
    for name in (SECRET, f"{SECRET}.0123456789abcdef.part", f"{CHECKPOINT}.0123456789abcdef.part", "other.part"):
        (run.path / name).write_bytes(b"half")
    train._tidy(run)
    assert sorted(path.name for path in run.path.iterdir()) == ["other.part", SCHEMA, SETTINGS]


def test_an_existing_folder_is_not_taken(run: RunFolder) -> None:
    with pytest.raises(InvalidInput, match="give another folder as --out, or continue that run with --resume"):
        RunFolder.create(run.path, {}, schema="")


@pytest.mark.parametrize("kept", [0, 1, 40, -2, None])
def test_cut_and_altered_settings_are_refused(run: RunFolder, kept: int | None) -> None:
    path = run.path / SETTINGS
    path.write_bytes(path.read_bytes()[:kept].replace(b"1.0", b"0.1"))
    with pytest.raises(FolderDamaged, match=r"settings\.json was cut or altered"):
        RunFolder.open(run.path)


def test_a_changed_schema_is_refused(run: RunFolder) -> None:
    (run.path / SCHEMA).write_text("[columns]\na = [0, 1]\n")
    with pytest.raises(FolderDamaged, match="was changed after the run began: put it back, or begin a new run"):
        RunFolder.open(run.path)
    (run.path / SCHEMA).unlink()
    with pytest.raises(FolderDamaged, match=r"schema\.toml cannot be read"):
        RunFolder.open(run.path)


def test_folders_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Folder not found"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(FolderDamaged, match="is not the folder of a run"):
        RunFolder.open(tmp_path)


def test_one_process_at_a_time(run: RunFolder) -> None:
    with run.locked():
        with pytest.raises(InvalidInput, match="Another process is working on the run"):
            with RunFolder.open(run.path).locked():
                pass
    with RunFolder.open(run.path).locked():
        pass


def test_the_next_free_name(tmp_path: Path) -> None:
    assert _next_folder("people", tmp_path).name == "people-1"
    (tmp_path / "people-1").mkdir()
    assert _next_folder("people", tmp_path).name == "people-2"
    assert _next_folder("../a b", tmp_path).name == "a-b-1"


# ---------------------------------------------------------------- a budget that several runs share


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
