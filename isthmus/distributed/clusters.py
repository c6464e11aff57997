"""What `isthmus.distributed.spark`, `.dask` and `.ray` share: the engine places rows and starts ranks, gloo adds.

The engine is asked for two things only: rows that stay where they are, and one process a rank that runs at the same
time as the others.  From then on the ranks talk to each other, a round costs one reduction of a few numbers, and the
engine is not asked again before the model is there.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Sequence
from typing import Any

from isthmus.base import validate
from isthmus.distributed.parts import fit_part, joined

SECONDS = 600.0
"""How long a rank waits for the others."""
Rows = Callable[[], tuple[Any, ...]]


def free_address(host: str) -> str:
    """A free port of this machine, where the ranks can meet: "tcp://host:port".

    >>> free_address("127.0.0.1").startswith("tcp://127.0.0.1:")
    True
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"tcp://{host}:{probe.getsockname()[1]}"


def fitted(estimator: Any, rows: Rows, address: str, rank: int, size: int, seconds: float = SECONDS) -> bytes | None:
    """What every rank runs: meet the others, fit together; rank 0 has the model, as pickled bytes for its engine.

    `rows` reads this rank's own: (X, y) or (X, y, sample_weight).
    """
    with joined(address, rank, size, seconds=seconds):
        model = fit_part(estimator, rows)
    return pickle.dumps(model) if rank == 0 else None


def taken_apart(frame: Any, target: str, weight: str | None = None) -> tuple[Any, ...]:
    """The features, the targets and the weights of a pandas frame.

    >>> import pandas
    >>> X, y, weights = taken_apart(pandas.DataFrame({"a": [1.0], "y": [2.0]}), "y")
    >>> list(X), y.tolist(), weights
    (['a'], [2.0], None)
    """
    named = [name for name in (target, weight) if name is not None]
    return frame.drop(columns=named), frame[target].to_numpy(), None if weight is None else frame[weight].to_numpy()


def check_columns(names: Sequence[str], target: str, weight: str | None) -> None:
    """Refuse names that the table does not have, before the engine does anything."""
    for argument, name in (("target", target), ("weight", weight)):
        is_column = name in names or (name is None and argument == "weight")
        validate.check(is_column, argument, name, f"name a column of the table, which has {list(names)[:20]}")


def check_estimator(estimator: Any) -> None:
    """Refuse what cannot be fitted on ranks."""
    fits = hasattr(estimator, "fit") and hasattr(estimator, "get_params")
    validate.check(fits, "estimator", estimator, "give a PrivateClassifier, a PrivateRegressor or a Pipeline of one")


def only(models: Sequence[bytes | None]) -> Any:
    """The model, of what all ranks returned."""
    (trained,) = [model for model in models if model is not None]
    return pickle.loads(trained)
