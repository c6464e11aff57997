"""`isthmus train` and `predict` from end to end: a newcomer's csv, shared budgets, damaged folders, no leak unsaid."""

import json
import math
import re
from pathlib import Path
from typing import Any

import messy
import numpy as np
import pytest
from command_line import QUICK, invoke, trained

from isthmus import estimators
from isthmus.privacy import Ledger

MATRIX = ["--classes", "0,1", "--bounds=-1,1"]
KNOWN = "--drop joined --drop comment --drop customer_id --classes Nein,Ja --categories sex=female,male".split()
RANGES = "--bounds Alter=18,90 --bounds income=0,100000 --bounds balance=-6000,6000 --bounds visits=0,15".split()
DECLARED = [*KNOWN, *RANGES, "--hash", "city=8", "--categories", "member=no,yes"]


@pytest.fixture
def people(tmp_path: Path) -> str:
    return str(messy.write(tmp_path / "people.csv", 3000))


@pytest.fixture
def matrix(tmp_path: Path) -> str:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, (800, 4))
    np.savez(tmp_path / "m.npz", X=x, y=(x[:, 0] > 0).astype(int))
    return str(tmp_path / "m.npz")


def test_a_newcomers_table(people: str) -> None:
    """Mixed types, gaps, text labels: it works, says what it guessed, and states what it cost."""
    result = invoke("train", people, "--target", "churned", "--drop", "joined", "--test-fraction", "0.25", "--json")
    data = json.loads(result.stdout)
    names = ["accuracy", "recall of Nein", "precision of Nein", "AUC", "log loss", "calibration error"]
    assert data["run"] == "runs/people-1" and [figure["name"] for figure in data["metrics"]] == names
    right = data["metrics"][0]
    assert right["value"] > 0.7 and 0.5 < right["baseline"] < 0.65  # the larger class is about .57
    assert "held-out rows, with noise, inside the epsilon of the training" in right["on"]
    assert result.stderr.count("warning: ") == 3 == len(data["warnings"])
    assert 0.98 < data["epsilon"] <= 1
    run = Path(data["run"])
    record = json.loads((run / "run.json").read_text())
    assert record["privacy"]["epsilon"] == data["epsilon"] and record["warnings"] == data["warnings"]
    assert any("the classes ['Ja', 'Nein'] were read from" in leak for leak in record["privacy"]["leaks"])
    assert data["leaks"] == record["privacy"]["leaks"] and len(data["leaks"]) == 3
    assert Ledger.open(run / "ledger").spent(data["delta"]) == data["epsilon"]
    kept = "ledger ledger.lock metrics.json model.safetensors plan.json run.json schema.toml settings.json"
    assert sorted(path.name for path in run.iterdir() if path.name[0] != ".") == kept.split()
    own = estimators.load(run / "model.safetensors").privacy_  # the model is what gets passed on: it says the same
    assert own.epsilon == data["epsilon"] and list(own.assumptions) == record["privacy"]["assumptions"]
    assert list(own.leaks) == record["privacy"]["leaks"]
    assert "salt" not in (run / "settings.json").read_text()
    text = "".join(path.read_text() for path in run.iterdir() if path.suffix in (".json", ".toml"))
    assert "Zürich" not in text and "female" not in text  # no word of a private column is kept
    invoke("predict", str(run), people, "-o", "out.csv", "--proba")
    lines = Path("out.csv").read_text().splitlines()
    assert lines[0] == "prediction,p(Ja),p(Nein)" and len(lines) == 3001
    labels = [row["churned"] for row in messy.rows(3000)]
    right = [line.split(",")[0] == label for line, label in zip(lines[1:], labels, strict=True) if label]
    assert np.mean(right) > 0.7


def test_nothing_is_said_where_all_is_declared(people: str) -> None:
    result = invoke("train", people, "--target", "churned", *DECLARED, *QUICK, "--quiet")
    assert result.stderr == "" and result.stdout == "runs/people-1\n"
    again = invoke("train", people, "--schema", "runs/people-1/schema.toml", *QUICK, "--quiet", "--out", "mine")
    assert again.stderr == "" and again.stdout == "mine\n"


def test_regression(people: str) -> None:
    common = [people, *"--target visits --task regression --drop joined -e 4 --algorithm dp_gd --max-iter 60".split()]
    outcome = trained(*common, "--target-bounds", "0,15", "--test-fraction", "0.4", "--test-epsilon", "2")
    figures = {metric["name"]: metric for metric in outcome["metrics"]}
    assert figures["R2"]["value"] > 0.1 and 0 < figures["R2"]["noise"] < 0.1  # about .37 with noise of .05
    assert outcome["epsilon"] == pytest.approx(4, rel=1e-3) and outcome["epsilon"] <= 4
    bought = trained(*common, "--test-fraction", "0.4")  # the range of the target too
    assert [metric["name"] for metric in bought["metrics"]] == ["R2", "root mean squared error", "mean absolute error"]
    Path("rows.csv").write_text("\n".join(Path(people).read_text("utf-8-sig").splitlines()[:6]), "utf-8")
    for run in (outcome["run"], bought["run"]):
        invoke("predict", run, "rows.csv", "-o", "out.npz")
        with np.load("out.npz") as stored:
            assert stored["prediction"].shape == (5,) and np.isfinite(stored["prediction"]).all()
    assert "no probabilities" in invoke("predict", run, "rows.csv", "-o", "p.csv", "--proba", code=2).output


def test_public_rows_and_public_test_rows(people: str, tmp_path: Path) -> None:
    public = str(messy.write(tmp_path / "public.csv", 200, seed=5))
    test = str(messy.write(tmp_path / "test.csv", 500, seed=6))
    outcome = trained(people, "--target", "churned", "--public", public, "--test", test, *QUICK)
    assert outcome["warnings"] == [] and outcome["epsilon"] == pytest.approx(1.0, rel=1e-3)
    right = outcome["metrics"][0]
    assert "rows of test.csv, which counts as public" in right["on"] and not right["noise"]


def test_figures_of_held_out_rows_can_be_published_bare_with_words(matrix: str) -> None:
    result = invoke("train", matrix, *MATRIX, "--test-fraction", "0.3", "--release-test-metrics", *QUICK)
    assert "everything counted" not in result.stdout and "NOT COVERED  The figures of the held-out" in result.stdout
    outcome = trained("--resume", "runs/m-1")
    assert any("epsilon does not cover them" in warning for warning in outcome["warnings"])
    assert "published without noise" in outcome["metrics"][0]["on"]
    own = estimators.load("runs/m-1/model.safetensors").privacy_
    assert any("The figures of the held-out rows" in leak for leak in own.leaks)


def test_the_salt_of_the_split_is_secret_and_gone_with_the_record(matrix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run stopped before its record keeps it, to measure the same rows; a finished one has forgotten it."""
    run, secret = Path("runs/m-1"), Path("runs/m-1/split.secret")
    with monkeypatch.context() as patch:
        patch.setattr("isthmus.runs.train._write_record", _interrupted)
        invoke("train", matrix, *MATRIX, "--test-fraction", "0.3", *QUICK, code=4)
    assert len(secret.read_text()) == 32 and secret.stat().st_mode & 0o077 == 0
    assert secret.read_text() not in "".join(path.read_text() for path in run.glob("*.json"))
    on = json.loads((run / "metrics.json").read_text())["metrics"][0]["on"]
    (run / "metrics.json").unlink()  # as if killed before: the same rows are held out again
    data = json.loads(invoke("train", "--resume", str(run), "--json").stdout)
    again = data["metrics"][0]["on"]
    assert again.split(",")[0] == on.split(",")[0] and not secret.exists()
    # the figures that were lost are covered by the training; a second time they would have to be bought, inside epsilon
    assert "inside the epsilon of the training" in on and data["metrics"][0]["value"] is None
    assert "too few rows" in data["metrics"][0]["note"] and 0.99 < data["epsilon"] <= 1
    secret.write_text("as if killed after the record was written")
    invoke("train", "--resume", str(run))
    assert not secret.exists()


def _interrupted(*arguments: Any) -> None:
    raise KeyboardInterrupt


def test_a_hidden_number_of_rows_is_not_published(matrix: str) -> None:
    result = invoke("train", matrix, *MATRIX, "--rows", "1000", *QUICK)
    text = "".join(path.read_text() for path in Path("runs/m-1").iterdir() if path.suffix in (".json", ".toml"))
    numbers = set(re.findall(r"\d+", text + result.output))
    assert "1000" in numbers and "800" not in numbers
    assert json.loads(Path("runs/m-1/run.json").read_text())["data"]["n"] is None


def test_without_privacy_it_says_so(matrix: str) -> None:
    result = invoke("train", matrix, "--epsilon", "inf", "--classes", "0,1", "--max-iter", "30")
    assert "this model is NOT private" in result.output
    assert json.loads(Path("runs/m-1/run.json").read_text())["privacy"] is None


def test_a_shared_budget_refuses_the_run_that_would_exceed_it(matrix: str) -> None:
    common = [matrix, *MATRIX, "--budget", "b", "--delta", "1e-5", *QUICK]
    assert "make it first: isthmus budget b" in invoke("train", *common, code=2).output
    invoke("budget", "b", "--epsilon", "1.2", "--delta", "1e-5")
    invoke("train", *common)
    before = Path("b").read_bytes()
    refused = invoke("train", *common, "--json", code=3)
    data = json.loads(refused.stdout)
    assert data["exit_code"] == 3 and "'m-2' needs epsilon" in data["error"] and "the budget holds" in data["error"]
    assert Path("b").read_bytes() == before and not Path("runs/m-2").exists()
    shown = json.loads(invoke("budget", "b", "--json").stdout)
    assert shown["spent"] == pytest.approx(1.0, rel=1e-3) and shown["left"] == pytest.approx(0.2, abs=1e-3)
    assert [run["label"] for run in shown["runs"]] == ["m-1"] and shown["runs"][0]["rounds"] == {"main": 5}
    invoke("train", *common, "--epsilon", "0.1")
    assert "m-2" in invoke("budget", "b").output
    shared = json.loads(Path("runs/m-2/run.json").read_text())["budget"]["shared"]
    assert shared["file"] == "b" and shared["epsilon"] == 1.2 and shared["spent"] > 1


def test_a_budget_must_also_hold_the_test_figures(matrix: str) -> None:
    # rows enough for figures, however the split falls: too few are not looked at
    common = [matrix, *MATRIX, "--budget", "b", "--delta", "1e-5", *QUICK]
    invoke("budget", "b", "--epsilon", "1.0", "--delta", "1e-5")
    invoke("train", *common, "--epsilon", "1.1", "--test-fraction", "0.6", "--test-epsilon", "0.5", code=3)
    assert Ledger.open("b").rounds() == {}
    invoke("train", *common, "--test-fraction", "0.6", "--test-epsilon", "0.5")  # inside the epsilon of the run
    assert set(Ledger.open("b").rounds()) == {"m-1/main", "m-1/test ranges", "m-1/test figures"}
    assert 0.999 < Ledger.open("b").spent() <= 1


def test_a_dry_run_spends_and_writes_nothing(people: str, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    result = invoke("train", people, "--target", "churned", "--drop", "joined", "--algorithm", "dp_gd", "--dry-run")
    assert "nothing was spent, nothing was written" in result.output and "range bought privately" in result.output
    assert sorted(tmp_path.iterdir()) == before


def test_a_toml_file_and_libsvm(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with Path("d.libsvm").open("w") as file:
        for _ in range(500):
            words = sorted(rng.choice(30, 5, replace=False) + 1)
            file.write(f"{1 if words[0] < 5 else -1} " + " ".join(f"{word}:1" for word in words) + "\n")
    Path("run.toml").write_text(
        'data = "d.libsvm"\nfeatures = 40\nepsilon = 3.0\nclasses = [-1, 1]\ntitle = "Words"\nalgorithm = "dp_gd"\n'
        'scale = "none"\nstep = 4.0\nmax_iter = 10\n'
    )
    outcome = trained("--config", "run.toml", "--epsilon", "2")
    record = json.loads(Path(outcome["run"], "run.json").read_text())
    assert outcome["warnings"] == [] and record["title"] == "Words" and record["data"]["d"] == 40
    assert outcome["epsilon"] == pytest.approx(2.0, rel=1e-3)
    invoke("predict", outcome["run"], "d.libsvm", "-o", "out.csv")
    assert set(Path("out.csv").read_text().split()[1:]) <= {"-1", "1"}
    invoke("predict", outcome["run"], "run.toml", "-o", "out.csv", code=2)


DAMAGED = [
    ("ledger", lambda old: old.replace(b"main", b"nain", 1), "altered"),
    ("ledger", lambda old: None, "is missing, and with it what this run has spent: restore it"),
    ("settings.json", lambda old: b"{}", "settings.json was cut or altered"),
    ("checkpoint", lambda old: b"\x00" * 20, "checkpoint was cut or altered"),
    ("schema.toml", lambda old: b"", "was changed after the run began"),
]


@pytest.mark.parametrize(("name", "content", "words"), DAMAGED)
def test_a_damaged_folder_is_refused(matrix: str, name: str, content: Any, words: str) -> None:
    invoke("train", matrix, *MATRIX, *QUICK)
    run = Path("runs/m-1")
    for later in ("run.json", "metrics.json", "model.safetensors"):  # as if killed before the model was written
        (run / later).unlink()
    (run / "checkpoint").write_bytes(b"")
    damaged = content((run / name).read_bytes())
    (run / name).unlink()
    if damaged is not None:
        (run / name).write_bytes(damaged)
    assert words in invoke("train", "--resume", str(run), code=5).output


def test_a_damaged_model_is_refused(matrix: str) -> None:
    invoke("train", matrix, *MATRIX, *QUICK)
    path = Path("runs/m-1/model.safetensors")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))
    assert "was cut or altered" in invoke("predict", "runs/m-1", matrix, "-o", "out.csv", code=5).output
    path.unlink()
    assert (
        "has no model yet: continue it with isthmus train --resume"
        in invoke("predict", "runs/m-1", matrix, "-o", "out.csv", code=2).output
    )


def test_resuming_a_run_that_is_done_changes_nothing(matrix: str) -> None:
    first = trained(matrix, *MATRIX, *QUICK)
    files = {path: path.read_bytes() for path in Path(first["run"]).iterdir()}
    again = json.loads(invoke("train", "--resume", first["run"], "--json").stdout)
    assert again == first and files == {path: path.read_bytes() for path in Path(first["run"]).iterdir()}
    assert math.isfinite(again["epsilon"])
    assert "leave out epsilon" in invoke("train", "--resume", first["run"], "--epsilon", "2", code=2).output
