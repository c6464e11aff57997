"""Arguments by their names: a letter of the papers has one name here, and one name has one range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from isthmus.base import validate

Check = Callable[..., None]

_RANGES: dict[Check, str] = {
    validate.positive: "accuracy batch beta bound code_bound constant curvature diameter epsilon gap gradient_bound "
    "lipschitz margin radius scale slope smoothness step strong_convexity threshold total width",
    validate.non_negative: "between bias chi complexity deviation level noise optimisation power projection residual "
    "ridge sigma stability",
    validate.positive_int: "a clients d dimension every inner k m n offset p points rank rounds steps vertices",
    validate.open_unit: "delta failure",
}

_OF: dict[str, Check] = {name: check for check, names in _RANGES.items() for name in names.split()}


def check_arguments(arguments: Mapping[str, Any], **other: Check | None) -> None:
    """Check the arguments of a function, its `locals()`: each lies in the range that its name has.

    other  names that have another range in this function, or (None) are checked by it

    >>> check_arguments({"accuracy": 0.5, "rounds": 0})
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: rounds=0 is not allowed: give a whole number of at least 1
    >>> check_arguments({"noise": 0.0}), check_arguments({"noise": 0.0, "scale": None}, scale=None)
    (None, None)
    """
    for name, value in arguments.items():
        check = other[name] if name in other else _OF.get(name)
        if check is not None:
            check(**{name: value})


def log_inverse(epsilon: float, delta: float) -> float:
    """log(1/delta) of a budget (epsilon, delta).

    >>> log_inverse(1.0, 1.0)
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: delta=1.0 is not allowed: give a number strictly between 0 and 1
    """
    check_arguments(locals())
    return math.log(1 / delta)


def log_over_root(rounds: int) -> float:
    """log T / sqrt(T), for T >= 2: at T = 1 a bound of this form would be 0.

    >>> log_over_root(4) == math.log(4) / 2
    True
    """
    validate.positive_int(rounds=rounds)
    validate.check(rounds >= 2, "rounds", rounds, "give at least 2: the bound has a factor log T")
    return math.log(rounds) / math.sqrt(rounds)


def harmonic(k: int) -> float:
    """H_k = 1 + 1/2 + ... + 1/k.

    >>> harmonic(4)
    2.0833333333333335
    """
    return math.fsum(1 / i for i in range(1, k + 1))


def check_sparsity(d: int, k: int) -> None:
    """1 <= k <= d: of d numbers or directions, k are kept.

    >>> check_sparsity(4, 4)
    """
    check_arguments(locals())
    validate.at_most(d, "d", k=k)
