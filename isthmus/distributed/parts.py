"""What a cluster engine calls on every rank: join the others, and fit one estimator to the rows of all of them.

An engine (Spark, Dask, Ray, a batch system) places the rows, starts one process a rank, and tells each where rank 0
listens.  The ranks do the rest:

    with joined("tcp://10.0.0.5:29500", rank, size):
        model = fit_part(estimator, lambda: read_my_rows())

Every rank returns the same fitted model; the engine keeps that of rank 0.

What `isthmus.distributed.spark`, `.dask` and `.ray` share: the engine places rows and starts ranks, gloo adds.

The engine is asked for two things only: rows that stay where they are, and one process a rank that runs at the same
time as the others.  From then on the ranks talk to each other, a round costs one reduction of a few numbers, and the
engine is not asked again before the model is there.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from isthmus.base import validate
from isthmus.core.group import Group

Part = tuple[Any, ...] | Callable[[], tuple[Any, ...]]


@contextmanager
def joined(address: str, rank: int, size: int, *, seconds: float = 600.0, backend: str = "gloo") -> Iterator[None]:
    """The default process group of `size` ranks, for as long as the block lasts.

    address   where the ranks meet: "tcp://host:port" of a free port on rank 0's machine, "file:///shared/new-file", or
              "env://" under torchrun.  Whoever can reach it can take part: use a network that you trust
    seconds   how long a rank waits for the others before it fails
    """
    schemes = ("tcp://", "file://", "env://")
    validate.check(str(address).startswith(schemes), "address", address, f"begin it with one of {list(schemes)}")
    validate.positive_int(size=size)
    validate.non_negative_int(rank=rank)
    validate.check(rank < size, "rank", rank, f"number the ranks from 0 to {size - 1}")
    validate.positive(seconds=seconds)
    free = not dist.is_initialized()
    validate.check(free, "address", address, "give group=True: this process has a default process group already")
    dist.init_process_group(
        backend, init_method=address, rank=rank, world_size=size, timeout=timedelta(seconds=seconds)
    )
    try:
        yield
    finally:
        dist.destroy_process_group()


def fit_part(estimator: Any, part: Part, *, group: Any = True) -> Any:
    """Fit one estimator to the rows of all ranks: every rank calls this with its own rows.

    estimator   a `PrivateClassifier` or `PrivateRegressor` with the same parameters on every rank (a `ledger` and a
                `checkpoint` are used on rank 0 only), or a scikit-learn `Pipeline` that ends in one and whose other
                steps take nothing from the rows
    part        (X, y) or (X, y, sample_weight) of this rank, perhaps of no rows; or a function that reads and returns
                them.  That no record is on two ranks is the caller's to ensure
    group       True is the default process group

    The fitted estimator is equal to the bit on all ranks, and private as if one process had all the rows.  An error on
    any rank, while it reads its rows too, is an error on every rank: nobody waits for one that will not come.
    """
    fitting = hasattr(estimator, "fit")
    validate.check(fitting, "estimator", estimator, "give a PrivateClassifier, a PrivateRegressor or a Pipeline of one")
    crew = Group.of(group)
    validate.check(group not in (None, False), "group", group, "give a process group, or True for the default one")
    with crew.joined("fit"):
        X, y, *rest = part() if callable(part) else part
        steps = getattr(estimator, "steps", None)
        last = f"{steps[-1][0]}__" if steps else ""
        more = {f"{last}sample_weight": rest[0]} if rest and rest[0] is not None else {}
        return estimator.fit(X, y, **{f"{last}group": group}, **more)


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
