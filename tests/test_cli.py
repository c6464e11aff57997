"""The command line: help at once and without torch, exit codes, JSON, and every command that trains nothing.

Training and prediction are tested in tests/runs.
"""

import gc
import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import invoke

from isthmus.audit import known_bad, suite
from isthmus.base.validate import InvalidInput
from isthmus.cli import code_of, main

COMMANDS = "schema train predict describe plan budget audit report demo completion".split()


def test_help_answers_at_once_and_imports_nothing_heavy() -> None:
    heavy = "{'torch', 'numpy', 'scipy', 'sklearn', 'pandas', 'pyarrow', 'matplotlib', 'dp_accounting', 'jinja2'}"
    run = "from isthmus.cli import main; main(['--help'], standalone_mode=False)"
    code = f"import sys; {run}; assert not {heavy} & set(sys.modules); assert len(sys.modules) < 300"
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert all(name in process.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(name: str) -> None:
    output = invoke(name, "--help").output
    assert f"isthmus {name}" in output.replace("main", "isthmus") and "Options:" in output


def test_the_commands_are_all_there_and_in_order() -> None:
    assert list(main.commands) == COMMANDS
    assert "python -m" not in invoke("--help").output and "Exit codes: 0 done" in invoke("--help").output


def test_python_minus_m() -> None:
    command = [sys.executable, "-m", "isthmus.cli", "--version"]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    declared = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    assert process.stdout == f"isthmus, version {declared['project']['version']}\n"


WRONG = [
    (["--bounds", "age=1"], "--bounds 'age=1' is not allowed: write a range as low,high, such as age=0,100"),
    (["--bounds", "1"], "--bounds '1' is not allowed: write a range as low,high, such as 0,100"),
    (["--rows", "0"], "'--rows': 0 is not in the range"),
    (["--encoding", "latin-99"], "encoding='latin-99' is not allowed: give an encoding that Python knows"),
    (["--encoding", "hex"], "encoding='hex' is not allowed"),
    (["--encoding", ""], "encoding='' is not allowed: give an encoding"),
    (["--features", "3"], "features=3 is not allowed: leave it out: it is for libsvm files"),
    (["--public", "./people.csv"], "this is the file to train on, whose rows are private"),
    (["--test", "./people.csv"], "keep a share of the rows out of training with test_fraction"),
    (["--bounds", "0,1", "--bounds", "0,2"], "for all columns once"),
    (["--hash", "a=few"], "columns.a.buckets='few'"),
    (["--schema", "nowhere.toml"], "File not found"),
]


@pytest.mark.parametrize(("arguments", "words"), WRONG)
def test_wrong_options_of_train_are_refused(arguments: list[str], words: str) -> None:
    assert words in invoke("train", "people.csv", "--target", "y", *arguments, code=2).output


def test_errors_are_one_line_and_json_where_asked() -> None:
    plain = invoke("train", "nowhere.csv", "--target", "y", code=2)
    assert plain.stderr.startswith("error: File not found: nowhere.csv (check the name and the folder, ")
    assert plain.stderr.count("\n") == 1 and plain.stdout == ""
    data = json.loads(invoke("train", "nowhere.csv", "--target", "y", "--json", code=2).stdout)
    assert data["exit_code"] == 2 and "File not found" in data["error"]
    rows = ("plan", "-n", "100", "-d", "3", "--epsilon", "1", "--public", "nowhere.npz")
    for command in (("report", "runs/nowhere"), rows):
        assert invoke(*command, code=2).stderr.startswith(f"error: File not found: {command[-1]} (")
        assert "File not found" in json.loads(invoke(*command, "--json", code=2).stdout)["error"]


def test_a_file_of_a_similar_name_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("patients.csv").write_text("a,Readmitted\n1,yes\n")
    assert "(did you mean patients.csv?)" in invoke("schema", "patient.csv", code=2).output
    assert "(check the name and the folder" in invoke("schema", "nofile.csv", code=2).output  # only ".csv" is alike
    assert "there is no folder nowhere" in invoke("schema", "nowhere/patients.csv", code=2).output
    near = "Column not found: 'readmitted', given as target (did you mean 'Readmitted'?)"
    for command in ("schema", "train"):
        assert near in invoke(command, "patients.csv", "--target", "readmitted", code=2).output
    whole = invoke("train", "patients.csv", "--target", "Readmitted", "--separator", ";", code=2).output
    assert "the columns are 'a,Readmitted' (if it has more, give its --separator or --encoding)" in whole
    assert "Cannot read .: give a folder of Parquet files" in invoke("train", ".", code=2).output
    assert "schema=None is not allowed: declare" in invoke("describe", "patients.csv", "-e", "1", code=2).output


def test_a_first_line_that_looks_like_a_row_is_not_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bare.csv").write_text("35,29738.65,no\n41,30001.5,yes\n")
    for command in ("schema", "train"):
        said = invoke(command, "bare.csv", "--target", "result", code=2).output
        assert "the first line looks like a row: put a line with the names" in said and "29738" not in said


@pytest.mark.parametrize("name", ["rows.csv", "rows.npz", "both.npz"])
def test_private_rows_are_no_public_test_rows(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact figures of the rows that were trained on would be published as if these were public."""
    from isthmus.runs.config import load

    monkeypatch.chdir(tmp_path)
    x, y = np.zeros((4, 2)), np.arange(4)
    Path("rows.csv").write_text("a,y\n1,0\n")
    np.savez("rows.npz", X=x, y=y)
    np.savez("both.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    given = {"data": name, "target": "y", "test": str(tmp_path / name)}
    for allowed in ({"test_epsilon": 0.1}, {"epsilon": float("inf")}):
        assert load(None, given | allowed)[0].test
    if name == "both.npz":
        assert load(None, given)[0].test
    else:
        with pytest.raises(InvalidInput, match="test=.* is not allowed: keep a share .* this is the file to train on"):
            load(None, given)
    with pytest.raises(InvalidInput, match="public=.* give a file of other rows.* this is the file to train on"):
        load(None, {"data": name, "target": "y", "public": name})


def test_each_kind_of_error_has_its_code() -> None:
    from isthmus.privacy import BudgetExceeded, LedgerCorrupt
    from isthmus.runs.folder import FolderDamaged
    from isthmus.runs.train import Interrupted

    over = BudgetExceeded("a", 1, 0.0, 1.0, (0.5, 1e-5))
    kinds = [InvalidInput("x"), over, Interrupted("x"), LedgerCorrupt("x"), FolderDamaged("x"), KeyError("x")]
    assert [code_of(kind) for kind in kinds] == [2, 3, 4, 5, 5, None]


# ---------------------------------------------------------------- plan, budget, report


def test_a_plan_from_public_facts() -> None:
    arguments = ["plan", "--rows", "30000", "--columns", "50", "--epsilon", "1", "--delta", "1e-5"]
    data = json.loads(invoke(*arguments, "--json").stdout)
    assert data["facts"]["n"] == 30000 and data["choices"][0]["algorithm"] == "dp_gd"
    output = invoke(*arguments).output
    assert "dp_gd" in output and "noise" in output
    assert len(invoke(*arguments, "--quiet").output) < len(output)
    assert "epsilon=-1.0" in invoke("plan", "-n", "10", "-d", "5", "--epsilon", "-1", code=2).output
    assert "give l1:RADIUS" in invoke(*arguments, "--constraint", "cube", code=2).output
    assert gc.isenabled() and gc.get_freeze_count()
    gc.unfreeze()


def test_a_plan_learns_from_public_rows_of_numbers(tmp_path: Path) -> None:
    common = ["plan", "-n", "3000", "-d", "4", "--epsilon", "inf", "--json", "--public"]
    np.savez(tmp_path / "p.npz", X=np.random.default_rng(0).uniform(-1, 1, (40, 4)))
    data = json.loads(invoke(*common, str(tmp_path / "p.npz")).stdout)
    assert data["facts"]["public"]["rows"] == 40
    (tmp_path / "p.csv").write_text("a,b,c,d\n1,2,3,4\n")
    assert "give a file of numbers, npz or libsvm" in invoke(*common, str(tmp_path / "p.csv"), code=2).output


def test_a_budget_is_created_shown_and_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "census.budget")
    assert "make it first" in invoke("budget", path, code=2).output and not Path(path).exists()
    assert "give both --epsilon and --delta" in invoke("budget", path, "--epsilon", "1", code=2).output
    made = invoke("budget", path, "--epsilon", "2", "--delta", "1e-6", "--dataset", "census", "--json")
    data = json.loads(made.stdout)
    assert (data["epsilon"], data["delta"], data["spent"], data["left"]) == (2.0, 1e-6, 0.0, 2.0)
    assert data["dataset"] == "census" and data["runs"] == [] and data["adjacency"] == "add-remove"
    assert "no run has used this budget yet" in invoke("budget", path).output
    other = invoke("budget", path, "--epsilon", "9", "--delta", "1e-6", code=2)
    assert "give (2.0, 1e-06), with which this ledger was opened" in other.output
    Path(path).write_bytes(Path(path).read_bytes().replace(b"[2.0", b"[9.0"))
    assert "was altered" in invoke("budget", path, code=5).output


def test_a_report_needs_a_run(tmp_path: Path) -> None:
    assert "File not found" in invoke("report", str(tmp_path), code=2).output
    record = {"format": "isthmus-run-1", "title": "Income", "data": {"name": "census"}, "privacy": None, "words": ""}
    record["model"] = {"task": "classification", "algorithm": "gd"}
    (tmp_path / "run.json").write_text(json.dumps(record))
    data = json.loads(invoke("report", str(tmp_path), "--json").stdout)
    assert data["report"] == str(tmp_path / "report.html") and "Income" in Path(data["report"]).read_text()
    invoke("report", str(tmp_path / "run.json"), "-o", str(tmp_path / "other.html"))
    assert (tmp_path / "other.html").stat().st_size == data["bytes"]


# ---------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell: str) -> None:
    output = invoke("completion", shell).output
    assert f"_ISTHMUS_COMPLETE={shell}_complete" in output and "isthmus" in output


def test_completion_completes() -> None:
    from click.shell_completion import ShellComplete

    def offered(arguments: list[str], word: str) -> list[str]:
        found = ShellComplete(main, {}, "isthmus", "_ISTHMUS_COMPLETE").get_completions(arguments, word)
        return [item.value for item in found]

    assert offered([], "re") == ["report"]
    assert offered(["train"], "--test-") == ["--test-fraction", "--test-epsilon"]
    assert offered(["train", "--task"], "c") == ["classification"]


# ---------------------------------------------------------------- audit


def test_the_audit_prints_json_and_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short audit of two cases: a sound one passes, a broken one is caught; a broken promise fails the audit."""
    sound = suite._recipe_pipelines()["dp_gd"]
    eighth = known_bad.halved(known_bad.halved(known_bad.halved(sound.pipe)))
    broken = replace(sound, pipe=eighth, sound=False)
    monkeypatch.setattr(suite, "_recipe_pipelines", lambda: {"full batch": sound})
    monkeypatch.setattr(suite, "_broken_pipelines", lambda: {"an eighth of the noise": broken})
    monkeypatch.setattr(suite, "_canary_runs", dict)
    result = invoke("audit", "--draws", "20000", "--json")
    data = json.loads(result.stdout)
    assert data["recipes"]["full batch"]["verdict"] == "consistent"
    assert data["broken on purpose"]["an eighth of the noise"]["verdict"] == "violation"
    monkeypatch.setattr(suite, "_recipe_pipelines", lambda: {"bad": replace(broken, sound=True)})
    invoke("audit", "--draws", "20000", "--json", code=1)
