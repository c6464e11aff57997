"""How narrow a sketch may be: the theorems of Gordon and of Johnson and Lindenstrauss behind m_t (paper 001)."""

from __future__ import annotations

import math

from scipy import optimize, special

from isthmus.base import validate
from isthmus.papers.arguments import check_arguments, check_sparsity
from isthmus.papers.schedules import round_up


def gordon_dimension(width: float, beta: float, constant: float = 1.0) -> int:
    """Rows of a Gaussian map that keep every norm of S to beta: m = c w(S)^2 / beta^2, up to a constant.

    Theorem A.3 (paper 001), Theorem 18 (paper 000): E sup_{x in S} | ||Phi x||^2 - 1 | <= beta for S on the unit
    sphere and Phi with entries N(0, 1/m).

    >>> gordon_dimension(2.0, 0.5)
    16
    """
    validate.positive(width=width, beta=beta, constant=constant)
    return max(1, round_up(constant * (width / beta) ** 2))


def gordon_range(m: int, width: float) -> tuple[float, float]:
    """Gordon's inequalities without a hidden constant: (a_m - w(S)) / sqrt(m) <= E min ||Phi x||, and
    E max ||Phi x|| <= (a_m + w(S)) / sqrt(m), over x in S on the unit sphere, a_m = E ||g|| in R^m.

    They are what Theorem A.3 (paper 001) restates.  The lower end is 0 when m is too small to say anything.

    >>> low, high = gordon_range(1, 0.5)
    >>> round((high + low) ** 2 * math.pi, 12), round(high - low, 12)
    (8.0, 1.0)
    """
    check_arguments(locals(), width=validate.non_negative)
    mean = direction_width(m)
    return max(0.0, (mean - width) / math.sqrt(m)), (mean + width) / math.sqrt(m)


def direction_width(d: int) -> float:
    """The width of all directions of R^d, E ||g|| = sqrt(2) Gamma((d+1)/2) / Gamma(d/2), just below sqrt(d).

    It is the width that Lemma 2.2 (paper 001) needs for a C with an interior, where it uses w(C).

    >>> round(direction_width(1) ** 2 * math.pi, 12)
    2.0
    """
    validate.positive_int(d=d)
    if d > 1000:
        return math.sqrt(d) * (1 - 1 / (4 * d) + 1 / (32 * d**2) + 5 / (128 * d**3))
    return math.sqrt(2) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))


def jl_dimension(points: int, beta: float) -> int:
    """Rows that keep the squared distances of finitely many points to 1 +- beta: 4 ln N / (beta^2/2 - beta^3/3).

    The Johnson-Lindenstrauss lemma with the constant of Dasgupta and Gupta (2003); section 1.1 of paper 001.

    >>> jl_dimension(1000, 0.5)
    332
    """
    check_arguments(locals(), beta=validate.open_unit)
    return max(1, round_up(4 * math.log(points) / (beta**2 / 2 - beta**3 / 3)))


def sparse_jl_dimension(d: int, width: float, beta: float, power: float = 1.0, constant: float = 1.0) -> int:
    """Rows of a sparse JL map, m = c log(d)^power w(S)^2 / beta^2, up to a constant and the power of the logarithm.

    Theorem A.4 (paper 001), after Bourgain, Dirksen and Nelson.  The paper prints polylog(n): n is the ambient
    dimension of the source, here d.

    >>> sparse_jl_dimension(10_000, 2.0, 0.5)
    148
    """
    check_arguments(locals())
    return max(1, round_up(constant * _log(d) ** power * (width / beta) ** 2))


def sparse_jl_columns(m: int, d: int, beta: float, power: float = 1.0, constant: float = 1.0) -> int:
    """Non-zeros a column of a sparse JL map, s = min(m, c log(d)^power / beta^2), up to a constant and the power.

    Theorem A.4 (paper 001), with its polylog(n) read as a power of log d; s = m is a dense map.

    >>> sparse_jl_columns(200, 10_000, 0.5), sparse_jl_columns(20, 10_000, 0.5)
    (37, 20)
    """
    check_arguments(locals())
    return min(m, max(1, round_up(constant * _log(d) ** power / beta**2)))


def sparse_jl_condition(m: int, d: int, complexity: float, beta: float) -> bool:
    """Whether (log m)^2 (log d)^{5/2} v(S) <= beta: the last condition of Theorem A.4 (paper 001).

    `complexity` is the theorem's v(S), for which the source gives bounds for common S.

    >>> sparse_jl_condition(8, 8, 0.01, 0.5), sparse_jl_condition(8, 8, 0.02, 0.5)
    (True, False)
    """
    check_arguments(locals())
    return bool(math.log(m) ** 2 * math.log(d) ** 2.5 * complexity <= beta)


def sparse_cone_width(d: int, k: int) -> float:
    """The width of the tangent cone (cut to the unit ball) of an l1 ball at a k-sparse point of its boundary, at most

        inf_{tau >= 0} sqrt( k (1 + tau^2) + (d - k) E (|g| - tau)_+^2 ).

    The exact formula of Chandrasekaran et al. (2012) and Amelunxen et al. (2014): its square is above the cone's
    statistical dimension by at most 2 sqrt(d / k).  It is the width for which Lemma 2.2 (paper 001) is right.

    >>> round(sparse_cone_width(10_000, 10) ** 2), round(sparse_cone_width(10, 10) ** 2, 6)
    (95, 10.0)
    """
    check_sparsity(d, k)

    def square(tau: float) -> float:
        tail = 2 * ((1 + tau**2) * special.ndtr(-tau) - tau * math.exp(-(tau**2) / 2) / math.sqrt(2 * math.pi))
        return float(k * (1 + tau**2) + (d - k) * max(0.0, tail))

    top = math.sqrt(2 * math.log(d / k)) + 1
    best = optimize.minimize_scalar(square, bounds=(0.0, top), method="bounded", options={"xatol": 1e-10})
    return math.sqrt(min(best.fun, square(0.0)))


def sparse_cone_width_bound(d: int, k: int) -> float:
    """The closed form above `sparse_cone_width`: sqrt(min(d, 2 k log(d/k) + 5 k / 4)).

    Proposition 3.10 of Chandrasekaran et al. (2012): the k log(d/k) that Lemma 2.2 (paper 001) needs for w(C)^2.

    >>> round(sparse_cone_width_bound(10_000, 10) ** 2, 3)
    150.655
    """
    check_sparsity(d, k)
    return math.sqrt(min(d, 2 * k * math.log(d / k) + 1.25 * k))


def table_width(
    name: str,
    d: int,
    *,
    p: float = 2.0,
    vertices: int = 2,
    radius: float = 1.0,
    rank: int = 1,
    columns: int | None = None,
    constant: float = 1.0,
) -> float:
    """The Gaussian widths of Table 3 (paper 001), up to a constant; a set's own `gaussian_width` is exact.

        l1, simplex      sqrt(log d)                      lp (1 < p <= inf)   d^{1 - 1/p}
        hull             radius sqrt(log vertices)        subspace            sqrt(rank), of its unit ball
        low_rank         sqrt(rank (d + columns))         nuclear             sqrt(d), of d x d matrices

    The constant of the lp row grows like 1 / sqrt(p - 1) as p falls to 1.

    >>> table_width("lp", 100, p=2.0), table_width("low_rank", 30, columns=20, rank=2)
    (10.0, 10.0)
    """
    validate.one_of(("l1", "simplex", "lp", "hull", "subspace", "low_rank", "nuclear"), name=name)
    check_arguments(locals(), p=None)
    validate.check(p > 1, "p", p, "give p > 1, or 'l1' for p = 1")
    if columns is not None:
        validate.positive_int(columns=columns)
    orders: dict[str, float] = {
        "l1": math.sqrt(math.log(d)),
        "simplex": math.sqrt(math.log(d)),
        "lp": d ** (1 - 1 / p),
        "hull": radius * math.sqrt(math.log(vertices)),
        "subspace": math.sqrt(rank),
        "low_rank": math.sqrt(rank * (d + (d if columns is None else columns))),
        "nuclear": math.sqrt(d),
    }
    return constant * orders[name]


def _log(d: int) -> float:
    return math.log(max(d, 2))
