"""Fit a private estimator to Dask collections (the extra `dask`).

    model = isthmus.distributed.dask.fit(PrivateClassifier(epsilon=1.0, classes=[0, 1]), X, y, client=client)

Partitions stay on the workers that have them; every worker that has some is a rank.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING
from urllib.parse import urlparse

import numpy as np

from isthmus.base import validate
from isthmus.distributed.parts import SECONDS, E, RankFit, _free_address, only

if TYPE_CHECKING:
    from dask.array import Array
    from dask.dataframe import DataFrame
    from distributed import Client, Future

    Collection = Array | DataFrame


def fit(
    estimator: E,
    X: Collection,
    y: Collection,
    *,
    client: Client | None = None,
    sample_weight: Collection | None = None,
    seconds: float = SECONDS,
) -> E:
    """The estimator, fitted to all rows of a Dask array or DataFrame: private as if one process had them.

    X, y, sample_weight   collections with the same partitions along the rows
    client                of the cluster; None is the default one.  Its workers must be processes
    seconds               how long a worker waits for the others

    The ledger and the checkpoint of the estimator, where it has them, are files on the first worker.
    """
    import dask.array
    import distributed

    ranks = RankFit(estimator, seconds)
    client = client or distributed.default_client()
    columns, pieces_of = [], defaultdict(list)  # blocks of rows as futures, by the worker that has them
    for collection in (X, y, sample_weight):
        if collection is None:
            continue
        if isinstance(collection, dask.array.Array) and collection.ndim == 2:
            collection = collection.rechunk({1: -1})
        columns.append(client.compute(list(np.ravel(collection.to_delayed()))))
    lengths = {len(column) for column in columns}
    validate.check(len(lengths) == 1, "y", sorted(lengths), "give X and y with the same number of partitions")
    distributed.wait([future for column in columns for future in column])
    where = client.who_has(columns[0])
    for parts in zip(*columns, strict=True):  # those of one block are brought together
        pieces_of[sorted(where[parts[0].key])[0]].append(list(parts))
    places = list(pieces_of)

    def on(place: str, function: Callable[..., object], *arguments: object) -> Future:
        return client.submit(function, *arguments, workers=[place], pure=False, allow_other_workers=False)

    processes = client.gather([on(place, lambda: (socket.gethostname(), os.getpid())) for place in places])
    remedy = "give a cluster of processes: LocalCluster(processes=True)"
    validate.check(len(set(processes)) == len(places), "client", "workers that are threads", remedy)
    with distributed.MultiLock(names=places, client=client):  # all ranks must run at once
        address = on(places[0], _free_address, urlparse(places[0]).hostname).result()
        meeting = [(address, rank, len(places)) for rank in range(len(places))]
        tasks = [on(at, _rank, ranks, pieces_of[at], *who) for at, who in zip(places, meeting, strict=True)]
        return only(client.gather(tasks))


def _rank(ranks: RankFit, pieces: list[list[object]], address: str, rank: int, size: int) -> bytes | None:
    """The fit of one worker, with the blocks of rows that it has."""
    return ranks.on_rows(lambda: tuple(map(_joined, zip(*pieces, strict=True))), address, rank, size)


def _joined(blocks: Sequence[object]) -> object:
    """Blocks of rows one after the other, in the kind that they are."""
    if hasattr(blocks[0], "iloc"):
        import pandas

        return pandas.concat(blocks)
    return np.concatenate([np.asarray(block) for block in blocks])
