"""Random blocks of coordinates: the quantities behind DP-SkGD (paper 003).

Paper 003 is Maranjyan, Sadiev and Richtarik, "Differentially private random block coordinate descent".  Everything here
is arithmetic on constants.  They must be public: bounds of columns and rows that hold for every record there could be.
Taken from the data, column bounds and the probabilities made of them leak.

DP-SkGD under a general smoothness matrix: what section 5 of paper 003 leaves open, with the theorem's constant.

f is smooth with a symmetric matrix M >= 0: f(w + h) <= f(w) + <grad f(w), h> + h'Mh / 2, its off-diagonal entries as
they are.  Steps stay on drawn coordinates and Gamma = P V^-1 stays diagonal, so that sensitivity and privacy analysis
of Theorem 4.1 do not change; M only says how long the steps 1 / v_j may be.  Directions beyond coordinates (Gamma with
entries off its diagonal) would mix coordinates that were not drawn: they have no sensitivity bound and are not offered.

With Pi_jk = Prob(j, k in S) the mean of I_S M I_S is the entrywise product Pi o M, and

    Pi o M <= P V   gives E f(w - Gamma C g) <= f(w) - ||grad f||^2_{P V^-1} / 2 + noise: Lemma E.3 with V for M
    M <= V          gives that for every law, and Theorem 4.2 as it is printed with V for M

`expected_smoothness` is a V of the first kind (1 / v_j = 1 / M_jj on single coordinates), `diagonal_majorant` one of
the second.  M must be public.

DP-SkGD, DP-CD and DP-SGD compared: Theorems 4.1 and 4.2, Table 1 and section 4.3 of paper 003.

`noise` is Sigma_S (the root of `sampling_noise`, `block_noise` or `nice_noise`), `radius` is R_{M P^-1}
(`weighted_radius`); both from public constants.  Statements on utility: the noise of a run comes from its accountant.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from isthmus.base import validate
from isthmus.theory.schedules import (
    Blocks,
    Loops,
    Vector,
    _positive,
    _top,
    check_arguments,
    check_subset_size,
    cover,
    importance_probabilities,
    law_of,
    log_inverse,
    sampling_probabilities,
    smoothness_matrix,
    smoothness_ratios,
)
from lab.theory.schedules import check_sizes, condition_number, subsets_of

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
    every = subsets_of(blocks, bounds.size)
    return slope * np.array([min(cap, float(np.linalg.norm(bounds[block]))) for block in every])


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


def _per_block(lipschitz: Vector, count: int) -> np.ndarray:
    bounds = _positive("lipschitz", lipschitz)
    validate.check(bounds.size == count, "lipschitz", lipschitz, f"give {count}, one a block")
    return bounds


def _partition(blocks: Blocks | None, d: int) -> list[list[int]]:
    parts = subsets_of(blocks, d)
    once = sorted(j for block in parts for j in block) == list(range(d))
    validate.check(once, "blocks", blocks, f"give a partition of 0..{d - 1}")
    return parts


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


ROWS = ("block", "uniform", "importance", "full", "dp_cd", "dp_sgd", "dp_svrg")


def component_noise(lipschitz: float, n: int, steps: int, *, epsilon: float, delta: float) -> float:
    """sigma_U = L_U sqrt(12 K T log(1/delta)) / (n epsilon): Theorem 4.1, as Theorem 4.2 uses it, paper 003.

    The standard deviation on each coordinate of a block of the mean gradient, one record replaced; Algorithm 1 prints
    N(0, sigma_S I), the proof has the variance sigma_S^2.  The theorem asks for epsilon <= 1 and delta < 1/3; its
    constant is enough up to epsilon = 1.1 log(1/delta), beyond which this refuses.  At (1, 1e-5) it is 1.6 times what
    an exact accountant asks for.

    steps  K T

    >>> round(component_noise(0.5, 1, 1000, epsilon=1.0, delta=1e-5), 3)
    185.846
    """
    check_arguments(locals())
    log = log_inverse(epsilon, delta)
    validate.at_most(1.1 * log, "1.1 log(1/delta)", epsilon=epsilon)
    return lipschitz * math.sqrt(12 * steps * log) / (n * epsilon)


def convex_block_bound(inner: int, *, n: int, noise: float, radius: float, epsilon: float, delta: float) -> float:
    """E f(w_priv) - f* <= R^2 / K + 12 K log(1/delta) Sigma_S^2 / (n epsilon)^2 at T = 1: Appendix E.1, paper 003.

    At the K of Theorem 4.2 it is 13 R Sigma_S sqrt(log(1/delta)) / (n epsilon).  The last step of Lemma E.1 loses a
    factor 2, yet the lemma holds: 2 (f - f*) <= 2 <grad f, w - w*> - ||grad f||^2_{M^-1} gives R^2 / (2 K) + N at once,
    N the noise term, where the lemma has more.  (Lemma E.4 prints M^-1 - P^-1 Gamma with the wrong sign; it is 0 at
    Gamma = P M^-1.)

    >>> convex_block_bound(10, n=100, noise=1.0, radius=1.0, epsilon=1.0, delta=math.exp(-1))
    0.112
    """
    check_sizes(n, noise, radius)
    validate.positive_int(inner=inner)
    return radius**2 / inner + inner * _step_noise(n, noise, epsilon, delta)


def strongly_convex_block_bound(
    loops: Loops,
    *,
    n: int,
    smoothness: Vector,
    probabilities: Vector,
    strong_convexity: float,
    noise: float,
    gap: float,
    epsilon: float,
    delta: float,
) -> float:
    """E f(w_T) - f* <= r^T gap + N (1 - r^T) / (1 - r) after T loops: Appendix E.2, paper 003.

    r = (1 + c) / K is the factor of one loop, c = max_j (M_j / p_j) / mu: 1/2 at the K of
    `strongly_convex_block_loops`, refused at r >= 1.  N = 12 K T log(1/delta) Sigma_S^2 / (n epsilon)^2.  At r = 1/2
    the second term is 48 (1 + c) T log(1/delta) Sigma_S^2 / (n epsilon)^2 at most; the paper's last display has 24.

    >>> problem = {"smoothness": [1.0], "probabilities": [1.0], "strong_convexity": 1.0, "n": 10}
    >>> budget = {"epsilon": 1.0, "delta": math.exp(-1)}
    >>> round(strongly_convex_block_bound(Loops(4, 1), noise=0.5, gap=1.0, **problem, **budget), 12)
    0.62
    """
    check_sizes(n, noise, 1.0)
    validate.positive(gap=gap)
    r = (1 + condition_number(smoothness, probabilities, strong_convexity)) / loops.inner
    validate.check(
        r < 1, "loops", loops, f"give more inner rounds than {r * loops.inner:g}: with fewer a loop does not contract"
    )
    contraction = r**loops.outer
    return contraction * gap + (1 - contraction) / (1 - r) * loops.steps * _step_noise(n, noise, epsilon, delta)


# ---------------------------------------------------------------- Table 1


def block_convex_utility(
    row: str,
    *,
    smoothness: Vector,
    lipschitz: Vector,
    difference: Vector | float,
    n: int,
    epsilon: float,
    delta: float,
    blocks: Blocks | None = None,
    chances: Vector | None = None,
    constant: float = 1.0,
) -> float:
    """E f(w_priv) - f*, up to a constant: the convex column of Table 1, paper 003.

    sqrt(log(1/delta)) / (n epsilon) times

        block            ||L||_{M^-1} R_{M P^-1}                        any q of a partition (`chances`)
        uniform          ||L||_{M^-1} R_M sqrt(b)                       dp_cd: the same on singletons
        importance       ||L||_{M^-1} R_I sqrt(sum_i max_{A_i} M_j)     no less than block with those q
        full             L sqrt(Tr(M^-1)) R_M                           one block
        dp_sgd, dp_svrg  L sqrt(d) R_I

    lipschitz   L_{A_i} of each block; one number L for full, dp_sgd and dp_svrg; one a coordinate for dp_cd
    difference  bounds |w0_j - w*_j|, or one number R_I (see `weighted_radius`)
    blocks      a partition; None is singletons

    >>> problem = {"smoothness": [1.0, 4.0], "difference": [3.0, 2.0], "n": 10, "epsilon": 1.0, "delta": math.exp(-1)}
    >>> [round(block_convex_utility(row, lipschitz=[2.0, 2.0], **problem), 6) for row in ("uniform", "importance")]
    [1.581139, 1.802776]
    >>> [round(block_convex_utility(row, lipschitz=[2.0], **problem), 6) for row in ("full", "dp_sgd")]
    [1.118034, 1.019804]
    """
    validate.positive(constant=constant)
    check_sizes(n, 1.0, 1.0)
    M, parts = smoothness_ratios(smoothness), _row_blocks(row, blocks, len(smoothness))
    common = constant * math.sqrt(log_inverse(epsilon, delta)) / (n * epsilon)
    plain = weighted_radius(difference, [1.0] * M.size)
    if row in ("dp_sgd", "dp_svrg"):
        return common * math.sqrt(block_noise(lipschitz, [1.0] * M.size)) * plain
    spread = math.sqrt(block_noise(lipschitz, M, parts))
    if row == "importance":
        return common * spread * plain * math.sqrt(_largest_sum(M, parts))
    q = chances if row == "block" else None
    p = sampling_probabilities("block", M.size, blocks=parts, chances=q)
    return common * spread * weighted_radius(difference, M, p)


def block_strongly_convex_utility(
    row: str,
    *,
    smoothness: Vector,
    lipschitz: Vector,
    strong_convexity: float,
    n: int,
    epsilon: float,
    delta: float,
    blocks: Blocks | None = None,
    chances: Vector | None = None,
    constant: float = 1.0,
) -> float:
    """E f(w_T) - f* up to a constant and logarithms: the strongly convex column of Table 1, paper 003.

    log(1/delta) / (n epsilon)^2 times

        block            ||L||^2_{M^-1} max_j (M_j / p_j) / mu
        uniform          ||L||^2_{M^-1} M_max b / mu
        importance       ||L||^2_{M^-1} (sum_i max_{A_i} M_j) / mu      the table drops the square on blocks
        full             L^2 Tr(M^-1) M_max / mu
        dp_cd            ||L||^2_{M^-1} d / mu_M
        dp_sgd, dp_svrg  L^2 d / mu

    strong_convexity  mu in l2; for dp_cd mu_M, with respect to ||.||_M (at least mu / M_max)

    Other arguments as in `block_convex_utility`.

    >>> problem = {"smoothness": [1.0, 4.0], "strong_convexity": 0.5, "n": 1, "epsilon": 1.0, "delta": math.exp(-1)}
    >>> [block_strongly_convex_utility(row, lipschitz=[2.0, 2.0], **problem) for row in ("uniform", "importance")]
    [80.0, 50.0]
    >>> [block_strongly_convex_utility(row, lipschitz=[2.0], **problem) for row in ("full", "dp_sgd")]
    [40.0, 16.0]
    """
    validate.positive(constant=constant, strong_convexity=strong_convexity)
    check_sizes(n, 1.0, 1.0)
    M, parts = smoothness_ratios(smoothness), _row_blocks(row, blocks, len(smoothness))
    common = constant * log_inverse(epsilon, delta) / ((n * epsilon) ** 2 * strong_convexity)
    if row in ("dp_sgd", "dp_svrg"):
        return common * block_noise(lipschitz, [1.0] * M.size)
    spread = block_noise(lipschitz, M, parts)
    if row == "dp_cd":
        return common * spread * M.size
    if row == "importance":
        return common * spread * _largest_sum(M, parts)
    q = chances if row == "block" else None
    p = sampling_probabilities("block", M.size, blocks=parts, chances=q)
    return common * spread * float(smoothness_ratios(M, p).max())


# ---------------------------------------------------------------- section 4.3


def block_gain(
    row: str,
    *,
    over: str = "dp_sgd",
    smoothness: Vector,
    lipschitz: Vector,
    other_lipschitz: Vector,
    difference: Vector | float,
    blocks: Blocks | None = None,
    chances: Vector | None = None,
) -> float:
    """How many times smaller the convex bound of `row` is than that of `over`: section 4.3, paper 003.  > 1: it wins.

    full over dp_sgd: at most sqrt(d), reached when w0 is right but for one coordinate whose M_j is far below the rest.
    importance over dp_cd: at most sqrt(d), reached when one coordinate has nearly all of Tr(M) and of ||w0 - w*||.
    block over dp_sgd: no limit.  Equal M_j and L_j give 1 to the first two, and the heterogeneity must be public.

    Section 4.3.1 prints M_j |w0_j - w*_j| where its R_M has squares, ||L||_{M^-1} = L_max / M_max for
    L_max sqrt(|A_1| / M_max), and R_M for the R_{M P^-1} of blocks; 4.3.2 prints sqrt(M_1 |.|) for sqrt(M_1) |.|.

    other_lipschitz  what `over` takes for `lipschitz`

    >>> problem = {"smoothness": [1e-6] + [1.0] * 99, "difference": [1.0] + [0.0] * 99}
    >>> round(block_gain("full", lipschitz=[1.0], other_lipschitz=[1.0], **problem), 2)
    10.0
    """

    problem = {"smoothness": smoothness, "difference": difference, "blocks": blocks, "chances": chances}

    def utility(name: str, bounds: Vector) -> float:
        return block_convex_utility(name, lipschitz=bounds, n=1, epsilon=1.0, delta=0.5, **problem)  # type: ignore[arg-type]

    mine = utility(row, lipschitz)
    validate.check(mine > 0, "difference", difference, "give a start that is not the minimiser")
    return utility(over, other_lipschitz) / mine


def _row_blocks(row: str, blocks: Blocks | None, d: int) -> Blocks:
    validate.one_of(ROWS, row=row)
    if row in ("full", "dp_sgd", "dp_svrg"):
        return [list(range(d))]
    return [[j] for j in range(d)] if blocks is None or row == "dp_cd" else blocks


def _largest_sum(M: Vector, blocks: Blocks) -> float:
    """sum_i max_{j in A_i} M_j, which is M_max over its own block's q."""
    return float(max(M) / importance_probabilities(M, blocks).max())


def _step_noise(n: int, noise: float, epsilon: float, delta: float) -> float:
    """12 log(1/delta) Sigma_S^2 / (n epsilon)^2."""
    return 12 * log_inverse(epsilon, delta) * (noise / (n * epsilon)) ** 2
