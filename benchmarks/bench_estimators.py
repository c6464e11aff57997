"""A private fit beside scikit-learn's SGDClassifier, the same number of passes, in one run.

Dense: n = 100,000, d = 1000 (float64, 800 MB); sparse: IMDB, 25,000 x 10,000 CSR, where ISTHMUS_DATA is set.  Time is
the median of `--repeat` fits, alternating; memory is what the resident set grew by during a fit at its highest.
"""

from __future__ import annotations

import argparse
import os
import statistics
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import SGDClassifier

from isthmus import PrivateClassifier, datasets


class Peak:
    """The largest resident set, in bytes above where it stood, while it is open."""

    def __enter__(self) -> Peak:
        self.start, self.most, self.open = resident(), 0, True
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.open = False
        self.thread.join()

    def _watch(self) -> None:
        while self.open:
            self.most = max(self.most, resident() - self.start)
            time.sleep(0.005)


def resident() -> int:
    """Bytes in memory, of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def dense(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Two classes, rows of norm near 1."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    X /= np.sqrt(d)
    return X, (X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n) > 0).astype(int)


def compare(name: str, X: Any, y: Any, passes: int, repeat: int) -> None:
    """Fit both, alternating, and print the ratio."""
    peers = {
        "SGDClassifier": lambda: SGDClassifier(loss="log_loss", max_iter=passes, tol=None, random_state=0),
        "PrivateClassifier": lambda: PrivateClassifier(epsilon=1.0, classes=[0, 1], data_norm=1.5, max_iter=passes),
    }
    seconds: dict[str, list[float]] = {each: [] for each in peers}
    peak: dict[str, int] = dict.fromkeys(peers, 0)
    scores, picks = {}, {}
    for _ in range(repeat):
        for each, make in peers.items():
            with Peak() as memory:
                began = time.perf_counter()
                model = make().fit(X, y)
                seconds[each].append(time.perf_counter() - began)
            peak[each] = max(peak[each], memory.most)
            scores[each] = model.score(X[:20000], y[:20000])
            picks[each] = getattr(getattr(model, "choice_", None), "name", "")
    size = (X.data.nbytes if hasattr(X, "indptr") else X.nbytes) / 2**20
    ratio = statistics.median(seconds["PrivateClassifier"]) / statistics.median(seconds["SGDClassifier"])
    print(f"\n{name}: {X.shape[0]:,} x {X.shape[1]:,}, {size:.0f} MB of numbers, {passes} passes, median of {repeat}")
    for each in peers:
        line = f"{statistics.median(seconds[each]):9.2f} s{peak[each] / 2**20:10.0f} MB{scores[each]:9.3f}"
        print(f"  {each:20}{line}  {picks[each]}")
    print(f"  ratio {ratio:.2f}")


def main() -> None:
    """Run both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--passes", type=int, default=100)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, default=100_000)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    if datasets.available("imdb"):
        data = datasets.load("imdb")
        compare("IMDB, CSR", data.x_train.astype(np.float64), data.y_train, args.passes, args.repeat)
    compare("dense", *dense(args.rows, 1000), args.passes, args.repeat)


if __name__ == "__main__":
    main()
