"""Fit a private estimator to Dask collections (the extra `dask`).

    model = isthmus.distributed.dask.fit(PrivateClassifier(epsilon=1.0, classes=[0, 1]), X, y, client=client)

Partitions stay on the workers that have them; every worker that has some is a rank.
"""

from __future__ import annotations

import os
import socket
from collections import defaultdict
from typing import Any
from urllib.parse import urlparse

import numpy as np

from isthmus.base import validate
from isthmus.distributed.parts import SECONDS, check_estimator, fitted, free_address, only


def fit(
    estimator: Any, X: Any, y: Any, *, client: Any = None, sample_weight: Any = None, seconds: float = SECONDS
) -> Any:
    """The estimator, fitted to all rows of a Dask array or DataFrame: private as if one process had them.

    X, y, sample_weight   collections with the same partitions along the rows
    client                of the cluster; None is the default one.  Its workers must be processes
    seconds               how long a worker waits for the others

    The ledger and the checkpoint of the estimator, where it has them, are files on the first worker.
    """
    import distributed

    check_estimator(estimator)
    client = distributed.default_client() if client is None else client
    pieces = _pieces(client, [collection for collection in (X, y, sample_weight) if collection is not None])
    pieces_of = defaultdict(list)
    for piece, worker in pieces:
        pieces_of[worker].append(piece)
    workers = list(pieces_of)
    ours = {"pure": False, "allow_other_workers": False}
    processes = client.gather([client.submit(_process, workers=[place], **ours) for place in workers])
    apart = len(set(processes)) == len(workers)
    validate.check(
        apart, "client", "workers that are threads", "give a cluster of processes: LocalCluster(processes=True)"
    )
    with distributed.MultiLock(names=workers, client=client):  # all ranks must run at once
        host = urlparse(workers[0]).hostname
        address = client.submit(free_address, host, workers=[workers[0]], **ours).result()
        tasks = [
            client.submit(
                _rank, estimator, pieces_of[place], address, rank, len(workers), seconds, workers=[place], **ours
            )
            for rank, place in enumerate(workers)
        ]
        return only(client.gather(tasks))


def _pieces(client: Any, collections: list[Any]) -> list[tuple[list[Any], str]]:
    """Blocks of rows as futures, and the worker that has each; those of one block are brought together."""
    import distributed

    columns = []
    for collection in collections:
        whole = (
            collection.rechunk({1: -1})
            if getattr(collection, "ndim", 1) == 2 and hasattr(collection, "rechunk")
            else collection
        )
        blocks = whole.to_delayed()
        columns.append(client.compute(list(blocks.ravel() if hasattr(blocks, "ravel") else blocks)))
    lengths = {len(column) for column in columns}
    validate.check(len(lengths) == 1, "y", sorted(lengths), "give X and y with the same number of partitions")
    distributed.wait([future for column in columns for future in column])
    where = client.who_has(columns[0])
    return [(list(parts), sorted(where[parts[0].key])[0]) for parts in zip(*columns, strict=True)]


def _process() -> tuple[str, int]:
    """Which process a worker is."""
    return socket.gethostname(), os.getpid()


def _rank(estimator: Any, pieces: list[list[Any]], address: str, rank: int, size: int, seconds: float) -> Any:
    """The fit of one worker, with the blocks of rows that it has."""
    return fitted(
        estimator,
        lambda: tuple(_joined(list(column)) for column in zip(*pieces, strict=True)),
        address,
        rank,
        size,
        seconds,
    )


def _joined(blocks: list[Any]) -> Any:
    """Blocks of rows one after the other, in the kind that they are."""
    if hasattr(blocks[0], "iloc"):
        import pandas

        return pandas.concat(blocks)
    return np.concatenate([np.asarray(block) for block in blocks])
