"""A codec: an unbiased contraction of a vector to real bytes, and back (paper 001, section 3.2 and Appendix D).

    E C(v) = v,    E ||C(v) - v||^2 <= chi(m) ||v||^2

Every payload begins with one byte for format and version, one for the kind, and the number m of coordinates.  A reader
compares m with what it expects before it allocates anything, and every length, index and number with its range.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from isthmus.base import validate
from isthmus.base.randomness import key
from isthmus.codecs.bits import BLOCK, CodecError, Reader, Writer

FORMAT = 0xC1
"""The first byte of every payload: C for codec, 1 for the version."""
LARGEST = 2**32 - 1
"""The most coordinates of one payload."""
TOP = 2.0**126
"""The largest entry or norm that is sent: what a receiver scales it to is still a finite float32."""

Array: TypeAlias = NDArray[Any]
Scaled: TypeAlias = tuple[float, Array]


class Codec(ABC):
    """Real bytes and back, unbiased, with `E||decode(encode(v)) - v||^2 <= chi(m) ||v||^2`.

    Norms and largest entries travel as float32, rounded up: chi holds to within a factor of 1 + 2^-22, for norms of
    2^-100 to 2^126 or 0; larger ones are refused.

    A subclass is a frozen dataclass with a `name`, a `kind` (a byte), `chi` and the three steps `draw` (the random
    one), `write` and `read`.  What `draw` returns is exactly what `read` gives back.
    """

    name: ClassVar[str]
    kind: ClassVar[int]
    registry: ClassVar[dict[str, type[Codec]]] = {}
    """The codecs that can be asked for by name."""

    def __init_subclass__(cls, **more: object) -> None:
        super().__init_subclass__(**more)
        if "name" in cls.__dict__:
            cls.registry[cls.name] = cls

    def encode(self, v: Tensor, seed: int) -> bytes:
        """The bytes of a draw of C(v); the same for the same seed."""
        array, out = _values(v), Writer()
        out.byte(FORMAT)
        out.byte(self.kind)
        out.number(len(array))
        self.write(out, len(array), self.draw(array, seed))
        return out.done()

    def decode(self, data: bytes, like: Tensor) -> Tensor:
        """What was sent, in the shape, dtype and place of `like`; anything but a whole valid payload is refused."""
        reader, m = Reader(data), like.numel()
        fine = m > 0 and like.is_floating_point()
        validate.check(fine, "like", (tuple(like.shape), like.dtype), "give a tensor of one real number or more")
        self._head(reader, m)
        drawn = self.read(reader, m)
        reader.end()
        return self._vector(drawn, like)

    def contract(self, v: Tensor, seed: int) -> Tensor:
        """C(v) without the bytes: what `decode(encode(v, seed), v)` is, bit for bit."""
        return self._vector(self.draw(_values(v), seed), v)

    @abstractmethod
    def chi(self, m: int) -> float:
        """The variance that the codec adds to m coordinates, in units of ||v||^2, at most."""

    @abstractmethod
    def bits(self, m: int) -> float:
        """The bits of m coordinates, in expectation at most, without the header (2 bytes and m)."""

    @abstractmethod
    def draw(self, v: Array, seed: int) -> Any:
        """The random step: what is sent, as numbers."""

    @abstractmethod
    def write(self, out: Writer, m: int, drawn: Any) -> None:
        """The numbers as bits."""

    @abstractmethod
    def read(self, reader: Reader, m: int) -> Any:
        """The numbers back, each in its range."""

    @abstractmethod
    def value(self, drawn: Any, m: int, dtype: type) -> Array:
        """The vector that the numbers stand for, in float32 or float64."""

    def to_json(self) -> str:
        """The codec as JSON: its name and what it was made with.

        >>> from isthmus.codecs import QSGD, from_json
        >>> QSGD(levels=4).to_json()
        '{"codec": "qsgd", "levels": 4, "coding": "gamma"}'
        >>> from_json(QSGD(levels=4).to_json()) == QSGD(levels=4)
        True
        """
        return json.dumps({"codec": self.name, **vars(self)})

    def _head(self, reader: Reader, m: int) -> None:
        first = reader.byte("the format")
        reader.check(first == FORMAT, f"its first byte is {first:#04x} and not {FORMAT:#04x}")
        kind = reader.byte("the kind")
        sender = next((name for name, codec in self.registry.items() if codec.kind == kind), f"kind {kind}")
        reader.check(kind == self.kind, f"it was written by the codec {sender!r}, and {self.name!r} reads it")
        declared = reader.number("the number of coordinates", LARGEST)
        reader.check(declared == m, f"it declares {declared} coordinates where {m} are expected")

    def _vector(self, drawn: object, like: Tensor) -> Tensor:
        """The numbers in shape, dtype and place of `like`; what a half cannot hold is refused and not infinite."""
        array = self.value(drawn, like.numel(), np.float64 if like.dtype == torch.float64 else np.float32)
        tensor = torch.from_numpy(array).to(device=like.device, dtype=like.dtype).view(like.shape)
        if like.dtype.itemsize < 4 and not tensor.isfinite().all():
            top = f"{float(np.abs(array).max()):.4g}"
            remedy = "decode it like a float32 tensor"
            raise CodecError(f"The payload holds a number of size {top}, too large for {like.dtype}: {remedy}")
        return tensor


class _ScaledCodec(Codec):
    """A codec of a size, the norm or the largest entry, and of whole numbers in units of size / steps; nothing follows
    a size of 0.

    A subclass says what the size is and writes `measure`, `numbers`, `write_numbers` and `read_numbers`.
    """

    size: ClassVar[str]
    """What the size is, in words."""

    @abstractmethod
    def measure(self, v: Array) -> float:
        """The size of a vector."""

    @abstractmethod
    def numbers(self, v: Array, size: float, seed: int) -> Array:
        """The random step, for a size above 0."""

    @abstractmethod
    def write_numbers(self, out: Writer, m: int, numbers: Array) -> None:
        """The numbers as bits."""

    @abstractmethod
    def read_numbers(self, reader: Reader, m: int) -> Array:
        """The numbers back, each in its range."""

    def largest_size(self, m: int) -> float:
        """The largest size of a valid payload."""
        return TOP

    def steps(self, m: int) -> float:
        """How many units the size has."""
        return 1.0

    def draw(self, v: Array, seed: int) -> Scaled:
        """The size and the numbers."""
        size = self.measure(v)
        if not size:
            return 0.0, np.zeros(len(v), np.int8)
        return size, self.numbers(v, size, seed)

    def write(self, out: Writer, m: int, drawn: Scaled) -> None:
        """The size and the numbers; nothing after a size of 0."""
        out.float32(drawn[0])
        if drawn[0]:
            self.write_numbers(out, m, drawn[1])

    def read(self, reader: Reader, m: int) -> Scaled:
        """The size and the numbers."""
        size = reader.float32(self.size, self.largest_size(m))
        if not size:
            return 0.0, np.zeros(m, np.int8)
        return size, self.read_numbers(reader, m)

    def value(self, drawn: Scaled, m: int, dtype: type) -> Array:
        """The numbers times the unit."""
        out: Array = np.empty(m, dtype)
        np.multiply(drawn[1], out.dtype.type(drawn[0] / self.steps(m)), out=out, casting="same_kind")
        return out


def from_json(text: str | Mapping[str, Any]) -> Codec:
    """The codec that `to_json` wrote; an unknown name or argument is refused.

    >>> from_json({"codec": "terngrad"})
    TernGrad()
    """
    try:
        given = dict(text) if isinstance(text, Mapping) else json.loads(text)
    except ValueError as error:
        validate.refuse("codec", text, f"it is not JSON ({error}): give what Codec.to_json wrote")
    fine = isinstance(given, dict) and "codec" in given
    validate.check(fine, "codec", text, "give a JSON object with a name under 'codec'")
    name = given.pop("codec")
    validate.one_of(sorted(Codec.registry), codec=name)
    allowed = [member.name for member in fields(Codec.registry[name])]  # type: ignore[arg-type]
    for argument in given:
        validate.one_of(allowed, **{f"an argument of the codec {name!r}": argument})
    return Codec.registry[name](**given)


def named(codec: object) -> Codec | None:
    """A codec from a codec, its name, its JSON as a mapping, or None.

    >>> named("qsgd"), named(None)
    (QSGD(levels=None, coding='gamma'), None)
    >>> named("zip")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: codec='zip' is not allowed: choose one of ['bfloat16', 'bits', ...
    """
    if codec is None or isinstance(codec, Codec):
        return codec
    if isinstance(codec, str):
        codec = {"codec": codec}
    if isinstance(codec, Mapping):
        return from_json(codec)
    able = all(callable(getattr(codec, method, None)) for method in ("encode", "decode", "chi"))
    remedy = f"give a codec, or a name: {', '.join(sorted(Codec.registry))}"
    validate.check(able and not isinstance(codec, type), "codec", codec, remedy)
    return cast(Codec, codec)  # anybody's own class with these three methods


def check_contraction(codec: Codec, m: int = 200, draws: int = 400) -> None:
    """Refuse a codec that is biased, or whose error is larger than its `chi` says: for whoever writes one.

    Vectors of four shapes go through `encode` and `decode`, each under the seeds 0 to draws - 1.  The mean of what
    comes back must be the vector, along directions in which codecs fail (its own, its signs, all ones, five random
    ones), to within 4.5 standard errors; the mean squared error must be at most chi(m) ||v||^2, to within 4.  More
    draws see a smaller bias; a codec that passes may still be biased for a vector that was not tried.

    >>> from isthmus.codecs import QSGD
    >>> check_contraction(QSGD())
    >>> class Truncated(QSGD):
    ...     def draw(self, v, seed):
    ...         norm, levels = super().draw(v, seed)
    ...         return norm, levels - (levels > 0)
    >>> check_contraction(Truncated())
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: codec=Truncated(levels=None, coding='gamma') is not allowed: make it ...
    """
    validate.positive_int(m=m)
    validate.check(draws > 1, "draws", draws, "give 2 or more: how far a mean may be off follows from several")
    random = np.random.default_rng(0)
    normal = random.standard_normal(m)
    spike = np.zeros(m)
    spike[m // 3] = -7.0
    shapes = {"normal": normal, "heavy-tailed": normal**5, "equal": np.sign(normal), "of one entry": spike}
    for shape, v in shapes.items():
        like, directions = torch.from_numpy(v), np.stack([v, np.sign(v), np.ones(m), *random.standard_normal((5, m))])
        errors = np.stack([codec.decode(codec.encode(like, seed), like).numpy() - v for seed in range(draws)])
        along = errors @ directions.T
        spread = along.std(axis=0, ddof=1) / math.sqrt(draws) + 1e-7 * np.abs(directions) @ np.abs(v)  # of float32
        scores = along.mean(axis=0) / spread
        worst = float(scores[np.abs(scores).argmax()])
        remedy = f"make it unbiased: the mean of {draws} draws of a {shape} vector is {worst:+.3g} standard errors off"
        validate.check(abs(worst) <= 4.5, "codec", codec, remedy)
        squares = (errors**2).sum(axis=1) / float(v @ v)
        least, chi = float(squares.mean() - 4 * squares.std(ddof=1) / math.sqrt(draws)), codec.chi(m)
        remedy = f"state a larger chi: chi({m}) = {chi:g}, and the variance of a {shape} vector is {squares.mean():.4g}"
        validate.check(least <= chi * (1 + 2.0**-22) + 1e-12, "codec", codec, remedy)


def _values(v: Tensor) -> Array:
    """The entries as a flat float32 or float64 array."""
    fine = isinstance(v, Tensor) and v.is_floating_point()
    validate.check(fine, "v", type(v).__name__, "give a tensor of real numbers")
    validate.check(0 < v.numel() <= LARGEST, "v", tuple(v.shape), f"give between 1 and {LARGEST} numbers")
    flat = v.detach().reshape(-1).cpu()
    return flat.to(torch.promote_types(flat.dtype, torch.float32)).numpy()


def largest(v: Array, gain: float = 1.0) -> float:
    """||v||_inf; refused where it is not finite, or the receiver's numbers, up to `gain` as large, could not be."""
    top = abs(float(max(v.max(), -v.min())))  # a NaN comes through, and -0.0 is 0
    return _sendable(top, gain, "||v||_inf")


def norm(v: Array, gain: float = 1.0) -> float:
    """||v||, from squares in float64; refused as `largest` is."""
    total = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        for lo in range(0, len(v), BLOCK):
            part = v[lo : lo + BLOCK].astype(np.float64)
            total += float(part @ part)
    return _sendable(math.sqrt(total), gain, "||v||")  # of NaN it is NaN


def _sendable(size: float, gain: float, what: str) -> float:
    validate.check(math.isfinite(size), what, size, "give finite numbers, without NaN: a codec cannot send others")
    validate.check(size * gain <= TOP, what, size, f"give at most {TOP / gain:.4g}: scale the vector down first")
    return size


def rounded_up(size: float) -> float:
    """The least float32 that is at least `size`: what is sent, and what the sender's own levels are measured in."""
    rounded = np.float32(size)
    if float(rounded) < size:
        rounded = np.nextafter(rounded, np.float32(np.inf))
    return float(rounded)


class Dither:
    """Uniform numbers in [0, 1) for the sender's coins: a fixed function of the seed on every machine.

    >>> Dither(3).uniform(2, np.float64).tolist() == Dither(3).uniform(2, np.float64).tolist()
    True
    """

    def __init__(self, seed: int) -> None:
        fine = isinstance(seed, (int, np.integer)) and seed >= 0
        validate.check(fine, "seed", seed, "give a whole number of at least 0")
        self._source = np.random.Philox(key=key("codec", seed))

    def words(self, n: int) -> NDArray[np.uint32]:
        """n words of 32 random bits."""
        raw = self._source.random_raw(-(-n // 2))
        return np.asarray(raw, "<u8").view("<u4")[:n]

    def uniform(self, n: int, dtype: DTypeLike) -> Array:
        """n multiples of 2^-24, or of 2^-53 in float64."""
        if np.dtype(dtype) == np.float64:
            return (np.asarray(self._source.random_raw(n)) >> np.uint64(11)) * 2.0**-53
        return (self.words(n) >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def _to_levels(v: Array, levels: float, scale: float, seed: int, dtype: DTypeLike) -> Array:
    """z = s v / scale, each entry rounded up or down to an integer so that its mean is kept: `floor(z)`, and one more
    with probability `z - floor(z)`; |v_i| <= scale makes that at most ceil(s)."""
    coins, drawn, top = Dither(seed), np.empty(len(v), dtype), math.ceil(levels)
    factor, wide = levels / scale, v.dtype
    if factor >= 1e30:  # below float32's normal numbers its inverse is infinite
        wide = np.dtype(np.float64)
    for lo in range(0, len(v), BLOCK):
        z = v[lo : lo + BLOCK].astype(wide, copy=False) * wide.type(factor)
        low = np.floor(z)
        z -= low
        low += coins.uniform(len(z), wide) < z
        drawn[lo : lo + BLOCK] = np.clip(low, -top, top, out=low)  # 1.0000001 is 1, rounded
    return drawn
