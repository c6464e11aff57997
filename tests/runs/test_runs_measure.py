"""Figures of test rows: of the targets as they are, inside epsilon, and no number where the noise would hide it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import invoke, trained

from isthmus.estimators import load
from isthmus.estimators.looks import Looks
from isthmus.estimators.scoring import FIGURES, RANGES
from isthmus.privacy import Gaussian, Ledger, compose, epsilon_of
from isthmus.privacy.plan import mu_of
from isthmus.report import Record, render
from isthmus.runs.config import Settings
from isthmus.runs.measure import COUNTED, Measured, _training_epsilon


def write(path: str, x: np.ndarray, y: np.ndarray) -> None:
    Path(path).write_text("x,y\n" + "\n".join(f"{a},{b}" for a, b in zip(x.tolist(), y.tolist(), strict=True)))


def table(path: str, n: int, seed: int = 0, tail: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """y = 2 + x + noise; with a tail, some targets lie far beyond any range that is declared."""
    rng = np.random.default_rng(seed)
    x = rng.uniform(-1, 1, n)
    y = 2 + x + 0.3 * rng.normal(size=n) + np.where(rng.random(n) < tail, 20.0, 0.0)
    write(path, x, y)
    return x, y


REGRESSION = ["--target", "y", "--task", "regression", "--target-bounds", "0,5", "--bounds", "x=-1,1"]
LABELS = ["--target", "y", "--classes", "0,1", "--bounds", "x=-1,1", "--algorithm", "dp_gd", "--max-iter", "10"]


def labels(path: str, n: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, n)
    write(path, x, (x + rng.normal(size=n) > 0).astype(int))


def test_public_test_rows_are_scored_on_their_targets_as_they_are() -> None:
    table("train.csv", 3000, tail=0.02)
    x, y = table("test.csv", 500, seed=1, tail=0.02)
    outcome = trained("train.csv", *REGRESSION, "--test", "test.csv", "--epsilon", "3")
    model = load(Path(outcome["run"], "model.safetensors"))
    predicted = model.predict(x[:, None])
    true = 1 - np.mean((predicted - y) ** 2) / np.var(y)
    clipped = np.clip(y, 0, 5)
    figures = {metric["name"]: metric for metric in outcome["metrics"]}
    assert figures["R2"]["value"] == pytest.approx(true, abs=1e-9)
    assert abs(true - (1 - np.mean((predicted - clipped) ** 2) / np.var(clipped))) > 0.2  # what was printed before
    assert figures["mean absolute error"]["value"] == pytest.approx(np.mean(np.abs(predicted - y)))
    assert figures["root mean squared error"]["baseline"] == pytest.approx(np.std(y))
    report = render(Record.from_file(outcome["run"]))
    assert "500 test records" in report and "kept out" not in report and "held-out" not in report.lower()


def test_noisy_figures_of_held_out_rows_say_what_they_clip() -> None:
    table("train.csv", 30_000, tail=0.02)
    outcome = trained("train.csv", *REGRESSION, "--test-fraction", "0.4", "--epsilon", "8")
    figures = {metric["name"]: metric for metric in outcome["metrics"]}
    note = figures["R2"]["note"]
    assert "errors are cut at" in note and "targets at" in note
    limit = float(note.split("errors are cut at ")[1].split(",")[0])
    assert limit > 15  # 2 % of the targets are 20 beyond their declared range
    assert abs(figures["R2"]["value"]) < 0.3  # of clipped targets it would be about .78


@pytest.mark.parametrize("more", [[], ["--test-epsilon", "0.4"], ["--algorithm", "dp_sgd", "--batch-size", "200"]])
def test_everything_is_inside_the_epsilon_that_was_asked_for(more: list[str]) -> None:
    labels("t.csv", 3000)
    outcome = trained("t.csv", *LABELS, "--epsilon", "1", "--test-fraction", "0.4", *more)
    run = Path(outcome["run"])
    ledger = Ledger.open(run / "ledger")
    assert 0.95 < outcome["epsilon"] <= 1 and ledger.spent(outcome["delta"]) == outcome["epsilon"]
    assert {"test ranges", "test figures"} <= set(ledger.rounds())
    stated = json.loads((run / "run.json").read_text())
    assert stated["privacy"]["epsilon"] == outcome["epsilon"] and stated["budget"]["epsilon"] == 1.0
    covered = "a record is either trained on or held out" in " ".join(stated["privacy"]["assumptions"])
    assert covered is (more == []) and outcome["warnings"] == []


def test_the_training_covers_figures_of_other_rows_only_where_all_its_noise_is_gaussian() -> None:
    labels("t.csv", 3000)
    full = trained("t.csv", *LABELS, "--epsilon", "1", "--test-fraction", "0.4")
    sgd = ["--algorithm", "dp_sgd", "--batch-size", "200"]
    sampled = trained("t.csv", *LABELS, "--epsilon", "1", "--test-fraction", "0.4", *sgd)
    assert "inside the epsilon of the training" in full["metrics"][0]["on"]
    assert "of the whole" in sampled["metrics"][0]["on"]
    assert full["metrics"][0]["noise"] < sampled["metrics"][0]["noise"] / 3
    event = Ledger.open(Path(sampled["run"], "ledger")).event()
    assert "GaussianDpEvent" in str(event) and epsilon_of(event, sampled["delta"]) <= 1


def test_a_measurement_that_was_stopped_between_its_looks_is_not_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The training covers the held-out rows once: looks that were taken and lost count, whichever they were."""
    labels("t.csv", 6000)
    counts = Looks.counts

    def stopped(looks: Looks, name: str, *rest: Any) -> Any:
        if name == FIGURES:
            raise KeyboardInterrupt
        return counts(looks, name, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(Looks, "counts", stopped)
        trained("t.csv", *LABELS, "--epsilon", "1", "--test-fraction", "0.4", code=4)
    ledger = Ledger.open("runs/t-1/ledger")
    assert ledger.rounds().get(RANGES) == 1 and FIGURES not in ledger.rounds()
    training = ledger.event()
    again = trained("--resume", "runs/t-1")
    assert "inside the epsilon of the training" not in again["metrics"][0]["on"]
    bought = Ledger.open("runs/t-1/ledger").event()
    assert epsilon_of(training, again["delta"]) < epsilon_of(bought, again["delta"]) <= 1


def test_twenty_rows_print_no_number() -> None:
    labels("t.csv", 20)
    result = invoke("train", "t.csv", *LABELS, "--epsilon", "1", "--test-fraction", "0.3")
    assert "accuracy: too few rows: noise of s.d." in result.output and "test rows would be enough" in result.output
    assert "Expect no better than always answering the most frequent class" in " ".join(result.output.split())
    data = json.loads(Path("runs/t-1/metrics.json").read_text())
    assert [(metric["name"], metric["value"]) for metric in data["metrics"]] == [("accuracy", None)]
    assert not any("test" in name for name in Ledger.open("runs/t-1/ledger").rounds())  # nothing was looked at
    stated = json.loads(Path("runs/t-1/run.json").read_text())["privacy"]
    assert COUNTED in stated["assumptions"]  # their number is shown, whatever is hidden of all rows


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_training_and_figures_together_cost_epsilon(adjacency: str) -> None:
    settings = Settings(data="a.csv", epsilon=1.0, test_fraction=0.2, test_epsilon=0.5, adjacency=adjacency)
    first = _training_epsilon(settings, 1e-5)
    relation = Ledger(adjacency=adjacency).adjacency

    def gaussian(epsilon: float) -> Any:
        return Gaussian(1 / mu_of(epsilon, 1e-5, relation)).event()

    both = epsilon_of(compose([gaussian(first), gaussian(0.5)]), 1e-5, relation)
    assert 0.9999 < both <= 1.0 + 1e-9 and 0.8 < first < 0.9


def test_figures_of_an_earlier_version_are_read() -> None:
    old = {"metrics": [{"name": "accuracy", "value": 0.8, "on": "20 held-out rows", "noise": 0.01}]}
    assert Measured.from_dict(old).releases == 1 and Measured.from_dict(old).figures[0].value == 0.8
