"""Subspaces of public gradients: what they keep of gradients they have not seen, and how far two are apart."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.diagnostics.spectra import axes, check_public, products, squares
from isthmus.gradients import Rows
from isthmus.sketches.public import NEGLIGIBLE


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

    def plot(self, ax: Any = None, label: str | None = None) -> Any:
        """The share against k."""
        ax = axes(ax, "k", "share of hold-out energy")
        ax.plot(self.ks, self.shares, marker="." if len(self.ks) < 50 else None, label=label)
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

    def plot(self, ax: Any = None, label: str | None = None) -> Any:
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
    sizes = range(1, len(shares) + 1) if ks is None else list(ks)
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
    same = larger.shape[1] == smaller.shape[1]
    distance = min(1.0, float(sines[-1])) if same else 1.0
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
    return principal / residual if residual > 0 else math.inf


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
