"""Paper 002's experiments at sizes that only show that they run and that their verdicts can come out either way."""

import pytest
from tiny import changed, judged, smoke

from isthmus import datasets
from lab.reproduce.paper_002 import figure_1, figure_2, regimes, total_budget

needs_lending = pytest.mark.skipif(not datasets.available("lending_club"), reason="needs ISTHMUS_DATA")


@needs_lending
def test_figure_1_and_its_verdict_turns_with_the_numbers():
    results = smoke(figure_1.EXPERIMENT, {"n": 300, "rounds": 2, "epsilons": (1.0, 100.0)})
    ahead = changed(results, "log10 relative loss", -3.0, epsilon=1.0, method="sparsified")
    assert judged(figure_1.EXPERIMENT, ahead) in ("holds", "holds in part")
    behind = changed(results, "log10 relative loss", 3.0, method="sparsified")
    assert judged(figure_1.EXPERIMENT, behind) == "fails"


@needs_lending
@pytest.mark.parametrize(
    ("experiment", "config"),
    [
        (figure_2.KAPPA, {"n": 300, "rounds": 2, "epsilons": (1.0, 100.0), "kappas": (1, 5)}),
        (figure_2.RECORDS, {"rounds": 2, "epsilons": (1.0, 100.0), "ns": (100, 300)}),
        (total_budget.EXPERIMENT, {"n": 300, "rounds": 2, "epsilon": 1.0, "steps": (0.1,)}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_lending_club(experiment, config):
    smoke(experiment, config)


def test_regimes_follow_the_noise():
    config = {"ds": (100, 1000), "ns": (10, 100), "epsilons": (0.1, 100.0), "draws": 2}
    results = smoke(regimes.EXPERIMENT, config)
    wide, narrow = (results.mean(regimes.RATIO, d=d, n=n, epsilon=0.1) for d, n in ((1000, 10), (100, 100)))
    assert wide < 0 < narrow
    assert regimes.predicted(1000, 10) < 1 < regimes.predicted(100, 100)
