"""What both estimators take: their parameters, and what follows from these alone."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight

from isthmus.algorithms import KNOWN, Algorithm
from isthmus.algorithms.filling import algorithm_of
from isthmus.base import validate
from isthmus.estimators.crew import Crew
from isthmus.estimators.inputs import check_bounds
from isthmus.objectives.known import Loss, loss_of
from isthmus.privacy import Adjacency
from isthmus.privacy.budget import default_delta
from isthmus.privacy.ledger import opened

SCALES = ("auto", "none", "columns", "moments", "shapes", "public")
FEATURES = ("auto", "linear", "smooth")


@dataclass(eq=False, repr=False)
class Parameters(BaseEstimator):
    """The parameters that both estimators share (`PrivateClassifier` says what they are), and their checks."""

    epsilon: float = 1.0
    delta: float | None = None
    _: KW_ONLY
    loss: str | Loss = ""
    algorithm: str | Algorithm[Any] | Callable[..., Any] = "auto"
    constraint: Any = None
    l1: float = 0.0
    l2: float = 0.0
    clip: Any = None
    step: Any = None
    max_iter: int | None = None
    batch_size: int | None = None
    scale: str = "auto"
    features: str = "auto"
    bounds: Any = None
    data_norm: Any = None
    fit_intercept: bool = True
    public: Any = None
    n: int | None = None
    max_weight: float = 1.0
    adjacency: Any = "add-remove"
    partial_calls: int = 10
    ledger: Any = None
    checkpoint: Any = None
    options: Any = None
    facts: Any = None
    as_published: bool = False
    random_state: Any = None
    noise_seed: int | None = None
    verbose: int = 0

    _LABELS: ClassVar[bool]
    """Whether targets are labels."""
    _alone: ClassVar[Crew] = Crew()

    def __sklearn_clone__(self) -> Any:
        """A clone shares the ledger: copied, the same budget would be spent twice."""
        ledger, self.ledger = self.ledger, None
        try:
            copied = super().__sklearn_clone__()
        finally:
            self.ledger = ledger
        return copied.set_params(ledger=ledger)

    @property
    def _private(self) -> bool:
        return self.epsilon != math.inf

    @property
    def _named_algorithm(self) -> Algorithm[Any] | None:
        """The algorithm that was asked for; None leaves it to the planner."""
        if isinstance(self.algorithm, str):
            return KNOWN.get(self.algorithm)
        return algorithm_of(self.algorithm)

    @property
    def _repeatable(self) -> bool:
        """Whether two fits are alike: never with secret noise."""
        return self.random_state is not None and (not self._private or self.noise_seed is not None)

    @property
    def _adjacency(self) -> Adjacency:
        return self.adjacency if isinstance(self.adjacency, Adjacency) else Adjacency(self.adjacency)

    @property
    def _crew(self) -> Crew:
        """Who fits this model: this process, but for the time of a fit with a group."""
        return self.__dict__.get("_group", self._alone)

    @contextmanager
    def _together(self, group: Any) -> Iterator[None]:
        """A fit by all ranks of a group; a fitted model knows of none."""
        self._group = Crew.of(group)
        try:
            with self._group.joined("fit"):
                yield
        finally:
            del self._group

    def _records(self, n: int) -> int:
        """The public number of records: as declared, that of the first partial fit, that of all ranks, or n."""
        return self.n or getattr(self, "_first", None) or self._crew.whole or n

    def _delta(self, n: int) -> float:
        return default_delta(n) if self.delta is None else self.delta

    def _seed(self) -> int:
        if self.random_state is None:
            return int.from_bytes(os.urandom(4), "little") >> 1
        if isinstance(self.random_state, (int, np.integer)):
            return int(self.random_state)
        return int(check_random_state(self.random_state).randint(2**31 - 1))

    def _check_parameters(self) -> None:
        if self.epsilon != math.inf:
            validate.positive(epsilon=self.epsilon)
        if self.delta is not None:
            validate.open_unit(delta=self.delta)
        loss_of(self.loss, self._LABELS)
        if isinstance(self.algorithm, str):
            validate.one_of(["auto", *KNOWN], algorithm=self.algorithm)
        validate.non_negative(l1=self.l1, l2=self.l2)
        validate.one_of(SCALES, scale=self.scale)
        validate.one_of(FEATURES, features=self.features)
        smooth = self.features == "smooth" and self.scale not in ("auto", "shapes")
        validate.check(not smooth, "features", "smooth", "leave out scale: smooth features bring their own")
        validate.check(
            self.scale != "public" or self.public is not None, "scale", "public", "give the public rows: public=X"
        )
        centred = self.scale in ("moments", "shapes", "public") or self.features == "smooth"
        validate.check(
            self.fit_intercept or not centred,
            "fit_intercept",
            False,
            'leave it out, or use scale="columns" or "none": centred columns have an intercept',
        )
        for name in ("clip", "step", "max_weight"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                validate.positive(**{name: value})
        for name in ("max_iter", "batch_size", "n", "partial_calls"):
            if getattr(self, name) is not None:
                validate.positive_int(**{name: getattr(self, name)})
        validate.one_of([*Adjacency, *(member.value for member in Adjacency)], adjacency=self.adjacency)
        check_bounds(self.bounds, self.data_norm)
        forced = self._named_algorithm is None and self.as_published
        validate.check(
            not forced,
            "as_published",
            True,
            'name the algorithm that is to run as published, such as algorithm="priv_sgd"',
        )

    def _opened_ledger(self) -> Any:
        return opened(self.ledger, self._adjacency) if self._crew.leads else None

    def _checked_weights(self, weight: Any, n: int) -> np.ndarray | None:
        if weight is None:
            return None
        values = _check_sample_weight(weight, np.empty((n, 1)), dtype=np.float64)
        good = bool((values >= 0).all())
        validate.require(good, "sample_weight holds a negative number: give weights of 0 or more")
        return np.minimum(values, self.max_weight) / self.max_weight
