"""Dask, Ray and Spark as they are: the engine places the rows, and the model is the one of one process."""

import os
import shutil
import sys
from typing import Any

import numpy as np
import pytest

from isthmus import InvalidInput, PrivateClassifier

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the engines are theirs
N, D = 400, 4
NAMES = [*(f"x{j}" for j in range(D)), "label"]


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, D))
    return X, (X[:, 0] + 0.3 * rng.standard_normal(N) > 0).astype(int)


def table() -> Any:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed: pip install -e '.[table]'")
    X, y = rows()
    return pandas.DataFrame({**{f"x{j}": X[:, j] for j in range(D)}, "label": y})


def estimator() -> PrivateClassifier:
    return PrivateClassifier(epsilon=1.0, classes=[0, 1], bounds=(-5, 5), max_iter=6, noise_seed=2, random_state=0)


def check(found: Any) -> None:
    """The model of one process that has all rows, and what it states."""
    alone = estimator().fit(*rows())
    np.testing.assert_allclose(found.coef_, alone.coef_, rtol=0, atol=1e-9 * float(np.abs(alone.coef_).max()))
    assert found.privacy_.nominal == alone.privacy_.nominal and found.privacy_.n == N


def test_dask() -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed: pip install -e '.[dask]'")
    import dask.array
    import dask.dataframe

    from isthmus.distributed import dask as ours

    X, y = rows()
    here = {"processes": True, "n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**here) as cluster, distributed.Client(cluster) as client:
        check(ours.fit(estimator(), dask.array.from_array(X, 100), dask.array.from_array(y, 100), client=client))
        frame = dask.dataframe.from_pandas(table(), npartitions=3)
        model = ours.fit(estimator(), frame.drop(columns="label"), frame["label"], client=client)
        check(model)
        assert list(model.feature_names_in_) == [f"x{j}" for j in range(D)]
        with pytest.raises(InvalidInput, match="same number of partitions"):
            ours.fit(estimator(), dask.array.from_array(X, 100), dask.array.from_array(y, 50), client=client)


def test_ray() -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: pip install -e '.[ray]'")
    pytest.importorskip("ray.data", reason="Ray Data is not installed: pip install -e '.[ray]'")
    from isthmus.distributed import ray as ours

    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False, ignore_reinit_error=True)
    try:
        data = ray.data.from_pandas(table()).repartition(4)
        check(ours.fit(estimator(), data, target="label"))
        with pytest.raises(InvalidInput, match="name a column of the table"):
            ours.fit(estimator(), data, target="none")
    finally:
        ray.shutdown()


def test_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyspark", reason="Spark is not installed: pip install -e '.[spark]'")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17 or later: apt install openjdk-17-jre-headless")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # workers need what this interpreter has
    from pyspark.sql import SparkSession

    from isthmus.distributed import spark as ours

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    try:
        X, y = rows()
        df = session.createDataFrame([(*x, int(label)) for x, label in zip(X.tolist(), y, strict=True)], NAMES)
        check(ours.fit(estimator(), df, target="label", workers=2))
        with pytest.raises(InvalidInput, match="name a column of the table"):
            ours.fit(estimator(), df, target="none")
    finally:
        session.stop()
