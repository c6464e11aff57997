"""Packed Shamir sharing of 32-byte secrets over the field of 2^16 elements.

A secret is sixteen elements, in groups of `packing`.  Each group is the values, at public points of its own, of one
random polynomial of degree below `threshold`; client i holds its value at i + 1.  Any `threshold` shares give the
secret (interpolation); any `threshold - packing` of them are uniform and independent of it, because a polynomial of
degree below t can take any values at t points.  In between, part of it is known.  A share has 32 / packing bytes;
packing 1 is Shamir's own.

>>> import os
>>> parts = share(bytes(range(32)), clients=5, threshold=4, packing=2, random=os.urandom)
>>> len(parts[0]), recover({i: parts[i] for i in (4, 0, 2, 1)}, threshold=4, packing=2) == bytes(range(32))
(16, True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from isthmus.base import validate

_Elements = NDArray[np.uint16]
PACKINGS = (1, 2, 4, 8, 16)
ELEMENTS = 16
_ORDER = 65535
CLIENTS = _ORDER - ELEMENTS
"""The most clients: other points of the field hold the secrets."""
_MODULUS = 0x1100B
"""x^16 + x^12 + x^3 + x + 1, primitive: the powers of x are all elements but 0."""


def share(secret: bytes, clients: int, threshold: int, packing: int, random: Callable[[int], bytes]) -> list[bytes]:
    """A share for each of `clients`, from `random(count)` secret bytes."""
    validate.check(len(secret) == 2 * ELEMENTS, "secret", f"{len(secret)} bytes", f"give {2 * ELEMENTS} bytes")
    _check(clients, threshold, packing)
    rows = np.frombuffer(secret, "<u2").reshape(-1, packing)
    free = threshold - packing
    drawn = np.frombuffer(random(2 * free * len(rows)), "<u2").reshape(len(rows), free)
    values = np.concatenate([rows, drawn], axis=1)  # values at the points of the secret and of the first clients
    matrix = _interpolation((*_points(packing), *range(1, free + 1)), tuple(range(1, clients + 1)))
    return [part.astype("<u2").tobytes() for part in _product(matrix, values.T)]


def recover(shares: Mapping[int, bytes], threshold: int, packing: int) -> bytes:
    """The secret of the first `threshold` of these shares, by client."""
    remedy = f"give at least {threshold} shares, as many as recover the secret"
    validate.check(len(shares) >= threshold, "shares", len(shares), remedy)
    chosen = sorted(shares)[:threshold]
    _check(chosen[-1] + 1, threshold, packing)
    length = 2 * ELEMENTS // packing
    for part in (shares[client] for client in chosen):
        validate.check(len(part) == length, "share", f"{len(part)} bytes", f"give {length} bytes")
    values = np.stack([np.frombuffer(shares[client], "<u2") for client in chosen])
    matrix = _interpolation(tuple(client + 1 for client in chosen), _points(packing))
    return _product(matrix, values).T.astype("<u2").tobytes()


def _check(clients: int, threshold: int, packing: int) -> None:
    validate.one_of(PACKINGS, packing=packing)
    validate.positive_int(clients=clients, threshold=threshold)
    validate.at_most(CLIENTS, "the number of points", clients=clients)
    fits = packing <= threshold <= clients
    validate.check(fits, "threshold", threshold, f"give a number from {packing} to {clients}")


def _points(packing: int) -> tuple[int, ...]:
    """Where the secret lies: points that no client has."""
    return tuple(range(_ORDER, _ORDER - packing, -1))


@lru_cache(maxsize=1)
def _tables() -> tuple[_Elements, NDArray[np.int64]]:
    """Powers of x, twice in a row, and logarithms."""
    powers, element = np.zeros(2 * _ORDER, np.uint16), 1
    for exponent in range(_ORDER):
        powers[exponent] = powers[exponent + _ORDER] = element
        element = element << 1 ^ (element >> 15) * _MODULUS
    logs = np.zeros(_ORDER + 1, np.int64)
    logs[powers[:_ORDER]] = np.arange(_ORDER)
    return powers, logs


@lru_cache(maxsize=64)
def _interpolation(known: tuple[int, ...], wanted: tuple[int, ...]) -> _Elements:
    """The matrix that takes values at the known points to values at the wanted ones (Lagrange)."""
    powers, logs = _tables()
    x, w = np.array(known), np.array(wanted)
    gaps, apart = x[:, None] ^ x[None, :], w[:, None] ^ x[None, :]
    weights = logs[gaps].sum(axis=1)  # log of the product over the others; the log of the gap 0 is kept as 0
    matrix = powers[(logs[apart].sum(axis=1)[:, None] - logs[apart] - weights[None, :]) % _ORDER]
    return np.where((apart == 0).any(axis=1)[:, None], (apart == 0).astype(np.uint16), matrix)


def _product(matrix: _Elements, values: _Elements) -> _Elements:
    """A matrix product over the field."""
    powers, logs = _tables()
    out = np.zeros((len(matrix), values.shape[1]), np.uint16)
    for column in range(values.shape[1]):
        terms = powers[logs[matrix] + logs[values[:, column]][None, :]]
        terms = np.where((matrix == 0) | (values[:, column] == 0)[None, :], np.uint16(0), terms)
        out[:, column] = np.bitwise_xor.reduce(terms, axis=1)
    return out
