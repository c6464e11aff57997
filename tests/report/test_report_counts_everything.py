"""A report never says less than was spent: whatever was bought after the fit is in it, or it says that it is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from isthmus import InvalidInput, PrivateClassifier, PrivateSearch, private_score, private_summary
from isthmus.privacy import Gaussian, Ledger
from isthmus.report import Record, render
from isthmus.report.record import UNCOUNTED

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
