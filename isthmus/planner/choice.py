"""What the planner returns: ranked choices, each a complete filling of one algorithm."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from isthmus import algorithms
from isthmus.base import validate
from isthmus.base.matrix import as_matrix
from isthmus.planner.facts import Facts
from isthmus.round.minimize import Recipe


@dataclass(frozen=True)
class Choice:
    """One algorithm with everything its recipe takes, what it costs, and what speaks for it.

    algorithm         a name of `isthmus.algorithms`; `variant` tells several fillings of one apart
    arguments         what the recipe takes beside the budget, n and the adjacency
    rounds            steps to run: `minimize(..., steps=choice.rounds)`
    noise_multiplier  of the gradient's release, relative to the clip; a selection's epsilon a round; None: not private
    noise_norm        l2 norm of the noise in one update of the mean gradient (a selection: noise in one score)
    margin_noise      accumulated noise s.d. in the margin of a row of norm 1, at most; None where none is added
    dims, bytes       numbers of a gradient that leave the data in a round; bytes in the whole run
    memory, seconds   estimates: bytes beside the data, seconds on one core
    evidence, why     the theorem or measurement, and the rule that placed it
    research          no case is known in which this is the best choice
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
    shortfall: float = 0.0
    epsilon: float = math.inf
    delta: float | None = None
    adjacency: str = "add-remove"

    @property
    def name(self) -> str:
        """Algorithm and variant."""
        return f"{self.algorithm} ({self.variant})" if self.variant else self.algorithm

    @property
    def private(self) -> bool:
        """Whether it runs under a budget."""
        return self.epsilon != math.inf

    def recipe(self, *, n: int | str = "exact", public: Any = None, constraint: Any = None, **overrides: Any) -> Recipe:
        """The recipe, ready for `minimize(objective, recipe, constraint, steps=choice.rounds)`.

        n           "exact", or a public estimate of the number of records
        public      public rows X or (X, y), where the algorithm learns directions from them
        constraint  the set, only to refuse early what cannot run over it
        overrides   arguments in place of the planned ones; None leaves the planned one
        """
        arguments = dict(self.arguments) | {key: value for key, value in overrides.items() if value is not None}
        if self.algorithm == "pdp_sgd":
            arguments["data"] = _examples(public)
        if self.algorithm in ("dp_fw", "comp_fw") and constraint is not None:
            able = hasattr(constraint, "lmo") and constraint.can("lmo")
            validate.check(able, "constraint", constraint, f"{self.algorithm} needs a set with an lmo")
        if self.private:
            arguments |= {"epsilon": self.epsilon, "delta": self.delta, "n": n, "adjacency": self.adjacency}
        return getattr(algorithms, self.algorithm)(**arguments)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        shown = {**asdict(_plain(self)), "name": self.name, "arguments": _listed(dict(self.arguments))}
        return {**shown, "epsilon": self.epsilon if self.private else None}


@dataclass(frozen=True)
class Plan:
    """Ranked choices (best first), those refused with their reasons, and remarks.

    >>> from isthmus.planner import plan
    >>> found = plan(n=30_000, d=100, epsilon=1.0)
    >>> found.best.algorithm, found.best is found.choices[0]
    ('dp_gd', True)
    """

    facts: Facts
    choices: tuple[Choice, ...]
    refused: Mapping[str, str]
    notes: tuple[str, ...] = ()
    energy: Mapping[str, Any] | None = field(default=None)

    @property
    def best(self) -> Choice:
        """The first choice; refused where every algorithm is."""
        reasons = "; ".join(f"{name}: {reason}" for name, reason in self.refused.items())
        validate.check(bool(self.choices), "algorithms", list(self.refused), f"none can run here ({reasons})")
        return self.choices[0]

    def choice(self, name: str) -> Choice:
        """The best choice of an algorithm, or the one of a full name such as "dp_gd (plain)"."""
        for choice in self.choices:
            if name in (choice.algorithm, choice.name):
                return choice
        reasons = [reason for key, reason in self.refused.items() if name in (key, key.split(" ")[0])]
        known = sorted({choice.algorithm for choice in self.choices})
        validate.refuse("algorithm", name, "; ".join(reasons) or f"choose one of {known}")

    def words(self) -> str:
        """The plan in plain sentences."""
        from isthmus.planner.words import words

        return words(self)

    def table(self) -> str:
        """The choices as a text table."""
        from isthmus.planner.words import table

        return table(self)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file or a report."""
        return {
            "facts": self.facts.to_dict(),
            "choices": [choice.to_dict() for choice in self.choices],
            "refused": dict(self.refused),
            "notes": list(self.notes),
            "energy": None if self.energy is None else dict(self.energy),
        }

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=1, sort_keys=True, allow_nan=False)


def _plain(choice: Choice) -> Choice:
    """With a mapping that can be copied."""
    from dataclasses import replace

    return replace(choice, arguments={})


def frozen(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """The choice's own copy of its arguments: a dict, so that fitted models can be pickled."""
    return dict(arguments)


def _listed(value: Any) -> Any:
    """Tuples and arrays as lists."""
    if isinstance(value, dict):
        return {key: _listed(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return [_listed(each) for each in value] if isinstance(value, (list, tuple)) else value


def _examples(public: Any) -> tuple[Any, Any]:
    """Public rows with labels; with one output any label gives the same directions."""
    validate.check(public is not None, "public", None, "give the public rows, X or (X, y): directions come from them")
    if isinstance(public, tuple):
        return public
    X = as_matrix("public", public)
    return X, np.ones(X.shape[0])
