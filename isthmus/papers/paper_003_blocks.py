"""Random blocks of coordinates: the quantities behind DP-SkGD (paper 003).

Paper 003 is Maranjyan, Sadiev and Richtarik, "Differentially private random block coordinate descent".  Everything here
is arithmetic on constants.  They must be public: bounds of columns and rows that hold for every record there could be.
Taken from the data, column bounds and the probabilities made of them leak.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments

Vector = Sequence[float] | np.ndarray
Blocks = Sequence[Sequence[int]]
SAMPLINGS = ("full", "single", "block", "nice")


# ---------------------------------------------------------------- constants of a linear model


def component_smoothness(
    columns: Vector, *, curvature: float, blocks: Blocks | None = None, rows: float | None = None, ridge: float = 0.0
) -> np.ndarray:
    """M_1..M_d of a mean of losses l(x_i' w) from |x_ij| <= B_j and l'' <= h: Assumption 3.6, paper 003.

        M_j = h B_j (sum of B_k over the block of j) + ridge, or h R^2 + ridge on a block where that adds up to less

    Of blocks that overlap the largest counts.

    Assumption 3.6 is the matrix inequality Hessian <= Diag(M), and h B_j B_j is not enough for it: that is the case
    of one block, the default.  Given `blocks`, it holds for moves within a block (singletons: the h B_j^2 of DP-CD),
    which is all that the descent of Lemma E.3 asks; Lemma E.4 asks for the whole.

    columns    B_j, public
    curvature  h: 1/4 logistic, 1 least squares
    rows       R, a public bound on ||x_i||
    ridge      the weight of an l2 penalty (ridge/2) ||w||^2

    >>> component_smoothness([1.0, 2.0, 1.0], curvature=0.25)
    array([1., 2., 1.])
    >>> component_smoothness([1.0, 2.0, 1.0], curvature=0.25, blocks=[[0], [1], [2]])
    array([0.25, 1.  , 0.25])
    >>> component_smoothness([1.0, 1.0, 1.0, 1.0], curvature=0.25, rows=1.0)
    array([0.25, 0.25, 0.25, 0.25])
    """
    bounds = _positive("columns", columns)
    check_arguments(locals())
    smooth = np.zeros_like(bounds)
    for block in cover(blocks, bounds.size):
        some = bounds[block]
        own = some * some.sum()
        if rows is not None:
            validate.positive(rows=rows)
            if len(block) * rows**2 < some.sum() ** 2:
                own = np.full_like(some, rows**2)
        smooth[block] = np.maximum(smooth[block], own)
    return curvature * smooth + ridge


def block_lipschitz(
    columns: Vector, blocks: Blocks | None = None, *, slope: float = 1.0, rows: float | None = None
) -> np.ndarray:
    """L_U of each block U for losses l(x' w): slope min(R, sqrt(sum_{j in U} B_j^2)): Assumption 3.7, paper 003.

    `columns` are the B_j with |x_ij| <= B_j, `rows` is R with ||x_i|| <= R, both public; `slope` bounds |l'| (logistic:
    1).  Blocks may overlap; None is one block of all coordinates.  It does not hold for a loss whose slope has no bound
    (least squares): clip each record's block of the gradient at L_U instead.

    >>> block_lipschitz([3.0, 4.0, 1.0], [[0, 1], [2]]), block_lipschitz([3.0, 4.0, 1.0], rows=2.0)
    (array([5., 1.]), array([2.]))
    """
    bounds = _positive("columns", columns)
    validate.positive(slope=slope)
    cap = math.inf
    if rows is not None:
        validate.positive(rows=rows)
        cap = rows
    every = _subsets(blocks, bounds.size)
    return slope * np.array([min(cap, float(np.linalg.norm(bounds[block]))) for block in every])


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


# ---------------------------------------------------------------- Sigma_S and R


def sampling_noise(blocks: Blocks, lipschitz: Vector, smoothness: Vector, chances: Vector | None = None) -> float:
    """Sigma_S^2 = E[L_S^2 sum_{j in S} 1 / (p_j M_j)], S = blocks[i] with probability q_i: Theorem 4.2, paper 003.

    Blocks may overlap and must cover every coordinate.  For a partition it is `block_noise`, whatever the q_i.

    lipschitz  L_U of each block
    chances    the q_i, uniform by default

    >>> sampling_noise([[0, 1], [1]], [2.0, 1.0], [1.0, 1.0])
    6.5
    """
    smooth = _positive("smoothness", smoothness)
    every = cover(blocks, smooth.size)
    bounds, q = _per_block(lipschitz, len(every)), law_of(chances, len(every))
    p = sampling_probabilities("block", smooth.size, blocks=every, chances=q)
    weights = 1 / (p * smooth)
    return float(sum(c * bound**2 * weights[block].sum() for block, bound, c in zip(every, bounds, q, strict=True)))


def block_noise(lipschitz: Vector, smoothness: Vector, blocks: Blocks | None = None) -> float:
    """Sigma_S^2 = ||L_{A_1..A_b}||^2_{M^-1} = sum_i L_{A_i}^2 sum_{j in A_i} 1/M_j of a partition: section 4.2.1.

    Paper 003.  None is full sampling, L^2 Tr(M^-1); singletons are DP-CD.

    >>> block_noise([1.0, 2.0], [2.0, 2.0, 4.0], [[0, 1], [2]]), block_noise([2.0], [2.0, 2.0, 4.0])
    (2.0, 5.0)
    """
    smooth = _positive("smoothness", smoothness)
    parts = _partition(blocks, smooth.size)
    bounds = _per_block(lipschitz, len(parts))
    return float(sum(bound**2 * (1 / smooth[block]).sum() for block, bound in zip(parts, bounds, strict=True)))


def nice_noise(tau: int, lipschitz: Vector, smoothness: Vector) -> float:
    """Sigma_S^2 of the tau-nice sampling when L_U^2 = sum_{j in U} L_j^2: Theorem 4.2, paper 003, in closed form.

        sum_j L_j^2 / M_j + (tau - 1)/(d - 1) sum_{i != j} L_i^2 / M_j

    tau = 1 is DP-CD, tau = d full sampling.  `lipschitz` holds L_j of single coordinates; for the linear models of
    `block_lipschitz` the L_U are at most these.

    >>> nice_noise(1, [1.0, 2.0], [1.0, 2.0]), nice_noise(2, [1.0, 2.0], [1.0, 2.0])
    (3.0, 7.5)
    """
    smooth = _positive("smoothness", smoothness)
    squares = _per_block(lipschitz, smooth.size) ** 2
    size = check_subset_size(tau, smooth.size)
    own = float((squares / smooth).sum())
    cross = float(squares.sum() * (1 / smooth).sum()) - own
    return own + (cross * (size - 1) / (smooth.size - 1) if smooth.size > 1 else 0.0)


def weighted_radius(difference: Vector | float, smoothness: Vector, probabilities: Vector | None = None) -> float:
    """R_{M P^-1} = sqrt(sum_j M_j (w0_j - w*_j)^2 / p_j): Theorem 4.2, paper 003.  R_M when p is left out.

    w* is not known: give public bounds |w0_j - w*_j|, or one number R >= ||w0 - w*||, which gives
    R sqrt(max_j M_j / p_j).  Section 4.2.1 prints the square.

    >>> weighted_radius([3.0, 2.0], [1.0, 4.0]), weighted_radius([3.0, 2.0], [1.0, 4.0], [0.25, 0.25])
    (5.0, 10.0)
    >>> weighted_radius(3.0, [1.0, 4.0])
    6.0
    """
    ratio = smoothness_ratios(smoothness, probabilities)
    if np.ndim(difference) == 0:
        radius = float(np.asarray(difference))
        validate.non_negative(difference=radius)
        return radius * math.sqrt(float(ratio.max()))
    apart = np.asarray(difference, dtype=float)
    validate.check(apart.shape == ratio.shape, "difference.shape", apart.shape, f"give shape {ratio.shape}")
    validate.check(bool(np.isfinite(apart).all()), "difference", apart, "give finite numbers")
    return math.sqrt(float((ratio * apart**2).sum()))


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


def _per_block(lipschitz: Vector, count: int) -> np.ndarray:
    bounds = _positive("lipschitz", lipschitz)
    validate.check(bounds.size == count, "lipschitz", lipschitz, f"give {count}, one a block")
    return bounds


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


def _partition(blocks: Blocks | None, d: int) -> list[list[int]]:
    parts = _subsets(blocks, d)
    once = sorted(j for block in parts for j in block) == list(range(d))
    validate.check(once, "blocks", blocks, f"give a partition of 0..{d - 1}")
    return parts
