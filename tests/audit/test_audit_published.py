"""What is audited as PRIVSGD as published is what `priv_sgd(as_published=True)` runs."""

from __future__ import annotations

import math
from dataclasses import replace

from isthmus import algorithms
from isthmus.audit import known_bad, suite
from isthmus.base.space import Space
from isthmus.core.minimize import Binding
from isthmus.penalties import NoPenalty
from isthmus.sets import Whole


def test_the_audit_runs_the_pipeline_of_the_recipe() -> None:
    case = suite._broken_pipelines()["PRIVSGD as published"]
    recipe = algorithms.priv_sgd(
        epsilon=suite.EPSILON, delta=suite.DELTA, m=50, clip=1.0, step=0.1, n="exact", as_published=True
    )
    own = recipe.bind(Binding(Whole(), NoPenalty(), Space.flat(case.d), case.n, 1, None))
    (audited,), (run,) = case.pipe.stages, own.stages
    assert audited.sampler == run.sampler and audited.releases == run.releases
    assert own.promise is not None and own.promise.epsilon == math.inf
    assert case.pipe.promise == replace(own.promise, epsilon=suite.EPSILON)  # what the paper claims is attacked


def test_its_movement_is_the_number_of_records() -> None:
    from isthmus.audit import worst_pair

    assert worst_pair(known_bad.published_privsgd(200, 20, d=500), 500, 200).ratio > 190
