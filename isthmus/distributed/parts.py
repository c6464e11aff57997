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
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from isthmus.base import validate
from isthmus.core.group import Group

if TYPE_CHECKING:
    import pandas

E = TypeVar("E")
"""An estimator: a `PrivateClassifier`, a `PrivateRegressor`, or a scikit-learn `Pipeline` that ends in one."""
Part = tuple[object, ...] | Callable[[], tuple[object, ...]]

SECONDS = 600.0
"""How long a rank waits for the others."""


@contextmanager
def joined(address: str, rank: int, size: int, *, seconds: float = SECONDS, backend: str = "gloo") -> Iterator[None]:
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


def fit_part(estimator: E, part: Part, *, group: Group | dist.ProcessGroup | bool | None = True) -> E:
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
    _check_estimator(estimator)
    validate.check(group not in (None, False), "group", group, "give a process group, or True for the default one")
    crew = Group.of(group)
    with crew.joined("fit"):
        if callable(part):
            part = part()
        X, y, *weights = part
        prefix = ""
        if isinstance(estimator, Pipeline):  # the arguments are for its last step
            prefix = f"{estimator.steps[-1][0]}__"
        options = {f"{prefix}sample_weight": weight for weight in weights if weight is not None}
        return estimator.fit(X, y, **{f"{prefix}group": group}, **options)  # type: ignore[attr-defined]


def _check_estimator(estimator: object) -> None:
    """Refuse what cannot be fitted on ranks, before an engine does anything."""
    remedy = "give a PrivateClassifier, a PrivateRegressor or a Pipeline of one"
    validate.check(isinstance(estimator, BaseEstimator), "estimator", estimator, remedy)


# ---------------------------------------------------------------- what the engines share


@dataclass(frozen=True)
class RankFit:
    """A fit by the ranks that an engine starts: what each of them runs, as a value that travels to it.

    seconds   how long a rank waits for the others
    target, weight   columns of a table, where the engine has one
    """

    estimator: object
    seconds: float = SECONDS
    target: str = ""
    weight: str | None = None

    def __post_init__(self) -> None:
        _check_estimator(self.estimator)

    def of_table(self, names: Sequence[str]) -> RankFit:
        """The same, once the table is known to have the columns."""
        for argument, name in (("target", self.target), ("weight", self.weight)):
            is_column = name in names or (name is None and argument == "weight")
            validate.check(is_column, argument, name, f"name a column of the table, which has {list(names)[:20]}")
        return self

    def on_rows(self, rows: Callable[[], tuple[object, ...]], address: str, rank: int, size: int) -> bytes | None:
        """Meet the others, fit together; rank 0 has the model, as pickled bytes for its engine.

        `rows` reads this rank's own: (X, y) or (X, y, sample_weight).
        """
        with joined(address, rank, size, seconds=self.seconds):
            model = fit_part(self.estimator, rows)
        if rank:
            return None
        return pickle.dumps(model)

    def on_frame(self, frame: pandas.DataFrame, address: str, rank: int, size: int) -> bytes | None:
        """The same, of a frame that has the columns."""
        named = [name for name in (self.target, self.weight) if name is not None]
        columns = [frame[name].to_numpy() for name in named]
        return self.on_rows(lambda: (frame.drop(columns=named), *columns), address, rank, size)


def _free_address(host: str) -> str:
    """A free port of this machine, where the ranks can meet: "tcp://host:port".

    >>> _free_address("127.0.0.1").startswith("tcp://127.0.0.1:")
    True
    """
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"tcp://{host}:{probe.getsockname()[1]}"


def only(models: Sequence[bytes | None]) -> Any:
    """The model, of what all ranks returned."""
    (trained,) = [model for model in models if model is not None]
    return pickle.loads(trained)
