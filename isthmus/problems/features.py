"""Smooth features: every column as a few orthonormal functions of itself, by its distribution alone.

A column's histogram (bought, or of public rows) is a distribution p on a fixed grid of [-1, 1].  Its functions are

    phi_1 = (x - mean) / sd,    phi_k = cos(pi (k - 1) u(x)) made orthogonal to 1, phi_1, ..., phi_{k-1} under p,

u the mid-rank of x under p: a column of two values has one function, one of three two, a number as many as are asked
for.  A linear model of them is an additive model of the columns.  Nothing here reads a record: maps are made from p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import CACHE_BYTES, as_matrix, dtype_of
from isthmus.base.streamed import DerivedRows, Streamed
from isthmus.problems.scaling import UP, Scaled, lengths

_POINT = 1e-9
"""Entries this near to -1, 0 or 1 are these: most indicators and clipped numbers."""
_STANDS = 3.0
"""A count stands out of its noise by so many standard deviations."""
_FAR_OUT = 4.0
"""A linear function goes on to where records are seen, and for so many standard deviations at least."""
_LEAST_NEW = 0.05
"""A function that has less of its variance beside those before it is none."""
_SIMULATED = 4096
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
    edges: Tensor = torch.cat([inner, points - _POINT, points + _POINT]).unique()
    return edges


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
    def ends(self) -> tuple[Tensor, Tensor]:
        """The outer edges of the bins that hold something."""
        occupied = self.p > 0
        low = torch.where(occupied, self.edges[:-1], math.inf).amin(1)
        return low, torch.where(occupied, self.edges[1:], -math.inf).amax(1)

    def inner(self, f: Tensor, g: Tensor) -> Tensor:
        """E f g of each column, for functions given at the middles of the bins."""
        return (self.p * f * g).sum(1, keepdim=True)


def bins_of(edges: Tensor, x: Tensor) -> Tensor:
    """The bin of each number, those outside in the outermost."""
    return (torch.searchsorted(edges, x.contiguous(), right=True) - 1).clamp(0, len(edges) - 2)


def distribution(counts: Tensor, noise: float, n: float, edges: Tensor) -> Distribution:
    """The distribution behind noisy counts (columns x bins) of n records: points first, then in halves.

    A point (a bin of its own, see `grid`) has the records of its count where that stands out of its noise; the others
    lie between the points, and are split in halves from the whole down.  The mass of a node goes to its halves as their
    counts say, up to what noise allows: a half that does not stand out of its noise gets nothing, and where neither
    does they share by their number of bins.  Without noise the counts.

    >>> edges = torch.tensor([0.0, 1.0, 2.0, 3.0, 4.0])
    >>> distribution(torch.tensor([[6.0, 0.0, 2.0, 2.0]]), 0.0, 10, edges).p
    tensor([[0.6000, 0.0000, 0.2000, 0.2000]], dtype=torch.float64)
    """
    counts, point = counts.double(), edges.diff() < 3 * _POINT
    mass = torch.zeros_like(counts)
    mass[:, point], between = _points(counts[:, point], noise, float(n))
    mass[:, ~point] = _between(counts[:, ~point], between, noise)
    return Distribution(edges, mass / mass.sum(1, keepdim=True))


def _points(counts: Tensor, noise: float, n: float) -> tuple[Tensor, Tensor]:
    """The mass of the points, and of all that lies between them: the records that are in none."""
    least = _STANDS * noise
    large = torch.where(counts < least, 0.0, counts).clamp(min=0)
    between = n - counts.sum(1)
    between = torch.where(between < least * math.sqrt(counts.shape[1]), 0.0, n - large.sum(1)).clamp(min=0)
    between = torch.where(between + large.sum(1) > 0, between, n)
    # where all records are at points, what their noise adds up to is shared by these
    fillable = (large > 0) & (between == 0)[:, None]
    missing = (n - large.sum(1) - between) / fillable.sum(1).clamp(min=1)
    return (large + missing[:, None] * fillable).clamp(min=0), between


def _between(counts: Tensor, mass: Tensor, noise: float) -> Tensor:
    """The mass of columns, split over their bins in halves."""
    columns, width = counts.shape
    depth = max(1, math.ceil(math.log2(width)))
    counts = torch.nn.functional.pad(counts, (0, 2**depth - width))
    real = (torch.arange(2**depth) < width).double()
    mass = mass[:, None]
    for level in range(1, depth + 1):  # the bins below each node of this level, as the halves of its parents
        halves = counts.view(columns, 2**level, -1).sum(2).view(columns, -1, 2)
        bins = real.view(2**level, -1).sum(1).view(-1, 2)
        mass = _halved(mass, halves, bins, noise).reshape(columns, -1)
    return mass[:, :width]


def _halved(mass: Tensor, halves: Tensor, bins: Tensor, noise: float) -> Tensor:
    """The mass of nodes, split over their halves."""
    left, right = halves.unbind(-1)
    spread = noise * bins.sum(-1).sqrt() / 2  # of half the difference of two halves
    share = ((mass + left - right) / 2).clamp(min=0)
    share = torch.minimum(share, mass)
    least = torch.minimum(_STANDS * spread, mass / 4)  # nearly half of the records are not nothing
    share = torch.where(share < least, 0.0, share)
    share = torch.where(mass - share < least, mass, share)
    even = bins[..., 0] / bins.sum(-1).clamp(min=1)
    share = torch.where(mass < 2 * _STANDS * spread, mass * even, share)
    share = torch.where(bins[..., 1] == 0, mass, share)
    return torch.stack([share, mass - share], -1)


@dataclass(frozen=True, eq=False)
class SmoothMap:
    """A public map of rows with entries in [-reach, reach]: functions of the columns, shortened, with a bias.

    knots         the middles of the bins
    columns       of each feature
    values        of each feature at the knots; linear between them
    shift, scale  of each column: its linear function is (x - shift) * scale; the first features are these
    limit, bias   longer rows of features are shortened to `limit`; then (f, bias) / hypot(limit, bias)

    A feature is looked up, multiplied and added, entry by entry: what a row becomes depends on no other, to the bit.
    """

    reach: float
    knots: Tensor
    columns: Tensor
    values: Tensor
    shift: Tensor
    scale: Tensor
    limit: float = 1.0
    bias: float = 1.0

    def __call__(self, X: object) -> Scaled:
        """The features of the rows of X, of norm at most 1, in its dtype: a copy, or those of a table as it is read."""
        view = Scaled.of(as_matrix("X", X)).without_constant()
        d, dtype = len(self.shift), dtype_of(view.X)
        if dtype != torch.float32:
            dtype = torch.float64
        remedy = f"give {d} columns, as the features were made for"
        validate.check(view.shape[1] == d, "X.shape", tuple(view.shape), remedy)
        rows = DerivedRows(view, lambda part, where: self._rows(part, dtype), len(self.columns) + 1, dtype)
        plain = Scaled.of(rows if isinstance(view.X, Streamed) else rows.dense())
        return replace(plain, _upper=plain.upper.clamp(max=1.0), unit=True, bias=float(self._constant(dtype)))

    def _rows(self, part: Scaled, dtype: torch.dtype) -> Tensor:
        """The rows of some records, no longer than 1 in their dtype too."""
        D, whole = len(self.columns), self._whole(dtype)
        rows = torch.empty(part.shape[0], D + 1, dtype=dtype)
        step = max(1, CACHE_BYTES // (8 * (len(self.shift) + 4 * D)))
        for lo in range(0, part.shape[0], step):
            block = self._features(part[lo : lo + step].dense() / self.reach)
            length = torch.from_numpy(np.sqrt(lengths(block.numpy()))) * (1 + (D + 64) * 2.0**-52)
            rows[lo : lo + step, :D] = block.mul_((self.limit / length.clamp(min=self.limit) / whole)[:, None])
        rows[:, D:] = self._constant(dtype)
        return rows

    def _whole(self, dtype: torch.dtype) -> float:
        """What all is divided by: a little more than the longest row, for what its dtype rounds."""
        return math.hypot(self.limit, self.bias) * (UP * UP if dtype == torch.float64 else 1 + 2.0**-22)

    def _constant(self, dtype: torch.dtype) -> Tensor:
        """The last column, a number of the dtype."""
        return torch.tensor(self.bias / self._whole(dtype), dtype=dtype)

    def _features(self, x: Tensor) -> Tensor:
        """Of a chunk of rows, not yet shortened."""
        x = x.clamp(float(self.knots[0]), float(self.knots[-1]))
        place = bins_of(self.knots, x)
        inside = (x - self.knots[place]) / (self.knots[place + 1] - self.knots[place])
        rows = torch.arange(len(self.columns))
        place, inside = place[:, self.columns], inside[:, self.columns]
        low, high = self.values[rows, place], self.values[rows, place + 1]
        return low + inside * (high - low)

    def follow(self, weight: Tensor, offset: Tensor, bias: float) -> tuple[Tensor, Tensor, float]:
        """The linear part: where a column has the variance it is taken to have, its smooth functions are uncorrelated
        with its linear one, which is then the best linear account of what the column does (see `RowMaps`)."""
        scale = self.scale / self.reach / math.hypot(self.limit, self.bias)
        bias = self.bias / math.hypot(self.limit, self.bias)
        rest = torch.zeros(len(self.columns) - len(self.shift), dtype=torch.float64)
        offset = (offset - self.shift * self.reach) * scale
        return weight * scale, torch.cat([offset, rest, torch.tensor([bias], dtype=torch.float64)]), bias


def smooth_map(
    columns: Distribution,
    *,
    reach: float = 1.0,
    features: int,
    functions: int,
    longer: float = 1.0,
    floor: float = 0.0,
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
    knots, (low, high) = columns.middles, columns.ends
    low, high = torch.minimum(low, mean - _FAR_OUT * sd), torch.maximum(high, mean + _FAR_OUT * sd)
    straight = (torch.minimum(torch.maximum(knots, low[:, None]), high[:, None]) - mean[:, None]) / sd[:, None]
    ranks = columns.p.cumsum(1) - columns.p / 2
    cosines = torch.cos(math.pi * ranks[..., None] * torch.arange(1, functions, dtype=torch.float64))
    raw = torch.cat([torch.ones_like(ranks)[..., None], straight[..., None], cosines], -1)
    basis, alive = _orthonormal(raw, columns)
    # the first function of every column, then the second, ... at most so many in all
    whole = alive.sum(0).cumsum(0)
    most = whole[whole <= features] if bool(whole[0] <= features) else whole[:1]
    order, column = alive.T.nonzero()[: int(most.max())].unbind(1)
    values = basis[column, :, order] / (order.double() + 1)[:, None]
    draws = torch.Generator().manual_seed(0)  # public: of p alone
    bins = torch.multinomial(columns.p.float().clamp(min=0), _SIMULATED, replacement=True, generator=draws).T
    drawn = values[torch.arange(len(column)), bins[:, column]]
    limit = max(float(torch.linalg.vector_norm(drawn, dim=1).median()) * longer, 1e-6)
    return SmoothMap(reach, knots, column, values, mean, 1 / sd, limit)


def _orthonormal(raw: Tensor, columns: Distribution) -> tuple[Tensor, Tensor]:
    """Gram-Schmidt of functions that are given in the bins (columns x bins x functions), the first of them constant:
    those after it, and which of them are functions at all beside those before.

    The linear one keeps its scale, and is taken out of the others as far as it has variance: where a floor has made it
    small, they stand for it.
    """
    basis = [raw[..., 0], raw[..., 1]]
    alive = [torch.ones(len(raw), dtype=torch.bool)]
    for i in range(2, raw.shape[2]):
        v = raw[..., i]
        for q in basis:
            v = v - columns.inner(v, q) * q
        square = columns.inner(v, v)
        real = square > _LEAST_NEW * columns.inner(raw[..., i], raw[..., i]).clamp(min=1e-12)
        basis.append(v * torch.where(real, square.clamp(min=1e-300).rsqrt(), 0.0))
        alive.append(real[:, 0])
    return torch.stack(basis[1:], -1), torch.stack(alive, 1)
