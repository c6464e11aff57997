"""One private fit by this process, gloo ranks, Dask, Ray and Spark: the same model, and what a round costs.

The rows are placed once; seconds of a round are those of a fit with many rounds less one with few, so that starting the
engine, placing rows and planning do not count.  Beside them the difference of the coefficients to those of one
process, relative (asked: at most 1e-9), and what a round takes more (asked: at most 10 ms).

    python lab/measurements/clusters.py [local gloo dask ray spark] [--rows 100000] [--columns 50] [--ranks 2]
        [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp

from isthmus import PrivateClassifier
from isthmus.distributed.parts import RankFit, only

FEW, MANY = 20, 120
Fit = Callable[[Any], Any]


def rows(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and labels."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, (X[:, :5].sum(1) + rng.standard_normal(n) > 0).astype(int)


def estimator(rounds: int) -> PrivateClassifier:
    """With noise that can be repeated: for comparisons only."""
    options: dict[str, Any] = {"classes": [0, 1], "bounds": (-6, 6), "scale": "none", "features": "linear"}
    return PrivateClassifier(epsilon=1.0, max_iter=rounds, noise_seed=1, random_state=0, **options)


def measured(fit: Fit) -> dict[str, Any]:
    """The coefficients of the long fit, and seconds of a round."""
    fit(estimator(2))
    took = {}
    for rounds in (FEW, MANY, FEW, MANY):
        began = time.perf_counter()
        model = fit(estimator(rounds))
        took[rounds] = min(took.get(rounds, np.inf), time.perf_counter() - began)
    return {"coef": model.coef_, "ms": 1000 * (took[MANY] - took[FEW]) / (MANY - FEW), "fit": took[FEW]}


def local(X: np.ndarray, y: np.ndarray, ranks: int) -> dict[str, Any]:
    """One process."""
    return measured(lambda model: model.fit(X, y))


def _gloo_rank(rank: int, ranks: int, folder: str, rounds: int) -> None:
    torch.set_num_threads(1)
    X, y = (np.load(Path(folder, f"{name}.npy"))[rank::ranks] for name in "Xy")
    began = time.perf_counter()
    model = RankFit(estimator(rounds)).on_rows(lambda: (X, y), f"file://{folder}/store{rounds}", rank, ranks)
    if rank == 0:
        Path(folder, "model").write_bytes(model or b"")
        Path(folder, "seconds").write_text(str(time.perf_counter() - began))


def gloo(X: np.ndarray, y: np.ndarray, ranks: int) -> dict[str, Any]:
    """Processes of torch: rows are there already."""
    took, best = {}, {}
    for turn in range(2):
        for rounds in (FEW, MANY):
            with tempfile.TemporaryDirectory() as folder:
                np.save(Path(folder, "X.npy"), X)
                np.save(Path(folder, "y.npy"), y)
                mp.spawn(_gloo_rank, args=(ranks, folder, rounds), nprocs=ranks)
                seconds = float(Path(folder, "seconds").read_text())
                best[rounds] = only([Path(folder, "model").read_bytes()])
            took[rounds] = min(took.get(rounds, np.inf), seconds) if turn else seconds
    return {"coef": best[MANY].coef_, "ms": 1000 * (took[MANY] - took[FEW]) / (MANY - FEW), "fit": took[FEW]}


def dask(X: np.ndarray, y: np.ndarray, ranks: int) -> dict[str, Any]:
    """A local cluster of processes."""
    import dask.array
    import distributed

    from isthmus.distributed import dask as ours

    here = {"processes": True, "n_workers": ranks, "threads_per_worker": 1, "dashboard_address": None}
    with distributed.LocalCluster(**here) as cluster, distributed.Client(cluster) as client:
        size = -(-len(X) // ranks)
        placed = client.persist([dask.array.from_array(X, (size, -1)), dask.array.from_array(y, size)])
        distributed.wait(placed)
        return measured(lambda model: ours.fit(model, *placed, client=client))


def frame(X: np.ndarray, y: np.ndarray) -> Any:
    import pandas

    return pandas.DataFrame({**{f"x{j}": X[:, j] for j in range(X.shape[1])}, "label": y})


def ray(X: np.ndarray, y: np.ndarray, ranks: int) -> dict[str, Any]:
    """A local Ray instance."""
    import ray

    from isthmus.distributed import ray as ours

    ray.init(num_cpus=ranks + 1, include_dashboard=False, log_to_driver=False)
    try:
        placed = ray.data.from_pandas(frame(X, y)).repartition(ranks).materialize()
        return measured(lambda model: ours.fit(model, placed, target="label", workers=ranks))
    finally:
        ray.shutdown()


def spark(X: np.ndarray, y: np.ndarray, ranks: int) -> dict[str, Any]:
    """Spark on this machine, from a Parquet file."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    from isthmus.distributed import spark as ours

    session = SparkSession.builder.master(f"local[{ranks}]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        with tempfile.TemporaryDirectory() as folder:
            frame(X, y).to_parquet(f"{folder}/rows.parquet", index=False)
            df = session.read.parquet(f"{folder}/rows.parquet").repartition(ranks).cache()
            df.count()
            return measured(lambda model: ours.fit(model, df, target="label", workers=ranks))
    finally:
        session.stop()


ENGINES = {"local": local, "gloo": gloo, "dask": dask, "ray": ray, "spark": spark}


def main() -> None:
    """All engines that are asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("engines", nargs="*", default=list(ENGINES))
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=50)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    X, y = rows(arguments.rows, arguments.columns)
    by_name: dict[str, Any] = {}
    for name in dict.fromkeys(["local", *arguments.engines]):
        measured = ENGINES[name](X, y, arguments.ranks)
        coef = np.asarray(measured.pop("coef"))
        base = coef if name == "local" else np.asarray(by_name["local"]["coef"])
        off = float(np.linalg.norm(coef - base) / np.linalg.norm(base))
        by_name[name] = {**measured, "difference": off, "coef": coef.tolist()}
        added = measured["ms"] - by_name["local"]["ms"]
        words = f"{measured['ms']:8.2f} ms a round ({added:+.2f})   difference {off:.1e}   fit of {FEW} rounds"
        print(f"{name:6s} {words} {measured['fit']:.2f} s", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(by_name, indent=2))


if __name__ == "__main__":
    main()
