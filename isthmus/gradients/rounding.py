"""Norms that are never below the true ones, and sums that are certain: the error bounds of the package, in one place.

Notation: `u` is the unit roundoff of a dtype (2^-24 for float32), `gamma = k u / (1 - k u)` bounds the relative
error of k roundings in any order (Higham, Accuracy and Stability, Lemma 3.1).  An upper bound is a float64 tensor;
`round_up` turns it into a number of the wanted dtype without ever going below it.

**Norms of rows.**  An l2 norm of k entries squares each (one rounding) and adds k of them (at most k - 1 roundings
each), in any order: the sum is off by `gamma_k`, its root by `gamma_k / 2`, plus one rounding of the root.  Everything
is added up in float64, where no square of a float32 leaves the range; rows of float64 near either end of theirs are
done again, divided by a power of two.

**Norms of sums of outer products**, g = sum_t b_t a_t', from the factors.

With M = sum_t ||a_t|| ||b_t||, u the unit roundoff and gamma_k = k u / (1 - k u):

* **ghost**: ||g||^2 = sum_{s,t} (a_s'a_t)(b_s'b_t).  A computed a_s'a_t is off by at most
  gamma_p ||a_s|| ||a_t|| (Cauchy-Schwarz), so every term is off by gamma_{p+q+1} times
  ||a_s|| ||a_t|| ||b_s|| ||b_t||, and the whole by gamma_{p+q+8} M^2.  A sum that nearly cancels has ||g|| << M, so
  the error is added UNDER the root: it is never too small.  The T^2 terms are added in float64.
  Rows that are not known within a factor `LOOSE`, or whose numbers leave the range, are done again by the direct route.
* **direct**: the q x p entries are dot products of length T in float64, off by gamma_T sum_t |b_t||a_t|', so the norm
  of any ord is off by gamma_T M_ord, which is added to it.

**Sums.**  The COMPUTED sum of clipped records moves by at most C (1 + kappa) with one record.

A clipped record has norm at most C, but the floating-point sum of n of them can move by far more when one comes or
goes: near a power of two, one record changes how every later addition rounds.  What holds in any order of additions
(Higham, Accuracy and Stability, section 4.2): a sum in which no term takes part in more than k roundings is off, entry
by entry, by at most gamma_k times the sum of the terms' absolute values.  Hence, in every norm,

    || computed - true || <= gamma_k * mass,    mass = sum_i c_i M_i,

where M_i is the norm of the absolute sum of the terms that record i is made of: its own norm where it is one term,
sum_t ||a_t|| ||b_t|| where it is sum_t b_t a_t', whose terms may cancel.  `Rows.sum_to(weights, rho)` chooses k so that
gamma_k <= rho: one product where its length allows it, else chunks of terms whose sums are added in float64, else
float64 throughout, chunked and compensated where even that is needed.  With rho = (kappa / 2) C / mass the computed
sum of EVERY data set is within (kappa / 2) C of its true one, so that two neighbours' differ by at most C (1 + kappa).

The choice may look at the data: what is promised is the error, and that does not depend on the choice.  `kappa` itself
is public; it is part of the bound that the noise is scaled to.

**Sums of outer products in whole numbers**: exact, whatever the number of records.

One product b' a of thousands of records cannot be added up in float32 to within a part of one record's bound, and
chunks that can are slow.  Integers can: the row of a record is taken to be its clipped gradient with factors rounded
towards zero on a public grid, and integer products of the grid's numbers are added without any rounding.

With c_i the weight of record i, C the bound, r_i = c_i |a_i||b_i| / C <= 1 its share of it, and N = 127 * 128,

    x_i = trunc(N sqrt(r_i) b_i / |b_i|),   y_i = trunc(N sqrt(r_i) a_i / |a_i|),
    sum_i c_i b_i a_i'  ~  (C / N^2) sum_i x_i y_i'.

Rounding towards zero makes no entry larger, so the row x_i y_i' C / N^2 is no longer than c_i |a_i||b_i| <= C.  Every
number is 128 h + l with |h|, |l| <= 127: three products of 8-bit integers with 32-bit sums, which GPUs multiply several
times as fast as TF32.  A factor loses less than 1 / N of its longest possible entry.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache, lru_cache

import torch
from torch import Tensor

from isthmus.base import validate
from isthmus.base.matrix import CACHE_BYTES, Matrix, Total, View, row_norms
from isthmus.gradients import fused

ORDS = (1, 2, math.inf)
"""The norms rows have."""
CHUNK_BYTES = 1 << 26
"""Temporary buffers of one call stay near this size."""
_CACHED = 1 << 18
"""Numbers that are converted to float64 together: they stay in a core's cache."""
RESERVE = 4
"""Roundings, relative, that `Rows.norms` adds for what comes after it: the division C / norm, the cast of the
weight and of the factors, the product with the row."""


@cache
def unit(dtype: torch.dtype) -> float:
    """The unit roundoff u: half the distance from 1 to the next number."""
    return torch.finfo(dtype).eps / 2


@cache
def gamma(k: float, dtype: torch.dtype) -> float:
    """k u / (1 - k u): the relative error of k roundings."""
    ku = k * unit(dtype)
    return ku / (1 - ku) if ku < 1 else math.inf


@cache
def working(*dtypes: torch.dtype) -> torch.dtype:
    """The dtype products of these are done in: the widest of them and of float32."""
    result = torch.float32
    for dtype in dtypes:
        result = torch.promote_types(result, dtype)
    return result


def round_up(value: Tensor, dtype: torch.dtype) -> Tensor:
    """The smallest numbers of `dtype` that are not below `value` (float64); NaN becomes infinity.

    >>> x = torch.tensor([0.1, 0.0, 1e-60, 1e60], dtype=torch.float64)
    >>> y = round_up(x, torch.float32)
    >>> bool((y.double() >= x).all()), float(y[1]), float(y[3])
    (True, 0.0, inf)
    """
    value = torch.where(value.isnan(), math.inf, value)
    near = value.to(dtype)
    return torch.where(near.to(torch.float64) < value, torch.nextafter(near, torch.full_like(near, math.inf)), near)


def times(weights: Tensor, factor: float) -> Tensor:
    """Weights times a number; 0 below the normal numbers, where rounding up may double one.

    >>> times(torch.tensor([1.0, 1e-37]), 2.0**-10)
    tensor([0.0010, 0.0000])
    """
    scaled = weights * factor
    return torch.where(scaled.abs() >= torch.finfo(scaled.dtype).tiny, scaled, 0.0)


def _check_ord(ord: float) -> None:
    """Refuse norms that rows do not have."""
    if ord not in ORDS:
        validate.one_of(ORDS, ord=ord)


def upper_norms(x: Matrix, ord: float = 2) -> Tensor:
    """Upper bounds of the norms of the rows of a matrix, float64; exactly 0 for a row of zeros on the host.

    >>> upper_norms(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).round(decimals=9).tolist()
    [5.0, 0.0]
    """
    if ord not in ORDS:
        _check_ord(ord)
    if isinstance(x, View):
        if ord == 2 or not x.shape[0]:
            return x.upper
        high = torch.cat([upper_norms(rows.clone(), ord) for _, _, rows in x.chunks()])
        if x.far:  # entries are what is left of much longer ones: fall back on the l2 norm, which knows
            high = torch.maximum(high, x.upper * (x.shape[1] ** 0.5 if ord == 1 else 1.0))
        return high * (1 + 1e-9)  # each entry of a chunk has a few roundings of its own
    k = x.shape[1]
    slack = 1 + 2 * gamma(k + 8, torch.float64)
    norms: Tensor
    if not isinstance(x, Tensor):
        norms = row_norms(x, ord)
        return norms if ord == math.inf else _above(norms * slack, norms)
    if k == 0:
        return torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    if k == 1 or ord == math.inf:
        norms = torch.linalg.vector_norm(x, math.inf, dim=1)
        return norms.to(torch.float64)
    if x.dtype == torch.float64:
        return _wide_upper(x, ord, slack)
    if x.is_cuda:
        norms = torch.linalg.vector_norm(x, ord, dim=1, dtype=torch.float64)
        return norms * slack
    if x.numel() <= _CACHED:
        norms = torch.linalg.vector_norm(x.double(), ord, dim=1)
    else:
        parts = x.split(max(1, _CACHED // k))
        norms = torch.cat([torch.linalg.vector_norm(part.double(), ord, dim=1) for part in parts])
    return norms * slack


def _above(upper: Tensor, value: Tensor) -> Tensor:
    """An upper bound of a value that is not 0 and may have lost what lies below the normal numbers."""
    return torch.where(value == 0, 0.0, upper + torch.finfo(torch.float64).tiny)


def _wide_upper(x: Tensor, ord: float, slack: float) -> Tensor:
    """Of float64 rows, whose squares leave the range: on a device, where the host waits for nothing, more is added."""
    norms: Tensor = torch.linalg.vector_norm(x, ord, dim=1)
    if x.is_cuda:
        return norms * slack + math.sqrt(x.shape[1]) * 2.0**-500
    usual = (norms > math.sqrt(x.shape[1]) * 2.0**-480) & (norms < 2.0**500)
    for rows in (~usual).nonzero()[:, 0].split(max(1, CHUNK_BYTES // (8 * x.shape[1]))):
        scale = _power_of_two(x[rows], 1000)
        norms[rows] = scale * torch.linalg.vector_norm(x[rows] / scale[:, None], ord, dim=1)
    return _above(norms * slack, norms)


def _product_upper(a: Tensor, b: Tensor) -> Tensor:
    """An upper bound of the product of two non-negative bounds; zero only if one is zero and the other finite."""
    high = a * b * (1 + 2.0**-50)
    return torch.where((a == 0) | (b == 0), high, high + torch.finfo(torch.float64).tiny)


def _power_of_two(x: Tensor, limit: int) -> Tensor:
    """2^e with the largest |entry| of x[i] in [2^e, 2^(e+1)), |e| <= `limit`; float64.

    >>> _power_of_two(torch.tensor([[3.0, -5.0]]), 100)
    tensor([4.], dtype=torch.float64)
    """
    if not x[0:1].numel():
        return torch.ones(len(x), dtype=torch.float64, device=x.device)
    largest = x.flatten(1).abs().amax(1).to(torch.float64)
    exponent = torch.frexp(torch.nan_to_num(largest, nan=1.0, posinf=1.0))[1] - 1
    return torch.ldexp(torch.ones_like(largest), exponent.clamp(-limit, limit))


class Lengths:
    """Upper bounds of the norms of n rows of a matrix: each is computed when it is first asked for, and kept.

    A clip of a linear model multiplies ||x_i|| by the size of a slope: only the second changes from round to round.

    >>> lengths, x = Lengths(2), torch.tensor([[3.0, 4.0], [0.0, 0.0]])
    >>> lengths.of(x[:1], 2, slice(0, 1)).round(decimals=3)
    tensor([5.], dtype=torch.float64)
    """

    def __init__(self, n: int) -> None:
        self.n = n
        self._kept: dict[float, Tensor] = {}

    def of(self, rows: Matrix, ord: float, where: slice | Tensor | None = None) -> Tensor:
        """Of `rows`, which are those at `where` (a range, positions, or all): never below the true norms, float64."""
        if isinstance(rows, View) and rows.measured and ord == 2:  # a view keeps its own
            return upper_norms(rows, ord)
        if ord not in self._kept:  # NaN: not known yet
            self._kept[ord] = torch.full((self.n,), torch.nan, dtype=torch.float64)
        if where is None:
            where = slice(None)
        lengths = self._kept[ord][where]
        if bool(lengths.isnan().any()):
            lengths = upper_norms(rows, ord).cpu()
            self._kept[ord][where] = lengths
        return lengths


# ------------------------------------------------------------ norms of sums of outer products

LOOSE = 1.25
"""A ghost norm known less well than within this factor is computed directly."""


def _cheaper_ghost(t: int, p: int, q: int) -> bool:
    """Whether T^2 (p + q) multiplications are fewer than T p q."""
    return t * (p + q) < p * q


def ghost_norms(a: Tensor, b: Tensor, ones: bool) -> tuple[Tensor, Tensor, Tensor]:
    """`(upper, M, error / ||g||^2)` of sum_t b_it a_it', from the T x T inner products of both factors."""
    (n, t, p), q, work = a.shape, b.shape[2], working(b.dtype)
    found, step = [], max(1, CHUNK_BYTES // (2 * work.itemsize * t * (2 * t + p + q)))
    with exact_products(a.device):
        for lo in range(0, max(1, n), step):
            x, y = a[lo : lo + step].to(work), b[lo : lo + step].to(work)
            left = torch.bmm(x, x.mT)
            if ones:
                left.add_(1.0)
            found.append(_from_grams(left, torch.bmm(y, y.mT), p + q + 9))
    upper, mass, off = (torch.cat(parts) for parts in zip(*found, strict=True))
    return upper, mass, off


def _from_grams(left: Tensor, right: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The ghost norms of products of at most k roundings: `(upper, M, error / ||g||^2)`; overwrites `left`."""
    t, dtype = left.shape[1], left.dtype
    inputs, outputs = (x.diagonal(dim1=1, dim2=2).double() for x in (left, right))
    mass = (inputs * outputs).sqrt().sum(1) * (1 + 2 * gamma(k, dtype))
    square = left.mul_(right).sum((1, 2), dtype=torch.float64)
    lost = 64.0 * t * t * k * torch.finfo(dtype).tiny * (1 + inputs.amax(1) + outputs.amax(1))
    error = (gamma(k, dtype) + gamma(t * t, torch.float64)) * mass.square() * (1 + 2.0**-20) + lost
    return (square.clamp_min(0) + error).sqrt() * (1 + 2.0**-50), mass, error / square.clamp_min(0)


# ------------------------------------------------------------ sums

KAPPA = 2.0**-10
"""What rounding may add to the bound of one record in sums of codes and of float64 rows, relative."""
WIDE, NETWORK = 1 / 20, 1 / 100
"""The most and the least of it in float32 sums of whole gradients: one product serves batches of up to some 500."""
RATIO = 2.0**16
"""A record's terms may add up, in absolute value, to at most this many times the clip bound: else it is shortened."""
MIN_ROUNDINGS = 16
"""Chunks of fewer terms cost more than float64."""
SPARE = 6
"""Roundings kept for what comes after the chunks: their sum in float64, and its cast."""


def kappa(batch: float | None, dtype: torch.dtype, encoded: bool) -> float:
    """What rounding may add to the bound of one record, relative: from public things only.

    batch    the expected number of records in a sum; None for a linear model, whose sums are float64 in any case
    dtype    of the rows
    encoded  whether a sketch stands before the clip

    >>> [round(kappa(b, torch.float32, False), 4) for b in (64, 256, 4096)], kappa(1e6, torch.float64, False)
    ([0.01, 0.0117, 0.05], 0.0009765625)
    """
    if batch is None or encoded or dtype == torch.float64:
        return KAPPA
    return min(WIDE, max(NETWORK, 3 * batch**2 * unit(dtype)))


@lru_cache(1 << 10)
def roundings(rho: float, dtype: torch.dtype) -> int:
    """The largest k with gamma_k = k u / (1 - k u) <= rho.

    >>> roundings(100 * 2.0**-24, torch.float32)
    99
    """
    return int(min(rho / (1 + rho) / unit(dtype), 2.0**52))


@lru_cache(1 << 10)
def most_terms(rho: float, dtype: torch.dtype) -> int:
    """How many terms a sum within rho may have, when roundings are kept for what comes after it."""
    return roundings(rho, dtype) - SPARE


def holds(rho: float, dtype: torch.dtype) -> bool:
    """Whether a sum within rho may be kept in this dtype: its last rounding is small beside it."""
    return roundings(rho, dtype) > 2 * SPARE


def in_float64(
    n: int, rho: float, shape: tuple[int, ...], device: torch.device, add: Callable[[int, int], Tensor], most: int
) -> Tensor:
    """The sum of n rows within rho, from `add(lo, hi)`: float64 sums of rows lo..hi-1.

    At most `most` rows are taken at a time.  Where additions in any order are too many, chunks are as short as they
    must be and their sum is compensated.
    """
    few = most_terms(rho, torch.float64)
    total, step = Total(shape, device, exact=n > few), max(1, min(most, few))
    for lo in range(0, n, step):
        total.add(add(lo, min(lo + step, n)))
    return total.result()


def _outer_sum(a: Tensor, b: Tensor, rho: float, out: Tensor) -> None:
    """out = sum_k b_k a_k', a (K, p) and b (K, q), within rho sum_k |b_k||a_k|' in every entry.

    Call it among `exact_products`: in reduced precision the bound means nothing.

    >>> out = torch.empty(1, 1)
    >>> _outer_sum(torch.ones(4, 1), torch.full((4, 1), 0.25), 1e-6, out)
    >>> float(out)
    1.0
    """
    work, k = working(a.dtype, b.dtype), len(a)
    few = most_terms(rho, work)
    if k <= few:
        if out.dtype == work and (out.is_cuda or out.is_contiguous()):
            torch.mm(b.to(work).T, a.to(work), out=out)
        else:
            out.copy_(b.to(work).T @ a.to(work))
    elif work == torch.float32 and few >= MIN_ROUNDINGS:
        out.copy_(_chunked(a.to(work), b.to(work), few))
    else:
        small = not out.is_cuda and 64 * out.numel() <= CACHE_BYTES  # adding sums up costs next to nothing
        most = max(1, (CACHE_BYTES if small else CHUNK_BYTES) // (8 * (a.shape[1] + b.shape[1])))

        def add(lo: int, hi: int) -> Tensor:
            return b[lo:hi].to(torch.float64).T @ a[lo:hi].to(torch.float64)

        out.copy_(in_float64(k, rho, (b.shape[1], a.shape[1]), out.device, add, most))


def _chunked(a: Tensor, b: Tensor, few: int) -> Tensor:
    """Products of `few` terms each in the working dtype, added in float64; as many together as `CHUNK_BYTES` holds."""
    (k, p), q = a.shape, b.shape[1]
    total, whole = Total((q, p), a.device), k - k % few
    step = few * max(1, CHUNK_BYTES // (a.element_size() * p * q))
    for lo in range(0, whole, step):
        x, y = a[lo : min(lo + step, whole)], b[lo : min(lo + step, whole)]
        parts = torch.bmm(y.reshape(-1, few, q).mT, x.reshape(-1, few, p))
        total.add(parts.sum(0, dtype=torch.float64))
    total.add(b[whole:].T @ a[whole:])
    return total.result()


# ------------------------------------------------------------ sums in whole numbers

SIDE = 128
GRID = 127 * SIDE
MAX_RECORDS = 1 << 16
"""Records whose products a 32-bit sum holds: 2 * 127^2 * MAX_RECORDS < 2^31."""
MIN_COLUMNS = 1 << 20
"""Entries of a matrix below which the ordinary sum is as fast."""
ROUNDINGS = 24
"""Roundings of the three integer sums on their way to one float32 sum, their parts being at most three times it."""


def _fits_grid(n: int, rho: float, dtype: torch.dtype) -> bool:
    """Whether so many records are summed in whole numbers: more than one product adds up within rho."""
    few = most_terms(rho, dtype)
    return few < n <= MAX_RECORDS and few >= ROUNDINGS


def _integer_sum(a: Tensor, b: Tensor, c: Tensor, bound: float, out: Tensor) -> None:
    """out = sum_i c_i b_i a_i' on the grid, for a (n, p), b (n, q) with c_i |a_i||b_i| <= bound.

    >>> out = torch.empty(1, 2)
    >>> _integer_sum(torch.tensor([[3.0, 4.0]] * 2), torch.tensor([[1.0], [-0.5]]), torch.ones(2), 5.0, out)
    >>> [round(value, 3) for value in out[0].tolist()]
    [1.5, 2.0]
    """
    # in float64: squares, and products of a small weight with a small norm, leave the normal numbers of float32
    longest_a, longest_b = (upper_norms(x) for x in (a, b))
    share = (c * longest_a * longest_b / bound).clamp_max(1.0).sqrt()
    (ah, al), (bh, bl) = (_digits(x, _usable(share / y, x.dtype)) for x, y in ((a, longest_a), (b, longest_b)))
    middle = torch.cat([al, ah], 1)
    for lo in range(0, len(bh), MAX_RECORDS // 8):
        rows = slice(lo, lo + MAX_RECORDS // 8)
        mixed = torch._int_mm(torch.cat([bh[rows], bl[rows]], 1), middle.T)
        high, low, place, scale = (
            torch._int_mm(bh[rows], ah.T),
            torch._int_mm(bl[rows], al.T),
            out[rows],
            bound / GRID**2,
        )
        if fused.can_sum(out.device, out.dtype):
            fused.joined(high, mixed, low, SIDE, scale, place)
        else:  # without the zeros that rows and columns were filled up with
            high, mixed, low = (x[: len(place), : place.shape[1]] for x in (high, mixed, low))
            total = high.to(out.dtype).mul_(float(SIDE**2)).add_(mixed, alpha=SIDE).add_(low)
            place.copy_(total.mul_(scale))


def _usable(scale: Tensor, dtype: torch.dtype) -> Tensor:
    """The scales of rows, 0 where they are no normal number of the dtype: rounding up may double others, or is endless.

    >>> _usable(torch.tensor([0.5, 1e-40, 1e40, torch.nan], dtype=torch.float64), torch.float32)
    tensor([0.5000, 0.0000, 0.0000, 0.0000])
    """
    near, info = scale.to(dtype), torch.finfo(dtype)
    return torch.where((near >= info.tiny) & (near <= info.max), near, 0.0)


def _digits(x: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """trunc(N scale_i x_i) = 128 h + l by its digits, transposed and filled up with zeros to multiples of 32: int8."""
    if fused.can_sum(x.device, x.dtype):
        return fused.digits(x, scale, GRID, SIDE)
    whole = (x * scale[:, None] * GRID).nan_to_num_(0.0).trunc_().clamp_(-GRID, GRID)
    high = (whole / SIDE).trunc_()
    low = whole.sub_(high, alpha=SIDE)
    n, k = x.shape
    parts = []
    for digits in (high, low):
        room = torch.zeros(k + -k % 32, n + -n % 32, dtype=torch.int8, device=x.device)
        room[:k, :n] = digits.T
        parts.append(room)
    return parts[0], parts[1]


# ---------------------------------------------------------------- products that are exact

Precision = tuple[str, str, str]
"""How float32 factors are multiplied: torch's overall setting, and those of the two back ends."""


class _ThisThread(threading.local):
    exact: frozenset[str] = frozenset()
    """The kinds of devices whose products are exact in this thread already."""


_THIS_THREAD = _ThisThread()


def precision() -> Precision:
    """The present setting of float32 products."""
    cuda, cpu = torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    return torch.get_float32_matmul_precision(), cuda, cpu


def _set(wanted: Precision) -> None:
    torch.set_float32_matmul_precision(wanted[0])
    torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision = wanted[1:]  # type: ignore[attr-defined]


@contextmanager
def with_precision(wanted: Precision, device: torch.device, exact: frozenset[str] = frozenset()) -> Iterator[None]:
    """Float32 products as they were when `precision` was asked, meanwhile; no autocast."""
    before, known = precision(), _THIS_THREAD.exact
    off = known and not exact or device.type == "meta"  # among exact products there is no autocast
    with nullcontext() if off else torch.autocast(device.type, enabled=False):
        _THIS_THREAD.exact = exact
        if before != wanted:
            _set(wanted)
        try:
            yield
        finally:
            _THIS_THREAD.exact = known
            if before != wanted:
                _set(before)


@contextmanager
def exact_products(device: torch.device) -> Iterator[None]:
    """Matrix products in the dtype of their factors: no autocast, no TF32, no bfloat16 passes."""
    known = _THIS_THREAD.exact
    if device.type in known:
        yield
        return
    wanted = precision()
    if not {*wanted, torch.backends.fp32_precision} <= {"none", "ieee", "highest"}:  # type: ignore[attr-defined]
        wanted = ("highest", "ieee", "ieee")
    with with_precision(wanted, device, known | {device.type}):
        yield
