"""What a filling returns: a recipe with all of its arguments and what they cost, or the reason why not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.base import validate
from isthmus.base.matrix import as_matrix
from isthmus.core.minimize import Recipe

if TYPE_CHECKING:
    from isthmus.algorithms.declare import Algorithm


@dataclass(frozen=True)
class Refusal:
    """Why an algorithm cannot run, or has nothing to offer, on these facts."""

    reason: str


@dataclass(frozen=True)
class Choice:
    """One algorithm with everything its recipe takes, what it costs, and what speaks for it.

    algorithm         the name of a recipe; `variant` tells several fillings of one apart
    arguments         what the recipe takes beside the budget, n and the adjacency
    rounds            steps to run: `minimize(..., steps=choice.rounds)`
    noise_multiplier  of the gradient's release, relative to the clip; a selection's epsilon a round; None: not private
    noise_norm        l2 norm of the noise in one update of the mean gradient (a selection: noise in one score)
    margin_noise      accumulated noise s.d. in the margin of a row of norm 1, at most; None where none is added
    dims, bytes       numbers of a gradient that leave the data in a round; bytes in the whole run
    memory, seconds   estimates: bytes beside the data, seconds on one core
    evidence, why     the theorem or measurement, and the rule that placed it
    research          no case is known in which this is the best choice
    shortfall         points of accuracy lost against the best method where both were measured; None: never measured
    of                the algorithm itself
    """

    algorithm: str
    variant: str
    arguments: Mapping[str, Any]
    rounds: int
    noise_multiplier: float | None
    noise_norm: float | None
    margin_noise: float | None
    dims: int
    bytes: int
    memory: int
    seconds: float
    batch_size: int | None
    passes: float
    evidence: str
    why: str = ""
    research: bool = False
    shortfall: float | None = None
    epsilon: float = math.inf
    delta: float | None = None
    adjacency: str = "add-remove"
    of: Algorithm | None = field(default=None, repr=False, compare=False)

    @property
    def name(self) -> str:
        """Algorithm and variant."""
        return f"{self.algorithm} ({self.variant})" if self.variant else self.algorithm

    @property
    def private(self) -> bool:
        """Whether it runs under a budget."""
        return self.epsilon != math.inf

    @property
    def direct(self) -> bool:
        """Whether it takes gradients as they are (see `Algorithm`)."""
        return self.of is not None and self.of.direct

    def recipe(self, *, n: int | str = "exact", public: Any = None, constraint: Any = None, **overrides: Any) -> Recipe:
        """The recipe, ready for `minimize(objective, recipe, constraint, steps=choice.rounds)`.

        n           "exact", or a public estimate of the number of records
        public      public rows X or (X, y), where the algorithm learns directions from them
        constraint  the set, only to refuse early what cannot run over it
        overrides   arguments in place of the planned ones; None leaves the planned one
        """
        assert self.of is not None
        arguments = dict(self.arguments) | {key: value for key, value in overrides.items() if value is not None}
        if "data" in self.of.parameters:
            arguments["data"] = _examples(public)
        for operation in self.of.needs if constraint is not None else ():
            able = hasattr(constraint, operation) and constraint.can(operation)
            validate.check(
                able, "constraint", constraint, f"give a set with an {operation}, which {self.algorithm} needs"
            )
        if self.private:
            budget = {"epsilon": self.epsilon, "delta": self.delta, "n": n, "adjacency": self.adjacency}
            arguments |= {name: value for name, value in budget.items() if self.of.takes(name)}
        return self.of(**arguments)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        values = {member.name: getattr(self, member.name) for member in fields(self) if member.name != "of"}
        values |= {"name": self.name, "arguments": _listed(dict(self.arguments))}
        return {**values, "epsilon": self.epsilon if self.private else None}


def _listed(value: Any) -> Any:
    """Tuples and arrays as lists."""
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_listed(item) for item in value] if isinstance(value, (list, tuple)) else value


def _examples(public: Any) -> tuple[Any, Any]:
    """Public rows with labels; with one output any label gives the same directions."""
    validate.check(public is not None, "public", None, "give the public rows, X or (X, y): directions come from them")
    if isinstance(public, tuple):
        return public
    X = as_matrix("public", public)
    return X, np.ones(X.shape[0])
