"""What the tests of private recipes share: a problem, common arguments, one round taken apart."""

import copy
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from isthmus import Logistic, algorithms
from isthmus.core.minimize import Binding
from isthmus.core.pipeline import Pipeline, Round, bind_stage, close_stage, contribute, start
from isthmus.core.wire import Keys
from isthmus.parts import Client


def problem(n: int = 300, d: int = 30, seed: int = 0, sparse: bool = False) -> Logistic:
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) / math.sqrt(d)
    y = np.sign(X[:, 0] - X[:, 1] + 0.1 * rng.standard_normal(n))
    return Logistic(sp.csr_matrix(X) if sparse else X, y, classes=(-1, 1))


COMMON: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "clip": 0.5, "step": 1.0, "n": "exact"}

RECIPES: dict[str, Any] = {
    "dp_sgd": lambda **o: algorithms.dp_sgd(batch_size=60, **(COMMON | o)),
    "dp_gd": lambda **o: algorithms.dp_gd(**(COMMON | o)),
    "priv_sgd": lambda **o: algorithms.priv_sgd(m=10, **(COMMON | o)),
    "dp_comp_minibatch": lambda **o: algorithms.dp_comp_minibatch(m=10, batch_size=60, **(COMMON | o)),
}


def build(recipe: Any, objective: Any, constraint: Any, steps: int) -> Pipeline:
    facts = (constraint, objective.penalty, objective.space, objective.n, steps, None)
    return recipe.bind(Binding(*facts, objective.loss, objective.gradient))


def one_release(pipe: Pipeline, objective: Any, noise: Any, w: torch.Tensor | None = None) -> tuple[Any, Any]:
    """The message before the noise and the released values of round 0."""
    return next(releases(pipe, objective, [noise], w))


def releases(pipe: Pipeline, objective: Any, noises: Iterable[Any], w: torch.Tensor | None = None) -> Iterator[Any]:
    """The same for each source of noise: the records of round 0 are looked at once, and their message copied."""
    state = start(pipe, torch.zeros(objective.space.d, dtype=torch.float64) if w is None else w)
    round = Round(
        pipe, state, space=objective.space, seed=0, epoch=0, read=lambda: state.w, public_rows=lambda w, data: None
    )
    stage, message = pipe.stages[0], None
    bind_stage(round, stage)
    for noise in noises:
        keys = Keys(0, noise)
        message = contribute(round, stage, Client("0", objective), keys) if message is None else message
        yield message, close_stage(round, stage, copy.deepcopy(message), keys, Free())


class Free:
    """A ledger that charges nothing."""

    def charge(self, stage: Any, t: int) -> None: ...
