"""The source of a run's noise and batch membership.

| source | normals from | for |
|---|---|---|
| `SecretSource` | the kernel's cryptographic generator | the default: its noise cannot be guessed or inverted |
| `FastSource` | fast generators under keys that are used once; on a GPU ChaCha20 | 10^6 coordinates a round and more |
| `SeededSource`, `GeneratorSource` | a seed | tests: not private |

Every secret draw starts from the kernel's cryptographic generator and becomes a float64 uniform with 53 bits.
A single inverse-CDF or Box-Muller draw leaves gaps in the floats it can reach, and the pattern of those gaps
can betray the value that was noised (Mironov 2012).  So a normal is `(z1 + z2 + z3 + z4) / 2` of independent
draws and a Laplace draw takes four uniforms (Holohan and Braghin 2021): to invert one, an adversary must
solve for four unknowns of 53 bits at once.  Noise is drawn and added in float64 and rounded last.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri
from torch import Tensor

from isthmus.base import secret, validate
from isthmus.base.parallel import share_out

_Shape = int | Sequence[int]
_Device = torch.device | str | None
_Adds = Callable[[Tensor, float, bytes], None]
"""Adds scale times the normals of a 32-byte key to a tensor, in place."""
SECRET = "secret noise from the operating system's generator"
FAST = (
    "fast generators, which get new keys from the operating system again and again; they are cryptographic "
    "(ChaCha20) on GPUs with Triton and not elsewhere, and they do not withstand attacks on floating-point rounding"
)
SEEDED = "seeded noise: not private"
_CHUNK = 1 << 16
_SMALL = 1 << 15
"""Numbers that torch adds on one thread, whatever it may use."""
_PER_KEY = 1 << 17
"""Normals of `FastSource` under one key, by one thread."""
CHUNK = 1 << 20
DEVICE_CHUNK = 1 << 24
"""Coordinates that are noised together, on the CPU and elsewhere."""
_KNOWN_KEY = bytes(range(32))
_KNOWN_NORMALS = (
    -0.30008795403628297, 1.2928748160919075, -0.6054132183873209, -0.2889656753624945,
    -0.7006590119467667, 0.5607932611343496, 1.7737066131332784, 0.5502080102878408,
)  # fmt: skip
"""The normals of the first block of ChaCha20 under that key: every device must give them before its noise is used."""


class Source:
    """Draws from a stream of random bytes; `SecretSource` and `SeededSource` say where the bytes come from.

    `seeded` says whether the draws can be repeated, `said` what the privacy statement says of the noise.  Every draw is
    a new tensor, which the caller may overwrite.
    """

    seeded: bool
    said: str

    def describe(self) -> str:
        """The noise in words, for the privacy statement."""
        return self.said

    def bytes(self, count: int) -> bytes:
        """The next `count` bytes of the stream."""
        raise NotImplementedError

    def words(self, count: int) -> NDArray[np.uint64]:
        """`count` uniform 64-bit words."""
        return np.frombuffer(self.bytes(8 * count), dtype=np.uint64)

    def uniform(self, shape: _Shape, dtype: torch.dtype = torch.float64, device: _Device = None) -> Tensor:
        """Uniform on (0, 1): multiples of 2^-53 (2^-54 in place of 0), never 0 or 1."""
        here = secret.stand_in()
        if here is not None and isinstance(shape, int):
            return here.uniform(shape).to(dtype=dtype, device=device)
        return _tensor(self._uniform, shape, dtype, device)

    def normal(self, shape: _Shape, dtype: torch.dtype = torch.float64, device: _Device = None) -> Tensor:
        """Standard normal, each the half sum of four independent ones."""
        return _tensor(lambda size: ndtri(self._uniform(4, size)).sum(axis=0) / 2, shape, dtype, device)

    def add_normal(self, out: Tensor, scale: float) -> None:
        """out += scale times standard normals, in place and a chunk at a time: added in float64, rounded last."""
        for part in pieces(out):
            part.copy_(self.normal(len(part), device=part.device).mul_(scale).add_(part))

    def laplace(self, shape: _Shape, dtype: torch.dtype = torch.float64, device: _Device = None) -> Tensor:
        """Standard Laplace (scale 1): `log(u1) cos(pi u2) + log(u3) cos(pi u4)` has its characteristic function."""

        def draw(size: int) -> NDArray[np.float64]:
            u = self._uniform(4, size)
            drawn: NDArray[np.float64] = np.log(u[0]) * np.cos(np.pi * u[1]) + np.log(u[2]) * np.cos(np.pi * u[3])
            return drawn

        return _tensor(draw, shape, dtype, device)

    def gumbel(self, shape: _Shape, dtype: torch.dtype = torch.float64, device: _Device = None) -> Tensor:
        """Standard Gumbel, `-log(-log(u))`."""
        return _tensor(lambda size: -np.log(-np.log(self._uniform(size))), shape, dtype, device)

    def mask(self, n: int, q: float, device: _Device = None) -> Tensor:
        """Poisson membership: n independent booleans, each true with probability q."""
        if n < 0 or not 0 < q <= 1:
            validate.refuse("n, q", (n, q), "give a number of records, and a probability above 0 and at most 1")
        here = secret.stand_in()
        if here is not None:
            return here.mask(n, q).to(device=device)
        return self.uniform(n, device=device) < q

    def integers(self, high: int, size: int) -> Tensor:
        """`size` integers uniform on 0, ..., high - 1, exactly (by rejection)."""
        validate.positive_int(high=high)
        validate.non_negative_int(size=size)
        here = secret.stand_in()
        if here is not None:
            return here.integers(high, size)
        limit = np.uint64((1 << 64) // high * high - 1)
        accepted = np.empty(0, np.uint64)
        while len(accepted) < size:
            words = self.words(size - len(accepted))
            accepted = np.concatenate([accepted, words[words <= limit]])
        return torch.from_numpy((accepted % np.uint64(high)).astype(np.int64))

    def subset(self, n: int, k: int) -> Tensor:
        """k different indices below n, every subset as likely as every other, sorted."""
        validate.positive_int(n=n, k=k)
        validate.at_most(n, "the number of records", k=k)
        here = secret.stand_in()
        if here is not None:
            return here.subset(n, k)
        chosen = np.argpartition(self.words(n), k - 1)[:k]
        return torch.from_numpy(np.sort(chosen.astype(np.int64)))

    def _uniform(self, *shape: int) -> NDArray[np.float64]:
        cells = (self.words(int(np.prod(shape))) >> np.uint64(11)).astype(np.float64)
        np.maximum(cells, 0.5, out=cells)  # 0 has no logarithm
        cells *= 2.0**-53
        return cells.reshape(shape)


class SecretSource(Source):
    """Noise nobody can repeat: bytes of the kernel's cryptographic generator (`os.urandom`).

    There is no seed and nothing is kept between draws, in copies, pickles and forked processes neither: no two sources
    ever share a draw.

    >>> a, b = SecretSource(), SecretSource()
    >>> bool((a.normal(8) == b.normal(8)).any()), a.seeded
    (False, False)
    """

    seeded, said = False, SECRET

    def bytes(self, count: int) -> bytes:
        """Fresh bytes."""
        return secret.token_bytes(count)


class FastSource(SecretSource):
    """Normals for large models, many times as fast as those of `SecretSource`; every other draw is its own.

    On an NVIDIA GPU with Triton (it comes with torch there) they are float64 polar pairs of ChaCha20, a cryptographic
    generator, under 256 fresh bits of the kernel's generator for every call: drawn on the device and added in the same
    pass, without a second tensor and without waiting for the device (`isthmus.privacy.chacha`).  On another
    device, or without Triton, each is `(z1 + z2) / sqrt(2)` of torch's generator there under two keys of 64 fresh bits
    for every 2^24 of them.  On the CPU they are numpy's normals of SFC64, under 192 fresh bits for every 2^17.
    Nothing is kept between calls: a key found out would expose the draws of one call only, there is none to give,
    and copies and forked processes draw their own.

    What it is not: SFC64 and torch's generator pass statistical tests but are not cryptographic, and single
    draws leave gaps between floats through which released values can be told apart (Mironov 2012).  `SecretSource` is
    built against both, and batch membership, Laplace and Gumbel noise are drawn as it draws them.

    >>> a = FastSource()
    >>> a.normal((2, 3)).shape, a.seeded, bool((a.normal(8) == a.normal(8)).any())
    (torch.Size([2, 3]), False, False)
    """

    said = FAST

    def normal(self, shape: _Shape, dtype: torch.dtype = torch.float64, device: _Device = None) -> Tensor:
        """Standard normal, drawn on the device it is for."""
        place = torch.device(device or "cpu")
        if place.type == "cpu":  # numpy fills it: torch's threads do not survive a fork
            return _tensor(_fast_normals, shape, dtype, place)
        out = torch.zeros(_sizes(shape), dtype=torch.float64, device=place)
        self.add_normal(out, 1.0)
        return out.to(dtype)

    def add_normal(self, out: Tensor, scale: float) -> None:
        """As `Source.add_normal`; on the CPU each key is used on one thread."""

        def add(part: Tensor) -> None:
            part.add_(torch.from_numpy(_fast_normals(len(part))), alpha=scale)  # in float64, rounded last

        if out.device.type != "cpu":
            _add_there(out, scale, _generator_of(out.device))
        else:
            flat = out.view(-1)
            if len(flat) <= _SMALL:  # on one thread anyhow
                add(flat)
            else:
                share_out(add, torch.split(flat, _PER_KEY))


class SeededSource(Source):
    """Repeatable noise, for tests only: whoever knows the seed can take the noise away.  Not private.

    >>> bool((SeededSource(0).normal(8) == SeededSource(0).normal(8)).all()), SeededSource(0).seeded
    (True, True)
    """

    seeded, said = True, SEEDED

    def __init__(self, seed: int) -> None:
        validate.non_negative_int(noise_seed=seed)
        self._generator = np.random.Generator(np.random.Philox(seed))

    def bytes(self, count: int) -> bytes:
        """The next bytes of a Philox stream."""
        return self._generator.bytes(count)


class GeneratorSource(Source):
    """Repeatable noise of a torch generator on its device, for tests only.  Not private.

    Normals are float64 draws of `torch.randn`; every other draw comes from the generator's 32-bit words.

    >>> a, b = (GeneratorSource(torch.Generator().manual_seed(0)) for _ in range(2))
    >>> bool((a.normal(8) == b.normal(8)).all()), a.seeded
    (True, True)
    """

    seeded, said = True, SEEDED

    def __init__(self, generator: torch.Generator) -> None:
        validate.check(isinstance(generator, torch.Generator), "generator", generator, "give a torch.Generator")
        self._generator = generator

    def bytes(self, count: int) -> bytes:
        """The next bytes, from whole 32-bit words."""
        size, device = (-(-count // 4),), self._generator.device
        words = torch.randint(-(1 << 31), 1 << 31, size, generator=self._generator, dtype=torch.int32, device=device)
        return words.cpu().numpy().tobytes()[:count]

    def normal(self, shape: _Shape, dtype: torch.dtype = torch.float64, device: _Device = None) -> Tensor:
        """Standard normal, drawn on the generator's device."""
        return _torch_normal(self._generator, shape).to(dtype=dtype, device=device or "cpu")


def _add_there(out: Tensor, scale: float, add: _Adds | None) -> None:
    """out += scale times normals on its own device: in place by `add`, or a chunk at a time by torch's generator."""
    if add is not None and out.dtype in (torch.float32, torch.float64):
        return add(out.view(-1), scale, secret.token_bytes(32))
    for part in pieces(out):
        if add is None:
            drawn = two_keys(part)
        else:
            drawn = torch.zeros_like(part, dtype=torch.float64)
            add(drawn, 1.0, secret.token_bytes(32))
        part.copy_(drawn.mul_(scale).add_(part))


def _generator_of(device: torch.device) -> _Adds | None:
    """What draws on a device; refused while a graph is recorded there, which would replay the noise with the key."""
    if device.type != "cuda":
        return None
    remedy = "capture the passes of the model, not the release: a graph would add the same noise at every replay"
    validate.check(not torch.cuda.is_current_stream_capturing(), "noise", "inside a CUDA graph", remedy)
    return _chacha(device)


@functools.cache
def _chacha(device: torch.device) -> _Adds | None:
    """ChaCha20 on the device, once it has given the known normals there; None where Triton is missing or cannot."""
    try:
        add: _Adds = importlib.import_module("isthmus.privacy.chacha").add_normals
        drawn = torch.zeros(1024, dtype=torch.float64, device=device)
        add(drawn, 1.0, _KNOWN_KEY)
    except Exception:  # no Triton, or no compiler for it: torch's generator needs neither
        return None
    want = torch.tensor(_KNOWN_NORMALS, dtype=torch.float64)
    if torch.allclose(drawn[::128].cpu(), want, rtol=1e-12, atol=1e-14):
        return add
    return None


def two_keys(part: Tensor) -> Tensor:
    """`(z1 + z2) / sqrt(2)` of two generators with keys of their own: one key of 64 bits can be searched for."""
    first, second = (_torch_normal(_keyed(part.device), len(part)) for _ in range(2))
    return first.add_(second).mul_(math.sqrt(0.5))


def _keyed(device: torch.device) -> torch.Generator:
    """A generator on the device whose seed nobody knows: setting it does not wait for the device."""
    return torch.Generator(device).manual_seed(secret.randbits(64))


def _torch_normal(generator: torch.Generator, shape: _Shape) -> Tensor:
    """Float64 normals on the generator's device: float32 ones would stop short of 7 standard deviations."""
    return torch.randn(_sizes(shape), generator=generator, dtype=torch.float64, device=generator.device)


def _sfc64() -> np.random.Generator:
    """A generator whose 192 bits of state come from the kernel: a pool of the usual size would hold 128 of them."""
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(secret.randbits(256), pool_size=8)))


def _fast_normals(size: int) -> NDArray[np.float64]:
    """Normals under a key that is used once."""
    return _sfc64().standard_normal(size)


@lru_cache(maxsize=64)
def check_scale(scale: float, dtype: torch.dtype, name: str = "noise scale") -> None:
    """Refuse noise that numbers of the dtype (or float64, in which it is drawn) cannot hold: it would be 0 or infinite.

    The standard deviation must be a normal number of the dtype, with room for 64 of them above.

    >>> check_scale(1e-170, torch.float64)
    >>> check_scale(1e-170, torch.float32)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: noise scale=1e-170 is not allowed: change the clip bound, or the units of ...
    """
    drawn = own = torch.finfo(torch.float64)
    if dtype.is_floating_point:
        own = torch.finfo(dtype)
    least, most = max(own.tiny, drawn.tiny), min(own.max, drawn.max) / 64
    if not least <= scale <= most:
        short = f"{str(dtype).removeprefix('torch.')} numbers hold noise of {least:.3g} to {most:.3g}"
        validate.refuse(name, scale, f"change the clip bound, or the units of the data: {short}")


def pieces(out: Tensor) -> tuple[Tensor, ...]:
    """The coordinates of a tensor that are noised together."""
    size = {"cpu": CHUNK}.get(out.device.type, DEVICE_CHUNK)
    return torch.split(out.view(-1), size)


def _sizes(shape: _Shape) -> tuple[int, ...]:
    if isinstance(shape, int):
        return (shape,)
    return tuple(shape)


def _tensor(draw: Callable[[int], NDArray[np.float64]], shape: _Shape, dtype: torch.dtype, device: _Device) -> Tensor:
    """A tensor filled by `draw(size)` in chunks that stay in cache."""
    sizes = _sizes(shape)
    out = np.empty(int(np.prod(sizes)))
    for lo in range(0, len(out), _CHUNK):
        hi = min(lo + _CHUNK, len(out))
        out[lo:hi] = draw(hi - lo)
    return torch.from_numpy(out).reshape(sizes).to(dtype=dtype, device=device)
