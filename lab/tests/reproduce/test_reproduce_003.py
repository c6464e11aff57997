"""Paper 003's experiments at sizes that only show that they run, and that predictions are the paper's formulas."""

import numpy as np
import pytest
from tiny import changed, judged, smoke

from isthmus import datasets
from lab.reproduce import Observed, Results
from lab.reproduce.paper_003 import common, regressions, section_4_3, table_1

needs_tables = pytest.mark.skipif(
    not all(map(datasets.available, regressions.TABLES)), reason="needs ISTHMUS_DATA"
)  # fmt: skip


def test_table_1_and_its_verdict_turns_with_the_numbers():
    config = {"d": 4, "n": 100, "epsilon": 1.0, "least": 0.3, "draws": 1, "batch": None}
    results = smoke(table_1.EXPERIMENT, config)
    assert judged(table_1.EXPERIMENT, changed(results, table_1.UTILITY, 9.0, method=common.FULL)) == "fails"


@pytest.mark.parametrize(
    "experiment", [section_4_3.EASY, section_4_3.BLOCKS, section_4_3.HARD], ids=lambda each: each.name
)
def test_section_4_3(experiment):
    results = smoke(experiment, {"sizes": (2, 4), "n": 200, "epsilon": 1.0, "draws": 1})
    winner, loser = (cell["method"] for cell in results.cells[:2])
    for method, size, value in ((winner, 2, -2.0), (winner, 4, -9.0), (loser, 2, -1.0), (loser, 4, -1.0)):
        results = changed(results, section_4_3.UTILITY, value, method=method, size=size)
    assert judged(experiment, results) == "holds"
    assert judged(experiment, changed(results, section_4_3.UTILITY, 0.0)) == "fails"


def test_the_regimes_have_the_gain_that_the_paper_derives():
    def gain(task, mine, other):
        return common.Method(other, task, 10_000, 1.0).predicted / common.Method(mine, task, 10_000, 1.0).predicted

    easy, hard = section_4_3.one_easy(64, 2000, 0), section_4_3.one_hard(64, 2000, 0)
    assert 0.7 * 8 < gain(easy, common.FULL, common.SGD) <= 8
    assert 0.9 * 8 < gain(hard, common.IMPORTANCE, common.CD) <= 8


def test_newton_finds_the_minimum():
    task = table_1.made("uneven and strongly convex", {"d": 8, "n": 300, "least": 0.1}, 0)
    rng = np.random.default_rng(0)
    assert all(task.gap(task.best + 0.01 * rng.standard_normal(8)) > 0 for _ in range(5))


def test_uneven_columns():
    smoke(regressions.UNEVEN, {"n": 200, "rounds": 2, "passes": 1})


@needs_tables
def test_real_tables():
    passes = {"california_housing": 1, "lending_club": 1}
    smoke(regressions.REAL, {"rows": 300, "rounds": 4, "batch": None, "passes": passes})


def test_the_best_of_five_samplings_must_lead_by_more_than_seeds_do():
    def results(lead, spread):
        runs = []
        for cell in regressions.table_cells({}):
            middle = lead if cell["method"] == regressions.OURS[1] else 0.0
            runs += [(cell, seed, Observed({regressions.R2: middle + spread * (seed - 2)})) for seed in range(5)]
        return Results(runs)

    assert judged(regressions.REAL, results(0.1, 0.01)) == "holds"
    assert judged(regressions.REAL, results(0.1, 0.1)) == judged(regressions.REAL, results(0.0, 0.0)) == "fails"
