"""DP-SkGD, DP-CD and DP-SGD compared: Theorems 4.1 and 4.2, Table 1 and section 4.3 of paper 003.

`noise` is Sigma_S (the root of `sampling_noise`, `block_noise` or `nice_noise`), `radius` is R_{M P^-1}
(`weighted_radius`); both from public constants.  Statements on utility: the noise of a run comes from its accountant.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments, log_inverse
from isthmus.papers.paper_003_blocks import (
    Blocks,
    Vector,
    block_noise,
    importance_probabilities,
    sampling_probabilities,
    smoothness_ratios,
    weighted_radius,
)
from isthmus.papers.schedules import round_up

ROWS = ("block", "uniform", "importance", "full", "dp_cd", "dp_sgd", "dp_svrg")


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


def convex_block_bound(inner: int, *, n: int, noise: float, radius: float, epsilon: float, delta: float) -> float:
    """E f(w_priv) - f* <= R^2 / K + 12 K log(1/delta) Sigma_S^2 / (n epsilon)^2 at T = 1: Appendix E.1, paper 003.

    At the K of Theorem 4.2 it is 13 R Sigma_S sqrt(log(1/delta)) / (n epsilon).  The last step of Lemma E.1 loses a
    factor 2, yet the lemma holds: 2 (f - f*) <= 2 <grad f, w - w*> - ||grad f||^2_{M^-1} gives R^2 / (2 K) + N at once,
    N the noise term, where the lemma has more.  (Lemma E.4 prints M^-1 - P^-1 Gamma with the wrong sign; it is 0 at
    Gamma = P M^-1.)

    >>> convex_block_bound(10, n=100, noise=1.0, radius=1.0, epsilon=1.0, delta=math.exp(-1))
    0.112
    """
    _check(n, noise, radius)
    validate.positive_int(inner=inner)
    return radius**2 / inner + inner * _step_noise(n, noise, epsilon, delta)


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
    _check(n, noise, 1.0)
    validate.positive(gap=gap)
    r = (1 + _condition(smoothness, probabilities, strong_convexity)) / loops.inner
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
    _check(n, 1.0, 1.0)
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
    _check(n, 1.0, 1.0)
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


def _condition(smoothness: Vector, probabilities: Vector, strong_convexity: float) -> float:
    validate.positive(strong_convexity=strong_convexity)
    return float(smoothness_ratios(smoothness, probabilities).max()) / strong_convexity


def _step_noise(n: int, noise: float, epsilon: float, delta: float) -> float:
    """12 log(1/delta) Sigma_S^2 / (n epsilon)^2."""
    return 12 * log_inverse(epsilon, delta) * (noise / (n * epsilon)) ** 2


def _check(n: int, noise: float, radius: float) -> None:
    check_arguments(locals(), noise=validate.positive)
