"""Smooth features: every column as a few orthonormal functions of itself, by its distribution alone.

A column's histogram (bought, or of public rows) is a distribution p on a fixed grid of [-1, 1].  Its functions are

    phi_1 = (x - mean) / sd,    phi_k = cos(pi (k - 1) u(x)) made orthogonal to 1, phi_1, ..., phi_{k-1} under p,

u the mid-rank of x under p: a column of two values has one function, one of three two, a number as many as are asked
for.  A linear model of them is an additive model of the columns.  Nothing here reads a record: maps are made from p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import CHUNK_BYTES, as_matrix
from isthmus.problems.scaling import UP, Scaled

POINT = 1e-9
"""Entries this near to -1, 0 or 1 are these: most indicators and clipped numbers."""
STANDS = 3.0
"""A count stands out of its noise by so many standard deviations."""
FAR_OUT = 4.0
"""A linear function goes on to where records are seen, and for so many standard deviations at least."""
LEAST_NEW = 0.05
"""A function that has less of its variance beside those before it is none."""
SIMULATED = 4096
"""Rows that are drawn from the columns' distributions to see how long rows are."""


def grid(level: int = 6) -> Tensor:
    """The edges of the bins on [-1, 1]: 2^level uniform ones on either side of 0, then halves towards 0 and the ends.

    -1, 0 and 1 have bins of their own.  A finer grid tells more apart, and adds up more noise.

    >>> edges = grid(2)
    >>> len(edges), float(edges[0]), bool((edges.diff() > 0).all())
    (24, -1.000000001, True)
    """
    side = 2**level
    k = torch.arange(-side, side + 1, dtype=torch.float64) / side
    small = torch.tensor([2.0**-i for i in range(level + 1, 3 * level)], dtype=torch.float64)
    points = torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64)
    inner = torch.cat([k[(k.abs() != 1) & (k != 0)], small, -small, 1 - small, small - 1])
    return torch.cat([inner, points - POINT, points + POINT]).unique()


@dataclass(frozen=True, eq=False)
class Distribution:
    """Columns whose entries lie in the bins of `edges` with probabilities p (columns x bins); uniform within a bin."""

    edges: Tensor
    p: Tensor

    @property
    def middles(self) -> Tensor:
        """Of the bins."""
        return (self.edges[1:] + self.edges[:-1]) / 2

    @property
    def mean(self) -> Tensor:
        """Of each column."""
        return self.p @ self.middles

    @property
    def variance(self) -> Tensor:
        """Of each column."""
        within = self.edges.diff().square() / 12
        return self.p @ (self.middles.square() + within) - self.mean.square()

    @property
    def below(self) -> Tensor:
        """P(x < edge) at the lower edge of each bin."""
        return self.p.cumsum(1) - self.p

    @property
    def ends(self) -> tuple[Tensor, Tensor]:
        """The outer edges of the bins that hold something."""
        seen = self.p > 0
        low = torch.where(seen, self.edges[:-1], math.inf).amin(1)
        return low, torch.where(seen, self.edges[1:], -math.inf).amax(1)

    def draw(self, rows: int, seed: int = 0) -> Tensor:
        """The bins of so many independent records (public: from p alone)."""
        made = torch.Generator().manual_seed(seed)
        return torch.multinomial(self.p.float().clamp(min=0), rows, replacement=True, generator=made).T


def bins_of(edges: Tensor, x: Tensor) -> Tensor:
    """The bin of each number, those outside in the outermost."""
    return (torch.searchsorted(edges, x.contiguous(), right=True) - 1).clamp(0, len(edges) - 2)


def distribution(counts: Tensor, noise: float, n: float, edges: Tensor) -> Distribution:
    """The distribution behind noisy counts (columns x bins) of n records: split from the whole down, in halves.

    The mass of a node goes to its halves as their counts say, up to what noise allows: a half that does not stand out
    of its noise gets nothing, and where neither does they share by their number of bins.  Without noise the counts.

    >>> edges = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    >>> distribution(torch.tensor([[6.0, 0.0, 2.0, 2.0]]), 0.0, 10, edges).p
    tensor([[0.6000, 0.0000, 0.2000, 0.2000]], dtype=torch.float64)
    """
    columns, width = counts.shape
    depth = max(1, math.ceil(math.log2(width)))
    leaves = torch.nn.functional.pad(counts.double(), (0, 2**depth - width))
    real = torch.nn.functional.pad(torch.ones(1, width, dtype=torch.float64), (0, 2**depth - width))
    sums, sizes = [leaves], [real]
    for _ in range(depth):
        sums.append(sums[-1].view(columns, -1, 2).sum(2))
        sizes.append(sizes[-1].view(1, -1, 2).sum(2))
    mass = torch.full((columns, 1), float(n), dtype=torch.float64)
    for total, size in zip(reversed(sums[:-1]), reversed(sizes[:-1]), strict=True):
        mass = _halved(mass, total.view(columns, -1, 2), size.view(1, -1, 2), noise).reshape(columns, -1)
    return Distribution(edges, mass[:, :width] / mass[:, :width].sum(1, keepdim=True))


def _halved(mass: Tensor, halves: Tensor, bins: Tensor, noise: float) -> Tensor:
    """The mass of nodes, split over their halves."""
    left, right = halves.unbind(-1)
    spread = noise * bins.sum(-1).sqrt() / 2  # of half the difference of two halves
    share = ((mass + left - right) / 2).clamp(min=0)
    share = torch.minimum(share, mass)
    share = torch.where(share < STANDS * spread, 0.0, share)
    share = torch.where(mass - share < STANDS * spread, mass, share)
    even = bins[..., 0] / bins.sum(-1).clamp(min=1)
    share = torch.where(mass < 2 * STANDS * spread, mass * even, share)
    share = torch.where(bins[..., 1] == 0, mass, share)
    return torch.stack([share, mass - share], -1)


@dataclass(frozen=True, eq=False)
class SmoothMap:
    """A public map of rows with entries in [-reach, reach]: weighted functions of the columns, shortened, with a bias.

    edges, below, p   the grid, and what each column has below and in each bin
    low, high         where the linear function of a column is cut off
    shift, scale      its mean, and 1 / sd
    columns, orders   of each feature: its column, and the number of its function
    coefficients      columns x functions x (1, linear, cosines): the functions from what they are made of
    weight            of each feature
    limit, bias       longer rows of features are shortened to `limit`; then (f, bias) / hypot(limit, bias)
    """

    reach: float
    edges: Tensor
    below: Tensor
    p: Tensor
    low: Tensor
    high: Tensor
    shift: Tensor
    scale: Tensor
    columns: Tensor
    orders: Tensor
    coefficients: Tensor
    weight: Tensor
    limit: float = 1.0
    bias: float = 1.0

    def __call__(self, X: object) -> Scaled:
        """The features of the rows of X: a dense copy, rows of norm at most 1."""
        view = Scaled.of(as_matrix("X", X)).without_constant()
        d, D = len(self.shift), len(self.columns)
        validate.check(view.shape[1] == d, "X.shape", tuple(view.shape), f"give {d} columns")
        found = torch.empty(view.shape[0], D + 1 if self.bias else D, dtype=torch.float64)
        step = max(1, CHUNK_BYTES // (8 * d * (4 + self.coefficients.shape[2] + self.coefficients.shape[1])))
        for lo in range(0, view.shape[0], step):
            hi = min(lo + step, view.shape[0])
            found[lo:hi, :D] = self._features(view[lo:hi].dense() / self.reach)
        slack = 1 + (D + 64) * 2.0**-52
        length = torch.linalg.vector_norm(found[:, :D], dim=1) * slack
        whole = math.hypot(self.limit, self.bias) * UP
        factor = 1 / (whole * UP) * (self.limit / length.clamp(min=self.limit))
        found[:, :D] *= factor[:, None]
        bias = self.bias / (whole * UP)
        if self.bias:
            found[:, D] = bias
        upper = torch.hypot(length * factor, torch.tensor(bias, dtype=torch.float64)) * UP
        base = Scaled.of(found)
        return Scaled(found, base.weight, base.r, base.U, base.B, upper.clamp(max=1.0), unit=True, bias=bias)

    def _features(self, x: Tensor) -> Tensor:
        """Of a chunk of rows, not yet shortened."""
        raw = self._raw(x)
        functions = torch.einsum("njm,jkm->njk", raw, self.coefficients)
        return functions[:, self.columns, self.orders] * self.weight

    def _raw(self, x: Tensor) -> Tensor:
        """(1, linear, cos pi u, cos 2 pi u, ...) of every entry."""
        x = x.clamp(-1.0, 1.0)
        place = bins_of(self.edges, x)
        width = self.edges.diff()
        inside = ((x - self.edges[place]) / width[place]).clamp(0, 1)
        rank = self.below.T.gather(0, place) + self.p.T.gather(0, place) * inside
        linear = (torch.minimum(torch.maximum(x, self.low), self.high) - self.shift) * self.scale
        k = torch.arange(1, self.coefficients.shape[2] - 1, dtype=torch.float64)
        cosines = torch.cos(math.pi * rank[..., None] * k)
        return torch.cat([torch.ones_like(x)[..., None], linear[..., None], cosines], -1)

    def follow(self, weight: Tensor, offset: Tensor, bias: float) -> tuple[Tensor, Tensor, float]:
        """The linear part: by each column's own distribution its smooth functions are uncorrelated with its linear one,
        which is therefore the best linear account of what the column does (see `RowMaps`)."""
        whole, d = math.hypot(self.limit, self.bias), len(self.shift)
        scale = self.scale / self.reach
        rest = torch.zeros(len(self.columns) - d, dtype=torch.float64)
        last = torch.tensor([self.bias / whole] if self.bias else [], dtype=torch.float64)
        offset = (offset - self.shift * self.reach) * scale / whole
        return weight * scale / whole, torch.cat([offset, rest, last]), self.bias / whole

    def stored(self) -> dict[str, Any]:
        """The fields by name."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


def smooth_map(
    columns: Distribution,
    *,
    reach: float = 1.0,
    features: int,
    functions: int,
    longer: float = 1.0,
    floor: float = 0.0,
    bias: float = 1.0,
) -> SmoothMap:
    """The map for columns of these distributions.

    features   at most so many in all: the linear function of every column, then the next of all columns, and so on
    functions  at most so many of a column; the k-th has weight 1 / k
    longer     rows are shortened to so many times the median length of simulated ones
    floor      the least variance that a column is taken to have: a rare word may not have been seen

    >>> even = Distribution(grid(2), torch.ones(3, len(grid(2)) - 1).double() / (len(grid(2)) - 1))
    >>> smooth_map(even, features=6, functions=4)([[0.1, -0.2, 0.3]]).shape
    (1, 7)
    """
    mean, sd = columns.mean, columns.variance.clamp(min=max(floor, 1e-24)).sqrt()
    ends = columns.ends
    low, high = torch.minimum(ends[0], mean - FAR_OUT * sd), torch.maximum(ends[1], mean + FAR_OUT * sd)
    linear = (columns.middles - mean[:, None]) / sd[:, None]
    ranks = columns.below + columns.p / 2
    k = torch.arange(1, functions, dtype=torch.float64)
    cosines = torch.cos(math.pi * ranks[..., None] * k)
    raw = torch.cat([torch.ones_like(ranks)[..., None], linear[..., None], cosines], -1)
    made, alive = _orthonormal(raw, columns.p)
    column, order = _first(alive, features).unbind(1)
    weight = 1 / (order.double() + 1)
    drawn = columns.draw(SIMULATED)
    values = torch.einsum("jbm,jkm->jbk", raw, made)
    lengths = torch.linalg.vector_norm(values[column, drawn[:, column], order] * weight, dim=1)
    limit = max(float(lengths.median()) * longer, 1e-6)
    known = (columns.edges, columns.below, columns.p, low, high, mean, 1 / sd)
    return SmoothMap(reach, *known, column, order, made, weight, limit, bias)


def _orthonormal(raw: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """Gram-Schmidt under p of the functions after the constant: their coefficients (columns x functions x raw), and
    which are functions at all beside those before them.

    The linear one keeps its scale, and is taken out of the others as far as it has variance: where a floor has made it
    small, they stand for it.
    """
    d, _, m = raw.shape
    units = torch.eye(m, dtype=torch.float64).expand(d, m, m)
    done = [(raw[..., 0], units[:, 0]), (raw[..., 1], units[:, 1])]
    alive = [torch.ones(d, dtype=torch.bool)]
    for i in range(2, m):
        v, c = raw[..., i], units[:, i]
        for q, a in done:
            inner = (p * v * q).sum(1, keepdim=True)
            v, c = v - inner * q, c - inner * a
        square, whole = (p * v * v).sum(1, keepdim=True), (p * raw[..., i].square()).sum(1, keepdim=True)
        real = square > LEAST_NEW * whole.clamp(min=1e-12)
        scale = torch.where(real, square.clamp(min=1e-300).rsqrt(), 0.0)
        done.append((v * scale, c * scale))
        alive.append(real[:, 0])
    return torch.stack([c for _, c in done[1:]], 1), torch.stack(alive, 1)


def _first(alive: Tensor, features: int) -> Tensor:
    """(column, function) of the features: the first function of every column, then the second, ... at most so many."""
    d, m = alive.shape
    order = alive.T.reshape(-1).nonzero()[:, 0]
    made = torch.stack([order % d, order // d], 1)
    whole = [int(alive[:, : k + 1].sum()) for k in range(m)]
    fits = max([count for count in whole if count <= features], default=whole[0])
    return made[:fits]
