"""Trees of plain values and tensors as one string of bytes, for a wire: without pickle, and nothing in it is run.

    4 bytes   ISTH
    2 bytes   version
    8 bytes   length of the JSON
    8 bytes   length of the arrays
    16 bytes  BLAKE2b of all that follows: it shows damage on the way, and is no signature
    JSON      {"kind", "tree", "arrays": [[name, dtype, shape], ...]}
    arrays    their raw little-endian bytes, one after the other, in the order of the list

Whoever reads trusts nothing: lengths must agree with the bytes that came before anything is allocated, kinds of numbers
and tags of the tree are the few that are written here, and every other string of bytes is refused with `InvalidInput`.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.base import storage, validate

MAGIC, VERSION = b"ISTH", 1
HEAD = struct.Struct("<4sHQQ16s")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    + (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.bool)
}
TAGS = ("@float", "@tuple", "@tensor")
"""What may stand in a tree beside plain values: numbers that JSON has not, tuples, and references to arrays."""
WORDS = 1 << 20
"""Words of a vector whose bits are added up at a time."""
MOST = 1 << 26
"""The JSON of a message is never longer than this."""


def pack(kind: str, tree: Any) -> bytes:
    """A tree of values and tensors as bytes.

    >>> data = pack("note", {"t": 3, "w": torch.ones(2), "far": math.inf})
    >>> unpack(data, "note")
    {'t': 3, 'w': tensor([1., 1.]), 'far': inf}
    >>> unpack(data[:-1], "note")
    Traceback (most recent call last):
    isthmus.base.validate.InvalidInput: data=165 bytes ... is not allowed: give what was packed as a note: ... length
    """
    tensors: dict[str, Tensor] = {}
    encoded = storage.encode(tree, "", tensors)
    arrays = [[name, _name(name, value), list(value.shape)] for name, value in tensors.items()]
    text = json.dumps({"kind": kind, "tree": encoded, "arrays": arrays}, allow_nan=False).encode()
    raw = b"".join(_raw(value) for value in tensors.values())
    return HEAD.pack(MAGIC, VERSION, len(text), len(raw), _digest(text + raw)) + text + raw


def unpack(data: bytes, kind: str) -> Any:
    """The tree that was packed as this kind; anything else is refused, whatever it is."""
    try:
        return _unpacked(bytes(data), kind)
    except validate.InvalidInput:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, MemoryError, OverflowError) as error:
        _refuse(data, kind, f"its contents ({type(error).__name__})", error)


def checksum(w: Tensor) -> int:
    """64 bits of the bits of a vector: each word times an odd number of its place, added up modulo 2^64.

    >>> checksum(torch.tensor([1.0, 2.0])) == checksum(torch.tensor([2.0, 1.0]))
    False
    """
    raw, total = w.detach().reshape(-1).contiguous().cpu().view(torch.uint8), 0
    raw = torch.nn.functional.pad(raw, (0, -raw.numel() % 8)).view(torch.int64)
    for lo in range(0, raw.numel(), WORDS):
        part = raw[lo : lo + WORDS]
        place = torch.arange(2 * lo + 1, 2 * (lo + len(part)) + 1, 2) * -7046029254386353131
        total += int((part * place).sum()) + int((part >> 17).mul_(place).sum())
    return (total + w.numel()) % (1 << 64)


def fingerprint(value: Any) -> str:
    """A digest of a value and of all tensors in it, to tell whether two machines have the same.

    >>> fingerprint({"a": torch.ones(2)}) == fingerprint({"a": torch.ones(2)}) != fingerprint({"a": torch.ones(3)})
    True
    """
    whole = hashlib.blake2b(digest_size=16)
    _add(value, whole.update)
    return whole.hexdigest()


def _add(value: Any, update: Callable[[bytes], None]) -> None:
    """A value as bytes: tensors, numbers, words, tables of them, and what has a fingerprint of its own."""
    if isinstance(value, Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        flat = value.detach().reshape(-1).contiguous().cpu()
        update(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    elif hasattr(value, "fingerprint"):
        update(str(value.fingerprint).encode())
    elif isinstance(value, Mapping):
        for name, item in value.items():
            update(str(name).encode())
            _add(item, update)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _add(item, update)
    elif value is None or isinstance(value, (bool, int, float, str)):
        update(repr(value).encode())
    else:
        update(f"{type(value).__name__} {value if is_dataclass(value) else ''}".encode())


def _unpacked(data: bytes, kind: str) -> Any:
    if len(data) < HEAD.size or data[:4] != MAGIC:
        _refuse(data, kind, "its first bytes")
    _, version, words, size, seal = HEAD.unpack_from(data)
    if version != VERSION:
        _refuse(data, kind, f"its version, {version}: this one reads version {VERSION}")
    if words > MOST or HEAD.size + words + size != len(data):
        _refuse(data, kind, "its length")
    if seal != _digest(data[HEAD.size :]):
        _refuse(data, kind, "its digest: it was damaged on the way")
    tree = json.loads(data[HEAD.size : HEAD.size + words])
    if tree["kind"] != kind:
        _refuse(data, kind, "its kind")
    tensors, at = {}, HEAD.size + words
    for name, dtype, shape in tree["arrays"]:
        if not isinstance(name, str) or name in tensors or not all(type(n) is int and n >= 0 for n in shape):
            _refuse(data, kind, "its list of arrays")
        length = math.prod(shape) * DTYPES[dtype].itemsize
        if at + length > len(data):
            _refuse(data, kind, "the length of its arrays")
        tensors[name] = _tensor_of(data[at : at + length], DTYPES[dtype], shape)
        at += length
    if at != len(data):
        _refuse(data, kind, "the length of its arrays")
    _check(tree["tree"], data, kind)
    return storage.decode(tree["tree"], tensors)


def _tensor_of(raw: bytes, dtype: torch.dtype, shape: list[int]) -> Tensor:
    if not raw:
        return torch.empty(shape, dtype=dtype)
    if dtype == torch.bool and set(raw) - {0, 1}:
        raise ValueError("a truth value is 0 or 1")
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def _raw(value: Tensor) -> bytes:
    return value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if value.numel() else b""


def _name(path: str, value: Tensor) -> str:
    name = str(value.dtype).removeprefix("torch.")
    validate.check(name in DTYPES, path or "tensor", name, f"send one of {sorted(DTYPES)}")
    return name


def _check(tree: Any, data: bytes, kind: str) -> None:
    """Refuse tags that are not ours: nothing that is sent names a class."""
    if isinstance(tree, list):
        for branch in tree:
            _check(branch, data, kind)
    elif isinstance(tree, dict):
        tags = [key for key in tree if key.startswith("@")]
        if tags and (len(tree) > 1 or tags[0] not in TAGS):
            _refuse(data, kind, f"what it holds ({tags[0][:20]})")
        for branch in tree.values():
            _check(branch, data, kind)


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


def _refuse(data: bytes, kind: str, what: str, cause: Exception | None = None) -> Any:
    remedy = f"give what was packed as a {kind}: what does not fit is {what}"
    raise validate.InvalidInput(f"data={len(data)} bytes {bytes(data[:8])!r}... is not allowed: {remedy}") from cause
