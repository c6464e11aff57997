"""What public gradients and released values say about a private run.

Two kinds of input, and no third.  PUBLIC per-example gradients, as `isthmus.gradients.Rows` (the argument is called
`public` or `public_...`): spectra, captured energy, subspaces.  RELEASED values, noised and paid for: noise to signal.
Nothing here takes a loader, a model or private rows: the same figures of private data would leak.

    function                                    answers
    ------------------------------------------  ----------------------------------------------------------
    spectrum -> Spectrum, Spectra               eigenvalues of the second moment, also along training
    sorted_components -> Components             how fast the coordinates of the mean gradient fall
    captured_energy -> EnergyCurve, choose_k    what a public subspace keeps of gradients it has not seen
    eigen_gap                                   lambda_k - lambda_{k+1}
    principal_angles -> Angles,
      subspace_distance                         how far two subspaces are apart
    principal_residual_ratio                    the mean gradient inside and outside a subspace
    noise_to_signal -> NoiseToSignal, Tracker   how much of what was released is noise, also along training

Records have `.table()`, plain columns, and `.plot(ax=None)`, which returns matplotlib axes.  Inner products of two
sets of rows come from their factors where they have them, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.gradients import Rows
from isthmus.gradients.rows import inner, row_spans
from isthmus.sketches.public import NEGLIGIBLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# ---------------------------------------------------------------- what they share


def _axes(ax: Axes | None, xlabel: str, ylabel: str) -> Axes:
    """The given axes, or those of a new figure, labelled."""
    import matplotlib.pyplot as plt

    if ax is None:
        ax = plt.subplots()[1]
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    return ax


class _Curve:
    """A record whose picture is the second column of its table against the first."""

    _ylabel: ClassVar[str]
    _logarithmic: ClassVar[str] = ""
    _limits: ClassVar[tuple[float, float] | None] = None

    def table(self) -> dict[str, list[float]]:
        """Plain columns."""
        raise NotImplementedError

    def plot(self, ax: Axes | None = None, label: str | None = None) -> Axes:
        """The second column against the first."""
        (xlabel, x), (_, y), *_ = self.table().items()
        ax = _axes(ax, xlabel, self._ylabel)
        ax.plot(x, y, marker=".", label=label)
        ax.set_ylim(self._limits)
        if max(y) > 0:
            ax.set(**{f"{axis}scale": "log" for axis in self._logarithmic})
        return ax


def _check_public(name: str, rows: Rows) -> None:
    """Rows, with at least one of them; loaders, tuples and tensors are refused, without a word of what they hold."""
    remedy = "give the per-example gradients of public examples, as isthmus.gradients.Rows"
    validate.check(isinstance(rows, Rows), name, type(rows).__name__, remedy)
    validate.check(rows.n > 0, f"{name}.n", rows.n, "give at least one public example")


def _products(left: Rows, right: Rows) -> Tensor:
    """The left.n x right.n matrix of <g_i, h_j> in float64, leaf by leaf."""
    ours, theirs = left.leaves(), right.leaves()
    if [piece.d for _, piece in ours] != [piece.d for _, piece in theirs]:
        ours, theirs = [("w", left)], [("w", right)]
    total = torch.zeros(left.n, right.n, dtype=torch.float64, device=left.device)
    for (_, first), (_, second) in zip(ours, theirs, strict=True):
        total += inner(first, second, torch.float64).to(total.device)
    validate.finite(gradients=total)
    return total


def _squares(rows: Rows) -> Tensor:
    """||g_i||^2 in float64, not rounded up: the diagonal of the products, a few rows at a time."""
    parts = [rows.part(lo, hi) for lo, hi in row_spans(rows.n, 1, 32)]
    return torch.cat([_products(part, part).diagonal() for part in parts])


def _mean_of(public: Rows | Tensor) -> Tensor:
    """The mean gradient of public rows, or a vector that is public or was released, in float64 on the CPU."""
    if not isinstance(public, Tensor):
        _check_public("public", public)
        public = public.sum() / public.n
    return validate.as_tensor("public", public, ndim=1).detach().double().cpu()


# ---------------------------------------------------------------- public gradients


@dataclass(frozen=True, eq=False)
class Spectrum(_Curve):
    """Eigenvalues lambda_1 >= lambda_2 >= ... of M = (1/n) sum_i g_i g_i': min(n, d) of them, the others are 0.

    >>> measured = Spectrum(torch.tensor([3.0, 1.0]), n=2, d=5)
    >>> measured.gap(1), measured.gap(2), measured.stable_rank, measured.shares.tolist()
    (2.0, 1.0, 1.3333333333333333, [0.75, 1.0])
    """

    _ylabel, _logarithmic = "eigenvalue of the second moment", "y"

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
        return self.values.cumsum(0) / self.total if self.total else torch.ones_like(self.values)

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
        ax = _axes(ax, "k", "eigenvalue of the second moment")
        for step, spectrum in zip(self.steps, self.spectra, strict=True):
            spectrum.plot(ax, label=f"step {step}")
        if self.steps:
            ax.legend()
        return ax


@dataclass(frozen=True, eq=False)
class Components(_Curve):
    """|m_(1)| >= |m_(2)| >= ... of a mean gradient m, the picture of Figure 2 of Zhou, Wu and Banerjee.

    >>> measured = Components(torch.tensor([2.0, 1.0, 1.0]))
    >>> round(measured.envelope, 3), measured.table()
    (2.0, {'j': [1, 2, 3], 'component': [2.0, 1.0, 1.0]})
    """

    _ylabel, _logarithmic = "|component| of the mean gradient", "xy"

    values: Tensor

    @property
    def envelope(self) -> float:
        """The least c with |m_(j)| <= c / sqrt(j) for every j: the half-axes of `lab.theory.ellipsoid_gamma2`."""
        order = torch.arange(1, len(self.values) + 1, dtype=self.values.dtype, device=self.values.device)
        return float((self.values * order.sqrt()).max())

    def table(self) -> dict[str, list[float]]:
        """Columns j and component."""
        return {"j": list(range(1, len(self.values) + 1)), "component": self.values.tolist()}


def spectrum(public: Rows) -> Spectrum:
    """The spectrum of the second moment (1/n) sum_i g_i g_i' of public gradients, through their n x n Gram matrix.

    public  per-example gradients of PUBLIC examples; those of private ones would leak

    >>> from isthmus.gradients import Dense
    >>> spectrum(Dense(torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.0]]))).values.tolist()
    [2.0, 0.5]
    """
    _check_public("public", public)
    values = torch.linalg.eigvalsh(_products(public, public) / public.n).flip(0).clamp(min=0)
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
    vector = _mean_of(public)
    validate.check(vector.numel() > 0, "public.shape", tuple(vector.shape), "give at least one component")
    return Components(vector.abs().sort(descending=True).values)


@dataclass(frozen=True)
class EnergyCurve(_Curve):
    """The share of hold-out energy in the top-k public subspace, for each k of `ks`.

    rank  directions that carry energy: a larger k is the same subspace

    >>> curve = EnergyCurve(ks=(1, 2, 4), shares=(0.5, 0.8, 0.95), rank=10, n_fit=10, n_holdout=5)
    >>> curve.at(2), choose_k(curve)
    (0.8, 4)
    """

    _ylabel, _limits = "share of hold-out energy", (0.0, 1.02)

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


@dataclass(frozen=True)
class Angles(_Curve):
    """Principal angles of two subspaces in radians, ascending, and ||V V' - W W'||.

    >>> measured = Angles((0.0, 0.5), distance=math.sin(0.5))
    >>> measured.table()
    {'i': [1, 2], 'angle': [0.0, 0.5]}
    """

    _ylabel, _limits = "principal angle (radians)", (0.0, 1.6)

    values: tuple[float, ...]
    distance: float

    def table(self) -> dict[str, list[float]]:
        """Columns i and angle."""
        return {"i": list(range(1, len(self.values) + 1)), "angle": list(self.values)}


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
    _check_public("public", public)
    _check_public("public_holdout", public_holdout)
    remedy = "give gradients of public examples that the subspace was not learned from"
    validate.check(not _shared(public, public_holdout), "public_holdout", public_holdout, remedy)
    validate.check(public_holdout.d == public.d, "public_holdout.d", public_holdout.d, f"give d = {public.d}")
    whole = float(_squares(public_holdout).sum())
    validate.check(whole > 0, "public_holdout", public_holdout, "give gradients that are not all zero")
    values, vectors = torch.linalg.eigh(_products(public, public))
    top = float(values[-1])
    validate.check(top > 0, "public", public, "give gradients that are not all zero")
    keep = (values > NEGLIGIBLE * top).nonzero().squeeze(1).flip(0)[: public.d]
    # V_k' h_i = lambda^(-1/2) U' (G h_i), and G h_i are inner products
    codes = vectors[:, keep].T @ _products(public, public_holdout).to(vectors.device) / values[keep].sqrt()[:, None]
    shares = (codes.square().sum(1).cumsum(0) / whole).clamp(max=1.0).tolist()
    sizes = list(range(1, len(shares) + 1) if ks is None else ks)
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
    remedy = f"ask for a smaller share, a larger k, or more public examples: the curve reaches {best:.3g}"
    validate.check(bool(good), "share", share, remedy)
    return min(good)


def principal_angles(V: Tensor, W: Tensor) -> Angles:
    """The principal angles between the column spaces of V and W, whose columns are orthonormal.

    cos from the singular values of V'W, sin from those of W - V V'W, the angle from both: small angles and right
    ones are equally exact.  The distance is sin of the largest angle, and 1 for subspaces of different dimension.

    >>> eye = torch.eye(3, dtype=torch.float64)
    >>> principal_angles(eye[:, :2], eye[:, 1:]).table()["angle"], principal_angles(eye[:, :2], eye[:, 1:]).distance
    ([0.0, 1.5707963267948966], 1.0)
    """
    bases = _basis("V", V), _basis("W", W)
    validate.check(len(V) == len(W), "W.shape", tuple(W.shape), f"give {len(V)} rows, as V has")
    smaller, larger = sorted(bases, key=lambda basis: basis.shape[1])
    inner = larger.T @ smaller
    cosines = torch.linalg.svdvals(inner)
    sines = torch.linalg.svdvals(smaller - larger @ inner).flip(0)
    angles = torch.atan2(sines, cosines)
    distance = min(1.0, float(sines[-1])) if larger.shape == smaller.shape else 1.0
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
    basis, g = _basis("V", V), _mean_of(public)
    validate.shape((len(basis),), public=g)
    inside = basis @ (basis.T @ g)
    principal, residual = float(inside.square().sum()), float((g - inside).square().sum())
    validate.check(principal + residual > 0, "||public||", 0.0, "give a gradient that is not zero")
    return principal / residual if residual else math.inf


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


# ---------------------------------------------------------------- released values


class Sink(Protocol):
    """Where a `Tracker` sends its numbers as they come: `isthmus.tensorboard.TensorBoardWriter`, say."""

    def scalars(self, step: int, values: Mapping[str, float | None]) -> None:
        """Take the named numbers of a step."""


@dataclass(frozen=True)
class NoiseToSignal:
    """The sizes in a released y = s + N(0, sigma^2 I_m): the norm of y, of the noise (public), of s (estimated).

    >>> NoiseToSignal(released=5.0, noise=4.0, m=16).table()
    {'released': 5.0, 'noise': 4.0, 'signal': 3.0, 'noise_to_signal': 1.3333333333333333}
    """

    released: float
    noise: float
    m: int

    @property
    def signal(self) -> float:
        """sqrt(max(0, ||y||^2 - m sigma^2)): its square is unbiased before it is cut at 0."""
        return math.sqrt(max(0.0, (self.released - self.noise) * (self.released + self.noise)))

    @property
    def ratio(self) -> float:
        """noise / signal, infinite when no signal is seen."""
        return self.noise / self.signal if self.signal else math.inf

    def table(self) -> dict[str, float]:
        """released, noise, signal and noise_to_signal."""
        sizes = {"released": self.released, "noise": self.noise, "signal": self.signal}
        return sizes | {"noise_to_signal": self.ratio}

    def plot(self, ax: Axes | None = None) -> Axes:
        """The three norms as bars."""
        ax = _axes(ax, "", "norm")
        ax.bar(["released", "noise", "signal"], [self.released, self.noise, self.signal])
        return ax


def noise_to_signal(released: Tensor, sigma_per_coordinate: float) -> NoiseToSignal:
    """Noise against signal in a RELEASED noisy value: sqrt(m) sigma against sqrt(max(0, ||y||^2 - m sigma^2)).

    Post-processing: it costs nothing.  sigma = 0 is refused, for then the value was not noised.  One release at a low
    signal says little: ||y||^2 varies by about sqrt(2 m) sigma^2.

    released              the noisy value, in the space the noise was added in (R^m, before the lift)
    sigma_per_coordinate  the standard deviation of its noise, in the same units

    >>> round(noise_to_signal(torch.tensor([3.0, 4.0]), 2.0).signal ** 2, 12)
    17.0
    """
    _check_released(released)
    validate.positive(sigma_per_coordinate=sigma_per_coordinate)
    validate.finite(released=released)
    size = math.sqrt(float(_square(released)))
    return NoiseToSignal(size, math.sqrt(released.numel()) * sigma_per_coordinate, released.numel())


_Seen = tuple[int, Tensor, int, float, float | None]
"""A round, ||y||^2, the number of coordinates, the noise of each, and the share of clipped records."""


class Tracker:
    """Collects released norms, noise to signal and paid-for clip fractions over training.

    `observe` takes what was RELEASED and keeps one number of it; nothing is copied off an accelerator until `table` or
    `plot` asks, unless there is a sink.  A pipeline with several releases a round takes a tracker for each.

    sink  has `.scalars(step, mapping)`; gets every observation as it comes

    >>> tracker = Tracker()
    >>> tracker.observe(0, torch.tensor([3.0, 4.0]), noise_std=2.0)
    >>> tracker.observe(1, torch.tensor([0.0, 1.0]), noise_std=2.0, clip_fraction=0.25)
    >>> tracker.table()["noise_to_signal"][1], tracker.table()["clip_fraction"]
    (inf, [None, 0.25])
    """

    def __init__(self, sink: Sink | None = None) -> None:
        self.sink = sink
        self._seen: list[_Seen] = []

    def __len__(self) -> int:
        return len(self._seen)

    def observe(self, t: int, released: Tensor, noise_std: float, clip_fraction: float | None = None) -> None:
        """Take in the release of round t.

        released       the noisy value, in the space the noise was added in
        noise_std      of each of its coordinates, > 0
        clip_fraction  the share of clipped records where it was itself released with noise; None where it was not
        """
        validate.non_negative_int(t=t)
        later = not self._seen or t > self._seen[-1][0]
        validate.check(later, "t", t, "observe each round once, in the order of rounds")
        _check_released(released)
        validate.positive(noise_std=noise_std)
        if clip_fraction is not None:  # noise may carry it out of [0, 1]
            validate.check(math.isfinite(clip_fraction), "clip_fraction", clip_fraction, "give a number, or None")
        self._seen.append((t, _square(released), released.numel(), noise_std, clip_fraction))
        if self.sink is not None:
            self.sink.scalars(t, self._record(self._seen[-1]))

    def table(self) -> dict[str, list[Any]]:
        """Columns step, released, noise, signal, noise_to_signal and clip_fraction (None where it was not paid for)."""
        records = [{"step": entry[0], **self._record(entry)} for entry in self._seen]
        names = ("step", "released", "noise", "signal", "noise_to_signal", "clip_fraction")
        return {name: [record[name] for record in records] for name in names}

    def plot(self, ax: Axes | None = None) -> Axes:
        """The norms of what was released, of the noise and of the signal, over training."""
        ax, table = _axes(ax, "round", "norm"), self.table()
        for name in ("released", "noise", "signal"):
            ax.plot(table["step"], table[name], label=name)
        ax.legend()
        return ax

    @staticmethod
    def _record(entry: _Seen) -> dict[str, float | None]:
        _, square, m, noise_std, clip_fraction = entry
        sizes = NoiseToSignal(math.sqrt(float(square)), math.sqrt(m) * noise_std, m)
        return {**sizes.table(), "clip_fraction": clip_fraction}


def _square(released: Tensor) -> Tensor:
    """||y||^2 as a tensor with no dimensions, where y is."""
    return released.detach().double().square().sum()


def _check_released(released: Tensor) -> None:
    good = isinstance(released, Tensor) and released.is_floating_point() and released.numel() > 0
    remedy = "give the released noisy value, a floating tensor that is not empty"
    validate.check(good, "released", type(released).__name__, remedy)
