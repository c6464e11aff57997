"""Fit a private estimator to a Spark DataFrame (the extra `spark`, and Java 17 or later).

    model = isthmus.distributed.spark.fit(PrivateClassifier(epsilon=1.0, classes=[0, 1]), df, target="label")

One barrier job: Spark starts all tasks at once, each reads its partition as Arrow batches, and the tasks fit the model
among themselves.  A job per round would cost a second a round and more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from isthmus.base import validate
from isthmus.distributed.parts import SECONDS, E, RankFit, _free_address, only

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame


def fit(
    estimator: E,
    df: DataFrame,
    *,
    target: str,
    weight: str | None = None,
    workers: int | None = None,
    seconds: float = SECONDS,
) -> E:
    """The estimator, fitted to all rows of a DataFrame: private as if one process had them.

    target    the column to predict; weight: a column of sample weights; the others are the features
    workers   how many tasks, which must all run at once: the DataFrame is repartitioned where it has another number;
              None: as many partitions as it has
    seconds   how long a task waits for the others

    The ledger and the checkpoint of the estimator, where it has them, are files that the first task writes.
    """
    from pyspark.sql.pandas.types import to_arrow_schema

    ranks = RankFit(estimator, seconds, target, weight).of_table(df.columns)
    if workers is not None:
        validate.positive_int(workers=workers)
        if df.rdd.getNumPartitions() != workers:
            df = df.repartition(workers)
    size, schema = df.rdd.getNumPartitions(), to_arrow_schema(df.schema)

    def task(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
        import pyarrow
        from pyspark import BarrierTaskContext

        context = BarrierTaskContext.get()
        rank = context.partitionId()
        host = context.getTaskInfos()[rank].address.rsplit(":", 1)[0]
        address = context.allGather(_free_address(host))[0]
        there, table = list(batches), schema.empty_table()
        if there:
            table = pyarrow.Table.from_batches(there)
        model = ranks.on_frame(table.to_pandas(), address, rank, size)
        yield pyarrow.RecordBatch.from_pydict({"model": pyarrow.array([model], pyarrow.binary())})

    return only([row["model"] for row in df.mapInArrow(task, "model binary", barrier=True).collect()])
