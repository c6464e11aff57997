"""Random blocks of coordinates: the quantities behind DP-SkGD (paper 003).

Paper 003 is Maranjyan, Sadiev and Richtarik, "Differentially private random block coordinate descent".  Everything here
is arithmetic on constants.  They must be public: bounds of columns and rows that hold for every record there could be.
Taken from the data, column bounds and the probabilities made of them leak.  `noise` is Sigma_S and `radius` R_{M P^-1}.

A general smoothness matrix is what section 5 leaves open: f(w + h) <= f(w) + <grad f(w), h> + h'Mh / 2 with symmetric
M >= 0.  Steps stay on drawn coordinates and Gamma = P V^-1 stays diagonal, so that sensitivity and privacy analysis of
Theorem 4.1 do not change; M only says how long the steps 1 / v_j may be.  With Pi_jk = Prob(j, k in S) the mean of
I_S M I_S is the entrywise product Pi o M, and

    Pi o M <= P V   gives E f(w - Gamma C g) <= f(w) - ||grad f||^2_{P V^-1} / 2 + noise: Lemma E.3 with V for M

`expected_smoothness` is such a V (1 / v_j = 1 / M_jj on single coordinates).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.theory.schedules import check_arguments, log_inverse, round_up

Vector = Sequence[float] | np.ndarray

Blocks = Sequence[Sequence[int]]

SAMPLINGS = ("full", "single", "block", "nice")


# ---------------------------------------------------------------- which coordinates


def importance_probabilities(smoothness: Vector, blocks: Blocks | None = None) -> np.ndarray:
    """q_i = max_{j in A_i} M_j / sum over blocks, of each block: section 4.2.1, paper 003.

    blocks  a partition of the coordinates; None is singletons, q_j = M_j / Tr(M).  Blocks may overlap: p_j is no less
            than the q_i of any block of j, and M P^-1 <= I sum_i max_{j in A_i} M_j stays true

    >>> importance_probabilities([1.0, 3.0, 4.0], [[0, 1], [2]])
    array([0.42857143, 0.57142857])
    """
    smooth = _positive("smoothness", smoothness)
    parts = cover([[j] for j in range(smooth.size)] if blocks is None else blocks, smooth.size)
    largest = np.array([smooth[block].max() for block in parts])
    return np.asarray(largest / largest.sum())


def sampling_probabilities(
    sampling: str, d: int, *, blocks: Blocks | None = None, chances: Vector | None = None, tau: int | None = None
) -> np.ndarray:
    """p_j = Prob(j in S) of each coordinate: sections 3.2, 3.4 and 4.2.1, paper 003.

        full    1                   single  q_j, or 1/d
        nice    tau / d             block   the sum of q_i over the blocks that hold j, each 1/b by default

    chances  the q_i of single coordinates or blocks, uniform by default (`importance_probabilities`)

    >>> sampling_probabilities("block", 3, blocks=[[0, 1], [2]], chances=[0.25, 0.75])
    array([0.25, 0.25, 0.75])
    >>> sampling_probabilities("nice", 4, tau=1), sampling_probabilities("full", 2)
    (array([0.25, 0.25, 0.25, 0.25]), array([1., 1.]))
    """
    validate.one_of(SAMPLINGS, sampling=sampling)
    validate.positive_int(d=d)
    if sampling == "full":
        return np.ones(d)
    if sampling == "nice":
        return np.full(d, check_subset_size(tau, d) / d)
    validate.check(sampling == "single" or blocks is not None, "blocks", blocks, "give the blocks")
    parts = cover([[j] for j in range(d)] if sampling == "single" else blocks, d)
    q = law_of(chances, len(parts))
    p = np.zeros(d)
    for block, chance in zip(parts, q, strict=True):
        p[block] += chance
    return p


def smoothness_ratios(smoothness: Vector, probabilities: Vector | None = None) -> np.ndarray:
    """M_j / p_j, the inverse of the step Gamma = P M^-1 of each coordinate: Theorem 4.2, paper 003.

    >>> smoothness_ratios([1.0, 4.0], [0.5, 1.0])
    array([2., 4.])
    """
    smooth = _positive("smoothness", smoothness)
    p = np.ones_like(smooth) if probabilities is None else _positive("probabilities", probabilities)
    validate.check(p.shape == smooth.shape, "probabilities.shape", p.shape, f"give shape {smooth.shape}")
    validate.check(bool((p <= 1 + 1e-12).all()), "probabilities", p, "give numbers above 0 and at most 1")
    return np.asarray(smooth / p)


# ---------------------------------------------------------------- checks


def _positive(name: str, values: Vector) -> np.ndarray:
    array = np.asarray(values, dtype=float)
    validate.check(array.ndim == 1 and array.size > 0, f"{name}.shape", array.shape, "give a vector, of one dimension")
    validate.check(bool((np.isfinite(array) & (array > 0)).all()), name, values, "give finite numbers above 0")
    return array


def law_of(chances: Vector | None, count: int) -> np.ndarray:
    """The probabilities of `count` subsets, uniform by default."""
    if chances is None:
        return np.full(count, 1 / count)
    q = _positive("chances", chances)
    validate.check(q.size == count, "chances", chances, f"give {count}, one a block")
    validate.check(abs(q.sum() - 1) < 1e-9, "chances", chances, "give probabilities that add up to 1")
    return q


def check_subset_size(tau: int | None, d: int) -> int:
    """tau, where it is the size of a subset of 0..d-1."""
    validate.check(tau is not None, "tau", tau, "give the size of the random subset")
    size = tau or 0
    validate.positive_int(tau=size)
    validate.at_most(d, "d", tau=size)
    return size


def _subsets(blocks: Blocks | None, d: int) -> list[list[int]]:
    every = [list(range(d))] if blocks is None else [[int(j) for j in block] for block in blocks]
    good = all(block and len(set(block)) == len(block) and 0 <= min(block) <= max(block) < d for block in every)
    validate.check(bool(every) and good, "blocks", blocks, f"give non-empty sets of different numbers in 0..{d - 1}")
    return every


def cover(blocks: Blocks | None, d: int) -> list[list[int]]:
    """Subsets of 0..d-1 that together hold every coordinate (Assumption 3.1); None is one of all."""
    every = _subsets(blocks, d)
    missing = d - len({j for block in every for j in block})
    remedy = f"give sets that hold every coordinate (Assumption 3.1): {missing} are never drawn"
    validate.check(missing == 0, "blocks", blocks, remedy)
    return every


def expected_smoothness(
    matrix: Any, blocks: Blocks | None = None, chances: Vector | None = None, *, tau: int | None = None
) -> np.ndarray:
    """v_1..v_d with Pi o M <= P Diag(v), the steps 1 / v_j that a law over subsets allows: for Lemma E.3, paper 003.

        a law     v_j = M_jj E[lambda_S | j in S],  lambda_S the largest eigenvalue of the correlations of M on S
        tau-nice  v_j = M_jj (1 + (tau - 1)/(d - 1) (lambda_[d] - 1))

    From I_S M I_S <= lambda_S I_S Diag(M), in the mean over S.  Single coordinates have v_j = M_jj, whatever the rest
    of M; all coordinates at once have a majorant of M.

    blocks   the subsets, which may overlap; None is single coordinates
    chances  their probabilities, uniform by default
    tau      the size of a uniformly random subset, in place of blocks

    >>> M = [[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 2.0]]
    >>> expected_smoothness(M), expected_smoothness(M, [[0, 1], [1, 2]]), expected_smoothness(M, tau=3)
    (array([1., 1., 2.]), array([1.5 , 1.25, 2.  ]), array([1.5, 1.5, 3. ]))
    """
    M = smoothness_matrix(matrix)
    d, diagonal = len(M), np.diagonal(M)
    if tau is not None:
        validate.check(blocks is None, "blocks", blocks, "give the subsets or tau, not both")
        share = (check_subset_size(tau, d) - 1) / max(1, d - 1)
        return np.asarray(diagonal * (1 + share * (_top(M, np.arange(d)) - 1)))
    subsets = cover([[j] for j in range(d)] if blocks is None else blocks, d)
    q = law_of(chances, len(subsets))
    drawn, weighted = np.zeros(d), np.zeros(d)
    for subset, chance in zip(subsets, q, strict=True):
        drawn[subset] += chance
        weighted[subset] += chance * _top(M, np.asarray(subset))
    return np.asarray(diagonal * weighted / drawn)


def smoothness_matrix(matrix: Any) -> np.ndarray:
    """A symmetric matrix without negative eigenvalues and with a positive diagonal, or a refusal that says why.

    >>> smoothness_matrix([[2.0, 1.0], [1.0, 2.0]]).shape
    (2, 2)
    """
    M = np.asarray(matrix, dtype=float)
    validate.check(M.ndim == 2 and M.shape[0] == M.shape[1] > 0, "smoothness.shape", M.shape, "give a d x d matrix")
    validate.check(bool(np.isfinite(M).all()), "smoothness", "a matrix", "give finite numbers")
    scale, least = float(np.abs(M).max()), float(np.diagonal(M).min())
    same = bool((np.abs(M - M.T) <= 1e-10 * scale).all())
    validate.check(same, "smoothness", "a matrix that is not symmetric", "give (M + M') / 2: only that part counts")
    validate.check(least > 0, "smoothness", f"a diagonal entry {least:g}", "give entries above 0")
    least = float(np.linalg.eigvalsh(M)[0])
    remedy = "give M >= 0, as a bound of Hessians of convex losses is"
    validate.check(least >= -1e-10 * scale, "smoothness", f"an eigenvalue {least:g}", remedy)
    return np.asarray((M + M.T) / 2)


def _top(M: np.ndarray, subset: np.ndarray) -> float:
    """The largest eigenvalue of the correlations of M on a subset, rounded up."""
    if len(subset) == 1:
        return 1.0
    root = np.sqrt(np.diagonal(M)[subset])
    part = M[np.ix_(subset, subset)] / np.outer(root, root)
    return max(1.0, float(np.linalg.eigvalsh(part)[-1])) * (1 + 2.0**-48)


@dataclass(frozen=True)
class Loops:
    """How long DP-SkGD runs: `outer` = T loops of `inner` = K steps; each loop starts at the last one's average.

    >>> Loops(inner=10, outer=3).steps
    30
    """

    inner: int
    outer: int = 1

    @property
    def steps(self) -> int:
        """K T, the number of releases."""
        return self.inner * self.outer


# ---------------------------------------------------------------- Theorem 4.2


def convex_block_loops(n: int, *, noise: float, radius: float, epsilon: float, delta: float) -> Loops:
    """T = 1 and K = n epsilon R / (Sigma_S sqrt(log(1/delta))): Theorem 4.2, convex case, paper 003.  K rounded up.

    The K that minimises the proof's bound is 1/sqrt(12) of it: the constant is then 6.9 instead of 13.

    >>> convex_block_loops(100, noise=2.0, radius=3.0, epsilon=0.5, delta=math.exp(-4))
    Loops(inner=38, outer=1)
    """
    _check(n, noise, radius)
    log = log_inverse(epsilon, delta)
    return Loops(max(1, round_up(n * epsilon * radius / (noise * math.sqrt(log)))))


def strongly_convex_block_loops(
    n: int,
    *,
    smoothness: Vector,
    probabilities: Vector,
    strong_convexity: float,
    noise: float,
    gap: float,
    epsilon: float,
    delta: float,
) -> Loops:
    """K = 2 (1 + c) and T = log2(gap n^2 epsilon^2 / ((1 + c) Sigma_S^2 log(1/delta))): Theorem 4.2, paper 003.

    c = max_j (M_j / p_j) / mu.  The theorem prints K = 2 (1 + 1 / (mu max_j M_j / p_j)), with which a loop need not
    halve the gap; Appendix E.2 has this form.  Both rounded up, T at least 1.  mu is strong convexity in l2 (the
    proof's; Assumption 3.5 has ||.||_M), and `gap` a public bound on f(w0) - f*.

    >>> problem = {"smoothness": [1.0, 2.0], "probabilities": [0.5, 0.5], "strong_convexity": 1.0}
    >>> strongly_convex_block_loops(80, noise=1.0, gap=1.0, epsilon=1.0, delta=math.exp(-1), **problem)
    Loops(inner=10, outer=11)
    """
    _check(n, noise, 1.0)
    validate.positive(gap=gap)
    factor = 1 + _condition(smoothness, probabilities, strong_convexity)
    level = factor * noise**2 * log_inverse(epsilon, delta) / (n * epsilon) ** 2
    return Loops(round_up(2 * factor), max(1, round_up(math.log2(gap / level))) if gap > level else 1)


def _condition(smoothness: Vector, probabilities: Vector, strong_convexity: float) -> float:
    validate.positive(strong_convexity=strong_convexity)
    return float(smoothness_ratios(smoothness, probabilities).max()) / strong_convexity


def _check(n: int, noise: float, radius: float) -> None:
    check_arguments(locals(), noise=validate.positive)
