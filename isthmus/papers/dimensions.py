"""How narrow a sketch may be: the rule for m_t, and the theorems of Gordon and Johnson and Lindenstrauss behind it.

Rounds are counted from 0 here; the papers' t is t + 1.
"""

from __future__ import annotations

import math

from scipy import optimize, special

from isthmus.base import validate


def round_up(x: float) -> int:
    """The least integer that is at least x, up to a relative rounding error of 1e-12.

    >>> round_up(3 * 1.1 / 1.1), round_up(3.01)
    (3, 4)
    """
    return math.ceil(x * (1 - 1e-12))


def narrow_dimension(d: int, width: float, beta: float, constant: float = 1.0) -> int:
    """The dimension of a compressed gradient, m = min(d, c w(C)^2 / beta^2), up to a constant.

    Algorithm CompSGD (paper 001), step 2a, rounded up.  Its section 2.2 prints max{d, t^2 log d}, which is min.

    Lemma 2.2 derives ||Phi v||^2 >= (1 - beta) ||v||^2 for v = w_{t+1} - w from this m by Gordon's theorem, but
    applies that to the *normalised* directions of C - C: when C has an interior these fill the sphere, whose width
    is `direction_width(d)`, about sqrt(d), and not w(C).  The step is right for the tangent cone at a fixed w*: give
    `sparse_cone_width(d, k)` as the width for a k-sparse w* on the boundary of an l1 ball.

    >>> narrow_dimension(10_000, 3.0, 0.1), narrow_dimension(500, 3.0, 0.1)
    (900, 500)
    """
    validate.positive_int(d=d)
    validate.positive(width=width, beta=beta, constant=constant)
    wanted = constant * (width / beta) ** 2
    return d if wanted >= d else max(1, round_up(wanted))


def dimension_at(t: int, d: int, width: float, *, every: int = 1, offset: int = 1, constant: float = 1.0) -> int:
    """m_t of round t = 0, 1, ...: `narrow_dimension` at beta_t = 1 / (floor(t / every) + offset).

    every   rounds between two dimensions: 1 counts steps, the rounds of an epoch count epochs (section 2.2 of
            paper 001: m = t^2 log d with t the epoch)
    offset  1 for beta_t = 1/t of paper 001 (Theorem 2.3), 2 for beta_t = 1/(t + 1) of paper 000

    >>> [dimension_at(t, 100, 2.0) for t in range(6)]
    [4, 16, 36, 64, 100, 100]
    >>> [dimension_at(t, 100, 2.0, every=2) for t in range(6)]
    [4, 4, 16, 16, 36, 36]
    """
    validate.non_negative_int(t=t)
    validate.positive_int(every=every, offset=offset)
    return narrow_dimension(d, width, 1 / (t // every + offset), constant)


def rounds_until_full(d: int, width: float, *, every: int = 1, offset: int = 1, constant: float = 1.0) -> int:
    """How many rounds are narrower than d: the first t with m_t = d, about every * sqrt(d / c) / w(C).

    With t the step and w(C)^2 = log d this is 32 rounds at d = 10^4: m_33 = d in the papers' count.

    >>> rounds_until_full(10_000, math.log(10_000) ** 0.5)
    32
    """
    validate.positive_int(d=d, every=every, offset=offset)
    validate.positive(width=width, constant=constant)
    epoch = max(0, math.floor(math.sqrt((d - 1) / constant) / width) - offset - 1)
    while dimension_at(epoch * every, d, width, every=every, offset=offset, constant=constant) < d:
        epoch += 1
    return epoch * every


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
    validate.positive_int(m=m)
    validate.non_negative(width=width)
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
    validate.positive_int(points=points)
    validate.open_unit(beta=beta)
    return max(1, round_up(4 * math.log(points) / (beta**2 / 2 - beta**3 / 3)))


def sparse_jl_dimension(d: int, width: float, beta: float, power: float = 1.0, constant: float = 1.0) -> int:
    """Rows of a sparse JL map, m = c log(d)^power w(S)^2 / beta^2, up to a constant and the power of the logarithm.

    Theorem A.4 (paper 001), after Bourgain, Dirksen and Nelson.  The paper prints polylog(n): n is the ambient
    dimension of the source, here d.

    >>> sparse_jl_dimension(10_000, 2.0, 0.5)
    148
    """
    validate.positive_int(d=d)
    validate.positive(width=width, beta=beta, constant=constant)
    validate.non_negative(power=power)
    return max(1, round_up(constant * _log(d) ** power * (width / beta) ** 2))


def sparse_jl_columns(m: int, d: int, beta: float, power: float = 1.0, constant: float = 1.0) -> int:
    """Non-zeros a column of a sparse JL map, s = min(m, c log(d)^power / beta^2), up to a constant and the power.

    Theorem A.4 (paper 001), with its polylog(n) read as a power of log d; s = m is a dense map.

    >>> sparse_jl_columns(200, 10_000, 0.5), sparse_jl_columns(20, 10_000, 0.5)
    (37, 20)
    """
    validate.positive_int(m=m, d=d)
    validate.positive(beta=beta, constant=constant)
    validate.non_negative(power=power)
    return min(m, max(1, round_up(constant * _log(d) ** power / beta**2)))


def sparse_jl_condition(m: int, d: int, complexity: float, beta: float) -> bool:
    """Whether (log m)^2 (log d)^{5/2} v(S) <= beta: the last condition of Theorem A.4 (paper 001).

    `complexity` is the theorem's v(S), for which the source gives bounds for common S.

    >>> sparse_jl_condition(8, 8, 0.01, 0.5), sparse_jl_condition(8, 8, 0.02, 0.5)
    (True, False)
    """
    validate.positive_int(m=m, d=d)
    validate.non_negative(complexity=complexity)
    validate.positive(beta=beta)
    return math.log(m) ** 2 * math.log(d) ** 2.5 * complexity <= beta


def sparse_cone_width(d: int, k: int) -> float:
    """The width of the tangent cone (cut to the unit ball) of an l1 ball at a k-sparse point of its boundary, at most

        inf_{tau >= 0} sqrt( k (1 + tau^2) + (d - k) E (|g| - tau)_+^2 ).

    The exact formula of Chandrasekaran et al. (2012) and Amelunxen et al. (2014): its square is above the cone's
    statistical dimension by at most 2 sqrt(d / k).  It is the width for which Lemma 2.2 (paper 001) is right.

    >>> round(sparse_cone_width(10_000, 10) ** 2), round(sparse_cone_width(10, 10) ** 2, 6)
    (95, 10.0)
    """
    _check_sparsity(d, k)

    def square(tau: float) -> float:
        tail = 2 * ((1 + tau**2) * special.ndtr(-tau) - tau * math.exp(-(tau**2) / 2) / math.sqrt(2 * math.pi))
        return k * (1 + tau**2) + (d - k) * max(0.0, tail)

    top = math.sqrt(2 * math.log(d / k)) + 1
    best = optimize.minimize_scalar(square, bounds=(0.0, top), method="bounded", options={"xatol": 1e-10})
    return math.sqrt(min(best.fun, square(0.0)))


def sparse_cone_width_bound(d: int, k: int) -> float:
    """The closed form above `sparse_cone_width`: sqrt(min(d, 2 k log(d/k) + 5 k / 4)).

    Proposition 3.10 of Chandrasekaran et al. (2012): the k log(d/k) that Lemma 2.2 (paper 001) needs for w(C)^2.

    >>> round(sparse_cone_width_bound(10_000, 10) ** 2, 3)
    150.655
    """
    _check_sparsity(d, k)
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
    validate.positive_int(d=d, vertices=vertices, rank=rank)
    validate.positive(radius=radius, constant=constant)
    validate.check(p > 1, "p", p, "give p > 1; p = 1 is 'l1'")
    if columns is not None:
        validate.positive_int(columns=columns)
    orders = {
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


def _check_sparsity(d: int, k: int) -> None:
    validate.positive_int(d=d, k=k)
    validate.at_most(d, "d", k=k)
