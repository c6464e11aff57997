"""DP-SkGD under a general smoothness matrix: what section 5 of paper 003 leaves open, with the theorem's constant.

f is smooth with a symmetric matrix M >= 0: f(w + h) <= f(w) + <grad f(w), h> + h'Mh / 2, its off-diagonal entries as
they are.  Steps stay on drawn coordinates and Gamma = P V^-1 stays diagonal, so that sensitivity and privacy analysis
of Theorem 4.1 do not change; M only says how long the steps 1 / v_j may be.  Directions beyond coordinates (Gamma with
entries off its diagonal) would mix coordinates that were not drawn: they have no sensitivity bound and are not offered.

With Pi_jk = Prob(j, k in S) the mean of I_S M I_S is the entrywise product Pi o M, and

    Pi o M <= P V   gives E f(w - Gamma C g) <= f(w) - ||grad f||^2_{P V^-1} / 2 + noise: Lemma E.3 with V for M
    M <= V          gives that for every law, and Theorem 4.2 as it is printed with V for M

`expected_smoothness` is a V of the first kind (1 / v_j = 1 / M_jj on single coordinates), `diagonal_majorant` one of
the second.  M must be public.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments, log_inverse
from isthmus.papers.paper_003_blocks import Blocks, Vector, check_subset_size, cover, law_of


def diagonal_majorant(matrix: Any) -> np.ndarray:
    """V_1..V_d with M <= Diag(V): the diagonal of M times the largest eigenvalue of its correlations.

    Or the absolute row sums, where they add up to less.  Assumption 3.6 of paper 003 holds for V.

    >>> diagonal_majorant([[1.0, 1.0], [1.0, 4.0]]), diagonal_majorant([[2.0, 0.0], [0.0, 3.0]])
    (array([2., 5.]), array([2., 3.]))
    """
    M = smoothness_matrix(matrix)
    scaled = np.diagonal(M) * _top(M, np.arange(len(M)))
    sums = np.abs(M).sum(1)
    return sums if sums.sum() < scaled.sum() else scaled


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


def matrix_block_bound(
    inner: int,
    *,
    n: int,
    noise: float,
    radius: float,
    gap: float,
    probabilities: Vector,
    epsilon: float,
    delta: float,
) -> float:
    """E f(w_priv) - f* at T = 1 and steps 1 / v_j of `expected_smoothness`, the mean of the inner iterates.

        R^2 / (2 K) + (1 / p_min - 1) gap / K + (1 + p_max / p_min) / 2 * 12 K log(1/delta) Sigma_S^2 / (n epsilon)^2

    Theorem 4.2 of paper 003 without M <= V: cocoercivity is not there to absorb ||grad f||^2_{V^-1}, the descent of
    Lemma E.3 pays for it, a share p_j of a coordinate at a time.  Full sampling has p = 1 and the constant of
    `convex_block_bound` or better; with a `diagonal_majorant` use that one.

    noise          Sigma_S, the root of `sampling_noise` with v for M
    radius         R_{V P^-1}, `weighted_radius` with v for M
    gap            a public bound on f(w0) - f*
    probabilities  p_j

    >>> matrix_block_bound(10, n=100, noise=1.0, radius=1.0, gap=0.1, probabilities=[0.5, 0.5], epsilon=1.0,
    ...                    delta=float(np.exp(-1)))
    0.072
    """
    check_arguments(locals(), gap=validate.non_negative, probabilities=None)
    p = np.asarray(probabilities, dtype=float)
    good = p.ndim == 1 and p.size > 0 and bool(((p > 0) & (p <= 1 + 1e-12)).all())
    validate.check(good, "probabilities", probabilities, "give numbers above 0 and at most 1, one for each coordinate")
    step = 12 * inner * log_inverse(epsilon, delta) * (noise / (n * epsilon)) ** 2
    start = radius**2 / 2 + (1 / float(p.min()) - 1) * gap
    return start / inner + (1 + float(p.max() / p.min())) / 2 * step


def smoothness_matrix(matrix: Any) -> np.ndarray:
    """A symmetric matrix without negative eigenvalues and with a positive diagonal, or a refusal that says why.

    >>> smoothness_matrix([[2.0, 1.0], [1.0, 2.0]]).shape
    (2, 2)
    """
    M = np.asarray(matrix, dtype=float)
    validate.check(M.ndim == 2 and M.shape[0] == M.shape[1] > 0, "smoothness.shape", M.shape, "give a d x d matrix")
    validate.check(bool(np.isfinite(M).all()), "smoothness", "a matrix", "give finite numbers")
    scale = float(np.abs(M).max())
    same = bool((np.abs(M - M.T) <= 1e-10 * scale).all())
    validate.check(same, "smoothness", "a matrix that is not symmetric", "give (M + M') / 2: only that part counts")
    validate.check(
        bool((np.diagonal(M) > 0).all()), "smoothness", "a diagonal with entries <= 0", "give entries above 0"
    )
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
