"""What a cluster engine calls on every rank: join the others, and fit one estimator to the rows of all of them.

An engine (Spark, Dask, Ray, a batch system) places the rows, starts one process a rank, and tells each where rank 0
listens.  The ranks do the rest:

    with joined("tcp://10.0.0.5:29500", rank, size):
        model = fit_part(estimator, lambda: read_my_rows())

Every rank returns the same fitted model; the engine keeps that of rank 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from isthmus.base import validate
from isthmus.estimators.rank_group import RankGroup

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
    crew = RankGroup.of(group)
    validate.check(crew.several, "group", group, "give a process group, or True for the default one")
    with crew.joined("fit"):
        X, y, *rest = part() if callable(part) else part
        steps = getattr(estimator, "steps", None)
        last = f"{steps[-1][0]}__" if steps else ""
        more = {f"{last}sample_weight": rest[0]} if rest and rest[0] is not None else {}
        return estimator.fit(X, y, **{f"{last}group": group}, **more)
