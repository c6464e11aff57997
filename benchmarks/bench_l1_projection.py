"""Time of the l1-ball projection against the NumPy sort method, in one process.

    python benchmarks/bench_l1_projection.py [threads]

Prints the median milliseconds of both, their ratio and the largest difference of the two points.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from isthmus.geometry.sets import L1Ball


def sort_projection(x: np.ndarray, radius: float) -> np.ndarray:
    """The O(d log d) method: sort |x| decreasingly, find the last entry above the running threshold."""
    magnitude = np.abs(x)
    if magnitude.sum() <= radius:
        return x.copy()
    u = np.sort(magnitude)[::-1]
    excess = np.cumsum(u) - radius
    last = np.nonzero(u * np.arange(1, len(u) + 1) > excess)[0][-1]
    return np.sign(x) * np.maximum(magnitude - excess[last] / (last + 1), 0)


def median_ms(call: Callable[[], object], repeats: int) -> float:
    """The median wall-clock time of `call`, after two calls to warm up."""
    times = []
    for _ in range(repeats + 2):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return float(np.median(times[2:])) * 1e3


def row(d: int, dtype: torch.dtype, fraction: float | None, radius: float) -> str:
    """One line of the table."""
    x = torch.randn(d, dtype=dtype, generator=torch.Generator().manual_seed(0))
    if fraction is not None:
        radius = fraction * float(x.abs().sum())
    array, ball, repeats = x.numpy(), L1Ball(radius), 9 if d >= 10**6 else 31
    slow = median_ms(lambda: sort_projection(array, radius), repeats)
    fast = median_ms(lambda: ball.project(x), repeats)
    difference = np.abs(sort_projection(array.astype(float), radius) - ball.project(x).numpy()).max()
    name = f"{fraction} |x|_1" if fraction else f"{radius:g}"
    kind = str(dtype).removeprefix("torch.")
    return f"{d:>8} {kind:>8} {name:>10} {slow:>9.3f} {fast:>9.3f} {slow / fast:>7.1f}x {difference:>9.1e}"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
    print(f"{'d':>8} {'dtype':>8} {'radius':>10} {'sort ms':>9} {'ours ms':>9} {'ratio':>8} {'max diff':>9}")
    for dtype in (torch.float64, torch.float32):
        for d in (10**4, 10**5, 10**6):
            for fraction, radius in ((None, 1.0), (None, 100.0), (0.1, 0.0)):
                print(row(d, dtype, fraction, radius))


if __name__ == "__main__":
    main()
