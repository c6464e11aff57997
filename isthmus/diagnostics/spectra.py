"""What public gradients look like: eigenvalues of their second moment, their mean, and the subspaces they span.

Inner products <g_i, h_j> of two sets of rows come from their factors where they have them, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import is_sparse, to_dense
from isthmus.gradients import Outer, Rows
from isthmus.gradients.base import row_spans
from isthmus.sketches.public import NEGLIGIBLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def axes(ax: Axes | None, xlabel: str, ylabel: str) -> Axes:
    """The given axes, or those of a new figure, labelled."""
    import matplotlib.pyplot as plt

    if ax is None:
        ax = plt.subplots()[1]
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    return ax


BLOCK_BYTES = 1 << 26

SQUARES_AT_ONCE = 32


def check_public(name: str, rows: Rows) -> None:
    """Rows, with at least one of them; loaders, tuples and tensors are refused, without a word of what they hold."""
    remedy = "give the per-example gradients of public examples, as isthmus.gradients.Rows"
    validate.check(isinstance(rows, Rows), name, type(rows).__name__, remedy)
    validate.check(rows.n > 0, f"{name}.n", rows.n, "give at least one public example")


def products(left: Rows, right: Rows) -> Tensor:
    """The left.n x right.n matrix of <g_i, h_j>: leaf by leaf, n x d only where a kind has no factors, in blocks."""
    ours, theirs = left.leaves(), right.leaves()
    if [piece.d for _, piece in ours] != [piece.d for _, piece in theirs]:
        ours, theirs = [("w", left)], [("w", right)]
    total = torch.zeros(left.n, right.n, dtype=torch.float64, device=left.device)
    for (_, first), (_, second) in zip(ours, theirs, strict=True):
        total += _of_leaves(first, second).to(total.device)
    validate.finite(gradients=total)
    return total


def squares(rows: Rows) -> Tensor:
    """||g_i||^2 in float64, not rounded up: the diagonal of the products, a few rows at a time."""
    spans = row_spans(rows.n, 1, SQUARES_AT_ONCE)
    return torch.cat([products(part, part).diagonal() for part in (rows.part(*span) for span in spans)])


def _of_leaves(first: Rows, second: Rows) -> Tensor:
    if not (isinstance(first, Outer) and isinstance(second, Outer) and (first.p, first.q) == (second.p, second.q)):
        return _in_blocks(first, second)
    if is_sparse(first.a) != is_sparse(second.a) or first.ones != second.ones:
        return _in_blocks(first, second)
    if first.positions == second.positions == 1:
        return _inputs(first, second).to(first.b.device) * (_flat(first.b) @ _flat(second.b).T)
    # T^2 (p + q) numbers a pair against p q of the dense rows
    if first.positions * second.positions * (first.p + first.q) > first.p * first.q:
        return _in_blocks(first, second)
    return _ghost(first, second)


def _ghost(first: Outer, second: Outer) -> Tensor:
    """sum over positions t, s of <a_it, a_js> <b_it, b_js>, without the p q sums."""
    out = torch.zeros(first.n, second.n, dtype=torch.float64, device=first.device)
    for lo, hi in row_spans(first.n, 8 * first.positions * second.n * second.positions, BLOCK_BYTES):
        part = first.part(lo, hi)
        pairs = _inputs(part, second) * (_flat(part.b) @ _flat(second.b).T)
        out[lo:hi] = pairs.view(hi - lo, first.positions, second.n, second.positions).sum((1, 3))
    return out


def _in_blocks(first: Rows, second: Rows) -> Tensor:
    """Dense rows, a block of each side at a time."""
    out = torch.zeros(first.n, second.n, dtype=torch.float64, device=first.device)
    for lo, hi in row_spans(first.n, 8 * first.d, BLOCK_BYTES):
        block = first.part(lo, hi).dense().double()
        for start, stop in row_spans(second.n, 8 * second.d, BLOCK_BYTES):
            out[lo:hi, start:stop] = block @ second.part(start, stop).dense().double().T
    return out


def _inputs(first: Outer, second: Outer) -> Tensor:
    """<a_it, a_js> for every pair of positions; a column of ones that both leave out adds 1."""
    return to_dense(_flat(first.a) @ _flat(second.a).T) + float(first.ones)


def _flat(x: Any) -> Any:
    if is_sparse(x):
        return x.astype("float64")
    return x.double().reshape(-1, x.shape[-1])


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Eigenvalues lambda_1 >= lambda_2 >= ... of M = (1/n) sum_i g_i g_i': min(n, d) of them, the others are 0.

    >>> measured = Spectrum(torch.tensor([3.0, 1.0]), n=2, d=5)
    >>> measured.gap(1), measured.gap(2), measured.stable_rank, measured.shares.tolist()
    (2.0, 1.0, 1.3333333333333333, [0.75, 1.0])
    """

    values: Tensor
    n: int
    d: int

    @property
    def total(self) -> float:
        """The trace, the mean of ||g_i||^2."""
        return float(self.values.sum())

    @property
    def shares(self) -> Tensor:
        """The share of the trace in the first k eigenvalues, for every k (1 when all gradients are 0)."""
        if self.total == 0:
            return torch.ones_like(self.values)
        return self.values.cumsum(0) / self.total

    @property
    def effective_rank(self) -> float:
        """exp(-sum p_j log p_j) with p_j = lambda_j / trace (Roy and Vetterli): 1 for one direction, r for r equal."""
        if self.total == 0:
            return 0.0
        return math.exp(float(torch.special.entr(self.values / self.total).sum()))

    @property
    def stable_rank(self) -> float:
        """trace / lambda_1."""
        if self.total == 0:
            return 0.0
        return self.total / float(self.values[0])

    def gap(self, k: int) -> float:
        """lambda_k - lambda_{k+1}, the eigen-gap alpha of `lab.theory.subspace_error`."""
        validate.positive_int(k=k)
        validate.at_most(self.d, "the dimension d", k=k)
        padded = [*self.values[k - 1 : k + 1].tolist(), 0.0, 0.0]
        return padded[0] - padded[1]

    def table(self) -> dict[str, list[float]]:
        """Columns k, eigenvalue and share."""
        numbers = list(range(1, len(self.values) + 1))
        return {"k": numbers, "eigenvalue": self.values.tolist(), "share": self.shares.tolist()}

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """Eigenvalues in descending order, on a log scale."""
        ax = axes(ax, "k", "eigenvalue of the second moment")
        ax.plot(range(1, len(self.values) + 1), self.values.tolist(), label=label)
        if self.total > 0:
            ax.set_yscale("log")
        return ax


@dataclass(frozen=True)
class Spectra:
    """Spectra collected along training, the picture of Figure 1 of Zhou, Wu and Banerjee.

    >>> measured = Spectra().add(0, Spectrum(torch.tensor([3.0, 1.0]), n=2, d=5))
    >>> measured.add(10, Spectrum(torch.tensor([1.0, 1.0]), n=2, d=5)).table()
    {'step': [0, 0, 10, 10], 'k': [1, 2, 1, 2], 'eigenvalue': [3.0, 1.0, 1.0, 1.0], 'share': [0.75, 1.0, 0.5, 1.0]}
    """

    steps: tuple[int, ...] = ()
    spectra: tuple[Spectrum, ...] = ()

    def add(self, step: int, spectrum: Spectrum) -> Spectra:
        """These and one more; steps increase."""
        validate.non_negative_int(step=step)
        after = not self.steps or step > self.steps[-1]
        validate.check(after, "step", step, f"give a step after {self.steps[-1:]}")
        validate.check(isinstance(spectrum, Spectrum), "spectrum", spectrum, "give what spectrum(public) returned")
        return Spectra((*self.steps, step), (*self.spectra, spectrum))

    def gaps(self, k: int) -> list[float]:
        """The eigen-gap at k of every step: the `gaps` of `lab.theory.gap_moment`."""
        return [spectrum.gap(k) for spectrum in self.spectra]

    def table(self) -> dict[str, list[float]]:
        """Columns step, k, eigenvalue and share, one spectrum after the other."""
        out: dict[str, list[float]] = {"step": [], "k": [], "eigenvalue": [], "share": []}
        for step, spectrum in zip(self.steps, self.spectra, strict=True):
            part = spectrum.table()
            out["step"] += [step] * len(part["k"])
            for name, column in part.items():
                out[name] += column
        return out

    def plot(self, ax: Axes | None = None) -> Axes:
        """One curve a step."""
        ax = axes(ax, "k", "eigenvalue of the second moment")
        for step, spectrum in zip(self.steps, self.spectra, strict=True):
            spectrum.plot(ax, label=f"step {step}")
        if self.steps:
            ax.legend()
        return ax


@dataclass(frozen=True, eq=False)
class Components:
    """|m_(1)| >= |m_(2)| >= ... of a mean gradient m, the picture of Figure 2 of Zhou, Wu and Banerjee.

    >>> measured = Components(torch.tensor([2.0, 1.0, 1.0]))
    >>> round(measured.envelope, 3), measured.table()
    (2.0, {'j': [1, 2, 3], 'component': [2.0, 1.0, 1.0]})
    """

    values: Tensor

    @property
    def envelope(self) -> float:
        """The least c with |m_(j)| <= c / sqrt(j) for every j: the half-axes of `lab.theory.ellipsoid_gamma2`."""
        order = torch.arange(1, len(self.values) + 1, dtype=self.values.dtype, device=self.values.device)
        return float((self.values * order.sqrt()).max())

    def table(self) -> dict[str, list[float]]:
        """Columns j and component."""
        return {"j": list(range(1, len(self.values) + 1)), "component": self.values.tolist()}

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """Components in descending order, both axes on a log scale."""
        ax = axes(ax, "j", "|component| of the mean gradient")
        ax.plot(range(1, len(self.values) + 1), self.values.tolist(), label=label)
        if float(self.values[0]) > 0:
            ax.set_xscale("log")
            ax.set_yscale("log")
        return ax


def spectrum(public: Rows) -> Spectrum:
    """The spectrum of the second moment (1/n) sum_i g_i g_i' of public gradients, through their n x n Gram matrix.

    public  per-example gradients of PUBLIC examples; those of private ones would leak

    >>> from isthmus.gradients import Dense
    >>> spectrum(Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))).values.tolist()
    [2.0, 0.5]
    """
    check_public("public", public)
    values = torch.linalg.eigvalsh(products(public, public) / public.n).flip(0).clamp(min=0)
    return Spectrum(values[: min(public.n, public.d)].cpu(), public.n, public.d)


def eigen_gap(public: Rows, k: int) -> float:
    """lambda_k - lambda_{k+1} of the second moment of public gradients.

    >>> from isthmus.gradients import Dense
    >>> eigen_gap(Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]])), 1)
    1.5
    """
    return spectrum(public).gap(k)


def sorted_components(public: Rows | Tensor) -> Components:
    """The sorted |components| of the mean public gradient, or of a vector that is public or was released.

    >>> from isthmus.gradients import Dense
    >>> sorted_components(Dense(torch.tensor([[1.0, -4.0], [1.0, -2.0]]))).values.tolist()
    [3.0, 1.0]
    """
    if isinstance(public, Tensor):
        vector = validate.as_tensor("public", public, ndim=1)
        validate.check(vector.numel() > 0, "public.shape", tuple(vector.shape), "give at least one component")
    else:
        check_public("public", public)
        vector = public.sum() / public.n
        validate.finite(public=vector)
    return Components(vector.detach().double().abs().sort(descending=True).values.cpu())


@dataclass(frozen=True)
class EnergyCurve:
    """The share of hold-out energy in the top-k public subspace, for each k of `ks`.

    rank  directions that carry energy: a larger k is the same subspace

    >>> curve = EnergyCurve(ks=(1, 2, 4), shares=(0.5, 0.8, 0.95), rank=10, n_fit=10, n_holdout=5)
    >>> curve.at(2), choose_k(curve)
    (0.8, 4)
    """

    ks: tuple[int, ...]
    shares: tuple[float, ...]
    rank: int
    n_fit: int
    n_holdout: int

    def at(self, k: int) -> float:
        """The share at k, one of `ks`."""
        validate.one_of(self.ks, k=k)
        return self.shares[self.ks.index(k)]

    def table(self) -> dict[str, list[float]]:
        """Columns k and share."""
        return {"k": list(self.ks), "share": list(self.shares)}

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """The share against k."""
        ax = axes(ax, "k", "share of hold-out energy")
        marker = None
        if len(self.ks) < 50:
            marker = "."
        ax.plot(self.ks, self.shares, marker=marker, label=label)
        ax.set_ylim(0, 1.02)
        return ax


@dataclass(frozen=True)
class Angles:
    """Principal angles of two subspaces in radians, ascending, and ||V V' - W W'||.

    >>> measured = Angles((0.0, 0.5), distance=math.sin(0.5))
    >>> measured.table()
    {'i': [1, 2], 'angle': [0.0, 0.5]}
    """

    values: tuple[float, ...]
    distance: float

    def table(self) -> dict[str, list[float]]:
        """Columns i and angle."""
        return {"i": list(range(1, len(self.values) + 1)), "angle": list(self.values)}

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """The angles in degrees."""
        ax = axes(ax, "i", "principal angle (degrees)")
        ax.plot(range(1, len(self.values) + 1), [math.degrees(v) for v in self.values], marker=".", label=label)
        ax.set_ylim(0, 92)
        return ax


def captured_energy(public: Rows, public_holdout: Rows, ks: Iterable[int] | None = None) -> EnergyCurve:
    """sum_i ||V_k' h_i||^2 / sum_i ||h_i||^2 of public hold-out gradients h, V_k from other public ones, for every k.

    One eigendecomposition of the n x n Gram matrix serves all k; n x d is never built.  On the gradients that V_k was
    fitted to the share says nothing (it is 1 at k = n), so the same rows twice are refused.

    public          gradients of the public examples that the subspace is learned from
    public_holdout  gradients of OTHER public examples at the same parameters
    ks              which k; None is every k up to the number of directions with energy

    >>> from isthmus.gradients import Dense
    >>> fit = Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))
    >>> captured_energy(fit, Dense(torch.tensor([[3.0, 4.0, 5.0]]))).table()
    {'k': [1, 2], 'share': [0.18, 0.5]}
    """
    check_public("public", public)
    check_public("public_holdout", public_holdout)
    remedy = "give gradients of public examples that the subspace was not learned from"
    validate.check(not _shared(public, public_holdout), "public_holdout", public_holdout, remedy)
    validate.check(public_holdout.d == public.d, "public_holdout.d", public_holdout.d, f"give d = {public.d}")
    whole = float(squares(public_holdout).sum())
    validate.check(whole > 0, "public_holdout", public_holdout, "give gradients that are not all zero")
    values, vectors = torch.linalg.eigh(products(public, public))
    top = float(values[-1])
    validate.check(top > 0, "public", public, "give gradients that are not all zero")
    keep = (values > NEGLIGIBLE * top).nonzero().squeeze(1).flip(0)[: public.d]
    # V_k' h_i = lambda^(-1/2) U' (G h_i), and G h_i are inner products
    codes = vectors[:, keep].T @ products(public, public_holdout).to(vectors.device) / values[keep].sqrt()[:, None]
    shares = (codes.square().sum(1).cumsum(0) / whole).clamp(max=1.0).tolist()
    sizes = list(range(1, len(shares) + 1))
    if ks is not None:
        sizes = list(ks)
    validate.check(len(sizes) > 0, "ks", ks, "give at least one k")
    for k in sizes:
        validate.positive_int(k=k)
        validate.at_most(public.d, "the dimension d", k=k)
    picked = tuple(shares[min(k, len(shares)) - 1] for k in sizes)
    return EnergyCurve(tuple(sizes), picked, len(shares), public.n, public_holdout.n)


def choose_k(curve: EnergyCurve, share: float = 0.9) -> int:
    """The smallest k of the curve that captures the share; refused when none does.

    >>> choose_k(EnergyCurve(ks=(1, 2), shares=(0.5, 0.92), rank=2, n_fit=9, n_holdout=9))
    2
    """
    validate.probability(share=share)
    good = [k for k, captured in zip(curve.ks, curve.shares, strict=True) if captured >= share]
    best = max(curve.shares)
    validate.check(
        bool(good),
        "share",
        share,
        f"ask for a smaller share, a larger k, or more public examples: the curve reaches {best:.3g}",
    )
    return min(good)


def principal_angles(V: Tensor, W: Tensor) -> Angles:
    """The principal angles between the column spaces of V and W, whose columns are orthonormal.

    cos from the singular values of V'W, sin from those of W - V V'W, the angle from both: small angles and right
    ones are equally exact.  The distance is sin of the largest angle, and 1 for subspaces of different dimension.

    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> principal_angles(eye[:, :2], eye[:, 1:]).table()["angle"], principal_angles(eye[:, :2], eye[:, 1:]).distance
    ([0.0, 1.5707963267948966], 1.0)
    """
    larger, smaller = _basis("V", V), _basis("W", W)
    validate.check(len(smaller) == len(larger), "W.shape", tuple(W.shape), f"give {len(larger)} rows, as V has")
    if smaller.shape[1] > larger.shape[1]:
        larger, smaller = smaller, larger
    inner = larger.T @ smaller
    cosines = torch.linalg.svdvals(inner)
    sines = torch.linalg.svdvals(smaller - larger @ inner).flip(0)
    angles = torch.atan2(sines, cosines)
    distance = 1.0
    if larger.shape[1] == smaller.shape[1]:
        distance = min(1.0, float(sines[-1]))
    return Angles(tuple(angles.tolist()), distance)


def subspace_distance(V: Tensor, W: Tensor) -> float:
    """||V V' - W W'||, spectral, of orthonormal columns: 0 for the same subspace, 1 when some direction is missed.

    >>> turned = torch.tensor([[0.8], [0.6]], dtype=torch.float64)
    >>> round(subspace_distance(torch.eye(2, dtype=torch.float64)[:, :1], turned), 12)
    0.6
    """
    return principal_angles(V, W).distance


def principal_residual_ratio(public: Rows | Tensor, V: Tensor) -> float:
    """||V V' g||^2 / ||g - V V' g||^2 of the mean public gradient g, or of a vector that is public or was released.

    Infinite when nothing is left outside.  Theorem 4 of Zhou, Wu and Banerjee asks for a c of at least 1 / this,
    averaged over training: the `residual` of `lab.theory.subspace_stationary_bound`.  Use examples that V was not
    learned from.

    >>> principal_residual_ratio(torch.tensor([3.0, 4.0]), torch.tensor([[0.0], [1.0]])) == 16 / 9
    True
    """
    if isinstance(public, Tensor):
        gradient = validate.as_tensor("public", public, ndim=1)
    else:
        check_public("public", public)
        gradient = public.sum() / public.n
    basis, g = _basis("V", V), gradient.detach().double().cpu()
    validate.shape((len(basis),), public=g)
    inside = basis @ (basis.T @ g)
    principal, residual = float(inside.square().sum()), float((g - inside).square().sum())
    validate.check(principal + residual > 0, "||public||", 0.0, "give a gradient that is not zero")
    if residual == 0:
        return math.inf
    return principal / residual


def _shared(first: Rows, second: Rows) -> bool:
    """Whether the two are the same rows, or hold a leaf in common."""
    ours = {id(first), *(id(piece) for _, piece in first.leaves())}
    return id(second) in ours or any(id(piece) in ours for _, piece in second.leaves())


def _basis(name: str, columns: Tensor) -> Tensor:
    """Orthonormal columns in float64; refused unless they were orthonormal to half the digits of their dtype."""
    basis = validate.as_tensor(name, columns, ndim=2).detach()
    tolerance = math.sqrt(torch.finfo(basis.dtype).eps)
    basis = basis.double().cpu()
    d, k = basis.shape
    validate.check(1 <= k <= d, f"{name}.shape", (d, k), "give a d x k matrix with 1 <= k <= d")
    off = float((basis.T @ basis - torch.eye(k, dtype=torch.float64)).abs().max())
    validate.check(off <= tolerance, name, f"||{name}'{name} - I||_max = {off:.2g}", "give orthonormal columns")
    return torch.linalg.qr(basis)[0]  # the same subspace, orthonormal to the last digits
