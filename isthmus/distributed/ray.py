"""Fit a private estimator to a Ray dataset (the extra `ray`).

    model = isthmus.distributed.ray.fit(PrivateClassifier(epsilon=1.0, classes=[0, 1]), dataset, target="label")

Ray splits the dataset where its blocks are and starts one actor a rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from isthmus.base import validate
from isthmus.distributed.parts import SECONDS, E, RankFit, _free_address, only

if TYPE_CHECKING:
    from ray.data import Dataset


def fit(
    estimator: E,
    dataset: Dataset,
    *,
    target: str,
    weight: str | None = None,
    workers: int = 2,
    resources: dict[str, object] | None = None,
    seconds: float = SECONDS,
) -> E:
    """The estimator, fitted to all rows of a `ray.data.Dataset`: private as if one process had them.

    target     the column to predict; weight: a column of sample weights; the others are the features
    workers    how many ranks, which must all run at once
    resources  of each, as `ray.remote` takes them: {"num_cpus": 4}
    seconds    how long a rank waits for the others

    The ledger and the checkpoint of the estimator, where it has them, are files on the first worker's machine.
    """
    import ray

    fit = RankFit(estimator, seconds, target, weight).of_table(dataset.schema().names)
    validate.positive_int(workers=workers)
    actor: Any = ray.remote(**{"num_cpus": 1, **(resources or {})})(_Rank)
    ranks = [actor.remote() for _ in range(workers)]
    try:
        address = ray.get(ranks[0].address.remote())
        shards = dataset.split(workers, locality_hints=ranks)
        fits = [rank.fit.remote(fit, shards[k], address, k, workers) for k, rank in enumerate(ranks)]
        return only(ray.get(fits))
    finally:
        for rank in ranks:
            ray.kill(rank)


class _Rank:
    """One process of the fit."""

    def address(self) -> str:
        """Where rank 0 can be met."""
        import ray

        return _free_address(ray.util.get_node_ip_address())

    def fit(self, fit: RankFit, shard: Dataset, address: str, rank: int, size: int) -> bytes | None:
        """The model on rank 0, nothing on the others."""
        return fit.on_frame(shard.to_pandas(), address, rank, size)
