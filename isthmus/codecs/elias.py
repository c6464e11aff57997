"""Elias' gamma and omega codes of many numbers >= 1 at once (Elias, 1975): as long as his, with their bits regrouped.

Where each number ends depends on all before it, so that the usual order can only be read one number at a time.  Here
the first bits of all numbers of a block stand together, then the second bits of those that have one, and so on: the
same bits, in an order that whole arrays are read in.

gamma   N = 2^L + rest: a bit "more" for each of the L bits of the rest, that bit, and at last a bit "no more": 2 L + 1
omega   groups: N = 1 is "no more"; a group of N_k bits more makes N_{k+1} = 2^{N_k} + rest, from N_0 = 1
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.codecs.bits import BLOCK, Reader, Writer

CODES = ("gamma", "omega")

Numbers = NDArray[np.int64]
_LOGS = (np.frexp(np.arange(1 << 15, dtype=np.float32))[1] - 1).astype(np.int8)


def log2_floor(values: NDArray[Any]) -> NDArray[np.int8]:
    """floor(log2(N)) of numbers in [1, 2^53).

    >>> log2_floor(np.array([1, 2, 3, 4, 2**40 - 1, 2**40])).tolist()
    [0, 1, 1, 2, 39, 40]
    """
    short = values.dtype.itemsize <= 2
    exponents: NDArray[np.int8] = _LOGS[values] if short else np.frexp(values.astype(np.float64))[1].astype(np.int8) - 1
    return exponents


def length(values: NDArray[Any], code: str) -> int:
    """How many bits the code of these numbers has.

    >>> [[length(np.array([n]), code) for n in (1, 2, 4, 8, 16)] for code in ("gamma", "omega")]
    [[1, 3, 5, 7, 9], [1, 3, 6, 7, 11]]
    """
    total = 0
    for lo in range(0, len(values), BLOCK):
        counts = np.bincount(log2_floor(values[lo : lo + BLOCK]))
        total += int(counts @ np.array([_bits(number, code) for number in range(len(counts))]))
    return total


def _bits(log: int, code: str) -> int:
    if code == "gamma":
        return 2 * log + 1
    return 1 if log == 0 else log + 1 + _bits(log.bit_length() - 1, code)


def write(out: Writer, values: NDArray[Any], code: str) -> None:
    """Append the code of these numbers."""
    planes = _gamma_planes if code == "gamma" else _omega_planes
    for lo in range(0, len(values), BLOCK):
        out.bits(planes(values[lo : lo + BLOCK]))


def read(reader: Reader, count: int, code: str, top: int, what: str) -> NDArray[Any]:
    """The next `count` numbers, each between 1 and `top`."""
    reader.check(count <= reader.left, f"it ends before {what}: {count} numbers of at least one bit each are needed")
    small = top < 1 << 15
    values = np.empty(count, np.int16 if small else np.int64)
    block = _read_gamma if code == "gamma" else _read_omega
    for lo in range(0, count, BLOCK):
        block(reader, values[lo : lo + BLOCK], top, what)
    return values


def increasing_length(places: Numbers, m: int, code: str) -> int:
    """The bits of `write_increasing`."""
    shift, gaps = _gaps(places, m)
    return len(gaps) * shift + length((gaps >> shift) + 1, code)


def write_increasing(out: Writer, places: Numbers, m: int, code: str) -> None:
    """Append increasing numbers below m: of each gap the low bits as they are, and the code of the rest.

    k gaps have a mean of m/k; with its logarithm in low bits the rest is short.
    """
    shift, gaps = _gaps(places, m)
    out.fixed(gaps & (1 << shift) - 1, shift)
    write(out, (gaps >> shift) + 1, code)


def read_increasing(reader: Reader, count: int, m: int, code: str, what: str) -> Numbers:
    """The next `count` numbers that `write_increasing` wrote, below m."""
    if not count:
        return np.zeros(0, np.int64)
    shift = _shift(count, m)
    low = reader.fixed(count, shift, what)
    gaps = (read(reader, count, code, (m >> shift) + 1, what).astype(np.int64) - 1 << shift) + low
    places = np.cumsum(gaps + 1) - 1
    reader.check(int(places[-1]) < m, f"{what} go beyond its {m} coordinates")
    return places


def _shift(count: int, m: int) -> int:
    return (m // count).bit_length() - 1


def _gaps(places: Numbers, m: int) -> tuple[int, Numbers]:
    gaps: Numbers = np.diff(places, prepend=-1) - 1
    return (_shift(len(places), m) if len(places) else 0), gaps


def _gamma_planes(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    logs, at = log2_floor(values), 0
    while len(values):
        more = logs > at
        yield more
        values, logs = values[more], logs[more]
        yield ((values >> at) & 1).astype(np.uint8)
        at += 1


def _read_gamma(reader: Reader, values: NDArray[Any], top: int, what: str) -> None:
    values[:] = 1
    index = np.flatnonzero(reader.bits(len(values), what).view(bool))
    at, numbers = 0, values[index]
    while len(index):
        reader.check(2 << at <= top, f"{what} holds a number of more than {top}")
        numbers = numbers + ((1 + reader.bits(len(index), what).astype(values.dtype)) << at)
        values[index] = numbers
        more = reader.bits(len(index), what).view(bool)
        index, numbers, at = index[more], numbers[more], at + 1
    reader.check(int(values.max()) <= top, f"{what} holds a number of more than {top}")


def _omega_planes(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The groups of a number, from the last inwards, are N, log N, log log N, ...: `chain`, written in reverse."""
    chain = [values.astype(np.int64)]
    while chain[-1].max() > 1:
        chain.append(np.where(chain[-1] > 1, log2_floor(np.maximum(chain[-1], 1)), 0).astype(np.int64))
    stack = np.stack(chain)
    depth = (stack > 1).sum(axis=0)
    for group in range(1, len(chain) + 1):
        more = depth >= group
        yield more
        stack, depth = stack[:, more], depth[more]
        if not len(depth):
            return
        rest = np.take_along_axis(stack, (depth - group)[None], 0)[0]
        width = log2_floor(rest)
        for at in range(int(width.max())):
            yield ((rest[width > at] >> at) & 1).astype(np.uint8)


def _read_omega(reader: Reader, values: NDArray[Any], top: int, what: str) -> None:
    values[:] = 1
    index, numbers = np.arange(len(values)), np.ones(len(values), np.int64)
    while len(index):
        more = reader.bits(len(index), what).view(bool)
        index, width = index[more], numbers[more]
        if not len(index):
            break
        widest = int(width.max())
        reader.check(widest < top.bit_length(), f"{what} holds a number of more than {top}")
        numbers = np.int64(1) << width
        for at in range(widest):
            has = width > at
            numbers[has] += reader.bits(int(has.sum()), what).astype(np.int64) << at
        reader.check(int(numbers.max()) <= top, f"{what} holds a number of more than {top}")
        values[index] = numbers
