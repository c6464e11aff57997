"""Figures 5, 7 and 8 of paper 001 at tiny sizes."""

from __future__ import annotations

import pytest
from smoke import smoke

from lab.reproduce.paper_001 import figure_5, figures_7_8


@pytest.mark.parametrize("experiment", figure_5.EXPERIMENTS, ids=lambda each: each.name)
def test_figure_5(experiment: figure_5.Experiment) -> None:
    results = smoke(experiment, {"n": 64, "d": 200, "step": 10.0, "epochs": 3})
    assert results.mean("numbers a step", method=figure_5.COMP) < 200
    assert results.curve("m", method=figure_5.SGD)[1] == [200.0] * 3


@pytest.mark.parametrize("experiment", figures_7_8.EXPERIMENTS[1:2], ids=lambda each: each.name)
def test_figures_7_and_8(experiment: figures_7_8.Experiment) -> None:
    results = smoke(experiment, {"rows": 64, "test rows": 50, "words": 60, "steps": 4})
    floats, bits = (results.mean("bytes a step", method=each) for each in (figures_7_8.PLAIN, figures_7_8.SGD))
    assert floats == 4 * (61 * 50 + 51 * 50 + 51 * 46) > bits
