"""What a release is bounded by, where the bound could be lost on its way to the noise."""

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from isthmus import LeastSquares, minimize
from isthmus.core.pipeline import Pipeline, Promise, Release, Stage
from isthmus.lifts import discard, pinv
from isthmus.parts import Step
from isthmus.privacy import BudgetExceeded, Clip, FullBatch, Gaussian, Ledger, Mechanism
from isthmus.problems.queries import TopEigenvalue
from isthmus.sketches import Encoder, GaussianSketch
from isthmus.sketches.compose import IdentityMap
from isthmus.theory.printed import Inside, OwnLength, Printed


@dataclass(frozen=True)
class _Eigenvalue:
    """The query of whatever records a physical batch holds."""

    own_records: bool = True

    def __call__(self, problem: Any, w: Any, index: Any, held: Any) -> Any:
        return TopEigenvalue(problem.X if index is None else problem.X[index])


def test_a_query_is_never_split_into_physical_batches():
    """Rows a, a, b, b, a, a, ...: in pairs their eigenvalues add up to 2 each, and to 1 each where one row is gone."""
    rows = torch.eye(2, dtype=torch.float64)[[0, 0] + [1, 1, 0, 0] * 50]
    release = Release("top", clip=Clip(TopEigenvalue.bound), mechanism=Gaussian(10.0), lift=discard)
    steps = Release(clip=Clip(1.0), mechanism=Gaussian(10.0))
    stages = [Stage(FullBatch(1.0), [release], "top", source=_Eigenvalue()), Stage(FullBatch(), [steps])]
    pipe = Pipeline(stages, lambda t: 0.1, Step(), promise=Promise(5.0, 1e-5))
    objective = LeastSquares(rows, torch.zeros(len(rows), dtype=torch.float64))
    minimize(objective, pipe, steps=1, record=None)
    with pytest.raises(ValueError, match="physical_batch_size=2 is not allowed"):
        minimize(objective, pipe, steps=1, record=None, physical_batch_size=2)


class _Told(IdentityMap):
    """The identity, which says of the whole sum what it was told to say."""

    settles = True

    def __init__(self, space: Any, ord: float, bound: float) -> None:
        super().__init__(space)
        self.ord, self.bound = ord, bound

    def settle(self, value: Any, ord: float, bound: float) -> Any:
        return value, self.ord, self.bound


@dataclass(frozen=True)
class _Settled(Encoder):
    """A map that says of the whole sum what it was told to say."""

    ord: float
    bound: float

    def bind(self, context: Any, state: Any) -> Any:
        return _Told(context.space, self.ord, self.bound), None


@dataclass(frozen=True)
class _Careless(Mechanism):
    """A mechanism that never looks at the bound it is given."""

    multiplier: float = 10.0

    def release(self, bounded: Any, noise: Any) -> Any:
        return bounded.value + noise.normal(len(bounded.value))

    def event(self, adjacency: Any = None) -> Any:
        return Gaussian(self.multiplier).event()


@pytest.mark.parametrize("mechanism", [Gaussian(10.0), _Careless()])
@pytest.mark.parametrize(("ord", "bound"), [(2, math.inf), (2, math.nan), (2, 0.0), (math.inf, 1.0)])
def test_a_lost_bound_is_refused_before_anything_is_charged(mechanism: Mechanism, ord: float, bound: float):
    stage = Stage(FullBatch(), [Release(encode=_Settled(ord, bound), clip=Clip(1.0), mechanism=mechanism)])
    pipe, ledger = Pipeline([stage], lambda t: 0.1, Step(), promise=Promise(5.0, 1e-5)), Ledger()
    X = torch.eye(4, dtype=torch.float64)
    with pytest.raises(ValueError, match="is not allowed"):
        minimize(LeastSquares(X, X[:, 0]), pipe, steps=1, record=None, ledger=ledger)
    assert not ledger.rounds()


@pytest.mark.parametrize("ledger", [None, Ledger()])
def test_a_run_that_costs_more_than_it_promises_looks_at_nothing(ledger: Ledger | None):
    """Where the ledger has no budget of its own, too: an estimator with a checkpoint keeps such a one."""
    stage = Stage(FullBatch(), [Release(clip=Clip(1.0), mechanism=Gaussian(0.1))])
    pipe = Pipeline([stage], lambda t: 0.1, Step(), promise=Promise(1.0, 1e-5))
    X = torch.eye(4, dtype=torch.float64)
    with pytest.raises((ValueError, BudgetExceeded), match="is not allowed|needs epsilon"):
        minimize(LeastSquares(X, X[:, 0]), pipe, steps=5, record=None, ledger=ledger)
    assert ledger is None or not ledger.rounds()


def test_noise_on_a_bound_that_is_only_claimed_has_no_epsilon():
    """The rescaled sketch of papers 001 and 000 takes the printed mechanism, whose event says nothing is private."""
    options = {"encode": OwnLength(GaussianSketch(2)), "clip": Clip(1.0), "lift": Inside(pinv)}
    printed = Release(**options, mechanism=Printed(Gaussian(10.0), "none", sound=False))
    Pipeline([Stage(FullBatch(), [printed])], lambda t: 0.1, promise=Promise(math.inf, 1e-5))
    for mechanism in (Gaussian(10.0), Printed(Gaussian(10.0), "as claimed")):
        with pytest.raises(ValueError, match="a paper's claim"):
            Pipeline(
                [Stage(FullBatch(), [replace(printed, mechanism=mechanism)])], lambda t: 0.1, promise=Promise(1.0, 1e-5)
            )
