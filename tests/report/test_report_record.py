"""The record: read, checked, written; and built from fitted estimators."""

import copy
import json
import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_cases import CASES, full, record, seeded

import isthmus
from isthmus import InvalidInput, PrivateClassifier, PrivateRegressor, PrivateSearch, private_score, private_summary
from isthmus.planner import plan
from isthmus.privacy import Gaussian, Ledger
from isthmus.report import Record, render
from isthmus.report.record import UNCOUNTED, _energy, _history


@pytest.mark.parametrize("name", CASES)
def test_writing_and_reading_gives_the_same(name: str, tmp_path: Path) -> None:
    entry = record(name)
    assert Record.from_dict(json.loads(entry.to_json())) == entry
    where = entry.save(tmp_path)
    assert where == tmp_path / "run.json"
    assert Record.from_file(tmp_path) == Record.from_file(where) == entry
    assert render(Record.from_file(where)) == render(entry)


def test_a_record_is_frozen_all_the_way() -> None:
    entry = record("full")
    with pytest.raises(FrozenInstanceError):
        entry.title = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        entry.privacy["epsilon"] = 0.1  # type: ignore[index]
    assert isinstance(entry.history, tuple) and isinstance(entry.data["features"], tuple)


def test_infinity_is_written_as_text() -> None:
    text = record("published").to_json()
    assert json.loads(text)["privacy"]["epsilon"] == "inf" and "Infinity" not in text and "NaN" not in text
    assert record("published").privacy["epsilon"] == math.inf  # type: ignore[index]


def put(*path: Any) -> Any:
    """A change of the full record: the last of `path` is put where the others lead."""
    *keys, last, value = path

    def change(found: dict[str, Any]) -> None:
        for key in keys:
            found = found[key]
        found[last] = value

    return change


BROKEN = {
    "another format": (put("format", "isthmus-run-9"), "format='isthmus-run-9'"),
    "no statement": (lambda found: found.pop("privacy"), "give 'privacy' too, which is missing"),
    "no algorithm": (lambda found: found["model"].pop("algorithm"), "give 'algorithm' too, which is missing"),
    "no title": (put("title", None), "title=None"),
    "a task that is none": (put("model", "task", "ranking"), "model.task='ranking'"),
    "text for a number": (put("model", "seconds", "fast"), "model.seconds='fast'"),
    "not a number": (put("history", 3, "moved", math.nan), r"history\[3\].moved='nan'"),
    "an infinite score": (put("comparison", 0, "score", math.inf), r"comparison\[0\].score='inf'"),
    "a negative epsilon": (put("budget", "epsilon", -1.0), "budget.epsilon=-1.0"),
    "half a record": (put("data", "n", 1.5), "data.n=1.5"),
    "true for a number": (put("data", "d", True), "data.d=True"),
    "a delta of 1": (put("privacy", "delta", 1.0), "privacy.delta=1.0"),
    "private without limit": (put("privacy", "epsilon", "inf"), "privacy.private=True"),
    "curves of two lengths": (put("curves", 0, "series", 0, "x", [1.0]), r"curves\[0\].series\[0\].y='61 values'|y="),
    "energy above 1": (put("energy", "captured", 0, 1.2), r"energy.captured\[0\]=1.2"),
    "a date that is none": (put("created", "yesterday"), "created='yesterday'"),
    "words of another run": (put("words", "All is well."), "words='All is well.'"),
    "words without a statement": (put("privacy", None), "leave them empty"),
    "words that promise less": (put("words", "The released results are differentially private."), "words="),
    "a curve beyond the statement": (put("budget", "curve", [[1, 5.0]]), "budget.curve=5.0"),
    "a figure of the training data": (put("metrics", 0, "on", "training data"), "metrics.on='training data'"),
    "history that is no list": (put("history", {"t": 1}), "history={'t': 1}"),
    "a pair of three": (put("budget", "curve", [[1, 2, 3]]), r"budget.curve\[0\]=\[1, 2, 3\]"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_wrong_is_refused_with_its_place(case: str) -> None:
    change, message = BROKEN[case]
    copied = copy.deepcopy(full())
    change(copied)
    with pytest.raises(InvalidInput, match=message):
        Record.from_dict(copied)


def test_a_seeded_run_may_not_pass_for_private_nor_tell_its_number_of_records() -> None:
    told = seeded()["data"] | {"n": 400}
    for parts, words in (({"words": full()["words"]}, "words="), ({"data": told}, "data.n=400 .* keeps the number")):
        with pytest.raises(InvalidInput, match=words):
            Record.from_dict(seeded() | parts)


CORRUPT = [
    (b"", "not JSON"),
    (b'{"format": "isthmus-run-1", "tit', "not JSON .* cut or altered"),
    (b"\xff\xfe\x00", "not JSON .*utf-8"),
    (b"[1, 2]", "record='list'"),
    (b"[" * 100_000, "not JSON .*recursion"),
    (b"{}", "format=None"),
]


@pytest.mark.parametrize(("content", "message"), CORRUPT)
def test_corrupt_files_are_refused(content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(InvalidInput, match=message):
        Record.from_file(tmp_path)


def test_a_file_of_something_else_is_named_and_not_quoted(tmp_path: Path) -> None:
    path = tmp_path / "patients.csv"
    path.write_text("name,diagnosis\nzoe,flu\n")
    with pytest.raises(InvalidInput, match="^Cannot read .*patients.csv: it is not JSON") as refused:
        Record.from_file(path)
    assert "zoe" not in str(refused.value) and "diagnosis" not in str(refused.value)


def test_files_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="File not found: .*give a run's folder"):
        Record.from_file(tmp_path)


def test_characters_that_cannot_be_printed_are_replaced() -> None:
    copied = copy.deepcopy(full())
    copied["title"], copied["warnings"] = "a\x00b\ud800c", ["\u202eevil"]
    kept = Record.from_dict(copied)
    assert kept.title == "a\ufffdb\ufffdc" and kept.warnings == ("\ufffdevil",)
    render(kept).encode("utf-8")


def test_reading_and_rendering_do_not_import_torch(tmp_path: Path) -> None:
    record("full").save(tmp_path)
    code = (
        "import sys; from isthmus.report import Record, write; "
        f"write(Record.from_file({str(tmp_path)!r}), {str(tmp_path / 'r.html')!r}); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (tmp_path / "r.html").stat().st_size > 10_000


# ---------------------------------------------------------------- from estimators


def table(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    x = rng.uniform(-1, 1, (617, 4))
    return x, x @ np.array([2.0, -1.0, 0.0, 0.5])


def test_the_record_of_a_private_classifier(rng: np.random.Generator, tmp_path: Path) -> None:
    x, margin = table(rng)
    path = tmp_path / "study.ledger"
    Ledger.open(path, budget=(3.0, 1e-5))
    model = PrivateClassifier(epsilon=1.0, delta=1e-5, classes=["no", "yes"], bounds=(-1, 1), ledger=path)
    model.fit(x, np.where(margin > 0, "yes", "no"))
    metrics = [{"name": "accuracy", "value": 0.9, "on": "100 public rows"}]
    found = Record.of(model, title="Yes or no", data={"name": "made up", "target": "answer"}, metrics=metrics)
    assert found.private and found.data["n"] == 617 and found.data["d"] == 4 and found.data["classes"] == ("no", "yes")
    assert found.words == model.privacy_.words() and found.model["algorithm"] == model.choice_.algorithm
    assert found.model["rounds"] == model.n_iter_ and found.model["choice"] == model.choice_.name
    shared = found.budget["shared"]
    assert shared["file"] == "study.ledger" and shared["epsilon"] == 3.0
    assert shared["spent"] == pytest.approx(Ledger.open(path).spent(), rel=1e-9)
    curve = [epsilon for _, epsilon in found.budget["curve"]]
    assert curve == sorted(curve) and curve[-1] == pytest.approx(model.privacy_.epsilon, rel=1e-6)
    assert len(found.plan["choices"]) > 1 and found.versions["isthmus"] == isthmus.__version__  # type: ignore[index]
    text = render(found)
    assert "Yes or no" in text and model.choice_.name in text and "study.ledger" in text
    assert Record.from_dict(json.loads(found.to_json())) == found


def test_the_record_keeps_a_private_number_of_records(rng: np.random.Generator) -> None:
    x, y = table(rng)
    model = PrivateRegressor(epsilon=1.0, delta=1e-5, bounds=(-1, 1), target_bounds=(-4, 4), n=500).fit(x, y)
    found = Record.of(model, title="t", data={"name": "made up", "n": 617})
    assert model.privacy_.n is None and found.data["n"] is None and found.model["task"] == "regression"
    text = render(found)
    assert "Records</dt><dd>not published" in text
    assert not re.search(r"(?<![\d.])617(?![\d.])", found.to_json() + text)


def test_the_record_of_a_run_without_privacy(rng: np.random.Generator) -> None:
    x, y = table(rng)
    found = Record.of(PrivateRegressor(epsilon=math.inf).fit(x, y), title="t", data={"name": "made up", "n": 617})
    assert found.privacy is None and found.words == "" and found.budget["epsilon"] == math.inf
    assert found.data["n"] == 617 and "NOT private" in render(found)
    assert Record.from_dict(json.loads(found.to_json())) == found


def test_the_energy_of_public_rows_is_shown(rng: np.random.Generator) -> None:
    x, y = table(rng)
    common = {"epsilon": 1.0, "delta": 1e-5, "bounds": (-1, 1), "target_bounds": (-4, 4), "scale": "none"}
    model = PrivateRegressor(**common, algorithm="dp_gd", public=x[:40], max_iter=5).fit(x[40:], y[40:])
    found = Record.of(model, title="t", data={"name": "made up", "public_rows": 40})
    assert found.energy is not None and found.energy["chosen"] is None and "40 public" in found.energy["source"]
    assert found.energy["captured"] == pytest.approx(model.plan_.facts.public.curve.shares)
    assert "This run kept all directions" in render(found)
    narrow = plan(n=577, d=4, epsilon=1.0, delta=1e-5, public=x[:40], algorithms=["pdp_sgd"])
    told = _energy(narrow, narrow.best)
    assert told is not None and told["chosen"] == narrow.best.arguments["k"] >= 1
    asked = _energy(narrow, narrow.best, {"k": told["chosen"] + 1})  # the user's own number of directions
    assert asked is not None and asked["chosen"] == told["chosen"] + 1
    assert _energy(plan(n=577, d=4, epsilon=1.0, algorithms=["dp_gd"]), narrow.best) is None


def test_noise_is_shown_only_where_its_length_in_the_step_is_known() -> None:
    ranked = plan(n=30_000, d=5, epsilon=1.0, delta=1e-5, algorithms=["dp_gd"])
    rows = [{"t": 1, "noise": 0.5}, {"t": 2, "moved": 1.0, "noise": 0.5}, {"t": 3, "moved": math.inf, "noise": 0.5}]
    told = _history(rows, ranked.choice("dp_gd (plain)"))
    assert [(row.get("moved"), row["noise"]) for row in told] == [(None, 0.5), (1.0, 0.5), (None, 0.5)]
    assert {row.get("noise") for row in _history(rows, ranked.choice("dp_gd (statistics bought)"))} == {None}


def test_other_estimators_and_unfitted_ones_are_refused() -> None:
    with pytest.raises(InvalidInput, match="estimator='PrivateClassifier' .* fit it first"):
        Record.of(PrivateClassifier(), title="t", data={"name": "n"})
    with pytest.raises(InvalidInput, match="estimator='object'"):
        Record.of(object(), title="t", data={"name": "n"})


# ---------------------------------------------------------------- whatever was bought later is in the report, or named


DELTA = 1e-6
X = np.random.default_rng(0).uniform(-1, 1, (900, 3))
Y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
DATA = {"name": "made up", "target": "answer"}


def fitted(ledger: Any = None) -> Any:
    options: dict[str, Any] = {"classes": ["no", "yes"], "bounds": (-1, 1), "algorithm": "dp_gd", "max_iter": 5}
    return PrivateClassifier(epsilon=1.0, delta=DELTA, ledger=ledger, **options).fit(X[:600], Y[:600])


def reported(model: Any, **more: Any) -> Any:
    return Record.of(model, title="t", data=DATA, **more)


def together(*events: Any) -> float:
    """The epsilon of releases in a ledger of their own."""
    ledger = Ledger()
    for event in events:
        ledger.pay("all", event)
    return ledger.spent(DELTA)


def scored(model: Any, ledger: Any = None) -> Any:
    return private_score(model, X[600:], Y[600:], epsilon=2.0, delta=DELTA, ledger=ledger)


def summarised(model: Any, ledger: Ledger) -> None:
    columns = {"a": X[:, 0], "b": X[:, 1]}
    private_summary(columns, {"a": [-1, 1], "b": [-1, 1]}, epsilon=0.5, delta=DELTA, ledger=ledger)


def searched(model: Any, ledger: Ledger) -> None:
    candidates = {"step": [0.5, 1.0]}
    plain = PrivateClassifier(classes=["no", "yes"], bounds=(-1, 1), algorithm="dp_gd", max_iter=5)
    PrivateSearch(plain, candidates, epsilon=0.5, delta=DELTA, ledger=ledger).fit(X, Y)


DOORS: dict[str, Callable[[Any, Ledger], object]] = {
    "figures": scored,
    "a summary": summarised,
    "a search": searched,
    "another fit": lambda model, ledger: fitted(ledger),
    "a payment of one's own": lambda model, ledger: ledger.pay("my figures", Gaussian(5.0).event()),
}


@pytest.mark.parametrize("door", DOORS)
def test_what_is_charged_after_the_fit_is_in_the_report(door: str) -> None:
    ledger = Ledger(budget=(9.0, 1e-5))
    model = fitted(ledger)
    alone = model.privacy_.epsilon
    DOORS[door](model, ledger)
    record = reported(model)
    assert record.privacy["epsilon"] >= ledger.spent(DELTA) * (1 - 1e-9) > alone
    assert record.privacy["epsilon"] == pytest.approx(ledger.spent(DELTA), rel=1e-6)
    assert sum(row["times"] for row in record.privacy["releases"]) == sum(ledger.rounds().values())
    assert f"{record.privacy['epsilon']:.2f}"[:3] in render(record)


def test_figures_bring_what_they_cost() -> None:
    model = fitted()
    scores = scored(model)
    assert scores.releases == 2
    record = reported(model, metrics=scores, curves=scores.curves)
    assert UNCOUNTED not in record.warnings
    both = together(model.privacy_.event, scores.privacy.event)
    assert record.privacy["epsilon"] == pytest.approx(both, rel=1e-9)
    assert [row["name"] for row in record.metrics] == [figure.name for figure in scores.figures]
    assert all(text in record.words for text in scores.privacy.assumptions)


def test_a_ledger_and_figures_that_are_in_it_count_once() -> None:
    ledger = Ledger()
    model = fitted(ledger)
    scores = scored(model, ledger)
    records = [reported(model, metrics=each) for each in (scores, scores.figures)]
    assert [record.privacy["epsilon"] for record in records] == [ledger.spent(DELTA)] * 2
    assert not any(UNCOUNTED in record.warnings for record in records)


def test_figures_whose_cost_is_not_known_are_named() -> None:
    model = fitted()
    scores = scored(model)
    record = reported(model, metrics=scores.figures)
    assert UNCOUNTED in record.warnings and "subject to the warnings" in render(record)
    other = Ledger()  # holds something, but not these figures
    other.pay("my figures", Gaussian(5.0).event())
    assert UNCOUNTED in reported(model, metrics=scores.figures, ledger=other).warnings
    exact = [{"name": "accuracy", "value": 0.9, "on": "100 public rows"}]
    assert UNCOUNTED not in reported(model, metrics=exact).warnings


def test_a_ledger_with_seeded_noise_makes_the_report_not_private() -> None:
    ledger = Ledger()
    model = fitted(ledger)
    ledger.mark_seeded()
    record = reported(model)
    assert not record.private and "NOT private" in render(record)


def test_a_ledger_of_another_adjacency_is_refused() -> None:
    with pytest.raises(InvalidInput, match="adjacency"):
        reported(fitted(), ledger=Ledger(adjacency="replace-one"))


def test_every_statement_says_that_it_counts_what_it_lists() -> None:
    model = fitted()
    assert "nothing else: further releases" in model.privacy_.words()
    assert "further releases" in model.privacy_._repr_html_() and "further releases" in scored(model).privacy.words()


def test_a_notebook_shows_what_the_ledger_holds_now() -> None:
    ledger = Ledger(budget=(9.0, 1e-5))
    model = fitted(ledger)
    before = model._repr_html_()
    scored(model, ledger)
    after = model._repr_html_()
    assert "of 9 at delta = 1e-05" in before and before != after


def test_releases_that_cost_the_same_are_not_taken_for_one_another() -> None:
    ledger = Ledger()
    first, other = fitted(ledger), fitted()
    record = reported(other, ledger=ledger)
    both = together(first.privacy_.event, other.privacy_.event)
    assert record.privacy["epsilon"] == pytest.approx(both, rel=1e-9)
    assert sum(row["times"] for row in record.privacy["releases"]) == 2 * sum(ledger.rounds().values())


def test_figures_paid_elsewhere_are_not_taken_for_those_of_the_ledger() -> None:
    ledger = Ledger()
    model = fitted(ledger)
    scored(model, ledger)
    elsewhere = scored(model)
    record = reported(model, metrics=elsewhere)
    both = together(ledger.event(), elsewhere.privacy.event)
    assert record.privacy["epsilon"] == pytest.approx(both, rel=1e-9)
